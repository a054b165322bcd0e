# SPDX-License-Identifier: Apache-2.0
"""All of goroutines' time by group and state, with its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gotrace.goroutines.model import State
from gotrace.profiles.rows import Line, PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.records import dataclass
from gotrace.results.rows import Row
from gotrace.session.oncpu.naming import NamedSamples, SampleNames
from gotrace.session.oncpu.wall import STATUSES, WallRow
from gotrace.session.row_cells import RowStack, RowStacks
from gotrace.session.waits.naming import without_parking

WALL_FORM = ProfileForm((ValueType("events", "count"), ValueType("time", "nanoseconds")))

_STATES = (State.RUNNING, State.RUNNABLE, State.SYSCALL, State.WAITING)


@dataclass(frozen=True, slots=True)
class WallGroup:
    """All of the time of some goroutines, by state, with its parts.

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

    def table_rows(self, stacks: RowStacks) -> list[Row]:
        """Return its row, then those of its stacks, the most time first."""
        group = {"group": self.name}
        times = {f"{state.value}_ns": self.ns[state] for state in _STATES}
        found = [
            (State.RUNNING, None, one.samples, ns, RowStack(one.frames, one.is_cut))
            for one, ns in self.running()
        ] + [
            (row.state, row.reason or None, row.count, row.ns, stacks[row.stack])
            for row in self.rows
        ]
        names = ("state", "reason", "count", "ns", "stack")
        return [
            {"kind": "wall_group", **group, "wall_ns": self.wall_ns, **times},
            *(
                {"kind": "wall_stack", **group, **dict(zip(names, (s.value, *rest), strict=True))}
                for s, *rest in sorted(found, key=lambda one: -one[3])
            ),
        ]

    def profile_rows(self, names: SampleNames) -> list[ProfileRow]:
        """Return the group's time for a profile, with the group as the outermost frame."""
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


def wall_head(
    groups: Iterable[WallGroup], others: tuple[int, int], fields: Mapping[str, object]
) -> Row:
    """Return the sums, with ``fields``; ``others`` are stays in a state that found no row."""
    total = others[1] + sum(group.wall_ns for group in groups)
    found = {"count": others[0], "ns": others[1]}
    return {"kind": "wall", **fields, "wall_ns": total, "others": found}


def wall_groups(
    rows: Iterable[WallRow], samples: Iterable[NamedSamples], names: SampleNames, period: int
) -> list[WallGroup]:
    """Return the time of each group, the most first; a sample is of ``period`` ns."""
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
