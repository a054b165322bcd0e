# SPDX-License-Identifier: Apache-2.0
"""Draw the bench's figures as horizontal bars, in SVG written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tests.bench.results import SCHEMA, number

_WIDTH, _LEFT, _RIGHT = 860, 260, 170
_BAR, _GAP, _TITLE = 18, 8, 34
_DWARFS = 30.0
_OURS = ("gofunccount", "gofunclatency", "gotrace")
_COLOURS = {"ours": "#00758f", "peer": "#b9b9b9", "floor": "#e3c878"}

#: Cases drawn, in this order, where they were measured.
_CASES = (
    "cost of counting",
    "cost of measuring latency",
    "cost of tracing two arguments",
    "calls delivered to a file",
)

Row = Mapping[str, Any]


def svg(document: Mapping[str, Any]) -> str:
    """Return a picture of a bench's JSON document: one group of bars a case, each to its own scale.

    Bars start at zero, and one that dwarfs its group is cut off; the thin line on each spans the
    least and the greatest of the rounds.
    Raises ValueError where the document is of another schema or holds nothing to draw.
    """
    if document.get("schema") != SCHEMA:
        raise ValueError(f"this bench draws schema {SCHEMA}, not {document.get('schema')}")
    groups = [(case, rows) for case in _CASES if (rows := list(_rows(document, case)))]
    if not groups:
        raise ValueError("there are no costs and no rates in this document")
    height = sum(_TITLE + (_BAR + _GAP) * len(rows) for _, rows in groups) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    top = 0
    for case, rows in groups:
        lines += _group(case, rows, top)
        top += _TITLE + (_BAR + _GAP) * len(rows)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rows(document: Mapping[str, Any], case: str) -> Iterator[Row]:
    for row in document["measures"]:
        if row["case"] == case and row["values"] and row["contender"] != "bare":
            yield row


def _group(case: str, rows: Sequence[Row], top: int) -> Iterator[str]:
    heading = f"{case} ({rows[0]['unit']})"
    yield f'<text x="12" y="{top + 22}" font-weight="bold">{escape(heading)}</text>'
    longest = _longest([row["high"] for row in rows])
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    for place, row in enumerate(rows):
        yield from _bar(row, top + _TITLE + place * (_BAR + _GAP), longest, scale)


def _longest(values: Sequence[float]) -> float:
    """Return what the group's width stands for: one that dwarfs all others is cut off."""
    *others, longest = sorted(values)
    if others and longest > _DWARFS * others[-1]:
        longest = 1.5 * others[-1]
    return longest if longest > 0 else 1.0


def _bar(row: Row, top: int, longest: float, scale: float) -> Iterator[str]:
    name, middle = row["contender"], top + _BAR - 5
    kind = "floor" if name.startswith("empty") else "ours" if name.startswith(_OURS) else "peer"
    low, median, high = (
        min(max(row[key], 0.0), longest) * scale for key in ("low", "median", "high")
    )
    yield f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>'
    yield (
        f'<rect x="{_LEFT}" y="{top}" width="{median:.1f}" height="{_BAR}"'
        f' fill="{_COLOURS[kind]}"/>'
    )
    across = f'y1="{top + _BAR / 2:g}" y2="{top + _BAR / 2:g}" stroke="#333333"'
    yield f'<line x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" {across}/>'
    end = _LEFT + max(median, high) + 8
    cut = "... " if row["high"] > longest else ""
    yield f'<text x="{end:.1f}" y="{middle}">{cut}{number(row["median"])}</text>'
