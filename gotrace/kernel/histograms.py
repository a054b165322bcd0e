# SPDX-License-Identifier: Apache-2.0
"""Read histograms out of BPF maps by interval."""

from __future__ import annotations

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.kernel.program import Map
from gotrace.kernel.sums import take_entries

_MAX_BYTES = 64 << 20


def stripes_for(rows: int, halves: int, cpus: int) -> int:
    """Return how many copies of each histogram to keep, at most one for each CPU.

    CPUs that share a copy slow one another down a little; many rows would need much memory.
    """
    return max(1, min(cpus, _MAX_BYTES // (rows * halves * ROW_SIZE)))


class HistogramRows:
    """The map ``histograms`` of bpf/histogram.h: ``rows`` times ``stripes`` of each half."""

    def __init__(self, histograms: Map, rows: int, stripes: int) -> None:
        self._map = histograms
        self._rows = rows
        self._stripes = stripes
        self._has_taken = False

    def has_any(self) -> bool:
        """Return whether anything has been added so far."""
        found = (any(value[:8]) for _, value in self._map.array_range(0, self._map.max_entries))
        return self._has_taken or any(found)

    def take(self, half: int) -> dict[int, Histogram]:
        """Return, by row, all that a half holds, and clear it for its next turn."""
        taken: dict[int, Histogram] = {}
        size = self._rows * self._stripes
        for index, value in take_entries(self._map, half * size, size):
            row = taken.setdefault(index // self._stripes, Histogram())
            row.merge(Histogram.from_row(value))
        self._has_taken = self._has_taken or bool(taken)
        return taken
