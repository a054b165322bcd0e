# SPDX-License-Identifier: Apache-2.0
"""Run tools on a program that gccgo has compiled, and hold them to its own account."""

from __future__ import annotations

from pathlib import Path

from tests.tools.harness import Fixture, count_on, json_counts, of_kind, tool
from tests.tools.latency import histograms

_COUNTED = ("main.smallFrame", "main.largeFrame", "main.leaf", "main.square.grow")
_MEASURED = ("main.leaf", "main.square.grow")


def check_counts(path: Path, *options: str) -> int:
    """Hold counts to the program's; return how many calls."""
    with Fixture([path]) as fixture:
        truth, result = count_on(fixture, *options, *_COUNTED)
        assert fixture.finish() == 0
    wanted = {name: truth["calls"][name] for name in _COUNTED}
    assert json_counts(result) == wanted
    assert of_kind(result, "lost") == []
    return sum(wanted.values())


def check_times(path: Path) -> int:
    """Hold calls that are measured by thread to the program's; return how many."""
    with Fixture([path]) as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), *_MEASURED)
        with tool("gofunclatency", *words) as measuring:
            truth = fixture.work()
            result = measuring.end()
        assert fixture.finish() == 0
    rows = histograms(result)
    wanted = {name: truth["calls"][name] for name in _MEASURED}
    assert {name: row["count"] for name, row in rows.items()} == wanted
    (warning,) = of_kind(result, "warning")
    assert warning["message"].endswith("calls are distinguished by thread")
    return sum(wanted.values())
