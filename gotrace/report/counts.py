# SPDX-License-Identifier: Apache-2.0
"""Rows of call counts, and their text: a table in the manner of bcc's funccount."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.report.durations import four_digits
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of, fitted, narrowed, shortened
from gotrace.session.order import and_more
from gotrace.text import in_program, printable

if TYPE_CHECKING:
    from gotrace.results.rows import Json

_NAME_WIDTH = 36  # bcc's; longer names widen the column
_COUNT_WIDTH = 8  # likewise
_SHARE_WIDTH = 6
_STACK = "$stack"
_MAX_WIDTH = 300  # a damaged file can have names of any length, which are not to widen all lines


def write_counts(
    output: Output,
    rows: Sequence[Json],
    timestamp: bool,
    shown: Mapping[str, str],
    by: Sequence[str] = (),
    rates: bool = False,
) -> None:
    """Write one interval's rows; ``timestamp`` puts the time of day above a text table.

    ``shown``: what is written for names in text where that is not the whole name. ``by`` and
    ``rates`` are what rows have, if there are any.
    """
    if isinstance(output, JsonOutput):
        output.rows(rows)
        return
    if timestamp:
        ended = rows[0]["ts"] if rows else time.time()
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(ended)))
    if not rows:
        output.nothing()
        return
    # A stack is shown below its row.
    heads = [text for text in by if text != _STACK]
    cells = [[_shown_name(row, shown), *_by_cells(row, heads)] for row in rows]
    found = zip(["FUNC", *heads], *cells, strict=True)
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in found]
    digits = max([_COUNT_WIDTH, *(len(_count(row)) for row in rows)])
    columns, numbers = columns_of(output.out), digits + 1 + _SHARE_WIDTH
    numbers += (_COUNT_WIDTH + 1) * rates + len(widths)
    room = None if columns is None else columns - numbers
    widths = narrowed(widths, room)
    # Names are filled up only if no text has lost a part for it.
    spare = _NAME_WIDTH if room is None else room - sum(widths[1:])
    widths[0] = max(widths[0], min(_NAME_WIDTH, spare))

    def line(names: Sequence[str], count: str, share: str, rate: str) -> str:
        fit = names
        if columns is not None:
            fit = [fitted(names[0], widths[0]), *map(shortened, names[1:], widths[1:])]
        padded = [f"{name:<{width}}" for name, width in zip(fit, widths, strict=True)]
        rated = f" {rate:>{_COUNT_WIDTH}}" if rates else ""
        return f"{' '.join(padded)} {count:>{digits}}{rated} {share:>{_SHARE_WIDTH}}\n"

    output.heading(line(["FUNC", *heads], "COUNT", "SHARE", "PER SEC"))
    for names, row in zip(cells, rows, strict=True):
        rate = four_digits(row["rate"]) if "rate" in row else ""
        output.out.write(line(names, _count(row), f"{row['share']:.1%}", rate))
        if _STACK in by:
            output.out.writelines(_stack_lines(row))
    output.out.write(and_more(rows, lambda row: row["count"]))
    output.out.flush()


def _count(row: Json) -> str:
    """Return the number of calls; that of a function with places that are not counted is larger."""
    return f">= {row['count']}" if row.get("uncounted_places") else str(row["count"])


def _shown_name(row: Json, shown: Mapping[str, str]) -> str:
    name = "(others)" if row["func"] is None else shown.get(row["func"], row["func"])
    if "caller" in row:
        name = f"{name} in {row['caller']} at {row['at'].rpartition('/')[2]}"
    return printable(in_program(row.get("program"), name))


# Values are shown by modules that plain counts do without, to start soon.
def _by_cells(row: Json, by: Sequence[str]) -> list[str]:
    if "by" not in row or not row["by"].values:
        return [""] * len(by)
    from gotrace.values.go_syntax import by_text

    return [by_text(row["by"].values[text]) for text in by]


def _stack_lines(row: Json) -> list[str]:
    from gotrace.report.by import stack_lines

    return [line + "\n" for line in stack_lines(row["by"].values)]
