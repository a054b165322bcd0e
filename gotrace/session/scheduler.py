# SPDX-License-Identifier: Apache-2.0
"""The probes that follow Go's scheduler, whatever they are for, and the kernel's offsets for them.

``why.probes``, ``waits.probes`` and ``waits.states`` say which sites they want.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from gotrace.errors import GotraceError, said
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.kernel.attach import ProbeGroup
from gotrace.kernel.btf import kernel_field
from gotrace.records import dataclass
from gotrace.session.tasks import Tasks, runtime_group
from gotrace.settings import WaitedSettings
from gotrace.sites.records import SiteError
from gotrace.sites.scheduler import SchedulerSites, scheduler_sites
from gotrace.sites.sites import Site
from gotrace.target.target import Target, TargetBinary

#: A file that holds code of the runtime, and the places of its scheduler.
SchedulerFile = tuple[TargetBinary, SchedulerSites]


@dataclass(frozen=True)
class SchedulerProbes(abc.ABC):
    """Probes of the target's schedulers, for its files that hold code of the runtime.

    ``program_ns`` is how many ns a hit of those that are hit most takes more than a program that
    counts.
    """

    target: Target
    tasks: Tasks
    files: tuple[SchedulerFile, ...]

    #: The program's action at a hit, so many times a second.
    COUNTED: ClassVar[str] = "changes {} states a second"
    #: The BPF functions of the probes that are hit most; of all if empty.
    OFTEN: ClassVar[tuple[str, ...]] = ()

    @property
    @abc.abstractmethod
    def program_ns(self) -> int: ...

    @abc.abstractmethod
    def _chosen(self, sites: SchedulerSites) -> Sequence[tuple[str, Site | None]]:
        """Return the BPF functions and where each belongs in a file."""

    def _probes(self) -> Iterator[tuple[TargetBinary, SchedulerSites, str, Site]]:
        for file, sites in self.files:
            for function, site in self._chosen(sites):
                if site is not None:
                    yield file, sites, function, site

    def groups(self) -> list[ProbeGroup]:
        """Return the groups to attach, before those of any traced function."""
        return [
            runtime_group(
                *(function, self.target, file, [site], self.tasks.runtime_kind(file)), number
            )
            for number, (file, _, function, site) in enumerate(self._probes())
        ]

    def often(self) -> list[ProbeGroup]:
        """Return the groups of the probes that are hit most."""
        return [group for group in self.groups() if not self.OFTEN or group.function in self.OFTEN]

    @property
    def has_syscalls(self) -> bool:
        """Return whether system calls have probes of their own."""
        return any(function == "on_syscall" for _, _, function, _ in self._probes())

    @property
    def coroarg(self) -> int | None:
        """Return where g has the coroutine that it switches to, None if no program has any."""
        found = (sites.coroarg for _, sites in self.files if sites.coroarg is not None)
        return next(found, None)


def scheduler_files(files: Sequence[TargetBinary], what: str) -> tuple[SchedulerFile, ...]:
    """Return the places of files' schedulers.

    Raises GotraceError if one is not known; ``what`` needs it then.
    """
    found = []
    for file in files:
        try:
            found.append((file, scheduler_sites(file.functions)))
        except SiteError as error:
            raise GotraceError(
                f"{file.image.display}: {what} needs Go 1.19 or newer: the scheduler of"
                f" {go_version(file)} is not known: {error}"
            ) from error
    return tuple(found)


def check_watchable(tasks: Tasks, what: str) -> None:
    """Raise GotraceError if ``what`` watches a scheduler, and the program's is not Go's own."""
    if tasks.layout is None:
        raise GotraceError(
            f"{what} needs a Go runtime to watch: programs of gccgo have another one, and their"
            " scheduler is not known here"
        )


def needed_reasons(
    file: TargetBinary, what: str, serve: Callable[[WaitReasons], bool] = bool
) -> WaitReasons:
    """Return the reasons of waits if they ``serve``. Raises GotraceError: ``what`` needs them."""
    reasons = file.wait_reasons
    if reasons is None or not serve(reasons):
        raise GotraceError(
            f"{file.image.display}: {what} has not found why goroutines of {go_version(file)} wait"
        )
    return reasons


def go_version(file: TargetBinary) -> str:
    """Return the release that built a file, for messages."""
    return file.go_version.text if file.go_version else "this Go"


@dataclass(frozen=True, slots=True)
class KernelOffsets:
    """Offsets in the kernel's structs; ``count`` without ``throttled`` only."""

    pid: int
    state: int
    throttled: int | None
    queue: int | None
    count: int | None
    waited: WaitedSettings | None = None


def kernel_offsets() -> KernelOffsets:
    """Return the offsets in the kernel's structs for bpf/switch.h. Raises GotraceError."""
    pid = kernel_field(("task_struct", "pid"))
    state = kernel_field(("task_struct", "__state"))  # Linux 5.14
    if state is None:
        state = kernel_field(("task_struct", "state"))
    if pid is None or state is None:
        raise GotraceError(
            f"{said('--why', 'why=True')} and waits need kernel BTF (/sys/kernel/btf/vmlinux):"
            " CONFIG_DEBUG_INFO_BTF"
        )
    throttled = kernel_field(("task_struct", "throttled"))  # Linux 6.18
    queue = kernel_field(("task_struct", "se"), ("sched_entity", "cfs_rq"))
    count = kernel_field(("cfs_rq", "throttle_count"))
    if throttled is not None or queue is None:
        count = None
    return KernelOffsets(pid, state, throttled, queue, count, _waited() if queue else None)


def _waited() -> WaitedSettings | None:
    """Return where it is counted how long tasks wait for a CPU, None without CONFIG_SCHED_INFO."""
    info = ("task_struct", "sched_info")
    run_delay = kernel_field(info, ("sched_info", "run_delay"))
    last_queued = kernel_field(info, ("sched_info", "last_queued"))
    queue, clock = kernel_field(("cfs_rq", "rq")), kernel_field(("rq", "clock"))
    if run_delay is None or last_queued is None or queue is None or clock is None:
        return None
    return WaitedSettings(
        task_run_delay=run_delay, task_last_queued=last_queued, cfs_rq_rq=queue, rq_clock=clock
    )
