# SPDX-License-Identifier: Apache-2.0
"""Write rows of goroutines' waits as text: in groups by their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from gotrace.goroutines.model import Frame
from gotrace.records import dataclass, field
from gotrace.report.durations import amount, duration
from gotrace.report.goroutines import spoken, write_frames
from gotrace.results.rows import Json
from gotrace.text import counted, printable

#: Wakers that are named in a group's lines.
_MAX_WAKERS = 4
#: The words for one of each state, and for many.
_WORDS = {
    "waiting": ("wait", "waits"),
    "runnable": ("wait for a CPU", "waits for a CPU"),
    "syscall": ("system call", "system calls"),
}


@dataclass
class _Group:
    """Waits on one stack as it is shown, for one reason."""

    frames: Sequence[Frame]
    waits: list[Json] = field(default_factory=list)

    @property
    def count(self) -> int:
        return _count(self.waits)

    @property
    def ns(self) -> int:
        return _ns(self.waits)


def _count(waits: Iterable[Json]) -> int:
    return sum(wait["count"] for wait in waits)


def _ns(waits: Iterable[Json]) -> int:
    return sum(wait["delay_ns"] for wait in waits)


def write_waits(
    out: TextIO, head: Json, waits: Sequence[Json], what: str, system: bool, top: int | None
) -> None:
    """Write the sums, then groups, those that took most first, at most ``top`` of them.

    ``what`` is whose waits they are; ``system``: the runtime's functions are shown as well.
    """
    state = waits[0]["state"] if waits else "waiting"
    ns = head["delay_ns"]
    words = _counted(head["count"], state)
    out.write(f"{amount(ns, 'ns')} in {words} of {what}\n")
    groups = sorted(_grouped(waits, system), key=lambda group: -group.ns)
    for group in groups[:top]:
        _write_group(out, group, system)
    rest = groups[top:] if top else []
    if rest:
        ns, count = sum(one.ns for one in rest), sum(one.count for one in rest)
        stacks = counted("{:,} other stack{s}", len(rest))
        out.write(f"\nand {duration(ns)} in {_counted(count, state)} on {stacks}\n")
    if others := head["others"]["count"]:
        ns = head["others"]["delay_ns"]
        out.write(f"\n{duration(ns)} in {_counted(others, state)} on stacks beyond the room for\n")
    out.flush()


def _counted(count: int, state: str) -> str:
    one, many = _WORDS[state]
    return f"{count:,} {one if count == 1 else many}"


def _grouped(waits: Iterable[Json], system: bool) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for wait in waits:
        stack = wait["stack"]
        frames = tuple(stack.shown(system))
        key = (wait["reason"], frames, stack.is_cut, wait["open"], wait.get("waker_stack"))
        groups.setdefault(key, _Group(frames)).waits.append(wait)
    return list(groups.values())


def _write_group(out: TextIO, group: _Group, system: bool) -> None:
    first = group.waits[0]
    stack, waker_stack = first["stack"], first.get("waker_stack")
    notes = [note for note in (first["reason"], "not ended" if first["open"] else "") if note]
    shown = f" [{', '.join(notes)}]" if notes else ""
    each = f", {duration(group.ns / group.count)} each" if group.count > 1 else ""
    longest = [wait["max_ns"] for wait in group.waits if "max_ns" in wait]
    if each and len(longest) == len(group.waits):
        each += f", {duration(max(longest))} at most"
    words = _counted(group.count, first["state"])
    out.write(f"\n{duration(group.ns)} in {words}{shown}{each}:\n")
    if not waker_stack:
        _write_wakers(out, group)
    if group.frames:
        write_frames(out, group.frames)
    else:
        why = (
            "it is of no code of the program" if stack.addresses else "there was no room to keep it"
        )
        out.write(f"\tstack unavailable: {why}\n")
    if stack.is_cut:
        out.write("...additional frames elided...\n")
    if waker_stack:
        out.write(f"woken by {_waker(first)}:\n")
        write_frames(out, waker_stack.shown(system))


def _write_wakers(out: TextIO, group: _Group) -> None:
    by_waker: dict[str, list[Json]] = {}
    for wait in group.waits:
        if wait["woken_by"] is not None:
            by_waker.setdefault(_waker(wait), []).append(wait)
    listed = sorted(by_waker.items(), key=lambda item: (-_ns(item[1]), item[0]))
    for name, waits in listed[:_MAX_WAKERS]:
        part = f"{duration(_ns(waits))} in {_count(waits):,} " if len(listed) > 1 else ""
        out.write(f"  {part}woken by {name}\n")
    if rest := listed[_MAX_WAKERS:]:
        every = [wait for _, waits in rest for wait in waits]
        sums = f"{duration(_ns(every))} in {_count(every):,}"
        out.write(f"  {sums} woken by {len(rest):,} others\n")


_RUNTIME = {"timer": "a timer", "network poller": "the network poller", "goroutine": "a goroutine"}


def _waker(wait: Json) -> str:
    if wait["waker"] is not None:
        return printable(spoken(wait["waker"]))
    return _RUNTIME.get(wait["woken_by"], "the runtime")
