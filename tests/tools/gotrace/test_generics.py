# SPDX-License-Identifier: Apache-2.0
"""Hold the types of values in generic functions against a program that prints them itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_since, minor, newest
from tests.tools.gotrace.test_values import Traced, trace
from tests.tools.harness import Fixture, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

PROGRAM = FIXTURES / "trace_generics"
_SHAPE = re.compile(r"(struct \{[^}]*\})_\d+")  # up to Go 1.20 with the number of a parameter
_ROW = re.compile(r"main\.take\[.*\] +(\S.*?) +1 +[\d.]+%\n")
_TAKE = re.compile(r"main\.take\[\.\.\.\]\(v=(.*), n=\d+\) = .*")


def traced(toolchain: Toolchain, mode: str, *arguments: str) -> Traced:
    return trace(build(PROGRAM, toolchain, flags=BUILD_MODES[mode]), *arguments)


@each_since(19)
@pytest.mark.parametrize("mode", ["default", "unoptimized"])
def test_values_have_the_types_of_their_instance(toolchain: Toolchain, mode: str) -> None:
    run = traced(toolchain, mode, "main.take*", "main.*bag*.take*", "main.takeInClosure*.func1")
    calls = [call for call in run.calls if "takeInClosure" not in call]
    assert calls == run.wanted
    closures = [_SHAPE.sub(r"\1", call) for call in run.calls if ".func1(" in call]
    truth = run.truth
    assert len(closures) == len(truth["Closures"]) == 3
    # Since Go 1.23 it is known where a closure has its dictionary, in optimized code at times.
    if mode == "default" or minor(toolchain) < 23:
        pairs = zip(closures, truth["Closures"], truth["Shapes"], strict=True)
        assert all(call in (typed, shape) for call, typed, shape in pairs)
    else:
        assert closures == truth["Closures"]


def test_leftovers_are_no_dictionary() -> None:
    run = traced(newest(), "default", "main.unused*")
    shown = [call.partition("v=")[2].partition(", n=")[0] for call in run.calls]
    assert len(shown) == len(run.truth["Unused"]) == 16
    for found, wanted in zip(shown, run.truth["Unused"], strict=True):
        assert found in (wanted, "(*T)" + wanted[wanted.rindex("(") :])
    assert run.truth["Unused"][1] == shown[1]  # the stack had grown for the first


def test_without_symbols_of_dictionaries_types_are_shapes(tmp_path: Path) -> None:
    path = tmp_path / "trace_generics"
    strip = ["objcopy", "--wildcard", "--strip-symbol=*..dict.*"]
    subprocess.run([*strip, build(PROGRAM, newest()), path], check=True)
    shown = [
        call.partition("v=")[2].partition(", n=")[0] for call in trace(path, "main.take[*").calls
    ]
    assert shown[:2] == ["struct { X int; Y int }{X: 1, Y: 2}"] * 2
    assert [re.sub("0x.*", "", one) for one in shown[2:5]] == ["(*T)("] * 3
    assert shown[6] == "7"


def test_keys_have_the_types_of_their_instance() -> None:
    names = "main.take[*", "-x", r"main.take[go.shape.[[]]main*", "-x", "main.take[*map*"
    with Fixture([build(PROGRAM, newest())]) as fixture:
        with tool("gofunccount", "-p", str(fixture.ready), *names, "--by", "v") as counting:
            truth = fixture.work()
            result = counting.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = [match[1] for line in result.lines if (match := _ROW.fullmatch(line))]
    taken = [_TAKE.fullmatch(call) for call in truth["Calls"]]
    values = [match[1] for match in taken if match and not match[1].startswith(("map", "[]"))]
    assert sorted(rows) == sorted(values)
