# SPDX-License-Identifier: Apache-2.0
"""Assign parameters and results to registers and the stack as Go's compiler does.

ABIInternal: src/cmd/compile/abi-internal.md, "Function call argument and result passing"
(amd64 since Go 1.17, arm64 since 1.18); ABI0: the stack-only convention of assembly functions and
of all of the releases before (doc/asm.html, "Stack maps" and cmd/compile/internal/abi).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gotrace.gotypes.releases import DICTIONARY_AFTER_RECEIVER
from gotrace.gotypes.symbols import GoName, NameKind
from gotrace.gotypes.types import ArrayType, GoType, Kind, StructType, basic_type
from gotrace.records import dataclass

if TYPE_CHECKING:
    from gotrace.architecture import Architecture
    from gotrace.elf.buildinfo import GoVersion


@dataclass(frozen=True, slots=True)
class IntReg:
    """The integer register of an index in the architecture's ``int_registers``."""

    index: int


@dataclass(frozen=True, slots=True)
class FloatReg:
    """The float register of an index in the architecture's ``float_registers``."""

    index: int


@dataclass(frozen=True, slots=True)
class Stack:
    """Memory at an offset in bytes from the stack pointer at function entry.

    The first slot is 8: the stack pointer then points at the return address, or at the word where
    the callee will keep it.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Saved(Stack):
    """Memory too: bytes copied at the entry, kept for the return, at an offset in that copy."""


@dataclass(frozen=True, slots=True)
class Label(Stack):
    """No memory: a pprof label of the goroutine, at an offset in the string that its value is.

    ``key`` is the number of its key among the constants of the plan. ``labels`` is where ``g``
    leads to them.
    """

    key: int
    labels: int
    is_map: bool


Place = IntReg | FloatReg | Stack

#: Where the caller of a closure leaves the pointer to its captured variables: RDX on amd64, X26 on
#: arm64, none of the ``int_registers``. The number is CLOSURE_CONTEXT of bpf/plan.h.
CLOSURE_CONTEXT = IntReg(0x20)


@dataclass(frozen=True, slots=True)
class Piece:
    """Place ``size`` bytes, ``offset`` bytes from the start of a value."""

    offset: int
    size: int
    place: Place


class CallingConvention(enum.Enum):
    """The calling conventions: Go's two, and that of C, which gccgo follows."""

    ABI0 = "ABI0"
    ABI_INTERNAL = "ABIInternal"
    SYSTEM_V = "System V"

    @property
    def reads_floats(self) -> bool:
        """Return whether its programs handle SIGURG, by which float registers are read."""
        return self is not CallingConvention.SYSTEM_V


