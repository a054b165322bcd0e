# SPDX-License-Identifier: Apache-2.0
"""The keys of calls that are added up, as text; rows of histograms of values, and their text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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
from gotrace.report.order import and_more
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of, parts_lines
from gotrace.session.key_stacks import stack_of
from gotrace.text import counted, printable
from gotrace.values.go_syntax import by_text
from gotrace.values.model import SequenceValue, Value

if TYPE_CHECKING:
    from gotrace.results.rows import Json, Row
    from gotrace.session.row_cells import RowBy

_INDENT = " " * 8


def by_line(by: Mapping[str, Value]) -> str:
    """Return all values and their expressions; there are none of the calls that found no room.

    Stacks are left out: see ``stack_lines``.
    """
    shown = [f"{text} = {by_text(value)}" for text, value in by.items() if not _is_stack(value)]
    return ", ".join(shown) or ("$stack =" if by else "(others)")


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


def value_row(
    name: tuple[str | None, str | None],
    values: ValueHistogram,
    of: tuple[str, str | None],
    by: RowBy | None,
    when: tuple[float, float],
) -> Row:
    """Return the row of the values of some calls.

    ``by`` are the values that calls are grouped by, None if they are not grouped.
    ``name`` is the calls' program, if there are several, and their function, if they are of one.
    ``of`` is the expression of the values, and their unit, ``ns`` or ``bytes``, None of plain
    numbers; ``when`` the interval's end (s since 1970) and length (s).
    """
    ended, seconds = when
    return {
        "kind": "histogram",
        "func": name[1],
        "of": of[0],
        "unit": of[1],
        **({} if by is None else {"by": by}),
        **histogram_fields(values),
        "unknown": values.unknown,
        "ts": round(ended, 6),
        "interval_s": round(seconds, 6),
        **program_field(name[0]),
    }


def write_values(
    output: Output, rows: Sequence[Json], timestamp: bool, short: bool = False
) -> None:
    """Write one interval; ``timestamp`` puts the time of day above its text."""
    if isinstance(output, JsonOutput):
        output.rows(rows)
        return
    if timestamp:
        ended = rows[0]["ts"] if rows else time.time()
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(ended)))
    if not rows:
        output.nothing()
    shown = shown_names((row["func"] for row in rows if row["func"] is not None), short)
    columns = columns_of(output.out)
    for row in rows:
        output.out.writelines(line + "\n" for line in _lines(row, shown, columns))
    if more := and_more(rows, lambda row: row["count"] + row["unknown"], " of the calls"):
        output.out.write(f"\n{more}")
    output.out.flush()


def _lines(row: Json, shown: Mapping[str, str], columns: int | None) -> Iterator[str]:
    of, unit = row["of"], row["unit"]
    yield ""
    yield from function_line(row.get("program"), row["func"] and shown[row["func"]])
    if "by" in row:
        yield by_line(row["by"].values)
        yield from stack_lines(row["by"].values)
    if count := row["count"]:
        from gotrace.results.merging import values_of  # which JSON does without

        yield from table(values_of(row).octaves(), printable(f"{of} ({unit})" if unit else of))
        yield ""
        show = _signed_duration if unit == "ns" else str
        if unit == "ns":
            mean, total = _signed_duration(row["sum"] / count), _signed_duration(row["sum"])
        else:
            after = f" {unit}" if unit else ""
            mean, total = f"{four_digits(row['sum'] / count)}{after}", f"{row['sum']}{after}"
        yield f"avg = {mean}, total: {total}, count: {count}"
        marks = ("min", *PERCENTILES, "max")
        texts = [f"{mark} = {show(row[mark.replace('.', '')])}" for mark in marks]
        yield from parts_lines(texts, columns)
    if unknown := row["unknown"]:
        yield f"unknown: {counted('{} call{s}', unknown)} of which {of} could not be read"


def _signed_duration(nanoseconds: float) -> str:
    return f"{'-' * (nanoseconds < 0)}{duration(abs(nanoseconds))}"
