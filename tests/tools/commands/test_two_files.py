# SPDX-License-Identifier: Apache-2.0
"""``-o`` given more than once: each command writes all files, and says so of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolchains import program_of
from tests.tools.harness import Fixture, Result, run_tool

pytestmark = pytest.mark.live

_STACKED = "rows are by $stack too, since -o "
program = program_of("live_count")


@pytest.fixture
def busy() -> Iterator[Fixture]:
    with Fixture([program()]) as ready:
        ready.say("busy")
        ready.read_until("busy")
        yield ready


def assert_written(result: Result, *paths: Path) -> None:
    """Hold that the command said of each file, and of no other, that it was written."""
    assert result.status == 0, result.errors
    told = [line for line in result.errors.splitlines() if re.match("(gofleet: )?wrote ", line)]
    assert sorted(line.split()[-1] for line in told) == sorted(map(str, paths))
    assert all(path.is_file() for path in paths)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("gofunccount", "-d 0.5 main.smallFrame"),
        ("gofunclatency", "-d 0.5 main.smallFrame"),
        ("gotrace", "-d 0.5 main.smallFrame"),
        ("gooffcpu", "-d 0.5"),
        ("gooncpu", "-d 0.5"),
        ("gooncpu", "-d 0.5 --off"),
        ("gostacks", ""),
    ],
)
def test_each_file_is_said(tool: str, words: str, busy: Fixture, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("x.ndjson", "x.html", "x.folded")]
    files = [word for path in paths for word in ("-o", str(path))]
    result = run_tool(tool, "-p", str(busy.ready), *files, *shlex.split(words))
    assert_written(result, *paths)
    assert (_STACKED in result.errors) == tool.startswith("gofunc")


def test_each_file_is_said_of_maps_comparisons_and_sums(busy: Fixture, tmp_path: Path) -> None:
    page, recording = tmp_path / "x.html", tmp_path / "x.ndjson"
    both = ("-o", str(page), "-o", str(recording))
    other, table = tmp_path / "other.html", tmp_path / "x.txt"
    files = ("-o", str(other), "-o", str(table))
    run = ("-p", str(busy.ready), "-d", "0.5")
    done = run_tool("gofunclatency", "-i", "0.1", *run, *files, "main.smallFrame")
    assert_written(done, other, table)
    assert _STACKED not in done.errors
    plain = tmp_path / "plain.ndjson"
    assert_written(run_tool("gofunccount", *run, "-o", str(plain), "main.smallFrame"), plain)
    assert_written(run_tool("gofunccount", *run, *both, "main.smallFrame"), page, recording)
    refused = run_tool("gofunccount", "--diff", recording, plain)
    assert refused.status == 2 and "-o FILE.html adds $stack" in refused.errors
    assert_written(run_tool("gofunccount", "--diff", recording, recording, *files), other, table)
    assert_written(run_tool("gofleet", "--merge", recording, *files), other, table)
