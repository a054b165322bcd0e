# SPDX-License-Identifier: Apache-2.0
"""Where the time of calls goes: what is probed for that, and what the programs say (bpf/why.h).

A part is a state that the goroutine was in within the call, by Go's scheduler, or its thread, by
the kernel's. Parts are in nanoseconds and add up to the duration exactly. Their names are keys of
JSON: wait reasons are the program's own words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from gotrace.errors import GotraceError
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.kernel.btf import kernel_field
from gotrace.kernel.cookie import cookie
from gotrace.kernel.program import BpfProgram, Map
from gotrace.session.tasks import Tasks
from gotrace.settings import WaitedSettings, WhySettings
from gotrace.sites.scheduler import SchedulerSites, scheduler_sites
from gotrace.sites.sites import Site, SiteError
from gotrace.target.target import Target, TargetBinary

__all__ = [
    "BLOCKED",
    "BY_PROCESS",
    "GC",
    "TRACING",
    "UNKNOWN",
    "BandRows",
    "CallParts",
    "KernelOffsets",
    "Longest",
    "Part",
    "PartClass",
    "PartSums",
    "PartTotals",
    "WhyOptions",
    "WhyProbes",
    "call_parts",
    "kernel_offsets",
    "max_report_size",
    "part_class",
    "part_names",
    "report_end",
    "slow_parts",
    "take_tracing_out",
    "why_probes",
]

#: What wait reasons' names begin with.
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
    """What predicates can ask for, in the order of enum why_class, which begins with none."""

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
#: Wait reasons that are the garbage collector's, beside those that say GC.
_COLLECTOR = {"wait for GC cycle", "stopping the world", "flushing proc caches", "force gc (idle)"}


def part_class(name: str) -> PartClass | None:
    """Return the class of a part, None of time that is not known."""
    if name.startswith(GC):
        return PartClass.GC
    return PartClass.BLOCKED if name.startswith(BLOCKED) else _CLASSES.get(name)


def _is_collector(reason: str) -> bool:
    return reason.startswith(("GC ", "garbage collection")) or reason in _COLLECTOR


def part_names(reasons: WaitReasons) -> tuple[str, ...]:
    """Return the names of all parts, those of the reasons beginning at number 16.

    There are as many as the programs have: 64, or the power of two that the reasons need. Raises
    GotraceError.
    """
    count = max(_MIN_PARTS, 1 << (_REASONS + len(reasons) - 1).bit_length())
    if count > _MAX_PARTS:
        raise GotraceError(
            f"--why has room for {_MAX_PARTS - _REASONS} reasons of waits, and the program has"
            f" {len(reasons)}: this release of Go is too new for this gotrace"
        )
    names = [_NAMES.get(Part(n), "") if n in _KNOWN else "" for n in range(_REASONS)]
    for reason in reasons:
        prefix = GC if _is_collector(reason) else BLOCKED
        names.append(prefix + (reason or "for no reason given"))
    return tuple(names + [_NAMES[Part.OTHER]] * (count - len(names)))


_KNOWN = {part.value for part in Part}


def _table(names: Sequence[str]) -> bytes:
    """Return struct why_table: the part of each wait reason, the class of each part."""
    numbers = range(_REASONS, len(names))
    parts = [*numbers, *[Part.OTHER.value] * (256 - len(numbers))]
    classes = [None, *PartClass]
    return bytes(parts) + bytes(classes.index(part_class(name)) for name in names)


@dataclass(frozen=True, slots=True)
class WhyOptions:
    """Say what to find out: system calls, who ended the longest wait, what predicates ask for."""

    syscalls: bool = True
    callers: bool = False
    classes: bool = False


#: Maps whose keys have a process's number, and where in them that is.
BY_PROCESS = (("why_rows", 8), ("why_worlds", 0))

_ROWS = 1 << 14
_SAVED = 1 << 13
_THREADS = 1 << 15
_SITE = struct.Struct("=qq")  # struct why_site
_MIN_BANDS, _MAX_BANDS = 1 << 10, 1 << 13
_BANDS_PER_HISTOGRAM = 64


def _bands(histograms: int) -> int:
    """Return for how many of their buckets there is room to keep parts apart."""
    return min(max(_MIN_BANDS, _BANDS_PER_HISTOGRAM * histograms), _MAX_BANDS)


@dataclass(frozen=True, slots=True)
class _Probe:
    """One probe of the scheduler: the BPF function, its place, where cgocall is from there."""

    function: str
    site: Site
    cgocall: tuple[int, int]


@dataclass(frozen=True)
class WhyProbes:
    """The probes of the target's schedulers, for its files that hold code of the runtime."""

    target: Target
    tasks: Tasks
    options: WhyOptions
    files: tuple[tuple[TargetBinary, SchedulerSites], ...]
    names: tuple[str, ...]
    release: tuple[int, int]

    def settings(self, histograms: int | None = None) -> WhySettings:
        """Return the settings of bpf/why.h. Raises GotraceError.

        ``histograms`` is of how many the parts are added up, None where they are not.
        """
        layout = self.tasks.layout
        assert layout is not None
        coroargs = [sites.coroarg for _, sites in self.files if sites.coroarg is not None]
        kernel = kernel_offsets()
        return WhySettings(
            why_parts=len(self.names),
            why_rows=_ROWS,
            why_saved=_SAVED,
            why_threads=_THREADS,
            why_sites=max(1, len(self._probes())),
            why_bands=_bands(histograms) if histograms else None,
            why_unnamed=self.release < _NAMED_SINCE,
            why_callers=self.options.callers,
            why_classes=1 if self.options.classes else None,
            g_status=layout.g_atomicstatus,
            g_syscallpc=layout.g_syscallpc,
            g_sched_pc=layout.g_sched_pc,
            g_sched_bp=layout.g_sched_bp,
            g_coroarg=coroargs[0] if coroargs else None,
            task_pid=kernel.pid,
            task_state=kernel.state,
            task_throttled=kernel.throttled,
            task_cfs_rq=kernel.queue,
            cfs_rq_throttled=kernel.count,
            waited=kernel.waited,
        )

    def _probes(self) -> list[tuple[TargetBinary, _Probe]]:
        found = []
        for file, sites in self.files:
            low, high = sites.cgocall or (0, 0)
            chosen = [
                ("on_status", sites.status),
                ("on_preempt", sites.preempt),
                ("on_coroutine", sites.coroutine),
                ("on_stop_world", sites.stop_world),
                ("on_start_world", sites.start_world),
            ]
            if self.options.syscalls:
                chosen += [("on_syscall", sites.syscall), ("on_syscall_end", sites.syscall_end)]
            for function, site in chosen:
                if site is not None:
                    cgocall = (low - site.address, high - site.address)
                    found.append((file, _Probe(function, site, cgocall)))
        return found

    def groups(self) -> list[ProbeGroup]:
        """Return the groups to attach, before those of any traced function."""
        return [
            self._group(probe.function, file, number, probe.site)
            for number, (file, probe) in enumerate(self._probes())
        ]

    def _group(self, function: str, file: TargetBinary, number: int, site: Site) -> ProbeGroup:
        image = file.image
        kind, file_number = self.tasks.runtime_kind(file)
        where = cookie(number, site, kind, file=file_number)
        point = Point(image.offset_of(site.address), site.address, where)
        path, bias, pid = file.attach_path, file.bias, self.target.pid
        return ProbeGroup(function, path, image.display, [point], bias, pid, image.identity)

    def prepare(self, program: BpfProgram) -> None:
        """Fill the maps of a loaded program and attach to the kernel's scheduler.

        Raises LoadError.
        """
        sites = program.map("why_sites")
        for number, (_, probe) in enumerate(self._probes()):
            sites.update(number.to_bytes(4, "little"), _SITE.pack(*probe.cgocall))
        program.map("why_tables").update(bytes(4), _table(self.names))
        program.attach_tracepoint("sched_switch", ["on_switch", "on_switch_without_state"])

    @property
    def has_syscalls(self) -> bool:
        """Return whether system calls have probes of their own."""
        return self.options.syscalls and any(sites.syscall for _, sites in self.files)

    def often(self) -> list[ProbeGroup]:
        """Return the groups of the probes that are hit most."""
        names = ("on_status", "on_syscall", "on_syscall_end")
        return [group for group in self.groups() if group.function in names]

    @property
    def program_ns(self) -> int:
        """Return what a hit of those takes more than a program that counts, in ns."""
        return _PROGRAM_NS


