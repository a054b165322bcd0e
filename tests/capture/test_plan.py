# SPDX-License-Identifier: Apache-2.0
"""Check plans, the reference interpreter and the walk over payloads, by values made by hand."""

from __future__ import annotations

import struct

import pytest

from gotrace.abi.assign import FloatReg, IntReg, Piece, Stack
from gotrace.abi.locations import CapturedValue
from gotrace.capture.builder import FloatHole
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import MAX_BLOCKS, OTHER_PHASE, CaptureLimits, FieldRef, Op, OpCode, Status
from gotrace.capture.paths import PathError, PathMark, path_node, place_captured, place_path
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PlacedNode, plan_phase, read_phase
from gotrace.gotypes.types import InterfaceType, Kind, basic_type
from gotrace.values.model import (
    Nil,
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
    array_of,
    capture,
    capture_all,
    pointer_to,
    slice_of,
    struct_of,
)
from tests.capture.reference import Machine, Memory, Outcome, run_reference

LIMITS = CaptureLimits()
FACTORY = NodeFactory(LIMITS)
BOOL = basic_type(Kind.BOOL)
INT32 = basic_type(Kind.INT32)
FLOAT64 = basic_type(Kind.FLOAT64)
FLOAT32 = basic_type(Kind.FLOAT32)
NOBODY = ReadContext()
ANY = InterfaceType("any", Kind.INTERFACE, 16, 8, True)


def read(placed: list[PlacedNode], machine: Machine, limits: CaptureLimits = LIMITS) -> list[Value]:
    plan = plan_phase(placed, limits)
    return read_phase(plan, run_reference(plan.ops, machine).payload, NOBODY)


def test_op_layout() -> None:
    op = Op(OpCode.DEREF_N, 1, 0x0203, 0x0405, 0x0607, 0x08090A0B, 0x0C0D0E0F, 0x1011)
    assert op.pack().hex() == "05010302050407060b0a09080f0e0d0c1110" + "00" * 6
    assert len(Op(OpCode.END).pack()) == 24


def test_image_in_registers_and_on_the_stack() -> None:
    placed = [
        PlacedNode("flag", FACTORY.node(BOOL), (Piece(0, 1, IntReg(2)),)),
        PlacedNode("n", FACTORY.node(INT32), (Piece(0, 4, Stack(16)),)),
        PlacedNode("w", FACTORY.node(INT), (Piece(0, 8, IntReg(0)),)),
    ]
    plan = plan_phase(placed, LIMITS)
    assert plan.ops == (
        Op(OpCode.REG, reg=2, size=1),
        Op(OpCode.ZERO, size=3),
        Op(OpCode.STACK, size=4, limit=16),
        Op(OpCode.REG, reg=0, size=8),
        Op(OpCode.END),
    )
    assert [(name, offset) for name, offset, _ in plan.root] == [("flag", 0), ("n", 4), ("w", 8)]
    assert plan.image_size == plan.payload_bound == 16
    memory = Memory({0x7000: bytes(16) + struct.pack("<i", -9)})
    machine = Machine(memory, {0: (1 << 64) - 5, 2: 0xFF01}, 0x7000)
    outcome = run_reference(plan.ops, machine)
    assert outcome.payload == struct.pack("<B3xiq", 1, -9, -5)
    assert read_phase(plan, memoryview(outcome.payload), NOBODY) == [True, -9, -5]
    locations = [plan.location(index) for index in range(3)]
    assert locations == [
        FieldRef(0, 0, 1, False),
        FieldRef(0, 4, 4, True),
        FieldRef(0, 8, 8, True),
    ]


def test_a_value_without_a_place_shifts_nothing() -> None:
    node = FACTORY.node(INT)
    placed = [
        PlacedNode("a", node, (Piece(0, 8, IntReg(0)),)),
        PlacedNode("b", node, None, "nobody knows"),
        PlacedNode("c", node, (Piece(0, 8, IntReg(1)),)),
        PlacedNode("d", FACTORY.node(struct_of("main.empty")), ()),
    ]
    found = read(placed, Machine(Memory({}), {0: 1, 1: 2}))
    assert found == [1, UnavailableValue("nobody knows"), 2, StructValue("main.empty", ())]


