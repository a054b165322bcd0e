# SPDX-License-Identifier: Apache-2.0
"""Read the memory of a process while it runs: many places with one system call."""

from __future__ import annotations

import ctypes
import errno
import os
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

from gotrace.goroutines.program import Module
from gotrace.target.process import Process, ProcessError

#: Pieces that one system call reads: UIO_MAXIOV, include/uapi/linux/uio.h.
MAX_AT_ONCE = 1024
#: Up to and including minpc and maxpc in all layouts of runtime.moduledata.
_MODULE_DATA_WORDS = 24


class Memory(Protocol):
    """Something whose memory can be read at run-time addresses."""

    def gather(self, places: Sequence[int]) -> bytearray:
        """Return the bytes at places, one after the other.

        ``places`` are an address and a size for each. Bytes that cannot be read are zeros.
        """

    def scatter(self, places: array[int], into: array[int], parts: array[int]) -> None:
        """Copy the bytes at places to parts of ``into``; zeros where they cannot be read.

        ``places`` are an address and a size for each, ``parts`` the offset of the byte that it
        begins at there, and the same size. Up to MAX_AT_ONCE are read in their order, as fast as
        can be.
        """

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes at an address, None where they cannot be read."""

    def close(self) -> None:
        """Give back the resources of reading."""


def words_at(memory: Memory, address: int, count: int) -> array[int]:
    """Return 64-bit words; zeros where they cannot be read."""
    return array("Q", bytes(memory.gather((address, 8 * count))))


def is_loaded(module: Module, memory: Memory) -> bool:
    """Return whether memory has a module: its module data there name its code's bounds."""
    known = module.binary.functions.module
    if known is None:
        return False
    return has_bounds(memory, known.address, (known.first_pc, known.last_pc), module.bias)


def has_bounds(memory: Memory, address: int, bounds: tuple[int, int], bias: int) -> bool:
    """Return whether the module data at a link-time address name a code's first and last pc."""
    words = words_at(memory, address + bias, _MODULE_DATA_WORDS)
    return (bounds[0] + bias, bounds[1] + bias) in pairwise(words)


