# SPDX-License-Identifier: Apache-2.0
"""Show decoded values as JSON.

JSON has numbers, strings, booleans and null for Go's; arrays for arrays and slices, but strings for
those of bytes; objects for structs, with their fields, and for maps with keys that are strings or
integers; a pointer is what it points to; an error or interface is the value in it. Values without a
form in JSON are objects with keys that begin with ``$``, as no field of a struct does:

===========================================  =====================================================
{"$unavailable": why}                        could not be read
{"$string": text, "$len": n}                 a string cut to its beginning; n is its true length
{"$string": text, "$cut": true}              the same where the length is not known
{"$hex": digits}, {"$hex": digits, "$len"}   a string or bytes that are not UTF-8 text; cut
{"$elements": [...], "$len": n}              a slice or array of which not all was captured
{"$entries": {...}, "$len": n}               a map of which not all was captured
{"$entries": [[key, value], ...], "$len"}    a map with other keys
{"$pointer": "0xc000012345"}                 a pointer that was not followed; also for uintptr
{"$type": type, "$value": value}             an interface's dynamic type and value
{"$type": type, "$error": message,           an error whose message is known; the value of its
 "$value": value}                            type is there where it says more
{"$type", "$error", "$cut": true, "$value"}  an error of whose message not all is known
{"$type", "$error", "$guessed": true,        an error whose message is guessed from a field
 "$value"}
{"f0": ..., "f1": ..., "$guess": text}       words of an unknown type, and the text that they lead
                                             to if they are a string
{"$chan": address, "$len", "$cap",           a channel
 "$closed"}
{"$func": name}                              a function; null when its name is not known
{"$real": x, "$imag": y}                     a complex number
===========================================  =====================================================

A float that is not a number is the string "NaN", "+Inf" or "-Inf"; a time.Duration is its
nanoseconds; a time.Time is its RFC 3339 text, with the offset -00:00 where its zone is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gotrace.values.go_syntax import MAX_DEPTH, is_text, ordered
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
from gotrace.values.scalars import Directive, floating
from gotrace.values.stdlib_text import time_text

_V = Directive("v")


def to_json(value: Value, depth: int = MAX_DEPTH) -> object:
    """Return a value as what the json module writes; see this module's description."""
    if isinstance(value, bool | int) or value is None:
        return value
    return _JSON[type(value)](value, depth)


def _float(value: float, depth: int) -> object:
    return value if math.isfinite(value) else floating(value, _V)


