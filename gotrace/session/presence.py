# SPDX-License-Identifier: Apache-2.0
"""Obstacles to breakpoints in the processes that are traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gotrace.elf import ElfError
from gotrace.errors import GotraceError, said
from gotrace.session.plan import BinaryPlan
from gotrace.target.process import Process, ProcessError
from gotrace.target.target import Target, TargetBinary

if TYPE_CHECKING:  # counting does without
    from gotrace.session.scheduler import SchedulerProbes

#: Functions of C that put a program's code into large pages in its place: those of Intel's iodlr
#: (large_page.h). No module of Go is known that does.
_MOVERS = (
    "MapStaticCodeToLargePages",
    "MapStaticCodeRangeToLargePages",
    "MapDSOToLargePages",
)


def check_presence(
    target: Target, binaries: Sequence[BinaryPlan], scheduler: SchedulerProbes | None
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield warnings about the target's processes, each with its fields in JSON.

    Breakpoints will be in planned functions and in what watches a scheduler. Raises GotraceError if
    no probe would be hit, or if the program would end by one.
    """
    places = _places(binaries, scheduler)
    if not places:
        return
    for file in places:
        # A process that runs has done it, if it ever does.
        mover = next((name for name in _MOVERS if file.functions.rows_named(name)), None)
        if mover is not None and not (target.watched and target.has_started):
            raise GotraceError(
                f"{file.image.display} has {mover}, which moves code away from where breakpoints"
                " are known: the program would end by SIGTRAP:"
                f" {said('gostacks and gooncpu -p', 'goroutines() and on_cpu()')} do without"
            )
    yield from debuggers(target, set())
    for process in target.watched if target.has_started else ():
        for file, offsets in places.items():
            yield from _moved(process, file, offsets)


def debuggers(target: Target, known: set[int]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield warnings of debuggers of the target's processes, and add those to ``known``."""
    for process in target.watched if target.has_started else ():
        with suppress(ProcessError, OSError):  # it has ended
            if process.tgid not in known:
                for warning in _debugger(process):
                    known.add(process.tgid)
                    yield warning


def _places(
    binaries: Sequence[BinaryPlan], scheduler: SchedulerProbes | None
) -> dict[TargetBinary, list[int]]:
    """Return where in files breakpoints will be, or functions that have them."""
    places: dict[TargetBinary, list[int]] = {}
    for plan in binaries:
        entries = (sites.function.entry for sites in plan.functions)
        places.setdefault(plan.binary, []).extend(map(plan.binary.image.offset_of, entries))
    if scheduler is not None:
        for file, sites in scheduler.files:
            with suppress(ElfError):
                places.setdefault(file, []).append(file.image.offset_of(sites.status.address))
    return {file: offsets for file, offsets in places.items() if offsets}


def _debugger(process: Process) -> Iterator[tuple[str, Mapping[str, object]]]:
    tracer = process.tracer()
    if tracer is not None:
        number, name = tracer
        text = (
            f"process {process.tgid} is traced by {name} (process {number}): where both have a"
            " breakpoint, the other's is lost, or the program ends by SIGTRAP: detach one first"
        )
        yield text, {"what": "tracer", "pid": process.tgid, "tracer": number}


def _moved(
    process: Process, file: TargetBinary, offsets: list[int]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    image = file.image
    try:
        mapped = list(process.mappings_of(image.identity.inode, image.display))
    except ProcessError:  # it has ended
        return
    if not mapped:  # it runs another program, or another file of the same name is traced
        return
    is_there = Counter(any(each.holds(offset) for each in mapped) for offset in offsets)
    if not is_there[False]:
        return
    moved = f"process {process.tgid} has moved code of {image.display} to other memory"
    if not is_there[True]:
        raise GotraceError(
            f"{moved}, to large pages perhaps: no probe would be hit:"
            f" {said('gostacks and gooncpu', 'goroutines() and on_cpu()')} do"
            " without, or start it without that"
        )
    text = f"{moved}: calls of {is_there[False]:,} of {len(offsets):,} functions are not seen"
    yield text, {"what": "moved_code", "pid": process.tgid, "functions": is_there[False]}
