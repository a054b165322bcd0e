# SPDX-License-Identifier: Apache-2.0
"""The parts that the time of calls is made of, as the programs report them (bpf/why.h).

A part is a state that the goroutine was in within the call, by Go's scheduler, or its thread, by
the kernel's. Parts are in nanoseconds and add up to the duration exactly. Their names are keys of
JSON: wait reasons are the program's own words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum

from gotrace.errors import GotraceError, said
from gotrace.gotypes.wait_reasons import WaitFor, WaitReasons, meaning_of
from gotrace.kernel.program import Map
from gotrace.kernel.sums import take_entries, take_rows
from gotrace.records import dataclass, field

#: The beginnings of wait reasons' names.
BLOCKED, GC = "blocked: ", "gc: "
#: The part that is an estimate: what probes took within calls, taken out of running.
TRACING = "tracing (estimate)"
#: The time of calls for which there was no room.
UNKNOWN = "unknown"

#: Parts before the first wait reason, and the most and fewest parts that the programs can have.
_REASONS = 16
_MIN_PARTS, _MAX_PARTS = 64, 256
_FRAMES = 16


class Part(IntEnum):
    """The parts that are not wait reasons, in the order of enum why_part."""

    RUNNING = 1
    RUNNABLE = 2
    SYSCALL = 3
    CGO = 4
    SCAN = 6
    PREEMPTED = 7
    THROTTLED = 8
    KERNEL = 9
    WOKEN = 10
    TRACING = 11
    STOPPED = 12
    RUNTIME = 13
    OTHER = 14
    UNKNOWN = 15


class PartClass(Enum):
    """Classes of parts that predicates can use, in the order of enum why_class, after none."""

    RUNNING = "running"
    RUNNABLE = "runnable"
    BLOCKED = "blocked"
    SYSCALL = "syscall"
    GC = "gc"
    PREEMPTED = "preempted"
    THROTTLED = "throttled"


_NAMES = {
    Part.RUNNING: "running",
    Part.RUNNABLE: "runnable",
    Part.SYSCALL: "syscall",
    Part.CGO: "cgo",
    Part.SCAN: GC + "stack scan",
    Part.PREEMPTED: "preempted",
    Part.THROTTLED: "throttled",
    Part.KERNEL: BLOCKED + "kernel",
    Part.WOKEN: "waiting for CPU",
    Part.TRACING: "running",  # the programs held it: what they took is estimated as a whole
    Part.STOPPED: GC + "world stopped",
    Part.RUNTIME: GC + "runtime",
    Part.OTHER: BLOCKED + "other",
    Part.UNKNOWN: UNKNOWN,
}
_CLASSES = {
    "running": PartClass.RUNNING,
    "runnable": PartClass.RUNNABLE,
    "syscall": PartClass.SYSCALL,
    "cgo": PartClass.SYSCALL,
    "preempted": PartClass.PREEMPTED,
    "waiting for CPU": PartClass.PREEMPTED,
    "throttled": PartClass.THROTTLED,
    TRACING: PartClass.RUNNING,
}


def part_class(name: str) -> PartClass | None:
    """Return the class of a part, None of time that is not known."""
    if name.startswith(GC):
        return PartClass.GC
    return PartClass.BLOCKED if name.startswith(BLOCKED) else _CLASSES.get(name)


def part_names(reasons: WaitReasons) -> tuple[str, ...]:
    """Return the names of all parts, those of the reasons beginning at number 16.

    There are as many as the programs have: 64, or the power of two that the reasons need. Raises
    GotraceError.
    """
    count = max(_MIN_PARTS, 1 << (_REASONS + len(reasons) - 1).bit_length())
    if count > _MAX_PARTS:
        raise GotraceError(
            f"{said('--why', 'why=True')} has room for {_MAX_PARTS - _REASONS} reasons of waits,"
            f" and the program has {len(reasons)}: this release of Go is too new for this gotrace"
        )
    names = [_NAMES.get(Part(n), "") if n in _KNOWN else "" for n in range(_REASONS)]
    for reason in reasons:
        prefix = GC if meaning_of(reason).wait_for is WaitFor.COLLECTOR else BLOCKED
        names.append(prefix + (reason or "for no reason given"))
    return tuple(names + [_NAMES[Part.OTHER]] * (count - len(names)))


_KNOWN = {part.value for part in Part}


def part_table(names: Sequence[str]) -> bytes:
    """Return struct why_table: the part of each wait reason, the class of each part."""
    numbers = range(_REASONS, len(names))
    parts = [*numbers, *[Part.OTHER.value] * (256 - len(numbers))]
    classes = [None, *PartClass]
    return bytes(parts) + bytes(classes.index(part_class(name)) for name in names)


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest time in one state but running; stacks are run-time addresses, innermost first.

    ``waker`` is the goroutine that ended it, 0 for the runtime itself (a timer, the network
    poller), None where it was not a wait.
    """

    part: str
    ns: int
    waker: int | None = None
    waker_stack: tuple[int, ...] = ()
    stack: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallParts:
    """The report of a call's parts in ns by name, largest first, and of its changes of state."""

    parts: Mapping[str, int]
    changes: int
    longest: Longest | None


