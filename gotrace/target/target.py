# SPDX-License-Identifier: Apache-2.0
"""The traced target: a process, every process that runs a file, or a command to be started."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

from gotrace.architecture import HOST
from gotrace.elf.image import ElfImage, FileIdentity
from gotrace.errors import GotraceError, UsageError, said
from gotrace.gotypes.binary import Binary
from gotrace.records import dataclass, field, replace
from gotrace.settings import SiteSettings
from gotrace.sites.hashed import may_hash
from gotrace.target.command import Command
from gotrace.target.process import (
    Executable,
    Process,
    ProcessError,
    ends_so,
    find_process,
    in_initial_pid_namespace,
    runs_go,
    started_by,
)

#: Most processes that are traced by their numbers: GOTRACE_TGID_8 of bpf/site.h is the last.
MAX_PROCESSES = 8
_PT_LOAD = 1  # elf(5)
_PT_INTERP = 3
_LISTING = 5.0  # seconds that a program's dynamic linker may take
_MAX_NAMED = 3  # processes


class TargetBinary(Binary):
    """One file of the target, open, with everything that attaching to it needs.

    ``bias`` is what the mapping adds to link-time addresses: 0 for position-dependent programs,
    None where it differs by process or the process has not mapped the file yet. ``process`` is
    there when it is known which one will. ``found_in`` is the number of a process that runs the
    file, 0 where it was found by its path.
    """

    def __init__(
        self,
        image: ElfImage,
        bias: int | None,
        process: Process | None = None,
        found_in: int = 0,
    ) -> None:
        super().__init__(image)
        self.bias = bias
        self.process = process
        self.found_in = found_in

    @property
    def debug_roots(self) -> tuple[str, ...]:
        """Return where the file systems of its process, and this one, begin."""
        number = self.process.tgid if self.process is not None else self.found_in
        return (f"/proc/{number}/root", "") if number else ("",)

    @property
    def attach_path(self) -> str:
        """Return a path to the very inode that was read, whatever happens to its name.

        Raises GotraceError where nothing can be attached to it.
        """
        self.check_traced()
        return f"/proc/self/fd/{self.image.fileno()}"

    def check_traced(self) -> None:
        """Raise GotraceError where programs of the file's architecture do not run."""
        if self.image.arch is not HOST:
            here = HOST.name if HOST else os.uname().machine
            raise GotraceError(
                f"{self.image.display}: a program for {self.image.arch.name}: only programs for"
                f" {here} can be traced here; {said('-l lists', 'functions() has')} its functions"
            )

    def find_bias(self) -> int | None:
        """Return the bias as far as it is known by now; once found it is, the process may end."""
        if self.bias is None and self.process is not None:
            with suppress(GotraceError):
                self.bias = load_bias(self.image, self.process)
        return self.bias


