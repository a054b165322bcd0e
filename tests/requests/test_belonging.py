# SPDX-License-Identifier: Apache-2.0
"""Whose work a goroutine does, by edges that are made up: one rule at a time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gotrace.capture.ops import MAX_REPORTED_CONTEXTS
from gotrace.requests import belonging
from gotrace.requests.belonging import CASES, Belonging, Contexts, Limits, Link, Span, Work
from gotrace.requests.edges import FIRST, NOTHING, Edge, EdgeKind, edge_of
from gotrace.session.events import HEADER

CLONE = Path(__file__).parents[2]
BPF = CLONE / "bpf"
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

    def pass_on(
        self, sender: int, receiver: int, channel: int, depth: int, word: int, place: int = 0
    ) -> None:
        """Send through the first slot of a channel's buffer."""
        self.add(EdgeKind.WRITE, sender, word, channel + 8, channel)
        self.add(EdgeKind.READ, receiver, 0, channel + 8, channel, depth, place)

    def call(self, goid: int) -> Span | None:
        """Have a goroutine make a call, and return for what."""
        self.now += 10
        self.belonging.acts((7, goid), self.now)
        return self.belonging.span_at((7, goid), self.now)

    def serve(self, sender: int, receiver: int, channel: int = QUEUE) -> Span | None:
        """Send, and have the receiver work on it."""
        self.pass_on(sender, receiver, channel, SHALLOW, self.now)
        return self.call(receiver)

    def queue(self) -> None:
        """Have the channel be seen to be a queue."""
        for _ in range(2):
            self.serve(90, 91)


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
    record = HEADER.pack(5, 1, 2, 3, 4, FIRST + EdgeKind.HAND, 0, 0, 99 | 7 << 32, 6, 8)
    assert edge_of(HEADER.unpack(record)) == Edge(EdgeKind.HAND, 5, 3, 2, 1, 6, 8, 99, 7)


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


def test_a_go_statement_of_the_runtime_is_nobodys(played: Played) -> None:
    """Nor has who executes it done anything with what it was given."""
    played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    goroutine = played.belonging._goroutines[7, CHILD]
    played.add(EdgeKind.GO, CHILD, WORKER, 0, 0, 1)
    assert goroutine.given.is_new and played.of(WORKER) is None
    played.add(EdgeKind.GO, CHILD, WORKER)
    assert not goroutine.given.is_new and played.link(WORKER) is Link.GO


def test_a_worker_works_for_who_has_sent_its_item(played: Played) -> None:
    played.queue()
    works = [played.begin(ROOT), played.begin(SECOND)]
    for sender, work in ((ROOT, works[0]), (SECOND, works[1]), (ROOT, works[0])):
        span = played.serve(sender, WORKER)
        assert span is not None
        assert span.work is work
        assert played.link(WORKER) is Link.ITEM


