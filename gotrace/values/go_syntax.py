# SPDX-License-Identifier: Apache-2.0
"""Show decoded values in Go's syntax.

It is that of %#v, with what a reader of traces wants more: space after colons, errors as their
message, durations, times and addresses as they print, and cut values with their length. Nothing of
the traced program's text reaches a terminal unescaped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from gotrace.gotypes.symbols import display_name
from gotrace.gotypes.types import SHAPE
from gotrace.records import replace
from gotrace.values.model import (
    AlikeValue,
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
from gotrace.values.scalars import Directive, floating, plain_text, quoted
from gotrace.values.stdlib_text import duration_text, time_text
from gotrace.values.string_methods import number_text, string_text

_V = Directive("v")
#: The mark before a message that is guessed from a field, and a text that is guessed from words.
GUESSED = "~"
#: Values nested deeper than this are not shown.
MAX_DEPTH = 32
#: Types that the compiler makes up for generics are shown as what they are made of (up to Go 1.20
#: with the number of the type parameter).
_SHAPE_NUMBER = re.compile(r"(\bgo\.shape\.\w+?)_[0-9]+\b")
_SHAPE = "go.shape."
#: The one of all pointers is *uint8; what they point to is not known.
_POINTER_SHAPE = re.compile(r"\bgo\.shape\.\*uint8(?:_[0-9]+)?\b")
_IMPORT_PATH = re.compile(r"[\w.~+-]+/(?=[\w.~+/-]*\.)")


def by_text(value: Value) -> str:
    """Return a value that rows are kept apart by; an unreadable one is ``unknown``."""
    if isinstance(value, UnavailableValue):
        return f"unknown ({value.why})"
    return go_syntax(value)


#: The elements of a path that are ids: numbers, UUIDs, numbers in base 16, and long words with
#: digits in them. Words such as v2 are none.
_ID = re.compile(
    r"(?<=/)(?:\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{6,}|"
    r"[0-9a-f]{12,}|(?=[a-z_-]*\d)[\w-]{20,})(?=[/.:?]|$)",
    re.IGNORECASE,
)
_ID_MARK = "{id}"
#: The parts by which errors of one kind differ: quoted texts, and numbers, also in base 16. Those
#: in names (sha256) are not, nor are those that can be a status: they say what kind it is.
_DETAIL = (
    r'"(?:[^"\\]|\\.)*(?:"|$)|`[^`]*`|(?<!\w)\'[^\']*\'(?!\w)|'
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+|\b(?=[a-f]*\d)[0-9a-f]{6,}\b|"
    r"\b[0-9a-f]{12,}\b|"
    r"(?<!\w)(?!(?<!\S)[1-5]\d\d(?!\w|[.:]\d))\d+"
)


def as_alike(value: Value) -> Value:
    """Return an error as an example of its kind, if its message has a part by which these differ.

    Of an error without a known message every field may say what kind it is, but those of ids.
    """
    if isinstance(value, InterfaceValue) and value.type == "error":
        return _alike_by_fields(value)
    if not isinstance(value, ErrorValue):
        return value
    kind = re.sub(_DETAIL, "#", value.message, flags=re.IGNORECASE)
    return value if kind == value.message else AlikeValue(value.type, kind, value)


def _alike_by_fields(value: InterfaceValue) -> Value:
    inner = value.value
    struct = inner.target if isinstance(inner, PointerValue) else inner
    if not isinstance(struct, StructValue) or not any(map(_is_id, struct.fields)):
        return value
    fields = [(one[0], TextValue("", "#")) if _is_id(one) else one for one in struct.fields]
    known: Value = replace(struct, fields=tuple(fields))
    if isinstance(inner, PointerValue):
        known = replace(inner, target=known)
    return AlikeValue(value.dynamic or value.type, go_syntax(replace(value, value=known)), value)


def _is_id(named: tuple[str, Value]) -> bool:
    return named[0] == "id" or named[0].endswith(("ID", "Id"))


def with_ids_folded(value: Value) -> Value:
    """Return a path with a mark in place of each element that is an id; see `_ID`."""
    if isinstance(value, NamedValue):
        return replace(value, value=with_ids_folded(value.value))
    if not isinstance(value, StringValue):
        return value
    text = value.text.decode("utf-8", "surrogateescape")
    folded = _ID.sub(_ID_MARK, text).encode("utf-8", "surrogateescape")
    return replace(value, text=folded, length=None if value.is_cut else len(folded))


def go_syntax(value: Value, depth: int = MAX_DEPTH) -> str:
    """Return a value in Go's syntax, with ``...`` for parts nested deeper than ``depth``."""
    shower = _SHOW.get(type(value))
    if shower is None:
        # A declared type of enum or the like cannot be a Value.
        return str(value)
    return shower(value, depth, "")


