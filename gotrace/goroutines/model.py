# SPDX-License-Identifier: Apache-2.0
"""The parts of a dump of goroutines."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class State(enum.Enum):
    """The state of a goroutine; values are the words of Go's own dumps (runtime.gStatusStrings)."""

    IDLE = "idle"
    RUNNABLE = "runnable"
    RUNNING = "running"
    SYSCALL = "syscall"
    WAITING = "waiting"
    COPYSTACK = "copystack"
    PREEMPTED = "preempted"
    LEAKED = "leaked"


class Awaited(NamedTuple):
    """The thing that a goroutine waits for: a channel (``chan``) or a lock (``sync.Mutex``)."""

    type: str
    address: int


#: Frames from the innermost on: return addresses of the running process, less one those of the
#: calls. Where a signal interrupted a function, the bit :data:`program.TRAPPED` is set, and the
#: address is that of the instruction.
Stack = tuple[int, ...]


class DumpedGoroutine(NamedTuple):
    """One goroutine; a tuple, because they are made by the hundred thousand.

    ``reason`` is why it waits, "" where it does not. ``waiting_ns`` is how long at least: since a
    garbage collection first saw it wait; None where none has. ``awaited`` is None where that is not
    known. ``created_by`` is the return address of the ``go`` statement, ``parent`` the goroutine
    that ran it (0 where that is not known: up to Go 1.20).

    ``is_whole``: the stack was followed up to its end. Where it is false, the stack has the frames
    that are certain: none where the goroutine was running and could not be sampled, or kept moving
    while it was read (``has_moved``), and only the innermost of a stack that is too deep. ``g`` is
    the address of the runtime's own record of it, and ``labels`` that of its pprof labels, 0 where
    it has none.
    """

    goid: int
    state: State
    reason: str
    waiting_ns: int | None
    awaited: Awaited | None
    is_locked_to_thread: bool
    is_system: bool
    has_moved: bool
    is_whole: bool
    created_by: int
    parent: int
    started_at: int
    g: int
    labels: int
    stack: Stack

    @property
    def status(self) -> str:
        """Return the words in brackets of Go's own dumps: a wait's reason, else the state."""
        return self.reason or self.state.value


class Frame(NamedTuple):
    """One logical frame.

    ``offset``: of the return address from the entry of the function, None where the function was
    inlined (``is_inlined``) or has not begun. ``is_elided``: the compiler made the function up to
    call another one, and Go's tracebacks and profiles leave it out. ``is_shown``: Go's dumps show
    it, which leave out the runtime's functions, too.
    """

    function: str
    file: str
    line: int
    offset: int | None
    is_inlined: bool
    is_elided: bool
    is_shown: bool

    @classmethod
    def of_json(cls, frame: Mapping[str, Any]) -> Frame:
        """Return a frame of a recording; those of the runtime are shown as Go's dumps do."""
        name = str(frame["func"])
        rest = name.removeprefix("runtime.")
        is_shown = "." in name and (rest == name or rest[:1].isupper())
        place = frame.get("file") or "", frame.get("line") or 0
        return cls(name, *place, None, bool(frame.get("inlined")), False, is_shown)

    def to_json(self) -> dict[str, object]:
        return {"func": self.function, "file": self.file, "line": self.line}


def own_function(functions: Sequence[str]) -> str:
    """Return the innermost function of the program's own, the outermost where there is none."""
    last = next((name for name in reversed(functions) if name != "runtime.goexit"), "")
    return next(filter(_is_own, functions), last)


def _is_own(function: str) -> bool:
    """Return whether a function is not one of the standard library, whose paths have no dot."""
    path = function.split("[", 1)[0]
    return path.startswith("main.") or ("." in path.split("/", 1)[0] and "/" in path)


class Location(NamedTuple):
    """One physical frame: the address of its instruction, and its logical frames, inner first."""

    address: int
    frames: tuple[Frame, ...]
