# SPDX-License-Identifier: Apache-2.0
"""What becomes of spans while a collector takes none, and what is said of it."""

from __future__ import annotations

import gzip
import http.server
import os
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.config import HeaderSpec, OtlpSpec, Protocol, parse_config
from gotrace.fleet.otlp import FinishedCall, Otlp
from gotrace.fleet.transport import SendFailure, sender
from tests.fleet.test_endpoint import certificates as certificates
from tests.fleet.test_otlp import COLLECTORS, Received, over_http

_PATIENCE = 60.0
#: Seconds of the outage, of 100 spans each.
OUTAGE = int(os.environ.get("GOTRACE_OUTAGE", "3"))


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few spans come here: none need wait long for others to be sent with it."""
    monkeypatch.setattr("gotrace.fleet.otlp._LINGER", 0.02)


def call(number: int) -> FinishedCall:
    return FinishedCall("t", "f", number, number + 1, {"n": number})


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def answering(
    status: int, body: bytes = b"", tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer each request alike; yield the address, and the headers of those that came."""
    came: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            came.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as listening:
        if tls is not None:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://localhost:{listening.server_address[1]}", came
        finally:
            listening.shutdown()


def free_port() -> int:
    with answering(200) as (endpoint, _):
        return int(endpoint.rpartition(":")[2])


@pytest.mark.parametrize("protocol", COLLECTORS)
@pytest.mark.parametrize("has_disk", [False, True])
def test_an_outage_loses_no_span(
    protocol: str,
    has_disk: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("gotrace.fleet.otlp._FIRST_PAUSE", 0.1)
    monkeypatch.setattr("gotrace.fleet.otlp._MAX_PAUSE", 0.3)
    received = Received()
    with COLLECTORS[protocol](received) as endpoint:
        pass  # its port is free now
    spec = OtlpSpec(
        endpoint,
        Protocol(protocol),
        interval=3600,
        disk=str(tmp_path / "spool") if has_disk else None,
        queue=512 if has_disk else 16384,
    )
    otlp = Otlp(spec, list)
    for number in range(100 * OUTAGE):
        otlp.put(call(number))
        time.sleep(0.01)
    assert otlp.counts() == {}
    (failed,) = {signal for signal, _ in otlp.failures()}
    assert failed == "spans"
    if protocol == "http":
        assert {reason for _, reason in otlp.failures()} == {"refused"}
    with COLLECTORS[protocol](received, int(endpoint.rpartition(":")[2])):
        received.wait_for_spans(100 * OUTAGE)
        wait_until(lambda: otlp.counts() == {("spans", "sent"): 100 * OUTAGE})
        otlp.close()
    assert f"{endpoint} takes spans again" in caplog.text
    found = {int.from_bytes(span.span_id, "big") for _, span in received.spans}
    assert len(found) == len(received.spans) == 100 * OUTAGE
    assert not has_disk or not any((tmp_path / "spool").iterdir())


def test_what_waits_on_disk_is_sent_by_the_next_process(tmp_path: Path) -> None:
    received = Received()
    with over_http(received) as endpoint:
        pass
    disk = str(tmp_path / "spool")
    otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600, disk=disk), list)
    for number in range(40):
        otlp.put(call(number))
    otlp.close()
    assert otlp.counts() == {}
    with over_http(received) as endpoint:
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600, disk=disk), list)
        received.wait_for_spans(40)
        otlp.close()
    assert len(received.spans) == 40


def test_where_a_spool_is_full_spans_wait_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    spec = OtlpSpec(
        f"http://127.0.0.1:{free_port()}",
        Protocol.HTTP,
        interval=3600,
        disk=str(folder),
        disk_bytes=200_000,
    )
    otlp = Otlp(spec, list)
    wait_until(lambda: put(otlp) and "wait in memory" in caplog.text)
    wait_until(lambda: put(otlp) and otlp.waiting >= 20)
    assert otlp.dropped() == {}
    for path in folder.iterdir():
        path.unlink()
    with caplog.at_level("INFO"):
        wait_until(lambda: "has room again" in caplog.text)
    assert any(folder.iterdir())
    otlp.close()
    (said,) = [record for record in caplog.records if "wait in memory" in record.message]
    assert said.message == f"disk: {folder}: it has 0 MB: spans wait in memory"


