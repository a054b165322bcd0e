# SPDX-License-Identifier: Apache-2.0
"""Say where arguments are of which a program describes sizes and structure, but no types.

The structure is what Go's own tracebacks print (``gotrace.elf.pclntab.arginfo``). Words that the
function saves before its stack grows are in the registers that it saves there
(``gotrace.abi.growth``), and those before them in the frame are on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gotrace.abi.assign import (
    DictionaryPlace,
    FloatReg,
    IntReg,
    Piece,
    Stack,
    dictionary_place,
    takes_dictionary,
)
from gotrace.abi.growth import SavedArgument
from gotrace.abi.locations import FunctionCode, FunctionLocations, PlacedValue
from gotrace.architecture import Architecture
from gotrace.elf.pclntab.arginfo import Shape, ShapeWord, Undescribed
from gotrace.gotypes.symbols import GoName, NameKind, parse_name
from gotrace.gotypes.types import (
    SHAPE,
    BasicType,
    Field,
    GoType,
    Kind,
    StructType,
    UnknownType,
    basic_type,
)

#: Words are shown as a traceback shows them, in base 16 without a sign: like a uintptr.
_WORDS = {
    size: BasicType("uintptr", kind, size, size)
    for size, kind in ((1, Kind.UINT8), (2, Kind.UINT16), (4, Kind.UINT32), (8, Kind.UINTPTR))
}
_FLOATS = {4: basic_type(Kind.FLOAT32), 8: basic_type(Kind.FLOAT64)}
_LEFT_OUT = "generic code does not describe its first argument"


class ShapeError(Exception):
    """Shapes and machine code that do not fit each other, or leave it open where words are."""


def shaped_parameters(
    shapes: Sequence[Shape],
    saved: Sequence[SavedArgument],
    name: str,
    code: FunctionCode,
) -> tuple[PlacedValue, ...]:
    """Return a function's parameters by their shapes, the receiver first. Raises ShapeError.

    Only names with brackets matter.
    """
    slots = {one.offset - code.architecture.pointer_size: one for one in saved}
    words = list(_words(shapes))
    in_registers = code.go_version.release >= code.architecture.register_abi
    if in_registers and words and not slots:
        raise ShapeError("its code uses none of its register arguments")
    first = min(slots, default=None)
    values = [_value(shape, slots, first, code) for shape in shapes]
    generic = parse_name(name) if "[" in name else None
    if generic is not None and _leaves_first_out(generic, code):
        # The compiler takes the first argument for the dictionary.
        if takes_dictionary(generic):
            del values[:1]
        known = min((word.offset for word in words if word.offset in slots), default=None)
        values.insert(
            0, _left_out([one for at, one in slots.items() if known is None or at < known])
        )
    return tuple(PlacedValue(f"arg{number}", *value) for number, value in enumerate(values, 1))


def saved_as(places: FunctionLocations, saved: Sequence[SavedArgument] | None) -> bool:
    """Return whether values can be those of a function whose code saves its register arguments.

    Code that uses none of them saves none. None: it has no part for that.
    """
    if not saved:
        return True
    has_dictionary = takes_dictionary(parse_name(places.name))
    ours = {(one.register, one.size) for one in saved}
    given = {
        (piece.place, piece.size)
        for value in places.parameters
        for piece in value.pieces or ()
        if not isinstance(piece.place, Stack)
    }
    return given <= ours and len(ours) - len(given) <= has_dictionary


def described(saved: Sequence[SavedArgument], architecture: Architecture) -> str:
    """Return register arguments for a message."""
    names = {IntReg: architecture.int_registers, FloatReg: architecture.float_registers}
    return ", ".join(
        f"{names[type(one.register)][one.register.index].upper()} of {one.size} bytes"
        for one in saved
    )


_Placed = tuple[GoType, "tuple[Piece, ...] | None", "str | None"]


def _leaves_first_out(name: GoName, code: FunctionCode) -> bool:
    """Return whether what a generic function does not describe is an argument of the user's."""
    if not takes_dictionary(name):
        return True
    is_first = dictionary_place(code.go_version) is DictionaryPlace.BEFORE_RECEIVER
    return name.kind is NameKind.METHOD and not is_first


def _left_out(saved: Sequence[SavedArgument]) -> _Placed:
    """Return the argument that is not described: a word if all of it is in one register."""
    if len(saved) != 1 or saved[0].size not in _WORDS:
        return UnknownType(_LEFT_OUT), None, _LEFT_OUT
    (one,) = saved
    return _type_in(one), (Piece(0, one.size, one.register),), None


def _type_in(one: SavedArgument) -> GoType:
    return (_FLOATS if isinstance(one.register, FloatReg) else _WORDS)[one.size]


def _words(shapes: Sequence[Shape]) -> Iterator[ShapeWord]:
    for shape in shapes:
        if isinstance(shape, ShapeWord):
            yield shape
        elif not isinstance(shape, Undescribed):
            yield from _words(shape)


def _value(
    shape: Shape, slots: Mapping[int, SavedArgument], first: int | None, code: FunctionCode
) -> _Placed:
    if isinstance(shape, Undescribed):
        return UnknownType(shape.value), None, shape.value
    start = min((word.offset for word in _words([shape])), default=0)
    pieces: list[Piece] = []

    def typed(part: Shape) -> tuple[GoType, int]:
        """Return the type of a part, and where in the argument it begins."""
        if isinstance(part, Undescribed):
            return UnknownType(part.value), 0
        if not isinstance(part, ShapeWord):
            inner = [typed(one) for one in part]
            begin = min((at for one, at in inner if one.size), default=0)
            fields = tuple(
                Field(f"f{number}", at - begin if one.size else 0, one)
                for number, (one, at) in enumerate(inner)
            )
            end = max((field.offset + field.type.size for field in fields), default=0)
            return StructType(SHAPE, Kind.STRUCT, end, 1, fields), begin
        at, size = part
        if size not in _WORDS:
            return UnknownType("a vector"), 0
        one = slots.get(at)
        if one is None and first is not None and at >= first:
            raise ShapeError("its code does not say where its arguments are")
        if one is None:
            pieces.append(Piece(at - start, size, Stack(at + code.architecture.pointer_size)))
            return _WORDS[size], at - start
        if one.size != size:
            raise ShapeError("its code saves arguments of other sizes than it describes")
        pieces.append(Piece(at - start, size, one.register))
        return _type_in(one), at - start

    of, _ = typed(shape)
    return of, tuple(pieces), None
