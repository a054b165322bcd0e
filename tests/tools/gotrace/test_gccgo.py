# SPDX-License-Identifier: Apache-2.0
"""Hold gotrace against a program of gccgo's that says how each of its calls reads."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, gccgo_build
from tests.tools.harness import Json, Result
from tests.tools.trace import calls_of, message_lines, text_calls, trace

pytestmark = [pytest.mark.live, pytest.mark.apart]

BUILDS = {
    "plain": ("-O0",),
    "optimised": ("-O2",),
    "static": ("-O2", "-static-libgo"),
    "no-split": ("-O2", "-fno-split-stack"),
}
NAMED = (
    *("main.store.Get", "main.pair.Sum", "main.Small", "main.Fails", "main.Exclaim"),
    *("main.Slices", "main.Floats", "main.Many", "main.Arrays", "main.Holds"),
)


def program(build: str) -> Path:
    return gccgo_build(FIXTURES / "trace_gccgo", BUILDS[build])


def result_of(call: Json) -> Json:
    """Return a call's one result."""
    (found,) = call["results"].values() if isinstance(call["results"], dict) else call["results"]
    return dict(found)


def shown(result: Result) -> list[str]:
    return [re.sub(r" at \w+\.go:\d+$", "", call) for call in text_calls(result)]


@pytest.mark.parametrize("build", BUILDS)
def test_values_read_as_the_program_says(build: str) -> None:
    truth, result = trace(program(build), "", "-v", *NAMED)
    assert shown(result) == truth["calls"]


@pytest.mark.parametrize("build", ["plain", "optimised"])
def test_stack_words_and_results_in_memory_survive_a_growing_stack(build: str) -> None:
    truth, result = trace(program(build), "", "--json", "main.Deep (g == n)")
    calls = calls_of(result, "main.Deep")
    assert [call["args"]["n"] for call in calls] == list(range(1, truth["deep"] + 1))
    assert all(result_of(call)["a"] == call["args"]["n"] for call in calls), calls[0]


def test_predicates_and_formats_reach_fields_and_results() -> None:
    probe = 'main.store.Get (s.items[1].name == "two" && n > 1) "%d %s", len(s.items), key'
    _, result = trace(program("optimised"), "", probe)
    assert message_lines(result, "main.store.Get") == ["2 beta"]
    _, result = trace(program("optimised"), "", "main.Small (p.b == -4)")
    assert len(shown(result)) == 1
    _, result = trace(program("optimised"), "", "main.Small (p.b == 3)")
    assert not shown(result)


def test_a_signature_stands_for_missing_types() -> None:
    probe = "main.Many(a, b, c, d, e int, s string, f int, g uint8, h int16) (x, y, z int)"
    path = gccgo_build(FIXTURES / "trace_gccgo", ("-O2", "-g0"))
    _, result = trace(path, "", probe)
    assert shown(result) == [
        'main.Many(a=1, b=2, c=3, d=4, e=5, s="str", f=6, g=200, h=-3) = (7, 202, 12)'
    ]


@pytest.mark.parametrize("build", ["plain", "optimised"])
def test_gdb_sees_the_same(build: str, tmp_path: Path) -> None:
    path = program(build)
    commands = tmp_path / "commands"
    words = tmp_path / "input"
    words.write_text("\n\n")
    source = (FIXTURES / "trace_gccgo/main.go").read_text().splitlines()
    line = next(at for at, text in enumerate(source, 1) if "return big{a + f" in text)
    # Unoptimised code has its parameters in memory only behind the stack check.
    place = f"main.go:{line}" if build == "plain" else "'main.Many'"
    commands.write_text(
        "set breakpoint pending on\nhandle all nostop noprint pass\nset print frame-arguments all\n"
        f"break {place}\nrun < {words} > /dev/null\nprint a\nprint e\nprint f\nprint h\n"
        "finish\nkill\n"
    )
    gdb = subprocess.run(
        ["gdb", "-nx", "-batch", "-x", str(commands), str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    printed = re.findall(r"^\$\d+ = (-?\d+)$", gdb.stdout, re.MULTILINE)
    returned = re.search(r"Value returned is \$\d+ = .*?\{(.*)\}", gdb.stdout)
    assert returned is not None, gdb.stdout
    _, result = trace(path, "", "--json", "main.Many")
    (call,) = calls_of(result, "main.Many")
    assert [str(call["args"][name]) for name in "aefh"] == printed
    fields = dict(re.findall(r"(\w+) = (-?\d+)", returned[1]))
    assert {name: str(value) for name, value in result_of(call).items()} == fields, json.dumps(call)
