# SPDX-License-Identifier: Apache-2.0
"""Choose among goroutines, and put those together that are alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from heapq import nsmallest
from itertools import filterfalse
from operator import attrgetter

from gotrace.errors import UsageError
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.labels import NO_LABELS, Labels
from gotrace.goroutines.model import Awaited, DumpedGoroutine, Frame, Stack, State
from gotrace.goroutines.program import CodeNames
from gotrace.records import dataclass, field

#: The properties that a group's goroutines share: state, reason, shown frames, the place of their
#: creation, and values of labels if these are asked for.
GroupKey = tuple[State, str, tuple[Frame, ...], Frame | None, Labels]

# A tenth of the time of attributes one by one.
_GOID, _REASON = attrgetter("goid"), attrgetter("reason")
_WAITING, _AWAITED = attrgetter("waiting_ns"), attrgetter("awaited")
_IS_SYSTEM, _LABELS = attrgetter("is_system"), attrgetter("labels")


@dataclass(frozen=True)
class GoroutineFilter:
    """Which goroutines are wanted: those that meet all conditions that are given.

    ``functions`` are patterns, one of which a frame has to match; ``reasons`` are texts in which
    only ``*`` is special. ``longer`` is in ns: goroutines that are known to have waited as long.
    ``system``: the runtime's own as well, but for those that ``goids`` name.
    """

    states: frozenset[State] = frozenset()
    reasons: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    goids: frozenset[int] = frozenset()
    longer: int | None = None
    system: bool = False

    def of(self, dump: Dump) -> list[DumpedGoroutine]:
        """Return the goroutines of a dump that are wanted. Raises UsageError for a bad pattern."""
        if self == GoroutineFilter():  # not one by one: there can be very many
            return list(filterfalse(_IS_SYSTEM, dump.goroutines))
        stacks = None
        if self.functions:
            every = {goroutine.stack for goroutine in dump.goroutines}
            stacks = stacks_with(dump.program, every, self.functions)
        reasons = set(map(_REASON, dump.goroutines))
        wanted = {reason for reason in reasons if any(map(matcher(reason), self.reasons))}
        return [
            goroutine
            for goroutine in dump.goroutines
            if (not self.goids or goroutine.goid in self.goids)
            and (self.system or self.goids or not goroutine.is_system)
            and (not self.states or goroutine.state in self.states)
            and (not self.reasons or (goroutine.reason and goroutine.reason in wanted))
            and (
                self.longer is None
                or (goroutine.waiting_ns is not None and goroutine.waiting_ns >= self.longer)
            )
            and (stacks is None or goroutine.stack in stacks)
        ]


def stacks_with(
    program: CodeNames, stacks: Iterable[Stack], functions: Sequence[str]
) -> set[Stack]:
    """Return the stacks that have a function on them which one of the patterns matches.

    ``@RECIPE`` stands for the recipe's functions. Raises UsageError for a bad pattern.
    """
    from gotrace.probes.pattern import NameList, Pattern
    from gotrace.probes.recipes import functions_of

    if not functions:
        return set()
    by_function: dict[str, set[Stack]] = {}
    for stack in stacks:
        for frame in program.frames(stack):
            by_function.setdefault(frame.function, set()).add(stack)
    names = NameList(list(by_function))
    patterns = (Pattern(text) for word in functions for text in functions_of(word))
    rows = {row for pattern in patterns for row in pattern.match(names).rows}
    return {stack for row in rows for stack in by_function[names.names[row]]}


def matcher(reason: str) -> Callable[[str], bool]:
    """Return a test whether a reason matches a pattern, in which only ``*`` is special."""

    def matches(pattern: str) -> bool:
        parts = map(re.escape, pattern.split("*"))
        return re.fullmatch(".*".join(parts), reason) is not None

    return matches


def check_reasons(patterns: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for a pattern that none of the program's reasons of waits can match."""
    reasons = [*filter(None, known)]
    for pattern in patterns:
        if reasons and not any(matcher(reason)(pattern) for reason in reasons):
            near = get_close_matches(pattern, reasons, cutoff=0.4) or reasons[:3]
            listed = ", ".join(map(repr, near))
            raise UsageError(f"no goroutine can wait for {pattern!r}: reasons are {listed} ...")


