# SPDX-License-Identifier: Apache-2.0
"""How durations are written."""

from __future__ import annotations

__all__ = ["duration", "four_digits"]


def duration(nanoseconds: float) -> str:
    """Write a duration with three or four digits and its unit, as ``1.234ms``."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if nanoseconds >= size:
            return f"{four_digits(nanoseconds / size)}{unit}"
    return f"{four_digits(nanoseconds)}ns"


def four_digits(number: float) -> str:
    """Write a number with four digits, or with all of its integer part where that has more."""
    return f"{number:.4g}" if number < 9999.5 else f"{number:.0f}"
