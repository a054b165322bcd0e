# SPDX-License-Identifier: Apache-2.0
"""Add up recordings of several hosts: the results of each command on all of them together.

Recordings are what goalloc, gofunccount, gofunclatency, gooffcpu, gooncpu and gostacks write with
``--json``. Counts, sums, histograms and parts are added, and percentiles are those of the histogram
that comes of it. Figures that cannot be added are left out (percentiles without a histogram), or
stay with the name of their host (slow calls, goroutines by number). Whatever the order of
recordings, and however they are split, the result is the same. It is written in the form of a
recording: so it can be compared, and merged again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gotrace.arguments import held_to_annotations
from gotrace.errors import GotraceError, UsageError, said
from gotrace.histogram import MARKS, Histogram, ValueHistogram, bucket_between
from gotrace.records import dataclass, field
from gotrace.results.kinds import (
    ATTACHED,
    DETACHED,
    KINDS,
    MERGED,
    NOTICES,
    TOOLS,
    agree,
    is_notice,
    kind_of,
)
from gotrace.results.lines import Recordable, Source, line_of, rows_of
from gotrace.results.rows import (
    Json,
    Row,
    RowKind,
    checked,
    each,
    is_count,
    is_number,
    with_kinds,
)
from gotrace.text import counted


@dataclass
class Host:
    """Where results come from, and how long that was looked at.

    ``runs`` are the lengths of whole runs. ``intervals`` are all that is known of others: when each
    ended, and its length; of goroutines there is one for each dump.
    """

    runs: list[float] = field(default_factory=list)
    intervals: set[tuple[float, float]] = field(default_factory=set)

    @property
    def units(self) -> float:
        """Return the seconds, or the dumps."""
        return math.fsum(self.runs or sorted(length for _, length in self.intervals))


@dataclass(frozen=True)
class _Span:
    """A run that was added: its recording and host, its processes, and when it was."""

    name: str
    host: str
    pids: frozenset[int]
    began: float
    ended: float

    def beside(self, other: _Span) -> str | None:
        """Return why sums may be wrong if another run is of the same process, None if not."""
        pids = (self.pids & other.pids) - {1}  # of each container
        is_once = self.ended <= other.began or other.ended <= self.began
        if not pids or (is_once and self.host == other.host):
            return None
        first, second = (one.name for one in sorted((self, other), key=lambda one: one.began))
        text = f"{first} and {second} are of process {min(pids)}"
        if is_once:
            both = f"cat {first} {second} > both.ndjson"
            return f"{text}, one after the other: if it is one process, join them first ({both})"
        return f"{text} at the same time: if it is one process, its calls count twice"


@dataclass
class Merged(Recordable):
    """Recordings that are added up; it has their lines, which ``gotrace.diff`` takes, too.

    ``tool`` is the command that made them, None if no host had any result. ``options`` are what all
    of them were asked. ``rows`` are the results, and ``notices`` what was said of them by host.
    """

    by_host: bool = False
    #: Whether hosts are named by files, several of which may be of one host.
    are_files: bool = False
    tool: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    notices: list[Row] = field(default_factory=list)
    ended: float | None = None
    _found: dict[str, dict[str, Row]] = field(default_factory=dict)
    _read: list[_Span] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return how much there is: a notebook shows this."""
        rows = sum(map(len, self._found.values()))
        return f"<gotrace.Merged: {self.tool}, {self.places}, {counted('{:,} row{s}', rows)}>"

    @property
    def places(self) -> str:
        """Return how many hosts there are, or recordings if no more is known."""
        what = "{:,} recording{s}" if self.are_files else "{:,} host{s}"
        return counted(what, len(self.hosts))

    @property
    def units(self) -> float:
        """Return the seconds, or the dumps, of the host that was looked at for longest."""
        return max((host.units for host in self.hosts.values()), default=0.0)

    def rows(self, kind: str) -> list[Row]:
        """Return the results of a kind, in the order in which the command has them."""
        if kind not in KINDS:
            raise UsageError(f"rows({kind!r}): give one of {', '.join(map(repr, KINDS))}")
        how = KINDS["values" if kind == "histogram" and self.options.get("of") else kind]
        found = [_finished(how, row) for row in self._found.get(kind, {}).values()]
        found.sort(key=lambda row: (*how.rank(row), _key(row)))
        if not how.sums:
            return [dict(row) for row in found for _ in range(row.pop("count"))]
        beside = self._found.get("rest", {}).values() if kind == "histogram" else ()
        whole = sum(row.get(how.shared, 0) for row in (*found, *beside))
        for row in found:
            if how.shared in row:
                row["share"] = round(row[how.shared] / whole, 6) if whole else 0.0
            if "rate" in row:
                row["rate"] = round(row["count"] / self.units, 3) if self.units > 0 else 0.0
            if how.is_head:
                row |= {"pid": None, "ts": self.ended, how.length: self.units}
            elif how.is_timed:
                row |= {"ts": self.ended, "interval_s": round(self.units, 6)}
            row |= dict.fromkeys(how.unknown)
        return found

    def objects(self) -> Iterator[Row]:
        """Yield everything as the objects of a recording."""
        yield {
            "kind": "merged",
            "of": self.tool,
            "by_host": self.by_host,
            "options": dict(sorted(self.options.items())),
            "seconds": self.units,
            "ts": self.ended,
            "hosts": [
                {"host": name, "runs": sorted(host.runs), "intervals": sorted(host.intervals)}
                for name, host in sorted(self.hosts.items())
            ],
        }
        if self.tool is not None:
            for kind in TOOLS[self.tool]:
                yield from self._of_kind(kind)
        yield from sorted(self.notices, key=_key)

    def _of_kind(self, kind: str) -> Iterator[Row]:
        if KINDS[kind].below:
            return
        names = ["host", *(one.name for one in KINDS[kind].keys)]

        def place(row: Row) -> str:
            return _key({name: row.get(name) for name in names})

        below: dict[str, list[Row]] = {}
        for how in KINDS.values():
            for row in self.rows(how.name) if how.below == kind else ():
                below.setdefault(place(row), []).append(row)
        for row in self.rows(kind):
            yield row
            yield from below.get(place(row), ()) if below else ()

    def __iter__(self) -> Iterator[str]:
        """Yield the lines of a recording."""
        return self.lines()

    def lines(self) -> Iterator[str]:
        """Yield the lines of a recording, which is merged already."""
        return map(line_of, self.objects())

    def add(self, source: Source, host: str, is_live: bool = False) -> None:
        """Add a recording, a file or lines, of a host. Raises GotraceError, UsageError.

        ``is_live``: they come from that host itself, and are not believed to be another's.
        """
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else host
        try:
            _Reader(self, name, host, is_live).read(rows_of(source, name))
        except ValueError as error:
            raise GotraceError(f"{name}: not what --json writes: {error}") from error


