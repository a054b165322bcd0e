# SPDX-License-Identifier: Apache-2.0
"""Requests are made of records in the order of time; decoders are stand-ins."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gotrace.requests import assemble
from gotrace.requests.assemble import LINGER, PATIENCE, Assembler
from gotrace.requests.edges import FIRST, EdgeKind
from gotrace.session.events import HEADER

ROOT, INNER = 0, 1
PID = 7


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
    """In the place of a decoder: every call is wanted."""

    number: int
    spec: Spec = field(default_factory=Spec)

    @property
    def traced(self) -> Any:
        @dataclass
        class Traced:
            parts: tuple[Any, ...]

        return Traced(((self.spec, Spec2()),))

    def calls(self, record: bytes) -> list[tuple[Spec, Shown]]:
        end, start, goid, *_ = HEADER.unpack_from(record)
        return [(self.spec, Shown(self.number, goid, end - start))]


@dataclass
class Spec2:
    """In the place of a resolved probe."""

    extras: tuple[Any, ...] = ()


@pytest.fixture
def played() -> Assembler:
    decoders = [Decoder(ROOT), Decoder(INNER)]
    return Assembler(cast(Any, decoders), cast(Any, [decoders[ROOT].spec]))


def call(function: int, goid: int, start: int, end: int) -> bytes:
    return HEADER.pack(end, start, goid, PID, goid, function, 0, 0, 0, 0, 0)


def edge(kind: EdgeKind, goid: int, at: int, other: int = 0, first: int = 0) -> bytes:
    return HEADER.pack(at, other, goid, PID, goid, FIRST + kind, 0, 0, 0, first, 0)


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
    played.missing(1)
    played.add(call(ROOT, 1, 100, 200))  # from before the gap was seen
    later = time.monotonic_ns() + 10
    request(played, 1, later, later + 10)
    [found] = played.take(time.monotonic(), is_over=True)
    assert found.root.start_ns == 0
    assert (played.tally.lost, played.tally.unattributed) == (1, 1)
    played.missing(1)
    assert played.tally.lost == 1


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
