# SPDX-License-Identifier: Apache-2.0
"""Decoded values formatted by Go's verbs, as fmt.Printf does (src/fmt/print.go).

There are differences, as the program's own code is never run. Of methods, only those of errors and
of types that decoding knows are followed. Another error prints with %s and %v as it does without a
format. A function prints as its name if that is known. A value that was cut at its capture says so,
with its length. Characters that are not printable are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gotrace.errors import UsageError
from gotrace.gotypes.symbols import display_name
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    Kind,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.records import dataclass, replace
from gotrace.values.go_syntax import GUESSED, go_syntax
from gotrace.values.model import (
    BytesValue,
    ChanValue,
    DurationValue,
    ErrorValue,
    FuncValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    TimeValue,
    UnavailableValue,
    Value,
)
from gotrace.values.scalars import (
    Directive,
    address,
    character,
    filled,
    floating,
    integer,
    pad,
    plain_text,
    text,
)
from gotrace.values.stdlib_text import duration_text, time_syntax, time_text
from gotrace.values.string_methods import number_text, string_text

_BYTE = basic_type(Kind.UINT8)
_UNSIGNED = {Kind.UINT, Kind.UINT8, Kind.UINT16, Kind.UINT32, Kind.UINT64, Kind.UINTPTR}


def _short(name: str) -> str:
    """Return a type's name as Go prints it: packages by the last element of their path."""
    spoken = display_name(name) if "%" in name else name
    short = re.sub(r"[\w.~+-]+/(?=[\w.~+/-]*\.)", "", spoken)
    return plain_text(short.encode("utf-8", "surrogateescape"))


def _literal(name: str, depth: int) -> str:
    """Return a type's name as ``%#v`` has it, which knows byte only where it is not within."""
    return "[]byte" if name == "[]uint8" and depth == 0 else _short(name)


def _order(entry: tuple[Value, Value]) -> tuple[int, int | float, bytes]:
    """Order map entries as fmt does: by keys that are numbers or strings, others as they come."""
    key = entry[0].value if isinstance(entry[0], NamedValue) else entry[0]
    if isinstance(key, bool | int | float):
        return 0, key, b""
    if isinstance(key, StringValue):
        return 1, 0, key.text
    return 2, 0, b""


