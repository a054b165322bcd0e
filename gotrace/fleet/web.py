# SPDX-License-Identifier: Apache-2.0
"""Answer /metrics, /healthz, /readyz and /debug/pprof on one address."""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.config import Listen
from gotrace.fleet.exposition import READER
from gotrace.fleet.telemetry.price import OverBudgetError
from gotrace.text import printable

__all__ = ["Health", "ProfileKind", "WebServer"]

log = logging.getLogger("gotraced")

_MAX_REQUESTS = 8  # at a time
_PATIENCE = 10.0  # seconds, for a client that is slow
_PLAIN = "text/plain; charset=utf-8"
#: Seconds without a turn of the engine after which it is not well.
_DEAD = 120.0


#: How long waits are watched for a profile unless it is said, and at most.
_SECONDS, _MAX_SECONDS = 5, 60


class ProfileKind(Enum):
    """The profiles that there are; values are their names in paths."""

    GOROUTINE = "goroutine"
    BLOCK = "block"
    MUTEX = "mutex"


#: Returns a profile of a target's process, taken for some seconds; see ``Daemon``.
TakeProfile = Callable[[ProfileKind, str, int | None, int], bytes]
#: A number, or nothing.
_NUMBER = re.compile(r"[0-9]{0,10}", re.ASCII)
_PROFILES = {f"/debug/pprof/{kind.value}": kind for kind in ProfileKind}


_STATUSES: dict[type[Exception], HTTPStatus] = {
    NoMatchError: HTTPStatus.NOT_FOUND,
    OverBudgetError: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Health:
    """What health and readiness are asked of."""

    def __init__(self, pulse: Callable[[], float], is_ready: Callable[[], bool]) -> None:
        self._pulse = pulse
        self.is_ready = is_ready

    @property
    def is_well(self) -> bool:
        """Return whether the engine has been at work lately."""
        return time.monotonic() - self._pulse() < _DEAD


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, listen: Listen, handler: type[BaseHTTPRequestHandler], beside: _Server | None
    ) -> None:
        """Listen; ``beside`` listens, perhaps on the same port, and is to be closed then."""
        self.free = threading.BoundedSemaphore(_MAX_REQUESTS)
        if ":" in listen.host:
            self.address_family = socket.AF_INET6
        super().__init__((listen.host, listen.port), handler, bind_and_activate=False)
        try:
            with ExitStack() as sharing:
                for one in (self, beside):
                    if one is not None and beside is not None:
                        sharing.enter_context(_shared(one.socket))
                self.server_bind()
                self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer in a thread, or not at all where too many are being answered."""
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def take_the_rest(self) -> None:
        """Answer what has connected before the end."""
        self.socket.setblocking(False)
        with suppress(OSError):
            while True:
                self.process_request(*self.get_request())

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what went wrong, but nothing of clients that go away or are slow."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            log.exception("a request was not answered")


@contextmanager
def _shared(listening: socket.socket) -> Iterator[None]:
    """Let another socket of this user listen on the same port meanwhile."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield
    finally:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


class WebServer:
    """A server in threads of its own; ``close`` ends it."""

    def __init__(
        self,
        listen: Listen,
        registry: CollectorRegistry,
        health: Health,
        take_profile: TakeProfile | None = None,
        beside: WebServer | None = None,
    ) -> None:
        """Listen. Raises GotraceError.

        ``beside`` may listen on the same port; it is to be closed then.
        """
        self.listen = listen
        handler = _handler(registry, health, take_profile)
        self._server: _Server
        try:
            self._server = _Server(listen, handler, beside._server if beside else None)
        except OSError as error:
            reason = error.strerror or error
            raise GotraceError(f"cannot listen on {listen.host}:{listen.port}: {reason}") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.take_the_rest()
        self._server.server_close()
        self._thread.join()


def _handler(
    registry: CollectorRegistry, health: Health, take_profile: TakeProfile | None
) -> type[BaseHTTPRequestHandler]:
    profiling = threading.Lock()  # one at a time: a dump takes memory and CPU time

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE
        server_version = "gotraced"
        sys_version = ""

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/metrics":
                READER.set(self.client_address[0])
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                try:
                    body = encode(registry)
                except (GotraceError, OSError) as error:  # maps that cannot be read
                    log.error("/metrics: %s", printable(str(error)))
                    self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, b"see the log\n")
                    return
                self._send(HTTPStatus.OK, content_type, body)
            elif path == "/healthz":
                self._answer(health.is_well)
            elif path == "/readyz":
                self._answer(health.is_ready())
            elif path in _PROFILES and take_profile is not None:
                self._profile(_PROFILES[path], take_profile)
            else:
                self._send(HTTPStatus.NOT_FOUND, _PLAIN, b"/metrics, /healthz, /readyz\n")

        def _profile(self, kind: ProfileKind, take: TakeProfile) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            pid, length = (asked.get(name, [""])[-1] for name in ("pid", "seconds"))
            known = "target" in asked and _NUMBER.fullmatch(pid) and _NUMBER.fullmatch(length)
            seconds = int(length) if known and length else _SECONDS
            if not known or not 1 <= seconds <= _MAX_SECONDS:
                usage = "give target=NAME, perhaps pid=PID"
                if kind is not ProfileKind.GOROUTINE:
                    usage += f", seconds=N from 1 to {_MAX_SECONDS}"
                self._send(HTTPStatus.BAD_REQUEST, _PLAIN, f"{usage}\n".encode())
                return
            if not profiling.acquire(blocking=False):
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"another profile is made\n")
                return
            try:
                body = take(kind, asked["target"][-1], int(pid) if pid else None, seconds)
            except (GotraceError, OSError) as error:
                status = _STATUSES.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
                self._send(status, _PLAIN, f"{printable(str(error))}\n".encode())
                return
            finally:
                profiling.release()
            self._send(HTTPStatus.OK, "application/octet-stream", body)

        def _answer(self, is_good: bool) -> None:
            status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, _PLAIN, b"ok\n" if is_good else b"no\n")

        def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each scrape."""

    return Handler
