# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace flight and gotrace record: all that was traced in some time, in a file."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gotrace.cli.irregular import irregularities, unread_notices
from gotrace.cli.pace import read, running
from gotrace.cli.request_options import NUMBER, FlightOptions, RecordOptions
from gotrace.cli.run import (
    asked_of,
    list_probes,
    opened_notices,
    run_output,
    status_of,
    target_of,
)
from gotrace.cli.stream import takes_more
from gotrace.cli.trees import check_roots, left_out_notices, with_own_functions
from gotrace.cli.why import PriceWatch
from gotrace.overhead import ProbeCost
from gotrace.probes.spec import ProbeSpec
from gotrace.records import replace
from gotrace.report.calls import Clock, TimeStyle
from gotrace.report.durations import duration
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output
from gotrace.requests.flight import FlightReader, flight_of
from gotrace.requests.recording import Recorder, Recording
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.reading import RecordReader
from gotrace.session.run import Run
from gotrace.session.trace import CallTracer, TraceOptions, TraceRequest
from gotrace.target.target import Target
from gotrace.text import counted, printable

_SAYING = 1.0  # seconds, at the end, until what was written is read
#: Files of a flight if nobody says how many: conditions may hold all the time.
_MAX_FILES = 100
#: Records of a file of ``gotrace record``: the rest is in further files.
_MAX_RECORDS = 1 << 18


def flight(options: FlightOptions) -> int:
    """Keep the trace, write it whenever a condition holds, and return the exit status.

    Raises GotraceError, UsageError among these.
    """
    return _traced(options, _flight_of, _run_flight)


def record(options: RecordOptions) -> int:
    """Trace until the end, write the recording, and return the exit status.

    Raises GotraceError, UsageError among these.
    """
    return _traced(options, _record_of, _run_record)


def _traced(
    options: _W,
    trace_of: Callable[[_W, Target], tuple[Sequence[ProbeSpec], TraceOptions]],
    run: Callable[[_W, TraceRequest, Output], ProbePlan],
) -> int:
    with target_of(options) as target:
        check_roots(options, target)
        if options.shows_own:
            options = with_own_functions(options, target)
        request, output = _request(options, target, *trace_of(options, target)), run_output(options)
        if options.list:
            return list_probes(request, output)
        return status_of(run(options, request, output).failed)


_W = TypeVar("_W", bound=RecordOptions)


def _flight_of(options: FlightOptions, target: Target) -> tuple[Sequence[ProbeSpec], TraceOptions]:
    assert options.memory is not None
    return flight_of(asked_of(options), target, options.when, options.memory)


def _record_of(options: RecordOptions, target: Target) -> tuple[Sequence[ProbeSpec], TraceOptions]:
    probes, failed = asked_of(options).probes(target)
    if failed:
        raise failed[0]
    return probes, TraceOptions(states=True)


def _request(
    options: RecordOptions, target: Target, probes: Sequence[ProbeSpec], traced: TraceOptions
) -> TraceRequest:
    return TraceRequest(
        target=target,
        asked=asked_of(options),
        probes=probes,
        is_strict=options.strict,
        forced=options.attach,
        returns=options.returns,
        is_priced=True,
        choices=replace(options.choices, first_alone=traced.flight is not None),
        options=traced,
    )


@contextmanager
def _opened(
    options: RecordOptions,
    request: TraceRequest,
    output: Output,
    watch: PriceWatch,
) -> Iterator[tuple[Run[CallTracer, ProbeCost], Recorder]]:
    """Open a run, report it, and yield it with the maker of its recordings."""
    with running(request, output, watch.accept) as run:
        for notice in (*opened_notices(options, run, "recorded"), *left_out_notices(options)):
            output.notice(notice)
        decoders, _ = request.decoders(run)
        epoch = Clock.started_now(TimeStyle.TIME_OF_DAY).epoch
        yield run, Recorder(decoders, request.options.roots, run.meter.wait_reasons, epoch)


def _run_flight(options: FlightOptions, request: TraceRequest, output: Output) -> ProbePlan:
    """Keep the trace, write it whenever a condition holds, and return the plan."""
    assert options.memory is not None
    watch = PriceWatch(options, output, "gotrace flight")
    with (
        _counting_signals() as signals,
        _opened(options, request, output, watch) as (run, recorder),
    ):
        reader = RecordReader(run.meter)
        flight = FlightReader(reader, recorder, request.options, options.seconds)
        files = _Files(options, output)
        output.notice(_keeping(options.seconds, options.memory, options.when))

        def take(records: Iterator[bytes], until: float, is_over: Callable[[], bool]) -> bool:
            files.say(until)
            for record in records:
                flight.add(record)
            if signals:
                signals.clear()
                flight.ask()
            recording = flight.take()
            if recording is not None:
                files.write(recording)
                files.say(until)
            return files.left == 0

        read(options, run, output, reader, take, watch=watch)
        files.say(time.monotonic() + _SAYING)
        for notice in _missing(run, reader, files.calls):
            output.notice(notice)
    return run.plan


def _missing(run: Run[CallTracer, ProbeCost], reader: RecordReader, calls: int) -> Iterator[Notice]:
    """Yield notices of gaps in files, which have so many ``calls``."""
    without = [Diagnostic.UNMATCHED, Diagnostic.EVENTS_LOST]
    yield from irregularities(run.meter, run.plan, "not recorded", calls, without)
    yield from unread_notices(reader.missing().gaps, calls)


