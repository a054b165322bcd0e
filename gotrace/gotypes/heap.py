# SPDX-License-Identifier: Apache-2.0
"""Know where the runtime keeps the figures of its heap and its collector.

They are in three variables: ``runtime.memstats``, ``runtime.gcController`` and ``runtime.work``.
Their addresses come from the symbol table, so programs without one (``-ldflags=-s``) have none of
these figures. Offsets come from the binary's DWARF if it has some, else from one table by Go
release. Sources of the table: mstats in src/runtime/mstats.go, gcControllerState in mgcpacer.go,
workType in mgc.go and cpuStats in mstats.go, of Go 1.19 and of 1.21 to 1.27.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.symtab import symbol_value
from gotrace.errors import GotraceError
from gotrace.gotypes.releases import NEWEST, Release
from gotrace.records import dataclass

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader
    from gotrace.gotypes.binary import Binary

#: Since then the goal follows from what is in gcController (heapGoalInternal).
_OLDEST: Release = (1, 19)
#: Parts of consistentHeapStats, which are added up.
STACK_PARTS = 3


@dataclass(frozen=True, slots=True)
class HeapLayout:
    """Byte offsets: in memstats, in gcController, and of ``gc_time`` in work.

    ``numgc`` and ``percent`` are 4 bytes wide, all else 8. ``gc_time`` is the processors' time in
    the collector: up to Go 1.19 without that of idle processors. ``stacks`` are the bytes of
    goroutines' stacks, in three parts that are ``part`` bytes apart (consistentHeapStats).
    """

    numgc: int
    pause_total: int
    limit: int
    percent_goal: int
    sweep_trigger: int
    triggered: int
    marked: int
    free: int
    allocated: int
    freed: int
    ready: int
    in_use: int
    released: int
    percent: int
    gc_time: int
    stacks: int
    part: int


@dataclass(frozen=True, slots=True)
class HeapVariables:
    """Link-time addresses of the variables, and the offsets in them.

    ``headroom_percent`` is the part of a goal by the memory limit that is left free (since 1.21).
    """

    memstats: int
    controller: int
    work: int
    gomaxprocs: int
    layout: HeapLayout
    headroom_percent: int


_MSTATS_1_19, _MSTATS_1_25 = (7704, 3600), (7680, 3576)
_PACER_1_19 = (8, 104, 112, 120, 184, 320, 328, 336, 344, 304, 312, 0)
_PACER_1_21 = (8, 72, 80, 88, 152, 288, 296, 304, 312, 272, 280, 0)
_STACKS_1_19, _STACKS_1_25 = (24, 1176), (24, 1168)
#: First release -> the row that holds from it on, newest first. Go 1.20 was not read.
_TABLE: dict[Release, HeapLayout] = {
    (1, 26): HeapLayout(*_MSTATS_1_25, *_PACER_1_21, 760, *_STACKS_1_25),
    (1, 25): HeapLayout(*_MSTATS_1_25, *_PACER_1_21, 624, *_STACKS_1_25),
    (1, 23): HeapLayout(*_MSTATS_1_19, *_PACER_1_21, 536, *_STACKS_1_19),
    (1, 22): HeapLayout(*_MSTATS_1_19, *_PACER_1_21, 512, *_STACKS_1_19),
    (1, 21): HeapLayout(*_MSTATS_1_19, *_PACER_1_21, 520, *_STACKS_1_19),
    (1, 19): HeapLayout(*_MSTATS_1_19, *_PACER_1_19, 288, *_STACKS_1_19),
}
_UNKNOWN: frozenset[Release] = frozenset({(1, 20)})


def heap_table(release: Release) -> HeapLayout | None:
    """Return the layout of a release, None if it is not in the table."""
    if release in _UNKNOWN or not _OLDEST <= release <= NEWEST:
        return None
    return next(row for since, row in _TABLE.items() if since <= release)


def heap_variables(binary: Binary) -> HeapVariables:
    """Return where a program's figures are; raise GotraceError, which says why they are not known.

    The text is short and without the program's name: it takes the figures' place.
    """
    version = binary.go_version
    release = version.release if version else NEWEST
    if release < _OLDEST:
        raise GotraceError(f"not known of Go {release[0]}.{release[1]}")
    names = ("memstats", "gcController", "work", "gomaxprocs")
    found = [symbol_value(binary.image, f"runtime.{name}") for name in names]
    addresses = [address for address in found if address is not None]
    if len(addresses) < len(names):
        raise GotraceError("the program has no symbols")
    layout = (binary.dwarf and _dwarf_layout(binary.dwarf)) or heap_table(release)
    if layout is None:
        raise GotraceError(f"not known of Go {release[0]}.{release[1]} without DWARF")
    memstats, controller, work, gomaxprocs = addresses
    percent = 3 if release >= (1, 21) else 0
    return HeapVariables(memstats, controller, work, gomaxprocs, layout, percent)


@dataclass(frozen=True, slots=True)
class SpanLayout:
    """Byte offsets: of ``alloc`` and ``flushGen`` in mcache, and of ``allocCount`` in mspan.

    ``allocCountBeforeCache`` and ``elemsize`` are 6 and 8 bytes after ``allocCount``.
    """

    alloc: int
    flush_gen: int
    alloc_count: int


#: As _TABLE. Sources: mcache in src/runtime/mcache.go, mspan in mheap.go.
_SPANS: dict[Release, SpanLayout] = {
    (1, 26): SpanLayout(48, 2288, 96),
    (1, 24): SpanLayout(48, 1200, 96),
    (1, 22): SpanLayout(40, 1192, 96),
    (1, 21): SpanLayout(40, 1192, 104),
    (1, 19): SpanLayout(40, 1192, 96),
}


def span_layout(binary: Binary) -> SpanLayout | None:
    """Return where spans' figures are, None if that is not known of the release."""
    version = binary.go_version
    release = version.release if version else NEWEST
    if release in _UNKNOWN or not _OLDEST <= release <= NEWEST:
        return dwarf_span_layout(binary.dwarf) if binary.dwarf else None
    return next(row for since, row in _SPANS.items() if since <= release)


