"""Capture structs and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gotrace.goabi.capture import Builder, Constant, Frame, Node, Position, Reader
from gotrace.goabi.types import ArrayType, GoType, StructType
from gotrace.goabi.values import BytesValue, SequenceValue, StructValue, Unavailable, Value

__all__ = ["ArrayNode", "ByteArrayNode", "StructNode", "UnreadNode"]


class StructNode(Node):
    """Capture a struct by value: its fields, each by its own node."""

    __slots__ = ("_fields",)

    def __init__(self, go_type: StructType, nodes: Sequence[Node]) -> None:
        """Take the type and its fields' nodes, in order."""
        super().__init__(go_type)
        self._fields = tuple(
            (field.name, field.offset, node)
            for field, node in zip(go_type.fields, nodes, strict=True)
        )
        self.flat = _flat_struct(go_type.name, self._fields)

    @property
    def is_divisible(self) -> bool:
        """Say that fields are of use one by one."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan the fields."""
        readers = [node.plan(builder, position.plus(at)) for _, at, node in self._fields]
        return _StructReader(self.type.name, [name for name, _, _ in self._fields], readers)


def _flat_struct(
    type_name: str, fields: Sequence[tuple[str, int, Node]]
) -> Callable[[bytes, int], Value] | None:
    parts = [(name, at, node.flat) for name, at, node in fields if node.flat is not None]
    if len(parts) != len(fields):
        return None
    return lambda data, start: StructValue(
        type_name, tuple([(name, flat(data, start + at)) for name, at, flat in parts])
    )


class _StructReader(Reader):
    __slots__ = ("_name", "_names", "_readers")

    def __init__(self, name: str, names: Sequence[str], readers: Sequence[Reader]) -> None:
        self._name = name
        self._names = tuple(names)
        self._readers = tuple(readers)

    def read(self, frame: Frame) -> Value:
        values = [reader.read(frame) for reader in self._readers]
        return StructValue(self._name, tuple(zip(self._names, values, strict=True)))


class ArrayNode(Node):
    """Capture an array by value: its first elements."""

    __slots__ = ("_elem", "_length", "_shown")

    def __init__(self, go_type: ArrayType, elem: Node, shown: int) -> None:
        """Take the type, the elements' node, and how many elements to read at most."""
        super().__init__(go_type)
        self._elem = elem
        self._length = max(go_type.length, 0)
        self._shown = min(self._length, shown)
        self.flat = _flat_array(go_type.name, elem, self._length, self._shown)

    @property
    def is_divisible(self) -> bool:
        """Say that elements are of use one by one."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan the elements."""
        readers = [
            self._elem.plan(builder, position.plus(index * self._elem.size))
            for index in range(self._shown)
        ]
        return _ArrayReader(self.type.name, self._length, readers)


def _flat_array(
    name: str, elem: Node, length: int, shown: int
) -> Callable[[bytes, int], Value] | None:
    flat, size = elem.flat, elem.size
    if flat is None:
        return None
    return lambda data, start: SequenceValue(
        name, tuple([flat(data, start + index * size) for index in range(shown)]), length
    )


class _ArrayReader(Reader):
    __slots__ = ("_length", "_name", "_readers")

    def __init__(self, name: str, length: int, readers: Sequence[Reader]) -> None:
        self._name = name
        self._length = length
        self._readers = tuple(readers)

    def read(self, frame: Frame) -> Value:
        elements = tuple([reader.read(frame) for reader in self._readers])
        return SequenceValue(self._name, elements, self._length)


class ByteArrayNode(Node):
    """Capture an array of bytes."""

    __slots__ = ("_shown",)

    def __init__(self, go_type: ArrayType, shown: int) -> None:
        """Take the type and how many bytes to read at most."""
        super().__init__(go_type)
        self._shown = shown
        name, length = go_type.name, go_type.size
        count = min(length, shown)
        self.flat = lambda data, at: BytesValue(name, data[at : at + count], length)

    @property
    def is_divisible(self) -> bool:
        """Say that the first bytes are of use."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to read what is captured of the bytes."""
        count = min(position.end - position.offset, self._shown)
        if count <= 0:
            return Constant(Unavailable("beyond the bytes captured"))
        return _ByteArrayReader(self.type.name, position, count, self.size)


class _ByteArrayReader(Reader):
    __slots__ = ("_count", "_length", "_name", "_position")

    def __init__(self, name: str, position: Position, count: int, length: int) -> None:
        self._name = name
        self._position = position
        self._count = count
        self._length = length

    def read(self, frame: Frame) -> Value:
        block, offset, _ = self._position
        if frame.lengths[block] < offset + self._count:
            return frame.why(block)
        start = frame.starts[block] + offset
        return BytesValue(self._name, frame.data[start : start + self._count], self._length)


class UnreadNode(Node):
    """Stand for a value of which nothing can be captured."""

    __slots__ = ("_why",)

    def __init__(self, go_type: GoType, why: str) -> None:
        """Take the type and the reason."""
        super().__init__(go_type)
        self._why = why

    @property
    def is_divisible(self) -> bool:
        """Say that it does not matter."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan nothing."""
        return Constant(Unavailable(self._why))
