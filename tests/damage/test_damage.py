# SPDX-License-Identifier: Apache-2.0
"""Damaged programs, read with all that the commands use: a few of what tests/real tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.damage.mutations import damaged, mutation
from tests.damage.programs import PROGRAMS, intact
from tests.damage.reading import read_as_tools_do
from tests.damage.trial import try_seeds
from tests.toolchains import parts

pytestmark = pytest.mark.slow


@parts(4)
@pytest.mark.parametrize("program", PROGRAMS)
def test_damage_gives_a_result_or_an_error(program: str, part: int, tmp_path: Path) -> None:
    trials = try_seeds(program, range(3 * part, 3 * part + 3), tmp_path / "copy")
    assert trials.tried == 3
    assert trials.failures == []


def test_whole_programs_are_read_to_the_end(tmp_path: Path) -> None:
    """What is tried on damaged ones succeeds on those that are not."""
    copy = tmp_path / "copy"
    copy.write_bytes(intact("newest"))
    outcome = read_as_tools_do(copy)
    assert outcome.pop("refused") == 1  # a name that is not there
    assert len(outcome) == 12


def test_a_seed_decides_everything() -> None:
    first, again, other = mutation("newest", 3), mutation("newest", 3), mutation("newest", 4)
    assert first == again != other
    assert damaged(first) == damaged(again) != intact("newest")


#: Seeds that once ended in something else than a GotraceError.
REGRESSIONS = [
    ("1.19", 1247),  # StopIteration: no instruction at a site
    ("newest-stripped", 2925),  # struct.error: a segment that ends beyond 64 bits
    ("1.15-pie-compressed", 1478),  # OverflowError: names of sections beyond all offsets
]


@pytest.mark.parametrize(("program", "seed"), REGRESSIONS)
def test_regressions(program: str, seed: int, tmp_path: Path) -> None:
    assert try_seeds(program, [seed], tmp_path / "copy").failures == []
