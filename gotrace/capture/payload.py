# SPDX-License-Identifier: Apache-2.0
"""Find the blocks of a payload, and read values from them."""

from __future__ import annotations

import abc
import struct
from collections.abc import Sequence

from gotrace.capture.ops import (
    BLOCK_CUT,
    MAX_BLOCKS,
    MAX_NESTING,
    MAX_RESTS,
    MORE_ELEMENTS,
    BlockOp,
    FieldRef,
    Op,
    OpCode,
    Position,
    Rest,
)
from gotrace.gotypes.types import GoType, InterfaceType
from gotrace.records import dataclass
from gotrace.values.model import Nil, UnavailableValue, Value

_WORD = 8
#: A payload and what is read after it: four times the largest payload.
_MAX_BYTES = 1 << 15
_NOWHERE = 1 << 32  # beyond any payload

# PayloadReader.lengths has a block's bytes, or one of these.
_ABSENT = -1
_NIL = -2
_FAULT = -3
_LIMIT = -4
_UNKNOWN = -5
_KNOWN = -6

NIL_POINTER = UnavailableValue("nil pointer")
_WHY = {
    _NIL: NIL_POINTER,
    _FAULT: UnavailableValue("memory not readable"),
    _LIMIT: UnavailableValue("capture limit reached"),
    _UNKNOWN: UnavailableValue("type not known"),
}
BEYOND = UnavailableValue("beyond the bytes captured")
REFUSED = UnavailableValue("capture limit reached")

_header_at = struct.Struct("<I").unpack_from

# Unpackers of a tuple from bytes at an offset: an address, an int, a pointer with a length.
word_at = struct.Struct("<Q").unpack_from
int_at = struct.Struct("<q").unpack_from
pointer_int_at = struct.Struct("<Qq").unpack_from


