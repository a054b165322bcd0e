# SPDX-License-Identifier: Apache-2.0
"""Find where the runtime unwinds frames that will never return: recovered panics and Goexit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gotrace.sites.machine import machine_code
from gotrace.sites.sites import Site, SiteError, SiteForm, SiteKind, entry_site

if TYPE_CHECKING:
    from gotrace.elf.functions import FunctionTable

__all__ = [
    "UnwindSites",
    "unwind_sites",
]


@dataclass(frozen=True, slots=True)
class UnwindSites:
    """The sites that report unwound frames.

    ``recoveries`` are the calls of ``runtime.gogo`` in ``runtime.recovery``: there g.sched.sp is
    where the deferring function goes on (src/runtime/panic.go, all releases from 1.15 to 1.27).
    ``goexit`` is the entry of ``runtime.goexit1``, which ends every goroutine. Empty or None where
    the binary has no such function.
    """

    recoveries: tuple[Site, ...]
    goexit: Site | None


def unwind_sites(table: FunctionTable) -> UnwindSites:
    """Return the unwinding sites of a Go binary."""
    return UnwindSites(tuple(_calls(table, "runtime.recovery", "runtime.gogo")), _goexit(table))


def _calls(table: FunctionTable, caller: str, callee: str) -> list[Site]:
    targets = {table.function(row).entry for row in table.rows_named(callee)}
    sites = []
    for row in table.rows_named(caller):
        function = table.function(row)
        code = table.image.read(function.entry, function.end - function.entry)
        for call in machine_code(table.image.arch).control_flow(code).calls:
            if function.entry + call.target in targets:
                address = function.entry + call.at
                sites.append(Site(address, SiteKind.ENTRY, SiteForm.EMULATED, 0))
    return sites


def _goexit(table: FunctionTable) -> Site | None:
    for row in table.rows_named("runtime.goexit1"):
        function = table.function(row)
        code = table.image.read(function.entry, function.end - function.entry)
        try:
            return entry_site(code, function, table.image.arch)
        except SiteError:
            continue
    return None
