# SPDX-License-Identifier: Apache-2.0
"""Turn the kernel's records of calls into typed calls.

A record is decoded once, here: into the values of arguments and results, the operands of the
probe's expressions, the rest of its predicate and its message, and the functions of its stack.
What shows a call takes it from here. Plain calls, of which lines are made without decoding them,
are ``gotrace.report.fast_calls``'.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gotrace.calls import Call, LongestWait, StackFrame, Why
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, read_phase
from gotrace.errors import said
from gotrace.overhead import ProbeCost
from gotrace.probes.evaluate import NO_RESULT, Specials, decide, evaluate, why_undecided
from gotrace.probes.scope import PART_SPECIALS, STACK_TYPE, Phase, SpecialName
from gotrace.probes.spec import ProbeSpec, ResolvedProbe
from gotrace.probes.typed import AccessPath, Operand, Sliced, Typed
from gotrace.records import dataclass, replace
from gotrace.session.dictionaries import CallTypes
from gotrace.session.events import CallRecord, Unwinding, parse_call
from gotrace.session.symbols import Symbolizer, is_plumbing
from gotrace.session.tasks import Tasks
from gotrace.session.trace_plan import TracedCall, TracePlan
from gotrace.session.why.parts import (
    UNKNOWN,
    Longest,
    call_parts,
    part_class,
    take_tracing_out,
)
from gotrace.sites.sites import InlinedAt
from gotrace.values.fmt import format_values
from gotrace.values.model import (
    BytesValue,
    NamedValue,
    Nil,
    SequenceValue,
    StringValue,
    StructValue,
    Value,
)
from gotrace.values.python import to_python

_MAX_COMMS = 1024
_FLOATS_MISSED = "in a float register that could not be read"


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """The properties that all calls of a function share.

    ``parameters`` (the receiver first) and ``results`` are the names of the values captured, as
    debug information gives them: empty, ``_`` and ``~r0`` are not names. ``file`` and ``line``
    are where the function is declared. ``program`` is its program's name, None where only one is
    traced. ``in_registers``: the results are not known, but the registers that may hold them are.
    ``at`` is where its calls are inlined, if they are; unless ``is_described``, no values are known
    of these.
    """

    name: str
    parameters: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    program: str | None = None
    in_registers: bool = False
    at: InlinedAt | None = None
    is_described: bool = True

    @property
    def parameter_labels(self) -> tuple[str, ...]:
        """Return a name for each parameter, none of them twice."""
        return _labels(self.parameters, _argument_label)

    @property
    def result_labels(self) -> tuple[str, ...]:
        """Return a name for each result, none of them twice."""
        return _labels(self.results, _result_label)

    def shown_results(self, texts: Sequence[str]) -> str:
        """Return the texts of results as one, those of registers with the registers' names."""
        if self.in_registers:
            texts = [f"{name}={text}" for name, text in zip(self.results, texts, strict=True)]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


@dataclass(frozen=True, slots=True)
class DecodedCall:
    """One call with its values.

    ``end_ns`` is when it returned, or was entered where only that was seen, as CLOCK_MONOTONIC in
    ns. ``args`` and ``results`` go with the function's names; ``results`` and ``duration_ns``
    are None when only the entry was seen. ``unwound`` is what ended the call where it did not
    return. ``stack`` is innermost first, None when not asked for. ``stack_cut``: it has more
    frames. ``message`` is the user's own format, filled in: it takes the place of the values in a
    line. ``probe_hits`` is how often probes were hit within the call, ``probe_ns`` what part of
    its duration that took, as an estimate. ``why`` is what its time went into, None where that was
    not asked for or only its entry was seen. ``cpu`` is the CPU on which it was reported, None
    where that was not asked for or is not known. ``values`` are those of the format's expressions,
    ``extras`` those of the probe's others, None for what does not fit the function.
    """

    function: TracedFunction
    end_ns: int
    pid: int
    tid: int
    goid: int
    args: Sequence[Value]
    results: Sequence[Value] | None = None
    duration_ns: int | None = None
    stack: Sequence[StackFrame] | None = None
    message: str | None = None
    stack_cut: bool = False
    unwound: Unwinding | None = None
    probe_hits: int | None = None
    probe_ns: int | None = None
    why: Why | None = None
    cpu: int | None = None
    values: Sequence[Value] = ()
    extras: Sequence[Value | None] = ()

    def as_call(self, epoch_ns: int) -> Call:
        """Return the call with Python's values; ``epoch_ns`` is CLOCK_MONOTONIC's value in 1970."""
        function, results = self.function, self.results
        args = zip(function.parameter_labels, map(to_python, self.args), strict=True)
        named = None
        if results is not None:
            named = dict(zip(function.result_labels, map(to_python, results), strict=True))
        return Call(
            function.name,
            dict(args),
            named,
            self.duration_ns,
            self.end_ns - epoch_ns,
            self.pid,
            self.tid,
            self.goid,
            function.file,
            function.line,
            self.stack,
            self.stack_cut,
            self.message,
            self.unwound.value if self.unwound else None,
            self.probe_hits,
            self.probe_ns,
            self.why,
            function.program,
        )


