# SPDX-License-Identifier: Apache-2.0
"""Read signatures from fixture programs by every toolchain, and compare with readelf."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature
from gotrace.elf.image import ElfImage, Section
from tests.elf.dwarf.truth import ReadelfEntry, entries, go_types
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    Toolchain,
    build,
    each_architecture,
    each_toolchain,
    gccgo_build,
    newest,
    require,
    toolchains,
)

SIGNATURES = FIXTURES / "dwarf_signatures"
GENERICS = FIXTURES / "dwarf_generics"

#: Functions of the fixture: names of parameters, names of results.
EXPECTED = {
    "main.add": (["x", "y"], ["~r0"]),
    "main.(*Store).Get": (["s", "key", "raw", "word"], ["found", "err"]),
    "main.Store.Value": (["s", "p", "three", "one"], ["r"]),
    "main.sum": (["first", "second"], ["~r0"]),
    "main.counter": (["start", "label"], ["~r0"]),
    "main.counter.func1": (["step"], ["~r0"]),
    "main.many": ([*"abcdefghij", "x", "y", "w"], [*"pqrstuvklm"]),
}


def version(toolchain: Toolchain) -> tuple[int, ...]:
    return tuple(int(part) for part in toolchain.version.split("."))


@functools.cache
def symbols(path: Path) -> dict[str, int]:
    """Return the addresses of a program's symbols by name, as its symbol table has them."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        return {symbol.name: int(symbol["st_value"]) for symbol in table.iter_symbols()}


@functools.cache
def reader(path: Path) -> DwarfReader:
    found = DwarfReader.open(ElfImage.open(path))
    assert found is not None
    return found


def function(path: Path, name: str) -> FunctionSignature:
    found = reader(path).function(symbols(path)[name])
    assert found is not None
    return found


def names(found: FunctionSignature) -> tuple[list[str], list[str]]:
    # Up to Go 1.17 unnamed results are numbered from the parameters on.
    results = [
        "~r0" if variable.name.startswith("~r") else variable.name for variable in found.results
    ]
    return [variable.name for variable in found.parameters], results


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "unoptimized", "pie", "external"])
def test_signatures(toolchain: Toolchain, mode: str) -> None:
    path = build(SIGNATURES, toolchain, flags=BUILD_MODES[mode])
    for name, expected in EXPECTED.items():
        found = function(path, name)
        assert found.name == name
        assert found.low_pc == symbols(path)[name]
        assert names(found) == expected


@each_toolchain
def test_sections_without_compression_say_the_same(toolchain: Toolchain) -> None:
    packed = build(SIGNATURES, toolchain)
    plain = build(SIGNATURES, toolchain, flags=("-ldflags=-compressdwarf=false",))
    assert plain.stat().st_size > packed.stat().st_size
    for name in EXPECTED:
        assert function(packed, name) == function(plain, name)


@each_toolchain
def test_unnamed_parameters(toolchain: Toolchain) -> None:
    path = build(SIGNATURES, toolchain)
    parameters, results = names(function(path, "main.blank"))
    if version(toolchain) >= (1, 22):
        assert parameters == ["~p0", "a", "~p2", "b", "~p4", "c"]
    else:
        assert parameters == ["a", "b", "c"]
    assert [results[0], results[2]] == ["n", "z"]
    assert len(results) == 3


@each_toolchain
def test_captured_variables(toolchain: Toolchain) -> None:
    path = build(SIGNATURES, toolchain, flags=BUILD_MODES["unoptimized"])
    captured = [
        (variable.name, variable.closure_offset)
        for variable in function(path, "main.counter.func1").captured
    ]
    known = version(toolchain) >= (1, 23)
    assert captured == ([("&start", 8), ("label", 16)] if known else [])


@each_architecture
@each_toolchain
def test_entry_locations(toolchain: Toolchain, env: Mapping[str, str]) -> None:
    path = build(SIGNATURES, toolchain, env=env)
    found = function(path, "main.add")
    pieces = [reader(path).entry_pieces(found, variable) for variable in found.parameters]
    if env and version(toolchain) >= (1, 18):  # X0 and X1
        expected = [(PieceKind.REGISTER, 0), (PieceKind.REGISTER, 1)]
    elif env:  # the frame address is SP at the entry
        expected = [(PieceKind.FRAME, 8), (PieceKind.FRAME, 16)]
    elif version(toolchain) >= (1, 17):  # RAX and RBX are 0 and 3 in DWARF
        expected = [(PieceKind.REGISTER, 0), (PieceKind.REGISTER, 3)]
    else:
        expected = [(PieceKind.FRAME, 0), (PieceKind.FRAME, 8)]
    assert pieces == [(LocationPiece(kind, number, None),) for kind, number in expected]


def test_generic_functions_are_found_by_address_under_their_shapes() -> None:
    path = build(GENERICS, newest())
    shapes = [name for name in symbols(path) if "[go.shape." in name and ".func" not in name]
    assert len(shapes) >= 7
    for name in shapes:
        assert function(path, name).name == name


@each_toolchain
def test_a_function_is_the_same_whatever_package_is_looked_at_first(toolchain: Toolchain) -> None:
    path = build(SIGNATURES, toolchain)
    add = symbols(path)["main.add"]
    known = function(path, "main.add")
    for package in ("main", "runtime", "no/such", "\udc80"):
        with ElfImage.open(path) as image:
            fresh = DwarfReader.open(image)
            assert fresh is not None
            found = fresh.function(add, package)
            assert found is not None
            assert (found.name, found.low_pc) == (known.name, known.low_pc)
            assert found.unit.offset == known.unit.offset


