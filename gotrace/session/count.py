# SPDX-License-Identifier: Apache-2.0
"""Count function calls in the kernel and read the counters."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from gotrace.kernel.attach import Attached, ProbeGroup, attach
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters
from gotrace.session.budget import counting_hits, removable
from gotrace.session.calibrate import hit_costs
from gotrace.session.plan import ProbePlan, plan_counting
from gotrace.session.probing import Level, Prepared, Probing
from gotrace.session.request import FunctionRequest, Planned
from gotrace.settings import CountSettings
from gotrace.sites.records import SiteForm

#: Of bpf/count.c's struct fault.
_FAULT = struct.Struct("<qQ")


def _fault_keys(plan: ProbePlan) -> dict[int, list[bytes]]:
    """Return the keys of each function's instructions at which a call may end uncounted."""
    keys: dict[int, list[bytes]] = {}
    for each in plan.faults():
        for address, number in each.counters.items():
            key = _FAULT.pack(address - each.site.address, each.index)
            keys.setdefault(number, []).append(key)
    return keys


class CallCounter(Probing):
    """The probes that count a plan's functions; a context manager that detaches."""

    def __init__(self, prepared: Prepared) -> None:
        """Attach to all entry sites. Raises AttachError or LoadError."""
        plan, pid = prepared.plan, prepared.target.pid
        self._functions = len(plan.functions)
        self._faults = _fault_keys(plan)
        settings = CountSettings(
            site=prepared.site_settings(),
            counters=self._functions,
            faults=max(1, sum(map(len, self._faults.values()))),
        )
        groups = plan.entry_groups("on_entry", pid)
        self._entries: dict[int, ProbeGroup] = {}
        self._needless: list[ProbeGroup] = []
        if prepared.counts_hits:
            settings = counting_hits(settings, len(plan.names))
        if prepared.budget is not None or prepared.is_minded:
            groups, self._entries = removable(groups, len(plan.names))
        groups += plan.fault_groups("on_fault", pid)

        def prepare(program: BpfProgram) -> None:
            for number, keys in self._faults.items():
                for key in keys:
                    program.map("faults").update(key, number.to_bytes(4, "little"))

        self.attached: Attached = attach(
            settings, groups, prepared.forced, prepare, prepared.announce
        )
        self._map = self.attached.program.map("counts")
        self._counts = Counters(self._map)

    def lighten(self, function: int) -> Level | None:
        if function not in self._entries:
            return None
        self._needless.append(self._entries.pop(function))
        for key in self._faults.pop(function, ()):
            self.attached.program.map("faults").delete(key)
        return Level.OFF

    def remove(self, functions: Collection[int]) -> None:
        for function in functions:
            self.lighten(function)
        self.drop_probes()

    def drop_probes(self) -> Collection[int]:
        needless, self._needless = self._needless, []
        if needless:
            self.attached.change((), needless)
        return ()

    def take(self) -> list[int]:
        """Return each function's calls since the last ``take``, in the plan's order."""
        return self._counts.take()

    def has_seen(self) -> bool:
        return any(self._map.sums())


@dataclass(frozen=True, kw_only=True)
class CountRequest(FunctionRequest[CallCounter, dict[SiteForm, int]]):
    """Count calls of each function."""

    verb: str = "count"
    done: str = "counted"
    BY_TASK = False

    def plan(self) -> Planned:
        """Return the probes to attach; raises as ``plan_counting`` does."""
        requests, _ = self.requests
        plan = plan_counting(self.target, requests)
        self._refuse(plan.failed)
        return Planned(plan)

    def attach(self, prepared: Prepared) -> CallCounter:
        """Attach. Raises AttachError or LoadError."""
        return CallCounter(prepared)

    def cost(self, prepared: Prepared) -> dict[SiteForm, int]:
        """Return the cost of a hit by the form of its entry, in ns."""
        return hit_costs(set(prepared.plan.entry_forms), prepared.forced)
