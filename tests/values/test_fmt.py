# SPDX-License-Identifier: Apache-2.0
"""Go's format verbs over decoded values: what fmt.Sprintf says is the truth."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.gotypes.types import (
    Field,
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
from gotrace.values.fmt import FormatError, format_values, parse_format, verb_problem
from gotrace.values.model import (
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
from gotrace.values.scalars import plain_text
from gotrace.values.stdlib_text import duration_text, time_text
from tests import toolchains


def string(text: str | bytes) -> StringValue:
    content = text.encode() if isinstance(text, str) else text
    return StringValue(content, len(content))


def pointer_to(of: GoType) -> PointerType:
    return PointerType(f"*{of.name}", Kind.POINTER, 8, 8, Lazy.of(of))


def slice_of(of: GoType) -> SliceType:
    return SliceType(f"[]{of.name}", Kind.SLICE, 24, 8, Lazy.of(of))


def struct_of(name: str, *fields: tuple[str, GoType]) -> StructType:
    return StructType(name, Kind.STRUCT, 64, 8, tuple(Field(n, 0, t) for n, t in fields))


INT, STRING, UINT8 = basic_type(Kind.INT), basic_type(Kind.STRING), basic_type(Kind.UINT8)
ERROR = InterfaceType("error", Kind.INTERFACE, 16, 8, False)
ANY = InterfaceType("interface {}", Kind.INTERFACE, 16, 8, True)
POINT = struct_of("main.P", ("X", INT), ("Name", STRING), ("U", UINT8), ("Next", pointer_to(INT)))
MAP = MapType("map[string]int", Kind.MAP, 8, 8, Lazy.of(STRING), Lazy.of(INT))
POINT_VALUE = StructValue(
    "main.P", (("X", 1), ("Name", string("a b")), ("U", 200), ("Next", Nil("*int")))
)
NESTED = struct_of("main.Q", ("P", POINT), ("Err", ERROR), ("Any", ANY), ("Tags", slice_of(STRING)))
BOOM = ErrorValue("*errors.errorString", "boom", PointerValue("*errors.errorString", 0xC000))
NESTED_VALUE = StructValue(
    "main.Q",
    (
        ("P", POINT_VALUE),
        ("Err", BOOM),
        ("Any", InterfaceValue("interface {}", "uint8", 7, UINT8)),
        ("Tags", SequenceValue("[]string", (string("x"), string("y")), 2, 2)),
    ),
)


def any_of(name: str, value: Value, of: GoType | None = None) -> InterfaceValue:
    return InterfaceValue("interface {}", name, value, of)


@dataclass(frozen=True)
class Case:
    """One value in Go's words and as decoding gives it, and verbs to print it with."""

    go: str
    value: Value
    formats: str
    type: GoType | None = None


