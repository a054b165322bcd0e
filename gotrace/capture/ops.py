# SPDX-License-Identifier: Apache-2.0
"""Define the operations of capture plans, as bpf/interpreter.h executes them."""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from gotrace.records import dataclass, replace

#: Blocks of one phase, block 0 and those of subplans included.
MAX_BLOCKS = 128
#: Of how many strings and slices more is copied than is planned first.
MAX_RESTS = 16
#: How deep IFACE goes into interfaces within interfaces.
MAX_NESTING = 4
#: Most bytes of a text in a key: KEY_TEXT_BYTES of bpf/payload.h.
MAX_KEY_TEXT = 256
#: How many values a predicate can have on its stack.
PREDICATE_STACK = 16
#: Set in the address of a dynamic type: of its plan with more pointers than usual.
DEEP = 1 << 47
#: Set in Op.more: it is of elements, not of a text.
MORE_ELEMENTS = 1 << 31
#: Set in an operation's block: a block of the entry, asked for at the return.
OTHER_PHASE = 0x8000


class OpCode(enum.IntEnum):
    """The operations."""

    END = 0
    REG = 1
    ZERO = 2
    STACK = 3
    DEREF = 4
    DEREF_N = 5
    IFACE = 6
    SPAN = 7
    ROOM = 8
    MORE = 9
    LABEL = 10
    PUSH_CONST = 16
    PUSH_FIELD = 17
    PUSH_SPECIAL = 18
    COMPARE = 19
    AND = 20
    OR = 21
    NOT = 22
    STRING_TEST = 23
    KEEP_IF = 24
    KEY_FIELD = 25
    KEY_TEXT = 26
    KEY_VALUE = 27
    KEY_CALLER = 28
    MEASURE = 29
    ARITHMETIC = 30
    SAVED = 31


class ComparisonCode(enum.IntEnum):
    """How COMPARE compares, in ``reg``, with SIGNED_OPERAND for the order of signed numbers."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_EQUAL = 3
    GREATER = 4
    GREATER_EQUAL = 5


class ArithmeticCode(enum.IntEnum):
    """The operator of ARITHMETIC, in ``reg``, with SIGNED_OPERAND for signed numbers."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3
    REMAINDER = 4
    BIT_AND = 5
    BIT_OR = 6
    BIT_XOR = 7
    BIT_CLEAR = 8
    SHIFT_LEFT = 9
    SHIFT_RIGHT = 10


#: Most contexts that SPAN reports: MAX_REPORTED_CONTEXTS of bpf/payload.h.
MAX_REPORTED_CONTEXTS = 12
#: Most contexts on the way to a span: MAX_CONTEXTS of bpf/context.h.
MAX_CONTEXTS = 64
#: In ``reg`` of COMPARE and ARITHMETIC, and with the width in that of PUSH_FIELD.
SIGNED_OPERAND = 0x80


class SpecialCode(enum.IntEnum):
    """The value that PUSH_SPECIAL pushes, in ``reg``."""

    GOID = 0
    PID = 1
    TID = 2
    DURATION = 3
    PARTS = 8  # and above: the number of a class of parts of the duration


class SpanPart(enum.IntEnum):
    """The part of a context's span that SPAN copies, in ``at2``; CONTEXTS: of the way there."""

    TRACE_ID = 0
    SPAN_ID = 1
    SAMPLED = 2
    CONTEXTS = 3


class WalkResult(enum.IntEnum):
    """The result of SPAN, instead of a length, if no way leads to a span or to its absence."""

    TOO_LONG = -3
    UNKNOWN_CONTEXT = -4
    UNKNOWN_SPAN = -5


class StringTest(enum.IntEnum):
    """The test of STRING_TEST, in ``reg``."""

    EQUAL = 0
    PREFIX = 1
    CONTAINS = 2


class Status(enum.IntEnum):
    """The headers that are not lengths."""

    NIL = 0x80000000
    FAULT = 0x80000001
    LIMIT = 0x80000002
    UNKNOWN_TYPE = 0x80000003
    KNOWN_TYPE = 0x80000004


#: A header with this is the size of what could be read of a block, up to the end of a page.
BLOCK_CUT = 0x40000000
#: The unit that can be in memory or not by itself. Pages may be larger: no copy is (_PHASE_BYTES of
#: session/trace_plan.py), so that the one boundary within what cannot be read is a page's end.
MEMORY_PAGE = 4096


_OP = struct.Struct("<BBHHHIIHHI")


class Rest(enum.IntEnum):
    """The part that MORE goes on with, in ``at``."""

    TEXT = 0
    ELEMENTS = 1


