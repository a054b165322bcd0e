# SPDX-License-Identifier: Apache-2.0
"""Compare two recordings: what changed from one to the other, the largest change first.

Recordings are what goalloc, gofunccount, gofunclatency, gooffcpu, gooncpu and gostacks write with
``--json``. Each row of theirs becomes an amount under a key, and one mechanism compares these.

Amounts are compared per second, those of goroutines per dump. Noise is what the intervals of the
recordings show, or if there are not enough of them, the changes of all other rows. A row has also
changed if more of its calls, or fewer, are slow. Changes within their noise follow all others, the
least like noise first.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gotrace.arguments import held_to_annotations
from gotrace.errors import GotraceError, UsageError
from gotrace.histogram import fraction_of
from gotrace.records import dataclass, field, replace
from gotrace.results.kinds import (
    ATTACHED,
    DETACHED,
    HEADS,
    KINDS,
    MERGED,
    SAMPLED,
    agree,
    compared,
    kind_of,
)
from gotrace.results.lines import Source, rows_of
from gotrace.results.rows import Json, Key, Row, RowKind, checked
from gotrace.results.tails import Tail, changed_tail
from gotrace.tables import Table
from gotrace.text import counted

#: Kinds whose stacks are of functions at work.
_BY_FUNCTION = {f"{name}_stack" for name in SAMPLED}
#: Standard errors that are taken for noise: of a thousand rows none changes by more.
_SURE = 4.0
#: Of a table of changes.
_COLUMNS = ("name", "change", "noise", "before", "after", "stack")
#: Intervals of a recording from which noise is known, and rows if it is known from these.
_LEAST_INTERVALS, _LEAST_ROWS = 4, 5
#: Intervals show less noise than chance by luck, or since calls are regular: chance weighs as much
#: as so many intervals. With 3, chance alone takes one row in 2,500 beyond its noise at most.
_PRIOR = 3
_MAD = 1.4826  # of a normal distribution, its standard deviation is so many times as large


@dataclass(slots=True)
class Amount:
    """The sum of a recording's rows with one key: values of intervals are in ``each``.

    ``total`` is of time in ns, or of another value; None where only ``count`` is recorded.
    """

    count: int = 0
    total: int | None = None
    buckets: Counter[tuple[int, int]] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    each: Counter[float] = field(default_factory=Counter)
    #: Whether there may have been more: inlined calls that are not counted.
    is_partial: bool = False

    @property
    def value(self) -> int:
        """Return the total, or the count if there is no total: the value that is compared."""
        return self.count if self.total is None else self.total

    def add(self, row: Json, count: str, total: str | None = None) -> None:
        """Add a row, whose number and whose value are called so."""
        self.count += row.get(count, 1)
        self.is_partial |= bool(row.get("uncounted_places"))
        if total is not None:
            self.total = (self.total or 0) + row[total]
        for low, high, number in row.get("buckets", ()):
            self.buckets[low, high] += number
        for part, known in row.get("why", {}).get("parts", {}).items():
            self.parts[part] += known["ns"]

    def merge(self, other: Amount) -> None:
        """Add the rows of another key, without what their values are spread over."""
        self.count += other.count
        self.total = (self.total or 0) + (other.total or 0)
        self.is_partial |= other.is_partial
        self.each.update(other.each)

    def percentile(self, percentile: float) -> float | None:
        """Return the value that so many percent are not above, None if that is not known.

        99 and 0.99 are the same. Raises UsageError beyond 100.
        """
        rank = max(1, math.ceil(self.buckets.total() * fraction_of(percentile)))
        seen = 0
        for low, high in sorted(self.buckets):
            seen += self.buckets[low, high]
            if seen >= rank:
                return (low + high) / 2
        return None

    def spread(self) -> float:
        """Return the variance that the sum has if calls come independently of one another."""
        if self.total is None:
            return self.count
        if self.buckets:
            return sum(((a + b) / 2) ** 2 * count for (a, b), count in self.buckets.items())
        return 2 * self.total**2 / self.count if self.count else 0.0


@dataclass(slots=True)
class Rates:
    """A file of results; ``units`` are its seconds, or of goroutines its dumps."""

    name: str
    kind: str = ""
    unit: str = ""  # of amounts that are not numbers of calls: ns, bytes
    units: float = 0.0
    amounts: dict[Key, Amount] = field(default_factory=dict)
    #: What it was asked, and of which functions if it says that.
    asked: Row = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    #: Lengths of intervals by when they ended.
    intervals: dict[float, float] = field(default_factory=dict)
    #: The parts that are missing from it, in words.
    lost: list[str] = field(default_factory=list)
    #: Whether it has the beginning of a run.
    is_run: bool = False

    @classmethod
    def read(cls, source: Source, name: str = "the recording") -> Rates:
        """Read a file or lines. Raises GotraceError."""
        if isinstance(source, str | os.PathLike):
            name = os.fspath(source)
        found = cls(name)
        try:
            found._read(rows_of(source, name))
        except ValueError as error:
            raise GotraceError(f"{name}: not what --json writes: {error}") from error
        if not found.kind:
            if found.is_run:
                raise GotraceError(f"{name}: has no results: nothing was seen in that run")
            tools = ", ".join(sorted({kind.tool for kind in KINDS.values()}))
            raise GotraceError(f"{name}: has no results: those of {tools} are compared")
        if found.units <= 0:
            found.units = sum(found.intervals.values())
        if found.units <= 0:
            raise GotraceError(f"{name}: does not say how long it is: record it again")
        return found

    def _read(self, rows: Iterator[Json]) -> None:
        when, units, has_end = 0.0, 0.0, True
        for row in rows:
            name = row.get("kind")
            if name == "lost":
                self.lost.append(str(row.get("message")))
            elif name in ("attached", "merged"):
                asked = checked(MERGED, row, "merged")["options"] if name == "merged" else row
                asked = checked(ATTACHED, asked, str(name))
                self.patterns.update(asked.get("patterns", ()))
                self._ask(asked)
                has_end = name == "merged"
                self.is_run = True
            elif name == "detached":  # of each run, if there are several
                has_end = True
                units += checked(DETACHED, row, "detached").get("seconds", 0.0)
            elif (kind := kind_of(row)) is None:
                continue
            elif kind.is_head:
                self._set_kind(KINDS[HEADS[kind.name]])
                given = kind.checked(row)
                self._ask(kind.asked(given))
                when = given["ts"]
                self.intervals[when] = given.get(kind.length, 1.0)
            elif kind.named is not None:
                self._set_kind(KINDS["histogram"] if name == "rest" else kind)
                given = kind.checked(row)
                self.unit = given.get("unit") or "" if "of" in given else kind.unit
                key = kind.named(given)
                self._ask(kind.asked(given))
                if "host" in row:
                    key = key._replace(name=f"{row['host']}: {key.name}")
                amount = self.amounts.setdefault(key, Amount())
                ended = given.get("ts", when)
                self.intervals.setdefault(ended, given.get("interval_s", 1.0))
                before = amount.value
                amount.add(given, *kind.weights(given))
                amount.each[ended] += amount.value - before
        if not has_end:
            self.lost.append("it has no end: the run was cut short")
        self.units = units
        if self.kind in HEADS.values():
            self.units = sum(self.intervals.values())

    def _ask(self, asked: Json) -> None:
        agree(self.asked, compared(asked), self.name, "and before", "compare")

    def _set_kind(self, kind: RowKind) -> None:
        if self.kind not in ("", kind.name):
            tools = f"{self.tool} and {kind.tool}"
            raise GotraceError(f"{self.name}: has results of {tools}")
        self.kind = kind.name

    @property
    def tool(self) -> str:
        """Return the command that has written it."""
        return KINDS[self.kind].tool

    @property
    def events(self) -> str:
        """Return the noun for the counted events."""
        is_of_calls = self.asked.get("state") == "syscall"
        return "calls" if is_of_calls else KINDS[self.kind].events

    @property
    def per(self) -> str:
        """Return the unit that rates are per: "second" or "dump"."""
        return KINDS[self.kind].length[:-1]

    def rate(self, amount: Amount) -> float:
        """Return an amount per second, or per dump."""
        return amount.value / self.units

    def variance(self, amount: Amount) -> float | None:
        """Return the variance of the rate, from its intervals; None if they are too few."""
        count = len(self.intervals)
        length = sum(self.intervals.values())
        if count < _LEAST_INTERVALS or not length:
            return None
        rate = amount.each.total() / length
        squares = sum(
            (amount.each[ended] - rate * one) ** 2 for ended, one in self.intervals.items()
        )
        others = count - 1
        seen = squares / length / length * count / others
        weighed = (others * seen + _PRIOR * self.chance(amount)) / (others + _PRIOR)
        return max(seen, weighed)

    def clusters(self, amount: Amount) -> float:
        """Return how many calls come together, from the intervals: 1 if these do not show it."""
        seen, chance = self.variance(amount), self.chance(amount)
        return max(1.0, seen / chance) if seen and chance else 1.0

    def chance(self, amount: Amount) -> float:
        """Return the variance of the rate that chance alone makes."""
        if self.per == "dump":
            return 0.0
        return amount.spread() / self.units / self.units


@dataclass(frozen=True, slots=True)
class Change:
    """How a row changed: ``before`` and ``after`` are rates, ``noise`` is how exact the change is.

    ``parts`` are the changes of what the time went into, by part, the largest first. ``whole`` is
    the change of a function with what it calls. ``tail`` is given if it has certainly changed.
    """

    key: Key
    before: float
    after: float
    noise: float
    first: Amount
    second: Amount
    parts: Mapping[str, float] = field(default_factory=dict)
    whole: Change | None = None
    tail: Tail | None = None

    @property
    def change(self) -> float:
        """Return how much more there is per second, or per dump."""
        return self.after - self.before

    @property
    def times_noise(self) -> float:
        """Return how many times its noise the change is."""
        return abs(self.change) / self.noise if self.noise else 0.0

    @property
    def certain(self) -> float:
        """Return how much of the change is beyond its noise."""
        return max(0.0, abs(self.change) - self.noise)

    @property
    def is_certain(self) -> bool:
        """Return whether chance has not made it: of the sum, or of the tail."""
        return self.certain > 0 or self.tail is not None


@dataclass(frozen=True)
class Diff(Table):
    """Changes between two recordings, the largest first; those within their noise are last.

    ``functions`` are those of each function's own CPU time, if it is CPU time, and of system calls
    by their names, if they are recorded by these.
    """

    a: Rates
    b: Rates
    changes: Sequence[Change]
    functions: Sequence[Change] = ()

    def __repr__(self) -> str:
        """Return how many changes there are: a notebook shows this."""
        return f"<gotrace.Diff: {counted('{:,} change{s}', len(self.changes))} per {self.per}>"

    @property
    def per(self) -> str:
        """Return the unit that rates are per: "second" or "dump"."""
        return self.a.per

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield the changes for tables, the largest first."""
        for one in self.changes:
            numbers = (one.change, one.noise, one.before, one.after)
            named = dict(zip(_COLUMNS[1:5], numbers, strict=True))
            yield {"name": one.key.name, **named, "stack": ";".join(reversed(one.key.stack))}

    def table(self) -> tuple[Sequence[str], Iterator[Sequence[object]]]:
        """Return the columns, and the changes, the largest first."""
        return _COLUMNS, ([row[name] for name in _COLUMNS] for row in self.rows())


