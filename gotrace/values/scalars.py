# SPDX-License-Identifier: Apache-2.0
"""Format single values by one of Go's verbs: integers, floats, strings, bytes.

Flags, widths and precisions act as in Go's fmt (src/fmt/format.go). Text of the traced program
never brings control characters or invalid UTF-8 with it: those are escaped.
"""

from __future__ import annotations

import math
import struct

from gotrace.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Directive:
    """One verb of a format, with its flags: ``%-10.3f``; ``start`` and ``end`` in the format.

    ``is_misfit``: the verb is ``v`` in place of one that does not fit the value, whose flags are
    those of that one.
    """

    verb: str
    flags: frozenset[str] = frozenset()
    width: int | None = None
    precision: int | None = None
    start: int = 0
    end: int = 0
    text: str = ""
    is_misfit: bool = False

    @property
    def go_syntax(self) -> bool:
        return self.verb == "v" and "#" in self.flags and not self.is_misfit

    @property
    def field_names(self) -> bool:
        return self.verb == "v" and "+" in self.flags and not self.is_misfit


def pad(content: str, directive: Directive, count: int | None = None, fill: str = " ") -> str:
    """Fill up to the width, with spaces if nothing else is given.

    ``count``: how many characters it is in Go's eyes, where escapes have made it longer.
    """
    missing = (directive.width or 0) - (len(content) if count is None else count)
    padding = fill * missing
    return content + " " * missing if "-" in directive.flags else padding + content


def filled(content: str, directive: Directive) -> str:
    """Fill up to the width by the flags."""
    return pad(content, directive, None, _fill(directive))


def _fill(directive: Directive) -> str:
    """Return the character that fills up text: "0" if the flags ask for it, else a space."""
    return "0" if "0" in directive.flags and "-" not in directive.flags else " "


def _pad_number(sign: str, digits: str, directive: Directive) -> str:
    """Fill up to the width, with zeros after the sign where the flag says so."""
    if "0" in directive.flags and "-" not in directive.flags:
        return sign + digits.rjust((directive.width or 0) - len(sign), "0")
    return pad(sign + digits, directive)


def _sign(negative: bool, directive: Directive) -> str:
    if negative:
        return "-"
    signed = "+" in directive.flags and not directive.field_names
    return "+" if signed else " " if " " in directive.flags else ""


_BASES = {"b": ("b", "0b"), "o": ("o", "0"), "O": ("o", "0o"), "x": ("x", "0x"), "X": ("X", "0X")}


def integer(value: int, directive: Directive, verb: str = "") -> str:
    """Format an integer by ``%d %b %o %O %x %X``; ``verb`` replaces the directive's own."""
    verb = verb or directive.verb
    base, prefix = _BASES.get(verb, ("d", ""))
    sign = _sign(value < 0, directive)
    digits = format(abs(value), base)
    if directive.precision is not None:
        digits = "" if directive.precision == 0 == value else digits.zfill(directive.precision)
        if not digits:
            return pad("", directive)
    elif "0" in directive.flags and "-" not in directive.flags:
        # Zeros fill up the width before the prefix comes in front of them.
        digits = digits.zfill((directive.width or 0) - len(sign))
    if "#" in directive.flags:
        octal = "" if digits.startswith("0") else "0"
        digits = (octal if base == "o" else prefix) + digits
    if verb == "O":
        digits = prefix + digits
    return pad(sign + digits, directive)


def address(value: int, directive: Directive) -> str:
    """Format an address: ``0xc000012345``, without the prefix for ``%#p``."""
    return integer(value, replace(directive, flags=directive.flags ^ {"#"}), "x")


def character(code: int, directive: Directive) -> str:
    """Format a code point by ``%c``, ``%q`` or ``%U``."""
    if directive.verb == "U":
        # Of a negative number, the bits that a uint64 of it has.
        shown = f"U+{code & _UINT64:0{max(4, directive.precision or 0)}X}"
        if "#" in directive.flags and _is_character(code) and chr(code).isprintable():
            shown += f" '{chr(code)}'"
        return pad(shown, directive)
    char = chr(code) if _is_character(code) else "\ufffd"
    if directive.verb == "c":
        return pad(plain_text(char.encode()), directive, 1, _fill(directive))
    return pad(
        _quote(char.encode(), "'", "+" in directive.flags), directive, None, _fill(directive)
    )


