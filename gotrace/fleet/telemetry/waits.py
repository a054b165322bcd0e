# SPDX-License-Identifier: Apache-2.0
"""How long goroutines of a target are blocked, by reason, runnable, and out of CPU quota."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from gotrace.fleet.config import WaitsSpec
from gotrace.fleet.probing import Cost, Spent
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.price import refuse_price
from gotrace.records import dataclass, field, replace
from gotrace.session.waits.states import StateKind, StateMeter, StateProbes, StateSum, state_probes
from gotrace.target.target import Target

__all__ = [
    "WaitFamily",
    "WaitPoint",
    "WaitTotals",
    "WaitsProbe",
    "families",
    "plan_waits",
]


@dataclass
class WaitPoint:
    """What has been added up of one state, and for one reason, since ``created`` (s since 1970)."""

    target: str
    kind: StateKind
    reason: str
    created: float
    count: int = 0
    ns: int = 0


@dataclass
class WaitTotals:
    """What all targets have waited, whatever has become of their processes.

    Threads may add to it and read it.
    """

    _points: dict[tuple[str, StateKind, str], WaitPoint] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, target: str, kinds: Iterable[StateKind]) -> None:
        """Have what has no reasons begin at 0, so that its first rise is seen."""
        with self._lock:
            for kind in kinds:
                self._point(target, kind, "")

    def add(self, target: str, sums: Iterable[StateSum]) -> None:
        """Add what has come from a target."""
        with self._lock:
            for one in sums:
                point = self._point(target, one.kind, one.reason)
                point.count += one.count
                point.ns += one.ns

    def points(self) -> list[WaitPoint]:
        """Return a copy of all, in the order in which they began."""
        with self._lock:
            return [replace(point) for point in self._points.values()]

    def _point(self, target: str, kind: StateKind, reason: str) -> WaitPoint:
        key = target, kind, reason
        if key not in self._points:
            self._points[key] = WaitPoint(target, kind, reason, time.time())
        return self._points[key]


@dataclass(frozen=True, slots=True)
class WaitFamily:
    """A counter as it is exported: ``rows`` have a label ``reason`` where ``has_reason``."""

    name: str
    help: str
    has_reason: bool
    is_time: bool
    rows: tuple[WaitPoint, ...]

    def value(self, point: WaitPoint) -> float:
        """Return a row's value: seconds, or how often."""
        return point.ns / 1e9 if self.is_time else point.count


_HELP = {
    StateKind.BLOCKED: ("Time that goroutines were blocked", "Times that goroutines were blocked"),
    StateKind.RUNNABLE: (
        "Time that goroutines could run and did not",
        "Times that goroutines became runnable",
    ),
    StateKind.THROTTLED: (
        "Time that threads could not run for want of CPU quota",
        "Times that threads ran out of CPU quota",
    ),
}


def families(points: Iterable[WaitPoint]) -> list[WaitFamily]:
    """Return the counters that there are, without ``_total``."""
    points = list(points)
    found = []
    for kind, (of_time, of_times) in _HELP.items():
        rows = tuple(point for point in points if point.kind is kind)
        has_reason = kind is StateKind.BLOCKED
        if rows:
            name = f"gotraced_{kind.value}"
            found += [
                WaitFamily(f"{name}_seconds", of_time, has_reason, True, rows),
                WaitFamily(f"{name}_waits", of_times, has_reason, False, rows),
            ]
    return found


def plan_waits(target: Target, program: Program) -> StateProbes:
    """Return what is probed in a program. Raises GotraceError."""
    return state_probes(target, target.binary(program.path))


class WaitsProbe:
    """The probes of one program's scheduler; ``close`` detaches."""

    def __init__(
        self,
        spec: WaitsSpec,
        program: Program,
        target: Target,
        cost: Cost,
        totals: WaitTotals,
        share: float,
    ) -> None:
        """Attach, where that will not take more than ``share`` of one CPU.

        Raises OverBudgetError, other GotraceErrors, or OSError.
        """
        self.target = target
        self._program = program
        self._cost = cost
        self._totals = totals
        self._lock = threading.Lock()
        self._is_open = True
        self._final = Spent()
        self._lost: dict[str, int] = {}
        probes = plan_waits(target, program)
        refuse_price(probes, cost, share)
        self.problems: list[str] = []
        if probes.quota is None:
            self.problems.append(
                "CPU quotas are not looked at: the kernel's BTF does not have them"
            )
        self._meter = StateMeter(probes, None, spec.goroutines)
        self._hits = 0
        kinds = [StateKind.RUNNABLE]
        if probes.quota is not None:
            kinds.append(StateKind.THROTTLED)
        totals.begin(program.key.target, kinds)

    @property
    def needs_target(self) -> bool:
        """Return whether reading what was added up takes the program's file: it does not."""
        return False

    def take(self) -> None:
        """Add what has come since the last time to the totals."""
        with self._lock:
            if self._is_open:
                self._take()

    def _take(self) -> None:
        sums = self._meter.take()
        # A goroutine begins to wait, becomes runnable and runs; or only the latter two.
        hits = {StateKind.BLOCKED: 1, StateKind.RUNNABLE: 2, StateKind.THROTTLED: 0}
        self._hits += sum(hits[one.kind] * one.count for one in sums)
        self._totals.add(self._program.key.target, sums)

    def poll(self) -> None:
        """Free what processes that have ended left; to be called every few seconds."""
        with self._lock:
            if self._is_open:
                self._meter.forget(self._program.is_run_by)

    def spent(self) -> Spent:
        """Return the hits so far and their cost, that of looking for quotas included."""
        with self._lock:
            return self._spent() if self._is_open else self._final

    def _spent(self) -> Spent:
        if not self._cost.is_counted:
            self._take()
            ns = self._hits * _PROGRAM_NS
            return Spent(self._hits, self._cost.of("on_status", self._hits, ns))
        spent = self._cost.total(self._meter.attached.statistics())
        return Spent(spent.hits, spent.ns + self._meter.attached.tracepoint_ns())

    def lost(self) -> dict[str, int]:
        """Return how many waits are missing, by what there was too much of."""
        with self._lock:
            return self._losses() if self._is_open else dict(self._lost)

    def _losses(self) -> dict[str, int]:
        found = self._meter.losses().items()
        return {what.name.lower(): count for what, count in found if count}

    def is_held(self) -> bool:
        """Return whether the probes are still there."""
        return self._meter.attached.is_held()

    def stop(self) -> None:
        """Have the probes removed without waiting for it: ``close`` does."""
        self._meter.attached.stop()

    def close(self) -> Spent:
        """Detach, add what has come to the totals, and return what it has cost.

        Raises AttachError where the probes were gone before that.
        """
        with self._lock:
            if not self._is_open:
                return self._final
            try:
                self._meter.stop()
                self._take()
                self._lost = self._losses()
                self._final = self._spent()
            finally:
                self._is_open = False
                self._meter.attached.close()
            return self._final


_PROGRAM_NS = 300  # for a run of a program that cannot be timed
