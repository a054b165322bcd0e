# SPDX-License-Identifier: Apache-2.0
"""A verdict is never that a bound holds if what was seen is not all."""

from __future__ import annotations

import pytest

from gotrace.assertions.grammar import parse_assertion
from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict, Seen, decide, status_of

_PER = "main.f {} 2 per main.R"
_RUN = "main.f {} 2"


@pytest.mark.parametrize(
    ("text", "relation", "seen", "unknown", "outcome"),
    [
        (_PER, "<=", [(1, 1), (2, 2)], "", BoundOutcome.HOLDS),
        (_PER, "<=", [(1, 1), (3, 3)], "", BoundOutcome.FAILS),
        (_PER, "<=", [(1, 2)], "", BoundOutcome.HOLDS),  # the one that is in doubt changes nothing
        (_PER, "<=", [(1, 3)], "", BoundOutcome.UNDECIDED),
        (_PER, "<=", [(1, None), (3, None)], "", BoundOutcome.FAILS),
        (_PER, "<=", [(1, 1)], "lost", BoundOutcome.UNDECIDED),
        (_PER, "<=", [(3, 3)], "lost", BoundOutcome.FAILS),
        (_PER, "==", [(2, 2)], "", BoundOutcome.HOLDS),
        (_PER, "==", [(1, 2)], "", BoundOutcome.UNDECIDED),
        (_PER, "==", [(1, 1)], "", BoundOutcome.FAILS),
        (_PER, "==", [(1, 1)], "lost", BoundOutcome.UNDECIDED),
        (_PER, ">=", [(2, None)], "", BoundOutcome.HOLDS),
        (_PER, ">=", [(1, None)], "", BoundOutcome.UNDECIDED),
        (_PER, ">=", [(1, 1)], "", BoundOutcome.FAILS),
        (_PER, ">=", [(2, 2)], "lost", BoundOutcome.UNDECIDED),  # that may be a root with fewer
        (_RUN, ">=", [(2, 2)], "lost", BoundOutcome.HOLDS),
        (_RUN, ">=", [(1, 1)], "lost", BoundOutcome.UNDECIDED),
        (_RUN, "<=", [(2, 2)], "lost", BoundOutcome.UNDECIDED),
    ],
)
def test_what_is_not_known_decides_nothing(
    text: str,
    relation: str,
    seen: list[tuple[int, int | None]],
    unknown: str,
    outcome: BoundOutcome,
) -> None:
    assertion = parse_assertion(text.format(relation))
    found = decide(assertion, [Seen(*one) for one in seen], [unknown] if unknown else [], ["doubt"])
    assert found.outcome is outcome
    assert bool(found.why) == (outcome is BoundOutcome.UNDECIDED)


def test_a_verdict_has_the_numbers_of_the_roots() -> None:
    counts = [5, 1, 1, 2, 9]
    found = decide(parse_assertion("main.f <= 2 per main.R"), [Seen(n, n) for n in counts])
    assert (found.least, found.median, found.most) == (1, 2, 9)
    assert (found.roots, found.broken) == (5, 2)


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], 0),
        ([BoundOutcome.HOLDS], 0),
        ([BoundOutcome.HOLDS, BoundOutcome.UNDECIDED], 5),
        ([BoundOutcome.UNDECIDED, BoundOutcome.MISSING], 3),
        ([BoundOutcome.MISSING, BoundOutcome.FAILS, BoundOutcome.UNDECIDED], 4),
    ],
)
def test_the_status_is_that_of_the_worst(outcomes: list[BoundOutcome], status: int) -> None:
    assertion = parse_assertion("main.f == 0")
    verdicts = [BoundVerdict(assertion, outcome) for outcome in outcomes]
    assert status_of(verdicts) == status
    left = [one for one in verdicts if one.outcome is not BoundOutcome.MISSING]
    assert status_of(verdicts, allow_missing=True) == status_of(left)
