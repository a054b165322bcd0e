# SPDX-License-Identifier: Apache-2.0
"""How much of a call's values its line shows, live."""

from __future__ import annotations

import re

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, tool

pytestmark = pytest.mark.live

GET, HANDLE = "main.(*Store).Get", "main.handle"


def lines_of(*arguments: str, columns: int = 80) -> dict[str, str]:
    """Return the last line of each of the server's functions, from the call on."""
    path = build(FIXTURES / "trace_server", newest())
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": str(columns)}
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), *arguments, GET, HANDLE)
        with tool("gotrace", *words, env=env) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    if "--json" in arguments:
        return {row["func"]: str(row["args"]) for row in of_kind(result, "call")}
    calls = [line for line in result.lines if " main." in line]
    assert all(len(line) - 1 <= 3 * columns or "-" in arguments[0] for line in calls)
    return {name: line for name in (GET, HANDLE) for line in calls if name in line}


def test_a_line_has_addresses_of_receivers_and_large_structs_and_fits_three_rows() -> None:
    shown = lines_of("-x", "none")
    assert re.search(r"Get\(s=\(\*main\.Store\)\(0x[0-9a-f]+\), key=\"", shown[GET])
    assert re.search(r"r=\(\*http\.Request\)\(0x[0-9a-f]+\)\) at ", shown[HANDLE])
    narrow = lines_of("-x", "none", columns=60)
    assert len(narrow[HANDLE]) <= 3 * 60 + 1


@pytest.mark.parametrize("asked", [("-v",), ("--depth", "1"), ("-Z", "256"), ("--elements", "8")])
def test_all_is_shown_to_who_asks_for_it(asked: tuple[str, ...]) -> None:
    shown = lines_of(*asked)
    assert "s=&main.Store{items: map[string]main.Item{" in shown[GET]
    assert 'r=&http.Request{Method: "POST", URL: ' in shown[HANDLE]
    assert len(shown[HANDLE]) > 500


def test_json_has_all() -> None:
    shown = lines_of("--json")
    assert "'items': " in shown[GET]
    assert "'Method': 'POST'" in shown[HANDLE]


def test_elements_say_how_many_are_shown() -> None:
    path = build(FIXTURES / "trace_server", newest())
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), "--elements", "1", "main.total")
        with tool("gotrace", *words) as tracing:
            fixture.work()
            result = tracing.end()
    (line,) = (line for line in result.lines if "main.total(" in line)
    assert line.count("ID:") == 1
    assert re.search(r"\.\.\. \(len \d\)", line)
