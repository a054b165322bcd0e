# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to what they promise on the running kernel: runs in a guest.

A tool takes 10 to 25 seconds to start in an emulated machine, so one run proves as much as it can:
several checks read its output.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from gotrace.elf.image import ElfImage
from gotrace.kernel.syscalls import open_uprobe
from tests.kernels.builds import check_builds
from tests.kernels.bundle import unpacked
from tests.kernels.checking import Checks
from tests.kernels.costs import check_costs
from tests.kernels.detaching import How, measure
from tests.kernels.landings import check_landings
from tests.kernels.memory import check_memory
from tests.kernels.order import BUNDLE, OLDEST, Order, Result, read_order
from tests.kernels.possible import check_possible, check_waits
from tests.kernels.runs import (
    LATENCY,
    MINORS,
    differences,
    fixture_program,
    measure_rounds,
    measure_scenarios,
    trace_beside_go,
    trace_parts,
    trace_records,
    trace_values,
)
from tests.kernels.threads import check_threads
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

Json = dict[str, Any]

#: On the other methods latencies and values are of one release, a different one on each.
_ONE_MINOR = {"perf-cookie": ("1.27",), "perf-ip": ("1.19",)}

#: How many functions are attached to when the tool is killed; perf events go slowly.
_KILLED = ("runtime.m*", "strconv.*")


def main(path: Path) -> int:
    """Run the checks of an order; return 1 when one has failed."""
    order = read_order(path)
    checks = Checks(order)
    checks.run("doctor", "", partial(_doctor, order))
    for method in order.methods:
        checks.run("counts", method, partial(_counts, method))
        if order.pairs and method in order.full_methods:
            minors = order.minors if method == order.methods[0] else _ONE_MINOR[method]
            checks.of_one_run(method, partial(measure_scenarios, method, minors), LATENCY)
            checks.run("values", method, partial(trace_values, method, minors))
        checks.run("SIGKILL", method, partial(_kill, method))
    if order.pairs:
        checks.run("why", order.methods[0], trace_parts)
        if not order.is_quick:
            checks.run("why, Go's trace", order.methods[0], trace_beside_go)
        checks.run("migrating rounds", order.methods[0], partial(measure_rounds, order.rounds))
        # Each record goes through Python here, ten times as slowly as elsewhere.
        checks.run(
            "migrating records", order.methods[0], partial(trace_records, order.rounds // 3 or 1)
        )
    else:
        checks.run("refusals", "", _refusals)
    if "multi" in order.methods:
        check_landings(checks)
    check_threads(checks)
    check_builds(checks)
    check_possible(checks)
    check_costs(checks)
    check_memory(checks)
    if _REMOVAL_TIMES in order.only:
        checks.run(_REMOVAL_TIMES, "", partial(_removal_times, order.methods))
    if _STEPS in order.only:
        checks.run(_STEPS, "", _steps)
    if BUNDLE in order.only:
        checks.run(BUNDLE, order.methods[0], partial(_bundle, order.methods[0]))
    if _TOOL_TIMES in order.only:
        for method in order.methods:
            checks.run(_TOOL_TIMES, method, partial(_tool_times, method))
    kernel = f"{os.uname().release}, {os.cpu_count()} CPU, preemption {_preemption()}"
    checks.report(Result("end", "", not checks.failed, round(time.monotonic(), 1), kernel, True))
    return 1 if checks.failed else 0


#: Of the emulator and the kernel and not of the tools, made only when asked for.
_REMOVAL_TIMES = "removal times"
_TOOL_TIMES = "tool times"
_STEPS = "single steps"


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


def _doctor(order: Order) -> str:
    """Hold that the tool finds what this kernel is known to have, and no more."""
    result = run_tool("gotrace", "doctor", "--json")
    rows = {row["check"]: row for row in of_kind(result, "check")}
    for check, row in rows.items():
        sys.stderr.write(f"{row['state']}: {check}: {row['found']} {row['advice'] or ''}\n")
    fine = [name.split()[1] for name, row in rows.items() if _works(name, row)]
    assert fine == list(order.methods), f"doctor finds {fine}, the kernel has {list(order.methods)}"
    (verdict,) = of_kind(result, "verdict")
    broken = [f"{name}: {row['found']}" for name, row in rows.items() if row["state"] == "fail"]
    assert verdict["possible"] == order.pairs, f"{verdict['message']} {broken}"
    assert result.status == (0 if order.pairs else 1)
    return str(verdict["message"])


def _works(name: str, row: Json) -> bool:
    return name.startswith("attach: ") and str(row["found"]).startswith("works")


#: Calls that use a nil pointer at once come there, and are counted by a probe there on arm64.
_FAULT = "runtime.sigpanic"
_COUNTED = ("main.*", _FAULT)
_RELEASES = (OLDEST, *MINORS)


def _counts(method: str) -> str:
    """Count all functions of package main in the programs of several releases."""
    with ExitStack() as stack:
        programs = [fixture_program("live_count", minor) for minor in _RELEASES]
        fixtures = [stack.enter_context(Fixture([program])) for program in programs]
        patterns = [f"{program}:{name}" for program in programs for name in _COUNTED]
        words = ("--json", "--attach", method, *patterns)
        counting = stack.enter_context(tool("gofunccount", *words))
        truth: Counter[str] = Counter()
        for fixture in fixtures:
            told = fixture.work()
            truth.update(told["calls"])
            truth[_FAULT] += told["panics"]
        result = counting.end()
        counting.wait_for_keepers()  # what follows compares these files' code
        assert {fixture.finish() for fixture in fixtures} == {0}
    assert result.status == 0, result.errors
    assert json_counts(result, truth) == truth, differences(json_counts(result, truth), truth)
    assert of_kind(result, "lost") == []
    return f"{truth.total():,} calls of {len(truth)} functions"


def _bundle(method: str) -> str:
    """Hold the bundle's commands to what the clone's are held to; only when asked for."""
    with unpacked() as installed:
        seen = [_counts(method)]
        played = measure_scenarios(method, MINORS[-1:])
        latencies = {name: check(played) for name, check in LATENCY.items()}
        seen += [latencies["nothing lost"], trace_values(method, MINORS[-1:]), check_waits()]
    return f"{'; '.join(seen)}; {installed}"


def _kill(method: str) -> str:
    """Kill the tool once some of its probes are in place: the program's code is as before."""
    program = fixture_program("live_count", MINORS[-1])
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


def _removal_times(methods: Sequence[str]) -> str:
    """Measure how long probes by perf events take to go, see detaching.py; only when asked for."""
    program = fixture_program("live_count", MINORS[-1])
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


def _steps() -> str:
    """Hold that each thread executes the instruction at its own probe; only when asked for.

    The probes are bare perf events: neither a BPF program nor a tool takes part.
    """
    program = fixture_program("live_steps", MINORS[-1])
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
    program = fixture_program("live_count", MINORS[-1])
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
    program = fixture_program("live_count", MINORS[-1])
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
