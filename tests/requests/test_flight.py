# SPDX-License-Identifier: Apache-2.0
"""Flights and recordings: the last seconds of a program, as the kernel keeps them, and others."""

from __future__ import annotations

import json
import mmap
import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from struct import pack
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.calls import read
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.rings import PastRing, PastRings
from gotrace.requests.edges import FIRST, EdgeKind
from gotrace.requests.model import load
from gotrace.requests.recording import Recorder
from gotrace.session.events import HEADER
from tests.requests.go_tool import ReadTrace, parsed, read_trace
from tests.toolchains import FIXTURES, build, newest, require
from tests.tools.harness import Fixture, run_tool, tool

READERS = ("1.25", "1.26", "1.27")
PAGE = mmap.PAGESIZE


class Written:
    """A buffer as the kernel writes it: each record before the one that was written last."""

    def __init__(self, pages: int) -> None:
        self.memory = mmap.mmap(-1, (1 + pages) * PAGE)
        self._size = pages * PAGE
        self.head = 0
        self.times: list[int] = []

    def write(self, time: int, length: int) -> None:
        content = pack("<Q", time) + bytes(length)
        size = -(-(12 + len(content)) // 8) * 8
        record = pack("<IHHI", 9, 0, size, size - 12) + content.ljust(size - 12, b"\0")
        self.head = (self.head - size) % (1 << 64)
        for at, byte in enumerate(record):
            self.memory[PAGE + (self.head + at) % self._size] = byte
        self.memory[1024:1032] = pack("<Q", self.head)
        self.times.append(time)

    def read(self, moment: int, most: int) -> tuple[list[int], int]:
        with closing(PastRing(0, os.open(os.devnull, os.O_RDONLY), self.memory)) as ring:
            records, since = ring.since(moment, most)
            return [int.from_bytes(record[:8], "little") for record in records], since


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 400), st.integers(0, 1 << 32))
def test_the_latest_records_are_read_backwards(count: int, seed: int) -> None:
    random = Random(seed)
    written = Written(32)
    for number in range(count):
        written.write(number + 1, random.choice((0, 56, 500, 2000)))
    since = random.randint(0, count)
    most = random.choice((3, 1 << 20))
    found, begin = written.read(since, most)
    assert found == list(range(count, count - len(found), -1))
    # From there on, all of them.
    assert begin == since or (begin > since and found[-1] == begin)
    if most == 3:
        return
    # All that is asked for, or as much as there is surely room for.
    assert found[-1:] in ([], [max(since, 1)]) or len(found) >= 32 * PAGE // 2 // 2048 - 1
    assert found or not count


def test_what_is_written_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    written = (Written(32), Written(32))
    monkeypatch.setattr(kernel, "online_cpus", list)
    with closing(PastRings(1, lambda *_: None)) as rings:
        for cpu, one in enumerate(written):
            one.write(5 + cpu, 0)
            null = os.open(os.devnull, os.O_RDONLY)
            rings._rings.append(PastRing(cpu, null, one.memory))
        since = PastRing.since

        def goes_on(ring: PastRing, moment: int, most: int) -> tuple[list[bytes], int]:
            found = since(ring, moment, most)
            for one in written:
                one.write(9, 0)
            return found

        monkeypatch.setattr(PastRing, "since", goes_on)
        found = rings.since(1, 7, 1 << 20)
    assert [int.from_bytes(record[:8], "little") for record in found] == [5, 6]


def read_all(path: Path) -> ReadTrace:
    """Return what the newest tool reads of a file; the others must take it."""
    for minor in READERS[:-1]:
        parsed(require(minor), path)
    return read_trace(require(READERS[-1]), path)


def edge(random: Random, at: int) -> bytes:
    """Return a record of a goroutine's change, of any kind, whether it makes sense or not."""
    kind = random.choice((EdgeKind.STATE,) * 6 + (EdgeKind.GO, EdgeKind.SWITCH, EdgeKind.DEAD))
    goid, other, tid = random.randrange(6), random.randrange(6), random.randrange(11, 14)
    state, reason = random.choice((1, 2, 4)), random.randrange(4)
    return HEADER.pack(at, other, goid, 7, tid, FIRST + kind, 0, 0, 0, state, reason)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 60), st.integers(1, 1000), st.integers(0, 1 << 32))
