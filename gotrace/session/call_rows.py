# SPDX-License-Identifier: Apache-2.0
"""Rows of calls that are counted, and of their values, as recordings have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from gotrace.histogram import MARKS, Histogram, ValueHistogram
from gotrace.session.order import Order, ordered, rate_of, share_of

if TYPE_CHECKING:
    from gotrace.results.rows import Json, Row
    from gotrace.session.keys import KeyRow
    from gotrace.session.plan import CountedFunction, InlinedPlaces, ProbePlan
    from gotrace.session.row_cells import RowBy


def histogram_fields(values: Histogram | ValueHistogram, unit: str = "") -> dict[str, object]:
    """Return a histogram's fields in JSON; ``unit`` is put after the names of values, ``_ns``."""
    numbers = {"sum": values.sum, "min": values.minimum, "max": values.maximum}
    numbers |= {mark: values.percentile(fraction) for mark, fraction in MARKS.items()}
    return {
        "count": values.count,
        **{name + unit: number for name, number in numbers.items()},
        "buckets": [list(bounds) for bounds in values.ranges()],
    }


def program_field(program: str | None) -> dict[str, object]:
    """Return a program's field in JSON: none if only one is traced."""
    return {} if program is None else {"program": program}


def count_rows(
    found: Iterable[tuple[str | None, str | None, int, RowBy | None]],
    when: tuple[float, float],
    top: int | None = None,
    order: Order | None = None,
    rates: bool = False,
    more: Iterable[Mapping[str, object]] | None = None,
) -> Sequence[Row]:
    """Return the ``top`` largest rows of an interval, the largest last.

    ``found`` are programs, if there are several, functions, their calls, and the values that calls
    are grouped by, if they are. ``rates``: a row has its calls a second. ``more`` are further
    fields of each row. For ``when`` see ``value_row``.
    """
    ended, seconds = when
    rows: list[Row] = [
        {
            "kind": "count",
            "func": name,
            **({} if by is None else {"by": by}),
            "count": count,
            "share": 0.0,
            **({"rate": rate_of(count, seconds)} if rates else {}),
            "ts": round(ended, 6),
            "interval_s": round(seconds, 6),
            **program_field(program),
            **fields,
        }
        for (program, name, count, by), fields in zip(found, more or repeat({}), strict=False)
    ]
    total = sum(row["count"] for row in rows)
    for row in rows:
        row["share"] = share_of(row["count"], total)

    def name(row: Json) -> tuple[str, int, str, str]:
        by = row.get("by") or (row.get("caller"), row.get("at"))
        file, _, line = (row["func"] or "").rpartition(".go:")
        of = (file, int(line)) if line.isdecimal() else (row["func"] or "", 0)
        return *of, row.get("program") or "", repr(by)

    by_name = name if order is Order.NAME else None
    return ordered(rows, top, lambda row: (row["count"], *name(row)), by_name)


def inlined_rows(
    counts: Mapping[CountedFunction, int],
    places: Mapping[CountedFunction, InlinedPlaces],
    when: tuple[float, float],
    top: int | None = None,
    order: Order | None = None,
    rates: bool = False,
) -> Sequence[Row]:
    """Return as ``count_rows`` does of functions, some of which are inlined in ``places``."""
    found = [(one.program, one.name, count, None) for one, count in counts.items()]
    more = [{**_at(one), **_places(places.get(one))} for one in counts]
    return count_rows(found, when, top, order, rates, more)


def key_places(plan: ProbePlan, rows: Iterable[KeyRow]) -> list[Mapping[str, object]]:
    """Return for each row in how many places its function is inlined, as further fields."""
    found = plan.whole.places.items() if plan.whole else ()
    of_names = {(one.program, one.name): places for one, places in found}
    names = [(one.program, one.name) for one in plan.names]
    return [
        {} if row.function is None else _places(of_names.get(names[row.function])) for row in rows
    ]


def _at(function: CountedFunction) -> dict[str, object]:
    at = function.at
    return {} if at is None else {"caller": at.caller, "at": at.position}


def _places(inlined: InlinedPlaces | None) -> dict[str, object]:
    if inlined is None:
        return {}
    return {"places": inlined.all, "uncounted_places": inlined.uncounted}


def value_row(
    name: tuple[str | None, str | None],
    values: ValueHistogram,
    of: tuple[str, str | None],
    by: RowBy | None,
    when: tuple[float, float],
) -> Row:
    """Return the row of the values of some calls.

    ``by`` are the values that calls are grouped by, None if they are not grouped.
    ``name`` is the calls' program, if there are several, and their function, if they are of one.
    ``of`` is the expression of the values, and their unit, ``ns`` or ``bytes``, None of plain
    numbers; ``when`` the interval's end (s since 1970) and length (s).
    """
    ended, seconds = when
    return {
        "kind": "histogram",
        "func": name[1],
        "of": of[0],
        "unit": of[1],
        **({} if by is None else {"by": by}),
        **histogram_fields(values),
        "unknown": values.unknown,
        "ts": round(ended, 6),
        "interval_s": round(seconds, 6),
        **program_field(name[0]),
    }
