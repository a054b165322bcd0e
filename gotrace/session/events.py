# SPDX-License-Identifier: Apache-2.0
"""Take call records from the kernel, put those of all CPUs in order, and count lost ones.

A record is what bpf/records.h submits for one call: ``HEADER``, the payload of the entry phase,
that of the return phase, and the blocks that ``CallFlag`` announces, in the order in which
``parse_call`` reads them.
All numbers are little endian, all times CLOCK_MONOTONIC in nanoseconds (bpf_ktime_get_ns).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum, IntFlag

from gotrace.errors import GotraceError
from gotrace.records import dataclass
from gotrace.session.why.parts import report_end

#: end_ns, start_ns (0: seen at its entry only), goid, tgid, tid, function (its number in the
#: plan), length of the entry payload, length of the return payload, flags (``CallFlag``), hits of
#: probes within the call, ns that their programs took.
HEADER = struct.Struct("<QQQIIIHHQQQ")

_END = struct.Struct("<Q").unpack_from
_FUNCTION = struct.Struct("<32xI").unpack_from
_FLAGS = struct.Struct("<40xQ").unpack_from
_BLOCK = struct.Struct("<II")
_MAX_FRAMES = 1024  # more than any stack that BPF can walk

_CPU_BYTES = 4
UNKNOWN_CPU = 0xFFFFFFFF

#: How long a record waits for those of other CPUs.
WINDOW_NS = 50_000_000
_SORTS_PER_WINDOW = 5
_MAX_RECORDS = 1 << 17
_MAX_BYTES = 32 << 20


class RecordError(GotraceError):
    """A record that contradicts its header."""


class CallFlag(IntFlag):
    """The blocks that follow a record's payloads, and the work left to do (EVENT_* in BPF)."""

    #: u32 number of frames, u32 1 where the stack has more, u64 pc of each, innermost first.
    STACK = 1
    #: Float registers at entry: u32 mask of register numbers, u32 zero, 8 bytes of each, ascending.
    ENTRY_FLOATS = 2
    #: The same at the return.
    RETURN_FLOATS = 4
    #: No block: the predicate could not be decided in the kernel.
    UNDECIDED = 8
    #: No block: a panic that was recovered unwound the call, its goroutine ended by runtime.Goexit.
    PANIC = 16
    GOEXIT = 32
    #: After the stack: what the time went into (struct why_report and what follows it).
    WHY = 64
    #: No block: another call of the goroutine was open. Only where that is asked for, as the next.
    NESTED = 128
    #: No block: it was reported when it was entered, if edges are; likewise.
    BEGUN = 256
    #: No payload: a call that no predicate wants, which matters for others.
    UNWANTED = 512


# Plain numbers: what IntFlag does for each operation is half of the time that a record takes.
#: Bits that are flags: above is what the process adds to link-time addresses of the file.
FLAGS = 0xFFF
_UNKNOWN_FLAGS = FLAGS & ~int(sum(CallFlag))
_STACK, _WHY = CallFlag.STACK.value, CallFlag.WHY.value
_UNWANTED = CallFlag.UNWANTED.value
_ENTRY_FLOATS, _RETURN_FLOATS = CallFlag.ENTRY_FLOATS.value, CallFlag.RETURN_FLOATS.value
_UNDECIDED, _PANIC, _GOEXIT = (
    flag.value for flag in (CallFlag.UNDECIDED, CallFlag.PANIC, CallFlag.GOEXIT)
)