class Undecided:
    """The calls of which it could not be decided whether predicates want them, by reason."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    @property
    def calls(self) -> int:
        """Return how many there are."""
        return self.reasons.total()


class CallDecoder:
    """A decoder of the records of one function's calls."""

    def __init__(
        self,
        traced: TracedCall,
        symbols: Symbolizer | None,
        floats: bool,
        undecided: Undecided,
        cost: ProbeCost | None = None,
        part_names: Sequence[str] = (),
        shows_why: bool = False,
        program: str | None = None,
    ) -> None:
        """Take how the calls are captured, and the names of addresses in their stacks.

        ``floats`` says whether float registers are asked for, for the reason where a value of
        theirs is missing. Calls of which it cannot be decided whether the probe's predicate wants
        them are added to ``undecided``. ``cost`` is that of the probes, None where it is not known.
        ``part_names`` are the names of the parts of the time, empty if these are not asked for;
        unless ``shows_why``, the parts are read for predicates and not shown. ``program`` is the
        name of the function's program, None where only one is traced.
        """
        self.traced = traced
        self._part_names = part_names
        self._shows_why = shows_why
        self.cost = cost
        self._undecided = undecided
        self._symbols = symbols
        no_floats = f"in a float register; {said('--no-fp', 'floats=False')}"
        self._no_floats = _FLOATS_MISSED if floats else no_floats
        self._comms: dict[int, str] = {}
        self._types = CallTypes(traced) if traced.has_dictionary else None
        self._contexts: dict[int, ReadContext] = {}
        self._is_plain = all(
            spec.format is None and probe.predicate is None and not any(probe.extras)
            for spec, probe in traced.parts
        )
        places = traced.places
        sites = traced.function
        #: The frames of an inlined call's own function, and whether that one has made its frame.
        self._inner, self._has_frame = _inner_frames(traced)
        table = traced.binary.functions
        at = table.declared_at(sites.function.row) if sites.at is None else None
        self._bare_function = TracedFunction(
            sites.function.name,
            file=at.file if at else None,
            line=at.line if at else None,
            program=program,
            at=sites.at,
            is_described=sites.at is None or places.is_inlined,
        )
        self.function = self._bare_function
        if traced.spec.format is None:
            self.function = replace(
                self.function,
                parameters=tuple(value.name for value in places.parameters),
                results=tuple(value.name for value in places.results),
                in_registers=places.is_bare,
            )

    def calls(
        self, record: bytes, *, is_counted: bool = True
    ) -> list[tuple[ProbeSpec, DecodedCall]]:
        """Return a record's call as each probe of its function that wants it shows it.

        They are in the probes' order. Unless ``is_counted``, ``wanted`` has counted the probes that
        cannot be decided. Raises RecordError.
        """
        captured = parse_call(record)
        entry, results = self._captured(captured)
        why = self._why(captured)
        if self._is_plain:  # all show the same
            return [(self.traced.parts[0][0], self._decoded(captured, entry, results, why))]
        found, specials = self._operands(entry, results), self._specials(captured, why)
        calls: list[tuple[ProbeSpec, DecodedCall]] = []
        call = None
        for spec, probe in self.traced.parts:
            if not self._wanted(captured, probe, found, specials, is_counted):
                continue
            call = call or self._decoded(captured, entry, results, why)
            if spec.format is None:
                extras = self._extras(probe, found, specials)
                calls.append((spec, replace(call, extras=extras) if extras else call))
                continue
            values = self._evaluated(found, specials, probe.values)
            bare = replace(
                call,
                function=self._bare_function,
                args=(),
                results=None if call.results is None else (),
                message=format_values(spec.format, values, [value.type for value in probe.values]),
                values=values,
                extras=self._extras(probe, found, specials),
            )
            calls.append((spec, bare))
        return calls

    def bare(self, record: bytes) -> DecodedCall:
        """Return a record's call without its values, of which it may have none.

        Raises RecordError.
        """
        call = parse_call(record)
        took = call.duration_ns
        return DecodedCall(
            *(self._bare_function, call.end_ns, call.tgid, call.tid, call.goid),
            *((), None if took is None else (), took),
            unwound=call.unwound,
        )

    def wanted(self, record: bytes) -> CallRecord | None:
        """Return a record without its values, None if no probe's predicate wants it.

        Each probe counts the calls of which it cannot be decided. Raises RecordError.
        """
        call, parts = parse_call(record), self.traced.parts
        if all(probe.predicate is None for _, probe in parts):
            return call
        entry, results = self._captured(call)
        found, specials = self._operands(entry, results), self._specials(call, self._why(call))
        wanted = [self._wanted(call, probe, found, specials) for _, probe in parts]
        return call if any(wanted) else None

    def _captured(self, call: CallRecord) -> tuple[list[Value], list[Value] | None]:
        """Return the values captured at the entry, and those of the return where there was one."""
        traced = self.traced
        floats = call.entry_floats
        if floats is not None and traced.overwritten in floats:
            floats = {number: raw for number, raw in floats.items() if number != traced.overwritten}
        entry = self._values(traced.entry, call.args, floats, call.bias)
        results = None
        if traced.result is not None and call.unwound is None:
            results = self._values(traced.result, call.results, call.return_floats, call.bias)
        if self._types is not None:
            self._types.give(entry, results, call.bias)
        return entry, results

    def _decoded(
        self,
        call: CallRecord,
        entry: Sequence[Value],
        results: Sequence[Value] | None,
        why: Why | None,
    ) -> DecodedCall:
        """Return a call with the values that are shown of those captured."""
        traced = self.traced
        return DecodedCall(
            self.function,
            call.end_ns,
            call.tgid,
            call.tid,
            call.goid,
            entry[: traced.shown(Phase.ENTRY)],
            None if results is None else results[: traced.shown(Phase.RETURN)],
            call.duration_ns,
            self._stack(call),
            None,
            call.stack_cut,
            call.unwound,
            *self._tracing(call),
            why if self._shows_why else None,
        )

    def _why(self, call: CallRecord) -> Why | None:
        names, took = self._part_names, call.duration_ns
        if not names or took is None:
            return None
        if call.why is None:
            return Why({UNKNOWN: took})
        found = call_parts(call.why, names)
        _, tracing = self._tracing(call)
        longest = self._longest(call.tgid, found.longest) if found.longest else None
        return Why(take_tracing_out(found.parts, tracing), found.changes, longest)

    def _longest(self, tgid: int, found: Longest) -> LongestWait:
        stack = [frame for pc in found.stack for frame in self._frames(tgid, pc)]
        function = None
        if found.waker:
            # The first is the probed site in the runtime itself.
            frames = (f for pc in found.waker_stack[1:] for f in self._frames(tgid, pc))
            function = next((f.function for f in frames if not is_plumbing(f.function)), None)
        return LongestWait(found.part, found.ns, found.waker, function, stack)

    def _tracing(self, call: CallRecord) -> tuple[int | None, int | None]:
        """Return how often probes were hit within a call, and their part of its time."""
        took = call.duration_ns
        if took is None:
            return None, None
        cost = self.cost
        return call.hits, cost.within(took, 1, call.hits, call.hits_ns) if cost else None

    def _values(
        self, plan: PhasePlan, payload: bytes, floats: Mapping[int, bytes] | None, bias: int
    ) -> list[Value]:
        if bias not in self._contexts:
            self._contexts[bias] = self.traced.context.at(bias)
        return read_phase(plan, payload, self._contexts[bias], floats, self._no_floats)

    def _operands(
        self, entry: Sequence[Value], results: Sequence[Value] | None
    ) -> dict[AccessPath, Value]:
        paths = self.traced.paths
        found = dict(zip(paths[Phase.ENTRY], entry[self.traced.shown(Phase.ENTRY) :], strict=True))
        if results is None:
            found.update(dict.fromkeys(paths[Phase.RETURN], NO_RESULT))
        else:
            values = results[self.traced.shown(Phase.RETURN) :]
            found.update(zip(paths[Phase.RETURN], values, strict=True))
        return found

    def _wanted(
        self,
        call: CallRecord,
        probe: ResolvedProbe,
        found: Mapping[AccessPath, Value],
        specials: Specials,
        is_counted: bool = True,
    ) -> bool:
        """Return whether a probe wants a call; if that is not known, it is counted, too."""
        predicate, compiled = probe.predicate, self.traced.compiled
        # The kernel decides for a probe that is alone, but not of returns that it does not see.
        is_open = call.undecided or call.unwound is not None
        if compiled is not None and len(self.traced.parts) == 1 and not is_open:
            predicate = compiled.rest
        if predicate is None:
            return True
        decided = decide(predicate, found, specials)
        if decided is None and is_counted:
            self._undecided.reasons[why_undecided(predicate, found, specials)] += 1
        return decided is True

    def _evaluated(
        self,
        found: Mapping[AccessPath, Value],
        specials: Specials,
        wanted: Sequence[Typed],
    ) -> list[Value]:
        most = self.traced.text_bytes
        return [
            _shortened(evaluated, most) if isinstance(value, Operand | Sliced) else evaluated
            for value in wanted
            for evaluated in [evaluate(value, found, specials)]
        ]

    def _extras(
        self, probe: ResolvedProbe, found: Mapping[AccessPath, Value], specials: Specials
    ) -> list[Value | None]:
        return [
            None if value is None else evaluate(value, found, specials) for value in probe.extras
        ]

    def key(self, record: bytes) -> tuple[list[Value], str | None]:
        """Return the values that a sample's calls are added up by, and why these are left out.

        That is "" if the predicate does not want them, a reason if that cannot be decided, and None
        if it wants them. Raises RecordError.
        """
        call = parse_call(record)
        entry, results = self._captured(call)
        specials = self._specials(call, self._why(call))
        operands = self._operands(entry, results)
        values = self._evaluated(operands, specials, self.traced.probe.values)
        rest = self.traced.compiled.rest if self.traced.compiled else None
        if rest is None or (is_wanted := decide(rest, operands, specials)):
            return values, None
        return values, why_undecided(rest, operands, specials) if is_wanted is None else ""

    def _specials(self, call: CallRecord, why: Why | None) -> Specials:
        specials: dict[SpecialName, int | str | SequenceValue] = {
            SpecialName.GOID: call.goid,
            SpecialName.PID: call.tgid,
            SpecialName.TID: call.tid,
            SpecialName.FUNC: self.function.name,
            SpecialName.COMM: self._comm(call.tgid),
        }
        if call.duration_ns is not None:
            specials[SpecialName.DURATION] = call.duration_ns
            specials[SpecialName.PANICKED] = call.unwound is Unwinding.PANIC
        if why is not None:
            for name in PART_SPECIALS:
                specials[name] = sum(
                    ns
                    for part, ns in why.parts.items()
                    if (found := part_class(part)) and found.value == name.value
                )
        if call.stack and (frames := self._stack(call)):
            specials[SpecialName.CALLER] = frames[self.traced.function.is_line].function
            specials[SpecialName.STACK] = _stack_value(frames, call.stack_cut)
        return specials

    def _comm(self, tgid: int) -> str:
        if tgid not in self._comms:
            if len(self._comms) >= _MAX_COMMS:  # of processes that come and go
                self._comms.clear()
            try:
                text = Path(f"/proc/{tgid}/comm").read_text(errors="surrogateescape")
            except OSError:
                text = ""
            self._comms[tgid] = text.rstrip("\n")
        return self._comms[tgid]

    def _stack(self, call: CallRecord) -> list[StackFrame] | None:
        if call.stack is None:
            return None
        stack = call.stack
        if self._has_frame:  # its return address is there twice
            stack = (*stack[:1], *stack[2:])
        if self._symbols is None:
            return [*self._inner, *(StackFrame(f"{pc:#x}") for pc in stack)]
        return [*self._inner, *(frame for pc in stack for frame in self._frames(call.tgid, pc))]

    def _frames(self, tgid: int, pc: int) -> list[StackFrame]:
        frames = self._symbols.frames_before(tgid, pc) if self._symbols else []
        return [StackFrame(*frame) for frame in frames] or [StackFrame(f"{pc:#x}")]


