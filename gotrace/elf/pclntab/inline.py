# SPDX-License-Identifier: Apache-2.0
"""Read the inline trees: which functions were inlined into which, and where.

Sources: ``runtime/symtabinl.go`` (Go 1.21 to 1.27) and ``runtime/symtab.go`` (Go 1.15 to 1.20),
type inlinedCall. A tree is an array of records without a length; a function's PCDATA table 2
gives the record that an instruction belongs to, -1 for the function's own code. ``parentPc`` in
a record is an instruction whose position is the call site; in all releases at hand it leads to
the record of the calling frame, so the older records' own parent, file and line are not needed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from gotrace.elf import ElfError
from gotrace.elf.pclntab.arginfo import FUNCDATA_ARGUMENTS, parse_shapes
from gotrace.elf.pclntab.functab import (
    FunctionRecord,
    FunctionRows,
    SourceLine,
    source_line,
    source_lines,
)
from gotrace.elf.pclntab.header import PclntabFormat
from gotrace.elf.pclntab.pcvalue import first_value, runs_within, value_at
from gotrace.records import dataclass

PCDATA_INLINE_TREE = 2

#: The runtime's register maps took a number before the inline tree until Go 1.15.
_FUNCDATA_INLINE_TREE = {PclntabFormat.GO_1_2: 4}
_DEFAULT_FUNCDATA_INLINE_TREE = 3

_ENTRY = struct.Struct("<ii")
_NAME = struct.Struct("<i")
_START_LINE = 12  # bytes into a record since Go 1.20
_NO_DATA = 0xFFFFFFFF
_NOWHERE = SourceLine("?", 0)

#: The largest functions at hand have some ten thousand runs of inlined instructions.
_MAX_RUNS = 1 << 20

#: How many trees must make sense before a base address for all of them is believed.
_SAMPLES = 32

#: So few names are searched for; of more, each name in the trees is looked up among them.
_MAX_SEARCHED = 8
#: In so many places of a file their offsets are looked for: beyond, all trees are read.
_MAX_PLACES = 1 << 14


@dataclass(frozen=True, slots=True)
class InlinedCall:
    """The inlining of ``name`` where ``caller`` calls it, at ``file:line``.

    ``row`` is the function whose code it ended up in, ``index`` the number of its record in that
    one's tree; ``caller`` may itself be inlined there.
    """

    name: str
    caller: str
    file: str
    line: int
    row: int
    index: int = -1


@dataclass(frozen=True, slots=True)
class InlinedFrame:
    """One logical frame of an instruction; ``is_wrapper``: the compiler made the function up."""

    name: str
    file: str
    line: int
    is_wrapper: bool


class InlinedFunction(NamedTuple):
    """A function and the line of its ``func`` keyword, zero if that is not known."""

    name: str
    start_line: int


@dataclass(frozen=True, slots=True)
class InlineTree:
    """The inline tree of one function.

    ``ends`` and ``indices`` are the runs of its instructions, by the offset after each, and the
    record that they belong to. ``marks`` are the offsets of the instructions that stand for the
    beginning of each record's call.
    """

    ends: list[int]
    indices: list[int]
    marks: dict[int, int]

    def index_at(self, offset: int) -> int:
        """Return the record of an instruction, -1 for the function's own code."""
        run = bisect_right(self.ends, offset)
        return self.indices[run] if run < len(self.indices) else -1

    def around(self, index: int) -> list[int]:
        """Return a record and those that its call is inlined in, outwards."""
        found: list[int] = []
        while index >= 0 and index not in found:
            found.append(index)
            index = self.index_at(self.marks[index]) if index in self.marks else -1
        return found


@dataclass(frozen=True, slots=True)
class _TreeLayout:
    """The size of a record and the offsets of (name, parentPc) and of the FuncID in it."""

    size: int
    name: int
    function_id: int


