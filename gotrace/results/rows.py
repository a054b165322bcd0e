# SPDX-License-Identifier: Apache-2.0
"""Fields of results: what their values may be, and how those of several rows are added up.

Rows that another host has written are not believed: ``RowKind.checked`` holds each to its
declaration, and takes what is declared alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gotrace.histogram import bucket_between
from gotrace.records import dataclass

Row = dict[str, Any]
Json = Mapping[str, Any]
#: Whether a value may be that of a field.
Shape = Callable[[Any], bool]
#: How two values of a field become one.
How = Callable[[Any, Any], Any]

#: A number of the kernel, and what any number of hosts may have waited together, in ns.
_MOST_COUNT, _MOST_SUM = (1 << 64) - 1, (1 << 96) - 1
#: Arrays and objects within one another that a value of ``--by`` or a notice may have.
_MAX_DEPTH = 24


def is_count(value: Any) -> bool:
    """Return whether a value is a number that the kernel can have counted."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT


def is_sum(value: Any) -> bool:
    """Return whether a value is a time in ns that several hosts may have, or another sum."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_SUM


def is_signed(value: Any) -> bool:
    """Return whether a value is a sum of values that may be negative."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_SUM


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, not negative: a length or a time."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and 0 <= value <= _MOST_SUM


def is_text(value: Any) -> bool:
    """Return whether a value is text that can be encoded."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_flag(value: Any) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_plain(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether a value is JSON that can be written again, and is not too deep."""
    if isinstance(value, dict):
        inside: Iterable[Any] = (*value, *value.values())
    elif isinstance(value, list):
        inside = value
    else:
        is_finite = not isinstance(value, float) or math.isfinite(value)
        return is_text(value) if isinstance(value, str) else is_finite
    return depth > 0 and all(is_plain(one, depth - 1) for one in inside)


def is_one_of(*values: str) -> Shape:
    """Return the shape of a closed set."""
    return lambda value: isinstance(value, str) and value in values