@held_to_annotations
def diff(a: Source, b: Source) -> Diff:
    """Return the changes between two recordings: files, or their lines.

    Raises GotraceError if one cannot be read, UsageError if they were asked different questions.
    """
    first, second = Rates.read(a, "the first"), Rates.read(b, "the second")
    if first.tool != second.tool:
        text = f"{first.name} is of {first.tool} and {second.name} of {second.tool}"
        raise UsageError(f"{text}: compare two of one command")
    agree(dict(second.asked), first.asked, first.name, second.name, "compare")
    functions: list[Change] = []
    if first.kind in _BY_FUNCTION:
        own, whole = (
            _changes(first, second, *(_by_function(run, is_whole) for run in (first, second)))
            for is_whole in (False, True)
        )
        wholes = {one.key: one for one in whole}
        functions = [replace(one, whole=wholes[one.key]) for one in own]
    elif first.asked.get("names"):
        functions = _changes(first, second, _by_name(first), _by_name(second))
    return Diff(first, second, _changes(first, second, first.amounts, second.amounts), functions)


def _by_name(rates: Rates) -> dict[Key, Amount]:
    """Return the amounts of system calls by their names."""
    found: dict[Key, Amount] = {}
    for key, amount in rates.amounts.items():
        found.setdefault(Key(key.name), Amount(total=0)).merge(amount)
    return found


