# SPDX-License-Identifier: Apache-2.0
"""The function rows of a pclntab: entries, names, source lines, and each function's record.

Sources: ``runtime/runtime2.go`` (type _func), ``runtime/symtab.go`` (functab, pcdatastart,
funcdata, moduledataverify1, funcline1, funcfile) of Go 1.15 to 1.27 and
``cmd/link/internal/ld/pcln.go``.
"""

from __future__ import annotations

import enum
import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import islice
from operator import le, or_
from typing import NamedTuple

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage, string_at
from gotrace.elf.pclntab.header import PclntabFormat, PclntabHeader, find_pclntab
from gotrace.elf.pclntab.moduledata import ModuleData, find_module_data
from gotrace.elf.pclntab.pcvalue import first_value, value_at, values_at
from gotrace.elf.symtab import symbol_value
from gotrace.records import dataclass

_WORD = struct.Struct("<I")
_SIGNED = struct.Struct("<i")

_NO_DATA = 0xFFFFFFFF

#: FuncIDNormal: "not a special function".
_NORMAL = 0

#: The longest name to accept when names are read one by one.
_MAX_NAME = 1 << 16


@dataclass(frozen=True, slots=True)
class _RecordLayout:
    """The offsets in ``_func`` that differ by format.

    ``fields`` unpacks, from ``tables`` on: pcfile, pcln, npcdata, cuOffset (not in Go 1.2's
    format), startLine (not before Go 1.20) and, last, nfuncdata.
    """

    name: int
    tables: int
    fields: struct.Struct
    size: int


_LAYOUTS = {
    PclntabFormat.GO_1_2: _RecordLayout(8, 24, struct.Struct("<3I3xB"), 40),
    PclntabFormat.GO_1_16: _RecordLayout(8, 24, struct.Struct("<4I3xB"), 44),
    PclntabFormat.GO_1_18: _RecordLayout(4, 20, struct.Struct("<4I3xB"), 40),
    PclntabFormat.GO_1_20: _RecordLayout(4, 20, struct.Struct("<5I3xB"), 44),
}


class FunctionMarks(enum.IntFlag):
    """The marks in ``_func.flag`` (abi.FuncFlag, since Go 1.17)."""

    TOP_FRAME = 1  # no frame beyond: runtime.goexit, for example
    WRITES_SP = 2  # in ways that its table of SP does not describe
    ASSEMBLY = 4


_KNOWN_MARKS = 7


class FunctionRecord(NamedTuple):
    """The contents of one ``_func``; a tuple, because they are made by the ten thousand.

    ``files`` and ``lines`` are the file offsets of pc-value tables, zero for none. ``unit`` is
    the index of the compile unit's first file number. ``start_line`` is the line of the ``func``
    keyword, zero before Go 1.20. ``value_tables`` and ``data_tables`` are the file offsets of
    the arrays of PCDATA tables and of FUNCDATA, with their lengths.
    """

    files: int
    lines: int
    unit: int
    start_line: int
    value_tables: int
    value_table_count: int
    data_tables: int
    data_table_count: int


