# SPDX-License-Identifier: Apache-2.0
"""Write system calls by name, as strace -c does, and as JSON.

JSON: one object of kind ``syscall`` for each name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from gotrace.report.durations import duration
from gotrace.report.output import JsonOutput
from gotrace.session.waits.names import SyscallSums

__all__ = ["write_syscalls", "write_syscalls_json"]


def write_syscalls(out: TextIO, calls: Sequence[SyscallSums]) -> None:
    """Write a table, those that took most first."""
    out.write(f"{'CALLS':>10} {'TOTAL':>10} {'P50':>10} {'P99':>10}  {'NAME':<18} ERRORS\n")
    for one in calls:
        marks = (one.times.percentile(0.5), one.times.percentile(0.99))
        known = [duration(ns) if one.times.buckets else "?" for ns in marks]
        shown = " ".join(f"{text:>10}" for text in (duration(one.times.sum), *known))
        ranked = sorted(one.errors.items(), key=lambda item: (-item[1], item[0]))
        errors = ", ".join(f"{count:,} {name}" for name, count in ranked)
        out.write(f"{one.times.count:>10,} {shown}  {one.name:<18} {errors}".rstrip() + "\n")


def write_syscalls_json(output: JsonOutput, calls: Sequence[SyscallSums]) -> None:
    """Write an object for each name."""
    for one in calls:
        times = {
            "total_ns": one.times.sum,
            "p50_ns": one.times.percentile(0.5),
            "p99_ns": one.times.percentile(0.99),
            "buckets": [list(bounds) for bounds in one.times.ranges()],
        }
        known = {"name": one.name, "calls": one.times.count, "errors": one.errors}
        output.write("syscall", {**known, **times})
    output.out.flush()
