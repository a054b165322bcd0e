# SPDX-License-Identifier: Apache-2.0
"""A command on a terminal of its own: what is on its screen, keys, and the terminal's state."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyte

from tests.tools.harness import Family

_HANGS = float(os.environ.get("GOTRACE_PATIENCE", "100"))
_ENTERS, _LEAVES = b"\x1b[?1049h", b"\x1b[?1049l"
_CLEARS = b"\x1b[2J"  # what curses writes for clear()


class _Display(pyte.Screen):
    """A terminal that scrolls by SU and SD, too: curses takes them where that is shorter."""

    def _scroll(self, count: int, edge: Callable[[], None], row: int) -> None:
        cursor, self.cursor.y = self.cursor.y, row
        for _ in range(count):
            edge()
        self.cursor.y = cursor

    def scroll_up(self, count: int = 1) -> None:
        """Move the lines within the margins up."""
        _, bottom = self.margins or (0, self.lines - 1)
        self._scroll(count, self.index, bottom)

    def scroll_down(self, count: int = 1) -> None:
        """Move the lines within the margins down."""
        top, _ = self.margins or (0, self.lines - 1)
        self._scroll(count, self.reverse_index, top)


class _Stream(pyte.ByteStream):
    def __init__(self, display: _Display) -> None:
        self.csi = {**self.csi, "S": "scroll_up", "T": "scroll_down"}
        super().__init__(display)


class Screen:
    """A command that has a terminal; a context manager that ends it."""

    def __init__(
        self,
        command: Sequence[str],
        lines: int = 24,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, self._theirs = os.openpty()
        self._screen = _Display(columns, lines)
        self._stream = _Stream(self._screen)
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self._theirs)
        self.raw = b""
        self._family = Family()
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
        self.process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment,
            start_new_session=True,
            pass_fds=(self._family.descriptor,),
            preexec_fn=self._controlled,
        )

    def _controlled(self) -> None:
        # A shell has what it starts in the background ignore some of them.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, lines: int, columns: int) -> None:
        """Make the terminal as large; its programs are told by SIGWINCH."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    def redrawn(self, lines: int, columns: int) -> None:
        """Make the terminal as large; wait until it has been drawn at that size, and once more.

        A program clears the screen for each SIGWINCH, of which there is one at a time.
        """
        before = len(self.raw)
        self.resize(lines, columns)  # which sends one
        self._until_cleared(before)
        self.press("\x1bOB")
        before = len(self.raw)
        self.process.send_signal(signal.SIGWINCH)
        self._until_cleared(before)

    def _until_cleared(self, before: int) -> None:
        patience = time.monotonic() + _HANGS
        while _CLEARS not in self.raw[before:]:
            assert time.monotonic() < patience, f"never drawn:\n{self.text}"
            assert self.process.poll() is None or self._read(0), f"ended:\n{self.text}"
            self._read(0.05)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def _read(self, seconds: float) -> bool:
        """Take what the command writes; return whether it has written something."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        with suppress(OSError):
            data = os.read(self._ours, 1 << 16)
            self.raw += data
            self._stream.feed(data)
            return True
        return False

    @property
    def text(self) -> str:
        """Return what is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, pattern: str) -> re.Match[str]:
        """Return the first match of a pattern on the screen; wait until there is one."""
        patience = time.monotonic() + _HANGS
        while not (found := re.search(pattern, self.text, re.MULTILINE)):
            assert time.monotonic() < patience, f"never {pattern!r}:\n{self.text}"
            assert self.process.poll() is None or self._read(0), f"ended:\n{self.text}"
            self._read(0.05)
        return found

    def wait(self) -> int:
        """Wait for the command's end and return its exit status, negative for a signal."""
        patience = time.monotonic() + _HANGS
        while self.process.poll() is None:
            assert time.monotonic() < patience, f"does not end:\n{self.text}"
            self._read(0.02)
        while self._read(0):
            pass
        return self.process.returncode

    def wait_for_keepers(self) -> None:
        """Wait until the processes that the command has forked have ended, too."""
        self._family.wait()

    def hang_up(self) -> int:
        """Take the terminal away; return the command's exit status."""
        os.close(self._ours)
        self._ours = -1
        return self.process.wait(_HANGS)

    def check_restored(self) -> None:
        """Assert that the terminal is as it was."""
        assert termios.tcgetattr(self._theirs) == self.before
        assert self.raw.count(_ENTERS) <= self.raw.count(_LEAVES)
        assert self.raw.rfind(_ENTERS) <= self.raw.rfind(_LEAVES)
        hidden, shown = self.raw.rfind(b"\x1b[?25l"), self.raw.rfind(b"\x1b[?25h")
        assert hidden <= shown
        assert b"Traceback" not in self.raw, self.raw.decode(errors="replace")[-4000:]

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._family.close()
        if self._ours >= 0:
            os.close(self._ours)
        os.close(self._theirs)
