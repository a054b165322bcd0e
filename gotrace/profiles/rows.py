# SPDX-License-Identifier: Apache-2.0
"""Rows of a profile, a stack each with its numbers, and all the forms that they are written in.

One set of rows makes all forms, so that these agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from gotrace.profiles.folded import write_folded
from gotrace.profiles.pprof import CodeMapping, Line, PprofLocation, Profile, ValueType
from gotrace.profiles.speedscope import speedscope_profile
from gotrace.records import dataclass, field

__all__ = ["ProfileForm", "ProfileRow", "folded", "pprof", "speedscope"]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A stack, from the innermost frame on, with one value for each of a profile's types.

    ``labels`` are those of pprof. ``note`` is written as one more innermost frame where there are
    no labels: ``[chan receive]``.
    """

    stack: Sequence[PprofLocation]
    values: tuple[int, ...]
    labels: Mapping[str, str | int] = field(default_factory=dict)
    note: str = ""

    def outwards(self) -> list[Line]:
        """Return the logical frames from the outermost on, the note last."""
        lines = [line for location in reversed(self.stack) for line in reversed(location.lines)]
        return [*lines, Line(self.note, "", 0)] if self.note else lines


@dataclass(frozen=True, slots=True)
class ProfileForm:
    """What a profile's values are.

    ``shown`` is the number of the type that has one number per stack where a form has room for one,
    and that viewers show at first. ``unit`` is speedscope's: none, or nanoseconds.
    """

    types: tuple[ValueType, ...]
    shown: int
    unit: str = "none"


def folded(out: TextIO, form: ProfileForm, rows: Iterable[ProfileRow]) -> None:
    """Write rows as folded stacks, the largest first. See ``write_folded``."""
    write_folded(
        out,
        (([line.function for line in row.outwards()], row.values[form.shown]) for row in rows),
    )


def pprof(
    form: ProfileForm,
    rows: Iterable[ProfileRow],
    mappings: Sequence[CodeMapping],
    time_ns: int,
    duration_ns: int = 0,
) -> bytes:
    """Return rows as a pprof file. ``mappings``: see ``Profile``; ``time_ns`` is since 1970."""
    default = form.types[form.shown].type
    profile = Profile(form.types, mappings, time_ns, duration_ns, default)
    for row in rows:
        profile.add(row.stack, row.values, row.labels)
    return profile.encoded()


def speedscope(name: str, form: ProfileForm, rows: Iterable[ProfileRow]) -> str:
    """Return rows as a speedscope file."""
    stacks = ((row.outwards(), row.values[form.shown]) for row in rows)
    return speedscope_profile(name, stacks, form.unit)
