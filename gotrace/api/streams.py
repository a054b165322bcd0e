# SPDX-License-Identifier: Apache-2.0
"""Iterators over what a session traces: they detach at their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gotrace.api.checks import check_budget, check_lost, missing, os_errors
from gotrace.calls import Call, LostCalls
from gotrace.closing import Closing
from gotrace.errors import UsageError
from gotrace.overhead import ProbeCost
from gotrace.requests.assemble import Assembler, Tally
from gotrace.requests.flight import FlightReader
from gotrace.requests.model import Request
from gotrace.requests.recording import Recorder, Recording
from gotrace.results.lines import Reading, Recordable
from gotrace.results.rows import Row
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import function_of
from gotrace.session.probing import Probing
from gotrace.session.reading import RecordReader
from gotrace.session.run import End, Run
from gotrace.session.trace import CallTracer, TraceOptions
from gotrace.session.undisturbed import Opened
from gotrace.target.process import ProcessError
from gotrace.target.wait import Reason, Waiter

if TYPE_CHECKING:
    from gotrace.live.model import Snapshot
    from gotrace.live.monitor import Monitor
_PERIOD = 0.025  # seconds between two looks at the event buffers
READING = 0.02  # seconds of reading at a time
_LOOK = 1.0  # seconds between two looks at a run that only counts
_HARVEST = 0.1  # seconds between two looks for goroutines that have ended
_T = TypeVar("_T")
_R = TypeVar("_R", bound=Recordable)
_M = TypeVar("_M", bound=Probing)


class OpenSession(Protocol):
    """A session, as its streams need it: they keep its files open."""

    _opened: Opened


class Iteration(Closing, Iterator[_T]):
    """An iterator that detaches at its end, when it is closed, and when it is dropped."""

    def __init__(self, session: OpenSession, opened: Opened) -> None:
        self._session = session  # whose files live as long
        self._opened = opened
        self._opened.enter(session._opened.used("this session was closed meanwhile"))
        self._has_ended = False

    def __next__(self) -> _T:
        """Return the next one. Raises GotraceErrors, some of them in place of the end."""
        if self._has_ended:
            raise StopIteration
        if not self._opened.is_ours:
            owner = self._opened.owner
            raise UsageError(f"this trace is of process {owner}, which has forked this one")
        with self._opened.used("this trace is closed: iterate over it within its with block"):
            try:
                with os_errors():
                    made = self._next()
            except BaseException:
                self._end()
                raise
            if made is None or self._is_complete():
                self._end()
        if made is not None:
            return made
        self._check()
        raise StopIteration

    def _next(self) -> _T | None:
        """Return the next one, None at the end."""
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Return whether nothing is to follow."""
        return False

    def _check(self) -> None:
        """Raise the errors that are known at the end."""

    def _end(self) -> None:
        self._has_ended = True
        self._opened.close()  # once it is not used

    def stop(self) -> None:
        """End the iteration. May be called in any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Detach at once; objects that have not been iterated over are dropped.

        A process that was forked meanwhile closes nothing.
        """
        if not self._opened.is_ours:
            return
        self._opened.is_closing = True
        self.stop()
        self._opened.close()

    def __aiter__(self: _I) -> _I:
        return self

    async def __anext__(self) -> _T:
        """Return the next one, which another thread waits for; cancellation detaches."""
        import asyncio

        try:
            made = await asyncio.to_thread(next, self, None)
        except asyncio.CancelledError:
            self.close()
            raise
        if made is None:
            raise StopAsyncIteration
        return made

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


_I = TypeVar("_I", bound=Iteration[Any])


def passed(run: Run[_M, Any], until: float, poll: Callable[[Run[_M, Any]], bool] | None) -> bool:
    """Wait until a time, or until a run is over; return whether it is.

    ``poll`` is called now and then, and returns whether that is to be often.
    """
    is_over, left = False, until
    while not is_over and left > 0:
        is_busy = poll is not None and poll(run)
        left = max(0.0, until - time.monotonic())
        is_over = run.is_over(min(left, _HARVEST if is_busy else _LOOK))
    if poll is not None:
        poll(run)
    return is_over


