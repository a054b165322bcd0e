# SPDX-License-Identifier: Apache-2.0
"""Count function calls in the kernel and read the counters."""

from __future__ import annotations

import struct
from collections.abc import Collection

from gotrace.kernel.attach import Attached, Point, ProbeGroup, attach
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters
from gotrace.probes.select import InlinedScope as InlinedScope
from gotrace.records import dataclass
from gotrace.session.budget import counting_hits, removable
from gotrace.session.calibrate import hit_costs
from gotrace.session.plan import ProbePlan, by_place, plan_counting
from gotrace.session.probing import Level, Prepared, Probing
from gotrace.session.request import FunctionRequest, Planned
from gotrace.settings import CountSettings
from gotrace.sites.records import SiteForm

#: Of bpf/count.c's struct fault.
_FAULT = struct.Struct("<qQ")
#: Of all plans that share a program.
_MAX_FAULTS = 4096


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
        self._faults: dict[int, list[bytes]] = {}
        self._entries: dict[int, ProbeGroup] = {}
        self._needless: list[ProbeGroup] = []
        groups = self._groups(prepared)
        settings = CountSettings(
            site=prepared.site_settings(),
            counters=prepared.functions,
            faults=_MAX_FAULTS if prepared.room else max(1, sum(map(len, self._faults.values()))),
        )
        if prepared.counts_hits:
            settings = counting_hits(settings, prepared.functions)

        def prepare(program: BpfProgram) -> None:
            self._prepare(program, prepared)

        self.attached: Attached = attach(
            settings, groups, prepared.forced, prepare, prepared.announce
        )
        self._map = self.attached.program.map("counts")
        self._counts = Counters(self._map)

    def _groups(self, prepared: Prepared) -> list[ProbeGroup]:
        """Return the probes of a plan, whose functions can be removed if somebody minds."""
        plan, pid = prepared.plan, prepared.target.pid
        groups = plan.entry_groups("on_entry", pid)
        self._faults |= _fault_keys(plan)
        if prepared.budget is not None or prepared.is_minded:
            groups, entries = removable(groups, prepared.functions)
            self._entries |= entries
        return groups + plan.fault_groups("on_fault", pid)

    def _prepare(self, program: BpfProgram, prepared: Prepared) -> None:
        for number, _, _ in prepared.plan.numbered() if self._faults else ():
            for key in self._faults.get(number, ()):
                program.map("faults").update(key, number.to_bytes(4, "little"))

    def add(self, prepared: Prepared) -> dict[Point, OSError]:
        self._prepare(self.attached.program, prepared)
        return self.attached.extend(self._groups(prepared))

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
    """Count calls of each function; ``inlined`` says of which also inlined calls.

    ``by_place``: of each place where a function is inlined.
    """

    verb: str = "count"
    done: str = "counted"
    inlined: InlinedScope = InlinedScope.NONE
    by_place: bool = False
    BY_TASK = False

    def plan(self) -> Planned:
        """Return the probes to attach; raises as ``plan_counting`` does."""
        requests, _ = self.requests
        plan = plan_counting(self.target, requests, self.inlined)
        self._refuse(plan.failed)
        return Planned(by_place(plan) if self.by_place else plan)

    def attach(self, prepared: Prepared) -> CallCounter:
        """Attach. Raises AttachError or LoadError."""
        return CallCounter(prepared)

    def cost(self, prepared: Prepared) -> dict[SiteForm, int]:
        """Return the cost of a hit by the form of its entry, in ns."""
        return hit_costs(set(prepared.plan.entry_forms), prepared.forced)
