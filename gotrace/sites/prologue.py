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

import re
from dataclasses import dataclass

from gotrace.sites.emulation import EMULATED

__all__ = [
    "SplitStack",
    "StackCheck",
    "first_emulated",
    "may_branch_to_start",
    "split_stack",
    "stack_check",
]

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

#: An instruction that may be between the entry and a site: it can neither branch nor fault,
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
_MAX_WALK = 32


def first_emulated(code: bytes) -> tuple[int, int] | None:
    """Return the first emulated instruction that only harmless ones precede.

    The result is its offset in ``code``, which begins at the function's entry, and by how many
    bytes the stack pointer has been lowered there; None when something else comes first.
    """
    at = lowered = 0
    for _ in range(_MAX_WALK):
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
