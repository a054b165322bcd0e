# SPDX-License-Identifier: Apache-2.0
"""Evaluate checked expressions over decoded values, with the meaning that the kernel gives them.

An operand that cannot be read, through a nil pointer for example, makes what is compared with it
unknown. ``&&`` and ``||`` follow Kleene: false && unknown is false, true || unknown is true, else
unknown stays unknown; a predicate that is unknown does not keep the call. A comparison with bytes
that were not captured, such as the rest of a long string, has a truth all the same: if that could
make the predicate true, the call is undecided, and callers count it.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gotrace.capture.nodes import shortest_float32
from gotrace.capture.paths import OTHER_TYPE, Assertion, PathMark, PathStep
from gotrace.capture.payload import BEYOND, NIL_POINTER
from gotrace.errors import said
from gotrace.gotypes.types import GoType, Kind, MapType
from gotrace.probes.constants import (
    FLOATS,
    INTEGERS,
    RELATIONS,
    SHIFTS,
    SIGNED,
    whole_arithmetic,
)
from gotrace.probes.parser import (
    BinaryOperator,
    ChangeFunction,
    QuantifierFunction,
    TextFunction,
)
from gotrace.probes.scope import DURATION_SPECIALS, SpecialName
from gotrace.probes.typed import (
    AccessPath,
    Arithmetic,
    Bound,
    Changed,
    Comparison,
    Constant,
    Domain,
    Logic,
    Lookup,
    NilTest,
    Not,
    Operand,
    Quantifier,
    Sliced,
    SpecialOperand,
    TextTest,
    Typed,
    Walk,
    operands,
)
from gotrace.values.model import (
    BytesValue,
    ChanValue,
    DurationValue,
    ErrorValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
    unwrapped,
)

#: The values of the ``$`` names in one call; text as str, durations in ns, stacks as values.
Specials = Mapping[SpecialName, int | str | SequenceValue]


class _Text(NamedTuple):
    """The certain facts about a text: its beginning, and the least and most bytes that it has.

    ``most`` is None where no bound is known.
    """

    known: bytes
    least: int
    most: int | None


_NOT_CAPTURED = UnavailableValue("not captured")
_CUT_TEXT = "a string is longer than what is copied of it"
DIVIDED_BY_ZERO = UnavailableValue("division by zero")
_OUT_OF_RANGE = "index out of range "  # as Go says it
_OUT_OF_BOUNDS = "slice bounds out of range "
_DIVISIONS = {BinaryOperator.DIVIDE, BinaryOperator.REMAINDER}
_FLOAT_OPERATIONS: dict[BinaryOperator, Callable[[float, float], float]] = {
    BinaryOperator.ADD: operator.add,
    BinaryOperator.SUBTRACT: operator.sub,
    BinaryOperator.MULTIPLY: operator.mul,
}
#: The value of the results of a call that did not return.
NO_RESULT = UnavailableValue("the call did not return")
#: Values that do not exist, and so make no condition true.
_NOTHING = (NIL_POINTER, NO_RESULT, OTHER_TYPE, DIVIDED_BY_ZERO)


def evaluate(expression: Typed, values: Mapping[AccessPath, Value], specials: Specials) -> Value:
    """Return an expression's value for one call.

    ``values`` holds what was captured for each of the expression's operands. Conditions give a
    bool; what cannot be known is Unavailable, nothing is raised.
    """
    return _Evaluation(values, specials).value(expression)


def decide(predicate: Typed, values: Mapping[AccessPath, Value], specials: Specials) -> bool | None:
    """Return whether a predicate keeps a call, None if bytes that were not captured decide.

    Where it depends on what does not exist, through a nil pointer or without results, the
    predicate is not true and the call is not kept.
    """
    evaluation = _Evaluation(values, specials)
    truth = evaluation.truth(predicate)
    if truth is not None:
        return truth
    return None if True in evaluation.outcomes(predicate) else False


def why_undecided(predicate: Typed, values: Mapping[AccessPath, Value], specials: Specials) -> str:
    """Return why ``decide`` gave None: the first thing that is not known."""
    evaluation = _Evaluation(values, specials)
    return next(evaluation.unknown(predicate), _CUT_TEXT)


def _special(name: SpecialName, specials: Specials) -> Value:
    value = specials.get(name)
    if value is None:
        return UnavailableValue(f"${name.value} is not known here")
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

    __slots__ = ("_bound", "_specials", "_values")

    def __init__(self, values: Mapping[AccessPath, Value], specials: Specials) -> None:
        self._values = values
        self._specials = specials
        #: The values of names for elements, by their numbers.
        self._bound: dict[int, Value] = {}

    def value(self, expression: Typed) -> Value:
        if isinstance(expression, Operand):
            captured = self._values.get(expression.path, _NOT_CAPTURED)
            indices = [step for step in expression.path.steps if isinstance(step, int)]
            # Of a slice that has fewer, nothing is there to be captured.
            return _out_of_range(indices) if indices and captured == BEYOND else captured
        if isinstance(expression, Bound):
            return self._bound[expression.number]
        if isinstance(expression, SpecialOperand):
            return _special(expression.special, self._specials)
        if isinstance(expression, Constant):
            value = expression.value
            return StringValue(value, len(value)) if isinstance(value, bytes) else value
        found = self._computed(expression)
        if found is not None:
            return found
        truth = self.truth(expression)
        if truth is not None:
            return truth
        reasons = self._unknown_elements(expression) if isinstance(expression, Quantifier) else ()
        return UnavailableValue(next(iter(reasons), "an operand is unavailable"))

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
        if isinstance(expression, Quantifier):
            found = self._quantified(expression)
            return next(iter(found)) if len(found) == 1 else None
        value = self.value(expression.operand if isinstance(expression, NilTest) else expression)
        if isinstance(value, UnavailableValue):
            return None
        if isinstance(expression, NilTest):
            return isinstance(value, Nil) is expression.equal
        plain = unwrapped(value)
        return plain if isinstance(plain, bool) else None

    def outcomes(self, expression: Typed) -> frozenset[bool | None]:
        """Return which truths an expression may have, by possible values of bytes not captured.

        None among them: an operand does not exist.
        """
        if isinstance(expression, Logic):
            decisive = expression.operator is BinaryOperator.OR
            left, right = self.outcomes(expression.left), self.outcomes(expression.right)
            return frozenset(_combined(decisive, one, other) for one in left for other in right)
        if isinstance(expression, Not):
            found = self.outcomes(expression.operand)
            return frozenset(None if truth is None else not truth for truth in found)
        if isinstance(expression, Quantifier):
            return self._quantified(expression)
        truth = self.truth(expression)
        if truth is not None:
            return frozenset({truth})
        sides: tuple[Typed, ...] = (expression,)
        if isinstance(expression, Comparison):
            sides = expression.left, expression.right
        elif isinstance(expression, NilTest | TextTest):
            sides = (expression.operand,)
        # A condition on elements says itself what is missing.
        read = [one for side in sides if not isinstance(side, Quantifier) for one in operands(side)]
        asked = () if sides == (expression,) else sides
        if any(_is_nothing(self.value(one)) for one in (*read, *asked)):
            return frozenset({truth})
        return frozenset({True, False})

    def unknown(self, expression: Typed) -> Iterator[str]:
        """Yield why conditions of an expression are unknown that may be true or false."""
        if isinstance(expression, Logic):
            yield from self.unknown(expression.left)
            yield from self.unknown(expression.right)
        elif isinstance(expression, Not):
            yield from self.unknown(expression.operand)
        elif isinstance(expression, Quantifier):
            yield from self._unknown_elements(expression)
        elif len(self.outcomes(expression)) > 1:
            parts: list[Typed] = [expression]
            if isinstance(expression, Comparison):
                parts = [expression.left, expression.right]
            elif isinstance(expression, NilTest | TextTest):
                parts = [expression.operand]
            found = map(self.value, parts)
            reasons = [value.why for value in found if isinstance(value, UnavailableValue)]
            yield reasons[0] if reasons else _CUT_TEXT

    def _elements(self, of: Quantifier) -> tuple[list[tuple[Value, Value]], float] | Value:
        """Return the places and elements that were captured, and how many more there may be.

        Return the value itself if it has none that is known.
        """
        value = self.value(of.collection)
        if isinstance(value, Nil):
            return [], 0
        plain = unwrapped(value)
        if isinstance(plain, MapValue) and plain.missing is None:
            return list(plain.entries), plain.length - len(plain.entries)
        if isinstance(plain, BytesValue):
            rest = math.inf if plain.length is None else plain.length - len(plain.data)
            return list(enumerate(plain.data)), rest
        if isinstance(plain, SequenceValue):
            return list(enumerate(plain.elements)), plain.length - len(plain.elements)
        if isinstance(plain, MapValue) and plain.missing is not None:
            return plain.missing
        return plain if isinstance(plain, UnavailableValue) else _NOT_CAPTURED

    def _bind(self, of: Quantifier, place: Value, element: Value) -> None:
        if of.place is not None:
            self._bound[of.place.number] = place
        if of.element is not None:
            self._bound[of.element.number] = element

    def _quantified(self, of: Quantifier) -> frozenset[bool | None]:
        """Return which truths ``any`` or ``all`` may have; see ``outcomes``."""
        found = self._elements(of)
        if not isinstance(found, tuple):
            return frozenset({None}) if _is_nothing(found) else frozenset({True, False})
        elements, rest = found
        decisive = of.function is QuantifierFunction.ANY
        outcomes: frozenset[bool | None] = frozenset({not decisive})
        for place, element in elements:
            self._bind(of, place, element)
            each = self.outcomes(of.condition)
            outcomes = frozenset(_combined(decisive, a, b) for a in outcomes for b in each)
            if outcomes == {decisive}:
                return outcomes
        if rest:
            outcomes = frozenset(_combined(decisive, a, b) for a in outcomes for b in (True, False))
        return outcomes

    def _counted(self, of: Quantifier) -> tuple[int, float] | Value:
        """Return of how many elements a condition is true: at least, and at most."""
        found = self._elements(of)
        if not isinstance(found, tuple):
            return found
        elements, rest = found
        least, most = 0, rest
        for place, element in elements:
            self._bind(of, place, element)
            each = self.outcomes(of.condition)
            least += each == {True}
            most += True in each
        return least, most

    def _unknown_elements(self, of: Quantifier) -> Iterator[str]:
        """Yield why a condition on elements has no certain truth, or their count is not known."""
        found = self._elements(of)
        if isinstance(found, UnavailableValue):
            yield found.why
        elif isinstance(found, tuple):
            for place, element in found[0]:
                self._bind(of, place, element)
                yield from self.unknown(of.condition)
            if found[1]:
                more = said("--elements", "elements")
                yield f"there are more elements than are copied: ask for more by {more}"

    def _logic(self, expression: Logic) -> bool | None:
        decisive = expression.operator is BinaryOperator.OR
        left = self.truth(expression.left)
        if left is decisive:
            return decisive
        return _combined(decisive, left, self.truth(expression.right))

    def _computed(self, expression: Typed) -> Value | None:
        """Return the value that an expression computes from the call's, None for conditions."""
        if isinstance(expression, Arithmetic):
            return self._arithmetic(expression)
        if isinstance(expression, Changed):
            return _changed(self.value(expression.operand), _CHANGES[expression.function])
        if isinstance(expression, Lookup):
            return self._lookup(expression)
        if isinstance(expression, Sliced):
            return self._sliced(expression)
        if isinstance(expression, Quantifier) and expression.function is QuantifierFunction.COUNT:
            count = self._counted(expression)
            if not isinstance(count, tuple):
                return count
            if count[0] == count[1]:
                return count[0]
            return UnavailableValue(next(self._unknown_elements(expression), _NOT_CAPTURED.why))
        if isinstance(expression, Walk):
            return _walked(self.value(expression.operand), expression.steps, expression.of)
        return None

    def _arithmetic(self, expression: Arithmetic) -> Value:
        sides = self.value(expression.left), self.value(expression.right)
        for side in sides:
            if isinstance(side, UnavailableValue):
                return side
        left, right = _number(sides[0]), _number(sides[1])
        if left is None or right is None:
            return UnavailableValue("an operand is unavailable")
        of, how = expression.of, expression.operator
        if of.kind in FLOATS:
            left, right = _as_float(left, of.kind), _as_float(right, of.kind)
            return _numeric(_float_arithmetic(how, left, right, of), of)
        assert isinstance(left, int) and isinstance(right, int)
        if how in _DIVISIONS and not right:
            return DIVIDED_BY_ZERO
        if how in SHIFTS and right < 0:
            return UnavailableValue("shifted by less than zero")
        bits = 8 * of.size
        result = whole_arithmetic(how, left, right) & (1 << bits) - 1
        if of.kind in SIGNED and result >> bits - 1:
            result -= 1 << bits
        return _numeric(result, of)

    def _lookup(self, expression: Lookup) -> Value:
        found, key = self.value(expression.operand), self.value(expression.key)
        for value in (found, key):
            if isinstance(value, UnavailableValue):
                return value
        if not isinstance(expression.operand.type, MapType):
            index = _number(key)
            if not isinstance(index, int):
                return _NOT_CAPTURED
            return _element(found, index)
        if isinstance(found, Nil):
            return _zero(expression.of)
        if not isinstance(found, MapValue) or found.missing is not None:
            return found.missing if isinstance(found, MapValue) and found.missing else _NOT_CAPTURED
        unsure = found.is_cut
        for entry_key, value in found.entries:
            same = _same_key(entry_key, key)
            if same:
                return value
            unsure = unsure or same is None
        return _NOT_CAPTURED if unsure else _zero(expression.of)

    def _sliced(self, expression: Sliced) -> Value:
        found = self.value(expression.operand)
        bounds: list[int | None] = []
        for bound in (expression.low, expression.high):
            value = self.value(bound) if bound is not None else None
            number = None if value is None else _number(value)
            if bound is not None and not isinstance(number, int):
                return value if isinstance(value, UnavailableValue) else _NOT_CAPTURED
            bounds.append(number)  # type: ignore[arg-type]
        return _part(found, bounds[0] or 0, bounds[1], expression.of)

    def _count_range(self, expression: Typed) -> tuple[float, float] | None:
        """Return the least and the most that a number may be, None if nothing is known of it."""
        if isinstance(expression, Quantifier):
            counted = self._counted(expression)
            return counted if isinstance(counted, tuple) else None
        number = _number(self.value(expression))
        return None if number is None else (number, number)

    def _comparison(self, expression: Comparison) -> bool | None:
        is_count = expression.left.type.kind is not Kind.BOOL and any(
            isinstance(side, Quantifier) for side in (expression.left, expression.right)
        )
        if is_count:
            sides = self._count_range(expression.left), self._count_range(expression.right)
            return _compare_ranges(expression.operator, *sides)
        left, right = self.value(expression.left), self.value(expression.right)
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
        value = self.value(test.operand)
        if isinstance(value, Nil):
            return test.needle == b"" and test.operand.type.kind is not Kind.INTERFACE
        captured = _text(value)
        if captured is None:
            return None
        return _has(captured, test.function, test.needle)


