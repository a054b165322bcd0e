# SPDX-License-Identifier: Apache-2.0
"""Hold the tools to what they promise of returns that are seen in callers: runs in a guest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gotrace.kernel.program import AttachKind, BpfProgram
from tests.kernels.checking import Checks
from tests.kernels.kills import kill_amid
from tests.kernels.runs import (
    COLLECTING,
    LANDINGS,
    MINORS,
    RECORDS,
    RELAYED,
    fixture_program,
    measure_rounds,
    trace_records,
    watch,
)
from tests.kernels.server import watch_server
from tests.session.loaded import has_tail_call, loaded_instructions, verified_instructions
from tests.session.test_stacks import (
    ALL_OF_KEYED,
    ALL_OF_TRACE,
    PAIRED,
    PER_GOROUTINE,
    SUMMED,
    TIMED,
    WHY,
)


def check_landings(checks: Checks) -> None:
    """Run what concerns landings, or RETs where these cost no step; it takes uprobe-multi links."""
    order, few = checks.order, checks.order.rounds // 3 or 1
    if LANDINGS:
        checks.run("landings", "multi", partial(measure_rounds, order.rounds, LANDINGS))
    if order.is_quick:
        return
    checks.run("programs", "", _programs)
    checks.run("collections", "multi", partial(measure_rounds, few, LANDINGS, COLLECTING))
    if LANDINGS:
        checks.run("landings: records", "multi", partial(trace_records, few, LANDINGS))
    checks.run("tracers", "multi", partial(_several_tracers, 5))
    checks.run("server", "multi", _server)
    checks.run("kills", "multi", partial(_kill_tools, order.seed))


#: The verifier follows at most a million instructions of a program.
_MAX_VERIFIED = 900_000


def _programs() -> str:
    """Load the largest programs."""
    seen = []
    for settings in (
        replace(PER_GOROUTINE, why=SUMMED, slower=1),
        ALL_OF_TRACE,
        replace(ALL_OF_TRACE, why=WHY, payload=8192),
        replace(ALL_OF_KEYED, why=replace(WHY, why_callers=False)),
        replace(TIMED, why=replace(SUMMED, why_callers=False)),
    ):
        program = BpfProgram(settings)
        try:
            loaded = program.load(PAIRED, AttachKind.UPROBE_MULTI)
            assert all(has_tail_call(loaded_instructions(each)) for each in loaded.values())
            verified = {name: verified_instructions(each) for name, each in loaded.items()}
        finally:
            program.close()
        assert max(verified.values()) < _MAX_VERIFIED, verified
        seen.append(f"{settings.source} {verified['on_return']:,}")
    return "; ".join(seen)


def _several_tracers(times: int) -> str:
    """Have tools watch the same calls, at landings and at RETs, by links and by perf events.

    Each has to see every call, whichever was there before.
    """
    records, landed = replace(RECORDS, further=LANDINGS), replace(RELAYED, further=LANDINGS)
    event = replace(RECORDS, further=("--attach", "perf-cookie"))
    seen = []
    for watches in ([records, records], [event, landed], [landed, event]):
        truth, results = watch("live_relay", watches, times)
        seen += [one.check(truth, result) for one, result in zip(watches, results, strict=True)]
    return f"{seen[0]:,} and {seen[1]:,} records; {seen[2:]} by both ways"


def _server() -> str:
    """Watch a busy server with all tools at once; its client counts the requests."""
    requests, compared = watch_server(LANDINGS)
    words = ", ".join(f"{count:,} by {name}" for name, count in compared.items())
    return f"{requests:,} requests; calls compared: {words}"


#: How many tools are killed amid a program's calls, and what it does then. On arm64 a start takes
#: three times as long.
_KILLS = 50 if LANDINGS else 15
_KILLED_ROUND = "interleaved recursion migration"


def _kill_tools(seed: int) -> str:
    """Kill tools at random moments; the program goes on, and its code is as before."""
    program = fixture_program("live_latency", MINORS[-1])
    said, rounds = kill_amid(program, _KILLED_ROUND, _KILLS, seed, LANDINGS)
    return f"{said} in {rounds} rounds"
