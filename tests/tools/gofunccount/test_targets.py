# SPDX-License-Identifier: Apache-2.0
"""Count in every kind of target, and see each end that a run can come to."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, gccgo_build, program_of, require
from tests.tools.harness import (
    Fixture,
    Process,
    Running,
    count_on,
    json_counts,
    of_kind,
    text_counts,
    tool,
    tool_command,
)

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_count")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a copy of the fixture program that may be removed."""
    return Path(shutil.copy(program(), tmp_path / "program"))


def three(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in NAMES}


def times(calls: Mapping[str, int], factor: int) -> dict[str, int]:
    return {name: count * factor for name, count in three(calls).items()}


def test_one_file_by_several_names_is_probed_once(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(program())
    words = (*NAMES, "main.leaf*", f"{program()}:main.leaf", f"{link}:main.small*")
    with Fixture([program()]) as fixture:
        measured = ("--json", "-F", "-p", str(fixture.ready), *words)
        with tool("gofunclatency", *measured) as measuring:
            truth, counted = count_on(fixture, *words)
            rows = of_kind(measuring.end(), "histogram")
    assert json_counts(counted) == three(truth["calls"])
    assert {row["func"]: row["count"] for row in rows} == three(truth["calls"])


def test_thread_id_stands_for_its_process() -> None:
    with Fixture([program()]) as fixture:
        threads = map(int, os.listdir(f"/proc/{fixture.ready}/task"))
        thread = next(tid for tid in threads if tid != fixture.ready)
        with tool("gofunccount", "--json", "-p", str(thread), *NAMES) as counting:
            truth = fixture.work()
            result = counting.end()
    assert json_counts(result) == three(truth["calls"])


def test_other_processes_of_the_program_are_not_counted() -> None:
    with (
        Fixture([program()]) as other,
        Fixture([program()]) as fixture,
        tool("gofunccount", "--json", "-p", str(fixture.ready), *NAMES) as counting,
    ):
        other.work()
        truth = fixture.work()
        result = counting.end()
    assert json_counts(result) == three(truth["calls"])


@pytest.mark.parametrize("mode", ["default", "pie"])
@pytest.mark.parametrize("how", ["-c", "--"])
def test_command_is_counted_from_its_first_instruction(how: str, mode: str) -> None:
    path = program(mode=mode)
    arguments = ["one", "two  three", "$HOME"]
    words = ["-c", f"{path} one 'two  three' $HOME"] if how == "-c" else ["--", path, *arguments]
    patterns = ["main.main", "runtime.rt0_go", "runtime.schedinit", *NAMES]
    command = [*patterns, *words] if how == "--" else [*words, *patterns]
    with tool("gofunccount", *command) as counting:
        counting.lines_until("ready ")
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        counting.say()
        result = counting.result()
    assert result.status == 0
    counted = text_counts(result)
    assert three(counted) == three(truth["calls"])
    once = {"main.main": 1, "runtime.schedinit": 1}
    assert {name: counted[name] for name in once} == once
    assert truth["arguments"] == arguments
    assert re.fullmatch(r"process \d+ ended with status 0\n", result.errors)


def test_command_is_looked_up_on_the_path(copied: Path) -> None:
    env = {**os.environ, "PATH": f"{copied.parent}:{os.environ['PATH']}"}
    with tool("gofunccount", "-c", "program", "main.leaf", env=env) as counting:
        counting.lines_until("ready ")
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        counting.say()
        result = counting.result()
    assert text_counts(result)["main.leaf"] == truth["calls"]["main.leaf"]


def test_command_goes_on_when_counting_ends() -> None:
    with tool("gofunccount", "-c", str(program()), "main.leaf") as counting:
        pid = int(counting.lines_until("ready "))
        counting.signal(signal.SIGINT)
        counting.lines_until("Detaching...")
        # It reads the same pipe, and says what it knows to an output that is still open.
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        assert truth["calls"]["main.leaf"] > 0
        assert os.readlink(f"/proc/{pid}/exe") == str(program())
        counting.say()
        assert counting.result().status == 0


def test_every_process_of_a_file_is_counted() -> None:
    with (
        Fixture([program()]) as before,
        tool("gofunccount", "--json", *(f"{program()}:{name}" for name in NAMES)) as counting,
    ):
        truth = before.work()
        for _ in range(2):
            with Fixture([program()]) as after:
                after.work()
                after.finish()
        result = counting.end()
    assert json_counts(result) == times(truth["calls"], 3)


@pytest.mark.parametrize("mode", ["default", "pie"])
def test_path_with_colons(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / "a:b"
    directory.mkdir()
    path = shutil.copy(program(mode=mode), directory / "main:go")
    with (
        Fixture([path]) as fixture,
        tool("gofunccount", "--json", f"{path}:main.leaf") as counting,
    ):
        truth = fixture.work()
        result = counting.end()
    assert json_counts(result) == {"main.leaf": truth["calls"]["main.leaf"]}


def test_relative_path(copied: Path) -> None:
    command = ("gofunccount", "--json", "./program:main.leaf")
    with Fixture([copied]) as fixture, tool(*command, cwd=copied.parent) as counting:
        truth = fixture.work()
        result = counting.end()
    assert json_counts(result) == {"main.leaf": truth["calls"]["main.leaf"]}


def libgo(pid: int) -> str:
    """Return the path of the Go library that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    found = re.search(r"(/\S*/libgo\.so\.\d+)", maps)
    return found[1] if found else skip_or_fail("gccgo links without libgo.so")


@pytest.mark.parametrize("by_pid", [True, False], ids=["pid", "path"])
def test_functions_of_a_shared_library(by_pid: bool) -> None:
    with Fixture([gccgo_build(FIXTURES / "live_gccgo")]) as fixture:
        words = ["-p", str(fixture.ready)] if by_pid else []
        pattern = f"{libgo(fixture.ready)}:fmt.*"
        with tool("gofunccount", "--json", *words, pattern) as counting:
            truth = fixture.work()
            result = counting.end()
    assert json_counts(result, truth["library"]) == truth["library"]


def test_shared_library_on_the_lowest_rung() -> None:
    with Fixture([gccgo_build(FIXTURES / "live_gccgo")]) as fixture:
        pattern = f"{libgo(fixture.ready)}:fmt.Sprint"
        truth, result = count_on(fixture, "--attach", "perf-ip", pattern)
    assert json_counts(result) == truth["library"]


def test_deleted_program(copied: Path) -> None:
    with Fixture([copied]) as fixture:
        copied.unlink()
        truth, result = count_on(fixture, *NAMES)
    assert result.status == 0
    assert json_counts(result) == three(truth["calls"])


def test_replaced_program_counts_what_runs(copied: Path) -> None:
    other = build(FIXTURES / "live_count", require("1.19"))
    with Fixture([copied]) as fixture:
        shutil.copy(other, copied.with_name("new"))
        copied.with_name("new").rename(copied)
        truth, result = count_on(fixture, *NAMES)
    assert json_counts(result) == three(truth["calls"])


def test_file_that_is_replaced_while_counting_is_reported(copied: Path) -> None:
    with (
        Fixture([copied]) as fixture,
        tool("gofunccount", "--json", f"{copied}:main.leaf") as counting,
    ):
        shutil.copy(copied, copied.with_name("new"))
        copied.with_name("new").rename(copied)
        warning = counting.lines_until('{"kind":"warning"')
        truth = fixture.work()
        result = counting.end()
    assert f"{copied} was replaced on disk" in warning
    assert json_counts(result) == {"main.leaf": truth["calls"]["main.leaf"]}


def test_file_that_is_written_to_while_counting_ends_the_run(copied: Path) -> None:
    """Code may move, and with it what the probes are on: they have to go."""
    with tool("gofunccount", f"{copied}:main.leaf") as counting:
        os.truncate(copied, 1000)
        result = counting.result()
    assert result.status == 0
    assert result.errors == f"{copied} was written to: its probes may be in wrong places now\n"
    assert result.lines[-1] == "Detaching...\n"


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(False, id="executable"),
        pytest.param(True, id="path"),
    ],
)
def test_process_in_another_mount_namespace(tmp_path: Path, named: bool) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/program" && exec "$1/program"'
    command: list[str | Path] = ["unshare", "--mount", "sh", "-c", script, "sh", inside, program()]
    with Fixture(command) as fixture:
        assert not list(inside.iterdir())
        prefix = f"{inside}/program:" if named else ""
        truth, result = count_on(fixture, *(prefix + name for name in NAMES))
        fixture.finish()
    assert json_counts(result) == three(truth["calls"])


def test_process_in_another_pid_namespace() -> None:
    with Process(["unshare", "--pid", "--fork", "--kill-child", program()]) as outer:
        assert outer.read_until("ready ")[0] == "1"
        (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        with tool("gofunccount", "--json", "-p", child, *NAMES) as counting:
            outer.say()
            truth = json.loads(outer.read_until("truth ")[0])
            result = counting.end()
    assert json_counts(result) == three(truth["calls"])


def test_tool_in_another_pid_namespace() -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*unshare, *tool_command("gofunccount", *NAMES, "--", program())]
    with Running(command) as counting:
        assert int(counting.lines_until("ready ")) < 10
        counting.say()
        truth = json.loads(counting.lines_until("truth "))
        counting.say()
        result = counting.result()
    assert result.status == 0, result.errors
    assert three(text_counts(result)) == three(truth["calls"])
