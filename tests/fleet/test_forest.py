# SPDX-License-Identifier: Apache-2.0
"""Calls of goroutines that other calls have started, whatever comes first, against a simple model.

The model is a program that calls and starts goroutines at random, and knows who is below whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.fleet.telemetry import forest, nesting
from gotrace.fleet.telemetry.forest import Forest, LeftOut
from gotrace.fleet.telemetry.nesting import Call, Origin, Tree

_SECOND = 1_000_000_000


@dataclass(eq=False)
class Made:
    """A call that the model has made; ``above`` is the one that it is below."""

    number: int
    above: Made | None
    start: int
    origin: Origin | None
    is_nested: bool
    goroutine: tuple[int, int]
    starts: bool = False
    end: int = 0
    fate: str = "sent"

    def record(self) -> Call[Made]:
        numbers = self.start, self.end, self.is_nested
        return Call(self.goroutine, *numbers, self, 10, self.starts, self.origin)

    def ancestors(self) -> Iterator[Made]:
        above = self.above
        while above is not None:
            yield above
            above = above.above


@dataclass
class Goroutine:
    key: tuple[int, int]
    below: Made | None
    origin: Origin | None
    calls: list[Made] = field(default_factory=list)


class Program:
    """Goroutines that do what random numbers say, and their calls in the order of their ends."""

    def __init__(self, random: Random, steps: int) -> None:
        self._random = random
        self._clock = 0
        self._running = [Goroutine((1, 1), None, None), Goroutine((2, 1), None, None)]
        self._made = self._started = 0
        self.calls: list[Made] = []
        for _ in range(steps):
            self._step()
        while any(one.calls for one in self._running):
            self._leave(random.choice([one for one in self._running if one.calls]))

    def _tick(self) -> int:
        self._clock += self._random.choice([1, _SECOND])
        return self._clock

    def _step(self) -> None:
        one = self._random.choice(self._running)
        what = self._random.random()
        if what < 0.4:
            above = one.calls[-1] if one.calls else one.below
            origin = None if one.calls else one.origin
            self._made += 1
            one.calls.append(
                Made(self._made, above, self._tick(), origin, bool(one.calls), one.key)
            )
        elif what < 0.7 and one.calls:
            self._leave(one)
        elif what < 0.95:
            self._go(one)
        elif not one.calls and len(self._running) > 2:
            self._running.remove(one)

    def _leave(self, one: Goroutine) -> None:
        call = one.calls.pop()
        call.end = self._tick()
        call.fate = self._random.choice(["sent", "sent", "sent", "unwanted", "limited"])
        self.calls.append(call)

    def _go(self, one: Goroutine) -> None:
        self._started += 1
        below, origin = one.below, one.origin
        if one.calls:
            below, origin = one.calls[-1], Origin(one.key, self._tick(), one.calls[0].start)
            for call in one.calls:
                call.starts = True
        self._running.append(Goroutine((one.key[0], 1 + self._started), below, origin))

    def arrivals(self, random: Random) -> Iterator[Made]:
        """Yield the calls, those of a goroutine in their order, those of others in any."""
        queues: dict[tuple[int, int], list[Made]] = {}
        for call in self.calls:
            queues.setdefault(call.goroutine, []).append(call)
        while queues:
            key = random.choice(list(queues))
            yield queues[key].pop(0)
            if not queues[key]:
                del queues[key]


class Sender:
    """What trees are sent to; keeps what each call was put below."""

    def __init__(self, *, with_fates: bool) -> None:
        self.parents: dict[Made, Made | LeftOut | None] = {}
        self._with_fates = with_fates

    def send(self, tree: Tree[Made], above: Made | LeftOut | None) -> list[Made | LeftOut | None]:
        places: list[Made | LeftOut | None] = []
        for call, parent in tree:
            place = above if parent is None else places[parent]
            assert call.item not in self.parents
            assert place is None or isinstance(place, LeftOut) or place in self.parents
            self.parents[call.item] = place
            places.append(self.place(call.item, place))
        return places

    def place(self, call: Made, above: Made | LeftOut | None) -> Made | LeftOut | None:
        if isinstance(above, LeftOut) or (self._with_fates and call.fate == "unwanted"):
            return above
        if self._with_fates and call.fate == "limited":
            return above or LeftOut.LEFT_OUT
        return call

    def expected(self, call: Made | None) -> Made | LeftOut | None:
        """Return what is to be below a call, by what the model knows."""
        return None if call is None else self.place(call, self.expected(call.above))


@given(st.integers(0, 1 << 32), st.integers(0, 60), st.booleans())
def test_calls_are_below_those_that_started_their_goroutine(
    seed: int, steps: int, with_fates: bool
) -> None:
    """In whatever order goroutines' calls come, while none is given up."""
    random = Random(seed)
    program, sender = Program(random, steps), Sender(with_fates=with_fates)
    grown: Forest[Made, Made] = Forest(sender.send)
    for call in program.arrivals(random):
        grown.add(call.record(), 0.0)
        grown.overdue(0.0)
    assert set(sender.parents) == set(program.calls)
    for call, parent in sender.parents.items():
        assert parent is sender.expected(call.above)
    assert grown.is_empty


