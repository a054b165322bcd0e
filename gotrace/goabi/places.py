"""Say where a function's values are: computed by the ABI, checked against DWARF where there is any.

The ABI alone decides, but for one gap in what DWARF tells: Go up to 1.21 leaves blank and unnamed
parameters out, and the receiver of wrappers, so that all that follows would be computed too low.
Entry locations show such gaps. They do not decide by themselves, since the compiler is known to
emit wrong ones: pieces twice or not at all, the spill slot of an unused parameter instead of its
register, the place of another parameter that holds the same value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gotrace.elf.dwarf import DwarfReader, FunctionSignature, Variable
from gotrace.elf.dwarf_location import LocationPiece, PieceKind
from gotrace.goabi.assign import (
    Assignment,
    CallingConvention,
    DictionaryPlace,
    FloatReg,
    IntReg,
    Piece,
    Place,
    Stack,
    assign,
    calling_convention,
    dictionary_place,
    takes_dictionary,
)
from gotrace.goabi.names import NameKind, parse_name
from gotrace.goabi.types import GoType, Kind, OpaqueType, Parameter, PointerType, basic_type

if TYPE_CHECKING:
    from gotrace.elf.buildinfo import GoVersion
    from gotrace.goabi.arch import Architecture
    from gotrace.goabi.dwarf_types import DwarfTypes

__all__ = ["CapturedValue", "FunctionPlaces", "PlacedValue", "entry_places", "function_places"]

#: DWARF register numbers of amd64 (System V ABI, AMD64 supplement, figure 3.36).
_AMD64_DWARF_REGISTERS = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *(f"r{number}" for number in range(8, 16)),
    "rip",
    *(f"xmm{number}" for number in range(16)),
)

#: The hidden dictionary is listed as a parameter of this name since Go 1.27.
_DICTIONARY_NAME = ".dict"

_SHIFTED = "unnamed parameters before it are missing from the debug information"


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedValue:
    """A parameter or result and its pieces; none for types without size.

    ``name`` is empty for blank and unnamed ones. ``pieces`` is None when the place cannot be told,
    for the reason in ``problem``. ``dictionary_index``: the entry of the function's dictionary that
    points to the type descriptor of the true type, where ``type`` is only its shape.
    """

    name: str
    type: GoType
    pieces: tuple[Piece, ...] | None
    dictionary_index: int | None = None
    problem: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CapturedValue:
    """A variable of an outer function, ``offset`` bytes into the closure object.

    ``by_reference``: a pointer to a value of the type is kept there, instead of the value.
    """

    name: str
    type: GoType
    offset: int
    by_reference: bool


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionPlaces:
    """All values of a function that can be had at its entry and at its RET instructions."""

    name: str
    convention: CallingConvention
    parameters: tuple[PlacedValue, ...]
    results: tuple[PlacedValue, ...]
    dictionary: Piece | None = None
    captured: tuple[CapturedValue, ...] = ()


def entry_places(
    pieces: Sequence[LocationPiece], architecture: Architecture
) -> tuple[Place | None, ...]:
    """Return where the pieces of a DWARF location are, None for missing ones.

    Only registers of the ABI's sequences count: others hold no argument at function entry.
    """
    places: list[Place | None] = []
    for piece in pieces:
        place: Place | None = None
        if piece.kind is PieceKind.FRAME:
            # The canonical frame address is the stack pointer before the call pushed its word.
            place = Stack(piece.number + architecture.pointer_size)
        elif piece.kind is PieceKind.REGISTER and piece.number < len(_AMD64_DWARF_REGISTERS):
            name = _AMD64_DWARF_REGISTERS[piece.number]
            if name in architecture.int_registers:
                place = IntReg(architecture.int_registers.index(name))
            elif name in architecture.float_registers:
                place = FloatReg(architecture.float_registers.index(name))
        places.append(place)
    return tuple(places)


def function_places(
    function: FunctionSignature,
    reader: DwarfReader,
    types: DwarfTypes,
    architecture: Architecture,
    go_version: GoVersion,
    *,
    is_assembly: bool = False,
) -> FunctionPlaces:
    """Return the places of a function's values; raise DwarfError when its DWARF is damaged."""
    name = parse_name(function.name)
    has_dictionary = takes_dictionary(name)
    parameters = [
        variable
        for variable in function.parameters
        if not (has_dictionary and variable.name == _DICTIONARY_NAME)
    ]
    solver = _Solver(
        [_typed(types, variable) for variable in parameters],
        [_typed(types, variable) for variable in function.results],
        architecture,
        calling_convention(go_version, is_assembly),
        dictionary_place(go_version) if has_dictionary else None,
        name.kind is NameKind.METHOD,
    )
    variables = [*parameters, *function.results]
    solver.close_gaps(
        [
            entry_places(reader.entry_pieces(function, variable) or (), architecture)
            for variable in variables
        ]
    )
    assignment = solver.assignment
    pieces = assignment.parameters + assignment.results
    placed = [
        _placed(types, variable, pieces[row], row in solver.unsure)
        for row, variable in enumerate(variables)
    ]
    dictionary = assignment.dictionary
    for variable, value in zip(parameters, placed, strict=False):
        if variable.name == _DICTIONARY_NAME and value.pieces:
            # A literal that is called where it stands takes what it captures as parameters.
            (dictionary,) = value.pieces
    return FunctionPlaces(
        function.name,
        solver.convention,
        tuple(v for v in placed[: len(parameters)] if v.name != _DICTIONARY_NAME),
        tuple(placed[len(parameters) :]),
        dictionary,
        tuple(_captured(types, variable) for variable in function.captured),
    )


