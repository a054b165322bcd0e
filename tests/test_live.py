# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a live program: the runtime's metrics, groups that grow, what is attached."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import gotrace
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines import live as goroutines
from gotrace.goroutines.groups import GoroutineFilter, grouped
from gotrace.goroutines.live import GoFiles, LiveGoroutines
from gotrace.goroutines.program import module_of
from gotrace.live import runtime, traced
from gotrace.live.attached import AttachPrice
from gotrace.live.model import RequestRow, SlowRequest, Snapshot
from gotrace.live.monitor import Monitor
from gotrace.screen import terminal
from gotrace.target.process import Process, ProcessError, find_process
from gotrace.target.target import Target
from gotrace.target.usage import cpu_quota, usage_of
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest, toolchains
from tests.tools.harness import Fixture

TOP = FIXTURES / "live_top"
REQUESTS = FIXTURES / "live_requests"
_HANGS = float(os.environ.get("GOTRACE_PATIENCE", "100"))
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
            for own, name in (
                (heap.in_use, "/memory/classes/heap/objects:bytes"),
                (heap.mapped, "/memory/classes/total:bytes"),
                (heap.free, "/memory/classes/heap/free:bytes"),
                (heap.released, "/memory/classes/heap/released:bytes"),
                (heap.spans - heap.in_use, "/memory/classes/heap/unused:bytes"),
                (heap.allocated, "/gc/heap/allocs:bytes"),
                (heap.stacks, "/memory/classes/heap/stacks:bytes"),
            ):
                assert abs(own - truth[name]) <= OWN, name
            for own, name in (
                (heap.percent, "/gc/gogc:percent"),
                (heap.live, "/gc/heap/live:bytes"),
            ):
                assert own == truth.get(name, own), name  # of Go 1.21 and newer
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
            groups = grouped(dump, GoroutineFilter().of(dump))
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
def test_the_first_interval_is_as_long_as_it_says() -> None:
    """What counts errors is attached as well, before calls count."""
    with Fixture([build(FIXTURES / "live_storm", newest())]) as fixture:
        fixture.say("1 500")
        fixture.read_until("busy")
        with gotrace.attach(fixture.ready) as go:
            for number, snapshot in enumerate(go.live(interval=0.5, functions=["main.hit"])):
                (row,) = snapshot.functions or ()
                assert row.times.count == pytest.approx(500 * row.seconds, rel=0.2, abs=30)
                if number == 2:
                    go.stop()
        fixture.work()
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


def until(monitor: Monitor, is_there: Callable[[Snapshot], bool]) -> Snapshot:
    """Return the first snapshot that has something."""
    patience, pause = time.monotonic() + _HANGS, threading.Event()
    while not is_there(snapshot := monitor.snapshot()):
        assert time.monotonic() < patience, f"never: {snapshot}"
        pause.wait(0.02)
    return snapshot


def requests_of(kinds: str) -> RequestRow:
    """Return the requests that a program has made, all of them whole."""
    with Fixture([build(REQUESTS, newest())]) as fixture, monitor_of(fixture.ready) as monitor:
        monitor.attach_requests("main.handle")
        fixture.work(kinds)
        monitor.finish()
        snapshot = monitor.snapshot()
        assert snapshot.requests_lost == 0 and snapshot.requests is not None
        (row,) = snapshot.requests
        (again,) = monitor.snapshot().requests or ()
        assert (again.slowest, again.new, again.times) == (row.slowest, (), row.times)
        assert fixture.finish() == 0
    return row


@pytest.mark.live
def test_the_library_yields_requests() -> None:
    with Fixture([build(REQUESTS, newest())]) as fixture, gotrace.attach(fixture.ready) as go:
        new: list[SlowRequest] = []
        made = 0
        for snapshot in go.live(interval=0.05, requests="main.handle"):
            assert [one.what for one in snapshot.head.attached] == ["requests of main.handle"]
            made = made or fixture.work("fan-out 5")["requests"]
            new += [one for row in snapshot.requests or () for one in row.new]
            if len(new) == 5:
                break
        assert made == 5
        assert sorted(one.request.root.call.args["id"] for one in new) == [1, 2, 3, 4, 5]
        for one in new:
            assert sum(part.ns for part in one.request.critical_path()) == one.duration_ns
            assert (one.calls, one.goroutines) == (25, 9)
            assert abs(one.ended - time.time()) < 60
        assert fixture.finish() == 0


