"""Drive a run from attaching to its end: intervals, polls, signals, and the target's fate."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator

from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.lifetime import Lifetime
from gotrace.session.plan import Plan
from gotrace.target.target import Target
from gotrace.target.wait import Reason, Waiter

__all__ = ["pace", "waiter_for"]


_ENDS = (Reason.INTERRUPT, Reason.EXIT)


def waiter_for(target: Target) -> Waiter:
    """Return a Waiter that knows when the target's process ends, where there is one."""
    return Waiter(target.process.exit_descriptor() if target.process else None)


def pace(
    options: argparse.Namespace,
    waiter: Waiter,
    target: Target,
    plan: Plan,
    output: Output,
    poll: Callable[[], bool] | None = None,
    poll_period: float = Lifetime.PERIOD,
) -> Iterator[float]:
    """Release a command and yield, each time results are due, the seconds since the last time.

    The last time is when the run ends: by ``--duration``, a signal, or the target's exit or exec,
    which are told on ``output`` after it. ``poll`` is called every ``poll_period`` seconds and
    can end the run by returning true.
    """
    target.start()
    lifetime = Lifetime(target, plan)
    if missed := lifetime.missed_command():
        message = f"{missed} was replaced before it was started: what runs now is not traced"
        output.notice(Notice(NoticeKind.WARNING, message, {"path": missed}))
    started = since = time.monotonic()
    end = started + options.duration if options.duration else None
    tick = started + options.interval if options.interval else None
    look = started + Lifetime.PERIOD
    over = False
    while not over:
        next_poll = min(time.monotonic() + poll_period, look)
        until = min(moment for moment in (end, tick, next_poll) if moment is not None)
        reason = waiter.wait(until)
        now = time.monotonic()
        enough = poll is not None and poll()
        over = enough or reason in _ENDS or (end is not None and now >= end)
        if now >= look and not over:
            look = now + Lifetime.PERIOD
            over = _look(lifetime, output)
        if over or (tick is not None and now >= tick):
            yield now - since
            since = now
            if tick is not None:
                tick = max(tick + options.interval, now)
    if reason is Reason.EXIT:
        output.notice(_exited(target))


def _look(lifetime: Lifetime, output: Output) -> bool:
    """Report what became of the target's program and files; tell whether the run is over."""
    for path in lifetime.replaced_files():
        message = f"{path} was replaced on disk: processes that start from now on are not traced"
        output.notice(Notice(NoticeKind.WARNING, message, {"path": path}))
    if overwritten := lifetime.overwritten_file():
        message = f"{overwritten} was written to: its probes may be in wrong places now"
        output.notice(Notice(NoticeKind.WARNING, message, {"path": overwritten}))
        return True
    program = lifetime.replaced_program()
    if program is None:
        return False
    message = f"the process runs another program now: {program}"
    output.notice(Notice(NoticeKind.EXITED, message, {"path": program}))
    return True


def _exited(target: Target) -> Notice:
    """Say that the target has ended, and how where that can be known."""
    pid = target.pid
    if target.command is None:
        return Notice(NoticeKind.EXITED, f"process {pid} has ended", {"pid": pid})
    code = os.waitstatus_to_exitcode(target.command.reap())
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return Notice(NoticeKind.EXITED, f"process {pid} {how}", {"pid": pid, "status": code})
