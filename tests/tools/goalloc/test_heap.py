# SPDX-License-Identifier: Apache-2.0
"""What a program has in use: bucket for bucket as the program's own profile has it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.raw import raw_profile
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest, program_of
from tests.tools.harness import Fixture, of_kind, run_tool

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
