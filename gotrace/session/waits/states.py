# SPDX-License-Identifier: Apache-2.0
"""Add up how long goroutines are blocked, by reason, and runnable, in all processes of a file.

Without stacks, for as long as one likes (bpf/states.c). How long threads are kept off their CPUs by
a quota is added up beside it, where the kernel says which these are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum

from gotrace.errors import GotraceError
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters
from gotrace.records import dataclass
from gotrace.session.budget import counting_hits
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.scheduler import (
    KernelOffsets,
    SchedulerProbes,
    kernel_offsets,
    needed_reasons,
    scheduler_files,
)
from gotrace.session.tasks import Tasks
from gotrace.settings import StateSettings, TaskSettings
from gotrace.sites.scheduler import SchedulerSites
from gotrace.sites.sites import Site
from gotrace.target.process import in_initial_pid_namespace
from gotrace.target.target import Target, TargetBinary

SUM_RUNNABLE, SUM_THROTTLED = 256, 257
SUMS = 258

_STATES = 1 << 16
_PROCESSES = 1 << 12
_QUOTA_THREADS = 1 << 12

_KEY = struct.Struct("=QQ")  # struct state_key
_SUM = struct.Struct("=QQ")  # struct state_sum

#: The cost of a hit beyond that of a program that counts, in ns.
_PROGRAM_NS = 150


class StateKind(Enum):
    """The kind of time that is added up."""

    BLOCKED = "blocked"
    RUNNABLE = "runnable"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class StateSum:
    """How often a state was left, and how long it had lasted in all, in ns.

    ``reason`` is why, in Go's words, where goroutines are blocked.
    """

    kind: StateKind
    reason: str
    count: int
    ns: int


@dataclass(frozen=True)
class StateProbes(SchedulerProbes):
    """The probes of one file's scheduler; ``quota`` is None where nothing is known of quotas."""

    reasons: WaitReasons
    quota: KernelOffsets | None

    def settings(self, goroutines: int) -> StateSettings:
        """Return the settings of bpf/states.c, by how many goroutines there is room for."""
        quota, layout = self.quota, self.tasks.layout
        assert layout is not None
        return StateSettings(
            site=self.target.settings(),
            states=goroutines,
            processes=_PROCESSES,
            quota_threads=_QUOTA_THREADS,
            tasks=TaskSettings(g_waitreason=layout.g_waitreason),
            g_coroarg=self.coroarg,
            task_pid=quota.pid if quota else None,
            task_state=quota.state if quota else None,
            task_throttled=quota.throttled if quota else None,
            task_cfs_rq=quota.queue if quota else None,
            cfs_rq_throttled=quota.count if quota else None,
        )

    def _chosen(self, sites: SchedulerSites) -> Sequence[tuple[str, Site | None]]:
        return ("on_status", sites.status), ("on_coroutine", sites.coroutine)

    @property
    def program_ns(self) -> int:
        """Return the cost of a hit beyond that of a program that counts, in ns."""
        return _PROGRAM_NS


def state_probes(target: Target, file: TargetBinary) -> StateProbes:
    """Return the probes in a file. Raises GotraceError if they are not possible."""
    display, layout = file.image.display, file.runtime
    files = scheduler_files([file], "watching waits")
    if not layout.g_in_register:
        raise GotraceError(f"{display}: watching waits needs Go 1.19 or newer")
    reasons = needed_reasons(file, "watching waits")
    try:
        quota = kernel_offsets()
    except GotraceError:
        quota = None
    if quota is not None and quota.throttled is None and quota.queue is None:
        quota = None
    return StateProbes(target, Tasks((file,), layout), files, reasons, quota)


class StateMeter(Probing):
    """The probes that add states up; a context manager that detaches."""

    #: The causes of times that are not added up.
    LOSSES = (Diagnostic.STATES_FULL, Diagnostic.PROCESSES_FULL, Diagnostic.THREADS_FULL)

    def __init__(
        self,
        probes: StateProbes,
        forced: AttachMethod | None,
        counts_hits: bool = False,
        goroutines: int = _STATES,
    ) -> None:
        """Load and attach. Raises AttachError or LoadError."""
        self._probes = probes
        self.program_ns = probes.program_ns
        settings = probes.settings(goroutines)
        if counts_hits:
            settings = counting_hits(settings)
        self.attached: Attached = attach(settings, probes.groups(), forced, self._prepare)
        program = self.attached.program
        self._sums = Counters(program.map("state_sums"))
        self._open = program.map("open_states")
        self._processes = program.map("processes")

    def _prepare(self, program: BpfProgram) -> None:
        if self._probes.quota is not None:
            functions = ["on_switch", "on_switch_without_state"]
            program.attach_tracepoint("sched_switch", functions)

    @property
    def has_quotas(self) -> bool:
        """Return whether times without CPU quota are added up as well."""
        return self._probes.quota is not None

    def take(self) -> list[StateSum]:
        """Return the sums since the last take; nothing that comes meanwhile is lost."""
        sums, found = self._sums.take(), []
        for number, (count, ns) in enumerate(zip(sums[::2], sums[1::2], strict=True)):
            # With a wait comes its time, but perhaps later.
            if count or ns:
                kind = _KINDS.get(number, StateKind.BLOCKED)
                reason = self._reason(number) if kind is StateKind.BLOCKED else ""
                found.append(StateSum(kind, reason, count, ns))
        return found

    def _reason(self, number: int) -> str:
        reasons = self._probes.reasons
        return (reasons[number] if number < len(reasons) else "") or "unknown"

    def losses(self) -> dict[Diagnostic, int]:
        """Return how often each of ``LOSSES`` has occurred so far."""
        found = self.diagnostics()
        return {what: found[what] for what in self.LOSSES}

    def forget(self, is_running: Callable[[int], bool]) -> None:
        """Remove the entries of processes that do not run the file any more.

        The kernel's helpers number processes as the initial pid namespace does: in another one it
        is not known which these are, and nothing is removed.
        """
        if not in_initial_pid_namespace():
            return
        keys = [key for key, _ in self._open.entries()]
        processes = [key for key, _ in self._processes.entries()]
        known = {_KEY.unpack(key)[1] for key in keys}
        known |= {int.from_bytes(key, "little") for key in processes}
        gone = {tgid for tgid in known if not is_running(tgid)}
        for key in keys:
            if _KEY.unpack(key)[1] in gone:
                self._open.delete(key)
        for key in processes:
            if int.from_bytes(key, "little") in gone:
                self._processes.delete(key)


_KINDS = {SUM_RUNNABLE: StateKind.RUNNABLE, SUM_THROTTLED: StateKind.THROTTLED}


@dataclass(frozen=True, kw_only=True)
class StateRequest(RunRequest[StateMeter, None]):
    """Add up how long goroutines of all processes that run a file are in which state.

    There is room for as many ``goroutines``.
    """

    file: TargetBinary
    goroutines: int = _STATES

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Return the probes to attach. Raises GotraceError."""
        probes = state_probes(self.target, self.file)
        if accept is not None:
            accept(probes)
        problems = () if probes.quota else (_NO_QUOTA,)
        return self.prepared(ProbePlan((), problems), announce, scheduler=probes)

    def attach(self, prepared: Prepared) -> StateMeter:
        """Attach. Raises AttachError or LoadError."""
        assert isinstance(prepared.scheduler, StateProbes)
        counts_hits = prepared.counts_hits
        return StateMeter(prepared.scheduler, prepared.forced, counts_hits, self.goroutines)


_NO_QUOTA = "CPU quotas are not looked at: the kernel's BTF does not have them"
