# SPDX-License-Identifier: Apache-2.0
"""Run the tools on fixtures in a guest, and hold each call against the program's own account."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from gotrace.architecture import HOST
from tests.kernels.checking import failure
from tests.kernels.order import DECODER, OLDEST
from tests.tools.gofunclatency.test_why import (
    LONG,
    NESTED,
    WAITS,
    add_up,
    check_states,
    record,
)
from tests.tools.gotrace.test_values import TAKERS, Traced, assert_same
from tests.tools.harness import Fixture, Result, of_kind, tool
from tests.tools.latency import MEASURED, assert_within, summary

Json = dict[str, Any]
_T = TypeVar("_T")

#: Where the host has put the compiled programs: beside the order.
_FIXTURES = Path(sys.argv[-1]).parent / "fixtures"
MINORS = ("1.19", "1.27")

#: Returns seen in callers, once these are known, if the kernel single-steps RETs.
LANDINGS = ("--returns=landing",) if HOST is not None and HOST.steps_rets else ()
#: The collector begins again as soon as it has ended.
COLLECTING = {"GOGC": "1"}

#: What the fixture does under gofunclatency, in two intervals; see tests/fixtures/live_latency.
#: Calls meant to be slow come first: in an emulated machine recursion makes thousands of slow ones,
#: for which the buffer has no room while a table is written.
_SCENARIOS = (
    "slow parked recursion interleaved migration growth assembly panics",
    "recursion migration panics deep nested goexit workers rounds open",
)

#: What is played over and over, with calls of which a preemptible kernel has lost some.
_ROUND = "interleaved recursion migration growth assembly panics"

#: Of the lines that depend on the machine: about perf events that take long to remove, before and
#: after (gotrace/kernel/detach_time.py, gotrace/cli/pace.py), and about RETs that are seen with -v
#: where the kernel steps none (gotrace/session/landings.py).
_MACHINES_OWN = re.compile(
    "the kernel will take about|the kernel is still removing probes|that takes --attach multi"
    "|calls are seen returning at RETs: the kernel single-steps no RET"
)


def fixture_program(name: str, minor: str) -> Path:
    return _FIXTURES / f"{name}-{minor}"


def differences(seen: Mapping[str, int], truth: Mapping[str, int]) -> str:
    return ", ".join(f"{k}: {seen[k]} of {truth[k]}" for k in truth if seen[k] != truth[k])


@dataclass(frozen=True)
class Played:
    """What a program said of its own calls, and what a tool said of them."""

    truth: Json
    result: Result

    def check(self, *names: str) -> int:
        """Hold that functions have all of their calls, with times between the program's own."""
        calls = 0
        for name in names:
            times = self.truth["Functions"][name]
            rows = [row for row in of_kind(self.result, "histogram") if row["func"] == name]
            seen = sum(row["count"] for row in rows)
            assert seen == times["Calls"], f"{name}: {seen:,} of {times['Calls']:,} calls"
            assert_within(times, *rows)
            calls += seen
        return calls


def measure_scenarios(method: str, minors: Sequence[str]) -> list[tuple[str, Played]]:
    """Measure all scenarios, by function and goroutine, in intervals, and report slow calls.

    Programs of several Go releases are measured by tools beside one another.
    """
    options = ("-F", "-g", "-i", "1", "--slower", "20ms", "--top", "100000")

    def play(minor: str) -> Played:
        with Fixture([fixture_program("live_latency", minor)]) as fixture:
            words = ("--json", "--attach", method, *options, "-p", str(fixture.ready), *MEASURED)
            with tool("gofunclatency", *words) as measuring:
                fixture.work(_SCENARIOS[0])
                measuring.lines_until('{"kind":"histogram"')
                truth = fixture.work(_SCENARIOS[1])
                # At the program's own end all is shown, however slow the machine is.
                assert fixture.finish() == 0
                result = measuring.result()
        assert result.status == 0, result.errors
        return Played(truth, result)

    return _beside(play, minors)


def _beside(run: Callable[[str], _T], minors: Sequence[str]) -> list[tuple[str, _T]]:
    """Run something for each Go release at the same time."""
    with ThreadPoolExecutor(len(minors)) as pool:
        return list(zip(minors, pool.map(run, minors), strict=True))


def _of_each(check: Callable[[Played], str]) -> Callable[[list[tuple[str, Played]]], str]:
    """Return a check of the runs with all Go releases."""

    def checked(runs: list[tuple[str, Played]]) -> str:
        seen = []
        for minor, played in runs:
            try:
                seen.append(f"Go {minor}: {check(played)}")
            except AssertionError as error:
                raise AssertionError(f"Go {minor}: {failure(error)}") from error
        return "; ".join(seen)

    return checked


