# SPDX-License-Identifier: Apache-2.0
"""Compare the signatures in method tables of stripped programs with those that DWARF gives."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from gotrace.abi.locations import FunctionCode, SignatureSource, signature_locations
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from gotrace.gotypes.from_methods import MethodTables, is_same, parameter_names, spelled
from gotrace.gotypes.from_text import parse_signature
from gotrace.gotypes.releases import ALL_PARAMETERS_LISTED
from gotrace.gotypes.symbols import parse_name
from gotrace.gotypes.types import GoType, Signature
from tests.toolchains import (
    FIXTURES,
    FOR_ARM64,
    Toolchain,
    build,
    each_toolchain,
    minor,
    newest,
)

#: Ways to build, without what strips: the program that DWARF is read of.
BUILDS = {
    "default": (),
    "pie": ("-buildmode=pie",),
    "external-pie": ("-buildmode=pie", "-ldflags=-linkmode=external"),
}


def stripped(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of the same program without DWARF and symbols."""
    linker = next((flag for flag in flags if flag.startswith("-ldflags=")), "-ldflags=")
    return (*(flag for flag in flags if flag != linker), f"{linker} -s -w")


@functools.cache
def pair(
    name: str, toolchain: Toolchain, flags: tuple[str, ...] = (), arm64: bool = False
) -> tuple[Binary, Binary]:
    """Return a program with DWARF, and without."""
    env: Mapping[str, str] = FOR_ARM64 if arm64 else {}
    paths = [
        build(FIXTURES / name, toolchain, flags=each, env=env) for each in (flags, stripped(flags))
    ]
    whole, bare = (Binary(ElfImage.open(path)) for path in paths)
    assert whole.dwarf is not None
    assert bare.dwarf is None
    return whole, bare


def tables_of(binary: Binary) -> MethodTables:
    module = binary.functions.module
    assert binary.rtypes is not None
    assert module is not None
    return MethodTables(binary.rtypes, module.text)


def facts(types: Sequence[GoType]) -> list[tuple[object, ...]]:
    # DWARF has the linker's number in names of types that a function declares.
    return [(re.sub("·[0-9]+", "", of.name), of.kind, of.size, of.align) for of in types]


def verdict(whole: Binary, function: FuncInfo, known: Signature, moved: int) -> str:
    """Return how DWARF's parameters and results of a function relate to the method table's."""
    assert whole.dwarf is not None
    assert whole.types is not None
    assert whole.go_version is not None
    package = parse_name(function.name).package
    described = whole.dwarf.function(function.entry + moved, package)
    if described is None or not (described.parameters or described.results):
        return "DWARF has nothing"
    types = whole.types
    ours = facts([one.type for one in known.parameters])
    theirs = facts([types.parameter(one).type for one in described.parameters])
    results = facts([one.type for one in known.results])
    given = facts([types.parameter(one).type for one in described.results])
    if (ours, results) == (theirs, given):
        return "equal"
    release = whole.go_version.release
    if ours == theirs and len(given) < len(results) and all(one in results for one in given):
        return "DWARF lacks results"
    if release >= ALL_PARAMETERS_LISTED:
        return "DIFFERENT"
    if not given and whole.functions.is_wrapper(function.row):
        return "DWARF lacks results of a wrapper"
    if release < (1, 17):  # by the places on the stack, where one without a size is anywhere
        ours, theirs, results, given = (sorted(x, key=str) for x in (ours, theirs, results, given))
    left = iter(ours)
    if results == given and all(one in left for one in theirs):
        return "DWARF lacks blank parameters" if len(ours) > len(theirs) else "in another order"
    return "DIFFERENT"


def compare(whole: Binary, bare: Binary) -> Counter[str]:
    """Count the verdicts on all functions of a program that are in its method tables.

    The two builds have the same functions in the same order.
    """
    functions, tables = bare.functions, tables_of(bare)
    moved = whole.functions.function(0).entry - functions.function(0).entry
    counts: Counter[str] = Counter()
    wrong = []
    for row in range(len(functions)):
        function = functions.function(row)
        if function.origin is not Origin.PCLNTAB:
            continue
        counts["functions"] += 1
        known = tables.signature(function.name, function.entry)
        if known is None:
            continue
        says = verdict(whole, function, known, moved)
        counts["in tables"] += 1
        counts[says] += 1
        assert bare.go_version is not None
        size = functions.arguments_size(row)
        code = FunctionCode(bare.image.arch, bare.go_version, functions.is_assembly(row), size)
        places = signature_locations(known, function.name, code, SignatureSource.METHOD_TABLE)
        if says == "DIFFERENT" or places.size != size:
            wrong.append((function.name, says, places.size, size))
    assert wrong == []
    return counts


