# SPDX-License-Identifier: Apache-2.0
"""Sample running threads: their registers and the top of their stacks, by perf_event_open(2).

The kernel's timer interrupts the thread for some microseconds, as it does anyway, and copies both;
nothing is stopped or changed. Layouts: include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gotrace.architecture import HOST

_SYS_PERF_EVENT_OPEN = HOST.perf_event_open if HOST else -1
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_SAMPLE_TID, _SAMPLE_REGS_USER, _SAMPLE_STACK_USER = 1 << 1, 1 << 12, 1 << 13
_EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 5, 1 << 6
_RECORD_SAMPLE = 9
_REGISTERS = HOST.perf_sp_pc if HOST else 0
_ABI_64 = 2
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIi")
_ATTRIBUTES_SIZE = 128
_FLAG_FD_CLOEXEC = 8
#: Of perf_event_mmap_page.
_DATA_HEAD, _DATA_TAIL = 1024, 1032

#: Bytes of a stack that are copied: below 64 KB, and a multiple of 8.
_STACK_BYTES = 16 << 10
#: Of a thread's buffer: at least a page, and a power of two of them.
_RING_BYTES = max(128 << 10, mmap.PAGESIZE)
_PERIOD_NS = 1_000_000
_SECONDS = 0.02
#: More threads than that do not run at once on any machine at hand.
_MAX_THREADS = 512


class Sample(NamedTuple):
    """The state of a thread: ``stack`` are the bytes from SP on, up to some length."""

    tid: int
    pc: int
    sp: int
    stack: bytes


def sample_threads(tids: Sequence[int]) -> Iterator[Sample]:
    """Yield samples of threads that run within the next hundredth of a second.

    None of a thread that does not run, or may not be looked at.
    """
    with ExitStack() as opened:
        rings = [ring for tid in tids[:_MAX_THREADS] if (ring := _open(tid, opened)) is not None]
        if not rings:
            return
        time.sleep(_SECONDS)
        for ring in rings:
            yield from _records(ring)


def _open(tid: int, opened: ExitStack) -> mmap.mmap | None:
    sampled = _SAMPLE_TID | _SAMPLE_REGS_USER | _SAMPLE_STACK_USER
    attributes = _ATTRIBUTES.pack(
        *(_TYPE_SOFTWARE, _ATTRIBUTES_SIZE, _CPU_CLOCK, _PERIOD_NS, sampled, 0),
        *(_EXCLUDE_KERNEL | _EXCLUDE_HV, 0, 0, 0, 0, 0, _REGISTERS, _STACK_BYTES, 0),
    ).ljust(_ATTRIBUTES_SIZE, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_FLAG_FD_CLOEXEC)
    fd = libc.syscall(_SYS_PERF_EVENT_OPEN, attributes, tid, -1, -1, flags)
    if fd < 0:
        return None
    opened.callback(os.close, fd)
    try:
        ring = mmap.mmap(fd, mmap.PAGESIZE + _RING_BYTES)
    except OSError:  # beyond RLIMIT_MEMLOCK
        return None
    opened.callback(ring.close)
    return ring


def _records(ring: mmap.mmap) -> Iterator[Sample]:
    (head,) = struct.unpack_from("<Q", ring, _DATA_HEAD)
    data = ring[mmap.PAGESIZE : mmap.PAGESIZE + min(head, _RING_BYTES)]
    at = 0
    while at + 8 <= len(data):
        kind, _, length = struct.unpack_from("<IHH", data, at)
        if length < 8 or at + length > len(data):
            return
        if kind == _RECORD_SAMPLE:
            sample = _parse(data[at + 8 : at + length])
            if sample is not None:
                yield sample
        at += length


def _parse(record: bytes) -> Sample | None:
    try:
        _, tid, abi = struct.unpack_from("<IIQ", record)
        if abi != _ABI_64:
            return None
        sp, pc, size = struct.unpack_from("<QQQ", record, 16)
        (copied,) = struct.unpack_from("<Q", record, 40 + size)
    except struct.error:
        return None
    return Sample(tid, pc, sp, record[40 : 40 + min(copied, size)])
