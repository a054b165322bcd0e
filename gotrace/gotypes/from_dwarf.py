# SPDX-License-Identifier: Apache-2.0
"""Build Go types and signatures from a binary's DWARF.

How Go's linker describes types: src/cmd/link/internal/ld/dwarf.go, ``newtype`` and the
``synthesize*types`` functions (Go 1.15 to 1.27).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.constants import GoAttribute
from gotrace.gotypes.types import (
    ArrayType,
    ChanDirection,
    ChanType,
    Field,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    OpaqueType,
    Parameter,
    PointerType,
    Signature,
    SliceType,
    StructType,
    basic_type,
    struct_alignment,
)

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature, Variable
    from gotrace.elf.dwarf.units import Die

_WORD = 8

#: No type nests arrays and structs by value as deep as this; a circle of damaged DWARF does.
_MAX_NESTING = 64

#: The compiler's prefix for names of types that cannot be compared.
_UNCOMPARED = "noalg."

#: Typedefs, which may only rename, and C's qualifiers.
RENAMING_TAGS = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")

#: C's base types (DW_AT_encoding, size in bytes) in Go's terms.
_C_KINDS = {
    (2, 1): Kind.BOOL,
    (4, 4): Kind.FLOAT32,
    (4, 8): Kind.FLOAT64,
    (3, 8): Kind.COMPLEX64,
    (3, 16): Kind.COMPLEX128,
    (5, 1): Kind.INT8,
    (6, 1): Kind.INT8,
    (5, 2): Kind.INT16,
    (5, 4): Kind.INT32,
    (5, 8): Kind.INT64,
    (7, 1): Kind.UINT8,
    (8, 1): Kind.UINT8,
    (7, 2): Kind.UINT16,
    (7, 4): Kind.UINT32,
    (7, 8): Kind.UINT64,
}


class DwarfTypes:
    """The types of one binary's DWARF, each built once, when first asked for.

    Methods, and the lazy references of the types they return, raise DwarfError for damaged data.
    """

    def __init__(self, reader: DwarfReader) -> None:
        self._reader = reader
        self._types: dict[int, GoType] = {}
        self._nesting = 0

    def at(self, offset: int) -> GoType:
        """Return the type whose entry is at an offset of .debug_info."""
        known = self._types.get(offset)
        if known is None:
            self._nesting += 1
            try:
                if self._nesting > _MAX_NESTING:
                    raise DwarfError(f"type at {offset:#x} contains itself")
                known = self._types[offset] = self._build(self._resolve(offset))
            finally:
                self._nesting -= 1
        return known

    def named(self, name: str) -> GoType | None:
        """Return the type of a linker name, None when DWARF has none."""
        offset = self._reader.find_type(name) or self._reader.find_type(_UNCOMPARED + name)
        return None if offset is None else self.at(offset)

    def signature(self, function: FunctionSignature) -> Signature:
        """Return a function's parameters and results with their types."""
        return Signature(
            function.name,
            tuple(map(self.parameter, function.parameters)),
            tuple(map(self.parameter, function.results)),
        )

    def parameter(self, variable: Variable) -> Parameter:
        """Return a variable's name and type; raise DwarfError when it has no type."""
        if variable.type_offset is None:
            raise DwarfError(f"parameter {variable.name} has no type")
        return Parameter(variable.name, self.at(variable.type_offset))

    def dictionary_word(self, variable: Variable) -> int | None:
        """Return which word of its call's dictionary describes a variable's type, None if none."""
        if variable.type_offset is None:
            return None
        word = self._reader.die(variable.type_offset).values.get(GoAttribute.DICT_INDEX)
        return word if isinstance(word, int) else None

    def _lazy(self, die: Die, attribute: str | int) -> Lazy[GoType]:
        """Return a reference to the type in an attribute; to nothing, as of C's void, without."""
        offset = die.values.get(attribute)
        if offset is None:
            return Lazy.of(OpaqueType("void", Kind.INVALID, 0, 1))
        return Lazy(lambda: self.at(offset))

    def _resolve(self, offset: int) -> Die:
        """Follow typedefs that only rename, and C's qualifiers, to the entry that describes."""
        for _ in range(_MAX_NESTING):
            die = self._reader.die(offset)
            if GoAttribute.KIND in die.values or die.tag not in RENAMING_TAGS:
                return die
            target = die.values.get("DW_AT_type")
            if target is None:
                return die
            offset = target
        raise DwarfError(f"typedefs at {offset:#x} go in a circle")

    def _build(self, die: Die) -> GoType:
        kind = self._kind(die)
        name = self._reader.name(die).removeprefix(_UNCOMPARED)
        if kind is Kind.POINTER:
            return PointerType(name, kind, _WORD, _WORD, self._lazy(die, "DW_AT_type"))
        if kind is Kind.SLICE:
            return SliceType(name, kind, 3 * _WORD, _WORD, self._lazy(die, GoAttribute.ELEM))
        if kind is Kind.MAP:
            key, elem = self._lazy(die, GoAttribute.KEY), self._lazy(die, GoAttribute.ELEM)
            return MapType(name, kind, _WORD, _WORD, key, elem, self._header(die))
        if kind is Kind.CHAN:
            elem, header = self._lazy(die, GoAttribute.ELEM), self._header(die)
            return ChanType(name, kind, _WORD, _WORD, _direction(name), elem, header)
        if kind is Kind.INTERFACE:
            layout = self._reader.name(self._resolve(die.values.get("DW_AT_type", die.offset)))
            return InterfaceType(name, kind, 2 * _WORD, _WORD, layout == "runtime.eface")
        if kind is Kind.FUNC:
            return FuncType(name, kind, _WORD, _WORD)
        if kind is Kind.ARRAY:
            return self._array(die, name)
        if kind is Kind.STRUCT:
            return self._struct(die, name)
        if kind is Kind.INVALID:
            size = die.values.get("DW_AT_byte_size", 0)
            return OpaqueType(name, kind, size, _opaque_alignment(size))
        return basic_type(kind, name)

    def _kind(self, die: Die) -> Kind:
        number = die.values.get(GoAttribute.KIND)
        if number:
            try:
                return Kind(number & 0x1F)
            except ValueError:
                raise DwarfError(f"type at {die.offset:#x} has the unknown kind {number}") from None
        if die.tag == "DW_TAG_pointer_type":
            return Kind.UNSAFE_POINTER if "DW_AT_type" not in die.values else Kind.POINTER
        if die.tag in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
            size = die.values.get("DW_AT_byte_size", 0)
            return _C_KINDS.get((die.values.get("DW_AT_encoding", 5), size), Kind.INVALID)
        by_tag = {
            "DW_TAG_structure_type": Kind.STRUCT,
            "DW_TAG_array_type": Kind.ARRAY,
            "DW_TAG_subroutine_type": Kind.FUNC,
        }
        return next((kind for tag, kind in by_tag.items() if tag == die.tag), Kind.INVALID)

    def _header(self, die: Die) -> Lazy[GoType] | None:
        """Return a map's or channel's header type: its own type is a pointer to that."""
        offset = die.values.get("DW_AT_type")
        if offset is None:
            return None

        def header() -> GoType:
            pointer = self.at(offset)
            return pointer.elem if isinstance(pointer, PointerType) else pointer

        return Lazy(header)

    def _array(self, die: Die, name: str) -> ArrayType:
        elem_offset = die.values.get("DW_AT_type")
        if elem_offset is None:
            raise DwarfError(f"array at {die.offset:#x} has no element type")
        elem = self.at(elem_offset)
        length = 1
        for child in self._reader.children(die):
            if child.tag == "DW_TAG_subrange_type":
                upper = child.values.get("DW_AT_upper_bound", -1)
                known = upper + 1 if isinstance(upper, int) else 0
                length *= child.values.get("DW_AT_count", known)
        size = die.values.get("DW_AT_byte_size", length * elem.size)
        return ArrayType(name, Kind.ARRAY, size, elem.align, elem, length)

    def _struct(self, die: Die, name: str) -> StructType:
        fields = tuple(
            Field(
                self._reader.name(child),
                self._reader.member_offset(child),
                self.at(child.values["DW_AT_type"]),
                bool(child.values.get(GoAttribute.EMBEDDED_FIELD, 0)),
            )
            for child in self._reader.children(die)
            if child.tag == "DW_TAG_member" and "DW_AT_type" in child.values
        )
        size = die.values.get("DW_AT_byte_size", 0)
        return StructType(name, Kind.STRUCT, size, struct_alignment(fields), fields)


def _direction(name: str) -> ChanDirection:
    for direction in (ChanDirection.SEND, ChanDirection.RECEIVE):
        if name.startswith(direction.value):
            return direction
    return ChanDirection.BOTH


def _opaque_alignment(size: int) -> int:
    """Return the greatest alignment that a size allows: C's types are multiples of theirs."""
    return min(size & -size, _WORD) if size else 1
