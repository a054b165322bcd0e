# SPDX-License-Identifier: Apache-2.0
"""Trace programs that come and go: started often, forking, replaced on disk, becoming others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest, program_of, require
from tests.tools.harness import Fixture, Result, json_counts, of_kind, tool
from tests.tools.latency import histograms
from tests.tools.lifetimes import NAME, TOOLS, assert_all_calls, trace_children

pytestmark = pytest.mark.live

each_tool = pytest.mark.parametrize("name", TOOLS)
NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_brief")


def calls_of(name: str, result: Result) -> dict[str, int]:
    """Return the calls of each function as a tool saw them."""
    if name == "gofunccount":
        return dict(json_counts(result))
    if name == "gofunclatency":
        return {func: row["count"] for func, row in histograms(result).items()}
    counts: dict[str, int] = {}
    for call in of_kind(result, "call"):
        counts[call["func"]] = counts.get(call["func"], 0) + 1
    return counts


@pytest.mark.parametrize("method", ["multi", "perf-cookie", "perf-ip"])
def test_short_lived_processes_of_a_go_program(method: str) -> None:
    assert trace_children(program(), 20, "--attach", method) == 20 + 20 * 7


@each_tool
def test_children_of_a_process_are_not_its_calls(name: str) -> None:
    with Fixture([program()]) as fixture:
        with tool(*TOOLS[name], "-p", str(fixture.ready), NAME) as tracing:
            truth = fixture.work("20")
            result = tracing.end()
        assert fixture.finish() == 0
    assert_all_calls(name, result, truth["parent"])


@each_tool
def test_short_lived_processes_of_a_shell(name: str) -> None:
    script = 'for i in $(seq 20); do "$1" child; (exec "$1" child) & done; wait'
    with tool(*TOOLS[name], f"{program()}:{NAME}") as tracing:
        subprocess.run(["sh", "-c", script, "sh", program()], check=True)
        result = tracing.end()
    assert_all_calls(name, result, 40 * 7)


@pytest.mark.parametrize("name", ["gofunclatency", "gotrace"])
def test_exec_of_another_program_ends_the_run_with_what_was_seen(name: str) -> None:
    cat = os.path.realpath(shutil.which("cat") or "/bin/cat")
    with Fixture([build(FIXTURES / "live_count", newest())]) as fixture:
        words = ("-p", str(fixture.ready), "main.stacked")
        with tool(*TOOLS[name], *words) as tracing:
            truth = fixture.work()
            fixture.say(cat)
            result = tracing.result()
    assert result.status == 0
    assert calls_of(name, result) == {"main.stacked": truth["calls"]["main.stacked"]}
    (notice,) = of_kind(result, "exited")
    assert notice["path"] == cat
    assert notice["message"] == f"the process runs another program now: {cat}"


@pytest.fixture
def replaced(tmp_path: Path) -> Path:
    """Return a copy of the counting program that may be replaced."""
    return Path(shutil.copy(build(FIXTURES / "live_count", newest()), tmp_path / "program"))


@each_tool
@pytest.mark.parametrize("gone", ["deleted", "replaced"])
def test_program_that_is_gone_from_disk(name: str, gone: str, replaced: Path) -> None:
    """With -p the file that runs is traced, by path the new one."""
    other = build(FIXTURES / "live_count", require("1.19"))
    with Fixture([replaced]) as fixture:
        replaced.unlink()
        if gone == "replaced":
            shutil.copy(other, replaced)
        with tool(*TOOLS[name], "-p", str(fixture.ready), "main.stacked") as tracing:
            truth = fixture.work()
            result = tracing.end()
        assert calls_of(name, result) == {"main.stacked": truth["calls"]["main.stacked"]}
        if gone == "deleted":
            return
        with tool(*TOOLS[name], f"{replaced}:main.stacked") as tracing, Fixture([replaced]) as new:
            truth = new.work()
            result = tracing.end()
        assert calls_of(name, result) == {"main.stacked": truth["calls"]["main.stacked"]}


def descendants(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    below = [int(word) for word in text.split()]
    return below + [child for one in below for child in descendants(one)]


@each_tool
def test_process_in_other_mount_and_pid_namespaces(name: str, tmp_path: Path) -> None:
    """Its program is on a file system that only it has mounted."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/program" && exec "$1/program"'
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    path = build(FIXTURES / "live_count", newest())
    with Fixture([*unshare, "sh", "-c", script, "sh", inside, path]) as fixture:
        assert fixture.ready == 1
        assert not list(inside.iterdir())
        pid = max(descendants(fixture.pid))
        with tool(*TOOLS[name], "-p", str(pid), "main.stacked") as tracing:
            truth = fixture.work()
            result = tracing.end()
        fixture.finish()
    assert calls_of(name, result) == {"main.stacked": truth["calls"]["main.stacked"]}
    if name == "gotrace":
        assert {call["pid"] for call in of_kind(result, "call")} == {pid}
