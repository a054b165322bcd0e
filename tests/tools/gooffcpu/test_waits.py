# SPDX-License-Identifier: Apache-2.0
"""Where goroutines wait: as often and as long as the program itself knows, in every form."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.kernel.kept_stacks import MAX_FRAMES
from gotrace.kernel.methods import AttachMethod
from gotrace.session.choices import WaitState
from gotrace.session.waits.meter import WaitMeter
from gotrace.session.waits.probes import wait_probes
from gotrace.target.target import Target
from tests.profiles.raw import raw_profile
from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    each_known,
    gccgo_build,
    program_of,
    require,
)
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = pytest.mark.live

Json = dict[str, Any]

#: Function -> reason, in the words of the newest release; some have had fewer.
REASONS = {
    "receives": "chan receive",
    "sends": "chan send",
    "selects": "select",
    "locks": "sync.Mutex.Lock",
    "waitsForGroup": "sync.WaitGroup.Wait",
    "waitsForCond": "sync.Cond.Wait",
    "sleeps": "sleep",
}


program = program_of("live_waits")


def run(path: Path, words: list[str], *arguments: str | Path) -> tuple[Json, Result]:
    """Return the truth of the last word, and what was added up while the fixture did them all."""
    truth: Json = {}
    with Fixture([path]) as fixture:
        with tool("gooffcpu", "-p", str(fixture.ready), "--force", *arguments) as tracing:
            for word in words:
                truth = fixture.work(word)
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def within(result: Result, function: str) -> list[Json]:
    """Return the rows with a function on their stacks."""
    rows = of_kind(result, "wait")
    return [row for row in rows if function in [frame["func"] for frame in row["stack"]]]


def check_ways(truth: Json, result: Result) -> None:
    assert truth.keys() == REASONS.keys()
    for name, known in truth.items():
        rows = within(result, f"main.{name}")
        assert sum(row["count"] for row in rows) == known["count"], name
        assert known["least"] <= sum(row["delay_ns"] for row in rows) <= known["most"], name
        assert {row["reason"] for row in rows} <= {REASONS[name], "semacquire"}
    (woken,) = within(result, "main.receives")
    assert (woken["woken_by"], woken["waker"]) == ("goroutine", "main.wakesReceiver")
    assert [row["waker"] for row in within(result, "main.locks")] == ["main.unlocks"]
    assert {row["woken_by"] for row in within(result, "main.sleeps")} == {"timer"}
    (sums,) = of_kind(result, "waits")
    rows = of_kind(result, "wait")
    assert sums["count"] == sum(row["count"] for row in rows)
    assert sums["delay_ns"] == sum(row["delay_ns"] for row in rows)
    assert sums["others"] == {"count": 0, "delay_ns": 0}


@each_known
def test_waits_are_those_that_the_program_knows(toolchain: Toolchain) -> None:
    check_ways(*run(program(toolchain), ["ways"], "--json"))


#: What ends waits of a function for a reason, if it is always the same.
WOKEN_BY = {
    ("main.receives", "chan receive"): "goroutine",
    ("main.sends", "chan send"): "goroutine",
    ("main.selects", "select"): "goroutine",
    ("main.locks", "sync.Mutex.Lock"): "goroutine",
    ("main.sleeps", "sleep"): "timer",
    ("main.waitsForTimer", "chan receive"): "timer",
    ("main.selectsWithTimeout", "select"): "timer",
    ("main.readsPipe", "IO wait"): "network poller",
    ("main.readsUntil", "IO wait"): "timer",
    ("main.readsClosed", "IO wait"): "goroutine",
    ("main.collects", "wait for GC cycle"): "runtime",
    ("main.allocates", "GC assist wait"): "runtime",
}


@each_known
def test_each_wait_is_ended_by_what_ends_it(toolchain: Toolchain) -> None:
    _, result = run(program(toolchain), ["ways", "wakers"], "--json", "--system")
    for (function, reason), woken_by in WOKEN_BY.items():
        reasons = {reason, "semacquire"} if function == "main.locks" else {reason}
        rows = [row for row in within(result, function) if row["reason"] in reasons]
        assert {row["woken_by"] for row in rows} == {woken_by}, (function, reason)
    # Goroutines of the runtime's own, too, which its scheduler looks for beside the poller.
    polled = [row for row in of_kind(result, "wait") if row["woken_by"] == "network poller"]
    assert {row["reason"] for row in polled} == {"IO wait"}


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_so_they_are_without_symbols(mode: str) -> None:
    check_ways(*run(program(mode=mode), ["ways"], "--json"))


@pytest.mark.parametrize("method", AttachMethod)
def test_none_is_lost_when_many_wait(method: AttachMethod) -> None:
    """Nor between intervals, however the probes are attached.

    How long they wait has no lower bound: time.Sleep sets the timer before the goroutine waits.
    """
    words = ("--json", "--force", "-i", "0.2", "--attach", method.value)
    with Fixture([program()]) as fixture:
        with tool("gooffcpu", "-p", str(fixture.ready), *words) as tracing:
            fixture.work("storm")
            tracing.lines_until('{"kind":"waits"')
            truth = fixture.work("storm")
            result = tracing.end()
        assert fixture.finish() == 0
    rows = within(result, "main.naps")
    assert sum(row["count"] for row in rows) == 2 * truth["count"]
    assert all(row["delay_ns"] > 0 for row in rows)
    assert len(of_kind(result, "waits")) > 1


def test_each_interval_has_its_own_longest_wait() -> None:
    """And a whole run the longest of all, as have recordings that are added up."""
    truths: list[Json] = []
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "--force", "--json")
        with tool("gooffcpu", *words) as whole, tool("gooffcpu", *words, "-i", "0.1") as parts:
            for _ in range(3):
                truths.append(fixture.work("linger"))
                parts.lines_until('{"kind":"wait",')
            intervals, run = parts.end(), whole.end()
        assert fixture.finish() == 0
    rows = within(intervals, "main.lingers")
    assert [row["count"] for row in rows] == [1, 1, 1]
    assert len({row["ts"] for row in rows}) == 3
    for row, truth in zip(rows, truths, strict=True):
        assert truth["least"] * 0.9 <= row["max_ns"] == row["delay_ns"] <= truth["most"]
    (every,) = within(run, "main.lingers")
    assert every["count"] == 3
    assert truths[0]["least"] * 0.9 <= every["max_ns"] <= truths[0]["most"] < every["delay_ns"]
    merged = gotrace.merge(intervals.lines)
    (added,) = [row for row in merged.rows("wait") if row["count"] == 3]
    assert added["max_ns"] == max(row["max_ns"] for row in rows)


def test_what_finds_no_row_is_in_the_sum() -> None:
    with Fixture([program()]) as fixture:
        target = Target.of(fixture.ready, None)
        probes = wait_probes(target, WaitState.WAITING)
        with WaitMeter(probes, None, rows=1) as meter:
            truth = fixture.work("ways")
            meter.stop()
            period, lost = meter.take(), meter.lost()
        target.close()
        assert fixture.finish() == 0
    assert len(period.rows) == 1 and period.others[0] > 0
    counted = period.rows[0].count + period.others[0]
    summed = period.rows[0].ns + period.others[1]
    assert counted >= sum(known["count"] for known in truth.values())
    assert summed >= sum(known["least"] for known in truth.values())
    assert lost == {"unseen": 0, "stacks": 0}


def sums_of_folded(lines: list[str]) -> Counter[tuple[str, ...]]:
    sums: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        stack, _, weight = line.rpartition(" ")
        sums[tuple(stack.split(";"))] += int(weight)
    return sums


def test_all_forms_have_the_same_sums(tmp_path: Path) -> None:
    """Of one run JSON, speedscope, pprof as Go's own tool reads it; of another pprof, folded."""
    profile, flame = tmp_path / "x.pb.gz", tmp_path / "x.speedscope.json"
    truth, result = run(program(), ["ways"], "--json", "-o", profile, "-o", flame)
    check_ways(truth, result)
    raw = raw_profile(profile)
    assert raw.types == ("contentions/count", "delay/nanoseconds[dflt]")
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in of_kind(result, "wait"):
        stack = tuple((frame["func"], frame["line"]) for frame in row["stack"])
        while stack[0][0] in ("runtime.gopark", "runtime.goparkunlock"):
            stack = stack[1:]
        waker = row["waker"] or row["woken_by"]
        rows[stack, row["reason"], waker, row["count"], row["delay_ns"]] += 1
    assert rows == Counter(
        (one.frames, one.labels["reason"], one.labels["waker"], *one.values) for one in raw.samples
    )
    made = json.loads(flame.read_text())["profiles"][0]
    assert made["unit"] == "nanoseconds"
    assert sum(made["weights"]) == sum(row["delay_ns"] for row in of_kind(result, "wait"))

    merged = {"stderr": subprocess.STDOUT}
    with Fixture([program()]) as fixture:
        stacks = tmp_path / "x.folded"
        words = ("-p", str(fixture.ready), "-o", str(stacks), "-o", str(profile))
        with tool("gooffcpu", *words, **merged) as tracing:
            fixture.work("ways")
            result = tracing.end()
        assert fixture.finish() == 0
    for path in (stacks, profile):
        assert re.search(f"wrote [1-9][0-9,]* waits to {path}", "".join(result.lines))
    assert not any(" each" in line for line in result.lines)  # no table
    folded = sums_of_folded(stacks.read_text().splitlines(keepends=True))
    expected: Counter[tuple[str, ...]] = Counter()
    for one in raw_profile(profile).samples:
        names = [name.replace(";", ",") for name, _ in reversed(one.frames)]
        key = (*names, f"[{one.labels['reason']}]")
        expected[key] += one.values[1]
    assert folded == expected and len(folded) > len(REASONS)


