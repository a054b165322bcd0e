# SPDX-License-Identifier: Apache-2.0
"""Have frequent calls seen returning in their callers, in a thread.

The engine looks once a second, and is later if it attaches. A loop that comes by a landing without
a call is slowed down until that is seen, and calls of new callers are missing until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Set

from gotrace.fleet.probing import Probe, ProbeSource
from gotrace.fleet.threads import LastingThread, apart

_LONGEST = 1.0  # seconds between two looks for new probes
_SHARE = 200  # times the CPU time of looks that passes until they may go on
_AT_ONCE = 1.0  # seconds of CPU time that are saved up: a search for callers takes some of these


class Mover:
    """The thread, which begins with the first probe."""

    def __init__(self) -> None:
        self._closing = threading.Event()
        self._thread: LastingThread | None = None
        self._sources: Set[Probe | ProbeSource] = frozenset()

    def follow(self, sources: Set[Probe | ProbeSource]) -> None:
        """Look after probes from now on, and after no others."""
        self._sources = sources
        if sources and self._thread is None:
            self._thread = LastingThread("landings", self._move, self._closing.wait)
            self._thread.start()

    def _move(self, thread: LastingThread) -> None:
        due: dict[Probe | ProbeSource, float] = {}
        pause, saved, last = 0.0, _AT_ONCE, time.monotonic()
        while not self._closing.wait(pause):
            began, now = time.thread_time(), time.monotonic()
            saved, last = min(saved + (now - last) / _SHARE, _AT_ONCE), now
            due = {one: due.get(one, now) for one in self._sources}
            for one, at in due.items():
                if now >= at:
                    due[one] = now + _LONGEST
                    with apart("landings", "where calls are seen returning"):
                        due[one] = now + one.move()
            rest = min(due.values(), default=now + _LONGEST) - time.monotonic()
            saved -= time.thread_time() - began
            pause = max(-saved * _SHARE, min(rest, _LONGEST))
            thread.back_in(pause)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
