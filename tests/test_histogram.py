# SPDX-License-Identifier: Apache-2.0
"""Log-linear histograms: their buckets, and what is told from them, against exact figures."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.errors import UsageError
from gotrace.histogram import (
    BUCKETS,
    ROW_SIZE,
    UNIT_ROWS,
    Histogram,
    ValueHistogram,
    bucket_bounds,
)


def bucket_of(value: int, last: int = 43) -> int:
    """Find the bucket of a value in bpf/histogram.h's words: 16 steps in each octave."""
    if value < 16:
        return value
    exponent = value.bit_length() - 1
    if exponent > last:
        return BUCKETS - 1
    return (exponent - 3) * 16 + (value >> (exponent - 4)) % 16


def of(values: list[int], last: int = 43) -> Histogram:
    histogram = Histogram(len(values), sum(values), min(values, default=0), max(values, default=0))
    histogram.buckets.update(bucket_of(value, last) for value in values)
    return histogram


def row(
    count: int,
    total: int,
    least: int,
    most: int,
    buckets: dict[int, int],
    units: dict[int, int],
    hits: int = 0,
) -> bytes:
    cells = [buckets.get(i, 0) for i in range(BUCKETS)] + [units.get(i, 0) for i in range(64)]
    inverted = (1 << 64) - 1 - least if count else 0
    return struct.pack(f"<5Q{len(cells)}Q", count, total, inverted, most, hits, *cells)


@pytest.mark.parametrize(
    ("bucket", "low", "high"),
    [
        (0, 0, 1),
        (15, 15, 16),
        (16, 16, 17),
        (31, 31, 32),
        (32, 32, 34),
        (47, 62, 64),
        (48, 64, 68),
        (112, 1024, 1088),
        (BUCKETS - 1, 31 << 39, 1 << 44),
    ],
)
def test_buckets_are_sixteen_to_an_octave(bucket: int, low: int, high: int) -> None:
    assert bucket_bounds(bucket) == (low, high)


def test_buckets_leave_no_gap() -> None:
    bounds = [bucket_bounds(bucket) for bucket in range(BUCKETS)]
    assert [high for _, high in bounds[:-1]] == [low for low, _ in bounds[1:]]
    assert all(high - low <= max(1, low / 16) for low, high in bounds)


@given(st.integers(0, (1 << 44) - 1))
def test_each_value_lies_in_its_bucket(value: int) -> None:
    low, high = bucket_bounds(bucket_of(value))
    assert low <= value < high


@given(st.lists(st.integers(0, 1 << 50)))
def test_values_are_added_as_in_the_kernel(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert histogram == of(values)


def test_a_row_of_the_map_is_decoded() -> None:
    assert UNIT_ROWS == 64
    raw = row(5, 1000, 7, 600, {7: 1, 30: 3, BUCKETS - 1: 1}, {0: 2, 63: 3})
    assert len(raw) == ROW_SIZE
    histogram = Histogram.from_row(memoryview(raw))
    assert (histogram.count, histogram.sum) == (5, 1000)
    assert (histogram.minimum, histogram.maximum) == (7, 600)
    assert histogram.buckets == {7: 1, 30: 3, BUCKETS - 1: 1}
    assert histogram.units == {0: 2, 63: 3}


def test_an_empty_row_has_a_minimum_of_zero() -> None:
    assert Histogram.from_row(bytes(ROW_SIZE)) == Histogram()


def test_a_minimum_of_zero_is_not_taken_for_none() -> None:
    histogram = Histogram.from_row(row(2, 10, 0, 10, {0: 1, 10: 1}, {}))
    histogram.merge(of([5]))
    assert histogram.minimum == 0


@given(st.lists(st.integers(0, 1 << 43)), st.lists(st.integers(0, 1 << 43)))
def test_merging_gives_the_histogram_of_all(first: list[int], second: list[int]) -> None:
    merged = of(first)
    merged.merge(of(second))
    assert merged == of(first + second)


def test_means_and_percentiles_of_nothing_are_zero() -> None:
    assert Histogram().mean == 0
    assert Histogram().percentile(0.5) == 0
    assert list(Histogram().ranges()) == []


def test_small_values_have_exact_percentiles_by_nearest_rank() -> None:
    histogram = of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    marks = (0.0, 0.1, 0.11, 0.5, 0.51, 0.9, 0.99, 1.0)
    assert [histogram.percentile(mark) for mark in marks] == [1, 1, 2, 5, 6, 9, 10, 10]
    assert histogram.mean == 5.5


@given(st.lists(st.integers(0, (1 << 44) - 1), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1]))
def test_percentiles_are_near_the_exact_ones(values: list[int], fraction: float) -> None:
    exact = sorted(values)[max(1, math.ceil(len(values) * fraction)) - 1]
    shown = of(values).percentile(fraction)
    assert abs(shown - exact) <= 0.032 * exact
    assert min(values) <= shown <= max(values)


