"""Walk the entry block of an amd64 function that begins with no stack check.

Such functions are leaves, ``nosplit`` ones, assembly and C. Their first instruction is seldom
one that the kernel emulates, but one may follow soon.
"""

from __future__ import annotations

import re

from gotrace.probes.emulation import EMULATED

__all__ = ["first_emulated", "may_branch_to_start"]

# disp(%rsp) as modrm, SIB and displacement; with any register, and with opcode extension 0.
_SLOT = (
    r"(?:[\x44\x4c\x54\x5c\x64\x6c\x74\x7c]\x24."
    r"|[\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24....|[\x04\x0c\x14\x1c\x24\x2c\x34\x3c]\x24)"
)
_SLOT0 = r"(?:\x44\x24.|\x84\x24....|\x04\x24)"
_REX = r"[\x40-\x4f]?"

#: An instruction that may stand between the entry and a site: it can neither branch nor fault,
#: and writes nothing but flags, the frame or the caller's spill slots, RBP, R12, X15 (neither
#: carries an argument) and, in the first two cases, RSP.
_HARMLESS = re.compile(
    rf"""
      \x48\x83\xec(?P<sub8>[\x00-\x7f])           # sub $N,%rsp
    | \x48\x81\xec(?P<sub32>...[\x00-\x7f])
    | \x48\x83\xc4(?P<add8>[\x80-\xff])           # add $-N,%rsp
    | \xf3\x0f\x1e\xfa                            # endbr64
    | \x66?\x0f\x1f(?:\x00|\x40.|\x44\x00.|\x80....|\x84\x00....) | \x66\x90            # nop
    | \x66?{_REX}(?:[\x38-\x3b\x84\x85][\xc0-\xff]|\x83[\xf8-\xff].)                    # cmp, test
    | {_REX}(?:\x80[\xf8-\xff].|\x81[\xf8-\xff]....|\x3c.|\x3d....)                     # cmp $N
    | {_REX}(?:\xf6[\xc0-\xc7].|\xf7[\xc0-\xc7]....|\xa8.|\xa9....)                     # test $N
    | {_REX}\x0f(?:\xba[\xe0-\xe7].|\xa3[\xc0-\xff])                                    # bt
    | \x66?[\x40\x44\x48\x4c]?[\x88\x89]{_SLOT}   # mov %reg,N(%rsp)
    | \x48?\xc7{_SLOT0}.... | \xc6{_SLOT0}.       # mov $M,N(%rsp)
    | [\xf2\xf3\x66]?\x44?\x0f\x11{_SLOT}         # movups, movss, movsd, movupd %xmm,N(%rsp)
    | \x48\x89\xe5                                # mov %rsp,%rbp
    | \x48\x8d(?:\x6c\x24.|\xac\x24....)          # lea N(%rsp),%rbp
    | \x4d\x8b\x66\x20                            # mov 0x20(%r14),%r12: g._panic, in wrappers
    | \x45\x0f\x57\xff                            # xorps %xmm15,%xmm15
    """.encode(),
    re.DOTALL | re.VERBOSE,
)

#: Whatever could be a jump backwards, wherever an instruction may begin: jcc, jmp, loop, jrcxz.
_SHORT_BACKWARD = re.compile(rb"(?=[\x70-\x7f\xe0-\xe3\xeb]([\x80-\xff]))", re.DOTALL)
_NEAR_BACKWARD = re.compile(rb"(?=(?:\xe9|\x0f[\x80-\x8f])(...\xff))", re.DOTALL)
#: A short jump's size and how far back it reaches from its end.
_SHORT_SIZE, _SHORT_REACH = 2, 128
#: Compilers emit a dozen such instructions at most; a file made to be slow may hold millions.
_LONGEST_WALK = 32


def first_emulated(code: bytes) -> tuple[int, int] | None:
    """Return the first emulated instruction that only harmless ones stand before.

    The result is its offset in ``code``, which begins at the function's entry, and by how many
    bytes the stack pointer has been lowered there; None when something else comes first.
    """
    at = lowered = 0
    for _ in range(_LONGEST_WALK):
        if EMULATED.match(code, at) is not None:
            return at, lowered
        match = _HARMLESS.match(code, at)
        if match is None:
            return None
        amount = match["sub8"] or match["sub32"] or match["add8"] or b"\0"
        lowered += abs(int.from_bytes(amount, "little", signed=True))
        at = match.end()
    return None


def may_branch_to_start(code: bytes, last: int) -> bool:
    """Tell whether any bytes of ``code`` read as a branch to one of the offsets 0..``last``.

    Right whenever it says no, at a small part of a disassembler's cost. It looks for jumps
    backwards only: the instructions before ``last`` must be known not to branch. Functions of
    16 MiB and more are beyond it.
    """
    for match in _SHORT_BACKWARD.finditer(code, 0, last + _SHORT_SIZE + _SHORT_REACH):
        if 0 <= match.start() + _SHORT_SIZE + match[1][0] - 256 <= last:
            return True
    return any(
        0 <= match.end(1) + int.from_bytes(match[1], "little", signed=True) <= last
        for match in _NEAR_BACKWARD.finditer(code)
    )
