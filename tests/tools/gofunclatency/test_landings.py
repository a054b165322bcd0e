# SPDX-License-Identifier: Apache-2.0
"""Calls that are seen returning in their callers are measured, or counted as those of new ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, build, newest, toolchains
from tests.tools.harness import Fixture, Result, Running, of_kind, tool
from tests.tools.latency import MEASURED, assert_within, histograms, program, summary

pytestmark = pytest.mark.live

Json = dict[str, Any]

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


@pytest.fixture(scope="module", params=BUILDS, ids=lambda case: f"go{case[0].minor}-{case[1]}")
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
            fixture.work(STORY)
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