def _decoded(data: bytes, is_cut: bool) -> str | None:
    """Decode UTF-8, without a last character that a cut went through; None for other bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return None


def _string(value: StringValue, depth: int) -> object:
    text, rest = _decoded(value.text, value.is_cut), _rest(value)
    if text is None:
        return {"$hex": value.text.hex(), **rest}
    return {"$string": text, **rest} if rest else text


def _rest(value: StringValue | BytesValue) -> dict[str, object]:
    """Return the fields for the bytes that were not captured."""
    if value.length is None:
        return {"$cut": True}
    return {"$len": value.length} if value.is_cut else {}


def _bytes(value: BytesValue, depth: int) -> object:
    text, rest = _decoded(value.data, value.is_cut), _rest(value)
    if text is None or (value.data and not is_text(value.data, value.is_cut)):
        return {"$hex": value.data.hex(), **rest}
    return {"$string": text, **rest} if rest else text


def _named(value: NamedValue, depth: int) -> object:
    if value.type == "uintptr" and isinstance(value.value, int):
        return {"$pointer": f"{value.value:#x}"}
    return to_json(value.value, depth)


def _pointer(value: PointerValue, depth: int) -> object:
    if value.target is None or depth <= 0:
        return {"$pointer": f"{value.address:#x}"}
    return to_json(value.target, depth - 1)


def _struct(value: StructValue, depth: int) -> object:
    if depth <= 0:
        return {"$unavailable": "nested too deep"}
    fields = {name: to_json(field, depth - 1) for name, field in value.distinct}
    return fields if value.guess is None else {**fields, "$guess": to_json(value.guess)}


def _sequence(value: SequenceValue, depth: int) -> object:
    elements = [to_json(e, depth - 1) for e in value.elements] if depth > 0 else []
    if len(elements) == value.length:
        return elements
    return {"$elements": elements, "$len": value.length}


def _map(value: MapValue, depth: int) -> object:
    pairs = ordered(value.entries) if depth > 0 else []
    entries: object
    keys = [_key(key) for key, _ in pairs]
    elems = [to_json(elem, depth - 1) for _, elem in pairs]
    if None in keys:
        entries = [[to_json(key, depth - 1), e] for (key, _), e in zip(pairs, elems, strict=True)]
    else:
        entries = dict(zip(keys, elems, strict=True))
        if len(pairs) == value.length:
            return entries
    why = {} if value.missing is None else {"$unavailable": value.missing.why}
    return {"$entries": entries, "$len": value.length, **why}


def _key(value: Value) -> str | None:
    """Return a map's key as an object's; None when it could not be distinguished from others."""
    if isinstance(value, NamedValue) and value.type != "uintptr":
        return _key(value.value)
    if isinstance(value, StringValue) and not value.is_cut:
        text = _decoded(value.text, is_cut=False)
        return None if text is None or text.startswith("$") else text
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _chan(value: ChanValue, depth: int) -> object:
    return {
        "$chan": f"{value.address:#x}",
        "$len": value.length,
        "$cap": value.capacity,
        "$closed": value.closed,
    }


def _interface(value: InterfaceValue, depth: int) -> object:
    inner: object = {"$unavailable": "not followed"}
    if value.value is not None and depth > 0:
        inner = to_json(value.value, depth - 1)
    return {"$type": value.dynamic, "$value": inner}


def _error(value: ErrorValue, depth: int) -> object:
    message = value.message.encode("utf-8", "surrogateescape")
    text = _decoded(message, value.is_cut)
    shown = {"$hex": message.hex()} if text is None else text
    found: dict[str, object] = {"$type": value.type, "$error": shown}
    if value.is_cut:
        found["$cut"] = True
    if value.guessed:
        found["$guessed"] = True
    if depth > 0 and value.type != "*errors.errorString":
        found["$value"] = to_json(value.value, depth - 1)
    return found


def _alike(value: AlikeValue, depth: int) -> object:
    example = to_json(value.example, depth)
    return {**example, "$kind": value.kind} if isinstance(example, dict) else example


def _time(value: TimeValue, depth: int) -> object:
    # "2006-01-02 15:04:05.5 +0100 CET m=+1.5" has all that RFC 3339 wants.
    date, clock, offset = time_text(value).split(" ")[:3]
    zone = "Z" if value.offset == 0 else f"{offset[:3]}:{offset[3:]}"
    if value.zone is None:
        zone = "-00:00"  # RFC 3339, 4.3: the local offset is not known
    return f"{date}T{clock}{zone}"


_JSON: Mapping[type, Callable[..., object]] = {
    float: _float,
    complex: lambda value, depth: {
        "$real": _float(value.real, depth),
        "$imag": _float(value.imag, depth),
    },
    StringValue: _string,
    BytesValue: _bytes,
    NamedValue: _named,
    PointerValue: _pointer,
    StructValue: _struct,
    SequenceValue: _sequence,
    MapValue: _map,
    ChanValue: _chan,
    FuncValue: lambda value, depth: {"$func": value.name},
    InterfaceValue: _interface,
    ErrorValue: _error,
    AlikeValue: _alike,
    DurationValue: lambda value, depth: value.nanoseconds,
    TimeValue: _time,
    TextValue: lambda value, depth: value.text,
    Nil: lambda value, depth: None,
    UnavailableValue: lambda value, depth: {"$unavailable": value.why},
}
