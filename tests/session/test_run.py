# SPDX-License-Identifier: Apache-2.0
"""Runs: how they end, and that one that cannot begin leaves nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gotrace.errors import GotraceError, UsageError
from gotrace.session.count import CountRequest
from gotrace.session.latency import LatencyRequest
from gotrace.session.request import Asked
from gotrace.session.run import End, NoteKind, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.why.probes import WhyOptions
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

FAR = 60.0  # seconds, after which a wait has failed


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    with Fixture([build(FIXTURES / "live_latency", newest())]) as running:
        yield running


@pytest.mark.live
def test_a_run_ends_with_its_time_when_asked_and_with_its_target(fixture: Fixture) -> None:
    with closing(Target.of(fixture.ready, None)) as target:
        request = CountRequest(target=target, asked=Asked(["main.short"]))
        with open_run(request) as run:
            assert run.end is None and run.asked is None
            run.begin(0.01)
            assert run.is_over(FAR) and run.end is End.ASKED
            assert run.asked is not None and run.meter.stopped
        with open_run(request) as run:
            run.begin()
            assert not run.is_over(0.01)
            threading.Timer(0.01, run.stop).start()
            assert run.is_over(FAR) and run.end is End.ASKED
        run.stop()  # when all is closed, too
        with open_run(request) as run:
            run.begin()
            assert fixture.finish() == 0
            assert run.is_over(FAR) and run.end is End.EXIT
            assert run.asked is None


@pytest.mark.live
def test_a_run_says_what_it_does_not_see(fixture: Fixture) -> None:
    with closing(Target.of(fixture.ready, None)) as target:
        asked = Asked(["main.short", "main.nowhere"])
        request = CountRequest(target=target, asked=asked, is_strict=False)
        with open_run(request) as run:
            (note,) = run.warnings()
        assert note.kind is NoteKind.FAILED
        assert "main.nowhere" in note.text
        with pytest.raises(GotraceError, match=r"main\.nowhere"):
            open_run(CountRequest(target=target, asked=asked))
        fixture.finish()


@pytest.mark.live
def test_a_price_that_is_refused_leaves_nothing(fixture: Fixture) -> None:
    refused: list[SchedulerProbes] = []

    def refuse(probes: SchedulerProbes) -> None:
        refused.append(probes)
        raise GotraceError("too dear")

    with closing(Target.of(fixture.ready, None)) as target:
        asked = Asked(["main.short"])
        request = LatencyRequest(target=target, asked=asked, why=WhyOptions(), is_calibrated=True)
        request.plan()  # opens the program's file
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(GotraceError, match="too dear"):
            open_run(request, accept=refuse)
        assert [probes.target for probes in refused] == [target]
        assert set(os.listdir("/proc/self/fd")) == before
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        assert str(fixture.ready) in children.split()
        fixture.finish()


def test_a_request_that_cannot_be_understood_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError):
        CountRequest(target=Target(), asked=Asked(["main.("], regexp=True))
