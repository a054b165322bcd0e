# SPDX-License-Identifier: Apache-2.0
"""Wait for times, signals, other threads and the target's end, whichever comes first."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gotrace.target import wait
from gotrace.target.process import Process
from gotrace.target.wait import Reason, SignalWaiter, Waiter

FAR = 60.0  # seconds, after which a wait has failed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def no_signal_ignored() -> Iterator[None]:
    """Undo what ``nohup`` or a shell's ``&`` has ignored; no signal is to end the tests either."""
    before = [signal.signal(number, lambda number, frame: None) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_time_comes() -> None:
    with Waiter() as waiter:
        until = time.monotonic() + 0.01
        assert waiter.wait(until) is Reason.TIME
        assert time.monotonic() >= until
        assert waiter.wait(time.monotonic() - 1) is Reason.TIME
        assert waiter.asked is None


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_between_waits_ends_the_next(number: signal.Signals) -> None:
    with SignalWaiter() as waiter:
        os.kill(os.getpid(), number)
        assert waiter.wait(time.monotonic() + FAR) is Reason.ASKED
        assert waiter.wait(time.monotonic() - 1) is Reason.ASKED
        assert waiter.asked is not None


def test_signal_from_another_process_ends_a_wait() -> None:
    with SignalWaiter() as waiter, subprocess.Popen(["kill", "-TERM", str(os.getpid())]):
        assert waiter.wait(time.monotonic() + FAR) is Reason.ASKED


def test_signals_are_as_before_in_the_end() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with SignalWaiter():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_is_repeated_when_the_wait_is_over_is_as_before_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: taken.append(number))
    try:
        monkeypatch.setattr(wait, "_AT_ONCE", FAR)
        with SignalWaiter():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert taken == []
        monkeypatch.setattr(wait, "_AT_ONCE", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert taken == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalWaiter() as waiter:
            os.kill(os.getpid(), signal.SIGHUP)
            assert waiter.wait(time.monotonic() + 0.01) is Reason.TIME
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_ends_a_wait_and_all_after_it() -> None:
    with Waiter() as waiter:
        asking = threading.Timer(0.01, waiter.ask)
        asking.start()
        assert waiter.wait(time.monotonic() + FAR) is Reason.ASKED
        assert waiter.wait(time.monotonic() - 1) is Reason.ASKED
        asking.join()
    waiter.ask()  # when all is over, too


def test_end_of_the_target() -> None:
    """It comes before a time that is past: a run whose rounds outlast its interval comes late."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child, Waiter() as waiter:
        waiter.watch([Process(child.pid)])
        assert waiter.wait(time.monotonic() + 0.01) is Reason.TIME
        assert child.stdin is not None
        child.stdin.close()
        child.wait(FAR)
        assert waiter.wait(time.monotonic() - 1) is Reason.EXIT


def test_a_target_has_ended_when_all_its_processes_have() -> None:
    with ExitStack() as opened:
        children = [
            opened.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE)) for _ in "ab"
        ]
        waiter = opened.enter_context(Waiter())
        waiter.watch(Process(child.pid) for child in children)
        for child, reason in zip(children, (Reason.TIME, Reason.EXIT), strict=True):
            assert child.stdin is not None
            child.stdin.close()
            child.wait(FAR)
            assert waiter.wait(time.monotonic() + 0.01) is reason


def test_what_is_done_at_the_first_and_at_a_second_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is done in the handler: what the tool is doing then may take long."""
    done: list[str] = []
    monkeypatch.setattr(wait, "_AT_ONCE", FAR)
    with SignalWaiter() as waiter:
        waiter.on_first, waiter.on_second = lambda: done.append("1"), lambda: done.append("2")
        assert waiter.asked is None
        os.kill(os.getpid(), signal.SIGINT)
        assert done == ["1"]
        asked = waiter.asked
        assert asked is not None
        os.kill(os.getpid(), signal.SIGINT)  # the same wish: timeout signals its command twice
        assert done == ["1"]
        monkeypatch.setattr(wait, "_AT_ONCE", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert done == ["1", "2"]
        assert waiter.asked == asked
