# SPDX-License-Identifier: Apache-2.0
"""Probes that find out where the time of calls goes (bpf/why.h)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar

from gotrace.errors import GotraceError, said
from gotrace.kernel.program import BpfProgram
from gotrace.records import dataclass
from gotrace.session.scheduler import (
    SchedulerFile,
    SchedulerProbes,
    check_watchable,
    kernel_offsets,
    needed_reasons,
    scheduler_files,
)
from gotrace.session.tasks import Tasks
from gotrace.session.why.parts import part_names, part_table
from gotrace.settings import WhySettings
from gotrace.sites.scheduler import SchedulerSites
from gotrace.sites.sites import Site
from gotrace.target.target import Target, TargetBinary


@dataclass(frozen=True, slots=True)
class WhyOptions:
    """The facts to find out: system calls, who ended the longest wait, parts for predicates."""

    syscalls: bool = True
    callers: bool = False
    classes: bool = False


#: Maps whose keys have a process's number, and where in them that is.
BY_PROCESS = (("why_rows", 8), ("why_worlds", 0))

_ROWS = 1 << 14
_SAVED = 1 << 13
_THREADS = 1 << 15
_SITE = struct.Struct("=qq")  # struct why_site
_MIN_BANDS, _MAX_BANDS = 1 << 10, 1 << 13
_BANDS_PER_HISTOGRAM = 64


def _bands(histograms: int) -> int:
    """Return for how many of their buckets there is room to keep parts apart."""
    return min(max(_MIN_BANDS, _BANDS_PER_HISTOGRAM * histograms), _MAX_BANDS)


@dataclass(frozen=True)
class WhyProbes(SchedulerProbes):
    """The probes of the schedulers for runs that measure calls as well.

    ``names`` are those of the parts, ``release`` is the Go release.
    """

    options: WhyOptions
    names: tuple[str, ...]
    release: tuple[int, int]

    OFTEN: ClassVar = ("on_status", "on_syscall", "on_syscall_end")

    def settings(self, histograms: int | None = None) -> WhySettings:
        """Return the settings of bpf/why.h. Raises GotraceError.

        ``histograms`` is of how many the parts are added up, None where they are not.
        """
        layout = self.tasks.layout
        assert layout is not None
        kernel = kernel_offsets()
        return WhySettings(
            why_parts=len(self.names),
            why_rows=_ROWS,
            why_saved=_SAVED,
            why_threads=_THREADS,
            why_sites=max(1, len(list(self._probes()))),
            why_bands=_bands(histograms) if histograms else None,
            why_unnamed=self.release < _NAMED_SINCE,
            why_callers=self.options.callers,
            why_classes=self.options.classes,
            g_status=layout.g_atomicstatus,
            g_syscallpc=layout.g_syscallpc,
            g_sched_pc=layout.g_sched_pc,
            g_sched_bp=layout.g_sched_bp,
            g_coroarg=self.coroarg,
            task_pid=kernel.pid,
            task_state=kernel.state,
            task_throttled=kernel.throttled,
            task_cfs_rq=kernel.queue,
            cfs_rq_throttled=kernel.count,
            waited=kernel.waited,
        )

    def _chosen(self, sites: SchedulerSites) -> Sequence[tuple[str, Site | None]]:
        chosen = [
            ("on_status", sites.status),
            ("on_preempt", sites.preempt),
            ("on_coroutine", sites.coroutine),
            ("on_stop_world", sites.stop_world),
            ("on_start_world", sites.start_world),
        ]
        if self.options.syscalls:
            chosen += [("on_syscall", sites.syscall), ("on_syscall_end", sites.syscall_end)]
        return chosen

    def prepare(self, program: BpfProgram) -> None:
        """Fill the maps of a loaded program and attach to the kernel's scheduler.

        Raises LoadError.
        """
        rows = program.map("why_sites")
        for number, (_, sites, _, site) in enumerate(self._probes()):
            low, high = sites.cgocall or (0, 0)
            row = _SITE.pack(low - site.address, high - site.address)
            rows.update(number.to_bytes(4, "little"), row)
        program.map("why_tables").update(bytes(4), part_table(self.names))
        program.attach_tracepoint("sched_switch", ["on_switch", "on_switch_without_state"])

    @property
    def program_ns(self) -> int:
        """Return the cost of a hit beyond that of a program that counts, in ns."""
        return _PROGRAM_NS


#: The cost of on_status beyond that of a program that counts, in ns, outside of traced calls.
_PROGRAM_NS = 100
#: Since Go 1.20 the runtime says why it waits on the system stack before it does.
_NAMED_SINCE = (1, 20)


def why_probes(target: Target, tasks: Tasks, options: WhyOptions) -> WhyProbes:
    """Return the probes. Raises GotraceError if they are not possible."""
    why = said("--why", "why=True")
    check_watchable(tasks, why)
    files = scheduler_files(tasks.files, why)
    names: tuple[str, ...] = ()
    for number, (file, _) in enumerate(files, 1):
        reasons = needed_reasons(file, why)
        if names and (names != part_names(reasons) or not _alike(files[:number])):
            raise GotraceError(
                f"{why} cannot watch different runtimes in one run: {_described(files[0][0])} and"
                f" {_described(file)} differ: trace them one by one"
            )
        names = part_names(reasons)
    release = next((f.go_version.release for f in tasks.files if f.go_version), _NAMED_SINCE)
    return WhyProbes(target, tasks, files, options, names, release)


def _alike(files: Sequence[SchedulerFile]) -> bool:
    """Return whether the settings of a runtime are the same for all files."""
    # Not known where the program has no coroutines.
    coroargs = {sites.coroarg for _, sites in files} - {None}
    return len(coroargs) < 2 and len({_offsets(file) for file, _ in files}) == 1


def _offsets(file: TargetBinary) -> tuple[object, ...]:
    layout = file.runtime
    unnamed = (file.go_version.release if file.go_version else _NAMED_SINCE) < _NAMED_SINCE
    return (
        unnamed,
        layout.g_in_register,
        layout.g_atomicstatus,
        layout.g_waitreason,
        layout.g_syscallpc,
        layout.g_sched_pc,
        layout.g_sched_bp,
    )


def _described(file: TargetBinary) -> str:
    version = file.go_version
    return f"{file.image.display} ({version.text if version else 'unknown Go'})"
