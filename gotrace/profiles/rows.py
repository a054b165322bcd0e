# SPDX-License-Identifier: Apache-2.0
"""Stacks with their numbers, as every tool hands them in, whatever form they are written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gotrace.records import dataclass, field


class ValueType(NamedTuple):
    """The type of one number of each sample, and its unit: ("delay", "nanoseconds")."""

    type: str
    unit: str


class Line(NamedTuple):
    """One logical frame."""

    function: str
    file: str
    line: int


class PprofLocation(NamedTuple):
    """One physical frame: an address, and the functions there, the innermost first."""

    address: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CodeMapping:
    """The file that locations are in, and where it is in memory."""

    start: int
    end: int
    file: str


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
    """The types of a profile's values.

    ``shown`` is the number of the type that has one number per stack where a form has room for one,
    and that viewers show at first.
    """

    types: tuple[ValueType, ...]
    shown: int = -1

    @property
    def unit(self) -> str:
        """Return speedscope's unit of it."""
        unit = self.types[self.shown].unit
        return unit if unit in ("nanoseconds", "bytes") else "none"


@dataclass(frozen=True, slots=True)
class StackProfile:
    """A profile: its rows, and the facts that all of them share.

    ``name`` is its title. ``mappings`` are the files of the addresses, the program itself first, to
    which addresses count that none of them has. ``began_ns`` is since 1970, and ``length_ns`` is 0
    for what has been read at once.
    """

    form: ProfileForm
    rows: Sequence[ProfileRow]
    name: str = ""
    mappings: Sequence[CodeMapping] = ()
    began_ns: int = 0
    length_ns: int = 0

    def weighted(self) -> Iterator[tuple[list[Line], int]]:
        """Yield each stack from the outermost frame on, with the value that is shown."""
        for row in self.rows:
            yield row.outwards(), row.values[self.form.shown]