@held_to_annotations
def merge(*sources: Source, hosts: Iterable[str] | None = None, by_host: bool = False) -> Merged:
    """Return recordings added up: files, or their lines.

    ``hosts`` are the names of their hosts, those of the files if it is not given. ``by_host``: rows
    of each host stay apart. Raises GotraceError if one cannot be read, UsageError if they are not
    of one command and one question.
    """
    merged = Merged(by_host, are_files=hosts is None)
    names = _names(sources) if hosts is None else [*hosts]
    if len(names) != len(sources):
        raise UsageError(f"hosts are {len(names)} and recordings {len(sources)}: name each")
    for source, host in zip(sources, names, strict=True):
        merged.add(source, host)
    return merged


def _names(sources: Sequence[Source]) -> list[str]:
    """Return names for hosts of which nothing but a file is known."""
    paths = [
        os.fspath(source).removesuffix(".gz").removesuffix(".ndjson").removesuffix(".json")
        if isinstance(source, str | os.PathLike)
        else f"recording {number}"
        for number, source in enumerate(sources, 1)
    ]
    short = [os.path.basename(path) for path in paths]
    return short if len(set(short)) == len(set(paths)) else paths


@dataclass
class _Reader:
    """One recording on its way into others."""

    merged: Merged
    name: str
    host: str
    is_live: bool
    runs: list[float] = field(default_factory=list)
    intervals: set[tuple[float, float]] = field(default_factory=set)
    #: Whether it was merged before, and so says whose its rows are.
    is_merged: bool = False
    #: The run that has begun and not ended: its processes, and when it began.
    begun: tuple[frozenset[int], float] | None = None

    def read(self, rows: Iterable[Json]) -> None:
        for row in rows:
            kind = str(row.get("kind"))
            if kind == "merged":
                if not self.is_live:
                    self._take_head(checked(MERGED, row, "merged"))
            elif (how := kind_of(row)) is not None:
                self._add(how, row)
            elif kind in NOTICES:
                if not is_notice(row):
                    what = "with what JSON cannot have, such as NaN or half a character"
                    if not isinstance(row.get("message"), str):
                        what = "without a message"
                    raise ValueError(f"{kind} {what}")
                self.merged.notices.append({**row, "host": self._host_of(row)})
            elif kind == "attached":
                self._agree(checked(ATTACHED, row, "attached"))
                pids = row.get("pids", [row.get("pid")])
                self.begun = frozenset(pids if each(is_count)(pids) else ()), row.get("ts", 0.0)
            elif kind == "detached":
                if seconds := checked(DETACHED, row, "detached").get("seconds"):
                    self.runs.append(seconds)
                    self._end_run(seconds)
                self.begun = None
            elif kind in _REFUSED:
                raise UsageError(f"{self.name}: {_REFUSED[kind]}")
        if self.begun and not self.is_live:
            self._warn(f"{self.name} has no end: the run was cut short")
        if not self.is_merged:
            host = self.merged.hosts.setdefault(self.host, Host())
            if self.runs and self.intervals and self.intervals <= host.intervals:
                raise UsageError(f"{self.name} is there already: give each recording once")
            host.runs += self.runs
            host.intervals |= self.intervals

    def _end_run(self, seconds: float) -> None:
        """Take note of a run, and whether it is of a process that another one is of."""
        pids, began = self.begun or (frozenset(), 0.0)
        if self.is_live or not is_number(began):
            return
        one = _Span(self.name, self.host, pids, began, began + seconds)
        for other in self.merged._read:
            if text := one.beside(other):
                self._warn(text)
        self.merged._read.append(one)

    def _warn(self, text: str) -> None:
        self.merged.notices.append({"kind": "warning", "message": text, "host": self.host})

    def _host_of(self, row: Json) -> str:
        """Return the host of a row: recordings that were merged before say it."""
        host = row.get("host", self.host) if not self.is_live else self.host
        if not isinstance(host, str):
            raise ValueError(f"host: {json.dumps(host)[:40]}")
        return host

    def _take_head(self, row: Json) -> None:
        self.is_merged, self.merged.are_files = True, False
        if self.merged.by_host and not row["by_host"]:
            if len(row["hosts"]) != 1:
                how = said("record it with --by-host", "merge it with by_host=True")
                raise UsageError(f"{self.name}: its hosts are added up: {how}")
            self.host = row["hosts"][0]["host"]
        if row["of"] is not None:
            self._be_of(row["of"])
        self._agree(row["options"])
        self._end(row["ts"])
        for one in row["hosts"]:
            host = self.merged.hosts.setdefault(one["host"], Host())
            host.runs += one["runs"]
            host.intervals |= {(ended, length) for ended, length in one["intervals"]}

    def _be_of(self, tool: str) -> None:
        if self.merged.tool not in (None, tool):
            raise UsageError(
                f"{self.name} is of {tool}, and others are of {self.merged.tool}: merge recordings"
                " of one command"
            )
        self.merged.tool = tool

    def _agree(self, options: Json) -> None:
        """Take note of what was asked, the same of all recordings."""
        agree(self.merged.options, options, self.name, "others have", "merge")

    def _end(self, ended: float | None) -> None:
        if ended is not None:
            self.merged.ended = max(ended, self.merged.ended or ended)

    def _add(self, how: RowKind, row: Json) -> None:
        kind = row["kind"]
        given = how.checked(row)
        self._be_of(how.tool)
        found = self.merged._found.setdefault(kind, {})
        self._agree(how.asked(given))
        ended: float | None = given.get("ts")
        self._end(ended)
        if ended is not None and not self.is_merged and (how.is_head or how.is_timed):
            name = "interval_s" if "interval_s" in given else "seconds"
            length: float = given.get(name, 1.0)
            self.intervals.add((ended, length))
        made: Row = {"kind": kind}
        if self.merged.by_host or how.keeps_host(given):
            made["host"] = self._host_of(row)
        made |= {one.name: given[one.name] for one in how.keys if one.name in given}
        key = _key({**made, "by": with_kinds(made["by"])} if made.get("by") else made)
        made |= {one.name: given[one.name] for one in how.sums if one.name in given}
        for name, value in how.filled(given).items():
            made.setdefault(name, value)
        if not how.sums:  # one row is one of them
            made["count"] = 1
        if "rate" in row:
            made["rate"] = 0.0
        if key in found:
            if "by" in made:  # of a kind of errors the same example, whatever the order
                found[key]["by"] = min(found[key]["by"], made["by"], key=_key)
            _add_up(how, found[key], made)
        else:
            found[key] = made


