# SPDX-License-Identifier: Apache-2.0
"""Spans of a goroutine are below the call that has started it."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gotrace.fleet.check import check
from gotrace.fleet.config import parse_config
from gotrace.requests.waiting import PATIENCE
from gotrace.sites import amd64
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, newest, require
from tests.tools.harness import Fixture

#: With a signature, since stripped programs do not say what their functions have.
_PARAMETERS = "(name string, parent string, within func()) int"
#: Kinds of spans: their probes and their rates.
FIRST = (f"main.first{_PARAMETERS}", "100000/s")
BELOW = (f"main.below{_PARAMETERS}", "100000/s")

#: Of the calls of the order "all", those that are below none.
_OUTERMOST = (
    *("wait", "through", "chain", "nested", "r3", "timer", "left", "right"),
    *("panics", "worker", "unprobed"),
)


def program(toolchain: Toolchain, path: Path, mode: str = "default") -> Path:
    built = build(FIXTURES / "live_starts", toolchain, flags=BUILD_MODES[mode])
    return Path(shutil.copy(built, path / "starts"))


def configured(program: Path, endpoint: str, *spans: tuple[str, str]) -> Path:
    """Return a configuration that has these spans, each with a rate."""
    config = program.with_name("c.yaml")
    rows = "".join(
        f"  - {{probe: '{probe}', attributes: {{name: name, parent: parent}}, rate: {rate}}}\n"
        for probe, rate in spans or (FIRST, BELOW)
    )
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: s, exe: {program}}}]\nspans:\n{rows}"
        f"otlp: {{endpoint: '{endpoint}', queue: 10000}}\nbudget: 100%\n"
    )
    return config


def hold_to_truth(received: Received, calls: int) -> dict[str, Any]:
    """Compare each span's parent with what its call was given; return spans by their names."""
    spans = {span.span_id: span for _, span in received.spans}
    assert len(spans) == len(received.spans) == calls
    shown = {one: attributes(span.attributes) for one, span in spans.items()}
    assert len({each["name"] for each in shown.values()}) == calls
    found = {
        each["name"]: shown[spans[one].parent_span_id]["name"] if spans[one].parent_span_id else ""
        for one, each in shown.items()
    }
    assert found == {each["name"]: each["parent"] for each in shown.values()}
    for span in spans.values():
        if span.parent_span_id:
            assert span.trace_id == spans[span.parent_span_id].trace_id
    roots = [span.trace_id for span in spans.values() if not span.parent_span_id]
    assert len(set(roots)) == len(roots)
    return {shown[one]["name"]: span for one, span in spans.items()}


@contextmanager
def sending(program: Path, *spans: tuple[str, str]) -> Iterator[tuple[Fixture, Received]]:
    """Give a program to work and what is sent of it, all of which has come afterwards."""
    received = Received()
    with (
        over_http(received) as endpoint,
        Daemon(configured(program, endpoint, *spans), probes=1) as daemon,
        Fixture([program]) as fixture,
    ):
        assert not [line for line in daemon.log if "span " in line or "not seen" in line]
        yield fixture, received
        fixture.finish()
        daemon.end()


def run(program: Path, *orders: str) -> dict[str, Any]:
    """Have the program work; wait for what comes of an order before the next one."""
    with sending(program) as (fixture, received):
        for order in orders:
            calls = fixture.work(order)["calls"]
            received.wait_for_spans(calls)
    return hold_to_truth(received, calls)


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", ["1.27", pytest.param("1.19", marks=pytest.mark.slow)])
def test_goroutines_are_below_the_calls_that_start_them(minor: str, tmp_path: Path) -> None:
    run(program(require(minor), tmp_path), "all", "many")


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_in_programs_of_all_kinds(mode: str, tmp_path: Path) -> None:
    run(program(newest(), tmp_path, mode), "all")


@pytest.mark.live
@pytest.mark.apart
def test_a_goroutine_can_outlive_the_call_that_has_started_it(tmp_path: Path) -> None:
    """What is below that call comes when that has been sent."""
    spans = run(program(newest(), tmp_path), "starts", "late")
    for name in ("first", "second"):
        assert spans[name].end_time_unix_nano < spans[f"{name}.late"].start_time_unix_nano
        assert spans[f"{name}.later"].parent_span_id == spans[f"{name}.late"].span_id


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", ["1.27", pytest.param("1.19", marks=pytest.mark.slow)])
def test_work_that_a_pool_waits_for_is_not_of_the_call_that_started_it(
    minor: str, tmp_path: Path
) -> None:
    run(program(require(minor), tmp_path), "pool")


@pytest.mark.live
@pytest.mark.apart
def test_a_kind_of_span_may_inherit_nothing(tmp_path: Path) -> None:
    kinds = [(probe, f"{rate}, inherit: off") for probe, rate in (FIRST, BELOW)]
    with sending(program(newest(), tmp_path), *kinds) as (fixture, received):
        calls = fixture.work("pool")["calls"]
        received.wait_for_spans(calls)
    assert not [span for _, span in received.spans if span.parent_span_id]


@pytest.mark.live
@pytest.mark.apart
def test_what_calls_start_is_left_out_with_them(tmp_path: Path) -> None:
    outermost = (FIRST[0], "1/h")
    with sending(program(newest(), tmp_path), outermost, BELOW) as (fixture, received):
        fixture.work("all")
        received.wait_for_spans(4)
    assert set(hold_to_truth(received, 4)) == {"wait", "w1", "w2", "w3"}


@pytest.mark.live
@pytest.mark.apart
def test_calls_that_a_result_leaves_out_are_not_waited_for(tmp_path: Path) -> None:
    """What is within them, and what they start, is sent by itself at once."""
    outermost = (f"{FIRST[0]} ($ret < 0)", "100000/s")
    with sending(program(newest(), tmp_path), outermost, BELOW) as (fixture, received):
        began = time.monotonic()
        below_others = fixture.work("all")["calls"] - len(_OUTERMOST)
        received.wait_for_spans(below_others)
        assert time.monotonic() - began < PATIENCE  # what waits does so for longer than that
    spans = {span.span_id: attributes(span.attributes) for _, span in received.spans}
    assert len(spans) == below_others
    for _, span in received.spans:
        shown = attributes(span.attributes)
        above = spans.get(span.parent_span_id, {"name": ""})["name"]
        assert above == ("" if shown["parent"] in _OUTERMOST else shown["parent"])


@pytest.mark.apart
def test_check_says_where_starts_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(newest(), tmp_path)
    config = parse_config("x", configured(path, "http://a").read_text())
    said = io.StringIO()
    assert check(config, said) == 0
    assert "not seen" not in said.getvalue()
    monkeypatch.setattr(amd64, "_CALL", 0)
    assert check(config, said) == 0
    assert (
        said.getvalue().count(
            f"  {path}: to put spans below those of other goroutines needs Go 1.19 or newer: the"
            f" channels of go{newest().version} are not known: runtime.newproc.func1 calls"
            " runtime.runqput 0 times, not once\n"
        )
        == 2  # of two kinds
    )
