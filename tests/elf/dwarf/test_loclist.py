# SPDX-License-Identifier: Apache-2.0
"""Decode location expressions and lists written by hand, byte by byte, after the DWARF standard."""

from __future__ import annotations

import struct

import pytest

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.loclist import (
    LocationAttribute,
    LocationPiece,
    PieceKind,
    expression_at,
    pieces_of,
)
from gotrace.elf.dwarf.units import UnitTable

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
    units = table(5)
    operations = units.operations(next(iter(units)), bytes.fromhex(expression))
    assert (None if operations is None else pieces_of(operations)) == pieces


def table(version: int, **contents: bytes) -> UnitTable:
    """Return one unit with 8-byte addresses, whose code begins at 0x1000, with other sections."""
    # A compile unit without children: DW_AT_low_pc of DW_FORM_addr, DW_AT_addr_base of sec_offset.
    abbreviations = bytes.fromhex("01 11 00 1101 7317 0000 00")
    sizes = b"\x01\x08" + bytes(4) if version == 5 else bytes(4) + b"\x08"
    body = struct.pack("<H", version) + sizes + b"\x01" + struct.pack("<QI", 0x1000, 8)
    info = struct.pack("<I", len(body)) + body
    contents = {"info": info, "abbrev": abbreviations, **contents}
    return UnitTable(lambda name: contents.get(name, b""))


def expression(version: int, address: int, **contents: bytes) -> bytes | None:
    units = table(version, **contents)
    return expression_at(LocationAttribute(list_offset=0), address, next(iter(units)), units)


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
    with pytest.raises(DwarfError, match="damaged debugging information"):
        expression(5, 0x1000, loclists=b"\x63\x00")
