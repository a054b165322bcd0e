# SPDX-License-Identifier: Apache-2.0
"""Learn about a process from /proc: its thread group, executable, mappings and namespaces."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import shlex
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from gotrace.errors import GotraceError, UsageError, said
from gotrace.records import dataclass
from gotrace.target.containers import processes_in
from gotrace.text import quote

#: The beginning of a word for a container's programs; its number, or how that begins, comes after.
_CONTAINER = "container:"
_ALIKE = 0.8  # of a name: one letter of five, or a letter more
_STARTSTACK = 28  # the field's number in proc_pid_stat(5)
_PAGE = mmap.PAGESIZE
_PRESENT_SWAPPED_OR_FILE = 0b111 << 61
_KERNEL_MINOR_BITS = 20  # MINORBITS, include/linux/kdev_t.h
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/uapi/linux/nsfs.h


class ProcessError(GotraceError):
    """A process that is not there or cannot be traced, and which of these it is."""


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """One file-backed line of /proc/PID/maps: ``start`` and ``offset`` in bytes."""

    start: int
    end: int
    offset: int
    inode: int
    path: str
    is_code: bool

    def holds(self, offset: int) -> bool:
        """Return whether the byte at an offset in the file is here, to be executed."""
        return self.is_code and self.offset <= offset < self.offset + self.end - self.start


@dataclass(frozen=True, slots=True)
class Executable:
    """A program that a process runs, distinct from those before and after it and from a second run.

    ``device`` and ``inode`` are the executable's, ``stack`` where the stack begins, which is at
    another random place after each exec.
    """

    device: int
    inode: int
    stack: int


@dataclass(frozen=True, slots=True)
class Process:
    """A live process by its thread group's number, as this process's pid namespace counts."""

    tgid: int

    @property
    def executable(self) -> str:
        """Return the path through which the executable can be opened, deleted or not."""
        return f"/proc/{self.tgid}/exe"

    @property
    def executable_name(self) -> str:
        """Return the executable's path as the process sees it, without `` (deleted)``.

        Raises ProcessError when the process has ended.
        """
        try:
            return os.readlink(self.executable).removesuffix(" (deleted)")
        except OSError as error:
            raise _gone(self.tgid, error) from error

    def is_called(self, name: str) -> bool:
        """Return whether a name before a colon is this process's: its program's, or its own.

        A program's is any end of its path, with the process's number or not: ``shop``,
        ``bin/shop``, ``shop[12]``.
        """
        try:
            own = _text(f"/proc/{self.tgid}/comm").rstrip("\n")
            return name == own or ends_so(self.executable_name, name.removesuffix(f"[{self.tgid}]"))
        except (OSError, GotraceError):
            return False

    def program(self) -> Executable | None:
        """Return the file that the process runs now, or None if it has ended."""
        try:
            status = os.stat(self.executable)
            stat = Path(f"/proc/{self.tgid}/stat").read_bytes()
        except OSError:
            return None
        fields = stat.rpartition(b")")[2].split()  # from field 3 on: proc_pid_stat(5)
        return Executable(status.st_dev, status.st_ino, int(fields[_STARTSTACK - 3]))

    def threads(self) -> list[int]:
        """Return the numbers of the process's threads; none when it has ended."""
        try:
            return [int(name) for name in os.listdir(f"/proc/{self.tgid}/task")]
        except OSError:
            return []

    def mappings(self) -> Iterator[MemoryMapping]:
        """Yield the process's file-backed mappings in address order (proc_pid_maps(5))."""
        try:
            text = _text(f"/proc/{self.tgid}/maps")
        except OSError as error:
            raise _gone(self.tgid, error) from error
        for line in text.split("\n"):
            parts = line.split(None, 5)
            if len(parts) == 6 and parts[4] != "0":
                start, end = (int(part, 16) for part in parts[0].split("-"))
                place = start, end, int(parts[2], 16)
                yield MemoryMapping(*place, int(parts[4]), parts[5], "x" in parts[1])

    def mappings_of(self, inode: int, path: str) -> Iterator[MemoryMapping]:
        """Yield the mappings of a file, known by its inode or by its path.

        A file of an overlay may have another inode there.
        """
        for each in self.mappings():
            if each.inode == inode or each.path.removesuffix(" (deleted)") == path:
                yield each

    def tracer(self) -> tuple[int, str] | None:
        """Return number and name of the process that traces it, as a debugger does, if any.

        Raises OSError.
        """
        number = int(read_status(self.tgid).get("TracerPid", "0"))
        if not number:
            return None
        with suppress(OSError):  # of another pid namespace
            return number, _text(f"/proc/{number}/comm").rstrip("\n")
        return number, "another process"

    def code_at(self, offset: int) -> set[int] | None:
        """Return the bytes that the executable's mappings have at an offset in the file.

        There is one, or two if mappings overlap in the file. None if that cannot be read.
        """
        try:
            path, inode = self.executable_name, os.stat(self.executable).st_ino
            found = {
                _byte(self.tgid, each.start + offset - each.offset)
                for each in self.mappings_of(inode, path)
                if each.offset <= offset < each.offset + each.end - each.start
            }
        except (OSError, GotraceError):
            return None
        return found or None

    def code(self) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and name, ``[libm.so.6]`` or ``[vdso]``, of each mapping of code.

        Code of no file is ``[unknown]``. Raises ProcessError when the process has ended.
        """
        try:
            text = _text(f"/proc/{self.tgid}/maps")
        except OSError as error:
            raise _gone(self.tgid, error) from error
        for line in text.split("\n")[:-1]:
            span, mode, _, _, _, *name = line.split(None, 5)
            if "x" in mode:
                start, end = (int(part, 16) for part in span.split("-"))
                base = name[0].rpartition("/")[2] if name else "unknown"
                yield start, end, f"[{base.strip('[]')}]"

    def environment(self) -> bytes:
        """Return the environment that the process was started with. Raises ProcessError."""
        try:
            return Path(f"/proc/{self.tgid}/environ").read_bytes()
        except OSError as error:
            raise _gone(self.tgid, error) from error

    def cpu_ns(self) -> int | None:
        """Return how long the process's threads have run, in ns; None when it has ended.

        That is the clock of clock_getcpuclockid(3): CPUCLOCK_SCHED of
        include/linux/posix-timers_types.h.
        """
        try:
            return time.clock_gettime_ns(~self.tgid << 3 | 2)
        except OSError:
            return None

    def system_calls(self) -> list[int]:
        """Return the numbers of the system calls that threads are in, as far as that is known.

        That is what /proc/PID/task/TID/syscall has (proc_pid_syscall(5)).
        """
        numbers = []
        for thread in self.threads():
            with suppress(OSError, ValueError):  # it has ended, or runs
                number = int(_text(f"/proc/{self.tgid}/task/{thread}/syscall").split(" ", 1)[0])
                numbers += [number] if number >= 0 else []
        return numbers

    def is_untouched(self, address: int, size: int) -> bool:
        """Return whether memory reads as zeros because the process has never touched its pages.

        That is private memory without a file, readable, of which no page is in memory or swapped
        out (Documentation/admin-guide/mm/pagemap.rst, proc_pid_maps(5)). False where that cannot be
        known.
        """
        first, last = address // _PAGE, (address + size - 1) // _PAGE
        try:
            with open(f"/proc/{self.tgid}/pagemap", "rb", 0) as pages:
                entries = os.pread(pages.fileno(), 8 * (last - first + 1), 8 * first)
            text = _text(f"/proc/{self.tgid}/maps")
        except (OSError, OverflowError):
            return False
        if len(entries) != 8 * (last - first + 1):
            return False
        if any(entry & _PRESENT_SWAPPED_OR_FILE for entry in array("Q", entries)):
            return False
        for line in text.split("\n")[:-1]:  # a name may hold what else ends a line in Python
            span, mode, _, _, inode, *_ = line.split(" ", 5)
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return address + size <= end and mode == "rw-p" and inode == "0"
        return False

    def pid_namespace(self) -> tuple[int, int]:
        """Return device, as the kernel writes it, and inode of the process's pid namespace.

        Raises ProcessError when the process has ended or may not be looked into.
        """
        try:
            namespace = os.stat(f"/proc/{self.tgid}/ns/pid")
        except OSError as error:
            raise _gone(self.tgid, error) from error
        major, minor = os.major(namespace.st_dev), os.minor(namespace.st_dev)
        return major << _KERNEL_MINOR_BITS | minor, namespace.st_ino

    def innermost_number(self) -> int:
        """Return the number that the process has in its own pid namespace (proc_pid_status(5)).

        Raises ProcessError when it has ended.
        """
        try:
            numbers = read_status(self.tgid).get("NSpid", "").split()
        except OSError as error:
            raise _gone(self.tgid, error) from error
        return int(numbers[-1]) if numbers else self.tgid

    def exit_descriptor(self) -> int:
        """Return a pidfd, readable once the process has ended. Raises ProcessError."""
        try:
            return os.pidfd_open(self.tgid)
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise ProcessError(
                    f"cannot watch process {self.tgid}: this kernel has no pidfd_open (Linux 5.3,"
                    " or forbidden by seccomp): trace by path"
                ) from error
            raise _gone(self.tgid, error) from error


def _byte(tgid: int, address: int) -> int:
    """Return a byte of a process's memory. Raises OSError."""
    try:
        with open(f"/proc/{tgid}/mem", "rb", 0) as memory:
            found = os.pread(memory.fileno(), 1, address)
    except PermissionError:
        # The file belongs to the process's user. CAP_SYS_PTRACE alone does not open it, but is
        # enough for process_vm_readv(2).
        return _byte_apart(tgid, address)
    if not found:  # it ends
        raise ProcessLookupError(errno.ESRCH, "the process has no memory any more")
    return found[0]