def test_padding_within_a_struct() -> None:
    pair = struct_of("main.p", a=BOOL, n=INT, z=BOOL)
    pieces = (Piece(0, 1, IntReg(0)), Piece(8, 8, IntReg(1)), Piece(16, 1, IntReg(2)))
    placed = [PlacedNode("p", FACTORY.node(pair), pieces)]
    plan = plan_phase(placed, LIMITS)
    assert plan.image_size == 24
    (found,) = read(placed, Machine(Memory({}), {0: 1, 1: 7, 2: 0}))
    assert found == StructValue("main.p", (("a", True), ("n", 7), ("z", False)))


def test_a_string_is_one_block_behind_the_image() -> None:
    heap = Heap()
    (value, flag), plan, payload = capture_all(
        [FACTORY.node(STRING), FACTORY.node(BOOL)], [heap.string(b"user:42"), b"\1"], heap
    )
    assert value == StringValue(b"user:42", 7)
    assert flag is True
    assert plan.ops[-2] == Op(OpCode.DEREF_N, 1, 0, 0, 8, 1, 256)
    assert payload[17:] == bytes(7) + struct.pack("<II", 0, 7) + b"user:42"
    assert plan.location(0) == FieldRef(0, 8, 8, True, 1, bytes_limit=256)
    assert plan.payload_bound == 24 + 8 + 256


def test_strings_are_cut() -> None:
    heap = Heap()
    image = heap.string(b"x" * 1000)
    assert capture(STRING, image, heap, CaptureLimits(string_bytes=10)) == StringValue(
        b"x" * 10, 1000
    )
    # However many bytes are asked for, they do not crowd everything else out.
    most = CaptureLimits(string_bytes=1 << 20, payload=512)
    assert capture(STRING, image, heap, most) == StringValue(b"x" * 256, 1000)


def test_breadth_first() -> None:
    inner = struct_of("main.inner", s=STRING)
    outer = struct_of("main.outer", p=slice_of(inner))
    limits = CaptureLimits(ops=6)
    nodes = [NodeFactory(limits).node(t) for t in (pointer_to(outer), STRING)]
    heap = Heap()
    deep = heap.put(heap.slice([heap.string(b"deep")]))
    values, plan, _ = capture_all(
        nodes, [struct.pack("<Q", deep), heap.string(b"near")], heap, limits
    )
    # STACK, STACK, the pointer, the string, then one of the two below the pointer.
    assert [op.code for op in plan.ops] == [2 + 1, 3, 4, 5, 5, 0]
    pointer, near = values
    assert near == StringValue(b"near", 4)
    assert isinstance(pointer, PointerValue)
    assert isinstance(pointer.target, StructValue)
    found = pointer.target.field("p")
    assert isinstance(found, SequenceValue)
    refused = StructValue("main.inner", (("s", UnavailableValue("capture limit reached")),))
    assert found.elements == (refused,)


def test_operations_and_blocks_are_bounded() -> None:
    wide = struct_of("main.wide", **{f"s{index}": STRING for index in range(200)})
    heap = Heap()
    image = heap.string(b"x") * 200
    limits = CaptureLimits(struct_bytes=3200, payload=8192)
    value = capture(wide, image, heap, limits)
    assert value == UnavailableValue("capture limit reached")  # more than half of an image's room
    (value,), plan, _ = capture_all(
        [NodeFactory(LIMITS).node(pointer_to(wide))], [struct.pack("<Q", heap.put(image))], heap
    )
    assert len(plan.ops) <= LIMITS.ops
    assert plan.blocks <= MAX_BLOCKS
    assert isinstance(value, PointerValue)
    assert isinstance(value.target, StructValue)
    texts = [text for _, text in value.target.fields]
    assert texts[:62] == [StringValue(b"x", 1)] * 62
    assert set(texts[62:64]) == {UnavailableValue("capture limit reached")}
    assert set(texts[64:]) == {UnavailableValue("beyond the bytes captured")}


def test_images_are_bounded() -> None:
    node = FACTORY.node(array_of(120, INT))
    places = [(Piece(0, 960, Stack(8 + 960 * index)),) for index in range(3)]
    placed = [PlacedNode(f"a{index}", node, pieces) for index, pieces in enumerate(places)]
    memory = Memory({0: bytes(4096)})
    found = read(placed, Machine(memory))
    cut = SequenceValue("[120]int", (0,) * 8, 120)
    assert found == [cut, cut, UnavailableValue("capture limit reached")]


