# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to programs that are built otherwise, and gotraced to its numbers: in a guest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fleet.test_gotraced import check_numbers
from tests.kernels.checking import Checks
from tests.kernels.order import CGO, PIE
from tests.kernels.runs import LATENCY, fixture_program, measure_scenarios, trace_values
from tests.tools.cgo import check_counts, check_times

__all__ = ["check_builds"]


def check_builds(checks: Checks) -> None:
    """Run the checks, with the kernel's best way to attach."""
    if not checks.order.pairs or checks.order.is_quick:
        return
    method = checks.order.methods[0]
    checks.run("PIE", method, partial(_position_independent, method))
    checks.run("cgo", "", _with_c)
    checks.run("gotraced", "", _daemon)


def _position_independent(method: str) -> str:
    runs = measure_scenarios(method, (PIE,))
    seen = {name: check(runs) for name, check in LATENCY.items()}
    return f"{seen['nothing lost']}; {trace_values(method, (PIE,))}"


def _with_c() -> str:
    """Calls on threads of C, with and without a goroutine."""
    path = fixture_program("live_cgo_threads", CGO)
    check_counts(path)
    return f"{check_times(path):,} calls"


def _daemon() -> str:
    with TemporaryDirectory() as folder:
        return f"{check_numbers(fixture_program('live_keys', '1.27'), Path(folder)):,} calls"
