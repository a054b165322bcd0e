# SPDX-License-Identifier: Apache-2.0
"""Turn a period's measurements into what is shown: names, the busiest first, the rest in sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gotrace.histogram import Histogram
from gotrace.overhead import ProbeCost
from gotrace.report.latencies import FoldedLatency, Interval, LatencyGroup
from gotrace.report.order import Order, ordered, size_by
from gotrace.session.goroutines import GoroutineKey, GoroutineTimes
from gotrace.session.latency import Measurement
from gotrace.session.plan import ProbePlan
from gotrace.session.symbols import Symbolizer
from gotrace.session.why.parts import PartSums
from gotrace.target.target import TargetBinary

__all__ = [
    "LatencyChoice",
    "RowName",
    "interval_of",
    "row_names",
]

_TOP_GOROUTINES = 10


@dataclass(frozen=True, slots=True)
class LatencyChoice:
    """What is shown of a period.

    There is a group for each goroutine with ``by_goroutine``, else for each function with
    ``by_function``, else for each program. ``top`` is how many of them are shown, None for all.
    ``names_processes``: goroutines may be of any process, and each has its own goroutine 1.
    ``short``: names are without the beginning of import paths. ``order`` is what they are ordered
    by, None for the usual; ``rates``: they have their calls a second.
    """

    by_function: bool = False
    by_goroutine: bool = False
    top: int | None = None
    names_processes: bool = False
    short: bool = False
    order: Order | None = None
    rates: bool = False


def interval_of(
    choice: LatencyChoice,
    plan: ProbePlan,
    period: Measurement,
    symbols: Symbolizer | None,
    when: tuple[float, float, int],
    cost: ProbeCost | None,
    files: Sequence[TargetBinary] = (),
    ways: Mapping[str, str] | None = None,
) -> Interval:
    """Return what is shown of a period; ``when`` is its end, length and display unit.

    The busiest are those with the most time of their own, without what the probes' ``cost``.
    ``files`` are those whose rows are kept apart where functions are not; for ``ways`` see
    `Interval`.
    """
    ended, seconds, unit = when
    names = row_names(plan, files, choice.by_function)
    groups, rest = (
        _goroutines(choice, names, period, symbols, cost)
        if choice.by_goroutine
        else (_functions(choice, names, period, cost), [])
    )
    total = sum(times.sum for times in period.rows.values())
    shown = groups, rest, ended, seconds, unit, cost, choice.short, ways or {}
    return Interval(*shown, total, choice.rates)


def _size(choice: LatencyChoice, cost: ProbeCost | None) -> Callable[[Histogram], tuple[int, int]]:
    """Return what histograms are ordered by: usually by the time that is their own."""
    if choice.order in (None, Order.TOTAL, Order.NAME):
        return lambda times: (_own_time(times, cost), times.sum)
    size = size_by(choice.order, Order.TOTAL)
    return lambda times: (size(times), times.sum)


def _own_time(times: Histogram, cost: ProbeCost | None) -> int:
    """Return the total time of calls without what is the probes' own, as an estimate."""
    tracing = cost.within(times.sum, times.count, times.hits) if cost else 0
    return times.sum - tracing


class RowName(NamedTuple):
    """What a row is of: a program, where there are several, and a function, where it is of one."""

    program: str | None
    function: str | None


def row_names(
    plan: ProbePlan, files: Sequence[TargetBinary], by_function: bool
) -> Sequence[RowName]:
    """Return what rows are of, by number; ``files`` have them where functions have not."""
    if by_function or len(plan.functions) == 1:
        return [RowName(*name) for name in plan.names]
    if not files:
        return [RowName(None, None)]
    programs = plan.program_names
    found = []
    for file in files:
        functions = {
            sites.function.name
            for part in plan.binaries
            if part.binary is file
            for sites in part.functions
        }
        found.append(RowName(programs.get(file), functions.pop() if len(functions) == 1 else None))
    return found


def _functions(
    choice: LatencyChoice,
    names: Sequence[RowName],
    period: Measurement,
    cost: ProbeCost | None,
) -> list[LatencyGroup]:
    """Return a group for each function name, the largest last."""
    by_name: dict[RowName, Histogram] = {}
    why: dict[RowName, dict[int | None, PartSums]] = {}
    for row, times in period.rows.items():
        if times.count:
            name = names[row]
            by_name.setdefault(name, Histogram()).merge(times)
            for bucket, sums in period.why.get(row, {}).items():
                why.setdefault(name, {}).setdefault(bucket, PartSums()).merge(sums)
    size, by_order = _size(choice, cost), choice.order is Order.NAME
    ranked = ordered(
        by_name.items(),
        choice.top,
        lambda item: size(item[1]),
        (lambda item: (item[0].function or "", item[0].program or "")) if by_order else None,
    )
    asked = bool(period.why)
    return [
        LatencyGroup(
            name.function, times, why=why.get(name, {}) if asked else None, program=name.program
        )
        for name, times in ranked
    ]


def _goroutines(
    choice: LatencyChoice,
    names: Sequence[RowName],
    period: Measurement,
    symbols: Symbolizer | None,
    cost: ProbeCost | None,
) -> tuple[list[LatencyGroup], list[FoldedLatency]]:
    """Return a group for each goroutine, the largest first, and the rest."""
    size = _size(choice, cost)
    ranked = sorted(period.goroutines.items(), key=lambda item: size(item[1].times), reverse=True)
    top = ranked[: choice.top or _TOP_GOROUTINES]
    if choice.order is Order.NAME:
        top.sort(key=lambda item: (item[0].pid, item[0].goid))
    groups = [
        LatencyGroup(
            names[key.row].function,
            goroutine.times,
            key.goid,
            _label(key, goroutine, symbols, choice.names_processes),
            key.pid,
            {None: goroutine.why} if goroutine.why.parts else None,
            program=names[key.row].program,
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
                names[row].function,
                others + (folded.goroutines if folded else 0),
                count,
                total,
                folded.unnamed if folded else 0,
                period.rows[row].hits - sum(times.hits for times in shown),
                names[row].program,
            )
        )
    return groups, rests


def _label(
    key: GoroutineKey, goroutine: GoroutineTimes, symbols: Symbolizer | None, names_process: bool
) -> str:
    """Describe a goroutine as a stack dump does, with what could be read of its beginning."""
    process = f"process {key.pid}" if key.pid else "process of another pid namespace"
    if key.goid == 0:
        return f"no goroutine [{process}]"
    known = []
    if symbols is not None:
        start = symbols.started(key.tgid, goroutine.startpc)
        created = symbols.line_before(key.tgid, goroutine.gopc)
        known = [text for text in (start, created and f"created at {created}") if text]
    name = f"goroutine {key.goid}"
    if names_process:
        name += f" of {process}" if key.pid else f" of a {process}"
    return name + (f" [{', '.join(known)}]" if known else "")
