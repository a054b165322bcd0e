# SPDX-License-Identifier: Apache-2.0
"""Where the arguments of an inlined call are at its site, if DWARF says so and the code agrees.

DWARF says where a variable is at each instruction. That is its value at that time, and the
compiler may compute a later value before the call begins. So a place is believed only if the code
shows where its value comes from: from one instruction, which is not of the call, or from what is
copied from there; and if DWARF gives the variable no other value that is not of the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from gotrace.abi.assign import (
    CLOSURE_CONTEXT,
    CallingConvention,
    IntReg,
    Piece,
    Stack,
    register_parts,
)
from gotrace.abi.assign import Place as ValuePlace
from gotrace.abi.function_values import FunctionValues
from gotrace.abi.locations import FunctionLocations, PlacedValue
from gotrace.architecture import AMD64
from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.elf.functions import FuncInfo, FunctionTable
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.symbols import parse_name
from gotrace.gotypes.types import GoType
from gotrace.sites.flow import ENTRY, Place, PlaceWrite, ValueFlow, ValueOrigin
from gotrace.sites.inlined import Code, InlinedSites
from gotrace.sites.sites import InlinedPlace

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader, InlinedSubroutine, Variable


class NoPlace(Enum):
    """Why an argument is not known."""

    AWAY = "optimised away"
    UNCONFIRMED = "DWARF is not confirmed here"
    NOT_READ = "in a register that is not read here"


#: A function literal: it has variables of the function around it, and DWARF does not say which.
_LITERAL = re.compile(r"\.func\d|-range\d")

#: A part of a variable: its offset, its size, and its place.
_Part = tuple[int, int, Place]


class InlinedParameters:
    """The parameters of the inlined calls of one file."""

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        self._table: FunctionTable = binary.functions
        self._codes: dict[int, _Function | None] = {}

    def of(self, name: str, place: InlinedPlace) -> FunctionLocations | None:
        """Return the parameters of a call at its site, None if DWARF does not describe the call.

        Raises DwarfError.
        """
        reader, types = self._binary.dwarf, self._binary.types
        if reader is None or types is None or place.site is None or place.row < 0:
            return None
        if place.row not in self._codes:
            function = self._table.function(place.row)
            code = InlinedSites(self._table).code_of(function)
            made = None if code is None else _Function(self._binary, function, code, reader)
            self._codes[place.row] = made
        inside = self._codes[place.row]
        call = None if inside is None else inside.subroutine(name, place.record)
        if inside is None or call is None:
            return None
        values = []
        variables = [
            (one, types.parameter(one).type)
            for one in call.variables
            if not one.is_result and not one.name.startswith(".")  # .dict
        ]
        is_kept = not _LITERAL.search(name) and inside.are_kept(place, variables)
        for variable, value_type in variables:
            pieces, problem = inside.pieces(place, variable, value_type)
            if pieces and not is_kept:
                pieces, problem = None, NoPlace.UNCONFIRMED.value
            is_blank = variable.name == "_" or variable.name.startswith("~")
            shown = "" if is_blank else variable.name
            values.append(PlacedValue(shown, value_type, pieces, problem))
        convention = CallingConvention.ABI_INTERNAL
        return FunctionLocations(name, convention, tuple(values), (), is_inlined=True)


class _Function:
    """A function's code and its description in DWARF."""

    def __init__(self, binary: Binary, function: FuncInfo, code: Code, reader: DwarfReader) -> None:
        self._table = binary.functions
        self._values = FunctionValues(binary)
        self._function = function
        self._code = code
        self._reader = reader
        self._package = parse_name(function.name).package
        self._flow = ValueFlow(code.graph, self._lowered, code.begins_with_stack_check)
        self._origins: dict[
            tuple[int, Place, int], tuple[ValueOrigin, Sequence[PlaceWrite]] | None
        ] = {}

    def _lowered(self, at: int) -> int | None:
        return self._table.stack_delta(self._function.row, self._function.entry + at)

    @cached_property
    def _subroutines(self) -> Sequence[InlinedSubroutine]:
        return self._reader.inlined(self._function.entry, self._package)

    @cached_property
    def _exactly(self) -> Mapping[int, Sequence[int]]:
        """Return the instructions of each call, without those of calls inlined in it."""
        found: dict[int, list[int]] = {}
        for at in sorted(self._code.graph.block_of):
            found.setdefault(self._code.tree.index_at(at), []).append(self._function.entry + at)
        return found

    def subroutine(self, name: str, record: int) -> InlinedSubroutine | None:
        """Return DWARF's entry of a record of the inline tree, None unless one alone fits."""
        around = self._table.callers_of(self._function.row, record)
        names = [name, *(frame.name for frame in around[:-1])]
        chain = list(zip(names, (frame.line for frame in around), strict=True))
        own = self._exactly.get(record, ())
        if not own:
            return None
        fitting = [one for one in self._subroutines if all(map(one.has, own)) and _fits(one, chain)]
        return fitting[0] if len(fitting) == 1 else None

    def are_kept(self, place: InlinedPlace, variables: Sequence[tuple[Variable, GoType]]) -> bool:
        """Return whether no parameter of a call can have the value of another one.

        If one is assigned to another, DWARF gives both the place of the value that is made last.
        So two parameters have the last one of those that are passed on, or a parameter has a
        value that the call makes.
        """
        assert place.site is not None
        entry = self._function.entry
        at, own = place.site.address - entry, frozenset(self._code.own[place.record])
        seen = set[ValueOrigin]()
        for variable, value_type in variables:
            mine = set[ValueOrigin]()
            for start, end, pieces in self._reader.places(entry, variable, self._package):
                for held, size in _words(pieces or (), value_type) if start < end else ():
                    found = self._origin(start - entry, held, size)
                    if found is None or self._is_later(found[0], at, own):
                        return False
                    mine.add(found[0])
            if mine & seen:
                return False
            seen |= mine
        return True

    def pieces(
        self, place: InlinedPlace, variable: Variable, value_type: GoType
    ) -> tuple[tuple[Piece, ...] | None, str | None]:
        """Return where a variable is at a site, or why that is not certain."""
        if not value_type.size:
            return (), None
        entry = self._function.entry
        found = self._reader.places(entry, variable, self._package)
        if not found:
            has_one = variable.location is not None and bool(variable.location.expression)
            return None, (NoPlace.UNCONFIRMED if has_one else NoPlace.AWAY).value
        ranges = [
            (start - entry, end - entry, parts)
            for start, end, pieces in found
            if (parts := _parts(pieces, value_type)) and start < end
        ]
        if not ranges:
            return None, NoPlace.AWAY.value
        assert place.site is not None
        at, own = place.site.address - entry, frozenset(self._code.own[place.record])
        placed = []
        for number, (start, size, _) in enumerate(ranges[0][2]):
            parts = [(first, end, of[number][2]) for first, end, of in ranges]
            held = self._held(at, parts, size, own, (value_type, start))
            if isinstance(held, NoPlace):
                return None, held.value
            placed.append(Piece(start, size, held))
        return tuple(placed), None

    def _origin(
        self, at: int, held: Place, size: int
    ) -> tuple[ValueOrigin, Sequence[PlaceWrite]] | None:
        key = at, held, size
        if key not in self._origins:
            known = at in self._code.graph.block_of
            self._origins[key] = self._flow.origin(at, held, size) if known else None
        return self._origins[key]

    def _held(
        self,
        at: int,
        parts: Sequence[tuple[int, int, Place]],
        size: int,
        own: frozenset[int],
        part: tuple[GoType, int],
    ) -> ValuePlace | NoPlace:
        """Return where a part of a variable is at a site as it was passed."""
        passed = set[ValueOrigin]()
        for start, end, held in parts:
            if start not in self._code.graph.block_of:
                continue
            found = self._origin(start, held, size)
            if found is None:
                return NoPlace.UNCONFIRMED
            if self._is_later(found[0], at, own):
                continue
            if any(step.place == held and start <= step.at < end for step in found[1]):
                return NoPlace.UNCONFIRMED  # the code writes what DWARF says to stay
            passed.add(found[0])
        if len(passed) != 1:
            return NoPlace.UNCONFIRMED if passed else NoPlace.AWAY
        (origin,) = passed
        if not self._is_certain(origin, part) or not any(
            self._flow.reads(one, origin, size) for one in own
        ):
            return NoPlace.UNCONFIRMED
        is_there = False
        # DWARF may know of one place alone, and the code of others.
        registers = (*AMD64.int_registers, AMD64.closure_register)
        for one in dict.fromkeys((*(held for _, _, held in parts), *registers)):
            now = self._origin(at, one, size)
            if now is not None and now[0] == origin:
                is_there = True
                if (where := _value_place(one)) is not None:
                    return where
        return NoPlace.NOT_READ if is_there else NoPlace.AWAY

    def _is_later(self, origin: ValueOrigin, at: int, own: frozenset[int]) -> bool:
        """Return whether a value is made by the call itself, or after its site."""
        if origin.at in own and not origin.merges:
            return True
        if origin.at == ENTRY:
            return False
        graph = self._code.graph
        here, there = graph.block_of[at], graph.block_of[origin.at]
        return origin.at >= at if here == there else graph.dominates(here, there)

    def _is_certain(self, origin: ValueOrigin, part: tuple[GoType, int]) -> bool:
        """Return whether a value is one that only the caller can have.

        What the function computes or reads, the call may, too, and the compiler does it once: if
        the call assigns that to a parameter, it seems to have been passed. The compiler may have
        left the name of a parameter to another value: so the function has to be given the value as
        one of the parameter's type.
        """
        graph = self._code.graph
        if origin.merges:
            return graph.is_loop_head(origin.at)
        if origin.at == ENTRY:
            return (*part, origin.place) in self._given
        return self._flow.is_call(origin.at)

    @cached_property
    def _given(self) -> Collection[tuple[GoType, int, Place]]:
        """Return the places of the function's own parameters, each with its type and offset."""
        return [
            (value.type, piece.offset, _place_of(piece))
            for value in self._values.of(self._function, None).parameters
            for piece in value.pieces or ()
        ]


