# SPDX-License-Identifier: Apache-2.0
"""Write all of goroutines' time by group and state as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from gotrace.report.durations import amount, duration
from gotrace.report.table import columns_of, ending
from gotrace.results.rows import Json
from gotrace.text import counted, printable

_COLUMNS = ("running", "runnable", "syscall", "waiting")


def write_wall(out: TextIO, head: Json, groups: Sequence[Json], what: str, top: int | None) -> None:
    """Write the sums, then a row for each group, at most ``top`` of them."""
    seconds, others = head["seconds"], head["others"]
    spent = amount(head["wall_ns"], "ns")
    out.write(f"{spent} of goroutines of {what} in {duration(seconds * 1e9)}\n\n")
    heads = " ".join(f"{state.upper():>10}" for state in _COLUMNS)
    out.write(f"{'WALL':>10} {heads} {'GOROUTINES':>10}  GROUP\n")
    names = [f"{state}_ns" for state in ("wall", *_COLUMNS)]
    rows = [(printable(row["group"]), [row[name] for name in names]) for row in groups]
    if top and (rest := rows[top:]):
        sums = [sum(ns) for ns in zip(*(times for _, times in rest), strict=True)]
        rows = [*rows[:top], (counted("{:,} other group{s}", len(rest)), sums)]
    columns = columns_of(out)
    for name, times in rows:
        shown = " ".join(f"{amount(ns, 'ns'):>10}" for ns in times)
        mean = times[0] / 1e9 / seconds if seconds else 0.0
        out.write(ending(f"{shown} {mean:>10.1f}  ", name, columns) + "\n")
    if others["count"]:
        ns, count = amount(others["ns"], "ns"), others["count"]
        out.write(f"\n{ns} in {count:,} stays on stacks beyond the room for\n")
    out.flush()
