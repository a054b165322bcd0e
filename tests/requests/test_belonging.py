# SPDX-License-Identifier: Apache-2.0
"""Whose work a goroutine does, by edges that are made up: one rule at a time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.capture.ops import MAX_REPORTED_CONTEXTS
from gotrace.requests.belonging import Belonging, Contexts, Link, Work
from gotrace.requests.edges import FIRST, Edge, EdgeKind, edge_of
from gotrace.session.events import HEADER

BPF = Path(__file__).parents[2] / "bpf"
QUEUE, OTHER, POOL = 0x1000, 0x2000, 0x3000
ROOT, SECOND, WORKER, CHILD = 1, 2, 10, 11
SHALLOW, DEEP = 100, 200


class Played:
    """Edges of one process, a moment apart."""

    def __init__(self) -> None:
        self.belonging = Belonging()
        self.now = 0

    def add(self, kind: EdgeKind, goid: int, other: int = 0, *rest: int) -> None:
        self.now += 10
        self.belonging.add(Edge(kind, self.now, 7, goid, other, *rest))

    def begin(self, goid: int, depth: int = SHALLOW, context: int = 0) -> Work:
        self.now += 10
        edge = Edge(EdgeKind.BEGIN, self.now, 7, goid, self.now, depth, context)
        work = self.belonging.begin(edge)
        assert work is not None
        return work

    def end(self, work: Work) -> None:
        self.now += 10
        root = work.root
        assert self.belonging.end(root.goroutine, root.begin, self.now) is work

    def of(self, goid: int) -> Work | None:
        span = self.belonging.span_at((7, goid), self.now)
        return span.work if span is not None else None

    def link(self, goid: int) -> Link | None:
        span = self.belonging.span_at((7, goid), self.now)
        return span.link if span is not None else None

    def pass_on(self, sender: int, receiver: int, channel: int, depth: int, word: int) -> None:
        """Send through the first slot of a channel's buffer."""
        self.add(EdgeKind.WRITE, sender, word, channel + 8, channel)
        self.add(EdgeKind.READ, receiver, 0, channel + 8, channel, depth)

    def queue(self) -> None:
        """Have the channel be seen to be a queue."""
        for word in (1, 2):
            self.pass_on(90, 91, QUEUE, SHALLOW, word)


@pytest.fixture
def played() -> Played:
    return Played()


def test_kinds_are_those_of_the_kernel() -> None:
    text = (BPF / "edges.h").read_text()
    names = re.findall(r"^    EDGE_(\w+)[, ]", text, re.MULTILINE)
    assert names == [kind.name for kind in EdgeKind]
    assert f"#define EDGE_FIRST {FIRST:#x}" in text
    most = re.search(r"#define MAX_REPORTED_CONTEXTS (\d+)", (BPF / "payload.h").read_text())
    assert most is not None
    assert int(most[1]) == MAX_REPORTED_CONTEXTS


def test_an_edge_is_read_from_its_record() -> None:
    record = HEADER.pack(5, 1, 2, 3, 4, FIRST + EdgeKind.HAND, 0, 0, 99, 6, 8)
    assert edge_of(HEADER.unpack(record)) == Edge(EdgeKind.HAND, 5, 3, 2, 1, 6, 8, 99)


def test_a_go_statement_starts_work_up_to_a_wait_that_another_ends(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    assert played.of(CHILD) is work
    assert played.link(CHILD) is Link.GO
    played.add(EdgeKind.WAKE, ROOT, CHILD, 1, 0, DEEP)
    assert played.of(CHILD) is work
    played.end(work)
    assert played.of(ROOT) is None
    assert played.of(CHILD) is work
    played.add(EdgeKind.WAKE, 0, CHILD, 1, 0, DEEP)
    assert played.of(CHILD) is None
    assert work.working == 0


def test_a_worker_works_for_who_has_sent_its_item(played: Played) -> None:
    played.queue()
    works = [played.begin(ROOT), played.begin(SECOND)]
    for sender, work in ((ROOT, works[0]), (SECOND, works[1]), (ROOT, works[0])):
        played.pass_on(sender, WORKER, QUEUE, SHALLOW, 5)
        assert played.of(WORKER) is work
        assert played.link(WORKER) is Link.ITEM


def test_an_item_of_nobody_ends_work(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(92, WORKER, QUEUE, SHALLOW, 6)
    assert played.of(WORKER) is None


def test_a_channel_is_no_queue_before_somebody_has_received_twice(played: Played) -> None:
    played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    assert played.of(WORKER) is None
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 6)
    assert played.of(WORKER) is not None


def test_what_is_taken_further_inside_is_a_part_of_the_work(played: Played) -> None:
    played.queue()
    work = played.begin(ROOT)
    other = played.begin(SECOND)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(93, WORKER, OTHER, DEEP, 6)  # an answer of somebody who works for nobody
    assert played.of(WORKER) is work
    played.pass_on(SECOND, WORKER, OTHER, DEEP, 7)  # nobody knows what that is
    assert played.of(WORKER) not in (work, other)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 8)
    played.pass_on(92, WORKER, OTHER, SHALLOW, 9)  # the next turn of a loop
    assert played.of(WORKER) is None


def test_a_pool_hands_nothing_over(played: Played) -> None:
    work, other = played.begin(ROOT), played.begin(SECOND)
    for _ in range(3):
        played.pass_on(94, SECOND, POOL, DEEP, 1)
        played.add(EdgeKind.WRITE, SECOND, 1, POOL + 8, POOL)
        played.add(EdgeKind.READ, 94, 0, POOL + 8, POOL, DEEP)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.pass_on(SECOND, CHILD, POOL, DEEP, 1)
    assert played.of(CHILD) is work
    played.pass_on(SECOND, WORKER, POOL, DEEP, 2)
    assert played.of(WORKER) is None
    assert played.of(SECOND) is other


