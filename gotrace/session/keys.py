# SPDX-License-Identifier: Apache-2.0
"""Add calls up by values of theirs, in the kernel (bpf/rows.h).

A call is not reported: its key, made of captured values, finds a row, which has the number of such
calls and, where that is asked for, the histogram of their durations or of a value of theirs. A
key's values are decoded from a sample, the first call that had it. Rows that decode to the same
values are one row to the user: keys are finer where a value holds more than is shown of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property

from gotrace.capture.ops import MAX_KEY_TEXT as MAX_KEY_TEXT
from gotrace.capture.ops import CaptureLimits
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.errors import GotraceError, UsageError, said
from gotrace.histogram import Histogram, ValueHistogram
from gotrace.kernel.histograms import HistogramRows
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters, Halves
from gotrace.overhead import ProbeCost
from gotrace.probes.constants import SIGNED
from gotrace.probes.scope import SpecialName
from gotrace.probes.select import InlinedScope
from gotrace.probes.spec import NO_KEY, ProbeSpec, is_of_task, parse_key
from gotrace.probes.spec import KeyText as KeyText
from gotrace.probes.typed import SpecialOperand
from gotrace.records import dataclass, replace
from gotrace.session.calibrate import probe_cost, trap_cost
from gotrace.session.choices import MAX_STACK_FRAMES
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import HEADER, RecordError
from gotrace.session.open_calls import Diagnostic
from gotrace.session.paired import Paired
from gotrace.session.plan import make_plan, measurable, with_places
from gotrace.session.probing import Prepared
from gotrace.session.request import Planned, ProbeRequest
from gotrace.session.symbols import Symbolizer
from gotrace.session.trace import Tables, TraceOptions, expected_types, sized
from gotrace.session.trace_plan import Context, TraceChoices, TracePlan, make_trace_plan
from gotrace.session.why.parts import BandRows, PartSums, max_report_size
from gotrace.settings import HistogramSettings, KeySettings
from gotrace.sites.records import SiteForm
from gotrace.text import quote
from gotrace.values.error_messages import address_of
from gotrace.values.go_syntax import as_alike, with_ids_folded
from gotrace.values.model import (
    BytesValue,
    NamedValue,
    PointerValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)

_KEY_BYTES = 256  # a power of two; texts are cut to what fits with --string-size
_SAMPLE_BYTES = 16 << 20  # of kernel memory
_PHASE_BYTES = 1792  # of an entry, and of a return
_OTHERS = 0
_UNKNOWN = UnavailableValue("not captured")


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """The contents of rows: ``times`` histograms of durations, by ``intervals``, ``unit`` in ns.

    Where the probes have a value that histograms are to be of, they are of that. ``parts``: rows
    have what the time of their calls went into, beside ``times``. ``rows`` is how
    many there are at most, beside that of all other calls. ``open_calls`` is for how many
    goroutines with open calls there is room, None for the most. ``alike``: errors that differ by
    numbers and quoted parts alone share a row.
    """

    times: bool = False
    parts: bool = False
    intervals: bool = False
    unit: int = 1
    rows: int = 1024
    open_calls: int | None = None
    alike: bool = True


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The calls of one function that have the same values, or of all that found no row.

    ``function`` is the plan's number, and ``values`` go with the key's expressions; both are None
    in the row of the others. ``times`` is None where durations are not measured, ``measured`` where
    no other value of theirs is. ``why`` is what the times went into, by bucket of the histogram,
    under None what there was no room to keep by bucket; it is None where that was not asked for.
    ``own`` is the time of these calls in ns without the calls within them that have rows, so that
    rows add up. It is None but for durations by ``$stack``.
    """

    function: int | None
    values: tuple[Value, ...] | None
    calls: int
    times: Histogram | None = None
    measured: ValueHistogram | None = None
    why: Mapping[int | None, PartSums] | None = None
    own: int | None = None

    def by(self, texts: Sequence[str]) -> dict[str, Value] | None:
        """Return the values by the texts of their expressions, None in the row of the others."""
        return None if self.values is None else dict(zip(texts, self.values, strict=True))


@dataclass(frozen=True, slots=True)
class KeyPeriod:
    """The sums since the last reading: rows in no order, that of the others last."""

    rows: Sequence[KeyRow]


def key_of(texts: Sequence[str]) -> KeyText:
    """Return the key of some expressions. Raises UsageError."""
    return parse_key(", ".join(texts)) if texts else NO_KEY


