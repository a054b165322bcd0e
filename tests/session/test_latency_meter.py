# SPDX-License-Identifier: Apache-2.0
"""Measure a busy program, and end while it is at it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gotrace.probes.select import Selector
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryRequest, make_plan
from gotrace.session.probing import Prepared
from gotrace.session.tasks import find_tasks
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture


@contextmanager
def metered(options: LatencyOptions) -> Iterator[tuple[Fixture, LatencyMeter]]:
    """Give a program that calls main.short without end, and what measures it."""
    path = build(FIXTURES / "live_latency", newest())
    with Fixture([path]) as fixture, ExitStack() as opened:
        fixture.say("endless")
        fixture.read_until("endless")
        target = Target.of(fixture.ready, None)
        opened.callback(target.close)
        request = BinaryRequest(None, Selector(["main.short"]))
        plan = make_plan(target, [request], returns=True, verb="measure")
        prepared = Prepared(target, plan, find_tasks(target, plan))
        yield fixture, opened.enter_context(LatencyMeter(prepared, options))


@pytest.mark.live
def test_calls_that_are_entered_while_probes_are_removed_are_nobodys() -> None:
    """Their entries were not seen, but not because they came before the run."""
    with metered(LatencyOptions()) as (fixture, meter):
        measured = meter.attached.program.map("histograms")
        patience = time.monotonic() + 60
        # Calls that were open when the probes came have returned by then, on a busy machine too.
        while sum(int.from_bytes(value[:8], "little") for _, value in measured.entries()) < 50_000:
            assert time.monotonic() < patience
        before = meter.diagnostics()[Diagnostic.UNMATCHED]
        assert meter.take().rows[0].count > 0
        assert meter.diagnostics()[Diagnostic.UNMATCHED] == before
        fixture.work()
        assert fixture.finish() == 0


@pytest.mark.live
def test_slow_calls_that_there_was_no_time_for_wait_for_the_next_turn() -> None:
    """All that was reported is read in the end, or counted, however short the turns are."""
    with metered(LatencyOptions(slower=1)) as (fixture, meter):
        patience = time.monotonic() + 60
        while meter.diagnostics()[Diagnostic.SLOW_LOST] == 0:  # the buffers are full
            assert time.monotonic() < patience
        meter.stop()
        assert meter.poll(time.monotonic()) == []
        assert not meter.exhausted
        read = 0
        while not meter.exhausted:
            # One piece of one buffer, since the time is up then.
            read += len(meter.poll(time.monotonic() + 0.0001))
            assert time.monotonic() < patience
        assert read > 0
        assert meter.poll(time.monotonic() + 1) == []
        meter.drop()
        lost = meter.diagnostics()[Diagnostic.SLOW_LOST]
        assert read + lost == meter.take().rows[0].count
        fixture.work()
        assert fixture.finish() == 0
