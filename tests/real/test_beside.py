"""Several tracers on the same functions at once: each of them sees every call."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Process, json_counts, of_kind, tool

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


def program() -> Path:
    return build(FIXTURES / "live_count", newest())


def test_two_counters_and_a_meter_at_once() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), *NAMES)
        with (
            tool("gofunccount", *words) as first,
            tool("gofunccount", *words) as second,
            tool("gofunclatency", "-F", *words) as meter,
        ):
            truth = fixture.work()
            results = [first.end(), second.end()]
            measured = meter.end()
    expected = {name: truth["calls"][name] for name in NAMES}
    assert [json_counts(result, NAMES) for result in results] == [expected, expected]
    rows = {row["func"]: row["count"] for row in of_kind(measured, "histogram")}
    assert rows == expected


def test_beside_bpftrace() -> None:
    if shutil.which("bpftrace") is None:
        skip_or_fail("there is no bpftrace")
    with Fixture([program()]) as fixture:
        probe = f'uprobe:{program()}:"main.leaf" {{ @ = count(); }}'
        script = f'BEGIN {{ printf("attached\\n"); }} {probe}'
        with (
            Process(["bpftrace", "-p", str(fixture.ready), "-e", script]) as other,
            tool("gofunccount", "--json", "-p", str(fixture.ready), "main.leaf") as counting,
        ):
            other.read_until("attached")
            truth = fixture.work()
            result = counting.end()
            other.signal(signal.SIGINT)
            said = "".join(other.rest())
    calls = truth["calls"]["main.leaf"]
    assert json_counts(result)["main.leaf"] == calls
    seen = re.search(r"@: (\d+)", said)
    assert seen is not None, said + other.errors
    assert int(seen[1]) == calls  # leaf has no stack check: its first instruction runs once a call