_UINT64 = (1 << 64) - 1


def _is_character(code: int) -> bool:
    return 0 <= code < 0xD800 or 0xE000 <= code <= 0x10FFFF


def floating(value: float, directive: Directive, *, single: bool = False) -> str:
    """Format a float by ``%v %e %E %f %F %g %G %b %x %X``.

    ``single``: it is a float32, given as the shortest decimal that is one.
    """
    verb, precision = directive.verb, directive.precision
    sign = "-" if math.copysign(1, value) < 0 and not math.isnan(value) else ""
    plus = "+" in directive.flags and not directive.field_names
    if not sign:
        sign = "+" if plus else " " if " " in directive.flags else ""
    if math.isinf(value) or math.isnan(value):
        name = "Inf" if math.isinf(value) else "NaN"
        sign = sign or ("+" if name == "Inf" else "")
        return pad(sign + name, directive)
    magnitude = abs(value)
    if verb in "bxX":
        if single:
            magnitude = struct.unpack("<f", struct.pack("<f", magnitude))[0]
        digits = (
            _binary(magnitude, single) if verb == "b" else _hexadecimal_float(magnitude, precision)
        )
    elif verb in "vgG" and precision is None:
        digits = _shortest(magnitude)
    else:
        if single:
            magnitude = struct.unpack("<f", struct.pack("<f", magnitude))[0]
        kind = {"v": "g", "F": "f", "G": "g", "E": "e"}.get(verb, verb)
        digits = format(magnitude, f".{6 if precision is None else precision}{kind}")
    if "#" in directive.flags and verb != "b" and not directive.go_syntax:
        digits = _sharp(digits, verb, precision)
    if verb in "GEX":
        digits = digits.upper()
    return _pad_number(sign, digits, directive)


def _binary(value: float, single: bool) -> str:
    """Return a float as ``%b`` does: its mantissa, an integer, and the power of two."""
    bits, bias = (23, 127) if single else (52, 1023)
    form = ("<f", "<I") if single else ("<d", "<Q")
    (word,) = struct.unpack(form[1], struct.pack(form[0], value))
    exponent, mantissa = word >> bits, word & (1 << bits) - 1
    if exponent:
        mantissa |= 1 << bits
    else:
        exponent = 1
    return f"{mantissa}p{exponent - bias - bits:+d}"


def _hexadecimal_float(value: float, precision: int | None) -> str:
    """Return a float as ``%x`` does: ``0x1.8p+01``, rounded to even."""
    if value == 0:
        point = "." + "0" * precision if precision else ""
        return f"0x0{point}p+00"
    fraction, exponent = math.frexp(value)
    exponent -= 1
    digits = int(fraction * (1 << 53))  # 1 in front of 13 hexadecimal digits
    if precision is None:
        part = f"{digits & (1 << 52) - 1:013x}".rstrip("0")
    else:
        dropped = 52 - 4 * precision
        if dropped > 0:
            half, rest = 1 << dropped - 1, digits & (1 << dropped) - 1
            digits >>= dropped
            digits += rest > half or (rest == half and digits & 1)
            if digits >> 4 * precision > 1:
                digits >>= 1
                exponent += 1
            part = f"{digits & (1 << 4 * precision) - 1:0{precision}x}" if precision else ""
        else:
            part = f"{digits & (1 << 52) - 1:013x}".ljust(precision, "0")
    sign = "-" if exponent < 0 else "+"
    return f"0x1{'.' + part if part else ''}p{sign}{abs(exponent):02d}"


def _sharp(digits: str, verb: str, precision: int | None) -> str:
    """Return a float's digits as the flag ``#`` has them: with a point, and zeros kept.

    As fmtFloat of src/fmt/format.go does it, which takes the x of ``0x`` for a digit.
    """
    number, mark, exponent = digits.partition("p" if verb in "xX" else "e")
    wanted = (6 if precision is None else precision) if verb in "vgGx" else 0
    wanted -= len(number.replace(".", "").lstrip("0"))
    if "." not in number:
        wanted -= number == "0"
        number += "."
    return f"{number}{'0' * wanted}{mark}{exponent}"


