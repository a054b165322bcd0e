# SPDX-License-Identifier: Apache-2.0
"""The figures of a program's runtime, read by those who do not read the program's file.

A plan says where they are. It is made of the file, and has nothing but numbers and words: a process
that reads files which may be hostile hands it to one that is to go on.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import chain, groupby
from typing import Any

from gotrace.elf.functions import Origin
from gotrace.errors import GotraceError
from gotrace.goroutines.dump import listed
from gotrace.goroutines.live import has_runtime
from gotrace.goroutines.memory import ProcessMemory, has_bounds, words_at
from gotrace.goroutines.program import NEVER_SYSTEM, allgs_of
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.heap import HeapLayout, HeapVariables, heap_variables
from gotrace.live.heap import HeapFigures, HeapReader
from gotrace.records import dataclass
from gotrace.target.process import Process, ProcessError
from gotrace.target.target import first_segment

#: g.atomicstatus without _Gscan, of which the word has 4 bytes.
_STATUS = 0xFFFFEFFF
#: Goroutines that are counted, which takes a second or two; dead ones that the runtime keeps count.
_MOST = 1 << 20


class Activity(Enum):
    """The states of a goroutine, in the words of ``/sched/goroutines/...`` of Go 1.26."""

    NOT_IN_GO = "not-in-go"
    RUNNABLE = "runnable"
    RUNNING = "running"
    WAITING = "waiting"


#: By the runtime's own number; all others are of goroutines that are not there.
_ACTIVITIES = {
    1: Activity.RUNNABLE,
    2: Activity.RUNNING,
    3: Activity.NOT_IN_GO,
    4: Activity.WAITING,
    8: Activity.WAITING,
    9: Activity.WAITING,
    10: Activity.WAITING,
}


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """Where a program's runtime keeps its figures: link-time addresses, and offsets in g.

    ``module`` is the address of its module data, ``bounds`` are the first and the last pc that are
    there. The file's first segment is at ``offset``, and at ``segment`` in memory. ``system`` are
    ranges of the functions with which goroutines of the runtime's own begin: starts and ends in
    turn. ``heap`` is None if its figures are not known, and ``heap_problem`` says why.
    """

    version: str
    module: int
    bounds: tuple[int, int]
    offset: int
    segment: int
    allgs: int
    status: int
    startpc: int
    system: tuple[int, ...]
    heap: HeapVariables | None
    heap_problem: str = ""

    def packed(self) -> bytes:
        """Return the plan as text."""
        heap: list[int] = []
        if self.heap is not None:
            layout = self.heap.layout
            heap = [getattr(self.heap, name) for name in _HEAP]
            heap += [getattr(layout, name) for name in _LAYOUT]
        found = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**found, "heap": heap}).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> RuntimePlan:
        """Return the plan that a text has."""
        found: dict[str, Any] = json.loads(data)
        heap, count = found["heap"], len(_HEAP)
        layout = HeapLayout(*heap[count:]) if heap else None
        variables = dict(zip(_HEAP, heap, strict=False))
        found["heap"] = HeapVariables(**variables, layout=layout) if layout else None
        for name in ("bounds", "system"):
            found[name] = tuple(found[name])
        return cls(**found)


_LAYOUT = tuple(HeapLayout.__slots__)
_HEAP = tuple(name for name in HeapVariables.__slots__ if name != "layout")


def plan_runtime(binary: Binary) -> RuntimePlan:
    """Return where a program's figures are. Raises GotraceError if that cannot be known."""
    module = binary.functions.module
    if not has_runtime(binary) or module is None:
        raise GotraceError("is not a program of the Go compiler, of Go 1.15 to 1.27")
    heap, problem = None, ""
    try:
        heap = heap_variables(binary)
    except GotraceError as error:
        problem = str(error)
    version, layout = binary.go_version, binary.runtime
    return RuntimePlan(
        version.text if version else "",
        module.address,
        (module.first_pc, module.last_pc),
        *first_segment(binary.image),
        allgs_of(binary),
        layout.g_atomicstatus,
        layout.g_startpc,
        tuple(chain.from_iterable(_system_ranges(binary))),
        heap,
        problem,
    )


