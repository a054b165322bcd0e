# SPDX-License-Identifier: Apache-2.0
"""Give this process a little function of its own to be probed, for calibration and trials.

Its machine code is here as well, for each architecture.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from gotrace.architecture import AMD64, ARM64, HOST
from gotrace.errors import GotraceError
from gotrace.records import dataclass

#: How often ``OwnCode.caller`` calls.
CALLS = 20


@dataclass(frozen=True, slots=True)
class OwnCode:
    """Machine code of functions that do nothing, in the two forms that an entry can have.

    The kernel emulates the first instruction of ``emulated``, and single-steps that of ``stepped``;
    ``ret`` is where the RET of both is. ``caller`` calls CALLS times what comes after it. There the
    call returns to ``after_call``, and the kernel emulates the instruction at ``landing``.
    """

    emulated: bytes
    stepped: bytes
    ret: int
    caller: bytes
    after_call: int
    landing: int


_OWN_CODE = {
    AMD64.name: OwnCode(
        emulated=b"\x55\x5d\xc3",  # push %rbp; pop %rbp; ret
        stepped=b"\x89\xc0\xc3",  # mov %eax,%eax; ret
        ret=2,
        # push %rbx; mov $CALLS,%ebx; again: call the function after this; dec %ebx; jnz again;
        # pop %rbx; ret
        caller=b"\x53\xbb%b\xe8\x06\0\0\0\xff\xcb\x75\xf7\x5b\xc3" % CALLS.to_bytes(4, "little"),
        after_call=11,
        landing=13,
    ),
    ARM64.name: OwnCode(
        emulated=struct.pack("<2I", 0x14000001, 0xD65F03C0),  # b to the next; ret
        stepped=struct.pack("<2I", 0xAA0A03E9, 0xD65F03C0),  # mov x9,x10; ret
        ret=4,
        # stp x19,x30,[sp,#-16]!; mov w19,#CALLS; again: bl the function after this; sub w19,w19,#1;
        # cbnz w19,again; ldp x19,x30,[sp],#16; ret
        caller=struct.pack(
            "<7I",
            *(0xA9BF7BF3, 0x52800013 | CALLS << 5, 0x94000005, 0x51000673, 0x35FFFFD3),
            *(0xA8C17BF3, 0xD65F03C0),
        ),
        after_call=12,
        landing=16,
    ),
}


def own_code() -> OwnCode:
    """Return the code for this machine. Raises GotraceError for one that is not known."""
    if HOST is None:
        raise GotraceError(f"programs are not traced on {os.uname().machine}")
    return _OWN_CODE[HOST.name]


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A file that holds nothing but one function, and where it is mapped here."""

    path: str
    address: int

    def call(self) -> None:
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
