"""Wait for what ends or divides a run: time, signals, and the target's end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from enum import Enum
from types import FrameType, TracebackType
from typing import ClassVar

__all__ = [
    "Reason",
    "Waiter",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Reason(Enum):
    """Say what ended a wait."""

    TIME = "time"
    INTERRUPT = "interrupt"
    EXIT = "exit"
    EVENTS = "events"


class Waiter:
    """Turn SIGINT, SIGTERM, SIGHUP and the target's end into return values of one wait.

    A context manager: the previous signal handling is restored at its end. A signal that arrives
    between waits is not lost, it ends the next one.
    """

    #: When a signal asked the run to end (``time.monotonic``), None while none has.
    _asked: ClassVar[float | None] = None

    def __init__(self, exit_descriptor: int | None = None) -> None:
        """Watch ``exit_descriptor``, a pidfd, when given."""
        self._exit = exit_descriptor
        self._interrupted = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    @classmethod
    def interrupted_for(cls) -> float:
        """Return for how many seconds a run has been asked to end; 0 when none has."""
        return 0.0 if cls._asked is None else time.monotonic() - cls._asked

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
        Waiter._asked = None
        os.close(self._read)
        os.close(self._write)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        Waiter._asked = Waiter._asked or time.monotonic()

    @property
    def interrupted(self) -> bool:
        """Tell whether a signal has asked the run to end."""
        return self._interrupted

    def wait(self, until: float | None, descriptors: Sequence[int] = ()) -> Reason:
        """Wait until a time (``time.monotonic``, None for ever) or for something earlier.

        ``descriptors`` that become readable end the wait with EVENTS.
        """
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if self._exit is not None:
            poll.register(self._exit, select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        while not self._interrupted:
            # The end comes before the time, which may be past whenever this is called.
            remaining = None if until is None else max(0, until - time.monotonic())
            ready = poll.poll(None if remaining is None else remaining * 1000)
            fds = {fd for fd, _ in ready}
            if self._read in fds:
                os.read(self._read, 64)
            elif self._exit in fds:
                return Reason.EXIT
            elif until is not None and time.monotonic() >= until:
                return Reason.TIME
            elif fds:
                return Reason.EVENTS
        return Reason.INTERRUPT
