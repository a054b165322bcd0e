"""Find units: by the offset of an entry, and by the address of code."""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Iterator

from gotrace.elf.dwarf_constants import ADDRESS_INDEX_FORMS, Attr, Form
from gotrace.elf.dwarf_die import (
    Abbreviation,
    Die,
    DwarfError,
    Unit,
    parse_abbreviations,
    parse_unit_header,
    read_die,
    read_uleb,
)
from gotrace.elf.dwarf_sections import DwarfSections

__all__ = ["UnitTable"]

#: Go makes one unit a package; the largest programs at hand have some thousand.
_MAX_UNITS = 1 << 17


class UnitTable:
    """Hold the units of .debug_info; Go emits one for each package.

    Methods raise DwarfError, struct.error or IndexError on damaged data.
    """

    def __init__(self, sections: DwarfSections) -> None:
        """Read all unit headers, which is cheap; no entry is decoded yet."""
        self._sections = sections
        self._tables: dict[int, dict[int, Abbreviation]] = {}
        self._ready: set[int] = set()
        info = sections.get("info")
        self.units: list[Unit] = []
        offset = 0
        while offset < len(info):
            if len(self.units) == _MAX_UNITS:
                raise DwarfError(f"more than {_MAX_UNITS} units of debugging information")
            unit = parse_unit_header(info, offset)
            self.units.append(unit)
            offset = unit.end
        self._offsets = [unit.offset for unit in self.units]

    def containing(self, offset: int) -> Unit:
        """Return the unit that holds the entry at ``offset``, ready for decoding."""
        row = bisect.bisect_right(self._offsets, offset) - 1
        if row < 0 or not self.units[row].first_die <= offset < self.units[row].end:
            raise DwarfError(f"no unit holds the entry at {offset:#x}")
        return self._prepare(self.units[row])

    def covering(self, address: int) -> Unit | None:
        """Return the unit whose code holds a link-time address, None when there is none."""
        starts, rows = self._by_address
        row = bisect.bisect_right(starts, address) - 1
        if row < 0:
            return None
        end, unit = rows[row]
        return unit if address < end else None

    def address(self, die: Die, attribute: int) -> int | None:
        """Return an attribute's address, by index (DWARF 5) or not; None when it is absent."""
        value = die.values.get(attribute)
        if value is None or not isinstance(value, int):
            return None
        if die.forms[attribute] in ADDRESS_INDEX_FORMS:
            return self.indexed_address(die.unit, value)
        return value

    def indexed_address(self, unit: Unit, index: int) -> int:
        """Return entry ``index`` of the unit's part of .debug_addr."""
        position = unit.addr_base + index * unit.address_size
        data = self._sections.get("addr")[position : position + unit.address_size]
        if len(data) != unit.address_size:
            raise DwarfError(f"address index {index} is outside of .debug_addr")
        return int.from_bytes(data, "little")

    def _prepare(self, unit: Unit) -> Unit:
        """Read a unit's abbreviations and base attributes once."""
        if unit.offset in self._ready:
            return unit
        table = self._tables.get(unit.abbreviation_offset)
        if table is None:
            table = parse_abbreviations(self._sections.get("abbrev"), unit.abbreviation_offset)
            self._tables[unit.abbreviation_offset] = table
        unit.abbreviations = table
        top = read_die(self._sections.get("info"), unit, unit.first_die)
        if top is not None:
            unit.addr_base = top.values.get(Attr.ADDR_BASE, 0)
            unit.str_offsets_base = top.values.get(Attr.STR_OFFSETS_BASE, 0)
            unit.loclists_base = top.values.get(Attr.LOCLISTS_BASE, 0)
            unit.rnglists_base = top.values.get(Attr.RNGLISTS_BASE, 0)
            unit.low_pc = self.address(top, Attr.LOW_PC) or 0
        self._ready.add(unit.offset)
        return unit

    @functools.cached_property
    def _by_address(self) -> tuple[list[int], list[tuple[int, Unit]]]:
        spans: list[tuple[int, int, Unit]] = []
        for unit in self.units:
            try:
                spans += [(start, end, unit) for start, end in self._unit_spans(unit)]
            except (DwarfError, IndexError, struct.error):
                # It hides its own functions only: C compilers have forms that are not known here.
                continue
        spans.sort(key=lambda span: span[:2])
        return [start for start, _, _ in spans], [(end, unit) for _, end, unit in spans]

    def _unit_spans(self, unit: Unit) -> list[tuple[int, int]]:
        top = read_die(self._sections.get("info"), self._prepare(unit), unit.first_die)
        if top is None:
            return []
        return [(start, end) for start, end in self._spans(top) if start < end]

    def _spans(self, top: Die) -> Iterator[tuple[int, int]]:
        ranges = top.values.get(Attr.RANGES)
        if ranges is not None:
            if top.unit.version < 5:
                yield from self._ranges_4(top.unit, ranges)
            else:
                yield from self._ranges_5(top.unit, ranges, top.forms[Attr.RANGES])
            return
        low = self.address(top, Attr.LOW_PC)
        high = top.values.get(Attr.HIGH_PC)
        if low is not None and isinstance(high, int):
            yield low, high if top.forms[Attr.HIGH_PC] == Form.ADDR else low + high

    def _ranges_4(self, unit: Unit, offset: int) -> Iterator[tuple[int, int]]:
        """Decode a list of .debug_ranges (DWARF 4, section 2.17.3)."""
        data = self._sections.get("ranges")
        pair = struct.Struct("<QQ" if unit.address_size == 8 else "<II")
        selector = (1 << 8 * unit.address_size) - 1
        base = unit.low_pc
        for start, end in pair.iter_unpack(data[offset : offset + _whole(data, offset, pair.size)]):
            if start == end == 0:
                return
            if start == selector:
                base = end
            else:
                yield base + start, base + end

    def _ranges_5(self, unit: Unit, offset: int, form: int) -> Iterator[tuple[int, int]]:
        """Decode a list of .debug_rnglists (DWARF 5, section 7.25)."""
        data = self._sections.get("rnglists")
        if form == Form.RNGLISTX:
            at = unit.rnglists_base + offset * unit.offset_size
            slot = data[at : at + unit.offset_size]
            offset = unit.rnglists_base + int.from_bytes(slot, "little")
        base, pos, size = unit.low_pc, offset, unit.address_size

        def address(at: int) -> tuple[int, int]:
            return int.from_bytes(data[at : at + size], "little"), at + size

        def indexed(at: int) -> tuple[int, int]:
            index, at = read_uleb(data, at)
            return self.indexed_address(unit, index), at

        while True:
            kind = data[pos]
            pos += 1
            if kind == 0:  # DW_RLE_end_of_list
                return
            if kind in (1, 5):  # base_addressx, base_address
                base, pos = indexed(pos) if kind == 1 else address(pos)
                continue
            if kind in (2, 3):  # startx_endx, startx_length
                start, pos = indexed(pos)
            elif kind in (6, 7):  # start_end, start_length
                start, pos = address(pos)
            elif kind == 4:  # offset_pair
                start, pos = read_uleb(data, pos)
                start += base
            else:
                raise DwarfError(f"range list entry of unknown kind {kind}")
            if kind == 2:
                end, pos = indexed(pos)
            elif kind == 6:
                end, pos = address(pos)
            else:
                end, pos = read_uleb(data, pos)
                end += base if kind == 4 else start
            yield start, end


def _whole(data: bytes, offset: int, size: int) -> int:
    """Return how many bytes from ``offset`` on make whole entries of ``size``."""
    return max(len(data) - offset, 0) // size * size
