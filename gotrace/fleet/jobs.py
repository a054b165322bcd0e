# SPDX-License-Identifier: Apache-2.0
"""The kinds of work that a configuration asks for: each knows its probes, and what goes on."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from gotrace.fleet.config import Config, FlightSpec, MetricSpec, SpanSpec, WaitsSpec
from gotrace.fleet.groups import MetricGroups
from gotrace.fleet.probing import (
    SKIPPED,
    KeyProbe,
    Probe,
    is_keyed,
    metric_losses,
    metric_request,
    try_metric,
)
from gotrace.fleet.series import Metric
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.waits import WAIT_LOSSES, TargetWaits, WaitsProbe, plan_waits
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, field, replace
from gotrace.session.reading import RecordReader
from gotrace.target.target import Target

if TYPE_CHECKING:
    from gotrace.fleet.flights import Flights

#: Starts the probe of spans; the number is the budget of all, a part of one CPU. If the last is
#: true, it sends nothing before ``Probe.forget``.
StartSpan = Callable[[Sequence[SpanSpec], Program, Target, ProbeCost, float, bool], Probe]


@dataclass
class Totals:
    """Sums and readers in one place for all jobs of a kind, whatever is configured now."""

    waits: TargetWaits = field(default_factory=TargetWaits)
    flights: Flights | None = None  # while there are any, or were


@dataclass(frozen=True)
class Job(abc.ABC):
    """One metric, one flight, all spans, or all waits, in the programs of its targets.

    ``name`` is unique.
    """

    name: str
    targets: tuple[str, ...]
    #: Whether calls become spans.
    sends_spans: ClassVar[bool] = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that its probes add to."""
        return ()

    @property
    def losses(self) -> Sequence[str]:
        """Return how calls may be missing."""
        return RecordReader.LOSSES

    @property
    def kind(self) -> Hashable:
        """Return the kind of its probes, which jobs of a kind share in a program; None if alone."""
        return None

    @abc.abstractmethod
    def plan(self, target: Target, program: Program) -> None:
        """Plan as ``attach`` does, and attach nothing. Raises GotraceError."""

    @abc.abstractmethod
    def attach(self, target: Target, program: Program, cost: ProbeCost, is_spare: bool) -> Probe:
        """Attach its probes in a program. Raises GotraceError or OSError.

        ``is_spare``: nothing leaves before ``Probe.forget``, as another probe sends the same.
        """

    @abc.abstractmethod
    def is_like(self, other: Job, target: str) -> bool:
        """Return whether another job has the same probes in a target."""

    def follow(self, other: Job) -> None:  # noqa: B027
        """Go on with what the job of this name has added up that was there before a reload."""


@dataclass(frozen=True)
class MetricJob(Job):
    """A metric."""

    spec: MetricSpec
    metric: Metric

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.metric,)

    @property
    def losses(self) -> Sequence[str]:
        return [*metric_losses(self.spec), SKIPPED]

    @property
    def kind(self) -> Hashable:
        return None if is_keyed(self.spec) else (self.spec.type, self.spec.open_calls)

    def plan(self, target: Target, program: Program) -> None:
        try_metric(self.spec, target, program)

    def attach(self, target: Target, program: Program, cost: ProbeCost, is_spare: bool) -> Probe:
        return KeyProbe(self.metric, program, target, cost)

    def is_like(self, other: Job, target: str) -> bool:
        return isinstance(other, MetricJob) and self.metric is other.metric

    def follow(self, other: Job) -> None:
        if not isinstance(other, MetricJob):
            return
        if self.metric is other.metric:
            self.metric.spec = self.spec
        elif self.metric.is_like(other.metric):
            self.metric.keep(other.metric)


@dataclass(frozen=True)
class WaitsJob(Job):
    """The waits of all goroutines."""

    spec: WaitsSpec
    share: float
    totals: TargetWaits

    @property
    def losses(self) -> Sequence[str]:
        return [*WAIT_LOSSES, SKIPPED]

    def plan(self, target: Target, program: Program) -> None:
        plan_waits(target, program)

    def attach(self, target: Target, program: Program, cost: ProbeCost, is_spare: bool) -> Probe:
        return WaitsProbe(self.spec, program, target, cost, self.totals, self.share)

    def is_like(self, other: Job, target: str) -> bool:
        return isinstance(other, WaitsJob) and self.spec.goroutines == other.spec.goroutines


