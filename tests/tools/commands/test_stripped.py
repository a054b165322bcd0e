# SPDX-License-Identifier: Apache-2.0
"""Say what to type if nothing in a program describes the arguments of its functions."""

from __future__ import annotations

import subprocess

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, build, newest
from tests.tools.harness import run_tool

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["gotrace", "main.handle (name == nil)"], "'main.handle(x int, name string) error'"),
        (["gotrace", 'main.handle "%s", name'], "'main.handle(x int, name string) error'"),
        (["gotrace", "main.handle ($err != nil)"], "'main.handle(x int) error'"),
        (["gofunccount", "--by", "name", "main.handle"], "'main.handle(x int, name string) error'"),
        (["gofunclatency", "--by", "$err", "main.handle"], "'main.handle(x int) error'"),
        (["gofunclatency", "--of", "len(name)", "main.handle"], "'main.handle(x int, name string)"),
        (["gotrace", "os.OpenFile (name == nil)"], "type @file.open, or give "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_name_that_is_not_described(line: list[str], said: str) -> None:
    name, *words, probe = line
    fixture = "live_recipes_http" if "os" in probe else "live_bakery"
    path = build(FIXTURES / fixture, newest(), flags=BUILD_MODES["stripped"])
    result = run_tool(name, *words, f"{path}:{probe}")
    assert result.status == 2
    assert "no debug information describes it: " in result.errors, result.errors
    assert said in result.errors


def test_the_signature_that_is_asked_for_has_the_name() -> None:
    path = build(FIXTURES / "live_bakery", newest(), flags=BUILD_MODES["stripped"])
    probe = f"{path}:main.handle(n int, name string) (int, error)"
    result = run_tool("gofunccount", "--by", "name", probe, "--", path, stdin=subprocess.DEVNULL)
    assert any('"apple1"' in line for line in result.lines), result  # main calls it once itself
