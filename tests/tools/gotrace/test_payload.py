# SPDX-License-Identifier: Apache-2.0
"""Show arguments that fill a record's payload to the last byte."""

from __future__ import annotations

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

FIRST = list(range(1000, 1008))
SECOND = list(range(1016, 1024))


@pytest.mark.parametrize("entry", [(), ("--entry",)], ids=["returns", "entries"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main.one256", [[FIRST]]),
        ("main.one512", [[FIRST]]),
        ("main.one1024", [[FIRST]]),
        ("main.two256", [[FIRST, SECOND], [SECOND, FIRST]]),
    ],
)
def test_a_full_payload(name: str, expected: list[list[list[int]]], entry: tuple[str, ...]) -> None:
    with Fixture([build(FIXTURES / "trace_full", newest())]) as fixture:
        with tool("gotrace", "--json", *entry, "-p", str(fixture.ready), name) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    calls = of_kind(result, "call")
    shown = [[value["$elements"] for value in call["args"].values()] for call in calls]
    assert shown == expected
