# SPDX-License-Identifier: Apache-2.0
"""Make the lines of one traced function's calls from the kernel's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from gotrace.capture.plan import PhasePlan, read_phase
from gotrace.overhead import ProbeCost
from gotrace.probes.evaluate import NO_RESULT, Specials, decide, evaluate
from gotrace.probes.scope import Phase, SpecialName
from gotrace.probes.typed import Operand, Path
from gotrace.report.calls import CallRow, Clock, Frame, TracedFunction, json_line, text_line
from gotrace.report.fast_calls import Line, fast_json_line, fast_text_line, plain_phase
from gotrace.session.events import HEADER, Call, parse_call
from gotrace.session.symbols import Symbolizer
from gotrace.session.trace_plan import TracedCall
from gotrace.values.fmt import format_values
from gotrace.values.model import BytesValue, NamedValue, StringValue, Value

__all__ = ["Undecided", "line_of"]

_NO_FLOATS = "in a float register; --no-fp"
_FLOATS_MISSED = "in a float register that could not be read"


class Undecided:
    """Count the calls of which predicates could not say whether they are wanted."""

    def __init__(self) -> None:
        self.calls = 0


def line_of(
    call: TracedCall,
    symbols: Symbolizer | None,
    clock: Clock,
    as_json: bool,
    floats: bool,
    undecided: Undecided,
    cost: ProbeCost | None = None,
) -> Line:
    """Return what makes the line of a record of a function's call.

    It makes nothing of a call that the probe's predicate does not want, nor of one that it cannot
    decide, which is added to ``undecided``. ``floats`` tells whether float registers are asked
    for, for the reason where a value of theirs is missing. ``cost`` is that of the probes, which
    JSON has; None where it is not known.
    """
    decoded = _DecodedLine(call, symbols, clock, as_json, floats, undecided, cost)
    entry = plain_phase(call.entry)
    result = plain_phase(call.result) if call.result else None
    plain = entry is not None and (call.result is None or result is not None)
    expressions = call.spec.format is not None or call.spec.predicate is not None
    if entry is None or not plain or expressions:
        return decoded
    if as_json:
        return fast_json_line(decoded.function, entry, result, HEADER, clock, decoded, cost)
    return fast_text_line(decoded.function, entry, result, HEADER, clock, decoded)


class _DecodedLine:
    """Decode a record in full and write its line."""

    def __init__(
        self,
        call: TracedCall,
        symbols: Symbolizer | None,
        clock: Clock,
        as_json: bool,
        floats: bool,
        undecided: Undecided,
        cost: ProbeCost | None,
    ) -> None:
        self._call = call
        self._undecided = undecided
        self._cost = cost
        self._symbols = symbols
        self._clock = clock
        self._write = json_line if as_json else text_line
        self._no_floats = _FLOATS_MISSED if floats else _NO_FLOATS
        self._comms: dict[int, str] = {}
        places = call.places
        at = call.binary.functions.declared_at(call.function.function.row)
        shown = call.spec.format is None
        self.function = TracedFunction(
            call.function.function.name,
            tuple(value.name for value in places.parameters) if shown else (),
            tuple(value.name for value in places.results) if shown else (),
            at.file if at else None,
            at.line if at else None,
        )

    def __call__(self, record: bytes) -> str:
        call = parse_call(record)
        traced = self._call
        entry = self._values(traced.entry, call.args, call.entry_floats)
        results: list[Value] | None = None
        if traced.result is not None and call.unwound is None:
            results = self._values(traced.result, call.results, call.return_floats)
        message = None
        if traced.spec.predicate is not None or traced.spec.format is not None:
            specials = self._specials(call)
            found = self._operands(entry, results)
            # What the kernel would have decided at the return, it has not been asked.
            undecided = call.undecided or call.unwound is not None
            if not self._wanted(undecided, found, specials):
                return ""
            message = self._message(found, specials)
        row = CallRow(
            self.function,
            call.end_ns,
            call.tgid,
            call.tid,
            call.goid,
            entry[: traced.shown(Phase.ENTRY)],
            None if results is None else results[: traced.shown(Phase.RETURN)],
            call.duration_ns,
            self._stack(call),
            message,
            call.stack_cut,
            call.unwound.value if call.unwound else None,
            *self._tracing(call),
        )
        return self._write(row, self._clock)

    def _tracing(self, call: Call) -> tuple[int | None, int | None]:
        """Return how often probes were hit within a call, and what part of it that took."""
        took = call.duration_ns
        if took is None:
            return None, None
        cost = self._cost
        return call.hits, cost.within(took, 1, call.hits, call.hits_ns) if cost else None

    def _values(
        self, plan: PhasePlan, payload: bytes, floats: Mapping[int, bytes] | None
    ) -> list[Value]:
        return read_phase(plan, payload, self._call.context, floats, self._no_floats)

    def _operands(
        self, entry: Sequence[Value], results: Sequence[Value] | None
    ) -> dict[Path, Value]:
        paths = self._call.paths
        found = dict(zip(paths[Phase.ENTRY], entry[self._call.shown(Phase.ENTRY) :], strict=True))
        if results is None:
            found.update(dict.fromkeys(paths[Phase.RETURN], NO_RESULT))
        else:
            values = results[self._call.shown(Phase.RETURN) :]
            found.update(zip(paths[Phase.RETURN], values, strict=True))
        return found

    def _wanted(self, undecided: bool, found: Mapping[Path, Value], specials: Specials) -> bool:
        """Decide what the kernel has left open."""
        compiled = self._call.compiled
        if compiled is None:
            return True
        predicate = self._call.probe.predicate if undecided else compiled.rest
        if predicate is None:
            return True
        decided = decide(predicate, found, specials)
        self._undecided.calls += decided is None
        return decided is True

    def _message(self, found: Mapping[Path, Value], specials: Specials) -> str | None:
        template = self._call.spec.format
        if template is None:
            return None
        values = self._call.probe.values
        most = self._call.text_bytes
        shown = [
            _shortened(evaluated, most) if isinstance(value, Operand) else evaluated
            for value in values
            for evaluated in [evaluate(value, found, specials)]
        ]
        return format_values(template, shown, [value.type for value in values])

    def _specials(self, call: Call) -> Specials:
        specials: dict[SpecialName, int | str] = {
            SpecialName.GOID: call.goid,
            SpecialName.PID: call.tgid,
            SpecialName.TID: call.tid,
            SpecialName.FUNC: self.function.name,
            SpecialName.COMM: self._comm(call.tgid),
        }
        if call.duration_ns is not None:
            specials[SpecialName.DURATION] = call.duration_ns
        return specials

    def _comm(self, tgid: int) -> str:
        if tgid not in self._comms:
            try:
                text = FilePath(f"/proc/{tgid}/comm").read_text(errors="surrogateescape")
            except OSError:
                text = ""
            self._comms[tgid] = text.rstrip("\n")
        return self._comms[tgid]

    def _stack(self, call: Call) -> list[Frame] | None:
        if call.stack is None:
            return None
        if self._symbols is None:
            return [Frame(f"{pc:#x}") for pc in call.stack]
        return [frame for pc in call.stack for frame in self._frames(call.tgid, pc)]

    def _frames(self, tgid: int, pc: int) -> list[Frame]:
        assert self._symbols is not None
        frames = self._symbols.frames_before(tgid, pc)
        return [Frame(*frame) for frame in frames] or [Frame(f"{pc:#x}")]


def _shortened(value: Value, most: int) -> Value:
    """Return a value with no more than so many bytes of a text."""
    if isinstance(value, NamedValue):
        return replace(value, value=_shortened(value.value, most))
    if isinstance(value, StringValue):
        return replace(value, text=value.text[:most])
    if isinstance(value, BytesValue):
        return replace(value, data=value.data[:most])
    return value
