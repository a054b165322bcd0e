# SPDX-License-Identifier: Apache-2.0
"""Send metrics and spans by OTLP, with the OpenTelemetry SDK's exporters.

What the collector does not take costs nothing but memory for the queue, and is counted.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gotrace import __version__
from gotrace.fleet.config import OtlpSpec, Protocol, TargetSpec
from gotrace.fleet.naming import Attribute, exported
from gotrace.fleet.series import Bucketed, Metric, Point
from gotrace.fleet.telemetry.waits import WaitPoint, families
from gotrace.target.containers import Container, Containers
from gotrace.text import encodable

__all__ = ["FinishedCall", "Otlp", "load_exporter", "metrics_data"]

log = logging.getLogger("gotraced")

_BATCH = 512  # spans
_MAX_RESOURCES = 1024
_LINGER = 1.0  # seconds that a span waits for others
_READER = "otlp"  # what series are read as
_SCOPE = InstrumentationScope("gotraced", __version__)


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call to be sent as a span: times in ns since 1970; ``error`` is its type and message.

    ``trace`` and ``span`` are its numbers, ``parent`` is that of the span that it is below, or 0.
    """

    target: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Attribute]
    error: tuple[str, str] | None = None
    trace: int = field(default_factory=lambda: random.getrandbits(128) or 1)
    span: int = field(default_factory=lambda: random.getrandbits(64) or 1)
    parent: int = 0


@dataclass
class _Tally:
    """What became of points and spans, by signal and outcome."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, signal: str, outcome: str, count: int) -> None:
        with self.lock:
            self.counts[signal, outcome] += count


class Otlp:
    """Exporters in threads of their own; ``close`` sends what is there once more."""

    def __init__(
        self,
        spec: OtlpSpec,
        collect: Callable[[], list[Metric]],
        targets: Sequence[TargetSpec] = (),
        containers: Containers | None = None,
        waits: Callable[[str], list[WaitPoint]] = lambda reader: [],
    ) -> None:
        """``collect`` reads all metrics, and ``waits`` returns what was read with them."""
        # The SDK's words come with each try: one line when it stops working, and when it works
        # again, is enough.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._spec = spec
        self._collect = collect
        self._waits = waits
        self._tally = _Tally()
        self._queue: deque[FinishedCall] = deque()
        self._waiting = threading.Condition()
        self._closing = threading.Event()
        self._works: dict[str, bool] = {}
        self._pods = {one.name: one.kubernetes for one in targets if one.kubernetes is not None}
        self._containers = containers or Containers()
        self._resources: dict[tuple[str, Container | None], Resource] = {}
        self._metric_exporter, self._span_exporter = _exporters(spec)
        self._threads = [
            threading.Thread(target=self._send_metrics, name="otlp-metrics", daemon=True),
            threading.Thread(target=self._send_spans, name="otlp-spans", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def put(self, call: FinishedCall) -> None:
        """Have a call sent, or drop it where the queue is full. Any thread may do that."""
        with self._waiting:
            if len(self._queue) >= self._spec.queue:
                self._tally.add("spans", "dropped", 1)
                return
            self._queue.append(call)
            if len(self._queue) == _BATCH:
                self._waiting.notify()

    def left_out(self, calls: int) -> None:
        """Count calls that were not made spans, for their rate."""
        self._tally.add("spans", "rate_limited", calls)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many points and spans there were, by signal and outcome."""
        with self._tally.lock:
            return dict(self._tally.counts)

    def _send_metrics(self) -> None:
        while True:
            is_last = self._closing.wait(self._spec.interval)
            metrics = self._collect()
            data = metrics_data(metrics, self._resource, time.time_ns(), self._waits(_READER))
            points = sum(
                len(metric.data.data_points)
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            )
            if points:
                result = self._metric_exporter.export(data, self._spec.timeout * 1000)
                self._done("metrics", points, result is MetricExportResult.SUCCESS)
            if is_last:
                return

    def _send_spans(self) -> None:
        while True:
            with self._waiting:
                if len(self._queue) < _BATCH and not self._closing.is_set():
                    self._waiting.wait(_LINGER)
                size = min(len(self._queue), _BATCH)
                calls = [self._queue.popleft() for _ in range(size)]
            if calls:
                result = self._span_exporter.export([self._span(call) for call in calls])
                self._done("spans", len(calls), result is SpanExportResult.SUCCESS)
            elif self._closing.is_set():
                return

    def _done(self, signal: str, count: int, works: bool) -> None:
        self._tally.add(signal, "sent" if works else "dropped", count)
        if self._works.get(signal, True) != works:
            if works:
                log.warning("%s takes %s again", self._spec.endpoint, signal)
            else:
                log.warning("%s does not take %s: they are dropped", self._spec.endpoint, signal)
        self._works[signal] = works

    def _resource(self, target: str, container: Container | None = None) -> Resource:
        """Return what metrics of a target are of, or spans of a process in a container.

        Metrics are of all processes: they have what the configuration says of all of them, which
        does not change as pods come and go.
        """
        if len(self._resources) >= _MAX_RESOURCES:
            self._resources.clear()
        if (target, container) not in self._resources:
            attributes = {
                "service.name": target,
                "host.name": os.uname().nodename,
                "telemetry.sdk.name": "gotraced",
                "telemetry.sdk.language": "go",
                "telemetry.sdk.version": __version__,
            }
            if container is not None:
                attributes.update(container.attributes())
            elif target in self._pods:
                attributes.update(self._pods[target].attributes())
            attributes.update(self._spec.resource)
            self._resources[target, container] = Resource(_encodable(attributes))
        return self._resources[target, container]

    def _span(self, call: FinishedCall) -> ReadableSpan:
        context = _context(call.trace, call.span)
        status = Status(StatusCode.UNSET)
        attributes = dict(call.attributes)
        if call.error is not None:
            kind, message = call.error
            status = Status(StatusCode.ERROR, encodable(message))
            attributes["error.type"] = kind
        return ReadableSpan(
            encodable(call.name),
            context,
            _context(call.trace, call.parent) if call.parent else None,
            resource=self._resource(call.target, self._container(call)),
            attributes=_encodable(attributes),
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=call.start,
            end_time=call.end,
            instrumentation_scope=_SCOPE,
        )

    def _container(self, call: FinishedCall) -> Container | None:
        pid = call.attributes.get("process.pid")
        return self._containers.of(pid) if isinstance(pid, int) else None

    def close(self) -> None:
        """Send the last of everything, for at most as long as one try takes."""
        self._closing.set()
        with self._waiting:
            self._waiting.notify()
        until = time.monotonic() + min(self._spec.timeout, _MAX_CLOSING)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._metric_exporter.shutdown(100)
        self._span_exporter.shutdown()


