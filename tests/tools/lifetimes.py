# SPDX-License-Identifier: Apache-2.0
"""Run tools on a program that starts many short-lived processes of itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.tools.harness import Fixture, Json, Result, json_counts, of_kind, tool
from tests.tools.latency import histograms

TOOLS = {
    "gofunccount": ("gofunccount", "--json"),
    "gofunclatency": ("gofunclatency", "--json", "-F"),
    "gotrace": ("gotrace", "--json"),
}

NAME = "main.brief"


def assert_all_calls(name: str, result: Result, calls: int) -> None:
    """Hold that a tool saw so many calls and lost none."""
    assert result.status == 0, result.errors
    if name == "gofunccount":
        assert json_counts(result) == {NAME: calls}
    elif name == "gofunclatency":
        assert histograms(result)[NAME]["count"] == calls
    else:
        assert len(of_kind(result, "call")) == calls
    assert of_kind(result, "lost") == []
    whats = {row["what"] for row in of_kind(result, "summary")}
    assert whats <= {"probe_cost", "cost", "late"}, result.lines


def trace_children(path: Path, children: int, *words: str) -> int:
    """Let all tools trace a program by path while it starts children; return all their calls."""
    words = (*words, f"{path}:{NAME}")
    with Fixture([path]) as fixture:
        with (
            tool(*TOOLS["gofunccount"], *words) as counting,
            tool(*TOOLS["gofunclatency"], *words) as measuring,
            tool(*TOOLS["gotrace"], *words) as tracing,
        ):
            truth = fixture.work(str(children))
            results = [counting.end(), measuring.end(), tracing.end()]
        assert fixture.finish() == 0
    calls: int = truth["parent"] + truth["children"] * truth["of_child"]
    for name, result in zip(TOOLS, results, strict=True):
        assert_all_calls(name, result, calls)
    _assert_calls_by_process(results[-1], truth, fixture.ready)
    return calls


def _assert_calls_by_process(result: Result, truth: Json, parent: int) -> None:
    """Hold the processes that gotrace names, and their arguments, against what was started."""
    calls = of_kind(result, "call")
    by_pid = Counter(call["pid"] for call in calls)
    assert by_pid.pop(parent) == truth["parent"]
    # A process number may come again when very many processes are started.
    assert sum(by_pid.values()) == truth["children"] * truth["of_child"]
    assert all(count % truth["of_child"] == 0 for count in by_pid.values())
    for pid in by_pid:
        own = [call["args"] for call in calls if call["pid"] == pid]
        assert [args["n"] for args in own] == list(range(truth["of_child"])) * (len(own) // 7)
        assert {args["who"] for args in own} == {"child"}
