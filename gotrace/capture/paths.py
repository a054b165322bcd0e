# SPDX-License-Identifier: Apache-2.0
"""Capture the end of a path such as ``r.URL.Path``, and nothing beside it."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from gotrace.abi.assign import CLOSURE_CONTEXT, Label, Piece, Saved, Stack
from gotrace.abi.locations import CapturedValue, PlacedValue
from gotrace.capture.builder import Builder, PlanNode
from gotrace.capture.factory import NodeFactory
from gotrace.capture.interfaces import DynamicTypeNode
from gotrace.capture.nodes import BytesNode, StringNode, WordReader
from gotrace.capture.ops import FieldRef, Op, OpCode, Position, SpanPart
from gotrace.capture.payload import REFUSED, FixedReader, PayloadReader, Reader, word_at
from gotrace.capture.plan import PlacedNode
from gotrace.capture.spans import SpanNode
from gotrace.errors import GotraceError
from gotrace.gotypes.rtype_table import TYPE_HASH_AT
from gotrace.gotypes.types import (
    ArrayType,
    ChanType,
    Field,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.records import dataclass, field, replace
from gotrace.values.model import UnavailableValue, Value


class PathError(GotraceError):
    """A path that a type does not have: no such field, element, target or length."""


class PathMark(enum.Enum):
    """The steps of a path that are neither a field nor an element."""

    DEREF = "*"
    LEN = "len"
    CAP = "cap"
    TYPE = "type"
    TYPE_HASH = "type hash"
    TRACE_ID = "trace"
    SPAN_ID = "span"
    SAMPLED = "sampled"
    CONTEXTS = "contexts"


#: The steps from a context.Context to what is known of the span that it holds; they end a path, or
#: LEN does after them.
_OF_SPANS = {
    PathMark.TRACE_ID: SpanPart.TRACE_ID,
    PathMark.SPAN_ID: SpanPart.SPAN_ID,
    PathMark.SAMPLED: SpanPart.SAMPLED,
    PathMark.CONTEXTS: SpanPart.CONTEXTS,
}


@dataclass(frozen=True, slots=True)
class Assertion:
    """The step from an interface to its value, where that is of a type.

    ``direct``: the interface's second word is the value, not a pointer to it.
    """

    name: str
    to: GoType = field(compare=False, repr=False)
    direct: bool


#: A step of a path: a field's name, the number of an element, a type assertion, or a mark. Pointers
#: on the way are followed by DEREF only; promoted fields are reached through the embedded ones.
PathStep = str | int | PathMark | Assertion

#: The value of an interface that holds another type than the path asks for, or nothing.
OTHER_TYPE = UnavailableValue("it holds a value of another type")

#: The type of the hashes by which Go's type switches distinguish types.
HASH = basic_type(Kind.UINT32)
_INT = basic_type(Kind.INT)
_BOOL = basic_type(Kind.BOOL)
_BYTE = basic_type(Kind.UINT8)
_STRING = basic_type(Kind.STRING)
_WORD = 8
_TYPE_IN_ITAB = 8


@dataclass(slots=True)
class _Region:
    """A stretch of memory on the way, and which bytes of it are needed.

    ``stride`` is 0 for what a pointer leads to; else the area is the elements of a slice, whose
    header is at the end of the way so far, up to the one with the number ``index``. Where the way
    goes through an interface here, it goes on ``shift`` bytes from ``start``, after the type word,
    which has to be that of the ``assertion``.
    """

    stride: int = 0
    index: int = 0
    start: int = 0
    size: int = 0
    shift: int = 0
    assertion: Assertion | None = None


class _PathWalker:
    """A walk along a path's steps, from a type."""

    def __init__(self, go_type: GoType, most: int) -> None:
        self.type = go_type
        self.areas = [_Region()]
        self.constant: int | None = None
        self.word = False
        self.is_type = False
        self.span: SpanPart | None = None
        self._most = most

    def walk(self, steps: Sequence[PathStep]) -> None:
        for step in steps:
            if self.word or self.constant is not None:
                raise PathError("a length has no fields: len() and cap() end an expression")
            if self.is_type:
                raise PathError("a type has no fields: type() ends an expression")
            if self.span is not None:
                self._measure_id(step)
                continue
            if isinstance(step, str):
                self._field(step)
            elif isinstance(step, int):
                self._element(step)
            elif isinstance(step, Assertion):
                self._assert(step)
            elif step is PathMark.DEREF:
                self._deref()
            elif step is PathMark.TYPE:
                self._dynamic_type()
            elif step is PathMark.TYPE_HASH:
                self._type_hash()
            elif step in _OF_SPANS:
                self._find_span(_OF_SPANS[step])
            else:
                self._measure(step)
        if not self.word and self.constant is None:
            size = 2 * _WORD if self.span is not None else self.type.size
            self.areas[-1].size = self.areas[-1].shift + size

    def _assert(self, assertion: Assertion) -> None:
        if self.type.kind is not Kind.INTERFACE or self.areas[-1].shift:
            raise PathError(f"{self.type.name} is not an interface")
        self.areas[-1].shift = _WORD
        self.areas[-1].assertion = assertion
        if not assertion.direct:
            self._enter(_Region(), _WORD)
        self.type = assertion.to

    def _dynamic_type(self) -> None:
        if self.type.kind is not Kind.INTERFACE or self.areas[-1].shift:
            raise PathError(f"{self.type.name} is not an interface")
        self.is_type = True

    def _type_hash(self) -> None:
        """Go to the hash of the type; itabs that are made at run time have none of their own."""
        if not isinstance(self.type, InterfaceType) or self.areas[-1].shift:
            raise PathError(f"{self.type.name} is not an interface")
        if not self.type.is_empty:
            self._enter(_Region(start=_TYPE_IN_ITAB), _WORD)
        self._enter(_Region(start=TYPE_HASH_AT), _WORD)
        self.type = HASH

    def _find_span(self, part: SpanPart) -> None:
        if self.type.kind is not Kind.INTERFACE or self.areas[-1].shift:
            raise PathError(f"{self.type.name} is not an interface")
        self.span = part
        self.type = _BOOL if part is SpanPart.SAMPLED else _STRING

    def _measure_id(self, step: PathStep) -> None:
        if step is not PathMark.LEN or self.type is not _STRING:
            raise PathError("the id of a trace or span has no fields: compare the whole id")
        self.type = _INT

    def _field(self, name: str) -> None:
        field = self.type.field(name) if isinstance(self.type, StructType) else None
        if field is None:
            raise PathError(f"{self.type.name} has no field {name}")
        self.areas[-1].start += field.offset
        self.type = field.type

    def _deref(self) -> None:
        if not isinstance(self.type, PointerType):
            raise PathError(f"{self.type.name} is not a pointer")
        self._enter(_Region(), _WORD)
        self.type = self.type.elem

    def _enter(self, area: _Region, needed: int) -> None:
        self.areas[-1].size = self.areas[-1].shift + needed
        self.areas.append(area)

    def _element(self, index: int) -> None:
        found = self.type
        if isinstance(found, ArrayType):
            if not 0 <= index < found.length:
                raise PathError(f"{found.name} has no element {index}")
            self.areas[-1].start += index * found.elem.size
            self.type = found.elem
            return
        if not isinstance(found, SliceType) and found.kind is not Kind.STRING:
            raise PathError(f"{found.name} cannot be indexed")
        elem = found.elem if isinstance(found, SliceType) else _BYTE
        if index < 0 or (index + 1) * elem.size > self._most:
            raise PathError(f"element {index} of {found.name} is beyond the part that can be read")
        self._enter(_Region(elem.size, index), 2 * _WORD)
        self.areas[-1].start = index * elem.size
        self.type = elem

    def _measure(self, mark: PathMark) -> None:
        found, is_len = self.type, mark is PathMark.LEN
        if isinstance(found, ArrayType):
            self.constant = found.length
        elif isinstance(found, SliceType) or (found.kind is Kind.STRING and is_len):
            self.areas[-1].start += _WORD if is_len else 2 * _WORD
            self.areas[-1].size = _WORD
            self.word = True
        elif isinstance(found, ChanType) or (isinstance(found, MapType) and is_len):
            # Both headers begin with the length; a channel's capacity comes after it.
            self._enter(_Region(start=0 if is_len else _WORD, size=_WORD), _WORD)
            self.word = True
        else:
            raise PathError(f"{found.name} has no {mark.value}")
        self.type = _INT