@given(st.integers(0, 1 << 32), st.integers(0, 60), st.integers(1, 200))
def test_calls_are_never_below_others(seed: int, steps: int, size: int) -> None:
    """Whatever is lost, late, too much or forgotten: each is sent once, and below what was sent."""
    random = Random(seed)
    program, sender = Program(random, steps), Sender(with_fates=False)
    grown: Forest[Made, Made] = Forest(sender.send)
    now, came = 0.0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "PATIENCE", 10.0)
        patch.setattr(nesting, "MAX_BYTES", size)
        patch.setattr(forest, "MEMORY", 10.0)
        patch.setattr(forest, "MAX_REMEMBERED", 3)
        patch.setattr(forest, "_MAX_STALE", 2)
        for call in program.arrivals(random):
            now = max(now, call.end / _SECOND) + random.choice([0.0, 0.1, 5.0])
            if random.random() < 0.1:
                continue
            came.append(call)
            grown.add(call.record(), now)
            if random.random() < 0.5:
                grown.overdue(now)
        grown.rest(now)
    assert set(sender.parents) == set(came)
    for call, parent in sender.parents.items():
        assert parent is None or parent in list(call.ancestors())
    assert grown.is_empty


def call(
    name: str, goroutine: int, start: int, end: int, origin: Origin | None = None, size: int = 1
) -> Call[str]:
    return Call((1, goroutine), start, end, False, name, size, True, origin)


class Places:
    """What was sent below what."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str | LeftOut | None]] = []

    def send(self, tree: Tree[str], above: str | LeftOut | None) -> list[str]:
        self.sent += [(each.item, above) for each, _ in tree]
        return [each.item for each, _ in tree]

    def take(self) -> list[tuple[str, str | LeftOut | None]]:
        sent, self.sent = self.sent, []
        return sent


def test_calls_wait_no_longer_than_what_they_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places()
    grown: Forest[str, str] = Forest(places.send)
    begun = 100 * _SECOND
    of = Origin((1, 1), begun + 5, begun)
    grown.add(call("child", 2, begun + 6, begun + 7, of), 110.0)
    grown.add(
        call("grandchild", 3, begun + 7, begun + 8, Origin((1, 2), begun + 6, begun + 6)), 110.0
    )
    grown.overdue(100.0 + nesting.PATIENCE)
    assert places.take() == []
    grown.overdue(100.1 + nesting.PATIENCE)
    assert places.take() == [("child", None), ("grandchild", "child")]
    # That call takes too long already: what it starts now does not wait at all.
    grown.add(call("late", 4, begun + 8, begun + 9, of), 140.0)
    assert places.take() == [("late", None)]
    grown.add(call("long", 1, begun, 145 * _SECOND), 145.0)
    grown.add(call("after", 5, begun + 9, begun + 10, of), 145.0)
    assert places.take() == [("long", None), ("after", "long")]
    grown.overdue(145.1 + forest.MEMORY)
    grown.add(call("forgotten", 6, begun + 9, begun + 10, of), 145.1 + forest.MEMORY)
    assert places.take() == [("forgotten", None)]


def test_work_that_is_waited_for_after_the_call_is_below_none() -> None:
    places = Places()
    grown: Forest[str, str] = Forest(places.send)
    worker, plain = Origin((1, 1), 3, 2, has_waited=True), Origin((1, 1), 3, 2)
    grown.add(call("waits", 2, 6, 7, worker), 0.0)
    grown.add(call("above", 1, 2, 10), 0.0)
    assert places.take() == [("above", None), ("waits", "above")]
    grown.add(call("within", 2, 8, 12, worker), 0.0)
    grown.add(call("after", 2, 13, 14, worker), 0.0)
    grown.add(call("own", 3, 13, 14, plain), 0.0)
    assert places.take() == [("within", "above"), ("after", None), ("own", "above")]


def test_what_waits_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "MAX_BYTES", 100)
    places = Places()
    grown: Forest[str, str] = Forest(places.send)
    grown.add(call("young", 2, 7, 8, Origin((1, 1), 6, 5), 60), 0.0)
    grown.add(call("old", 3, 7, 8, Origin((1, 4), 6, 4), 60), 0.0)
    assert places.take() == [("old", None)]
    grown.add(call("parent", 1, 5, 9), 0.0)
    assert places.take() == [("parent", None), ("young", "parent")]
    assert grown.is_empty