class DictionaryPlace(enum.Enum):
    """Where a generic function's hidden dictionary parameter is."""

    BEFORE_RECEIVER = "before the receiver"
    AFTER_RECEIVER = "after the receiver"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The pieces of each parameter and of each result, in order; zero-size values have none.

    Results are where the parameters' pieces say when the function returns, with stack offsets
    from the stack pointer at entry, which at a RET instruction is the same. ``dictionary`` is the
    place of the hidden dictionary, None for functions without. ``spill_slots``: for each
    parameter passed in registers the stack offset at which the callee may save it; the caller
    leaves these unset. None for all other parameters. ``size``: bytes that all of it takes of the
    stack, spill slots included, as ``_func.args`` has them (runtime/runtime2.go).
    """

    parameters: tuple[tuple[Piece, ...], ...]
    results: tuple[tuple[Piece, ...], ...]
    dictionary: Piece | None
    spill_slots: tuple[int | None, ...]
    size: int


#: Types to look at before a value is sent to the stack. What fits into registers has far fewer
#: parts; only damaged types, of empty structs nested by the billion, have more.
_MAX_PARTS = 1000

_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})
_PARTS_OF_KIND = {
    **{kind: 1 for kind in Kind if Kind.BOOL.value <= kind.value <= Kind.FLOAT64.value},
    Kind.COMPLEX64: 2,
    Kind.COMPLEX128: 2,
    Kind.CHAN: 1,
    Kind.FUNC: 1,
    Kind.MAP: 1,
    Kind.POINTER: 1,
    Kind.UNSAFE_POINTER: 1,
    Kind.INTERFACE: 2,
    Kind.STRING: 2,
    Kind.SLICE: 3,
}


@dataclass(frozen=True, slots=True)
class RegisterPart:
    """A part of a value that takes one register.

    ``is_float`` holds for vectors as well, which are the parts of more than 8 bytes.
    """

    offset: int
    size: int
    is_float: bool


def register_parts(value: GoType) -> tuple[RegisterPart, ...] | None:
    """Return the parts that a value is split into for registers.

    None for values that registers never hold: those with an array of more than one element in
    them, and types of unknown structure.
    """
    parts: list[RegisterPart] = []
    return tuple(parts) if _split(value, 0, parts, [_MAX_PARTS]) and parts else None


def _split(value: GoType, offset: int, parts: list[RegisterPart], budget: list[int]) -> bool:
    budget[0] -= 1
    if budget[0] < 0:
        return False
    if isinstance(value, StructType):
        if value.is_vector:
            parts.append(RegisterPart(offset, value.size, True))
            return True
        return all(
            _split(field.type, offset + field.offset, parts, budget) for field in value.fields
        )
    if isinstance(value, ArrayType):
        if value.length == 0:
            return True
        return value.length == 1 and _split(value.elem, offset, parts, budget)
    count = _PARTS_OF_KIND.get(value.kind, 0)
    size = value.size // max(count, 1)
    is_float = value.kind in _FLOATS
    parts += [RegisterPart(offset + row * size, size, is_float) for row in range(count)]
    return count > 0


class _Sequences:
    """How far registers and stack are used up: NI, NFP, I, FP and S of the document."""

    def __init__(self, architecture: Architecture, convention: CallingConvention) -> None:
        registers = convention is CallingConvention.ABI_INTERNAL
        self._ints = len(architecture.int_registers) if registers else 0
        self._floats = len(architecture.float_registers) if registers else 0
        self._next_int = 0
        self._next_float = 0
        self.stack = architecture.pointer_size  # above the return address, or its place

    def restart_registers(self) -> None:
        """Begin the results: registers are free again."""
        self._next_int = self._next_float = 0

    def align_stack(self, alignment: int) -> None:
        self.stack = -(-self.stack // alignment) * alignment

    def assign(self, value: GoType) -> tuple[Piece, ...]:
        if value.size == 0:
            self.align_stack(value.align)
            return ()
        parts = register_parts(value)
        if parts is not None:
            floats = sum(part.is_float for part in parts)
            ints = len(parts) - floats
            if self._next_int + ints <= self._ints and self._next_float + floats <= self._floats:
                return tuple(map(self._take, parts))
        return (Piece(0, value.size, Stack(self.reserve(value))),)

    def reserve(self, value: GoType) -> int:
        """Take the next stack slot for a value and return its offset."""
        self.align_stack(value.align)
        offset = self.stack
        self.stack += value.size
        return offset

    def _take(self, part: RegisterPart) -> Piece:
        place: Place
        if part.is_float:
            place = FloatReg(self._next_float)
            self._next_float += 1
        else:
            place = IntReg(self._next_int)
            self._next_int += 1
        return Piece(part.offset, part.size, place)


def assign(
    parameters: Sequence[GoType],
    results: Sequence[GoType],
    architecture: Architecture,
    convention: CallingConvention,
    dictionary: DictionaryPlace | None = None,
    *,
    is_method: bool = False,
) -> Assignment:
    """Return where a function finds its parameters and leaves its results.

    ``parameters`` begins with the receiver when ``is_method`` says so, which matters only to the
    place of the hidden ``dictionary``: None for functions that take none.
    """
    state = _Sequences(architecture, convention)
    types = list(parameters)
    hidden = None
    if dictionary is not None:
        after_receiver = is_method and dictionary is DictionaryPlace.AFTER_RECEIVER
        hidden = 1 if after_receiver and types else 0
        types.insert(hidden, basic_type(Kind.UINTPTR))
    placed = [state.assign(value) for value in types]
    state.align_stack(architecture.pointer_size)
    state.restart_registers()
    result_places = tuple(state.assign(value) for value in results)
    state.align_stack(architecture.pointer_size)
    slots: list[int | None] = [
        state.reserve(value) if pieces and not isinstance(pieces[0].place, Stack) else None
        for value, pieces in zip(types, placed, strict=True)
    ]
    dictionary_piece = None
    if hidden is not None:
        (dictionary_piece,) = placed.pop(hidden)
        del slots[hidden]
    state.align_stack(architecture.pointer_size)
    size = state.stack - architecture.pointer_size
    return Assignment(tuple(placed), result_places, dictionary_piece, tuple(slots), size)


def calling_convention(
    go_version: GoVersion, is_assembly: bool, architecture: Architecture
) -> CallingConvention:
    """Return the convention that a function of a Go release follows.

    ``is_assembly`` also holds for the wrappers through which assembly calls Go (``.abi0`` in the
    symbol table).
    """
    if is_assembly or go_version.release < architecture.register_abi:
        return CallingConvention.ABI0
    return CallingConvention.ABI_INTERNAL


def dictionary_place(go_version: GoVersion) -> DictionaryPlace:
    """Return where a Go release (>= 1.18) puts the dictionary of a generic method."""
    if go_version.release >= DICTIONARY_AFTER_RECEIVER:
        return DictionaryPlace.AFTER_RECEIVER
    return DictionaryPlace.BEFORE_RECEIVER


def takes_dictionary(name: GoName) -> bool:
    """Return whether a function takes the hidden dictionary.

    Those are the functions and methods that are compiled for shapes (``go.shape.int``), but not
    the closures within them, which find the dictionary in their context. Where the function table
    of Go 1.18 to 1.20 is all there is, it has ``...`` for the shapes.
    """
    return name.kind in (NameKind.FUNCTION, NameKind.METHOD) and any(
        argument.startswith("go.shape.") or argument == "..." for argument in name.type_arguments
    )
