# SPDX-License-Identifier: Apache-2.0
"""Parse the words of one probe: ``[BINARY:]PATTERN [(PREDICATE)] ["FORMAT", EXPR...]``.

The pattern is a function's name, as in a Go traceback, or several by ``*``. Directly after a name
may follow a signature, ``main.add(x int, y int) int``, for binaries that have no debugging
information. The predicate is set off by a space.

Expressions use the names of parameters and results; ``arg1``, ``arg2``... number the parameters,
a method's receiver first; ``$ret`` and ``$ret1`` are the first result, ``$ret2`` is the second.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from gotrace.errors import UsageError, said
from gotrace.gotypes.from_text import SignatureError, parse_signature
from gotrace.gotypes.types import Kind
from gotrace.probes.constants import INTEGERS, described
from gotrace.probes.lines import LineWord, parse_lines
from gotrace.probes.parser import (
    BinaryExpr,
    BinaryOperator,
    Expression,
    LabelExpr,
    LikeExpr,
    LiteralExpr,
    LiteralKind,
    Parser,
    SpecialExpr,
    UnaryExpr,
)
from gotrace.probes.pattern import CLOSING, QUOTES, closing, split_target
from gotrace.probes.resolve import resolve, resolve_predicate
from gotrace.probes.scope import MAX_LABEL_KEY, Phase, Scope
from gotrace.probes.tokens import Source, SpecError, TextRange, Token, TokenKind, tokenize
from gotrace.probes.typed import Typed, phase_of
from gotrace.records import dataclass, replace
from gotrace.values.fmt import Format, FormatError, parse_format, verb_problem

_MAX_LENGTH = 4096  # binary aside
_SPACES = re.compile(r"\s+")
_CONDITION = re.compile(r"[=!<>]=|&&|\|\||<(?!-)|>")
_EXPECTED = 'expected (PREDICATE) or "FORMAT", EXPR...'

#: Splits `[BINARY:]PATTERN` into the binary and the rest.
_Split = Callable[[str], tuple[str | None, str]]


@dataclass(frozen=True, slots=True)
class ResolvedProbe:
    """A probe's expressions as one function gives them their types.

    ``extras`` has None for those that do not fit the function. Of the values with numbers in
    ``folded`` ids are left out.
    """

    predicate: Typed | None
    values: tuple[Typed, ...]
    of: Typed | None = None
    extras: tuple[Typed | None, ...] = ()
    folded: frozenset[int] = frozenset()

    @property
    def expressions(self) -> tuple[Typed, ...]:
        """Return all expressions of the probe."""
        found = (self.predicate, *self.values, self.of, *self.extras)
        return tuple(one for one in found if one is not None)

    def at_entry(self) -> ResolvedProbe:
        """Return the expressions of a call whose return is not seen, of extras those known then."""
        known = (one if one and phase_of(one) is Phase.ENTRY else None for one in self.extras)
        return replace(self, extras=tuple(known))


@dataclass(frozen=True, slots=True)
class KeyText:
    """The expressions that calls are grouped by, as the user wrote them."""

    source: Source
    expressions: tuple[Expression, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Return each expression's text."""
        return tuple(
            self.source.text[expression.span.start : expression.span.end]
            for expression in self.expressions
        )


