# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus scrapes them, and the daemon's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gotrace import __version__
from gotrace.fleet import threads
from gotrace.fleet.config import POD_LABELS
from gotrace.fleet.engine import Engine, ProbeStatus
from gotrace.fleet.probing import ProbeState
from gotrace.fleet.series import Bucketed, Metric
from gotrace.fleet.telemetry.conventions import FAMILIES, MetricKind
from gotrace.fleet.telemetry.runtime import RuntimeRows
from gotrace.fleet.telemetry.traces import EDGES
from gotrace.fleet.telemetry.waits import families
from gotrace.records import dataclass, field

if TYPE_CHECKING:
    from gotrace.fleet.flights import FlightTally

_ALWAYS = "+Inf"
#: Who scrapes: see ``Presence``. Without a name all series are exported.
READER: ContextVar[str] = ContextVar("reader", default="")


class Reloads:
    """How often the configuration was read again."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0


@dataclass
class OtlpCounts:
    """The fate of points and spans: by signal and outcome or reason; ``waiting`` is now."""

    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: int = 0

    def add(self, other: OtlpCounts) -> None:
        """Add the counts of another exporter; the waiting ones are the latest's."""
        self.items.update(other.items)
        self.dropped.update(other.dropped)
        self.failures.update(other.failures)
        self.waiting = other.waiting


class EngineCollector(Collector):
    """All metrics of an engine, read when they are asked for."""

    def __init__(
        self,
        engine: Engine,
        reloads: Reloads,
        otlp: Callable[[], OtlpCounts | None],
        runtimes: Callable[[], RuntimeRows],
    ) -> None:
        """``otlp`` returns how much was sent and dropped, None if no collector is configured.

        ``runtimes`` reads the figures of runtimes.
        """
        self._engine = engine
        self._reloads = reloads
        self._otlp = otlp
        self._runtimes = runtimes

    def collect(self) -> Iterator[Family]:
        """Yield the configuration's metrics and then the daemon's own."""
        metrics = self._engine.collect()
        for metric in metrics:
            yield family_of(metric)
        for family in families(self._engine.waits(READER.get())):
            labels = ["target", "reason"] if family.has_reason else ["target"]
            counter = CounterMetricFamily(family.name, family.help, labels=labels)
            for row in family.rows:
                values = [row.target, row.reason] if family.has_reason else [row.target]
                counter.add_metric(values, family.value(row))
            yield counter
        yield from _of_runtimes(self._runtimes())
        yield from self._own(metrics)

    def _own(self, metrics: list[Metric]) -> Iterator[Family]:
        yield InfoMetricFamily("gotraced_build", "gotraced's version", {"version": __version__})
        yield from _of_probes(self._engine.statuses())
        yield from _of_metrics(metrics)
        yield from self._of_targets()
        yield from _of_flights(self._engine.flights())
        failed = CounterMetricFamily(
            "gotraced_thread_failures",
            "Times that a bug, or a call of the system, has cost a thread some of its work",
            labels=["thread"],
        )
        for thread, count in {"engine": 0, "take": 0, **threads.failures()}.items():
            failed.add_metric([thread], count)
        yield failed
        reloads = CounterMetricFamily(
            "gotraced_reloads", "Times the configuration was read again", labels=["result"]
        )
        reloads.add_metric(["done"], self._reloads.done)
        reloads.add_metric(["failed"], self._reloads.failed)
        yield reloads
        counts = self._otlp()
        if counts is not None:
            yield from _of_otlp(counts)

    def _of_targets(self) -> Iterator[Family]:
        for kind, name, help_text, counts in (
            (
                GaugeMetricFamily,
                "gotraced_target_processes",
                "Processes that run a target",
                self._engine.processes(),
            ),
            (
                GaugeMetricFamily,
                "gotraced_target_unprobed_processes",
                "Processes that were seen without the probes of the file that they run",
                self._engine.unprobed(),
            ),
            (
                GaugeMetricFamily,
                "gotraced_target_passed_over_files",
                "Files that are not traced, as there are more than max_files",
                self._engine.passed_over(),
            ),
            (
                CounterMetricFamily,
                "gotraced_target_missed_processes",
                "Processes of a comm target that had ended before their file was traced",
                self._engine.missed(),
            ),
        ):
            family = kind(name, help_text, labels=["target"])
            for target, count in counts.items():
                family.add_metric([target], count)
            yield family


