# SPDX-License-Identifier: Apache-2.0
"""Tables that are printed whole, as tabulate lays them out."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.report.table import table_lines
from gotrace.report.why import sums_lines
from gotrace.session.why.parts import PartSums, PartTotals

GOTRACE = Path(__file__).parent.parent.parent / "gotrace"


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert table_lines([["a", "x y", "1"], ["bcd", "", "20"]], right=1) == [
        "a    x y   1",
        "bcd       20",
    ]


@pytest.mark.parametrize("text", ["1e5", "0x10", "007", "nan", "None", "1_000", "-1", "True"])
def test_cells_are_text_whatever_they_look_like(text: str) -> None:
    assert table_lines([[text, text]], right=1) == [f"{text}  {text}"]


def test_parts_of_the_time_have_their_columns() -> None:
    times = Histogram(3, 6_000, 1_000, 4_000, Counter({10: 2, 12: 1}))
    parts = {"running": PartTotals(4_500, 3), "blocked: chan receive": PartTotals(1_500, 12345678)}
    assert list(sums_lines({None: PartSums(parts)}, times, None)) == [
        "where the time went    total  share  average     calls",
        "running                4.5us  75.0%    1.5us         3",
        "blocked: chan receive  1.5us  25.0%    500ns  12345678",
    ]


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tabulate", None)
    with pytest.raises(GotraceError, match=r"cannot lay out a table: tabulate .*python3-tabulate"):
        table_lines([["a"]])


def test_no_module_loads_it_before_a_table_is_printed() -> None:
    names = [
        ".".join(path.relative_to(GOTRACE.parent).with_suffix("").parts)
        for path in (*GOTRACE.glob("cli/*.py"), *GOTRACE.glob("report/*.py"))
    ]
    code = "".join(f"import {name}\n" for name in names if not name.endswith("__init__"))
    run = [sys.executable, "-c", f"{code}import sys\nprint('tabulate' in sys.modules)"]
    done = subprocess.run(run, cwd=GOTRACE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_bands_say_how_many_calls_they_have_and_never_exceed_the_extremes() -> None:
    """Calls of a bucket are not divided: here the slowest hundredth is a tenth of the calls."""
    fast, slow = 10_000_000, 25_950_001
    times = Histogram()
    for value in [fast] * 234 + [slow] * 26:
        times.add(value)
    names = ("running", "blocked: sleep")
    why: dict[int | None, PartSums] = {
        bucket: PartSums({part: PartTotals(value * times.buckets[bucket], times.buckets[bucket])})
        for bucket, part, value in zip(sorted(times.buckets), names, (fast, slow), strict=True)
    }
    *_, slowest, middle = sums_lines(why, times, None)
    assert slowest == "slowest: 26 calls (10.0%) of 25.17ms to 25.95ms"
    assert middle == "middle: 234 calls (90.0%) of 10ms to 10.49ms"
