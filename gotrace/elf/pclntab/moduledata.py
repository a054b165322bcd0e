# SPDX-License-Identifier: Apache-2.0
"""Find the runtime's module data, which says where the text and the inline trees are.

Sources: ``runtime/symtab.go`` (type moduledata) of each release. Up to and including the text
bounds the layout changed once, with the Go 1.16 table; what comes after them changes more often.
``moduledataverify1`` there is the runtime's own check, which :func:`find_module_data` repeats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gotrace.elf import ElfError
from gotrace.elf.image import PF_W, PT_LOAD, ElfImage
from gotrace.elf.pclntab.header import PclntabFormat, PclntabHeader
from gotrace.elf.scan import find_all
from gotrace.records import dataclass

#: Bytes to read: up to the last known ``gofunc``.
_SIZE = 352

#: Possible offsets of ``gofunc``, the base of function data: Go 1.20 to 1.26 and 1.27; 1.18, 1.19.
_FUNCTION_DATA = {
    PclntabFormat.GO_1_20: (320, 344),
    PclntabFormat.GO_1_18: (304,),
    PclntabFormat.GO_1_16: (),
    PclntabFormat.GO_1_2: (),
}

#: Wrong matches of the first word to put up with before giving up a search.
_MAX_CANDIDATES = 256


@dataclass(frozen=True, slots=True)
class ModuleData:
    """Fields of ``runtime.firstmoduledata``; all are link-time addresses.

    ``function_data`` are the words that may be the base of function data, the likeliest first.
    """

    address: int
    text: int
    text_end: int
    first_pc: int
    last_pc: int
    function_data: tuple[int, ...]


def find_module_data(image: ElfImage, header: PclntabHeader) -> ModuleData | None:
    """Return the module data that belongs to a pclntab, None when there is none to be found."""
    for address in _candidates(image, header.address):
        module = _parse(image, header, address)
        if module is not None:
            return module
    return None


def _candidates(image: ElfImage, table: int) -> Iterator[int]:
    """Yield the addresses of words that hold, or will be relocated to, the table's address."""
    # A section of its own since Go 1.26.
    section = image.section(".go.module")
    if section is not None:
        yield section.address
    needle = struct.pack("<Q", table)
    found = 0
    for segment in image.segments:
        if segment.type != PT_LOAD or not segment.flags & PF_W:
            continue
        end = segment.offset + segment.file_size
        for position in find_all(image.data, needle, segment.offset, end):
            if found == _MAX_CANDIDATES:
                break
            address = position - segment.offset + segment.address
            if address % 8 == 0:
                found += 1
                yield address
    yield from image.relocations.places_of(table)[:_MAX_CANDIDATES]


def _parse(image: ElfImage, header: PclntabHeader, address: int) -> ModuleData | None:
    """Read the words at ``address``; None unless they describe the rows of this very table."""
    try:
        words = struct.unpack(f"<{_SIZE // 8}Q", image.read_relocated(address, _SIZE))
    except ElfError:
        return None
    # Offsets of the slice ftab, of (minpc, maxpc) and of (text, etext), in words.
    rows, bounds = (3, 10) if header.format is PclntabFormat.GO_1_2 else (16, 20)
    first_pc, last_pc, text, text_end = words[bounds : bounds + 4]
    if words[0] != header.address or words[rows] != header.rows_address:
        return None
    if words[rows + 1] != header.function_count + 1 or not first_pc < last_pc:
        return None
    bases = tuple(words[offset // 8] for offset in _FUNCTION_DATA[header.format])
    return ModuleData(address, text, text_end, first_pc, last_pc, bases)
