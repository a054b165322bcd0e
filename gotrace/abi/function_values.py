# SPDX-License-Identifier: Apache-2.0
"""Find out which values a function takes and gives, and where they are when its probes are hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from gotrace.abi.assign import (
    CLOSURE_CONTEXT,
    CallingConvention,
    IntReg,
    Piece,
    Place,
    Stack,
    calling_convention,
    takes_dictionary,
)
from gotrace.abi.gccgo.locations import gccgo_locations, system_v_signature_locations
from gotrace.abi.gccgo.types import GccgoTypes
from gotrace.abi.growth import SavedArgument, saved_arguments
from gotrace.abi.locations import (
    FunctionCode,
    FunctionLocations,
    PlacedValue,
    SignatureSource,
    function_locations,
    signature_locations,
)
from gotrace.abi.shapes import ShapeError, described, saved_as, shaped_parameters
from gotrace.architecture import Architecture
from gotrace.elf import ElfError
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.elf.pclntab.arginfo import Shape
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.from_methods import MethodTables, is_same, spelled
from gotrace.gotypes.from_text import SignatureError, parse_signature, parse_type
from gotrace.gotypes.releases import SHAPES_LISTED
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.symbols import NameKind, parse_name
from gotrace.gotypes.types import GoType, Kind, Signature, basic_type
from gotrace.records import replace

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import FunctionSignature

_WORD = basic_type(Kind.UINTPTR)
_STACK_WORDS = 6
_RESULT_WORDS = 4


class FunctionValues:
    """The values of one file's functions, and where they are."""

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        self._damage: str | None = None
        #: Addresses of functions at which a separate debug file has none.
        self._absent: set[int] = set()
        #: Parameters by shapes, registers and names that matter: many functions have the same.
        self._by_shape: dict[
            tuple[tuple[Shape, ...], tuple[SavedArgument, ...], str], tuple[PlacedValue, ...]
        ] = {}
        self._version = binary.go_version or GoVersion(1, 21, 0, "go1.21")

    @property
    def problem(self) -> str | None:
        """Return the fault of the debugging information or type descriptors, None without one."""
        return self._damage or self._binary.dwarf_problem or self._binary.rtypes_problem

    def of(
        self, function: FuncInfo, signature: str | None, *, is_recipe: bool = False
    ) -> FunctionLocations:
        """Return a function's values: as the user, DWARF or a method table says, else as words.

        Words are by the shape that the program describes, or else bare. Bare words are named after
        their registers, or ``8(SP)`` and so on after their place on the stack. The signature of a
        recipe may write another type of the same size for one that the recipe does not use. Raises
        SignatureError.
        """
        code = self._code(function)
        if signature is not None:
            return self._as_given(function, signature, code, is_recipe)
        found = None
        try:
            found = self._as_described(function, code)
        except DwarfError as error:
            self._damage = str(error)
        found = found or self._as_in_tables(function, code)
        return found or self._in_words(function, code)

    def _code(self, function: FuncInfo) -> FunctionCode:
        table = self._binary.functions
        is_go = function.origin is Origin.PCLNTAB
        return FunctionCode(
            self._binary.image.arch,
            self._version,
            is_go and table.is_assembly(function.row),
            table.arguments_size(function.row) if is_go else None,
        )

    def source(self, function: FuncInfo) -> SignatureSource:
        """Return the source of a function's signature."""
        is_go = function.origin is Origin.PCLNTAB
        try:
            reader = self._binary.dwarf
            has = reader is not None and reader.has_function(function.entry)
            if has and (not self._is_apart or self._known(function) is not None):
                return SignatureSource.DWARF
            if is_go and self._methods and self._methods.has(function.name, function.entry):
                return SignatureSource.METHOD_TABLE
        except (DwarfError, RtypeError) as error:
            self._damage = str(error)
        has_shape = self._shaped_if_known(function, self._code(function)) is not None
        return SignatureSource.SHAPE if has_shape else SignatureSource.NOTHING

    def why_bare(self, function: FuncInfo) -> str:
        """Return why not even the shape of a function's arguments is known."""
        try:
            self._shaped(function, self._code(function))
        except ShapeError as error:
            return str(error)
        return "nothing else in the program does"

    def why_unknown(self, function: FuncInfo) -> str:
        """Return why neither a separate debug file nor a method table describes a function."""
        if function.entry in self._absent:
            return f"{self._binary.debug_image.display} has no function at its address"
        name = parse_name(function.name)
        if function.origin is Origin.SYMTAB or self._methods is None:
            return "nothing else in the program does"
        if takes_dictionary(name):
            return "code that instances of a generic type share is in no method table"
        if name.kind is not NameKind.METHOD:
            return "only methods are in method tables"
        return "its type's method table leaves it out, as no interface needs it"

    def type(self, text: str) -> GoType:
        """Return the type that a user names as in a signature. Raises SignatureError."""
        return parse_type(text, self._lookup)

    def _as_described(self, function: FuncInfo, code: FunctionCode) -> FunctionLocations | None:
        """Return the values that DWARF describes, None where it does not know the function."""
        reader, types = self._binary.dwarf, self._binary.types
        known = self._known(function)
        if reader is None or types is None or known is None:
            return None
        if function.origin is Origin.PCLNTAB:
            return function_locations(known, reader, types, code)
        if not (reader.is_gccgo(known) and code.architecture.knows_gccgo):
            return None
        return gccgo_locations(known, function.name, reader, self._gccgo_types)

    @property
    def _is_apart(self) -> bool:
        """Return whether the debugging information is in a file of its own."""
        return self._binary.debug_image is not self._binary.image

    def _known(self, function: FuncInfo) -> FunctionSignature | None:
        """Return DWARF's entry of a function, None without one.

        A separate debug file that names another function at the address is of another build: the
        linker writes one name to DWARF and to the pclntab, where instances are ``[...]``.
        """
        reader = self._binary.dwarf
        if reader is None:
            return None
        known = reader.function(function.entry, parse_name(function.name).package)
        if not self._is_apart:
            return known
        if known is None:
            self._absent.add(function.entry)
        elif function.origin is Origin.PCLNTAB and _plain(known.name) != _plain(function.name):
            self._damage = (
                f"{self._binary.debug_image.display} is of another build: it has {known.name} at"
                f" the address of {function.name}"
            )
            return None
        return known

    @cached_property
    def _methods(self) -> MethodTables | None:
        types, module = self._binary.rtypes, self._binary.functions.module
        return MethodTables(types, module.text) if types and module else None

    def _in_tables(self, function: FuncInfo) -> Signature | None:
        """Return the signature that a method table has, None for functions in none."""
        if self._methods is None or function.origin is not Origin.PCLNTAB:
            return None
        try:
            return self._methods.signature(function.name, function.entry)
        except RtypeError as error:
            self._damage = str(error)
            return None

    def _as_in_tables(self, function: FuncInfo, code: FunctionCode) -> FunctionLocations | None:
        """Return the values by a method table, None if that knows none or the code none of it.

        The compiler records how much stack a function's values take.
        """
        known = self._in_tables(function)
        if known is None:
            return None
        places = signature_locations(known, function.name, code, SignatureSource.METHOD_TABLE)
        return places if code.arguments_size in (None, places.size) else None

    @cached_property
    def _gccgo_types(self) -> GccgoTypes:
        assert self._binary.dwarf is not None
        return GccgoTypes(self._binary.dwarf)

    def _as_given(
        self, function: FuncInfo, signature: str, code: FunctionCode, is_recipe: bool
    ) -> FunctionLocations:
        """Return the places by a user's signature, if the function can have that.

        The compiler records how much stack a function's arguments and results take, with spill
        slots of what is in registers. In assembly it is what the author says. If there is no
        DWARF, a method table says more: the types; or the code which registers it saves.
        """
        parsed = parse_signature(signature, self._lookup)
        known = None if is_recipe or self._binary.dwarf else self._in_tables(function)
        if known is not None and not is_same(parsed, known):
            parsed = parse_signature(signature, self._lookup, has_value_receiver=True)
            if not is_same(parsed, known):
                raise SignatureError(
                    f"signature {signature!r} is not that of {function.name}, which the program"
                    f" describes: {spelled(known)}"
                )
        if function.origin is Origin.SYMTAB:
            if not code.architecture.knows_gccgo:
                raise SignatureError(
                    f"{function.name} is no function of Go's compiler: how it takes its values on"
                    f" {code.architecture.name} is not known"
                )
            return system_v_signature_locations(parsed, function.name)
        places = signature_locations(parsed, function.name, code)
        own = None if code.is_assembly else code.arguments_size
        saved = None if is_recipe or self._binary.dwarf else self._saved(function, code)
        if self._lookup is None or (own in (None, places.size) and saved_as(places, saved)):
            return places
        written = parse_signature(signature, self._lookup, has_value_receiver=True)
        if written != parsed:
            alike = signature_locations(written, function.name, code)
            if alike.size == own and saved_as(alike, saved):
                return alike
        if own in (None, places.size) and saved is not None:
            raise SignatureError(
                f"signature {signature!r} is not that of {function.name}, whose arguments are in"
                f" other registers, or of other sizes: {described(saved, code.architecture)}"
            )
        if signature.endswith("()"):
            raise SignatureError(
                f"{function.name} has arguments or results: type it without (), or its signature"
            )
        raise SignatureError(
            f"signature {signature!r} is not that of {function.name}, whose arguments and"
            f" results take {own} bytes of stack, not {places.size}: look at the source of the"
            f" program's version; {_receiver_advice(function.name, self._lookup)}"
        )

    @cached_property
    def _lookup(self) -> Callable[[str], Sequence[GoType]] | None:
        """Return a function that finds declared types: in DWARF, then in type descriptors."""
        types, descriptors = self._binary.types, self._binary.rtypes
        if types is None and descriptors is None:
            return None

        def lookup(name: str) -> Sequence[GoType]:
            found = types.named(name) if types else None
            if found is not None:
                return (found,)
            return descriptors.named(name) if descriptors else ()

        return cache(lookup)

    def _in_words(self, function: FuncInfo, code: FunctionCode) -> FunctionLocations:
        """Return the values as words: parameters by their shape if that is known, else bare."""
        bare = self._bare_words(function, code)
        shaped = self._shaped_if_known(function, code)
        if shaped is None:
            return bare
        return replace(bare, parameters=shaped, source=SignatureSource.SHAPE)

    def _shaped_if_known(
        self, function: FuncInfo, code: FunctionCode
    ) -> tuple[PlacedValue, ...] | None:
        """Return a function's parameters by their shape, None if that is not known."""
        try:
            return self._shaped(function, code)
        except ShapeError:
            return None
        except ElfError as error:
            self._damage = str(error)
            return None

    def _shaped(self, function: FuncInfo, code: FunctionCode) -> tuple[PlacedValue, ...] | None:
        """Return a function's parameters by their shape, None if nothing can describe that.

        Raises ShapeError, and ElfError for damage.
        """
        if function.origin is not Origin.PCLNTAB or self._version.release < SHAPES_LISTED:
            return None
        if code.is_assembly:
            raise ShapeError("only its author knows whether its arguments are in registers")
        shapes = self._binary.functions.argument_shapes(function.row)
        if shapes is None:
            return ()
        saved: tuple[SavedArgument, ...] | None = ()
        if self._version.release >= code.architecture.register_abi:
            size = function.end - function.entry
            saved = saved_arguments(
                self._binary.image.read(function.entry, size), code.architecture
            )
        if saved is None:
            raise ShapeError("its code does not grow the stack, where it would save arguments")
        key = shapes, saved, function.name if "[" in function.name else ""
        known = self._by_shape.get(key)
        if known is None:
            known = self._by_shape[key] = shaped_parameters(*key, code)
        return known

    def _saved(self, function: FuncInfo, code: FunctionCode) -> tuple[SavedArgument, ...] | None:
        """Return the register arguments that a function's code saves, None if it does not."""
        if function.origin is not Origin.PCLNTAB or code.is_assembly:
            return None
        size = function.end - function.entry
        return saved_arguments(self._binary.image.read(function.entry, size), code.architecture)

    def _bare_words(self, function: FuncInfo, code: FunctionCode) -> FunctionLocations:
        convention = calling_convention(code.go_version, code.is_assembly, code.architecture)
        if function.origin is Origin.SYMTAB:
            arch = code.architecture
            taken, given = _registers(arch.c_parameters, arch), _registers(arch.c_results, arch)
            return _words(function.name, convention, taken, given)
        if convention is CallingConvention.ABI0:
            slots: dict[str, Place] = {
                f"{8 * word}(SP)": Stack(8 * word) for word in range(1, _STACK_WORDS + 1)
            }
            return _words(function.name, convention, slots, {})
        registers = _registers(code.architecture.int_registers, code.architecture)
        results = dict(list(registers.items())[:_RESULT_WORDS])
        return _words(function.name, convention, registers, results)