@dataclass
class GoroutineGroup:
    """Goroutines that are alike."""

    key: GroupKey
    program: CodeNames
    goroutines: list[DumpedGoroutine] = field(default_factory=list)
    #: Of the program's goroutines, by where they are.
    all_labels: Mapping[int, Labels] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Return the reason of the wait, else the state."""
        return self.key[1] or self.key[0].value

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.key[2]

    @property
    def created_by(self) -> Frame | None:
        """Return the frame with the ``go`` statement, None where it is not known or not shown."""
        return self.key[3]

    @property
    def labels(self) -> Labels:
        """Return the labels that all of them have."""
        found = {self.all_labels.get(at, NO_LABELS) for at in set(map(_LABELS, self.goroutines))}
        first = min(found, key=len)
        shared = set(first).intersection(*found)
        return tuple(label for label in first if label in shared)

    def awaited(self, most: int) -> list[tuple[Awaited, int]]:
        """Return the things that most goroutines wait for, up to ``most``, with their numbers."""
        found: list[tuple[Awaited, int]] = []
        for number in sorted(set(self._awaited.values()), reverse=True):
            # nearly all can be alike: those are not sorted
            alike = (what for what, count in self._awaited.items() if count == number)
            found += [(what, number) for what in nsmallest(most - len(found), alike)]
            if len(found) == most:
                break
        return found

    @property
    def awaiting(self) -> tuple[int, int]:
        """Return how many wait for something that is known, and for how many things."""
        return self._awaited.total(), len(self._awaited)

    @cached_property
    def _awaited(self) -> Counter[Awaited]:
        return Counter(filter(None, map(_AWAITED, self.goroutines)))

    @cached_property
    def waiting_ns(self) -> tuple[int, int] | None:
        """Return the shortest and the longest wait, None where the length of none is known."""
        known = [time for time in map(_WAITING, self.goroutines) if time is not None]
        return (min(known), max(known)) if known else None


def grouped(
    dump: Dump, goroutines: Iterable[DumpedGoroutine], system: bool = False, by: Sequence[str] = ()
) -> list[GoroutineGroup]:
    """Return goroutines of a dump in groups, the largest first.

    ``system``: wrappers and the runtime's functions are shown as well. The latter are where all
    frames are such. ``by``: keys of labels whose values keep goroutines apart.
    """
    # First by what is compared fast: nearly all that are alike share a stack.
    cells: defaultdict[tuple[int, str, int, int, int], list[DumpedGoroutine]] = defaultdict(list)
    for one in goroutines:
        _, state, reason, _, _, _, _, _, _, created_by, _, _, _, labels, stack = one
        cells[id(state), reason, id(stack), created_by, labels if by else 0].append(one)
    groups: dict[GroupKey, GoroutineGroup] = {}
    for alike in cells.values():
        key = key_of(dump.program, alike[0], system)
        if by:
            chosen = tuple(label for label in dump.labels_of(alike[0]) if label[0] in by)
            key = *key[:-1], chosen
        group = groups.setdefault(key, GoroutineGroup(key, dump.program, all_labels=dump.labels))
        group.goroutines += alike
    return sorted(groups.values(), key=lambda group: (-len(group.goroutines), _first(group)))


def key_of(program: CodeNames, one: DumpedGoroutine, system: bool = False) -> GroupKey:
    """Return the group's key of a goroutine; ``system`` is as for groups."""
    every = [f for f in program.frames(one.stack) if system or not f.is_elided]
    chosen = every if system else [frame for frame in every if frame.is_shown]
    creation = program.creation(one.created_by)
    if creation is not None and not (creation.is_shown or system):
        creation = None
    return one.state, one.reason, tuple(chosen or every), creation, NO_LABELS


def _first(group: GoroutineGroup) -> int:
    return min(one.goid for one in group.goroutines)


def changes(
    before: Mapping[GroupKey, int], groups: Sequence[GoroutineGroup]
) -> list[tuple[GroupKey, int, int]]:
    """Return (group, how many there are, how many more than before), the most growth first.

    Only those that have changed.
    """
    now = {group.key: len(group.goroutines) for group in groups}
    changed = [
        (key, now.get(key, 0), now.get(key, 0) - before.get(key, 0)) for key in {**now, **before}
    ]
    return sorted((row for row in changed if row[2]), key=lambda row: (-row[2], -row[1]))