def put(otlp: Otlp) -> bool:
    for number in range(50):
        otlp.put(call(number))
    return True


@pytest.mark.live
def test_where_the_disk_is_full_spans_wait_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k,mode=0700", "tmpfs", str(folder)], check=True
    )
    try:
        endpoint = f"http://127.0.0.1:{free_port()}"
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600, disk=str(folder)), list)
        wait_until(lambda: put(otlp) and "No space left" in caplog.text)
        wait_until(lambda: put(otlp) and otlp.waiting >= 20)
        assert otlp.dropped() == {}
        assert not any(path.suffix == ".part" for path in folder.iterdir())
        otlp.close()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_reload_hands_on_what_waits() -> None:
    received = Received()
    with over_http(received) as endpoint:
        before = Otlp(
            OtlpSpec(f"http://127.0.0.1:{free_port()}", Protocol.HTTP, interval=3600), list
        )
        for number in range(40):
            before.put(call(number))
        wait_until(lambda: bool(before.failures()))
        after = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600), list)
        before.close(after)
        received.wait_for_spans(40)
        after.close()
    assert before.counts() == {} and after.counts() == {("spans", "sent"): 40}


@pytest.mark.parametrize(
    ("status", "reason", "is_kept"),
    [
        (400, "invalid", False),
        (401, "401", True),
        (403, "403", True),
        (404, "404", True),
        (413, "too_large", False),
        (429, "throttled", True),
        (503, "unavailable", True),
        (501, "other", False),
    ],
)
def test_reasons(status: int, reason: str, is_kept: bool, caplog: pytest.LogCaptureFixture) -> None:
    with answering(status) as (endpoint, came):
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600), list)
        otlp.put(call(1))
        wait_until(lambda: bool(otlp.failures()) if is_kept else bool(otlp.dropped()))
        assert set(otlp.failures()) == {("spans", reason)}
        assert otlp.dropped() == ({} if is_kept else {("spans", reason): 1})
        assert otlp.waiting == 0 and came
        otlp.close()
        assert otlp.dropped() == {("spans", reason): 1}
    said = [record for record in caplog.records if "does not take" in record.message]
    assert len(said) == 1 and f"spans: {reason} (status {status})" in said[0].message


