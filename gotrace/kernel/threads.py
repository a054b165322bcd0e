# SPDX-License-Identifier: Apache-2.0
"""Work on several things at once, in threads.

By hand: concurrent.futures imports logging and more, which takes as long as the loading of
programs, and cannot be imported once the interpreter ends while a script's thread attaches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


def at_once(work: Callable[[_T], None], things: Sequence[_T]) -> None:
    """Call ``work`` with each thing, in a thread each as far as they can be started.

    No call goes on when it returns or raises: who is interrupted closes what they work with. So the
    threads begin together, once all are started. If a start is interrupted, none does any work: it
    is not known then whether its thread runs.
    """
    all_started, is_certain = threading.Event(), False

    def begin(one: _T) -> None:
        all_started.wait()
        if is_certain:
            work(one)

    threads = [threading.Thread(target=begin, args=[one]) for one in things[:-1]]
    started = 0
    try:
        with suppress(RuntimeError):  # no thread can be started
            for thread in threads:
                thread.start()
                started += 1
        is_certain = True
        all_started.set()
        for one in things[started:]:
            work(one)
    finally:
        all_started.set()
        for thread in threads[:started] if is_certain else ():
            thread.join()
