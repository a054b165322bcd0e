"""Tell where a variable is when its function is entered.

Location expressions: DWARF 5, sections 2.5 and 2.6, restricted to what Go's compiler emits for
variables (src/cmd/compile/internal/dwarfgen/dwarf.go and ssa/debug.go): registers, offsets from
the frame base, which is the canonical frame address, and pieces of these.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections.abc import Iterator

from gotrace.elf.dwarf_die import DwarfError, Unit, read_uleb
from gotrace.elf.dwarf_sections import DwarfSections
from gotrace.elf.dwarf_units import UnitTable

__all__ = ["Location", "LocationPiece", "PieceKind", "expression_at", "parse_expression"]


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Hold a location attribute as it stands: an expression, or the place of a list of them.

    Exactly one is set. ``list_offset`` is an offset in .debug_loc (.debug_loclists in DWARF 5).
    """

    expression: bytes | None = None
    list_offset: int | None = None


class PieceKind(enum.Enum):
    """Say what the number of a piece counts."""

    REGISTER = "register"
    FRAME = "frame"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True, slots=True)
class LocationPiece:
    """Place a part of a variable; parts follow one another in the order of the value's bytes.

    ``number`` is a DWARF register number, or for FRAME a byte offset from the canonical frame
    address (on amd64 the stack pointer at function entry plus 8). ``size`` in bytes; None where
    the one piece is the whole variable.
    """

    kind: PieceKind
    number: int
    size: int | None


_OP_REG0, _OP_REG31, _OP_REGX = 0x50, 0x6F, 0x90
_OP_FBREG, _OP_PIECE, _OP_CALL_FRAME_CFA = 0x91, 0x93, 0x9C


def parse_expression(expression: bytes) -> tuple[LocationPiece, ...] | None:
    """Return the pieces of a location expression, none for an empty one (no location).

    Return None for an expression with other operations than Go's: its meaning is not known.
    """
    pieces: list[LocationPiece] = []
    pending: tuple[PieceKind, int] | None = None
    pos = 0
    while pos < len(expression):
        operation = expression[pos]
        pos += 1
        if operation == _OP_PIECE:
            size, pos = read_uleb(expression, pos)
            kind, number = pending or (PieceKind.MISSING, 0)
            pieces.append(LocationPiece(kind, number, size))
            pending = None
        elif pending is not None:
            return None
        elif _OP_REG0 <= operation <= _OP_REG31:
            pending = PieceKind.REGISTER, operation - _OP_REG0
        elif operation == _OP_REGX:
            number, pos = read_uleb(expression, pos)
            pending = PieceKind.REGISTER, number
        elif operation == _OP_FBREG:
            number, pos = _read_signed(expression, pos)
            pending = PieceKind.FRAME, number
        elif operation == _OP_CALL_FRAME_CFA:
            pending = PieceKind.FRAME, 0
        else:
            return None
    if pending is not None:
        if pieces:
            return None
        pieces.append(LocationPiece(*pending, None))
    return tuple(pieces)


def _read_signed(data: bytes, pos: int) -> tuple[int, int]:
    start = pos
    value, pos = read_uleb(data, pos)
    bits = 7 * (pos - start)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), pos


def expression_at(
    location: Location, address: int, unit: Unit, units: UnitTable, sections: DwarfSections
) -> bytes | None:
    """Return the expression that holds at a link-time address, None when the list has none.

    Raise DwarfError, struct.error or IndexError on damaged data.
    """
    if location.expression is not None:
        return location.expression
    assert location.list_offset is not None
    if unit.version < 5:
        entries = _entries_4(sections.get("loc"), location.list_offset, unit)
    else:
        entries = _entries_5(sections.get("loclists"), location.list_offset, unit, units)
    for start, end, expression in entries:
        if start <= address < end:
            return expression
    return None


def _entries_4(data: bytes, pos: int, unit: Unit) -> Iterator[tuple[int, int, bytes]]:
    """Decode a list of .debug_loc (DWARF 4, section 2.6.2)."""
    pair = struct.Struct("<QQ" if unit.address_size == 8 else "<II")
    selector = (1 << 8 * unit.address_size) - 1
    base = unit.low_pc
    while True:
        start, end = pair.unpack_from(data, pos)
        pos += pair.size
        if start == end == 0:
            return
        if start == selector:
            base = end
            continue
        (length,) = struct.unpack_from("<H", data, pos)
        pos += 2
        yield base + start, base + end, data[pos : pos + length]
        pos += length


def _entries_5(
    data: bytes, pos: int, unit: Unit, units: UnitTable
) -> Iterator[tuple[int, int, bytes]]:
    """Decode a list of .debug_loclists (DWARF 5, section 7.7.3)."""
    base, size = unit.low_pc, unit.address_size
    while True:
        kind = data[pos]
        pos += 1
        if kind == 0:  # DW_LLE_end_of_list
            return
        if kind == 1:  # base_addressx
            index, pos = read_uleb(data, pos)
            base = units.indexed_address(unit, index)
            continue
        if kind == 6:  # base_address
            base = int.from_bytes(data[pos : pos + size], "little")
            pos += size
            continue
        if kind in (2, 3):  # startx_endx, startx_length
            index, pos = read_uleb(data, pos)
            start = units.indexed_address(unit, index)
            end, pos = read_uleb(data, pos)
            end = units.indexed_address(unit, end) if kind == 2 else start + end
        elif kind == 4:  # offset_pair
            start, pos = read_uleb(data, pos)
            end, pos = read_uleb(data, pos)
            start, end = base + start, base + end
        elif kind == 7:  # start_end
            start = int.from_bytes(data[pos : pos + size], "little")
            end = int.from_bytes(data[pos + size : pos + 2 * size], "little")
            pos += 2 * size
        elif kind == 8:  # start_length
            start = int.from_bytes(data[pos : pos + size], "little")
            length, pos = read_uleb(data, pos + size)
            end = start + length
        else:
            raise DwarfError(f"location list entry of unknown kind {kind}")
        length, pos = read_uleb(data, pos)
        yield start, end, data[pos : pos + length]
        pos += length
