# SPDX-License-Identifier: Apache-2.0
"""A program that is started a thousand times while all tools trace it by its path."""

from __future__ import annotations

import pytest

from tests.real.report import figures, rounds
from tests.toolchains import FIXTURES, Toolchain, build, newest, toolchains
from tests.tools.lifetimes import trace_children

pytestmark = pytest.mark.live

ENDS = [pytest.param(found, id=f"go{found.minor}") for found in (*toolchains()[:1], newest())]


@pytest.mark.parametrize("toolchain", ENDS)
def test_a_thousand_processes(toolchain: Toolchain) -> None:
    children = rounds(quick=100, full=1000)
    calls = trace_children(build(FIXTURES / "live_brief", toolchain), children)
    figures(f"{children} processes, Go {toolchain.version}", calls=calls)