INTEGER = (
    "%v %d %5d| %-5d| %05d %+d % d %x %X %#x %#X %o %#o %O %b %#b %s %.3d %8.3d| %08.3d| %-08d| "
)
INTEGER += "%t %+v %T %6v| %+05d %#08x %g %U %#U %.8U %12U| %-12U| %012U"
CHARACTER = "%c %q %U %#U %5c| %-5q| %08U %05c| %-5c| %05q| %#.6U"
FLOAT = "%v %f %.2f %8.3f| %-8.2f| %08.2f %e %g %.3g %G %E %+.1f % f %d %T %.0f %+v %6v| %F %#v "
FLOAT += "%x %X %.0x %.1x %.3X %.20x %20x| %-20x| %020x %+x % x %b %#x %#X %#.3x %#g %#.3g %#G %#e "
FLOAT += "%#f %#.0f %#.0e %20b| %+b"
TEXT = "%v %s %q %x %X %#x %#q %+q %10s| %-10s| %.2s %.2q %8q| %T %#v %d %.3x %+v %8v| "
TEXT += "%010s| %-010s| %010q| %014x|"
ANY_VALUE = "%v %#v %d %x %T %5v|"
CASES = [
    Case("0", 0, INTEGER + " %U %q", INT),
    Case("8364", 8364, INTEGER + CHARACTER + " %#v", INT),
    Case("-255", -255, INTEGER, INT),
    Case("int64(-9223372036854775808)", -(1 << 63), INTEGER, basic_type(Kind.INT64)),
    Case("uint8(200)", 200, INTEGER + " %#v", UINT8),
    Case("uint64(18446744073709551615)", (1 << 64) - 1, INTEGER, basic_type(Kind.UINT64)),
    Case("uintptr(4096)", NamedValue("uintptr", 4096), INTEGER + " %#v", basic_type(Kind.UINTPTR)),
    Case("State(3)", NamedValue("main.State", 3), INTEGER, basic_type(Kind.INT, "main.State")),
    Case("float64(0)", 0.0, FLOAT),
    Case("1.5", 1.5, FLOAT),
    Case("-2.25", -2.25, FLOAT),
    Case("100000.0", 1e5, FLOAT),
    Case("1e6", 1e6, FLOAT),
    Case("123456789.0", 123456789.0, FLOAT),
    Case("1e20", 1e20, FLOAT),
    Case("1e21", 1e21, FLOAT),
    Case("1e22", 1e22, FLOAT),
    Case("1.234e-5", 1.234e-5, FLOAT),
    Case("0.0001", 0.0001, FLOAT),
    Case("math.Inf(1)", float("inf"), FLOAT),
    Case("math.Inf(-1)", float("-inf"), FLOAT),
    Case("math.NaN()", float("nan"), FLOAT),
    Case("math.Copysign(0, -1)", -0.0, FLOAT),
    Case("float32(0.1)", 0.1, FLOAT + " %.12f %.9e", basic_type(Kind.FLOAT32)),
    Case("5e-324", 5e-324, FLOAT),
    Case("1.9999999999999998", 1.9999999999999998, FLOAT),
    Case("float32(1e-45)", 1e-45, FLOAT, basic_type(Kind.FLOAT32)),
    Case("float32(16777216)", 16777216.0, FLOAT, basic_type(Kind.FLOAT32)),
    Case("complex(1, -2.5)", 1 - 2.5j, "%v %.2f %g %T %+v %e %d"),
    Case("complex(1, -2.5)", 1 - 2.5j, "%x %.2X %b %10x|"),
    Case("-1", -1, CHARACTER, INT),
    Case("0x7fffffffffffffff", (1 << 63) - 1, CHARACTER, INT),
    Case("uint64(1<<64-1)", (1 << 64) - 1, CHARACTER, basic_type(Kind.UINT64)),
    Case("0xd800", 0xD800, CHARACTER, INT),
    Case("10", 10, "%U %#U %.6U", INT),
    Case("true", True, "%v %t %6t| %-6v| %d %T %s %#v"),
    Case('"hi"', string("hi"), TEXT + " % x %# x %t"),
    Case('""', string(""), TEXT),
    Case('"h\u00e9llo \\"w\\" \\\\ `"', string('h\u00e9llo "w" \\ `'), TEXT),
    Case(
        '"\\a\\n\\x00\\x7f\\u00a0\\U0001F600\\xff"',
        string(b"\a\n\0\x7f\xc2\xa0\xf0\x9f\x98\x80\xff"),
        "%q %+q %x",
    ),
    Case(
        'Key("k")',
        NamedValue("main.Key", string("k")),
        "%v %s %q %x %T %d",
        basic_type(Kind.STRING, "main.Key"),
    ),
    Case('[]byte("abc")', BytesValue("[]uint8", b"abc", 3, 3), "%v %s %x %X %q %d %#v %T % x %5s|"),
    Case("[]byte(nil)", Nil("[]uint8"), "%v %s %x %q %T %#v"),
    Case(
        "[]int{1, -2}",
        SequenceValue("[]int", (1, -2), 2, 2),
        "%v %d %#v %T %x %s %3d| %+v",
        slice_of(INT),
    ),
    Case("[2]int{1, 2}", SequenceValue("[2]int", (1, 2), 2), "%v %#v %T"),
    Case("[]int(nil)", Nil("[]int"), "%v %d %#v %T %s"),
    Case(
        '[]string{"a b", "c"}',
        SequenceValue("[]string", (string("a b"), string("c")), 2, 2),
        "%v %q %s %#v %x",
    ),
    Case("numbers{1, 2}", SequenceValue("main.numbers", (1, 2), 2, 2), "%v %T %#v"),
    Case(
        "numbers(nil)",
        Nil("main.numbers"),
        "%v %T %#v %d",
        SliceType("main.numbers", Kind.SLICE, 24, 8, Lazy.of(INT)),
    ),
    Case(
        'map[string]int{"b": 2, "a": 1}',
        MapValue("map[string]int", ((string("b"), 2), (string("a"), 1)), 2),
        "%v %+v %#v %T",
        MAP,
    ),
    Case(
        "map[int]bool{10: true, 9: false}",
        MapValue("map[int]bool", ((10, True), (9, False)), 2),
        "%v %t",
    ),
    Case("map[string]int(nil)", Nil("map[string]int"), "%v %#v %T", MAP),
    Case('P{1, "a b", 200, nil}', POINT_VALUE, "%v %+v %#v %T %d %s", POINT),
    Case(
        '&P{1, "a b", 200, nil}',
        PointerValue("*main.P", 0xC000, POINT_VALUE),
        "%v %+v %#v %T",
        pointer_to(POINT),
    ),
    Case("&[]int{1}", PointerValue("*[]int", 0xC000, SequenceValue("[]int", (1,), 1, 1)), "%v %#v"),
    Case("(*P)(nil)", Nil("*main.P"), "%v %+v %#v %T %d %p %x %s", pointer_to(POINT)),
    Case(
        'Q{P{1, "a b", 200, nil}, errors.New("boom"), uint8(7), []string{"x", "y"}}',
        NESTED_VALUE,
        "%v %+v",
        NESTED,
    ),
    Case('errors.New("boom")', BOOM, "%v %s %q %x %6v| %T", ERROR),
    Case("error(nil)", Nil("error"), "%v %s %d %T %+v %p %#v %6v|", ERROR),
    Case("any(nil)", Nil("interface {}"), "%v %T", ANY),
    Case("any(uint8(200))", InterfaceValue("interface {}", "uint8", 200, UINT8), ANY_VALUE, ANY),
    Case(
        "any(float32(0.1))",
        InterfaceValue("interface {}", "float32", 0.1, basic_type(Kind.FLOAT32)),
        "%v %#v %.9f %x",
        ANY,
    ),
    Case(
        "any(uintptr(16))",
        InterfaceValue(
            "interface {}",
            "uintptr",
            NamedValue("uintptr", 16),
            basic_type(Kind.UINTPTR),
        ),
        ANY_VALUE,
        ANY,
    ),
    Case(
        'any(P{1, "a b", 200, nil})',
        InterfaceValue("interface {}", "main.P", POINT_VALUE, POINT),
        "%v %+v %#v",
        ANY,
    ),
    Case(
        'any(&P{1, "a b", 200, nil})',
        InterfaceValue(
            "interface {}", "*main.P", PointerValue("*main.P", 1, POINT_VALUE), pointer_to(POINT)
        ),
        "%v %+v %#v",
        ANY,
    ),
    Case(
        'Q{P{1, "a b", 200, nil}, nil, uint8(7), nil}',
        StructValue(
            "main.Q",
            (
                ("P", POINT_VALUE),
                ("Err", Nil("error")),
                ("Any", InterfaceValue("interface {}", "uint8", 7, UINT8)),
                ("Tags", Nil("[]string")),
            ),
        ),
        "%v %+v %#v",
        NESTED,
    ),
    Case(
        '[]any{uint8(1), "s", nil, Key("k"), State(2), 1.0, []uint8{1}}',
        SequenceValue(
            "[]interface {}",
            (
                InterfaceValue("interface {}", "uint8", 1, UINT8),
                InterfaceValue("interface {}", "string", string("s"), STRING),
                Nil("interface {}"),
                InterfaceValue("interface {}", "main.Key", NamedValue("main.Key", string("k"))),
                InterfaceValue("interface {}", "main.State", NamedValue("main.State", 2)),
                InterfaceValue("interface {}", "float64", 1.0),
                InterfaceValue("interface {}", "[]uint8", BytesValue("[]uint8", b"\1", 1, 1)),
            ),
            7,
            7,
        ),
        "%v %+v %#v",
        slice_of(ANY),
    ),
    Case('any("s")', InterfaceValue("interface {}", "string", string("s")), "%v %q %T %d", ANY),
    Case("1500 * time.Millisecond", DurationValue(1_500_000_000), "%v %s %d %q %T %8v| %x"),
    Case("time.Duration(31200)", DurationValue(31_200), "%v %s"),
    Case(
        "unsafe.Pointer(uintptr(0x1000))",
        PointerValue("unsafe.Pointer", 0x1000),
        "%v %p %#p %x %T %#v %d",
    ),
    Case("(chan int)(nil)", Nil("chan int"), "%v %T %#v %p"),
    Case("(func())(nil)", Nil("func()"), "%v %T %#v"),
    Case("net.IPv4(10, 0, 0, 1)", TextValue("net.IP", "10.0.0.1"), "%v %s %q %T %10v|"),
    Case("time.Unix(1700000000, 5).UTC()", TimeValue(1_700_000_000, 5), "%v %#v %s %q %12.3s|"),
    Case("time.Time{}", TimeValue(-62_135_596_800, 0), "%#v"),
    Case(
        '[]any{[]byte("ab"), "c", nil, 7}',
        SequenceValue(
            "[]interface {}",
            (
                any_of("[]uint8", BytesValue("[]uint8", b"ab", 2, 2)),
                any_of("string", string("c")),
                Nil("interface {}"),
                any_of("int", 7, INT),
            ),
            4,
            4,
        ),
        "%-12v| %12T %6s| %x %#v",
        slice_of(ANY),
    ),
    Case(
        'any([]byte("abc"))',
        any_of("[]uint8", BytesValue("[]uint8", b"abc", 3, 3), slice_of(UINT8)),
        "%-12v| %12T %.3T %5d|",
        ANY,
    ),
    Case(
        '[]string{"a", "b c", "\u00b5", "`"}',
        SequenceValue("[]string", tuple(map(string, ("a", "b c", "\u00b5", "`"))), 4, 4),
        "%#q %+q %+#q %12T| %d",
        slice_of(STRING),
    ),
    Case(
        '[][]byte{[]byte("a"), nil}',
        SequenceValue("[][]uint8", (BytesValue("[]uint8", b"a", 1, 1), Nil("[]uint8")), 2, 2),
        "%v %s %#v %5v|",
        slice_of(slice_of(UINT8)),
    ),
    Case("[3]byte{1, 2, 3}", BytesValue("[3]uint8", b"\1\2\3", 3), "%v %x %#v %4v| %t"),
    Case(
        "[]float64{1.5, -2}",
        SequenceValue("[]float64", (1.5, -2.0), 2, 2),
        "%v %.2f %8v| %8s|",
        slice_of(basic_type(Kind.FLOAT64)),
    ),
    Case(
        "[]State{1, 2}",
        SequenceValue(
            "[]main.State", (NamedValue("main.State", 1), NamedValue("main.State", 2)), 2
        ),
        "%v %5d| %s",
        slice_of(basic_type(Kind.INT, "main.State")),
    ),
    Case(
        '[]error{errors.New("boom"), nil}',
        SequenceValue("[]error", (BOOM, Nil("error")), 2, 2),
        "%v %6s| %q",
        slice_of(ERROR),
    ),
    Case(
        'map[string][]byte{"k": []byte("v")}',
        MapValue("map[string][]uint8", ((string("k"), BytesValue("[]uint8", b"v", 1, 1)),), 1),
        "%v %s %4v| %d",
        MapType("map[string][]uint8", Kind.MAP, 8, 8, Lazy.of(STRING), Lazy.of(slice_of(UINT8))),
    ),
    Case(
        "[]time.Duration{1500}",
        SequenceValue("[]time.Duration", (DurationValue(1500),), 1, 1),
        "%v %s %d %8v| %#q",
        slice_of(basic_type(Kind.INT64, "time.Duration")),
    ),
    Case('Bytes("ab")', BytesValue("main.Bytes", b"ab", 2, 2), "%v %s %#v %T %5v|"),
    Case(
        "[]complex128{1i}",
        SequenceValue("[]complex128", (1j,), 1, 1),
        "%v %.1f %#v %8v|",
        slice_of(basic_type(Kind.COMPLEX128)),
    ),
    Case("http.Header{}", MapValue("net/http.Header", (), 0), "%v %T %#v"),
    Case("&http.Request{}", PointerValue("*net/http.Request", 1), "%T"),
    Case("map[string]*http.Request{}", MapValue("map[string]*net/http.Request", (), 0), "%T"),
]


