# SPDX-License-Identifier: Apache-2.0
"""Assign parameters and results of gccgo's functions as the C compiler GCC does.

System V ABI, AMD64 architecture processor supplement, section 3.2.3, "Parameter Passing". gccgo
passes a Go value as C would the struct that it is: strings {pointer, length}, slices {pointer,
length, capacity}, interfaces {table, pointer}. Several results are the fields of one struct
(gofrontend, go/types.cc, ``Function_type::get_backend_fntype``).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from gotrace.abi.assign import CLOSURE_CONTEXT, FloatReg, IntReg, Piece, Place, Stack
from gotrace.gotypes.types import ArrayType, GoType, Kind, StructType
from gotrace.records import dataclass


class EightbyteClass(enum.Enum):
    """The classes of the eightbytes of Go's values."""

    INTEGER = "INTEGER"
    SSE = "SSE"


@dataclass(frozen=True, slots=True)
class SystemVAssignment:
    """The pieces of each parameter, and of the one result.

    ``result_in_memory``: the result's piece holds the address of the memory that the result is in.
    """

    parameters: tuple[tuple[Piece, ...], ...]
    result: tuple[Piece, ...]
    result_in_memory: bool


_EIGHTBYTE = 8
_MAX_IN_REGISTERS = 2 * _EIGHTBYTE
#: Places in Architecture.int_registers of rdi, rsi, rdx, rcx, r8, r9. rdx is Go's context register.
_INT_PARAMETERS = (IntReg(3), IntReg(4), CLOSURE_CONTEXT, IntReg(2), IntReg(5), IntReg(6))
_FLOAT_PARAMETERS = tuple(FloatReg(number) for number in range(8))
_RAX = IntReg(0)
_INT_RESULTS = (_RAX, CLOSURE_CONTEXT)
_FLOAT_RESULTS = (FloatReg(0), FloatReg(1))

_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})


def classify(value: GoType) -> tuple[EightbyteClass, ...] | None:
    """Return the class of each eightbyte of a value, None for the class MEMORY.

    A value without size has no eightbyte.
    """
    if value.size > _MAX_IN_REGISTERS:
        return None
    eightbytes: list[EightbyteClass | None] = [None] * -(-value.size // _EIGHTBYTE)
    if not _merge(value, 0, eightbytes):
        return None
    # An eightbyte of nothing but padding is NO_CLASS, for which GCC takes an SSE register.
    return tuple(found or EightbyteClass.SSE for found in eightbytes)


def _merge(value: GoType, offset: int, eightbytes: list[EightbyteClass | None]) -> bool:
    """Merge the classes of a value's parts into eightbytes; False where it is not described."""
    if value.size == 0:
        return True
    if offset + value.size > len(eightbytes) * _EIGHTBYTE or value.kind is Kind.INVALID:
        return False
    if isinstance(value, StructType):
        return all(_merge(field.type, offset + field.offset, eightbytes) for field in value.fields)
    if isinstance(value, ArrayType):
        starts = (offset + number * value.elem.size for number in range(value.length))
        return value.elem.size == 0 or all(_merge(value.elem, at, eightbytes) for at in starts)
    found = EightbyteClass.SSE if value.kind in _FLOATS else EightbyteClass.INTEGER
    for number in range(offset // _EIGHTBYTE, -(-(offset + value.size) // _EIGHTBYTE)):
        if eightbytes[number] is not EightbyteClass.INTEGER:
            eightbytes[number] = found
    return True


class _Registers:
    """Hand out registers of both kinds, each in its order."""

    def __init__(self, ints: Sequence[IntReg], floats: Sequence[FloatReg]) -> None:
        self._free: dict[EightbyteClass, list[Place]] = {
            EightbyteClass.INTEGER: list(ints),
            EightbyteClass.SSE: list(floats),
        }

    def take(self, value: GoType) -> tuple[Piece, ...] | None:
        """Return a value's pieces; None, and nothing taken, where it is not wholly in registers."""
        classes = classify(value)
        if classes is None or any(
            classes.count(kind) > len(free) for kind, free in self._free.items()
        ):
            return None
        return tuple(
            Piece(at, min(_EIGHTBYTE, value.size - at), self._free[kind].pop(0))
            for at, kind in zip(range(0, value.size, _EIGHTBYTE), classes, strict=True)
        )


def assign_system_v(parameters: Sequence[GoType], result: GoType | None) -> SystemVAssignment:
    """Return where a function finds its parameters, and at its RET has left its result.

    Several results are given as the struct that they are. Stack offsets are from the stack
    pointer at the function's entry.
    """
    ints = _INT_PARAMETERS
    returned: tuple[Piece, ...] = ()
    in_memory = False
    if result is not None:
        found = _Registers(_INT_RESULTS, _FLOAT_RESULTS).take(result)
        in_memory = found is None
        returned = (Piece(0, _EIGHTBYTE, _RAX),) if found is None else found
    registers = _Registers(ints[1:] if in_memory else ints, _FLOAT_PARAMETERS)
    placed: list[tuple[Piece, ...]] = []
    stack = _EIGHTBYTE  # above the return address
    for value in parameters:
        pieces = registers.take(value)
        if pieces is None:
            pieces = (Piece(0, value.size, Stack(stack)),)
            stack += -(-value.size // _EIGHTBYTE) * _EIGHTBYTE
        placed.append(pieces)
    return SystemVAssignment(tuple(placed), returned, in_memory)