def dwarf_span_layout(dwarf: DwarfReader) -> SpanLayout | None:
    """Return the layout that DWARF gives, None if a field has another name or place there."""
    try:
        cache, span = (dwarf.struct_members(f"runtime.{name}") for name in ("mcache", "mspan"))
        first = span["allocCount"]
        if (span["allocCountBeforeCache"] - first, span["elemsize"] - first) != (6, 8):
            return None
        return SpanLayout(cache["alloc"], cache["flushGen"], first)
    except (DwarfError, KeyError):
        return None


_PACER_FIELDS = (
    *("memoryLimit", "gcPercentHeapGoal", "sweepDistMinTrigger", "triggered", "heapMarked"),
    *("heapFree", "totalAlloc", "totalFree", "mappedReady"),
    *("heapInUse", "heapReleased", "gcPercent"),
)


def _dwarf_layout(dwarf: DwarfReader) -> HeapLayout | None:
    """Return the layout that DWARF gives, None if a field has another name there."""
    try:
        stats = dwarf.struct_members("runtime.mstats")
        pacer = dwarf.struct_members("runtime.gcControllerState")
        work = dwarf.struct_members("runtime.workType")
        if "totaltime" in work:
            gc_time = work["totaltime"]
        else:
            times = dwarf.struct_members("runtime.cpuStats")
            # exported since Go 1.23
            spelled = "GCTotalTime" if "GCTotalTime" in times else "gcTotalTime"
            gc_time = work["cpuStats"] + times[spelled]
        fields = [stats["numgc"], stats["pause_total_ns"], *map(pacer.__getitem__, _PACER_FIELDS)]
        sums = dwarf.struct_members("runtime.consistentHeapStats")
        stacks = dwarf.struct_members("runtime.heapStatsDelta")["inStacks"]
        part = (sums["gen"] - sums["stats"]) // STACK_PARTS
        stacks += stats["heapStats"] + sums["stats"]
        return HeapLayout(*[*fields, gc_time, stacks, part])
    except (DwarfError, KeyError):
        return None
