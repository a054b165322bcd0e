# SPDX-License-Identifier: Apache-2.0
"""Threads of the daemon whose work goes on whatever is raised in it.

A thread that an exception ends says nothing, and what it does is not done from then on. So each is
begun again, after a line in the log; how often that was is a metric, and health asks each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gotrace.errors import GotraceError
from gotrace.text import printable

log = logging.getLogger("gotraced")

#: Seconds after which a thread that should have been back is not well.
LATE = 120.0
_PAUSES = 1.0, 60.0  # seconds before a thread's work is begun again: doubled each time
_SILENCE = 60.0  # seconds between two lines of one failure

_lock = threading.Lock()
_threads: set[LastingThread] = set()
_failures: Counter[str] = Counter()
_said: dict[tuple[str, str, type[BaseException]], float] = {}
_MAX_SAID = 1000


def note_failure(thread: str, what: str, error: Exception) -> None:
    """Count an exception that has cost a thread some of its work, and log it now and then."""
    now, key = time.monotonic(), (thread, what, type(error))
    with _lock:
        _failures[thread] += 1
        is_new = now >= _said.get(key, now)
        if is_new:
            if len(_said) >= _MAX_SAID:
                _said.clear()
            _said[key] = now + _SILENCE
    if is_new:
        is_known = isinstance(error, GotraceError | OSError)
        text = str(error) if is_known else f"{type(error).__name__}: {error}"
        log.error("%s: %s", printable(what), printable(text), exc_info=not is_known)


@contextmanager
def apart(thread: str, what: str) -> Iterator[None]:
    """Keep a failure within from costing anything else: ``note_failure``."""
    try:
        yield
    except Exception as error:
        note_failure(thread, what, error)


def failures() -> dict[str, int]:
    """Return how often something has failed in each thread that there is or was."""
    with _lock:
        names = {thread.name for thread in _threads} | set(_failures)
        return {name: _failures[name] for name in sorted(names)}


def unwell() -> list[str]:
    """Return the threads that have ended, or should have been back long ago."""
    with _lock:
        return sorted({thread.name for thread in _threads if not thread.is_well})


class LastingThread:
    """A thread whose work is begun again if an exception ends it, until ``closing``."""

    def __init__(
        self,
        name: str,
        work: Callable[[LastingThread], None],
        closing: Callable[[float], bool],
    ) -> None:
        """``work`` calls ``back_in`` whenever it has done something.

        ``closing`` waits for so many seconds at most, and returns whether the thread is to end.
        """
        self.name = name
        self._work = work
        self._closing = closing
        self._back_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self.back_in(0.0)
        with _lock:  # health asks those that have begun
            self._thread.start()
            _threads.add(self)

    def back_in(self, seconds: float) -> None:
        """Promise to call this again, when so much time has passed or soon after that."""
        self._back_at = time.monotonic() + seconds

    @property
    def is_well(self) -> bool:
        """Return whether it works, or waits no longer than it has promised to."""
        return self._thread.is_alive() and time.monotonic() < self._back_at + LATE

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        first, longest = _PAUSES
        pause = 0.0
        while True:
            try:
                if not pause or not self._closing(pause):
                    self._work(self)
                break
            except Exception as error:
                pause = min(2 * pause, longest) or first
                note_failure(self.name, f"thread {self.name} is begun again", error)
        with _lock:
            _threads.discard(self)
