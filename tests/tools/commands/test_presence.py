# SPDX-License-Identifier: Apache-2.0
"""What keeps breakpoints from being hit in a process is said before they are placed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Process, json_counts, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

CALLS = 13
#: Traces a process, as debuggers do, until it is killed: PTRACE_SEIZE.
TRACER = """
import ctypes, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
assert ptrace(0x4206, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()
print("traced", flush=True)
sys.stdin.read()
"""
C = """package main

/*
__attribute__((noinline)) int MapStaticCodeToLargePages(void) { return 0; }
*/
import "C"

func main() { C.MapStaticCodeToLargePages() }
"""


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace", "gooffcpu"])
def test_code_that_was_moved(name: str) -> None:
    patterns = () if name == "gooffcpu" else ("main.work",)
    with Fixture([build(FIXTURES / "live_moved", newest())]) as fixture:
        fixture.work("move 0 100")
        result = run_tool(name, "-q", "-d", "60", "-p", str(fixture.ready), *patterns)
        assert (result.status, result.lines) == (1, [])
        assert result.errors.startswith(f"{name}: process {fixture.ready} has moved code of ")
        assert len(result.errors.splitlines()) == 1
        fixture.work("1")
        assert fixture.finish() == 0


def test_code_of_which_a_part_was_moved() -> None:
    with Fixture([build(FIXTURES / "live_moved", newest())]) as fixture:
        fixture.work("move 1 40")
        words = ("-p", str(fixture.ready), "main.work", "runtime.casgstatus", "internal/abi.*")
        with tool("gofunccount", "--json", *words) as counting:
            truth = fixture.work(str(CALLS))
            result = counting.end()
        assert fixture.finish() == 0
    assert json_counts(result, truth) == truth
    warning = of_kind(result, "warning")[0]
    assert warning["what"] == "moved_code"
    assert "functions are not seen" in warning["message"]


@pytest.mark.slow
def test_a_program_that_would_move_its_code(tmp_path: Path) -> None:
    (tmp_path / "mover").mkdir()
    (tmp_path / "mover" / "main.go").write_text(C)
    built = build(tmp_path / "mover", newest())
    for words in ((f"{built}:main.main",), ("main.main", "--", str(built))):
        result = run_tool("gofunccount", "-d", "60", *words)
        assert (result.status, result.lines) == (1, [])
        assert "has MapStaticCodeToLargePages, which moves code away" in result.errors


def test_a_debugger() -> None:
    with Fixture([build(FIXTURES / "live_moved", newest())]) as fixture:
        with Process([sys.executable, "-c", TRACER, str(fixture.ready)]) as tracer:
            tracer.read_until("traced")
            words = ("-d", "0.1", "-p", str(fixture.ready), "main.work")
            result = run_tool("gofunccount", *words)
            as_json = run_tool("gofunccount", "--json", *words)
        assert result.status == as_json.status == 0
        who = f"process {fixture.ready} is traced by python3"
        assert who in result.errors.replace("python ", "python3 ")
        warning = of_kind(as_json, "warning")[0]
        assert (warning["what"], warning["tracer"]) == ("tracer", tracer.pid)
        with tool("gofunccount", "--json", "-p", str(fixture.ready), "main.work") as counting:
            with Process([sys.executable, "-c", TRACER, str(fixture.ready)]) as tracer:
                counting.lines_until('{"kind":"warning"')
            late = of_kind(counting.end(), "warning")
        assert [(row["what"], row["tracer"]) for row in late] == [("tracer", tracer.pid)]
        assert fixture.finish() == 0
