# SPDX-License-Identifier: Apache-2.0
"""All of goroutines' time by group and state: as a table, and as JSON.

JSON: one object of kind ``wall``, with the sums, then one of kind ``wall_group`` for each group and
one of kind ``wall_stack`` for each of its stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from gotrace.goroutines.model import State
from gotrace.report.durations import duration
from gotrace.report.output import JsonOutput
from gotrace.session.oncpu.groups import WallGroup
from gotrace.session.oncpu.naming import CpuNames
from gotrace.session.row_stacks import RowStacks
from gotrace.text import printable

__all__ = ["write_wall", "write_wall_json"]

_COLUMNS = (State.RUNNING, State.RUNNABLE, State.SYSCALL, State.WAITING)


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
    stacked = RowStacks(names.program)
    found = {"count": others[0], "ns": others[1]}
    output.write("wall", {**fields, "wall_ns": total, "others": found})
    for group in groups[:top]:
        times = {f"{state.value}_ns": group.ns[state] for state in _COLUMNS}
        output.write("wall_group", {"group": group.name, "wall_ns": group.wall_ns, **times})
        stacks = [
            (State.RUNNING, "", one.samples, ns, one.frames) for one, ns in group.running()
        ] + [
            (row.state, row.reason, row.count, row.ns, stacked[row.stack].frames)
            for row in group.rows
        ]
        for state, reason, count, ns, frames in sorted(stacks, key=lambda one: -one[3]):
            stack = [{**frame.to_json(), "inlined": frame.is_inlined} for frame in frames]
            known = {"group": group.name, "state": state.value, "reason": reason or None}
            output.write("wall_stack", {**known, "count": count, "ns": ns, "stack": stack})
    output.out.flush()
