# SPDX-License-Identifier: Apache-2.0
"""How long goroutines of a target are blocked, by reason, runnable, and out of CPU quota."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from gotrace.fleet.config import WaitsSpec
from gotrace.fleet.probing import PresentProbe
from gotrace.fleet.series import Presence
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.price import refuse_price
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, field, replace
from gotrace.session.run import open_run
from gotrace.session.waits.states import (
    StateKind,
    StateMeter,
    StateProbes,
    StateRequest,
    StateSum,
    state_probes,
)
from gotrace.target.target import Target


@dataclass
class WaitPoint:
    """The sum of one state, and of one reason, since ``created`` (s since 1970)."""

    target: str
    kind: StateKind
    reason: str
    created: float
    count: int = 0
    ns: int = 0


@dataclass
class TargetWaits:
    """The waits of all targets, whatever has become of their processes.

    Threads may add to it and read it.
    """

    presence: Presence = field(default_factory=Presence)
    _points: dict[tuple[str, StateKind, str], WaitPoint] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, target: str, kinds: Iterable[StateKind]) -> None:
        """Take note that a probe is attached in a target.

        Sums that have no reasons begin at 0, so that their first rise is seen.
        """
        self.presence.begin(target)
        with self._lock:
            for kind in kinds:
                self._point(target, kind, "")

    def add(self, target: str, sums: Iterable[StateSum]) -> None:
        """Add new waits of a target."""
        with self._lock:
            for one in sums:
                point = self._point(target, one.kind, one.reason)
                point.count += one.count
                point.ns += one.ns

    def points(self, targets: Sequence[str], reader: str = "") -> list[WaitPoint]:
        """Return a copy of those of some targets for a reader, in the order in which they began."""
        shown = self.presence.shown(targets, reader)
        with self._lock:
            points = self._points.values()
            return [replace(point) for point in points if point.target in shown]

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
    """Return the probes for waits in a program. Raises GotraceError."""
    return state_probes(target, target.binary(program.path))


class WaitsProbe(PresentProbe):
    """The probes of one program's scheduler."""

    def __init__(
        self,
        spec: WaitsSpec,
        program: Program,
        target: Target,
        cost: ProbeCost,
        totals: TargetWaits,
        share: float,
    ) -> None:
        """Attach, where that will not take more than ``share`` of one CPU.

        Raises OverBudgetError, other GotraceErrors, or OSError.
        """
        request = StateRequest(
            target=target,
            file=target.binary(program.path),
            goroutines=spec.goroutines,
            is_minded=True,
        )
        run = open_run(request, accept=lambda probes: refuse_price(probes, cost, share))
        super().__init__(program, cost, run, totals.presence)
        self._totals = totals
        self._meter = run.meter
        kinds = [StateKind.RUNNABLE]
        if self._meter.has_quotas:
            kinds.append(StateKind.THROTTLED)
        totals.begin(program.key.target, kinds)

    def _take(self) -> None:
        self._totals.add(self._program.key.target, self._meter.take())

    def _forget(self) -> None:
        self._meter.take()

    def _poll(self) -> None:
        self._meter.forget(self._program.is_run_by)

    def _losses(self) -> Counter[str]:
        found = self._meter.losses().items()
        return Counter({what.name.lower(): count for what, count in found})


#: How waits may be missing.
WAIT_LOSSES = [what.name.lower() for what in StateMeter.LOSSES]
