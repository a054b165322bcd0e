# SPDX-License-Identifier: Apache-2.0
"""Choose the sites of lines of the source: a line is in a plan as a function is, with places."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gotrace.elf.functions import FuncInfo, FunctionTable, Origin
from gotrace.errors import NoMatchError
from gotrace.probes.lines import LineWord, short_name
from gotrace.records import dataclass, replace
from gotrace.sites.inlined import InlinedSites
from gotrace.sites.lines import FileLines, reason_text
from gotrace.sites.sites import FunctionSites, InlinedAt, InlinedPlace
from gotrace.text import counted, printable, quote

#: Lines that are looked at for one that is counted.
_NEAR = 20


@dataclass(frozen=True, slots=True)
class SelectedLines:
    """Lines of a source file that have code; ``name`` is what the file is called."""

    name: str
    found: FileLines
    lines: Sequence[int]

    def sites(self, table: FunctionTable, proofs: InlinedSites) -> Iterator[FunctionSites]:
        """Choose the sites of each line; ``problem`` says why a line has none.

        ``proofs`` know which addresses other sites have.
        """
        for line in self.lines:
            places = self.found.places(line, proofs)
            row = places[0].row
            name = f"{self.name}:{line}"
            own = tuple(
                InlinedPlace(
                    InlinedAt(place.into, self.found.file, line),
                    place.site,
                    place.unproven,
                    place.row,
                    place.record,
                )
                for place in places
            )
            first = next((place.site for place in places if place.site is not None), None)
            start = table.function(row).entry if first is None else first.address
            function = FuncInfo(name, start, start + 1, row, Origin.PCLNTAB)
            why = _reasons(place.unproven for place in places)
            problem = None if first is not None else f"{name}: not counted: {why}"
            yield FunctionSites(function, first, (), problem, places=own, is_line=True)

    def without(self, others: Iterable[SelectedLines]) -> SelectedLines:
        """Return the lines that no others are: each has one probe."""
        known = {line for one in others if one.found.file == self.found.file for line in one.lines}
        return replace(self, lines=[line for line in self.lines if line not in known])

    def nearest(self, table: FunctionTable) -> str:
        """Return advice on the nearest line that is counted, "" if none is near."""
        near = sorted(
            (line for line in self.found.lines if line not in self.lines),
            key=lambda line: min(abs(line - one) for one in self.lines),
        )
        for line in near[:_NEAR]:
            places = self.found.places(line, InlinedSites(table))
            if any(place.site is not None for place in places):
                return f": {self.name}:{line} is counted"
        return ""


def select_lines(table: FunctionTable, word: LineWord) -> SelectedLines:
    """Return the lines that are meant and have code. Raises NoMatchError or UsageError."""
    file, wanted = word.place(table)
    found = FileLines(table, file)
    name = short_name(file, table.source_files())
    lines = [line for line in found.lines if line in wanted]
    if not lines:
        raise NoMatchError(_without_code(table, found, name, wanted))
    return SelectedLines(name, found, lines)


def _without_code(table: FunctionTable, found: FileLines, name: str, wanted: range) -> str:
    where, known = printable(table.image.display), found.lines
    if not known:  # its functions are left out of the program
        return f"no code of a file {quote(name)} in {where}"
    which = f"line {wanted[0]}" if len(wanted) == 1 else f"lines {wanted[0]} to {wanted[-1]}"
    after = bisect_left(known, wanted[0])
    near = "next" if after < len(known) else "last"
    line = known[min(after, len(known) - 1)]
    return (
        f"no code on {which} of {quote(name)} in {where}: the {near} line that has some is {line}"
    )


def partly_counted(lines: Iterable[FunctionSites]) -> Iterator[str]:
    """Yield warnings of lines that are executed more often than is counted."""
    for one in lines:
        if one.is_line and one.uncounted:
            places = counted("{} place{s}", len(one.places))
            why = _reasons(place.unproven for place in one.uncounted)
            missing = len(one.uncounted)
            yield (
                f"{one.function.name}: code in {places}, in {missing} of them not every"
                f" execution is counted: {why}"
            )


def _reasons(found: Iterable[str | None]) -> str:
    reasons = Counter(why for why in found if why is not None)
    return ", ".join(
        f"{reason_text(reason)} ({count})" if len(reasons) > 1 else reason_text(reason)
        for reason, count in reasons.items()
    )