def _numeric(number: int | float, of: GoType) -> Value:
    if of.name == "time.Duration":
        return DurationValue(int(number))
    if of.kind is Kind.FLOAT32:
        number = shortest_float32(number)
    return NamedValue(of.name, number) if of.is_named else number


def _float_arithmetic(how: BinaryOperator, left: float, right: float, of: GoType) -> float:
    if how is BinaryOperator.DIVIDE:
        if right == 0:
            sign = math.copysign(1, left) * math.copysign(1, right)
            result = math.nan if left == 0 or math.isnan(left) else sign * math.inf
        else:
            result = left / right
    else:
        result = _FLOAT_OPERATIONS[how](left, right)
    if of.kind is not Kind.FLOAT32 or not math.isfinite(result):
        return result
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", result))[0]
    except OverflowError:
        return math.copysign(math.inf, result)
    return rounded


#: The results of functions on each character.
_CHANGES: dict[ChangeFunction, Callable[[str], str]] = {
    ChangeFunction.LOWER: lambda character: character.lower()[0],  # as strings.ToLower
}


def _changed(value: Value, change: Callable[[str], str]) -> Value:
    """Return a text with each character changed; of one that is cut as much as is certain."""
    if isinstance(value, UnavailableValue):
        return value
    found = _Text(b"", 0, 0) if isinstance(value, Nil) else _text(value)
    if found is None:
        return UnavailableValue("an operand is unavailable")
    is_whole = len(found.known) == found.most
    text = found.known.decode("utf-8", "surrogateescape")
    if not is_whole and text and "\udc80" <= text[-1] <= "\udcff":
        text = text.rstrip("".join(map(chr, range(0xDC80, 0xDD00))))  # a character may be cut
    # Go looks at each character by itself, and replaces what is not UTF-8.
    content = "".join("\ufffd" if "\udc80" <= c <= "\udcff" else change(c) for c in text).encode()
    # Characters may take another number of bytes.
    return StringValue(content, len(content) if is_whole else None)


