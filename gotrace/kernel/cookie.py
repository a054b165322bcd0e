# SPDX-License-Identifier: Apache-2.0
"""Encode a site's properties for its BPF program: the attach cookie of bpf/site.h."""

from __future__ import annotations

from enum import Enum

from gotrace.sites.records import SiteForm
from gotrace.sites.sites import Site

# The names are those of bpf/site.h.
COOKIE_INDEX_MASK = 0xFFFFFF
COOKIE_FILE_SHIFT = 24
COOKIE_BRANCH = 1 << 32
COOKIE_G_REGISTER = 1 << 33
COOKIE_G_TLS = 1 << 34
COOKIE_JUMPS = 1 << 35
COOKIE_LEAVES = 1 << 36
COOKIE_LANDING = 1 << 39
COOKIE_DISTANCE_MASK = 0x3FF
COOKIE_PASSES_SHIFT = 10
COOKIE_FAULT = COOKIE_JUMPS
COOKIE_STEPPED = COOKIE_LEAVES
COOKIE_SP_SHIFT = 40

#: Files that cookies can number.
MAX_FILES = 0x100


class Jumps(Enum):
    """How a call can end without a RET of its function; the values are cookie bits.

    NONE: it cannot. AWAY: by a jump to a function that is not traced. TRACED: by a jump that may
    lead to one that is, whose RET then ends both.
    """

    NONE = 0
    AWAY = COOKIE_LEAVES
    TRACED = COOKIE_LEAVES | COOKIE_JUMPS


class TaskKind(Enum):
    """How a function's BPF program finds which task calls; the values are cookie bits."""

    THREAD = 0
    G_REGISTER = COOKIE_G_REGISTER
    G_TLS = COOKIE_G_TLS


def cookie(
    index: int,
    site: Site,
    task: TaskKind = TaskKind.THREAD,
    jumps: Jumps = Jumps.NONE,
    file: int = 0,
) -> int:
    """Return the cookie for a site that belongs to counter or function number ``index``.

    ``index`` has 24 bits, and so has the site's ``sp_offset``. ``file`` is the number of the site's
    file, below MAX_FILES, where the program has to distinguish files.
    """
    branch = COOKIE_BRANCH if site.form is SiteForm.BRANCH else 0
    flags = branch | task.value | jumps.value
    return index | file << COOKIE_FILE_SHIFT | flags | site.sp_offset << COOKIE_SP_SHIFT


def landing_cookie(
    distance: int, task: TaskKind, file: int = 0, is_stepped: bool = False, row: int = 0
) -> int:
    """Return the cookie for a landing so many bytes after the return address.

    ``is_stepped``: the kernel single-steps its instruction. ``row`` is its row of passes, 0 if it
    has none.
    """
    index = distance | row << COOKIE_PASSES_SHIFT
    stepped = COOKIE_STEPPED if is_stepped else 0
    return index | file << COOKIE_FILE_SHIFT | task.value | COOKIE_LANDING | stepped


def fault_cookie(site: Site, task: TaskKind, file: int = 0) -> int:
    """Return the cookie for the path of a fault before a landing."""
    return cookie(0, site, task, file=file) | COOKIE_LANDING | COOKIE_FAULT