class Printer:
    """Print values by one directive."""

    def __init__(self, directive: Directive) -> None:
        self._directive = directive
        self._verb = directive.verb
        self._syntax = directive.go_syntax

    def value(self, value: Value, of: GoType | None, depth: int = 0) -> str:
        """Return the text of a value of a static type, ``depth`` levels inside of another."""
        directive = self._directive
        if isinstance(value, UnavailableValue):
            return pad(f"<unavailable: {value.why}>", directive)
        if self._verb == "T":
            if _is_nil_interface(value, of):
                return filled("<nil>", directive)
            name = _type_name(value, of).encode("utf-8", "surrogateescape")
            return text(name, len(name), replace(directive, verb="s"))
        if self._verb == "p":
            return self._pointer_verb(value, of)
        if self._syntax and isinstance(value, TextValue | TimeValue):
            # Their fields are not known.
            shown = time_syntax(value) if isinstance(value, TimeValue) else value.text
            encoded = shown.encode("utf-8", "surrogateescape")
            return text(encoded, len(encoded), replace(directive, verb="s"))
        if not self._syntax and self._verb in "vsxXq":
            # A verb that does not fit leaves methods aside, where there is more than they say.
            is_raw = directive.is_misfit and isinstance(value, ErrorValue | DurationValue)
            content = None if is_raw else _text_of(value, of)
            if content is not None:
                mark = GUESSED if isinstance(value, ErrorValue) and value.guessed else ""
                return text(content, _length_of(value, len(content)), directive, mark)
            if self._verb in "vs" and not directive.is_misfit and _is_unknown_error(value):
                return self._whole(value)
        return self._plain(value, of, depth)

    def _whole(self, value: Value) -> str:
        """Print a value as it is without a format."""
        content = go_syntax(value).encode("utf-8", "surrogateescape")
        return text(content, len(content), replace(self._directive, verb="s"))

    def _plain(self, value: Value, of: GoType | None, depth: int) -> str:
        if isinstance(value, NamedValue):
            return self._scalar(value.value, of, value.type)
        if isinstance(value, bool | int | float | complex | StringValue):
            return self._scalar(value, of, "")
        if isinstance(value, DurationValue):
            return self._scalar(value.nanoseconds, of, "time.Duration")
        if isinstance(value, ErrorValue):
            return self.value(value.value, value.of, depth)
        if isinstance(value, InterfaceValue):
            if value.value is None:
                return pad(f"<{_type_name(value, of)}>", self._directive)
            return self.value(value.value, value.of, depth)
        if isinstance(value, BytesValue):
            return self._bytes(value, depth)
        if isinstance(value, Nil):
            return self._nil(value, of, depth)
        if isinstance(value, PointerValue | FuncValue | ChanValue):
            return self._reference(value, of, depth)
        if isinstance(value, StructValue | SequenceValue | MapValue):
            return self._composite(value, of, depth)
        return self._bad(value, of)

    def _scalar(self, value: Value, of: GoType | None, name: str) -> str:
        """Print a bool, a number or a string; ``name`` is that of a declared type."""
        directive, verb = self._directive, self._verb
        if isinstance(value, bool):
            if verb in "vt":
                return filled("true" if value else "false", directive)
        elif isinstance(value, int):
            return self._integer(value, of, name)
        elif isinstance(value, float | complex):
            if verb in "veEfFgGbxX":
                single = of is not None and of.kind in (Kind.FLOAT32, Kind.COMPLEX64)
                return _float(value, directive, single)
        elif isinstance(value, StringValue) and verb in "vsqxX":
            return text(value.text, value.length, directive)
        return self._bad(NamedValue(name, value) if name else value, of)

    def _integer(self, value: int, of: GoType | None, name: str) -> str:
        directive, verb = self._directive, self._verb
        if verb in "cqU":
            return character(value, directive)
        if self._syntax and _is_unsigned(of, name):
            return integer(value, directive, "x")
        if verb == "v":
            return integer(value, replace(directive, flags=directive.flags - {"#"}), "d")
        if verb in "dboOxX":
            return integer(value, directive)
        return self._bad(NamedValue(name, value) if name else value, of)

    def _bytes(self, value: BytesValue, depth: int) -> str:
        if self._verb in "sqxX":
            return text(value.data, value.length, self._directive)
        elements = [self._integer(byte, _BYTE, "") for byte in value.data]
        return self._joined(elements, value.length, _literal(value.type, depth))

    def _joined(self, elements: list[str], length: int | None, name: str) -> str:
        if length is None or len(elements) < length:
            elements = [*elements, "..." if length is None else f"... (len {length})"]
        if self._syntax:
            return f"{name}{{{', '.join(elements)}}}"
        return f"[{' '.join(elements)}]"

    def _composite(
        self, value: StructValue | SequenceValue | MapValue, of: GoType | None, depth: int
    ) -> str:
        if isinstance(value, StructValue) and value.guess is not None and self._verb in "vsq":
            return GUESSED + self._scalar(value.guess, None, "")
        name = _short(value.type)
        if isinstance(value, SequenceValue):
            elem = of.elem if isinstance(of, SliceType | ArrayType) else None
            elements = [self.value(element, elem, depth + 1) for element in value.elements]
            return self._joined(elements, value.length, name)
        if isinstance(value, MapValue):
            return self._map(value, of, depth)
        fields = []
        for index, (field, content) in enumerate(value.fields):
            inner = _field_type(of, len(value.fields), index)
            shown = self.value(content, inner, depth + 1)
            named = self._syntax or self._directive.field_names
            fields.append(f"{field}:{shown}" if named else shown)
        if self._syntax:
            return f"{name}{{{', '.join(fields)}}}"
        return f"{{{' '.join(fields)}}}"

    def _map(self, value: MapValue, of: GoType | None, depth: int) -> str:
        key_type, elem_type = (of.key, of.elem) if isinstance(of, MapType) else (None, None)
        entries = [
            f"{self.value(key, key_type, depth + 1)}:{self.value(elem, elem_type, depth + 1)}"
            for key, elem in sorted(value.entries, key=_order)
        ]
        if value.is_cut:
            rest = "..." if value.missing is None else f"<unavailable: {value.missing.why}>"
            entries.append(f"{rest} (len {value.length})")
        if self._syntax:
            return f"{_short(value.type)}{{{', '.join(entries)}}}"
        return f"map[{' '.join(entries)}]"

    def _reference(
        self, value: PointerValue | FuncValue | ChanValue, of: GoType | None, depth: int
    ) -> str:
        if isinstance(value, FuncValue):
            if value.name and self._verb in "vs":
                return pad(
                    plain_text(value.name.encode("utf-8", "surrogateescape")), self._directive
                )
            place = value.pc
        else:
            place = value.address
        if isinstance(value, PointerValue) and depth == 0 and _is_composite(value.target):
            target = of.elem if isinstance(of, PointerType) else None
            assert value.target is not None
            return "&" + self.value(value.target, target, depth + 1)
        if self._syntax:
            return f"({_short(value.type)})({place:#x})"
        if self._verb == "v":
            return address(place, self._directive)
        if self._verb in "dboxX":
            return integer(place, self._directive)
        return self._bad(value, of)

    def _pointer_verb(self, value: Value, of: GoType | None) -> str:
        """Print ``%p``: an address."""
        if isinstance(value, InterfaceValue | ErrorValue) and value.value is not None:
            value = value.value
        if isinstance(value, PointerValue | ChanValue):
            return address(value.address, self._directive)
        if isinstance(value, FuncValue):
            return address(value.pc, self._directive)
        if isinstance(value, Nil) and not _is_nil_interface(value, of):
            return address(0, self._directive)
        return self._bad(value, of)

    def _nil(self, value: Nil, of: GoType | None, depth: int) -> str:
        kind = _kind_of_nil(value, of)
        name = _literal(value.type, depth)
        if self._verb == "v":
            if self._syntax:
                if kind is Kind.INTERFACE:
                    return filled("<nil>", self._directive) if depth == 0 else f"{name}(nil)"
                return (
                    f"({name})(nil)" if name.startswith(("*", "func", "chan")) else f"{name}(nil)"
                )
            if kind is Kind.SLICE:
                return "[]"
            if kind is Kind.MAP:
                return "map[]"
            # A value within another one is not filled up.
            is_inner = kind is Kind.INTERFACE and depth
            return "<nil>" if is_inner else filled("<nil>", self._directive)
        if kind is Kind.INTERFACE:
            return "<nil>" if depth else f"%!{self._verb}(<nil>)"
        if kind is Kind.SLICE:
            is_bytes = name.startswith(("[]uint8", "[]byte"))
            return self._bytes(BytesValue(name, b"", 0), depth) if is_bytes else "[]"
        if kind is Kind.MAP:
            return "map[]"
        if self._verb in "dboxX":
            return integer(0, self._directive)
        return self._bad(value, of)

    def _bad(self, value: Value, of: GoType | None) -> str:
        """Return Go's text for a verb that does not fit: ``%!d(string=hi)``."""
        if _is_nil_interface(value, of):
            return f"%!{self._verb}(<nil>)"
        if isinstance(value, FuncValue):
            value = replace(value, name=None)
        shown = Printer(replace(self._directive, verb="v", is_misfit=True)).value(value, of, 0)
        return f"%!{self._verb}({_type_name(value, of)}={shown})"