class Readings:
    """When the results of a run were measured, and for how long, one after the other."""

    def __init__(self, run: Run[_M, Any], attached: Row, rates: bool) -> None:
        self._run: Run[Any, Any] = run
        self._attached, self._rates = attached, rates
        self._since = run.began

    def of(self, made: Callable[[], _R]) -> Callable[[], _R]:
        """Return a function that makes a result, which has been read now, and says so."""
        run, now = self._run, time.monotonic()
        until = min(now, run.attached.stopped_at or now)
        lost: Mapping[str, int] = {}
        if run.end is not None:
            lost = missing(run, run.meter.lost())
        seconds = max(0.0, until - self._since)
        reading = Reading(time.time(), seconds, self._attached, lost, self._rates)
        self._since = until

        def result() -> _R:
            found = made()
            found.reading = reading
            return found

        return result


class IntervalStream(Iteration[_T]):
    """The results of each interval of a run; detaches at its end, when closed, and when dropped."""

    def __init__(
        self,
        session: OpenSession,
        run: Run[_M, Any],
        interval: float,
        take: Callable[[], _T],
        poll: Callable[[Run[_M, Any]], bool] | None,
        lossy: bool,
        opened: Opened,
    ) -> None:
        super().__init__(session, opened)
        self._run, self._take, self._is_lossy = run, take, lossy
        self._interval, self._tick = interval, time.monotonic() + interval
        # Without a reference to this, which would not be dropped with the last one to it.
        self._passed: Callable[[float], bool] = lambda until: passed(run, until, poll)
        self._lost: Mapping[str, int] = {}

    def _next(self) -> _T | None:
        if self._run.end is not None:
            return None
        if self._passed(self._tick):
            self._lost = self._run.meter.lost()
        if self._opened.is_closing:
            return None
        now, due = time.monotonic(), self._tick + self._interval
        self._tick = due if due > now else now + self._interval
        return self._take()

    def _check(self) -> None:
        check_budget(self._run, self._is_lossy)
        check_lost(self._run, self._is_lossy, self._lost)

    def stop(self) -> None:
        """End the run: its last interval is still returned. May be called in any thread."""
        self._run.stop()


class SnapshotStream(Iteration["Snapshot"]):
    """Snapshots; detaches at its end, when closed, and when dropped."""

    def __init__(
        self,
        session: OpenSession,
        waiter: Waiter,
        monitor: Monitor,
        interval: float,
        opened: Opened,
    ) -> None:
        super().__init__(session, opened)
        self._waiter = waiter
        self._monitor = monitor
        self._interval = interval
        self._tick = 0.0  # when the next one is due

    def _next(self) -> Snapshot | None:
        if self._waiter.wait(self._tick) is not Reason.TIME or self._opened.is_closing:
            return None
        self._tick = max(self._tick + self._interval, time.monotonic())
        try:
            return self._opened.do(self._monitor.snapshot)
        except ProcessError:
            return None

    def stop(self) -> None:
        """End the iteration. May be called in any thread."""
        if self._opened.is_ours:
            self._waiter.ask()