class ProcessMemory:
    """The memory of a live process.

    Reads by process_vm_readv, or where that is forbidden (by a container's seccomp filter) through
    /proc/PID/mem, which is opened first: so the process whose memory it is cannot be mistaken for
    another one with its number. Neither stops it. The file belongs to the process's user: others
    need more than CAP_SYS_PTRACE for it (CAP_DAC_READ_SEARCH), and do without it.
    """

    def __init__(self, process: Process) -> None:
        """Open the memory. Raises ProcessError where that is not allowed or the process ended."""
        self._process = process
        self._pid = process.tgid
        self._file: int | None = None
        self._program = process.program()
        libc = ctypes.CDLL(None, use_errno=True)
        self._readv = getattr(libc, "process_vm_readv", None)
        if self._readv is not None:
            word = ctypes.c_ulong
            self._readv.argtypes = [
                ctypes.c_int,
                ctypes.c_void_p,
                word,
                ctypes.c_void_p,
                word,
                word,
            ]
            self._readv.restype = ctypes.c_ssize_t
        try:
            self._file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            self._read_code()
        except OSError:
            raise ProcessError(f"there is no process {self._pid}") from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes at an address, None where they cannot be read."""
        try:
            content = self._read_alone(address, size)
        except (OSError, OverflowError):
            return None
        return content if len(content) == size else None

    def _read_alone(self, address: int, size: int) -> bytes:
        """Read one place, as much of it as can be. Raises OSError or OverflowError."""
        if self._file is not None:
            return os.pread(self._file, size, address)
        if self._readv is None:
            raise PermissionError
        content = bytearray(size)
        buffer = (ctypes.c_char * size).from_buffer(content)
        local, place = array("Q", (ctypes.addressof(buffer), size)), array("Q", (address, size))
        done = self._readv(self._pid, local.buffer_info()[0], 1, place.buffer_info()[0], 1, 0)
        del buffer
        if done < 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return bytes(content[:done])

    def _read_code(self) -> None:
        """Raise ProcessError where memory cannot be read without its file."""
        if self._is_there():
            return
        if self._process.program() is None:
            raise ProcessError(f"there is no process {self._pid}")
        raise ProcessError(
            f"the memory of process {self._pid} may not be read: run as root or with CAP_SYS_PTRACE"
        )

    def gather(self, places: Sequence[int]) -> bytearray:
        """Return the bytes at places; raise ProcessError when the process has ended."""
        into = bytearray(sum(places[1::2]))
        parts = array("Q", places)
        parts[0::2] = array("Q", accumulate(places[1:-1:2], initial=0)) if places else parts
        self._scatter(array("Q", places), into, parts)
        return into

    def scatter(self, places: array[int], into: array[int], parts: array[int]) -> None:
        """Copy memory at places; raise ProcessError if the process has ended."""
        with memoryview(into) as words, words.cast("B") as raw:
            self._scatter(places, raw, parts)

    def _scatter(self, places: array[int], into: bytearray | memoryview, parts: array[int]) -> None:
        first = 0
        while first < len(places):
            batch = slice(first, first + 2 * MAX_AT_ONCE)
            if self._readv is None:
                first += self._read_one_by_one(places[batch], into, parts[batch])
            else:
                first += self._read_batch(places[batch], into, parts[batch])

    def _read_batch(
        self, places: array[int], into: bytearray | memoryview, parts: array[int]
    ) -> int:
        """Read places up to the first that cannot be read, which becomes zeros.

        Return how many words of ``places`` that were.
        """
        assert self._readv is not None
        count = len(places) // 2
        sizes = places[1::2]
        total = sum(sizes)
        if not total:
            return len(places)
        buffer = (ctypes.c_char * len(into)).from_buffer(into)
        start = ctypes.addressof(buffer)
        local = array("Q", parts)
        local[0::2] = array("Q", map(start.__add__, parts[0::2]))
        done = self._readv(
            *(self._pid, local.buffer_info()[0], count, places.buffer_info()[0], count, 0)
        )
        del buffer  # which keeps ``into`` from being resized
        if done == total:
            return len(places)
        reason = ctypes.get_errno()
        if done < 0 and reason in (errno.EPERM, errno.ENOSYS):
            self._readv = None
            if self._file is None:  # it was permitted before: the process has other rights now
                self._read_code()
            return 0
        if not self._is_there():
            raise ProcessError(f"process {self._pid} has ended")
        for number, end in enumerate(accumulate(sizes)):
            if end > max(done, 0):
                at, size = parts[2 * number], sizes[number]
                into[at : at + size] = bytes(size)
                return 2 * number + 2
        return len(places)

    def _read_one_by_one(
        self, places: array[int], into: bytearray | memoryview, parts: array[int]
    ) -> int:
        """Read places through the file; return how many words of ``places`` that were."""
        for address, size, at in zip(places[0::2], places[1::2], parts[0::2], strict=True):
            try:
                content = self._read_alone(address, size)
            except (OSError, OverflowError):
                content = b""
            if len(content) != size:
                if not self._is_there():
                    raise ProcessError(f"process {self._pid} has ended")
                content = bytes(size)
            into[at : at + size] = content
        return len(places)

    def _is_there(self) -> bool:
        """Return whether the memory that was opened is still that of a process.

        A program's own code can be read; of memory that is gone nothing is read. Without the file,
        the process must run the same program still.
        """
        if self._file is None and self._process.program() != self._program:
            return False
        try:
            with open(f"/proc/{self._pid}/maps", "rb") as maps:
                line = maps.readline()
            return bool(line) and len(self._read_alone(int(line.split(b"-")[0], 16), 1)) == 1
        except (OSError, ValueError):
            return False
