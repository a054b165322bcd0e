# SPDX-License-Identifier: Apache-2.0
"""The order of rows: by their numbers, the largest last as bcc has it, or by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gotrace.histogram import Histogram, ValueHistogram

_T = TypeVar("_T")


class Order(Enum):
    """The order of rows; the values are those of ``--sort``."""

    COUNT = "count"
    TOTAL = "total"
    P99 = "p99"
    NAME = "name"


class Shown(list[_T]):
    """The rows of a table, and ``rest``, those that are left out of it."""

    rest: Sequence[_T] = ()


def ordered(
    rows: Iterable[_T],
    top: int | None,
    size: Callable[[_T], Any],
    name: Callable[[_T], Any] | None = None,
) -> Shown[_T]:
    """Return the ``top`` largest rows, the largest last; by ``name`` if that is given."""
    ranked = sorted(rows, key=size)
    shown = last(ranked, top)
    if name is not None:
        shown.sort(key=name)
    return shown


def last(rows: Sequence[_T], top: int | None) -> Shown[_T]:
    """Return the ``top`` last rows."""
    shown = Shown(rows[-top:] if top else rows)
    shown.rest = rows[: len(rows) - len(shown)]
    return shown


def and_more(rows: Sequence[_T], size: Callable[[_T], int], of: str = "") -> str:
    """Return a line for rows that are left out, "" if there are none.

    It has the part that they have ``of`` the sum of sizes.
    """
    rest = rows.rest if isinstance(rows, Shown) else ()
    left = sum(map(size, rest))
    share = share_text(left, left + sum(map(size, rows)))
    return f"and {len(rest):,} more, {share}{of}\n" if rest else ""


def size_by(order: Order | None, usual: Order) -> Callable[[Histogram | ValueHistogram], int]:
    """Return a function that sizes histograms for an order; ``NAME`` gives the ``usual`` sizes."""
    chosen = usual if order in (None, Order.NAME) else order
    if chosen is Order.P99:
        return lambda values: values.percentile(0.99)
    return lambda values: values.sum if chosen is Order.TOTAL else values.count


def share_of(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def share_text(part: int, whole: int) -> str:
    """Return the share that a part has of a whole, as ``12.3%``."""
    return f"{share_of(part, whole):.1%}"


def rate_of(count: int, seconds: float) -> float:
    """Return how many there are a second."""
    return round(count / seconds, 3) if seconds > 0 else 0.0