def _encodable(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {encodable(key): exported(value) for key, value in attributes.items()}


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, False, TraceFlags(TraceFlags.SAMPLED))


_MAX_CLOSING = 2.0  # seconds


def load_exporter(protocol: Protocol) -> None:
    """Import what sending takes: only the one that is asked for, as gRPC's library takes 10 MB.

    Raises ModuleNotFoundError.
    """
    if protocol is Protocol.GRPC:
        # Its threads are not to be looked after in processes that are forked to hold probes.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for what in ("metric_exporter", "trace_exporter"):
        import_module(f"opentelemetry.exporter.otlp.proto.{protocol.value}.{what}")


def _exporters(spec: OtlpSpec) -> tuple[MetricExporter, SpanExporter]:
    headers = dict(spec.headers)
    load_exporter(spec.protocol)
    if spec.protocol is Protocol.HTTP:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter

        return (
            metric_exporter.OTLPMetricExporter(
                f"{spec.endpoint}/v1/metrics", headers=headers, timeout=spec.timeout
            ),
            trace_exporter.OTLPSpanExporter(
                f"{spec.endpoint}/v1/traces", headers=headers, timeout=spec.timeout
            ),
        )
    from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc_metrics
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc_traces

    insecure = spec.endpoint.startswith("http://")
    return (
        grpc_metrics.OTLPMetricExporter(
            spec.endpoint, insecure, headers=headers, timeout=spec.timeout
        ),
        grpc_traces.OTLPSpanExporter(
            spec.endpoint, insecure, headers=headers, timeout=spec.timeout
        ),
    )


def metrics_data(
    metrics: Sequence[Metric],
    resource: Callable[[str], Resource],
    now: int,
    waits: Sequence[WaitPoint] = (),
) -> sdk.MetricsData:
    """Return metrics as OTLP has them: cumulative, each target a resource of its own."""
    by_target: dict[str, list[sdk.Metric]] = {}
    for metric in metrics:
        rows: dict[str, list[tuple[Point, Bucketed | None]]] = {}
        for point, bucketed in metric.points(_READER):
            rows.setdefault(point.values[0], []).append((point, bucketed))
        for target, found in rows.items():
            by_target.setdefault(target, []).append(_metric(metric, found, now))
    for target in dict.fromkeys(point.target for point in waits):
        own = [point for point in waits if point.target == target]
        by_target.setdefault(target, []).extend(_waits(own, now))
    return sdk.MetricsData(
        [
            sdk.ResourceMetrics(resource(target), [sdk.ScopeMetrics(_SCOPE, found, "")], "")
            for target, found in by_target.items()
        ]
    )


def _waits(points: Sequence[WaitPoint], now: int) -> Iterator[sdk.Metric]:
    """Yield what a target has waited."""
    for family in families(points):
        numbers = [
            sdk.NumberDataPoint(
                {"reason": row.reason} if family.has_reason else {},
                int(row.created * 1e9),
                now,
                family.value(row),
            )
            for row in family.rows
        ]
        unit = "s" if family.is_time else "{wait}"
        data = sdk.Sum(numbers, sdk.AggregationTemporality.CUMULATIVE, True)
        yield sdk.Metric(family.name, family.help, unit, data)


def _metric(metric: Metric, rows: Sequence[tuple[Point, Bucketed | None]], now: int) -> sdk.Metric:
    spec, names = metric.spec, metric.labels[1:]
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if not metric.is_histogram:
        numbers = [
            sdk.NumberDataPoint(
                dict(zip(names, point.values[1:], strict=True)),
                int(point.created * 1e9),
                now,
                point.calls,
            )
            for point, _ in rows
        ]
        return sdk.Metric(spec.name, spec.help, "{call}", sdk.Sum(numbers, cumulative, True))
    unit = metric.unit
    histograms = []
    for point, found in rows:
        assert found is not None
        histograms.append(
            sdk.HistogramDataPoint(
                dict(zip(names, point.values[1:], strict=True)),
                int(point.created * 1e9),
                now,
                found.count,
                found.sum / unit,
                list(found.counts),
                [bound / unit for bound in found.bounds],
                found.minimum / unit,
                found.maximum / unit,
            )
        )
    name = "" if spec.of is not None else "s"
    return sdk.Metric(spec.name, spec.help, name, sdk.Histogram(histograms, cumulative))
