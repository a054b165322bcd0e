"""Read histograms by interval while programs go on writing: all comes, and comes once."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.session.histograms import HistogramRows, stripes_for
from tests.session.maps import FakeMap, row_bytes

ROWS, STRIPES = 3, 2


class Kernel:
    """Write what programs write, also to the half that was current a moment ago."""

    def __init__(self, halves: int) -> None:
        self.histograms = FakeMap(halves * ROWS * STRIPES)
        self.generation = FakeMap(1, 4)
        self.generation.update(bytes(4), bytes(4))
        self.values: dict[int, list[int]] = defaultdict(list)
        self.rows = HistogramRows(self.histograms.map, self.generation.map, ROWS, halves, STRIPES)

    @property
    def half(self) -> int:
        return int.from_bytes(self.generation.rows[bytes(4)], "little")

    def add(self, row: int, stripe: int, value: int, half: int | None = None) -> None:
        index = ((self.half if half is None else half) * ROWS + row) * STRIPES + stripe
        if not any(self.histograms.rows.get(index.to_bytes(4, "little"), b"")):
            self.values[index].clear()  # it was cleared from user space
        self.values[index].append(value)
        self.histograms.update(index.to_bytes(4, "little"), row_bytes(self.values[index]))

    def interval(self) -> dict[int, Histogram]:
        """Take an interval as LatencyMeter does."""
        written = self.rows.written
        taken = self.rows.settle()
        self.rows.flip()
        for row, histogram in self.rows.read(written).items():
            taken.setdefault(row, Histogram()).merge(histogram)
        return taken


def test_stripes_of_a_row_are_one() -> None:
    kernel = Kernel(1)
    kernel.add(1, 0, 3)
    kernel.add(1, 1, 9)
    taken = kernel.rows.read(0)
    assert set(taken) == {1}
    assert (taken[1].count, taken[1].sum, taken[1].minimum, taken[1].maximum) == (2, 12, 3, 9)


def test_programs_are_sent_to_the_other_half() -> None:
    kernel = Kernel(2)
    assert kernel.rows.written == kernel.half == 0
    kernel.rows.flip()
    assert kernel.rows.written == kernel.half == 1


def test_minimum_and_maximum_are_of_the_interval() -> None:
    kernel = Kernel(2)
    for value in (1, 15, 7, 8):
        kernel.add(0, 0, value)
        if value == 15:
            assert (kernel.interval()[0].minimum, kernel.interval()) == (1, {})
    third = kernel.interval()[0]
    assert (third.count, third.minimum, third.maximum) == (2, 7, 8)


def test_what_comes_late_belongs_to_the_next_interval() -> None:
    kernel = Kernel(2)
    kernel.add(2, 0, 5)
    assert kernel.interval()[2].count == 1
    kernel.add(2, 0, 6, half=0)  # held up since before the flip
    kernel.add(2, 1, 7)
    assert kernel.interval()[2].sum == 6 + 7
    assert kernel.interval() == {}


writes = st.tuples(
    st.integers(0, ROWS - 1), st.integers(0, STRIPES - 1), st.integers(0, 15), st.booleans()
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | writes, max_size=40))
def test_nothing_is_lost_and_nothing_comes_twice(
    steps: list[tuple[int, int, int, bool] | None],
) -> None:
    kernel = Kernel(2)
    written: dict[int, list[int]] = defaultdict(list)
    taken: dict[int, Histogram] = {}
    flipped = False
    for step in [*steps, None, None]:
        if step is None:
            flipped = True
            for row, histogram in kernel.interval().items():
                taken.setdefault(row, Histogram()).merge(histogram)
        else:
            row, stripe, value, late = step
            kernel.add(row, stripe, value, half=1 - kernel.half if late and flipped else None)
            written[row].append(value)
    assert {row: (t.count, t.sum, t.minimum, t.maximum) for row, t in taken.items()} == {
        row: (len(v), sum(v), min(v), max(v)) for row, v in written.items()
    }


@pytest.mark.parametrize(
    ("rows", "halves", "cpus", "stripes"), [(1, 1, 4, 4), (1, 2, 512, 512), (10_000, 2, 64, 1)]
)
def test_stripes_are_bounded_by_cpus_and_memory(
    rows: int, halves: int, cpus: int, stripes: int
) -> None:
    assert stripes_for(rows, halves, cpus) == stripes
    assert rows * halves * stripes * ROW_SIZE <= 128 << 20
