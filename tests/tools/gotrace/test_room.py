# SPDX-License-Identifier: Apache-2.0
"""Trace calls whose values have more than a record: what is shown of them depends on little."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, tool

pytestmark = pytest.mark.live

FUNCTIONS = ("main.struct8", "main.text8", "main.nothing8")
MORE = (
    ("-Z", "257"),
    ("--elements", "9"),
    ("--depth", "2"),
    ("-Z", "1000", "--elements", "20", "--depth", "3"),
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("room")
    return Path(shutil.copy(build(FIXTURES / "trace_room", newest()), directory))


def letters(value: object) -> int:
    """Return how many bytes of text there are in a call's values."""
    if isinstance(value, dict):
        return sum(map(letters, value.values()))
    if isinstance(value, list):
        return sum(map(letters, value))
    return len(value) if isinstance(value, str) and set(value) == {"x"} else 0


def shown(program: Path, *words: str) -> dict[str, int]:
    """Return how much of each function's call is shown."""
    with Fixture([program]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as tracing:
            fixture.work("once")
            result = tracing.end()
        assert fixture.finish() == 0
    return {
        call["func"]: letters([call["args"], call.get("results")])
        for call in of_kind(result, "call")
    }


def test_more_does_not_show_less_nor_do_more_functions(program: Path) -> None:
    usual = {name: shown(program, name)[name] for name in FUNCTIONS}
    assert all(length > 2000 for length in usual.values())
    together = shown(program, *FUNCTIONS, "main.float")
    assert {name: together[name] for name in FUNCTIONS} == usual
    for words in MORE:
        more = shown(program, *words, *FUNCTIONS)
        assert all(more[name] >= usual[name] for name in FUNCTIONS), (words, more, usual)
