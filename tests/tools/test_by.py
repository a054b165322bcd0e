# SPDX-License-Identifier: Apache-2.0
"""Hold what ``--by`` adds up against a program that knows how often it made which call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

Json = dict[str, Any]
HANDLE = "main.handle"
SIGNATURE = "main.handle(r *int, key string, shard int32, deep bool) (n int, err error)"


def run(
    command: str,
    *arguments: str,
    order: str = "1 1000 20",
    toolchain: Toolchain | None = None,
    mode: str = "default",
) -> tuple[Json, Result]:
    """Run a command on the fixture at work; return the program's truth and how the tool ended."""
    path = build(FIXTURES / "live_keys", toolchain or newest(), flags=BUILD_MODES[mode])
    with Fixture([path]) as fixture:
        with tool(command, "--json", "-p", str(fixture.ready), *arguments) as tracing:
            truth = fixture.work(order)
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def counts_by(result: Result, *expressions: str) -> Counter[str]:
    """Return calls by the text of these expressions' values."""
    found: Counter[str] = Counter()
    for row in of_kind(result, "count") + of_kind(result, "histogram"):
        by = row["by"]
        name = "others" if by is None else " ".join(shown(by[text]) for text in expressions)
        found[name] += row["count"]
    return found


def shown(value: object) -> str:
    """Return the text that the fixture knows a value by."""
    if isinstance(value, dict):
        known = value.get("$error") or value.get("$string")
        return str(known or f"unknown: {value['$unavailable']}")
    return "nil" if value is None else str(value)


@each_toolchain
def test_texts_errors_and_callers(toolchain: Toolchain) -> None:
    order = "4 1000 20"
    truth, result = run(
        "gofunccount", "-Z", "256", "--by", "key", HANDLE, order=order, toolchain=toolchain
    )
    assert counts_by(result, "key") == truth["Keys"]
    truth, result = run(
        "gofunccount", "--by", "$ret2, $caller", HANDLE, order=order, toolchain=toolchain
    )
    assert counts_by(result, "$ret2") == truth["Errors"]
    callers = counts_by(result, "$caller")
    assert callers["main.viaFirst"] == truth["First"]
    assert callers["main.viaSecond"] == truth["Calls"] - truth["First"]
    assert of_kind(result, "lost") == []


@pytest.mark.parametrize("rung", ["multi", "perf-cookie", "perf-ip"])
def test_parts_of_arguments_on_each_rung(rung: str) -> None:
    truth, result = run(
        "gofunccount", "--attach", rung, "--by", "r.Method, r.Size", HANDLE, order="2 500 20"
    )
    assert counts_by(result, "r.Method", "r.Size") == truth["Sizes"]


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_without_debug_information(mode: str) -> None:
    probe = SIGNATURE if mode == "stripped" else HANDLE
    truth, result = run("gofunccount", "--by", "key, $ret2", probe, "-Z", "256", mode=mode)
    assert counts_by(result, "key") == truth["Keys"]
    assert counts_by(result, "$ret2") == truth["Errors"]


def test_durations() -> None:
    truth, result = run("gofunclatency", "--by", "shard", HANDLE, order="3 700 20")
    assert counts_by(result, "shard") == truth["Shards"]
    for row in of_kind(result, "histogram"):
        assert sum(count for *_, count in row["buckets"]) == row["count"]
        assert row["min_ns"] * row["count"] <= row["sum_ns"] <= row["max_ns"] * row["count"]


def test_at_full_speed() -> None:
    truth, result = run(
        "gofunccount", "--by", "key, $goid", HANDLE, "-Z", "256", order="8 40000 20"
    )
    assert counts_by(result, "key") == truth["Keys"]
    assert len(counts_by(result, "$goid")) == 8
    assert of_kind(result, "lost") == []


def test_intervals_add_up_to_the_calls() -> None:
    for command in ("gofunccount", "gofunclatency"):
        truth, result = run(command, "-i", "0.2", "--by", "shard", HANDLE, order="2 20000 20")
        assert counts_by(result, "shard") == truth["Shards"]


def test_more_values_than_rows() -> None:
    truth, result = run("gofunccount", "--rows", "5", "--by", "key", HANDLE)
    found = counts_by(result, "key")
    assert found.total() == truth["Calls"]
    assert len(found) == 6 and found["others"] == truth["Calls"] - 5 * 50
    [summary] = of_kind(result, "summary")
    assert summary["what"] == "others" and summary["calls"] == found["others"]


def test_texts_that_are_cut_share_a_row() -> None:
    truth, result = run("gofunccount", "-Z", "6", "--by", "key", HANDLE)
    found = counts_by(result, "key")
    expected: Counter[str] = Counter()
    for key, count in truth["Keys"].items():
        expected[key[:6]] += count
    assert found == expected
    assert {"$string": "user:1", "$cut": True} in [
        row["by"]["key"] for row in of_kind(result, "count")
    ]


def test_what_cannot_be_read_is_unknown() -> None:
    truth, result = run("gofunccount", "--by", "r.tenant.Name", HANDLE)
    third = truth["Calls"] // 3
    found = counts_by(result, "r.tenant.Name")
    assert found == {"blue": third + 1, "green": third, "unknown: nil pointer": third}


def test_predicates_and_conditions() -> None:
    truth, result = run(
        "gofunccount", "--by", "$ret2 != nil", f"{HANDLE} (shard < 4 && $duration < 1s)"
    )
    calls = sum(count for shard, count in truth["Shards"].items() if int(shard) < 4)
    found = counts_by(result, "$ret2 != nil")
    assert found == {"False": calls // 4, "True": 3 * calls // 4}
    assert not of_kind(result, "summary")


def test_calls_that_did_not_return_are_reported() -> None:
    _, result = run("gofunccount", "--by", "$ret", "main.fails")
    assert counts_by(result, "$ret") == {"1": 1}
    assert [row["calls"] for row in of_kind(result, "summary")] == [1]


@pytest.mark.parametrize(
    ("by", "probe", "reason"),
    [
        ("nosuch", HANDLE, "main.handle has no 'nosuch'"),
        ("key,", HANDLE, "expected"),
        (
            "r",
            "main.fails(r map[string]int, n int) int",
            "cannot be added up by r, a map[string]int",
        ),
        ("key", f'{HANDLE} "%s", key', "a format is for gotrace"),
        ("key", f'{HANDLE} (key < "a")', "the kernel cannot decide this"),
    ],
)
def test_what_cannot_be_done_is_refused(by: str, probe: str, reason: str) -> None:
    path = build(FIXTURES / "live_keys", newest())
    result = run_tool("gofunccount", "--by", by, f"{path}:{probe}")
    assert result.status == 2 and reason in result.errors
    assert result.errors.count("\n") == 1


@pytest.mark.parametrize("rest", ['($caller == "main.viaFirst")', '"%s", $caller'])
def test_the_caller_of_a_reported_call_is_refused(rest: str) -> None:
    """It would be unknown, and such a predicate never true."""
    path = build(FIXTURES / "live_keys", newest())
    result = run_tool("gotrace", f"{path}:{HANDLE} {rest}")
    assert result.status == 2 and "$caller is for --by" in result.errors
