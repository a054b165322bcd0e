# SPDX-License-Identifier: Apache-2.0
"""Read what programs add up in maps, by interval: all comes, and comes once.

There are two kinds of maps. To one, programs only ever add, and an interval is the difference of
two readings. The other has two halves, of which the programs write one while the other is read and
emptied. Only the second can have a minimum or a maximum: the difference of two maxima is not one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from operator import sub

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.program import Map


class Word(Enum):
    """The meaning of a 64-bit word of a map's values."""

    SUM = "sum"
    LEAST = "minimum"
    MOST = "maximum"


#: struct sums of bpf/sums.h: how many, their time, the longest; ns.
TIMES = (Word.SUM, Word.SUM, Word.MOST)


class Sums:
    """A hash map whose words are only ever added to."""

    def __init__(self, table: Map, words: Sequence[Word] = (Word.SUM,)) -> None:
        """Take over a map. Raises ValueError if a word is not a sum."""
        for word in words:
            if word is not Word.SUM:
                raise ValueError(f"the difference of two readings has no {word.value}: use Halves")
        self._map = table
        self._form = struct.Struct(f"={len(words)}Q")
        self._seen: dict[bytes, tuple[int, ...]] = {}

    def take(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield the rows that have grown since the last take, by their keys."""
        nothing = self._form.unpack(bytes(self._form.size))
        for key, value in self._map.entries():
            now, before = self._form.unpack(value), self._seen.get(key, nothing)
            if now != before:
                self._seen[key] = now
                yield key, tuple(map(sub, now, before))


class Counters:
    """An array map whose words are only ever added to, in sum over all CPUs."""

    def __init__(self, table: Map) -> None:
        self._map = table
        self._seen = array("Q", bytes(-(-table.value_size // 8) * 8 * table.max_entries))

    def take(self) -> list[int]:
        """Return the growth of each word since the last take.

        Words of one entry are not read at one moment: one may have grown before another.
        """
        now = self._map.sums()
        new = list(map(sub, now, self._seen))
        self._seen = now
        return new


class Halves:
    """Maps with two halves, of which programs write the one that ``generation`` names.

    With one half there is one reading, after the end of the run.
    """

    def __init__(
        self, generation: Map, count: int, wait: Callable[[], None] = kernel.wait_for_programs
    ) -> None:
        """Take over the map; ``wait`` returns when all programs that run now have ended."""
        self._generation = generation
        self._wait = wait
        self._half = 0
        #: How many there are.
        self.count = count

    def flip(self) -> int:
        """Make the programs write the other half and return the one that none writes any more."""
        before = self._half
        if self.count > 1:
            self._half = 1 - before
            self._generation.update(bytes(4), self._half.to_bytes(4, "little"))
            self._wait()
        return before


class Rows:
    """A hash map with rows of both halves, and an array with a row for each that found none."""

    def __init__(self, rows: Map, rest: Map, half_at: int, words: Sequence[Word] = TIMES) -> None:
        """Take over the maps; the byte ``half_at`` of a key is its half."""
        self._rows, self._rest = rows, rest
        self._half_at = half_at
        self._form = struct.Struct(f"={len(words)}Q")

    def take(self, half: int) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Yield the rows of a half, by their keys, and remove them."""
        for key, value in take_rows(self._rows, lambda key: key[self._half_at] == half):
            yield key, self._form.unpack(value)

    def take_rest(self, half: int) -> tuple[int, ...]:
        """Return and clear what found no row."""
        found = dict(take_entries(self._rest, half, 1))
        return self._form.unpack(found.get(0, bytes(self._form.size)))


def take_entries(table: Map, start: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of a part of an array that are not zero, counted from ``start``.

    They are cleared: no program writes this part meanwhile.
    """
    nothing = bytes(table.stride)
    for index, value in table.array_range(start, count):
        if value != nothing:
            yield index - start, value
            table.update(index.to_bytes(4, "little"), nothing)


def take_rows(table: Map, is_taken: Callable[[bytes], bool]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a hash map that are chosen by their keys, and remove them."""
    for key, value in list(table.entries()):
        if is_taken(key):
            yield key, value
            table.delete(key)