class FunctionRows:
    """The functions of one pclntab by row, in order of address."""

    def __init__(
        self,
        image: ElfImage,
        header: PclntabHeader,
        module: ModuleData | None,
        entries: array[int],
        records: array[int],
    ) -> None:
        """Take over checked rows; use :func:`load_rows` instead."""
        self.image = image
        self.header = header
        self.module = module
        #: Entry addresses by row, and after them the end of the last function.
        self.entries = entries
        self._records = records
        #: Whether records have pointers to function data, aligned, and not offsets (to Go 1.17).
        self.has_pointers = not header.format.relative_entries
        self._layout = _LAYOUTS[header.format]
        #: Names that inline trees refer to: each many times, so they are read once.
        self._names_at: dict[int, str] = {}
        self._budget = self._name_budget
        #: Names of source files by their place, kept by those who read them.
        self.files_at: dict[int, str] = {}

    @property
    def _name_budget(self) -> int:
        """Return a limit for the length of all names in characters.

        Names are stored once: all together they cannot be much longer than the table. The limit
        keeps references into the tail of one endless string from filling the memory.
        """
        return 4 * (self.header.limit - self.header.start) + (1 << 20)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def addresses(self) -> tuple[int, int]:
        """Return the addresses of the table's first byte and of the end of its last record.

        All between them is of the table, whatever comes after it.
        """
        header = self.header
        end = header.records + max(self._records) + self._layout.size
        return header.address, header.address + end - header.start

    def find(self, pc: int) -> int | None:
        """Return the row of the function that contains ``pc``."""
        row = bisect_right(self.entries, pc) - 1
        return row if 0 <= row < len(self) else None

    @cached_property
    def names(self) -> list[str]:
        """Return the functions' names by row."""
        header, data = self.header, self.image.data
        find, base, limit = data.find, header.names, header.limit
        names: list[str] = []
        budget = self._name_budget
        for offset in self._name_offsets():
            start = base + offset
            end = find(b"\0", start, limit)
            budget -= end - start
            if end < 0 or budget < 0:
                raise ElfError(f"{self.image.display}: damaged names in the Go function table")
            names.append(str(data[start:end], "utf-8", "backslashreplace"))
        return names

    def _name_offsets(self) -> list[int]:
        header = self.header
        end = header.limit - (header.limit - header.records) % 4
        skip = self._layout.name // 4
        with (
            memoryview(self.image.data) as whole,
            whole[header.records : end] as part,
            part.cast("I") as words,
        ):
            # The rows' offsets were checked to leave room for a whole record.
            return [words[(record >> 2) + skip] for record in self._records]

    def data_offsets(self, index: int) -> list[int]:
        """Return the FUNCDATA of that number of all rows, all ones for none (since Go 1.18).

        Raises ElfError.
        """
        header, layout = self.header, self._layout
        end = header.limit - (header.limit - header.records) % 4
        counts, after = layout.tables // 4 + 2, layout.size // 4
        with (
            memoryview(self.image.data) as whole,
            whole[header.records : end] as part,
            part.cast("I") as words,
        ):
            try:
                return [
                    # The number of FUNCDATA is the record's last byte, on a little-endian machine.
                    words[at + after + words[at + counts] + index]
                    if words[at + after - 1] >> 24 > index
                    else _NO_DATA
                    for at in (record >> 2 for record in self._records)
                ]
            except IndexError:
                damaged = "damaged rows in the Go function table"
                raise ElfError(f"{self.image.display}: {damaged}") from None

    def value_offsets(self, index: int) -> list[int]:
        """Return the file offset of the PCDATA table of that number of all rows, zero for none.

        Raises ElfError.
        """
        header, layout = self.header, self._layout
        end = header.limit - (header.limit - header.records) % 4
        count, table, base = layout.tables // 4 + 2, layout.size // 4 + index, header.pc_values
        with (
            memoryview(self.image.data) as whole,
            whole[header.records : end] as part,
            part.cast("I") as words,
        ):
            try:
                tables = [
                    words[at + table] if words[at + count] > index else 0
                    for at in (record >> 2 for record in self._records)
                ]
            except IndexError:
                damaged = "damaged rows in the Go function table"
                raise ElfError(f"{self.image.display}: {damaged}") from None
        return [table and base + table for table in tables]

    def first_files(self) -> list[str | None]:
        """Return the source file of each row's first instruction, None for those of no known one.

        Those that are hard to read are left to ``source_file``, as is what is damaged: None.
        """
        header, layout, data = self.header, self._layout, self.image.data
        if header.format is PclntabFormat.GO_1_2:
            return [None] * len(self)
        end = header.limit - (header.limit - header.records) % 4
        table, base = layout.tables // 4, header.pc_values
        found: list[str | None] = []
        with (
            memoryview(data) as whole,
            whole[header.records : end] as part,
            part.cast("I") as words,
        ):
            for record in self._records:
                at = (record >> 2) + table
                # A table of files begins with twice the first number and two: see pcvalue.
                place = base + words[at]
                first = data[place] if base < place < header.limit - 1 else 0
                if first & 0x80:
                    first = first & 0x7F | data[place + 1] << 7
                if first & 1 or not first or first >= 1 << 14:
                    found.append(None)
                    continue
                unit = header.units + 4 * (words[at + 3] + (first >> 1) - 1)
                if unit + 4 > header.limit:
                    found.append(None)
                    continue
                (name,) = _WORD.unpack_from(data, unit)
                found.append(self.files_at.get(name) or self._file_if_any(name))
        return found

    def _file_if_any(self, place: int) -> str | None:
        try:
            return _file_at(self, place)
        except ElfError:
            return None

    def name_at(self, offset: int) -> str:
        """Return the name at an offset in the name table, as inline trees refer to it."""
        known = self._names_at.get(offset)
        if known is not None:
            return known
        header = self.header
        start = header.names + offset
        limit = min(header.limit, start + _MAX_NAME)
        end = self.image.data.find(b"\0", start, limit) if offset >= 0 else -1
        if end < 0:
            raise ElfError(f"{self.image.display}: damaged names in the Go function table")
        name = str(self.image.data[start:end], "utf-8", "backslashreplace")
        self._budget -= end - start
        if self._budget > 0:
            self._names_at[offset] = name
        return name

    def record(self, row: int) -> FunctionRecord:
        """Read one function's record."""
        layout, header = self._layout, self.header
        start = header.records + self._records[row]
        fields = layout.fields.unpack_from(self.image.data, start + layout.tables)
        files, lines, value_tables = fields[:3]
        data_tables = start + layout.size + 4 * value_tables
        if self.has_pointers:
            data_tables += -(data_tables - header.start + header.address) % 8
        base = header.pc_values
        return FunctionRecord(
            files and base + files,
            lines and base + lines,
            fields[3] if len(fields) > 4 else 0,
            fields[4] if len(fields) > 5 else 0,
            start + layout.size,
            value_tables,
            data_tables,
            fields[-1],
        )

    def arguments_size(self, row: int) -> int | None:
        """Return ``_func.args``: the bytes of stack that arguments and results take.

        None for functions of which it is not known (abi.ArgsSizeUnknown), and rows beyond.
        """
        if row >= len(self):
            return None
        start = self.header.records + self._records[row] + self._layout.name + 4
        (size,) = _SIGNED.unpack_from(self.image.data, start)
        return size if size >= 0 else None

    def stack_delta(self, row: int, offset: int) -> int | None:
        """Return how many bytes SP is below the return address at an instruction.

        ``offset`` is counted from the function's entry. None where the table does not say it.
        """
        start = self.header.records + self._records[row] + self._layout.tables - 4
        (table,) = _WORD.unpack_from(self.image.data, start)
        if not table:
            return None
        delta = value_at(
            self.image.data, self.header.pc_values + table, self.header.quantum, offset
        )
        return delta if delta >= 0 else None

    def marks(self, row: int) -> FunctionMarks:
        """Return the linker's marks of the function; up to Go 1.16 it has none."""
        at = self.header.records + self._records[row] + self._layout.size - 3
        return FunctionMarks(self.image.data[at] & _KNOWN_MARKS)

    def is_wrapper_id(self, function_id: int) -> bool:
        """Return whether a FuncID is FuncIDWrapper."""
        return function_id == self._wrapper_id != _NORMAL

    def is_marked_wrapper(self, row: int) -> bool:
        """Return whether the function's FuncID is FuncIDWrapper.

        Its number differs by release. It has been the last one since Go 1.12, and every binary
        has wrappers in the runtime.
        """
        return self.is_wrapper_id(self._function_id(row))

    @cached_property
    def _wrapper_id(self) -> int:
        # The rows' offsets were checked to leave room for a whole record.
        start = self.header.records + self._layout.size - 4
        with memoryview(self.image.data) as whole, whole[start : self.header.limit] as part:
            return max(map(part.__getitem__, self._records))

    def _function_id(self, row: int) -> int:
        return self.image.data[self.header.records + self._records[row] + self._layout.size - 4]

    def value_table(self, record: FunctionRecord, index: int) -> int:
        """Return the file offset of a function's PCDATA table, zero when it has none."""
        if index >= record.value_table_count:
            return 0
        offset = self.word(record.value_tables + 4 * index)
        return offset and self.header.pc_values + offset

    def word(self, offset: int) -> int:
        """Return the 32-bit word at a file offset in the table; ElfError outside of it."""
        if offset + 4 > self.header.limit:
            raise ElfError(f"{self.image.display}: damaged rows in the Go function table")
        value: int = _WORD.unpack_from(self.image.data, offset)[0]
        return value


