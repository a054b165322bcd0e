# SPDX-License-Identifier: Apache-2.0
"""Ask for more of random values of random types: nothing that was there is gone or shorter."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import replace

import pytest

from gotrace.capture.factory import NodeFactory
from gotrace.capture.interfaces import is_direct
from gotrace.capture.ops import CaptureLimits
from gotrace.gotypes.types import (
    ArrayType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.values.model import (
    BytesValue,
    InterfaceValue,
    MapValue,
    NamedValue,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)
from tests.capture.memory import (
    INT,
    STRING,
    Heap,
    KnownTypes,
    array_of,
    capture_all,
    pointer_to,
    slice_of,
    struct_of,
)
from tests.toolchains import parts

USUAL = CaptureLimits(payload=3584)
ANY = InterfaceType("interface {}", Kind.INTERFACE, 16, 8, True)
BYTE = basic_type(Kind.UINT8)
#: Of Go 1.15: buckets of classic maps are simple to make up.
RELEASE = (1, 15)
SETTINGS = {
    "string_bytes": (256, 257, 300, 512, 1000, 1792),
    "slice_elements": (8, 9, 12, 16, 31, 64),
    "depth": (1, 2, 3, 4, 5),
}


class Program:
    """A made-up program: types, and values of them in memory."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.heap = Heap()
        self.known: list[tuple[int, GoType]] = []
        self.made = 0

    def type(self, room: int = 4) -> GoType:
        """Return a random type; ``room``: how deep types are within one another."""
        forms = ["int", "string", "bytes", "any"]
        forms += ["pointer", "slice", "struct", "struct", "array", "map"] if room else []
        form = self.random.choice(forms)
        if form == "int":
            return self.random.choice((INT, basic_type(Kind.BOOL), basic_type(Kind.INT32)))
        if form == "string":
            return STRING
        if form == "bytes":
            return slice_of(BYTE)
        if form == "any":
            return ANY
        if form == "struct":
            count = self.random.choice((1, 2, 3, 5, 12))
            fields = {f"f{number}": self.type(room - 1) for number in range(count)}
            return struct_of(f"main.t{self.random.random()}", **fields)
        elem = self.type(room - 1)
        if form == "pointer":
            return pointer_to(elem)
        if elem.kind is Kind.UINT8:
            return elem
        if form == "array":
            return array_of(self.random.choice((1, 3, 12, 20)), elem)
        if form == "map" and elem.size <= 128:
            key = self.random.choice((INT, STRING))
            name = f"map[{key.name}]{elem.name}"
            return MapType(name, Kind.MAP, 8, 8, Lazy.of(key), Lazy.of(elem))
        return slice_of(elem)

    def image(self, go_type: GoType, room: int = 6) -> bytes:
        """Put a random value into memory; return its image."""
        self.made += 1
        rare = self.random.random() < (0.1 if room and self.made < 1500 else 1)
        if go_type.kind is Kind.STRING:
            return self.heap.string(self.text())
        if isinstance(go_type, PointerType):
            return bytes(8) if rare else self.address(self.image(go_type.elem, room - 1))
        if isinstance(go_type, SliceType):
            if go_type.elem.kind is Kind.UINT8:
                text = self.text()
                return self.address(text) + struct.pack("<QQ", len(text), len(text))
            count = 0 if rare else self.random.choice((1, 2, 7, 10, 20, 70))
            elements = [self.image(go_type.elem, room - 1) for _ in range(count)]
            return self.heap.slice(elements)
        if isinstance(go_type, ArrayType):
            return b"".join(self.image(go_type.elem, room) for _ in range(go_type.length))
        if isinstance(go_type, StructType):
            laid = bytearray(go_type.size)
            for field in go_type.fields:
                part = self.image(field.type, room)
                laid[field.offset : field.offset + field.type.size] = part
            return bytes(laid)
        if isinstance(go_type, MapType):
            return bytes(8) if rare else self.map(go_type, room - 1)
        if go_type.kind is Kind.INTERFACE:
            return bytes(16) if rare else self.held(room - 1)
        return self.random.randbytes(go_type.size).replace(b"\0", b"\1")

    def address(self, image: bytes) -> bytes:
        return struct.pack("<Q", self.heap.put(image))

    def text(self) -> bytes:
        return b"x" * self.random.choice((0, 3, 20, 100, 255, 256, 400, 700, 3000))

    def map(self, go_type: MapType, room: int) -> bytes:
        keys = [self.image(go_type.key, room) for _ in range(5)]
        elems = [self.image(go_type.elem, room) for _ in range(5)]
        bucket = bytes([9] * 5 + [0] * 3) + b"".join(keys) + bytes(3 * go_type.key.size)
        bucket += b"".join(elems) + bytes(3 * go_type.elem.size + 8)
        return self.address(struct.pack("<QQQ", 5, 0, self.heap.put(bucket)) + bytes(24))

    def held(self, room: int) -> bytes:
        go_type = self.type(2)
        word = 0x500000 + 64 * len(self.known)
        self.known.append((word, go_type))
        image = self.image(go_type, room)
        direct = is_direct(go_type, RELEASE)
        return struct.pack("<Q", word) + (image if direct else self.address(image))

    def types_in(self, limits: CaptureLimits) -> KnownTypes:
        factory = NodeFactory(limits, RELEASE)
        context = KnownTypes({word: factory.subplan_for(known) for word, known in self.known})
        context.names |= {word: known.name for word, known in self.known}
        return context


