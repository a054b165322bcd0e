# SPDX-License-Identifier: Apache-2.0
"""Plan the operations that capture values, within limits."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

from gotrace.capture.ops import (
    MAX_BLOCKS,
    MAX_REPORTED_CONTEXTS,
    BlockOp,
    CaptureLimits,
    FieldRef,
    Op,
    OpCode,
    Position,
    Rest,
    SpanPart,
)
from gotrace.capture.payload import BEYOND, FixedReader, PayloadReader, Reader
from gotrace.gotypes.types import GoType, InterfaceType
from gotrace.records import dataclass
from gotrace.values.model import UnavailableValue, Value

_MAX_AT = 0xFFFF
_WORD = 8
_SPAN_BYTES = 40  # a length, and the digits of a trace's id
_CONTEXT_BYTES = 8 + 8 * MAX_REPORTED_CONTEXTS
#: Block numbers of what is planned first, and of each kind of what comes after it.
_BLOCKS = 64

_IN_VECTOR = UnavailableValue("in a vector register")

_Task = Callable[[], None]


class Extra(enum.IntEnum):
    """Additions that a user can ask for.

    The usual values are planned first, as if nothing more had been asked for. Of the room that this
    leaves, each kind has a part of its own, whether the others were asked for or not: so no kind
    takes room from another one. Within a kind, the values that a smaller limit shows come first.
    """

    TEXT = 0
    FLAT_ELEMENTS = 1
    ELEMENTS = 2
    POINTERS = 3
    INTERFACES = 4  # what more pointers lead to within interfaces


#: Their parts of the room, in proportion to those of the others that a plan has.
_WEIGHTS = (3, 1, 2, 8, 3)


class PlanNode:
    """The capture of values of one type: it plans their bytes and makes their readers.

    ``type``, ``size`` and ``align`` are those of the value's image in memory. ``flat``: for types
    that need no bytes but their own image, what reads an image at an offset; None for others.
    ``extends``: of a flat one, more can be asked for than its image has.
    """

    __slots__ = ("align", "extends", "flat", "size", "type")

    def __init__(self, go_type: GoType) -> None:
        self.type = go_type
        self.size = go_type.size
        self.align = max(go_type.align, 1)
        self.flat: Callable[[bytes, int], Value] | None = None
        self.extends = False

    def plan(self, builder: Builder, position: Position) -> Reader:
        """Plan the operations that a value needs beyond its image; return its reader."""
        end = position.offset + self.size
        holes = builder.holes(position, self.size)
        if any(hole.is_vector and hole.has(position.offset, end) for hole in holes):
            return FixedReader(_IN_VECTOR)
        if self.flat is not None and end <= position.end and not self.extends:
            if not holes:
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

    def __init__(
        self, node: PlanNode, flat: Callable[[bytes, int], Value], position: Position
    ) -> None:
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
        """Return operations that append the image, word by word."""
        return [
            Op(OpCode.KEY_FIELD, reg=min(_WORD, self._end - at), block=self._block, at=at)
            for at in range(self._offset, self._end, _WORD)
        ]


def plan_flat(node: PlanNode, position: Position) -> Reader:
    """Return a reader of a flat value from its image, without anything that it extends to."""
    assert node.flat is not None
    is_there = position.offset + node.size <= position.end
    return _Flat(node, node.flat, position) if is_there else FixedReader(BEYOND)


@dataclass(frozen=True, slots=True)
class FloatHole:
    """``size`` bytes at an offset of the root image that come from a float register."""

    offset: int
    size: int
    register: int

    @property
    def is_vector(self) -> bool:
        """Return whether it is more than is read of a register."""
        return self.size > _WORD

    def has(self, start: int, end: int) -> bool:
        """Return whether bytes of the root image are all in the register."""
        return self.offset <= start and end <= self.offset + self.size


class Builder:
    """The operations of one plan under construction, its blocks numbered, within limits.

    If a limit refuses a value, its reader is None, and it reads as Unavailable. ``usual``: the
    limits of the values that are planned first.
    """

    def __init__(
        self, limits: CaptureLimits, ops: int, *, is_nested: bool = False, is_deep: bool = False
    ) -> None:
        """Take the limits and how many operations there may be, END aside.

        ``is_nested``: it is a plan for what an interface holds, which is as usual but for texts
        and elements that need nothing but their own bytes; ``is_deep``: with more pointers.
        """
        self.limits = limits
        self.usual = limits.usual
        self.owner = 0  # which of the plan's values is being planned
        self.ops: list[Op] = []
        self.float_holes: list[FloatHole] = []
        self.bound = 0
        self._interfaces: dict[str, InterfaceType] = {}
        self._steps: list[BlockOp] = []
        self._max_ops = ops
        self._next = 1
        self._blocks = 1
        self._most_blocks = MAX_BLOCKS if is_nested else _BLOCKS
        self._is_deep = is_deep
        self._kinds = set(Extra) if not is_nested else {Extra.POINTERS} if is_deep else set()
        self._extra: Extra | None = None  # what is being planned, None for what is usual
        self._extras: dict[Extra, dict[int, list[tuple[int, _Task]]]] = {}
        self._now: list[tuple[int, _Task]] = []
        self._late: list[tuple[int, _Task]] = []

    @property
    def blocks(self) -> int:
        """Return how many block numbers are taken, block 0 included."""
        return max(self._next, self._blocks)

    @property
    def steps(self) -> tuple[BlockOp, ...]:
        """Return the steps by which Frame walks."""
        return tuple(self._steps)

    @property
    def interfaces(self) -> tuple[InterfaceType, ...]:
        """Return the types of the interfaces whose values are captured."""
        return tuple(self._interfaces.values())

    def deref(
        self, at: Position, size: int, offset: int = 0, *, skip: int = 0, number: int | None = None
    ) -> int | None:
        """Copy ``size`` bytes from ``offset`` on of the target of the pointer at a position.

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
        start: int = 0,
        more: int = 0,
    ) -> int | None:
        """Copy elements of ``size`` bytes, ``limit`` bytes at most; return the block's number.

        The pointer and the count are in the same block. ``number`` gives a block's number again.
        ``start``: the first element. ``more``: of how many bytes the rest may be copied later, in
        what is usual only.
        """
        if self._is_full or not 0 < size < 1 << 32 or not 0 < limit < self.limits.payload:
            return None
        number = self._number(number)
        if self._extra is not None or self._is_deep:
            more = 0
        op = Op(
            OpCode.DEREF_N,
            number,
            at.block,
            at.offset,
            count.offset,
            size,
            limit,
            skip,
            start,
            more,
        )
        return self._block(op, max(at.offset, count.offset) + _WORD, limit)

    def iface(
        self, go_type: GoType, type_word: Position, data_word: Position, *, is_deep: bool = False
    ) -> int | None:
        """Go on by the dynamic type of an interface; return the number of its block.

        ``is_deep``: more pointers than usual are followed.
        """
        if self._is_full:
            return None
        source, at, at2 = type_word.block, type_word.offset, data_word.offset
        op = Op(OpCode.IFACE, self._next, source, at, at2, limit=int(is_deep))
        block = self._block(op, max(type_word.offset, data_word.offset) + _WORD, 0)
        if block is not None:
            self.extra(Extra.TEXT)
            self.extra(Extra.FLAT_ELEMENTS)
        if block is not None and isinstance(go_type, InterfaceType):
            self._interfaces[go_type.name] = go_type
        return block

    def span(self, at: Position, part: SpanPart) -> int | None:
        """Find the span that the context at a position holds; return the number of the block.

        That begins with the length of what is asked for; the bytes are in the next one as well.
        """
        number = self._next
        if self._is_full or number + 1 >= self._most_blocks:
            return None
        op = Op(OpCode.SPAN, number, at.block, at.offset, int(part))
        size = _CONTEXT_BYTES if part is SpanPart.CONTEXTS else _SPAN_BYTES
        if self._block(op, at.offset + 2 * _WORD, size) is None:
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
        # The operations that it skips must be there: else it would go on after the plan's END.
        if len(self.ops) + op.skip >= self._max_ops or end > _MAX_AT:
            return None
        if number + max(0, op.skip - 1) >= self._most_blocks:
            return None
        self._next = max(self._next, number + 1)
        self.ops.append(op._replace(reg=_in_kernel(number), block=_in_kernel(op.block)))
        self._steps.append(
            BlockOp(
                op.code,
                number,
                op.block,
                end,
                op.at,
                op.at2,
                op.skip,
                op.size,
                op.limit,
                op.start,
                op.more,
            )
        )
        self.bound = (self.bound + 7 & ~7) + 8 + size
        return number

    def defer(self, task: _Task, *, late: bool = False) -> None:
        """Run a task after all of the present level; ``late``: after its siblings."""
        (self._late if late else self._now).append((self.owner, task))

    def run(self) -> None:
        """Run the deferred tasks, level by level, until nothing is left.

        In a level the plan's values take turns, so that a large one does not take all.
        """
        while self._now or self._late:
            tasks = _by_turns(self._now) + _by_turns(self._late)
            self._now, self._late = [], []
            for self.owner, task in tasks:
                task()

    def extra(self, kind: Extra, rank: int = 0, task: _Task | None = None) -> bool:
        """Run a task after all usual ones; return whether there will be such a time.

        Those of the lowest ``rank`` come first. Without a task: there is more of the kind.
        """
        if self._extra is not None and {self._extra, kind} != {Extra.POINTERS}:
            return False
        if kind not in self._kinds:
            return False
        tasks = self._extras.setdefault(kind, {})
        if task is not None:
            tasks.setdefault(rank, []).append((self.owner, task))
        return True

    def run_extras(self, payload: int, ops: int) -> None:
        """Run the additions that were asked for; ``payload``: bytes of all, ``ops``: of each."""
        limits, usual = self.limits, self.usual
        is_asked = {
            Extra.TEXT: limits.text_bytes > usual.text_bytes,
            Extra.FLAT_ELEMENTS: limits.slice_elements > usual.slice_elements,
            Extra.ELEMENTS: limits.slice_elements > usual.slice_elements,
            Extra.POINTERS: limits.depth > usual.depth,
            Extra.INTERFACES: limits.depth > usual.depth,
        }
        parts = sum(_WEIGHTS[kind] for kind in self._extras)
        room = Op(OpCode.ROOM, 0, 0, 1, parts, 0, payload)
        for kind in Extra:
            if kind not in self._extras or not is_asked[kind]:
                continue
            room = room._replace(size=_WEIGHTS[kind])
            self._blocks = self.blocks
            self._next = (kind - 1) * _BLOCKS
            self._most_blocks = kind * _BLOCKS
            if kind is Extra.INTERFACES:
                # Of one type or another they can be large: each has room of its own.
                tasks = self._extras[kind][0]
                room = room._replace(at2=parts * len(tasks))
                for _, task in tasks:
                    self._mark(room)
                    room = room._replace(at=0)
                    self._extra = kind
                    self._max_ops = len(self.ops) + 1
                    task()
                continue
            self._mark(room)
            room = room._replace(at=0)
            if kind in (Extra.TEXT, Extra.FLAT_ELEMENTS):
                rest = Rest.TEXT if kind is Extra.TEXT else Rest.ELEMENTS
                self._mark(Op(OpCode.MORE, at=rest))
                continue
            self._run_extra(kind, ops)
        self._extra = None

    def run_pointers(self, ops: int) -> None:
        """Follow more pointers than usual, in a deep plan of an interface's value."""
        if Extra.POINTERS in self._extras:
            self._run_extra(Extra.POINTERS, ops)

    def _run_extra(self, kind: Extra, ops: int) -> None:
        self._extra = kind
        self._max_ops = len(self.ops) + ops
        tasks = self._extras[kind]
        while tasks:
            self._now = tasks.pop(min(tasks))
            self.run()

    def _mark(self, op: Op) -> None:
        """Add an operation that makes no block of a number."""
        self.ops.append(op)
        self._steps.append(BlockOp(op.code, 0, 0, 0, op.at, op.at2, 0, op.size, op.limit, 0, 0))

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


def _in_kernel(number: int) -> int:
    """Return the number that the kernel knows a block by: no kind looks at blocks of another."""
    return number if number < MAX_BLOCKS else _BLOCKS + number % _BLOCKS


def _by_turns(tasks: Sequence[tuple[int, _Task]]) -> list[tuple[int, _Task]]:
    """Return tasks with the first of each owner first, then the second ones, and so on."""
    owned: dict[int, list[tuple[int, _Task]]] = {}
    for task in tasks:
        owned.setdefault(task[0], []).append(task)
    turns = chain.from_iterable(zip_longest(*owned.values()))
    return [task for task in turns if task is not None]


def with_key(ops: Sequence[Op], key: Sequence[Op] | None) -> list[Op]:
    """Return a plan's operations, END aside, with those of a key (see ``Reader.key``)."""
    keyed = {op.reg for op in key or () if op.code is OpCode.IFACE}
    marked = [
        op._replace(size=1) if op.code is OpCode.IFACE and op.reg in keyed else op for op in ops
    ]
    return marked + [op for op in key or () if op.code is not OpCode.IFACE]
