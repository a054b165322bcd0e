# SPDX-License-Identifier: Apache-2.0
"""Stacks that BPF programs keep by their hashes (bpf/frames.h)."""

from __future__ import annotations

import struct

from gotrace.goroutines.model import Stack
from gotrace.kernel.program import BpfProgram

MAX_FRAMES = 128

_STACK = struct.Struct(f"={MAX_FRAMES + 1}Q")  # struct kept_stack


class KeptStacks:
    """The stacks of a loaded program, for one reading of its rows: each is read once."""

    def __init__(self, program: BpfProgram) -> None:
        self._map = program.map("kept_stacks")
        self._known: dict[int, Stack] = {0: ()}

    def find(self, number: int) -> Stack:
        """Return the stack of a hash, innermost first; empty if there was no room to keep it."""
        if number not in self._known:
            value = self._map.lookup(number.to_bytes(8, "little"))
            *pcs, outer = _STACK.unpack(value) if value else (0,)
            self._known[number] = (*pcs[: pcs.index(0) if 0 in pcs else None], *self.find(outer))
        return self._known[number]
