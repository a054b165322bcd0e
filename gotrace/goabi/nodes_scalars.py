"""Capture booleans, numbers and bare addresses."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from gotrace.goabi.capture import Builder, FloatHole, Frame, Location, Node, Position, Reader
from gotrace.goabi.types import GoType, Kind
from gotrace.goabi.values import (
    BytesValue,
    DurationValue,
    NamedValue,
    Nil,
    PointerValue,
    Unavailable,
    Value,
)

__all__ = ["OpaqueNode", "ScalarNode", "WordReader", "shortest_float32"]

_Flat = Callable[[bytes, int], Value]

_FORMATS = {
    Kind.BOOL: "<?",
    Kind.INT: "<q",
    Kind.INT8: "<b",
    Kind.INT16: "<h",
    Kind.INT32: "<i",
    Kind.INT64: "<q",
    Kind.UINT: "<Q",
    Kind.UINT8: "<B",
    Kind.UINT16: "<H",
    Kind.UINT32: "<I",
    Kind.UINT64: "<Q",
    Kind.UINTPTR: "<Q",
    Kind.UNSAFE_POINTER: "<Q",
    Kind.FLOAT32: "<f",
    Kind.FLOAT64: "<d",
    Kind.COMPLEX64: "<ff",
    Kind.COMPLEX128: "<dd",
}
_FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.COMPLEX64, Kind.COMPLEX128})
_SIGNED = frozenset({Kind.INT, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64})


def shortest_float32(value: float) -> float:
    """Return the number with the fewest decimal digits that is this float32, as Go prints it."""
    if not math.isfinite(value):
        return value
    # Subnormal numbers have less than six significant digits.
    for digits in range(6 if abs(value) > 1.2e-38 else 1, 9):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            # Rounded up beyond the greatest float32.
            continue
    return float(f"{value:.9g}")


class ScalarNode(Node):
    """Capture a value of a basic kind other than string.

    ``format`` is the image's, in the struct module's terms.
    """

    __slots__ = ("format",)

    def __init__(self, go_type: GoType) -> None:
        """Take a type of one of the kinds."""
        super().__init__(go_type)
        self.format = _FORMATS[go_type.kind]
        self.flat = _flat_scalar(go_type, self.format)

    def location_at(self, position: Position) -> Location | None:
        """Return where the value is; floats mean nothing to predicates in the kernel."""
        if self.type.kind in _FLOATS:
            return None
        signed = self.type.kind in _SIGNED
        return Location(position.block, position.offset, self.size, signed)

    def plan_with_holes(self, builder: Builder, position: Position) -> Reader:
        """Plan a value in float registers."""
        assert self.flat is not None
        return _InFloatRegisters(self.flat, position, self.size, builder.holes(position, self.size))


class _InFloatRegisters(Reader):
    __slots__ = ("_end", "_flat", "_offset", "_registers")

    def __init__(self, flat: _Flat, position: Position, size: int, holes: list[FloatHole]) -> None:
        self._flat = flat
        self._offset = position.offset
        self._end = position.offset + size
        self._registers = frozenset(hole.register for hole in holes)

    def read(self, frame: Frame) -> Value:
        if frame.floats is None or not self._registers <= frame.floats:
            return Unavailable(frame.no_floats)
        if self._end > frame.lengths[0]:
            return frame.why(0)
        return self._flat(frame.data, frame.starts[0] + self._offset)


def _flat_scalar(go_type: GoType, layout: str) -> _Flat:
    unpack = struct.Struct(layout).unpack_from
    kind, name = go_type.kind, go_type.name
    if name == "time.Duration":
        return lambda data, at: DurationValue(unpack(data, at)[0])
    if kind is Kind.UNSAFE_POINTER:
        return lambda data, at: _pointer(name, unpack(data, at)[0])
    if kind is Kind.FLOAT32:
        plain: _Flat = lambda data, at: shortest_float32(unpack(data, at)[0])  # noqa: E731
    elif kind is Kind.COMPLEX64:
        plain = lambda data, at: complex(*map(shortest_float32, unpack(data, at)))  # noqa: E731
    elif kind is Kind.COMPLEX128:
        plain = lambda data, at: complex(*unpack(data, at))  # noqa: E731
    else:
        plain = lambda data, at: unpack(data, at)[0]  # noqa: E731
    if go_type.is_named or kind is Kind.UINTPTR:
        return lambda data, at: NamedValue(name, plain(data, at))
    return plain


def _pointer(name: str, address: int) -> Value:
    return PointerValue(name, address) if address else Nil(name)


class OpaqueNode(Node):
    """Capture memory of a type that nobody described, as bytes."""

    __slots__ = ()

    def __init__(self, go_type: GoType) -> None:
        """Take the type."""
        super().__init__(go_type)
        name, size = go_type.name, go_type.size
        self.flat = lambda data, at: BytesValue(name, data[at : at + size], size)


class WordReader(Reader):
    """Read a word, such as the length of a string, as an int."""

    __slots__ = ("_flat", "_position")

    def __init__(self, position: Position) -> None:
        """Take the word's position."""
        self._position = position
        self._flat = struct.Struct("<q").unpack_from

    def read(self, frame: Frame) -> Value:
        """Return the word, as signed."""
        block, offset, _ = self._position
        if frame.lengths[block] < offset + 8:
            return frame.why(block)
        value: int = self._flat(frame.data, frame.starts[block] + offset)[0]
        return value

    def location(self) -> Location:
        """Return the word's location."""
        return Location(self._position.block, self._position.offset, 8, True)
