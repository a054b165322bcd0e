# SPDX-License-Identifier: Apache-2.0
"""Read histograms out of BPF maps by interval, without losing calls that end meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.program import Map

_MAX_BYTES = 64 << 20


def stripes_for(rows: int, halves: int, cpus: int) -> int:
    """Return how many copies of each histogram to keep, at most one for each CPU.

    CPUs that share a copy slow one another down a little; many rows would need much memory.
    """
    return max(1, min(cpus, _MAX_BYTES // (rows * halves * ROW_SIZE)))


class HistogramRows:
    """The map ``histograms`` of bpf/latency.c: ``halves`` times ``rows`` times ``stripes``.

    With two halves the programs write one while the other is read.
    """

    def __init__(
        self,
        histograms: Map,
        generation: Map,
        rows: int,
        halves: int,
        stripes: int,
        wait: Callable[[], None] = kernel.wait_for_programs,
        row_size: int = ROW_SIZE,
    ) -> None:
        """Take over the maps; ``wait`` returns when all programs that run now have ended."""
        self._map = histograms
        self._generation = generation
        self._rows = rows
        self._stripes = stripes
        self._halves = halves
        self._half = 0
        self._wait = wait
        self._has_taken = False
        self._empty = bytes(row_size)

    @property
    def halves(self) -> int:
        """Return how many halves there are: 2 where a run is divided into intervals."""
        return self._halves

    def has_any(self) -> bool:
        """Return whether anything has been added so far."""
        size = self._halves * self._rows * self._stripes
        found = (any(value[:8]) for _, value in self._map.array_range(0, size))
        return self._has_taken or any(found)

    def flip(self) -> int:
        """Make the programs write the other half and return the one that none writes any more."""
        before = self._half
        self._half = 1 - before
        self._generation.update(bytes(4), self._half.to_bytes(4, "little"))
        self._wait()
        return before

    def take(self, half: int) -> dict[int, Histogram]:
        """Return, by row, all that a half holds, and clear it for its next turn."""
        taken: dict[int, Histogram] = {}
        size = self._rows * self._stripes
        for index, value in self._map.array_range(half * size, size):
            if any(value[:8]):
                self._has_taken = True
                row = index // self._stripes % self._rows
                taken.setdefault(row, Histogram()).merge(Histogram.from_row(value))
                self._map.update(index.to_bytes(4, "little"), self._empty)
        return taken
