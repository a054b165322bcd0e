# SPDX-License-Identifier: Apache-2.0
"""The tools inside of a pid namespace, and targets inside of others."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.toolchains import program_of
from tests.tools.harness import Fixture, Running, text_counts, tool, tool_command
from tests.tools.namespaces import UNSHARE, outer_pid

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_count")


def only(counts: dict[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in NAMES}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency"])
def test_target_in_a_nested_namespace(depth: int, name: str) -> None:
    with Fixture([*UNSHARE * depth, program()]) as fixture:
        pid = outer_pid(fixture, program())
        assert pid != fixture.ready == 1
        words = ["--json", "-p", str(pid), *(["-F"] if name == "gofunclatency" else []), *NAMES]
        with tool(name, *words) as tracer:
            truth = fixture.work()
            result = tracer.end()
    kind = "count" if name == "gofunccount" else "histogram"
    rows = [row for row in result.objects if row["kind"] == kind]
    assert {row["func"]: row["count"] for row in rows} == only(truth["calls"])


def test_lines_name_a_target_of_another_namespace_as_seen_here() -> None:
    with Fixture([*UNSHARE, program()]) as fixture:
        pid = outer_pid(fixture, program())
        with tool("gotrace", "--json", "-M", "3", "-p", str(pid), "main.largeFrame") as tracer:
            fixture.work()
            result = tracer.result()
    calls = [row for row in result.objects if row["kind"] == "call"]
    assert len(calls) == 3
    assert {row["pid"] for row in calls} == {pid}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("method", ["multi", "perf-cookie", "perf-ip"])
def test_tool_and_command_in_a_namespace(depth: int, method: str) -> None:
    words = tool_command("gofunccount", "--attach", method, *NAMES, "--", str(program()))
    with Running([*UNSHARE * depth, *words]) as counting:
        assert 1 < int(counting.lines_until("ready ")) < 20
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        counting.say()
        result = counting.result()
    assert result.status == 0
    assert only(dict(text_counts(result))) == only(truth["calls"])


def run_inside(name: str) -> tuple[int, list[dict[str, Any]]]:
    """Let a shell in a new namespace start the program and a tool on it, which becomes process 1.

    Return the calls of main.leaf that the program made, and what the tool says of that function.
    """
    read, write = os.pipe()
    try:
        shell = f'program=$1; shift; $program <&{read} & exec "$@" -p $!'
        command = tool_command(name, "--json", "main.leaf")
        starting = [*UNSHARE, "bash", "-c", shell, "bash", str(program()), *command]
        with Running(starting, pass_fds=(read,)) as tracer:
            os.write(write, b"\n")
            truth = json.loads(tracer.lines_until("truth "))
            os.write(write, b"\n")
            lines = [*tracer.head, *tracer.rest()]
            assert tracer.wait() == 0
    finally:
        os.close(read)
        os.close(write)
    rows = [json.loads(line) for line in lines if line.startswith('{"kind":')]
    return truth["calls"]["main.leaf"], [row for row in rows if row.get("func") == "main.leaf"]


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency"])
def test_tool_in_a_namespace_is_given_a_pid_of_its_own(name: str) -> None:
    made, rows = run_inside(name)
    assert sum(row["count"] for row in rows) == made
