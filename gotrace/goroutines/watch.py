# SPDX-License-Identifier: Apache-2.0
"""Read all goroutines again and again: each time only those anew that have run meanwhile.

The images of all g's are read each time, in large pieces. A goroutine whose saved registers, state
and counter of runs are as they were has its stack still, and is not looked at. Since Go 1.17 that
is certain: g.trackingSeq counts its runs, and where that byte comes round, g.trackingStamp has
changed, a time that is taken at each eighth run. Before, a goroutine that ran and came back to the
same place is taken for one that did not run.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import pairwise

from gotrace.goroutines.dump import STATES, Fields, GoroutineReader, listed, stride_of, uncollected
from gotrace.goroutines.groups import GroupKey, key_of
from gotrace.goroutines.memory import Memory
from gotrace.goroutines.model import DumpedGoroutine, Stack, State
from gotrace.goroutines.program import CodeNames
from gotrace.goroutines.samples import Sample
from gotrace.records import dataclass, field

#: Refreshes whose numbers are kept.
HISTORY = 300
#: A group that grows is one that leaks if its goroutines hardly ever leave: it has grown so many
#: times what chance would make of as many that come and go,
_SURELY = 4.0
#: in so many refreshes,
_GREW = 3
#: and in one of the latest.
_LATELY = 30
#: Groups without goroutines are forgotten after so many refreshes.
_FORGOTTEN = 60

_RUNNING, _GSCAN = 2, 0x1000
_HAVE_TIME = (State.WAITING, State.SYSCALL)


@dataclass(eq=False)
class GroupWatch:
    """A group of goroutines over time; those of the runtime are apart.

    ``first`` is how many there were when it was first seen, 0 where that was after the first
    refresh; ``counts`` are those of the latest refreshes. ``arrived`` and ``left``: how many
    goroutines came to it and went, or ran and came back. ``since`` are the times, of the program's
    clock, from which on goroutines are known to wait, the earliest and the latest; None where none
    is known.
    """

    key: GroupKey
    is_system: bool
    first: int
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    count: int = 0
    arrived: int = 0
    left: int = 0
    since: tuple[int, int] | None = None
    _grew: int = 0
    _record: int = 0
    _quiet: int = 0

    def close(self) -> None:
        """Take note of a refresh's count."""
        before = self.counts[-1] if self.counts else self.first
        self.counts.append(self.count)
        if self.count > max(before, self._record):
            self._grew += 1
            self._quiet = 0
        else:
            self._quiet += 1
        self._record = max(self._record, self.count, self.first)

    @property
    def growth(self) -> int:
        """Return how many more there are than at first."""
        return self.count - self.first

    @property
    def leaks(self) -> bool:
        """Return whether goroutines gather here that do not go on.

        The program's own collector may have found that they wait for ever. Else it grows, although
        what comes and goes by chance would not: the spread of that is the root of the number.
        """
        state = self.key[0]
        if state is State.LEAKED:
            return True
        return (
            state is State.WAITING
            and not self.is_system
            and self._grew >= _GREW
            and self._quiet < _LATELY
            and self.count == self._record
            and self.growth >= _SURELY * math.sqrt(self.arrived + self.left)
        )

    @property
    def is_forgotten(self) -> bool:
        """Return whether it has had no goroutine for long."""
        return not self.count and self._quiet >= _FORGOTTEN


@dataclass(eq=False, slots=True)
class _Cell:
    """Goroutines that are alike in all that is compared fast."""

    group: GroupWatch
    has_time: bool


