# SPDX-License-Identifier: Apache-2.0
"""Check what decoded values say of themselves."""

from __future__ import annotations

import pytest

from gotrace.values.model import (
    BytesValue,
    ErrorValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    Nil,
    SequenceValue,
    StringValue,
    StructValue,
    Value,
    is_cut,
    unwrapped,
)


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        (StringValue(b"abc", 3), False),
        (StringValue(b"abc", 4), True),
        (BytesValue("[]uint8", b"", 0, 0), False),
        (BytesValue("[]uint8", b"", 1, 1), True),
        (SequenceValue("[]int", (1, 2), 2, 8), False),
        (SequenceValue("[]int", (1, 2), 100, 128), True),
        (MapValue("map[int]int", ((1, 2),), 1), False),
        (MapValue("map[int]int", ((1, 2),), 2), True),
        (7, False),
    ],
)
def test_is_cut(value: Value, cut: bool) -> None:
    assert is_cut(value) is cut


def test_fields_by_name() -> None:
    value = StructValue("main.pair", (("a", 1), ("b", Nil("*int"))))
    assert value.field("b") == Nil("*int")
    assert value.field("c") is None
    assert hash(value) == hash(StructValue("main.pair", (("a", 1), ("b", Nil("*int")))))


def test_unwrapped() -> None:
    inner = NamedValue("main.color", 3)
    assert unwrapped(InterfaceValue("any", "main.color", inner)) == 3
    assert unwrapped(ErrorValue("main.e", "x", NamedValue("main.e", 4))) == 4
    unread = InterfaceValue("any", "main.color", None)
    assert unwrapped(unread) == unread
    assert unwrapped(5) == 5
