# SPDX-License-Identifier: Apache-2.0
"""Choose which RETs programs carry out, in a whole program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gotrace.kernel.attach import AttachError, AttachMethod, Point, ProbeGroup, attach
from gotrace.kernel.cookie import COOKIE_PLACE_MASK, COOKIE_RET, COOKIE_SP_SHIFT
from gotrace.kernel.rets import RetEmulation, with_rets
from gotrace.probes.select import Selector
from gotrace.session.plan import BinaryRequest, ProbePlan, make_plan, plan_counting
from gotrace.settings import CountSettings, SiteSettings
from gotrace.sites.sites import SiteForm
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest


@pytest.fixture(scope="module")
def plan() -> Iterator[ProbePlan]:
    """Select all functions of a program at a fixed address, the runtime's and assembly's too."""
    target = Target()
    request = BinaryRequest(str(build(FIXTURES / "live_latency", newest())), Selector(["*"]))
    yield make_plan(target, [request], returns=True, verb="measure")
    target.close()


def _points(groups: list[ProbeGroup]) -> tuple[Point, ...]:
    (group,) = groups
    return tuple(group.points)


def test_plain_rets_are_carried_out_and_no_others(plan: ProbePlan) -> None:
    image = plan.binaries[0].binary.image
    left = _points(plan.return_groups("on_return", 0))
    carried = _points(plan.return_groups("on_return", 0, emulated=True))
    entries = {sites.entry.address for sites in plan.binaries[0].functions if sites.entry}
    alone = 0
    assert len(left) == len(carried) > 1000
    for before, after in zip(left, carried, strict=True):
        assert (before.address, before.offset) == (after.address, after.offset)
        assert before.cookie >> COOKIE_SP_SHIFT == 0 and not before.cookie & COOKIE_RET
        if image.read(after.address, 1) != b"\xc3" or after.address in entries:
            assert after.cookie == before.cookie
            alone += after.address in entries
            continue
        place = (after.address & COOKIE_PLACE_MASK) << COOKIE_SP_SHIFT
        assert after.cookie == before.cookie | COOKIE_RET | place
    assert alone > 0, "no function of this program is a RET alone"


def test_counted_rets_are_carried_out_and_no_first_instructions() -> None:
    target = Target()
    request = BinaryRequest(str(build(FIXTURES / "live_latency", newest())), Selector(["*"]))
    stepped, counted = (plan_counting(target, [request], at_rets) for at_rets in (False, True))
    at_rets = 0
    pairs = zip(stepped.binaries[0].functions, counted.binaries[0].functions, strict=True)
    groups = (plan.entry_groups("on_entry", 0) for plan in (stepped, counted))
    points = zip(*map(_points, groups), strict=True)
    for (before, after), (without, point) in zip(pairs, points, strict=True):
        assert before.entry is not None and after.entry is not None
        if before.entry == after.entry:
            assert without == point and not point.cookie & COOKIE_RET
            continue
        assert (before.entry.form, after.entry.form) == (SiteForm.FIRST, SiteForm.RET)
        place = (after.entry.address & COOKIE_PLACE_MASK) << COOKIE_SP_SHIFT
        assert point.address == after.entry.address > after.function.entry
        assert point.cookie == without.cookie | COOKIE_RET | place
        at_rets += 1
    target.close()
    assert at_rets > 20


def test_a_program_without_cookies_carries_out_nothing() -> None:
    settings = CountSettings(site=with_rets(SiteSettings(), RetEmulation(0)), counters=1)
    with pytest.raises(AttachError, match="RETs cannot be carried out by programs without cookies"):
        attach(settings, [], AttachMethod.ADDRESS)
