# SPDX-License-Identifier: Apache-2.0
"""Do the bench's arithmetic: medians with their spread, ratios within rounds, verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity as measured in each round, in the rounds' order; never empty."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a series needs at least one value")

    @classmethod
    def of(cls, values: Sequence[float]) -> Series:
        """Return the series of these values."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """Return the middle value, the mean of the two middle ones of an even number."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Return the least value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Return the greatest value."""
        return max(self.values)

    def above(self, base: Series) -> Series:
        """Return what each round measured more than ``base`` did in the same round."""
        return Series.of([mine - its for mine, its in zip(self.values, base.values, strict=True)])


def ratios(of: Series, to: Series) -> Series | None:
    """Return the quotient of each round, None where no round has a positive divisor.

    What is divided was measured in one round, moments apart, so that the machine's other work
    weighs on both.
    """
    pairs = zip(of.values, to.values, strict=True)
    quotients = [dividend / divisor for dividend, divisor in pairs if divisor > 0]
    return Series.of(quotients) if quotients else None


def total(*parts: Series) -> Series:
    """Return the sum of the parts in each round."""
    rounds = zip(*(part.values for part in parts), strict=True)
    return Series.of([sum(values) for values in rounds])


class Verdict(Enum):
    """What became of a requirement."""

    MET = "met"
    NOT_MET = "not met"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that must be reached: what was measured, and the bound that it must keep.

    ``unit`` is "x" for a ratio. ``series`` is None where it was not measured, ``why`` then says
    why. The median decides.
    """

    name: str
    series: Series | None
    bound: float
    at_most: bool = True
    unit: str = "x"
    why: str = ""

    @property
    def verdict(self) -> Verdict:
        """Return whether the median keeps the bound."""
        if self.series is None:
            return Verdict.NOT_MEASURED
        median = self.series.median
        kept = median <= self.bound if self.at_most else median >= self.bound
        return Verdict.MET if kept else Verdict.NOT_MET
