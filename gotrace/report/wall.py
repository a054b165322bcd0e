# SPDX-License-Identifier: Apache-2.0
"""All of goroutines' time by group and state: as a table, as JSON, and for profiles.

JSON: one object of kind ``wall``, with the sums, then one of kind ``wall_group`` for each group and
one of kind ``wall_stack`` for each of its stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from gotrace.goroutines.model import State
from gotrace.profiles.rows import Line, PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.report.durations import duration
from gotrace.report.goroutines import frame_json
from gotrace.report.output import JsonOutput
from gotrace.session.oncpu.naming import CpuNames, NamedSamples
from gotrace.session.oncpu.wall import STATUSES, WallRow
from gotrace.session.waits.naming import shown_frames, without_parking
from gotrace.text import printable

__all__ = ["WALL_FORM", "WallGroup", "wall_groups", "write_wall", "write_wall_json"]

_COLUMNS = (State.RUNNING, State.RUNNABLE, State.SYSCALL, State.WAITING)

WALL_FORM = ProfileForm(
    (ValueType("events", "count"), ValueType("time", "nanoseconds")), 1, "nanoseconds"
)


@dataclass(frozen=True, slots=True)
class WallGroup:
    """All of the time of some goroutines, by state, with what it is made of.

    ``rows`` are the states but running, ``samples`` what divides the time of that. The scheduler
    and threads without a goroutine have no states (``has_states``): they run as long as the samples
    say.
    """

    name: str
    has_states: bool
    ns: dict[State, int]
    rows: Sequence[WallRow]
    samples: Sequence[NamedSamples]

    @property
    def wall_ns(self) -> int:
        """Return how long the goroutines have lived: the sum of all states."""
        return sum(self.ns.values()) if self.has_states else 0

    def running(self) -> list[tuple[NamedSamples, int]]:
        """Return samples, each with its part of the time in which the goroutines ran."""
        total, left = sum(one.samples for one in self.samples), self.ns.get(State.RUNNING, 0)
        parts = []
        for one in self.samples:
            part = left * one.samples // total if total else 0
            parts.append((one, part))
            left, total = left - part, total - one.samples
        return parts

    def profile_rows(self, names: CpuNames) -> list[ProfileRow]:
        """Return all of it for a profile, with the group as the outermost frame."""
        root = PprofLocation(0, (Line(f"[{self.name}]", "", 0),))
        made = []
        for one, ns in self.running():
            labels = {"group": self.name, "state": State.RUNNING.value}
            made.append(ProfileRow([*one.locations, root], (one.samples, ns), labels))
        if not self.samples and (ns := self.ns.get(State.RUNNING, 0)):
            labels = {"group": self.name, "state": State.RUNNING.value}
            made.append(ProfileRow([root], (0, ns), labels, "[running]"))
        for row in self.rows:
            stack = without_parking(names.program.profiled(row.stack))
            labels = {"group": self.name, "state": row.state.value}
            labels |= {"reason": row.reason} if row.reason else {}
            note = f"[{row.reason or row.state.value}]"
            made.append(ProfileRow([*stack, root], (row.count, row.ns), labels, note))
        return made


def wall_groups(
    rows: Iterable[WallRow], samples: Iterable[NamedSamples], names: CpuNames, period: int
) -> list[WallGroup]:
    """Return all of the time by group, the most first; a sample is of ``period`` ns."""
    by_name: dict[str, list[WallRow]] = {}
    for row in rows:
        by_name.setdefault(names.goroutines(row.created_by), []).append(row)
    sampled: dict[str, list[NamedSamples]] = {}
    for one in samples:
        if one.status == 3:  # the time of system calls is that state's
            continue
        has_states = one.created_by and one.group != "scheduler"
        name = names.goroutines(one.created_by) if has_states else one.group
        sampled.setdefault(name, []).append(one)
    groups = []
    for name in {**by_name, **sampled}:
        ns = dict.fromkeys(STATUSES.values(), 0)
        for row in by_name.get(name, ()):
            ns[row.state] += row.ns
        found = sampled.get(name, [])
        if name not in by_name:
            ns[State.RUNNING] = period * sum(one.samples for one in found)
        rest = [row for row in by_name.get(name, ()) if row.state is not State.RUNNING]
        groups.append(WallGroup(name, name in by_name, ns, rest, found))
    return sorted(groups, key=lambda group: (-group.wall_ns, group.name))


def write_wall(
    out: TextIO,
    groups: Sequence[WallGroup],
    others: tuple[int, int],
    what: str,
    seconds: float,
    top: int | None,
) -> None:
    """Write the sums, then a row for each group, at most ``top`` of them."""
    total = sum(group.wall_ns for group in groups) + others[1]
    out.write(f"{_time(total)} of goroutines of {what} in {duration(seconds * 1e9)}\n\n")
    heads = [f"{state.value.upper():>10}" for state in _COLUMNS]
    out.write(f"{'WALL':>10} {' '.join(heads)} {'GOROUTINES':>10}  GROUP\n")
    rows = [
        (group.name, group.wall_ns, [group.ns[state] for state in _COLUMNS]) for group in groups
    ]
    if top and rows[top:]:
        rest = rows[top:]
        columns = [sum(ns) for ns in zip(*(times for _, _, times in rest), strict=True)]
        name = f"{len(rest):,} other groups"
        rows = [*rows[:top], (name, sum(wall for _, wall, _ in rest), columns)]
    for name, wall, times in rows:
        shown = " ".join(f"{_time(ns):>10}" for ns in times)
        mean = wall / 1e9 / seconds if seconds else 0.0
        out.write(f"{_time(wall):>10} {shown} {mean:>10.1f}  {printable(name)}\n")
    if others[0]:
        out.write(f"\n{_time(others[1])} in {others[0]:,} stays on stacks beyond the room for\n")
    out.flush()


def _time(ns: int) -> str:
    return duration(ns) if ns else "0s"


def write_wall_json(
    output: JsonOutput,
    groups: Sequence[WallGroup],
    others: tuple[int, int],
    names: CpuNames,
    top: int | None,
    fields: Mapping[str, object],
) -> None:
    """Write an object with the sums and ``fields``, then groups, each with its stacks."""
    total = sum(group.wall_ns for group in groups) + others[1]
    found = {"count": others[0], "ns": others[1]}
    output.write("wall", {**fields, "wall_ns": total, "others": found})
    for group in groups[:top]:
        times = {f"{state.value}_ns": group.ns[state] for state in _COLUMNS}
        output.write("wall_group", {"group": group.name, "wall_ns": group.wall_ns, **times})
        stacks = [
            (State.RUNNING, "", one.samples, ns, one.frames) for one, ns in group.running()
        ] + [
            (row.state, row.reason, row.count, row.ns, shown_frames(names.program, row.stack, True))
            for row in group.rows
        ]
        for state, reason, count, ns, frames in sorted(stacks, key=lambda one: -one[3]):
            stack = [{**frame_json(frame), "inlined": frame.is_inlined} for frame in frames]
            known = {"group": group.name, "state": state.value, "reason": reason or None}
            output.write("wall_stack", {**known, "count": count, "ns": ns, "stack": stack})
    output.out.flush()
