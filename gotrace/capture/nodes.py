# SPDX-License-Identifier: Apache-2.0
"""Nodes of ordinary types: scalars, strings and bytes, structs and arrays, pointers and slices."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence

from gotrace.capture.builder import Builder, Extra, FloatHole, PlanNode, plan_flat
from gotrace.capture.ops import MAX_KEY_TEXT, MORE_ELEMENTS, FieldRef, Op, OpCode, Position
from gotrace.capture.payload import (
    REFUSED,
    FixedReader,
    PayloadReader,
    PointedReader,
    Reader,
    int_at,
    pointer_int_at,
    word_at,
)
from gotrace.gotypes.types import SHAPE, ArrayType, GoType, Kind, StructType
from gotrace.values.go_syntax import is_text
from gotrace.values.model import (
    BytesValue,
    DurationValue,
    FuncValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    UnavailableValue,
    Value,
)
from gotrace.values.stdlib_text import address_text, hardware_address_text

_Flat = Callable[[bytes, int], Value]

#: Most elements of a slice or array that are captured one by one.
MAX_ELEMENTS = 64

_FORMATS = {
    Kind.BOOL: "<?",
    Kind.INT: "<q",
    Kind.INT8: "<b",
    Kind.INT16: "<h",
    Kind.INT32: "<i",
    Kind.INT64: "<q",
    Kind.UINT: "<Q",
    Kind.UINT8: "<B",
    Kind.UINT16: "<H",
    Kind.UINT32: "<I",
    Kind.UINT64: "<Q",
    Kind.UINTPTR: "<Q",
    Kind.UNSAFE_POINTER: "<Q",
    Kind.FLOAT32: "<f",
    Kind.FLOAT64: "<d",
    Kind.COMPLEX64: "<ff",
    Kind.COMPLEX128: "<dd",
}
_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})
_SIGNED = frozenset({Kind.INT, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64})


def shortest_float32(value: float) -> float:
    """Return the number with the fewest decimal digits that is this float32, as Go prints it."""
    if not math.isfinite(value):
        return value
    # Subnormal numbers have less than six significant digits.
    for digits in range(6 if abs(value) > 1.2e-38 else 1, 9):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            # Rounded up beyond the greatest float32.
            continue
    return float(f"{value:.9g}")


class ScalarNode(PlanNode):
    """A value of a basic kind other than string.

    ``format`` is the image's, in the struct module's terms.
    """

    __slots__ = ("format",)

    def __init__(self, go_type: GoType) -> None:
        super().__init__(go_type)
        self.format = _FORMATS[go_type.kind]
        self.flat = _flat_scalar(go_type, self.format)

    def location_at(self, position: Position) -> FieldRef | None:
        """Return where the value is; floats mean nothing to predicates in the kernel."""
        if self.type.kind in _FLOATS:
            return None
        signed = self.type.kind in _SIGNED
        return FieldRef(position.block, position.offset, self.size, signed)

    def plan_with_holes(self, builder: Builder, position: Position) -> Reader:
        """Plan a value in float registers."""
        assert self.flat is not None
        return _InFloatRegisters(self.flat, position, self.size, builder.holes(position, self.size))


class _InFloatRegisters(Reader):
    __slots__ = ("_end", "_flat", "_offset", "_registers")

    def __init__(self, flat: _Flat, position: Position, size: int, holes: list[FloatHole]) -> None:
        self._flat = flat
        self._offset = position.offset
        self._end = position.offset + size
        self._registers = frozenset(hole.register for hole in holes)

    def read(self, payload: PayloadReader) -> Value:
        if payload.floats is None or not self._registers <= payload.floats:
            return UnavailableValue(payload.no_floats)
        if self._end > payload.lengths[0]:
            return payload.why(0)
        return self._flat(payload.data, payload.starts[0] + self._offset)


def _flat_scalar(go_type: GoType, layout: str) -> _Flat:
    unpack = struct.Struct(layout).unpack_from
    kind, name = go_type.kind, go_type.name
    if name == "time.Duration":
        return lambda data, at: DurationValue(unpack(data, at)[0])
    if kind is Kind.UNSAFE_POINTER:
        return lambda data, at: _pointer(name, unpack(data, at)[0])
    if kind is Kind.FLOAT32:
        plain: _Flat = lambda data, at: shortest_float32(unpack(data, at)[0])  # noqa: E731
    elif kind is Kind.COMPLEX64:
        plain = lambda data, at: complex(*map(shortest_float32, unpack(data, at)))  # noqa: E731
    elif kind is Kind.COMPLEX128:
        plain = lambda data, at: complex(*unpack(data, at))  # noqa: E731
    else:
        plain = lambda data, at: unpack(data, at)[0]  # noqa: E731
    if go_type.is_named or kind is Kind.UINTPTR:
        return lambda data, at: NamedValue(name, plain(data, at))
    return plain


def _pointer(name: str, address: int) -> Value:
    return PointerValue(name, address) if address else Nil(name)


class OpaqueNode(PlanNode):
    """Memory of a type without type information, as bytes."""

    __slots__ = ()

    def __init__(self, go_type: GoType) -> None:
        super().__init__(go_type)
        name, size = go_type.name, go_type.size
        self.flat = lambda data, at: BytesValue(name, data[at : at + size], size)


class WordReader(Reader):
    """A reader of a word, such as the length of a string, as an int."""

    __slots__ = ("_position",)

    def __init__(self, position: Position) -> None:
        self._position = position

    def read(self, payload: PayloadReader) -> Value:
        """Return the word, as signed."""
        block, offset, _ = self._position
        if payload.lengths[block] < offset + 8:
            return payload.why(block)
        value: int = int_at(payload.data, payload.starts[block] + offset)[0]
        return value

    def location(self) -> FieldRef:
        return FieldRef(self._position.block, self._position.offset, 8, True)

    def key(self) -> Sequence[Op]:
        """Return the operation that appends the word."""
        return [_key_word(self._position.block, self._position.offset)]


def _key_word(block: int, offset: int) -> Op:
    return Op(OpCode.KEY_FIELD, reg=8, block=block, at=offset)


def _keys_of(readers: Sequence[Reader]) -> Sequence[Op] | None:
    """Return operations that append those of some values that can be in a key."""
    keys = [key for reader in readers if (key := reader.key()) is not None]
    return [op for key in keys for op in key] if keys or not readers else None


_three_words = struct.Struct("<Qqq").unpack_from


class _Bytes(PlanNode):
    """A pointer to bytes, followed by their count."""

    __slots__ = ("_most",)

    def __init__(self, go_type: GoType, most: int | None = None) -> None:
        """Take the type, and how many bytes to copy where that is not the limits' number."""
        super().__init__(go_type)
        self._most = most

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the bytes."""
        reader = self.reader(position)

        def copy() -> None:
            limit = self._most or builder.usual.text_bytes
            most = builder.limits.text_bytes
            more = most if most > limit else 0
            reader.block = builder.deref_n(position, position.plus(8), 1, limit, more=more)
            reader.limit = limit
            builder.extra(Extra.TEXT)

        builder.defer(copy)
        return reader

    def reader(self, position: Position) -> _BytesReader:
        raise NotImplementedError


class _BytesReader(Reader):
    __slots__ = ("_at", "_end", "_name", "_source", "block", "limit")

    def __init__(self, position: Position, size: int, name: str) -> None:
        self._source = position.block
        self._at = position.offset
        self._end = position.offset + size
        self._name = name
        self.block: int | None = None
        self.limit = 0

    def location(self) -> FieldRef:
        return FieldRef(self._source, self._at + 8, 8, True, self.block, self.limit)

    def key(self) -> Sequence[Op] | None:
        if self.block is None:
            return None
        limit = min(self.limit, MAX_KEY_TEXT)
        length_at = self._at + 8
        return [Op(OpCode.KEY_TEXT, 0, self._source, length_at, self.block, limit=limit)]

    def text(self, payload: PayloadReader, length: int) -> bytes | UnavailableValue:
        """Return the copied bytes."""
        block = self.block
        if block is None:
            return REFUSED
        copied = payload.lengths[block]
        if copied <= 0:
            return b"" if length == 0 else payload.why(block)
        start = payload.starts[block]
        if length <= 0:
            return b""
        return payload.data[start : start + min(copied, length)] + payload.rest(block)


class StringNode(_Bytes):
    """A string, or a value of a declared string type."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        if self.type.kind is Kind.STRING and self.type.is_named:
            return _NamedStringReader(position, self.size, self.type.name)
        return _StringReader(position, self.size, self.type.name)


