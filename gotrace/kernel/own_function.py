# SPDX-License-Identifier: Apache-2.0
"""Give this process a little function of its own to be probed, for calibration and trials."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = [
    "OwnFunction",
    "own_function",
]


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A file that holds nothing but one function, and where it is mapped here."""

    path: str
    address: int

    def call(self) -> None:
        """Call the function, which takes and returns nothing."""
        ctypes.CFUNCTYPE(None)(self.address)()


@contextmanager
def own_function(code: bytes) -> Iterator[OwnFunction]:
    """Map machine code, from an anonymous file, executable while the block runs."""
    fd = os.memfd_create("gotrace-function", os.MFD_CLOEXEC)
    try:
        os.write(fd, code.ljust(mmap.PAGESIZE, b"\xcc"))
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        with mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, protection) as text:
            yield OwnFunction(f"/proc/self/fd/{fd}", _address(text))
    finally:
        os.close(fd)


class _PyBuffer(ctypes.Structure):
    """The head of CPython's Py_buffer (Include/cpython/object.h), with room for the rest."""

    _fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_char * 128)]


def _address(text: mmap.mmap) -> int:
    """Return where a read-only mapping lies, which ctypes itself gives for writable ones only."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(text), ctypes.byref(buffer), 0)
    address: int | None = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    assert address is not None
    return address
