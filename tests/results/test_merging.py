# SPDX-License-Identifier: Apache-2.0
"""Add recordings up: whatever their order, and however they are split."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gotrace
from gotrace.errors import GotraceError, UsageError, speak_as_command
from gotrace.histogram import (
    WIDE_BUCKETS,
    Histogram,
    ValueHistogram,
    bucket_between,
    bucket_bounds,
)
from gotrace.report.merged import merged_profile, write_merged
from gotrace.report.output import JsonOutput, TextOutput
from gotrace.results.kinds import KINDS
from gotrace.results.merging import Merged, times_of, values_of

Row = dict[str, Any]

_COUNTS = st.integers(0, 1 << 40)
_NAMES = st.sampled_from(["main.a", "main.b", "net/http.(*T).f"])
_STACKS = st.lists(_NAMES, max_size=3).map(
    lambda names: [{"func": name, "file": "/x.go", "line": 3, "inlined": False} for name in names]
)
_ENDS = st.sampled_from([100.1, 101.1, 102.25, 103.5])


#: The kinds of rows that are drawn.
_DRAWN: set[str] = set()


def rows(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    _DRAWN.add("values" if "of" in fields else kind)
    return st.fixed_dictionaries({"kind": st.just(kind), **fields})


def timed(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    """Return rows that say when they were; an end has one length."""
    return rows(kind, **fields).flatmap(
        lambda row: _ENDS.map(lambda ended: {**row, "ts": ended, "interval_s": ended - 99})
    )


@st.composite
def times(draw: st.DrawFn, /, **fields: st.SearchStrategy[Any]) -> Row:
    """Return the row of a histogram that is true of some calls."""
    durations = draw(st.lists(st.integers(0, 1 << 42), min_size=1, max_size=6))
    buckets = Counter(map(_bucket, durations))
    why = {"blocked: select": {"ns": draw(_COUNTS), "calls": 1}, "running": {"ns": 5, "calls": 2}}
    row = {
        "count": len(durations),
        "sum_ns": sum(durations),
        "min_ns": min(durations),
        "max_ns": max(durations),
        "buckets": [[*bucket_bounds(one), buckets[one]] for one in sorted(buckets)],
        "returns": draw(st.sampled_from(["ret", "landing"])),
        "probe_hits": draw(_COUNTS),
        "probe_ns": draw(st.none() | _COUNTS),
        "why": {"parts": why, "bands": [draw(_COUNTS)]},
    }
    return {**row, **draw(timed("histogram", **fields))}


def _bucket(value: int) -> int:
    return next(n for n in range(WIDE_BUCKETS) if bucket_bounds(n)[1] > value)


_OTHERS = st.fixed_dictionaries({"count": _COUNTS, "delay_ns": _COUNTS})
_STATES = st.sampled_from(["waiting"])
_WORK = st.sampled_from(["program", "scheduler"])
_SYSCALL = rows(
    "syscall",
    name=st.sampled_from(["read", "futex"]),
    calls=_COUNTS,
    errors=st.dictionaries(st.sampled_from(["ENOENT", "EAGAIN"]), _COUNTS),
    total_ns=_COUNTS,
    buckets=st.sampled_from([[], [[5, 6, 1]], [[4, 5, 2], [5, 6, 3]]]),
)
_SPENT = st.fixed_dictionaries({"count": _COUNTS, "ns": _COUNTS})
_TIMES = ("wall", "running", "runnable", "syscall", "waiting")
_IN_USE = dict.fromkeys(
    ("samples", "heap_bytes", "objects", "alloc_bytes", "alloc_objects"), _COUNTS
)
#: The rows of each command.
_TOOLS: dict[str, st.SearchStrategy[Row]] = {
    "gofunccount": timed("count", func=_NAMES, count=_COUNTS, share=st.just(0.5)),
    "gofunccount --by": timed(
        "count", func=_NAMES, by=st.fixed_dictionaries({"k": st.integers(0, 2)}), count=_COUNTS
    ),
    "gofunclatency --why": times(func=_NAMES),
    "gofunclatency -g": times(
        func=_NAMES, pid=st.just(7), goid=st.integers(1, 3), goroutine=st.just("goroutine 1 [x]")
    )
    | timed("rest", func=_NAMES, goroutines=_COUNTS, count=_COUNTS, sum_ns=_COUNTS, unnamed=_COUNTS)
    | rows(
        "slow",
        ts=_ENDS,
        pid=st.just(7),
        tid=st.just(7),
        goid=st.integers(1, 3),
        func=_NAMES,
        duration_ns=_COUNTS,
    ),
    "gooffcpu": rows(
        "wait",
        state=_STATES,
        reason=st.sampled_from(["select", None]),
        count=_COUNTS,
        delay_ns=_COUNTS,
        max_ns=_COUNTS,
        open=st.booleans(),
        woken_by=st.none(),
        waker=st.none() | _NAMES,
        stack=_STACKS,
    )
    | rows("waits", ts=_ENDS, seconds=st.just(1.5), count=_COUNTS, delay_ns=_COUNTS, others=_OTHERS)
    | _SYSCALL,
    "goalloc": rows(
        "alloc",
        ts=_ENDS,
        seconds=st.just(2.5),
        samples=_COUNTS,
        alloc_bytes=_COUNTS,
        method=st.sampled_from(("samples", "spans")),
        sampled_bytes=st.none() | _COUNTS,
        counter_bytes=st.none() | _COUNTS,
        others_bytes=_COUNTS,
        others=_COUNTS,
    )
    | rows("alloc_function", func=_NAMES, self_bytes=_COUNTS, total_bytes=_COUNTS)
    | rows(
        "alloc_stack",
        work=_WORK,
        group=_NAMES,
        samples=_COUNTS,
        alloc_bytes=_COUNTS,
        objects=_COUNTS,
        stack=_STACKS,
    ),
    "goalloc --heap": rows("heap", ts=_ENDS, profile_rate=st.just(512), **_IN_USE)
    | rows("heap_function", func=_NAMES, self_bytes=_COUNTS, total_bytes=_COUNTS)
    | rows("heap_stack", size=st.just(64), stack=_STACKS, **_IN_USE),
    "gooncpu": rows(
        "cpu",
        ts=_ENDS,
        seconds=st.just(2.5),
        period_ns=st.just(10),
        samples=_COUNTS,
        cpu_ns=_COUNTS,
        clock_ns=st.none() | _COUNTS,
        others=_COUNTS,
    )
    | rows("cpu_function", func=_NAMES, self_ns=_COUNTS, total_ns=_COUNTS)
    | rows("cpu_stack", work=_WORK, group=_NAMES, samples=_COUNTS, cpu_ns=_COUNTS, stack=_STACKS),
    "gooncpu --off": rows("wall", ts=_ENDS, seconds=st.just(2.5), wall_ns=_COUNTS, others=_SPENT)
    | rows("wall_group", group=_NAMES, **{f"{name}_ns": _COUNTS for name in _TIMES}),
    "gostacks": rows(
        "dump", pid=st.just(5), ts=_ENDS, goroutines=_COUNTS, shown=_COUNTS, moved=_COUNTS
    )
    | rows(
        "goroutine",
        goid=_COUNTS,
        state=_STATES,
        reason=_NAMES,
        waiting_ns=st.none() | _COUNTS,
        labels=st.dictionaries(_NAMES, _NAMES, max_size=1),
        stack=_STACKS,
    ),
}
_NOTICES = rows("lost", message=st.just("3 calls"), what=st.just("x")) | rows(
    "detached", message=st.just("Detaching..."), seconds=st.sampled_from([0.1, 0.2, 0.7])
)


def test_sums_of_each_kind_are_tried() -> None:
    # Histograms are made of single calls below, and stacks of all time are written with groups.
    assert KINDS.keys() - _DRAWN == {"histogram", "values", "wall_stack"}


def lines(found: Sequence[Row]) -> list[str]:
    return [json.dumps(row) for row in found]


def objects(merged: Merged) -> list[Row]:
    """Return the lines, whatever the order of fields is."""
    return [json.loads(line) for line in merged]


@pytest.mark.parametrize("tool", _TOOLS)
@given(st.data())
def test_a_sum_is_that_of_its_parts(tool: str, data: st.DataObject) -> None:
    """Recordings of three hosts, cut anywhere, merged in any order and in any groups."""
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
    pieces = [
        (host, row)
        for host in hosts
        for row in data.draw(st.lists(_TOOLS[tool] | _NOTICES, max_size=6))
    ]
    by_host = data.draw(st.booleans())

    def whole(found: Sequence[tuple[str, Row]]) -> Merged:
        """Merge a recording of each host."""
        names = sorted({host for host, _ in found})
        each = [lines([row for host, row in found if host == name]) for name in names]
        return gotrace.merge(*each, hosts=names, by_host=by_host)

    expected = objects(whole(pieces))
    shuffled = data.draw(st.permutations(pieces))
    cut = data.draw(st.integers(0, len(pieces)))
    groups = [whole(shuffled[:cut]), whole(shuffled[cut:])]
    assert objects(gotrace.merge(*groups, by_host=by_host)) == expected
    single = [[json.dumps(row)] for _, row in shuffled]
    names = [host for host, _ in shuffled]
    assert objects(gotrace.merge(*single, hosts=names, by_host=by_host)) == expected
    if by_host:  # what was kept apart can still be added up
        apart = gotrace.merge(whole(pieces))
        each = [lines([row for host, row in pieces if host == name]) for name in set(names)]
        assert objects(apart) == objects(gotrace.merge(*each, hosts=list(set(names))))


@given(st.lists(st.lists(st.integers(0, 1 << 42), min_size=1), min_size=1, max_size=5))
def test_percentiles_are_those_of_all_calls(hosts: list[list[int]]) -> None:
    recordings, every = [], Histogram()
    for durations in hosts:
        found = Histogram(len(durations), sum(durations), min(durations), max(durations))
        found.buckets.update(map(_bucket, durations))
        every.merge(found)
        row = {"kind": "histogram", "func": "main.f", "ts": 1.0, "interval_s": 1.0}
        numbers = {"count": found.count, "sum_ns": found.sum, "buckets": list(found.ranges())}
        ends = {"min_ns": found.minimum, "max_ns": found.maximum, "p99_ns": 0}
        recordings.append([json.dumps({**row, **numbers, **ends})])
    (row,) = gotrace.merge(*recordings).rows("histogram")
    assert times_of(row) == every
    assert row["p50_ns"] == every.percentile(0.5)
    assert row["p999_ns"] == every.percentile(0.999)
    assert row["share"] == (1.0 if every.sum else 0.0)


@given(st.lists(st.integers(-(1 << 60), 1 << 60), min_size=1))
def test_histograms_of_values_come_back(values: list[int]) -> None:
    sides = ValueHistogram()
    for value in values:
        side = sides.below if value < 0 else sides.above
        one = Histogram(1, abs(value), abs(value), abs(value), Counter([_bucket(abs(value))]))
        side.merge(one)
    row = {"count": len(values), "sum": sides.sum, "min": min(values), "max": max(values)}
    found = values_of({**row, "buckets": list(sides.ranges()), "unknown": 3})
    assert list(found.ranges()) == list(sides.ranges())
    assert (found.count, found.sum, found.minimum, found.maximum) == (
        *(len(values), sum(values), min(values), max(values)),
    )
    for fraction in (0.01, 0.5, 0.99, 1.0):
        assert found.percentile(fraction) == pytest.approx(sides.percentile(fraction), rel=0.07)


def test_each_bucket_is_known_by_its_bounds() -> None:
    for bucket in range(WIDE_BUCKETS):
        assert bucket_between(*bucket_bounds(bucket)) == bucket
    for bounds in ((3, 3), (33, 35), (-1, 0), (1 << 70, 1 << 71), (0, 2)):
        with pytest.raises(ValueError, match="not the bounds"):
            bucket_between(*bounds)


def count(function: str, number: int, **fields: Any) -> Row:
    row = {"kind": "count", "func": function, "count": number, "ts": 5.0, "interval_s": 2.0}
    return {**row, **fields}


def test_a_sum_is_a_recording(tmp_path: Path) -> None:
    for host, number in (("web01", 10), ("web02", 30)):
        with gzip.open(tmp_path / f"{host}.ndjson.gz", "wt") as file:
            file.write(json.dumps(count("main.f", number)) + "\n")
            file.write('{"kind":"detached","message":"","seconds":2.0}\n')
    files = sorted(tmp_path.iterdir())
    merged = gotrace.merge(*files)
    assert merged.rows("count") == [
        {
            "kind": "count",
            "func": "main.f",
            "count": 40,
            "share": 1.0,
            "ts": 5.0,
            "interval_s": 2.0,
        }
    ]
    assert {name: host.units for name, host in merged.hosts.items()} == {"web01": 2.0, "web02": 2.0}
    found = gotrace.diff(gotrace.merge(files[0]), merged)
    assert (found.changes[0].before, found.changes[0].after) == (5.0, 20.0)
    apart = gotrace.diff(gotrace.merge(files[0], by_host=True), gotrace.merge(*files, by_host=True))
    assert {change.key.name: change.change for change in apart.changes} == {
        "web01: main.f": 0.0,
        "web02: main.f": 15.0,
    }


def test_a_recording_counts_once(tmp_path: Path) -> None:
    """Also if it is there packed as well."""
    rows = [count("main.f", 7), {"kind": "detached", "message": "", "seconds": 2.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    plain, packed = tmp_path / "web01.ndjson", tmp_path / "web01.ndjson.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for files in ((plain, plain), (plain, packed)):
        with pytest.raises(UsageError, match="is there already: give each recording once"):
            gotrace.merge(*files)


def test_all_time_and_cpu_time_are_two_questions() -> None:
    """Their rows would stand in one table, and one of them alone in a flame graph."""
    speak_as_command()
    when = {"pid": 1, "ts": 1.0, "seconds": 1.0}
    cpu = {"kind": "cpu", **when, "period_ns": 10, "samples": 1, "cpu_ns": 10, "others": 0}
    wall = {"kind": "wall", **when, "wall_ns": 10, "others": {"count": 0, "ns": 0}}
    with pytest.raises(UsageError, match="has --off, others have no --off"):
        gotrace.merge(lines([cpu | {"clock_ns": 10}]), lines([wall]))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (count("main.f", 1, by={"k": 2}), "has --by k, others have --by key"),
        ({"kind": "attached", "patterns": ["main.g"]}, "has patterns main.g, others"),
        ({"kind": "cpu_function", "func": "main.f", "self_ns": 1, "total_ns": 1}, "is of gooncpu"),
        ({"kind": "call", "func": "main.f"}, "calls of gotrace are not added up"),
        ({"kind": "function", "func": "main.f"}, "a list of functions is no recording"),
    ],
)
def test_other_questions_are_refused(other: Row, reason: str) -> None:
    speak_as_command()
    one = [{"kind": "attached", "patterns": ["main.f"]}, count("main.f", 1, by={"key": 1})]
    with pytest.raises(UsageError, match=reason) as caught:
        gotrace.merge(lines(one), lines([other]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"kind":"count","func":"f","count":"7","ts":1,"interval_s":1}',
        '{"kind":"count","func":"f","ts":"x","count":1}',
        '{"kind":"histogram","func":"f","count":1,"buckets":[[3,5,1]]}',
        '{"kind":"goroutine"}',
        '{"kind":"count","func":"f"}',
        '{"kind":"merged"}',
        '{"kind":"merged","of":"rm","by_host":false,"hosts":[]}',
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(GotraceError):
        list(gotrace.merge([line], hosts=["web01"]))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kind": "warning"}, "warning without a message"),
        ({"kind": "lost", "message": 1}, "lost without a message"),
        ({"kind": "warning", "message": "\ud800"}, "warning with what JSON cannot have"),
        ({"kind": "warning", "message": "a", "x": float("nan")}, "what JSON cannot have"),
    ],
)
def test_other_notices_are_refused(row: Row, reason: str) -> None:
    with pytest.raises(GotraceError, match=reason):
        gotrace.merge([json.dumps(row)])


def test_cpu_time_by_label_is_a_table_by_label() -> None:
    sums = {"samples": 9, "cpu_ns": 90, "clock_ns": None, "others": 0}
    head = {"kind": "cpu", "ts": 5.0, "seconds": 1.0, "period_ns": 10, **sums}
    row = {"kind": "cpu_stack", "work": "program", "group": "main goroutine", "stack": []}
    known = [(4, "a"), (3, None)]  # --top has left the others out
    samples = [{**row, "by": {"u": value}, "samples": n, "cpu_ns": n * 10} for n, value in known]
    out = io.StringIO()
    write_merged(TextOutput(out, out), gotrace.merge(lines([head, *samples])), None)
    assert out.getvalue().splitlines()[2:] == [
        "90ns of CPU time of 1 recording: 0.00 CPUs, 9 samples",
        "",
        "      TIME   SHARE  u",
        '      40ns   44.4%  "a"',
        "      30ns   33.3%  main goroutine",
    ]


def _run(began: float, pid: int = 7) -> list[Row]:
    begun = {"kind": "attached", "message": "", "pids": [pid], "ts": began}
    return [begun, count("f", 1), {"kind": "detached", "seconds": 5.0}]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (_run(10), _run(12), "at the same time: if it is one process, its calls count twice"),
        (_run(20), _run(10), "b and a are of process 7, one after the other"),
        (_run(10), _run(12, pid=8), None),
        (_run(10, pid=1), _run(12, pid=1), None),
        (_run(10)[:2], _run(12), "a has no end: the run was cut short"),
    ],
)
def test_runs_of_one_process_and_cut_ones_are_said(
    a: list[Row], b: list[Row], said: str | None
) -> None:
    merged = gotrace.merge(lines(a), lines(b), hosts=["a", "b"])
    texts = [notice["message"] for notice in merged.notices]
    assert (said in texts[0] and len(texts) == 1) if said else not texts
    out = io.StringIO()
    write_merged(TextOutput(out, out), merged, None)
    assert out.getvalue().partition("FUNC")[0].count("\n") == 1 + len(texts)


def test_added_hosts_cannot_be_taken_apart() -> None:
    merged = gotrace.merge(lines([count("f", 1)]), lines([count("f", 2)]))
    with pytest.raises(UsageError, match="its hosts are added up: merge it with by_host=True"):
        gotrace.merge(merged, by_host=True)


@pytest.mark.parametrize("count", [-5, 1 << 64, 10**400, 1.5, True, "7", float("nan")])
def test_counts_are_whole_numbers_of_the_kernel(count: object) -> None:
    histogram = {"func": "main.a", "count": 1, "sum_ns": 1, "min_ns": 1, "max_ns": 1}
    for row in (
        {"kind": "count", "func": "main.a", "count": count},
        {"kind": "histogram", **histogram, "buckets": [[1, 2, count]]},
        {"kind": "histogram", **histogram, "sum_ns": -1 if count == -5 else 10**400, "buckets": []},
        {"kind": "syscall", "name": "read", "calls": 1, "total_ns": 1, "errors": {"EIO": count}},
    ):
        with pytest.raises(GotraceError, match="not what --json writes"):
            gotrace.merge([json.dumps(row)])
    gotrace.merge([json.dumps({"kind": "count", "func": "main.a", "count": (1 << 64) - 1})])


#: Values that no command writes in most places, or in none.
_ODD: list[Any] = [
    *(None, True, -1, 1.5, 1 << 64, 10**400, float("nan"), float("inf"), "", "7", "\ud800"),
    *([], {}, [[]], [None], {"func": 3}, [[1, 2, 1]], [{"func": "f"}], {"parts": {"x": 1}}),
]


def _strict(text: str) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    for line in text.splitlines():
        json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize("tool", _TOOLS)
@given(st.data())
def test_an_odd_row_is_refused_or_harms_nothing(tool: str, data: st.DataObject) -> None:
    """Whatever a value becomes: a line of one host, or a table, JSON and a comparison."""
    found = data.draw(st.lists(_TOOLS[tool] | _NOTICES, min_size=1, max_size=4))
    row = data.draw(st.sampled_from(found))
    name = data.draw(st.sampled_from(sorted(row)))
    odd = data.draw(st.sampled_from(_ODD))
    row |= {name: {**row[name], "x": odd} if isinstance(row[name], dict) else odd}
    merged = Merged(data.draw(st.booleans()))
    try:
        merged.add(lines(found), "web01", is_live=True)
    except GotraceError as error:
        assert "\n" not in str(error)
        return
    text, written = io.StringIO(), io.StringIO()
    write_merged(TextOutput(text, text, False), merged, None)
    write_merged(JsonOutput(written), merged, 2)
    merged_profile(merged)
    text.getvalue().encode()
    _strict(written.getvalue())
    again = gotrace.merge(merged, merged)
    assert list(again.hosts) == ["web01"]
    with suppress(GotraceError):  # no results, or of no length
        gotrace.diff(merged, again)


def test_a_live_host_speaks_for_itself() -> None:
    """It is not believed to be another, or to have asked others."""
    odd: list[Row] = [
        {"kind": "merged", "of": "rm", "hosts": 3},
        {"kind": "slow", "host": "db1", "ts": 1.0, "pid": 1, "tid": 1, "goid": 1, "func": "f"},
        {"kind": "lost", "host": "db1", "message": "1 call is missing"},
    ]
    odd[1]["duration_ns"] = 5
    merged = Merged()
    merged.add(lines(odd), "web01", is_live=True)
    assert list(merged.hosts) == ["web01"]
    assert {row["host"] for row in merged.objects() if "host" in row} == {"web01"}


def test_histograms_of_times_and_of_values_are_two_questions() -> None:
    row = {"kind": "histogram", "func": "main.f", "count": 1, "buckets": [[5, 6, 1]]}
    times = {**row, "sum_ns": 5, "min_ns": 5, "max_ns": 5}
    values = {**row, "of": "n", "unit": None, "sum": 5, "min": 5, "max": 5, "unknown": 0}
    for pair in ((times, values), (values, times)):
        with pytest.raises(UsageError, match="of one question"):
            gotrace.merge(*([json.dumps(one)] for one in pair))