def _of_runtimes(found: RuntimeRows) -> Iterator[Family]:
    """Yield the metrics of runtimes, and how many processes were read."""
    if not found.outcomes:
        return
    names = ["target", "pid", *(POD_LABELS if found.has_pods else ())]
    labels = [
        [row.target, str(row.pid), *((row.pod or ("", "", "")) if found.has_pods else ())]
        for row in found.rows
    ]
    versions = GaugeMetricFamily("go_info", "The release of Go", labels=[*names, "version"])
    for row, own in zip(found.rows, labels, strict=True):
        versions.add_metric([*own, row.version], 1)
    yield versions
    for family in FAMILIES:
        metric = _KINDS[family.kind](family.name, family.help, labels=names)
        for row, own in zip(found.rows, labels, strict=True):
            value = family.value(row.figures)
            if value is None:
                continue
            if isinstance(metric, SummaryMetricFamily) and row.figures.heap is not None:
                metric.add_metric(own, row.figures.heap.cycles, value)
            elif not isinstance(metric, SummaryMetricFamily):
                metric.add_metric(own, value)
        yield metric
    processes = GaugeMetricFamily(
        "gotraced_runtime_processes",
        "Processes by what became of reading the figures of their runtimes",
        labels=["target", "outcome"],
    )
    for (target, outcome), count in found.outcomes.items():
        processes.add_metric([target, outcome.value], count)
    yield processes


_KINDS = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.SUMMARY: SummaryMetricFamily,
}


def _of_probes(statuses: Iterable[ProbeStatus]) -> Iterator[Family]:
    probe = ["probe", "target"]
    attached = GaugeMetricFamily(
        "gotraced_probe_attached", "Programs that a probe is attached to", labels=probe
    )
    hits = CounterMetricFamily("gotraced_probe_hits", "Hits of probes", labels=probe)
    cost = CounterMetricFamily(
        "gotraced_probe_cost_seconds",
        "CPU time that probes have taken of the programs, as an estimate",
        labels=probe,
    )
    over = CounterMetricFamily(
        "gotraced_probe_over_budget", "Times a probe had to cost less", labels=probe
    )
    failures = CounterMetricFamily(
        "gotraced_probe_failures", "Times a probe could not be attached", labels=probe
    )
    lost = CounterMetricFamily(
        "gotraced_probe_lost",
        "Calls that are missing, and why, of all metrics that share a program",
        labels=[*probe, "reason"],
    )
    unmeasured = CounterMetricFamily(
        "gotraced_probe_unmeasured",
        "Calls that were counted and not measured, for the cost of measuring",
        labels=probe,
    )
    states = CounterMetricFamily(
        "gotraced_probe_seconds",
        "How long probes were on, counted calls alone, or were off for a while",
        labels=[*probe, "state"],
    )
    spans = CounterMetricFamily(
        "gotraced_spans",
        "Spans by the edge that puts them below others, or why they are below none",
        labels=["target", "edge"],
    )
    for status in statuses:
        labels, figures = [status.job, status.target], status.figures
        attached.add_metric(labels, status.attached)
        hits.add_metric(labels, figures.spent.hits)
        cost.add_metric(labels, figures.spent.ns / 1e9)
        over.add_metric(labels, status.over_budget)
        failures.add_metric(labels, status.failures)
        unmeasured.add_metric(labels, figures.unmeasured)
        for state, seconds in status.seconds.items():
            if state is not ProbeState.NO_EDGES or status.sends_spans:
                states.add_metric([*labels, state.value], seconds)
        if status.sends_spans:
            for edge in EDGES:
                spans.add_metric([status.target, edge], figures.sent[edge])
        for reason, calls in sorted(figures.lost.items()):
            lost.add_metric([*labels, reason], calls)
    yield from (attached, hits, cost, over, failures, lost, unmeasured, states, spans)


def _of_metrics(metrics: Sequence[Metric]) -> Iterator[Family]:
    others = CounterMetricFamily(
        "gotraced_metric_others", "Calls in series of the others", labels=["metric"]
    )
    unread = CounterMetricFamily(
        "gotraced_metric_unread", "Calls whose value could not be read", labels=["metric"]
    )
    ended = CounterMetricFamily(
        "gotraced_metric_ended_series",
        "Label sets that have ended, since no call had them for long",
        labels=["metric"],
    )
    for metric in metrics:
        ended.add_metric([metric.spec.name], metric.ended)
        others.add_metric([metric.spec.name], metric.others)
        unread.add_metric([metric.spec.name], metric.unread)
    yield from (others, unread, ended)


def _of_flights(tallies: list[FlightTally]) -> Iterator[Family]:
    if not tallies:
        return
    whose = ["flight", "target"]
    written = CounterMetricFamily("gotraced_flights_written", "Files of flights", labels=whose)
    passed_over = CounterMetricFamily(
        "gotraced_flights_passed_over",
        "Conditions of flights that have held without a file, and why",
        labels=[*whose, "reason"],
    )
    problems = CounterMetricFamily(
        "gotraced_flight_problems",
        "Files of flights that could not be written, and why",
        labels=[*whose, "reason"],
    )
    memory = GaugeMetricFamily(
        "gotraced_flight_memory_bytes", "Memory of the kernel that flights keep", labels=whose
    )
    for tally in tallies:
        labels = [tally.flight, tally.target]
        written.add_metric(labels, tally.written)
        memory.add_metric(labels, tally.memory)
        for why, count in tally.passed_over.items():
            passed_over.add_metric([*labels, why.value], count)
        for problem, count in tally.problems.items():
            problems.add_metric([*labels, problem.value], count)
    yield from (written, passed_over, problems, memory)