def _fits(call: InlinedSubroutine, chain: Sequence[tuple[str, int]]) -> bool:
    """Return whether names and lines of a call, and of those around it, are those of a record."""
    one: InlinedSubroutine | None = call
    for name, line in chain:
        if one is None or one.line != line:
            return False
        if one.name.partition("[")[0] != name.partition("[")[0]:  # instances of generics
            return False
        one = one.parent
    return one is None


def _parts(pieces: Sequence[LocationPiece] | None, value_type: GoType) -> Sequence[_Part] | None:
    """Return the parts of a value, None if some are nowhere, or not as the type has them."""
    expected = register_parts(value_type)
    if not pieces or not expected:
        return None
    if len(pieces) != len(expected):
        return None  # parts that are nowhere are left out, and what is left is not said
    found = []
    for piece, part in zip(pieces, expected, strict=True):
        if piece.kind is PieceKind.MISSING or piece.size not in (None, part.size):
            return None
        held = _held_in(piece)
        if held is None or (isinstance(held, str) and held.startswith("xmm") is not part.is_float):
            return None
        found.append((part.offset, part.size, held))
    return found


def _held_in(piece: LocationPiece) -> Place | None:
    """Return where a part of a variable is, None if it is nowhere."""
    if piece.kind is PieceKind.MISSING:
        return None
    if piece.kind is PieceKind.REGISTER:
        return AMD64.dwarf_registers.get(piece.number, "")
    return piece.number + AMD64.pushed


def _words(pieces: Sequence[LocationPiece], value_type: GoType) -> Iterator[tuple[Place, int]]:
    """Yield the places of a value's words, with the size of each."""
    for piece in pieces:
        held = _held_in(piece)
        if isinstance(held, int):
            size = value_type.size if piece.size is None else piece.size
            yield from ((held + at, min(8, size - at)) for at in range(0, size, 8))
        elif held is not None:
            yield held, piece.size or min(8, value_type.size)


def _value_place(held: Place) -> ValuePlace | None:
    """Return the place as the plan of a call has it, None if probes do not read it."""
    if isinstance(held, int):
        return Stack(held)
    if held == AMD64.closure_register:
        return CLOSURE_CONTEXT
    return IntReg(AMD64.int_registers.index(held)) if held in AMD64.int_registers else None


def _place_of(piece: Piece) -> Place:
    if isinstance(piece.place, IntReg):
        return AMD64.int_registers[piece.place.index]
    return piece.place.offset if isinstance(piece.place, Stack) else ""