def test_an_item_of_nobody_ends_work(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(92, WORKER, QUEUE, SHALLOW, 6)
    assert played.of(WORKER) is None


def test_a_channel_is_no_queue_before_somebody_has_received_twice(played: Played) -> None:
    played.begin(ROOT)
    assert played.serve(ROOT, WORKER) is None
    assert played.serve(ROOT, WORKER) is not None


#: Items, the last of which is each of the cases: from whom, to whom, where, how deep, and what. The
#: child is new, and of the first request.
RECEIPTS = (
    [(CHILD, CHILD, POOL, DEEP, NOTHING)],
    [(94, WORKER, POOL, DEEP, 1), (WORKER, 94, POOL, DEEP, 1), (94, WORKER, POOL, DEEP, 1)],
    [(WORKER, WORKER, OTHER, DEEP, 5)],
    [(SECOND, ROOT, QUEUE, DEEP, 5)],
    [(ROOT, WORKER, QUEUE, SHALLOW, 5), (93, WORKER, OTHER, DEEP, 6)],
    [(ROOT, WORKER, QUEUE, SHALLOW, 5), (SECOND, WORKER, OTHER, DEEP, 6)],
    [(ROOT, CHILD, OTHER, DEEP, NOTHING)],
    [(ROOT, CHILD, OTHER, DEEP, 5)],
    [(ROOT, WORKER, QUEUE, SHALLOW, 5), (93, WORKER, QUEUE, SHALLOW, 6)],
    [(SECOND, CHILD, QUEUE, SHALLOW, 5)],
    [(ROOT, WORKER, OTHER, SHALLOW, 5)],
    [(ROOT, WORKER, QUEUE, SHALLOW, 5), (SECOND, WORKER, QUEUE, SHALLOW, 6)],
    [(SECOND, WORKER, QUEUE, SHALLOW, 5)],
)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_receipt_is_one_of_the_cases(
    played: Played, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    seen: list[tuple[bool, ...]] = []
    look = belonging._case_of

    def case_of(*one: bool) -> object:
        seen.append(one)
        return look(*one)

    monkeypatch.setattr(belonging, "_case_of", case_of)
    played.queue()
    works = {ROOT: played.begin(ROOT), SECOND: played.begin(SECOND)}
    played.add(EdgeKind.GO, ROOT, CHILD)
    for sender, receiver, channel, depth, word in RECEIPTS[number]:
        before = played.of(receiver)
        played.pass_on(sender, receiver, channel, depth, word)
    words, _, then = look(*seen[-1])[1]
    assert words == CASES[number].words
    expected = {"IGNORE": before, "GO_ON": before, "WORK": works.get(sender)}
    assert played.of(receiver) is expected.get(then.name)


def test_the_page_has_the_cases_in_their_order() -> None:
    page = (CLONE / "docs/requests.md").read_text()
    rows = page.partition("| a goroutine receives | so |\n|---|---|\n")[2].partition("\n\n")[0]
    cases = [f"| {case.words} | {case.then.value} |" for case in CASES]
    assert rows.splitlines() == cases
    assert len(RECEIPTS) == len(CASES)


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


def test_a_goroutine_that_may_hold_an_item_works_for_nobody(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    other = played.begin(SECOND)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    assert played.serve(SECOND, WORKER) is None
    assert played.serve(SECOND, WORKER) is None  # it may hold the first one as long as it likes
    span = played.serve(SECOND, 12)
    assert span is not None
    assert span.work is other


@pytest.mark.parametrize("kind", [EdgeKind.WRITE, EdgeKind.GO, EdgeKind.TIMER, EdgeKind.SWITCH])
def test_who_has_done_something_for_an_item_holds_none(played: Played, kind: EdgeKind) -> None:
    played.queue()
    played.begin(ROOT)
    work = played.begin(SECOND)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.add(kind, WORKER, CHILD, 0x77, OTHER)
    played.pass_on(SECOND, WORKER, QUEUE, SHALLOW, 5)
    assert played.of(WORKER) is work


def test_a_call_from_before_an_item_is_not_for_it(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.begin(SECOND)
    before = played.now
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.belonging.acts((7, WORKER), before)
    played.pass_on(SECOND, WORKER, QUEUE, SHALLOW, 5)
    assert played.of(WORKER) is None


def test_an_item_is_held_if_another_comes_from_nobody_or_a_signal_does(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(92, WORKER, OTHER, SHALLOW, 6)
    played.pass_on(ROOT, 12, QUEUE, SHALLOW, 5)
    played.add(EdgeKind.DROP, 12, 0, 0, OTHER, SHALLOW)
    for worker in (WORKER, 12):
        assert played.serve(ROOT, worker) is None


def test_what_is_taken_from_a_pool_is_not_held(played: Played) -> None:
    played.queue()
    work = played.begin(ROOT)
    for _ in range(3):
        played.pass_on(94, 95, POOL, SHALLOW, 1)
        played.pass_on(95, 94, POOL, SHALLOW, 1)
    for _ in range(2):
        played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
        played.pass_on(94, WORKER, POOL, SHALLOW, 1)
        span = played.call(WORKER)
        assert span is not None
        assert span.work is work
        played.pass_on(WORKER, 94, POOL, SHALLOW, 1)


def test_what_comes_back_later_was_not_held(played: Played) -> None:
    """That a channel is a pool may be seen after a worker has taken from it for the first time."""
    played.queue()
    work = played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5)
    played.pass_on(94, WORKER, POOL, SHALLOW, 1)
    assert played.call(WORKER) is None
    played.pass_on(WORKER, 94, POOL, SHALLOW, 1)
    span = played.serve(ROOT, WORKER)
    assert span is not None
    assert span.work is work


def test_a_goroutine_that_takes_in_two_statements_works_for_nobody(played: Played) -> None:
    """One of them may take what is needed for the work on what the other one takes."""
    played.queue()
    work, other = played.begin(ROOT), played.begin(SECOND)
    for worker, second, depth in ((12, 1, SHALLOW), (WORKER, 2, SHALLOW), (13, 2, DEEP)):
        played.pass_on(ROOT, worker, QUEUE, SHALLOW, played.now, 1)
        span = played.call(worker)
        assert span is not None
        assert span.work is work
        played.pass_on(ROOT, worker, OTHER, depth, played.now, second)  # of the same request
        played.pass_on(92, worker, OTHER, depth, played.now, second)  # of nobody
        played.call(worker)
        played.pass_on(SECOND, worker, QUEUE, depth, played.now, second)
        span = played.call(worker)
        assert (span is not None) == (worker != WORKER)
        assert span is None or span.work is other
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, played.now, 1)
    assert played.call(WORKER) is None


def answer(played: Played, sender: int, how: str) -> None:
    """Answer the second root."""
    if how == "item":
        played.pass_on(sender, SECOND, OTHER, DEEP, played.now)
    elif how == "thrown away":
        played.add(EdgeKind.WRITE, sender, played.now, OTHER + 8, OTHER)
        played.add(EdgeKind.DROP, SECOND, 0, OTHER + 8, OTHER, DEEP)
    elif how == "to be thrown away":
        played.add(EdgeKind.DROP, SECOND, sender, 0, OTHER, DEEP)
    elif how == "at once":
        played.add(EdgeKind.HAND, sender, SECOND, played.now, OTHER, DEEP)
        played.add(EdgeKind.WAKE, sender, SECOND, 1, 0, DEEP)
    elif how == "signal":
        played.add(EdgeKind.WAKE, sender, SECOND, 1, 0, DEEP)
    else:
        played.add(EdgeKind.REST, sender, SECOND, 1)


ANSWERS = ("item", "thrown away", "to be thrown away", "at once", "signal", "join")


@pytest.mark.parametrize("how", ANSWERS)
def test_who_answers_another_request_has_worked_for_that(played: Played, how: str) -> None:
    played.queue()
    work = played.begin(ROOT)
    played.begin(SECOND)
    played.add(EdgeKind.GO, ROOT, CHILD)
    spans = [played.call(CHILD), played.serve(ROOT, WORKER)]
    for goid, span in zip((CHILD, WORKER), spans, strict=True):
        assert span is not None
        assert span.work is work
        answer(played, goid, how)
        assert span.is_doubted
        assert played.of(goid) is None
    assert work.working == 1
    assert not work.root.is_doubted


@pytest.mark.parametrize("how", ANSWERS)
def test_who_answers_its_own_request_is_not_doubted(played: Played, how: str) -> None:
    played.queue()
    played.begin(SECOND)
    played.add(EdgeKind.GO, SECOND, CHILD)
    spans = [played.call(CHILD), played.serve(SECOND, WORKER)]
    for goid, span in zip((CHILD, WORKER), spans, strict=True):
        answer(played, goid, how)
        assert span is not None
        assert not span.is_doubted


@pytest.mark.parametrize("how", ANSWERS)
def test_the_goroutine_of_a_root_may_answer_others(played: Played, how: str) -> None:
    work = played.begin(ROOT)
    played.begin(SECOND)
    answer(played, ROOT, how)
    assert played.of(ROOT) is work
    assert not work.root.is_doubted


def test_a_pools_items_are_no_answers(played: Played) -> None:
    work = played.begin(ROOT)
    played.begin(SECOND)
    for _ in range(2):
        played.pass_on(94, 95, OTHER, SHALLOW, 9)
        played.pass_on(95, 94, OTHER, SHALLOW, 9)
    played.add(EdgeKind.GO, ROOT, CHILD)
    for how in ("item", "thrown away"):
        answer(played, CHILD, how)
        assert played.of(CHILD) is work


def take_signal(played: Played, sender: int | None, receiver: int, depth: int = SHALLOW) -> None:
    """Have a goroutine take a signal that is there: of a timer, a goroutine, or unknown."""
    if sender is not None:
        played.add(EdgeKind.WRITE, sender, NOTHING, OTHER + 8, OTHER)
    played.add(EdgeKind.DROP, receiver, 0, OTHER + 8, OTHER, depth)


@pytest.mark.parametrize("sender", [0, SECOND, 92, None])
def test_a_signal_that_is_there_ends_what_a_goroutine_was_started_for(
    played: Played, sender: int | None
) -> None:
    """As it does if the goroutine waits for it: it may do what is another's then."""
    work = played.begin(ROOT)
    played.begin(SECOND)
    played.add(EdgeKind.GO, ROOT, CHILD)
    take_signal(played, ROOT, CHILD)
    played.add(EdgeKind.DROP, CHILD, ROOT, 0, OTHER, SHALLOW)  # of one that waits to send it
    assert played.of(CHILD) is work
    take_signal(played, sender, CHILD)
    assert played.of(CHILD) is None
    assert work.working == 1


@pytest.mark.parametrize("how", ["there", "awaited", "number"])
def test_a_signal_where_the_item_was_taken_ends_the_work_on_that(played: Played, how: str) -> None:
    """Even if it is the same request's: a worker may look there for work in a slice."""
    played.queue()
    work = played.begin(ROOT)
    for place in (2, 1):
        played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, played.now, 1)
        assert played.call(WORKER) is not None
        if how == "awaited":
            played.add(EdgeKind.WAKE, ROOT, WORKER, 1, 0, SHALLOW, place)
        elif how == "number":
            played.pass_on(ROOT, WORKER, OTHER, SHALLOW, NOTHING, place)
        else:
            played.add(EdgeKind.WRITE, ROOT, NOTHING, OTHER + 8, OTHER)
            played.add(EdgeKind.DROP, WORKER, 0, OTHER + 8, OTHER, SHALLOW, place)
        assert played.of(WORKER) is (work if place == 2 else None)


def test_a_signal_of_its_own_is_a_semaphores(played: Played) -> None:
    """Whichever signal comes out of the channel."""
    works = {goid: played.begin(goid) for goid in (ROOT, SECOND)}
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.GO, SECOND, WORKER)
    for slot, goid in enumerate((CHILD, WORKER)):
        played.add(EdgeKind.WRITE, goid, NOTHING, OTHER + slot, OTHER)
    for slot, goid in enumerate((WORKER, CHILD)):
        played.add(EdgeKind.DROP, goid, 0, OTHER + slot, OTHER, DEEP)
    assert [played.of(CHILD), played.of(WORKER)] == list(works.values())


def test_signals_that_one_goroutine_sends_do_not_return(played: Played) -> None:
    """Neither their channel is a pool, nor a later channel that gets the address of a pool."""
    played.begin(SECOND)
    for goid in (CHILD, WORKER):
        work = played.begin(ROOT)
        played.add(EdgeKind.GO, ROOT, goid)
        for _ in range(5):
            take_signal(played, ROOT, 90)
        played.end(work)
        other = played.begin(ROOT)
        take_signal(played, ROOT, goid)
        assert played.of(goid) is None
        played.end(other)
        for _ in range(20):
            take_signal(played, SECOND, SECOND)
        played.add(EdgeKind.FREED, 0)


def test_anothers_signal_in_the_work_on_an_item_ends_that(played: Played) -> None:
    played.queue()
    work = played.begin(ROOT)
    played.begin(SECOND)
    played.serve(ROOT, WORKER)
    for sender in (ROOT, 92, 0, None):
        take_signal(played, sender, WORKER, DEEP)
        assert played.of(WORKER) is work
    take_signal(played, SECOND, WORKER, DEEP)
    assert played.of(WORKER) is None


def test_locks_and_conditions_are_no_answers(played: Played) -> None:
    work = played.begin(ROOT)
    played.begin(SECOND)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.WAKE, CHILD, SECOND, 1, 0, 0)
    played.add(EdgeKind.REST, CHILD, SECOND, 0)
    assert played.of(CHILD) is work


