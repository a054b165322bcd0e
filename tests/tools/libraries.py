# SPDX-License-Identifier: Apache-2.0
"""Run tools on Go code in shared libraries, and hold them to what their programs say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.toolchains import FIXTURES
from tests.tools.harness import Fixture, Json, Result, json_counts, of_kind, tool
from tests.tools.latency import histograms


def build_host(path: Path, compiler: str = "gcc") -> None:
    """Compile the C program that loads a library."""
    source = FIXTURES / "live_library_host" / "main.c"
    subprocess.run([compiler, "-O1", "-o", path, source, "-ldl"], check=True)


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


def check_library(host: Path, path: Path) -> int:
    """Have a library of a C program counted, measured and traced; return the calls compared."""
    patterns = [f"{path}:main.inner", f"{path}:main.check"]
    calls = 0
    truth, result = run("gofunccount", [host, path], ["--json", *patterns], by_pid=False)
    assert json_counts(result) == dict.fromkeys(("main.inner", "main.check"), truth["calls"])
    calls += 2 * truth["calls"]
    truth, result = run("gofunclatency", [host, path], ["--json", "-F", *patterns], by_pid=False)
    assert {name: row["count"] for name, row in histograms(result).items()} == {
        "main.inner": truth["calls"],
        "main.check": truth["calls"],
    }
    calls += 2 * truth["calls"]
    truth, result = run("gotrace", [host, path], patterns, by_pid=True)
    assert_traced(truth, result, '"three" (*errors.errorString)')
    return int(calls + 2 * truth["calls"])


def check_plugin_times(host: Path, path: Path) -> int:
    """Have a plugin and its host measured, whose functions run on the same goroutines."""
    patterns = [f"{path}:*.Work", f"{path}:*.check", "-x", "runtime.*", "main.hostSide"]
    words = ["--json", "-F", "-g", *patterns]
    truth, result = run("gofunclatency", [host, path], words, by_pid=True)
    rows = of_kind(result, "histogram")
    assert {row["goid"] for row in rows} == {1}
    assert {row["func"].rpartition(".")[2]: row["count"] for row in rows} == dict.fromkeys(
        ("Work", "check", "hostSide"), truth["calls"]
    )
    assert of_kind(result, "lost") == []
    return int(3 * truth["calls"])


def check_plugin_values(host: Path, path: Path) -> int:
    """Have calls in a plugin traced with their values."""
    patterns = [f"{path}:*.inner", f"{path}:*.check", "-x", "runtime.*"]
    truth, result = run("gotrace", [host, path], patterns, by_pid=True)
    # The linker has put the types of a program and its plugins together: some are elsewhere.
    assert_traced(truth, result, "error(<unavailable: type not known>)")
    return int(2 * truth["calls"])
