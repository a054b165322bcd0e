# SPDX-License-Identifier: Apache-2.0
"""Goroutines as a profile: how many have each stack, by state and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gotrace.goroutines.dump import Dump
from gotrace.goroutines.model import DumpedGoroutine
from gotrace.profiles.rows import ProfileForm, ProfileRow, StackProfile, ValueType

_FORM = ProfileForm((ValueType("goroutine", "count"),))


def profile_of(
    dump: Dump, goroutines: Iterable[DumpedGoroutine], time_ns: int, name: str = "goroutines"
) -> StackProfile:
    """Return how many goroutines have each stack, by state, reason and labels.

    ``time_ns`` is since 1970. Of labels of the program's own that have these names, theirs count.
    """
    program = dump.program
    counts = Counter((one.stack, one.state, one.reason, dump.labels_of(one)) for one in goroutines)
    rows = [
        ProfileRow(
            program.profiled(stack),
            (count,),
            {"state": state.value} | ({"reason": reason} if reason else {}) | dict(labels),
            f"[{reason or state.value}]",
        )
        for (stack, state, reason, labels), count in counts.most_common()
    ]
    return StackProfile(_FORM, rows, name, program.mappings(), time_ns)
