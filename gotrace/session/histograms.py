"""Read histograms out of BPF maps by interval, without losing what comes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.session.program import Map

__all__ = ["HistogramRows", "stripes_for"]

_MOST_BYTES = 64 << 20
_EMPTY = bytes(ROW_SIZE)


def stripes_for(rows: int, halves: int, cpus: int) -> int:
    """Return how many copies of each histogram to keep, at most one for each CPU.

    CPUs that share a copy slow one another down a little; many rows would need much memory.
    """
    return max(1, min(cpus, _MOST_BYTES // (rows * halves * ROW_SIZE)))


class HistogramRows:
    """Read the map ``histograms`` of bpf/latency.c: ``halves`` times ``rows`` times ``stripes``.

    With two halves the programs write one while the other is read. A program that was held up
    between looking up the half and writing to it writes to the one already read; what it adds is
    found, and counted, before that half is cleared for its next turn.
    """

    def __init__(
        self, histograms: Map, generation: Map, rows: int, halves: int, stripes: int
    ) -> None:
        self._map = histograms
        self._generation = generation
        self._rows = rows
        self._stripes = stripes
        self._halves = halves
        self._half = 0
        self._read: dict[int, Histogram] = {}  # of the half that is not written, by map index

    @property
    def halves(self) -> int:
        """Return how many halves there are: 2 where a run is divided into intervals."""
        return self._halves

    @property
    def written(self) -> int:
        """Return which half the programs write."""
        return self._half

    def settle(self) -> dict[int, Histogram]:
        """Return, by row, what came late to the half read last, and clear it for its next turn."""
        late: dict[int, Histogram] = {}
        for index, now in self._nonempty(1 - self._half):
            before = self._read.get(index)
            self._add(late, index, now.since(before) if before else now)
            self._map.update(index.to_bytes(4, "little"), _EMPTY)
        self._read = {}
        return late

    def flip(self) -> None:
        """Make the programs write the other half, which ``settle`` has cleared."""
        self._half = 1 - self._half
        self._generation.update(bytes(4), self._half.to_bytes(4, "little"))

    def read(self, half: int) -> dict[int, Histogram]:
        """Return, by row, all that a half holds."""
        taken: dict[int, Histogram] = {}
        self._read = dict(self._nonempty(half))
        for index, histogram in self._read.items():
            self._add(taken, index, histogram)
        return taken

    def _add(self, taken: dict[int, Histogram], index: int, histogram: Histogram) -> None:
        row = index // self._stripes % self._rows
        if histogram.count:
            taken.setdefault(row, Histogram()).merge(histogram)

    def _nonempty(self, half: int) -> Iterator[tuple[int, Histogram]]:
        size = self._rows * self._stripes
        for index, value in self._map.array_range(half * size, size):
            if any(value[:8]):
                yield index, Histogram.from_row(value)
