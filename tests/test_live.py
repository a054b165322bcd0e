# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a live program: the runtime's metrics, groups that grow, what is attached."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import gotrace
from gotrace.errors import UsageError
from gotrace.goroutines.groups import Choice, grouped
from gotrace.goroutines.live import LiveGoroutines
from gotrace.live.monitor import Monitor
from gotrace.target.process import Process, find_process
from gotrace.target.target import Target
from gotrace.target.usage import cpu_quota, usage_of
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture

TOP = FIXTURES / "live_top"
#: Bytes that the fixture allocates by asking for its metrics and printing them.
OWN = 256 << 10


@contextmanager
def monitor_of(pid: int) -> Iterator[Monitor]:
    with closing(Target.of(pid, None)) as target, Monitor(target) as monitor:
        yield monitor


@pytest.mark.live
@each_toolchain
def test_figures_are_those_of_runtime_metrics(toolchain: Toolchain) -> None:
    if toolchain.minor == "1.15":
        pytest.skip("it has no runtime/metrics")
    with Fixture([build(TOP, toolchain)]) as fixture, monitor_of(fixture.ready) as monitor:
        for order in ("metrics", "collect", "leak 500", "collect"):
            fixture.work(order)
            truth = fixture.work("metrics")
            heap = monitor.snapshot().head.heap
            assert heap is not None
            assert heap.cycles == truth["/gc/cycles/total:gc-cycles"]
            assert heap.goal is not None
            assert abs(heap.goal - truth["/gc/heap/goal:bytes"]) <= OWN
            assert abs(heap.in_use - truth["/memory/classes/heap/objects:bytes"]) <= OWN
            if "/cpu/classes/gc/total:cpu-seconds" in truth:
                assert heap.gc_ns / 1e9 == pytest.approx(truth["/cpu/classes/gc/total:cpu-seconds"])
            if "/sched/gomaxprocs:threads" in truth:
                assert heap.procs == truth["/sched/gomaxprocs:threads"]
        assert fixture.finish() == 0


@pytest.mark.live
@pytest.mark.parametrize("limit", ["24MiB", "9MiB"])
def test_the_goal_follows_a_memory_limit(limit: str) -> None:
    environment = {**os.environ, "GOMEMLIMIT": limit, "GOGC": "400"}
    with Fixture([build(TOP, newest())], env=environment) as fixture:
        fixture.work("collect")
        truth = fixture.work("metrics")
        with monitor_of(fixture.ready) as monitor:
            heap = monitor.snapshot().head.heap
        assert heap is not None and heap.goal is not None
        assert heap.limit == int(limit.removesuffix("MiB")) << 20
        assert abs(heap.goal - truth["/gc/heap/goal:bytes"]) <= OWN
        assert fixture.finish() == 0


@pytest.mark.live
def test_without_symbols_the_heap_is_left_out_in_words() -> None:
    with Fixture([build(TOP, newest(), flags=("-ldflags=-s -w",))]) as fixture:
        with monitor_of(fixture.ready) as monitor:
            head = monitor.snapshot().head
        assert head.heap is None and head.heap_problem == "the program has no symbols"
        assert head.goroutines == 1
        assert fixture.finish() == 0


@pytest.mark.live
@each_toolchain
def test_groups_are_those_of_a_dump_and_a_leak_is_found_at_the_third(toolchain: Toolchain) -> None:
    with Fixture([build(TOP, toolchain)]) as fixture, monitor_of(fixture.ready) as monitor:
        fixture.work("leak 100")
        first = monitor.snapshot()
        assert not any(row.leaks for row in first.groups)
        for _ in range(3):
            assert not any(row.leaks for row in monitor.snapshot().groups)
            fixture.work("leak 8")
        with closing(Target.of(fixture.ready, None)) as target, LiveGoroutines(target) as live:
            dump = live.take()
            groups = grouped(dump, Choice().of(dump))
            held = {group.key: len(group.goroutines) for group in groups}
        third = monitor.snapshot()
        found = {(r.state, r.reason, r.frames, r.created_by, ()): r.count for r in third.groups}
        assert found == held
        leaking = [row for row in third.groups if row.leaks]
        assert [(row.count, row.growth) for row in leaking] == [(124, 24)]
        assert leaking[0].frames[0].function == "main.forget"
        assert leaking[0].history == (100, 100, 108, 116, 124)
        views = monitor.goroutines(leaking[0].number, 5)
        assert len(views) == 5 and [view.goroutine.goid for view in views] == sorted(
            view.goroutine.goid for view in views
        )
        assert all(view.frames[0].function == "main.forget" for view in views)
        assert fixture.finish() == 0


