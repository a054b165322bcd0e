"""Find type entries by name or by runtime type descriptor without walking .debug_info.

Go's compiler writes names inline and first in an entry, and type descriptors as plain 8-byte
numbers, so a byte search leads to the entry; what is found is decoded and verified.
"""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.elf.dwarf_constants import Attr, Form, Tag
from gotrace.elf.dwarf_die import Die, DwarfError, read_die, read_uleb
from gotrace.elf.dwarf_units import UnitTable

__all__ = ["find_runtime_type", "find_type"]

#: Longest name searched over backwards; names of struct literals reach some thousand bytes.
_MAX_NAME = 8192

#: The tag that Go gives to a type of each kind (internal/abi, Kind; 17 is Array).
_TAG_OF_KIND = {
    17: Tag.ARRAY_TYPE,
    18: Tag.TYPEDEF,
    19: Tag.SUBROUTINE_TYPE,
    20: Tag.TYPEDEF,
    21: Tag.TYPEDEF,
    22: Tag.POINTER_TYPE,
    23: Tag.STRUCTURE_TYPE,
    24: Tag.STRUCTURE_TYPE,
    25: Tag.STRUCTURE_TYPE,
    26: Tag.POINTER_TYPE,
}
_TYPE_TAGS = frozenset({*_TAG_OF_KIND.values(), Tag.BASE_TYPE})


def find_type(info: bytes, units: UnitTable, name: str) -> Die | None:
    """Return the type entry of a linker name, None when there is none.

    A typedef that only repeats the name of the type which it refers to is passed over.
    """
    wanted = name.encode()
    for at in _occurrences(info, wanted + b"\0"):
        die = _entry_starting(info, units, at - 1) or _entry_starting(info, units, at - 2)
        if die is None or die.values.get(Attr.NAME) != name or die.tag not in _TYPE_TAGS:
            continue
        if die.tag != Tag.TYPEDEF or Attr.GO_KIND in die.values:
            return die
    return None


def find_runtime_type(info: bytes, units: UnitTable, value: int) -> Die | None:
    """Return the type entry whose DW_AT_go_runtime_type is ``value``, None when there is none."""
    for at in _occurrences(info, value.to_bytes(8, "little")):
        found = None
        # The farthest start is taken: bytes of a long name can pass for a code and a shorter name.
        for start in _starts_before(info, at):
            die = _entry_starting(info, units, start)
            if die is not None and die.values.get(Attr.GO_RUNTIME_TYPE) == value and _fits(die, at):
                found = die
        if found is not None:
            return found
    return None


def _occurrences(info: bytes, wanted: bytes) -> Iterator[int]:
    at = info.find(wanted)
    while at >= 0:
        yield at
        at = info.find(wanted, at + 1)


def _entry_starting(info: bytes, units: UnitTable, offset: int) -> Die | None:
    """Decode what may be an entry with its name first; None when it is not."""
    if offset < 0:
        return None
    try:
        unit = units.containing(offset)
        code, pos = read_uleb(info, offset)
        shape = unit.abbreviations.get(code)
        if shape is None or shape.attributes[:1] != ((Attr.NAME, Form.STRING, 0),):
            return None
        die = read_die(info, unit, offset)
    except (DwarfError, IndexError):
        return None
    return die if pos - offset in (1, 2) else None


def _starts_before(info: bytes, at: int) -> Iterator[int]:
    """Yield offsets at which an entry may start whose descriptor is at ``at``, nearest first.

    Between name and descriptor stand a size or a reference and a kind: less than 16 bytes.
    """
    for name_end in range(at - 1, max(at - 16, 0), -1):
        if info[name_end] != 0:
            continue
        start = max(info.rfind(b"\0", max(name_end - _MAX_NAME, 0), name_end), 0)
        yield from range(name_end - 2, start - 2, -1)


def _fits(die: Die, at: int) -> bool:
    """Say whether an entry's tag is that of its kind and its descriptor can stand at ``at``."""
    kind = die.values.get(Attr.GO_KIND, 0) & 0x1F
    # Pointers have no kind up to Go 1.21, unsafe.Pointer never has.
    tag = _TAG_OF_KIND.get(kind, Tag.BASE_TYPE) if kind else Tag.POINTER_TYPE
    named = str(die.values.get(Attr.NAME, "")).startswith(("*", "unsafe.")) if not kind else True
    return named and die.tag == tag and die.offset < at < die.end
