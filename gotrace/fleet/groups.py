# SPDX-License-Identifier: Apache-2.0
"""Metrics of a kind in one program, whose probes are those of one run.

Counters of functions, and histograms of their durations, have one BPF program for each kind: its
rows are functions, and each metric has some of them. A function of several metrics has one probe.
A metric that leaves takes the probes of its functions along, and nothing from the others.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gotrace.errors import GotraceError
from gotrace.fleet.probing import (
    OPEN_AT_DETACH,
    SKIPPED,
    Figures,
    MetricRequest,
    Probe,
    ProbeState,
    moved,
    of_pod,
)
from gotrace.fleet.series import Increment, Metric
from gotrace.fleet.targets import Program
from gotrace.histogram import Histogram
from gotrace.kernel.attach import AttachError, refusal
from gotrace.kernel.cookie import COOKIE_INDEX_MASK
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass
from gotrace.session.budget import HitRow, Hits, Spent
from gotrace.session.count import CallCounter
from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.session.latency import LatencyMeter, LatencyRequest
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryPlan, FunctionKey, ProbePlan, also_inlined
from gotrace.session.request import Asked, Planned
from gotrace.session.run import Run, open_run
from gotrace.sites.sites import FunctionSites
from gotrace.target.process import Process

#: Functions of a metric that shares its program: each has a histogram in the kernel.
_MAX_SHARING = 64
#: Calls within others, for each goroutine with open calls.
_MAX_WITHIN = 8
_MAX_OUTER_CALLS = 1 << 17
_FRESH = 0.5  # seconds in which what a group knows of itself is not asked for again


@dataclass(frozen=True, slots=True)
class Planning:
    """A metric that is to be attached, and its plan."""

    metric: Metric
    request: MetricRequest
    plan: ProbePlan

    @property
    def keys(self) -> list[FunctionKey]:
        """Return the functions, each once."""
        return [one.key(sites) for one in self.plan.binaries for sites in one.functions]

    @property
    def is_large(self) -> bool:
        """Return whether it is to be alone."""
        return len(self.plan.functions) > _MAX_SHARING


def attach_metrics(
    metrics: Sequence[Metric],
    request: Callable[[Metric], MetricRequest],
    program: Program,
    cost: ProbeCost,
) -> list[Probe | Exception]:
    """Attach metrics of one kind in a program; return the probe of each, or why it has none."""
    found: list[Probe | Exception | None] = [None] * len(metrics)
    planned: dict[int, Planning] = {}
    for number, metric in enumerate(metrics):
        try:
            asked = request(metric)
            planned[number] = Planning(metric, asked, asked.plan().plan)
        except Exception as error:  # whatever it is, it is to cost this metric alone
            found[number] = error
    for numbers in _blocks(planned):
        group: list[Probe | Exception]
        try:
            group = _attached([planned[number] for number in numbers], program, cost)
        except Exception as error:
            group = [error] * len(numbers)
        for number, probe in zip(numbers, group, strict=True):
            found[number] = probe
    return [one for one in found if one is not None]


def _blocks(planned: dict[int, Planning]) -> Iterator[list[int]]:
    """Yield which metrics share a program: their functions can be distinguished by their hits."""
    block: list[int] = []
    functions: set[FunctionKey] = set()
    for number, one in planned.items():
        if one.is_large:
            yield [number]
            continue
        keys = functions.union(one.keys)
        if len(keys) > MAX_FUNCTIONS:
            yield block
            block, keys = [], set(one.keys)
        block.append(number)
        functions = keys
    if block:
        yield block


def _attached(
    planned: Sequence[Planning], program: Program, cost: ProbeCost
) -> list[Probe | Exception]:
    """Attach the metrics of one block. Raises GotraceError or OSError."""
    first = planned[0]
    plan, rows = first.plan, list[Sequence[int]]([range(len(first.plan.functions))])
    request: Any = first.request
    if len(planned) > 1:
        plan, rows = _joint(planned)
    if not first.is_large and isinstance(request, LatencyRequest):
        most = request.options.open_calls * min(_MAX_WITHIN, len(plan.functions))
        outer = min(most, _MAX_OUTER_CALLS)
        request = replace(
            request, options=replace(request.options, per_function=True, outer_calls=outer)
        )
    run: Run[Any, Any] = open_run(replace(request, asked=Asked(()), planned=Planned(plan)))
    group = _Group(run, program, cost)
    refused = {
        point.cookie & COOKIE_INDEX_MASK: error
        for point, error in run.attached.failed.items()
        if point.offset in group.entries
    }
    found: list[Probe | Exception] = []
    inlined = also_inlined([one.plan.binaries for one in planned], {})
    for one, own, places in zip(planned, rows, inlined, strict=True):
        probe = MemberProbe(group, one, own, [place.text("counted") for place in places])
        found.append(probe)
        if refused and all(row in refused for row in own):
            where = plan.binaries[0].binary.image.display
            error = refusal(refused[own[0]])
            found[-1] = AttachError(f"cannot attach to {where}: {error}")
            probe.close()
    return found


def _joint(planned: Sequence[Planning]) -> tuple[ProbePlan, list[Sequence[int]]]:
    """Return one plan for several metrics of a file, and the rows of each."""
    numbers: dict[FunctionKey, int] = {}
    functions: list[FunctionSites] = []
    rows: list[Sequence[int]] = []
    for one in planned:
        for file in one.plan.binaries:
            for sites in file.functions:
                if numbers.setdefault(file.key(sites), len(functions)) == len(functions):
                    functions.append(sites)
        rows.append([numbers[key] for key in one.keys])
    binary = planned[0].plan.binaries[0].binary
    return ProbePlan((BinaryPlan(binary, tuple(functions)),), ()), rows


class _Group:
    """The run of a block of metrics; any thread may ask."""

    def __init__(self, run: Run[Any, Any], program: Program, cost: ProbeCost) -> None:
        """Take over a run whose probes are in place."""
        self.run, self.program = run, program
        self.meter: CallCounter | LatencyMeter = run.meter
        self.lock = threading.RLock()
        self.members: list[MemberProbe] = []
        self.is_open = True
        #: By row, the metrics that have it.
        self.users: dict[int, list[MemberProbe]] = {}
        self.by_row = isinstance(run.meter, CallCounter) or run.meter.by_function
        self.names = [function.name for function in run.plan.functions]
        image = run.plan.binaries[0].binary.image
        self.entries = {
            image.offset_of(sites.entry.address)
            for _, _, sites in run.plan.numbered()
            if sites.entry is not None
        }
        self.can_move = isinstance(run.meter, LatencyMeter) and run.meter.landings is not None
        #: Functions whose calls cost less since the latest step.
        self.cheaper: set[int] = set()
        self._moved: set[int] = set()
        self._lost: Counter[str] = Counter()
        self.counted: Counter[int] = Counter()  # calls that were not followed, by function
        self._hits = Hits(run.attached.program, run.plan)
        self._cost = cost.plus(run.meter.program_ns)
        self._is_held, self._is_fresh = True, True
        self._dropping = False
        self._due: dict[str, float] = {}

    def _is_due(self, what: str) -> bool:
        """Return whether something is to be done again, which all metrics ask for."""
        now = time.monotonic()
        if not self.is_open or now < self._due.get(what, 0.0):
            return False
        with self.lock:
            self._due[what] = now + _FRESH
        return True

    def join(self, member: MemberProbe, rows: Sequence[int]) -> None:
        """Add a metric with these rows."""
        self.members.append(member)
        for row in rows:
            self.users.setdefault(row, []).append(member)

    def take(self) -> None:
        """Pass on what was counted and measured since the last time."""
        with self.lock:
            if self.is_open:
                self._pull()
                self.look_again()

    def _pull(self) -> None:
        found: dict[int, tuple[int, Histogram | None]]
        if isinstance(self.meter, CallCounter):
            found = {row: (calls, None) for row, calls in enumerate(self.meter.take()) if calls}
        else:
            found = {row: (one.count, one) for row, one in self.meter.take().rows.items()}
        for row, (calls, times) in found.items():
            every = self.users.get(row, ()) if self.by_row else self.members
            for member in every:
                member.add(row, calls, times)

    def forget(self) -> None:
        """Drop the results so far, once for all metrics, which begin together."""
        with self.lock:
            if self.is_open and self._is_fresh:
                self.meter.take()
            self._is_fresh = False

    def expire(self) -> None:
        """Pass on what has come since the last scrape: its series are not idle."""
        with self.lock:
            if self._is_due("expire"):
                self._pull()

    def poll(self) -> None:
        """Free the entries that ended processes left."""
        with self.lock:
            if self._is_due("poll") and isinstance(self.meter, LatencyMeter):
                self.meter.poll(0.0)

    def move(self) -> float:
        """Have frequent calls seen returning in their callers, as ``ProbeSource`` says."""
        with self.lock:
            if not self.is_open:
                return math.inf
            self._moved |= moved(self.run, self.program)
            return self.meter.pause

    def settle(self) -> None:
        """Remove what is needless, and find out which functions cost less."""
        if not self._is_due("settle"):
            return
        with self.lock:
            if not self.is_open:
                return
            self.cheaper, self._moved = self._moved, set()
            if self.meter.settle():
                self.cheaper = set(range(len(self.names)))
            with suppress(GotraceError):  # the probes may be gone, which is said elsewhere
                self.cheaper |= set(self.meter.drop_probes()) if self._dropping else set()

    def losses(self) -> Counter[str]:
        """Return how much is missing of all metrics so far."""
        if not self._is_due("lost"):
            return self._lost
        with self.lock:
            if not self.is_open:
                return self._lost
            lost = Counter[str]()
            if isinstance(self.meter, LatencyMeter):
                counts = self.meter.diagnostics()
                for what in (*self.meter.LOSSES, Diagnostic.UNWOUND):
                    lost[what.name.lower()] += counts[what]
            lost[SKIPPED] = self.meter.skipped()
            self._lost = lost
            return lost

    def look_again(self) -> None:
        """Have what is known of costs and losses be of this moment."""
        self._due.pop("look", None)
        self._due.pop("lost", None)
        self.look()

    def look(self) -> None:
        """Divide the cost of new hits among the metrics."""
        if not self._is_due("look"):
            return
        with self.lock:
            if not self.is_open:
                return
            if (new := self._hits.new()) is None:
                return
            for row, hit, ns in zip(new.numbers, new.rows, new.spent(self._cost), strict=True):
                users = self.users.get(row - 1, self.members) if row else self.members
                self.counted[row - 1] += hit.counted
                _divide(users, _sites(hit), ns)

    def is_held(self) -> bool:
        """Return whether the probes are still there."""
        with self.lock:
            if self._is_due("held"):
                self._is_held = self.run.attached.is_held()
            return self._is_held

    def lighten(self, member: MemberProbe) -> bool:
        """Count the calls of a metric's own functions alone; return whether that is possible."""
        own = [row for row in member.rows if self.users[row] == [member]]
        if isinstance(self.meter, CallCounter) or not own:
            return False
        if self.members == [member]:
            return self.meter.lighten_all()
        lightened = [self.meter.lighten(row) for row in own]
        self._dropping = True
        return None not in lightened

    def stop(self, member: MemberProbe) -> None:
        """Let a metric leave, with the others that are to leave when the first of them closes."""
        with self.lock:
            member.is_leaving = True
            if all(one.is_leaving for one in self.members):
                self.run.attached.stop()

    def leave(self, member: MemberProbe) -> None:
        """Remove the probes of all metrics that are to leave. Raises GotraceError."""
        member.is_leaving = True
        leaving = [one for one in self.members if one.is_leaving]
        staying = [one for one in self.members if not one.is_leaving]
        is_held = not staying or self.run.attached.is_held()
        try:
            if not staying or not is_held:
                self.meter.stop()
            else:
                rows = {row for one in leaving for row in one.rows}
                gone = {row for row in rows if all(one.is_leaving for one in self.users[row])}
                if gone:
                    self.meter.remove(gone)
            self._pull()
            self.look_again()
        finally:
            for one in leaving:
                one.end()
            self.members = staying
            for row, users in list(self.users.items()):
                self.users[row] = [one for one in users if not one.is_leaving]
            if not staying:
                self.is_open = False
                self.run.close()
        if not is_held:
            raise AttachError("the process that held the probes is gone: later results are missing")


