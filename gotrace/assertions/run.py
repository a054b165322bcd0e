# SPDX-License-Identifier: Apache-2.0
"""A run that decides assertions, from its records to the verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gotrace.assertions.ledger import FunctionCounts, Ledger
from gotrace.assertions.plan import AssertionPlan
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict
from gotrace.overhead import ProbeCost
from gotrace.session.count import CallCounter
from gotrace.session.reading import RecordReader
from gotrace.session.run import End, Run
from gotrace.session.trace import CallTracer, TraceRequest

_PIECE = 256  # records between two looks at the clock
_EARLY = (End.CHANGED, End.GONE, End.BUDGET)
_EARLIER = "the run ended before the program did"


class AssertedRun:
    """A run that traces what assertions with a root are about."""

    def __init__(
        self, plan: AssertionPlan, request: TraceRequest, run: Run[CallTracer, ProbeCost]
    ) -> None:
        self._plan, self._run = plan, run
        decoders, _ = request.decoders(run)
        matching, self._undecided = request.decoders(run)
        self._ledger = Ledger(plan, decoders, matching)
        self.reader = RecordReader(run.meter, self._undecided)

    def take(self, records: Iterator[bytes], until: float) -> None:
        """Take the records of a turn, up to a time (``time.monotonic``). Raises RecordError."""
        self._ledger.missing(self.reader.missing())
        for number, record in enumerate(records, 1):
            self._ledger.add(record)
            if not number % _PIECE and time.monotonic() >= until:
                break
        self._ledger.take(self.reader.complete)

    def verdicts(self, counting: Run[CallCounter, Any] | None, lax: bool) -> list[BoundVerdict]:
        """Return the verdicts at the end, also on what another run was ``counting`` meanwhile.

        ``lax``: calls of no request count for none. Raises OSError.
        """
        missing = self.reader.missing()
        self._ledger.missing(missing)
        unknown = self._ledger.end(self._run, missing, self._undecided.calls, self.reader.complete)
        early = [_EARLIER] if self._run.end in _EARLY else []
        counts = FunctionCounts()
        if counting is not None:
            counting.meter.stop()
            counts = FunctionCounts.of(counting)
        return [
            *self._ledger.verdicts(self._run, counts, [*unknown, *early], lax),
            *counts.verdicts(self._plan, early),
        ]


def counted_verdicts(plan: AssertionPlan, run: Run[CallCounter, Any]) -> list[BoundVerdict]:
    """Return the verdicts on assertions of which none has a root. Raises OSError."""
    early = [_EARLIER] if run.end in _EARLY else []
    return list(FunctionCounts.of(run).verdicts(plan, early))


def all_verdicts(plan: AssertionPlan, found: list[BoundVerdict]) -> list[BoundVerdict]:
    """Return the verdicts on all assertions, in their order: those found, and what is missing."""
    by_assertion = {id(one.assertion): one for one in found}
    return [
        by_assertion.get(id(one))
        or BoundVerdict(one, BoundOutcome.MISSING, why=(plan.why_missing(one) or "",))
        for one in plan.assertions
    ]
