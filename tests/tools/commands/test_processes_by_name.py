# SPDX-License-Identifier: Apache-2.0
"""One meaning of -p in all commands and in the library, and what is traced is said."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import gotrace
from gotrace.errors import NoMatchError, UsageError
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, run_tool, tool

pytestmark = pytest.mark.live

NAME = "shopfronts"


def _program() -> Path:
    return build(FIXTURES / "live_latency", newest())


@contextmanager
def shops(directory: Path, count: int) -> Iterator[list[Fixture]]:
    """Run a program several times, by a name that no other process has."""
    program = directory / NAME
    shutil.copy2(_program(), program)
    with ExitStack() as stack:
        yield [stack.enter_context(Fixture([program])) for _ in range(count)]


def test_a_name_that_several_processes_have(tmp_path: Path) -> None:
    with shops(tmp_path, 2) as fixtures:
        numbers = sorted(fixture.ready for fixture in fixtures)
        listed = f"{numbers[0]}, {numbers[1]}"
        for name in ("gofunccount", "gofunclatency", "gotrace"):
            result = run_tool(name, "-p", NAME, "-d", "0.1", "main.short")
            assert result.status == 0
            assert f"Tracing 1 function of 2 processes: {listed} for " in result.lines[0]
        result = run_tool("gofunccount", "--json", "-p", NAME, "-d", "0.1", "main.short")
        assert of_kind(result, "attached")[0]["pids"] == numbers
        with gotrace.attach(NAME) as go:
            assert go.count("main.short", ready=go.stop)["main.short"] == 0
        for name, does in (("gostacks", "reads"), ("gooffcpu", "traces"), ("gooncpu", "samples")):
            result = run_tool(name, "-p", NAME)
            one = f"{name} {does} one process, and there are 2: "
            choice = f"give -p {numbers[0]} or -p {numbers[1]}"
            assert (result.status, result.errors) == (2, f"{name}: {one}{choice}\n")


def test_a_name_that_one_process_has(tmp_path: Path) -> None:
    with shops(tmp_path, 1) as [fixture]:
        pid = fixture.ready
        result = run_tool("gofunccount", "-p", NAME, "-d", "0.1", "main.short")
        assert f"Tracing 1 function of process {pid} for " in result.lines[0]
        result = run_tool("gofunccount", "-p", str(pid), "-d", "0.1", "main.short")
        assert "Tracing 1 function for " in result.lines[0]
        dump = run_tool("gostacks", "--json", "-p", NAME)
        assert of_kind(dump, "dump")[0]["pid"] == pid
        with tool("gooffcpu", "--force", "-p", NAME) as tracing:
            assert f"of process {pid}" in tracing.end().lines[0]
        with tool("gooncpu", "-p", NAME) as sampling:
            assert f"Sampling process {pid} " in sampling.end().lines[0]
        with gotrace.attach(NAME) as go:
            assert go.goroutines()


def test_a_name_before_the_colon(tmp_path: Path) -> None:
    """What tables call a program of several is what a probe may call it, the file here or not."""
    other = tmp_path / "other"
    other.mkdir()
    with shops(tmp_path, 1) as [one], shops(other, 1) as [two], Fixture([_program()]) as third:
        probe = f"{NAME}:main.short"
        for name in ("gofunccount", "gofunclatency", "gotrace"):
            result = run_tool(name, "-p", str(one.ready), "-d", "0.1", probe)
            assert "Tracing 1 function for " in result.lines[0], result.errors
        pids = f"{one.ready},{third.ready}"
        listed = run_tool("gofunccount", "-l", "-p", pids, probe, "live_latency:main.recurse")
        names = [line.split()[0] for line in listed.lines]
        assert names == ["NAME", probe, "live_latency:main.recurse"], listed.errors
        pids = f"{one.ready},{two.ready}"
        listed = run_tool("gotrace", "-l", "-p", pids, f"other/{probe}")
        assert listed.lines[1].startswith("main.short"), listed.errors
        listed = run_tool("gotrace", "-l", "-p", pids, probe)
        assert [line.split(":")[0] for line in listed.lines[1:]] == [
            f"{tmp_path.name}/{NAME}",
            f"other/{NAME}",
        ]
        with gotrace.attach(one.ready) as go:
            assert go.count(probe, ready=go.stop)["main.short"] == 0
        result = run_tool("gotrace", "-p", str(third.ready), probe)
        typed = f"-p {one.ready},{two.ready} 'main.short' for the processes that run one"
        assert (result.status, result.errors) == (
            2,
            f"gotrace: no file '{NAME}' here: type {typed}\n",
        )
    result = run_tool("gofunccount", "-l", probe, "--", tmp_path / NAME)
    assert result.lines[1].startswith("main.short"), result.errors


def test_a_name_with_blanks(tmp_path: Path) -> None:
    program = shutil.copy2(_program(), tmp_path / "my shop")
    with Fixture([program]) as fixture, Fixture([_program()]) as other:
        for name in ("my shop", f"{other.ready},my shop", f" my shop , {other.ready} "):
            result = run_tool("gofunccount", "--json", "-p", name, "-d", "0.1", "main.short")
            numbers = {fixture.ready, *([other.ready] if "," in name else [])}
            assert set(of_kind(result, "attached")[0]["pids"]) == numbers
        for name in ("my", "my sho", "mys hop"):  # my without its quotes, and slips
            result = run_tool("gofunccount", "-p", name, "shop", "main.short")
            named = f"gofunccount: no process is named '{name}': did you mean 'my shop'?\n"
            assert result.errors == named
        dump = run_tool("gostacks", "--json", "-p", program)
        assert of_kind(dump, "dump")[0]["pid"] == fixture.ready
    result = run_tool("gofunccount", "-p", "my shop", "main.short")
    assert result.errors == "gofunccount: no process is named 'my shop': give its number\n"


_SOURCE = """package main

