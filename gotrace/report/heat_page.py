# SPDX-License-Identifier: Apache-2.0
"""Draw maps of latency over time as a page: plain SVG, which any browser shows without a network.

The page has no scripts, and its policy refuses whatever would be fetched. A cell says its numbers
where the mouse is on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from gotrace.report.durations import PERCENTILES, duration
from gotrace.report.heat import HeatCell, HeatColumn, HeatMap, HeatRows, legend, level_of, step_of
from gotrace.report.page import page
from gotrace.text import counted, printable

_WIDTH, _LEFT, _TOP = 1000, 76, 6  # of a map without its frame, in pixels; what is around it
_ROWS, _LEAST_HEIGHT, _MOST_HEIGHT = 48, 5, 14
_MOST_WIDTH = 26
_BANDS = 70  # the height of the parts of the time
_CLOCK = 56  # pixels of a time of day
_LABELS = 26  # pixels between two times at the side, at least
_LEVELS = ("#fff0cf", "#fdd98f", "#fcb95a", "#f7923a", "#e96a22", "#cc4516", "#9f2710", "#64120c")
_LINES = {"p50": 0.5, "p99": 0.99}
#: Of parts of the time, the largest first; all further ones have the last.
_PARTS = ("#3b7dd8", "#e0852b", "#4da167", "#b84a62", "#7d5ba6", "#23a6a6", "#8c6d46", "#c9b037")
_PART_OTHERS = "#9a9a9a"
_STYLE = """\
body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: CanvasText; background: Canvas; }
h1 { font-size: 20px; }
h2 { font: bold 14px monospace; margin: 28px 0 2px; overflow-wrap: anywhere; }
p { margin: 2px 0; }
svg { display: block; margin-top: 6px; }
svg text { font: 11px system-ui, sans-serif; fill: CanvasText; opacity: .75; }
.frame { fill: none; stroke: GrayText; }
.p50, .p99 { fill: none; stroke: #1a4fa0; stroke-width: 1.5; }
.p99 { stroke-dasharray: 4 2; }
.key { display: inline-block; width: 11px; height: 11px; margin: 0 4px 0 12px; }"""
_DARK_LINES = ".p50, .p99 { stroke: #7db4ff; }"


def heat_page(
    title: str,
    maps: Sequence[HeatMap],
    columns: Sequence[HeatColumn],
    notes: Sequence[str] = (),
) -> str:
    """Return a page with maps, the first above the others, and notes on calls they do not show."""
    # Few calls are close to the page's own colour, which is dark for readers who want it so.
    dark = "\n".join(_colours("c", _LEVELS[::-1], 1))
    colours = [*_colours("c", _LEVELS, 1), *_colours("d", (*_PARTS, _PART_OTHERS), 0)]
    colours += [f"@media (prefers-color-scheme: dark) {{\n{dark}\n{_DARK_LINES}\n}}"]
    lines = [f"<p>{escape(line)}</p>" for line in _summary(columns if maps else ())]
    lines += [f"<p>{escape(printable(note))}</p>" for note in notes]
    for one in maps:
        lines += _section(one, columns)
    return page(title, "\n".join([_STYLE, *colours]), "\n".join(lines))


def _colours(name: str, colours: Sequence[str], first: int) -> Iterator[str]:
    for number, colour in enumerate(colours, first):
        yield f".{name}{number} {{ fill: {colour}; background: {colour}; }}"


def _summary(columns: Sequence[HeatColumn]) -> Iterator[str]:
    if not columns:
        yield "No calls."
        return
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(columns[0].began))
    end = time.strftime("%H:%M:%S", time.localtime(columns[-1].ended))
    step = duration(step_of(columns) * 1e9)
    yield (
        f"{day} to {end}; a column is {step}. Slow calls are above quick ones. The line is the"
        " median, the dashed one the 99th percentile."
    )


def _section(one: HeatMap, columns: Sequence[HeatColumn]) -> Iterator[str]:
    """Yield the lines of a map: its title, its numbers, the picture, its colours."""
    total = one.total()
    times = total.times
    yield f"<h2>{escape(one.title or 'all functions')}</h2>"
    marks = [f"{mark} = {duration(times.percentile(q))}" for mark, q in PERCENTILES.items()]
    marks = [f"min = {duration(times.minimum)}", *marks, f"max = {duration(times.maximum)}"]
    time_of = f"total {duration(times.sum)}, {100 * one.share:.1f}% of the time"
    yield f"<p>{counted('{:,} call{s}', times.count)}, {time_of}; {', '.join(marks)}</p>"
    rows = HeatRows.of(times.buckets, _ROWS)
    counts = {number: rows.counts(cell.times) for number, cell in one.cells.items()}
    most = max((count for found in counts.values() for count in found.values()), default=0)
    drawing = _Drawing(columns, rows)
    has_parts = bool(total.parts)
    yield drawing.begin(has_parts)
    yield from drawing.side()
    yield from drawing.cells(counts, most)
    yield from drawing.lines(one.cells)
    parts = {name: number for number, (name, _) in enumerate(total.parts.most_common())}
    if has_parts:
        yield from drawing.bands(one.cells, parts)
    yield from drawing.clock(has_parts)
    yield "</svg>"
    keys = [
        f'<span class="key c{level}"></span>from {least:,}'
        for level, least in legend(most, len(_LEVELS))
    ]
    yield f"<p>calls in a cell:{''.join(keys)}</p>"
    if has_parts:
        whole = total.parts.total()
        keys = [
            f'<span class="key {_part_class(parts[name])}"></span>'
            f"{escape(printable(name))} {100 * ns / whole:.1f}%"
            for name, ns in total.parts.most_common()
        ]
        yield f"<p>where the time went:{''.join(keys)}</p>"


def _part_class(number: int) -> str:
    return f"d{min(number, len(_PARTS))}"


class _Drawing:
    """The picture of one map."""

    def __init__(self, columns: Sequence[HeatColumn], rows: HeatRows) -> None:
        self._columns = columns
        self._rows = rows
        self._wide = min(_MOST_WIDTH, max(1, _WIDTH // max(len(columns), 1)))
        self._high = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, 260 // rows.count))
        self._width = self._wide * len(columns)
        self._height = self._high * rows.count

    def begin(self, has_parts: bool) -> str:
        """Return the beginning of the picture, and its frame."""
        width = _LEFT + max(self._width, 130) + 8
        height = _TOP + self._height + 20 + (_BANDS + 8 if has_parts else 0)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
            f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{self._width}"'
            f' height="{self._height}"/>'
        )

    def _x(self, column: int) -> int:
        return _LEFT + column * self._wide

    def _y(self, row: float) -> float:
        return _TOP + self._height - row * self._high

    def side(self) -> Iterator[str]:
        """Yield the times at the side: where rows begin, as many as can be read."""
        each = -(-_LABELS // self._high)
        for row in range(0, self._rows.count, each):
            text = duration(self._rows.bounds(row)[0])
            yield f'<text x="{_LEFT - 6}" y="{self._y(row):g}" text-anchor="end">{text}</text>'

    def cells(self, counts: Mapping[int, Mapping[int, int]], most: int) -> Iterator[str]:
        """Yield the cells that have calls."""
        for column, found in sorted(counts.items()):
            clock = time.strftime("%H:%M:%S", time.localtime(self._columns[column].began))
            for row, count in sorted(found.items()):
                low, high = map(duration, self._rows.bounds(row))
                level = level_of(count, most, len(_LEVELS))
                yield (
                    f'<rect class="c{level}" x="{self._x(column)}" y="{self._y(row + 1):g}"'
                    f' width="{self._wide}" height="{self._high}"><title>{clock}, {low} to {high}:'
                    f" {counted('{:,} call{s}', count)}</title></rect>"
                )

    def lines(self, cells: Mapping[int, HeatCell]) -> Iterator[str]:
        """Yield the lines of percentiles."""
        for name, fraction in _LINES.items():
            points: list[str] = []
            before = -1
            for column, cell in sorted(cells.items()):
                if not cell.times.count:
                    continue
                y = self._y(self._rows.place(cell.times.percentile(fraction)))
                mark = "L" if before == column - 1 and points else "M"
                points.append(f"{mark}{self._x(column)} {y:.1f}h{self._wide}")
                before = column
            yield f'<path class="{name}" d="{"".join(points)}"/>'

    def bands(self, cells: Mapping[int, HeatCell], parts: Mapping[str, int]) -> Iterator[str]:
        """Yield the parts of each column's time, one above the other."""
        top = _TOP + self._height + 8
        yield (
            f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">100%</text>'
            f'<text x="{_LEFT - 6}" y="{top + _BANDS}" text-anchor="end">0%</text>'
            f'<rect class="frame" x="{_LEFT}" y="{top}" width="{self._width}" height="{_BANDS}"/>'
        )
        for column, cell in sorted(cells.items()):
            whole = cell.parts.total()
            y = float(top + _BANDS)
            for name in sorted(cell.parts, key=parts.__getitem__):
                share = cell.parts[name] / whole if whole else 0.0
                if share * _BANDS < 0.05:
                    continue
                y -= share * _BANDS
                text = f"{printable(name)}: {100 * share:.1f}%, {duration(cell.parts[name])}"
                yield (
                    f'<rect class="{_part_class(parts[name])}" x="{self._x(column)}" y="{y:.2f}"'
                    f' width="{self._wide}" height="{share * _BANDS:.2f}">'
                    f"<title>{escape(text)}</title></rect>"
                )

    def clock(self, has_parts: bool) -> Iterator[str]:
        """Yield the times of day below the picture."""
        y = _TOP + self._height + 15 + (_BANDS + 8 if has_parts else 0)
        each = max(1, -(-100 // self._wide))
        for column in range(0, len(self._columns), each):
            if column and self._width - column * self._wide < _CLOCK:
                break
            clock = time.strftime("%H:%M:%S", time.localtime(self._columns[column].began))
            yield f'<text x="{self._x(column)}" y="{y}">{clock}</text>'
