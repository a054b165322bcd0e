# SPDX-License-Identifier: Apache-2.0
"""The sums of metrics so far, whatever has become of the processes that they came from."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from gotrace.fleet.config import POD_LABELS, MetricSpec, MetricType
from gotrace.fleet.naming import OTHERS
from gotrace.histogram import Histogram, ValueHistogram, bucket_bounds
from gotrace.records import dataclass, field, replace
from gotrace.text import printable


@dataclass(frozen=True, slots=True)
class Increment:
    """New results of one label set: ``values`` go with the metric's label names.

    ``values`` are None for calls that found no room in the kernel. ``measured`` is what a histogram
    is to be of, None for a counter.
    """

    values: tuple[str, ...] | None
    calls: int
    measured: Histogram | ValueHistogram | None = None


@dataclass
class SeriesPoint:
    """One series: its label values, the target's first, and since when it has been added to.

    ``used`` is when it was last added to (``time.monotonic``).
    """

    values: tuple[str, ...]
    created: float
    used: float
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
    places = _places(tuple(bounds))
    for bucket, count in above.buckets.items():
        counts[places[bucket]] += count
    return Bucketed(
        tuple(bounds),
        tuple(counts),
        measured.count,
        measured.sum,
        measured.minimum,
        measured.maximum,
    )


class _Places(dict[int, int]):
    """Where buckets of the kernel are among bounds, as far as it was asked."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds

    def __missing__(self, bucket: int) -> int:
        at = self[bucket] = bisect_left(self._bounds, bucket_bounds(bucket)[1])
        return at


_places = lru_cache(256)(_Places)


class Room:
    """The label sets that all metrics may have together, and those of each target."""

    def __init__(self, most: int, of_targets: Mapping[str, int]) -> None:
        self._most = most
        self._of_targets = of_targets
        self._taken: Counter[str] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    def has(self, target: str) -> bool:
        """Return whether one more label set of a target fits in."""
        most = self._of_targets.get(target, self._most)
        return self._total < self._most and self._taken[target] < most

    def take(self, target: str, count: int) -> None:
        """Take room for some label sets, or give it back where ``count`` is below zero."""
        with self._lock:
            self._taken[target] += count
            self._total += count


class Presence:
    """Which targets something is attached in: only their series are exported.

    So a rate is absent, and not 0, where nothing is counted. The last sums of a target whose last
    probe was detached are exported once more to each reader, so that no reader misses the end; a
    reader that asks again within some seconds has it again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attached: Counter[str] = Counter()
        #: When each reader had the end of a target.
        self._had: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, target: str) -> None:
        """Take note that something is attached in a target."""
        with self._lock:
            self._attached[target] += 1
            self._had.pop(target, None)

    def end(self, target: str) -> None:
        """Take note that it is detached, and that all that it has counted was added."""
        with self._lock:
            self._attached[target] -= 1
            if self._attached[target] <= 0:
                self._had[target] = {}

    def shown(self, targets: Iterable[str], reader: str) -> set[str]:
        """Return the targets whose series a reader is to have now; one without a name has all."""
        with self._lock:
            now, found = self._clock(), set()
            for target in targets:
                had = self._had.get(target)
                if had is None or not reader:
                    found.add(target)
                    continue
                if len(had) < _MAX_READERS:
                    had.setdefault(reader, now)
                if now - had.get(reader, -_AGAIN) < _AGAIN:
                    found.add(target)
            return found


_MAX_READERS = 64
_AGAIN = 5.0  # seconds


@dataclass
class Metric:
    """All series of one metric; threads may add to it and read it."""

    spec: MetricSpec
    #: Calls whose value could not be read, which no histogram has.
    unread: int = 0
    #: Calls that are in the series of the others.
    others: int = 0
    #: Label sets that have ended, since no call had them for long.
    ended: int = 0
    presence: Presence = field(default_factory=Presence)
    _room: Room | None = None
    _points: dict[tuple[str, ...], SeriesPoint] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the labels."""
        spec = self.spec
        pods = POD_LABELS if spec.pods else ()
        return ("target", *pods, *(("function",) if spec.functions else ()), *spec.labels)

    @property
    def is_histogram(self) -> bool:
        return self.spec.type is MetricType.HISTOGRAM

    @property
    def unit(self) -> float:
        """Return the divisor of a histogram's values: ns are exported as seconds."""
        return 1.0 if self.spec.of is not None else 1e9

    def begin(self, target: str) -> None:
        """Take note that a probe is attached in a target.

        A series of a metric without labels begins at 0, so that its first rise is seen.
        """
        self.presence.begin(target)
        if len(self.labels) == 1:
            with self._lock:
                self._point((target,))

    def add(self, target: str, increments: Iterable[Increment]) -> None:
        """Add new results of a target."""
        with self._lock:
            for one in increments:
                values = None if one.values is None else tuple(map(printable, one.values))
                if values is None or not self._has_room((target, *values)):
                    values = (OTHERS,) * (len(self.labels) - 1)
                    self.others += one.calls
                point = self._point((target, *values))
                point.calls += one.calls
                point.used = time.monotonic()
                if one.measured is None:
                    continue
                if isinstance(one.measured, ValueHistogram):
                    self.unread += one.measured.unknown
                if point.measured is None:
                    point.measured = type(one.measured)()
                point.measured.merge(one.measured)  # type: ignore[arg-type]

    @property
    def can_expire(self) -> bool:
        """Return whether series end: those that have no label but the target's stay."""
        return bool(self.spec.idle) and len(self.labels) > 1

    def end_idle(self) -> None:
        """End the series that no call was added to for as long as the metric says."""
        if not self.can_expire:
            return
        with self._lock:
            before = time.monotonic() - self.spec.idle
            for values in [values for values, one in self._points.items() if one.used < before]:
                del self._points[values]
                self.ended += 1
                if self._room is not None:
                    self._room.take(values[0], -1)

    def points(self, reader: str = "") -> list[tuple[SeriesPoint, Bucketed | None]]:
        """Return a copy of the series for a reader, in the order in which they began.

        A reader with a name has those of targets without a probe once more, and then no more.
        """
        with self._lock:
            shown = self.presence.shown({values[0] for values in self._points}, reader)
            bounds = self.spec.bounds if self.is_histogram else []
            return [
                (
                    replace(point, measured=None),
                    bucketed(point.measured, bounds) if self.is_histogram else None,
                )
                for point in self._points.values()
                if point.values[0] in shown
            ]

    def be_in(self, room: Room) -> None:
        """Have all label sets take room there."""
        with self._lock:
            self._room = room
            if len(self.labels) > 1:
                for target, count in Counter(values[0] for values in self._points).items():
                    room.take(target, count)

    def keep(self, before: Metric) -> None:
        """Take over what a metric of the same labels has, after a reload."""
        self._points = before._points
        self.unread, self.others = before.unread, before.others
        self.ended = before.ended

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
        of_target = sum(
            known[0] == values[0] and known[1:] != (OTHERS,) * (len(known) - 1)
            for known in self._points
        )
        if of_target >= self.spec.series:
            return False
        return self._room is None or self._room.has(values[0])

    def _point(self, values: tuple[str, ...]) -> SeriesPoint:
        if values not in self._points:
            self._points[values] = SeriesPoint(values, time.time(), time.monotonic())
            if self._room is not None and len(values) > 1:
                self._room.take(values[0], 1)
        return self._points[values]
