# SPDX-License-Identifier: Apache-2.0
"""One probe or pattern of several that comes to nothing: a warning, a run, and a status."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.harness import Fixture, Result, of_kind, run_tool
from tests.tools.trace import program

pytestmark = pytest.mark.live

TOOLS = ("gofunccount", "gofunclatency", "gotrace")
WRONG = {
    "main.nest (no > 1)": 2,  # a predicate that does not fit
    'main.nest "%d", no': 2,  # a format of what is not there
    "main.nest(n int8) string": 2,  # a signature of another size
    "main.noSuch": 3,
    "/no/such/file:main.x": 2,
}


@pytest.fixture(scope="module")
def target() -> Iterator[Fixture]:
    with Fixture([program()], patience=600) as fixture:
        yield fixture


def run(name: str, fixture: Fixture, *words: str) -> Result:
    return run_tool(name, "--json", "-d", "0.1", "-p", str(fixture.ready), *words)


@pytest.mark.parametrize("name", TOOLS)
def test_a_pattern_that_matches_nothing_is_named(name: str, target: Fixture) -> None:
    wrong = [f"main.noSuch{number}" for number in range(7)]
    result = run(name, target, *wrong, "main.echo")
    assert result.status == 3, result.errors
    warnings = [row["message"] for row in of_kind(result, "warning")]
    for pattern in wrong:
        assert sum(f'"{pattern}"' in text or pattern in text for text in warnings) == 1
    assert [row["functions"] for row in of_kind(result, "attached")] == [1]
    assert len(of_kind(result, "detached")) == 1


@pytest.mark.parametrize("name", TOOLS)
def test_strict_refuses(name: str, target: Fixture) -> None:
    result = run(name, target, "--strict", "main.noSuch", "main.echo")
    assert (result.status, result.lines) == (3, [])
    assert "main.noSuch" in result.errors
    assert len(result.errors.splitlines()) == 1
    assert run(name, target, "--strict", "main.echo").status == 0


@pytest.mark.parametrize("wrong", WRONG)
def test_one_wrong_probe(wrong: str, target: Fixture) -> None:
    result = run("gotrace", target, wrong, "main.echo")
    assert result.status == WRONG[wrong], result.errors
    assert len(of_kind(result, "warning")) == 1, result.lines
    assert [row["functions"] for row in of_kind(result, "attached")] == [1]
    strict = run("gotrace", target, "--strict", wrong, "main.echo")
    assert (strict.status, strict.lines) == (WRONG[wrong], [])


def test_a_probe_that_cannot_be_read_refuses_the_run(target: Fixture) -> None:
    result = run("gotrace", target, "main.nest(n string", "main.echo")
    assert (result.status, result.lines) == (2, [])
    assert "the closing ) is missing" in result.errors
