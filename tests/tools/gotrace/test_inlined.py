# SPDX-License-Identifier: Apache-2.0
"""Inlined calls in gotrace: where they are made, and the values that are certain there.

Truth are the coverage counters of another build (``tests/covered.py``), and of values an
interpreter of random programs (``tests/random_programs.py``).
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.covered import covered_calls
from tests.random_programs import ROUNDS, Object, Program, Slice, Struct
from tests.toolchains import FIXTURES, Toolchain, build, each_since, newest, parts
from tests.tools.harness import of_kind, run_tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

SOURCE = FIXTURES / "live_inlined"


@each_since(19)
def test_each_call_has_its_caller_and_stack(toolchain: Toolchain, tmp_path: Path) -> None:
    truth, binary = covered_calls(SOURCE, toolchain, tmp_path), build(SOURCE, toolchain)
    words = ("--json", "-U", "main.bump", "main.both")
    result = run_tool("gotrace", *words, "--", binary, stdin=subprocess.DEVNULL)
    found: Counter[tuple[str, str | None]] = Counter()
    for call in of_kind(result, "call"):
        found[call["func"], call.get("caller")] += 1
        if "caller" in call:
            assert (call["results"], call["duration_ns"]) == (None, None)
            place = f"{call['stack'][0]['file']}:{call['stack'][0]['line']}"
            assert (call["stack"][0]["func"], place) == (call["caller"], call["at"])
            assert "main.main" in [frame["func"] for frame in call["stack"]]
    note = "main.(*tally).note"
    both = found.pop(("main.both", "main.sum"))
    assert 0 < both <= truth["both"] - 100
    assert found == {
        ("main.bump", note): truth["note"],
        ("main.bump", "main.sum"): truth["bump"] - truth["note"],
        ("main.both", None): 100,
    }


def test_a_value_is_shown_where_the_code_agrees() -> None:
    """A constant is nowhere. What the caller has loaded, the call may have loaded, too."""
    binary = build(SOURCE, newest())
    words = ("main.bump ($goid == 1)", "--", binary)
    lines = run_tool("gotrace", *words, stdin=subprocess.DEVNULL).lines
    shown = [line for line in lines if "in main.(*tally).note at main.go:27" in line]
    found = [re.search(r"main.bump\(t=<unavailable: optimised away>, x=(\d+)\)", x) for x in shown]
    assert all(found)
    assert [int(one[1]) for one in found if one][:3] == [0, 1, 2]
    loaded = [line for line in lines if "in main.sum at main.go:44" in line]
    assert loaded and all("x=<unavailable: DWARF is not confirmed here>" in one for one in loaded)


def test_without_debug_information_no_value_is_shown() -> None:
    binary = build(SOURCE, newest(), flags=("-ldflags=-s -w",))
    lines = run_tool("gotrace", "main.bump", "--", binary, stdin=subprocess.DEVNULL).lines
    line = "main.bump(<unavailable: inlined here>) in main.sum at main.go:44"
    assert any(one.rstrip("\n").endswith(line) for one in lines)


def test_a_condition_is_decided_where_its_values_are_certain() -> None:
    """Where they are not, and for what a pointer leads to, the calls are not shown."""
    binary = build(SOURCE, newest())
    everything = run_tool("gotrace", "--json", "main.bump", "--", binary, stdin=subprocess.DEVNULL)
    asked = run_tool(
        "gotrace", "--json", "main.bump (x > 5)", "--", binary, stdin=subprocess.DEVNULL
    )
    known = [x for call in of_kind(everything, "call") if isinstance(x := call["args"]["x"], int)]
    large = [x for x in known if x > 5]
    assert [call["args"]["x"] for call in of_kind(asked, "call")] == large
    assert 0 < len(large) < len(known)
    refused = run_tool("gotrace", "main.bump (t.n > 2)", "--", binary, stdin=subprocess.DEVNULL)
    assert refused.status == 2
    why = "t: what it leads to may have been changed by the call"
    assert f"main.bump is inlined in 2 places: not shown there: {why}" in refused.errors


#: What live_assigned passes to each function if its loop is at i.
_PASSED: dict[str, Callable[[int], set[tuple[int, ...]]]] = {
    "main.swap": lambda i: {(i, i + 10), (i + 10, i)},
    "main.size": lambda i: {(0, i + 10), (0, 2 * (i + 10))},
    "main.buffer": lambda i: {(100, i + 10)},
    "main.sorted": lambda i: {(i + 10, 100), (-(1 << 62), i + 10)},
    "main.priced": lambda i: {(0,)},
    "main.kept": lambda i: {(i + 10,), (2 * i,)},
    "main.calls.func1": lambda i: {(7, i), (8, i + 10)},
}


@each_since(19)
def test_what_is_assigned_to_a_parameter_is_not_what_was_passed(toolchain: Toolchain) -> None:
    """Neither another parameter, nor what the caller has read before, nor a literal's variable."""
    binary = build(FIXTURES / "live_assigned", toolchain)
    result = run_tool("gotrace", "--json", *_PASSED, "--", binary, stdin=subprocess.DEVNULL)
    known: Counter[str] = Counter()
    for call in of_kind(result, "call"):
        name, values = call["func"], list(call["args"].values())
        passed = [one for i in range(5) for one in _PASSED[name](i)]
        fitting = [
            one
            for one in passed
            if all(a == b or not isinstance(a, int) for a, b in zip(values, one, strict=False))
        ]
        assert "at" not in call or fitting, (name, values)
        known[name] += sum(isinstance(value, int) for value in values)
    assert known["main.kept"] == 10, known


def is_shown_as(value: Any, passed: object, objects: dict[str, object]) -> bool:
    """Return whether a value in JSON is what the interpreter passed, as far as it is known."""
    if isinstance(value, dict) and "$unavailable" in value:
        return True
    if isinstance(passed, Object):
        return objects.setdefault(value["$pointer"], passed) is passed
    if isinstance(passed, Slice):
        length = value["$len"] if isinstance(value, dict) else len(value or ())
        return bool(length == passed.len)
    if isinstance(passed, Struct):
        return bool(value == {"a": passed.a, "u": passed.u})
    return type(value) is type(passed) and value == passed


@each_since(19)
@parts(3)
def test_no_value_is_wrong(toolchain: Toolchain, part: int, tmp_path: Path) -> None:
    """Of a place with fewer calls than were made each one shown is a call that was."""
    program = Program(3 + part)  # 3: Go 1.27 gives one a place that is another value's
    (tmp_path / "main.go").write_text(program.source(ROUNDS))
    binary = build(tmp_path, toolchain, name="random")
    made: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for call in program.run(ROUNDS)[0]:
        made.setdefault((call.function, call.line), []).append(call.arguments)
    names = {one.full for one in program.functions}
    result = run_tool("gotrace", "--json", *names, "--", binary, stdin=subprocess.DEVNULL)
    shown: dict[tuple[str, int], list[list[Any]]] = {}
    for one in of_kind(result, "call"):
        if "at" in one:
            key = one["func"], int(one["at"].rpartition(":")[2])
            shown.setdefault(key, []).append(list(one["args"].values()))
    objects: dict[str, object] = {}
    known = 0
    for key, calls in shown.items():
        rest = iter(made[key])
        for values in calls:
            several = rest if len(calls) < len(made[key]) else [next(rest)]
            assert any(
                len(values) == len(passed)
                and all(is_shown_as(*pair, objects) for pair in zip(values, passed, strict=True))
                for passed in several
            ), (key, values)
            known += sum(not (isinstance(one, dict) and "$unavailable" in one) for one in values)
    assert known > 500
