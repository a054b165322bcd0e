# SPDX-License-Identifier: Apache-2.0
"""``--budget``: calls that cost too much are counted, and then left alone."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.target.process import find_process
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Result, of_kind, tool

pytestmark = pytest.mark.live

Json = dict[str, Any]


@pytest.fixture
def storm() -> Iterator[Fixture]:
    with Fixture([build(FIXTURES / "live_storm", newest())]) as fixture:
        yield fixture


def go_on(storm: Fixture) -> None:
    """Wait until the storm has run for 20 ms of CPU time more: it has made calls then."""
    process = find_process(storm.ready)
    until = (process.cpu_ns() or 0) + 20_000_000
    while (process.cpu_ns() or until) < until:
        time.sleep(0.02)


def traced(
    storm: Fixture,
    *command: str,
    off: Collection[str] = (),
    rate: int = 30_000,
    ends: bool = False,
) -> tuple[Result, int]:
    """Trace the storm until the budget is exceeded, or by all of ``off``; count its calls, too.

    ``ends``: the run ends by itself then.
    """
    with tool(*command, "--json", "-p", str(storm.ready)) as running:
        storm.say(f"1 {rate}")
        storm.read_until("busy")
        lightened: set[str] = set()
        while not lightened or not lightened.issuperset(off):
            running.lines_until('{"kind":"warning"')
            row = json.loads(running.head[-1])
            if "level" in row:
                lightened.update(row.get("funcs", ["all"]))
        go_on(storm)
        calls: int = storm.work()["Calls"]
        # A signal to one that is about to end would be the end of it.
        return running.result() if ends else running.end(), calls


def said(result: Result) -> list[Json]:
    return [row for row in of_kind(result, "warning") if row.get("what") == "budget"]


def levels(result: Result) -> list[tuple[str, str]]:
    found = [row for row in said(result) if "level" in row]
    return [(name, row["level"]) for row in found for name in row["funcs"]]


def test_calls_that_cost_too_much_are_counted_and_each_of_them_is(storm: Fixture) -> None:
    result, calls = traced(
        *(storm, "gofunclatency", "-F", "--returns", "ret", "--budget", "8%"),
        *("main.hit", "main.deep"),
    )
    assert ("main.hit", "counted") in levels(result)
    assert all(row["share"] > 0.08 for row in said(result) if "level" in row)
    (rows,) = [row for row in of_kind(result, "histogram") if row["func"] == "main.hit"]
    (counted,) = [row for row in said(result) if "counted" in row]
    if ("main.hit", "off") not in levels(result):
        assert rows["count"] + counted["counted"] == calls
    # Others are traced as before: the storm's frames are the calls of deep.
    assert [row["count"] for row in of_kind(result, "histogram") if row["func"] == "main.deep"]
    assert not of_kind(result, "lost")


def test_beyond_that_they_are_not_seen(storm: Fixture) -> None:
    result, calls = traced(storm, "gofunccount", "--budget", "0.5%", "main.hit", "main.deep")
    assert levels(result) == [("main.hit", "off")]
    counts = {row["func"]: row["count"] for row in of_kind(result, "count")}
    assert 0 < counts["main.hit"] < calls
    assert counts["main.deep"] == 25


def test_a_run_that_has_nothing_else_ends(storm: Fixture) -> None:
    result, _ = traced(storm, "gofunccount", "--budget", "0.5%", "main.hit", ends=True)
    assert levels(result) == [("main.hit", "off")]
    assert result.status == 0 and of_kind(result, "count")


def test_watching_waits_ends(storm: Fixture) -> None:
    result, _ = traced(storm, "gooffcpu", "--budget", "0.01%", rate=1000, ends=True)
    (row,) = said(result)
    assert row["level"] == "ended" and row["message"].startswith("the run ends: tracing took ")
    assert result.status == 0


def test_calls_at_landings_are_counted_as_well(storm: Fixture) -> None:
    result, _ = traced(
        *(storm, "gofunclatency", "-F", "--returns", "landing", "--budget", "3%"),
        *("main.hit", "main.deep"),
    )
    assert levels(result)[0] == ("main.hit", "counted")
    moves = [row for row in of_kind(result, "moved") if row["func"] == "main.hit"]
    assert [row["returns"] for row in moves] in ([], ["landing"])


def test_records_are_counted_as_well(storm: Fixture) -> None:
    words = ("--returns", "ret", "--budget", "10%", "main.hit (n < 0)")
    result, _ = traced(storm, "gotrace", *words)
    assert levels(result)[0] == ("main.hit", "counted")
    assert [row["counted"] > 0 for row in said(result) if "counted" in row] == [True]


def test_within_the_budget_nothing_is_said(storm: Fixture) -> None:
    words = ("gofunclatency", "-F", "--budget", "50%", "-i", "1", "--json", "main.hit")
    with tool(*words, "-p", str(storm.ready)) as running:
        storm.say("1 1000")
        for _ in range(3):  # the budget is looked at as often
            running.lines_until('{"kind":"histogram"')
        calls = storm.work()["Calls"]
        result = running.end()
    assert said(result) == []
    assert sum(row["count"] for row in of_kind(result, "histogram")) == calls


def test_each_that_costs_too_much_is_said_once(storm: Fixture) -> None:
    hot = ("main.hit", "main.leaf", "main.stepped")
    result, _ = traced(storm, "gofunccount", "--budget", "0.5%", "main.*", off=hot)
    assert sorted(levels(result)) == [(name, "off") for name in hot]
    rows = [row for row in said(result) if "level" in row]
    assert all("calls are not seen from now on: tracing took " in row["message"] for row in rows)


def test_of_very_many_functions_all_are_held_to_it_together(storm: Fixture) -> None:
    """Beyond the functions that have rows of their own, the run ends."""
    words = ("gofunccount", "--budget", "0.5%", "main.*", "runtime.*", "reflect.*", "fmt.*")
    result, _ = traced(storm, *words, ends=True)
    (start,) = of_kind(result, "attached")
    assert start["functions"] > MAX_FUNCTIONS
    assert [row["level"] for row in said(result)] == ["ended"]
    assert result.status == 0 and of_kind(result, "count")
