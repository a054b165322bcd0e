# SPDX-License-Identifier: Apache-2.0
"""Rows of system calls by name, and their text, as strace -c has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from gotrace.report.durations import duration
from gotrace.results.rows import Json
from gotrace.session.order import and_more, last


def write_syscalls(out: TextIO, rows: Sequence[Json], top: int | None) -> None:
    """Write a table of at most ``top`` rows, those that took most first."""
    if not rows:
        out.write("no system calls\n")
        return
    out.write(f"{'CALLS':>10} {'TOTAL':>10} {'P50':>10} {'P99':>10}  {'NAME':<18} ERRORS\n")
    for row in rows[:top]:
        known = [duration(row[p]) if row.get("buckets") else "?" for p in ("p50_ns", "p99_ns")]
        shown = " ".join(f"{text:>10}" for text in (duration(row["total_ns"]), *known))
        ranked = sorted(row["errors"].items(), key=lambda item: (-item[1], item[0]))
        errors = ", ".join(f"{count:,} {name}" for name, count in ranked)
        out.write(f"{row['calls']:>10,} {shown}  {row['name']:<18} {errors}".rstrip() + "\n")
    out.write(and_more(last(rows[::-1], top), lambda row: row["total_ns"], " of the time"))
