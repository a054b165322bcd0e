# SPDX-License-Identifier: Apache-2.0
"""Choose where a function is probed: one entry site, reached exactly once per call, and its RETs.

A Go function's first instruction is executed again whenever its stack had to grow or it was
asked to yield: ``runtime.morestack`` ends in a jump back to the entry. A probe there counts such
calls twice, and costs a single step besides. So the entry site is after the stack check
wherever one is recognised (``prologue``), on an instruction that the kernel emulates
(``emulation.EMULATED``) wherever there is one. At every site g is as the caller left it, and so are
the registers that carry arguments (int, float, closure context), unless that is not asked for.

All this is about amd64; the disassembler alone is taken from the architecture's value object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gotrace.abi.amd64 import AMD64, Architecture
from gotrace.elf import ElfError
from gotrace.elf.functions import Function
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.sites.decode import control_flow, exits
from gotrace.sites.emulation import refusal
from gotrace.sites.prologue import (
    PLAIN_RET,
    first_emulated,
    may_branch_to_start,
    split_stack,
    stack_check,
)

__all__ = [
    "FunctionSites",
    "Returns",
    "Site",
    "SiteError",
    "SiteForm",
    "SiteKind",
    "entry_site",
    "function_sites",
    "return_sites",
]


class SiteError(GotraceError):
    """A function has no exact entry site, or its RETs cannot be found."""


class SiteKind(Enum):
    """What a hit at a site means."""

    ENTRY = "entry"
    RET = "ret"


class SiteForm(Enum):
    """What instruction a site is on, and thereby what a hit costs and needs.

    EMULATED: the kernel emulates it within the breakpoint's trap.
    BRANCH: the ``jbe`` of the stack check, emulated too. The BPF program must drop the hit when
    CF or ZF is set in the saved flags: the branch is then taken and the function starts again.
    FIRST: the function's first instruction, single-stepped out of line, a second trap.
    RET: a return, single-stepped too unless the BPF program carries it out. An entry is there only
    where it does: in functions that lead straight to a RET.
    """

    EMULATED = "emulated"
    BRANCH = "branch"
    FIRST = "first"
    RET = "ret"


@dataclass(frozen=True, slots=True)
class Site:
    """One place to probe.

    ``address`` is a link-time virtual address. The stack pointer at the site plus ``sp_offset``
    is the stack pointer at the function's entry, where the return address is.
    """

    address: int
    kind: SiteKind
    form: SiteForm
    sp_offset: int


@dataclass(frozen=True, slots=True)
class Returns:
    """A function's RETs in address order, and how many jumps leave it without a RET.

    A call that ends in such a tail jump is never seen to return from this function: the RET
    that ends it belongs to the function jumped to. ``jumps_to``: the addresses that the direct ones
    of them lead to.
    """

    sites: tuple[Site, ...]
    tail_jumps: int
    jumps_to: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionSites:
    """All sites of one function.

    ``entry`` is None and ``returns`` empty where ``problem`` says why. In a function that
    consists of a single RET, ``entry`` (form FIRST) and the one of ``returns`` have the same
    address: a prober needs both there, the entry to be handled first.
    """

    function: Function
    entry: Site | None
    returns: tuple[Site, ...]
    problem: str | None
    tail_jumps: int = 0
    jumps_to: tuple[int, ...] = ()


# push %rbp; mov %rsp,%rbp: what Go >= 1.21 sets up a frame with, right after the stack check.
_FRAME_SETUP = b"\x55\x48\x89\xe5"
#: push of a register that a C callee saves: prologue, not a loop's body.
_SAVE = re.compile(rb"[\x53\x55]|\x41[\x54-\x57]")

#: Entered in the middle, at an offset that the compiler computes from the size.
_NO_SINGLE_ENTRY = frozenset({"runtime.duffzero", "runtime.duffcopy"})
#: Larger functions are not decoded: compilers emit none, and a file made to be slow is given up.
_MAX_SIZE = 1 << 21


def function_sites(
    image: ElfImage,
    function: Function,
    returns: bool,
    arch: Architecture = AMD64,
    values: bool = True,
    at_rets: bool = False,
) -> FunctionSites:
    """Choose the entry site of ``function`` and, with ``returns``, find its RETs too.

    ``values`` and ``at_rets`` are as for ``entry_site``. Never raises: ``problem`` says what is
    missing.
    """
    entry: Site | None = None
    found = Returns((), 0)
    problems = []
    try:
        code = image.read(function.entry, max(0, function.end - function.entry))
    except ElfError as error:
        return FunctionSites(function, None, (), f"{function.name}: {error}")
    try:
        entry = entry_site(code, function, arch, values, at_rets)
    except SiteError as error:
        problems.append(str(error))
    if returns:
        try:
            found = return_sites(code, function, arch)
        except SiteError as error:
            problems.append(str(error))
    problem = "; ".join(problems) if problems else None
    return FunctionSites(function, entry, found.sites, problem, found.tail_jumps, found.jumps_to)


def entry_site(
    code: bytes,
    function: Function,
    arch: Architecture = AMD64,
    values: bool = True,
    at_rets: bool = False,
) -> Site:
    """Choose the site that is reached exactly once in each call of ``function``.

    ``code`` holds the function's bytes from entry to end. With ``values`` registers that carry
    arguments are there as at the entry; where calls are only counted or measured, that need not be,
    and more functions have a cheap site; still more with ``at_rets``, where the BPF program carries
    RETs out. Raises SiteError without such a site, or where the kernel would refuse it.
    """
    if not code:
        raise SiteError(f"{function.name}: it has no code at {function.entry:#x}")
    if function.name in _NO_SINGLE_ENTRY:
        raise SiteError(f"{function.name}: no exact entry site: callers jump into its middle")
    offset, form, sp_offset = _behind_check(code) or _without_check(
        code, function, arch, values, at_rets
    )
    return Site(function.entry + offset, SiteKind.ENTRY, form, sp_offset)


def return_sites(code: bytes, function: Function, arch: Architecture = AMD64) -> Returns:
    """Find every RET of ``function``, whose bytes from entry to end are ``code``.

    Raises SiteError when some of it cannot be decoded: a list with gaps would be a guess.
    """
    if len(code) > _MAX_SIZE:
        raise SiteError(f"{function.name}: too large to be decoded ({len(code)} bytes): entry only")
    found = exits(code, arch)
    if found.undecodable is not None:
        where = function.entry + found.undecodable
        raise SiteError(f"{function.name}: cannot be decoded at {where:#x}: entry only")
    offsets = list(found.returns)
    split = split_stack(code)
    if split is not None:
        # __morestack calls the body itself; to the RET after its call it comes back only in
        # the end, to leave on the old stack: that call has then been seen to return already.
        resumed = next((at for at in offsets if at >= split.slow), None)
        offsets = [at for at in offsets if at != resumed]
    sites = (Site(function.entry + at, SiteKind.RET, SiteForm.RET, 0) for at in offsets)
    jumps_to = tuple(function.entry + target for target in found.targets)
    return Returns(tuple(sites), found.tail_jumps, jumps_to)


_Choice = tuple[int, SiteForm, int]  # offset from the entry, form, sp_offset


def _behind_check(code: bytes) -> _Choice | None:
    """Choose a site in or after the stack check, None when the code begins with no known one.

    That no branch leads there needs no proof by decoding. Assembler and compiler put the check
    and the frame's set-up before the function's entry block, and no label exists in front of
    that block but the one that the way back from morestack uses, which is the entry. A test
    holds this against the disassembly of whole programs.
    """
    check = stack_check(code)
    if check is not None:
        if code.startswith(_FRAME_SETUP, check.end):
            return check.end, SiteForm.EMULATED, 0
        return check.branch, SiteForm.BRANCH, 0
    split = split_stack(code)
    if split is None:
        return None
    # Behind the check the stack is the one of the RETs, so that stack pointers can be matched.
    at = split.body if _SAVE.match(code, split.body) else split.branch
    return at, SiteForm.EMULATED, 0


def _without_check(
    code: bytes, function: Function, arch: Architecture, values: bool, at_rets: bool
) -> _Choice:
    """Choose a site in a function that begins with no stack check: leaf, nosplit, assembly, C."""
    emulated = first_emulated(code, values, at_rets)
    if emulated is not None:
        at, sp_offset = emulated
        if _branch_to_start(code, at, function, arch) is None:
            is_ret = code.startswith(PLAIN_RET, at)
            return at, SiteForm.RET if is_ret else SiteForm.EMULATED, sp_offset
    back = _branch_to_start(code, 0, function, arch)
    if back is not None:
        raise SiteError(
            f"{function.name}: no exact entry site: the jump at {function.entry + back:#x} "
            "leads back to its first instruction"
        )
    refused = refusal(code)
    if refused is not None:
        raise SiteError(
            f"{function.name}: the kernel allows no probe on its first instruction: {refused}"
        )
    return 0, SiteForm.FIRST, 0


def _branch_to_start(code: bytes, last: int, function: Function, arch: Architecture) -> int | None:
    """Return where a branch to one of the offsets 0..``last`` is, None if there is none.

    Jumps through tables are not followed: a switch is never its own function's first block.
    """
    if len(code) > _MAX_SIZE:
        raise SiteError(f"{function.name}: too large to be decoded ({len(code)} bytes)")
    if not may_branch_to_start(code, last):
        return None
    flow = control_flow(code, arch)
    if flow.undecodable is not None:
        where = function.entry + flow.undecodable
        raise SiteError(f"{function.name}: no exact entry site: cannot be decoded at {where:#x}")
    return next((branch.at for branch in flow.branches if 0 <= branch.target <= last), None)
