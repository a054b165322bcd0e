# SPDX-License-Identifier: Apache-2.0
"""Show values in the room that a line has: large structs by their address, the rest cut to fit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gotrace.records import replace
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    InterfaceValue,
    MapValue,
    NamedValue,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    Value,
)
from gotrace.values.string_methods import string_text

#: A struct with more fields, those of structs within it included, is large.
MAX_FIELDS = 16
#: Columns that each value gets, however many there are.
_LEAST = 16
#: They carry deadlines and what was put into them, and never distinguish two calls at a glance.
_CONTEXT = "context.Context"
_MARK = "..."
#: Values that others are within.
_COMPOUND = frozenset({PointerValue, InterfaceValue, StructValue, SequenceValue, MapValue})
_PACKAGE = re.compile(r"^(&?)\w+\.(?=[A-Z_]\w*[{(])")
#: The beginning of an escape sequence of Go's at the end of a text that was cut.
_PARTIAL_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?$")


def without_large(value: Value) -> Value:
    """Return a value in which pointers to large structs, and contexts, are not followed."""
    if type(value) not in _COMPOUND:
        return value
    if isinstance(value, PointerValue):
        target = value.target
        if isinstance(target, StructValue) and _fields(target) > MAX_FIELDS:
            return replace(value, target=None)
        if isinstance(target, StructValue | InterfaceValue | SequenceValue | MapValue):
            return replace(value, target=without_large(target))
    elif isinstance(value, InterfaceValue):
        inner = value.value
        if value.type == _CONTEXT and isinstance(inner, PointerValue):
            return replace(value, value=replace(inner, target=None))
        if isinstance(inner, PointerValue | StructValue | SequenceValue | MapValue):
            return replace(value, value=without_large(inner))
    elif isinstance(value, StructValue):
        fields = tuple([(name, without_large(inner)) for name, inner in value.fields])
        return replace(value, fields=fields)
    elif isinstance(value, SequenceValue):
        return replace(value, elements=tuple(map(without_large, value.elements)))
    elif isinstance(value, MapValue):
        entries = tuple([(key, without_large(elem)) for key, elem in value.entries])
        return replace(value, entries=entries)
    return value


def bare(value: Value) -> Value:
    """Return the address alone of a pointer that is not followed, and of a context."""
    if isinstance(value, InterfaceValue) and value.type == _CONTEXT and value.value is not None:
        value = value.value
    if isinstance(value, PointerValue) and value.target is None and string_text(value) is None:
        return TextValue("", f"{value.address:#x}")
    return value


def without_package(text: str) -> str:
    """Return a value's text without the package of the type that it begins with."""
    return _PACKAGE.sub(r"\1", text)


def cut_to_fit(values: Sequence[Value], texts: Sequence[str], over: int) -> list[str]:
    """Return the values' texts in Go's syntax, ``over`` columns less in all.

    The longest are cut to one length, with ``...`` for the rest; the others are whole. None is cut
    to less than 16 columns, so that very many may remain longer.
    """
    lengths = sorted(map(len, texts))
    width = max(_share(lengths, sum(lengths) - over), _LEAST)
    return [
        text if len(text) <= width else _cut(value, text, width)
        for value, text in zip(values, texts, strict=True)
    ]


def _share(lengths: Sequence[int], room: int) -> int:
    """Return the length to cut to so that all fit; ``lengths`` ascend, and exceed the room."""
    left = room
    for position, length in enumerate(lengths):
        share = left // (len(lengths) - position)
        if length > share:
            return share
        left -= length
    return lengths[-1] if lengths else 0


def _cut(value: Value, text: str, width: int) -> str:
    """Return a value's text, which is longer, in ``width`` columns."""
    if isinstance(value, NamedValue) and isinstance(value.value, StringValue):
        frame = len(text) - len(go_syntax(value.value))
        inner = _cut_bytes(value.value, value.value.text, width - frame)
        return go_syntax(replace(value, value=inner))
    if isinstance(value, StringValue):
        return go_syntax(_cut_bytes(value, value.text, width))
    start = text[: width - len(_MARK)]
    return _PARTIAL_ESCAPE.sub(r"\1", start) + _MARK


def _cut_bytes(value: StringValue, text: bytes, width: int) -> StringValue:
    """Return a string of which less is known, so that it is shown in ``width`` columns."""
    text = _whole_characters(text[:width])
    while text:
        cut = replace(value, text=text)
        over = len(go_syntax(cut)) - width
        if over <= 0:
            return cut
        # A byte takes up to four columns.
        text = _whole_characters(text[: -max(over // 4, 1)])
    return replace(value, text=b"")


def _whole_characters(text: bytes) -> bytes:
    """Return text without the character at its end of which a part is missing."""
    for back, byte in enumerate(reversed(text[-4:]), 1):
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if back < size else text
        if byte < 0x80:
            break
    return text


def _fields(value: StructValue) -> int:
    """Return how many fields a struct has, those of structs in it in place of these."""
    return sum(_fields(inner) if isinstance(inner, StructValue) else 1 for _, inner in value.fields)
