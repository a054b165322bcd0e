# SPDX-License-Identifier: Apache-2.0
"""Capture interfaces, and make the subplans for the types of the values in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gotrace.capture.builder import Builder, Extra, PlanNode, with_key
from gotrace.capture.ops import CaptureLimits, FieldRef, Op, OpCode, Position
from gotrace.capture.payload import (
    REFUSED,
    FixedReader,
    PayloadReader,
    Reader,
    Subplan,
    word_at,
)
from gotrace.gotypes.releases import DIRECT_INTERFACES_BY_SIZE
from gotrace.gotypes.types import ArrayType, GoType, Kind, StructType
from gotrace.records import replace
from gotrace.values.error_messages import error_value
from gotrace.values.model import (
    InterfaceValue,
    Nil,
    PointerValue,
    StringValue,
    UnavailableValue,
    Value,
)

#: Interfaces whose dynamic values are errors.
ERROR_INTERFACES = frozenset({"error", "net.Error", "runtime.Error"})

_two_words = struct.Struct("<QQ").unpack_from

_POINTER_KINDS = frozenset({Kind.POINTER, Kind.CHAN, Kind.MAP, Kind.FUNC, Kind.UNSAFE_POINTER})


def is_direct(go_type: GoType, release: tuple[int, int] | None) -> bool:
    """Return whether an interface holds a value of a type itself, instead of a pointer to it.

    Types that are one pointer are (``IsDirectIface`` in cmd/compile/internal/types/type.go);
    before Go 1.26 not those that have fields without size beside the pointer.
    """
    if go_type.kind in _POINTER_KINDS:
        return True
    if go_type.size != 8:
        return False
    if isinstance(go_type, ArrayType):
        return go_type.length == 1 and is_direct(go_type.elem, release)
    if isinstance(go_type, StructType):
        fields = go_type.fields
        if release is None or release >= DIRECT_INTERFACES_BY_SIZE:
            fields = tuple(field for field in fields if field.type.size)
        return len(fields) == 1 and is_direct(fields[0].type, release)
    return False


class InterfaceNode(PlanNode):
    """An interface: its dynamic type and, when followed, its dynamic value."""

    __slots__ = ("_followed", "_is_error", "_rank")

    def __init__(self, go_type: GoType, followed: bool, rank: int = 0) -> None:
        """Take the type, and whether to look at the value.

        ``rank``: how many pointers more than usual have been followed with this one.
        """
        super().__init__(go_type)
        self._rank = rank
        self._is_error = go_type.name in ERROR_INTERFACES
        self._followed = followed

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to go on by the dynamic type."""
        reader = _InterfaceReader(self.type.name, position, self._is_error)
        if self._followed:

            def follow() -> None:
                reader.block = builder.iface(self.type, position, position.plus(8))
                reader.refused = reader.block is None
                if reader.block is not None:
                    builder.extra(Extra.INTERFACES, 0, follow_more)

            def follow_more() -> None:
                reader.deep = builder.iface(self.type, position, position.plus(8), is_deep=True)

            if self._rank:
                builder.extra(Extra.POINTERS, self._rank, lambda: builder.defer(follow, late=True))
            else:
                builder.defer(follow, late=True)
        return reader