class _Batch:
    """Some of the goroutines: their addresses, and the latest reads of them.

    ``cells`` has None for those that are dead.
    """

    def __init__(self, addresses: Sequence[int], fields: Fields) -> None:
        self.addresses = list(addresses)
        self.fields = fields
        stride = self.stride = stride_of(addresses, fields.size)
        self.cells: list[_Cell | None] = [None] * len(addresses)
        self.columns: dict[int, array[int]] = {}
        self.tracking = b""
        self.since = array("Q")
        #: The earliest and latest times by group, None where they are to be found again.
        self.times: dict[GroupWatch, tuple[int, int]] | None = None
        self._remote, self._local = array("Q"), array("Q")
        ends = [at for at, (a, b) in enumerate(pairwise(addresses), 1) if b - a != stride]
        for first, end in pairwise((0, *ends, len(addresses))):
            length = (end - first - 1) * stride + fields.size
            self._remote.extend((addresses[first], length))
            self._local.extend((first * stride, length))

    def look(self, memory: Memory, buffer: array[int]) -> Iterator[tuple[int, int]]:
        """Read the images; yield the places and states of those that have run."""
        fields, step = self.fields, self.stride >> 3
        memory.scatter(self._remote, buffer, self._local)
        end = step * len(self.addresses)
        found: set[int] = set()
        before, self.columns = self.columns, {}
        for word in (*fields.moves, fields.stamp):
            column = self.columns[word] = buffer[word:end:step]
            if not before:
                found = set(range(len(column)))
            elif column != before[word]:
                pairs = enumerate(zip(before[word], column, strict=True))
                if word == fields.status:
                    found.update(at for at, (a, b) in pairs if (a ^ b) & 0xFFFFFFFF & ~_GSCAN)
                else:
                    found.update(at for at, (a, b) in pairs if a != b)
        with memoryview(buffer) as words, words.cast("B") as raw:
            tracking = raw[fields.tracking : 8 * end : self.stride].tobytes()
        if tracking != self.tracking and self.tracking:
            pairs = enumerate(zip(self.tracking, tracking, strict=True))
            found.update(at for at, (a, b) in pairs if a != b)
        self.tracking = tracking
        since = buffer[fields.waitsince : end : step]
        if since != self.since:
            self.since, self.times = since, None
        statuses = self.columns[fields.status]
        kinds = {word: word & 0xFFFFFFFF & ~_GSCAN for word in set(statuses)}
        if _RUNNING in kinds.values():
            found.update(at for at, word in enumerate(statuses) if kinds[word] == _RUNNING)
        if found:
            self.times = None
        for at in sorted(found):
            yield at, kinds[statuses[at]]

    def found_times(self) -> dict[GroupWatch, tuple[int, int]]:
        """Return the earliest and the latest time from which goroutines wait, by group."""
        if self.times is None:
            times: dict[GroupWatch, tuple[int, int]] = {}
            for cell, since in zip(self.cells, self.since, strict=True):
                if since and cell is not None and cell.has_time:
                    known = times.get(cell.group)
                    if known is None:
                        times[cell.group] = since, since
                    elif not known[0] <= since <= known[1]:
                        times[cell.group] = min(known[0], since), max(known[1], since)
            self.times = times
        return self.times


