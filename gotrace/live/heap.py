# SPDX-License-Identifier: Apache-2.0
"""The figures of a program's heap and collector, as runtime/metrics has them, read from memory."""

from __future__ import annotations

from array import array
from typing import Protocol

from gotrace.gotypes.heap import STACK_PARTS, HeapVariables
from gotrace.records import dataclass

_NONE = (1 << 64) - 1
_PERCENT = 1 << 32
#: Of heapGoalInternal in src/runtime/mgcpacer.go of Go 1.19 to 1.27: what is kept between the size
#: at which the collector began and the goal, and left free of a goal by the memory limit.
_MIN_RUNWAY, _MIN_HEADROOM = 64 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class HeapFigures:
    """The heap and the collector.

    ``cycles`` is the number of collections that are done (``/gc/cycles/total:gc-cycles``);
    ``gc_ns`` the processors' time in them (``/cpu/classes/gc/total:cpu-seconds``), as of the end of
    the latest one; ``pause_ns`` the time in which the program was stopped. ``in_use`` are the bytes
    of objects (``/memory/classes/heap/objects:bytes``), ``goal`` is the heap's size at the end of
    the next collection (``/gc/heap/goal:bytes``), None if none is to come. ``limit`` is GOMEMLIMIT,
    None without one. ``procs`` is GOMAXPROCS, ``percent`` is GOGC (below zero if it is off).

    ``live`` are the bytes that the latest collection has left (``/gc/heap/live:bytes``),
    ``allocated`` those of all objects ever (``/gc/heap/allocs:bytes``). ``mapped`` is all memory
    that the runtime has mapped (``/memory/classes/total:bytes``). Of that, ``spans`` are in use for
    objects (``heap/objects`` and ``heap/unused``), ``free`` and ``released`` (to the system) are
    not in use, and ``stacks`` are of goroutines (``heap/stacks``).
    """

    cycles: int
    gc_ns: int
    pause_ns: int
    in_use: int
    goal: int | None
    limit: int | None
    procs: int
    percent: int
    live: int
    allocated: int
    mapped: int
    spans: int
    free: int
    released: int
    stacks: int


class Words(Protocol):
    """A function that reads words of a process's memory."""

    def __call__(self, *places: tuple[int, int]) -> array[int]:
        """Return words: addresses, and how many at each. Raises ProcessError."""


class HeapReader:
    """A reader of the figures of one process, whose memory ``words`` reads."""

    def __init__(self, words: Words, variables: HeapVariables, bias: int) -> None:
        self._words = words
        self._variables = variables
        self._bias = bias

    def read(self) -> HeapFigures:
        """Return the figures; all are read by one system call. Raises ProcessError."""
        known, bias = self._variables, self._bias
        at = known.layout
        memstats, pacer = known.memstats + bias, known.controller + bias
        (
            numgc,
            pause,
            limit,
            percent,
            sweep,
            triggered,
            marked,
            free,
            alloc,
            freed,
            ready,
            spans,
            released,
            every,
            gc,
            procs,
            *stacks,
        ) = self._words(
            (memstats + at.numgc, 1),
            (memstats + at.pause_total, 1),
            *((pacer + place, 1) for place in (at.limit, at.percent_goal, at.sweep_trigger)),
            *((pacer + place, 1) for place in (at.triggered, at.marked, at.free)),
            *((pacer + place, 1) for place in (at.allocated, at.freed, at.ready)),
            *((pacer + place, 1) for place in (at.in_use, at.released, at.percent)),
            (known.work + bias + at.gc_time, 1),
            (known.gomaxprocs + bias, 1),
            *((memstats + at.stacks + part * at.part, 1) for part in range(STACK_PARTS)),
        )
        in_use = alloc - freed
        goal, by_limit = percent, self._goal_by_limit(limit, marked, free, in_use, ready)
        if by_limit < goal:
            goal = by_limit
        else:
            goal = max(goal, sweep)
            if triggered != _NONE and goal < triggered + _MIN_RUNWAY:
                goal = triggered + _MIN_RUNWAY
        return HeapFigures(
            numgc & 0xFFFFFFFF,
            gc,
            pause,
            in_use,
            goal if goal < 1 << 62 else None,
            limit if limit < 1 << 62 else None,
            procs & 0xFFFFFFFF,
            (every + _PERCENT // 2) % _PERCENT - _PERCENT // 2,
            marked,
            alloc,
            ready + released,
            spans,
            free,
            released,
            sum(stacks) & _NONE,
        )

    def _goal_by_limit(self, limit: int, marked: int, free: int, in_use: int, ready: int) -> int:
        """Return the heap's goal by the memory limit, as the runtime's memoryLimitHeapGoal does."""
        others = max(0, ready - free - in_use) + max(0, ready - limit)
        if others >= limit:
            return marked
        goal = limit - others
        headroom = max(goal // 100 * self._variables.headroom_percent, _MIN_HEADROOM)
        goal = headroom if goal < 2 * headroom else goal - headroom
        return max(goal, marked)
