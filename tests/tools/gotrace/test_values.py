# SPDX-License-Identifier: Apache-2.0
"""Hold gotrace against a program that says how each of its calls reads, values of every kind."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    Toolchain,
    build,
    each_of,
    marks_of,
    newest,
    require,
    toolchains,
)
from tests.tools.harness import Fixture, Json, Result, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

TAKERS = ("-x", "main.take*.func*", "main.*take*", "main.shapes.func1")
_LINE = re.compile(r"[\d:.]+ +(?:\d+ +){1,3}[0-9.]+[nmu]?s +(.*) at \w+\.go:\d+\n")
_SHAPES = re.compile(r"^([^ =]*?)\[go\.shape\.[^ =]*?\](?=[(.)])")
_MAP_CUT = re.compile(r"map\[int\]int\{((?:\d+: \d+, ){4,8})\.\.\. \(len (\d+)\)\}")
_LEAF = "<unavailable: in a float register that could not be read>"


def program(toolchain: Toolchain | None = None, flags: Sequence[str] = ()) -> Path:
    return build(FIXTURES / "trace_values", toolchain or newest(), flags=flags)


@dataclass(frozen=True)
class Traced:
    """What the fixture says of its calls, and what the tool shows of them."""

    truth: Json
    result: Result

    @property
    def wanted(self) -> list[str]:
        wanted: list[str] = self.truth["Calls"]
        return wanted

    @property
    def calls(self) -> list[str]:
        """Return the calls as the text shows them, without the columns before and the place."""
        found = [match[1] for line in self.result.lines if (match := _LINE.fullmatch(line))]
        return [_SHAPES.sub(r"\1[...]", call) for call in found]


def trace(path: Path, *arguments: str) -> Traced:
    with Fixture([path]) as fixture:
        with tool("gotrace", "-v", "-p", str(fixture.ready), *arguments) as tracing:
            truth = fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return Traced(truth, result)


MODES = {
    "default": BUILD_MODES["default"],
    "unoptimized-pie": (*BUILD_MODES["unoptimized"], *BUILD_MODES["pie"]),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(found, id=f"go{found.minor}", marks=marks_of(found)) for found in toolchains()
    ],
)
def traced(request: pytest.FixtureRequest) -> dict[str, Traced]:
    """Trace the builds of one toolchain, both at a time."""
    paths = [program(request.param, flags) for flags in MODES.values()]
    with ThreadPoolExecutor(len(paths)) as pool:
        runs = pool.map(lambda path: trace(path, *TAKERS), paths)
    return dict(zip(MODES, runs, strict=True))


def comparable(shown: str, wanted: str) -> str:
    """Write a call as the fixture does where that cannot know how it is shown.

    Of a large map eight entries are shown, or those of one bucket while the kernel moves a page
    that the others are in; a float that the function's first instruction changes
    may be there or not.
    """
    if "{EIGHT, " in wanted and (match := _MAP_CUT.search(shown)):
        pairs = re.findall(r"(\d+): (\d+)", match[1])
        assert all(int(key) ** 2 == int(value) for key, value in pairs)
        shown = shown.replace(match[0], f"map[int]int{{EIGHT, ... (len {match[2]})}}")
    if "=FLOAT" in wanted:
        shown = shown.replace("=1.25", "=FLOAT").replace(f"={_LEAF}", "=FLOAT")
    return shown


def assert_same(calls: Sequence[str], wanted: Sequence[str]) -> None:
    assert len(calls) == len(wanted)
    pairs = [(comparable(shown, text), text) for shown, text in zip(calls, wanted, strict=True)]
    different = [pair for pair in pairs if pair[0] != pair[1]]
    assert different == [], different


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_value(traced: dict[str, Traced], mode: str) -> None:
    run = traced[mode]
    assert len(run.wanted) > 60
    assert_same(run.calls, run.wanted)
    assert run.result.errors == ""


def test_two_programs_at_once() -> None:
    """Each program's calls have its own types and name, whatever another has in the same places."""
    paths = [program(require(minor)) for minor in ("1.26", "1.27")]
    names = ("main.takeAny", "main.takeError")
    probes = [f"{path}:{name}" for name in names for path in paths]
    wanted: list[str] = []
    with tool("gotrace", "-v", *probes) as tracing:
        for path in paths:
            with Fixture([path]) as fixture:
                # Their files have the same name, and lie in directories of their own.
                shown = "/".join(path.parts[-2:])
                calls = fixture.work()["Calls"]
                wanted += [f"{shown}:{call}" for call in calls if call.startswith(names)]
                assert fixture.finish() == 0
        result = tracing.end()
    assert len(wanted) > 20
    assert_same(Traced({}, result).calls, wanted)


