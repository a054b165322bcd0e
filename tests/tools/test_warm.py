# SPDX-License-Identifier: Apache-2.0
"""A command that is started as a copy does what one does that is started as usual."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.tools.harness import CLONE, Process, run_tool, tool_command
from tests.tools.warm import Warm, can_be_warm


@pytest.mark.parametrize(
    ("name", "words", "status"),
    [
        ("gofunccount", ["--version"], 0),
        ("gotrace", ["--help"], 0),
        ("gofunclatency", ["--nonsense"], 2),
        ("gofunccount", ["no/such/program:main.x"], 2),
        ("gofunccount", ["-l", "text:main.x"], 1),
        ("gotraced", ["--check", "--config", "text"], 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_both_say_the_same(
    name: str, words: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no program")
    monkeypatch.delenv("GOTRACE_COLD", raising=False)
    env = {**os.environ, "COLUMNS": "100"}
    warm = run_tool(name, *words, cwd=tmp_path, env=env)
    assert warm.status == status
    monkeypatch.setenv("GOTRACE_COLD", "1")
    assert run_tool(name, *words, cwd=tmp_path, env=env) == warm


def test_each_copy_has_a_start_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one was given another does not have: directory, environment, standard streams."""
    monkeypatch.delenv("GOTRACE_COLD", raising=False)
    shown = []
    for name in ("one", "two"):
        recipes, place = tmp_path / f"recipes-{name}", tmp_path / name
        recipes.mkdir()
        place.mkdir()
        (recipes / f"{name}.txt").write_text(
            "description: d\nneeds: main\n\nprobe: main.f\nby: n\n"
        )
        env = {**os.environ, "GOTRACE_RECIPES": str(recipes)}
        shown.append(run_tool("gotrace", "recipes", cwd=place, env=env))
    assert [("@one" in "".join(each.lines)) for each in shown] == [True, False]
    assert [("@two" in "".join(each.lines)) for each in shown] == [False, True]


def test_signals_end_it_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOTRACE_COLD", raising=False)
    with Process(tool_command("gostacks", "--core", "/dev/stdin")) as waiting:
        assert isinstance(waiting._process, Warm)
        waiting.signal(signal.SIGTERM)
        assert waiting.wait() == -signal.SIGTERM


def test_only_what_has_no_start_of_its_own_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOTRACE_COLD", raising=False)
    command = tool_command("gotrace", "--version")
    assert can_be_warm(command, {"env": {**os.environ, "GOTRACE_DRAIN": "3"}, "cwd": "/"})
    assert not can_be_warm(command, {"env": {**os.environ, "PYTHONPATH": "/x"}})
    assert not can_be_warm(command, {"preexec_fn": print})
    assert not can_be_warm(["env", *command], {})
    assert not can_be_warm([CLONE / "tests" / "whole.py"], {})
    monkeypatch.setenv("GOTRACE_COLD", "1")
    assert not can_be_warm(command, {})
