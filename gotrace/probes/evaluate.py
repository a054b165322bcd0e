# SPDX-License-Identifier: Apache-2.0
"""Evaluate checked expressions over decoded values, with the meaning that the kernel gives them.

An operand that cannot be read, through a nil pointer for example, makes what is compared with it
unknown. ``&&`` and ``||`` follow Kleene: false && unknown is false, true || unknown is true, else
unknown stays unknown; a predicate that is unknown does not keep the call. What is unknown since it
was not captured, such as the rest of a long string, has a truth all the same: where that would
make the predicate true, the call is undecided, and callers count it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gotrace.capture.payload import BEYOND, NIL_POINTER
from gotrace.gotypes.types import Kind
from gotrace.probes.constants import RELATIONS
from gotrace.probes.parser import BinaryOperator, TextFunction
from gotrace.probes.scope import DURATION_SPECIALS, SpecialName
from gotrace.probes.typed import (
    AccessPath,
    Comparison,
    Constant,
    Domain,
    Logic,
    NilTest,
    Not,
    Operand,
    SpecialOperand,
    TextTest,
    Typed,
    operands,
)
from gotrace.values.model import (
    BytesValue,
    ChanValue,
    DurationValue,
    ErrorValue,
    InterfaceValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    Unavailable,
    Value,
    unwrapped,
)

__all__ = ["NO_RESULT", "Specials", "decide", "evaluate"]

#: What the ``$`` names mean in one call; text as str, durations in nanoseconds, stacks as values.
Specials = Mapping[SpecialName, int | str | SequenceValue]

#: The bytes at a text's beginning that are known, and its true length; None where that is not.
_Text = tuple[bytes, int | None]

_NOT_CAPTURED = Unavailable("not captured")
#: The value of the results of a call that did not return.
NO_RESULT = Unavailable("the call did not return")


def evaluate(expression: Typed, values: Mapping[AccessPath, Value], specials: Specials) -> Value:
    """Return an expression's value for one call.

    ``values`` holds what was captured for each of the expression's operands. Conditions give a
    bool; what cannot be known is Unavailable, nothing is raised.
    """
    if isinstance(expression, Operand):
        return values.get(expression.path, _NOT_CAPTURED)
    if isinstance(expression, SpecialOperand):
        return _special(expression.special, specials)
    if isinstance(expression, Constant):
        value = expression.value
        return StringValue(value, len(value)) if isinstance(value, bytes) else value
    truth = _Evaluation(values, specials).truth(expression)
    return Unavailable("an operand is unavailable") if truth is None else truth


def decide(predicate: Typed, values: Mapping[AccessPath, Value], specials: Specials) -> bool | None:
    """Return whether a predicate keeps a call, None where what was not captured might make it.

    Where it depends on what does not exist, through a nil pointer or without results, the
    predicate is not true and the call is not kept.
    """
    evaluation = _Evaluation(values, specials)
    truth = evaluation.truth(predicate)
    if truth is not None:
        return truth
    return None if True in evaluation.outcomes(predicate) else False


def _special(name: SpecialName, specials: Specials) -> Value:
    value = specials.get(name)
    if value is None:
        return Unavailable(f"${name.value} is not known here")
    if isinstance(value, SequenceValue):
        return value
    if isinstance(value, str):
        text = _encoded(value)
        return StringValue(text, len(text))
    return DurationValue(value) if name in DURATION_SPECIALS else value


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class _Evaluation:
    """Evaluate conditions for one call; None means unknown."""

    __slots__ = ("_specials", "_values")

    def __init__(self, values: Mapping[AccessPath, Value], specials: Specials) -> None:
        self._values = values
        self._specials = specials

    def truth(self, expression: Typed) -> bool | None:
        if isinstance(expression, Comparison):
            return self._comparison(expression)
        if isinstance(expression, Logic):
            return self._logic(expression)
        if isinstance(expression, Not):
            truth = self.truth(expression.operand)
            return None if truth is None else not truth
        if isinstance(expression, TextTest):
            return self._text_test(expression)
        value = self._value(expression.operand if isinstance(expression, NilTest) else expression)
        if isinstance(value, Unavailable):
            return None
        if isinstance(expression, NilTest):
            return isinstance(value, Nil) is expression.equal
        plain = unwrapped(value)
        return plain if isinstance(plain, bool) else None

    def outcomes(self, expression: Typed) -> frozenset[bool | None]:
        """Return which truths an expression may have, by what may be where nothing was captured.

        None among them: an operand does not exist.
        """
        if isinstance(expression, Logic):
            decisive = expression.operator is BinaryOperator.OR
            left, right = self.outcomes(expression.left), self.outcomes(expression.right)
            return frozenset(_combined(decisive, one, other) for one in left for other in right)
        if isinstance(expression, Not):
            found = self.outcomes(expression.operand)
            return frozenset(None if truth is None else not truth for truth in found)
        truth = self.truth(expression)
        if truth is not None or any(map(self._is_missing, operands(expression))):
            return frozenset({truth})
        return frozenset({True, False})

    def _is_missing(self, operand: Operand) -> bool:
        """Return whether there is no such value.

        It is what a nil pointer would lead to, in an element that a slice does not have, or the
        result of a call that did not return.
        """
        value = self._value(operand)
        is_element = any(isinstance(step, int) for step in operand.path.steps)
        return value in (NIL_POINTER, NO_RESULT) or (is_element and value == BEYOND)

    def _logic(self, expression: Logic) -> bool | None:
        decisive = expression.operator is BinaryOperator.OR
        left = self.truth(expression.left)
        if left is decisive:
            return decisive
        return _combined(decisive, left, self.truth(expression.right))

    def _value(self, expression: Typed) -> Value:
        return evaluate(expression, self._values, self._specials)

    def _comparison(self, expression: Comparison) -> bool | None:
        left, right = self._value(expression.left), self._value(expression.right)
        if expression.domain is Domain.STRING:
            return _compare_texts(expression.operator, _text(left), _text(right))
        plain_left, plain_right = _number(left), _number(right)
        if plain_left is None or plain_right is None:
            return None
        if expression.domain is Domain.FLOAT:
            plain_left = _as_float(plain_left, expression.left.type.kind)
            plain_right = _as_float(plain_right, expression.right.type.kind)
        return RELATIONS[expression.operator](plain_left, plain_right)

    def _text_test(self, test: TextTest) -> bool | None:
        value = self._value(test.operand)
        if isinstance(value, Nil):
            return test.needle == b"" and test.operand.type.kind is not Kind.INTERFACE
        captured = _text(value)
        if captured is None:
            return None
        text, length = captured
        if test.function is TextFunction.CONTAINS:
            if test.needle in text:
                return True
            # What was not captured may have it, where there is enough for it.
            return False if len(text) == length or _is_shorter(length, test.needle) else None
        if len(text) >= len(test.needle) or len(text) == length:
            return text.startswith(test.needle)
        if _is_shorter(length, test.needle):
            return False
        return None if test.needle.startswith(text) else False


def _combined(decisive: bool, left: bool | None, right: bool | None) -> bool | None:
    """Return the truth of ``||`` (``decisive`` true) or ``&&`` of two conditions."""
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _is_shorter(length: int | None, needle: bytes) -> bool:
    """Return whether a text is known to be too short for another one."""
    return length is not None and length < len(needle)


def _number(value: Value) -> int | float | None:
    """Return what numbers, booleans and addresses compare by."""
    if isinstance(value, NamedValue):
        value = value.value
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, DurationValue):
        return value.nanoseconds
    if isinstance(value, PointerValue | ChanValue):
        return value.address
    return 0 if isinstance(value, Nil) else None


def _as_float(number: int | float, kind: Kind) -> float:
    """Return the exact float: decoded float32 values are their shortest decimals."""
    if kind is not Kind.FLOAT32:
        return float(number)
    exact: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return exact


def _text(value: Value) -> _Text | None:
    """Return what is known of a string, slice of bytes or message."""
    if isinstance(value, ErrorValue):
        if value.known is not None:
            return _encoded(value.known), value.length
        message = _encoded(value.message)
        return message, len(message)
    plain = unwrapped(value) if not isinstance(value, InterfaceValue) else value
    if isinstance(plain, StringValue):
        return plain.text, plain.length
    if isinstance(plain, BytesValue):
        return plain.data, plain.length
    if isinstance(plain, SequenceValue):
        return _bytes_of(plain)
    return None


def _bytes_of(sequence: SequenceValue) -> _Text | None:
    """Join the elements of a slice whose elements are a declared kind of byte."""
    elements = [unwrapped(element) for element in sequence.elements]
    if all(isinstance(element, int) and 0 <= element < 256 for element in elements):
        return bytes(e for e in elements if isinstance(e, int)), sequence.length
    return None


def _compare_texts(
    operator: BinaryOperator, left: _Text | None, right: _Text | None
) -> bool | None:
    """Compare two texts of which only the beginnings may be known."""
    if left is None or right is None:
        return None
    (left_text, left_length), (right_text, right_length) = left, right
    known = min(len(left_text), len(right_text))
    if left_text[:known] != right_text[:known]:
        return RELATIONS[operator](left_text[:known], right_text[:known])
    # They are equal as far as both are known: what follows from all that may come after?
    orders = [0] if _may_be_as_long(left, right) else []
    orders += [] if known == left_length else [1]
    orders += [] if known == right_length else [-1]
    truths = {RELATIONS[operator](order, 0) for order in orders}
    return truths.pop() if len(truths) == 1 else None


def _may_be_as_long(left: _Text, right: _Text) -> bool:
    (left_text, left_length), (right_text, right_length) = left, right
    if left_length is None:
        return right_length is None or right_length >= len(left_text)
    return (
        left_length == right_length
        if right_length is not None
        else (left_length >= len(right_text))
    )