@pytest.mark.parametrize("where", ["status", "headers", "body"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_collector_that_trickles_is_too_late(
    where: str, has_tls: bool, certificates: Path
) -> None:
    tls, ca_file = None, None
    if has_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "localhost.crt", certificates / "localhost.key")
        ca_file = str(certificates / "ca.crt")
    before = {
        "status": b"",
        "headers": b"HTTP/1.1 200 OK\r\nX-A: ",
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    }[where]
    with trickling(before, tls) as endpoint:
        sending = sender(OtlpSpec(endpoint, Protocol.HTTP, timeout=0.5, ca_file=ca_file))
        for _ in range(2):  # the next request is not harmed
            began = time.monotonic()
            assert sending.send("spans", b"").reason is SendFailure.TIMEOUT
            assert 0.4 < time.monotonic() - began < 3.0


@contextmanager
def trickling(before: bytes, tls: ssl.SSLContext | None) -> Iterator[str]:
    """Answer requests with some bytes at once and then ten a second; yield the address."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65536)
                self.request.sendall(before)
                while not ended.wait(0.1):
                    self.request.sendall(b"1")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as listening:
        if tls is not None:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://localhost:{listening.server_address[1]}"
        finally:
            ended.set()
            listening.shutdown()


def test_partial_success_is_counted() -> None:
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    body = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    with answering(200, body) as (endpoint, _):
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600), list)
        for number in range(10):
            otlp.put(call(number))
        wait_until(lambda: bool(otlp.counts()))
        otlp.close()
    assert otlp.counts() == {("spans", "sent"): 7, ("spans", "dropped"): 3}
    assert otlp.dropped() == {("spans", "rejected"): 3}


def test_headers_from_files_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("Bearer one\n")
    monkeypatch.setenv("TENANT", "shop")
    headers = (
        HeaderSpec("Authorization", file=str(token)),
        HeaderSpec("X-Tenant", env="TENANT"),
        HeaderSpec("X-Plain", "p"),
    )
    with answering(200) as (endpoint, came):
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, headers, interval=3600), list)
        otlp.put(call(1))
        wait_until(lambda: len(came) == 1)
        token.write_text("Bearer two\n")  # which is read again
        otlp.put(call(2))
        wait_until(lambda: len(came) == 2)
        otlp.close()
    assert [one["authorization"] for one in came] == ["Bearer one", "Bearer two"]
    assert {(one["x-tenant"], one["x-plain"]) for one in came} == {("shop", "p")}
    with pytest.raises(GotraceError, match=r"\$NOSUCH is not set"):
        Otlp(OtlpSpec(endpoint, Protocol.HTTP, (HeaderSpec("a", env="NOSUCH"),)), list)
    with pytest.raises(GotraceError, match=r"header a cannot be read: .*/nowhere"):
        Otlp(OtlpSpec(endpoint, Protocol.HTTP, (HeaderSpec("a", file="/nowhere"),)), list)
    with pytest.raises(GotraceError, match="otlp: /nowhere cannot be read"):
        Otlp(OtlpSpec("https://a", Protocol.GRPC, ca_file="/nowhere"), list)


def test_certificates(certificates: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates / "localhost.crt", certificates / "localhost.key")
    serving.load_verify_locations(certificates / "ca.crt")
    serving.verify_mode = ssl.CERT_REQUIRED
    own = {"cert_file": "prometheus.crt", "key_file": "prometheus.key", "ca_file": "ca.crt"}
    files: dict[str, Any] = {key: str(certificates / name) for key, name in own.items()}
    with answering(200, tls=serving) as (endpoint, came):
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600, **files), list)
        otlp.put(call(1))
        wait_until(lambda: otlp.counts() == {("spans", "sent"): 1})
        otlp.close()
        assert came
        otlp = Otlp(OtlpSpec(endpoint, Protocol.HTTP, interval=3600), list)
        otlp.put(call(1))
        wait_until(lambda: ("spans", "tls") in otlp.failures())
        otlp.close()


@pytest.mark.parametrize(
    ("otlp", "reason"),
    [
        ("headers: {'a b': c}", "cannot be a header's name"),
        ('headers: {a: "b\\nc"}', "a header's value is printable ASCII"),
        ("headers: {a: {file: b}}", "not an absolute path"),
        ("headers: {a: {file: /b, env: C}}", "give file or env"),
        ("tls: {cert_file: /a}", "give both cert_file and key_file"),
        ("tls: {ca_file: /a}", "needs an endpoint of https"),
        ("disk: spool", "not an absolute path"),
    ],
)
def test_wrong_keys_are_refused(otlp: str, reason: str) -> None:
    text = (
        "targets: [{name: t, exe: /a}]\nmetrics: [{name: m, type: counter, probe: f}]\n"
        f"otlp: {{endpoint: 'http://a:1', {otlp}}}\n"
    )
    with pytest.raises(UsageError, match=reason):
        parse_config("c", text)


@contextmanager
def refusing(
    refuses: Callable[[ExportTraceServiceRequest], bool], status: int, wait: str = ""
) -> Iterator[tuple[str, list[int]]]:
    """Refuse some requests, and take others; yield the address, and what was taken, by number."""
    taken: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest.FromString(gzip.decompress(data))
            if refuses(request):
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                if wait:
                    self.send_header("Retry-After", wait)
            else:
                taken.extend(numbers_in(request))
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", taken
        finally:
            listening.shutdown()


def numbers_in(request: ExportTraceServiceRequest) -> list[int]:
    return [
        attribute.value.int_value
        for one in request.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
        for attribute in span.attributes
    ]


@pytest.mark.parametrize(("status", "wait"), [(500, ""), (503, "9" * 40), (403, ""), (0, "")])
@pytest.mark.parametrize("has_disk", [False, True])
def test_a_request_that_is_always_refused_stops_no_other(
    status: int, wait: str, has_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there are more of them than go aside, and one after the other."""
    for name, value in (("_FIRST_PAUSE", 0.02), ("_MAX_PAUSE", 0.02)):
        monkeypatch.setattr(f"gotrace.fleet.otlp.{name}", value)
    monkeypatch.setattr("gotrace.fleet.otlp._MAX_ASIDE", 2)
    monkeypatch.setattr("gotrace.fleet.otlp._MAX_REFUSED", 6)
    monkeypatch.setattr("gotrace.fleet.otlp._BATCH", 4)
    monkeypatch.setattr("gotrace.fleet.transport._MAX_WAIT", 0.05)
    with refusing(lambda one: any(n < 16 for n in numbers_in(one)), status, wait) as (at, taken):
        disk = str(tmp_path / "spool") if has_disk else None
        otlp = Otlp(OtlpSpec(at, Protocol.HTTP, interval=3600, disk=disk), list)
        for number in range(0, 16 + 100, 4):
            put_request(otlp, number)
        wait_until(lambda: {*range(16, 116)} <= {*taken})
        number = 116
        while ("spans", "dropped") not in otlp.counts():  # others go on to be taken
            put_request(otlp, number)
            wait_until(lambda number=number: number in taken)  # type: ignore[misc]
            number += 4
        otlp.close()
    assert len(taken) == len({*taken}) and min(taken) == 16
    (dropped,) = otlp.dropped()
    reasons = {500: "unavailable", 503: "unavailable", 403: "403", 0: "unreachable"}
    assert dropped == ("spans", reasons[status])
    kept = len(list((tmp_path / "spool").iterdir())) if has_disk else 0
    assert otlp.dropped()[dropped] + 4 * kept == 16


def put_request(otlp: Otlp, first: int) -> None:
    """Put four calls that are sent together: a good one beside a bad one would be refused, too."""
    with otlp._waiting:
        for number in range(first, first + 4):
            otlp.put(call(number))


def test_what_went_aside_is_sent_if_no_other_call_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an outage of a collector behind a proxy, which answers for it."""
    for name in ("_FIRST_PAUSE", "_MAX_PAUSE"):
        monkeypatch.setattr(f"gotrace.fleet.otlp.{name}", 0.02)
    is_out = threading.Event()
    is_out.set()
    with refusing(lambda one: is_out.is_set(), 503) as (at, taken):
        otlp = Otlp(OtlpSpec(at, Protocol.HTTP, interval=3600), list)
        otlp.put(call(1))
        wait_until(lambda: otlp.failures().get(("spans", "unavailable"), 0) > 30)
        assert otlp.waiting == 1 and not otlp.dropped()
        is_out.clear()
        wait_until(lambda: taken == [1])
        otlp.close()
    assert otlp.counts() == {("spans", "sent"): 1}


@pytest.mark.parametrize("damage", [lambda data: bytes(len(data)), lambda data: data[:-40]])
def test_a_damaged_file_is_not_sent(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    disk = tmp_path / "spool"
    otlp = Otlp(
        OtlpSpec(f"http://127.0.0.1:{free_port()}", Protocol.HTTP, interval=3600, disk=str(disk)),
        list,
    )
    for number in range(40):
        otlp.put(call(number))
    otlp.close()
    (path,) = disk.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    received = Received()
    with over_http(received) as endpoint:
        spec = OtlpSpec(endpoint, Protocol.HTTP, interval=3600, disk=str(disk))
        otlp = Otlp(spec, list)
        wait_until(lambda: otlp.dropped() == {("spans", "damaged"): 40})
        otlp.close()
    assert received.spans == [] and not any(disk.iterdir())