def _text_of(value: Value, of: GoType | None) -> bytes | None:
    """Return the result of a value's own String or Error method; None if that is not known."""
    if isinstance(value, int | PointerValue | NamedValue):
        is_plain = isinstance(value, int)
        shown = number_text(value, of.name if of else "") if is_plain else string_text(value)
        return None if shown is None else shown.encode("utf-8", "surrogateescape")
    if isinstance(value, ErrorValue):
        return value.message.encode("utf-8", "surrogateescape")
    if isinstance(value, TextValue):
        return value.text.encode("utf-8", "surrogateescape")
    if isinstance(value, DurationValue):
        return duration_text(value.nanoseconds).encode()
    return time_text(value).encode() if isinstance(value, TimeValue) else None


def _length_of(value: Value, shown: int) -> int | None:
    """Return the true length of a text of which that many bytes are shown, None if not known."""
    if not isinstance(value, ErrorValue) or not value.is_cut:
        return shown
    # A message that has a gap may be shorter than it is with the words in the gap's place.
    return value.length if value.length is not None and value.length > shown else None


def _is_unknown_error(value: Value) -> bool:
    """Return whether a value is an error of which only the fields are known."""
    if not isinstance(value, InterfaceValue) or value.type != "error":
        return False
    inner = value.value.target if isinstance(value.value, PointerValue) else value.value
    return _is_composite(inner) or isinstance(inner, NamedValue)


