# SPDX-License-Identifier: Apache-2.0
"""Compare the shapes of arguments with what DWARF and the calling convention say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from gotrace.abi.assign import IntReg, Piece, Stack
from gotrace.abi.function_values import FunctionValues
from gotrace.abi.growth import SavedArgument
from gotrace.abi.locations import FunctionCode, FunctionLocations, SignatureSource
from gotrace.abi.shapes import ShapeError, shaped_parameters
from gotrace.architecture import AMD64
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.image import ElfImage
from gotrace.elf.pclntab.arginfo import Shape, ShapeWord, Undescribed, parse_shapes
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.releases import ALL_PARAMETERS_LISTED
from gotrace.gotypes.types import UnknownType
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    FOR_ARM64,
    Toolchain,
    build,
    each_of,
    newest,
    require,
    toolchains,
)


def without_dwarf(binary: Binary) -> FunctionValues:
    """Return the values of a program as if it had been stripped of its DWARF."""
    binary.__dict__ |= {"dwarf": None, "types": None}
    return FunctionValues(binary)


def agrees(part: Piece, whole: Sequence[Piece]) -> bool:
    """Return whether a word is where a value is that has it."""
    for one in whole:
        if part == one:
            return True
        if isinstance(one.place, Stack) and isinstance(part.place, Stack):
            ours, theirs = part.place.offset - part.offset, one.place.offset - one.offset
            if ours == theirs and part.offset + part.size <= one.offset + one.size:
                return True
    return False


def verdict(known: FunctionLocations, shaped: FunctionLocations, lists_all: bool) -> str:
    """Return how a function's shape relates to its parameters by DWARF."""
    if shaped.source is SignatureSource.NOTHING:
        return "bare"
    is_cut = bool(shaped.parameters) and shaped.parameters[-1].problem == Undescribed.REST.value
    if not lists_all and len(known.parameters) < len(shaped.parameters):
        return "more than in DWARF"
    if len(known.parameters) != len(shaped.parameters) and not is_cut:
        return "other number"
    for ours, theirs in zip(shaped.parameters, known.parameters, strict=False):
        if theirs.pieces is None or ours.pieces is None:
            continue
        if not all(agrees(piece, theirs.pieces) for piece in ours.pieces):
            return f"other place: {known.name}"
    return "equal"


def verdicts(
    toolchain: Toolchain, flags: Sequence[str], env: Mapping[str, str] | None = None
) -> Counter[str]:
    path = build(FIXTURES / "trace_values", toolchain, flags=flags, env=env)
    found: Counter[str] = Counter()
    with Binary(ElfImage.open(path)) as whole, Binary(ElfImage.open(path)) as stripped:
        known, shaped = FunctionValues(whole), without_dwarf(stripped)
        stripped.__dict__["rtypes"] = None
        version = whole.go_version
        assert version is not None
        for row, name in enumerate(whole.functions.names):
            function = whole.functions.function(row)
            if known.source(function) is not SignatureSource.DWARF or not name:
                continue
            values = known.of(function, None)
            lists_all = version.release >= ALL_PARAMETERS_LISTED
            found[verdict(values, shaped.of(function, None), lists_all)] += 1
    return found


@each_of([found for found in toolchains() if found.minor != "1.15"])
def test_shapes_are_where_dwarf_has_arguments(toolchain: Toolchain) -> None:
    found = verdicts(toolchain, ())
    assert set(found) <= {"equal", "bare", "more than in DWARF"}
    assert found["equal"] > 1000


#: Without anything inlined, arguments' shapes are all that says where function data begins.
_NOTHING_INLINED = ("-gcflags=all=-N -l",)


@pytest.mark.parametrize("mode", ["arm64", "unoptimized", "pie"])
def test_other_builds(mode: str) -> None:
    env = FOR_ARM64 if mode == "arm64" else None
    flags = {"unoptimized": _NOTHING_INLINED, "pie": BUILD_MODES["pie"]}
    found = verdicts(newest(), flags.get(mode, ()), env)
    assert set(found) <= {"equal", "bare"}
    assert found["equal"] > 1000


def test_releases_without_shapes_show_words() -> None:
    assert set(verdicts(require("1.15"), ())) == {"bare"}


def test_descriptions() -> None:
    """Numbers above 0xF0 are marks; each word is its offset and its size."""
    data = bytes([0, 8, 0xFE, 8, 8, 16, 1, 0xFC, 0xFD, 0xFB, 0xFE, 0xFD, 0xFF])
    assert parse_shapes(data, 0) == (
        ShapeWord(0, 8),
        (ShapeWord(8, 8), ShapeWord(16, 1), Undescribed.REST),
        Undescribed.FAR,
        (),
    )
    deepest = bytes([*[0xFE] * 5, 0xFC, *[0xFD] * 5, 0xFF])
    assert parse_shapes(deepest, 0) == ((((((Undescribed.REST,),),),),),)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x00\x08", b"\xfe\xff", b"\xfd\xff", b"\xf7\x08\xff", b"\xfe" * 6 + b"\xff"],
)
def test_damaged_descriptions(data: bytes) -> None:
    assert parse_shapes(data, 0) is None


@pytest.mark.parametrize(
    ("shapes", "size", "reason"),
    [
        ([ShapeWord(0, 8), ShapeWord(8, 8)], 8, "its code does not say where its arguments are"),
        ([ShapeWord(0, 8)], 4, "its code saves arguments of other sizes than it describes"),
    ],
)
def test_code_that_does_not_fit_a_description(
    shapes: Sequence[Shape], size: int, reason: str
) -> None:
    """A function that saves one argument, at the first slot above the return address."""
    saved = [SavedArgument(AMD64.pointer_size, size, IntReg(0))]
    code = FunctionCode(AMD64, GoVersion(1, 27))
    with pytest.raises(ShapeError, match=f"^{reason}$"):
        shaped_parameters(shapes, saved, "main.f", code)


def test_reasons() -> None:
    path = build(FIXTURES / "trace_values", newest(), flags=BUILD_MODES["stripped"])
    with Binary(ElfImage.open(path)) as binary:
        values = FunctionValues(binary)

        def function(name: str) -> FunctionLocations:
            return values.of(table.function(table.rows_named(name)[0]), None)

        table = binary.functions
        assert function("main.takeComplex").source is SignatureSource.SHAPE
        assert function("main.takeText").source is SignatureSource.NOTHING
        leaf = table.function(table.rows_named("main.takeText")[0])
        assert "does not grow the stack" in values.why_bare(leaf)
        assembly = table.function(table.rows_named("runtime.memmove")[0])
        assert "only its author" in values.why_bare(assembly)
        unused = table.function(table.rows_named("main.takeUnnamed")[0])
        assert "uses none" in values.why_bare(unused)
        closures = [name for name in table.names if name.startswith("main.") and ".func" in name]
        kinds = {type(value.type) for name in closures for value in function(name).parameters}
        assert UnknownType not in kinds
