# SPDX-License-Identifier: Apache-2.0
"""Assemble requests of records: calls and edges, in the order of time.

A call belongs to the request that its goroutine worked for when it was entered. Its record comes
when it ends, and a request's root may end before others that work for it: it waits for these.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise

from gotrace.probes.spec import ProbeSpec, parse_key
from gotrace.profiles.execution import StateChange
from gotrace.records import dataclass, replace
from gotrace.requests.belonging import Belonging, Link, Span, Task, Work
from gotrace.requests.critical import PathPart, States, critical_path
from gotrace.requests.edges import FIRST, EdgeKind, edge_of
from gotrace.requests.model import Node, Request
from gotrace.requests.nest import Nest, drop_wrong, wrong_spans
from gotrace.requests.waiting import LINGER, Waiting, WaitingRoom
from gotrace.session.decode import CallDecoder, DecodedCall
from gotrace.session.events import HEADER
from gotrace.session.reading import Missing
from gotrace.session.request import Asked
from gotrace.target.target import Target
from gotrace.values.model import StringValue

#: Seconds that a request waits if a context has said whose some calls are: others may turn out to
#: have it.
_CONTEXT_LINGER = 2.0
#: Requests that wait at a time, and the calls of them.
_MAX_REQUESTS = 1 << 14
_MAX_CALLS = 1 << 19
#: ns from a program's look at the clock until it is known that its record found no room.
_SENDING = 10_000_000
#: Calls that are looked at again when the call around them ends, of one goroutine and of all.
_MAX_LOOSE = 1 << 8
_MAX_ALL_LOOSE = 1 << 18


@dataclass(slots=True, eq=False)
class _Entry:
    """A call: its record, the number of its function, and what its probes show if that is known.

    ``span`` is the time that it was made in, None if it is not a call of a request. ``is_given``:
    its own context says whose it is.
    """

    start: int
    end: int
    function: int
    record: bytes
    span: Span | None = None
    is_given: bool = False
    shown: list[tuple[ProbeSpec, DecodedCall]] | None = None


@dataclass(slots=True)
class Tally:
    """The counts of calls and requests so far, by their fate.

    ``nodes`` are calls of requests, ``unattributed`` those of none, ``late`` those of requests that
    had been given out, or given up. ``unwanted`` are requests that the root's predicate does not
    want. ``lost`` are requests whose end was not seen, or that were given up because there were too
    many, or because records were missing.
    """

    nodes: int = 0
    unattributed: int = 0
    late: int = 0
    unwanted: int = 0
    lost: int = 0


def request_probes(
    asked: Asked, target: Target, roots: int = 1
) -> tuple[Sequence[ProbeSpec], Sequence[ProbeSpec]]:
    """Return the probes of the first patterns, whose calls begin requests, and all probes.

    Raises UsageError.
    """
    first, others = (
        _probes(replace(asked, patterns=patterns), target) if patterns else ()
        for patterns in (asked.patterns[:roots], asked.patterns[roots:])
    )
    return first, [*first, *others]


#: The facts about a call beside its values: the contexts that it was given.
_EXTRAS = parse_key("$contexts")


def _probes(asked: Asked, target: Target) -> Sequence[ProbeSpec]:
    probes, failed = asked.probes(target)
    if failed:
        raise failed[0]
    return [replace(probe, extras=_EXTRAS, at_entry=False) for probe in probes]


class Assembler:
    """Takes records as they come and gives out requests as they are whole."""

    def __init__(
        self,
        decoders: Sequence[CallDecoder],
        roots: Sequence[ProbeSpec],
        reasons: Sequence[str] = (),
        is_ordered: bool = False,
    ) -> None:
        """Take the decoders of functions by number, and the probes whose calls begin requests.

        ``reasons`` are Go's words for why goroutines wait, by number, where critical paths are
        asked for. ``is_ordered``: nodes say through which goroutines their work has come.
        """
        self._is_ordered = is_ordered
        self._reasons = reasons
        self._states = States()
        self._decoders = decoders
        self._roots = {id(spec) for spec in roots}
        self._begins = [
            any(id(spec) in self._roots for spec, _ in decoder.traced.parts) for decoder in decoders
        ]
        #: Numbers of functions that are given contexts.
        self._given = {
            number
            for number, decoder in enumerate(decoders)
            if any(any(probe.extras) for _, probe in decoder.traced.parts)
        }
        #: Calls of each goroutine that no span is known of, or a context's: the latest ones.
        self._loose: OrderedDict[Task, deque[_Entry]] = OrderedDict()
        self._all_loose = 0
        self._belonging = Belonging()
        self._room: WaitingRoom[_Entry] = WaitingRoom(_CONTEXT_LINGER)
        self._reported = 0
        self._missing = Missing()
        self._looked = 0
        #: Times in which records are missing, in their order, and whether the first has begun.
        self._gaps: deque[tuple[int, int]] = deque()
        self._is_blind = False
        #: Requests that were whole when a gap began.
        self._whole: deque[Request[DecodedCall]] = deque()
        self.tally = Tally()

    def add(self, record: bytes) -> None:
        """Take the next record. Raises RecordError."""
        self.add_read(record, HEADER.unpack_from(record))

    def add_read(self, record: bytes, header: tuple[int, ...]) -> None:
        """Take the next record, whose header was read. Raises RecordError."""
        end, start, goid, tgid, _, function, _, _, flags, _, _ = header
        if self._gaps and self._is_in_gap(end):
            self.tally.unattributed += function < FIRST
            self.tally.lost += function == FIRST + EdgeKind.BEGIN
        elif function < FIRST:
            self._call(_Entry(start, end, function, record), (tgid, goid), flags)
        elif (edge := edge_of(header)).kind is not EdgeKind.BEGIN:
            if self._reasons:
                self._states.add(edge, header[4])
            if edge.kind is not EdgeKind.STATE:
                self._belonging.add(edge)
        elif not self._begins[edge.depth]:  # the function's number: of another assembler's root
            pass
        elif (work := self._belonging.begin(edge)) is not None:
            waiting = self._room.by_work
            waiting[work] = Waiting(work)
            if len(waiting) > _MAX_REQUESTS:
                self._give_up(next(iter(waiting.values())))

    def missing(self, missing: Missing) -> None:
        """Note how much is missing by now.

        If that is more than at the last look, it is of the time between; of what has come too late
        it is not known. Requests that are open then are given up, and so is what is reported of
        that time: which work it was may be wrong without them.
        """
        now, before = time.monotonic_ns(), self._missing
        self._missing = missing
        self.tally.lost += missing.begins - before.begins
        if missing != before:
            since = self._looked if missing.late == before.late else 0
            while self._gaps and self._gaps[-1][1] >= since:
                since = min(since, self._gaps.pop()[0])
            self._gaps.append((since, now))
        self._looked = now - _SENDING

    def _is_in_gap(self, at: int) -> bool:
        """Return whether records are missing around a time; what is before that is known."""
        while self._gaps and at >= self._gaps[0][0]:
            if not self._is_blind:
                self._is_blind = True
                self._forget()
            if at < self._gaps[0][1]:
                return True
            self._gaps.popleft()
            self._is_blind = False
        return False

    def _forget(self) -> None:
        """Give up all that is open, but for requests that have ended and nobody works for."""
        for one in self._room.ended:
            if self._room.patience(one) == LINGER and (request := self._taken(one)) is not None:
                self._whole.append(request)
        self._belonging.forget(self._gaps[0][1])
        self._states.forget()
        self._loose.clear()
        self._all_loose = 0
        self._drop()

    def take(
        self, now: float, is_over: bool = False
    ) -> Generator[Request[DecodedCall], None, None]:
        """Yield the requests that are whole by ``now`` (``time.monotonic``), all if ``is_over``.

        All records up to ``now`` have been taken. Requests that are not taken then are yielded the
        next time.
        """
        if is_over and self._gaps and not self._is_blind:
            self._forget()
        while self._whole:
            yield self._whole.popleft()
        for one in self._room.due(now, is_over):
            if (request := self._taken(one)) is not None:
                yield request
        if is_over:
            self.drop()

    def _taken(self, one: Waiting[_Entry]) -> Request[DecodedCall] | None:
        """Return a request that is whole, None if it is not wanted."""
        self._room.remove(one)
        request = self._request(one)
        self.tally.unwanted += request is None
        return request

    def unended(self) -> Iterator[list[tuple[Task, int, int]]]:
        """Yield the calls so far of each request whose root's call is open.

        Of each call these are its goroutine, its beginning, and the number of its function.
        """
        for one in self._room.by_work.values():
            if one.root is None:
                yield [
                    (span.goroutine, call.start, call.function)
                    for span, calls in one.calls.items()
                    for call in calls
                ]

    @property
    def is_empty(self) -> bool:
        """Return whether no request waits."""
        return not (self._room.by_work or self._whole)

    def drop(self, begins: int = 0) -> None:
        """Give up all requests, and so many whose begin was not taken."""
        self.tally.lost += begins + len(self._whole)
        self._whole.clear()
        self._drop()

    def _drop(self) -> None:
        """Give up all requests that wait."""
        waiting = self._room.by_work.values()
        self.tally.lost += len(waiting)
        self.tally.late += sum(one.size for one in waiting)
        self._room.clear()

    def _give_up(self, waiting: Waiting[_Entry]) -> None:
        self._room.remove(waiting)
        self.tally.lost += 1
        self.tally.late += waiting.size

    def _call(self, entry: _Entry, task: Task, flags: int) -> None:
        belonging = self._belonging
        belonging.acts(task, entry.start)
        is_unwanted = bool(flags & _UNWANTED)
        span = belonging.span_at(task, entry.start)
        if span is not None and span.is_doubted:
            span = None
        work = None
        if self._begins[entry.function]:
            work = belonging.end(task, entry.start, entry.end)
        if work is not None:
            waiting = self._room.by_work.get(work)
            if waiting is not None:
                waiting.root = entry
                self._room.end(waiting, time.monotonic())
                if is_unwanted:
                    entry.record = b""
                span = work.root
        if is_unwanted and work is None:
            return
        given = self._given_work(entry, task) if entry.function in self._given else None
        is_trusted = belonging.trusts(task, span, given)
        if is_trusted and given is not None:
            self._take_over(entry, task, *given)
        elif is_trusted is False:
            self.tally.unattributed += 1
        elif span is None:
            self.tally.unattributed += 1
            self._keep(entry, task)
        else:
            self._place(entry, span)

    def _place(self, entry: _Entry, span: Span) -> None:
        """Add a call to the request of a span."""
        found = self._room.by_work.get(span.work)
        if found is None:
            self.tally.late += 1
            return
        entry.span = span
        self._room.add(found, span, entry)
        if self._room.size > _MAX_CALLS:
            self._give_up(max(self._room.by_work.values(), key=lambda one: one.size))

    def _keep(self, entry: _Entry, task: Task) -> None:
        """Keep a call that may be within one whose context says whose it is."""
        if not self._given:
            return
        calls = self._loose.setdefault(task, deque())
        self._loose.move_to_end(task)
        if len(calls) < _MAX_LOOSE:
            self._all_loose += 1
        else:
            calls.popleft()
        calls.append(entry)
        if self._all_loose > _MAX_ALL_LOOSE:
            self._all_loose -= len(self._loose.popitem(last=False)[1])

    def _given_work(self, entry: _Entry, task: Task) -> tuple[Work, tuple[int, int]] | None:
        """Return the request that a call's context is of, and that; None if it is not known."""
        if not entry.record:
            return None
        entry.shown = self._decoders[entry.function].calls(entry.record)
        for _, call in entry.shown:
            for value in call.extras:
                if isinstance(value, StringValue) and value.text:
                    words = struct.unpack(f"<{len(value.text) // 8}Q", value.text)
                    return self._belonging.contexts.find(task, words, entry.start)
        return None

    def _take_over(
        self,
        entry: _Entry,
        task: Task,
        work: Work,
        context: tuple[int, int],
    ) -> None:
        """Make a call, and those within it, one of the request that its context is of."""
        if work not in self._room.by_work:
            self.tally.unattributed += 1
            return
        span = Span(work, task, entry.start, Link.CONTEXT, None, context)
        span.end = entry.end
        work.working -= 1
        self._belonging.gives(task, span)
        entry.is_given = True
        within = [one for one in self._loose.get(task, ()) if one.start >= entry.start]
        for one in within:
            if one.is_given and one.span is not None and one.span.work is not work:
                continue
            self._remove(one)
            self._place(one, span)
        self._place(entry, span)
        self._keep(entry, task)

    def _remove(self, entry: _Entry) -> None:
        """Take a call from where it is."""
        span, entry.span = entry.span, None
        waiting = self._room.by_work.get(span.work) if span is not None else None
        if span is None:
            self.tally.unattributed -= 1
        elif waiting is not None:
            waiting.calls[span].remove(entry)
            waiting.size -= 1
            self._room.size -= 1

    def _request(self, waiting: Waiting[_Entry]) -> Request[DecodedCall] | None:
        """Return the tree of a request, None if the root's predicate does not want it."""
        root = waiting.root
        if root is None or not root.record:
            return None
        self.tally.unattributed += drop_wrong(waiting.calls, self._belonging.contexts)
        tree = _Tree(waiting, root)
        probes = root.shown or self._decoders[root.function].calls(root.record)
        wanted = [call for spec, call in probes if id(spec) in self._roots]
        if not wanted:
            return None
        handed: dict[Span, tuple[tuple[int, int], ...]] = {}
        made: dict[int, list[Node[DecodedCall]]] = {}
        for place in reversed(tree.order()):
            below = tree.children.get(id(place), ())
            children = [node for child in below for node in made.pop(id(child))]
            if place is root:
                call: DecodedCall | None = wanted[0]
            else:
                shown = place.shown or self._decoders[place.function].calls(place.record)
                call = shown[0][1] if shown else None
            if call is None:
                made[id(place)] = children
                continue
            edge, start = tree.edges[id(place)].value, place.start - root.start
            way: tuple[tuple[int, int], ...] = ()
            if self._is_ordered and place.span is not None:
                if place.span not in handed:
                    handed[place.span] = _handed(place.span, root.start)
                way = handed[place.span]
            made[id(place)] = [Node(call, edge, start, tuple(children), way)]
            self.tally.nodes += 1
        new = self.tally.unattributed + self.tally.late - self._reported
        self._reported += new
        critical = self._critical(waiting.work, root, tree) if self._reasons else ()
        states = tuple(self._states_of(waiting, root)) if self._reasons else ()
        return Request(made[id(root)][0], waiting.work.working, new, critical, states)

    def _states_of(self, waiting: Waiting[_Entry], root: _Entry) -> Iterator[StateChange]:
        """Yield the states of goroutines while they worked for a request."""
        end = max(call.end for calls in waiting.calls.values() for call in calls)
        spans = dict.fromkeys((*waiting.work.spans, *waiting.calls))
        return self._states.while_working(spans, root.start, end, self._reasons)

    def _critical(self, work: Work, root: _Entry, tree: _Tree) -> tuple[PathPart, ...]:
        spans: dict[Task, list[Span]] = {}
        wrong = set(wrong_spans(work.spans, self._belonging.contexts))
        for span in work.spans:
            if span in wrong:
                continue
            spans.setdefault(span.goroutine, []).append(span)

        def span_at(task: Task, moment: int) -> Span | None:
            return next(
                (
                    span
                    for span in reversed(spans.get(task, ()))
                    if span.begin <= moment
                    and (span.end is None or moment <= span.end)
                    and not span.is_told(moment)
                ),
                None,
            )

        def pieces(task: Task, low: int, high: int) -> list[tuple[int, int, str]]:
            return [
                (start, end, self._decoders[call.function].function.name)
                for start, end, call in tree.pieces(spans.get(task, ()), low, high)
            ]

        of = (work.root.goroutine, root.start, root.end)
        return critical_path(self._states, of, span_at, pieces, self._reasons)


