# SPDX-License-Identifier: Apache-2.0
"""Processes that end with calls open, while every process that runs their file is traced."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gotrace.probes.select import Selector
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.open_calls import Throttle
from gotrace.session.plan import BinaryRequest, make_plan
from gotrace.session.probing import Prepared
from gotrace.session.tasks import find_tasks
from gotrace.target.process import ended_processes
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

PROCESSES = 5
OPEN = 7  # calls that the fixture's exits leaves open


@contextmanager
def measuring(options: LatencyOptions, *patterns: str) -> Iterator[LatencyMeter]:
    """Measure functions in every process of the fixture."""
    path = build(FIXTURES / "live_latency", newest())
    with ExitStack() as opened:
        target = Target()
        opened.callback(target.close)
        request = BinaryRequest(str(path), Selector(patterns))
        plan = make_plan(target, [request], returns=True, verb="measure")
        yield opened.enter_context(
            LatencyMeter(Prepared(target, plan, find_tasks(target, plan)), options)
        )


@pytest.fixture
def meter() -> Iterator[LatencyMeter]:
    with measuring(LatencyOptions(per_goroutine=True), "main.exits", "main.spawn") as found:
        yield found


def run(*scenarios: str) -> int:
    path = build(FIXTURES / "live_latency", newest())
    return subprocess.run(
        [path], input=" ".join(scenarios) + "\n\n", text=True, stdout=subprocess.DEVNULL
    ).returncode


def entries(meter: LatencyMeter, name: str) -> int:
    return len(list(meter.attached.program.map(name).entries()))


@pytest.mark.live
def test_open_calls_make_room_and_are_still_told(meter: LatencyMeter) -> None:
    for _ in range(PROCESSES):
        assert run("spawn", "exit") == 3
    assert entries(meter, "stacks") == entries(meter, "named") == PROCESSES
    assert entries(meter, "outer_calls") == PROCESSES * (OPEN - 1)
    before = meter.open_calls()
    meter._remove_exited()
    assert [entries(meter, name) for name in ("stacks", "outer_calls", "named")] == [0, 0, 0]
    assert before == meter.open_calls() == PROCESSES * OPEN
    period = meter.take()
    assert period.rows[0].count == sum(t.times.count for t in period.goroutines.values())
    assert period.rows[0].count == PROCESSES


@pytest.mark.live
def test_calls_of_living_processes_stay(meter: LatencyMeter) -> None:
    path = build(FIXTURES / "live_latency", newest())
    with subprocess.Popen(
        [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write("spawn\n")
        process.stdin.flush()
        while not process.stdout.readline().startswith("truth"):
            pass
        meter._remove_exited()
        assert entries(meter, "named") == 1
        process.stdin.write("\n")
    meter._remove_exited()
    assert entries(meter, "named") == 0


@pytest.mark.live
@pytest.mark.parametrize(("room", "resting"), [(32, 4), (1 << 10, 1 << 7)])
def test_rows_rest_between_calls_while_there_is_room(room: int, resting: int) -> None:
    """Of 17 goroutines that call by turns each keeps a row, or some have to give theirs back."""
    functions = ("main.interleave", "main.short")
    with measuring(LatencyOptions(open_calls=room), *functions) as meter:
        path = build(FIXTURES / "live_latency", newest())
        with Fixture([path]) as fixture:
            fixture.work("rounds")
            assert entries(meter, "stacks") == 1  # of the goroutine that has made all calls
            truth = fixture.work("interleaved interleaved")
            assert fixture.finish() == 0
        rows, limit = (
            int.from_bytes(value, "little")
            for _, value in meter.attached.program.map("resting").array_range(0, 2)
        )
        assert limit == resting
        assert 1 <= rows == entries(meter, "stacks") <= resting
        assert meter.open_calls() == 0
        calls = [truth["Functions"][name]["Calls"] for name in functions]
        assert calls == [2 * 17 * 101, 101]
        assert meter.take().rows[0].count == sum(calls)
        assert not any(meter.diagnostics().values())
        meter._remove_exited()
        assert entries(meter, "stacks") == 0


def test_ended_processes() -> None:
    with subprocess.Popen(["sleep", "100"]) as living:
        with subprocess.Popen(["true"]) as brief:
            brief.wait()
        assert ended_processes([living.pid, brief.pid, brief.pid, 1]) == {brief.pid}
        living.kill()


def test_what_takes_long_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], []

    def action() -> None:
        done.append(now[0])
        now[0] += 1.0 if len(done) == 2 else 0.0

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    seldom = Throttle(action)
    while now[0] < 30:
        seldom()
        now[0] += 0.5
    assert done[:2] == [1.0, 2.0]
    assert done[2] == 23.0
