# SPDX-License-Identifier: Apache-2.0
"""Attach what a metric asks for to one program, and read it.

Each metric has probes of its own in each program: one that is detached, for its cost or by a
reload, takes nothing from the others.
"""

from __future__ import annotations

import abc
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gotrace.errors import GotraceError
from gotrace.fleet.config import MetricSpec, MetricType
from gotrace.fleet.naming import label
from gotrace.fleet.series import Increment, Metric
from gotrace.fleet.targets import Program
from gotrace.kernel.attach import Attached
from gotrace.overhead import ProbeCost
from gotrace.probes.pattern import is_recipe
from gotrace.probes.spec import NO_KEY, parse_probe
from gotrace.session.count import CallCounter
from gotrace.session.keys import KeyMeter, KeyOptions, KeyPeriod, plan_keyed
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan, plan_counting, plan_measuring, requests_for
from gotrace.session.tasks import find_tasks
from gotrace.session.trace_plan import TracePlan, parse_probes, probe_requests
from gotrace.target.target import Target

__all__ = ["Cost", "MetricProbe", "Planned", "Probe", "Spent", "open_target", "plan_metric"]

_TEXT_BYTES = 64  # of a string that is a label
_PROGRAM_NS = 300  # for a run of a program that cannot be timed


@dataclass(frozen=True, slots=True)
class Cost:
    """What hits cost beside what their programs take, in ns: see ``gotrace.session.calibrate``.

    ``is_counted``: the kernel counts and times the programs' runs.
    """

    trap: ProbeCost
    is_counted: bool

    def of(self, function: str, hits: int, program_ns: int) -> int:
        """Return what hits of a BPF function have cost, in ns."""
        leave = max(self.trap.own, 2 * self.trap.hit - self.trap.own)
        return hits * (leave if function == "on_return" else self.trap.own) + program_ns

    def total(self, statistics: Mapping[str, tuple[int, int]]) -> Spent:
        """Return what probes have cost by the statistics of their BPF functions."""
        hits = ns = 0
        for function, (runs, took) in statistics.items():
            hits += runs
            ns += self.of(function, runs, took)
        return Spent(hits, ns)


@dataclass(frozen=True, slots=True)
class Spent:
    """How often probes have been hit, and what that has cost the program, in ns."""

    hits: int = 0
    ns: int = 0


class Probe(abc.ABC):
    """What is attached for one job in one program; ``close`` detaches. Any thread may ask.

    ``problems`` are what it leaves out. ``needs_target``: reading what was seen takes the program's
    file.
    """

    needs_target = False

    def __init__(self, program: Program, target: Target, cost: Cost) -> None:
        """Take the program; a subclass attaches then."""
        self.target = target
        self.problems: list[str] = []
        self._program = program
        self._cost = cost
        self._lock = threading.Lock()  # held by what the methods below are called by
        self._is_open = True
        self._final = Spent()
        self._lost: Counter[str] = Counter()

    @property
    @abc.abstractmethod
    def _attached(self) -> Attached:
        """Return the probes."""

    def _take(self) -> None:  # noqa: B027
        """Pass on what has come since the last time, where that is asked for now and then."""

    def _poll(self) -> None:  # noqa: B027
        """Free what processes that have ended left."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Stop, and pass on what has come. Raises GotraceError."""

    @abc.abstractmethod
    def _spent(self) -> Spent:
        """Return the hits so far and their cost."""

    @abc.abstractmethod
    def _losses(self) -> Counter[str]:
        """Return how much is missing so far, by what became of it."""

    def _left_open(self) -> int:
        """Return how many calls were open when it was stopped."""
        return 0

    @property
    def is_open(self) -> bool:
        """Return whether it is attached."""
        return self._is_open

    def take(self) -> None:
        """Pass on what has come since the last time."""
        with self._lock:
            if self._is_open:
                self._take()

    def poll(self) -> None:
        """Free what processes that have ended left; to be called every few seconds."""
        with self._lock:
            if self._is_open:
                self._poll()

    def spent(self) -> Spent:
        """Return the hits so far and their cost, as far as that is known."""
        with self._lock:
            return self._spent() if self._is_open else self._final

    def lost(self) -> dict[str, int]:
        """Return how much is missing, by what became of it."""
        with self._lock:
            return dict(self._losses() if self._is_open else self._lost)

    def is_held(self) -> bool:
        """Return whether the probes are still there."""
        return self._attached.is_held()

    def stop(self) -> None:
        """Have the probes removed without waiting for it: ``close`` does."""
        self._attached.stop()

    def close(self) -> Spent:
        """Detach, pass on what has come, and return what it has cost.

        Raises GotraceError where the probes were gone before that; they are closed all the same.
        """
        with self._lock:
            if not self._is_open:
                return self._final
            try:
                self._finish()
                self._lost = self._losses()
                if left := self._left_open():
                    self._lost["open_at_detach"] += left
                self._final = self._spent()
            finally:
                self._is_open = False
                self._attached.close()
            return self._final


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be probed; ``traced`` where calls are added up by keys."""

    plan: ProbePlan
    traced: TracePlan | None

    def warnings(self) -> Iterator[str]:
        """Yield what is not counted, and why."""
        yield from self.plan.problems
        yield from map(str, self.plan.failed)
        yield from (inlined.text("counted") for inlined in self.plan.inlined())


def open_target(program: Program) -> Target:
    """Return the target of all processes that run a file, in a control group where one is asked."""
    return Target.of(None, None, cgroup=program.cgroup)


def plan_metric(spec: MetricSpec, target: Target, program: Program) -> Planned:
    """Plan a metric's probes in a program. Raises GotraceError, NoMatchError among these."""
    if not _is_keyed(spec):
        requests = requests_for([spec.probe], file=program.path)
        if spec.type is MetricType.COUNTER:
            return Planned(plan_counting(target, requests), None)
        return Planned(plan_measuring(target, requests), None)
    specs, failed = parse_probes([spec.probe], formats=False)
    if failed:
        raise failed[0]
    is_counter = spec.type is MetricType.COUNTER
    traced = plan_keyed(
        target,
        probe_requests(specs, file=program.path),
        [replace(one, key=spec.key or NO_KEY, of=spec.of) for one in specs],
        "count" if is_counter else "measure",
        text_bytes=_TEXT_BYTES,
        returns=not is_counter and spec.of is None,
    )
    if traced.reads_parts:
        raise GotraceError("a metric cannot group by parts of the time")
    return Planned(traced.plan, traced)