def load_rows(image: ElfImage) -> FunctionRows | None:
    """Read an image's pclntab rows; None when it has no pclntab.

    Raise ElfError when the table is damaged, or when its addresses cannot be confirmed: a probe
    at a wrong address would destroy the traced program.
    """
    header = find_pclntab(image)
    if header is None:
        return None
    module = find_module_data(image, header)
    entries, records = _read_rows(image, header, module)
    damaged = f"{image.display}: the Go function table is damaged"
    last_record = header.limit - header.records - _LAYOUTS[header.format].size
    if max(records) > last_record or reduce(or_, records) & 3:
        raise ElfError(f"{damaged}: a function's record is outside of it")
    if not all(map(le, entries, islice(entries, 1, None))):
        raise ElfError(f"{damaged}: functions are not in order of address")
    if not image.executable(entries[0], entries[-1] - entries[0]):
        raise ElfError(f"{damaged}: functions are outside of the executable segments")
    if module is not None and (module.first_pc, module.last_pc) != (entries[0], entries[-1]):
        raise ElfError(f"{damaged}: its addresses are not those of the runtime's module data")
    return FunctionRows(image, header, module, entries, records)


def _read_rows(
    image: ElfImage, header: PclntabHeader, module: ModuleData | None
) -> tuple[array[int], array[int]]:
    """Return (entry addresses with the end address after them, offsets of records)."""
    if not header.format.relative_entries:
        words = array("Q", image.read_relocated(header.rows_address, header.rows_size))
        return words[0::2], words[1::2]
    text_start = _text_start(image, header, module)
    words = array("I", image.read(header.rows_address, header.rows_size))
    return array("Q", [text_start + offset for offset in words[0::2]]), words[1::2]