def _functions(*names: str) -> Callable[[Played], str]:
    return lambda played: f"{played.check(*names):,} calls"


def _panics(played: Played) -> str:
    seen = played.check("main.thrown", "main.recovering", "main.outside", "main.middle")
    unwound = played.truth["Unwound"]
    assert summary(played.result, "unwound") == unwound
    return f"{seen:,} calls, {unwound:,} more unwound"


def _goexit(played: Played) -> str:
    """Calls that Goexit ended are among the unwound; their deferred functions have returned."""
    seen = played.check("main.cleanup", "main.short")
    assert summary(played.result, "open") == played.truth["Open"]
    assert summary(played.result, "unmatched") == played.truth["Unmatched"]
    return f"{seen:,} calls"


def _migration(played: Played) -> str:
    assert played.truth["Migrated"] > 0
    return f"{played.check('main.migrate'):,} calls, {played.truth['Migrated']:,} changed threads"


def _growth(played: Played) -> str:
    assert played.truth["Moved"] > 0
    return f"{played.check('main.grow'):,} calls, {played.truth['Moved']:,} stacks moved"


def _goroutines(played: Played) -> str:
    """Hold that each goroutine has its own rows, in all intervals together, and its beginning."""
    rows = [row for row in of_kind(played.result, "histogram") if row["func"] == "main.task"]
    for worker in played.truth["Workers"]:
        mine = [row for row in rows if row["goid"] == worker["Goid"]]
        assert_within(worker["Times"], *mine)
        goid, start, line = worker["Goid"], worker["Start"], worker["Line"]
        named = f"goroutine {goid} [{start}, created at workers.go:{line}]"
        assert {row["goroutine"] for row in mine} == {named}
    goids = {row["goid"] for row in rows}
    assert len(goids) == len(played.truth["Workers"])
    rests = of_kind(played.result, "rest")
    assert sum(row["count"] for row in rests) == 0, rests
    return f"{len(goids)} goroutines"


def _intervals(played: Played) -> str:
    ends = {row["ts"] for row in of_kind(played.result, "histogram")}
    assert len(ends) > 1, "one interval only"
    return f"{len(ends)} intervals"


def _slower(played: Played) -> str:
    """Hold the calls of main.slow that were reported against those the program saw."""
    rows = [row for row in of_kind(played.result, "slow") if row["func"] == "main.slow"]
    assert all(row["duration_ns"] >= 20_000_000 for row in rows)
    inside, outside = played.truth["Slow"]
    others = Counter(row["func"] for row in of_kind(played.result, "slow"))
    said = f"{dict(others)}, {of_kind(played.result, 'lost')}"
    assert inside <= len(rows) <= outside, f"{len(rows)}, not {inside} to {outside}: {said}"
    return f"{len(rows)} slow calls"


def _nothing_lost(played: Played) -> str:
    # In an emulated machine hundreds of calls are slow at once, more than are printed.
    lost = [row for row in of_kind(played.result, "lost") if row["what"] != "slow_lost"]
    assert lost == [], lost
    warnings = [row["message"] for row in of_kind(played.result, "warning")]
    assert all(map(_MACHINES_OWN.search, warnings)), warnings
    kinds = {row["what"] for row in of_kind(played.result, "summary")}
    costs = {"cost", "probe_cost", "mostly_tracing"}
    assert kinds <= {"unwound", "open", "unmatched", *costs}, kinds
    return f"{sum(row['count'] for row in of_kind(played.result, 'histogram')):,} calls in all"


LATENCY: Mapping[str, Callable[[list[tuple[str, Played]]], str]] = {
    check: _of_each(function)
    for check, function in {
        "recursion": _functions("main.recurse"),
        "turns on a thread": _functions("main.interleave"),
        "migration": _migration,
        "stack growth": _growth,
        "assembly": _functions("main.stacked"),
        "panics": _panics,
        "Goexit": _goexit,
        "-g": _goroutines,
        "-i": _intervals,
        "--slower": _slower,
        "nothing lost": _nothing_lost,
    }.items()
}


#: On arm64 Go 1.15 lists parameters that a function does not use before the others.
_UNKNOWN = "<unavailable: unnamed parameters before it"


