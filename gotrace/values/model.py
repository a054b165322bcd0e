# SPDX-License-Identifier: Apache-2.0
"""Values of a traced program as they were decoded: small, frozen and hashable.

Values of Go's own bool, number and string kinds are Python's bool, int, float and complex and
StringValue; a declared type of these kinds wraps them in NamedValue. ``type`` is always the
linker's name of a type, as in gotypes.types.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Union

from gotrace.records import dataclass, field

if TYPE_CHECKING:
    from gotrace.gotypes.types import GoType

#: Any decoded value; float and complex are as wide as Go's, float32 holds its shortest decimal.
Value = Union[
    bool,
    int,
    float,
    complex,
    "StringValue",
    "BytesValue",
    "NamedValue",
    "PointerValue",
    "StructValue",
    "SequenceValue",
    "MapValue",
    "ChanValue",
    "FuncValue",
    "InterfaceValue",
    "ErrorValue",
    "AlikeValue",
    "DurationValue",
    "TimeValue",
    "TextValue",
    "Nil",
    "UnavailableValue",
]


@dataclass(frozen=True, slots=True)
class StringValue:
    """A string: the bytes that were captured, from its start, and its true length in bytes.

    ``length`` is None where all that is known of it is that the string is longer.
    """

    text: bytes
    length: int | None

    @property
    def is_cut(self) -> bool:
        """Return whether the string is longer than its captured part."""
        return len(self.text) != self.length


@dataclass(frozen=True, slots=True)
class BytesValue:
    """A slice or array of bytes, or memory of an unknown type; ``capacity`` only for slices.

    ``length`` is None where all that is known of it is that there are more bytes.
    """

    type: str
    data: bytes
    length: int | None
    capacity: int | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether there are more bytes than were captured."""
        return len(self.data) != self.length


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A bool, number or string of a declared type, or a uintptr or unsafe.Pointer."""

    type: str
    value: Value


@dataclass(frozen=True, slots=True)
class PointerValue:
    """A pointer that is not nil; ``target`` is None where it was not followed."""

    type: str
    address: int
    target: Value | None = None


@dataclass(frozen=True, slots=True)
class StructValue:
    """A struct: (name, value) of each field, in order of declaration.

    ``guess``: the text to which its words lead, if they are a string or a slice of bytes.
    """

    type: str
    fields: tuple[tuple[str, Value], ...]
    guess: StringValue | None = None

    def field(self, name: str) -> Value | None:
        return next((value for key, value in self.fields if key == name), None)

    @property
    def distinct(self) -> list[tuple[str, Value]]:
        """Return the fields with a ``'`` for each earlier one of the name: Go has many of ``_``."""
        seen: Counter[str] = Counter()
        named = []
        for name, value in self.fields:
            named.append((name + "'" * seen[name], value))
            seen[name] += 1
        return named


@dataclass(frozen=True, slots=True)
class SequenceValue:
    """The first elements of an array or slice, its true length, and a slice's capacity."""

    type: str
    elements: tuple[Value, ...]
    length: int
    capacity: int | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether there are more elements than were captured."""
        return len(self.elements) != self.length


@dataclass(frozen=True, slots=True)
class MapValue:
    """Some entries of a map, in the order in which they are in memory, and its true length.

    ``missing`` says why there are none where they are not available.
    """

    type: str
    entries: tuple[tuple[Value, Value], ...]
    length: int
    missing: UnavailableValue | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether there are more entries than were captured."""
        return len(self.entries) != self.length


@dataclass(frozen=True, slots=True)
class ChanValue:
    """A channel: how many elements wait in its buffer, and the buffer's capacity."""

    type: str
    address: int
    length: int
    capacity: int
    closed: bool


@dataclass(frozen=True, slots=True)
class FuncValue:
    """A function value: its code's address, and the function's name where it is known."""

    type: str
    pc: int
    name: str | None


@dataclass(frozen=True, slots=True)
class InterfaceValue:
    """An interface that is not nil.

    ``dynamic`` names the type of the value in it, if that is known; ``value`` is None where it was
    not looked at. ``of`` is that type where it is described.
    """

    type: str
    dynamic: str | None
    value: Value | None
    of: GoType | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """An error whose message is known; ``type`` is its dynamic type, ``value`` all of it.

    Where not all of the message is known, ``known`` is the beginning that is certain, and
    ``length`` the true length in bytes where that is known. ``message`` may go on after what
    is certain, with words in place of what is missing. ``guessed``: the message, or a part of it,
    is a field of a type whose Error method is not known and may say more. ``of`` is the dynamic
    type where it is described.
    """

    type: str
    message: str
    value: Value
    known: str | None = None
    length: int | None = None
    guessed: bool = False
    of: GoType | None = field(default=None, compare=False, repr=False)

    @property
    def is_cut(self) -> bool:
        """Return whether not all of the message is known."""
        return self.known is not None


@dataclass(frozen=True, slots=True)
class AlikeValue:
    """One of the errors that differ by numbers and quoted parts alone, as an example of them all.

    ``kind`` is their text with ``#`` in place of these parts, and ``type`` their dynamic type.
    """

    type: str
    kind: str
    example: Value = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DurationValue:
    """A time.Duration."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class TimeValue:
    """A time.Time: seconds since 1970 UTC, nanoseconds within, and its zone.

    ``zone`` and ``offset`` (seconds east of UTC) are those in force at that time; ``zone`` is None
    where they are not known and UTC is used instead. ``monotonic``: nanoseconds of the monotonic
    clock since the traced program's start, where the time holds such a reading.
    """

    seconds: int
    nanoseconds: int
    zone: str | None = "UTC"
    offset: int = 0
    monotonic: int | None = None


@dataclass(frozen=True, slots=True)
class TextValue:
    """A value that Go prints by a String method that was followed here, such as net.IP."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Nil:
    """A nil pointer, slice, map, channel, function or interface of a type."""

    type: str


@dataclass(frozen=True, slots=True)
class UnavailableValue:
    """A value that could not be read, and why."""

    why: str


def is_cut(value: Value) -> bool:
    """Return whether a string, sequence or map is longer than its captured part."""
    return isinstance(value, StringValue | BytesValue | SequenceValue | MapValue) and value.is_cut


def unwrapped(value: Value) -> Value:
    """Return the value within a named type or an interface, through all such layers."""
    while isinstance(value, NamedValue | InterfaceValue | ErrorValue):
        if value.value is None:
            break
        value = value.value
    return value
