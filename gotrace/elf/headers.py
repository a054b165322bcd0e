"""Parse the ELF header, program headers and section headers of a little-endian 64-bit file.

Layouts are those of the System V gABI, chapters 4 (ELF header, sections) and 5 (program header).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError

if TYPE_CHECKING:
    from mmap import mmap

__all__ = [
    "ET_DYN",
    "PF_W",
    "PF_X",
    "PT_DYNAMIC",
    "PT_INTERP",
    "PT_LOAD",
    "PT_NOTE",
    "SHT_NOBITS",
    "SHT_NOTE",
    "ElfError",
    "FileHeader",
    "Machine",
    "Section",
    "Segment",
    "read_file_header",
    "read_sections",
    "read_segments",
    "string_at",
]

ET_EXEC, ET_DYN = 2, 3
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
PF_X, PF_W = 1, 2
SHT_NOTE, SHT_NOBITS = 7, 8
SHN_LORESERVE, SHN_XINDEX = 0xFF00, 0xFFFF

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")

#: No linker writes more program headers than this; a larger number is a damaged header.
_MAX_SEGMENTS = 1024

#: SHT_NOBITS sections have no bytes in the file, but offsets have to be such as a file can have.
_MAX_NOBITS = (1 << 63) - 1

_ADDRESSES = 1 << 64

#: No section name that means anything to a tracer is longer.
_MAX_SECTION_NAME = 256

_OTHER_TYPES = {1: "an object file (not linked)", 4: "a core dump"}
_OTHER_MACHINES = {
    2: "SPARC",
    3: "386",
    8: "MIPS",
    20: "PowerPC",
    21: "PowerPC64",
    22: "S/390",
    40: "ARM (32-bit)",
    243: "RISC-V",
    247: "BPF",
    258: "LoongArch",
}


class ElfError(GotraceError):
    """Report a file that is not a usable ELF image, or a table in it that is damaged."""


class Machine(Enum):
    """Name the processor that a file is for; values are ELF's ``e_machine``."""

    AMD64 = 62
    ARM64 = 183


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Hold what the ELF header says; offsets and sizes in bytes."""

    type: int
    machine: Machine
    entry: int
    segments_offset: int
    segment_count: int
    sections_offset: int
    section_count: int
    names_index: int


@dataclass(frozen=True, slots=True)
class Section:
    """Describe one section header; ``size`` is that of the raw bytes in the file."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entsize: int
    index: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Describe one program header; addresses are link-time virtual addresses."""

    type: int
    flags: int
    address: int
    offset: int
    file_size: int
    memory_size: int


def string_at(data: mmap | bytes, offset: int, limit: int) -> str:
    """Decode the NUL-terminated UTF-8 string at ``offset``.

    ``limit`` is the offset that the string must end before. Bytes that are not UTF-8 come out as
    backslash escapes. Raise ElfError when the string is not inside.
    """
    end = data.find(b"\0", offset, limit) if 0 <= offset < limit else -1
    if end < 0:
        raise ElfError(f"string at file offset {offset:#x} is not terminated: the file is damaged")
    return data[offset:end].decode("utf-8", "backslashreplace")


def read_file_header(data: mmap, display: str) -> FileHeader:
    """Parse the ELF header; ``display`` is the file's name in messages.

    Raise ElfError for whatever is not a linked 64-bit little-endian ELF file for AMD64 or ARM64.
    """
    if data[:4] != b"\x7fELF":
        raise ElfError(f"{display}: not an ELF file")
    if len(data) < _FILE_HEADER.size:
        raise ElfError(f"{display}: the file is truncated: no whole ELF header")
    (
        ident,
        kind,
        machine,
        _,
        entry,
        phoff,
        shoff,
        _,
        _,
        phentsize,
        phnum,
        shentsize,
        shnum,
        names,
    ) = _FILE_HEADER.unpack_from(data)
    if ident[4] != 2:
        raise ElfError(f"{display}: a 32-bit program; only 64-bit programs can be traced")
    if ident[5] != 1:
        raise ElfError(f"{display}: a big-endian program; only AMD64 programs can be traced")
    if kind not in (ET_EXEC, ET_DYN):
        what = _OTHER_TYPES.get(kind, f"an ELF file of type {kind}")
        raise ElfError(f"{display}: {what}, not an executable or a shared library")
    try:
        known = Machine(machine)
    except ValueError:
        other = _OTHER_MACHINES.get(machine, f"machine {machine}")
        raise ElfError(f"{display}: a program for {other}; AMD64 is needed") from None
    if phnum and phentsize != _SEGMENT.size:
        raise ElfError(f"{display}: program headers of {phentsize} bytes: the file is damaged")
    if shentsize != _SECTION.size:
        shoff = shnum = 0
    return FileHeader(kind, known, entry, phoff, phnum, shoff, shnum, names)


def read_segments(data: mmap, header: FileHeader, display: str) -> tuple[Segment, ...]:
    """Parse the program headers, in file order.

    Raise ElfError when they, or the file bytes of a PT_LOAD, lie outside of the file.
    """
    count = header.segment_count
    end = header.segments_offset + count * _SEGMENT.size
    if count > _MAX_SEGMENTS or end > len(data):
        raise ElfError(f"{display}: {count} program headers do not fit: the file is damaged")
    segments = []
    for kind, flags, offset, address, _, file_size, memory_size, _ in _SEGMENT.iter_unpack(
        data[header.segments_offset : end]
    ):
        if kind == PT_LOAD and offset + file_size > len(data):
            raise ElfError(
                f"{display}: the file is truncated: a segment needs bytes up to "
                f"{offset + file_size}, the file has {len(data)}"
            )
        if kind == PT_LOAD and address + file_size > _ADDRESSES:
            raise ElfError(f"{display}: a segment ends beyond all addresses: the file is damaged")
        segments.append(Segment(kind, flags, address, offset, file_size, memory_size))
    if not any(segment.type == PT_LOAD for segment in segments):
        raise ElfError(f"{display}: nothing to load in it: no PT_LOAD program header")
    return tuple(segments)


def read_sections(data: mmap, header: FileHeader) -> tuple[Section, ...]:
    """Parse the section headers, in file order, as an empty tuple when there are none.

    The kernel never reads them, so a process may well run from a file whose section headers were
    cut off or overwritten: unusable ones count as absent, and so does a section beyond the end.
    """
    count = header.section_count
    if not 0 < count < SHN_LORESERVE or not header.sections_offset:
        return ()
    end = header.sections_offset + count * _SECTION.size
    if end > len(data) or header.names_index >= count:
        return ()
    raw = list(_SECTION.iter_unpack(data[header.sections_offset : end]))
    names = _section_names(data, raw, header.names_index)
    return tuple(
        Section(name, kind, flags, address, offset, size, link, entsize, index)
        for index, (
            name,
            (_, kind, flags, address, offset, size, link, _, _, entsize),
        ) in enumerate(zip(names, raw, strict=True))
        if offset + size <= (_MAX_NOBITS if kind == SHT_NOBITS else len(data))
    )


def _section_names(data: mmap, raw: Sequence[tuple[int, ...]], names_index: int) -> list[str]:
    start = raw[names_index][4]
    limit = min(start + raw[names_index][5], len(data))
    names = []
    for offset, *_ in raw:
        begin = min(start + offset, limit)
        end = data.find(b"\0", begin, min(limit, begin + _MAX_SECTION_NAME))
        names.append(data[begin:end].decode("ascii", "backslashreplace") if end >= 0 else "")
    return names