def test_folded_stacks_are_alone_on_standard_output() -> None:
    with Fixture([program()]) as fixture:
        result = run_tool("gooffcpu", "-p", str(fixture.ready), "-f", "--system", "-d", "0.2")
        assert fixture.finish() == 0
    assert result.status == 0 and "Tracing waits" in result.errors
    assert all(re.fullmatch(r".*;\[.*\] \d+\n", line) for line in result.lines)
    result = run_tool("gooffcpu", "-p", "1", "-f", "--json")
    assert result.status == 2


def test_stacks_are_those_that_the_runtime_has() -> None:
    """Frame pointers lead where the runtime's own tables do, which gostacks follows."""
    with Fixture([program()]) as fixture:
        pid = str(fixture.ready)
        with tool("gooffcpu", "-p", pid, "--json", "--in", "main.receives") as tracing:
            fixture.work("stay")
            (parked,) = [
                row["stack"]
                for row in of_kind(run_tool("gostacks", "--json", "-p", pid), "goroutine")
                if "main.receives" in [frame["func"] for frame in row["stack"]]
            ]
            fixture.work("leave")
            result = tracing.end()
        assert fixture.finish() == 0
    (row,) = of_kind(result, "wait")
    assert row["stack"] == parked
    (asked,) = of_kind(result, "attached")
    assert (asked["state"], asked["in"], asked["reason"]) == ("waiting", ["main.receives"], [])
    assert not (asked["names"] or asked["open"] or asked["system"])