def _plain(value: object, depth: int, outer: str) -> str:
    return str(value)


def _bool(value: bool, depth: int, outer: str) -> str:
    return "true" if value else "false"


def _float(value: float, depth: int, outer: str) -> str:
    return floating(value, _V)


def _complex(value: complex, depth: int, outer: str) -> str:
    imaginary = floating(value.imag, _V)
    sign = "" if imaginary[0] in "+-" else "+"
    return f"({floating(value.real, _V)}{sign}{imaginary}i)"


def _string(value: StringValue, depth: int, outer: str) -> str:
    shown = quoted(value.text)
    return shown + _rest(value)


def _rest(value: StringValue | BytesValue) -> str:
    """Return the text for the bytes that were not captured."""
    if value.length is None:
        return "..."
    return f"... (len {value.length})" if value.is_cut else ""


def _bytes(value: BytesValue, depth: int, outer: str) -> str:
    shown = quoted(value.data) if is_text(value.data, value.is_cut) else value.data.hex()
    name = "[]byte" if value.type == "[]uint8" else _type(value.type)
    return f"{name}({shown}{_rest(value)})"


def is_text(data: bytes, is_cut: bool) -> bool:
    """Return whether bytes are printable text, which a cut may have ended within a character."""
    for end in range(len(data), max(len(data) - 4, -1), -1):
        try:
            text = data[:end].decode()
        except UnicodeDecodeError:
            if is_cut:
                continue
            return False
        return bool(text) and all(c.isprintable() or c in "\t\r\n" for c in text)
    return False


def _named(value: NamedValue, depth: int, outer: str) -> str:
    inner = value.value
    if value.type == "uintptr" and isinstance(inner, int):
        return f"{inner:#x}"
    if value.type.startswith(_SHAPE):
        return go_syntax(inner, depth)
    if (name := number_text(inner, value.type)) and name.isalpha():
        return f"time.{name}"
    return f"{_type(value.type)}({go_syntax(inner, depth)})"


def _pointer(value: PointerValue, depth: int, outer: str) -> str:
    target = value.target
    if (shown := string_text(value)) is not None:
        return plain_text(shown.encode("utf-8", "surrogateescape"))
    if target is None or isinstance(target, UnavailableValue):
        why = "" if target is None else f" {go_syntax(target)}"
        return f"({_type(value.type)})({value.address:#x}){why}"
    if isinstance(target, StructValue | SequenceValue | MapValue | BytesValue):
        return "&" + go_syntax(target, depth)
    return f"&{_type(value.type.removeprefix('*'))}({_bare(target, depth)})"


def _bare(value: Value, depth: int) -> str:
    """Return a value that its type's name is put around already."""
    return go_syntax(value.value if isinstance(value, NamedValue) else value, depth)


def _struct(value: StructValue, depth: int, outer: str) -> str:
    if value.guess is not None:
        return GUESSED + go_syntax(value.guess)
    if value.type == SHAPE:
        parts = [go_syntax(part, depth - 1) for _, part in value.fields]
        return f"{{{', '.join(parts)}}}" if depth > 0 or not parts else "{...}"
    name = "" if value.type == outer else _type(value.type)
    if depth <= 0 and value.fields:
        return f"{name}{{...}}"
    fields = [f"{plain_text(key.encode())}: {go_syntax(v, depth - 1)}" for key, v in value.fields]
    return f"{name}{{{', '.join(fields)}}}"


def _sequence(value: SequenceValue, depth: int, outer: str) -> str:
    name = "" if value.type == outer else _type(value.type)
    elem = value.type.partition("]")[2] if value.type.startswith("[") else ""
    elements = value.elements if depth > 0 else ()
    shown = [_element(element, depth - 1, elem) for element in elements]
    if len(elements) != value.length:
        shown.append(f"... (len {value.length})")
    return f"{name}{{{', '.join(shown)}}}"


def _element(value: Value, depth: int, outer: str) -> str:
    """Return an element, without its type's name where that is written before them all."""
    if isinstance(value, StructValue | SequenceValue):
        return _SHOW[type(value)](value, depth, outer)
    if isinstance(value, NamedValue) and value.type == outer and outer != "uintptr":
        return go_syntax(value.value, depth)
    return go_syntax(value, depth)