#: Calls are not grouped.
NO_KEY = KeyText(Source(""), ())


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One probe in parts.

    ``signature`` is the text, name included, for ``gotypes.from_text.parse_signature``. ``format``
    is None where the user gave none; then there are no ``values`` either. ``key``: calls are not
    shown one by one but added up by these values. ``of``: histograms are of this value of theirs.
    ``extras``: known beside the values of the format, as far as they fit the function.
    ``described`` are signatures for programs that have none of their own, of which the first that
    fits is taken. ``recipe``: what is not there, or does not fit, is left out where another probe
    of the same recipe is; ``names`` are its own for use in keys, and a program that has the
    function ``unless`` is left out. ``at_entry``: calls are reported at their entry, and not
    followed. ``line``: lines of the source are meant, and no functions.
    """

    source: Source
    binary: str | None
    pattern: str
    signature: str | None = None
    predicate: Expression | None = None
    format: Format | None = None
    values: tuple[Expression, ...] = ()
    key: KeyText | None = None
    of: KeyText | None = None
    extras: KeyText | None = None
    described: tuple[str, ...] = ()
    recipe: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    unless: str | None = None
    at_entry: bool = False
    line: LineWord | None = None

    def only(self, wanted: Mapping[str, int]) -> ProbeSpec:
        """Return the probe of calls whose special values, ``goid`` for example, are these."""
        predicate = self.predicate
        for name, number in wanted.items():
            value = LiteralExpr(LiteralKind.INT, number)
            test = BinaryExpr(BinaryOperator.EQUAL, SpecialExpr(name), value)
            predicate = (
                test if predicate is None else BinaryExpr(BinaryOperator.AND, test, predicate)
            )
        return replace(self, predicate=predicate)

    def resolve(self, scope: Scope) -> ResolvedProbe:
        """Check the expressions against a function's names and types; raises SpecError."""
        predicate = None
        if self.predicate is not None:
            predicate = resolve_predicate(self.source, self.predicate, scope)
        if self.key is not None:
            wanted = self.key.expressions
            values = tuple(self._resolved_key(self.key.source, value, scope) for value in wanted)
            folded = frozenset(i for i, one in enumerate(wanted) if isinstance(one, LikeExpr))
            return ResolvedProbe(predicate, values, self._resolved_of(scope), folded=folded)
        values = tuple(resolve(self.source, value, scope) for value in self.values)
        if self.format is not None:
            for directive, value in zip(self.format.directives, values, strict=True):
                if problem := verb_problem(directive, value.type):
                    raise self.source.error(value.span, problem)
        return ResolvedProbe(predicate, values, extras=tuple(self._resolved_extras(scope)))

    @staticmethod
    def _resolved_key(source: Source, expression: Expression, scope: Scope) -> Typed:
        if not isinstance(expression, LikeExpr):
            return resolve(source, expression, scope)
        value = resolve(source, expression.operand, scope)
        if value.type.kind is not Kind.STRING:
            raise source.error(expression.span, f"$like() takes a string, not {value.type.name}")
        return value

    def _resolved_extras(self, scope: Scope) -> Iterator[Typed | None]:
        if self.extras is None:
            return
        for expression in self.extras.expressions:
            try:
                yield resolve(self.extras.source, expression, scope)
            except SpecError:
                yield None

    def _resolved_of(self, scope: Scope) -> Typed | None:
        if self.of is None:
            return None
        [expression] = self.of.expressions
        value = resolve(self.of.source, expression, scope)
        if value.type.kind not in INTEGERS:
            raise self.of.source.error(
                expression.span,
                f"this is {described(value.type)}: {said('--of', 'of')} needs a whole number",
            )
        return value


#: What is known of a call without its function's values.
_OF_TASKS = frozenset({"goid", "pid", "tid", "comm", "func", "caller", "stack"})


def is_of_task(expression: Expression) -> bool:
    """Return whether an expression asks nothing of a call but who makes it, and where."""
    if isinstance(expression, SpecialExpr):
        return expression.name in _OF_TASKS
    if isinstance(expression, UnaryExpr | LikeExpr):
        return is_of_task(expression.operand)
    if isinstance(expression, BinaryExpr):
        return is_of_task(expression.left) and is_of_task(expression.right)
    return isinstance(expression, LiteralExpr | LabelExpr)


def parse_probe(
    text: str, *, regex: bool = False, split: _Split = split_target, lines: bool = False
) -> ProbeSpec:
    """Parse a probe; ``regex``: the pattern is a regular expression, up to the first space.

    ``split`` separates the binary from the pattern, which may be ``lines``. Raises SpecError, which
    names the column and, if it is clear, what is meant, and what ``split`` raises.
    """
    try:
        return _parsed(text, regex, split, lines)
    except SpecError as error:
        is_hostile = len(text) > _MAX_LENGTH or not text.isprintable()
        for meant in () if regex or is_hostile else _corrections(text):
            with suppress(UsageError):
                _parsed(meant, regex, split, lines)
                break
        else:
            raise
        end = " Type" if error.reason.endswith("?") else ": type"
        reason = f"{error.reason}{end} {shlex.quote(meant)}"
        raise SpecError(text, error.span, reason) from None


def _corrections(text: str) -> Iterator[str]:
    """Yield what a probe with a fault may be meant to be, the likeliest first.

    >>> next(_corrections("main.f n > 3"))
    'main.f (n > 3)'
    """
    text = text.strip()
    end = name_end(text, 0)
    name, rest = text[:end], text[end:].strip()
    if name == "func" and rest:
        yield rest
    if rest == "(":
        yield name
    open_groups = rest.count("(") - rest.count(")")
    yield text + ")" * open_groups
    words = _LONG_RUNE.sub(r'"\1"', rest).strip("()[]{}' ")
    if words == "$panicked" or _COMPARISON.search(words):
        yield f"{name} ({_ASSIGNMENT.sub('==', words)})"
    elif _NAMES.fullmatch(words):
        yield f'{name} "{" ".join(["%v"] * (words.count(",") + 1))}", {words}'