@pytest.mark.live
def test_a_steady_server_does_not_leak() -> None:
    with Fixture([build(TOP, newest())]) as fixture, monitor_of(fixture.ready) as monitor:
        fixture.work("steady 50")
        marked = []
        for _ in range(int(os.environ.get("GOTRACE_STEADY", "60"))):
            marked += [row for row in monitor.snapshot().groups if row.leaks]
            time.sleep(0.02)  # between two looks at a program that goes on, not for its word
        assert marked == []
        fixture.finish()


@pytest.mark.live
def test_only_goroutines_that_have_run_are_read_again() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        with closing(Target.of(fixture.ready, None)) as target, LiveGoroutines(target) as live:
            fixture.work("leak 6000")
            watching = live.watch()
            assert sum(group.count for group in watching.refresh()) > 6000
            assert watching.read > 6000
            fixture.work("leak 3")
            watching.refresh()
            assert 3 <= watching.read < 50
            fixture.work("collect")  # which looks at all of them, and lets none run
            watching.refresh()
            assert watching.read < 50
        assert fixture.finish() == 0


@pytest.mark.live
def test_the_library_yields_snapshots_until_the_program_ends() -> None:
    with Fixture([build(TOP, newest())]) as fixture:
        with gotrace.attach(fixture.ready) as go:
            seen = []
            for snapshot in go.live(interval=0.05, waits=True, functions=["main.work"]):
                seen.append(snapshot)
                if len(seen) == 1:
                    truth = fixture.work("call 9")
                elif len(seen) == 3:
                    fixture.say()
        calls = sum(row.times.count for one in seen for row in one.functions or ())
        errors = sum(row.errors or 0 for one in seen for row in one.functions or ())
        assert (calls, errors) == (truth["calls"], truth["errors"]) == (9, 3)
        slept = [
            row
            for one in seen
            for row in one.waits or ()
            if any(frame.function == "main.work" for frame in row.frames)
        ]
        assert sum(row.count for row in slept) == 9
        assert {attached.what for attached in seen[0].head.attached} == {
            "waits",
            "calls of main.work",
        }
        assert fixture.wait() == 0


@pytest.mark.live
def test_stop_ends_the_snapshots() -> None:
    with Fixture([build(TOP, newest())]) as fixture, gotrace.attach(fixture.ready) as go:
        for snapshot in go.live(interval=100):
            assert snapshot.head.pid == fixture.ready
            go.stop()
        with pytest.raises(UsageError, match="interval"):
            go.live(interval=0)
        assert fixture.finish() == 0


def test_usage_is_what_proc_says() -> None:
    usage = usage_of(find_process(os.getpid()))
    assert usage.threads == len(os.listdir("/proc/self/task"))
    assert usage.rss > 1 << 20
    assert 0 < usage.cpu_s < 3600 * usage.uptime_s
    quota = cpu_quota(Process(os.getpid()))
    assert quota is None or quota > 0


@pytest.mark.live
def test_the_quota_is_the_least_of_the_groups_around() -> None:
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").exists():
        pytest.skip("control groups of version 2 are not mounted")
    outer = root / f"gotrace-test-{os.getpid()}"
    try:
        (outer / "inner").mkdir(parents=True)
        (root / "cgroup.subtree_control").write_text("+cpu")
        (outer / "cgroup.subtree_control").write_text("+cpu")
        (outer / "cpu.max").write_text("150000 100000")
        (outer / "inner" / "cpu.max").write_text("200000 100000")
    except OSError as error:
        pytest.skip(f"no group can be made: {error}")
    with Fixture([build(TOP, newest())]) as fixture:
        try:
            (outer / "inner" / "cgroup.procs").write_text(str(fixture.ready))
            assert cpu_quota(Process(fixture.ready)) == 1.5
        finally:
            (root / "cgroup.procs").write_text(str(fixture.ready))
            (outer / "inner").rmdir()
            outer.rmdir()
        assert fixture.finish() == 0