def _is_keyed(spec: MetricSpec) -> bool:
    """Return whether more than a counter or a histogram of each function is needed."""
    if spec.key is not None or spec.of is not None or is_recipe(spec.probe):
        return True
    parsed = parse_probe(spec.probe)
    return parsed.predicate is not None or parsed.signature is not None


class MetricProbe(Probe):
    """The probes of one metric in one program."""

    def __init__(self, metric: Metric, program: Program, target: Target, cost: Cost) -> None:
        """Attach. Raises GotraceError or OSError."""
        super().__init__(program, target, cost)
        spec = metric.spec
        self.metric = metric
        self._calls = 0
        planned = plan_metric(spec, target, program)
        plan = planned.plan
        self.names = [function.name for function in plan.functions]
        self.problems += planned.warnings()
        self._meter: CallCounter | LatencyMeter | KeyMeter
        self.needs_target = planned.traced is not None
        if planned.traced is not None:
            tasks = find_tasks(target, plan)
            wanted = KeyOptions(
                times=spec.type is MetricType.HISTOGRAM and spec.of is None,
                intervals=True,
                rows=spec.series,
                open_calls=spec.open_calls,
            )
            self._meter = KeyMeter(target, planned.traced, tasks, wanted, None)
        elif spec.type is MetricType.COUNTER:
            self._meter = CallCounter(target, plan, None)
        else:
            tasks = find_tasks(target, plan)
            options = LatencyOptions(
                per_function=spec.functions, intervals=True, open_calls=spec.open_calls
            )
            self._meter = LatencyMeter(target, plan, tasks, options, None)
        self.problems += [one.text for one in plan.refused(self._meter.attached.failed)]
        metric.begin(program.key.target)

    @property
    def _attached(self) -> Attached:
        return self._meter.attached

    def _take(self) -> None:
        increments = list(self._increments())
        self._calls += sum(one.calls for one in increments)
        self.metric.add(self._program.key.target, increments)

    def _increments(self) -> Iterator[Increment]:
        meter = self._meter
        if isinstance(meter, CallCounter):
            counts = meter.take()
            if not self.metric.spec.functions:
                yield Increment((), sum(counts))
                return
            for name, calls in zip(self.names, counts, strict=True):
                if calls:
                    yield Increment((name,), calls)
        elif isinstance(meter, LatencyMeter):
            for row, times in meter.take().rows.items():
                names = (self.names[row],) if self.metric.spec.functions else ()
                yield Increment(names, times.count, times)
        else:
            yield from self._keyed(meter.take())

    def _keyed(self, period: KeyPeriod) -> Iterator[Increment]:
        spec = self.metric.spec
        for row in period.rows:
            measured = row.measured if spec.of is not None else row.times
            if row.function is None or row.values is None:
                # Without labels there is nothing to find room for.
                yield Increment(None if self.metric.labels[1:] else (), row.calls, measured)
                continue
            names = (self.names[row.function],) if spec.functions else ()
            yield Increment((*names, *map(label, row.values)), row.calls, measured)

    def _poll(self) -> None:
        if isinstance(self._meter, LatencyMeter):
            self._meter.poll(0.0)
        elif isinstance(self._meter, KeyMeter):
            self._meter.poll()

    def _spent(self) -> Spent:
        if not self._cost.is_counted:
            each = 1 if isinstance(self._meter, CallCounter) else 2
            hits = self._calls * each
            return Spent(hits, self._cost.of("on_entry", hits, hits * _PROGRAM_NS))
        return self._cost.total(self._meter.attached.statistics())

    def _losses(self) -> Counter[str]:
        found: Counter[str] = Counter()
        if not isinstance(self._meter, CallCounter):
            counts = self._meter.diagnostics()
            for what in (*self._meter.LOSSES, Diagnostic.UNWOUND):
                if counts[what]:
                    found[what.name.lower()] += counts[what]
        return found

    def _left_open(self) -> int:
        return 0 if isinstance(self._meter, CallCounter) else self._meter.open_calls()

    def _finish(self) -> None:
        self._meter.stop()
        self._take()
