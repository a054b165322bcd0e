# SPDX-License-Identifier: Apache-2.0
"""Values that reach into a page that is not in memory: what is before it is captured."""

from __future__ import annotations

import struct

import pytest

from gotrace.capture.ops import CaptureLimits
from gotrace.values.model import (
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
from tests.capture.memory import (
    INT,
    STRING,
    Heap,
    KnownTypes,
    capture,
    pointer_to,
    slice_of,
    struct_of,
)
from tests.capture.reference import Memory
from tests.capture.test_nodes import ADDR, CLASSIC, INTS, SWISS, TIME, map_of

PAGE_END = 0xC000080000
#: Seconds from the year 1, from which time.Time counts, to 1970.
EPOCH = 62135596800
UNREADABLE = UnavailableValue("memory not readable")
NEXT_PAGES = KnownTypes(untouched=range(PAGE_END, PAGE_END + 0x4000))
NOTHING = KnownTypes()


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


class LastPage(Heap):
    """Memory that ends with a page, beside what is put elsewhere."""

    def put_last(self, data: bytes) -> int:
        address = PAGE_END - len(data)
        self.ranges[address] = data
        return address


def fields(found: Value) -> dict[str, Value]:
    assert isinstance(found, PointerValue) and isinstance(found.target, StructValue)
    return dict(found.target.fields)


RECORD = struct_of("main.record", a=INT, s=STRING, b=INT, p=pointer_to(INT))


def record(heap: LastPage, *values: int) -> bytes:
    return words(heap.put_last(words(*values)))


def test_fields_of_a_struct() -> None:
    heap = LastPage()
    image = record(heap, 7, heap.put(b"text"), 4)
    found = fields(capture(pointer_to(RECORD), image, heap, context=NOTHING))
    assert (found["a"], found["b"], found["p"]) == (7, UNREADABLE, UNREADABLE)
    assert found["s"] == StringValue(b"text", 4)


def test_fields_of_a_struct_in_memory_that_was_never_touched() -> None:
    heap = LastPage()
    image = record(heap, 7)
    found = fields(capture(pointer_to(RECORD), image, heap, context=NEXT_PAGES))
    assert found == {"a": 7, "s": StringValue(b"", 0), "b": 0, "p": Nil("*int")}


def test_all_of_a_struct_in_memory_that_was_never_touched() -> None:
    image = words(PAGE_END + 100)
    found = fields(capture(pointer_to(RECORD), image, context=NEXT_PAGES))
    assert found == {"a": 0, "s": StringValue(b"", 0), "b": 0, "p": Nil("*int")}
    lost = capture(pointer_to(RECORD), image, context=NOTHING)
    assert lost == PointerValue("*main.record", PAGE_END + 100, UNREADABLE)


def test_text_is_cut_or_completed_from_the_file() -> None:
    heap = LastPage()
    image = words(heap.put_last(b"begin"), 9)
    assert capture(STRING, image, heap, context=NOTHING) == StringValue(b"begin", 9)
    file = KnownTypes(constants=Memory({PAGE_END - 5: b"begin end"}))
    assert capture(STRING, image, heap, context=file) == StringValue(b"begin end", 9)


@pytest.mark.parametrize("context", [NOTHING, NEXT_PAGES])
def test_elements_of_a_slice(context: KnownTypes) -> None:
    heap = LastPage()
    image = words(heap.put_last(words(1, 2)), 3, 3)
    found = capture(slice_of(INT), image, heap, context=context)
    elements = (1, 2) if context is NOTHING else (1, 2, 0)
    assert found == SequenceValue("[]int", elements, 3, 3)


@pytest.mark.parametrize("release", [CLASSIC, SWISS])
def test_entries_of_a_map(release: tuple[int, int]) -> None:
    """A bucket with an entry or two is mostly zeros, which may never have been written."""
    heap = LastPage()
    key_and_value = words(3, *[0] * 7, 30) if release is CLASSIC else words(3, 30)
    there = bytes([5] + [0] * 7) if release is CLASSIC else bytes([1] + [0x80] * 7)
    bucket = heap.put_last(there + key_and_value)
    image = words(heap.put(words(1, 0, bucket, 0, 0, 0)))
    whole = capture(INTS, image, heap, context=NEXT_PAGES, release=release)
    assert whole == MapValue("map[int]int", ((3, 30),), 1)


TEXTS = map_of(STRING, STRING)


@pytest.mark.parametrize("release", [CLASSIC, SWISS])
@pytest.mark.parametrize("entries", [1, 9])
@pytest.mark.parametrize("context", [NOTHING, NEXT_PAGES])
def test_entries_of_a_map_with_texts(
    release: tuple[int, int], entries: int, context: KnownTypes
) -> None:
    """Texts that the first slot leads to are captured, whatever is after that slot."""
    heap = LastPage()
    key, value = heap.string(b"tenant"), heap.string(b"acme")
    if release is CLASSIC:
        bucket = heap.put_last(bytes([5] + [0] * 7) + key + bytes(7 * 16) + value)
        image = words(heap.put(words(entries, 0, bucket)))
    else:
        group = heap.put_last(bytes([1] + [0x80] * 7) + key + value)
        table = heap.put(words(0, 0, group, 1))
        first = words(group, 0) if entries == 1 else words(heap.put(words(table)), 1)
        image = words(heap.put(words(entries, 0) + first + words(0, 0)))
    found = capture(TEXTS, image, heap, context=context, release=release)
    shown = ((StringValue(b"tenant", 6), StringValue(b"acme", 4)),)
    assert found == MapValue("map[string]string", shown, entries)


def test_what_is_captured_after_it() -> None:
    heap = LastPage()
    inner = struct_of("main.inner", n=INT, s=STRING)
    outer = struct_of("main.outer", x=pointer_to(RECORD), y=pointer_to(inner))
    cut, whole = heap.put_last(words(9)), heap.put(words(5) + heap.string(b"text"))
    image = words(heap.put(words(cut, whole)))
    limits = CaptureLimits(depth=2)
    found = fields(capture(pointer_to(outer), image, heap, limits, NOTHING))
    assert fields(found["y"]) == {"n": 5, "s": StringValue(b"text", 4)}
    assert fields(found["x"])["a"] == 9


def time_in(heap: LastPage, location: int) -> Value:
    return capture(TIME, words(0, EPOCH, location), heap, context=NOTHING)


def whole_location(heap: LastPage) -> bytes:
    zone = heap.put(heap.string(b"CET") + words(3600, 0))
    return heap.string(b"X") + words(zone, 1, 1) + bytes(40) + words(0, 100, zone)


@pytest.mark.parametrize("there", range(8, 104, 8))
def test_a_location_of_which_a_part_is_there_gives_no_zone(there: int) -> None:
    heap = LastPage()
    location = heap.put_last(whole_location(heap)[:there])
    assert time_in(heap, location) == TimeValue(0, 0, None)


def test_a_zone_of_which_a_part_is_there_is_not_taken() -> None:
    heap = LastPage()
    zone = heap.put_last(heap.string(b"CET"))
    location = heap.put(heap.string(b"X") + words(zone, 1, 1) + bytes(40) + words(0, 100, zone))
    assert time_in(heap, location) == TimeValue(0, 0, None)
    assert time_in(heap, heap.put(whole_location(heap))) == TimeValue(0, 0, "CET", 3600)


def test_an_address_whose_zone_is_not_there_is_not_shown_without_it() -> None:
    heap = LastPage()
    detail = heap.put_last(words(1))
    image = words(0xFE80 << 48, 1, detail)
    assert capture(ADDR, image, heap, context=NOTHING) == UNREADABLE
    assert capture(ADDR, words(0xFE80 << 48, 1, 0xDEAD), heap, context=NOTHING) == UNREADABLE
    detail = heap.put_last(words(0))
    image = words(0, 0xFFFF << 32 | 0x01020304, detail)
    assert capture(ADDR, image, heap, context=NOTHING) == TextValue("net/netip.Addr", "1.2.3.4")
