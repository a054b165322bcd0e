# SPDX-License-Identifier: Apache-2.0
"""Types of the names in a probe's expressions, checked by Go's rules.

A path walks from a value's type to the types of what it holds: fields, elements, targets, lengths.
Where Go refuses, so does this (The Go Programming Language Specification, "Comparison operators"
and "Representability"), with leniencies that cost nothing: numbers of different types may be
compared when they compare exactly, and any number of pointers is followed to a field.
"""

from __future__ import annotations

from gotrace.capture.paths import HASH, Assertion, PathMark, PathStep
from gotrace.gotypes.from_text import SignatureError, UnknownTypeError
from gotrace.gotypes.types import (
    ArrayType,
    ChanType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    OpaqueType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.probes.constants import (
    ARITHMETIC,
    FLOATS,
    INTEGERS,
    SHIFTS,
    SIGNED,
    ConstantError,
    Untyped,
    converted,
    default_constant,
    described,
    fold,
    fold_arithmetic,
    is_of_floats,
)
from gotrace.probes.parser import (
    CONTEXTS,
    SPAN_NAMES,
    AssertExpr,
    BinaryExpr,
    BinaryOperator,
    CallExpr,
    ChangeFunction,
    DerefExpr,
    ExitExpr,
    Expression,
    FieldExpr,
    IndexExpr,
    LabelExpr,
    LikeExpr,
    LiteralExpr,
    LiteralKind,
    LookupExpr,
    MeasureFunction,
    NameExpr,
    QuantifierExpr,
    SliceExpr,
    SpanExpr,
    SpecialExpr,
    TextFunction,
    UnaryExpr,
    UnaryOperator,
)
from gotrace.probes.scope import (
    MAX_LABEL_KEY,
    REQUEST,
    SPECIAL_TYPES,
    Root,
    RootKind,
    Scope,
    SpecialName,
    did_you_mean,
    listed,
)
from gotrace.probes.tokens import Source, SpecError
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
)
from gotrace.records import replace
from gotrace.text import quote

#: The steps that an operator means, dereferences included, and the type that they lead to.
Hop = tuple[tuple[PathStep, ...], GoType]

_POINTER_SHAPE = "go.shape.*"
#: The type of lengths.
INT = basic_type(Kind.INT)
#: The type of what an interface holds: nil, as the interface is, or something with a name.
_DYNAMIC_TYPE = InterfaceType("type", Kind.INTERFACE, 16, 8, is_empty=True)
_MAX_POINTERS = 4  # `type P *P` has no end
_MAX_PROMOTION = 8  # levels of embedding
_MAX_EMBEDDED = 1000  # structs looked through on one level


class StepError(Exception):
    """Why a type has no such field, element, target or length; callers add the place."""


def deref(of: GoType) -> Hop:
    """Follow a pointer; raises StepError."""
    if not isinstance(of, PointerType):
        if of.kind is Kind.UNSAFE_POINTER:
            raise StepError("an unsafe.Pointer does not say what it points to")
        raise StepError(f"{described(of)} is not a pointer: leave the * out")
    _check_known(of)
    return (PathMark.DEREF,), of.elem


def _check_known(of: GoType) -> None:
    """Raise StepError for the type that stands for all pointers in generic code."""
    if of.name.startswith(_POINTER_SHAPE):
        raise StepError(
            "instances for all pointer types share this code, and only a call says what it points"
            " to: compare it with nil, or probe a function that is not generic"
        )


def _through_pointers(of: GoType) -> Hop:
    """Follow pointers to the first type that is none."""
    steps: list[PathStep] = []
    while isinstance(of, PointerType) and len(steps) < _MAX_POINTERS:
        steps.append(PathMark.DEREF)
        of = of.elem
    return tuple(steps), of


def field_of(of: GoType, name: str) -> Hop:
    """Find a field by name, a promoted one too, through pointers; raises StepError."""
    _check_known(of)
    steps, target = _through_pointers(of)
    if isinstance(target, StructType):
        found = _promoted(target, name)
        if found is None:
            raise StepError(_no_field(target, name))
        return (*steps, *found[0]), found[1]
    if isinstance(target, InterfaceType):
        raise StepError(
            f"{described(target)} is an interface, which has no fields: "
            "compare it with nil, or say what is in it, as in x.(*net/http.response)"
        )
    if isinstance(target, OpaqueType):
        raise StepError(f"nothing describes the fields of {target.name}")
    raise StepError(f"{described(target)} has no fields{_instead(target)}")


def _instead(of: GoType) -> str:
    if isinstance(of, SliceType | ArrayType):
        return ": index an element first, as in [0]"
    if isinstance(of, MapType | ChanType):
        return ": len() gives its length"
    return ""


