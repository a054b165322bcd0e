# SPDX-License-Identifier: Apache-2.0
"""Turn a period's measurements into rows: names, the busiest first, the rest in sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gotrace.histogram import Histogram, ValueHistogram
from gotrace.overhead import ProbeCost, RunCost
from gotrace.records import dataclass, field
from gotrace.session.call_rows import histogram_fields, program_field
from gotrace.session.goroutines import GoroutineKey, GoroutineTimes
from gotrace.session.latency import Measurement
from gotrace.session.order import Order, ordered, rate_of, share_of, size_by
from gotrace.session.plan import ProbePlan
from gotrace.session.symbols import Symbolizer
from gotrace.session.why.parts import PartSums
from gotrace.session.why.sums import BucketParts, sums_fields
from gotrace.target.target import TargetBinary

if TYPE_CHECKING:
    from gotrace.results.rows import Json, Row
    from gotrace.session.keys import KeyRow
    from gotrace.session.row_cells import RowBy
    from gotrace.values.model import Value


@dataclass(frozen=True, slots=True)
class LatencyGroup:
    """One histogram and its subject.

    ``function`` is None when all functions of a run are measured together; ``goroutine`` is
    None, or describes the goroutine as a stack dump would, its number in ``goid`` and that of its
    process in ``pid`` (0 where it has none here). ``why`` is what the times went into, None where
    that was not asked for. ``by``: it is of the calls that have
    these values, by expression, or of all that found no room, if it is empty. ``program`` is the
    name of the program of which the calls are, None where only one is traced. ``cost`` is that of
    the probes, None where it is not known. ``own`` is the calls' own time in ns, None if it is not
    kept.
    """

    function: str | None
    times: Histogram
    goid: int | None = None
    goroutine: str | None = None
    pid: int = 0
    why: BucketParts | None = None
    by: Mapping[str, Value] | None = None
    program: str | None = None
    cost: ProbeCost | None = None
    own: int | None = None

    @property
    def probe_ns(self) -> int | None:
        """Return the probes' own part of the times, in ns."""
        times = self.times
        return self.cost.within(times.sum, times.count, times.hits) if self.cost else None


def _in_common(ways: Mapping[str, str]) -> str:
    """Return where the calls of all functions were seen returning; see `Interval`."""
    found = set(ways.values())
    return found.pop() if len(found) == 1 else "both" if found else "ret"


@dataclass(frozen=True, slots=True)
class Interval:
    """The contents of one printing: when it ended (s since 1970), its length (s), its unit (ns).

    ``short``: see ``shown_names``. ``ways`` says of functions, by name, where their calls were seen
    returning. ``total`` is the
    time of all calls (ns), those of groups that are not shown as well. ``rates``: groups have their
    calls a second.
    """

    groups: Sequence[LatencyGroup]
    rest: Sequence[Json]
    ended: float
    seconds: float
    unit: int
    short: bool = False
    ways: Mapping[str, str] = field(default_factory=dict)
    total: int = 0
    rates: bool = False

    def way(self, function: str | None) -> str:
        """Return where calls of a function, or of all if it is None, were seen returning."""
        return _in_common(self.ways) if function is None else self.ways.get(function, "ret")

    def rows(self) -> Iterator[Json]:
        """Yield a row for each group, and those of the rest."""
        for group in self.groups:
            yield _row(group, self)
        yield from self.rest


def _row(group: LatencyGroup, interval: Interval) -> Row:
    times, cost = group.times, group.probe_ns
    fields: Row = {"kind": "histogram", "func": group.function}
    if group.goid is not None:
        fields |= {"pid": group.pid, "goid": group.goid, "goroutine": group.goroutine}
    if group.by is not None:
        from gotrace.session.row_cells import RowBy

        fields["by"] = RowBy(group.by).to_json()
    return fields | {
        **histogram_fields(times, "_ns"),
        "share": share_of(times.sum, interval.total),
        **({} if group.own is None else {"own_ns": group.own}),
        **({"rate": rate_of(times.count, interval.seconds)} if interval.rates else {}),
        "ts": round(interval.ended, 6),
        "interval_s": round(interval.seconds, 6),
        "returns": interval.way(group.function),
        "probe_hits": times.hits,
        "probe_ns": cost,
        **({} if group.why is None else {"why": sums_fields(group.why, times, cost)}),
        **program_field(group.program),
    }


_TOP_GOROUTINES = 10

#: The cost of the probes of a row's calls, None if that is not known.
_CostOf = Callable[[int], ProbeCost | None]


@dataclass(frozen=True, slots=True)
class LatencyChoice:
    """The choice of groups to show of a period.

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
    cost: RunCost | None,
    files: Sequence[TargetBinary] = (),
    ways: Mapping[str, str] | None = None,
) -> Interval:
    """Return the groups to show of a period; ``when`` is its end, length and display unit.

    The busiest are those with the most time of their own, without what the probes' ``cost``, which
    is None if that is not known.
    ``files`` are those whose rows are kept apart where functions are not; for ``ways`` see
    `Interval`.
    """
    ended, seconds, unit = when
    names = row_names(plan, files, choice.by_function)

    def cost_of(row: int) -> ProbeCost | None:
        return cost.of(row if choice.by_function else None) if cost else None

    groups, rest = (
        _goroutines(choice, names, period, symbols, cost_of, (ended, seconds))
        if choice.by_goroutine
        else (_functions(choice, names, period, cost_of), [])
    )
    total = sum(times.sum for times in period.rows.values())
    shown = groups, rest, ended, seconds, unit, choice.short, ways or {}
    return Interval(*shown, total, choice.rates)


def _size(choice: LatencyChoice, times: Histogram, cost: ProbeCost | None) -> tuple[int, int]:
    """Return the size by which histograms are ordered: usually the time that is their own."""
    if choice.order in (None, Order.TOTAL, Order.NAME):
        return _own_time(times, cost), times.sum
    return size_by(choice.order, Order.TOTAL)(times), times.sum


def _own_time(times: Histogram, cost: ProbeCost | None) -> int:
    """Return the total time of calls without what is the probes' own, as an estimate."""
    tracing = cost.within(times.sum, times.count, times.hits) if cost else 0
    return times.sum - tracing