@pytest.mark.parametrize("how", ANSWERS)
def test_an_answer_may_come_when_the_goroutine_works_for_nobody(played: Played, how: str) -> None:
    """What it was started for is doubted then, and not what it has had by an item since."""
    played.queue()
    played.begin(ROOT)
    played.begin(SECOND)
    played.add(EdgeKind.GO, ROOT, CHILD)
    started = played.call(CHILD)
    played.add(EdgeKind.WAKE, 0, CHILD, 1, 0, SHALLOW)
    assert played.of(CHILD) is None
    worked = played.serve(ROOT, WORKER)
    played.add(EdgeKind.WAKE, 0, WORKER, 1, 0, SHALLOW)
    for goid in (CHILD, WORKER):
        answer(played, goid, how)
    assert started is not None
    assert worked is not None
    assert (started.is_doubted, worked.is_doubted) == (True, False)


def test_who_goes_on_after_its_requests_end_works_for_it_until_it_rests(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.REST, 0, CHILD)
    assert played.of(CHILD) is work
    played.end(work)
    played.add(EdgeKind.REST, 0, CHILD, 1)  # a join
    assert played.of(CHILD) is work
    played.add(EdgeKind.REST, 0, CHILD)
    assert played.of(CHILD) is None
    assert not work.is_busy


