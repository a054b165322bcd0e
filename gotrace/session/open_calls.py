# SPDX-License-Identifier: Apache-2.0
"""Open calls in the BPF programs' tables, and faults there (bpf/calls.h, diagnostics.h).

A process that ends by os.Exit or a signal returns from nothing. Where one process is traced, the
run ends with it. Where every process that runs a file is, there can be thousands of them, and what
they left in the tables is freed.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from enum import Enum

from gotrace.kernel.program import BpfProgram
from gotrace.target.process import ended_processes, in_initial_pid_namespace

#: struct stack: how many calls are open, and the file's number. More may follow.
STACK_LEVEL = struct.Struct("=48xII40x")
#: The latest call: when it began, and where it returns to; and how many are open.
STACK_LATEST = struct.Struct("=8xQ8xQ16xI")
#: The latest call's function, how many are open, and the epoch in which the outermost was entered.
STACK_EPOCH = struct.Struct("=16xI28xI28xQ8x")


class Diagnostic(Enum):
    """A mismatch, or a lack of room, in the kernel; values are those of enum diagnostic."""

    UNMATCHED = 0
    UNWOUND = 1
    STACKS_FULL = 2
    OUTER_CALLS_FULL = 3
    NO_GOROUTINE = 4
    ENDED_FULL = 5
    SLOW_LOST = 6
    EVENTS_LOST = 7
    WORK_BUSY = 8
    SAVED_FULL = 9
    TAIL_CALLS = 10
    EXTREMES_LOST = 11
    UNWOUND_UNSEEN = 12
    CALLS_UNDECIDED = 13
    WHY_FULL = 14
    WHY_THREADS_FULL = 15
    NEW_CALLERS = 16
    BEGINS_LOST = 17
    STATES_FULL = 18
    PROCESSES_FULL = 19
    THREADS_FULL = 20
    KEPT_FULL = 21
    ERRORS_FULL = 22
    CALLS_EARLIER = 23
    EXECUTIONS_FULL = 24


def diagnostics(program: BpfProgram) -> dict[Diagnostic, int]:
    """Return how often each irregularity has occurred so far."""
    sums = program.map("diagnostics").sums()
    return {what: sums[what.value] for what in Diagnostic}


_TASK = struct.Struct("=QQ")  # struct task_key of bpf/calls.h
_CALL_KEY = struct.Struct("=QII")  # struct call_key
_FUNCTION_AT = 16  # in struct open_call
_SHARE = 20
_RESTING_LIMIT, _RESTING_FILES = 1, 4  # enum resting
#: Of the rows of a table, which rest where none of a task's calls is open.
_RESTING_SHARE = 8


class OpenCalls:
    """The tables of open calls, of which those of ended processes are removed.

    From then on, rows of tasks that have no call open may rest. The kernel's helpers number
    processes as the initial pid namespace does: in another one it is not known which have ended,
    and nothing is removed.
    """

    def __init__(
        self,
        program: BpfProgram,
        *by_call: str,
        by_process: Sequence[tuple[str, int]] = (),
        files: int = 0,
    ) -> None:
        """Take over ``stacks``, ``outer_calls``, and further maps with keys of struct call_key.

        ``by_process`` are maps with a process's number (32 bits) somewhere in their keys, and
        where. So many ``files`` can share the room, 0 if it is one file's.
        """
        self._stacks = program.map("stacks")
        self._by_call = [program.map(name) for name in ("outer_calls", *by_call)]
        self._resting = program.map("resting")
        tables = (self._stacks, *self._by_call[1:])
        self._limit = min(table.max_entries for table in tables) // _RESTING_SHARE
        self._half = self._stacks.max_entries // 2
        self._share = self._half // files if files else 0
        self._deleted = Counter[int]()  # rows, by file
        self._tell_room()
        self._by_process = [(program.map(name), at) for name, at in by_process]
        self._known = in_initial_pid_namespace()
        self._removed: Counter[int] = Counter()  # calls, by function

    def number(self, functions: Container[int] | None = None) -> int:
        """Return how many calls were entered and have not returned, removed ones included.

        Those of ``functions``, by number, or all.
        """
        if functions is None:
            rows = (row for _, row in self._stacks.entries())
            open_now: int = sum(STACK_LEVEL.unpack_from(row)[0] for row in rows)
            return self._removed.total() + open_now
        found = self._removed + self._by_function()
        return sum(count for function, count in found.items() if function in functions)

    def functions(self) -> Set[int]:
        """Return the functions of which calls are in the tables now."""
        return self._by_function().keys()

    def by_task(self) -> Iterator[list[int]]:
        """Yield the functions of each task's open calls, the outermost first."""
        for key, row in list(self._stacks.entries()):
            yield [_function(call) for _, call in self._calls(key, row)]

    def _by_function(self) -> Counter[int]:
        found = Counter[int]()
        for _, row in self._stacks.entries():
            if STACK_LEVEL.unpack_from(row)[0]:
                found[_function(row)] += 1
        found.update(_function(call) for _, call in self._by_call[0].entries())
        return found

    def forget(self, functions: Iterable[int]) -> None:
        """Take note that numbers are of other functions from now on."""
        for function in functions:
            self._removed.pop(function, None)

    def remove_exited(self) -> None:
        """Remove the entries of ended processes."""
        if not self._known:
            return
        keys = [key for key, _ in self._stacks.entries()]
        ended = ended_processes(_TASK.unpack(key)[1] for key in keys)
        for key in keys if ended else ():
            # Looked up now that nothing changes it: calls may have returned since, and come.
            stack = self._stacks.lookup(key) if _TASK.unpack(key)[1] in ended else None
            if stack is not None:
                self._remove(key, stack)
        self._tell_room()
        for found, at in self._by_process:
            entries = [
                (key, int.from_bytes(key[at : at + 4], "little")) for key, _ in found.entries()
            ]
            gone = ended_processes(tgid for _, tgid in entries)
            for key, tgid in entries:
                if tgid in gone:
                    found.delete(key)

    def remove_file(self, number: int) -> None:
        """Remove the entries of a file whose probes are gone."""
        for key, stack in list(self._stacks.entries()):
            if STACK_LEVEL.unpack_from(stack)[1] == number:
                self._remove(key, stack)
        self._tell_room()

    def remove_calls(self, functions: Container[int]) -> None:
        """Remove the entries of tasks that have only calls open of functions without probes."""
        for key, row in list(self._stacks.entries()):
            if _function(row) not in functions:
                continue
            stack = self._stacks.lookup(key)  # calls may have returned since, and come
            calls = [] if stack is None else [_function(one) for _, one in self._calls(key, stack)]
            if stack is not None and calls and all(one in functions for one in calls):
                self._remove(key, stack)
        self._tell_room()

    def _tell_room(self) -> None:
        """Have rows that were removed be room for others."""
        deleted = self._deleted.total()
        room = (self._limit + deleted, self._half + deleted, self._share)
        values = [value.to_bytes(8, "little") for value in room]
        self._resting.update_array(_RESTING_LIMIT, values)
        for file, rows in self._deleted.items():
            at = _RESTING_FILES + 2 * file + 1
            self._resting.update(at.to_bytes(4, "little"), rows.to_bytes(8, "little"))

    def _calls(self, key: bytes, stack: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield a task's open calls, the outermost first, with their keys."""
        level, _ = STACK_LEVEL.unpack_from(stack)
        for number in range(1, level + 1):
            place = _CALL_KEY.pack(*_TASK.unpack(key), number)
            outer = self._by_call[0].lookup(place) if number < level else None
            yield place, outer or stack

    def _remove(self, key: bytes, stack: bytes) -> None:
        _, file = STACK_LEVEL.unpack_from(stack)
        places = [_CALL_KEY.pack(*_TASK.unpack(key), 1)]  # what is kept of level 1 rests
        for place, call in self._calls(key, stack):
            self._removed[_function(call)] += 1
            places.append(place)
        for place in places:
            for found in self._by_call:
                found.delete(place)
        if self._stacks.delete(key):
            self._deleted[file] += 1


def _function(call: bytes) -> int:
    """Return the number of an open call's function, also of a task's latest call."""
    return int.from_bytes(call[_FUNCTION_AT : _FUNCTION_AT + 4], "little")


class Throttle:
    """An action once a second, less often where it takes more than a small part of that."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._next = time.monotonic() + 1.0

    def __call__(self) -> None:
        began = time.monotonic()
        if began >= self._next:
            self._action()
            ended = time.monotonic()
            self._next = ended + max(1.0, _SHARE * (ended - began))