@pytest.mark.parametrize("mode", ["unoptimized", "pie", "external"])
def test_other_builds(mode: str) -> None:
    run = trace(program(flags=BUILD_MODES[mode]), *TAKERS)
    assert_same(run.calls, run.wanted)


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_values_in_a_race_build(minor: str) -> None:
    # Without the checks of unsafe pointers that come with -race: the fixture makes some up.
    flags = ["-race", "-gcflags=all=-d=checkptr=0"]
    run = trace(program(require(minor), flags), *TAKERS)
    assert_same(run.calls, run.wanted)


@pytest.mark.parametrize("method", ["perf-cookie", "perf-ip"])
def test_lower_rungs(method: str) -> None:
    names = ("main.takeMixed", "main.takeFloats", "main.takeText", "main.(*store).takePointer")
    run = trace(program(flags=BUILD_MODES["pie"]), "--attach", method, *names)
    assert_same(run.calls, [text for text in run.wanted if text.startswith(names)])


#: Signatures to give where there is no DWARF; a value receiver is the first parameter.
SIGNATURES = (
    "main.takeBools(yes, no bool) bool",
    "main.takeSigned(a int8, b int16, c int32, d int64, e int) (int8, int64)",
    "main.takeFloats(f float32, d float64) (float32, float64)",
    "main.takeComplex(c complex64, d complex128) (complex64, complex128)",
    "main.takeText(s, empty string) (string, string)",
    "main.takeArrays(a [3]int, one [1]string, none [0]int, b [2]bool) ([1]string, [3]int)",
    "main.takeSlices(a []int, s []string, none []int, empty []int, long []int) []int",
    "main.takeAny(a, b, c, d interface{}) interface{}",
    "main.takeError(e error) error",
    "main.takeMany(a, b, c, d, e, f, g, h, i, j, k, l int)"
    " (n, o, p, q, r, s, t, u, v, w, x, y int)",
    "main.takeDefer(n int) (result int, err error)",
    "main.store.takeValue(s struct{n int; items []string}, key string) string",
)


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_stripped_with_signatures(minor: str) -> None:
    run = trace(program(require(minor), BUILD_MODES["stripped"]), *SIGNATURES)
    names = [signature.partition("(")[0] for signature in SIGNATURES]
    names[-1] = "main.store.takeValue"
    wanted = [text for text in run.wanted if text.partition("(")[0] in names]
    named = [call.replace("struct { n int; items []string }", "main.store") for call in run.calls]
    assert_same(named, wanted)


@pytest.mark.parametrize("minor", ["1.19", "1.21", "1.27"])
def test_stripped_generics(minor: str) -> None:
    """A signature for all instances; up to Go 1.20 nothing else tells them from one another."""
    path = program(require(minor), BUILD_MODES["stripped"])
    probes = (
        "main.takeTwo[...](k string, v int) map[string]int",
        "main.(*box[...]).takeBoxPointer(n int) *string",
    )
    two, box = trace(path, *probes).calls
    assert two == 'main.takeTwo[...](k="k", v=8) = map[string]int{"k": 8}'
    assert re.sub("0x[0-9a-f]+", "P", box) == (
        'main.(*box[...]).takeBoxPointer(arg1=(*main.box)(P), n=9) = &string("i")'
    )


#: What makes the fixture's functions methods that an interface may call, and keeps them.
_MATRIX = """package main

import (
	"os"
	"reflect"
)

type matrix struct{ n int }

var all = &matrix{7}

func init() {
	sink = store{}
	sink = reflect.ValueOf(all).MethodByName(os.Args[0]).IsValid()
}
"""
_NAME = re.compile(r"([(,] ?)\w+=")


def as_methods(directory: Path) -> Path:
    """Return a copy of the fixture whose functions are exported methods of one type."""
    copy = directory / "trace_methods"
    shutil.copytree(FIXTURES / "trace_values", copy, ignore=shutil.ignore_patterns("unlisted.go"))
    main, listed = copy / "main.go", copy / "listed.go"
    text = re.sub(r"(?m)^func take(?=\w+\()", "func (*matrix) Take", main.read_text())
    text = re.sub(r"(?m)^(\t+)take(?=\w+\()", r"\1all.Take", text)
    text = re.sub(r"(\bs\.|^func \(s \*?store\) )take", r"\1Take", text, flags=re.MULTILINE)
    main.write_text(text)
    listed.write_text(listed.read_text().partition("\n\n")[2])  # all is listed in tables
    (copy / "matrix.go").write_text(_MATRIX)
    return copy


