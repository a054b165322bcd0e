# SPDX-License-Identifier: Apache-2.0
"""Run gofunclatency on the program that times its own calls, and compare the two."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toolchains import program_of
from tests.tools.harness import Fixture, Result, of_kind, tool

Json = dict[str, Any]

#: The functions of the fixture that return, unless a panic or the program's end keeps them.
MEASURED = tuple(
    f"main.{name}"
    for name in (
        *("recurse", "interleave", "migrate", "grow", "stacked", "park", "stay", "leave"),
        *("thrown", "recovering", "outside", "middle", "inner", "cleanup"),
        *("short", "task", "once", "slow"),
    )
)


program = program_of("live_latency")


def measure(path: Path, order: str, *arguments: str | Path) -> tuple[Json, Result]:
    """Measure what the fixture does at an order; return its truth and the tool's JSON result."""
    with Fixture([path]) as fixture:
        with tool("gofunclatency", "--json", "-p", str(fixture.ready), *arguments) as measuring:
            truth = fixture.work(order)
            result = measuring.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def histograms(result: Result) -> Mapping[str, Json]:
    """Return the histogram of each function, of a run with one interval and without -g."""
    rows = of_kind(result, "histogram")
    by_name = {row["func"]: row for row in rows}
    assert len(by_name) == len(rows)
    return by_name


def summary(result: Result, what: str) -> int:
    """Return a number of the footer, 0 where it is silent."""
    return sum(row["calls"] for row in of_kind(result, "summary") if row["what"] == what)


def assert_within(times: Json, *rows: Json) -> None:
    """Hold that rows have a function's calls, all of them, and times between its own two."""
    count, total = (sum(row[field] for row in rows) for field in ("count", "sum_ns"))
    assert count == times["Calls"]
    if times["Outer"]:
        # The kernel's clock for tracers may lag behind that of programs by some nanoseconds.
        assert times["Inner"] - 10 * count <= total <= times["Outer"] + 10 * count
    if times["Longest"]:
        assert max(row["max_ns"] for row in rows) >= times["Longest"] - 10
    for row in rows:
        assert_consistent(row)


def assert_consistent(row: Json) -> None:
    """Hold that what a histogram says of itself agrees."""
    marks = [row[f"{mark}_ns"] for mark in ("min", "p50", "p90", "p99", "p999", "max")]
    assert marks == sorted(marks)
    assert sum(bucket[2] for bucket in row["buckets"]) == row["count"]
    assert row["min_ns"] * row["count"] <= row["sum_ns"] <= row["max_ns"] * row["count"]
    low, high = row["buckets"][0][0], row["buckets"][-1][1]
    assert low <= row["min_ns"] <= row["max_ns"] < high
    assert row["interval_s"] > 0 and re.fullmatch(r"\d{10}(\.\d+)?", str(row["ts"]))
