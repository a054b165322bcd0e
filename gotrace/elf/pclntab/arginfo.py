# SPDX-License-Identifier: Apache-2.0
"""Read what a function's arguments are made of, as Go's own tracebacks show them.

The compiler has listed it since Go 1.17, for the first ten words of those that are near enough.
Sources: ``EmitArgInfo`` in cmd/compile/internal/ssagen/ssa.go, ``printArgs`` in
runtime/traceback.go, and the constants ``TraceArgs...`` in internal/abi/symtab.go.
"""

from __future__ import annotations

import enum
import mmap
from typing import NamedTuple, Union

FUNCDATA_ARGUMENTS = 5

_END = 0xFF
_START_AGGREGATE = 0xFE
_END_AGGREGATE = 0xFD
_REST = 0xFC
_FAR = 0xFB
_SPECIAL = 0xF0

#: Bytes of the longest description: abi.TraceArgsMaxLen.
_MAX_SIZE = 171
_MAX_DEPTH = 5
#: Those of numbers and pointers, and of vectors.
_SIZES = frozenset({1, 2, 4, 8, 16, 32, 64})


class ShapeWord(NamedTuple):
    """An argument, or a part of one, without parts: ``offset`` bytes into the frame's arguments."""

    offset: int
    size: int


class Undescribed(enum.Enum):
    """The marks for arguments or parts that are not described."""

    REST = "beyond the first ten words, or five levels"
    FAR = "too far from the first argument"


Shape = Union[ShapeWord, Undescribed, "tuple[Shape, ...]"]


def parse_shapes(data: bytes | mmap.mmap, start: int) -> tuple[Shape, ...] | None:
    """Return the shapes of a function's arguments, described at an offset; None if damaged."""
    levels: list[list[Shape]] = [[]]
    at, end = start, min(start + _MAX_SIZE, len(data))
    while at < end:
        mark = data[at]
        at += 1
        if mark == _END:
            return tuple(levels[0]) if len(levels) == 1 else None
        if mark == _START_AGGREGATE:
            if len(levels) > _MAX_DEPTH:
                return None
            levels.append([])
        elif mark == _END_AGGREGATE:
            if len(levels) == 1:
                return None
            parts = tuple(levels.pop())
            levels[-1].append(parts)
        elif mark in (_REST, _FAR):
            levels[-1].append(Undescribed.REST if mark == _REST else Undescribed.FAR)
        elif mark >= _SPECIAL or at == end or data[at] not in _SIZES:
            return None
        else:
            levels[-1].append(ShapeWord(mark, data[at]))
            at += 1
    return None
