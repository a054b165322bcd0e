"""Find a type's descriptor by its name, without walking through all types.

A descriptor holds the offset of its text; so the text is looked for first, then that offset.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice

from gotrace.goabi.descriptor_names import DescriptorNames
from gotrace.goabi.descriptor_table import DescriptorError, DescriptorTable

__all__ = ["search", "search_text"]

#: Stars and brackets, import path, and what follows: package name, dot, type's name.
_SHAPE = re.compile(r"((?:\*|\[\d*\])*)([^\[\](){} ]*/)?(.*)", re.DOTALL)

#: What may be a package's name for itself, which cannot be told from its path.
_PACKAGE = rb"[^\x00-\x20./*\[\](){}]{1,128}"

#: Wrong matches to put up with: of a type's name in names, and of a name's offset.
_MAX_TEXTS = 1 << 15
_MAX_OFFSETS = 1 << 12

#: The longest text that can come before the dot.
_MAX_START = 160

_TEXT_OFFSET = 40  # of the text's offset in a descriptor


def search(table: DescriptorTable, names: DescriptorNames, name: str) -> Iterator[int]:
    """Yield the addresses of the descriptors of a linker's name.

    Only for names that are a declared type's, perhaps with stars and brackets before it.
    """
    places = (
        table.start + found - _TEXT_OFFSET
        for offset in _text_offsets(table, name)
        for found in _occurrences(table, struct.pack("<I", offset))
    )
    for address in islice(places, _MAX_OFFSETS):
        try:
            if table.contains(address) and names.of(address) == name:
                yield address
        except DescriptorError:
            # The same four bytes, but not in a descriptor.
            continue


def search_text(table: DescriptorTable, text: str) -> Iterator[int]:
    """Yield the addresses of the descriptors of declared types with a text, as reflect prints it.

    It has the package's name in place of its path: ``http.Request``.
    """
    places = (
        table.start + found - _TEXT_OFFSET
        for offset in _exact_offsets(table, text.encode())
        for found in _occurrences(table, struct.pack("<I", offset))
    )
    for address in islice(places, _MAX_OFFSETS):
        try:
            if table.contains(address):
                record = table.record(address)
                if record.named and record.text == text:
                    yield address
        except DescriptorError:
            # The same four bytes, but not in a descriptor.
            continue


def _exact_offsets(table: DescriptorTable, text: bytes) -> Iterator[int]:
    """Yield the offsets of all names that are a text, or that of pointers to what it means.

    Types share their text with the pointers to them and then leave the star out.
    """
    for name in (b"*" + text, text):
        length = table.length_bytes(len(name))
        for found in islice(_occurrences(table, length + name), _MAX_TEXTS):
            if found:
                yield found - 1


def _text_offsets(table: DescriptorTable, name: str) -> Iterator[int]:
    """Yield the offsets of all names that may be the text of the wanted type."""
    shape = _SHAPE.fullmatch(name)
    if shape is None or not shape[3]:
        return
    start, (package, dot, declared) = shape[1].encode(), shape[3].partition(".")
    if not dot:
        yield from _exact_offsets(table, start + package.encode())
        return
    ending = f".{declared}".encode()
    text_of = re.compile(rb"\*?" + re.escape(start) + _PACKAGE + re.escape(ending))
    data, low = table.image.data, table.image.offset_of(table.start)
    for found in islice(_occurrences(table, ending), _MAX_TEXTS):
        end = low + found + len(ending)
        for begin in range(low + found - 1, max(low + found - _MAX_START, low), -1):
            length = table.length_bytes(end - begin)
            if data[begin - len(length) : begin] == length and text_of.fullmatch(data, begin, end):
                yield begin - len(length) - 1 - low


def _occurrences(table: DescriptorTable, needle: bytes) -> Iterator[int]:
    """Yield the offsets from the table's start at which bytes occur."""
    data, low = table.image.data, table.image.offset_of(table.start)
    high = low + table.end - table.start
    position = data.find(needle, low, high)
    while position >= 0:
        yield position - low
        position = data.find(needle, position + 1, high)
