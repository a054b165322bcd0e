# SPDX-License-Identifier: Apache-2.0
"""Render call counts: a table in the manner of bcc's funccount, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gotrace.report.durations import four_digits
from gotrace.report.order import Order, ordered, rate_of, share_of, share_text
from gotrace.report.output import JsonOutput, Output
from gotrace.text import in_program, printable

if TYPE_CHECKING:
    from gotrace.values.model import Value

__all__ = ["CountRow", "CountTable", "count_table", "write_counts"]

_NAME_WIDTH = 36  # bcc's; longer names widen the column
_COUNT_WIDTH = 8  # likewise
_SHARE_WIDTH = 6
_STACK = "$stack"
_MAX_WIDTH = 300  # a damaged file can have names of any length, which are not to widen all lines


@dataclass(frozen=True, slots=True)
class CountRow:
    """A function's calls within one interval; ``program`` is its program's name, if of several.

    ``by``: those with the same values, by expression; the row of the calls that found no room has
    no name and no values.
    """

    name: str | None
    count: int
    by: Mapping[str, Value] | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class CountTable:
    """One interval: rows in order, when it ended (s since 1970), its length (s).

    ``by``: the expressions that calls are grouped by. ``total`` is the number of all its calls,
    those of rows that are not shown as well. ``rates``: rows have their calls a second.
    """

    rows: Sequence[CountRow]
    ended: float
    seconds: float
    by: Sequence[str] = ()
    total: int = 0
    rates: bool = False


def count_table(
    rows: Iterable[CountRow],
    seconds: float,
    top: int | None,
    order: Order | None = None,
    rates: bool = False,
    by: Sequence[str] = (),
) -> CountTable:
    """Return an interval that ends now, with its ``top`` largest rows, the largest last."""
    rows = list(rows)

    def name(row: CountRow) -> tuple[str, str, str]:
        return row.name or "", row.program or "", repr(row.by)

    shown = ordered(
        rows, top, lambda row: (row.count, *name(row)), name if order is Order.NAME else None
    )
    total = sum(row.count for row in rows)
    return CountTable(shown, time.time(), seconds, by, total, rates)


def write_counts(
    output: Output, table: CountTable, timestamp: bool, shown: Mapping[str, str]
) -> None:
    """Write one interval's rows; ``timestamp`` puts the time of day above a text table.

    ``shown``: what is written for names in text where that is not the whole name.
    """
    if isinstance(output, JsonOutput):
        for row in table.rows:
            fields: dict[str, object] = {"func": row.name}
            if table.by:
                fields["by"] = _by_fields(row.by)
            output.write(
                "count",
                {
                    **fields,
                    "count": row.count,
                    "share": share_of(row.count, table.total),
                    **({"rate": rate_of(row.count, table.seconds)} if table.rates else {}),
                    "ts": round(table.ended, 6),
                    "interval_s": round(table.seconds, 6),
                    **({} if row.program is None else {"program": row.program}),
                },
            )
        output.out.flush()
        return
    if timestamp:
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(table.ended)))
    # A stack is shown below its row.
    heads = [text for text in table.by if text != _STACK]
    cells = [[_shown_name(row, shown), *_by_cells(row, heads)] for row in table.rows]
    columns = zip(["FUNC", *heads], *cells, strict=True)
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in columns]
    widths[0] = max(widths[0], _NAME_WIDTH)
    digits = max([_COUNT_WIDTH, *(len(str(row.count)) for row in table.rows)])

    def line(names: Sequence[str], count: object, share: str, rate: str) -> str:
        padded = [f"{name:<{width}}" for name, width in zip(names, widths, strict=True)]
        rated = f" {rate:>{_COUNT_WIDTH}}" if table.rates else ""
        return f"{' '.join(padded)} {count:>{digits}}{rated} {share:>{_SHARE_WIDTH}}\n"

    output.heading(line(["FUNC", *heads], "COUNT", "SHARE", "PER SEC"))
    for names, row in zip(cells, table.rows, strict=True):
        rate = four_digits(rate_of(row.count, table.seconds))
        output.out.write(line(names, row.count, share_text(row.count, table.total), rate))
        if _STACK in table.by:
            output.out.writelines(_stack_lines(row))
    output.out.flush()


def _shown_name(row: CountRow, shown: Mapping[str, str]) -> str:
    if row.name is None:
        return printable(in_program(row.program, "(others)"))
    name = shown.get(row.name, row.name)
    return printable(in_program(row.program, name))


# Values are shown by modules that plain counts do without, to start soon.
def _by_fields(by: Mapping[str, Value] | None) -> dict[str, object] | None:
    from gotrace.report.by import by_fields

    return by_fields(by)


def _by_cells(row: CountRow, by: Sequence[str]) -> list[str]:
    if row.by is None:
        return [""] * len(by)
    from gotrace.values.go_syntax import by_text

    return [by_text(row.by[text]) for text in by]


def _stack_lines(row: CountRow) -> list[str]:
    from gotrace.report.by import stack_lines

    return [line + "\n" for line in stack_lines(row.by or {})]
