# SPDX-License-Identifier: Apache-2.0
"""Treat constants as Go does: exact and untyped until they meet a type, which must hold them."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from gotrace.gotypes.types import GoType, Kind, basic_type
from gotrace.probes.parser import BinaryOperator, LiteralKind
from gotrace.probes.typed import Constant, Typed
from gotrace.records import dataclass

SIGNED = {Kind.INT, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64}
_UNSIGNED = {Kind.UINT, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64, Kind.UINTPTR}
INTEGERS = SIGNED | _UNSIGNED
FLOATS = {Kind.FLOAT32, Kind.FLOAT64}

#: The results of the comparison operators on two values that Python compares as Go does.
RELATIONS: dict[BinaryOperator, Callable[[Any, Any], bool]] = {
    BinaryOperator.EQUAL: operator.eq,
    BinaryOperator.NOT_EQUAL: operator.ne,
    BinaryOperator.LESS: operator.lt,
    BinaryOperator.LESS_EQUAL: operator.le,
    BinaryOperator.GREATER: operator.gt,
    BinaryOperator.GREATER_EQUAL: operator.ge,
}

_NUMBERS = {LiteralKind.INT, LiteralKind.FLOAT, LiteralKind.RUNE, LiteralKind.DURATION}
_DEFAULT = {
    LiteralKind.INT: Kind.INT,
    LiteralKind.DURATION: Kind.INT,
    LiteralKind.RUNE: Kind.INT32,
    LiteralKind.FLOAT: Kind.FLOAT64,
    LiteralKind.STRING: Kind.STRING,
    LiteralKind.BOOL: Kind.BOOL,
}


class ConstantError(Exception):
    """Why a constant does not go with a type; callers add the place."""


@dataclass(frozen=True, slots=True)
class Untyped(Typed):
    """A constant that has met no type yet. It is never part of a finished expression."""

    kind: LiteralKind
    value: int | Fraction | bytes | bool | None

    @property
    def is_number(self) -> bool:
        """Return whether the constant is an integer, rune or float."""
        return self.kind in _NUMBERS


def described(of: GoType) -> str:
    """Return a type's name with its article, for messages."""
    return _with_article(of.name)


def _with_article(name: str) -> str:
    return f"{'an' if name.startswith(tuple('aeioAEIO')) else 'a'} {name}"


def default_constant(constant: Untyped) -> Constant:
    """Convert a constant to the type that Go gives it by default; raises ConstantError."""
    if constant.kind is LiteralKind.NIL:
        raise ConstantError("nil needs something to be compared with, as in err != nil")
    return converted(constant, basic_type(_DEFAULT[constant.kind]))


def converted(constant: Untyped, to: GoType) -> Constant:
    """Convert a constant to a type that can represent it; raises ConstantError."""
    value: bool | int | float | bytes
    if constant.is_number and isinstance(constant.value, int | Fraction):
        if to.kind in INTEGERS:
            value = _integer(constant.value, to)
        elif to.kind in FLOATS:
            value = _float(constant.value, to)
        else:
            raise ConstantError(_mismatch(constant, to))
    elif constant.kind is LiteralKind.STRING and to.kind is Kind.STRING:
        assert isinstance(constant.value, bytes)
        value = constant.value
    elif constant.kind is LiteralKind.BOOL and to.kind is Kind.BOOL:
        value = bool(constant.value)
    else:
        raise ConstantError(_mismatch(constant, to))
    return Constant(value, to, span=constant.span)


def _mismatch(constant: Untyped, to: GoType) -> str:
    what = _with_article(constant.kind.value)
    if to.kind in INTEGERS | FLOATS:
        return f"{described(to)} is compared with a number, not with {what}"
    if to.kind is Kind.STRING:
        return f'{described(to)} is compared with a string, as in "GET"'
    if to.kind is Kind.BOOL:
        return f"{described(to)} is compared with true or false"
    return f"{described(to)} cannot be compared with {what}"


def _integer(value: int | Fraction, to: GoType) -> int:
    if value.denominator != 1:
        raise ConstantError(f"{float(value):g} is not a whole number, and this is {described(to)}")
    bits = 8 * to.size
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if to.kind in SIGNED else (0, (1 << bits) - 1)
    if not low <= value <= high:
        raise ConstantError(f"{int(value)} does not fit {described(to)}, which is {low} to {high}")
    return int(value)


def _float(value: int | Fraction, to: GoType) -> float:
    try:
        number = float(value)
        if to.kind is Kind.FLOAT32:
            # Compared with a float32, a constant is first rounded to one.
            number = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError as error:
        raise ConstantError(f"the number does not fit {described(to)}") from error
    return number