def each_format(formats: str) -> list[str]:
    """Split at the spaces before percent signs, which may be flags themselves."""
    return [part.rstrip(" ") for part in re.findall(r"%[-+# 0-9.]*[a-zA-Z]\|?", formats)]


def go_says(tmp_path: Path, calls: list[str], imports: str, more: str = "") -> list[str]:
    body = "\n".join(f"\tout = append(out, {call})" for call in calls)
    source = tmp_path / "verbs.go"
    source.write_text(
        f"""package main

import ({imports})

type State int
type Key string
type numbers []int
type Bytes []byte
type P struct {{ X int; Name string; U uint8; Next *int }}
type Q struct {{ P P; Err error; Any any; Tags []string }}

{more}
var out []string

func main() {{
{body}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.Encode(out)
}}
"""
    )
    program = toolchains.build(source, toolchains.newest())
    done = subprocess.run([program], capture_output=True, check=True, text=True)
    said: list[str] = json.loads(done.stdout)
    return said


def test_values_print_as_go_prints_them(tmp_path: Path) -> None:
    pairs = [(case, template) for case in CASES for template in each_format(case.formats)]
    calls = [f"fmt.Sprintf({json.dumps(template)}, {case.go})" for case, template in pairs]
    imports = '"encoding/json"; "errors"; "fmt"; "math"; "net"; "net/http"; "os"; "time"; "unsafe"'
    expected = go_says(tmp_path, calls, imports)
    wrong = []
    for (case, template), truth in zip(pairs, expected, strict=True):
        got = format_values(parse_format(template), [case.value], [case.type])
        if got != truth:
            wrong.append(f"{template!r} of {case.go}: {got!r}, and Go says {truth!r}")
    assert wrong == []
    assert len(pairs) > 500


