# SPDX-License-Identifier: Apache-2.0
"""Compare the function table with what Go's own tools, readelf and the program itself say."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from gotrace.elf.functions import FuncInfo, FunctionTable, Origin, load_functions
from gotrace.elf.image import ElfImage
from tests.elf.binaries import ARM64_MODES, MODES, cgo, small, without_section_headers
from tests.elf.truth import NmSymbol, addr2line, elf_symbols, go_nm, run, sections
from tests.toolchains import Toolchain, each_toolchain, newest, require

#: What to ask for the symbols of a stripped binary: the same build with symbols.
WITH_SYMBOLS = {
    "stripped": "default",
    "arm64-stripped": "arm64",
    "stripped-pie": "pie",
    "external-stripped-pie": "external-pie",
}

each_mode = pytest.mark.parametrize("mode", [*MODES, *ARM64_MODES])
some_modes = pytest.mark.parametrize("mode", ["default", "stripped", "external-stripped-pie"])

#: Functions are aligned to at most this many bytes.
ALIGNMENT = 64


def go_functions(table: FunctionTable) -> list[FuncInfo]:
    functions = [table.function(row) for row in range(len(table.names))]
    return [function for function in functions if function.origin is Origin.PCLNTAB]


def as_in_pclntab(name: str, *, abbreviated: bool) -> str:
    """Turn a symbol's name into the one that the pclntab has."""
    name = name.removesuffix(".abi0")
    start, end = name.find("["), name.rfind("]")
    if abbreviated and 0 <= start < end:
        return f"{name[:start]}[...]{name[end + 1 :]}"
    return name


@each_toolchain
@each_mode
def test_rows_are_the_symbols_of_go_nm(toolchain: Toolchain, mode: str) -> None:
    reference = small(toolchain, WITH_SYMBOLS.get(mode, mode))
    abbreviated = mode in WITH_SYMBOLS and toolchain.minor in ("1.18", "1.19", "1.20")
    symbols: dict[int, list[NmSymbol]] = defaultdict(list)
    for symbol in go_nm(toolchain, reference):
        symbols[symbol.address].append(symbol)
    with ElfImage.open(small(toolchain, mode)) as image:
        functions = go_functions(load_functions(image))
    start, end = functions[0].entry, functions[-1].end
    assert {function.entry for function in functions} == {
        address for address in symbols if start <= address < end
    }
    for function in functions:
        # nm shows Go's middle dot as a full stop.
        assert function.name.replace("·", ".") in {
            as_in_pclntab(symbol.name, abbreviated=abbreviated)
            for symbol in symbols[function.entry]
        }
        size = max(symbol.size for symbol in symbols[function.entry])
        assert size <= function.end - function.entry < size + ALIGNMENT


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped-pie", "external-stripped-pie"])
def test_nothing_is_missing_without_section_headers(
    toolchain: Toolchain, mode: str, tmp_path: Path
) -> None:
    binary = small(toolchain, mode)
    bare = without_section_headers(binary, tmp_path / "bare")
    with ElfImage.open(binary) as image, ElfImage.open(bare) as bare_image:
        table, bare_table = load_functions(image), load_functions(bare_image)
        assert bare_image.sections == ()
        assert [f.entry for f in go_functions(bare_table)] == [f.entry for f in go_functions(table)]
        assert len(bare_table.rows_named("main.outermost")) == 1
        assert list(bare_table.inlined_calls()) == list(table.inlined_calls())


@each_toolchain
def test_table_is_found_inside_another_section(toolchain: Toolchain) -> None:
    binary = small(toolchain, "external-pie")
    has_own_section = any("gopclntab" in name for name in sections(binary))
    # Go 1.26 gave the table back its own section.
    assert has_own_section == (toolchain.minor in ("1.26", "1.27"))
    with ElfImage.open(binary) as image:
        assert load_functions(image).has_pclntab


