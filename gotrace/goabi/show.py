"""Show decoded values: in Go's syntax, and as JSON.

Go's syntax is that of %#v, with what a reader of traces wants more: space after colons, errors as
their message, durations, times and addresses as they print, and cut values with their length.
Nothing of the traced program's text reaches a terminal unescaped.

JSON has numbers, strings, booleans and null for Go's; arrays for arrays and slices; objects for
structs, with their fields, and for maps with keys that are strings or integers; a pointer is what
it points to; an error or interface is the value in it. What JSON has no form for is an object
with keys that begin with ``$``, which no field of a struct does:

===========================================  =====================================================
{"$unavailable": why}                        could not be read
{"$string": text, "$len": n}                 a string cut to its beginning; n is its true length
{"$hex": digits}, {"$hex": digits, "$len"}   a string or bytes that are no UTF-8 text; cut
{"$elements": [...], "$len": n}              a slice or array of which not all was captured
{"$entries": {...}, "$len": n}               a map of which not all was captured
{"$entries": [[key, value], ...], "$len"}    a map with other keys
{"$pointer": "0xc000012345"}                 a pointer that was not followed; uintptr likewise
{"$type": type, "$value": value}             an interface's dynamic type and value
{"$type": type, "$error": message,           an error whose message is known; the value of its
 "$value": value}                            type is there where it says more
{"$chan": address, "$len", "$cap",           a channel
 "$closed"}
{"$func": name}                              a function; null when its name is not known
{"$real": x, "$imag": y}                     a complex number
===========================================  =====================================================

A float that is no number is the string "NaN", "+Inf" or "-Inf"; a time.Duration is its
nanoseconds; a time.Time is its RFC 3339 text.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping

from gotrace.goabi.clock import duration_text, time_text
from gotrace.goabi.names import spoken_name
from gotrace.goabi.values import (
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
    Unavailable,
    Value,
)
from gotrace.goabi.verb_scalars import Directive, floating, plain_text, quoted

__all__ = ["go_syntax", "to_json"]

_V = Directive("v")
_DEEPEST = 32
#: Types that the compiler makes up for generics are shown as what they are made of (up to Go 1.20
#: with the number of the type parameter).
_SHAPE_NUMBER = re.compile(r"(\bgo\.shape\.\w+?)_[0-9]+\b")
_SHAPE = "go.shape."
_IMPORT_PATH = re.compile(r"[\w.~+-]+/(?=[\w.~+/-]*\.)")


def go_syntax(value: Value, depth: int = _DEEPEST) -> str:
    """Return a value in Go's syntax, with ``...`` for what is nested deeper than ``depth``."""
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
    return f"{shown}... (len {value.length})" if value.is_cut else shown


def _bytes(value: BytesValue, depth: int, outer: str) -> str:
    shown = quoted(value.data) if _is_text(value.data, value.is_cut) else value.data.hex()
    rest = f"... (len {value.length})" if value.is_cut else ""
    name = "[]byte" if value.type == "[]uint8" else _type(value.type)
    return f"{name}({shown}{rest})"


def _is_text(data: bytes, is_cut: bool) -> bool:
    """Say whether bytes are printable text, which a cut may have ended within a character."""
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
    return f"{_type(value.type)}({go_syntax(inner, depth)})"


def _pointer(value: PointerValue, depth: int, outer: str) -> str:
    target = value.target
    if target is None or isinstance(target, Unavailable):
        why = "" if target is None else f" {go_syntax(target)}"
        return f"({_type(value.type)})({value.address:#x}){why}"
    if isinstance(target, StructValue | SequenceValue | MapValue | BytesValue):
        return "&" + go_syntax(target, depth)
    return f"&{_type(value.type.removeprefix('*'))}({_bare(target, depth)})"


def _bare(value: Value, depth: int) -> str:
    """Return a value that its type's name is put around already."""
    return go_syntax(value.value if isinstance(value, NamedValue) else value, depth)


def _struct(value: StructValue, depth: int, outer: str) -> str:
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
    """Return an element, without its type's name where that stands in front of them all."""
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
        for key, elem in _ordered(entries)
    ]
    if len(entries) != value.length:
        shown.append(f"... (len {value.length})")
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


def _ordered(entries: tuple[tuple[Value, Value], ...]) -> list[tuple[Value, Value]]:
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
    if inner is None or isinstance(inner, Unavailable):
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
    return f"{quoted(message)} ({_type(value.type)})"


def _unavailable(value: Unavailable, depth: int, outer: str) -> str:
    return f"<unavailable: {value.why}>"


@functools.lru_cache(maxsize=4096)
def _type(name: str) -> str:
    """Return a type's name as code writes it: packages by the last element of their path."""
    spoken = spoken_name(name) if "%" in name else name
    if _SHAPE in spoken:
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
    DurationValue: lambda value, depth, outer: duration_text(value.nanoseconds),
    TimeValue: lambda value, depth, outer: plain_text(time_text(value).encode()),
    TextValue: lambda value, depth, outer: plain_text(value.text.encode()),
    Nil: lambda value, depth, outer: "nil",
    Unavailable: _unavailable,
}


