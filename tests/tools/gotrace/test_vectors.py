# SPDX-License-Identifier: Apache-2.0
"""Hold gotrace against a program that passes vectors, in registers of their own and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, require
from tests.tools.gotrace.test_values import trace
from tests.tools.harness import Fixture, count_on, of_kind, run_tool

pytestmark = [
    pytest.mark.live,
    pytest.mark.apart,
    pytest.mark.skipif(" avx " not in Path("/proc/cpuinfo").read_text(), reason="needs AVX"),
]

_VECTOR = "<unavailable: in a vector register>"


def program(minor: str, *flags: str) -> Path:
    env = {"GOEXPERIMENT": "simd"}
    return build(FIXTURES / "trace_vectors", require(minor), flags=flags, env=env)


@pytest.mark.parametrize("minor", ["1.26", "1.27"])
def test_values_beside_vectors(minor: str) -> None:
    run = trace(program(minor), "-r", r"main\.[bikmr].*")
    assert len(run.wanted) == 18
    assert [call.replace(_VECTOR, "V") for call in run.calls] == run.wanted


def test_values_beside_vectors_without_dwarf() -> None:
    """Where nothing describes the vectors' types they are known by their names."""
    vector = "simd/archsimd.Int32x4"
    both = f"struct{{N int; V {vector}; S string}}"
    run = trace(
        program("1.27", "-ldflags=-s -w"),
        f"main.between(a int, v {vector}, f float64, s string) (int, archsimd.Int32x4, float64)"
        ' (a > 7 && s == "in")',
        f"main.inside(x {both}, n int) ({both}, int) (x.V.vals[1] == 2)",
    )
    wanted = [
        call for call in run.wanted if call.startswith("main.between(") and "(a=7" not in call
    ]
    assert [call.replace(_VECTOR, "V") for call in run.calls] == wanted
    assert run.result.errors == (
        "3 calls not shown: the predicate could not be decided: in a vector register (3)\n"
    )


def test_keys_beside_vectors() -> None:
    path = program("1.27")
    with Fixture([path]) as fixture:
        _, result = count_on(fixture, "--by", "x.S, n", "main.inside")
        assert fixture.finish() == 0
    rows = [(*row["by"].values(), row["count"]) for row in of_kind(result, "count")]
    assert sorted(rows) == [("text", number, 1) for number in (9, 10, 11)]
    refused = run_tool("gofunccount", "--by", "v.vals[1]", f"{path}:main.between")
    assert refused.status == 2
    assert "by v.vals[1], which is in a float register" in refused.errors
