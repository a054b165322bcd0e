# SPDX-License-Identifier: Apache-2.0
"""Examine a program: look at it again and again, and find what its time goes into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from gotrace.closing import Closing
from gotrace.errors import GotraceError, said
from gotrace.live.attached import AttachPrice, percent
from gotrace.live.causes import (
    Looks,
    Measured,
    Processors,
    fine,
    means,
    no_server,
    time_findings,
)
from gotrace.live.findings import Examination
from gotrace.live.monitor import Monitor
from gotrace.live.served import Served
from gotrace.results.rows import Row
from gotrace.session.oncpu.meter import SampleMeter, SampleRequest
from gotrace.session.oncpu.naming import SampleNames
from gotrace.session.run import Run, open_run
from gotrace.target.process import ProcessError
from gotrace.target.target import Target
from gotrace.target.usage import quota_periods, ready_seconds

#: Seconds between two looks, and how many times the length of a look that is at least; but there
#: are so many looks.
_LOOK, _SPARE, _MIN_LOOKS = 0.1, 10, 8


class Examiner(Closing):
    """All that is attached to a program to examine it; a context manager that detaches."""

    def __init__(self, target: Target, budget: float) -> None:
        """Attach to a running process what takes the ``budget``, a part of one CPU, or less.

        The target stays open. Raises GotraceError.
        """
        self._target, self._left = target, budget
        #: Why the looks have ended early, None if they have not.
        self.ended: ProcessError | None = None
        self._unseen: list[str] = []
        self._served: Served | None = None
        self._samples: Run[SampleMeter, None] | None = None
        self._waits: list[Row] = []
        self._used = self._passed = 0.0
        with ExitStack() as opened:
            self._monitor = monitor = opened.enter_context(Monitor(target))
            self._opened = opened
            self._attach("requests", self._serve)
            self._attach("who ends waits", lambda: monitor.attach_waits(self._accept))
            self._attach("CPU time by function", self._sample)
            self._looks = Looks.of(target)
            self._opened = opened.pop_all()
        assert target.process is not None
        self._periods = quota_periods(target.process)
        self._ready = ready_seconds(target.process)
        self._machine = len(os.sched_getaffinity(monitor.pid))

    def _accept(self, price: AttachPrice) -> None:
        """Accept a price as long as all together are within the budget. Raises GotraceError."""
        if price.share > self._left:
            share = f"that takes about {percent(price.share)} of one CPU"
            left = f"{percent(self._left)} are left of {said('--budget', 'budget')}"
            raise GotraceError(f"{share}, and {left}")
        self._left -= price.share

    def _attach(self, what: str, attach: Callable[[], None]) -> None:
        """Attach something, or note why it is not looked at."""
        try:
            attach()
        except GotraceError as error:
            self._unseen.append(f"{what}: {error}")

    def _serve(self) -> None:
        server = self._monitor.server
        if server is None:
            raise GotraceError(no_server(self._monitor.pid))
        self._served = self._opened.enter_context(Served(self._target, server, self._accept))
        self._unseen += [f"{what}: {why}" for what, why in self._served.unseen.items()]

    def _sample(self) -> None:
        request = SampleRequest(target=self._target)
        self._samples = self._opened.enter_context(open_run(request))
        self._samples.begin()

    def looks(self, seconds: float, wait: Callable[[float], bool]) -> Iterator[int]:
        """Look for so long, and yield the number of each look, one at least.

        ``wait`` waits until a time (``time.monotonic``), and returns whether it goes on. Raises
        ProcessError if there is nothing to look at.
        """
        until, due, count = time.monotonic() + seconds, 0.0, 0
        while not count or (due < until and wait(due)):
            began = time.monotonic()
            try:
                self._look()
            except ProcessError as error:
                if not count:
                    raise
                self.ended = error
                return
            count += 1
            yield count
            now = time.monotonic()
            spare = min(_SPARE * (now - began), seconds / _MIN_LOOKS)
            due = max(began + _LOOK, now + spare)

    def _look(self) -> None:
        monitor = self._monitor
        snapshot = monitor.snapshot()
        self._looks.add(monitor, snapshot)
        self._used += snapshot.head.cpu * snapshot.seconds
        self._passed += snapshot.seconds
        self._waits += monitor.waits.latest if monitor.waits is not None else ()
        if self._samples is not None:
            self._samples.is_over(0)
        if self._served is not None:
            self._served.poll()

    def result(self) -> Examination:
        """Return the findings of the looks, once."""
        requests = self._served.take() if self._served is not None else None
        self._looks.leave_out_lasting(requests.goroutines if requests is not None else None)
        named = None
        if self._samples is not None:
            self._samples.stop()
            self._samples.is_over(0)
            named = SampleNames(self._samples.meter).named(self._samples.meter.take().rows)
        monitor = self._monitor
        measured = Measured(
            *(monitor.pid, monitor.server, self._looks, self._processors(), named),
            *(self._waits if monitor.waits is not None else None, requests),
        )
        found = time_findings(measured)
        texts = tuple(fine(measured, found)), tuple(means(measured, found))
        return Examination(tuple(found), *texts, tuple(self._unseen))

    def _processors(self) -> Processors:
        process, last = self._target.process, self._looks.last
        assert process is not None and last is not None
        after, throttled = quota_periods(process), None
        if self._periods is not None and after is not None and after[0] > self._periods[0]:
            throttled = (after[1] - self._periods[1]) / (after[0] - self._periods[0])
        heap, passed = last.head.heap, self._passed
        return Processors(
            self._used / passed if passed else last.head.cpu,
            max(0.0, ready_seconds(process) - self._ready) / passed if passed else 0.0,
            self._machine,
            heap.procs if heap is not None else os.cpu_count() or 1,
            last.head.quota,
            throttled,
        )

    def close(self) -> None:
        """Detach."""
        self._opened.close()
