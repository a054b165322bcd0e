# SPDX-License-Identifier: Apache-2.0
"""Search bytes, and read numbers of variable length from them."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

#: Numbers of more than 64 bits mean nothing to any reader here.
_MAX_SHIFT = 63


def find_all(
    data: bytes | mmap, needle: bytes, start: int = 0, end: int | None = None
) -> Iterator[int]:
    """Yield the offsets at which ``needle`` occurs in ``data[start:end]``; they may overlap."""
    limit = len(data) if end is None else end
    at = data.find(needle, start, limit)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1, limit)


def read_uleb(data: bytes | mmap, position: int) -> tuple[int, int]:
    """Return the unsigned LEB128 number at ``position`` and the position after it.

    Go calls the encoding a varint. Raise IndexError when the number runs out of ``data``,
    ValueError when it has more than 64 bits.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise ValueError(f"a number at {position:#x} has more than 64 bits")