import "fmt"
import "os"

//go:noinline
func short(n int) int { return n + 1 }

//go:noinline
func recurse(n int) int { return n - 1 }

func main() {
	fmt.Println("ready", os.Getpid())
	fmt.Scanln()
	fmt.Println(short(1), recurse(2))
}
"""


@contextmanager
def started_by(how: str, directory: Path) -> Iterator[tuple[int, int]]:
    """Start a program by another one, and give their numbers."""
    source = directory / "shop.go"
    source.write_text(_SOURCE)
    go, env = newest().go, newest().env()
    subprocess.run([go, "build", source], check=True, cwd=directory, env=env)
    words = (go, "run", source) if how == "go run" else ("sh", "-c", "./shop; true")
    with Fixture(words, cwd=directory, env=env) as fixture:
        yield fixture.pid, fixture.ready
        fixture.finish()


@pytest.mark.parametrize("how", ["sh", "go run"])
def test_a_process_that_has_started_the_program(how: str, tmp_path: Path) -> None:
    with started_by(how, tmp_path) as (above, pid):
        which = f"process {pid} (shop), which it has started, "
        for name in ("gofunccount", "gofunclatency", "gotrace"):
            result = run_tool(name, "-p", str(above), "main.short")
            assert result.status == 3
            assert result.errors.endswith(f"; {which}has it: type -p {pid}\n"), result.errors
        result = run_tool("gofunccount", "-p", str(above), "main.short", "main.rec*")
        assert result.errors.endswith(f"{which}has them: type -p {pid}\n"), result.errors
        result = run_tool("gofunccount", "-p", str(above), "main.none")
        assert which not in result.errors
        with pytest.raises(NoMatchError, match=re.escape(which)), gotrace.attach(above) as go:
            go.count("main.short")
        for name in ("gostacks", "gooncpu", "gooffcpu", "gotop") if how == "sh" else ():
            batch = ["--batch"] if name == "gotop" else []
            result = run_tool(name, *batch, "-p", str(above))
            assert result.status == 1
            assert result.errors.endswith(f"; {which}runs a Go program: type -p {pid}\n")
        if how == "go run":  # which is a Go program itself
            result = run_tool("gostacks", "-p", str(above))
            command = f"process {above} is the go command"
            assert result.status == 0
            assert result.errors == f"{command}; {which}runs the program: type -p {pid}\n"
        assert run_tool("gostacks", "-p", str(pid)).errors == ""


@pytest.mark.parametrize("how", ["mount namespace", "chroot"])
def test_a_path_as_a_process_sees_it(how: str, tmp_path: Path) -> None:
    inside = tmp_path / "app"
    inside.mkdir()
    if how == "chroot":
        shutil.copy(_program(), inside / "shop-in-root")
        path = "/shop-in-root"
        command = ["chroot", str(inside), path]
    else:
        path = f"{inside}/shop"
        copied = f"mount -t tmpfs none {inside}; cp {_program()} {path}; exec {path}"
        command = ["unshare", "--mount", "sh", "-c", copied]
    with Fixture(command) as fixture:
        for name in ("gofunccount", "gofunclatency", "gotrace"):
            probe = f"{path}:main.short"
            result = run_tool(name, probe)
            typed = f"-p {fixture.ready} 'main.short' for the process that runs one"
            assert result.errors == f"{name}: no file '{path}' here: type {typed}\n"
            assert result.status == 2
            found = run_tool(name, "-l", "-p", str(fixture.ready), "main.short")
            assert found.lines[1].startswith("main.short"), found.errors
    assert "(given in " in run_tool("gofunccount", probe).errors  # it has ended


def test_a_name_that_no_process_has() -> None:
    for name in ("gofunccount", "gofunclatency", "gotrace", "gooffcpu", "gooncpu", "gostacks"):
        words = ("main.f",) if name != "gooffcpu" else ()
        result = run_tool(name, "-p", "no-such-shop", *words)
        message = "no process is named 'no-such-shop': give its number"
        assert (result.status, result.errors) == (2, f"{name}: {message}\n")
    with pytest.raises(UsageError, match="no process is named 'no-such-shop'"):
        gotrace.attach("no-such-shop")
