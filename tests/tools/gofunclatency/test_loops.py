# SPDX-License-Identifier: Apache-2.0
"""Calls in loops are seen returning at the loop's end, where other ways lead to as well."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import FIXTURES, build, newest, toolchains
from tests.tools.harness import Fixture, Running, of_kind, tool
from tests.tools.latency import histograms, summary

pytestmark = pytest.mark.live

Json = dict[str, Any]

KINDS = "plain chosen skipped nested recursion interface panics goroutines"
FUNCTIONS = (
    *("main.plain", "main.chosen", "main.skipped", "main.inner", "main.down", "main.hop"),
    *("main.(*first).Do", "main.(*second).Do", "main.thrower", "main.caught"),
)


def loops(found: Any = None) -> Path:
    return build(FIXTURES / "live_loops", found or newest())


def next_move(running: Running) -> Json:
    move: Json = json.loads('{"kind":"moved"' + running.lines_until('{"kind":"moved"'))
    return move


def truth_of(fixture: Fixture) -> Json:
    fixture.say()
    fixture.read_until("done")
    return fixture.work("end")


@pytest.mark.parametrize("found", [toolchains()[0], newest()], ids=lambda found: found.version)
def test_each_call_in_a_loop_is_measured_once(found: Any) -> None:
    with Fixture([loops(found)]) as fixture:
        words = ("--json", "-F", "--returns", "landing", "-p", str(fixture.ready), *FUNCTIONS)
        with tool("gofunclatency", *words) as running:
            fixture.say(f"run {KINDS}")
            moved: set[str] = set()
            while moved != set(FUNCTIONS):
                move = next_move(running)
                moved |= {move["func"]} if move["returns"] == "landing" else set()
            fixture.say()
            fixture.read_until("done")
            fixture.say(f"run {KINDS}")  # once more, at landings alone
            truth = truth_of(fixture)
            result = running.end()
        assert fixture.finish() == 0
    unwound = truth.pop("unwound")
    truth["main.thrower"] -= unwound
    assert {name: row["count"] for name, row in histograms(result).items()} == truth
    assert summary(result, "unwound") == unwound
    assert not of_kind(result, "lost")


def test_a_plain_loop_moves_by_itself_and_pays_once() -> None:
    """Another function returns where the kernel steps as it does at RETs: it stays there."""
    with Fixture([loops()]) as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), "main.plain", "main.stepped")
        with tool("gofunclatency", *words) as running:
            fixture.say("run plain stepped")
            moves = {move["func"]: move for move in (next_move(running), next_move(running))}
            truth = truth_of(fixture)
            result = running.end()
        assert fixture.finish() == 0
    rows = histograms(result)
    assert {name: row["count"] for name, row in rows.items()} == truth
    assert rows["main.stepped"]["returns"] == "ret"
    assert "single-steps where most calls return" in moves["main.stepped"]["why"]
    assert moves["main.plain"]["places"] == {"emulated": 1, "shared": 1, "stepped": 0}
    assert moves["main.plain"]["message"].endswith(
        "1 emulated, 1 of these where other code comes by"
    )
    # No call is stepped at its RET, and then again in its caller.
    (cost,) = [row for row in of_kind(result, "summary") if row["what"] == "cost"]
    assert cost["stepped_hits"] <= sum(truth.values())


def test_a_landing_that_loops_pass_without_a_call_is_left() -> None:
    with Fixture([loops()]) as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), "main.rare")
        with tool("gofunclatency", *words) as running:
            fixture.say("run often")
            assert next_move(running)["places"] == {"emulated": 2, "shared": 2, "stepped": 0}
            fixture.say()
            fixture.read_until("done")
            fixture.say("run often rare")
            assert "other code comes by" in next_move(running)["why"]
            # The other loop has its landing still, and most of the calls.
            fixture.say()
            fixture.read_until("done")
            fixture.say("run often")
            assert next_move(running)["places"] == {"emulated": 1, "shared": 1, "stepped": 1}
            truth = truth_of(fixture)
            result = running.end()
        assert fixture.finish() == 0
    assert {name: row["count"] for name, row in histograms(result).items()} == truth
    assert not of_kind(result, "lost")


def test_each_call_in_a_loop_is_shown_once() -> None:
    probes = {"main.plain (n == 7)": 200, "main.inner (n == 1)": 4, "main.hop (n == 5)": 50}
    with Fixture([loops()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), *(f'{probe} "x"' for probe in probes))
        with tool("gotrace", *words) as running:
            fixture.say("run plain nested goroutines")
            assert [next_move(running)["returns"] for _ in probes] == ["landing"] * 3
            truth = truth_of(fixture)
            result = running.end()
        assert fixture.finish() == 0
    seen = Counter(row["func"] for row in of_kind(result, "call"))
    names = {probe.split()[0]: each for probe, each in probes.items()}
    assert seen == {name: truth[name] // each for name, each in names.items()}
    assert not of_kind(result, "lost")