def _key(row: Json) -> str:
    return json.dumps(row, sort_keys=True)


def _add_up(how: RowKind, mine: Row, other: Row) -> None:
    """Add a row to one that is alike; what either has not is left out."""
    if not how.sums:  # of those that are kept one by one, how many there are
        mine["count"] += other["count"]
        return
    if "count" in mine:  # a histogram of no values has no least one
        for name in ("min", "max", "min_ns", "max_ns"):
            if name in mine and name in other:
                if not other["count"]:
                    other[name] = mine[name]
                elif not mine["count"]:
                    mine[name] = other[name]
    for one in how.sums:
        if one.how is not None and one.name in mine and one.name in other:
            mine[one.name] = one.how(mine[one.name], other[one.name])
        else:
            mine.pop(one.name, None)
    if "rate" not in other:
        mine.pop("rate", None)


#: Kinds that cannot be added up, and why.
_REFUSED = {
    "call": "calls of gotrace are not added up: read them one after the other",
    "request": "requests of gotrace are not added up: read them one after the other",
    "function": "a list of functions is no recording",
    "program": "what gotop shows is not added up",
}


def _finished(how: RowKind, row: Row) -> Row:
    """Return a row as it is written: with what follows from the sums."""
    done = dict(row)
    if "buckets" in done and "total_ns" in done:
        times = Histogram(maximum=1 << 63)
        for low, high, count in done["buckets"]:
            times.buckets[bucket_between(low, high)] = count
            times.count += count
        done |= {"p50_ns": times.percentile(0.5), "p99_ns": times.percentile(0.99)}
    elif "buckets" in done:
        end = "" if "of" in done else "_ns"
        found = times_of(done) if end else values_of(done)
        done |= {mark + end: found.percentile(fraction) for mark, fraction in MARKS.items()}
    if "why" in done and how.sums:
        parts = done["why"]["parts"]
        ranked = sorted(parts.items(), key=lambda item: (-item[1]["ns"], item[0]))
        done["why"] = {**done["why"], "parts": dict(ranked)}
    if "errors" in done:
        done["errors"] = dict(sorted(done["errors"].items()))
    return done


