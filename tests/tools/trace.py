# SPDX-License-Identifier: Apache-2.0
"""Run gotrace on the program that makes calls to choose from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toolchains import program_of
from tests.tools.harness import Fixture, Result, of_kind, tool

Json = dict[str, Any]

_LINE = re.compile(r"[\d:.]+ +(?:\d+ +){1,3}(?:[0-9.]+[nmu]?s|-) +(.*)\n")


program = program_of("trace_calls")


def trace(path: Path, order: str, *arguments: str, **options: Any) -> tuple[Json, Result]:
    """Trace what the fixture does at an order; return its truth and how the tool ended."""
    with Fixture([path]) as fixture:
        with tool("gotrace", "-p", str(fixture.ready), *arguments, **options) as tracing:
            truth = fixture.work(order)
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def calls_of(result: Result, name: str) -> list[Json]:
    """Return the calls of one function from a JSON output."""
    return [row for row in of_kind(result, "call") if row["func"] == name]


def text_calls(result: Result) -> list[str]:
    """Return the CALL column of a text output."""
    return [match[1] for line in result.lines if (match := _LINE.fullmatch(line))]


def message_lines(result: Result, name: str) -> list[str]:
    """Return what a probe's format has made of a function's calls."""
    return [call[len(name) + 1 :] for call in text_calls(result) if call.startswith(f"{name} ")]


def lost(result: Result) -> Mapping[str, int]:
    """Return how many calls a JSON output says were lost, by where."""
    return {row["what"]: row["calls"] for row in of_kind(result, "lost")}
