# SPDX-License-Identifier: Apache-2.0
"""Carry out RETs for as long as asked for, with all tools, until a result is wrong: in a guest."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tests.kernels.checking import Checks
from tests.kernels.order import SOAK
from tests.kernels.runs import (
    COLLECTING,
    EMULATED,
    KEYS,
    LATENCY,
    MINORS,
    MOVED_KEYS,
    MOVED_RECORDS,
    RECORDS,
    RELAYED,
    ROUNDS,
    Environment,
    Watch,
    measure_scenarios,
    trace_values,
    watch,
)
from tests.kernels.server import SERVER_TOOLS, watch_server
from tests.tools.harness import of_kind

__all__ = ["soak"]

_TELLS = 240.0  # seconds; how often it says what it has seen so far

#: What is compared in a turn, by tool.
Compared = Counter[str]
Turn = Callable[[Environment], Compared]


def soak(checks: Checks, method: str, clock: Callable[[], float] = time.monotonic) -> str:
    """Take turns until the time is over; return what has been compared, or raise at once.

    In every second cycle of turns the programs' collectors are always running.
    """
    minutes, chance = checks.order.minutes, random.Random(checks.order.seed)
    began = told = clock()
    compared: Compared = Counter()
    taken: Counter[str] = Counter()
    turns = _turns(chance, method)
    while clock() < began + minutes * 60:
        number = taken.total()
        name, turn = turns[number % len(turns)]
        collecting = number // len(turns) % 2 == 1
        try:
            compared += turn(COLLECTING if collecting else {})
        except (AssertionError, LookupError, OSError, ValueError) as error:
            words = f"{name}{', collector always running' * collecting}, after"
            raise AssertionError(f"{words} {_said(taken, compared)}: {error}") from error
        taken["always collecting" if collecting else "as usual"] += 1
        sys.stderr.write(f"soak: {name}, {_said(taken, compared)}\n")
        if clock() > told + _TELLS:
            told = clock()
            checks.so_far(SOAK, method, clock() - began, _said(taken, compared))
    return f"seed {checks.order.seed}: {_said(taken, compared)}"


def _said(taken: Counter[str], compared: Compared) -> str:
    turns = ", ".join(f"{count} {name}" for name, count in taken.items())
    calls = ", ".join(f"{count:,} by {name}" for name, count in compared.items())
    return f"{taken.total()} turns ({turns}): {calls}"


def _turns(chance: random.Random, method: str) -> Sequence[tuple[str, Turn]]:
    """Return what is done over and over; where tools are at one program, in random order."""
    return [
        ("rounds", partial(_watched, chance, "live_latency", [ROUNDS], 40)),
        ("together", partial(_watched, chance, "live_relay", [RELAYED, RECORDS, KEYS], 20)),
        ("keys", partial(_watched, chance, "live_relay", [KEYS], 40)),
        ("moving", partial(_watched, chance, "live_latency", _MOVING, 20)),
        ("scenarios", partial(_scenarios, method)),
        ("records", partial(_watched, chance, "live_relay", [RECORDS], 20)),
        ("server", partial(_served, chance)),
        ("values", partial(_values, method)),
    ]


_MOVING = [ROUNDS, MOVED_RECORDS, MOVED_KEYS]


def _watched(
    chance: random.Random,
    name: str,
    watches: Sequence[Watch],
    times: int,
    environment: Environment,
) -> Compared:
    """Have tools watch one program, attached in random order."""
    chosen = [replace(each, further=EMULATED) for each in chance.sample(watches, len(watches))]
    truth, results = watch(name, chosen, times, environment)
    compared: Compared = Counter()
    for each, result in zip(chosen, results, strict=True):
        try:
            compared[each.tool] += each.check(truth, result)
        except AssertionError as error:
            order = ", ".join(one.tool for one in chosen)
            raise AssertionError(f"{each.tool}, attached in the order {order}: {error}") from error
    return compared


def _served(chance: random.Random, environment: Environment) -> Compared:
    """Have all tools watch a busy server, attached in random order."""
    names = chance.sample(list(SERVER_TOOLS), len(SERVER_TOOLS))
    requests, compared = watch_server(names, EMULATED, environment)
    return Counter({"requests": requests}) + compared


def _scenarios(method: str, environment: Environment) -> Compared:
    """Measure by function and goroutine, in intervals, and report slow calls."""
    played = measure_scenarios(method, MINORS[-1:], EMULATED, environment)
    for name, check in LATENCY.items():
        try:
            check(played)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    rows = [row for _, each in played for row in of_kind(each.result, "histogram")]
    return Counter({"gofunclatency -g": sum(row["count"] for row in rows)})


def _values(method: str, environment: Environment) -> Compared:
    """Trace values of every kind in both Go releases."""
    said = trace_values(method, MINORS, EMULATED, environment)
    return Counter({"gotrace of values": sum(int(part.split()[2]) for part in said.split(";"))})
