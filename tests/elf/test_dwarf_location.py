"""Decode location expressions and lists written by hand, byte by byte, after the DWARF standard."""

from __future__ import annotations

import struct

import pytest

from gotrace.elf.dwarf_die import DwarfError, Unit
from gotrace.elf.dwarf_location import (
    Location,
    LocationPiece,
    PieceKind,
    expression_at,
    parse_expression,
)
from gotrace.elf.dwarf_sections import DwarfSections
from gotrace.elf.dwarf_units import UnitTable

RAX, RBX, XMM0 = 0, 3, 17


def register(number: int, size: int | None = None) -> LocationPiece:
    return LocationPiece(PieceKind.REGISTER, number, size)


def frame(offset: int, size: int | None = None) -> LocationPiece:
    return LocationPiece(PieceKind.FRAME, offset, size)


def missing(size: int) -> LocationPiece:
    return LocationPiece(PieceKind.MISSING, 0, size)


@pytest.mark.parametrize(
    "expression, pieces",
    [
        pytest.param("", (), id="nowhere"),
        pytest.param("50", (register(RAX),), id="reg0"),
        pytest.param("9011", (register(XMM0),), id="regx"),
        pytest.param("9c", (frame(0),), id="call_frame_cfa"),
        pytest.param("9118", (frame(24),), id="fbreg"),
        pytest.param("91b87f", (frame(-72),), id="fbreg-negative"),
        pytest.param("509308539308", (register(RAX, 8), register(RBX, 8)), id="string"),
        pytest.param("5093089308", (register(RAX, 8), missing(8)), id="second-word-missing"),
        pytest.param("9c9308910893089110" + "9308", (frame(0, 8), frame(8, 8), frame(16, 8))),
        pytest.param("0310000000000000009f", None, id="other-operation"),
        pytest.param("5050", None, id="two-registers-without-pieces"),
        pytest.param("50930853", None, id="rest-without-piece"),
    ],
)
def test_expressions(expression: str, pieces: tuple[LocationPiece, ...] | None) -> None:
    assert parse_expression(bytes.fromhex(expression)) == pieces


class Sections(DwarfSections):
    """Give sections from memory."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents

    def get(self, name: str) -> bytes:
        return self.contents.get(name, b"")


def expression(version: int, address: int, **contents: bytes) -> bytes | None:
    unit = Unit(0, 100, 12, version, 8, 4, 0, {}, low_pc=0x1000, addr_base=8)
    sections = Sections(**contents)
    location = Location(list_offset=0)
    return expression_at(location, address, unit, UnitTable(sections), sections)


def test_list_of_dwarf_4() -> None:
    # Offsets from the unit's low_pc, then a base address, then offsets from that.
    data = b"".join(
        [
            struct.pack("<QQH", 0, 4, 1) + b"\x50",
            struct.pack("<QQ", (1 << 64) - 1, 0x2000),
            struct.pack("<QQH", 0, 8, 2) + b"\x91\x10",
            struct.pack("<QQ", 0, 0),
        ]
    )
    assert expression(4, 0x1000, loc=data) == b"\x50"
    assert expression(4, 0x1003, loc=data) == b"\x50"
    assert expression(4, 0x1004, loc=data) is None
    assert expression(4, 0x2007, loc=data) == b"\x91\x10"


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(b"\x04\x10\x20", id="offset_pair-from-low_pc"),
        pytest.param(b"\x01\x01\x04\x10\x20", id="base_addressx"),
        pytest.param(b"\x06" + struct.pack("<Q", 0x1000) + b"\x04\x10\x20", id="base_address"),
        pytest.param(b"\x02\x00\x02", id="startx_endx"),
        pytest.param(b"\x03\x00\x10", id="startx_length"),
        pytest.param(b"\x07" + struct.pack("<QQ", 0x1010, 0x1020), id="start_end"),
        pytest.param(b"\x08" + struct.pack("<Q", 0x1010) + b"\x10", id="start_length"),
    ],
)
def test_list_of_dwarf_5(entry: bytes) -> None:
    addresses = bytes(8) + struct.pack("<QQQ", 0x1010, 0x1000, 0x1020)
    data = entry + b"\x01\x53" + b"\x00"
    assert expression(5, 0x1010, loclists=data, addr=addresses) == b"\x53"
    assert expression(5, 0x101F, loclists=data, addr=addresses) == b"\x53"
    assert expression(5, 0x1020, loclists=data, addr=addresses) is None
    assert expression(5, 0x100F, loclists=data, addr=addresses) is None


def test_unknown_list_entries_are_refused() -> None:
    with pytest.raises(DwarfError, match="unknown kind 99"):
        expression(5, 0x1000, loclists=b"\x63\x00")
