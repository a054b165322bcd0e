# SPDX-License-Identifier: Apache-2.0
"""Requests as Go's execution traces, read back by Go's own tool."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.profiles.execution import (
    CREATED,
    ENDED,
    RUNNABLE,
    RUNNING,
    UNKNOWN,
    WAITING,
    Change,
    Recorded,
    Region,
    execution_trace,
)
from tests.requests.go_tool import ReadTrace, read_trace
from tests.toolchains import require

T0 = 1_700_000_000_000_000_000
#: Releases whose tool reads each file.
READERS = ("1.25", "1.26", "1.27")


def read_back(requests: list[Recorded], before: str = "", after: str = "") -> ReadTrace:
    """Return what the newest tool reads; the others must read as much."""
    content = execution_trace(requests, before, after)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.trace"
        path.write_bytes(content)
        found = [read_trace(require(minor), path) for minor in READERS]
    assert found[0] == found[1] == found[2]
    return found[-1]


HANDLE = Region(
    *(1, 11, "main.handle", T0, T0 + 30_000, "main.go", 50),
    begun=[("arguments", 'id=1, name="é\n"')],
    ended=[("results", "7")],
)
GET = Region(1, 11, "main.get", T0 + 1000, T0 + 2000, "main.go", 90)
JOB = Region(2, 12, "main.job", T0 + 5000, T0 + 20_000, "main.go", 70)
CHANGES = [
    Change(T0, 1, RUNNING, tid=11),
    Change(T0 + 6000, 1, WAITING, "chan receive"),
    Change(T0 + 19_000, 1, RUNNABLE, by=2),
    Change(T0 + 21_000, 1, RUNNING, tid=12),
    Change(T0 + 30_000, 1, UNKNOWN),
    Change(T0 + 4000, 2, CREATED, by=1),
    Change(T0 + 4500, 2, RUNNING, tid=12),
    Change(T0 + 20_500, 2, ENDED),
]


def test_a_request() -> None:
    found = read_back([Recorded(7, [HANDLE, GET, JOB], CHANGES)])
    (task,) = found.tasks.values()
    handle, get, job = found.regions
    assert (task.name, task.goid) == ("main.handle", 1)
    assert task.start < handle.start and handle.end < task.end
    assert [(one.name, one.goid, one.depth) for one in found.regions] == [
        ("main.handle", 1, 0),
        ("main.get", 1, 1),
        ("main.job", 2, 0),
    ]
    assert get.stack == ["main.get", "main.handle"]
    assert [one.end - one.start for one in found.regions] == [30_000, 1000, 15_000]
    assert (get.start - handle.start, job.start - handle.start) == (1000, 5000)
    assert [(one.what, one.message, one.goid) for one in found.logs] == [
        ("arguments", 'id=1, name="é\n"', 1),
        ("results", "7", 1),
    ]
    assert handle.start < found.logs[0].at < get.start and found.logs[1].at == handle.end - 1
    begin = handle.start
    assert [(one[0] - begin, *one[1:]) for one in found.states[2]] == [
        (4000, "NotExist", "Runnable", "", 1),
        (4500, "Runnable", "Running", "", -1),
        (20_500, "Running", "NotExist", "", 2),
    ]
    assert [(one[0] - begin, *one[1:]) for one in found.states[1]][3:6] == [
        (6000, "Running", "Waiting", "chan receive", 1),
        (19_000, "Waiting", "Runnable", "", 2),
        (21_000, "Runnable", "Running", "", -1),
    ]
    assert found.states[1][-1][3] == "not recorded"
    assert (found.threads[1], found.threads[2]) == ({11, 12}, {12})


def test_without_states_goroutines_run_while_they_are_in_calls() -> None:
    found = read_back([Recorded(7, [HANDLE, GET, JOB])])
    states = [one[2:4] for one in found.states[2]]
    assert states == [
        ("Waiting", ""),
        ("Runnable", ""),
        ("Running", ""),
        ("Waiting", "not recorded"),
    ]
    assert [one.end - one.start for one in found.regions] == [30_000, 1000, 15_000]


def test_nothing_is_a_file_too() -> None:
    assert not read_back([]).tasks


def test_what_is_missing_before_and_after_is_said() -> None:
    found = read_back([Recorded(7, [HANDLE]), Recorded(7, [JOB])], "here", "there")
    assert [one.message for one in found.logs if one.what == "gotrace"] == ["here", "there"]
    assert found.regions[0].end - found.regions[0].start == 30_000


def test_goroutines_of_two_processes_are_two() -> None:
    later = [one._replace(start=one.start + 10, end=one.end + 10) for one in (HANDLE, GET)]
    found = read_back([Recorded(7, [HANDLE, GET]), Recorded(8, later)])
    assert len({one.goid for one in found.regions}) == 2
    assert [one.end - one.start for one in found.regions if one.depth] == [1000, 1000]


def test_a_call_that_ends_after_the_one_around_it_is_no_region() -> None:
    late = GET._replace(end=T0 + 40_000)
    found = read_back([Recorded(7, [HANDLE, late])])
    assert [one.name for one in found.regions] == ["main.handle"]
    assert found.logs[1].message == "main.get: 39,000 ns, ends after main.handle"


def test_a_coroutine_runs_in_the_place_of_another() -> None:
    changes = [
        Change(T0, 1, RUNNING, tid=11),
        Change(T0 + 500, 1, WAITING, "coroutine"),
        Change(T0 + 900, 1, RUNNING, by=2, tid=11),
        Change(T0 + 30_000, 1, UNKNOWN),
        Change(T0 + 500, 2, RUNNING, by=1, tid=11),
        Change(T0 + 900, 2, WAITING, "coroutine"),
        Change(T0 + 1000, 2, UNKNOWN),
    ]
    found = read_back([Recorded(7, [HANDLE], changes)])
    assert found.threads[1] == {11} and 11 in found.threads[2]
    assert found.states[2][1][1:] == ("Waiting", "Runnable", "", 1)


def test_long_and_many_strings_and_stacks() -> None:
    regions = [HANDLE._replace(end=T0 + 10_000_000)]
    for number in range(300):
        begin = T0 + 1000 + number
        text = f"{number} " + "é" * 2000
        name, end = f"main.f{number}", T0 + 10_000_000 - 2 * number - 10
        regions.append(Region(1, 11, name, begin, end, "x.go", 1, [("arguments", text)]))
    found = read_back([Recorded(7, regions)])
    assert len(found.regions) == 301
    assert max(one.depth for one in found.regions) == 300
    assert max(len(one.stack) for one in found.regions) == 128
    assert all(one.message.endswith("é...") for one in found.logs[1:-1])


TIMES = st.integers(0, 60)
GOIDS = st.integers(1, 4)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    start, end = sorted((draw(TIMES), draw(TIMES)))
    logs = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=5)), max_size=2)
    name = draw(st.sampled_from(["", "main.f", "main.(*T).g", "é"]))
    return Region(
        *(draw(GOIDS), draw(st.integers(0, 3)), name, T0 + start, T0 + end, "x.go"),
        *(draw(st.integers(0, 3)), draw(logs), draw(logs)),
    )


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Return changes of some goroutines, which need not follow from one another."""
    found = []
    for goid in draw(st.lists(GOIDS, max_size=4)):
        times = sorted(draw(st.lists(TIMES, min_size=1, max_size=8)))
        states = st.sampled_from([CREATED, RUNNABLE, RUNNING, WAITING])
        for time in times[:-1]:
            reason = draw(st.sampled_from(["", "select", "IO wait"]))
            by, tid = draw(st.integers(0, 5)), draw(st.integers(0, 3))
            found.append(Change(T0 + time, goid, draw(states), reason, by, tid))
        found.append(Change(T0 + times[-1], goid, draw(st.sampled_from([UNKNOWN, ENDED]))))
    return found


REQUESTS = st.lists(
    st.builds(Recorded, st.integers(7, 8), st.lists(regions(), min_size=1, max_size=8), changes()),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(REQUESTS)
def test_whatever_was_recorded_is_a_trace(requests: list[Recorded]) -> None:
    """Also if states contradict each other and calls cross."""
    found = read_back(requests, "before", "after")
    assert sorted(task.name for task in found.tasks.values()) == sorted(
        one.regions[0].name for one in requests
    )
    apart = sum(one.what == "no region" for one in found.logs)
    made = Counter(one.name for one in found.regions)
    asked = Counter(region.name for one in requests for region in one.regions)
    assert made <= asked and asked.total() == made.total() + apart
