# SPDX-License-Identifier: Apache-2.0
"""Answer /metrics, /healthz, /readyz and /debug/pprof on one address.

One thread reads requests and writes answers, of all connections; what takes time is done by others.
So a client that is slow takes a descriptor and nothing else, and each step has an end.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import ipaddress
import logging
import os
import re
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.config import Listen, WebSpec
from gotrace.fleet.exposition import READER, page
from gotrace.fleet.pages import Pages
from gotrace.fleet.telemetry.price import OverBudgetError
from gotrace.fleet.threads import LATE, LastingThread, note_failure, unwell
from gotrace.fleet.web_config import empty, load_web_config
from gotrace.records import dataclass, field
from gotrace.text import printable

log = logging.getLogger("gotraced")

_THREADS = 2  # one makes pages; files are read in the other
_MAX_CHECKS = 32  # passwords that wait to be checked
_MAX_CONNECTIONS = 256  # then the one that has waited longest for its request is closed
#: Requests that are answered, and bytes of answers that nobody has read yet: if there are more, the
#: client that has most of them loses its oldest.
_MAX_ANSWERS, _MAX_UNREAD = 256, 64 << 20
_CHUNK = 65536  # bytes of an answer that are written at a time
_SEND_BUFFER = 1 << 18  # bytes that the kernel keeps of an answer
_AT_ONCE = 64  # connections that are taken before others are looked after
_RESERVE = 64  # descriptors that no connection takes: they are for programs that are looked for
_MAX_HEAD = 16384  # bytes of a request
_PATIENCE = 10.0  # seconds, for a request to be whole, a handshake, and an answer to be read
_LONGEST = 120.0  # seconds, for an answer to be made
_FRESH = 5.0  # seconds between two looks at the files of TLS and authentication
_PLAIN = "text/plain; charset=utf-8"
_PAUSE = 0.5  # seconds, where there is no descriptor for a connection
_SILENCE = 60.0  # seconds between two lines of wrong passwords
_CLOSING = 1.0  # seconds, for answers that are being written


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
    """Health and readiness of the daemon: of the engine, and of all threads."""

    def __init__(self, pulse: Callable[[], float], is_ready: Callable[[], bool]) -> None:
        self._pulse = pulse
        self.is_ready = is_ready

    def unwell(self) -> list[str]:
        """Return the threads that have not been at work lately."""
        is_well = time.monotonic() - self._pulse() < LATE
        return [*unwell(), *([] if is_well else ["engine"])]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request: its target, and what of its headers counts, in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    client: str

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class _BadRequestError(Exception):
    """Bytes that are no request, with the status that says so."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = HTTPStatus(status)


