# SPDX-License-Identifier: Apache-2.0
"""``-o`` given more than once: each command writes all files, and says so of each."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolchains import program_of
from tests.tools.harness import Fixture, Result, run_tool

pytestmark = pytest.mark.live

_STACKED = "rows are by $stack too, since -o "
#: Lines on standard output that are no results.
_FRAME = ("Tracing ", "Sampling ", "Detaching...")
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
    paths = [tmp_path / name for name in ("x.txt", "x.ndjson", "x.html", "x.folded")]
    files = [word for path in paths for word in ("-o", str(path))]
    result = run_tool(tool, "-p", str(busy.ready), *files, *shlex.split(words))
    assert_written(result, *paths)
    assert (_STACKED in result.errors) == tool.startswith("gofunc")
    assert not [line for line in result.lines if not line.startswith(_FRAME)]
    text, rows = paths[0].read_text(), [json.loads(line) for line in paths[1].open()]
    for row in rows:
        name = row["func"].rpartition("/")[2] if "func" in row else ""
        assert name in text, row
    calls = sum(row["count"] for row in rows if row["kind"] in ("count", "histogram"))
    calls += sum(row["kind"] == "call" for row in rows)
    if tool == "gofunccount":
        lines = [line for line in text.splitlines() if line.startswith("main.smallFrame")]
        assert sum(int(line.split()[1]) for line in lines) == calls > 0
    if tool == "gofunclatency":
        assert sum(map(int, re.findall("count: ([0-9]+)", text))) == calls > 0
    if tool == "gotrace":
        assert text.count("main.smallFrame(") == calls > 0


def test_a_call_in_two_forms_is_one_of_those_wanted(busy: Fixture, tmp_path: Path) -> None:
    text, rows = tmp_path / "x.txt", tmp_path / "x.ndjson"
    words = ("-M", "20", "-p", str(busy.ready), "-o", str(text), "-o", str(rows))
    result = run_tool("gotrace", *words, "main.smallFrame ($duration > 1ns)")
    assert_written(result, text, rows)
    calls = [line for line in rows.read_text().splitlines() if '"kind":"call"' in line]
    assert len(calls) == text.read_text().count("main.smallFrame(") == 20


@pytest.mark.parametrize("tool", ["gofunccount", "gotrace", "gostacks"])
def test_json_is_printed_beside_text(tool: str, busy: Fixture, tmp_path: Path) -> None:
    text, named = tmp_path / "x.txt", tmp_path / "unnamed"
    words = ["-p", str(busy.ready)]
    words += [] if tool == "gostacks" else ["-d", "0.5", "main.smallFrame"]
    result = run_tool(tool, "--json", "-o", str(text), *words)
    assert_written(result, text)
    assert [json.loads(line) for line in result.lines]
    assert "main.smallFrame" in text.read_text() and '"kind"' not in text.read_text()
    result = run_tool(tool, "--json", "-o", str(named), *words)
    assert_written(result, named)
    assert [json.loads(line) for line in named.open()]
    assert not [line for line in result.lines if not line.startswith(_FRAME)]


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
