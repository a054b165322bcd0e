# SPDX-License-Identifier: Apache-2.0
"""Capture values from memory without a kernel: made up by a test, or a running program's."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from types import TracebackType

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.builder import PlanNode
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import DEEP, CaptureLimits, Op
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase, read_phase
from gotrace.gotypes.types import (
    ArrayType,
    Field,
    GoType,
    Kind,
    Lazy,
    PointerType,
    SliceType,
    StructType,
    basic_type,
    struct_alignment,
)
from gotrace.values.model import Value
from tests.capture.reference import Machine, Memory, run_reference

INT = basic_type(Kind.INT)
STRING = basic_type(Kind.STRING)


def pointer_to(elem: GoType) -> PointerType:
    return PointerType(f"*{elem.name}", Kind.POINTER, 8, 8, Lazy.of(elem))


def slice_of(elem: GoType, name: str = "") -> SliceType:
    return SliceType(name or f"[]{elem.name}", Kind.SLICE, 24, 8, Lazy.of(elem))


def array_of(length: int, elem: GoType) -> ArrayType:
    name = f"[{length}]{elem.name}"
    return ArrayType(name, Kind.ARRAY, length * elem.size, elem.align, elem, length)


def struct_of(name: str, **fields: GoType) -> StructType:
    """Lay a struct out as Go does."""
    placed: list[Field] = []
    offset = 0
    for field, go_type in fields.items():
        offset = -(-offset // go_type.align) * go_type.align
        placed.append(Field(field, offset, go_type))
        offset += go_type.size
    align = struct_alignment(tuple(placed))
    return StructType(name, Kind.STRUCT, -(-offset // align) * align, align, tuple(placed))


class Heap:
    """Make up a process's memory."""

    def __init__(self) -> None:
        self.ranges: dict[int, bytes] = {}
        self._next = 0xC000010000

    def put(self, data: bytes) -> int:
        """Keep bytes; return their address."""
        address = self._next
        self.ranges[address] = data
        # A gap, so that reading beyond faults.
        self._next += (len(data) + 31) // 16 * 16
        return address

    def string(self, text: bytes) -> bytes:
        """Return a string's two words."""
        return struct.pack("<QQ", self.put(text) if text else 0, len(text))

    def slice(self, elements: Sequence[bytes], capacity: int | None = None) -> bytes:
        """Return a slice's three words."""
        count = len(elements)
        capacity = count if capacity is None else capacity
        return struct.pack("<QQQ", self.put(b"".join(elements)), count, capacity)


class KnownTypes(ReadContext):
    """Know some dynamic types, functions, and memory that the kernel does not read, by address."""

    def __init__(
        self,
        subplans: Mapping[int, Subplan] | None = None,
        functions: Mapping[int, str] | None = None,
        constants: Memory | None = None,
        untouched: range = range(0),
    ) -> None:
        self.subplans = dict(subplans or {})
        self.constants = constants or Memory({})
        self.untouched = untouched
        self.names: dict[int, str] = {}
        self.functions = dict(functions or {})

    def subplan(self, word: int) -> Subplan | None:
        return self.subplans.get(word)

    def type_name(self, word: int) -> str | None:
        return self.names.get(word)

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        return self.constants.read(address, size)

    def is_untouched(self, address: int, size: int) -> bool:
        return self.untouched.start <= address and address + size <= self.untouched.stop

    def function_name(self, pc: int) -> str | None:
        return self.functions.get(pc)

    @property
    def ops(self) -> dict[int, tuple[Op, ...]]:
        ops = {word: subplan.ops for word, subplan in self.subplans.items()}
        deep = {w | DEEP: s.deep.ops for w, s in self.subplans.items() if s.deep}
        return ops | deep


_STACK = 0x7F0000000000


def capture_all(
    nodes: Sequence[PlanNode],
    images: Sequence[bytes],
    heap: Heap,
    limits: CaptureLimits | None = None,
    context: KnownTypes | None = None,
    steps: int = 96,
) -> tuple[list[Value], PhasePlan, bytes]:
    """Capture values whose images are on the stack; return the plan and the payload as well."""
    context = context or KnownTypes()
    placed: list[PlacedNode] = []
    stack = b""
    for index, (node, image) in enumerate(zip(nodes, images, strict=True)):
        pieces = (Piece(0, len(image), Stack(len(stack))),) if image else ()
        placed.append(PlacedNode(f"v{index}", node, pieces))
        stack += image.ljust(-(-len(image) // 8) * 8, b"\0")
    limits = limits or CaptureLimits()
    plan = plan_phase(placed, limits)
    memory = Memory({**heap.ranges, _STACK: stack})
    machine = Machine(memory, stack_pointer=_STACK, subplans=context.ops)
    outcome = run_reference(plan.ops, machine, payload=plan.payload_bound, steps=steps)
    return read_phase(plan, outcome.payload, context), plan, outcome.payload


def capture(
    go_type: GoType,
    image: bytes,
    heap: Heap | None = None,
    limits: CaptureLimits | None = None,
    context: KnownTypes | None = None,
    release: tuple[int, int] | None = None,
) -> Value:
    """Capture one value whose image is on the stack."""
    limits = limits or CaptureLimits()
    node = NodeFactory(limits, release).node(go_type)
    values, _, _ = capture_all([node], [image], heap or Heap(), limits, context)
    return values[0]


class ProcessMemory(Memory):
    """Read the memory of a running process."""

    def __init__(self, pid: int) -> None:
        super().__init__({})
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self, address: int, size: int) -> bytes | None:
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError):
            return None
        return data if len(data) == size else None

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
