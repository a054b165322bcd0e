# SPDX-License-Identifier: Apache-2.0
"""Hand requests of OTLP to a collector, and find out what became of them."""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gotrace.errors import GotraceError
from gotrace.fleet.config import HeaderSpec, OtlpSpec, Protocol
from gotrace.records import dataclass


class SendFailure(Enum):
    """Why data was not taken; values are those of the label ``reason``."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    TLS = "tls"
    UNAVAILABLE = "unavailable"
    THROTTLED = "throttled"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    NOT_FOUND = "404"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    #: The collector took the rest of the request.
    REJECTED = "rejected"
    #: A file of headers or certificates cannot be read.
    CREDENTIALS = "credentials"
    #: A request that was kept on disk is not there as it was written.
    DAMAGED = "damaged"
    OTHER = "other"
    #: There was no room, though nothing had failed.
    FULL = "full"


#: Failures that may pass: the data is kept meanwhile.
TEMPORARY = frozenset(
    {
        SendFailure.REFUSED,
        SendFailure.UNREACHABLE,
        SendFailure.TIMEOUT,
        SendFailure.TLS,
        SendFailure.UNAVAILABLE,
        SendFailure.THROTTLED,
        SendFailure.UNAUTHORIZED,
        SendFailure.FORBIDDEN,
        SendFailure.NOT_FOUND,
        SendFailure.CREDENTIALS,
    }
)


#: Failures that may be of one request alone: others may be taken meanwhile.
BY_REQUEST = TEMPORARY - {
    SendFailure.REFUSED,
    SendFailure.TLS,
    SendFailure.THROTTLED,
    SendFailure.CREDENTIALS,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of a request: ``reason`` is None if it was taken, but for ``rejected`` items.

    ``detail`` is for the log. ``wait`` is how long the collector asks to wait, in seconds.
    """

    reason: SendFailure | None = None
    rejected: int = 0
    detail: str = ""
    wait: float = 0.0


