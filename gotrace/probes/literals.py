"""Read Go's literals: integers, floats, runes, strings, and durations as time.ParseDuration does.

The syntax is The Go Programming Language Specification's, sections "Integer literals" to "String
literals". Durations are the one addition: ``10ms`` is an untyped integer of nanoseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["LiteralError", "duration", "number", "unquote"]


class LiteralError(Exception):
    """Say why a literal is none of Go's, and at which character of it (from 0).

    Internal to this package: callers turn it into an error that names the whole text.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        """Take the reason and the place."""
        super().__init__(reason)
        self.reason = reason
        self.at = at


_LONGEST_NUMBER = 100
_LARGEST_EXPONENT = 400  # float64 ends at 308
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LONGEST_DURATION = (1 << 63) - 1

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
_PART = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(sorted(_UNITS, key=len)[::-1])})")
_LEADING_ZEROS = re.compile(r"0(?:_?[0-9])+")


def number(text: str) -> int | Fraction:
    """Read an integer (any base, underscores) or a floating-point literal, exactly.

    Raises LiteralError.
    """
    if len(text) > _LONGEST_NUMBER:
        raise LiteralError(f"a number has at most {_LONGEST_NUMBER} characters")
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
    if len(exponent) > 4 or int(exponent) > _LARGEST_EXPONENT * (4 if hexadecimal else 1):
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
        return f"{text} is no number: durations end in ns, us, ms, s, m or h"
    return f"{text} is no number: as in 10, 0x1f, 0b101, 1_000, 1.5, 1e9 or 10ms"


def duration(text: str) -> int | None:
    """Read a duration such as ``1h30m`` or ``1.5ms`` as nanoseconds, None when it is none.

    Raises LiteralError when it is one that has no whole number of nanoseconds, or is too long.
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    at, total = 0, Fraction(0)
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            return None
        total += Fraction(match[1].rstrip(".")) * _UNITS[match[2]]
        at = match.end()
    if total.denominator != 1:
        raise LiteralError(f"{text} is not a whole number of nanoseconds")
    if total > _LONGEST_DURATION:
        raise LiteralError(f"{text} is longer than a time.Duration can be, 292 years")
    return int(total)


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
        raise LiteralError("a line ends inside of the quotes: write \\n, or use `...`", at)
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
        raise LiteralError(f"{match[0]} is no Unicode character", at)
    return chr(code).encode(), len(match[0])


def _encoded(character: str, at: int) -> bytes:
    try:
        # Bytes of the command line that are no UTF-8 arrive as surrogates (PEP 383).
        return character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise LiteralError("a lone surrogate is no character", at) from error
