# SPDX-License-Identifier: Apache-2.0
"""Which of a goroutine's calls were made within which, as their records come: inner ones first.

A call that was made within another one is kept until the outermost has ended, so that what is known
of each is known of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["MAX_BYTES", "PATIENCE", "Call", "Goroutine", "Nesting", "Origin", "Tree"]

#: Seconds that a call is kept at most, and the bytes of records that are kept at a time.
PATIENCE = 30.0
MAX_BYTES = 4 << 20

T = TypeVar("T")
#: Of which process, and its number.
Goroutine = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Origin:
    """The go statement that a goroutine comes from; times in ns by the clock of the calls.

    ``goroutine`` executed it, ``at``, within calls of which the outermost began at ``since``.
    ``has_waited``: before the call whose origin this is, the goroutine has waited for work last.
    """

    goroutine: Goroutine
    at: int
    since: int
    has_waited: bool = False


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call that has ended; times in ns by one clock, ``size`` in bytes.

    ``is_nested``: another call of the goroutine was open when it began. ``starts``: goroutines were
    started within it. ``origin`` is what its goroutine comes from, where the call is an outermost
    one and that is known.
    """

    goroutine: Goroutine
    start: int
    end: int
    is_nested: bool
    item: T
    size: int = 0
    starts: bool = False
    origin: Origin | None = None


#: An outermost call and those within it, outer ones before inner ones. With each is the number in
#: the tree of the call that it was made within, None for the first.
Tree = list[tuple[Call[T], int | None]]


@dataclass
class _Kept(Generic[T]):
    """Calls of one goroutine, the first of them since a time in seconds."""

    since: float
    calls: list[Call[T]] = field(default_factory=list)


@dataclass
class Nesting(Generic[T]):
    """Calls that wait for those they were made within; ``size`` is the bytes of their records."""

    size: int = 0
    _kept: OrderedDict[Goroutine, _Kept[T]] = field(default_factory=OrderedDict)

    def add(self, call: Call[T], now: float) -> Iterator[Tree[T]]:
        """Take a call, and yield those of which all is known; ``now`` is in seconds."""
        if call.is_nested:
            kept = self._kept.setdefault(call.goroutine, _Kept(now))
            kept.calls.append(call)
            self.size += call.size
        else:
            yield from _trees([*self._take(call.goroutine), call])
        while self._kept and self.size > MAX_BYTES:
            yield from _trees(self._take(next(iter(self._kept))))

    def overdue(self, now: float) -> Iterator[Tree[T]]:
        """Yield likewise what has been kept for too long."""
        while self._kept and now - next(iter(self._kept.values())).since > PATIENCE:
            yield from _trees(self._take(next(iter(self._kept))))

    def rest(self) -> Iterator[Tree[T]]:
        """Yield likewise all that is kept."""
        while self._kept:
            yield from _trees(self._take(next(iter(self._kept))))

    def _take(self, key: Goroutine) -> list[Call[T]]:
        kept = self._kept.pop(key, None)
        if kept is None:
            return []
        self.size -= sum(call.size for call in kept.calls)
        return kept.calls


def _trees(calls: list[Call[T]]) -> Iterator[Tree[T]]:
    """Yield calls of one goroutine by the outermost one. One stack: intervals never cross."""
    tree: Tree[T] = []
    open_calls: list[tuple[int, int]] = []  # end and number of those that the next may be within
    for call in sorted(calls, key=lambda one: (one.start, -one.end)):
        while open_calls and open_calls[-1][0] < call.end:
            open_calls.pop()
        if not open_calls and tree:
            yield tree
            tree = []
        parent = open_calls[-1][1] if open_calls else None
        open_calls.append((call.end, len(tree)))
        tree.append((call, parent))
    if tree:
        yield tree
