# SPDX-License-Identifier: Apache-2.0
"""Build Go types from gccgo's DWARF, which describes them as the C structs that they are.

The structs' fields have names that no Go program can use (gofrontend, go/types.cc,
``get_backend_string_fields`` and the like; gccgo 12). Types are called as DWARF calls them:
exported ones of the unit's own package ``Item``, others ``main.item`` (there ``.main.item``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.gotypes.from_dwarf import RENAMING_TAGS, DwarfTypes
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
from gotrace.records import replace

if TYPE_CHECKING:
    from gotrace.elf.dwarf.units import Die

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
#: gccgo's names for the structs of maps and channels; keys and elements are not described.
_REFERENCES = {"runtime.hmap": "map", "__go_map": "map", "__go_channel": "chan"}
_CLOSURE = "__go_descriptor"
_MAX_SPELLED = 32
#: Types whose DWARF is that of the sized ones.
_WORDS = {"int": Kind.INT, "uint": Kind.UINT, "uintptr": Kind.UINTPTR}


class GccgoTypes(DwarfTypes):
    """The types of gccgo's units, each built once, when first asked for."""

    def _resolve(self, offset: int) -> Die:
        """Return the entry as it is: its typedefs are the names."""
        return self._reader.die(offset)

    def _build(self, die: Die) -> GoType:
        if die.tag in RENAMING_TAGS and "DW_AT_type" in die.values:
            return self._renamed(die)
        if die.tag == "DW_TAG_pointer_type" and "DW_AT_type" in die.values:
            return self._pointer(die)
        if die.tag == "DW_TAG_structure_type":
            return self._shaped(die)
        found = super()._build(die)
        if die.tag == "DW_TAG_base_type" and found.name in _WORDS:
            return basic_type(_WORDS[found.name])
        if die.tag == "DW_TAG_array_type":
            return replace(found, name=self._spelled(die.offset))
        return found

    def _renamed(self, die: Die) -> GoType:
        target = self.at(die.values["DW_AT_type"])
        name = self._reader.name(die).removeprefix(".")
        return replace(target, name=name) if name else target

    def _pointer(self, die: Die) -> GoType:
        target = self._reader.name(self._reader.die(die.values["DW_AT_type"]))
        if target == _CLOSURE:
            return FuncType("func", Kind.FUNC, _WORD, _WORD)
        if target in _REFERENCES:
            return basic_type(Kind.UNSAFE_POINTER, _REFERENCES[target])
        name = self._spelled(die.offset)
        return PointerType(name, Kind.POINTER, _WORD, _WORD, self._lazy(die, "DW_AT_type"))

    def _shaped(self, die: Die) -> GoType:
        members = [child for child in self._reader.children(die) if child.tag == "DW_TAG_member"]
        names = tuple(map(self._reader.name, members))
        if names == _STRING:
            return basic_type(Kind.STRING)
        if names == _SLICE:
            pointer = self._reader.die(members[0].values["DW_AT_type"])
            name = self._spelled(die.offset)
            elem = self._lazy(pointer, "DW_AT_type")
            return SliceType(name, Kind.SLICE, 3 * _WORD, _WORD, elem)
        if names in (_INTERFACE, _EMPTY_INTERFACE):
            empty = names == _EMPTY_INTERFACE
            name = _NAMES_OF_STRUCTS[names]
            return InterfaceType(name, Kind.INTERFACE, 2 * _WORD, _WORD, empty)
        found = super()._build(die)
        assert isinstance(found, StructType)
        spelled = "; ".join(f"{field.name} {field.type.name}" for field in found.fields)
        name = f"struct {{ {spelled} }}" if spelled else "struct {}"
        return replace(found, name=name)

    def _spelled(self, offset: int, nesting: int = 0) -> str:
        """Return a type's name without building it: types lead back to themselves."""
        die = self._reader.die(offset)
        name = self._reader.name(die).removeprefix(".")
        target = die.values.get("DW_AT_type")
        if name or nesting > _MAX_SPELLED:
            return name
        if die.tag == "DW_TAG_structure_type":
            members = [
                child for child in self._reader.children(die) if child.tag == "DW_TAG_member"
            ]
            names = tuple(map(self._reader.name, members))
            if names != _SLICE:
                return _NAMES_OF_STRUCTS.get(names, "struct { ... }")
            pointer = self._reader.die(members[0].values["DW_AT_type"])
            elem = pointer.values.get("DW_AT_type")
            return "[]" + ("void" if elem is None else self._spelled(elem, nesting + 1))
        if die.tag == "DW_TAG_pointer_type":
            return "unsafe.Pointer" if target is None else f"*{self._spelled(target, nesting + 1)}"
        if die.tag == "DW_TAG_array_type" and target is not None:
            length = self._array_length(die)
            return f"[{length}]{self._spelled(target, nesting + 1)}"
        return "func" if target is None else self._spelled(target, nesting + 1)

    def _array_length(self, die: Die) -> int:
        for child in self._reader.children(die):
            if child.tag == "DW_TAG_subrange_type":
                upper = child.values.get("DW_AT_upper_bound", -1)
                known = upper + 1 if isinstance(upper, int) else 0
                return int(child.values.get("DW_AT_count", known))
        return 0
