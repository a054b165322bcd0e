"""Free what processes that have ended left in the tables of open calls.

A process that ends by os.Exit or a signal returns from nothing. Where one process is traced, the
run ends with it. Where every process that runs a file is, there can be thousands of them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from gotrace.session.calls import STACK_LEVEL
from gotrace.session.process import ended_processes, in_initial_pid_namespace
from gotrace.session.program import Program

__all__ = ["Departed", "Seldom"]

_CALLER = struct.Struct("=QQ")  # struct caller_key of bpf/calls.h
_FRAME = struct.Struct("=QII")  # struct frame_key
_SHARE = 20


class Departed:
    """Remove the open calls of ended processes from the maps of bpf/calls.h.

    The kernel's helpers number processes as the initial pid namespace does: in another one it is
    not known which have ended, and nothing is removed.
    """

    def __init__(self, program: Program, *by_frame: str) -> None:
        """Take over ``stacks``, ``frames``, and further maps whose key is a struct frame_key."""
        self._stacks = program.map("stacks")
        self._by_frame = [program.map(name) for name in ("frames", *by_frame)]
        self._known = in_initial_pid_namespace()
        #: Calls that were open when their process ended, as far as they have been removed.
        self.calls = 0

    def remove(self) -> None:
        """Remove what ended processes have left."""
        if not self._known:
            return
        keys = [key for key, _ in self._stacks.entries()]
        ended = ended_processes(_CALLER.unpack(key)[1] for key in keys)
        for key in keys:
            caller, tgid = _CALLER.unpack(key)
            # Looked up now that nobody changes it: calls may have returned since, and come.
            stack = self._stacks.lookup(key) if tgid in ended else None
            if stack is not None:
                self._remove_calls(caller, tgid, STACK_LEVEL.unpack(stack)[0])
                self._stacks.delete(key)

    def _remove_calls(self, caller: int, tgid: int, level: int) -> None:
        self.calls += level
        for number in range(1, level + 1):
            for found in self._by_frame:
                found.delete(_FRAME.pack(caller, tgid, number))


class Seldom:
    """Do something once a second, or less often where it takes more than a small part of that."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._next = time.monotonic() + 1.0

    def __call__(self) -> None:
        """Do it if it is time."""
        began = time.monotonic()
        if began >= self._next:
            self._action()
            ended = time.monotonic()
            self._next = ended + max(1.0, _SHARE * (ended - began))
