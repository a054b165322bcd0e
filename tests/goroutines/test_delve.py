# SPDX-License-Identifier: Apache-2.0
"""Hold stacks of goroutines to those that Delve reads of the same process, which it stops."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.delve import delve
from tests.goroutines.test_parked import PARKED, take
from tests.toolchains import build, newest
from tests.tools.harness import Fixture

pytestmark = pytest.mark.live

DEPTH = 60
_ESCAPE = re.compile(r"\x1b\[\d*m")
_FRAME = re.compile(r"\s+\d+\s+0x[0-9a-f]+ in (.*)")


def read_by_delve(text: str) -> dict[int, list[str]]:
    """Return the functions on stacks by goroutine, the innermost first."""
    stacks: dict[int, list[str]] = {}
    frames: list[str] = []
    for line in _ESCAPE.sub("", text).splitlines():
        if start := re.match(r"[>( dlv)*]*\s*Goroutine (\d+) ", line):
            frames = stacks[int(start[1])] = []
        elif frame := _FRAME.fullmatch(line):
            frames.append(frame[1])
    return stacks


def test_stacks_are_those_that_delve_reads() -> None:
    debugger = delve()
    if debugger is None:
        pytest.skip("there is no Delve: make setup-test fetches it where Debian's mirror is")
    with Fixture([build(PARKED, newest())]) as fixture:
        dump = take(fixture.ready)
        run = [str(debugger), "attach", str(fixture.ready), "--allow-non-terminal-interactive=true"]
        orders = f"goroutines -t {DEPTH}\nquit\nn\n"
        said = subprocess.run(run, input=orders, capture_output=True, text=True, timeout=100)
        assert fixture.finish() == 0
    theirs = read_by_delve(said.stdout)
    users = [one for one in dump.goroutines if not one.is_system]
    parked = [one for one in users if one.reason and one.is_whole]
    assert len(parked) > 25 and {one.goid for one in parked} <= theirs.keys(), said.stderr
    for one in parked:
        ours = [frame.function for frame in dump.program.frames(one.stack)][:DEPTH]
        assert ours == theirs[one.goid][: len(ours)], one.goid
