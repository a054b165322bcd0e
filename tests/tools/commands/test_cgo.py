# SPDX-License-Identifier: Apache-2.0
"""Trace Go functions that threads of C call, and C functions on threads without a goroutine."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, newest, require, toolchains
from tests.tools.cgo import check_counts, check_times, counts, run
from tests.tools.harness import Fixture, json_counts, of_kind, tool
from tests.tools.latency import histograms

pytestmark = [pytest.mark.live, pytest.mark.apart]

BUILDS = [
    *(
        pytest.param(found, (), id=f"go{found.minor}")
        for found in (*toolchains()[:1], *toolchains()[-1:])
    ),
    pytest.param(newest(), ("-race",), id="race"),
    pytest.param(newest(), ("-buildmode=pie",), id="pie"),
]


def program(toolchain: Toolchain, flags: tuple[str, ...] = ()) -> Path:
    return build(FIXTURES / "live_cgo_threads", toolchain, flags=flags)


@pytest.mark.parametrize(("toolchain", "flags"), BUILDS)
def test_counts_on_threads_of_c(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    check_counts(program(toolchain, flags))


@pytest.mark.parametrize(("toolchain", "flags"), BUILDS)
def test_times_on_threads_of_c(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    check_times(program(toolchain, flags))


def test_first_calls_on_several_threads_at_once() -> None:
    """Threads of C share a row of histograms, which must not be made twice."""
    with Fixture([build(FIXTURES / "live_first_calls", newest())]) as fixture:
        words = ("--json", "-F", "-g", "--top", "1000", "-p", str(fixture.ready), "first_*")
        with tool("gofunclatency", *words) as measuring:
            truth = fixture.work()
            result = measuring.end()
        assert fixture.finish() == 0
    rows = {row["func"]: row for row in of_kind(result, "histogram")}
    assert len(rows) == truth["functions"]
    assert {(row["goid"], row["count"]) for row in rows.values()} == {(0, truth["threads"])}
    assert of_kind(result, "rest") == of_kind(result, "lost") == []


@pytest.mark.parametrize(("toolchain", "flags"), BUILDS)
def test_calls_on_threads_of_c(toolchain: Toolchain, flags: tuple[str, ...]) -> None:
    patterns = ("main.goLeaf", "c_leaf(n int32) int32", "c_to_go(n int32) int32")
    truth, result = run("gotrace", program(toolchain, flags), "--json", *patterns)
    calls = of_kind(result, "call")
    assert Counter(call["func"] for call in calls) == counts(truth)
    of_go = [call for call in calls if call["func"] == "main.goLeaf"]
    assert Counter(str(call["goid"]) for call in of_go) == truth["goids"]
    assert {call["goid"] for call in calls if call["func"] != "main.goLeaf"} == {0}
    assert of_kind(result, "lost") == []


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_values_of_c_functions_by_signature(minor: str) -> None:
    patterns = ("c_leaf(n int32) int32", "c_to_go(n int32) int32", "main.goLeaf")
    truth, result = run("gotrace", program(require(minor)), *patterns)
    lines = "".join(result.lines)
    leaves = re.findall(r"c_leaf\(n=(\d+)\) = (\d+)\n", lines)
    assert len(leaves) == truth["c_leaf"]
    assert all(int(result) == 7 * int(n) for n, result in leaves)
    both = re.findall(r"c_to_go\(n=(\d+)\) = (\d+)\n", lines)
    assert len(both) == truth["c_to_go"]
    assert all(int(result) == 17 * int(n) for n, result in both)


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_counts_and_times_of_a_race_build(minor: str) -> None:
    """The race detector's calls come before the function's own code, its registers are kept."""
    path = build(FIXTURES / "live_count", require(minor), flags=["-race"])
    names = ("main.smallFrame", "main.largeFrame", "main.leaf", "main.stacked")
    with Fixture([path]) as fixture:
        words = ("--json", "-p", str(fixture.ready), *names)
        with tool("gofunccount", *words) as counting, tool("gofunclatency", "-F", *words) as timing:
            truth = fixture.work()
            counted, timed = counting.end(), timing.end()
        assert fixture.finish() == 0
    wanted = {name: truth["calls"][name] for name in names}
    assert json_counts(counted) == wanted
    assert {name: row["count"] for name, row in histograms(timed).items()} == wanted