_RESPONSES: dict[str, Any] = {
    "metrics": ExportMetricsServiceResponse,
    "spans": ExportTraceServiceResponse,
}
_PATHS = {"metrics": "/v1/metrics", "spans": "/v1/traces"}
_METHODS = {
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "spans": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
_MAX_ANSWER = 1 << 16  # bytes


def spans_in(data: bytes) -> int | None:
    """Return how many spans a request has, None if it is none."""
    try:
        request = ExportTraceServiceRequest.FromString(data)
    except Exception:  # of protobuf, which has no types
        return None
    return sum(len(scope.spans) for one in request.resource_spans for scope in one.scope_spans)


def _taken(signal: str, answer: bytes) -> Outcome:
    """Return the outcome of a collector's answer."""
    try:
        partial = _RESPONSES[signal].FromString(answer).partial_success
    except Exception:  # of protobuf, or a proxy's page: the status says that it was taken
        return Outcome()
    rejected = partial.rejected_spans if signal == "spans" else partial.rejected_data_points
    return Outcome(rejected=max(0, int(rejected)), detail=str(partial.error_message)[:200])


def _headers(headers: Sequence[HeaderSpec]) -> dict[str, str]:
    """Return headers with their values as they are now. Raises GotraceError."""
    return {one.name.lower(): header_value(one) for one in headers}


def header_value(one: HeaderSpec) -> str:
    """Return a header's value, from its file or the environment. Raises GotraceError."""
    try:
        if one.file is not None:
            value = Path(one.file).read_text().strip()
        elif one.env is not None:
            value = os.environ[one.env].strip()
        else:
            value = one.value
    except KeyError as error:
        raise GotraceError(f"header {one.name}: ${one.env} is not set") from error
    except (OSError, UnicodeDecodeError) as error:
        raise GotraceError(f"header {one.name} cannot be read: {error}") from error
    if not value.isascii() or not value.isprintable():
        raise GotraceError(f"header {one.name}: its value is not printable ASCII")
    return value


class Sender(ABC):
    """Where requests go. Threads may send, each signal by one."""

    @abstractmethod
    def send(self, signal: str, data: bytes) -> Outcome:
        """Send a request once, and return what became of it. Raises nothing that is foreseen."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class _Wire:
    """The connection of a thread's session; ``bounded`` ends a request that takes too long.

    A timeout of ``requests`` is for each read: a byte a second never reaches it.
    """

    def __init__(self) -> None:
        self._connection: Any = None

    def adapter(self) -> Any:
        """Return the adapter that connects for a session."""
        import requests

        adapter = requests.adapters.HTTPAdapter()
        found = _urllib3(requests).connectionpool
        pools = {"http": found.HTTPConnectionPool, "https": found.HTTPSConnectionPool}
        adapter.poolmanager.pool_classes_by_scheme = {
            scheme: self._noting(pool) for scheme, pool in pools.items()
        }
        return adapter

    def _noting(self, pool: Any) -> Any:
        """Return a kind of pool whose last connection is known here."""
        wire = self

        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def connect(self) -> None:
                wire._connection = self
                super().connect()

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[threading.Event]:
        """End a request after some seconds; yield an event that is set if that was so."""
        is_done, is_late = threading.Event(), threading.Event()

        def watch() -> None:
            wait = seconds
            while not is_done.wait(wait):
                is_late.set()
                self._cut()
                wait = _AGAIN  # it may be connecting yet

        watching = threading.Thread(target=watch, name="otlp-timeout", daemon=True)
        watching.start()
        try:
            yield is_late
        finally:
            is_done.set()
            watching.join()

    def _cut(self) -> None:
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


_AGAIN = 0.1  # seconds


def _urllib3(requests: Any) -> Any:
    """Return the urllib3 that requests is built on, as requests has it."""
    return requests.packages.urllib3


class _Http(Sender):
    def __init__(self, spec: OtlpSpec) -> None:
        import requests

        self._spec = spec
        self._requests = requests
        #: The exception of reading an answer is not of requests, but of the urllib3 below it.
        of_reading = _urllib3(requests).exceptions.HTTPError
        self._failures = (requests.RequestException, of_reading, OSError)
        self._local = threading.local()

    def _session(self) -> tuple[Any, _Wire]:
        if not hasattr(self._local, "session"):
            session = self._requests.Session()
            session.trust_env = False  # of proxies and .netrc: the configuration says all
            spec = self._spec
            session.verify = spec.ca_file or True
            if spec.cert_file is not None and spec.key_file is not None:
                session.cert = (spec.cert_file, spec.key_file)
            wire = _Wire()
            for scheme in ("http://", "https://"):
                session.mount(scheme, wire.adapter())
            self._local.session = session, wire
        found: tuple[Any, _Wire] = self._local.session
        return found

    def send(self, signal: str, data: bytes) -> Outcome:
        session, wire = self._session()
        with wire.bounded(self._spec.timeout) as is_late:
            outcome = self._send(session, signal, data)
        if is_late.is_set():
            return Outcome(
                SendFailure.TIMEOUT, detail=f"it takes more than {self._spec.timeout:g} s"
            )
        return outcome

    def _send(self, session: Any, signal: str, data: bytes) -> Outcome:
        errors = self._requests.exceptions
        try:
            headers = {
                "content-type": "application/x-protobuf",
                "content-encoding": "gzip",
                **_headers(self._spec.headers),
            }
            answer = session.post(
                f"{self._spec.endpoint}{_PATHS[signal]}",
                data=gzip.compress(data, 1),
                headers=headers,
                timeout=self._spec.timeout,
                allow_redirects=False,
                stream=True,
            )
            with answer:
                body = answer.raw.read(_MAX_ANSWER, decode_content=True)
        except GotraceError as error:
            return Outcome(SendFailure.CREDENTIALS, detail=str(error))
        except errors.SSLError as error:
            return Outcome(SendFailure.TLS, detail=_innermost(error))
        except errors.Timeout as error:
            return Outcome(SendFailure.TIMEOUT, detail=_innermost(error))
        except self._failures as error:
            return Outcome(_of_connection(error), detail=_innermost(error))
        if 200 <= answer.status_code < 300:
            return _taken(signal, body)
        reason = _of_status(answer.status_code)
        wait = answer.headers.get("Retry-After", "")
        seconds = min(float(wait), _MAX_WAIT) if wait.isascii() and wait.isdecimal() else 0.0
        return Outcome(reason, detail=f"status {answer.status_code}", wait=seconds)

    def close(self) -> None:
        """Connections end with the threads that have them."""


_MAX_WAIT = 30.0  # seconds; a collector may ask for any time


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found and len(found) < 16:
        found.append(one)
        inner = next((each for each in one.args if isinstance(each, BaseException)), None)
        reason = getattr(one, "reason", None)
        one = inner or (reason if isinstance(reason, BaseException) else None) or one.__cause__
        one = one or found[-1].__context__
    return found


def _innermost(error: BaseException) -> str:
    return " ".join(str(_chain(error)[-1]).split())[:200]


def _of_connection(error: BaseException) -> SendFailure:
    for one in _chain(error):
        if isinstance(one, ConnectionRefusedError):
            return SendFailure.REFUSED
        if isinstance(one, ssl.SSLError):
            return SendFailure.TLS
        if isinstance(one, TimeoutError):
            return SendFailure.TIMEOUT
        if isinstance(one, socket.gaierror):
            return SendFailure.UNREACHABLE
        if isinstance(one, FileNotFoundError | PermissionError) or "invalid path" in str(one):
            return SendFailure.CREDENTIALS
    return SendFailure.UNREACHABLE


def _of_status(status: int) -> SendFailure:
    if status in (401, 403, 404):
        return SendFailure(str(status))
    if status == 413:
        return SendFailure.TOO_LARGE
    if status == 429:
        return SendFailure.THROTTLED
    if status in (500, 502, 503, 504):
        return SendFailure.UNAVAILABLE
    return SendFailure.INVALID if 400 <= status < 500 else SendFailure.OTHER


class _Grpc(Sender):
    def __init__(self, spec: OtlpSpec) -> None:
        import grpc

        self._grpc: Any = grpc
        self._spec = spec
        scheme, _, place = spec.endpoint.partition("://")
        options = [
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", _MAX_ANSWER),
        ]
        if scheme == "http":
            self._channel = self._grpc.insecure_channel(place, options)
        else:
            try:
                read = [
                    None if path is None else Path(path).read_bytes()
                    for path in (spec.ca_file, spec.key_file, spec.cert_file)
                ]
            except OSError as error:
                raise _unread(error.filename) from error
            credentials = self._grpc.ssl_channel_credentials(*read)
            self._channel = self._grpc.secure_channel(place, credentials, options)
        self._calls = {
            signal: self._channel.unary_unary(
                method,
                request_serializer=lambda data: data,
                response_deserializer=lambda data: data,
            )
            for signal, method in _METHODS.items()
        }

    def send(self, signal: str, data: bytes) -> Outcome:
        try:
            headers = list(_headers(self._spec.headers).items())
            answer = self._calls[signal](
                data,
                timeout=self._spec.timeout,
                metadata=headers,
                compression=self._grpc.Compression.Gzip,
            )
        except GotraceError as error:
            return Outcome(SendFailure.CREDENTIALS, detail=str(error))
        except self._grpc.RpcError as error:
            text = " ".join(str(error.details()).split())
            return Outcome(self._reason(error.code(), text), detail=text[:200])
        except ValueError as error:  # the channel is closed
            return Outcome(SendFailure.OTHER, detail=str(error)[:200])
        return _taken(signal, answer)

    def _reason(self, code: Any, text: str) -> SendFailure:
        codes = self._grpc.StatusCode
        if code is codes.UNAVAILABLE:
            low = text.lower()
            if any(word in low for word in ("ssl", "tls", "certificate", "handshake")):
                return SendFailure.TLS
            if "refused" in low:
                return SendFailure.REFUSED
            if any(word in low for word in ("dns", "resolution", "unreachable")):
                return SendFailure.UNREACHABLE
            return SendFailure.UNAVAILABLE
        return {
            codes.UNAUTHENTICATED: SendFailure.UNAUTHORIZED,
            codes.PERMISSION_DENIED: SendFailure.FORBIDDEN,
            codes.UNIMPLEMENTED: SendFailure.NOT_FOUND,
            codes.NOT_FOUND: SendFailure.NOT_FOUND,
            codes.INVALID_ARGUMENT: SendFailure.INVALID,
            codes.FAILED_PRECONDITION: SendFailure.INVALID,
            codes.RESOURCE_EXHAUSTED: SendFailure.THROTTLED,
            codes.DEADLINE_EXCEEDED: SendFailure.TIMEOUT,
            codes.CANCELLED: SendFailure.UNAVAILABLE,
            codes.ABORTED: SendFailure.UNAVAILABLE,
            codes.OUT_OF_RANGE: SendFailure.UNAVAILABLE,
            codes.DATA_LOSS: SendFailure.UNAVAILABLE,
        }.get(code, SendFailure.OTHER)

    def close(self) -> None:
        self._channel.close()


def _unread(path: str) -> GotraceError:
    return GotraceError(f"otlp: {path} cannot be read")


def check_sender(spec: OtlpSpec) -> None:
    """Raise GotraceError if something is missing that sending needs."""
    for path in (spec.ca_file, spec.cert_file, spec.key_file):
        if path is not None and not os.access(path, os.R_OK):
            raise _unread(path)
    for one in spec.headers:
        header_value(one)


def sender(spec: OtlpSpec) -> Sender:
    """Return the sender of a protocol. Raises GotraceError, ModuleNotFoundError."""
    check_sender(spec)
    return _Http(spec) if spec.protocol is Protocol.HTTP else _Grpc(spec)
