# SPDX-License-Identifier: Apache-2.0
"""Check nodes on memory made by hand, where a running program would be hard to bring to it."""

from __future__ import annotations

import struct

import pytest

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.factory import NodeFactory
from gotrace.capture.interfaces import is_direct
from gotrace.capture.maps import MapLayout, map_layout
from gotrace.capture.nodes import shortest_float32
from gotrace.capture.ops import MAX_NESTING, CaptureLimits, OpCode
from gotrace.capture.plan import PlacedNode, plan_phase, read_phase
from gotrace.gotypes.types import (
    ChanDirection,
    ChanType,
    FuncType,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    OpaqueType,
    PointerType,
    SliceType,
    StructType,
    basic_type,
)
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    BytesValue,
    ErrorValue,
    FuncValue,
    InterfaceValue,
    MapValue,
    Nil,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    TextValue,
    TimeValue,
    UnavailableValue,
    Value,
)
from gotrace.values.stdlib_text import address_text, hardware_address_text
from tests.capture.memory import (
    INT,
    STRING,
    Heap,
    KnownTypes,
    array_of,
    capture,
    capture_all,
    pointer_to,
    slice_of,
    struct_of,
)
from tests.capture.reference import Machine, Memory, run_reference

ANY = InterfaceType("interface {}", Kind.INTERFACE, 16, 8, True)
ERROR = InterfaceType("error", Kind.INTERFACE, 16, 8, False)
CLASSIC, SWISS = (1, 23), (1, 24)
UNREADABLE = UnavailableValue("memory not readable")


def words(*values: int) -> bytes:
    return b"".join(struct.pack("<Q", value & (1 << 64) - 1) for value in values)


def map_of(key: GoType, elem: GoType) -> MapType:
    name = f"map[{key.name}]{elem.name}"
    return MapType(name, Kind.MAP, 8, 8, Lazy.of(key), Lazy.of(elem))


INTS = map_of(INT, INT)
KEYS, ELEMS = tuple(range(1, 9)), tuple(range(10, 90, 10))


def classic_map(heap: Heap, tophash: bytes, length: int) -> bytes:
    bucket = heap.put(tophash + words(*KEYS, *ELEMS, 0))
    # runtime.hmap: count, flags and B and noverflow and hash0, buckets, oldbuckets
    return words(heap.put(words(length, 3 << 8, bucket, 0, 0, 0)))


def swiss_group(heap: Heap, control: bytes) -> int:
    pairs = [word for pair in zip(KEYS, ELEMS, strict=True) for word in pair]
    return heap.put(control + words(*pairs))


def swiss_map(heap: Heap, length: int, directory: int, tables: int) -> bytes:
    return words(heap.put(words(length, 0x5EED, directory, tables, 0, 0)))


def test_classic_map() -> None:
    heap = Heap()
    # Empty, moved to either half of a greater table, and there.
    tophash = bytes([0, 1, 2, 3, 4, 5, 0x80, 0xFF])
    found = capture(INTS, classic_map(heap, tophash, 20), heap, release=CLASSIC)
    assert found == MapValue("map[int]int", ((6, 60), (7, 70), (8, 80)), 20)


def test_small_swiss_map() -> None:
    heap = Heap()
    # Empty, deleted, and there.
    control = bytes([0x80, 0xFE, 0, 0x7F, 0x80, 0x80, 0x80, 0x80])
    image = swiss_map(heap, 2, swiss_group(heap, control), 0)
    found = capture(INTS, image, heap, release=SWISS)
    assert found == MapValue("map[int]int", ((3, 30), (4, 40)), 2)


def test_large_swiss_map() -> None:
    heap = Heap()
    group = swiss_group(heap, bytes([0x80, 1, 2, 0xFE] + [0x80] * 4))
    table = heap.put(words(0, 0, group, 1))
    directory = heap.put(words(table) + bytes(200))
    image = swiss_map(heap, 400, directory, 1)
    found = capture(INTS, image, heap, release=SWISS)
    assert found == MapValue("map[int]int", ((2, 20), (3, 30)), 400)
    lost = swiss_map(heap, 400, heap.put(words(0xDEAD) + bytes(200)), 1)
    assert capture(INTS, lost, heap, release=SWISS) == MapValue("map[int]int", (), 400, UNREADABLE)


