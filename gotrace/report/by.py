# SPDX-License-Identifier: Apache-2.0
"""The keys of calls that are added up, as text; rows of histograms of values, and their text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.gotypes.symbols import elide_type_arguments, shown_names
from gotrace.probes.scope import STACK_TYPE
from gotrace.report.durations import (
    PERCENTILES,
    duration,
    four_digits,
    function_line,
    table,
)
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of, parts_lines
from gotrace.session.key_stacks import stack_of
from gotrace.session.order import and_more
from gotrace.text import counted, printable
from gotrace.values.go_syntax import by_text
from gotrace.values.model import SequenceValue, Value

if TYPE_CHECKING:
    from gotrace.results.rows import Json

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
