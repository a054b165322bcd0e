# SPDX-License-Identifier: Apache-2.0
"""Calls that were added up by their stacks, as profiles have them."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.calls import StackFrame
from gotrace.probes.spec import KeyText
from gotrace.profiles.rows import (
    CodeMapping,
    Line,
    PprofLocation,
    ProfileForm,
    ProfileRow,
    StackProfile,
    ValueType,
)
from gotrace.session.keys import KeyRow
from gotrace.session.plan import ProbePlan, ProgramFunction
from gotrace.values.go_syntax import by_text
from gotrace.values.model import SequenceValue, StringValue, StructValue, Value

#: The expression that is a call's stack.
STACK = "$stack"


def stack_of(value: Value) -> tuple[list[StackFrame], bool]:
    """Return the frames of a ``$stack``, innermost first, and whether it has more of them."""
    if not isinstance(value, SequenceValue):
        return [], True
    frames = []
    for element in value.elements:
        assert isinstance(element, StructValue)
        fields = dict(element.fields)
        line = fields["line"]
        frames.append(
            StackFrame(
                _plain(fields["func"]) or "",
                _plain(fields["file"]),
                line if isinstance(line, int) else None,
            )
        )
    return frames, value.length > len(frames)


def _plain(value: Value) -> str | None:
    return value.text.decode("utf-8", "replace") if isinstance(value, StringValue) else None


def key_profile(
    plan: ProbePlan,
    key: KeyText,
    rows: Sequence[KeyRow],
    of: str | None,
    patterns: Sequence[str],
    began_ns: int,
    length_ns: int,
) -> StackProfile:
    """Return the stacks of a key that has ``$stack``, with calls and their measured values.

    Times are the calls' own, without those within them that have rows, so that a stack's add up.
    ``of`` is what histograms are of where that is not time. The other values of the key are labels,
    and one more frame.
    """
    types = [ValueType("calls", "count")]
    if rows and rows[0].times is not None:
        types.append(ValueType("time", "nanoseconds"))
    elif rows and rows[0].measured is not None:
        types.append(ValueType(of or "", "sum"))
    form = ProfileForm(tuple(types))
    found = [_profiled(plan.names, key, row) for row in rows]
    name = f"{types[-1].type} of {', '.join(patterns)}"
    path = plan.binaries[0].binary.image.display if plan.binaries else ""
    return StackProfile(form, found, name, [CodeMapping(0, 0, path)], began_ns, length_ns)


def _profiled(names: Sequence[ProgramFunction], key: KeyText, row: KeyRow) -> ProfileRow:
    """Return the shared part of a row's calls; a mark for calls that had no room."""
    values = [row.calls]
    if row.times is not None:
        values.append(row.times.sum if row.own is None else row.own)
    elif row.measured is not None:
        values = [row.measured.count, row.measured.sum]
    by = row.by(key.texts)
    if by is None or row.function is None:
        return ProfileRow([_location(StackFrame("(others)"))], tuple(values))
    frames, is_cut = stack_of(by.pop(STACK))
    program, name = names[row.function]
    cut = [StackFrame("(more frames)")] if is_cut else []
    root = [] if program is None else [StackFrame(program)]
    labels = {text: by_text(value) for text, value in by.items()}
    note = f"[{', '.join(f'{text} = {value}' for text, value in labels.items())}]" if labels else ""
    stack = [_location(frame) for frame in (StackFrame(name), *frames, *cut, *root)]
    return ProfileRow(stack, tuple(values), labels, note)


def _location(frame: StackFrame) -> PprofLocation:
    return PprofLocation(0, (Line(frame.function, frame.file or "", frame.line or 0),))
