# SPDX-License-Identifier: Apache-2.0
"""Encode what a site tells its BPF program: the attach cookie of bpf/site.h."""

from __future__ import annotations

from enum import Enum

from gotrace.sites.sites import Site, SiteForm

__all__ = [
    "INDEX_MASK",
    "CallerKind",
    "Jumps",
    "cookie",
]

INDEX_MASK = 0xFFFFFFFF
_BRANCH = 1 << 32
_SP_SHIFT = 40


class Jumps(Enum):
    """Say how a call can end without a RET of its function; the values are cookie bits.

    NONE: it cannot. AWAY: by a jump to a function that is not traced. TRACED: by a jump that may
    lead to one that is, whose RET then ends both.
    """

    NONE = 0
    AWAY = 1 << 36
    TRACED = 1 << 36 | 1 << 35


class CallerKind(Enum):
    """Say how a function's BPF program finds who is calling; the values are cookie bits."""

    THREAD = 0
    G_REGISTER = 1 << 33
    G_TLS = 1 << 34


def cookie(
    index: int, site: Site, caller: CallerKind = CallerKind.THREAD, jumps: Jumps = Jumps.NONE
) -> int:
    """Return the cookie for a site that belongs to counter or function number ``index``.

    ``index`` has 32 bits, the site's ``sp_offset`` 24.
    """
    branch = _BRANCH if site.form is SiteForm.BRANCH else 0
    flags = branch | caller.value | jumps.value
    return index | flags | site.sp_offset << _SP_SHIFT
