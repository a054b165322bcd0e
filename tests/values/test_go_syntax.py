# SPDX-License-Identifier: Apache-2.0
"""Check how decoded values are shown; test_nodes_program compares with Go's fmt."""

from __future__ import annotations

import json
import math

import pytest

from gotrace.values.go_syntax import as_alike, go_syntax, with_ids_folded
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
from gotrace.values.python import from_json, to_python
from gotrace.values.to_json import to_json

PAIR = StructValue("main.pair", (("a", 1), ("b", StringValue(b"x", 1))))
STORE = StructValue("a%2eb/store.Store", (("n", 3),))

SHOWN: list[tuple[Value, str, object]] = [
    (True, "true", True),
    (-7, "-7", -7),
    (1e21, "1e+21", 1e21),
    (0.5, "0.5", 0.5),
    (-math.inf, "-Inf", "-Inf"),
    (complex(1, -0.5), "(1-0.5i)", {"$real": 1.0, "$imag": -0.5}),
    (complex(1, math.nan), "(1+NaNi)", {"$real": 1.0, "$imag": "NaN"}),
    (StringValue(b"user:42", 7), '"user:42"', "user:42"),
    (StringValue(b"us", 7), '"us"... (len 7)', {"$string": "us", "$len": 7}),
    (StringValue(b"\x1b[2J\xff\n", 6), r'"\x1b[2J\xff\n"', {"$hex": "1b5b324aff0a"}),
    (
        StringValue(b"\x1b[2J\xff", 90),
        r'"\x1b[2J\xff"... (len 90)',
        {"$hex": "1b5b324aff", "$len": 90},
    ),
    (StringValue(b"a\xe6\x97", 9), r'"a\xe6\x97"... (len 9)', {"$string": "a", "$len": 9}),
    (StringValue(b"a\xe6\x97", 3), r'"a\xe6\x97"', {"$hex": "61e697"}),
    (StringValue("\x00\u202e\ufffd".encode(), 7), '"\\x00\\u202e\ufffd"', "\x00\u202e\ufffd"),
    (BytesValue("[]uint8", b"hi", 2, 2), '[]byte("hi")', "hi"),
    (BytesValue("[]uint8", b"", 0, 0), "[]byte()", ""),
    (BytesValue("[]uint8", b"\x00\x01", 2, 2), "[]byte(0001)", {"$hex": "0001"}),
    (
        BytesValue("[]uint8", b"h\xc3", 9, 9),
        '[]byte("h\\xc3"... (len 9))',
        {"$string": "h", "$len": 9},
    ),
    (BytesValue("main.id", b"\xc3", 3), "main.id(c3... (len 3))", {"$hex": "c3", "$len": 3}),
    (NamedValue("main.color", 3), "main.color(3)", 3),
    (NamedValue("x/y.label", StringValue(b"a", 1)), 'y.label("a")', "a"),
    (NamedValue("uintptr", 255), "0xff", {"$pointer": "0xff"}),
    (PointerValue("*main.pair", 0xC000, PAIR), '&main.pair{a: 1, b: "x"}', {"a": 1, "b": "x"}),
    (PointerValue("*main.pair", 0xC000), "(*main.pair)(0xc000)", {"$pointer": "0xc000"}),
    (
        PointerValue("*int", 0xC000, UnavailableValue("memory not readable")),
        "(*int)(0xc000) <unavailable: memory not readable>",
        {"$unavailable": "memory not readable"},
    ),
    (PointerValue("*int", 1, 5), "&int(5)", 5),
    (PointerValue("*main.color", 1, NamedValue("main.color", 2)), "&main.color(2)", 2),
    (STORE, "store.Store{n: 3}", {"n": 3}),
    (SequenceValue("[]int", (1, 2), 2, 4), "[]int{1, 2}", [1, 2]),
    (
        SequenceValue("[]int", (1, 2), 100, 100),
        "[]int{1, 2, ... (len 100)}",
        {"$elements": [1, 2], "$len": 100},
    ),
    (
        SequenceValue("[2]main.pair", (PAIR,), 1),
        '[2]main.pair{{a: 1, b: "x"}}',
        [{"a": 1, "b": "x"}],
    ),
    (
        SequenceValue("[]main.color", (NamedValue("main.color", 1),), 1, 1),
        "[]main.color{1}",
        [1],
    ),
    (
        SequenceValue("[]interface {}", (InterfaceValue("interface {}", "main.pair", PAIR),), 1, 1),
        '[]any{main.pair{a: 1, b: "x"}}',
        [{"$type": "main.pair", "$value": {"a": 1, "b": "x"}}],
    ),
    (
        MapValue("map[string]int", ((StringValue(b"b", 1), 2), (StringValue(b"a", 1), 1)), 2),
        'map[string]int{"a": 1, "b": 2}',
        {"a": 1, "b": 2},
    ),
    (
        MapValue("map[int]bool", ((5, True),), 9),
        "map[int]bool{5: true, ... (len 9)}",
        {"$entries": {"5": True}, "$len": 9},
    ),
    (
        MapValue("map[int]bool", (), 9, UnavailableValue("memory not readable")),
        "map[int]bool{<unavailable: memory not readable> (len 9)}",
        {"$entries": {}, "$len": 9, "$unavailable": "memory not readable"},
    ),
    (
        MapValue("map[main.pair][]int", ((PAIR, Nil("[]int")),), 1),
        'map[main.pair][]int{{a: 1, b: "x"}: nil}',
        {"$entries": [[{"a": 1, "b": "x"}, None]], "$len": 1},
    ),
    (
        MapValue("map[string]int", ((StringValue(b"$len", 4), 2),), 1),
        'map[string]int{"$len": 2}',
        {"$entries": [["$len", 2]], "$len": 1},
    ),
    (
        ChanValue("chan int", 0xC0, 1, 2, False),
        "(chan int)(0xc0) (len 1, cap 2)",
        {"$chan": "0xc0", "$len": 1, "$cap": 2, "$closed": False},
    ),
    (FuncValue("func()", 0x401000, "main.f"), "main.f", {"$func": "main.f"}),
    (FuncValue("func()", 0x401000, None), "(func())(0x401000)", {"$func": None}),
    (InterfaceValue("interface {}", "int", 7), "7", {"$type": "int", "$value": 7}),
    (InterfaceValue("interface {}", "uint8", 7), "uint8(7)", {"$type": "uint8", "$value": 7}),
    (InterfaceValue("error", "*main.e", Nil("*main.e")), "(*main.e)(nil)", None),
    (
        InterfaceValue("io.Reader", "*os.File", PointerValue("*os.File", 0xC0)),
        "(*os.File)(0xc0)",
        {"$type": "*os.File", "$value": {"$pointer": "0xc0"}},
    ),
    (
        InterfaceValue("io.Reader", "main.r", None),
        "main.r(...)",
        {"$type": "main.r", "$value": {"$unavailable": "not followed"}},
    ),
    (
        ErrorValue("*errors.errorString", "not\nfound", STORE),
        '"not\\nfound" (*errors.errorString)',
        {"$type": "*errors.errorString", "$error": "not\nfound"},
    ),
    (
        ErrorValue("*errors.errorString", "bad \udcff\\xff", STORE),
        r'"bad \xff\\xff" (*errors.errorString)',
        {"$type": "*errors.errorString", "$error": {"$hex": b"bad \xff\\xff".hex()}},
    ),
    (
        ErrorValue("*io/fs.PathError", "open x: gone", STORE),
        '"open x: gone" (*fs.PathError)',
        {"$type": "*io/fs.PathError", "$error": "open x: gone", "$value": {"n": 3}},
    ),
    (
        ErrorValue("*errors.errorString", "long", STORE, "long", 300),
        '"long"... (len 300) (*errors.errorString)',
        {"$type": "*errors.errorString", "$error": "long", "$cut": True},
    ),
    (
        ErrorValue("*io/fs.PathError", "open x: <main.e>", STORE, "open x: "),
        '"open x: <main.e>"... (*fs.PathError)',
        {
            "$type": "*io/fs.PathError",
            "$error": "open x: <main.e>",
            "$cut": True,
            "$value": {"n": 3},
        },
    ),
    (DurationValue(31_200), "31.2\u00b5s", 31_200),
    (TimeValue(0, 5, "CET", 3600), "1970-01-01 01:00:00.000000005 +0100 CET", None),
    (TextValue("net.IP", "10.0.0.1"), "10.0.0.1", "10.0.0.1"),
    (Nil("*main.pair"), "nil", None),
    (
        UnavailableValue("nil pointer"),
        "<unavailable: nil pointer>",
        {"$unavailable": "nil pointer"},
    ),
]


