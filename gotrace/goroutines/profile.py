# SPDX-License-Identifier: Apache-2.0
"""Goroutines as a profile: how many have each stack, by state and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gotrace.goroutines.model import Goroutine
from gotrace.goroutines.program import Program
from gotrace.profiles import rows as profiles
from gotrace.profiles.pprof import ValueType
from gotrace.profiles.rows import ProfileForm, ProfileRow

__all__ = ["FORM", "profile_of", "profile_rows", "speedscope_of"]

FORM = ProfileForm((ValueType("goroutine", "count"),), 0)


def profile_rows(program: Program, goroutines: Iterable[Goroutine]) -> list[ProfileRow]:
    """Return how many goroutines have each stack, labelled by state and reason."""
    counts = Counter((one.stack, one.state, one.reason) for one in goroutines)
    return [
        ProfileRow(
            program.profiled(stack),
            (count,),
            {"state": state.value} | ({"reason": reason} if reason else {}),
            f"[{reason or state.value}]",
        )
        for (stack, state, reason), count in counts.most_common()
    ]


def profile_of(program: Program, goroutines: Iterable[Goroutine], time_ns: int) -> bytes:
    """Return as a pprof profile how many goroutines have each stack, by state and reason."""
    rows = profile_rows(program, goroutines)
    return profiles.pprof(FORM, rows, program.mappings(), time_ns)


def speedscope_of(program: Program, goroutines: Iterable[Goroutine], name: str) -> str:
    """Return how many goroutines have each stack for speedscope; the status is the last frame."""
    return profiles.speedscope(name, FORM, profile_rows(program, goroutines))