def test_only_waits_inside_of_functions() -> None:
    """Calls that were inlined included."""
    words = ("--in", "main.inlined", "--in", "*.locks", "--in", "main.sleeps")
    reasons = ("--reason", "chan*", "--reason", "sync.Mutex.Lock")
    truth, result = run(program(), ["ways"], "--json", *words, *reasons)
    rows = of_kind(result, "wait")
    assert {row["reason"] for row in rows} == {"chan receive", "sync.Mutex.Lock"}
    wanted = truth["receives"]["count"] + truth["locks"]["count"]
    assert sum(row["count"] for row in rows) == wanted


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_stacks_of_wakers_are_followed(minor: str) -> None:
    words = ("--json", "--wakers", "--in", "main.locks")
    _, result = run(program(require(minor)), ["ways"], *words)
    (row,) = of_kind(result, "wait")
    waker = [frame["func"] for frame in row["waker_stack"]]
    assert len(set(waker)) == len(waker) and waker[-1] == "runtime.goexit"
    assert waker.index("main.unlocks") < waker.index("main.rounds") < waker.index("main.main")


def test_wakers_are_shown_on_top() -> None:
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "--wakers", "--in", "main.locks")
        with (
            tool("gooffcpu", *words, "-f", stderr=subprocess.STDOUT) as folding,
            tool("gooffcpu", *words) as printing,
        ):
            fixture.work("ways")
            folded, printed = folding.end(), printing.end()
        assert fixture.finish() == 0
    (line,) = [line for line in folded.lines if ";--;" in line]
    assert re.search(
        r"main\.locks;.*;runtime\.semacquire1;--;.*;main\.unlocks;.*;main\.main;", line
    )
    text = "".join(printed.lines)
    assert re.search(r"\nmain\.locks\(.*\nwoken by main\.unlocks:\n.*\nmain\.unlocks\(", text, re.S)


