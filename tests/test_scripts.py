# SPDX-License-Identifier: Apache-2.0
"""gotrace in scripts as they are written: without ``with``, in threads, in forked processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.test_api import assert_detached
from tests.tools.harness import CLONE, Fixture, code_of
from tests.tools.trace import program

pytestmark = pytest.mark.live

_HANGS = 60  # seconds


@pytest.fixture(scope="module")
def fixture() -> Iterator[Fixture]:
    with Fixture([program()]) as fixture:
        yield fixture


def run_script(text: str, fixture: Fixture) -> list[str]:
    """Run a script that has ``pid``, and return its lines."""
    start = f"import gotrace, os, sys, threading, time\npid = {fixture.ready}\n"
    command = [sys.executable, "-c", start + text]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, timeout=_HANGS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "use",
    [
        "calls = go.trace('main.echo')",
        "snapshots = go.live(waits=True); next(snapshots)",
        "threading.Thread(target=go.count, args=['main.echo'], daemon=True).start()",
    ],
)
def test_a_script_that_closes_nothing_ends(use: str, fixture: Fixture) -> None:
    code = code_of(fixture.ready)
    assert run_script(f"go = gotrace.attach(pid); {use}; print('end')", fixture) == ["end"]
    assert_detached(fixture.ready, code)