def _inner_frames(traced: TracedCall) -> tuple[list[StackFrame], bool]:
    """Return the frames that an inlined call is made in, and whether SP is below their entry.

    There are none of a call that has a frame of its own. The first one of a line is that of the
    function that it is in.
    """
    if traced.function.at is None or traced.function.entry is None:
        return [], False
    table = traced.binary.functions
    frames = []
    for place in traced.function.places[:1]:
        if traced.function.is_line:
            own = table.frames_of(place.row)[place.record]
            frames.append(StackFrame(own.name, place.at.file, place.at.line))
        for frame in table.callers_of(place.row, place.record):
            frames.append(StackFrame(frame.name, frame.file, frame.line))
    return frames, traced.function.entry.sp_offset > 0


def call_decoders(
    traced: TracePlan,
    tasks: Tasks,
    floats: bool,
    cost: ProbeCost | None = None,
    part_names: Sequence[str] = (),
    shows_why: bool = False,
) -> tuple[list[CallDecoder], Undecided]:
    """Return the decoders of a plan's functions, by number, and their common counts."""
    undecided = Undecided()
    symbols = Symbolizer.of(tasks.files)
    decoders = [
        CallDecoder(call, symbols, floats, undecided, cost, part_names, shows_why, name.program)
        for call, name in zip(traced.calls, traced.plan.names, strict=True)
    ]
    return decoders, undecided


