# SPDX-License-Identifier: Apache-2.0
"""Measure the time between a function's entry and its return, in the kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gotrace.histogram import Histogram
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.histograms import HistogramRows, stripes_for
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.rings import Rings, pages_of
from gotrace.kernel.sums import Halves
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, field, replace
from gotrace.session.calibrate import probe_cost
from gotrace.session.choices import ReturnMode
from gotrace.session.goroutines import Folded, GoroutineKey, GoroutineRows, GoroutineTimes
from gotrace.session.landings import landing_sizes
from gotrace.session.open_calls import Diagnostic
from gotrace.session.paired import Paired
from gotrace.session.plan import plan_measuring
from gotrace.session.probing import Prepared
from gotrace.session.request import FunctionRequest, Planned
from gotrace.session.why.parts import BandRows, PartSums, slow_parts
from gotrace.settings import HistogramSettings, LatencySettings

#: Functions that have a histogram each if nobody says whether: more would fill screens.
FEW_FUNCTIONS = 10
_OPEN_CALLS = 1 << 17
_GOROUTINES = 1 << 13
_SLOW_BUFFER = 256 << 10  # bytes of each CPU's buffer
_SLOW_BYTES = 1 << 20  # read at a time
_SLOW = struct.Struct("=QQQIIQQ")  # struct slow_call, without the parts of its time


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """The choice of rows: by function, goroutine, interval; and of calls to report.

    Functions are kept apart if they are few where ``per_function`` is None.
    ``unit`` is the display unit and ``slower`` the least reported duration, both in nanoseconds.
    ``outermost`` leaves out calls within other traced calls. ``open_calls`` is for how many
    goroutines with open calls there is room, and for as many calls within these, or for
    ``outer_calls``: about 300 bytes of kernel memory each.
    """

    per_function: bool | None = False
    per_goroutine: bool = False
    intervals: bool = False
    unit: int = 1
    slower: int | None = None
    outermost: bool = False
    open_calls: int = _OPEN_CALLS
    outer_calls: int | None = None


@dataclass(frozen=True, slots=True)
class SlowCall:
    """One reported call: ``end`` and ``duration`` in ns, ``function`` by the plan's number.

    ``hits`` is how often probes were hit within it; ``parts`` is what its time went into, by name,
    largest first, None where that was not asked for.
    """

    end: int
    duration: int
    goid: int
    tgid: int
    tid: int
    function: int
    hits: int
    parts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured times since the last reading.

    ``rows`` by function number; when functions are not kept apart, by 0, or by program, whose files
    ``LatencyMeter.files`` has. With goroutines kept
    apart, ``goroutines`` has those known by themselves and ``rest``, by row, all others in sum.
    ``why`` has what the time went into, where that was asked for: by row and bucket of the
    histogram, under None what there was no room to keep by bucket.
    """

    rows: Mapping[int, Histogram]
    goroutines: Mapping[GoroutineKey, GoroutineTimes]
    rest: Mapping[int, Folded]
    why: Mapping[int, Mapping[int | None, PartSums]] = field(default_factory=dict)