class RowName(NamedTuple):
    """The subject of a row: a program, if there are several, and a function, if it is of one."""

    program: str | None
    function: str | None


#: Of the calls that found no row.
NO_NAME = RowName(None, None)


#: The names of functions, by number.
_Names = Sequence[tuple[str | None, str | None]]


def key_groups(
    names: _Names, texts: Sequence[str], rows: Iterable[KeyRow], cost: RunCost | None
) -> list[LatencyGroup]:
    """Return a group for each row of calls that are added up by expressions, or by functions."""
    return [
        LatencyGroup(
            name,
            row.times,
            why=row.why,
            by=row.by(texts) or {},
            program=program,
            cost=cost.of(row.function) if cost else None,
            own=row.own,
        )
        for row in rows
        for program, name in [NO_NAME if row.function is None else names[row.function]]
        if row.times is not None
    ]


def key_counts(
    names: _Names, texts: Sequence[str], rows: Iterable[KeyRow]
) -> Iterator[tuple[str | None, str | None, int, RowBy]]:
    """Yield for each row what ``count_rows`` makes one of."""
    from gotrace.session.row_cells import RowBy

    for row in rows:
        program, name = NO_NAME if row.function is None else names[row.function]
        yield program, name, row.calls, RowBy(row.by(texts) or {})


#: The name of calls, their values, and what they are grouped by.
ValueGroup = tuple[tuple[str | None, str | None], ValueHistogram, "RowBy | None"]


def key_values(names: _Names, texts: Sequence[str], rows: Iterable[KeyRow]) -> list[ValueGroup]:
    """Return a histogram of values for each row; without expressions one for each name."""
    from gotrace.session.row_cells import RowBy

    groups: dict[object, ValueGroup] = {}
    for number, row in enumerate(rows):
        assert row.measured is not None
        name = NO_NAME if row.function is None else names[row.function]
        by = RowBy(row.by(texts) or {}) if texts else None
        same: object = number if texts else name
        if same in groups:
            groups[same][1].merge(row.measured)
        else:
            groups[same] = name, row.measured, by
    return list(groups.values())


def row_names(
    plan: ProbePlan, files: Sequence[TargetBinary], by_function: bool
) -> Sequence[RowName]:
    """Return the subjects of rows, by number; ``files`` have rows if functions have none."""
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
    cost_of: _CostOf,
) -> list[LatencyGroup]:
    """Return a group for each function name, the largest last."""
    groups: dict[RowName, LatencyGroup] = {}
    why: dict[RowName, dict[int | None, PartSums]] = {}
    asked = bool(period.why)
    for row, times in period.rows.items():
        if times.count:
            name = names[row]
            parts = why.setdefault(name, {})
            if name not in groups:
                groups[name] = LatencyGroup(
                    name.function,
                    Histogram(),
                    why=parts if asked else None,
                    program=name.program,
                    cost=cost_of(row),
                )
            groups[name].times.merge(times)
            for bucket, sums in period.why.get(row, {}).items():
                parts.setdefault(bucket, PartSums()).merge(sums)
    return ordered(
        groups.values(),
        choice.top,
        lambda group: _size(choice, group.times, group.cost),
        _name_of if choice.order is Order.NAME else None,
    )


def _name_of(group: LatencyGroup) -> tuple[str, str]:
    return group.function or "", group.program or ""


def _goroutines(
    choice: LatencyChoice,
    names: Sequence[RowName],
    period: Measurement,
    symbols: Symbolizer | None,
    cost_of: _CostOf,
    when: tuple[float, float],
) -> tuple[list[LatencyGroup], list[Row]]:
    """Return a group for each goroutine, the largest first, and rows of the rest in sum.

    ``unnamed`` of the calls are of goroutines that there was no room to keep apart.
    """
    ranked = sorted(
        period.goroutines.items(),
        key=lambda item: _size(choice, item[1].times, cost_of(item[0].row)),
        reverse=True,
    )
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
            cost=cost_of(key.row),
        )
        for key, goroutine in top
    ]
    rests: list[Row] = []
    for row in sorted(period.rows):
        shown = [goroutine.times for key, goroutine in top if key.row == row]
        count = period.rows[row].count - sum(times.count for times in shown)
        if count <= 0:
            continue
        total = period.rows[row].sum - sum(times.sum for times in shown)
        folded = period.rest.get(row)
        others = sum(key.row == row for key, _ in ranked[len(top) :])
        cost, hits = cost_of(row), period.rows[row].hits - sum(times.hits for times in shown)
        rests.append(
            {
                "kind": "rest",
                "func": names[row].function,
                "goroutines": others + (folded.goroutines if folded else 0),
                "count": count,
                "sum_ns": total,
                "unnamed": folded.unnamed if folded else 0,
                "ts": round(when[0], 6),
                "interval_s": round(when[1], 6),
                "probe_hits": hits,
                "probe_ns": cost.within(total, count, hits) if cost else None,
                **program_field(names[row].program),
            }
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