class _Part(ctypes.Structure):
    """A part of memory: struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _byte_apart(tgid: int, address: int) -> int:
    content = ctypes.c_ubyte()
    here, there = _Part(ctypes.addressof(content), 1), _Part(address, 1)
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    if read(tgid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != 1:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return content.value


def read_status(pid: int | str, root: Path = Path("/")) -> dict[str, str]:
    """Return the fields of a process's status (proc_pid_status(5)), their values stripped.

    ``pid`` may be ``"self"``; ``root`` is where ``proc`` is. Raises OSError.
    """
    lines = _text(f"{root}/proc/{pid}/status").split("\n")
    return {
        name: value.strip() for name, mark, value in (line.partition(":") for line in lines) if mark
    }


def _text(path: str) -> str:
    """Read a file of /proc, in whose lines names may hold any byte but a newline."""
    return Path(path).read_bytes().decode(errors="surrogateescape")


def find_process(pid: int) -> Process:
    """Return the process that ``pid``, a process or one of its threads, belongs to.

    Raises ProcessError where there is none, it is a zombie or a kernel thread, or it belongs to
    another user and this one may not look into it.
    """
    try:
        status = read_status(pid)
    except OSError as error:
        raise _gone(pid, error) from error
    tgid = int(status["Tgid"])
    if status["State"].startswith(("Z", "X")):
        raise ProcessError(f"process {pid} is a zombie: it has ended and waits for its parent")
    try:
        os.readlink(f"/proc/{tgid}/exe")
    except FileNotFoundError as error:
        if "VmSize" in status:  # it has ended since
            raise _gone(pid, error) from error
        raise ProcessError(f"process {pid} is a kernel thread: it runs no Go program") from None
    except PermissionError:
        owner = status["Uid"].split()[0]
        raise ProcessError(
            f"process {pid} belongs to user {owner}, permission denied: {_advice()}"
        ) from None
    return Process(tgid)


def cgroup_number(path: str) -> int:
    """Return the number of a control group of version 2 by its directory's path: the inode.

    That is what BPF's helpers return (kernfs, since Linux 5.5 the whole of it). Raises
    GotraceError.
    """
    try:
        mounts = _text("/proc/self/mountinfo").split("\n")
        found = os.stat(path)
    except OSError as error:
        raise GotraceError(f"control group {path}: {error.strerror}") from error
    # proc_pid_mountinfo(5): the third field is the device, the fifth the place; the type is the
    # first after "-".
    version_2 = {
        words[2]: words[4]
        for words, _, kind in ((line.split(), *line.partition(" - ")[1:]) for line in mounts[::-1])
        if kind.startswith("cgroup2 ")
    }
    if f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}" not in version_2:
        where = f"those are below {' and '.join(version_2.values())}"
        if not version_2:
            where = "none are mounted: mount -t cgroup2 none DIRECTORY"
        raise GotraceError(f"{path} is not a control group of version 2: {where}")
    return found.st_ino


def processes_called(name: str) -> list[int]:
    """Return the numbers of processes of a name: that of their program, or of their main thread.

    It may be the program's path as the process sees it, too. Ascending. This process is none of
    them.
    """
    wanted = os.fsencode(name)
    return [number for number, names in _names() if wanted in names]


def _names() -> Iterator[tuple[int, set[bytes]]]:
    """Yield the processes but this one, ascending, with their names and their program's path."""
    for number in _numbers():
        if number == os.getpid():
            continue
        directory = f"/proc/{number}"
        try:
            names = {Path(f"{directory}/comm").read_bytes().rstrip(b"\n")}
        except OSError:
            continue
        with suppress(OSError):
            program = os.readlink(os.fsencode(f"{directory}/exe")).removesuffix(b" (deleted)")
            names |= {program, os.path.basename(program)}
            root = os.readlink(os.fsencode(f"{directory}/root"))
            if root != b"/" and program.startswith(root + b"/"):  # a chroot
                names.add(program.removeprefix(root))
        yield number, names


