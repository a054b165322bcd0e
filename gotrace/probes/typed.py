# SPDX-License-Identifier: Apache-2.0
"""Expressions whose names and types are known: resolving makes them, evaluating uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum

from gotrace.capture.paths import PathMark, PathStep
from gotrace.gotypes.types import GoType, Kind, SliceType, basic_type
from gotrace.probes.parser import (
    BinaryOperator,
    ChangeFunction,
    QuantifierFunction,
    TextFunction,
)
from gotrace.probes.scope import LATE_SPECIALS, PART_SPECIALS, Phase, Root, SpecialName
from gotrace.probes.tokens import TextRange
from gotrace.records import dataclass, field


@dataclass(frozen=True, slots=True)
class AccessPath:
    """A way from a parameter or result to one value, in the terms of ``capture.paths``."""

    root: Root
    steps: tuple[PathStep, ...] = ()


_BOOL = basic_type(Kind.BOOL)
_INT = basic_type(Kind.INT)
_STRING = basic_type(Kind.STRING)


@dataclass(frozen=True, slots=True)
class Typed:
    """A part of a checked expression; ``span`` is its place in the probe's text."""

    span: TextRange = field(default=TextRange(0, 0), kw_only=True, compare=False)

    @property
    def type(self) -> GoType:
        """Return the type: bool for all that compares or combines."""
        return _BOOL


@dataclass(frozen=True, slots=True)
class Constant(Typed):
    """A constant, converted to its type: numbers fit, strings are bytes."""

    value: bool | int | float | bytes
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Operand(Typed):
    """A value of the call; ``measures_bytes``: it is the length or capacity of some."""

    path: AccessPath
    of: GoType
    measures_bytes: bool = field(default=False, compare=False)

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class SpecialOperand(Typed):
    """The value of a ``$`` name other than a result."""

    special: SpecialName
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


class Domain(Enum):
    """How two values are compared."""

    SIGNED = "signed integers"
    UNSIGNED = "unsigned integers"  # booleans and pointers too
    FLOAT = "floats"
    STRING = "strings"


@dataclass(frozen=True, slots=True)
class Comparison(Typed):
    """A comparison of two values; the operator is none of ``&&`` and ``||``."""

    operator: BinaryOperator
    left: Typed
    right: Typed
    domain: Domain


@dataclass(frozen=True, slots=True)
class NilTest(Typed):
    """``operand == nil``, or ``!=`` when not ``equal``."""

    operand: Typed
    equal: bool


@dataclass(frozen=True, slots=True)
class TextTest(Typed):
    """``prefix(operand, needle)``, ``suffix(operand, needle)`` or ``contains(operand, needle)``.

    The operand is a string, a slice of bytes, or an error, of which the message is meant. Where
    what is captured of it does not decide, the truth is unknown.
    """

    function: TextFunction
    operand: Typed
    needle: bytes


@dataclass(frozen=True, slots=True)
class Arithmetic(Typed):
    """``left operator right`` of two numbers of one type; of a shift, the right one has any."""

    operator: BinaryOperator
    left: Typed
    right: Typed
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Changed(Typed):
    """The text that a function makes of another one."""

    operand: Typed
    function: ChangeFunction

    @property
    def type(self) -> GoType:
        return _STRING


@dataclass(frozen=True, slots=True)
class Lookup(Typed):
    """``operand[key]``: an entry of a map, the zero value where there is none, or an element."""

    operand: Typed
    key: Typed
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Walk(Typed):
    """The end of steps from a value that is not captured by itself, such as a map's entry."""

    operand: Typed
    steps: tuple[PathStep, ...]
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Sliced(Typed):
    """``operand[low:high]`` of a text or of elements; a bound that is left out is None."""

    operand: Typed
    low: Typed | None
    high: Typed | None
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Bound(Typed):
    """A name for each element, each index or each key; ``number`` tells those of a probe apart."""

    number: int
    of: GoType

    @property
    def type(self) -> GoType:
        return self.of


@dataclass(frozen=True, slots=True)
class Quantifier(Typed):
    """Whether a condition is true of any or all elements, or of how many it is.

    ``place`` is the name for indices, or for a map's keys.
    """

    function: QuantifierFunction
    collection: Typed
    place: Bound | None
    element: Bound | None
    condition: Typed

    @property
    def type(self) -> GoType:
        return _INT if self.function is QuantifierFunction.COUNT else _BOOL


