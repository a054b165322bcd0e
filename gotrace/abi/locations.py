# SPDX-License-Identifier: Apache-2.0
"""Say where a function's values are when it is entered and when it returns.

The ABI decides; the compiler's own entry locations are asked only where DWARF does not list all
parameters (see gaps.py).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gotrace.abi.assign import (
    Assignment,
    CallingConvention,
    DictionaryPlace,
    Piece,
    assign,
    calling_convention,
    dictionary_place,
    takes_dictionary,
)
from gotrace.abi.dwarf_gaps import (
    Observed,
    Reconstruction,
    close_gaps,
    observed,
    perhaps_out_of_order,
)
from gotrace.architecture import ARM64, Architecture
from gotrace.elf.buildinfo import GoVersion
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.releases import ALL_PARAMETERS_LISTED
from gotrace.gotypes.symbols import NameKind, parse_name
from gotrace.gotypes.types import (
    GoType,
    Kind,
    PointerType,
    Signature,
    StructType,
    basic_type,
)
from gotrace.records import dataclass, replace

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature, Variable

#: The hidden dictionary is listed as a parameter of this name since Go 1.27.
_DICTIONARY_NAME = ".dict"
#: The compiler's name for a result without a name.
_RESULT_NUMBER = re.compile(r"~r[0-9]+")

_SHIFTED = "unnamed parameters before it may be missing from the debug information"


@dataclass(frozen=True, slots=True)
class StructField:
    """The struct that a value is a field of, whose pieces are known instead of its own.

    ``in_memory``: the pieces hold the struct's address.
    """

    struct: StructType
    field: str
    in_memory: bool


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A parameter or result and its pieces; none for types without size.

    ``name`` is empty for blank and unnamed ones. ``pieces`` is None when the place is not known,
    for the reason in ``problem``. ``dictionary_word``: the word of the call's dictionary that has
    the type by which the value's shape is known to callers.
    """

    name: str
    type: GoType
    pieces: tuple[Piece, ...] | None
    problem: str | None = None
    within: StructField | None = None
    dictionary_word: int | None = None


@dataclass(frozen=True, slots=True)
class CapturedValue:
    """A variable of an outer function, ``offset`` bytes into the closure object.

    ``by_reference``: a pointer to a value of the type is kept there, instead of the value.
    """

    name: str
    type: GoType
    offset: int
    by_reference: bool


class SignatureSource(enum.Enum):
    """The sources of a function's parameters and results."""

    DWARF = "DWARF"
    METHOD_TABLE = "method table"
    SHAPE = "shape"
    USER = "typed"
    NOTHING = "none"


@dataclass(frozen=True, slots=True)
class FunctionLocations:
    """All values of a function that can be had at its entry and at its RET instructions.

    ``size``: bytes that they take of the stack, None where that was not computed. ``source``: if
    it is NOTHING, these are the words where parameters would be, if it is SHAPE, where they are.
    ``parameters_ordered`` and ``results_ordered``: they are in the order of the source.
    ``dictionary`` is the hidden one of a generic function, or of a closure in one, whose values
    have types in it. ``is_inlined``: they are those of a call that is inlined.
    """

    name: str
    convention: CallingConvention
    parameters: tuple[PlacedValue, ...]
    results: tuple[PlacedValue, ...]
    captured: tuple[CapturedValue, ...] = ()
    size: int | None = None
    source: SignatureSource = SignatureSource.DWARF
    parameters_ordered: bool = True
    results_ordered: bool = True
    dictionary: PlacedValue | CapturedValue | None = None
    is_inlined: bool = False

    @property
    def is_bare(self) -> bool:
        """Return whether no types are known."""
        return self.source in (SignatureSource.NOTHING, SignatureSource.SHAPE)


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """The facts that decide on a function's calling convention and on its stack's size for values.

    ``arguments_size``: bytes of stack for its parameters and results, spill slots included, as the
    function table says; None where it does not.
    """

    architecture: Architecture
    go_version: GoVersion
    is_assembly: bool = False
    arguments_size: int | None = None


def function_locations(
    function: FunctionSignature,
    reader: DwarfReader,
    types: DwarfTypes,
    code: FunctionCode,
) -> FunctionLocations:
    """Return the places of a function's values; raise DwarfError when its DWARF is damaged."""
    name = parse_name(function.name)
    go_version = code.go_version
    has_dictionary = takes_dictionary(name)
    parameters = [
        variable
        for variable in function.parameters
        if not (has_dictionary and variable.name == _DICTIONARY_NAME)
    ]
    results, results_ordered = function.results, True
    in_order = go_version.release >= code.architecture.register_abi
    if not in_order:
        results, results_ordered = _in_order(results, types)
    variables = [*parameters, *results]
    row_types = [types.parameter(variable).type for variable in variables]
    convention = calling_convention(go_version, code.is_assembly, code.architecture)
    place = dictionary_place(go_version) if has_dictionary else None

    def assigner(fillers: Sequence[tuple[int, GoType]]) -> Assignment:
        taken, given_back = row_types[: len(parameters)], row_types[len(parameters) :]
        is_method = name.kind is NameKind.METHOD
        return _assign_with(
            fillers, taken, given_back, code.architecture, convention, place, is_method=is_method
        )

    closed = Reconstruction(assigner(()), frozenset())
    evidence: list[Observed] = []
    if go_version.release < ALL_PARAMETERS_LISTED:
        evidence = [
            _evidence(reader, function, variable, row_type, code.architecture)
            for variable, row_type in zip(variables, row_types, strict=True)
        ]
        in_registers = convention is CallingConvention.ABI_INTERNAL
        closed = close_gaps(assigner, evidence, code.arguments_size, in_registers=in_registers)
    assignment, unsure = closed.assignment, closed.unsure
    if not in_order and code.architecture is ARM64:
        unsure |= perhaps_out_of_order(assignment, evidence, row_types)
    pieces = assignment.parameters + assignment.results
    placed = [
        _placed(types, variable, pieces[row], row in unsure)
        for row, variable in enumerate(variables)
    ]
    captured = [_captured(types, variable) for variable in function.captured]
    return FunctionLocations(
        function.name,
        convention,
        tuple(v for v in placed[: len(parameters)] if v.name != _DICTIONARY_NAME),
        tuple(placed[len(parameters) :]),
        tuple(value for value in captured if value.name != _DICTIONARY_NAME),
        parameters_ordered=in_order or _is_ordered(parameters, types),
        results_ordered=results_ordered,
        dictionary=_dictionary(assignment.dictionary, captured, placed),
    )