def _shortest(value: float) -> str:
    """Return the shortest decimal as %g does: with an exponent below -4 and from 6 on.

    That threshold is the one of src/strconv/ftoa.go for the shortest precision.
    """
    mantissa, _, exponent = f"{value!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + part) - len(digits))
    digits = digits.rstrip("0") or "0"
    if value == 0:
        return "0"
    if point - 1 < -4 or point - 1 >= 6:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1):02d}"
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    whole, part = digits[:point].ljust(point, "0"), digits[point:]
    return f"{whole}.{part}" if part else whole


def plain_text(content: bytes) -> str:
    """Decode text; characters that are not printable are escaped as in a Go string literal."""
    decoded = content.decode("utf-8", "backslashreplace")
    if decoded.isprintable():
        return decoded
    return "".join(c if c.isprintable() else _escaped(c) for c in decoded)


_NAMED_ESCAPES = dict(zip("\a\b\f\n\r\t\v", "abfnrtv", strict=True))


def _escaped(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return f"\\{_NAMED_ESCAPES[char]}"
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted(content: bytes, directive: Directive | None = None) -> str:
    """Quote text as ``%q`` does: ``%+q`` in ASCII, ``%#q`` in backquotes where possible."""
    flags = directive.flags if directive else frozenset()
    if directive and "#" in flags and not directive.go_syntax:
        decoded = content.decode("utf-8", "backslashreplace")
        if decoded.isprintable() and not set(decoded) & {"`", "\ufeff"} and _is_utf8(content):
            return f"`{decoded}`"
    return _quote(content, '"', "+" in flags and not (directive and directive.verb == "v"))


def _is_utf8(content: bytes) -> bool:
    decoded = content.decode("utf-8", "replace")
    return "\ufffd" not in decoded


def _quote(content: bytes, mark: str, ascii_only: bool) -> str:
    parts = []
    # Bytes that are not UTF-8 become surrogates (PEP 383), and are recognised by that.
    for char in content.decode("utf-8", "surrogateescape"):
        if "\udc80" <= char <= "\udcff":
            parts.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif char in (mark, "\\"):
            parts.append(f"\\{char}")
        elif char.isprintable() and (char.isascii() or not ascii_only):
            parts.append(char)
        else:
            parts.append(_escaped(char))
    return f"{mark}{''.join(parts)}{mark}"


def text(content: bytes, length: int | None, directive: Directive, mark: str = "") -> str:
    """Format a string by ``%v %s %q %x %X``; of a longer one than captured, say how long it is.

    ``length`` None: it is longer, but not known by how much. Precision cuts: to so many
    characters, or bytes for ``%x``. ``mark`` comes before it.
    """
    verb, precision = directive.verb, directive.precision
    cut = length is None or len(content) < length
    count = None
    if precision is not None:
        shortened = _shortened(content, precision, verb in "xX")
        cut = cut and shortened == content and len(content) < precision
        content = shortened
    if verb in "xX":
        shown = _hexadecimal(content, directive)
    elif verb == "q" or directive.go_syntax:
        shown = quoted(content, directive)
    else:
        shown = plain_text(content)
        # Go knows of no escapes, and counts a byte that is not UTF-8 as a character.
        count = len(content.decode("utf-8", "surrogateescape"))
    if cut:
        rest = "..." if length is None else f"... (len {length})"
        shown += rest
        count = None if count is None else count + len(rest)
    count = None if count is None else count + len(mark)
    return pad(mark + shown, directive, count, _fill(directive))


def _shortened(content: bytes, precision: int, of_bytes: bool) -> bytes:
    if of_bytes:
        return content[:precision]
    decoded = content.decode("utf-8", "surrogateescape")
    return decoded[:precision].encode("utf-8", "surrogateescape")


def _hexadecimal(content: bytes, directive: Directive) -> str:
    prefix = "0x" if "#" in directive.flags else ""
    if " " in directive.flags:
        shown = " ".join(f"{prefix}{byte:02x}" for byte in content)
    else:
        shown = prefix * bool(content) + content.hex()
    return shown.upper() if directive.verb == "X" else shown
