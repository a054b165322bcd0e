# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to what they promise on the running kernel: runs in a guest.

A tool takes 10 to 25 seconds to start in an emulated machine, so one run proves as much as it can:
several checks read its output.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from gotrace.elf.image import ElfImage
from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.kernel.rets import RetEmulation, with_rets
from gotrace.kernel.syscalls import open_uprobe
from tests.kernels.detaching import How, measure
from tests.kernels.leaves import carried_out
from tests.kernels.order import Order, Result, read_order
from tests.session.loaded import has_tail_call, loaded_instructions, verified_instructions
from tests.session.test_stacks import (
    ALL_OF_KEYED,
    ALL_OF_TRACE,
    ONE_PROCESS,
    PAIRED,
    PER_GOROUTINE,
    WHY,
)
from tests.tools.harness import (
    Fixture,
    Process,
    code_of,
    json_counts,
    of_kind,
    run_tool,
    tool,
    tool_command,
)
from tests.tools.harness import Result as Ended
from tests.tools.latency import MEASURED, assert_within, summary
from tests.tools.test_trace_values import TAKERS, Traced, assert_same

__all__ = ["main"]

Json = dict[str, Any]
_T = TypeVar("_T")

#: Where the host has put the compiled programs: beside the order.
_FIXTURES = Path(sys.argv[-1]).parent / "fixtures"
_MINORS = ("1.19", "1.27")

#: On the other methods latencies and values are of one release, a different one on each.
_ONE_MINOR = {"perf-cookie": ("1.27",), "perf-ip": ("1.19",)}

#: What the fixture does under gofunclatency, in two intervals; see tests/fixtures/live_latency.
#: Calls meant to be slow come first: in an emulated machine recursion makes thousands of slow ones,
#: for which the buffer has no room while a table is written.
_SCENARIOS = (
    "slow parked recursion interleaved migration growth assembly panics",
    "recursion migration panics deep nested goexit workers rounds open",
)

#: What is played over and over, with calls of which a preemptible kernel has lost some.
_ROUND = "interleaved recursion migration growth assembly panics"

#: How many functions are attached to when the tool is killed; perf events go slowly.
_KILLED = ("runtime.m*", "strconv.*")

#: Of the warnings about perf events that take long to remove, before and after, which depend on the
#: machine: gotrace/kernel/removal.py and gotrace/cli/pace.py.
_REMOVAL = re.compile("the kernel will take about|the kernel is still removing probes")


@dataclass
class Checks:
    """Run checks one after the other and print a line for each; a failure ends its check only."""

    order: Order
    failed: bool = False

    def wanted(self, check: str) -> bool:
        return not self.order.only or check in self.order.only

    def run(self, check: str, method: str, function: Callable[[], str]) -> None:
        """Run one check, which returns what it saw or raises, and print its result."""
        if not self.wanted(check):
            return
        before = time.monotonic()
        try:
            detail, ok = function(), True
        except Exception as error:
            detail, ok = _failure(error), False
        self.report(Result(check, method, ok, round(time.monotonic() - before, 1), detail))

    def report(self, result: Result) -> None:
        self.failed = self.failed or not result.ok
        sys.stdout.write(result.to_line())
        sys.stdout.flush()

    def of_one_run(
        self, method: str, run: Callable[[], Any], checks: Mapping[str, Callable[[Any], str]]
    ) -> None:
        """Run a tool once and hold several checks against what it printed.

        The first check's time is that of the run. Where the run fails, all fail.
        """
        if not any(map(self.wanted, checks)):
            return
        before = time.monotonic()
        try:
            seen = run()
        except Exception as error:
            for check in checks:
                seconds = round(time.monotonic() - before, 1)
                self.report(Result(check, method, False, seconds, _failure(error)))
            return
        spent = time.monotonic() - before
        for check, function in checks.items():
            if not self.wanted(check):
                continue
            began = time.monotonic()
            try:
                detail, ok = function(seen), True
            except Exception as error:
                detail, ok = _failure(error), False
            seconds = round(spent + time.monotonic() - began, 1)
            self.report(Result(check, method, ok, seconds, detail))
            spent = 0.0


