# SPDX-License-Identifier: Apache-2.0
"""Read sums by interval: what a map cannot have is refused before anything is read."""

from __future__ import annotations

import struct

import pytest

from gotrace.kernel.sums import Counters, Halves, Sums, Word, take_entries, take_rows
from tests.session.maps import FakeMap


@pytest.mark.parametrize("word", [Word.LEAST, Word.MOST])
def test_extremes_are_refused_where_readings_are_subtracted(word: Word) -> None:
    with pytest.raises(ValueError, match=f"no {word.value}: use Halves"):
        Sums(FakeMap(1, 16).map, (Word.SUM, word))


def test_rows_are_taken_once_and_as_they_have_grown() -> None:
    table = FakeMap(8, 16)
    sums = Sums(table.map, (Word.SUM, Word.SUM))
    table.update(b"a", struct.pack("=QQ", 2, 30))
    table.update(b"b", bytes(16))  # a program that has made it is about to add
    assert list(sums.take()) == [(b"a", (2, 30))]
    table.update(b"b", struct.pack("=QQ", 1, 0))
    assert list(sums.take()) == [(b"b", (1, 0))]
    table.update(b"b", struct.pack("=QQ", 1, 7))
    table.update(b"a", struct.pack("=QQ", 3, 35))
    assert sorted(sums.take()) == [(b"a", (1, 5)), (b"b", (0, 7))]
    assert list(sums.take()) == []


def test_counters_are_of_all_cpus() -> None:
    table = FakeMap(3, 16)
    counters = Counters(table.map)
    table.update(bytes([1, 0, 0, 0]), struct.pack("=QQ", 1, 2))
    assert counters.take() == [0, 0, 1, 2, 0, 0]
    table.update(bytes([1, 0, 0, 0]), struct.pack("=QQ", 5, 2))
    assert counters.take() == [0, 0, 4, 0, 0, 0]


def test_programs_are_sent_to_the_other_half() -> None:
    generation = FakeMap(1, 4)
    ended: list[bytes] = []
    halves = Halves(generation.map, 2, lambda: ended.append(generation.rows[bytes(4)]))
    assert [halves.flip(), halves.flip(), halves.flip()] == [0, 1, 0]
    assert ended == [bytes([1, 0, 0, 0]), bytes(4), bytes([1, 0, 0, 0])]  # only then it is read
    assert Halves(FakeMap(0).map, 1).flip() == 0


def test_a_half_is_emptied() -> None:
    array, table = FakeMap(4, 8), FakeMap(4, 8)
    for index, value in ((0, 1), (2, 7), (3, 0)):
        array.update(index.to_bytes(4, "little"), struct.pack("=Q", value))
    assert list(take_entries(array.map, 2, 2)) == [(0, struct.pack("=Q", 7))]
    assert list(take_entries(array.map, 0, 4)) == [(0, struct.pack("=Q", 1))]
    table.rows = {b"a0": b"x", b"b1": b"y", b"c1": b"z"}
    assert list(take_rows(table.map, lambda key: key.endswith(b"1"))) == [
        (b"b1", b"y"),
        (b"c1", b"z"),
    ]
    assert table.rows == {b"a0": b"x"}