def _walked(value: Value, steps: Sequence[PathStep], of: GoType) -> Value:
    for step in steps:
        if isinstance(value, UnavailableValue):
            return value
        if isinstance(step, str):
            plain = unwrapped(value)
            found = plain.field(step) if isinstance(plain, StructValue) else None
            value = _NOT_CAPTURED if found is None else found
        elif isinstance(step, int):
            value = _element(value, step)
        elif isinstance(step, Assertion):
            value = _asserted(value, step)
        elif step is PathMark.DEREF:
            if isinstance(value, Nil):
                return NIL_POINTER
            is_followed = isinstance(value, PointerValue) and value.target is not None
            value = value.target if is_followed else _NOT_CAPTURED  # type: ignore[union-attr, assignment]
        else:
            value = _measured(value, step is PathMark.LEN)
    return value


def _asserted(value: Value, step: Assertion) -> Value:
    """Return the value in an interface, if its type is the one that was asked for."""
    if isinstance(value, InterfaceValue):
        dynamic, inside = value.dynamic, value.value
    elif isinstance(value, ErrorValue):
        dynamic, inside = value.type, value.value
    else:
        return OTHER_TYPE if isinstance(value, Nil) else _NOT_CAPTURED
    if dynamic is None:
        return UnavailableValue("type not known")
    if dynamic != step.name:
        return OTHER_TYPE
    return _NOT_CAPTURED if inside is None else inside