#: What on_status takes more than a program that counts, where the goroutine is in no traced call.
_PROGRAM_NS = 100
#: Since Go 1.20 the runtime says why it waits on the system stack before it does.
_NAMED_SINCE = (1, 20)


@dataclass(frozen=True, slots=True)
class KernelOffsets:
    """Offsets in the kernel's structs; ``count`` without ``throttled`` only."""

    pid: int
    state: int
    throttled: int | None
    queue: int | None
    count: int | None
    waited: WaitedSettings | None = None


def kernel_offsets() -> KernelOffsets:
    """Return what bpf/switch.h needs of the kernel's structs. Raises GotraceError."""
    pid = kernel_field(("task_struct", "pid"))
    state = kernel_field(("task_struct", "__state"))  # Linux 5.14
    if state is None:
        state = kernel_field(("task_struct", "state"))
    if pid is None or state is None:
        raise GotraceError(
            "--why and waits need kernel BTF (/sys/kernel/btf/vmlinux): CONFIG_DEBUG_INFO_BTF"
        )
    throttled = kernel_field(("task_struct", "throttled"))  # Linux 6.18
    queue = kernel_field(("task_struct", "se"), ("sched_entity", "cfs_rq"))
    count = kernel_field(("cfs_rq", "throttle_count"))
    if throttled is not None or queue is None:
        count = None
    return KernelOffsets(pid, state, throttled, queue, count, _waited() if queue else None)


