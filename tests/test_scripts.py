# SPDX-License-Identifier: Apache-2.0
"""gotrace in scripts as they are written: without ``with``, in threads, in forked processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
        assert waiting.result(_HANGS).contentions
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