def to_json(value: Value, depth: int = _DEEPEST) -> object:
    """Return a value as what the json module writes; see the module's description."""
    if isinstance(value, bool | int) or value is None:
        return value
    return _JSON[type(value)](value, depth)


def _json_float(value: float, depth: int) -> object:
    return value if math.isfinite(value) else floating(value, _V)


def _decoded(data: bytes, is_cut: bool) -> str | None:
    """Decode UTF-8, without a last character that a cut went through; None for other bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return None


def _json_string(value: StringValue, depth: int) -> object:
    text = _decoded(value.text, value.is_cut)
    rest = {"$len": value.length} if value.is_cut else {}
    if text is None:
        return {"$hex": value.text.hex(), **rest}
    return {"$string": text, **rest} if rest else text


def _json_bytes(value: BytesValue, depth: int) -> object:
    rest = {"$len": value.length} if value.is_cut else {}
    text = _decoded(value.data, value.is_cut)
    if text is None or (value.data and not _is_text(value.data, value.is_cut)):
        return {"$hex": value.data.hex(), **rest}
    return {"$string": text, **rest} if rest else text


def _json_named(value: NamedValue, depth: int) -> object:
    if value.type == "uintptr" and isinstance(value.value, int):
        return {"$pointer": f"{value.value:#x}"}
    return to_json(value.value, depth)


def _json_pointer(value: PointerValue, depth: int) -> object:
    if value.target is None or depth <= 0:
        return {"$pointer": f"{value.address:#x}"}
    return to_json(value.target, depth - 1)


def _json_struct(value: StructValue, depth: int) -> object:
    if depth <= 0:
        return {"$unavailable": "nested too deep"}
    return {name: to_json(field, depth - 1) for name, field in value.fields}


def _json_sequence(value: SequenceValue, depth: int) -> object:
    elements = [to_json(e, depth - 1) for e in value.elements] if depth > 0 else []
    if len(elements) == value.length:
        return elements
    return {"$elements": elements, "$len": value.length}


def _json_map(value: MapValue, depth: int) -> object:
    pairs = _ordered(value.entries) if depth > 0 else []
    entries: object
    keys = [_json_key(key) for key, _ in pairs]
    elems = [to_json(elem, depth - 1) for _, elem in pairs]
    if None in keys:
        entries = [[to_json(key, depth - 1), e] for (key, _), e in zip(pairs, elems, strict=True)]
    else:
        entries = dict(zip(keys, elems, strict=True))
        if len(pairs) == value.length:
            return entries
    return {"$entries": entries, "$len": value.length}


def _json_key(value: Value) -> str | None:
    """Return a map's key as an object's; None when it would not be told from others."""
    if isinstance(value, NamedValue) and value.type != "uintptr":
        return _json_key(value.value)
    if isinstance(value, StringValue) and not value.is_cut:
        text = _decoded(value.text, is_cut=False)
        return None if text is None or text.startswith("$") else text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _json_chan(value: ChanValue, depth: int) -> object:
    return {
        "$chan": f"{value.address:#x}",
        "$len": value.length,
        "$cap": value.capacity,
        "$closed": value.closed,
    }


def _json_interface(value: InterfaceValue, depth: int) -> object:
    inner: object = {"$unavailable": "not followed"}
    if value.value is not None and depth > 0:
        inner = to_json(value.value, depth - 1)
    return {"$type": value.dynamic, "$value": inner}


def _json_error(value: ErrorValue, depth: int) -> object:
    message = value.message.encode("utf-8", "surrogateescape")
    text = _decoded(message, is_cut=False)
    shown = {"$hex": message.hex()} if text is None else text
    found: dict[str, object] = {"$type": value.type, "$error": shown}
    if depth > 0 and value.type != "*errors.errorString":
        found["$value"] = to_json(value.value, depth - 1)
    return found


def _json_time(value: TimeValue, depth: int) -> object:
    # "2006-01-02 15:04:05.5 +0100 CET m=+1.5" has all that RFC 3339 wants.
    date, clock, offset = time_text(value).split(" ")[:3]
    zone = "Z" if value.offset == 0 else f"{offset[:3]}:{offset[3:]}"
    return f"{date}T{clock}{zone}"


_JSON: Mapping[type, Callable[..., object]] = {
    float: _json_float,
    complex: lambda value, depth: {
        "$real": _json_float(value.real, depth),
        "$imag": _json_float(value.imag, depth),
    },
    StringValue: _json_string,
    BytesValue: _json_bytes,
    NamedValue: _json_named,
    PointerValue: _json_pointer,
    StructValue: _json_struct,
    SequenceValue: _json_sequence,
    MapValue: _json_map,
    ChanValue: _json_chan,
    FuncValue: lambda value, depth: {"$func": value.name},
    InterfaceValue: _json_interface,
    ErrorValue: _json_error,
    DurationValue: lambda value, depth: value.nanoseconds,
    TimeValue: _json_time,
    TextValue: lambda value, depth: value.text,
    Nil: lambda value, depth: None,
    Unavailable: lambda value, depth: {"$unavailable": value.why},
}
