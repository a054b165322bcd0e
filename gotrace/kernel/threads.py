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

    All have ended when it returns or raises: who is interrupted closes what they work with.
    """
    threads = [threading.Thread(target=work, args=[one]) for one in things[:-1]]
    started = 0
    with suppress(RuntimeError):  # no thread can be started
        for thread in threads:
            thread.start()
            started += 1
    begun = threads[:started]
    try:
        for one in things[started:]:
            work(one)
        _join(begun)
    except BaseException:
        _join(begun)
        raise


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
