# SPDX-License-Identifier: Apache-2.0
"""BPF instructions as bytes.

Source of the encoding: Documentation/bpf/standardization/instruction-set.rst of the kernel.
"""

from __future__ import annotations

import struct

#: One instruction: code, registers (source in the upper half), offset, constant.
INSTRUCTION = struct.Struct("=BBhi")
CALL, EXIT = 0x85, 0x95
#: The instruction of two slots that loads 64 bits, and its source if that is a map.
LD_IMM64, MAP_REFERENCE = 0x18, 1


def encode(*instructions: tuple[int, int, int, int]) -> bytes:
    """Return instructions that are given as code, registers, offset and constant."""
    return b"".join(INSTRUCTION.pack(*each) for each in instructions)
