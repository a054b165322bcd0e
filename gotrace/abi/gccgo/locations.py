# SPDX-License-Identifier: Apache-2.0
"""Say where the values of a function that gccgo compiled are, at its entry and at its RETs.

The System V ABI decides (``sysv.py``); DWARF's locations at the entry, where optimised code has
some, are compared with it: a value whose two places differ is unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gotrace.abi.assign import CLOSURE_CONTEXT, CallingConvention, FloatReg, Piece, Place, Stack
from gotrace.abi.gccgo.sysv import SystemVAssignment, assign_system_v
from gotrace.abi.gccgo.types import GccgoTypes
from gotrace.abi.locations import FunctionLocations, PlacedValue, StructField
from gotrace.architecture import AMD64
from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.gotypes.symbols import parse_name
from gotrace.gotypes.types import Field, GoType, Kind, Signature, StructType, struct_alignment

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature, Variable

_CLONE = "the optimiser has changed how this copy of the function is called"
_CONTRADICTED = "DWARF contradicts the place that the calling convention gives it"
#: gccgo's name for the fields of the struct of several results that have no names.
_UNNAMED = "UNNAMED"


def gccgo_locations(
    function: FunctionSignature, symbol: str, reader: DwarfReader, types: GccgoTypes
) -> FunctionLocations:
    """Return the places of a function's values; raise DwarfError when its DWARF is damaged.

    ``symbol`` is its name in the symbol table, which for a copy that the optimiser made ends in
    ``.isra.0`` and the like: such copies follow no convention.
    """
    parameters = [types.parameter(variable).type for variable in function.parameters]
    result = None if function.type_offset is None else types.at(function.type_offset)
    assignment = assign_system_v(parameters, result)
    changed = bool(parse_name(symbol, gccgo=True).suffix) or function.is_nonstandard_call
    rows = zip(function.parameters, parameters, assignment.parameters, strict=True)
    placed = tuple(
        _refused(variable.name, value, _CLONE)
        if changed
        else _parameter(reader, function, variable, value, pieces)
        for variable, value, pieces in rows
    )
    fields: tuple[Field, ...] = ()
    if isinstance(result, StructType) and not result.is_named:
        fields = result.fields
    elif result is not None and result.kind is not Kind.INVALID:
        fields = (Field("", 0, result),)
    results = _results(fields, result, assignment)
    if changed:
        results = tuple(_refused(value.name, value.type, _CLONE) for value in results)
    return FunctionLocations(function.name, CallingConvention.SYSTEM_V, placed, results)


def system_v_signature_locations(signature: Signature, name: str) -> FunctionLocations:
    """Return the places of a function's values where a user gives its signature, not DWARF."""
    fields: list[Field] = []
    offset = 0
    for value in signature.results:
        offset = -(-offset // value.type.align) * value.type.align
        fields.append(Field(value.name, offset, value.type))
        offset += value.type.size
    align = struct_alignment(tuple(fields))
    size = -(-offset // align) * align
    result = StructType("results", Kind.STRUCT, size, align, tuple(fields)) if fields else None
    assignment = assign_system_v([value.type for value in signature.parameters], result)
    placed = tuple(
        PlacedValue(value.name, value.type, pieces)
        for value, pieces in zip(signature.parameters, assignment.parameters, strict=True)
    )
    results = _results(fields, result, assignment)
    return FunctionLocations(name, CallingConvention.SYSTEM_V, placed, results)


def _refused(name: str, value: GoType, problem: str) -> PlacedValue:
    return PlacedValue(name, value, None, problem=problem)


def _parameter(
    reader: DwarfReader,
    function: FunctionSignature,
    variable: Variable,
    value: GoType,
    pieces: tuple[Piece, ...],
) -> PlacedValue:
    shown = reader.entry_pieces(function, variable) or ()
    if value.size and not _agrees(shown, pieces):
        return _refused(variable.name, value, _CONTRADICTED)
    return PlacedValue("" if variable.name == "_" else variable.name, value, pieces)


def _agrees(shown: tuple[LocationPiece, ...], computed: tuple[Piece, ...]) -> bool:
    """Return whether nothing that DWARF shows of a value at the entry contradicts its places.

    Memory below the return address is the function's own: where the value will be put.
    """
    offset = 0
    for piece in shown:
        expected = max(
            (found for found in computed if found.offset <= offset), key=lambda found: found.offset
        )
        if piece.kind is PieceKind.REGISTER and piece.number != _dwarf_number(expected.place):
            return False
        on_stack = piece.kind is PieceKind.FRAME and piece.number >= 0
        skipped = offset - expected.offset
        at = Stack(piece.number + AMD64.pushed - skipped)
        if on_stack and at != expected.place:
            return False
        offset += piece.size or 0
    return True


def _dwarf_number(place: Place) -> int | None:
    if isinstance(place, Stack):
        return None
    if isinstance(place, FloatReg):
        return AMD64.dwarf_number(AMD64.float_registers[place.index])
    if place == CLOSURE_CONTEXT:
        return AMD64.dwarf_number(AMD64.closure_register)
    return AMD64.dwarf_number(AMD64.int_registers[place.index])


def _results(
    fields: Sequence[Field], result: GoType | None, assignment: SystemVAssignment
) -> tuple[PlacedValue, ...]:
    """Return the results, which are the fields of the function's return value."""
    if result is None:
        return ()
    numbered = tuple(
        Field(str(number), field.offset, field.type) for number, field in enumerate(fields)
    )
    whole = StructType("results", Kind.STRUCT, result.size, result.align, numbered)
    return tuple(
        PlacedValue(
            "" if field.name == _UNNAMED else field.name,
            field.type,
            assignment.result,
            within=StructField(whole, str(number), assignment.result_in_memory),
        )
        for number, field in enumerate(fields)
    )