class _Stream(Iteration[_T]):
    """An iterator over objects that are made of a run's records."""

    def __init__(
        self,
        session: OpenSession,
        run: Run[CallTracer, ProbeCost],
        decoders: Sequence[CallDecoder],
        undecided: Undecided,
        limit: int | None,
        lossy: bool,
        opened: Opened,
    ) -> None:
        """Take over a session's run; ``opened`` closes it."""
        super().__init__(session, opened)
        self._tracer = run.meter
        self._run = run
        self._decoders = decoders
        self._reader = RecordReader(run.meter, undecided)
        self._records: Iterator[bytes] = iter(())
        self._left = limit
        self._is_lossy = lossy
        self._is_over = False
        self._made: list[_T] = []  # in their order
        self._lost: dict[str, int] = {}
        self._next_reading = time.monotonic()
        run.meter.ends = run.ends
        self._epoch = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.time_ns()

    def _is_complete(self) -> bool:
        return self._left == 0

    def _check(self) -> None:
        """Raise LostCalls, and the error for calls that were not traced because of a budget."""
        check_budget(self._run, self._is_lossy)
        if self._lost and not self._is_lossy:
            raise LostCalls(self._lost)

    def _take(self, record: bytes) -> Iterable[_T]:
        """Return the objects that a record completes."""
        raise NotImplementedError

    def _rest(self, *, is_last: bool = False) -> Iterable[_T]:
        """Return the objects that are whole by now; if ``is_last``, also those that are not."""
        return ()

    def _next(self) -> _T | None:
        while self._left != 0:
            if not self._made and not self._reader.has_due and not self._read():
                return None
            if self._opened.is_closing:
                raise UsageError("this trace was closed meanwhile")
            if time.monotonic() >= self._next_reading:
                # Handling a call may take long, and the kernel's buffers fill meanwhile.
                self._next_reading = time.monotonic() + _PERIOD
                self._reader.fill()
            if not self._made:
                self._made += self._take(next(self._records))
            if self._made:
                if self._left is not None:
                    self._left -= 1
                return self._made.pop(0)
        return None

    def _read(self) -> bool:
        """Wait for records, or objects made of them; return whether there are any."""
        while not self._reader.has_due and not self._made:
            if self._reader.is_done:
                self._lost = self._losses()
                if self._run.end is End.GONE:
                    self._lost["probes"] = 1
                self._made += self._rest(is_last=True)
                return bool(self._made)
            self._is_over = self._is_over or self._run.is_over(0)
            self._next_reading = time.monotonic() + _PERIOD
            self._records = self._reader.turn()
            self._made += self._rest()
            if self._reader.has_due or self._made:
                # Later losses are not of the calls up to a limit that these may reach.
                self._lost = self._losses()
            elif not self._is_over:
                self._is_over = self._run.is_over(_PERIOD)
        return True

    def _losses(self) -> dict[str, int]:
        return {what: calls for what, calls in self._reader.losses().items() if calls}

    @property
    def lost(self) -> Mapping[str, int]:
        """Return how many calls are missing, by their fate, as far as that is known.

        ``probes`` is 1 if the probes were removed meanwhile: nobody knows how many came after that.
        """
        return self._lost

    def stop(self) -> None:
        """End the run: calls up to now can still be iterated over. May be called in any thread."""
        self._run.stop()


class CallStream(_Stream[Call]):
    """The calls of a trace as they end; detaches at its end, when closed, and when dropped."""

    def _take(self, record: bytes) -> list[Call]:
        calls = self._decoders[function_of(record)].calls(record)
        return [call.as_call(self._epoch) for _, call in calls]


class RequestStream(_Stream[Request[Call]]):
    """Requests as they are whole; detaches at its end, when closed, and when dropped."""

    def __init__(self, assembler: Assembler, *opened: Any) -> None:
        super().__init__(*opened)
        self._assembler = assembler

    @property
    def tally(self) -> Tally:
        """Return the counts of calls and requests so far, by their fate."""
        return self._assembler.tally

    def _take(self, record: bytes) -> Iterable[Request[Call]]:
        self._assembler.add(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Request[Call]]:
        for request in self._assembler.take(self._reader.complete, is_last):
            yield request.mapped(lambda call: call.as_call(self._epoch))

    def _losses(self) -> dict[str, int]:
        lost = super()._losses()
        self._assembler.missing(self._reader.missing())
        return lost


class FlightStream(_Stream[Recording]):
    """Recordings as they are made; detaches at its end, when closed, and when dropped."""

    def __init__(self, options: TraceOptions, seconds: float, *opened: Any) -> None:
        super().__init__(*opened)
        recorder = Recorder(self._decoders, options.roots, self._tracer.wait_reasons, self._epoch)
        self._flight = FlightReader(self._reader, recorder, options, seconds)

    def ask(self) -> None:
        """Make a recording now, without a trigger. May be called in any thread."""
        self._flight.ask()

    def _take(self, record: bytes) -> Iterable[Recording]:
        self._flight.add(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Recording]:
        recording = self._flight.take()
        return () if recording is None else (recording,)


class RecordStream(_Stream[Recording]):
    """One recording, of all that there is."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._kept: list[bytes] | None = []  # None once they are given out
        self._began = self._tracer.span_ns[0]
        self._missing = 0

    def _losses(self) -> dict[str, int]:
        lost = super()._losses()
        missing = self._reader.missing().gaps
        if missing != self._missing and self._kept is not None:
            # Nobody knows which states goroutines were left in: what is before is of no use.
            self._missing, self._began = missing, time.monotonic_ns()
            self._kept = []
        return lost

    def _take(self, record: bytes) -> Iterable[Recording]:
        if self._kept is not None:
            self._kept.append(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Recording]:
        if not is_last or self._kept is None:
            return
        records, self._kept = self._kept, None
        recorder = Recorder(self._decoders, (), self._tracer.wait_reasons, self._epoch)
        _, end = self._tracer.span_ns
        yield recorder.recording(records, self._began, end, lost=self._missing)
