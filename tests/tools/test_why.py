# SPDX-License-Identifier: Apache-2.0
"""What the time of calls went into: parts that add up, and that are what the program did."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.kernel.attach import AttachMethod
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, gccgo_build, newest, require
from tests.toolchains import toolchains as all_toolchains
from tests.tools.harness import Fixture, Result, code_of, of_kind, run_tool, tool

pytestmark = pytest.mark.live

Json = dict[str, Any]

LONG = 20_000_000  # ns that each known wait takes, at least
YIELDS = 200
#: Go releases of which --why knows the scheduler.
each_known = pytest.mark.parametrize(
    "toolchain",
    [
        pytest.param(found, id=found.minor)
        for found in all_toolchains()
        if int(found.minor.split(".")[1]) >= 19
    ],
)


def program(toolchain: Toolchain | None = None, mode: str = "default") -> Path:
    flags = BUILD_MODES[mode]
    return build(FIXTURES / "live_why", toolchain or newest(), flags=flags)


def run(path: Path, words: Iterable[str], name: str, *arguments: str) -> tuple[Json, Result]:
    """Run a tool on what the fixture does at some words; return its truth and the result."""
    truth: Json = {}
    with Fixture([path]) as fixture:
        with tool(
            name, "--json", "--why", "--force", "-p", str(fixture.ready), *arguments
        ) as tracing:
            for word in words:
                truth = fixture.work(word)
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def calls(result: Result) -> list[Json]:
    return [row for row in of_kind(result, "call") if row["duration_ns"] is not None]


def add_up(rows: list[Json]) -> None:
    for row in rows:
        parts = row["why"]["parts"]
        assert sum(parts.values()) == row["duration_ns"], row
        assert all(ns > 0 for ns in parts.values()), row


NESTED = (
    "main.outer",
    "main.inner*",
    "main.recovers",
    "main.exits",
    "main.panics",
    "main.recurses",
)


@each_known
def test_parts_add_up_to_the_duration(toolchain: Toolchain) -> None:
    _, result = run(program(toolchain), ["nested", "storm"], "gotrace", *NESTED, "main.*torm*")
    rows = calls(result)
    add_up(rows)
    names = {row["func"] for row in rows}
    assert {"main.outer", "main.inner", "main.innermost", "main.recurses"} <= names
    assert {row.get("unwound") for row in rows} == {None, "panic", "goexit"}
    assert "unknown" not in {part for row in rows for part in row["why"]["parts"]}
    for row in rows:
        if row["func"] == "main.innermost":
            assert "running" in row["why"]["parts"]


@pytest.mark.parametrize("method", AttachMethod)
def test_they_do_however_probes_are_attached(method: AttachMethod) -> None:
    words = ["nested", "storm"]
    _, result = run(program(), words, "gotrace", "--attach", method.value, *NESTED)
    rows = calls(result)
    assert len(rows) > 100
    add_up(rows)


#: What waits for what, in the words of the release: before 1.20 and 1.24 some have fewer.
WAITS = {
    "main.sleeps": ("blocked: sleep",),
    "main.receives": ("blocked: chan receive",),
    "main.sends": ("blocked: chan send",),
    "main.selects": ("blocked: select",),
    "main.locks": ("blocked: sync.Mutex.Lock", "blocked: semacquire"),
    "main.readLocks": ("blocked: sync.RWMutex.RLock", "blocked: semacquire"),
    "main.writeLocks": ("blocked: sync.RWMutex.Lock", "blocked: semacquire"),
    "main.waitsForGroup": ("blocked: sync.WaitGroup.Wait", "blocked: semacquire"),
    "main.waitsForCond": ("blocked: sync.Cond.Wait",),
    "main.reads": ("blocked: IO wait",),
    "main.nanosleeps": ("syscall",),
}
#: What any call can have beside, on a busy machine.
_OF_THE_MACHINE = {"running", "runnable", "preempted", "tracing (estimate)", "blocked: kernel"}


def check_waits(rows: list[Json], truth: Json) -> None:
    by_name = {row["func"]: row for row in rows}
    assert by_name.keys() == WAITS.keys()
    for name, expected in WAITS.items():
        row = by_name[name]
        parts: Mapping[str, int] = row["why"]["parts"]
        (found,) = [part for part in expected if part in parts]
        assert parts[found] > 0.9 * LONG, row
        others = sum(
            ns for part, ns in parts.items() if part != found and part not in _OF_THE_MACHINE
        )
        assert others < 0.02 * row["duration_ns"], row
        if found.startswith("blocked: "):
            longest = row["why"]["longest"]
            assert longest["part"] == found
            assert any(frame["func"] == name for frame in longest["stack"]), longest
    for name, function in (
        ("receives", "main.wakesReceiver"),
        ("locks", "main.unlocks"),
        ("waitsForGroup", "main.finishes"),
    ):
        waker = by_name[f"main.{name}"]["why"]["longest"]["waker"]
        assert waker == {"goid": truth[name], "func": function}


@each_known
def test_known_waits_are_the_parts_they_are(toolchain: Toolchain) -> None:
    truth, result = run(program(toolchain), ["waits"], "gotrace", *WAITS)
    rows = calls(result)
    add_up(rows)
    check_waits(rows, truth)


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_programs_without_symbols_wait_for_the_same(mode: str) -> None:
    truth, result = run(program(mode=mode), ["waits"], "gotrace", *WAITS)
    rows = calls(result)
    add_up(rows)
    check_waits(rows, truth)


@each_known
def test_a_yield_changes_the_state_twice(toolchain: Toolchain) -> None:
    _, result = run(program(toolchain), ["yields"], "gotrace", "main.yields")
    (row,) = calls(result)
    # The collector, or the scheduler after 10 ms, may make it wait once more.
    assert 2 * YIELDS <= row["why"]["changes"] <= 2 * YIELDS + 8
    add_up([row])


def test_collecting_is_a_part() -> None:
    _, result = run(program(), ["collects"], "gotrace", "main.allocates")
    (row,) = calls(result)
    add_up([row])
    assert any(part.startswith("gc: ") for part in row["why"]["parts"])


def test_a_spinner_beside_it_is_preemption() -> None:
    """Both on one CPU: they share it, which the program does not see."""
    cpu = {min(os.sched_getaffinity(0))}
    with Fixture([program()], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as fixture:
        command = ["--json", "--why", "-p", str(fixture.ready), "main.spins"]
        with tool("gotrace", *command) as tracing:
            with Fixture([program()], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as beside:
                beside.say("storm")
                beside.say("spins")
                fixture.work("spins")
                beside.read_until("truth ")
                beside.read_until("truth ")
                assert beside.finish() == 0
            result = tracing.end()
        assert fixture.finish() == 0
    (row,) = calls(result)
    add_up([row])
    assert row["why"]["parts"].get("preempted", 0) > 0
    assert "throttled" not in row["why"]["parts"]


@pytest.mark.parametrize("options", [("-F",), ("-g",), ("-i", "1"), ("--slower", "1ms"), ()])
def test_histograms_parts_add_up(options: tuple[str, ...]) -> None:
    words = ["nested", "storm", "nested"]
    _, result = run(program(), words, "gofunclatency", *options, *NESTED, "main.stormy")
    rows = of_kind(result, "histogram")
    assert rows
    for row in rows:
        parts = row["why"]["parts"]
        assert sum(part["ns"] for part in parts.values()) == row["sum_ns"]
        assert all(part["calls"] <= row["count"] for part in parts.values())
        for band in row["why"]["bands"]:
            assert 0 < band["calls"] <= row["count"]
    slow = of_kind(result, "slow")
    assert bool(slow) is ("--slower" in options)
    for row in slow:
        assert sum(row["why"]["parts"].values()) == row["duration_ns"]


def test_the_table_and_the_bracket_say_it_in_words() -> None:
    with Fixture([program()]) as fixture:
        target = ("-p", str(fixture.ready))
        with (
            tool("gofunclatency", "--why", *target, "main.locks") as measuring,
            tool("gotrace", "--why", *target, "main.locks") as tracing,
        ):
            truth = fixture.work("waits")
            table, lines = measuring.end(), tracing.end()
        assert fixture.finish() == 0
    assert any(line.startswith("where the time went ") for line in table.lines)
    assert any(line.startswith("blocked: sync.Mutex.Lock ") for line in table.lines)
    woken = f"woken by goroutine {truth['locks']} main.unlocks"
    assert any("(sync.Mutex.Lock 2" in line and woken in line for line in lines.lines)
    assert "changes" in table.errors and "of one CPU" in table.errors


def test_what_is_not_known_is_refused_in_a_line() -> None:
    old = build(FIXTURES / "live_why", require("1.15"))
    with Fixture([old]) as fixture:
        result = run_tool("gotrace", "--why", "-p", str(fixture.ready), "main.sleeps")
        assert fixture.finish() == 0
    assert result.status == 1 and "Go 1.19 or newer" in result.errors
    assert len(result.errors.splitlines()) == 1
    gcc = gccgo_build(FIXTURES / "live_gccgo")
    result = run_tool("gofunclatency", "--why", str(gcc) + ":main.*", "-d", "1")
    assert result.status == 1 and "gccgo" in result.errors.splitlines()[-1]


BLOCKED = {name for name, (part, *_) in WAITS.items() if part.startswith("blocked: ")}


def test_predicates_on_parts_choose_calls() -> None:
    names = [f"{name} ($blocked > 10ms)" for name in WAITS]
    _, result = run(program(), ["waits"], "gotrace", *names)
    assert {row["func"] for row in calls(result)} == BLOCKED
    others = [f"{name} (!($blocked > 10ms))" for name in WAITS]
    _, result = run(program(), ["waits"], "gotrace", *others)
    assert {row["func"] for row in calls(result)} == WAITS.keys() - BLOCKED


def test_the_library_says_why() -> None:
    with Fixture([program()]) as fixture, gotrace.attach(fixture.ready) as go:

        def work() -> None:
            fixture.work("waits")
            go.stop()

        probes = [f"{name} ($blocked > 10ms)" for name in WAITS]
        seen = go.trace(*probes, why=True, force=True)
        work()
        found = list(seen)
        assert {call.function for call in found} == BLOCKED
        for call in found:
            assert call.why is not None
            assert sum(call.why.parts.values()) == call.duration_ns
        times = go.latency("main.sleeps", why=True, force=True, ready=work)["main.sleeps"]
        assert sum(times.why.values()) == times.sum
        assert times.why["blocked: sleep"] > 0.9 * times.sum
        plain = go.trace(*probes, force=True)
        work()
        assert {call.function for call in plain if call.why is None} == BLOCKED


def test_killed_while_it_watches() -> None:
    """The probes of the scheduler go as all others do, and leave the program's own code."""
    with Fixture([program()]) as fixture:
        code, pause = code_of(fixture.ready), threading.Event()
        words = ("--json", "--why", "--force", "-p", str(fixture.ready), "main.*")
        for _ in range(5):
            with tool("gotrace", *words) as tracing:
                assert code_of(fixture.ready) != code
                fixture.work("storm")
                tracing.signal(signal.SIGKILL)
                assert tracing.wait() == -signal.SIGKILL
            patience = time.monotonic() + 60
            while code_of(fixture.ready) != code:
                assert time.monotonic() < patience, "there are still probes"
                pause.wait(0.02)
            fixture.work("nested")
        assert fixture.finish() == 0
