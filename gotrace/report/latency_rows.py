# SPDX-License-Identifier: Apache-2.0
"""Turn a period's measurements into what is shown: names, the busiest first, the rest in sum."""

from __future__ import annotations

import argparse

from gotrace.histogram import Histogram
from gotrace.overhead import ProbeCost
from gotrace.report.latencies import FoldedLatency, Interval, LatencyGroup
from gotrace.session.goroutines import GoroutineKey, GoroutineTimes
from gotrace.session.latency import Measurement
from gotrace.session.plan import ProbePlan
from gotrace.session.symbols import Symbolizer
from gotrace.session.why.parts import PartSums

__all__ = [
    "interval_of",
]

_TOP_GOROUTINES = 10


def interval_of(
    options: argparse.Namespace,
    plan: ProbePlan,
    period: Measurement,
    symbols: Symbolizer | None,
    when: tuple[float, float, int],
    cost: ProbeCost | None,
) -> Interval:
    """Return what is shown of a period; ``when`` is its end, length and display unit.

    The busiest are those with the most time of their own, without what the probes' ``cost``.
    """
    ended, seconds, unit = when
    if options.goroutine:
        groups, rest = _goroutines(options, plan, period, symbols, cost)
        return Interval(groups, rest, ended, seconds, unit, cost, options.short)
    functions = _functions(options, plan, period, cost)
    return Interval(functions, [], ended, seconds, unit, cost, options.short)


def _own_time(times: Histogram, cost: ProbeCost | None) -> int:
    """Return the total time of calls without what is the probes' own, as an estimate."""
    tracing = cost.within(times.sum, times.count, times.hits) if cost else 0
    return times.sum - tracing


def _name(options: argparse.Namespace, plan: ProbePlan, row: int) -> str | None:
    return plan.functions[row].name if options.function or len(plan.functions) == 1 else None


def _functions(
    options: argparse.Namespace, plan: ProbePlan, period: Measurement, cost: ProbeCost | None
) -> list[LatencyGroup]:
    """Return a group for each function name, the one with the most total time last."""
    by_name: dict[str | None, Histogram] = {}
    why: dict[str | None, dict[int | None, PartSums]] = {}
    for row, times in period.rows.items():
        if times.count:
            name = _name(options, plan, row)
            by_name.setdefault(name, Histogram()).merge(times)
            for bucket, sums in period.why.get(row, {}).items():
                why.setdefault(name, {}).setdefault(bucket, PartSums()).merge(sums)
    ranked = sorted(by_name.items(), key=lambda item: (_own_time(item[1], cost), item[1].sum))
    if options.top:
        ranked = ranked[-options.top :]
    asked = bool(period.why)
    return [
        LatencyGroup(name, times, why=why.get(name, {}) if asked else None)
        for name, times in ranked
    ]


def _goroutines(
    options: argparse.Namespace,
    plan: ProbePlan,
    period: Measurement,
    symbols: Symbolizer | None,
    cost: ProbeCost | None,
) -> tuple[list[LatencyGroup], list[FoldedLatency]]:
    """Return a group for each goroutine, the one with the most total time first, and the rest."""
    ranked = sorted(
        period.goroutines.items(),
        key=lambda item: (_own_time(item[1].times, cost), item[1].times.sum),
        reverse=True,
    )
    top = ranked[: options.top or _TOP_GOROUTINES]
    by_path = options.pid is None and options.command is None
    groups = [
        LatencyGroup(
            _name(options, plan, key.row),
            goroutine.times,
            key.goid,
            _label(key, goroutine, symbols, by_path),
            key.pid,
            {None: goroutine.why} if goroutine.why.parts else None,
        )
        for key, goroutine in top
    ]
    rests = []
    for row in sorted(period.rows):
        shown = [goroutine.times for key, goroutine in top if key.row == row]
        count = period.rows[row].count - sum(times.count for times in shown)
        if count <= 0:
            continue
        total = period.rows[row].sum - sum(times.sum for times in shown)
        folded = period.rest.get(row)
        others = sum(key.row == row for key, _ in ranked[len(top) :])
        rests.append(
            FoldedLatency(
                _name(options, plan, row),
                others + (folded.goroutines if folded else 0),
                count,
                total,
                folded.unnamed if folded else 0,
                period.rows[row].hits - sum(times.hits for times in shown),
            )
        )
    return groups, rests


def _label(
    key: GoroutineKey, goroutine: GoroutineTimes, symbols: Symbolizer | None, by_path: bool
) -> str:
    """Describe a goroutine as a stack dump does, with what could be read of its beginning.

    ``by_path``: it may be of any process, and each has its own goroutine 1.
    """
    process = f"process {key.pid}" if key.pid else "process of another pid namespace"
    if key.goid == 0:
        return f"no goroutine [{process}]"
    known = []
    if symbols is not None:
        start = symbols.started(key.tgid, goroutine.startpc)
        created = symbols.line_before(key.tgid, goroutine.gopc)
        known = [text for text in (start, created and f"created at {created}") if text]
    name = f"goroutine {key.goid}"
    if by_path:
        name += f" of {process}" if key.pid else f" of a {process}"
    return name + (f" [{', '.join(known)}]" if known else "")
