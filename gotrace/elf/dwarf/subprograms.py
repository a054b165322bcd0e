# SPDX-License-Identifier: Apache-2.0
"""Step over entries of .debug_info undecoded, to the few that are wanted.

Go emits no references to siblings: to find a unit's functions, or a function's parameters among
its inlined calls, all that is between has to be passed. Making an object of each entry takes
50 times as long as stepping over it, so this works on the section's bytes, by one plan for each
abbreviation: neighbouring attributes of fixed size are one step.

Sizes of attribute forms: DWARF 5, section 7.5.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.scan import read_uleb
from gotrace.records import dataclass

#: An abbreviation: tag, whether entries have children, and (attribute, form) pairs, in the names
#: of pyelftools; what it has no name for is a number.
Declaration: TypeAlias = "tuple[str | int, bool, tuple[tuple[str | int, str | int], ...]]"

_FIXED_SIZES: dict[str | int, int] = {
    **{f"DW_FORM_{name}1": 1 for name in ("data", "ref", "strx", "addrx")},
    **{f"DW_FORM_{name}2": 2 for name in ("data", "ref", "strx", "addrx")},
    **{f"DW_FORM_{name}3": 3 for name in ("strx", "addrx")},
    **{f"DW_FORM_{name}4": 4 for name in ("data", "ref", "strx", "addrx", "ref_sup")},
    **{f"DW_FORM_{name}8": 8 for name in ("data", "ref", "ref_sig", "ref_sup")},
    "DW_FORM_data16": 16,
    "DW_FORM_flag": 1,
    "DW_FORM_flag_present": 0,
    "DW_FORM_implicit_const": 0,
}
_OFFSET_FORMS = frozenset(
    f"DW_FORM_{name}"
    for name in ("sec_offset", "strp", "line_strp", "strp_sup", "GNU_strp_alt", "GNU_ref_alt")
)

# Steps of a plan: a positive number is a count of bytes.
_SKIP_STRING = -1
_SKIP_LEB = -2
_SKIP_BLOCK1 = -3
_SKIP_BLOCK2 = -4
_SKIP_BLOCK4 = -5
_SKIP_BLOCK = -6
_VARIABLE_STEPS: dict[str | int, int] = {
    "DW_FORM_string": _SKIP_STRING,
    "DW_FORM_block1": _SKIP_BLOCK1,
    "DW_FORM_block2": _SKIP_BLOCK2,
    "DW_FORM_block4": _SKIP_BLOCK4,
    "DW_FORM_block": _SKIP_BLOCK,
    "DW_FORM_exprloc": _SKIP_BLOCK,
    **{
        f"DW_FORM_{name}": _SKIP_LEB
        for name in ("udata", "sdata", "ref_udata", "strx", "addrx", "loclistx", "rnglistx")
    },
}


@dataclass(frozen=True, slots=True)
class Shape:
    """An abbreviation, with the steps that lead over an entry's attributes.

    ``to_low_pc``: the steps that lead to DW_AT_low_pc, whose form is ``low_pc_form``; None for
    entries that have none.
    """

    tag: str | int
    has_children: bool
    attributes: tuple[tuple[str | int, str | int], ...]
    steps: tuple[int, ...]
    to_low_pc: tuple[int, ...] | None
    low_pc_form: str | int

    def has(self, attribute: str | int) -> bool:
        return any(name == attribute for name, _ in self.attributes)


class Shapes(dict[int, Shape]):
    """The shapes of a unit's entries by abbreviation code, each made on first use."""

    def __init__(
        self,
        declaration: Callable[[int], Declaration],
        version: int,
        address_size: int,
        offset_size: int,
    ) -> None:
        """Take a function that returns a code's abbreviation, and the unit's sizes in bytes.

        ``declaration`` raises KeyError for a code that there is not.
        """
        super().__init__()
        self._declaration = declaration
        self.address_size = address_size
        self._sizes: dict[str | int, int] = {
            **_FIXED_SIZES,
            **dict.fromkeys(_OFFSET_FORMS, offset_size),
            "DW_FORM_addr": address_size,
            "DW_FORM_ref_addr": address_size if version == 2 else offset_size,
        }

    def __missing__(self, code: int) -> Shape:
        """Make the shape of a code; raise DwarfError for an unknown code or form."""
        try:
            tag, has_children, attributes = self._declaration(code)
        except KeyError:
            raise DwarfError(f"debugging information without an abbreviation {code}") from None
        names = [name for name, _ in attributes]
        to_low_pc, form = None, ""
        if "DW_AT_low_pc" in names:
            row = names.index("DW_AT_low_pc")
            to_low_pc, form = self._steps(attributes[:row]), str(attributes[row][1])
        shape = Shape(tag, has_children, attributes, self._steps(attributes), to_low_pc, form)
        self[code] = shape
        return shape

    def _steps(self, attributes: Iterable[tuple[str | int, str | int]]) -> tuple[int, ...]:
        steps: list[int] = []
        for _, form in attributes:
            size = self._sizes.get(form)
            if size is None:
                step = _VARIABLE_STEPS.get(form)
                if step is None:
                    raise DwarfError(f"attribute form {form} is not understood")
                steps.append(step)
            elif steps and steps[-1] > 0:
                steps[-1] += size
            elif size:
                steps.append(size)
        return tuple(steps)