def _is_composite(value: Value | None) -> bool:
    return isinstance(value, StructValue | SequenceValue | MapValue | BytesValue)


def _field_type(of: GoType | None, count: int, index: int) -> GoType | None:
    if isinstance(of, StructType) and len(of.fields) == count:
        return of.fields[index].type
    return None


def _is_unsigned(of: GoType | None, name: str) -> bool:
    if of is not None and of.kind is not Kind.INVALID:
        return of.kind in _UNSIGNED
    return name == "uintptr"


def _float(value: float | complex, directive: Directive, single: bool) -> str:
    if isinstance(value, complex):
        # The width is that of each part.
        flags = directive.flags - ({"#"} if directive.go_syntax else set())
        plus = replace(directive, verb="g" if directive.verb == "v" else directive.verb)
        signed = replace(plus, flags=flags | {"+"})
        real = floating(value.real, directive, single=single)
        return f"({real}{floating(value.imag, signed, single=single)}i)"
    return floating(value, directive, single=single)


def _is_nil_interface(value: Value, of: GoType | None) -> bool:
    if not isinstance(value, Nil):
        return False
    return _kind_of_nil(value, of) is Kind.INTERFACE


def _kind_of_nil(value: Nil, of: GoType | None) -> Kind:
    if of is not None and of.kind is not Kind.INVALID:
        return of.kind
    kinds = {"[]": Kind.SLICE, "map[": Kind.MAP, "interface {": Kind.INTERFACE}
    if value.type in ("error", "any"):
        return Kind.INTERFACE
    return next((k for start, k in kinds.items() if value.type.startswith(start)), Kind.POINTER)


def _type_name(value: Value, of: GoType | None) -> str:
    """Return the name of a value's own type: in an interface, that of its value."""
    if isinstance(value, InterfaceValue):
        if value.dynamic is None and value.value is not None:
            return _type_name(value.value, None)
        return _short(value.dynamic or value.type)
    if isinstance(value, bool | int | float | complex | StringValue):
        if of is not None and of.kind not in (Kind.INVALID, Kind.INTERFACE):
            return _short(of.name)
        plain = {bool: "bool", int: "int", float: "float64", complex: "complex128"}
        return plain.get(type(value), "string")
    if isinstance(value, DurationValue):
        return "time.Duration"
    if isinstance(value, TimeValue):
        return "time.Time"
    return "?" if isinstance(value, UnavailableValue) else _short(value.type)


_VERBS = "vTtbcdoOqxXUeEfFgGsp"
_DIRECTIVE = re.compile(
    rf"%(?P<flags>[-+# 0]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>[{_VERBS}])"
)
_MAX_WIDTH = 1000


