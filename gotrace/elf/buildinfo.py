# SPDX-License-Identifier: Apache-2.0
"""The Go release that a binary was built by, as ``go version`` shows it.

Sources: ``debug/buildinfo/buildinfo.go`` of Go 1.18 to 1.27, which documents both formats: by
pointer (up to Go 1.17) and inline (since 1.18). Where build information was taken out, the release
comes from ``runtime.buildVersion``: the linker sets this string variable
(cmd/link/internal/ld/main.go, addstrdata1 of "runtime.buildVersion"), and ``runtime.schedinit``
tests it, "to ensure runtime·buildVersion is kept in the resulting binary" (runtime/proc.go, all
releases), so that function's instructions lead to it whatever has been stripped.
"""

from __future__ import annotations

import re
import struct

from gotrace.elf import ElfError
from gotrace.elf.image import PF_W, PT_LOAD, ElfImage
from gotrace.elf.pclntab.functab import FunctionRows
from gotrace.elf.pclntab.header import PclntabFormat
from gotrace.elf.scan import find_all
from gotrace.records import dataclass, field

_MAGIC = b"\xff Go buildinf:"
_ALIGNMENT = 16
_FLAG_BIG_ENDIAN, _FLAG_INLINE = 1, 2

#: Longest string to accept: that of a development release has some hundred characters.
_MAX_STRING = 1 << 16

#: The compiler's name for itself in the DWARF attribute DW_AT_producer of each compile unit.
_PRODUCER = re.compile(rb"Go cmd/compile (go[^\0;]{1,60})")

_RELEASE = re.compile(r"\bgo(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


@dataclass(frozen=True, slots=True, order=True)
class GoVersion:
    """A Go release; compared, also for equality, by (major, minor) only."""

    major: int
    minor: int
    patch: int = field(default=0, compare=False)
    text: str = field(default="", compare=False)

    @property
    def release(self) -> tuple[int, int]:
        """Return the key in tables of releases."""
        return self.major, self.minor

    @classmethod
    def parse(cls, text: str) -> GoVersion | None:
        """Parse a result of ``runtime.Version()``.

        Understands "go1.21.13", "go1.22rc1", "devel go1.23-abcdef ...", suffixes such as "+auto"
        and " X:boringcrypto". Return None for text without a release number in it.
        """
        match = _RELEASE.search(text)
        if match is None:
            return None
        major, minor, patch = match.groups(default="0")
        return cls(int(major), int(minor), int(patch), text)


def recorded_version(image: ElfImage) -> GoVersion | None:
    """Return the release that an image's build information names.

    None when it has no build information, or it is damaged.
    """
    address = _find(image)
    if address is None:
        return None
    try:
        text = _read_version(image, address)
    except (ElfError, IndexError, struct.error):
        return None
    return GoVersion.parse(text.decode("utf-8", "backslashreplace"))


def main_module(image: ElfImage) -> str | None:
    """Return the path of the module that a program's main package is in.

    None if it has no build information, or that is of a release before 1.18, which has it
    elsewhere, or names no module.
    """
    address = _find(image)
    try:
        if address is None or not image.read(address, 32)[15] & _FLAG_INLINE:
            return None
        size, start = _varint(image, address + 32)
        size, start = _varint(image, start + size)
        found = _MODULE.search(image.read(start, min(size, _MAX_MODULES)))
    except (ElfError, IndexError):
        return None
    return found[1].decode("utf-8", "backslashreplace") if found else None


def compiler_version(image: ElfImage) -> GoVersion | None:
    """Return the Go release that an image's DWARF says it was compiled by, None if it says none.

    Plugins of older releases have no build information, and it can be removed from any binary.
    """
    for name in (".debug_info", ".zdebug_info", ".debug_str", ".zdebug_str"):
        section = image.section(name)
        if section is None:
            continue
        try:
            found = _PRODUCER.search(image.section_bytes(section))
        except ElfError:
            continue
        if found:
            return GoVersion.parse(found[1].decode("utf-8", "backslashreplace"))
    return None


def _find(image: ElfImage) -> int | None:
    section = image.section(".go.buildinfo")
    if section is not None:
        ranges = [(section.offset, section.offset + section.size)]
    else:
        ranges = [
            (segment.offset, segment.offset + segment.file_size)
            for segment in image.segments
            if segment.type == PT_LOAD and segment.flags & PF_W
        ]
    for start, end in ranges:
        for position in find_all(image.data, _MAGIC, start, end):
            address = image.address_of(position)
            if address % _ALIGNMENT == 0:
                return address
    return None


def _read_version(image: ElfImage, address: int) -> bytes:
    header = image.read_relocated(address, 32)
    pointer_size, flags = header[14], header[15]
    if flags & _FLAG_INLINE:
        return _inline_string(image, address + 32)
    if pointer_size != 8 or flags & _FLAG_BIG_ENDIAN:
        raise ElfError(f"{image.display}: build information of another machine")
    (pointer,) = struct.unpack_from("<Q", header, 16)
    return _string(image, pointer)


def _inline_string(image: ElfImage, address: int) -> bytes:
    """Return a string that a varint of its length precedes."""
    size, start = _varint(image, address)
    return _content(image, start, size)


def _varint(image: ElfImage, address: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the address after it."""
    size = 0
    for shift in range(0, 35, 7):
        byte = image.read(address, 1)[0]
        address += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return size, address


def _string(image: ElfImage, address: int) -> bytes:
    """Return the string whose header (pointer, length) is at ``address``.

    A variable that was never set has no bytes in the file.
    """
    try:
        pointer, size = struct.unpack("<QQ", image.read_relocated(address, 16))
    except ElfError:
        return b""
    return _content(image, pointer, size) if size else b""


def _content(image: ElfImage, address: int, size: int) -> bytes:
    if size > _MAX_STRING:
        raise ElfError(f"{image.display}: build information of {size} bytes")
    return image.read(address, size)


#: The output of debug.BuildInfo: path, mod, dep, build, each a line with tabs between its words.
_MODULE = re.compile(rb"\nmod\t([^\t\n]+)\t")
_MAX_MODULES = 1 << 12

_USER = "runtime.schedinit"
_MAX_CODE = 1 << 14

#: A release's own text; what was built from an unreleased tree begins otherwise.
_RELEASE_NAME = re.compile(r"go1\.\d{1,3}(\.\d{1,3}|(rc|beta)\d{1,2})?([-+ ][ -~]{0,80})?")
_MAX_TEXT = 128

#: The releases, (first, last), that write each format.
_WRITTEN_BY = {
    PclntabFormat.GO_1_2: ((1, 2), (1, 15)),
    PclntabFormat.GO_1_16: ((1, 16), (1, 17)),
    PclntabFormat.GO_1_18: ((1, 18), (1, 19)),
    PclntabFormat.GO_1_20: ((1, 20), (1, 999)),
}

#: Bytes of an instruction after its address: none, or a constant to compare with.
_AFTER_ADDRESS = (0, 1, 4)
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
        if (version := _release_at(image, address)) is not None and first <= version.release <= last
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _referenced(image: ElfImage, rows: FunctionRows) -> set[int]:
    """Return where string headers may be that the instructions of the function refer to.

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
            for after in _AFTER_ADDRESS:
                for word in _WORDS_OF_STRING:
                    address = target + after - word
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
    return GoVersion.parse(text) if _RELEASE_NAME.fullmatch(text) else None
