# SPDX-License-Identifier: Apache-2.0
"""Capture random values of random types, and random memory: all comes back, nothing is raised."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.factory import NodeFactory
from gotrace.capture.interfaces import is_direct
from gotrace.capture.ops import CaptureLimits, Op
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase, read_phase
from gotrace.gotypes.types import (
    ChanDirection,
    ChanType,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    basic_type,
)
from gotrace.session.trace_plan import MAX_EXTENDED_STEPS
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    InterfaceValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    Value,
)
from gotrace.values.to_json import to_json
from tests.capture.memory import (
    STRING,
    Heap,
    KnownTypes,
    array_of,
    capture_all,
    pointer_to,
    slice_of,
    struct_of,
)
from tests.capture.reference import Machine, Memory, run_reference

#: Wide enough for whatever the strategies below make: no limit gets in the way.
WIDE = CaptureLimits(depth=4, payload=1 << 16, struct_bytes=1 << 14, ops=10_000, subplan_ops=1000)

_INTEGERS = {
    Kind.INT8: "<b",
    Kind.UINT8: "<B",
    Kind.INT16: "<h",
    Kind.UINT32: "<I",
    Kind.INT: "<q",
    Kind.UINT64: "<Q",
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A type, a value of it in memory, and how it has to read."""

    type: GoType
    image: bytes
    value: Value


_Draw = Callable[[st.SearchStrategy[Any]], Any]


def samples(heap: Heap, draw: _Draw, go_type: GoType) -> Sample:
    """Put a random value of a type into memory."""
    if go_type.kind in _INTEGERS:
        layout = _INTEGERS[go_type.kind]
        image = draw(st.binary(min_size=go_type.size, max_size=go_type.size))
        return Sample(go_type, image, struct.unpack(layout, image)[0])
    if go_type.kind is Kind.STRING:
        text = draw(st.binary(max_size=20))
        return Sample(go_type, heap.string(text), StringValue(text, len(text)))
    if go_type.kind is Kind.POINTER:
        if draw(st.booleans()):
            return Sample(go_type, bytes(8), Nil(go_type.name))
        target = samples(heap, draw, go_type.elem)  # type: ignore[attr-defined]
        address = heap.put(target.image)
        value = PointerValue(go_type.name, address, target.value)
        return Sample(go_type, struct.pack("<Q", address), value)
    if go_type.kind is Kind.SLICE:
        count = draw(st.integers(0, 3))
        elements = [samples(heap, draw, go_type.elem) for _ in range(count)]  # type: ignore[attr-defined]
        image = heap.slice([element.image for element in elements], count + 2)
        values = tuple(element.value for element in elements)
        return Sample(go_type, image, SequenceValue(go_type.name, values, count, count + 2))
    if go_type.kind is Kind.ARRAY:
        parts = [samples(heap, draw, go_type.elem) for _ in range(go_type.length)]  # type: ignore[attr-defined]
        values = tuple(part.value for part in parts)
        image = b"".join(part.image for part in parts)
        return Sample(go_type, image, SequenceValue(go_type.name, values, len(parts)))
    laid = bytearray(go_type.size)
    fields = []
    for field in go_type.fields:  # type: ignore[attr-defined]
        part = samples(heap, draw, field.type)
        laid[field.offset : field.offset + field.type.size] = part.image
        fields.append((field.name, part.value))
    return Sample(go_type, bytes(laid), StructValue(go_type.name, tuple(fields)))


def _structs(inner: st.SearchStrategy[GoType]) -> st.SearchStrategy[GoType]:
    return st.lists(inner, max_size=4).map(
        lambda types: struct_of("main.s", **{f"f{i}": t for i, t in enumerate(types)})
    )


_BASE = st.sampled_from([basic_type(kind) for kind in _INTEGERS] + [STRING])


def _not_bytes(go_type: GoType) -> bool:
    """Leave slices and arrays of bytes, which read as BytesValue, to other tests."""
    return go_type.kind is not Kind.UINT8


def _composed(inner: st.SearchStrategy[GoType]) -> st.SearchStrategy[GoType]:
    elements = inner.filter(_not_bytes)
    return st.one_of(
        inner.map(pointer_to),
        elements.map(slice_of),
        st.tuples(st.integers(0, 3), elements).map(lambda pair: array_of(*pair)),
        _structs(inner),
    )