def test_a_queue_is_to_be_seen_again_once_the_collector_has_run(played: Played) -> None:
    work = played.begin(ROOT)
    played.queue()
    played.add(EdgeKind.FREED, 0)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.pass_on(93, CHILD, QUEUE, SHALLOW, 5)  # an answer, perhaps, through another channel
    played.begin(SECOND)
    assert played.serve(SECOND, WORKER) is None
    # One that has its work from there goes on.
    played.serve(ROOT, 12)
    for _ in range(2):
        assert played.serve(ROOT, 12) is not None
        played.add(EdgeKind.FREED, 0)
    span = played.serve(ROOT, 12)
    assert span is not None
    assert span.work is work


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


def test_a_timer_that_is_reset_is_of_who_resets_it(played: Played) -> None:
    played.begin(ROOT)
    work = played.begin(SECOND)
    played.add(EdgeKind.TIMER, ROOT, 0, 0xAAA)
    played.add(EdgeKind.TIMER, SECOND, 0, 0xAAA)
    played.add(EdgeKind.GO, 0, CHILD, 0xAAA)
    assert played.of(CHILD) is work
    played.add(EdgeKind.TIMER, 97, 0, 0xAAA)
    played.add(EdgeKind.GO, 0, 12, 0xAAA)
    assert played.of(12) is None


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