def test_a_struct_on_the_stack_is_cut() -> None:
    big = struct_of("main.big", first=INT, fill=array_of(2000, BOOL), last=INT, tail=STRING)
    value = capture(big, struct.pack("<q", 5) + bytes(2000 + 8 + 16))
    assert isinstance(value, StructValue)
    assert value.field("first") == 5
    assert value.field("last") == UnavailableValue("beyond the bytes captured")
    assert value.field("tail") == UnavailableValue("beyond the bytes captured")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0, Nil("*main.t")),
        (0xDEAD, PointerValue("*main.t", 0xDEAD, UnavailableValue("memory not readable"))),
    ],
)
def test_pointers_that_lead_nowhere(address: int, expected: Value) -> None:
    pair = struct_of("main.t", s=STRING)
    heap = Heap()
    nodes = [FACTORY.node(pointer_to(pair)), FACTORY.node(STRING)]
    images = [struct.pack("<Q", address), heap.string(b"behind")]
    values, _, _ = capture_all(nodes, images, heap)
    assert values == [expected, StringValue(b"behind", 6)]


def test_payload_runs_out() -> None:
    limits = CaptureLimits(string_bytes=60, payload=160)
    nodes = [NodeFactory(limits).node(STRING)] * 3
    heap = Heap()
    images = [heap.string(b"a" * 60), heap.string(b"b" * 60), heap.string(b"c" * 5)]
    values, plan, payload = capture_all(nodes, images, heap, limits)
    limit = UnavailableValue("capture limit reached")
    assert values == [StringValue(b"a" * 60, 60), limit, StringValue(b"c" * 5, 5)]
    assert len(payload) <= plan.payload_bound <= limits.payload


def test_a_cut_payload_gives_what_is_there() -> None:
    heap = Heap()
    images = [heap.string(b"one"), heap.string(b"two")]
    _, plan, payload = capture_all([FACTORY.node(STRING)] * 2, images, heap)
    one, missing = StringValue(b"one", 3), UnavailableValue("beyond the bytes captured")
    assert read_phase(plan, payload[:-1], NOBODY) == [one, missing]
    assert read_phase(plan, payload[:33], NOBODY) == [missing, missing]
    assert read_phase(plan, b"", NOBODY) == [missing, missing]


def test_headers_that_nobody_writes() -> None:
    heap = Heap()
    _, plan, payload = capture_all([FACTORY.node(STRING)], [heap.string(b"one")], heap)
    for header in (Status.KNOWN_TYPE, 0x80000077, 0xFFFFFFFF, 0x7FFFFFFF):
        damaged = payload[:20] + struct.pack("<I", header) + payload[24:]
        (value,) = read_phase(plan, damaged, NOBODY)
        assert value == UnavailableValue("beyond the bytes captured")


POINT = struct_of("main.point", x=FLOAT64, n=INT, y=FLOAT32)
POINT_PIECES = (
    Piece(0, 8, FloatReg(0)),
    Piece(8, 8, IntReg(0)),
    Piece(16, 4, FloatReg(1)),
)


def test_float_registers() -> None:
    placed = [
        PlacedNode("p", FACTORY.node(POINT), POINT_PIECES),
        PlacedNode(
            "c",
            FACTORY.node(basic_type(Kind.COMPLEX64)),
            (
                Piece(0, 4, FloatReg(2)),
                Piece(4, 4, FloatReg(3)),
            ),
        ),
    ]
    plan = plan_phase(placed, LIMITS)
    assert plan.float_registers == (0, 1, 2, 3)
    assert plan.float_holes[1] == FloatHole(16, 4, 1)
    payload = run_reference(plan.ops, Machine(Memory({}), {0: 7})).payload
    registers = {
        0: struct.pack("<d", 2.5),
        1: struct.pack("<f4x", 0.1),
        2: struct.pack("<f4x", 1.5),
        3: struct.pack("<f4x", -2),
    }
    point = StructValue("main.point", (("x", 2.5), ("n", 7), ("y", 0.1)))
    assert read_phase(plan, payload, NOBODY, registers) == [point, complex(1.5, -2)]
    why = UnavailableValue("no signal came")
    without = StructValue("main.point", (("x", why), ("n", 7), ("y", why)))
    assert read_phase(plan, payload, NOBODY, None, "no signal came") == [without, why]
    # One register that is missing takes only what is in it.
    del registers[3]
    assert read_phase(plan, payload, NOBODY, registers, "no signal came") == [point, why]
    assert plan.location(1) is None


