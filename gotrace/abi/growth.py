# SPDX-License-Identifier: Apache-2.0
"""Read from a function's machine code which registers have its arguments, without their types.

The way to ``runtime.morestack``, at the function's end, saves each register argument in the frame,
and loads it again before it jumps to the entry. Sources: ``SpillRegisterArgs`` in
cmd/internal/obj/link.go, ``stacksplit`` in cmd/internal/obj/x86/obj6.go and arm64/obj7.go, and
``OpArgIntReg`` in cmd/compile/internal/amd64/ssa.go and arm64/ssa.go, of Go 1.19 to 1.27. Code
that uses no register argument saves none.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from gotrace.abi.assign import FloatReg, IntReg
from gotrace.architecture import AMD64, ARM64, Architecture


class SavedArgument(NamedTuple):
    """A register argument, and the ``offset`` of its slot from the stack pointer at the entry."""

    offset: int
    size: int
    register: IntReg | FloatReg


#: Bytes of the longest such part with what may follow it in wrappers: all registers twice.
_MAX_SIZE = 1024


def saved_arguments(code: bytes, architecture: Architecture) -> tuple[SavedArgument, ...] | None:
    """Return the register arguments that a function's code saves, None if it has no such part."""
    skipped = max(len(code) - _MAX_SIZE, 0) & ~3
    if architecture is AMD64:
        return _amd64(code[skipped:], skipped)
    return _arm64(code[skipped:], skipped) if architecture is ARM64 else None


#: What the assembler puts before calls and jumps that would cross 32 bytes (padJump of asm6.go).
_NOPS = (
    b"",
    b"\x90",
    b"\x66\x90",
    b"\x0f\x1f\x00",
    b"\x0f\x1f\x40\x00",
    b"\x0f\x1f\x44\x00\x00",
    b"\x66\x0f\x1f\x44\x00\x00",
    b"\x0f\x1f\x80\x00\x00\x00\x00",
    b"\x0f\x1f\x84\x00\x00\x00\x00\x00",
    b"\x66\x0f\x1f\x84\x00\x00\x00\x00\x00",
)
# call (by the global offset table in shared libraries), loads, jmp.
_RETURN = re.compile(
    rb"(?:\xe8....|\xff\x15....)(?P<loads>"
    rb"(?:[\x66\xf2\xf3]?[\x40-\x4f]?(?:\x8b|\x0f[\xb6\xb7\x10])"
    rb"(?:[\x44\x4c\x54\x5c\x64\x6c\x74\x7c]\x24.|[\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24....))*)"
    rb"(?:%s)(?:\xeb(?P<short>.)|\xe9(?P<near>....))" % b"|".join(map(re.escape, _NOPS)),
    re.DOTALL,
)
#: Registers by their numbers in instructions.
_NUMBERS = (
    *("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"),
    *(f"r{number}" for number in range(8, 16)),
)
_INTEGERS = {_NUMBERS.index(name): IntReg(at) for at, name in enumerate(AMD64.int_registers)}
#: The opcodes of loads and stores by prefix, each with the size and whether it is of a float.
_AMD64_MOVES = {
    (b"", b"\x8b"): (4, False),
    (b"", b"\x89"): (4, False),
    (b"\x66", b"\x8b"): (2, False),
    (b"\x66", b"\x89"): (2, False),
    (b"", b"\x0f\xb7"): (2, False),
    (b"", b"\x0f\xb6"): (1, False),
    (b"", b"\x88"): (1, False),
    (b"\xf3", b"\x0f\x10"): (4, True),
    (b"\xf3", b"\x0f\x11"): (4, True),
    (b"\xf2", b"\x0f\x10"): (8, True),
    (b"\xf2", b"\x0f\x11"): (8, True),
}


def _amd64(code: bytes, skipped: int) -> tuple[SavedArgument, ...] | None:
    for match in _RETURN.finditer(code):
        jump = match["short"] or match["near"]
        if skipped + match.end() + int.from_bytes(jump, "little", signed=True) != 0:
            continue
        loads = _amd64_moves(match["loads"])
        for nop in _NOPS:
            end = match.start() - len(nop)
            if loads is None or not code.endswith(nop, 0, match.start()):
                continue
            # Each is saved before the call by an instruction of the same length, or one byte less.
            for start in range(max(end - len(match["loads"]), 0), end + 1):
                if loads == _amd64_moves(code[start:end]):
                    return loads
    return None