def _typed(types: DwarfTypes, variable: Variable) -> GoType:
    parameter: Parameter = types.parameter(variable)
    return parameter.type


def _placed(
    types: DwarfTypes, variable: Variable, pieces: tuple[Piece, ...], unsure: bool
) -> PlacedValue:
    return PlacedValue(
        "" if variable.name.startswith("~") or variable.name == "_" else variable.name,
        _typed(types, variable),
        None if unsure else pieces,
        types.dictionary_index(variable),
        _SHIFTED if unsure else None,
    )


def _captured(types: DwarfTypes, variable: Variable) -> CapturedValue:
    kept = _typed(types, variable)
    by_reference = variable.name.startswith("&") and isinstance(kept, PointerType)
    value = kept.elem if by_reference and isinstance(kept, PointerType) else kept
    name = variable.name.removeprefix("&")
    return CapturedValue(name, value, variable.closure_offset or 0, by_reference)


class _Solver:
    """Compute places, with fillers for the parameters that DWARF is found not to list."""

    def __init__(
        self,
        parameters: list[GoType],
        results: list[GoType],
        architecture: Architecture,
        convention: CallingConvention,
        dictionary: DictionaryPlace | None,
        is_method: bool,
    ) -> None:
        self._parameters = parameters
        self._results = results
        self._architecture = architecture
        self.convention = convention
        self._dictionary = dictionary
        self._is_method = is_method
        self._fillers: list[tuple[int, GoType]] = []  # (row of the parameter behind, type)
        self.unsure: set[int] = set()
        self.assignment = self._assign([])

    def close_gaps(self, located: Sequence[tuple[Place | None, ...]]) -> None:
        """Put a filler wherever more places agree with it than without.

        ``located`` has the DWARF entry places of all parameters, then of all results.
        """
        unlocated: list[int] = []
        for row, places in enumerate(located):
            pieces = self._pieces(self.assignment)[row]
            usable = _usable(pieces, places)
            if not usable:
                unlocated.append(row)
                continue
            if not _agrees(pieces, usable):
                self._try_filler(row, pieces, usable[0], located, unlocated)
            unlocated = []

    def _try_filler(
        self,
        row: int,
        pieces: tuple[Piece, ...],
        place: Place,
        located: Sequence[tuple[Place | None, ...]],
        unlocated: list[int],
    ) -> None:
        fillers = [*self._fillers, *((row, type_) for type_ in _gap(pieces, place))]
        trial = self._assign(fillers)
        if self._agreeing(trial, located) > self._agreeing(self.assignment, located):
            self._fillers, self.assignment = fillers, trial
            # The gap may also be in front of these.
            self.unsure.update(unlocated)

    def _agreeing(self, assignment: Assignment, located: Sequence[tuple[Place | None, ...]]) -> int:
        rows = zip(self._pieces(assignment), located, strict=True)
        return sum(
            bool(usable) and _agrees(pieces, usable)
            for pieces, places in rows
            for usable in [_usable(pieces, places)]
        )

    @staticmethod
    def _pieces(assignment: Assignment) -> tuple[tuple[Piece, ...], ...]:
        return assignment.parameters + assignment.results

    def _assign(self, fillers: list[tuple[int, GoType]]) -> Assignment:
        types: list[GoType] = []
        real: list[int] = []
        for row, value in enumerate([*self._parameters, None]):
            types += [
                filler
                for before, filler in fillers
                if before == row or (value is None and before > row)
            ]
            if value is not None:
                real.append(len(types))
                types.append(value)
        whole = assign(
            types,
            self._results,
            self._architecture,
            self.convention,
            self._dictionary,
            is_method=self._is_method,
        )
        return dataclasses.replace(
            whole,
            parameters=tuple(whole.parameters[row] for row in real),
            spill_slots=tuple(whole.spill_slots[row] for row in real),
        )


def _usable(pieces: tuple[Piece, ...], places: tuple[Place | None, ...]) -> list[Place]:
    """Return the places that say something about where a value was passed.

    Memory says nothing about a value passed in registers: it is the spill slot, not yet filled.
    """
    if not pieces:
        return []
    known = [place for place in places if place is not None]
    in_memory = isinstance(pieces[0].place, Stack)
    return [place for place in known if in_memory or not isinstance(place, Stack)]


def _agrees(pieces: tuple[Piece, ...], places: list[Place]) -> bool:
    """Say whether all places are among those of a value's pieces."""
    return all(
        any(
            place == piece.place
            or (
                isinstance(place, Stack)
                and isinstance(piece.place, Stack)
                and 0 <= place.offset - piece.place.offset < piece.size
            )
            for piece in pieces
        )
        for place in places
    )


def _gap(pieces: tuple[Piece, ...], place: Place) -> list[GoType]:
    """Return what must have been passed before a value for it to begin at a place instead."""
    if isinstance(place, Stack):
        first = next((p.place.offset for p in pieces if isinstance(p.place, Stack)), place.offset)
        size = place.offset - first
        return [OpaqueType("", Kind.INVALID, size, 1)] if size > 0 else []
    kind = Kind.UINTPTR if isinstance(place, IntReg) else Kind.FLOAT64
    same = [piece.place.index for piece in pieces if isinstance(piece.place, type(place))]
    count = place.index - min(same, default=place.index)
    return [basic_type(kind)] * max(count, 0)
