# SPDX-License-Identifier: Apache-2.0
"""A library whose runs are interrupted at random moments leaves nothing behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

import gotrace
from tests.test_api import assert_detached
from tests.tools.harness import Fixture, code_of
from tests.tools.trace import program

pytestmark = pytest.mark.live

#: Sessions of each kind; an hour's trial is GOTRACE_INTERRUPTS=1000.
_SESSIONS = int(os.environ.get("GOTRACE_INTERRUPTS", "8"))
_HANGS = 60  # seconds


class _Interrupt(BaseException):
    """What a handler raises, at any place."""


def _count(go: gotrace.Session) -> None:
    go.count("main.*", seconds=0.05)


def _latency(go: gotrace.Session) -> None:
    go.latency("main.try00", seconds=0.05, by_goroutine=True)


def _trace(go: gotrace.Session) -> None:
    with go.trace("main.try00", seconds=0.05) as calls:
        list(calls)


def _waits(go: gotrace.Session) -> None:
    go.waits(seconds=0.05, force=True)


def _live(go: gotrace.Session) -> None:
    for snapshot in go.live(interval=0.01, waits=True, force=True):
        if snapshot.seconds:
            break


def _syscalls(go: gotrace.Session) -> None:
    go.syscalls(seconds=0.05)


def _goroutines(go: gotrace.Session) -> None:
    go.goroutines()


@contextmanager
def _interrupted(error: type[BaseException], seconds: float) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise error("now")

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that ends
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _maps() -> list[str]:
    """Return the descriptors of this process, by what they are of."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(found)


def _left(state: Callable[[], Iterable[object]], before: Iterable[object]) -> Counter[object]:
    """Return what there is more than before, once threads have done what they have begun."""
    patience, pause = time.monotonic() + _HANGS, threading.Event()
    while left := Counter(state()) - Counter(before):
        if time.monotonic() > patience:
            break
        gc.collect()  # what tracebacks hold
        pause.wait(0.05)
    return left


@pytest.mark.parametrize("run", [_count, _latency, _trace, _waits, _live, _syscalls, _goroutines])
def test_nothing_is_left_of_interrupted_sessions(run: Callable[[gotrace.Session], None]) -> None:
    random.seed(run.__name__)
    with Fixture([program()]) as fixture:
        code = code_of(fixture.ready)
        longest = 0.0
        for _ in range(2):
            start = time.monotonic()
            with gotrace.attach(fixture.ready) as go:
                run(go)
            longest = time.monotonic() - start
        before, children = _maps(), _children()
        ends = []
        for _ in range(_SESSIONS):
            try:
                moment = random.uniform(0.001, longest)
                with _interrupted(_Interrupt, moment), gotrace.attach(fixture.ready) as go:
                    run(go)
                ends.append("whole")
            except _Interrupt:
                ends.append("interrupted")
        assert ends.count("interrupted") > _SESSIONS // 4
        assert not _left(_children, children)
        assert not _left(_maps, before)
        assert_detached(fixture.ready, code)


def test_an_error_of_the_callers_own_is_raised_as_it_is() -> None:
    with (
        Fixture([program()]) as fixture,
        pytest.raises(TimeoutError, match="now"),
        _interrupted(TimeoutError, 1.0),
        gotrace.attach(fixture.ready) as go,
    ):
        go.count("main.*", seconds=_HANGS)
