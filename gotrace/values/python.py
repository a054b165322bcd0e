# SPDX-License-Identifier: Apache-2.0
"""Decoded values as Python objects, for scripts: from a trace, or from the JSON of one.

Go's bool, integers, floats and complex numbers are Python's; a string is a ``str`` (bytes that are
not UTF-8 are surrogate escapes), a slice or array of bytes ``bytes``, other slices and arrays are
lists, maps are dicts, and nil is None. A pointer that was followed is what it points to. A declared
type is what it is made of. A type that Python lacks is a class of this module. Whatever is longer
than what was captured of it is a ``Cut...``, which knows its true ``length``. A value that could
not be read is ``Unavailable``, which says why and equals nothing.

>>> to_python(StringValue(b"GET", 3))
'GET'
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from gotrace.values.go_syntax import GUESSED, go_syntax
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
from gotrace.values.stdlib_text import UNKNOWN_ZONE, duration_text, time_text


class Unavailable:
    """A value that could not be read: false, equal to nothing, and not to be computed with.

    >>> bool(Unavailable("memory not readable"))
    False
    """

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<unavailable: {self.why}>"

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"this value is unavailable: {self.why}")

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse


class CutStr(str):
    """The beginning of a string; ``length`` is its true length in bytes, None if not known."""

    length: int | None

    def __new__(cls, text: str, length: int | None) -> CutStr:
        cut = super().__new__(cls, text)
        cut.length = length
        return cut

    def __reduce__(self) -> tuple[object, ...]:
        return CutStr, (str(self), self.length)


class CutBytes(bytes):
    """The beginning of a slice or array of bytes; ``length`` is its true one, None if not known."""

    length: int | None

    def __new__(cls, data: bytes, length: int | None) -> CutBytes:
        cut = super().__new__(cls, data)
        cut.length = length
        return cut

    def __reduce__(self) -> tuple[object, ...]:
        return CutBytes, (bytes(self), self.length)


class CutList(list[Any]):
    """The first elements of a slice or array; ``length`` is how many there are."""

    def __init__(self, elements: list[Any], length: int) -> None:
        super().__init__(elements)
        self.length = length


class CutDict(dict[Any, Any]):
    """Some entries of a map; ``length`` is how many there are, ``why`` what was in the way."""

    def __init__(self, entries: Mapping[Any, Any], length: int, why: str | None = None) -> None:
        super().__init__(entries)
        self.length = length
        self.why = why


class MapKey:
    """A map's key that equals itself only; ``value`` is what is known of it.

    Keys are that if they were cut or could not be read, and if Python takes them for another key
    of their map: in a map[any]int 1, 1.0 and true are three keys.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<key {self.value!r}>"

    def __str__(self) -> str:
        return str(self.value)


class Duration(int):
    """A time.Duration in nanoseconds, written as Go writes it.

    >>> Duration(1_500_000_000)
    1.5s
    """

    def __repr__(self) -> str:
        return duration_text(int(self))

    __str__ = __repr__

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self / 1e9


class Pointer(int):
    """The address in a pointer that was not followed, or a uintptr."""

    def __repr__(self) -> str:
        return f"{int(self):#x}"

    __str__ = __repr__