def child_offsets(
    info: bytes, shapes: Shapes, parent: int, end: int, wanted: Callable[[Shape], bool]
) -> list[int]:
    """Return the offsets of the wanted entries directly below the one at ``parent``.

    ``info`` is .debug_info, ``end`` the offset of the unit's end. About a microsecond for each
    entry below, at any depth. Raise DwarfError, ValueError or IndexError on damaged data.
    """
    code, pos = read_uleb(info, parent)
    shape = shapes[code] if code else None
    if shape is None or not shape.has_children:
        return []
    pos = _skip(info, pos, shape.steps)
    found: list[int] = []
    find = info.find
    depth = 1
    while depth and pos < end:
        start = pos
        code = info[pos]
        pos += 1
        if code >= 0x80:
            code, pos = read_uleb(info, start)
        if not code:
            depth -= 1
            continue
        shape = shapes[code]
        if depth == 1 and wanted(shape):
            found.append(start)
        # The same as _skip, without a call for each entry.
        for step in shape.steps:
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
        if shape.has_children:
            depth += 1
    return found


def code_addresses(
    info: bytes, shapes: Shapes, offsets: Iterable[int], indexed: Callable[[int], int]
) -> dict[int, int]:
    """Return the entries that have code: their offsets by the link-time address of its start.

    ``indexed`` gives the address of an index in .debug_addr. Raises as :func:`child_offsets` does.
    """
    found: dict[int, int] = {}
    for offset in offsets:
        code, pos = read_uleb(info, offset)
        shape = shapes[code]
        if shape.to_low_pc is None:
            continue
        pos = _skip(info, pos, shape.to_low_pc)
        form = str(shape.low_pc_form)
        if form == "DW_FORM_addr":
            address = int.from_bytes(info[pos : pos + shapes.address_size], "little")
        elif form == "DW_FORM_addrx":
            address = indexed(read_uleb(info, pos)[0])
        elif form.startswith("DW_FORM_addrx"):
            address = indexed(int.from_bytes(info[pos : pos + _FIXED_SIZES[form]], "little"))
        else:
            continue
        found[address] = offset
    return found


def _skip(info: bytes, pos: int, steps: tuple[int, ...]) -> int:
    """Return the offset after the attributes that a plan's steps lead over."""
    for step in steps:
        if step > 0:
            pos += step
        elif step == _SKIP_STRING:
            pos = info.index(0, pos) + 1
        elif step == _SKIP_LEB:
            _, pos = read_uleb(info, pos)
        elif step == _SKIP_BLOCK1:
            pos += 1 + info[pos]
        else:
            pos = _skip_block(info, pos, step)
    return pos


def _skip_block(info: bytes, pos: int, step: int) -> int:
    if step == _SKIP_BLOCK:
        length, pos = read_uleb(info, pos)
        return pos + length
    size = 2 if step == _SKIP_BLOCK2 else 4
    return pos + size + int.from_bytes(info[pos : pos + size], "little")
