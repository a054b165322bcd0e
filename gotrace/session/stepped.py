# SPDX-License-Identifier: Apache-2.0
"""The cost of single-stepping code in the middle of functions, counted before it is paid.

A function is called so often at most. A line, and a place where a function is inlined, may be in a
loop that calls nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gotrace.errors import GotraceError
from gotrace.kernel.cookie import COOKIE_INDEX_MASK
from gotrace.kernel.methods import AttachMethod
from gotrace.records import dataclass, replace
from gotrace.session.calibrate import Calibration, hit_costs
from gotrace.session.plan import ProbePlan
from gotrace.session.rates import hits_a_second
from gotrace.sites.records import SiteForm
from gotrace.target.target import Target
from gotrace.text import counted

#: Of one CPU: what counting may take without being forced, and what is not worth a word.
MAX_SHARE = 0.2
_NOTABLE = 0.01

_COUNTING = 0.1  # seconds, in which a hot loop takes many times as long
_MAX_WAIT = 1.5  # seconds, for the cost of a hit
_USUAL_HIT = 9000  # ns, on a virtual machine that does other things as well


@dataclass(frozen=True, slots=True)
class SteppedPrice:
    """The cost of single-stepped hits: those of the dearest line or function, and of others.

    ``hits`` are the dearest's a second, ``share`` is the part of one CPU that all take. ``others``
    is the number of others that are hit.
    """

    name: str
    is_line: bool
    hits: float
    others: int
    share: float

    @property
    def must_be_forced(self) -> bool:
        return self.share > MAX_SHARE

    @property
    def text(self) -> str:
        """Return the price and its reason in words."""
        done = "executed" if self.is_line else "called where it is inlined"
        which = counted("with {} other{s} that", self.others) if self.others else "that"
        return (
            f"{self.name} is {done} about {_rounded(self.hits):,} times a second, and each hit is"
            f" single-stepped: {which} takes about {self.share:.0%} of one CPU"
        )

    @property
    def less(self) -> str:
        """Return a cheaper way, as part of a sentence."""
        if not self.others:
            return ""
        return "count the lines before and after it, " if self.is_line else "leave it out, "

    @property
    def fields(self) -> dict[str, object]:
        """Return the warning's fields in JSON."""
        hits = _rounded(self.hits)
        return {"what": "stepped_price", "func": self.name, "hits": hits, "share": self.share}


#: Is shown a price before it is paid, and raises GotraceError if that is not wanted.
AcceptStepped = Callable[[SteppedPrice], None]


def stepped_price(
    target: Target, plan: ProbePlan, forced: AttachMethod | None
) -> SteppedPrice | None:
    """Return the cost of a plan's single-stepped lines and inlined calls, None if it is small.

    They are counted for a tenth of a second, all of them at once. Raises AttachError or LoadError.
    """
    plan = plan.whole or plan
    stepped = {
        (number, site.address)
        for number, _, sites in plan.numbered()
        for site in sites.inlined
        if site.form in (SiteForm.FIRST, SiteForm.RET)
    }
    groups = []
    for group in plan.entry_groups("on_entry", target.pid):
        points = [
            point
            for point in group.points
            if (point.cookie & COOKIE_INDEX_MASK, point.address) in stepped
        ]
        if points:
            groups.append(replace(group, points=points))
    if not groups:
        return None
    numbers = [point.cookie & COOKIE_INDEX_MASK for group in groups for point in group.points]
    rates: Counter[int] = Counter()
    hits = hits_a_second(target, groups, forced, _COUNTING)
    for number, rate in zip(numbers, hits, strict=True):
        rates[number] += round(rate)
    total = rates.total()
    if total * _USUAL_HIT < _NOTABLE / 2 * 1e9:
        return None
    share = total * _hit_cost(forced) / 1e9
    if share < _NOTABLE:
        return None
    ((dearest, rate),) = rates.most_common(1)
    sites = next(sites for number, _, sites in plan.numbered() if number == dearest)
    others = sum(rate > 0 for rate in rates.values()) - 1
    return SteppedPrice(plan.names[dearest - plan.first].text, sites.is_line, rate, others, share)


def _rounded(hits: float) -> int:
    """Return a number with two digits that mean something."""
    return int(float(f"{hits:.2g}"))


def _hit_cost(forced: AttachMethod | None) -> int:
    """Return the cost of a hit here, in ns; the usual one if measuring it takes too long."""
    with Calibration(lambda: hit_costs({SiteForm.FIRST}, forced)) as calibration:
        try:
            return calibration.cost(_MAX_WAIT)[SiteForm.FIRST]
        except (GotraceError, OSError):
            return _USUAL_HIT
