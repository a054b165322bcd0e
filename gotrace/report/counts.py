# SPDX-License-Identifier: Apache-2.0
"""Render call counts: a table in the manner of bcc's funccount, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gotrace.report.by import OTHERS, by_fields, by_text
from gotrace.report.output import JsonOutput, Output
from gotrace.text import printable
from gotrace.values.model import Value

__all__ = ["CountRow", "CountTable", "write_counts"]

_NAME_WIDTH = 36  # bcc's; longer names widen the column
_COUNT_WIDTH = 8  # likewise
_MAX_WIDTH = 300  # a damaged file can have names of any length, which are not to widen all lines


@dataclass(frozen=True, slots=True)
class CountRow:
    """A function's calls within one interval.

    ``by``: those with the same values, by expression; the row of the calls that found no room has
    no name and no values.
    """

    name: str | None
    count: int
    by: Mapping[str, Value] | None = None


@dataclass(frozen=True, slots=True)
class CountTable:
    """One interval: rows in ascending order, when it ended (s since 1970), its length (s).

    ``by``: the expressions that calls are told apart by.
    """

    rows: Sequence[CountRow]
    ended: float
    seconds: float
    by: Sequence[str] = ()


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
                fields["by"] = by_fields(row.by)
            output.write(
                "count",
                {
                    **fields,
                    "count": row.count,
                    "ts": round(table.ended, 6),
                    "interval_s": round(table.seconds, 6),
                },
            )
        output.out.flush()
        return
    if timestamp:
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(table.ended)))
    cells = [[_shown_name(row, shown), *_by_cells(row, table.by)] for row in table.rows]
    columns = zip(["FUNC", *table.by], *cells, strict=True)
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in columns]
    widths[0] = max(widths[0], _NAME_WIDTH)
    digits = max([_COUNT_WIDTH, *(len(str(row.count)) for row in table.rows)])

    def line(names: Sequence[str], count: object) -> str:
        padded = [f"{name:<{width}}" for name, width in zip(names, widths, strict=True)]
        return f"{' '.join(padded)} {count:>{digits}}\n"

    output.heading(line(["FUNC", *table.by], "COUNT"))
    output.out.writelines(
        line(names, row.count) for names, row in zip(cells, table.rows, strict=True)
    )
    output.out.flush()


def _shown_name(row: CountRow, shown: Mapping[str, str]) -> str:
    return OTHERS if row.name is None else printable(shown.get(row.name, row.name))


def _by_cells(row: CountRow, by: Sequence[str]) -> list[str]:
    return ["" if row.by is None else by_text(row.by[text]) for text in by]
