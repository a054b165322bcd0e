# SPDX-License-Identifier: Apache-2.0
"""Trace a program without DWARF by signatures that name its own types and the library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, build, newest, require
from tests.tools.harness import Fixture, Json, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

CONFIG = {"Name": "main", "Timeout": 1_500_000_000, "Limits": {"Low": -1, "High": 7}}
NEXT = {"Name": "next", "Timeout": 0, "Limits": {"Low": 0, "High": 0}, "Next": None}
ITEMS = [{"ID": 1, "Text": "one"}, {"ID": 41, "Text": "forty-one"}]
HANDLE = "main.handle(w http.ResponseWriter, r *http.Request)"


def program(minor: str | None = None, mode: str = "stripped") -> Path:
    toolchain = require(minor) if minor else newest()
    return build(FIXTURES / "trace_server", toolchain, flags=BUILD_MODES[mode])


def trace(path: Path, *arguments: str) -> Result:
    with Fixture([path]) as fixture:
        with tool("gotrace", "--json", "-p", str(fixture.ready), *arguments) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return result


NAMED = "h struct{srv *http.Server}, "


def calls(result: Result) -> list[tuple[str, Json, Json]]:
    rows = of_kind(result, "call")
    return [(row["func"].removeprefix("main."), row["args"], row["results"]) for row in rows]


@pytest.mark.parametrize("minor", ["1.15", "1.19", None])
def test_fields_of_a_request(minor: str | None) -> None:
    probe = f'{HANDLE} (r.Method == "POST" && r.URL.Path != "/") "%s %s %d %s", r.Method, '
    probe += "r.URL.Path, r.ContentLength, r.URL.RawQuery"
    rows = of_kind(trace(program(minor), probe), "call")
    assert [row["message"] for row in rows] == ["POST /users/42 4 ", "POST /search 4 q=go"]


@pytest.mark.parametrize("minor", ["1.15", "1.19", None])
def test_types_of_the_program(minor: str | None) -> None:
    result = trace(
        program(minor),
        *("--depth", "2"),
        "main.configure(c main.Config, level main.Level) (*main.Config, error)",
        "main.total(items []main.Item, since time.Time) (sum int)",
        "main.both(a *fixture/first/item.Item, b *fixture/second/item.Item) string",
        "main.(*Store).Get(key string) (main.Item, bool)",
    )
    config = {**CONFIG, "Next": NEXT}
    error = {"$error": "no level", "$type": "*errors.errorString"}
    store = {"items": {"a": ITEMS[0]}, "hits": 0}
    assert calls(result) == [
        ("configure", {"c": config, "level": 3}, {"$ret1": config, "$ret2": None}),
        ("configure", {"c": config, "level": 0}, {"$ret1": None, "$ret2": error}),
        ("total", {"items": ITEMS, "since": "2023-11-14T22:13:20Z"}, {"sum": 42}),
        ("(*Store).Get", {"arg1": store, "key": "a"}, {"$ret1": ITEMS[0], "$ret2": True}),
        ("both", {"a": {"First": "1st"}, "b": {"Second": "2nd"}}, {"$ret": "1st2nd"}),
    ]


@pytest.mark.parametrize(
    ("minor", "receiver"),
    [("1.15", NAMED), ("1.19", ""), (None, NAMED), (None, "")],
    ids=["1.15-named", "1.19-omitted", "named", "omitted"],
)
def test_receiver_that_is_a_value(minor: str | None, receiver: str) -> None:
    method = "net/http.serverHandler.ServeHTTP"
    probe = f"{method}({receiver}rw http.ResponseWriter, req *http.Request)"
    rows = of_kind(trace(program(minor), f'{probe} "%s", req.URL.Path'), "call")
    assert [row["message"] for row in rows] == ["/", "/users/42", "/search", "/get/42"]


def test_position_independent_program() -> None:
    flags = (*BUILD_MODES["stripped"], *BUILD_MODES["pie"])
    path = build(FIXTURES / "trace_server", newest(), flags=flags)
    rows = of_kind(trace(path, f'{HANDLE} "%s", r.URL.Path'), "call")
    assert [row["message"] for row in rows] == ["/", "/users/42", "/search"]


@pytest.mark.parametrize(
    ("mode", "signature", "column", "told"),
    [
        ("stripped", "main.total(items []main.Itme) int", 20, "main.Itme"),
        ("stripped", "main.total(n int, r *http.Requests)", 22, "http.Requests"),
        ("stripped", "main.total(n int, Config)", 19, "Config"),
        (
            "stripped",
            "main.both(a *item.Item) string",
            14,
            "fixture/first/item.Item, fixture/second",
        ),
        ("default", "main.total(items []main.Itme) int", 20, "main.Itme"),
        (
            "default",
            "main.both(a *item.Item) string",
            14,
            "fixture/first/item.Item, fixture/second",
        ),
    ],
)
def test_types_that_are_not_found(mode: str, signature: str, column: int, told: str) -> None:
    result = run_tool("gotrace", f"{program(mode=mode)}:{signature}")
    assert result.status == 2
    (line,) = result.errors.splitlines()
    assert f"column {column}: " in line
    assert told in line


@pytest.mark.parametrize(
    "signature",
    [
        "main.(*Store).Get(s *main.Store, key string) (main.Item, bool)",
        "main.configure(c *main.Config, level int8) (*main.Config, error, bool)",
        "main.total(items []main.Item, since time.Time, more int64) int",
    ],
)
def test_signatures_that_are_not_the_functions_own(signature: str) -> None:
    result = run_tool("gotrace", f"{program()}:{signature}")
    assert result.status == 2
    (line,) = result.errors.splitlines()
    assert "bytes of stack" in line


def test_expressions_of_a_method_without_signature() -> None:
    """Numbers name its parameters, and types the usual ones."""
    handler = 'net/http.serverHandler.ServeHTTP (r.Method == "POST") "%s", r.URL.Path'
    writer = 'net/http.(*response).Write (len(arg2) > 7 && $err == nil) "%q", arg2'
    result = trace(program(), handler, writer)
    said = sorted(row["message"] for row in of_kind(result, "call"))
    paths = ["/", "/users/42", "/search"]
    written = ["POST /users/42", "POST /search", "/get/42 0"]
    assert said == sorted([*paths, *(f'"{text}\\n"' for text in written)])


_INSTANCES = """package main