def _registers(names: Sequence[str], architecture: Architecture) -> dict[str, Place]:
    order = architecture.int_registers
    return {name: IntReg(order.index(name)) if name in order else CLOSURE_CONTEXT for name in names}


def _receiver_advice(name: str, lookup: Callable[[str], Sequence[GoType]]) -> str:
    """Return advice on the receiver for a user whose signature does not fit."""
    parsed = parse_name(name)
    declared = f"{parsed.package}.{parsed.receiver}"
    if parsed.kind is not NameKind.METHOD or parsed.pointer:
        return "the receiver of a method is not written"
    if len(lookup(declared)) == 1:
        return "the receiver of a method is not written"
    return (
        f"the program does not describe {declared}: the receiver is the first parameter here, "
        "written as what it is made of, such as struct{n int; s string}"
    )


def _words(
    name: str,
    convention: CallingConvention,
    parameters: dict[str, Place],
    results: dict[str, Place],
) -> FunctionLocations:
    return FunctionLocations(
        name,
        convention,
        _placed(parameters),
        _placed(results),
        source=SignatureSource.NOTHING,
    )


def _placed(places: dict[str, Place]) -> tuple[PlacedValue, ...]:
    return tuple(
        PlacedValue(name.upper(), _WORD, (Piece(0, 8, place),)) for name, place in places.items()
    )


def _plain(name: str) -> str:
    """Return a function's name up to its first type arguments."""
    return name.partition("[")[0]
