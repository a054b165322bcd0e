# SPDX-License-Identifier: Apache-2.0
"""Measure and trace programs whose build information was taken out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elf.binaries import without_build_info
from tests.toolchains import newest, require
from tests.tools import latency, trace
from tests.tools.harness import run_tool

pytestmark = pytest.mark.live

CASES = (
    ("1.15", "stripped"),
    ("1.19", "stripped"),
    ("newest", "stripped"),
    ("newest", "default"),
)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_calls_are_measured_and_traced(name: str, mode: str, tmp_path: Path) -> None:
    toolchain = newest() if name == "newest" else require(name)
    path = without_build_info(latency.program(toolchain, mode), tmp_path / "live_latency")
    truth, result = latency.measure(
        path, "recursion migration", "-F", "main.recurse", "main.migrate"
    )
    rows = latency.histograms(result)
    for function in ("main.recurse", "main.migrate"):
        latency.assert_within(truth["Functions"][function], rows[function])

    path = without_build_info(trace.program(toolchain, mode), tmp_path / "trace_calls")
    signature = "(n int, tag string) (int, string)" if mode == "stripped" else ""
    _, result = trace.trace(path, "recursion", "--json", f"main.nest{signature}")
    calls = trace.calls_of(result, "main.nest")
    assert [row["args"]["n"] for row in calls] == list(range(21))
    assert all(row["results"]["$ret1"] == sum(range(row["args"]["n"] + 1)) for row in calls)
    assert {row["goid"] for row in calls} == {1}


@pytest.mark.parametrize("name", ["gofunclatency", "gotrace"])
def test_release_that_is_nowhere_is_refused(name: str, tmp_path: Path) -> None:
    path = trace.program(require("1.19"), "stripped")
    wiped = without_build_info(path, tmp_path / "wiped", b"no1.19.8")
    result = run_tool(name, f"{wiped}:main.nest")
    assert (result.status, result.lines) == (1, [])
    assert result.errors.startswith(f"{name}: {wiped}: cannot find where goroutines keep their id")
    assert len(result.errors.splitlines()) == 1