def _part(value: Value, low: int, high: int | None, of: GoType) -> Value:
    """Return a slice of a text or of elements, with as much of it as was captured."""
    if isinstance(value, UnavailableValue):
        return value
    plain = unwrapped(value)
    length: int | None = 0
    capacity: int | None = 0
    if isinstance(plain, StringValue):
        length, capacity = plain.length, None
    elif isinstance(plain, BytesValue | SequenceValue):
        length, capacity = plain.length, plain.capacity
    elif not isinstance(plain, Nil):
        return _NOT_CAPTURED
    end = length if high is None else high
    if low < 0 or (end is not None and low > end) or (end is not None and end < 0):
        return _out_of_bounds(low, high, length)
    if length is not None and end is not None and end > length:
        if capacity is not None and end <= capacity:
            return UnavailableValue("beyond the length, which is as far as is copied")
        return _out_of_bounds(low, high, length)
    left = None if end is None else end - low
    room = None if capacity is None else capacity - low
    if isinstance(plain, StringValue):
        text = StringValue(plain.text[low:end], left)
        return NamedValue(of.name, text) if of.is_named else text
    if isinstance(plain, BytesValue):
        return BytesValue(of.name, plain.data[low:end], left, room)
    if isinstance(plain, SequenceValue):
        assert left is not None
        return SequenceValue(of.name, plain.elements[low:end], left, room)
    return Nil(of.name)


