# SPDX-License-Identifier: Apache-2.0
"""Decode records of functions that several probes want."""

from __future__ import annotations

from contextlib import closing

from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import HEADER
from gotrace.session.request import Asked
from gotrace.session.trace import TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest


def test_a_call_that_cannot_be_decided_is_counted_once() -> None:
    """Though it is looked at twice, as gotraced does: whether it is wanted, and when it is sent."""
    path = build(FIXTURES / "live_bakery", newest())
    asked = Asked([f"{path}:main.handle (len(name) > 3)", f"{path}:main.handle"])
    with closing(Target()) as target:
        choices = TraceChoices.of(256, 1, entry_only=True, floats=False)
        traced = TraceRequest(target=target, asked=asked, choices=choices).plan().traced
        assert traced is not None
        undecided = Undecided()
        decoder = CallDecoder(traced.calls[0], None, False, undecided)
        record = bytes(HEADER.size)  # nothing was captured
        assert decoder.wanted(record) is not None
        assert undecided.calls == 1
        ((probe, _),) = decoder.calls(record, is_counted=False)
        assert probe.predicate is None
        assert undecided.calls == 1
        decoder.calls(record)
        assert undecided.calls == 2