@pytest.mark.parametrize(("value", "text"), [(value, text) for value, text, _ in SHOWN])
def test_go_syntax(value: Value, text: str) -> None:
    assert go_syntax(value) == text
    assert go_syntax(value).isprintable()


@pytest.mark.parametrize(
    ("value", "shape"), [(value, shape) for value, _, shape in SHOWN if shape is not None]
)
def test_json(value: Value, shape: object) -> None:
    assert to_json(value) == shape
    assert json.loads(json.dumps(to_json(value), allow_nan=False)) == shape


def test_json_of_nothing_and_of_times() -> None:
    assert to_json(Nil("error")) is None
    assert to_json(TimeValue(0, 5, "CET", 3600)) == "1970-01-01T01:00:00.000000005+01:00"
    assert to_json(TimeValue(0, 0, "UTC", 0, 17)) == "1970-01-01T00:00:00Z"
    # A zone that is not known is not UTC, although that is what is shown.
    assert to_json(TimeValue(0, 0, None)) == "1970-01-01T00:00:00-00:00"
    assert go_syntax(TimeValue(0, 0, None)) == "1970-01-01 00:00:00 +0000 UTC"
    assert go_syntax(TimeValue(0, 0, "", 3600)) == "1970-01-01 01:00:00 +0100 +0100"


