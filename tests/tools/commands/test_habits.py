# SPDX-License-Identifier: Apache-2.0
"""Type what users of other tools type first: it works, or the first line says what to type."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gotrace.cli.habits import SUBCOMMANDS
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture, run_tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

_LINES = (Path(__file__).parents[1] / "habits.txt").read_text().splitlines()
#: Command line, exit status, and a part of what it prints.
HABITS = [
    (line[2:], int(said[0]), said[2:]) for line, said in pairwise(_LINES) if line.startswith("$ ")
]

#: What would go on until Ctrl-C.
_ENDLESS = ("gofunccount", "gofunclatency", "gooffcpu", "gooncpu", "gotrace")


@pytest.fixture(scope="module")
def bakery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    """A running program, in its own directory: ``cwd`` of each command line."""
    directory = tmp_path_factory.mktemp("bakery")
    program = build(FIXTURES / "live_bakery", newest(), name="bakery")
    shutil.copy(program, directory / "bakery")
    (directory / "gotraced.yaml").write_text("targets: []\n")
    (directory / "cart.go").touch()
    (directory / ".bin").mkdir()
    (directory / ".bin" / "go").symlink_to(program)
    with Fixture([directory / "bakery"], cwd=directory, patience=900) as fixture:
        yield fixture


def test_the_table_is_whole() -> None:
    assert len(HABITS) >= 200
    assert len({line for line, _, _ in HABITS}) == len(HABITS)
    assert {status for _, status, _ in HABITS} == {0, 2, 3}
    assert all(part for _, _, part in HABITS)


@pytest.mark.parametrize(("line", "status", "part"), HABITS, ids=[line for line, _, _ in HABITS])
def test_habit(bakery: Fixture, line: str, status: int, part: str) -> None:
    directory = os.readlink(f"/proc/{bakery.ready}/cwd")
    tool, *words = shlex.split(line.replace("1234", str(bakery.ready)))
    ends = (
        words[:1] == []
        or words[0] in SUBCOMMANDS
        or any(re.match("-d|--duration", word) for word in words)
    )
    # Before the words: -- may be among them.
    end = [] if ends or tool not in _ENDLESS else ["-d", "0.05"]
    path = f"{CLONE / 'tools'}:{directory}:{directory}/.bin:{os.environ['PATH']}"
    done = run_tool(
        tool,
        *end,
        *words,
        cwd=directory,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
    )
    part = part.replace("1234", str(bakery.ready))
    assert done.status == status, done
    if status:
        assert done.lines == []  # nothing has begun
        (said,) = done.errors.splitlines()
        assert said.startswith(f"{tool}: ") and part in said, said
    else:
        lines = done.lines
        heading = [row for row in lines if row.startswith("Tracing ")]
        results = (
            lines if part.startswith("Tracing") else [row for row in lines if row not in heading]
        )
        assert any(part in row for row in results), done