def unnamed(call: str) -> str:
    """Return a call as it is without names of parameters."""
    return _NAME.sub(r"\1", call)


def traced_methods(toolchain: Toolchain, directory: Path) -> tuple[list[str], list[str], str]:
    """Return the calls of a stripped program's methods, as wanted, and what is said of them.

    Both are without the names of parameters.
    """
    flags = ["-ldflags=-s -w", *(BUILD_MODES["pie"] if toolchain is newest() else ())]
    path = build(as_methods(directory), toolchain, flags=flags)
    run = trace(
        path, "-x", "*.func*", "main.(*matrix).*", "main.(*store).Take*", "main.store.Take*"
    )
    wanted = [text for text in run.wanted if "[...]" not in text and "func1(" not in text]
    assert len(wanted) > 50
    calls = [
        re.sub(r"(?<=\()arg1=&main\.matrix\{n: 7\}(, )?", "", call)
        .replace("main.(*matrix).Take", "main.take")
        .replace("store).Take", "store).take")
        .replace("store.Take", "store.take")
        for call in run.calls
    ]
    shown = [comparable(call, text) for call, text in zip(calls, wanted, strict=True)]
    return [*map(unnamed, shown)], [*map(unnamed, wanted)], run.result.errors


@each_of(toolchains())
def test_methods_of_stripped_programs(toolchain: Toolchain, tmp_path: Path) -> None:
    """Each value of every kind is right without DWARF and signatures, if a method takes it."""
    shown, wanted, errors = traced_methods(toolchain, tmp_path)
    assert_same(shown, wanted)
    assert errors == ""


def test_stripped_without_signatures() -> None:
    run = trace(program(flags=BUILD_MODES["stripped"]), "main.takeMany")
    registers = ("RAX", "RBX", "RCX", "RDI", "RSI", "R8", "R9", "R10", "R11")
    shown = ", ".join(f"{name}={number:#x}" for number, name in enumerate(registers, 1))
    assert run.calls == [f"main.takeMany({shown}) = (RAX=0xc, RBX=0xb, RCX=0xa, RDI=0x9)"]
    run = trace(program(require("1.15"), BUILD_MODES["stripped"]), "main.takeMany")
    shown = ", ".join(f"{8 * number}(SP)={number:#x}" for number in range(1, 7))
    assert run.calls == [f"main.takeMany({shown})"]
    assert "give a signature" in run.result.errors
    run = trace(program(flags=BUILD_MODES["stripped"]), 'main.takeMany "here"')
    assert "signature" not in run.result.errors and any("here" in line for line in run.result.lines)


