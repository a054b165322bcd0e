# SPDX-License-Identifier: Apache-2.0
"""Read signatures and types of Go functions from DWARF, lazily: only those asked for.

A function is found by its address: the unit that covers it is known from the units' own entries,
and one unit's entries are stepped over undecoded to find its subprograms. Types are decoded one
entry at a time by the offset at which they are referred to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from gotrace.elf import ElfError
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.constants import GoAttribute
from gotrace.elf.dwarf.loclist import (
    LocationAttribute,
    LocationPiece,
    expression_at,
    location_of,
    pieces_of,
)
from gotrace.elf.dwarf.search import find_type, find_variable
from gotrace.elf.dwarf.subprograms import Shape, child_offsets, code_addresses
from gotrace.elf.dwarf.units import Die, Unit, UnitTable, damage_is_reported
from gotrace.records import dataclass, field

if TYPE_CHECKING:
    from gotrace.elf.image import ElfImage

#: Entries that refer to another as their origin do so once, or twice through a specification.
_MAX_ORIGINS = 8
_CC_NOCALL = 3  # DWARF 5, section 7.15
_GCCGO = "GNU Go "


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter, a result or a captured variable.

    ``type_offset`` is the offset in .debug_info of the type's die, None when the compiler gave
    none. ``is_result`` distinguishes results from parameters. ``closure_offset`` is the byte
    offset in the closure object of a captured variable (Go >= 1.23), None for all others; a
    variable captured by reference is named ``&x`` and has a pointer type.
    """

    name: str
    type_offset: int | None
    is_result: bool
    location: LocationAttribute | None
    closure_offset: int | None


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """A function: parameters (the receiver first) and results, in the order of the source.

    ``name`` is the linker's name, with the shapes of generic functions spelled out. ``low_pc`` is
    a link-time address. Go before 1.23 leaves blank and unnamed parameters out, never results.
    ``type_offset`` is the offset of the type that C and gccgo return; Go's compiler lists results
    among ``variables``. ``is_nonstandard_call``: DW_CC_nocall says that no convention holds.
    """

    name: str
    low_pc: int
    variables: tuple[Variable, ...]
    captured: tuple[Variable, ...]
    type_offset: int | None
    is_nonstandard_call: bool
    unit: Unit = field(repr=False, compare=False)

    @property
    def parameters(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables if not variable.is_result)

    @property
    def results(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables if variable.is_result)


@dataclass(frozen=True, slots=True)
class InlinedSubroutine:
    """A call that is inlined in a function's code: ``parent`` is the one around it, None for none.

    ``spans`` are the addresses of its code, with what is inlined in it. ``variables`` are as those
    of a function; they have no location where the compiler gave none.
    """

    name: str
    line: int
    spans: tuple[tuple[int, int], ...]
    variables: tuple[Variable, ...]
    parent: InlinedSubroutine | None

    def has(self, address: int) -> bool:
        """Return whether an instruction is of the call."""
        return any(start <= address < end for start, end in self.spans)