def test_pointer_that_an_interface_holds_behind_another() -> None:
    """As those to types that are not in Go's heap: their descriptors say so."""
    heap = Heap()
    go_type = pointer_to(INT)
    target = heap.put(words(7))
    box = heap.put(words(target))
    for direct, word in ((True, target), (None, target), (False, box)):
        context = KnownTypes({0x7000: NodeFactory(CaptureLimits()).subplan_for(go_type, direct)})
        context.names = {0x7000: go_type.name}
        found = capture(ANY, words(0x7000, word), heap, context=context)
        assert found == InterfaceValue("interface {}", "*int", PointerValue("*int", target, 7))


@pytest.mark.parametrize("name", ["go.shape.*uint8", "go.shape.*uint8_0"])
def test_pointer_of_a_generic_function_is_not_followed(name: str) -> None:
    """All pointers have one shape: bytes of a struct would be shown as one of them."""
    heap = Heap()
    address = heap.put(b"bytes of a struct")
    shape = PointerType(name, Kind.POINTER, 8, 8, Lazy.of(basic_type(Kind.UINT8)))
    found = capture(shape, words(address), heap)
    assert found == PointerValue(name, address, None)
    assert go_syntax(found) == f"(*T)({address:#x})"
    assert go_syntax(capture(slice_of(shape), words(0, 0, 0), heap)) == "nil"
    elements = capture(slice_of(shape), words(heap.put(words(address)), 1, 1), heap)
    assert go_syntax(elements) == f"[]*T{{(*T)({address:#x})}}"


@pytest.mark.parametrize("most", range(1, 60))
def test_no_operation_skips_beyond_the_end_of_its_plan(most: int) -> None:
    """Behind it is another's plan: swiss maps have operations that are left out together."""
    maps = struct_of("main.maps", **{f"m{n}": map_of(STRING, STRING) for n in range(3)})
    limits = CaptureLimits(ops=most + 1, subplan_ops=most + 1)
    factory = NodeFactory(limits, SWISS)
    subplan = factory.subplan_for(maps)
    heap = Heap()
    empty = words(*[heap.put(words(0, 0, 0, 0, 0, 0))] * 3)
    _, plan, _ = capture_all([factory.node(maps)], [empty], heap, limits)
    for ops in (subplan.ops, plan.ops):
        assert ops[-1].code is OpCode.END
        assert all(at + 1 + op.skip < len(ops) for at, op in enumerate(ops[:-1]))
    context = KnownTypes({0x7000: subplan})
    context.names = {0x7000: maps.name}
    capture(ANY, words(0x7000, heap.put(empty)), heap, context=context, release=SWISS)


@pytest.mark.parametrize("release", [CLASSIC, SWISS])
def test_map_whose_entries_cannot_be_read(release: tuple[int, int]) -> None:
    heap = Heap()
    header = words(3, 0, 0xDEAD, 0, 0, 0)
    image = words(heap.put(header))
    found = capture(INTS, image, heap, release=release)
    assert found == MapValue("map[int]int", (), 3, UNREADABLE)
    empty = words(heap.put(words(0) + header[8:]))
    assert capture(INTS, empty, heap, release=release) == MapValue("map[int]int", (), 0)


def pairs_from(first: int) -> tuple[tuple[int, int], ...]:
    return tuple((key, key * key) for key in range(first, first + 8))


@pytest.mark.parametrize("release", [CLASSIC, SWISS])
@pytest.mark.parametrize(("filled", "shown"), [((0, 3, 1), 4), ((0, 0, 3), 3), ((5, 8, 8), 8)])
def test_entries_of_several_groups(
    release: tuple[int, int], filled: tuple[int, ...], shown: int
) -> None:
    """As many as are wanted, wherever the first of them are; none of what is no entry."""
    heap = Heap()
    groups = b""
    expected: list[tuple[int, int]] = []
    for number, count in enumerate((*filled, 8, 8, 8, 8)):
        pairs = pairs_from(100 * number)
        expected += pairs[:count]
        if release == SWISS:
            groups += bytes([7] * count + [0x80] * (8 - count))
            groups += words(*(word for pair in pairs for word in pair))
        else:
            groups += bytes([99] * count + [1] * (8 - count))
            groups += words(*(key for key, _ in pairs), *(elem for _, elem in pairs), 0)
    if release == SWISS:
        table = heap.put(words(0, 0, heap.put(groups), 7))
        image = swiss_map(heap, 50, heap.put(words(table)), 1)
    else:
        image = words(heap.put(words(50, 3 << 8, heap.put(groups), 0, 0, 0)))
    found = capture(INTS, image, heap, release=release)
    assert isinstance(found, MapValue)
    assert found.length == 50
    # Four are looked at.
    most = sum((*filled, 8)[:4])
    assert found.entries == tuple(expected[: min(most, 8)])
    assert len(found.entries) >= shown


