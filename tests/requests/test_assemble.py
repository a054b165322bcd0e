# SPDX-License-Identifier: Apache-2.0
"""Requests are made of records in the order of time; decoders are stand-ins."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gotrace.requests import assemble
from gotrace.requests.assemble import Assembler
from gotrace.requests.edges import FIRST, NOTHING, EdgeKind
from gotrace.requests.waiting import LINGER, PATIENCE
from gotrace.session.events import HEADER
from gotrace.session.reading import Missing
from gotrace.values.model import StringValue

ROOT, INNER, GIVEN = 0, 1, 2
PID = 7
CONTEXTS = 0x1000


@dataclass(eq=False)
class Spec:
    """In the place of a probe."""


@dataclass
class Shown:
    """In the place of a decoded call."""

    name: int
    goid: int
    duration_ns: int
    extras: tuple[Any, ...] = ()


@dataclass
class Decoder:
    """In the place of a decoder: every call is wanted.

    ``is_given``: the function is given contexts, whose addresses its records end with.
    """

    number: int
    is_given: bool = False
    spec: Spec = field(default_factory=Spec)

    @property
    def traced(self) -> Any:
        @dataclass
        class Traced:
            parts: tuple[Any, ...]

        return Traced(((self.spec, Spec2((1,) if self.is_given else ())),))

    def calls(self, record: bytes) -> list[tuple[Spec, Shown]]:
        end, start, goid, *_ = HEADER.unpack_from(record)
        extras = (StringValue(record[HEADER.size :], None),) if self.is_given else ()
        return [(self.spec, Shown(self.number, goid, end - start, extras))]


@dataclass
class Spec2:
    """In the place of a resolved probe."""

    extras: tuple[Any, ...] = ()


@pytest.fixture
def played() -> Assembler:
    decoders = [Decoder(ROOT), Decoder(INNER), Decoder(GIVEN, True)]
    return Assembler(cast(Any, decoders), cast(Any, [decoders[ROOT].spec]))


def call(function: int, goid: int, start: int, end: int) -> bytes:
    return HEADER.pack(end, start, goid, PID, goid, function, 0, 0, 0, 0, 0)


def given(goid: int, start: int, end: int, *contexts: int) -> bytes:
    return call(GIVEN, goid, start, end) + struct.pack(f"<{len(contexts)}Q", *contexts)


def edge(
    kind: EdgeKind, goid: int, at: int, other: int = 0, first: int = 0, second: int = 0
) -> bytes:
    return HEADER.pack(at, other, goid, PID, goid, FIRST + kind, 0, 0, 0, first, second)


def begin(assembler: Assembler, count: int) -> None:
    """Begin requests, the first in goroutine 1, at 101: each has a context of its own."""
    for number in range(1, count + 1):
        at = 100 + number
        assembler.add(edge(EdgeKind.BEGIN, number, at, at, 50, CONTEXTS + number))


def end(assembler: Assembler, *numbers: int) -> None:
    for number in numbers:
        assembler.add(call(ROOT, number, 100 + number, 9000 + number))


def nodes(assembler: Assembler) -> dict[int, list[tuple[str, int]]]:
    """End the run; return edges and goroutines of each request's calls, by its root's goroutine."""
    return {
        found.root.goid: [(node.edge, node.goid) for node in found.nodes()][1:]
        for found in assembler.take(time.monotonic(), is_over=True)
    }


def request(assembler: Assembler, goid: int, start: int, end: int) -> None:
    assembler.add(edge(EdgeKind.BEGIN, goid, start, start, 100))
    assembler.add(call(ROOT, goid, start, end))


def test_calls_are_nested_and_handed_on(played: Assembler) -> None:
    for record in (
        edge(EdgeKind.BEGIN, 1, 100, 100, 50),
        edge(EdgeKind.GO, 1, 130, 2),
        call(INNER, 2, 140, 150),
        call(INNER, 1, 120, 160),  # the go statement was in it
        call(INNER, 3, 165, 170),  # of nobody
        call(ROOT, 1, 100, 200),
    ):
        played.add(record)
    [found] = played.take(time.monotonic(), is_over=True)
    assert found.root.self_ns == 60
    [inner] = found.root.children
    assert (inner.edge, inner.start_ns, inner.self_ns) == ("call", 20, 40)
    assert [(node.edge, node.goid) for node in inner.children] == [("go", 2)]
    assert (found.unattributed, found.unfinished) == (1, 1)
    assert (played.tally.nodes, played.tally.unattributed) == (3, 1)


def test_a_request_waits_for_who_works_for_it(played: Assembler) -> None:
    played.add(edge(EdgeKind.BEGIN, 1, 100, 100, 50))
    played.add(edge(EdgeKind.GO, 1, 130, 2))
    played.add(call(ROOT, 1, 100, 200))
    now = time.monotonic()
    assert list(played.take(now + LINGER + 1)) == []
    played.add(call(INNER, 2, 210, 220))
    played.add(edge(EdgeKind.DEAD, 2, 230))
    [found] = played.take(now + LINGER + 1)
    assert [node.edge for node in found.nodes()] == ["call", "go"]
    assert found.unfinished == 0


def test_it_does_not_wait_for_ever(played: Assembler) -> None:
    played.add(edge(EdgeKind.BEGIN, 1, 100, 100, 50))
    played.add(edge(EdgeKind.GO, 1, 130, 2))
    played.add(call(ROOT, 1, 100, 200))
    [found] = played.take(time.monotonic() + PATIENCE + 1)
    assert found.unfinished == 1
    played.add(call(INNER, 2, 210, 220))
    assert played.tally.late == 1


def test_requests_that_are_not_taken_stay(played: Assembler) -> None:
    for number in range(3):
        request(played, number + 1, 100, 200 + number)
    now = time.monotonic() + LINGER + 1
    first = played.take(now)
    assert next(first).root.goid == 1
    first.close()
    assert [one.root.goid for one in played.take(now)] == [2, 3]
    assert played.is_empty


def test_requests_that_nobody_takes_are_counted(played: Assembler) -> None:
    request(played, 1, 100, 200)
    assert not played.is_empty
    played.drop()
    assert played.is_empty
    assert list(played.take(time.monotonic(), is_over=True)) == []
    assert played.tally.lost == 1


def test_a_gap_gives_up_what_is_open(played: Assembler) -> None:
    played.add(edge(EdgeKind.BEGIN, 1, 100, 100, 50))
    played.missing(Missing(1))
    played.add(call(ROOT, 1, 100, 200))  # from before the gap was seen
    later = time.monotonic_ns() + 10
    request(played, 1, later, later + 10)
    [found] = played.take(time.monotonic(), is_over=True)
    assert found.root.start_ns == 0
    assert (played.tally.lost, played.tally.unattributed) == (1, 1)
    played.missing(Missing(1))
    assert played.tally.lost == 1


def test_a_gap_spoils_only_what_is_in_it(played: Assembler) -> None:
    """Records are read later than they were made, and later than it is known that some are lost."""
    at = time.monotonic_ns() + 20_000_000
    played.missing(Missing())
    while time.monotonic_ns() < at:  # as long as a program may have taken to write a record
        pass
    first = time.monotonic_ns() - 15_000_000
    played.missing(Missing(7, begins=2))
    after = time.monotonic_ns()
    request(played, 1, 100, 200)  # before the gap
    played.add(edge(EdgeKind.BEGIN, 2, 300, 300, 100))  # open when it begins
    request(played, 3, first, first + 10)  # within
    played.add(call(ROOT, 2, 300, after + 5))
    request(played, 4, after + 10, after + 20)
    found = list(played.take(time.monotonic(), is_over=True))
    assert [one.root.goid for one in found] == [1, 4]
    # Two are known to the kernel alone.
    assert (played.tally.lost, played.tally.unattributed) == (2 + 2, 2)
    assert played.is_empty


def test_a_root_that_never_ends_is_counted(played: Assembler) -> None:
    played.add(edge(EdgeKind.BEGIN, 1, 100, 100, 50))
    assert list(played.take(time.monotonic(), is_over=True)) == []
    assert played.tally.lost == 1


def test_the_largest_request_is_given_up(
    played: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "_MAX_CALLS", 5)
    played.add(edge(EdgeKind.BEGIN, 1, 100, 100, 50))
    played.add(edge(EdgeKind.BEGIN, 2, 100, 100, 50))
    played.add(call(INNER, 2, 110, 120))
    for number in range(5):
        played.add(call(INNER, 1, 110 + number, 120 + number))
    played.add(call(ROOT, 2, 100, 300))
    played.add(call(ROOT, 1, 100, 310))
    [found] = played.take(time.monotonic(), is_over=True)
    assert found.root.goid == 2
    assert (played.tally.lost, played.tally.late) == (1, 6)


def test_the_first_request_is_given_up(played: Assembler, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many; its calls are counted, also those that come then."""
    monkeypatch.setattr(assemble, "_MAX_REQUESTS", 3)
    begin(played, 3)
    played.add(call(INNER, 1, 200, 210))
    played.add(edge(EdgeKind.BEGIN, 4, 300, 300, 50))
    assert (played.tally.lost, played.tally.late) == (1, 1)
    played.add(call(INNER, 1, 400, 410))
    end(played, 1, 2, 3)
    assert nodes(played) == {2: [], 3: []}
    assert (played.tally.lost, played.tally.late, played.tally.unattributed) == (2, 3, 0)