@dataclass
class Target:
    """The target that the user named with ``-p``, ``-c`` or a path; close it at the end.

    ``process`` is None when every process counts. ``command`` is there when the process was
    started here and waits to be released. ``program`` is what a process that was there already ran
    before its files were read. ``processes`` are several: then ``process`` is None. ``programs``
    are those of them that run a program first, one for each.
    """

    process: Process | None = None
    command: Command | None = None
    program: Executable | None = None
    processes: tuple[Process, ...] = ()
    programs: tuple[Process, ...] = ()
    filters: SiteSettings = field(default_factory=SiteSettings)
    #: As for ``ElfImage.open``.
    largest_section: int | None = None
    #: The file that has the debugging information, if the user names one.
    debug_file: str | None = None
    #: Returns whether breakpoints can be kept out of all processes but one; None if they cannot.
    is_limited: Callable[[], bool] | None = None
    _is_released: bool = False
    _open: list[TargetBinary] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        pid: int | None,
        command: Sequence[str] | None,
        uid: int | None = None,
        cgroup: int | None = None,
        pids: Sequence[int] = (),
    ) -> Target:
        """Find the process or fork the command. Raises ProcessError, CommandError or UsageError.

        ``uid`` and ``cgroup`` choose among processes: bpf/site.h says what they are. ``pids`` are
        several processes.
        """
        target = cls(filters=SiteSettings(uid=uid, cgroup=cgroup))
        if pids:
            found = dict.fromkeys(find_process(number) for number in pids)
            if len(found) > MAX_PROCESSES:
                raise UsageError(
                    f"more than {MAX_PROCESSES} processes: trace their programs by their paths"
                )
            target.processes = tuple(found)
            target.programs = _programs(target.processes)
        elif pid is not None:
            target.process = find_process(pid)
            target.program = target.process.program()
        elif command is not None:
            target.command = Command(command)
            target.process = Process(target.command.pid)
        return target

    @property
    def pid(self) -> int:
        """Return the process's number for the kernel's own filter, 0 for every process."""
        return self.process.tgid if self.process else 0

    @property
    def watched(self) -> tuple[Process, ...]:
        """Return the processes with which a run ends, none where it goes on without any."""
        return (self.process,) if self.process else self.processes

    @property
    def is_one_program(self) -> bool:
        """Return whether all that is traced belongs to processes that run the same program."""
        return self.process is not None or len(self.programs) == 1

    def settings(self) -> SiteSettings:
        """Return the settings of bpf/site.h that make programs see this target only.

        Raises GotraceError for several processes if the kernel cannot tell them from others.

        BPF helpers count in the initial pid namespace; in another one they must be given which, and
        know only the tasks whose own it is (kernel commit b4490c5c4e02): so it is the target's.
        """
        if in_initial_pid_namespace():
            filters = _numbered(self.filters, self.processes)
            return replace(filters, tgid=self.process.tgid if self.process else None)
        device, inode = (self.process or Process(os.getpid())).pid_namespace()
        for each in self.processes:
            if each.pid_namespace() != (device, inode):
                raise GotraceError(
                    f"process {each.tgid} is in another PID namespace than this tool, which is in"
                    " one itself: trace such processes one at a time"
                )
        settings = replace(self.filters, pidns_dev=device, pidns_ino=inode)
        settings = _numbered(settings, self.processes)
        if self.process is None:
            return settings
        number, seen = self.process.innermost_number(), self.process.tgid
        return replace(settings, tgid=number, seen_tgid=None if number == seen else seen)

    def binaries(self, name: str | None) -> list[TargetBinary]:
        """Return the file of ``binary``, or the executable of each of several programs.

        A name that is no file's, but what programs of the target are called, means these.
        """
        programs = (self.process,) if self.process is not None else self.programs
        if name is not None and not os.path.isfile(name):
            if self.command is not None:
                name = None if ends_so(self.command.path, name) else name
            elif called := tuple(one for one in programs if one.is_called(name)):
                name, programs = None, called
        if name is not None or self.process is not None or not programs:
            return [self.binary(name)]
        return [
            self._opened(one.executable, one.executable_name, found_in=one.tgid) for one in programs
        ]

    def binary(self, name: str | None) -> TargetBinary:
        """Open the file that ``name`` means in this target, its executable when None.

        A name without a slash is looked up on PATH. In a running process the file must be mapped.
        Raises GotraceError.
        """
        if self.command is not None:
            path = self.command.path if name is None else _file_named(name)
            return self._opened(path, path, self.process, mapped=False)
        if self.process is None:
            if name is None and self.programs:
                return self.binaries(name)[0]
            if name is None:
                what = said(
                    "type -p PID, -c CMD or BINARY:PATTERN", "use attach(), start() or path()"
                )
                raise UsageError(f"nothing to trace: {what}")
            path = _file_named(name)
            return self._opened(path, path)
        if name is None:
            shown = self.process.executable_name
            return self._opened(self.process.executable, shown, self.process)
        return self._library(self.process, _file_named(name, self.process))

    def libraries(self) -> list[TargetBinary]:
        """Return the libraries with Go code that the processes have mapped by now."""
        from gotrace.elf.pclntab.header import find_pclntab

        found: dict[TargetBinary, None] = {}
        for process in self.watched if self.has_started else ():
            with suppress(GotraceError):
                paths = {each.path for each in process.mappings() if each.is_code}
                for path in sorted(paths - {process.executable_name}):
                    with suppress(GotraceError, OSError):
                        library = (
                            self._opened(f"/proc/{process.tgid}/root{path}", path)
                            if self.process is None
                            else self._library(process, path)
                        )
                        if find_pclntab(library.image) is not None:
                            found[library] = None
        return list(found)

    def started(self, fits: Callable[[TargetBinary], bool], does: str) -> str:
        """Return words for processes that the target's have started and whose program fits.

        ``does`` is what such a process does. "" if there is none.
        """
        found = []
        numbers = (started_by(one.tgid) for one in (() if self.command else self.watched))
        for process in map(Process, chain.from_iterable(numbers)):
            with suppress(GotraceError):
                path = process.executable_name
                if runs_go(process.executable) and fits(
                    self._opened(process.executable, path, found_in=process.tgid)
                ):
                    found.append((process.tgid, os.path.basename(path)))
        if not found:
            return ""
        some = [number for number, _ in found[:_MAX_NAMED]]
        typed = " or ".join(said(f"-p {number}", f"attach({number})") for number in some)
        number, name = found[0]
        return f"; process {number} ({name}), which it has started, {does}: type {typed}"

    def linked(self) -> list[TargetBinary]:
        """Return the libraries with Go code that a command that waits will begin with.

        They are those that its program's dynamic linker lists (ld.so(8)).
        """
        from gotrace.elf.pclntab.header import find_pclntab

        found = []
        with suppress(GotraceError, OSError, subprocess.SubprocessError):
            program = self.binary(None).image
            linkers = [one for one in program.segments if one.type == _PT_INTERP]
            for one in linkers:
                linker = program.read(one.address, one.file_size).rstrip(b"\0").decode()
                words = [linker, "--list", program.display]
                listed = subprocess.run(words, capture_output=True, timeout=_LISTING).stdout
                for path in re.findall(r"(?m)(/.*) \(0x[0-9a-f]+\)$", os.fsdecode(listed)):
                    with suppress(GotraceError):
                        library = self._opened(path, path, self.process, mapped=False)
                        found += [library] if find_pclntab(library.image) is not None else []
        return found

    def _library(self, process: Process, path: str) -> TargetBinary:
        """Open a file that a process has mapped, through the process's own mount namespace.

        By its path: /proc/PID/map_files would take CAP_CHECKPOINT_RESTORE.
        """
        inside = f"/proc/{process.tgid}/root{path}"
        opened = self._opened(inside if os.path.exists(inside) else path, path, process)
        inode = opened.image.identity.inode
        if any(mapping.inode == inode for mapping in process.mappings()):
            return opened
        raise GotraceError(
            f"process {process.tgid} does not have {path} mapped: see /proc/{process.tgid}/maps"
        )

    def _opened(
        self,
        path: str,
        shown: str,
        process: Process | None = None,
        mapped: bool = True,
        found_in: int = 0,
    ) -> TargetBinary:
        """Open a file; ``mapped``: the process, where there is one, runs it already."""
        with suppress(OSError, ValueError):  # else opening it says why
            identity = FileIdentity.of(path)
            for binary in self._open:
                if binary.image.identity == identity:
                    return binary
        # The file of a running program cannot be written to, others can.
        image = ElfImage.open(
            path,
            display=shown,
            copied=process is None or not mapped,
            largest_section=self.largest_section,
        )
        known = next((b for b in self._open if b.image.identity == image.identity), None)
        if known is not None:
            image.close()
            return known
        moves = image.is_pie or image.is_shared_library
        binary = TargetBinary(image, None if moves else 0, process, found_in)
        self._take_debug_file(binary)
        self._open.append(binary)
        if moves and process and mapped:
            binary.bias = load_bias(image, process)
        return binary

    def _take_debug_file(self, binary: TargetBinary) -> None:
        """Give a file the debugging information that the user names.

        Raise UsageError if it is not of the first file that is opened. It need not be of others.
        """
        if self.debug_file is None:
            return
        try:
            binary.take_debug_file(self.debug_file)
        except UsageError:
            if not self._open:
                raise

    @property
    def has_started(self) -> bool:
        """Return whether it runs: it is no command that waits."""
        return self.command is None or self._is_released

    def never_hashes(self, image: ElfImage) -> bool:
        """Return whether no process that gets breakpoints in a file hashes its code from now on.

        That is so if it is one process that runs already and is not in FIPS mode. In that mode it
        would hash it again if it ran the same file again, by exec, which keeps its number.
        """
        if self.process is None or self.command is not None or self.is_limited is None:
            return False
        try:
            return not may_hash(image, self.process.environment()) and self.is_limited()
        except GotraceError:
            return False

    def start(self) -> None:
        """Release a command that waits, and learn where its files are while it lives.

        Raises CommandError.
        """
        if self.command is not None and not self._is_released:
            self._is_released = True
            self.command.release()
            for binary in self._open:
                binary.find_bias()

    def rest(self) -> None:
        """Drop everything that was read of the files, until more is asked for."""
        for binary in self._open:
            binary.rest()

    def close(self) -> None:
        """Close the files and end a command that was never released."""
        if self.command is not None:
            self.command.close()
        for binary in self._open:
            binary.close()