def trace_values(method: str, minors: Sequence[str]) -> str:
    """Trace calls with values of every kind, floats among them, and compare each line."""

    def play(minor: str) -> str:
        with Fixture([fixture_program("trace_values", minor)]) as fixture:
            words = ("-v", "--attach", method, "-p", str(fixture.ready), *TAKERS)
            with tool("gotrace", *words) as tracing:
                wanted = fixture.work()["Calls"]
                assert fixture.finish() == 0  # as above
                result = tracing.result()
        assert result.status == 0, result.errors
        calls = Traced({}, result).calls
        assert len(calls) == len(wanted), f"{len(calls)} of {len(wanted)} calls: {result.errors}"
        known = [pair for pair in zip(calls, wanted, strict=True) if _UNKNOWN not in pair[0]]
        assert len(known) == len(calls) or (minor == OLDEST and len(known) > 0.8 * len(calls))
        assert_same([shown for shown, _ in known], [text for _, text in known])
        said = [row for row in result.errors.splitlines() if not _MACHINES_OWN.search(row)]
        assert said == [f"process {fixture.ready} has ended"], said
        floats = sum("Float" in call or "Mixed" in call or "Complex" in call for call in calls)
        return f"{len(known)} of {len(calls)} calls, {floats} with floats"

    return "; ".join(f"Go {minor}: {seen}" for minor, seen in _beside(play, minors))


def trace_parts() -> str:
    """Trace calls with what their time went into: parts add up, and are what the program did."""
    program = fixture_program("live_why", MINORS[-1])
    with Fixture([program]) as fixture:
        words = ("--json", "--why", "--force", "-p", str(fixture.ready), *NESTED, *WAITS)
        with tool("gotrace", *words) as tracing:
            for word in ("waits", "waits", "waits", "nested"):
                fixture.work(word)
            assert fixture.finish() == 0
            result = tracing.result()
    assert result.status == 0, result.errors
    rows = [row for row in of_kind(result, "call") if row["duration_ns"] is not None]
    add_up(rows)
    names = Counter(row["func"] for row in rows)
    assert {"main.outer", "main.inner", "main.innermost", "main.recurses"} <= names.keys(), names
    assert {row.get("unwound") for row in rows} == {None, "panic", "goexit"}
    assert names.keys() >= WAITS.keys(), names
    for name, expected in WAITS.items():
        # Of one of them at least: a processor that is emulated may begin late to wait.
        seen = [row["why"]["parts"] for row in rows if row["func"] == name]
        most = max(parts.get(part, 0) for parts in seen for part in expected)
        assert most > 0.4 * LONG, (name, seen)
    return f"{len(rows)} calls, of {len(WAITS)} kinds of waits and others"


def trace_beside_go() -> str:
    """Hold each call's states to those that Go's own tracer has recorded of the same run."""
    decoder = fixture_program(DECODER, MINORS[-1])
    run = record(fixture_program("live_why", MINORS[-1]), 27, decoder)
    return check_states(run, _SLOW)


#: How many times as slow a guest is as the machine.
_SLOW = 10


