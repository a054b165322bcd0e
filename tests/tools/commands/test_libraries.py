# SPDX-License-Identifier: Apache-2.0
"""Trace Go code in shared libraries: plugins of a Go program, and libraries of a C program."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, newest, require, toolchains
from tests.tools.harness import Fixture, count_on, json_counts, of_kind, run_tool
from tests.tools.latency import summary
from tests.tools.libraries import (
    build_host,
    check_library,
    check_plugin_times,
    check_plugin_values,
    run,
)

pytestmark = [pytest.mark.live, pytest.mark.apart]

ENDS = [
    pytest.param(found, id=f"go{found.minor}") for found in (*toolchains()[:1], *toolchains()[-1:])
]
each_end = pytest.mark.parametrize("toolchain", ENDS)


def library(toolchain: Toolchain) -> Path:
    flags = ["-buildmode=c-shared"]
    return build(FIXTURES / "live_library", toolchain, flags=flags, name="live_library.so")


@pytest.fixture(scope="module")
def c_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "host"
    build_host(path)
    return path


def plugin(toolchain: Toolchain) -> tuple[Path, Path]:
    """Return a program and the plugin that it loads."""
    flags = ["-buildmode=plugin"]
    loaded = build(FIXTURES / "live_plugin", toolchain, flags=flags, name="live_plugin.so")
    return build(FIXTURES / "live_plugin_host", toolchain), loaded


@each_end
@pytest.mark.parametrize("by_pid", [True, False], ids=["pid", "path"])
def test_calls_in_a_library_of_a_c_program_are_counted(
    toolchain: Toolchain, c_host: Path, by_pid: bool
) -> None:
    path = library(toolchain)
    words = ["--json", f"{path}:main.inner", f"{path}:main.check"]
    truth, result = run("gofunccount", [c_host, path], words, by_pid)
    assert json_counts(result) == {"main.inner": truth["calls"], "main.check": truth["calls"]}


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_calls_in_a_library_of_a_c_program_are_measured_and_traced(
    minor: str, c_host: Path
) -> None:
    check_library(c_host, library(require(minor)))


def test_a_c_program_is_not_searched_for_what_its_library_has(c_host: Path) -> None:
    """As a regular expression the pattern would match the program's main."""
    path = library(newest())
    with Fixture([c_host, path]) as fixture:
        result = run_tool("gofunccount", "-p", str(fixture.ready), "main.*")
        assert result.errors == (
            f"gofunccount: no function matches 'main.*' in {c_host}, which is not a Go program;"
            f" {path} has: type '{path}:main.*'\n"
        )
        truth, result = count_on(fixture, *shlex.split(result.errors.rpartition(": type ")[2]))
        assert json_counts(result)["main.inner"] == truth["calls"]
        assert fixture.finish() == 0


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace"])
def test_a_library_that_a_command_is_linked_with_is_named(name: str, tmp_path: Path) -> None:
    """As of a program of -linkshared, the dynamic linker alone knows where it is."""
    path = shutil.copy(library(newest()), tmp_path / "live_library.so")
    source = FIXTURES / "live_library_host" / "main.c"
    linked = ["-Wl,--no-as-needed", path, f"-Wl,-rpath,{tmp_path}", "-ldl"]
    subprocess.run(["gcc", "-o", tmp_path / "host", source, *linked], check=True)
    command = ["--", f"{tmp_path}/host", str(path)]
    result = run_tool(name, "main.inner", *command)
    where = f"no function matches 'main.inner' in {tmp_path}/host, which is not a Go program"
    typed = f"{path}:main.inner"
    assert (result.status, result.errors) == (3, f"{name}: {where}; {path} has: type '{typed}'\n")
    recipe = run_tool(name, "@panics", *command).errors
    assert recipe == f"{name}: {where}; {path} has: type '{typed}'\n".replace(
        "main.inner", "@panics"
    )
    result = run_tool(name, typed, *command, stdin=subprocess.DEVNULL)
    assert result.lines[0].startswith("Tracing 1 function "), result.errors


@pytest.mark.parametrize("name", ["gofunclatency", "gotrace"])
def test_library_of_a_release_that_hides_g_is_refused(name: str, c_host: Path) -> None:
    path = library(require("1.15"))
    with Fixture([c_host, path]) as fixture:
        result = run_tool(name, "-p", str(fixture.ready), f"{path}:main.inner")
        fixture.work()
        assert fixture.finish() == 0
    assert result.status == 1
    (line,) = result.errors.splitlines()
    assert f"{path}: where a thread's goroutine is kept" in line


