# SPDX-License-Identifier: Apache-2.0
"""Which of a goroutine's calls were made within which, as their records come: inner ones first.

A call that was made within another one is kept until the outermost has ended, so that what is known
of each is known of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from gotrace.records import dataclass, field

__all__ = ["MAX_BYTES", "PATIENCE", "Call", "Nesting"]

#: Seconds that a call is kept at most, and the bytes of records that are kept at a time.
PATIENCE = 30.0
MAX_BYTES = 4 << 20

T = TypeVar("T")
#: A goroutine: of which process, and its number.
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call that has ended; times in ns by one clock, ``size`` in bytes.

    ``is_nested``: another call of the goroutine was open when it began.
    """

    start: int
    end: int
    is_nested: bool
    item: T
    size: int = 0


@dataclass
class _Kept(Generic[T]):
    """Calls of one goroutine, the first of them since a time in seconds."""

    since: float
    calls: list[Call[T]] = field(default_factory=list)


@dataclass
class Nesting(Generic[T]):
    """Calls that wait for those they were made within."""

    _kept: OrderedDict[_Key, _Kept[T]] = field(default_factory=OrderedDict)
    _size: int = 0

    def add(self, key: _Key, call: Call[T], now: float) -> Iterator[list[tuple[T, int | None]]]:
        """Take a call, and yield calls of which all is known: each list is one outermost call.

        With each is the number in the list of the call that it was made within, None for the first.
        Outer ones come before inner ones. ``now`` is in seconds.
        """
        if call.is_nested:
            kept = self._kept.setdefault(key, _Kept(now))
            kept.calls.append(call)
            self._size += call.size
        else:
            yield from _trees([*self._take(key), call])
        while self._kept and self._size > MAX_BYTES:
            yield from _trees(self._take(next(iter(self._kept))))

    def overdue(self, now: float) -> Iterator[list[tuple[T, int | None]]]:
        """Yield likewise what has been kept for too long."""
        while self._kept and now - next(iter(self._kept.values())).since > PATIENCE:
            yield from _trees(self._take(next(iter(self._kept))))

    def rest(self) -> Iterator[list[tuple[T, int | None]]]:
        """Yield likewise all that is kept."""
        while self._kept:
            yield from _trees(self._take(next(iter(self._kept))))

    def _take(self, key: _Key) -> list[Call[T]]:
        kept = self._kept.pop(key, None)
        if kept is None:
            return []
        self._size -= sum(call.size for call in kept.calls)
        return kept.calls


def _trees(calls: list[Call[T]]) -> Iterator[list[tuple[T, int | None]]]:
    """Yield calls of one goroutine by the outermost one. One stack: intervals never cross."""
    tree: list[tuple[T, int | None]] = []
    open_calls: list[tuple[int, int]] = []  # end and number of those that the next may be within
    for call in sorted(calls, key=lambda one: (one.start, -one.end)):
        while open_calls and open_calls[-1][0] < call.end:
            open_calls.pop()
        if not open_calls and tree:
            yield tree
            tree = []
        parent = open_calls[-1][1] if open_calls else None
        open_calls.append((call.end, len(tree)))
        tree.append((call.item, parent))
    if tree:
        yield tree
