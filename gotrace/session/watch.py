"""Watch the runtime itself where pairing calls, or reading float registers, depends on it."""

from __future__ import annotations

from collections.abc import Iterable

from gotrace.probes.sites import Site, function_sites
from gotrace.probes.unwind import unwind_sites
from gotrace.session.attach import Point, ProbeGroup
from gotrace.session.callers import Callers
from gotrace.session.cookie import CallerKind, cookie
from gotrace.session.plan import BinaryPlan
from gotrace.session.target import Target

__all__ = ["signal_groups", "unwind_groups"]


def unwind_groups(target: Target, callers: Callers) -> list[ProbeGroup]:
    """Return the groups that watch the runtime unwind frames and end goroutines."""
    if callers.layout is None:
        return []
    kind = CallerKind.G_REGISTER if callers.layout.g_in_register else CallerKind.G_TLS
    groups = []
    for file in callers.files:
        found = unwind_sites(file.table)
        goexit = (found.goexit,) if found.goexit else ()
        groups.append(_group("on_recovery", target, file, found.recoveries, kind))
        groups.append(_group("on_goexit", target, file, goexit, kind))
    return groups


def signal_groups(target: Target, callers: Callers) -> list[ProbeGroup]:
    """Return the groups that watch the entry of the runtime's signal handlers."""
    groups = []
    for file in callers.files:
        table, image = file.table, file.binary.image
        rows = [
            row
            for name in ("runtime.sigtramp", "runtime.cgoSigtramp")
            for row in table.rows_named(name)
            if not table.is_wrapper(row)
        ]
        found = [function_sites(image, table.function(row), returns=False).entry for row in rows]
        sites = [site for site in found if site is not None]
        groups.append(_group("on_signal", target, file, sites, CallerKind.THREAD))
    return groups


def _group(
    program: str, target: Target, file: BinaryPlan, sites: Iterable[Site], kind: CallerKind
) -> ProbeGroup:
    image = file.binary.image
    points = [
        Point(image.offset_of(site.address), site.address, cookie(0, site, kind)) for site in sites
    ]
    path, bias = file.binary.attach_path, file.binary.bias
    identity = image.identity
    return ProbeGroup(program, path, image.display, points, bias, target.pid, identity)