def _system_ranges(binary: Binary) -> Iterator[tuple[int, int]]:
    """Yield ranges of functions with which a goroutine of the runtime's own begins.

    A goroutine that runs finalizers or cleanups is one, whatever it does: runtime.NumGoroutine
    decides as it starts.
    """
    functions = binary.functions
    names = functions.names

    def is_system(row: int) -> bool:
        if not names[row].startswith("runtime.") or names[row] in NEVER_SYSTEM:
            return False
        return functions.function(row).origin is Origin.PCLNTAB  # these are in order

    for found, group in groupby(range(len(functions)), is_system):
        if found:
            some = list(group)
            first, last = (functions.function(row) for row in (some[0], some[-1]))
            yield first.entry, last.end


@dataclass(frozen=True, slots=True)
class RuntimeFigures:
    """The figures of a runtime: ``goroutines`` are the program's own, as runtime.NumGoroutine.

    It is None if there are too many to count, and ``activities`` is empty then. That has those of
    the runtime, too. ``heap`` is None if its figures are not known.
    """

    goroutines: int | None
    activities: Mapping[Activity, int]
    heap: HeapFigures | None


class RuntimeReader:
    """A reader of the figures of one process; close it at the end."""

    def __init__(self, plan: RuntimePlan, process: Process) -> None:
        """Open the memory. Raises ProcessError if that cannot be, or it is not the program's."""
        self._plan = plan
        self._process = process
        self._memory = ProcessMemory(process)
        try:
            self._bias = _bias(plan, process)
            self._check()
        except BaseException:
            self._memory.close()
            raise
        self._heap: HeapReader | None = None
        if plan.heap is not None:
            self._heap = HeapReader(self._words, plan.heap, self._bias)

    def _check(self) -> None:
        """Raise ProcessError if the memory is not, or no longer, that of the program."""
        plan = self._plan
        if not has_bounds(self._memory, plan.module, plan.bounds, self._bias):
            number = self._process.tgid
            raise ProcessError(f"process {number} runs another program, or has just started")

    def _words(self, *places: tuple[int, int]) -> array[int]:
        flat = [number for at, count in places for number in (at, 8 * count)]
        return array("Q", bytes(self._memory.gather(flat)))

    def read(self) -> RuntimeFigures:
        """Return the figures. Raises ProcessError once the process has ended; GotraceError."""
        self._check()  # it may have executed a program, even the same one, since
        heap = self._heap.read() if self._heap is not None else None
        allgs = self._plan.allgs + self._bias
        if words_at(self._memory, allgs, 2)[1] > _MOST:
            return RuntimeFigures(None, {}, heap)
        own, activities = 0, dict.fromkeys(Activity, 0)
        for addresses in listed(self._memory, allgs):
            places = array("Q", (8,)) * (4 * len(addresses))
            places[0::4] = array("Q", map(self._plan.status.__add__, addresses))
            places[2::4] = array("Q", map(self._plan.startpc.__add__, addresses))
            words = array("Q", bytes(self._memory.gather(places)))
            found = Counter(zip(words[0::2], words[1::2], strict=True))
            for (status, started), number in found.items():
                if (activity := _ACTIVITIES.get(status & _STATUS)) is not None:
                    activities[activity] += number
                    # In a range, an odd number of starts and ends are not above it.
                    is_system = bisect_right(self._plan.system, started - self._bias) % 2
                    own += 0 if is_system else number
        return RuntimeFigures(own, activities, heap)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()


def _bias(plan: RuntimePlan, process: Process) -> int:
    """Return run-time addresses minus those of the file. Raises ProcessError."""
    try:
        inode = os.stat(process.executable).st_ino
    except OSError:
        raise ProcessError(f"there is no process {process.tgid}") from None
    for mapping in process.mappings_of(inode, process.executable_name):
        if mapping.offset == plan.offset:
            return mapping.start - plan.segment
    raise ProcessError(f"process {process.tgid} has not mapped its program")