class Op(NamedTuple):
    """One operation; what the fields mean depends on ``code``:

    REG: append the low ``size`` bytes of register ``reg``. ZERO: append ``size`` zero bytes, at
    most 64. STACK: append ``size`` bytes from ``limit`` above the stack pointer at entry; it is
    signed, in 32 bits.
    LABEL: append ``size`` bytes, from ``at2`` on, of the string (its address, its length) that is
    the goroutine's pprof label of the key with the number ``limit``; ``g`` leads to its labels at
    ``at``, and ``reg`` is 1 where these are a map.
    DEREF: into block ``reg``, copy ``size`` bytes from ``limit`` after the pointer that is in
    ``block`` at ``at``. DEREF_N: the same, with a count in ``block`` at ``at2``, copy
    min(count * ``size``, ``limit``) bytes, from element ``start`` on; of up to ``more`` bytes the
    rest is noted for MORE. IFACE: go on by the type word at ``at``, for the data word at ``at2``;
    where ``limit`` is 1, by the plan that is DEEP. When one of these three copies nothing, the next
    ``skip`` operations are skipped. SAVED, at the return: append ``size`` bytes, at most 8, of the
    entry's block 0 at ``at``. SPAN: into block ``reg``, a SpanPart (``at2``) of the span that the
    context.Context in ``block`` at ``at`` holds, see bpf/context.h; the next block number is taken,
    too.

    ROOM: what comes next, up to another ROOM, may take ``size`` of ``at2`` parts of what the first
    of them (``at`` 1) has left of ``limit`` bytes. MORE: copy what has been noted of texts or of
    elements (``at``, a Rest), each its share of the room.

    Predicates: see bpf/predicate.h. ARITHMETIC leaves a number of ``size`` bytes; ``limit``: that
    on its right is signed.

    Keys, see bpf/key.h. KEY_FIELD appends ``reg`` bytes of ``block`` at ``at``. KEY_TEXT appends
    the text in block ``at2``, of which at most ``limit`` bytes were copied and whose length is in
    ``block`` at ``at``. KEY_VALUE appends what a predicate's operations have left on their stack.
    KEY_CALLER appends the return address. An IFACE of ``size`` 1 appends the type, and what the
    type's own operations say. MEASURE takes what a predicate's operations have left for the value
    that histograms are of; ``reg`` SIGNED_OPERAND: it may be negative.
    """

    code: OpCode
    reg: int = 0
    block: int = 0
    at: int = 0
    at2: int = 0
    size: int = 0
    limit: int = 0
    skip: int = 0
    start: int = 0
    more: int = 0

    @property
    def looks_back(self) -> bool:
        """Return whether it is of the return's plan and looks at a block of the entry's."""
        return self.code is OpCode.SAVED or bool(self.block & OTHER_PHASE)

    def pack(self) -> bytes:
        """Return the operation's 24 bytes as the interpreter's struct op has them."""
        return _OP.pack(*self)


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """The limits on the captured values of one phase of one call.

    ``string_bytes``: of each string or byte slice; ``depth``: pointers followed, one from the
    other; ``slice_elements`` and ``map_entries``: of each; ``struct_bytes``: of what is at the end
    of one pointer; ``payload``: bytes of all; ``ops``: operations, END included; ``subplan_ops``:
    those of one subplan.
    """

    string_bytes: int = 256
    depth: int = 1
    slice_elements: int = 8
    map_entries: int = 8
    struct_bytes: int = 1024
    payload: int = 4096
    ops: int = 96
    subplan_ops: int = 32

    @property
    def usual(self) -> CaptureLimits:
        """Return the limits of what is planned first; what is beyond them, when that is there.

        So whoever asks for more still gets what is there without it.
        """
        usual = CaptureLimits()
        return replace(
            self,
            string_bytes=min(self.string_bytes, usual.string_bytes),
            depth=min(self.depth, usual.depth),
            slice_elements=min(self.slice_elements, usual.slice_elements),
            map_entries=min(self.map_entries, usual.map_entries),
        )

    @property
    def text_bytes(self) -> int:
        """Return how many bytes of a string are copied: at most half of the payload."""
        return max(1, min(self.string_bytes, self.most_text_bytes))

    @property
    def most_text_bytes(self) -> int:
        """Return how many bytes of a string are copied whatever ``string_bytes`` asks for."""
        return self.payload // 2


class FieldRef(NamedTuple):
    """Where a scalar is captured, for PUSH_FIELD; of a string or slice, its length.

    ``width`` in bytes. ``bytes_block``: the block of the string's bytes, for STRING_TEST, and
    ``bytes_limit`` how many of them are copied at most.
    """

    block: int
    offset: int
    width: int
    signed: bool
    bytes_block: int | None = None
    bytes_limit: int = 0


class Position(NamedTuple):
    """A place in a block; bytes from ``end`` on are not this value's or not captured."""

    block: int
    offset: int
    end: int

    def plus(self, delta: int) -> Position:
        """Return the position of a part of the value here."""
        return Position(self.block, self.offset + delta, self.end)


class BlockOp(NamedTuple):
    """An operation that writes a block, for the walk over a payload.

    ``end``: how far it reaches into its source ``block``; the other fields are those of ``Op``.
    """

    code: OpCode
    number: int
    block: int
    end: int
    at: int
    at2: int
    skip: int
    size: int
    limit: int
    start: int
    more: int
