# SPDX-License-Identifier: Apache-2.0
"""Forked processes let go of what they do not need, and end with the process that forked them."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace.errors import GotraceError
from gotrace.kernel.children import Child
from tests.tools.harness import Process


def sleep(answer: int) -> None:
    os.write(answer, b"here")
    while True:
        signal.pause()


PARENT = """
import os, signal, sys, threading
from gotrace.kernel.children import Child
from tests.kernel.test_children import sleep
def within(answer):
    child = Child("of a child", sleep)
    os.write(answer, str(child.pid).encode())
    sleep(answer)
children = []
forking = threading.Thread(target=lambda: children.append(Child("for a test", within)))
forking.start()
forking.join()
(child,) = children
print(child.pid, os.read(child.answer, 100).decode().removesuffix("here"), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_they_end_with_their_process_and_not_with_the_thread_that_forked() -> None:
    with Process([sys.executable, "-c", PARENT]) as parent:
        pids = [int(word) for word in parent.read_until("")[0].split()]
        assert len(pids) == 2 and all(map(is_there, pids))  # a child, and its own
        parent.say()
        parent.wait()
        until = time.monotonic() + 1.0
        while any(map(is_there, pids)):
            assert time.monotonic() < until


def open_files(answer: int) -> None:
    names = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    os.write(answer, "\n".join(names).encode())


@pytest.mark.parametrize("keeps_files", [False, True])
def test_they_let_go_of_what_they_do_not_need(keeps_files: bool, tmp_path: Path) -> None:
    ours = tmp_path / "file"
    reading, writing = os.pipe()
    with open(ours, "w"):
        child = Child("for a test", open_files, keeps_files)
        found = child.whole_answer().decode().split("\n")
    assert child.wait() == 0
    assert (str(ours) in found) is keeps_files
    assert sum("pipe:" in name for name in found) == 2  # its answer, and what it ends by
    assert not any("socket:" in name or "/dev/pts" in name for name in found)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_do_what_they_do_by_default(number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        child = Child("for a test", sleep)
        assert child.has_answered(60) and os.getpgid(child.pid) == child.pid
        os.kill(child.pid, number)
        assert os.WTERMSIG(child.wait()) == number
    finally:
        signal.signal(number, before)
    assert child.why_ended() == f"its process was killed by {number.name}"


def fail(answer: int) -> NoReturn:
    raise ValueError


def test_why_one_has_ended() -> None:
    child = Child("for a test", fail)
    assert child.whole_answer() == b""
    child.end()
    assert child.why_ended() == "its process has ended with status 1"
    child = Child("for a test", sleep)
    child.end()
    assert child.why_ended().endswith("SIGKILL, as the kernel does if memory is short")


@pytest.mark.parametrize("call", ["pipe", "fork"])
def test_none_can_be_started(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, call, refused)
    with pytest.raises(GotraceError, match="cannot start a process for a test: Too many open"):
        Child("for a test", sleep)
    assert os.listdir("/proc/self/fd") == before


def void(_: object) -> None:
    """Return nothing."""


def test_many_threads_fork_at_once() -> None:
    """Each holds for a moment what its elders end by."""
    answers: list[bytes] = []

    def one() -> None:
        child = Child("for a test", lambda answer: void(os.write(answer, b"x")))
        answers.append(child.whole_answer())
        child.end()

    threads = [threading.Thread(target=one) for _ in range(20)]
    works: list[Callable[[], None]] = [thread.start for thread in threads]
    works += [thread.join for thread in threads]
    for work in works:
        work()
    assert answers == [b"x"] * 20