class Unwinding(Enum):
    """The event that ended a call that did not return."""

    PANIC = "panic"
    GOEXIT = "goexit"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the kernel saw it; ``start_ns`` is 0 when only its entry was seen.

    ``args`` and ``results`` are payloads for gotrace.capture.plan.read_phase; ``stack`` has
    run-time addresses, innermost first; ``stack_cut``: it has more frames. Floats are raw registers
    by number, None when not read. ``undecided``: whether the call is wanted could not be decided in
    the kernel. ``unwound``: what ended it instead of a return; then there are no results, and
    ``end_ns`` is when that was seen. ``hits`` is how often probes were hit within it, ``hits_ns``
    how long their programs took. ``why`` is what the time went into, as
    gotrace.session.why.parts.call_parts reads it, None where not known or not asked for.
    ``unwanted``: the kernel has decided that it is not wanted, and it is reported for others alone,
    without its values.
    """

    end_ns: int
    start_ns: int
    goid: int
    tgid: int
    tid: int
    function: int
    args: bytes
    results: bytes
    stack: tuple[int, ...] | None = None
    entry_floats: Mapping[int, bytes] | None = None
    return_floats: Mapping[int, bytes] | None = None
    undecided: bool = False
    stack_cut: bool = False
    unwound: Unwinding | None = None
    hits: int = 0
    hits_ns: int = 0
    why: bytes | None = None
    bias: int = 0
    unwanted: bool = False

    @property
    def duration_ns(self) -> int | None:
        """Return how long the call took, None when it was seen at its entry only."""
        return self.end_ns - self.start_ns if self.start_ns else None


def function_of(record: bytes) -> int:
    """Return the number of the function of a record, without reading the rest."""
    number: int = _FUNCTION(record)[0]
    return number


def is_unwound(record: bytes) -> bool:
    """Return whether a record's call did not return, without reading the rest."""
    return bool(_FLAGS(record)[0] & (_PANIC | _GOEXIT))


def cpu_of(record: bytes) -> int | None:
    """Return the CPU of a record that a window has marked, None where that is not known."""
    number = int.from_bytes(record[-_CPU_BYTES:], "little")
    return number if number != UNKNOWN_CPU else None


def marked(record: bytes, cpu: int) -> bytes:
    """Return a record with the CPU that it came from, where it has nothing but padding."""
    return record + cpu.to_bytes(_CPU_BYTES, "little")


def end_of(record: bytes) -> int:
    """Return when a record's call ended, without reading the rest."""
    end: int = _END(record)[0]
    return end


def parse_call(record: bytes) -> CallRecord:
    """Take a record apart; bytes after its end are padding. Raises RecordError."""
    try:
        end, start, goid, tgid, tid, function, args, results, flags, hits, hits_ns = (
            HEADER.unpack_from(record)
        )
        at = HEADER.size + args + results
        if flags & _UNKNOWN_FLAGS or at > len(record):
            raise RecordError(_message(record))
        stack = entry_floats = return_floats = why = None
        is_cut = False
        if flags & _STACK:
            stack, is_cut, at = _stack(record, at)
        if flags & _WHY:
            why, at = _why(record, at)
        if flags & _ENTRY_FLOATS:
            entry_floats, at = _floats(record, at)
        if flags & _RETURN_FLOATS:
            return_floats, at = _floats(record, at)
    except struct.error as error:
        raise RecordError(_message(record)) from error
    middle = HEADER.size + args
    return CallRecord(
        end,
        start,
        goid,
        tgid,
        tid,
        function,
        record[HEADER.size : middle],
        record[middle : middle + results],
        stack,
        entry_floats,
        return_floats,
        bool(flags & _UNDECIDED),
        is_cut,
        _unwinding(flags),
        hits,
        hits_ns,
        why,
        flags & ~FLAGS,
        bool(flags & _UNWANTED),
    )


def _why(record: bytes, at: int) -> tuple[bytes, int]:
    end = report_end(record, at)
    if end > len(record):
        raise RecordError(_message(record))
    return record[at:end], end


def _unwinding(flags: int) -> Unwinding | None:
    if flags & _PANIC:
        return Unwinding.PANIC
    return Unwinding.GOEXIT if flags & _GOEXIT else None


def _message(record: bytes) -> str:
    return (
        f"a record of {len(record)} bytes from the kernel is not what its header says:"
        " please report this"
    )