def times_of(row: Json) -> Histogram:
    """Return the histogram of a row of times. Raises KeyError, ValueError."""
    found = Histogram(
        row["count"], row["sum_ns"], row["min_ns"], row["max_ns"], hits=row.get("probe_hits", 0)
    )
    for low, high, count in row["buckets"]:
        found.buckets[bucket_between(low, high)] = count
    return found


def values_of(row: Json) -> ValueHistogram:
    """Return the histogram of a row of values, which may be negative.

    The least value of one side of zero is that of its first bucket if both sides have any, and the
    sums of both are known together only. Raises KeyError, ValueError.
    """
    above, below = Histogram(), Histogram()
    for low, high, count in row["buckets"]:
        side = below if high <= 0 else above
        bounds = (1 - high, 1 - low) if high <= 0 else (low, high)
        side.buckets[bucket_between(*bounds)] = count
        side.count += count
        side.minimum = min(side.minimum, bounds[0]) if side.count > count else bounds[0]
        side.maximum = max(side.maximum, bounds[1] - 1)
    if below.count:
        below.maximum = -row["min"]
    else:
        above.minimum = row["min"]
    if above.count:
        above.maximum = row["max"]
    else:
        below.minimum = -row["max"]
    above.sum = max(row["sum"], 0)
    below.sum = max(-row["sum"], 0)
    return ValueHistogram(above, below, row.get("unknown", 0))
