"""Attach random sets of functions to a program, for a random while, over and over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from gotrace.probes.select import Selector
from gotrace.probes.sites import FunctionSites
from gotrace.session.attach import Attached, Rung
from gotrace.session.callers import find_callers
from gotrace.session.count import CallCounter
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.plan import BinaryRequest, Plan, make_plan, measurable
from gotrace.session.target import Target

__all__ = ["Soak"]


class Soak:
    """Hold a process and all sites of its functions; a context manager."""

    def __init__(self, pid: int, seed: int, patterns: Sequence[str] = ("*",)) -> None:
        self._random = random.Random(seed)
        self._target = Target.of(pid, None)
        request = BinaryRequest(None, Selector(patterns))
        self._counted = make_plan(self._target, [request], returns=True, verb="count")
        self._measured = measurable(self._counted)
        self.probes = 0
        self.calls = 0
        self.failed: dict[int, str] = {}

    @property
    def functions(self) -> list[FunctionSites]:
        return list(self._counted.binaries[0].functions)

    def round(self) -> None:
        """Attach to 1 function, to all, or to any number in between; count or measure; detach."""
        if self._random.random() < 0.5:
            self.count(self._some(self._counted))
        else:
            self.measure(self._some(self._measured))

    def count(self, plan: Plan | None = None, turns: int | None = None) -> None:
        """Count all functions, or a plan's, until the counters were read ``turns`` times."""
        plan = plan or self._counted
        with CallCounter(self._target, plan, self._rung(plan)) as counter:
            self._note(counter.attached, len(plan.functions))
            for _ in range(self._random.randrange(20) if turns is None else turns):
                self.calls += sum(counter.take())

    def measure(self, plan: Plan | None = None, turns: int | None = None) -> None:
        """Measure all functions, or a plan's, until the times were read ``turns`` times."""
        plan = plan or self._measured
        options = LatencyOptions(intervals=True)
        callers = find_callers(plan)
        with LatencyMeter(self._target, plan, callers, options, self._rung(plan)) as meter:
            returns = sum(len(sites.returns) for sites in plan.binaries[0].functions)
            self._note(meter.attached, len(plan.functions) + returns)
            for _ in range(self._random.randrange(8) if turns is None else turns):
                self.calls += sum(row.count for row in meter.take().rows.values())

    def _some(self, plan: Plan) -> Plan:
        functions = plan.binaries[0].functions
        size = int(len(functions) ** self._random.random())
        chosen = tuple(self._random.sample(functions, size))
        return replace(plan, binaries=(replace(plan.binaries[0], functions=chosen),))

    def _rung(self, plan: Plan) -> Rung | None:
        """Take any rung for few functions; perf events for many take minutes to be closed."""
        return self._random.choice(list(Rung)) if len(plan.functions) < 10 else None

    def _note(self, attached: Attached, probes: int) -> None:
        self.probes += probes - len(attached.failed)
        for point, error in attached.failed.items():
            self.failed[point.address] = error.strerror or str(error)

    def __enter__(self) -> Soak:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._target.close()