class _PathNode(PlanNode):
    """The end of a path; its image is only the part of the root's that is needed."""

    __slots__ = ("_areas", "_constant", "_last", "_zero_if_nil")

    def __init__(self, way: _PathWalker, last: PlanNode | None, zero_if_nil: bool) -> None:
        super().__init__(way.type)
        self.size = way.areas[0].size
        self.align = min(_WORD, (self.size & -self.size) or 1)
        self._areas = tuple(way.areas)
        self._constant = way.constant
        self._last = last
        self._zero_if_nil = zero_if_nil

    def plan(self, builder: Builder, position: Position) -> Reader:
        """Plan to go the way, and the operations that its end needs."""
        if self._constant is not None:
            return FixedReader(self._constant)
        asserted: list[tuple[Position, Assertion]] = []
        for number, area in enumerate(self._areas):
            if number:
                block, start = self._enter(builder, position, area)
                if block is None:
                    return FixedReader(REFUSED)
                position = Position(block, start, start + area.size)
            if area.assertion is not None:
                asserted.append((position, area.assertion))
                position = position.plus(area.shift)
        reader: Reader
        if self._last is not None:
            reader = self._last.plan(builder, position)
        else:
            reader = word = WordReader(position)
            if self._zero_if_nil:
                reader = _LengthBehindPointer(word, position.block)
        return _Asserted(reader, asserted) if asserted else reader

    @staticmethod
    def _enter(builder: Builder, at: Position, area: _Region) -> tuple[int | None, int]:
        """Plan to copy an area; return its block and where in it the way goes on."""
        if not area.stride:
            # A value without a size is copied nowhere, but its pointer has to be one.
            return builder.deref(at, max(area.size, 1), area.start), 0
        limit = (area.index + 1) * area.stride
        return builder.deref_n(at, at.plus(_WORD), area.stride, limit), area.start