def test_octaves_are_those_of_a_log2_histogram() -> None:
    assert of([0, 1, 2, 3, 4, 1023, 1024, 1025]).octaves() == {0: 2, 1: 2, 2: 1, 9: 1, 10: 2}


def test_ranges_ascend_and_leave_out_empty_buckets() -> None:
    assert list(of([1100, 3, 3, 33]).ranges()) == [(3, 4, 2), (32, 34, 1), (1088, 1152, 1)]


def test_a_row_for_tables_and_one_for_notebooks() -> None:
    histogram = of([5, 6, 100, 1000])
    row = histogram.to_dict()
    assert (row["count"], row["sum_ns"], row["min_ns"], row["max_ns"]) == (4, 1111, 5, 1000)
    assert (row["p50_ns"], row["p999_ns"]) == (6, histogram.percentile(0.999))
    html = histogram._repr_html_()
    assert "<td>4 - 7</td><td>2</td>" in html
    assert "<td>8 - 15</td><td>0</td>" in html
    assert html.count("<tr>") == 1 + 8  # from 4 to 1023
    assert Histogram()._repr_html_().count("<tr>") == 1


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_values_of_both_signs(values: list[int]) -> None:
    sides = [[v for v in values if v >= 0], [-v for v in values if v < 0]]
    both = ValueHistogram(of(sides[0], 63), of(sides[1], 63))
    assert (both.count, both.sum) == (len(values), sum(values))
    assert (both.minimum, both.maximum) == (min(values), max(values))
    for low, high, count in both.ranges():
        assert count == sum(low <= value < high for value in values)
    rows = both.octaves()
    assert sum(count for *_, count in rows) == len(values)
    for low, high, count in rows:
        assert count == sum(low <= value <= high for value in values)
    ranked = sorted(values)
    for fraction in (0.01, 0.5, 0.9, 1.0):
        exact = ranked[max(1, -(-len(values) * round(fraction * 1_000_000) // 1_000_000)) - 1]
        assert abs(both.percentile(fraction) - exact) <= abs(exact) / 16 + 1


def test_percentiles_are_percentages_or_fractions() -> None:
    values = of(list(range(1, 1001)))
    for percentage, fraction in ((99, 0.99), (50, 0.5), (99.9, 0.999), (100, 1.0), (0, 0.0)):
        assert values.percentile(percentage) == values.percentile(fraction)
    assert values.percentile(50) == pytest.approx(500, rel=0.07)


@pytest.mark.parametrize("percentile", [100.1, 101, -0.5, math.nan])
def test_other_percentiles_are_refused(percentile: float) -> None:
    for values in (Histogram(), ValueHistogram()):
        with pytest.raises(UsageError, match="give 0"):
            values.percentile(percentile)


def test_parts_of_the_time_are_merged_and_add_up() -> None:
    first, second = Histogram(2, 30, 10, 20), Histogram(1, 7, 7, 7)
    first.why, second.why = {"running": 20, "blocked: sleep": 10}, {"running": 4, "runnable": 3}
    merged = Histogram()
    for part in (first, second, Histogram()):
        merged.merge(part)
    assert merged.why == {"running": 24, "blocked: sleep": 10, "runnable": 3}
    assert first.why == {"running": 20, "blocked: sleep": 10}
    merged.merge(Histogram(1, 5, 5, 5))
    assert merged.why["unknown"] == 5
    assert sum(merged.why.values()) == merged.sum == 42


def test_what_it_shows_is_a_line() -> None:
    histogram = Histogram()
    assert repr(histogram) == "Histogram(count=0, sum=0, minimum=0, maximum=0)"
    histogram.add(7)
    assert repr(histogram) == "Histogram(count=1, sum=7, minimum=7, maximum=7, p50=7, p99=7)"
