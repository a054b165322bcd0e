# SPDX-License-Identifier: Apache-2.0
"""Render call counts: a table in the manner of bcc's funccount, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gotrace.report.output import JsonOutput, Output
from gotrace.text import printable

__all__ = ["CountRow", "CountTable", "write_counts"]

_NAME_WIDTH = 36  # bcc's; longer names widen the column
_COUNT_WIDTH = 8  # likewise
_MAX_WIDTH = 300  # a damaged file can have names of any length, which are not to widen all lines


@dataclass(frozen=True, slots=True)
class CountRow:
    """A function's calls within one interval."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class CountTable:
    """One interval: rows in ascending order, when it ended (s since 1970), its length (s)."""

    rows: Sequence[CountRow]
    ended: float
    seconds: float


def write_counts(
    output: Output, table: CountTable, timestamp: bool, shown: Mapping[str, str]
) -> None:
    """Write one interval's rows; ``timestamp`` puts the time of day above a text table.

    ``shown``: what is written for names in text where that is not the whole name.
    """
    if isinstance(output, JsonOutput):
        for row in table.rows:
            output.write(
                "count",
                {
                    "func": row.name,
                    "count": row.count,
                    "ts": round(table.ended, 6),
                    "interval_s": round(table.seconds, 6),
                },
            )
        output.out.flush()
        return
    names = [printable(shown.get(row.name, row.name)) for row in table.rows]
    width = min(max([_NAME_WIDTH, *map(len, names)]), _MAX_WIDTH)
    if timestamp:
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(table.ended)))
    digits = max([_COUNT_WIDTH, *(len(str(row.count)) for row in table.rows)])
    output.heading(f"{'FUNC':<{width}} {'COUNT':>{digits}}\n")
    output.out.writelines(
        f"{name:<{width}} {row.count:>{digits}}\n"
        for name, row in zip(names, table.rows, strict=True)
    )
    output.out.flush()
