# SPDX-License-Identifier: Apache-2.0
"""Say on a terminal that a start takes its time, until there is something else to say."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

__all__ = ["Progress"]

_PATIENCE = 1.0  # seconds in which nothing is said
_CLEAR = b"\r\x1b[K"


class Progress:
    """One line on standard error that is there from a second after the start until ``end``.

    Written by another thread, with write(2) alone: this process forks meanwhile, and a lock that
    the thread holds would never be released in a child.
    """

    def __init__(self, name: str) -> None:
        """Begin for a command of this name, where standard error is a terminal that takes it."""
        self._name = name
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if not sys.stderr.isatty() or os.environ.get("TERM") in (None, "dumb"):
            return
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no further thread
            self._thread = None

    def _run(self) -> None:
        shown = False
        while not self._over.wait(_PATIENCE):
            passed = time.monotonic() - self._begun
            text = f"{self._name}: reading the program and placing probes... {passed:.0f} s"
            self._write(_CLEAR + text.encode())
            shown = True
        if shown:
            self._write(_CLEAR)

    @staticmethod
    def _write(data: bytes) -> None:
        with suppress(OSError):
            os.write(2, data)

    def end(self) -> None:
        """Clear the line, for good."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
