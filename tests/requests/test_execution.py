# SPDX-License-Identifier: Apache-2.0
"""Requests as Go's execution traces, read back by Go's own tool."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.calls import Call
from gotrace.errors import GotraceError
from gotrace.profiles import execution
from gotrace.profiles.execution import (
    CREATED,
    ENDED,
    RUNNABLE,
    RUNNING,
    UNKNOWN,
    WAITING,
    ExecutionFile,
    Recorded,
    Region,
    StateChange,
    execution_trace,
)
from gotrace.requests.model import Node, Request, load, save
from tests.requests.go_tool import ReadTrace, parsed, read_trace
from tests.toolchains import FIXTURES, build, newest, require
from tests.tools.harness import Fixture, Running, tool

T0 = 1_700_000_000_000_000_000
#: That in words.
DAY = "2023-11-14 22:13:20.000000000 UTC"
#: Releases whose tool reads each file.
READERS = ("1.25", "1.26", "1.27")


def read_all(path: Path) -> ReadTrace:
    """Return what the newest tool reads of a file; the others must take it."""
    for minor in READERS[:-1]:
        parsed(require(minor), path)
    return read_trace(require(READERS[-1]), path)


def read_back(requests: list[Recorded], before: str = "", after: str = "") -> ReadTrace:
    """Return what the newest tool reads of some requests."""
    content = execution_trace(requests, before, after)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.trace"
        path.write_bytes(content)
        return read_all(path)


HANDLE = Region(
    *(1, 11, "main.handle", T0, T0 + 30_000, "main.go", 50),
    begun=[("arguments", 'id=1, name="é\n"')],
    ended=[("results", "7")],
)
GET = Region(1, 11, "main.get", T0 + 1000, T0 + 2000, "main.go", 90)
JOB = Region(2, 12, "main.job", T0 + 5000, T0 + 20_000, "main.go", 70)
CHANGES = [
    StateChange(T0, 1, RUNNING, tid=11),
    StateChange(T0 + 6000, 1, WAITING, "chan receive"),
    StateChange(T0 + 19_000, 1, RUNNABLE, by=2),
    StateChange(T0 + 21_000, 1, RUNNING, tid=12),
    StateChange(T0 + 30_000, 1, UNKNOWN),
    StateChange(T0 + 4000, 2, CREATED, by=1),
    StateChange(T0 + 4500, 2, RUNNING, tid=12),
    StateChange(T0 + 20_500, 2, ENDED),
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
        ("gotrace", DAY, 1),
        ("arguments", 'id=1, name="é\n"', 1),
        ("results", "7", 1),
    ]
    assert handle.start < found.logs[1].at < get.start and found.logs[2].at == handle.end - 1
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


def test_all_tools_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(execution_trace([Recorded(7, [HANDLE, GET, JOB], CHANGES)]))
    found = [read_trace(require(minor), path) for minor in READERS]
    assert found[0] == found[1] == found[2]


def test_nothing_is_a_file_too() -> None:
    assert not read_back([]).tasks


def test_what_is_missing_before_and_after_is_said() -> None:
    found = read_back([Recorded(7, [HANDLE]), Recorded(7, [JOB])], "here", "there")
    said = [one.message for one in found.logs if one.what == "gotrace"]
    assert said == [f"{DAY}; here", "there"]
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
    assert found.logs[2].message == "main.get: 39,000 ns, ends after main.handle"


def test_a_coroutine_runs_in_the_place_of_another() -> None:
    changes = [
        StateChange(T0, 1, RUNNING, tid=11),
        StateChange(T0 + 500, 1, WAITING, "coroutine"),
        StateChange(T0 + 900, 1, RUNNING, by=2, tid=11),
        StateChange(T0 + 30_000, 1, UNKNOWN),
        StateChange(T0 + 500, 2, RUNNING, by=1, tid=11),
        StateChange(T0 + 900, 2, WAITING, "coroutine"),
        StateChange(T0 + 1000, 2, UNKNOWN),
    ]
    found = read_back([Recorded(7, [HANDLE], changes)])
    assert found.threads[1] == {11} and 11 in found.threads[2]
    assert found.states[2][1][1:] == ("Waiting", "Runnable", "", 1)


def test_a_goroutine_is_not_created_if_it_was_there() -> None:
    """Each order of what contradicts that is a file that is taken."""
    there = [StateChange(T0 + 5000, 2, RUNNING, tid=12), StateChange(T0 + 6000, 2, UNKNOWN)]
    made = [StateChange(T0 + 5000, 2, CREATED, by=1), StateChange(T0 + 6000, 2, UNKNOWN)]
    for changes in ([*there, *made], [*made, *there]):
        found = read_back([Recorded(7, [HANDLE, JOB], [*CHANGES[:5], *changes])])
        assert [one.name for one in found.regions] == ["main.handle", "main.job"]


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
    assert all(one.message.endswith("é...") for one in found.logs[2:-1])


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
def changes(draw: st.DrawFn) -> list[StateChange]:
    """Return changes of some goroutines, which need not follow from one another."""
    found = []
    for goid in draw(st.lists(GOIDS, max_size=4)):
        times = sorted(draw(st.lists(TIMES, min_size=1, max_size=8)))
        states = st.sampled_from([CREATED, RUNNABLE, RUNNING, WAITING])
        for moment in times[:-1]:
            reason = draw(st.sampled_from(["", "select", "IO wait"]))
            by, tid = draw(st.integers(0, 5)), draw(st.integers(0, 3))
            found.append(StateChange(T0 + moment, goid, draw(states), reason, by, tid))
        found.append(StateChange(T0 + times[-1], goid, draw(st.sampled_from([UNKNOWN, ENDED]))))
    return found


REQUESTS = st.lists(
    st.builds(Recorded, st.integers(7, 8), st.lists(regions(), min_size=1, max_size=8), changes()),
    max_size=4,
)


@settings(max_examples=100, deadline=None)
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


@dataclass
class Open:
    """A call that has not ended."""

    name: str
    start: int
    edge: str
    children: list[Node[Call]] = field(default_factory=list)


@dataclass
class Played:
    """A goroutine of a program that is made up."""

    goid: int
    state: str
    thread: int = 0
    calls: list[Open] = field(default_factory=list)
    above: Open | None = None
    reason: str = ""


class Program:
    """A program that makes one request on some goroutines and threads, by chance."""

    def __init__(self, random: Random, first: int, begin: int) -> None:
        self.random = random
        self.now = self.begin = begin
        root = Played(first, RUNNING, 100)
        self.all = [root]
        self.free = [101, 102]
        self.changes = [StateChange(0, first, RUNNING, tid=100)]
        #: What a reader is to see of them: since the begin, to which state, by whom.
        self.expected: list[tuple[int, int, str, str, int]] = []
        root.calls.append(Open("main.root", 0, "call"))
        for _ in range(random.randint(1, 60)):
            self.now += random.randint(20, 5000)
            self.step()
        self.request = self.end()

    @property
    def at(self) -> int:
        return self.now - self.begin

    def step(self) -> None:
        running = [one for one in self.all if one.state == RUNNING]
        runnable = [one for one in self.all if one.state == RUNNABLE]
        waiting = [one for one in self.all if one.state == WAITING]
        one = self.random.choice(running) if running else None
        choice = self.random.randrange(9)
        if choice == 0 and runnable and self.free:
            self.start(self.random.choice(runnable))
        elif one is None:
            if waiting:
                self.change(waiting[0], RUNNABLE, 0)
        elif choice <= 3:
            edge = "call" if one.calls else self.random.choice(["go", "item"])
            one.calls.append(Open(f"main.f{choice}", self.at, edge))
        elif choice == 4 and one.calls and (one is not self.all[0] or len(one.calls) > 1):
            self.end_call(one)
        elif choice == 5:
            new = Played(self.all[-1].goid + 1, RUNNABLE)
            new.above = (one.calls or self.all[0].calls)[-1] if one.calls else one.above
            self.all.append(new)
            self.changes.append(StateChange(self.at, new.goid, CREATED, by=one.goid))
            self.expected.append((self.at, new.goid, "Runnable", "", one.goid))
        elif choice == 6 and waiting:
            self.change(self.random.choice(waiting), RUNNABLE, one.goid)
        elif choice == 7:
            one.reason = self.random.choice(["select", "chan send", "IO wait"])
            self.change(one, WAITING, one.goid)
        elif choice == 8 and one is not self.all[0] and not one.calls:
            self.change(one, ENDED, one.goid)

    def start(self, one: Played) -> None:
        one.thread = self.free.pop()
        one.state = RUNNING
        self.changes.append(StateChange(self.at, one.goid, RUNNING, tid=one.thread))
        self.expected.append((self.at, one.goid, "Running", "", -1))

    def change(self, one: Played, state: str, by: int) -> None:
        if one.state == RUNNING:
            self.free.append(one.thread)
        one.state = state
        words = {RUNNABLE: "Runnable", WAITING: "Waiting", ENDED: "NotExist"}
        reason = one.reason if state == WAITING else ""
        self.changes.append(
            StateChange(self.at, one.goid, state, reason, by if state != WAITING else 0)
        )
        shown = {"IO wait": "network"}.get(reason, reason)
        self.expected.append((self.at, one.goid, words[state], shown, by or -1))

    def end_call(self, one: Played) -> None:
        call = one.calls.pop()
        made = Call(
            call.name,
            {"n": call.start},
            {"$ret": "é"},
            duration_ns=self.at - call.start,
            time_ns=self.now,
            pid=7,
            tid=one.thread,
            goid=one.goid,
            message=f"at {call.start}",
        )
        node = Node(made, call.edge, call.start, tuple(call.children))
        above = one.calls[-1] if one.calls else one.above
        if above is None:
            self.root = node
        else:
            above.children.append(node)

    def end(self) -> Request[Call]:
        """End all calls, those of the root last."""
        for one in reversed(self.all):
            while one.calls:
                self.now += 30
                if one.state != RUNNING:
                    if not self.free:
                        other = next(each for each in self.all if each.state == RUNNING)
                        other.reason = "select"
                        self.change(other, WAITING, other.goid)
                        self.now += 30
                    if one.state == WAITING:
                        self.change(one, RUNNABLE, 0)
                        self.now += 30
                    self.start(one)
                    self.now += 30
                self.end_call(one)
            if one.state != ENDED:
                self.changes.append(StateChange(self.at, one.goid, UNKNOWN))
            if one.state == RUNNING:
                self.free.append(one.thread)
            one.state = ENDED
        return Request(self.root, states=tuple(sorted(self.changes, key=lambda each: each.goid)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_requests_come_back(seed: int, count: int) -> None:
    """To the ns: calls, in which goroutine and task, and each change of a state with who did it."""
    random = Random(seed)
    programs: list[Program] = []
    for number in range(count):
        begin = programs[-1].now + random.randint(100, 1000) if programs else T0
        programs.append(Program(random, 1000 * number + 1, begin))
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.trace"
        save(path.with_suffix(".json"), [one.request for one in programs])
        save(path, load(path.with_suffix(".json")))
        trace = read_all(path)
    assert len(trace.tasks) == count
    for task, program in enumerate(programs, 1):
        own = [one for one in trace.regions if one.task == task]
        origin = min(one.start for one in own)
        expected = sorted(
            (node.start_ns, node.duration_ns, node.goid, node.call.function)
            for node in program.request.nodes()
        )
        assert expected == sorted(
            (one.start - origin, one.end - one.start, one.goid, one.name) for one in own
        )
        goids = {one.goid for one in program.all}
        states = [
            (at - origin, goid, state, reason, by)
            for goid in goids
            for at, _, state, reason, by in trace.states[goid]
            if at > origin and reason != "not recorded"
        ]
        assert sorted(states) == sorted(program.expected)
        logs = [one for one in trace.logs if one.task == task]
        assert sum(one.what == "arguments" for one in logs) == len(own)
        assert {one.message for one in logs if one.what == "results"} == {'"é"'}
        assert Counter(one.message for one in logs if one.what == "message") == Counter(
            f"at {node.start_ns}" for node in program.request.nodes()
        )


def of(number: int) -> Recorded:
    """Return what was recorded of a request."""
    later = HANDLE._replace(start=HANDLE.start + number, end=HANDLE.end + number)
    return Recorded(7, [later._replace(goid=number + 1)])


def test_after_a_loss_a_new_file_begins(tmp_path: Path) -> None:
    file = ExecutionFile(tmp_path / "x.trace")
    file.lost(3)  # nothing was there before
    file.add(of(0))
    file.add(of(100))
    file.lost(40)
    file.lost(2)
    file.add(of(200))
    file.lost(5)
    file.close()
    assert [(Path(one.path).name, one.requests, one.lost) for one in file.written] == [
        ("x.trace", 2, 3),
        ("x-2.trace", 1, 42),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-2.trace", "x.trace"]
    first, second = (read_trace(newest(), Path(one.path)) for one in file.written)
    assert (len(first.tasks), len(second.tasks)) == (2, 1)
    assert [one.message for one in first.logs if one.what == "gotrace"] == [
        f"{DAY}; 3 records lost here",
        "42 records lost here; what follows is in x-2.trace",
    ]
    assert [one.message for one in second.logs if one.what == "gotrace"] == [
        f"{DAY[:-7]}200 UTC; 42 records lost here; what was before is in x.trace",
        "5 records lost here",
    ]


def test_a_full_file_has_a_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_MAX_EVENTS", 2)
    save(tmp_path / "x.trace", [Program(Random(1), 1, T0).request] * 3)
    found = [read_trace(newest(), tmp_path / f"x{more}.trace") for more in ("", "-2", "-3")]
    assert all(len(one.tasks) == 1 for one in found)
    assert found[0].logs[-1].message == "what follows is in x-2.trace"


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(GotraceError, match=r"x\.trace: cannot write: No such file"):
        ExecutionFile(tmp_path / "none" / "x.trace")


def traced(
    path: Path, work: Callable[[Fixture, Running], None], *more: str
) -> tuple[str, ReadTrace]:
    """Have the fixture make requests, and return what the tool said and has written."""
    with Fixture([build(FIXTURES / "live_requests", newest())]) as fixture:
        words = ("tree", "main.handle", "-o", str(path), "-p", str(fixture.ready), "--force", *more)
        with tool("gotrace", *words, "main.job", "main.outer") as running:
            work(fixture, running)
            result = running.end()
        fixture.say()
    found = [read_trace(require(minor), path) for minor in READERS]
    assert found[0] == found[1] == found[2]
    said = [row["message"] for row in result.objects if "message" in row] if more else []
    return "\n".join([result.errors, *said, ""]), found[0]


def check(trace: ReadTrace) -> None:
    """Hold a file to what the fixture gives its calls: the number of their request."""
    for task in trace.tasks:
        own = [one for one in trace.regions if one.task == task]
        root = min(own, key=lambda one: one.start)
        assert root.name == "main.handle"
        texts = [one for one in trace.logs if one.task == task and one.what == "arguments"]
        assert len(texts) == len(own)
        assert len({one.message.split(",")[0] for one in texts}) == 1


@pytest.mark.live
def test_requests_of_a_program(tmp_path: Path) -> None:
    truths = []

    def work(fixture: Fixture, _: Running) -> None:
        for kind in ("fan-out", "pipeline", "pulled", "web", "timers"):
            fixture.say(f"{kind} 20")
            truths.append(json.loads(fixture.read_until("truth ")[0]))

    path = tmp_path / "x.trace"
    errors, trace = traced(path, work)
    requests = sum(truth["requests"] for truth in truths)
    assert f"wrote {requests} requests to {path}\n" in errors
    assert len(trace.tasks) == requests
    check(trace)
    jobs = [one for one in trace.regions if one.name == "main.job"]
    assert len(jobs) >= 0.95 * sum(truth["jobs"] for truth in truths)
    # Its jobs start goroutines, and are woken by others that are known.
    changes = [one for states in trace.states.values() for one in states]
    assert sum(one[1] == "NotExist" and one[4] > 0 for one in changes) >= 20 * 5
    assert sum(one[1:3] == ("Waiting", "Runnable") and one[4] > 0 for one in changes) >= 20
    reasons = {one[3] for one in changes if one[2] == "Waiting"}
    assert {"sync", "chan receive", "sleep"} & reasons and "unknown" not in reasons


@pytest.mark.live
@pytest.mark.slow
def test_after_a_loss_requests_are_in_the_next_file(tmp_path: Path) -> None:
    """The tool is stopped while more comes than fits in its buffers."""
    shown = '{"kind":"request"'

    def work(fixture: Fixture, running: Running) -> None:
        fixture.work("fan-out 20")
        for _ in range(20):
            running.read_until(shown)
        running.signal(signal.SIGSTOP)
        fixture.work("fan-out 9000")
        running.signal(signal.SIGCONT)
        # Until the loss has been noticed, all is given up: so it is asked again and again.
        reader = Thread(target=running.read_until, args=[shown])
        reader.start()
        while reader.is_alive():
            fixture.work("fan-out 20")
            reader.join(0.5)

    path = tmp_path / "x.trace"
    errors, trace = traced(path, work, "--json")
    assert f"wrote 20 requests to {path}\n" in errors
    assert len(trace.tasks) == 20
    check(trace)
    _, said = (one.message for one in trace.logs if one.what == "gotrace")
    assert said.endswith(" records lost here; what follows is in x-2.trace")
    # The loss may be noticed in several turns; nothing is between these.
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x-2.trace", "x.trace"]
    rest = read_trace(newest(), tmp_path / "x-2.trace")
    check(rest)
    assert 20 <= len(rest.tasks) <= 400
    (said,) = (one.message for one in rest.logs if one.what == "gotrace")
    assert said.endswith(" records lost here; what was before is in x.trace")
    assert re.search(r"wrote \d+ requests to \S+x-2\.trace: \d+ records lost before\n", errors)
