# SPDX-License-Identifier: Apache-2.0
"""Read the buffers that BPF programs write records to, by the clock and in bounded turns.

Sources: include/uapi/linux/perf_event.h (struct perf_event_attr, struct perf_event_mmap_page, the
layout of PERF_RECORD_SAMPLE) and perf_event_open(2). BCC's reader goes on for as long as records
keep coming, and runs a callback for each: neither time nor memory is bounded, nor is it known what
is left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from weakref import WeakSet

from gotrace.architecture import HOST
from gotrace.kernel import syscalls as kernel
from gotrace.records import dataclass, field

_PAGE = mmap.PAGESIZE
_IS_ORDERED = HOST is not None and HOST.orders_memory
_DATA_HEAD, _DATA_TAIL = 1024 // 8, 1032 // 8  # in struct perf_event_mmap_page, by words
_HEADER = struct.Struct("=IHHI").unpack_from  # type, misc, size; in a sample: bytes of data
_HEADER_BYTES = 12
_SAMPLE = 9
#: Bytes taken at once. A record has at most 64 KiB, so that there is a whole one in them.
_CHUNK = 1 << 17
_TIME = struct.Struct("=Q").unpack_from
#: Bytes that the kernel may be writing at a moment: four records, since contexts interrupt one
#: another, of 16 KiB at most.
_WRITING = 1 << 16
#: Seconds from a program's look at the clock until its record is there, even if it is preempted.
_SETTLING = 0.01
_MAPPED: WeakSet[mmap.mmap] = WeakSet()


def _keep_what_is_lacking() -> None:
    """Keep the objects of mappings for ever in a process that was forked, which lacks these.

    To free them would unmap what is there now. Source: perf_mmap (VM_DONTCOPY).
    """
    for memory in list(_MAPPED):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))


os.register_at_fork(after_in_child=_keep_what_is_lacking)


def pages_of(size: int) -> int:
    """Return how many pages take at most so many bytes: a power of two, one at least."""
    return 1 << max(size // _PAGE, 1).bit_length() - 1


@dataclass
class _Ring:
    """One CPU's buffer; ``read_to`` is the time of the last record that was taken from it."""

    cpu: int
    event: int
    memory: mmap.mmap
    read_to: int = 0
    words: memoryview = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.lock.acquire()
        self.words = memoryview(self.memory).cast("Q")
        self.size = len(self.memory) - _PAGE

    def left(self) -> int:
        """Return how many bytes there are to be read."""
        return self.words[_DATA_HEAD] - self.words[_DATA_TAIL]

    def chunk(self, most: int = _CHUNK) -> bytes:
        """Return the next bytes, at most ``_CHUNK`` and ``most``.

        The kernel has written all that lies before data_head when it is seen to have moved, if the
        data are read after that.
        """
        start = self.words[_DATA_TAIL] % self.size
        size = min(self.left(), _CHUNK, most)
        self.order()
        first = self.memory[_PAGE + start : _PAGE + min(start + size, self.size)]
        return first + self.memory[_PAGE : _PAGE + size - len(first)]

    def advance(self, size: int) -> None:
        """Return the room of the read records to the kernel."""
        self.order()
        self.words[_DATA_TAIL] += size

    def order(self) -> None:
        """Put all accesses before this call before all accesses after it, for other processors too.

        Python has no memory barriers. amd64 needs none: loads are not reordered with loads there,
        nor stores with earlier loads. Elsewhere a lock does it, which the C library's semaphores or
        mutexes are under: to unlock it is a release, and to lock it again an acquire, which arm64
        does not reorder with that (Arm ARM, B2.3, "Barrier-ordered-before").
        """
        if not _IS_ORDERED:
            self.lock.release()
            self.lock.acquire()

    def close(self) -> None:
        self.words.release()
        self.memory.close()
        os.close(self.event)


class Rings:
    """The perf buffers of all CPUs that one BPF program writes records to.

    Each record begins with its time, 8 bytes. Records of one CPU are nearly in order of time. Only
    the program knows of records that found no room.
    """

    def __init__(self, pages: int, assign: Callable[[int, int], None]) -> None:
        """Map ``pages`` pages, a power of two, for each CPU that is online.

        ``assign`` is called with each CPU and the descriptor that programs there write through.
        Raises OSError.
        """
        self._rings: list[_Ring] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            for cpu in kernel.online_cpus():
                event, memory = _opened(cpu, pages)
                self._rings.append(_Ring(cpu, event, memory))
                assign(cpu, event)
            undo.pop_all()

    def take(self, until: float, room: int, put: Callable[[int, list[bytes]], None]) -> int | None:
        """Pass the records of a CPU to ``put``, again and again until there are no more.

        It ends early at ``until`` (``time.monotonic``), or where the next record would make more
        than ``room`` bytes.
        The buffer that is furthest behind is read first. Return the time up to which all records
        have been taken, as far as each CPU's are in order, or None where all buffers are empty.
        """
        # Records that come meanwhile are left for the next turn: it ends although writers go on.
        waiting = {id(ring): left for ring in self._rings if (left := ring.left())}
        rings = [ring for ring in self._rings if id(ring) in waiting]
        while rings and room > 0 and time.monotonic() < until:
            ring = min(rings, key=lambda ring: ring.read_to)
            size, records = _records(ring.chunk(room))
            if not size:
                break
            ring.advance(size)
            room -= size
            waiting[id(ring)] -= size
            if waiting[id(ring)] <= 0:
                rings.remove(ring)
            if records:
                ring.read_to = _TIME(records[-1])[0]
                put(ring.cpu, records)
        return min((ring.read_to for ring in rings), default=None)

    def drop(self) -> Iterator[list[bytes]]:
        """Yield all records in the buffers, which nobody has to keep, some at a time."""
        for ring in self._rings:
            waiting = ring.left()
            while waiting > 0:
                size, records = _records(ring.chunk())
                ring.advance(size)
                waiting -= size
                yield records

    def close(self) -> None:
        while self._rings:
            self._rings.pop().close()


