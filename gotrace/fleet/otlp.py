# SPDX-License-Identifier: Apache-2.0
"""Send metrics and spans by OTLP, as the OpenTelemetry SDK encodes them.

Spans wait while the collector takes nothing, in memory or on disk, and are sent then. Those for
which there is no room are counted.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gotrace import __version__
from gotrace.fleet.config import OtlpSpec, Protocol, TargetSpec
from gotrace.fleet.naming import Attribute, exported
from gotrace.fleet.privacy import without_users
from gotrace.fleet.series import Bucketed, Metric, SeriesPoint
from gotrace.fleet.spool import Spool
from gotrace.fleet.telemetry.conventions import OTEL_FAMILIES
from gotrace.fleet.telemetry.runtime import RuntimeRow, RuntimeRows
from gotrace.fleet.telemetry.waits import WaitPoint, families
from gotrace.fleet.threads import LastingThread, apart
from gotrace.fleet.transport import BY_REQUEST, TEMPORARY, Outcome, SendFailure, sender, spans_in
from gotrace.records import dataclass, field
from gotrace.target.containers import Container, Containers
from gotrace.text import printable

log = logging.getLogger("gotraced")

_BATCH = 512  # spans
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 5.0  # seconds between two tries
#: A request that fails so often, or for so long, goes aside: others may be taken meanwhile.
_MAX_TRIES, _MAX_BLOCKED = 4, 30.0
_MAX_ASIDE = 16  # requests, where there is a disk for more
#: It is dropped when it was refused so often while others were taken.
_MAX_REFUSED = 20
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
    """The fate of points and spans, by signal and outcome, and by signal and reason."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, signal: str, outcome: str, count: int) -> None:
        with self.lock:
            self.counts[signal, outcome] += count


@dataclass
class _Aside:
    """A request that was refused again and again: it may be at fault, or the collector.

    ``calls`` are those of a request that was never on disk. ``refused`` is how often it was refused
    while others were taken, and ``reason`` why at last.
    """

    data: bytes
    count: int
    calls: Sequence[FinishedCall]
    refused: int = 0
    reason: SendFailure = SendFailure.FULL


