# SPDX-License-Identifier: Apache-2.0
"""Read back what the kernel has loaded: a BPF program's instructions, after its verifier."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gotrace.architecture import HOST

_SYS_BPF = HOST.bpf if HOST else -1
_OBJ_GET_INFO_BY_FD = 15
_INFO_SIZE = 40  # of struct bpf_prog_info: up to xlated_prog_insns
_INFO_WITH_VERIFIED = 224  # up to verified_insns and its padding
_FRAME_POINTER = 10
_TAIL_CALL = 12  # BPF_FUNC_tail_call

# Codes and classes: Documentation/bpf/standardization/instruction-set.rst of the kernel.
_CALL, _TAIL_CALL_CODE, _LD_IMM64 = 0x85, 0xF5, 0x18
_MOVE, _ADD_CONSTANT = 0xBF, 0x07
_LD, _LDX, _ST, _STX, _ALU, _ALU64 = 0, 1, 2, 3, 4, 7


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction as the UAPI's struct bpf_insn has it."""

    code: int
    to: int
    source: int
    offset: int
    constant: int


def loaded_instructions(program: int) -> list[Instruction]:
    """Return the instructions of a loaded program, by its descriptor. Raises OSError."""
    size = struct.unpack_from("=I", _info(program, 0, 0), 20)[0]
    code = ctypes.create_string_buffer(size)
    _info(program, size, ctypes.addressof(code))
    return list(_decode(code.raw))


def verified_instructions(program: int) -> int:
    """Return how many instructions the verifier has followed for a loaded program.

    0 where the kernel does not say: before Linux 5.16, commit aba64c7da983. Raises OSError.
    """
    found: int = struct.unpack_from("=I", _info(program, 0, 0, _INFO_WITH_VERIFIED), 216)[0]
    return found


def _info(program: int, size: int, place: int, info_size: int = _INFO_SIZE) -> bytes:
    info = ctypes.create_string_buffer(
        struct.pack("=II8sIIQQ", 0, 0, b"", 0, size, 0, place), info_size
    )
    asked = struct.pack("=IIQ", program, info_size, ctypes.addressof(info))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_BPF, _OBJ_GET_INFO_BY_FD, asked, len(asked)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return info.raw


def _decode(code: bytes) -> Iterator[Instruction]:
    words = struct.iter_unpack("=BBhi", code)
    for operation, registers, offset, constant in words:
        yield Instruction(operation, registers & 15, registers >> 4, offset, constant)
        if operation == _LD_IMM64:
            next(words)


def has_tail_call(code: Sequence[Instruction]) -> bool:
    """Return whether a program can call another one that does not return to it."""
    return any(
        each.code == _TAIL_CALL_CODE
        or (each.code == _CALL and each.source == 0 and each.constant == _TAIL_CALL)
        for each in code
    )


def stack_depth(code: Sequence[Instruction]) -> int:
    """Return how many bytes of stack a program uses, as far as its addresses are constants.

    Compilers form the address of a local right before its use: a look at one instruction after the
    other is enough.
    """
    offsets: dict[int, int] = {_FRAME_POINTER: 0}  # registers that hold the frame pointer plus this
    lowest = 0
    for each in code:
        kind = each.code & 7
        base = each.source if kind == _LDX else each.to if kind in (_ST, _STX) else None
        if base in offsets:
            lowest = min(lowest, offsets[base] + each.offset)
        if each.code == _MOVE and each.source in offsets:
            offsets[each.to] = offsets[each.source]
        elif each.code == _ADD_CONSTANT and each.to in offsets:
            offsets[each.to] += each.constant
            lowest = min(lowest, offsets[each.to])
        elif each.code == _CALL:
            offsets = {r: offset for r, offset in offsets.items() if r > 5}
        elif kind in (_LD, _LDX, _ALU, _ALU64):
            offsets.pop(each.to, None)
    return -lowest