def _names_like(word: str) -> str:
    """Return names of processes that may be meant, and what else to give, for a message."""
    import difflib

    names = {os.fsdecode(name) for _, known in _names() for name in known if b"/" not in name}
    # A shell takes the rest of a name for other words.
    found = sorted(name for name in names if name.startswith(f"{word} "))
    found = found or difflib.get_close_matches(word, names, 2, _ALIKE)
    return f"did you mean {' or '.join(map(quote, found[:2]))}?" if found else "give its number"


def _numbers() -> list[int]:
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def started_by(pid: int) -> list[int]:
    """Return the processes that a process has started, and these in turn: the nearest first."""
    children: dict[int, list[int]] = {}
    for number in _numbers():
        with suppress(OSError):
            children.setdefault(int(read_status(number)["PPid"]), []).append(number)
    found = [pid]
    for each in found:
        found += children.get(each, ())
    return found[1:]


def process_numbers(words: Iterable[str | int]) -> tuple[int, ...]:
    """Return the numbers of processes that are given by number, by name, or as a list of these.

    A name stands for all processes that are called so, ``container:3f2a91`` for the Go programs of
    a container. Each word is ``12``, ``shop``, ``my shop`` or ``12,shop``. Raises UsageError.
    """
    found: list[int] = []
    for word in chain.from_iterable(_listed(str(text)) for text in words):
        if re.fullmatch(r"[+-]?\d+", word):
            if int(word) <= 0:
                raise UsageError(f"{word} is not the number of a process")
            found.append(int(word))
        elif word.startswith(_CONTAINER):
            found += _programs_in(word.removeprefix(_CONTAINER))
        elif called := processes_called(word):
            found += called
        elif "/" in word and processes_called(os.path.basename(word)):
            name = os.path.basename(word)
            what = said(f"-p {shlex.quote(name)}", f"attach({name!r})")
            raise UsageError(f"{word!r} is a path: type {what}")
        else:
            raise UsageError(f"no process is named {word!r}: {_names_like(word)}")
    return tuple(dict.fromkeys(found))


