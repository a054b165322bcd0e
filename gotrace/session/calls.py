"""Read what the BPF programs know of open calls and of what went wrong (bpf/calls.h)."""

from __future__ import annotations

import struct
from array import array
from enum import Enum

from gotrace.session.program import Program

__all__ = ["STACK_LEVEL", "Diagnostic", "diagnostics", "open_calls"]

#: struct stack: how many calls are open.
STACK_LEVEL = struct.Struct("=32xQ")


class Diagnostic(Enum):
    """Name what did not match or was not possible; values are those of enum diagnostic."""

    UNMATCHED = 0
    UNWOUND = 1
    STACKS_FULL = 2
    FRAMES_FULL = 3
    NO_GOROUTINE = 4
    ENDED_FULL = 5
    SLOW_LOST = 6
    EVENTS_LOST = 7
    WORK_BUSY = 8
    SAVED_FULL = 9
    TAIL_CALLS = 10
    EXTREMES_LOST = 11


def diagnostics(program: Program) -> dict[Diagnostic, int]:
    """Return how often each irregularity has occurred so far."""
    values = array("Q", program.map("diagnostics").read_array())
    cpus = len(values) // len(Diagnostic)
    return {what: sum(values[what.value * cpus : (what.value + 1) * cpus]) for what in Diagnostic}


def open_calls(program: Program) -> int:
    """Return how many calls have been entered and have not returned."""
    return sum(STACK_LEVEL.unpack(value)[0] for _, value in program.map("stacks").entries())
