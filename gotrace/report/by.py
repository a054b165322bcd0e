# SPDX-License-Identifier: Apache-2.0
"""Show what calls are added up by, and histograms of values."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gotrace.gotypes.symbols import elide_type_arguments, shown_names
from gotrace.histogram import ValueHistogram
from gotrace.probes.scope import STACK_TYPE
from gotrace.report.durations import (
    PERCENTILES,
    duration,
    four_digits,
    function_line,
    histogram_fields,
    program_field,
    table,
)
from gotrace.report.output import JsonOutput, Output
from gotrace.session.key_stacks import stack_of
from gotrace.text import printable
from gotrace.values.go_syntax import by_text
from gotrace.values.model import SequenceValue, Value
from gotrace.values.to_json import to_json

__all__ = [
    "ValueGroup",
    "ValueInterval",
    "by_fields",
    "by_line",
    "stack_lines",
    "write_values",
]

_INDENT = " " * 8


def by_line(by: Mapping[str, Value]) -> str:
    """Return all values and their expressions; there are none of the calls that found no room.

    Stacks are left out: see ``stack_lines``.
    """
    shown = [f"{text} = {by_text(value)}" for text, value in by.items() if not _is_stack(value)]
    return ", ".join(shown) or ("$stack =" if by else "(others)")


def by_fields(by: Mapping[str, Value] | None) -> dict[str, object] | None:
    """Return the values for JSON by expression, None for the calls that found no room."""
    return None if by is None else {text: to_json(value) for text, value in by.items()}


def stack_lines(by: Mapping[str, Value]) -> Iterator[str]:
    """Yield the frames of a stack among the values, innermost first."""
    for value in by.values():
        if not _is_stack(value):
            continue
        frames, is_cut = stack_of(value)
        for frame in frames:
            place = f" at {frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame.file else ""
            yield _INDENT + printable(elide_type_arguments(frame.function) + place)
        if is_cut:
            yield _INDENT + "..."


def _is_stack(value: Value) -> bool:
    return isinstance(value, SequenceValue) and value.type == STACK_TYPE


@dataclass(frozen=True, slots=True)
class ValueGroup:
    """One histogram of a value, and the calls that it is of.

    ``function`` is None where functions are measured together, and ``by`` where calls are not told
    apart; it is empty for the calls that found no room. ``program`` is the name of the program of
    which they are, None where only one is traced.
    """

    function: str | None
    values: ValueHistogram
    by: Mapping[str, Value] | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class ValueInterval:
    """What one printing shows: when it ended (s since 1970), and its length (s).

    ``of`` is the expression that histograms are of. ``unit`` is that of its values: ``ns`` or
    ``bytes``, None where they are plain numbers.
    """

    groups: Sequence[ValueGroup]
    of: str
    unit: str | None
    ended: float
    seconds: float
    short: bool = False


def write_values(output: Output, interval: ValueInterval, timestamp: bool) -> None:
    """Write one interval; ``timestamp`` puts the time of day above its text."""
    if isinstance(output, JsonOutput):
        for group in interval.groups:
            output.write("histogram", _fields(group, interval))
        output.out.flush()
        return
    if timestamp:
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(interval.ended)))
    if not interval.groups:
        output.out.write("\nno calls have been seen\n")
    names = (group.function for group in interval.groups)
    shown = shown_names((name for name in names if name is not None), interval.short)
    for group in interval.groups:
        output.out.writelines(line + "\n" for line in _lines(group, interval, shown))
    output.out.flush()


def _lines(group: ValueGroup, interval: ValueInterval, shown: Mapping[str, str]) -> Iterator[str]:
    values, unit = group.values, interval.unit
    yield ""
    yield from function_line(group.program, group.function and shown[group.function])
    if group.by is not None:
        yield by_line(group.by)
        yield from stack_lines(group.by)
    if values.count:
        heading = f"{interval.of} ({unit})" if unit else interval.of
        yield from table(values.octaves(), printable(heading))
        yield ""
        after = f" {unit}" if unit else ""
        yield (
            f"avg = {four_digits(values.mean)}{after}, total: {values.sum}{after},"
            f" count: {values.count}"
        )
        show = _signed_duration if unit == "ns" else str
        marks = [f"{mark} = {show(values.percentile(q))}" for mark, q in PERCENTILES.items()]
        yield ", ".join([f"min = {show(values.minimum)}", *marks, f"max = {show(values.maximum)}"])
    if values.unknown:
        yield f"unknown: {values.unknown} calls of which {interval.of} could not be read"


def _signed_duration(nanoseconds: int) -> str:
    return f"{'-' * (nanoseconds < 0)}{duration(abs(nanoseconds))}"


def _fields(group: ValueGroup, interval: ValueInterval) -> dict[str, object]:
    values = group.values
    fields: dict[str, object] = {"func": group.function, "of": interval.of, "unit": interval.unit}
    if group.by is not None:
        fields["by"] = by_fields(group.by or None)
    return fields | {
        **histogram_fields(values),
        "unknown": values.unknown,
        "ts": round(interval.ended, 6),
        "interval_s": round(interval.seconds, 6),
        **program_field(group.program),
    }
