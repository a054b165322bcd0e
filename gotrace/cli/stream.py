"""Write results to standard output so that a reader who has stopped cannot hold up the end."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
from typing import TYPE_CHECKING, TextIO

from gotrace.target.wait import Waiter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["open_standard_streams", "result_stream"]

#: What a pipe that poll(2) calls writable takes without waiting: PIPE_BUF of pipe(7).
_PIECE = 4096
#: Seconds that a reader has to take the rest once the run was asked to end.
_GRACE = 1.0
_LOOK = 0.1


def result_stream(stream: TextIO) -> TextIO:
    """Return a stream to the file of another one that writes all it is given.

    Where that file is a pipe, a terminal or a socket and nobody reads from it, writing waits, but
    not beyond a second after a signal has asked the run to end: then OSError is raised. Otherwise
    Ctrl-C would do nothing as long as a pager shows its first page.
    """
    try:
        descriptor = stream.fileno()
        kind = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return stream
    raw: io.RawIOBase
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor):
        raw = _Patient(descriptor)
    elif isinstance(getattr(stream, "buffer", None), io.RawIOBase):
        # Under PYTHONUNBUFFERED, which many containers set, what a write leaves is lost.
        raw = io.FileIO(descriptor, "w", closefd=False)
    else:
        return stream
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors)


def open_standard_streams() -> None:
    """Make sure of file descriptors 0 to 2: where one is closed, the next file would get it.

    Then what is meant for standard error would be written to that file. Raise OSError where
    standard output is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")


class _Patient(io.RawIOBase):
    """Write to a file that may not take anything for a while."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._given_up = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of ``data`` and return how much; nothing counts as written after an error."""
        view = memoryview(data).cast("B")
        while not self._given_up and not self._poll.poll(_LOOK * 1000):
            if Waiter.interrupted_for() > _GRACE:
                self._given_up = True  # flushing at exit must not wait either
                raise OSError(errno.EAGAIN, "nobody takes them from standard output")
        return len(view) if self._given_up else os.write(self._descriptor, view[:_PIECE])
