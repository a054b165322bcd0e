# SPDX-License-Identifier: Apache-2.0
"""Which of the scheduler's functions are probed to add up waits (bpf/waits.c)."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.errors import GotraceError, UsageError, needs_one_process
from gotrace.goroutines.live import GoFiles
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.records import dataclass
from gotrace.session.choices import WaitState
from gotrace.session.scheduler import SchedulerProbes, scheduler_files
from gotrace.session.tasks import Tasks, interrupted_settings
from gotrace.settings import WaitSettings
from gotrace.sites.scheduler import SchedulerSites
from gotrace.sites.sites import Site
from gotrace.target.target import Target

#: GOTRACE_STATE of bpf/waits.c for all of them.
EVERY_STATE = 0


#: The cost of a hit beyond that of a program that counts, in ns: two stacks are followed at every
#: second hit of waits, one at those of the other states.
_PROGRAM_NS = {WaitState.WAITING: 500, WaitState.RUNNABLE: 350, WaitState.SYSCALL: 300, None: 500}


@dataclass(frozen=True)
class WaitProbes(SchedulerProbes):
    """The probes of one process's schedulers that add waits up.

    ``reasons`` are empty where they were not found. ``state`` is None where the time of all states
    is added up.
    """

    state: WaitState | None
    reasons: WaitReasons

    def settings(self, goroutines: int, stacks: int, rows: int) -> WaitSettings:
        """Return the settings of bpf/waits.c, by how much room there is to be."""
        return WaitSettings(
            site=self.target.settings(),
            tasks=self.tasks.settings(),
            state=self.state.status if self.state else EVERY_STATE,
            followed=goroutines,
            stacks=stacks,
            rows=rows,
            interrupted=interrupted_settings(self.tasks),
            g_coroarg=self.coroarg,
        )

    def _chosen(self, sites: SchedulerSites) -> Sequence[tuple[str, Site | None]]:
        chosen: list[tuple[str, Site | None]] = [("on_status", sites.status)]
        if self.state in (WaitState.WAITING, None):
            chosen.append(("on_coroutine", sites.coroutine))
        if self.state is None:
            chosen.append(("on_preempt", sites.preempt))
        if self.state in (WaitState.SYSCALL, None) and sites.syscall and sites.syscall_end:
            chosen += [("on_syscall", sites.syscall), ("on_syscall_end", sites.syscall_end)]
        return chosen

    @property
    def program_ns(self) -> int:
        """Return the cost of a hit beyond that of a program that counts, in ns."""
        return _PROGRAM_NS[self.state]


def wait_probes(target: Target, state: WaitState | None) -> WaitProbes:
    """Return the probes for a state, or for all if None. Raises GotraceError if it cannot be."""
    if target.process is None:
        raise UsageError(needs_one_process("waits need"))
    found = GoFiles(target).all_with_runtime()
    files = scheduler_files(found, "watching waits")
    layout = found[0].runtime
    if not layout.g_in_register:
        raise GotraceError(f"{found[0].image.display}: watching waits needs Go 1.19 or newer")
    tasks = Tasks(tuple(found), layout)
    return WaitProbes(target, tasks, files, state, found[0].wait_reasons or ())
