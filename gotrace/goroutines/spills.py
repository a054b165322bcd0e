# SPDX-License-Identifier: Apache-2.0
"""Which of a function's arguments its code leaves alone in memory once they have been saved there.

DWARF's places of an optimized function's variables are not certain: that of a variable with a new
value can still be the place of its old one. So the code is asked. An argument that comes in a
register is saved, where it is needed later, to a place that the caller has kept for it
(abi-internal.md, "spill space"), mostly by the first instructions after the frame was made. If no
other instruction writes there, what is there is what was passed, for as long as the call lasts.

Not instructions are looked at but bytes that may be operands ``disp(%rsp)``: what is not one can
only make an argument look less certain.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: push %rbp; mov %rsp,%rbp, since Go 1.21; sub $n,%rsp or add $-128,%rsp; or both
_MAKES_FRAME = re.compile(
    rb"\x55\x48\x89\xe5(?:\x48(?:\x83\xec.|\x81\xec....|\x83\xc4\x80))?"
    rb"|\x48(?:\x83\xec.|\x81\xec....|\x83\xc4\x80)",
    re.DOTALL,
)
#: jbe: to where the stack is made larger, after all else, before the function begins again
_GROWS = re.compile(rb"\x76(.)|\x0f\x86(....)", re.DOTALL)
#: mov %rbp,n(%rsp); lea n(%rsp),%rbp: after the frame was made up to Go 1.20
_SAVES_RBP = re.compile(
    rb"\x48\x89(?:\x2c\x24|\x6c\x24.|\xac\x24....)\x48\x8d(?:\x2c\x24|\x6c\x24.|\xac\x24....)",
    re.DOTALL,
)
_SAVE = re.compile(
    rb"(?P<wide>\x66)?(?P<rex>[\x40-\x4f])?[\x88\x89](?P<modrm>[\x44-\x7c\x84-\xbc])\x24"
    rb"|(?P<float>[\xf2\xf3])(?P<rex2>[\x40-\x4f])?\x0f\x11(?P<modrm2>[\x44-\x7c\x84-\xbc])\x24",
    re.DOTALL,
)
_MAX_PROLOGUE = 64
_DWARF_FLOATS = 17  # XMM0's number
#: Numbers of registers in instructions -> in DWARF (System V ABI, figure 3.36).
_DWARF = (0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15)
#: Opcodes that read their operand in memory: mov, movslq, add, or, and, sub, xor, cmp, test.
_READS = frozenset({0x8B, 0x63, 0x03, 0x0B, 0x23, 0x2B, 0x33, 0x3B, 0x39, 0x38, 0x3A, 0x85, 0x84})
#: The same after 0x0f: movups and its kin, movz, movs, imul.
_READS_0F = frozenset({0x10, 0x28, 0x6F, 0xB6, 0xB7, 0xBE, 0xBF, 0xAF})
_STORES = frozenset({0x88, 0x89, 0xC6, 0xC7})  # eight bytes at most
_WIDEST = 64


class _Operand(NamedTuple):
    """A place in the code that may be an operand disp(%rsp), and its possible accesses."""

    at: int
    displacement: int
    writes: int


class Slots:
    """The accesses of a function's code to its frame."""

    def __init__(self, code: bytes) -> None:
        """Take the code of a function whose frame has the same size from its beginning on."""
        code = _without_growing(code)
        self._operands = list(_operands(code, _body(code)))
        #: Displacement -> (DWARF register, where the operand is) of what is saved at once.
        self._saved: Mapping[int, tuple[int, int]] = dict(_saved(code))

    def kept(self, register: int) -> list[int]:
        """Return where disp(%rsp) has what came in a register, of eight bytes, in all calls."""
        saved = (at for at, (number, _) in self._saved.items() if number == register)
        return [at for at in saved if at % 8 == 0 and self.is_kept(at, 8, register)]

    def is_kept(self, displacement: int, size: int, register: int | None) -> bool:
        """Return whether memory at disp(%rsp) has an argument's passed value in all calls.

        ``register`` is DWARF's number of the one it comes in, None where the caller puts it there.
        """
        saved = self._saved.get(displacement)
        if register is not None and (saved is None or saved[0] != register):
            return False
        own = saved[1] if saved and register is not None else -1
        return not any(
            operand.displacement < displacement + size
            and operand.displacement + operand.writes > displacement
            for operand in self._operands
            if operand.writes and operand.at != own
        )


def _without_growing(code: bytes) -> bytes:
    """Return a function's code without its end, which saves arguments while the stack grows."""
    made = _MAKES_FRAME.search(code, 0, _MAX_PROLOGUE)
    jump = _GROWS.search(code, 0, made.start()) if made else None
    if made is None or jump is None:
        return code
    end = jump.end() + int.from_bytes(jump[1] or jump[2], "little", signed=True)
    return code[:end] if made.end() < end <= len(code) else code


def _body(code: bytes) -> int:
    """Return where the code begins that follows the making of the frame, 0 where there is none."""
    made = _MAKES_FRAME.search(code, 0, _MAX_PROLOGUE)
    if made is None:
        return 0
    rbp = _SAVES_RBP.match(code, made.end())
    return rbp.end() if rbp else made.end()


def _displacement(code: bytes, at: int) -> tuple[int, int]:
    """Return the displacement after a ModRM byte and its SIB byte, and where it ends."""
    if code[at] & 0xC0 == 0x40:
        return struct.unpack_from("<b", code, at + 2)[0], at + 3
    return struct.unpack_from("<i", code, at + 2)[0], at + 6


def _operands(code: bytes, start: int) -> Iterator[_Operand]:
    for at in range(start + 1, len(code) - 6):
        modrm = code[at]
        if modrm & 0x07 != 4 or modrm & 0xC0 not in (0x00, 0x40, 0x80) or code[at + 1] != 0x24:
            continue
        displacement = 0 if modrm & 0xC0 == 0 else _displacement(code, at)[0]
        opcode, before = code[at - 1], code[at - 2] if at > 1 else 0
        if before == 0x0F:
            writes = 0 if opcode in _READS_0F else _WIDEST
        elif opcode in _READS or (opcode in (0x80, 0x81, 0x83) and modrm >> 3 & 7 == 7):
            writes = 0
        else:
            writes = 8 if opcode in _STORES else _WIDEST
        yield _Operand(at, displacement, writes)


def _saved(code: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the registers that the first instructions after the frame was made save."""
    at = _body(code)
    while at and (found := _SAVE.match(code, at)):
        rex = (found["rex"] or found["rex2"] or b"\0")[0]
        number = (code[found.end() - 2] >> 3 & 7) | (rex & 4) << 1
        register = _DWARF_FLOATS + number if found["float"] else _DWARF[number]
        displacement, at = _displacement(code, found.end() - 2)
        yield displacement, (register, found.end() - 2)
