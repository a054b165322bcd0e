# SPDX-License-Identifier: Apache-2.0
"""Collect histograms by goroutine while goroutines come, work and go: totals stay exact."""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.histogram import ROW_SIZE
from gotrace.session import goroutines
from gotrace.session.goroutines import Folded, GoroutineKey, GoroutineRows, GoroutineTimes
from tests.session.maps import FakeMap, row_bytes

ROWS = 2
TGID = os.getpid()


class Kernel:
    """Write what programs write, with room for so many goroutines by themselves."""

    def __init__(self, room: int, kept: int = 4096) -> None:
        self.by_goroutine = FakeMap(room, ROW_SIZE + 16)
        self.folded = FakeMap(2 * ROWS)
        self.ended = FakeMap(1000)
        self.named = FakeMap(1000)
        self.half = 0
        self._values: dict[bytes, list[int]] = defaultdict(list)
        self._folded: dict[int, list[int]] = defaultdict(list)
        maps = (self.by_goroutine.map, self.folded.map, self.ended.map, self.named.map)
        self.rows = GoroutineRows(*maps, ROWS, 2, kept)

    def add(self, goid: int, value: int, row: int = 0) -> None:
        number = self.half * ROWS + row
        key = struct.pack("=QII", goid, TGID, number)
        rows = self.by_goroutine.rows
        if key not in rows and len(rows) >= self.by_goroutine.max_entries:
            place = number.to_bytes(4, "little")
            if not any(self.folded.rows.get(place, b"")):
                self._folded[number].clear()  # it was cleared from user space
            self._folded[number].append(value)
            self.folded.update(place, row_bytes(self._folded[number]))
            return
        if key not in rows:
            self._values[key].clear()
        self._values[key].append(value)
        places = struct.pack("=QQ", 1000 + goid, 2000 + goid)
        self.by_goroutine.update(key, row_bytes(self._values[key]) + places)
        self.named.update(struct.pack("=QII", goid, TGID, 0), b"\1")

    def end(self, goid: int) -> None:
        name = struct.pack("=QII", goid, TGID, 0)
        self.ended.queue.append(name)
        self.named.delete(name)

    def interval(self) -> tuple[dict[GoroutineKey, GoroutineTimes], dict[int, Folded]]:
        """Take an interval as LatencyMeter does."""
        self.half = 1 - self.half
        return self.rows.take(1 - self.half)


def key(goid: int, row: int = 0) -> GoroutineKey:
    return GoroutineKey(goid, TGID, row)


def test_goroutines_and_functions_are_told_apart() -> None:
    kernel = Kernel(16)
    for goid, value, row in ((1, 3, 0), (1, 4, 1), (2, 5, 0), (1, 6, 0)):
        kernel.add(goid, value, row)
    period, rest = kernel.rows.take(0)
    assert {name: times.times.sum for name, times in period.items()} == {
        key(1): 9,
        key(1, 1): 4,
        key(2): 5,
    }
    assert (period[key(2)].startpc, period[key(2)].gopc) == (1002, 2002)
    assert rest == {}


def test_second_take_has_only_what_is_new() -> None:
    kernel = Kernel(16)
    kernel.add(1, 3)
    kernel.rows.take(0)
    kernel.add(1, 5)
    kernel.add(2, 7)
    period, _ = kernel.rows.take(0)
    assert {name.goid: (t.times.count, t.times.sum) for name, t in period.items()} == {
        1: (1, 5),
        2: (1, 7),
    }
    assert kernel.rows.take(0) == ({}, {})


def test_goroutine_that_ends_in_the_next_interval() -> None:
    kernel = Kernel(8)
    kernel.add(1, 3)
    kernel.half = 1
    for goid in (1, 2, 3):
        kernel.add(goid, 5)
        kernel.end(goid)
    assert {name.goid: t.times.sum for name, t in kernel.rows.take(0)[0].items()} == {1: 3}
    kernel.rows.harvest()
    assert kernel.by_goroutine.rows == {}
    assert {name.goid: t.times.sum for name, t in kernel.interval()[0].items()} == {
        1: 5,
        2: 5,
        3: 5,
    }


