# SPDX-License-Identifier: Apache-2.0
"""Values in the room that a line has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gotrace.values.fit_width import MAX_FIELDS, cut_to_fit, without_large
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    InterfaceValue,
    NamedValue,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    Value,
)


def string(text: str) -> StringValue:
    return StringValue(text.encode(), len(text.encode()))


def fitted(values: list[Value], over: int) -> list[str]:
    return cut_to_fit(values, list(map(go_syntax, values)), over)


def struct(count: int, name: str = "main.T") -> StructValue:
    return StructValue(name, tuple((f"F{n}", n) for n in range(count)))


def test_the_longest_are_cut_to_one_length_and_the_others_are_whole() -> None:
    values: list[Value] = [string("user:1"), string("a" * 90), 7, string("b" * 60)]
    assert fitted(values, 50) == [
        '"user:1"',
        '"' + "a" * 38 + '"... (len 90)',
        "7",
        '"' + "b" * 38 + '"... (len 60)',
    ]
    assert fitted([string("k" * 30), struct(9)], 30)[0] == '"' + "k" * 30 + '"'


def test_what_is_cut_within_shows_that() -> None:
    assert fitted([struct(9)], 30) == ["main.T{F0: 0, F1: 1, F2: 2, F3: 3, F..."]
    assert fitted([NamedValue("main.Name", string("n" * 90))], 60) == [
        'main.Name("' + "n" * 18 + '"... (len 90))'
    ]
    # Never within an escape sequence, nor within a character.
    escapes: list[Value] = [SequenceValue("[]string", (string("\x01" * 30),), 1)]
    for over in range(1, 60):
        (text,) = fitted(escapes, over)
        assert text.removeprefix('[]string{"').replace("\\x01", "") == "..."
        (text,) = fitted([string("ü" * 60)], over)
        assert set(text.partition('"...')[0]) <= {'"', "ü"}


@given(st.lists(st.text(max_size=200).map(string), min_size=1, max_size=9), st.integers(1, 900))
def test_values_take_the_room_that_they_are_given(values: list[Value], over: int) -> None:
    whole = list(map(go_syntax, values))
    texts = fitted(values, over)
    room = sum(map(len, whole)) - over
    assert sum(map(len, texts)) <= max(room, 16 * len(values))
    for text, full in zip(texts, whole, strict=True):
        assert text == full or "..." in text
        assert text.partition('"...')[0] == full[: len(text.partition('"...')[0])]


def test_pointers_to_large_structs_are_addresses_wherever_they_are() -> None:
    large = PointerValue("*main.T", 0xC000, struct(MAX_FIELDS + 1))
    small = PointerValue("*main.T", 0xC000, struct(2))
    nested = PointerValue("*main.U", 0xC000, StructValue("main.U", (("A", struct(9)),) * 2))
    assert go_syntax(without_large(large)) == "(*main.T)(0xc000)"
    assert without_large(small) == small
    assert go_syntax(without_large(nested)) == "(*main.U)(0xc000)"
    held = StructValue("main.V", (("Of", InterfaceValue("any", "*main.T", large)), ("N", 1)))
    assert go_syntax(without_large(held)) == "main.V{Of: (*main.T)(0xc000), N: 1}"
    context = InterfaceValue("context.Context", "*context.valueCtx", small)
    assert go_syntax(without_large(context)) == "(*main.T)(0xc000)"
