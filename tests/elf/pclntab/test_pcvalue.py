# SPDX-License-Identifier: Apache-2.0
"""Decode pc-value tables that this test encodes, and any other bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.elf import ElfError
from gotrace.elf.pclntab.pcvalue import (
    first_value,
    runs_within,
    value_at,
    values_at,
)
from tests.elf.pclntab.go116 import encode_runs

WHOLE = 1 << 40  # bytes, more than any function has

#: (length, value) of runs; two neighbours never have the same value.
RUNS = st.lists(
    st.tuples(st.integers(1, 1 << 20), st.integers(-1, (1 << 30) - 1)), min_size=1, max_size=40
).filter(lambda runs: all(a[1] != b[1] for a, b in pairwise(runs)))


def with_ends(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    end = 0
    return [(end := end + length, value) for length, value in runs]


@given(RUNS, st.binary(max_size=8))
def test_what_was_encoded_is_decoded(runs: list[tuple[int, int]], before: bytes) -> None:
    expected = with_ends(runs)
    data, start = before + encode_runs(expected) + b"\xff", len(before)
    assert list(zip(*runs_within(data, start, 1, WHOLE), strict=True)) == expected
    assert runs_within(data, start, 4, WHOLE)[0] == [4 * end for end, _ in expected]
    assert first_value(data, start) == expected[0][1]
    offsets = [offset for end, _ in expected for offset in (end - 1, end)]
    values = values_at(data, start, 1, offsets)
    assert values == [value_at(data, start, 1, offset) for offset in offsets]
    assert values[::2] == [value for _, value in expected]
    assert values[1::2] == [*(value for _, value in expected[1:]), -1]


@given(RUNS, st.integers(1, 1 << 22))
def test_runs_are_decoded_as_far_as_the_function_goes(
    runs: list[tuple[int, int]], size: int
) -> None:
    whole = with_ends(runs)
    before = sum(end < size for end, _ in whole)
    expected = whole[: before + 1]
    data = encode_runs(whole)
    ends, values = runs_within(data, 0, 1, size)
    assert list(zip(ends, values, strict=True)) == expected
    assert runs_within(data, 0, 1, size, len(whole) + 1) == (ends, values)
    if len(expected) > 1:
        with pytest.raises(ElfError, match="too many"):
            runs_within(data, 0, 1, size, len(expected) - 1)


@given(st.binary(max_size=64))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        ends, _ = runs_within(data, 0, 1, WHOLE)
    except ElfError:
        return
    assert all(before < end for before, end in pairwise([0, *ends]))
    assert ends and 0 in data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a pc-value table of the Go function table runs out of the file"),
        (b"\2", "runs out"),
        (b"\2\1\2", "runs out"),
        (b"\2\0", "does not advance"),
        (b"\2\xff\xff\xff\xff\xff\xff\1", "a number in the Go function table is too long"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        runs_within(data, 0, 1, WHOLE)
