# SPDX-License-Identifier: Apache-2.0
"""Write a tiny ELF file with a pclntab of Go 1.16's format, for which no compiler is at hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

#: Link-time address of the file's first byte, and of its code.
BASE = 0x400000
CODE = BASE + 0x1000

_TABLE, _DATA = BASE + 0x2000, BASE + 0x6000


@dataclass(frozen=True)
class InlineSpec:
    """Say that ``name`` is inlined from ``start`` to ``end``, called at ``parent``."""

    name: str
    start: int
    end: int
    parent: int


@dataclass(frozen=True)
class FunctionSpec:
    """One function: lines are (end offset, line) runs."""

    name: str
    size: int
    file: str
    lines: Sequence[tuple[int, int]]
    inlined: InlineSpec | None = None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def encode_runs(runs: Sequence[tuple[int, int]]) -> bytes:
    """Encode (end offset, value) runs as the linker does."""
    out, last_end, last_value = b"", 0, -1
    for end, value in runs:
        delta = value - last_value
        out += _varint(2 * delta if delta >= 0 else -2 * delta - 1) + _varint(end - last_end)
        last_end, last_value = end, value
    return out + b"\0"


class _Strings:
    """Collect NUL-terminated strings, each once."""

    def __init__(self) -> None:
        self.content = b"\0"
        self._known: dict[str, int] = {}

    def add(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.content)
            self.content += text.encode() + b"\0"
        return self._known[text]


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def write_go116(functions: Sequence[FunctionSpec]) -> bytes:
    """Return an executable's bytes: one segment of code and table, one of module data."""
    names, files, trees = _Strings(), _Strings(), b""
    tables, units, records = b"\0", b"", []
    rows_size = 16 * len(functions) + 8
    position, entry = rows_size, CODE
    for number, spec in enumerate(functions):
        units += struct.pack("<I", files.add(spec.file))
        starts = []
        for runs in ([(spec.size, 0)], spec.lines, _tree_runs(spec)):
            starts.append(len(tables))
            tables += encode_runs(runs)
        tree = 0
        if spec.inlined is not None:
            tree = _DATA + 512 + len(trees)
            name = names.add(spec.inlined.name)
            trees += struct.pack("<hBxiiii", -1, 0, 0, 0, name, spec.inlined.parent) + bytes(4)
        record = struct.pack(
            "<QiiIIIIIIB2xB",
            entry,
            names.add(spec.name),
            0,
            0,
            0,
            starts[0],
            starts[1],
            3,
            number,
            0,
            4,
        )
        record += struct.pack("<3I", 0, 0, starts[2])
        # Pointers to function data are aligned in memory.
        record = _pad(record) + struct.pack("<4Q", 0, 0, 0, tree)
        records.append((entry, position, record))
        position += len(record)
        entry += spec.size
    rows = b"".join(struct.pack("<QQ", at, offset) for at, offset, _ in records)
    rows += struct.pack("<Q", entry) + b"".join(record for _, _, record in records)
    parts = [_pad(part) for part in (names.content, units, files.content, tables, rows)]
    offsets = [64 + sum(map(len, parts[:index])) for index in range(5)]
    header = struct.pack("<IHBB7Q", 0xFFFFFFFA, 0, 1, 8, len(functions), len(functions), *offsets)
    table = header + b"".join(parts)
    words = [0] * 48
    words[0], words[13], words[16] = _TABLE, _TABLE + offsets[4], _TABLE + offsets[4]
    words[17] = words[18] = len(functions) + 1
    words[20:24] = CODE, entry, CODE, entry
    data = struct.pack("<48Q", *words).ljust(512, b"\0") + trees
    return _file(table, entry - CODE, data)


def _tree_runs(spec: FunctionSpec) -> list[tuple[int, int]]:
    if spec.inlined is None:
        return [(spec.size, -1)]
    inlined = spec.inlined
    runs = [(inlined.start, -1), (inlined.end, 0), (spec.size, -1)]
    return [run for run in runs if run[0]]


def _file(table: bytes, code_size: int, data: bytes) -> bytes:
    elf = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, CODE, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    text_size, data_offset = _TABLE - BASE + len(table), _DATA - BASE
    elf += struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, text_size, text_size, 4096)
    elf += struct.pack("<IIQQQQQQ", 1, 6, data_offset, _DATA, _DATA, len(data), len(data), 4096)
    content = elf.ljust(CODE - BASE, b"\0") + b"\xc3" * code_size
    return (content.ljust(_TABLE - BASE, b"\0") + table).ljust(data_offset, b"\0") + data
