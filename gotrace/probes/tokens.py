"""Cut the text of a probe into Go's tokens, and say what is wrong with it and where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from gotrace.errors import UsageError
from gotrace.probes.literals import LiteralError, duration, number, unquote
from gotrace.probes.pattern import quote

__all__ = ["Source", "Span", "SpecError", "Token", "TokenKind", "tokenize"]

_SHOWN_AROUND = 60  # characters of a long probe on either side of what is wrong


class Span(NamedTuple):
    """A stretch of the probe's text: indices from 0, the end exclusive."""

    start: int
    end: int


class SpecError(UsageError):
    """Report what is wrong in a probe: ``column`` counts characters from 1.

    The message is one line: the probe, the column and the words there, and what would be right.
    """

    def __init__(self, probe: str, span: Span, reason: str) -> None:
        """Take the probe's whole text, the place in it, and what is wrong there."""
        there = probe[span.start : span.end]
        at = f"at {quote(_clipped(there))}" if there.strip() else "at the end"
        super().__init__(f"probe {_window(probe, span)}, column {span.start + 1}, {at}: {reason}")
        self.probe = probe
        self.column = span.start + 1
        self.reason = reason


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN_AROUND else text[:_SHOWN_AROUND] + "..."


def _window(probe: str, span: Span) -> str:
    """Quote the probe, of a long one only what is near the place."""
    if len(probe) <= 4 * _SHOWN_AROUND:
        return quote(probe)
    start, end = max(0, span.start - _SHOWN_AROUND), span.start + _SHOWN_AROUND
    return f"{'...' if start else ''}{quote(probe[start:end])}{'...' if end < len(probe) else ''}"


@dataclass(frozen=True, slots=True)
class Source:
    """The text that the user typed for one probe."""

    text: str

    def error(self, span: Span, reason: str) -> SpecError:
        """Return the error that says what is wrong at a place."""
        return SpecError(self.text, span, reason)


class TokenKind(Enum):
    """Tell what sort of word a token is."""

    NAME = "name"
    SPECIAL = "special"  # $duration; the value is the name without the dollar sign
    INT = "integer"
    FLOAT = "float"
    DURATION = "duration"
    RUNE = "rune"
    STRING = "string"
    OPERATOR = "operator"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One word: its place and text, and for literals what it stands for.

    ``origins`` says for each byte of a string where in the probe it comes from.
    """

    kind: TokenKind
    span: Span
    text: str
    value: int | Fraction | bytes | None = None
    origins: tuple[int, ...] = ()


_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"(?=\.?[0-9])(?:[eE][+-](?=[0-9])|[pP][+-](?=[0-9])|[\w.])+")
_HEX_NUMBER = re.compile(r"0[xX](?:[pP][+-](?=[0-9])|[\w.])*")
_WORD = re.compile(r"\$?[^\W\d]\w*")
_STRING = re.compile(r'"(?P<inside>(?:[^"\\]|\\.)*)"|`(?P<raw>[^`]*)`', re.DOTALL)
_RUNE = re.compile(r"'(?P<inside>(?:[^'\\]|\\.)+)'", re.DOTALL)
# Longest first. Those that mean nothing here are tokens too, so that an error can name them.
_OPERATOR = re.compile(r"&&|\|\||[=!<>]=|<<|>>|&\^|\+\+|--|:=|[-+*/%&|^<>=!()\[\]{},;.:~@#?\\]")
_LIMIT = 1000


def tokenize(source: Source, start: int = 0) -> list[Token]:
    """Cut the text from ``start`` on into tokens; the last is an END token. Raises SpecError."""
    tokens: list[Token] = []
    text = source.text
    at = _skip(text, start)
    while at < len(text):
        if len(tokens) == _LIMIT:
            raise source.error(Span(at, at + 1), f"a probe has at most {_LIMIT} words")
        token = _token(source, at)
        tokens.append(token)
        at = _skip(text, token.span.end)
    return [*tokens, Token(TokenKind.END, Span(at, at), "")]


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _token(source: Source, at: int) -> Token:
    text = source.text
    if match := _HEX_NUMBER.match(text, at) or _NUMBER.match(text, at):
        return _number_token(source, Span(at, match.end()))
    if match := _WORD.match(text, at):
        kind = TokenKind.SPECIAL if match[0].startswith("$") else TokenKind.NAME
        return Token(kind, Span(at, match.end()), match[0])
    if text[at] in "\"`'":
        return _quoted_token(source, at)
    if match := _OPERATOR.match(text, at):
        return Token(TokenKind.OPERATOR, Span(at, match.end()), match[0])
    if text[at] == "$":
        reason = "expected a name after $, such as $ret, $duration or $goid"
        raise source.error(Span(at, at + 1), reason)
    reason = "unexpected character"
    if text[at] in "\u201c\u201d\u2018\u2019":
        reason = 'a typographic quote: write "..."'
    raise source.error(Span(at, at + 1), reason)


def _number_token(source: Source, span: Span) -> Token:
    text = source.text[span.start : span.end]
    try:
        length = duration(text)
        if length is not None:
            return Token(TokenKind.DURATION, span, text, length)
        value = number(text)
    except LiteralError as error:
        raise source.error(span, error.reason) from error
    kind = TokenKind.INT if isinstance(value, int) else TokenKind.FLOAT
    return Token(kind, span, text, value)


def _quoted_token(source: Source, at: int) -> Token:
    text = source.text
    mark = text[at]
    match = _RUNE.match(text, at) if mark == "'" else _STRING.match(text, at)
    if match is None:
        if text.startswith("''", at):
            raise source.error(Span(at, at + 2), 'an empty rune: strings are written "..."')
        raise source.error(Span(at, len(text)), f"the closing {mark} is missing")
    span, inside = Span(at, match.end()), match[match.lastgroup or 0]
    try:
        value, origins = unquote(inside, mark)
    except LiteralError as error:
        place = at + 1 + error.at
        raise source.error(Span(place, min(place + 2, span.end)), error.reason) from error
    if mark == "'":
        return Token(TokenKind.RUNE, span, match[0], _rune(source, span, inside, value))
    shifted = tuple(at + 1 + origin for origin in origins)
    return Token(TokenKind.STRING, span, match[0], value, shifted)


def _rune(source: Source, span: Span, inside: str, value: bytes) -> int:
    if len(value) == 1:
        return value[0]  # '\xff' is 255, no half of a character
    try:
        characters = value.decode()
    except UnicodeDecodeError:
        characters = inside
    if len(characters) != 1:
        raise source.error(span, 'more than one character in single quotes: strings are "..."')
    return ord(characters)