def _programs(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Return the first process of each program that some run. Raises ProcessError."""
    programs: dict[tuple[int, int], Process] = {}
    for process in processes:
        found = process.program()
        if found is None:
            raise ProcessError(f"process {process.tgid} has ended")
        programs.setdefault((found.device, found.inode), process)
    return tuple(programs.values())


def _numbered(settings: SiteSettings, processes: Sequence[Process]) -> SiteSettings:
    """Return settings for several processes: all of them, the first in the place of more."""
    if not processes:
        return settings
    numbers = [process.tgid for process in processes]
    numbers += [numbers[0]] * (MAX_PROCESSES - len(numbers))
    return replace(settings, **{f"tgid_{at}": number for at, number in enumerate(numbers, 1)})


def _file_named(name: str, process: Process | None = None) -> str:
    if "/" not in name and not os.path.exists(name):
        found = shutil.which(name)
        if found is None:
            raise UsageError(f"there is no file {name!r} here or on PATH")
        return os.path.realpath(found)
    inside = process is not None and os.path.exists(f"/proc/{process.tgid}/root{name}")
    return name if inside else os.path.abspath(name)


def load_bias(image: ElfImage, process: Process) -> int | None:
    """Return mapping start minus link-time start of a file's first segment in a process."""
    offset, address = first_segment(image)
    inode = image.identity.inode
    for mapping in process.mappings():
        if mapping.inode == inode and mapping.offset == offset:
            return mapping.start - address
    return None


def first_segment(image: ElfImage) -> tuple[int, int]:
    """Return where a file's first segment is: offset and link-time address of its first page."""
    first = next(segment for segment in image.segments if segment.type == _PT_LOAD)
    return first.offset & -mmap.PAGESIZE, first.address & -mmap.PAGESIZE
