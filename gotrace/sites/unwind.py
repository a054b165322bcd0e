# SPDX-License-Identifier: Apache-2.0
"""Find where the runtime ends calls: recovered panics, Goexit, and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.records import dataclass
from gotrace.sites.machine import machine_code
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, SiteKind, entry_site

if TYPE_CHECKING:
    from gotrace.elf.functions import FunctionTable


@dataclass(frozen=True, slots=True)
class UnwindSites:
    """The sites that report unwound frames.

    ``recoveries`` are the calls of ``runtime.gogo`` in ``runtime.recovery``: there g.sched.sp is
    where the deferring function goes on (src/runtime/panic.go, all releases from 1.15 to 1.27).
    ``ends`` are the entries of ``runtime.goexit1``, which ends a goroutine, and of what ends that
    of a coroutine: ``runtime.coroexit``, or what ``runtime.corostart`` defers, in which that is
    inlined (src/runtime/coro.go, Go 1.23). Empty where the binary has no such function.
    """

    recoveries: tuple[Site, ...]
    ends: tuple[Site, ...]


_ENDS = ("runtime.goexit1", "runtime.coroexit", "runtime.corostart.deferwrap1")


def unwind_sites(table: FunctionTable) -> UnwindSites:
    """Return the unwinding sites of a Go binary."""
    recoveries = _calls(table, "runtime.recovery", "runtime.gogo")
    ends = (_entry(table, name) for name in _ENDS)
    return UnwindSites(tuple(recoveries), tuple(site for site in ends if site is not None))


def fault_site(table: FunctionTable) -> Site | None:
    """Return where a goroutine goes on that uses a nil pointer: the entry of ``runtime.sigpanic``.

    The runtime's signal handler has it called by the instruction that has faulted
    (``preparePanic`` in src/runtime/signal_*.go, all releases from 1.15 to 1.27). None if the
    binary has no such function.
    """
    return _entry(table, "runtime.sigpanic")


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


def _entry(table: FunctionTable, name: str) -> Site | None:
    for row in table.rows_named(name):
        function = table.function(row)
        code = table.image.read(function.entry, function.end - function.entry)
        try:
            return entry_site(code, function, table.image.arch, stack=False)
        except SiteError:
            continue
    return None
