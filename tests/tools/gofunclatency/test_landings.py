# SPDX-License-Identifier: Apache-2.0
"""Calls that are seen returning in their callers are measured, or counted as those of new ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.target.process import find_process
from tests.toolchains import BUILD_MODES, FIXTURES, build, marks_of, newest, toolchains
from tests.tools.harness import Fixture, Result, Running, code_of, of_kind, run_tool, tool
from tests.tools.latency import MEASURED, assert_within, histograms, program, summary

pytestmark = pytest.mark.live

Json = dict[str, Any]

_HANGS = float(os.environ.get("GOTRACE_PATIENCE", "100"))
KINDS = (
    *("direct", "other", "value", "closure", "method", "interface", "wrapper", "tail", "reflect"),
    *("go", "defer", "thrown", "fault", "goexit"),
)
#: What the fixture of test_latency.py can do more than once.
STORY = "recursion interleaved migration growth assembly panics deep nested goexit workers slow"
FUNCTIONS = ("main.target", "main.other", "main.(*worker).Do", "main.thrown")
BUILDS = [
    *((found, "default") for found in (toolchains()[0], *toolchains()[2:4], toolchains()[-1])),
    *((newest(), mode) for mode in ("stripped", "pie")),
]


class Callers(Fixture):
    """The fixture, and what it is told to do."""

    def order(self, kind: str, calls: int) -> None:
        self.say(f"{kind} {calls}")
        self.read_until(f"done {kind}")

    def truth(self) -> Json:
        return self.work("end")

    def __enter__(self) -> Callers:
        return self


def callers(found: Any = None, mode: str = "default") -> Path:
    return build(FIXTURES / "live_callers", found or newest(), flags=BUILD_MODES[mode])


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=marks_of(case[0])) for case in BUILDS],
    ids=lambda case: f"go{case[0].minor}-{case[1]}",
)
def built(request: pytest.FixtureRequest) -> Iterator[Path]:
    yield callers(*request.param)


def measuring(fixture: Fixture, *arguments: str) -> Running:
    words = ("--json", "-F", "--returns", "landing", "-p", str(fixture.ready), *arguments)
    return tool("gofunclatency", *words)


def wait_for_moves(running: Running, count: int) -> list[str]:
    """Read on until so many functions are seen returning in their callers."""
    return [running.lines_until('{"kind":"moved"') for _ in range(count)]


def measured(result: Result) -> dict[str, int]:
    return {name: row["count"] for name, row in histograms(result).items()}


def lost(result: Result, what: str = "new_callers") -> int:
    return sum(row["calls"] for row in of_kind(result, "lost") if row["what"] == what)


def test_callers_that_were_seen_before_lose_nothing(built: Path) -> None:
    with Callers([built]) as fixture:
        with measuring(fixture, *FUNCTIONS) as running:
            for kind in KINDS:
                fixture.order(kind, 3)
            fixture.order("many", 128)
            moves = wait_for_moves(running, len(FUNCTIONS))
            assert all('"returns":"landing"' in move for move in moves)
            for kind in KINDS:
                fixture.order(kind, 500)
            fixture.order("many", 1280)
            result = running.end()
        truth = fixture.truth()
        assert fixture.finish() == 0
    assert result.status == 0 and lost(result) == 0
    thrown = truth.pop("main.thrown")
    assert measured(result) == truth
    assert summary(result, "unwound") == thrown
    assert {row["returns"] for row in of_kind(result, "histogram")} == {"both"}


def test_each_hit_has_the_price_of_where_it_was() -> None:
    """A function that is called little stays at its RETs, which makes others no dearer."""
    with Fixture([build(FIXTURES / "live_storm", newest())]) as storm:
        process = find_process(storm.ready)
        words = ("--json", "-F", "-p", str(storm.ready), "main.hit", "fmt.Fprintln")
        with tool("gofunclatency", *words) as running:
            before = process.cpu_ns() or 0
            storm.say("1 0")
            storm.read_until("busy")
            wait_for_moves(running, 1)
            until = (process.cpu_ns() or 0) + 2_000_000_000
            while (process.cpu_ns() or until) < until:
                time.sleep(0.02)
            storm.work()
            took = (process.cpu_ns() or 0) - before
            result = running.end()
    found = histograms(result)
    assert {name: row["returns"] for name, row in found.items()} == {
        "main.hit": "both",
        "fmt.Fprintln": "ret",
    }
    (cost,) = [row for row in of_kind(result, "summary") if row["what"] == "cost"]
    assert 0 < cost["stepped_hits"] < cost["hits"]
    assert cost["hits"] + cost["stepped_hits"] >= 2 * sum(row["count"] for row in found.values())
    assert took / 4 < cost["ns"] < 1.5 * took


def test_calls_of_new_callers_are_counted(built: Path) -> None:
    with Callers([built]) as fixture:
        with measuring(fixture, "main.target", "main.other") as running:
            wait_for_moves(running, 2)
            for kind in ("direct", "other", "value", "closure", "reflect", "go", "defer", "tail"):
                fixture.order(kind, 50)
            for kind in ("value", "direct", "other", "reflect", "many"):
                fixture.order(kind, 300)
            result = running.end()
        truth = fixture.truth()
        assert fixture.finish() == 0
    assert lost(result) > 0
    assert sum(measured(result).values()) + lost(result) == sum(truth.values())
    # Direct callers are known from the program's code: direct, closure, tail, many.
    assert measured(result)["main.target"] >= 50 * 3 + 300 * 2


def test_a_return_site_that_others_share_ends_no_other_call(built: Path) -> None:
    """main.indirect calls a function that is not measured, and then one that is."""
    with Callers([built]) as fixture:
        with measuring(fixture, "main.target") as running:
            fixture.order("value", 5)
            wait_for_moves(running, 1)
            fixture.order("other", 2000)
            fixture.order("value", 2000)
            fixture.order("other", 2000)
            result = running.end()
        fixture.truth()
        assert fixture.finish() == 0
    assert measured(result) == {"main.target": 2005} and lost(result) == 0


def test_a_call_that_is_not_opened_leaves_nothing_to_others(built: Path) -> None:
    """Its caller is new; the next call from there is of another function."""
    with Callers([built]) as fixture:
        with measuring(fixture, "main.target") as running:
            wait_for_moves(running, 1)
            for _ in range(3):
                fixture.order("value", 1)
                fixture.order("other", 500)
            fixture.order("direct", 100)
            result = running.end()
        fixture.truth()
        assert fixture.finish() == 0
    new = lost(result)
    assert 1 <= new <= 3 and measured(result) == {"main.target": 100 + 3 - new}


def test_a_place_serves_functions_that_need_no_results_and_others_that_do() -> None:
    """The place changes the result at once: it serves those that need none alone."""
    probes = ('main.(*first).M "first"', 'main.(*second).M "second %d", $ret')
    with Callers([build(FIXTURES / "live_shared_call", newest())]) as fixture:
        words = ("--json", "--returns", "landing", "-p", str(fixture.ready), *probes)
        with tool("gotrace", *words) as running:
            fixture.order("first", 10)
            wait_for_moves(running, 2)
            for kind in ("first", "second", "first", "second"):
                fixture.order(kind, 300)
            (move,) = wait_for_moves(running, 1)
            assert "many calls are of new callers" in move  # its RETs have probes again
            fixture.order("second", 300)
            result = running.end()
        assert fixture.finish() == 0
    seen = Counter(row["message"] for row in of_kind(result, "call"))
    assert seen.keys() == {"first", "second 2007"} and seen["first"] == 610
    assert seen["second 2007"] + lost(result) == 900 and seen["second 2007"] >= 300


_BURST = 6_000


def test_more_new_callers_than_can_be_reported_at_once(tmp_path: Path) -> None:
    """Their calls are open as the function would move: it waits for their ends."""
    source = tmp_path / "live_burst"
    source.mkdir()
    numbers = range(_BURST // 100)
    cases = "".join(f"\tcase {n}: return called() * {n + 2} + 1\n" for n in range(100))
    body = f"switch i {{\n{cases}\t}}\n\treturn 0"
    functions = [f"//go:noinline\nfunc place{n}(i int) int {{\n\t{body}\n}}\n\n" for n in numbers]
    listed = ", ".join(f"place{n}" for n in numbers)
    places = f"var places = []func(int) int{{{listed}}}\n"
    (source / "main.go").write_text("".join((_BURST_PROGRAM, *functions, places)))
    with Callers([build(source, newest())]) as fixture:
        with measuring(fixture, "main.target") as running:
            fixture.order("burst", _BURST)
            result = running.end()
        assert fixture.finish() == 0
    assert measured(result) == {"main.target": _BURST}
    assert lost(result) == summary(result, "unwound") == 0


_BURST_PROGRAM = """package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"time"
)

