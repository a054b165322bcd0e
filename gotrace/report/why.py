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

from gotrace.histogram import Histogram, bucket_bounds
from gotrace.records import dataclass
from gotrace.report.durations import duration
from gotrace.report.table import table_lines
from gotrace.session.why.parts import BLOCKED, TRACING, PartSums, PartTotals
from gotrace.text import counted, printable

#: Parts of calls by their histogram's bucket; under None of those that are not known by bucket.
BucketParts = Mapping[int | None, PartSums]

_SLOWEST = 0.01
_MIDDLE = (0.25, 0.75)
_LEAST_IN_BRACKET = 0.005  # of the duration


@dataclass(frozen=True, slots=True)
class _Band:
    """Some of the calls, by duration: ``low`` and ``high`` (ns) are the least and most possible."""

    name: str
    calls: int
    low: int
    high: int
    parts: PartSums

    def share(self, name: str) -> float:
        """Return the part of these calls' time."""
        found = self.parts.parts.get(name)
        return found.ns / self.parts.total if found and self.parts.total else 0.0


def _totals(why: BucketParts, times: Histogram, tracing: int | None) -> dict[str, PartTotals]:
    """Return all parts, largest first, with an estimate of the probes' own part."""
    sums = PartSums()
    for found in why.values():
        sums.merge(found)
    _take_tracing_out(sums, tracing or 0, times.count)
    ranked = sorted(sums.parts.items(), key=lambda item: (-item[1].ns, item[0]))
    return {name: totals for name, totals in ranked if totals.ns}


def _take_tracing_out(sums: PartSums, tracing: int, calls: int) -> None:
    """Take the probes' time of all the calls out of running, and make it a part by itself."""
    running = sums.parts.get("running")
    if running and (taken := min(tracing, running.ns)):
        running.ns -= taken
        sums.parts[TRACING] = PartTotals(taken, calls)


def _bands(why: BucketParts, times: Histogram, tracing: int | None) -> list[_Band]:
    """Return the slowest calls and the middle ones, by whole buckets; none where all are alike.

    Of ``tracing`` each call has the same part.
    """
    buckets = sorted(times.buckets)
    if None in why or len(buckets) < 2:
        return []
    slowest, calls = len(buckets), 0
    while slowest > 1 and calls < times.count * _SLOWEST:
        slowest -= 1
        calls += times.buckets[buckets[slowest]]
    middle, before = [], 0
    for bucket in buckets:
        after = before + times.buckets[bucket]
        if before < times.count * _MIDDLE[1] and after > times.count * _MIDDLE[0]:
            middle.append(bucket)
        before = after
    bands = [
        _band("slowest", buckets[slowest:], why, times),
        _band("middle", middle, why, times),
    ]
    for band in bands:
        taken = (tracing or 0) * band.calls // times.count
        _take_tracing_out(band.parts, taken, band.calls)
    return bands


def _band(name: str, buckets: list[int], why: BucketParts, times: Histogram) -> _Band:
    parts = PartSums()
    for bucket in buckets:
        parts.merge(why.get(bucket, PartSums()))
    calls = sum(times.buckets[bucket] for bucket in buckets)
    low = max(bucket_bounds(buckets[0])[0], times.minimum)
    high = min(bucket_bounds(buckets[-1])[1] - 1, times.maximum)
    return _Band(name, calls, low, high, parts)


def sums_lines(
    why: BucketParts, times: Histogram, tracing: int | None, columns: int | None = None
) -> Iterator[str]:
    """Yield the table below a histogram; ``tracing`` is the probes' time within the calls.

    It has so many ``columns``; None is any.
    """
    totals = _totals(why, times, tracing)
    bands = _bands(why, times, tracing)
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


def sums_fields(why: BucketParts, times: Histogram, tracing: int | None) -> dict[str, object]:
    """Return a histogram's parts and bands in JSON."""
    totals = _totals(why, times, tracing)
    return {
        "parts": {name: {"ns": part.ns, "calls": part.calls} for name, part in totals.items()},
        "bands": [
            {
                "band": band.name,
                "calls": band.calls,
                "from_ns": band.low,
                "to_ns": band.high,
                "parts": {
                    name: part.ns
                    for name, part in sorted(
                        band.parts.parts.items(), key=lambda item: (-item[1].ns, item[0])
                    )
                },
            }
            for band in _bands(why, times, tracing)
        ],
    }


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