def test_blank_fields_are_kept_apart() -> None:
    value = StructValue("main.T", (("_", 1), ("a", 2), ("_", 3), ("_", 4)))
    assert to_json(value) == {"_": 1, "a": 2, "_'": 3, "_''": 4}
    assert go_syntax(value) == "main.T{_: 1, a: 2, _: 3, _: 4}"
    assert dict(to_python(value)) == to_json(value)
    assert from_json(to_json(value)) == to_python(value)


def test_depth() -> None:
    nested = StructValue("main.t", (("p", PAIR), ("s", SequenceValue("[]int", (1,), 1, 1))))
    assert go_syntax(nested, 1) == "main.t{p: main.pair{...}, s: []int{... (len 1)}}"
    assert go_syntax(nested, 0) == "main.t{...}"


def test_hostile_names_are_escaped() -> None:
    assert go_syntax(StructValue("a\x1bb", (("f\n", 1),))) == r"a\x1bb{f\n: 1}"
    assert go_syntax(FuncValue("func()", 1, "main.\x1b[0m")) == r"main.\x1b[0m"
    assert go_syntax(TextValue("net/netip.Addr", "fe80::1%\x1b")) == r"fe80::1%\x1b"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('store: key "user:105": not found', "store: key #: not found"),
        ('open "a \\" b": gone, then "cut', "open #: gone, then #"),
        ("can't read `x` and 'y': isn't there", "can't read # and #: isn't there"),
        ("dial tcp 10.0.0.1:80: refused", "dial tcp #.#.#.#:#: refused"),
        ("at 0xc000012f40, sha1 of deadbeef1", "at #, sha1 of #"),
        ("order 0b9c1f7e-12ab-4c3d-9aef-00ff00ff00ff: faded", "order #: faded"),
        ("order deadbeefcafe: faded cabbage", "order #: faded cabbage"),
        ("GET /b/7: 404, after 13ms", "GET /b/#: 404, after #ms"),
        ("upstream returned 502.", None),
        ("sha256 mismatch", None),
        ("EOF", None),
    ],
)
def test_errors_of_a_kind_differ_by_numbers_and_quoted_parts(text: str, kind: str | None) -> None:
    error = ErrorValue("*e", text, STORE)
    assert as_alike(error) == (AlikeValue("*e", kind, error) if kind else error)


def test_errors_without_a_message_are_of_one_kind_if_they_are_equal_but_for_ids() -> None:
    def error(*fields: tuple[str, Value], type: str = "error") -> InterfaceValue:
        return InterfaceValue(type, "main.e", StructValue("main.e", fields))

    assert as_alike(error(("code", 3), ("Valid", True))) == error(("code", 3), ("Valid", True))
    for name in ("id", "UserID", "OrderId"):
        alike = as_alike(error((name, 17), ("code", 3)))
        assert alike == as_alike(error((name, 18), ("code", 3)))
        assert alike == AlikeValue("main.e", f"main.e{{{name}: #, code: 3}}", error())
        assert alike != as_alike(error((name, 17), ("code", 4)))
        assert go_syntax(alike) == f"like main.e{{{name}: 17, code: 3}}"
        assert as_alike(error((name, 17), type="any")) == error((name, 17), type="any")
    struct = StructValue("main.e", (("ID", 1),))
    first, other = (PointerValue("*main.e", address, struct) for address in (0xC0, 0xD0))
    assert as_alike(InterfaceValue("error", "*main.e", first)) == as_alike(
        InterfaceValue("error", "*main.e", other)
    )


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/users/123/orders/9f8a77c0de", "/users/{id}/orders/{id}"),
        ("/o/0b9c1f7e-12ab-4c3d-9aef-00ff00ff00ff.json", "/o/{id}.json"),
        ("/o/deadbeefcafe", "/o/{id}"),
        ("/o/cus_9s6XKzkNRiz8i3AbCd", "/o/{id}"),
        ("/api/v2/decade/facade", "/api/v2/decade/facade"),
        ("/2024-report/sha256", "/2024-report/sha256"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_ids_in_paths_are_folded(path: str, route: str) -> None:
    text = StringValue(path.encode(), len(path))
    assert with_ids_folded(text) == StringValue(route.encode(), len(route))
    assert with_ids_folded(NamedValue("main.P", text)) == NamedValue(
        "main.P", StringValue(route.encode(), len(route))
    )
    assert with_ids_folded(17) == 17
