# SPDX-License-Identifier: Apache-2.0
"""Show values beside blank parameters, which compilers before Go 1.22 leave out of DWARF."""

from __future__ import annotations

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, require
from tests.tools.harness import Fixture, Json, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

#: The named parameters, and the results.
CALLS: dict[str, tuple[Json, list[object]]] = {
    "takeLast": ({"a": 41}, [42]),
    "takeTwo": ({"a": 1, "b": "two"}, [2, "two"]),
    "takePadding": ({"unused": 6}, [7]),
    "takeArray": ({"a": 10}, [[10, 11]]),
    "takeNothing": ({}, [[3, 4]]),
    "takeFirst": ({"c": [1, 2]}, [[1, 2]]),
    "takeUnused": ({"a": 77, "unused": 88}, [77, None]),
    "takeNamed": ({"a": [31, 32]}, [[31, 32], 31]),
}
NOT_TOLD = {
    "$unavailable": "unnamed parameters before it may be missing from the debug information"
}


def trace(toolchain: Toolchain, mode: str) -> dict[str, tuple[Json, list[object]]]:
    path = build(FIXTURES / "trace_blank", toolchain, flags=BUILD_MODES[mode])
    with Fixture([path]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), "main.take*") as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return {
        row["func"].removeprefix("main."): (
            {name: value for name, value in row["args"].items() if not name.startswith("arg")},
            list(row["results"].values()),
        )
        for row in of_kind(result, "call")
    }


@each_toolchain
def test_no_value_is_another_one(toolchain: Toolchain) -> None:
    shown = trace(toolchain, "default")
    assert list(shown) == list(CALLS)
    missing = set()
    for name, (args, results) in CALLS.items():
        found_args, found_results = shown[name]
        pairs = [(found_args[key], args[key]) for key in args]
        pairs += zip(found_results, results, strict=True)
        for found, true in pairs:
            if found == NOT_TOLD:
                missing.add(name)
            else:
                assert found == true, name
    if toolchain.minor < "1.17":
        # The size of all tells where results are, but not which of two parameters is which.
        assert missing == {"takePadding", "takeUnused"}
    elif toolchain.minor < "1.22":
        assert missing == {"takeArray", "takeNothing", "takeFirst", "takeNamed"}
    else:
        assert missing == set()


@pytest.mark.parametrize("minor", ["1.15", "1.19"])
def test_unoptimized_code_tells_all(minor: str) -> None:
    assert trace(require(minor), "unoptimized") == CALLS