def _promoted(struct: StructType, name: str) -> Hop | None:
    """Find a field at the shallowest depth that has it, as Go's selectors do.

    Where two embedded structs of one depth have it, Go refuses; the first is taken.
    """
    level: list[tuple[tuple[PathStep, ...], StructType]] = [((), struct)]
    for _ in range(_MAX_PROMOTION):
        for steps, candidate in level:
            field = candidate.field(name)
            if field is not None:
                return (*steps, name), field.type
        level = [
            ((*steps, embedded.name, *inner), target)
            for steps, candidate in level
            for embedded in candidate.fields
            if embedded.embedded
            for inner, target in [_through_pointers(embedded.type)]
            if isinstance(target, StructType)
        ][:_MAX_EMBEDDED]
    return None


def _no_field(struct: StructType, name: str) -> str:
    names = [field.name for field in struct.fields if field.name != "_"]
    if not names:
        return f"{struct.name} has no fields"
    hint = did_you_mean(name, names)
    has = f"its fields are {listed(names)}"
    return f"{struct.name} has no field {name!r}: {f'{hint} ({has})' if hint else has}"


def element(of: GoType, index: int) -> Hop:
    """Find an element of an array, slice or string, through pointers; raises StepError."""
    steps, target = _through_pointers(of)
    if target.kind is Kind.STRING:
        return (*steps, index), basic_type(Kind.UINT8)
    if isinstance(target, ArrayType):
        if index >= target.length:
            last = f"the last is [{target.length - 1}]" if target.length else "it is empty"
            raise StepError(f"{target.name} has no element [{index}]: {last}")
        return (*steps, index), target.elem
    if isinstance(target, SliceType):
        return (*steps, index), target.elem
    raise StepError(
        f"{described(target)} has no elements: arrays, slices, strings and maps can be indexed"
    )


def measure(of: GoType, function: MeasureFunction) -> Hop | int:
    """Find the way to a value's length or capacity, or to the type of an interface's value.

    That is the number itself for an array. Raises StepError.
    """
    steps, target = _through_pointers(of)
    if function is MeasureFunction.TYPE:
        if not isinstance(target, InterfaceType):
            raise StepError(f"{described(target)} is not an interface: its type is always the same")
        return (*steps, PathMark.TYPE), _DYNAMIC_TYPE
    if isinstance(target, ArrayType):
        return target.length
    measured = isinstance(target, SliceType | ChanType)
    if function is MeasureFunction.LEN:
        measured = measured or isinstance(target, MapType) or target.kind is Kind.STRING
    if not measured:
        kinds = "slices, arrays and channels"
        if function is MeasureFunction.LEN:
            kinds = "strings, slices, arrays, maps and channels"
        raise StepError(f"{described(target)} has no {function.value}(): only {kinds} have")
    mark = PathMark.LEN if function is MeasureFunction.LEN else PathMark.CAP
    return (*steps, mark), INT


_NILLABLE = {
    Kind.POINTER,
    Kind.UNSAFE_POINTER,
    Kind.MAP,
    Kind.CHAN,
    Kind.FUNC,
    Kind.SLICE,
    Kind.INTERFACE,
}
_ADDRESSES = {Kind.POINTER, Kind.UNSAFE_POINTER, Kind.CHAN}
_EQUALITY = {BinaryOperator.EQUAL, BinaryOperator.NOT_EQUAL}
#: Slices of bytes whose bytes are not shown: they print as addresses.
_SHOWN_OTHERWISE = {"net.IP", "net.HardwareAddr"}
_IDS = ((PathMark.TRACE_ID,), (PathMark.SPAN_ID,))
_LOGIC = {BinaryOperator.AND, BinaryOperator.OR}
_MIRRORED = {
    BinaryOperator.LESS: BinaryOperator.GREATER,
    BinaryOperator.LESS_EQUAL: BinaryOperator.GREATER_EQUAL,
    BinaryOperator.GREATER: BinaryOperator.LESS,
    BinaryOperator.GREATER_EQUAL: BinaryOperator.LESS_EQUAL,
}


def resolve(source: Source, expression: Expression, scope: Scope) -> Typed:
    """Check an expression against a function's names and types.

    Raises SpecError, which names the place and what would be right there.
    """
    resolver = _Resolver(source, scope)
    return resolver.finished(resolver.resolve(expression))


def resolve_predicate(source: Source, expression: Expression, scope: Scope) -> Typed:
    """Check an expression that must be a condition; raises SpecError."""
    typed = resolve(source, expression, scope)
    if typed.type.kind is not Kind.BOOL:
        raise source.error(expression.span, _no_condition(typed))
    return typed