//go:noinline
func target() int { time.Sleep(4 * time.Second); return 1 }

var called = target

func main() {
	fmt.Println("ready", os.Getpid())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() && lines.Text() != "" {
		var calls sync.WaitGroup
		for n := 0; n < 100*len(places); n++ {
			if n == 1500 {
				time.Sleep(350 * time.Millisecond)
			}
			calls.Add(1)
			go func(n int) { defer calls.Done(); places[n/100](n % 100) }(n)
		}
		calls.Wait()
		fmt.Println("done burst")
	}
}

"""

#: How a place calls a function, by the function; X is the place's number. Others may call it in
#: another function's name: then the return is to that one, whatever the place.
_PLACES = (
    ("main.target", "return target(n) + X"),
    ("main.target", "return called(n) + X"),
    ("main.(*worker).Do", "return direct.Do(n) + X"),
    ("main.target", "return apply(func(m int) int { return target(m) + n }, X)"),
    ("main.(*worker).Do", "return apply((&worker{X}).Do, n)"),
    ("main.(*worker).Do", "return wrapping.Do(n) + X"),
    ("main.target", "done := make(chan int); go func() { done <- target(n) + X }(); return <-done"),
    ("main.target", "defer called(X); return n"),
    ("main.target", "defer func() { sink += target(n) + X }(); return n"),
    (
        "main.target",
        "return int(reflect.ValueOf(target).Call([]reflect.Value{reflect.ValueOf(X)})[0].Int())",
    ),
)
_APPEARING = 500
_HEAD = 'package main\n\nimport "reflect"\n\nfunc init() {\n\tplaces = []place{\n'


def appearing(directory: Path) -> Path:
    """Build the program whose places appear one after the other."""
    source = directory / "live_appearing"
    shutil.copytree(FIXTURES / "live_appearing", source)
    rows = []
    for number in range(_APPEARING):
        name, body = _PLACES[number % len(_PLACES)]
        body = re.sub(r"\bX\b", str(number), body)
        rows.append(f'\t\t{{"{name}", func(n int) int {{ {body} }}}},\n')
    (source / "places.go").write_text(f"{_HEAD}{''.join(rows)}\t}}\n}}\n")
    return build(source, newest())


def test_callers_that_appear_at_a_high_rate(tmp_path: Path) -> None:
    """Each call is measured, or counted as that of a new caller, which is soon none any more."""
    with Callers([appearing(tmp_path)]) as fixture:
        with measuring(fixture, "main.target", "main.(*worker).Do") as running:
            wait_for_moves(running, 2)
            for order in ("appear 100000 50000", "again 50000 50000"):
                fixture.say(order)
                fixture.read_until("done")
            result = running.end()
        truth = fixture.truth()
        assert fixture.finish() == 0
    new, seen = lost(result), measured(result)
    assert sum(seen.values()) + new == sum(truth.values()) == 150_000
    assert all(seen[name] <= truth[name] for name in truth)
    assert new < 150_000 // 20, f"{new} calls of new callers"
    assert summary(result, "unmatched") == 0


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_several_tracers_at_a_function_see_each_call(is_first: bool) -> None:
    """Two see returns in callers, one at the RETs, attached before the others or after them."""
    landing, ret = (("--json", "--returns", where) for where in ("landing", "ret"))
    chosen = [
        ("gofunclatency", *landing, "-F"),
        ("gotrace", *landing),
        ("gofunclatency", *ret, "-F"),
    ]
    with Callers([callers()]) as fixture, ExitStack() as stack:
        target = ("-p", str(fixture.ready), "main.target")
        running = [
            stack.enter_context(tool(*words, *target))
            for words in (chosen if is_first else reversed(chosen))
        ]
        for calls in (2, 100):
            for kind in KINDS[:9]:
                fixture.order(kind, calls)
            if calls == 2:
                for one in running[:2] if is_first else running[1:]:
                    wait_for_moves(one, 1)
        results = [one.end() for one in running]
        truth = fixture.truth()["main.target"]
        assert fixture.finish() == 0
    seen = [
        lost(one)  # callers that came after the first had moved
        + sum(row.get("count", 1) for row in (*of_kind(one, "histogram"), *of_kind(one, "call")))
        for one in results
    ]
    assert seen == [truth] * 3
    assert sum(map(lost, results)) < truth // 10


def test_a_rare_call_in_a_hot_loop_gives_its_rets_back() -> None:
    """A landing that a loop passes a thousand times for each call is soon left."""
    with Callers([callers()]) as fixture:
        with measuring(fixture, "main.target") as running:
            wait_for_moves(running, 1)
            fixture.order("rare", 20_000)
            result = running.end()
        truth = fixture.truth()
        assert fixture.finish() == 0
    assert measured(result)["main.target"] + lost(result) == truth["main.target"] == 20_000


@pytest.fixture(scope="module", params=["go1.15", "newest"])
def played_twice(request: pytest.FixtureRequest) -> tuple[Json, Result]:
    """Have the story of the fixture of test_latency.py told at RETs, and again at landings."""
    found = toolchains()[0] if request.param == "go1.15" else newest()
    with Fixture([program(found)]) as fixture:
        with measuring(fixture, *MEASURED) as running:
            running.signal(signal.SIGSTOP)  # nothing moves before all callers have been there
            fixture.work(STORY)
            running.signal(signal.SIGCONT)
            wait_for_moves(running, 10)
            truth = fixture.work(STORY)
            result = running.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def test_stories_of_latency_are_measured_alike(played_twice: tuple[Json, Result]) -> None:
    truth, result = played_twice
    rows = histograms(result)
    for name, times in truth["Functions"].items():
        assert_within(times, rows[name])
    assert sum(row["returns"] == "both" for row in rows.values()) >= 10
    assert summary(result, "unwound") == truth["Unwound"]


def after_moving(name: str, *words: str) -> tuple[int, Result]:
    """Let a tool see calls before and after main.target moves; return how many there were."""
    with Callers([callers()]) as fixture:
        pid = str(fixture.ready)
        with tool(name, "--json", "--returns", "landing", "-p", pid, *words) as running:
            for calls in (4, 200):
                for kind in KINDS[:9]:
                    fixture.order(kind, calls)
                if calls == 4:
                    wait_for_moves(running, 1)
            result = running.end()
        truth = fixture.truth()["main.target"]
        assert fixture.finish() == 0
    assert lost(result) == 0
    return int(truth), result


def test_a_target_that_ends_while_functions_move_ends_the_run() -> None:
    for pause in (0.0, 0.1, 0.3):
        with Callers([callers()]) as fixture:
            with measuring(fixture, "main.*") as running:
                fixture.order("direct", 20)
                time.sleep(pause)  # the moment is the test: of a move only the end is said
                os.kill(fixture.ready, signal.SIGKILL)
                result = running.result()
            fixture.wait()
        assert result.status == 0, result.errors
        assert measured(result)["main.target"] == 20


def test_outermost_calls_stay_at_rets() -> None:
    with Callers([callers()]) as fixture:
        with measuring(fixture, "--outermost", "main.target") as running:
            fixture.order("direct", 20)
            result = running.end()
        fixture.truth()
        assert fixture.finish() == 0
    assert {row["returns"] for row in of_kind(result, "histogram")} == {"ret"}
    assert "at RETs: only outermost calls" in of_kind(result, "warning")[0]["message"]


def test_what_keeps_calls_at_rets_is_said() -> None:
    with Callers([callers()]) as fixture:
        with measuring(fixture, "--attach", "perf-cookie", "main.target") as running:
            fixture.order("direct", 20)
            result = running.end()
        (warning,) = of_kind(result, "warning")
        assert warning["message"] == "calls are seen returning at RETs: that takes --attach multi"
        assert {row["returns"] for row in of_kind(result, "histogram")} == {"ret"}
        # The runtime calls it where no line after the call serves.
        with measuring(fixture, "runtime.nanotime1") as running:
            said = running.lines_until('{"kind":"moved"')
            assert '"returns":"ret"' in said and "has no landing" in said
            running.end()
        fixture.truth()
        assert fixture.finish() == 0


def test_rows_by_value_have_results() -> None:
    """Where a caller overwrites results before its landing, the return is seen at once."""
    truth, result = after_moving("gofunclatency", "--by", "n % 2, $ret % 4", "main.target")
    counted = {tuple(row["by"].values()): row["count"] for row in of_kind(result, "histogram")}
    # target(n) = 3 * n + 1
    assert counted == dict.fromkeys(((0, 1), (0, 3), (1, 0), (1, 2)), truth // 4)


def test_records_have_results() -> None:
    truth, result = after_moving("gotrace", "main.target ($ret > 0)")
    shown = of_kind(result, "call")
    assert len(shown) == truth
    assert all(row["results"]["$ret"] == 3 * row["args"]["n"] + 1 for row in shown)


def test_records_of_frequent_calls_stay_if_callers_may_be_unknown() -> None:
    """Those of main.target. The kernel single-steps where main.leaf returns to."""
    with Callers([callers()]) as fixture:
        words = ("main.leaf (n % 1000 == 0)", "main.target (n % 1000 == 1)")
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as running:
            fixture.order("direct", 60_000)
            fixture.order("many", 128)
            moves = [json.loads('{"kind":"moved"' + move) for move in wait_for_moves(running, 2)]
            fixture.order("value", 20_000)
            result = running.end()
        fixture.truth()
        assert fixture.finish() == 0
    assert {move["returns"] for move in moves} == {"ret"}
    why = {move["func"]: move["why"] for move in moves}
    assert why["main.target"] == "it may have callers that do not call it directly"
    assert why["main.leaf"].startswith("the kernel single-steps")
    shown = of_kind(result, "call")
    assert sum(row["func"] == "main.target" for row in shown) == 80 + 1
    leaves = [row for row in shown if row["func"] == "main.leaf"]
    assert len(leaves) == 80 + 1
    assert all(row["results"]["$ret"] == 3 * row["args"]["n"] for row in leaves)
    assert not of_kind(result, "lost")


def test_list_says_where_functions_are_called() -> None:
    words = ("-l", "--json", f"{callers()}:main.target", f"{callers()}:main.leaf")
    functions = of_kind(run_tool("gofunclatency", *words), "function")
    rows = {row["func"]: row["callers"] for row in functions}
    closed = {row["func"]: row["closed"] for row in functions}
    assert rows["main.target"]["direct"] >= 128 + 6
    assert closed == {"main.target": False, "main.leaf": True}
    text = "".join(run_tool("gotrace", "-l", *words[2:]).lines)
    for name, row in rows.items():
        rest = f" ({row['emulated']} landings)" if closed[name] else ", and others"
        assert f" {row['direct']}{rest}  " in text
    for row in rows.values():
        assert 0 < row["emulated"] + row["stepped"] <= row["direct"]


def test_frequent_calls_stay_where_their_callers_are_stepped() -> None:
    with Callers([callers()]) as fixture:
        with tool("gofunclatency", "-v", "-p", str(fixture.ready), "main.target") as running:
            fixture.order("direct", 200_000)
            result = running.end()
        assert fixture.truth() == {"main.target": 200_000}
        assert fixture.finish() == 0
    assert result.errors.count("calls are seen returning") == 1
    why = "the kernel single-steps where most calls return to as well"
    assert f"main.target: calls are seen returning at RETs now: {why}\n" in result.errors
    assert any("count: 200000" in line for line in result.lines)


def test_the_library_says_where_returns_are_seen() -> None:
    with Callers([callers()]) as fixture, gotrace.attach(fixture.ready) as go:
        with pytest.raises(gotrace.UsageError, match="'ret', 'landing'"):
            go.latency("main.target", returns="callers")  # type: ignore[call-overload]
        ready = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(
                lambda: go.latency("main.target", returns="landing", ready=ready.set)
            )
            assert ready.wait(_HANGS)
            code = code_of(fixture.ready)
            fixture.order("direct", 10_000)
            patience = time.monotonic() + _HANGS
            pause = threading.Event()
            while code_of(fixture.ready) == code:  # it moves once its callers are known
                assert time.monotonic() < patience and not found.done(), "it does not move"
                pause.wait(0.02)
            fixture.order("direct", 10_000)
            go.stop()
            histogram = found.result()["main.target"]
        assert histogram.count == 20_000
        fixture.truth()
        assert fixture.finish() == 0