@pytest.mark.slow
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "external-pie", "arm64-stripped"])
def test_lines_are_those_of_go_addr2line(toolchain: Toolchain, mode: str) -> None:
    binary = small(toolchain, mode)
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        functions = go_functions(table)
        inside = random.Random(20)
        addresses = [function.entry for function in functions]
        addresses += [inside.randrange(functions[0].entry, functions[-1].end) for _ in range(2000)]
        found = 0
        # The newest addr2line knows all formats; the old ones do not read every kind of file.
        for address, (_, file, line) in zip(
            addresses, addr2line(newest(), binary, addresses), strict=True
        ):
            place = table.source_line(address)
            # addr2line's answers for the padding between functions.
            if file in ("", "?"):
                assert place is None
            else:
                assert place is not None and (place.file, place.line) == (file, line)
                found += 1
    assert found > len(functions)


@each_toolchain
@some_modes
def test_inlined_frames_are_those_of_the_runtime(toolchain: Toolchain, mode: str) -> None:
    binary = small(toolchain, mode)
    said = [line.split(" ") for line in run([binary]).splitlines()]
    expected = [(name, file, int(line)) for _, name, file, line in said[:-1]]
    assert [name for name, _, _ in expected] == ["main.innermost", "main.middle", "main.outermost"]
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        (row,) = table.rows_named("main.outermost")
        frames = table.inlined_at(row, table.function(row).entry + int(said[0][0]))
        assert [(frame.name, frame.file, frame.line) for frame in frames] == expected
        calls = list(table.inlined_calls({"main.innermost", "main.middle"}))
        assert {(call.name, call.caller, call.file, call.line) for call in calls} == {
            ("main.innermost", "main.middle", *expected[1][1:]),
            ("main.middle", "main.outermost", *expected[2][1:]),
        }
        assert {call.row for call in calls} == {row}
        everything = list(table.inlined_calls())
        assert [call for call in everything if call.name == "main.middle"] == [
            call for call in calls if call.name == "main.middle"
        ]
        for wanted in [{name} for name in sorted({call.name for call in everything})[::50]]:
            found = list(table.inlined_calls(wanted))
            assert found == [call for call in everything if call.name in wanted]


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped", "external-stripped-pie", *ARM64_MODES])
def test_declaration_is_the_line_of_the_func_keyword(toolchain: Toolchain, mode: str) -> None:
    binary = small(toolchain, mode)
    source = binary.parent / "source" / "main.go"
    lines = source.read_text().splitlines()
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        for name in ("outermost", "areas", "equal", "main"):
            (row,) = table.rows_named(f"main.{name}")
            place = table.declared_at(row)
            assert place is not None
            assert Path(place.file) == source
            assert lines[place.line - 1].startswith(f"func {name}(")


@each_toolchain
@some_modes
def test_one_of_each_pair_of_abi_twins_is_the_wrapper(toolchain: Toolchain, mode: str) -> None:
    symbols = go_nm(toolchain, small(toolchain, WITH_SYMBOLS.get(mode, mode)))
    abi0 = {symbol.name.removesuffix(".abi0") for symbol in symbols if ".abi0" in symbol.name}
    pairs = abi0 & {symbol.name for symbol in symbols}
    # ABI wrappers came with the register ABI of Go 1.17.
    assert bool(pairs) == (toolchain.minor != "1.15")
    with ElfImage.open(small(toolchain, mode)) as image:
        table = load_functions(image)
        for name in pairs:
            rows = table.rows_named(name)
            assert [table.is_wrapper(row) for row in rows].count(True) == 1, name
            assert len(rows) == 2


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [("main.triple", "main.triple"), ("main.calledBack", "main.calledBack.abi0")],
)
def test_twins_are_told_apart(name: str, wrapper: str) -> None:
    toolchain = newest()
    binary = small(toolchain)
    (expected,) = [s.address for s in go_nm(toolchain, binary) if s.name == wrapper]
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        (found,) = [row for row in table.rows_named(name) if table.is_wrapper(row)]
        assert table.function(found).entry == expected


