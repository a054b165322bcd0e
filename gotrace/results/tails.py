# SPDX-License-Identifier: Apache-2.0
"""Compare the tails of two histograms: whether more calls are slow than chance makes.

A sum does not show this: a few slow calls are most of its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gotrace.records import dataclass

#: Of all values, those that are above a boundary: the largest boundary with so many above it.
_PARTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
#: How often chance alone may make one row of a whole comparison differ.
_LEVEL = 0.001
#: By what factor the part above has to differ: of a million calls, 1% more are certainly more.
_LEAST_FACTOR = 2.0
#: Part of a probability below which its further terms do not matter.
_NEGLIGIBLE = 1e-9

_Buckets = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Tail:
    """How many values of two recordings are above a boundary, and of how many."""

    above: int
    before: int
    after: int
    of_before: int
    of_after: int


def changed_tail(first: _Buckets, second: _Buckets, rows: int, clusters: float) -> Tail | None:
    """Return the tail that differs most by more than chance, None if none does.

    ``rows`` are compared in all: chance may make none of them differ. ``clusters`` is how many
    calls come together: so many say as much as one call that comes independently.
    """
    sizes = sum(first.values()), sum(second.values())
    if not all(sizes):
        return None
    likely = _LEVEL / rows / len(_PARTS)
    found = None
    for above, before, after in _boundaries(first, second, sum(sizes)):
        small, large = sorted((before / sizes[0], after / sizes[1]))
        if large < small * _LEAST_FACTOR:
            continue
        numbers = (round(n / clusters) for n in (before, after, *sizes))
        if (chance := _chance(*numbers)) < likely:
            likely, found = chance, Tail(above, before, after, *sizes)
    return found


def _boundaries(first: _Buckets, second: _Buckets, total: int) -> list[tuple[int, int, int]]:
    """Return each boundary, and how many values of either histogram are above it."""
    found: list[tuple[int, int, int]] = []
    before = after = 0
    parts = list(_PARTS)
    for bounds in sorted({*first, *second}, reverse=True):
        before += first.get(bounds, 0)
        after += second.get(bounds, 0)
        if parts and before + after >= parts[0] * total:
            found.append((bounds[0], before, after))
            parts = [part for part in parts if before + after < part * total]
    return found


def _chance(before: int, after: int, of_before: int, of_after: int) -> float:
    """Return how likely values of one distribution differ so much or more (Fisher's exact test)."""
    above, total = before + after, of_before + of_after
    least, most = max(0, above - of_after), min(above, of_before)
    if not least <= before <= most:
        return 1.0
    step = 1 if before * total >= above * of_before else -1
    whole = _log_ways(total, above)
    chance = 0.0
    for one in range(before, most + 1 if step > 0 else least - 1, step):
        ways = _log_ways(of_before, one) + _log_ways(of_after, above - one)
        term = math.exp(ways - whole)
        chance += term
        if term <= chance * _NEGLIGIBLE:
            break
    return min(1.0, 2 * chance)


def _log_ways(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
