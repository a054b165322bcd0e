# SPDX-License-Identifier: Apache-2.0
"""Rows of call counts, and their tables."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gotrace.report.counts import write_counts
from gotrace.report.output import TextOutput
from gotrace.results.rows import Row
from gotrace.session.call_rows import count_rows
from gotrace.session.order import Order


@pytest.fixture(autouse=True)
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def rows(*counts: tuple[str, int], seconds: float = 1.0, **options: Any) -> Sequence[Row]:
    found = [(None, name, count, None) for name, count in counts]
    return count_rows(found, (time.time(), seconds), options.pop("top", None), **options)


def text(shown: Sequence[Row], timestamp: bool = False, rates: bool = False) -> str:
    out, err = io.StringIO(), io.StringIO()
    names = {"a.F[go.shape.int]": "a.F[...]"}
    write_counts(TextOutput(out, err), shown, timestamp, names, rates=rates)
    assert err.getvalue() == ""
    return out.getvalue()


def test_a_table_has_bcc_funccounts_columns() -> None:
    assert text(rows(("main.(*T).b", 102010), ("main.a", 7))) == (
        "FUNC                                    COUNT  SHARE\n"
        "main.a                                      7   0.0%\n"
        "main.(*T).b                            102010 100.0%\n"
    )


def test_rows_that_are_left_out_are_counted() -> None:
    shown = rows(("main.a", 7), ("main.b", 2), ("main.c", 1), top=1)
    assert text(shown).splitlines()[1:] == [
        "main.a                                      7  70.0%",
        "and 2 more, 30.0%",
    ]
    assert text(rows()) == "no calls\n"


def test_no_rows_say_nothing_of_calls_that_may_be_missing() -> None:
    out = io.StringIO()
    output = TextOutput(out, io.StringIO(), quiet=False)
    output.uncounted = lambda: 2
    write_counts(output, [], False, {})
    assert out.getvalue() == "no calls seen: they may be missing at 2 places\n"


def test_intervals_have_rates_by_their_own_length() -> None:
    shown = rows(("main.a", 250), ("main.b", 750), seconds=0.5, rates=True)
    assert text(shown, rates=True).splitlines()[:2] == [
        "FUNC                                    COUNT  PER SEC  SHARE",
        "main.a                                    250      500  25.0%",
    ]


def test_rows_are_chosen_by_their_counts_and_ordered_as_asked() -> None:
    counts = ("main.c", 2), ("main.a", 3), ("main.b", 1)
    shown = rows(*counts, top=2)
    assert [(row["func"], row["share"]) for row in shown] == [("main.c", 0.333333), ("main.a", 0.5)]
    shown = rows(*counts, top=2, order=Order.NAME)
    assert [row["func"] for row in shown] == ["main.a", "main.c"]


def test_a_long_name_widens_the_column() -> None:
    name = "example.org/a/very/long/import/path.Function"
    first, second, third = text(rows(("main.a", 1), (name, 123456789))).splitlines()
    assert first == "FUNC" + " " * 40 + "     COUNT  SHARE"
    assert second == "main.a" + " " * 38 + "         1   0.0%"
    assert third == name + " 123456789 100.0%"


def test_the_time_stands_above_the_table() -> None:
    (row,) = rows(("main.a", 1))
    assert text([{**row, "ts": 1700000000.9}], timestamp=True).splitlines()[0] == "03:43:20"


def test_names_are_kept_from_steering_the_terminal() -> None:
    shown = text(rows(("main.\x1b[2J", 1)))
    assert shown.splitlines()[1] == "main.\\x1b[2J" + " " * 24 + "        1 100.0%"


def test_rows_have_full_names_and_text_has_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.12345678)
    name = "a.F[go.shape.int]"
    shown = rows((name, 0), ("main.b", 1 << 63), seconds=0.5, rates=True)
    assert text(shown).splitlines()[1].split()[0] == "a.F[...]"
    known = {"kind": "count", "ts": 1.123457, "interval_s": 0.5}
    assert shown == [
        {**known, "func": name, "count": 0, "share": 0.0, "rate": 0.0},
        {**known, "func": "main.b", "count": 1 << 63, "share": 1.0, "rate": float(1 << 64)},
    ]