class InlineTrees:
    """The inline trees of the functions of one pclntab."""

    def __init__(self, rows: FunctionRows) -> None:
        """Prepare to read; nothing is decoded until it is asked for."""
        self._rows = rows
        self._data = rows.image.data
        self._quantum = rows.header.quantum
        form = rows.header.format
        # Go 1.20 dropped the parent's index, the file and the line, and added the start line.
        self._layout = (
            _TreeLayout(16, 4, 0) if form is PclntabFormat.GO_1_20 else _TreeLayout(20, 12, 2)
        )
        self._funcdata = _FUNCDATA_INLINE_TREE.get(form, _DEFAULT_FUNCDATA_INLINE_TREE)

    def frames(self, row: int, offset: int) -> Iterator[InlinedFrame]:
        """Yield the logical frames of an instruction, innermost first.

        ``offset`` is counted from the entry of the function ``row``, which is the last frame.
        """
        record = self._rows.record(row)
        for inner, entry in self._walk(record, offset):
            place = source_line(self._rows, record, inner) or _NOWHERE
            if entry is None:
                function, is_wrapper = self._rows.names[row], self._rows.is_marked_wrapper(row)
            else:
                function = self._rows.name_at(
                    _ENTRY.unpack_from(self._data, entry + self._layout.name)[0]
                )
                is_wrapper = self._rows.is_wrapper_id(self._data[entry + self._layout.function_id])
            yield InlinedFrame(function, place.file, place.line, is_wrapper)

    def own_offset(self, record: FunctionRecord) -> int:
        """Return the offset of an instruction of a function's own.

        It is the first one, or where the code inlined there was called.
        """
        indices = self._indices(record)
        if not indices or first_value(self._data, indices) < 0:
            return 0
        return list(self._walk(record, 0))[-1][0]

    def begins_inlined(self) -> list[bool]:
        """Return of each row whether its first instruction may be of an inlined function."""
        data = self._data
        # The first byte of a table that begins with -1, as most do, is zero.
        return [
            bool(indices) and (indices >= len(data) or data[indices] != 0)
            for indices in self._rows.value_offsets(PCDATA_INLINE_TREE)
        ]

    def _walk(self, record: FunctionRecord, offset: int) -> Iterator[tuple[int, int | None]]:
        """Yield (offset of an instruction, place of the inlined function's record) outwards.

        The last one is of the function itself and has no record.
        """
        indices = self._indices(record)
        tree = self._tree(record) if indices else None
        seen: set[int] = set()
        while tree is not None:
            index = value_at(self._data, indices, self._quantum, offset)
            # Where a function's first instruction is inlined code, a call site that had no
            # instruction of its own may be given as offset zero, and the way outwards is lost
            # (seen in a package's init of Go 1.27).
            if index < 0 or index in seen:
                break
            seen.add(index)
            _, parent = self._entry(tree, index)
            yield offset, tree + index * self._layout.size
            offset = parent
        yield offset, None

    def calls(
        self, wanted: Collection[str] | None = None, rows: Iterable[int] | None = None
    ) -> Iterator[InlinedCall]:
        """Yield the inlined calls in all functions, or only those of the names ``wanted``.

        ``rows`` are the functions that these are in, None if that is not known.
        """
        names: Container[int] | None = None
        if wanted is not None and rows is None and len(wanted) <= _MAX_SEARCHED:
            names = found = self._offsets_of(wanted)
            rows = self._rows_with(found)
        elif wanted is not None:
            names = _NamesAmong(self._rows, wanted)
        if rows is None:
            rows = range(len(self._rows))
        for row in rows:
            yield from self.calls_in(row, names)

    def _rows_with(self, names: Collection[int]) -> Iterable[int]:
        """Return, in order, the rows in whose trees one of the names may be, by their offsets.

        Few places in a file hold those four bytes, and most of these are in records of trees: that
        is found sooner than all trees are read.
        """
        rows = self._rows
        if rows.has_pointers or self._base is None:
            return range(len(rows))
        places = []
        end = rows.image.file_end_of(rows.image.address_of(self._base))
        for name in names:
            needle = _NAME.pack(name)
            place = self._data.find(needle, self._base, end)
            while place >= 0:
                places.append(place - self._layout.name - self._base)
                if len(places) > _MAX_PLACES:  # such as the name at zero
                    return range(len(rows))
                place = self._data.find(needle, place + 1, end)
        if not places:
            return ()
        by_tree: dict[int, list[int]] = {}
        for row, tree in enumerate(rows.data_offsets(self._funcdata)):
            by_tree.setdefault(tree, []).append(row)
        starts = sorted(by_tree)
        found: set[int] = set()
        for place in places:
            before = bisect_right(starts, place) - 1
            if before >= 0 and (place - starts[before]) % self._layout.size == 0:
                found.update(by_tree[starts[before]])
        return sorted(found)

    def name_offsets(self) -> Iterator[tuple[int, int]]:
        """Yield (row, offset of the function's name) of all inlined calls, in order of rows."""
        entries = self._rows.entries
        data, quantum = self._data, self._quantum
        for row, (indices, tree) in enumerate(self._tables()):
            if indices and tree is not None:
                size = entries[row + 1] - entries[row]
                for index in set(runs_within(data, indices, quantum, size, _MAX_RUNS)[1]):
                    if index >= 0:
                        yield row, self._entry(tree, index)[0]

    def _tables(self) -> Iterator[tuple[int, int | None]]:
        """Yield the file offsets of each row's table of tree indices, zero for none, and tree."""
        rows, base = self._rows, self._base
        if rows.has_pointers or base is None:
            for row in range(len(rows)):
                record = rows.record(row)
                indices = self._indices(record)
                yield indices, self._tree(record) if indices else None
            return
        places = zip(
            rows.value_offsets(PCDATA_INLINE_TREE), rows.data_offsets(self._funcdata), strict=True
        )
        for indices, tree in places:
            yield indices, None if tree == _NO_DATA else base + tree

    def name_at(self, offset: int) -> str:
        return self._rows.name_at(offset)

    def calls_in(self, row: int, wanted: Container[int] | None = None) -> Iterator[InlinedCall]:
        """Yield the inlined calls in one function, or those of names at the offsets ``wanted``."""
        rows = self._rows
        record = rows.record(row)
        place = self._place(record)
        if place is None:
            return
        tree = self._read(row, record, place)
        entries = []
        for index, parent in tree.marks.items():
            name, _ = self._entry(place, index)
            if wanted is None or name in wanted:
                entries.append((parent, name, index))
        if not entries:
            return
        entries.sort()
        places = source_lines(rows, record, [parent for parent, _, _ in entries])
        for (parent, name, index), line in zip(entries, places, strict=True):
            outer = tree.index_at(parent)
            caller = rows.names[row] if outer < 0 else rows.name_at(self._entry(place, outer)[0])
            line = line or _NOWHERE
            yield InlinedCall(rows.name_at(name), caller, line.file, line.line, row, index)

    def called_in(self, row: int) -> Iterator[str]:
        """Yield the functions that one function's own code calls and that are inlined there."""
        record = self._rows.record(row)
        place = self._place(record)
        if place is None:
            return
        tree = self._read(row, record, place)
        for index, parent in tree.marks.items():
            if tree.index_at(parent) < 0:
                yield self._rows.name_at(self._entry(place, index)[0])

    def tree(self, row: int) -> InlineTree | None:
        """Return a function's tree, None if no call is inlined in it."""
        record = self._rows.record(row)
        place = self._place(record)
        return None if place is None else self._read(row, record, place)

    def functions(self, row: int) -> dict[int, InlinedFunction]:
        """Return the function of each record of a tree; lines are known since Go 1.20."""
        record = self._rows.record(row)
        place = self._place(record)
        if place is None:
            return {}
        has_lines = self._rows.header.format is PclntabFormat.GO_1_20
        found: dict[int, InlinedFunction] = {}
        for index in self._read(row, record, place).marks:
            name, _ = self._entry(place, index)
            at = place + index * self._layout.size + _START_LINE
            line = _NAME.unpack_from(self._data, at)[0] if has_lines else 0
            found[index] = InlinedFunction(self._rows.name_at(name), line)
        return found

    def _place(self, record: FunctionRecord) -> int | None:
        return self._tree(record) if self._indices(record) else None

    def _read(self, row: int, record: FunctionRecord, place: int) -> InlineTree:
        ends, values = self._runs(row, self._indices(record))
        marks: dict[int, int] = {}
        tree = InlineTree(ends, values, marks)
        todo = {index for index in values if index >= 0}
        while todo:  # also those of which only what is inlined in them is left
            index = todo.pop()
            _, marks[index] = self._entry(place, index)
            outer = tree.index_at(marks[index])
            if outer >= 0 and outer not in marks:
                todo.add(outer)
        return tree

    def _runs(self, row: int, indices: int) -> tuple[list[int], list[int]]:
        """Return a function's (end offsets, tree indices) of runs of instructions."""
        size = self._rows.entries[row + 1] - self._rows.entries[row]
        return runs_within(self._data, indices, self._quantum, size, _MAX_RUNS)

    def _entry(self, tree: int, index: int) -> tuple[int, int]:
        """Return (offset of the name, parentPc) of a tree's record."""
        try:
            name, parent = _ENTRY.unpack_from(
                self._data, tree + index * self._layout.size + self._layout.name
            )
        except struct.error:
            raise ElfError(
                f"{self._rows.image.display}: an inline tree runs out of the file"
            ) from None
        return name, parent

    def _indices(self, record: FunctionRecord) -> int:
        """Return the file offset of the table of tree indices, zero without one."""
        if record.data_table_count <= self._funcdata:
            return 0
        return self._rows.value_table(record, PCDATA_INLINE_TREE)

    def _tree(self, record: FunctionRecord) -> int | None:
        """Return the file offset of a function's tree, None when there is none to be read."""
        return self._data_place(record, self._funcdata, self._base)

    def arguments_place(self, record: FunctionRecord) -> int | None:
        """Return the file offset of the shapes of a function's arguments, None if it has none.

        Raises ElfError if they are nowhere to be found.
        """
        place = self._data_place(record, FUNCDATA_ARGUMENTS, self._shapes_base)
        if place is None and self._data_place(record, FUNCDATA_ARGUMENTS, 0) is not None:
            raise ElfError(f"{self._rows.image.display}: no module data leads to arguments' shapes")
        return place

    def _data_place(self, record: FunctionRecord, index: int, base: int | None) -> int | None:
        """Return the file offset of a function's FUNCDATA of a number, None if it has none."""
        rows = self._rows
        if index >= record.data_table_count:
            return None
        if rows.has_pointers:
            place = record.data_tables + 8 * index - rows.header.start
            (pointer,) = struct.unpack(
                "<Q", rows.image.read_relocated(rows.header.address + place, 8)
            )
            return rows.image.offset_of(pointer) if pointer else None
        if base is None:
            return None
        offset = rows.word(record.data_tables + 4 * index)
        return None if offset == _NO_DATA else base + offset

    @cached_property
    def _shapes_base(self) -> int | None:
        """Return the same as ``_base``, also if nothing is inlined in the program."""
        return self._base if self._base is not None else self._find_base(self._has_shapes)

    def _has_shapes(self, base: int) -> bool:
        """Return whether the first shapes of arguments make sense where ``base`` puts them."""
        seen = 0
        for row in range(len(self._rows)):
            place = self._data_place(self._rows.record(row), FUNCDATA_ARGUMENTS, base)
            if place is None:
                continue
            if parse_shapes(self._data, place) is None:
                return False
            seen += 1
            if seen == 2 * _SAMPLES:
                break
        return seen > 0

    @cached_property
    def _base(self) -> int | None:
        """Return the file offset that function data is counted from; None when it is not found.

        Its place in module data moved in Go 1.20 and 1.27, and the build information that would
        name the release may be missing: so what is found there is tried, not believed.
        """
        return self._find_base(self._makes_sense)

    def _find_base(self, makes_sense: Callable[[int], bool]) -> int | None:
        rows = self._rows
        for address in rows.module.function_data if rows.module else ():
            try:
                base = rows.image.offset_of(address)
                if makes_sense(base):
                    return base
            except ElfError:
                continue
        return None

    def _makes_sense(self, base: int) -> bool:
        """Return whether the first trees have names and call sites where ``base`` puts them."""
        rows = self._rows
        seen = named = 0
        for row in range(len(rows)):
            record = rows.record(row)
            indices = self._indices(record)
            if not indices:
                continue
            offset = rows.word(record.data_tables + 4 * self._funcdata)
            if offset == _NO_DATA:
                continue
            size = rows.entries[row + 1] - rows.entries[row]
            for index in set(self._runs(row, indices)[1]):
                if index >= 0:
                    name, parent = self._entry(base + offset, index)
                    if not (0 <= parent < size and self._is_name(name)):
                        return False
                    named += name > 0
            seen += 1
            if seen == _SAMPLES:
                break
        # The name at zero is one like others, but a place that has zeros only is not a tree.
        return named > 0

    def _is_name(self, offset: int) -> bool:
        before = self._rows.header.names + offset - 1
        return offset == 0 or (
            offset > 0 and before < self._rows.header.limit and self._data[before] == 0
        )

    def _offsets_of(self, names: Collection[str]) -> set[int]:
        """Return the offsets of names in the name table, which may hold one more than once."""
        header = self._rows.header
        offsets = set()
        for name in names:
            needle = name.encode("utf-8", "surrogateescape") + b"\0"
            if self._data[header.names : header.names + len(needle)] == needle:
                offsets.add(0)
            needle = b"\0" + needle
            position = self._data.find(needle, header.names, header.limit)
            while position >= 0:
                offsets.add(position + 1 - header.names)
                position = self._data.find(needle, position + 1, header.limit)
        return offsets


