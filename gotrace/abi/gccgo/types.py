"""Build Go types from gccgo's DWARF, which describes them as the C structs that they are.

The structs' fields have names that no Go program can use (gofrontend, go/types.cc,
``get_backend_string_fields`` and the like; gccgo 12). Types are called as DWARF calls them:
exported ones of the unit's own package ``Item``, others ``main.item`` (there ``.main.item``).
"""

from __future__ import annotations

import dataclasses

from gotrace.elf.dwarf_constants import Attr, Tag
from gotrace.elf.dwarf_die import Die
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.types import (
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)

__all__ = [
    "GccgoTypes",
]

_WORD = 8
_STRING = ("__data", "__length")
_SLICE = ("__values", "__count", "__capacity")
_INTERFACE = ("__methods", "__object")
_EMPTY_INTERFACE = ("__type_descriptor", "__object")
_NAMES_OF_STRUCTS: dict[tuple[str, ...], str] = {
    _STRING: "string",
    _INTERFACE: "interface { ... }",
    _EMPTY_INTERFACE: "interface {}",
}
#: What gccgo calls the structs behind maps and channels; keys and elements are not described.
_REFERENCES = {"runtime.hmap": "map", "__go_map": "map", "__go_channel": "chan"}
_CLOSURE = "__go_descriptor"
_MAX_SPELLED = 32
#: Types whose DWARF is that of the sized ones.
_WORDS = {"int": Kind.INT, "uint": Kind.UINT, "uintptr": Kind.UINTPTR}


class GccgoTypes(DwarfTypes):
    """Give the types of gccgo's units, each built once, when first asked for."""

    def _resolve(self, offset: int) -> Die:
        """Return the entry as it is: its typedefs are the names."""
        return self._reader.die(offset)

    def _build(self, die: Die) -> GoType:
        if die.tag in (Tag.TYPEDEF, Tag.CONST, Tag.VOLATILE) and Attr.TYPE in die.values:
            return self._renamed(die)
        if die.tag == Tag.POINTER_TYPE and Attr.TYPE in die.values:
            return self._pointer(die)
        if die.tag == Tag.STRUCTURE_TYPE:
            return self._shaped(die)
        found = super()._build(die)
        if die.tag == Tag.BASE_TYPE and found.name in _WORDS:
            return basic_type(_WORDS[found.name])
        if die.tag == Tag.ARRAY_TYPE:
            return dataclasses.replace(found, name=self._spelled(die.offset))
        return found

    def _renamed(self, die: Die) -> GoType:
        target = self.at(die.values[Attr.TYPE])
        name = self._reader.name(die).removeprefix(".")
        return dataclasses.replace(target, name=name) if name else target

    def _pointer(self, die: Die) -> GoType:
        target = self._reader.name(self._reader.die(die.values[Attr.TYPE]))
        if target == _CLOSURE:
            return FuncType("func", Kind.FUNC, _WORD, _WORD)
        if target in _REFERENCES:
            return basic_type(Kind.UNSAFE_POINTER, _REFERENCES[target])
        name = self._spelled(die.offset)
        return PointerType(name, Kind.POINTER, _WORD, _WORD, self._lazy(die, Attr.TYPE))

    def _shaped(self, die: Die) -> GoType:
        members = [child for child in self._reader.children(die) if child.tag == Tag.MEMBER]
        names = tuple(map(self._reader.name, members))
        if names == _STRING:
            return basic_type(Kind.STRING)
        if names == _SLICE:
            pointer = self._reader.die(members[0].values[Attr.TYPE])
            name = self._spelled(die.offset)
            elem = self._lazy(pointer, Attr.TYPE)
            return SliceType(name, Kind.SLICE, 3 * _WORD, _WORD, elem)
        if names in (_INTERFACE, _EMPTY_INTERFACE):
            empty = names == _EMPTY_INTERFACE
            name = _NAMES_OF_STRUCTS[names]
            return InterfaceType(name, Kind.INTERFACE, 2 * _WORD, _WORD, empty)
        found = super()._build(die)
        assert isinstance(found, StructType)
        spelled = "; ".join(f"{field.name} {field.type.name}" for field in found.fields)
        name = f"struct {{ {spelled} }}" if spelled else "struct {}"
        return dataclasses.replace(found, name=name)

    def _spelled(self, offset: int, nesting: int = 0) -> str:
        """Return a type's name without building it: types lead back to themselves."""
        die = self._reader.die(offset)
        name = self._reader.name(die).removeprefix(".")
        target = die.values.get(Attr.TYPE)
        if name or nesting > _MAX_SPELLED:
            return name
        if die.tag == Tag.STRUCTURE_TYPE:
            members = [child for child in self._reader.children(die) if child.tag == Tag.MEMBER]
            names = tuple(map(self._reader.name, members))
            if names != _SLICE:
                return _NAMES_OF_STRUCTS.get(names, "struct { ... }")
            pointer = self._reader.die(members[0].values[Attr.TYPE])
            elem = pointer.values.get(Attr.TYPE)
            return "[]" + ("void" if elem is None else self._spelled(elem, nesting + 1))
        if die.tag == Tag.POINTER_TYPE:
            return "unsafe.Pointer" if target is None else f"*{self._spelled(target, nesting + 1)}"
        if die.tag == Tag.ARRAY_TYPE and target is not None:
            length = self._array_length(die)
            return f"[{length}]{self._spelled(target, nesting + 1)}"
        return "func" if target is None else self._spelled(target, nesting + 1)

    def _array_length(self, die: Die) -> int:
        for child in self._reader.children(die):
            if child.tag == Tag.SUBRANGE_TYPE:
                upper = child.values.get(Attr.UPPER_BOUND, -1)
                return int(child.values.get(Attr.COUNT, upper + 1 if isinstance(upper, int) else 0))
        return 0
