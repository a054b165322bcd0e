# SPDX-License-Identifier: Apache-2.0
"""Write core files as the kernel does: what is mapped to be written to, and two notes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_PAGE = 4096


def write_core(pid: int, path: Path, *, auxv: bool = True) -> None:
    """Write the memory of a process at rest; pages that are all zeros take no room on disk.

    ``auxv``: with NT_AUXV, which says where the program is.
    """
    spans, files = [], []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in words[0].split("-"))
        if words[1].startswith("rw"):
            spans.append((start, end))
        if len(words) == 6 and words[4] != "0":
            files.append((start, end, int(words[2], 16) // _PAGE, words[5].encode()))
    notes = _note(0x46494C45, _file_table(files))
    if auxv:
        notes += _note(6, Path(f"/proc/{pid}/auxv").read_bytes())
    at = -(-(64 + 56 * (len(spans) + 1) + len(notes)) // _PAGE) * _PAGE
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\2\1\1".ljust(16, b"\0"),
        *(4, 62, 1, 0, 64, 0, 0, 64, 56, len(spans) + 1, 0, 0, 0),
    )
    header += struct.pack("<IIQQQQQQ", 4, 0, 64 + 56 * (len(spans) + 1), 0, 0, len(notes), 0, 4)
    offset = at
    for start, end in spans:
        header += struct.pack("<IIQQQQQQ", 1, 6, offset, start, 0, end - start, end - start, _PAGE)
        offset += end - start
    with path.open("wb") as out, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        out.write(header + notes)
        for start, end in spans:
            for address in range(start, end, 1 << 20):
                size = min(end - address, 1 << 20)
                try:
                    content = os.pread(memory.fileno(), size, address)
                except OSError:
                    content = b""
                if content.strip(b"\0"):
                    out.seek(at + address - start)
                    out.write(content)
            at += end - start
        out.truncate(at)


def _note(kind: int, content: bytes) -> bytes:
    padded = content + bytes(-len(content) % 4)
    return struct.pack("<III", 5, len(content), kind) + b"CORE\0\0\0\0" + padded


def _file_table(files: list[tuple[int, int, int, bytes]]) -> bytes:
    rows = b"".join(struct.pack("<QQQ", *row[:3]) for row in files)
    names = b"".join(row[3] + b"\0" for row in files)
    return struct.pack("<QQ", len(files), _PAGE) + rows + names
