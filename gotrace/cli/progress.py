# SPDX-License-Identifier: Apache-2.0
"""Report that a start takes its time, until there are other messages."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import suppress

from gotrace.kernel.compiling import tell_of_compiling

_PATIENCE = 1.0  # seconds in which nothing is said on a terminal
_LONGER = 3.0  # where the line stays
_CLEAR = b"\r\x1b[K"


class Progress:
    """One line on standard error that is there from a second after the start until ``end``.

    A pipe, a file or a dumb terminal cannot take it back: it gets the line once, and later. If the
    run's BPF program has to be compiled, all get a line that says so, at once.

    Written by another thread, with write(2) alone: this process forks meanwhile, and a lock that
    the thread holds would never be released in a child.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._shown = False
        tell_of_compiling(self.compiles)
        self._thread: threading.Thread | None = None
        self._takes_back = sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb")
        run = self._run if self._takes_back else self._run_once
        self._thread = threading.Thread(target=run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no further thread
            self._thread = None

    def _run(self) -> None:
        while not self._over.wait(_PATIENCE):
            passed = time.monotonic() - self._begun
            self._write(_CLEAR + f"{self._text} {passed:.0f} s".encode())
            self._shown = True
        if self._shown:
            self._write(_CLEAR)

    def _run_once(self) -> None:
        if not self._over.wait(_LONGER) and not self._shown:
            self._write(f"{self._text}\n".encode())

    def compiles(self) -> None:
        """Say that the program is compiled: standard error is the compiler's until that is done."""
        if self._thread is not None:
            self._shown = True
            text = f"{self._name}: compiling the BPF program, which the next runs find...".encode()
            self._write(_CLEAR + text if self._takes_back else text + b"\n")

    @property
    def _text(self) -> str:
        return f"{self._name}: reading the program and placing probes..."

    @staticmethod
    def _write(data: bytes) -> None:
        """Write as much as is taken at once: the start does not wait for a reader."""
        with suppress(OSError):
            room = select.poll()
            room.register(2, select.POLLOUT)
            if room.poll(0):
                os.write(2, data)

    def end(self) -> None:
        """Clear the line, for good."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
