# SPDX-License-Identifier: Apache-2.0
"""Run the tools where Python's heap lies above 4 GiB, as where Python is position independent.

Debian's Python is not: what BCC hands out to it lies below, and fits where a pointer must not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Running, tool_command
from tests.tools.lifetimes import NAME, TOOLS, assert_all_calls

pytestmark = pytest.mark.live


def high_python() -> list[str]:
    """Return the start of a command that runs Python by its loader: the heap then lies high."""
    interpreter = re.search(rb"/lib\S*?/ld-[\w.-]+", Path(sys.executable).read_bytes())
    assert interpreter
    return [interpreter[0].decode(), sys.executable]


def test_heap_lies_above_4_gib() -> None:
    words = [*high_python(), "-c", "print(open('/proc/self/maps').read())"]
    maps = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    (heap,) = (line for line in maps.splitlines() if line.endswith("[heap]"))
    assert int(heap.split("-")[0], 16) > 1 << 32


@pytest.mark.parametrize("name", TOOLS)
def test_every_call_is_seen(name: str) -> None:
    with Fixture([build(FIXTURES / "live_brief", newest())]) as fixture:
        words = tool_command(*TOOLS[name], "-p", str(fixture.ready), NAME)
        with Running([*high_python(), *words]) as running:
            truth = fixture.work("3")
            result = running.end()
        assert fixture.finish() == 0
    assert truth["parent"] > 0
    assert_all_calls(name, result, truth["parent"])
