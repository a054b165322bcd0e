# SPDX-License-Identifier: Apache-2.0
"""Compare computed places with the compiler's entry locations, function by function."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gotrace.abi.assign import CallingConvention, FloatReg, IntReg, Piece, Place, Stack, assign
from gotrace.abi.dwarf_gaps import Observed, observed
from gotrace.abi.locations import (
    FunctionCode,
    FunctionLocations,
    PlacedValue,
    function_locations,
    signature_locations,
)
from gotrace.architecture import AMD64, Architecture
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.from_text import parse_signature
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    FOR_ARM64,
    Toolchain,
    build,
    each_architecture,
    each_toolchain,
    require,
)

INTERNAL = CallingConvention.ABI_INTERNAL


@functools.cache
def reader(path: Path) -> DwarfReader:
    found = DwarfReader.open(ElfImage.open(path))
    assert found is not None
    return found


def release(toolchain: Toolchain) -> GoVersion:
    version = GoVersion.parse(f"go{toolchain.version}")
    assert version is not None
    return version


@functools.cache
def architecture(path: Path) -> Architecture:
    with ElfImage.open(path) as image:
        return image.arch


def all_places(
    path: Path, toolchain: Toolchain
) -> Iterator[tuple[FunctionSignature, FunctionLocations]]:
    dwarf = reader(path)
    types = DwarfTypes(dwarf)
    code = FunctionCode(architecture(path), release(toolchain))
    for function in dwarf.functions():
        yield function, function_locations(function, dwarf, types, code)


def places(path: Path, toolchain: Toolchain, name: str) -> FunctionLocations:
    return next(found for function, found in all_places(path, toolchain) if function.name == name)


def by_name(values: tuple[PlacedValue, ...]) -> dict[str, list[Place] | None]:
    return {
        value.name: None if value.pieces is None else [piece.place for piece in value.pieces]
        for value in values
    }


def verdict(value: PlacedValue, slot: int | None, shown: Observed, of_all: list[Piece]) -> str:
    """Name how a parameter's DWARF entry places relate to the computed ones."""
    if value.pieces is None:
        return "not told"
    if not shown.pieces:
        return "DWARF has none"
    if shown.within(value.pieces):
        return "agree"
    if slot is not None and shown.within([Piece(0, value.type.size, Stack(slot))]):
        # Compiler bug: an unused parameter is said to be in its spill slot, which is not filled.
        return "spill slot"
    if shown.within(of_all):
        # Compiler bug: for `x, y = y, x` the list begins with the state after the assignment.
        return "another parameter's place"
    return "DISAGREE"


