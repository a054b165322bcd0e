# SPDX-License-Identifier: Apache-2.0
"""The probes that see work go from goroutine to goroutine (bpf/edges.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from typing import ClassVar

from gotrace.errors import GotraceError
from gotrace.gotypes.wait_reasons import WaitFor, WaitReasons, reason_numbers
from gotrace.kernel.attach import ProbeGroup
from gotrace.records import dataclass
from gotrace.session.scheduler import (
    SchedulerFile,
    SchedulerProbes,
    check_watchable,
    go_version,
    needed_reasons,
    scheduler_files,
)
from gotrace.session.tasks import Tasks, runtime_group
from gotrace.settings import EdgeSettings
from gotrace.sites.edges import EdgeSite, channel_sites, collection_site, timer_sites, try_sites
from gotrace.sites.records import SiteError
from gotrace.sites.scheduler import SchedulerSites, runtime_code, start_site
from gotrace.sites.sites import Site
from gotrace.target.target import Target, TargetBinary

#: Bytes from gobuf.pc to gobuf.ctxt, releases 1.15 to 1.27.
_PC_TO_CTXT = 16
#: The BPF function of ``collection_site``.
_COLLECTED = "on_collected"
#: Waits for work, and others after which a goroutine may do others' work.
_WORK = {WaitFor.RECEIVE, WaitFor.SELECT, WaitFor.COND}
_REST = {WaitFor.SLEEP, WaitFor.NETWORK}
_NEEDED = _WORK | _REST | {WaitFor.SEMAPHORE}
#: Numbers of reasons that a word has bits for; Go 1.27 has 47.
_MAX_NUMBERS = 64
_JOIN = "sync.(*WaitGroup).Wait"


@dataclass(frozen=True)
class EdgeProbes(SchedulerProbes):
    """The probes of one runtime's scheduler, channels and timers.

    ``states``: changes of goroutines' states are reported as well. ``is_whose``: it is to be known
    whose work is whose, which takes the probes of channels and timers. ``flight``: records are kept
    until something is seen, which may be the signal of that number, 0 for none.
    ``is_lean``: nothing is seen but that the collector has run.
    """

    reasons: WaitReasons
    states: bool = False
    is_whose: bool = True
    flight: int | None = None
    is_lean: bool = False

    COUNTED: ClassVar[str] = "hands work on, or waits for it, {} times a second"
    #: The cost of a hit beyond that of a program that counts: some of them send a record.
    PROGRAM_NS: ClassVar[int] = 400

    @property
    def program_ns(self) -> int:
        return self.PROGRAM_NS

    def settings(self) -> EdgeSettings:
        """Return the settings of bpf/edges.h."""
        layout = self.tasks.layout
        assert layout is not None
        return EdgeSettings(
            edge_states=bool(self.states),
            edge_sched_bp=layout.g_sched_bp,
            edge_sched_ctxt=layout.g_sched_pc + _PC_TO_CTXT,
            edge_sudog_elem=layout.sudog_elem,
            edge_coroarg=self.coroarg,
            edge_receive=_bits(self.reasons, {WaitFor.RECEIVE}),
            edge_select=_bits(self.reasons, {WaitFor.SELECT}),
            edge_work=_bits(self.reasons, _WORK),
            edge_rest=_bits(self.reasons, _REST),
            edge_join=_bits(self.reasons, {WaitFor.JOIN}),
            **self._old_joins(),
            **self._own_code(),
            flight=None if self.flight is None else True,
            flight_signal=self.flight,
        )

    def _old_joins(self) -> dict[str, int]:
        """Return how to know a WaitGroup's wait where its reason is that of other semaphores.

        That is where its code is, from where goroutines' states change: wherever both are loaded.
        """
        if reason_numbers(self.reasons, {WaitFor.JOIN}):
            return {}
        for file, sites in self.files:
            for row in file.functions.rows_named(_JOIN):
                function = file.functions.function(row)
                return {
                    "edge_semaphore": _bits(self.reasons, {WaitFor.SEMAPHORE}),
                    "edge_join_at": function.entry - sites.status.address & (1 << 64) - 1,
                    "edge_join_size": function.end - function.entry,
                }
        return {}

    def _own_code(self) -> dict[str, int]:
        """Return how to know the runtime's go statements: where its code is from ``start_site``."""
        (file, _), *_ = self.files
        own = None if self.is_lean else runtime_code(file.functions)
        if own is None:
            return {}
        at = own.start - start_site(file.functions).address & (1 << 64) - 1
        return {"edge_own_at": at, "edge_own_size": len(own)}

    def _chosen(self, sites: SchedulerSites) -> Sequence[tuple[str, Site | None]]:
        return [("on_edge_status", sites.status), ("on_edge_coroutine", sites.coroutine)]

    def groups(self) -> list[ProbeGroup]:
        """Return the groups to attach, before those of any traced function."""
        return list(self._groups)

    @cached_property
    def _groups(self) -> Sequence[ProbeGroup]:
        sites: dict[tuple[str, int], tuple[TargetBinary, list[Site]]] = {}
        for file, edge in self._edges():
            sites.setdefault((edge.function, edge.number), (file, []))[1].append(edge.site)
        return [
            runtime_group(function, self.target, file, found, self.tasks.runtime_kind(file), number)
            for (function, number), (file, found) in sites.items()
        ]

    def rare(self) -> list[ProbeGroup]:
        """Return the groups of the probe that is nearly never hit: where the collector has run."""
        return [group for group in self.groups() if group.function == _COLLECTED]

    def frequent(self) -> list[ProbeGroup]:
        return [group for group in self.groups() if group.function != _COLLECTED]

    def _edges(self) -> Iterator[tuple[TargetBinary, EdgeSite]]:
        if self.is_lean:
            for file, _ in self.files:
                yield file, collection_site(file.functions)
            return
        for file, _, function, site in self._probes():
            yield file, EdgeSite(function, site)
        for file, _ in self.files:
            table = file.functions
            yield file, EdgeSite("on_edge_go", start_site(table))
            if not self.is_whose:
                continue
            yield file, collection_site(table)
            for edge in (*channel_sites(table), *try_sites(table), *timer_sites(table)):
                yield file, edge


def _bits(reasons: WaitReasons, wanted: Set[WaitFor]) -> int:
    """Return a word in which the bits of the reasons' numbers are set."""
    return sum(1 << number for number in reason_numbers(reasons[:_MAX_NUMBERS], wanted))


def edge_probes(
    target: Target,
    tasks: Tasks,
    what: str,
    states: bool,
    is_whose: bool = True,
    flight: int | None = None,
    is_lean: bool = False,
) -> EdgeProbes:
    """Return the probes that ``what`` needs. Raises GotraceError if they are not possible."""
    check_watchable(tasks, what)
    if tasks.layouts or len(tasks.files) > 1:
        raise GotraceError(f"{what} follows one runtime: give one program, without plugins")
    files: Sequence[SchedulerFile] = scheduler_files(tasks.files, what)
    (file, _), *_ = files
    reasons = needed_reasons(file, what, lambda known: all(_bits(known, {one}) for one in _NEEDED))
    probes = EdgeProbes(target, tasks, tuple(files), reasons, states, is_whose, flight, is_lean)
    try:
        probes.groups()
    except SiteError as error:
        raise GotraceError(
            f"{file.image.display}: {what} needs Go 1.19 or newer: the channels of"
            f" {go_version(file)} are not known: {error}"
        ) from error
    return probes
