# SPDX-License-Identifier: Apache-2.0
"""Read damaged and hostile files: each gives a result or a GotraceError, in bounded memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gotrace.elf import ElfError
from gotrace.elf.buildinfo import _read_version, recorded_version
from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from gotrace.elf.pclntab.functab import _file_at
from gotrace.elf.pclntab.inline import InlineTrees
from gotrace.elf.pclntab.pcvalue import runs_within
from gotrace.elf.relocations import DT_RELA, DT_RELASZ, Relocations
from gotrace.elf.symtab import _named
from gotrace.errors import GotraceError
from tests.elf.binaries import small
from tests.elf.pclntab.go116 import CODE, FunctionSpec, InlineSpec, write_go116
from tests.elf.truth import sections
from tests.toolchains import require

#: Where damage matters: these, the ELF header and the program headers.
TARGETS = (
    ".gopclntab",
    ".data.rel.ro.gopclntab",
    ".data.rel.ro",
    ".go.module",
    ".noptrdata",
    ".go.buildinfo",
    ".rela.dyn",
    ".dynamic",
    ".symtab",
    ".strtab",
    ".shstrtab",
    ".note.gnu.build-id",
    ".debug_line",
    ".go.func",
)

HEADERS = (0, 4096)


def read_everything(path: Path) -> bool:
    """Use all of the readers on a file; tell whether it was accepted as one with functions."""
    try:
        with ElfImage.open(path) as image:
            for section in image.sections:
                section_attempt(image, section.name)
            _ = image.is_pie, image.identity
            recorded_version(image)
            table = load_functions(image)
            rows = range(0, len(table.names), max(1, len(table.names) // 50))
            for row in rows:
                function_attempt(table, row)
            for _ in attempts(table.inlined_calls()):
                pass
            for _ in attempts(table.inlined_calls({"main.middle"})):
                pass
    except GotraceError as error:
        assert "\n" not in str(error)
        return False
    return True


def section_attempt(image: ElfImage, name: str) -> None:
    section = image.section(name)
    assert section is not None
    try:
        image.section_bytes(section)
    except GotraceError:
        return


def function_attempt(table: FunctionTable, row: int) -> None:
    function = table.function(row)
    middle = (function.entry + function.end) // 2
    assert table.find(middle) == function or function.end - function.entry < 2
    questions: list[tuple[Callable[..., object], tuple[int, ...]]] = [
        (table.is_wrapper, (row,)),
        (table.is_assembly, (row,)),
        (table.declared_at, (row,)),
        (table.source_line, (middle,)),
        (table.inlined_at, (row, middle)),
    ]
    for question, arguments in questions:
        try:
            question(*arguments)
        except GotraceError:
            continue


def attempts(calls: Iterator[object]) -> Iterator[object]:
    try:
        yield from islice(calls, 2000)
    except GotraceError:
        return


def ranges_of(binary: Path) -> list[tuple[int, int]]:
    found = sections(binary)
    chosen = [(found[name][1], found[name][2]) for name in TARGETS if name in found]
    return [HEADERS, *((offset, offset + size) for offset, size in chosen if size)]


def mutations(content: bytes, ranges: list[tuple[int, int]], count: int) -> Iterator[bytes]:
    """Yield damaged copies; the damage is the same in every run."""
    source = random.Random(len(ranges) * 1000 + count)
    for _ in range(count):
        damaged = bytearray(content)
        start, end = source.choice(ranges)
        # The beginnings of tables hold the counts and offsets.
        end = min(end, len(content), start + source.choice((64, 4096, 1 << 30)))
        for _ in range(source.choice((1, 1, 4, 32))):
            place = source.randrange(start, end)
            match source.randrange(4):
                case 0:
                    damaged[place] ^= 1 << source.randrange(8)
                case 1:
                    damaged[place] = source.randrange(256)
                case 2:
                    damaged[place : place + 8] = b"\xff" * len(damaged[place : place + 8])
                case 3:
                    damaged[place : place + 4] = bytes(len(damaged[place : place + 4]))
        yield bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minor", "mode"),
    [
        ("1.15", "default"),
        pytest.param("1.19", "external-pie", marks=pytest.mark.thorough),
        pytest.param("1.25", "pie", marks=pytest.mark.thorough),
        ("1.27", "stripped"),
    ],
)
def test_flipped_bytes(minor: str, mode: str, tmp_path: Path) -> None:
    binary = small(require(minor), mode)
    content = binary.read_bytes()
    assert read_everything(binary)
    accepted = 0
    copy = tmp_path / "copy"
    for damaged in mutations(content, ranges_of(binary), 100):
        copy.write_bytes(damaged)
        accepted += read_everything(copy)
    # Most single flips hit a name or a line: only what they hit may suffer.
    assert 20 < accepted < 100


@pytest.mark.parametrize(("minor", "mode"), [("1.19", "external-pie"), ("1.27", "default")])
def test_truncated_files(minor: str, mode: str, tmp_path: Path) -> None:
    content = small(require(minor), mode).read_bytes()
    source = random.Random(7)
    copy = tmp_path / "copy"
    sizes = [*range(0, 1024, 37), *(source.randrange(len(content)) for _ in range(40))]
    for size in sizes:
        copy.write_bytes(content[:size])
        read_everything(copy)
    copy.write_bytes(content[: len(content) // 3])
    with pytest.raises(ElfError, match="truncated"):
        ElfImage.open(copy)


SPECS = st.lists(
    st.builds(
        FunctionSpec,
        name=st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1),
        size=st.integers(32, 300),
        file=st.sampled_from(["a.go", "b.s", "<autogenerated>"]),
        lines=st.just(((16, 1), (400, 2))),
        inlined=st.none() | st.just(InlineSpec("inlined", 16, 24, 4)),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(specs=SPECS, data=st.data())
def test_any_table(specs: list[FunctionSpec], data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(write_go116(specs))
    copy = tmp_path / "copy"
    copy.write_bytes(content)
    with ElfImage.open(copy) as image:
        assert list(load_functions(image).names) == [spec.name for spec in specs]
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, 255) | st.integers(0x2000, len(content) - 8))
        value = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        width = data.draw(st.sampled_from([1, 4, 8]))
        content[place : place + width] = bytes([value]) * width
    copy.write_bytes(content)
    read_everything(copy)


def peak_of(path: Path) -> int:
    tracemalloc.start()
    try:
        read_everything(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_claims_of_size_cost_no_memory(tmp_path: Path) -> None:
    content = write_go116([FunctionSpec("main.main", 64, "a.go", [(64, 1)])])
    table = content.index(struct.pack("<IHB", 0xFFFFFFFA, 0, 1))
    copy = tmp_path / "copy"
    copy.write_bytes(content)
    usual = peak_of(copy)
    for place in (table + 8, table + 16, 64 + 32, 64 + 40, 64 + 56 + 32):
        damaged = bytearray(content)
        struct.pack_into("<Q", damaged, place, 1 << 33)
        copy.write_bytes(damaged)
        assert peak_of(copy) < usual + (1 << 20)


def test_an_endless_name_shared_by_all_rows_is_refused(tmp_path: Path) -> None:
    functions = [FunctionSpec("f" * 60_000 + str(n), 16, "a.go", [(16, 1)]) for n in range(200)]
    content = bytearray(write_go116(functions))
    # Each name now begins in the first one and ends with the last.
    start = content.index(b"f" * 60_000)
    end = content.index(b"a.go\0", start)
    for place in range(start, end - 8):
        if content[place] == 0:
            content[place] = ord("f")
    (tmp_path / "copy").write_bytes(content)
    with (
        ElfImage.open(tmp_path / "copy") as image,
        pytest.raises(ElfError, match="damaged names"),
    ):
        _ = load_functions(image).names
    assert peak_of(tmp_path / "copy") < 16 * len(content)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    binary = small(require("1.27"))
    _, offset, _ = sections(binary)[".debug_info"]
    content = bytearray(binary.read_bytes())
    struct.pack_into("<Q", content, offset + 8, 1 << 40)
    (tmp_path / "copy").write_bytes(content)
    with ElfImage.open(tmp_path / "copy") as image:
        section = image.section(".debug_info")
        assert section is not None
        with pytest.raises(ElfError, match="too many"):
            image.section_bytes(section)


def test_the_writer_places_code_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(write_go116([FunctionSpec("f", 64, "a.go", [(64, 1)])]))
    with ElfImage.open(tmp_path / "copy") as image:
        assert image.read(CODE, 64) == b"\xc3" * 64


def test_section_names_beyond_all_numbers_are_none(tmp_path: Path) -> None:
    content = bytearray(write_go116([FunctionSpec("main.main", 64, "a.go", [(64, 1)])]))
    content += bytes(64)  # of one section header, which is that of the names
    struct.pack_into("<Q", content, 40, len(content) - 64)
    struct.pack_into("<HHH", content, 58, 64, 1, 0)
    struct.pack_into("<IIQQQQ", content, len(content) - 64, 1, 3, 0, 0, (1 << 64) - 8, 4)
    (tmp_path / "copy").write_bytes(content)
    with ElfImage.open(tmp_path / "copy") as image:
        assert list(image.sections) == []
        assert list(load_functions(image).names) == ["main.main"]


@pytest.mark.parametrize("name", [".data.rel.ro", ".go.buildinfo", ".strtab", ".shstrtab"])
def test_sections_without_bytes_have_no_place(name: str, tmp_path: Path) -> None:
    binary = small(require("1.19"), "external-pie")
    with ElfImage.open(binary) as image:
        section = image.section(name)
    assert section is not None
    content = bytearray(binary.read_bytes())
    (headers,) = struct.unpack_from("<Q", content, 40)
    place = headers + 64 * section.index
    struct.pack_into("<I", content, place + 4, 8)  # SHT_NOBITS
    struct.pack_into("<QQ", content, place + 24, (1 << 63) + 5, 1 << 63)
    (tmp_path / "copy").write_bytes(content)
    assert read_everything(tmp_path / "copy")


def test_a_segment_beyond_all_addresses_is_refused(tmp_path: Path) -> None:
    content = bytearray(write_go116([FunctionSpec("main.main", 64, "a.go", [(64, 1)])]))
    (headers,) = struct.unpack_from("<Q", content, 32)
    struct.pack_into("<Q", content, headers + 16, (1 << 64) - 8)  # p_vaddr
    (tmp_path / "copy").write_bytes(content)
    with pytest.raises(ElfError, match="beyond all addresses"):
        ElfImage.open(tmp_path / "copy")


_DATA: Any = SimpleNamespace(display="x", data=b"", name=".strtab", offset=0, size=1001)
_ROWS: Any = SimpleNamespace(image=_DATA, header=SimpleNamespace(files=8, limit=9), files_at={})
_TREE: Any = SimpleNamespace(_rows=_ROWS, _data=b"", _layout=SimpleNamespace(size=8, name=0))
_SHAPELESS: Any = SimpleNamespace(
    _rows=_ROWS, _shapes_base=None, _data_place=lambda record, index, base: base
)
_BIG_ENDIAN: Any = SimpleNamespace(
    display="x", read_relocated=lambda address, size: bytes(14) + b"\4\1" + bytes(16)
)
_NAMES: Any = SimpleNamespace(display="x", data=b"a" * 1000 + b"\0")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: _read_version(_BIG_ENDIAN, 0), "x: build information of another machine"),
        (lambda: _file_at(_ROWS, 9), "x: damaged file names in the Go function table"),
        (
            lambda: InlineTrees.arguments_place(_SHAPELESS, _ROWS),
            "x: no module data leads to arguments' shapes",
        ),
        (lambda: InlineTrees._entry(_TREE, 0, 1), "x: an inline tree runs out of the file"),
        (
            lambda: Relocations({DT_RELA: 8, DT_RELASZ: 7}, 8, 1, lambda at, size: b"", "x"),
            "x: relocation table of odd size: the file is damaged",
        ),
        (
            lambda: list(_named(_NAMES, _DATA, [(0, 0, 0, 0, 0, 0)] * 2000)),
            "x: damaged names in section .strtab",
        ),
        (
            lambda: runs_within(b"\2\1" * 9, 0, 1, 1 << 40, 3),
            "a pc-value table of the Go function table has too many runs",
        ),
    ],
)
def test_damage_has_words(use: Callable[[], object], words: str) -> None:
    with pytest.raises(ElfError, match=f"^{words}$"):
        use()
