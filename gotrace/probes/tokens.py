# SPDX-License-Identifier: Apache-2.0
"""Go's tokens in the text of a probe, and its faults with their places.

Literals (integers, floats, runes, strings) follow The Go Programming Language Specification,
sections "Integer literals" to "String literals". Durations are the one addition, as
time.ParseDuration reads them: ``10ms`` is an untyped integer of nanoseconds.
"""

from __future__ import annotations

import re
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from gotrace.errors import UsageError
from gotrace.records import dataclass
from gotrace.text import quote
from gotrace.units import whole_nanoseconds


class LiteralError(Exception):
    """Why a literal is not one of Go's, and at which character of it (from 0).

    Internal to this package: callers turn it into an error that names the whole text.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


_MAX_NUMBER = 100
_MAX_EXPONENT = 400  # float64 ends at 308
_MAX_DURATION = (1 << 63) - 1

_BASES = {"0b": 2, "0o": 8, "0x": 16}
_INTEGER = re.compile(
    r"0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|0(?:_?[0-7])*|[1-9](?:_?[0-9])*",
    re.ASCII,
)
_DIGITS = r"[0-9](?:_?[0-9])*"
_FLOAT = re.compile(
    rf"(?:{_DIGITS}\.?|(?:{_DIGITS})?\.{_DIGITS})(?:[eE][+-]?(?P<exponent>{_DIGITS}))?"
)
_HEX = "[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_HEX_FLOAT = re.compile(
    rf"(0[xX])_?(?:{_HEX}\.?|(?:{_HEX})?\.{_HEX})[pP][+-]?(?P<exponent>{_DIGITS})"
)
_LEADING_ZEROS = re.compile(r"0(?:_?[0-9])+")


def number(text: str) -> int | Fraction:
    """Read an integer (any base, underscores) or a floating-point literal, exactly.

    Raises LiteralError.
    """
    if len(text) > _MAX_NUMBER:
        raise LiteralError(f"a number has at most {_MAX_NUMBER} characters")
    if _INTEGER.fullmatch(text):
        plain = text.replace("_", "").lower()
        base = _BASES.get(plain[:2])
        if base is None:
            base = 8 if plain.startswith("0") else 10
        return int(plain, base)
    decimal, hexadecimal = _FLOAT.fullmatch(text), _HEX_FLOAT.fullmatch(text)
    match = decimal or hexadecimal
    if match is None or (_LEADING_ZEROS.fullmatch(text) and match["exponent"] is None):
        raise LiteralError(_bad_number(text))
    exponent = (match["exponent"] or "0").replace("_", "")
    if len(exponent) > 4 or int(exponent) > _MAX_EXPONENT * (4 if hexadecimal else 1):
        raise LiteralError(f"the exponent of {text} is too large")
    plain = text.replace("_", "")
    if decimal:
        return Fraction(plain.rstrip(".") if plain.endswith(".") else plain.replace(".e", "e"))
    return _hexadecimal_fraction(plain[2:].lower())


def _hexadecimal_fraction(text: str) -> Fraction:
    mantissa, _, exponent = text.partition("p")
    whole, _, part = mantissa.partition(".")
    return Fraction(int(whole + part, 16)) * Fraction(2) ** (int(exponent) - 4 * len(part))


def _bad_number(text: str) -> str:
    if re.fullmatch(r"[0-9._eE+-]+i", text):
        return "imaginary numbers cannot be compared here"
    if _LEADING_ZEROS.fullmatch(text):
        return f"{text} begins with 0 and so is octal, which has no digits 8 and 9"
    if re.fullmatch(r"[0-9.]+[^\W\d]+", text):
        return f"{text} is not a number: durations end in ns, us, ms, s, m or h"
    return f"{text} is not a number: as in 10, 0x1f, 0b101, 1_000, 1.5, 1e9 or 10ms"


def duration(text: str) -> int | None:
    """Read a duration such as ``1h30m`` or ``1.5ms`` as nanoseconds, None when it is none.

    Raises LiteralError when it is one that has no whole number of nanoseconds, or is too long.
    """
    try:
        found = whole_nanoseconds(text)
    except ValueError:
        return None
    if found is None:
        raise LiteralError(f"{text} is not a whole number of nanoseconds")
    if found > _MAX_DURATION:
        raise LiteralError(f"{text} is longer than a time.Duration can be, 292 years")
    return found


_SIMPLE = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
}
_ESCAPE = re.compile(
    r"""\\(?:(?P<octal>[0-7]{3})|x(?P<byte>[0-9a-fA-F]{2})|u(?P<short>[0-9a-fA-F]{4})
    |U(?P<long>[0-9a-fA-F]{8})|(?P<simple>[abfnrtv\\"']))""",
    re.VERBOSE,
)


def unquote(text: str, quote: str) -> tuple[bytes, tuple[int, ...]]:
    """Resolve the inside of a string or rune literal to bytes, as Go does.

    ``text`` is what is between the quotes and ``quote`` the quote, a backquote for raw strings.
    Returns the bytes and, for each of them, the index in ``text`` that it comes from. Raises
    LiteralError.
    """
    content, origins = bytearray(), []
    at = 0
    while at < len(text):
        piece, length = _character(text, at, quote)
        content += piece
        origins += [at] * len(piece)
        at += length
    return bytes(content), tuple(origins)


def _character(text: str, at: int, quote: str) -> tuple[bytes, int]:
    """Return the bytes of the character or escape at an index, and its length in the text."""
    character = text[at]
    if quote == "`":
        return (b"" if character == "\r" else _encoded(character, at)), 1
    if character == "\n":
        raise LiteralError("the line ends within the quotes: write \\n, or use `...`", at)
    if character != "\\":
        return _encoded(character, at), 1
    match = _ESCAPE.match(text, at)
    if match is None or (match["simple"] in ("'", '"') and match["simple"] != quote):
        raise LiteralError(f"unknown escape {text[at : at + 2]}: write \\\\ for a backslash", at)
    if (simple := match["simple"]) is not None:
        return bytes([_SIMPLE.get(simple, ord(simple))]), 2
    if match["octal"] or match["byte"]:
        code = int(match["octal"], 8) if match["octal"] else int(match["byte"], 16)
        if code > 0xFF:
            raise LiteralError(f"{match[0]} is more than a byte, at most \\377", at)
        return bytes([code]), len(match[0])
    code = int(match["short"] or match["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise LiteralError(f"{match[0]} is not a Unicode character", at)
    return chr(code).encode(), len(match[0])


def _encoded(character: str, at: int) -> bytes:
    try:
        # Bytes of the command line that are not UTF-8 arrive as surrogates (PEP 383).
        return character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise LiteralError("a lone surrogate is not a character", at) from error


_SHOWN_AROUND = 60  # characters of a long probe on either side of what is wrong


class TextRange(NamedTuple):
    """A stretch of the probe's text: indices from 0, the end exclusive."""

    start: int
    end: int


class SpecError(UsageError):
    """A fault in a probe: ``column`` counts characters from 1.

    The message is one line: the probe, the column and the words there, and what would be right.
    """

    def __init__(self, probe: str, span: TextRange, reason: str) -> None:
        """Take the probe's whole text, the place in it, and the fault there."""
        there = probe[span.start : span.end]
        at = f"at {quote(_clipped(there))}" if there.strip() else "at the end"
        super().__init__(f"probe {_window(probe, span)}, column {span.start + 1}, {at}: {reason}")
        self.probe = probe
        self.span = span
        self.column = span.start + 1
        self.reason = reason


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN_AROUND else text[:_SHOWN_AROUND] + "..."


def _window(probe: str, span: TextRange) -> str:
    """Quote the probe, of a long one only the part near the place."""
    if len(probe) <= 4 * _SHOWN_AROUND:
        return quote(probe)
    start, end = max(0, span.start - _SHOWN_AROUND), span.start + _SHOWN_AROUND
    return f"{'...' if start else ''}{quote(probe[start:end])}{'...' if end < len(probe) else ''}"


@dataclass(frozen=True, slots=True)
class Source:
    """The text that the user typed for one probe."""

    text: str

    def error(self, span: TextRange, reason: str) -> SpecError:
        """Return the error about a place."""
        return SpecError(self.text, span, reason)


class TokenKind(Enum):
    """The sorts of tokens."""

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
    """One word: its place and text, and for literals its value.

    ``origins`` says for each byte of a string where in the probe it comes from.
    """

    kind: TokenKind
    span: TextRange
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
            raise source.error(TextRange(at, at + 1), f"a probe has at most {_LIMIT} words")
        token = _token(source, at)
        tokens.append(token)
        at = _skip(text, token.span.end)
    return [*tokens, Token(TokenKind.END, TextRange(at, at), "")]


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _token(source: Source, at: int) -> Token:
    text = source.text
    if match := _HEX_NUMBER.match(text, at) or _NUMBER.match(text, at):
        return _number_token(source, TextRange(at, match.end()))
    if match := _WORD.match(text, at):
        kind = TokenKind.SPECIAL if match[0].startswith("$") else TokenKind.NAME
        return Token(kind, TextRange(at, match.end()), match[0])
    if text[at] in "\"`'":
        return _quoted_token(source, at)
    if match := _OPERATOR.match(text, at):
        return Token(TokenKind.OPERATOR, TextRange(at, match.end()), match[0])
    if text[at] == "$":
        reason = "expected a name after $, such as $ret, $duration or $goid"
        raise source.error(TextRange(at, at + 1), reason)
    reason = "unexpected character"
    if text[at] in "\u201c\u201d\u2018\u2019":
        reason = 'a typographic quote: write "..."'
    raise source.error(TextRange(at, at + 1), reason)


def _number_token(source: Source, span: TextRange) -> Token:
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
            raise source.error(TextRange(at, at + 2), 'an empty rune: strings are written "..."')
        raise source.error(TextRange(at, len(text)), f"the closing {mark} is missing")
    span, inside = TextRange(at, match.end()), match[match.lastgroup or 0]
    try:
        value, origins = unquote(inside, mark)
    except LiteralError as error:
        place = at + 1 + error.at
        raise source.error(TextRange(place, min(place + 2, span.end)), error.reason) from error
    if mark == "'":
        return Token(TokenKind.RUNE, span, match[0], _rune(source, span, inside, value))
    shifted = tuple(at + 1 + origin for origin in origins)
    return Token(TokenKind.STRING, span, match[0], value, shifted)


def _rune(source: Source, span: TextRange, inside: str, value: bytes) -> int:
    if len(value) == 1:
        return value[0]  # '\xff' is 255, no half of a character
    try:
        characters = value.decode()
    except UnicodeDecodeError:
        characters = inside
    if len(characters) != 1:
        raise source.error(span, 'more than one character in single quotes: strings are "..."')
    return ord(characters)