@pytest.mark.live
@pytest.mark.parametrize(("calls", "whole"), [(134, 6), (133, 5), (50, 2)])
def test_trees_are_cut_if_they_have_too_many_calls(
    calls: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they have an eighth more: each has 25."""
    monkeypatch.setattr(traced, "_MAX_CALLS", calls)
    row = requests_of("fan-out 6")
    assert row.times.count == len(row.slowest) == 6
    assert sum(not one.is_cut for one in row.slowest) == whole and not row.slowest[0].is_cut
    assert all(one.calls == 25 for one in row.slowest)
    assert [len(list(one.request.nodes())) for one in row.slowest] == [
        1 if one.is_cut else 25 for one in row.slowest
    ]
    assert row.slowest[0].duration_ns == row.times.maximum


@pytest.mark.live
@pytest.mark.parametrize(("most", "kept"), [(6, 6), (5, 5), (1, 1)])
def test_the_slowest_requests_are_kept(
    most: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "_MAX_KEPT", most)
    row = requests_of("fan-out 6")
    assert row.times.count == 6 and len(row.slowest) == kept
    assert row.slowest[0].duration_ns == row.times.maximum
    durations = [one.duration_ns for one in row.slowest]
    assert durations == sorted(durations, reverse=True)


@pytest.mark.live
def test_so_many_requests_are_kept_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "_KEPT_A_SECOND", 2)
    row = requests_of("fan-out 9")
    assert row.times.count == 9
    assert 2 <= len(row.slowest) <= 4  # of one second, or of two
    assert row.slowest[0].duration_ns == row.times.maximum


@pytest.mark.live
def test_requests_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "_WINDOW", 3)
    with Fixture([build(REQUESTS, newest())]) as fixture, monitor_of(fixture.ready) as monitor:
        monitor.attach_requests("main.handle")
        fixture.work("fan-out 4")
        until(monitor, lambda one: sum(row.times.count for row in one.requests or ()) == 4)
        last = until(monitor, lambda one: all(not row.times.count for row in one.requests or ()))
        (row,) = last.requests or ()
        assert row.slowest == () and 2 <= row.seconds <= 3
        assert fixture.finish() == 0


@pytest.mark.live
def test_roots_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "_MAX_ROOTS", 5)
    with Fixture([build(REQUESTS, newest())]) as fixture, monitor_of(fixture.ready) as monitor:
        with pytest.raises(UsageError, match="requests can begin with the calls of 5"):
            monitor.attach_requests("main.*o*")
        assert monitor.requests is None
        monitor.attach_requests("main.o*")
        assert fixture.finish() == 0


@pytest.mark.live
@each_toolchain
def test_each_call_of_a_function(toolchain: Toolchain) -> None:
    """Also of releases whose scheduler is not known: without the parts of the time."""
    prices: list[AttachPrice] = []
    with Fixture([build(TOP, toolchain)]) as fixture, monitor_of(fixture.ready) as monitor:
        monitor.attach_calls("main.work", 100.0, prices.append)
        truth = fixture.work("call 30")
        calls = until(monitor, lambda one: one.calls is not None and one.calls.calls == 30).calls
        assert calls is not None and truth["calls"] == 30
        (caller,) = calls.callers
        assert caller.frame is not None and caller.calls == 30
        assert caller.frame.function == "main.main"
        assert [call.args["n"] for call in calls.latest] == list(range(29, 9, -1))
        assert all(call.duration_ns and call.duration_ns >= 1_000_000 for call in calls.latest)
        assert (calls.lost, monitor.calls is not None) == (0, True)
        if toolchain is toolchains()[0]:
            assert calls.parts == {}
        else:
            assert sum(calls.parts.values()) == calls.ns
            assert next(iter(calls.parts)) == "blocked: sleep"
        assert len(prices) == 1
        assert prices[0].text.startswith("main.work is called 100 times a second")
        monitor.detach_calls()
        assert monitor.snapshot().calls is None
        assert fixture.finish() == 0


@pytest.mark.live
@pytest.mark.parametrize(("most", "known"), [(3, 80), (1, None)])
def test_callers_are_so_many(most: int, known: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "_MAX_CALLERS", most)
    with Fixture([build(REQUESTS, newest())]) as fixture, monitor_of(fixture.ready) as monitor:
        monitor.attach_calls("main.job")
        fixture.work("fan-out 8")
        calls = until(monitor, lambda one: one.calls is not None and one.calls.calls == 80).calls
        assert calls is not None
        found = {one.frame.function: one.calls for one in calls.callers if one.frame is not None}
        unknown = sum(one.calls for one in calls.callers if one.frame is None)
        assert sum(found.values()) + unknown == 80
        if known is not None:
            assert found == {"main.outer": 40, "main.fanOut.func1": 32, "main.fanOut": 8}
        else:
            assert len(found) == 1 and unknown > 0
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


def test_what_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: Any = SimpleNamespace(_error=OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(GotraceError, match=r"^cannot read what is traced: Input/output error$"):
        traced._Traced._check(failed)
    elsewhere: Any = SimpleNamespace(offset=1 << 60)
    with pytest.raises(ProcessError, match=r"^process \d+ has not mapped its program$"):
        runtime._bias(elsewhere, find_process(os.getpid()))
    files: Any = SimpleNamespace(_process=SimpleNamespace(tgid=7))
    gone: Any = SimpleNamespace(find_bias=lambda: None, image=SimpleNamespace(display="x"))
    with pytest.raises(GotraceError, match="process 7 has not mapped x: it runs another program"):
        GoFiles.module(files, gone)
    gone.functions = SimpleNamespace(has_pclntab=True)
    found: Any = SimpleNamespace(binary=lambda _: gone, libraries=list, started=lambda *_: "")
    monkeypatch.setattr(goroutines, "has_runtime", lambda binary: False)
    with pytest.raises(GotraceError, match=r"^x: has no runtime.allgadd: not a Go program of Go"):
        GoFiles.runtime(cast(Any, SimpleNamespace(_target=found)))
    gone.image.segments = ()
    with pytest.raises(GotraceError, match=r"^x: has no code$"):
        module_of(gone, 0)


def test_a_program_that_has_only_just_been_started(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = SimpleNamespace(image=SimpleNamespace(display="x"))
    program = SimpleNamespace(main=SimpleNamespace(binary=binary))
    monkeypatch.setattr(goroutines, "GoFiles", lambda target: SimpleNamespace(program=program))
    monkeypatch.setattr(goroutines, "is_loaded", lambda *_: False)
    with (
        closing(Target.of(os.getpid(), None)) as target,
        pytest.raises(GotraceError, match="another program by now than x, or has only just been"),
    ):
        LiveGoroutines(target)


def test_a_terminal_that_curses_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(isatty=lambda: True, fileno=lambda: 1)
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stdin=stream, stdout=stream))
    words = r"the terminal \(TERM=none\) cannot be drawn on: -b prints results: setupterm"
    with pytest.raises(GotraceError, match=words):
        terminal.check_terminal({"TERM": "none"})
