# SPDX-License-Identifier: Apache-2.0
"""Hold descriptors for keepers until each one's owner says so: a small program of its own.

A message at its control socket has descriptors: one to answer at, a channel, and others. What comes
at the channel, a byte or the end of its owner, has these closed, and the channel then. It ends with
the last process that has the other end of the control socket. It needs Python's own modules alone.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

#: What is answered if all descriptors of a message are held.
HELD = b"h"
#: Descriptors of one message, beside the first two: the kernel takes 253 (SCM_MAX_FD).
MAX_HELD = 64


def hold(control: socket.socket) -> None:
    """Hold what comes until nobody is left that sends anything."""
    held: dict[int, list[int]] = {}
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != control.fileno():
                waiting.unregister(descriptor)
                # The kernel takes its time, in which others are to be held.
                gone = held.pop(descriptor), descriptor
                threading.Thread(target=_close, args=gone, daemon=True).start()
                continue
            count, found, _, _ = socket.recv_fds(control, 1, MAX_HELD + 2)
            if not count:
                return
            if len(found) != count[0]:  # there was no room for all of them
                for each in found:
                    os.close(each)
                continue
            answer, channel, *held[found[1]] = found
            waiting.register(channel, select.POLLIN)
            with suppress(OSError):
                os.write(answer, HELD)
            os.close(answer)


def _close(held: Sequence[int], channel: int) -> None:
    """Close descriptors at once: what the kernel waits for then is the same for all."""
    closers = [threading.Thread(target=os.close, args=(each,)) for each in held]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    os.close(channel)


def be_called(name: str) -> None:
    """Give this process a name, of 15 bytes at most."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


if __name__ == "__main__":
    be_called("gotrace-keeper")
    hold(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # whatever is being closed is closed with this process