def test_calls_of_requests_that_nobody_takes_are_late(played: Assembler) -> None:
    begin(played, 2)
    for number in range(3):
        played.add(call(INNER, 1, 200 + number, 210 + number))
    end(played, 1)
    played.drop()
    assert (played.tally.lost, played.tally.late) == (2, 4)  # with the root's


def test_a_context_says_whose_calls_are(played: Assembler) -> None:
    begin(played, 8)
    played.add(call(INNER, 20, 200, 210))
    played.add(call(INNER, 20, 320, 330))
    played.add(given(20, 300, 400, CONTEXTS + 2))
    end(played, 1, 2)
    assert nodes(played) == {1: [], 2: [("context", 20), ("call", 20)]}
    assert played.tally.unattributed == 1


def test_a_context_that_contradicts_another_edge_says_nothing(played: Assembler) -> None:
    """Neither does the edge: the call is of nobody."""
    begin(played, 8)
    played.add(edge(EdgeKind.GO, 1, 200, 20))
    for number, context in enumerate((1, 2)):
        played.add(given(20, 300 + 10 * number, 305 + 10 * number, CONTEXTS + context))
    # Not so in a root's own goroutine, which may be given what it likes.
    played.add(given(1, 400, 410, CONTEXTS + 2))
    end(played, 1, 2)
    assert nodes(played) == {1: [("go", 20), ("call", 1)], 2: []}
    assert played.tally.unattributed == 1


