# SPDX-License-Identifier: Apache-2.0
"""How amd64 functions of Go and gccgo begin: stack checks, and entry blocks without one.

Stack checks are recognised as bytes: without a disassembler, choosing the sites of a whole large
binary takes a fraction of a second. Go's come from ``stacksplit`` in
src/cmd/internal/obj/x86/obj6.go, read in Go 1.15, 1.19 and 1.27; gccgo's from
``ix86_expand_split_stack_prologue`` in gcc/config/i386/i386.cc (GCC 12) with
libgcc/config/i386/morestack.S.

Functions without a check are leaves, ``nosplit`` ones, assembly and C. Their first instruction is
seldom one that the kernel emulates, but one may follow soon.
"""

from __future__ import annotations

import functools
import re

from gotrace.records import dataclass
from gotrace.sites.emulation import EMULATED
from gotrace.sites.lengths import any_of, modrm

# g is in R14 (ABIInternal, Go >= 1.17), or is first loaded from thread-local storage: into R14
# by the ABI0 functions of Go >= 1.17, into RCX before. It is at an offset from FS that is in
# the instruction, or in position-independent code in the register: read from the global offset
# table, or made an immediate by Go's linker. g.stackguard0 is at 0x10 in g, stackguard1
# (functions of the system stack) at 0x18. Frames are small, large or huge, as stacksplit has it.
_STACK_CHECK = re.compile(
    rb"""
    (?:\xf3\x0f\x1e\xfa)?                                           # endbr64
    (?: \x64\x48\x8b\x0c\x25....                                    # mov %fs:N,%rcx
      | (?:\x48\x8b\x0d|\x48\xc7\xc1)....\x64\x48\x8b\x09           # mov N(%rip) or $N,%rcx;
                                                                    # mov %fs:(%rcx),%rcx
      | \x64\x4c\x8b\x34\x25....                                    # the same with %r14
      | (?:\x4c\x8b\x35|\x49\xc7\xc6)....\x64\x4d\x8b\x36
    )?
    (?: (?:\x49\x3b\x66|\x48\x3b\x61)[\x10\x18]                     # cmp 0x10(g),%rsp
      | (?:\x4c\x8d\x64\x24.|\x4c\x8d\xa4\x24....)                  # lea -N(%rsp),%r12
        \x4d\x3b\x66[\x10\x18]                                      # cmp 0x10(%r14),%r12
      | (?:\x48\x8d\x44\x24.|\x48\x8d\x84\x24....)                  # lea -N(%rsp),%rax
        \x48\x3b\x41[\x10\x18]                                      # cmp 0x10(%rcx),%rax
      | \x49\x89\xe4\x49\x81\xec....                                # mov %rsp,%r12; sub $N,%r12
        (?:\x72.|\x0f\x82....)                                      # jb (the way to morestack)
        \x4d\x3b\x66[\x10\x18]                                      # cmp 0x10(%r14),%r12
      | \x48\x8b\x71[\x10\x18]                                      # mov 0x10(%rcx),%rsi
        \x48\x81\xfe\xde\xfa\xff\xff                                # cmp $StackPreempt,%rsi
        (?:\x74.|\x0f\x84....)                                      # je (the way to morestack)
        \x48\x8d\x84\x24....\x48\x29\xf0                            # lea N(%rsp),%rax; sub %rsi,..
        \x48\x3d....                                                # cmp $N,%rax
    )
    (?P<branch>\x76.|\x0f\x86....)                                  # jbe
    """,
    re.DOTALL | re.VERBOSE,
)

