# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests import lines
from tests.lines import Function, functions, lines_of_c, lines_of_code, modules, twice

#: What is over a bar, and why it stays.
OVER = {"gotrace/api/session.py:latency": "a parameter of the library a line, and its docstring"}

SAMPLE = '''# one
"""Two."""

import os

__all__ = ["path"]


def path(a, b):  # code
    """Three."""
    text = """
    of code
    """

    def within(c):
        return c and a

    try:
        return [x for x in a if x] if a or b else within(os)
    except OSError:
        ...
    while b:
        b = b.next
    return text
'''


def test_no_function_is_longer_or_has_more_ways_than_the_bars() -> None:
    found = {each.name: each for path in modules("gotrace") for each in functions(path)}
    assert {name for name, each in found.items() if each.is_over} == set(OVER), [
        each for each in found.values() if each.is_over
    ]


def test_no_public_class_has_the_name_of_another() -> None:
    assert twice(modules("gotrace")) == []


def test_lines_and_ways_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of_code(SAMPLE) == 13
    monkeypatch.setattr(lines, "CLONE", tmp_path)
    (tmp_path / "m.py").write_text(SAMPLE)
    # A comprehension with its `if`, `x if y`, `or`, `except`, `while`; `and`.
    assert list(functions(tmp_path / "m.py")) == [
        Function(7, 16, "m.py:path"),
        Function(2, 2, "m.py:within"),
    ]
    assert lines_of_c("// a\n#include <b>\n\n/* c\n   d */\nint e; // f\n") == 1
