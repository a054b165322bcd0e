# SPDX-License-Identifier: Apache-2.0
"""Work at once has ended when it is over, however that was."""

from __future__ import annotations

import _thread
import threading
import time

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


def test_threads_have_ended_when_their_starts_are_interrupted() -> None:
    def work(one: int) -> None:
        if one == 0:
            _thread.interrupt_main()
        time.sleep(0.002)

    before, interrupted = threading.active_count(), 0
    for _ in range(50):
        try:
            at_once(work, range(9))
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupted += 1
        assert threading.active_count() == before
    assert interrupted > 25  # what the interpreter runs between two steps may swallow some