class _InterfaceReader(Reader):
    __slots__ = ("_end", "_is_error", "_name", "_offset", "_source", "block", "deep", "refused")

    def __init__(self, name: str, position: Position, is_error: bool) -> None:
        self._name = name
        self._source = position.block
        self._offset = position.offset
        self._end = position.offset + 16
        self._is_error = is_error
        self.block: int | None = None
        self.deep: int | None = None
        self.refused = False

    def read(self, payload: PayloadReader) -> Value:
        source = self._source
        if payload.lengths[source] < self._end:
            return payload.why(source)
        word, data = _two_words(payload.data, payload.starts[source] + self._offset)
        if word == 0:
            return Nil(self._name)
        block = self.block
        found = None if block is None else payload.children.get(block)
        if found is None:
            return self._unread(payload, word, data)
        deep = None if self.deep is None else payload.children.get(self.deep)
        if deep is not None and deep[1].takes_over(found[1]):
            found = deep
        subplan, child = found
        value = subplan.reader.read(child)
        dynamic = subplan.type.name
        error = error_value(dynamic, value, guess=self._is_error)
        if error is None:
            return InterfaceValue(self._name, dynamic, value, subplan.type)
        return replace(error, of=subplan.type)

    def location(self) -> FieldRef:
        """Return where the type word is, which is zero for nil."""
        return FieldRef(self._source, self._offset, 8, False)

    def key(self) -> Sequence[Op]:
        if self.block is None:
            return [Op(OpCode.KEY_FIELD, reg=8, block=self._source, at=self._offset)]
        return [Op(OpCode.IFACE, reg=self.block)]

    def _unread(self, payload: PayloadReader, word: int, data: int) -> Value:
        """Return the type, and the address where it says more than nothing."""
        dynamic = payload.context.type_name(word)
        if self.refused:
            return InterfaceValue(self._name, dynamic, REFUSED)
        if dynamic is not None and dynamic.startswith("*"):
            pointer: Value = PointerValue(dynamic, data) if data else Nil(dynamic)
            return InterfaceValue(self._name, dynamic, pointer)
        if self.block is None:
            return InterfaceValue(self._name, dynamic, None)
        return InterfaceValue(self._name, dynamic, payload.why(self.block))


class DynamicTypeNode(PlanNode):
    """The name of the type of an interface's value, and nothing of the value."""

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan nothing: the type is in the interface itself."""
        return _DynamicTypeReader(position)


class _DynamicTypeReader(Reader):
    __slots__ = ("_block", "_offset")

    def __init__(self, position: Position) -> None:
        self._block = position.block
        self._offset = position.offset

    def read(self, payload: PayloadReader) -> Value:
        if payload.lengths[self._block] < self._offset + 8:
            return payload.why(self._block)
        (word,) = word_at(payload.data, payload.starts[self._block] + self._offset)
        if not word:
            return Nil("type")
        name = payload.context.type_name(word)
        if name is None:
            return UnavailableValue("type not known")
        text = name.encode()
        return StringValue(text, len(text))

    def location(self) -> FieldRef:
        """Return where the type word is, which is zero for nil."""
        return FieldRef(self._block, self._offset, 8, False)

    def key(self) -> Sequence[Op]:
        return [Op(OpCode.KEY_FIELD, reg=8, block=self._block, at=self._offset)]


def make_subplan(
    go_type: GoType,
    node: PlanNode,
    limits: CaptureLimits,
    direct: bool,
    keyed: bool = False,
    is_deep: bool = False,
) -> Subplan:
    """Return how the value of an interface is captured when its dynamic type is a given one.

    ``direct``: the interface's second word is the value itself, not a pointer to it. ``keyed``: it
    may be part of a key. ``is_deep``: more pointers than usual are followed.
    """
    builder = Builder(limits, limits.subplan_ops - 1, is_nested=True, is_deep=is_deep)
    word = Position(0, 0, 8)
    if direct:
        reader = node.plan(builder, word)
    elif go_type.size == 0:
        reader = node.plan(builder, Position(0, 0, 0))
    else:
        size = min(go_type.size, limits.struct_bytes)
        block = builder.deref(word, size)
        if block is None:
            reader = FixedReader(REFUSED)
        else:
            reader = _Boxed(block, node.plan(builder, Position(block, 0, size)))
    builder.run()
    builder.run_pointers(limits.subplan_ops)
    ops = (*with_key(builder.ops, reader.key() if keyed else None), Op(OpCode.END))
    deep = None
    if limits.depth > limits.usual.depth and not is_deep:
        deep = make_subplan(go_type, node, limits, direct, is_deep=True)
    steps = builder.steps
    return Subplan(go_type, ops, steps, builder.blocks, reader, builder.interfaces, deep)


class _Boxed(Reader):
    __slots__ = ("_block", "_reader")

    def __init__(self, block: int, reader: Reader) -> None:
        self._block = block
        self._reader = reader

    def read(self, payload: PayloadReader) -> Value:
        if payload.lengths[self._block] < 0:
            return payload.why(self._block)
        return self._reader.read(payload)

    def key(self) -> Sequence[Op] | None:
        return self._reader.key()
