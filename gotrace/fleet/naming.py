# SPDX-License-Identifier: Apache-2.0
"""Write captured values as labels and attributes."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.fleet.privacy import Errors, Privacy
from gotrace.text import printable
from gotrace.values.go_syntax import GUESSED, go_syntax
from gotrace.values.model import Value
from gotrace.values.python import CutStr, GoError, Unavailable, to_python

Attribute = str | bool | int | float | Sequence[str]

#: The value of all labels of the series that holds calls for which there was none.
OTHERS = "others"
#: A value that the kernel could not read.
UNKNOWN = "unknown"
MAX_TEXT = 256  # characters

_ALL = Privacy(Errors.TEXT, ())
_OWN = {OTHERS, UNKNOWN, "nil"}


def label(value: Value, privacy: Privacy = _ALL, is_hashed: bool = False) -> str:
    """Return a value as a label: a string as it is but for escapes, all else as Go writes it.

    A string or message that says what a label says of missing values is put in quotes.
    """
    value = privacy.filtered(value)
    found = to_python(value)
    if isinstance(found, Unavailable):
        return UNKNOWN
    if is_hashed:
        return "nil" if found is None else privacy.hashed(_hashable(found, value))
    if found is None:
        return "nil"
    if isinstance(found, str):
        return _quoted(f"{found}..." if isinstance(found, CutStr) else str(found))
    if isinstance(found, GoError):
        return _quoted(_message(found))
    return _clipped(go_syntax(value))


def _quoted(text: str) -> str:
    return f'"{text}"' if text in _OWN else _clipped(text)


def _hashable(found: object, value: Value) -> str:
    return str(found) if isinstance(found, str) else go_syntax(value)


def private_attribute(value: Value, privacy: Privacy, is_hashed: bool) -> Attribute:
    """Return a captured value as an attribute of a span, or its hash."""
    value = privacy.filtered(value)
    found = to_python(value)
    if not is_hashed or found is None or isinstance(found, Unavailable):
        return attribute(found)
    return privacy.hashed(_hashable(found, value))


def _message(error: GoError) -> str:
    return f"{GUESSED * error.guessed}{error.message}{'...' * error.is_cut}"


def exported(value: Attribute) -> Attribute:
    """Return a label, an attribute, a name or a message as any exporter can encode it.

    Everything that comes from a target or a node and is exported passes through here: one text that
    UTF-8 cannot have would spoil a whole scrape or batch, and others could steer a terminal.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(int(value))  # OTLP has 64 bits with a sign
    if isinstance(value, bool | int | float):
        return value
    return [printable(text) for text in value]


def attribute(value: object) -> Attribute:
    """Return a Python value of a call as an attribute of a span."""
    if isinstance(value, bool | int | float):
        return exported(value)
    if isinstance(value, str):
        return _clipped(f"{value}..." if isinstance(value, CutStr) else str(value))
    if value is None:
        return "nil"
    if isinstance(value, GoError):
        return _clipped(_message(value))
    if isinstance(value, bytes):
        return _clipped(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, Unavailable):
        return UNKNOWN
    return _clipped(repr(value))


def _clipped(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