class LatencyMeter(Paired):
    """The probes that measure a plan's functions; a context manager that detaches."""

    program_ns = 330

    LOSSES = (
        Diagnostic.STACKS_FULL,
        Diagnostic.OUTER_CALLS_FULL,
        Diagnostic.NEW_CALLERS,
        Diagnostic.SLOW_LOST,
    )

    def __init__(self, prepared: Prepared, options: LatencyOptions) -> None:
        """Attach. Raises AttachError or LoadError."""
        plan, tasks, why = prepared.plan, prepared.tasks, prepared.why
        assert tasks is not None
        #: Whether each function has a row.
        self.by_function = (
            len(plan.functions) <= FEW_FUNCTIONS
            if options.per_function is None
            else options.per_function
        )
        #: The files whose rows are kept apart where functions are not, none where nothing is.
        self.files = () if self.by_function else tasks.numbered if plan.program_names else ()
        rows = prepared.functions if self.by_function else len(self.files) or 1
        halves = 2 if options.intervals else 1
        stripes = stripes_for(rows, halves, len(kernel.online_cpus()))
        settings = LatencySettings(
            site=prepared.site_settings(),
            tasks=tasks.settings(),
            stacks=options.open_calls,
            outer_calls=options.outer_calls or options.open_calls,
            times=HistogramSettings.of(rows, halves, stripes, options.unit),
            goroutines=_GOROUTINES if options.per_goroutine else None,
            outermost=options.outermost,
            by_file=bool(self.files),
            slower=options.slower,
            why=why.settings(rows * halves) if why else None,
            **landing_sizes(prepared),
        )
        self._reports_slow = options.slower is not None
        self._rings: Rings | None = None
        self._slow_lost = 0
        #: Whether ``poll`` has returned all there is, after ``stop``.
        self.exhausted = False
        #: With goroutines kept apart, processes that lived when this was looked at last.
        self.processes: set[int] = set()
        self._attach(prepared, settings)
        program = self.attached.program
        self._halves = Halves(program.map("generation"), halves)
        self._rows = HistogramRows(program.map("histograms"), rows, stripes)
        self._names = why.names if why else ()
        self._bands: BandRows | None = None
        if why is not None:
            maps = (program.map("why_bands"), program.map("why_rest"))
            self._bands = BandRows(*maps, rows, why.names)
        self._goroutines: GoroutineRows | None = None
        if options.per_goroutine:
            self._goroutines = GoroutineRows(
                program.map("by_goroutine"),
                program.map("folded"),
                program.map("ended"),
                program.map("named"),
                rows,
                halves,
                names=self._names,
            )

    def _prepare(self, program: BpfProgram) -> None:
        super()._prepare(program)
        if self._reports_slow:
            self._rings = program.open_events("slow", pages_of(_SLOW_BUFFER))

    def _remove_exited(self) -> None:
        super()._remove_exited()
        if self._goroutines is not None:
            self.processes = self._goroutines.end_exited()

    def poll(self, until: float) -> list[SlowCall]:
        """Return calls reported since the last poll, by time; to be called ten times a second.

        Ends soon after ``until`` (``time.monotonic``): the rest is left for the next poll.
        """
        self._look_after()
        if self._goroutines is not None:
            self._goroutines.harvest()
        if self._rings is None:
            self.exhausted = self.stopped
            return []
        slow: list[SlowCall] = []
        read_to = self._rings.take(
            until,
            _SLOW_BYTES,
            lambda cpu, records: slow.extend(map(self._slow, records)),
        )
        self.exhausted = self.stopped and read_to is None
        return sorted(slow, key=lambda call: call.end)

    def _slow(self, record: bytes) -> SlowCall:
        call = SlowCall(*_SLOW.unpack_from(record))
        if not self._names:
            return call
        return replace(call, parts=slow_parts(record, _SLOW.size, call.duration, self._names))

    def drop(self) -> None:
        """Count slow calls that have been reported and not polled as lost."""
        if self._rings is not None:
            self._slow_lost += sum(map(len, self._rings.drop()))

    def take(self) -> Measurement:
        """Return the measured times since the last take.

        Nothing that comes meanwhile is lost. Without intervals there is one take, at the end:
        ``stop`` comes before it, so that what is read piece by piece agrees.
        """
        if self._halves.count == 1:
            self.stop()
        half = self._halves.flip()
        rows = self._rows.take(half)
        why = self._bands.take(half) if self._bands else {}
        if self._goroutines is None:
            return Measurement(rows, {}, {}, why)
        return Measurement(rows, *self._goroutines.take(half), why)

    def has_seen(self) -> bool:
        return self._rows.has_any() or self.open_calls() > 0

    def diagnostics(self) -> dict[Diagnostic, int]:
        """Return how often each irregularity has occurred so far."""
        counts = super().diagnostics()
        counts[Diagnostic.SLOW_LOST] += self._slow_lost
        return counts


@dataclass(frozen=True, kw_only=True)
class LatencyRequest(FunctionRequest[LatencyMeter, ProbeCost]):
    """Measure how long calls take."""

    verb: str = "measure"
    done: str = "measured"
    options: LatencyOptions = LatencyOptions()

    PRICES_HITS = True

    def plan(self) -> Planned:
        """Return the probes to attach; raises as ``plan_measuring`` does."""
        plan = plan_measuring(self.target, self.requests[0])
        self._refuse(plan.failed)
        return Planned(plan)

    def attach(self, prepared: Prepared) -> LatencyMeter:
        """Attach. Raises AttachError or LoadError."""
        if not self.options.outermost:
            return LatencyMeter(prepared, self.options)
        # A call that is not opened has calls within all the same.
        meter = LatencyMeter(replace(prepared, returns=ReturnMode.RET), self.options)
        if prepared.returns is ReturnMode.LANDING:
            meter.problem = "calls are seen returning at RETs: only outermost calls are asked for"
        return meter

    def cost(self, prepared: Prepared) -> ProbeCost:
        return probe_cost(prepared.plan.entry_form, prepared.forced)