_COMPARISON = re.compile(r"[<>=!]")
_ASSIGNMENT = re.compile(r"(?<![<>=!])=(?!=)")
_LONG_RUNE = re.compile(r"'([^'\"]{2,})'")
_NAMES = re.compile(r"\$?\w+(\s*,\s*\$?\w+)*")


def _parsed(text: str, regex: bool, split: _Split, lines: bool) -> ProbeSpec:
    """Parse a probe as it is. Raises SpecError and what ``split`` raises."""
    source = Source(text)
    start = len(text) - len(text.lstrip())
    if start == len(text):
        raise source.error(TextRange(start, start), "expected a function, as in main.main")
    word = text[start:].split(maxsplit=1)[0]
    line = parse_lines(word, split) if lines and not regex else None
    binary, rest = split(text[start:]) if line is None else (line[0], text[start:])
    start = len(text) - len(rest)
    if len(rest) > _MAX_LENGTH:
        reason = f"a probe has at most {_MAX_LENGTH} characters"
        raise source.error(TextRange(start + _MAX_LENGTH, start + _MAX_LENGTH + 1), reason)
    start = _past_spaces(text, start)
    end = name_end(text, start, regex=regex) if line is None else start + len(word)
    if end == start:
        raise source.error(TextRange(start, start + 1), "expected a function, as in main.main")
    after = end
    if not regex and text.startswith("(", end):
        after = _signature_end(source, end)
    _check_separated(source, after)
    signature = text[start:after].rstrip() if after > end else None
    parser = Parser(source, tokenize(source, after))
    predicate = _predicate(parser)
    parsed = _format(source, parser)
    values = _values(parser) if parsed is not None else ()
    if parser.token.kind is not TokenKind.END:
        if text[start:end] == "func":
            raise source.error(TextRange(start, end), "functions are written without 'func'")
        raise _unexpected(parser, predicate is not None, parsed is not None)
    if parsed is not None:
        _check_count(source, parsed[0], parsed[1], values)
    return ProbeSpec(
        source,
        binary,
        text[start:end],
        signature,
        predicate,
        parsed[1] if parsed else None,
        values,
        line=None if line is None else line[1],
    )


def parse_key(text: str) -> KeyText:
    """Parse expressions separated by commas; raises SpecError."""
    source = Source(text)
    if len(text) > _MAX_LENGTH:
        reason = f"expressions have at most {_MAX_LENGTH} characters"
        raise source.error(TextRange(_MAX_LENGTH, _MAX_LENGTH + 1), reason)
    parser = Parser(source, tokenize(source, 0))
    expressions = [parser.expression()]
    while parser.at(","):
        parser.take()
        expressions.append(parser.expression())
    if parser.token.kind is not TokenKind.END:
        raise parser.error("expected , and one more expression, or the end")
    return KeyText(source, tuple(expressions))


def parse_label(text: str) -> str:
    """Return the key of a label of goroutines, as in ``$label("user")``. Raises GotraceError."""
    found = parse_key(text).expressions
    if len(found) != 1 or not isinstance(found[0], LabelExpr):
        by = said("--by ", "by=")
        why = "goroutines are kept apart by one label, as"
        raise UsageError(f"{by}{text}: {why} {by}'$label(\"user\")'")
    size = len(found[0].key.encode("utf-8", "surrogateescape"))
    if size > MAX_LABEL_KEY:
        text = f"a label's key has at most {MAX_LABEL_KEY} bytes, and this one {size}"
        raise UsageError(text)
    return found[0].key