def test_fewer_entries_than_there_are() -> None:
    heap = Heap()
    image = classic_map(heap, b"\xff" * 8, 8)
    few = capture(INTS, image, heap, CaptureLimits(map_entries=2), release=CLASSIC)
    assert few == MapValue("map[int]int", ((1, 10), (2, 20)), 8)


def test_map_of_an_unknown_release_has_its_length() -> None:
    heap = Heap()
    image = classic_map(heap, b"\xff" * 8, 8)
    assert capture(INTS, image, heap) == MapValue("map[int]int", (), 8)
    unreadable = UnavailableValue("memory not readable")
    assert capture(INTS, words(0xDEAD), heap, release=SWISS) == unreadable


@pytest.mark.parametrize(
    ("key", "elem", "layout"),
    [
        # As unsafe.Offsetof has them in structs declared like the groups.
        (INT, basic_type(Kind.BOOL), MapLayout(True, 8, 16, 16, 16, 136)),
        (basic_type(Kind.UINT8), INT, MapLayout(True, 8, 16, 16, 16, 136)),
        (basic_type(Kind.UINT16), basic_type(Kind.UINT8), MapLayout(True, 8, 4, 10, 4, 40)),
        (INT, struct_of("struct {}"), MapLayout(True, 8, 16, 16, 16, 136)),
        (array_of(200, basic_type(Kind.UINT8)), INT, MapLayout(True, 8, 16, 16, 16, 136)),
        (INT, array_of(129, basic_type(Kind.UINT8)), MapLayout(True, 8, 16, 16, 16, 136)),
        (INT, array_of(128, basic_type(Kind.UINT8)), MapLayout(True, 8, 136, 16, 136, 1096)),
    ],
)
def test_swiss_layout(key: GoType, elem: GoType, layout: MapLayout) -> None:
    assert map_layout(map_of(key, elem), SWISS) == layout


def test_split_groups_by_their_description() -> None:
    group = struct_of(
        "group",
        ctrl=basic_type(Kind.UINT64),
        keys=array_of(8, basic_type(Kind.UINT8)),
        elems=array_of(8, INT),
    )
    references = struct_of("groups", data=pointer_to(group))
    table = struct_of("table", groups=references)
    header = struct_of("Map", used=basic_type(Kind.UINT64), dirPtr=pointer_to(pointer_to(table)))
    split = MapType(
        "map[uint8]int",
        Kind.MAP,
        8,
        8,
        Lazy.of(basic_type(Kind.UINT8)),
        Lazy.of(INT),
        Lazy.of(header),
    )
    assert map_layout(split, None) == MapLayout(True, 8, 1, 16, 8, 80)


def test_channels_and_functions() -> None:
    heap = Heap()
    chan = ChanType("chan int", Kind.CHAN, 8, 8, ChanDirection.BOTH, Lazy.of(INT))
    assert capture(chan, words(0), heap) == Nil("chan int")
    assert capture(chan, words(1), heap) == UnavailableValue("memory not readable")
    func = FuncType("func()", Kind.FUNC, 8, 8)
    context = KnownTypes(functions={0x401000: "main.f"})
    closure = words(heap.put(words(0x401000)))
    assert capture(func, closure, heap, context=context) == FuncValue("func()", 0x401000, "main.f")
    assert capture(func, words(heap.put(words(7))), heap) == FuncValue("func()", 7, None)
    assert capture(func, words(8), heap) == UnavailableValue("memory not readable")


TYPE, OTHER = 0x500000, 0x500100


def known(*types: tuple[int, GoType], limits: CaptureLimits | None = None) -> KnownTypes:
    factory = NodeFactory(limits or CaptureLimits(), SWISS)
    context = KnownTypes({word: factory.subplan_for(go_type) for word, go_type in types})
    context.names = {TYPE: "*main.t", OTHER: "main.u"}
    return context


PAIR = struct_of("main.pair", a=INT, b=STRING)