def _no_condition(typed: Typed) -> str:
    kind = typed.type.kind
    compare = "compare it, as in == 0"
    if kind is Kind.STRING:
        compare = 'compare it, as in == "GET"'
    elif kind in _NILLABLE:
        compare = "compare it with nil"
    elif kind in (Kind.STRUCT, Kind.ARRAY):
        compare = "compare a part of it"
    return f"this is {described(typed.type)} and no condition: {compare}"


#: Expressions whose parts can be asked for.
_HAVING_PARTS = (Operand, Walk, Lookup, Sliced, Bound)
_NOT_LOOKED_AT = "what is in this interface is not looked at here"


class _Resolver:
    """A walk over one expression; parts that no type was given to stay Untyped."""

    def __init__(self, source: Source, scope: Scope) -> None:
        self._source = source
        self._scope = scope
        #: Names for elements of what is asked about now, the innermost last.
        self._bound: list[tuple[str, Bound]] = []
        self._names = 0

    def finished(self, typed: Typed) -> Typed:
        """Return an untyped constant its default type."""
        if not isinstance(typed, Untyped):
            return typed
        try:
            return default_constant(typed)
        except ConstantError as error:
            raise self._error(typed, str(error)) from error

    def _error(self, where: Expression | Typed, reason: str) -> SpecError:
        return self._source.error(where.span, reason)

    def resolve(self, expression: Expression) -> Typed:
        if isinstance(expression, LiteralExpr):
            return Untyped(expression.kind, expression.value, span=expression.span)
        if isinstance(expression, NameExpr):
            return self._name(expression)
        if isinstance(expression, SpecialExpr):
            return self._special(expression)
        if isinstance(expression, UnaryExpr):
            return self._unary(expression)
        if isinstance(expression, BinaryExpr):
            return self._binary(expression)
        if isinstance(expression, CallExpr):
            return self._call(expression)
        if isinstance(expression, LookupExpr):
            key = self.resolve(expression.key)
            return self._lookup(expression, self.resolve(expression.operand), key)
        if isinstance(expression, SliceExpr):
            return self._sliced(expression)
        if isinstance(expression, QuantifierExpr):
            return self._quantifier(expression)
        if isinstance(expression, AssertExpr):
            return self._assertion(expression)
        if isinstance(expression, ExitExpr):
            return self._at_exit(expression)
        if isinstance(expression, LikeExpr):
            reason = "$like() is the whole of an expression that calls are grouped by"
            raise self._error(expression, reason)
        if isinstance(expression, LabelExpr):
            return self._label(expression)
        if isinstance(expression, SpanExpr):
            operand = self.resolve(expression.operand)
            return self._of_span(expression.name, operand, expression)
        return self._step(expression)

    def _label(self, label: LabelExpr) -> Typed:
        problem = self._scope.labels() if self._scope.labels else None
        size = len(label.key.encode("utf-8", "surrogateescape"))
        if size > MAX_LABEL_KEY:
            problem = f"a label's key has at most {MAX_LABEL_KEY} bytes here, and this one {size}"
        if problem is not None:
            raise self._error(label, problem)
        root = Root(RootKind.LABEL, 0, label.key)
        return Operand(AccessPath(root), basic_type(Kind.STRING), span=label.span)

    def _name(self, name: NameExpr) -> Typed:
        for text, bound in reversed(self._bound):
            if text == name.name:
                return replace(bound, span=name.span)
        found = self._scope.named(name.name)
        if found is None:
            raise self._error(name, self._scope.no_such_name(name.name))
        return Operand(AccessPath(found[0]), found[1], span=name.span)

    def _special(self, special: SpecialExpr) -> Typed:
        result = self._scope.result(special.name)
        if result is not None:
            return Operand(AccessPath(result[0]), result[1], span=special.span)
        if special.name in (*SPAN_NAMES, CONTEXTS):
            found = self._scope.context()
            if found is None:
                reason = (
                    "no parameter that is a context.Context or an *http.Request: give a context"
                )
                where = f"{self._scope.function} has {reason}, as in ${special.name}(r.ctx)"
                raise self._error(special, where)
            operand = Operand(AccessPath(found[0]), found[1], span=special.span)
            return self._of_span(special.name, operand, special)
        try:
            name = SpecialName(special.name)
        except ValueError:
            reason = self._scope.no_such_special(special.name)
            raise self._error(special, reason) from None
        return SpecialOperand(name, SPECIAL_TYPES[name], span=special.span)

    def _step(self, expression: Expression) -> Typed:
        assert isinstance(expression, FieldExpr | IndexExpr | DerefExpr)
        operand = self._operand(expression.operand)
        of = _through_pointers(operand.type)[1]
        if isinstance(operand, Operand) and operand.path.steps[-1:] in _IDS:
            raise self._error(
                expression, "an id has no fields: compare the whole id, or use prefix()"
            )
        if isinstance(expression, IndexExpr) and isinstance(of, MapType):
            index = Untyped(LiteralKind.INT, expression.index, span=expression.span)
            return self._lookup(expression, operand, index)
        try:
            if isinstance(expression, FieldExpr):
                steps, to = field_of(operand.type, expression.name)
            elif isinstance(expression, IndexExpr):
                steps, to = element(operand.type, expression.index)
            else:
                steps, to = deref(operand.type)
        except StepError as error:
            raise self._error(expression, str(error)) from error
        return self._stepped(operand, steps, to, expression)

    def _stepped(
        self, operand: Typed, steps: tuple[PathStep, ...], to: GoType, at: Expression
    ) -> Typed:
        """Return the end of steps: captured by itself, or found in a captured value."""
        if isinstance(operand, Operand):
            path = AccessPath(operand.path.root, (*operand.path.steps, *steps))
            return Operand(path, to, span=at.span)
        if isinstance(operand, Walk):
            return Walk(operand.operand, (*operand.steps, *steps), to, span=at.span)
        return Walk(operand, steps, to, span=at.span)

    def _operand(self, expression: Expression) -> Typed:
        typed = self.resolve(expression)
        if not isinstance(typed, _HAVING_PARTS):
            raise self._error(expression, "only a parameter or result has fields and elements")
        return typed

    def _lookup(self, expression: Expression, operand: Typed, key: Typed) -> Typed:
        """Resolve an index that is no plain number, or one of a map."""
        if not isinstance(operand, _HAVING_PARTS):
            raise self._error(expression, "only a parameter or result has fields and elements")
        steps, of = _through_pointers(operand.type)
        if steps:
            operand = self._stepped(operand, steps, of, expression)
        try:
            if isinstance(of, MapType):
                if of.key.kind not in INTEGERS | {Kind.STRING, Kind.BOOL}:
                    reason = f"{described(of)} is not looked up: its keys are {of.key.name}s"
                    raise self._error(expression, reason)
                key = converted(key, of.key) if isinstance(key, Untyped) else key
                if _domain(key.type, of.key) is None:
                    reason = f"the keys of {described(of)} are {of.key.name}s, this is"
                    raise self._error(key, f"{reason} {described(key.type)}")
                return Lookup(operand, key, of.elem, span=expression.span)
            if isinstance(key, Untyped):
                key = converted(key, INT)
                if isinstance(key.value, int) and key.value < 0:
                    raise self._error(key, "an index must not be negative")
        except ConstantError as error:
            raise self._error(key, str(error)) from error
        if key.type.kind not in INTEGERS:
            raise self._error(key, f"an index must be a whole number, not {described(key.type)}")
        try:
            _, elem = element(of, 0)
        except StepError as error:
            raise self._error(expression, str(error)) from error
        return Lookup(operand, key, elem, span=expression.span)

    def _sliced(self, expression: SliceExpr) -> Typed:
        operand = self._operand(expression.operand)
        steps, of = _through_pointers(operand.type)
        if isinstance(of, ArrayType):
            to: GoType = SliceType(f"[]{of.elem.name}", Kind.SLICE, 24, 8, Lazy.of(of.elem))
        elif isinstance(of, SliceType) or of.kind is Kind.STRING:
            to = of
        else:
            reason = f"{described(of)} cannot be sliced: arrays, slices and strings can"
            raise self._error(expression, reason)
        if steps:
            operand = self._stepped(operand, steps, of, expression)
        low, high = (self._slice_bound(bound, of) for bound in (expression.low, expression.high))
        if isinstance(low, Constant) and isinstance(high, Constant):
            first, last = low.value, high.value
            if isinstance(first, int) and isinstance(last, int) and first > last:
                raise self._error(expression, f"the bounds are reversed: {first} > {last}")
        return Sliced(operand, low, high, to, span=expression.span)

    def _slice_bound(self, expression: Expression | None, of: GoType) -> Typed | None:
        if expression is None:
            return None
        bound = self.resolve(expression)
        try:
            bound = converted(bound, INT) if isinstance(bound, Untyped) else bound
        except ConstantError as error:
            raise self._error(bound, str(error)) from error
        if bound.type.kind not in INTEGERS:
            reason = f"a bound must be a whole number, not {described(bound.type)}"
            raise self._error(bound, reason)
        if isinstance(bound, Constant) and isinstance(bound.value, int):
            if bound.value < 0:
                raise self._error(bound, "a bound must not be negative")
            if isinstance(of, ArrayType) and bound.value > of.length:
                raise self._error(bound, f"{of.name} ends at {of.length}")
        return bound

    def _quantifier(self, expression: QuantifierExpr) -> Typed:
        """Resolve a condition on each element; names are as ``range`` has them, of one see below.

        A single name is that of the element, of a map that of the key.
        """
        function = expression.function
        collection = self._operand(expression.collection)
        steps, of = _through_pointers(collection.type)
        if not isinstance(of, SliceType | ArrayType | MapType):
            reason = f"{function.value}() asks elements of slices, arrays and maps"
            if of.kind is Kind.STRING:
                reason += ': contains(s, "text") looks into a string'
            raise self._error(expression.collection, f"{reason}, and this is {described(of)}")
        if steps:
            collection = self._stepped(collection, steps, of, expression.collection)
        is_map = isinstance(of, MapType)
        places: GoType = of.key if isinstance(of, MapType) else INT
        types = [places, of.elem]
        if len(expression.names) == 1:
            types = [places if is_map else of.elem]
        bound: list[Bound] = []
        for name, of_name in zip(expression.names, types, strict=True):
            self._names += 1
            bound.append(Bound(self._names, of_name, span=name.span))
        names = [name.name for name in expression.names]
        self._bound += [one for one in zip(names, bound, strict=True) if one[0] != "_"]
        before = len(self._bound)
        try:
            condition = self._condition(self.resolve(expression.condition))
        finally:
            del self._bound[before - sum(name != "_" for name in names) :]
        place = bound[0] if is_map or len(bound) == 2 else None
        element = bound[-1] if not is_map or len(bound) == 2 else None
        return Quantifier(function, collection, place, element, condition, span=expression.span)

    def _assertion(self, expression: AssertExpr) -> Typed:
        operand = self._operand(expression.operand)
        if operand.type.kind is not Kind.INTERFACE:
            reason = f"{described(operand.type)} is not an interface: leave .({'...'}) out"
            raise self._error(expression, reason)
        if self._scope.types is None:
            raise self._error(expression, _NOT_LOOKED_AT)
        try:
            to, direct = self._scope.types(expression.type_text)
        except SignatureError as error:
            raise self._error(expression, str(error)) from error
        if to.kind is Kind.INTERFACE:
            raise self._error(expression, f"{to.name} is an interface: give the type that is in it")
        step = Assertion(to.name, to, direct)
        return self._stepped(operand, (step,), to, expression)

    def _of_span(self, name: str, context: Typed, at: Expression) -> Typed:
        """Resolve a name of the span in a context, or in the context of a request."""
        if not isinstance(context, Operand):
            reason = f"${name}() is of a parameter or result, or a field of one: of a context"
            raise self._error(at, reason)
        steps, of = _through_pointers(context.type)
        try:
            if of.name == REQUEST:
                more, of = field_of(of, "ctx")
                steps = (*steps, *more)
        except StepError as error:
            raise self._error(at, str(error)) from error
        if of.kind is not Kind.INTERFACE:
            reason = f"${name}() is of a context.Context, and this is {described(context.type)}"
            raise self._error(context, reason)
        is_span = name in SPAN_NAMES and self._scope.spans is not None
        problem = self._scope.spans() if is_span and self._scope.spans else None
        if problem is not None:
            raise self._error(at, problem)
        mark = PathMark(name)
        to = basic_type(Kind.BOOL if mark is PathMark.SAMPLED else Kind.STRING)
        return self._stepped(context, (*steps, mark), to, at)

    def _at_exit(self, expression: ExitExpr) -> Typed:
        typed = self.resolve(expression.operand)
        try:
            return replace(_at_return(typed), span=expression.span)
        except StepError as error:
            raise self._error(expression, str(error)) from error

    def _unary(self, expression: UnaryExpr) -> Typed:
        operand = self.resolve(expression.operand)
        if expression.operator is not UnaryOperator.NOT:
            how, start = _SIGNS[expression.operator]
            is_number = operand.is_number if isinstance(operand, Untyped) else _is_number(operand)
            if not is_number:
                reason = f"only a number can have {expression.operator.value} before it"
                raise self._error(expression, reason)
            of = operand.type.kind if not isinstance(operand, Untyped) else Kind.INT
            if of in FLOATS and how is not BinaryOperator.BIT_XOR:
                # Zero has a sign: 0 - x would lose it.
                start = -1 if how is BinaryOperator.SUBTRACT else 1
                how = BinaryOperator.MULTIPLY
            elif start < 0 and of not in SIGNED:
                start = (1 << 8 * operand.type.size) - 1
            zero = Untyped(LiteralKind.INT, start, span=expression.span)
            return self._arithmetic(how, zero, operand, expression)
        return Not(self._condition(operand), span=expression.span)

    def _condition(self, typed: Typed) -> Typed:
        typed = self.finished(typed)
        if typed.type.kind is not Kind.BOOL:
            raise self._error(typed, _no_condition(typed))
        return typed

    def _binary(self, expression: BinaryExpr) -> Typed:
        left, operator = self.resolve(expression.left), expression.operator
        if operator in _EQUALITY and isinstance(expression.right, NameExpr):
            self._refuse_bare_text(left, expression.right)
        right = self.resolve(expression.right)
        if operator in _LOGIC:
            sides = self._condition(left), self._condition(right)
            return Logic(operator, *sides, span=expression.span)
        if operator in ARITHMETIC:
            return self._arithmetic(operator, left, right, expression)
        try:
            compared = self._compared(operator, left, right)
        except ConstantError as error:
            wrong = left if isinstance(left, Untyped) else right
            raise self._error(wrong, str(error)) from error
        return replace(compared, span=expression.span)

    def _refuse_bare_text(self, left: Typed, name: NameExpr) -> None:
        """Raise for a text without quotes: a shell may have taken these."""
        known = {text for text, _ in self._bound}
        is_text = isinstance(left, Operand) and left.type.kind is Kind.STRING
        if not is_text or name.name in known or self._scope.named(name.name) is not None:
            return
        reason = self._scope.no_such_name(name.name)
        problem, _, hint = reason.partition(": ")
        if not hint.startswith("did you mean"):
            raise self._error(name, f'{problem}: a text is in quotes, "{name.name}"; {hint}')

    def _arithmetic(
        self, operator: BinaryOperator, left: Typed, right: Typed, expression: Expression
    ) -> Typed:
        """Resolve an operation on numbers of one type, as Go has it."""
        try:
            if isinstance(left, Untyped) and isinstance(right, Untyped):
                return replace(fold_arithmetic(operator, left, right), span=expression.span)
            if operator in SHIFTS:
                if isinstance(left, Untyped):
                    raise ConstantError("a constant can only be shifted by a constant")
                if isinstance(right, Untyped):
                    right = converted(right, basic_type(Kind.UINT))
            elif isinstance(left, Untyped):
                self._refuse_operand(operator, right)
                left = converted(left, right.type)
            elif isinstance(right, Untyped):
                self._refuse_operand(operator, left)
                right = converted(right, left.type)
        except ConstantError as error:
            wrong = left if isinstance(left, Untyped) else right
            raise self._error(wrong, str(error)) from error
        self._refuse_operand(operator, left)
        self._refuse_operand(operator, right)
        if operator not in SHIFTS and left.type.name != right.type.name:
            both = f"{described(left.type)} and {described(right.type)}"
            raise self._error(expression, f"{both}: {operator.value} needs numbers of one type")
        is_division = operator in (BinaryOperator.DIVIDE, BinaryOperator.REMAINDER)
        is_zero = isinstance(right, Constant) and right.value == 0
        if is_division and is_zero and right.type.kind in INTEGERS:
            raise self._error(right, "division by zero")
        return Arithmetic(operator, left, right, left.type, span=expression.span)

    def _refuse_operand(self, operator: BinaryOperator, operand: Typed) -> None:
        """Raise for values that an operator of arithmetic does not take."""
        kind = operand.type.kind
        if kind in INTEGERS or (kind in FLOATS and is_of_floats(operator)):
            return
        reason = f"{described(operand.type)} does not go with {operator.value}"
        logic = {BinaryOperator.BIT_AND: "&&", BinaryOperator.BIT_OR: "||"}.get(operator)
        if kind is Kind.BOOL and logic:
            reason += f": did you mean {logic}?"
        raise self._error(operand, reason)

    def _compared(self, operator: BinaryOperator, left: Typed, right: Typed) -> Typed:
        if isinstance(left, Untyped):
            if isinstance(right, Untyped):
                return fold(operator, left, right)
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        if isinstance(right, Untyped):
            if right.kind is LiteralKind.NIL:
                return self._nil_test(operator, left)
            if left.type is _DYNAMIC_TYPE and isinstance(right.value, bytes):
                return self._type_test(operator, left, right)
            self._refuse_uncomparable(left)
            if left.type.name == "time.Duration" and right.kind is LiteralKind.INT and right.value:
                reason = f"a duration has a unit: did you mean {right.value!s}ms?"
                raise self._error(right, reason)
            right = converted(right, left.type)
            if right.value == b"" and isinstance(left, Operand):
                # Any string compares with the empty one as its length does with 0.
                left, right = _length(left), Constant(0, INT, span=right.span)
        domain = _domain(left.type, right.type)
        if domain is None:
            self._refuse_uncomparable(left)
            self._refuse_uncomparable(right)
            raise self._error(
                right, f"{described(left.type)} cannot be compared with {described(right.type)}"
            )
        kinds = {left.type.kind, right.type.kind}
        if operator not in _EQUALITY and (kinds & _ADDRESSES or Kind.BOOL in kinds):
            raise self._error(left, f"{described(left.type)} is compared with == and != only")
        return Comparison(operator, left, right, domain)

    def _type_test(self, operator: BinaryOperator, operand: Typed, name: Untyped) -> Typed:
        """Return the comparison of a type with one of a name, by the hashes that programs have."""
        assert isinstance(operand, Operand) and isinstance(name.value, bytes)
        if operator not in _EQUALITY:
            raise self._error(operand, "types are compared with == and != only")
        if self._scope.types is None or self._scope.hashes is None:
            raise self._error(operand, _NOT_LOOKED_AT)
        text = name.value.decode("utf-8", "replace")
        is_equal = operator is BinaryOperator.EQUAL
        try:
            hashes = self._scope.hashes(text) or self._scope.hashes(self._scope.types(text)[0].name)
        except SignatureError as error:
            if is_equal:
                raise self._error(name, self._unknown_type(text, error)) from error
            notes, hashes = self._scope.notes, ()
            if notes is not None and text not in notes:
                why = self._unknown_type(text, error)
                notes[text] = f"type(...) != {quote(text)} is true of any type: {why}"
        path = AccessPath(operand.path.root, (*operand.path.steps[:-1], PathMark.TYPE_HASH))
        found = Operand(path, HASH, span=operand.span)
        test: Typed = Constant(not is_equal, basic_type(Kind.BOOL), span=name.span)
        join = BinaryOperator.OR if is_equal else BinaryOperator.AND
        for number, value in enumerate(sorted(hashes)):
            constant = Constant(value, HASH, span=name.span)
            one = Comparison(operator, found, constant, Domain.UNSIGNED, span=operand.span)
            test = Logic(join, test, one, span=operand.span) if number else one
        # First, so that the kernel does not look for the type of nil.
        is_there = NilTest(operand, equal=False, span=operand.span)
        return Logic(BinaryOperator.AND, is_there, test, span=operand.span)

    def _unknown_type(self, text: str, error: SignatureError) -> str:
        """Return why a name means no type, and which names are like it."""
        if not isinstance(error, UnknownTypeError):
            return str(error)
        bare = text.lstrip("*[]")
        stars = text.removesuffix(bare)
        hint = did_you_mean(text, (stars + name for name in self._scope.declared()))
        return f"no type of the program has this name{hint and ': '}{hint}"

    def _nil_test(self, operator: BinaryOperator, operand: Typed) -> Typed:
        of = operand.type
        if not isinstance(operand, _HAVING_PARTS) or of.kind not in _NILLABLE:
            zero = {Kind.STRING: '""', Kind.BOOL: "false"}.get(of.kind, "0")
            instead = "" if of.kind in (Kind.STRUCT, Kind.ARRAY) else f": compare it with {zero}"
            raise self._error(operand, f"{described(of)} is never nil{instead}")
        if operator not in _EQUALITY:
            raise self._error(operand, "nil is compared with == and != only")
        return NilTest(operand, operator is BinaryOperator.EQUAL)

    def _refuse_uncomparable(self, operand: Typed) -> None:
        """Raise for values of kinds that are compared with nil only, or not at all."""
        kind, what = operand.type.kind, described(operand.type)
        if operand.type.name == "error":
            example = 'contains($ret, "timeout")'
            reason = f"{what} is compared with nil only: {example} looks into its message"
        elif _is_bytes(operand.type):
            reason = f"{what} is compared with nil only: prefix() and contains() look into it"
        elif kind is Kind.INTERFACE:
            reason = f"{what} is compared with nil only: what is in it is not known beforehand"
        elif kind in (Kind.SLICE, Kind.MAP, Kind.FUNC):
            reason = f"{what} is compared with nil only"
        elif kind in (Kind.STRUCT, Kind.ARRAY):
            part = "a field" if kind is Kind.STRUCT else "an element"
            reason = f"{what} is not compared as a whole: compare {part} of it"
        elif kind in (Kind.COMPLEX64, Kind.COMPLEX128):
            reason = f"{what} cannot be compared here: print it"
        elif kind is Kind.INVALID:
            reason = f"nothing describes {operand.type.name}, so it cannot be compared"
        else:
            return
        raise self._error(operand, reason)

    def _call(self, call: CallExpr) -> Typed:
        if isinstance(call.function, TextFunction):
            return self._text_test(call, call.function)
        if isinstance(call.function, ChangeFunction):
            text = self.finished(self.resolve(call.arguments[0]))
            if not _is_text(text.type):
                name = call.function.value
                reason = f"{name}() takes a text, and this is {described(text.type)}"
                raise self._error(call.arguments[0], reason)
            return Changed(text, call.function, span=call.span)
        argument = self.resolve(call.arguments[0])
        if isinstance(argument, Untyped) and isinstance(argument.value, bytes):
            return Untyped(LiteralKind.INT, len(argument.value), span=call.span)
        operand = self._operand(call.arguments[0])
        try:
            found = measure(operand.type, call.function)
        except StepError as error:
            raise self._error(call.arguments[0], str(error)) from error
        if isinstance(found, int):
            return Untyped(LiteralKind.INT, found, span=call.span)
        of = _through_pointers(operand.type)[1]
        measured = self._stepped(operand, found[0], found[1], call)
        if not isinstance(measured, Operand):
            if call.function is MeasureFunction.TYPE:
                raise self._error(call.arguments[0], _NOT_LOOKED_AT)
            return measured
        return replace(measured, measures_bytes=of.kind is Kind.STRING or _is_bytes(of))

    def _text_test(self, call: CallExpr, function: TextFunction) -> Typed:
        operand, needle = map(self.resolve, call.arguments)
        name = function.value
        if not isinstance(needle, Untyped) or not isinstance(needle.value, bytes):
            reason = f'{name}() looks for a constant, as in {name}(key, "user:")'
            raise self._error(call.arguments[1], reason)
        if isinstance(operand, Untyped) or not _is_text(operand.type):
            what = "a constant" if isinstance(operand, Untyped) else described(operand.type)
            reason = f"{name}() looks into a string, a []byte or an error, and this is {what}"
            if isinstance(operand.type, SliceType | ArrayType | MapType):
                text = self._source.text
                elements, wanted = (text[a.span.start : a.span.end] for a in call.arguments)
                reason += f": any({elements}, it, it == {wanted}) looks for an element"
            raise self._error(call.arguments[0], reason)
        return TextTest(function, operand, needle.value, span=call.span)