def test_predicates_are_evaluated_early() -> None:
    heap = Heap()
    request = struct_of("main.request", method=STRING, n=INT)
    image = heap.string(b"GET") + struct.pack("<q", 5)
    address = struct.pack("<Q", heap.put(image))
    root = pointer_to(request)
    pieces = (Piece(0, 8, IntReg(0)),)
    way: list[str | int | PathMark] = [PathMark.DEREF, "method"]
    placed = [
        PlacedNode("r", FACTORY.node(root), pieces),
        place_path(FACTORY, "r.method", root, pieces, way),
        place_path(FACTORY, "r.n", root, pieces, [PathMark.DEREF, "n"]),
    ]
    plan = plan_phase(placed, LIMITS)
    text, number = plan.location(1), plan.location(2)
    assert text is not None
    assert text.bytes_block is not None
    assert number is not None
    predicate = (
        Op(OpCode.PUSH_FIELD, reg=8 | 0x80, block=number.block, at=number.offset),
        Op(OpCode.PUSH_CONST, limit=4),
        Op(OpCode.COMPARE, reg=4 | 0x80),
        Op(OpCode.STRING_TEST, reg=1, block=text.bytes_block, limit=0),
        Op(OpCode.AND),
        Op(OpCode.KEEP_IF),
    )
    whole = plan.with_predicate(predicate)
    (word,) = struct.unpack("<Q", address)
    for constant, kept in ((b"GE", True), (b"PUT", False)):
        machine = Machine(Memory(heap.ranges), {0: word}, constants=[constant])
        outcome = run_reference(whole.ops, machine)
        assert outcome.kept is kept
        if kept:
            assert outcome.payload == run_reference(plan.ops, machine).payload
        else:
            # Dropped before r itself is followed.
            assert outcome.steps <= whole.early
    nil = run_reference(whole.ops, Machine(Memory({}), {0: 0}, constants=[b"GE"]))
    assert nil.kept is None


@pytest.mark.parametrize(
    ("ops", "kept"),
    [
        ([(17, 8 | 0x80, 0), (16, 0, 5), (19, 2 | 0x80, 0)], True),
        ([(17, 8, 0), (16, 0, 5), (19, 2, 0)], False),
        ([(17, 1, 0), (16, 0, 0xFE), (19, 0, 0)], True),
        ([(17, 1 | 0x80, 0), (16, 0, 0xFE), (19, 1, 0)], True),
        ([(17, 8, 1), (16, 0, 5), (19, 0, 0)], None),
        ([(18, 1, 0), (16, 0, 42), (19, 0, 0), (22, 0, 0)], False),
        ([(16, 0, 0), (16, 0, 3), (21, 0, 0)], True),
        ([(16, 0, 0), (16, 0, 3), (20, 0, 0)], False),
        (
            [(16, 0, 3), (16, 0, 3), (19, 3, 0), (16, 0, 3), (16, 0, 3), (19, 5, 0), (20, 0, 0)],
            True,
        ),
    ],
)
def test_predicate_operations(ops: list[tuple[int, int, int]], kept: bool | None) -> None:
    plan = [Op(OpCode.REG, size=8)]
    for code, reg, operand in ops:
        where = {"limit": operand} if code == OpCode.PUSH_CONST else {"at": operand}
        plan.append(Op(OpCode(code), reg=reg, **where))
    plan += [Op(OpCode.KEEP_IF), Op(OpCode.END)]
    machine = Machine(Memory({}), {0: (1 << 64) - 2}, specials=(7, 42, 43, 0))
    assert run_reference(plan, machine).kept is kept


