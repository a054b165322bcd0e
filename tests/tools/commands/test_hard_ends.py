# SPDX-License-Identifier: Apache-2.0
"""Runs that meet a stopped or killed target, a reader that stops, and limits of the system."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.tools.harness import (
    Fixture,
    Process,
    Result,
    code_at,
    of_kind,
    sites,
    tool,
    tool_command,
)
from tests.tools.trace import program

pytestmark = [pytest.mark.live, pytest.mark.apart]

TOOLS = ("gofunccount", "gofunclatency", "gotrace")
SIGINT = signal.SIGINT
#: ``gotrace`` opens what the others open and more: ``make test`` tries all with it, one with them.
thorough = pytest.mark.thorough


def end(process: Process) -> Result:
    lines = process.rest()
    return Result(process.wait(), lines, process.errors)


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.status == 1
    assert len(result.errors.splitlines()) == 1, result.errors
    assert all(part in result.errors for part in parts), result.errors


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["text", "json"])
def test_kill_of_the_target_in_the_middle_of_its_calls(format: list[str]) -> None:
    with Fixture([program()]) as fixture:
        pid = fixture.ready
        with tool("gotrace", *format, "-p", str(pid), "main.flooded") as tracing:
            fixture.say("flood")
            tracing.lines_until('{"kind":"call"' if format else "")
            fixture.signal(signal.SIGKILL)
            result = tracing.result()
    assert result.status == 0
    last = f"process {pid} has ended"
    if format:
        assert [row["message"] for row in of_kind(result, "exited")] == [last]
    else:
        told = result.errors.splitlines()
        assert last in told
        assert all("lost" in line or "open" in line for line in told if line != last)


@pytest.mark.parametrize("name", TOOLS)
def test_a_stopped_target_can_be_attached_to_and_left(name: str) -> None:
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, "main.nest", "main.echo")
        clean = code_at(fixture.ready, addresses)
        fixture.signal(signal.SIGSTOP)
        with tool(name, "-p", str(fixture.ready), "main.nest", "main.echo") as running:
            assert code_at(fixture.ready, addresses) == b"\xcc" * len(addresses)
            result = running.end()
        assert (result.status, result.errors) == (0, "")
        assert code_at(fixture.ready, addresses) == clean
        fixture.signal(signal.SIGCONT)
        assert fixture.work("recursion")["Wrong"] == 0
        assert fixture.finish() == 0


def test_a_target_that_is_stopped_for_a_while_loses_nothing() -> None:
    with Fixture([program()]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), "main.flooded") as tracing:
            fixture.say("flood")
            tracing.lines_until('{"kind":"call"')
            fixture.signal(signal.SIGSTOP)
            fixture.signal(signal.SIGCONT)
            truth = json.loads(fixture.read_until("truth ")[0])
            result = tracing.end()
        fixture.finish()
    assert seen(result.lines) == truth["Flooded"]


def seen(lines: list[str]) -> int:
    """Return how many calls were shown or are said to be lost."""
    shown = sum(line.startswith('{"kind":"call"') for line in lines)
    lost = [json.loads(line) for line in lines if line.startswith('{"kind":"lost"')]
    return shown + sum(int(row["calls"]) for row in lost)


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["text", "json"])
def test_closed_output_ends_the_run_quietly(format: list[str]) -> None:
    with Fixture([program()]) as fixture:
        with tool("gotrace", *format, "-p", str(fixture.ready), "main.flooded") as tracing:
            tracing.close_output()
            fixture.work("flood")
            assert tracing.wait() == 0
        assert tracing.errors == ""
        assert fixture.finish() == 0


def wait_until_full(process: Process) -> None:
    """Wait until a tool waits for its reader: its pipe takes no more."""
    descriptor = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY)
    try:
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        pause = threading.Event()
        while room.poll(0):
            pause.wait(0.02)
    finally:
        os.close(descriptor)


def test_a_reader_that_stops_for_a_while_costs_lines_and_not_the_target() -> None:
    """The target does all of its calls meanwhile; what is not shown is counted."""
    with Fixture([program()]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), "main.flooded") as tracing:
            truth = fixture.work("flood")
            wait_until_full(tracing)
            tracing.signal(SIGINT)
            result = tracing.result()
        fixture.finish()
    assert result.status == 0
    assert all(line.endswith("}\n") for line in result.lines)
    assert seen(result.lines) == truth["Flooded"]


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["text", "json"])
def test_interrupt_while_nobody_reads(format: list[str]) -> None:
    """What is in no line is counted as lost, to the last call, where that can be written."""
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, "main.flooded")
        clean = code_at(fixture.ready, addresses)
        usual = {**os.environ, "GOTRACE_DRAIN": "0"}
        words = (*format, "-p", str(fixture.ready), "main.flooded")
        with tool("gotrace", *words, env=usual) as tracing:
            truth = fixture.work("flood")
            wait_until_full(tracing)
            tracing.signal(SIGINT)
            status = tracing.wait()
            lines = tracing.rest()
        assert code_at(fixture.ready, addresses) == clean
        fixture.finish()
    assert status == 1
    *losses, last = tracing.errors.splitlines()
    assert last.startswith("gotrace: cannot write the results: standard output is not being read")
    shown = sum("main.flooded" in line and line.endswith("\n") for line in lines)
    lost = sum(int(line.split()[0].replace(",", "")) for line in losses)
    assert lost == (0 if format else truth["Flooded"] - shown)


@pytest.mark.parametrize(
    ("name", "closed", "status"),
    [
        pytest.param(name, closed, status, marks=() if name == "gotrace" or is_one else thorough)
        for name in TOOLS
        for closed, status, is_one in (
            *(("<&-", 0, False), (">&-", 1, True), ("2>&-", 0, False)),
            *((">&- 2>&-", 1, False), ("<&- 2>&-", 0, True)),
        )
    ],
)
def test_standard_streams_that_are_closed(name: str, closed: str, status: int) -> None:
    """The files that are opened next must not take their numbers."""
    command = tool_command(name, "-d", "0.05", f"{program()}:main.nest")
    with Process(["sh", "-c", f'exec "$@" {closed}', "sh", *command]) as running:
        result = end(running)
    assert result.status == status
    told = f"{name}: cannot write the results: standard output is closed\n"
    assert result.errors == (told if closed == ">&-" else "")
    assert result.lines[-1:] == (["Detaching...\n"] if status == 0 else [])


@pytest.mark.parametrize("name", TOOLS)
def test_errors_go_nowhere_else(name: str) -> None:
    command = tool_command(name, "/no/such/file:main.x")
    with Process(["sh", "-c", 'exec "$@" 2>&-', "sh", *command]) as running:
        assert end(running) == Result(2, [], "")


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("name", TOOLS)
def test_full_disk(name: str, format: list[str]) -> None:
    with Fixture([program()]) as fixture, open("/dev/full", "w") as full:
        words = (*format, "-i", "0.05") if name != "gotrace" else format
        command = tool_command(name, *words, "-p", str(fixture.ready), "main.nest")
        with Process(command, stdout=full) as running:
            status = running.wait()
    result = Result(status, [], running.errors)
    assert_one_line(result, f"{name}: cannot write the results: {os.strerror(errno.ENOSPC)}")


@pytest.mark.parametrize("name", TOOLS)
def test_few_open_files(name: str) -> None:
    """Root may raise any limit, so the right to do so has to go."""
    limits = ["prlimit", "--nofile=64:64", "setpriv", "--bounding-set=-sys_resource"]
    with Fixture([program()]) as fixture:
        words = ("--attach", "perf-cookie", "-p", str(fixture.ready), "main.*", "runtime.m*")
        with Process([*limits, *tool_command(name, *words)]) as running:
            result = end(running)
    *_, last = result.errors.splitlines()
    assert result.status == 1
    assert last.startswith(f"{name}: cannot attach to {program()}: ")
    assert last.endswith("trace fewer functions or raise ulimit -n")


def test_no_memory_that_can_be_locked() -> None:
    limits = ["prlimit", "--memlock=4096:4096", "setpriv", "--bounding-set=-ipc_lock,-sys_admin"]
    with Fixture([program()]) as fixture:
        command = tool_command("gotrace", "-p", str(fixture.ready), "main.nest")
        with Process([*limits, *command]) as running:
            result = end(running)
    if result.status == 0:
        pytest.skip("perf_event_paranoid lets anybody lock as much as wanted here")
    assert_one_line(result, "event buffer", "CAP_IPC_LOCK", "ulimit -l")


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        pytest.param(name, megabytes, marks=() if name == "gotrace" or is_one else thorough)
        for name in TOOLS
        for megabytes, is_one in ((150, False), (250, False), (300, True), (340, False))
    ],
)
def test_little_address_space(name: str, megabytes: int, tmp_path: Path) -> None:
    """LLVM would abort the process without a word; where no program is kept, it is needed."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with Fixture([program()]) as fixture:
        command = tool_command(name, "-p", str(fixture.ready), "main.nest")
        with Process(["prlimit", f"--as={megabytes << 20}", *command], env=env) as running:
            result = end(running)
    assert result.lines == []
    if megabytes == 150 and "out of memory" in result.errors:  # Python took what LLVM would need
        assert_one_line(result, "out of memory: raise ulimit -v, or trace fewer functions")
    else:
        assert_one_line(result, "address space", "raise ulimit -v")


def test_enough_address_space() -> None:
    with Fixture([program()]) as fixture:
        command = tool_command("gotrace", "-p", str(fixture.ready), "-d", "0.1", "main.nest")
        with Process(["prlimit", f"--as={640 << 20}", *command]) as running:
            assert end(running).status == 0


@pytest.mark.parametrize("name", ["gofunccount", "gooncpu"])
def test_a_recording_is_whole_though_nobody_reads_what_is_said(name: str, tmp_path: Path) -> None:
    """As of ``2>&1 | head -1``: the run ends as by Ctrl-C when it has something to say."""
    path = tmp_path / "x.ndjson"
    with Fixture([program()]) as fixture:
        words = ("-o", str(path), "-d", "0.2", "-p", str(fixture.ready), "main.*")
        command = shlex.join(tool_command(name, *words if name != "gooncpu" else words[:-1]))
        shell = ["sh", "-c", f"{command} 2>&1 | head -1"]
        subprocess.run(shell, capture_output=True, timeout=60, check=True)
        assert fixture.finish() == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["kind"] == "attached" and rows[-1]["kind"] == "detached"
