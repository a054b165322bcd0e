# SPDX-License-Identifier: Apache-2.0
"""Add calls up by values of theirs, in the kernel (bpf/rows.h).

A call is not reported: its key, made of captured values, finds a row, which has the number of such
calls and, where durations are measured, their histogram. What a key means is decoded from a sample,
the first call that had it. Rows that decode to the same values are one row to the user: keys are
finer where a value holds more than is shown of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gotrace.capture.ops import MAX_KEY_TEXT, CaptureLimits
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.histogram import Histogram
from gotrace.kernel.attach import Attached, AttachMethod, attach
from gotrace.kernel.program import BpfProgram
from gotrace.probes.scope import SpecialName
from gotrace.probes.spec import ProbeSpec
from gotrace.probes.typed import SpecialOperand
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import HEADER, RecordError
from gotrace.session.histograms import HistogramRows
from gotrace.session.lifetime import Probing
from gotrace.session.open_calls import (
    Diagnostic,
    ExitedProcesses,
    Throttle,
    diagnostics,
    open_calls,
)
from gotrace.session.plan import BinaryRequest, make_plan
from gotrace.session.symbols import Symbolizer
from gotrace.session.tasks import Tasks, unwind_groups
from gotrace.session.trace import Tables, TraceOptions, expected_types
from gotrace.session.trace_plan import TraceChoices, TracePlan, make_trace_plan
from gotrace.session.why.parts import BY_PROCESS, MAX_REPORT_SIZE, WhyProbes
from gotrace.settings import HistogramSettings, KeySettings
from gotrace.target.target import Target
from gotrace.values.model import BytesValue, NamedValue, StringValue, Unavailable, Value

__all__ = ["MAX_KEY_TEXT", "KeyMeter", "KeyOptions", "KeyPeriod", "KeyRow", "plan_keyed"]

_KEY_BYTES = 256  # a power of two; texts are cut to what fits with --string-size
_SAMPLE_BYTES = 16 << 20  # of kernel memory
_PHASE_BYTES = 1792  # of an entry, and of a return
_OTHERS = 0
_UNKNOWN = Unavailable("not captured")


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """What rows have: ``times`` histograms of durations, by ``intervals``, ``unit`` in ns.

    ``rows`` is how many there are at most, beside that of all other calls.
    """

    times: bool = False
    intervals: bool = False
    unit: int = 1
    rows: int = 1024


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The calls of one function that have the same values, or of all that found no row.

    ``function`` is the plan's number, and ``values`` go with the key's expressions; both are None
    in the row of the others. ``times`` is None where durations are not measured.
    """

    function: int | None
    values: tuple[Value, ...] | None
    calls: int
    times: Histogram | None = None

    def by(self, texts: Sequence[str]) -> dict[str, Value] | None:
        """Return the values by the texts of their expressions, None in the row of the others."""
        return None if self.values is None else dict(zip(texts, self.values, strict=True))


@dataclass(frozen=True, slots=True)
class KeyPeriod:
    """What was added up since the last reading: rows in no order, that of the others last."""

    rows: Sequence[KeyRow]


def _as_keyed(value: Value) -> Value:
    """Return a value without the length of a text that was cut: calls of many may share its row."""
    if isinstance(value, NamedValue):
        return replace(value, value=_as_keyed(value.value))
    if isinstance(value, StringValue) and value.is_cut:
        return replace(value, length=len(value.text) + 1)
    if isinstance(value, BytesValue) and value.is_cut:
        return replace(value, length=len(value.data) + 1)
    return value


class _AsCaptured(ReadContext):
    """What a context knows of types and functions, and nothing of the program's memory.

    What the kernel could not read is not in a key: calls that differ in it share a row, and what
    the first of them had there is not known of the others.
    """

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    def subplan(self, word: int) -> Subplan | None:
        return self._context.subplan(word)

    def type_name(self, word: int) -> str | None:
        return self._context.type_name(word)

    def function_name(self, pc: int) -> str | None:
        return self._context.function_name(pc)


def plan_keyed(
    target: Target,
    requests: Sequence[BinaryRequest],
    specs: Sequence[ProbeSpec],
    verb: str,
    *,
    text_bytes: int,
    returns: bool,
) -> TracePlan:
    """Plan probes whose calls are added up by their keys; raises as ``make_trace_plan`` does.

    ``verb`` is what the tool does to a function, for messages. Texts are told apart by so many
    bytes. Without ``returns`` calls are followed to their ends only where an expression needs it.
    """
    plan = make_plan(target, requests, returns=True, verb=verb)
    left = [spec for number, spec in enumerate(specs) if number not in plan.failed_requests]
    limits = CaptureLimits(text_bytes, payload=_PHASE_BYTES)
    choices = TraceChoices(
        limits, entry_only=False, floats=False, keyed=True, return_if_needed=not returns
    )
    return make_trace_plan(plan, left, choices)


