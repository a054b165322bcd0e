# SPDX-License-Identifier: Apache-2.0
"""Read the memory of a process while it runs: many places with one system call."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from array import array
from collections.abc import Sequence
from typing import Protocol

from gotrace.goroutines.program import Module
from gotrace.target.process import Process, ProcessError

__all__ = ["Memory", "ProcessMemory", "is_loaded", "words_at"]

#: UIO_MAXIOV, include/uapi/linux/uio.h
_MAX_PLACES = 1024
#: Up to and including minpc and maxpc in all layouts of runtime.moduledata.
_MODULE_DATA_WORDS = 24


class Memory(Protocol):
    """Something whose memory can be read at run-time addresses."""

    def gather(self, places: Sequence[int]) -> bytearray:
        """Return the bytes at places, one after the other.

        ``places`` are an address and a size for each. What cannot be read is zeros.
        """

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes at an address, None where they cannot be read."""

    def close(self) -> None:
        """Give back what reading took."""


def words_at(memory: Memory, address: int, count: int) -> array[int]:
    """Return 64-bit words; zeros where they cannot be read."""
    return array("Q", bytes(memory.gather((address, 8 * count))))


def is_loaded(module: Module, memory: Memory) -> bool:
    """Return whether memory has a module: its module data there name its code's bounds."""
    known = module.binary.functions.module
    if known is None:
        return False
    words = words_at(memory, known.address + module.bias, _MODULE_DATA_WORDS)
    bounds = (known.first_pc + module.bias, known.last_pc + module.bias)
    return bounds in itertools.pairwise(words)


class ProcessMemory:
    """The memory of a live process.

    Reads by process_vm_readv, or where that is forbidden (by a container's seccomp filter) through
    /proc/PID/mem, which is opened first: so the process whose memory it is cannot be mistaken for
    another one with its number. Neither stops it.
    """

    def __init__(self, process: Process) -> None:
        """Open the memory. Raises ProcessError where that is not allowed or the process ended."""
        self._pid = process.tgid
        try:
            self._file = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise ProcessError(
                f"the memory of process {self._pid} may not be read: run as root or with"
                " CAP_SYS_PTRACE"
            ) from None
        except OSError:
            raise ProcessError(f"there is no process {self._pid}") from None
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

    def close(self) -> None:
        """Close the memory."""
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes at an address, None where they cannot be read."""
        try:
            content = os.pread(self._file, size, address)
        except (OSError, OverflowError):
            return None
        return content if len(content) == size else None

    def gather(self, places: Sequence[int]) -> bytearray:
        """Return the bytes at places; raise ProcessError when the process has ended."""
        into = bytearray(sum(places[1::2]))
        first = at = 0
        while first < len(places):
            batch = places[first : first + 2 * _MAX_PLACES]
            if self._readv is None:
                self._read_one_by_one(batch, into, at)
                count, size = len(batch), sum(batch[1::2])
            else:
                count, size = self._read_batch(batch, into, at)
            first += count
            at += size
        return into

    def _read_batch(self, batch: Sequence[int], into: bytearray, at: int) -> tuple[int, int]:
        """Read places up to the first that cannot be read, which is skipped.

        Return how many words of ``batch`` that were, and the size of what they name.
        """
        assert self._readv is not None
        sizes = batch[1::2]
        total = sum(sizes)
        if not total:
            return len(batch), 0
        remote = array("Q", batch)
        buffer = (ctypes.c_char * total).from_buffer(into, at)
        local = array("Q", (ctypes.addressof(buffer), total))
        done = self._readv(
            self._pid, local.buffer_info()[0], 1, remote.buffer_info()[0], len(sizes), 0
        )
        if done == total:
            return len(batch), total
        reason = ctypes.get_errno()
        if done < 0 and reason in (errno.EPERM, errno.ENOSYS):
            self._readv = None  # /proc/PID/mem was opened all the same
            return 0, 0
        if not self._is_there():
            raise ProcessError(f"process {self._pid} has ended")
        done = max(done, 0)
        size = 0
        for count, length in enumerate(sizes, 1):
            size += length
            if size > done:
                into[at + size - length : at + size] = bytes(length)
                return 2 * count, size
        return len(batch), total

    def _read_one_by_one(self, batch: Sequence[int], into: bytearray, at: int) -> None:
        for address, size in zip(batch[::2], batch[1::2], strict=True):
            try:
                content = os.pread(self._file, size, address)
            except (OSError, OverflowError):
                content = b""
            if len(content) == size:
                into[at : at + size] = content
            elif not self._is_there():
                raise ProcessError(f"process {self._pid} has ended")
            at += size

    def _is_there(self) -> bool:
        """Return whether the memory that was opened is still that of a process.

        A program's own code can be read; of memory that is gone nothing is read.
        """
        try:
            with open(f"/proc/{self._pid}/maps", "rb") as maps:
                line = maps.readline()
            return bool(line) and len(os.pread(self._file, 1, int(line.split(b"-")[0], 16))) == 1
        except (OSError, ValueError):
            return False
