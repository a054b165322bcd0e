# SPDX-License-Identifier: Apache-2.0
"""Choose among goroutines, and put those together that are alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from gotrace.goroutines.dump import Dump
from gotrace.goroutines.model import Awaited, Frame, Goroutine, Stack, State
from gotrace.goroutines.program import Program
from gotrace.probes.pattern import NameList, Pattern
from gotrace.records import dataclass, field

__all__ = ["Choice", "Group", "GroupKey", "changes", "grouped", "matcher", "stacks_with"]

#: What makes goroutines alike: state, reason, the frames that are shown, where they were created.
GroupKey = tuple[State, str, tuple[Frame, ...], Frame | None]


@dataclass(frozen=True)
class Choice:
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

    def of(self, dump: Dump) -> list[Goroutine]:
        """Return the goroutines of a dump that are wanted. Raises UsageError for a bad pattern."""
        stacks = None
        if self.functions:
            every = {goroutine.stack for goroutine in dump.goroutines}
            stacks = stacks_with(dump.program, every, self.functions)
        reasons = {goroutine.reason for goroutine in dump.goroutines}
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


def stacks_with(program: Program, stacks: Iterable[Stack], functions: Sequence[str]) -> set[Stack]:
    """Return the stacks that have a function on them which one of the patterns matches.

    Raises UsageError for a bad pattern.
    """
    if not functions:
        return set()
    by_function: dict[str, set[Stack]] = {}
    for stack in stacks:
        for frame in program.frames(stack):
            by_function.setdefault(frame.function, set()).add(stack)
    names = NameList(list(by_function))
    rows = {row for text in functions for row in Pattern(text).match(names).rows}
    return {stack for row in rows for stack in by_function[names.names[row]]}


def matcher(reason: str) -> Callable[[str], bool]:
    """Return what says whether a pattern, in which only ``*`` is special, is of a reason."""

    def matches(pattern: str) -> bool:
        parts = map(re.escape, pattern.split("*"))
        return re.fullmatch(".*".join(parts), reason) is not None

    return matches


@dataclass
class Group:
    """Goroutines that are alike."""

    key: GroupKey
    program: Program
    goroutines: list[Goroutine] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Return the reason of the wait, else the state."""
        return self.key[1] or self.key[0].value

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Return the frames that are shown."""
        return self.key[2]

    @property
    def created_by(self) -> Frame | None:
        """Return the frame with the ``go`` statement, None where it is not known or not shown."""
        return self.key[3]

    @cached_property
    def awaited(self) -> list[tuple[Awaited, int]]:
        """Return what is waited for and by how many, the most first."""
        counts = Counter(one.awaited for one in self.goroutines if one.awaited is not None)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def waiting_ns(self) -> tuple[int, int] | None:
        """Return the shortest and the longest wait, None where the length of none is known."""
        known = [one.waiting_ns for one in self.goroutines if one.waiting_ns is not None]
        return (min(known), max(known)) if known else None


def grouped(dump: Dump, goroutines: Iterable[Goroutine], system: bool = False) -> list[Group]:
    """Return goroutines of a dump in groups, the largest first.

    ``system``: frames of the runtime's functions are shown as well. They are where all frames are
    such.
    """
    groups: dict[GroupKey, Group] = {}
    shown: dict[Stack, tuple[Frame, ...]] = {}
    created: dict[int, Frame | None] = {}
    for one in goroutines:
        frames = shown.get(one.stack)
        if frames is None:
            every = [frame for frame in dump.program.frames(one.stack) if not frame.is_elided]
            chosen = every if system else [frame for frame in every if frame.is_shown]
            frames = shown[one.stack] = tuple(chosen or every)
        if one.created_by not in created:
            created[one.created_by] = dump.program.creation(one.created_by)
        creation = created[one.created_by]
        if creation is not None and not (creation.is_shown or system):
            creation = None
        key = (one.state, one.reason, frames, creation)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(key, dump.program)
        group.goroutines.append(one)
    return sorted(groups.values(), key=lambda group: (-len(group.goroutines), _first(group)))


def _first(group: Group) -> int:
    return min(one.goid for one in group.goroutines)


def changes(
    before: Mapping[GroupKey, int], groups: Sequence[Group]
) -> list[tuple[GroupKey, int, int]]:
    """Return (group, how many there are, how many more than before), the most growth first.

    Only those that have changed.
    """
    now = {group.key: len(group.goroutines) for group in groups}
    changed = [
        (key, now.get(key, 0), now.get(key, 0) - before.get(key, 0)) for key in {**now, **before}
    ]
    return sorted((row for row in changed if row[2]), key=lambda row: (-row[2], -row[1]))
