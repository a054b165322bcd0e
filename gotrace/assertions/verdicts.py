# SPDX-License-Identifier: Apache-2.0
"""Decide assertions: by numbers of calls of which each may be larger than what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from statistics import median_low

from gotrace.assertions.grammar import CallBound, Operator
from gotrace.records import dataclass
from gotrace.requests.model import Request
from gotrace.session.decode import DecodedCall


class BoundOutcome(Enum):
    """The kinds of verdicts; the values are those of JSON."""

    HOLDS = "holds"
    FOUND = "recorded"
    FAILS = "does not hold"
    UNDECIDED = "cannot be decided"
    MISSING = "nothing matched"

    @property
    def status(self) -> int:
        """Return the exit status of a command with nothing worse."""
        return _STATUS[self]


_STATUS = {
    BoundOutcome.HOLDS: 0,
    BoundOutcome.FOUND: 0,
    BoundOutcome.FAILS: 4,
    BoundOutcome.UNDECIDED: 5,
    BoundOutcome.MISSING: 3,
}
#: The worst first.
_WORST = (BoundOutcome.FAILS, BoundOutcome.MISSING, BoundOutcome.UNDECIDED)


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """The verdict on an assertion.

    ``least``, ``median`` and ``most`` are of the calls that were seen of each of ``roots`` calls of
    the root, or of the run; None if nothing was. ``broken`` is of how many roots it is known that
    it does not hold. ``why`` says what is not known, or what is missing. ``worst`` is the call of
    the root that is furthest from the bound. ``place`` is where the function is declared that is
    at fault: the root, else the one that is counted.
    """

    assertion: CallBound
    outcome: BoundOutcome
    least: int | None = None
    median: int | None = None
    most: int | None = None
    roots: int = 0
    broken: int = 0
    why: tuple[str, ...] = ()
    worst: Request[DecodedCall] | None = None
    place: tuple[str, int] | None = None


def status_of(verdicts: Sequence[BoundVerdict], allow_missing: bool = False) -> int:
    """Return the exit status that verdicts have together."""
    found = {verdict.outcome for verdict in verdicts}
    if allow_missing:
        found.discard(BoundOutcome.MISSING)
    return next((one.status for one in _WORST if one in found), 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """Calls that were seen for one root, or in the run, and how many there may be at most.

    ``most`` is None if that is not known. If it ``is_unproven`` that they count, there may be none
    at all. ``ignored`` calls beyond the most are of no request that is known: it was asked that
    they count for none, but they may be what is lacking.
    """

    count: int
    most: int | None
    is_unproven: bool = False
    ignored: int = 0

    @property
    def least(self) -> int:
        """Return how many there are at least."""
        return 0 if self.is_unproven else self.count

    @property
    def possible(self) -> int | None:
        """Return how many there are at most, with the ignored ones."""
        return None if self.most is None else self.most + self.ignored


def decide(
    assertion: CallBound,
    seen: Sequence[Seen],
    unknown: Sequence[str] = (),
    doubts: Sequence[str] = (),
    worst: Request[DecodedCall] | None = None,
    place: tuple[str, int] | None = None,
) -> BoundVerdict:
    """Return the verdict on an assertion, of at least one root.

    ``unknown`` says why there may be roots, or calls, of which nothing is known. ``doubts`` says
    why calls may be more than those seen, for numbers of which that is so.
    """
    counts = [one.count for one in seen]
    bound = assertion.closed(max(counts)) if assertion.is_open else assertion
    broken = sum(not bound.can_hold(one.least, None if unknown else one.possible) for one in seen)
    is_run = assertion.root is None
    why: tuple[str, ...] = ()
    if broken:
        outcome = BoundOutcome.FAILS
    elif all(bound.must_hold(one.least, one.most) for one in seen):
        # What is not known of the run is more calls; what is not known of roots may be fewer.
        is_enough = is_run and assertion.operator is Operator.AT_LEAST
        outcome = BoundOutcome.FOUND if assertion.is_open else BoundOutcome.HOLDS
        if unknown and not is_enough:
            outcome, why = BoundOutcome.UNDECIDED, tuple(unknown)
    else:
        outcome, why = BoundOutcome.UNDECIDED, (*unknown, *doubts)
    return BoundVerdict(
        assertion,
        outcome,
        min(counts),
        median_low(counts),
        max(counts),
        0 if is_run else len(seen),
        broken,
        why,
        worst if outcome is BoundOutcome.FAILS else None,
        place,
    )
