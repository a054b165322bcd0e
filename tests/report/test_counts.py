# SPDX-License-Identifier: Apache-2.0
"""Tables of call counts, and the same as JSON."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator

import pytest

from gotrace.report.counts import CountRow, CountTable, write_counts
from gotrace.report.output import JsonOutput, TextOutput


@pytest.fixture(autouse=True)
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def text(table: CountTable, timestamp: bool = False) -> str:
    out, err = io.StringIO(), io.StringIO()
    write_counts(TextOutput(out, err), table, timestamp, {"a.F[go.shape.int]": "a.F[...]"})
    assert err.getvalue() == ""
    return out.getvalue()


def test_a_table_has_bcc_funccounts_columns() -> None:
    table = CountTable([CountRow("main.a", 7), CountRow("main.(*T).b", 102010)], 0.0, 1.0)
    assert text(table) == (
        "FUNC                                    COUNT\n"
        "main.a                                      7\n"
        "main.(*T).b                            102010\n"
    )


def test_a_long_name_widens_the_column() -> None:
    name = "example.org/a/very/long/import/path.Function"
    rows = [CountRow("main.a", 1), CountRow(name, 123456789)]
    first, second, third = text(CountTable(rows, 0.0, 1.0)).splitlines()
    assert first == "FUNC" + " " * 40 + "     COUNT"
    assert second == "main.a" + " " * 38 + "         1"
    assert third == name + " 123456789"


def test_an_empty_table_still_has_its_heads() -> None:
    assert text(CountTable([], 0.0, 1.0)) == "FUNC                                    COUNT\n"


def test_the_time_stands_above_the_table() -> None:
    shown = text(CountTable([], 1700000000.9, 1.0), timestamp=True)
    assert shown.splitlines()[0] == "03:43:20"


def test_names_are_kept_from_steering_the_terminal() -> None:
    shown = text(CountTable([CountRow("main.\x1b[2J", 1)], 0.0, 1.0))
    assert shown.splitlines()[1] == "main.\\x1b[2J" + " " * 24 + "        1"


def test_json_has_one_object_a_function_with_its_full_name() -> None:
    out = io.StringIO()
    name = "a.F[go.shape.int]"
    assert text(CountTable([CountRow(name, 1)], 0.0, 1.0)).splitlines()[1].split()[0] == "a.F[...]"
    table = CountTable([CountRow(name, 0), CountRow("main.b", 1 << 63)], 1.12345678, 0.5)
    write_counts(JsonOutput(out), table, True, {"a.F[go.shape.int]": "a.F[...]"})
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"kind": "count", "func": name, "count": 0, "ts": 1.123457, "interval_s": 0.5},
        {"kind": "count", "func": "main.b", "count": 1 << 63, "ts": 1.123457, "interval_s": 0.5},
    ]
