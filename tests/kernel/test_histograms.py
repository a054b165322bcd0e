# SPDX-License-Identifier: Apache-2.0
"""Read histograms by interval while programs go on writing: all comes, and comes once."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.kernel.histograms import HistogramRows, stripes_for
from gotrace.kernel.sums import Halves
from tests.session.maps import FakeMap, row_bytes

ROWS, STRIPES = 3, 2


class Kernel:
    """Write what programs write; one may be held up between looking up the half and writing."""

    def __init__(self, halves: int) -> None:
        self.histograms = FakeMap(halves * ROWS * STRIPES)
        self.generation = FakeMap(1, 4)
        self.generation.update(bytes(4), bytes(4))
        self.values: dict[int, list[int]] = defaultdict(list)
        self.held_up: list[tuple[int, int, int, int]] = []
        self.halves = Halves(self.generation.map, halves, self.let_programs_end)
        self.rows = HistogramRows(self.histograms.map, ROWS, STRIPES)

    @property
    def half(self) -> int:
        return int.from_bytes(self.generation.rows[bytes(4)], "little")

    def add(self, row: int, stripe: int, value: int, held_up: bool = False) -> None:
        self.held_up.append((self.half, row, stripe, value))
        if not held_up:
            self.let_programs_end()

    def let_programs_end(self) -> None:
        for half, row, stripe, value in self.held_up:
            index = (half * ROWS + row) * STRIPES + stripe
            if not any(self.histograms.rows.get(index.to_bytes(4, "little"), b"")):
                self.values[index].clear()  # it was cleared from user space
            self.values[index].append(value)
            self.histograms.update(index.to_bytes(4, "little"), row_bytes(self.values[index]))
        self.held_up.clear()

    def interval(self) -> dict[int, Histogram]:
        """Take an interval as LatencyMeter does."""
        return self.rows.take(self.halves.flip())


def test_stripes_of_a_row_are_one() -> None:
    kernel = Kernel(1)
    kernel.add(1, 0, 3)
    kernel.add(1, 1, 9)
    taken = kernel.interval()
    assert set(taken) == {1}
    assert (taken[1].count, taken[1].sum, taken[1].minimum, taken[1].maximum) == (2, 12, 3, 9)


def test_minimum_and_maximum_are_of_the_interval() -> None:
    kernel = Kernel(2)
    for value in (1, 15, 7, 8):
        kernel.add(0, 0, value)
        if value == 15:
            assert (kernel.interval()[0].minimum, kernel.interval()) == (1, {})
    third = kernel.interval()[0]
    assert (third.count, third.minimum, third.maximum) == (2, 7, 8)


writes = st.tuples(
    st.integers(0, ROWS - 1), st.integers(0, STRIPES - 1), st.integers(0, 15), st.booleans()
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | writes, max_size=40))
def test_each_interval_has_its_own_calls(
    steps: list[tuple[int, int, int, bool] | None],
) -> None:
    kernel = Kernel(2)
    written: dict[int, list[int]] = defaultdict(list)
    for step in [*steps, None, None]:
        if step is None:
            taken = kernel.interval()
            assert {row: (t.count, t.sum, t.minimum, t.maximum) for row, t in taken.items()} == {
                row: (len(v), sum(v), min(v), max(v)) for row, v in written.items()
            }
            written.clear()
        else:
            row, stripe, value, held_up = step
            kernel.add(row, stripe, value, held_up)
            written[row].append(value)


@pytest.mark.parametrize(
    ("rows", "halves", "cpus", "stripes"), [(1, 1, 4, 4), (1, 2, 512, 512), (10_000, 2, 64, 1)]
)
def test_stripes_are_bounded_by_cpus_and_memory(
    rows: int, halves: int, cpus: int, stripes: int
) -> None:
    assert stripes_for(rows, halves, cpus) == stripes
    assert rows * halves * stripes * ROW_SIZE <= 128 << 20