def _out_of_bounds(low: int, high: int | None, length: int | None) -> UnavailableValue:
    of = "" if length is None else f" with length {length}"
    where = f"[{low}:{'' if high is None else high}]"
    return UnavailableValue(f"{_OUT_OF_BOUNDS}{where}{of}: test len() first")


def _measured(value: Value, is_length: bool) -> Value:
    if isinstance(value, Nil):
        return 0
    plain = unwrapped(value)
    found: int | None = None
    if isinstance(plain, StringValue | MapValue) and is_length:
        found = plain.length
    elif isinstance(plain, BytesValue | SequenceValue | ChanValue):
        found = plain.length if is_length else plain.capacity
    return _NOT_CAPTURED if found is None else found


def _element(value: Value, index: int) -> Value:
    if isinstance(value, Nil):
        return _out_of_range([index], 0)
    plain = unwrapped(value)
    elements: Sequence[Value] = ()
    length: int | None
    if isinstance(plain, StringValue):
        elements, length = plain.text, plain.length
    elif isinstance(plain, BytesValue):
        elements, length = plain.data, plain.length
    elif isinstance(plain, SequenceValue):
        elements, length = plain.elements, plain.length
    else:
        return _NOT_CAPTURED
    if index < 0 or (length is not None and index >= length):
        return _out_of_range([index], length)
    return elements[index] if index < len(elements) else _NOT_CAPTURED


