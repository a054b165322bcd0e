# SPDX-License-Identifier: Apache-2.0
"""Work on several things at once, in threads.

By hand: concurrent.futures imports logging and more, which takes as long as the loading of
programs, and cannot be imported once the interpreter ends while a script's thread attaches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


def at_once(work: Callable[[_T], None], things: Sequence[_T]) -> None:
    """Call ``work`` with each thing, in a thread each as far as they can be started.

    All have ended when it returns or raises: who is interrupted closes what they work with.
    """
    threads = [threading.Thread(target=work, args=[one]) for one in things[:-1]]
    started = 0
    try:
        with suppress(RuntimeError):  # no thread can be started
            for thread in threads:
                thread.start()
                started += 1
        for one in things[started:]:
            work(one)
    finally:
        _join(threads)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Wait until none of the threads runs, nor one whose start was interrupted."""
    for thread in threads:
        while thread in threading.enumerate():
            if thread.is_alive():
                thread.join()
            else:
                time.sleep(0.001)
