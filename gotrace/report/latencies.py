# SPDX-License-Identifier: Apache-2.0
"""Render latency histograms: tables in the manner of bcc's funclatency, or JSON lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.gotypes.symbols import elide_type_arguments, short_name, shown_names
from gotrace.histogram import Histogram
from gotrace.report.calls import DURATION_WIDTH, Columns
from gotrace.report.durations import (
    PERCENTILES,
    TIME,
    duration,
    four_digits,
    function_line,
    of_program,
    table,
)
from gotrace.report.output import JsonOutput, Output
from gotrace.report.table import columns_of, parts_lines
from gotrace.report.why import bracket, sums_lines
from gotrace.session.call_rows import program_field
from gotrace.session.latency_rows import Interval, LatencyGroup
from gotrace.session.order import and_more, rate_of, share_text
from gotrace.session.why.parts import take_tracing_out
from gotrace.text import counted, printable

if TYPE_CHECKING:
    from gotrace.results.rows import Json, Row

_UNITS = {1: TIME, 1_000: "usecs", 1_000_000: "msecs"}


def tracing_part(part: int, whole: int) -> str | None:
    """Return the part of a time that is tracing, as ``97%``, None if it is not worth mentioning."""
    return f"{round(100 * part / whole)}%" if part > _NOTABLE * whole else None


_NOTABLE = 0.1


def write_latencies(output: Output, interval: Interval, timestamp: bool) -> None:
    """Write one interval; ``timestamp`` puts the time of day above its text."""
    if isinstance(output, JsonOutput):
        output.rows(interval.rows())
        return
    if timestamp:
        output.out.write(time.strftime("%H:%M:%S\n", time.localtime(interval.ended)))
    if not interval.groups:
        output.nothing()
    names = [group.function for group in interval.groups]
    names += [rest["func"] for rest in interval.rest]
    shown = shown_names((name for name in names if name is not None), interval.short)
    columns = columns_of(output.out)
    for group in interval.groups:
        lines = _lines(group, interval, shown, columns)
        output.out.writelines(line + "\n" for line in lines)
    for rest in interval.rest:
        output.out.write(_rest_line(rest, shown) + "\n")
    if more := and_more(interval.groups, lambda group: group.times.sum, " of the time"):
        output.out.write(f"\n{more}")
    output.out.flush()


def slow_row(
    name: tuple[str | None, str],
    ended: float,
    who: tuple[int, int, int],
    duration: int,
    hits: int,
    probe_ns: int | None,
    parts: Mapping[str, int] | None = None,
) -> Row:
    """Return the row of a slow call, which took so many ns: ``who`` is its pid, tid and goid.

    ``name`` is its program, if there are several, and its function. ``hits`` is how often probes
    were hit within it, ``probe_ns`` what they cost, None if that is not known. ``parts`` is what
    the time went into, None if that was not asked for.
    """
    return {
        "kind": "slow",
        "ts": round(ended, 6),
        **dict(zip(("pid", "tid", "goid"), who, strict=True)),
        "func": name[1],
        "duration_ns": duration,
        "probe_hits": hits,
        "probe_ns": probe_ns,
        **({} if parts is None else {"why": {"parts": take_tracing_out(parts, probe_ns)}}),
        **program_field(name[0]),
    }


def write_slow(
    output: Output, rows: Sequence[Json], first: bool, short: bool, columns: Columns
) -> None:
    """Write slow calls; ``first`` puts the columns' heads above them.

    ``short``: names without the beginning of import paths.
    """
    if isinstance(output, JsonOutput):
        output.rows(rows)
        return
    if first:
        output.heading(columns.heading("FUNC"))
    for row in rows:
        second, rest = divmod(round(row["ts"] * 1_000_000), 1_000_000)
        clock = f"{time.strftime('%H:%M:%S', time.localtime(second))}.{rest:06d}"
        name = elide_type_arguments(row["func"])
        name = of_program(row.get("program"), short_name(name) if short else name)
        ns, hits, cost = row["duration_ns"], row["probe_hits"], row["probe_ns"]
        part = tracing_part(cost, ns) if hits and cost else None
        tracing = f" (about {part} of it tracing)" if part else ""
        why = " " + bracket(row["why"]["parts"], ns) if "why" in row else ""
        prefix = columns.prefix(clock, row["pid"], row["tid"], row["goid"])
        output.out.write(f"{prefix}{duration(ns):<{DURATION_WIDTH}} {name}{tracing}{why}\n")
    output.out.flush()


def _lines(
    group: LatencyGroup, interval: Interval, shown: Mapping[str, str], columns: int | None
) -> Iterator[str]:
    """Yield a group's table: bcc's log2 histogram, the mean, percentiles, tracing's cost.

    Lines of figures have so many ``columns``; None is any.
    """
    times, unit = group.times, interval.unit
    yield ""
    yield from function_line(group.program, group.function and shown[group.function])
    if group.goroutine is not None:
        yield printable(group.goroutine)
    if group.by is not None:
        # Shown by modules that other histograms do without, to start soon.
        from gotrace.report.by import by_line, stack_lines

        yield by_line(group.by)
        yield from stack_lines(group.by)
    rows = times.octaves() if unit == 1 else dict(times.units)
    used = [exponent for exponent, count in rows.items() if count]
    yield from table(
        [
            (1 << exponent if exponent else 0, (2 << exponent) - 1, rows.get(exponent, 0))
            for exponent in range(min(used, default=0), max(used, default=0) + 1)
        ],
        _UNITS[unit],
    )
    yield ""
    means = [f"avg = {duration(times.mean)}", f"total: {duration(times.sum)}"]
    means += [f"count: {times.count}", *_shares(times, interval)]
    yield from parts_lines(means, columns)
    marks = [f"{mark} = {duration(times.percentile(q))}" for mark, q in PERCENTILES.items()]
    marks = [f"min = {duration(times.minimum)}", *marks, f"max = {duration(times.maximum)}"]
    yield from parts_lines(marks, columns)
    cost = group.probe_ns
    part = tracing_part(cost, times.sum) if times.hits and cost is not None else None
    if part:
        yield (
            f"tracing = about {duration(cost or 0)} of the total ({part}): probes were hit"
            f" {counted('{} time{s}', times.hits)} within these calls"
        )
    if group.why is not None:
        yield ""
        yield from sums_lines(group.why, times, cost, columns)


def _shares(times: Histogram, interval: Interval) -> Iterator[str]:
    """Yield the calls a second, and the share of the time if others have any."""
    if interval.rates:
        yield f"{four_digits(rate_of(times.count, interval.seconds))}/s"
    if times.sum < interval.total:
        yield f"share: {share_text(times.sum, interval.total)}"


def _rest_line(rest: Json, shown: Mapping[str, str]) -> str:
    program, function = rest.get("program"), rest["func"]
    what = "" if program is None else f" of {printable(program)}"
    if function is not None:
        what = f" of {of_program(program, shown[function])}"
    line = (
        f"\n{counted('{} other goroutine{s}', rest['goroutines'])}:"
        f" {counted('{} call{s}', rest['count'])}{what},"
        f" total {duration(rest['sum_ns'])}"
    )
    if unnamed := rest["unnamed"]:
        line += f" ({unnamed} of the calls by goroutines that there was no room to keep apart)"
    return line