@lru_cache(maxsize=4096)  # functions with parameters alike have the same
def _amd64_moves(code: bytes) -> tuple[SavedArgument, ...] | None:
    """Return the moves between registers and slots, None if an instruction is anything else."""
    found = []
    at = 0
    while at < len(code):
        prefix = code[at : at + 1] if code[at] in b"\x66\xf2\xf3" else b""
        at += len(prefix)
        rex = code[at] if at < len(code) and 0x40 <= code[at] <= 0x4F else 0
        at += bool(rex)
        op = code[at : at + 1 + (code[at : at + 1] == b"\x0f")]
        known = _AMD64_MOVES.get((prefix, op))
        at += len(op)
        is_far = code[at : at + 1] >= b"\x80"
        slot = code[at + 2 : at + (6 if is_far else 3)]
        if known is None or len(slot) != (4 if is_far else 1) or code[at + 1] != 0x24:
            return None
        size, is_float = known
        number = code[at] >> 3 & 7 | (rex & 4) << 1
        register = FloatReg(number) if is_float else _INTEGERS.get(number)
        if register is None:
            return None
        if rex & 8 and size == 4:
            size = 8
        found.append(SavedArgument(int.from_bytes(slot, "little", signed=True), size, register))
        at += 2 + len(slot)
    return tuple(found)


_MOV_X3_X30 = 0xAA1E03E3
#: Stores and loads of one register at an offset from SP (imm12, scaled), by the opcode: the size,
#: and whether it is of a float.
_ARM64_MOVES = {
    **dict.fromkeys((0xF9000000, 0xF9400000), (8, False)),
    **dict.fromkeys((0xB9000000, 0xB9400000, 0xB9800000), (4, False)),
    **dict.fromkeys((0x79000000, 0x79400000, 0x79800000, 0x79C00000), (2, False)),
    **dict.fromkeys((0x39000000, 0x39400000, 0x39800000, 0x39C00000), (1, False)),
    **dict.fromkeys((0xFD000000, 0xFD400000), (8, True)),
    **dict.fromkeys((0xBD000000, 0xBD400000), (4, True)),
}
#: The same of two registers (imm7, scaled).
_ARM64_PAIRS = {
    **dict.fromkeys((0xA9000000, 0xA9400000), (8, False)),
    **dict.fromkeys((0x29000000, 0x29400000, 0x69400000), (4, False)),
    **dict.fromkeys((0x6D000000, 0x6D400000), (8, True)),
    **dict.fromkeys((0x2D000000, 0x2D400000), (4, True)),
}


def _arm64(code: bytes, skipped: int) -> tuple[SavedArgument, ...] | None:
    words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) & ~3])
    for at, word in enumerate(words):
        if word != _MOV_X3_X30 or at + 2 >= len(words) or words[at + 1] >> 26 != 0b100101:  # bl
            continue
        after = at + 2
        loads: list[SavedArgument] = []
        while after < len(words) and (more := _arm64_moves(words[after])):
            loads += more
            after += 1
        if after == len(words) or words[after] >> 26 != 0b000101:  # b
            continue
        if (skipped // 4 + after + words[after] & 0x3FFFFFF) != 0:
            continue
        stores: list[SavedArgument] = []
        before = at
        while before and len(stores) < len(loads) and (more := _arm64_moves(words[before - 1])):
            stores = more + stores
            before -= 1
        if stores == loads:
            return tuple(loads)
    return None


def _arm64_moves(word: int) -> list[SavedArgument]:
    """Return an instruction's moves between registers and slots, none if it has none."""
    if word >> 5 & 31 != 31:  # the base is not SP
        return []
    one, two = _ARM64_MOVES.get(word & 0xFFC00000), _ARM64_PAIRS.get(word & 0xFFC00000)
    if one is not None:
        size, is_float = one
        numbers, offset = [word & 31], (word >> 10 & 0xFFF) * size
    elif two is not None:
        size, is_float = two
        scaled = word >> 15 & 0x7F
        numbers, offset = [word & 31, word >> 10 & 31], (scaled ^ 64) - 64
        offset *= size
    else:
        return []
    kind = FloatReg if is_float else IntReg
    return [SavedArgument(offset + size * n, size, kind(at)) for n, at in enumerate(numbers)]
