"""Recognise the stack checks with which amd64 functions of Go and gccgo begin.

Go's come from ``stacksplit`` in src/cmd/internal/obj/x86/obj6.go, read in Go 1.15, 1.19 and
1.27; gccgo's from ``ix86_expand_split_stack_prologue`` in gcc/config/i386/i386.cc (GCC 12) with
libgcc/config/i386/morestack.S. Matching bytes, without a disassembler, is what makes choosing
the sites of a whole large binary take a fraction of a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SplitStack", "StackCheck", "split_stack", "stack_check"]

# g is in R14 (ABIInternal, Go >= 1.17), or is first loaded from thread-local storage: into R14
# by the ABI0 functions of Go >= 1.17, into RCX before. It lies at an offset from FS that is in
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
    # The way to morestack is laid out behind the body. Anything else is not the compiler's.
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
