# SPDX-License-Identifier: Apache-2.0
"""Check values as scripts get them: Python's own types, and what Python has none for."""

from __future__ import annotations

import copy
import datetime
import json
import pickle

import pytest

from gotrace.records import replace
from gotrace.values.model import (
    AlikeValue,
    BytesValue,
    ChanValue,
    DurationValue,
    ErrorValue,
    FuncValue,
    InterfaceValue,
    MapValue,
    NamedValue,
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
from gotrace.values.python import (
    Chan,
    CutBytes,
    CutDict,
    CutList,
    CutStr,
    Duration,
    GoError,
    Pointer,
    Struct,
    Unavailable,
    as_json,
    from_json,
    to_python,
)
from gotrace.values.to_json import to_json

POINT = StructValue("main.Point", (("X", 1), ("Name", StringValue(b"here", 4))))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (-7, -7),
        (1.5, 1.5),
        (StringValue(b"GET", 3), "GET"),
        (NamedValue("main.Color", 3), 3),
        (BytesValue("[]uint8", b"\x00\xff", 2, 8), b"\x00\xff"),
        (SequenceValue("[]int", (1, 2), 2, 2), [1, 2]),
        (MapValue("map[string]int", ((StringValue(b"a", 1), 1),), 1), {"a": 1}),
        (PointerValue("*int", 0xC000, 5), 5),
        (InterfaceValue("any", "int", 5), 5),
        (TextValue("net.IP", "::1"), "::1"),
        (Nil("*main.T"), None),
    ],
)
def test_values_that_python_has_are_the_same_by_way_of_json(value: Value, expected: object) -> None:
    for found in (to_python(value), from_json(json.loads(json.dumps(to_json(value))))):
        assert found == expected
        # JSON does not distinguish maps from structs.
        assert type(found) is type(expected) or (found == {"a": 1} and isinstance(found, Struct))


def test_structs_have_fields_as_attributes_and_print_as_go() -> None:
    found = to_python(POINT)
    assert (found.X, found["Name"], found.go_type) == (1, "here", "main.Point")
    assert repr(found) == 'main.Point{X: 1, Name: "here"}'
    assert found == {"X": 1, "Name": "here"} == dict(found)
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError, match=r"main\.Point has no field Y"):
        _ = found.Y
    read = from_json(to_json(POINT))
    assert isinstance(read, Struct)
    assert read == found


@pytest.mark.parametrize(
    ("value", "kind", "length"),
    [
        (StringValue(b"GE", 30), CutStr, 30),
        (BytesValue("[]uint8", b"\xff\xfe", 20), CutBytes, 20),
        (SequenceValue("[]int", (1,), 9, 9), CutList, 9),
        (MapValue("map[int]int", ((1, 2),), 5), CutDict, 5),
    ],
)
def test_what_was_cut_knows_its_length(value: Value, kind: type, length: int) -> None:
    for found in (to_python(value), from_json(to_json(value))):
        assert isinstance(found, kind)
        assert found.length == length  # type: ignore[attr-defined]


def test_unavailable_values_are_equal_to_nothing_and_refuse_to_be_computed_with() -> None:
    for found in (
        to_python(UnavailableValue("memory not readable")),
        from_json({"$unavailable": "memory not readable"}),
    ):
        assert isinstance(found, Unavailable)
        assert not found
        assert found != found
        assert found not in (None, 0, "", Unavailable("memory not readable"))
        assert repr(found) == "<unavailable: memory not readable>"
        for compute in (lambda v: v > 1, lambda v: v + 1, lambda v: 1 + v, int, len, list):
            with pytest.raises(TypeError, match="memory not readable"):
                compute(found)


def test_errors() -> None:
    value = ErrorValue("*errors.errorString", "not found", Nil("x"))
    for found in (to_python(value), from_json(to_json(value))):
        assert isinstance(found, GoError)
        assert found
        assert str(found) == found.message == "not found"
        assert found == "not found"
        assert found.type == "*errors.errorString"
    assert found.kind is None
    alike = AlikeValue("*errors.errorString", "no user #", replace(value, message="no user 17"))
    for found in (
        to_python(alike),
        from_json(to_json(alike)),
        from_json(as_json(to_python(alike))),
    ):
        assert found == "no user 17"
        assert found.kind == "no user #"
        assert repr(found) == "<*errors.errorString: like no user 17>"
    cut = to_python(ErrorValue("*fs.PathError", "open /a...", Nil("x"), known="open /a"))
    assert cut.is_cut
    assert cut != "open /a..."


