# SPDX-License-Identifier: Apache-2.0
"""What metrics add up to: bounded series, exact sums, buckets that agree with the kernel's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.fleet.config import MetricSpec, MetricType
from gotrace.fleet.naming import OTHERS, attribute, label
from gotrace.fleet.series import Increment, Metric, Presence, Room, bucketed
from gotrace.histogram import Histogram, ValueHistogram, bucket_bounds
from gotrace.probes.spec import parse_key
from gotrace.values.model import StringValue, UnavailableValue
from gotrace.values.python import Unavailable

BUCKET_OF = {low: bucket for bucket in range(600) for low in [bucket_bounds(bucket)[0]]}


def spec(kind: MetricType, series: int = 3) -> MetricSpec:
    return MetricSpec("m", kind, "main.f", ("t",), "", ("key",), parse_key("key"), series=series)


def values_of(metric: Metric) -> dict[tuple[str, ...], int]:
    return {point.values: point.calls for point, _ in metric.points()}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 9)), max_size=60))
def test_series_are_bounded_and_no_call_is_lost(calls: list[tuple[str, int]]) -> None:
    metric = Metric(spec(MetricType.COUNTER))
    truth: Counter[str] = Counter()
    for key, count in calls:
        metric.add("t", [Increment((key,), count)])
        truth[key] += count
    found = values_of(metric)
    assert sum(found.values()) == truth.total()
    kept = {key for _, key in found if key != OTHERS}
    assert kept == set(list(truth)[:3])  # the first that came, in their order
    assert all(found["t", key] == truth[key] for key in kept)
    assert metric.others == found.get(("t", OTHERS), 0)


def test_the_kernels_own_others_are_others() -> None:
    metric = Metric(spec(MetricType.COUNTER))
    metric.add("t", [Increment(None, 7), Increment(("a",), 1)])
    assert values_of(metric) == {("t", OTHERS): 7, ("t", "a"): 1}


@given(st.lists(st.tuples(st.sampled_from("tu"), st.sampled_from("abcdefgh")), max_size=60))
def test_all_metrics_together_are_bounded(calls: list[tuple[str, str]]) -> None:
    room = Room(5, {"t": 2, "u": 4})
    metrics = [Metric(spec(MetricType.COUNTER, series=9)) for _ in range(2)]
    for metric in metrics:
        metric.be_in(room)
    for number, (target, key) in enumerate(calls):
        metrics[number % 2].add(target, [Increment((key,), 1)])
    kept = [v for one in metrics for v in values_of(one) if v[1] != OTHERS]
    assert len(kept) <= 5
    assert sum(target == "t" for target, _ in kept) <= 2
    assert sum(sum(values_of(one).values()) for one in metrics) == len(calls)


def test_idle_series_end_and_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    metric = Metric(replace(spec(MetricType.COUNTER), idle=60.0))
    room = Room(3, {})
    metric.be_in(room)
    metric.add("t", [Increment((key,), 1) for key in "abcd"])
    assert values_of(metric) == {("t", "a"): 1, ("t", "b"): 1, ("t", "c"): 1, ("t", OTHERS): 1}
    now += 50
    metric.add("t", [Increment(("a",), 1)])
    now += 20
    metric.end_idle()
    assert values_of(metric) == {("t", "a"): 2}
    metric.add("t", [Increment(("d",), 1)])  # for which there is room again
    assert values_of(metric) == {("t", "a"): 2, ("t", "d"): 1}
    assert metric.ended == 3


def test_where_nothing_counts_each_reader_has_the_end_once() -> None:
    now = 0.0
    presence = Presence(lambda: now)
    presence.begin("t")
    presence.begin("t")
    presence.end("t")
    assert presence.shown(["t"], "one") == {"t"}
    presence.end("t")
    assert presence.shown(["t"], "one") == presence.shown(["t"], "one") == {"t"}
    now = 10.0
    assert presence.shown(["t"], "one") == set()
    assert presence.shown(["t"], "other") == presence.shown(["t"], "") == {"t"}
    presence.begin("t")
    assert presence.shown(["t"], "one") == {"t"}


def test_targets_do_not_take_each_others_room() -> None:
    metric = Metric(spec(MetricType.COUNTER, series=1))
    metric.add("t", [Increment(("a",), 1)])
    metric.add("u", [Increment(("b",), 2)])
    assert values_of(metric) == {("t", "a"): 1, ("u", "b"): 2}


@given(st.lists(st.sampled_from(sorted(BUCKET_OF)), max_size=80), st.sampled_from([1, 2, 16]))
def test_buckets_count_what_is_below_their_bounds(values: list[int], steps: int) -> None:
    histogram = Histogram(len(values), sum(values), buckets=Counter(BUCKET_OF[v] for v in values))
    bounds = [1 << (n // steps) for n in range(0, 34 * steps, steps)]
    found = bucketed(histogram, bounds)
    below = 0
    for bound, count in zip(found.bounds, found.counts, strict=False):
        below += count
        assert below == sum(value < bound for value in values)
    assert sum(found.counts) == found.count == len(values)
    assert found.sum == sum(values)


def test_negative_values_are_below_every_bound() -> None:
    below = Histogram(2, 30, buckets=Counter({10: 1, 18: 1}))
    measured = ValueHistogram(Histogram(1, 5, buckets=Counter({5: 1})), below, unknown=4)
    found = bucketed(measured, [1, 2, 4, 8])
    assert found.counts == (2, 0, 0, 1, 0)
    assert (found.count, found.sum) == (3, -25)


def test_a_string_is_never_taken_for_what_labels_say_of_missing_values() -> None:
    assert label(StringValue(b"others", 6)) == '"others"'
    assert label(StringValue(b"nil", 3)) == '"nil"'
    assert label(StringValue(b"other", 5)) == "other"
    assert label(StringValue(b"long", 9)) == "long..."
    assert label(StringValue(b"\xff", 1)).encode()
    text = "\033[2J\u202eä".encode()
    assert label(StringValue(text, len(text))) == r"\x1b[2J\u202eä"
    assert label(UnavailableValue("page not there")) == "unknown"


def test_attributes_are_what_otlp_can_hold() -> None:
    assert attribute(True) is True
    assert attribute(7) == 7
    assert attribute(1 << 63) == str(1 << 63)
    assert attribute(None) == "nil"
    assert attribute("a" * 1000) == "a" * 256 + "..."
    assert attribute(Unavailable("why")) == "unknown"
    assert attribute([1, 2]) == "[1, 2]"