class GoroutineWatch:
    """The goroutines of a live process over time."""

    def __init__(
        self,
        program: CodeNames,
        memory: Memory,
        fields: Fields,
        reader: GoroutineReader,
        allgs: int,
        now: Callable[[], int],
        sample: Callable[[], Iterable[Sample]],
    ) -> None:
        """Take the parts that read goroutines: see ``dump.take_dump``."""
        self.program = program
        self._memory = memory
        self._fields = fields
        self._reader = reader
        self._allgs = allgs
        self._now = now
        self._sample = sample
        self._batches: list[_Batch] = []
        self._known = 0
        self._buffer = array("Q")
        self._cells: dict[tuple[State, str, Stack, int, bool], _Cell] = {}
        self._groups: dict[tuple[GroupKey, bool], GroupWatch] = {}
        self._refreshes = 0
        #: How many goroutines were read with their stacks the last time.
        self.read = 0
        #: How many of these kept moving.
        self.moved = 0
        #: When it was looked last, by the program's monotonic clock.
        self.now = 0

    def refresh(self) -> list[GroupWatch]:
        """Look at all goroutines and return the groups, the largest first.

        Raises ProcessError once the process has ended; GotraceError.
        """
        self.now = self._now()
        with uncollected():
            for addresses in listed(self._memory, self._allgs, self._known):
                self._known += len(addresses)
                self._batches.append(_Batch(addresses, self._fields))
            self._join_small()
            self._look()
        self._refreshes += 1
        for group in self._groups.values():
            if self._refreshes == 1:
                group.first, group.arrived = group.count, 0
            group.close()
        times: dict[GroupWatch, tuple[int, int]] = {}
        for batch in self._batches:
            for group, (first, last) in batch.found_times().items():
                known = times.get(group, (first, last))
                times[group] = min(known[0], first), max(known[1], last)
        for group in self._groups.values():
            group.since = times.get(group)
        self._forget()
        return sorted(
            (group for group in self._groups.values() if group.count),
            key=lambda group: -group.count,
        )

    def _look(self) -> None:
        running: dict[int, tuple[_Batch, int]] = {}
        self.read = self.moved = 0
        for batch in self._batches:
            size = batch.stride * len(batch.addresses) + 8
            if 8 * len(self._buffer) < size:
                self._buffer = array("Q", bytes(size + 7 & ~7))
            moved: dict[int, tuple[_Batch, int]] = {}
            for at, status in batch.look(self._memory, self._buffer):
                if status == _RUNNING:
                    running[batch.addresses[at]] = batch, at
                elif status in STATES:
                    moved[batch.addresses[at]] = batch, at
                else:
                    self._put(batch, at, None)
            self._take(moved)
        # Their threads are sampled, for which one waits.
        self._take(running, self._sample)

    def _take(
        self,
        places: dict[int, tuple[_Batch, int]],
        sample: Callable[[], Iterable[Sample]] | None = None,
    ) -> None:
        """Read goroutines with their stacks, by their addresses."""
        if not places:
            return
        found = self._reader.read([sorted(places)], self.now, sample)
        self.read += len(found)
        self.moved += sum(one.has_moved for one in found)
        for one in found:
            batch, at = places.pop(one.g)
            self._put(batch, at, self._cell(one))
        for batch, at in places.values():  # that have ended meanwhile
            self._put(batch, at, None)

    @staticmethod
    def _put(batch: _Batch, at: int, cell: _Cell | None) -> None:
        before = batch.cells[at]
        batch.cells[at] = cell
        if before is not None:
            before.group.count -= 1
            before.group.left += 1
        if cell is not None:
            cell.group.count += 1
            cell.group.arrived += 1

    def _cell(self, one: DumpedGoroutine) -> _Cell:
        key = one.state, one.reason, one.stack, one.created_by, one.is_system
        cell = self._cells.get(key)
        if cell is None:
            group_key = key_of(self.program, one)
            group = self._groups.get((group_key, one.is_system))
            if group is None:
                group = GroupWatch(group_key, one.is_system, 0)
                self._groups[group_key, one.is_system] = group
            cell = self._cells[key] = _Cell(group, one.state in _HAVE_TIME)
        return cell

    def _join_small(self) -> None:
        """Put the goroutines of two batches together where there are few: a program that grows."""
        while len(self._batches) > 1:
            one, other = self._batches[-2:]
            if len(one.addresses) + len(other.addresses) > _MAX_BATCH or (
                len(one.addresses) > 4 * len(other.addresses) and len(other.addresses) > 1
            ):
                return
            self._batches[-2:] = [_joined(one, other)]

    def _forget(self) -> None:
        """Drop groups that have been without goroutines for long."""
        gone = {key for key, group in self._groups.items() if group.is_forgotten}
        if gone:
            dead = {id(self._groups.pop(key)) for key in gone}
            self._cells = {k: cell for k, cell in self._cells.items() if id(cell.group) not in dead}

    def states(self) -> Counter[str]:
        """Return how many goroutines of the program's own there are, by state."""
        found: Counter[str] = Counter()
        for group in self._groups.values():
            if group.count and not group.is_system:
                found[group.key[0].value] += group.count
        return found

    def members(self, groups: Container[GroupWatch]) -> Iterator[tuple[GroupWatch, int, int]]:
        """Yield the groups of the goroutines in some groups, with their ids and addresses."""
        word = self._fields.goid
        for batch in self._batches:
            goids = batch.columns.get(word, ())
            for cell, goid, address in zip(batch.cells, goids, batch.addresses, strict=False):
                if cell is not None and cell.group in groups:
                    yield cell.group, goid, address

    def goroutines(self, group: GroupWatch, most: int) -> list[DumpedGoroutine]:
        """Read the goroutines of a group with the lowest ids; those that are still in it."""
        listed_ = sorted((goid, address) for _, goid, address in self.members({group}))
        chosen = sorted(address for _, address in listed_[:most])
        found = self._reader.read([chosen] if chosen else [], self._now(), self._sample)
        mine = [one for one in found if key_of(self.program, one) == group.key]
        return sorted(mine, key=lambda one: one.goid)


_MAX_BATCH = 4096


def _joined(one: _Batch, other: _Batch) -> _Batch:
    """Return the goroutines of two batches as one, with the facts about them.

    Those that have not been looked at will differ from what is known: nothing.
    """
    joined = _Batch([*one.addresses, *other.addresses], one.fields)
    joined.cells = [*one.cells, *other.cells]
    if one.columns or other.columns:
        for word in {*one.columns, *other.columns}:
            column = joined.columns[word] = array("Q")
            for part in (one, other):
                unknown = array("Q", bytes(8 * len(part.addresses)))
                column += part.columns.get(word, unknown)
        joined.tracking = b"".join(
            part.tracking or bytes(len(part.addresses)) for part in (one, other)
        )
    return joined
