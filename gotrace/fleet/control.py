# SPDX-License-Identifier: Apache-2.0
"""A Unix socket at which root asks a running daemon for more, for a while.

A connection is one request and one answer, each a line of JSON. Who connects is known by the
kernel's word (SO_PEERCRED), beside the socket's mode: nothing of another user is read.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from gotrace import units
from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.asked import Snippet, read_snippet
from gotrace.fleet.config import Config
from gotrace.fleet.threads import LastingThread, apart
from gotrace.records import dataclass, field
from gotrace.text import printable

log = logging.getLogger("gotraced")

#: Of a request, and of an answer.
MAX_BYTES = 64 << 10
_READING = 5.0  # seconds for a whole request, and for an answer to be taken
_ANSWERING = 120.0  # seconds that attaching may take
_BACKLOG = 8
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class ControlOrder:
    """An order of root: begin a snippet, end the one of a name, or list the snippets."""

    begin: Snippet | None = None
    end: str | None = None
    answer: Future[list[str]] = field(default_factory=Future)


class Control:
    """The socket; a thread reads requests, and another one takes the orders."""

    def __init__(self, path: str, file: Callable[[], Config]) -> None:
        """Listen; ``file`` returns the configuration. Raises GotraceError."""
        self.path = path
        self._file = file
        self._orders: SimpleQueue[ControlOrder] = SimpleQueue()
        self._socket = _listening(path)
        self._closing = threading.Event()
        self._thread = LastingThread("control", self._serve, self._closing.wait)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def take(self) -> ControlOrder | None:
        """Return the next order, None if there is none."""
        try:
            return self._orders.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        self._closing.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with suppress(OSError):
            os.unlink(self.path)

    def _serve(self, thread: LastingThread) -> None:
        while not self._closing.is_set():
            thread.back_in(math.inf)
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._closing.is_set():
                    time.sleep(0.1)  # such as out of descriptors
                continue
            thread.back_in(_ANSWERING + 2 * _READING)
            with connection, apart(thread.name, "control"):
                try:
                    self._talk(connection)
                except OSError as error:
                    log.warning("control: a request was not answered: %s", printable(str(error)))

    def _talk(self, connection: socket.socket) -> None:
        user = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )[1]
        try:
            if user != 0:
                log.warning("control: user %d is refused", user)
                raise UsageError("only root may ask")
            answer: dict[str, Any] = {"said": self._answer(_request(connection))}
        except GotraceError as error:
            answer = {"error": str(error), "status": error.exit_code}
        connection.settimeout(_READING)
        connection.sendall(json.dumps(answer).encode()[:MAX_BYTES] + b"\n")

    def _answer(self, request: Mapping[str, Any]) -> list[str]:
        """Pass a request on to the daemon, and return its answer. Raises GotraceError."""
        order = self._order(request)
        self._orders.put(order)
        try:
            return order.answer.result(_ANSWERING)
        except NotInTime as error:
            raise GotraceError("gotraced is busy: type gotraced ctl list later") from error

    def _order(self, request: Mapping[str, Any]) -> ControlOrder:
        """Return the order in a request. Raises UsageError."""
        texts = ("do", "name", "snippet", "ttl", "budget")
        if unknown := request.keys() - set(texts):
            raise UsageError(f"unknown key {sorted(unknown)[0]!r}")
        do, name, snippet, ttl, budget = (request.get(key) for key in texts)
        if do == "list":
            return ControlOrder()
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a name: letters, digits, _, - and .")
        if do == "end":
            return ControlOrder(end=name)
        if do != "start" or not isinstance(snippet, str):
            raise UsageError(f"{do!r}: there is start, list and end")
        ends = time.monotonic() + _seconds(ttl)
        return ControlOrder(read_snippet(name, snippet, _share(budget), ends, self._file()))


def _seconds(text: object) -> float:
    with suppress(ValueError):
        found = units.seconds(text) if isinstance(text, str) else 0.0
        if 0 < found <= _MAX_SECONDS:
            return found
    raise UsageError(f"{text!r}: a time is as in 10m, 24h at most")


def _share(text: object) -> float:
    with suppress(ValueError):
        found = units.share(text) if isinstance(text, str) else 0.0
        if 0 < found <= 1:
            return found
    raise UsageError(f"{text!r}: a budget is a part of one CPU, as in 1%")


def _request(connection: socket.socket) -> Mapping[str, Any]:
    """Read a line within a time, whatever comes. Raises UsageError."""
    until = time.monotonic() + _READING
    data = b""
    while b"\n" not in data:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        try:
            piece = connection.recv(MAX_BYTES)
        except TimeoutError as error:
            raise UsageError(f"the request took more than {_READING:.0f} s") from error
        data += piece
        if len(data) > MAX_BYTES:
            raise UsageError(f"the request has more than {MAX_BYTES} bytes")
        if not piece or time.monotonic() > until:
            raise UsageError("the request is not whole: a line of JSON")
    try:
        found = json.loads(data.partition(b"\n")[0].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError("the request is not a line of JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise UsageError("the request is not an object")
    return found


def _listening(path: str) -> socket.socket:
    """Return a socket that only its owner, and root, may connect to. Raises GotraceError."""
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    umask = os.umask(0o177)
    try:
        made.bind(path)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise GotraceError(f"--control {path}: cannot listen: {error.strerror or error}") from error
    finally:
        os.umask(umask)
    return made


def _remove_stale(path: str) -> None:
    """Remove the socket of a daemon that was killed. Raises GotraceError."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise GotraceError(f"--control {path}: there is something else, not a socket")
    except FileNotFoundError:
        return
    except OSError as error:
        raise GotraceError(f"--control {path}: {error.strerror}") from error
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(1.0)
        try:
            other.connect(path)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            return
    raise GotraceError(f"--control {path}: another process listens there")


def settle(order: ControlOrder, said: list[str] | GotraceError) -> None:
    """Answer an order, whose asker may have given up."""
    with suppress(InvalidStateError):
        if isinstance(said, GotraceError):
            order.answer.set_exception(said)
        else:
            order.answer.set_result(said)
