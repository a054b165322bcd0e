# SPDX-License-Identifier: Apache-2.0
"""Check the assignment against the worked example of Go's abi-internal.md and its rules."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.abi.assign import (
    Assignment,
    CallingConvention,
    DictionaryPlace,
    FloatReg,
    IntReg,
    Piece,
    Stack,
    assign,
    calling_convention,
    dictionary_place,
    takes_dictionary,
)
from gotrace.architecture import AMD64
from gotrace.elf.buildinfo import GoVersion
from gotrace.gotypes.from_text import parse_signature, parse_type
from gotrace.gotypes.symbols import parse_name
from gotrace.gotypes.types import ArrayType, Field, GoType, Kind, StructType

#: The document's example takes an architecture with the integer registers R0 to R9.
TEN_REGISTERS = dataclasses.replace(
    AMD64, int_registers=tuple(f"R{number}" for number in range(10)), float_registers=()
)
INTERNAL, ABI0 = CallingConvention.ABI_INTERNAL, CallingConvention.ABI0


def assigned(text: str, convention: CallingConvention = INTERNAL) -> Assignment:
    signature = parse_signature(text)
    return assign(
        [parameter.type for parameter in signature.parameters],
        [result.type for result in signature.results],
        AMD64,
        convention,
    )


def ints(*indices: int) -> tuple[Piece, ...]:
    """Return the pieces of words in consecutive integer registers."""
    return tuple(Piece(8 * row, 8, IntReg(index)) for row, index in enumerate(indices))


def floats(*indices: int) -> tuple[Piece, ...]:
    return tuple(Piece(8 * row, 8, FloatReg(index)) for row, index in enumerate(indices))


def stack(offset: int, size: int) -> tuple[Piece, ...]:
    return (Piece(0, size, Stack(offset)),)


def test_worked_example_of_the_document() -> None:
    signature = parse_signature(
        "func(a1 uint8, a2 [2]uintptr, a3 uint8) (r1 struct{x uintptr; y [2]uintptr}, r2 string)"
    )
    found = assign(
        [parameter.type for parameter in signature.parameters],
        [result.type for result in signature.results],
        TEN_REGISTERS,
        INTERNAL,
    )
    a1, a2, a3 = found.parameters
    assert a1 == (Piece(0, 1, IntReg(0)),)
    assert a3 == (Piece(0, 1, IntReg(1)),)
    assert a2 == stack(8, 16)
    r1, r2 = found.results
    assert r1 == stack(24, 24)  # r1.x and r1.y follow a2
    assert r2 == ints(0, 1)
    # The spill area, a1Spill and a3Spill of one byte each, ends the frame.
    assert found.spill_slots == (48, None, 49)


def test_composites_are_taken_apart_recursively() -> None:
    found = assigned(
        "func(a struct{a, b int; c [1]struct{d string}}, b [1]float64, c [0]int, d [2]int8)"
    )
    assert found.parameters == (ints(0, 1, 2, 3), floats(0), (), stack(8, 2))


def test_two_sequences_are_counted_apart() -> None:
    found = assigned("func(a int8, b float32, c bool, d float64, e complex64, f uint16)")
    assert found.parameters == (
        (Piece(0, 1, IntReg(0)),),
        (Piece(0, 4, FloatReg(0)),),
        (Piece(0, 1, IntReg(1)),),
        floats(1),
        (Piece(0, 4, FloatReg(2)), Piece(4, 4, FloatReg(3))),
        (Piece(0, 2, IntReg(2)),),
    )


def test_words_of_every_reference_kind() -> None:
    found = assigned("func(a string, b []int, c any, d map[int]int, e chan int, f func(), g *int)")
    assert found.parameters[:3] == (ints(0, 1), ints(2, 3, 4), ints(5, 6))
    assert found.parameters[3:5] == (ints(7), ints(8))
    assert found.parameters[5:] == (stack(8, 8), stack(16, 8))


def test_a_value_goes_to_registers_whole_or_not_at_all() -> None:
    found = assigned("func(a, b, c, d, e, f, g int, s []int, h, i, j int)")
    assert found.parameters[7] == stack(8, 24)
    # The registers that the slice did not get are free for those behind.
    assert found.parameters[8:] == (ints(7), ints(8), stack(32, 8))


def test_float_registers_run_out_after_fifteen() -> None:
    names = ", ".join(f"f{number}" for number in range(16))
    found = assigned(f"func({names} float64)")
    assert found.parameters[14] == floats(14)
    assert found.parameters[15] == stack(8, 8)


def test_results_begin_with_fresh_registers_and_follow_stack_parameters() -> None:
    found = assigned("func(a [3]int8, b int) (c string, d [2]int16, e error)")
    assert found.parameters == (stack(8, 3), ints(0))
    assert found.results == (ints(0, 1), stack(16, 4), ints(2, 3))
    assert found.spill_slots == (None, 24)


def test_abi0_puts_all_on_the_stack() -> None:
    found = assigned("func(a int8, b int32, c string, d bool) (e bool, f error)", ABI0)
    assert found.parameters == (stack(8, 1), stack(12, 4), stack(16, 16), stack(32, 1))
    assert found.results == (stack(40, 1), stack(48, 16))
    assert found.spill_slots == (None,) * 4


def test_types_without_size_take_nothing_but_align() -> None:
    found = assigned("func(a struct{}, b [0]int64, c int8)", ABI0)
    assert found.parameters == ((), (), stack(8, 1))
    aligned = assigned("func(a int8, b [0]int64, c int8)", ABI0)
    assert aligned.parameters == (stack(8, 1), (), stack(16, 1))


@pytest.mark.parametrize(
    "place, is_method, dictionary, first",
    [
        (DictionaryPlace.AFTER_RECEIVER, True, IntReg(1), IntReg(0)),
        (DictionaryPlace.BEFORE_RECEIVER, True, IntReg(0), IntReg(1)),
        (DictionaryPlace.AFTER_RECEIVER, False, IntReg(0), IntReg(1)),
    ],
)
def test_hidden_dictionary(
    place: DictionaryPlace, is_method: bool, dictionary: IntReg, first: IntReg
) -> None:
    types = [parse_type("*int"), parse_type("string")]
    found = assign(types, [], AMD64, INTERNAL, place, is_method=is_method)
    assert found.dictionary == Piece(0, 8, dictionary)
    assert found.parameters == ((Piece(0, 8, first),), ints(2, 3))
    assert len(found.spill_slots) == 2


@pytest.mark.parametrize(
    "name, expected",
    [
        ("main.Max[go.shape.int]", True),
        ("main.Max[go.shape.int_0]", True),
        ("main.(*Box[go.shape.string]).Set", True),
        ("main.Box[go.shape.int].Get", True),
        ("main.Max[...]", True),
        ("main.(*Box[...]).Set", True),
        ("main.(*Box[...]).Set.func1", False),
        ("main.Max[int]", False),
        ("main.(*Box[int]).Set", False),
        ("main.Max[go.shape.int].func1", False),
        ("main.(*Box[go.shape.int]).Each.func2", False),
        ("main.(*Box[go.shape.int]).Set-fm", False),
        ("main.add", False),
    ],
)
def test_who_takes_a_dictionary(name: str, expected: bool) -> None:
    assert takes_dictionary(parse_name(name)) == expected


def test_rules_by_release() -> None:
    assert calling_convention(GoVersion(1, 16), False, AMD64) is ABI0
    assert calling_convention(GoVersion(1, 17), False, AMD64) is INTERNAL
    assert calling_convention(GoVersion(1, 27), True, AMD64) is ABI0
    assert dictionary_place(GoVersion(1, 19)) is DictionaryPlace.BEFORE_RECEIVER
    assert dictionary_place(GoVersion(1, 20)) is DictionaryPlace.AFTER_RECEIVER


def test_absurd_types_end_on_the_stack_quickly() -> None:
    # Each level has two fields of the one below: 2 to the 40 parts, none of which takes a register.
    value: GoType = ArrayType("[0]int", Kind.ARRAY, 0, 8, parse_type("int"), 0)
    for _ in range(40):
        value = StructType("T", Kind.STRUCT, 8, 8, (Field("a", 0, value), Field("b", 0, value)))
    assert assign([value], [], AMD64, INTERNAL).parameters == (stack(8, 8),)


TYPES = st.sampled_from(
    [
        *("bool", "int8", "int32", "int", "float32", "float64", "complex128", "string", "[]int"),
        *("any", "[1]string", "[2]int16", "[0]int", "struct{}", "struct{a int8; b float64}"),
        "struct{x [3]int}",
    ]
)


@given(st.lists(TYPES, max_size=12), st.lists(TYPES, max_size=6), st.sampled_from([INTERNAL, ABI0]))
def test_no_two_values_share_a_place(
    parameters: list[str], results: list[str], convention: CallingConvention
) -> None:
    taken = [parse_type(text) for text in parameters]
    given_back = [parse_type(text) for text in results]
    found = assign(taken, given_back, AMD64, convention)
    for types, placed in ((taken, found.parameters), (given_back, found.results)):
        places = [piece.place for pieces in placed for piece in pieces]
        assert len(set(places)) == len(places)
        for value, pieces in zip(types, placed, strict=True):
            assert bool(pieces) == bool(value.size)
            if pieces and isinstance(pieces[0].place, Stack):
                assert pieces[0].size == value.size
    spans = sorted(
        (piece.place.offset, piece.place.offset + piece.size)
        for piece in itertools.chain(*found.parameters, *found.results)
        if isinstance(piece.place, Stack)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start >= 8 for start, _ in spans)
