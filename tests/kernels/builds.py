# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to programs that are built otherwise, and gotraced to its numbers: in a guest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fleet.test_gotraced import check_numbers
from tests.kernels.checking import Checks
from tests.kernels.order import CGO, GCCGO, HOST_OF_LIBRARY, LIBRARY, OLDEST, PIE, PLUGIN
from tests.kernels.runs import (
    LATENCY,
    MINORS,
    fixture_program,
    measure_scenarios,
    trace_values,
)
from tests.tools import gccgo
from tests.tools.cgo import check_counts, check_times
from tests.tools.libraries import check_library, check_plugin_times, check_plugin_values


def check_builds(checks: Checks) -> None:
    """Run the checks, with the kernel's best way to attach."""
    if not checks.order.pairs or checks.order.is_quick:
        return
    method = checks.order.methods[0]
    checks.run("PIE", method, partial(_position_independent, method))
    checks.run("Go 1.15", method, partial(_oldest, method))
    checks.run("cgo", "", _with_c)
    checks.run("libraries", "", _libraries)
    checks.run("gccgo", method, partial(_gccgo, method))
    checks.run("gotraced", "", _daemon)


def _position_independent(method: str) -> str:
    return _measured_and_traced(method, PIE)


def _oldest(method: str) -> str:
    """Arguments are on the stack."""
    return _measured_and_traced(method, OLDEST)


def _measured_and_traced(method: str, build: str) -> str:
    runs = measure_scenarios(method, (build,))
    seen = {name: check(runs) for name, check in LATENCY.items()}
    return f"{seen['nothing lost']}; {trace_values(method, (build,))}"


def _libraries() -> str:
    """Go in a library that a C program loads, and in a plugin."""
    library = fixture_program("live_library", LIBRARY)
    calls = check_library(fixture_program("live_library_host", HOST_OF_LIBRARY), library)
    loaded = fixture_program("live_plugin_host", MINORS[-1]), fixture_program("live_plugin", PLUGIN)
    return f"{calls + check_plugin_times(*loaded) + check_plugin_values(*loaded):,} calls"


def _gccgo(method: str) -> str:
    path = fixture_program("live_gccgo", GCCGO)
    counted = gccgo.check_counts(path, "--attach", method)
    return f"{counted:,} calls counted, {gccgo.check_times(path):,} measured"


def _with_c() -> str:
    """Calls on threads of C, with and without a goroutine."""
    path = fixture_program("live_cgo_threads", CGO)
    check_counts(path)
    return f"{check_times(path):,} calls"


def _daemon() -> str:
    with TemporaryDirectory() as folder:
        return f"{check_numbers(fixture_program('live_keys', '1.27'), Path(folder)):,} calls"
