# SPDX-License-Identifier: Apache-2.0
"""A consumer takes records as it likes, and each is taken, due or counted as lost."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.session.decode import Undecided
from gotrace.session.events import HEADER, function_of
from gotrace.session.open_calls import Diagnostic
from gotrace.session.reading import RecordReader
from gotrace.session.trace import CallTracer


def record(function: int, end: int = 0) -> bytes:
    return HEADER.pack(end, *[0] * 4, function, *[0] * 5)


class Tracer:
    """What has reported some records, and can be read twice."""

    LOSSES = CallTracer.LOSSES

    def __init__(self, records: int) -> None:
        self.waiting = [record(number % 3) for number in range(records)]
        self.exhausted = False
        self.dropped = 0
        self.filled = 0
        self.window = SimpleNamespace(late=5, complete=0)
        self.counts = dict.fromkeys(Diagnostic, 0)

    def acquire(self, until: float) -> list[bytes]:
        taken, self.waiting = self.waiting[:10], self.waiting[10:]
        self.exhausted = not taken
        return taken

    def fill(self, until: float) -> None:
        self.filled += 1

    def drop(self, due: list[bytes]) -> Counter[int]:
        found = Counter(map(function_of, [*due, *self.waiting]))
        self.dropped += found.total()
        return found

    def diagnostics(self) -> dict[Diagnostic, int]:
        return self.counts

    def skipped(self) -> int:
        return 2


@pytest.fixture
def tracer() -> Any:
    return Tracer(25)


def test_what_is_left_of_a_turn_is_due_in_the_next(tracer: Any) -> None:
    reader = RecordReader(tracer)
    taken = list(islice(reader.turn(), 3))
    assert reader.has_due and not tracer.filled
    taken += islice(reader.turn(), 4)
    taken += reader.turn()
    assert tracer.filled == 2 and not reader.has_due
    for records, _ in reader.rest(repeat(time.monotonic() + 60)):
        taken += records
    assert taken == [record(number % 3) for number in range(25)]
    assert reader.is_done and reader.losses()["reader"] == 0


def test_records_are_complete_up_to_those_that_were_taken(tracer: Any) -> None:
    """Whatever the time is: the process may have been stopped."""
    tracer.waiting = [record(0, second * 10**9) for second in range(1, 21)]
    reader = RecordReader(tracer)
    tracer.window.complete = 10 * 10**9
    records = reader.turn()
    assert list(islice(records, 3)) and reader.complete == 4.0
    assert list(records) and reader.complete == 10.0


def test_what_there_is_no_time_for_is_lost(tracer: Any) -> None:
    reader = RecordReader(tracer)
    taken = [one for records, _ in reader.rest([time.monotonic()]) for one in islice(records, 4)]
    assert len(taken) == 4 and reader.losses()["reader"] == 21
    assert reader.dropped == {0: 7, 1: 7, 2: 7} and not reader.has_due


def test_nothing_is_lost_of_what_is_not_wanted(tracer: Any) -> None:
    reader = RecordReader(tracer)
    for records, _ in reader.rest(repeat(time.monotonic() + 60)):
        next(records)
        break
    assert reader.losses()["reader"] == 0 and not reader.dropped


def test_losses_are_added_up(tracer: Any) -> None:
    tracer.counts |= {Diagnostic.EVENTS_LOST: 7, Diagnostic.SAVED_FULL: 3}
    tracer.counts |= {Diagnostic.UNWOUND: 9, Diagnostic.BEGINS_LOST: 4}
    tracer.dropped, undecided = 20, Undecided()
    undecided.reasons["why"] = 1
    reader = RecordReader(tracer, undecided)
    found = {what: lost for what, lost in reader.losses().items() if lost}
    lost = {"saved_full": 3, "events_lost": 7, "skipped": 2, "undecided": 1, "reader": 20}
    assert found == lost and list(reader.losses()) == list(RecordReader.LOSSES)
    missing = reader.missing()
    assert (missing.calls, missing.records, missing.late, missing.begins) == (30, 27, 5, 4)