class DwarfReader:
    """One binary's debugging information, read as far as questions are asked.

    Every method raises DwarfError on damaged or unknown data, in time bounded by the size of the
    unit that is looked at.
    """

    @damage_is_reported
    def __init__(self, load: Callable[[str], bytes]) -> None:
        """Find the units; use :meth:`open` for a binary.

        ``load`` returns the contents of ``.debug_NAME``, empty when there is no such section. It
        is called at most once for each.
        """
        self._units = UnitTable(load)
        self._functions: dict[int, dict[int, int]] = {}

    @classmethod
    def open(cls, image: ElfImage) -> DwarfReader | None:
        """Return an image's reader, None when the binary has no .debug_info.

        Every call returns the same one, so that no section is read twice. The image must stay
        open.
        """
        return image.once(_open)

    @damage_is_reported
    def function(self, low_pc: int, package: str = "") -> FunctionSignature | None:
        """Return the function whose code begins at a link-time address, None when it has no die.

        It is found sooner where it is in the Go package whose import path is ``package``.

        Assembly functions have an die, without parameters, in some releases and none in others.
        """
        offset = self._offset_of(low_pc, package)
        return None if offset is None else self._signature(self._units.die(offset), low_pc)

    @damage_is_reported
    def inlined(self, low_pc: int, package: str = "") -> list[InlinedSubroutine]:
        """Return the calls that are inlined in a function, each after the one around it."""
        offset = self._offset_of(low_pc, package)
        if offset is None:
            return []
        found: list[InlinedSubroutine] = []
        waiting: list[tuple[Die, InlinedSubroutine | None]] = [(self._units.die(offset), None)]
        while waiting:
            die, around = waiting.pop()
            for child in self._children(die, _is_scope):
                inner = around
                if child.tag == "DW_TAG_inlined_subroutine":
                    inner = self._subroutine(child, around)
                    found.append(inner)
                waiting.append((child, inner))
        return found

    def _subroutine(self, die: Die, around: InlinedSubroutine | None) -> InlinedSubroutine:
        origin = self._origin(die)
        own = self._children(die, _is("DW_TAG_formal_parameter"))
        all_of_it = _with_missing(own, self._children(origin, _is("DW_TAG_formal_parameter")))
        return InlinedSubroutine(
            self.name(origin),
            int(die.values.get("DW_AT_call_line", 0)),
            tuple(self._units.spans(die)),
            tuple(map(self._variable, all_of_it)),
            around,
        )

    @damage_is_reported
    def places(
        self, low_pc: int, variable: Variable, package: str = ""
    ) -> list[tuple[int, int, tuple[LocationPiece, ...] | None]]:
        """Return where a variable of a function, or of what is inlined in it, is in a list.

        Each place has the addresses (start, end) for which it holds. None: of operations that are
        not Go's. There is none if the compiler says nothing, or has one place for all addresses.
        """
        unit = self._units.covering(low_pc, package)
        location = variable.location
        if unit is None or location is None or location.list_offset is None:
            return []
        found = []
        for start, end, expression in self._units.location_list(unit, location.list_offset):
            operations = self._units.operations(unit, expression)
            found.append((start, end, None if operations is None else pieces_of(operations)))
        return found

    @damage_is_reported
    def has_function(self, low_pc: int) -> bool:
        """Return whether ``function`` would return one, which is not decoded."""
        return self._offset_of(low_pc, "") is not None

    def _offset_of(self, low_pc: int, package: str) -> int | None:
        unit = self._units.covering(low_pc, package)
        return None if unit is None else self._functions_of(unit).get(low_pc)

    def functions(self) -> Iterator[FunctionSignature]:
        """Yield all functions that have code, one unit after the other: walks everything."""
        for unit in self._units:
            yield from self._signatures_of(unit)

    @damage_is_reported
    def _signatures_of(self, unit: Unit) -> list[FunctionSignature]:
        found = self._functions_of(unit)
        return [
            self._signature(self._units.die(offset), low_pc) for low_pc, offset in found.items()
        ]

    @damage_is_reported
    def entry_pieces(
        self, function: FunctionSignature, variable: Variable
    ) -> tuple[LocationPiece, ...] | None:
        """Return where a variable is at the function's first instruction.

        Empty: nowhere. None: the compiler does not say, or in operations that are not Go's.
        """
        return self.pieces_at(function, variable, function.low_pc)

    @damage_is_reported
    def pieces_at(
        self, function: FunctionSignature, variable: Variable, address: int
    ) -> tuple[LocationPiece, ...] | None:
        """Return where a variable is at a link-time address; see ``entry_pieces``."""
        if variable.location is None:
            return None
        unit = function.unit
        expression = expression_at(variable.location, address, unit, self._units)
        operations = None if expression is None else self._units.operations(unit, expression)
        return None if operations is None else pieces_of(operations)

    @damage_is_reported
    def is_gccgo(self, function: FunctionSignature) -> bool:
        """Return whether gccgo has compiled a function, by its unit's DW_AT_producer."""
        top = self.die(function.unit.first_die)
        return str(top.values.get("DW_AT_producer", "")).startswith(_GCCGO)

    def die(self, offset: int) -> Die:
        """Return the entry at an offset of .debug_info."""
        return self._units.die(offset)

    def children(self, die: Die) -> list[Die]:
        """Return the entries directly below one."""
        return self._children(die, lambda shape: True)

    def name(self, die: Die) -> str:
        """Return an entry's name, empty when it has none."""
        name = die.values.get("DW_AT_name")
        return name if isinstance(name, str) else ""

    @damage_is_reported
    def find_type(self, name: str) -> int | None:
        """Return the offset of the type entry of a linker name, such as ``runtime.g``.

        A typedef that only repeats the name of what it refers to is passed over.
        """
        return find_type(self._units, name)

    @damage_is_reported
    def variable_type(self, name: str) -> int | None:
        """Return the offset of the type of a global variable, None without either."""
        offset = find_variable(self._units, name)
        return None if offset is None else self.die(offset).values.get("DW_AT_type")

    @damage_is_reported
    def struct_members(self, name: str) -> dict[str, int]:
        """Return the byte offsets of a struct type's fields by name, empty when it is unknown."""
        offset = self.find_type(name)
        if offset is None:
            return {}
        return {
            self.name(child): self.member_offset(child)
            for child in self._children(self.die(offset), _is("DW_TAG_member"))
        }

    def member_offset(self, member: Die) -> int:
        """Return a field's byte offset in its struct."""
        value = member.values.get("DW_AT_data_member_location", 0)
        if not isinstance(value, int):
            raise DwarfError(f"field at {member.offset:#x} has an offset that is not a number")
        return value

    @damage_is_reported
    def _children(self, die: Die, wanted: Callable[[Shape], bool]) -> list[Die]:
        unit = die.unit
        offsets = child_offsets(self._units.info, unit.shapes, die.offset, unit.end, wanted)
        return [self._units.die(offset) for offset in offsets]

    def _functions_of(self, unit: Unit) -> dict[int, int]:
        """Return the offsets of a unit's subprograms that have code, by address."""
        found = self._functions.get(unit.offset)
        if found is None:
            info, shapes = self._units.info, unit.shapes
            wanted = _is("DW_TAG_subprogram")
            offsets = child_offsets(info, shapes, unit.first_die, unit.end, wanted)
            indexed = functools.partial(self._units.indexed_address, unit)
            found = code_addresses(info, shapes, offsets, indexed)
            self._functions[unit.offset] = found
        return found

    def _signature(self, die: Die, low_pc: int) -> FunctionSignature:
        concrete = self._children(die, _is_parameter_or_captured)
        origin = self._origin(die)
        parameters = [child for child in concrete if child.tag == "DW_TAG_formal_parameter"]
        if origin is not die:
            parameters = _with_missing(
                parameters, self._children(origin, _is("DW_TAG_formal_parameter"))
            )
        captured = tuple(
            self._variable(child) for child in concrete if child.tag == "DW_TAG_variable"
        )
        return FunctionSignature(
            name=self.name(origin),
            low_pc=low_pc,
            variables=_each_once(map(self._variable, parameters)),
            captured=captured,
            type_offset=origin.values.get("DW_AT_type"),
            is_nonstandard_call=_CC_NOCALL
            in (
                die.values.get("DW_AT_calling_convention"),
                origin.values.get("DW_AT_calling_convention"),
            ),
            unit=die.unit,
        )

    def _origin(self, die: Die) -> Die:
        """Follow DW_AT_abstract_origin to the entry that has the name and the types."""
        for _ in range(_MAX_ORIGINS):
            values = die.values
            reference = values.get("DW_AT_abstract_origin", values.get("DW_AT_specification"))
            if reference is None:
                return die
            die = self.die(reference)
        raise DwarfError(f"the origins of the entry at {die.offset:#x} go in a circle")

    def _variable(self, die: Die) -> Variable:
        origin = self._origin(die)
        return Variable(
            name=self.name(origin),
            type_offset=origin.values.get("DW_AT_type"),
            is_result=bool(origin.values.get("DW_AT_variable_parameter", 0)),
            location=location_of(die),
            closure_offset=origin.values.get(GoAttribute.CLOSURE_OFFSET),
        )