def _handed(span: Span, since: int) -> tuple[tuple[int, int], ...]:
    """Return the goroutines through which a span's work has come, and when each let go of it."""
    found = []
    while span.above is not None:
        found.append((span.above.goroutine[1], span.handed - since))
        span = span.above
    return tuple(found)


_UNWANTED = 512  # CallFlag.UNWANTED, which is slow


class _Tree:
    """Which call of a request is below which."""

    def __init__(self, waiting: Waiting[_Entry], root: _Entry) -> None:
        self.root = root
        self.children: dict[int, list[_Entry]] = {}
        self.edges: dict[int, Link] = {id(root): Link.CALL}
        self._spans = waiting.calls
        self._nest = Nest(self._spans)
        tops: dict[Span, _Entry] = {}
        for span, call, around in self._nest.within():
            if call is root:
                continue
            if around is not None:
                self._below(around, call, Link.CALL)
                continue
            if span not in tops:
                tops[span] = self._above(span)
            self._below(tops[span], call, span.link)

    def _below(self, above: _Entry, call: _Entry, link: Link) -> None:
        self.children.setdefault(id(above), []).append(call)
        self.edges[id(call)] = link

    def _above(self, span: Span) -> _Entry:
        """Return the innermost call that was open where a span's work comes from."""
        return self._nest.above(span) or self.root

    def pieces(
        self, spans: Sequence[Span], low: int, high: int
    ) -> Iterator[tuple[int, int, _Entry]]:
        """Yield which innermost calls a goroutine of these spans was in, backwards in time."""
        bounds = {low, high}
        for span in spans:
            for call in self._spans.get(span, ()):
                bounds.update(one for one in (call.start, call.end) if low < one < high)
        for end, start in pairwise(sorted(bounds, reverse=True)):
            yield start, end, self._innermost(spans, start, end)

    def _innermost(self, spans: Sequence[Span], start: int, end: int) -> _Entry:
        """Return the call that a goroutine of these spans was in, or that it worked for."""
        span = next((one for one in reversed(spans) if one.begin <= start), None)
        if span is None:
            return self.root
        return self._nest.open_at(span, start, end) or self._above(span)

    def order(self) -> list[_Entry]:
        """Return all calls, outer ones first; sort those below each."""
        found, waiting = [], [self.root]
        while waiting:
            call = waiting.pop()
            found.append(call)
            below = self.children.get(id(call), [])
            below.sort(key=lambda each: each.start)
            waiting += below
        return found