@dataclass(frozen=True, slots=True)
class Not(Typed):
    """``!operand``."""

    operand: Typed


@dataclass(frozen=True, slots=True)
class Logic(Typed):
    """``left && right`` or ``left || right``."""

    operator: BinaryOperator
    left: Typed
    right: Typed


def _children(expression: Typed) -> tuple[Typed, ...]:
    if isinstance(expression, Comparison | Logic | Arithmetic):
        return expression.left, expression.right
    if isinstance(expression, Lookup):
        return expression.operand, expression.key
    if isinstance(expression, Sliced):
        bounds = (one for one in (expression.low, expression.high) if one is not None)
        return expression.operand, *bounds
    if isinstance(expression, Quantifier):
        return expression.collection, expression.condition
    if isinstance(expression, NilTest | TextTest | Not | Changed | Walk):
        return (expression.operand,)
    return ()


def _walk(expression: Typed) -> Iterator[Typed]:
    stack = [expression]
    while stack:
        part = stack.pop()
        yield part
        stack += reversed(_children(part))


def operands(expression: Typed) -> tuple[Operand, ...]:
    """List the values of the call that an expression reads, each path once."""
    found = {part.path: part for part in _walk(expression) if isinstance(part, Operand)}
    return tuple(found.values())


def elements_looked_up(expressions: Iterable[Typed]) -> dict[AccessPath, int]:
    """Return how many elements are needed of slices that are entries of a map, or elements.

    Of those of which no more is asked than elements at constant indices, as of r.Header in
    ``r.Header["Accept"][0]``; others are not listed.
    """
    uses: Counter[AccessPath] = Counter()
    indexed: Counter[AccessPath] = Counter()
    needed: dict[AccessPath, int] = {}
    for part in (part for expression in expressions for part in _walk(expression)):
        if isinstance(part, Operand):
            uses[part.path] += 1
        elif isinstance(part, Walk | NilTest) and isinstance(part.operand, Lookup):
            of, step = part.operand.operand, part.steps[0] if isinstance(part, Walk) else 0
            index = 0 if step is PathMark.LEN else step
            is_slice = isinstance(part.operand.of, SliceType)
            if isinstance(index, int) and is_slice and isinstance(of, Operand):
                indexed[of.path] += 1
                needed[of.path] = max(needed.get(of.path, 0), index + 1)
    return {path: count for path, count in needed.items() if indexed[path] == uses[path]}


def looks_up(expression: Typed) -> bool:
    """Return whether an expression looks up entries of maps or elements, or asks each of them."""
    return any(isinstance(part, Lookup | Quantifier) for part in _walk(expression))


def specials(expression: Typed) -> tuple[SpecialOperand, ...]:
    """List the ``$`` names that an expression reads, other than results."""
    return tuple(part for part in _walk(expression) if isinstance(part, SpecialOperand))


def phase_of(expression: Typed) -> Phase:
    """Return when an expression can be evaluated: at the return if it reads values of then."""
    for part in _walk(expression):
        if isinstance(part, Operand) and part.path.root.phase is Phase.RETURN:
            return Phase.RETURN
        if isinstance(part, SpecialOperand) and part.special in LATE_SPECIALS:
            return Phase.RETURN
    return Phase.ENTRY


def unit_of(expression: Typed) -> str | None:
    """Return the unit of a number: ``ns``, or ``bytes`` of a text; None if it has none."""
    if expression.type.name == "time.Duration":
        return "ns"
    if isinstance(expression, Operand) and expression.measures_bytes:
        return "bytes"
    return None


def part_specials(expression: Typed) -> bool:
    """Return whether an expression reads the parts of a call's time."""
    return any(
        isinstance(part, SpecialOperand) and part.special in PART_SPECIALS
        for part in _walk(expression)
    )


