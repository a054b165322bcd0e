# SPDX-License-Identifier: Apache-2.0
"""Which calls were made by goroutines that other calls have started, as their records come.

A goroutine's outermost call and those within it are a tree (``nesting``). Where the goroutine
comes from a go statement within a call of another one, its trees are below that call. They wait
until that has been sent, so that nothing is below what is not: calls that take long, or are never
seen to end, are given up. A goroutine may outlive the call that has started it, so what was sent is
remembered for a while.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

from gotrace.fleet.telemetry import nesting
from gotrace.fleet.telemetry.nesting import Call, Goroutine, Nesting, Origin, Tree

__all__ = ["MAX_REMEMBERED", "MEMORY", "Forest", "LeftOut"]

#: Seconds that a tree is remembered that goroutines were started in, and the calls at most.
MEMORY = 60.0
MAX_REMEMBERED = 1 << 13
_MAX_STALE = 1 << 10

T = TypeVar("T")
P = TypeVar("P")


class LeftOut(Enum):
    """What calls are below that are not sent because that is not."""

    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class _Sent(Generic[P]):
    """A tree that was sent: when its calls began and ended, in which others, and their places.

    Only calls that goroutines were started in, and of these the ones with a place of their own.
    """

    goroutine: Goroutine
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    parents: tuple[int, ...]
    places: tuple[P | LeftOut | None, ...]

    @property
    def has_places(self) -> bool:
        """Return whether anything can be below its calls."""
        return any(place is not None and place is not LeftOut.LEFT_OUT for place in self.places)

    @property
    def start(self) -> int:
        return self.starts[0]

    @property
    def end(self) -> int:
        return self.ends[0]

    def _open_at(self, moment: int) -> int:
        """Return the row of the innermost call that was open at a moment within the tree."""
        row = bisect_right(self.starts, moment) - 1
        while row > 0 and self.ends[row] < moment:
            row = self.parents[row]
        return row

    def above(self, call: Call[Any], origin: Origin) -> P | LeftOut | None:
        """Return the place that an outermost call of a goroutine is below which was started here.

        None for work that the goroutine has waited for after the call that started it had ended.
        """
        row = self._open_at(origin.at)
        if origin.has_waited and self.ends[row] < call.start:
            return None
        return self.places[row]


def _sent(tree: Tree[T], places: Sequence[P | LeftOut | None]) -> _Sent[P]:
    rows: list[tuple[int, int, int, P | LeftOut | None]] = []
    numbers: list[int] = []  # of each call, or of the one around it that has its place
    for (call, parent), place in zip(tree, places, strict=True):
        above = 0 if parent is None else numbers[parent]
        if rows and (not call.starts or rows[above][3] is place):
            numbers.append(above)
            continue
        numbers.append(len(rows))
        rows.append((call.start, call.end, above, place))
    starts, ends, parents, kept = zip(*rows, strict=True)
    return _Sent(tree[0][0].goroutine, starts, ends, parents, kept)


@dataclass
class _Memory(Generic[P]):
    """Trees that were sent, for a while, at most ``MAX_REMEMBERED`` calls of them."""

    _trees: dict[Goroutine, list[_Sent[P]]] = field(default_factory=dict)  # by their start
    _order: deque[tuple[float, _Sent[P]]] = field(default_factory=deque)
    _calls: int = 0

    def add(self, tree: _Sent[P], now: float) -> None:
        insort(self._trees.setdefault(tree.goroutine, []), tree, key=attrgetter("start"))
        self._order.append((now, tree))
        self._calls += len(tree.starts)
        while self._calls > MAX_REMEMBERED:
            self._forget()

    def find(self, goroutine: Goroutine, moment: int) -> _Sent[P] | None:
        """Return the tree of a goroutine that it was in at a moment, None where none is known."""
        trees = self._trees.get(goroutine, [])
        row = bisect_right(trees, moment, key=attrgetter("start")) - 1
        return trees[row] if row >= 0 and moment <= trees[row].end else None

    def expire(self, now: float) -> None:
        """Forget what was sent long ago."""
        while self._order and now - self._order[0][0] > MEMORY:
            self._forget()

    def _forget(self) -> None:
        _, tree = self._order.popleft()
        self._calls -= len(tree.starts)
        trees = self._trees[tree.goroutine]
        del trees[next(row for row, one in enumerate(trees) if one is tree)]
        if not trees:
            del self._trees[tree.goroutine]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    """A tree that waits for that of another goroutine."""

    origin: Origin
    tree: Tree[T]
    size: int


class Forest(Generic[T, P]):
    """Calls that wait for those they are below; ``send`` is called with all of them, in trees.

    It is given a tree and the place that its outermost call is below: what ``send`` has returned
    for the call there, None where that is not known or there is none. It returns the place of each
    call, which says what is to be below that. Places are compared by identity.
    """

    def __init__(
        self,
        send: Callable[[Tree[T], P | LeftOut | None], Sequence[P | LeftOut | None]],
    ) -> None:
        self._send = send
        self._nesting: Nesting[T] = Nesting()
        #: By the goroutine that started theirs, in the order of the go statements.
        self._waiting: dict[Goroutine, list[_Waiting[T]]] = {}
        #: A heap: when outermost calls began that some wait for, or have waited for.
        self._oldest: list[tuple[int, Goroutine]] = []
        self._trees = 0
        self._size = 0
        # Apart: whatever number of calls is left out, what was sent is remembered.
        self._sent: _Memory[P] = _Memory()
        self._unsent: _Memory[P] = _Memory()

    def add(self, call: Call[T], now: float) -> None:
        """Take a call that has ended, and send those of which all is known; ``now`` in seconds."""
        for tree in self._nesting.add(call, now):
            self._take(tree, now)
        while self._oldest and self._nesting.size + self._size > nesting.MAX_BYTES:
            self._give_up(now)

    def overdue(self, now: float) -> None:
        """Send what has waited for too long."""
        for tree in self._nesting.overdue(now):
            self._take(tree, now)
        while self._oldest and _is_overdue(self._oldest[0][0], now):
            self._give_up(now)
        self._sent.expire(now)
        self._unsent.expire(now)

    def rest(self, now: float) -> None:
        """Send all that waits."""
        for tree in self._nesting.rest():
            self._take(tree, now)
        while self._oldest:
            self._give_up(now)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not (self._trees or self._size or self._waiting or self._nesting.size)

    def _take(self, tree: Tree[T], now: float) -> None:
        origin = tree[0][0].origin
        if origin is None:
            self._place(tree, None, now)
            return
        for memory in (self._sent, self._unsent):
            if (found := memory.find(origin.goroutine, origin.at)) is not None:
                self._place(tree, found.above(tree[0][0], origin), now)
                return
        if _is_overdue(origin.since, now):
            self._place(tree, None, now)
        else:
            self._wait(_Waiting(origin, tree, sum(call.size for call, _ in tree)))

    def _wait(self, waiting: _Waiting[T]) -> None:
        origin = waiting.origin
        others = self._waiting.setdefault(origin.goroutine, [])
        first = bisect_left(others, origin.since, key=_moment)
        if first == len(others) or others[first].origin.since != origin.since:
            heapq.heappush(self._oldest, (origin.since, origin.goroutine))
        insort(others, waiting, key=_moment)
        self._trees += 1
        self._size += waiting.size
        if len(self._oldest) > 2 * self._trees + _MAX_STALE:
            groups = {
                (one.origin.since, key) for key, all_ in self._waiting.items() for one in all_
            }
            self._oldest = sorted(groups)

    def _give_up(self, now: float) -> None:
        """Send by themselves the trees that wait for the call that has taken longest."""
        since, goroutine = heapq.heappop(self._oldest)
        others = self._waiting.get(goroutine, [])
        first = last = bisect_left(others, since, key=_moment)
        while last < len(others) and others[last].origin.since == since:
            last += 1
        for waiting in self._cut(goroutine, first, last):
            self._place(waiting.tree, None, now)

    def _cut(self, goroutine: Goroutine, first: int, last: int) -> list[_Waiting[T]]:
        """Take trees that wait for a goroutine's from where they are kept."""
        others = self._waiting.get(goroutine, [])
        found = others[first:last]
        del others[first:last]
        if not others:
            self._waiting.pop(goroutine, None)
        self._trees -= len(found)
        self._size -= sum(one.size for one in found)
        return found

    def _place(self, tree: Tree[T], above: P | LeftOut | None, now: float) -> None:
        """Send a tree, then those that have waited for it, and so on."""
        ready: deque[tuple[Tree[T], P | LeftOut | None]] = deque([(tree, above)])
        while ready:
            tree, above = ready.popleft()
            places = self._send(tree, above)
            if not tree[0][0].starts:
                continue
            sent = _sent(tree, places)
            (self._sent if sent.has_places else self._unsent).add(sent, now)
            waiting = self._waiting.get(sent.goroutine, [])
            first = bisect_left(waiting, sent.start, key=_moment)
            last = bisect_right(waiting, sent.end, key=_moment)
            for one in self._cut(sent.goroutine, first, last):
                ready.append((one.tree, sent.above(one.tree[0][0], one.origin)))


def _moment(waiting: _Waiting[T]) -> int:
    return waiting.origin.at


def _is_overdue(since: int, now: float) -> bool:
    """Return whether a call that began at ``since`` takes longer than is waited for."""
    return now - since / 1e9 > nesting.PATIENCE
