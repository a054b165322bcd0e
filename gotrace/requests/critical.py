# SPDX-License-Identifier: Apache-2.0
"""The cause of a request's length: its critical path, backwards from its end.

From the end of the root's call the path goes back in its goroutine. Where that has waited, and
another goroutine that worked for the request has ended the wait, the path goes on in that one; but
only for as long as the wait was, or that one has worked for the request. Else the wait itself is a
part of the path. So the parts are of one time after the other, and add up to the duration exactly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from gotrace.gotypes.wait_reasons import COROUTINE
from gotrace.profiles import execution
from gotrace.profiles.execution import StateChange
from gotrace.records import dataclass, field
from gotrace.requests.belonging import Span, Task
from gotrace.requests.edges import Edge, EdgeKind

RUNNABLE, RUNNING, WAITING = 1, 2, 4  # statuses of Go's runtime, all releases from 1.19 to 1.27

#: Where a change has its reason, above its state.
_REASON, _STATE = 32, (1 << 32) - 1
#: The state of a goroutine whose changes were too many to be kept.
_FORGOTTEN = 0
#: The reason of a goroutine that has another one run in its place.
_COROUTINE = -1
_WORDS = {
    RUNNABLE: execution.RUNNABLE,
    RUNNING: execution.RUNNING,
    WAITING: execution.WAITING,
}
#: Changes of a goroutine's state that are known: those of a request may be asked for seconds after
#: its end. And goroutines that have ended.
_MAX_CHANGES = 1 << 16
_MAX_ENDED = 1 << 13
#: Changes of all goroutines, 24 bytes each: beyond, each loses the first half of what it has more
#: than some.
_MAX_KNOWN = 1 << 20
_SOME = 16
#: Steps of one path: more than any has that is whole.
_MAX_STEPS = 1 << 16


@dataclass(frozen=True, slots=True)
class PathPart:
    """A part of a critical path: what a goroutine did for ``ns``, in a call of a function.

    ``what`` is "running", which includes system calls, "runnable", "blocked: " and Go's reason, or
    "not known" if the goroutine's states were too many to be kept.
    ``goroutines``: so many have done that, if parts are added up.
    """

    function: str
    goid: int
    what: str
    ns: int
    goroutines: int = 1


@dataclass(slots=True)
class _Changes:
    """When a goroutine's state has changed, to which one, why, and who has done so on which thread.

    ``created`` is when a ``go`` statement has made it, and of which goroutine; ``ended`` is when it
    has ended. Both are None if that was not seen. ``is_cut``: the first changes are forgotten.
    """

    # Not tuples: there are a million changes.
    times: array[int] = field(default_factory=lambda: array("Q"))
    #: The state, and the reason above it.
    states: array[int] = field(default_factory=lambda: array("q"))
    by: array[int] = field(default_factory=lambda: array("Q"))
    tids: array[int] = field(default_factory=lambda: array("I"))
    created: tuple[int, int] | None = None
    ended: int | None = None
    is_cut: bool = False

    def add(self, at: int, state: int, reason: int, by: int, tid: int) -> None:
        self.times.append(at)
        self.states.append(reason << _REASON | state)
        self.by.append(by)
        self.tids.append(tid)

    def waited_for(self, reason: int) -> None:
        """Take the reason of a wait that ends: up to Go 1.19 it may not be known as that begins."""
        if self.states and self.states[-1] & _STATE == WAITING:
            self.states[-1] = reason << _REASON | WAITING

    def forget(self, changes: int) -> None:
        """Forget the first ones."""
        self.is_cut = self.is_cut or changes > 0
        del self.times[:changes], self.states[:changes], self.by[:changes], self.tids[:changes]

    def before(self, moment: int, no_earlier: int) -> tuple[int, int, int, int]:
        """Return the state that ends at a moment or contains it.

        That is since when, or ``no_earlier``; the state; the reason; who ends it then, 0 if nobody
        does. A goroutine whose state is not known runs: it is in a call that was seen.
        """
        row = bisect_left(self.times, moment) - 1
        ends = row + 1 < len(self.times) and self.times[row + 1] == moment
        by = self.by[row + 1] if ends else 0
        if row < 0:
            return no_earlier, _FORGOTTEN if self.is_cut else RUNNING, 0, by
        state = self.states[row]
        return max(self.times[row], no_earlier), state & _STATE, state >> _REASON, by


class States:
    """The latest states of goroutines, also of those that have ended."""

    def __init__(self) -> None:
        self._known: dict[Task, _Changes] = {}
        self._ended: OrderedDict[Task, _Changes] = OrderedDict()
        self._count = 0

    def add(self, edge: Edge, tid: int = 0) -> None:
        """Take an edge that changes states, and its thread: the next one in the order of time."""
        task = (edge.tgid, edge.other)
        if edge.kind is EdgeKind.STATE:
            self._change(task, edge.at, edge.first, edge.second, edge.goid, tid)
        elif edge.kind is EdgeKind.SWITCH:
            self._change((edge.tgid, edge.goid), edge.at, WAITING, _COROUTINE, 0, tid)
            self._change(task, edge.at, RUNNING, 0, edge.goid, tid)
        elif edge.kind is EdgeKind.GO:
            self._change(task, edge.at, RUNNABLE, 0, edge.goid, tid)
            if (changes := self._known.get(task)) is not None:
                changes.created = edge.at, edge.goid
        elif edge.kind is EdgeKind.DEAD:
            task = (edge.tgid, edge.goid)
            if (changes := self._known.pop(task, None)) is not None:
                changes.ended = edge.at
                self._ended[task] = changes
                if len(self._ended) > _MAX_ENDED:
                    _, oldest = self._ended.popitem(last=False)
                    self._count -= len(oldest.times)

    def _change(self, task: Task, at: int, state: int, reason: int, by: int, tid: int) -> None:
        # Up to Go 1.23 a new goroutine has the number of an ended one for a moment.
        if not task[1] or task in self._ended:
            return
        changes = self._known.get(task)
        if changes is None:
            changes = self._known[task] = _Changes()
        if state != WAITING and reason:
            changes.waited_for(reason)
            reason = 0
        changes.add(at, state, reason, by, tid)
        self._count += 1
        if len(changes.times) > _MAX_CHANGES:
            self._halve(changes)
        if self._count > _MAX_KNOWN:
            for each in (*self._known.values(), *self._ended.values()):
                self._halve(each)

    def _halve(self, changes: _Changes) -> None:
        over = max(len(changes.times) - _SOME, 0)
        first = -(-over // 2)
        changes.forget(first)
        self._count -= first

    def of(self, task: Task) -> _Changes:
        return self._known.get(task) or self._ended.get(task) or _NONE

    def while_working(
        self, spans: Iterable[Span], begin: int, end: int, reasons: Sequence[str]
    ) -> Iterator[StateChange]:
        """Yield goroutines' states in these spans, until ``end``; times are since ``begin``."""
        times: dict[Task, list[tuple[int, int]]] = {}
        for span in spans:
            until = end if span.end is None else min(span.end, end)
            if span.begin <= until:
                times.setdefault(span.goroutine, []).append((span.begin, until))
        for task, own in times.items():
            own.sort()
            low, high = own[0]
            for start, stop in own[1:]:
                if start > high:
                    yield from self._between(task, low, high, begin, reasons)
                    low = start
                high = max(high, stop)
            yield from self._between(task, low, high, begin, reasons)

    def _between(
        self, task: Task, low: int, high: int, begin: int, reasons: Sequence[str]
    ) -> Iterator[StateChange]:
        """Yield a goroutine's state at a time, and its changes up to another one."""
        goid, changes = task[1], self.of(task)
        row = bisect_right(changes.times, low)
        created, ended = changes.created, changes.ended
        if created is not None and low <= created[0] <= high:
            yield StateChange(created[0] - begin, goid, execution.CREATED, "", created[1])
            row = bisect_right(changes.times, created[0])
        elif row == 0:
            # As in ``before``: it is in a call that was seen.
            state = execution.UNKNOWN if changes.is_cut else execution.RUNNING
            yield StateChange(low - begin, goid, state)
        else:
            yield _change(changes, row - 1, low - begin, goid, reasons)._replace(by=0)
        for number in range(row, bisect_right(changes.times, high)):
            yield _change(changes, number, changes.times[number] - begin, goid, reasons)
        if ended is not None and ended <= high:
            yield StateChange(ended - begin, goid, execution.ENDED)
        else:
            yield StateChange(high - begin, goid, execution.UNKNOWN)

    def forget(self) -> None:
        """Forget all."""
        self._known.clear()
        self._ended.clear()
        self._count = 0