def string_bytes_needed(expression: Typed) -> dict[AccessPath, int]:
    """Return how many bytes of each string must be captured for its tests to be decided.

    For contains() these are as many as make it true; for the contrary, and for comparisons of two
    strings of the call, there is no number: see ``texts_needed_whole``.
    """
    needed: dict[AccessPath, int] = {}

    def need(operand: Typed, count: int) -> None:
        while isinstance(operand, Changed | Sliced):
            count += _offset(operand.low) if isinstance(operand, Sliced) else 0
            operand = operand.operand
        if isinstance(operand, Operand):
            needed[operand.path] = max(needed.get(operand.path, 0), count)

    for part in _walk(expression):
        if isinstance(part, TextTest):
            need(part.operand, len(part.needle))
        elif isinstance(part, Comparison) and part.domain is Domain.STRING:
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(other, Constant) and isinstance(other.value, bytes):
                    # One byte more shows whether a string goes on after the constant.
                    need(one, len(other.value) + 1)
    return needed


def _offset(bound: Typed | None) -> int:
    """Return a bound that is a constant, or 0."""
    is_known = isinstance(bound, Constant) and isinstance(bound.value, int)
    return bound.value if is_known else 0  # type: ignore[union-attr]


def sliced_bytes(expression: Typed, usual: int) -> dict[AccessPath, int]:
    """Return how many bytes of each text a slice of it ends at; ``usual`` are shown of an open one.

    Only constant bounds are known beforehand.
    """
    needed: dict[AccessPath, int] = {}
    for part in _walk(expression):
        if isinstance(part, Sliced) and isinstance(part.operand, Operand):
            end = _offset(part.high) or _offset(part.low) + usual
            path = part.operand.path
            needed[path] = max(needed.get(path, 0), end)
    return needed


def texts_needed_whole(expression: Typed) -> tuple[AccessPath, ...]:
    """List the texts that an expression may look at to their end, however long they are.

    Collections whose elements are asked are among them: they may be bytes.
    """
    found: dict[AccessPath, None] = {}
    for part in _walk(expression):
        sides: tuple[Typed, ...] = ()
        if isinstance(part, TextTest) and part.function is not TextFunction.PREFIX:
            sides = (part.operand,)
        elif isinstance(part, Comparison) and part.domain is Domain.STRING:
            sides = part.left, part.right
        elif isinstance(part, Quantifier):
            sides = (part.collection,)
        sides = tuple(s.operand if isinstance(s, Changed | Sliced) else s for s in sides)
        if all(isinstance(side, Operand) for side in sides):
            found |= {side.path: None for side in sides if isinstance(side, Operand)}
    return tuple(found)


def conjuncts(expression: Typed) -> list[Typed]:
    """Split an expression at its outermost ``&&``, in order."""
    if isinstance(expression, Logic) and expression.operator is BinaryOperator.AND:
        return [*conjuncts(expression.left), *conjuncts(expression.right)]
    return [expression]


def conjunction(parts: list[Typed]) -> Typed | None:
    """Join expressions by ``&&``, None when there are none."""
    joined: Typed | None = None
    for part in parts:
        joined = part if joined is None else Logic(BinaryOperator.AND, joined, part)
    return joined


_OPPOSITE = {
    BinaryOperator.EQUAL: BinaryOperator.NOT_EQUAL,
    BinaryOperator.LESS: BinaryOperator.GREATER_EQUAL,
    BinaryOperator.LESS_EQUAL: BinaryOperator.GREATER,
    BinaryOperator.AND: BinaryOperator.OR,
}
_OPPOSITE |= {opposite: operator for operator, opposite in _OPPOSITE.items()}


def negated(expression: Typed, negative: bool = False) -> Typed:
    """Move every ``!`` inward to where it applies to a single operand (De Morgan).

    With ``negative``, of ``!expression``. Comparisons of floats keep theirs: a NaN is neither less
    than anything nor greater or equal.
    """
    if isinstance(expression, Not):
        return negated(expression.operand, not negative)
    if isinstance(expression, Logic):
        left, right = negated(expression.left, negative), negated(expression.right, negative)
        operator = _OPPOSITE[expression.operator] if negative else expression.operator
        return Logic(operator, left, right, span=expression.span)
    if not negative:
        return expression
    if isinstance(expression, Comparison) and expression.domain is not Domain.FLOAT:
        opposite = _OPPOSITE[expression.operator]
        sides = expression.left, expression.right
        return Comparison(opposite, *sides, expression.domain, span=expression.span)
    if isinstance(expression, NilTest):
        return NilTest(expression.operand, not expression.equal, span=expression.span)
    return Not(expression, span=expression.span)
