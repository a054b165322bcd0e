# SPDX-License-Identifier: Apache-2.0
"""Spans are in the traces of the program's own spans, which the contexts of calls hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gotrace.fleet.config import parse_config
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, run_tool


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(shutil.copy(build(FIXTURES / "live_spans", newest()), tmp_path / "spans"))


def configured(path: Path, program: Path, spans: str, endpoint: str = "http://127.0.0.1:1") -> Path:
    config = path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: s, exe: {program}}}]\nspans:\n{spans}"
        f"otlp: {{endpoint: '{endpoint}'}}\nbudget: 100%\n"
    )
    return config


def spans_of(path: Path, program: Path, spans: str, order: str, count: int) -> tuple[Any, Any]:
    """Return what the program knows of its calls, and the spans that came of them."""
    received = Received()
    with over_http(received) as endpoint:
        config = configured(path, program, spans, endpoint)
        with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
            truth = fixture.work(order)["calls"]
            received.wait_for_spans(count)
            fixture.finish()
            daemon.end()
    return truth, [span for _, span in received.spans]


@pytest.mark.live
@pytest.mark.apart
def test_spans_are_in_the_programs_traces(program: Path, tmp_path: Path) -> None:
    """A context that is not followed, or holds no span, begins a trace."""
    probe = "  - {probe: main.handle, attributes: {key: key}, rate: 1000/s}\n"
    truth, spans = spans_of(tmp_path, program, probe, "calls", 21)
    assert len(spans) == len(truth)
    found = {attributes(span.attributes)["key"]: span for span in spans}
    own = set()
    for call in truth:
        span = found[call["Key"]]
        if call["Key"] in ("long", "odd", "odd span") or not call["Trace"]:
            assert not span.parent_span_id
            own.add(span.trace_id.hex())
        else:
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (call["Trace"], call["Span"])
    assert len(own) == 8
    assert own.isdisjoint(call["Trace"] for call in truth)


NESTED = """\
  - {probe: main.outside, rate: 1000/s}
  - {probe: main.inside, rate: 1000/s}
  - {probe: main.handle, attributes: {key: key}, rate: 1000/s, name: handle}
"""


@pytest.mark.live
@pytest.mark.apart
def test_nested_calls_stay_in_the_trace(program: Path, tmp_path: Path) -> None:
    """They hang below the call around them, or a span that the program has begun within that."""
    truth, spans = spans_of(tmp_path, program, NESTED, "nested", 4)
    held, grown = truth
    by_name = {attributes(span.attributes).get("key", span.name): span for span in spans}
    assert {span.trace_id.hex() for span in spans} == {held["Trace"]}
    outside = by_name["main.outside"]
    assert outside.parent_span_id.hex() == held["Span"]
    assert by_name["main.inside"].parent_span_id == outside.span_id
    assert by_name["same"].parent_span_id == outside.span_id
    assert by_name["grown"].parent_span_id.hex() == grown["Span"]


@pytest.mark.live
@pytest.mark.apart
def test_that_can_be_left_out(program: Path, tmp_path: Path) -> None:
    spans = NESTED.replace("rate", "trace_context: off, rate")
    truth, found = spans_of(tmp_path, program, spans, "nested", 4)
    [first] = [span for span in found if not span.parent_span_id]
    assert first.name == "main.outside"
    assert {span.trace_id for span in found} == {first.trace_id}
    assert first.trace_id.hex() != truth[0]["Trace"]


@pytest.mark.apart
@pytest.mark.live
def test_check_names_functions_with_contexts(program: Path, tmp_path: Path) -> None:
    result = run_tool("gotraced", "--check", configured(tmp_path, program, NESTED))
    said = "  in the program's own traces, by their contexts: main."
    assert [line.removeprefix(said) for line in result.lines if line.startswith(said)] == [
        "outside\n",
        "handle\n",
    ]


def test_the_configuration_of_traces() -> None:
    text = "targets: [{name: a, exe: /a}]\notlp: {endpoint: 'http://a'}\nspans:\n  - {probe: f"
    more = ("}", ", trace_context: off}", ", trace_context: true}")
    assert [parse_config("x", text + one).spans[0].trace_context for one in more] == [
        True,
        False,
        True,
    ]
