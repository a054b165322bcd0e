# SPDX-License-Identifier: Apache-2.0
"""Trace Go code in shared libraries: plugins of a Go program, and libraries of a C program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, newest, require, toolchains
from tests.tools.harness import Fixture, Json, Result, json_counts, of_kind, run_tool, tool
from tests.tools.latency import histograms, summary

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
    source = FIXTURES / "live_library_host" / "main.c"
    subprocess.run(["gcc", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


def plugin(toolchain: Toolchain) -> tuple[Path, Path]:
    """Return a program and the plugin that it loads."""
    flags = ["-buildmode=plugin"]
    loaded = build(FIXTURES / "live_plugin", toolchain, flags=flags, name="live_plugin.so")
    return build(FIXTURES / "live_plugin_host", toolchain), loaded


def run(name: str, command: list[Path], words: list[str], by_pid: bool) -> tuple[Json, Result]:
    """Trace what a program does with its library; the words name functions and files."""
    with Fixture(command) as fixture:
        pid = ["-p", str(fixture.ready)] if by_pid else []
        with tool(name, *pid, *words) as tracing:
            truth = fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def assert_traced(truth: Json, result: Result, error: str) -> None:
    """Hold the lines of inner and check against what the program made of their results."""
    lines = "".join(result.lines)
    items = re.findall(r'inner\(i=\S*item\{name: "item(\d+)", n: (\d+)\}\) = (\d+) ', lines)
    wanted = [(str(n), str(n), str(n * len(f"item{n}"))) for n in range(truth["calls"])]
    assert sorted(items, key=lambda item: int(item[0])) == wanted
    checked = re.findall(r"check\(n=(\d+)\) = (.*) at main.go:\d+\n", lines)
    failing = [n for n, text in checked if text != "nil"]
    assert [text for _, text in checked if text != "nil"] == [error] * truth["failed"]
    assert failing == [str(n) for n in range(truth["calls"]) if n % 10 == 3]


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
    path = library(require(minor))
    patterns = [f"{path}:main.inner", f"{path}:main.check"]
    truth, result = run("gofunclatency", [c_host, path], ["--json", "-F", *patterns], by_pid=False)
    assert {name: row["count"] for name, row in histograms(result).items()} == {
        "main.inner": truth["calls"],
        "main.check": truth["calls"],
    }
    truth, result = run("gotrace", [c_host, path], patterns, by_pid=True)
    assert_traced(truth, result, '"three" (*errors.errorString)')


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


@each_end
def test_calls_in_a_plugin_and_its_host_are_measured(toolchain: Toolchain) -> None:
    """The host's and the plugin's functions run on the same goroutines."""
    host, path = plugin(toolchain)
    patterns = [f"{path}:*.Work", f"{path}:*.check", "-x", "runtime.*", "main.hostSide"]
    words = ["--json", "-F", "-g", *patterns]
    truth, result = run("gofunclatency", [host, path], words, by_pid=True)
    rows = of_kind(result, "histogram")
    assert {row["goid"] for row in rows} == {1}
    assert {row["func"].rpartition(".")[2]: row["count"] for row in rows} == dict.fromkeys(
        ("Work", "check", "hostSide"), truth["calls"]
    )
    assert of_kind(result, "lost") == []


@each_end
def test_values_in_a_plugin(toolchain: Toolchain) -> None:
    host, path = plugin(toolchain)
    patterns = [f"{path}:*.inner", f"{path}:*.check", "-x", "runtime.*"]
    truth, result = run("gotrace", [host, path], patterns, by_pid=True)
    # The linker has put the types of a program and its plugins together: some are elsewhere.
    assert_traced(truth, result, "error(<unavailable: type not known>)")


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