class _Asserted(Reader):
    """A reader of values in interfaces, if these hold the types that were asked for.

    The kernel follows what is there; with a value of another type that is of no use.
    """

    __slots__ = ("_checks", "_reader")

    def __init__(self, reader: Reader, checks: Sequence[tuple[Position, Assertion]]) -> None:
        self._reader = reader
        self._checks = tuple(checks)

    def read(self, payload: PayloadReader) -> Value:
        for (block, offset, _), assertion in self._checks:
            if payload.lengths[block] < offset + _WORD:
                return payload.why(block)
            (word,) = word_at(payload.data, payload.starts[block] + offset)
            if not word:
                return OTHER_TYPE
            name = payload.context.type_name(word)
            if name is None:
                return UnavailableValue("type not known")
            if name != assertion.name:
                return OTHER_TYPE
        return self._reader.read(payload)

    def key(self) -> Sequence[Op] | None:
        key = self._reader.key()
        if key is None:
            return None
        types = [
            Op(OpCode.KEY_FIELD, reg=_WORD, block=block, at=offset)
            for (block, offset, _), _ in self._checks
        ]
        return [*types, *key]


class _LengthBehindPointer(Reader):
    """A reader of the length of a map or channel, which is 0 when that is nil."""

    __slots__ = ("_block", "_reader")

    def __init__(self, reader: WordReader, block: int) -> None:
        self._reader = reader
        self._block = block

    def read(self, payload: PayloadReader) -> Value:
        return 0 if payload.is_nil(self._block) else self._reader.read(payload)

    def location(self) -> FieldRef:
        return self._reader.location()


def path_node(
    factory: NodeFactory,
    root: GoType,
    steps: Sequence[PathStep],
    text_bytes: int | None = None,
) -> tuple[PlanNode, int]:
    """Return the node of a path's end, and where in the root's image its own begins.

    ``text_bytes``: how many bytes to copy of a string or slice of bytes at its end, where that is
    not as many as of any other. Raise PathError when the types do not allow the steps.
    """
    way = _PathWalker(root, factory.limits.struct_bytes)
    way.walk(steps)
    measured = way.word or way.constant is not None
    last: PlanNode | None = None
    if way.is_type:
        last = DynamicTypeNode(way.type)
    elif way.span is not None:
        last = SpanNode(way.span, measured=way.type is _INT)
    elif not measured:
        last = factory.node(way.type)
    if text_bytes is not None and isinstance(last, StringNode | BytesNode):
        last = type(last)(last.type, text_bytes)
    behind_pointer = measured and len(way.areas) > 1 and _ends_in_header(root, steps)
    return _PathNode(way, last, behind_pointer), way.areas[0].start