def test_interfaces_of_known_types() -> None:
    heap = Heap()
    data = heap.put(words(3) + heap.string(b"x"))
    pair = StructValue("main.pair", (("a", 3), ("b", StringValue(b"x", 1))))
    boxed = capture(ANY, words(TYPE, data), heap, context=known((TYPE, PAIR)))
    assert boxed == InterfaceValue("interface {}", "main.pair", pair)
    pointed = capture(ANY, words(TYPE, data), heap, context=known((TYPE, pointer_to(PAIR))))
    assert pointed == InterfaceValue(
        "interface {}", "*main.pair", PointerValue("*main.pair", data, pair)
    )
    lost = capture(ANY, words(TYPE, 0xDEAD), heap, context=known((TYPE, PAIR)))
    assert lost == InterfaceValue(
        "interface {}", "main.pair", UnavailableValue("memory not readable")
    )
    empty = known((TYPE, struct_of("main.none")))
    assert capture(ANY, words(TYPE, 0xDEAD), heap, context=empty) == InterfaceValue(
        "interface {}", "main.none", StructValue("main.none", ())
    )


def test_interfaces_of_other_types() -> None:
    assert capture(ERROR, words(0, 0)) == Nil("error")
    context = known()
    found = capture(ERROR, words(TYPE, 0xC0), context=context)
    assert found == InterfaceValue("error", "*main.t", PointerValue("*main.t", 0xC0))
    unknown = UnavailableValue("type not known")
    assert capture(ERROR, words(OTHER, 0xC0), context=context) == InterfaceValue(
        "error", "main.u", unknown
    )
    assert capture(ERROR, words(7, 0xC0), context=context) == InterfaceValue("error", None, unknown)


def test_interfaces_in_followed_structs_have_their_type_only() -> None:
    heap = Heap()
    holder = struct_of("main.holder", reader=ANY, err=ERROR)
    image = words(heap.put(words(OTHER, 0xC0, TYPE, heap.put(heap.string(b"gone")))))
    context = known((OTHER, PAIR), (TYPE, pointer_to(struct_of("errors.errorString", s=STRING))))
    found = capture(pointer_to(holder), image, heap, context=context)
    assert isinstance(found, PointerValue)
    assert isinstance(found.target, StructValue)
    assert found.target.field("reader") == InterfaceValue("interface {}", "main.u", None)
    # An error's message is worth more than a level of depth.
    error = found.target.field("err")
    assert isinstance(error, ErrorValue)
    assert error.message == "gone"


def test_nested_interfaces_are_bounded() -> None:
    heap = Heap()
    wrap = struct_of("fmt.wrapError", msg=STRING, err=ERROR)
    context = known((TYPE, pointer_to(wrap)))
    inner = words(0, 0)
    for _ in range(10):
        inner = words(TYPE, heap.put(heap.string(b"m") + inner))
    value: Value | None = capture(ERROR, inner, heap, context=context)
    for _ in range(MAX_NESTING):
        assert isinstance(value, ErrorValue)
        assert value.message == "m"
        assert isinstance(value.value, PointerValue)
        assert isinstance(value.value.target, StructValue)
        value = value.value.target.field("err")
    assert isinstance(value, InterfaceValue)
    assert isinstance(value.value, PointerValue)


def test_many_interfaces_do_not_mix_their_blocks_up() -> None:
    heap = Heap()
    context = known((TYPE, PAIR), (OTHER, STRING))
    elements = []
    for index in range(3):
        pair = heap.put(words(index) + heap.string(b"p%d" % index))
        elements += [words(TYPE, pair), words(OTHER, heap.put(heap.string(b"s%d" % index)))]
    found = capture(slice_of(ANY, "[]any"), heap.slice(elements), heap, context=context)
    assert isinstance(found, SequenceValue)
    for index in range(3):
        text = StringValue(b"p%d" % index, 2)
        pair_value = StructValue("main.pair", (("a", index), ("b", text)))
        assert found.elements[2 * index] == InterfaceValue("interface {}", "main.pair", pair_value)
        word = InterfaceValue("interface {}", "string", StringValue(b"s%d" % index, 2))
        assert found.elements[2 * index + 1] == word


