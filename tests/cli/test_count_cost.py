# SPDX-License-Identifier: Apache-2.0
"""What gofunccount says that it took of the program's time."""

from __future__ import annotations

from gotrace.cli.counting import _Hits
from gotrace.report.output import Notice
from gotrace.sites.records import SiteForm
from tests.cli.plans import plan_of

COST = {SiteForm.EMULATED: 1_500, SiteForm.FIRST: 9_500}


def notices(counts: tuple[int, int], seconds: float) -> list[Notice]:
    hits = _Hits(plan_of("main.a", "main.b"))
    hits._forms = [SiteForm.EMULATED, SiteForm.FIRST]
    hits.add(counts)
    hits.add((0, 0))
    return list(hits.cost(seconds, COST))


def test_both_kinds_of_hits_are_told_apart() -> None:
    (notice,) = notices((1_000_000, 20_000), 10)
    assert notice.message == (
        "counting took about 17% of one CPU: 1,000,000 hits of 1.5us and 20,000 single-stepped"
        " hits of 9.5us"
    )
    assert notice.fields == {
        "what": "cost",
        "ns": 1_690_000_000,
        "share": 0.169,
        "hits": 1_000_000,
        "stepped_hits": 20_000,
    }


def test_little_is_not_worth_a_line() -> None:
    assert notices((60_000, 0), 10) == []
    (notice,) = notices((70_000, 0), 10)
    assert notice.message == "counting took about 1% of one CPU: 70,000 hits of 1.5us"
