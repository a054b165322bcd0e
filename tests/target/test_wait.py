# SPDX-License-Identifier: Apache-2.0
"""Wait for times, signals, the target's end and descriptors, whichever comes first."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from gotrace.target.process import Process
from gotrace.target.wait import Reason, Waiter

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
        assert not waiter.interrupted


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_between_waits_ends_the_next(number: signal.Signals) -> None:
    with Waiter() as waiter:
        os.kill(os.getpid(), number)
        assert waiter.wait(time.monotonic() + FAR) is Reason.INTERRUPT
        assert waiter.wait(time.monotonic() - 1) is Reason.INTERRUPT
        assert waiter.interrupted


def test_signal_from_another_process_ends_a_wait() -> None:
    with Waiter() as waiter, subprocess.Popen(["kill", "-TERM", str(os.getpid())]):
        assert waiter.wait(time.monotonic() + FAR) is Reason.INTERRUPT


def test_signals_are_as_before_in_the_end() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Waiter():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Waiter() as waiter:
            os.kill(os.getpid(), signal.SIGHUP)
            assert waiter.wait(time.monotonic() + 0.01) is Reason.TIME
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_has_happened_comes_before_the_time() -> None:
    """A run whose rounds outlast its interval always comes late, and still sees its end."""
    read, write = os.pipe()
    with Waiter(read) as waiter:
        assert waiter.wait(time.monotonic() - 1) is Reason.TIME
        os.write(write, b"x")
        assert waiter.wait(time.monotonic() - 1) is Reason.EXIT
    os.close(read)
    os.close(write)


def test_end_of_the_target() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        descriptor = Process(child.pid).exit_descriptor()
        with Waiter(descriptor) as waiter:
            assert waiter.wait(time.monotonic() + 0.01) is Reason.TIME
            assert child.stdin is not None
            child.stdin.close()
            assert waiter.wait(time.monotonic() + FAR) is Reason.EXIT
        os.close(descriptor)


def test_descriptor_becomes_readable() -> None:
    read, write = os.pipe()
    with Waiter() as waiter:
        os.write(write, b"x")
        assert waiter.wait(time.monotonic() + FAR, [read]) is Reason.EVENTS
        assert waiter.wait(time.monotonic() - 1, [read]) is Reason.TIME
    os.close(read)
    os.close(write)


def test_what_is_done_at_the_first_and_at_a_second_signal() -> None:
    """It is done in the handler: what the tool is doing then may take long."""
    done: list[str] = []
    with Waiter() as waiter:
        waiter.on_first, waiter.on_second = lambda: done.append("1"), lambda: done.append("2")
        assert waiter.asked is None
        os.kill(os.getpid(), signal.SIGINT)
        assert done == ["1"]
        asked = waiter.asked
        assert asked is not None
        os.kill(os.getpid(), signal.SIGTERM)
        assert done == ["1", "2"]
        assert waiter.asked == asked
