# SPDX-License-Identifier: Apache-2.0
"""Say how long the bench measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The extent of a run; ``rounds`` are of costs, ``few`` of what takes longer.

    A cost is the median of ``samples`` of ``sample_s`` seconds; rates are held for ``rate_s``
    seconds, and the busy server is measured for ``serve_s``.
    """

    name: str
    rounds: int
    few: int
    samples: int
    sample_s: float
    rate_s: float
    serve_s: float
    whole: bool


FULL = Settings(
    "full", rounds=5, few=3, samples=5, sample_s=0.03, rate_s=1.0, serve_s=60.0, whole=True
)
QUICK = Settings(
    "quick", rounds=2, few=1, samples=3, sample_s=0.01, rate_s=0.5, serve_s=3.0, whole=False
)
