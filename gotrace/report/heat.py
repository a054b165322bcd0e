# SPDX-License-Identifier: Apache-2.0
"""Keep latencies of interval after interval, for maps of latency over time.

A column is an interval, a row some buckets of the histograms, next to each other. There is a map
for each thing that a histogram is of: a function, a goroutine, values. If there are more intervals
than there is room for, each two columns become one, so that what is kept does not grow.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gotrace.gotypes.symbols import shown_names
from gotrace.histogram import Histogram, bucket_bounds
from gotrace.records import dataclass, field
from gotrace.report.durations import of_program
from gotrace.session.latency_rows import Interval, LatencyGroup
from gotrace.session.why.parts import PartSums, take_tracing_out
from gotrace.text import printable

#: An hour of columns of 5 s: more than a screen has, and few megabytes for a hundred maps.
MAX_COLUMNS = 720
#: Further maps are not kept; so many maps nobody looks at.
MAX_MAPS = 1024


class HeatColumn(NamedTuple):
    """When a column ended (s since 1970), and how long it was (s)."""

    ended: float
    seconds: float

    @property
    def began(self) -> float:
        return self.ended - self.seconds


@dataclass(slots=True)
class HeatCell:
    """One column of a map: the times, and their parts, in ns."""

    times: Histogram = field(default_factory=Histogram)
    parts: Counter[str] = field(default_factory=Counter)

    def merge(self, other: HeatCell) -> None:
        """Add another column's times."""
        self.times.merge(other.times)
        self.parts.update(other.parts)


#: The leading digits of the times that rows begin at, times ten, from the finest rows to the
#: coarsest. None are finer than the buckets of histograms.
_MARKS = (
    (10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90),
    (10, 15, 20, 30, 50, 70),
    (10, 20, 50),
    (10, 30),
    (10,),
)
_DECADES = 15  # to 11 days