class PayloadReader:
    """Where the blocks of one payload, or of one subplan's part of it, are.

    ``starts`` and ``lengths`` are by block number; ``lengths`` is negative for blocks that have
    no bytes. ``floats``: whether the float registers' values have been put into block 0.

    The kernel reads no page that is not in memory, such as one of constants that the program has
    yet to look at, or of memory that it has yet to write to. If the context knows memory that the
    kernel could not read, its bytes are put after the payload in ``data``, and their pointers are
    followed here as the kernel would have done.
    """

    __slots__ = (
        "_cut",
        "_end",
        "_noted",
        "_rests",
        "_steps",
        "children",
        "context",
        "data",
        "floats",
        "lengths",
        "no_floats",
        "starts",
    )

    def __init__(
        self,
        data: bytes,
        context: ReadContext,
        steps: tuple[BlockOp, ...],
        count: int,
        end: int | None = None,
    ) -> None:
        """Take a payload and the plan by which it was written, with its number of blocks.

        ``end``: where the payload ends, if more follows it already.
        """
        self.data = data
        self._end = len(data) if end is None else end
        self.context = context
        self.starts = [0] * count
        self.lengths = [_ABSENT] * count
        self._cut: dict[int, tuple[int, int]] = {}  # where a part of a block is, and its size
        self.children: dict[int, tuple[Subplan, PayloadReader]] = {}
        self.floats: frozenset[int] | None = None
        self.no_floats = ""
        self._steps = steps
        # The missing parts of long texts and slices: all of a payload, and their places here.
        self._noted: list[tuple[Rest, PayloadReader, int]] = []
        self._rests: dict[int, tuple[int, int]] = {}

    def rest(self, block: int) -> bytes:
        """Return the bytes that were copied of a block's text or slice beyond the block."""
        start, size = self._rests.get(block, (0, 0))
        return self.data[start : start + size]

    def find_blocks(self, at: int, nesting: int = 0) -> int:
        """Walk over the blocks from an offset on; return where the next one would begin."""
        unread: dict[int, BlockOp] = {}
        at = self._walk(at, nesting, unread)
        if unread:
            self._read_missing(unread, set(), nesting)
        return at

    def follow(self) -> None:
        """Find the blocks to which block 0 leads by the context alone."""
        self._read_missing({}, {0}, 0)

    def _walk(self, at: int, nesting: int, unread: dict[int, BlockOp]) -> int:
        """Find the blocks that the kernel made; ``unread`` gets those that it could not read."""
        data, starts, lengths = self.data, self.starts, self.lengths
        total = limit = self._end
        spare = skip = 0
        for step in self._steps:
            code, number, block, end, type_at, data_at, skipped, size, most, _, more = step
            if skip:
                skip -= 1
                continue
            if code is OpCode.ROOM:
                start = (at + 7) & ~7
                spare = max(most - start, 0) if type_at else spare
                self._end = limit = min(total, start + (spare * size // data_at & ~7))
                continue
            if code is OpCode.MORE:
                at = self._find_rests(at, Rest(type_at))
                continue
            lengths[number] = _ABSENT
            self._cut.pop(number, None)
            if lengths[block] < end:
                skip = skipped
                continue
            at = (at + 7) & ~7
            if at + 8 > limit:
                if at + 8 > total:
                    return total
                lengths[number] = _LIMIT
                skip = skipped
                continue
            header = _header_at(data, at + 4)[0]
            at += 8
            if header < 0x80000000:
                if header & BLOCK_CUT:
                    header &= BLOCK_CUT - 1
                    self._cut[number] = at, min(header, total - at)
                    unread[number] = step
                if at + header > total:
                    return total
                starts[number] = at
                lengths[number] = header
                at += header
                if not header:
                    skip = skipped
                elif more and number not in self._cut:
                    (count,) = word_at(data, starts[block] + data_at)
                    if count * size > most and len(self._noted) < MAX_RESTS:
                        is_text = not more & MORE_ELEMENTS
                        self._noted.append((Rest.TEXT if is_text else Rest.ELEMENTS, self, number))
                continue
            lengths[number] = status = _NIL - (header & 0xFF)
            if status != _KNOWN:
                skip = skipped
                if status == _FAULT:
                    unread[number] = step
            elif code is OpCode.IFACE:
                at = self._enter(step, at, nesting)
        return at

    def _find_rests(self, at: int, kind: Rest) -> int:
        """Find the copied rests of a kind; return where they end."""
        for noted, payload, number in self._noted:
            if noted is not kind:
                continue
            at = (at + 7) & ~7
            if at + 8 > self._end:
                continue
            header = _header_at(self.data, at + 4)[0]
            at += 8
            if header < BLOCK_CUT:
                size = min(header, self._end - at)
                payload._rests[number] = at, size
                at += size
        return at

    def _enter(self, step: BlockOp, at: int, nesting: int) -> int:
        start = self.starts[step.block]
        (word,) = word_at(self.data, start + step.at)
        subplan = self.context.subplan(word)
        if subplan is not None and step.limit:
            subplan = subplan.deep
        if subplan is None or nesting >= MAX_NESTING:
            # Without the plan it is not known where its blocks end: none after it is found.
            return _NOWHERE
        child = self._child(step.number, subplan, start + step.at2)
        at = child.find_blocks(at, nesting + 1)
        self.data = child.data
        return at

    def _child(self, number: int, subplan: Subplan, data_at: int) -> PayloadReader:
        child = PayloadReader(self.data, self.context, subplan.steps, subplan.blocks, self._end)
        child.starts[0] = data_at
        child.lengths[0] = _WORD
        child._noted = self._noted
        self.children[number] = (subplan, child)
        return child

    def _read_missing(self, unread: dict[int, BlockOp], read: set[int], nesting: int) -> None:
        """Run the steps that the kernel could not: those unread, and on blocks ``read`` here."""
        for step in self._steps:
            number, block = step.number, step.block
            is_unread = unread.get(number) is step and (
                self.lengths[number] == _FAULT or number in self._cut
            )
            # Of a block that was cut, the kernel has followed the pointers that it has copied.
            is_after = block in read and self._cut.get(block, (0, 0))[1] < step.end
            if (is_unread or is_after) and self._run(step, nesting):
                read.add(number)

    def _run(self, step: BlockOp, nesting: int) -> bool:
        """Do a step as the interpreter does; return whether that has given a block bytes."""
        most = step.more & ~MORE_ELEMENTS
        return (most > 0 and self._read(step, nesting, most)) or self._read(step, nesting, 0)

    def _read(self, step: BlockOp, nesting: int, most: int) -> bool:
        """Do that with ``most`` bytes of a text or of elements, 0 for those of its limit."""
        number, start = step.number, self.starts[step.block]
        if step.code in (OpCode.ROOM, OpCode.MORE):
            return False
        if self.lengths[step.block] < step.end:
            self.lengths[number] = _ABSENT
            return False
        if step.code is OpCode.IFACE:
            self.lengths[number] = self._follow(step, nesting)
            return False
        if step.code is OpCode.SPAN:
            return False
        (pointer,) = word_at(self.data, start + step.at)
        size, offset = step.size, step.limit
        if step.code is OpCode.DEREF_N:
            (count,) = word_at(self.data, start + step.at2)
            offset = step.start * size
            size = min(max(count - step.start, 0) * size, most or step.limit)
        if not size or not pointer:
            self.lengths[number] = _NIL if size else 0
            return False
        has_room = len(self.data) + size <= _MAX_BYTES
        found = self._known_bytes(number, pointer + offset, size) if has_room else None
        if found is None:
            if number not in self._cut:
                self.lengths[number] = _FAULT if has_room else _LIMIT
            return False
        self.starts[number] = len(self.data)
        self.lengths[number] = len(found)
        self.data += found
        return True

    def _known_bytes(self, number: int, address: int, size: int) -> bytes | None:
        """Return a block's bytes where those that the kernel has not copied can be known."""
        found = self.context.constant_bytes(address, size)
        if found is not None:
            return found
        at, first = self._cut.get(number, (0, 0))
        rest = size - first
        if rest > 0 and self.context.is_untouched(address + first, rest):
            return self.data[at : at + first] + bytes(rest)
        return None

    def _follow(self, step: BlockOp, nesting: int) -> int:
        """Read an interface's value as its dynamic type says; return the block's status."""
        start = self.starts[step.block]
        (word,) = word_at(self.data, start + step.at)
        # Asking for the name of a type makes its plan.
        if not word or self.context.type_name(word) is None:
            return _UNKNOWN if word else _NIL
        subplan = self.context.subplan(word)
        if subplan is not None and step.limit:
            subplan = subplan.deep
        if subplan is None or nesting >= MAX_NESTING:
            return _LIMIT if subplan else _UNKNOWN
        child = self._child(step.number, subplan, start + step.at2)
        child._read_missing({}, {0}, nesting + 1)
        self.data = child.data
        return _KNOWN

    def takes_over(self, usual: PayloadReader) -> bool:
        """Return whether all is here that another reading of the same value has, and take it over.

        That is one in which no more pointers than usual were followed, but more of texts copied.
        """
        for number, length in enumerate(usual.lengths):
            if length >= 0 > self.lengths[number] and number not in usual.children:
                return False
        for number, (_, child) in usual.children.items():
            if number not in self.children or not self.children[number][1].takes_over(child):
                return False
        self._rests.update(usual._rests)
        return True

    def is_nil(self, block: int) -> bool:
        """Return whether a block is missing because its pointer was nil."""
        return self.lengths[block] == _NIL

    def why(self, block: int) -> UnavailableValue:
        """Return why bytes of a block are missing."""
        sources = {step.number: step.block for step in self._steps}
        for _ in range(MAX_BLOCKS):
            status = self.lengths[block]
            if status != _ABSENT or block not in sources:
                break
            block = sources[block]
        why = _WHY.get(_FAULT if block in self._cut else status)
        return BEYOND if why is None else why


class ReadContext:
    """Facts about the traced program that decoding needs; this one knows nothing.

    A subclass that knows a binary overrides any of the methods.
    """

    def at(self, bias: int) -> ReadContext:
        """Return the context of a process whose addresses are the file's plus ``bias``."""
        return self

    def subplan(self, word: int) -> Subplan | None:
        """Return the subplan that the interpreter was given for an itab's or type's address."""
        return None

    def type_name(self, word: int) -> str | None:
        """Return the name of the dynamic type that an itab's or type's address means."""
        return None

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        """Return bytes of the program's memory that are the same at all times, if these are."""
        return None

    def is_untouched(self, address: int, size: int) -> bool:
        """Return whether memory is the program's and was never written to: it reads as zeros."""
        return False

    def function_name(self, pc: int) -> str | None:
        """Return the name of the function whose code begins at an address."""
        return None


class Reader(abc.ABC):
    """A reader of one planned value."""

    __slots__ = ()

    @abc.abstractmethod
    def read(self, payload: PayloadReader) -> Value:
        """Return the value; missing parts are Unavailable, nothing is raised."""

    def location(self) -> FieldRef | None:
        """Return where the value's scalar, or a string's or slice's length, is captured."""
        return None

    def key(self) -> Sequence[Op] | None:
        """Return the operations that append the value to a key, None where it cannot be in one.

        An interface's is its IFACE, whose ``reg`` says which of the plan's is meant.
        """
        return None


class PointedReader(Reader):
    """A pointer to an object of the runtime's, of which ``least`` bytes have to be there."""

    __slots__ = ("_name", "_position", "block")

    least = _WORD

    def __init__(self, name: str, position: Position) -> None:
        """Take the type's name and the pointer's position; ``block`` is where the object is."""
        self._name = name
        self._position = position
        self.block: int | None = None

    def location(self) -> FieldRef:
        return FieldRef(self._position.block, self._position.offset, _WORD, False)

    def read(self, payload: PayloadReader) -> Value:
        """Return nil, the reason why the object is missing, or the object."""
        source, offset, _ = self._position
        if payload.lengths[source] < offset + _WORD:
            return payload.why(source)
        (address,) = word_at(payload.data, payload.starts[source] + offset)
        if address == 0:
            return Nil(self._name)
        block = self.block
        if block is None:
            return REFUSED
        if payload.lengths[block] < self.least:
            return payload.why(block)
        return self.found(payload, address, block)

    @abc.abstractmethod
    def found(self, payload: PayloadReader, address: int, block: int) -> Value:
        """Return the value of an object that is at ``address`` and was copied to ``block``."""


class FixedReader(Reader):
    """One value, whatever the payload."""

    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        self._value = value

    def read(self, payload: PayloadReader) -> Value:
        return self._value


@dataclass(frozen=True, slots=True)
class Subplan:
    """How an interface's value of one dynamic type is captured; ``ops`` end with END.

    ``interfaces`` are the types of the interfaces within it whose values are captured as well.
    ``deep``: the same with more pointers than usual, where that was asked for.
    """

    type: GoType
    ops: tuple[Op, ...]
    steps: tuple[BlockOp, ...]
    blocks: int
    reader: Reader
    interfaces: tuple[InterfaceType, ...] = ()
    deep: Subplan | None = None