_NONE = _Changes()


def _change(changes: _Changes, row: int, at: int, goid: int, reasons: Sequence[str]) -> StateChange:
    state, reason = changes.states[row] & _STATE, changes.states[row] >> _REASON
    by, tid = changes.by[row], changes.tids[row]
    why = reason_of(reason, reasons) if state == WAITING else ""
    return StateChange(at, goid, _WORDS[state], why, by, tid)


def reason_of(number: int, reasons: Sequence[str]) -> str:
    """Return why a goroutine waits, in Go's words."""
    if number == _COROUTINE:
        return COROUTINE
    return reasons[number] if number < len(reasons) else "unknown"


def critical_path(
    states: States,
    root: tuple[Task, int, int],
    spans: Callable[[Task, int], Span | None],
    pieces: Callable[[Task, int, int], Sequence[tuple[int, int, str]]],
    reasons: Sequence[str],
) -> tuple[PathPart, ...]:
    """Return the parts of a request's critical path, in the order of time.

    ``root`` is the goroutine of the root's call, its begin and its end. ``spans`` returns what of
    the request a goroutine did at a moment, None if nothing; ``pieces`` which functions it was in
    between two moments, backwards; ``reasons`` are Go's, by number.
    """
    found: list[PathPart] = []
    waiting: list[tuple[Task, int, int]] = [root]
    steps = 0
    while waiting:
        task, low, high = waiting.pop()
        steps += 1
        if high <= low:
            continue
        since, state, reason, by = states.of(task).before(high, low)
        waiting.append((task, low, since))
        other = (task[0], by)
        span = spans(other, high) if by and other != task and steps < _MAX_STEPS else None
        if state == WAITING and span is not None and span.begin < high:
            begin = max(since, span.begin)
            if begin > since:
                above = span.above.goroutine if span.above is not None else task
                waiting.append((above, since, begin))
            waiting.append((other, begin, high))
            continue
        what = _what(state, reason, reasons)
        found += (
            PathPart(function, task[1], what, end - start)
            for start, end, function in pieces(task, since, high)
        )
    return tuple(_joined(reversed(found)))


def _what(state: int, reason: int, reasons: Sequence[str]) -> str:
    if state == _FORGOTTEN:
        return "not known"
    if state == WAITING:
        return f"blocked: {reason_of(reason, reasons)}"
    return "runnable" if state == RUNNABLE else "running"


def _joined(parts: Iterator[PathPart]) -> Iterator[PathPart]:
    """Yield parts, those that are one after the other and alike as one."""
    last: PathPart | None = None
    for part in parts:
        if last is not None and (last.function, last.goid, last.what) == (
            part.function,
            part.goid,
            part.what,
        ):
            last = PathPart(part.function, part.goid, part.what, last.ns + part.ns)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
