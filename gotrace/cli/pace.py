# SPDX-License-Identifier: Apache-2.0
"""Drive a run from attaching to its end: intervals, polls, signals, and the target's fate.

When a run ends, the probes go first, within a fifth of a second, whatever the tool is doing. What
is left to be read and written then has a second, or as much more as the user asks for
(``GOTRACE_DRAIN``); what is not done by then is counted as lost. Only where the target has ended
there is time for all of it, until a signal or the duration ends that.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from gotrace.cli.options import FunctionOptions, RunOptions, SummaryOptions
from gotrace.cli.why import PriceWatch
from gotrace.report.output import Notice, NoticeKind, Output, Patience, TextOutput
from gotrace.session.lifetime import Lifetime
from gotrace.session.probing import Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.run import End, NoteKind, Run, open_run
from gotrace.target.target import Target
from gotrace.target.wait import SignalWaiter
from gotrace.text import counted

if TYPE_CHECKING:  # counting does without
    from gotrace.session.reading import RecordReader
    from gotrace.session.trace import CallTracer

M = TypeVar("M", bound=Probing)
C = TypeVar("C")

_SILENT = 5.0  # seconds
_STOPPED = 1.0  # seconds in which this process has not run: longer than any turn
_POLL, _TURN = 0.025, 0.06  # seconds between two turns of reading records, and of each
_DRAINING = 0.8  # seconds after the end of the run, in which what is left is written
_SKIPPED = "{:,} hit{s} not seen: the kernel did not let a program begin within another on that CPU"
_LEAST_DRAINING = 0.4  # of these, on a machine that was slow to begin with it


@contextmanager
def running(
    request: RunRequest[M, C], output: Output, accept: Accept | None = None
) -> Iterator[Run[M, C]]:
    """Open a run that signals end, and detach and say so at the end of it.

    A signal interrupts what is being prepared. Once the probes are in place the first one ends the
    run, and a second one ends everything at once. ``accept`` is as for ``open_run``.
    """
    with SignalWaiter() as waiter:
        waiter.on_first = _too_early
        with open_run(request, waiter=waiter, announce=_warning_to(output), accept=accept) as run:
            waiter.on_first, waiter.on_second = run.stop, _abandon
            output.patience.stop = run.stop
            for form in output.forms:
                if isinstance(form, TextOutput):
                    form.uncounted = lambda: sum(one.missing for one in run.plan.inlined())
            if output.patience.is_unread:
                run.stop()
            yield run
            if skipped := run.meter.skipped():
                fields = {"what": "skipped", "calls": skipped}
                output.notice(Notice(NoticeKind.LOST, counted(_SKIPPED, skipped), fields))
            for notice in _detached(run):
                output.notice(notice)


def _warning_to(output: Output) -> Callable[[str], None]:
    return lambda text: output.notice(Notice(NoticeKind.WARNING, text))


_KINDS = {NoteKind.ANOTHER: NoticeKind.EXITED, NoteKind.MOVED: NoticeKind.MOVED}


def pace(
    options: RunOptions,
    run: Run[M, C],
    output: Output,
    poll: Callable[[Callable[[], bool]], bool] | None = None,
    poll_period: float = Lifetime.PERIOD,
    seen: Callable[[], bool] | None = None,
    watch: PriceWatch | None = None,
) -> Iterator[float]:
    """Begin a run and yield, each time results are due, the seconds since the last time.

    The last time is when the run is over, and nothing is recorded any more. The target's end is
    reported on ``output``. ``poll`` is called every ``poll_period`` seconds and can end the run by
    returning true; it gets a function that returns whether the run is over, after which it is to
    return soon. ``seen`` says whether any call has been seen. If it is false after five seconds, a
    notice says why that may be. ``watch`` says what the run takes now.
    """
    run.begin(options.duration)
    began = time.monotonic()
    since = run.began
    interval = options.interval if isinstance(options, SummaryOptions) else None
    tick = began + interval if interval else math.inf
    looked, silent = began, began + _SILENT
    output.patience.ended = lambda: run.asked
    over = False
    while not over:
        due = tick if seen is None else min(tick, silent)
        over = run.is_over(min(poll_period, due - time.monotonic()))
        for note in run.news():
            kind = _KINDS.get(note.kind, NoticeKind.WARNING)
            if kind is not NoticeKind.MOVED or options.says_moves:
                output.notice(Notice(kind, note.text, note.fields))
        if not over and poll is not None and poll(lambda: run.asked is not None):
            output.patience.end(time.monotonic())
            run.stop()
            over = run.is_over(0)
        if not over and watch is not None:
            watch.look(run.hits)
        now = time.monotonic()
        if now - looked > poll_period + _STOPPED:  # calls that came meanwhile are shown in a moment
            silent = max(silent, now + _STOPPED)
        looked = now
        if seen is not None and now >= silent:
            if not over and not seen():
                output.notice(_silent(options, run.target))
            seen = None
        if over or now >= tick:
            until = min(now, run.attached.stopped_at or now)
            yield max(0.0, until - since)
            since = until
            tick = max(tick + (interval or math.inf), now)
    if run.end is End.EXIT:
        output.notice(_exited(run.target))


def read(
    options: RunOptions,
    run: Run[CallTracer, C],
    output: Output,
    reader: RecordReader,
    take: Callable[[Iterator[bytes], float, Callable[[], bool]], bool],
    seen: Callable[[], bool] | None = None,
    watch: PriceWatch | None = None,
    holds: Callable[[], bool] = lambda: False,
) -> None:
    """Take the records of a run, in short turns, up to its end and after it.

    ``take`` gets the records of a turn, until when it may go on, and a function that returns
    whether the run is over, after which it is to return soon. It returns whether it wants no more,
    which ends the run. ``seen`` and ``watch`` are as for ``pace``, ``holds`` as for
    ``RecordReader.rest``.
    """
    has_enough = False

    def poll(is_over: Callable[[], bool]) -> bool:
        nonlocal has_enough
        until = time.monotonic() + _TURN
        has_enough = take(reader.turn(), until, is_over)
        return has_enough

    for _ in pace(options, run, output, poll, _POLL, seen, watch):
        last = reader.rest(turns(output.patience, _TURN), holds)
        for records, until in () if has_enough else last:
            if take(records, until, lambda: False):
                break


def _silent(options: RunOptions, target: Target) -> Notice:
    """Return a notice that there has been no call, with possible reasons."""
    reasons = [
        "they are not called (gostacks shows what the program does)",
        "they were inlined where they are called (see -l)",
    ]
    if target.process is not None:
        reasons.append("another process calls them")
    if isinstance(options, FunctionOptions) and options.is_of_some:
        reasons.append("other goroutines or threads call them")
    text = f"no call seen in {_SILENT:.0f} s, although probes are in place: maybe "
    text += f"{', '.join(reasons[:-1])} or {reasons[-1]}"
    patterns = options.patterns if isinstance(options, FunctionOptions) else ()
    if any("(" in pattern.partition(" ")[2] for pattern in patterns):
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


def _detached(run: Run[M, C]) -> Iterator[Notice]:
    """Wait for the probes to be removed, not for long, and yield the run's last notices."""
    if left := run.attached.detach():
        pids = ", ".join(map(str, left))
        text = (
            "the kernel is still removing probes, which do nothing but cost time until then:"
            f" gotrace-keeper (process {pids}) ends when that is done"
        )
        yield Notice(NoticeKind.WARNING, text, {"keepers": left})
    seconds = round((run.attached.stopped_at or time.monotonic()) - run.began, 6)
    yield Notice(NoticeKind.DETACHED, "Detaching...", {"seconds": seconds})


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


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


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
    how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with status {code}"
    return Notice(NoticeKind.EXITED, f"process {pid} {how}", {"pid": pid, "status": code})