def types(leaves: st.SearchStrategy[GoType] = _BASE) -> st.SearchStrategy[GoType]:
    return st.recursive(leaves, _composed, max_leaves=5)


def _depth(go_type: GoType, kind: Kind) -> int:
    """Return how deep pointers or slices are within one another."""
    own = int(go_type.kind is kind)
    if go_type.kind in (Kind.POINTER, Kind.SLICE, Kind.ARRAY):
        return own + _depth(go_type.elem, kind)  # type: ignore[attr-defined]
    fields = getattr(go_type, "fields", ())
    return own + max((_depth(field.type, kind) for field in fields), default=0)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_come_back(data: st.DataObject) -> None:
    heap = Heap()
    shown = st.lists(
        types().filter(lambda t: _depth(t, Kind.POINTER) <= 4 and _depth(t, Kind.SLICE) <= 3),
        max_size=3,
    )
    made = [samples(heap, data.draw, go_type) for go_type in data.draw(shown)]
    factory = NodeFactory(WIDE)
    nodes = [factory.node(sample.type) for sample in made]
    values, plan, payload = capture_all(nodes, [sample.image for sample in made], heap, WIDE)
    if plan.blocks < 64:
        assert values == [sample.value for sample in made]
    assert len(payload) <= plan.payload_bound
    for value in values:
        go_syntax(value)
        json.dumps(to_json(value), allow_nan=False)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_memory_that_only_the_context_knows(data: st.DataObject) -> None:
    """Whichever parts of memory the kernel could not read, the values are the same."""
    heap = Heap()
    shown = types().filter(lambda t: _depth(t, Kind.POINTER) <= 4 and _depth(t, Kind.SLICE) <= 3)
    made = [samples(heap, data.draw, go_type) for go_type in data.draw(st.lists(shown, max_size=2))]
    boxed = samples(heap, data.draw, data.draw(shown))
    kept = boxed.image if is_direct(boxed.type, None) else struct.pack("<Q", heap.put(boxed.image))
    value = InterfaceValue("interface {}", boxed.type.name, boxed.value)
    made.append(Sample(ANY, struct.pack("<Q", 0x7000) + kept, value))
    constants = Memory(heap.ranges)
    heap.ranges = {a: held for a, held in heap.ranges.items() if data.draw(st.booleans())}
    factory = NodeFactory(WIDE)
    subplan = factory.subplan_for(boxed.type)
    context = KnownTypes({0x7000: subplan}, constants=constants)
    context.names[0x7000] = boxed.type.name
    nodes = [factory.node(sample.type) for sample in made]
    images = [sample.image for sample in made]
    values, plan, _ = capture_all(nodes, images, heap, WIDE, context)
    if plan.blocks + subplan.blocks < 64:
        assert values == [sample.value for sample in made]