@pytest.mark.parametrize(
    ("test", "constant", "kept"),
    [(0, b"abc", True), (0, b"ab", False), (1, b"ab", True), (1, b"b", False), (2, b"bc", True)],
)
def test_string_tests(test: int, constant: bytes, kept: bool) -> None:
    entry = Outcome(b"", True, {3: b"abc"}, 0)
    plan = [
        Op(OpCode.STRING_TEST, reg=test, block=OTHER_PHASE | 3),
        Op(OpCode.KEEP_IF),
        Op(OpCode.END),
    ]
    machine = Machine(Memory({}), constants=[constant], entry=entry)
    assert run_reference(plan, machine).kept is kept


@pytest.mark.parametrize(
    ("image", "kept"),
    [
        ((0x1000, 3), True),
        ((0, 0), False),
        ((0xDEAD, 0), False),
        ((0xDEAD, 3), None),
        ((0, 3), None),
    ],
)
def test_strings_that_are_not_there_are_not_tested(
    image: tuple[int, int], kept: bool | None
) -> None:
    """An empty string passes no test; one that cannot be read may."""
    plan = [
        Op(OpCode.REG, reg=0, size=8),
        Op(OpCode.REG, reg=1, size=8),
        Op(OpCode.DEREF_N, 1, 0, 0, 8, 1, 64),
        Op(OpCode.STRING_TEST, reg=1, block=1),
        Op(OpCode.KEEP_IF),
        Op(OpCode.END),
    ]
    memory = Memory({0x1000: b"abc"})
    machine = Machine(memory, dict(enumerate(image)), constants=[b"ab"])
    assert run_reference(plan, machine).kept is kept


def test_the_number_of_steps_is_bounded() -> None:
    endless = [Op(OpCode.ZERO, size=1)] * 500
    outcome = run_reference(endless, Machine(Memory({})), steps=96)
    assert outcome.steps == 96
    assert outcome.kept is None


def test_variables_of_closures() -> None:
    heap = Heap()
    counter = heap.put(struct.pack("<q", 41))
    closure = heap.put(struct.pack("<QQ", 0x401000, counter) + heap.string(b"name"))
    placed = [
        place_captured(FACTORY, CapturedValue("n", INT, 8, True)),
        place_captured(FACTORY, CapturedValue("s", STRING, 16, False)),
        place_captured(FACTORY, CapturedValue("s", STRING, 16, False), [PathMark.LEN]),
    ]
    found = read(placed, Machine(Memory(heap.ranges), {0x20: closure}))
    assert found == [41, StringValue(b"name", 4), 4]
    nil = UnavailableValue("nil pointer")
    assert read(placed, Machine(Memory({}), {0x20: 0})) == [nil, nil, nil]


def test_a_path_takes_only_the_pieces_that_it_needs() -> None:
    pair = struct_of("main.pair", a=INT, b=STRING)
    pieces = (Piece(0, 8, IntReg(0)), Piece(8, 8, IntReg(1)), Piece(16, 8, IntReg(2)))
    placed = place_path(FACTORY, "p.b", pair, pieces, ["b", PathMark.LEN])
    assert placed.pieces == (Piece(0, 8, IntReg(2)),)
    on_stack = place_path(FACTORY, "p.b", pair, (Piece(0, 24, Stack(8)),), ["b"])
    assert on_stack.pieces == (Piece(0, 16, Stack(16)),)
    lost = place_path(FACTORY, "p.b", pair, None, ["b"], "no idea")
    assert read([lost], Machine(Memory({}))) == [UnavailableValue("no idea")]


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (["nothing"], "main.p has no field nothing"),
        ([PathMark.DEREF], "main.p is not a pointer"),
        ([0], "main.p cannot be indexed"),
        ([PathMark.LEN], "main.p has no len"),
        (["list", 1000], "beyond the part"),
        (["list", PathMark.LEN, PathMark.LEN], "a length has no fields"),
        (["three", 3], "has no element 3"),
        (["any", PathMark.TYPE, "x"], "a type has no fields"),
        (["any", PathMark.TRACE_ID, 0], "the id of a trace or span has no fields"),
    ],
)
def test_paths_that_lead_nowhere(steps: list[str | int | PathMark], problem: str) -> None:
    root = struct_of("main.p", list=slice_of(INT), three=array_of(3, INT), any=ANY)
    with pytest.raises(PathError, match=problem):
        path_node(FACTORY, root, steps)
