# SPDX-License-Identifier: Apache-2.0
"""Commands say how many hits the kernel has run no program for, and the library raises it.

How many these are is held in tests/kernel/test_syscalls.py.
"""

from __future__ import annotations

import json

import pytest

import gotrace
from gotrace.cli import gofunccount
from gotrace.kernel.program import BpfProgram
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

pytestmark = pytest.mark.live


def test_it_is_said_and_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BpfProgram, "skipped", lambda program: 7)
    with Fixture([build(FIXTURES / "live_count", newest())]) as fixture:
        words = ["-p", str(fixture.ready), "-d", "0.1", "main.leaf"]
        assert gofunccount.main([*words, "--json"]) == gofunccount.main(words) == 0
        printed = capsys.readouterr()
        with gotrace.attach(fixture.pid) as go:
            with pytest.raises(gotrace.LostCalls, match="skipped: 7"):
                go.count("main.leaf", seconds=0.1)
            with pytest.raises(gotrace.LostCalls, match="skipped: 7"):
                list(go.trace("main.leaf", seconds=0.1))
            assert go.count("main.leaf", seconds=0.1, lossy=True) == {}
        fixture.work()
        assert fixture.finish() == 0
    rows = [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]
    (lost,) = [row for row in rows if row["kind"] == "lost"]
    assert lost["what"] == "skipped" and lost["calls"] == 7
    assert printed.err.startswith("7 hits not seen: ")
