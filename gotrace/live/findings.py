# SPDX-License-Identifier: Apache-2.0
"""Findings of an examination, as scripts have them."""

from __future__ import annotations

from gotrace.records import dataclass


@dataclass(frozen=True, slots=True)
class TimeFinding:
    """Something that time goes into: its ``share``, what it is, and how to see more of it."""

    kind: str
    share: float
    text: str
    evidence: tuple[str, ...]
    deeper: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of a time, the largest first, and what else is known, in words.

    ``fine`` was looked at, and is fine; ``means`` are numbers without a verdict, and ``unseen`` is
    what was not looked at, and why.
    """

    findings: tuple[TimeFinding, ...]
    fine: tuple[str, ...]
    means: tuple[str, ...]
    unseen: tuple[str, ...]
