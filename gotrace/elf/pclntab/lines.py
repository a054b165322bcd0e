# SPDX-License-Identifier: Apache-2.0
"""Find the functions that have code of a source file, by the file numbers of their compile units.

Each compile unit numbers its files: those of its package, and those of functions inlined there
(cmd/link/internal/ld/pcln.go, since Go 1.16).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property

from gotrace.elf.pclntab.functab import FunctionRows
from gotrace.elf.pclntab.header import PclntabFormat
from gotrace.elf.pclntab.pcvalue import runs_within

#: The largest functions at hand have some ten thousand runs of one file.
_MAX_RUNS = 1 << 20


class SourceFiles:
    """The source files of one pclntab."""

    def __init__(self, rows: FunctionRows) -> None:
        """Prepare to read; nothing is decoded until it is asked for."""
        self._rows = rows

    @cached_property
    def places(self) -> dict[str, int]:
        """Return the place of each file's name in the table of files; none before Go 1.16."""
        header = self._rows.header
        if header.format is PclntabFormat.GO_1_2:
            return {}
        found: dict[str, int] = {}
        at = 0
        for name in self._rows.image.data[header.files : header.pc_values].split(b"\0"):
            if name:
                found[str(name, "utf-8", "backslashreplace")] = at
            at += len(name) + 1
        return found

    @cached_property
    def _numbers(self) -> array[int]:
        """Return the places of files by their numbers, those of all units one after the other."""
        header = self._rows.header
        size = (header.files - header.units) // 4 * 4
        return array("I", self._rows.image.data[header.units : header.units + size])

    @cached_property
    def _units(self) -> dict[int, list[int]]:
        """Return the functions of each compile unit, by the first of its numbers."""
        found: dict[int, list[int]] = {}
        for row in range(len(self._rows)):
            found.setdefault(self._rows.record(row).unit, []).append(row)
        return found

    def rows_of(self, file: str) -> list[int]:
        """Return the functions that have code of a file."""
        if file not in self.places:
            return []
        place, units = self.places[file], sorted(self._units)
        found: list[int] = []
        for number, other in enumerate(self._numbers):
            if other == place and (before := bisect_right(units, number)):
                unit = units[before - 1]
                found += (row for row in self._units[unit] if self._has(row, number - unit))
        return sorted(found)

    def _has(self, row: int, number: int) -> bool:
        """Return whether a function has code of the file of a number."""
        rows = self._rows
        record = rows.record(row)
        if not record.files:
            return False
        size = rows.entries[row + 1] - rows.entries[row]
        data, quantum = rows.image.data, rows.header.quantum
        return number in runs_within(data, record.files, quantum, size, _MAX_RUNS)[1]