def test_random_flags_and_verbs_print_as_go_prints_them(tmp_path: Path) -> None:
    """Go writes control characters; and it knows methods, and addresses that tests make up."""
    chance = random.Random(7)
    pairs: list[tuple[Case, str]] = []
    cases = [case for case in CASES if "&http" not in case.go]
    while len(pairs) < 4000:
        case = chance.choice(cases)
        verb = chance.choice("vTtbcdoOqxXUeEfFgGs" + "vvqsxT")
        has_method = re.search(r"errors|time\.[UT]|net|http", case.go) is not None
        if (has_method and verb not in "vsqxXT") or "0x1000" in case.go or "\\a" in case.go:
            continue
        flags = "".join(flag for flag in "+-# 0" if chance.random() < 0.25)
        width, precision = (
            chance.choice(("", "", "3", "12")),
            chance.choice(("", "", ".", ".1", ".5")),
        )
        if "#" in flags and verb == "v" and re.search("errors|net", case.go):
            continue
        pairs.append((case, f"%{flags}{width}{precision}{verb}"))
    calls = [f"fmt.Sprintf({json.dumps(template)}, {case.go})" for case, template in pairs]
    imports = '"encoding/json"; "errors"; "fmt"; "math"; "net"; "net/http"; "os"; "time"'
    calls += ["net.IPv4len", "http.MethodGet"]
    expected = go_says(tmp_path, [f"fmt.Sprint({call})" for call in calls], imports)
    wrong = []
    for (case, template), truth in zip(pairs, expected, strict=False):
        got = format_values(parse_format(template), [case.value], [case.type])
        if got != plain_text(truth.encode()):
            wrong.append(f"{template!r} of {case.go}: {got!r}, and Go says {truth!r}")
    assert wrong == []