class _StringReader(_BytesReader):
    __slots__ = ()

    def read(self, payload: PayloadReader) -> Value:
        source = self._source
        if payload.lengths[source] < self._end:
            return payload.why(source)
        _, length = pointer_int_at(payload.data, payload.starts[source] + self._at)
        block = self.block
        if block is not None and length > 0:
            copied = payload.lengths[block]
            if copied > 0:
                start = payload.starts[block]
                text = payload.data[start : start + min(copied, length)]
                return StringValue(text + payload.rest(block) if copied < length else text, length)
        found = self.text(payload, length)
        return StringValue(found, length) if isinstance(found, bytes) else found


class _NamedStringReader(_StringReader):
    __slots__ = ()

    def read(self, payload: PayloadReader) -> Value:
        value = super().read(payload)
        return value if isinstance(value, UnavailableValue) else NamedValue(self._name, value)


class BytesNode(_Bytes):
    """A slice of bytes."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        return _BytesSliceReader(position, self.size, self.type.name)


class _BytesSliceReader(_BytesReader):
    __slots__ = ()

    def read(self, payload: PayloadReader) -> Value:
        source = self._source
        if payload.lengths[source] < self._end:
            return payload.why(source)
        pointer, length, capacity = _three_words(payload.data, payload.starts[source] + self._at)
        if pointer == 0:
            return Nil(self._name)
        data = self.text(payload, length)
        if isinstance(data, UnavailableValue):
            return data
        return BytesValue(self._name, data, length, capacity)


#: The least bytes of a slice, and the most, that are read as text.
_LEAST_TEXT, _MOST_TEXT = 4, 1 << 30


def may_be_text(of: StructType) -> bool:
    """Return whether a struct is two or three words of unknown types: of a string or a slice."""
    places = [(field.offset, field.type.kind) for field in of.fields]
    words = [(8 * number, Kind.UINTPTR) for number in range(3)]
    return of.name == SHAPE and places in (words[:2], words)


class ShapeNode(_Bytes):
    """Words of unknown types, and the text to which they lead if they are a string or a slice."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        return _ShapeReader(position, self.size, self.type.name)


