"""Encode what a site tells its BPF program: the attach cookie of bpf/site.h."""

from __future__ import annotations

from enum import Enum

from gotrace.probes.sites import Site, SiteForm

__all__ = ["INDEX_MASK", "CallerKind", "cookie"]

INDEX_MASK = 0xFFFFFFFF
_BRANCH = 1 << 32
_JUMPS = 1 << 35
_SP_SHIFT = 40


class CallerKind(Enum):
    """Say how a function's BPF program finds who is calling; the values are cookie bits."""

    THREAD = 0
    G_REGISTER = 1 << 33
    G_TLS = 1 << 34


def cookie(
    index: int, site: Site, caller: CallerKind = CallerKind.THREAD, jumps: bool = False
) -> int:
    """Return the cookie for a site that belongs to counter or function number ``index``.

    ``index`` has 32 bits, the site's ``sp_offset`` 24. ``jumps``: the function can end by a jump
    to another one.
    """
    branch = _BRANCH if site.form is SiteForm.BRANCH else 0
    flags = branch | caller.value | (_JUMPS if jumps else 0)
    return index | flags | site.sp_offset << _SP_SHIFT