def _edges(number: int) -> list[int]:
    """Return the times that rows begin at, in ns: the coarser, the higher the number."""
    marks, every = _MARKS[min(number, len(_MARKS) - 1)], max(1, number - len(_MARKS) + 2)
    decades = range(every if every > 1 else 0, _DECADES, every)
    times = (mark * 10**decade for decade in decades for mark in marks)
    return [0, *(time // 10 for time in times if time % 10 == 0), 10**_DECADES]


def _middle(bucket: int) -> int:
    return sum(bucket_bounds(bucket)) // 2


@dataclass(frozen=True, slots=True)
class HeatRows:
    """The rows of a map, numbered from 0, the lowest: row n is from edge n to the next, in ns.

    They begin at round times. A bucket of a histogram is in the row that has its middle.
    """

    edges: Sequence[int]

    @classmethod
    def of(cls, buckets: Iterable[int], most: int) -> HeatRows:
        """Return the finest rows that hold all buckets and are ``most`` at most."""
        used = list(map(_middle, buckets)) or [0]
        for number in itertools.count():
            edges = _edges(number)
            first, end = bisect(edges, min(used)) - 1, bisect(edges, max(used))
            if end - first <= most:
                return cls(edges[first : end + 1])
        raise AssertionError("some rows are coarse enough")

    @property
    def count(self) -> int:
        return len(self.edges) - 1

    def bounds(self, row: int) -> tuple[int, int]:
        """Return the lowest time of a row and that of the next, in ns."""
        return self.edges[row], self.edges[row + 1]

    def counts(self, times: Histogram) -> dict[int, int]:
        """Return the calls of each row that has any."""
        found: Counter[int] = Counter()
        for bucket, count in times.buckets.items():
            found[bisect(self.edges, _middle(bucket)) - 1] += count
        return dict(found)

    def place(self, nanoseconds: float) -> float:
        """Return where a time is: 2.5 is in the middle of row 2."""
        row = bisect(self.edges, nanoseconds) - 1
        if row >= self.count:
            return float(self.count)
        low, high = self.bounds(max(row, 0))
        return max(row, 0) + max(0.0, (nanoseconds - low) / (high - low))


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The times of one thing's calls by column; ``share`` is its part of the time of all maps.

    ``title`` is what it is of: a function, a goroutine, values. It is empty where there is only one
    map, of all functions.
    """

    title: str
    cells: Mapping[int, HeatCell]
    share: float

    def total(self) -> HeatCell:
        """Return the sum of all columns."""
        sums = HeatCell()
        for cell in self.cells.values():
            sums.merge(cell)
        return sums

    def coarser(self, columns: int) -> HeatMap:
        """Return the map with so many columns as one."""
        cells: dict[int, HeatCell] = {}
        for number, cell in self.cells.items():
            cells.setdefault(number // columns, HeatCell()).merge(cell)
        return HeatMap(self.title, cells, self.share)


class _Key(NamedTuple):
    """The subject of a map: as of ``LatencyGroup``, values as they are shown."""

    program: str | None
    function: str | None
    pid: int
    goid: int | None
    by: str | None


class HeatMaps:
    """All maps of a run."""

    def __init__(self, max_columns: int = MAX_COLUMNS) -> None:
        self.columns: list[HeatColumn] = []
        #: Calls of what there was no room for, and of goroutines that are not shown by themselves.
        self.others = 0
        self._max_columns = max_columns
        self._merged = 1  # intervals in a column
        self._in_last = 0
        self._cells: dict[_Key, dict[int, HeatCell]] = {}
        self._goroutines: dict[_Key, str] = {}
        self._short = False

    def add(self, interval: Interval) -> None:
        """Add an interval as the last column."""
        self._short = interval.short
        self._begin_column(interval)
        number = len(self.columns) - 1
        for group in interval.groups:
            key = _key(group)
            if key not in self._cells and len(self._cells) >= MAX_MAPS:
                self.others += group.times.count
                continue
            if group.goroutine is not None:
                self._goroutines[key] = group.goroutine
            cell = self._cells.setdefault(key, {}).setdefault(number, HeatCell())
            cell.merge(HeatCell(group.times, _parts(group)))
        self.others += sum(rest["count"] for rest in interval.rest)

    def _begin_column(self, interval: Interval) -> None:
        if self.columns and self._in_last < self._merged:
            last = self.columns[-1]
            self.columns[-1] = HeatColumn(interval.ended, last.seconds + interval.seconds)
            self._in_last += 1
            return
        if len(self.columns) == self._max_columns:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=True)
            self.columns = [HeatColumn(b.ended, a.seconds + b.seconds) for a, b in pairs]
            self._merged *= 2
            for key, cells in self._cells.items():
                self._cells[key] = dict(HeatMap("", cells, 0).coarser(2).cells)
        self.columns.append(HeatColumn(interval.ended, interval.seconds))
        self._in_last = 1

    def maps(self, top: int | None = None) -> tuple[list[HeatMap], int]:
        """Return the maps with the most time, the largest first, and how many others there are."""
        sums = {
            key: sum(cell.times.sum for cell in cells.values())
            for key, cells in self._cells.items()
        }
        ranked = sorted(sums, key=lambda key: (-sums[key], repr(key)))
        names = (key.function for key in ranked if key.function is not None)
        shown = shown_names(names, self._short)
        whole = sum(sums.values())
        maps = [
            HeatMap(self._title(key, shown), self._cells[key], sums[key] / whole if whole else 0.0)
            for key in ranked[:top]
        ]
        return maps, len(ranked) - len(maps)

    def _title(self, key: _Key, shown: Mapping[str, str]) -> str:
        """Return a map's title, fit to be shown on a terminal."""
        texts = []
        if key.function is not None:
            texts.append(of_program(key.program, shown[key.function]))
        elif key.program is not None:
            texts.append(printable(key.program))
        if key in self._goroutines:
            texts.append(printable(self._goroutines[key]))
        if key.by is not None:
            texts.append(key.by)
        return ", ".join(texts)


def _key(group: LatencyGroup) -> _Key:
    by = None
    if group.by is not None:
        # Shown by modules that other maps do without, to start soon.
        from gotrace.report.by import by_line, stack_lines

        by = " ".join([by_line(group.by), *(line.strip() for line in stack_lines(group.by))])
    return _Key(group.program, group.function, group.pid, group.goid, by)


def _parts(group: LatencyGroup) -> Counter[str]:
    """Return the parts of a group's time; the probes' time is a part by itself."""
    if group.why is None:
        return Counter()
    sums = PartSums()
    for found in group.why.values():
        sums.merge(found)
    parts = {name: part.ns for name, part in sums.parts.items()}
    return Counter(take_tracing_out(parts, group.probe_ns))


def level_of(count: int, most: int, levels: int) -> int:
    """Return how dark a cell is, 1 for one call up to ``levels`` for ``most``, by powers."""
    if count <= 0:
        return 0
    if most <= 1:
        return levels
    return min(levels, 1 + int((levels - 1) * math.log(count) / math.log(most) + 1e-9))


def legend(most: int, levels: int) -> list[tuple[int, int]]:
    """Return each level that some cell can have, and the fewest calls that such a cell has."""
    found = []
    for level in range(1, levels + 1):
        numbers = range(1, max(most, 1) + 1)
        at = bisect_left(numbers, level, key=lambda count: level_of(count, most, levels))
        if level_of(numbers[at], most, levels) == level:
            found.append((level, numbers[at]))
    return found


def step_of(columns: Sequence[HeatColumn]) -> float:
    """Return how long most columns are, in seconds: the last may be shorter."""
    return round(median(column.seconds for column in columns), 2) if columns else 0.0
