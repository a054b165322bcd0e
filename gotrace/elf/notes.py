"""Read the identifying notes of an ELF file.

Sources: System V gABI chapter 5 (note section), GNU ld's ``--build-id``, and Go's
``cmd/link/internal/ld/elf.go`` (ELF_NOTE_GOBUILDID_TAG, name "Go\\0\\0").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["read_build_id"]

NT_GNU_BUILD_ID = 3
NT_GO_BUILD_ID = 4

#: Notes of executables have some hundred bytes; the rest of a larger segment is not looked at.
_MAX_NOTES = 1 << 16


def read_build_id(data: mmap, extents: Iterable[tuple[int, int]]) -> str | None:
    """Return the GNU build id in hexadecimal, else Go's build id string, else None.

    ``extents`` are the (file offset, size) of note sections and segments. Both are needed: Go's
    linker leaves its GNU build id (since Go 1.24) out of the PT_NOTE segment.
    """
    go_id: str | None = None
    for offset, size in extents:
        for name, kind, value in _notes(data[offset : offset + min(size, _MAX_NOTES)]):
            if name == b"GNU\0" and kind == NT_GNU_BUILD_ID:
                return value.hex()
            if name == b"Go\0\0" and kind == NT_GO_BUILD_ID:
                go_id = value.decode("utf-8", "backslashreplace")
    return go_id


def _notes(content: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    position = 0
    while position + 12 <= len(content):
        name_size, value_size, kind = struct.unpack_from("<III", content, position)
        name_start = position + 12
        value_start = name_start + (name_size + 3 & ~3)
        position = value_start + (value_size + 3 & ~3)
        yield (
            content[name_start : name_start + name_size],
            kind,
            content[value_start : value_start + value_size],
        )
