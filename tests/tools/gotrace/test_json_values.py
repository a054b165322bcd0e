# SPDX-License-Identifier: Apache-2.0
"""JSON of what has no form of its own there: blank fields, results without a size, bytes, times."""

from __future__ import annotations

import pytest

from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain
from tests.tools.harness import Fixture, Json, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]


def calls(toolchain: Toolchain, *probes: str) -> list[Json]:
    path = build(FIXTURES / "trace_json", toolchain)
    with Fixture([path]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), *probes) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return of_kind(result, "call")


@each_toolchain
def test_nothing_of_a_value_is_left_out(toolchain: Toolchain) -> None:
    names = ("blanks", "sizeless", "arrays", "times")
    blanks, sizeless, arrays, *times = calls(toolchain, *(f"main.{name}" for name in names))
    assert blanks["args"]["b"] == {"_": 0, "A": 7, "_'": 0, "_''": ""}
    assert list(sizeless["results"].values()) == ["first1", {}, [], "fourth1", None]
    assert list(sizeless["results"]) == ["$ret1", "$ret2", "$ret3", "$ret4", "$ret5"]
    assert arrays["args"] == {"text": "abcd", "binary": {"$hex": "010002ff"}}
    assert arrays["results"] == {"$ret": {"$hex": "010002ff"}}
    assert [call["args"]["utc"] for call in times] == ["2023-11-14T22:13:20Z"] * 2
    known, unknown = (call["args"]["other"] for call in times)
    assert known == "2023-11-14T23:13:20+01:00"
    # Its zone had not been looked up when the call was entered: it is not said to be UTC.
    assert unknown == "2023-11-14T22:13:20-00:00"


@each_toolchain
def test_results_by_their_numbers(toolchain: Toolchain) -> None:
    (call,) = calls(toolchain, 'main.sizeless "%s %v %s %v", $ret1, $ret3, $ret4, $ret5')
    assert call["message"] == "first1 [] fourth1 <nil>"


@each_toolchain
def test_memory_that_is_written_before_it_is_looked_at_is_not_taken_for_new(
    toolchain: Toolchain,
) -> None:
    """When the record is read, the program may have filled what make had returned."""
    rows = calls(toolchain, "main.makeNew")
    found = [row["results"]["$ret"]["$elements"] for row in rows]
    assert len(found) == 100
    unread = [{"$unavailable": "memory not readable"}]
    assert all(elements in (unread, [0] * 8) for elements in found)