def _out_of_range(indices: Sequence[int], length: int | None = None) -> UnavailableValue:
    of = "" if length is None else f" with length {length}"
    where = "".join(f"[{index}]" for index in indices)
    return UnavailableValue(f"{_OUT_OF_RANGE}{where}{of}: test len() first")


def _is_nothing(value: Value) -> bool:
    out_of = (_OUT_OF_RANGE, _OUT_OF_BOUNDS)
    missing = isinstance(value, UnavailableValue) and value.why.startswith(out_of)
    return missing or value in _NOTHING


def _same_key(entry: Value, key: Value) -> bool | None:
    """Return whether a map's key is the one that is looked for, None where that is not known."""
    text = _text(key)
    if text is not None:
        return _compare_texts(BinaryOperator.EQUAL, _text(entry), text)
    one, other = _number(entry), _number(key)
    return None if one is None or other is None else one == other


def _zero(of: GoType) -> Value:
    """Return a type's zero value, as of an entry that a map does not have."""
    if of.kind is Kind.STRING:
        text = StringValue(b"", 0)
        return NamedValue(of.name, text) if of.is_named else text
    if of.kind is Kind.BOOL:
        return NamedValue(of.name, False) if of.is_named else False
    if of.kind in INTEGERS:
        return _numeric(0, of)
    if of.kind in FLOATS:
        return _numeric(0.0, of)
    if of.kind in (Kind.STRUCT, Kind.ARRAY, Kind.INVALID):
        return UnavailableValue("the map has no such entry")
    return Nil(of.name)


