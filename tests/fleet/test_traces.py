# SPDX-License-Identifier: Apache-2.0
"""Calls as traces, by edges that are made up, against a program that knows who is below whom."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random

import pytest

from gotrace.fleet.spans import SpanProbe
from gotrace.fleet.telemetry import traces
from gotrace.fleet.telemetry.traces import OVERDUE, LeftOut, Traces, Via
from gotrace.requests.belonging import LONG_CALL_NS
from gotrace.requests.edges import Edge, EdgeKind
from gotrace.requests.waiting import LINGER, PATIENCE

_PROCESS = 7
_SECOND = 1_000_000_000
QUEUE = 0x1000


@dataclass(eq=False)
class Made:
    """A call that is open, or has ended; ``number`` is what is sent of it."""

    number: int
    above: Made | None
    start: int
    function: int


class Played:
    """Records, a moment apart, and what comes of them: of each call the one above it, and how."""

    def __init__(self) -> None:
        self.traces: Traces[int, int] = Traces(self._send)
        self.sent: dict[int, tuple[int | None, Via]] = {}
        self.time = _SECOND
        self.made = 0
        #: By goroutine.
        self.open: dict[int, list[Made]] = {}
        self.left_out: set[int] = set()

    def _send(self, item: int, above: int | LeftOut | None, via: Via) -> int | LeftOut | None:
        assert item not in self.sent
        if isinstance(above, LeftOut):
            return above
        if item in self.left_out:
            return LeftOut.LEFT_OUT
        self.sent[item] = above, via
        return item

    @property
    def now(self) -> float:
        return self.time / _SECOND

    def add(self, kind: EdgeKind, goid: int, other: int = 0, *rest: int) -> None:
        self.time += 10
        self.traces.edge(Edge(kind, self.time, _PROCESS, goid, other, *rest))

    def enter(self, goid: int, function: int = 1, *contexts: int, is_apart: bool = False) -> Made:
        self.time += 10
        calls = self.open.setdefault(goid, [])
        self.made += 1
        call = Made(self.made, calls[-1] if calls else None, self.time, function)
        if not calls or self.time - calls[0].start > LONG_CALL_NS:
            self.time += 1
            depth = 100 + len(calls)
            edge = Edge(EdgeKind.BEGIN, self.time, _PROCESS, goid, call.start, depth)
            self.traces.begin(edge, (_PROCESS, goid), function, contexts, is_apart)
        calls.append(call)
        return call

    def leave(self, goid: int, size: int = 100) -> Made:
        self.time += 10
        call = self.open[goid].pop()
        is_nested = bool(self.open[goid])
        task = _PROCESS, goid
        self.traces.end(task, call.start, self.time, is_nested, call.number, size, self.now)
        return call

    def call(self, goid: int, function: int = 1, *contexts: int) -> int:
        self.enter(goid, function, *contexts)
        return self.leave(goid).number

    def go(self, goid: int, child: int) -> None:
        self.add(EdgeKind.GO, goid, child)

    def wait(self, seconds: float) -> None:
        self.time += int(seconds * _SECOND)
        self.traces.turn(self.time)

    def pass_on(self, sender: int, receiver: int) -> None:
        """Send through the first slot of a channel's buffer."""
        self.add(EdgeKind.WRITE, sender, 5, QUEUE + 8, QUEUE)
        self.add(EdgeKind.READ, receiver, 0, QUEUE + 8, QUEUE, 100)

    def queue(self) -> None:
        """Have the channel be seen to be a queue."""
        for _ in range(2):
            self.pass_on(90, 91)


@pytest.fixture
def played() -> Played:
    return Played()


@dataclass
class Goroutine:
    goid: int
    below: Made | None
    calls: list[Made] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(40))
