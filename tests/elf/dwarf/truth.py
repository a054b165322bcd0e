# SPDX-License-Identifier: Apache-2.0
"""Ask readelf what a binary's debugging information says."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.elf.truth import run

_ENTRY = re.compile(r" <([0-9a-f]+)><([0-9a-f]+)>: Abbrev Number: \d+ \((\w+)\)")
#: The form in parentheses is printed since binutils 2.38.
_ATTRIBUTE = re.compile(
    r"    <[0-9a-f]+> +(?:Unknown AT value: )?(\w+) *: (?:\((?!in|index)\w+\) )?(.*)"
)


@dataclass(slots=True)
class ReadelfEntry:
    """One entry, with the entries directly below it; attributes are text, as readelf prints it."""

    offset: int
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[ReadelfEntry] = field(default_factory=list)

    def name(self) -> str:
        """Return DW_AT_name, which may be in another section."""
        text = self.attributes.get("DW_AT_name", "")
        return re.sub(r"^\((?:indirect|indexed)[^)]*\): ", "", text).rstrip()

    def number(self, attribute: str) -> int:
        """Return a number, or the address that an index stands for."""
        return int(re.sub(r"^\(index: \w+\): ", "", self.attributes[attribute]).split()[0], 0)


@dataclass(frozen=True, slots=True)
class GoType:
    """One type that Go's linker describes; ``descriptor`` is its DW_AT_go_runtime_type."""

    offset: int
    name: str
    descriptor: int


_RUNTIME_TYPE = "Unknown AT value: 2904:"


@functools.cache
def go_types(path: Path) -> tuple[GoType, ...]:
    """Return the types of .debug_info that say which type descriptor is theirs."""
    found = []
    offset, name = 0, ""
    for line in run(["readelf", "-W", "--debug-dump=info", path]).splitlines():
        if match := _ENTRY.match(line):
            offset, name = int(match[2], 16), ""
        elif " DW_AT_name " in line and (match := _ATTRIBUTE.match(line)):
            name = match[2].rstrip()
        elif _RUNTIME_TYPE in line and (match := _ATTRIBUTE.match(line)):
            found.append(GoType(offset, name, int(match[2], 0)))
    return tuple(found)


@functools.cache
def entries(path: Path) -> dict[int, ReadelfEntry]:
    """Return all entries of .debug_info by their offsets."""
    found: dict[int, ReadelfEntry] = {}
    above: list[ReadelfEntry] = []
    for line in run(["readelf", "-W", "--debug-dump=info", path]).splitlines():
        if match := _ENTRY.match(line):
            depth, offset = int(match[1], 16), int(match[2], 16)
            entry = found[offset] = ReadelfEntry(offset, match[3])
            del above[depth:]
            if above:
                above[-1].children.append(entry)
            above.append(entry)
        elif above and (match := _ATTRIBUTE.match(line)):
            above[-1].attributes.setdefault(match[1], match[2])
    return found
