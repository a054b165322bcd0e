# SPDX-License-Identifier: Apache-2.0
"""Encode protocol buffers, as far as the files need that are written here.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_VARINT, _64_BIT, _BYTES = 0, 1, 2
_64_BITS = (1 << 64) - 1
_FIXED, _DOUBLE = struct.Struct("<Q"), struct.Struct("<d")


def varint(value: int) -> bytes:
    """Return a number; one below 0 is taken for its 64 bits."""
    value &= _64_BITS
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def numbers(fields: Mapping[int, int]) -> bytes:
    """Return number fields; those that are zero are left out, as proto3 does."""
    return b"".join(
        varint(field << 3 | _VARINT) + varint(value) for field, value in fields.items() if value
    )


def message(field: int, content: bytes) -> bytes:
    """Return a field that is a message, a text or bytes."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def packed(field: int, values: Sequence[int]) -> bytes:
    """Return a field of several numbers, nothing if there is no number."""
    return message(field, b"".join(map(varint, values))) if values else b""


def fixed(field: int, value: int) -> bytes:
    """Return a field that is a number of 64 bits."""
    return varint(field << 3 | _64_BIT) + _FIXED.pack(value & _64_BITS)


def double(field: int, value: float) -> bytes:
    """Return a field that is a floating-point number."""
    return varint(field << 3 | _64_BIT) + _DOUBLE.pack(value)


def text(value: str) -> bytes:
    """Return the bytes of a text; characters that cannot be encoded are escaped."""
    return value.encode("utf-8", "backslashreplace")
