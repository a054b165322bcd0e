# SPDX-License-Identifier: Apache-2.0
"""Latency histograms and slow calls, as text and as JSON, against tables written by hand."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from gotrace.histogram import Histogram
from gotrace.overhead import ProbeCost
from gotrace.report.calls import Columns
from gotrace.report.durations import duration, table
from gotrace.report.latencies import slow_row, write_latencies, write_slow
from gotrace.report.output import JsonOutput, TextOutput
from gotrace.results.kinds import KINDS
from gotrace.results.rows import Row
from gotrace.session.latency_rows import Interval, LatencyGroup


@pytest.fixture(autouse=True)
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def interval(*groups: LatencyGroup, rest: Sequence[Row] = (), unit: int = 1) -> Interval:
    return Interval(groups, rest, 1700000000.25, 2.0, unit)


def text(shown: Interval, timestamp: bool = False) -> str:
    out, err = io.StringIO(), io.StringIO()
    write_latencies(TextOutput(out, err), shown, timestamp)
    assert err.getvalue() == ""
    return out.getvalue()


def objects(shown: Interval) -> list[dict[str, object]]:
    out = io.StringIO()
    write_latencies(JsonOutput(out), shown, timestamp=False)
    return [json.loads(line) for line in out.getvalue().splitlines()]


#: 1, 2, 2, 3 and 5 ns; below 16 ns each value has its own bucket.
SMALL = Histogram(5, 13, 1, 5, Counter({1: 1, 2: 2, 3: 1, 5: 1}))


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (0, "0ns"),
        (1, "1ns"),
        (999, "999ns"),
        (1_000, "1us"),
        (1_234, "1.234us"),
        (12_345, "12.35us"),
        (999_999, "1000us"),
        (1_000_000, "1ms"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1.5s"),
        (3_600_000_000_000, "3600s"),
        (43_210_000_000_000, "43210s"),
    ],
)
def test_durations_have_four_digits_and_a_unit(nanoseconds: int, shown: str) -> None:
    assert duration(nanoseconds) == shown


def test_a_table_is_bccs_log2_histogram_with_percentiles() -> None:
    assert text(interval(LatencyGroup("main.f", SMALL))) == (
        "\n"
        "Function = main.f\n"
        "     time                : count     distribution\n"
        "       0ns -> 2ns        : 1        |*************                           |\n"
        "       2ns -> 4ns        : 3        |****************************************|\n"
        "       4ns -> 8ns        : 1        |*************                           |\n"
        "\n"
        "avg = 2.6ns, total: 13ns, count: 5\n"
        "min = 1ns, p50 = 2ns, p90 = 5ns, p99 = 5ns, p99.9 = 5ns, max = 5ns\n"
    )


def test_rows_without_calls_between_others_are_shown() -> None:
    times = Histogram(2, 17, 1, 16, Counter({1: 1, 16: 1}))
    lines = text(interval(LatencyGroup(None, times))).splitlines()
    assert lines[2:7] == [
        "       0ns -> 2ns        : 1        |****************************************|",
        "       2ns -> 4ns        : 0        |                                        |",
        "       4ns -> 8ns        : 0        |                                        |",
        "       8ns -> 16ns       : 0        |                                        |",
        "      16ns -> 32ns       : 1        |****************************************|",
    ]
    assert "Function" not in "".join(lines)


def test_rows_before_the_first_and_after_the_last_call_are_left_out() -> None:
    times = Histogram(2, 0, 1 << 10, 1 << 11, Counter({(10 - 3) * 16: 1, (11 - 3) * 16: 1}))
    lines = text(interval(LatencyGroup(None, times))).splitlines()
    assert lines[2].startswith("   1.024us -> 2.048us    : 1 ")
    assert lines[3].startswith("   2.048us -> 4.096us    : 1 ")
    assert lines[4] == ""


def test_counts_of_nine_digits_and_more_keep_their_columns() -> None:
    times = Histogram(2, 17, 1, 16, Counter({1: 1, 3: 12_345_678_901}))
    lines = text(interval(LatencyGroup(None, times))).splitlines()
    assert {line.index("|") for line in lines[2:4]} == {lines[1].index("distribution") - 1}


def test_larger_units_have_their_own_exact_rows() -> None:
    times = Histogram(
        3, 9_500_000, 1_500_000, 4_000_000, Counter({255: 1, 275: 2}), Counter({0: 1, 2: 2})
    )
    lines = text(interval(LatencyGroup(None, times), unit=1_000_000)).splitlines()
    assert lines[1:5] == [
        "     msecs               : count     distribution",
        "         0 -> 1          : 1        |********************                    |",
        "         2 -> 3          : 0        |                                        |",
        "         4 -> 7          : 2        |****************************************|",
    ]
    assert lines[6] == "avg = 3.167ms, total: 9.5ms, count: 3"


def test_a_mean_is_never_shown_with_an_exponent() -> None:
    times = Histogram(2, 62_401, 31_200, 31_201, Counter({191: 2}))
    line = text(interval(LatencyGroup(None, times))).splitlines()[-2]
    assert "e+" not in line
    assert line.startswith("avg = 31.2us")


def test_times_have_their_units_and_never_widen_the_table() -> None:
    times = Histogram(1, 1 << 43, 1 << 43, 1 << 43, Counter({(43 - 3) * 16: 1}))
    head, row = text(interval(LatencyGroup(None, times))).splitlines()[1:3]
    assert row.startswith("     8796s -> 17592s     : 1        |***")
    assert head.index(" : ") == row.index(" : ")


def test_values_of_ten_digits_widen_the_table_and_its_head() -> None:
    head, row = table([(1 << 33, (2 << 33) - 1, 1)], "n")
    assert row.startswith("          8589934592 -> 17179869183          : 1        |***")
    assert head.index(" : ") == row.index(" : ")


def test_groups_are_told_apart_by_function_and_goroutine() -> None:
    group = LatencyGroup("main.\x1bf", SMALL, 7, "goroutine 7: main.work, created at \x07m.go:3")
    lines = text(interval(group, LatencyGroup("main.g", SMALL))).splitlines()
    assert lines[1:3] == [
        "Function = main.\\x1bf",
        "goroutine 7: main.work, created at \\x07m.go:3",
    ]
    assert lines.index("Function = main.g") > 3


def test_generic_names_are_elided_where_they_stay_apart() -> None:
    groups = [LatencyGroup(f"main.{name}", SMALL) for name in ("M[int]", "M[string]", "F[int]")]
    heads = [line for line in text(interval(*groups)).splitlines() if line.startswith("Function")]
    assert heads == [f"Function = main.{name}" for name in ("M[int]", "M[string]", "F[...]")]
    assert [row["func"] for row in objects(interval(*groups))] == [g.function for g in groups]


def test_an_interval_without_calls_says_so_below_the_time() -> None:
    assert text(interval(), timestamp=True) == "03:43:20\nno calls\n"


def test_goroutines_not_shown_are_summed_up() -> None:
    names = ("func", "goroutines", "count", "sum_ns", "unnamed")
    numbers = ("main.f", 12, 340, 5_600_000, 0), (None, 3, 9, 999, 4)
    rest = [dict(zip(names, one, strict=True)) for one in numbers]
    lines = text(interval(LatencyGroup("main.f", SMALL), rest=rest)).splitlines()
    assert lines[-4:] == [
        "",
        "12 other goroutines: 340 calls of main.f, total 5.6ms",
        "",
        "3 other goroutines: 9 calls, total 999ns"
        " (4 of the calls by goroutines that there was no room to keep apart)",
    ]


def test_groups_have_their_share_and_rate() -> None:
    shown = Interval([LatencyGroup("main.f", SMALL)], [], 0.0, 2.0, 1, total=52, rates=True)
    assert "avg = 2.6ns, total: 13ns, count: 5, 2.5/s, share: 25.0%\n" in text(shown)
    (row,) = objects(shown)
    assert (row["share"], row["rate"]) == (0.25, 2.5)


def test_json_has_the_sums_the_percentiles_and_the_buckets() -> None:
    group = LatencyGroup("main.f", SMALL, 7, "goroutine 7", 1234)
    assert objects(interval(group)) == [
        {
            "kind": "histogram",
            "func": "main.f",
            "pid": 1234,
            "goid": 7,
            "goroutine": "goroutine 7",
            "count": 5,
            "sum_ns": 13,
            "min_ns": 1,
            "max_ns": 5,
            "p50_ns": 2,
            "p90_ns": 5,
            "p99_ns": 5,
            "p999_ns": 5,
            "buckets": [[1, 2, 1], [2, 3, 2], [3, 4, 1], [5, 6, 1]],
            "share": 0.0,
            "ts": 1700000000.25,
            "interval_s": 2.0,
            "returns": "ret",
            "probe_hits": 0,
            "probe_ns": None,
        },
    ]


def test_part_of_the_probes_within_is_told_where_it_matters() -> None:
    cost = ProbeCost(own=1, hit=10)
    times = dataclasses.replace(SMALL, sum=1_000, hits=80)
    shown = interval(LatencyGroup("main.f", times, cost=cost))
    assert text(shown).splitlines()[-1] == (
        "tracing = about 805ns of the total (80%): probes were hit 80 times within these calls"
    )
    (row,) = objects(shown)
    assert (row["probe_hits"], row["probe_ns"]) == (80, 805)
    for hits in (0, 9):
        few = dataclasses.replace(times, hits=hits)
        assert "tracing = " not in text(interval(LatencyGroup("main.f", few, cost=cost)))


def slow(ended: float, hits: int, probe_ns: int | None) -> Row:
    return slow_row((None, "main.\x1bslow"), ended, (1234, 1240, 18), 12_345_678, hits, probe_ns)


SLOW = slow(1700000000.25, 7, 12_000_000)


def slow_text(*rows: Row, first: bool) -> str:
    out = io.StringIO()
    write_slow(TextOutput(out, io.StringIO()), rows, first, False, Columns())
    return out.getvalue()


def test_slow_calls_are_lines_under_one_head() -> None:
    line = (
        "03:43:20.250000 1234     1240     18         12.35ms   main.\\x1bslow"
        " (about 97% of it tracing)\n"
    )
    assert slow_text(SLOW, first=True) == (
        "TIME            PID      TID      GOID       DURATION  FUNC\n" + line
    )
    assert slow_text(SLOW, SLOW, first=False) == line * 2


def test_a_time_just_before_a_second_is_not_shown_a_second_early() -> None:
    almost = 1700000000.9999998
    line = slow_text(slow(almost, 0, None), first=False)
    assert line[:15] in ("03:43:20.999999", "03:43:21.000000")


def test_a_slow_call_is_a_row_of_its_kind() -> None:
    assert {"kind": "slow", **KINDS["slow"].checked(SLOW)} == {
        "kind": "slow",
        "ts": 1700000000.25,
        "pid": 1234,
        "tid": 1240,
        "goid": 18,
        "func": "main.\x1bslow",
        "duration_ns": 12_345_678,
        "probe_hits": 7,
        "probe_ns": 12_000_000,
    }
