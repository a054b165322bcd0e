"""Capture strings and byte slices, and the types that are made of them and print otherwise."""

from __future__ import annotations

import ipaddress
import struct

from gotrace.goabi.capture import REFUSED, Builder, Frame, Location, Node, Position, Reader
from gotrace.goabi.types import Kind
from gotrace.goabi.values import (
    BytesValue,
    NamedValue,
    Nil,
    StringValue,
    TextValue,
    Unavailable,
    Value,
)

__all__ = [
    "AddressNode",
    "BytesNode",
    "StringNode",
    "address_text",
    "hardware_address_text",
    "ipv6_text",
]


_two_words = struct.Struct("<Qq").unpack_from
_three_words = struct.Struct("<Qqq").unpack_from


class _Bytes(Node):
    """Capture a pointer to bytes with its count behind it."""

    __slots__ = ()

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to copy the bytes."""
        reader = self.reader(position)

        def copy() -> None:
            limit = builder.limits.text_bytes
            reader.block = builder.deref_n(position, position.plus(8), 1, limit)

        builder.defer(copy)
        return reader

    def reader(self, position: Position) -> _BytesReader:
        """Return what reads the bytes."""
        raise NotImplementedError


class _BytesReader(Reader):
    __slots__ = ("_at", "_end", "_name", "_source", "block")

    def __init__(self, position: Position, size: int, name: str) -> None:
        self._source = position.block
        self._at = position.offset
        self._end = position.offset + size
        self._name = name
        self.block: int | None = None

    def location(self) -> Location:
        return Location(self._source, self._at + 8, 8, True, self.block)

    def text(self, frame: Frame, length: int) -> bytes | Unavailable:
        """Return what was copied of the bytes."""
        block = self.block
        if block is None:
            return REFUSED
        copied = frame.lengths[block]
        if copied <= 0:
            return b"" if length == 0 else frame.why(block)
        start = frame.starts[block]
        return frame.data[start : start + min(copied, length) if length > 0 else start]


class StringNode(_Bytes):
    """Capture a string, or a value of a declared string type."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        """Return what reads the string."""
        if self.type.kind is Kind.STRING and self.type.is_named:
            return _NamedStringReader(position, self.size, self.type.name)
        return _StringReader(position, self.size, self.type.name)


class _StringReader(_BytesReader):
    __slots__ = ()

    def read(self, frame: Frame) -> Value:
        source = self._source
        if frame.lengths[source] < self._end:
            return frame.why(source)
        _, length = _two_words(frame.data, frame.starts[source] + self._at)
        block = self.block
        if block is not None and length > 0:
            copied = frame.lengths[block]
            if copied > 0:
                start = frame.starts[block]
                return StringValue(frame.data[start : start + min(copied, length)], length)
        text = self.text(frame, length)
        return StringValue(text, length) if isinstance(text, bytes) else text


class _NamedStringReader(_StringReader):
    __slots__ = ()

    def read(self, frame: Frame) -> Value:
        value = super().read(frame)
        return value if isinstance(value, Unavailable) else NamedValue(self._name, value)


class BytesNode(_Bytes):
    """Capture a slice of bytes."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        """Return what reads the bytes."""
        return _SliceReader(position, self.size, self.type.name)


class _SliceReader(_BytesReader):
    __slots__ = ()

    def read(self, frame: Frame) -> Value:
        source = self._source
        if frame.lengths[source] < self._end:
            return frame.why(source)
        pointer, length, capacity = _three_words(frame.data, frame.starts[source] + self._at)
        if pointer == 0:
            return Nil(self._name)
        data = self.text(frame, length)
        if isinstance(data, Unavailable):
            return data
        return BytesValue(self._name, data, length, capacity)


class AddressNode(BytesNode):
    """Capture a net.IP or net.HardwareAddr, which print as addresses."""

    __slots__ = ()

    def reader(self, position: Position) -> _BytesReader:
        """Return what reads the address."""
        return _AddressReader(position, self.size, self.type.name)


class _AddressReader(_SliceReader):
    __slots__ = ()

    def read(self, frame: Frame) -> Value:
        value = super().read(frame)
        if not isinstance(value, BytesValue) or value.is_cut:
            return value
        if self._name == "net.IP":
            text = address_text(value.data)
        else:
            text = hardware_address_text(value.data)
        return value if text is None else TextValue(self._name, text)


def address_text(data: bytes) -> str | None:
    """Return an IP address of 4 or 16 bytes as net.IP.String does; None for other lengths.

    An IPv4 address within IPv6 prints as IPv4 (src/net/ip.go).
    """
    if len(data) == 16 and data[:12] == b"\0" * 10 + b"\xff\xff":
        data = data[12:]
    if len(data) not in (4, 16):
        return None
    return ipv6_text(data) if len(data) == 16 else str(ipaddress.IPv4Address(data))


def ipv6_text(data: bytes) -> str:
    """Return 16 bytes as Go prints an IPv6 address: the longest run of zero words is ``::``.

    Done here because Python's ipaddress prints IPv4-mapped addresses otherwise since 3.13.
    """
    words = struct.unpack(">8H", data)
    best, at = (0, 0), 0
    while at < 8:
        end = at
        while end < 8 and words[end] == 0:
            end += 1
        if end - at > best[1] - best[0]:
            best = (at, end)
        at = end + 1
    if best[1] - best[0] < 2:
        return ":".join(f"{word:x}" for word in words)
    head = ":".join(f"{word:x}" for word in words[: best[0]])
    tail = ":".join(f"{word:x}" for word in words[best[1] :])
    return f"{head}::{tail}"


def hardware_address_text(data: bytes) -> str | None:
    """Return a hardware address as net.HardwareAddr.String does; None when it is empty."""
    return data.hex(":") if data else None