def shows_less(more: Value, less: Value) -> str | None:
    """Return what a value lacks that another one has; None where it has all."""
    if isinstance(less, UnavailableValue) or more == less:
        return None
    if type(more) is not type(less):
        return f"{more!r:.200} is there, not {less!r:.200}"
    pairs: list[tuple[Value, Value]] = []
    if isinstance(less, StringValue | BytesValue):
        assert isinstance(more, StringValue | BytesValue)
        texts = [v.text if isinstance(v, StringValue) else v.data for v in (more, less)]
        return None if texts[0].startswith(texts[1]) else f"{len(texts[0])} < {len(texts[1])}"
    if isinstance(less, SequenceValue) and isinstance(more, SequenceValue):
        if len(more.elements) < len(less.elements):
            return f"{more.type}: {len(more.elements)} < {len(less.elements)} elements"
        pairs = list(zip(more.elements, less.elements, strict=False))
    elif isinstance(less, StructValue) and isinstance(more, StructValue):
        pairs = [(a, b) for (_, a), (_, b) in zip(more.fields, less.fields, strict=True)]
    elif isinstance(less, PointerValue) and isinstance(more, PointerValue):
        pairs = [] if less.target is None else [(more.target or UnavailableValue("-"), less.target)]
    elif isinstance(less, MapValue) and isinstance(more, MapValue):
        if len(more.entries) < len(less.entries):
            return f"{more.type}: {len(more.entries)} < {len(less.entries)} entries"
        entries = zip(more.entries, less.entries, strict=False)
        pairs = [pair for a, b in entries for pair in zip(a, b, strict=True)]
    elif isinstance(less, InterfaceValue) and isinstance(more, InterfaceValue):
        pairs = [] if less.value is None else [(more.value or UnavailableValue("-"), less.value)]
    elif isinstance(less, NamedValue) and isinstance(more, NamedValue):
        pairs = [(more.value, less.value)]
    else:
        return f"{more!r:.200} is there, not {less!r:.200}"
    return next((found for pair in pairs if (found := shows_less(*pair))), None)


@pytest.mark.slow
@parts(10)
def test_more_is_never_less(part: int) -> None:
    """A hundred types, and values that do not fit: each limit raised, from any others."""
    seen: Counter[str] = Counter()
    for seed in range(100 * part, 100 * part + 100):
        program = Program(seed)
        types = [program.type() for _ in range(program.random.randrange(1, 5))]
        images = [program.image(go_type) for go_type in types]
        if sum(len(image) for image in images) > 1500 or len(program.known) > 3000:
            types, images = types[:1], images[:1]

        def shown(limits: CaptureLimits, program=program, types=types, images=images):  # type: ignore[no-untyped-def]
            nodes = [NodeFactory(limits, RELEASE).node(go_type) for go_type in types]
            context = program.types_in(limits)
            return capture_all(nodes, images, program.heap, limits, context, steps=100_000)

        lower = {name: program.random.choice(choices) for name, choices in SETTINGS.items()}
        lower_limits = replace(USUAL, map_entries=lower["slice_elements"], **lower)
        less, _, payload = shown(lower_limits)
        seen["full"] += len(payload) > USUAL.payload - 64
        seen["extended"] += lower_limits != lower_limits.usual
        for name, choices in SETTINGS.items():
            higher = lower | {name: max(choices)}
            between = [choice for choice in choices if choice > lower[name]]
            if between:
                higher[name] = program.random.choice(between)
            limits = replace(USUAL, map_entries=higher["slice_elements"], **higher)
            more, _, _ = shown(limits)
            for number, (greater, smaller) in enumerate(zip(more, less, strict=True)):
                found = shows_less(greater, smaller)
                assert found is None, f"seed {seed}, {lower} to {higher}, v{number}: {found}"
                seen["more"] += greater != smaller
    assert min(seen.values()) > 10, seen