import "os"

type P struct{ X int }

type Box[T any] struct{ item T }

//go:noinline
func (b *Box[T]) Put(v T) T { b.item = v; return b.item }

func main() {
	b := &Box[P]{}
	var p interface{ Put(P) P } = b
	if len(os.Args) > 1 {
		p = nil
	}
	p.Put(P{7})
	b.Put(P{8})
}
"""


@pytest.mark.parametrize("minor", ["1.21", "1.27"])
def test_types_of_an_instance_that_an_interface_calls(minor: str, tmp_path: Path) -> None:
    """The code that instances share takes all calls, and nothing says their types."""
    (tmp_path / "main.go").write_text(_INSTANCES)
    path = build(tmp_path, require(minor), flags=BUILD_MODES["stripped"])
    typed = run_tool("gotrace", "-q", "--json", "main.(*Box[main.P]).Put", "--", path)
    assert calls(typed) == [
        ("(*Box[main.P]).Put", {"arg1": {"item": {"X": 0}}, "arg2": {"X": 7}}, {"$ret": {"X": 7}})
    ]
    shared = run_tool("gotrace", "-q", "--json", "main.(*Box[*]).Put", "--", path)
    words = [args["RCX"] for _, args, _ in calls(shared)]  # after the receiver and the dictionary
    assert words == [{"$pointer": "0x7"}, {"$pointer": "0x8"}]


@pytest.mark.parametrize(
    "signature",
    [
        "net/http.(*response).Write(text string) (int, error)",
        "net/http.(*response).Write(data []byte) (int, any)",
    ],
)
def test_signatures_that_contradict_the_method_table(signature: str) -> None:
    result = run_tool("gotrace", f"{program()}:{signature}")
    assert result.status == 2
    assert result.errors.rstrip().endswith(
        "which the program describes: net/http.(*response).Write(arg2 []uint8) (int, error)"
    )