def _failure(error: BaseException) -> str:
    """Return an error in one line: its words, or the assertion that does not hold, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if "/tests/" in f.filename), frames[-1])
    words = str(error) or f"does not hold: {place.line}"
    sys.stderr.write("".join(traceback.format_exception(error)))
    return f"{words[:400]} ({Path(place.filename).name}:{place.lineno})"


def main(path: Path) -> int:
    """Run the checks of an order; return 1 when one has failed."""
    order = read_order(path)
    checks = Checks(order)
    checks.run("doctor", "", partial(_doctor, order))
    for method in order.methods:
        checks.run("counts", method, partial(_counts, method))
        if order.pairs and method in order.full_methods:
            minors = order.minors if method == order.methods[0] else _ONE_MINOR[method]
            checks.of_one_run(method, partial(_latency, method, minors), _LATENCY)
            checks.run("values", method, partial(_values, method, minors))
        checks.run("SIGKILL", method, partial(_kill, method))
    if order.pairs:
        checks.run("migrating rounds", order.methods[0], partial(_rounds, order.rounds))
        # Each record goes through Python here, ten times as slowly as elsewhere.
        checks.run("migrating records", order.methods[0], partial(_records, order.rounds // 3 or 1))
    else:
        checks.run("refusals", "", _refusals)
    if order.skips:
        _check_rets(checks)
    elif order.pairs:
        checks.run("RETs: refused", "", _rets_refused)
    if _REMOVAL_TIMES in order.only:
        checks.run(_REMOVAL_TIMES, "", partial(_removal_times, order.methods))
    if _STEPS in order.only:
        checks.run(_STEPS, "", _steps)
    if _TOOL_TIMES in order.only:
        for method in order.methods:
            checks.run(_TOOL_TIMES, method, partial(_tool_times, method))
    kernel = f"{os.uname().release}, {os.cpu_count()} CPU, preemption {_preemption()}"
    checks.report(Result("end", "", not checks.failed, round(time.monotonic(), 1), kernel, True))
    return 1 if checks.failed else 0


def _check_rets(checks: Checks) -> None:
    """Run what concerns RETs that programs carry out, most of it with the best way to attach."""
    order = checks.order
    methods = [method for method in order.methods if method != "perf-ip"]
    best, few = methods[0], order.rounds // 3 or 1
    if not order.all_skips:
        checks.run("RETs: carried out", best, partial(_carried_out, best))
        checks.run("RETs: rounds", best, partial(_rounds, order.rounds, _EMULATED))
        return
    checks.run("RETs: programs", "", _ret_programs)
    for method in methods:
        checks.run("RETs: carried out", method, partial(_carried_out, method))
        checks.run("RETs: two at once", method, partial(_several, method))
        leaves = _fixture("live_count", _MINORS[-1])
        checks.run("leaves: carried out", method, partial(carried_out, leaves, method))
    named = {f"RETs: {name}": check for name, check in _LATENCY.items()}
    checks.of_one_run(best, partial(_latency, best, order.minors, _EMULATED), named)
    checks.run("RETs: values", best, partial(_values, best, order.minors, _EMULATED))
    checks.run("RETs: SIGKILL", best, partial(_kill_amid, best))
    checks.run("RETs: rounds", best, partial(_rounds, order.rounds, _EMULATED))
    checks.run("RETs: collections", best, partial(_rounds, few, _EMULATED, _COLLECTING))
    checks.run("RETs: records", best, partial(_records, few, _EMULATED))
    if _RET_TIMES in order.only:
        for method in methods:
            checks.run(_RET_TIMES, method, partial(_ret_times, method))


_EMULATED = ("--emulate-ret=on",)
#: The collector begins again as soon as it has ended.
_COLLECTING = {"GOGC": "1"}

#: Of the emulator and the kernel and not of the tools, made only when asked for.
_REMOVAL_TIMES = "removal times"
_TOOL_TIMES = "tool times"
_STEPS = "single steps"
_RET_TIMES = "RET times"


def _preemption() -> str:
    """Return where threads are preempted in the kernel: none, voluntary, lazy, full.

    Sources: sched_dynamic_show in kernel/sched/core.c; before Linux 5.12 it is built in.
    """
    try:
        modes = Path("/sys/kernel/debug/sched/preempt").read_text()
    except OSError:
        return "full" if " PREEMPT " in os.uname().version else "voluntary"
    match = re.search(r"\((\w+)\)", modes)
    return match[1] if match else "unknown"


def _fixture(name: str, minor: str) -> Path:
    return _FIXTURES / f"{name}-{minor}"


def _doctor(order: Order) -> str:
    """Hold that the tool finds what this kernel is known to have, and no more."""
    result = run_tool("gotrace", "--doctor", "--json")
    rows = {row["check"]: row for row in of_kind(result, "check")}
    for check, row in rows.items():
        sys.stderr.write(f"{row['state']}: {check}: {row['found']} {row['advice'] or ''}\n")
    fine = [name.split()[1] for name, row in rows.items() if _works(name, row)]
    assert fine == list(order.methods), f"doctor finds {fine}, the kernel has {list(order.methods)}"
    steps = rows["single steps"]["found"] if "single steps" in rows else "not tried"
    assert ("can take its place" in steps) == order.skips, f"single steps: {steps}"
    (verdict,) = of_kind(result, "verdict")
    broken = [f"{name}: {row['found']}" for name, row in rows.items() if row["state"] == "fail"]
    assert verdict["possible"] == order.pairs, f"{verdict['message']} {broken}"
    assert result.status == (0 if order.pairs else 1)
    return str(verdict["message"])


def _works(name: str, row: Json) -> bool:
    return name.startswith("attach: ") and str(row["found"]).startswith("works")


def _counts(method: str) -> str:
    """Count all functions of package main in both releases' programs."""
    with ExitStack() as stack:
        programs = [_fixture("live_count", minor) for minor in _MINORS]
        fixtures = [stack.enter_context(Fixture([program])) for program in programs]
        words = ("--json", "--attach", method, *(f"{program}:main.*" for program in programs))
        counting = stack.enter_context(tool("gofunccount", *words))
        truth: Counter[str] = Counter()
        for fixture in fixtures:
            truth.update(fixture.work()["calls"])
        result = counting.end()
        counting.wait_for_keepers()  # what follows compares these files' code
        assert [fixture.finish() for fixture in fixtures] == [0, 0]
    assert result.status == 0, result.errors
    assert json_counts(result, truth) == truth, _differences(json_counts(result, truth), truth)
    assert of_kind(result, "lost") == []
    return f"{truth.total():,} calls of {len(truth)} functions"