@each_end
@pytest.mark.parametrize("by_pid", [True, False], ids=["pid", "path"])
def test_calls_in_a_plugin_and_its_host_are_counted(toolchain: Toolchain, by_pid: bool) -> None:
    host, path = plugin(toolchain)
    words = ["--json", f"{path}:*.check", "-x", "runtime.*", f"{host}:main.hostSide"]
    truth, result = run("gofunccount", [host, path], words, by_pid)
    counts = dict(json_counts(result))
    assert counts.pop("main.hostSide") == truth["calls"]
    assert list(counts.values()) == [truth["calls"]]


def test_copies_that_a_plugin_has_of_a_function_are_named() -> None:
    """Each call formats two values in the plugin; the program formats three when it has ended."""
    host, path = plugin(newest())
    name = "fmt.(*pp).printArg"
    words = ["--json", name]
    _, result = run("gofunccount", [host, path], words, by_pid=True)
    assert json_counts(result) == {name: 3}
    (text,) = (row["message"] for row in of_kind(result, "warning") if "plugin" in row["message"])
    said, _, typed = text.partition(": add ")
    assert said == f"{path} has 1 function of such names, not seen"
    truth, result = run("gofunccount", [host, path], words + shlex.split(typed), by_pid=True)
    assert json_counts(result) == {name: 2 * truth["calls"] + 3}
    assert not any("not seen" in row["message"] for row in of_kind(result, "warning"))


def test_functions_that_only_a_plugin_has_are_named() -> None:
    host, path = plugin(newest())
    with Fixture([host, path]) as fixture, Fixture([host, path]) as other:
        for pid in (str(fixture.ready), f"{fixture.ready},{other.ready}"):
            result = run_tool("gofunccount", "-p", pid, "math/big.*")
            assert result.status == 3
            assert result.errors.endswith(f"; {path} has: type '{path}:math/big.*'\n")
        for each in (fixture, other):
            each.work()
            assert each.finish() == 0


@each_end
def test_calls_in_a_plugin_and_its_host_are_measured(toolchain: Toolchain) -> None:
    check_plugin_times(*plugin(toolchain))


@each_end
def test_values_in_a_plugin(toolchain: Toolchain) -> None:
    check_plugin_values(*plugin(toolchain))


@each_end
def test_types_of_a_plugin_in_interfaces(toolchain: Toolchain) -> None:
    """Its descriptors of types lead to one another by symbols."""
    host, path = plugin(toolchain)
    truth, result = run("gotrace", [host, path], [f"{path}:*.hold"], by_pid=True)
    values = re.findall(r"hold\(v=(.*)\) = true", "".join(result.lines))
    held = [re.sub(r"^(&?)[^{]*\.(item|Int)\{", r"\1\2{", value) for value in values]
    wanted = []
    for n in range(truth["calls"]):
        wanted += [f'item{{name: "held", n: {n}}}', f'&item{{name: "led to", n: {n}}}']
        words = f"big.nat{{big.Word({n})}}" if n else "nil"
        wanted.append(f"Int{{neg: false, abs: {words}}}")
    assert held == wanted


@each_end
def test_panics_and_goroutines_that_end_in_a_plugin_are_noticed(toolchain: Toolchain) -> None:
    """A plugin has functions of the runtime of its own; goroutines that it starts return there."""
    host, path = plugin(toolchain)
    words = ["--json", "-g", f"{path}:*.fall", f"{path}:*.inner"]
    truth, result = run("gofunclatency", [host, path], words, by_pid=True)
    assert summary(result, "unwound") == truth["fallen"]
    assert summary(result, "open") == 0
    rows = of_kind(result, "histogram")
    start = r"goroutine \d+ \[\S+\.Work\.func1, created at main\.go:\d+\]"
    assert rows and all(re.fullmatch(start, row["goroutine"]) for row in rows)


def test_library_and_program_of_different_releases(c_host: Path) -> None:
    """Each file's runtime is as its release has it, and rows name the file."""
    host, _ = plugin(newest())
    path = library(require("1.19"))
    words = ["--json", "-F", f"{host}:main.hostSide", f"{path}:main.check"]
    truth, result = run("gofunclatency", [c_host, path], words, by_pid=False)
    (row,) = of_kind(result, "histogram")
    assert (row["func"], row["count"]) == ("main.check", truth["calls"])
    assert row["program"] == path.name