def test_an_item_of_a_waiting_receiver_is_one_end_of_its_wait(played: Played) -> None:
    played.queue()
    work = played.begin(ROOT)
    played.add(EdgeKind.HAND, ROOT, WORKER, 5, QUEUE, SHALLOW)
    played.add(EdgeKind.WAKE, ROOT, WORKER, 1, 0, SHALLOW)
    assert played.of(WORKER) is work
    played.add(EdgeKind.WAKE, 0, WORKER, 1, 0, SHALLOW)  # a ticker
    assert played.of(WORKER) is None


def test_a_select_that_sends_is_no_wait_for_work(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.SENT, 95, CHILD)
    played.add(EdgeKind.WAKE, 95, CHILD, 1, 0, SHALLOW)
    assert played.of(CHILD) is work


def test_a_goroutine_hands_nothing_to_itself(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(WORKER, WORKER, QUEUE, SHALLOW, 6)
    assert played.of(WORKER) is None


def test_a_timer_starts_work(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.TIMER, ROOT, 0, 0xAAA)
    played.add(EdgeKind.GO, 0, CHILD, 0xAAA)
    assert played.of(CHILD) is work
    played.add(EdgeKind.GO, 0, 12, 0xAAA)  # reset: it has fired
    assert played.of(12) is None


def test_a_timer_is_not_that_of_who_resets_it(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.TIMER, 97, 0, 0xBBB)
    played.add(EdgeKind.GO, ROOT, CHILD, 0xBBB)
    assert played.of(CHILD) is None
    played.add(EdgeKind.GO, ROOT, 12, 0xCCC)
    assert played.of(12) is work


def test_a_stopped_timers_closure_says_nothing_of_another_at_its_address(played: Played) -> None:
    first = played.begin(ROOT)
    played.add(EdgeKind.TIMER, ROOT, 0, 0xAAA)
    played.end(first)
    played.add(EdgeKind.FREED, ROOT)
    second = played.begin(SECOND)
    played.add(EdgeKind.GO, SECOND, CHILD, 0xAAA)
    assert played.of(CHILD) is second


def test_a_coroutine_works_for_who_resumes_it(played: Played) -> None:
    work, other = played.begin(ROOT), played.begin(SECOND)
    played.add(EdgeKind.SWITCH, ROOT, CHILD)
    assert played.of(CHILD) is work
    played.add(EdgeKind.SWITCH, CHILD, ROOT)
    assert played.of(ROOT) is work
    played.add(EdgeKind.SWITCH, SECOND, CHILD)
    assert played.of(CHILD) is other
    played.add(EdgeKind.SWITCH, 96, CHILD)
    assert played.of(CHILD) is None


def test_a_call_of_the_root_within_another_one_begins_nothing(played: Played) -> None:
    work = played.begin(ROOT)
    inner = Edge(EdgeKind.BEGIN, 50, 7, ROOT, 50, DEEP)
    assert played.belonging.begin(inner) is None
    assert played.belonging.end((7, ROOT), 50, 60) is None
    # At its own place or further out it has ended unseen.
    again = played.begin(ROOT)
    assert not work.is_open
    assert played.of(ROOT) is again


def test_all_is_forgotten_where_records_are_missing(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.belonging.forget(played.now)
    assert played.of(CHILD) is None
    assert played.of(ROOT) is None
    assert not work.is_open
    assert work.working == 0


def given(count: int, first: int = 0x100) -> tuple[Contexts, list[Work]]:
    """Return requests that were given different contexts."""
    contexts, works = Contexts(), []
    for number in range(count):
        works.append(Work((7, 100 + number), number))
        contexts.begin((7, first + number), works[-1])
    return contexts, works


def test_a_context_says_whose_a_call_is() -> None:
    contexts, works = given(8)
    found = contexts.find((7, 1), [0x900, 0x102, 0x901], 50)
    assert found == (works[2], (7, 0x102))
    assert contexts.find((7, 1), [0x900], 50) is None
    assert contexts.find((8, 1), [0x102], 50) is None


def test_few_contexts_say_nothing() -> None:
    contexts, _ = given(7)
    assert contexts.find((7, 1), [0x102], 50) is None


def test_a_shared_context_says_nothing() -> None:
    contexts, works = given(8)
    contexts.begin((7, 0x102), Work((7, 200), 20))
    assert contexts.is_shared((7, 0x102))
    assert contexts.find((7, 1), [0x102], 50) is None
    assert contexts.find((7, 1), [0x102, 0x103], 50) == (works[3], (7, 0x103))
    # Two at once as well.
    assert contexts.find((7, 1), [0x103, 0x104], 50) is None


def test_a_context_that_others_had_before_says_nothing() -> None:
    contexts, _ = given(8)
    assert contexts.find((7, 1), [0x500], 10) is None
    contexts.begin((7, 0x500), Work((7, 300), 20))
    assert contexts.is_shared((7, 0x500))
    # One whose call began before the request's, and ended after that.
    assert contexts.find((7, 1), [0x107], 5) is None
    assert contexts.is_shared((7, 0x107))


def test_an_ended_request_is_forgotten_with_the_next_collection() -> None:
    contexts, works = given(8)
    works[2].is_open = False
    assert contexts.find((7, 1), [0x102], 50) is not None
    contexts.freed(7)
    assert contexts.find((7, 1), [0x102], 50) is None
    assert contexts.find((7, 1), [0x103], 50) is not None
    # Another request may be given a context at the address of an open one's, which may be freed.
    contexts.begin((7, 0x103), Work((7, 200), 60))
    assert not contexts.is_shared((7, 0x103))
    assert contexts.find((7, 1), [0x103], 70) is None