def test_any_program_of_go_statements(seed: int, played: Played) -> None:
    """Each call is below the one around it, or that which was open where its goroutine began."""
    random, wanted = Random(seed), dict[int, tuple[int | None, Via]]()
    running = [Goroutine(1, None), Goroutine(2, None)]
    started = 2
    for step in range(300):
        one = random.choice(running)
        what = random.random()
        if what < 0.4 and len(one.calls) < 5:
            around = one.calls[-1] if one.calls else one.below
            via = Via.ROOT if around is None else Via.CALL if one.calls else Via.GO
            call = played.enter(one.goid, 1 if around is None else 2)
            wanted[call.number] = (around.number if around else None), via
            one.calls.append(call)
        elif what < 0.7 and one.calls:
            one.calls.pop()
            played.leave(one.goid)
        elif what < 0.8:
            started += 1
            played.go(one.goid, started)
            running.append(Goroutine(started, one.calls[-1] if one.calls else one.below))
        elif what < 0.9 and len(running) > 2 and not one.calls:
            running.remove(one)
            played.add(EdgeKind.DEAD, one.goid)
        if step % 20 == 0:
            played.wait(random.choice([0.01, 0.1]))
    for one in running:
        for _ in one.calls:
            played.leave(one.goid)
    played.wait(PATIENCE + 1)
    assert played.sent == wanted
    assert played.traces.is_empty


def test_calls_wait_for_what_is_above_them(played: Played) -> None:
    root = played.enter(1).number
    played.go(1, 2)
    below = played.call(2, 2)
    played.wait(LINGER + 1)
    assert played.sent == {}
    played.leave(1)
    played.wait(LINGER / 2)
    assert played.sent == {}
    played.add(EdgeKind.DEAD, 2)
    played.wait(LINGER)
    assert played.sent == {root: (None, Via.ROOT), below: (root, Via.GO)}


def test_work_is_below_who_has_sent_it(played: Played) -> None:
    """A worker that a request has started works for others later, whoever is open then."""
    played.queue()
    first = played.enter(1).number
    played.go(1, 10)
    own = played.call(10, 2)
    second = played.enter(2).number
    played.pass_on(2, 10)
    handed = played.call(10, 2)
    for goid in (1, 2):
        played.leave(goid)
    played.wait(PATIENCE + 1)
    assert played.sent == {
        first: (None, Via.ROOT),
        own: (first, Via.GO),
        second: (None, Via.ROOT),
        handed: (second, Via.ITEM),
    }


def test_what_comes_later_is_below_what_was_sent(played: Played) -> None:
    """A call of a goroutine that goes on, and one of a goroutine that this has started."""
    root = played.enter(1).number
    played.go(1, 2)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert played.sent == {root: (None, Via.ROOT)}
    late = played.enter(2, 2)
    played.go(2, 3)
    later = played.call(3, 2)
    played.leave(2)
    played.add(EdgeKind.DEAD, 2)
    played.add(EdgeKind.DEAD, 3)
    played.wait(LINGER + 0.1)
    assert played.sent[late.number] == (root, Via.GO)
    assert played.sent[later] == (late.number, Via.GO)
    assert played.traces.is_empty


def test_a_call_that_lasts_is_no_request(played: Played) -> None:
    """What is made within the first 30 s is sent by itself then, and begins requests later."""
    loop = played.enter(1).number
    played.go(1, 2)
    early = played.call(2, 2)
    nested = played.call(1, 3)
    played.wait(OVERDUE + 1)
    assert played.sent == {early: (None, Via.ROOT), nested: (None, Via.ROOT)} | {
        early: (None, played.sent[early][1])
    }
    job = played.enter(1, 2).number
    played.go(1, 3)
    below = played.call(3, 4)
    played.leave(1)
    played.go(1, 4)
    alone = played.call(4, 4)
    played.wait(PATIENCE + 1)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert played.sent[job] == (None, Via.ROOT)
    assert played.sent[below] == (job, Via.GO)
    assert played.sent[alone] == played.sent[loop] == (None, Via.ROOT)
    assert played.traces.is_empty


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_signal_may_tell_a_goroutine_of_work_of_others(played: Played, has_ended: bool) -> None:
    root = played.enter(1).number
    played.go(1, 3)
    before = played.call(3, 4)
    played.add(EdgeKind.WAKE, 1, 3, 1)
    told = played.call(3, 4)
    if has_ended:
        played.add(EdgeKind.DEAD, 3)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert played.sent[before] == (root, Via.GO)
    assert played.sent[told] == ((root, Via.GO) if has_ended else (None, Via.UNATTRIBUTED))


