"""Read signatures and types of Go functions from DWARF, lazily: only what is asked for.

A function is found by its address: the unit that covers it is known from the units' own entries,
and one unit's entries are stepped over undecoded to find its subprograms. Types are decoded one
entry at a time by the offset at which they are referred to.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gotrace.elf.dwarf_constants import STRING_FORMS, Attr, Form, Tag
from gotrace.elf.dwarf_die import Die, DwarfError, Unit, read_die, subprogram_offsets
from gotrace.elf.dwarf_location import Location, LocationPiece, expression_at, parse_expression
from gotrace.elf.dwarf_search import find_runtime_type, find_type
from gotrace.elf.dwarf_sections import DwarfSections
from gotrace.elf.dwarf_units import UnitTable

if TYPE_CHECKING:
    from gotrace.elf.image import ElfImage

__all__ = ["DwarfError", "DwarfReader", "FunctionSignature", "Variable"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Entries that refer to another as their origin do so once, or twice through a specification.
_MAX_ORIGINS = 8
_CC_NOCALL = 3  # DWARF 5, section 7.15
_GCCGO = "GNU Go "


def _damage_is_reported(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn what decoding damaged bytes can raise into DwarfError."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (IndexError, struct.error, OverflowError, TypeError, ValueError) as error:
            raise DwarfError(f"damaged debugging information: {error}") from None

    return wrapper


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """Describe a parameter, a result or a captured variable.

    ``type_offset`` is the offset in .debug_info of the type's entry, None when the compiler gave
    none. ``is_result`` tells results from parameters. ``closure_offset`` is the byte offset in
    the closure object of a captured variable (Go >= 1.23), None for all others; a variable
    captured by reference is named ``&x`` and has a pointer type.
    """

    name: str
    type_offset: int | None
    is_result: bool
    location: Location | None
    closure_offset: int | None
    decl_line: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionSignature:
    """Describe a function: parameters (the receiver first) and results, in the order of the source.

    ``type_offset`` is the offset of the type that C and gccgo return; Go's compiler lists results
    among ``variables``. ``is_nonstandard_call``: DW_CC_nocall says that no convention holds.

    ``name`` is the linker's name, with the shapes of generic functions spelled out. ``low_pc``
    and ``high_pc`` (exclusive) are link-time addresses. Go before 1.23 leaves blank and unnamed
    parameters out, never results. ``trampoline``: a wrapper that the compiler made.
    """

    name: str
    low_pc: int
    high_pc: int
    decl_line: int | None
    variables: tuple[Variable, ...]
    captured: tuple[Variable, ...]
    trampoline: bool
    type_offset: int | None
    is_nonstandard_call: bool
    unit: Unit = dataclasses.field(repr=False, compare=False)

    @property
    def parameters(self) -> tuple[Variable, ...]:
        """Return the receiver and the parameters."""
        return tuple(variable for variable in self.variables if not variable.is_result)

    @property
    def results(self) -> tuple[Variable, ...]:
        """Return the results."""
        return tuple(variable for variable in self.variables if variable.is_result)


class DwarfReader:
    """Answer questions about one binary's debugging information.

    Every method raises DwarfError on damaged or unknown data, in time bounded by the size of the
    unit that is looked at.
    """

    def __init__(self, sections: DwarfSections) -> None:
        """Take the sections; use :meth:`open` or :meth:`of_sections`, which report damage."""
        self._sections = sections
        self._info = sections.get("info")
        self._units = UnitTable(sections)
        self._functions: dict[int, dict[int, Die]] = {}

    @classmethod
    def open(cls, image: ElfImage) -> DwarfReader | None:
        """Return a reader, None when the binary has no .debug_info; the image must stay open."""
        sections = DwarfSections(image)
        return cls.of_sections(sections) if sections.present("info") else None

    @classmethod
    @_damage_is_reported
    def of_sections(cls, sections: DwarfSections) -> DwarfReader:
        """Return a reader of sections that are at hand."""
        return cls(sections)

    @_damage_is_reported
    def function(self, low_pc: int) -> FunctionSignature | None:
        """Return the function whose code begins at a link-time address, None when it has no entry.

        Assembly functions have an entry, without parameters, in some releases and none in others.
        """
        unit = self._units.covering(low_pc)
        if unit is None:
            return None
        die = self._functions_of(unit).get(low_pc)
        return None if die is None else self._signature(die, low_pc)

    def functions(self) -> Iterator[FunctionSignature]:
        """Yield all functions that have code, one unit after the other: walks everything."""
        for unit in self._units.units:
            yield from self._signatures_of(unit)

    @_damage_is_reported
    def _signatures_of(self, unit: Unit) -> list[FunctionSignature]:
        found = self._functions_of(self._units.containing(unit.first_die))
        return [self._signature(die, low_pc) for low_pc, die in found.items()]

    @_damage_is_reported
    def entry_pieces(
        self, function: FunctionSignature, variable: Variable
    ) -> tuple[LocationPiece, ...] | None:
        """Return where a variable is at the function's first instruction.

        Empty: nowhere. None: the compiler does not say, or in operations that are not Go's.
        """
        if variable.location is None:
            return None
        expression = expression_at(
            variable.location, function.low_pc, function.unit, self._units, self._sections
        )
        return None if expression is None else parse_expression(expression)

    @_damage_is_reported
    def is_gccgo(self, function: FunctionSignature) -> bool:
        """Say whether gccgo has compiled a function, as its unit's DW_AT_producer tells."""
        return self._string(self.die(function.unit.first_die), Attr.PRODUCER).startswith(_GCCGO)

    @_damage_is_reported
    def die(self, offset: int) -> Die:
        """Return the entry at an offset of .debug_info."""
        die = read_die(self._info, self._units.containing(offset), offset)
        if die is None:
            raise DwarfError(f"a list ends at {offset:#x}, where an entry was expected")
        return die

    @_damage_is_reported
    def children(self, die: Die) -> list[Die]:
        """Return the entries directly below one."""
        return list(self._children(die))

    @_damage_is_reported
    def name(self, die: Die) -> str:
        """Return an entry's name, empty when it has none."""
        return self._string(die, Attr.NAME)

    @_damage_is_reported
    def find_type(self, name: str) -> int | None:
        """Return the offset of the type entry of a linker name, such as ``runtime.g``.

        A typedef that only repeats the name of what it refers to is passed over.
        """
        die = find_type(self._info, self._units, name)
        return None if die is None else die.offset

    @_damage_is_reported
    def find_runtime_type(self, value: int) -> int | None:
        """Return the offset of the type entry whose DW_AT_go_runtime_type is ``value``.

        The linker writes the type descriptor's offset from ``runtime.types`` (module data), and
        for a few types of the runtime itself its address. Zero marks types without descriptor.
        """
        die = find_runtime_type(self._info, self._units, value) if value else None
        return None if die is None else die.offset

    @_damage_is_reported
    def struct_members(self, name: str) -> dict[str, int]:
        """Return the byte offsets of a struct type's fields by name, empty when it is unknown."""
        offset = self.find_type(name)
        if offset is None:
            return {}
        return {
            self.name(child): self.member_offset(child)
            for child in self._children(self.die(offset))
            if child.tag == Tag.MEMBER
        }

    @_damage_is_reported
    def member_offset(self, member: Die) -> int:
        """Return a field's byte offset in its struct."""
        value = member.values.get(Attr.DATA_MEMBER_LOCATION, 0)
        if isinstance(value, bytes):
            raise DwarfError(f"field at {member.offset:#x} has an offset that is no number")
        return int(value)

    def _string(self, die: Die, attribute: int) -> str:
        value = die.values.get(attribute)
        if value is None or isinstance(value, str):
            return value or ""
        form = die.forms[attribute]
        if form not in STRING_FORMS:
            return ""
        section, offset = "str", int(value)
        if form == Form.LINE_STRP:
            section = "line_str"
        elif form != Form.STRP:
            size = die.unit.offset_size
            at = die.unit.str_offsets_base + offset * size
            offset = int.from_bytes(self._sections.get("str_offsets")[at : at + size], "little")
        data = self._sections.get(section)
        return data[offset : data.index(b"\0", offset)].decode("utf-8", "backslashreplace")

    def _children(self, die: Die) -> Iterator[Die]:
        if not die.has_children:
            return
        pos, end = die.end, die.unit.end
        depth = 0
        while pos < end:
            child = read_die(self._info, die.unit, pos)
            if child is None:
                if depth == 0:
                    return
                depth -= 1
                pos += 1
                continue
            if depth == 0:
                yield child
            pos = child.end
            if child.has_children:
                sibling = child.values.get(Attr.SIBLING, 0)
                if pos <= sibling <= end:
                    pos = sibling
                else:
                    depth += 1

    def _functions_of(self, unit: Unit) -> dict[int, Die]:
        """Return a unit's subprograms that have code, by address."""
        found = self._functions.get(unit.offset)
        if found is None:
            found = {}
            for offset in subprogram_offsets(self._info, unit):
                die = self.die(offset)
                low_pc = self._units.address(die, Attr.LOW_PC)
                if low_pc is not None:
                    found[low_pc] = die
            self._functions[unit.offset] = found
        return found

    def _signature(self, die: Die, low_pc: int) -> FunctionSignature:
        high = die.values.get(Attr.HIGH_PC, 0)
        is_address = die.forms.get(Attr.HIGH_PC) == Form.ADDR
        concrete = list(self._children(die))
        origin = self._origin(die)
        parameters = [child for child in concrete if child.tag == Tag.FORMAL_PARAMETER]
        if origin is not die:
            parameters = _with_missing(parameters, self._children(origin))
        captured = tuple(
            self._variable(child)
            for child in concrete
            if child.tag == Tag.VARIABLE and Attr.GO_CLOSURE_OFFSET in child.values
        )
        return FunctionSignature(
            name=self._string(origin, Attr.NAME),
            low_pc=low_pc,
            high_pc=high if is_address else low_pc + high,
            decl_line=origin.values.get(Attr.DECL_LINE),
            variables=_each_once(map(self._variable, parameters)),
            captured=captured,
            trampoline=bool(die.values.get(Attr.TRAMPOLINE, 0)),
            type_offset=origin.values.get(Attr.TYPE),
            is_nonstandard_call=_CC_NOCALL
            in (
                die.values.get(Attr.CALLING_CONVENTION),
                origin.values.get(Attr.CALLING_CONVENTION),
            ),
            unit=die.unit,
        )

    def _origin(self, die: Die) -> Die:
        """Follow DW_AT_abstract_origin to the entry that has the name and the types."""
        for _ in range(_MAX_ORIGINS):
            reference = die.values.get(Attr.ABSTRACT_ORIGIN, die.values.get(Attr.SPECIFICATION))
            if reference is None:
                return die
            die = self.die(reference)
        raise DwarfError(f"the origins of the entry at {die.offset:#x} go in a circle")

    def _variable(self, die: Die) -> Variable:
        origin = self._origin(die)
        return Variable(
            name=self._string(origin, Attr.NAME),
            type_offset=origin.values.get(Attr.TYPE),
            is_result=bool(origin.values.get(Attr.VARIABLE_PARAMETER, 0)),
            location=_location(die),
            closure_offset=origin.values.get(Attr.GO_CLOSURE_OFFSET),
            decl_line=origin.values.get(Attr.DECL_LINE),
        )


def _each_once(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """Leave out what is listed again: optimizing compilers list some results twice (Go 1.19-1.26).

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
    known = [die.values.get(Attr.ABSTRACT_ORIGIN) for die in merged]
    place = 0
    for die in abstract:
        if die.tag != Tag.FORMAL_PARAMETER:
            continue
        if die.offset in known:
            place = known.index(die.offset) + 1
        else:
            merged.insert(place, die)
            known.insert(place, die.offset)
            place += 1
    return merged


def _location(die: Die) -> Location | None:
    value = die.values.get(Attr.LOCATION)
    if isinstance(value, bytes):
        return Location(expression=value)
    if isinstance(value, int) and die.forms[Attr.LOCATION] == Form.SEC_OFFSET:
        return Location(list_offset=value)
    return None
