# SPDX-License-Identifier: Apache-2.0
"""Add up recordings of several hosts: what each command would have said of all of them together.

Recordings are what gofunccount, gofunclatency, gooffcpu, gooncpu and gostacks write with
``--json``. Counts, sums, histograms and parts are added, and percentiles are those of the histogram
that comes of it. What cannot be added is left out (percentiles without a histogram), or stays with
the name of its host (slow calls, goroutines by number). Whatever the order of recordings, and
however they are split, the result is the same. It is written in the form of a recording: so it can
be compared, and merged again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gotrace.changes import Source, rows_of
from gotrace.errors import GotraceError, UsageError
from gotrace.histogram import Histogram, ValueHistogram, bucket_between

__all__ = ["Host", "Merged", "merge", "times_of", "values_of"]

_Row = dict[str, Any]
_Json = Mapping[str, Any]
_How = Callable[[Any, Any], Any]

#: The percentiles of histograms, as the commands write them.
_MARKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


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


@dataclass
class Merged:
    """Recordings that are added up; it has their lines, which ``gotrace.diff`` takes, too.

    ``tool`` is the command that made them, None if no host had any result. ``options`` are what all
    of them were asked. ``rows`` are the results, and ``notices`` what was said of them by host.
    """

    by_host: bool = False
    tool: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    notices: list[_Row] = field(default_factory=list)
    ended: float | None = None
    _found: dict[str, dict[str, _Row]] = field(default_factory=dict)

    @property
    def units(self) -> float:
        """Return the seconds, or the dumps, of the host that was looked at for longest."""
        return max((host.units for host in self.hosts.values()), default=0.0)

    def rows(self, kind: str) -> list[_Row]:
        """Return the results of a kind, in the order in which the command has them."""
        how = _KINDS[kind]
        found = [_finished(how, row) for row in self._found.get(kind, {}).values()]
        found.sort(key=lambda row: (*how.order(row), _key(row)))
        if not how.add:
            return [row for row in found for _ in range(row.pop("count"))]
        beside = self._found.get("rest", {}).values() if kind == "histogram" else ()
        whole = sum(row.get(how.share, 0) for row in (*found, *beside))
        for row in found:
            if how.share in row:
                row["share"] = round(row[how.share] / whole, 6) if whole else 0.0
            if "rate" in row:
                row["rate"] = round(row["count"] / self.units, 3) if self.units > 0 else 0.0
            if how.is_head:
                row |= {"pid": None, "ts": self.ended, how.length: self.units}
            elif how.is_timed:
                row |= {"ts": self.ended, "interval_s": round(self.units, 6)}
            row |= dict.fromkeys(how.unknown)
        return found

    def objects(self) -> Iterator[_Row]:
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
            for kind in _TOOLS[self.tool]:
                yield from self._of_kind(kind)
        yield from sorted(self.notices, key=_key)

    def _of_kind(self, kind: str) -> Iterator[_Row]:
        rows = self.rows(kind)
        if kind == "wall_stack":
            return  # they follow their groups
        below: dict[Any, list[_Row]] = {}
        if kind == "wall_group":
            for row in self.rows("wall_stack"):
                below.setdefault((row.get("host"), row["group"]), []).append(row)
        for row in rows:
            yield row
            if kind == "wall_group":
                yield from below.get((row.get("host"), row["group"]), ())

    def __iter__(self) -> Iterator[str]:
        """Yield the lines of a recording."""
        for row in self.objects():
            yield json.dumps(row, separators=(",", ":"))

    def add(self, source: Source, host: str) -> None:
        """Add a recording, a file or lines, of a host. Raises GotraceError, UsageError."""
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else host
        try:
            _Reader(self, name, host).read(rows_of(source, name))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise GotraceError(f"{name}: not what --json writes: {error!r}") from error


def merge(*sources: Source, hosts: Sequence[str] | None = None, by_host: bool = False) -> Merged:
    """Return recordings added up: files, or their lines.

    ``hosts`` are the names of their hosts, those of the files if it is not given. ``by_host``: rows
    of each host stay apart. Raises GotraceError if one cannot be read, UsageError if they are not
    of one command and one question.
    """
    merged = Merged(by_host)
    for source, host in zip(sources, hosts or _names(sources), strict=True):
        merged.add(source, host)
    return merged


def _names(sources: Sequence[Source]) -> list[str]:
    """Return what hosts are called if nothing but their files is known."""
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
    runs: list[float] = field(default_factory=list)
    intervals: set[tuple[float, float]] = field(default_factory=set)
    #: Whether it was merged before, and so says whose its rows are.
    is_merged: bool = False

    def read(self, rows: Iterable[_Json]) -> None:
        for row in rows:
            kind = str(row.get("kind"))
            if kind == "merged":
                self._take_head(row)
            elif kind in _KINDS:
                self._add(kind, row)
            elif kind in _NOTICES:
                notice = {**row, "host": row.get("host", self.host)}
                self.merged.notices.append(notice)
            elif kind == "attached":
                self._agree({key: row[key] for key in _OPTIONS if key in row})
            elif kind == "detached":
                if row.get("seconds"):
                    self.runs.append(row["seconds"])
            elif kind in _REFUSED:
                raise UsageError(f"{self.name}: {_REFUSED[kind]}")
        if not self.is_merged:
            host = self.merged.hosts.setdefault(self.host, Host())
            if self.runs and self.intervals and self.intervals <= host.intervals:
                raise UsageError(f"{self.name} is there already: give each recording once")
            host.runs += self.runs
            host.intervals |= self.intervals

    def _take_head(self, row: _Json) -> None:
        self.is_merged = True
        if self.merged.by_host and not row["by_host"]:
            if len(row["hosts"]) != 1:
                raise UsageError(f"{self.name}: its hosts are added up: record it with --by-host")
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
        if tool not in _TOOLS:
            raise ValueError(f"of {tool}")
        if self.merged.tool not in (None, tool):
            raise UsageError(
                f"{self.name} is of {tool}, and others are of {self.merged.tool}: merge recordings"
                " of one command"
            )
        self.merged.tool = tool

    def _agree(self, options: _Json) -> None:
        """Take note of what was asked, the same of all recordings."""
        for key, value in options.items():
            known = self.merged.options.setdefault(key, value)
            if known != value:
                raise UsageError(
                    f"{self.name} has {key} {json.dumps(value)}, and others have"
                    f" {json.dumps(known)}: merge recordings of one question"
                )

    def _end(self, ended: float | None) -> None:
        if ended is not None:
            if not isinstance(ended, int | float):
                raise TypeError(f"ts: {ended!r}")
            self.merged.ended = max(ended, self.merged.ended or ended)

    def _add(self, kind: str, row: _Json) -> None:
        how = _KINDS[kind]
        self._be_of(how.tool)
        self._agree(how.asked(row))
        ended = row.get("ts")
        self._end(ended)
        if ended is not None and not self.is_merged:
            length = row.get("interval_s", row.get("seconds", 1.0))
            if how.is_head or how.is_timed:
                self.intervals.add((ended, length))
        made: _Row = {"kind": kind}
        if self.merged.by_host or how.keeps_host(row):
            made["host"] = row.get("host", self.host)
        made |= {name: row[name] for name in how.key if name in row}
        key = _key(made)
        for name in (*how.add, *how.once):
            if name in row:
                made[name] = row[name]
                _check(name, row[name])
        if kind in _EACH:  # one row is one of them
            made["count"] = row.get("count", 1)
            _check("count", made["count"])
        if kind == "goroutine":
            made["longest_ns"] = row.get("longest_ns", row["waiting_ns"])
        if "rate" in row:
            made["rate"] = 0.0
        for low, high, _ in made.get("buckets", ()):
            bucket_between(*((1 - high, 1 - low) if high <= 0 else (low, high)))
        how.order(_finished(how, made))  # fails now if anything is missing
        found = self.merged._found.setdefault(kind, {})
        if key in found:
            _add_up(how, found[key], made)
        else:
            found[key] = made


def _check(name: str, value: Any) -> None:
    """Raise ValueError if what is added up has a number that no command writes."""
    if name == "why":
        for part in value["parts"].values():
            _check("ns", part["ns"])
            _check("calls", part["calls"])
    elif name == "buckets":
        for _, _, count in value:
            _check("count", count)
    elif isinstance(value, Mapping):
        for one in value.values():
            _check(name, one)
    elif value is not None and name != "returns":
        is_signed = name in ("sum", "min", "max")
        most = _MOST_SUM if is_signed or name.endswith("ns") or name == "others" else _MOST_COUNT
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not (-most if is_signed else 0) <= value <= most:
            raise ValueError(f"{name}: {str(value)[:40]}")


#: A number of the kernel, and what any number of hosts may have waited together, in ns.
_MOST_COUNT, _MOST_SUM = (1 << 64) - 1, (1 << 96) - 1


def _key(row: _Json) -> str:
    return json.dumps(row, sort_keys=True)


def _add_up(how: _Kind, mine: _Row, other: _Row) -> None:
    """Add a row to one that is alike; what either has not is left out."""
    if not how.add:  # of those that are kept one by one, how many there are
        mine["count"] += other["count"]
        return
    if "count" in mine:  # a histogram of no values has no least one
        for name in ("min", "max", "min_ns", "max_ns"):
            if name in mine and name in other:
                if not other["count"]:
                    other[name] = mine[name]
                elif not mine["count"]:
                    mine[name] = other[name]
    for name in (*how.add, *how.once):
        if name in mine and name in other and name in how.add:
            mine[name] = how.add[name](mine[name], other[name])
        else:
            mine.pop(name, None)
    if "rate" not in other:
        mine.pop("rate", None)


def _sum(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else mine + other


def _least(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else min(mine, other)


def _most(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else max(mine, other)


def _longest(mine: int | None, other: int | None) -> int | None:
    return max((one for one in (mine, other) if one is not None), default=None)


def _sums(mine: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: mine.get(name, 0) + other.get(name, 0) for name in {**mine, **other}}


def _buckets(mine: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[list[int]]:
    found = {(low, high): count for low, high, count in mine}
    for low, high, count in other:
        found[low, high] = found.get((low, high), 0) + count
    return [[low, high, count] for (low, high), count in sorted(found.items())]


def _why(mine: _Json, other: _Json) -> _Row:
    """Add parts up; what bands of both would be is not known."""
    parts = {**mine["parts"], **other["parts"]}
    none = {"ns": 0, "calls": 0}
    return {
        "parts": {
            name: _sums(mine["parts"].get(name, none), other["parts"].get(name, none))
            for name in parts
        }
    }


def _returns(mine: str, other: str) -> str:
    return mine if mine == other else "both"


_TIMES: dict[str, _How] = {
    **dict.fromkeys(("count", "sum_ns", "probe_hits", "probe_ns", "sum", "unknown"), _sum),
    **dict.fromkeys(("min_ns", "min"), _least),
    **dict.fromkeys(("max_ns", "max"), _most),
    "buckets": _buckets,
    "why": _why,
    "returns": _returns,
}
_FUNCTION = ("func", "by", "program")


def _nothing(row: _Json) -> dict[str, Any]:
    return {}


def _never(row: _Json) -> bool:
    return False


def _asked_calls(row: _Json) -> dict[str, Any]:
    """Return what calls were grouped by, and what was measured of them."""
    found = {"of": row["of"], "unit": row["unit"]} if "of" in row else {}
    by = row.get("by", {})
    return found | ({"by": list(by)} if by is not None else {})


def _by_size(*names: str) -> Callable[[_Json], tuple[int, ...]]:
    """Return an order in which the row with the largest numbers comes first."""
    return lambda row: tuple(-row[name] for name in names)


class _Kind(NamedTuple):
    """How rows of a kind are added up.

    ``key`` are the fields that make rows alike, and ``add`` says how others are added. Those of
    ``once`` are known only of what one row alone has. Without ``add``, rows are kept. ``share`` is
    what shares are of, ``length`` what the length is called, and ``unknown`` are fields that a
    recording has and a sum has not.
    """

    tool: str
    key: tuple[str, ...]
    add: Mapping[str, _How]
    order: Callable[[_Json], tuple[Any, ...]]
    asked: Callable[[_Json], dict[str, Any]] = _nothing
    keeps_host: Callable[[_Json], bool] = _never
    once: tuple[str, ...] = ()
    share: str = ""
    is_head: bool = False
    is_timed: bool = False
    length: str = "seconds"
    unknown: tuple[str, ...] = ()


def _shown(row: _Json) -> tuple[Any, ...]:
    """Return the order of histograms: the one with most of the time last."""
    return row.get("sum_ns", row.get("count", 0)), row["count"]


_KINDS: dict[str, _Kind] = {
    "count": _Kind(
        "gofunccount",
        _FUNCTION,
        {"count": _sum},
        lambda row: (row["count"],),
        asked=_asked_calls,
        share="count",
        is_timed=True,
    ),
    "histogram": _Kind(
        "gofunclatency",
        (*_FUNCTION, "of", "unit", "pid", "goid", "goroutine"),
        _TIMES,
        _shown,
        asked=_asked_calls,
        keeps_host=lambda row: "goid" in row,
        share="sum_ns",
        is_timed=True,
    ),
    "rest": _Kind(
        "gofunclatency",
        ("func", "program"),
        dict.fromkeys(("goroutines", "count", "sum_ns", "unnamed", "probe_hits", "probe_ns"), _sum),
        _by_size("sum_ns"),
        is_timed=True,
    ),
    "slow": _Kind(
        "gofunclatency",
        (
            *("ts", "pid", "tid", "goid", "func", "duration_ns", "probe_hits", "probe_ns"),
            *("why", "program"),
        ),
        {},
        lambda row: (row["ts"],),
        keeps_host=lambda row: True,
    ),
    "waits": _Kind(
        "gooffcpu",
        (),
        {"count": _sum, "delay_ns": _sum, "others": _sums},
        lambda row: (),
        is_head=True,
    ),
    "wait": _Kind(
        "gooffcpu",
        ("state", "reason", "open", "woken_by", "waker", "stack", "waker_stack"),
        {"count": _sum, "delay_ns": _sum},
        _by_size("delay_ns", "count"),
        asked=lambda row: {"state": row["state"]},
    ),
    "syscall": _Kind(
        "gooffcpu",
        ("name",),
        {"calls": _sum, "total_ns": _sum, "errors": _sums, "buckets": _buckets},
        _by_size("total_ns", "calls"),
        once=("p50_ns", "p99_ns"),
    ),
    "cpu": _Kind(
        "gooncpu",
        ("period_ns",),
        dict.fromkeys(("samples", "cpu_ns", "clock_ns", "others"), _sum),
        lambda row: (),
        asked=lambda row: {"period_ns": row["period_ns"]},
        is_head=True,
    ),
    "cpu_function": _Kind(
        "gooncpu",
        ("func",),
        {"self_ns": _sum, "total_ns": _sum},
        _by_size("self_ns", "total_ns"),
    ),
    "cpu_stack": _Kind(
        "gooncpu",
        ("work", "group", "by", "stack"),
        {"samples": _sum, "cpu_ns": _sum},
        _by_size("samples"),
    ),
    "wall": _Kind("gooncpu", (), {"wall_ns": _sum, "others": _sums}, lambda row: (), is_head=True),
    "wall_group": _Kind(
        "gooncpu",
        ("group",),
        dict.fromkeys(("wall_ns", "running_ns", "runnable_ns", "syscall_ns", "waiting_ns"), _sum),
        _by_size("wall_ns"),
    ),
    "wall_stack": _Kind(
        "gooncpu",
        ("group", "state", "reason", "stack"),
        {"count": _sum, "ns": _sum},
        _by_size("ns", "count"),
    ),
    "dump": _Kind(
        "gostacks",
        (),
        dict.fromkeys(("goroutines", "shown", "moved"), _sum),
        lambda row: (),
        is_head=True,
        length="dumps",
    ),
    "goroutine": _Kind(
        "gostacks",
        (
            *("state", "reason", "awaits", "created_by", "labels", "locked_to_thread", "system"),
            *("moved", "whole", "stack"),
        ),
        {"count": _sum, "waiting_ns": _least, "longest_ns": _longest},
        _by_size("count"),
        unknown=("goid", "address", "parent"),
    ),
}
#: The kinds of each command's rows, in the order in which it writes them.
_TOOLS: dict[str, list[str]] = {}
for _name, _kind in _KINDS.items():
    _TOOLS.setdefault(_kind.tool, []).append(_name)
#: Notices that stay, with the names of their hosts.
_NOTICES = ("lost", "warning", "summary")
#: What ``attached`` says of the question.
_OPTIONS = ("patterns", "state", "hertz")
#: Kinds of which each row is one: a call, a goroutine.
_EACH = ("slow", "goroutine")
_REFUSED = {
    "call": "calls of gotrace are not added up: read them one after the other",
    "request": "requests of gotrace are not added up: read them one after the other",
    "function": "a list of functions is no recording: leave out -l",
    "program": "what gotop shows is not added up",
}


def _finished(how: _Kind, row: _Row) -> _Row:
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
        done |= {mark + end: found.percentile(fraction) for mark, fraction in _MARKS.items()}
    if "why" in done and how.add:
        parts = done["why"]["parts"]
        ranked = sorted(parts.items(), key=lambda item: (-item[1]["ns"], item[0]))
        done["why"] = {**done["why"], "parts": dict(ranked)}
    if "errors" in done:
        done["errors"] = dict(sorted(done["errors"].items()))
    return done


def times_of(row: _Json) -> Histogram:
    """Return the histogram of a row of times. Raises KeyError, ValueError."""
    found = Histogram(
        row["count"], row["sum_ns"], row["min_ns"], row["max_ns"], hits=row.get("probe_hits", 0)
    )
    for low, high, count in row["buckets"]:
        found.buckets[bucket_between(low, high)] = count
    return found


def values_of(row: _Json) -> ValueHistogram:
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