def _by_function(rates: Rates, is_whole: bool) -> dict[Key, Amount]:
    """Return the amounts of functions: their own, or with what they call."""
    found: dict[Key, Amount] = {}
    for key, amount in rates.amounts.items():
        for at, function in enumerate(dict.fromkeys(key.stack)):
            one = found.setdefault(Key(function), Amount(total=0))
            if is_whole or at == 0:
                one.merge(amount)
    return found


def _changes(
    first: Rates, second: Rates, before_of: Mapping[Key, Amount], after_of: Mapping[Key, Amount]
) -> list[Change]:
    """Return the changes of amounts, the largest first."""
    none = Amount()
    keys = {**before_of, **after_of}
    pairs = {k: (before_of.get(k, none), after_of.get(k, none)) for k in keys}
    common = _common_noise(first, second, list(pairs.values()))
    changes = []
    for key, (one, other) in pairs.items():
        before, after = first.rate(one), second.rate(other)
        seen = first.variance(one), second.variance(other)
        if seen[0] is None or seen[1] is None:
            chance = first.chance(one) + second.chance(other)
            spread = chance + (common * min(before, after)) ** 2
        else:
            spread = seen[0] + seen[1]
        parts = {
            part: other.parts[part] / second.units - one.parts[part] / first.units
            for part in {**one.parts, **other.parts}
        }
        ranked = dict(sorted(parts.items(), key=lambda item: -abs(item[1])))
        noise = _SURE * math.sqrt(spread)
        clusters = max(first.clusters(one), second.clusters(other))
        tail = changed_tail(one.buckets, other.buckets, len(pairs), clusters)
        changes.append(Change(key, before, after, noise, one, other, ranked, tail=tail))
    changes.sort(key=_order)
    return changes


def _order(one: Change) -> tuple[bool, float, float, Key]:
    """Return where a change is among others: those within noise are last, least like it first."""
    size = abs(one.change)
    if one.is_certain:
        return (False, -size, 0.0, one.key)
    return (True, -one.times_noise, -size, one.key)


def _common_noise(first: Rates, second: Rates, pairs: Sequence[tuple[Amount, Amount]]) -> float:
    """Return by what part rows usually change beyond what chance makes, from those in both."""
    ratios: list[float] = []
    chances: list[float] = []
    for one, other in pairs:
        if one.value > 0 and other.value > 0:
            before, after = first.rate(one), second.rate(other)
            ratios.append(math.log(after / before))
            chance = first.chance(one) / before**2 + second.chance(other) / after**2
            chances.append(chance)
    if len(ratios) < _LEAST_ROWS:
        return 0.0
    middle = statistics.median(ratios)
    beyond = [
        max(0.0, (ratio - middle) ** 2 - chance)
        for ratio, chance in zip(ratios, chances, strict=True)
    ]
    return _MAD * math.sqrt(statistics.median(beyond))