class Func:
    """A function value: the function's name, None where it is not known."""

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name or "<func>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Func) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Chan:
    """A channel: how many elements wait in its buffer (``len()``), and the buffer's capacity."""

    __slots__ = ("address", "capacity", "closed", "length")

    def __init__(self, address: int, length: int, capacity: int, closed: bool) -> None:
        self.address = address
        self.length = length
        self.capacity = capacity
        self.closed = closed

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<chan {self.address:#x}: {self.length} of {self.capacity}{closed}>"


class GoError:
    """An error: its message (``str()``), its dynamic type and the value in it.

    ``is_cut``: not all of the message is known. ``guessed``: it is a field of a type whose Error
    method may say more. Without either, an error equals its message. ``kind``: it is one of several
    that are added up, whose messages are this text with others in place of ``#``; None of one
    alone.
    """

    __slots__ = ("guessed", "is_cut", "kind", "message", "type", "value")

    def __init__(
        self,
        type: str | None,
        message: str,
        value: object,
        is_cut: bool = False,
        guessed: bool = False,
        kind: str | None = None,
    ) -> None:
        self.kind = kind
        self.type = type
        self.message = message
        self.value = value
        self.is_cut = is_cut
        self.guessed = guessed

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        like = "like " if self.kind is not None else ""
        return f"<{self.type}: {like}{GUESSED * self.guessed}{self.message}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return not (self.is_cut or self.guessed) and self.message == other
        if not isinstance(other, GoError) or self.is_cut or other.is_cut:
            return False
        return (self.type, self.message, self.guessed) == (other.type, other.message, other.guessed)

    def __hash__(self) -> int:
        return hash(self.message)


class Struct(Mapping[str, Any]):
    """A struct: its fields as attributes and by name, written as Go writes it.

    A field with the name of a method of mappings (``keys``, ``items``, ``get``...) is found by
    name only. From JSON, a map is a Struct too: JSON does not distinguish them. Of words whose type
    is not known, ``value["$guess"]`` is the text to which they lead if they are a string.

    >>> request.Method, request["Method"]
    ('GET', 'GET')
    """

    __slots__ = ("_fields", "_source", "_type")

    def __init__(
        self, fields: Mapping[str, Any], type: str | None = None, source: StructValue | None = None
    ) -> None:
        self._fields = dict(fields)
        self._type = type
        self._source = source

    @property
    def go_type(self) -> str | None:
        """Return the name of its type, None where that is not known."""
        return self._type

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"{self._type or 'this struct'} has no field {name}") from None

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._fields == dict(other)

    def __hash__(self) -> int:
        return hash(tuple(self._fields))

    def __repr__(self) -> str:
        if self._source is not None:
            return go_syntax(self._source)
        inner = ", ".join(f"{name}: {value!r}" for name, value in self._fields.items())
        return f"{self._type or ''}{{{inner}}}"

    def __reduce__(self) -> tuple[object, ...]:
        return Struct, (self._fields, self._type, self._source)


def to_python(value: Value) -> Any:
    """Return a decoded value as a Python object; see this module's description."""
    if isinstance(value, bool | int | float | complex):
        return value
    return _PYTHON[type(value)](value)


def _string(value: StringValue) -> str:
    text = value.text.decode("utf-8", "surrogateescape")
    return CutStr(text, value.length) if value.is_cut else text


def _bytes(value: BytesValue) -> bytes:
    return CutBytes(value.data, value.length) if value.is_cut else value.data


def _named(value: NamedValue) -> Any:
    if isinstance(value.value, int) and value.type in ("uintptr", "unsafe.Pointer"):
        return Pointer(value.value)
    return to_python(value.value)


def _pointer(value: PointerValue) -> Any:
    return Pointer(value.address) if value.target is None else to_python(value.target)


def _struct(value: StructValue) -> Struct:
    fields = {name: to_python(field) for name, field in value.distinct}
    if value.guess is not None:
        fields["$guess"] = to_python(value.guess)
    return Struct(fields, value.type, value)


def _sequence(value: SequenceValue) -> list[Any]:
    elements = [to_python(element) for element in value.elements]
    return CutList(elements, value.length) if value.is_cut else elements


def _map(value: MapValue) -> dict[Any, Any]:
    pairs = ((to_python(key), to_python(elem)) for key, elem in value.entries)
    return _dict(pairs, value.length, value.missing.why if value.missing else None)


def _dict(pairs: Iterable[tuple[Any, Any]], length: int, why: str | None = None) -> dict[Any, Any]:
    """Return entries as a dict in which each keeps its place, a CutDict if there are more."""
    entries: dict[Any, Any] = {}
    for original, elem in pairs:
        key = _key(original)
        if key is _NOT_WHOLE or key in entries:
            key = MapKey(original)
        entries[key] = elem
    return entries if len(entries) == length else CutDict(entries, length, why)


_NOT_WHOLE = object()


def _key(key: Any) -> Any:
    """Return a map's key as a hashable object, an array as a tuple; _NOT_WHOLE if it was cut."""
    if isinstance(key, Unavailable | CutStr | CutBytes | CutList | dict):
        return _NOT_WHOLE
    if isinstance(key, GoError):
        return _NOT_WHOLE if key.is_cut or key.guessed else key
    if isinstance(key, list):
        parts = tuple(map(_key, key))
        return _NOT_WHOLE if _NOT_WHOLE in parts else parts
    if isinstance(key, Struct):
        return _NOT_WHOLE if any(_key(field) is _NOT_WHOLE for field in key.values()) else key
    return key


