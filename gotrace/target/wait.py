# SPDX-License-Identifier: Apache-2.0
"""Wait for events that end or divide a run: time, signals, and the target's end."""

from __future__ import annotations

import atexit
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from types import FrameType

from gotrace.closing import Closing
from gotrace.target.process import Process

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds. ``timeout`` of coreutils signals its command, and then the process group, which has the
#: command as well. Python may come to see the second signal only when a system call has ended.
_AT_ONCE = 0.5


class Reason(Enum):
    """The event that ended a wait."""

    TIME = "time"
    ASKED = "asked"
    EXIT = "exit"
    INPUT = "input"


class Waiter(Closing):
    """One wait for a time, for processes' ends, and for another thread that asks it to end.

    A context manager that closes its descriptors.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.RLock()  # a signal's handler may ask while it is held
        self._is_open = True
        self._exits: set[int] = set()
        #: When it was asked to end (``time.monotonic``), None before that.
        self.asked: float | None = None

    def watch(self, processes: Iterable[Process]) -> None:
        """Wait for the end of all these processes as well. Raises ProcessError."""
        for process in processes:
            self._exits.add(process.exit_descriptor())

    def ask(self) -> None:
        """End the wait, and each that begins after this. May be called in any thread."""
        with self._lock:
            if self.asked is None:
                self.asked = time.monotonic()
            if self._is_open:  # else its number may be another's by now
                with suppress(BlockingIOError):
                    os.write(self._write, b"\0")

    def wait(self, until: float, also: int | None = None) -> Reason:
        """Wait until a time (``time.monotonic``), or for something earlier.

        ``also`` is a descriptor whose input ends the wait as well, as any signal does then.
        """
        poll = select.poll()
        for descriptor in (self._read, *self._exits, *(() if also is None else (also,))):
            poll.register(descriptor, select.POLLIN)
        while self.asked is None:
            # The end comes before the time, which may be past whenever this is called.
            ready = {fd for fd, _ in poll.poll(max(0, until - time.monotonic()) * 1000)}
            if self._read in ready:
                os.read(self._read, 64)
                if also is not None and self.asked is None:
                    return Reason.INPUT
            elif ended := self._exits & ready:
                self._exits -= ended
                for descriptor in ended:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                if not self._exits:
                    return Reason.EXIT
            elif also in ready:
                return Reason.INPUT
            elif time.monotonic() >= until:
                return Reason.TIME
        return Reason.ASKED

    def close(self) -> None:
        """Close the descriptors; nothing can be waited for any more."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                for descriptor in (self._read, self._write, *self._exits):
                    os.close(descriptor)


class Interrupts:
    """The signals that ask for an end, counted as whoever sends them means them."""

    def __init__(self) -> None:
        self._first: float | None = None

    @property
    def begun(self) -> bool:
        return self._first is not None

    def ordinal(self) -> int:
        """Return which one the signal of this moment is: 1, 2, or 0 if it repeats the first."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return 1
        return 2 if now - self._first >= _AT_ONCE else 0


class SignalWaiter(Waiter):
    """A wait that SIGINT, SIGTERM and SIGHUP end as well.

    A context manager: the previous signal handling is restored at its end, but for what repeats a
    signal then. A signal that arrives between waits is not lost, it ends the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._interrupts = Interrupts()
        #: Actions at once, whatever is going on: at the first signal, and at a second.
        self.on_first: Callable[[], None] | None = None
        self.on_second: Callable[[], None] | None = None
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> SignalWaiter:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN and number is signal.SIGHUP:
                continue  # nohup
            self._previous[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, self._late if self._interrupts.begun else handler)
        if self._interrupts.begun:
            atexit.register(self._ignore)
        signal.set_wakeup_fd(self._wakeup)
        self.close()

    def _late(self, number: int, frame: FrameType | None) -> None:
        """Take a signal that may repeat the first one as a process ends; another is as before."""
        if self._interrupts.ordinal() == 2:
            signal.signal(number, self._previous[signal.Signals(number)])
            os.kill(os.getpid(), number)

    def _ignore(self) -> None:
        """Ignore the signals while the interpreter ends, which removes handlers."""
        for number in self._previous:
            if signal.getsignal(number) == self._late:
                signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        action = (None, self.on_first, self.on_second)[self._interrupts.ordinal()]
        self.ask()
        if action is not None:
            action()
