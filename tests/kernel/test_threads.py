# SPDX-License-Identifier: Apache-2.0
"""No work at once goes on when it is over, however that was."""

from __future__ import annotations

import threading

import pytest

from gotrace.kernel.threads import at_once


def test_threads_have_ended_when_work_is_interrupted() -> None:
    interrupted, ended = threading.Event(), []

    def work(one: int) -> None:
        if threading.current_thread() is threading.main_thread():
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait()
        ended.append(one)

    with pytest.raises(KeyboardInterrupt):
        at_once(work, range(9))
    assert sorted(ended) == [*range(8)]


@pytest.mark.parametrize("is_begun", [True, False])
def test_nothing_is_worked_on_if_a_start_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """Before the third thread runs, or once it does."""
    begun: list[threading.Thread] = []
    worked: list[int] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if len(begun) == 2 and not is_begun:
                raise KeyboardInterrupt
            super().start()
            begun.append(self)
            if len(begun) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        at_once(worked.append, range(9))
    for thread in begun:
        thread.join(10)
        assert not thread.is_alive()
    assert not worked


def test_what_no_thread_can_be_started_for_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[int] = []

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", Refused)
    at_once(worked.append, range(9))
    assert worked == [*range(9)]
