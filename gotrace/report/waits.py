# SPDX-License-Identifier: Apache-2.0
"""Write waits of goroutines: in groups by their stacks, and as JSON.

JSON: one object of kind ``waits`` for each reading, with the sums, then one of kind ``wait`` for
each stack, reason and waker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from gotrace.goroutines.model import Frame, Names
from gotrace.goroutines.program import CodeNames
from gotrace.kernel.kept_stacks import MAX_FRAMES
from gotrace.report.durations import duration
from gotrace.report.goroutines import frame_json, spoken, write_frames
from gotrace.report.output import JsonOutput
from gotrace.session.waits.naming import NamedWait, WokenBy, shown_frames
from gotrace.session.waits.probes import WaitState
from gotrace.text import printable

__all__ = ["WaitTotals", "totals_of", "write_waits", "write_waits_json"]

#: Wakers that are named in a group's lines.
_MAX_WAKERS = 4
#: What one of each state is called, and many.
_WORDS = {
    WaitState.WAITING: ("wait", "waits"),
    WaitState.RUNNABLE: ("wait for a CPU", "waits for a CPU"),
    WaitState.SYSCALL: ("system call", "system calls"),
}


@dataclass(frozen=True, slots=True)
class WaitTotals:
    """How many waits there are, and their time; ``others`` are those for which there was no row."""

    count: int
    ns: int
    others: tuple[int, int] = (0, 0)


def totals_of(waits: Iterable[NamedWait], others: tuple[int, int]) -> WaitTotals:
    """Return the sums of waits and of those that found no row."""
    waits = list(waits)
    count, ns = others
    return WaitTotals(
        count + sum(wait.count for wait in waits), ns + sum(wait.ns for wait in waits), others
    )


@dataclass
class _Group:
    """Waits on one stack as it is shown, for one reason."""

    frames: Sequence[Frame]
    is_cut: bool
    waits: list[NamedWait] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(wait.count for wait in self.waits)

    @property
    def ns(self) -> int:
        return sum(wait.ns for wait in self.waits)


def write_waits(
    out: TextIO,
    program: Names,
    waits: Sequence[NamedWait],
    totals: WaitTotals,
    what: str,
    system: bool,
    top: int | None,
) -> None:
    """Write the sums, then groups, those that took most first, at most ``top`` of them.

    ``what`` is whose waits they are; ``system``: the runtime's functions are shown as well.
    """
    state = waits[0].state if waits else WaitState.WAITING
    words = _counted(totals.count, state)
    out.write(f"{duration(totals.ns) if totals.ns else '0s'} in {words} of {what}\n")
    groups = sorted(_grouped(program, waits, system), key=lambda group: -group.ns)
    for group in groups[:top]:
        _write_group(out, program, group, system)
    rest = groups[top:] if top else []
    if rest:
        ns, count = sum(one.ns for one in rest), sum(one.count for one in rest)
        out.write(
            f"\nand {duration(ns)} in {_counted(count, state)} on {len(rest):,} other stacks\n"
        )
    if totals.others[0]:
        count, ns = totals.others
        out.write(f"\n{duration(ns)} in {_counted(count, state)} on stacks beyond the room for\n")
    out.flush()


def _counted(count: int, state: WaitState) -> str:
    one, many = _WORDS[state]
    return f"{count:,} {one if count == 1 else many}"


def _grouped(program: Names, waits: Iterable[NamedWait], system: bool) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for wait in waits:
        frames = tuple(shown_frames(program, wait.stack, system))
        is_cut = len(wait.stack) == MAX_FRAMES
        key = (wait.reason, frames, is_cut, wait.is_open, wait.waker_stack)
        groups.setdefault(key, _Group(frames, is_cut)).waits.append(wait)
    return list(groups.values())


def _write_group(out: TextIO, program: Names, group: _Group, system: bool) -> None:
    first = group.waits[0]
    notes = [note for note in (first.reason, "not ended" if first.is_open else "") if note]
    shown = f" [{', '.join(notes)}]" if notes else ""
    each = f", {duration(group.ns / group.count)} each" if group.count > 1 else ""
    words = _counted(group.count, first.state)
    out.write(f"\n{duration(group.ns)} in {words}{shown}{each}:\n")
    if not first.waker_stack:
        _write_wakers(out, group)
    if group.frames:
        write_frames(out, group.frames)
    else:
        why = "it is of no code of the program" if first.stack else "there was no room to keep it"
        out.write(f"\tstack unavailable: {why}\n")
    if group.is_cut:
        out.write("...additional frames elided...\n")
    if first.waker_stack:
        out.write(f"woken by {_waker(first)}:\n")
        write_frames(out, shown_frames(program, first.waker_stack, system))


def _write_wakers(out: TextIO, group: _Group) -> None:
    by_waker: dict[str, tuple[int, int]] = {}
    for wait in group.waits:
        if wait.woken_by is not None:
            ns, count = by_waker.get(_waker(wait), (0, 0))
            by_waker[_waker(wait)] = ns + wait.ns, count + wait.count
    listed = sorted(by_waker.items(), key=lambda item: (-item[1][0], item[0]))
    for name, (ns, count) in listed[:_MAX_WAKERS]:
        part = f"{duration(ns)} in {count:,} " if len(listed) > 1 else ""
        out.write(f"  {part}woken by {name}\n")
    rest = listed[_MAX_WAKERS:]
    if rest:
        ns = sum(summed for _, (summed, _) in rest)
        count = sum(counted for _, (_, counted) in rest)
        out.write(f"  {duration(ns)} in {count:,} woken by {len(rest):,} others\n")


_RUNTIME = {
    WokenBy.TIMER: "a timer",
    WokenBy.NETWORK: "the network poller",
    WokenBy.RUNTIME: "the runtime",
    WokenBy.GOROUTINE: "a goroutine",
}


def _waker(wait: NamedWait) -> str:
    if wait.waker is not None:
        return printable(spoken(wait.waker))
    return _RUNTIME[wait.woken_by or WokenBy.RUNTIME]


def write_waits_json(
    output: JsonOutput,
    program: CodeNames,
    waits: Sequence[NamedWait],
    totals: WaitTotals,
    fields: Mapping[str, object],
) -> None:
    """Write an object with the sums and ``fields``, then one for each of ``waits``."""
    others = {"count": totals.others[0], "delay_ns": totals.others[1]}
    sums = {"count": totals.count, "delay_ns": totals.ns, "others": others}
    output.write("waits", {**fields, **sums})
    for wait in waits:
        row: dict[str, object] = {
            "state": wait.state.value,
            "reason": wait.reason or None,
            "count": wait.count,
            "delay_ns": wait.ns,
            "open": wait.is_open,
            "woken_by": wait.woken_by.value if wait.woken_by else None,
            "waker": wait.waker,
            "stack": _stack_json(program, wait.stack),
        }
        if wait.waker_stack:
            row["waker_stack"] = _stack_json(program, wait.waker_stack)
        output.write("wait", row)
    output.out.flush()


def _stack_json(program: CodeNames, stack: tuple[int, ...]) -> list[dict[str, object]]:
    return [
        {**frame_json(frame), "inlined": frame.is_inlined}
        for frame in shown_frames(program, stack, system=True)
    ]