def verdicts(path: Path, toolchain: Toolchain) -> tuple[collections.Counter[str], list[str]]:
    """Count the verdicts over all parameters of a program; describe the disagreements."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for function, found in all_places(path, toolchain):
        counts["functions"] += 1
        variables = [variable for variable in function.parameters if variable.name != ".dict"]
        types = [value.type for value in found.parameters]
        results = [value.type for value in found.results]
        slots = assign(types, results, architecture(path), found.convention).spill_slots
        of_all = [piece for value in found.parameters for piece in value.pieces or ()]
        for variable, value, slot in zip(variables, found.parameters, slots, strict=True):
            pieces = reader(path).entry_pieces(function, variable) or ()
            if value.type.size:
                shown = observed(pieces, value.type, architecture(path), from_list=True)
                says = verdict(value, slot, shown, of_all)
                counts[says] += 1
                if says == "DISAGREE":
                    wrong.append(f"{function.name} {variable.name}: {value.pieces} {pieces}")
    return counts, wrong


@pytest.mark.slow
@each_architecture
@each_toolchain
def test_every_function_of_a_large_program(toolchain: Toolchain, env: Mapping[str, str]) -> None:
    check_every_function(toolchain, env)


@pytest.mark.slow
@pytest.mark.parametrize(
    "minor",
    [*(pytest.param(minor, marks=pytest.mark.thorough) for minor in ("1.15", "1.19")), "1.27"],
)
def test_every_function_of_a_large_unoptimized_program(minor: str) -> None:
    check_every_function(require(minor), {}, "-gcflags=all=-N -l")


@pytest.mark.thorough
@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.22", "1.24", "1.27"])
def test_every_function_of_a_large_unoptimized_arm64_program(minor: str) -> None:
    check_every_function(require(minor), FOR_ARM64, "-gcflags=all=-N -l")


def check_every_function(toolchain: Toolchain, env: Mapping[str, str], *flags: str) -> None:
    path = build(FIXTURES / "abi_large", toolchain, flags=flags, env=env)
    counts, wrong = verdicts(path, toolchain)
    print(dict(counts))
    assert counts["functions"] > 5000
    assert counts["agree"] > 7000
    assert wrong == []
    assert counts["another parameter's place"] + counts["not told"] < counts["agree"] / 250
    assert counts["spill slot"] + counts["DWARF has none"] < counts["agree"] / 10


@each_toolchain
def test_unnamed_parameters_do_not_shift_their_neighbours(toolchain: Toolchain) -> None:
    path = build(FIXTURES / "dwarf_signatures", toolchain)
    # func blank(_ int, a string, _ float64, b float32, _ [2]byte, c []byte) (n int, ...)
    found = places(path, toolchain, "main.blank")
    named = by_name(found.parameters)
    if release(toolchain) < GoVersion(1, 17):
        # Only its length is used, and DWARF says where that is, but not that it is the length.
        assert named["a"] is None
        assert named["b"] == [Stack(40)]
        assert named["c"] == [Stack(48)]
    else:
        assert named["a"] == [IntReg(1), IntReg(2)]
        assert named["b"] == [FloatReg(1)]
        assert named["c"] == [IntReg(3), IntReg(4), IntReg(5)]
        assert by_name(found.results)["n"] == [IntReg(0)]


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_unnamed_parameter_that_leaves_too_few_registers(minor: str) -> None:
    toolchain = require(minor)
    path = build(FIXTURES / "dwarf_blank", toolchain)
    named = by_name(places(path, toolchain, "main.pushed").parameters)
    assert named["d"] == [IntReg(5), IntReg(6)]
    assert named["err"] == [Stack(8)]


@each_toolchain
def test_numbers_of_values_of_no_size(toolchain: Toolchain) -> None:
    """Go 1.15 lists them before or after the value that comes next."""
    path = build(FIXTURES / "dwarf_sizeless", toolchain)
    is_certain = release(toolchain).release >= (1, 17)
    found = places(path, toolchain, "main.sizeless")
    types = ["string", "string", "struct {}", "[0]int64", "struct {}"]
    assert [result.type.name for result in found.results] == types
    assert found.results_ordered  # the compiler's names for them have their numbers
    assert found.parameters_ordered is is_certain
    if is_certain:
        assert [parameter.name for parameter in found.parameters] == list("abcde")
    found = places(path, toolchain, "main.named")
    assert sorted(parameter.name for parameter in found.parameters) == ["a", "b"]
    assert found.parameters_ordered is found.results_ordered is is_certain
    path = build(FIXTURES / "dwarf_signatures", toolchain)
    found = places(path, toolchain, "main.add")
    assert found.parameters_ordered and found.results_ordered


@each_toolchain
def test_methods_and_wide_signatures(toolchain: Toolchain) -> None:
    path = build(FIXTURES / "dwarf_signatures", toolchain)
    get = by_name(places(path, toolchain, "main.(*Store).Get").parameters)
    many = places(path, toolchain, "main.many")
    if release(toolchain) < GoVersion(1, 17):
        assert get == {"s": [Stack(8)], "key": [Stack(16)], "raw": [Stack(32)], "word": [Stack(40)]}
        assert by_name(many.results)["p"] == [Stack(8 + 12 * 8 + 16)]
    else:
        assert get["key"] == [IntReg(1), IntReg(2)]
        assert by_name(many.parameters)["j"] == [Stack(8)]
        assert by_name(many.parameters)["y"] == [FloatReg(1)]
        assert by_name(many.parameters)["w"] == [Stack(16)]
        assert by_name(many.results)["m"] == [Stack(32)]


@pytest.mark.parametrize("minor", ["1.19", "1.21", "1.24", "1.27"])
def test_generic_functions(minor: str) -> None:
    toolchain = require(minor)
    path = build(FIXTURES / "dwarf_generics", toolchain)
    shape = "go.shape.int_0" if minor == "1.19" else "go.shape.int"
    largest = places(path, toolchain, f"main.Largest[{shape}]")
    assert by_name(largest.parameters) == {"first": [IntReg(1)], "second": [IntReg(2)]}
    method = places(path, toolchain, f"main.(*Box[{shape}]).Set")
    receiver = 1 if minor == "1.19" else 0
    assert by_name(method.parameters) == {
        "b": [IntReg(receiver)],
        "key": [IntReg(2), IntReg(3)],
        "value": [IntReg(4)],
    }


@pytest.mark.parametrize("minor", ["1.23", "1.27"])
def test_captured_variables(minor: str) -> None:
    toolchain = require(minor)
    path = build(FIXTURES / "dwarf_signatures", toolchain, flags=BUILD_MODES["unoptimized"])
    start, label = places(path, toolchain, "main.counter.func1").captured
    assert (start.name, start.type.name, start.offset, start.by_reference) == (
        "start",
        "int",
        8,
        True,
    )
    assert (label.name, label.type.name, label.offset) == ("label", "string", 16)
    assert not label.by_reference


def test_assembly_functions_take_all_from_the_stack() -> None:
    toolchain = require("1.27")
    path = build(FIXTURES / "dwarf_signatures", toolchain)
    dwarf = reader(path)
    function = next(found for found in dwarf.functions() if found.name == "main.add")
    code = FunctionCode(AMD64, release(toolchain), is_assembly=True)
    found = function_locations(function, dwarf, DwarfTypes(dwarf), code)
    assert found.convention is CallingConvention.ABI0
    assert by_name(found.parameters) == {"x": [Stack(8)], "y": [Stack(16)]}
    assert by_name(found.results) == {"": [Stack(24)]}


def test_signatures_given_by_users_are_placed_like_those_of_dwarf() -> None:
    toolchain = require("1.27")
    path = build(FIXTURES / "dwarf_generics", toolchain)
    name = "main.(*Box[go.shape.int]).Set"
    told = places(path, toolchain, name)
    given = signature_locations(
        parse_signature(f"{name}(key string, value int) int"),
        name,
        FunctionCode(AMD64, release(toolchain)),
    )
    assert [value.pieces for value in given.parameters] == [v.pieces for v in told.parameters]
    assert [value.pieces for value in given.results] == [value.pieces for value in told.results]


@pytest.mark.parametrize(
    ("minor", "env"), [("1.26", {}), ("1.27", {}), ("1.27", FOR_ARM64)], ids=repr
)
def test_vectors_take_float_registers(minor: str, env: Mapping[str, str]) -> None:
    toolchain = require(minor)
    path = build(FIXTURES / "trace_vectors", toolchain, env={**env, "GOEXPERIMENT": "simd"})
    counts, wrong = verdicts(path, toolchain)
    assert counts["agree"] > 1000
    assert wrong == []
    inside = places(path, toolchain, "main.inside")
    whole: list[Place] = [IntReg(0), FloatReg(0), IntReg(1), IntReg(2)]
    assert by_name(inside.parameters) == {"x": whole, "n": [IntReg(3)]}
    assert [[piece.place for piece in value.pieces or ()] for value in inside.results] == [
        whole,
        [IntReg(3)],
    ]
    many = by_name(places(path, toolchain, "main.many").parameters)
    assert many["g"] == [FloatReg(6)]
    assert many["n"] == [IntReg(0)]
    if not env:
        wide = by_name(places(path, toolchain, "main.wideVectors").parameters)
        assert wide["z"] == [FloatReg(0)]
        mixed = [IntReg(1), FloatReg(1), IntReg(2), IntReg(3), FloatReg(2)]
        assert (wide["n"], wide["x"], wide["f"]) == ([IntReg(0)], mixed, [FloatReg(3)])
