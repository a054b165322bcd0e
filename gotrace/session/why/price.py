# SPDX-License-Identifier: Apache-2.0
"""The cost of watching the target's scheduler, counted before it is paid."""

from __future__ import annotations

from gotrace.errors import GotraceError
from gotrace.kernel.methods import AttachMethod
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass
from gotrace.session.calibrate import Calibration, trap_cost
from gotrace.session.rates import hits_a_second
from gotrace.session.scheduler import SchedulerProbes
from gotrace.sites.records import SiteForm

#: Of one CPU: what watching a scheduler may take without being forced.
MAX_SHARE = 0.2
#: Seconds in which hits are counted.
COUNTING = 0.2

_MAX_WAIT = 1.5  # seconds, for the cost of a hit
_USUAL_HIT = 800  # ns, on a virtual machine that does other things as well


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of watching a program's scheduler: changes of state a second, ns for each."""

    changes: float
    hit: int

    @property
    def share(self) -> float:
        """Return the part of one CPU."""
        return self.changes * self.hit / 1e9


def price_of(probes: SchedulerProbes, forced: AttachMethod | None) -> Price:
    """Count changes of state for a fifth of a second; raises AttachError or LoadError."""
    with Calibration(lambda: trap_cost(SiteForm.EMULATED, forced)) as calibration:
        changes = changes_a_second(probes, forced)
        return Price(changes, _hit_cost(calibration) + probes.program_ns)


def usual_price(probes: SchedulerProbes, changes: float) -> Price:
    """Return the cost of so many changes a second, by the time of a hit on most machines."""
    return Price(changes, _USUAL_HIT + probes.program_ns)


def changes_a_second(probes: SchedulerProbes, forced: AttachMethod | None) -> float:
    """Return how often a program's scheduler would hit probes. Raises AttachError or LoadError."""
    return sum(hits_a_second(probes.target, probes.often(), forced, COUNTING))


def _hit_cost(calibration: Calibration[ProbeCost]) -> int:
    """Return the cost of a hit here, in ns; the usual one if measuring it takes too long."""
    try:
        return calibration.cost(_MAX_WAIT).own
    except (GotraceError, OSError):
        return _USUAL_HIT
