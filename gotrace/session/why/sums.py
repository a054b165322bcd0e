# SPDX-License-Identifier: Apache-2.0
"""The parts of many calls' time in sum, and of the slowest and the middle ones."""

from __future__ import annotations

from collections.abc import Mapping

from gotrace.histogram import Histogram, bucket_bounds
from gotrace.records import dataclass
from gotrace.session.why.parts import TRACING, PartSums, PartTotals

#: Parts of calls by their histogram's bucket; under None of those that are not known by bucket.
BucketParts = Mapping[int | None, PartSums]

_SLOWEST = 0.01
_MIDDLE = (0.25, 0.75)


@dataclass(frozen=True, slots=True)
class Band:
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


def part_totals(why: BucketParts, times: Histogram, tracing: int | None) -> dict[str, PartTotals]:
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


def part_bands(why: BucketParts, times: Histogram, tracing: int | None) -> list[Band]:
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


def _band(name: str, buckets: list[int], why: BucketParts, times: Histogram) -> Band:
    parts = PartSums()
    for bucket in buckets:
        parts.merge(why.get(bucket, PartSums()))
    calls = sum(times.buckets[bucket] for bucket in buckets)
    low = max(bucket_bounds(buckets[0])[0], times.minimum)
    high = min(bucket_bounds(buckets[-1])[1] - 1, times.maximum)
    return Band(name, calls, low, high, parts)


def sums_fields(why: BucketParts, times: Histogram, tracing: int | None) -> dict[str, object]:
    """Return a histogram's parts and bands in JSON."""
    totals = part_totals(why, times, tracing)
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
            for band in part_bands(why, times, tracing)
        ],
    }
