# SPDX-License-Identifier: Apache-2.0
"""The figures of a program's heap and collector, as runtime/metrics has them, read from memory."""

from __future__ import annotations

from gotrace.goroutines.live import LiveGoroutines
from gotrace.gotypes.heap import HeapVariables, heap_variables
from gotrace.records import dataclass

_NONE = (1 << 64) - 1
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
    None without one. ``procs`` is GOMAXPROCS.
    """

    cycles: int
    gc_ns: int
    pause_ns: int
    in_use: int
    goal: int | None
    limit: int | None
    procs: int


class HeapReader:
    """A reader of the figures of one process."""

    def __init__(self, goroutines: LiveGoroutines) -> None:
        """Take the reader of the memory. Raises GotraceError if the figures are not known."""
        main = goroutines.program.main
        self._goroutines = goroutines
        self._variables: HeapVariables = heap_variables(main.binary)
        self._bias = main.bias

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
            gc,
            procs,
        ) = self._goroutines.words(
            (memstats + at.numgc, 1),
            (memstats + at.pause_total, 1),
            *((pacer + place, 1) for place in (at.limit, at.percent_goal, at.sweep_trigger)),
            *((pacer + place, 1) for place in (at.triggered, at.marked, at.free)),
            *((pacer + place, 1) for place in (at.allocated, at.freed, at.ready)),
            (known.work + bias + at.gc_time, 1),
            (known.gomaxprocs + bias, 1),
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
