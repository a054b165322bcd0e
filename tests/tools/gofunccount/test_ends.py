# SPDX-License-Identifier: Apache-2.0
"""See each end that a run can come to, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.toolchains import build, newest, program_of
from tests.tools.harness import (
    CLONE,
    Fixture,
    code_at,
    code_of,
    json_counts,
    of_kind,
    sites,
    text_counts,
    tool,
    tool_command,
)

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_count")


def three(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in NAMES}


def test_exit_of_the_target_ends_the_run() -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gofunccount", "--json", "-p", str(fixture.ready), *NAMES) as counting,
    ):
        truth = fixture.work()
        fixture.finish()
        result = counting.result()
    assert result.status == 0
    assert json_counts(result) == three(truth["calls"])
    (notice,) = of_kind(result, "exited")
    assert notice["pid"] == fixture.ready


def test_kill_of_the_target_ends_the_run() -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gofunccount", "-p", str(fixture.ready), *NAMES) as counting,
    ):
        fixture.say("busy")
        fixture.read_until("busy")
        fixture.signal(signal.SIGKILL)
        result = counting.result()
    assert result.status == 0
    assert text_counts(result)["main.leaf"] >= 800
    assert result.errors == f"process {fixture.ready} has ended\n"


def test_kill_of_a_command_is_told() -> None:
    with tool("gofunccount", "main.leaf", "--", program()) as counting:
        pid = int(counting.lines_until("ready "))
        os.kill(pid, signal.SIGKILL)
        result = counting.result()
    assert result.status == 0
    assert result.errors == f"process {pid} was killed by SIGKILL\n"


def test_exec_of_another_program_ends_the_run() -> None:
    cat = os.path.realpath(shutil.which("cat") or "/bin/cat")
    with (
        Fixture([program()]) as fixture,
        tool("gofunccount", "--json", "-p", str(fixture.ready), *NAMES) as counting,
    ):
        truth = fixture.work()
        fixture.say(cat)
        result = counting.result()
    assert result.status == 0
    assert json_counts(result) == three(truth["calls"])
    (notice,) = of_kind(result, "exited")
    assert notice["path"] == cat


def test_program_that_starts_itself_anew_ends_the_run() -> None:
    with (
        Fixture([program()]) as fixture,
        tool("gofunccount", "--json", "-p", str(fixture.ready), *NAMES) as counting,
    ):
        truth = fixture.work()
        fixture.say(str(program()))
        result = counting.result()
    assert result.status == 0
    assert json_counts(result) == three(truth["calls"])
    (notice,) = of_kind(result, "exited")
    assert notice["path"] == str(program())


def test_program_that_another_one_turns_into_is_counted() -> None:
    words = (f"{program()}:main.leaf", "--", "env", "X=1", program())
    with tool("gofunccount", *words) as counting:
        counting.lines_until("ready ")
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        counting.say()
        result = counting.result()
    assert result.status == 0
    assert text_counts(result)["main.leaf"] == truth["calls"]["main.leaf"]
    assert re.fullmatch(r"process \d+ ended with status 0\n", result.errors)


@pytest.mark.parametrize("method", ["multi", "perf-cookie", "perf-ip"])
def test_kill_of_the_tool_under_load_leaves_the_target_as_it_was(method: str) -> None:
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, *NAMES)
        clean = code_at(fixture.ready, addresses)
        assert b"\xcc" not in clean
        words = ("--attach", method, "-p", str(fixture.ready), *NAMES)
        with tool("gofunccount", *words) as counting:
            fixture.say("busy")
            fixture.read_until("busy")
            assert code_at(fixture.ready, addresses) == b"\xcc" * len(addresses)
            counting.signal(signal.SIGKILL)
            assert counting.wait() == -signal.SIGKILL
            counting.wait_for_keepers()
            assert code_at(fixture.ready, addresses) == clean
        truth = fixture.work()
        assert truth["calls"]["wrong"] == 0
        assert truth["calls"]["main.leaf"] > 0
        assert fixture.finish() == 0


def test_kill_of_the_keeper_is_told() -> None:
    """The kernel takes the probes away with it: what is counted then is not all."""
    with Fixture([program()]) as fixture:
        with tool("gofunccount", "-p", str(fixture.ready), *NAMES) as counting:
            children = Path(f"/proc/{counting.pid}/task/{counting.pid}/children").read_text()
            (keeper,) = (
                int(child)
                for child in children.split()
                if Path(f"/proc/{child}/comm").read_text() == "gotrace-keeper\n"
            )
            os.kill(keeper, signal.SIGKILL)
            result = counting.end()
        fixture.work()
        assert fixture.finish() == 0
    assert result.status == 1
    assert result.errors.endswith("gotrace-keeper, was killed: later results are missing\n")
    assert "Detaching...\n" in result.lines


def test_kill_of_the_tool_while_it_detaches_leaves_the_target_as_it_was() -> None:
    """What the kernel is doing for a process that is killed, it leaves half done."""
    path = build(CLONE / "tests" / "real" / "work", newest(), name="detaching")
    with Fixture([path], patience=300) as fixture:
        fixture.say()
        fixture.read_until("busy")
        clean = code_of(fixture.pid)
        for _ in range(3):
            with tool("gofunccount", "-p", str(fixture.pid), "*") as counting:
                assert code_of(fixture.pid) != clean
                counting.signal(signal.SIGINT)
                counting.lines_until("Detaching...")
                counting.signal(signal.SIGKILL)
                counting.wait()
                counting.wait_for_keepers()
            assert code_of(fixture.pid) == clean
        assert fixture.work("end")["wrong"] == 0
        assert fixture.finish() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_prints_results_and_leaves_the_target_as_it_was(number: signal.Signals) -> None:
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, *NAMES)
        clean = code_at(fixture.ready, addresses)
        with tool("gofunccount", "-p", str(fixture.ready), *NAMES) as counting:
            fixture.say("busy")
            fixture.read_until("busy")
            result = counting.end(number)
        assert code_at(fixture.ready, addresses) == clean
        truth = fixture.work()
        assert truth["calls"]["wrong"] == 0
    assert (result.status, result.errors) == (0, "")
    assert 800 <= text_counts(result)["main.leaf"] <= truth["calls"]["main.leaf"]
    assert result.lines[-1] == "Detaching...\n"


def test_intervals_lose_nothing_under_load() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-i", "0.01", "-p", str(fixture.ready), *NAMES)
        with tool("gofunccount", *words) as counting:
            fixture.say("busy")
            fixture.read_until("busy")
            for _ in range(20):
                counting.lines_until('{"kind":"count"')
            truth = fixture.work()
            result = counting.end()
    assert json_counts(result) == three(truth["calls"])
    assert truth["calls"]["wrong"] == 0


@pytest.mark.parametrize("format", [[], ["--json"]], ids=["text", "json"])
def test_closed_output_ends_the_run_quietly(format: list[str]) -> None:
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, *NAMES)
        clean = code_at(fixture.ready, addresses)
        words = ("-i", "0.01", "-p", str(fixture.ready), *NAMES)
        with tool("gofunccount", *format, *words) as counting:
            fixture.say("busy")
            fixture.read_until("busy")
            counting.close_output()
            assert counting.wait() == 0
        assert counting.errors == ""
        assert code_at(fixture.ready, addresses) == clean


def test_output_that_head_cuts_off() -> None:
    with Fixture([program()]) as fixture:
        command = " ".join(tool_command("gofunccount", "-i", "0.01", "-p", str(fixture.ready)))
        pipe = f"{command} main.leaf | head -n 2"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", pipe], capture_output=True, text=True
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