class _NamesAmong:
    """The offsets in the name table where one of many names is."""

    def __init__(self, rows: FunctionRows, names: Collection[str]) -> None:
        self._rows = rows
        self._names = frozenset(names)
        self._known: dict[int, bool] = {}

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        known = self._known.get(offset)
        if known is None:
            known = self._known[offset] = self._rows.name_at(offset) in self._names
        return known


class InlinedCalls:
    """All inlined calls of a binary by the name of the inlined function.

    Counting them takes one pass over the trees; their source lines, which take longer, are read for
    one caller after the other, when they are asked for.
    """

    def __init__(self, trees: InlineTrees) -> None:
        self._trees = trees
        self._calls: dict[int, dict[str, list[InlinedCall]]] = {}
        rows: dict[int, list[int]] = {}
        for row, offset in trees.name_offsets():
            rows.setdefault(offset, []).append(row)
        #: The rows that calls of a name are in, one entry for each call, ascending.
        self._rows: dict[str, list[int]] = {}
        for offset, found in rows.items():
            name = trees.name_at(offset)
            # A table may hold a name twice.
            self._rows[name] = sorted(self._rows[name] + found) if name in self._rows else found

    @property
    def names(self) -> list[str]:
        """Return the names of all functions that are inlined anywhere."""
        return list(self._rows)

    def count(self, name: str) -> int:
        """Return in how many places a function is inlined."""
        return len(self._rows.get(name, ()))

    def rows(self, name: str) -> frozenset[int]:
        """Return the rows of the functions that a function is inlined in."""
        return frozenset(self._rows.get(name, ()))

    def of(self, name: str) -> Iterator[InlinedCall]:
        """Yield a function's inlined calls, by the address of the code they ended up in."""
        for row in dict.fromkeys(self._rows.get(name, ())):
            if row not in self._calls:
                by_name: dict[str, list[InlinedCall]] = {}
                for call in self._trees.calls_in(row):
                    by_name.setdefault(call.name, []).append(call)
                self._calls[row] = by_name
            yield from self._calls[row][name]
