# SPDX-License-Identifier: Apache-2.0
"""Calls of requests wait here until all of their request are known."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from gotrace.records import dataclass, field
from gotrace.requests.belonging import Span, Work

#: Seconds that a request waits after its root's end, since a timer may still begin work for it, and
#: how long it waits if somebody works for it.
LINGER = 0.5
PATIENCE = 10.0

C = TypeVar("C")


@dataclass(slots=True, eq=False)
class Waiting(Generic[C]):
    """A request whose calls wait, the first of them ``since`` a time; ``ended``: when its root has.

    Its calls are by the span that they were begun in.
    """

    work: Work
    since: float = 0.0
    calls: dict[Span, list[C]] = field(default_factory=dict)
    size: int = 0
    root: C | None = None
    ended: float | None = None


class WaitingRoom(Generic[C]):
    """Requests that wait, in the order in which they began to, and the ``size`` of their calls."""

    def __init__(self, given: float = LINGER) -> None:
        """``given`` is how long one waits if a context has said whose some of its calls are."""
        self._given = given
        self.by_work: OrderedDict[Work, Waiting[C]] = OrderedDict()
        self.size = 0
        #: In the order of their ends.
        self._ended: deque[Waiting[C]] = deque()
        #: Those that have waited for ``LINGER``.
        self._late: list[Waiting[C]] = []

    @property
    def is_empty(self) -> bool:
        return not (self.by_work or self._ended or self._late or self.size)

    @property
    def ended(self) -> Iterator[Waiting[C]]:
        """Yield the requests whose roots have ended, the latest last."""
        for one in (*self._late, *self._ended):
            if self.by_work.get(one.work) is one:
                yield one

    @property
    def oldest(self) -> Waiting[C]:
        """Return the one that is given out first if there is no room; there is one."""
        for one in (*self._ended, *self._late):
            if self.by_work.get(one.work) is one:
                return one
        return next(iter(self.by_work.values()))

    def add(self, one: Waiting[C], span: Span, call: C, size: int = 1) -> None:
        """Add a call to a request that waits."""
        one.calls.setdefault(span, []).append(call)
        one.size += size
        self.size += size

    def end(self, one: Waiting[C], now: float) -> None:
        """Note that a request's root has ended, in seconds of the clock, if it has not before."""
        if one.ended is None:
            one.ended = now
            self._ended.append(one)

    def put_back(self, one: Waiting[C]) -> None:
        """Put a removed request back, as one that has ended: the first of all."""
        self.by_work[one.work] = one
        self.by_work.move_to_end(one.work, last=False)
        self.size += one.size
        self._late.append(one)

    def remove(self, one: Waiting[C]) -> None:
        del self.by_work[one.work]
        self.size -= one.size

    def clear(self) -> None:
        self.by_work.clear()
        self._ended.clear()
        self._late.clear()
        self.size = 0

    def patience(self, one: Waiting[C]) -> float:
        """Return how long a request waits after its root's end, in seconds."""
        if one.work.is_busy:
            return PATIENCE
        return self._given if any(span.context is not None for span in one.calls) else LINGER

    def due(self, now: float, is_over: bool = False) -> Iterator[Waiting[C]]:
        """Yield requests that need not wait any longer, to be removed; all if it ``is_over``."""
        looked, self._late = deque(self._late), []
        while self._ended and (is_over or now - (self._ended[0].ended or 0.0) >= LINGER):
            looked.append(self._ended.popleft())
        try:
            while looked:
                one = looked.popleft()
                if self.by_work.get(one.work) is not one:
                    continue
                if is_over or now - (one.ended or 0.0) >= self.patience(one):
                    yield one
                else:
                    self._late.append(one)
        finally:
            self._late += looked
