"""Read the Go release that a binary was linked by out of ``runtime.buildVersion``.

It serves binaries whose build information was taken out. The linker sets this string variable
(cmd/link/internal/ld/main.go, addstrdata1 of "runtime.buildVersion"), and ``runtime.schedinit``
tests it, "to ensure runtime·buildVersion is kept in the resulting binary" (runtime/proc.go, all
releases): so the instructions of that function lead to it whatever has been stripped.
"""

from __future__ import annotations

import re
import struct

from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.functab import FunctionRows
from gotrace.elf.headers import PF_W, PT_LOAD
from gotrace.elf.image import ElfError, ElfImage
from gotrace.elf.pclntab import PclntabFormat

__all__ = ["read_build_version"]

_USER = "runtime.schedinit"
_MAX_CODE = 1 << 14

#: A release's own text; what was built from an unreleased tree begins otherwise.
_RELEASE = re.compile(r"go1\.\d{1,3}(\.\d{1,3}|(rc|beta)\d{1,2})?([-+ ][ -~]{0,80})?")
_MAX_TEXT = 128

#: The releases, (first, last), that write each format.
_WRITTEN_BY = {
    PclntabFormat.GO_1_2: ((1, 2), (1, 15)),
    PclntabFormat.GO_1_16: ((1, 16), (1, 17)),
    PclntabFormat.GO_1_18: ((1, 18), (1, 19)),
    PclntabFormat.GO_1_20: ((1, 20), (1, 999)),
}

#: Bytes of an instruction behind its address: none, or a constant to compare with.
_BEHIND_ADDRESS = (0, 1, 4)
#: Of a string's header an instruction may name the pointer or the length.
_WORDS_OF_STRING = (0, 8)


def read_build_version(image: ElfImage, rows: FunctionRows) -> GoVersion | None:
    """Return the release, None unless all that looks like one in the right place agrees.

    The text has to be a release's, and one whose function table has the format that is there.
    """
    first, last = _WRITTEN_BY[rows.header.format]
    found = {
        version.text: version
        for address in _referenced(image, rows)
        if (version := _release_at(image, address)) is not None
        and first <= (version.major, version.minor) <= last
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _referenced(image: ElfImage, rows: FunctionRows) -> set[int]:
    """Return where string headers may lie that the instructions of the function refer to.

    Every four bytes of its code are taken for an address relative to the next instruction: what
    is none leads to no release's text.
    """
    data = [
        range(segment.address, segment.address + segment.file_size - 15)
        for segment in image.segments
        if segment.type == PT_LOAD and segment.flags & PF_W
    ]
    headers: set[int] = set()
    for row in (row for row, name in enumerate(rows.names) if name == _USER):
        entry, end = rows.entries[row], rows.entries[row + 1]
        code = image.read(entry, min(end - entry, _MAX_CODE))
        for at in range(len(code) - 4):
            target = entry + at + 4 + struct.unpack_from("<i", code, at)[0]
            for behind in _BEHIND_ADDRESS:
                for word in _WORDS_OF_STRING:
                    address = target + behind - word
                    if address % 8 == 0 and any(address in part for part in data):
                        headers.add(address)
    return headers


def _release_at(image: ElfImage, address: int) -> GoVersion | None:
    try:
        pointer, length = struct.unpack("<QQ", image.read_relocated(address, 16))
        if not 0 < length <= _MAX_TEXT:
            return None
        text = image.read(pointer, length).decode("ascii", "replace")
    except ElfError:
        return None
    return GoVersion.parse(text) if _RELEASE.fullmatch(text) else None