def test_a_thing_that_is_lent_says_nothing(played: Played) -> None:
    """Another goroutine gives it back than the one that has taken it: a free list."""
    played.begin(ROOT)
    work = played.begin(SECOND)
    played.queue()
    for number in range(8):
        worker = 40 + number
        played.add(EdgeKind.GO, SECOND, worker)
        played.call(worker)
        played.pass_on(90, worker, POOL, DEEP, 0xB0)
        before = played.of(worker)
        assert before is work or number == 0  # whose the first one is, is not known
        played.serve(ROOT, 91)
        played.add(EdgeKind.WRITE, 91, 0xB0, POOL + 8, POOL)
        # The same goroutine takes another one, that was given back for another request.
        played.add(EdgeKind.READ, worker, 0, POOL + 8, POOL, DEEP)
        assert played.of(worker) is before
        played.add(EdgeKind.WRITE, 90, 0xB0, POOL + 8, POOL)


def test_what_was_taken_for_a_pools_things_is_doubted_when_that_is_seen(played: Played) -> None:
    played.begin(ROOT)
    played.begin(SECOND)
    played.queue()
    for word in range(10, 13):
        played.pass_on(ROOT, WORKER, POOL, SHALLOW, word)
        span = played.call(WORKER)
    assert span is not None
    assert not span.is_doubted
    for word in range(20, 23):
        played.pass_on(ROOT, SECOND, POOL, DEEP, word)
        played.pass_on(WORKER, 90, POOL, DEEP, word)
    assert span.is_doubted


def test_one_thing_that_is_given_back_is_enough(played: Played) -> None:
    """However many new things come to a free list, before and then, and were taken from it."""
    work = played.begin(ROOT)
    played.begin(SECOND)
    played.queue()
    spans: list[Span] = []
    for word in range(1000, 1100):
        played.pass_on(ROOT, WORKER, POOL, SHALLOW, word)
        spans += filter(None, [played.call(WORKER)])
    assert len(spans) == 99  # the first shows that it is a queue, as it seems
    assert {span.work for span in spans} == {work}
    played.pass_on(ROOT, SECOND, POOL, DEEP, 20)
    assert not any(span.is_doubted for span in spans)
    played.add(EdgeKind.WRITE, WORKER, 20, POOL + 8, POOL)
    assert all(span.is_doubted for span in spans)
    played.add(EdgeKind.GO, SECOND, CHILD)
    for word in range(3000, 3100):
        played.call(CHILD)
        before = played.of(CHILD)
        played.pass_on(ROOT, CHILD, POOL, DEEP, word)
        assert played.of(CHILD) is before is not work


