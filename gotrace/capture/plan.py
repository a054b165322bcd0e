# SPDX-License-Identifier: Apache-2.0
"""Plan which bytes of a call to copy, and read the copies back.

A plan is a list of operations for the interpreter in bpf/interpreter.h. One phase, a call's entry
or its return, runs one plan and fills one payload:

    block 0     the root image: the in-memory images of all values, as the plan's REG, ZERO and
                STACK operations append them. It has no header.
    block k     begins at the next multiple of 8: u32 zero, u32 header, the bytes. The header is
                the number of bytes, or a Status.

Every DEREF, DEREF_N and IFACE writes one block, in the order of the plan; an operation whose
source bytes are outside of what its source block holds writes none, and leaves its block number
without bytes. A block number may be given again: later operations see the latest. IFACE goes on
with the subplan of a dynamic type, whose block 0 is the data word and whose block numbers count
from IFACE's own. So the same walk over the plan that wrote a payload finds every block in it:
that is ``PayloadReader.find_blocks``, after which values are read in any order, by block number.

Values are planned breadth first, and by turns: what all values hold directly comes before what
their pointers lead to, so that a limit cuts the deepest first. The usual values come before the
additions that were asked for (``Extra``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gotrace.abi.assign import FloatReg, IntReg, Label, Piece, Saved, Stack
from gotrace.capture.builder import Builder, FloatHole, PlanNode, with_key
from gotrace.capture.ops import (
    BlockOp,
    CaptureLimits,
    FieldRef,
    Op,
    OpCode,
    Position,
)
from gotrace.capture.payload import (
    REFUSED,
    FixedReader,
    PayloadReader,
    ReadContext,
    Reader,
)
from gotrace.gotypes.types import InterfaceType
from gotrace.records import dataclass, replace
from gotrace.values.model import UnavailableValue, Value

#: Root images beyond this leave no room for blocks; values that do not fit are refused.
_MAX_IMAGE = 2048
_MAX_ZERO = 64
#: Room that an interface's value is given. Errors that wrap three others take less than half.
_SUBPLAN_BYTES = 1024


class PlacedNode(NamedTuple):
    """A value to capture: ``pieces`` say where its image is; None: not known, for ``problem``.

    ``first``: plan it before the others, since an expression of the user's asks for it.
    """

    name: str
    node: PlanNode
    pieces: tuple[Piece, ...] | None
    problem: str | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """How all values of a call's entry, or of its return, are captured.

    ``root`` has (name, offset in the root image, node) of each value, ``readers`` what reads it.
    After the first ``early`` of ``ops``, everything that values marked ``first`` need is there:
    predicates belong there. ``payload_bound``: room that a payload wants; what does not fit into
    it reads as Unavailable, which only large values of interfaces can come to. ``usual_bound`` is
    the room that would be wanted if no more than usual was asked for. ``float_holes``: what
    read_phase takes from ``floats``. ``interfaces`` are the types of those whose values are
    captured.
    """

    ops: tuple[Op, ...]
    root: tuple[tuple[str, int, PlanNode], ...]
    readers: tuple[Reader, ...]
    image_size: int
    payload_bound: int
    usual_bound: int
    early: int
    float_holes: tuple[FloatHole, ...]
    steps: tuple[BlockOp, ...]
    blocks: int
    interfaces: tuple[InterfaceType, ...]

    @property
    def float_registers(self) -> tuple[int, ...]:
        """Return the float registers whose values are wanted, each once, in order."""
        return tuple(sorted({hole.register for hole in self.float_holes if not hole.is_vector}))

    def location(self, index: int) -> FieldRef | None:
        """Return where the value of an index is captured, None where a predicate cannot see it."""
        return self.readers[index].location()

    def with_predicate(self, predicate: Sequence[Op]) -> PhasePlan:
        """Return the plan with a predicate, evaluated as soon as its operands are there."""
        ops = (*self.ops[: self.early], *predicate, *self.ops[self.early :])
        return replace(self, ops=ops, early=self.early + len(predicate))

    def with_key(self, key: Sequence[Op]) -> PhasePlan:
        """Return the plan with operations that append values to a key, at its end."""
        return replace(self, ops=(*with_key(self.ops[:-1], key), self.ops[-1]))


def plan_phase(values: Sequence[PlacedNode], limits: CaptureLimits) -> PhasePlan:
    """Plan how to capture values.

    A value without a place, or beyond the limits, reads as Unavailable; it shifts no other.
    """
    builder = Builder(limits, limits.ops - 1)
    image = _Image(builder)
    turns = sorted(range(len(values)), key=lambda index: not values[index].first)
    places = {index: image.add(values[index]) for index in turns}
    positions = [places[index] for index in range(len(values))]
    builder.bound = image.size
    readers: dict[int, Reader] = {}
    for is_first in (True, False):
        for index, (value, position) in enumerate(zip(values, positions, strict=True)):
            if value.first is is_first:
                builder.owner = index
                readers[index] = _reader(builder, value, position)
        builder.run()
        if is_first:
            early = len(builder.ops)
    interfaces = sum(op.code is OpCode.IFACE for op in builder.ops)
    bound = min((builder.bound + 7 & ~7) + interfaces * _SUBPLAN_BYTES, limits.payload)
    usual, usual_bound = len(builder.ops), bound
    builder.run_extras(limits.payload, limits.ops * 2 // 3)
    if len(builder.ops) > usual:
        bound = limits.payload
    return PhasePlan(
        (*builder.ops, Op(OpCode.END)),
        tuple(
            (value.name, position.offset if isinstance(position, Position) else 0, value.node)
            for value, position in zip(values, positions, strict=True)
        ),
        tuple(readers[index] for index in range(len(values))),
        image.size,
        bound,
        usual_bound,
        early,
        tuple(builder.float_holes),
        builder.steps,
        builder.blocks,
        builder.interfaces,
    )


def _reader(builder: Builder, value: PlacedNode, position: Position | UnavailableValue) -> Reader:
    if isinstance(position, UnavailableValue):
        return FixedReader(position)
    return value.node.plan(builder, position)


class _Image:
    """Lay the images of values out, one after the other, in block 0."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.size = 0

    def add(self, value: PlacedNode) -> Position | UnavailableValue:
        """Append a value's image; return where it is, or why it is not."""
        if value.pieces is None:
            return UnavailableValue(value.problem or "its place is not known")
        limits = self._builder.limits
        node = value.node
        size = min(node.size, limits.struct_bytes)
        start = -(-self.size // node.align) * node.align
        holes = [piece for piece in value.pieces if isinstance(piece.place, FloatReg)]
        ops = self._ops(value.pieces, start, size)
        room = limits.ops - 1 - len(self._builder.ops)
        if len(ops) > room or start + size > min(_MAX_IMAGE, limits.payload // 2):
            return REFUSED
        self._builder.ops += ops
        self._builder.float_holes += [
            FloatHole(start + piece.offset, piece.size, piece.place.index)
            for piece in holes
            if isinstance(piece.place, FloatReg) and piece.offset + piece.size <= size
        ]
        self.size = start + size
        return Position(0, start, start + size)

    def _ops(self, pieces: Sequence[Piece], start: int, size: int) -> list[Op]:
        ops = self._zeros(start - self.size)
        filled = 0
        for piece in sorted(pieces, key=lambda piece: piece.offset):
            wanted = min(piece.size, size - piece.offset)
            if wanted <= 0 or piece.offset < filled:
                continue
            ops += self._zeros(piece.offset - filled)
            if isinstance(piece.place, IntReg):
                ops.append(Op(OpCode.REG, reg=piece.place.index, size=wanted))
            elif isinstance(piece.place, Saved):
                start_at = piece.place.offset
                ops += [
                    Op(OpCode.SAVED, size=min(8, wanted - at), at=start_at + at)
                    for at in range(0, wanted, 8)
                ]
            elif isinstance(piece.place, Label):
                label = piece.place
                ops.append(
                    Op(
                        OpCode.LABEL,
                        reg=int(label.is_map),
                        at=label.labels,
                        at2=label.offset,
                        size=wanted,
                        limit=label.key,
                    )
                )
            elif isinstance(piece.place, Stack):
                ops.append(Op(OpCode.STACK, size=wanted, limit=piece.place.offset & 0xFFFFFFFF))
            else:
                ops += self._zeros(wanted)
            filled = piece.offset + wanted
        return ops + self._zeros(size - filled)

    @staticmethod
    def _zeros(count: int) -> list[Op]:
        sizes = [min(_MAX_ZERO, count - at) for at in range(0, count, _MAX_ZERO)]
        return [Op(OpCode.ZERO, size=size) for size in sizes]


def read_phase(
    plan: PhasePlan,
    recorded: bytes | memoryview,
    context: ReadContext,
    floats: Mapping[int, bytes] | None = None,
    no_floats: str = "in a float register",
) -> list[Value]:
    """Return the values of one payload, in the order in which they were planned.

    ``floats``: 8 bytes of each float register that could be had; a value that needs another one
    is unavailable because of ``no_floats``. Any payload gives values; nothing is raised.
    """
    data = bytes(recorded)
    if plan.float_holes and floats:
        data = _filled(plan, data, floats)
    payload = PayloadReader(data, context, plan.steps, plan.blocks)
    payload.lengths[0] = min(plan.image_size, len(data))
    if plan.steps:
        payload.find_blocks(plan.image_size)
    if plan.float_holes:
        payload.floats = frozenset(floats or ())
        payload.no_floats = no_floats
    return [reader.read(payload) for reader in plan.readers]


def read_image(plan: PhasePlan, image: bytes, context: ReadContext) -> list[Value]:
    """Return values by their own bytes, the root image; the context has their targets."""
    payload = PayloadReader(image, context, plan.steps, plan.blocks)
    payload.lengths[0] = min(plan.image_size, len(image))
    payload.follow()
    return [reader.read(payload) for reader in plan.readers]


def _filled(plan: PhasePlan, data: bytes, floats: Mapping[int, bytes]) -> bytes:
    filled = bytearray(data)
    for hole in plan.float_holes:
        value = None if hole.is_vector else floats.get(hole.register)
        if value is not None and hole.offset + hole.size <= len(filled):
            filled[hole.offset : hole.offset + hole.size] = value[: hole.size].ljust(hole.size)
    return bytes(filled)
