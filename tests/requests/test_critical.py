# SPDX-License-Identifier: Apache-2.0
"""Critical paths of states that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import gotrace
from gotrace.calls import Call
from gotrace.errors import UsageError
from gotrace.profiles.execution import StateChange
from gotrace.requests import critical
from gotrace.requests.belonging import Link, Span, Task, Work
from gotrace.requests.critical import PathPart, States, critical_path
from gotrace.requests.edges import Edge, EdgeKind
from gotrace.requests.model import Node, Request

RUNNABLE, RUNNING, WAITING = 1, 2, 4
REASONS = ("", "chan receive", "sleep")


def path(changes: Sequence[tuple[int, int, int, int, int]], *spans: Span) -> list[PathPart]:
    """Return the path of goroutine 1 from 0 to 1000; a change has a time, whose, to, why, by."""
    states = States()
    for at, goid, state, reason, by in changes:
        states.add(Edge(EdgeKind.STATE, at, 7, by, goid, state, reason))

    def span_at(task: Task, moment: int) -> Span | None:
        return next(
            (
                span
                for span in spans
                if span.goroutine == task and span.begin <= moment <= (span.end or 9999)
            ),
            None,
        )

    def pieces(task: Task, low: int, high: int) -> list[tuple[int, int, str]]:
        return [(low, high, f"f{task[1]}")]

    found = critical_path(states, ((7, 1), 0, 1000), span_at, pieces, REASONS)
    assert sum(part.ns for part in found) == 1000
    return list(found)


def test_a_goroutine_by_itself() -> None:
    changes = [(200, 1, WAITING, 2, 0), (500, 1, RUNNABLE, 0, 0), (600, 1, RUNNING, 0, 0)]
    assert path(changes) == [
        PathPart("f1", 1, "running", 200),
        PathPart("f1", 1, "blocked: sleep", 300),
        PathPart("f1", 1, "runnable", 100),
        PathPart("f1", 1, "running", 400),
    ]


@pytest.mark.parametrize(("most", "waits"), [(40, True), (39, False)])
def test_changes_are_forgotten_if_there_are_too_many(
    most: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(critical, "_MAX_KNOWN", most)
    changes = [(100, 1, WAITING, 2, 0), (200, 1, RUNNING, 0, 0)]
    changes += [(300 + at, 1, RUNNING, 0, 0) for at in range(38)]
    found = path(changes)
    blocked = PathPart("f1", 1, "blocked: sleep", 100)
    assert (blocked in found) == waits
    assert found[0] == PathPart("f1", 1, *(("running", 100) if waits else ("not known", 310)))
    assert found[-1].what == "running"


def test_a_wait_has_the_reason_that_is_known_at_its_end() -> None:
    """Go 1.19 notes only after a goroutine waits that it does so for the collector."""
    changes = [(200, 1, WAITING, 1, 0), (500, 1, RUNNING, 2, 1), (600, 1, WAITING, 1, 0)]
    assert path(changes) == [
        PathPart("f1", 1, "running", 200),
        PathPart("f1", 1, "blocked: sleep", 300),
        PathPart("f1", 1, "running", 100),
        PathPart("f1", 1, "blocked: chan receive", 400),
    ]


WAITS = [(200, 1, WAITING, 1, 0), (800, 1, RUNNABLE, 0, 2), (850, 1, RUNNING, 0, 0)]


def test_who_ends_a_wait_for_the_request_is_on_the_path() -> None:
    work = Work((7, 1), 0)
    span = Span(work, (7, 2), 100, Link.GO, work.root)
    own = [(300, 2, WAITING, 2, 0), (400, 2, RUNNABLE, 0, 0), (420, 2, RUNNING, 0, 0)]
    assert path([*WAITS[:1], *own, *WAITS[1:]], span) == [
        PathPart("f1", 1, "running", 200),
        PathPart("f2", 2, "running", 100),
        PathPart("f2", 2, "blocked: sleep", 100),
        PathPart("f2", 2, "runnable", 20),
        PathPart("f2", 2, "running", 380),
        PathPart("f1", 1, "runnable", 50),
        PathPart("f1", 1, "running", 150),
    ]


def test_work_of_others_is_not() -> None:
    assert [part.what for part in path(WAITS)] == [
        *("running", "blocked: chan receive", "runnable", "running"),
    ]


def test_work_that_began_later_is_followed_to_where_it_came_from() -> None:
    work = Work((7, 1), 0)
    first = Span(work, (7, 3), 100, Link.GO, work.root)
    second = Span(work, (7, 2), 500, Link.ITEM, first)
    assert path(WAITS, first, second) == [
        PathPart("f1", 1, "running", 200),
        PathPart("f3", 3, "running", 300),
        PathPart("f2", 2, "running", 300),
        PathPart("f1", 1, "runnable", 50),
        PathPart("f1", 1, "running", 150),
    ]


def test_two_that_wait_for_each_other_come_to_an_end() -> None:
    work = Work((7, 1), 0)
    spans = [Span(work, (7, goid), 0, Link.GO, None) for goid in (1, 2)]
    changes = [(200, 1, WAITING, 1, 0), (200, 2, WAITING, 1, 0)]
    changes += [(800, 1, RUNNABLE, 0, 2), (800, 2, RUNNABLE, 0, 1)]
    path(changes, *spans)


def test_a_path_is_added_up_by_function() -> None:
    call = Call("main.f", {}, {}, 100, 0, 7, 7, 1)
    parts = tuple(PathPart("f", goid, "running", ns) for goid, ns in ((1, 10), (2, 60), (1, 30)))
    request = Request(Node(call, "call", 0), critical=parts)
    assert request.critical_path() == [PathPart("f", 1, "running", 100, goroutines=2)]
    with pytest.raises(UsageError, match="critical=True"):
        Request(Node(call, "call", 0)).critical_path()


def test_requests_are_read_back(tmp_path: Path) -> None:
    call = Call("main.f", {"n": 1}, {}, 100, 0, 7, 7, 1)
    inner = Node(Call("main.g", {}, None, 20, 0, 7, 7, 2), "item", 5)
    request = Request(Node(call, "call", 0, (inner,)), 1, 2, (PathPart("f", 1, "running", 100),))
    file = tmp_path / "x.json"
    request.save(file)
    assert gotrace.load(file) == [request]
    assert request.root.self_ns == 100
    assert [node.edge for node in request.nodes()] == ["call", "item"]
    with file.open("a") as more:
        more.write('{"kind":"request"}\n')
    with pytest.raises(gotrace.GotraceError, match="json:2: not a line"):
        gotrace.load(file)


def test_states_while_goroutines_work() -> None:
    """From what is in force at a span's begin on, with who did it, to what ends the span."""
    states = States()
    for edge in (
        Edge(EdgeKind.STATE, 50, 7, 0, 1, RUNNING),
        Edge(EdgeKind.GO, 200, 7, 1, 2),
        Edge(EdgeKind.STATE, 210, 7, 0, 2, RUNNING),
        Edge(EdgeKind.STATE, 220, 7, 0, 1, WAITING, 1),
        Edge(EdgeKind.STATE, 300, 7, 2, 1, RUNNABLE),
        Edge(EdgeKind.SWITCH, 310, 7, 2, 3),
        Edge(EdgeKind.STATE, 320, 7, 0, 2, RUNNING),
        Edge(EdgeKind.DEAD, 400, 7, 2),
        # Up to Go 1.23 a new goroutine has that number for a moment.
        Edge(EdgeKind.STATE, 410, 7, 1, 2, RUNNABLE),
        Edge(EdgeKind.STATE, 420, 7, 1, 0, RUNNABLE),
    ):
        states.add(edge, 70 + edge.other)
    work = Work((7, 1), 100)
    own, other = work.root, Span(work, (7, 2), 200, Link.GO, work.root)
    late, unseen = (Span(work, (7, goid), 350, Link.ITEM, own) for goid in (3, 4))
    own.end = 500
    found = list(states.while_working([own, other, late, unseen], 100, 450, REASONS))
    assert found == [
        StateChange(0, 1, "running", "", 0, 71),
        StateChange(120, 1, "waiting", "chan receive", 0, 71),
        StateChange(200, 1, "runnable", "", 2, 71),
        StateChange(350, 1, "unknown"),
        StateChange(100, 2, "created", "", 1),
        StateChange(110, 2, "running", "", 0, 72),
        StateChange(210, 2, "waiting", "coroutine", 0, 73),
        StateChange(220, 2, "running", "", 0, 72),
        StateChange(300, 2, "ended"),
        StateChange(250, 3, "running", "", 0, 73),
        StateChange(350, 3, "unknown"),
        StateChange(250, 4, "running"),
        StateChange(350, 4, "unknown"),
    ]