@contextmanager
def _shared(listening: socket.socket) -> Iterator[None]:
    """Share the port with another socket of this user meanwhile."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield
    finally:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def _listening(listen: Listen, beside: socket.socket | None) -> socket.socket:
    """Return a socket that listens; ``beside`` may listen on the same port. Raises OSError."""
    with ExitStack() as undo:
        made = undo.enter_context(socket.socket(_family(listen)))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        with ExitStack() as sharing:
            if beside is not None:
                for one in (made, beside):
                    sharing.enter_context(_shared(one))
            made.bind((listen.host, listen.port))
            made.listen(_MAX_CONNECTIONS)
        undo.pop_all()
        return made


def check_listen(listen: Listen) -> None:
    """Look up the name that is to be listened on. Raises GotraceError."""
    try:
        socket.getaddrinfo(listen.host, listen.port, _family(listen), socket.SOCK_STREAM)
    except OSError as error:
        raise _refusal(listen, error) from error


def _refusal(listen: Listen, error: OSError) -> GotraceError:
    reason = error.strerror or error
    return GotraceError(f"cannot listen on {listen.host}:{listen.port}: {reason}")


def _family(listen: Listen) -> int:
    return socket.AF_INET6 if ":" in listen.host else socket.AF_INET


class WebServer:
    """A server in threads of its own; ``close`` ends it."""

    def __init__(
        self,
        listen: Listen,
        registry: CollectorRegistry | None,
        health: Health,
        take_profile: TakeProfile | None = None,
        beside: WebServer | None = None,
        spec: WebSpec | None = None,
    ) -> None:
        """Listen. Raises GotraceError.

        Without a registry it answers nothing but what health is asked. ``beside`` may listen on the
        same port; one of them is to be closed then. If that listens at the same address, they share
        its socket, so that no client is refused meanwhile.
        """
        self.listen = listen
        self.spec = spec = spec or WebSpec()
        self._registry = registry
        self._health = health
        self._take_profile = take_profile
        self._profiling = threading.Lock()  # one at a time: a dump takes memory and CPU time
        self._socket: socket.socket
        self._config = empty() if spec.config is None else load_web_config(spec.config)
        try:
            self._socket = self._listening(beside)
        except OSError as error:
            raise _refusal(listen, error) from error
        self.port = int(self._socket.getsockname()[1])
        self._pool = ThreadPoolExecutor(_THREADS, "web")
        self._profiler = ThreadPoolExecutor(1, "profile")
        self._checker = ThreadPoolExecutor(1, "password")
        self._checks = self._wrong = 0
        self._said = 0.0
        #: Connections whose requests are not whole, the oldest first; all others, with the client
        #: and what it is to read.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._answering: dict[asyncio.Task[None], tuple[str, bytes]] = {}
        self._loop: asyncio.AbstractEventLoop
        self._closing = threading.Event()
        self._is_over: asyncio.Event  # so that the loop need not wait for the one above
        self._begin()
        self._thread = LastingThread("web", self._run, self._closing.wait)
        self._thread.start()

    def _listening(self, beside: WebServer | None) -> socket.socket:
        """Return a socket that listens. Raises OSError."""
        if beside is not None and beside.listen == self.listen:
            return beside._socket.dup()
        return _listening(self.listen, beside._socket if beside is not None else None)

    def close(self) -> None:
        """Stop listening; answers that are being made are written."""
        self._closing.set()
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()
        self._pool.shutdown(wait=False)
        self._profiler.shutdown(wait=False)
        self._checker.shutdown(wait=False)

    def _begin(self) -> None:
        self._loop, self._is_over = asyncio.new_event_loop(), asyncio.Event()
        self._checking = asyncio.Lock()
        self._pages = Pages[_Answer]()
        self._loop.set_exception_handler(_log_of_loop)

    def _run(self, thread: LastingThread) -> None:
        if self._loop.is_closed():  # what ended it has ended all that it did
            self._begin()
        loop = self._loop
        try:
            loop.run_until_complete(self._serve(thread))
        finally:
            if self._socket.fileno() >= 0:
                loop.remove_reader(self._socket)  # who connects now waits for the next loop
            if tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()
        self._socket.close()

    async def _serve(self, thread: LastingThread) -> None:
        self._loop.add_reader(self._socket, self._accept)
        while not self._closing.is_set():
            thread.back_in(_FRESH)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _FRESH)
            if not self._closing.is_set():
                await self._renew()
        self._pages.hurry()
        self._loop.remove_reader(self._socket)
        for _ in range(_MAX_CONNECTIONS // _AT_ONCE):
            self._accept()  # who has connected since the last turn of the loop
        self._socket.close()
        if tasks := {*self._waiting, *self._answering}:
            _, late = await asyncio.wait(tasks, timeout=_CLOSING)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _accept(self) -> None:
        """Take connections that there are. The loop calls again while there are more."""
        try:
            for _ in range(_AT_ONCE):  # those that are too many are closed before the next ones
                self._take(self._socket.accept()[0])
        except BlockingIOError:  # another server may have been first
            pass
        except OSError as error:  # no descriptors are left
            log.error("cannot answer: %s", error.strerror or error)
            self._loop.remove_reader(self._socket)
            self._loop.call_later(_PAUSE, self._accept_again)

    def _accept_again(self) -> None:
        if not self._closing.is_set():
            self._loop.add_reader(self._socket, self._accept)

    def _take(self, connection: socket.socket) -> None:
        """Answer a connection in a task of its own. Raises OSError if it took a reserved file."""
        if connection.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE:
            connection.close()
            if self._waiting:
                next(iter(self._waiting)).cancel()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        task = self._loop.create_task(self._connected(connection))
        self._waiting[task] = None
        task.add_done_callback(self._forget)  # it may end before it begins
        if len(self._waiting) > _MAX_CONNECTIONS:
            next(iter(self._waiting)).cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._answering.pop(task, None)
        # A bug, in whatever a scrape or a profile reads, costs this request alone; the task would
        # keep it to itself.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request was not answered", exc_info=error)

    async def _opened(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection's streams, after the handshake where there is one."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        tls = self._config.tls
        reader = asyncio.StreamReader(limit=_MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=tls,
            ssl_handshake_timeout=_PATIENCE if tls else None,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _renew(self) -> None:
        """Read the files of TLS and authentication again where they have changed."""
        if self.spec.config is None or not self._config.is_stale():
            return
        try:
            self._config = await self._loop.run_in_executor(
                self._pool, load_web_config, self.spec.config
            )
        except GotraceError as error:
            log.error("%s: the one before is used", printable(str(error)))
            self._config = self._config.seen()  # that is said once for each change
        else:
            log.info("%s was read again", printable(self.spec.config))

    async def _connected(self, socket_: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        writer: asyncio.StreamWriter | None = None
        client, has_body = None, True
        try:
            reader, writer = await self._opened(socket_)
            try:
                asked = await asyncio.wait_for(self._request(connection, reader, writer), _PATIENCE)
            except _BadRequestError as error:
                answer = _plain(error.status, "this is not a request")
            else:
                del self._waiting[task]
                client, has_body = asked.client, asked.method != "HEAD"
                self._begin_answer(task, client, b"")
                answer = await asyncio.wait_for(self._answer(asked, writer), _LONGEST)
                self._begin_answer(task, client, answer.body)
            await asyncio.wait_for(self._write(connection, answer, has_body, writer), _PATIENCE)
            if client is not None:
                self._pages.has_read(client)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError, EOFError):
            # A client that went away, or was too slow: the kernel is to keep nothing for it.
            with suppress(OSError):
                socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            if writer is not None:
                writer.transport.abort()
            else:
                socket_.close()

    def _begin_answer(self, task: asyncio.Task[None], client: str, body: bytes) -> None:
        """Take note of what a client is to read; end what is too much. Who shares a page has it."""
        self._answering[task] = client, body
        while self._is_too_much():
            clients = Counter(client for client, _ in self._answering.values())
            most = max(clients, key=clients.__getitem__)
            oldest = next(task for task, one in self._answering.items() if one[0] == most)
            del self._answering[oldest]
            oldest.cancel()

    def _is_too_much(self) -> bool:
        bodies = {id(body): len(body) for _, body in self._answering.values()}
        is_much = len(bodies) > 1 and sum(bodies.values()) > _MAX_UNREAD
        return is_much or len(self._answering) > _MAX_ANSWERS

    @staticmethod
    async def _request(
        connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Asked:
        """Return a request. Raises EOFError, OSError, _BadRequestError."""
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                raise _BadRequestError(error.error_status_hint) from error
            if isinstance(event, h11.Request):
                break
            if event is not h11.NEED_DATA:
                raise EOFError
            connection.receive_data(await reader.read(_MAX_HEAD))
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
        peer = writer.get_extra_info("peername")
        return _Asked(method, target, found, str(peer[0]) if peer else "")

    async def _write(
        self,
        connection: h11.Connection,
        answer: _Answer,
        has_body: bool,
        writer: asyncio.StreamWriter,
    ) -> None:
        headers = {
            "Server": "gotraced",
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Connection": "close",
            **self._config.headers,
            **answer.headers,
        }
        response = h11.Response(
            status_code=answer.status,
            headers=list(headers.items()),
            reason=answer.status.phrase.encode(),
        )
        writer.write(connection.send(response) or b"")
        for start in range(0, len(answer.body) if has_body else 0, _CHUNK):
            chunk = h11.Data(data=answer.body[start : start + _CHUNK])
            writer.write(connection.send(chunk) or b"")
            await writer.drain()
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _answer(self, asked: _Asked, writer: asyncio.StreamWriter) -> _Answer:
        if asked.method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n", headers=allowed)
        if asked.path == "/healthz":
            return _health(self._health.unwell())
        if asked.path == "/readyz":
            return _health([] if self._health.is_ready() else ["not yet"])
        if not _is_own(asked.headers.get("host", ""), self.spec.hosts):
            reason = "this host is not called so: hosts in the configuration lists its names"
            return _plain(HTTPStatus.MISDIRECTED_REQUEST, reason)
        if not self._config.may_connect(writer.get_extra_info("peercert")):
            return _plain(HTTPStatus.FORBIDDEN, "the certificate has none of the names that may")
        given = asked.headers.get("authorization", "").encode("latin-1")
        if self._config.known(given) is None and self._checks >= _MAX_CHECKS:
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords are being checked")
        if not await self._may_ask(given, asked.client):
            ask = {"WWW-Authenticate": self._config.asks}
            return _Answer(HTTPStatus.UNAUTHORIZED, b"Unauthorized\n", headers=ask)
        if asked.path == "/metrics" and self._registry is not None:
            accept, is_packed = (
                asked.headers.get("accept", ""),
                gzip_accepted(asked.headers.get("accept-encoding", "")),
            )
            make = partial(self._metrics, self._registry, asked.client, accept, is_packed)
            # Headers that ask for the same are the same.
            return await self._pages.page(
                asked.client,
                (choose_encoder(accept)[1], is_packed),
                lambda: self._loop.run_in_executor(self._pool, make),
            )
        if asked.path in _PROFILES and self._take_profile is not None:
            if self._profiling.locked():
                return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "another profile is made")
            take = partial(self._profile, self._take_profile, asked)
            return await self._loop.run_in_executor(self._profiler, take)
        return _plain(HTTPStatus.NOT_FOUND, "/metrics, /healthz, /readyz")

    async def _may_ask(self, given: bytes, client: str) -> bool:
        """Return whether a client's password or token is right.

        Those that are known take nothing. Others take their turn, one at a time, and wrong ones at
        most a quarter of a CPU: whoever guesses keeps no scrape out.
        """
        config = self._config
        is_right = config.known(given)
        if is_right is None:
            self._checks += 1
            try:
                async with self._checking:
                    begun = time.monotonic()
                    check = self._loop.run_in_executor(self._checker, config.lets_in, given)
                    if not (is_right := await check):
                        await asyncio.sleep(3 * (time.monotonic() - begun))
            finally:
                self._checks -= 1
        if not is_right:
            self._wrong += 1
            if time.monotonic() >= self._said:
                self._said = time.monotonic() + _SILENCE
                log.warning("%d wrong passwords or tokens, the last from %s", self._wrong, client)
                self._wrong = 0
        return bool(is_right)

    @staticmethod
    def _metrics(registry: CollectorRegistry, client: str, accept: str, is_packed: bool) -> _Answer:
        READER.set(client)
        try:
            body, content_type = page(registry, accept)
        except (GotraceError, OSError) as error:  # maps that cannot be read
            log.error("/metrics was not answered: %s", printable(str(error)))
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log")
        headers = {"Vary": "Accept, Accept-Encoding"}
        if is_packed:
            body = gzip.compress(body, compresslevel=6)
            headers["Content-Encoding"] = "gzip"
        return _Answer(HTTPStatus.OK, body, content_type, headers)

    def _profile(self, take: TakeProfile, asked: _Asked) -> _Answer:
        words = parse_qs(urlsplit(asked.target).query)
        pid, length = (words.get(name, [""])[-1] for name in ("pid", "seconds"))
        known = "target" in words and _NUMBER.fullmatch(pid) and _NUMBER.fullmatch(length)
        seconds = int(length) if known and length else _SECONDS
        kind = _PROFILES[asked.path]
        if not known or not 1 <= seconds <= _MAX_SECONDS:
            usage = "give target=NAME, perhaps pid=PID"
            if kind is not ProfileKind.GOROUTINE:
                usage += f", seconds=N from 1 to {_MAX_SECONDS}"
            return _plain(HTTPStatus.BAD_REQUEST, usage)
        if not self._profiling.acquire(blocking=False):
            return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "another profile is made")
        try:
            body = take(kind, words["target"][-1], int(pid) if pid else None, seconds)
        except (GotraceError, OSError) as error:
            status = _STATUSES.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
            return _plain(status, printable(str(error)))
        finally:
            self._profiling.release()
        return _Answer(HTTPStatus.OK, body, "application/octet-stream")


def _plain(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, f"{text}\n".encode())


def _health(problems: Sequence[str]) -> _Answer:
    if not problems:
        return _plain(HTTPStatus.OK, "ok")
    return _plain(HTTPStatus.SERVICE_UNAVAILABLE, f"no: {', '.join(problems)}")


def _is_own(host: str, patterns: tuple[str, ...]) -> bool:
    """Return whether this host may be called so: pages of strangers may not read it by their names.

    A browser that a stranger's name leads here sends that name (DNS rebinding).
    """
    if not host:
        return True
    name = host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]
    name = name.lower().rstrip(".")
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    own = os.uname().nodename.lower()
    if name == "localhost" or name in (own, own.partition(".")[0]):
        return True
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)


def _log_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write one line of what went wrong with a connection, if it is not the client's doing."""
    error = context.get("exception")
    if error is None or isinstance(error, OSError):  # TLS's errors are, too
        log.debug("%s: %s", context.get("message"), error)
    elif isinstance(error, Exception):
        note_failure("web", str(context.get("message")), error)
