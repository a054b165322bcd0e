# SPDX-License-Identifier: Apache-2.0
"""Measure how long perf-event uprobes take to attach and to remove, by number and by how.

Where there are no uprobe-multi links each probe is a perf event, and the kernel waits for grace
periods as it removes each (perf_trace_event_unreg in kernel/trace/trace_event_perf.c), one event at
a time, as it holds event_mutex meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from fcntl import ioctl
from pathlib import Path

from gotrace.kernel import syscalls as kernel

_THREADS = 64
_PROCESSES = 8
_PERF_EVENT_IOC_DISABLE = 0x2401
_CLOSE_RANGE = 436  # close_range(2)
_EXPEDITED = Path("/sys/kernel/rcu_expedited")


class How(Enum):
    """How the descriptors are closed."""

    ONE_BY_ONE = "one by one"
    THREADS = f"by {_THREADS} threads"
    PROCESSES = f"by {_PROCESSES} processes"
    DISABLED = "disabled first"
    AT_ONCE = "by one close_range"
    EXPEDITED = "one by one, rcu_expedited"


def measure(path: Path, offsets: Sequence[int], cookies: bool, how: How) -> tuple[float, float]:
    """Attach an empty program at file offsets, remove it again, and return both times in s."""
    program = _empty_program()
    began = time.monotonic()
    descriptors: list[int] = []
    events = []
    for number, offset in enumerate(offsets):
        event = kernel.open_uprobe(str(path), offset)
        events.append(event)
        if cookies:
            descriptors.append(kernel.link_perf_event(program, event, number))
        else:
            kernel.set_perf_event_program(event, program)
        descriptors.append(event)
    attached = time.monotonic()
    _CLOSERS[how](events, descriptors)
    ended = time.monotonic()
    os.close(program)
    return attached - began, ended - attached


def _one_by_one(events: Sequence[int], descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _threads(events: Sequence[int], descriptors: Sequence[int]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(os.close, descriptors))


def _processes(events: Sequence[int], descriptors: Sequence[int]) -> None:
    """Leave each descriptor to one of some processes alone, and have these end."""
    children: list[int] = []
    pipes: list[int] = []
    for start in range(_PROCESSES):
        mine = set(descriptors[start::_PROCESSES])
        waiting, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in descriptors:
                if descriptor not in mine:
                    os.close(descriptor)
            for pipe in (done, *pipes):
                os.close(pipe)
            os.read(waiting, 1)
            os._exit(0)
        os.close(waiting)
        children.append(pid)
        pipes.append(done)
    _one_by_one(events, descriptors)  # nothing is freed: the children hold all
    for pipe in pipes:
        os.close(pipe)
    for pid in children:
        os.waitpid(pid, 0)


def _disabled(events: Sequence[int], descriptors: Sequence[int]) -> None:
    for event in events:
        ioctl(event, _PERF_EVENT_IOC_DISABLE, 0)
    _one_by_one(events, descriptors)


def _at_once(events: Sequence[int], descriptors: Sequence[int]) -> None:
    syscall = ctypes.CDLL(None).syscall
    syscall(_CLOSE_RANGE, min(descriptors), max(descriptors), 0)


def _expedited(events: Sequence[int], descriptors: Sequence[int]) -> None:
    before = _EXPEDITED.read_text()
    _EXPEDITED.write_text("1")
    try:
        _one_by_one(events, descriptors)
    finally:
        _EXPEDITED.write_text(before)


_CLOSERS: dict[How, Callable[[Sequence[int], Sequence[int]], None]] = {
    How.ONE_BY_ONE: _one_by_one,
    How.THREADS: _threads,
    How.PROCESSES: _processes,
    How.DISABLED: _disabled,
    How.AT_ONCE: _at_once,
    How.EXPEDITED: _expedited,
}


def _empty_program() -> int:
    """Load a program that does nothing, for perf events, and return its descriptor."""
    code = ctypes.create_string_buffer(struct.pack("<QQ", 0x00B7, 0x0095), 16)  # r0 = 0; exit
    words = ctypes.create_string_buffer(b"GPL")
    fields = (_KPROBE, 2, ctypes.addressof(code), ctypes.addressof(words))
    # log level, size and buffer are left 0, and so is the kernel's version, from Linux 5.0 on
    return kernel._bpf(_PROG_LOAD, struct.pack("=IIQQ", *fields).ljust(72, b"\0"))


_PROG_LOAD, _KPROBE = 5, 2
