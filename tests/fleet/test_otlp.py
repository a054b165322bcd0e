# SPDX-License-Identifier: Apache-2.0
"""What a collector receives by OTLP, over HTTP and gRPC, and what becomes of it without one."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gotrace.errors import NoMatchError
from gotrace.fleet import spans
from gotrace.fleet.config import MetricSpec, MetricType, OtlpSpec, Protocol
from gotrace.fleet.otlp import FinishedCall, Otlp
from gotrace.fleet.series import Increment, Metric
from gotrace.fleet.spans import Rate
from gotrace.histogram import Histogram
from gotrace.probes.spec import parse_key
from tests.fleet.test_gotraced import Daemon, calls_of
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.tools.harness import Fixture

_PATIENCE = 60.0  # seconds


class Received:
    """What has come, and a word for each time that something does."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.metrics: dict[tuple[str, str], Any] = {}
        #: Of metrics, the latest of each service.
        self._resources: dict[str, dict[str, Any]] = {}
        self.more = threading.Condition()

    def add_metrics(self, request: ExportMetricsServiceRequest) -> None:
        with self.more:
            for resource in request.resource_metrics:
                of_resource = attributes(resource.resource.attributes)
                service = of_resource["service.name"]
                self._resources[service] = of_resource
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics[service, metric.name] = metric
            self.more.notify_all()

    def add_spans(self, request: ExportTraceServiceRequest) -> None:
        with self.more:
            for resource in request.resource_spans:
                of_resource = attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [(of_resource, span) for span in scope.spans]
            self.more.notify_all()

    @property
    def resources(self) -> list[dict[str, Any]]:
        """Return the attributes of what metrics are of."""
        with self.more:
            return list(self._resources.values())

    def wait_for_spans(self, count: int) -> None:
        with self.more:
            assert self.more.wait_for(lambda: len(self.spans) >= count, _PATIENCE), len(self.spans)


def attributes(rows: Any) -> dict[str, Any]:
    return {row.key: getattr(row.value, row.value.WhichOneof("value")) for row in rows}