def test_go_takes_whatever_was_recorded(count: int, step: int, seed: int) -> None:
    """As after losses, or where threads were preempted between the clock and the record."""
    random = Random(seed)
    records = [edge(random, 10**6 + random.randrange(step * (count + 1))) for _ in range(count)]
    recorder = Recorder((), (), ("", "chan receive", "select"), 0)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "x.trace"
        recorder.recording(records, None, 10**6 + step * (count + 1), lost=seed % 2).save(path)
        trace = read_all(path)
    last = {goid: states[-1][2] for goid, states in trace.states.items()}
    ended = {HEADER.unpack(one)[2] for one in records if HEADER.unpack(one)[5] == _DEAD} - {0}
    assert {goid for goid, state in last.items() if state == "NotExist"} == ended


_DEAD = FIRST + EdgeKind.DEAD


def wait_for(path: Path) -> None:
    """Wait for a file, which is there as a whole or not at all."""
    until = time.monotonic() + 60
    pause = threading.Event()
    while not path.exists():
        assert time.monotonic() < until, f"{path} was not written"
        pause.wait(0.005)


def do(fixture: Fixture, *works: str) -> None:
    for work in works:
        fixture.say(work)
        assert fixture.read_until("truth ")[0] == work.split()[1]


def said(trace: ReadTrace) -> str:
    """Return why a file was written, which its end says."""
    return [one.message for one in trace.logs if one.what == "gotrace"][-1]


def requests_of(trace: ReadTrace) -> list[str]:
    """Return the arguments of a file's requests, each of which has its part in it."""
    found = []
    for number, task in trace.tasks.items():
        assert task.name == "main.handle"
        own = {one.name: one.goid for one in trace.regions if one.task == number}
        assert set(own) == {"main.handle", "main.part"}
        assert own["main.handle"] == task.goid != own["main.part"]
        texts = [one for one in trace.logs if one.task == number and one.what == "arguments"]
        assert len({one.message for one in texts}) == 1
        found.append(texts[0].message)
    return found


@pytest.mark.live
@pytest.mark.apart
def test_each_call_that_is_waited_for_is_in_its_file(tmp_path: Path) -> None:
    """More is written than there is room for: what is oldest is overwritten meanwhile."""
    words = ("--memory", "1M", "-o", str(tmp_path / "x-%n.trace"), "-M", "12", "--force")
    condition = ("--when", "main.handle ($ret % 10 == 0)", "main.part", "main.other")
    with Fixture([build(FIXTURES / "live_flight", newest())]) as fixture:
        place = ("flight", "20s", "-p", str(fixture.ready))
        with tool("gotrace", *place, *words, *condition) as tracing:
            for number in range(1, 13):
                do(fixture, "busy 2000", "handle 5", f"handle {10 * number}", "other 3")
                wait_for(tmp_path / f"x-{number}.trace")
            result = tracing.result()
        fixture.say()
    assert result.status == 0 and "Detaching...\n" in result.lines
    assert sum(" before main.handle in goroutine " in line for line in result.lines) == 12
    assert all(" after, " in line for line in result.lines if line.startswith("wrote "))
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        f"x-{number}.trace" for number in range(1, 13)
    )
    for number in range(1, 13):
        trace = read_all(tmp_path / f"x-{number}.trace")
        arguments = requests_of(trace)
        # Some before it as well; of what has been overwritten nothing is shown.
        assert arguments[-1] == f"id={10 * number}" and len(arguments) == len(set(arguments))
        assert said(trace).startswith("written for main.handle in goroutine ")
        # The one before it was not wanted: it is a call, without its values.
        alone = Counter(one.name for one in trace.regions if not one.task)
        assert alone["main.handle"] >= alone["main.part"] > 0
        assert sum(one.message == "id=5" for one in trace.logs) == alone["main.part"]
        changes = [one for states in trace.states.values() for one in states]
        assert sum(one[1:3] == ("Waiting", "Runnable") and one[4] > 0 for one in changes) > 500


