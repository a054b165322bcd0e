# SPDX-License-Identifier: Apache-2.0
"""Read why goroutines of a binary can wait: the texts of ``g.waitreason`` by number.

The numbers differ by release and the texts as well, so both come from the binary itself: from
``runtime.waitReasonStrings`` (src/runtime/runtime2.go), an array of strings that every release from
1.11 to 1.27 begins with "", "GC assist marking" and "IO wait". It is found by these, since stripped
programs have no symbol for it: three string headers in a row that lead to nothing and to the two
texts. In position-independent programs the headers' addresses may exist as relocations only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gotrace.elf.image import PT_LOAD, ElfError, ElfImage
from gotrace.elf.scan import find_all

__all__ = ["WaitReasons", "find_wait_reasons"]

#: The texts of ``g.waitreason`` by number.
WaitReasons = tuple[str, ...]

_SECOND, _THIRD = b"GC assist marking", b"IO wait"
_HEADER = struct.Struct("<QQ")

#: A waitreason is a byte; Go 1.27 has 47.
_MAX_REASONS = 256
#: The longest, "sync.WaitGroup.Wait (durable)", has 29 bytes.
_MAX_REASON = 64
#: A linker stores equal texts once, and other texts hardly contain this one: what has it more often
#: was made to waste time.
_MAX_PLACES = 64


def find_wait_reasons(image: ElfImage) -> WaitReasons | None:
    """Return the texts by number; None where the array is not found, or more than one is.

    The number of texts is not known: what follows them in memory, where it looks like texts as
    well, is returned too. No goroutine has such a reason.
    """
    try:
        arrays = set(_arrays(image))
    except ElfError:  # relocations that cannot be read
        return None
    return _read(image, arrays.pop()) if len(arrays) == 1 else None


def _arrays(image: ElfImage) -> Iterator[int]:
    """Yield the addresses of arrays that begin with the first three texts."""
    for text in _text_addresses(image, _SECOND):
        for second in _words(image, text):
            first = second - _HEADER.size
            try:
                headers = image.read_relocated(first, 3 * _HEADER.size)
                (_, none), (_, size), (third, third_size) = _HEADER.iter_unpack(headers)
                sizes = (none, size, third_size)
                if sizes == (0, len(_SECOND), len(_THIRD)) and image.read(third, 7) == _THIRD:
                    yield first
            except ElfError:
                continue  # not in the file


def _text_addresses(image: ElfImage, text: bytes) -> list[int]:
    """Return where a text is in memory."""
    found: list[int] = []
    for offset in find_all(image.data, text):
        try:
            found.append(image.address_of(offset))
        except ElfError:
            continue  # debugging information
        if len(found) == _MAX_PLACES:
            break
    return found


def _words(image: ElfImage, value: int) -> list[int]:
    """Return where a word of a value is in memory, or will be once it is relocated."""
    needle = struct.pack("<Q", value)
    found: list[int] = []
    for segment in image.segments:
        if segment.type == PT_LOAD:
            end = segment.offset + segment.file_size
            for at in find_all(image.data, needle, segment.offset, end):
                found.append(at - segment.offset + segment.address)
                if len(found) == _MAX_PLACES:
                    return found
    return found + image.relocations.places_of(value)[:_MAX_PLACES]


def _read(image: ElfImage, address: int) -> WaitReasons:
    reasons: list[str] = []
    while len(reasons) < _MAX_REASONS:
        try:
            header = image.read_relocated(address + len(reasons) * _HEADER.size, _HEADER.size)
            text, size = _HEADER.unpack(header)
            if size > _MAX_REASON or (size == 0 and reasons):
                break
            content = image.read(text, size) if size else b""
        except ElfError:
            break
        if not (content.isascii() and content.decode("ascii").isprintable()):
            break
        reasons.append(content.decode("ascii"))
    return tuple(reasons)
