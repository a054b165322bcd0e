# SPDX-License-Identifier: Apache-2.0
"""Which of the scheduler's functions are probed to add up waits (bpf/waits.c)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.live import GoFiles
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.kernel.cookie import TaskKind, cookie
from gotrace.session.tasks import Tasks
from gotrace.settings import WaitSettings
from gotrace.sites.scheduler import SchedulerSites, scheduler_sites
from gotrace.sites.sites import Site, SiteError
from gotrace.target.target import Target, TargetBinary

__all__ = ["WaitProbes", "WaitState", "wait_probes"]


class WaitState(Enum):
    """What is added up; the values are Go's own words."""

    WAITING = "waiting"
    RUNNABLE = "runnable"
    SYSCALL = "syscall"

    @property
    def status(self) -> int:
        """Return the status of a goroutine (src/runtime/runtime2.go, Go 1.15 to 1.27)."""
        return _STATUS[self]


_STATUS = {WaitState.WAITING: 4, WaitState.RUNNABLE: 1, WaitState.SYSCALL: 3}

#: What a hit takes more than a program that counts, in ns: two stacks are followed at every second
#: one of waits, one at those of the other states.
_PROGRAM_NS = {WaitState.WAITING: 500, WaitState.RUNNABLE: 350, WaitState.SYSCALL: 300}


@dataclass(frozen=True)
class WaitProbes:
    """The probes of the target's schedulers, for its files that hold code of the runtime.

    ``reasons`` are empty where they were not found.
    """

    target: Target
    state: WaitState
    tasks: Tasks
    files: tuple[tuple[TargetBinary, SchedulerSites], ...]
    reasons: WaitReasons

    def settings(self, goroutines: int, stacks: int, rows: int) -> WaitSettings:
        """Return the settings of bpf/waits.c, by how much room there is to be."""
        layout = self.tasks.layout
        assert layout is not None
        coroargs = [sites.coroarg for _, sites in self.files if sites.coroarg is not None]
        return WaitSettings(
            site=self.target.settings(),
            tasks=self.tasks.settings(),
            state=self.state.status,
            open=goroutines,
            stacks=stacks,
            rows=rows,
            g_sched_pc=layout.g_sched_pc,
            g_sched_bp=layout.g_sched_bp,
            g_coroarg=coroargs[0] if coroargs else None,
        )

    def groups(self) -> list[ProbeGroup]:
        """Return the groups to attach."""
        groups = []
        for file, sites in self.files:
            chosen = [("on_status", sites.status)]
            if self.state is WaitState.WAITING and sites.coroutine:
                chosen.append(("on_coroutine", sites.coroutine))
            if self.state is WaitState.SYSCALL and sites.syscall and sites.syscall_end:
                chosen += [("on_syscall", sites.syscall), ("on_syscall_end", sites.syscall_end)]
            groups += [self._group(function, file, site) for function, site in chosen]
        return groups

    def _group(self, function: str, file: TargetBinary, site: Site) -> ProbeGroup:
        image = file.image
        where = cookie(0, site, TaskKind.G_REGISTER)
        point = Point(image.offset_of(site.address), site.address, where)
        path, bias, pid = file.attach_path, file.bias, self.target.pid
        return ProbeGroup(function, path, image.display, [point], bias, pid, image.identity)

    def often(self) -> list[ProbeGroup]:
        """Return the groups of the probes that are hit most: all."""
        return self.groups()

    @property
    def program_ns(self) -> int:
        """Return what a hit of those takes more than a program that counts, in ns."""
        return _PROGRAM_NS[self.state]


def wait_probes(target: Target, state: WaitState) -> WaitProbes:
    """Return what has to be probed. Raises GotraceError where that is not possible."""
    if target.process is None:
        raise UsageError("waits need one process: give -p PID or a command")
    found = GoFiles(target).all_with_runtime()
    files = []
    for file in found:
        display = file.image.display
        version = file.go_version.text if file.go_version else "this Go"
        try:
            files.append((file, scheduler_sites(file.functions)))
        except SiteError as error:
            raise GotraceError(
                f"{display}: the scheduler of {version} is not known: {error}: Go 1.19 or newer is"
                " needed"
            ) from error
    layout = found[0].runtime
    if not layout.g_in_register:
        raise GotraceError(f"{found[0].image.display}: Go 1.19 or newer is needed")
    tasks = Tasks(tuple(found), layout)
    return WaitProbes(target, state, tasks, tuple(files), found[0].wait_reasons or ())
