# SPDX-License-Identifier: Apache-2.0
"""Results in notebooks and for pandas: tables and frames.

Names come from traced programs: everything is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from typing import Any

from gotrace.errors import GotraceError
from gotrace.text import printable

#: Rows that a notebook shows of a table: frames have all.
_SHOWN = 100
#: Entries of a cell, of stacks and other sequences.
_MAX_ENTRIES = 4


class Table:
    """A result that a notebook shows as a table; a base class."""

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return the names of its columns, and its rows, the largest first."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Return its rows as a DataFrame of pandas. Raises GotraceError if that is not there."""
        names, rows = self.table()
        return frame_of((dict(zip(names, row, strict=True)) for row in rows), names)

    def _repr_html_(self) -> str:
        return html_table(*self.table())


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML, with its first rows."""
    from html import escape

    rest = iter(rows)
    lines = [
        "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) for row in islice(rest, _SHOWN)
    ]
    if more := sum(1 for _ in rest):
        lines.append(f"<td colspan='{len(names)}'>and {more:,} more</td>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple) and len(value) > _MAX_ENTRIES:
        shown = ", ".join(str(one) for one in value[:_MAX_ENTRIES])
        return printable(f"{shown} and {len(value) - _MAX_ENTRIES} more")
    return "" if value is None else printable(str(value))


def frame_of(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> Any:
    """Return rows as a DataFrame of pandas. Raises GotraceError if that is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as missing:
        raise GotraceError(
            f"pandas cannot be imported ({missing}): to_frame() needs it, pip install pandas"
        ) from missing
    return pandas.DataFrame(list(rows), columns=list(columns))
