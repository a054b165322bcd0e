# SPDX-License-Identifier: Apache-2.0
"""Edges: how work goes from goroutine to goroutine, as bpf/edges.h reports it among calls."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

#: Numbers in the place of a function's that are those of edges: EDGE_FIRST of bpf/edges.h.
FIRST = 0x1000000
#: The word of items that do not say whose work is where they are received: EDGE_NOTHING.
NOTHING = (1 << 64) - 1


class EdgeKind(IntEnum):
    """The action of a goroutine: enum edge of bpf/edges.h, which says what each has."""

    BEGIN = 0
    GO = 1
    TIMER = 2
    WRITE = 3
    READ = 4
    HAND = 5
    TAKE = 6
    SENT = 7
    WAKE = 8
    SWITCH = 9
    DROP = 10
    DEAD = 11
    FREED = 12
    STATE = 13
    REST = 14
    SIGNAL = 15
    MISS = 16
    AFTER = 17


# A tuple: there may be a million a second, and a frozen dataclass takes five times as long to make.
class Edge(NamedTuple):
    """An action of the goroutine ``goid`` of a process at a time (ns, CLOCK_MONOTONIC).

    ``other`` is the goroutine that it concerns, ``first`` and ``second`` are as the kind says,
    ``depth`` is how far from the beginning of its stack the frame is that receives, and ``place``
    which of its statements does; 0 if unknown. Of the runtime's own ``go``
    statements ``depth`` is 1, of beginnings the number of the call's function.
    """

    kind: EdgeKind
    at: int
    tgid: int
    goid: int
    other: int = 0
    first: int = 0
    second: int = 0
    depth: int = 0
    place: int = 0


_KINDS = tuple(EdgeKind)


def edge_of(header: tuple[int, ...]) -> Edge:
    """Return the edge of a record's header, whose function's number is ``FIRST`` or above."""
    at, other, goid, tgid, _, number, _, _, third, first, second = header
    depth, place = third & 0xFFFFFFFF, third >> 32
    return Edge(_KINDS[number - FIRST], at, tgid, goid, other, first, second, depth, place)