def _interface(value: InterfaceValue) -> Any:
    if value.value is None:
        return Unavailable(f"{value.dynamic or 'a type that is not known'}, not followed")
    return to_python(value.value)


def _error(value: ErrorValue, kind: str | None = None) -> GoError:
    marks = value.is_cut, value.guessed
    return GoError(value.type, value.message, to_python(value.value), *marks, kind)


def _alike(value: AlikeValue) -> Any:
    example = value.example
    return _error(example, value.kind) if isinstance(example, ErrorValue) else to_python(example)


def _time(value: TimeValue) -> Any:
    """Return an aware datetime, to the microsecond; text for years that Python does not know.

    Its ``tzname()`` is ``-00`` where the zone is not known, as in the time zone database.
    """
    name = UNKNOWN_ZONE if value.zone is None else value.zone or "UTC"
    zone = datetime.timezone(datetime.timedelta(seconds=value.offset), name)
    try:
        moment = datetime.datetime.fromtimestamp(0, zone) + datetime.timedelta(
            seconds=value.seconds, microseconds=value.nanoseconds // 1000
        )
    except OverflowError:
        return time_text(value)
    return moment


_PYTHON: Mapping[type, Callable[..., Any]] = {
    StringValue: _string,
    BytesValue: _bytes,
    NamedValue: _named,
    PointerValue: _pointer,
    StructValue: _struct,
    SequenceValue: _sequence,
    MapValue: _map,
    ChanValue: lambda value: Chan(value.address, value.length, value.capacity, value.closed),
    FuncValue: lambda value: Func(value.name),
    InterfaceValue: _interface,
    ErrorValue: _error,
    AlikeValue: _alike,
    DurationValue: lambda value: Duration(value.nanoseconds),
    TimeValue: _time,
    TextValue: lambda value: value.text,
    Nil: lambda value: None,
    UnavailableValue: lambda value: Unavailable(value.why),
}


def from_json(value: Any) -> Any:
    """Return the Python object of JSON that ``gotrace.values.to_json`` wrote.

    JSON keeps less: a time.Duration is an int, a time.Time its text, a map or struct a Struct, and
    bytes that are text are a string.
    """
    if isinstance(value, list):
        return [from_json(element) for element in value]
    if not isinstance(value, dict):
        return value
    for mark, reader in _MARKS.items():
        if mark in value:
            return reader(value)
    return Struct({name: from_json(inner) for name, inner in value.items()})


#: The keys of a text or bytes that were cut: their length, or that it is not known.
_CUT = {"$len", "$cut"}


def _json_text(value: Mapping[str, Any]) -> str:
    text: str = value["$string"]
    return CutStr(text, value.get("$len")) if value.keys() & _CUT else text


def _json_hex(value: Mapping[str, Any]) -> bytes:
    data = bytes.fromhex(value["$hex"])
    return CutBytes(data, value.get("$len")) if value.keys() & _CUT else data


def _json_elements(value: Mapping[str, Any]) -> list[Any]:
    return CutList([from_json(element) for element in value["$elements"]], value["$len"])


def _json_entries(value: Mapping[str, Any]) -> dict[Any, Any]:
    entries = value["$entries"]
    pairs = entries.items() if isinstance(entries, dict) else entries
    decoded = ((from_json(key), from_json(elem)) for key, elem in pairs)
    return _dict(decoded, value["$len"], value.get("$unavailable"))


def _json_error(value: Mapping[str, Any]) -> GoError:
    message = value["$error"]
    if isinstance(message, dict):
        message = bytes.fromhex(message["$hex"]).decode("utf-8", "surrogateescape")
    marks = bool(value.get("$cut")), bool(value.get("$guessed"))
    return GoError(
        value["$type"], message, from_json(value.get("$value")), *marks, value.get("$kind")
    )


