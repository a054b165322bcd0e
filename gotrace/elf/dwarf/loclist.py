# SPDX-License-Identifier: Apache-2.0
"""Where a variable is when its function is entered.

Location expressions: DWARF 5, sections 2.5 and 2.6, restricted to what Go's compiler emits for
variables (src/cmd/compile/internal/dwarfgen/dwarf.go and ssa/debug.go): registers, offsets from
the frame base, which is the canonical frame address, and pieces of these.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gotrace.records import dataclass

if TYPE_CHECKING:
    from gotrace.elf.dwarf.units import Die, Unit, UnitTable


@dataclass(frozen=True, slots=True)
class LocationAttribute:
    """A location attribute: an expression, or the offset of a list of them.

    Exactly one is set. ``list_offset`` is an offset in .debug_loc (.debug_loclists in DWARF 5).
    """

    expression: bytes | None = None
    list_offset: int | None = None


class PieceKind(enum.Enum):
    """The meaning of a piece's number."""

    REGISTER = "register"
    FRAME = "frame"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LocationPiece:
    """Where a part of a variable is; parts follow one another in the order of the value's bytes.

    ``number`` is a DWARF register number, or for FRAME a byte offset from the canonical frame
    address (on amd64 the stack pointer at function entry plus 8). ``size`` in bytes; None where
    the one piece is the whole variable.
    """

    kind: PieceKind
    number: int
    size: int | None


def location_of(die: Die) -> LocationAttribute | None:
    """Return a variable's DW_AT_location, None when it has none.

    A block is an expression: Go writes DW_FORM_block1 in DWARF 5 too, where the standard, and with
    it pyelftools' LocationParser, expects DW_FORM_exprloc.
    """
    value = die.values.get("DW_AT_location")
    if isinstance(value, bytes):
        return LocationAttribute(expression=value)
    form = die.forms.get("DW_AT_location")
    if isinstance(value, int) and form in ("DW_FORM_sec_offset", "DW_FORM_loclistx"):
        return LocationAttribute(list_offset=value)
    return None


def expression_at(
    location: LocationAttribute, address: int, unit: Unit, units: UnitTable
) -> bytes | None:
    """Return the expression that holds at a link-time address, None when the list has none.

    Raise DwarfError on damaged data.
    """
    if location.expression is not None:
        return location.expression
    assert location.list_offset is not None
    for start, end, expression in units.location_list(unit, location.list_offset):
        if start <= address < end:
            return expression
    return None


def pieces_of(operations: Iterable[tuple[str, list[Any]]]) -> tuple[LocationPiece, ...] | None:
    """Return the pieces that a location expression describes, none for an empty one (nowhere).

    ``operations`` are DW_OP_* names with their operands. Return None for an expression with other
    operations than Go's: its meaning is not known.
    """
    pieces: list[LocationPiece] = []
    pending: tuple[PieceKind, int] | None = None
    for name, operands in operations:
        if name == "DW_OP_piece":
            kind, number = pending or (PieceKind.MISSING, 0)
            pieces.append(LocationPiece(kind, number, operands[0]))
            pending = None
        elif pending is not None:
            return None
        elif name == "DW_OP_regx":
            pending = PieceKind.REGISTER, operands[0]
        elif name.startswith("DW_OP_reg") and name[9:].isdecimal():
            pending = PieceKind.REGISTER, int(name[9:])
        elif name == "DW_OP_fbreg":
            pending = PieceKind.FRAME, operands[0]
        elif name == "DW_OP_call_frame_cfa":
            pending = PieceKind.FRAME, 0
        else:
            return None
    if pending is not None:
        if pieces:
            return None
        pieces.append(LocationPiece(*pending, None))
    return tuple(pieces)
