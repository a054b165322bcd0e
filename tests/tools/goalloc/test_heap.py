# SPDX-License-Identifier: Apache-2.0
"""What a program has in use: bucket for bucket as the program's own profile has it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.goroutines.cores import write_core
from tests.profiles.raw import raw_profile
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest, program_of
from tests.tools.harness import Fixture, Result, of_kind, run_tool

pytestmark = pytest.mark.live

program = program_of("live_alloc")


def buckets(path: Path) -> Counter[Any]:
    """Return the buckets of a profile: their values, their size and their stacks."""
    found = raw_profile(path)
    assert [name.partition("[")[0] for name in found.types] == [
        *("alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes")
    ]
    return Counter(
        (one.values, one.frames, one.labels.get("bytes"))
        for one in found.samples
        if any(one.values)  # to write a profile takes memory, which is only counted later
    )


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "pie"])
@pytest.mark.parametrize("rounds", ["2", "300"])  # the collector has not run, and has
def test_the_heap_is_that_of_the_program(
    toolchain: Toolchain, mode: str, rounds: str, tmp_path: Path
) -> None:
    with Fixture([program(toolchain, mode=mode)]) as fixture:
        fixture.work(rounds)
        ours, own = tmp_path / "ours.pb.gz", tmp_path / "own.pb.gz"
        for _ in range(3):  # the collector may still be at work
            result = run_tool("goalloc", "--heap", "-p", str(fixture.ready), "-o", ours)
            fixture.work(f"profile {own}")
            assert result.status == 0, result.errors
            found, truth = buckets(ours), buckets(own)
            if found == truth:
                break
        assert fixture.finish() == 0
    assert truth
    assert found - truth == truth - found == Counter()


def test_a_core_file_has_what_the_process_had(tmp_path: Path) -> None:
    path = program(mode="stripped")
    with Fixture([path]) as fixture:
        fixture.work("300")
        write_core(fixture.ready, core := tmp_path / "core")
        fixture.work(f"profile {tmp_path / 'own.pb.gz'}")
        fixture.finish()
    ours = tmp_path / "ours.pb.gz"
    result = run_tool("goalloc", "--heap", "--core", core, path, "-o", ours)
    assert result.status == 0, result.errors
    assert buckets(ours) == buckets(tmp_path / "own.pb.gz")


def test_tables_and_rows_are_of_the_same(tmp_path: Path) -> None:
    before, after = tmp_path / "a.ndjson", tmp_path / "b.ndjson"
    with Fixture([program()]) as fixture:
        process = "-p", str(fixture.ready)
        fixture.work("100")
        text = run_tool("goalloc", "--heap", *process, "main.*")
        stacks = run_tool("goalloc", "--heap", *process, "--stacks", "--in", "main.large")
        run_tool("goalloc", "--heap", *process, "-o", before)
        fixture.work("3000")
        run_tool("goalloc", "--heap", *process, "-o", after)
        fixture.finish()
    assert "in use by process" in text.lines[1]
    assert any(line.rstrip().endswith("main.large") for line in text.lines)
    assert any("objects of 106,496 bytes" in line for line in stacks.lines)
    assert not any("main.huge" in line for line in stacks.lines)
    rows = Result(0, before.read_text().splitlines(), "")
    (head,) = of_kind(rows, "heap")
    for name in ("heap_bytes", "objects", "alloc_bytes", "alloc_objects"):
        assert head[name] == sum(row[name] for row in of_kind(rows, "heap_stack")) > 0
    found = run_tool("goalloc", "--diff", before, after)
    assert found.status == 0, found.errors
    assert any(line.rstrip().endswith("figures are per dump") for line in found.lines)
    assert any(re.match(r" *samples \d+ to \d+ a dump$", line.rstrip()) for line in found.lines)


def test_a_program_that_samples_nothing_has_no_profile() -> None:
    flags = "-tags=unsampled", "-ldflags=-s -w"
    with Fixture([build(FIXTURES / "live_alloc", newest(), flags=flags)]) as fixture:
        result = run_tool("goalloc", "--heap", "-p", str(fixture.ready))
        fixture.finish()
    assert result.status == 1
    assert "has no profile of its heap: its MemProfileRate is 0" in result.errors
    assert "As it is, goalloc can show who allocates" in result.errors


def test_options_of_another_question_are_refused() -> None:
    result = run_tool("goalloc", "--heap", "-p", "1", "--spans")
    assert result.status == 2
    assert "--heap reads the runtime's own profile once: leave out --spans" in result.errors
    result = run_tool("goalloc", "--core", "core", "program")
    assert "--core is for --heap: give both, or leave it out" in result.errors
