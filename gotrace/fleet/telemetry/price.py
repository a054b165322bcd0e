# SPDX-License-Identifier: Apache-2.0
"""The cost of watching a program's scheduler, counted before it is paid."""

from __future__ import annotations

from gotrace.errors import GotraceError
from gotrace.overhead import ProbeCost
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.why.price import changes_a_second


class OverBudgetError(GotraceError):
    """Probes that would take more than a target may pay, and so are not attached."""


def refuse_price(probes: SchedulerProbes, cost: ProbeCost, share: float, reading: int = 0) -> None:
    """Count the program's actions for a fifth of a second; ``reading`` is the time of each here.

    Raises OverBudgetError where watching them would take more than ``share`` of one CPU, other
    GotraceErrors where they cannot be counted.
    """
    changes = changes_a_second(probes, None)
    price = changes * (cost.own + probes.program_ns + reading) / 1e9
    if price > share:
        raise OverBudgetError(
            f"the program {probes.COUNTED.format(f'{changes:,.0f}')}, which would"
            f" take {100 * price:.1f}% of one CPU, and the budget of all is {100 * share:.1f}%"
        )
