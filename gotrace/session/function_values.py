"""Find out which values a function takes and gives, and where they are when its probes are hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property

from gotrace.abi.amd64 import AMD64
from gotrace.abi.assign import (
    CLOSURE_CONTEXT,
    CallingConvention,
    IntReg,
    Piece,
    Place,
    Stack,
    calling_convention,
)
from gotrace.abi.gccgo.locations import gccgo_places, system_v_signature_places
from gotrace.abi.gccgo.types import GccgoTypes
from gotrace.abi.locations import FunctionPlaces, PlacedValue, function_places, signature_places
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.dwarf import DwarfReader
from gotrace.elf.dwarf_die import DwarfError
from gotrace.elf.functions import Function, Origin
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.from_rtype import Descriptors
from gotrace.gotypes.from_text import SignatureError, parse_signature
from gotrace.gotypes.rtype_table import DescriptorError
from gotrace.gotypes.types import GoType, Kind, basic_type
from gotrace.session.plan import BinaryPlan

__all__ = ["FunctionValues"]

_WORD = basic_type(Kind.UINTPTR)
#: Where C functions, gccgo's among them, take their first words (System V ABI, section 3.2.3).
_C_PARAMETERS = {
    "rdi": IntReg(3),
    "rsi": IntReg(4),
    "rdx": CLOSURE_CONTEXT,
    "rcx": IntReg(2),
    "r8": IntReg(5),
    "r9": IntReg(6),
}
_C_RESULTS = {"rax": IntReg(0), "rdx": CLOSURE_CONTEXT}
_STACK_WORDS = 6
_RESULT_WORDS = 4


class FunctionValues:
    """Give the values of one file's functions."""

    def __init__(self, binary: BinaryPlan) -> None:
        """Open the file's debugging information, if it has some that can be read.

        ``problem`` says what is wrong with it; ``without_types`` collects the functions of which
        neither it nor the user said anything.
        """
        self._table = binary.table
        self.problem: str | None = None
        self.without_types: list[str] = []
        self.reader: DwarfReader | None = None
        try:
            self.reader = DwarfReader.open(binary.binary.image)
        except DwarfError as error:
            self.problem = str(error)
        self.types = DwarfTypes(self.reader) if self.reader else None
        version = binary.table.go_version
        self._version = version or GoVersion(1, 21, 0, "go1.21")

    def of(self, function: Function, signature: str | None) -> FunctionPlaces:
        """Return a function's values: as the user says, as DWARF says, else bare words.

        Bare words are named after their registers, or ``8(SP)`` and so on after their place on the
        stack. Raises SignatureError.
        """
        is_assembly = function.origin is Origin.PCLNTAB and self._table.is_assembly(function.row)
        if signature is not None:
            return self._as_given(function, signature, is_assembly)
        if function.origin is Origin.PCLNTAB and self.reader and self.types:
            try:
                known = self.reader.function(function.entry)
                if known is not None:
                    return function_places(
                        known,
                        self.reader,
                        self.types,
                        AMD64,
                        self._version,
                        is_assembly=is_assembly,
                        size=self._table.arguments_size(function.row),
                    )
            except DwarfError as error:
                self.problem = str(error)
        return self._of_gccgo(function) or self._bare_words(function, is_assembly)

    def _of_gccgo(self, function: Function) -> FunctionPlaces | None:
        """Return the values of a function that gccgo has compiled, None for all others."""
        if function.origin is not Origin.SYMTAB or self.reader is None:
            return None
        try:
            known = self.reader.function(function.entry)
            if known is None or not self.reader.is_gccgo(known):
                return None
            return gccgo_places(known, function.name, self.reader, self._gccgo_types)
        except DwarfError as error:
            self.problem = str(error)
            return None

    @cached_property
    def _gccgo_types(self) -> GccgoTypes:
        assert self.reader is not None
        return GccgoTypes(self.reader)

    def _as_given(self, function: Function, signature: str, is_assembly: bool) -> FunctionPlaces:
        """Return the places by a user's signature, if the function can have that.

        The compiler records how much stack a function's arguments and results take, with spill
        slots of what is in registers. In assembly it is what the author says.
        """
        parsed = parse_signature(signature, self._lookup)
        if function.origin is Origin.SYMTAB:
            return system_v_signature_places(parsed, function.name)
        places = signature_places(
            parsed, function.name, AMD64, self._version, is_assembly=is_assembly
        )
        own = None if is_assembly else self._table.arguments_size(function.row)
        if self._lookup is not None and own not in (None, places.size):
            raise SignatureError(
                f"signature {signature!r} is not that of {function.name}, whose arguments and"
                f" results take {own} bytes of stack, not {places.size}: look at the source of the"
                " program's version; the receiver of a (*T) method is not written"
            )
        return places

    @cached_property
    def _lookup(self) -> Callable[[str], Sequence[GoType]] | None:
        """Give what finds declared types: in DWARF, then among the runtime's own descriptions."""
        try:
            descriptors = Descriptors.open(self._table.image, self._table.go_version)
        except DescriptorError as error:
            self.problem = str(error)
            descriptors = None
        types = self.types
        if types is None and descriptors is None:
            return None

        def lookup(name: str) -> Sequence[GoType]:
            found = types.named(name) if types else None
            if found is not None:
                return (found,)
            return descriptors.named(name) if descriptors else ()

        return cache(lookup)

    def _bare_words(self, function: Function, is_assembly: bool) -> FunctionPlaces:
        self.without_types.append(function.name)
        convention = calling_convention(self._version, is_assembly)
        if function.origin is Origin.SYMTAB:
            return _words(function.name, convention, _C_PARAMETERS, _C_RESULTS)
        if convention is CallingConvention.ABI0:
            slots: dict[str, Place] = {
                f"{8 * word}(SP)": Stack(8 * word) for word in range(1, _STACK_WORDS + 1)
            }
            return _words(function.name, convention, slots, {})
        registers: dict[str, Place] = {
            name: IntReg(index) for index, name in enumerate(AMD64.int_registers)
        }
        results = dict(list(registers.items())[:_RESULT_WORDS])
        return _words(function.name, convention, registers, results)


def _words(
    name: str,
    convention: CallingConvention,
    parameters: dict[str, Place] | dict[str, IntReg],
    results: dict[str, Place] | dict[str, IntReg],
) -> FunctionPlaces:
    return FunctionPlaces(name, convention, _placed(parameters), _placed(results))


def _placed(places: dict[str, Place] | dict[str, IntReg]) -> tuple[PlacedValue, ...]:
    return tuple(
        PlacedValue(name.upper(), _WORD, (Piece(0, 8, place),)) for name, place in places.items()
    )