def test_json() -> None:
    run = trace(program(), "--json", *TAKERS)
    rows = of_kind(run.result, "call")
    assert len(rows) == len(run.wanted)
    first = {row["func"]: row for row in reversed(rows)}

    def values(name: str) -> tuple[Json, Json]:
        row = first[f"main.{name}"]
        return row["args"], row["results"]

    assert values("takeBools") == ({"yes": True, "no": False}, {"$ret": True})
    args, results = values("takeUnsigned")
    assert args["d"] == results["$ret1"] == (1 << 64) - 1
    assert args["w"] == results["$ret2"] == {"$pointer": "0x1234"}
    infinite = [row for row in rows if row["func"] == "main.takeFloats"][1]
    assert infinite["results"] == {"$ret1": "+Inf", "$ret2": 2e-07}
    assert values("takeComplex")[0]["c"] == {"$real": 0.5, "$imag": -2.0}
    pair = {"a": 1, "b": "x"}
    pointed = {"p": pair, "none": None, "n": 42, "f": 1.5, "s": "pointed"}
    assert values("takePointers") == (pointed, {"$ret": pair})
    nested = {"p": {"a": -2, "b": "in"}, "inner": {"x": 3, "y": -4}, "ok": True}
    assert values("takeStruct")[1] == {"$ret1": nested, "$ret2": {"a": 9, "b": "out"}}
    args, _ = values("takeSlices")
    assert (args["s"], args["none"], args["empty"]) == (["a", "", "c"], None, [])
    assert args["long"] == {"$elements": [0] * 8, "$len": 100}
    args, _ = values("takeBytes")
    assert args == {"text": "GET /\r\n", "binary": {"$hex": "0001fe"}, "id": {"$hex": "deadbeef"}}
    args, _ = values("takeMaps")
    assert args == {"small": {"a": 1, "b": 2}, "none": None, "empty": {}, "s": {"z": 26}}
    large = values("takeLarge")[0]["m"]
    assert large["$len"] == 100
    assert len(large["$entries"]) == 8
    assert all(int(key) ** 2 == value for key, value in large["$entries"].items())
    channel = values("takeChans")[0]["open"]
    assert {key: channel[key] for key in ("$len", "$cap", "$closed")} == {
        "$len": 2,
        "$cap": 5,
        "$closed": False,
    }
    assert values("takeChans")[1]["$ret"]["$closed"] is True
    assert values("takeFuncs")[0]["h"] == {"$func": "main.composites.func1"}
    args, results = values("takeAny")
    assert args["d"] == {"$type": "main.color", "$value": 2}
    assert results == {"$ret": {"$type": "string", "$value": "t"}}
    messages = [row["args"]["e"] for row in rows if row["func"] == "main.takeError"]
    assert messages[-2] is None
    by_type = {row["$type"]: row for row in messages if row is not None}
    assert by_type["*fmt.wrapError"]["$error"] == "more: while reading: not found"
    assert by_type["*net.OpError"]["$error"].startswith("dial tcp 127.0.0.1:80: connect")
    assert values("takeTimes") == (
        {"d": 61_500_000_000, "t": "2023-11-14T22:13:20.123Z"},
        {"$ret1": "2023-11-14T22:13:20.123Z", "$ret2": 61_500_000_000},
    )
    assert values("takeNet")[1] == {"$ret": "2001:db8::1:0:0:5"}
    assert values("takeBlank") == (
        {"arg1": 1, "b": "blank", "last": True},
        {"$ret1": 5, "err": None},
    )
    assert values("takeNothing") == ({}, {})
    assert values("(*store).takePointer")[0]["s"] == {"n": 3, "items": ["one", "two"]}


#: What gdb, of version 13, prints in the same way but for how it spells numbers.
GDB_ASKED = ("takeBools", "takeSigned", "takeUnsigned", "takeFloats", "takeText", "takeMany")


def test_gdb_prints_the_same_arguments(tmp_path: Path) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        skip_or_fail("there is no gdb: install it")
    path = program(require("1.19"), BUILD_MODES["unoptimized"])
    names = tuple(f"main.{name}" for name in GDB_ASKED)
    rows = of_kind(trace(path, "--json", *names).result, "call")
    (tmp_path / "input").write_text("\n\n")
    words = [f"break {name}" for name in names] + [f"run < {tmp_path / 'input'}"]
    words += ["echo call\\n\ninfo args\ncontinue"] * len(rows)
    script = tmp_path / "script"
    script.write_text("set debuginfod enabled off\n" + "\n".join(words) + "\n")
    command = [gdb, "-nx", "-batch", "-x", str(script), str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    printed = [
        dict(re.findall(r"^([a-z]+) = (.*)$", part, re.M)) for part in output.split("call\n")[1:]
    ]
    assert len(printed) == len(rows)
    compared = 0
    for arguments, row in zip(printed, rows, strict=True):
        for name, value in row["args"].items():
            if (expected := gdb_value(arguments[name])) is not None:
                assert expected == spelled(value, name, row["func"]), (name, row)
                compared += 1
    assert compared > 30


def gdb_value(text: str) -> object:
    """Return a value that gdb prints; None where it has cut or escaped it its own way."""
    if text.startswith("0x"):
        match = re.fullmatch(r'0x[0-9a-f]+ "([ -!#-\[\]-~]*)"', text)
        return match[1] if match else None
    return {"true": True, "false": False}.get(text) if text[0] in "tf" else float(text.split()[0])


def spelled(value: object, name: str, function: str) -> object:
    """Return a JSON value as gdb_value gives it: float32 by all its digits."""
    if isinstance(value, dict) and "$pointer" in value:
        return float(int(value["$pointer"], 16))
    if function == "main.takeFloats" and name == "f" and isinstance(value, float):
        return float(f"{struct.unpack('f', struct.pack('f', value))[0]:.9g}")
    return value if isinstance(value, bool | str) else float(str(value))
