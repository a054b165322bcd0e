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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
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
_WHOLE = 30.0  # seconds between two looks at everything, whatever was known of processes before


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


def _identity(path: str) -> tuple[int, ...] | None:
    """Return the device, inode, size and time of a file, None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
        #: Processes that targets have: the path of their file as last found, its device and inode.
        self._known: dict[str, tuple[str, int, int]] = dict(before._known) if before else {}
        #: How many files of a target are not traced, as there are too many.
        self.passed_over: dict[str, int] = {}
        self._names = {target.comm for target in targets if target.comm is not None}
        #: Whether targets ask for no more than files and names of processes.
        self._is_plain = not any(
            target.cgroup or target.kubernetes or target.user is not None for target in targets
        )
        self._by_path: dict[str, list[TargetSpec]] = {}
        for target in targets:
            if target.exe is not None:
                self._by_path.setdefault(target.exe, []).append(target)
        self._others = [target for target in targets if target.exe is None]
        self._bare: set[str] = set()  # numbers of threads of the kernel
        self._next_whole = 0.0
        #: Links of processes that run another file than the one at their target's path.
        self._elsewhere: list[str] = []
        #: What the last look has seen and found, and when it was last seen so.
        self._sight: tuple[object, ...] | None = None
        self._programs: dict[ProgramKey, Program] = {}
        self._looked = 0.0
        self._is_waiting = False  # for a program that has ended and will be back
        #: Why a target could not be looked for, or not traced where it was found, by target.
        self.problems: dict[str, str] = {}

    def look(self) -> dict[ProgramKey, Program]:
        """Return the programs that run now, and files of targets that are yet to be started.

        These are the same object if nothing has changed. Raises OSError if that cannot be seen now.
        """
        processes = list(self._processes())
        sight = self._seen_of(processes, self._elsewhere) if self._sight is not None else ()
        if sight == self._sight and not self._is_waiting:
            self._looked = self._clock()
            return self._programs
        self._sight, self.problems = None, {}
        sight = self._seen_anew(processes) if self._is_plain else ()
        found: dict[str, dict[ProgramKey, _Found]] = {target.name: {} for target in self._targets}
        members = {target.name: self._members(target) for target in self._targets if target.cgroup}
        for target in self._targets:
            if target.exe is not None and target.kubernetes is None:
                self._add(found[target.name], target.name, target.exe, target.exe, None)
        own = {key for files in found.values() for key in files}
        for pid, link, comm in processes:
            self._look_at(pid, link.removesuffix(_DELETED), comm, found, members)
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
        self._programs = self._bounded(self._with_restarting(programs), own)
        self._sight = sight or None
        return self._programs

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
        self._sight = None
        return True

    def _with_restarting(self, programs: dict[ProgramKey, Program]) -> dict[ProgramKey, Program]:
        """Add programs that have ended and will be back: attaching to them takes more than waiting.

        A program that was here, was not, and was here again within a minute is kept for a minute,
        whether it is seen to run in that time or not.
        """
        now = self._clock()
        for key, program in self._programs.items():
            if program.processes and key in self._seen:  # until the last look, which saw the same
                self._seen[key] = program, self._looked
        self._looked, self._is_waiting = now, False
        for key in programs:
            if now - self._gone.pop(key, -_RESTARTS) < _RESTARTS:
                self._restarting.add(key)
        for key, (program, seen) in list(self._seen.items()):
            if key in programs:
                continue
            if key in self._restarting and now - seen < _RESTARTS:
                programs[key] = replace(program, processes=())
                self._is_waiting = True
                continue
            self._restarting.discard(key)
            self._gone[key] = now
            del self._seen[key]
        for key, program in programs.items():
            if program.processes or key not in self._seen:
                self._seen[key] = program, now
        self._gone = {key: at for key, at in self._gone.items() if now - at < _RESTARTS}
        return programs

    def _processes(self) -> Iterator[tuple[int, str, str]]:
        """Yield the processes that targets may mean, what /proc says they run, and their names.

        Most processes of a host are none of these: a link is read of them, and a name if a target
        has one.
        """
        root, by_path, names, bare = self._root, self._by_path, self._names, self._bare
        others, own, comm = not self._is_plain, str(os.getpid()), ""
        listed = os.listdir(root)
        if (now := self._clock()) >= self._next_whole:
            bare.clear()  # a number may be another process's by now
            self._sight = None
            self._next_whole = now + _WHOLE
        bare.intersection_update(listed)
        for ended in self._known.keys() - listed:
            del self._known[ended]
        for name in listed:
            if name in bare or not name.isdecimal() or name == own:
                continue
            try:
                link = os.readlink(f"{root}/{name}/exe")
            except FileNotFoundError:  # it has ended, or is a thread of the kernel
                bare.add(name)
                continue
            except OSError:
                continue
            if names:
                comm = ""
                with suppress_missing(), open(f"{root}/{name}/comm", "rb") as file:
                    comm = os.fsdecode(file.read()).rstrip("\n")
            path = link.removesuffix(_DELETED)
            if name in self._known and path not in by_path and os.path.basename(path) not in names:
                path = link = self._path_before(name, path)
            is_named = bool(names) and (comm in names or os.path.basename(path) in names)
            if others or is_named or path in by_path:
                yield int(name), link, comm

    def _path_before(self, name: str, path: str) -> str:
        """Return the path at which a known process's file was found, if it runs that file still.

        A rename (``mv app app.old``) changes the link of a process, and not what it runs.
        """
        before, *file = self._known[name]
        with suppress(OSError):
            status = os.stat(f"{self._root}/{name}/exe")
            if file == [status.st_dev, status.st_ino]:
                return before
        return path

    def _seen_of(self, processes: object, elsewhere: Iterable[str]) -> tuple[object, ...]:
        """Return all that programs are made of: they are the same as long as that is.

        A process that runs the file at its target's path cannot come to run another one by that
        path before that is another file, but in a container: such a process's file is looked at
        each half a minute.
        """
        files = (*self._by_path, *elsewhere)
        return processes, elsewhere, [_identity(file) for file in files]

    def _seen_anew(self, processes: Sequence[tuple[int, str, str]]) -> tuple[object, ...]:
        """Return the same, and take note of the processes whose own files are to be looked at."""
        own_files = set(map(_identity, self._by_path))
        links = (f"{self._root}/{pid}/exe" for pid, *_ in processes)
        self._elsewhere = [link for link in links if _identity(link) not in own_files]
        return self._seen_of(processes, self._elsewhere)

    def _look_at(
        self,
        pid: int,
        path: str,
        comm: str,
        found: Mapping[str, dict[ProgramKey, _Found]],
        members: Mapping[str, set[int]],
    ) -> None:
        directory = f"{self._root}/{pid}"
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
            added = self._add(into, target.name, f"{directory}/exe", shown, pid, container)
            if added is not None:
                one, status = added
                one.pod = pod
                self._known[str(pid)] = path, status.st_dev, status.st_ino

    def _add(
        self,
        found: dict[ProgramKey, _Found],
        target: str,
        path: str,
        shown: str,
        pid: int | None,
        container: int = 0,
    ) -> tuple[_Found, os.stat_result] | None:
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
        return one, status

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
