# SPDX-License-Identifier: Apache-2.0
"""A terminal that is drawn on, and given back as it was."""

from __future__ import annotations

import curses
import locale
import os
import select
import signal
import sys
import termios
from collections.abc import Container, Mapping
from contextlib import suppress
from types import FrameType

from gotrace.errors import GotraceError
from gotrace.report.top import ScreenLine
from gotrace.text import printable

#: Terminals that cannot move the cursor.
_DUMB = frozenset({"", "dumb", "unknown", "network", "dialup"})
_ESCAPE_MS = 25
#: Signals that end a program that does not handle them, except those that its own faults send.
_ENDS = (
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGTRAP, signal.SIGABRT, signal.SIGIO),
)


def check_terminal(environ: Mapping[str, str] = os.environ) -> None:
    """Raise GotraceError if there is no terminal here that can be drawn on."""
    name = environ.get("TERM", "")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise GotraceError("there is no terminal to draw on: -b prints results one after the other")
    problem = f"the terminal (TERM={name}) cannot be drawn on: -b prints results"
    if name in _DUMB:
        raise GotraceError(problem)
    try:
        curses.setupterm(name, sys.stdout.fileno())
    except curses.error as error:
        raise GotraceError(f"{problem}: {error}") from None
    if not curses.tigetstr("cup"):
        raise GotraceError(problem)


class Terminal:
    """The terminal, drawn on by curses; a context manager that gives it back."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Take the environment, in which NO_COLOR may be."""
        self._wants_colour = not environ.get("NO_COLOR")
        self._has_colour = False
        self._has_resized = False
        self._is_ours = False
        #: Keys that have been pressed, and wait for ``key``.
        self.ahead: list[str] = []
        #: Whether only ASCII can be shown.
        self.is_ascii = True

    def __enter__(self) -> Terminal:
        locale.setlocale(locale.LC_CTYPE, "")
        self.is_ascii = "utf" not in locale.nl_langinfo(locale.CODESET).lower()
        self._fd = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._fd)
        self._previous = {signal.SIGWINCH: signal.signal(signal.SIGWINCH, self._resized)}
        for number in _ENDS:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._previous[number] = signal.signal(number, self._end)
        try:
            self._is_ours = True
            os.environ.setdefault("ESCDELAY", str(_ESCAPE_MS))
            self._window = curses.initscr()
            curses.noecho()
            curses.cbreak()
            self._window.keypad(True)
            self._window.nodelay(True)
            with suppress(curses.error):
                curses.curs_set(0)
            if self._wants_colour and curses.has_colors():
                with suppress(curses.error):
                    curses.start_color()
                    curses.use_default_colors()
                    curses.init_pair(1, curses.COLOR_RED, -1)
                    self._has_colour = True
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Give the terminal back, once; may be called in a signal's handler."""
        if not self._is_ours:
            return
        self._is_ours = False
        with suppress(curses.error):
            curses.curs_set(1)
        with suppress(curses.error):
            curses.endwin()
        with suppress(termios.error, OSError):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        for number, previous in self._previous.items():
            with suppress(ValueError, OSError):
                signal.signal(number, previous)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back, and end as the signal would have ended this process."""
        self.restore()
        os.kill(os.getpid(), number)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._has_resized = True

    @property
    def input(self) -> int:
        """Return the descriptor that keys come from."""
        return self._fd

    @property
    def size(self) -> tuple[int, int]:
        """Return lines and columns, as they are now."""
        if self._has_resized:
            self._has_resized = False
            with suppress(OSError, curses.error):
                columns, lines = os.get_terminal_size(sys.stdout.fileno())
                curses.resizeterm(max(lines, 1), max(columns, 1))
                self._window.clear()
        lines, columns = self._window.getmaxyx()
        return lines, columns

    @property
    def is_gone(self) -> bool:
        """Return whether no key can ever come: there is no terminal any more."""
        events = select.poll()
        events.register(self._fd, select.POLLIN)
        return any(what & (select.POLLHUP | select.POLLERR) for _, what in events.poll(0))

    def look_ahead(self, now: Container[str]) -> list[str]:
        """Return the pressed keys that are among ``now``; from the first other one on all wait."""
        found: list[str] = []
        while (pressed := self._pressed()) is not None:
            (found if pressed in now and not self.ahead else self.ahead).append(pressed)
        return found

    def key(self) -> str | None:
        """Return a pressed key: a letter, or a name as ``KEY_UP``; None if there is none."""
        return self.ahead.pop(0) if self.ahead else self._pressed()

    def _pressed(self) -> str | None:
        try:
            key = self._window.get_wch()
        except curses.error:
            return None
        if isinstance(key, int):
            return curses.keyname(key).decode()
        return key

    def draw(self, lines: list[ScreenLine], reverse: set[int], bold: set[int]) -> None:
        """Draw lines from the top, those of ``reverse`` and of ``bold`` so."""
        height, width = self.size
        self._window.erase()
        for at, line in enumerate(lines[:height]):
            style = 0
            if at in reverse:
                style |= curses.A_REVERSE
            if at in bold or line.is_marked:
                style |= curses.A_BOLD
            if line.is_marked and self._has_colour:
                style |= curses.color_pair(1)
            text = printable(line.text)
            if self.is_ascii:
                text = text.encode("ascii", "backslashreplace").decode()
            if at in reverse:
                text = text.ljust(width)
            with suppress(curses.error):  # the last column of the last line moves the cursor
                self._window.addnstr(at, 0, text, width, style)
        self._window.refresh()