def test_a_context_that_contradicts_what_a_goroutine_has_left_says_nothing(
    played: Assembler,
) -> None:
    """Several requests, one after the other, may be given a connection's context."""
    begin(played, 8)
    for goid in (20, 21):
        played.add(edge(EdgeKind.GO, 1, 200, goid))
    end(played, 1)
    for goid in (20, 21):
        played.add(edge(EdgeKind.REST, 0, 9500, goid))
    played.add(given(20, 9600, 9700, CONTEXTS + 2))
    played.add(given(21, 9600, 9700, CONTEXTS + 1))
    end(played, 2)
    assert nodes(played) == {1: [("context", 21)], 2: []}
    assert played.tally.unattributed == 1


@pytest.mark.parametrize("is_open", [True, False])
def test_a_context_of_who_has_started_a_goroutine_may_be_kept_by_it(
    played: Assembler, is_open: bool
) -> None:
    """Once that has ended, it may serve others with it: nobody knows from the first time on."""
    begin(played, 8)
    played.add(edge(EdgeKind.GO, 1, 200, 20))
    if not is_open:
        end(played, 1)
    played.add(edge(EdgeKind.WAKE, 0, 9500, 20, 1))
    played.add(given(20, 9600, 9700, CONTEXTS + 1))
    if is_open:
        end(played, 1)
    assert nodes(played) == {1: [("context", 20)] if is_open else []}
    assert played.tally.unattributed == (not is_open)


def test_what_answers_another_request_is_of_nobody(played: Assembler) -> None:
    """Its calls up to then are not shown, and neither are those that it has handed on."""
    begin(played, 8)
    played.add(edge(EdgeKind.GO, 1, 200, 20))
    played.add(edge(EdgeKind.GO, 1, 201, 30))
    played.add(edge(EdgeKind.GO, 20, 210, 21))
    for goid in (20, 21, 30):
        played.add(call(INNER, goid, 220, 230))
    played.add(given(20, 240, 250, CONTEXTS + 2))
    assert played.tally.unattributed == 1
    played.add(edge(EdgeKind.REST, 20, 300, 2, 1))  # the second root has waited for it
    played.add(given(20, 310, 320, CONTEXTS + 2))  # contexts say more
    end(played, 1, 2)
    assert nodes(played) == {1: [("go", 30)], 2: [("context", 20)]}
    assert (played.tally.unattributed, played.tally.late) == (3, 0)


KICK, WORKER = 0x3E65CE5963F0, 1966


