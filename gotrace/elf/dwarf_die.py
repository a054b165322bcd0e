"""Decode abbreviations, unit headers and single debugging information entries (DIEs).

Follows DWARF 4 and 5, sections 7.5 (format of debugging information) and 7.5.6 (forms).
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from gotrace.elf.dwarf_constants import Form, Tag
from gotrace.errors import GotraceError

__all__ = [
    "Abbreviation",
    "Die",
    "DwarfError",
    "Unit",
    "parse_abbreviations",
    "parse_unit_header",
    "read_die",
    "read_uleb",
    "subprogram_offsets",
]


class DwarfError(GotraceError):
    """Report debugging information that is damaged or of a form that is not understood."""


_FIXED_SIZE = {
    Form.DATA1: 1,
    Form.DATA2: 2,
    Form.DATA4: 4,
    Form.DATA8: 8,
    Form.DATA16: 16,
    Form.FLAG: 1,
    Form.FLAG_PRESENT: 0,
    Form.IMPLICIT_CONST: 0,
    Form.REF1: 1,
    Form.REF2: 2,
    Form.REF4: 4,
    Form.REF8: 8,
    Form.REF_SIG8: 8,
    Form.STRX1: 1,
    Form.STRX2: 2,
    Form.STRX3: 3,
    Form.STRX4: 4,
    Form.ADDRX1: 1,
    Form.ADDRX2: 2,
    Form.ADDRX3: 3,
    Form.ADDRX4: 4,
}
_OFFSET_FORMS = frozenset({Form.SEC_OFFSET, Form.STRP, Form.LINE_STRP})
_ULEB_FORMS = frozenset(
    {Form.UDATA, Form.REF_UDATA, Form.STRX, Form.ADDRX, Form.LOCLISTX, Form.RNGLISTX}
)
_UNIT_REFERENCES = frozenset({Form.REF1, Form.REF2, Form.REF4, Form.REF8, Form.REF_UDATA})
_BLOCK_LENGTH_SIZE = {Form.BLOCK1: 1, Form.BLOCK2: 2, Form.BLOCK4: 4}
_KNOWN_FORMS = frozenset(int(form) for form in Form)

# Steps of a skip plan: a positive number is a count of bytes.
_SKIP_STRING = -1
_SKIP_LEB = -2
_SKIP_BLOCK1 = -3
_SKIP_BLOCK2 = -4
_SKIP_BLOCK4 = -5
_SKIP_BLOCK = -6
_BLOCK_STEPS = {
    Form.BLOCK1: _SKIP_BLOCK1,
    Form.BLOCK2: _SKIP_BLOCK2,
    Form.BLOCK4: _SKIP_BLOCK4,
    Form.BLOCK: _SKIP_BLOCK,
    Form.EXPRLOC: _SKIP_BLOCK,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Abbreviation:
    """Hold the shape of DIEs of one code: attributes as (name, form, implicit constant)."""

    tag: int
    has_children: bool
    attributes: tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(slots=True)
class Unit:
    """Hold one unit of .debug_info: section offsets, encoding sizes, and its base attributes.

    ``offset`` is that of the header, ``first_die`` of the unit's own DIE, ``end`` exclusive.
    The bases are section offsets from the unit's DIE, filled in by the reader.
    """

    offset: int
    end: int
    first_die: int
    version: int
    address_size: int
    offset_size: int
    abbreviation_offset: int
    abbreviations: dict[int, Abbreviation]
    low_pc: int = 0
    addr_base: int = 0
    str_offsets_base: int = 0
    loclists_base: int = 0
    rnglists_base: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Die:
    """Hold one decoded DIE.

    ``values`` maps attribute to value: int for constants, flags, addresses, indices and
    references (references are section offsets), str for inline strings, bytes for blocks.
    ``forms`` maps attribute to form. ``end`` is the offset after the DIE's attributes.
    """

    offset: int
    tag: int
    has_children: bool
    values: dict[int, Any]
    forms: dict[int, int]
    end: int
    unit: Unit


def read_uleb(data: bytes, pos: int) -> tuple[int, int]:
    """Return the unsigned LEB128 number at ``pos`` and the offset after it."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise DwarfError(f"number too long at offset {pos:#x} of the debugging information")


def _read_sleb(data: bytes, pos: int) -> tuple[int, int]:
    start = pos
    value, pos = read_uleb(data, pos)
    bits = 7 * (pos - start)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), pos


