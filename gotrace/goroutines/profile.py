# SPDX-License-Identifier: Apache-2.0
"""Goroutines as a profile: how many have each stack, by state and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gotrace.goroutines.model import Goroutine
from gotrace.goroutines.program import Program
from gotrace.profiles.rows import ProfileForm, ProfileRow, StackProfile, ValueType

__all__ = ["profile_of"]

_FORM = ProfileForm((ValueType("goroutine", "count"),), 0)


def profile_of(
    program: Program, goroutines: Iterable[Goroutine], time_ns: int, name: str = "goroutines"
) -> StackProfile:
    """Return how many goroutines have each stack, by state and reason, at a time since 1970."""
    counts = Counter((one.stack, one.state, one.reason) for one in goroutines)
    rows = [
        ProfileRow(
            program.profiled(stack),
            (count,),
            {"state": state.value} | ({"reason": reason} if reason else {}),
            f"[{reason or state.value}]",
        )
        for (stack, state, reason), count in counts.most_common()
    ]
    return StackProfile(_FORM, rows, name, program.mappings(), time_ns)
