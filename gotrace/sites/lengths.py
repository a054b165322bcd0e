# SPDX-License-Identifier: Apache-2.0
"""Step over common amd64 instructions with one regular expression.

To find a function's RETs all of its instructions have to be decoded, but of most only the length
matters. The expression here knows the lengths of what compilers emit, and steps over a run of them
within one match: some ten times as fast as a disassembler that has to make a Python object of each.
What it does not know it does not step over, and the caller asks the disassembler.

The alternatives exclude one another by their first bytes, the frequent ones first, since trying one
is what costs time.

Source: Intel SDM volume 2, chapter 2 (instruction format) and appendix A (opcode maps).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable


def any_of(*parts: int | range) -> str:
    """Return a character class of bytes."""
    members: set[int] = set()
    for part in parts:
        members.update([part] if isinstance(part, int) else part)
    # As ranges: most of the time that compiling takes goes by the members of classes.
    starts = sorted(byte for byte in members if byte - 1 not in members)
    ends = sorted(byte for byte in members if byte + 1 not in members)
    return "[" + "".join(map(_range, starts, ends)) + "]"


def _range(first: int, last: int) -> str:
    return f"\\x{first:02x}" if first == last else f"\\x{first:02x}-\\x{last:02x}"


def modrm(
    extensions: Iterable[int] = range(8), *, register: bool = True, displacement: str = "...."
) -> str:
    """Return an expression of a ModRM byte with the SIB byte and the displacement after it.

    ``extensions`` are the values allowed in its middle field, which in some instructions is part of
    the opcode; ``register``: whether the operand may be one, and not only memory.
    """
    fields = tuple(extensions)

    def of(mod: int, *low: int) -> str:
        return any_of(*(mod << 6 | reg << 3 | rm for reg in fields for rm in low))

    plain = (0, 1, 2, 3, 5, 6, 7)  # 4 announces a SIB byte
    without_base = range(5, 256, 8)
    with_base = (byte for byte in range(256) if byte & 7 != 5)
    forms = [
        f"{of(1, 4)}..",
        of(3, *range(8)),
        f"{of(1, *plain)}.",
        of(0, 0, 1, 2, 3, 6, 7),
        f"{of(2, 4)}.....",
        f"{of(0, 5)}....",
        f"{of(2, *plain)}....",
        f"{of(0, 4)}(?:{any_of(*with_base)}|{any_of(*without_base)}....)",
    ]
    if not register:
        del forms[1]
    return "(?:" + "|".join(forms) + ")"


def _arithmetic(*forms: int) -> list[int]:
    """Return the opcodes of add, or, adc, sbb, and, sub, xor and cmp in some of their six forms."""
    return [base + form for base in range(0x00, 0x40, 8) for form in forms]


def _one_byte(word: str) -> str:
    """Return the known instructions after prefixes with a one-byte opcode, without b8 to bf.

    ``word`` matches a constant as wide as the operands, but for those of 64 bits.
    """
    any_operand = modrm()
    forms = [
        any_of(*_arithmetic(0, 1, 2, 3), 0x63, range(0x84, 0x8C), range(0xD0, 0xD4)) + any_operand,
        rf"\x8d{modrm(register=False)}",
        rf"[\x80\x83\xc0\xc1\x6b]{any_operand}.",
        r"[\x50-\x5f\x90-\x99]",
        rf"[\x69\x81]{any_operand}{word}",
        rf"\xc7{modrm([0])}{word}",
        rf"\xc6{modrm([0])}.",
        rf"\xff{modrm([0, 1, 2, 6])}",
        any_of(*_arithmetic(4), 0xA8, range(0xB0, 0xB8)) + ".",
        any_of(*_arithmetic(5), 0xA9) + word,
        rf"\xf6(?:{modrm(range(2, 8))}|{modrm([0])}.)",
        rf"\xf7(?:{modrm(range(2, 8))}|{modrm([0])}{word})",
        rf"\xfe{modrm([0, 1])}",
    ]
    return "|".join(forms)


def _two_bytes() -> str:
    """Return the known instructions after 0f without a prefix that changes the meaning."""
    # cmovcc, setcc, movzx, movsx, imul, bt, bts, btr, btc, bsf, bsr, shld and shrd by CL, cmpxchg,
    # xadd
    integers = (range(0x40, 0x50), range(0x90, 0xA0), 0xA3, 0xA5, 0xAB, 0xAD, 0xAF)
    more = (0xB0, 0xB1, 0xB3, 0xB6, 0xB7, 0xBB, 0xBC, 0xBD, 0xBE, 0xBF, 0xC0, 0xC1)
    # movups, movaps, ucomis, comis, sqrt, and to xor, add, mul, cvt, sub, min, div, max
    floats = (0x10, 0x11, 0x28, 0x29, 0x2E, 0x2F, 0x51, range(0x54, 0x60))
    forms = [
        any_of(*integers, *more, *floats) + modrm(),
        rf"\x1f{modrm([0])}",
        rf"\xba{modrm(range(4, 8))}.",
        rf"[\xa4\xac]{modrm()}.",
        rf"\x18{modrm(range(4), register=False)}",
        r"[\xc8-\xcf\xa2\x31\x05\x0b]",
    ]
    return "|".join(forms)


def _locked() -> str:
    """Return the known instructions after the prefix f0, with an optional REX prefix."""
    memory = modrm(register=False)
    forms = [
        any_of(*_arithmetic(0, 1)[:14]) + memory,
        rf"\x0f[\xb0\xb1\xc0\xc1]{memory}",
        rf"\xff{modrm([0, 1], register=False)}",
        rf"\x83{modrm(range(7), register=False)}.",
    ]
    return rf"[\x40-\x4f]?(?:{'|'.join(forms)})"


def _instructions() -> list[str]:
    """Return expressions of one known instruction each, but for jumps, the most frequent first."""
    one_byte, two_bytes, operand = _one_byte("...."), _two_bytes(), modrm()
    scalar = any_of(0x10, 0x11, 0x2A, 0x2C, 0x2D, 0x51, 0x58, 0x59, 0x5A, range(0x5C, 0x60))
    packed = any_of(0x28, 0x29, 0x2E, 0x2F, range(0x54, 0x58), 0x6E, 0x6F, 0x7E, 0x7F, 0xD6, 0xEF)
    # jmp through a table, the index scaled by 4 or 8: a switch
    scaled = [byte for byte in range(0x80, 0x100) if byte >> 3 & 7 != 4]
    based = any_of(*(byte for byte in scaled if byte & 7 != 5))
    baseless = any_of(*(byte for byte in scaled if byte & 7 == 5))
    by_index = any_of(*scaled)
    table = rf"(?:\x24(?:{based}|{baseless}....)|\x64{by_index}.|\xa4{by_index}....)"
    return [
        rf"[\x48-\x4f](?:{one_byte}|\x0f(?:{two_bytes})|[\xb8-\xbf]........)",
        rf"{one_byte}|\xe8....|\x0f(?:{two_bytes})|[\xb8-\xbf]....",
        rf"[\x40-\x47](?:{one_byte}|\x0f(?:{two_bytes})|[\xb8-\xbf]....)",
        rf"\xf2[\x40-\x4f]?\x0f{scalar}{operand}",
        rf"\xf3[\x40-\x4f]?\x0f[\x6f\x7e\x7f\xb8\xbc\xbd]{operand}",
        rf"\xf3[\x40-\x4f]?\x0f{scalar}{operand}",
        rf"\x66[\x40-\x4f]?\x0f{packed}{operand}",
        rf"\x66[\x40-\x47]?(?:{_one_byte('..')}|[\xb8-\xbf]..)",
        rf"\x66[\x40-\x47]?\x0f(?:[\x40-\x4f\xaf\xb6\xb7\xbe\xbf]{operand}|\x1f{modrm([0])})",
        rf"\x66[\x66\x2e]+\x0f\x1f{modrm([0])}",  # a long nop
        rf"[\x40-\x4f]?\xff{table}",
        rf"\xf0{_locked()}",
        rf"\x64[\x40-\x4f]?[\x03\x2b\x33\x39\x3b\x89\x8b]{modrm(register=False)}",  # thread-local
        r"[\xc9\xcc]",
        r"\xf3?\x48?[\xa4\xa5\xaa\xab]",  # movs, stos
    ]


#: A short jump that stays in its function, of which as many bytes are ahead, or before.
_JUMP_WITHIN = (
    r"[\x70-\x7f\xeb]"
    r"(?:[\x00-\x1f](?=.{32})|[\x20-\x7f](?=.{128})|[\x80-\xff](?<=.{128}))"
)
#: The int3 between functions: an eighth of what there is to step over in Go's.
_PADDING = r"\xcc+"


@functools.cache
def run_to_jump() -> re.Pattern[bytes]:
    """Return an expression of a run of known instructions and the RET or the jump that ends it.

    It is to be matched against all of a function's code: a short jump ends a run only where it is
    so near to the code's beginning or end that it may leave it. Group 1 is a RET, 2 the
    displacement of a short jump, 3 of a near one, both counted from the end of the match. There is
    none of them where the run ends at something else. Compiling it takes as long as disassembling
    some hundred functions.
    """
    first, *others = _instructions()
    steps = "|".join((first, _JUMP_WITHIN, _PADDING, *others))
    ends = r"([\xf2\xf3]?\xc3|\xc2..)|[\x70-\x7f\xe0-\xe3\xeb](.)|(?:\xe9|\x0f[\x80-\x8f])(....)"
    # The bound is for the memory that the engine takes for each instruction.
    return re.compile(rf"(?:{steps}){{0,4096}}(?:{ends})?".encode(), re.DOTALL)
