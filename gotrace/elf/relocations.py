# SPDX-License-Identifier: Apache-2.0
"""Find the pointer words of a position-independent image that only exist as relocations.

A RELA relocation carries its value itself, so GNU ld leaves the word in the file zero. Go's own
linker writes the value in both places. Sources: System V gABI chapter 5 (dynamic section), the
x86-64 psABI table 4.9 (R_X86_64_RELATIVE, R_X86_64_64) and the AArch64 ELF ABI
(R_AARCH64_RELATIVE).

In plugins, pointers to types and functions are relocations by symbol: another file may have what is
taken at run time. Here it is the file's own, which says the same.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import islice
from mmap import mmap
from operator import le

from gotrace.elf import ElfError

DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT = 6, 7, 8, 9
_RELA_SIZE = 24
_SYMBOL = struct.Struct("<IBBHQQ")

#: A dynamic section has some thirty entries; more than this is a damaged file.
_MAX_DYNAMIC = 4096


def dynamic_entries(data: mmap | bytes, offset: int, size: int) -> dict[int, int]:
    """Return the entries, by tag, of the dynamic section at a file offset."""
    raw = data[offset : offset + min(size, _MAX_DYNAMIC * 16) // 16 * 16]
    entries: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]):
        if tag == 0:
            break
        entries.setdefault(tag, value)
    return entries


class Relocations:
    """An image's relocations of words: places and the link-time addresses stored there."""

    def __init__(
        self,
        entries: Mapping[int, int],
        kind: int,
        symbolic: int,
        read: Callable[[int, int], bytes],
        display: str,
    ) -> None:
        """Read the relocation table that a dynamic section's entries name, if any.

        ``kind`` is the machine's type of relative relocations, ``symbolic`` that of a symbol's
        address; ``read`` returns the bytes (of a size) at an address, ``display`` is the file's
        name in messages.
        """
        self._places: array[int] = array("Q")
        self._values: array[int] = array("Q")
        size = entries.get(DT_RELASZ, 0)
        if not size or DT_RELA not in entries:
            return
        if entries.get(DT_RELAENT, _RELA_SIZE) != _RELA_SIZE or size % _RELA_SIZE:
            raise ElfError(f"{display}: relocation table of odd size: the file is damaged")
        words: array[int] = array("Q", read(entries[DT_RELA], size))
        kinds = words[1::3]
        self._places, self._values = words[0::3], words[2::3]
        if kinds.count(kind) != len(kinds):
            known = {index: self._values[index] for index, is_ in enumerate(kinds) if is_ == kind}
            by_symbol = [i for i, found in enumerate(kinds) if found & 0xFFFFFFFF == symbolic]
            if by_symbol and DT_SYMTAB in entries:
                symbols = _defined(read, entries[DT_SYMTAB], {kinds[i] >> 32 for i in by_symbol})
                for index in by_symbol:
                    address = symbols.get(kinds[index] >> 32)
                    if address is not None:
                        known[index] = address + self._values[index] & (1 << 64) - 1
            self._places = array("Q", [self._places[index] for index in known])
            self._values = array("Q", known.values())
        if not all(map(le, self._places, islice(self._places, 1, None))):
            pairs = sorted(zip(self._places, self._values, strict=True))
            self._places = array("Q", [place for place, _ in pairs])
            self._values = array("Q", [value for _, value in pairs])

    def patch(self, address: int, content: bytes) -> bytes:
        """Return ``content``, the bytes at ``address``, with the relocations in it applied."""
        first = bisect_left(self._places, address)
        last = bisect_right(self._places, address + len(content) - 8)
        if first >= last:
            return content
        patched = bytearray(content)
        for hit in range(first, last):
            struct.pack_into("<Q", patched, self._places[hit] - address, self._values[hit])
        return bytes(patched)

    def places_of(self, value: int) -> list[int]:
        """Return the addresses of all words that are relocated to ``value``."""
        if value not in self._values:
            return []
        return [
            place for place, found in zip(self._places, self._values, strict=True) if found == value
        ]


def _defined(read: Callable[[int, int], bytes], table: int, wanted: set[int]) -> dict[int, int]:
    """Return the addresses of symbols of a table that the file itself defines, by their numbers."""
    found = {}
    for number in wanted:
        try:
            raw = read(table + number * _SYMBOL.size, _SYMBOL.size)
        except ElfError:
            continue
        _, _, _, section, address, _ = _SYMBOL.unpack(raw)
        if section:
            found[number] = address
    return found