def _named(key: KeyText, spec: ProbeSpec) -> KeyText:
    """Return a key with the names of a probe's recipe replaced by their expressions there."""
    if not spec.names:
        return key
    from gotrace.probes.recipes import expanded

    text = expanded(key.source.text, dict(spec.names))
    return parse_key(text) if key.expressions else key


def _as_keyed(value: Value) -> Value:
    """Return a value without the length of a text that was cut: calls of many may share its row.

    A net.Addr of the standard library is its text, as that of other functions is.
    """
    if isinstance(value, PointerValue) and (address := address_of(value)) is not None:
        text = address.text.encode()
        return value if address.known is not None else StringValue(text, len(text))
    if isinstance(value, NamedValue):
        return replace(value, value=_as_keyed(value.value))
    if isinstance(value, StringValue | BytesValue) and value.is_cut:
        return replace(value, length=None)
    if isinstance(value, StructValue) and value.guess is not None:
        guess = replace(value.guess, length=None) if value.guess.is_cut else value.guess
        return replace(value, fields=(), guess=guess)
    return value


class _AsCaptured(ReadContext):
    """A context that knows types and functions, but not the program's memory.

    Memory that the kernel could not read is not in a key: calls that differ in it share a row, and
    the first one's value there is not known of the others.
    """

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    def subplan(self, word: int) -> Subplan | None:
        return self._context.subplan(word)

    def type_name(self, word: int) -> str | None:
        return self._context.type_name(word)

    def function_name(self, pc: int) -> str | None:
        return self._context.function_name(pc)


class _KeyContext:
    """The same of a file, wherever a process has it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def at(self, bias: int) -> ReadContext:
        return _AsCaptured(self._context.at(bias))


@dataclass(slots=True)
class _Found:
    """The sums of one row in a period."""

    calls: int
    times: Histogram | None = None
    measured: ValueHistogram | None = None
    why: dict[int | None, PartSums] | None = None
    own: int | None = None

    def add(self, other: _Found) -> None:
        """Add another row's sums."""
        self.calls += other.calls
        if self.own is not None and other.own is not None:
            self.own += other.own
        if self.times is not None and other.times is not None:
            self.times.merge(other.times)
        if self.measured is not None and other.measured is not None:
            self.measured.merge(other.measured)
        if self.why is not None and other.why is not None:
            for bucket, sums in other.why.items():
                self.why.setdefault(bucket, PartSums()).merge(sums)

    def row(self, function: int | None, values: tuple[Value, ...] | None) -> KeyRow:
        """Return the row of calls that have these values."""
        found = self.calls, self.times, self.measured, self.why, self.own
        return KeyRow(function, values, *found)


def _numbered(counts: Iterable[int]) -> dict[int, int]:
    """Return the counts that are not 0, by row."""
    return {row: count for row, count in enumerate(counts) if count}


