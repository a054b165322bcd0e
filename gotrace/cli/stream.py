# SPDX-License-Identifier: Apache-2.0
"""Write results to standard output so that a reader who has stopped cannot hold up the end."""

from __future__ import annotations

import errno
import gzip
import io
import os
import select
import stat
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from gotrace.report.output import Patience

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: Bytes that a pipe takes without waiting if poll(2) calls it writable: PIPE_BUF of pipe(7).
_PIECE = 4096
_LOOK = 0.05


def result_stream(stream: TextIO, patience: Patience, must: bool = True) -> TextIO:
    """Return a stream to the file of another one that writes all it is given.

    Where that file is a pipe, a terminal or a socket that is not read from, writing waits, but
    not beyond ``patience``: then OSError is raised, unless what is written may be missing (not
    ``must``). Otherwise Ctrl-C would do nothing as long as a pager shows its first page.
    """
    try:
        descriptor = stream.fileno()
        kind = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return stream
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor):
        return _InterruptibleText(_InterruptibleWriter(descriptor, patience, must), stream)
    if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
        # Under PYTHONUNBUFFERED, which many containers set, what a write leaves is lost.
        raw = io.FileIO(descriptor, "w", closefd=False)
        return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors)
    return stream


class ResultFile(io.TextIOWrapper):
    """A file for results, compressed where its name ends in ``.gz``.

    It keeps what it has until the first ``flush`` or the end.
    """

    def __init__(self, path: str) -> None:
        """Open the file. Raises OSError, or GotraceError for links of other users."""
        self._file = _Kept(path)
        kept: io.BufferedWriter = io.BufferedWriter(self._file)
        writer = _Compressed(path, kept) if path.endswith(".gz") else kept
        super().__init__(writer, encoding="utf-8", errors="backslashreplace")
        #: Whether it is a file that has results, when it is closed.
        self.is_result = os.path.isfile(path)

    def flush(self) -> None:
        self._file.begin()
        super().flush()

    def give_up(self) -> None:
        """Leave the file as it was, if nothing has been flushed, and do not write any more."""
        self.is_result = self.is_result and not self._file.give_up()


class _Kept(io.FileIO):
    """A file whose earlier content is there until ``begin``, or until the first bytes."""

    def __init__(self, path: str) -> None:
        from gotrace.profiles.write import real_path  # starts sooner without

        real = real_path(path)
        self._new = None if os.path.exists(path) else real
        super().__init__(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "w")
        self._has_begun = self._is_given_up = False

    def begin(self) -> None:
        if self._has_begun or self._is_given_up:
            return
        self._has_begun = True
        if stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.truncate(0)

    def give_up(self) -> bool:
        """Leave the file as it was, if nothing has been written; return whether that is so."""
        if self._has_begun or self._is_given_up:
            return self._is_given_up
        self._is_given_up = True
        if self._new is not None:
            with suppress(OSError):
                os.unlink(self._new)
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        self.begin()
        return memoryview(data).nbytes if self._is_given_up else super().write(data)


class _Compressed(gzip.GzipFile):
    """A compressed file that is brought up to date once a second: each time costs room."""

    _LEVEL = 6
    _PERIOD = 1.0  # seconds

    def __init__(self, path: str, file: io.BufferedWriter) -> None:
        self._below = file
        super().__init__(path, "wb", self._LEVEL, file)
        self._flushed = time.monotonic()

    def close(self) -> None:
        super().close()
        self._below.close()

    def flush(self, zlib_mode: int = zlib.Z_SYNC_FLUSH) -> None:
        now = time.monotonic()
        if now >= self._flushed + self._PERIOD:
            self._flushed = now
            super().flush(zlib_mode)


def takes_more(stream: TextIO, until: float) -> bool:
    """Wait until a stream that has been flushed takes more, at most until ``until``."""
    return not isinstance(stream, _InterruptibleText) or stream.raw.takes_more(until)


class _InterruptibleWriter(io.RawIOBase):
    """A file that may not take anything for a while."""

    def __init__(self, descriptor: int, patience: Patience, must: bool) -> None:
        self._descriptor = descriptor
        self._own = _opened_anew(descriptor)
        self._patience = patience
        self._must = must
        self._poll = select.poll()
        self._poll.register(self._own, select.POLLOUT)
        self._given_up = False
        self._taken = 0.0  # when it took something last, by time.monotonic

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def takes_more(self, until: float) -> bool:
        """Wait until the file takes something, at most until ``until`` (``time.monotonic``)."""
        while not self._given_up:
            left = until - time.monotonic()
            if self._poll.poll(max(0.0, min(left, _LOOK)) * 1000):
                return True
            if left <= _LOOK:
                return False
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of ``data`` and return how much; after an error, as if all was."""
        view = memoryview(data).cast("B")
        while not self._given_up:
            # A reader that is slow but reads is waited for.
            is_late = self._patience.is_over() and time.monotonic() > self._taken + Patience.GRACE
            if self._poll.poll(0 if is_late else _LOOK * 1000):
                try:
                    written = os.write(self._own, view[:_PIECE])
                    self._taken = time.monotonic()
                    return written
                except BlockingIOError:
                    pass
                except OSError:
                    self._given_up = True  # what is flushed at exit would fail again
                    raise
            if is_late:
                self._given_up = True  # flushing at exit must not wait either
                if self._must:  # not EAGAIN, which the buffer above takes for a partial write
                    raise OSError(errno.ETIMEDOUT, "standard output is not being read")
        return len(view)


def _opened_anew(descriptor: int) -> int:
    """Return a descriptor of the same pipe or terminal on which no write waits.

    The mode belongs to the open file, which other processes share: theirs must not change. A
    terminal that has room for one byte lets poll(2) say that it is writable, and a longer write
    waits. Where the file cannot be opened again (a socket, another user's terminal), the descriptor
    itself is returned.
    """
    try:
        return os.open(
            f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except OSError:
        return descriptor


class _InterruptibleText(io.TextIOWrapper):
    """Text that is written to a file that may not take anything for a while."""

    def __init__(self, raw: _InterruptibleWriter, like: TextIO) -> None:
        super().__init__(io.BufferedWriter(raw), like.encoding, like.errors)
        self.raw = raw
