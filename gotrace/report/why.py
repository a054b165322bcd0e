# SPDX-License-Identifier: Apache-2.0
"""Render the parts of calls' time: a table below a histogram, a bracket after a duration.

In JSON a call has

    why: {parts: {NAME: ns, ...}, changes: N,
          longest: null or {part, ns, waker: {goid, func}, stack: [{func, file, line}, ...]}}

``parts`` add up to duration_ns. A histogram has

    why: {parts: {NAME: {ns, calls}, ...}, bands: [{band, calls, from_ns, to_ns, parts}, ...]}

where ``parts`` add up to sum_ns, and ``bands`` have what the slowest and the middle calls did: at
least the slowest hundredth and the half around the median, as calls of a bucket are not divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gotrace.histogram import Histogram
from gotrace.report.durations import duration
from gotrace.report.table import table_lines
from gotrace.session.why.parts import BLOCKED
from gotrace.session.why.sums import BucketParts, part_bands, part_totals
from gotrace.text import counted, printable

_LEAST_IN_BRACKET = 0.005  # of the duration


def sums_lines(
    why: BucketParts, times: Histogram, tracing: int | None, columns: int | None = None
) -> Iterator[str]:
    """Yield the table below a histogram; ``tracing`` is the probes' time within the calls.

    It has so many ``columns``; None is any.
    """
    totals = part_totals(why, times, tracing)
    bands = part_bands(why, times, tracing)
    heads = ["where the time went", "total", "share", "average", "calls"]
    rows = [[*heads, *(band.name for band in bands)]]
    rows += [
        [
            printable(name),
            duration(part.ns),
            _percent(part.ns / max(times.sum, 1)),
            duration(part.ns / max(times.count, 1)),
            str(part.calls),
            *(_percent(band.share(name)) for band in bands),
        ]
        for name, part in totals.items()
    ]
    yield from table_lines(rows, right=len(rows[0]) - 1, columns=columns)
    for band in bands:
        share = _percent(band.calls / times.count)
        bounds = f"{duration(band.low)} to {duration(band.high)}"
        yield f"{band.name}: {counted('{} call{s}', band.calls)} ({share}) of {bounds}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.9995 else "100%"


def bracket(
    parts: Mapping[str, int], whole: int, longest: str | None = None, woken: str = ""
) -> str:
    """Return a call's parts in brackets, largest first, without those too small to matter.

    ``longest`` is the part that the longest wait was, and ``woken`` who ended it.
    """
    words: list[str] = []
    for name, ns in parts.items():
        if words and ns < whole * _LEAST_IN_BRACKET:
            break
        by = f" {woken}" if name == longest and woken else ""
        words.append(f"{name.removeprefix(BLOCKED)} {duration(ns)}{by}")
    return f"({', '.join(words)})"
