# SPDX-License-Identifier: Apache-2.0
"""Inlined calls in gotrace: where they are made, and no values.

Truth are the coverage counters of another build: see ``tests/covered.py``.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.covered import covered_calls
from tests.toolchains import FIXTURES, Toolchain, build, each_since, newest
from tests.tools.harness import of_kind, run_tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

SOURCE = FIXTURES / "live_inlined"


@each_since(19)
def test_each_call_has_its_caller_and_stack(toolchain: Toolchain, tmp_path: Path) -> None:
    truth, binary = covered_calls(SOURCE, toolchain, tmp_path), build(SOURCE, toolchain)
    words = ("--json", "-U", "main.bump", "main.both")
    result = run_tool("gotrace", *words, "--", binary, stdin=subprocess.DEVNULL)
    found: Counter[tuple[str, str | None]] = Counter()
    for call in of_kind(result, "call"):
        found[call["func"], call.get("caller")] += 1
        if "caller" in call:
            assert (call["args"], call["results"], call["duration_ns"]) == ({}, None, None)
            place = f"{call['stack'][0]['file']}:{call['stack'][0]['line']}"
            assert (call["stack"][0]["func"], place) == (call["caller"], call["at"])
            assert "main.main" in [frame["func"] for frame in call["stack"]]
    note = "main.(*tally).note"
    both = found.pop(("main.both", "main.sum"))
    assert 0 < both <= truth["both"] - 100
    assert found == {
        ("main.bump", note): truth["note"],
        ("main.bump", "main.sum"): truth["bump"] - truth["note"],
        ("main.both", None): 100,
    }


def test_values_of_inlined_calls_are_not_available() -> None:
    """A probe that asks for them has none of these calls, and says so."""
    binary = build(SOURCE, newest())
    words = ("main.bump ($goid == 1)", "--", binary)
    lines = run_tool("gotrace", *words, stdin=subprocess.DEVNULL).lines
    line = "main.bump(<unavailable: inlined here>) in main.sum at main.go:44"
    assert any(one.rstrip("\n").endswith(line) for one in lines)
    asked = run_tool("gotrace", "main.both (x > 2)", "--", binary, stdin=subprocess.DEVNULL)
    assert "main.both is also inlined in 1 place: not shown there" in asked.errors
    assert not any("inlined here" in one for one in asked.lines)
