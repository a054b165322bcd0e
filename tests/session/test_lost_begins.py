# SPDX-License-Identifier: Apache-2.0
"""Beginnings of requests are reported, or counted as lost: together they are the calls."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

import pytest

from gotrace.requests.edges import FIRST, EdgeKind
from gotrace.session.edges import edge_probes
from gotrace.session.events import function_of
from gotrace.session.reading import RecordReader
from gotrace.session.request import Asked
from gotrace.session.trace import CallTracer, TraceOptions, TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

_CALLED = "main.(*square).grow"


@pytest.mark.live
@pytest.mark.parametrize("nested", [False, True])
def test_lost_begins_are_counted(nested: bool) -> None:
    """A buffer has room for some hundred records, and nobody reads them."""
    path = build(FIXTURES / "live_count", newest())
    with Fixture([path]) as fixture, closing(Target.of(fixture.ready, None)) as target:
        asked = Asked((_CALLED,))
        roots, _ = asked.probes(target)
        request = TraceRequest(
            target=target,
            asked=asked,
            probes=roots,
            choices=TraceChoices.of(None, None, False, False),
            options=TraceOptions(pages=4, nested=nested, roots=() if nested else roots),
        )
        prepared = request.prepare(None, None)
        if nested:  # as gotraced does for spans
            assert prepared.tasks is not None
            edges = edge_probes(target, prepared.tasks, "it", False)
            prepared = replace(prepared, scheduler=edges)
        with CallTracer(prepared, request.options) as tracer:
            calls = fixture.work()["calls"][_CALLED]
            tracer.stop()
            read = 0
            while not tracer.exhausted:
                for record in tracer.acquire(time.monotonic() + 1):
                    read += function_of(record) == FIRST + EdgeKind.BEGIN
            assert 0 < read < calls
            assert read + RecordReader(tracer).missing().begins == calls
        assert fixture.finish() == 0
