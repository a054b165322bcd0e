# SPDX-License-Identifier: Apache-2.0
"""End runs on a program that calls as fast as it can, whatever becomes of what the tools write.

The manual promises an end within 1.5 seconds. The bound here is thrice that: the machine has other
things to do, and the program under test keeps all of its processors busy.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from tests.toolchains import FIXTURES, build, newest, parts
from tests.tools.harness import (
    Fixture,
    Process,
    code_at,
    json_counts,
    of_kind,
    run_tool,
    sites,
    tool_command,
)

pytestmark = pytest.mark.live

BOUND = 4.5  # seconds
AT_ONCE = 1.0
SIGINT = signal.SIGINT

RUNS = {
    "count": ("gofunccount", "-i", "0.05", "main.*"),
    "latency": ("gofunclatency", "-g", "--slower", "1us", "main.hit"),
    "stacks": ("gotrace", "--entry", "-U", "main.hit"),
    "json": ("gotrace", "--json", "main.hit"),
    "runtime": ("gotrace", "--json", "-U", "--entry", "runtime.mallocgc"),
}


@contextmanager
def storm() -> Iterator[Fixture]:
    """Run a program that calls from four goroutines at once."""
    with Fixture([build(FIXTURES / "live_storm", newest())]) as fixture:
        fixture.say("4 0")
        fixture.read_until("busy")
        yield fixture


class Reader:
    """What reads a tool's output: all of it, as slowly as a terminal, or nothing after its head.

    The descriptor is read from directly: a buffer would take more than was asked for.
    """

    def __init__(self, tracing: Process, pace: str) -> None:
        assert tracing._process.stdout is not None
        self.text = b""
        self._descriptor = tracing._process.stdout.fileno()
        self._pace = pace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def until(self, word: bytes) -> None:
        while word not in self.text:
            part = os.read(self._descriptor, 1 << 16)
            assert part, self.text
            self.text += part
        self._thread.start()

    def _read(self) -> None:
        while self._pace == "none" and not self._over.is_set():
            self._over.wait()
        slow = self._pace == "slow"
        while part := os.read(self._descriptor, 7 if slow and not self._over.is_set() else 1 << 16):
            self.text += part
            if slow:
                self._over.wait(0.001)

    def rest(self) -> list[bytes]:
        """Return all lines, those that were not read before the end among them."""
        self._over.set()
        self._thread.join()
        return self.text.splitlines(keepends=True)


@contextmanager
def traced(fixture: Fixture, words: tuple[str, ...], pace: str) -> Iterator[tuple[Process, Reader]]:
    name, *arguments = words
    with Process(tool_command(name, "-p", str(fixture.ready), *arguments)) as tracing:
        reader = Reader(tracing, pace)
        reader.until(b'{"kind":"call"' if "--json" in arguments else b"Tracing ")
        try:
            yield tracing, reader
        finally:
            tracing.signal(signal.SIGKILL)
            tracing.wait()
            reader.rest()


def wait_until_full(tracing: Process) -> None:
    """Wait until the tool's pipe takes no more."""
    descriptor = os.open(f"/proc/{tracing.pid}/fd/1", os.O_WRONLY)
    try:
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        while room.poll(0):
            assert not tracing.ends_within(0.02), tracing.errors
    finally:
        os.close(descriptor)


def calls_in(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith(b'{"kind":"call"')]


#: Of each pair ``make test`` tries those that have a part of the code of their own.
INTERRUPTED = [
    pytest.param(run, pace, marks=() if pace != "slow" or run == "json" else pytest.mark.thorough)
    for run in RUNS
    for pace in ("all", "slow", "none")
]


@pytest.mark.parametrize(("run", "pace"), INTERRUPTED)
def test_interrupt(run: str, pace: str) -> None:
    with storm() as fixture:
        (address,) = sites(fixture.ready, "main.hit")
        clean = code_at(fixture.ready, [address])
        with traced(fixture, RUNS[run], pace) as (tracing, reader):
            if pace == "none":
                wait_until_full(tracing)
            began = time.monotonic()
            tracing.signal(SIGINT)
            status = tracing.wait()
            assert time.monotonic() - began < BOUND
            tracing.wait_for_keepers()
            assert code_at(fixture.ready, [address]) == clean
            lines = reader.rest()
    if pace == "all":
        assert status == 0, tracing.errors
        assert b"Detaching..." in lines[-1]
        assert all(line.endswith(b"\n") for line in lines)
    elif pace == "none":
        assert status == 1
        assert tracing.errors.endswith("standard output is not being read\n")


@pytest.mark.parametrize("gap", [0.02, 0.05, 0.1])  # as it detaches, and as it ends
def test_a_signal_that_comes_twice_at_once_is_one(gap: float) -> None:
    """This is what ``timeout`` of coreutils sends: to its command, then to their process group."""
    with storm() as fixture, traced(fixture, RUNS["json"], "all") as (tracing, reader):
        tracing.signal(signal.SIGTERM)
        time.sleep(gap)
        tracing.signal(signal.SIGTERM)
        assert (tracing.wait(), tracing.errors) == (0, "")
        assert b'{"kind":"detached"' in reader.rest()[-1]


def test_second_interrupt_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTRACE_DRAIN", "30")  # nothing else ends it
    with storm() as fixture, traced(fixture, RUNS["json"], "none") as (tracing, _):
        wait_until_full(tracing)
        tracing.signal(SIGINT)
        assert not tracing.ends_within(1)  # so that the next signal is another
        began = time.monotonic()
        tracing.signal(SIGINT)
        assert tracing.wait() == 1
        assert time.monotonic() - began < AT_ONCE
        assert tracing.errors == "interrupted again: what was left to be written is missing\n"