def test_a_plan_that_is_not_known_ends_the_walk() -> None:
    heap = Heap()
    context = known((TYPE, PAIR))
    image = words(TYPE, heap.put(words(3) + heap.string(b"x")))
    context_of_reader = KnownTypes()
    limits = CaptureLimits()
    node = NodeFactory(limits).node(ANY)
    plan = plan_phase([PlacedNode("v", node, (Piece(0, 16, Stack(0)),))], limits)
    memory = Memory({**heap.ranges, 0x7000: image})
    machine = Machine(memory, stack_pointer=0x7000, subplans=context.ops)
    payload = run_reference(plan.ops, machine).payload
    (found,) = read_phase(plan, payload, context_of_reader)
    assert isinstance(found, InterfaceValue)
    assert found.value == UnavailableValue("beyond the bytes captured")


@pytest.mark.parametrize(
    ("go_type", "before", "since"),
    [
        (pointer_to(INT), True, True),
        (INT, False, False),
        (struct_of("main.s", p=pointer_to(INT)), True, True),
        (struct_of("main.s", n=INT), False, False),
        (struct_of("main.s", none=struct_of("struct {}"), p=pointer_to(INT)), False, True),
        (array_of(1, pointer_to(INT)), True, True),
        (array_of(2, pointer_to(INT)), False, False),
    ],
)
def test_direct_interfaces(go_type: GoType, before: bool, since: bool) -> None:
    assert is_direct(go_type, (1, 25)) is before
    assert is_direct(go_type, (1, 26)) is since


TIME = struct_of(
    "time.Time",
    wall=basic_type(Kind.UINT64),
    ext=basic_type(Kind.INT64),
    loc=basic_type(Kind.UINTPTR),
)


def location(heap: Heap, start: int, end: int, east: int = 3600, zones: int = 2) -> int:
    zone = heap.put(heap.string(b"CET") + words(east, 0))
    return heap.put(
        heap.string(b"X") + words(zone, zones, zones) + bytes(40) + words(start, end, zone)
    )


def test_times() -> None:
    heap = Heap()
    epoch = 62135596800
    winter = location(heap, -100, 100)
    image = words(5, epoch + 50, winter)
    assert capture(TIME, image, heap) == TimeValue(50, 5, "CET", 3600)
    # Another season than the one at hand: UTC, and no zone.
    assert capture(TIME, words(5, epoch + 100, winter), heap) == TimeValue(100, 5, None)
    assert capture(TIME, words(5, epoch, 0xDEAD), heap) == TimeValue(0, 5, None)
    odd = location(heap, -100, 100, east=1 << 40)
    assert capture(TIME, words(5, epoch, odd), heap) == TimeValue(0, 5, None)
    # Go 1.15 gives an only zone an empty period.
    only = location(heap, (1 << 63) - 1, (1 << 63) - 1, zones=1)
    assert capture(TIME, words(5, epoch, only), heap) == TimeValue(0, 5, "CET", 3600)
    # A location with a name and without zones is UTC; it has no name before it is first used.
    named, unused = heap.put(heap.string(b"UTC") + bytes(88)), heap.put(bytes(104))
    assert capture(TIME, words(5, epoch, named), heap) == TimeValue(0, 5, "UTC")
    assert capture(TIME, words(5, epoch, unused), heap) == TimeValue(0, 5, None)
    # time.Now: seconds since 1885 in 33 bits, nanoseconds in 30, the monotonic clock beside.
    seconds = 1_700_000_000 + 2682288000
    wall = 1 << 63 | seconds << 30 | 999
    assert capture(TIME, words(wall, 12345, 0)) == TimeValue(1_700_000_000, 999, "UTC", 0, 12345)


UINT64 = basic_type(Kind.UINT64)
UINT128 = struct_of("net/netip.uint128", hi=UINT64, lo=UINT64)
OLD_ADDR = struct_of("net/netip.Addr", addr=UINT128, z=pointer_to(INT))
HANDLE = struct_of("unique.Handle", value=pointer_to(INT))
ADDR = struct_of("net/netip.Addr", addr=UINT128, z=HANDLE)
V4 = 0xFFFF << 32 | 0x01020304