_MAX_SHIFT = 500
_MAX_BITS = 512
#: The results of the operators of arithmetic on two whole constants.
_WHOLE: dict[BinaryOperator, Callable[[int, int], int]] = {
    BinaryOperator.ADD: operator.add,
    BinaryOperator.SUBTRACT: operator.sub,
    BinaryOperator.MULTIPLY: operator.mul,
    BinaryOperator.DIVIDE: lambda a, b: quotient(a, b),
    BinaryOperator.REMAINDER: lambda a, b: a - b * quotient(a, b),
    BinaryOperator.BIT_AND: operator.and_,
    BinaryOperator.BIT_OR: operator.or_,
    BinaryOperator.BIT_XOR: operator.xor,
    BinaryOperator.BIT_CLEAR: lambda a, b: a & ~b,
    BinaryOperator.SHIFT_LEFT: operator.lshift,
    BinaryOperator.SHIFT_RIGHT: operator.rshift,
}
_OF_FLOATS = {
    BinaryOperator.ADD,
    BinaryOperator.SUBTRACT,
    BinaryOperator.MULTIPLY,
    BinaryOperator.DIVIDE,
}
SHIFTS = {BinaryOperator.SHIFT_LEFT, BinaryOperator.SHIFT_RIGHT}
ARITHMETIC = frozenset(_WHOLE)


def quotient(left: int, right: int) -> int:
    """Return a quotient of whole numbers, cut towards zero as Go does."""
    found = abs(left) // abs(right)
    return found if (left < 0) is (right < 0) else -found


def whole_arithmetic(how: BinaryOperator, left: int, right: int) -> int:
    """Return the result of Go's operator on two whole numbers, without a limit to its size.

    The right one is not zero where that is what is divided by, nor below zero in a shift.
    """
    if how is BinaryOperator.SHIFT_LEFT and right > _MAX_SHIFT:
        return 0  # far beyond any type
    return _WHOLE[how](left, min(right, _MAX_SHIFT) if how in SHIFTS else right)


def is_of_floats(how: BinaryOperator) -> bool:
    """Return whether an operator of arithmetic is one of floats, too."""
    return how in _OF_FLOATS


def fold_arithmetic(how: BinaryOperator, left: Untyped, right: Untyped) -> Untyped:
    """Compute with two constants, exactly; raises ConstantError when Go does not."""
    one, other = left.value, right.value
    if (
        not (left.is_number and right.is_number)
        or isinstance(one, bytes | None)
        or isinstance(other, bytes | None)
    ):
        both = f"{_with_article(left.kind.value)} and {_with_article(right.kind.value)}"
        raise ConstantError(f"{both} do not go with {how.value}")
    kinds = {left.kind, right.kind}
    order = (LiteralKind.FLOAT, LiteralKind.DURATION, LiteralKind.RUNE)
    kind = next((kind for kind in order if kind in kinds), LiteralKind.INT)
    if how in (BinaryOperator.DIVIDE, BinaryOperator.REMAINDER) and not other:
        raise ConstantError("division by zero")
    value: int | Fraction
    if kind is LiteralKind.FLOAT and how in _OF_FLOATS:
        parts = Fraction(one), Fraction(other)
        value = parts[0] / parts[1] if how is BinaryOperator.DIVIDE else _WHOLE[how](*parts)  # type: ignore[arg-type]
    else:
        if Fraction(one).denominator != 1 or Fraction(other).denominator != 1:
            raise ConstantError(f"{how.value} needs whole numbers")
        if how in SHIFTS and not 0 <= other <= _MAX_SHIFT:
            raise ConstantError(f"a shift count must be 0 to {_MAX_SHIFT} bits")
        value = whole_arithmetic(how, int(one), int(other))
    if value.numerator.bit_length() > _MAX_BITS:
        raise ConstantError("the number is too large")
    return Untyped(kind, value)


def fold(relation: BinaryOperator, left: Untyped, right: Untyped) -> Untyped:
    """Compare two constants; raises ConstantError when they cannot be compared."""
    ordered = relation not in (BinaryOperator.EQUAL, BinaryOperator.NOT_EQUAL)
    same = left.kind is right.kind or (left.is_number and right.is_number)
    bad = LiteralKind.NIL in (left.kind, right.kind)
    if not same or bad or (ordered and left.kind is LiteralKind.BOOL):
        both = f"{_with_article(left.kind.value)} and {_with_article(right.kind.value)}"
        raise ConstantError(f"{both} cannot be compared by {relation.value}")
    return Untyped(LiteralKind.BOOL, RELATIONS[relation](left.value, right.value))
