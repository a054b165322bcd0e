# SPDX-License-Identifier: Apache-2.0
"""What watching the target's scheduler costs it, counted before it is paid."""

from __future__ import annotations

from gotrace.errors import GotraceError
from gotrace.kernel.attach import AttachMethod
from gotrace.session.calibrate import Calibration, trap_cost
from gotrace.session.why.parts import Price, WhyProbes
from gotrace.sites.sites import SiteForm

__all__ = ["price_of"]

_MAX_WAIT = 1.5  # seconds, for the cost of a hit
_USUAL_HIT = 800  # ns, on a virtual machine that does other things as well


def price_of(probes: WhyProbes, forced: AttachMethod | None) -> Price:
    """Count changes of state for a fifth of a second; raises AttachError or LoadError."""
    with Calibration(lambda: trap_cost(SiteForm.EMULATED, forced)) as calibration:
        return probes.price(forced, lambda: _hit_cost(calibration))


def _hit_cost(calibration: Calibration) -> int:
    """Return what a hit costs here, in ns; what it does elsewhere where that takes too long."""
    try:
        return calibration.cost(_MAX_WAIT).own
    except (GotraceError, OSError):
        return _USUAL_HIT