def measure_rounds(
    times: int, further: Sequence[str] = (), environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Play rounds of goroutines that change threads under gofunclatency -F; count every call."""
    truth, (result,) = watch("live_latency", [replace(ROUNDS, further=further)], times, environment)
    calls, migrated = ROUNDS.check(truth, result), truth["Migrated"]
    return f"{times} rounds, {calls:,} calls, {migrated:,} changed threads"


def trace_records(times: int, further: Sequence[str] = ()) -> str:
    """Play rounds of calls under gotrace and hold each record against its own arguments."""
    truth, (result,) = watch("live_relay", [replace(RECORDS, further=further)], times)
    shown, calls = RECORDS.check(truth, result), truth["Calls"] + truth["Weighed"]
    unread = sum(_weighed(row) is None for row in of_kind(result, "call") if row["func"] == _WEIGH)
    return f"{times} rounds, {shown:,} records of {calls:,} calls, {unread} without floats"


@dataclass(frozen=True)
class Watch:
    """A tool at a program, and how to hold its result against the program's own account.

    ``check`` returns how many calls it has compared, or raises. ``further`` are options.
    """

    tool: str
    words: Sequence[str]
    check: Callable[[Json, Result], int]
    further: Sequence[str] = ()


#: What each fixture does in a round.
_ORDERS = {"live_latency": _ROUND, "live_relay": "go"}


def watch(
    name: str,
    watches: Sequence[Watch],
    times: int,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Json, Sequence[Result]]:
    """Play rounds of a fixture under tools, attached one after the other; return its account.

    The tools' output is read as it comes. They end with the program, when all is shown: however
    slow the machine is.
    """
    program = fixture_program(name, MINORS[-1])
    with ExitStack() as stack:
        fixture = stack.enter_context(Fixture([program], env={**os.environ, **environment}))
        pool = stack.enter_context(ThreadPoolExecutor(len(watches)))
        results = []
        for one in watches:
            words = ("--json", *one.further, "-p", str(fixture.ready), *one.words)
            running = stack.enter_context(tool(one.tool, *words))
            results.append(pool.submit(running.result))
        for _ in range(times):
            truth = fixture.work(_ORDERS[name])
        assert fixture.finish() == 0
        ended = [each.result() for each in results]
    for one, result in zip(watches, ended, strict=True):
        assert result.status == 0, f"{one.tool}: {result.errors}"
    return truth, ended


def _check_rounds(truth: Json, result: Result) -> int:
    rows = {row["func"]: row for row in of_kind(result, "histogram")}
    wanted = {n: times["Calls"] for n, times in truth["Functions"].items() if n in ROUNDS.words}
    seen = Counter({name: row["count"] for name, row in rows.items()})
    footer = {row["what"]: row["calls"] for row in of_kind(result, "summary") if "calls" in row}
    lost = of_kind(result, "lost")
    assert seen == wanted, f"{differences(seen, wanted)}; {footer} {lost}"
    assert (footer.get("unwound"), lost) == (truth["Unwound"], []), f"{footer} {lost}"
    return sum(wanted.values())


_RELAY, _WEIGH = "main.relay", "main.weigh"


def _check_records(truth: Json, result: Result) -> int:
    assert truth["Wrong"] == 0
    rows: Counter[str] = Counter()
    numbers: Counter[tuple[str, int]] = Counter()
    wrong = []
    for row in of_kind(result, "call"):
        rows[row["func"]] += 1
        numbers[row["func"], row["args"].get("number", -1)] += 1
        if (_relayed(row) if row["func"] == _RELAY else _weighed(row)) is False:
            wrong.append(row)
    assert not wrong, f"{len(wrong)} records of two calls: {json.dumps(wrong[0])}"
    assert max(numbers.values()) == 1, f"{numbers.most_common(1)}"
    _check_shown(rows.total(), truth["Calls"] + truth["Weighed"], result)
    return rows.total()


def _check_shown(shown: int, calls: int, result: Result) -> None:
    """Hold that each call has its record or is known to be lost, most of them the former."""
    footer = {row["what"]: row["calls"] for row in of_kind(result, "summary") if "calls" in row}
    lost = {row["what"]: row["calls"] for row in of_kind(result, "lost")}
    said = f"{footer} {lost}"
    assert shown + sum(lost.values()) == calls, f"{shown} of {calls}; {said}"
    assert set(lost) <= {"events_lost", "reader", "unwound_lost"} and set(footer) <= {"late"}, said
    assert shown > calls // 2, f"too few records: {shown:,} of {calls:,}; {said}"


def _check_relayed(truth: Json, result: Result) -> int:
    wanted = {_RELAY: truth["Calls"], _WEIGH: truth["Weighed"]}
    seen = Counter({row["func"]: row["count"] for row in of_kind(result, "histogram")})
    assert truth["Wrong"] == 0
    _check_exact(seen, wanted, result)
    return sum(wanted.values())


def _check_exact(seen: Counter[Any], wanted: Mapping[Any, int], result: Result) -> None:
    said = f"{of_kind(result, 'summary')} {of_kind(result, 'lost')}"
    assert seen == wanted, f"{dict(seen)}, not {dict(wanted)}; {said}"
    assert of_kind(result, "lost") == [], said


def counted_by(result: Result) -> Counter[Any]:
    """Return the calls by function and the values of what they are added up by."""
    seen: Counter[Any] = Counter()
    for row in of_kind(result, "count"):
        key = (row["func"], *(row["by"] or {"others": None}).values())
        seen[key] += row["count"]
    return seen


def _check_keys(truth: Json, result: Result) -> int:
    """The text that relay returns holds the call's number, and no number comes twice."""
    wanted = Counter((_RELAY, True, len(f"<n{n}>")) for n in range(truth["Calls"]))
    _check_exact(counted_by(result), wanted, result)
    return wanted.total()


ROUNDS = Watch("gofunclatency", ("-F", *MEASURED[:9]), _check_rounds)
RECORDS = Watch("gotrace", (_RELAY, _WEIGH), _check_records)
RELAYED = Watch("gofunclatency", ("-F", _RELAY, _WEIGH), _check_relayed)
KEYS = Watch("gofunccount", ("--by", "ok, len(echo)", _RELAY), _check_keys)


def _relayed(row: Json) -> bool:
    """Return whether a record of main.relay has what its number makes of arguments and results."""
    number = row["args"]["number"]
    args = {"number": number, "text": f"n{number}", "more": number}
    results = {"triple": 3 * number, "echo": f"<n{number}>", "ok": True}
    return (row["args"], row["results"]) == (args, results)


def _weighed(row: Json) -> bool | None:
    """Return whether a record is right; None where a float could not be read, as it says."""
    number, weight = row["args"]["number"], row["args"]["weight"]
    half = row["results"]["half"]
    unread = [isinstance(value, dict) for value in (weight, half)]
    right = [unread[0] or weight == number + 0.5, unread[1] or half == (number + 0.5) / 2]
    return None if all(right) and any(unread) else all(right)
