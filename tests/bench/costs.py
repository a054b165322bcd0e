# SPDX-License-Identifier: Apache-2.0
"""Measure what tracing costs the target: nanoseconds for each call of a framed function."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from gotrace.errors import GotraceError
from gotrace.kernel.attach import Point, ProbeGroup, attach
from gotrace.settings import ProgramSettings
from tests.bench.commands import (
    Missing,
    bcc_count,
    bcc_latency,
    bcc_trace,
    bpftrace,
    dlv_trace,
    gooncpu,
    gotrace,
    ours,
    perf_record,
)
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, Series, ratios, total
from tests.bench.targets import FRAMED, NAMED, Calls, Framed, calls_program, find_framed
from tests.bench.tracers import TRACER_CPU, Command, Tracer, TracerError

EMPTY = Path(__file__).parent / "empty.c"
LANDING = "gofunclatency at landings"
AUTO = "gofunclatency that has moved by itself"
UNIT = "ns/call"
BARE = "bare"
BRANCH, PUSH = "empty program, emulated jbe", "empty program, emulated push"
ENTRY, RET = "empty program, single-stepped cmp", "empty program, single-stepped ret"

_MOVING = 30.0  # seconds in which calls are to be seen returning in their callers
_WARM = 100  # calls before the first sample: caches, and the length of a sample
_MAX_CALLS = 20_000_000

Attach = Callable[[Calls], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to trace, and how it attaches to the running target.

    ``most`` limits the calls of a sample where each leaves a record for a reader to fetch.
    """

    name: str
    attach: Attach
    binary: Path
    most: int = _MAX_CALLS
    order: str = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _EmptySettings(ProgramSettings):
    source: ClassVar[str] = str(EMPTY)


@contextmanager
def empty_probe(framed: Framed, address: int, pid: int) -> Iterator[None]:
    """Keep a program that does nothing attached to one instruction."""
    point = Point(address - framed.bias, address, 0)
    path = str(framed.binary)
    group = ProbeGroup("on_hit", path, path, [point], framed.bias, pid)
    attached = attach(_EmptySettings(), [group])
    try:
        if attached.failed:
            raise next(iter(attached.failed.values()))
        yield
    finally:
        attached.close()


def _floor(name: str, framed: Framed, address: int) -> Contender:
    return Contender(name, lambda t: empty_probe(framed, address, t.pid), framed.binary)


def _tracer(
    name: str, binary: Path, command: Callable[[Calls], Command], most: int = _MAX_CALLS
) -> Contender:
    return Contender(name, lambda target: Tracer(command(target), TRACER_CPU), binary, most)


def ns_per_call(
    target: Calls, settings: Settings, most: int = _MAX_CALLS, order: str = "run"
) -> float:
    """Return the median of some samples, each long enough for the clock."""
    estimate = max(target.run(_WARM, order), 1.0)
    calls = int(min(max(settings.sample_s * 1e9 / estimate, _WARM), most))
    return statistics.median(target.run(calls, order) for _ in range(settings.samples))


def _measure(
    results: Results, case: str, contenders: Sequence[Contender], settings: Settings
) -> None:
    """Let all contenders run once in each round, and add what they cost."""
    values: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    failed: dict[str, str] = {}
    for _ in range(settings.rounds):
        for contender in contenders:
            if contender.name in failed:
                continue
            try:
                with Calls(contender.binary) as target, contender.attach(target):
                    cost = ns_per_call(target, settings, contender.most, contender.order)
            except (Missing, TracerError, GotraceError, OSError) as error:
                failed[contender.name] = str(error)
            except AssertionError:  # of the harness, with all of the target's last words
                failed[contender.name] = "the target crashed"
            else:
                values[contender.name].append(cost)
    for name, costs in values.items():
        why = failed.get(name, "")
        results.add(case, name, UNIT, [] if why else costs, missing=why)


def _above_bare(results: Results, case: str, contender: str) -> Series | None:
    series, bare = results.series(case, contender), results.series(case, BARE)
    return series.above(bare) if series and bare else None


