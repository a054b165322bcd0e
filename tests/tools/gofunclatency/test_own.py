# SPDX-License-Identifier: Apache-2.0
"""Time by stack, of functions that call each other, beside a program that measures its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.report.merged import merged_profile
from tests.profiles.raw import raw_profile
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

Json = dict[str, Any]
FUNCTIONS = ("inner", "middle", "outer", "recovers", "panics", "stops", "recurses", "spreads")


def callers(row: Json) -> set[str]:
    """Return the functions of a row's stack, of which a deep one has its innermost frames."""
    stack = row["by"]["$stack"]
    return {frame["func"] for frame in (stack if isinstance(stack, list) else stack["$elements"])}


def test_rows_of_calls_within_calls_add_up(tmp_path: Path) -> None:
    """With recursion beyond the stacks that are kept, panics, and goroutines, in each form."""
    folded, profile, recording = (tmp_path / f"x{end}" for end in (".folded", ".pb.gz", ".ndjson"))
    with Fixture([build(FIXTURES / "live_nested", newest())]) as fixture:
        words = ("-p", str(fixture.ready), *(f"main.{name}" for name in FUNCTIONS))
        with (
            tool("gofunclatency", "--by", "$stack", "--json", *words) as adding,
            tool("gofunclatency", "-o", str(folded), *words) as folding,
            tool("gofunclatency", "-o", str(profile), *words) as writing,
        ):
            truth = fixture.work("go")
            results = [one.end() for one in (adding, folding, writing)]
        assert fixture.finish() == 0
    # One of the functions never returns: that is said, and the others are measured.
    assert [result.status for result in results] == [3, 3, 3], results
    rows = of_kind(results[0], "histogram")
    names = {f"main.{name}" for name in FUNCTIONS} - {"main.stops", "main.panics"}
    assert {row["func"] for row in rows} == names
    own: Counter[str] = Counter()
    for row in rows:
        own[row["func"]] += row["own_ns"]
    outermost = [row for row in rows if not names & callers(row)]
    whole = sum(row["sum_ns"] for row in outermost)
    assert sum(own.values()) == whole < sum(row["sum_ns"] for row in rows) / 2
    lines = [line.rsplit(" ", 1) for line in folded.read_text().splitlines()]
    by_leaf: Counter[str] = Counter()
    for stack, weight in lines:
        by_leaf[stack.rsplit(";", 1)[1]] += int(weight)
    samples = raw_profile(profile).samples
    for name in sorted(names):
        expected = truth[name.removeprefix("main.")]
        for found in (own[name], by_leaf[name]):
            assert 0.95 * expected < found < 2 * expected + 50_000_000, (name, found, expected)
    assert abs(sum(sample.values[1] for sample in samples) - whole) < 0.1 * whole
    recording.write_text("".join(results[0].lines))
    merged = merged_profile(gotrace.merge(recording))
    assert merged is not None and sum(row.values[1] for row in merged.rows) == whole
    assert {row.stack[0].lines[0].function for row in merged.rows} == names
