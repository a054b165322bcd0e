# SPDX-License-Identifier: Apache-2.0
"""Decode pc-value tables: runs of one value (line, file number, inline index) along a function.

Source: ``runtime/symtab.go`` (step, pcvalue, readvarint), unchanged since Go 1.2. A table is a
sequence of pairs (zig-zag value delta, pc delta in units of the instruction quantum), both
base-128 varints, ended by a zero value delta that is not the first. The value starts at -1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from mmap import mmap

from gotrace.elf import ElfError

#: Varints here hold 32 bits, five bytes at most.
_MAX_SHIFT = 28


def value_at(data: mmap | bytes, position: int, quantum: int, offset: int) -> int:
    """Return the value for the instruction ``offset`` bytes into the function, -1 without one.

    ``position`` is the table's place in ``data``. Raise ElfError for a damaged table.
    """
    ends, values = runs_within(data, position, quantum, offset + 1)
    return values[-1] if offset < ends[-1] else -1


def values_at(data: mmap | bytes, position: int, quantum: int, offsets: Sequence[int]) -> list[int]:
    """Return the values for several instructions in one pass; ``offsets`` must ascend."""
    if not offsets:
        return []
    ends, values = runs_within(data, position, quantum, offsets[-1] + 1)
    values.append(-1)
    return [values[bisect_right(ends, offset)] for offset in offsets]


def first_value(data: mmap | bytes, position: int) -> int:
    """Return the value for a function's first instruction; faster than the others."""
    delta = data[position] if position < len(data) else 0x80
    if delta & 0x80:
        return runs_within(data, position, 1, 1)[1][0]
    return -1 + (~(delta >> 1) if delta & 1 else delta >> 1)


def runs_within(
    data: mmap | bytes, position: int, quantum: int, size: int, most: int | None = None
) -> tuple[list[int], list[int]]:
    """Return (end offsets, values) of the runs in the first ``size`` bytes of a function.

    Ends grow strictly, and there is one run at least. Raise ElfError for a table that runs out of
    the file or does not advance, and for one of more than ``most`` runs.
    """
    value = -1
    end = 0
    ends: list[int] = []
    values: list[int] = []
    try:
        for _ in repeat(None) if most is None else repeat(None, most):
            delta = data[position]
            position += 1
            if delta == 0 and end:
                return ends, values
            if delta & 0x80:
                delta, position = _varint(data, position, delta)
            value += ~(delta >> 1) if delta & 1 else delta >> 1
            advance = data[position]
            position += 1
            if advance & 0x80:
                advance, position = _varint(data, position, advance)
            if advance == 0:
                raise ElfError("a pc-value table of the Go function table does not advance")
            end += advance * quantum
            ends.append(end)
            values.append(value)
            if end >= size:
                return ends, values
    except IndexError:
        raise ElfError("a pc-value table of the Go function table runs out of the file") from None
    raise ElfError("a pc-value table of the Go function table has too many runs")


def _varint(data: mmap | bytes, position: int, low: int) -> tuple[int, int]:
    """Return (value, position after it) of a varint whose first byte, ``low``, was read."""
    value = low & 0x7F
    for shift in range(7, _MAX_SHIFT + 1, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ElfError("a number in the Go function table is too long")