@pytest.mark.live
@pytest.mark.apart
def test_a_file_ends_at_one_time(tmp_path: Path) -> None:
    """Calls that are made one after the other, on all CPUs, and go on while buffers are read."""
    with Fixture([build(FIXTURES / "live_flight", newest())]) as fixture:
        words = ("flight", "20s", "-p", str(fixture.ready), "-o", str(tmp_path / "x-%n.json"))
        condition = ("--force", "--when", "main.handle ($ret == -1)", "main.step")
        with tool("gotrace", *words, *condition) as tracing:
            do(fixture, "relays runs")
            for number in (1, 2):
                tracing.signal(signal.SIGUSR1)
                wait_for(tmp_path / f"x-{number}.json")
            fixture.say()
            fixture.read_until("truth ")
            assert tracing.end().status == 0
        fixture.say()
    for number in (1, 2):
        ids = sorted(call.args["id"] for call in read(tmp_path / f"x-{number}.json"))
        assert ids == list(range(ids[0], ids[-1] + 1)) and len(ids) > 10_000


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", ["1.27", pytest.param("1.19", marks=pytest.mark.slow)])
def test_waits_that_have_begun_before_the_first_record(tmp_path: Path, minor: str) -> None:
    """Their ends are in what is kept, and so they are waits from the begin on."""
    path = tmp_path / "x.trace"
    with Fixture([build(FIXTURES / "live_flight", require(minor))]) as fixture:
        words = ("flight", "0.5s", "-p", str(fixture.ready), "-o", str(path))
        calls = ("main.locks", "main.receives", "main.sleeps")
        with tool("gotrace", *words, "--when", "main.handle ($ret == 1)", *calls) as tracing:
            do(fixture, "waits 1")
            assert tracing.result().status == 0
        fixture.say()
    trace = read_all(path)
    reasons = {}
    for region in trace.regions:
        if region.name in calls:
            first, second = trace.states[region.goid][1:3], trace.states[region.goid][3:5]
            assert [one[2] for one in (*first, *second)][:4] == [
                *("Runnable", "Running", "Waiting", "Runnable")
            ]
            began, ended = second[0][0], second[1][0]
            assert 0 <= began - region.start < 100 and ended - began > 900_000_000
            reasons[region.name] = second[0][3]
    assert reasons == {
        "main.locks": "sync",
        "main.receives": "chan receive",
        "main.sleeps": "sleep",
    }
    # The main goroutine, and that without a call, wait from the begin of the file on.
    alone = trace.states.keys() - {one.goid for one in trace.regions}
    assert {one[3] for goid in alone for one in trace.states[goid][:5]} >= {"chan receive"}


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("work", "condition", "reason"),
    [
        ("recovered 1", "panic", "runtime.gopanic in goroutine 1"),
        ("fails 1", "panic", "runtime.gopanic in goroutine 1"),
        ("unlocks 1", "panic", "runtime.fatalthrow in goroutine 1"),
        ("", "signal TERM", "signal SIGTERM"),
        ("", "signal KILL", "signal SIGKILL"),
    ],
)
def test_panics_and_signals(tmp_path: Path, work: str, condition: str, reason: str) -> None:
    """Also those that end the program."""
    path = tmp_path / "x.trace"
    with Fixture([build(FIXTURES / "live_flight", newest())]) as fixture:
        place = ("flight", "20s", "-p", str(fixture.ready), "--when", condition)
        with tool("gotrace", *place, "-o", str(path), "main.part", "main.other") as tracing:
            do(fixture, "other 7", "handle 3")
            if work:
                fixture.say(work)
            else:
                fixture.signal(signal.Signals[f"SIG{condition.split()[1]}"])
            result = tracing.result()
        if work == "recovered 1":
            fixture.say()
    assert result.status == 0, result.errors
    trace = read_all(path)
    assert said(trace) == f"written for {reason}"
    assert [one.name for one in trace.regions][:2] == ["main.other", "main.part"]
    assert not trace.tasks and any(one.message == "id=7" for one in trace.logs)