class Otlp:
    """Exporters in threads of their own; ``close`` sends what is there once more."""

    def __init__(
        self,
        spec: OtlpSpec,
        collect: Callable[[], list[Metric]],
        targets: Sequence[TargetSpec] = (),
        containers: Containers | None = None,
        waits: Callable[[str], list[WaitPoint]] = lambda reader: [],
        runtimes: Callable[[], RuntimeRows] = RuntimeRows,
    ) -> None:
        """``collect`` reads all metrics, and ``waits`` returns what was read with them.

        ``runtimes`` reads the figures of runtimes.
        """
        # The SDK's words come with each try: one line when it stops working, and when it works
        # again, is enough.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._spec = spec
        self._collect = collect
        self._waits = waits
        self._runtimes = runtimes
        self._tally = _Tally()
        self._queue: deque[FinishedCall] = deque()
        self._waiting = threading.Condition()
        self._closing = threading.Event()
        self._pods = {one.name: one.kubernetes for one in targets if one.kubernetes is not None}
        self._containers = containers or Containers()
        self._resources: dict[tuple[str, Container | None], Resource] = {}
        self._failing: dict[str, SendFailure | None] = {}
        self._retry_at = 0.0
        self._aside: deque[_Aside] = deque()
        self._waiting_aside = 0  # spans
        #: How often the oldest request on disk has failed.
        self._tries = 0
        self._heir: Otlp | None = None
        self._sender = sender(spec)
        self._spool = None if spec.disk is None else Spool(spec.disk, spec.disk_bytes)
        self._threads = [
            LastingThread("otlp-metrics", self._send_metrics, self._closing.wait),
            LastingThread("otlp-spans", self._run_spans, self._closing.wait),
        ]
        for thread in self._threads:
            thread.start()

    def put(self, call: FinishedCall) -> None:
        """Send a call, or drop it if the queue is full. Any thread may do that."""
        with self._waiting:
            if self.waiting >= self._spec.queue:
                self._drop("spans", 1, self._failing.get("spans") or SendFailure.FULL)
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

    def dropped(self) -> dict[tuple[str, str], int]:
        """Return how many points and spans were dropped, by signal and reason."""
        with self._tally.lock:
            return dict(self._tally.dropped)

    def failures(self) -> dict[tuple[str, str], int]:
        """Return how often a request failed, by signal and reason."""
        with self._tally.lock:
            return dict(self._tally.failures)

    @property
    def waiting(self) -> int:
        """Return how many spans wait in memory."""
        return len(self._queue) + self._waiting_aside

    def _send_metrics(self, thread: LastingThread) -> None:
        while True:
            thread.back_in(self._spec.interval + self._spec.timeout)
            is_last = self._closing.wait(self._spec.interval)
            with apart(thread.name, "metrics were not sent"):  # the next ones have all of it
                metrics = self._collect()
                waits, runtimes = self._waits(_READER), self._runtimes()
                now = time.time_ns()
                data = metrics_data(metrics, self._resource, now, waits, runtimes.rows)
                points = sum(
                    len(metric.data.data_points)
                    for resource in data.resource_metrics
                    for scope in resource.scope_metrics
                    for metric in scope.metrics
                )
                if points:
                    encoded = encode_metrics(data).SerializeToString()
                    outcome = self._sender.send("metrics", encoded)
                    self._note("metrics", outcome)
                    self._done("metrics", points, outcome)
            if is_last:
                return

    def _run_spans(self, thread: LastingThread) -> None:
        self._send_spans(thread)
        self._leave_aside()
        if self._spool is not None:
            self._spool.close()

    def _send_spans(self, thread: LastingThread) -> None:
        while True:
            thread.back_in(_LINGER + self._spec.timeout)
            with self._waiting:
                if len(self._queue) < _BATCH and not self._closing.is_set():
                    self._waiting.wait(_LINGER)
                size = min(len(self._queue), _BATCH)
                calls = [self._queue.popleft() for _ in range(size)]
            if calls:
                data, count = self._encoded(calls)
                try:
                    is_done = not count or self._deliver(_Aside(data, count, calls), thread)
                except Exception:  # a bug: to try them again would be to fail again
                    self._drop("spans", count, SendFailure.OTHER)
                    raise
                if not is_done:
                    self._hand_on()
                    return
            elif self._closing.is_set():
                return
            self._send_kept(thread)
            if not calls and self._aside and time.monotonic() >= self._retry_at:
                self._try_aside(thread, is_other_taken=False)

    def _encoded(self, calls: Sequence[FinishedCall]) -> tuple[bytes, int]:
        """Return a request of calls, and how many are in it: all that can be encoded."""
        try:
            return encode_spans([self._span(call) for call in calls]).SerializeToString(), len(
                calls
            )
        except Exception as error:
            if len(calls) == 1:
                log.error("a span cannot be sent: %s", printable(f"{error!r}"[:200]))
                self._drop("spans", 1, SendFailure.INVALID)
                return b"", 0
        parts = [self._encoded([call]) for call in calls]
        # Requests one after the other are one: all that they have is in repeated fields.
        return b"".join(data for data, _ in parts), sum(count for _, count in parts)

    def _deliver(self, one: _Aside, thread: LastingThread) -> bool:
        """Send a request again and again until it is taken, refused for good, or this ends.

        Return whether it is done with: if not, this has ended, and its calls are in the queue. The
        request waits on disk meanwhile. If the disk has no room, calls wait in the queue. A request
        that fails again and again goes aside, so that it keeps no other one from being sent.
        """
        pause, tries, begun = _FIRST_PAUSE, 0, time.monotonic()
        while True:
            if (left := self._retry_at - time.monotonic()) > 0:
                if self._keep(one.data, one.count):
                    return True
                thread.back_in(left + self._spec.timeout)
                self._closing.wait(left)
            thread.back_in(self._spec.timeout)
            outcome = self._sender.send("spans", one.data)
            self._note("spans", outcome)
            if outcome.reason not in TEMPORARY:
                self._done("spans", one.count, outcome)
                if outcome.reason is None:
                    self._try_aside(thread)
                return True
            if self._closing.is_set():
                if self._keep(one.data, one.count):
                    return True
                with self._waiting:
                    self._queue.extendleft(reversed(one.calls))
                return False
            wait = max(outcome.wait, pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, _MAX_PAUSE)
            self._retry_at = time.monotonic() + wait
            tries += 1
            is_long = tries >= _MAX_TRIES or time.monotonic() - begun >= _MAX_BLOCKED
            if is_long and outcome.reason in BY_REQUEST:
                self._put_aside(one, outcome.reason)
                return True

    def _put_aside(self, one: _Aside, reason: SendFailure) -> None:
        """Send others first; if many are aside, the first of them is kept on disk instead."""
        one.reason = reason
        self._aside.append(one)
        self._waiting_aside += one.count
        first = self._aside[0]
        if len(self._aside) > _MAX_ASIDE and self._keep(first.data, first.count, first.refused):
            self._take_aside()

    def _take_aside(self) -> _Aside:
        one = self._aside.popleft()
        self._waiting_aside -= one.count
        return one

    def _try_aside(self, thread: LastingThread, is_other_taken: bool = True) -> None:
        """Send the requests that went aside once more, as long as they are taken.

        It may be at fault itself if another request was taken just before.
        """
        for _ in range(len(self._aside)):
            if self._closing.is_set():
                return
            thread.back_in(self._spec.timeout)
            again = self._sender.send("spans", self._aside[0].data)
            one = self._take_aside()
            if again.reason not in TEMPORARY:
                self._done("spans", one.count, again)
                continue
            self._count_failure("spans", again.reason)
            if is_other_taken:
                one.refused += 1
            else:
                self._retry_at = time.monotonic() + max(again.wait, _MAX_PAUSE)
            if one.refused < _MAX_REFUSED:
                self._put_aside(one, again.reason)
            else:
                self._drop("spans", one.count, again.reason)
                log.warning(
                    "%s has refused %d spans %d times and taken others (%s): they are dropped",
                    *(without_users(self._spec.endpoint), one.count, one.refused),
                    again.reason.value,
                )
            return

    def _leave_aside(self) -> None:
        """Keep the requests that went aside: on disk, or for whoever has the queue."""
        while self._aside:
            one = self._take_aside()
            if self._keep(one.data, one.count, one.refused):
                continue
            if self._heir is None or not one.calls:
                self._drop("spans", one.count, one.reason)
                continue
            for call in one.calls:
                self._heir.put(call)

    def _keep(self, data: bytes, count: int, refused: int = 0) -> bool:
        """Keep a request on disk; return whether it is there. Say once why not."""
        if self._spool is None:
            return False
        before = self._spool.problem
        is_kept = self._spool.add(data, count, refused)
        if not is_kept and before != self._spool.problem:
            log.warning(
                "disk: %s: %s: spans wait in memory",
                *(printable(str(self._spec.disk)), self._spool.problem),
            )
        elif is_kept and before is not None:
            log.info("disk: %s has room again", printable(str(self._spec.disk)))
        return is_kept

    def _send_kept(self, thread: LastingThread) -> None:
        """Send requests from the disk, as long as they are taken."""
        while self._spool and not self._closing.is_set() and time.monotonic() >= self._retry_at:
            found = self._spool.oldest()
            if found is None:
                return
            data, count, refused = found
            thread.back_in(self._spec.timeout)
            outcome = self._send_whole(data, count)
            self._note("spans", outcome)
            if outcome.reason in TEMPORARY:
                self._retry_at = time.monotonic() + max(outcome.wait, _MAX_PAUSE)
                self._tries += 1
                if self._tries < _MAX_TRIES or outcome.reason not in BY_REQUEST:
                    return
                self._spool.drop_oldest()  # the disk has room for another one now
                self._put_aside(_Aside(data, count, (), refused), outcome.reason)
            else:
                self._done("spans", count, outcome)
                self._spool.drop_oldest()
                if outcome.reason is None:
                    self._try_aside(thread)
            self._tries = 0

    def _send_whole(self, data: bytes, count: int) -> Outcome:
        """Send a request from the disk if it is what was written there.

        A file that was written as the power failed can be shorter, or all zeros.
        """
        if spans_in(data) != count:
            return Outcome(SendFailure.DAMAGED, detail=f"a file of {len(data)} bytes")
        return self._sender.send("spans", data)

    def _done(self, signal: str, count: int, outcome: Outcome) -> None:
        """Count points or spans by their fate."""
        if outcome.reason is not None:
            self._drop(signal, count, outcome.reason)
            return
        rejected = min(outcome.rejected, count)
        if rejected:
            self._drop(signal, rejected, SendFailure.REJECTED)
        self._tally.add(signal, "sent", count - rejected)

    def _drop(self, signal: str, count: int, reason: SendFailure) -> None:
        self._tally.add(signal, "dropped", count)
        with self._tally.lock:
            self._tally.dropped[signal, reason.value] += count

    def _count_failure(self, signal: str, reason: SendFailure) -> None:
        with self._tally.lock:
            self._tally.failures[signal, reason.value] += 1

    def _note(self, signal: str, outcome: Outcome) -> None:
        """Say once what fails, and when it works again."""
        reason = outcome.reason or (SendFailure.REJECTED if outcome.rejected else None)
        if reason is not None:
            self._count_failure(signal, reason)
        before, self._failing[signal] = self._failing.get(signal), reason
        if before is reason:
            return
        place = without_users(self._spec.endpoint)
        if reason is None:
            log.info("%s takes %s again", place, signal)
            return
        kept = reason in TEMPORARY and signal == "spans"
        what = "they wait until it does" if kept else "they are dropped"
        if outcome.rejected:
            what = "the rest is sent"
        detail = f" ({printable(without_users(outcome.detail))})" if outcome.detail else ""
        log.warning(
            "%s does not take %s: %s%s: %s",
            *(place, signal if not outcome.rejected else f"all {signal}", reason.value),
            *(detail, what),
        )

    def _resource(self, target: str, container: Container | None = None) -> Resource:
        """Return the resource of a target's metrics, or of spans of a process in a container.

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
            self._resources[target, container] = Resource(_printable(attributes))
        return self._resources[target, container]

    def _span(self, call: FinishedCall) -> ReadableSpan:
        context = _context(call.trace, call.span)
        status = Status(StatusCode.UNSET)
        attributes = dict(call.attributes)
        if call.error is not None:
            kind, message = call.error
            status = Status(StatusCode.ERROR, printable(message) or None)
            if kind:
                attributes["error.type"] = kind
        return ReadableSpan(
            printable(call.name),
            context,
            _context(call.trace, call.parent) if call.parent else None,
            resource=self._resource(call.target, self._container(call)),
            attributes=_printable(attributes),
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=call.start,
            end_time=call.end,
            instrumentation_scope=_SCOPE,
        )

    def _container(self, call: FinishedCall) -> Container | None:
        pid = call.attributes.get("process.pid")
        with suppress(OSError):  # a lack of descriptors: the span is sent without it
            return self._containers.of(pid) if isinstance(pid, int) else None
        return None

    def close(self, heir: Otlp | None = None) -> None:
        """Send the last of everything, for at most as long as one try takes.

        Another one has what is left then, if it is to go on.
        """
        self._heir = heir
        self._closing.set()
        with self._waiting:
            self._waiting.notify()
        until = time.monotonic() + min(self._spec.timeout, _MAX_CLOSING)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._sender.close()
        self._hand_on()

    def _hand_on(self) -> None:
        with self._waiting:
            rest = list(self._queue)
            self._queue.clear()
        for call in rest:
            if self._heir is not None:
                self._heir.put(call)
            else:
                self._drop("spans", 1, self._failing.get("spans") or SendFailure.TIMEOUT)


def _printable(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {printable(key): exported(value) for key, value in attributes.items()}


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, False, TraceFlags(TraceFlags.SAMPLED))


_MAX_CLOSING = 2.0  # seconds


def load_exporter(protocol: Protocol) -> None:
    """Import the library of a protocol: only the one that is asked for, as gRPC's takes 10 MB.

    Raises ModuleNotFoundError.
    """
    if protocol is Protocol.GRPC:
        # Its threads are not to be looked after in processes that are forked to hold probes.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    import_module("requests" if protocol is Protocol.HTTP else "grpc")
    import_module(f"opentelemetry.exporter.otlp.proto.{protocol.value}")


def metrics_data(
    metrics: Sequence[Metric],
    resource: Callable[[str], Resource],
    now: int,
    waits: Sequence[WaitPoint] = (),
    runtimes: Sequence[RuntimeRow] = (),
) -> sdk.MetricsData:
    """Return metrics as OTLP has them: cumulative, each target a resource of its own."""
    by_target: dict[str, list[sdk.Metric]] = {}
    for metric in metrics:
        rows: dict[str, list[tuple[SeriesPoint, Bucketed | None]]] = {}
        for point, bucketed in metric.points(_READER):
            rows.setdefault(point.values[0], []).append((point, bucketed))
        for target, found in rows.items():
            by_target.setdefault(target, []).append(_metric(metric, found, now))
    for target in dict.fromkeys(point.target for point in waits):
        own = [point for point in waits if point.target == target]
        by_target.setdefault(target, []).extend(_waits(own, now))
    for target in dict.fromkeys(row.target for row in runtimes):
        theirs = [row for row in runtimes if row.target == target]
        by_target.setdefault(target, []).extend(_runtimes(theirs, now))
    return sdk.MetricsData(
        [
            sdk.ResourceMetrics(resource(target), [sdk.ScopeMetrics(_SCOPE, found, "")], "")
            for target, found in by_target.items()
        ]
    )


def _waits(points: Sequence[WaitPoint], now: int) -> Iterator[sdk.Metric]:
    """Yield the metrics of a target's waits."""
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


def _runtimes(rows: Sequence[RuntimeRow], now: int) -> Iterator[sdk.Metric]:
    """Yield the metrics of the runtimes of a target's processes, by the names of conventions."""
    for family in OTEL_FAMILIES:
        numbers = [
            sdk.NumberDataPoint(
                {"process.pid": row.pid, **attributes}, int(row.created * 1e9), now, value
            )
            for row in rows
            for attributes, read in family.values
            if (value := read(row.figures)) is not None
        ]
        if numbers:
            cumulative = sdk.AggregationTemporality.CUMULATIVE
            data = sdk.Sum(numbers, cumulative, family.is_rising)
            yield sdk.Metric(family.name, family.help, family.unit, data)


def _metric(
    metric: Metric, rows: Sequence[tuple[SeriesPoint, Bucketed | None]], now: int
) -> sdk.Metric:
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