def _shortened(value: Value, most: int) -> Value:
    if isinstance(value, NamedValue):
        return replace(value, value=_shortened(value.value, most))
    if isinstance(value, StringValue):
        return replace(value, text=value.text[:most])
    if isinstance(value, BytesValue):
        return replace(value, data=value.data[:most])
    return value


def _stack_value(frames: Sequence[StackFrame], is_cut: bool) -> SequenceValue:
    """Return a stack as a value; where it goes on it is longer than its frames."""
    shown = tuple(
        StructValue(
            "frame",
            (
                ("func", _string(frame.function)),
                ("file", Nil("") if frame.file is None else _string(frame.file)),
                ("line", Nil("") if frame.line is None else frame.line),
            ),
        )
        for frame in frames
    )
    return SequenceValue(STACK_TYPE, shown, len(shown) + is_cut)


def _string(text: str) -> StringValue:
    content = text.encode("utf-8", "surrogateescape")
    return StringValue(content, len(content))


def _argument_label(index: int, count: int) -> str:
    return f"arg{index + 1}"


def _result_label(index: int, count: int) -> str:
    return "$ret" if count == 1 else f"$ret{index + 1}"


@functools.lru_cache(maxsize=1024)
def _labels(names: tuple[str, ...], unnamed: Callable[[int, int], str]) -> tuple[str, ...]:
    """Return names; a value without a name, or with one that is taken, is named by its position."""
    labels: list[str] = []
    for index, name in enumerate(names):
        label = name if name not in ("", "_") and not name.startswith("~") else ""
        label = label or unnamed(index, len(names))
        while label in labels:
            label += "'"
        labels.append(label)
    return tuple(labels)
