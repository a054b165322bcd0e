# SPDX-License-Identifier: Apache-2.0
"""Show what is in pages that are not in the program's memory, which no BPF program reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import newest, program_of, require
from tests.tools.harness import Fixture, Json, Result, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

PROBES = (
    'main.takeText (s == "a constant text")',
    'main.takeOther (s == "another")',
    'main.takePrefix (prefix(s, "a const") && !contains(s, "other"))',
    'main.takeRequest (r.method != "PATC")',
    "main.takeTag (t.n == 42)",
    "main.takeBytes",
    "main.takeAny",
    "main.takeNumbers",
    "main.takeFresh (f.n == 5 && g.n == 0)",
)
REQUEST = {"method": "PATCH", "path": "/path"}
TAG = {"n": 42, "name": "abcdefgh"}
UNTOUCHED: Json = {"n": 0, "name": {"$hex": "00" * 8}, "next": None, "more": [0, 0, 0]}
FRESH = {**UNTOUCHED, "n": 5, "name": "abcdefgh"}
LARGE = {"$elements": [5, 6, *[0] * 6], "$len": 1 << 16}
CALLS: list[tuple[str, Json, Json]] = [
    ("takeText", {"s": "a constant text"}, {"$ret": "a constant text"}),
    ("takePrefix", {"s": "a constant text"}, {"$ret": 15}),
    ("takeRequest", {"r": REQUEST}, {"$ret": REQUEST}),
    ("takeTag", {"t": TAG}, {"$ret": TAG}),
    ("takeBytes", {"b": "GET / HTTP/1.1"}, {"$ret": "GET / HTTP/1.1"}),
    (
        "takeAny",
        {
            "v": {"$type": "string", "$value": "PATCH"},
            "w": {"$type": "[65536]int32", "$value": LARGE},
        },
        {"$ret": {"$type": "string", "$value": "PATCH"}},
    ),
    # What can be written to might have been.
    (
        "takeNumbers",
        {"n": {"$elements": [{"$unavailable": "memory not readable"}], "$len": 2}},
        {"$ret": 2},
    ),
    ("takeFresh", {"f": FRESH, "g": UNTOUCHED}, {"$ret": FRESH}),
]


program = program_of("trace_constants")


def calls(result: Result) -> list[tuple[str, Json, Json]]:
    assert result.status == 0, result.errors
    rows = of_kind(result, "call")
    return [(row["func"].removeprefix("main."), row["args"], row["results"]) for row in rows]


def trace(path: Path) -> list[tuple[str, Json, Json]]:
    with Fixture([path]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), *PROBES) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    return calls(result)


@pytest.mark.parametrize("minor", ["1.15", "1.19", None])
def test_the_first_look_at_a_constant(minor: str | None) -> None:
    assert trace(program(require(minor) if minor else newest())) == CALLS


@pytest.mark.parametrize("mode", ["pie", "external"])
def test_other_builds(mode: str) -> None:
    assert trace(program(newest(), mode)) == CALLS


def test_position_independent_program_that_is_started() -> None:
    """Its addresses are known once it runs."""
    with tool("gotrace", "--json", *PROBES[:5], "--", program(newest(), "pie")) as tracing:
        tracing.lines_until("ready ")
        tracing.say()
        tracing.lines_until("truth ")
        tracing.lines_until('{"kind":"call","ts_ns"')
        tracing.say()
        result = tracing.result()
    rows = [line for line in result.lines if '"func":"main.take' in line]
    assert len(rows) == 4
    assert calls(Result(result.status, rows, "")) == CALLS[:4]