#: Keys that only marked objects have, in the order in which they decide.
_MARKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "$entries": _json_entries,
    "$elements": _json_elements,
    "$error": _json_error,
    "$string": _json_text,
    "$hex": _json_hex,
    "$pointer": lambda value: Pointer(int(value["$pointer"], 16)),
    "$chan": lambda value: Chan(
        int(value["$chan"], 16), value["$len"], value["$cap"], value["$closed"]
    ),
    "$func": lambda value: Func(value["$func"]),
    "$real": lambda value: complex(float(value["$real"]), float(value["$imag"])),
    "$unavailable": lambda value: Unavailable(value["$unavailable"]),
    "$value": lambda value: from_json(value["$value"]),
}


def as_json(value: Any) -> Any:
    """Return an object of ``to_python`` or ``from_json`` as JSON that ``from_json`` reads back.

    A datetime becomes its text, and a dict whose keys are strings reads back as a Struct.
    """
    if value is None or isinstance(value, bool):
        return value
    kind: type = type(value)
    writer = _KNOWN_WRITERS.get(kind)
    if writer is None:
        writer = _KNOWN_WRITERS[kind] = _writer(kind)
    return writer(value)


def _writer(kind: type) -> Callable[[Any], Any]:
    """Return the function that makes JSON of the objects of a class. Raises TypeError."""
    for each, writer in _WRITERS:
        if issubclass(kind, each):
            return writer
    raise TypeError(f"a {kind.__name__} is not a value of a call")


def _text_as_json(value: str) -> Any:
    cut, text = _cut_as_json(value), _whole_text(value)
    if isinstance(text, dict):
        return {**text, **cut}
    return {"$string": text, **cut} if cut or text.startswith("$") else text


def _whole_text(value: str) -> str | dict[str, str]:
    """Return a text, as its bytes in hex if they are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$hex": value.encode("utf-8", "surrogateescape").hex()}
    return str(value)


def _cut_as_json(value: object) -> dict[str, Any]:
    if not isinstance(value, CutStr | CutBytes):
        return {}
    return {"$cut": True} if value.length is None else {"$len": value.length}


def _float_as_json(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return f"{value:+}".title() if math.isinf(value) else float(value)


def _elements_as_json(value: list[Any] | tuple[Any, ...]) -> Any:
    elements = [*map(as_json, value)]
    return {"$elements": elements, "$len": value.length} if isinstance(value, CutList) else elements


def _mapping_as_json(value: Mapping[Any, Any]) -> Any:
    if isinstance(value, Struct):  # $guess: not the program's own text
        return {key: as_json(elem) for key, elem in value.items()}
    pairs = [[as_json(key), as_json(elem)] for key, elem in value.items()]
    if isinstance(value, CutDict):
        why = {} if value.why is None else {"$unavailable": value.why}
        return {"$entries": pairs, "$len": value.length, **why}
    # A MapKey can be written as another key is.
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(pairs)
    return {"$entries": pairs, "$len": len(pairs)}


def _error_as_json(value: GoError) -> Any:
    marks = {"$cut": value.is_cut, "$guessed": value.guessed}
    fields = {
        "$error": _whole_text(value.message),
        "$type": value.type,
        "$value": as_json(value.value),
    }
    if value.kind is not None:
        fields["$kind"] = value.kind
    return {**fields, **{name: True for name, is_set in marks.items() if is_set}}


def _chan_as_json(value: Chan) -> Any:
    size = {"$len": value.length, "$cap": value.capacity, "$closed": value.closed}
    return {"$chan": f"{value.address:#x}", **size}


#: By class, subclasses before what they are made of.
_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Pointer, lambda value: {"$pointer": f"{int(value):#x}"}),
    (int, int),
    (float, _float_as_json),
    (complex, lambda value: {"$real": as_json(value.real), "$imag": as_json(value.imag)}),
    (str, _text_as_json),
    (bytes, lambda value: {"$hex": value.hex(), **_cut_as_json(value)}),
    (list | tuple, _elements_as_json),
    (Mapping, _mapping_as_json),
    (MapKey, lambda value: as_json(value.value)),
    (GoError, _error_as_json),
    (Func, lambda value: {"$func": value.name}),
    (Chan, _chan_as_json),
    (Unavailable, lambda value: {"$unavailable": value.why}),
    (datetime.datetime, datetime.datetime.isoformat),
)
#: By the very class: to look for it takes longer than to write a number.
_KNOWN_WRITERS: dict[type, Callable[[Any], Any]] = {}
