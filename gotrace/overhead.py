# SPDX-License-Identifier: Apache-2.0
"""What tracing itself costs the traced program."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProbeCost"]


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """What probes cost on this machine, in nanoseconds.

    ``own`` is the part of a call's own two hits, at its entry and its RET, that is between its
    two clock readings and so within its measured time; ``hit`` is the cost of one hit of another
    call's, the mean of an entry and a RET. ``landed`` is the same of calls that are seen returning
    in their callers, None where that was not measured.
    """

    own: int
    hit: int
    landed: ProbeCost | None = None

    def of(self, returns: str) -> ProbeCost:
        """Return what calls cost that are seen returning at "landing", "ret", or "both"."""
        return self.landed if self.landed is not None and returns == "landing" else self

    def within(self, total: int, calls: int, hits: int, hits_ns: int = 0) -> int:
        """Return, as an estimate, what part of the ``total`` time of calls is the probes' own.

        ``hits`` is how often probes were hit within them, ``hits_ns`` what their programs took
        where that is measured and not in ``hit``.
        """
        return min(total, calls * self.own + hits * self.hit + hits_ns)
