# SPDX-License-Identifier: Apache-2.0
"""Tables of call counts, and the same as JSON."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator

import pytest

from gotrace.report.counts import CountRow, CountTable, count_table, write_counts
from gotrace.report.order import Order
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
    rows = [CountRow("main.a", 7), CountRow("main.(*T).b", 102010)]
    assert text(CountTable(rows, 0.0, 1.0, total=102017)) == (
        "FUNC                                    COUNT  SHARE\n"
        "main.a                                      7   0.0%\n"
        "main.(*T).b                            102010 100.0%\n"
    )


def test_intervals_have_rates_by_their_own_length() -> None:
    table = CountTable([CountRow("main.a", 250)], 0.0, 0.5, total=1000, rates=True)
    assert text(table) == (
        "FUNC                                    COUNT  PER SEC  SHARE\n"
        "main.a                                    250      500  25.0%\n"
    )


def test_rows_are_chosen_by_their_counts_and_ordered_as_asked() -> None:
    rows = [CountRow("main.c", 2), CountRow("main.a", 3), CountRow("main.b", 1)]
    table = count_table(rows, 1.0, 2)
    assert [row.name for row in table.rows] == ["main.c", "main.a"] and table.total == 6
    table = count_table(rows, 1.0, 2, Order.NAME)
    assert [row.name for row in table.rows] == ["main.a", "main.c"]


def test_a_long_name_widens_the_column() -> None:
    name = "example.org/a/very/long/import/path.Function"
    rows = [CountRow("main.a", 1), CountRow(name, 123456789)]
    first, second, third = text(CountTable(rows, 0.0, 1.0, total=123456790)).splitlines()
    assert first == "FUNC" + " " * 40 + "     COUNT  SHARE"
    assert second == "main.a" + " " * 38 + "         1   0.0%"
    assert third == name + " 123456789 100.0%"


def test_an_empty_table_still_has_its_heads() -> None:
    assert text(CountTable([], 0.0, 1.0)) == f"FUNC{' ' * 36}COUNT  SHARE\n"


def test_the_time_stands_above_the_table() -> None:
    shown = text(CountTable([], 1700000000.9, 1.0), timestamp=True)
    assert shown.splitlines()[0] == "03:43:20"


def test_names_are_kept_from_steering_the_terminal() -> None:
    shown = text(CountTable([CountRow("main.\x1b[2J", 1)], 0.0, 1.0))
    assert shown.splitlines()[1] == "main.\\x1b[2J" + " " * 24 + "        1   0.0%"


def test_json_has_one_object_a_function_with_its_full_name() -> None:
    out = io.StringIO()
    name = "a.F[go.shape.int]"
    assert text(CountTable([CountRow(name, 1)], 0.0, 1.0)).splitlines()[1].split()[0] == "a.F[...]"
    rows = [CountRow(name, 0), CountRow("main.b", 1 << 63)]
    table = CountTable(rows, 1.12345678, 0.5, total=1 << 63, rates=True)
    write_counts(JsonOutput(out), table, True, {"a.F[go.shape.int]": "a.F[...]"})
    when = {"ts": 1.123457, "interval_s": 0.5}
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"kind": "count", "func": name, "count": 0, "share": 0.0, "rate": 0.0, **when},
        {
            "kind": "count",
            "func": "main.b",
            "count": 1 << 63,
            "share": 1.0,
            "rate": float(1 << 64),
            **when,
        },
    ]
