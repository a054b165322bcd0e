# SPDX-License-Identifier: Apache-2.0
"""Parse the expressions of a probe: Go's, over a call's parameters and results.

Operands are names, ``$`` specials, literals, field paths, indices, slices, ``*p``, type assertions,
``len()``, ``cap()``, ``type()``, ``lower()``, ``prefix()``, ``suffix()``, ``contains()``,
``any()``, ``all()``, ``count()``, ``$exit()`` and ``$trace()``; operators are those of arithmetic,
the comparisons and ``&& || !``, with Go's precedence (The Go Programming Language Specification,
"Operators").
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from fractions import Fraction

from gotrace.probes.tokens import Source, SpecError, TextRange, Token, TokenKind
from gotrace.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of the user's words; ``span`` is its place in the probe's text."""

    span: TextRange = field(default=TextRange(0, 0), kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class NameExpr(Expression):
    """A parameter's or result's name, or ``arg1``."""

    name: str


@dataclass(frozen=True, slots=True)
class SpecialExpr(Expression):
    """A ``$`` name, without the dollar sign."""

    name: str


class LiteralKind(Enum):
    """The sorts of constants; numbers are untyped, as in Go."""

    INT = "integer"
    DURATION = "duration"  # an integer of nanoseconds
    FLOAT = "float"
    RUNE = "rune"
    STRING = "string"
    BOOL = "boolean"
    NIL = "nil"


@dataclass(frozen=True, slots=True)
class LiteralExpr(Expression):
    """A constant, exact: strings are bytes."""

    kind: LiteralKind
    value: int | Fraction | bytes | bool | None


@dataclass(frozen=True, slots=True)
class FieldExpr(Expression):
    """``operand.name``."""

    operand: Expression
    name: str


@dataclass(frozen=True, slots=True)
class IndexExpr(Expression):
    """``operand[index]`` with a constant index."""

    operand: Expression
    index: int


@dataclass(frozen=True, slots=True)
class LookupExpr(Expression):
    """``operand[key]`` with anything but a plain number between the brackets."""

    operand: Expression
    key: Expression


@dataclass(frozen=True, slots=True)
class SliceExpr(Expression):
    """``operand[low:high]``; a bound that is left out is None."""

    operand: Expression
    low: Expression | None
    high: Expression | None


@dataclass(frozen=True, slots=True)
class AssertExpr(Expression):
    """``operand.(type)``; ``type_text`` is as the user wrote it."""

    operand: Expression
    type_text: str


@dataclass(frozen=True, slots=True)
class ExitExpr(Expression):
    """``$exit(operand)``: what arguments lead to when the call returns."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class LikeExpr(Expression):
    """``$like(operand)``: a text of a key, with a mark in place of each id."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class SpanExpr(Expression):
    """``$trace(operand)``: a fact about the span that a context holds, by a name's meaning."""

    name: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class LabelExpr(Expression):
    """``$label("key")``: the goroutine's pprof label of that key."""

    key: str


@dataclass(frozen=True, slots=True)
class DerefExpr(Expression):
    """``*operand``."""

    operand: Expression


class MeasureFunction(Enum):
    """The functions on one value: its length, its capacity, the type in an interface."""

    LEN = "len"
    CAP = "cap"
    TYPE = "type"


class TextFunction(Enum):
    """The functions that test a string against a constant."""

    PREFIX = "prefix"
    CONTAINS = "contains"
    SUFFIX = "suffix"


class ChangeFunction(Enum):
    """The functions that make another text of one."""

    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class CallExpr(Expression):
    """A call of a function that gotrace knows, with the right number of arguments."""

    function: MeasureFunction | TextFunction | ChangeFunction
    arguments: tuple[Expression, ...]


class QuantifierFunction(Enum):
    """The functions that ask a condition of each element."""

    ANY = "any"
    ALL = "all"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class QuantifierExpr(Expression):
    """``any(collection, names, condition)``; the names are one or two, with their places."""

    function: QuantifierFunction
    collection: Expression
    names: tuple[NameExpr, ...]
    condition: Expression


class UnaryOperator(Enum):
    """The prefix operators, ``*`` aside."""

    NOT = "!"
    NEGATE = "-"
    PLUS = "+"
    COMPLEMENT = "^"


@dataclass(frozen=True, slots=True)
class UnaryExpr(Expression):
    """An operator before its operand."""

    operator: UnaryOperator
    operand: Expression


class BinaryOperator(Enum):
    """The operators between two operands."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    AND = "&&"
    OR = "||"
    ADD = "+"
    SUBTRACT = "-"
    BIT_OR = "|"
    BIT_XOR = "^"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    BIT_AND = "&"
    BIT_CLEAR = "&^"


@dataclass(frozen=True, slots=True)
class BinaryExpr(Expression):
    """An operator between its operands."""

    operator: BinaryOperator
    left: Expression
    right: Expression


#: Names that are written with a dollar sign before them, and may have a context after them.
SPAN_NAMES = ("trace", "span", "sampled")
#: The name that asks for a label of the goroutine.
LABEL = "$label"
#: Another name that is asked of contexts, by probes that users do not write.
CONTEXTS = "contexts"

_LEVELS = ("||", "&&", "== != < <= > >=", "+ - | ^", "* / % << >> & &^")
_PRECEDENCE = {
    operator: level
    for level, operators in enumerate(_LEVELS, 1)
    for operator in BinaryOperator
    if operator.value in operators.split()
}
_OPERATORS = {operator.value: operator for operator in BinaryOperator}
_FUNCTIONS: dict[str, tuple[MeasureFunction | TextFunction | ChangeFunction, int]] = {
    **{measure.value: (measure, 1) for measure in MeasureFunction},
    **{function.value: (function, 2) for function in TextFunction},
    **{function.value: (function, 1) for function in ChangeFunction},
}
_QUANTIFIERS = {function.value: function for function in QuantifierFunction}
#: Methods and functions of CEL, expr, Go's package slices and others, and what they are here.
_QUANTIFIERS_INSTEAD = {
    **dict.fromkeys(("exists", "any", "some", "ContainsFunc", "IndexFunc"), "any"),
    **dict.fromkeys(("all", "every"), "all"),
    **dict.fromkeys(("count", "filter"), "count"),
}
_INSTEAD = {"=": "==", ":=": "==", "~": "contains()", "++": "+ 1", "--": "- 1"}
_PREFIXES = ("!", "-", "*", "+", "^", "&")
_WORDS_INSTEAD = {"and": "&&", "or": "||", "not": "!", "is": "==", "AND": "&&", "OR": "||"}
#: Functions of bcc's and bpftrace's expressions.
_CALLS_INSTEAD = {
    "str": "strings are shown as they are: leave out str()",
    "buf": "bytes are shown as they are: leave out buf()",
    "STRCMP": 'texts are compared by ==, as in (name == "x")',
    "strcmp": 'texts are compared by ==, as in (name == "x")',
    "strncmp": 'texts are compared by ==, or by prefix(name, "x")',
    "strlen": "it is len() here",
}
_MAX_DEPTH = 50
_MAX_NODES = 200


class Parser:
    """A parser of expressions from tokens; every error is a SpecError with its column."""

    def __init__(self, source: Source, tokens: Sequence[Token]) -> None:
        """Take the probe's text and the tokens of it, an END token last."""
        self._source = source
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._nodes = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def at(self, operator: str) -> bool:
        """Return whether an operator comes next."""
        return self.token.kind is TokenKind.OPERATOR and self.token.text == operator

    def take(self) -> Token:
        """Return the next token and go on to the one after it."""
        token = self.token
        if token.kind is not TokenKind.END:
            self._next += 1
        return token

    def error(self, reason: str) -> SpecError:
        """Return the error about the next token."""
        return self._source.error(self.token.span, reason)

    def expression(self) -> Expression:
        """Parse one expression, up to a token that does not go on with it."""
        self._nodes = 0
        return self._binary(1)

    def _binary(self, lowest: int) -> Expression:
        left = self._unary()
        while True:
            operator = _OPERATORS.get(self.token.text)
            if self.token.kind is not TokenKind.OPERATOR or operator is None:
                self._refuse_operator()
                return left
            if _PRECEDENCE[operator] < lowest:
                return left
            self.take()
            right = self._binary(_PRECEDENCE[operator] + 1)
            self._count()
            left = BinaryExpr(operator, left, right, span=_joined(left, right))

    def _refuse_operator(self) -> None:
        """Raise for operators of Go and of other languages that mean nothing here."""
        token = self.token
        if token.text == "@":
            raise self.error("all values are the user's: leave out @user")
        known = {TokenKind.OPERATOR: _INSTEAD, TokenKind.NAME: _WORDS_INSTEAD}.get(token.kind, {})
        if instead := known.get(token.text):
            raise self.error(f"no such operator: did you mean {instead}?")

    def _unary(self) -> Expression:
        token = self.token
        if token.kind is not TokenKind.OPERATOR or token.text not in _PREFIXES:
            return self._postfix()
        if token.text == "&":
            raise self.error("an address cannot be taken: print a pointer with %p")
        self.take()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"nested more than {_MAX_DEPTH} deep")
        operand = self._unary()
        self._depth -= 1
        self._count()
        span = TextRange(token.span.start, operand.span.end)
        if token.text == "*":
            return DerefExpr(operand, span=span)
        return UnaryExpr(UnaryOperator(token.text), operand, span=span)

    def _postfix(self) -> Expression:
        operand = self._primary()
        while True:
            if self.at("."):
                operand = self._field(operand)
            elif self.at("["):
                operand = self._index(operand)
            elif self.at("("):
                if isinstance(operand, NameExpr) and operand.name in _CALLS_INSTEAD:
                    raise self._source.error(operand.span, _CALLS_INSTEAD[operand.name])
                if isinstance(operand, FieldExpr) and operand.name in _QUANTIFIERS_INSTEAD:
                    raise self._of_elements(operand)
                known = (*_FUNCTIONS, *_QUANTIFIERS)
                raise self.error(
                    f"only {', '.join(f'{name}()' for name in known)} can be called: "
                    "code of the traced program is never run"
                )
            else:
                return operand
            self._count()

    def _field(self, operand: Expression) -> Expression:
        self.take()
        if self.token.kind is TokenKind.FLOAT or self.token.kind is TokenKind.INT:
            raise self.error("expected the name of a field after the dot; an index is written [0]")
        if self.at("("):
            return self._assertion(operand)
        if self.token.kind is not TokenKind.NAME:
            raise self.error("expected the name of a field after the dot")
        name = self.take()
        return FieldExpr(operand, name.text, span=TextRange(operand.span.start, name.span.end))

    def _assertion(self, operand: Expression) -> Expression:
        """Parse the type of a type assertion, after its dot."""
        opening, depth = self.take(), 1
        while depth:
            token = self.take()
            if token.kind is TokenKind.END:
                raise self._source.error(opening.span, "the closing ) of a type is missing")
            if token.kind is TokenKind.OPERATOR:
                depth += (token.text == "(") - (token.text == ")")
        text = self._source.text[opening.span.end : token.span.start].strip()
        span = TextRange(operand.span.start, token.span.end)
        if text in ("", "type"):
            raise self._source.error(span, "expected a type, as in rw.(*net/http.response)")
        return AssertExpr(operand, text, span=span)

    def _index(self, operand: Expression) -> Expression:
        self.take()
        self._enter()
        key = None if self.at(":") else self._binary(1)
        high: Expression | None = None
        is_slice = self.at(":")
        if is_slice:
            self.take()
            high = None if self.at("]") else self._binary(1)
        self._depth -= 1
        if is_slice and self.at(":"):
            raise self.error("a capacity changes nothing here: write s[a:b]")
        if not self.at("]"):
            raise self.error("expected ] after the index")
        end = self.take().span.end
        span = TextRange(operand.span.start, end)
        if key is None or is_slice:
            return SliceExpr(operand, key, high, span=span)
        if isinstance(key, LiteralExpr) and key.kind in (LiteralKind.INT, LiteralKind.RUNE):
            assert isinstance(key.value, int)
            return IndexExpr(operand, key.value, span=span)
        return LookupExpr(operand, key, span=span)

    def _primary(self) -> Expression:
        token = self.token
        if token.kind is TokenKind.OPERATOR or token.kind is TokenKind.END:
            return self._parenthesis()
        self.take()
        self._count()
        span = token.span
        if token.text == "$exit" and self.at("("):
            inside = self._parenthesis()
            return ExitExpr(inside, span=TextRange(span.start, inside.span.end))
        if token.text == "$like" and self.at("("):
            inside = self._parenthesis()
            return LikeExpr(inside, span=TextRange(span.start, inside.span.end))
        if token.text[1:] in SPAN_NAMES and token.kind is TokenKind.SPECIAL and self.at("("):
            inside = self._parenthesis()
            return SpanExpr(token.text[1:], inside, span=TextRange(span.start, inside.span.end))
        if token.text == LABEL and self.at("("):
            return self._label(token)
        if token.kind is TokenKind.SPECIAL:
            return SpecialExpr(token.text[1:], span=span)
        if token.kind is TokenKind.NAME:
            return self._name(token)
        kinds = {
            TokenKind.FLOAT: LiteralKind.FLOAT,
            TokenKind.RUNE: LiteralKind.RUNE,
            TokenKind.STRING: LiteralKind.STRING,
            TokenKind.DURATION: LiteralKind.DURATION,
        }
        return LiteralExpr(kinds.get(token.kind, LiteralKind.INT), token.value, span=span)

    def _label(self, name: Token) -> LabelExpr:
        inside = self._parenthesis()
        span = TextRange(name.span.start, inside.span.end)
        if isinstance(inside, NameExpr):
            return LabelExpr(inside.name, span=span)
        if not isinstance(inside, LiteralExpr) or inside.kind is not LiteralKind.STRING:
            raise self._source.error(inside.span, f'expected a label\'s key, as in {LABEL}("user")')
        assert isinstance(inside.value, bytes)
        return LabelExpr(inside.value.decode("utf-8", "surrogateescape"), span=span)

    def _name(self, token: Token) -> Expression:
        if token.text in ("true", "false"):
            return LiteralExpr(LiteralKind.BOOL, token.text == "true", span=token.span)
        if token.text == "nil":
            return LiteralExpr(LiteralKind.NIL, None, span=token.span)
        if token.text in _FUNCTIONS and self.at("("):
            return self._call(token)
        if token.text in _QUANTIFIERS and self.at("("):
            return self._quantifier(token)
        if token.text == "not" and self.token.kind is TokenKind.NAME:
            raise self._source.error(token.span, "no such operator: use ! for not")
        return NameExpr(token.text, span=token.span)

    def _call(self, name: Token) -> Expression:
        function, expected = _FUNCTIONS[name.text]
        self.take()
        self._enter()
        arguments: list[Expression] = []
        while not self.at(")"):
            arguments.append(self._binary(1))
            if self.at(","):
                self.take()
            elif not self.at(")"):
                raise self.error("expected , or )")
        end = self.take().span.end
        self._depth -= 1
        span = TextRange(name.span.start, end)
        if len(arguments) != expected:
            form = 'a string and a constant, as in prefix(key, "user:")'
            wanted = form.replace("prefix", name.text) if expected == 2 else "one value"
            raise self._source.error(span, f"{name.text}() takes {wanted}")
        return CallExpr(function, tuple(arguments), span=span)

    def _quantifier(self, function: Token) -> Expression:
        """Parse what follows ``any``, ``all`` or ``count``."""
        self.take()
        self._enter()
        collection = self._binary(1)
        names: list[NameExpr] = []
        start = self.token.span.end
        while self.at(","):
            self.take()
            if self.token.kind is not TokenKind.NAME or self._tokens[self._next + 1].text != ",":
                break
            name = self.take()
            names.append(NameExpr(name.text, span=name.span))
        if not names or len(names) > 2:
            raise self._source.error(function.span, self._quantifier_form(collection, start))
        condition = self._binary(1)
        if not self.at(")"):
            raise self.error("expected ), or an operator such as ==, && or ||")
        span = TextRange(function.span.start, self.take().span.end)
        self._depth -= 1
        of = _QUANTIFIERS[function.text]
        return QuantifierExpr(of, collection, tuple(names), condition, span=span)

    def _quantifier_form(self, collection: Expression, start: int) -> str:
        """Return how a condition on elements is written, made of what stands after an index."""
        depth, end = 1, start
        for token in self._tokens:
            if token.span.start >= start and token.kind is not TokenKind.END:
                depth += (token.text == "(") - (token.text == ")")
                if not depth:
                    break
                end = token.span.end
        text = self._source.text
        elements = text[collection.span.start : collection.span.end]
        condition = text[start:end].strip().removeprefix("{").removesuffix("}").strip()
        condition = condition.replace("@it", "it").replace("#", "it")
        if condition.startswith("."):
            condition = f"it{condition}"
        if not condition or condition.startswith("func") or "=>" in condition or "," in condition:
            condition = "it.Price > 100"
        return f"elements have a name, as in any({elements}, it, {condition})"

    def _of_elements(self, called: FieldExpr) -> SpecError:
        """Return the error about a call that asks elements as other languages do."""
        span, function = called.operand.span, _QUANTIFIERS_INSTEAD[called.name]
        elements = self._source.text[span.start : span.end]
        if elements == "slices":
            elements = "xs"
        form = f"{function}({elements}, it, it.Price > 100)"
        return self._source.error(called.span, f"a condition on elements is written {form}")

    def _parenthesis(self) -> Expression:
        token = self.token
        if not self.at("("):
            reason = "expected a name, a literal or a parenthesis"
            if token.text in _OPERATORS or token.text == ")":
                reason += "; if a $name stood here, the shell took it: use single quotes"
            raise self.error(reason)
        self.take()
        self._enter()
        inside = self._binary(1)
        if not self.at(")"):
            raise self.error("expected ), or an operator such as ==, && or ||")
        end = self.take().span.end
        self._depth -= 1
        return _respanned(inside, TextRange(token.span.start, end))

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"nested more than {_MAX_DEPTH} deep")

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self.error(f"an expression has at most {_MAX_NODES} parts")


def _joined(left: Expression, right: Expression) -> TextRange:
    return TextRange(left.span.start, right.span.end)


def _respanned(expression: Expression, span: TextRange) -> Expression:
    return replace(expression, span=span)