#: The meaning of a sign before a number: an operation with another number on its left.
_SIGNS = {
    UnaryOperator.NEGATE: (BinaryOperator.SUBTRACT, 0),
    UnaryOperator.PLUS: (BinaryOperator.ADD, 0),
    UnaryOperator.COMPLEMENT: (BinaryOperator.BIT_XOR, -1),
}


def _is_number(typed: Typed) -> bool:
    return typed.type.kind in INTEGERS | FLOATS


def _at_return(typed: Typed) -> Typed:
    """Return the expression for a part of an argument when the call returns; raises StepError."""
    if isinstance(typed, Walk | Lookup):
        operand = _at_return(typed.operand)
        if isinstance(typed, Lookup) and not isinstance(typed.key, Constant):
            return replace(typed, operand=operand, key=_at_return(typed.key))
        return replace(typed, operand=operand)
    if isinstance(typed, Sliced):
        return replace(typed, operand=_at_return(typed.operand))
    if not isinstance(typed, Operand) or typed.path.root.kind is not RootKind.PARAMETER:
        raise StepError("$exit() takes an argument, or something that an argument leads to")
    if not typed.path.steps and typed.type.kind not in _LEADING:
        raise StepError("a call cannot change this value: leave out $exit()")
    root = typed.path.root
    late = Root(RootKind.EXIT, root.index, root.name)
    return replace(typed, path=AccessPath(late, typed.path.steps))