def _require(
    results: Results, case: str, contender: str, bound: float, against: Sequence[str], what: str
) -> None:
    """Require a contender's cost to be at most ``bound`` times the sum of what others cost."""
    missing = [
        f"{name}: {measure.missing}"
        for name in (contender, *against)
        if (measure := results.find(case, name)) and not measure.series
    ]
    own = _above_bare(results, case, contender)
    others = [series for name in against if (series := _above_bare(results, case, name))]
    complete = own is not None and len(others) == len(against)
    series = ratios(own, total(*others)) if own and complete else None
    name = f"cost of a call, {contender} / {what}"
    why = "; ".join(missing) or "no cost above the bare call's"
    results.requirements.append(Requirement(name, series, bound, why="" if series else why))


def _cheapest(results: Results, case: str) -> str:
    """Return the floor of the two emulated instructions that costs less."""
    floors = {name: results.series(case, name) for name in (BRANCH, PUSH)}
    medians = {name: series.median for name, series in floors.items() if series}
    return min(medians, key=lambda name: medians[name], default=BRANCH)


def count_costs(results: Results, settings: Settings) -> None:
    """Measure counting: gofunccount, bcc's funccount, bpftrace, and empty programs."""
    framed = find_framed(calls_program())
    binary, case = framed.binary, "cost of counting"
    contenders = [
        Contender(BARE, lambda _: nullcontext(), binary),
        _floor(BRANCH, framed, framed.branch),
        _floor(PUSH, framed, framed.push),
        _floor(ENTRY, framed, framed.entry),
        _tracer("gofunccount", binary, lambda t: ours("gofunccount", "-p", str(t.pid), FRAMED)),
        _tracer("bcc funccount", binary, lambda t: bcc_count(binary, FRAMED, t.pid)),
        _tracer(
            "bpftrace count", binary, lambda t: bpftrace("count.bt", binary, FRAMED, pid=t.pid)
        ),
    ]
    _measure(results, case, contenders, settings)
    for peer in ("bcc funccount", "bpftrace count"):
        _require(results, case, "gofunccount", 0.1, [peer], peer)
    floor = _cheapest(results, case)
    _require(results, case, "gofunccount", 1.3, [floor], "cheapest emulated empty probe")


def latency_costs(results: Results, settings: Settings) -> None:
    """Measure latency: gofunclatency, bpftrace and bcc with two probes, and empty programs."""
    framed = find_framed(calls_program())
    binary, case = framed.binary, "cost of measuring latency"
    two_probes = "bpftrace two-probe script"
    contenders = [
        Contender(BARE, lambda _: nullcontext(), binary),
        _floor(BRANCH, framed, framed.branch),
        _floor(PUSH, framed, framed.push),
        _floor(RET, framed, framed.ret),
        _latency("gofunclatency", binary, "ret"),
        _latency(LANDING, binary, "landing"),
        Contender(AUTO, _moved_by_itself, binary),
        _bpftrace_pair(two_probes, "latency.bt", framed, FRAMED),
        _tracer("bcc two-probe script", binary, lambda t: bcc_latency(framed, t.pid)),
    ]
    _measure(results, case, contenders, settings)
    _require(results, case, "gofunclatency", 0.6, [two_probes], two_probes)
    floors = [_cheapest(results, case), RET]
    _require(results, case, "gofunclatency", 1.25, floors, "sum of the two empty probes")
    for name in (LANDING, AUTO):
        _require(results, case, name, 0.12, [two_probes], two_probes)
    emulated = [_cheapest(results, case)] * 2
    _require(results, case, LANDING, 1.6, emulated, "two emulated empty probes")


def _latency(name: str, binary: Path, returns: str) -> Contender:
    """Return gofunclatency with returns seen at RETs, or in callers once they are."""
    words = ("--json", "--returns", returns, FRAMED)
    return _tracer(name, binary, lambda t: ours("gofunclatency", "-p", str(t.pid), *words))


@contextmanager
def _moved_by_itself(target: Calls) -> Iterator[None]:
    """Keep gofunclatency as it is by default at work, after a loop's calls have made it move."""
    words = ("-p", str(target.pid), "--json", FRAMED)
    with Tracer(ours("gofunclatency", *words), TRACER_CPU) as tracer:
        until = time.monotonic() + _MOVING
        while b'"returns":"landing"' not in tracer.output():
            if time.monotonic() > until:
                raise TracerError("its calls did not move", tracer.errors())
            target.run(_WARM, "run")
        yield


