# SPDX-License-Identifier: Apache-2.0
"""Say in place of a table that it has no rows, and below one how many more there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, run_tool, tool

pytestmark = pytest.mark.live

_FUNCTION = "main.smallFrame"


@pytest.fixture(scope="module")
def idle() -> Iterator[Fixture]:
    """A program that waits for a line, and calls nothing until then."""
    with Fixture([build(FIXTURES / "live_count", newest())]) as fixture:
        yield fixture
        fixture.work()
        assert fixture.finish() == 0


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (f"gofunccount {_FUNCTION}", "calls"),
        (f"gofunccount --by n {_FUNCTION}", "calls"),
        (f"gofunclatency {_FUNCTION}", "calls"),
        (f"gofunclatency --by n {_FUNCTION}", "calls"),
        (f"gofunclatency --of n {_FUNCTION}", "calls"),
        (f"gofunclatency --heat {_FUNCTION}", "calls"),
        (f"gotrace {_FUNCTION}", "calls"),
        (f"gotrace tree {_FUNCTION}", "calls"),
        ("gooncpu --by '$label(\"a\")'", "samples"),
        ("gooncpu", "samples"),
        ("gooncpu --stacks", "samples"),
        ("gooffcpu --state syscall --names", "system calls"),
    ],
)
def test_a_table_without_rows(idle: Fixture, line: str, what: str) -> None:
    name, *words = (word.strip("'") for word in line.split(" "))
    given = ["-p", str(idle.ready), "-d", "0.1"]
    at = 1 if words[:1] == ["tree"] else 0
    result = run_tool(name, *words[:at], *given, *words[at:])
    assert result.status == 0, result.errors
    assert [row for row in result.lines if row.startswith("no ")] == [f"no {what}\n"], result.lines
    if name != "gotrace":  # which heads lines before they come
        assert not any(re.search("FUNC|NAME|SELF", row) for row in result.lines)


def test_once_an_interval(idle: Fixture) -> None:
    words = ("-i", "0.1", "-d", "0.35", "-T", "-p", str(idle.ready), _FUNCTION)
    for name in ("gofunccount", "gofunclatency"):
        rows = [row for row in run_tool(name, *words).lines if not re.match("Tracing|Detach", row)]
        said = [row for row in rows if row == "no calls\n"]
        assert said and len(rows) == 2 * len(said), rows


def test_what_top_leaves_out_is_counted() -> None:
    """Of the calls of three functions, by their number or by their time."""
    names = ("main.smallFrame", "main.hugeFrame", "main.onThread")
    fixture = Fixture([build(FIXTURES / "live_count", newest())])
    given = ("--top", "1", "-p", str(fixture.ready), *names)
    with (
        fixture,
        tool("gofunccount", *given) as counting,
        tool("gofunclatency", "-F", *given) as measuring,
        tool("gofunclatency", "--of", "arg1", *given[:-1]) as adding,
        tool("gofunccount", "--by", "$goid != 1", *given[:-2]) as grouping,
    ):
        truth = fixture.work()["calls"]
        counted, measured, added, grouped = (
            one.end() for one in (counting, measuring, adding, grouping)
        )
        assert fixture.finish() == 0
    all_of_them = sum(truth[name] for name in names)
    part = (all_of_them - truth["main.smallFrame"]) / all_of_them
    assert f"and 2 more, {part:.1%}\n" in counted.lines
    assert any(re.match(r"and 2 more, [0-9.]+% of the time$", line) for line in measured.lines)
    part = truth["main.hugeFrame"] / (truth["main.hugeFrame"] + truth["main.smallFrame"])
    assert f"and 1 more, {part:.1%} of the calls\n" in added.lines, added.lines
    assert not any(line.startswith("and ") for line in grouped.lines)  # there is one row
