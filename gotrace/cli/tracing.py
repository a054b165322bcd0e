# SPDX-License-Identifier: Apache-2.0
"""Runs of gotrace: calls as they happen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gotrace.cli.habits import meant_subcommand
from gotrace.cli.irregular import CALLS, irregularities, undecided_notices, unread_notices
from gotrace.cli.pace import read, running
from gotrace.cli.run import (
    asked_of,
    list_probes,
    mostly_tracing,
    opened_notices,
    probe_cost_of,
    run_output,
    status_of,
    target_of,
)
from gotrace.cli.stream import takes_more
from gotrace.cli.trace_options import GotraceOptions
from gotrace.cli.why import PriceWatch, why_of
from gotrace.errors import NoMatchError, UsageError
from gotrace.overhead import ProbeCost
from gotrace.profiles.folded import folded
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.write import write_profile
from gotrace.report.call_profile import FORM, CallProfile
from gotrace.report.calls import Clock, LineStyle, TimeStyle
from gotrace.report.fast_calls import line_of
from gotrace.report.output import JsonOutput, Notice, NoticeKind, Output, TextOutput
from gotrace.session.calibrate import Calibration
from gotrace.session.choices import MAX_STACK_FRAMES
from gotrace.session.count import CountRequest
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import HEADER, function_of, is_unwound
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.reading import RecordReader
from gotrace.session.request import Asked
from gotrace.session.symbols import Symbolizer
from gotrace.session.trace import TraceOptions, TraceRequest
from gotrace.session.trace_plan import TracePlan
from gotrace.target.target import Target
from gotrace.text import counted, quote

_PIECE = 3072  # bytes; with the line that exceeds it a pipe usually takes it whole
_MAX_WAIT = 0.5  # seconds, for the cost of probes, whose measurement began before attaching
_SAMPLED = 16  # one call in this many is looked at


def trace(options: GotraceOptions) -> int:
    """Trace as the options say, or list the functions; return the exit status."""
    with target_of(options) as target:
        _check_first(options, target)
        request = _request(options, target)
        output = run_output(options)
        if options.list:
            return list_probes(request, output)
        return status_of(_trace(options, request, output).failed)


def _check_first(options: GotraceOptions, target: Target) -> None:
    """Raise NoMatchError if the first word is a mistyped subcommand and names no function."""
    meant = "" if options.regexp else meant_subcommand(options.patterns, options.processes)
    if not meant:
        return
    first = options.patterns[0]
    try:
        CountRequest(target=target, asked=Asked([first])).select()
    except (NoMatchError, UsageError):
        text = f"no function is called {quote(first)}: if you mean the subcommand, type {meant}"
        raise NoMatchError(text) from None


def _request(options: GotraceOptions, target: Target) -> TraceRequest:
    has_stack = options.user_stack or options.wants_stacks
    depth = options.stack_depth or (MAX_STACK_FRAMES if has_stack else 0)
    filters = {} if options.list else {"goid": options.goid, "tid": options.tid}
    return TraceRequest(
        target=target,
        asked=asked_of(options),
        is_strict=options.strict,
        forced=options.attach,
        budget=options.budget,
        returns=options.returns,
        is_calibrated=True,
        is_priced=options.why is not None,
        why=why_of(options, callers=True),
        choices=options.choices,
        options=TraceOptions(min(depth, MAX_STACK_FRAMES), cpu=options.cpu),
        inlined=True,
        only={name: number for name, number in filters.items() if number is not None},
    )


def _trace(options: GotraceOptions, request: TraceRequest, output: Output) -> ProbePlan:
    watch = PriceWatch(options, output)
    with running(request, output, watch.accept) as run:
        tracer, traced, calibration = run.meter, run.traced, run.calibration
        assert traced is not None and run.tasks is not None
        # JSON lines have what tracing took, which was measured while the tracer was made. It is
        # waited for before tracing is said to have begun: calls would find no reader meanwhile.
        returning = any(call.result for call in traced.calls)
        cost = None
        if returning and isinstance(output, JsonOutput):
            cost = probe_cost_of(calibration, _MAX_WAIT)
        for notice in opened_notices(options, run, request.done):
            output.notice(notice)
        notes = {binary.binary.debug_note: None for binary in traced.plan.binaries}
        for note in notes if options.verbose else ():
            if note is not None:
                output.notice(Notice(NoticeKind.WARNING, note))
        decoders, undecided = request.decoders(run, cost)
        profile = None
        if options.wants_stacks:
            symbols = Symbolizer.of(run.tasks.files)
            profile = _Profile(options, CallProfile(decoders, symbols), symbols)
        reader = RecordReader(tracer, undecided)
        printer = _Printer(options, traced, decoders, reader, output, profile)

        def seen() -> bool:
            return printer.has_seen or tracer.open_calls() > 0

        read(options, run, output, reader, printer.take, seen, watch)
        if profile is not None:
            profile.write(output)
        # With -M the rest is left, not lost.
        unwound = None if options.max_events else printer.unwound
        is_asked = any("$panicked" in text for text in options.patterns)
        hint = "" if is_asked else _ONLY_PANICKED
        for form in output.forms if not printer.has_written else ():
            if isinstance(form, TextOutput):
                form.nothing()
        footer = _footer(reader, traced.plan, undecided, printer.taken, unwound, hint)
        for notice in (*footer, *printer.notices(calibration)):
            output.notice(notice)
    return run.plan


class _Profile:
    """The profile that is written of a run in place of its calls."""

    def __init__(
        self, options: GotraceOptions, calls: CallProfile, symbols: Symbolizer | None
    ) -> None:
        self._options = options
        self._symbols = symbols
        self._began = time.time_ns()
        self.calls = calls

    def write(self, output: Output) -> None:
        """Write all calls by their stacks."""
        rows = self.calls.rows()
        name = f"calls of {', '.join(self._options.patterns)}"
        mappings = self._symbols.mappings() if self._symbols else []
        length = time.time_ns() - self._began
        profile = StackProfile(FORM, rows, name, mappings, self._began, length)
        if self._options.folded:
            output.out.write(folded(profile))
            output.out.flush()
        for path in self._options.files.profiles:
            write_profile(path, profile)
            count = sum(row.values[0] for row in rows)
            text = f"wrote {counted('{:,} call{s}', count)} to {path}"
            output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
        if self.calls.without_stack:
            calls = counted("{:,} call{s}", self.calls.without_stack)
            text = f"{calls} without a stack: there were too many"
            output.notice(Notice(NoticeKind.LOST, text, {"what": "stacks"}))


class _Form:
    """Lines of calls in one form, to one place."""

    def __init__(
        self,
        options: GotraceOptions,
        decoders: Sequence[CallDecoder],
        clock: Clock,
        output: Output,
        is_counted: bool,
    ) -> None:
        """Write the heading; ``is_counted``: what cannot be decided is counted here."""
        as_json = isinstance(output, JsonOutput)
        style = LineStyle.on(output.out, options.width, options.short, options.columns)
        self.line_of = [line_of(one, clock, as_json, style, is_counted) for one in decoders]
        self.lines: list[str] = []
        self._out = output.out
        if isinstance(output, TextOutput):
            output.heading(style.columns.heading("CALL"))
            self._out.flush()

    def flush(self) -> None:
        """Write the lines so far."""
        self._out.write("".join(self.lines))
        self._out.flush()
        self.lines.clear()


class _Printer:
    """A writer of calls, in turns that are short whatever the reader does, up to a limit."""

    def __init__(
        self,
        options: GotraceOptions,
        traced: TracePlan,
        decoders: Sequence[CallDecoder],
        reader: RecordReader,
        output: Output,
        profile: _Profile | None = None,
    ) -> None:
        self._profile = profile
        style = TimeStyle.SINCE_START if options.time else TimeStyle.TIME_OF_DAY
        clock = Clock.started_now(style)
        self._names = [name.text for name in traced.plan.names]
        self._seen = 0
        #: Those of the calls taken that did not return.
        self.unwound = 0
        self._sampled: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self._hits_ns: Counter[int] = Counter()
        no_lines = options.only_stacks or options.folded
        self._forms = (
            []
            if no_lines
            else [
                _Form(options, decoders, clock, form, is_counted=not number)
                for number, form in enumerate(output.forms)
            ]
        )
        self._reader = reader
        self._out = output.out
        self._left: int | None = options.max_events
        #: Whether a line was written, or none is to be.
        self.has_written = no_lines

    @property
    def taken(self) -> int:
        """Return how many calls were written, or left out by their values."""
        return self._seen

    @property
    def has_seen(self) -> bool:
        """Return whether any call was reported."""
        return self._seen > 0 or self._reader.has_due

    def take(self, records: Iterator[bytes], until: float, is_over: Callable[[], bool]) -> bool:
        """Write calls in pieces that a pipe takes whole; return whether these are enough."""
        while self._reader.has_due and self._left != 0:
            if time.monotonic() >= until or is_over() or not takes_more(self._out, until):
                break
            size = 0
            for record in records:
                self._sample(record)
                is_taken = self._profile is not None and self._profile.calls.add(record)
                size += 1
                for form in self._forms:
                    if line := form.line_of[function_of(record)](record):
                        form.lines.append(line)
                        size += len(line)
                        is_taken = self.has_written = True
                if is_taken and self._left is not None:
                    self._left -= 1
                if self._left == 0 or size >= _PIECE:
                    break
            for form in self._forms:
                form.flush()
        return self._left == 0

    def _sample(self, record: bytes) -> None:
        """Add up the times of some calls, and of the hits within them."""
        self._seen += 1
        self.unwound += is_unwound(record)
        if self._seen % _SAMPLED:
            return
        end, start, _, _, _, function, _, _, _, hits, hits_ns = HEADER.unpack_from(record)
        if start:
            self._sampled[function] += end - start
            self._hits[function] += hits
            self._hits_ns[function] += hits_ns

    def notices(self, calibration: Calibration[ProbeCost] | None) -> Iterator[Notice]:
        """Yield notices of the durations at the end."""
        cost = probe_cost_of(calibration, _MAX_WAIT) if self._hits.total() else None
        if cost is not None:
            yield from mostly_tracing(
                {
                    self._names[function]: cost.within(total, 0, hits, self._hits_ns[function])
                    / total
                    for function, total in self._sampled.items()
                    if (hits := self._hits[function])
                }
            )


_UNWOUND_LOST = "{} call{s} that did not return among those lost"
_ONLY_PANICKED = "try the predicate ($panicked), which leaves out all others"


def _footer(
    reader: RecordReader,
    plan: ProbePlan,
    undecided: Undecided,
    taken: int,
    unwound: int | None,
    hint: str = "",
) -> Iterator[Notice]:
    """Yield notices of calls that the lines do not show.

    ``taken`` is how many calls were taken from the kernel, ``unwound`` how many of them did not
    return, None if some were left. ``hint`` says how to see these.
    """
    tracer, missing = reader.tracer, reader.missing()
    dropped = tracer.dropped
    # Of returns of earlier calls there would be no lines.
    without = [Diagnostic.UNMATCHED]
    yield from irregularities(tracer, plan, "not shown", taken + dropped, without)
    yield from undecided_notices(undecided, has_reasons=True)
    yield from unread_notices(dropped, taken + missing.calls - dropped, CALLS)
    counts = tracer.diagnostics()
    reported = counts[Diagnostic.UNWOUND] - counts[Diagnostic.UNWOUND_UNSEEN]
    if unwound is not None and (unseen := min(missing.records, reported - unwound)) > 0:
        fields = {"what": "unwound_lost", "calls": unseen}
        text = ": ".join(filter(None, (counted(_UNWOUND_LOST, unseen), hint)))
        yield Notice(NoticeKind.LOST, text, fields)
    if missing.late:
        text = counted("{} call{s} shown out of order", missing.late)
        yield Notice(NoticeKind.SUMMARY, text, {"what": "late", "calls": missing.late})