def test_what_its_taker_tries_again_is_not_lent(played: Played) -> None:
    """Now and then: a queue whose items come back again and again is taken for a pool."""
    played.begin(ROOT)
    other = played.begin(SECOND)
    played.add(EdgeKind.GO, SECOND, WORKER)
    for word in range(10, 30):
        played.call(WORKER)
        played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, word)
    played.call(WORKER)
    played.add(EdgeKind.WRITE, WORKER, 29, QUEUE + 8, QUEUE)
    played.pass_on(SECOND, WORKER, QUEUE, SHALLOW, 30)
    assert played.of(WORKER) is other


def test_what_is_sent_again_by_those_who_have_sent_it_is_not_lent(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, WORKER)
    played.call(WORKER)
    played.begin(SECOND)
    for _ in range(4):
        played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 0xB0)
        span = played.call(WORKER)
        assert span is not None
        assert span.work is work


def test_signals_and_batches_say_nothing(played: Played) -> None:
    work = played.begin(ROOT)
    for _ in range(3):
        played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, NOTHING)
        assert played.call(WORKER) is None
    assert work.sent == 0
    # But they end work, and are answers.
    other = played.begin(SECOND)
    played.add(EdgeKind.GO, SECOND, CHILD)
    played.pass_on(SECOND, CHILD, OTHER, DEEP, NOTHING)
    assert played.of(CHILD) is other
    played.pass_on(ROOT, CHILD, OTHER, DEEP, NOTHING)
    assert played.of(CHILD) is None


def test_a_semaphores_signal_that_comes_back_is_no_answer(played: Played) -> None:
    works = [played.begin(ROOT), played.begin(SECOND)]
    for root, child in ((ROOT, CHILD), (SECOND, 12)):
        played.add(EdgeKind.GO, root, child)
    for slot, child in ((8, CHILD), (16, 12)):
        played.add(EdgeKind.WRITE, child, NOTHING, POOL + slot, POOL)
    for slot, child in ((16, CHILD), (8, 12)):
        kind = EdgeKind.DROP if child == 12 else EdgeKind.READ
        rest = (POOL + slot,) if kind is EdgeKind.DROP else (0, POOL + slot)
        played.add(kind, child, *((0,) if kind is EdgeKind.DROP else ()), *rest, POOL, DEEP)
    assert [played.of(child) for child in (CHILD, 12)] == works


@pytest.mark.parametrize(("channel", "place"), [(QUEUE, 9), (0, 3)])
def test_who_finds_no_item_is_done_with_the_last_one(
    played: Played, channel: int, place: int
) -> None:
    played.queue()
    work = played.begin(ROOT)
    played.pass_on(ROOT, WORKER, QUEUE, SHALLOW, 5, 3)
    played.add(EdgeKind.MISS, WORKER, 0, 0, OTHER, SHALLOW, 9)
    assert played.of(WORKER) is work
    played.add(EdgeKind.MISS, WORKER, 0, 0, channel, SHALLOW, place)
    assert played.of(WORKER) is None


def test_a_first_item_may_be_one_of_several_things(played: Played) -> None:
    """One that was started with something has that, too, until it is seen to do anything."""
    played.queue()
    played.begin(ROOT)
    other = played.begin(SECOND)
    for does, expected in ((False, None), (True, other)):
        played.add(EdgeKind.GO, ROOT, CHILD)
        played.add(EdgeKind.TIMER, CHILD, 0, 0xAAA)  # a timeout, which calls nothing
        if does:
            played.call(CHILD)
        played.pass_on(SECOND, CHILD, QUEUE, SHALLOW, 5)
        assert played.of(CHILD) is expected
        played.call(CHILD)
        played.pass_on(SECOND, CHILD, QUEUE, SHALLOW, 6)
        assert played.of(CHILD) is other
        played.add(EdgeKind.DEAD, CHILD)


@pytest.mark.parametrize("how", ANSWERS)
def test_who_answers_a_goroutine_of_another_request_has_worked_for_that(
    played: Played, how: str
) -> None:
    played.begin(ROOT)
    other = played.begin(97)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.GO, 97, SECOND)
    span = played.call(CHILD)
    assert span is not None
    answer(played, CHILD, how)
    assert span.is_doubted
    assert played.of(CHILD) is None
    assert played.of(SECOND) in (other, None)


def test_a_goroutine_may_take_what_it_has_sent(played: Played) -> None:
    """As a connection that is kept goes through a channel of who asks for it."""
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.pass_on(CHILD, CHILD, OTHER, DEEP, 5)
    assert played.of(CHILD) is work