def _waited() -> WaitedSettings | None:
    """Return where it is counted how long tasks wait for a CPU, None without CONFIG_SCHED_INFO."""
    info = ("task_struct", "sched_info")
    run_delay = kernel_field(info, ("sched_info", "run_delay"))
    last_queued = kernel_field(info, ("sched_info", "last_queued"))
    queue, clock = kernel_field(("cfs_rq", "rq")), kernel_field(("rq", "clock"))
    if run_delay is None or last_queued is None or queue is None or clock is None:
        return None
    return WaitedSettings(
        task_run_delay=run_delay, task_last_queued=last_queued, cfs_rq_rq=queue, rq_clock=clock
    )


def why_probes(target: Target, tasks: Tasks, options: WhyOptions) -> WhyProbes:
    """Return what has to be probed. Raises GotraceError where that is not possible."""
    if tasks.layout is None:
        raise GotraceError(
            "--why needs a Go runtime to watch: programs of gccgo have another one, and their"
            " scheduler is not known here"
        )
    files, names = [], None
    for file in tasks.files:
        display = file.image.display
        version = file.go_version.text if file.go_version else "this Go"
        try:
            files.append((file, scheduler_sites(file.functions)))
        except SiteError as error:
            raise GotraceError(
                f"{display}: --why does not know {version}: {error}: Go 1.19 or newer is needed"
            ) from error
        reasons = file.wait_reasons
        if reasons is None:
            raise GotraceError(f"{display}: --why has not found why goroutines of {version} wait")
        if names is not None and (names != part_names(reasons) or not _alike(files)):
            raise GotraceError(
                f"--why cannot watch different runtimes in one run: {_described(files[0][0])} and"
                f" {_described(file)} differ: trace them one by one"
            )
        names = part_names(reasons)
    assert names is not None
    release = next((f.go_version.release for f in tasks.files if f.go_version), _NAMED_SINCE)
    return WhyProbes(target, tasks, options, tuple(files), names, release)


def _alike(files: Sequence[tuple[TargetBinary, SchedulerSites]]) -> bool:
    """Return whether what programs are given of a runtime is the same of all files."""
    # Not known where the program has no coroutines.
    coroargs = {sites.coroarg for _, sites in files} - {None}
    return len(coroargs) < 2 and len({_offsets(file) for file, _ in files}) == 1


def _offsets(file: TargetBinary) -> tuple[object, ...]:
    layout = file.runtime
    unnamed = (file.go_version.release if file.go_version else _NAMED_SINCE) < _NAMED_SINCE
    return (
        unnamed,
        layout.g_in_register,
        layout.g_atomicstatus,
        layout.g_waitreason,
        layout.g_syscallpc,
        layout.g_sched_pc,
        layout.g_sched_bp,
    )


def _described(file: TargetBinary) -> str:
    version = file.go_version
    return f"{file.image.display} ({version.text if version else 'unknown Go'})"


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
    """What is reported of a call: its parts in ns by name, largest first, the changes of state."""

    parts: Mapping[str, int]
    changes: int
    longest: Longest | None


_REPORT = struct.Struct("=QQQBBBBBBBx")  # struct why_report
_MASK = (1 << 64) - 1


def max_report_size(parts: int) -> int:
    """Return how many bytes the parts of a call take in its record at most."""
    return _REPORT.size + 16 * parts + 32 * _FRAMES


def report_end(data: bytes, at: int) -> int:
    """Return where a struct why_report, and what follows it, ends. Raises struct.error."""
    *_, cells, frames, waker_frames, is_whole, bits = _REPORT.unpack_from(data, at)
    words: int = (2 << bits if is_whole else cells) + frames + waker_frames
    return at + _REPORT.size + 8 * words


def call_parts(data: bytes, names: Sequence[str]) -> CallParts:
    """Decode a struct why_report and what follows it. Raises struct.error."""
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
    """Return parts with what probes took, as an estimate, by itself and not in running."""
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
        """Return the time of all parts."""
        return sum(part.ns for part in self.parts.values())

    def merge(self, other: PartSums) -> None:
        """Add those of other calls."""
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
        for key, value in list(self._bands.entries()):
            number, bucket = _BAND.unpack(key)
            if number // self._rows == half:
                row = taken.setdefault(number % self._rows, {})
                row[bucket] = PartSums.from_row(value, self._names)
                self._bands.delete(key)
        for index, value in self._rest.array_range(half * self._rows, self._rows):
            if any(value):
                row = taken.setdefault(index % self._rows, {})
                row[None] = PartSums.from_row(value, self._names)
                self._rest.update(index.to_bytes(4, "little"), bytes(len(value)))
        return taken
