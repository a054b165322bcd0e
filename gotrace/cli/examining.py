# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace examine: looks at a program, and what its time goes into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

from gotrace.cli.examine_options import ExamineOptions
from gotrace.cli.run import make_output
from gotrace.errors import GotraceError, UsageError
from gotrace.live.attached import AttachPrice, percent
from gotrace.live.causes import Looks, Measured, Processors, time_findings
from gotrace.live.model import Snapshot
from gotrace.live.monitor import Monitor
from gotrace.live.served import Served
from gotrace.report.causes import write_findings
from gotrace.report.output import Notice, NoticeKind, Output
from gotrace.results.rows import Row
from gotrace.session.oncpu.meter import SampleMeter, SampleRequest
from gotrace.session.oncpu.naming import NamedSamples, SampleNames
from gotrace.session.run import Run, open_run
from gotrace.target.process import ProcessError, one_process
from gotrace.target.target import Target
from gotrace.target.usage import quota_periods, ready_seconds
from gotrace.target.wait import Reason, SignalWaiter

#: Seconds between two looks, and how many times the length of a look that is at least; but there
#: are so many looks.
_LOOK, _SPARE, _MIN_LOOKS = 0.1, 10, 8


class _TooDear(GotraceError):
    """A measurement that would take more than the budget."""


def examine(options: ExamineOptions) -> int:
    """Examine a program, and return the exit status. Raises GotraceError."""
    if not options.processes:
        raise UsageError("which process? Type gotrace examine -p PID")
    pid = one_process(options.processes, "gotrace examine looks at")
    output = make_output(options)
    with ExitStack() as opened:
        waiter = opened.enter_context(SignalWaiter())
        target = opened.enter_context(closing(Target.of(pid, None)))
        monitor = opened.enter_context(Monitor(target))
        unseen: list[str] = []
        accept = _accepting(options)
        samples: Run[SampleMeter, None] | None = None
        served: Served | None = None

        def serve() -> None:
            nonlocal served
            if monitor.server is None:
                raise GotraceError(f"no server is known in it: type gotop -p {pid} -r ROOT")
            served = opened.enter_context(Served(target, monitor.server, accept))

        def sample() -> None:
            nonlocal samples
            samples = opened.enter_context(open_run(SampleRequest(target=target)))
            samples.begin()

        _attach("requests", unseen, serve)
        if served is not None:
            unseen += [f"{what}: {why}" for what, why in served.unseen.items()]
        _attach("who ends waits", unseen, lambda: monitor.attach_waits(accept))
        _attach("CPU time by function", unseen, sample)
        measured = _measured(options, monitor, target, waiter, samples, served, output)
        write_findings(output, measured, time_findings(measured), unseen)
    return 0


def _accepting(options: ExamineOptions) -> Callable[[AttachPrice], None]:
    """Return a function that accepts prices as long as they are within the budget together."""
    left = options.budget

    def accept(price: AttachPrice) -> None:
        nonlocal left
        if price.share > left:
            share = f"that takes about {percent(price.share)} of one CPU"
            raise _TooDear(f"{share}, and {percent(left)} are left of --budget")
        left -= price.share

    return accept


def _attach(what: str, unseen: list[str], attach: Callable[[], None]) -> None:
    """Attach something, or note why it is not looked at."""
    try:
        attach()
    except GotraceError as error:
        unseen.append(f"{what}: {error}")


def _measured(
    options: ExamineOptions,
    monitor: Monitor,
    target: Target,
    waiter: SignalWaiter,
    samples: Run[SampleMeter, None] | None,
    served: Served | None,
    output: Output,
) -> Measured:
    """Look until the end, and return all that was measured."""
    assert target.process is not None
    looks, waits = Looks.of(target), list[Row]()
    periods = quota_periods(target.process)
    ready, machine = ready_seconds(target.process), len(os.sched_getaffinity(monitor.pid))
    used, passed = 0.0, 0.0
    for snapshot in _snapshots(options, monitor, waiter, output):
        looks.add(monitor, snapshot)
        used += snapshot.head.cpu * snapshot.seconds
        passed += snapshot.seconds
        waits += monitor.waits.latest if monitor.waits is not None else ()
        if samples is not None:
            samples.is_over(0)
        if served is not None:
            served.poll()
    requests = served.take() if served is not None else None
    looks.leave_out_lasting(requests.goroutines if requests is not None else None)
    named: list[NamedSamples] | None = None
    if samples is not None:
        samples.stop()
        samples.is_over(0)
        named = SampleNames(samples.meter).named(samples.meter.take().rows)
    last = looks.last
    assert last is not None
    after = quota_periods(target.process)
    throttled = None
    if periods is not None and after is not None and after[0] > periods[0]:
        throttled = (after[1] - periods[1]) / (after[0] - periods[0])
    heap = last.head.heap
    processors = Processors(
        used / passed if passed else last.head.cpu,
        max(0.0, ready_seconds(target.process) - ready) / passed if passed else 0.0,
        machine,
        heap.procs if heap is not None else os.cpu_count() or 1,
        last.head.quota,
        throttled,
    )
    all_waits = waits if monitor.waits else None
    return Measured(monitor.pid, monitor.server, looks, processors, named, all_waits, requests)


def _snapshots(
    options: ExamineOptions, monitor: Monitor, waiter: SignalWaiter, output: Output
) -> Iterator[Snapshot]:
    """Yield looks up to the end, at least one. Raises ProcessError if there is none."""
    until, due, count = time.monotonic() + options.duration, 0.0, 0
    while not count or (due < until and waiter.wait(due) is Reason.TIME):
        began = time.monotonic()
        try:
            yield monitor.snapshot()
        except ProcessError as error:
            if not count:
                raise
            output.notice(Notice(NoticeKind.EXITED, str(error), {"pid": monitor.pid}))
            return
        count += 1
        if count == 1:
            text = f"Looking at process {monitor.pid} for {options.duration:g} s..."
            text += " Hit Ctrl-C to end."
            output.notice(Notice(NoticeKind.ATTACHED, text, {"pid": monitor.pid}))
        now = time.monotonic()
        spare = min(_SPARE * (now - began), options.duration / _MIN_LOOKS)
        due = max(began + _LOOK, now + spare)