@pytest.mark.parametrize("arm64", [False, True], ids=["amd64", "arm64"])
@each_toolchain
def test_signatures_are_those_of_dwarf(toolchain: Toolchain, arm64: bool) -> None:
    counts = compare(*pair("trace_server", toolchain, arm64=arm64))
    print(dict(counts))
    assert counts["in tables"] > counts["functions"] / 5
    if minor(toolchain) >= ALL_PARAMETERS_LISTED[1]:
        assert counts["equal"] == counts["in tables"]


@pytest.mark.parametrize("mode", ["pie", "external-pie"])
def test_signatures_of_programs_that_are_moved(mode: str) -> None:
    counts = compare(*pair("trace_server", newest(), BUILDS[mode]))
    assert counts["equal"] == counts["in tables"] > counts["functions"] / 5


@each_toolchain
def test_one_method_is_found_as_all_are(toolchain: Toolchain) -> None:
    """A single method is looked for in another way than many."""
    binary = pair("trace_server", toolchain)[1]
    functions, many = binary.functions, tables_of(binary)
    rows = range(0, len(functions), max(1, len(functions) // 400))
    known = [functions.function(row) for row in rows]
    whole = {one.entry: many.signature(one.name, one.entry) for one in known}
    for one in known:
        assert tables_of(binary).signature(one.name, one.entry) == whole[one.entry]
        assert many.has(one.name, one.entry) is (whole[one.entry] is not None)
    assert len([one for one in whole.values() if one]) > 50


@pytest.mark.parametrize(
    ("types", "names"),
    [
        (["*main.T"], ["arg1"]),
        (["*main.T", "context.Context", "string"], ["arg1", "ctx", "arg3"]),
        (["*main.T", "context.Context", "context.Context"], ["arg1", "arg2", "arg3"]),
        (["error", "error", "error"], ["arg1", "arg2", "arg3"]),
        (["error", "int", "error"], ["arg1", "arg2", "err"]),
        (["main.T", "net/http.ResponseWriter", "*net/http.Request"], ["arg1", "w", "r"]),
    ],
)
def test_names_of_parameters(types: list[str], names: list[str]) -> None:
    assert parameter_names(types) == names


KNOWN = "func(s struct{n int; t string}, ctx error, key string, id int64, p *int, f float64) []int"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (KNOWN, True),
        (KNOWN.replace("*int", "unsafe.Pointer"), True),
        (KNOWN.replace("*int", "uintptr"), True),
        (KNOWN.replace("int64", "time.Duration"), True),
        (KNOWN.replace("[]int", "[]uint"), True),
        (KNOWN.replace("[]int", "[]int32"), False),
        (KNOWN.replace("*int", "*string"), False),
        (KNOWN.replace("int64", "int32"), False),
        (KNOWN.replace("int64", "float64"), False),
        (KNOWN.replace("float64", "int"), False),
        (KNOWN.replace("error", "any"), False),
        (KNOWN.replace("ctx error", "ctx string"), False),
        (KNOWN.replace("n int; t string", "t string; n int"), False),
        (KNOWN.replace(", f float64", ""), False),
        (KNOWN.replace("[]int", "([]int, error)"), False),
        (KNOWN.replace(" []int", ""), False),
    ],
)
def test_signatures_that_can_be_the_known_one(given: str, same: bool) -> None:
    assert is_same(parse_signature(given), parse_signature(KNOWN)) is same


def test_the_known_signature_can_be_typed() -> None:
    """What an error names is understood as it is."""
    binary = pair("trace_server", newest())[1]
    tables, functions = tables_of(binary), binary.functions
    assert binary.rtypes is not None
    for name in ("net/http.(*response).Write", "net/http.serverHandler.ServeHTTP"):
        (row,) = functions.rows_named(name)
        known = tables.signature(name, functions.function(row).entry)
        assert known is not None
        assert is_same(parse_signature(spelled(known), binary.rtypes.named), known)