def test_who_takes_an_item_from_one_that_waits_has_not_worked_on_the_last(played: Played) -> None:
    played.queue()
    played.begin(ROOT)
    played.begin(SECOND)
    for sender in (ROOT, SECOND):
        played.add(EdgeKind.SENT, WORKER, sender)
        played.add(EdgeKind.TAKE, WORKER, sender, played.now, QUEUE, SHALLOW)
        played.add(EdgeKind.WAKE, WORKER, sender, 1, 0, DEEP)
    assert played.of(WORKER) is None


def test_a_timer_that_its_function_sets_again_is_of_nobody(played: Played) -> None:
    work = played.begin(ROOT)
    for number, expected in enumerate((work, None, None)):
        goid = 40 + number
        # The closure may be another one, of the same code.
        played.add(EdgeKind.TIMER, goid - 1 if number else ROOT, 0xC0DE, 0xA00 + number % 2)
        played.add(EdgeKind.GO, 0, goid, 0xA00 + number % 2, 0xC0DE)
        assert played.of(goid) is expected
    played.add(EdgeKind.TIMER, 40, 0xC1DE, 0xA08)
    played.add(EdgeKind.GO, 0, 43, 0xA08, 0xC1DE)
    assert played.of(43) is work


def test_the_end_of_a_shared_context_begins_work_of_who_ends_it_alone(played: Played) -> None:
    works = [played.begin(ROOT), played.begin(SECOND)]
    for number, root in enumerate((ROOT, SECOND)):
        played.add(EdgeKind.AFTER, root, 0xC0DE, 0xA00 + number)
        played.add(EdgeKind.AFTER, root, 0xC0DE, 0xB00)  # one closure of both
    for number, closure in enumerate((0xA00, 0xA01, 0xB00)):
        played.add(EdgeKind.GO, ROOT, 40 + number, closure, 0xC0DE)
    assert [played.of(goid) for goid in (40, 41, 42)] == [works[0], None, None]
    # Another closure at the address of one that has no use any more.
    played.add(EdgeKind.GO, SECOND, 44, 0xA00, 0xC1DE)
    assert played.of(44) is works[1]


def kept(played: Played, work: Work, goid: int = WORKER) -> Span:
    """Have a goroutine's call be given a request's context, which says whose it is."""
    assert played.belonging.trusts((7, goid), None, (work, (7, 0x100)))
    span = Span(work, (7, goid), played.now, Link.CONTEXT, None, (7, 0x100))
    played.belonging.gives((7, goid), span)
    return span


def test_a_context_that_is_kept_says_nothing(played: Played) -> None:
    """It was used for others: for an item, or for who is answered."""
    played.queue()
    work = played.begin(ROOT)
    other = played.begin(SECOND)
    context = (work, (7, 0x100))
    span = kept(played, work)
    assert played.belonging.trusts((7, WORKER), played.serve(SECOND, WORKER), context) is False
    assert span.is_doubted
    assert played.belonging.trusts((7, WORKER), None, context) is False
    assert played.belonging.trusts((7, WORKER), None, (other, (7, 0x200)))
    for how in ANSWERS:
        played.add(EdgeKind.DEAD, 12)
        span = kept(played, work, 12)
        answer(played, 12, how)
        assert span.is_doubted
        assert played.belonging.trusts((7, 12), None, context) is False


def test_a_starters_context_is_not_to_be_used_again_after_its_end(played: Played) -> None:
    work = played.begin(ROOT)
    played.add(EdgeKind.GO, ROOT, CHILD)
    played.add(EdgeKind.WAKE, 0, CHILD, 1, 0, DEEP)
    span = kept(played, work, CHILD)
    played.end(work)
    played.add(EdgeKind.WAKE, 0, CHILD, 1, 0, DEEP)
    assert played.belonging.trusts((7, CHILD), None, (work, (7, 0x100))) is False
    assert span.is_doubted


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


def test_an_item_that_is_forgotten_is_of_nobody(played: Played) -> None:
    played.belonging = Belonging(Limits(items=3))
    played.queue()
    work = played.begin(ROOT)
    for slot in range(4):
        played.add(EdgeKind.WRITE, ROOT, 5, QUEUE + 8 * slot, QUEUE)
    assert work.sent == 3
    for slot, is_known in ((0, False), (1, True), (3, True)):
        played.add(EdgeKind.READ, WORKER, 0, QUEUE + 8 * slot, QUEUE, SHALLOW)
        assert (played.call(WORKER) is not None) == is_known
    assert work.sent == 1