def _listed(text: str) -> list[str]:
    """Return the words of a list of processes; a name may have blanks and commas in it."""
    parts = [text] if processes_called(text) else [part.strip() for part in text.split(",")]
    words: list[str] = []
    for part in parts:
        each = part.split() or [part]
        is_list = all(word.isdecimal() or processes_called(word) for word in each)
        words += each if is_list and not processes_called(part) else [part]
    return words


def _programs_in(number: str) -> list[int]:
    """Return the processes of Go programs, or all, of the container whose number begins so."""
    if not re.fullmatch("[0-9a-f]{6,64}", number):
        raise UsageError(
            f"{_CONTAINER}{number}: type the container's number, or its first 6 digits or more"
        )
    containers = processes_in(number)
    if not containers:
        raise UsageError(f"no process is in a container {number}")
    if len(containers) > 1:
        raise UsageError(f"{len(containers)} containers have numbers that begin with {number}")
    (within,) = containers.values()
    # gccgo's programs do not say what they are.
    return [pid for pid in within if runs_go(f"/proc/{pid}/exe")] or within


def runs_go(path: str) -> bool:
    """Return whether a file is a program that Go's linker has made."""
    from gotrace.elf.image import ElfImage  # which most users of this module have no need of

    try:
        with ElfImage.open(path) as image:
            names = (".go.buildinfo", ".gopclntab", ".data.rel.ro.gopclntab")
            return any(image.section(name) is not None for name in names)
    except GotraceError:
        return False