_REPORT = struct.Struct("=QQQBBBBBBBx")  # struct why_report
_MASK = (1 << 64) - 1


def max_report_size(parts: int) -> int:
    """Return how many bytes the parts of a call take in its record at most."""
    return _REPORT.size + 16 * parts + 32 * _FRAMES


def report_end(data: bytes, at: int) -> int:
    """Return the end of a struct why_report and of its parts. Raises struct.error."""
    *_, cells, frames, waker_frames, is_whole, bits = _REPORT.unpack_from(data, at)
    words: int = (2 << bits if is_whole else cells) + frames + waker_frames
    return at + _REPORT.size + 8 * words


def call_parts(data: bytes, names: Sequence[str]) -> CallParts:
    """Decode a struct why_report and its parts. Raises struct.error."""
    head = _REPORT.unpack_from(data)
    changes, ns, waker, part, is_woken, cells, frames, waker_frames, is_whole, bits = head
    words = struct.unpack_from(f"={(len(data) - _REPORT.size) // 8}Q", data, _REPORT.size)
    own, stacks = words[:cells], words[cells:]
    if is_whole:
        count = 1 << bits
        pairs = zip(words[:count], words[count : 2 * count], strict=True)
        differences = enumerate(now - before & _MASK for now, before in pairs)
        own = tuple(passed << bits | number for number, passed in differences if passed)
        stacks = words[2 * count :]
    longest = None
    if ns and part < len(names):
        stack, waker_stack = stacks[:frames], stacks[frames : frames + waker_frames]
        longest = Longest(names[part], ns, waker if is_woken else None, waker_stack, stack)
    return CallParts(_from_cells(own, names), changes, longest)


def _from_cells(cells: Iterable[int], names: Sequence[str]) -> dict[str, int]:
    """Return parts by name, largest first: those that are called the same are one."""
    parts: dict[str, int] = {}
    for cell in cells:
        passed, number = divmod(cell, len(names))
        parts[names[number]] = parts.get(names[number], 0) + passed
    return largest_first(parts)


def largest_first(parts: Mapping[str, int]) -> dict[str, int]:
    """Return parts in the order of their size."""
    return dict(sorted(parts.items(), key=lambda item: (-item[1], item[0])))


def take_tracing_out(parts: Mapping[str, int], tracing: int | None) -> dict[str, int]:
    """Return parts with the probes' time, as an estimate, by itself and not in running."""
    taken = min(tracing or 0, parts.get("running", 0))
    if not taken:
        return dict(parts)
    split = {**parts, "running": parts["running"] - taken, TRACING: taken}
    return largest_first({name: ns for name, ns in split.items() if ns})


def slow_parts(record: bytes, at: int, duration: int, names: Sequence[str]) -> dict[str, int]:
    """Return the parts at the end of a struct slow_call of bpf/latency.c. Raises struct.error."""
    (count,) = struct.unpack_from("=Q", record, at)
    cells = struct.unpack_from(f"={count % len(names)}Q", record, at + 8)
    return _from_cells(cells, names) if count else {UNKNOWN: duration}


@dataclass
class PartTotals:
    """A part of many calls: its time in sum, and how many of the calls have it."""

    ns: int = 0
    calls: int = 0


@dataclass
class PartSums:
    """The parts of many calls, in sum, by name."""

    parts: dict[str, PartTotals] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(part.ns for part in self.parts.values())

    def merge(self, other: PartSums) -> None:
        """Add the parts of other calls."""
        for name, totals in other.parts.items():
            mine = self.parts.setdefault(name, PartTotals())
            mine.ns += totals.ns
            mine.calls += totals.calls

    @classmethod
    def from_row(cls, row: bytes, names: Sequence[str]) -> PartSums:
        """Decode struct why_sums of bpf/parts.h."""
        count = len(names)
        cells = struct.unpack(f"={2 * count}Q", row)
        sums = cls()
        for name, ns, calls in zip(names, cells[:count], cells[count:], strict=True):
            if calls:
                mine = sums.parts.setdefault(name, PartTotals())
                mine.ns += ns
                mine.calls = max(mine.calls, calls)
        return sums


_BAND = struct.Struct("=II")  # struct why_band


class BandRows:
    """Read the maps ``why_bands`` and ``why_rest`` of bpf/parts.h."""

    def __init__(self, bands: Map, rest: Map, rows: int, names: Sequence[str]) -> None:
        """Take over the maps; ``rows`` is the setting of bpf/histogram.h."""
        self._bands = bands
        self._rest = rest
        self._rows = rows
        self._names = names

    def take(self, half: int) -> dict[int, dict[int | None, PartSums]]:
        """Return, by row and bucket, all that a half holds, and clear it.

        Under None is what there was no room to keep by bucket.
        """
        taken: dict[int, dict[int | None, PartSums]] = {}
        start, rows = half * self._rows, self._rows
        chosen = range(start, start + rows)
        for key, value in take_rows(self._bands, lambda key: _BAND.unpack(key)[0] in chosen):
            number, bucket = _BAND.unpack(key)
            row = taken.setdefault(number - start, {})
            row[bucket] = PartSums.from_row(value, self._names)
        for number, value in take_entries(self._rest, start, rows):
            taken.setdefault(number, {})[None] = PartSums.from_row(value, self._names)
        return taken
