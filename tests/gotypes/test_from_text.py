# SPDX-License-Identifier: Apache-2.0
"""Parse signatures as users write them; names and sizes as the compiler has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.errors import UsageError
from gotrace.gotypes.from_text import SignatureError, parse_signature, parse_type
from gotrace.gotypes.types import GoType, InterfaceType, Kind, StructType, basic_type


def read(text: str) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    signature = parse_signature(text)
    parameters = [(parameter.name, parameter.type.name) for parameter in signature.parameters]
    return signature.name, parameters, [(r.name, r.type.name) for r in signature.results]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("main.add(x int, y int) int", ("main.add", [("x", "int"), ("y", "int")], [("", "int")])),
        (
            "func(s *main.Store, key string) (v string, err error)",
            ("", [("s", "*main.Store"), ("key", "string")], [("v", "string"), ("err", "error")]),
        ),
        (
            "main.(*Store).Get(key string) error",
            ("main.(*Store).Get", [("", "*main.Store"), ("key", "string")], [("", "error")]),
        ),
        ("func(*int) (string, error)", ("", [("", "*int")], [("", "string"), ("", "error")])),
        (
            "a.b/c.f(a, b int8, c ...string)",
            ("a.b/c.f", [("a", "int8"), ("b", "int8"), ("c", "[]string")], []),
        ),
        (
            "main.Max[go.shape.int](d byte, e rune)",
            ("main.Max[go.shape.int]", [("d", "uint8"), ("e", "int32")], []),
        ),
        ("main.f(p *main.G[int, string],)", ("main.f", [("p", "*main.G[int,string]")], [])),
        ("main.f()", ("main.f", [], [])),
    ],
)
def test_signatures(
    text: str, expected: tuple[str, list[tuple[str, str]], list[tuple[str, str]]]
) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text, name, size, align",
    [
        ("[]byte", "[]uint8", 24, 8),
        ("[4]float32", "[4]float32", 16, 4),
        ("[0]int", "[0]int", 0, 8),
        ("map[string][]*main.T", "map[string][]*main.T", 8, 8),
        ("chan<- int", "chan<- int", 8, 8),
        ("<-chan error", "<-chan error", 8, 8),
        ("chan (<-chan int)", "chan <-chan int", 8, 8),
        ("func(int, string) error", "func(int, string) error", 8, 8),
        ("interface{}", "interface {}", 16, 8),
        ("any", "interface {}", 16, 8),
        ("error", "error", 16, 8),
        ("complex64", "complex64", 8, 4),
        ("complex128", "complex128", 16, 8),
        ("unsafe.Pointer", "unsafe.Pointer", 8, 8),
        ("time.Duration", "time.Duration", 8, 8),
        ("struct{}", "struct {}", 0, 1),
        ("struct{a, b int8; c int64}", "struct { a int8; b int8; c int64 }", 16, 8),
        ("struct{a int32; b struct{}}", "struct { a int32; b struct {} }", 8, 4),
        ("(((int)))", "int", 8, 8),
    ],
)
def test_types(text: str, name: str, size: int, align: int) -> None:
    found = parse_type(text)
    assert (found.name, found.size, found.align) == (name, size, align)


def test_struct_offsets() -> None:
    found = parse_type("struct{flag bool; count int64; small int16; last struct{x uint8}}")
    assert isinstance(found, StructType)
    assert [field.offset for field in found.fields] == [0, 8, 16, 18]
    assert found.size == 24


def test_interfaces_differ_in_their_methods() -> None:
    kinds = [parse_type(text) for text in ("any", "error")]
    assert [isinstance(kind, InterfaceType) and kind.is_empty for kind in kinds] == [True, False]


def looked_up(*known: str) -> dict[str, list[GoType]]:
    return {name: [StructType(name, Kind.STRUCT, 16, 8, ())] for name in known}


def test_receivers_come_from_the_name_of_a_method() -> None:
    types = looked_up("net/http.serverHandler", "main.Store")

    def parameters(text: str, *, has_value_receiver: bool = False) -> list[str]:
        signature = parse_signature(
            text, lambda name: types.get(name, []), has_value_receiver=has_value_receiver
        )
        return [parameter.type.name for parameter in signature.parameters]

    value = "net/http.serverHandler.ServeHTTP(n int)"
    assert parameters(value) == ["net/http.serverHandler", "int"]
    assert parameters(value, has_value_receiver=True) == ["int"]
    assert parameters("main.(*Store).Get(n int)") == ["*main.Store", "int"]
    assert parameters("main.(*Store).Get(n int)", has_value_receiver=True) == ["*main.Store", "int"]
    assert parameters("main.unknown.Get(n int)") == ["int"]
    assert parameters("main.Store.Get.func1(n int)") == ["int"]
    assert parameters("main.G[int].Get(n int)") == ["int"]
    assert parameters("func(n int)") == ["int"]


@pytest.mark.parametrize(
    ("name", "described", "found"),
    [
        ("os.FileInfo", ["io/fs.FileInfo"], "io/fs.FileInfo"),
        ("os.FileInfo", ["os.FileInfo"], "os.FileInfo"),  # as before Go 1.16
        ("*os.PathError", ["io/fs.PathError"], "*io/fs.PathError"),
        ("[]os.DirEntry", ["io/fs.DirEntry"], "[]io/fs.DirEntry"),
        ("map[string]json.RawMessage", ["encoding/json/jsontext.Value"], None),
        ("golang.org/x/sys/unix.Errno", ["syscall.Errno"], "syscall.Errno"),
        ("unix.Errno", ["syscall.Errno"], "syscall.Errno"),
        ("any", [], "interface {}"),
        ("byte", [], "uint8"),
        ("rune", [], "int32"),
    ],
)
def test_aliases(name: str, described: list[str], found: str | None) -> None:
    types = looked_up(*described)
    read = parse_type(name, lambda name: types.get(name, []))
    assert read.name == (found or "map[string]encoding/json/jsontext.Value")


def test_declared_types_are_looked_up() -> None:
    celsius: GoType = basic_type(Kind.FLOAT64, "main.Celsius")
    types = {celsius.name: [celsius]}
    signature = parse_signature("main.f(t main.Celsius) main.Celsius", lambda n: types.get(n, ()))
    assert signature.parameters[0].type is celsius
    assert signature.results[0].type is celsius


@pytest.mark.parametrize(
    "text, column, what",
    [
        ("main.f", 1, "expected NAME(PARAMETERS) RESULTS"),
        ("main.f(x", 9, "expected a type, found the end"),
        ("main.f(x int) int int", 19, "unexpected 'int'"),
        ("main.f(x int y int)", 14, "expected ',', found 'y'"),
        ("main.f(x [n]int)", 11, "expected the array's length, found 'n'"),
        ("main.f(x [3]main.T)", 13, "the size of main.T is not known"),
        ("main.f(x main.T)", 8, "the size of main.T is not known"),
        ("main.f() main.T", 10, "the size of main.T is not known"),
        ("main.f(x int,,)", 14, "expected a type, found ','"),
        ("main.f(x interface{ M() })", 21, "methods of interfaces"),
        ("main.f(x struct{[]int})", 17, "expected a field's name, found '['"),
        ("main.f(a, b)", 8, "the size of a is not known"),
        ("main.f(x " + "*" * 100 + "int)", 42, "types nested too deep at '*'"),
    ],
)
def test_errors_name_the_column(text: str, column: int, what: str) -> None:
    with pytest.raises(SignatureError) as caught:
        parse_signature(text)
    assert f"signature {text!r}, column {column}: " in str(caught.value)
    assert what in str(caught.value)
    assert isinstance(caught.value, UsageError)


@given(st.text(alphabet="mainfuctr.()[]{}*,;<-3 xé\0", max_size=60))
def test_any_text_gives_a_signature_or_an_error(text: str) -> None:
    try:
        parse_signature("f(" + text)
    except SignatureError as error:
        assert str(error)