def test_what_has_not_ended_is_counted_where_that_is_asked_for() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), "--in", "main.receives")
        with tool("gooffcpu", *words) as closed, tool("gooffcpu", *words, "--open") as opened:
            fixture.work("stay")
            without, including = closed.end(), opened.end()
        with tool("gooffcpu", *words) as later:
            fixture.work("leave")
            after = later.end()
        assert fixture.finish() == 0
    assert of_kind(without, "wait") == []
    assert [row["count"] for row in of_kind(without, "summary") if row["what"] == "open"] == [1]
    (row,) = of_kind(including, "wait")
    assert (row["count"], row["open"], row["reason"]) == (1, True, "chan receive")
    assert row["delay_ns"] > 0 and row["waker"] is None
    assert of_kind(after, "wait") == []
    assert [row["count"] for row in of_kind(after, "summary") if row["what"] == "earlier"] == [1]


def test_a_stack_that_is_too_deep_keeps_its_innermost_frames() -> None:
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready), "--in", "main.deep")
        with tool("gooffcpu", *words, "--json") as tracing, tool("gooffcpu", *words) as printing:
            fixture.work("deep")
            result, printed = tracing.end(), printing.end()
        assert fixture.finish() == 0
    (row,) = of_kind(result, "wait")
    names = [frame["func"] for frame in row["stack"]]
    assert set(names[MAX_FRAMES // 2 :]) == {"main.deep"} and names[0] == "runtime.gopark"
    assert "...additional frames elided...\n" in printed.lines


def test_states_other_than_waiting() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "--force", "-p", str(fixture.ready))
        with (
            tool("gooffcpu", *words, "--state", "runnable") as runnable,
            tool("gooffcpu", *words, "--state", "syscall") as syscalls,
        ):
            truth = fixture.work("storm")
            delays, calls = runnable.end(), syscalls.end()
        assert fixture.finish() == 0
    naps = [row for row in within(delays, "main.naps") if row["reason"] == "sleep"]
    assert sum(row["count"] for row in naps) == truth["count"]
    started = [row for row in of_kind(delays, "wait") if row["reason"] == "started"]
    assert sum(row["count"] for row in started) == 16
    assert {row["state"] for row in of_kind(delays, "wait")} == {"runnable"}
    written = [row for row in of_kind(calls, "wait") if "os.(*File).Write" in str(row["stack"])]
    assert written and {row["state"] for row in written} == {"syscall"}


@pytest.mark.parametrize("minor", ["1.21", "1.27"])
def test_goroutine_that_is_preempted_where_a_function_begins_has_its_caller(minor: str) -> None:
    """That function has no frame yet: of these three each calls the next."""
    chain = ["runtime.goexit", "main.outer", "main.middle", "main.inner"]
    path = build(FIXTURES / "live_preempted", require(minor))
    with Fixture(["env", "GODEBUG=asyncpreemptoff=1", path]) as fixture:
        words = ["-p", str(fixture.ready), "--json", "--force", "--state", "runnable"]
        with tool("gooffcpu", *words) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    rows = within(result, "main.inner") + within(result, "main.middle")
    stacks = [[frame["func"] for frame in reversed(row["stack"])] for row in rows]
    assert chain in stacks
    assert all(stack == chain[: len(stack)] for stack in stacks)


def test_own_goroutines_of_the_runtime_are_left_out() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "--force", "-p", str(fixture.ready), "--open")
        with tool("gooffcpu", *words) as users, tool("gooffcpu", *words, "--system") as every:
            fixture.work("storm")
            without, including = users.end(), every.end()
        assert fixture.finish() == 0
    outermost = {row["stack"][-2]["func"] for row in of_kind(without, "wait")}
    assert all(not name.startswith("runtime.") or name == "runtime.main" for name in outermost)
    assert len(of_kind(including, "wait")) >= len(of_kind(without, "wait"))


