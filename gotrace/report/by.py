# SPDX-License-Identifier: Apache-2.0
"""Show the values that calls are added up by."""

from __future__ import annotations

from collections.abc import Mapping

from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import NamedValue, StringValue, Unavailable, Value
from gotrace.values.to_json import to_json

__all__ = ["OTHERS", "by_fields", "by_text"]

#: Stands for the values of all calls that found no room.
OTHERS = "(others)"


def by_text(value: Value) -> str:
    """Return one value as Go writes it; what the kernel could not read is ``unknown``, and why."""
    if isinstance(value, Unavailable):
        return f"unknown ({value.why})"
    text = _cut_text(value)
    return go_syntax(value) if text is None else f"{go_syntax(text)}..."


def by_fields(by: Mapping[str, Value] | None) -> dict[str, object] | None:
    """Return the values for JSON by expression, None for the calls that found no room."""
    return None if by is None else {text: _to_json(value) for text, value in by.items()}


def _to_json(value: Value) -> object:
    text = _cut_text(value)
    return to_json(value) if text is None else {"$string": to_json(text), "$cut": True}


def _cut_text(value: Value) -> StringValue | None:
    """Return what is known of a text that goes on; its length differs from call to call."""
    plain = value.value if isinstance(value, NamedValue) else value
    if isinstance(plain, StringValue) and plain.is_cut:
        return StringValue(plain.text, len(plain.text))
    return None