@pytest.mark.parametrize("pace", ["all", "none"])
@pytest.mark.parametrize("run", ["stacks", "runtime"])
def test_duration(run: str, pace: str) -> None:
    """No call is shown that ended after it."""
    words = (*RUNS[run], "-d", "0.3")
    with storm() as fixture, traced(fixture, words, pace) as (tracing, reader):
        began = time.monotonic()
        status = tracing.wait()
        assert time.monotonic() - began < 0.3 + BOUND
        lines = reader.rest()
    assert status == (0 if pace == "all" else 1), tracing.errors
    times = [call["ts_ns"] for call in calls_in(lines if pace == "all" else lines[:-1])]
    assert not times or max(times) - min(times) <= 300_000_000


def test_what_counting_took_is_said() -> None:
    with storm() as fixture:
        pid = str(fixture.ready)
        result = run_tool("gofunccount", "-p", pid, "--json", "-d", "1", "main.hit", "main.leaf")
    counted = json_counts(result, ("main.hit", "main.leaf"))
    (cost,) = [one for one in of_kind(result, "summary") if one["what"] == "cost"]
    assert cost["hits"] == counted["main.hit"]
    assert cost["stepped_hits"] == counted["main.leaf"]
    assert cost["ns"] > 100 * (cost["hits"] + cost["stepped_hits"])
    assert cost["message"].startswith("counting took about ")


def test_lost_calls_have_their_share() -> None:
    """Calls that are shown and calls that are lost are all that there were."""
    with storm() as fixture:
        words = ("-p", str(fixture.ready), "--json", "--entry", "-U", "-d", "1", "main.hit")
        result = run_tool("gotrace", *words)
    lost = of_kind(result, "lost")
    assert lost, "the storm is too weak"
    shown = len(of_kind(result, "call"))
    for one in lost:
        assert one["of"] == shown + sum(each["calls"] for each in lost)
        assert one["message"].startswith(f"{one['calls']:,} of {one['of']:,} calls (")
        assert "try a predicate" in one["message"]


@pytest.mark.parametrize("run", ["stacks", "json"])
def test_greatest_number_of_events(run: str) -> None:
    words = (*RUNS[run], "-M", "5000")
    with storm() as fixture, traced(fixture, words, "all") as (tracing, reader):
        assert tracing.wait() == 0, tracing.errors
        lines = reader.rest()
    shown = calls_in(lines) if run == "json" else [line for line in lines if b"main.hit(" in line]
    assert len(shown) == 5000


def test_calls_of_a_storm_are_in_order_and_whole() -> None:
    """Calls of one goroutine are numbered: none is shown twice, and none is out of place."""
    with storm() as fixture, traced(fixture, RUNS["json"], "all") as (tracing, reader):
        tracing.signal(SIGINT)
        assert tracing.wait() == 0
        lines = reader.rest()
    numbers: dict[int, list[int]] = {}
    for call in calls_in(lines):
        numbers.setdefault(call["args"]["worker"], []).append(call["args"]["n"])
        assert call["results"] == {"$ret": (call["args"]["n"] ^ 1) + len("some text")}
    assert numbers
    for own in numbers.values():
        assert own == sorted(set(own))


@pytest.mark.parametrize(
    "name",
    ["gofunccount", "gofunclatency", "gooffcpu", "gooncpu", "gostacks", "gotrace", "gotraced"],
)
@parts(3)
def test_interrupt_at_the_start(name: str, part: int, tmp_path: Path) -> None:
    """Whatever is being imported, read or attached, the end is quiet."""
    program = build(FIXTURES / "live_count", newest())
    configuration = tmp_path / "gotraced.yaml"
    configuration.write_text(
        f"targets: [{{name: a, exe: {program}}}]\n"
        "listen: 127.0.0.1:0\n"
        "metrics: [{name: leaf, type: counter, probe: main.leaf}]\n"
    )
    configuration.chmod(0o600)
    with Fixture([program]) as fixture:
        words: list[str | Path] = ["-p", str(fixture.ready)]
        if name == "gotraced":
            words = ["--config", configuration]
        elif name.startswith("gof"):
            words = [f"{program}:main.*"]
        elif name == "gotrace":
            words = ["main.*", "--", program]
        for _ in range(10):
            # A command that was started goes on: it ends by itself at the end of its input.
            # Nobody reads what it prints if it has begun: a pipe would fill.
            command = ["env", *tool_command(name, *words)]
            with Process(command, stdin=DEVNULL, stdout=DEVNULL) as starting:
                starting.ends_within(random.uniform(0, 0.5))
                starting.signal(SIGINT)
                status = starting.wait()
            # The interpreter catches SIGINT some lines before any of ours can be run.
            ours = r'File "(?!<)(?!.*/tools/go\w+", line \d,)'
            assert not re.search(ours, starting.errors), starting.errors
            assert status in (0, 130, -SIGINT) or "frozen" in starting.errors, starting.errors


def test_interrupt_leaves_what_is_ignored_ignored() -> None:
    """What a shell's script runs with ``&`` outlives Ctrl-C until it traces."""

    def ignore() -> None:
        signal.signal(SIGINT, signal.SIG_IGN)

    with Process(tool_command("gotrace", "--version"), preexec_fn=ignore) as starting:
        starting.signal(SIGINT)
        assert starting.wait() == 0