def test_after_a_loss_nothing_is_put_together(played: Played) -> None:
    root = played.enter(1).number
    inner = played.call(1, 2)
    played.go(1, 2)
    other = played.call(2, 2)
    played.traces.lose(played.time)
    played.leave(1)
    assert played.sent == dict.fromkeys((inner, other, root), (None, Via.UNATTRIBUTED))
    played.enter(1)
    played.call(1, 2)
    played.leave(1)
    played.wait(LINGER + 0.1)
    assert [via for _, via in played.sent.values()][-2:] == [Via.ROOT, Via.CALL]


def test_each_call_of_a_root_begins_a_trace(played: Played) -> None:
    """Also where another one has started its goroutine; calls within it do not."""
    first = played.enter(1, 1).number
    played.go(1, 2)
    second = played.enter(2, 1).number
    within = played.call(2, 1)
    played.leave(2)
    played.enter(3, 2)
    played.go(3, 4)
    apart = played.enter(4, 3, is_apart=True).number
    for goid in (4, 3, 1):
        played.leave(goid)
    played.wait(PATIENCE + 1)
    assert played.sent[first] == played.sent[second] == (None, Via.ROOT)
    assert played.sent[within] == (second, Via.CALL)
    assert played.sent[apart] == (None, Via.ROOT)


def test_what_is_below_a_call_that_is_left_out_is_too(played: Played) -> None:
    played.left_out.add(played.enter(1).number)
    played.go(1, 2)
    played.call(2, 2)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert played.sent == {}


def test_contexts_say_whose_a_call_is_if_each_request_has_its_own(played: Played) -> None:
    for number in range(8):
        played.call(1, 1, 0x100 + number)
    root = played.enter(1, 1, 0x200).number
    given = played.call(2, 2, 0x300, 0x200)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert played.sent[given] == (root, Via.CONTEXT)
    # One that two calls of a function were given is that of a program: nothing is known then.
    first = played.enter(1, 1, 0x400).number
    second = played.enter(3, 1, 0x400).number
    third = played.call(2, 2, 0x400)
    played.leave(3)
    played.leave(1)
    played.wait(PATIENCE + 1)
    assert [played.sent[one][0] for one in (first, second, third)] == [None] * 3


def test_what_waits_is_bounded(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 1000)
    for goid in range(2, 30):
        played.enter(1)
        played.go(1, goid)
        played.enter(goid, 2)
        played.leave(1)
    assert len(played.sent) == 18
    for goid in range(2, 30):
        played.leave(goid)
    played.wait(PATIENCE + 1)
    assert len(played.sent) == 56
    assert played.traces.is_empty


def test_a_program_that_ends_is_forgotten(played: Played) -> None:
    played.enter(1)
    played.go(1, 2)
    played.call(2, 2)
    assert played.traces.processes == {_PROCESS}
    played.traces.gone(_PROCESS, played.time)
    assert played.traces.processes == set()
    played.wait(OVERDUE + 1)
    assert played.traces.is_empty


def test_a_chain_of_timers_ends(played: Played) -> None:
    """Each begins the next one, with no call of the first one's function between."""
    played.enter(1)
    played.go(1, 2)
    played.leave(1)
    for goid in range(2, 100):
        played.call(goid, 2)
        played.go(goid, goid + 1)
        played.add(EdgeKind.DEAD, goid)
    played.wait(PATIENCE + 1)
    roots = [one for one, (above, _) in played.sent.items() if above is None]
    assert len(roots) == 1 + 34


def test_a_program_that_has_ended_is_known_until_its_records_are_read() -> None:
    process = NOBODY
    probe = object.__new__(SpanProbe)
    probe._traces, probe._ended = Traces(lambda item, above, via: None), {}
    probe._traces.begin(Edge(EdgeKind.BEGIN, 1000, process, 1, 990, 64), (process, 1), 0, [], False)
    probe._poll()
    probe._forget_ended(2000)
    assert probe._traces.processes == {process}
    probe._forget_ended(time.monotonic_ns())
    assert probe._traces.processes == set()


#: No process has this number.
NOBODY = (1 << 22) + 1