@each_toolchain
@some_modes
def test_wrappers_and_assembly(toolchain: Toolchain, mode: str) -> None:
    with ElfImage.open(small(toolchain, mode)) as image:
        table = load_functions(image)
        wrappers = {table.names[row] for row in range(len(table.names)) if table.is_wrapper(row)}
        real = {table.names[row] for row in range(len(table.names)) if not table.is_wrapper(row)}
        assembly = {table.names[row] for row in range(len(table.names)) if table.is_assembly(row)}
    assert wrappers >= {"main.(*square).area", "main.(*named).area", "main.square.area-fm"}
    assert real >= {"main.outermost", "main.areas", "main.closures.func1", "main.square.area"}
    assert real >= {"runtime.deferreturn", "reflect.callMethod", "os.init"}
    assert not wrappers & {"main.outermost", "main.main", "main.square.area", "os.init"}
    # Up to Go 1.19 "type..eq.main.pair".
    assert any(name.startswith(("type..eq.", "type:.eq.")) for name in real)
    assert not any(name.startswith("type") for name in wrappers)
    assert assembly >= {"main.triple", "main.fromAssembly", "runtime.memmove"}
    assert not assembly & {"main.main", "runtime.main"}


def test_go_statements_are_wrapped_and_closures_are_not() -> None:
    with ElfImage.open(small(require("1.21"))) as image:
        table = load_functions(image)
        # "defer add(1)" becomes a function without a name of its own until Go 1.21.
        is_wrapper = {name: table.is_wrapper(row) for row, name in enumerate(table.names)}
        assert is_wrapper["main.closures.func1"] is False
        assert [
            wrapped
            for name, wrapped in is_wrapper.items()
            if name.startswith("main.closures.func1.")
        ].count(True) == 1


def test_generic_names_come_in_full_where_symbols_are() -> None:
    toolchain = require("1.19")
    with ElfImage.open(small(toolchain)) as image:
        assert {
            "main.largest[go.shape.int_0]",
            "main.largest[go.shape.float64_0]",
            "main.(*stack[go.shape.string_0]).push",
        } <= set(load_functions(image).names)
    with ElfImage.open(small(toolchain, "stripped")) as image:
        table = load_functions(image)
        assert len(table.rows_named("main.largest[...]")) == 2
        assert len(table.rows_named("main.(*stack[...]).push")) == 2


@pytest.mark.slow
@each_toolchain
@pytest.mark.parametrize("mode", ["default", "pie"])
def test_c_functions_follow_go_functions(toolchain: Toolchain, mode: str) -> None:
    binary = cgo(toolchain, mode)
    expected = {symbol.name: symbol for symbol, _ in elf_symbols(binary)}["visible_in_c"]
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        (row,) = table.rows_named("visible_in_c")
        found = table.function(row)
        assert found.origin is Origin.SYMTAB
        assert (found.entry, found.end) == (expected.address, expected.address + expected.size)
        assert table.find(found.end - 1) == found
        assert not table.is_wrapper(row) and not table.is_assembly(row)
        assert table.source_line(found.entry) is None
        (go_row,) = table.rows_named("main.goSide")
        assert go_row < row
        entries = [table.function(row).entry for row in range(len(table.names))]
        assert len(set(entries)) == len(entries)


def test_find_gives_the_function_around_an_address() -> None:
    with ElfImage.open(small(newest())) as image:
        table = load_functions(image)
        functions = go_functions(table)
        for before, function in pairwise(functions):
            assert table.find(function.entry) == function
            assert table.find(function.entry - 1) == before
        assert table.find(functions[0].entry - 1) is None
        assert table.find(functions[-1].end) is None
        assert table.text_start == functions[0].entry
        with pytest.raises(IndexError):
            table.function(len(table.names))
        with pytest.raises(IndexError):
            table.function(-1)


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped-pie"])
def test_files_read_all_at_once_are_those_read_one_by_one(toolchain: Toolchain, mode: str) -> None:
    few = 150
    with ElfImage.open(small(toolchain, mode)) as image:
        table = load_functions(image)
        rows = range(len(table))
        found = [(table.is_wrapper(row), table.is_assembly(row)) for row in rows]
        expected = []
        for row in rows:
            if row % few == 0:
                table = load_functions(image)  # that has been asked for few of them
            expected.append((table.is_wrapper(row), table.is_assembly(row)))
    assert len(rows) > 4 * few
    assert found == expected
    assert any(assembly for _, assembly in found)
