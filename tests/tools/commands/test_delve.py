# SPDX-License-Identifier: Apache-2.0
"""Hold the arguments that gotrace shows against those that Delve reads, in an unoptimised build."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tests.delve import debugging, delve
from tests.toolchains import BUILD_MODES, FIXTURES, build, newest
from tests.tools.harness import Fixture, of_kind, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

FUNCTIONS = r"^main\.(\(\*?\w+\)\.|\w+\.)?take[A-Z]\w*$"

# reflect.Kind, which Delve's variables have.
BOOL, INT, UINTPTR, FLOAT32, FLOAT64 = 1, 2, 12, 13, 14
ARRAY, POINTER, SLICE, STRING, STRUCT = 17, 22, 23, 24, 25


class NotComparedError(Exception):
    """A value of a kind that the two show in ways of their own, or that one could not read."""


def value_of(variable: dict[str, Any]) -> Any:
    """Return what ``--json`` has for a variable of Delve's."""
    kind, children = variable["kind"], variable["children"]
    if variable["unreadable"] or (variable["len"] > 8 and kind in (ARRAY, SLICE)):
        raise NotComparedError
    if kind == BOOL:
        return variable["value"] == "true"
    if INT <= kind < UINTPTR and variable["realType"] != "uintptr":
        # A named constant is shown by name, its number after it.
        return int(variable["value"].rpartition("(")[2].rstrip(")"))
    if kind in (FLOAT32, FLOAT64):
        return float(variable["value"])
    if kind == STRING and "\ufffd" not in variable["value"]:  # in place of what is not UTF-8
        return variable["value"]
    is_text = any(child["realType"] == "uint8" for child in children)
    if not is_text and (kind == ARRAY or (kind == SLICE and variable["base"])):
        return [value_of(child) for child in children]
    if kind == STRUCT and variable["type"].startswith("main."):
        return {child["name"]: value_of(child) for child in children}
    if kind == POINTER and children[0]["addr"] == 0:
        return None
    raise NotComparedError


def same(shown: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(float(shown), wanted, rel_tol=1e-6) or str(shown) == str(wanted)
    if isinstance(wanted, dict):
        return shown.keys() == wanted.keys() and all(same(shown[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(shown) == len(wanted) and all(map(same, shown, wanted))
    return type(shown) is type(wanted) and shown == wanted


def test_arguments_are_those_that_delve_reads() -> None:
    debugger = delve()
    if debugger is None:
        pytest.skip("there is no Delve: make setup-test fetches it where Debian's mirror is")
    program = build(FIXTURES / "trace_values", newest(), flags=BUILD_MODES["unoptimized"])
    with debugging(debugger, program, "\n\n") as session:
        wanted = list(session.entered(FUNCTIONS))
    with Fixture([program]) as fixture:
        words = ("--json", "--entry", "-Z", "400", "-r", "-p", str(fixture.ready), FUNCTIONS)
        with tool("gotrace", *words) as tracing:
            fixture.work()
            calls = of_kind(tracing.end(), "call")
        assert fixture.finish() == 0
    assert [call["func"] for call in calls] == [name for name, _ in wanted]
    compared: Counter[int] = Counter()
    for call, (name, variables) in zip(calls, wanted, strict=True):
        for shown, variable in zip(call["args"].values(), variables, strict=True):
            try:
                value = value_of(variable)
            except NotComparedError:
                continue
            assert same(shown, value), (name, variable["name"], shown, value)
            compared[variable["kind"]] += 1
    kinds = {BOOL, INT, FLOAT32, FLOAT64, ARRAY, POINTER, SLICE, STRING, STRUCT}
    assert kinds <= set(compared)
    assert compared.total() > 60