def _map(value: MapValue, depth: int, outer: str) -> str:
    entries = value.entries if depth > 0 else ()
    key_type, elem_type = _map_parts(value.type)
    shown = [
        f"{_element(key, depth - 1, key_type)}: {_element(elem, depth - 1, elem_type)}"
        for key, elem in ordered(entries)
    ]
    if len(entries) != value.length:
        rest = "..." if value.missing is None else go_syntax(value.missing)
        shown.append(f"{rest} (len {value.length})")
    return f"{_type(value.type)}{{{', '.join(shown)}}}"


@functools.lru_cache(maxsize=1024)
def _map_parts(name: str) -> tuple[str, str]:
    """Return the names of the key's and value's types in ``map[K]V``."""
    depth = 0
    for at, character in enumerate(name):
        depth += (character == "[") - (character == "]")
        if character == "]" and depth == 0 and name.startswith("map["):
            return name[4:at], name[at + 1 :]
    return "", ""


def ordered(entries: tuple[tuple[Value, Value], ...]) -> list[tuple[Value, Value]]:
    """Return entries by key where keys have an order, as fmt prints maps."""
    try:
        return sorted(entries, key=lambda entry: _order(entry[0]))  # type: ignore[arg-type, return-value]
    except TypeError:
        return list(entries)


def _order(value: Value) -> object:
    if isinstance(value, NamedValue):
        return _order(value.value)
    return value.text if isinstance(value, StringValue | TextValue) else value


def _chan(value: ChanValue, depth: int, outer: str) -> str:
    closed = ", closed" if value.closed else ""
    held = f"len {value.length}, cap {value.capacity}{closed}"
    return f"({_type(value.type)})({value.address:#x}) ({held})"


def _func(value: FuncValue, depth: int, outer: str) -> str:
    if value.name is None:
        return f"({_type(value.type)})({value.pc:#x})"
    return plain_text(value.name.encode("utf-8", "surrogateescape"))


def _interface(value: InterfaceValue, depth: int, outer: str) -> str:
    inner, dynamic = value.value, value.dynamic
    if inner is None or isinstance(inner, UnavailableValue):
        shown = "..." if inner is None else go_syntax(inner)
        return f"{_type(dynamic or value.type)}({shown})"
    if isinstance(inner, Nil):
        return f"({_type(dynamic or inner.type)})(nil)"
    if isinstance(inner, bool | StringValue) or dynamic in ("int", "float64"):
        return go_syntax(inner, depth)
    if isinstance(inner, int | float) and dynamic is not None:
        return f"{_type(dynamic)}({go_syntax(inner, depth)})"
    return go_syntax(inner, depth)


def _error(value: ErrorValue, depth: int, outer: str) -> str:
    message = value.message.encode("utf-8", "surrogateescape")
    rest = "..." if value.is_cut else ""
    if value.length is not None:
        rest += f" (len {value.length})"
    return f"{GUESSED * value.guessed}{quoted(message)}{rest} ({_type(value.type)})"


def _unavailable(value: UnavailableValue, depth: int, outer: str) -> str:
    return f"<unavailable: {value.why}>"


@functools.lru_cache(maxsize=4096)
def _type(name: str) -> str:
    """Return a type's name as code writes it: packages by the last element of their path."""
    spoken = display_name(name) if "%" in name else name
    if _SHAPE in spoken:
        spoken = _POINTER_SHAPE.sub("*T", spoken)
        spoken = _SHAPE_NUMBER.sub(r"\1", spoken).replace(_SHAPE, "")
    short = _IMPORT_PATH.sub("", spoken).replace("interface {}", "any")
    return plain_text(short.encode("utf-8", "surrogateescape"))


_Show = Callable[..., str]

_SHOW: Mapping[type, _Show] = {
    bool: _bool,
    int: _plain,
    float: _float,
    complex: _complex,
    StringValue: _string,
    BytesValue: _bytes,
    NamedValue: _named,
    PointerValue: _pointer,
    StructValue: _struct,
    SequenceValue: _sequence,
    MapValue: _map,
    ChanValue: _chan,
    FuncValue: _func,
    InterfaceValue: _interface,
    ErrorValue: _error,
    AlikeValue: lambda value, depth, outer: f"like {go_syntax(value.example, depth)}",
    DurationValue: lambda value, depth, outer: duration_text(value.nanoseconds),
    TimeValue: lambda value, depth, outer: plain_text(time_text(value).encode()),
    TextValue: lambda value, depth, outer: plain_text(value.text.encode()),
    Nil: lambda value, depth, outer: "nil",
    UnavailableValue: _unavailable,
}