def _keeping(seconds: float, memory: int, conditions: Sequence[str]) -> Notice:
    when = f" until {' or '.join(conditions)}" if conditions else ""
    last = duration(round(seconds * 1e9))
    text = f"keeping the last {last} in {memory >> 20} MiB{when}; SIGUSR1"
    fields = {"what": "flight", "seconds": seconds, "bytes": memory}
    return Notice(NoticeKind.SUMMARY, f"{text} writes them as well", fields)


@contextmanager
def _counting_signals() -> Iterator[list[int]]:
    """Yield a list that SIGUSR1 is added to, whenever that comes."""
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        signal.signal(signal.SIGUSR1, before)


class _Files:
    """The files of a run, which have numbers."""

    def __init__(self, options: FlightOptions, output: Output) -> None:
        self._name = options.files.recording or ""
        self._output = output
        self._number = 0
        #: Notices on files, in order: if nobody reads them, files are written still.
        self._unsaid: list[Notice] = []
        self.calls = 0
        self._is_default = options.max_files is None and NUMBER in self._name
        self.left: int = (options.max_files or _MAX_FILES) if NUMBER in self._name else 1

    def write(self, recording: Recording) -> None:
        """Write the next file. Raises GotraceError."""
        self._number += 1
        self.left -= 1
        path = self._name.replace(NUMBER, str(self._number))
        recording.save(path)
        self.calls += _calls(recording)
        self._unsaid.append(_written(path, recording))
        if not self.left and self._is_default:
            text = counted("{} file{s} written: -M says how many there may be", self._number)
            self._unsaid.append(Notice(NoticeKind.SUMMARY, text, {"what": "files"}))

    def say(self, until: float) -> None:
        """Print notices of the written files, as far as they are read until ``until``."""
        while self._unsaid and takes_more(self._output.out, until):
            _say(self._output, self._unsaid.pop(0))


def _calls(recording: Recording) -> int:
    return len(recording.calls) + sum(1 for one in recording.requests for _ in one.nodes())


def _written(path: str, recording: Recording) -> Notice:
    calls, lost = _calls(recording), recording.lost
    took = recording.end_ns - recording.begin_ns
    after = recording.after_ns
    why = f" before {recording.cause}" if recording.cause else ""
    since = f" and {duration(after)} after" if after else ""
    text = f"wrote {path}: {duration(took - after)}{why}{since}, {counted('{} call{s}', calls)}"
    if lost:
        text += f", after {counted('{} lost record{s}', lost)}"
    fields = {
        "what": "file",
        "path": path,
        "cause": recording.cause,
        "seconds": took / 1e9,
        "after": after / 1e9,
        "requests": len(recording.requests),
        "calls": calls,
        "lost": lost,
    }
    return Notice(NoticeKind.SUMMARY, text, fields)


def _say(output: Output, notice: Notice) -> None:
    """Print a notice of a file: it is a result of the run, and goes where results go."""
    if isinstance(output, JsonOutput):
        output.notice(notice)
    else:
        print(printable(notice.message), file=output.out, flush=True)


def _run_record(options: RecordOptions, request: TraceRequest, output: Output) -> ProbePlan:
    """Trace until the end, write the recording, and return the plan."""
    watch = PriceWatch(options, output, "gotrace record")
    with _opened(options, request, output, watch) as (run, recorder):
        reader = RecordReader(run.meter)
        recorded = _Recorded(options, recorder, reader, output)
        read(options, run, output, reader, recorded.take, lambda: recorded.has_seen, watch)
        recorded.write()
        for notice in _missing(run, reader, recorded.calls):
            output.notice(notice)
    return run.plan


class _Recorded:
    """A recording that is not written yet."""

    def __init__(
        self,
        options: RecordOptions,
        recorder: Recorder,
        reader: RecordReader,
        output: Output,
    ) -> None:
        self._name = options.files.recording or ""
        self._recorder = recorder
        self._reader = reader
        self._output = output
        self._records: list[bytes] = []
        self._missing = self._lost = 0
        self._number = 0
        self._began, _ = reader.tracer.span_ns
        self.has_seen = False
        self.calls = 0

    def take(self, records: Iterator[bytes], until: float, is_over: Callable[[], bool]) -> bool:
        """Keep records, and write a file if it is full or the next begins; none is the last."""
        if lost := self._reader.missing().gaps - self._missing:
            self._missing += lost
            self.write()
            self._lost += lost
        self._records += records
        self.has_seen = self.has_seen or bool(self._records)
        if len(self._records) >= _MAX_RECORDS:
            self.write()
        return False

    def write(self) -> None:
        """Write the next file, if there is anything, and say so. Raises GotraceError."""
        if not self._records and self._number:
            return
        records, self._records = self._records, []
        self._number += 1
        _, end = self._reader.tracer.span_ns
        recording = self._recorder.recording(records, self._began, end, lost=self._lost)
        self._began, self._lost = end, 0
        name, _, form = self._name.rpartition(".")
        path = self._name if self._number == 1 else f"{name}-{self._number}.{form}"
        recording.save(path)
        self.calls += _calls(recording)
        _say(self._output, _written(path, recording))
