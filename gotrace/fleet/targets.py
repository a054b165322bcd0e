# SPDX-License-Identifier: Apache-2.0
"""Find the programs that targets mean, as processes start and end and files are replaced.

Files are traced, in all processes that run them: these are seen from their first call on, and a
program that restarts a thousand times a minute costs nothing here. So a target is followed by its
files: a new one at the same path is another program.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from gotrace.errors import GotraceError
from gotrace.fleet.config import TargetSpec
from gotrace.records import dataclass, field, replace
from gotrace.target.containers import Containers
from gotrace.target.process import cgroup_number
from gotrace.target.shortage import raise_shortage, suppress_missing

_DELETED = " (deleted)"
_RESTARTS = 60.0  # seconds


class ProgramKey(NamedTuple):
    """A file that a target's processes run.

    Usually without the device: containers of one image share a file that each of their overlay file
    systems shows under a device of its own, with the same inode, size and time. The kernel places
    probes in what they share, so that it is to be traced once. Copies on snapshots (btrfs, zfs) and
    on file systems in memory look the same and share nothing: see ``Finder.part``.
    """

    target: str
    inode: int
    size: int
    modified_ns: int
    #: The number of the container's control group, for targets that are pods; else 0. Each is
    #: traced by itself: the same file may run in pods that are not meant.
    container: int = 0
    #: The device, for files that were found to share nothing with others; else 0.
    device: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A file as it was found: ``path`` opens it, ``shown`` is what it is called where it runs.

    ``cgroup`` is the number of the control group that its processes are in, None for all.
    ``devices`` are those under which processes see the file, and these processes.
    """

    key: ProgramKey
    path: str
    shown: str
    processes: tuple[int, ...]
    cgroup: int | None = None
    devices: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: The number of the user whose processes count, None for all.
    user: int | None = None
    #: Namespace, pod and container, where they are known and the target is of pods.
    pod: tuple[str, str, str] | None = None

    def is_run_by(self, pid: int) -> bool:
        """Return whether a process runs this file now."""
        try:
            status = os.stat(f"/proc/{pid}/exe")
        except OSError:
            return False
        key = _key(self.key.target, status, self.key.container)
        return self.key in (key, key._replace(device=status.st_dev))


def _key(target: str, status: os.stat_result, container: int = 0) -> ProgramKey:
    return ProgramKey(target, status.st_ino, status.st_size, status.st_mtime_ns, container)


def _file(key: ProgramKey) -> ProgramKey:
    """Return the same of a file in any container."""
    return key._replace(container=0)


def _lasting(path: str, shown: str, status: os.stat_result) -> str:
    """Return the file's own path where it is the same file here: a process may end any moment."""
    with suppress(OSError):
        if path == shown or os.path.samestat(os.stat(shown), status):
            return shown
    return path


def _user(directory: str) -> int | None:
    """Return the number of a process's real user, None where it has ended."""
    with (
        suppress(ValueError, IndexError),
        suppress_missing(),
        open(f"{directory}/status", "rb") as file,
    ):
        return int(next(line for line in file if line.startswith(b"Uid:")).split()[1])
    return None


@dataclass(slots=True)
class _Found:
    path: str
    shown: str
    processes: list[int]
    devices: dict[int, list[int]]
    pod: tuple[str, str, str] | None = None


