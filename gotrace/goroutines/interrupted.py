# SPDX-License-Identifier: Apache-2.0
"""Stacks of threads that a clock has interrupted: at any instruction, in any code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from gotrace.goroutines.model import Frame, Stack
from gotrace.goroutines.program import TRAPPED, CodeNames
from gotrace.profiles.rows import Line, PprofLocation

#: Marks of the second address, which may be that of the caller: bpf/interrupted.h.
CALLER_AT_0, CALLER_AT_8, CALLER_IN_LINK, CALLER_IN_LINK_ONLY = 1 << 62, 1 << 61, 1 << 60, 1 << 59
_ADDRESS = CALLER_IN_LINK_ONLY - 1


class WorkKind(Enum):
    """The purpose of a thread's work; the values are the words that commands print."""

    PROGRAM = "program"
    COLLECTOR = "garbage collection"
    ASSIST = "GC assist"
    SCHEDULER = "scheduler"


#: Functions below which a goroutine works for the collector, in proportion to what it allocates.
_ASSISTS = ("runtime.gcAssistAlloc", "runtime.deductSweepCredit")
#: Functions of the collector's own goroutines, and those that begin and end a cycle, in
#: src/runtime of Go 1.15 to 1.27.
_COLLECTOR = (
    "runtime.GC",
    "runtime.bgscavenge",
    "runtime.bgsweep",
    "runtime.forcegchelper",
    "runtime.gcBgMarkWorker",
    "runtime.gcDrain",
    "runtime.gcMark",
    "runtime.gcStart",
    "runtime.gcSweep",
    "runtime.sweepone",
)
#: Functions between two goroutines on a thread, and those that look after the threads.
_SCHEDULER = frozenset(
    {
        "runtime.exitsyscall0",
        "runtime.exitsyscallNoP",
        "runtime.findRunnable",
        "runtime.findrunnable",
        "runtime.goexit0",
        "runtime.goschedImpl",
        "runtime.mcall",
        "runtime.mstart",
        "runtime.mstart1",
        "runtime.park_m",
        "runtime.preemptPark",
        "runtime.schedule",
        "runtime.sysmon",
        "runtime.templateThread",
    }
)


def work_of(functions: Sequence[str]) -> WorkKind:
    """Return the purpose of a stack's functions."""
    own = [name for name in functions if name.startswith("runtime.")]
    if any(name.startswith(_ASSISTS) for name in own):
        return WorkKind.ASSIST
    if any(name.startswith(_COLLECTOR) for name in own):
        return WorkKind.COLLECTOR
    return WorkKind.SCHEDULER if _SCHEDULER.intersection(own) else WorkKind.PROGRAM


class InterruptedStacks:
    """Names the stacks that bpf/oncpu.c keeps; ``code_name`` says what holds code without names."""

    def __init__(self, program: CodeNames, code_name: Callable[[int], str]) -> None:
        self._program = program
        self._code_name = code_name
        self._stacks: dict[Stack, Stack] = {}

    def stack(self, kept: Stack) -> Stack:
        """Return a kept stack as others are, as far as it leads through code.

        Where frame pointers are not kept, as in much of C, other numbers are taken for addresses.
        """
        if kept not in self._stacks:
            self._stacks[kept] = self._made(kept)
        return self._stacks[kept]

    def _made(self, kept: Stack) -> Stack:
        if not kept:
            return ()
        pc, callers = kept[0], kept[1:]
        if callers and callers[0] > _ADDRESS:
            caller, mark, callers = callers[0] & _ADDRESS, callers[0] & ~_ADDRESS, callers[1:]
            is_caller = self._is_in_link if mark <= CALLER_IN_LINK else self._is_on_top
            if is_caller(pc, mark, caller, callers):
                callers = (caller, *callers)
        for place, caller in enumerate(callers):
            if not (self._code_name(caller) or self._program.function_name(caller)):
                callers = callers[:place]
                break
        return (pc | TRAPPED, *callers)

    def _is_on_top(self, pc: int, mark: int, caller: int, callers: Stack) -> bool:
        """Return whether a word on top of the stack is the return address at an instruction."""
        step = self._program.step(pc | TRAPPED)
        return step is not None and {0: CALLER_AT_0, 1: CALLER_AT_8}.get(step.words) == mark

    def _is_in_link(self, pc: int, mark: int, caller: int, callers: Stack) -> bool:
        """Return whether the link register has the return address, and no frame has it.

        A call puts an address of the caller's own function there, and the frame's record is then
        first among ``callers``.
        """
        step = self._program.step(pc | TRAPPED)
        if step is not None and not step.size:
            return True  # the function has no frame, or has given it up
        if self._program.function_name(caller) == self._program.function_name(pc):
            return False
        return caller not in callers[:1] if step is None else mark == CALLER_IN_LINK_ONLY

    def frames(self, stack: Stack) -> list[Frame]:
        """Return the logical frames of what ``stack`` returns, the innermost first."""
        return [frame for _, frames in self._located(stack) for frame in frames]

    def profiled(self, stack: Stack) -> list[PprofLocation]:
        """Return its physical frames for a profile, the innermost first."""
        return [
            PprofLocation(address, tuple(Line(f.function, f.file, f.line) for f in frames))
            for address, frames in self._located(stack)
            if frames
        ]

    def _located(self, stack: Stack) -> list[tuple[int, list[Frame]]]:
        found = []
        for address, frames in self._program.locations(stack):
            shown = [frame for frame in frames if not frame.is_elided]
            if not frames:
                name = self._code_name(address) or "[unknown]"
                shown = [Frame(name, "", 0, None, False, False, True)]
            found.append((address, shown))
        return found