def test_text_with_escapes_is_padded_as_what_it_stands_for(tmp_path: Path) -> None:
    """Go counts the characters of the program's own text; here some are escaped afterwards."""
    texts = [b"a\0b", b"\x1b[31m", b"\xff\xfe broken \xc3", b"\xe2\x82", "\u202egrüße".encode()]
    templates = ["%8s|", "%-8s|", "%8v|", "%08s|", "%20s|", "%-20s|", "%5.2s|", "%1s|"]
    pairs = [(content, template) for content in texts for template in templates]
    calls = [
        f'fmt.Sprintf("%x", fmt.Sprintf({json.dumps(template)}, "{escaped}"))'
        for content, template in pairs
        for escaped in ["".join(f"\\x{byte:02x}" for byte in content)]
    ]
    said = go_says(tmp_path, calls, '"encoding/json"; "fmt"; "os"')
    for (content, template), digits in zip(pairs, said, strict=True):
        assert shown(template, string(content)) == plain_text(bytes.fromhex(digits))


def test_durations_and_times_read_as_go_writes_them(tmp_path: Path) -> None:
    durations = [0, 1, -1, 999, 1000, 1_234_567, 10**9, 61 * 10**9, -90_061_000_000_001]
    durations += [(1 << 63) - 1, -(1 << 63), 3_600_000_000_000]
    times = [(0, 0), (1_700_000_000, 120_000_000), (-62_135_596_800, 0), (-99_999_999_999, 5)]
    times += [(300_000_000_000, 999_999_999), (951_782_399, 1)]
    calls = [f"time.Duration({n}).String()" for n in durations]
    calls += [f"time.Unix({s}, {n}).UTC().String()" for s, n in times]
    calls += [f'time.Unix({s}, {n}).In(time.FixedZone("CET", -5400)).String()' for s, n in times]
    said = go_says(tmp_path, [*calls, 'fmt.Sprint("")'], '"encoding/json"; "fmt"; "os"; "time"')
    mine = [duration_text(n) for n in durations]
    mine += [time_text(TimeValue(s, n)) for s, n in times]
    mine += [time_text(TimeValue(s, n, "CET", -5400)) for s, n in times]
    assert mine == said[:-1]


