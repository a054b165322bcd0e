# SPDX-License-Identifier: Apache-2.0
"""gotrace in scripts as they are written: without ``with``, in threads, in forked processes."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import gotrace
from tests.test_api import assert_detached
from tests.tools.harness import CLONE, Fixture, code_of
from tests.tools.trace import program

pytestmark = pytest.mark.live

_HANGS = 60  # seconds


@pytest.fixture(scope="module")
def fixture() -> Iterator[Fixture]:
    with Fixture([program()]) as fixture:
        yield fixture


def run_script(text: str, fixture: Fixture) -> list[str]:
    """Run a script that has ``pid``, and return its lines."""
    start = f"import gotrace, os, sys, threading, time\npid = {fixture.ready}\n"
    command = [sys.executable, "-c", start + text]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, timeout=_HANGS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "use",
    [
        "calls = go.trace('main.echo')",
        "snapshots = go.live(waits=True); next(snapshots)",
        "threading.Thread(target=go.count, args=['main.echo'], daemon=True).start()",
        "threading.Thread(target=go.count, args=['main.echo']).start(); time.sleep(1)",
    ],
)
def test_a_script_that_closes_nothing_ends(use: str, fixture: Fixture) -> None:
    code = code_of(fixture.ready)
    assert run_script(f"go = gotrace.attach(pid); {use}; print('end')", fixture) == ["end"]
    assert_detached(fixture.ready, code)


def test_closing_ends_what_goes_on_in_other_threads(fixture: Fixture) -> None:
    """Runs return what they have seen; what is iterated over ends."""
    code = code_of(fixture.ready)
    with ThreadPoolExecutor() as pool:
        with gotrace.attach(fixture.ready) as go:
            started = {name: threading.Event() for name in ("count", "waits", "live", "trace")}

            def iterate(items: Iterator[object], name: str) -> None:
                started[name].set()
                for _ in items:
                    pass

            counting = pool.submit(lambda: go.count("main.echo", ready=started["count"].set))
            waiting = pool.submit(lambda: go.waits(ready=started["waits"].set))
            looking = pool.submit(iterate, go.live(interval=_HANGS), "live")
            tracing = pool.submit(iterate, go.trace("main.ordered"), "trace")
            for event in started.values():
                assert event.wait(_HANGS)
            echoed = fixture.work("goroutines")["Echoed"]
        assert code_of(fixture.ready) == code
        assert counting.result(_HANGS) == {"main.echo": echoed}
        assert waiting.result(_HANGS).total_count
        looking.result(_HANGS)
        tracing.result(_HANGS)


def test_a_session_is_closed_by_what_it_calls(fixture: Fixture) -> None:
    """What is used then is closed as the thread leaves it."""
    code = code_of(fixture.ready)
    go = gotrace.attach(fixture.ready)
    assert go.count("main.echo", ready=go.close) == {}
    assert code_of(fixture.ready) == code
    with pytest.raises(gotrace.UsageError, match="this session is closed"):
        go.functions("main.echo")
    with pytest.raises(gotrace.UsageError, match="this session is closed"):
        go.live()


def test_a_time_limit_of_asyncio_ends_a_run(fixture: Fixture) -> None:
    """Its thread has ended with the session: ``asyncio.run`` waits for it."""
    script = """
import asyncio
async def main():
    ready = asyncio.Event()
    with gotrace.attach(pid) as go:
        loop = asyncio.get_running_loop()
        announce = lambda: loop.call_soon_threadsafe(ready.set)
        counting = asyncio.to_thread(go.count, "main.echo", ready=announce)
        task = asyncio.create_task(asyncio.wait_for(counting, 0.1))
        await ready.wait()
        try:
            await task
        except asyncio.TimeoutError:
            print("too late")