def kick(assembler: Assembler, goid: int, at: int, channel: int = KICK) -> None:
    """Have a request's goroutine send a signal, and the worker take it."""
    assembler.add(edge(EdgeKind.WRITE, goid, at, NOTHING, channel + 8, channel))
    assembler.add(edge(EdgeKind.DROP, WORKER, at + 1, 0, channel + 8, channel))


def kicked(assembler: Assembler) -> None:
    """Have a worker that the second request has started take the signal of that, and do a job.

    This is what was recorded of a worker that did the job of the first request, which had left it
    in a slice and had not sent its own signal yet.
    """
    begin(assembler, 2)
    assembler.add(edge(EdgeKind.GO, 2, 130, WORKER))
    assembler.add(call(INNER, WORKER, 140, 150))
    kick(assembler, 2, 160)
    assembler.add(call(INNER, WORKER, 170, 180))
    assembler.add(edge(EdgeKind.GO, WORKER, 182, WORKER + 1))
    assembler.add(call(INNER, WORKER + 1, 184, 186))


KNOWN = ("go", WORKER)


@pytest.mark.parametrize("what", ["lives", "is told by both", "has a channel of both"])
def test_a_worker_that_a_signal_tells_of_work_may_do_that_of_others(
    played: Assembler, what: str
) -> None:
    kicked(played)
    if what == "is told by both":
        played.add(edge(EdgeKind.WAKE, 1, 190, WORKER, 1))
        played.add(call(INNER, WORKER, 200, 210))
        played.add(edge(EdgeKind.DEAD, WORKER, 250))
    elif what == "has a channel of both":
        played.add(edge(EdgeKind.DEAD, WORKER, 250))
        played.add(edge(EdgeKind.WRITE, 1, 260, NOTHING, KICK + 8, KICK))
    end(played, 1, 2)
    assert nodes(played) == {1: [], 2: [KNOWN]}
    assert played.tally.unattributed == 2 + (what == "is told by both")


def test_one_that_ends_has_done_what_its_own_request_has_told_it_of(played: Assembler) -> None:
    """A signal of another channel, which others use as well, says nothing of what was before."""
    kicked(played)
    played.add(edge(EdgeKind.WRITE, 1, 190, NOTHING, 0x5008, 0x5000))
    kick(played, 2, 190, 0x5000)
    played.add(call(INNER, WORKER, 200, 210))
    played.add(edge(EdgeKind.DEAD, WORKER, 250))
    end(played, 1, 2)
    assert nodes(played) == {1: [], 2: [KNOWN, KNOWN, ("go", WORKER + 1)]}
    assert played.tally.unattributed == 1


def test_one_that_another_request_tells_of_more_may_have_looked_for_work_before(
    played: Assembler,
) -> None:
    for number in (10, 20):
        played.add(edge(EdgeKind.BEGIN, number, 100 + number, 100 + number, 50))
        played.add(edge(EdgeKind.GO, number, 130, number + 1))
        played.add(call(INNER, number + 1, 140, 150))
    played.add(edge(EdgeKind.WAKE, 20, 160, 11, 1))
    played.add(edge(EdgeKind.WAKE, 10, 160, 21, 1))
    played.add(edge(EdgeKind.DEAD, 21, 170))
    end(played, 10, 20)
    assert nodes(played) == {10: [], 20: [("go", 21)]}


def test_a_goroutines_latest_calls_alone_wait_for_what_is_around(
    played: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "_MAX_LOOSE", 4)
    begin(played, 8)
    for number in range(6):
        played.add(call(INNER, 20, 310 + 10 * number, 315 + 10 * number))
    played.add(given(20, 300, 400, CONTEXTS + 2))
    end(played, 2)
    assert nodes(played) == {2: [("context", 20), *[("call", 20)] * 4]}
    assert played.tally.unattributed == 2


def test_the_calls_of_whoever_has_made_none_for_longest_do_not_wait(
    played: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are too many of all goroutines."""
    monkeypatch.setattr(assemble, "_MAX_ALL_LOOSE", 3)
    begin(played, 8)
    for goid in (20, 21):
        for number in range(2):
            played.add(call(INNER, goid, 310 + 10 * number, 315 + 10 * number))
    for goid in (21, 20):
        played.add(given(goid, 300, 400, CONTEXTS + 2))
    end(played, 2)
    assert sorted(nodes(played)[2]) == [
        ("call", 21),
        ("call", 21),
        ("context", 20),
        ("context", 21),
    ]
    assert played.tally.unattributed == 2