class Garbage(Memory):
    """Bytes for most addresses: always the same for one, and mostly pointers and lengths."""

    def __init__(self, seed: int) -> None:
        super().__init__({})
        self._seed = seed

    def read(self, address: int, size: int) -> bytes | None:
        digest = hashlib.blake2b(f"{self._seed} {address & -8}".encode(), digest_size=64).digest()
        if digest[0] < 40 or size > 1 << 20:
            return None
        words = []
        for at in range(0, 64, 8):
            kind, number = digest[at], digest[at + 1]
            if kind < 100:
                words.append(0xC000000000 + 8 * number)
            elif kind < 200:
                words.append(
                    (0, 1, 7, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1, number)[number & 7]
                )
            else:
                words.append(int.from_bytes(digest[at : at + 8], "little"))
        data = struct.pack("<8Q", *words)
        return (data * (size // 64 + 1))[:size]


ANY = InterfaceType("interface {}", Kind.INTERFACE, 16, 8, True)
ERROR = InterfaceType("error", Kind.INTERFACE, 16, 8, False)
TIME = struct_of(
    "time.Time",
    wall=basic_type(Kind.UINT64),
    ext=basic_type(Kind.INT64),
    loc=basic_type(Kind.UINTPTR),
)
UINT128 = struct_of("x.uint128", hi=basic_type(Kind.UINT64), lo=basic_type(Kind.UINT64))
HOSTILE = st.sampled_from(
    [
        *[basic_type(kind) for kind in Kind if 1 <= kind.value <= 16],
        STRING,
        basic_type(Kind.STRING, "main.label"),
        basic_type(Kind.UNSAFE_POINTER),
        basic_type(Kind.INT64, "time.Duration"),
        ANY,
        ERROR,
        TIME,
        struct_of("net/netip.Addr", addr=UINT128, z=struct_of("h", value=pointer_to(STRING))),
        slice_of(basic_type(Kind.UINT8)),
        slice_of(basic_type(Kind.UINT8), "net.IP"),
        array_of(40, basic_type(Kind.UINT8)),
        array_of(1 << 40, basic_type(Kind.INT)),
        FuncType("func()", Kind.FUNC, 8, 8),
        ChanType("chan int", Kind.CHAN, 8, 8, ChanDirection.BOTH, Lazy.of(STRING)),
        MapType("map[string]error", Kind.MAP, 8, 8, Lazy.of(STRING), Lazy.of(ERROR)),
        MapType(
            "map[int]x",
            Kind.MAP,
            8,
            8,
            Lazy.of(basic_type(Kind.INT)),
            Lazy.of(array_of(99, STRING)),
        ),
    ]
)
WRAP = pointer_to(struct_of("fmt.wrapError", msg=STRING, err=ERROR))
JOIN = pointer_to(struct_of("errors.joinError", errs=slice_of(ERROR)))


class Anything(ReadContext, Mapping[int, "tuple[Op, ...]"]):
    """Take any word for one of a few types, and know the memory that the kernel cannot read."""

    def __init__(self, factory: NodeFactory, seed: int = 0) -> None:
        self._memory = Garbage(seed)
        self._subplans = [factory.subplan_for(t) for t in (WRAP, JOIN, STRING, TIME)]

    def subplan(self, word: int) -> Subplan | None:
        return self._subplans[word % 4] if word % 5 else None

    def type_name(self, word: int) -> str | None:
        return "*main.t" if word & 1 else None

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        return self._memory.read(address, size)

    def function_name(self, pc: int) -> str | None:
        return None

    def __getitem__(self, word: int) -> tuple[Op, ...]:
        subplan = self.subplan(word)
        if subplan is None:
            raise KeyError(word)
        return subplan.ops

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _plan(shown: list[GoType], factory: NodeFactory, limits: CaptureLimits) -> PhasePlan:
    placed = [
        PlacedNode(f"v{index}", factory.node(t), (Piece(0, t.size, Stack(8 * index)),))
        for index, t in enumerate(shown)
    ]
    return plan_phase(placed, limits)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(types(HOSTILE), min_size=1, max_size=4),
    st.integers(0, 1 << 16),
    st.sampled_from([None, (1, 15), (1, 23), (1, 24), (1, 27)]),
    st.integers(0, 3),
)
def test_hostile_memory(
    shown: list[GoType], seed: int, release: tuple[int, int] | None, depth: int
) -> None:
    limits = CaptureLimits(depth=depth)
    factory = NodeFactory(limits, release)
    plan = _plan(shown, factory, limits)
    assert len(plan.ops) <= MAX_EXTENDED_STEPS
    context = Anything(factory)
    machine = Machine(Garbage(seed), stack_pointer=0xC000000000, subplans=context)
    outcome = run_reference(plan.ops, machine, payload=plan.payload_bound)
    assert outcome.steps <= MAX_EXTENDED_STEPS
    assert len(outcome.payload) <= plan.payload_bound <= limits.payload
    for value in read_phase(plan, outcome.payload, context):
        assert go_syntax(value).isprintable()
        json.dumps(to_json(value), allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(st.lists(types(HOSTILE), min_size=1, max_size=3), st.binary(max_size=600))
def test_hostile_payloads(shown: list[GoType], payload: bytes) -> None:
    limits = CaptureLimits()
    factory = NodeFactory(limits, (1, 24))
    plan = _plan(shown, factory, limits)
    for value in read_phase(plan, payload, Anything(factory), {0: b"", 1: bytes(8)}):
        assert go_syntax(value).isprintable()
        json.dumps(to_json(value), allow_nan=False)
