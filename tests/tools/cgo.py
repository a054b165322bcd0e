# SPDX-License-Identifier: Apache-2.0
"""Run tools on the program whose C threads call Go functions, and hold them to its own account."""

from __future__ import annotations

from pathlib import Path

from tests.tools.harness import Fixture, Json, Result, json_counts, of_kind, tool

NAMES = ("main.goLeaf", "c_leaf", "c_to_go")


def run(name: str, path: Path, *words: str) -> tuple[Json, Result]:
    """Run a tool while the fixture works; return the fixture's truth, and the tool's result."""
    with Fixture([path]) as fixture:
        with tool(name, *words, "-p", str(fixture.ready)) as tracing:
            truth = fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def counts(truth: Json) -> Json:
    calls = sum(truth["goids"].values())
    return {"main.goLeaf": calls, "c_leaf": truth["c_leaf"], "c_to_go": truth["c_to_go"]}


def check_counts(path: Path) -> None:
    truth, result = run("gofunccount", path, "--json", *NAMES)
    assert json_counts(result) == counts(truth)
    assert truth["c_leaf"] == 2 * truth["c_to_go"] + 80


def check_times(path: Path) -> int:
    """Hold calls to the goroutines that ran them, calls of C to no goroutine; return how many."""
    words = ("--json", "-F", "-g", "--top", "100", *NAMES)
    truth, result = run("gofunclatency", path, *words)
    rows = of_kind(result, "histogram")
    goids = {str(r["goid"]): r["count"] for r in rows if r["func"] == "main.goLeaf"}
    assert goids == truth["goids"]
    others = {r["func"]: (r["goid"], r["count"]) for r in rows if r["func"] != "main.goLeaf"}
    assert others == {name: (0, truth[name]) for name in ("c_leaf", "c_to_go")}
    assert of_kind(result, "rest") == of_kind(result, "lost") == []
    return sum(row["count"] for row in rows)
