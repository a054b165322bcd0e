# SPDX-License-Identifier: Apache-2.0
"""Log-linear histograms of nanoseconds: the same buckets as bpf/histogram.h."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gotrace.errors import UsageError
from gotrace.records import dataclass, field
from gotrace.tables import frame_of

_SUB_BITS = 4
_SUB_BUCKETS = 1 << _SUB_BITS
_MAX_EXPONENT = 43
BUCKETS = (_MAX_EXPONENT - _SUB_BITS + 2) * _SUB_BUCKETS
#: The same where histograms are of values of any size.
WIDE_BUCKETS = (63 - _SUB_BITS + 2) * _SUB_BUCKETS
#: The percentiles of rows, by name.
MARKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
#: Powers of two of the display unit: rows of the table printed with -u and -m.
UNIT_ROWS = 64

_HEAD = struct.Struct("=5Q")
_UNITS_AT = _HEAD.size + 8 * BUCKETS
ROW_SIZE = _UNITS_AT + 8 * UNIT_ROWS
WIDE_ROW_SIZE = ROW_SIZE + 8 * (WIDE_BUCKETS - BUCKETS)
_UNITS_SIZE = 8 * UNIT_ROWS
_ALL_ONES = (1 << 64) - 1


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """Return the lowest value of a bucket and the lowest of the next, in nanoseconds."""
    octave, sub = divmod(bucket, _SUB_BUCKETS)
    if octave == 0:
        return sub, sub + 1
    width = 1 << (octave - 1)
    low = (_SUB_BUCKETS + sub) * width
    return low, low + width


def _bucket_of(value: int) -> int:
    """Return the bucket that has a value, however many there are."""
    octave = max(value.bit_length() - _SUB_BITS, 0)
    if octave == 0:
        return value
    return octave * _SUB_BUCKETS + (value >> octave - 1) - _SUB_BUCKETS


def bucket_between(low: int, high: int) -> int:
    """Return the bucket that has these bounds. Raises ValueError if there is none."""
    bucket = _bucket_of(low)
    if not 0 <= bucket < WIDE_BUCKETS or bucket_bounds(bucket) != (low, high):
        raise ValueError(f"[{low}, {high}] are not the bounds of a bucket")
    return bucket


_PART = struct.Struct(f"={_SUB_BUCKETS}Q")
_EMPTY_PART = bytes(_PART.size)


def _counts(cells: bytes) -> Counter[int]:
    """Return the cells that are not 0, by number; most octaves are empty, and passed over."""
    counts: Counter[int] = Counter()
    for at in range(0, len(cells), _PART.size):
        part = cells[at : at + _PART.size]
        if part != _EMPTY_PART:
            for number, count in enumerate(_PART.unpack(part), at // 8):
                if count:
                    counts[number] = count
    return counts


def fraction_of(percentile: float) -> float:
    """Return a percentile as a fraction: up to 1 it is one, and 99 is 0.99.

    Raises UsageError beyond 100.
    """
    if not 0 <= percentile <= 100:
        raise UsageError(f"percentile({percentile}): give 0 to 100, as 99, or a fraction, as 0.99")
    return percentile / 100 if percentile > 1 else percentile


def _rank(count: int, percentile: float) -> int:
    """Return the nearest rank of a percentile of ``count`` values; raises UsageError."""
    return max(1, -(-count * round(fraction_of(percentile) * 1_000_000) // 1_000_000))


@dataclass
class Histogram:
    """A distribution: exact count, sum, minimum and maximum, and counts by bucket.

    All times are nanoseconds. ``units`` counts by power of two of the display unit where one
    larger than a nanosecond was asked for; ``minimum`` is 0 while ``count`` is. ``hits`` is how
    often probes were hit within all these calls. ``why`` is what the time went into, by part, where
    that was asked for: it adds up to ``sum``.
    """

    count: int = 0
    sum: int = 0
    minimum: int = 0
    maximum: int = 0
    buckets: Counter[int] = field(default_factory=Counter)
    units: Counter[int] = field(default_factory=Counter)
    hits: int = 0
    why: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a summary in a line: without its buckets, of which there can be hundreds."""
        return _in_a_line(self)

    @classmethod
    def from_row(cls, row: bytes | memoryview) -> Histogram:
        """Decode ``struct histogram`` of bpf/histogram.h, ``ROW_SIZE`` bytes or the wide one's."""
        count, total, inverted, maximum, hits = _HEAD.unpack_from(row)
        cells = bytes(row)
        return cls(
            count,
            total,
            _ALL_ONES - inverted if inverted else 0,
            maximum,
            _counts(cells[_HEAD.size : -_UNITS_SIZE]),
            _counts(cells[-_UNITS_SIZE:]),
            hits,
        )

    def add(self, value: int) -> None:
        """Add a value, as bpf/histogram.h does."""
        self.minimum = min(self.minimum, value) if self.count else value
        self.maximum = max(self.maximum, value)
        self.count += 1
        self.sum += value
        self.buckets[min(_bucket_of(value), BUCKETS - 1)] += 1

    def merge(self, other: Histogram) -> None:
        """Add another distribution to this one, and its parts of the time.

        The time of a distribution without parts is the part ``unknown`` of one that has them.
        """
        if not other.count:
            return
        if self.why or other.why:
            parts = Counter(self.why or ({"unknown": self.sum} if self.count else {}))
            parts.update(other.why or {"unknown": other.sum})
            self.why = dict(parts)
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum)
        self.count += other.count
        self.sum += other.sum
        self.hits += other.hits
        self.buckets.update(other.buckets)
        self.units.update(other.units)

    @property
    def mean(self) -> float:
        """Return the mean, 0 when there are no values."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percentile: float) -> int:
        """Return the value that so many percent of all are not above, by nearest rank.

        99 and 0.99 are the same. It is the middle of the rank's bucket, never outside of minimum
        and maximum, and so within 3.2% of the exact one.
        """
        return self.at_rank(_rank(self.count, percentile))

    def at_rank(self, rank: int) -> int:
        """Return the value of a rank, the least value's being 1, as near as ``percentile``."""
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                low, high = bucket_bounds(bucket)
                return min(max((low + high) // 2, self.minimum), self.maximum)
        return self.maximum

    def octaves(self) -> dict[int, int]:
        """Return counts by power of two nanoseconds: key n holds 2**n up to 2**(n+1) - 1.

        Key 0 also holds zero, as in bcc's tables.
        """
        rows: Counter[int] = Counter()
        for bucket, count in self.buckets.items():
            rows[max(bucket_bounds(bucket)[0].bit_length() - 1, 0)] += count
        return rows

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (low, high, count) of the buckets that hold any, high exclusive, ascending."""
        for bucket in sorted(self.buckets):
            yield (*bucket_bounds(bucket), self.buckets[bucket])

    def to_dict(self) -> dict[str, float]:
        """Return a flat row for a table, times in nanoseconds."""
        return {
            "count": self.count,
            "sum_ns": self.sum,
            "mean_ns": self.mean,
            "min_ns": self.minimum,
            "max_ns": self.maximum,
            "p50_ns": self.percentile(0.5),
            "p90_ns": self.percentile(0.9),
            "p99_ns": self.percentile(0.99),
            "p999_ns": self.percentile(0.999),
        }

    def to_frame(self) -> Any:
        """Return the buckets as a DataFrame of pandas: low, high (exclusive) and count."""
        names = ("low_ns", "high_ns", "count")
        return frame_of((dict(zip(names, row, strict=True)) for row in self.ranges()), names)

    def _repr_html_(self) -> str:
        """Return a table of the counts by power of two nanoseconds, with bars, for notebooks."""
        octaves = self.octaves()
        most = max(octaves.values(), default=1)
        rows = "".join(
            f"<tr><td>{1 << power if power else 0:,} - {(2 << power) - 1:,}</td>"
            f"<td>{octaves.get(power, 0):,}</td><td><svg width='200' height='14'><rect height='14'"
            f" width='{round(200 * octaves.get(power, 0) / most, 1)}' fill='#69c'/></svg></td></tr>"
            for power in range(min(octaves, default=0), max(octaves, default=-1) + 1)
        )
        head = "<tr><th>ns</th><th>calls</th><th></th></tr>"
        return f"<table>{head}{rows}</table>"


def _in_a_line(of: Histogram | ValueHistogram) -> str:
    figures = {name: getattr(of, name) for name in ("count", "sum", "minimum", "maximum")}
    if of.count:
        figures |= {"p50": of.percentile(0.5), "p99": of.percentile(0.99)}
    shown = ", ".join(f"{name}={value}" for name, value in figures.items())
    return f"{type(of).__name__}({shown})"


@dataclass(repr=False)
class ValueHistogram:
    """A distribution of whole numbers, each side of zero with its own.

    ``below`` is that of negative values without their sign. ``unknown`` calls had a value that
    could not be read: they are in neither.
    """

    above: Histogram = field(default_factory=Histogram)
    below: Histogram = field(default_factory=Histogram)
    unknown: int = 0

    def __repr__(self) -> str:
        return _in_a_line(self)

    def merge(self, other: ValueHistogram) -> None:
        """Add another distribution to this one."""
        self.above.merge(other.above)
        self.below.merge(other.below)
        self.unknown += other.unknown

    @property
    def count(self) -> int:
        """Return how many values there are."""
        return self.above.count + self.below.count

    @property
    def sum(self) -> int:
        """Return their sum."""
        return self.above.sum - self.below.sum

    @property
    def mean(self) -> float:
        """Return the mean, 0 when there are no values."""
        return self.sum / self.count if self.count else 0.0

    @property
    def minimum(self) -> int:
        """Return the least value, 0 when there are none."""
        return -self.below.maximum if self.below.count else self.above.minimum

    @property
    def maximum(self) -> int:
        """Return the greatest value, 0 when there are none."""
        return (
            -self.below.minimum
            if self.below.count and not self.above.count
            else (self.above.maximum)
        )

    def percentile(self, percentile: float) -> int:
        """Return the value that so many percent of all are not above, as ``Histogram`` does."""
        rank = _rank(self.count, percentile)
        if rank <= self.below.count:
            # The largest without their sign come first.
            return -self.below.at_rank(self.below.count - rank + 1)
        return self.above.at_rank(rank - self.below.count)

    def octaves(self) -> list[tuple[int, int, int]]:
        """Return (low, high, count) by power of two from the first to the last, both included."""
        rows = []
        for sign, side in ((-1, self.below), (1, self.above)):
            found = side.octaves()
            # Zero has its own row beside negative values.
            for power in range(min(found, default=0), max(found, default=-1) + 1):
                low = 1 << power if power else int(sign < 0)
                bounds = low * sign, ((2 << power) - 1) * sign
                rows.append((min(bounds), max(bounds), found.get(power, 0)))
        return sorted(rows)

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (low, high, count) of the buckets that hold any, high exclusive, ascending."""
        for low, high, count in reversed(list(self.below.ranges())):
            yield 1 - high, 1 - low, count
        yield from self.above.ranges()