asyncio.run(main())
print(threading.active_count())
"""
    assert run_script(script, fixture) == ["too late", "1"]


def in_a_fork(action: Callable[[], None]) -> None:
    """Do something in a process that is forked from this one, and see that it fails nowhere."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_detaches_nothing(fixture: Fixture) -> None:
    """Nor does it lose memory of its own, where buffers of this one were that it does not have."""
    code = code_of(fixture.ready)
    go = gotrace.attach(fixture.ready)
    calls, counting, began = go.trace("main.echo"), [], threading.Event()
    thread = threading.Thread(
        target=lambda: counting.append(go.count("main.echo", ready=began.set))
    )
    thread.start()
    began.wait(_HANGS)

    def use() -> None:
        nonlocal calls, go
        with pytest.raises(gotrace.UsageError, match="which has forked this one"):
            next(calls)
        go.stop()
        calls.stop()
        calls.close()
        go.close()
        memory = [mmap.mmap(-1, 1 << 20) for _ in range(100)]
        del calls, go
        assert not any(block[0] for block in memory)

    in_a_fork(use)
    echoed = fixture.work("goroutines")["Echoed"]
    go.stop()
    assert len(list(calls)) == echoed and calls.lost == {}
    thread.join(_HANGS)
    assert counting == [{"main.echo": echoed}]
    go.close()
    assert code_of(fixture.ready) == code


def test_a_forked_process_that_ends_detaches_nothing(fixture: Fixture) -> None:
    """Its interpreter closes what is still open, as that of the script does."""
    script = """
from tests.tools.harness import code_of
code = code_of(pid)
go = gotrace.attach(pid)
calls, snapshots = go.trace("main.echo"), go.live(waits=True)
if os.fork() == 0:
    sys.exit(0)
print(os.wait()[1], code_of(pid) != code, next(snapshots).head.pid == pid)
"""
    assert run_script(script, fixture) == ["0 True True"]


def test_a_forked_process_can_trace(fixture: Fixture) -> None:
    """With a session of its own, and with one that it has from its parent."""
    with gotrace.attach(fixture.ready) as go, go.trace("main.ordered"):

        def trace() -> None:
            assert go.count("main.echo", seconds=0.01) == {}
            with gotrace.attach(fixture.ready) as own:
                assert list(own.trace("main.echo", seconds=0.01)) == []

        in_a_fork(trace)


@pytest.mark.parametrize("number", [signal.SIGKILL, None])
def test_probes_that_go_end_the_stream(number: signal.Signals | None, fixture: Fixture) -> None:
    """Their process is killed, or it takes another's word."""
    code = code_of(fixture.ready)
    with gotrace.attach(fixture.ready) as go:
        calls = go.trace("main.echo", lossy=True)
        (kept,) = calls._run.attached._kept
        keeper = kept.keeper
        if number is not None:
            os.kill(keeper.pid, number)
        else:
            keeper._ours.send(b"!")
        with pytest.raises(gotrace.AttachError, match="later results are missing"):
            list(calls)
        assert calls.lost == {"probes": 1}
    assert_detached(fixture.ready, code)


def test_what_is_forked_attaches_nothing_any_longer(fixture: Fixture) -> None:
    """Tracepoints stay as long as any process holds them."""

    def held() -> list[str]:
        found = []
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the directory's own
                found.append(os.readlink(path))
        return [name for name in found if "link" in name or "perf_event" in name]

    def ready() -> None:
        assert held()
        in_a_fork(check)

    def check() -> None:
        assert not held()

    with gotrace.attach(fixture.ready) as go:
        go.syscalls(seconds=0.01, ready=ready)
        go.on_cpu(seconds=0.01, ready=ready)


def test_results_hold_nothing_open_and_can_be_sent(fixture: Fixture, tmp_path: Path) -> None:
    """As concurrent.futures sends them, after the session; profiles can be written then."""
    before = len(os.listdir("/proc/self/fd"))
    with gotrace.attach(fixture.ready) as go:

        def work() -> None:
            fixture.work("goroutines")
            go.stop()

        results = [
            go.count("main.echo", by="$stack", ready=work),
            go.latency("main.echo", by="$goid", ready=work),
            go.waits(ready=work),
            go.syscalls(ready=work, force=True),
            go.wall(ready=work, force=True),
            go.latency("main.echo", by_goroutine=True, ready=work),
        ]
    assert len(os.listdir("/proc/self/fd")) == before
    assert pickle.loads(pickle.dumps(results)) == results
    pickle.loads(pickle.dumps(results[0])).to_pprof(tmp_path / "x.pb.gz")
    waits = results[2]
    assert isinstance(waits, gotrace.Waits)
    functions = [str(row[-1]) for row in waits.table()[1]]
    assert functions and all(name.startswith("main.") for name in functions)