def _of_otlp(counts: OtlpCounts) -> Iterator[Family]:
    from gotrace.fleet.transport import SendFailure  # loads protobuf

    sent = CounterMetricFamily(
        "gotraced_otlp_items",
        "Metrics and spans handed to OTLP, and what became of them",
        labels=["signal", "outcome"],
    )
    for (signal, outcome), count in sorted(counts.items.items()):
        sent.add_metric([signal, outcome], count)
    dropped = CounterMetricFamily(
        "gotraced_otlp_dropped", "Points and spans that are lost, and why", labels=_BY_REASON
    )
    failures = CounterMetricFamily(
        "gotraced_otlp_failures", "Requests that a collector did not take", labels=_BY_REASON
    )
    for signal in ("metrics", "spans"):
        for reason in SendFailure:  # from the start, so that the first rise is seen
            at = signal, reason.value
            dropped.add_metric(at, counts.dropped[at])
            failures.add_metric(at, counts.failures[at])
    waiting = GaugeMetricFamily("gotraced_otlp_waiting_spans", "Spans that wait in memory")
    waiting.add_metric([], counts.waiting)
    yield from (sent, dropped, failures, waiting)


_BY_REASON = ["signal", "reason"]


def family_of(metric: Metric) -> Family:
    """Return a metric as Prometheus has it."""
    spec, labels = metric.spec, list(metric.labels)
    if not metric.is_histogram:
        counter = CounterMetricFamily(spec.name, spec.help, labels=labels)
        for point, _ in metric.points(READER.get()):
            counter.add_metric(point.values, point.calls)
        return counter
    return Histograms(metric)


class Histograms(Family):
    """The histograms of a metric. Their samples are one line of each series: ``page`` adds others.

    The library makes a dictionary for each line, and escapes its labels. A series has thirty lines,
    which differ in a bound and a number.
    """

    def __init__(self, metric: Metric) -> None:
        """Take a metric's series, for the reader that asks now."""
        super().__init__(metric.spec.name, metric.spec.help, "histogram")
        self._unit = metric.unit
        self._rows: list[Bucketed] = []
        for point, found in metric.points(READER.get()):
            assert found is not None
            self._rows.append(found)
            labels = dict(zip(metric.labels, point.values, strict=True))
            self.add_sample(f"{self.name}_bucket", {**labels, "le": _ALWAYS}, 0)

    def whole(self, printed: str) -> str:
        """Return all lines, where the library has printed the samples."""
        lines = printed.removesuffix("\n").split("\n")
        first = len(lines) - len(self._rows)
        parts = [f"{line}\n" for line in lines[:first]]
        template = ""
        for line, row in zip(lines[first:], self._rows, strict=True):
            name, labels = line.split("_bucket{", 1)
            if not template:
                bounds = [*(repr(bound / self._unit) for bound in row.bounds), _ALWAYS]
                template = "".join(f'%s{bound}"%s%s\n' for bound in bounds)
            before, after = _BOUND.split(labels.rpartition(" ")[0], 1)
            start, end = f'{name}_bucket{{{before}le="', f"{after} "
            counts = map(_number, (*accumulate(row.counts[:-1]), row.count))
            # One operation for all lines: one for each takes three times as long.
            parts.append(template % (*chain(*zip(repeat(start), repeat(end), counts)),))
            # A comma goes with the label.
            rest = f"{before}{after[1:]}" if after[0] == "," else f"{before[:-1]}{after}"
            parts.append(f"{name}_count{{{rest} {_number(row.count)}\n")
            parts.append(f"{name}_sum{{{rest} {_number(row.sum / self._unit)}\n")
        return "".join(parts)


_BOUND = re.compile(r'(?<![^,])le="\+Inf"')  # what is within a label has its quotes escaped
_number = lru_cache(1 << 16)(floatToGoString)


@dataclass(frozen=True, slots=True)
class _Only(Collector):
    families: Sequence[Family]

    def collect(self) -> Sequence[Family]:
        return self.families


def page(registry: Collector, accept: str) -> tuple[bytes, str]:
    """Return the text that the library's encoder makes of a registry, in less time, and its type.

    ``accept`` is what the client takes.
    """
    encode, content_type = choose_encoder(accept)
    end = encode(_Only([]))
    parts = []
    for family in registry.collect():
        printed = encode(_Only([family])).removesuffix(end)
        if isinstance(family, Histograms):
            printed = family.whole(printed.decode()).encode()
        parts.append(printed)
    return b"".join((*parts, end)), content_type


def registry_of(collector: EngineCollector) -> CollectorRegistry:
    """Return a registry with an engine's metrics and those of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
