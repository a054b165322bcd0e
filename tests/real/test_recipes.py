# SPDX-License-Identifier: Apache-2.0
"""Recipes of libraries that Debian has, against what the server itself has logged."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gotrace.probes.recipes import recipes
from tests.real.sources import RECIPES, built
from tests.tools.harness import Fixture, of_kind, tool

_PATH = re.compile(r"GET (/\w+)")


@pytest.mark.live
@pytest.mark.parametrize("name", [program.name for program in RECIPES])
def test_recipes_show_what_the_server_logged(name: str) -> None:
    library = name.split("-")[0]
    names = [recipe.name for recipe in recipes() if recipe.name.split(".")[0] == library]
    with Fixture([built(name)]) as fixture:
        words = [f"@{recipe}" for recipe in names]
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as tracing:
            truth = fixture.work("")
            for _ in range(sum(map(len, truth.values()))):
                tracing.lines_until('{"kind":"call"')
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    shown = Counter(call["message"] for call in of_kind(result, "call"))
    assert truth.keys() == set(names)
    assert shown == Counter(message for messages in truth.values() for message in messages)
    assert of_kind(result, "lost") == []


@pytest.mark.live
@pytest.mark.parametrize("name", [one.name for one in RECIPES if one.name.startswith("http-")])
def test_requests_are_counted_once_however_they_come(name: str) -> None:
    with Fixture([built(name)]) as fixture:
        pid = str(fixture.ready)
        with (
            tool("gofunccount", "--json", "-p", pid, "@http.server") as counting,
            tool("gofunclatency", "--json", "-p", pid, "@http.client") as measuring,
            tool("gotrace", "tree", "@http.server", "--json", "-p", pid) as showing,
        ):
            truth = fixture.work("")
            handled, sent = of_kind(counting.end(), "count"), of_kind(measuring.end(), "histogram")
            shown = showing.end()
        assert fixture.finish() == 0
    assert sum(row["count"] for row in sent) == len(truth["http.client"])
    paths = Counter[str]()
    for row in handled:
        paths[row["by"]["path"]] += row["count"]
    assert paths == Counter(_PATH.findall(" ".join(truth["http.server"])))
    # A busy machine may lose calls, and then the requests that they may be of.
    lost = sum(row["requests"] for row in of_kind(shown, "lost") if row["what"] == "requests")
    assert len(of_kind(shown, "request")) + lost == len(truth["http.server"]) > lost