def _sites(hit: HitRow) -> int:
    return hit.entries + hit.returns + hit.landings + hit.stepped + hit.others


def _divide(members: Sequence[MemberProbe], hits: int, ns: int) -> None:
    """Have metrics pay for what all of them have, in parts that are the same."""
    if not members or not (hits or ns):
        return
    count = len(members)
    for member in members:
        member.hits += hits // count
        member.ns += ns // count
    members[0].hits += hits % count
    members[0].ns += ns % count


class MemberProbe(Probe):
    """The probes of a metric that has some rows of a group."""

    def __init__(
        self, group: _Group, planned: Planning, rows: Sequence[int], notes: Sequence[str]
    ) -> None:
        """Join a group; ``notes`` are about the metric's functions."""
        super().__init__()
        self.group, self.metric, self.rows = group, planned.metric, rows
        self._lock = group.lock
        self.needs_target = group.can_move
        self.is_leaving = False
        self.hits = self.ns = self._unmeasured = 0
        run, plan = group.run, planned.plan
        self.problems = [*plan.problems, *notes]
        if only := plan.only_inlined():
            self.problems.append(only.text("counted"))
        if not group.members:  # what is said of the run is said once
            self.problems[:0] = [note.text for note in run.warnings()]
        group.join(self, rows)
        self._lost = group.losses()
        self._pod = partial(of_pod, planned.metric.spec, group.program)
        self.metric.begin(group.program.key.target)
        self._is_present = True

    @property
    def source(self) -> _Group:
        return self.group

    def add(self, row: int, calls: int, times: Histogram | None) -> None:
        """Take new results of a row; called with the group's lock held."""
        if self.state is not ProbeState.ON:
            self._unmeasured += calls  # of a function that others measure
            return
        names = (self.group.names[row],) if self.metric.spec.functions else ()
        target = self.group.program.key.target
        self.metric.add(target, [self._pod(Increment(names, calls, times))])

    def take(self) -> None:
        self.group.take()

    def move(self) -> float:
        return self.group.move()

    def expire(self) -> None:
        if self.metric.can_expire:
            self.group.expire()

    def forget(self) -> None:
        self.group.forget()

    def poll(self) -> None:
        self.group.poll()

    def _lighten(self) -> str | None:
        if not self.group.lighten(self):
            return None
        self.group._pull()
        self.state = ProbeState.COUNTED
        self._rest()
        return "its calls are only counted"

    def settle(self) -> bool:
        self.group.settle()
        return not self.group.cheaper.isdisjoint(self.rows)

    def _figures(self) -> Figures:
        self.group.look()
        lost = self.group.losses().copy()
        lost.subtract(self._lost)
        unmeasured = 0
        if self.state is ProbeState.COUNTED:
            own = self.rows if self.group.by_row else [-1]
            unmeasured = self._unmeasured + sum(self.group.counted[row] for row in own)
        return Figures(Spent(self.hits, self.ns), lost, unmeasured)

    def spent(self) -> Spent:
        if (final := self._final) is not None:
            return final.spent
        self.group.look()
        return Spent(self.hits, self.ns)

    def is_held(self) -> bool:
        return self.group.is_held()

    def is_in(self, pid: int) -> bool | None:
        with self._lock:
            return self.group.run.attached.has_breakpoint(Process(pid)) if self.is_open else None

    def stop(self) -> None:
        self.group.stop(self)

    def _close(self) -> None:
        self.group.leave(self)

    def end(self) -> None:
        """Take note that it has left; called with the group's lock held."""
        if self._final is not None:
            return
        final = None
        try:
            final = self._figures()
            meter = self.group.meter
            if isinstance(meter, LatencyMeter):
                rows = self.rows if self.group.by_row else None
                if left := meter.open_calls(rows):
                    final.lost[OPEN_AT_DETACH] += left
        finally:
            self._final = final or Figures(Spent(self.hits, self.ns))
            self._rest()

    def _rest(self) -> None:
        if self._is_present:
            self._is_present = False
            self.metric.presence.end(self.group.program.key.target)
