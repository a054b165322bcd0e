# SPDX-License-Identifier: Apache-2.0
"""Say what part of measured times is the probes' own, also where that cannot be found out."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from gotrace.cli.measuring import _Tracing
from gotrace.errors import GotraceError
from gotrace.histogram import Histogram
from gotrace.kernel.attach import AttachError
from gotrace.overhead import ProbeCost
from gotrace.report.output import Notice, NoticeKind
from gotrace.session.budget import HitCounts, HitRow
from gotrace.session.calibrate import Calibration
from gotrace.session.latency import Measurement
from gotrace.sites.records import SiteForm
from tests.cli.plans import plan_of

NO_HITS = HitCounts([HitRow()], [False])


def notices(
    measure: Callable[[], ProbeCost],
    rows: dict[int, Histogram],
    *names: str,
    hits: HitCounts = NO_HITS,
) -> Sequence[Notice]:
    """Return what is said at the end of a run of one interval, of ten seconds."""
    with Calibration(measure) as calibration:
        plan = plan_of(*names, form=SiteForm.EMULATED)
        tracing = _Tracing(plan, calibration, lambda: hits)
        tracing.add(Measurement(rows, {}, {}), 10)
        return list(tracing.notices())


def times(count: int, each: int, hits: int) -> Histogram:
    return Histogram(count, count * each, each, each, Counter({15: count}), Counter(), hits)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (AttachError("cannot attach to calibration: multi: no"), "cannot attach to calibration"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_cost_that_cannot_be_measured_is_no_error(error: Exception, why: str) -> None:
    def refuse() -> ProbeCost:
        raise error

    (notice,) = notices(refuse, {0: times(1, 9, 0)}, "main.f")
    assert notice.kind is NoticeKind.SUMMARY
    assert notice.message.startswith(f"the probes' own cost could not be measured: {why}")
    assert notice.fields == {"what": "probe_cost", "ns": None}


def test_process_that_is_killed_has_measured_nothing() -> None:
    killed = pytest.raises(GotraceError, match="has ended with status 0")
    with Calibration(lambda: os._exit(0)) as calibration, killed:
        calibration.cost(10)


def test_waiting_has_an_end() -> None:
    def never() -> ProbeCost:
        read, _ = os.pipe()
        os.read(read, 1)
        raise AssertionError

    with Calibration(never) as calibration, pytest.raises(GotraceError, match="took too long"):
        calibration.cost(0.1)


def test_functions_whose_time_is_mostly_tracing_are_named() -> None:
    cost = ProbeCost(own=700, hit=1000)
    rows = {0: times(10, 1_000_000, 9900), 1: times(10, 1_000_000, 6000), 2: times(5, 10**6, 100)}
    (notice,) = notices(lambda: cost, rows, "main.fib", "main.g", "main.h")
    assert notice.message == (
        "about 99% of main.fib's time is tracing, of calls within its calls, and most of that of 1"
        " other: trace fewer functions"
    )
    assert notice.fields == {"what": "mostly_tracing", "functions": 2}
    (notice,) = notices(lambda: cost, {0: rows[1]}, "main.f", "main.g")
    assert notice.message.startswith("about 60% of the time measured is tracing")


def test_tiny_functions_are_told_the_probes_part_alone() -> None:
    (notice,) = notices(lambda: ProbeCost(700, 1000), {0: times(10, 800, 0)}, "main.f")
    assert notice.fields == {"what": "probe_cost", "ns": 700}


def test_each_hit_has_the_price_of_its_way() -> None:
    cost = ProbeCost(600, 5_000, landed=ProbeCost(800, 1_000))
    hot, cold = HitRow(700_000, 20_000, 680_000), HitRow(100, 100)
    hits = HitCounts([HitRow(), hot, cold], [False] * 3)
    rows = {0: times(700_000, 1_000, 0), 1: times(100, 1_000, 0)}
    floor, notice = notices(lambda: cost, rows, "main.hot", "main.cold", hits=hits)
    assert floor.fields == {"what": "probe_cost", "ns": 794}
    assert notice.message == (
        "measuring took about 16% of one CPU: 1,380,100 hits of 1us and 20,100 single-stepped hits"
        " of 9us"
    )
    assert notice.fields == {
        "what": "cost",
        "ns": 1_561_000_000,
        "share": 0.1561,
        "hits": 1_380_100,
        "stepped_hits": 20_100,
    }


def test_tracing_takes_no_more_than_all_cpus() -> None:
    hits = HitCounts([HitRow(), HitRow(10**12, 10**12)], [False] * 2)
    rows = {0: times(1, 10**9, 0)}
    (notice,) = notices(lambda: ProbeCost(600, 5_000), rows, "main.f", hits=hits)
    assert notice.fields["share"] == os.cpu_count()