@pytest.mark.live
@pytest.mark.apart
def test_a_signal_to_the_tool_writes_what_there_is(tmp_path: Path) -> None:
    """Without a condition, as JSON, which has the requests and the other calls."""
    file = tmp_path / "x-%n.json"
    with Fixture([build(FIXTURES / "live_flight", newest())]) as fixture:
        words = ("flight", "20s", "-p", str(fixture.ready), "-o", str(file), "--json")
        with tool("gotrace", *words, "--when", "main.handle ($ret == 2)", "main.*") as tracing:
            do(fixture, "handle 1", "other 5")
            tracing.signal(signal.SIGUSR1)
            wait_for(tmp_path / "x-1.json")
            do(fixture, "handle 2")
            wait_for(tmp_path / "x-2.json")
            result = tracing.end()
        fixture.say()
    files = [row for row in map(json.loads, result.lines) if row.get("what") == "file"]
    assert [row["cause"].split()[0] for row in files] == ["SIGUSR1", "main.handle"]
    assert [row["after"] > 0 for row in files] == [False, True]
    assert files[1]["after"] < files[1]["seconds"]
    first, second = (list(read(tmp_path / f"x-{number}.json")) for number in (1, 2))
    assert {(one.function, str(one.args)) for one in first if one.function != "main.main"} == {
        ("main.handle", "{}"),
        ("main.handle.func1", "{}"),
        ("main.part", "{'id': 1}"),
        ("main.other", "{'id': 5}"),
    }
    assert set(map(str, first)) <= set(map(str, second))
    assert not load(tmp_path / "x-1.json")
    (request,) = load(tmp_path / "x-2.json")
    assert [node.call.args for node in request.nodes()] == [{"id": 2}, {}, {"id": 2}]


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("form", ["trace", "pftrace", "json"])
def test_all_is_recorded(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{form}"
    with Fixture([build(FIXTURES / "live_flight", newest())]) as fixture:
        words = ("record", "-p", str(fixture.ready), "-o", str(path))
        with tool("gotrace", *words, "main.handle", "main.part", "main.other") as tracing:
            do(fixture, "handle 1", "other 5", "busy 100")
            result = tracing.end()
        fixture.say()
    assert result.status == 0
    names = ["main.part", "main.handle", "main.other", "main.other"]
    if form == "json":
        calls = list(read(path))
        assert [one.function for one in calls] == names
        assert [one.args["id"] for one in calls] == [1, 1, 5, 100]
    elif form == "trace":
        trace = read_all(path)
        assert sorted(one.name for one in trace.regions) == sorted(names)
        assert not trace.tasks
        changes = [one for states in trace.states.values() for one in states]
        # busy wakes the other goroutine by each item, and is woken.
        assert sum(one[1:3] == ("Waiting", "Runnable") and one[4] > 0 for one in changes) >= 200
        assert sum(one[1] == "NotExist" and one[4] > 0 for one in changes) == 2
        # busy does not wait for the end of the other one.
        assert sum(one[2] == "NotExist" for one in changes) in (1, 2)
    else:
        assert path.read_bytes().count(b"main.part") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "gotrace flight writes a file: give -o x.trace, x.pftrace or x.json"),
        (("-o", "x.txt"), "x.txt: give x.trace, x.pftrace or x.json"),
        (("-o", "none/x.trace"), "none/x.trace: cannot write"),
        (("-o", "x.trace", "--when", "signal NONE"), "no signal is called NONE"),
        (("-o", "x.trace", "-U"), "there is no -U here: stacks are of gotrace alone"),
        (("-o", "x.html"), "-o writes no .html file"),
        (("-o", "x.trace", "--memory", "lots"), "invalid size"),
        (("-o", "x.trace", "--memory", "100K"), "100K are too few to keep records in: give "),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], said: str) -> None:
    result = run_tool("gotrace", "flight", "5s", *words, "main.*", "--", "/bin/true")
    assert result.status == 2 or "cannot write" in said
    assert said in result.errors