def test_a_channel_that_is_forgotten_is_to_be_seen_again(played: Played) -> None:
    """The one that was not used for the longest: of one that is in use all is known."""
    played.belonging = Belonging(Limits(channels=3))
    played.begin(ROOT)
    played.queue()
    for channel in range(2):
        played.serve(90, 20, 0x5000 + 0x100 * channel)
        assert played.serve(ROOT, WORKER) is not None
    for channel in range(3):
        played.serve(90, 20, 0x6000 + 0x100 * channel)
    assert played.serve(ROOT, 12) is None
    assert played.serve(ROOT, 12) is not None


def test_a_timer_that_is_forgotten_is_of_nobody(played: Played) -> None:
    played.belonging = Belonging(Limits(timers=2))
    work = played.begin(ROOT)
    for number in range(3):
        played.add(EdgeKind.TIMER, ROOT, 0, 0xA00 + number)
    for number, expected in ((0, None), (1, work), (2, work)):
        played.add(EdgeKind.GO, 0, 20 + number, 0xA00 + number)
        assert played.of(20 + number) is expected


def test_what_a_goroutine_did_long_ago_is_not_known(played: Played) -> None:
    played.belonging = Belonging(Limits(history=6))
    moments = []
    for _ in range(20):
        work = played.begin(ROOT)
        moments.append((played.now, work))
        played.end(work)
    spans = [played.belonging.span_at((7, ROOT), moment) for moment, _ in moments]
    known = [span for span in spans if span is not None]
    assert 1 < len(known) <= 3
    assert [span.work for span in known] == [work for _, work in moments[-len(known) :]]


def test_what_a_goroutine_has_taken_is_forgotten(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to take twice then, before a channel is seen to be a queue."""
    monkeypatch.setattr(belonging, "_MAX_TAKEN", 4)
    played.begin(ROOT)
    for channel in [*range(5), 0, 4]:
        assert played.serve(ROOT, WORKER, 0x5000 + 0x100 * channel) is None or channel == 4
    assert played.serve(ROOT, WORKER, 0x5400) is not None


def test_a_request_knows_its_first_spans_alone(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belonging, "_MAX_SPANS", 3)
    work = played.begin(ROOT)
    for goid in range(20, 26):
        played.add(EdgeKind.GO, ROOT, goid)
        assert played.of(goid) is work
    assert len(work.spans) == 3
    assert work.working == 7


def test_more_shared_contexts_than_are_kept_say_that_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(belonging, "_MAX_CONTEXTS", 3)
    contexts, works = given(8)
    for number in range(2):
        contexts.begin((7, 0x100 + number), Work((7, 200), 20))
    assert contexts.find((7, 1), [0x105], 50) == (works[5], (7, 0x105))
    contexts.begin((7, 0x102), Work((7, 200), 20))
    assert contexts.find((7, 1), [0x105], 50) is None
    assert contexts.is_shared((7, 0x105))  # and what has been found before is not said


def test_more_contexts_of_others_than_are_kept_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests' contexts may be among those that were not kept, until the collector has run."""
    contexts, works = given(8)
    monkeypatch.setattr(belonging, "_MAX_CONTEXTS", 100)
    for number in range(101):
        assert contexts.find((7, 1), [0x900 + number], 10) is None
    late = Work((7, 300), 20)
    contexts.begin((7, 0x800), late)
    assert contexts.find((7, 1), [0x800], 50) is None
    assert contexts.find((7, 1), [0x102], 50) == (works[2], (7, 0x102))
    contexts.freed(7)
    contexts.begin((7, 0x801), late)
    assert contexts.find((7, 1), [0x801], 50) == (late, (7, 0x801))


def test_more_contexts_of_requests_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of requests that have ended are forgotten, as if the collector had run."""
    monkeypatch.setattr(belonging, "_MAX_CONTEXTS", 16)
    contexts, works = given(12)
    for work in works[:10]:
        work.is_open = False
    assert contexts.find((7, 1), [0x105], 50) is not None
    for number in range(4):
        contexts.begin((7, 0x700 + number), Work((7, 300 + number), 20))
    assert contexts.find((7, 1), [0x105], 50) is None
    for number in (10, 11):
        assert contexts.find((7, 1), [0x100 + number], 50) == (works[number], (7, 0x100 + number))
