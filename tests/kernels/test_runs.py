# SPDX-License-Identifier: Apache-2.0
"""Check what holds tools' results in a guest against programs' accounts."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kernels.kills import Moment, batches
from tests.kernels.runs import KEYS, RECORDS, RELAYED, ROUNDS, Watch
from tests.kernels.server import check_server
from tests.tools.harness import Result

Json = dict[str, Any]

#: Twelve calls of relay, two of which went by way of weigh.
RELAY = {"Calls": 12, "Weighed": 2, "Migrated": 3, "Wrong": 0}


def result(*rows: Json) -> Result:
    return Result(0, [json.dumps(row) + "\n" for row in rows], "")


def relay_row(number: int) -> Json:
    args = {"number": number, "text": f"n{number}", "more": number}
    results = {"triple": 3 * number, "echo": f"<n{number}>", "ok": True}
    return {"kind": "call", "func": "main.relay", "args": args, "results": results}


def weigh_row(number: int) -> Json:
    args = {"number": number, "weight": number + 0.5}
    results = {"half": (number + 0.5) / 2}
    return {"kind": "call", "func": "main.weigh", "args": args, "results": results}


def histogram(name: str, count: int) -> Json:
    times = {"count": count, "sum_ns": count, "min_ns": 1, "max_ns": 1, "buckets": [[1, 2, count]]}
    return {"kind": "histogram", "func": name, **times}


def key_row(length: int, count: int) -> Json:
    by = {"ok": True, "len(echo)": length}
    return {"kind": "count", "func": "main.relay", "by": by, "count": count}


ROWS = [relay_row(number) for number in range(12)] + [weigh_row(0), weigh_row(8)]
LATENCIES = [histogram("main.relay", 12), histogram("main.weigh", 2)]
LENGTHS = [key_row(4, 10), key_row(5, 2)]
ROUND = {
    "Functions": {"main.migrate": {"Calls": 5}, "main.grow": {"Calls": 3}},
    "Migrated": 2,
    "Moved": 3,
    "Unwound": 4,
}
UNWOUND = {"kind": "summary", "what": "unwound", "calls": 4}
GREAT = [histogram("main.migrate", 5), histogram("main.grow", 3)]


@pytest.mark.parametrize(
    ("watch", "truth", "rows", "calls"),
    [
        (RECORDS, RELAY, ROWS, 14),
        (RELAYED, RELAY, LATENCIES, 14),
        (KEYS, RELAY, LENGTHS, 12),
        (ROUNDS, ROUND, [*GREAT, UNWOUND], 8),
    ],
    ids=["records", "latencies", "keys", "rounds"],
)
def test_what_is_right_passes_and_what_is_missing_does_not(
    watch: Watch, truth: Json, rows: list[Json], calls: int
) -> None:
    assert watch.check(truth, result(*rows)) == calls
    for number in range(len(rows)):
        with pytest.raises(AssertionError):
            watch.check(truth, result(*rows[:number], *rows[number + 1 :]))


@pytest.mark.parametrize(
    ("watch", "truth", "rows"),
    [
        (RECORDS, RELAY, [*ROWS[:-1], {**weigh_row(8), "results": {"half": 8.5}}]),
        (RECORDS, RELAY, [*ROWS[1:], relay_row(1)]),
        (RECORDS, {**RELAY, "Wrong": 1}, ROWS),
        (RELAYED, RELAY, [histogram("main.relay", 13), histogram("main.weigh", 1)]),
        (KEYS, RELAY, [key_row(4, 9), key_row(5, 3)]),
        (ROUNDS, ROUND, [*GREAT, {**UNWOUND, "calls": 5}]),
    ],
)
def test_what_is_wrong_does_not_pass(watch: Watch, truth: Json, rows: list[Json]) -> None:
    with pytest.raises(AssertionError):
        watch.check(truth, result(*rows))


SERVED = {"answered": 2, "panicked": 1}


def served(descended: int = 2, picked: int = 1, mean: float = 0.75) -> Mapping[str, Result]:
    counts = {"main.handle": 2, "main.compute": 2, "main.mean": 2, "main.descend": 202}
    latencies = [histogram(name, count) for name, count in {**counts, "main.pick": picked}.items()]
    depths = [
        {"kind": "count", "func": "main.descend", "by": {"n": n, "$ret != 0": True}, "count": 2}
        for n in range(100)
    ]
    last = {"n": 100, "$ret != 0": True}
    depths += [{"kind": "count", "func": "main.descend", "by": last, "count": descended}]
    record = {"kind": "call", "func": "main.mean", "args": {"list": [1.0, 4.0]}}
    records = [{**record, "results": {"$ret": value}} for value in (0.75, mean)]
    return {
        "gofunclatency": result(*latencies, {**UNWOUND, "calls": 1}),
        "gofunccount": result(*depths),
        "gotrace": result(*records),
    }


def test_a_servers_calls_are_held_against_its_requests() -> None:
    compared = check_server(SERVED, served())
    assert compared == {"gofunclatency": 210, "gofunccount": 202, "gotrace": 2}
    for wrong in (served(descended=1), served(picked=2), served(mean=0.5)):
        with pytest.raises(AssertionError):
            check_server(SERVED, wrong)


def test_kills_are_those_of_the_seed() -> None:
    chosen = [victim for batch in batches(50, random.Random(5)) for victim in batch]
    assert len(chosen) == 50
    again = [victim for batch in batches(50, random.Random(5)) for victim in batch]
    assert chosen == again
    assert Counter(victim.tool for victim in chosen).keys() == {
        "gofunclatency",
        "gotrace",
        "gofunccount",
    }
    assert {victim.moment for victim in chosen} == set(Moment)
