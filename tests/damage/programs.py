# SPDX-License-Identifier: Apache-2.0
"""Build the programs that are damaged, and know where damage to each of them matters."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import SHF_COMPRESSED, ElfImage, Section
from gotrace.elf.pclntab.header import find_pclntab
from gotrace.gotypes.from_rtype import Rtypes
from tests.toolchains import FIXTURES, build, gccgo_build, newest, require

_GO = FIXTURES / "dwarf_signatures"
_PLAIN = "-ldflags=-compressdwarf=false"

#: How to build each, by a name that says what is special about it.
PROGRAMS: Mapping[str, Callable[[], Path]] = {
    "1.15": lambda: build(_GO, require("1.15"), flags=[_PLAIN]),
    "1.15-pie-compressed": lambda: build(_GO, require("1.15"), flags=["-buildmode=pie"]),
    "1.19": lambda: build(_GO, require("1.19"), flags=[_PLAIN]),
    "1.19-external-pie": lambda: build(
        _GO, require("1.19"), flags=["-buildmode=pie", "-ldflags=-linkmode=external"]
    ),
    "1.22": lambda: build(_GO, require("1.22"), flags=[_PLAIN]),
    "1.25-pie": lambda: build(_GO, require("1.25"), flags=["-buildmode=pie", _PLAIN]),
    "newest": lambda: build(_GO, newest(), flags=[_PLAIN]),
    "newest-compressed": lambda: build(_GO, newest()),
    "newest-pie": lambda: build(_GO, newest(), flags=["-buildmode=pie", _PLAIN]),
    "newest-stripped": lambda: build(_GO, newest(), flags=["-ldflags=-s -w"]),
    "gccgo": lambda: gccgo_build(FIXTURES / "elf_gccgo"),
}


@dataclass(frozen=True, slots=True)
class Region:
    """A range of bytes of the file, or of what a section ``packed`` in it holds."""

    name: str
    start: int
    end: int
    packed: Section | None = None


@functools.cache
def intact(name: str) -> bytes:
    """Return a program's bytes."""
    return PROGRAMS[name]().read_bytes()


#: Sections in which any byte may be hit.
_SECTIONS = (
    ".go.buildinfo",
    ".go.module",
    ".go.func",
    ".gopclntab",
    ".data.rel.ro",
    ".data.rel.ro.gopclntab",
    ".dynamic",
    ".dynstr",
    ".dynsym",
    ".itablink",
    ".noptrdata",
    ".note.gnu.build-id",
    ".rela.dyn",
    ".rodata",
    ".shstrtab",
    ".strtab",
    ".symtab",
    ".text",
    ".typelink",
    *(
        f"{prefix}debug_{name}"
        for prefix in (".", ".z")
        for name in (
            *("abbrev", "addr", "info", "line", "loc", "loclists", "ranges", "rnglists"),
            *("str", "str_offsets"),
        )
    ),
)

_HEADER = 128  # bytes at a table's start: counts and offsets
_NEAR = 1500  # bytes before and behind what is looked at


@functools.cache
def regions(name: str) -> tuple[Region, ...]:
    """Return where damage to a program matters; ranges overlap, and small ones come as often."""
    with ElfImage.open(PROGRAMS[name]()) as image:
        content = intact(name)
        segments, sections = struct.unpack_from("<QQ", content, 32)
        segment_count, _, section_count = struct.unpack_from("<HHH", content, 56)
        found = [
            Region("ELF header", 4, 64),
            Region("program headers", segments, segments + 56 * segment_count),
            Region("section headers", sections, sections + 64 * section_count),
        ]
        for section in image.sections:
            if section.name in _SECTIONS and section.size and section.type != 8:
                found += _of_section(section)
                found += _unpacked(section, content)
                found += _looked_at(section, content)
        table = load_functions(image)
        found += _of_functions(image, table)
        found += _of_types(image, table)
    return tuple(
        region
        for region in found
        if region.start < region.end and (region.packed or region.end <= len(content))
    )


def _of_section(section: Section) -> list[Region]:
    start, end = section.offset, section.offset + section.size
    return [
        Region(section.name, start, end),
        Region(f"{section.name} header", start, min(end, start + _HEADER)),
    ]


