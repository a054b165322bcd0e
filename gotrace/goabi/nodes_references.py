"""Capture pointers, slices and functions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from gotrace.goabi.capture import REFUSED, Builder, Frame, Location, Node, Position, Reader
from gotrace.goabi.types import GoType
from gotrace.goabi.values import (
    FuncValue,
    Nil,
    PointerValue,
    SequenceValue,
    Value,
)

__all__ = ["FuncNode", "PointerNode", "SliceNode"]


_word = struct.Struct("<Q").unpack_from
_three_words = struct.Struct("<Qqq").unpack_from


def _flat_pointer(name: str) -> Callable[[bytes, int], Value]:
    def flat(data: bytes, at: int) -> Value:
        (address,) = _word(data, at)
        return PointerValue(name, address) if address else Nil(name)

    return flat


class PointerNode(Node):
    """Capture a pointer, and what it points to where a node for that is given."""

    __slots__ = ("_target",)

    def __init__(self, go_type: GoType, target: Node | None = None) -> None:
        """Take the pointer's type and the target's node, None not to follow the pointer."""
        super().__init__(go_type)
        self._target = target
        if target is None:
            self.flat = _flat_pointer(go_type.name)

    def location_at(self, position: Position) -> Location:
        """Return where the address is."""
        return Location(position.block, position.offset, 8, False)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy what the pointer points to."""
        reader = _PointerReader(self.type.name, position)
        target = self._target
        assert target is not None

        def follow() -> None:
            size = min(target.size, builder.limits.struct_bytes)
            if target.size == 0:
                reader.target = target.plan(builder, Position(position.block, 0, 0))
                return
            reader.block = block = builder.deref(position, size)
            if block is not None:
                reader.target = target.plan(builder, Position(block, 0, size))

        builder.defer(follow)
        return reader


class _PointerReader(Reader):
    __slots__ = ("_block", "_name", "_offset", "block", "target")

    def __init__(self, name: str, position: Position) -> None:
        self._name = name
        self._block = position.block
        self._offset = position.offset
        self.block: int | None = None
        self.target: Reader | None = None

    def read(self, frame: Frame) -> Value:
        source = self._block
        if frame.lengths[source] < self._offset + 8:
            return frame.why(source)
        (address,) = _word(frame.data, frame.starts[source] + self._offset)
        if address == 0:
            return Nil(self._name)
        if self.target is None:
            return PointerValue(self._name, address, REFUSED)
        if self.block is not None and frame.lengths[self.block] < 0:
            return PointerValue(self._name, address, frame.why(self.block))
        return PointerValue(self._name, address, self.target.read(frame))

    def location(self) -> Location:
        return Location(self._block, self._offset, 8, False)


class SliceNode(Node):
    """Capture a slice: length, capacity and, where a node for them is given, first elements."""

    __slots__ = ("_elem",)

    def __init__(self, go_type: GoType, elem: Node | None = None) -> None:
        """Take the slice's type and the elements' node, None not to look at them."""
        super().__init__(go_type)
        self._elem = elem
        if elem is None:
            self.flat = _flat_slice(go_type.name)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the first elements."""
        reader = _SliceReader(self.type.name, position)
        elem = self._elem
        assert elem is not None

        def copy() -> None:
            limits = builder.limits
            count = limits.slice_elements
            if elem.size:
                # One element at least, in part if need be.
                count = min(count, max(1, limits.struct_bytes // elem.size))
                limit = min(count * elem.size, limits.struct_bytes)
                reader.block = builder.deref_n(position, position.plus(8), elem.size, limit)
                if reader.block is None:
                    return
                reader.size = elem.size
                if elem.flat is not None and elem.size <= limit:
                    reader.flat = elem.flat
                    return
            ends = [(index + 1) * elem.size for index in range(count)]
            reader.elements = [
                elem.plan(
                    builder, _element(reader.block, position, end, elem.size, limits.struct_bytes)
                )
                for end in ends
            ]

        builder.defer(copy)
        return reader


def _element(block: int | None, position: Position, end: int, size: int, most: int) -> Position:
    if block is None:
        return Position(position.block, 0, 0)
    return Position(block, end - size, min(end, most))


def _flat_slice(name: str) -> Callable[[bytes, int], Value]:
    def flat(data: bytes, at: int) -> Value:
        pointer, length, capacity = _three_words(data, at)
        return SequenceValue(name, (), length, capacity) if pointer else Nil(name)

    return flat


class _SliceReader(Reader):
    __slots__ = ("_end", "_name", "_offset", "_source", "block", "elements", "flat", "size")

    def __init__(self, name: str, position: Position) -> None:
        self._name = name
        self._source = position.block
        self._offset = position.offset
        self._end = position.offset + 24
        self.block: int | None = None
        self.size = 0
        self.flat: Callable[[bytes, int], Value] | None = None
        self.elements: Sequence[Reader] = ()

    def read(self, frame: Frame) -> Value:
        source = self._source
        if frame.lengths[source] < self._end:
            return frame.why(source)
        pointer, length, capacity = _three_words(frame.data, frame.starts[source] + self._offset)
        if pointer == 0:
            return Nil(self._name)
        elements = self._elements(frame, length)
        return SequenceValue(self._name, elements, length, capacity)

    def _elements(self, frame: Frame, length: int) -> tuple[Value, ...]:
        if length <= 0:
            return ()
        size = self.size
        if size == 0:
            return tuple([reader.read(frame) for reader in self.elements[:length]])
        block = self.block
        if block is None or frame.lengths[block] < 0:
            return (REFUSED if block is None else frame.why(block),)
        copied = frame.lengths[block]
        flat = self.flat
        if flat is not None:
            start = frame.starts[block]
            count = min(length, copied // size)
            return tuple([flat(frame.data, start + index * size) for index in range(count)])
        count = min(length, -(-copied // size))
        return tuple([reader.read(frame) for reader in self.elements[:count]])

    def location(self) -> Location:
        return Location(self._source, self._offset + 8, 8, True)


class FuncNode(Node):
    """Capture a function value: the address of its code, which its closure object begins with."""

    __slots__ = ()

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the closure object's first word."""
        reader = _FuncReader(self.type.name, position)

        def follow() -> None:
            reader.block = builder.deref(position, 8)

        builder.defer(follow)
        return reader


class _FuncReader(Reader):
    __slots__ = ("_name", "_position", "block")

    def __init__(self, name: str, position: Position) -> None:
        self._name = name
        self._position = position
        self.block: int | None = None

    def location(self) -> Location:
        """Return where the closure's address is."""
        return Location(self._position.block, self._position.offset, 8, False)

    def read(self, frame: Frame) -> Value:
        source, offset, _ = self._position
        if frame.lengths[source] < offset + 8:
            return frame.why(source)
        (closure,) = _word(frame.data, frame.starts[source] + offset)
        if closure == 0:
            return Nil(self._name)
        block = self.block
        if block is None:
            return REFUSED
        if frame.lengths[block] < 8:
            return frame.why(block)
        (pc,) = _word(frame.data, frame.starts[block])
        return FuncValue(self._name, pc, frame.context.function_name(pc))