class _ShapeReader(_BytesReader):
    __slots__ = ()

    def read(self, payload: PayloadReader) -> Value:
        source = self._source
        if payload.lengths[source] < self._end:
            return payload.why(source)
        start = payload.starts[source] + self._at
        count = (self._end - self._at) // 8
        words: tuple[int, ...] = struct.unpack_from(f"<{count}Q", payload.data, start)
        fields = tuple((f"f{n}", NamedValue("uintptr", word)) for n, word in enumerate(words))
        return StructValue(self._name, fields, self._guess(payload, words))

    def _guess(self, payload: PayloadReader, words: Sequence[int]) -> StringValue | None:
        """Return the text to which the words lead if they are a string or a slice of bytes.

        The first bytes of elements that are not bytes are often text, too, up to a zero.
        """
        least = _LEAST_TEXT if len(words) > 2 else 1
        if not least <= words[1] <= words[-1] <= _MOST_TEXT:
            return None
        text = self.text(payload, words[1])
        if not isinstance(text, bytes) or not is_text(text, len(text) < words[1]):
            return None
        return StringValue(text, words[1])

    def key(self) -> Sequence[Op] | None:
        """Return operations that append the words, and the text: other calls may change it."""
        text = super().key() or ()
        words = range(self._at, self._end, 8)
        return [*(_key_word(self._source, at) for at in words), *text]


class AddressNode(BytesNode):
    """A net.IP or net.HardwareAddr, which print as addresses."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        return _AddressReader(position, self.size, self.type.name)


class _AddressReader(_BytesSliceReader):
    __slots__ = ()

    def read(self, payload: PayloadReader) -> Value:
        value = super().read(payload)
        if not isinstance(value, BytesValue) or value.is_cut:
            return value
        if self._name == "net.IP":
            text = address_text(value.data)
        else:
            text = hardware_address_text(value.data)
        return value if text is None else TextValue(self._name, text)


class StructNode(PlanNode):
    """A struct by value: its fields, each with its own node."""

    __slots__ = ("_fields",)

    def __init__(self, go_type: StructType, nodes: Sequence[PlanNode]) -> None:
        super().__init__(go_type)
        self._fields = tuple(
            (field.name, field.offset, node)
            for field, node in zip(go_type.fields, nodes, strict=True)
        )
        self.flat = _flat_struct(go_type.name, self._fields)
        self.extends = any(node.extends for node in nodes)

    @property
    def is_divisible(self) -> bool:
        """Return True: fields are of use one by one."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan the fields."""
        readers = [node.plan(builder, position.plus(at)) for _, at, node in self._fields]
        return _StructReader(self.type.name, [name for name, _, _ in self._fields], readers)


