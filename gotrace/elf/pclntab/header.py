# SPDX-License-Identifier: Apache-2.0
"""Find a Go binary's pclntab and read its header.

Sources: ``internal/abi/symtab.go`` (PCLnTabMagic, Go 1.27), ``runtime/symtab.go`` (pcHeader) of
Go 1.16 to 1.27, ``cmd/link/internal/ld/pcln.go`` (generatePCHeader), and for the Go 1.2 format
``debug/gosym/pclntab.go``. The four formats, first releases in parentheses:

====  ==========  =================================================================
1.2   0xfffffffb  one blob, all offsets from its start, absolute entries (to 1.15)
1.16  0xfffffffa  header with offsets of five sub-tables, absolute entries (1.16)
1.18  0xfffffff0  entries are 32-bit offsets from a text start in the header (1.18)
1.20  0xfffffff1  ``_func`` has a start line (1.20); the header's text start is zero (1.26)
====  ==========  =================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage
from gotrace.elf.scan import find_all
from gotrace.records import dataclass


class PclntabFormat(Enum):
    """A layout of the table; values are the magic words."""

    GO_1_2 = 0xFFFFFFFB
    GO_1_16 = 0xFFFFFFFA
    GO_1_18 = 0xFFFFFFF0
    GO_1_20 = 0xFFFFFFF1

    @property
    def relative_entries(self) -> bool:
        """Return whether function entries are offsets from the text start, not addresses."""
        return self in (PclntabFormat.GO_1_18, PclntabFormat.GO_1_20)


@dataclass(frozen=True, slots=True)
class PclntabHeader:
    """Where the parts of a pclntab are.

    ``address`` is the table's link-time address; ``start`` and ``limit`` are the file offsets of
    its first byte and of the end of what may belong to it. ``names``, ``units``, ``files``,
    ``pc_values``, ``rows`` and ``records`` are the file offsets that function names, file
    numbers (32-bit words), file names, pc-value tables, function rows and ``_func`` records are
    counted from. ``text_start`` is what the header says, zero when it says nothing. ``quantum``
    is the unit of instruction sizes.
    """

    format: PclntabFormat
    address: int
    start: int
    limit: int
    quantum: int
    function_count: int
    text_start: int
    names: int
    units: int
    files: int
    pc_values: int
    rows: int
    records: int

    @property
    def rows_address(self) -> int:
        """Return the link-time address of the function rows."""
        return self.address + self.rows - self.start

    @property
    def rows_size(self) -> int:
        """Return the size of the rows, the closing end address included."""
        return self.function_count * self.row_size + self.row_size // 2

    @property
    def row_size(self) -> int:
        """Return the size of one (entry, offset of _func) row."""
        return 8 if self.format.relative_entries else 16


#: Names that Go's linker gives the table's own section.
_SECTION_NAMES = (".gopclntab", ".data.rel.ro.gopclntab")

#: Wrong matches of the magic to put up with before giving up a search.
_MAX_CANDIDATES = 64


def find_pclntab(image: ElfImage) -> PclntabHeader | None:
    """Locate the pclntab and parse its header; None when the image has none.

    The table has a section of its own, or is somewhere in ``.data.rel.ro`` (position
    independent executables with cgo, up to Go 1.25), or there are no section headers: then all
    segments are searched for the magic. Raise ElfError when a section says that it is the table
    and it is not one that can be read.
    """
    for name in _SECTION_NAMES:
        section = image.section(name)
        if section is not None:
            header = _parse(image, section.offset, section.offset + section.size)
            if header is None:
                raise ElfError(_damaged(image, name, section.offset))
            return header
    for offset in _candidates(image):
        address = image.address_of(offset)
        header = _parse(image, offset, image.file_end_of(address))
        if header is not None:
            return header
    return None


def _damaged(image: ElfImage, name: str, offset: int) -> str:
    magic = int.from_bytes(image.data[offset : offset + 4], "little")
    if magic in {known.value for known in PclntabFormat}:
        return f"{image.display}: section {name} is damaged"
    return (
        f"{image.display}: Go function table of unknown format {magic:#x}: "
        f"obfuscated, damaged, or made by a newer Go than this tool knows"
    )


def _candidates(image: ElfImage) -> Iterator[int]:
    """Yield the file offsets of possible headers, sections that hold one first."""
    # The magic's first byte differs by format; what follows it is the same in all.
    rest = b"\xff\xff\xff\0\0" + bytes((image.arch.quantum, 8))
    first_bytes = bytes(known.value & 0xFF for known in PclntabFormat)
    ranges = [(s.offset, s.offset + s.size) for s in image.sections if s.name == ".data.rel.ro"]
    ranges += [(s.offset, s.offset + s.file_size) for s in image.segments if s.type == 1]
    found = 0
    for start, end in ranges:
        for position in find_all(image.data, rest, start + 1, end):
            if found == _MAX_CANDIDATES:
                break
            if image.data[position - 1] in first_bytes:
                found += 1
                yield position - 1


def _parse(image: ElfImage, start: int, limit: int) -> PclntabHeader | None:
    """Parse the header at a file offset; None unless all that it says is possible."""
    limit = min(limit, len(image.data))
    if limit - start < 80:
        return None
    magic, zero, quantum, pointer_size = struct.unpack_from("<IHBB", image.data, start)
    if zero or quantum != image.arch.quantum or pointer_size != 8:
        return None
    try:
        form = PclntabFormat(magic)
        address = image.address_of(start)
        words = struct.unpack("<9Q", image.read_relocated(address, 80)[8:])
    except (ValueError, ElfError):
        return None
    count = words[0]
    text_start = words[2] if form.relative_entries else 0
    if form is PclntabFormat.GO_1_2:
        rows = start + 16
        after = rows + count * 16 + 8
        if after + 4 > limit:
            return None
        (files,) = struct.unpack_from("<I", image.data, after)
        # All but the file numbers is addressed from the table's start.
        parts = [start, start + files, start, start, rows, start]
    else:
        first = 3 if form.relative_entries else 2
        parts = [start + word for word in words[first : first + 5]]
        if parts != sorted(set(parts)):
            return None
        parts.append(parts[-1])
    header = PclntabHeader(form, address, start, limit, quantum, count, text_start, *parts)
    possible = count > 0 and max(parts) < limit and header.rows + header.rows_size <= limit
    return header if possible else None