def _ends_in_header(root: GoType, steps: Sequence[PathStep]) -> bool:
    """Return whether a path asks for the length of a map or channel."""
    way = _PathWalker(root, 1 << 62)
    way.walk(steps[:-1])
    return isinstance(way.type, MapType | ChanType)


class _Inside(PlanNode):
    """The whole image of a value of which a part is wanted: a register holds more of it."""

    __slots__ = ("_node", "_start")

    def __init__(self, root: GoType, node: PlanNode, start: int) -> None:
        super().__init__(root)
        self.type = node.type
        self._node = node
        self._start = start

    def plan(self, builder: Builder, position: Position) -> Reader:
        """Plan the operations that the part needs."""
        start = position.offset + self._start
        end = min(start + self._node.size, position.end)
        return self._node.plan(builder, Position(position.block, start, end))


def place_value(
    factory: NodeFactory,
    name: str,
    value: PlacedValue,
    steps: Sequence[PathStep] = (),
    text_bytes: int | None = None,
) -> PlacedNode:
    """Return a node that captures a parameter or result, or a path from it.

    ``text_bytes`` is as for ``path_node``. Raise PathError when the types do not allow the steps.
    """
    within = value.within
    if within is None:
        return place_path(factory, name, value.type, value.pieces, steps, value.problem, text_bytes)
    way = [within.field, *steps]
    root: GoType = within.struct
    if within.in_memory:
        root = _pointer_to(root)
        way = [PathMark.DEREF, *way]
    return place_path(factory, name, root, value.pieces, way, value.problem, text_bytes)


def place_path(
    factory: NodeFactory,
    name: str,
    root: GoType,
    pieces: tuple[Piece, ...] | None,
    steps: Sequence[PathStep],
    problem: str | None = None,
    text_bytes: int | None = None,
) -> PlacedNode:
    """Return a node that captures a path from a value of type ``root`` that is at ``pieces``.

    ``text_bytes`` is as for ``path_node``. Raise PathError when the types do not allow the steps.
    """
    node, start = path_node(factory, root, steps, text_bytes)
    clipped = None if pieces is None else _clipped(pieces, start, node.size)
    if pieces is not None and clipped is None:
        return PlacedNode(name, _Inside(root, node, start), pieces, problem, first=True)
    return PlacedNode(name, node, clipped, problem, first=True)


def place_captured(
    factory: NodeFactory,
    captured: CapturedValue,
    steps: Sequence[PathStep] = (),
    text_bytes: int | None = None,
) -> PlacedNode:
    """Return a node that captures a closure's variable, or a path from it.

    The context register holds the address of the closure object, in which the variable, or its
    address, is. ``text_bytes`` is as for ``path_node``. Raise PathError when the types do not allow
    the steps.
    """
    kept = captured.type
    if captured.by_reference:
        kept = _pointer_to(kept)
    field = Field(captured.name, captured.offset, kept)
    end = captured.offset + kept.size
    closure = _pointer_to(StructType("closure", Kind.STRUCT, end, _WORD, (field,)))
    way: list[PathStep] = [PathMark.DEREF, captured.name]
    way += [PathMark.DEREF] if captured.by_reference else []
    pieces = (Piece(0, _WORD, CLOSURE_CONTEXT),)
    return place_path(
        factory, captured.name, closure, pieces, [*way, *steps], text_bytes=text_bytes
    )


def _pointer_to(elem: GoType) -> PointerType:
    return PointerType(f"*{elem.name}", Kind.POINTER, _WORD, _WORD, Lazy.of(elem))


def _clipped(pieces: Sequence[Piece], start: int, size: int) -> tuple[Piece, ...] | None:
    """Return the pieces of a part of a value; None where it begins within a register."""
    clipped: list[Piece] = []
    for piece in pieces:
        skipped = max(start - piece.offset, 0)
        left = min(piece.offset + piece.size, start + size) - piece.offset - skipped
        if left <= 0:
            continue
        place = piece.place
        if isinstance(place, Stack | Saved | Label):
            place = replace(place, offset=place.offset + skipped)
        elif skipped:
            # Go's own convention gives each field a register, that of C each eight bytes.
            return None
        clipped.append(Piece(piece.offset + skipped - start, left, place))
    return tuple(clipped)