class Finder:
    """A look at all processes, for all targets at once."""

    def __init__(
        self,
        targets: Sequence[TargetSpec],
        root: str = "/proc",
        containers: Containers | None = None,
        clock: Callable[[], float] = time.monotonic,
        before: Finder | None = None,
    ) -> None:
        """Begin with what another has found to share nothing."""
        self._targets = targets
        self._containers = containers or Containers()
        self._root = root
        self._clock = clock
        self._seen: dict[ProgramKey, tuple[Program, float]] = {}  # when a process of it was
        self._gone: dict[ProgramKey, float] = {}
        self._restarting: set[ProgramKey] = set()
        self._apart: set[ProgramKey] = set() if before is None else before._apart
        #: Those that the last look has returned.
        self._kept: set[ProgramKey] = set() if before is None else before._kept
        #: How many files of a target are not traced, as there are too many.
        self.passed_over: dict[str, int] = {}
        self._reads_names = any(target.comm is not None for target in targets)
        self._by_path: dict[str, list[TargetSpec]] = {}
        for target in targets:
            if target.exe is not None:
                self._by_path.setdefault(target.exe, []).append(target)
        self._others = [target for target in targets if target.exe is None]
        #: Why a target could not be looked for, or not traced where it was found, by target.
        self.problems: dict[str, str] = {}

    def look(self) -> dict[ProgramKey, Program]:
        """Return the programs that run now, and files of targets that are yet to be started.

        Raises OSError if that cannot be seen now.
        """
        self.problems = {}
        found: dict[str, dict[ProgramKey, _Found]] = {target.name: {} for target in self._targets}
        members = {target.name: self._members(target) for target in self._targets if target.cgroup}
        for target in self._targets:
            if target.exe is not None and target.kubernetes is None:
                self._add(found[target.name], target.name, target.exe, target.exe, None)
        own = {key for files in found.values() for key in files}
        for pid in self._processes():
            self._look_at(pid, found, members)
        programs = {}
        for target in self._targets:
            group = None
            if target.cgroup is not None:
                group = self._cgroup(target)
                if group is None:
                    continue
            for key, one in found[target.name].items():
                if not one.processes and target.exe is None:
                    continue
                pids = tuple(one.processes)
                devices = {device: tuple(pids) for device, pids in one.devices.items()}
                number = key.container or group
                programs[key] = Program(
                    *(key, one.path, one.shown, pids, number, devices, target.user, one.pod)
                )
        self._note_shared(programs)
        return self._bounded(self._with_restarting(programs), own)

    def _note_shared(self, programs: Mapping[ProgramKey, Program]) -> None:
        """Report targets whose paths are one file: the kernel cannot tell their processes apart."""
        files: dict[ProgramKey, Program] = {}
        for key, one in programs.items():
            if one.cgroup is not None or one.user is not None:
                continue
            other = files.setdefault(key._replace(target=""), one)
            if set(other.processes) != set(one.processes) or other.shown != one.shown:
                self.problems[key.target] = (
                    f"{one.shown} is the same file as {other.shown} of target {other.key.target}:"
                    " each counts the calls of both: make it a copy to keep them apart"
                )

    def _bounded(
        self, programs: dict[ProgramKey, Program], own: Set[ProgramKey]
    ) -> dict[ProgramKey, Program]:
        """Leave out files that are too many of a target: anybody may run files that are called so.

        The one that is at its path goes first, then those that were there before.
        """
        self._kept &= programs.keys()
        counts = Counter(key.target for key in programs)
        passed_over = dict.fromkeys((target.name for target in self._targets), 0)
        for target in self._targets:
            if counts[target.name] <= target.max_files:
                continue
            order = sorted(programs, key=lambda key: (key not in own, key not in self._kept))
            files = dict.fromkeys(_file(key) for key in order if key.target == target.name)
            too_many = set(list(files)[target.max_files :])
            passed_over[target.name] = len(too_many)
            if too_many:
                self.problems[target.name] = (
                    f"target {target.name}: processes run more than {target.max_files} files: the"
                    " others are not traced: max_files allows more"
                )
                programs = {k: one for k, one in programs.items() if _file(k) not in too_many}
        self._kept, self.passed_over = set(programs), passed_over
        return programs

    def part(self, key: ProgramKey, device: int) -> bool:
        """Take the processes that see a file under a device for a program of their own.

        Return whether they were not before.
        """
        if key.device:
            return False
        self._apart.add(key._replace(device=device))
        return True

    def _with_restarting(self, programs: dict[ProgramKey, Program]) -> dict[ProgramKey, Program]:
        """Add programs that have ended and will be back: attaching to them takes more than waiting.

        A program that was here, was not, and was here again within a minute is kept for a minute,
        whether it is seen to run in that time or not.
        """
        now = self._clock()
        for key in programs:
            if now - self._gone.pop(key, -_RESTARTS) < _RESTARTS:
                self._restarting.add(key)
        for key, (program, seen) in list(self._seen.items()):
            if key in programs:
                continue
            if key in self._restarting and now - seen < _RESTARTS:
                programs[key] = replace(program, processes=())
                continue
            self._restarting.discard(key)
            self._gone[key] = now
            del self._seen[key]
        for key, program in programs.items():
            if program.processes or key not in self._seen:
                self._seen[key] = program, now
        self._gone = {key: at for key, at in self._gone.items() if now - at < _RESTARTS}
        return programs

    def _processes(self) -> Iterator[int]:
        own = os.getpid()
        for name in os.listdir(self._root):
            if name.isdecimal() and int(name) != own:
                yield int(name)

    def _look_at(
        self,
        pid: int,
        found: Mapping[str, dict[ProgramKey, _Found]],
        members: Mapping[str, set[int]],
    ) -> None:
        directory = f"{self._root}/{pid}"
        try:
            path = os.readlink(f"{directory}/exe").removesuffix(_DELETED)
        except OSError:
            return  # it has ended, or is a thread of the kernel
        comm = ""
        if self._reads_names:
            with suppress_missing(), open(f"{directory}/comm", errors="surrogateescape") as file:
                comm = file.read().rstrip("\n")
        for target in (*self._by_path.get(path, ()), *self._others):
            if target.comm is not None and target.comm not in (comm, os.path.basename(path)):
                continue
            if target.cgroup is not None and pid not in members[target.name]:
                continue
            if target.user is not None and target.user != _user(directory):
                continue
            container, shown, pod = 0, path, None
            if target.kubernetes is not None:
                within = self._containers.of(pid)
                if within is None or not target.kubernetes.matches(within):
                    continue
                if not self._containers.is_of_root(pid):
                    self.problems[target.name] = (
                        f"process {pid} is in a control group that is called as a pod's is and"
                        " belongs to a user: it is not believed"
                    )
                    continue
                container = self._containers.group(pid) or 0
                if not container:
                    problem = f"container {within.id[:12]}: its control group is not visible here,"
                    self.problems[target.name] = f"{problem} or not of version 2"
                    continue
                where = [within.namespace, within.pod, within.name]
                shown = f"{'/'.join(part or '?' for part in where)}: {path}"
                pod = (within.namespace or "", within.pod or "", within.name or "")
            into = found[target.name]
            one = self._add(into, target.name, f"{directory}/exe", shown, pid, container)
            if one is not None:
                one.pod = pod

    def _add(
        self,
        found: dict[ProgramKey, _Found],
        target: str,
        path: str,
        shown: str,
        pid: int | None,
        container: int = 0,
    ) -> _Found | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        key = _key(target, status, container)
        if self._apart and (apart := key._replace(device=status.st_dev)) in self._apart:
            key = apart
        one = found.get(key)
        if one is None:
            one = found[key] = _Found(_lasting(path, shown, status), shown, [], {})
        if pid is not None:
            one.processes.append(pid)
            one.devices.setdefault(status.st_dev, []).append(pid)
        return one

    def _members(self, target: TargetSpec) -> set[int]:
        """Return the processes in a target's control group and those below."""
        pids: set[int] = set()
        assert target.cgroup is not None
        for directory, _, files in os.walk(target.cgroup, onerror=raise_shortage):
            if "cgroup.procs" in files:
                with suppress_missing(), open(f"{directory}/cgroup.procs") as file:
                    pids.update(map(int, file.read().split()))
        return pids

    def _cgroup(self, target: TargetSpec) -> int | None:
        assert target.cgroup is not None
        try:
            return cgroup_number(target.cgroup)
        except GotraceError as error:
            if isinstance(error.__cause__, OSError):
                raise_shortage(error.__cause__)
            self.problems[target.name] = str(error)
            return None