def _dictionary(
    piece: Piece | None, captured: Iterable[CapturedValue], placed: Iterable[PlacedValue]
) -> PlacedValue | CapturedValue | None:
    """Return the dictionary, if values have types in it: a parameter, or captured by a closure."""
    if all(value.dictionary_word is None for value in placed):
        return None
    word = basic_type(Kind.UINTPTR)
    if piece is not None:
        return PlacedValue(_DICTIONARY_NAME, word, (piece,))
    found = (value for value in captured if value.name == _DICTIONARY_NAME)
    return next((replace(value, type=word) for value in found), None)


def _is_ordered(variables: Sequence[Variable], types: DwarfTypes) -> bool:
    """Return whether variables that the compiler lists by their offset are in their own order.

    Those of no size have the offset of the next one, and may come before or after it (Go 1.15).
    """
    return len(variables) < 2 or all(types.parameter(variable).type.size for variable in variables)


def _in_order(results: Sequence[Variable], types: DwarfTypes) -> tuple[tuple[Variable, ...], bool]:
    """Return results in the order of the source, and whether that is certain.

    The compiler's own names have the number: ``~r2``.
    """
    numbers = [_RESULT_NUMBER.fullmatch(result.name) for result in results]
    if None in numbers:
        return tuple(results), _is_ordered(results, types)
    return tuple(sorted(results, key=lambda result: int(result.name[2:]))), True


def signature_locations(
    signature: Signature,
    name: str,
    code: FunctionCode,
    source: SignatureSource = SignatureSource.USER,
) -> FunctionLocations:
    """Return the places of a function's values where a user gives the signature, not DWARF.

    ``name`` is the function's symbol, with the shapes of generic functions spelled out: these take
    a dictionary. Methods of method tables never do, since interfaces have none to give.
    """
    parsed = parse_name(name)
    has_dictionary = source is SignatureSource.USER and takes_dictionary(parsed)
    go_version = code.go_version
    convention = calling_convention(go_version, code.is_assembly, code.architecture)
    assignment = assign(
        [parameter.type for parameter in signature.parameters],
        [result.type for result in signature.results],
        code.architecture,
        convention,
        dictionary_place(go_version) if has_dictionary else None,
        is_method=parsed.kind is NameKind.METHOD,
    )
    parameters = zip(signature.parameters, assignment.parameters, strict=True)
    results = zip(signature.results, assignment.results, strict=True)
    return FunctionLocations(
        name,
        convention,
        tuple(PlacedValue(value.name, value.type, pieces) for value, pieces in parameters),
        tuple(PlacedValue(value.name, value.type, pieces) for value, pieces in results),
        size=assignment.size,
        source=source,
    )


def _evidence(
    reader: DwarfReader,
    function: FunctionSignature,
    variable: Variable,
    value: GoType,
    architecture: Architecture,
) -> Observed:
    pieces = reader.entry_pieces(function, variable) or ()
    from_list = variable.location is not None and variable.location.list_offset is not None
    return observed(pieces, value, architecture, from_list=from_list)


def _assign_with(
    fillers: Sequence[tuple[int, GoType]],
    parameters: Sequence[GoType],
    results: Sequence[GoType],
    architecture: Architecture,
    convention: CallingConvention,
    dictionary: DictionaryPlace | None,
    *,
    is_method: bool,
) -> Assignment:
    """Assign parameters with fillers between them; the fillers' own places are left out."""
    types: list[GoType] = []
    listed: list[int] = []
    for row, value in enumerate(parameters):
        types += [filler for before, filler in fillers if before == row]
        listed.append(len(types))
        types.append(value)
    types += [filler for before, filler in fillers if before >= len(parameters)]
    whole = assign(types, results, architecture, convention, dictionary, is_method=is_method)
    return replace(
        whole,
        parameters=tuple(whole.parameters[row] for row in listed),
        spill_slots=tuple(whole.spill_slots[row] for row in listed),
    )


def _placed(
    types: DwarfTypes, variable: Variable, pieces: tuple[Piece, ...], unsure: bool
) -> PlacedValue:
    return PlacedValue(
        "" if variable.name.startswith("~") or variable.name == "_" else variable.name,
        types.parameter(variable).type,
        None if unsure else pieces,
        _SHIFTED if unsure else None,
        dictionary_word=types.dictionary_word(variable),
    )


def _captured(types: DwarfTypes, variable: Variable) -> CapturedValue:
    kept = types.parameter(variable).type
    by_reference = variable.name.startswith("&") and isinstance(kept, PointerType)
    value = kept.elem if by_reference and isinstance(kept, PointerType) else kept
    name = variable.name.removeprefix("&")
    return CapturedValue(name, value, variable.closure_offset or 0, by_reference)
