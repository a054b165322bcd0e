# SPDX-License-Identifier: Apache-2.0
"""Read symbols from ``.symtab`` or, in its absence, ``.dynsym``.

Source: System V gABI chapter 4 (symbol table).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator
from typing import TypeAlias

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage, Section
from gotrace.elf.scan import find_all
from gotrace.records import dataclass

_SYMBOL = struct.Struct("<IBBHQQ")
STT_OBJECT, STT_FUNC = 1, 2
STB_LOCAL = 0
SHN_UNDEF = 0
SHT_SYMTAB, SHT_DYNSYM = 2, 11

#: st_name, st_info, st_other, st_shndx, st_value, st_size
_Symbol: TypeAlias = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class FunctionSymbol:
    """One function symbol; the address is a link-time virtual address."""

    name: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class VariableSymbol:
    """The symbol of a variable; the address is a link-time virtual address."""

    name: str
    address: int
    size: int


def symbol_value(image: ElfImage, name: str) -> int | None:
    """Return the value of the symbol of a name in ``.symtab``; None when there is none.

    Neither the names nor the symbols are read one by one: both tables are searched as bytes.
    """
    tables = _tables(image, SHT_SYMTAB)
    if tables is None:
        return None
    symbols, strings = tables
    data = image.data
    end = strings.offset + strings.size
    found = data.find(b"\0" + name.encode() + b"\0", strings.offset, end)
    if found < 0:
        return None
    needle = struct.pack("<I", found + 1 - strings.offset)
    end = symbols.offset + symbols.size
    for position in find_all(data, needle, symbols.offset, end):
        if position > end - _SYMBOL.size:
            break
        if (position - symbols.offset) % _SYMBOL.size == 0:
            _, _, _, section, value, _ = _SYMBOL.unpack_from(data, position)
            return None if section == SHN_UNDEF else int(value)
    return None


def function_symbols(image: ElfImage, known: tuple[int, int] = (0, 0)) -> list[FunctionSymbol]:
    """Return the functions defined in the symbol table, by address, one for each address.

    A function is a symbol of type STT_FUNC with a size, whose bytes are executable bytes of the
    file; ``known`` is a range of addresses (start, end) to leave out. Of several names for one
    address a global one wins, then one without a version suffix (``@``), then the one with the
    fewest leading underscores, then the shortest.
    """
    tables = _tables(image, SHT_SYMTAB) or _tables(image, SHT_DYNSYM)
    if tables is None:
        return []
    best: dict[int, tuple[tuple[bool, bool, int, int, str], FunctionSymbol]] = {}
    first, last = known
    chosen = [
        found
        for found in _functions(image, tables[0])
        if not first <= found[4] < last and image.executable(found[4], found[5])
    ]
    for (_, info, _, _, address, size), name in _named(image, tables[1], chosen):
        base, at, version = name.partition("@")
        if version.startswith("@"):
            name, at = base, ""  # the default version: what the plain name means
        underscores = len(name) - len(name.lstrip("_"))
        rank = (info >> 4 == STB_LOCAL, bool(at), underscores, len(name), name)
        if name and (address not in best or rank < best[address][0]):
            best[address] = (rank, FunctionSymbol(name, address, size))
    return [best[address][1] for address in sorted(best)]


def symbol_names(image: ElfImage, addresses: Container[int]) -> Iterator[tuple[int, str]]:
    """Yield (address, name) of the functions in ``.symtab`` that begin at given addresses."""
    tables = _tables(image, SHT_SYMTAB)
    if tables is not None:
        chosen = [found for found in _functions(image, tables[0]) if found[4] in addresses]
        for found, name in _named(image, tables[1], chosen):
            yield found[4], name


def object_names(image: ElfImage, part: str) -> dict[int, str]:
    """Return the addresses of the variables in ``.symtab`` that have a part in their names."""
    tables = _tables(image, SHT_SYMTAB)
    if tables is None:
        return {}
    symbols, strings = tables
    data, end = image.data, strings.offset + strings.size
    starts = {
        data.rfind(b"\0", strings.offset, at) + 1 - strings.offset
        for at in find_all(data, part.encode(), strings.offset, end)
    }
    chosen = [
        entry
        for entry in _entries(image, symbols)
        if entry[0] in starts and entry[1] & 15 == STT_OBJECT and entry[3] != SHN_UNDEF
    ]
    return {entry[4]: name for entry, name in _named(image, strings, chosen)}


def object_symbol(image: ElfImage, address: int) -> VariableSymbol | None:
    """Return the variable in ``.symtab`` that has an address in it, None if there is none."""
    tables = _tables(image, SHT_SYMTAB)
    if tables is None:
        return None
    chosen = [
        entry
        for entry in _entries(image, tables[0])
        if entry[4] <= address < entry[4] + entry[5]
        and entry[1] & 15 == STT_OBJECT
        and entry[3] != SHN_UNDEF
    ]
    for (_, _, _, _, start, size), name in _named(image, tables[1], chosen):
        return VariableSymbol(name, start, size)
    return None


def _functions(image: ElfImage, symbols: Section) -> list[_Symbol]:
    """Return the unpacked entries of defined functions that have a size."""
    return [
        entry
        for entry in _entries(image, symbols)
        if entry[1] & 15 == STT_FUNC and entry[5] and entry[3] != SHN_UNDEF
    ]


def _entries(image: ElfImage, symbols: Section) -> Iterator[_Symbol]:
    size = symbols.size // _SYMBOL.size * _SYMBOL.size
    return _SYMBOL.iter_unpack(image.data[symbols.offset : symbols.offset + size])


def _named(
    image: ElfImage, strings: Section, entries: Iterable[_Symbol]
) -> Iterator[tuple[_Symbol, str]]:
    """Yield entries with their names, leaving out those whose name is damaged."""
    data, limit = image.data, strings.offset + strings.size
    # Names are stored once, or share tails. The budget bounds the work when each of a million
    # symbols is a tail of one endless name.
    budget = 16 * strings.size + (1 << 20)
    for entry in entries:
        start = strings.offset + entry[0]
        end = data.find(b"\0", start, limit)
        if end < 0:
            continue
        budget -= end - start
        if budget < 0:
            raise ElfError(f"{image.display}: damaged names in section {strings.name}")
        yield entry, str(data[start:end], "utf-8", "backslashreplace")


def _tables(image: ElfImage, kind: int) -> tuple[Section, Section] | None:
    for section in image.sections:
        if section.type == kind:
            for strings in image.sections:
                if strings.index == section.link:
                    return section, strings
    return None