def _text_start(image: ElfImage, header: PclntabHeader, module: ModuleData | None) -> int:
    """Return the address that entries are counted from, confirmed by two sources that agree.

    The header has it in Go 1.18 to 1.25, module data and the symbol ``runtime.text`` always.
    """
    symbol = symbol_value(image, "runtime.text")
    claims = {
        "its header": header.text_start or None,
        "module data": None if module is None else module.text,
        "symbol runtime.text": symbol,
    }
    known = {source: value for source, value in claims.items() if value is not None}
    if len(set(known.values())) > 1:
        said = ", ".join(f"{value:#x} in {source}" for source, value in known.items())
        raise ElfError(
            f"{image.display}: the start of the text is {said}: "
            f"refusing to guess where the functions are"
        )
    if module is None and symbol is None:
        raise ElfError(
            f"{image.display}: no module data for the Go function table: "
            f"cannot be certain where the functions are"
        )
    return next(iter(known.values()))


#: Linux's PATH_MAX: no source file has a longer name.
_MAX_FILE_NAME = 4096
#: The largest programs at hand have 20,000 source files.
_MAX_FILES = 1 << 16
_NO_FILE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in the source, as the binary does (``-trimpath`` shortens paths)."""

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
        file = _file_name(rows, record, number)
        places.append(None if file is None or line < 0 else SourceLine(file, line))
    return places


def source_file(rows: FunctionRows, record: FunctionRecord, offset: int) -> str | None:
    """Return the source file of the instruction ``offset`` bytes into a function."""
    if not record.files:
        return None
    data = rows.image.data
    if offset == 0:
        return _file_name(rows, record, first_value(data, record.files))
    return _file_name(rows, record, value_at(data, record.files, rows.header.quantum, offset))


def _file_name(rows: FunctionRows, record: FunctionRecord, number: int) -> str | None:
    """Return the file of a number in a function's table of files; None for "no file"."""
    if number < 0:
        return None
    return _file_at(rows, rows.word(rows.header.units + 4 * (record.unit + number)))


def _file_at(rows: FunctionRows, place: int) -> str | None:
    """Return the file whose name is at a place in the table of files; None for "no file"."""
    if place == _NO_FILE:
        return None
    header = rows.header
    known = rows.files_at.get(place)
    if known is not None:
        return known
    start = header.files + place
    if start >= header.limit:
        raise ElfError(f"{rows.image.display}: damaged file names in the Go function table")
    name = string_at(rows.image.data, start, min(header.limit, start + _MAX_FILE_NAME))
    if len(rows.files_at) < _MAX_FILES:
        rows.files_at[place] = name
    return name