def one_process(words: Iterable[str | int], action: str) -> int:
    """Return the number of the one process that words name; ``action`` is what takes one.

    Raises UsageError.
    """
    numbers = process_numbers(words)
    if len(numbers) > 1:
        each = [said(f"-p {number}", f"attach({number})") for number in numbers]
        shown = " or ".join(each[:8]) + (" ..." if each[8:] else "")
        raise UsageError(f"{action} one process, and there are {len(each)}: give {shown}")
    return numbers[0]


def ends_so(path: str, name: str) -> bool:
    """Return whether a name is the end of a path, from the beginning of a part of it."""
    return f"/{path}".endswith(f"/{name}") and not name.startswith(("/", "."))


def file_test(pid: int | None) -> Callable[[str], bool]:
    """Return a test for paths of files, here or in the root directory of process ``pid``.

    Without a process only files here pass it.
    """
    root = f"/proc/{pid}/root"

    def exists(path: str) -> bool:
        inside = pid is not None and path.startswith("/")
        return os.path.isfile(path) or (inside and os.path.isfile(root + path))

    return exists


def in_initial_pid_namespace() -> bool:
    """Return whether this process counts pids as the kernel's BPF helpers do."""
    return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE


def fork(purpose: str) -> int:
    """Fork; ``purpose`` is what the child is for, for the message. Raises GotraceError."""
    try:
        return os.fork()
    except OSError as error:
        raise GotraceError(
            f"cannot start a process {purpose}: {error.strerror}: raise ulimit -u, or pids.max of"
            " the control group"
        ) from error


def ended_processes(numbers: Iterable[int]) -> set[int]:
    """Return the process numbers, as this namespace has them, that no process has now."""
    return {number for number in set(numbers) if not _is_there(number)}


def _is_there(number: int) -> bool:
    """Ask the kernel: /proc may be mounted with hidepid."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _gone(pid: int, error: OSError) -> ProcessError:
    if isinstance(error, PermissionError):
        return ProcessError(f"permission denied reading /proc/{pid}: {_advice()}")
    return ProcessError(f"there is no process {pid}")


def _advice() -> str:
    if os.geteuid() == 0:
        return "this root lacks CAP_SYS_PTRACE or a security module forbids it"
    return "run as root or with CAP_SYS_PTRACE"