class KeyMeter(Probing):
    """Own the probes that add calls up by key; a context manager that detaches."""

    #: What makes calls missing.
    LOSSES = (
        Diagnostic.STACKS_FULL,
        Diagnostic.OUTER_CALLS_FULL,
        Diagnostic.SAVED_FULL,
        Diagnostic.NO_GOROUTINE,
        Diagnostic.WORK_BUSY,
        Diagnostic.TAIL_CALLS,
        Diagnostic.CALLS_UNDECIDED,
    )

    def __init__(
        self,
        target: Target,
        traced: TracePlan,
        tasks: Tasks,
        options: KeyOptions,
        forced: AttachMethod | None,
        announce: Callable[[str], None] | None = None,
        why: WhyProbes | None = None,
    ) -> None:
        """Load the plans and attach, to RETs first; ``announce`` is as for ``attach``.

        ``why`` is needed where expressions ask what the time of calls went into. Raises AttachError
        or LoadError.
        """
        #: Whether some calls are left out when they are entered.
        self.has_predicates = any(call.probe.predicate is not None for call in traced.calls)
        plan = traced.plan
        asks_caller = any(
            isinstance(value, SpecialOperand) and value.special is SpecialName.CALLER
            for call in traced.calls
            for value in call.probe.values
        )
        self._why = why
        trace_options = TraceOptions(user_stack=1 if asks_caller else 0)
        self._tables = Tables(traced, trace_options, MAX_REPORT_SIZE + 8 if why else 0)
        rows = 1 + min(options.rows, _SAMPLE_BYTES // self._tables.payload)
        halves = 2 if options.intervals and options.times else 1
        groups = plan.entry_groups("on_entry", target.pid, tasks.kind)
        returning = {number for number, call in enumerate(traced.calls) if call.result is not None}
        if returning:
            groups = [
                *unwind_groups(target, tasks),
                *plan.return_groups("on_return", target.pid, tasks.kind, returning),
                *groups,
            ]
        if why is not None:
            groups = [*why.groups(), *groups]
        by = KeySettings(
            key=_KEY_BYTES,
            times=options.times,
            durations=HistogramSettings.of(rows, halves, 1, options.unit),
            keys=rows,
        )
        settings = self._tables.settings(target, tasks, by, why.settings() if why else None)
        self._subplans = expected_types(traced)
        self.attached: Attached = attach(settings, groups, forced, self._prepare, announce)
        program = self.attached.program
        symbols = Symbolizer(tasks.files) if asks_caller and tasks.files else None
        self._decoders = [
            CallDecoder(
                *(replace(call, context=_AsCaptured(call.context)), symbols, False, Undecided()),
                part_names=why.names if why else (),
            )
            for call in traced.calls
        ]
        self._samples = program.map("samples")
        self._calls = program.map("row_calls")
        self._seen = array("Q", bytes(8 * rows))
        self._known: dict[int, tuple[int, tuple[Value, ...]]] = {}
        self._times: HistogramRows | None = None
        if options.times:
            self._times = HistogramRows(
                program.map("histograms"), program.map("generation"), rows, halves, 1
            )
        self._departed = (
            ExitedProcesses(program, "saved_calls", "why_saved", by_process=BY_PROCESS)
            if why
            else ExitedProcesses(program, "saved_calls")
        )
        self._sweep = None if target.process else Throttle(self._departed.remove)

    def _prepare(self, program: BpfProgram) -> None:
        if self._why is not None:
            self._why.prepare(program)
        self._tables.fill(program, self._subplans)

    def poll(self) -> None:
        """Look after open calls; to be called some times a second."""
        if self._sweep is not None:
            self._sweep()

    def take(self) -> KeyPeriod:
        """Return what was added up since the last take; nothing that comes meanwhile is lost."""
        if self._times is None:
            counts = self._new_calls()
            return KeyPeriod(self._merged({row: (n, None) for row, n in counts.items()}))
        half = self._times.flip() if self._times.halves == 2 else 0
        if self._times.halves == 1:
            self.stop()
        taken = self._times.take(half)
        return KeyPeriod(self._merged({row: (t.count, t) for row, t in taken.items()}))

    def _new_calls(self) -> dict[int, int]:
        values = memoryview(self._calls.read_array()).cast("Q")
        rows = len(self._seen)
        cpus = len(values) // rows
        counts: dict[int, int] = {}
        for row in range(rows):
            total = sum(values[row * cpus : (row + 1) * cpus])
            if total != self._seen[row]:
                counts[row] = total - self._seen[row]
                self._seen[row] = total
        return counts

    def _merged(self, found: Mapping[int, tuple[int, Histogram | None]]) -> list[KeyRow]:
        """Return the rows with their values, those with the same values as one."""
        merged: dict[object, KeyRow] = {}
        others: list[KeyRow] = []
        for row, (calls, times) in found.items():
            if row == _OTHERS:
                others = [KeyRow(None, None, calls, times)]
                continue
            function, values = self._key(row)
            before = merged.get((function, repr(values)))
            if before is not None:
                calls += before.calls
                if times is not None and before.times is not None:
                    before.times.merge(times)
                    times = before.times
            merged[function, repr(values)] = KeyRow(function, values, calls, times)
        return [*merged.values(), *others]

    def _key(self, row: int) -> tuple[int, tuple[Value, ...]]:
        """Return a row's function and values."""
        if row not in self._known:
            sample = self._samples.lookup(row.to_bytes(4, "little")) or bytes(HEADER.size)
            function = HEADER.unpack_from(sample)[5]
            try:
                values = tuple(map(_as_keyed, self._decoders[function].key(sample)))
            except RecordError:
                values = (_UNKNOWN,) * len(self._decoders[function].traced.probe.values)
            self._known[row] = function, values
        return self._known[row]

    def has_seen(self) -> bool:
        """Return whether any call has been entered."""
        return any(self._calls.read_array()) or self.open_calls() > 0

    def open_calls(self) -> int:
        """Return how many calls have been entered and have not returned."""
        return open_calls(self.attached.program) + self._departed.calls

    def diagnostics(self) -> dict[Diagnostic, int]:
        """Return how often each irregularity has occurred so far."""
        return diagnostics(self.attached.program)
