"""Find the blocks of a payload, and read values from them."""

from __future__ import annotations

import abc
import dataclasses
import struct

from gotrace.goabi.capture_ops import MAX_BLOCKS, MAX_NESTING, Location, Op, OpCode, Step
from gotrace.goabi.types import GoType
from gotrace.goabi.values import Unavailable, Value

__all__ = ["BEYOND", "REFUSED", "Constant", "Frame", "ReadContext", "Reader", "Subplan"]

_WORD = 8

# How Frame.lengths tells what a block is: bytes, or one of these.
_ABSENT = -1
_NIL = -2
_KNOWN = -6

_WHY = {
    _NIL: "nil pointer",
    -3: "memory not readable",
    -4: "capture limit reached",
    -5: "type not known",
}
BEYOND = Unavailable("beyond the bytes captured")
REFUSED = Unavailable("capture limit reached")

_header_at = struct.Struct("<I").unpack_from
_word_at = struct.Struct("<Q").unpack_from


class Frame:
    """Hold where the blocks of one payload, or of one subplan's part of it, are.

    ``starts`` and ``lengths`` are by block number; ``lengths`` is negative for blocks that have
    no bytes. ``floats``: whether the float registers' values have been put into block 0.
    """

    __slots__ = (
        "_steps",
        "children",
        "context",
        "data",
        "floats",
        "lengths",
        "no_floats",
        "starts",
    )

    def __init__(self, data: bytes, context: ReadContext, steps: tuple[Step, ...], count: int):
        """Take a payload and the plan by which it was written, with its number of blocks."""
        self.data = data
        self.context = context
        self.starts = [0] * count
        self.lengths = [_ABSENT] * count
        self.children: dict[int, tuple[Subplan, Frame]] = {}
        self.floats: frozenset[int] | None = None
        self.no_floats = ""
        self._steps = steps

    def find_blocks(self, at: int, nesting: int = 0) -> int:
        """Walk over the blocks from an offset on; return where the next one would begin."""
        data, starts, lengths = self.data, self.starts, self.lengths
        total = len(data)
        skip = 0
        for code, number, block, end, type_at, data_at, skipped in self._steps:
            if skip:
                skip -= 1
                continue
            lengths[number] = _ABSENT
            if lengths[block] < end:
                skip = skipped
                continue
            at = (at + 7) & ~7
            if at + 8 > total:
                return total
            header = _header_at(data, at + 4)[0]
            at += 8
            if header < 0x80000000:
                if at + header > total:
                    return total
                starts[number] = at
                lengths[number] = header
                at += header
                if not header:
                    skip = skipped
                continue
            lengths[number] = status = _NIL - (header & 0xFF)
            if status != _KNOWN:
                skip = skipped
            elif code is OpCode.IFACE:
                at = self._enter(
                    number, starts[block] + type_at, starts[block] + data_at, at, nesting
                )
        return at

    def _enter(self, number: int, type_at: int, data_at: int, at: int, nesting: int) -> int:
        (word,) = _word_at(self.data, type_at)
        subplan = self.context.subplan(word)
        if subplan is None or nesting >= MAX_NESTING:
            # Without the plan nobody can tell where its blocks end: none behind is found.
            return len(self.data)
        child = Frame(self.data, self.context, subplan.steps, subplan.blocks)
        child.starts[0] = data_at
        child.lengths[0] = _WORD
        self.children[number] = (subplan, child)
        return child.find_blocks(at, nesting + 1)

    def is_nil(self, block: int) -> bool:
        """Say whether a block is missing because its pointer was nil."""
        return self.lengths[block] == _NIL

    def why(self, block: int) -> Unavailable:
        """Say why bytes of a block are missing."""
        sources = {step.number: step.block for step in self._steps}
        for _ in range(MAX_BLOCKS):
            status = self.lengths[block]
            if status != _ABSENT or block not in sources:
                break
            block = sources[block]
        why = _WHY.get(status)
        return BEYOND if why is None else Unavailable(why)


class ReadContext:
    """Answer what decoding asks of the traced program; this one knows nothing.

    A subclass that knows a binary overrides any of the methods.
    """

    def subplan(self, word: int) -> Subplan | None:
        """Return the subplan that the interpreter was given for an itab's or type's address."""
        return None

    def type_name(self, word: int) -> str | None:
        """Return the name of the dynamic type that an itab's or type's address means."""
        return None

    def function_name(self, pc: int) -> str | None:
        """Return the name of the function whose code begins at an address."""
        return None


class Reader(abc.ABC):
    """Read one planned value from payloads."""

    __slots__ = ()

    @abc.abstractmethod
    def read(self, frame: Frame) -> Value:
        """Return the value; what is missing is Unavailable, nothing is raised."""

    def location(self) -> Location | None:
        """Return where the value's scalar, or a string's or slice's length, is captured."""
        return None


class Constant(Reader):
    """Give one value, whatever the payload."""

    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        """Take the value."""
        self._value = value

    def read(self, frame: Frame) -> Value:
        """Return the value."""
        return self._value


@dataclasses.dataclass(frozen=True, slots=True)
class Subplan:
    """Hold how an interface's value of one dynamic type is captured; ``ops`` end with END."""

    type: GoType
    ops: tuple[Op, ...]
    steps: tuple[Step, ...]
    blocks: int
    reader: Reader
