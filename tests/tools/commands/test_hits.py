# SPDX-License-Identifier: Apache-2.0
"""Hold the hits of probes that calls contain against programs that know how often they call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import Toolchain, newest, program_of, toolchains
from tests.tools.harness import Fixture, Result, of_kind, tool
from tests.tools.trace import calls_of

pytestmark = pytest.mark.live

# The numbers of calls in the fixture; each call is two hits, at its entry and its RET.
LEAVES, DEPTH, AFTER, STARTED = 97, 5, 3, 11
WITHIN_PARENT = 2 * LEAVES
WITHIN_GRANDPARENT = 2 * (WITHIN_PARENT + 2) + 2
FIB_CALLS = 21891  # of fib(20)


program = program_of("live_hits")


def run(name: str, path: Path, *arguments: str) -> Result:
    """Run a tool while the fixture makes its calls once."""
    with Fixture([path]) as fixture:
        with tool(name, "--json", "-p", str(fixture.ready), *arguments) as running:
            fixture.work("once")
            result = running.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return result


@pytest.mark.parametrize(
    "toolchain", (toolchains()[0], newest()), ids=lambda found: f"go{found.minor}"
)
def test_hits_within_calls_are_exact(toolchain: Toolchain) -> None:
    """Whatever becomes of the calls within: those that a panic unwinds were entered as well.

    The hit at runtime.recovery is one more. What other goroutines do meanwhile is not within.
    """
    names = ("leaf", "parent", "grandparent", "thrown", "recovering", "spawn")
    patterns = [f"main.{name}" for name in names]
    result = run("gofunclatency", program(toolchain), "-F", *patterns)
    found = {row["func"]: row for row in of_kind(result, "histogram")}
    assert {name: row["probe_hits"] for name, row in found.items()} == {
        "main.leaf": 0,
        "main.parent": 3 * WITHIN_PARENT,
        "main.grandparent": WITHIN_GRANDPARENT,
        "main.recovering": DEPTH + 1 + 2 * AFTER,
        "main.spawn": 0,
    }
    assert all(0 < row["probe_ns"] <= row["sum_ns"] for row in found.values())


def test_hits_on_the_system_stack_are_within_the_goroutines_call() -> None:
    result = run("gofunclatency", program(), "-F", "main.spawn", "runtime.newproc1")
    found = {row["func"]: row for row in of_kind(result, "histogram")}
    assert found["main.spawn"]["probe_hits"] == 2 * STARTED
    assert found["runtime.newproc1"]["count"] >= STARTED


def test_goroutines_rows_and_slow_calls_have_their_hits() -> None:
    words = ("-F", "-g", "--slower", "1ns", "main.parent", "main.leaf")
    result = run("gofunclatency", program(), *words)
    slow = [row for row in of_kind(result, "slow") if row["func"] == "main.parent"]
    assert [row["probe_hits"] for row in slow] == [WITHIN_PARENT] * 3
    assert all(0 < row["probe_ns"] <= row["duration_ns"] for row in slow)
    rows = [row for row in of_kind(result, "histogram") if row["func"] == "main.parent"]
    assert sum(row["probe_hits"] for row in rows) == 3 * WITHIN_PARENT


def test_time_of_a_traced_recursion_is_mostly_tracing() -> None:
    """Without the probes a call of fib(2) takes some nanoseconds; the least is undisturbed."""
    result = run("gofunclatency", program(), "-F", "--slower", "1ns", "main.fib", "main.parent")
    fib = next(row for row in of_kind(result, "histogram") if row["func"] == "main.fib")
    assert fib["count"] == FIB_CALLS
    assert 0 < fib["probe_ns"] <= fib["sum_ns"]
    innermost = [row for row in of_kind(result, "slow") if row["probe_hits"] == 4]
    least = min(innermost, key=lambda row: row["duration_ns"])
    assert least["func"] == "main.fib"
    assert least["probe_ns"] > least["duration_ns"] / 3


def test_traced_calls_have_their_hits() -> None:
    words = ("main.leaf", "main.parent", "main.grandparent", "main.recovering", "main.thrown")
    result = run("gotrace", program(), *words)
    hits = {
        name: [call["probe_hits"] for call in calls_of(result, f"main.{name}")]
        for name in ("parent", "grandparent", "recovering")
    }
    assert hits == {
        "parent": [WITHIN_PARENT] * 3,
        "grandparent": [WITHIN_GRANDPARENT],
        "recovering": [DEPTH + 1 + 2 * AFTER],
    }
    assert {call["probe_hits"] for call in calls_of(result, "main.leaf")} == {0}
    (outer,) = calls_of(result, "main.grandparent")
    assert 0 < outer["probe_ns"] <= outer["duration_ns"]


def test_calls_that_a_predicate_drops_are_hits_all_the_same() -> None:
    result = run("gotrace", program(), "main.parent", "main.leaf (n == 3)")
    assert len(calls_of(result, "main.leaf")) == 3
    assert [call["probe_hits"] for call in calls_of(result, "main.parent")] == [WITHIN_PARENT] * 3


def test_calls_seen_at_their_entry_contain_nothing() -> None:
    result = run("gotrace", program(), "--entry", "main.parent")
    assert [call["probe_ns"] for call in calls_of(result, "main.parent")] == [None] * 3
