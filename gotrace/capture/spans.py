# SPDX-License-Identifier: Apache-2.0
"""Capture the ids of the span that a context.Context holds."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.capture.builder import Builder, PlanNode
from gotrace.capture.ops import (
    MAX_CONTEXTS,
    MAX_REPORTED_CONTEXTS,
    FieldRef,
    Op,
    OpCode,
    Position,
    SpanPart,
    WalkResult,
)
from gotrace.capture.payload import REFUSED, FixedReader, PayloadReader, Reader, int_at, word_at
from gotrace.gotypes.types import Kind, basic_type
from gotrace.values.model import StringValue, UnavailableValue, Value

_WORD = 8
_DIGITS = {
    SpanPart.TRACE_ID: 32,
    SpanPart.SPAN_ID: 16,
    SpanPart.CONTEXTS: _WORD * MAX_REPORTED_CONTEXTS,
}
_TOO_LONG = UnavailableValue(f"no span in the first {MAX_CONTEXTS} contexts, and there are more")
_INT = basic_type(Kind.INT)


class SpanNode(PlanNode):
    """A context of which an id of its span is wanted, as text, or whether that is sampled.

    Or what is wanted are the addresses of the context and those that it was made from, as the bytes
    of a text. The text is empty where the context holds no span. ``measured``: the text's length is
    wanted.
    """

    __slots__ = ("_measured", "_part")

    def __init__(self, part: SpanPart, measured: bool) -> None:
        kind = Kind.BOOL if part is SpanPart.SAMPLED else Kind.STRING
        super().__init__(_INT if measured else basic_type(kind))
        self.size = 2 * _WORD
        self.align = _WORD
        self._part = part
        self._measured = measured

    def plan_parts(self, builder: Builder, position: Position) -> Reader:
        """Plan to follow the contexts."""
        block = builder.span(position, self._part)
        return (
            FixedReader(REFUSED)
            if block is None
            else _SpanReader(block, self._part, self._measured)
        )


class _SpanReader(Reader):
    __slots__ = ("_block", "_measured", "_part")

    def __init__(self, block: int, part: SpanPart, measured: bool) -> None:
        self._block = block
        self._part = part
        self._measured = measured

    def read(self, payload: PayloadReader) -> Value:
        if payload.lengths[self._block] < _WORD:
            return payload.why(self._block)
        start = payload.starts[self._block]
        length: int = int_at(payload.data, start)[0]
        if length < 0:
            return _unknown(payload, start, length)
        if self._part is SpanPart.SAMPLED:
            return bool(length)
        if self._measured:
            return length
        return StringValue(payload.data[start + _WORD : start + _WORD + length], length)

    def location(self) -> FieldRef:
        """Return where the length is, or the truth, and the digits."""
        if self._part is SpanPart.SAMPLED:
            return FieldRef(self._block, 0, 1, False)
        if self._measured:
            return FieldRef(self._block, 0, _WORD, True)
        # None is longer, so that none goes on after what was copied.
        limit = _DIGITS[self._part] + 1
        return FieldRef(self._block, 0, _WORD, True, self._block + 1, limit)

    def key(self) -> Sequence[Op]:
        digits = _DIGITS.get(self._part)
        if digits is None or self._measured:
            return [Op(OpCode.KEY_FIELD, reg=_WORD, block=self._block)]
        return [Op(OpCode.KEY_TEXT, block=self._block, at2=self._block + 1, limit=digits)]


def _unknown(payload: PayloadReader, start: int, result: int) -> UnavailableValue:
    """Return why it is not known whether there is a span."""
    if result == WalkResult.TOO_LONG:
        return _TOO_LONG
    (word,) = word_at(payload.data, start + _WORD)
    name = payload.context.type_name(word) if word else None
    what = "span" if result == WalkResult.UNKNOWN_SPAN else "context"
    return UnavailableValue(f"{what} of a type that is not followed: {name or 'not known'}")
