# SPDX-License-Identifier: Apache-2.0
"""Measure how many calls a second reach a file, with none lost on the way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.commands import Missing, bcc_trace, gotrace
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, ratios
from tests.bench.targets import Calls, calls_program
from tests.bench.tracers import TRACER_CPU, Command, Tracer, TracerError

CASE = "calls delivered to a file"
READER = "reader's CPU for a delivered call"
MEMORY = "peak memory while delivering"

_STEP = 1.35
_MAX_STEPS = 10
_QUIET = 0.5  # seconds without growth after which a file is complete
_POLL = 0.01
#: Seconds for which a tracer may hold calls back, to put those of several CPUs in order: a delay,
#: but no limit to the rate.
_HELD_BACK = 0.15


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt: calls asked for each second, made, and delivered, in how many seconds.

    ``seconds`` is the longer of making the calls and of writing them.
    """

    asked: float
    calls: int
    delivered: int
    seconds: float
    reader_us: float
    peak_mb: float

    @property
    def lossless(self) -> bool:
        """Return whether every call came through."""
        return self.delivered >= self.calls

    @property
    def rate(self) -> float:
        """Return the calls a second that were made and written, delay apart."""
        return self.delivered / self.seconds

    @property
    def saturated(self) -> bool:
        """Return whether the target or the reader could not keep the pace asked for."""
        return self.rate < 0.85 * self.asked


def best(attempt: Callable[[float], Delivery], start: float) -> Delivery | None:
    """Return the fastest lossless delivery, climbing from ``start`` calls a second, or falling."""
    found: Delivery | None = None
    rate = start
    for _ in range(_MAX_STEPS):
        made = attempt(rate)
        if made.lossless and (found is None or made.rate > found.rate):
            found = made
        climbing = found is not None and made.lossless and not made.saturated and rate >= start
        if found is not None and not climbing:
            break
        rate = rate * _STEP if climbing else rate / _STEP
    return found


@dataclass(frozen=True, slots=True)
class _Contender:
    """A tracer, what finds its lines, and how many calls a second it is tried with first."""

    name: str
    command: Callable[[Path, int], Command]
    line: bytes
    start: float


_CONTENDERS = (
    _Contender("gotrace --json", lambda _, pid: gotrace(pid), rb'"func": ?"main.framed"', 120_000),
    _Contender("bcc trace", bcc_trace, rb"main.framed", 12_000),
)


def _deliver(contender: _Contender, binary: Path, seconds: float, rate: float) -> Delivery:
    calls = int(rate * seconds)
    with Calls(binary) as target:
        target.run(1)  # grows the stack: else the first probed call may be entered twice
        with Tracer(contender.command(binary, target.pid), TRACER_CPU) as tracer:
            cpu, started = tracer.cpu_seconds(), time.monotonic()
            produced = target.pace(calls, rate)
            last = _complete(tracer)
            reader_us = (tracer.cpu_seconds() - cpu) / calls * 1e6
            tracer.stop()
            delivered = len(re.findall(contender.line, tracer.output()))
    seconds = max(produced, last - started - _HELD_BACK)
    return Delivery(rate, calls, delivered, seconds, reader_us, tracer.peak_mb)


def _complete(tracer: Tracer) -> float:
    """Wait until the file stops growing and return when that was."""
    size, last = tracer.size(), time.monotonic()
    while time.monotonic() - last < _QUIET:
        tracer.work_for(_POLL)
        if tracer.size() != size:
            size, last = tracer.size(), time.monotonic()
    return last


def delivery_rates(results: Results, settings: Settings) -> None:
    """Measure gotrace and bcc's trace by turns on two-argument entries."""
    binary = calls_program()
    found: dict[str, list[Delivery]] = {contender.name: [] for contender in _CONTENDERS}
    failed: dict[str, str] = {}
    for _ in range(settings.few):
        for contender in _CONTENDERS:
            if contender.name in failed:
                continue
            earlier = found[contender.name]
            start = earlier[-1].asked if earlier else contender.start
            try:
                attempt = partial(_deliver, contender, binary, settings.rate_s)
                delivery = best(attempt, start)
            except (Missing, TracerError) as error:
                failed[contender.name] = str(error)
                continue
            if delivery is None:
                failed[contender.name] = "it lost calls at every rate tried"
            else:
                earlier.append(delivery)
    _add(results, found, failed)


def _add(results: Results, found: dict[str, list[Delivery]], failed: dict[str, str]) -> None:
    for case, unit, field in (
        (CASE, "calls/s", "rate"),
        (READER, "us/call", "reader_us"),
        (MEMORY, "MB", "peak_mb"),
    ):
        for name, deliveries in found.items():
            why = failed.get(name, "")
            values = [] if why else [getattr(delivery, field) for delivery in deliveries]
            results.add(case, name, unit, values, missing=why)
    ours, theirs = (results.series(CASE, contender.name) for contender in _CONTENDERS)
    why = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    name = "calls a second delivered without loss, gotrace --json"
    results.requirements += [
        Requirement(name, ours, 200_000, at_most=False, unit="/s", why="" if ours else why),
        Requirement(
            f"{name} / bcc trace",
            ratios(ours, theirs) if ours and theirs else None,
            3.0,
            at_most=False,
            why="" if ours and theirs else why,
        ),
    ]
