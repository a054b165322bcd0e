# SPDX-License-Identifier: Apache-2.0
"""Pages with flame graphs, of every command that has stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.profiles.test_html import Page
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, run_tool, tool

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    "words",
    [
        ("gotrace", "main.leaf"),
        ("gofunccount", "main.leaf"),
        ("gofunclatency", "main.leaf"),
        ("gofunclatency", "--by", "$goid", "main.leaf"),
        ("gooffcpu",),
        ("gooncpu", "-F", "9999"),
        ("gostacks",),
    ],
)
def test_each_command_writes_a_page(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    with Fixture([build(FIXTURES / "live_hits", newest())]) as fixture:
        asked = (words[0], "-p", str(fixture.ready), "-o", str(path), *words[1:])
        if words[0] == "gostacks":  # it reads, and waits for nothing
            assert run_tool(*asked).status == 0
        else:
            with tool(*asked) as tracing:
                for _ in range(10):  # one may have nothing to wait for
                    fixture.work("once")
                assert tracing.end().status == 0
        assert fixture.finish() == 0
    page = Page(path.read_text())
    embedded = next(text for tag, text in page.texts if tag == "script")
    made = json.loads(embedded)
    names = [frame["name"] for frame in made["shared"]["frames"]]
    assert sum(made["profiles"][0]["weights"]) > 0
    assert any(name.startswith("main.") for name in names)
