# SPDX-License-Identifier: Apache-2.0
"""A busy server under all tools at once: runs in a guest.

It is that of tests/real: plain and encrypted connections, collections forced without end, stacks
that grow, panics that are recovered, 10,000 parked goroutines. A client checks each answer.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.kernels.runs import MINORS, counted_by, fixture_program
from tests.tools.harness import Fixture, Json, Result, of_kind, tool

_SERVED = 60  # requests, at least

_NEW = 8  # calls of new callers, at most: as many processors as there are enter at once

_DEPTH = 101  # calls of main.descend for a request
_COUNTED = ("main.handle", "main.compute", "main.mean", "main.descend", "main.pick")
#: What is watched by which tool.
_TOOLS: Mapping[str, Sequence[str]] = {
    "gofunclatency": ("-F", *_COUNTED, "net/http.(*conn).readRequest"),
    "gotrace": ("main.mean",),
    "gofunccount": ("--by", "n, $ret != 0", "main.descend"),
}


def watch_server(further: Sequence[str]) -> tuple[int, Counter[str]]:
    """Have all tools watch the server, with options; return requests, and calls compared."""
    serve, client = (fixture_program(name, MINORS[-1]) for name in ("serve", "client"))
    with ExitStack() as stack:
        # Nicer than the tools, or collections would leave them no processor to start on.
        server = stack.enter_context(Fixture(["nice", "-n", "10", serve]))
        server.say()
        addresses = server.read_until("busy ")[0].split()
        pool = stack.enter_context(ThreadPoolExecutor(len(_TOOLS)))
        results = {}
        for name, watched in _TOOLS.items():
            words = ("--json", *further, "-p", str(server.ready), *watched)
            running = stack.enter_context(tool(name, *words))
            results[name] = pool.submit(running.result)
        asking = stack.enter_context(Fixture([client, *addresses]))
        asking.say()
        pause = threading.Event()
        while _answered(server) < _SERVED:
            pause.wait(0.5)
        asked = asking.work("end")
        assert asking.finish() == 0
        assert asked["wrong"] == 0, asking.errors[-400:]
        truth = server.work("end")
        assert truth["answered"] == asked["done"], f"{truth}, {asked} asked"
        assert server.finish() == 0
        ended = {name: each.result() for name, each in results.items()}
    return truth["answered"], check_server(truth, ended)


def _answered(server: Fixture) -> int:
    server.say("status")
    seen: Json = json.loads(server.read_until("status ")[0])
    return int(seen["answered"])


def check_server(truth: Json, ended: Mapping[str, Result]) -> Counter[str]:
    """Hold what tools say against the server's requests; return the calls compared by tool."""
    requests, panics = truth["answered"], truth["panicked"]
    compared: Counter[str] = Counter()
    for name, result in ended.items():
        said = f"{result.errors} {result.lines[-3:]}"
        assert result.status == 0, f"{name} ended with {result.status}: {said}"
        lost = of_kind(result, "lost")
        # A processor that is emulated may have moved functions before the first request comes.
        new = sum(row["calls"] for row in lost if row["what"] == "new_callers")
        is_complete = new <= _NEW and all(row["what"] == "new_callers" for row in lost)
        assert is_complete or name == "gotrace", f"{name}: {lost}"
        seen = _SEEN[name](result)
        wanted = _wanted(name, requests, panics)
        if name == "gotrace":
            seen["lost"] = sum(row["calls"] for row in lost)
            assert seen["wrong"] == 0 and seen["lost"] < requests // 2, f"{seen} of {requests}"
            assert seen["right"] + seen["lost"] == requests, f"{name}: {seen} of {requests}"
            compared[name] += seen["right"]
            continue
        differ = {key: (seen[key], wanted[key]) for key in wanted if seen[key] != wanted[key]}
        missing = [had - found for found, had in differ.values()]
        words = f"{name}, seen and wanted: {differ}, {new} new; {of_kind(result, 'summary')}"
        assert sum(missing) == new and all(count > 0 for count in missing), words
        compared[name] += sum(wanted.values())
    return compared


def _wanted(name: str, requests: int, panics: int) -> Mapping[Any, int]:
    """Return the calls there were; of main.pick those that did not panic."""
    if name == "gofunccount":
        return {("main.descend", n, True): requests for n in range(_DEPTH)}
    return {
        "main.handle": requests,
        "main.compute": requests,
        "main.mean": requests,
        "main.descend": requests * _DEPTH,
        "main.pick": requests - panics,
        "unwound": panics,
    }


def _measured(result: Result) -> Counter[Any]:
    seen = Counter({row["func"]: row["count"] for row in of_kind(result, "histogram")})
    for row in of_kind(result, "summary"):
        if row["what"] == "unwound":
            seen["unwound"] += row["calls"]
    return seen


def _traced(result: Result) -> Counter[Any]:
    """Return how many records of main.mean have the mean of their list as result."""
    return Counter("right" if _is_mean(row) else "wrong" for row in of_kind(result, "call"))


def _is_mean(row: Json) -> bool:
    values, mean = row["args"]["list"], row["results"]["$ret"]
    if isinstance(mean, dict):  # a float that could not be read, as it says
        return True
    return bool(mean == sum(math.sqrt(value) * 0.5 for value in values) / len(values))


_SEEN = {"gofunclatency": _measured, "gotrace": _traced, "gofunccount": counted_by}
