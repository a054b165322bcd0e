# SPDX-License-Identifier: Apache-2.0
"""Calls as traces: which call is below which, by the edges of requests, as their records come.

Each outermost call of a goroutine belongs to a request: to that which its goroutine works for when
it begins, or to one of its own (``requests.belonging``). The calls of a request wait until its
outermost call has ended, and nobody works for it any more, so that no call is below one that is not
sent. Later calls go below those that were sent before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Generic, TypeVar, cast

from gotrace.records import dataclass, field
from gotrace.requests.belonging import SMALL, Belonging, Link, Span, Task, Work
from gotrace.requests.edges import Edge
from gotrace.requests.nest import Nest, wrong_spans
from gotrace.requests.waiting import Waiting, WaitingRoom

#: Seconds that calls wait at most for the one around them, and the bytes of records that wait.
OVERDUE = 30.0
MAX_BYTES = 4 << 20
#: Calls that were sent of requests for which somebody works still.
_MAX_KEPT = 1 << 13

T = TypeVar("T")
P = TypeVar("P")


class LeftOut(Enum):
    """A parent that is not sent: the calls below it are not sent either."""

    LEFT_OUT = "left out"


class Via(Enum):
    """How a call is below another one, or why it is below none; the values are exported."""

    CALL = "call"
    CONTEXT = "context"
    ITEM = "item"
    GO = "go"
    #: Nothing leads to it.
    ROOT = "root"
    #: It may be another request's: it is not known whose.
    UNATTRIBUTED = "unattributed"


#: How a span is below one of the program's own.
PROGRAM = "program"
#: How spans are counted.
EDGES = (*(via.value for via in Via), PROGRAM)

_VIAS = {link: Via(link.value) for link in Link}


@dataclass(slots=True, eq=False)
class _Call(Generic[T, P]):
    """A call that has ended; ``item`` is None once it was sent, and ``place`` is known then.

    ``is_own``: the call was looked up when it began. Else it is within one that was.
    """

    start: int
    end: int
    item: T | None
    size: int
    is_own: bool
    place: P | LeftOut | None = None


@dataclass(slots=True, eq=False)
class _Memory(Generic[T, P]):
    """The sent calls of a request, as far as others may go below them."""

    root: _Call[T, P] | None = None
    calls: dict[Span, list[_Call[T, P]]] = field(default_factory=dict)
    size: int = 0


class Traces(Generic[T, P]):
    """Calls that wait for those they are below; ``send`` is called with each of them.

    It is given what was added, the place that it is below (None for none), and how. It returns the
    place of what is to be below that.
    """

    def __init__(
        self,
        send: Callable[[T, P | LeftOut | None, Via], P | LeftOut | None],
        alone: Via = Via.ROOT,
        unknown: Via = Via.UNATTRIBUTED,
    ) -> None:
        """``alone`` is how calls are called that begin traces since no edge leads to them.

        ``unknown`` is the same of those whose beginning was not reported.
        """
        self._send = send
        self.alone = alone
        self._unknown = unknown
        self._belonging = Belonging(SMALL)
        #: Of a request of which some was sent, its root has "ended" when the next call has come.
        self._room: WaitingRoom[_Call[T, P]] = WaitingRoom()
        #: Of goroutines whose open calls are not known.
        self._strays: dict[Task, Work] = {}
        #: Requests of which more than the root is kept.
        self._kept: OrderedDict[Work, int] = OrderedDict()
        self._kept_size = 0

    @property
    def is_empty(self) -> bool:
        return self._room.is_empty

    @property
    def processes(self) -> set[int]:
        """Return the processes whose goroutines are known."""
        return self._belonging.processes

    def edge(self, edge: Edge) -> None:
        """Take an edge, but for beginnings: the next record in the order of time."""
        self._belonging.add(edge)

    def begin(
        self, edge: Edge, task: Task, function: int, contexts: Sequence[int], is_apart: bool
    ) -> None:
        """Take the beginning of an outermost call of a function, by its number.

        ``contexts`` are those that it was given. It begins a trace of its own if it ``is_apart``.
        """
        self._look_for_long(edge.at)
        self._strays.pop(task, None)
        frame = self._belonging.enter(edge, task, function + 1, contexts, is_apart)
        if frame.span is frame.span.work.root and self.alone is Via.UNATTRIBUTED:
            frame.span.work.is_doubted = not is_apart

    def end(
        self, task: Task, start: int, end: int, is_nested: bool, item: T, size: int, now: float
    ) -> None:
        """Take a call that has ended; ``now`` in seconds.

        It ``is_nested`` if another call of its goroutine was open.
        """
        self._belonging.acts(task, start)
        frame = self._belonging.leave(task, start, end) if start else None
        if frame is None:
            self._stray(task, start, end, is_nested, item, size, now)
            return
        work, is_own = frame.span.work, frame.start == start
        call = _Call[T, P](start, end, item, size, is_own)
        waiting = self._add(frame.span, call, now)
        if is_own and frame.span is work.root:
            waiting.root = call
            self._room.end(waiting, now)
        if work.is_long:
            self._give_out(waiting, is_last=True)
        self._make_room()

    def _make_room(self) -> None:
        while self._room.size > MAX_BYTES:
            self._give_out(self._room.oldest, is_last=True)

    def _add(self, span: Span, call: _Call[T, P], now: float) -> Waiting[_Call[T, P]]:
        work = span.work
        waiting = self._room.by_work.get(work)
        if waiting is None:
            waiting = self._room.by_work[work] = Waiting(work, now)
            if work.memory is not None:
                self._room.end(waiting, now)
        self._room.add(waiting, span, call, call.size)
        return waiting

    def _stray(
        self, task: Task, start: int, end: int, is_nested: bool, item: T, size: int, now: float
    ) -> None:
        """Take a call of a goroutine whose open calls are not known."""
        work = self._strays.get(task)
        if work is None:
            work = Work(task, start)
            work.is_doubted = self._unknown is Via.UNATTRIBUTED
            self._strays[task] = work
        call = _Call[T, P](start, end, item, size, not is_nested)
        waiting = self._add(work.root, call, now)
        if not is_nested:
            self._strays.pop(task, None)
            waiting.root = call
            self._give_out(waiting, is_last=True)

    def turn(self, moment: int) -> None:
        """Send calls that need not wait any longer.

        All records up to the moment (ns) have been taken: that may be long ago if the daemon was
        stopped meanwhile.
        """
        now = moment / 1e9
        self._look_for_long(moment)
        for waiting in self._room.due(now):
            self._give_out(waiting)
        self._make_room()
        while self._room.by_work:
            oldest = next(iter(self._room.by_work.values()))
            if now - oldest.since < OVERDUE:
                break
            self._give_out(oldest, is_last=True)

    def _look_for_long(self, at: int) -> None:
        for work in self._belonging.long(at):
            if (waiting := self._room.by_work.get(work)) is not None:
                self._give_out(waiting, is_last=True)

    def lose(self, at: int) -> None:
        """Note that records are missing, among those up to a moment: edges may be wrong."""
        self._belonging.forget(at)
        for waiting in list(self._room.by_work.values()):
            for spans in waiting.calls:
                spans.is_wrong = True
            waiting.work.is_doubted = True
            self._give_out(waiting, is_last=True)
        for work in self._kept:
            work.memory = None
        self._kept.clear()
        self._kept_size = 0

    def gone(self, process: int, at: int) -> None:
        """Forget the goroutines of a process that has ended."""
        self._belonging.gone(process, at)
        for task in [task for task in self._strays if task[0] == process]:
            del self._strays[task]

    def rest(self) -> None:
        """Send all that waits."""
        for waiting in list(self._room.by_work.values()):
            self._give_out(waiting, is_last=True)

    def _give_out(self, waiting: Waiting[_Call[T, P]], is_last: bool = False) -> None:
        """Send calls of a request, but for those within one that has not ended.

        These, too, if it ``is_last``.
        """
        work = waiting.work
        self._room.remove(waiting)
        memory = cast("_Memory[T, P] | None", work.memory) or _Memory()
        memory.root = memory.root or waiting.root
        for span, calls in waiting.calls.items():
            memory.calls.setdefault(span, []).extend(calls)
        wrong = set(wrong_spans(memory.calls, self._belonging.contexts))
        nest = Nest(memory.calls)
        below: dict[int, list[tuple[_Call[T, P], Via]]] = {}
        first: list[tuple[_Call[T, P], _Call[T, P] | None, Via]] = []
        held: dict[Span, list[_Call[T, P]]] = {}
        tops: dict[Span, _Call[T, P] | None] = {}
        for span, call, around in nest.within():
            if call.item is None:
                continue
            above, via = around, Via.CALL
            if around is None and not (call.is_own or is_last):
                held.setdefault(span, []).append(call)
                continue
            if around is None:
                is_wrong = span in wrong or span.is_told(call.start)
                if not is_wrong and span not in tops:
                    tops[span] = nest.above(span) or memory.root
                above, via = None if is_wrong else tops[span], _VIAS[span.link]
                if above is None or above is call:
                    is_doubted = work.is_doubted or is_wrong or span is not work.root
                    above, via = None, Via.UNATTRIBUTED if is_doubted else Via.ROOT
            if above is None or above.item is None:
                first.append((call, above, via))
            else:
                below.setdefault(id(above), []).append((call, via))
        self._send_all(first, below)
        self._keep(work, memory, held)
        if held:
            size = sum(call.size for calls in held.values() for call in calls)
            self._room.put_back(Waiting(work, waiting.since, held, size, None, waiting.ended))

    def _send_all(
        self,
        first: Iterable[tuple[_Call[T, P], _Call[T, P] | None, Via]],
        below: dict[int, list[tuple[_Call[T, P], Via]]],
    ) -> None:
        """Send the first calls, and then those that are below each."""
        ready = deque(first)
        while ready:
            call, above, via = ready.popleft()
            self._send_one(call, above, via)
            ready.extend((each, call, via) for each, via in below.pop(id(call), ()))

    def _send_one(self, call: _Call[T, P], above: _Call[T, P] | None, via: Via) -> None:
        item, call.item = call.item, None
        assert item is not None
        call.place = self._send(item, above.place if above is not None else None, via)

    def _keep(self, work: Work, memory: _Memory[T, P], held: dict[Span, list[_Call[T, P]]]) -> None:
        """Remember the sent calls of a request, as long as somebody works for it; then the root."""
        if work in self._kept:
            self._kept_size -= self._kept.pop(work)
        work.spans.clear()
        work.memory = memory
        for span, calls in held.items():
            memory.calls[span] = [call for call in memory.calls[span] if call not in calls]
        if not work.is_busy or work.is_long:
            memory.calls = {}
            return
        self._kept[work] = size = sum(map(len, memory.calls.values()))
        self._kept_size += size
        while self._kept_size > _MAX_KEPT:
            one, size = self._kept.popitem(last=False)
            self._kept_size -= size
            cast("_Memory[T, P]", one.memory).calls = {}
