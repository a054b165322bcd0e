# SPDX-License-Identifier: Apache-2.0
"""Hold gofunclatency against programs that time their own calls in every way calls can end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import (
    FIXTURES,
    Toolchain,
    build,
    gccgo_build,
    marks_of,
    newest,
    require,
    toolchains,
)
from tests.tools import gccgo
from tests.tools.harness import Fixture, Result, code_at, of_kind, run_tool, tool
from tests.tools.latency import (
    MEASURED,
    assert_consistent,
    assert_within,
    histograms,
    measure,
    program,
    summary,
)

pytestmark = pytest.mark.live

ALL = (
    "parked recursion interleaved migration growth assembly panics deep nested goexit workers"
    " slow rounds open"
)


@dataclass(frozen=True)
class Played:
    """All scenarios of the fixture, as it saw them itself and as the tool did."""

    truth: dict[str, Any]
    result: Result

    def check(self, *names: str) -> None:
        rows = histograms(self.result)
        for name in names:
            assert_within(self.truth["Functions"][name], rows[name])


BUILDS = [
    *((found, "default") for found in toolchains()),
    *((found, mode) for found in toolchains()[::4] for mode in ("stripped", "pie")),
    *((found, "external") for found in toolchains()[-1:]),
]


#: In ``make test`` the other release that is built so stands for these.
REPEATED = {("1.15", "stripped"), ("1.27", "pie")}


def marks(found: Toolchain, mode: str) -> Sequence[pytest.MarkDecorator]:
    return (pytest.mark.thorough,) if (found.minor, mode) in REPEATED else marks_of(found)


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=marks(*case)) for case in BUILDS],
    ids=[f"go{found.minor}" + (f"-{mode}" if mode != "default" else "") for found, mode in BUILDS],
)
def played(request: pytest.FixtureRequest) -> Played:
    toolchain, mode = request.param
    return Played(*measure(program(toolchain, mode), ALL, "-F", *MEASURED))


def test_recursion(played: Played) -> None:
    played.check("main.recurse")


def test_goroutines_that_take_turns_on_a_thread(played: Played) -> None:
    played.check("main.interleave")


def test_goroutines_that_change_threads(played: Played) -> None:
    assert played.truth["Migrated"] > 0
    played.check("main.migrate")


def test_stacks_that_move(played: Played) -> None:
    assert played.truth["Moved"] > 0
    played.check("main.grow")


def test_assembly(played: Played) -> None:
    played.check("main.stacked")


def test_panics(played: Played) -> None:
    """Frames are unwound by the few and by the hundred, then calls at their depths return."""
    played.check("main.thrown", "main.recovering")


def test_panics_within_panics(played: Played) -> None:
    played.check("main.outside", "main.middle", "main.cleanup")
    assert "main.inner" not in histograms(played.result)


def test_calls_in_deferred_functions_and_before_the_tracing(played: Played) -> None:
    played.check("main.short")


def test_slow_and_quick_calls(played: Played) -> None:
    played.check("main.slow", "main.task")


def test_nothing_else_is_measured(played: Played) -> None:
    assert set(histograms(played.result)) == set(played.truth["Functions"])


def test_footer_tells_what_did_not_return(played: Played) -> None:
    assert played.truth["Unwound"] > 2000
    assert summary(played.result, "unwound") == played.truth["Unwound"]
    assert summary(played.result, "open") == played.truth["Open"] == 15
    assert summary(played.result, "unmatched") == played.truth["Unmatched"] == 13
    assert of_kind(played.result, "lost") == []
    assert of_kind(played.result, "warning") == []


@pytest.mark.parametrize("method", ["perf-cookie", "perf-ip"])
@pytest.mark.parametrize("mode", ["default", "pie"])
def test_lower_rungs(method: str, mode: str) -> None:
    names = ("main.recurse", "main.thrown", "main.recovering")
    words = ("-F", "--attach", method, *names)
    truth, result = measure(program(mode=mode), "recursion panics", *words)
    Played(truth, result).check(*names)
    assert summary(result, "unwound") == truth["Unwound"]
    assert of_kind(result, "attached")[0]["attach"] == method


def test_jumps_to_a_function_that_is_not_traced() -> None:
    """Such a call is not measured: not up to the end of the next one at its depth either."""
    names = ("main.depart", "main.stacked")
    truth, result = measure(program(), "departing", "-F", *names)
    Played(truth, result).check(*names)
    assert summary(result, "unwound") == truth["Functions"]["main.landed"]["Calls"] == 101
    (warning,) = of_kind(result, "warning")
    assert warning["message"].startswith("main.depart also ends by jumping to another function")


def test_jumps_to_a_function_that_is_traced() -> None:
    names = ("main.depart", "main.landed", "main.stacked")
    truth, result = measure(program(), "departing", "-F", *names)
    jumped = truth["Functions"]["main.landed"]
    for field in ("Calls", "Outer"):
        truth["Functions"]["main.depart"][field] += jumped[field]
    Played(truth, result).check(*names)
    assert summary(result, "unwound") == 0


def test_jumps_from_one_place_again_and_again() -> None:
    """A function that is called anew is not one that the last call has led to."""
    # At landings such calls are seen to end.
    words = ("-F", "--returns", "ret", "main.each", "main.chain", "main.depart")
    truth, result = measure(program(), "chains", *words)
    calls = truth["Functions"]["main.chain"]["Calls"]
    (row,) = of_kind(result, "histogram")
    assert (row["func"], row["count"]) == ("main.each", 1)
    assert summary(result, "unwound") == 2 * calls
    assert of_kind(result, "lost") == []


def test_jumps_through_several_functions() -> None:
    names = ("main.each", "main.chain", "main.depart", "main.landed")
    truth, result = measure(program(), "chains", "-F", *names)
    chained = truth["Functions"]["main.chain"]
    for name in names[2:]:
        truth["Functions"][name] = chained
    Played(truth, result).check(*names)
    assert summary(result, "unwound") == 0


def test_predicate_that_drops_a_call_after_one_that_left() -> None:
    """The RET of a call that is not wanted is not that of an earlier one, which left by a jump."""
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), "main.depart(n int) int (n == 1)")
        with tool("gotrace", *words) as tracing:
            truth = fixture.work("departing")
            result = tracing.end()
    assert of_kind(result, "call") == []
    left = summary(result, "unwound") + summary(result, "open")
    assert left == truth["Functions"]["main.landed"]["Calls"]


def test_footer_is_silent_when_all_is_well() -> None:
    truth, result = measure(program(), "slow", "main.slow")
    assert_within(truth["Functions"]["main.slow"], *of_kind(result, "histogram"))
    assert {row["what"] for row in of_kind(result, "summary")} <= {"probe_cost", "cost"}


def test_exit_of_the_program_leaves_calls_open() -> None:
    with Fixture([program()]) as fixture:
        with tool("gofunclatency", "--json", "-p", str(fixture.ready), "main.exits") as measuring:
            fixture.say("exit")
            result = measuring.result()
        assert fixture.wait() == 3
    assert result.status == 0
    assert summary(result, "open") == 7
    assert of_kind(result, "exited")[0]["pid"] == fixture.ready
    assert of_kind(result, "histogram") == []


def test_kill_of_the_program_leaves_results() -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gofunclatency", "--json", "-p", str(fixture.ready), "main.short") as measuring,
    ):
        fixture.say("endless")
        fixture.read_until("endless")
        fixture.signal(signal.SIGKILL)
        result = measuring.result()
    assert result.status == 0
    (row,) = of_kind(result, "histogram")
    assert row["count"] >= 400
    assert_consistent(row)


def test_command_is_measured_from_its_first_call() -> None:
    with tool("gofunclatency", "-c", str(program()), "main.keep") as measuring:
        measuring.lines_until("ready ")
        measuring.say("workers")
        measuring.lines_until("truth ")
        measuring.say()
        result = measuring.result()
    assert result.status == 0
    assert any(line.endswith("count: 20\n") for line in result.lines)


def test_goroutines_of_a_command_that_has_ended_have_names() -> None:
    """Where a position-independent program lies can only be read while it lives."""
    words = ("-g", "--top", "100", "-c", str(program(mode="pie")), "main.task")
    with tool("gofunclatency", *words) as measuring:
        measuring.lines_until("ready ")
        measuring.say("workers")
        workers = json.loads(measuring.lines_until("truth "))["Workers"]
        measuring.say()
        result = measuring.result()
    text = "".join(result.lines)
    assert len(workers) == 20
    for worker in workers:
        name = f"goroutine {worker['Goid']} [{worker['Start']}, created at"
        assert name in text


def test_each_function_has_a_histogram_in_recordings_and_if_they_are_few() -> None:
    names = ("main.recurse", "main.grow")
    with Fixture([program()]) as fixture:
        words = ("-p", str(fixture.ready))
        with (
            tool("gofunclatency", "--json", *words, "main.*") as recording,
            tool("gofunclatency", *words, *names) as measuring_few,
            tool("gofunclatency", *words, "main.*") as measuring_many,
        ):
            truth = fixture.work("recursion growth")
            recorded, few, many = (one.end() for one in (recording, measuring_few, measuring_many))
        assert fixture.finish() == 0
    rows = histograms(recorded)
    for name in names:
        assert rows[name]["count"] == truth["Functions"][name]["Calls"]
    shown = re.findall(r"^Function = (\S+)$", "".join(few.lines), re.MULTILINE)
    assert sorted(shown) == sorted(names) and "one histogram" not in few.errors
    text = "".join(many.lines)
    assert "Function =" not in text
    assert re.findall(r", count: (\d+)", text) == [str(sum(row["count"] for row in rows.values()))]
    said = r"one histogram has the calls of all \d\d functions: -F makes one for each function"
    assert re.search(said, many.errors)


def test_top_functions_are_those_with_the_most_time() -> None:
    words = ("-F", "--top", "1", "main.slow", "main.stacked")
    _, result = measure(program(), "slow assembly", *words)
    assert set(histograms(result)) == {"main.slow"}


def test_no_call_at_all() -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gofunclatency", "-p", str(fixture.ready), "main.once") as measuring,
    ):
        result = measuring.end()
    assert (result.status, result.errors) == (0, "")
    assert result.lines[1:] == ["no calls\n", "Detaching...\n"]


def test_one_call() -> None:
    truth, result = measure(program(), "one", "main.short")
    (row,) = of_kind(result, "histogram")
    assert_within(truth["Functions"]["main.short"], row)
    assert row["func"] == "main.short"
    marks = {row[f"{mark}_ns"] for mark in ("min", "p50", "p90", "p99", "p999", "max")}
    assert marks == {row["sum_ns"]}


def test_function_that_never_returns_is_named() -> None:
    _, result = measure(program(), "one", "main.never", "main.short")
    (warning,) = of_kind(result, "warning")
    assert warning["message"] == "main.never cannot be measured: it never returns"
    assert of_kind(result, "histogram")[0]["count"] == 1
    listed = run_tool("gofunclatency", "--list", "--json", f"{program()}:main.*")
    assert warning["message"] in {row["message"] for row in of_kind(listed, "warning")}
    assert "main.never" not in {row["func"] for row in of_kind(listed, "function")}
    by = run_tool("gofunclatency", "--by", "$goid", f"{program()}:main.never")
    assert (by.status, by.errors) == (3, f"gofunclatency: {warning['message']}\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("main.tail", "it ends by jumping elsewhere"),
        ("main.oneInstruction", "it is a single instruction"),
    ],
)
def test_nothing_to_measure(name: str, why: str) -> None:
    path = build(FIXTURES / "live_count", newest())
    result = run_tool("gofunclatency", f"{path}:{name}")
    assert (result.status, result.lines) == (3, [])
    assert result.errors == f"gofunclatency: {name} cannot be measured: {why}\n"


def test_intervals_sum_to_the_total() -> None:
    with Fixture([program()]) as fixture:
        words = ("-i", "0.02", "-p", str(fixture.ready), "main.short")
        with tool("gofunclatency", "--json", *words) as measuring:
            for _ in range(3):
                truth = fixture.work("rounds")
                measuring.lines_until('{"kind":"histogram"')
            result = measuring.end()
    rows = of_kind(result, "histogram")
    assert len(rows) >= 3
    assert_within(truth["Functions"]["main.short"], *rows)


@pytest.mark.parametrize("options", [["-F"], ["-g", "-u"]], ids=" ".join)
def test_intervals_lose_nothing_under_load(options: list[str]) -> None:
    with Fixture([program()]) as fixture:
        words = ("-i", "0.03", "-p", str(fixture.ready), "main.short")
        with tool("gofunclatency", "--json", *options, *words) as measuring:
            fixture.say("endless")
            fixture.read_until("endless")
            for _ in range(10):
                measuring.lines_until('{"kind":"histogram"')
            truth = fixture.work()
            result = measuring.end()
    rows = of_kind(result, "histogram")
    assert_within(truth["Functions"]["main.short"], *rows)
    assert of_kind(result, "rest") == []


@pytest.mark.parametrize(
    "options",
    [["-u"], ["-g", "-u"], ["-F", "-i", "9"], ["-F", "-g", "-m", "--slower", "1s"]],
    ids=" ".join,
)
def test_options_go_together(options: list[str]) -> None:
    truth, result = measure(program(), "rounds", *options, "main.short", "main.once")
    (row,) = of_kind(result, "histogram")
    assert_within(truth["Functions"]["main.short"], row)


@pytest.mark.parametrize("minor", ["1.23", "1.27"])
def test_coroutines_that_goexit_ends_have_ended(minor: str) -> None:
    with Fixture([build(FIXTURES / "live_coroutines", require(minor))]) as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), "main.exits", "main.ends", "main.pull")
        with tool("gofunclatency", *words) as measuring:
            calls = fixture.work()["calls"]
            result = measuring.end()
        assert fixture.finish() == 0
    seen = {name: row["count"] for name, row in histograms(result).items()}
    assert seen == {"main.ends": calls, "main.pull": calls}
    # Goexit ends the one who waits for the coroutine as well.
    assert (summary(result, "unwound"), summary(result, "open")) == (2 * calls, 0)


@pytest.mark.parametrize("flags", [(), ("-fno-split-stack",)], ids=["split", "no-split"])
def test_gccgo_is_measured_by_thread(flags: tuple[str, ...]) -> None:
    gccgo.check_times(gccgo_build(FIXTURES / "live_gccgo", flags))


def test_gccgo_goroutines_that_change_threads_are_said_to_have_done_so() -> None:
    with Fixture([gccgo_build(FIXTURES / "live_gccgo", ())]) as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), "main.migrate")
        with tool("gofunclatency", *words) as measuring:
            truth = fixture.work()
            result = measuring.end()
    assert truth["moved"] > 0
    rows = histograms(result)
    measured = rows["main.migrate"]["count"] if rows else 0
    (lost,) = [row for row in of_kind(result, "summary") if row["what"] == "unmatched"]
    assert (measured, lost["calls"]) == (7 - truth["moved"], truth["moved"])
    assert "changed threads within the call" in lost["message"]


@pytest.mark.parametrize("minor", ["1.15", "1.27"])
def test_functions_of_c_are_measured_beside_those_of_go(minor: str) -> None:
    with Fixture([build(FIXTURES / "live_cgo", require(minor))]) as fixture:
        names = ("c_calls", "c_leaf", "c_calls_go", "main.goLeaf")
        words = ("--json", "-F", "-p", str(fixture.ready), *names)
        with tool("gofunclatency", *words) as measuring:
            truth = fixture.work()
            result = measuring.end()
    rows = histograms(result)
    assert {name: rows[name]["count"] for name in names} == truth["calls"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_end_of_the_tool_under_load_leaves_the_target_as_it_was(number: signal.Signals) -> None:
    with Fixture([program()]) as fixture:
        pid = str(fixture.ready)
        listed = run_tool("gofunclatency", "-l", "--json", "-p", pid, "main.short")
        (row,) = of_kind(listed, "function")
        addresses = [row["site"], *row["rets"]]
        clean = code_at(fixture.ready, addresses)
        with tool("gofunclatency", "-p", pid, "main.short") as measuring:
            fixture.say("endless")
            fixture.read_until("endless")
            assert code_at(fixture.ready, addresses) == b"\xcc" * len(addresses)
            measuring.signal(number)
            measuring.rest()
            measuring.wait_for_keepers()
            assert code_at(fixture.ready, addresses) == clean
        assert fixture.work()["Functions"]["main.short"]["Calls"] > 400
        assert fixture.finish() == 0


def test_closed_output_ends_the_run_quietly() -> None:
    with Fixture([program()]) as fixture:
        words = ("-i", "0.02", "-p", str(fixture.ready), "main.short")
        with tool("gofunclatency", *words) as measuring:
            fixture.say("endless")
            fixture.read_until("endless")
            measuring.close_output()
            assert measuring.wait() == 0
        assert measuring.errors == ""


def test_program_in_another_mount_namespace(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/program" && exec "$1/program"'
    command: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, "sh", inside, program()]
    with Fixture(command) as fixture:
        with tool("gofunclatency", "--json", "-p", str(fixture.ready), "main.short") as measuring:
            truth = fixture.work("rounds")
            result = measuring.end()
        fixture.finish()
    assert_within(truth["Functions"]["main.short"], *of_kind(result, "histogram"))


def test_every_process_of_a_file_is_measured() -> None:
    """Goroutines of one number in two processes are not mixed up."""
    with (
        Fixture([program()]) as one,
        Fixture([program()]) as other,
        tool("gofunclatency", "--json", f"{program()}:main.interleave") as measuring,
    ):
        one.say("interleaved")
        other.say("interleaved")
        result = _finish(one, other, measuring.end)
    (row,) = of_kind(result, "histogram")
    assert row["count"] == 2 * 17 * 101
    assert {row["what"] for row in of_kind(result, "summary")} <= {"probe_cost", "cost"}


def _finish(one: Fixture, other: Fixture, end: Any) -> Result:
    one.read_until("truth ")
    other.read_until("truth ")
    result: Result = end()
    return result