def _open(image: ElfImage) -> DwarfReader | None:
    if image.debug_section("info") is None:
        return None

    def load(name: str) -> bytes:
        section = image.debug_section(name)
        try:
            return b"" if section is None else bytes(image.section_bytes(section))
        except ElfError as error:
            raise DwarfError(str(error)) from None

    return DwarfReader(load)


def _is(tag: str) -> Callable[[Shape], bool]:
    return lambda shape: shape.tag == tag


def _is_scope(shape: Shape) -> bool:
    return shape.tag in ("DW_TAG_inlined_subroutine", "DW_TAG_lexical_block")


def _is_parameter_or_captured(shape: Shape) -> bool:
    is_captured = shape.tag == "DW_TAG_variable" and shape.has(GoAttribute.CLOSURE_OFFSET)
    return is_captured or shape.tag == "DW_TAG_formal_parameter"


def _each_once(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """Leave out repeated entries: optimizing compilers list some results twice (Go 1.19-1.26).

    Only blank parameters can have the same name.
    """
    found: dict[object, Variable] = {}
    for number, variable in enumerate(variables):
        key = variable.name if variable.name not in ("", "_") else number
        found.setdefault(key, variable)
    return tuple(found.values())


def _with_missing(concrete: list[Die], abstract: Iterable[Die]) -> list[Die]:
    """Return a function's parameters with those that only its abstract entry has, in order."""
    merged = list(concrete)
    known = [die.values.get("DW_AT_abstract_origin") for die in merged]
    place = 0
    for die in abstract:
        if die.offset in known:
            place = known.index(die.offset) + 1
        else:
            merged.insert(place, die)
            known.insert(place, die.offset)
            place += 1
    return merged