def _flat_struct(
    type_name: str, fields: Sequence[tuple[str, int, PlanNode]]
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

    def read(self, payload: PayloadReader) -> Value:
        values = [reader.read(payload) for reader in self._readers]
        return StructValue(self._name, tuple(zip(self._names, values, strict=True)))

    def key(self) -> Sequence[Op] | None:
        return _keys_of(self._readers)


class ArrayNode(PlanNode):
    """An array by value: its first elements."""

    __slots__ = ("_elem", "_length", "_shown")

    def __init__(self, go_type: ArrayType, elem: PlanNode, shown: int) -> None:
        """Take the type, the elements' node, and how many elements to read at most."""
        super().__init__(go_type)
        self._elem = elem
        self._length = max(go_type.length, 0)
        self._shown = min(self._length, shown)
        self.flat = _flat_array(go_type.name, elem, self._length, self._shown)
        self.extends = elem.extends

    @property
    def is_divisible(self) -> bool:
        """Return True: elements are of use one by one."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan the elements."""
        elem, size = self._elem, self._elem.size
        usual = min(self._shown, builder.usual.slice_elements)
        readers = [elem.plan(builder, position.plus(index * size)) for index in range(usual)]
        if elem.flat is not None:
            rest = range(usual, self._shown)
            readers += [plan_flat(elem, position.plus(index * size)) for index in rest]
        elif self._length > usual:

            def more_of(start: int) -> None:
                for index in range(start, min(2 * start, self._length)):
                    readers.append(elem.plan(builder, position.plus(index * size)))

            builder.extra(Extra.ELEMENTS)
            for start in _rounds(usual, min(self._length, builder.limits.slice_elements)):
                builder.extra(Extra.ELEMENTS, start, functools.partial(more_of, start))
        return _ArrayReader(self.type.name, self._length, readers, self._shown)


def _rounds(usual: int, most: int) -> list[int]:
    """Return where rounds of more elements begin, each of which has as many as there were before.

    They are the same whatever is asked for, and those that begin below that come.
    """
    starts = []
    while usual and usual < min(most, MAX_ELEMENTS):
        starts.append(usual)
        usual *= 2
    return starts


def _flat_array(
    name: str, elem: PlanNode, length: int, shown: int
) -> Callable[[bytes, int], Value] | None:
    flat, size = elem.flat, elem.size
    if flat is None:
        return None
    return lambda data, start: SequenceValue(
        name, tuple([flat(data, start + index * size) for index in range(shown)]), length
    )


class _ArrayReader(Reader):
    __slots__ = ("_length", "_name", "_readers", "_shown")

    def __init__(self, name: str, length: int, readers: Sequence[Reader], shown: int) -> None:
        self._name = name
        self._length = length
        self._readers = readers
        self._shown = shown

    def read(self, payload: PayloadReader) -> Value:
        elements = tuple([reader.read(payload) for reader in self._readers[: self._shown]])
        return SequenceValue(self._name, elements, self._length)

    def key(self) -> Sequence[Op] | None:
        return _keys_of(self._readers) if len(self._readers) == self._length else None


class ByteArrayNode(PlanNode):
    """An array of bytes."""

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
        """Return True: the first bytes are of use."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to read the captured bytes."""
        count = min(position.end - position.offset, self._shown)
        if count <= 0:
            return FixedReader(UnavailableValue("beyond the bytes captured"))
        return _ByteArrayReader(self.type.name, position, count, self.size)


class _ByteArrayReader(Reader):
    __slots__ = ("_count", "_length", "_name", "_position")

    def __init__(self, name: str, position: Position, count: int, length: int) -> None:
        self._name = name
        self._position = position
        self._count = count
        self._length = length

    def read(self, payload: PayloadReader) -> Value:
        block, offset, _ = self._position
        if payload.lengths[block] < offset + self._count:
            return payload.why(block)
        start = payload.starts[block] + offset
        return BytesValue(self._name, payload.data[start : start + self._count], self._length)


class UnreadNode(PlanNode):
    """Stand for a value of which nothing can be captured."""

    __slots__ = ("_why",)

    def __init__(self, go_type: GoType, why: str) -> None:
        super().__init__(go_type)
        self._why = why

    @property
    def is_divisible(self) -> bool:
        """Return True: it makes no difference."""
        return True

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        return FixedReader(UnavailableValue(self._why))


def _flat_pointer(name: str) -> Callable[[bytes, int], Value]:
    def flat(data: bytes, at: int) -> Value:
        (address,) = word_at(data, at)
        return PointerValue(name, address) if address else Nil(name)

    return flat


class PointerNode(PlanNode):
    """A pointer, and its target if a node for that is given."""

    __slots__ = ("_rank", "_target")

    def __init__(
        self, go_type: GoType, target: Callable[[], PlanNode] | None = None, rank: int = 0
    ) -> None:
        """Take the pointer's type and a maker of the target's node, None not to follow it.

        ``rank``: how many pointers more than usual have been followed with this one.
        """
        super().__init__(go_type)
        self._target = target
        self._rank = rank
        if target is None or rank:
            self.flat = _flat_pointer(go_type.name)
            self.extends = target is not None

    def location_at(self, position: Position) -> FieldRef:
        return FieldRef(position.block, position.offset, 8, False)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the pointer's target."""
        reader = _PointerReader(self.type.name, position)
        make = self._target
        assert make is not None

        def follow() -> None:
            reader.is_followed = True
            target = make()
            size = min(target.size, builder.limits.struct_bytes)
            if target.size == 0:
                reader.target = target.plan(builder, Position(position.block, 0, 0))
                return
            reader.block = block = builder.deref(position, size)
            if block is not None:
                reader.target = target.plan(builder, Position(block, 0, size))

        if self._rank:
            builder.extra(Extra.POINTERS, self._rank, follow)
        else:
            builder.defer(follow)
        return reader


class _PointerReader(Reader):
    __slots__ = ("_block", "_name", "_offset", "block", "is_followed", "target")

    def __init__(self, name: str, position: Position) -> None:
        self._name = name
        self._block = position.block
        self._offset = position.offset
        self.is_followed = False
        self.block: int | None = None
        self.target: Reader | None = None

    def read(self, payload: PayloadReader) -> Value:
        source = self._block
        if payload.lengths[source] < self._offset + 8:
            return payload.why(source)
        (address,) = word_at(payload.data, payload.starts[source] + self._offset)
        if address == 0:
            return Nil(self._name)
        if self.target is None:
            return PointerValue(self._name, address, REFUSED if self.is_followed else None)
        if self.block is not None and payload.lengths[self.block] < 0:
            return PointerValue(self._name, address, payload.why(self.block))
        return PointerValue(self._name, address, self.target.read(payload))

    def location(self) -> FieldRef:
        return FieldRef(self._block, self._offset, 8, False)

    def key(self) -> Sequence[Op] | None:
        if self.target is None:
            return [_key_word(self._block, self._offset)]
        return self.target.key()


class SliceNode(PlanNode):
    """A slice: length, capacity and, where a node for them is given, first elements."""

    __slots__ = ("_elem", "_most")

    def __init__(
        self, go_type: GoType, elem: PlanNode | None = None, most: int | None = None
    ) -> None:
        """Take the slice's type and the elements' node, None not to look at them.

        ``most``: elements to look at, where that is fewer than of any other slice.
        """
        super().__init__(go_type)
        self._elem = elem
        self._most = most
        if elem is None:
            self.flat = _flat_slice(go_type.name)

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the first elements."""
        reader = _SliceReader(self.type.name, position)
        elem = self._elem
        assert elem is not None

        def copy() -> None:
            limits = builder.limits
            reader.shown = self._count(limits.slice_elements, limits.struct_bytes)
            count = self._count(builder.usual.slice_elements, limits.struct_bytes)
            if not elem.size:
                nowhere = Position(position.block, 0, 0)
                reader.elements = [elem.plan(builder, nowhere) for _ in range(reader.shown)]
                return
            limit = min(count * elem.size, limits.struct_bytes)
            most = self._count(MAX_ELEMENTS, limits.struct_bytes) * elem.size
            is_flat = elem.flat is not None and elem.size <= limit
            more = most | MORE_ELEMENTS if is_flat and reader.shown > count else 0
            size = elem.size
            block = builder.deref_n(position, position.plus(8), size, limit, more=more)
            reader.block = block
            if block is None:
                return
            reader.size = size
            if is_flat:
                reader.flat = elem.flat
            if not is_flat or elem.extends:
                reader.elements = self._planned(builder, block, count)
            if most // size > count:
                builder.extra(Extra.FLAT_ELEMENTS if is_flat else Extra.ELEMENTS)
                if not is_flat:
                    for start in _rounds(count, min(most // size, limits.slice_elements)):
                        builder.extra(Extra.ELEMENTS, start, functools.partial(more_of, start))

        def more_of(start: int) -> None:
            count = self._count(2 * start, builder.limits.struct_bytes) - start
            size = elem.size
            block = builder.deref_n(position, position.plus(8), size, count * size, start=start)
            if block is not None:
                reader.more.append((block, self._planned(builder, block, count)))

        builder.defer(copy)
        return reader

    def _count(self, wanted: int, most_bytes: int) -> int:
        """Return how many of so many elements are copied: one at least, in part if need be."""
        assert self._elem is not None
        if self._most is not None:
            wanted = min(wanted, self._most)
        size = self._elem.size
        return min(wanted, max(1, most_bytes // size)) if size else wanted

    def _planned(self, builder: Builder, block: int, count: int) -> list[Reader]:
        elem, most = self._elem, builder.limits.struct_bytes
        assert elem is not None
        size = elem.size
        places = [(index * size, min((index + 1) * size, most)) for index in range(count)]
        return [elem.plan(builder, Position(block, at, end)) for at, end in places]


def _flat_slice(name: str) -> Callable[[bytes, int], Value]:
    def flat(data: bytes, at: int) -> Value:
        pointer, length, capacity = _three_words(data, at)
        return SequenceValue(name, (), length, capacity) if pointer else Nil(name)

    return flat


class _SliceReader(Reader):
    __slots__ = (
        "_end",
        "_name",
        "_offset",
        "_source",
        "block",
        "elements",
        "flat",
        "more",
        "shown",
        "size",
    )

    def __init__(self, name: str, position: Position) -> None:
        self._name = name
        self._source = position.block
        self._offset = position.offset
        self._end = position.offset + 24
        self.block: int | None = None
        self.size = 0
        self.flat: Callable[[bytes, int], Value] | None = None
        self.elements: Sequence[Reader] = ()
        self.more: list[tuple[int, Sequence[Reader]]] = []
        self.shown = 0

    def read(self, payload: PayloadReader) -> Value:
        source = self._source
        if payload.lengths[source] < self._end:
            return payload.why(source)
        pointer, length, capacity = _three_words(
            payload.data, payload.starts[source] + self._offset
        )
        if pointer == 0:
            return Nil(self._name)
        elements = self._elements(payload, length)[: max(self.shown, 1)]
        return SequenceValue(self._name, elements, length, capacity)

    def _elements(self, payload: PayloadReader, length: int) -> tuple[Value, ...]:
        if length <= 0:
            return ()
        size = self.size
        if size == 0:
            return tuple([reader.read(payload) for reader in self.elements[:length]])
        block = self.block
        if block is None or payload.lengths[block] < 0:
            return (REFUSED if block is None else payload.why(block),)
        copied = payload.lengths[block]
        flat = self.flat
        if flat is None:
            count = min(length, -(-copied // size))
            elements = [reader.read(payload) for reader in self.elements[:count]]
            for number, readers in self.more:
                if len(elements) == length or payload.lengths[number] <= 0:
                    break
                count = -(-payload.lengths[number] // size)
                elements += [reader.read(payload) for reader in readers[:count]]
            return tuple(elements)
        count = min(length, copied // size)
        # Some may have been planned for what they lead to.
        elements = [reader.read(payload) for reader in self.elements[:count]]
        start = payload.starts[block]
        rest = range(len(elements), count)
        elements += [flat(payload.data, start + index * size) for index in rest]
        more = payload.rest(block) if count < length else b""
        elements += [flat(more, at) for at in range(0, len(more) - size + 1, size)]
        return tuple(elements)

    def location(self) -> FieldRef:
        return FieldRef(self._source, self._offset + 8, 8, True)


class FuncNode(PlanNode):
    """A function value: the address of its code, which its closure object begins with."""

    __slots__ = ()

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the closure object's first word."""
        reader = _FuncReader(self.type.name, position)

        def follow() -> None:
            reader.block = builder.deref(position, 8)

        builder.defer(follow)
        return reader


class _FuncReader(PointedReader):
    __slots__ = ()

    def found(self, payload: PayloadReader, address: int, block: int) -> Value:
        (pc,) = word_at(payload.data, payload.starts[block])
        return FuncValue(self._name, pc, payload.context.function_name(pc))

    def key(self) -> Sequence[Op] | None:
        """Return an operation that appends the code's address: a function's closures are equal."""
        return [_key_word(self.block, 0)] if self.block is not None else None
