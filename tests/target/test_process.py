# SPDX-License-Identifier: Apache-2.0
"""Learn from /proc about this process, its threads, and children in all states."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace.errors import UsageError
from gotrace.target import process as process_module
from gotrace.target import target as target_module
from gotrace.target.process import Process, ProcessError, find_process, in_initial_pid_namespace
from gotrace.target.target import MAX_PROCESSES, Target
from tests.tools.unprivileged import NOBODY


def test_process_and_its_threads_are_one() -> None:
    assert find_process(os.getpid()).tgid == os.getpid()
    begun, over = threading.Event(), threading.Event()
    found: list[Process] = []

    def other() -> None:
        begun.wait()
        found.append(find_process(threading.get_native_id()))
        over.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert thread.native_id != os.getpid()
    begun.set()
    over.wait()
    thread.join()
    assert [process.tgid for process in found] == [os.getpid()]


def test_ended_process() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    process = Process(child.pid)
    message = f"there is no process {child.pid}"
    with pytest.raises(ProcessError, match=message):
        find_process(child.pid)
    with pytest.raises(ProcessError, match=message):
        list(process.mappings())
    with pytest.raises(ProcessError, match=message):
        process.exit_descriptor()
    with pytest.raises(ProcessError, match=message):
        _ = process.executable_name
    assert process.program() is None


def test_processes_that_may_not_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is mounted with hidepid."""

    def refuse(pid: int) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(process_module, "read_status", refuse)
    with pytest.raises(
        ProcessError, match=r"permission denied reading /proc/7: (run as root|this)"
    ):
        find_process(7)


def test_more_processes_than_are_traced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "find_process", Process)
    with pytest.raises(UsageError, match="more than 8 processes: trace their programs by their"):
        Target.of(None, None, pids=range(1, MAX_PROCESSES + 2))


def test_zombie() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessError, match=f"process {child.pid} is a zombie"):
            find_process(child.pid)
        assert Process(child.pid).program() is None


def test_executable_deleted_or_not(tmp_path: Path) -> None:
    path = shutil.copy(shutil.which("cat") or "/bin/cat", tmp_path / "we) ird\n1")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"hello\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"hello\n"
        process = find_process(child.pid)
        assert process.executable_name == os.path.realpath(path)
        before = process.program()
        status = os.stat(path)
        assert before is not None
        assert (before.device, before.inode) == (status.st_dev, status.st_ino)
        os.unlink(path)
        assert process.executable_name == os.path.realpath(tmp_path) + "/we) ird\n1"
        assert process.program() == before
        with open(process.executable, "rb") as file:
            assert file.read(4) == b"\x7fELF"


def test_program_that_is_started_anew_is_another() -> None:
    script = 'echo one; read x; exec sh -c "echo two; read x"'
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "one\n"
        process = Process(child.pid)
        first = process.program()
        assert process.program() == first
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "two\n"
        second = process.program()
        assert first is not None and second is not None
        assert (first.device, first.inode) == (second.device, second.inode)
        assert first != second


def test_mappings(tmp_path: Path) -> None:
    path = tmp_path / "a file with spaces"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE, offset=mmap.PAGESIZE, prot=mmap.PROT_READ),
    ):
        found = [row for row in Process(os.getpid()).mappings() if row.path == str(path)]
    (row,) = found
    assert row.end - row.start == 2 * mmap.PAGESIZE
    assert (row.offset, row.inode) == (mmap.PAGESIZE, path.stat().st_ino)


def test_mappings_are_of_files_only() -> None:
    mappings = list(Process(os.getpid()).mappings())
    assert mappings == sorted(mappings, key=lambda row: row.start)
    assert not [row for row in mappings if row.path.startswith("[")]
    python = os.path.realpath(sys.executable)
    assert any(row.path == python for row in mappings)


def test_memory_that_has_never_been_touched() -> None:
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 4 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        process = Process(os.getpid())
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        assert process.is_untouched(start, 4 * page)
        assert process.is_untouched(start + 100, 4 * page - 100)
        area[page + 5] = 1
        untouched = [process.is_untouched(start + at * page, page) for at in range(4)]
        assert untouched == [True, False, True, True]
        assert not process.is_untouched(start + page - 1, 2)
        assert process.is_untouched(start + 2 * page, 2 * page)
    for address in (0, 8, start, (1 << 64) - 8, 1 << 47):  # that area is gone
        assert not process.is_untouched(address, 16)


@pytest.mark.parametrize("mode", [mmap.PROT_READ, 0])
def test_memory_that_cannot_be_written_is_not_told_to_be_untouched(mode: int) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        libc = ctypes.CDLL(None)
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), mode) == 0
        assert not Process(os.getpid()).is_untouched(start, 16)


def test_memory_of_a_process_that_has_ended() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert not Process(child.pid).is_untouched(0xC000000000, 8)


@pytest.mark.live
def test_code_of_another_user_can_be_read_without_the_rights_to_open_its_files() -> None:
    """As the daemon does it in a pod: a process's memory is a file of its user."""
    reading = "import sys; from gotrace.target.process import find_process; sys.exit(" + (
        "find_process(int(sys.argv[1])).code_at(1) != {ord('E')})"  # of "\x7fELF"
    )
    less = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, "-c"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*NOBODY, "cat"], bufsize=0, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        assert process.stdout.read(1) == b"\n"  # it is cat by now
        refused = "import sys; open(f'/proc/{sys.argv[1]}/mem')"
        assert subprocess.run([*less, refused, str(process.pid)], capture_output=True).returncode
        assert subprocess.run([*less, reading, str(process.pid)]).returncode == 0
        process.kill()


def test_kernels_without_descriptors_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    with pytest.raises(ProcessError, match=r"no pidfd_open \(Linux 5.3.*: trace by path"):
        Process(os.getpid()).exit_descriptor()


def test_exit_descriptor_is_readable_once_the_process_has_ended() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        descriptor = Process(child.pid).exit_descriptor()
        assert select.select([descriptor], [], [], 0)[0] == []
        assert child.stdin is not None
        child.stdin.close()
        assert select.select([descriptor], [], [], 60)[0] == [descriptor]
        os.close(descriptor)


def test_pid_namespaces() -> None:
    namespace = os.stat("/proc/self/ns/pid")
    own = namespace.st_ino
    assert Process(os.getpid()).pid_namespace()[1] == own
    # nsfs has no device of its own: such ones are numbered from 0 on, in the minor number.
    assert Process(os.getpid()).pid_namespace()[0] == os.minor(namespace.st_dev)
    # The initial namespace is the one whose number is fixed in the kernel's headers.
    assert in_initial_pid_namespace() is (own == 4026531836)