def _differences(seen: Mapping[str, int], truth: Mapping[str, int]) -> str:
    return ", ".join(f"{k}: {seen[k]} of {truth[k]}" for k in truth if seen[k] != truth[k])


@dataclass(frozen=True)
class Played:
    """What a program said of its own calls, and what a tool said of them."""

    truth: Json
    result: Ended

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


def _latency(
    method: str, minors: Sequence[str], further: Sequence[str] = ()
) -> list[tuple[str, Played]]:
    """Measure all scenarios, by function and goroutine, in intervals, and report slow calls.

    Programs of several Go releases are measured by tools beside one another.
    """
    options = ("-F", "-g", "-i", "1", "--slower", "20ms", "--top", "100000", *further)

    def play(minor: str) -> Played:
        with Fixture([_fixture("live_latency", minor)]) as fixture:
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
                raise AssertionError(f"Go {minor}: {_failure(error)}") from error
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
    assert all(map(_REMOVAL.search, warnings)), warnings
    kinds = {row["what"] for row in of_kind(played.result, "summary")}
    assert kinds <= {"unwound", "open", "unmatched", "probe_cost", "mostly_tracing"}, kinds
    return f"{sum(row['count'] for row in of_kind(played.result, 'histogram')):,} calls in all"


_LATENCY: Mapping[str, Callable[[list[tuple[str, Played]]], str]] = {
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


def _values(method: str, minors: Sequence[str], further: Sequence[str] = ()) -> str:
    """Trace calls with values of every kind, floats among them, and compare each line."""

    def play(minor: str) -> str:
        with Fixture([_fixture("trace_values", minor)]) as fixture:
            words = ("-v", "--attach", method, *further, "-p", str(fixture.ready), *TAKERS)
            with tool("gotrace", *words) as tracing:
                wanted = fixture.work()["Calls"]
                assert fixture.finish() == 0  # as above
                result = tracing.result()
        assert result.status == 0, result.errors
        calls = Traced({}, result).calls
        assert len(calls) == len(wanted), f"{len(calls)} of {len(wanted)} calls: {result.errors}"
        assert_same(calls, wanted)
        said = [row for row in result.errors.splitlines() if not _REMOVAL.search(row)]
        assert said == [f"process {fixture.ready} has ended"], said
        floats = sum("Float" in call or "Mixed" in call or "Complex" in call for call in calls)
        return f"{len(calls)} calls, {floats} with floats"

    return "; ".join(f"Go {minor}: {seen}" for minor, seen in _beside(play, minors))


def _kill(method: str) -> str:
    """Kill the tool once some of its probes are in place: the program's code is as before."""
    program = _fixture("live_count", _MINORS[-1])
    words = ("--attach", method, *(f"{program}:{pattern}" for pattern in _KILLED))
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        with Process(tool_command("gofunccount", *words)) as killed:
            while (changed := code_of(fixture.pid)) == clean and not killed.ends_within(0):
                pass
            assert changed != clean, f"the tool ended by itself: {killed.errors}"
            killed.signal(signal.SIGKILL)
            killed.rest()
            killed.wait_for_keepers()  # they go on until the probes are gone
        placed = sum(a != b for a, b in zip(changed, clean, strict=True))
        assert code_of(fixture.pid) == clean, "breakpoints were left behind"
        calls = fixture.work()["calls"]
        assert fixture.finish() == 0
    return f"{placed} probes were in place, none are; {sum(calls.values()):,} calls after that"


def _rounds(
    rounds: int, further: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> str:
    """Play rounds of goroutines that change threads under gofunclatency -F; count every call."""
    names = MEASURED[:9]
    program = _fixture("live_latency", _MINORS[-1])
    with Fixture([program], env={**os.environ, **(environment or {})}) as fixture:
        words = ("--json", "-F", *further, "-p", str(fixture.ready), *names)
        with tool("gofunclatency", *words) as measuring:
            for _ in range(rounds):
                truth = fixture.work(_ROUND)
            result = measuring.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = {row["func"]: row for row in of_kind(result, "histogram")}
    wanted = {name: times["Calls"] for name, times in truth["Functions"].items() if name in rows}
    seen = {name: row["count"] for name, row in rows.items()}
    calls, migrated = sum(wanted.values()), truth["Migrated"]
    footer = {row["what"]: row["calls"] for row in of_kind(result, "summary") if "calls" in row}
    lost = of_kind(result, "lost")
    assert seen == wanted, f"{_differences(seen, wanted)}; {footer} {lost}"
    assert (footer.get("unwound"), lost) == (truth["Unwound"], []), f"{footer} {lost}"
    return f"{rounds} rounds, {calls:,} calls, {migrated:,} changed threads"


def _records(rounds: int, further: Sequence[str] = ()) -> str:
    """Play rounds of calls under gotrace and hold each record against its own arguments."""
    with Fixture([_fixture("live_relay", _MINORS[-1])]) as fixture:
        words = ("--json", *further, "-p", str(fixture.ready), "main.relay", "main.weigh")
        with tool("gotrace", *words) as tracing:
            rows: Counter[str] = Counter()
            numbers: Counter[tuple[str, int]] = Counter()
            for _ in range(rounds):
                truth = fixture.work("go")
                tracing.say()
            # At the program's own end all is shown: a check of a few records proves little.
            assert fixture.finish() == 0
            result = tracing.result()
    assert result.status == 0, result.errors
    assert truth["Wrong"] == 0
    wrong = []
    unread = 0
    for row in of_kind(result, "call"):
        rows[row["func"]] += 1
        numbers[row["func"], row["args"].get("number", -1)] += 1
        fits = _relayed(row) if row["func"] == "main.relay" else _weighed(row)
        unread += fits is None
        if fits is False:
            wrong.append(row)
    assert not wrong, f"{len(wrong)} records of two calls: {json.dumps(wrong[0])}"
    assert max(numbers.values()) == 1, f"{numbers.most_common(1)}"
    footer = {row["what"]: row["calls"] for row in of_kind(result, "summary") if "calls" in row}
    lost = {row["what"]: row["calls"] for row in of_kind(result, "lost")}
    said = f"{footer} {lost}"
    calls = truth["Calls"] + truth["Weighed"]
    assert rows.total() + sum(lost.values()) == calls, f"{rows.total()} of {calls}; {said}"
    assert set(lost) <= {"events_lost", "reader"} and set(footer) <= {"late"}, said
    shown = rows.total()
    assert shown > calls // 2, f"too few records: {shown:,} of {calls:,}; {said}"
    return f"{rounds} rounds, {shown:,} records of {calls:,} calls, {unread} without floats"


def _relayed(row: Json) -> bool:
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


#: The verifier follows at most a million instructions of a program.
_MAX_VERIFIED = 900_000


def _ret_programs() -> str:
    """Load the largest programs that carry out RETs, and those that share maps with them."""
    seen = []
    for settings in (
        replace(PER_GOROUTINE, why=WHY, why_bands=8, slower=1),
        ALL_OF_TRACE,
        replace(ALL_OF_TRACE, why=WHY, payload=8192),
        replace(ALL_OF_KEYED, why=replace(WHY, why_callers=False)),
    ):
        # With the look at the thread's features, whatever this machine's threads can have.
        site = with_rets(ONE_PROCESS, RetEmulation(8))
        program = BpfProgram(replace(settings, site=site))
        try:
            loaded = program.load(PAIRED, AttachKind.UPROBE_MULTI)
            assert all(has_tail_call(loaded_instructions(each)) for each in loaded.values())
            verified = {name: verified_instructions(each) for name, each in loaded.items()}
        finally:
            program.close()
        assert max(verified.values()) < _MAX_VERIFIED, verified
        seen.append(f"{settings.source} {verified['on_return']:,}")
    return "; ".join(seen)


#: Functions of the fixture whose entries the kernel emulates, and what calls them.
_UNSTEPPED = ("main.recurse", "main.interleave", "main.migrate")
_UNSTEPPED_ROUND = "interleaved recursion migration"


def _has_stepped(pid: int) -> bool:
    """Return whether an instruction of a process has been executed out of line, by a single step.

    The page for that is mapped when it is needed first: get_xol_area in kernel/events/uprobes.c.
    """
    return "[uprobes]" in Path(f"/proc/{pid}/maps").read_text()


def _carried_out(method: str) -> str:
    """Hold that no RET is stepped where programs carry them out, and that all are without that."""
    calls = []
    program = _fixture("live_latency", _MINORS[-1])
    for words in (_EMULATED, ()):
        with Fixture([program]) as fixture:
            options = ("--json", "-F", "--attach", method, *words, "-p", str(fixture.ready))
            with tool("gofunclatency", *options, *_UNSTEPPED) as measuring:
                truth = fixture.work(_UNSTEPPED_ROUND)
                result = measuring.end()
            stepped = _has_stepped(fixture.pid)
            assert fixture.finish() == 0
        assert stepped == (not words), "a RET was stepped" if words else "no RET was stepped"
        calls.append(Played(truth, result).check(*_UNSTEPPED))
    return f"{calls[0]:,} calls without a step, {calls[1]:,} with one each"


def _several(method: str) -> str:
    """Watch the same calls with three tools: two carry out RETs, the last to attach does not.

    The programs of what was attached last run first. They find the registers as they were; those
    after the first to carry the RET out find what it has left.
    """
    program = _fixture("live_latency", _MINORS[-1])
    with Fixture([program]) as fixture, ExitStack() as stack:
        options = ("--json", "--attach", method, "-p", str(fixture.ready))
        first, tracing, plain = (
            stack.enter_context(tool(name, *options, *words))
            for name, *words in (
                ("gofunclatency", *_EMULATED, "-F", *_UNSTEPPED),
                ("gotrace", *_EMULATED, "main.interleave"),
                ("gofunclatency", "--emulate-ret=off", "-F", *_UNSTEPPED),
            )
        )
        truth = fixture.work(_UNSTEPPED_ROUND)
        played = {"first": Played(truth, first.end()), "last": Played(truth, plain.end())}
        stepped = _has_stepped(fixture.pid)
        assert fixture.finish() == 0
        traced = tracing.result()
    for name, each in played.items():
        try:
            seen = each.check(*_UNSTEPPED)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}: {each.result.lines[-8:]}") from error
        assert of_kind(each.result, "lost") == []
        assert summary(each.result, "unmatched") == 0
    assert not stepped, "a RET was stepped"
    rows = [row for row in of_kind(traced, "call") if row["func"] == "main.interleave"]
    lost = {row["what"]: row["calls"] for row in of_kind(traced, "lost")}
    wanted = truth["Functions"]["main.interleave"]["Calls"]
    assert len(rows) + sum(lost.values()) == wanted, f"{len(rows)} of {wanted} records; {lost}"
    assert set(lost) <= {"events_lost", "reader"} and len(rows) > wanted // 2, lost
    return f"{seen:,} calls seen by both meters, {len(rows):,} records of {wanted:,}"


#: How many tools are killed amid a program's calls.
_KILLS = 5


def _kill_amid(method: str) -> str:
    """Kill tools while the program returns by their probes: it goes on, and its code is as before.

    In turn as they attach and as they measure.
    """
    program = _fixture("live_latency", _MINORS[-1])
    names = ("main.*", "strconv.*")
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        over = threading.Event()

        def play() -> int:
            rounds = 0
            while not over.is_set():
                fixture.work(_UNSTEPPED_ROUND)
                rounds += 1
            return rounds

        words = ("--attach", method, *_EMULATED, "-p", str(fixture.ready), *names)
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(play)
            try:
                for number in range(_KILLS):
                    with Process(tool_command("gofunclatency", *words)) as killed:
                        if number % 2:
                            killed.read_until("Tracing ")
                        else:
                            while code_of(fixture.pid) == clean and not killed.ends_within(0):
                                pass
                        assert not killed.ends_within(0), f"it ended by itself: {killed.errors}"
                        killed.signal(signal.SIGKILL)
                        killed.rest()
                        killed.wait_for_keepers()
                    assert code_of(fixture.pid) == clean, "breakpoints were left behind"
            finally:
                over.set()
            rounds = playing.result()
        truth = fixture.work(_UNSTEPPED_ROUND)
        assert fixture.finish() == 0
    calls = sum(times["Calls"] for times in truth["Functions"].values())
    return f"{_KILLS} tools killed in {rounds} rounds, {calls:,} calls"


def _rets_refused() -> str:
    """Hold that a kernel that cannot do it says so, and that it is not tried by default."""
    program = _fixture("live_latency", _MINORS[-1])
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        for name in ("gofunclatency", "gotrace"):
            result = run_tool(name, *_EMULATED, "-p", str(fixture.ready), "main.recurse")
            assert result.status == 1, result
            assert re.search("RETs cannot be carried out here: this kernel", result.errors)
            assert len(result.errors.splitlines()) == 1, result.errors
        assert code_of(fixture.pid) == clean
        assert fixture.finish() == 0
    return result.errors.strip()


def _removal_times(methods: Sequence[str]) -> str:
    """Measure how long probes by perf events take to go, see detaching.py; only when asked for."""
    program = _fixture("live_count", _MINORS[-1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    listed = run_tool("gofunccount", "-l", "--json", f"{program}:*")
    with ElfImage.open(program) as image:
        sites = [row["site"] for row in of_kind(listed, "function") if row["site"]]
        offsets = [image.offset_of(site) for site in sites]
    seen = []
    for count in (1, 100, 1000):
        for cookies in [True, False] if "perf-cookie" in methods else [False]:
            # The whole number in few ways only: each takes a minute.
            for how in How if count < 1000 else (How.ONE_BY_ONE, How.THREADS, How.EXPEDITED):
                attach, remove = measure(program, offsets[:count], cookies, how)
                method = "perf-cookie" if cookies else "perf-ip"
                words = f"attached in {attach:.2f} s, removed in {remove:.2f} s"
                seen.append(f"{count} {method} {how.value}: {words}")
                sys.stderr.write(seen[-1] + "\n")
    return "; ".join(seen)


#: Threads and calls of each in one process: as two keep to a processor each, no more than two
#: instructions are out of line at a time; of many threads, further ones are preempted there.
_STEPPED: Mapping[str, Sequence[str]] = {
    "two threads": ("2 10000",) * 3,
    "eight threads": ("8 2500",) * 3,
    "two threads after eight": ("8 2500", "2 10000", "2 10000"),
}
_STEPPING_PROCESSES = 3


def _ret_times(method: str) -> str:
    """Compare what a call takes under tools and bpftrace, in turn; only when asked for.

    By the program's own clock, without the call itself: the best of some rounds. bpftrace does what
    the tools do with two probes, at the function's first instruction and at its RET.
    """
    program = _fixture("live_latency", _MINORS[-1])
    entry, ret = _places(program, _TIMED)
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as scratch, Fixture([program]) as fixture:
        plain = _without_symbols(program, Path(scratch) / program.name)
        with Fixture([plain]) as peers:
            bare = _call_time(fixture)
            for _ in range(_TIMED_RUNS):
                for name, further in product(("gofunclatency", "gotrace"), ((), _EMULATED)):
                    options = ("--attach", method, *further, "-p", str(fixture.ready), _TIMED)
                    with tool(name, *options) as running:
                        took = _call_time(fixture) - bare
                        times.setdefault(" ".join((name, *further)), []).append(took)
                        running.end()
                for name, script in _PEERS.items():
                    text = script.format(entry=f"{plain}:{entry:#x}", ret=f"{plain}:{ret:#x}")
                    with _bpftrace(text, Path(scratch) / "output"):
                        times.setdefault(name, []).append(_call_time(peers) - bare)
            assert [fixture.finish(), peers.finish()] == [0, 0]
    sys.stderr.write(f"{times}\n")
    words = [f"{name} {min(each):,.0f} ns" for name, each in times.items()]
    return f"{'; '.join(words)}; the call itself {bare:,.0f} ns"


#: Debian's bpftrace 0.17 takes no place within a function but in a file without symbols, and there
#: by its offset.
_PEERS = {
    "bpftrace, two probes": "uprobe:{entry} {{ @s[tid] = nsecs; }}"
    " uprobe:{ret} /@s[tid]/ {{ @ = hist(nsecs - @s[tid]); delete(@s[tid]); }}",
    "bpftrace, printf at both": 'uprobe:{entry} {{ printf("%d %d\\n", tid, reg("ax")); }}'
    ' uprobe:{ret} {{ printf("%d %d\\n", tid, reg("ax")); }}',
}


@contextmanager
def _bpftrace(script: str, output: Path) -> Iterator[None]:
    """Run a script of bpftrace while the body runs, which begins once its probes are in place."""
    ready = 'interval:ms:20 /!@ready/ { @ready = 1; printf("ready\\n"); }'
    command = ["bpftrace", "--unsafe", "-e", f"{script} {ready}"]
    with output.open("wb") as lines, Process(command, stdout=lines) as running:
        while b"ready\n" not in output.read_bytes():
            assert not running.ends_within(0.1), running.errors
        yield
        running.signal(signal.SIGINT)
        running.wait()


def _places(program: Path, function: str) -> tuple[int, int]:
    """Return where a function begins and where its only RET is, as offsets in the file."""
    (row,) = of_kind(run_tool("gofunclatency", "-l", "--json", f"{program}:{function}"), "function")
    (ret,) = row["rets"]
    with ElfImage.open(program) as image:
        return image.offset_of(row["address"]), image.offset_of(ret)


def _without_symbols(program: Path, copy: Path) -> Path:
    """Copy a program as one whose section headers name no symbol table."""
    data = bytearray(program.read_bytes())
    (headers,) = struct.unpack_from("<Q", data, 0x28)  # e_shoff
    size, count = struct.unpack_from("<HH", data, 0x3A)  # e_shentsize, e_shnum
    for at in range(headers + 4, headers + size * count, size):  # sh_type
        if struct.unpack_from("<L", data, at) == (_SHT_SYMTAB,):
            struct.pack_into("<L", data, at, _SHT_NULL)
    copy.write_bytes(data)
    copy.chmod(0o755)
    return copy


_SHT_NULL, _SHT_SYMTAB = 0, 2


_TIMED, _TIMED_ROUND = "main.stacked", "assembly"
_TIMED_RUNS, _TIMED_ROUNDS = 2, 15


def _call_time(fixture: Fixture) -> float:
    """Return the least mean time of a round's calls, in ns."""
    best, before = float("inf"), fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
    for _ in range(_TIMED_ROUNDS):
        after = fixture.work(_TIMED_ROUND)["Functions"][_TIMED]
        took = (after["Outer"] - before["Outer"]) / (after["Calls"] - before["Calls"])
        best, before = min(best, took), after
    return best


def _steps() -> str:
    """Hold that each thread executes the instruction at its own probe; only when asked for.

    The probes are bare perf events: neither a BPF program nor a tool takes part.
    """
    program = _fixture("live_steps", _MINORS[-1])
    listed = run_tool("gofunccount", "-l", "--json", f"{program}:main.step*")
    with ElfImage.open(program) as image, ExitStack() as stack:
        for row in of_kind(listed, "function"):
            event = open_uprobe(str(program), image.offset_of(row["site"]))
            stack.callback(os.close, event)
        seen = {name: _stepped(program, orders) for name, orders in _STEPPED.items()}
    words = "; ".join(f"{name}: {text}" for name, (_, text) in seen.items())
    assert not any(wrong for wrong, _ in seen.values()), words
    return words


def _stepped(program: Path, orders: Sequence[str]) -> tuple[int, str]:
    """Play orders in one process after the other; return how many steps were wrong, and words."""
    calls = wrong = held = slots = hit = 0
    for _ in range(_STEPPING_PROCESSES):
        with Fixture([program]) as fixture:
            rounds = [fixture.work(order) for order in orders]
            assert fixture.finish() == 0
        assert rounds[-1]["Slots"] > 0, "nothing was stepped"
        sys.stderr.write(f"{orders}: {rounds}\n")  # with the first wrong one of each
        calls += sum(each["Calls"] for each in rounds)
        wrong += sum(each["Wrong"] for each in rounds)
        held += sum(each["Held"] for each in rounds)
        hit += any(each["Wrong"] for each in rounds)
        slots = max(slots, rounds[-1]["Slots"])
    words = f"{wrong:,} of {calls:,} steps wrong in {hit} of {_STEPPING_PROCESSES} processes"
    return wrong, f"{words}, {held:,} with the right one in memory, {slots} slots"


def _tool_times(method: str) -> str:
    """Measure how long a tool takes to start, to end, and its probes to go, by functions."""
    program = _fixture("live_count", _MINORS[-1])
    rows = of_kind(run_tool("gofunccount", "-l", "--json", f"{program}:*"), "function")
    names = [row["func"] for row in rows if row["site"] and "*" not in row["func"]]
    seen = []
    for count in (1, 100, 1000):
        assert len(names) >= count
        words = ("--attach", method, *(f"{program}:{name}" for name in names[:count]))
        began = time.monotonic()
        with tool("gofunccount", *words) as counting:
            attached = time.monotonic()
            counting.signal(signal.SIGINT)
            counting.rest()
            ended = time.monotonic()
            counting.wait_for_keepers()
            gone = time.monotonic()
        times = f"started in {attached - began:.1f} s, ended in {ended - attached:.1f} s"
        seen.append(f"{count}: {times}, probes gone after {gone - attached:.1f} s")
        sys.stderr.write(f"{method} {seen[-1]}\n")
    return "; ".join(seen)


def _refusals() -> str:
    """Hold that the tools that need more than this kernel has say what it is, and touch nothing."""
    program = _fixture("live_count", _MINORS[-1])
    with Fixture([program]) as fixture:
        clean = code_of(fixture.pid)
        for name in ("gofunclatency", "gotrace"):
            result = run_tool(name, "-p", str(fixture.ready), "main.leaf")
            assert result.status == 1, result
            assert re.search(r"Linux 5\.12", result.errors), result.errors
            assert len(result.errors.splitlines()) == 1, result.errors
        assert code_of(fixture.pid) == clean
        fixture.work()
        assert fixture.finish() == 0
    return "gofunclatency and gotrace say that they need Linux 5.12"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
