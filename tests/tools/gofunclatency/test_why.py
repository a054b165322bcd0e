# SPDX-License-Identifier: Apache-2.0
"""What the time of calls went into: parts that add up, and that are what the program did."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.kernel.methods import AttachMethod
from gotrace.report.calls import Clock, TimeStyle
from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    each_known,
    each_since,
    gccgo_build,
    minor,
    newest,
    program_of,
    require,
)
from tests.tools.go_trace import GoTrace, go_state
from tests.tools.harness import Fixture, Result, code_of, of_kind, run_tool, tool
from tests.tools.quota import quota_group, throttled

pytestmark = pytest.mark.live

Json = dict[str, Any]

LONG = 20_000_000  # ns that each known wait takes, at least
YIELDS = 200


#: Go releases that have iter.Pull; those whose own tracer writes what go_trace reads.
each_pulling, each_tracing = each_since(23), each_since(22)


program = program_of("live_why")


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
STORM = ("main.storm*", "main.inStorm")
COLLECTING = ("main.allocates", "main.collects")
PULLING = ("main.pulls", "main.produces")


@dataclass(frozen=True)
class Recorded:
    """All that the fixture does, in one run, with Go's own account of it where there is one.

    ``truth`` is by word; ``epoch`` is 1970 on the clock of Go's tracer.
    """

    rows: list[Json]
    truth: dict[str, Json]
    go: GoTrace | None
    epoch: int


@functools.cache
def recorded(toolchain: Toolchain) -> Recorded:
    return record(program(toolchain), minor(toolchain))


def record(path: Path, release: int, decoder: Path | None = None) -> Recorded:
    """Have gotrace trace all that the fixture does; ``decoder`` is as for `GoTrace`."""
    words = ["waits", "nested", "storm", "collects"]
    functions = [*NESTED, *STORM, *WAITS, *COLLECTING, "main.yields"]
    if release >= 23:
        words.append("pulls")
        functions += PULLING
    words.append("yields")
    with tempfile.TemporaryDirectory() as directory:
        trace, output = Path(directory) / "trace", Path(directory) / "calls.ndjson"
        traced = [trace] if release >= 22 else []
        with Fixture([path, *traced]) as fixture:
            options = ("--why", "--force", "-p", str(fixture.ready), "-o", str(output))
            epoch = Clock.started_now(TimeStyle.TIME_OF_DAY).epoch
            with tool("gotrace", *options, *functions) as tracing:
                truth = {word: fixture.work(word) for word in words}
                wait_for(output, '"main.yields"')  # the last one: lines are in order
                ended = tracing.end()
            assert fixture.finish() == 0
        assert ended.status == 0, ended.errors
        result = Result(0, output.read_text().splitlines(), ended.errors)
        assert not of_kind(result, "lost")
        return Recorded(calls(result), truth, GoTrace(trace, decoder) if traced else None, epoch)


def wait_for(path: Path, text: str) -> None:
    """Wait until a file that is being written has a text."""
    pause, patience = threading.Event(), time.monotonic() + 60
    while text not in path.read_text():
        assert time.monotonic() < patience, f"{path} does not get {text}"
        pause.wait(0.05)


@each_known
def test_parts_add_up_to_the_duration(toolchain: Toolchain) -> None:
    rows = recorded(toolchain).rows
    add_up(rows)
    names = {row["func"] for row in rows}
    assert {"main.outer", "main.inner", "main.innermost", "main.recurses", "main.stormy"} <= names
    assert {row.get("unwound") for row in rows} == {None, "panic", "goexit"}
    assert "unknown" not in {part for row in rows for part in row["why"]["parts"]}
    for row in rows:
        if row["func"] == "main.innermost":
            assert "running" in row["why"]["parts"]


@each_known
def test_known_waits_are_the_parts_they_are(toolchain: Toolchain) -> None:
    run = recorded(toolchain)
    # First of all; some are called again later.
    rows = [row for row in run.rows if row["func"] in WAITS][: len(WAITS)]
    check_waits(rows, run.truth["waits"])


@each_known
def test_a_yield_changes_the_state_twice(toolchain: Toolchain) -> None:
    (row,) = [row for row in recorded(toolchain).rows if row["func"] == "main.yields"]
    # The collector, or the scheduler after 10 ms, may make it wait once more.
    assert 2 * YIELDS <= row["why"]["changes"] <= 2 * YIELDS + 8
    assert (
        sum(ns for part, ns in row["why"]["parts"].items() if part in _OF_THE_MACHINE)
        == (row["duration_ns"])
    )


@each_known
def test_collecting_is_a_part(toolchain: Toolchain) -> None:
    found: Counter[str] = Counter()
    for row in recorded(toolchain).rows:
        if row["func"] in COLLECTING:
            found.update(row["why"]["parts"])
    expected = {"gc: GC assist marking", "gc: wait for GC cycle"}
    assert expected <= found.keys() or (minor(toolchain) < 20 and "gc: runtime" in found)
    assert "gc: world stopped" in found


@each_pulling
def test_coroutines_wait_for_one_another(toolchain: Toolchain) -> None:
    """Each of the two calls has its own sleeps, and those of the other as a wait."""
    rows = {row["func"]: row["why"]["parts"] for row in recorded(toolchain).rows}
    for function in PULLING:
        parts = rows[function]
        own, others = parts["blocked: sleep"], parts["blocked: coroutine"]
        assert min(own, others) >= 3 * LONG
        machine = sum(ns for part, ns in parts.items() if part in _OF_THE_MACHINE)
        assert own + others + machine == sum(parts.values())


@each_tracing
def test_go_s_own_tracer_says_the_same(toolchain: Toolchain) -> None:
    """Every call's states, and how often they changed, beside runtime/trace of the same run.

    Its events are written just before the change, or after it where a goroutine begins to run; on
    a machine that is busy the thread may be off its CPU between the two, so that a few may differ
    by more.
    """
    check_states(recorded(toolchain))


def check_states(run: Recorded, slow: int = 1) -> str:
    """Hold each call's states to those of Go's tracer; ``slow`` is how slow the machine is."""
    assert run.go is not None
    compared = differ = 0
    slips: list[float] = []
    for row in run.rows:
        parts = row["why"]["parts"]
        end = row["ts_ns"] + run.epoch
        start = end - row["duration_ns"]
        stay = run.go.stay(row["goid"], start, end)
        ours: Counter[str] = Counter()
        for part, ns in parts.items():
            ours[go_state(part)] += ns
        for state in ours | stay.states:
            slips.append(abs(ours[state] - stay.states[state]) / max(1, stay.changes))
        # Not written down: what the runtime does for the collector, which the scheduler sees.
        if not any(part.startswith("gc: ") for part in parts):
            compared += 1
            differ += stay.changes != row["why"]["changes"]
        if stopped := parts.get("gc: world stopped", 0):
            theirs = run.go.runnable_while_stopped(row["goid"], start, end)
            slips.append(max(0, stopped - theirs) / max(1, stay.changes))
    assert compared > 500
    assert differ <= 0.01 * compared
    slips.sort()
    median, most = slips[len(slips) // 2], slips[int(0.9 * len(slips))]
    assert median < 1_000 * slow and most <= _SLIP * slow, (median, most)
    return f"{compared} calls compared, {differ} with other changes, {median:.0f} ns a change"


_SLIP = 10_000  # ns a change of state


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
    "main.rawNanosleeps": ("blocked: kernel",),
    "main.timers": ("blocked: chan receive",),
}
#: What any call can have beside, on a busy machine.
_OF_THE_MACHINE = {
    "running",
    "runnable",
    "preempted",
    "waiting for CPU",
    "tracing (estimate)",
    "blocked: kernel",
}


def check_waits(rows: list[Json], truth: Json) -> None:
    """All but what the machine takes is what is waited for, to 1%."""
    by_name = {row["func"]: row for row in rows}
    assert by_name.keys() == WAITS.keys() and len(rows) == len(WAITS)
    for name, expected in WAITS.items():
        row = by_name[name]
        parts: Mapping[str, int] = row["why"]["parts"]
        (found,) = [part for part in expected if part in parts]
        # A thread can be preempted within the system calls that it makes before it waits.
        machine = _OF_THE_MACHINE | ({"syscall"} if name == "main.reads" else set())
        others = sum(ns for part, ns in parts.items() if part != found and part not in machine)
        assert others < 0.01 * row["duration_ns"], (name, parts)
        # Who wakes it began to wait before it did, which a machine that is busy can hold up.
        assert parts[found] > 0.4 * LONG, (name, parts)
        if found == "blocked: kernel":
            # On a busy machine it takes longer to get a CPU.
            assert row["why"]["longest"]["part"] in (found, "waiting for CPU")
        elif found == "syscall":
            functions = [frame["func"] for frame in row["why"]["longest"]["stack"]]
            assert functions.index("syscall.Nanosleep") < functions.index(name), functions
            assert functions[0].startswith(("runtime.", "syscall.")), functions
        elif found.startswith("blocked: "):
            longest = row["why"]["longest"]
            held_up = {part for part in _OF_THE_MACHINE if parts.get(part, 0) > 0.4 * LONG}
            assert longest["part"] in {found, *held_up}, (name, parts)
            assert any(frame["func"] == name for frame in longest["stack"]), longest
    for name, function in (
        ("receives", "main.wakesReceiver"),
        ("locks", "main.unlocks"),
        ("waitsForGroup", "main.finishes"),
    ):
        waker = by_name[f"main.{name}"]["why"]["longest"]["waker"]
        assert waker == {"goid": truth[name], "func": function}


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_programs_without_symbols_wait_for_the_same(mode: str) -> None:
    truth, result = run(program(mode=mode), ["waits"], "gotrace", *WAITS)
    rows = calls(result)
    add_up(rows)
    check_waits(rows, truth)


def test_c_and_go_called_from_it_are_apart() -> None:
    path = build(FIXTURES / "live_why_cgo", newest())
    names = ("main.inC", "main.throughC", "main.calledBack", "main.sleeps")
    _, result = run(path, ["once"], "gotrace", *names)
    rows = calls(result)
    add_up(rows)
    parts = {row["func"]: row["why"]["parts"] for row in rows}
    assert parts.keys() == set(names)
    for name, waits in (("main.inC", 1), ("main.throughC", 2)):
        assert parts[name]["cgo"] >= waits * LONG
    (longest,) = [row["why"]["longest"] for row in rows if row["func"] == "main.inC"]
    assert "main._Cfunc_pauses" in {frame["func"] for frame in longest["stack"]}
    for name in ("main.throughC", "main.calledBack", "main.sleeps"):
        assert parts[name]["blocked: sleep"] == parts["main.sleeps"]["blocked: sleep"] >= LONG
        assert ("cgo" in parts[name]) is (name == "main.throughC")


def test_a_spinner_beside_it_is_preemption() -> None:
    """Both on one CPU: they share it, which the program does not see."""
    cpu = {min(os.sched_getaffinity(0))}
    with Fixture([program()], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as fixture:
        command = ["--json", "--why", "-p", str(fixture.ready), "main.spins"]
        with tool("gotrace", *command) as tracing:
            with Fixture([program()], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as beside:
                for _ in range(20):
                    beside.say("spins")
                beside.read_until("truth ")
                fixture.work("spins")
                for _ in range(19):
                    beside.read_until("truth ")
                assert beside.finish() == 0
            result = tracing.end()
        assert fixture.finish() == 0
    (row,) = calls(result)
    add_up([row])
    assert row["why"]["parts"]["preempted"] > 0.2 * row["duration_ns"]
    assert "throttled" not in row["why"]["parts"]
    assert row["why"]["longest"]["part"] == "preempted"


@contextmanager
def _busy(cpu: set[int], many: int) -> Iterator[None]:
    """Keep a CPU busy with so many processes."""
    spin = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as opened:
        for _ in range(many):
            process = subprocess.Popen(spin, preexec_fn=lambda: os.sched_setaffinity(0, cpu))
            opened.callback(process.wait)
            opened.callback(process.kill)
        yield


def test_a_wait_in_the_kernel_ends_when_the_thread_can_run() -> None:
    """Beside what the kernel counts of the thread: how long it waited for a CPU.

    Others have that, which are more urgent; the kernel makes the thread wait in some calls and
    not in others. It may also run them between a call and where the program asks.
    """
    cpu = {min(os.sched_getaffinity(0))}

    def below_others() -> None:
        os.sched_setaffinity(0, cpu)
        os.nice(10)

    env = {**os.environ, "GODEBUG": "asyncpreemptoff=1"}
    with Fixture([program()], preexec_fn=below_others, env=env) as fixture:
        words = ("--json", "--why", "--force", "-p", str(fixture.ready), "main.naps")
        with tool("gotrace", *words) as tracing:
            with _busy(cpu, 3):
                waits = [fixture.work("naps")["waited"]]
                while sum(waits) < LONG and len(waits) < 20:
                    waits.append(fixture.work("naps")["waited"])
            result = tracing.end()
        assert fixture.finish() == 0
    rows = calls(result)
    add_up(rows)
    parts = sum((Counter(row["why"]["parts"]) for row in rows), Counter())
    naps, waited = 10 * LONG * len(rows), sum(waits)
    assert len(rows) == len(waits) and naps <= parts["blocked: kernel"] < 1.02 * naps, parts
    assert waited > LONG / 4, "the CPU was not busy"
    ours = parts["waiting for CPU"] + parts["preempted"]
    assert abs(ours - waited) < 0.02 * waited + LONG / 5 * len(rows), (parts, waited)
    assert parts["waiting for CPU"] > waited / 2, (parts, waited)


def test_a_quota_used_up_is_throttling() -> None:
    """Beside what the kernel counts of the group: how often, and for how long."""
    cpu = {min(os.sched_getaffinity(0))}
    with (
        quota_group() as group,
        Fixture([program()], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as fixture,
    ):
        command = ["--json", "--why", "-p", str(fixture.ready), "main.briefly"]
        with tool("gofunclatency", *command) as measuring:
            (group / "cgroup.procs").write_text(str(fixture.ready))
            before = throttled(group)
            fixture.work("briefly")
            after = throttled(group)
            (group.parent / "cgroup.procs").write_text(str(fixture.ready))
            result = measuring.end()
        assert fixture.finish() == 0
    (row,) = of_kind(result, "histogram")
    times, ns = after[0] - before[0], after[1] - before[1]
    assert times > 20
    part = row["why"]["parts"]["throttled"]
    # A call is shorter than a period, so that no two intervals are in one. The kernel also counts
    # those in which other work of the machine had the CPU: then it need not take it from the call.
    # Its time ends when there is quota again, the call's when it has the CPU again: later where
    # others have that.
    assert 0.5 * times < part["calls"] <= times + 1
    assert 0.7 * ns < part["ns"] < 3 * ns
    assert sum(each["ns"] for each in row["why"]["parts"].values()) == row["sum_ns"]


def test_the_slowest_calls_are_beside_those_of_the_middle() -> None:
    _, result = run(program(), ["mixed"], "gofunclatency", "main.mixed")
    (row,) = of_kind(result, "histogram")
    slowest, middle = row["why"]["bands"]
    assert slowest["band"] == "slowest" and 5 <= slowest["calls"] < 50
    assert slowest["parts"].keys() - _OF_THE_MACHINE == {"blocked: sleep"}
    assert middle["band"] == "middle" and middle["calls"] >= 250
    assert "running" in middle["parts"] and middle["parts"].keys() <= _OF_THE_MACHINE
    assert row["max_ns"] == slowest["to_ns"] > slowest["from_ns"] > middle["to_ns"]
    assert middle["from_ns"] >= row["min_ns"]


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
            tool("gotrace", "--why", *target, "main.locks", "main.nanosleeps") as tracing,
        ):
            truth = fixture.work("waits")
            table, lines = measuring.end(), tracing.end()
        assert fixture.finish() == 0
    assert any(line.startswith("where the time went ") for line in table.lines)
    assert any(line.startswith("blocked: sync.Mutex.Lock ") for line in table.lines)
    woken = f"woken by goroutine {truth['locks']} main.unlocks"
    lock, sleep = (
        re.compile(r"sync\.Mutex\.Lock [1-9]\d[\d.]*ms"),
        re.compile(r"syscall [1-9]\d[\d.]*ms"),
    )
    assert any(lock.search(line) and woken in line for line in lines.lines), lines.lines
    found = [line for line in lines.lines if " in syscall.Nanosleep" in line]
    assert any(map(sleep.search, found)), lines.lines
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


def test_keys_and_predicates_on_parts_add_calls_up() -> None:
    def added_up(*arguments: str) -> dict[Any, int]:
        with Fixture([program()]) as fixture:
            options = ("--json", "--force", "-p", str(fixture.ready), "--by")
            with tool("gofunclatency", *options, *arguments) as measuring:
                fixture.work("waits")
                result = measuring.end()
            assert fixture.finish() == 0
        rows = of_kind(result, "histogram")
        return {(row["func"], *row["by"].values()): row["count"] for row in rows}

    assert added_up("$blocked > 10ms", *WAITS) == {(name, name in BLOCKED): 1 for name in WAITS}
    names = [f"{name} ($blocked > 10ms)" for name in WAITS]
    assert added_up("$duration > 10ms", *names) == {(name, True): 1 for name in BLOCKED}
    result = run_tool("gofunccount", "--by", "$blocked > 10ms", f"{program()}:main.locks")
    assert result.status == 2 and "gofunclatency --by" in result.errors
    assert len(result.errors.splitlines()) == 1


#: What the calls of each group wait for, if they do; they do nothing else of any length.
GROUPS = {
    "sleeps": "blocked: sleep",
    "computes": "running",
    "locks": "blocked: sync.Mutex.Lock",
}


def exact(row: Json) -> dict[str, int]:
    """Return the parts of a row, in ns, which add up to its time."""
    parts = row["why"]["parts"]
    assert sum(part["ns"] for part in parts.values()) == row["sum_ns"], row
    assert all(0 < part["calls"] <= row["count"] for part in parts.values()), row
    return {name: part["ns"] for name, part in parts.items()}


@pytest.mark.parametrize(
    "options", [("--by", "what"), ("--by", "what, $blocked > 1ms"), ("-i", "0.3", "--by", "what")]
)
def test_each_row_of_by_has_its_parts(options: tuple[str, ...]) -> None:
    truth, result = run(program(), ["groups"], "gofunclatency", *options, "main.does")
    calls_by: Counter[str] = Counter()
    parts_by: dict[str, Counter[str]] = {}
    for row in of_kind(result, "histogram"):
        what = row["by"]["what"]
        calls_by[what] += row["count"]
        parts_by.setdefault(what, Counter()).update(exact(row))
        if "$blocked > 1ms" in row["by"]:
            blocked = row["by"]["$blocked > 1ms"]
            assert blocked is (GROUPS[what] != "running") or row["count"] < 3
    assert calls_by == {what: truth[what] for what in GROUPS}
    for what, part in GROUPS.items():
        machine = sum(ns for name, ns in parts_by[what].items() if name in _OF_THE_MACHINE - {part})
        assert parts_by[what][part] > 0.9 * (parts_by[what].total() - machine), parts_by[what]
        others = {part for group, part in GROUPS.items() if group != what} - {"running"}
        assert not others & parts_by[what].keys()
    [summary] = [row for row in of_kind(result, "summary") if row["what"] != "cost"]
    assert (summary["what"], summary["calls"]) == ("unwound", 1)


def test_calls_without_a_row_have_their_parts_too() -> None:
    truth, result = run(
        *(program(), ["groups"], "gofunclatency", "--rows", "1", "--by", "what"),
        *("main.does", "main.does1"),
    )
    rows = of_kind(result, "histogram")
    found = {(row["func"], row["by"] and row["by"]["what"]): exact(row) for row in rows}
    assert len(found) == 2 and (None, None) in found
    assert sum(row["count"] for row in rows) == 2 * sum(truth[what] for what in GROUPS)
    (known,) = {what for _, what in found} - {None}
    others = {part for what, part in GROUPS.items() if what != known}
    assert others <= found[None, None].keys()


def test_rows_of_recipes_and_of_stacks_have_their_parts(tmp_path: Path) -> None:
    path = shutil.copy(build(FIXTURES / "live_recipes", newest()), tmp_path)
    with Fixture([path]) as fixture:
        words = ("--why", "--force", "-p", str(fixture.ready), "@http.server")
        with (
            tool("gofunclatency", "--json", *words) as measuring,
            tool("gofunclatency", *words) as showing,
            tool("gofunclatency", "--json", *words, "--by", "$stack") as by_stack,
        ):
            fixture.work("")
            results = measuring.end(), by_stack.end()
            text = showing.end()
        assert fixture.finish() == 0
    for result in results:
        rows = of_kind(result, "histogram")
        assert rows and all(exact(row) for row in rows)
    lines = text.lines
    heads = [at for at, line in enumerate(lines) if line.startswith("where the time went ")]
    named = [at for at, line in enumerate(lines) if line.startswith("method = ")]
    assert len(heads) == len(named) == len(of_kind(results[0], "histogram"))
    assert all(name < head for name, head in zip(named, heads, strict=True))


def test_parts_are_not_in_profiles_of_stacks() -> None:
    result = run_tool("gofunclatency", "--why", "-f", f"{program()}:main.does")
    assert result.status == 2 and "--by '$stack' --why" in result.errors
    assert len(result.errors.splitlines()) == 1


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
        for _ in range(3):
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