class FormatError(UsageError):
    """A fault in a format, with its range of characters (from 0)."""

    def __init__(self, content: str, start: int, end: int, reason: str) -> None:
        super().__init__(f"format {content!r}, column {start + 1}: {reason}")
        self.start = start
        self.end = end
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Format:
    """A format in pieces: plain text, and a directive for each value."""

    text: str
    pieces: tuple[str | Directive, ...]

    @property
    def directives(self) -> tuple[Directive, ...]:
        """Return the directives, one for each value, in order."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Directive))


def parse_format(content: str) -> Format:
    """Parse a format such as ``%s %-5d %+v``; raises FormatError."""
    pieces: list[str | Directive] = []
    at = 0
    while at < len(content):
        percent = content.find("%", at)
        if percent < 0:
            pieces.append(content[at:])
            break
        if percent > at:
            pieces.append(content[at:percent])
        if content.startswith("%%", percent):
            pieces.append("%")
            at = percent + 2
            continue
        directive = _directive(content, percent)
        pieces.append(directive)
        at = directive.end
    return Format(content, tuple(pieces))


def _directive(content: str, start: int) -> Directive:
    match = _DIRECTIVE.match(content, start)
    if match is None:
        raise _bad_directive(content, start)
    width, precision = match["width"], match["precision"]
    if len(width) > 4 or len(precision or "") > 4 or int(width or 0) > _MAX_WIDTH:
        reason = f"widths and precisions are at most {_MAX_WIDTH}"
        raise FormatError(content, start, match.end(), reason)
    return Directive(
        match["verb"],
        frozenset(match["flags"]),
        int(width) if width else None,
        None if precision is None else min(int(precision or 0), _MAX_WIDTH),
        start,
        match.end(),
        match[0],
    )


def _bad_directive(content: str, start: int) -> FormatError:
    flags = re.compile(r"%[-+# 0-9.]*").match(content, start)
    end = flags.end() if flags else start + 1
    if end >= len(content):
        return FormatError(content, start, end, "a verb is missing after %; %% is a percent sign")
    char = content[end]
    reason = f"there is no verb %{char}: use one of %{' %'.join(_VERBS)}, or %% for a percent sign"
    if char == "*":
        reason = "write the width as a number"
    elif char == "[":
        reason = "values are taken in order: leave the index out"
    elif char in "iul":
        reason = f"Go has no %{char}: integers are %d, anything is %v"
    return FormatError(content, start, end + 1, reason)


_INTEGERS = frozenset(kind for kind in Kind if Kind.INT.value <= kind.value <= Kind.UINTPTR.value)
_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})
_SUITABLE = {
    Kind.BOOL: "vTt",
    Kind.STRING: "vTsqxX",
    **dict.fromkeys(_INTEGERS, "vTdboOcqxXU"),
    **dict.fromkeys(_FLOATS, "vTeEfFgGbxX"),
}
_BETTER = {Kind.BOOL: "%t", Kind.STRING: "%s or %q"}
_WITH_TEXT = frozenset({"time.Duration", "time.Month", "time.Weekday"})


def verb_problem(directive: Directive, of: GoType) -> str | None:
    """Return why a verb cannot print values of a type, None when it can or it depends."""
    verbs = _SUITABLE.get(of.kind)
    if of.name in _WITH_TEXT:
        verbs = "vTdboOcqxXUs"
    if verbs is None or directive.verb in verbs:
        return None
    better = "%g" if of.kind in _FLOATS else _BETTER.get(of.kind, "%d")
    return f"%{directive.verb} does not print {of.name} values: use {better}, or %v"


def format_values(
    template: Format, values: Sequence[Value], types: Sequence[GoType | None] = ()
) -> str:
    """Fill a format with values, one for each directive.

    ``types`` are the values' static types where known: they distinguish uint8 from int for %T and
    %#v, and a float32.
    """
    parts = []
    index = 0
    for piece in template.pieces:
        if isinstance(piece, str):
            parts.append(piece)
            continue
        if index < len(values):
            of = types[index] if index < len(types) else None
            parts.append(Printer(piece).value(values[index], of))
        else:
            parts.append(f"%!{piece.verb}(MISSING)")
        index += 1
    return "".join(parts)