@dataclass
class PastRing:
    """One CPU's buffer, which is written from its end to its begin, and from its end again."""

    cpu: int
    event: int
    memory: mmap.mmap
    words: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.words = memoryview(self.memory).cast("Q")
        self.size = len(self.memory) - _PAGE

    def chunk(self, at: int, size: int) -> bytes:
        """Return the bytes from a place on; places go on past the end."""
        start = at % self.size
        first = self.memory[_PAGE + start : _PAGE + min(start + size, self.size)]
        return first + self.memory[_PAGE : _PAGE + size - len(first)]

    def since(self, moment: int, most: int) -> tuple[list[bytes], int]:
        """Return the records from a time on, the last one first, and from when on all are there.

        They are fewer if they were overwritten, or are more than ``most`` or so. The kernel goes on
        writing. It has overwritten what is farther from where it writes now than there is room.
        What it writes at this moment can be before that place.
        """
        found: list[bytes] = []
        head = self.words[_DATA_HEAD]
        room = self.size - _WRITING
        at, left = head, min(-head % (1 << 64), room)
        is_all = left < room
        while left > 0:
            chunk = self.chunk(at, min(left, _CHUNK))
            whole = room - (at - self.words[_DATA_HEAD]) % (1 << 64)
            if whole < len(chunk):
                chunk = chunk[: max(whole, 0)]
                left, is_all = len(chunk), False
            size, records = _records(chunk)
            if not size:
                break
            if records and _TIME(records[-1])[0] < moment:
                # Nearly in order: one that was reported late may be among earlier ones.
                found += (record for record in records if _TIME(record)[0] >= moment)
                is_all = True
                break
            found += records
            at += size
            left -= size
            if len(found) >= most:
                is_all = False
                break
        if is_all:
            return found, moment
        return found, _TIME(found[-1])[0] if found else time.monotonic_ns()

    def close(self) -> None:
        self.words.release()
        self.memory.close()
        os.close(self.event)


class PastRings:
    """Perf buffers of all CPUs that nobody has to read: the latest records overwrite the oldest."""

    def __init__(self, pages: int, assign: Callable[[int, int], None]) -> None:
        """Map ``pages`` pages, a power of two, for each CPU: see ``Rings``. Raises OSError."""
        self._rings: list[PastRing] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            for cpu in kernel.online_cpus():
                event, memory = _opened(cpu, pages, backward=True)
                self._rings.append(PastRing(cpu, event, memory))
                assign(cpu, event)
            undo.pop_all()

    def since(self, moment: int, until: int, most: int) -> list[bytes]:
        """Return all records from a time up to another, by CPU, each nearly in order.

        Both are on CLOCK_MONOTONIC, in ns. The second one is past: buffers are read one after the
        other, and so only what was written to all before that is known. The first is a later time
        if some records were overwritten, or if there are more than ``most``: then these are the
        latest ones.
        """
        # A program that has looked at the clock has still to write its record.
        time.sleep(_SETTLING)
        found: list[bytes] = []
        begin = moment
        for ring in self._rings:
            records, since = ring.since(moment, most)
            begin = max(begin, since)
            records.reverse()
            found += records
        found = [record for record in found if begin <= _TIME(record)[0] <= until]
        if len(found) > most:
            found.sort(key=_TIME)
            del found[:-most]
        return found

    def map_here(self) -> None:
        """Map the buffers in a process that was forked, which lacks them. Raises OSError."""
        lacking, self._rings = self._rings, []
        for ring in lacking:
            memory = mmap.mmap(ring.event, len(ring.memory), prot=mmap.PROT_READ)
            self._rings.append(PastRing(ring.cpu, ring.event, memory))

    def close(self) -> None:
        while self._rings:
            self._rings.pop().close()


def _opened(cpu: int, pages: int, backward: bool = False) -> tuple[int, mmap.mmap]:
    """Return a CPU's perf event and its buffer. Raises OSError.

    The kernel overwrites what is in a buffer that cannot be written to here.
    """
    event = kernel.open_bpf_output(cpu, backward)
    rights = mmap.PROT_READ | (0 if backward else mmap.PROT_WRITE)
    try:
        memory = mmap.mmap(event, (1 + pages) * _PAGE, prot=rights)
    except OSError:
        os.close(event)
        raise
    _MAPPED.add(memory)
    return event, memory


def _records(chunk: bytes) -> tuple[int, list[bytes]]:
    """Return the samples in a chunk, and how many bytes the whole records in it take."""
    records = []
    at, end = 0, len(chunk) - _HEADER_BYTES
    while at <= end:
        kind, _, size, length = _HEADER(chunk, at)
        if at + size > len(chunk) or not size:
            break
        if kind == _SAMPLE and length >= 8:
            start = at + _HEADER_BYTES
            records.append(chunk[start : start + length])
        at += size
    return at, records
