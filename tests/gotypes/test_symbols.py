# SPDX-License-Identifier: Apache-2.0
"""Go's symbol names, taken apart: forms as compilers wrote them, and a program of each release."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.gotypes.symbols import (
    GoName,
    NameKind,
    display_name,
    elide_type_arguments,
    package_of,
    parse_name,
    short_name,
    shown_names,
)
from tests.toolchains import FIXTURES, Toolchain, build, every_toolchain

K = NameKind

# Symbols of programs built with Go 1.15 to 1.27 (go tool nm).
FORMS = [
    GoName("main.main", K.FUNCTION, "main", name="main"),
    GoName("net/http.HandlerFunc.ServeHTTP", K.METHOD, "net/http", "HandlerFunc", name="ServeHTTP"),
    GoName("net/http.(*Server).Serve", K.METHOD, "net/http", "Server", True, "Serve"),
    GoName("go.uber.org/zap.New", K.FUNCTION, "go.uber.org/zap", name="New"),
    GoName("go/ast.(*StarExpr).Pos", K.METHOD, "go/ast", "StarExpr", True, "Pos"),
    GoName("example.com/my-demo/v2.F", K.FUNCTION, "example.com/my-demo/v2", name="F"),
    GoName("gopkg.in/yaml%2ev3.Unmarshal", K.FUNCTION, "gopkg.in/yaml.v3", name="Unmarshal"),
    GoName("example.com/%c3%a4.F", K.FUNCTION, "example.com/ä", name="F"),
    GoName(
        "main.Map[go.shape.*uint8,go.shape.func(int, int) (chan<- int, error)]",
        K.FUNCTION,
        "main",
        name="Map",
        type_arguments=("go.shape.*uint8", "go.shape.func(int, int) (chan<- int, error)"),
    ),
    GoName("main.Max[...]", K.FUNCTION, "main", name="Max", type_arguments=("...",)),
    GoName(
        "a.b/pkg%2edot.(*Pair[go.shape.string,go.shape.map[string][]*net/http.Request]).Key.func1",
        K.CLOSURE,
        "a.b/pkg.dot",
        "Pair",
        True,
        "Key",
        ("go.shape.string", "go.shape.map[string][]*net/http.Request"),
        ("func1",),
    ),
    GoName(
        "x/pkg%2edot.Pair[go.shape.struct { x/pkg%2edot.a string },int].Value",
        K.METHOD,
        "x/pkg.dot",
        "Pair",
        name="Value",
        type_arguments=("go.shape.struct { x/pkg.dot.a string }", "int"),
    ),
    GoName(
        'main.F[struct { A string "json:\\"a],[{\\"" },int]',
        K.FUNCTION,
        "main",
        name="F",
        type_arguments=('struct { A string "json:\\"a],[{\\"" }', "int"),
    ),
    GoName("main.f.func1.2", K.CLOSURE, "main", name="f", closure=("func1", "2")),
    GoName("main.main.Printf.func3", K.CLOSURE, "main", name="main", closure=("Printf", "func3")),
    GoName(
        "log.(*T).M.(*Logger).Print.func1",
        K.CLOSURE,
        "log",
        "T",
        True,
        "M",
        closure=("(*Logger)", "Print", "func1"),
    ),
    GoName("main.glob..func1", K.CLOSURE, "main", name="glob.", closure=("func1",)),
    GoName("main.init", K.INIT, "main", name="init"),
    GoName("main.init.0", K.INIT, "main", name="init.0"),
    GoName("debug/dwarf.map.init.1", K.INIT, "debug/dwarf", name="map.init.1"),
    GoName("main.init.0.func1", K.CLOSURE, "main", name="init.0", closure=("func1",)),
    GoName("main.init.func2", K.CLOSURE, "main", name="init", closure=("func2",)),
    GoName("net.(*R).init", K.METHOD, "net", "R", True, "init"),
    GoName("net.(*R).init-fm", K.METHOD_VALUE, "net", "R", True, "init"),
    GoName("main.In.Pr-fm", K.METHOD_VALUE, "main", "In", name="Pr"),
    GoName("main.f-range1", K.CLOSURE, "main", name="f", closure=("range1",)),
    GoName(
        "main.f-range1.deferwrap1", K.WRAPPER, "main", name="f", closure=("range1", "deferwrap1")
    ),
    GoName("main.f.gowrap2", K.WRAPPER, "main", name="f", closure=("gowrap2",)),
    GoName("main.main·dwrap·1", K.WRAPPER, "main", name="main", closure=("dwrap", "1")),
    GoName("main.loc.1.Pr", K.METHOD, "main", "loc.1", name="Pr"),
    GoName("main.(*loc.1).Pr", K.METHOD, "main", "loc.1", True, "Pr"),
    GoName("type:.eq.main.T", K.TYPE_HELPER, receiver="main.T", name="eq"),
    GoName("type..hash.x/a%2eb.T", K.TYPE_HELPER, receiver="x/a.b.T", name="hash"),
    GoName("type:.eq.[2]interface {}", K.TYPE_HELPER, receiver="[2]interface {}", name="eq"),
    GoName(
        "go:(*struct { io.Reader; a/b.n int }).Read",
        K.WRAPPER,
        receiver="struct { io.Reader; a/b.n int }",
        pointer=True,
        name="Read",
    ),
    GoName("go.struct { io.Reader }.Read", K.WRAPPER, receiver="struct { io.Reader }", name="Read"),
    GoName("go:buildid", K.LINKER, name="buildid"),
    GoName("go.buildid", K.LINKER, name="buildid"),
    GoName("memeqbody", K.FOREIGN, name="memeqbody"),
    GoName("runtime.memmove.abi0", K.FUNCTION, "runtime", name="memmove", suffix=".abi0"),
    GoName("hash.part.12", K.FOREIGN, name="hash", suffix=".part.12"),
    GoName("", K.FOREIGN),
]

# Symbols of libgo and of programs built with gccgo 12; the z2e form is that of GCC 10.
GCCGO_FORMS = [
    GoName("fmt.Println", K.FUNCTION, "fmt", name="Println"),
    GoName("a_0com_1b.F", K.FUNCTION, "a.com/b", name="F"),
    GoName("a..z2ecom..z2fb.F", K.FUNCTION, "a.com/b", name="F"),
    GoName("main.my__T.do__it", K.METHOD, "main", "my_T", name="do_it"),
    GoName("main._u00c4pfel", K.FUNCTION, "main", name="Äpfel"),
    GoName("my_x2ddemo.L.Run..func2", K.CLOSURE, "my-demo", "L", name="Run", closure=("func2",)),
    GoName("main.L.Run..func1..r", K.WRAPPER, "main", "L", name="Run", closure=("func1", "r")),
    GoName("main.E.Run..stub", K.WRAPPER, "main", "E", name="Run", closure=("stub",)),
    GoName("main.E.Run_0_0stub2", K.WRAPPER, "main", "E", name="Run", closure=("stub2",)),
    GoName(
        "struct_4_2main_0L_cmain_0y_bstring_5.Run..stub",
        K.WRAPPER,
        receiver="struct{*main.L;main.y string}",
        name="Run",
        closure=("stub",),
    ),
    GoName("main.go..thunk0", K.WRAPPER, "main", name="go", closure=("thunk0",)),
    GoName("main.K..eq", K.TYPE_HELPER, "main", "K", name="eq"),
    GoName("time._6128_7uint64..eq", K.TYPE_HELPER, "time", "[128]uint64", name="eq"),
    GoName("main_0main_0local..hash", K.TYPE_HELPER, receiver="main.main.local", name="hash"),
    GoName("archive_1tar..import", K.INIT, "archive/tar", name="import"),
    GoName("main.main..init1", K.INIT, "main", name="init1"),
    GoName("main.F.constprop.0", K.FUNCTION, "main", name="F", suffix=".constprop.0"),
    GoName("__morestack", K.FOREIGN, name="__morestack"),
]


@pytest.mark.parametrize("expected", FORMS, ids=lambda name: name.text)
def test_go_symbol(expected: GoName) -> None:
    assert parse_name(expected.text) == expected


@pytest.mark.parametrize("expected", GCCGO_FORMS, ids=lambda name: name.text)
def test_gccgo_symbol(expected: GoName) -> None:
    assert parse_name(expected.text, gccgo=True) == expected


def test_generic_instances_are_known() -> None:
    assert parse_name("main.Max[go.shape.int]").is_generic
    assert parse_name("main.(*Pair[int]).Key.func1").is_generic
    assert not parse_name("type:.eq.[3]string").is_generic


def test_spoken_name() -> None:
    assert display_name("gopkg.in/yaml%2ev3.(*T).M") == "gopkg.in/yaml.v3.(*T).M"
    assert display_name("net_1http.my__func") == "net_1http.my__func"
    assert display_name("net_1http.my__func", gccgo=True) == "net/http.my_func"
    assert display_name("__libc_start_main", gccgo=True) == "__libc_start_main"


def test_escapes_that_would_reach_the_terminal_stay() -> None:
    assert display_name("a%1b%5bJ.F") == "a%1b%5bJ.F"
    assert display_name("a%ff.F") == "a%ff.F"
    assert display_name("a_x1b_U0010ffff_U7fffffff.F", gccgo=True) == (
        "a_x1b_U0010ffff_U7fffffff.F"
    )


def test_elided_names_are_those_of_go_tracebacks() -> None:
    assert elide_type_arguments("main.Map[go.shape.[]int,x/y.T[int]]") == "main.Map[...]"
    assert elide_type_arguments("main.(*P[int]).Key.func1") == "main.(*P[...]).Key.func1"
    assert elide_type_arguments("main.F") == "main.F"
    assert elide_type_arguments("]main.F[") == "]main.F["


def test_names_are_elided_where_they_stay_apart() -> None:
    names = ["main.Map[int]", "main.Map[string]", "main.(*P[int]).Key", "main.F"]
    assert shown_names([*names, "main.F"]) == {
        "main.Map[int]": "main.Map[int]",
        "main.Map[string]": "main.Map[string]",
        "main.(*P[int]).Key": "main.(*P[...]).Key",
        "main.F": "main.F",
    }


def test_short_names_are_those_that_code_has() -> None:
    cases = {
        "go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).Put": "etcdserver.(*EtcdServer).Put",
        "net/http.Map[go.shape.int,net/url.URL]": "http.Map[go.shape.int,net/url.URL]",
        "gopkg.in/yaml%2ev3.Unmarshal": "yaml.v3.Unmarshal",
        "main.(*T[net/http.H]).F": "main.(*T[net/http.H]).F",
        "type:.eq.net/http.T": "type:.eq.net/http.T",
        "memcpy": "memcpy",
    }
    assert {name: short_name(name) for name in cases} == cases
    names = ["net/http.Get", "a.b/http.Get", "a.b/http.Map[int]", "main.F[go.shape.int]"]
    assert list(shown_names(names, short=True).values()) == [
        *names[:2],
        "http.Map[...]",
        "main.F[...]",
    ]


def test_package_of_agrees_with_parsing() -> None:
    for name in FORMS:
        if name.kind is not K.FOREIGN:
            assert package_of(name.text) == name.package


_PIECES = [
    "main",
    ".",
    "(*",
    ")",
    "[",
    "]",
    "{",
    "}",
    '"',
    "\\",
    "-fm",
    "func1",
    "..",
    "%2e",
    "go:",
]
_PIECES += ["type:.eq.", "/", "init", "0", "·", "_0", "..stub", "..z2e", "glob", "map", "struct {"]


@given(st.text() | st.lists(st.sampled_from(_PIECES)).map("".join), st.booleans())
def test_any_text_is_a_name(text: str, gccgo: bool) -> None:
    assert parse_name(text, gccgo=gccgo).text == text
    display_name(text, gccgo=gccgo)
    elide_type_arguments(text)
    package_of(text)


# What the fixture declares: (package, receiver, pointer, name, kind).
DECLARED = {
    ("fixture/pkg.dot", "", False, "Function", K.FUNCTION),
    ("fixture/pkg.dot", "T", True, "Pointer", K.METHOD),
    ("fixture/pkg.dot", "T", True, "Pointer", K.METHOD_VALUE),
    ("fixture/pkg.dot", "T", False, "Value", K.METHOD),
    ("main", "", False, "apply", K.FUNCTION),
    ("main", "", False, "call", K.FUNCTION),
    ("main", "", False, "main", K.FUNCTION),
    ("main", "", False, "init.0", K.INIT),
    ("main", "", False, "init.1", K.INIT),
    ("main", "T", True, "Pointer", K.METHOD),
    ("main", "T", True, "Pointer", K.METHOD_VALUE),
    ("main", "T", False, "Value", K.METHOD),
    ("main", "T", False, "Value", K.METHOD_VALUE),
    ("main", "T", True, "literals", K.METHOD),
    ("main", "T", True, "literals", K.CLOSURE),
    ("main", "Outer", True, "Pointer", K.METHOD),
    ("main", "Outer", False, "Pointer", K.METHOD),
}
GENERICS = {
    ("main", "", False, "newer", K.FUNCTION),
    ("main", "", False, "newer", K.CLOSURE),
    ("main", "", False, "Map", K.FUNCTION),
    ("main", "Pair", True, "Key", K.METHOD),
}
RANGES = {
    ("main", "", False, "twice", K.FUNCTION),
    ("main", "", False, "ranges", K.FUNCTION),
    ("main", "", False, "ranges", K.CLOSURE),
    ("main", "", False, "ranges", K.WRAPPER),
    ("main", "", False, "init.2", K.INIT),
}


@every_toolchain
def test_names_of_a_program(toolchain: Toolchain) -> None:
    program = build(FIXTURES / "names_forms", toolchain)
    command = [str(toolchain.go), "tool", "nm", str(program)]
    listing = subprocess.run(
        command, capture_output=True, text=True, check=True, env=toolchain.env()
    ).stdout
    lines = [line.split(None, 2) for line in listing.splitlines()]
    names = [parse_name(line[2]) for line in lines if len(line) == 3 and line[1] in "tT"]
    minor = int(toolchain.minor.partition(".")[2])
    # A literal of a package-level variable, and the wrapper that `go t.literals(...)` needs.
    expected = DECLARED | {("main", "", False, "glob." if minor < 22 else "init", K.CLOSURE)}
    if minor >= 17:
        expected |= {("main", "", False, "main", K.CLOSURE if minor < 22 else K.WRAPPER)}
    if minor >= 22:
        expected |= {("main", "T", True, "literals", K.WRAPPER)}
    expected |= (GENERICS if minor >= 18 else set()) | (RANGES if minor >= 23 else set())
    found = [name for name in names if name.package in ("main", "fixture/pkg.dot")]
    assert {(n.package, n.receiver, n.pointer, n.name, n.kind) for n in found} == expected
    assert {n.name for n in found if n.is_generic} == ({"Map", "Key"} if minor >= 18 else set())
