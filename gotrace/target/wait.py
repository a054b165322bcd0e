# SPDX-License-Identifier: Apache-2.0
"""Wait for what ends or divides a run: time, signals, and the target's end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from enum import Enum
from types import FrameType, TracebackType

__all__ = [
    "Reason",
    "Waiter",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Reason(Enum):
    """What ended a wait."""

    TIME = "time"
    INTERRUPT = "interrupt"
    EXIT = "exit"
    EVENTS = "events"


class Waiter:
    """One wait for SIGINT, SIGTERM, SIGHUP, the target's end and a time.

    A context manager: the previous signal handling is restored at its end. A signal that arrives
    between waits is not lost, it ends the next one.
    """

    def __init__(self, *exit_descriptors: int) -> None:
        """Watch processes by their pidfds: the target has ended when all have."""
        self._exits = set(exit_descriptors)
        #: When a signal asked the run to end (``time.monotonic``), None while none has.
        self.asked: float | None = None
        #: What is to be done at once, whatever is going on: at the first signal, and at a second.
        self.on_first: Callable[[], None] | None = None
        self.on_second: Callable[[], None] | None = None
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Waiter:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN and number is signal.SIGHUP:
                continue  # nohup
            self._previous[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        first = self.asked is None
        if first:
            self.asked = time.monotonic()
        action = self.on_first if first else self.on_second
        if action is not None:
            action()

    @property
    def interrupted(self) -> bool:
        """Return whether a signal has asked the run to end."""
        return self.asked is not None

    def wait(self, until: float | None, descriptors: Sequence[int] = ()) -> Reason:
        """Wait until a time (``time.monotonic``, None for ever) or for something earlier.

        ``descriptors`` that become readable end the wait with EVENTS.
        """
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for descriptor in self._exits:
            poll.register(descriptor, select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        while not self.interrupted:
            # The end comes before the time, which may be past whenever this is called.
            remaining = None if until is None else max(0, until - time.monotonic())
            ready = poll.poll(None if remaining is None else remaining * 1000)
            fds = {fd for fd, _ in ready}
            if self._read in fds:
                os.read(self._read, 64)
            elif ended := self._exits & fds:
                self._exits -= ended
                if not self._exits:
                    return Reason.EXIT
                for descriptor in ended:
                    poll.unregister(descriptor)
            elif until is not None and time.monotonic() >= until:
                return Reason.TIME
            elif fds:
                return Reason.EVENTS
        return Reason.INTERRUPT