def test_times_durations_channels_functions_and_addresses() -> None:
    moment = to_python(TimeValue(1_700_000_000, 123_456_789, "CET", 3600))
    assert moment == datetime.datetime.fromtimestamp(1_700_000_000.123456, datetime.timezone.utc)
    assert moment.tzname() == "CET"
    unknown = to_python(TimeValue(0, 0, None))
    assert (unknown.timestamp(), unknown.tzname()) == (0, "-00")
    assert to_python(TimeValue(1 << 60, 0)).startswith("365")  # a year that Python does not know
    assert to_python(DurationValue(1_500_000_000)) == 1_500_000_000
    assert str(Duration(1_500_000_000)) == "1.5s"
    chan = to_python(ChanValue("chan int", 0xC000, 2, 4, False))
    assert (len(chan), chan.capacity, chan.closed) == (2, 4, False)
    assert isinstance(from_json(to_json(ChanValue("chan int", 0xC000, 2, 4, False))), Chan)
    assert to_python(FuncValue("func()", 0x1000, "main.f")).name == "main.f"
    for address in (PointerValue("*int", 0xC0DE), NamedValue("uintptr", 0xC0DE)):
        found = to_python(address)
        assert isinstance(found, Pointer)
        assert str(found) == "0xc0de"
        assert found == 0xC0DE
        assert from_json(to_json(address)) == found


def test_arrays_and_unavailable_values_as_keys() -> None:
    pairs = SequenceValue("[2]int", (1, 2), 2), UnavailableValue("gone")
    found = to_python(MapValue("map[[2]int]bool", tuple((key, True) for key in pairs), 2))
    whole, unknown = found
    assert whole == (1, 2)
    assert repr(unknown) == "<key <unavailable: gone>>"


def test_keys_that_are_not_known_or_alike_are_kept_apart() -> None:
    """No entry of a map goes missing without a word."""
    long = StringValue(b"k" * 256, 300)
    ones: tuple[Value, ...] = (
        InterfaceValue("any", "int", 1),
        InterfaceValue("any", "float64", 1.0),
        Nil("any"),
    )
    several: list[tuple[Value, ...]] = [(long,) * 6, (UnavailableValue("gone"),) * 6, ones]
    for keys in several:
        value = MapValue("map[any]int", tuple((key, n) for n, key in enumerate(keys)), len(keys))
        for found in (to_python(value), from_json(json.loads(json.dumps(to_json(value))))):
            assert len(found) == len(keys)
            assert sorted(found.values()) == list(range(len(keys)))
            written = from_json(json.loads(json.dumps(as_json(found))))
            assert list(written.values()) == list(found.values())
    fields = StructValue("main.K", (("Name", long),))
    found = to_python(MapValue("map[main.K]int", ((fields, 1), (fields, 2)), 5))
    assert (len(found), found.length) == (2, 5)


#: Two words that lead to a text.
GUESSED = StructValue(
    "shape",
    (("f0", NamedValue("uintptr", 0xC0DE)), ("f1", NamedValue("uintptr", 5))),
    StringValue(b"hello", 5),
)


def test_a_guess_is_written_beside_its_words() -> None:
    written = as_json(to_python(GUESSED))
    assert written == to_json(GUESSED)
    assert written["f1"] == {"$pointer": "0x5"} and written["$guess"] == "hello"


@pytest.mark.parametrize(
    "value",
    [
        StringValue(b"GE", 30),
        BytesValue("[]uint8", b"\xff\xfe", 20),
        SequenceValue("[]int", (1,), 9, 9),
        MapValue("map[int]int", ((1, 2),), 5),
        MapValue("map[bool]int", ((True, 2),), 1),
        POINT,
        StringValue(b"$dollar", 7),
        StringValue(b"\xff", 1),
        ErrorValue("*errors.errorString", "no\udcff", Nil("x")),
        ErrorValue("*main.E", "known", POINT, guessed=True),
        FuncValue("func()", 0x1000, "main.f"),
        PointerValue("*int", 0xC0DE),
        GUESSED,
        1.5,
        complex(1, 2),
    ],
)
def test_values_can_be_copied_and_written(value: Value) -> None:
    found = to_python(value)
    for other in (
        pickle.loads(pickle.dumps(found)),
        copy.deepcopy(found),
        from_json(json.loads(json.dumps(as_json(found)))),
    ):
        text = isinstance(found, str) and found.encode("utf-8", "surrogateescape") == other
        assert other == found or text
        assert getattr(other, "length", None) == getattr(found, "length", None)


def test_bytes_that_are_no_text_survive() -> None:
    assert to_python(StringValue(b"\xff", 1)).encode("utf-8", "surrogateescape") == b"\xff"
    assert from_json(to_json(StringValue(b"\xff", 1))) == b"\xff"
