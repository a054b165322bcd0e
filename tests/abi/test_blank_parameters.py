# SPDX-License-Identifier: Apache-2.0
"""Place parameters after blank ones, which DWARF up to Go 1.21 does not list.

The truth is the source: signatures made at random are compiled, and read as they were written.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from gotrace.abi.function_values import FunctionValues
from gotrace.abi.locations import FunctionLocations
from gotrace.elf.image import ElfImage
from gotrace.gotypes.binary import Binary
from tests.toolchains import FOR_ARM64, build, require

TYPES = (
    *(
        "int",
        "uint8",
        "int32",
        "bool",
        "uint16",
        "float64",
        "float32",
        "string",
        "[]byte",
        "interface{}",
    ),
    *("error", "*int", "[1]string", "[2]int32", "struct{}", "func()", "complex128"),
    "struct{X float64; N int; Y float64}",
    "struct{Name string; Retries int}",
    "struct{A, B, C, D int}",
    "struct{B bool; S string; F float32}",
)
#: What a function does with a parameter: what it does not use, DWARF may not place.
USES = ("sink(&{0})", "sink({0})", "_ = {0}", "{{ x := {0}; sink(x); sink({0}) }}")
#: What it does with one that has a length, of which DWARF may list only that.
USES_OF_LENGTHS = (*USES, "sink(len({0}))")
#: Beginnings of functions: the receiver of every third is blank.
RECEIVERS = ("", "", "(*owner).")


def signature(choose: random.Random) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the parameters' names and types, and the types of results."""
    parameters = []
    for number in range(choose.randint(1, 7)):
        blank = choose.random() < 0.35
        parameters.append(("_" if blank else f"p{number}", choose.choice(TYPES)))
    return parameters, [choose.choice(TYPES) for _ in range(choose.randint(0, 2))]


def text(parameters: list[tuple[str, str]], results: list[str]) -> str:
    listed = ", ".join(f"{name} {of}" for name, of in parameters)
    return f"({listed}) ({', '.join(f'r{n} {of}' for n, of in enumerate(results))})"


def source(signatures: list[tuple[list[tuple[str, str]], list[str]]], choose: random.Random) -> str:
    lines = [
        "package main",
        "var kept []interface{}",
        "//go:noinline",
        "func sink(v interface{}) { if len(kept) < 9 { kept = append(kept, v) } }",
        "type owner struct{ n int }",
    ]
    for number, (parameters, results) in enumerate(signatures):
        receiver = RECEIVERS[number % len(RECEIVERS)].rstrip(".")
        lines += ["//go:noinline", f"func {receiver} f{number}{text(parameters, results)} {{"]
        lines += [
            choose.choice(USES_OF_LENGTHS if of in ("string", "[]byte") else USES).format(name)
            for name, of in parameters
            if name != "_" and choose.random() < 0.9
        ]
        lines += ["return", "}"]
    lines += ["func main() {"]
    lines += [
        f"kept = append(kept, {RECEIVERS[number % len(RECEIVERS)]}f{number})"
        for number in range(len(signatures))
    ]
    return "\n".join([*lines, "}", ""])


def wrong_places(found: FunctionLocations, truth: FunctionLocations) -> tuple[list[str], int, int]:
    """Return the values that are said to be elsewhere, and how many are right and not known."""
    wrong, right, unknown = [], 0, 0
    expected = {value.name: value for value in (*truth.parameters, *truth.results) if value.name}
    for value in (*found.parameters, *found.results):
        if not value.name or value.name not in expected or not value.type.size:
            continue
        if value.pieces is None:
            unknown += 1
        elif value.pieces == expected[value.name].pieces:
            right += 1
        else:
            wrong.append(f"{value.name} {value.pieces} for {expected[value.name].pieces}")
    return wrong, right, unknown


@pytest.mark.parametrize(
    ("minor", "count", "env"),
    [
        pytest.param("1.15", 60, FOR_ARM64, id="go1.15-arm64-few"),
        *(
            pytest.param(minor, 700, env, id=f"go{minor}-{name}", marks=pytest.mark.slow)
            for minor in ("1.15", "1.19", "1.21", "1.27")
            for name, env in (("amd64", {}), ("arm64", FOR_ARM64))
        ),
    ],
)
def test_parameters_after_blank_ones(
    minor: str, count: int, env: Mapping[str, str], tmp_path: Path
) -> None:
    choose = random.Random(minor)
    signatures = [signature(choose) for _ in range(count)]
    (tmp_path / "blanks").mkdir()
    (tmp_path / "blanks" / "go.mod").write_text("module blanks\n\ngo 1.15\n")
    (tmp_path / "blanks" / "main.go").write_text(source(signatures, choose))
    path = build(tmp_path / "blanks", require(minor), env=env)
    mistakes, right, unknown = [], 0, 0
    with Binary(ElfImage.open(path)) as binary:
        values = FunctionValues(binary)
        table = binary.functions
        for number, (parameters, results) in enumerate(signatures):
            name = f"main.{RECEIVERS[number % len(RECEIVERS)]}f{number}"
            function = table.function(table.rows_named(name)[0])
            written = f"{name}{text(parameters, results)}"
            truth = values.of(function, written)
            wrong, good, not_known = wrong_places(values.of(function, None), truth)
            mistakes += [f"{written}: {each}" for each in wrong]
            right += good
            unknown += not_known
    print(f"{right} right, {unknown} not known, {len(mistakes)} wrong")
    print("\n".join(mistakes[:40]))
    assert mistakes == []
    assert right > count and unknown < right / 3
