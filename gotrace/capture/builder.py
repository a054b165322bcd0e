# SPDX-License-Identifier: Apache-2.0
"""Plan the operations that capture values, within limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gotrace.capture.ops import (
    MAX_BLOCKS,
    BlockOp,
    CaptureLimits,
    FieldRef,
    Op,
    OpCode,
    Position,
    SpanPart,
)
from gotrace.capture.payload import BEYOND, FixedReader, PayloadReader, Reader
from gotrace.gotypes.types import GoType, InterfaceType
from gotrace.values.model import Value

__all__ = [
    "Builder",
    "FloatHole",
    "Node",
    "with_key",
]

_MAX_AT = 0xFFFF
_WORD = 8
_SPAN_BYTES = 40  # a length, and the digits of a trace's id


class Node:
    """The capture of values of one type: it plans their bytes and makes what reads them back.

    ``type``, ``size`` and ``align`` are those of the value's image in memory. ``flat``: for types
    that need no bytes but their own image, what reads an image at an offset; None for others.
    """

    __slots__ = ("align", "flat", "size", "type")

    def __init__(self, go_type: GoType) -> None:
        """Take the type."""
        self.type = go_type
        self.size = go_type.size
        self.align = max(go_type.align, 1)
        self.flat: Callable[[bytes, int], Value] | None = None

    def plan(self, builder: Builder, position: Position) -> Reader:
        """Plan what the value at a position needs beyond its image; return what reads it."""
        end = position.offset + self.size
        if self.flat is not None and end <= position.end:
            if not builder.holes(position, self.size):
                return _Flat(self, self.flat, position)
            return self.plan_with_holes(builder, position)
        if not self.is_divisible and end > position.end:
            return FixedReader(BEYOND)
        return self.plan_parts(builder, position)

    @property
    def is_divisible(self) -> bool:
        """Return whether a part of the value's image is of use without the rest."""
        return False

    def location_at(self, position: Position) -> FieldRef | None:
        """Return where a flat value at a position is, for a predicate; None if it cannot be."""
        return None

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan a value that is not flat, or whose image is not captured in whole."""
        raise NotImplementedError(type(self).__name__)

    def plan_with_holes(self, builder: Builder, position: Position) -> Reader:
        """Plan a flat value of which float registers hold a part."""
        return self.plan_parts(builder, position)


class _Flat(Reader):
    """A reader of a value from its image alone."""

    __slots__ = ("_block", "_end", "_flat", "_node", "_offset")

    def __init__(self, node: Node, flat: Callable[[bytes, int], Value], position: Position) -> None:
        self._node = node
        self._flat = flat
        self._block, self._offset, _ = position
        self._end = position.offset + node.size

    def read(self, payload: PayloadReader) -> Value:
        if payload.lengths[self._block] < self._end:
            return payload.why(self._block)
        return self._flat(payload.data, payload.starts[self._block] + self._offset)

    def location(self) -> FieldRef | None:
        return self._node.location_at(Position(self._block, self._offset, self._end))

    def key(self) -> Sequence[Op]:
        """Return what appends the image, word by word."""
        return [
            Op(OpCode.KEY_FIELD, reg=min(_WORD, self._end - at), block=self._block, at=at)
            for at in range(self._offset, self._end, _WORD)
        ]


@dataclass(frozen=True, slots=True)
class FloatHole:
    """``size`` bytes at an offset of the root image that come from a float register."""

    offset: int
    size: int
    register: int


class Builder:
    """The operations of one plan under construction, its blocks numbered, within limits.

    What is refused for a limit is None; the value then reads as Unavailable.
    """

    def __init__(self, limits: CaptureLimits, ops: int) -> None:
        """Take the limits and how many operations there may be, END aside."""
        self.limits = limits
        self.ops: list[Op] = []
        self.float_holes: list[FloatHole] = []
        self.bound = 0
        self._interfaces: dict[str, InterfaceType] = {}
        self._steps: list[BlockOp] = []
        self._max_ops = ops
        self._next = 1
        self._now: list[Callable[[], None]] = []
        self._late: list[Callable[[], None]] = []

    @property
    def blocks(self) -> int:
        """Return how many block numbers are taken, block 0 included."""
        return self._next

    @property
    def steps(self) -> tuple[BlockOp, ...]:
        """Return what Frame walks by."""
        return tuple(self._steps)

    @property
    def interfaces(self) -> tuple[InterfaceType, ...]:
        """Return the types of the interfaces whose values are captured."""
        return tuple(self._interfaces.values())

    def deref(
        self, at: Position, size: int, offset: int = 0, *, skip: int = 0, number: int | None = None
    ) -> int | None:
        """Copy ``size`` bytes from ``offset`` after what the pointer at a position leads to.

        ``number`` gives a block's number again. ``skip``: operations, planned right after this one,
        that are left out where it fails; the last of them gives a number again, the others take
        one. Return the block's number.
        """
        if self._is_full or not 0 < size < self.limits.payload or not 0 <= offset < 1 << 32:
            return None
        return self._block(
            Op(OpCode.DEREF, self._number(number), at.block, at.offset, 0, size, offset, skip),
            at.offset + _WORD,
            size,
        )

    def deref_n(
        self,
        at: Position,
        count: Position,
        size: int,
        limit: int,
        *,
        skip: int = 0,
        number: int | None = None,
    ) -> int | None:
        """Copy elements of ``size`` bytes, ``limit`` bytes at most; return the block's number.

        The pointer and the count are in the same block. ``number`` gives a block's number again.
        """
        if self._is_full or not 0 < size < 1 << 32 or not 0 < limit < self.limits.payload:
            return None
        number = self._number(number)
        op = Op(OpCode.DEREF_N, number, at.block, at.offset, count.offset, size, limit, skip)
        return self._block(op, max(at.offset, count.offset) + _WORD, limit)

    def iface(self, go_type: GoType, type_word: Position, data_word: Position) -> int | None:
        """Go on by the dynamic type of an interface; return the number of its block."""
        if self._is_full:
            return None
        op = Op(OpCode.IFACE, self._next, type_word.block, type_word.offset, data_word.offset)
        block = self._block(op, max(type_word.offset, data_word.offset) + _WORD, 0)
        if block is not None and isinstance(go_type, InterfaceType):
            self._interfaces[go_type.name] = go_type
        return block

    def span(self, at: Position, part: SpanPart) -> int | None:
        """Find the span that the context at a position holds; return the number of the block.

        That begins with the length of what is asked for; the bytes are in the next one as well.
        """
        number = self._next
        if self._is_full or number + 1 >= MAX_BLOCKS:
            return None
        op = Op(OpCode.SPAN, number, at.block, at.offset, int(part))
        if self._block(op, at.offset + 2 * _WORD, _SPAN_BYTES) is None:
            return None
        self._next = number + 2
        return number

    @property
    def _is_full(self) -> bool:
        """Return whether no operation is taken any more: most of a large value's are refused."""
        return len(self.ops) >= self._max_ops

    def _number(self, given: int | None) -> int:
        return self._next if given is None else given

    def _block(self, op: Op, end: int, size: int) -> int | None:
        number = op.reg
        # What an operation skips has to be there: else it would go on after the plan's END.
        if len(self.ops) + op.skip >= self._max_ops or end > _MAX_AT:
            return None
        if number + max(0, op.skip - 1) >= MAX_BLOCKS:
            return None
        self._next = max(self._next, number + 1)
        self.ops.append(op)
        self._steps.append(
            BlockOp(op.code, number, op.block, end, op.at, op.at2, op.skip, op.size, op.limit)
        )
        self.bound = (self.bound + 7 & ~7) + 8 + size
        return number

    def defer(self, task: Callable[[], None], *, late: bool = False) -> None:
        """Have a task run after all of the present level; ``late``: after its siblings."""
        (self._late if late else self._now).append(task)

    def run(self) -> None:
        """Run what has been deferred, level by level, until nothing is left."""
        while self._now or self._late:
            tasks = self._now + self._late
            self._now, self._late = [], []
            for task in tasks:
                task()

    def holes(self, position: Position, size: int) -> list[FloatHole]:
        """Return which float registers hold parts of a value in the root image."""
        if position.block or not self.float_holes:
            return []
        start, end = position.offset, position.offset + size
        return [
            hole
            for hole in self.float_holes
            if hole.offset < end and hole.offset + hole.size > start
        ]


def with_key(ops: Sequence[Op], key: Sequence[Op] | None) -> list[Op]:
    """Return a plan's operations, END aside, with those of a key (see ``Reader.key``)."""
    keyed = {op.reg for op in key or () if op.code is OpCode.IFACE}
    marked = [
        op._replace(size=1) if op.code is OpCode.IFACE and op.reg in keyed else op for op in ops
    ]
    return marked + [op for op in key or () if op.code is not OpCode.IFACE]
