# SPDX-License-Identifier: Apache-2.0
"""Records of a function's machine code, whatever the architecture."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gotrace.errors import GotraceError
from gotrace.records import dataclass

#: Larger functions are not decoded: compilers emit none, and a file made to be slow is given up.
MAX_SIZE = 1 << 21


class SiteError(GotraceError):
    """A function has no exact entry site, or its RETs cannot be found."""


class SiteForm(Enum):
    """The instruction of a site, on which a hit's cost and needs depend.

    EMULATED: the kernel emulates it within the breakpoint's trap.
    BRANCH: the branch of the stack check to where the stack grows, ``jbe`` or ``b.ls``, emulated
    too. The BPF program must drop the hit when the saved flags say that the branch is taken: the
    function starts again then. On amd64 CF or ZF is set, on arm64 C is clear or Z set.
    FIRST: the function's first instruction, single-stepped out of line, a second trap. On arm64 it
    is the last one of the assembler's sequence that the function begins with.
    RET: a return. On amd64 it is single-stepped too. On arm64 the kernel emulates it.
    """

    EMULATED = "emulated"
    BRANCH = "branch"
    FIRST = "first"
    RET = "ret"


class Choice(NamedTuple):
    """An entry site, in offsets from the function's entry; the rest is as `Site` has it."""

    offset: int
    form: SiteForm
    sp_offset: int
    faults: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """One direct jump or call and where it goes, as offsets from the function's entry."""

    at: int
    target: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Summarise the control flow of one function; all places are offsets from its entry.

    ``returns`` are its RETs, ``branches`` its direct jumps, conditional or not, also those to
    other functions, ``calls`` its direct calls, ``tail_jumps`` counts the jumps that leave it,
    indirect ones included. ``undecodable`` is where decoding stopped, None when all but padding
    was decoded.
    """

    returns: tuple[int, ...]
    branches: tuple[Branch, ...]
    calls: tuple[Branch, ...]
    tail_jumps: int
    undecodable: int | None


@dataclass(frozen=True, slots=True)
class Exits:
    """The ways out of one function; all places are offsets from its entry.

    ``returns`` are its RETs, ``targets`` the places that direct jumps out of it lead to,
    ``tail_jumps`` counts all jumps out of it, indirect ones included. ``undecodable`` is as in
    `Flow`.
    """

    returns: tuple[int, ...]
    targets: tuple[int, ...]
    tail_jumps: int
    undecodable: int | None
