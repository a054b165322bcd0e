# SPDX-License-Identifier: Apache-2.0
"""Any text of targets is exported: through the real exporters, and read by real parsers."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.registry import Collector

from gotrace.errors import UsageError
from gotrace.fleet.config import Listen, MetricSpec, MetricType, OtlpSpec, Protocol, parse_config
from gotrace.fleet.exposition import family_of, page
from gotrace.fleet.naming import Attribute
from gotrace.fleet.otlp import FinishedCall, Otlp
from gotrace.fleet.series import Increment, Metric
from gotrace.fleet.web import Health, WebServer
from gotrace.histogram import Histogram
from gotrace.probes.spec import parse_key
from gotrace.target.containers import Container, Containers
from gotrace.text import printable
from tests.fleet.test_otlp import COLLECTORS, Received, attributes

#: Text from a target: any bytes, as the system's text has them, and text with any lone surrogate.
TEXTS = st.one_of(
    st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text(st.characters(), max_size=40),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zl"]), max_size=8),
)
NUMBERS = st.integers(-(1 << 65), 1 << 65)


class _Named(Containers):
    """Containers whose names are a process's number's."""

    names: dict[int, str]

    def of(self, pid: int) -> Container | None:
        name = self.names[pid]
        return Container(name, name, name, name, name)


@pytest.fixture(scope="module", autouse=True)
def no_linger() -> Iterator[None]:
    """All spans are there at once: none need wait for others to be sent with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gotrace.fleet.otlp._LINGER", 0.02)
        yield


@pytest.mark.parametrize("protocol", COLLECTORS)
@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), min_size=10, max_size=60))
@settings(deadline=None, max_examples=10)
def test_no_text_of_a_target_stops_spans(protocol: str, rows: list[tuple[str, str, int]]) -> None:
    received = Received()
    with COLLECTORS[protocol](received) as endpoint:
        containers = _Named()
        containers.names = {number: text for number, (text, _, _) in enumerate(rows)}
        spec = OtlpSpec(endpoint, Protocol(protocol), interval=3600)
        otlp = Otlp(spec, list, containers=containers)
        for number, (text, error, integer) in enumerate(rows):
            found: dict[str, Attribute] = {
                "text": text,
                "integer": integer,
                "process.pid": number,
                f"k{text}": True,
            }
            otlp.put(FinishedCall("t", text, 1, 2, found, (error, text), span=number + 1))
        received.wait_for_spans(len(rows))
        otlp.close()
    assert otlp.counts() == {("spans", "sent"): len(rows)}
    assert len(received.spans) == len(rows)
    for resource, span in received.spans:
        number = int.from_bytes(span.span_id, "big") - 1
        text, error, integer = rows[number]
        clean = printable(text)
        assert span.name == span.status.message == clean
        of_span = attributes(span.attributes)
        assert of_span["text"] == resource["k8s.pod.name"] == clean
        assert of_span.get("error.type", "") == printable(error)
        assert int(of_span["integer"]) == integer


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def describe(self) -> Iterator[Family]:
        yield from ()

    def collect(self) -> Iterator[Family]:
        yield family_of(self._metric)


class _Families(Collector):
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def describe(self) -> Iterator[Family]:
        yield from ()

    def collect(self) -> Sequence[Family]:
        return self._families


@given(st.lists(TEXTS, min_size=1, max_size=20))
@settings(deadline=None, max_examples=20)
def test_no_text_of_a_target_stops_scrapes(texts: list[str]) -> None:
    spec = MetricSpec("m", MetricType.COUNTER, "f", ("t",), "", ("key",), parse_key("key"))
    metric = Metric(spec)
    truth: dict[str, float] = {}
    for text in texts:
        metric.add("t", [Increment((text,), 1)])
        truth[printable(text)] = truth.get(printable(text), 0) + 1
    registry = CollectorRegistry()
    registry.register(_One(metric))
    server = WebServer(Listen("127.0.0.1", 0), registry, Health(time.monotonic, lambda: True))
    try:
        for accept, parse in (
            ("", plain),
            ("application/openmetrics-text; version=1.0.0", openmetrics),
        ):
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.port}/metrics", headers={"Accept": accept}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                (family,) = parse(answer.read().decode("utf-8"))
            found = {s.labels["key"]: s.value for s in family.samples if s.name == "m_total"}
            assert found == truth
    finally:
        server.close()


@given(
    st.dictionaries(st.tuples(TEXTS, TEXTS), st.integers(0, 1 << 40), max_size=8),
    st.sampled_from([("a", "z"), ("role", "le_"), ("z", "zz")]),
    st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_histograms_are_printed_as_the_library_prints_them(
    series: dict[tuple[str, str], int], labels: tuple[str, str], is_of_values: bool
) -> None:
    """Byte for byte, in all formats and escapings that a client may ask for."""
    key = parse_key("key") if is_of_values else None
    kind = MetricType.HISTOGRAM
    metric = Metric(MetricSpec("m_s", kind, "f", ("t",), 'a\n# "b"\\', labels, None, key))
    for values, number in series.items():
        buckets = Counter({number % 400: number, 1: number % 7})
        found = Histogram(buckets.total(), number, 0, number, buckets)
        metric.add("t", [Increment(values, 1, found)])
    library = HistogramMetricFamily("m_s", metric.spec.help, labels=metric.labels)
    for point, row in metric.points():
        assert row is not None
        sums = [*accumulate(row.counts[:-1]), row.count]
        bounds = [*(repr(bound / metric.unit) for bound in row.bounds), "+Inf"]
        library.add_metric(
            point.values, list(zip(bounds, sums, strict=True)), row.sum / metric.unit
        )
    registry, other = CollectorRegistry(), CollectorRegistry()
    registry.register(_One(metric))
    usual = GaugeMetricFamily("g", "G", 1.5)
    registry.register(_Families([usual]))
    other.register(_Families([library, usual]))
    for kind_of_text in (
        "",
        "text/plain; version=1.0.0",
        "application/openmetrics-text; version=1.0.0",
    ):
        for escaping in ("", "; escaping=dots", "; escaping=values", "; escaping=allow-utf-8"):
            accept = f"{kind_of_text}{escaping}"
            encode, content_type = choose_encoder(accept)
            assert page(registry, accept) == (encode(other), content_type)


def test_a_configuration_has_no_text_that_cannot_be_exported() -> None:
    text = 'listen: 127.0.0.1:0\ntargets: [{name: "\\uD800", exe: /a}]\n'
    with pytest.raises(UsageError, match=r"line 2: .* cannot be written as UTF-8"):
        parse_config("c", text)
