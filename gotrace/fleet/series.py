# SPDX-License-Identifier: Apache-2.0
"""What metrics have added up so far, whatever has become of the processes it came from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gotrace.fleet.config import MetricSpec, MetricType
from gotrace.fleet.naming import OTHERS
from gotrace.histogram import Histogram, ValueHistogram, bucket_bounds
from gotrace.text import encodable

__all__ = ["Bucketed", "Increment", "Metric", "Point", "bucketed"]


@dataclass(frozen=True, slots=True)
class Increment:
    """What has come of one label set: ``values`` go with the metric's label names.

    ``values`` are None for calls that found no room in the kernel. ``measured`` is what a histogram
    is to be of, None for a counter.
    """

    values: tuple[str, ...] | None
    calls: int
    measured: Histogram | ValueHistogram | None = None


@dataclass
class Point:
    """One series: its label values, the target's first, and since when it has been added to."""

    values: tuple[str, ...]
    created: float
    calls: int = 0
    measured: Histogram | ValueHistogram | None = None


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A histogram as it is exported: ``counts`` has one more than ``bounds``, not cumulative."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    count: int
    sum: int
    minimum: int = 0
    maximum: int = 0


def bucketed(measured: Histogram | ValueHistogram | None, bounds: Sequence[int]) -> Bucketed:
    """Return how many values are below each bound and not below the one before.

    Exact where bounds are ends of the kernel's buckets.
    """
    counts = [0] * (len(bounds) + 1)
    if measured is None:
        return Bucketed(tuple(bounds), tuple(counts), 0, 0)
    above = measured.above if isinstance(measured, ValueHistogram) else measured
    if isinstance(measured, ValueHistogram):
        counts[0] += measured.below.count
    at = 0
    for bucket in sorted(above.buckets):
        _, high = bucket_bounds(bucket)
        while at < len(bounds) and high > bounds[at]:
            at += 1
        counts[at] += above.buckets[bucket]
    return Bucketed(
        tuple(bounds),
        tuple(counts),
        measured.count,
        measured.sum,
        measured.minimum,
        measured.maximum,
    )


@dataclass
class Metric:
    """All series of one metric; threads may add to it and read it."""

    spec: MetricSpec
    #: Calls whose value could not be read, which no histogram has.
    unread: int = 0
    #: Calls that are in the series of the others.
    others: int = 0
    _points: dict[tuple[str, ...], Point] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the labels."""
        return ("target", *(("function",) if self.spec.functions else ()), *self.spec.labels)

    @property
    def is_histogram(self) -> bool:
        """Return whether it has a histogram for each series."""
        return self.spec.type is MetricType.HISTOGRAM

    @property
    def unit(self) -> float:
        """Return what a histogram's values are divided by: ns are exported as seconds."""
        return 1.0 if self.spec.of is not None else 1e9

    def begin(self, target: str) -> None:
        """Have a series of a metric without labels begin at 0, so that its first rise is seen."""
        if len(self.labels) == 1:
            with self._lock:
                self._point((target,))

    def add(self, target: str, increments: Iterable[Increment]) -> None:
        """Add what has come from a target."""
        with self._lock:
            for one in increments:
                values = None if one.values is None else tuple(map(encodable, one.values))
                if values is None or not self._has_room((target, *values)):
                    values = (OTHERS,) * (len(self.labels) - 1)
                    self.others += one.calls
                point = self._point((target, *values))
                point.calls += one.calls
                if one.measured is None:
                    continue
                if isinstance(one.measured, ValueHistogram):
                    self.unread += one.measured.unknown
                if point.measured is None:
                    point.measured = type(one.measured)()
                point.measured.merge(one.measured)  # type: ignore[arg-type]

    def points(self) -> list[tuple[Point, Bucketed | None]]:
        """Return a copy of all series, in the order in which they began."""
        with self._lock:
            bounds = self.spec.bounds if self.is_histogram else []
            return [
                (
                    replace(point, measured=None),
                    bucketed(point.measured, bounds) if self.is_histogram else None,
                )
                for point in self._points.values()
            ]

    def keep(self, before: Metric) -> None:
        """Take over what a metric of the same labels has, after a reload."""
        self._points = before._points
        self.unread, self.others = before.unread, before.others

    def is_like(self, other: Metric) -> bool:
        """Return whether another's series can go on as this one's."""
        mine, its = self.spec, other.spec
        if (mine.type, self.labels) != (its.type, other.labels):
            return False
        if not self.is_histogram:
            return True
        texts = [spec.of.texts if spec.of else None for spec in (mine, its)]
        return texts[0] == texts[1] and mine.bounds == its.bounds

    def _has_room(self, values: tuple[str, ...]) -> bool:
        if values in self._points or len(values) == 1:
            return True
        # In the series of a target; that of the others is beside them.
        of_target = sum(known[0] == values[0] for known in self._points)
        return of_target < self.spec.series

    def _point(self, values: tuple[str, ...]) -> Point:
        if values not in self._points:
            self._points[values] = Point(values, time.time())
        return self._points[values]