def test_an_address_without_function_gives_none() -> None:
    path = build(SIGNATURES, newest())
    add = symbols(path)["main.add"]
    assert reader(path).function(add + 1) is None
    assert reader(path).function(1) is None
    assert reader(path).function((1 << 64) - 1) is None


def test_a_stripped_binary_has_no_reader() -> None:
    with ElfImage.open(build(SIGNATURES, newest(), flags=BUILD_MODES["stripped"])) as image:
        assert DwarfReader.open(image) is None


@pytest.mark.parametrize("minor, lists", [("1.24", "loc"), ("1.25", "loclists")])
def test_sections_are_read_once_and_only_when_asked_for(minor: str, lists: str) -> None:
    path = build(SIGNATURES, require(minor))
    asked: list[str] = []
    with ElfImage.open(path) as image:

        def load(name: str) -> bytes:
            asked.append(name)
            section = image.debug_section(name)
            return bytes(image.section_bytes(section)) if section else b""

        dwarf = DwarfReader(load)
        assert dwarf.struct_members("runtime.g")
        assert sorted(asked) == ["abbrev", "info"]
        found = dwarf.function(symbols(path)["main.add"])
        assert found is not None
        assert lists not in asked
        for _ in range(2):
            dwarf.entry_pieces(found, found.parameters[0])
    assert asked.count(lists) == 1
    assert len(asked) == len(set(asked))


def test_an_image_has_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[str] = []
    decompress = ElfImage._decompress

    def recorded(image: ElfImage, section: Section, packed: memoryview, size: int) -> bytes:
        unpacked.append(section.name)
        return decompress(image, section, packed, size)

    monkeypatch.setattr(ElfImage, "_decompress", recorded)
    with ElfImage.open(build(SIGNATURES, newest())) as image:
        first, again = DwarfReader.open(image), DwarfReader.open(image)
        assert first is not None and first is again
        section = image.section(".debug_info")
        assert section is not None
        assert image.section_bytes(section) is image.section_bytes(section)
    assert ".debug_info" in unpacked
    assert len(unpacked) == len(set(unpacked))


def parameter_count(entry: ReadelfEntry) -> int:
    """Count the names of parameters: compilers from 1.19 to 1.26 describe some of them twice."""
    parameters = [child for child in entry.children if child.tag == "DW_TAG_formal_parameter"]
    names = ("DW_AT_name", "DW_AT_abstract_origin")
    return len(
        {(name, p.attributes[name]) for p in parameters for name in names if name in p.attributes}
    )


@pytest.mark.parametrize(
    "toolchain",
    [pytest.param(found, id=found.minor) for found in (toolchains()[:1] + toolchains()[-1:])],
)
def test_every_function_agrees_with_readelf(toolchain: Toolchain) -> None:
    path = build(SIGNATURES, toolchain)
    known = entries(path)
    truth: dict[int, tuple[str, int]] = {}
    for unit in known.values():
        for entry in unit.children if unit.tag == "DW_TAG_compile_unit" else ():
            if entry.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in entry.attributes:
                origin = entry
                if "DW_AT_abstract_origin" in entry.attributes:
                    reference = entry.attributes["DW_AT_abstract_origin"].strip("<>")
                    origin = known[int(reference, 16)]
                truth[entry.number("DW_AT_low_pc")] = origin.name(), parameter_count(entry)
    ours = {found.low_pc: found for found in reader(path).functions()}
    assert len(truth) > 1000
    assert {low_pc: found.name for low_pc, found in ours.items()} == {
        low_pc: name for low_pc, (name, _) in truth.items()
    }
    for low_pc, (name, count) in truth.items():
        # Ours also has the parameters that only the abstract entry has.
        assert len(ours[low_pc].variables) >= count, name
        assert reader(path).function(low_pc) == ours[low_pc]


@each_toolchain
def test_types_are_found_by_name(toolchain: Toolchain) -> None:
    path = build(SIGNATURES, toolchain)
    by_name: dict[str, int] = {}
    for found in go_types(path):
        by_name.setdefault(found.name, found.offset)
    assert len(by_name) > 100
    dwarf = reader(path)
    for name in ("runtime.g", "runtime.m", "main.Store", "map[string][]main.Point", "error"):
        assert dwarf.find_type(name) == by_name[name]
    assert dwarf.find_type("main.Stor") is None


def test_struct_members() -> None:
    dwarf = reader(build(SIGNATURES, newest()))
    assert dwarf.struct_members("main.Store") == {"Point": 0, "names": 8}
    assert dwarf.struct_members("main.Nothing") == {}


def test_gccgo_functions() -> None:
    path = gccgo_build(SIGNATURES)
    found = function(path, "main.add")
    assert names(found)[0] == ["x", "y"]
    store = function(path, "main.Store.Get")
    assert [variable.name for variable in store.parameters][:2] == ["s", "key"]
    kinds = {reader(path).die(v.type_offset).tag for v in found.parameters if v.type_offset}
    assert kinds <= {"DW_TAG_base_type", "DW_TAG_typedef"}
