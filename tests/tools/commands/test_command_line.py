# SPDX-License-Identifier: Apache-2.0
"""Read command lines as users write them, with options anywhere."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gotrace.cli import gotrace
from gotrace.cli.options import parse
from gotrace.errors import UsageError
from gotrace.session.trace_plan import MAX_TEXT_BYTES, TraceChoices
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE

TOOLS = ("gofunccount", "gofunclatency", "gotrace")


def read(tool: str, *words: str) -> argparse.Namespace:
    parser = importlib.import_module(f"gotrace.cli.{tool}")._parser()
    return parse(parser, words)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "words",
    [
        ("-x", "skip", "-p", "7", "--json", "a", "b", "c"),
        ("a", "-x", "skip", "b", "-p", "7", "c", "--json"),
        ("a", "b", "c", "-p7", "--json", "--exclude=skip"),
    ],
    ids=["before", "between", "behind"],
)
def test_options_stand_anywhere(tool: str, words: Sequence[str]) -> None:
    options = read(tool, *words)
    assert options.patterns == ["a", "b", "c"]
    assert (options.exclude, options.pid, options.json) == (["skip"], 7, True)
    assert options.command is None


@pytest.mark.parametrize("tool", TOOLS)
def test_command_keeps_its_own_options_and_dashes(tool: str) -> None:
    options = read(tool, "a", "-r", "b", "--", "./server", "-x", "--json", "--", "-p")
    assert options.patterns == ["a", "b"]
    assert options.command == ["./server", "-x", "--json", "--", "-p"]
    assert (options.exclude, options.json, options.pid) == ([], False, None)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("a", "--nothing", "b"), "--nothing"),
        (("a", "-p", "7", "b", "-c", "true"), "not allowed with"),
        (("a", "-p", "7", "b", "--", "true"), "only one of"),
        (("-x", "a"), "which functions"),
        (("a", "-x"), "expected one argument"),
    ],
)
def test_mistakes_are_told(tool: str, words: Sequence[str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read(tool, *words)


def test_the_bound_of_strings_is_the_documented_one() -> None:
    bound = TraceChoices.of(1 << 20, 1, entry_only=False, floats=True).limits.text_bytes
    assert bound == MAX_TEXT_BYTES
    assert f"no more than {bound:,})" in " ".join(gotrace._parser().format_help().split())
    for page in ("man/gotrace.8", "limits.md"):
        assert f"no more than {bound:,} whatever" in (CLONE / "docs" / page).read_text()


def test_without_pyelftools_the_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "elftools.py").write_text("raise ImportError('it is not here')")
    program = build(FIXTURES / "live_count", newest())
    done = subprocess.run(
        [CLONE / "tools" / "gotrace", "-l", f"{program}:main.leaf (n > 1)"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("gotrace: cannot read debugging information: pyelftools cannot be")
    assert "python3-pyelftools" in line