def test_netip_addresses() -> None:
    heap = Heap()
    v4, v6 = (heap.put(words(is_v6) + words(0, 0)) for is_v6 in (0, 1))
    zoned = heap.put(words(1) + heap.string(b"eth0"))

    def shown(go_type: StructType, *image: int) -> str:
        value = capture(go_type, words(*image), heap)
        assert isinstance(value, TextValue)
        return value.text

    assert shown(ADDR, 0, V4, v4) == "1.2.3.4"
    assert shown(ADDR, 0, V4, v6) == "::ffff:1.2.3.4"
    assert shown(ADDR, 0xFE80 << 48, 1, zoned) == "fe80::1%eth0"
    assert shown(ADDR, 0, 0, 0) == "invalid IP"


def test_netip_addresses_up_to_go_1_22() -> None:
    heap = Heap()
    # What z4 and z6noz lead to is alike; a zone is a string in an interface.
    none = heap.put(words(0, 0, 0))
    zone = heap.put(words(TYPE, heap.put(heap.string(b"eth0")), 1))

    def captured(*image: int) -> Value:
        return capture(OLD_ADDR, words(*image), heap)

    def shown(text: str) -> TextValue:
        return TextValue("net/netip.Addr", text)

    assert captured(0, 0, 0) == shown("invalid IP")
    assert captured(0, 1, none) == shown("::1")
    assert captured(0xFE80 << 48, 1, zone) == shown("fe80::1%eth0")
    assert captured(0, V4, zone) == shown("::ffff:1.2.3.4%eth0")
    assert captured(0, V4, none) == UnavailableValue("1.2.3.4 or ::ffff:1.2.3.4")
    unreadable = UnavailableValue("memory not readable")
    assert captured(0, 1, 0xDEAD) == unreadable
    assert captured(0, 1, heap.put(words(TYPE, 0xDEAD, 1))) == unreadable


def test_addresses() -> None:
    assert address_text(bytes(16)) == "::"
    assert address_text(bytes([1, 2, 3, 4])) == "1.2.3.4"
    assert address_text(bytes(5)) is None
    assert address_text(bytes.fromhex("20010db8000000010001000100010001")) == "2001:db8:0:1:1:1:1:1"
    assert hardware_address_text(b"") is None
    ip = slice_of(basic_type(Kind.UINT8), "net.IP")
    heap = Heap()
    odd = words(heap.put(b"\1\2\3"), 3, 3)
    assert capture(ip, odd, heap) == BytesValue("net.IP", b"\1\2\3", 3, 3)
    assert capture(ip, words(0, 0, 0), heap) == Nil("net.IP")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.1, 0.1), (16777216.0, 16777216.0), (3.4028234663852886e38, 3.4028235e38), (1e-45, 1e-45)],
)
def test_shortest_float32(number: float, shown: float) -> None:
    # The right column is what strconv.FormatFloat(x, 'g', -1, 32) writes.
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    assert shortest_float32(single) == shown


def test_types_that_hold_themselves() -> None:
    loop = SliceType("main.loop", Kind.SLICE, 24, 8, Lazy(lambda: loop))
    heap = Heap()
    image = heap.slice([heap.slice([heap.slice([heap.slice([])])])])
    value: Value = capture(loop, image, heap)
    for _ in range(3):
        assert isinstance(value, SequenceValue)
        assert value.length == 1
        (value,) = value.elements
    assert value == SequenceValue("main.loop", (), 0, 0)


def test_slices_of_what_is_greater_than_the_limit() -> None:
    heap = Heap()
    huge = struct_of("main.huge", n=INT, fill=array_of(2000, basic_type(Kind.UINT8)))
    image = heap.slice([words(7) + bytes(2000), words(8) + bytes(2000)])
    value = capture(slice_of(huge), image, heap)
    assert isinstance(value, SequenceValue)
    assert value.length == 2
    (first,) = value.elements
    assert isinstance(first, StructValue)
    assert first.field("n") == 7


def test_slices_of_nothing() -> None:
    heap = Heap()
    none = struct_of("struct {}")
    value = capture(slice_of(none), words(heap.put(b"x"), 3, 3), heap)
    assert value == SequenceValue("[]struct {}", (StructValue("struct {}", ()),) * 3, 3, 3)


def test_what_nobody_described() -> None:
    c_type = OpaqueType("C.thing", Kind.INVALID, 4, 4)
    assert capture(c_type, b"\1\2\3\4") == BytesValue("C.thing", b"\1\2\3\4", 4)
    void = OpaqueType("void", Kind.INVALID, 0, 1)
    assert capture(pointer_to(void), words(0xC0)) == PointerValue("*void", 0xC0)