def _past_spaces(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


def name_end(text: str, start: int, *, regex: bool = False) -> int:
    """Return where the pattern ends: before a space or a signature.

    Parentheses that belong to a name are followed by a dot, ``main.(*T).M``, or are part of a
    bracket; spaces in names are in brackets or before a brace, ``go:struct { io.Reader }.Read``.
    """
    at = start
    while at < len(text):
        character = text[at]
        close = closing(text, at) if character in CLOSING else -1
        if character == "(" and not regex and not _in_name(text, start, at, close):
            return at
        if character.isspace():
            following = _past_spaces(text, at)
            if regex or not text.startswith("{", following):
                return at
        at = close + 1 if close >= 0 else at + 1
    return at


def _in_name(text: str, start: int, at: int, close: int) -> bool:
    """Return whether a parenthesis is part of a name, as around a pointer receiver."""
    if at == start:
        return text.startswith("(*", at)
    if text[at - 1] in ".:":
        return True
    return close >= 0 and text.startswith(".", close + 1)


def _signature_end(source: Source, start: int) -> int:
    """Return where a signature ends whose parameters' parenthesis is at an index."""
    text = source.text
    close = closing(text, start)
    if close < 0:
        raise source.error(TextRange(start, len(text)), "the closing ) is missing")
    inside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text[start : close + 1])
    if '""' in inside or _CONDITION.search(inside):
        raise source.error(
            TextRange(start, close + 1),
            "put a space before a predicate: without one, the parentheses hold the types of"
            " parameters",
        )
    results = _past_spaces(text, close + 1)
    if results == len(text) or text[results] in QUOTES:
        return close + 1
    if text[results] == "(":
        end = closing(text, results)
        if end >= 0 and _are_types(text[results : end + 1]):
            return end + 1
        return close + 1
    return _type_end(text, results)


def _are_types(group: str) -> bool:
    """Return whether this is results, ``(int, error)``, and not a predicate, ``(n > 3)``."""
    if _CONDITION.search(group) or '"' in group:
        return False
    if "," in group:
        return True
    try:
        parse_signature(f"f(){group}")
    except SignatureError:
        return False
    return True


def _type_end(text: str, at: int) -> int:
    """Return where a result's type ends: before a predicate or format, which follow a space."""
    while at < len(text):
        if text[at] in CLOSING:
            close = closing(text, at)
            at = close if close >= 0 else at
        at += 1
        following = _past_spaces(text, at)
        if following > at and (following == len(text) or text[following] in '("`'):
            return at
    return at


def _check_separated(source: Source, at: int) -> None:
    text = source.text
    if at < len(text) and not text[at].isspace() and text[at] not in QUOTES:
        raise source.error(TextRange(at, at + 1), f"{_EXPECTED} after a space")


def _predicate(parser: Parser) -> Expression | None:
    return parser.expression() if parser.at("(") else None


def _format(source: Source, parser: Parser) -> tuple[Token, Format] | None:
    if parser.token.kind is not TokenKind.STRING:
        return None
    token = parser.take()
    assert isinstance(token.value, bytes)
    # Bytes that are not UTF-8 are printed as they came.
    text = token.value.decode("utf-8", "surrogateescape")
    try:
        return token, parse_format(text)
    except FormatError as error:
        raise source.error(_within(token, text, error.start, error.end), error.reason) from error


def _within(token: Token, text: str, start: int, end: int) -> TextRange:
    """Return the place in the probe of characters of a string's content."""
    before, inside = (len(_bytes_of(part)) for part in (text[:start], text[start:end]))
    origins = token.origins[before : before + inside]
    if not origins:
        return token.span
    return TextRange(origins[0], origins[-1] + 1)


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _values(parser: Parser) -> tuple[Expression, ...]:
    values = []
    while parser.at(","):
        parser.take()
        values.append(parser.expression())
    return tuple(values)


def _unexpected(parser: Parser, after_predicate: bool, after_format: bool) -> SpecError:
    token = parser.token
    if after_format:
        return parser.error("expected , and a value for the format")
    if token.kind is TokenKind.RUNE or token.text.startswith("'"):
        return parser.error('a format is written in double quotes, "..."')
    if after_predicate:
        return parser.error('expected "FORMAT", EXPR... or the end after the predicate')
    return parser.error(
        f"{_EXPECTED} after the function: put a condition in parentheses, and a further function"
        " into quotes of its own"
    )


def _check_count(
    source: Source, token: Token, parsed: Format, values: tuple[Expression, ...]
) -> None:
    """Refuse a format with more or fewer verbs than there are values."""
    wanted = len(parsed.directives)
    if len(values) > wanted:
        verbs = f"{wanted} verb{'s' * (wanted != 1)}"
        raise source.error(
            values[wanted].span, f"the format has {verbs}: add %v for this value, or leave it out"
        )
    if len(values) < wanted:
        directive = parsed.directives[len(values)]
        text = parsed.text
        reason = f"there is no value for {directive.text}: add one, or write %% for a percent sign"
        raise source.error(_within(token, text, directive.start, directive.end), reason)