@contextmanager
def over_http(received: Received, port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/metrics":
                received.add_metrics(ExportMetricsServiceRequest.FromString(body))
            else:
                assert self.path == "/v1/traces"
                received.add_spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()


@contextmanager
def over_grpc(received: Received, port: int = 0) -> Iterator[str]:
    def metrics(request: ExportMetricsServiceRequest, _: Any) -> ExportMetricsServiceResponse:
        received.add_metrics(request)
        return ExportMetricsServiceResponse()

    def spans(request: ExportTraceServiceRequest, _: Any) -> ExportTraceServiceResponse:
        received.add_spans(request)
        return ExportTraceServiceResponse()

    serving: Any = grpc.server(ThreadPoolExecutor(2))
    base = "opentelemetry.proto.collector"
    for name, answer, request, response in (
        ("metrics", metrics, ExportMetricsServiceRequest, ExportMetricsServiceResponse),
        ("trace", spans, ExportTraceServiceRequest, ExportTraceServiceResponse),
    ):
        handler: Any = grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
        service = f"{base}.{name}.v1.{name.capitalize()}Service"
        generic: Any = grpc.method_handlers_generic_handler(service, {"Export": handler})
        serving.add_generic_rpc_handlers((generic,))
    port = serving.add_insecure_port(f"127.0.0.1:{port}")
    serving.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serving.stop(None)


COLLECTORS = {"http": over_http, "grpc": over_grpc}


def check_numbers(
    received: Received, endpoint: str, protocol: str, server: Path, tmp_path: Path
) -> None:
    """Hold what a collector gets of a program's calls to what the program has counted."""
    config = tmp_path / "c.yaml"
    config.write_text(f"""\
listen: 127.0.0.1:0
targets: [{{name: keys, exe: {server}}}]
metrics:
  - {{name: errors, type: counter, probe: main.handle, labels: {{error: $ret2}}}}
  - {{name: handle_seconds, type: histogram, probe: main.handle}}
spans:
  - {{name: handling, probe: main.handle (shard > 0), attributes: {{key: key, shard: shard,
     deep: deep}}, rate: 100000/s}}
otlp: {{endpoint: '{endpoint}', protocol: {protocol}, interval: 1h, resource: {{zone: a}}}}
budget: 100%
errors: text
""")
    with Daemon(config, probes=3) as daemon:
        with Fixture([server]) as fixture:
            truth = fixture.work("2 100 10")
            fixture.finish()
        wanted = truth["Calls"] - truth["Shards"]["0"]
        received.wait_for_spans(wanted)
        assert daemon.samples()["gotraced_otlp_items_total"] == {
            (("outcome", "sent"), ("signal", "spans")): wanted
        }
        daemon.end()  # which sends the metrics, though an hour has not passed
    assert len(received.spans) == wanted
    of_resource, span = received.spans[0]
    assert {**of_resource, "service.name": "keys", "zone": "a"} == of_resource
    found = [attributes(span.attributes) for _, span in received.spans]
    shards = Counter(str(row["shard"]) for row in found)
    assert shards == {shard: n for shard, n in truth["Shards"].items() if shard != "0"}
    assert Counter(row["deep"] for row in found)[True] <= truth["First"]
    one = found[0]
    assert one["code.function.name"] == "main.handle"
    assert one["code.file.path"].endswith("main.go") and one["code.line.number"] > 0
    assert one["process.pid"] == fixture.ready
    assert one["key"].startswith("user:")
    errors = Counter(span.status.message for _, span in received.spans if span.status.code == 2)
    assert errors == {text: n for text, n in truth["Errors"].items() if text != "nil"}
    kinds = {row.get("error.type") for row in found if row["shard"] % 5 == 3}
    assert kinds == {"*io/fs.PathError"}
    now = time.time_ns()
    for _, span in received.spans:
        assert span.name == "handling"
        assert now - 600 * 10**9 < span.start_time_unix_nano <= span.end_time_unix_nano < now
        assert len(span.trace_id) == 16 and len(span.span_id) == 8
    assert len({span.span_id for _, span in received.spans}) == wanted

    wanted_names = {("keys", "errors"), ("keys", "handle_seconds")}
    with received.more:  # a collector passes them on in its own time
        assert received.more.wait_for(lambda: wanted_names <= received.metrics.keys(), _PATIENCE)
    counter = received.metrics["keys", "errors"].sum
    assert counter.is_monotonic and counter.aggregation_temporality == 2
    points = {attributes(p.attributes)["error"]: p.as_int for p in counter.data_points}
    assert points == truth["Errors"]
    (point,) = received.metrics["keys", "handle_seconds"].histogram.data_points
    assert point.count == sum(point.bucket_counts) == truth["Calls"]
    assert 0 < point.min <= point.sum / point.count <= point.max


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("protocol", COLLECTORS)
def test_a_collector_has_each_call_and_the_same_numbers(
    protocol: str, server: Path, tmp_path: Path
) -> None:
    received = Received()
    with COLLECTORS[protocol](received) as endpoint:
        check_numbers(received, endpoint, protocol, server, tmp_path)


@pytest.mark.live
@pytest.mark.apart
def test_spans_come_at_their_rate_and_the_rest_is_counted(server: Path, tmp_path: Path) -> None:
    received = Received()
    with over_http(received) as endpoint:
        config = tmp_path / "c.yaml"
        config.write_text(
            f"listen: 127.0.0.1:0\ntargets: [{{name: keys, exe: {server}}}]\n"
            "spans:\n  - {probe: main.handle, rate: 5/h}\n"
            f"otlp: {{endpoint: '{endpoint}'}}\nbudget: 100%\n"
        )
        with Daemon(config, probes=1) as daemon:
            calls = calls_of(server, "1 200 10")["Calls"]
            received.wait_for_spans(1)
            daemon.end()
    assert len(received.spans) == 1
    assert calls == 200


def spec(endpoint: str, **more: Any) -> OtlpSpec:
    return OtlpSpec(endpoint, Protocol.HTTP, interval=3600, **more)


def call(number: int) -> FinishedCall:
    return FinishedCall("t", "f", number, number + 1, {"n": number})


def test_without_a_collector_what_is_dropped_is_counted() -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        otlp = Otlp(spec(endpoint, timeout=0.2, queue=3), list)
        with otlp._waiting:  # nothing is taken out meanwhile
            for number in range(5):
                otlp.put(call(number))
            assert otlp.counts() == {("spans", "dropped"): 2}
        otlp.left_out(7)
        otlp._closing.set()
        for thread in otlp._threads:
            thread.join(_PATIENCE)
        assert otlp.counts() == {("spans", "dropped"): 5, ("spans", "rate_limited"): 7}
        otlp.close()


def test_a_call_that_cannot_be_a_span_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    otlp = Otlp(spec("http://127.0.0.1:1"), list)
    odd: Any = None
    assert otlp._encoded([call(1), odd, call(2)])[1] == 2
    assert otlp.dropped() == {("spans", "invalid"): 1}
    assert "a span cannot be sent: AttributeError" in caplog.text
    otlp.close()


def test_a_kind_of_span_that_cannot_be_made_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(spec: Any, *_: object) -> None:
        if spec.probe == "main.none":
            raise NoMatchError("no function matches")

    monkeypatch.setattr(spans, "plan_span", plan)
    nothing: Any = None
    good, bad = (cast(Any, SimpleNamespace(name="", probe=one)) for one in ("main.f", "main.none"))
    problem = "span main.none is not made: no function matches"
    assert spans._usable([good, bad], nothing, nothing) == ([good], [problem])


def test_histograms_are_sent_with_their_bounds() -> None:
    received = Received()
    key = parse_key("key")
    metric = Metric(MetricSpec("m", MetricType.HISTOGRAM, "f", ("t",), "", ("key",), key))
    times = Histogram(3, 3_000_000, 900_000, 1_100_000, Counter({260: 3}))
    metric.add("t", [Increment(("a",), 3, times)])
    with over_http(received) as endpoint:
        Otlp(spec(endpoint), lambda: [metric]).close()
    (point,) = received.metrics["t", "m"].histogram.data_points
    assert attributes(point.attributes) == {"key": "a"}
    assert (point.count, point.sum, point.min) == (3, 0.003, 0.0009)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert list(point.explicit_bounds) == [bound / 1e9 for bound in metric.spec.bounds]
    assert sum(point.bucket_counts) == 3


def test_a_rate_allows_a_seconds_worth_at_once_and_no_more() -> None:
    rate = Rate(10)
    assert sum(rate.allows(100.0) for _ in range(50)) == 10
    assert sum(rate.allows(100.35) for _ in range(50)) == 3
    assert sum(rate.allows(500.0) for _ in range(50)) == 10
    slow = Rate(0.1)
    assert [slow.allows(at) for at in (0, 5, 9, 10.5, 11)] == [True, False, False, True, False]
