# SPDX-License-Identifier: Apache-2.0
"""Hold the places of the System V ABI against its rules, as docs/abi.md tells them."""

from __future__ import annotations

import pytest

from gotrace.abi.assign import CLOSURE_CONTEXT, FloatReg, IntReg, Place, Stack
from gotrace.abi.gccgo.locations import system_v_signature_locations
from gotrace.abi.gccgo.sysv import EightbyteClass, assign_system_v, classify
from gotrace.architecture import AMD64
from gotrace.gotypes.from_text import parse_signature, parse_type

INTEGER, SSE = EightbyteClass.INTEGER, EightbyteClass.SSE


def spelled(place: Place) -> str:
    if isinstance(place, Stack):
        return f"{place.offset}(SP)"
    if isinstance(place, FloatReg):
        return AMD64.float_registers[place.index]
    assert isinstance(place, IntReg)
    return "rdx" if place == CLOSURE_CONTEXT else AMD64.int_registers[place.index]


def places(signature: str) -> tuple[list[list[str]], list[str], bool]:
    """Return the places of parameters and of the result, which may be a struct of several."""
    parsed = parse_signature(signature)
    result = parsed.results[0].type if parsed.results else None
    assigned = assign_system_v([value.type for value in parsed.parameters], result)
    return (
        [[spelled(piece.place) for piece in pieces] for pieces in assigned.parameters],
        [spelled(piece.place) for piece in assigned.result],
        assigned.result_in_memory,
    )


@pytest.mark.parametrize(
    ("go_type", "classes"),
    [
        ("string", (INTEGER, INTEGER)),
        ("[]int", None),
        ("complex64", (SSE,)),
        ("complex128", (SSE, SSE)),
        ("struct{f float64; n int}", (SSE, INTEGER)),
        ("struct{f float32; n int32}", (INTEGER,)),
        ("struct{f, g float32; h float32}", (SSE, SSE)),
        ("[3]int32", (INTEGER, INTEGER)),
        ("[3]float64", None),
        ("struct{}", ()),
        ("struct{a [1]string}", (INTEGER, INTEGER)),
    ],
)
def test_classes(go_type: str, classes: tuple[EightbyteClass, ...] | None) -> None:
    assert classify(parse_type(go_type)) == classes


def test_worked_example() -> None:
    signature = (
        "func(a int, s string, l []int, f float64, m struct{x float64; n int}, t string, b bool)"
        " struct{x, y, z int}"
    )
    assert places(signature) == (
        [
            ["rsi"],
            ["rdx", "rcx"],
            ["8(SP)"],
            ["xmm0"],
            ["xmm1", "r8"],
            ["32(SP)"],
            ["r9"],
        ],
        ["rax"],
        True,
    )


def test_results_in_registers_leave_rdi_to_the_parameters() -> None:
    assert places("func(a int8) struct{s float64; n int}") == ([["rdi"]], ["xmm0", "rax"], False)
    assert places("func(a int8) string") == ([["rdi"]], ["rax", "rdx"], False)


def test_several_results_are_fields_of_one_struct() -> None:
    small = system_v_signature_locations(parse_signature("func() (low int32, high bool)"), "f")
    assert [(value.name, value.within and value.within.in_memory) for value in small.results] == [
        ("low", False),
        ("high", False),
    ]
    large = system_v_signature_locations(parse_signature("func(n int) (int, string)"), "f")
    assert [value.within and value.within.in_memory for value in large.results] == [True, True]
    assert large.parameters[0].pieces is not None
    assert spelled(large.parameters[0].pieces[0].place) == "rsi"