class KeyMeter(Paired):
    """The probes that add calls up by key; a context manager that detaches."""

    program_ns = 700

    LOSSES = (
        Diagnostic.STACKS_FULL,
        Diagnostic.OUTER_CALLS_FULL,
        Diagnostic.NEW_CALLERS,
        Diagnostic.SAVED_FULL,
        Diagnostic.NO_GOROUTINE,
        Diagnostic.WORK_BUSY,
        Diagnostic.TAIL_CALLS,
        Diagnostic.CALLS_UNDECIDED,
    )

    def __init__(self, prepared: Prepared, options: KeyOptions) -> None:
        """Load the plans and attach. Raises AttachError or LoadError."""
        traced, tasks, why = prepared.traced, prepared.tasks, prepared.why
        assert traced is not None and tasks is not None
        #: Whether some calls are left out when they are entered.
        self.has_predicates = any(call.probe.predicate is not None for call in traced.calls)
        asks_caller = _asks(traced, SpecialName.CALLER)
        asks_stack = _asks(traced, SpecialName.STACK)
        frames = MAX_STACK_FRAMES if asks_stack else int(asks_caller)
        parts_size = max_report_size(len(why.names)) + 8 if why and traced.reads_parts else 0
        self._tables = Tables(traced, TraceOptions(user_stack=frames), parts_size)
        measured = [call.probe.of for call in traced.calls if call.probe.of is not None]
        has_signs = any(value.type.kind in SIGNED for value in measured)
        has_histograms = options.times or bool(measured)
        self._rows = 1 + min(options.rows, _SAMPLE_BYTES // self._tables.payload)
        histograms = self._rows * (2 if has_signs else 1)
        halves = 2 if options.intervals and has_histograms else 1
        keys = KeySettings(
            key=_KEY_BYTES,
            times=has_histograms,
            of=1 if measured else None,
            stack_key=1 if asks_stack else None,
            durations=HistogramSettings.of(
                histograms, halves, 1, options.unit, wide=bool(measured)
            ),
            key_rows=self._rows,
            keys=self._rows,
        )
        why_settings = None
        if why is not None:
            why_settings = why.settings(self._rows * halves if options.parts else None)
        settings = self._tables.settings(prepared, keys, why_settings)
        if options.open_calls is not None:
            settings = sized(settings, options.open_calls)
        self._subplans = expected_types(traced)
        returning = self._tables.returning
        self._attach(prepared, settings, returning=returning, by_call=("saved_calls",))
        self._asks_stack, self._asks_names = asks_stack, asks_stack or asks_caller
        symbols = Symbolizer(tasks.files) if self._asks_names and tasks.files else None
        self._decoders = [
            CallDecoder(
                *(replace(call, context=_KeyContext(call.context)), symbols, False, Undecided()),
                part_names=why.names if why else (),
            )
            for call in traced.calls
        ]
        self._known: dict[int, tuple[int, tuple[Value, ...], str | None]] = {}
        first: dict[object, int] = {}
        has_places = prepared.plan.whole is not None
        #: Whose row the calls of each function have: a function's places are one with it.
        self._same = [
            first.setdefault((id(file.binary), sites.function.name) if has_places else n, n)
            for n, file, sites in prepared.plan.numbered()
        ]
        self._alike = options.alike
        #: Calls that are left out, since nobody knows whether predicates want them.
        self.undecided = Undecided()
        self._open_maps(prepared, options, histograms, halves, bool(measured))

    def _open_maps(
        self, prepared: Prepared, options: KeyOptions, histograms: int, halves: int, is_wide: bool
    ) -> None:
        """Open the program's maps; ``is_wide``: values are measured, and not times alone."""
        program, why = self.attached.program, prepared.why
        self._samples = program.map("samples")
        self._keys, self._free = program.map("rows"), program.map("free_rows")
        #: When rows were last seen to be added to; which have lost their keys, since which take.
        self._used: dict[int, float] = {}
        self._keyless: dict[int, int] = {}
        self._takes = 0
        #: The first row of each kind of errors, and calls that were taken from the others.
        self._firsts: dict[object, int] = {}
        self._before: Counter[int] = Counter()
        #: Rows that were given back and not taken since, and their calls until then.
        self._vacant: dict[int, int] = {}
        self._row_calls = program.map("row_calls")
        self._calls = Counters(self._row_calls)
        self._own: Counters | None = None
        if self._asks_stack and options.times and not is_wide:
            self._own = Counters(program.map("row_own"))
        #: Own times that were read before the calls are taken.
        self._early: Counter[int] = Counter()
        self._unmeasured: Counters | None = None
        if is_wide:
            self._unmeasured = Counters(program.map("row_unmeasured"))
        self._times: HistogramRows | None = None
        if options.times or is_wide:
            self._halves = Halves(program.map("generation"), halves)
            self._times = HistogramRows(program.map("histograms"), histograms, 1)
        self._bands: BandRows | None = None
        if why is not None and options.parts:
            bands = program.map("why_bands"), program.map("why_rest")
            self._bands = BandRows(*bands, self._rows, why.names)

    def _prepare(self, program: BpfProgram) -> None:
        super()._prepare(program)
        self._tables.fill(program, self._subplans)

    @property
    def decides(self) -> bool:
        """Return whether it is decided here, and not in the kernel, that calls are left out."""
        compiled = (decoder.traced.compiled for decoder in self._decoders)
        return any(one is not None and one.rest is not None for one in compiled)

    def poll(self) -> None:
        """Look after open calls; to be called some times a second."""
        if self._asks_names:
            # While the processes that made the calls live: addresses mean nothing without them.
            for row in self._live_rows():
                self._key(row)
        if self._alike and self._times is None:
            self._make_room()
        self._look_after()

    def _live_rows(self) -> set[int]:
        """Return the rows that have a key and calls."""
        calls = self._used_rows().items()
        return {row for row, n in calls if row != _OTHERS and self._vacant.get(row) != n}

    def _make_room(self) -> None:
        """Give rows back of errors whose kind has another one, if there may be too few."""
        live = self._live_rows()
        if 2 * len(live) < self._rows:
            return
        self._takes += 1
        taken = _numbered(self._calls.take())
        spare = set()
        for row in live | taken.keys():
            first = row
            if row != _OTHERS:
                function, values, why_not = self._key(row)
                first = self._firsts.setdefault((function, repr(values), why_not), row)
            self._vacant.pop(row, None)
            self._before[first] += taken.get(row, 0)
            spare |= {row} - {first}
        self._forget(spare - self._keyless.keys())

    def take(self) -> KeyPeriod:
        """Return the sums since the last take; nothing that comes meanwhile is lost."""
        if self._times is None:
            counts, self._before = self._before, Counter()
            counts.update(_numbered(self._calls.take()))
            return KeyPeriod(self._merged({row: _Found(n) for row, n in counts.items()}))
        if self._halves.count == 1:
            self.stop()
        half = self._halves.flip()
        taken = self._times.take(half)
        if self._unmeasured is None:
            parts = self._bands.take(half) if self._bands else None
            if self._own is not None:
                self._early.update(_numbered(self._own.take()))
            return KeyPeriod(
                self._merged(
                    {
                        row: _Found(
                            times.count,
                            times,
                            why=None if parts is None else parts.get(row, {}),
                            own=None if self._own is None else self._early.pop(row, 0),
                        )
                        for row, times in taken.items()
                    }
                )
            )
        found: dict[int, _Found] = {}
        for row, unknown in _numbered(self._unmeasured.take()).items():
            found[row] = _Found(unknown, measured=ValueHistogram(unknown=unknown))
        for number, values in taken.items():
            side, row = divmod(number, self._rows)
            sides = ValueHistogram(below=values) if side else ValueHistogram(values)
            found.setdefault(row, _Found(0, measured=ValueHistogram())).add(
                _Found(values.count, measured=sides)
            )
        return KeyPeriod(self._merged(found))

    def _merged(self, found: Mapping[int, _Found]) -> list[KeyRow]:
        """Return the rows with their values, those with the same values as one."""
        self._takes += 1
        self._used.update(dict.fromkeys(found, time.monotonic()))
        for row in found:
            self._vacant.pop(row, None)
        merged: dict[object, tuple[int, tuple[Value, ...], _Found]] = {}
        others: list[KeyRow] = []
        for row, what in found.items():
            if row == _OTHERS:
                others = [what.row(None, None)]
                continue
            function, values, why_not = self._key(row)
            if why_not is not None:
                self.undecided.reasons.update({why_not: what.calls} if why_not else {})
                continue
            same = merged.setdefault((function, repr(values)), (function, values, what))[2]
            if same is not what:
                same.add(what)
        rows = [what.row(function, values) for function, values, what in merged.values()]
        return [*rows, *others]

    def forget_idle(self, seconds: float) -> None:
        """Free the rows of keys of which no take has found a call for so long.

        To be called now and then, by who takes.
        """
        before = time.monotonic() - seconds
        idle = {row for row, at in self._used.items() if at < before and row != _OTHERS}
        self._forget(idle - self._keyless.keys())

    def _forget(self, rows: Set[int]) -> None:
        """Take rows from their keys, and free those that were taken from theirs before.

        A row that has lost its key is given to another one after two more takes: calls that had
        found it are counted by then.
        """
        free = [row for row, takes in self._keyless.items() if self._takes >= takes + 2]
        calls = self._used_rows() if free else {}
        for row in free:
            del self._keyless[row]
            self._vacant[row] = calls.get(row, 0)
            for known in (self._known, self._used):
                known.pop(row, None)
            self._free.push(row.to_bytes(4, "little"))
        if not rows:
            return
        for key, value in list(self._keys.entries()):
            row = int.from_bytes(value[:4], "little")
            if row in rows:
                self._keys.delete(key)
                self._used.pop(row, None)
                self._keyless[row] = self._takes

    def _key(self, row: int) -> tuple[int, tuple[Value, ...], str | None]:
        """Return a row's function and values, and why it is left out: see ``CallDecoder.key``."""
        if row not in self._known:
            sample = self._samples.lookup(row.to_bytes(4, "little")) or bytes(HEADER.size)
            function = HEADER.unpack_from(sample)[5]
            try:
                found, why_not = self._decoders[function].key(sample)
                values = tuple(map(_as_keyed, found))
                if self._alike:
                    values = tuple(map(as_alike, values))
                folded = self._decoders[function].traced.probe.folded
                values = tuple(
                    with_ids_folded(value) if number in folded else value
                    for number, value in enumerate(values)
                )
            except RecordError:
                traced, why_not = self._decoders[function].traced, None
                values = (_UNKNOWN,) * len(traced.probe.values)
                if traced.compiled is not None and traced.compiled.rest is not None:
                    why_not = _UNKNOWN.why
            self._known[row] = self._same[function], values, why_not
        return self._known[row]

    def has_seen(self) -> bool:
        return bool(self._used_rows()) or self.open_calls() > 0

    def _used_rows(self) -> dict[int, int]:
        """Return the calls of rows so far, of those that have any."""
        return _numbered(self._row_calls.sums())


def _asks(traced: TracePlan, name: SpecialName) -> bool:
    values = (value for call in traced.calls for value in call.probe.values)
    return any(isinstance(value, SpecialOperand) and value.special is name for value in values)


@dataclass(frozen=True, kw_only=True)
class KeyRequest(ProbeRequest[KeyMeter, ProbeCost]):
    """Add calls up by ``key``, and make histograms of ``of``, a value of theirs.

    Texts are compared by their first ``text_bytes`` bytes. Unless ``follows_returns``, calls are
    followed to their ends only where an expression needs it. ``no_parts`` says why no expression
    may ask what the time went into, None if it may. ``decides_later``: what the kernel does not
    decide of a predicate of numbers, the meter does, but of calls without a row. ``inlined`` says
    of which functions inlined calls are added up as well, where what is asked for is certain.
    """

    key: KeyText = NO_KEY
    of: KeyText | None = None
    text_bytes: int = MAX_KEY_TEXT
    follows_returns: bool = False
    no_parts: str | None = None
    decides_later: bool = False
    options: KeyOptions = KeyOptions()
    inlined: InlinedScope = InlinedScope.NONE

    PRICES_HITS = True

    @cached_property
    def parsed(self) -> tuple[Sequence[ProbeSpec], Sequence[GotraceError]]:
        """Return the probes, and why other texts come to nothing. Raises UsageError."""
        specs, failed = self.asked.probes(self.target, False, lines=self.verb == "count")
        for spec in specs:
            if spec.format is not None:
                raise UsageError(
                    f"{spec.pattern}: {said('--by', 'by')} takes no format: it shows the values"
                )
        return specs, failed

    def plan(self) -> Planned:
        """Return the probes to attach; raises as ``make_trace_plan`` does."""
        specs, _ = self.parsed
        requests, failed = self.requests
        inlined = self._inlined(specs)
        plan = make_plan(self.target, requests, returns=True, verb=self.verb, inlined=inlined)
        plan = with_places(plan)
        if self.options.times:
            plan = measurable(plan)
        choices = TraceChoices(
            CaptureLimits(self.text_bytes, payload=_PHASE_BYTES),
            entry_only=False,
            floats=False,
            keyed=True,
            decided_later=self.decides_later,
            return_if_needed=not self.follows_returns,
        )
        keyed = [
            replace(spec, key=_named(self.key, spec), of=self.of and _named(self.of, spec))
            for spec in specs
        ]
        traced = make_trace_plan(plan, keyed, choices)
        if traced.reads_parts and self.no_parts is not None:
            raise UsageError(self.no_parts)
        plan = replace(traced.plan, failed=(*failed, *traced.plan.failed))
        self._refuse(plan.failed)
        return Planned(plan, replace(traced, plan=plan))

    def _inlined(self, specs: Iterable[ProbeSpec]) -> InlinedScope:
        """Return whose inlined calls are added up. Raises UsageError for what lines do not have."""
        for spec in specs:
            asked = (*self.key.expressions, *filter(None, [spec.predicate]))
            if spec.line is not None and not all(map(is_of_task, asked)):
                raise UsageError(
                    f"{quote(spec.line.text)} is a line, and no variables are read there: count by"
                    " $caller, $stack, $goid or $label()"
                )
        is_apart = self.follows_returns or any(spec.names for spec in specs)
        return InlinedScope.NONE if is_apart else self.inlined

    def attach(self, prepared: Prepared) -> KeyMeter:
        """Attach. Raises AttachError or LoadError."""
        return KeyMeter(prepared, self.options)

    def cost(self, prepared: Prepared) -> ProbeCost:
        """Return the cost of a call's probes: an estimate if durations are not measured."""
        if self.options.times:
            return probe_cost(prepared.plan.entry_form, prepared.forced)
        return trap_cost(SiteForm.EMULATED, prepared.forced).plus(KeyMeter.program_ns)