@dataclass(frozen=True)
class FlightJob(Job):
    """A flight; ``memory`` is what all flights may keep."""

    spec: FlightSpec
    share: float
    memory: int
    flights: Flights

    def plan(self, target: Target, program: Program) -> None:
        from gotrace.fleet.flights import try_flight

        try_flight(self.spec, target, program)

    def attach(self, target: Target, program: Program, cost: ProbeCost, is_spare: bool) -> Probe:
        from gotrace.fleet.flights import FlightProbe

        shared = self.flights, self.share, self.memory
        return FlightProbe(self.spec, program, target, cost, *shared, is_spare)

    def is_like(self, other: Job, target: str) -> bool:
        return isinstance(other, FlightJob) and _alike(self.spec, other.spec)


@dataclass(frozen=True)
class SpansJob(Job):
    """All spans; ``start`` is None while there is nowhere to send any."""

    specs: tuple[SpanSpec, ...]
    share: float
    start: StartSpan | None
    sends_spans = True

    def _of(self, target: str) -> list[SpanSpec]:
        return [spec for spec in self.specs if target in spec.targets]

    def plan(self, target: Target, program: Program) -> None:
        from gotrace.fleet.spans import try_spans  # loads the SDK

        try_spans(self._of(program.key.target), target, program)

    def attach(self, target: Target, program: Program, cost: ProbeCost, is_spare: bool) -> Probe:
        assert self.start is not None
        specs = self._of(program.key.target)
        return self.start(specs, program, target, cost, self.share, is_spare)

    def is_like(self, other: Job, target: str) -> bool:
        if not isinstance(other, SpansJob) or self.start != other.start:
            return False
        mine, its = self._of(target), other._of(target)
        return len(mine) == len(its) and all(map(_alike, mine, its))


def batches(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return jobs in batches that are attached together: those of one kind, and each other one."""
    found: dict[Hashable, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.name if job.kind is None else job.kind, []).append(job)
    return list(found.values())


def attach_batch(
    batch: Sequence[Job],
    target: Target,
    program: Program,
    cost: ProbeCost,
    groups: MetricGroups,
    is_spare: bool = False,
    programs: int = 1,
) -> list[tuple[Job, Probe | Exception]]:
    """Attach a batch in a program; return the probe of each job, or why it has none.

    ``groups`` are those that metrics may join, and ``programs`` is how many may come to them.
    """
    if batch[0].kind is not None:
        metrics = [metric for job in batch for metric in job.metrics]
        probes = groups.attach(
            metrics,
            lambda metric: metric_request(metric.spec, target, program),
            program,
            is_spare,
            programs,
        )
        return list(zip(batch, probes, strict=True))
    (job,) = batch
    try:
        return [(job, job.attach(target, program, cost, is_spare))]
    except Exception as error:
        return [(job, error)]


def _alike(one: FlightSpec | SpanSpec, other: FlightSpec | SpanSpec) -> bool:
    """Return whether two are the same, wherever they are placed."""
    return replace(one, targets=()) == replace(other, targets=())


def make_jobs(
    config: Config, totals: Totals, start: StartSpan | None, before: Mapping[str, Job]
) -> dict[str, Job]:
    """Return the jobs of a configuration by name.

    A metric is the one that there was before where its probes are the same.
    """
    jobs: dict[str, Job] = {
        spec.name: MetricJob(spec.name, spec.targets, spec, _metric(spec, before.get(spec.name)))
        for spec in config.metrics
    }
    if config.spans:
        targets = dict.fromkeys(target for span in config.spans for target in span.targets)
        name = _unused("spans", jobs)
        jobs[name] = SpansJob(name, tuple(targets), config.spans, config.budget, start)
    if config.waits is not None:
        name = _unused("waits", jobs)
        waits = config.waits, config.budget, totals.waits
        jobs[name] = WaitsJob(name, config.waits.targets, *waits)
    if config.flights and totals.flights is None:
        from gotrace.fleet.flights import Flights  # loads what makes recordings

        totals.flights = Flights()
    for spec in config.flights:
        assert totals.flights is not None
        name = f"flight {spec.name}"  # which no metric can be called
        shared = config.budget, config.flight_memory, totals.flights
        jobs[name] = FlightJob(name, spec.targets, spec, *shared)
    return jobs


def _unused(name: str, jobs: Mapping[str, Job]) -> str:
    return name if name not in jobs else f"{name}:"


def _metric(spec: MetricSpec, before: Job | None) -> Metric:
    def bare(spec: MetricSpec) -> MetricSpec:
        return replace(spec, targets=(), help="", idle=0.0)

    if isinstance(before, MetricJob) and bare(before.metric.spec) == bare(spec):
        return before.metric
    return Metric(spec)