@pytest.mark.parametrize("mode", ["default", "pie"])
def test_a_command_from_its_first_wait(mode: str, tmp_path: Path) -> None:
    """What it was can be named although it has ended."""
    words = tmp_path / "words"
    words.write_text("storm\n\n")
    with words.open() as orders:
        result = run_tool("gooffcpu", "--json", "--", program(mode=mode), stdin=orders)
    truth = json.loads(next(line[6:] for line in result.lines if line.startswith("truth ")))
    own = Result(result.status, [line for line in result.lines if line[0] == "{"], "")
    assert sum(row["count"] for row in within(own, "main.naps")) == truth["count"]


def test_what_is_not_known_is_refused_in_a_line() -> None:
    with Fixture([program(require("1.15"))]) as fixture:
        result = run_tool("gooffcpu", "-p", str(fixture.ready))
        assert fixture.finish() == 0
    assert result.status == 1 and "Go 1.19 or newer" in result.errors
    assert len(result.errors.splitlines()) == 1
    result = run_tool("gooffcpu", "--", str(gccgo_build(FIXTURES / "live_gccgo")))
    assert result.status == 1 and "gccgo" in result.errors
    assert len(result.errors.splitlines()) == 1


def test_the_library_has_them(tmp_path: Path) -> None:
    truth: Json = {}
    with Fixture([program()]) as fixture, gotrace.attach(fixture.ready) as go:

        def work() -> None:
            truth.update(fixture.work("ways"))
            go.stop()

        waits = go.waits(force=True, ready=work)
        assert fixture.finish() == 0
    for name, known in truth.items():
        rows = [row for row in waits if f"main.{name}" in [f.function for f in row.stack]]
        assert sum(row.count for row in rows) == known["count"]
        assert known["least"] <= sum(row.delay_ns for row in rows) <= known["most"]
    profile = tmp_path / "x.pb.gz"
    waits.to_pprof(profile)
    waits.to_html(tmp_path / "x.html")
    assert '"name":"waits"' in (tmp_path / "x.html").read_text()
    read = raw_profile(profile).samples
    assert (
        sum(one.values[0] for one in read) == sum(row.count for row in waits) == waits.total_count
    )
    assert sum(one.values[1] for one in read) == waits.delay_ns