# The stack's limit is at 0x70 in the thread control block; frames are small or large.
_SPLIT_STACK = re.compile(
    rb"""
    (?:\xf3\x0f\x1e\xfa)?                                           # endbr64
    (?: \x64\x48\x3b\x24\x25\x70\x00\x00\x00                        # cmp %fs:0x70,%rsp
      | (?:\x4c\x8d[\x94\x9c]\x24....|\x4c\x8d[\x54\x5c]\x24.)      # lea -N(%rsp),%r10 or %r11
        \x64\x4c\x3b[\x14\x1c]\x25\x70\x00\x00\x00                  # cmp %fs:0x70,%r10 or %r11
    )
    (?P<branch>[\x72\x73].|\x0f[\x82\x83]....)                      # jb, jae
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class StackCheck:
    """Locate a Go stack check, as offsets from the function's entry.

    ``branch`` is the ``jbe`` to the code that grows the stack and then jumps back to the entry;
    ``end`` the first byte after it, reached exactly once per call. SP has not moved there and
    all argument registers are intact; g is in R14, in RCX for Go <= 1.16.
    """

    branch: int
    end: int


def stack_check(code: bytes) -> StackCheck | None:
    """Return the Go stack check at the start of a function's ``code``, None if it has none."""
    match = _STACK_CHECK.match(code)
    if match is None:
        return None
    target = _branch_target(match)
    # The way to morestack is laid out after the body. Anything else is not the compiler's.
    if not match.end() < target < len(code):
        return None
    return StackCheck(match.start("branch"), match.end())


@dataclass(frozen=True, slots=True)
class SplitStack:
    """Locate a gccgo ``-fsplit-stack`` check, as offsets from the function's entry.

    ``branch`` is the check's conditional jump, executed exactly once per call. ``body`` is
    where the function proper begins, reached once whether or not __morestack was called, on
    the stack that the function returns on. ``slow`` is where the way to __morestack begins.
    """

    branch: int
    body: int
    slow: int


def split_stack(code: bytes) -> SplitStack | None:
    """Return the split-stack check at the start of a function's ``code``, None if it has none."""
    match = _SPLIT_STACK.match(code)
    if match is None:
        return None
    target = _branch_target(match)
    if not match.end() < target < len(code):
        return None
    condition = match["branch"][-5:][0]  # last opcode byte: the displacement is 1 or 4 bytes
    if condition & 1 == 0:  # jb, and jae is odd
        return SplitStack(match.start("branch"), body=match.end(), slow=target)
    return SplitStack(match.start("branch"), body=target, slow=match.end())


def _branch_target(match: re.Match[bytes]) -> int:
    """Return where the jcc that ends ``match`` goes, in either of its encodings."""
    branch: bytes = match["branch"]
    displacement = branch[1:] if len(branch) == 2 else branch[2:]
    return match.end() + int.from_bytes(displacement, "little", signed=True)


# disp(%rsp) as modrm, SIB and displacement; with any register, and with opcode extension 0.
_SLOT = (
    r"(?:[\x44\x4c\x54\x5c\x64\x6c\x74\x7c]\x24."
    r"|[\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24....|[\x04\x0c\x14\x1c\x24\x2c\x34\x3c]\x24)"
)
_SLOT0 = r"(?:\x44\x24.|\x84\x24....|\x04\x24)"
_REX = r"[\x40-\x4f]?"

#: An instruction that may be between the entry and any site: it can neither branch nor fault,
#: and writes nothing but flags, the stack by an offset from RSP, RBP, R12, X15 (neither carries an
#: argument) and, in the first two cases, RSP. What is read by an offset from RIP is the program's
#: own data, which is always there.
_HARMLESS = re.compile(
    rf"""
      \x48\x83\xec(?P<sub8>[\x00-\x7f])           # sub $N,%rsp
    | \x48\x81\xec(?P<sub32>...[\x00-\x7f])
    | \x48\x83\xc4(?P<add8>[\x80-\xff])           # add $-N,%rsp
    | \xf3\x0f\x1e\xfa                            # endbr64
    | \x66?\x0f\x1f(?:\x00|\x40.|\x44\x00.|\x80....|\x84\x00....) | \x66\x90            # nop
    | \x66?{_REX}(?:[\x38-\x3b\x84\x85][\xc0-\xff]|\x83[\xf8-\xff].)                    # cmp, test
    | {_REX}(?:\x80[\xf8-\xff].|\x81[\xf8-\xff]....|\x3c.|\x3d....)                     # cmp $N
    | \x66?{_REX}[\x38-\x3b\x84\x85][\x05\x0d\x15\x1d\x25\x2d\x35\x3d]....              # cmp, test
                                                                                # N(%rip)
    | \x66?{_REX}[\x80\x83]\x3d.....             # cmp $M,N(%rip)
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

#: One of them that stores: its ModRM byte and displacement.
_STORE = re.compile(
    rb"[\xf2\xf3\x66]?[\x40-\x4f]?(?:\x0f\x11|[\x88\x89\xc6\xc7])(?P<modrm>.)\x24(?P<offset>.{0,4})",
    re.DOTALL,
)
#: Bytes of a displacement by the first two bits of ModRM.
_OFFSET_SIZE = (0, 1, 4)


@functools.cache
def _computing() -> re.Pattern[bytes]:
    """Return an expression of what may be before a site, too, where no arguments are read there.

    Such an instruction can neither branch nor fault, and writes any registers but RSP and R14,
    where g is. It reads registers, the stack, or by an offset from RIP.
    """
    forms = []
    # As a destination RSP is 4 without the extension that REX has for it, R14 is 6 with it.
    for extended, excluded in ((False, 4), (True, 6)):
        kept = [number for number in range(8) if number != excluded]
        in_low = _rex(_REX_B, extended)
        narrow_low = _rex(_REX_B, extended, without=_REX_W)
        wide_low = _rex(_REX_B, extended, only=_REX_W)
        in_reg = _rex(_REX_R, extended)
        on_stack = _rex(_REX_R, extended, without=_REX_B | _REX_X)
        low = any_of(*(0xC0 | reg << 3 | rm for reg in range(8) for rm in kept))
        reg = any_of(*(0xC0 | reg << 3 | rm for reg in kept for rm in range(8)))
        near, far, at, rip = (
            any_of(*(mod << 6 | reg << 3 | rm for reg in kept))
            for mod, rm in ((1, 4), (2, 4), (0, 4), (0, 5))
        )
        memory = rf"(?:{near}\x24.|{far}\x24....|{at}\x24|{rip}....)"

        def group(*extensions: int, kept: list[int] = kept) -> str:
            return any_of(*(0xC0 | number << 3 | rm for number in extensions for rm in kept))

        to_low = any_of(*(base + form for base in range(0, 0x40, 8) for form in (0, 1)), 0x88, 0x89)
        to_reg = any_of(
            *(base + form for base in range(0, 0x40, 8) for form in (2, 3)), 0x63, 0x8A, 0x8B
        )
        to_reg = rf"(?:{to_reg}|\x0f[\x40-\x4f\xaf\xb6\xb7\xbe\xbf])"
        forms += [
            rf"{in_low}{to_low}{low}",
            rf"{in_low}[\x80\x83]{group(*range(8))}.",
            rf"{in_low}\x81{group(*range(8))}....",
            rf"{in_low}[\xc0\xc1]{group(4, 5, 7)}.",
            rf"{in_low}[\xd0-\xd3]{group(4, 5, 7)}",
            rf"{in_low}\xf7{group(2, 3)}",
            rf"{in_low}\xff{group(0, 1)}",
            rf"{in_low}\xc7{group(0)}....",
            rf"{narrow_low}{any_of(*(0xB8 | number for number in kept))}....",
            rf"{wide_low}{any_of(*(0xB8 | number for number in kept))}........",
            rf"{in_reg}{to_reg}{reg}",
            rf"{on_stack}{to_reg}{memory}",
            rf"{in_reg}\x8d{modrm(kept, register=False)}",
        ]
    # movups, movaps, ucomis, comis, sqrt, and to xor, add, mul, cvt, sub, min, div, max; movd, pxor
    forms.append(rf"[\x66\xf2\xf3]?{_REX}\x0f[\x10\x28\x2e\x2f\x51\x54-\x5f][\xc0-\xff]")
    forms.append(rf"\x66{_REX}\x0f[\x6e\xef][\xc0-\xff]")
    return re.compile("|".join(forms).encode(), re.DOTALL)


_REX_B, _REX_X, _REX_R, _REX_W = 1, 2, 4, 8


def _rex(bits: int, extended: bool, without: int = 0, only: int = 0) -> str:
    """Return an expression of the REX prefixes in which ``bits`` are set, or else are not.

    None of ``without`` is set, and all of ``only`` are, whatever ``extended`` says. Where no bit
    has to be set, there may be no prefix.
    """
    needed = (bits if extended else 0) & ~only | only
    excluded = (0 if extended else bits) & ~only | without
    found = [rex for rex in range(0x40, 0x50) if rex & needed == needed and not rex & excluded]
    return any_of(*found) + ("" if needed else "?")


#: Whatever could be a jump backwards, wherever an instruction may begin: jcc, jmp, loop, jrcxz.
_SHORT_BACKWARD = re.compile(rb"(?=[\x70-\x7f\xe0-\xe3\xeb]([\x80-\xff]))", re.DOTALL)
_NEAR_BACKWARD = re.compile(rb"(?=(?:\xe9|\x0f[\x80-\x8f])(...\xff))", re.DOTALL)
#: A short jump's size and how far back it reaches from its end.
_SHORT_SIZE, _SHORT_REACH = 2, 128
#: Compilers emit a dozen such instructions at most; a file made to be slow may hold millions.
_MAX_WALK = 32


def first_emulated(code: bytes, values: bool = True, stack: bool = True) -> tuple[int, int] | None:
    """Return the first emulated instruction that only harmless ones precede.

    With ``values``, registers that carry arguments are there as they were at the entry, and with
    ``stack`` so are arguments on the stack.
    The result is its offset in ``code``, which begins at the function's entry, and by how many
    bytes the stack pointer has been lowered there; None when something else comes first.
    """
    at = lowered = 0
    for _ in range(_MAX_WALK):
        if EMULATED.match(code, at) is not None:
            return at, lowered
        match = _HARMLESS.match(code, at)
        if match is None:
            computing = None if values else _computing().match(code, at)
            if computing is None:
                return None
            at = computing.end()
            continue
        if values and stack and _may_change_argument(match[0], lowered):
            return None
        amount = match["sub8"] or match["sub32"] or match["add8"] or b"\0"
        lowered += abs(int.from_bytes(amount, "little", signed=True))
        at = match.end()
    return None


def _may_change_argument(instruction: bytes, lowered: int) -> bool:
    """Return whether an instruction stores to the frame of the caller.

    There are the slots where arguments in registers are spilled, and before them the arguments on
    the stack. A store to the first slots may be either.
    """
    store = _STORE.match(instruction)
    if store is None:
        return False
    size = _OFFSET_SIZE[store["modrm"][0] >> 6]
    return int.from_bytes(store["offset"][:size], "little", signed=True) >= lowered


def may_branch_to_start(code: bytes, last: int) -> bool:
    """Return whether any bytes of ``code`` read as a branch to one of the offsets 0..``last``.

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