def _unpacked(section: Section, content: bytes) -> list[Region]:
    if not section.flags & SHF_COMPRESSED and not section.name.startswith(".zdebug"):
        return []
    inner = unpack(content, section)
    name = f"{section.name} unpacked"
    return [Region(name, 0, end, section) for end in (len(inner), min(len(inner), _HEADER))]


def unpack(content: bytes, section: Section) -> bytes:
    """Return what a compressed section holds."""
    start = section.offset + _head(section)
    return zlib.decompress(content[start : section.offset + section.size])


def pack(content: bytes, section: Section, inner: bytes) -> bytes:
    """Return the file with other bytes in a compressed section, if those fit once compressed."""
    start, room = section.offset + _head(section), section.size - _head(section)
    packed = zlib.compress(inner, 9)
    if len(packed) > room:
        return content
    return content[:start] + packed.ljust(room, b"\0") + content[start + room :]


def _head(section: Section) -> int:
    return 12 if section.name.startswith(".z") else 24


def _looked_at(section: Section, content: bytes) -> list[Region]:
    """Return the parts of a debug section, not compressed, that tell of the program's own."""
    if "debug" not in section.name:
        return []
    places = []
    for word in (b"main.(*Store).Get", b"main.many", b"main.Store", b"runtime.g\0", b"error\0"):
        at = content.find(word, section.offset, section.offset + section.size)
        if at >= 0:
            places.append(at)
    return [
        Region(f"{section.name} near", max(section.offset, at - _NEAR), at + _NEAR) for at in places
    ]


def _of_functions(image: ElfImage, table: FunctionTable) -> list[Region]:
    """Return the pclntab's parts, module data, and the code and records of some functions."""
    header = find_pclntab(image)
    if header is None:
        return []
    found = [
        Region("pclntab header", header.start, header.start + 80),
        Region("functab", header.rows, header.rows + header.rows_size),
        Region("function records", header.records, header.limit),
        Region("names", header.names, header.names + 4096),
        Region("files", header.files, header.files + 4096),
        Region("file numbers", header.units, header.units + 1024),
    ]
    needle = struct.pack("<Q", header.address)
    at = image.data.find(needle)
    while at >= 0:
        found.append(Region("module data", at, at + 400))
        at = image.data.find(needle, at + 1)
    rows = table._rows
    assert rows is not None
    for row, name in enumerate(table.names):
        if name.startswith("main."):
            record = rows.record(row)
            function = table.function(row)
            code = image.offset_of(function.entry)
            found.append(Region("code", code, code + function.end - function.entry))
            found.append(Region("record", record.value_tables - 44, record.data_tables + 32))
            for name_of, place in (("files of", record.files), ("lines of", record.lines)):
                found.append(Region(f"{name_of} a function", place, place + 40))
            inlined = rows.value_table(record, 2)
            found.append(Region("inline indices", inlined, inlined and inlined + 24))
            shapes = table._trees.arguments_place(record) if table._trees else None
            if shapes is not None:
                found.append(Region("shapes of arguments", shapes, shapes + 24))
    for address in rows.module.function_data if rows.module else ():
        if image.executable(address) or any(
            s.address <= address < s.address + s.file_size for s in image.segments
        ):
            start = image.offset_of(address)
            found.append(Region("function data", start, start + 20_000))
    return found


def _of_types(image: ElfImage, table: FunctionTable) -> list[Region]:
    """Return the descriptors, and their neighbourhood, of types that captures come to."""
    descriptors = Rtypes.open(image, table.go_version, table.module)
    if not descriptors:
        return []
    found = [
        Region("type descriptors", at, at + 200)
        for name in ("main.Store", "main.Point", "*main.Store", "string", "*errors.errorString")
        if (address := descriptors.basic(name)) is not None and (at := image.offset_of(address))
    ]
    methods = islice(descriptors.all_methods(), 0, 400, 20)
    for at in {image.offset_of(owner) for _, owner, _ in methods}:
        found.append(Region("method tables", at, at + 200))
    for itab in islice(descriptors.itabs("error"), 4):
        at = image.offset_of(itab.address)
        found.append(Region("itabs", at, at + 40))
    types = image.offset_of(descriptors.types_start)
    found.append(Region("types", types, types + 20_000))
    return found