def maybe(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def each(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def mapped(shape: Shape) -> Shape:
    """Return the shape of objects from any text to a value."""
    return lambda value: (
        isinstance(value, dict) and all(map(is_text, value)) and all(map(shape, value.values()))
    )


def record(required: Mapping[str, Shape], **optional: Shape) -> Shape:
    """Return the shape of objects with these names; others are refused."""

    def is_one(value: Any) -> bool:
        return isinstance(value, dict) and (
            value.keys() >= required.keys()
            and all(
                name in shapes and shapes[name](found)  # whatever their order is
                for name, found in value.items()
            )
        )

    shapes = {**required, **optional}
    return is_one


def are_buckets(value: Any) -> bool:
    """Return whether a value is the buckets of a histogram, ``[low, high, count]``."""
    if not isinstance(value, list):
        return False
    try:
        for low, high, count in value:
            if not (is_signed(low) and is_signed(high) and is_count(count)):
                return False
            bucket_between(*((1 - high, 1 - low) if high <= 0 else (low, high)))
    except (TypeError, ValueError):
        return False
    return True


_is_frame = record(
    {"func": is_text},
    file=maybe(is_text),
    line=maybe(is_count),
    inlined=is_flag,
    arguments=is_plain,
    all_arguments=is_flag,
)
are_frames = each(_is_frame)


def _sum(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else mine + other


def _sums(mine: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: mine.get(name, 0) + other.get(name, 0) for name in {**mine, **other}}


def _least(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else min(mine, other)


def _most(mine: int | None, other: int | None) -> int | None:
    return None if mine is None or other is None else max(mine, other)


def _longest(mine: int | None, other: int | None) -> int | None:
    return max((one for one in (mine, other) if one is not None), default=None)


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a kind of row.

    ``how`` makes one value of two when rows are added up; it is None where rows are alike only if
    their values are. A field that is not ``needed`` may be missing from a row.
    """

    name: str
    shape: Shape
    how: How | None = None
    needed: bool = True


def key(name: str, shape: Shape = is_text, needed: bool = True) -> RowField:
    """Return a field that says what a row is of."""
    return RowField(name, shape, None, needed)


def total(name: str, shape: Shape = is_count, needed: bool = True) -> RowField:
    """Return a field that is added up; a sum with a part that is not known (null) is not known."""
    return RowField(name, shape, _sum, needed)


def summed(name: str, shape: Shape, needed: bool = True) -> RowField:
    """Return a field that is an object of numbers, which are added up by name."""
    return RowField(name, shape, _sums, needed)


def least(name: str, shape: Shape = is_sum, needed: bool = True) -> RowField:
    """Return a field of which the least is kept."""
    return RowField(name, shape, _least, needed)


def most(name: str, shape: Shape = is_sum, needed: bool = True) -> RowField:
    """Return a field of which the greatest is kept, null if one is not known."""
    return RowField(name, shape, _most, needed)


def longest(name: str, shape: Shape) -> RowField:
    """Return a field of which the greatest that is known is kept."""
    return RowField(name, shape, _longest, needed=False)


def checked(fields: Iterable[RowField], row: Json, what: str) -> Row:
    """Return the fields of a row that are declared. Raises ValueError if one is not as declared."""
    found: Row = {}
    for field in fields:
        if field.name not in row:
            if field.needed:
                raise ValueError(f"{what} without {field.name}")
            continue
        value = row[field.name]
        if not field.shape(value):
            text = json.dumps(value)
            raise ValueError(f"{field.name} of {what}: {text[:40]}")
        found[field.name] = value
    return found


def with_kinds(by: Json) -> Json:
    """Return values of calls with errors by their kind, of which a row has an example."""
    return {
        text: {"$type": value.get("$type"), "$error": value["$kind"]}
        if isinstance(value, dict) and "$kind" in value
        else value
        for text, value in by.items()
    }


class Key(NamedTuple):
    """The key of a row: ``name`` in words, and its stack, innermost first, if it has one."""

    name: str
    stack: tuple[str, ...] = ()


def _nothing(row: Json) -> dict[str, Any]:
    return {}


def _never(row: Json) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class RowKind:
    """A kind of rows that a command writes.

    Rows are alike if their ``keys`` are; ``sums`` are added up then. Without ``sums`` each row is
    kept. ``derived`` are the names of what follows from the others, and ``unknown`` of what a sum
    has not.

    ``compared`` are the names of a number and of what is compared in place of it, if there is
    another; ``unit`` is that one's, ``events`` are what the number is of, and ``named`` says what a
    row is of. ``order`` are the names of what rows are ordered by, a ``-`` before them if the
    largest comes first. ``shared`` is the name of what shares are of. ``asked`` returns what all
    recordings have to agree on, and ``keeps_host`` whether rows stay with their hosts.

    A head begins the rows of a reading, of which those of the kind ``begins`` are compared, and
    says how long that is as ``length``; rows that are ``timed`` say it each. Rows follow the one of
    the kind ``below`` that has the same keys. ``filled`` returns fields that a row may leave out.
    Rows that are ``whole`` are all shown, however few are of others.
    """

    name: str
    tool: str
    keys: tuple[RowField, ...]
    sums: tuple[RowField, ...] = ()
    derived: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    unit: str = ""
    events: str = "calls"
    named: Callable[[Json], Key] | None = None
    shared: str = ""
    asked: Callable[[Json], dict[str, Any]] = _nothing
    keeps_host: Callable[[Json], bool] = _never
    begins: str = ""
    below: str = ""
    filled: Callable[[Json], dict[str, Any]] = _nothing
    is_whole: bool = False
    is_timed: bool = False
    length: str = "seconds"

    @property
    def is_head(self) -> bool:
        return self.begins != ""

    @property
    def fields(self) -> tuple[RowField, ...]:
        """Return all fields that are read."""
        return (*self.keys, *self.sums)

    @property
    def is_descending(self) -> bool:
        """Return whether the largest row comes first."""
        return bool(self.order) and self.order[0][0] == "-"

    def checked(self, row: Json) -> Row:
        """Return a row's declared fields. Raises ValueError if it is not as declared."""
        return checked((*self.fields, *self._when), row, self.name)

    @property
    def _when(self) -> tuple[RowField, ...]:
        if self.is_head:
            return (_TS, _needless(self.length))
        return (_needless("ts"), _needless("interval_s")) if self.is_timed else ()

    def weights(self, row: Json) -> tuple[str, ...]:
        """Return the names of what is compared of a row: the own time of a stack, which adds up."""
        return (*self.compared[:-1], "own_ns") if "own_ns" in row else self.compared

    def rank(self, row: Json) -> tuple[Any, ...]:
        """Return where a row comes among others."""
        return tuple(-row[name[1:]] if name[0] == "-" else row.get(name, 0) for name in self.order)


def _needless(name: str) -> RowField:
    return RowField(name, is_number, needed=False)


_TS = RowField("ts", is_number)