def test_rows_of_ended_goroutines_make_room() -> None:
    kernel = Kernel(8)
    for goid in range(1, 101):
        kernel.add(goid, goid % 16)
        kernel.end(goid)
        kernel.rows.harvest()
        assert len(kernel.by_goroutine.rows) <= 2
    period, rest = kernel.rows.take(0)
    assert {name.goid: times.times.sum for name, times in period.items()} == {
        goid: goid % 16 for goid in range(1, 101)
    }
    assert rest == {}


def test_goroutines_of_ended_processes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(8)
    for goid in range(1, 9):
        kernel.add(goid, goid)
    kernel.rows.end_exited()
    kernel.rows.harvest()
    assert len(kernel.by_goroutine.rows) == 8
    monkeypatch.setattr(goroutines, "ended_processes", set)
    kernel.rows.end_exited()
    assert kernel.named.rows == {}
    kernel.rows.harvest()
    assert kernel.by_goroutine.rows == {}
    period, rest = kernel.rows.take(0)
    assert {name.goid: t.times.sum for name, t in period.items()} == {n: n for n in range(1, 9)}
    assert rest == {}


def test_harvest_ends_though_goroutines_end_faster_than_it_takes_them() -> None:
    kernel = Kernel(room=8)
    asked: list[int] = []

    def pop() -> bytes:
        asked.append(len(asked))
        return struct.pack("=QII", len(asked), TGID, 0)

    kernel.ended.pop = pop  # type: ignore[method-assign]
    kernel.rows.harvest()
    assert 0 < len(asked) <= kernel.ended.max_entries


def test_calls_without_room_are_told_as_such() -> None:
    kernel = Kernel(2)
    for goid in range(1, 8):
        kernel.add(goid, 4, row=1)
    period, rest = kernel.rows.take(0)
    assert set(period) == {key(1, 1), key(2, 1)}
    assert (rest[1].unnamed, rest[1].times.count, rest[1].times.sum) == (5, 5, 20)
    for goid in range(8, 11):
        kernel.add(goid, 7, row=1)
    period, rest = kernel.rows.take(0)
    assert set(period) == {key(8, 1), key(9, 1)}
    assert (rest[1].unnamed, rest[1].times.sum) == (1, 7)


def test_the_busiest_are_kept_when_many_have_ended() -> None:
    kernel = Kernel(4, kept=10)
    for goid in range(1, 101):
        kernel.add(goid, 15 if goid <= 3 else 1)
        kernel.end(goid)
        kernel.rows.harvest()
    period, rest = kernel.rows.take(0)
    assert len(period) <= 11
    assert {key(1), key(2), key(3)} <= set(period)
    assert len(period) + rest[0].goroutines == 100
    assert sum(t.times.sum for t in period.values()) + rest[0].times.sum == 3 * 15 + 97
    assert rest[0].unnamed == 0


steps = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(1, 30),
        st.integers(1, 15),
        st.integers(0, ROWS - 1),
    ),
    st.tuples(st.just("end"), st.integers(1, 30)),
    st.tuples(st.just("harvest")),
    st.tuples(st.just("interval")),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(steps, max_size=60), st.integers(1, 12), st.integers(2, 6))
def test_totals_are_exact_whatever_happens(
    script: list[tuple[object, ...]], room: int, kept: int
) -> None:
    kernel = Kernel(room, kept)
    added: Counter[tuple[int, str]] = Counter()
    gone: set[object] = set()

    def interval() -> None:
        taken: Counter[tuple[int, str]] = Counter()
        period, rests = kernel.interval()
        for name, goroutine in period.items():
            taken[name.row, "count"] += goroutine.times.count
            taken[name.row, "sum"] += goroutine.times.sum
        for row, rest in rests.items():
            taken[row, "count"] += rest.times.count
            taken[row, "sum"] += rest.times.sum
        assert +taken == +added
        added.clear()

    for step in script:
        match step:
            case ("add", int(goid), int(value), int(row)) if goid not in gone:
                kernel.add(goid, value, row)
                added[row, "count"] += 1
                added[row, "sum"] += value
            case ("end", int(goid)) if goid not in gone:
                kernel.end(goid)
                gone.add(goid)
            case ("harvest",):
                kernel.rows.harvest()
            case ("interval",):
                interval()
    interval()
    interval()
