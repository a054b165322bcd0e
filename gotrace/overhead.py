# SPDX-License-Identifier: Apache-2.0
"""The cost of tracing itself to the traced program."""

from __future__ import annotations

from collections.abc import Mapping

from gotrace.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """The cost of probes on this machine, in nanoseconds.

    ``own`` is the part of a call's own two hits, at its entry and its RET, that is between its
    two clock readings and so within its measured time; ``hit`` is the cost of one hit of another
    call's, the mean of an entry and a RET. ``landed`` is the same of calls that are seen returning
    in their callers, ``first`` of those whose entry is single-stepped; None where that was not
    measured.
    """

    own: int
    hit: int
    landed: ProbeCost | None = None
    first: ProbeCost | None = None

    @property
    def emulated(self) -> int:
        """Return the cost in ns of a hit whose instruction is emulated: entry or landing."""
        return self.own if self.landed is None else self.landed.hit

    @property
    def ret(self) -> int:
        """Return the cost of a hit of a RET, in ns."""
        return max(self.emulated, 2 * self.hit - self.emulated)

    @property
    def stepped_entry(self) -> int:
        """Return the cost of a hit of an entry that is single-stepped, in ns."""
        if self.first is None:
            return self.ret
        return max(self.emulated, self.emulated + 2 * (self.first.hit - self.hit))

    def plus(self, nanoseconds: int) -> ProbeCost:
        """Return the cost of hits whose programs take so much longer; for ``trap_cost``."""
        return replace(self, own=self.own + nanoseconds, hit=self.hit + nanoseconds)

    def own_of(self, is_stepped: bool, rets: int, landings: int) -> int:
        """Return ``own`` of calls that have returned so often at RETs, and at landings.

        ``is_stepped``: their entry is single-stepped.
        """
        cost = self.first if is_stepped and self.first is not None else self
        if cost.landed is None or not landings:
            return cost.own
        return (cost.own * rets + cost.landed.own * landings) // (rets + landings)

    def within(self, total: int, calls: int, hits: int, hits_ns: int = 0) -> int:
        """Return, as an estimate, the probes' own part of the ``total`` time of calls.

        ``hits`` is how often probes were hit within them, ``hits_ns`` what their programs took
        where that is measured and not in ``hit``.
        """
        return min(total, calls * self.own + hits * self.hit + hits_ns)


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of probes in a part of a run, by function: of all that were hit, and of each."""

    every: ProbeCost
    functions: Mapping[int, ProbeCost] = field(default_factory=dict)

    def of(self, function: int | None) -> ProbeCost:
        """Return the cost of a function by its number, or of all if it has none of its own."""
        return self.every if function is None else self.functions.get(function, self.every)
