# SPDX-License-Identifier: Apache-2.0
"""Calls by the stacks that they were made from: the same as in the lines of ``gotrace -U``."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.raw import raw_profile
from tests.toolchains import BUILD_MODES, FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, run_tool, tool

pytestmark = pytest.mark.live


@pytest.mark.parametrize("mode", ["default", "pie"])
def test_profiles_have_the_calls_that_lines_have(mode: str, tmp_path: Path) -> None:
    profile, recording = tmp_path / "x.pb.gz", tmp_path / "x.ndjson"
    path = build(FIXTURES / "live_hits", newest(), flags=BUILD_MODES[mode])
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), "main.leaf", "main.parent")
        with (
            tool("gotrace", "--json", "-U", *words) as lines,
            tool("gotrace", "-f", *words, stderr=subprocess.STDOUT) as folding,
            tool("gotrace", "-o", str(profile), "-o", str(recording), *words) as profiling,
        ):
            fixture.work("once")
            shown, folded, written = lines.end(), folding.end(), profiling.end()
        assert fixture.finish() == 0
    expected: Counter[tuple[Any, ...]] = Counter()
    durations: Counter[str] = Counter()
    for row in of_kind(shown, "call"):
        stack = [(frame["func"], frame["line"]) for frame in row["stack"]]
        key = ((row["func"], row["line"]), *stack)
        expected[key] += 1
        durations[row["func"]] += 1
    assert len(expected) > 5 and durations["main.leaf"] > 97
    raw = raw_profile(profile)
    assert raw.types == ("calls/count[dflt]", "duration/nanoseconds")
    assert {one.frames: one.values[0] for one in raw.samples} == expected
    assert all(one.values[1] > 0 for one in raw.samples)
    by_name: Counter[str] = Counter()
    for frames, count in expected.items():
        by_name[";".join(name for name, _ in reversed(frames))] += count
    found = dict(re.findall(r"^(\S+;\S+) (\d+)$", "".join(folded.lines), re.M))
    assert {name: int(count) for name, count in found.items()} == by_name
    rows = [json.loads(line) for line in recording.read_text().splitlines()]
    assert Counter(row["func"] for row in rows if row["kind"] == "call") == durations
    assert f"wrote {expected.total():,} calls to {profile}" in written.errors


def test_profiles_have_no_calls_by_themselves() -> None:
    result = run_tool("gotrace", "-f", "--json", "-p", "1", "main.main")
    assert result.status == 2 and "--json" in result.errors


@pytest.mark.parametrize("command", ["gotrace", "gofunccount", "gooffcpu"])
def test_a_profile_that_cannot_be_written_is_one_line(command: str, tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.folded"
    with Fixture([build(FIXTURES / "live_hits", newest())]) as fixture:
        words = ["main.leaf"] if command != "gooffcpu" else []
        wanted = ("-p", str(fixture.ready), "-d", "0.1", "-o", str(path), *words)
        result = run_tool(command, "-q", *wanted)
        assert fixture.finish() == 0
    assert result.status == 1
    line = f"{command}: {path}: cannot write: No such file or directory\n"
    assert [one for one in result.errors.splitlines(keepends=True) if str(path) in one] == [line]
