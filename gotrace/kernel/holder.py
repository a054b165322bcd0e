# SPDX-License-Identifier: Apache-2.0
"""Hold descriptors for keepers until each one's owner says so: a small program of its own.

A message at its control socket has descriptors: one to answer at, a channel, and others. At the
channel, ``RELEASED`` or the end of its owner has these closed, and the channel then. ``DROPPED``
has those closed whose numbers follow, as 16 bits each after how many there are; an answer follows.
It ends with the last process that has the other end of the control socket. It needs Python's own
modules alone.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

#: What is answered if all descriptors of a message are held, and when some were closed.
HELD = b"h"
RELEASED, DROPPED = b"!", b"-"
#: Descriptors of one message, beside the first two: the kernel takes 253 (SCM_MAX_FD).
MAX_HELD = 250
_CLOSERS = 64  # threads


class _Held:
    """The descriptors of one channel, by number."""

    def __init__(self, channel: int, descriptors: Iterable[int]) -> None:
        self._channel = channel
        self._descriptors = dict(enumerate(descriptors))
        self._closing: threading.Thread | None = None

    def obey(self) -> bool:
        """Do what comes at the channel, in a thread; return whether something may follow.

        The kernel takes its time to close a probe, in which others are to be held.
        """
        numbers: Iterable[int] = [*self._descriptors]
        is_dropped = False
        with suppress(OSError, struct.error):
            if os.read(self._channel, 1) == DROPPED:
                (count,) = struct.unpack("=H", os.read(self._channel, 2))
                numbers = struct.unpack(f"={count}H", os.read(self._channel, 2 * count))
                is_dropped = True
        leaving = [self._descriptors.pop(each) for each in numbers if each in self._descriptors]
        work = leaving, is_dropped, self._closing
        self._closing = threading.Thread(target=self._close, args=work, daemon=True)
        self._closing.start()
        return is_dropped

    @property
    def is_closing(self) -> bool:
        """Return whether what was to be closed is not all closed."""
        return self._closing is not None and self._closing.is_alive()

    def wait(self) -> None:
        """Wait until all that was to be closed is closed."""
        if self._closing is not None:
            self._closing.join()

    def _close(
        self, leaving: Iterable[int], is_dropped: bool, before: threading.Thread | None
    ) -> None:
        """Close descriptors at once: what the kernel waits for then is the same for all."""
        from concurrent.futures import (
            ThreadPoolExecutor,  # keepers know this module, and do without
        )

        with ThreadPoolExecutor(_CLOSERS) as pool:
            list(pool.map(os.close, leaving))
        if before is not None:
            before.join()
        if not is_dropped:
            os.close(self._channel)
            return
        with suppress(OSError):
            os.write(self._channel, DROPPED)


def hold(control: socket.socket) -> None:
    """Hold what comes until nobody is left that sends anything, and what is to go has gone.

    The end of this process kills its threads, and the kernel leaves a breakpoint in place if the
    thread that closes a probe has a SIGKILL pending.
    """
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: dict[int, _Held] = {}
    ending: list[_Held] = []
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != control.fileno():
                if not held[descriptor].obey():
                    waiting.unregister(descriptor)
                    ending = [one for one in ending if one.is_closing]
                    ending.append(held.pop(descriptor))
                continue
            count, found, _, _ = socket.recv_fds(control, 1, MAX_HELD + 2)
            if not count:
                for each, _ in waiting.poll(0):
                    if each in held:  # its owner has ended as well
                        held[each].obey()
                for one in (*ending, *held.values()):
                    one.wait()
                return
            if len(found) != count[0]:  # there was no room for all of them
                for each in found:
                    os.close(each)
                continue
            answer, channel, *rest = found
            held[channel] = _Held(channel, rest)
            waiting.register(channel, select.POLLIN)
            with suppress(OSError):
                os.write(answer, HELD)
            os.close(answer)


def be_called(name: str) -> None:
    """Give this process a name, of 15 bytes at most."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


if __name__ == "__main__":
    be_called("gotrace-keeper")
    hold(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # whatever is being closed is closed with this process
