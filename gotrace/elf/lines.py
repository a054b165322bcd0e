"""Tell the source line of an instruction from the pclntab.

Source: ``runtime/symtab.go`` (funcline1, funcfile) of Go 1.15 to 1.27.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gotrace.elf.functab import FunctionRecord, FunctionRows
from gotrace.elf.headers import string_at
from gotrace.elf.image import ElfError
from gotrace.elf.pcvalue import first_value, value_at, values_at

__all__ = ["SourceLine", "source_file", "source_line", "source_lines"]

#: Linux's PATH_MAX: no source file has a longer name.
_MAX_FILE_NAME = 4096
_NO_FILE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Name a place in the source, as the binary does (``-trimpath`` shortens paths)."""

    file: str
    line: int


def source_line(rows: FunctionRows, record: FunctionRecord, offset: int) -> SourceLine | None:
    """Return the innermost source line of the instruction ``offset`` bytes into a function."""
    return next(iter(source_lines(rows, record, (offset,))))


def source_lines(
    rows: FunctionRows, record: FunctionRecord, offsets: Sequence[int]
) -> list[SourceLine | None]:
    """Return the innermost source lines of several instructions; ``offsets`` must ascend."""
    if not record.files or not record.lines:
        return [None] * len(offsets)
    data, quantum = rows.image.data, rows.header.quantum
    files = values_at(data, record.files, quantum, offsets)
    lines = values_at(data, record.lines, quantum, offsets)
    places: list[SourceLine | None] = []
    for number, line in zip(files, lines, strict=True):
        file = file_name(rows, record, number)
        places.append(None if file is None or line < 0 else SourceLine(file, line))
    return places


def source_file(rows: FunctionRows, record: FunctionRecord, offset: int) -> str | None:
    """Return the source file of the instruction ``offset`` bytes into a function."""
    if not record.files:
        return None
    data = rows.image.data
    if offset == 0:
        return file_name(rows, record, first_value(data, record.files))
    return file_name(rows, record, value_at(data, record.files, rows.header.quantum, offset))


def file_name(rows: FunctionRows, record: FunctionRecord, number: int) -> str | None:
    """Return the file of a number in a function's table of files; None for "no file"."""
    if number < 0:
        return None
    header = rows.header
    place = rows.word(header.units + 4 * (record.unit + number))
    if place == _NO_FILE:
        return None
    start = header.files + place
    if start >= header.limit:
        raise ElfError(f"{rows.image.display}: damaged file names in the Go function table")
    return string_at(rows.image.data, start, min(header.limit, start + _MAX_FILE_NAME))