#: Kinds whose values lead to memory that a call may change.
_LEADING = {Kind.POINTER, Kind.MAP, Kind.CHAN, Kind.SLICE, Kind.INTERFACE, Kind.STRUCT, Kind.ARRAY}


def _length(string: Operand) -> Operand:
    path = AccessPath(string.path.root, (*string.path.steps, PathMark.LEN))
    return Operand(path, INT, span=string.span)


def _is_bytes(of: GoType) -> bool:
    return isinstance(of, SliceType) and of.elem.kind is Kind.UINT8


def _is_text(of: GoType) -> bool:
    if of.name in _SHOWN_OTHERWISE:
        return False
    return of.kind is Kind.STRING or _is_bytes(of) or of.name == "error"


def _domain(left: GoType, right: GoType) -> Domain | None:
    """Return how values of two types compare, None when they do not."""
    kinds = {left.kind, right.kind}
    if kinds <= INTEGERS:
        if kinds <= SIGNED:
            return Domain.SIGNED
        if not kinds & SIGNED:
            return Domain.UNSIGNED
        unsigned = right if left.kind in SIGNED else left
        return Domain.SIGNED if unsigned.size < 8 else None
    if kinds <= FLOATS:
        return Domain.FLOAT
    if kinds == {Kind.STRING}:
        return Domain.STRING
    if kinds == {Kind.BOOL}:
        return Domain.UNSIGNED
    if len(kinds) == 1 and kinds <= _ADDRESSES and left.name == right.name:
        return Domain.UNSIGNED
    return None
