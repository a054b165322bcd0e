# SPDX-License-Identifier: Apache-2.0
"""Count function calls in the kernel and read the counters."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from gotrace.kernel.attach import Attached, AttachMethod, attach
from gotrace.kernel.rets import RetEmulation, with_rets
from gotrace.session.lifetime import Probing
from gotrace.session.plan import ProbePlan
from gotrace.settings import CountSettings
from gotrace.target.target import Target

__all__ = ["CallCounter"]


class CallCounter(Probing):
    """The probes that count a plan's functions; a context manager that detaches."""

    def __init__(
        self,
        target: Target,
        plan: ProbePlan,
        forced: AttachMethod | None,
        announce: Callable[[str], None] | None = None,
        emulation: RetEmulation | None = None,
    ) -> None:
        """Attach to all entry sites; ``announce`` is as for ``attach``.

        ``emulation``: how the RETs among them are carried out. Raises AttachError or LoadError.
        """
        self._functions = len(plan.functions)
        site = with_rets(target.settings(), emulation)
        settings = CountSettings(site=site, counters=self._functions)
        groups = plan.entry_groups("on_entry", target.pid)
        self.attached: Attached = attach(settings, groups, forced, None, announce)
        self._map = self.attached.program.map("counts")
        self._seen = array("Q", bytes(8 * self._functions))

    def take(self) -> list[int]:
        """Return each function's calls since the last ``take``, in the plan's order.

        Counters only ever grow, so that what is counted while they are read belongs to the next
        take and nothing is lost between two.
        """
        totals = self._map.sums()
        counts = [total - seen for total, seen in zip(totals, self._seen, strict=True)]
        self._seen = totals
        return counts

    def has_seen(self) -> bool:
        """Return whether any call has been counted."""
        return any(self._map.sums())
