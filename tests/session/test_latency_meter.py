# SPDX-License-Identifier: Apache-2.0
"""Measure a busy program, and end while it is at it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from gotrace.probes.select import Selector
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryRequest, make_plan
from gotrace.session.tasks import find_tasks
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture


@pytest.mark.live
def test_calls_that_are_entered_while_probes_are_removed_are_nobodys() -> None:
    """Their entries were not seen, but not because they came before the run."""
    path = build(FIXTURES / "live_latency", newest())
    with Fixture([path]) as fixture, ExitStack() as opened:
        fixture.say("endless")
        fixture.read_until("endless")
        target = Target.of(fixture.ready, None)
        opened.callback(target.close)
        request = BinaryRequest(None, Selector(["main.short"]))
        plan = make_plan(target, [request], returns=True, verb="measure")
        tasks = find_tasks(target, plan)
        meter = opened.enter_context(LatencyMeter(target, plan, tasks, LatencyOptions(), None))
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
