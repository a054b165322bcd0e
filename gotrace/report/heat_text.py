# SPDX-License-Identifier: Apache-2.0
"""Write maps of latency over time on a terminal.

Slow calls are above quick ones, and time goes to the right. Below a map there is a line for each
part of the time, with its share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TextIO

from gotrace.records import dataclass
from gotrace.report.durations import PERCENTILES, duration
from gotrace.report.heat import HeatColumn, HeatMap, HeatRows, legend, level_of, step_of
from gotrace.text import counted

_BLOCKS = (" ░▒▓█", " ▁▂▃▄▅▆▇█")
_ASCII = (" .:+#", " 12345678")
#: Parameters of Select Graphic Rendition, by level: from blue to red.
_COLOURS = ("", "34", "36", "33", "31")
_LABEL = 10
_LEAST_SHARE = 0.01  # of a part that has a line


@dataclass(frozen=True, slots=True)
class HeatStyle:
    """How maps are drawn: as wide as the terminal, in at most so many rows each.

    ``blocks``: with characters that only Unicode has.
    """

    width: int = 80
    rows: int = 16
    blocks: bool = True
    colour: bool = False

    @classmethod
    def for_stream(cls, out: TextIO, width: int, rows: int, colour: bool) -> HeatStyle:
        """Return the style for a stream, whose encoding may not have all characters."""
        try:
            "".join(_BLOCKS).encode(out.encoding or "ascii")
            blocks = True
        except (LookupError, UnicodeError):
            blocks = False
        return cls(width, rows, blocks, colour)


def heat_lines(
    maps: Sequence[HeatMap], columns: Sequence[HeatColumn], style: HeatStyle
) -> Iterator[str]:
    """Yield the lines of maps; if there are more columns than fit, some of them are one."""
    room = max(style.width - _LABEL - 2, 8)
    joined = max(1, -(-len(columns) // room))
    for one in maps:
        yield ""
        yield from _map_lines(one.coarser(joined), columns, joined, style)


def _map_lines(
    one: HeatMap, columns: Sequence[HeatColumn], joined: int, style: HeatStyle
) -> Iterator[str]:
    total = one.total()
    times = total.times
    if one.title:
        yield one.title
    marks = [f"{mark} = {duration(times.percentile(q))}" for mark, q in PERCENTILES.items()]
    calls = counted("{:,} call{s}", times.count)
    yield (
        f"{calls}, total {duration(times.sum)} ({100 * one.share:.0f}%),"
        f" {', '.join(marks)}, max = {duration(times.maximum)}"
    )
    rows = HeatRows.of(times.buckets, style.rows)
    counts = {number: rows.counts(cell.times) for number, cell in one.cells.items()}
    most = max((count for found in counts.values() for count in found.values()), default=0)
    width = -(-len(columns) // joined)
    signs = (_BLOCKS if style.blocks else _ASCII)[0]
    for row in reversed(range(rows.count)):
        levels = [
            level_of(counts.get(number, {}).get(row, 0), most, len(signs) - 1)
            for number in range(width)
        ]
        yield f"{duration(rows.bounds(row)[0]):>{_LABEL}} |{_painted(levels, signs, style)}|"
    yield from _clock_line(columns, width)
    step = step_of(columns) * joined
    quoted = ", ".join(
        f"{signs[level]} from {least:,}" for level, least in legend(most, len(signs) - 1)
    )
    yield f"{'':>{_LABEL}}  a column is {duration(step * 1e9)}; calls in a cell: {quoted}"
    whole = total.parts.total()
    bars = (_BLOCKS if style.blocks else _ASCII)[1]
    for name, ns in total.parts.most_common():
        if ns < _LEAST_SHARE * whole:
            continue
        shares = []
        for number in range(width):
            parts = one.cells[number].parts if number in one.cells else {}
            sums = sum(parts.values())
            share = parts.get(name, 0) / sums if sums else 0.0
            shares.append(-int(-share * (len(bars) - 1) // 1))
        yield f"{100 * ns / whole:>{_LABEL - 1}.0f}% |{''.join(bars[s] for s in shares)}| {name}"


def _painted(levels: Sequence[int], signs: str, style: HeatStyle) -> str:
    texts = []
    for level, run in groupby(levels):
        text = signs[level] * len(list(run))
        texts.append(f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if style.colour and level else text)
    return "".join(texts)


def _clock_line(columns: Sequence[HeatColumn], width: int) -> Iterator[str]:
    """Yield the times of day at both ends of a map."""
    if columns:
        first, last = (
            time.strftime("%H:%M:%S", time.localtime(when))
            for when in (columns[0].began, columns[-1].ended)
        )
        gap = max(1, width - len(first) - len(last))
        yield f"{'':>{_LABEL}}  {first}{' ' * gap}{last}"
