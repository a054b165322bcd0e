# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to their results where the kernel keeps values for CPUs that are not there.

A virtual machine that can be given 128 processors has 128 values of each counter, whatever it runs
on, and reading, adding up and memory are by that number.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gotrace.kernel.syscalls import online_cpus, possible_cpus
from tests.kernels.checking import Checks
from tests.kernels.order import MANY, MANY_FUNCTIONS, POSSIBLE
from tests.kernels.runs import KEYS, MINORS, RELAYED, differences, fixture_program, watch
from tests.tools.gofunccount.test_many import PACKAGE, calls
from tests.tools.harness import Fixture, Running, json_counts, of_kind, tool

Json = dict[str, Any]

#: Functions that are measured: a histogram of each takes 656 counters of each CPU.
_MEASURED = 100


def check_possible(checks: Checks) -> None:
    """Run the checks, only where they are asked for, as by the guest that is made for them."""
    for name, check in zip(POSSIBLE, (_counts, _latencies, _keys, check_waits), strict=True):
        if name in checks.order.only:
            checks.run(name, checks.order.methods[0], check)


def _names(count: int) -> dict[str, int]:
    """Return functions of the program, and how often each is called."""
    return {f"fixture/p{n // PACKAGE:03}.F{n:05}": calls(n) for n in range(count)}


class _Cost:
    """How long a tool takes to start, and what memory it and its maps take, in words."""

    def __init__(self) -> None:
        self._began, self._percpu = time.monotonic(), _percpu_kb()
        self.words = ""

    def note(self, running: Running) -> None:
        """Look at a tool that has attached."""
        started = time.monotonic() - self._began
        status = Path(f"/proc/{running.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        peak = int(found[1]) >> 10 if found else 0
        per_cpu = (_percpu_kb() - self._percpu) >> 10
        self.words = f"started in {started:.0f} s, {peak} MB, maps by CPU {per_cpu} MB"


def _percpu_kb() -> int:
    found = re.search(r"Percpu:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(found[1]) if found else 0


def _many(name: str, *words: str) -> tuple[Any, str]:
    """Run a tool while the program of many functions does its calls; return result and cost."""
    processors = possible_cpus(), len(online_cpus())
    assert processors in ((128, 2), (2, 2)), processors  # the second to compare the times with
    cost = _Cost()
    with Fixture([fixture_program(MANY, MINORS[-1])]) as fixture:
        with tool(name, "--json", "-p", str(fixture.ready), *words) as running:
            cost.note(running)
            fixture.work()
            began = time.monotonic()
            result = running.end()
            ended = time.monotonic() - began
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    assert of_kind(result, "lost") == []
    return result, f"{processors[0]} possible CPUs: {cost.words}, ended in {ended:.0f} s"


def _counts() -> str:
    truth = _names(MANY_FUNCTIONS)
    result, cost = _many("gofunccount", "fixture/*.F*")
    seen = json_counts(result, truth)
    assert seen == truth, differences(seen, truth)[:500]
    return f"{sum(truth.values()):,} calls of {len(truth):,} functions; {cost}"


def _latencies() -> str:
    truth = {name: count for name, count in _names(_MEASURED).items() if count}
    result, cost = _many("gofunclatency", "-F", "--top", "1000", "fixture/p000.F000*")
    seen = Counter({row["func"]: row["count"] for row in of_kind(result, "histogram")})
    assert seen == truth, differences(seen, truth)[:500]
    return f"{sum(truth.values()):,} calls of {len(truth):,} functions; {cost}"


def _keys() -> str:
    """By values of results, and by two tools at once; records come from the online CPUs only."""
    seen = []
    for one in (KEYS, RELAYED):
        truth, (result,) = watch("live_relay", [one], 2)
        seen.append(f"{one.tool} {one.check(truth, result):,} calls")
    return "; ".join(seen)


def check_waits() -> str:
    """Hold waits of every kind against the program's own bounds."""
    cost = _Cost()
    with Fixture([fixture_program("live_waits", MINORS[-1])]) as fixture:
        words = ("--json", "--force", "-p", str(fixture.ready))
        with tool("gooffcpu", *words) as running:
            cost.note(running)
            truth = fixture.work("ways")
            result = running.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = of_kind(result, "wait")
    for name, known in truth.items():
        mine = [row for row in rows if f"main.{name}" in [each["func"] for each in row["stack"]]]
        assert sum(row["count"] for row in mine) == known["count"], f"{name}: {mine}, {known}"
        assert known["least"] <= sum(row["delay_ns"] for row in mine) <= known["most"], name
    waits = sum(known["count"] for known in truth.values())
    return f"{waits} waits of {len(truth)} kinds; {cost.words}"