def parse_abbreviations(data: bytes, offset: int) -> dict[int, Abbreviation]:
    """Return the abbreviation table at ``offset`` of .debug_abbrev by code."""
    table: dict[int, Abbreviation] = {}
    pos = offset
    while True:
        code, pos = read_uleb(data, pos)
        if code == 0:
            return table
        tag, pos = read_uleb(data, pos)
        has_children = data[pos] != 0
        pos += 1
        attributes = []
        while True:
            name, pos = read_uleb(data, pos)
            form, pos = read_uleb(data, pos)
            constant = 0
            if form == Form.IMPLICIT_CONST:
                constant, pos = _read_sleb(data, pos)
            if name == 0 and form == 0:
                break
            if form not in _KNOWN_FORMS:
                raise DwarfError(f"attribute form {form:#x} is not understood")
            attributes.append((name, form, constant))
        table[code] = Abbreviation(tag, has_children, tuple(attributes))


def parse_unit_header(info: bytes, offset: int) -> Unit:
    """Return the unit whose header is at ``offset`` of .debug_info, without abbreviations.

    Raise DwarfError for a version other than 2 to 5 or a length beyond the section.
    """
    (length,) = struct.unpack_from("<I", info, offset)
    pos = offset + 4
    offset_size = 4
    if length == 0xFFFFFFFF:
        (length,) = struct.unpack_from("<Q", info, pos)
        pos += 8
        offset_size = 8
    end = pos + length
    if length >= 0xFFFFFFF0 or end > len(info):
        raise DwarfError(f"unit at {offset:#x} reaches beyond the debugging information")
    (version,) = struct.unpack_from("<H", info, pos)
    pos += 2
    read_offset = "<Q" if offset_size == 8 else "<I"
    if version == 5:
        unit_type, address_size = info[pos], info[pos + 1]
        (abbreviation_offset,) = struct.unpack_from(read_offset, info, pos + 2)
        pos += 2 + offset_size
        # Skeleton and split units carry an 8-byte id; type units a signature and an offset.
        pos += {4: 8, 5: 8, 2: 8 + offset_size, 6: 8 + offset_size}.get(unit_type, 0)
    elif 2 <= version <= 4:
        (abbreviation_offset,) = struct.unpack_from(read_offset, info, pos)
        address_size = info[pos + offset_size]
        pos += offset_size + 1
    else:
        raise DwarfError(f"unit at {offset:#x} has DWARF version {version}, not 2 to 5")
    if address_size not in (4, 8):
        raise DwarfError(f"unit at {offset:#x} has addresses of {address_size} bytes")
    return Unit(offset, end, pos, version, address_size, offset_size, abbreviation_offset, {})


def read_die(info: bytes, unit: Unit, offset: int) -> Die | None:
    """Decode the DIE at ``offset`` of .debug_info; None for the null entry that ends a list."""
    code, pos = read_uleb(info, offset)
    if code == 0:
        return None
    abbreviation = unit.abbreviations.get(code)
    if abbreviation is None:
        raise DwarfError(f"no abbreviation {code} for the entry at {offset:#x}")
    values: dict[int, Any] = {}
    forms: dict[int, int] = {}
    for name, form, constant in abbreviation.attributes:
        value, pos = _read_value(info, pos, form, unit)
        values[name] = constant if form == Form.IMPLICIT_CONST else value
        forms[name] = form
    if pos > unit.end:
        raise DwarfError(f"entry at {offset:#x} reaches beyond its unit")
    return Die(offset, abbreviation.tag, abbreviation.has_children, values, forms, pos, unit)


