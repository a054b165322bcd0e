# SPDX-License-Identifier: Apache-2.0
"""Recipes of net/http, in each way that a program has to send and serve requests."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.toolchains import FIXTURES, build, require
from tests.tools.harness import Fixture, of_kind, tool


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", [pytest.param("1.15", marks=pytest.mark.thorough), "1.27"])
def test_each_request_is_seen_once(minor: str) -> None:
    path = build(FIXTURES / "live_recipes_http", require(minor))
    with Fixture([path]) as fixture:
        words = ["@http.client", "@http.server"]
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as tracing:
            truth = fixture.work("")
            result = tracing.end()
        assert fixture.finish() == 0
    shown: dict[str, Counter[str]] = {name: Counter() for name in truth}
    for call in of_kind(result, "call"):
        name = "http.server" if "serverHandler" in call["func"] else "http.client"
        shown[name][call["message"]] += 1
    assert shown == {name: Counter(texts) for name, texts in truth.items()}
    assert of_kind(result, "lost") == []
