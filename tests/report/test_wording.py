# SPDX-License-Identifier: Apache-2.0
"""Hold the texts that users read to numbers that agree with their nouns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

GOTRACE = Path(__file__).parents[2] / "gotrace"
NOUNS = "call|stack|wait|sample|goroutine|function|group|program|request|process|thread|time|host"
PLURAL = re.compile(rf" (other )?({NOUNS})e?s\b(?! a second)")


#: Numbers that are more than one where they are shown.
MANY = {"len(parents)", "len(pids)", "whose"}


def plurals(text: str) -> list[str]:
    """Return the numbers of a source that have a noun with an s, whatever they are."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                number = ast.unparse(value.value)
                is_many = number.strip("_").isupper() or number in MANY
                if not is_many and PLURAL.match(str(after.value)):
                    found.append(f"{{{number}}}{after.value!s}")
    return found


@pytest.mark.parametrize("package", ["report", "cli"])
def test_one_is_no_plural(package: str) -> None:
    found = {path.name: plurals(path.read_text()) for path in (GOTRACE / package).glob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_what_is_looked_for() -> None:
    assert plurals('f"{n:,} calls of {name}"') == ["{n} calls of "]
    assert plurals('f"{a} other groups"') == ["{a} other groups"]
    assert plurals('f"at most {_MOST} hosts, {rate} times a second"') == []