def _combined(decisive: bool, left: bool | None, right: bool | None) -> bool | None:
    """Return the truth of ``||`` (``decisive`` true) or ``&&`` of two conditions."""
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _number(value: Value) -> int | float | None:
    """Return the number by which numbers, booleans and addresses compare."""
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
    """Return the known facts about a string, slice of bytes or message."""
    if isinstance(value, ErrorValue):
        message = _encoded(value.message if value.known is None else value.known)
        if value.known is None:
            return _Text(message, len(message), len(message))
        return _Text(message, value.length or len(message), value.length)
    plain = unwrapped(value) if not isinstance(value, InterfaceValue) else value
    if isinstance(plain, StringValue):
        return _of_length(plain.text, plain.length)
    if isinstance(plain, BytesValue):
        return _of_length(plain.data, plain.length)
    if isinstance(plain, SequenceValue):
        return _bytes_of(plain)
    return None


def _of_length(known: bytes, length: int | None) -> _Text:
    """Return a text; ``length`` is None where all that is known of it is that it goes on."""
    return _Text(known, len(known) + 1 if length is None else length, length)


def _bytes_of(sequence: SequenceValue) -> _Text | None:
    """Join the elements of a slice whose elements are a declared kind of byte."""
    elements = [unwrapped(element) for element in sequence.elements]
    if all(isinstance(element, int) and 0 <= element < 256 for element in elements):
        return _of_length(bytes(e for e in elements if isinstance(e, int)), sequence.length)
    return None


def _compare_texts(
    operator: BinaryOperator, left: _Text | None, right: _Text | None
) -> bool | None:
    """Compare two texts; None if their certain parts do not decide."""
    if left is None or right is None:
        return None
    known = min(len(left.known), len(right.known))
    if left.known[:known] != right.known[:known]:
        return RELATIONS[operator](left.known[:known], right.known[:known])
    # They are equal as far as both are known: what follows from all that may come after?
    may_be_as_long = _reaches(left, right.least) and _reaches(right, left.least)
    orders = [0] if may_be_as_long else []
    orders += [1] if _reaches(left, known + 1) else []
    orders += [-1] if _reaches(right, known + 1) else []
    truths = {RELATIONS[operator](order, 0) for order in orders}
    return truths.pop() if len(truths) == 1 else None


def _compare_ranges(
    operator: BinaryOperator, left: tuple[float, float] | None, right: tuple[float, float] | None
) -> bool | None:
    """Compare two numbers of which only the least and the most are known; None if undecided."""
    if left is None or right is None:
        return None
    orders = [-1] if left[0] < right[1] else []
    orders += [1] if left[1] > right[0] else []
    orders += [0] if max(left[0], right[0]) <= min(left[1], right[1]) else []
    truths = {RELATIONS[operator](order, 0) for order in orders}
    return truths.pop() if len(truths) == 1 else None


def _reaches(text: _Text, length: int) -> bool:
    """Return whether a text may have so many bytes, or more."""
    return text.most is None or text.most >= length


def _has(text: _Text, function: TextFunction, needle: bytes) -> bool | None:
    """Return whether a text has a needle where a function looks for it, None if not known."""
    known, size = text.known, len(needle)
    if function is TextFunction.CONTAINS and needle in known:
        return True
    if not _reaches(text, size):
        return False
    last = len(known) if text.most is None else min(text.most - size, len(known))
    places = range(1)
    if function is TextFunction.SUFFIX:
        places = range(min(max(text.least - size, 0), len(known)), last + 1)
    elif function is TextFunction.CONTAINS:
        places = range(max(len(known) - size + 1, 0), last + 1)
    found = {_has_at(known, needle, place) for place in places}
    return False if not found else found.pop() if len(found) == 1 else None


def _has_at(known: bytes, needle: bytes, place: int) -> bool | None:
    """Return whether a text has a needle at a place, None if the known part does not decide."""
    part = known[place : place + len(needle)]
    return (part == needle or None) if needle.startswith(part) else False