def _fixed_size(form: int, unit: Unit) -> int | None:
    if form in _FIXED_SIZE:
        return _FIXED_SIZE[Form(form)]
    if form == Form.ADDR:
        return unit.address_size
    if form in _OFFSET_FORMS:
        return unit.offset_size
    if form == Form.REF_ADDR:
        return unit.address_size if unit.version == 2 else unit.offset_size
    return None


def _read_value(info: bytes, pos: int, form: int, unit: Unit) -> tuple[Any, int]:
    size = _fixed_size(form, unit)
    if size is not None:
        end = pos + size
        if form == Form.FLAG_PRESENT:
            return 1, end
        value = int.from_bytes(info[pos:end], "little")
        return (value + unit.offset if form in _UNIT_REFERENCES else value), end
    if form in _ULEB_FORMS:
        value, pos = read_uleb(info, pos)
        return (value + unit.offset if form == Form.REF_UDATA else value), pos
    if form == Form.STRING:
        end = info.find(b"\0", pos)
        if end < 0:
            raise DwarfError(f"string without an end at {pos:#x}")
        return info[pos:end].decode("utf-8", "backslashreplace"), end + 1
    if form == Form.SDATA:
        return _read_sleb(info, pos)
    length_size = _BLOCK_LENGTH_SIZE.get(Form(form))
    if length_size is None:
        length, pos = read_uleb(info, pos)
    else:
        length = int.from_bytes(info[pos : pos + length_size], "little")
        pos += length_size
    return info[pos : pos + length], pos + length


def _skip_plan(abbreviation: Abbreviation, unit: Unit) -> tuple[int, ...]:
    """Return the steps that lead over a DIE's attributes, neighbouring fixed sizes merged."""
    steps: list[int] = []
    for _, form, _ in abbreviation.attributes:
        size = _fixed_size(form, unit)
        if size is None:
            if form == Form.STRING:
                steps.append(_SKIP_STRING)
            else:
                steps.append(_BLOCK_STEPS.get(Form(form), _SKIP_LEB))
        elif steps and steps[-1] > 0:
            steps[-1] += size
        elif size:
            steps.append(size)
    return tuple(steps)


def subprogram_offsets(info: bytes, unit: Unit) -> list[int]:
    """Return the offsets of the subprogram DIEs directly below the unit's own DIE.

    Go emits no sibling references, so every DIE of the unit is stepped over, undecoded: about a
    microsecond each. Raise DwarfError, IndexError on damaged data.
    """
    plans = {
        code: (_skip_plan(shape, unit), int(shape.has_children), shape.tag == Tag.SUBPROGRAM)
        for code, shape in unit.abbreviations.items()
    }
    top = read_die(info, unit, unit.first_die)
    if top is None or not top.has_children:
        return []
    found: list[int] = []
    find = info.find
    pos, end, depth = top.end, unit.end, 1
    while depth and pos < end:
        start = pos
        code = info[pos]
        pos += 1
        if code >= 0x80:
            code, pos = read_uleb(info, start)
        if not code:
            depth -= 1
            continue
        plan = plans.get(code)
        if plan is None:
            raise DwarfError(f"no abbreviation {code} for the entry at {start:#x}")
        steps, children, is_subprogram = plan
        if is_subprogram and depth == 1:
            found.append(start)
        for step in steps:
            if step > 0:
                pos += step
            elif step == _SKIP_STRING:
                pos = find(0, pos) + 1
                if not pos:
                    raise DwarfError(f"string without an end in the entry at {start:#x}")
            elif step == _SKIP_LEB:
                while info[pos] >= 0x80:
                    pos += 1
                pos += 1
            elif step == _SKIP_BLOCK1:
                pos += 1 + info[pos]
            else:
                pos = _skip_block(info, pos, step)
        depth += children
    return found


def _skip_block(info: bytes, pos: int, step: int) -> int:
    if step == _SKIP_BLOCK:
        length, pos = read_uleb(info, pos)
        return pos + length
    size = 2 if step == _SKIP_BLOCK2 else 4
    return pos + size + int.from_bytes(info[pos : pos + size], "little")