def test_urls_print_as_go_prints_them(tmp_path: Path) -> None:
    chance = random.Random(11)
    pieces = [
        "a",
        "/",
        "//",
        ":",
        "?",
        "#",
        "%2F",
        "%20",
        "[::1]",
        "*",
        "q=1&r",
        ".",
        "'",
        "(",
        "@",
    ]
    urls = ["http://ex.org:80/a%2Fb?q=%20#f(r)", "mailto:a@b", "*", "//h/p", "a:b", "./a:b", "h?"]
    urls += ["https://u:p@ex.org/", "".join(chance.choices(pieces, k=5))]
    starts = ["", "http://", "/", "x:", "http://h/"]
    urls += [
        chance.choice(starts) + "".join(chance.choices(pieces, k=chance.randint(0, 6)))
        for _ in range(1500)
    ]
    calls = [f"of({json.dumps(url)})" for url in urls]
    said = go_says(
        tmp_path,
        calls,
        '"encoding/json"; "net/url"; "os"',
        "func of(s string) string { u, err := url.Parse(s); if err != nil { return `null` };"
        " b, _ := json.Marshal([]any{u, u.String(), u.User.String()}); return string(b) }",
    )
    compared = 0
    for text in filter(None, map(json.loads, said)):
        fields, truth, user = text
        is_user = fields["User"] is not None
        values: dict[str, Value] = {
            name: string(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        values["User"] = UnavailableValue("not read") if is_user else Nil("*net/url.Userinfo")
        content = StructValue("net/url.URL", tuple(values.items()))
        truth = truth.replace(f"{user}@", "...@", 1) if is_user else truth
        assert shown("%s", PointerValue("*net/url.URL", 1, content)) == plain_text(truth.encode())
        compared += 1
    assert compared > 500
    cut = replace(content, fields=(("Host", StringValue(b"example.o", 11)),))
    assert shown("%v", PointerValue("*net/url.URL", 1, cut)) == "//example.o..."


def test_months_and_days_print_as_go_prints_them() -> None:
    assert (
        shown("%s %v", NamedValue("time.Month", 5), NamedValue("time.Weekday", 0)) == "May Sunday"
    )
    assert (
        shown("%d %v", NamedValue("time.Month", 5), NamedValue("time.Month", 13)) == "5 %!Month(13)"
    )


def test_a_monotonic_reading_stands_behind_the_time() -> None:
    shown = time_text(TimeValue(0, 0, monotonic=1_000_000_005))
    assert shown == "1970-01-01 00:00:00 +0000 UTC m=+1.000000005"


def shown(template: str, *values: Value) -> str:
    return format_values(parse_format(template), values)


def test_text_around_verbs_stays() -> None:
    assert shown("%s %s -> %v, 100%%\n", string("GET"), string("/x"), Nil("error")) == (
        "GET /x -> <nil>, 100%\n"
    )


def test_an_error_without_a_known_message_is_shown_as_without_a_format() -> None:
    fields = StructValue("main.CodeError", (("ID", 17), ("Code", string("E4"))))
    error = InterfaceValue(
        "error", "*main.CodeError", PointerValue("*main.CodeError", 0xC000, fields)
    )
    whole = '&main.CodeError{ID: 17, Code: "E4"}'
    assert shown("%s|%v|%-36v|%.4s", *[error] * 4) == f"{whole}|{whole}|{whole} |&mai"
    inside = StructValue("main.T", (("Err", error),))
    assert shown("%v", inside) == f"{{{whole}}}"
    code = InterfaceValue("error", "main.Code", NamedValue("main.Code", 5))
    assert shown("%s %d %T", code, code, code) == "main.Code(5) 5 main.Code"
    # Of any, and to verbs for fields, a struct is what it is to Go.
    assert shown("%v %+v", replace(error, type="any"), fields) == "&{17 E4} {ID:17 Code:E4}"
    assert shown("%d", replace(error, value=fields)) == "{17 %!d(string=E4)}"


def test_what_is_cut_says_how_long_it_is() -> None:
    long = StringValue(b"user:42", 300)
    assert shown("%s", long) == "user:42... (len 300)"
    assert shown("%q", long) == '"user:42"... (len 300)'
    assert shown("%x", BytesValue("[]uint8", b"\1\2", 9, 9)) == "0102... (len 9)"
    assert shown("%v", BytesValue("[]uint8", b"\1\2", 9, 9)) == "[1 2 ... (len 9)]"
    assert shown("%.4s", long) == "user"
    assert shown("%.9s", long) == "user:42... (len 300)"
    error = ErrorValue("main.e", "a: b", BOOM, "a: b", 300)
    assert shown("%v %q", error, error) == 'a: b... (len 300) "a: b"... (len 300)'
    assert shown("%.2v", error) == "a:"
    for gap in (ErrorValue("main.e", "a: <b>", BOOM, "a: "), replace(error, length=4)):
        assert shown("%s", gap) == f"{gap.message}..."
    assert shown("%v", SequenceValue("[]int", (1, 2), 100, 128)) == "[1 2 ... (len 100)]"
    assert shown("%#v", SequenceValue("[]int", (1, 2), 100, 128)) == "[]int{1, 2, ... (len 100)}"
    entries = ((string("a"), 1),)
    assert shown("%v", MapValue("map[string]int", entries, 5)) == "map[a:1 ... (len 5)]"


def test_what_cannot_be_read_says_why_and_shifts_nothing() -> None:
    gone = UnavailableValue("nil pointer")
    assert shown("%d|%s|%8.3f|%T", gone, 1, gone, gone) == (
        "<unavailable: nil pointer>|%!s(int=1)|<unavailable: nil pointer>|"
        "<unavailable: nil pointer>"
    )
    inside = StructValue("main.T", (("A", gone), ("B", 2)))
    assert shown("%+v", inside) == "{A:<unavailable: nil pointer> B:2}"


@pytest.mark.parametrize("template", ["%s", "%v", "%q", "%+v", "%#v", "%10s", "%x"])
@given(content=st.binary())
def test_a_traced_string_brings_no_control_characters(template: str, content: bytes) -> None:
    assert shown(template, string(content)).isprintable()
    assert shown(template, StructValue("main.\x1b[31mT", (("A", string(content)),))).isprintable()


def test_functions_channels_and_what_was_not_looked_at() -> None:
    assert shown("%v %p", *[FuncValue("func()", 0x47B2C0, "main.main.func1")] * 2) == (
        "main.main.func1 0x47b2c0"
    )
    assert shown("%v", FuncValue("func()", 0x47B2C0, None)) == "0x47b2c0"
    assert shown("%v", ChanValue("chan int", 0xC000, 1, 2, False)) == "0xc000"
    assert shown("%v", InterfaceValue("io.Reader", "*bufio.Reader", None)) == "<*bufio.Reader>"
    pointer = PointerValue("*main.P", 0xC000, POINT_VALUE)
    assert shown("%v", StructValue("main.T", (("P", pointer),))) == "{0xc000}"


@pytest.mark.parametrize(
    ("template", "start", "end", "reason"),
    [
        ("%", 0, 1, "a verb is missing"),
        ("ab%5", 2, 4, "a verb is missing"),
        ("%y", 0, 2, "there is no verb %y"),
        ("%*d", 0, 2, "write the width as a number"),
        ("%[1]d", 0, 2, "leave the index out"),
        ("%i", 0, 2, "integers are %d"),
        ("%99999d", 0, 7, "at most 1000"),
        ("x %-5w", 2, 6, "there is no verb %w"),
    ],
)
def test_bad_formats_name_the_place(template: str, start: int, end: int, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_format(template)
    assert (caught.value.start, caught.value.end) == (start, end)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("template", "of", "better"),
    [
        ("%d", STRING, "%s or %q"),
        ("%s", INT, "%d"),
        ("%t", INT, "%d"),
        ("%d", basic_type(Kind.FLOAT64), "%g"),
        ("%s", basic_type(Kind.BOOL), "%t"),
        ("%s", basic_type(Kind.INT64, "time.Duration"), None),
        ("%x", STRING, None),
        ("%s", ERROR, None),
        ("%d", POINT, None),
        ("%T", INT, None),
    ],
)
def test_a_verb_that_does_not_fit_is_known_beforehand(
    template: str, of: GoType, better: str | None
) -> None:
    problem = verb_problem(parse_format(template).directives[0], of)
    assert (problem is None) if better is None else (problem is not None and better in problem)


@given(st.text(alphabet="%vdsx#+- 0.19aT*[\n"), st.lists(st.integers() | st.floats(), max_size=3))
def test_any_format_is_refused_or_prints(template: str, values: list[Value]) -> None:
    try:
        parsed = parse_format(template)
    except FormatError as error:
        assert 0 <= error.start < error.end <= len(template)
        return
    assert isinstance(format_values(parsed, values), str)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_keeps_its_value_when_printed(value: float) -> None:
    of = basic_type(Kind.FLOAT32)
    back = float(format_values(parse_format("%.60e"), [value], [of]))
    assert struct.pack("<f", back) == struct.pack("<f", value)
