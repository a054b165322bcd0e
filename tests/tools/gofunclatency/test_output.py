# SPDX-License-Identifier: Apache-2.0
"""Read what gofunclatency prints: tables in each unit, and slow calls one by one."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

from gotrace.units import nanoseconds
from tests.tools.harness import Fixture, Result, of_kind, tool
from tests.tools.latency import Json, measure, program

pytestmark = pytest.mark.live


def table(lines: list[str], unit: str) -> dict[int, int]:
    """Return the counts of a text table by the rows' lower bounds."""
    (head,) = (at for at, line in enumerate(lines) if re.match(rf" +{unit} +: count", line))
    rows = {}
    for line in lines[head + 1 :]:
        match = re.fullmatch(r" *(\S+) -> (\S+) +: (\d+) +\|(\**) *\|\n", line)
        if match is None:
            break
        low, high = match[1], match[2]
        if unit == "time":
            low, high = (str(round(nanoseconds(one))) for one in (low, high))
            assert int(high) == pytest.approx(max(2 * int(low), 2), rel=0.001)
        else:
            assert int(high) == max(2 * int(low), 2) - 1
        rows[int(low)] = int(match[3])
    return rows


@pytest.fixture(scope="module")
def played() -> tuple[Json, dict[str, Result]]:
    """Return the times of slow calls, and what runs with each unit said of them at once."""
    options = {"time": (), "usecs": ("-u",), "msecs": ("-m",)}
    with Fixture([program()]) as fixture, ExitStack() as stack:
        words = ("-p", str(fixture.ready), "main.slow")
        runs = {
            unit: stack.enter_context(tool("gofunclatency", *option, *words))
            for unit, option in options.items()
        }
        times = fixture.work("slow")["Functions"]["main.slow"]
        return times, {unit: run.end() for unit, run in runs.items()}


@pytest.mark.parametrize(("unit", "size"), [("time", 1), ("usecs", 1_000), ("msecs", 1_000_000)])
def test_table_in_each_unit(played: tuple[Json, dict[str, Result]], unit: str, size: int) -> None:
    times, results = played
    result = results[unit]
    assert result.status == 0
    rows = table(result.lines, unit)
    assert sum(rows.values()) == times["Calls"] == 101
    # The slowest row is the one that holds the longest call; five calls take over 20 ms.
    assert 2 * max(rows) * size > times["Longest"]
    assert sum(count for low, count in rows.items() if 2 * low * size > 20_000_000) >= 5
    (average,) = (line for line in result.lines if line.startswith("avg = "))
    match = re.fullmatch(r"avg = ([\d.]+)ms, total: ([\d.]+)(m?)s, count: (\d+)\n", average)
    assert match is not None and int(match[4]) == 101
    total = float(match[2]) * (1e6 if match[3] else 1e9)
    assert times["Inner"] * 0.999 <= total <= times["Outer"] * 1.001  # four digits are shown
    assert float(match[1]) * 1e6 == pytest.approx(total / 101, rel=0.002)
    marks = r"min = \S+, p50 = \S+, p90 = \S+, p99 = \S+, p99\.9 = \S+, max = \S+ms\n"
    assert any(re.fullmatch(marks, line) for line in result.lines)
    assert result.lines[-1] == "Detaching...\n"


def test_slow_calls_are_reported_one_by_one() -> None:
    truth, result = measure(program(), "slow", "--slower", "20ms", "main.slow", "main.short")
    certain, possible = truth["Slow"]
    rows = of_kind(result, "slow")
    assert 5 <= certain <= len(rows) <= possible
    assert all(row["duration_ns"] >= 20_000_000 and row["func"] == "main.slow" for row in rows)
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    assert {row["goid"] for row in rows} == {1}
    total = of_kind(result, "histogram")
    assert sum(row["count"] for row in total) == 101
    assert "no call took" not in result.errors


def test_no_slow_call_is_said_so() -> None:
    """As of ``--slower 10``, which is seconds."""
    _, result = measure(program(), "slow", "--slower", "10", "main.slow", "main.short")
    assert not of_kind(result, "slow")
    (notice,) = [row for row in of_kind(result, "summary") if row["what"] == "slow"]
    assert notice["message"] == "no call took 10s or longer"


def test_slow_calls_as_text() -> None:
    with Fixture([program()]) as fixture:
        words = ("--slower", "20ms", "-p", str(fixture.ready), "main.slow")
        with tool("gofunclatency", *words) as measuring:
            fixture.say("slow")
            measuring.lines_until("TIME ")
            fixture.read_until("truth ")
            result = measuring.end()
    (head,) = (at for at, line in enumerate(result.lines) if line.startswith("TIME"))
    assert result.lines[head].split() == ["TIME", "GOID", "DURATION", "FUNC"]
    row = re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{6} +1 +([\d.]+)ms +main\.slow\n", result.lines[head + 1]
    )
    assert row is not None
    assert float(row[1]) >= 20