def _bpftrace_pair(
    name: str, script: str, framed: Framed, function: str, most: int = _MAX_CALLS
) -> Contender:
    """Return bpftrace with a probe on the entry and one on the RET.

    Debian's bpftrace 0.17 refuses an address inside a function of a binary that has symbols, and
    takes file offsets in one that has none: it gets the same program, stripped.
    """

    def by_name(target: Calls) -> Command:
        words = (function, hex(framed.ret))
        return bpftrace(script, framed.binary, *words, pid=target.pid)

    try:
        with Calls(framed.binary) as target, Tracer(by_name(target)):
            pass
    except TracerError as error:
        if "offset support" in error.log:
            stripped = find_framed(calls_program(stripped=True), function)
            offsets = [hex(at - stripped.bias) for at in (stripped.entry, stripped.ret)]
            binary = stripped.binary
            return _tracer(
                name, binary, lambda t: bpftrace(script, binary, *offsets, pid=t.pid), most
            )
    except Missing:
        pass
    return _tracer(name, framed.binary, by_name, most)


def sampling_costs(results: Results, settings: Settings) -> None:
    """Measure sampling a busy thread: gooncpu and perf record, 99 and 999 times a second."""
    framed = find_framed(calls_program())
    binary, case = framed.binary, "cost of sampling"
    contenders = [Contender(BARE, lambda _: nullcontext(), binary)]
    for hertz in ("99", "999"):
        contenders += [
            _tracer(f"gooncpu, {hertz} Hz", binary, partial(gooncpu, hertz=hertz)),
            _tracer(f"perf record, {hertz} Hz", binary, partial(perf_record, hertz=hertz)),
        ]
    # A sample is of microseconds: the target works for longer than for the cost of a call.
    longer = replace(settings, sample_s=10 * settings.sample_s)
    _measure(results, case, contenders, longer)
    own, bare = results.series(case, "gooncpu, 99 Hz"), results.series(case, BARE)
    series = ratios(own, bare) if own and bare else None
    why = "" if series else "not measured"
    name = "a thread sampled by gooncpu at 99 Hz / not sampled"
    results.requirements.append(Requirement(name, series, 1.01, why=why))


def trace_costs(results: Results, settings: Settings) -> None:
    """Measure tracing of entries with two arguments: gotrace, bcc's trace, bpftrace, dlv."""
    framed = find_framed(calls_program())
    binary, case, most = framed.binary, "cost of tracing two arguments", 2_000
    contenders = [
        Contender(BARE, lambda _: nullcontext(), binary),
        _tracer("gotrace", binary, lambda t: gotrace(t.pid), most),
        _tracer("bcc trace", binary, lambda t: bcc_trace(binary, t.pid), most),
        _tracer(
            "bpftrace printf",
            binary,
            lambda t: bpftrace("trace.bt", binary, FRAMED, pid=t.pid),
            most,
        ),
        _tracer("dlv trace", binary, dlv_trace, most),
    ]
    _measure(results, case, contenders, settings)
    _require(results, case, "gotrace", 0.2, ["bcc trace"], "bcc trace")
    _named_costs(results, settings)


def _named_costs(results: Results, settings: Settings) -> None:
    """Measure tracing of calls with a string, a number and two results: gotrace and bpftrace."""
    framed = find_framed(calls_program(), NAMED)
    binary, case, most = framed.binary, "cost of tracing a string, a number, two results", 2_000
    contenders = [
        Contender(BARE, lambda _: nullcontext(), binary),
        _tracer("gotrace", binary, lambda t: _traced(t, "ret"), most),
        _tracer("gotrace at landings", binary, lambda t: _traced(t, "landing"), most),
        _bpftrace_pair("bpftrace printf at both", "named.bt", framed, NAMED, most),
    ]
    contenders = [replace(each, order="named") for each in contenders]
    _measure(results, case, contenders, settings)
    for name, bound in (("gotrace", 0.35), ("gotrace at landings", 0.12)):
        _require(results, case, name, bound, ["bpftrace printf at both"], "bpftrace printf at both")


def _traced(target: Calls, returns: str) -> Command:
    return ours("gotrace", "--json", "--returns", returns, "-p", str(target.pid), NAMED)
