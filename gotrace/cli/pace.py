# SPDX-License-Identifier: Apache-2.0
"""Drive a run from attaching to its end: intervals, polls, signals, and the target's fate.

When a run ends, the probes go first, within a fifth of a second, whatever the tool is doing. What
is left to be read and written then has a second, or as much more as the user asks for
(``GOTRACE_DRAIN``); what is not done by then is counted as lost. Only where the target has ended
there is time for all of it, until a signal or the duration ends that.
"""

from __future__ import annotations

import argparse
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from gotrace.cli.stream import Patience
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.session.lifetime import Lifetime, Probing
from gotrace.session.plan import ProbePlan
from gotrace.target.target import Target
from gotrace.target.wait import Reason, Waiter

__all__ = ["detached", "listen", "pace", "turns", "waiter_for"]

_SILENT = 5.0  # seconds
_DRAINING = 0.8  # seconds after the end of the run, in which what is left is written
_LEAST_DRAINING = 0.4  # of these, on a machine that was slow to begin with it
_ENDS = (Reason.INTERRUPT, Reason.EXIT)


def waiter_for(target: Target) -> Waiter:
    """Return a Waiter that knows when the target's processes have ended, where it has any."""
    waiter = Waiter(*(process.exit_descriptor() for process in target.watched))
    waiter.on_first = _too_early
    return waiter


def listen(waiter: Waiter, tracer: Probing) -> None:
    """Let a signal end the run from now on, and a second one end everything at once.

    Until then it interrupts what is being prepared. To be called before the user reads that
    tracing has begun.
    """
    waiter.on_first = tracer.attached.stop
    waiter.on_second = _abandon


def pace(
    options: argparse.Namespace,
    waiter: Waiter,
    target: Target,
    plan: ProbePlan,
    output: Output,
    tracer: Probing,
    poll: Callable[[Callable[[], bool]], bool] | None = None,
    poll_period: float = Lifetime.PERIOD,
    seen: Callable[[], bool] | None = None,
) -> Iterator[float]:
    """Release a command and yield, each time results are due, the seconds since the last time.

    The last time is when the run ends: by ``--duration``, a signal, or the target's exit or exec,
    which are reported on ``output`` after it. ``tracer`` is stopped before it, and by a signal or
    the end of the duration at once. ``poll`` is called every ``poll_period`` seconds and can end
    the run by returning true; it gets a function that returns whether the run is over, after which
    it is to return soon. ``seen`` says whether there has been any call: where there is none for
    five seconds, a notice says why that may be.
    """
    target.start()
    lifetime = Lifetime(target, plan)
    if missed := lifetime.missed_command():
        message = f"{missed} was replaced before it was started: what runs now is not traced"
        output.notice(Notice(NoticeKind.WARNING, message, {"path": missed}))
    started = since = time.monotonic()
    if target.command is None:
        since = tracer.attached.began
    end = started + options.duration if options.duration else None
    tick = started + options.interval if options.interval else None
    look = started + Lifetime.PERIOD
    over = False

    def is_over() -> bool:
        return waiter.interrupted or (end is not None and time.monotonic() >= end)

    patience: Patience = options.patience
    patience.ended = lambda: _asked_at(waiter, end)
    with _stopped_at(end, tracer.attached.stop):
        while not over:
            next_poll = min(time.monotonic() + poll_period, look)
            until = min(moment for moment in (end, tick, next_poll) if moment is not None)
            reason = waiter.wait(until)
            enough = poll is not None and not is_over() and poll(is_over)
            now = time.monotonic()
            over = enough or reason in _ENDS or is_over()
            if now >= look and not over:
                look = now + Lifetime.PERIOD
                over = _look(lifetime, output)
            if seen is not None and now >= started + _SILENT:
                if not over and not seen():
                    output.notice(_silent(options, target))
                seen = None
            if over:
                tracer.attached.stop()
                if enough:
                    patience.end(now)
                tracer.stop()
            if over or (tick is not None and now >= tick):
                yield now - since
                since = now
                if tick is not None:
                    tick = max(tick + options.interval, now)
        if reason is Reason.EXIT:
            output.notice(_exited(target))


def _silent(options: argparse.Namespace, target: Target) -> Notice:
    """Say that there has been no call, and why that may be."""
    reasons = ["they are not called", "they were inlined where they are called (see -l)"]
    if target.process is not None:
        reasons.append("another process calls them")
    if getattr(options, "goid", None) or getattr(options, "tid", None):
        reasons.append("other goroutines or threads call them")
    text = f"no call seen in {_SILENT:.0f} s, although probes are in place: maybe "
    text += f"{', '.join(reasons[:-1])} or {reasons[-1]}"
    if any("(" in pattern.partition(" ")[2] for pattern in options.patterns):
        text += "; or no call is as the predicate wants it"
    return Notice(NoticeKind.WARNING, text, {"what": "silent"})


def turns(patience: Patience, length: float) -> Iterator[float]:
    """Yield, once the run is over, until when (``time.monotonic``) each turn of reading may take.

    A turn takes ``length`` seconds, the last one less. There is no last one where the target has
    ended: what it has left can all be read, until a signal or the duration ends that.
    """
    begun = time.monotonic()
    while True:
        now, ended = time.monotonic(), patience.ended()
        until = now + length
        if ended is not None:
            last = max(ended + _DRAINING, begun + _LEAST_DRAINING) + patience.more
            until = min(until, last)
        if now >= until:
            return
        yield until


def detached(tracer: Probing) -> Iterator[Notice]:
    """Wait for the probes to be removed, not for long, and yield the run's last notices."""
    if left := tracer.attached.detach():
        pids = ", ".join(map(str, left))
        text = (
            "the kernel is still removing probes, which do nothing but cost time until then:"
            f" gotrace-keeper (process {pids}) ends when that is done"
        )
        yield Notice(NoticeKind.WARNING, text, {"keepers": left})
    yield Notice(NoticeKind.DETACHED, "Detaching...")


def _asked_at(waiter: Waiter, end: float | None) -> float | None:
    """Return when the run was to end, None while it is not."""
    if waiter.asked is not None:
        return waiter.asked
    return end if end is not None and time.monotonic() >= end else None


@contextmanager
def _stopped_at(end: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Stop at a time, where there is one, whatever this thread is doing then."""
    timer = None
    if end is not None:
        timer = threading.Timer(end - time.monotonic(), stop)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no further thread: it is done a little later
            timer = None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()


def _too_early() -> NoReturn:
    raise KeyboardInterrupt


def _abandon() -> NoReturn:
    """End at once, in a signal handler; probes and buffers go with the process's descriptors."""
    words = b"interrupted again: what was left to be written is missing\n"
    with suppress(OSError):
        stuck = select.poll()
        stuck.register(2, select.POLLOUT)
        if stuck.poll(0):
            os.write(2, words)
    os._exit(1)


def _look(lifetime: Lifetime, output: Output) -> bool:
    """Report what became of the target's program and files; return whether the run is over."""
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
    """Return the notice that the target has ended, and how where that can be known."""
    pid = target.pid
    if target.processes:
        pids = [process.tgid for process in target.processes]
        text = f"processes {', '.join(map(str, pids))} have ended"
        return Notice(NoticeKind.EXITED, text, {"pids": pids})
    if target.command is None:
        return Notice(NoticeKind.EXITED, f"process {pid} has ended", {"pid": pid})
    code = os.waitstatus_to_exitcode(target.command.reap())
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return Notice(NoticeKind.EXITED, f"process {pid} {how}", {"pid": pid, "status": code})
