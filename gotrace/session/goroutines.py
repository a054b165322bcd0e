# SPDX-License-Identifier: Apache-2.0
"""Collect histograms per goroutine, in bounded memory however many goroutines come and go."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.kernel.program import Map
from gotrace.kernel.sums import take_entries
from gotrace.records import dataclass, field
from gotrace.session.why.parts import PartSums
from gotrace.target.process import ended_processes

#: Set in ``GoroutineKey.tgid`` where the process has no number in this pid namespace.
OTHER_NAMESPACE = 1 << 31

_KEY = struct.Struct("=QII")  # struct goroutine_key of bpf/latency.c
_PLACES = struct.Struct("=QQ")  # startpc, gopc, after the histogram in struct goroutine_row


@dataclass(frozen=True, slots=True)
class GoroutineKey:
    """A goroutine of a process and the function that was measured (its row; 0 for all)."""

    goid: int
    tgid: int
    row: int

    @property
    def pid(self) -> int:
        """Return the process's number, 0 where it has none in this pid namespace."""
        return 0 if self.tgid & OTHER_NAMESPACE else self.tgid


@dataclass
class GoroutineTimes:
    """A goroutine's times; ``startpc`` and ``gopc`` are run-time addresses, 0 if unknown.

    ``why`` is what the times went into, empty where that was not asked for.
    """

    startpc: int
    gopc: int
    times: Histogram = field(default_factory=Histogram)
    why: PartSums = field(default_factory=PartSums)


@dataclass
class Folded:
    """The sum of goroutines that had to be folded together, for one row.

    ``unnamed`` are calls that the kernel folded, of goroutines that it had no room to keep apart.
    """

    goroutines: int = 0
    times: Histogram = field(default_factory=Histogram)
    unnamed: int = 0


class GoroutineRows:
    """The maps ``by_goroutine``, ``folded``, ``ended`` and ``named`` of bpf/latency.c.

    A row is only ever written by its own goroutine (that of goroutine 0 by all threads that have
    none), so that the rows of one that has ended can be taken out at any time. Those are kept here,
    the ``kept`` with the most total time each by itself and the others in sum.
    """

    def __init__(
        self,
        by_goroutine: Map,
        folded: Map,
        ended: Map,
        named: Map,
        rows: int,
        halves: int,
        kept: int = 4096,
        names: Sequence[str] = (),
    ) -> None:
        """Take over the maps; ``rows`` and ``halves`` are the settings of bpf/latency.c.

        ``names`` are those of the parts of times, empty where these are not asked for.
        """
        self._names = names
        self._map = by_goroutine
        self._folded = folded
        self._ended = ended
        self._named = named
        self._rows = rows
        self._numbers = rows * halves
        self._kept = kept
        self._gone: set[tuple[int, int]] = set()  # goid, tgid of ended goroutines with rows left
        self._period: dict[GoroutineKey, GoroutineTimes] = {}
        self._rest: dict[int, Folded] = {}

    def harvest(self) -> None:
        """Learn which goroutines have ended, and make room when that is a good part of the rows.

        To be called some ten times a second.
        """
        for _ in range(self._ended.max_entries):  # those that come meanwhile wait
            value = self._ended.pop()
            if value is None:
                break
            goid, tgid, _ = _KEY.unpack(value)
            self._gone.add((goid, tgid))
        if len(self._gone) * 4 < self._map.max_entries:
            return
        if len(self._gone) * self._numbers <= self._map.max_entries:
            self._take_gone()
        else:
            self._collect(lambda goid, tgid, half: (goid, tgid) in self._gone)
        self._gone.clear()
        self._fold()

    def _take_gone(self) -> None:
        """Take the rows of ended goroutines one by one: a walk would copy all others too."""
        for goid, tgid in self._gone:
            for number in range(self._numbers):
                key = _KEY.pack(goid, tgid, number)
                value = self._map.lookup(key)
                if value is not None:
                    self._take_row(key, value)

    def end_exited(self) -> set[int]:
        """Note the goroutines of processes that have ended: of those the kernel saw no end.

        Return the other processes that have goroutines with rows.
        """
        named = [(key, *_KEY.unpack(key)[:2]) for key, _ in self._named.entries()]
        processes = {tgid for _, _, tgid in named if not tgid & OTHER_NAMESPACE}
        ended = ended_processes(processes)
        for key, goid, tgid in named:
            if tgid in ended:
                self._gone.add((goid, tgid))
                self._named.delete(key)
        return processes - ended

    def take(self, half: int) -> tuple[dict[GoroutineKey, GoroutineTimes], dict[int, Folded]]:
        """Return and clear the calls since the last take, by goroutine and in sum by row.

        That is ``half``, which is not written any more, and what was taken of ended goroutines.
        """
        self._collect(lambda goid, tgid, other: other == half)
        for row, value in take_entries(self._folded, half * self._rows, self._rows):
            times = Histogram.from_row(value)
            folded = self._rest.setdefault(row, Folded())
            folded.unnamed += times.count
            folded.times.merge(times)
        period, rest = self._period, self._rest
        self._period, self._rest = {}, {}
        return period, rest

    def _collect(self, chosen: Callable[[int, int, int], bool]) -> None:
        """Take the rows that are chosen by goid, tgid and half."""
        for key, value in self._map.entries():
            goid, tgid, number = _KEY.unpack(key)
            if chosen(goid, tgid, number // self._rows):
                self._take_row(key, value)

    def _take_row(self, key: bytes, value: bytes) -> None:
        goid, tgid, number = _KEY.unpack(key)
        name = GoroutineKey(goid, tgid, number % self._rows)
        times = Histogram.from_row(value[:ROW_SIZE])
        if times.count:
            places = _PLACES.unpack_from(value, ROW_SIZE)
            goroutine = self._period.setdefault(name, GoroutineTimes(*places))
            goroutine.times.merge(times)
            if self._names:
                sums = value[ROW_SIZE + _PLACES.size :]
                goroutine.why.merge(PartSums.from_row(sums, self._names))
        self._map.delete(key)

    def _fold(self) -> None:
        """Keep only the rows with the most total time apart."""
        if len(self._period) <= self._kept:
            return
        ranked = sorted(self._period.items(), key=lambda item: item[1].times.sum)
        for key, goroutine in ranked[: -self._kept // 2]:
            rest = self._rest.setdefault(key.row, Folded())
            rest.goroutines += 1
            rest.times.merge(goroutine.times)
            del self._period[key]