def _stack(record: bytes, at: int) -> tuple[tuple[int, ...], bool, int]:
    count, more = _BLOCK.unpack_from(record, at)
    if count > _MAX_FRAMES:
        raise RecordError(_message(record))
    pcs = struct.unpack_from(f"<{count}Q", record, at + _BLOCK.size)
    return pcs, bool(more), at + _BLOCK.size + 8 * count


def _floats(record: bytes, at: int) -> tuple[dict[int, bytes], int]:
    mask, _ = _BLOCK.unpack_from(record, at)
    at += _BLOCK.size
    floats = {}
    for register in range(mask.bit_length()):
        if mask >> register & 1:
            (floats[register],) = struct.unpack_from("8s", record, at)
            at += 8
    return floats, at


class OrderWindow:
    """The records of several CPUs, merged by the time they ended.

    A CPU's perf buffer has its records in order, but buffers are read one after another, in
    batches. A record is therefore held back until it is ``window_ns`` old: by then those that
    ended before it have been read too, provided that all buffers are read at least that often. A
    record that comes later than that is released all the same, after its place, and counted in
    ``late``.

    Memory is bounded by ``most_records`` and ``most_bytes``. Past half of either the older half
    is released early; beyond either limit, which is reached only by a reader that does not heed
    ``room``, records are dropped and counted in ``losses``.
    """

    def __init__(
        self,
        window_ns: int = WINDOW_NS,
        most_records: int = _MAX_RECORDS,
        most_bytes: int = _MAX_BYTES,
        *,
        marks_cpu: bool = False,
    ) -> None:
        """Take the limits; with ``marks_cpu`` each record has its CPU, for ``cpu_of``."""
        self._marks_cpu = marks_cpu
        #: How many records were dropped, by CPU.
        self.losses: Counter[int] = Counter()
        self.late = 0
        #: Up to when all records were released, but for those that come too late.
        self.complete = 0
        self._window = window_ns
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._held: list[bytes] = []
        self._bytes = 0
        self._next_sort = 0
        self._released: tuple[int] = (0,)

    @property
    def room(self) -> int:
        """Return how many bytes of a perf buffer can be read without a record being dropped."""
        free = (self._most_records - len(self._held)) * HEADER.size
        return max(0, min(free, self._most_bytes - self._bytes))

    def push(self, cpu: int, records: Sequence[bytes]) -> None:
        """Take some records of a CPU."""
        if self._marks_cpu:
            records = [marked(record, cpu) for record in records]
        for record in records:
            size = len(record)
            if (
                len(self._held) >= self._most_records
                or self._bytes + size > self._most_bytes
                or size < HEADER.size
            ):
                self.losses[cpu] += 1
                continue
            self._held.append(record)
            self._bytes += size

    def __len__(self) -> int:
        return len(self._held)

    def pop_ready(self, now_ns: int) -> list[bytes]:
        """Return, in order, the records that need not wait any longer.

        ``now_ns`` is the CLOCK_MONOTONIC time of a moment up to which all buffers have been read.
        May be called as often as one likes: it sorts only a few times per window.
        """
        crowded = len(self._held) > self._most_records // 2 or self._bytes > self._most_bytes // 2
        if not self._held:
            self.complete = max(self.complete, now_ns - self._window)
        if not self._held or (now_ns < self._next_sort and not crowded):
            return []
        self._next_sort = now_ns + self._window // _SORTS_PER_WINDOW
        # Few runs that are in order already: what sort() is good at.
        self._held.sort(key=_END)
        self.complete = max(self.complete, now_ns - self._window)
        ready = bisect_right(self._held, (now_ns - self._window,), key=_END)
        return self._release(max(ready, (len(self._held) + 1) // 2) if crowded else ready)

    def flush(self) -> list[bytes]:
        """Return all records that are held, in order: the run is over."""
        self._held.sort(key=_END)
        return self._release(len(self._held))

    def _release(self, count: int) -> list[bytes]:
        released = self._held[:count]
        if released:
            del self._held[:count]
            self._bytes -= sum(map(len, released))
            self.late += bisect_left(released, self._released, key=_END)
            self._released = max(self._released, _END(released[-1]))
        return released
