# SPDX-License-Identifier: Apache-2.0
"""The endpoint answers whoever may ask, whatever others send, and nothing to those who may not."""

from __future__ import annotations

import base64
import gzip
import http.client
import logging
import os
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bcrypt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from gotrace.errors import UsageError
from gotrace.fleet.config import Listen, WebSpec, parse_config
from gotrace.fleet.daemon import Daemon
from gotrace.fleet.web import Health, WebServer
from gotrace.fleet.web_config import load_web_config

LOOPBACK = Listen("127.0.0.1", 0)


@contextmanager
def serving(spec: WebSpec | None = None, has_metrics: bool = True) -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("calls", "Calls", registry=registry).inc(7)
    health = Health(time.monotonic, lambda: True)
    server = WebServer(LOOPBACK, registry if has_metrics else None, health, spec=spec)
    try:
        yield server.port
    finally:
        server.close()


def ask(
    port: int,
    path: str = "/metrics",
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if tls is not None:
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=tls)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_methods_and_compression() -> None:
    with serving() as port:
        status, headers, body = ask(port)
        assert (status, b"calls_total 7.0" in body) == (200, True)
        assert "Content-Encoding" not in headers
        status, headers, packed = ask(port, Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed).startswith(body[:40])
        status, headers, nothing = ask(port, method="HEAD")
        assert (status, int(headers["Content-Length"]), nothing) == (200, len(body), b"")
        assert ask(port, method="POST")[0] == 405
        assert ask(port, "/nosuch")[0] == 404
        assert ask(port, "/debug/pprof/goroutine?target=x")[0] == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9435", 200),
        ("[::1]:9435", 200),
        ("10.1.2.3", 200),
        ("localhost", 200),
        (os.uname().nodename, 200),
        ("node7.example.com:9435", 200),
        ("evil.example.net", 421),
        ("127.0.0.1.evil.example.net", 421),
    ],
)
def test_a_strangers_name_for_this_host_is_refused(host: str, status: int) -> None:
    with serving(WebSpec(hosts=("*.example.com",))) as port:
        assert ask(port, Host=host)[0] == status
        assert ask(port, "/healthz", Host=host)[0] == 200


@given(st.binary(min_size=1, max_size=400))
@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
def test_any_bytes(caplog: pytest.LogCaptureFixture, port_of_all: int, data: bytes) -> None:
    caplog.clear()
    for text in (data, b"GET " + data + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + data):
        with socket.create_connection(("127.0.0.1", port_of_all), 60) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = connection.recv(65536)
            except ConnectionError:
                answer = b""
        assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def port_of_all() -> Iterator[int]:
    with serving() as port:
        yield port


@pytest.mark.parametrize(("size", "status"), [(16384, b"200"), (32769, b"431")])
def test_a_head_has_a_size_at_most(size: int, status: bytes) -> None:
    begin, end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n"
    with serving() as port, socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(begin + b"a" * (size - len(begin) - len(end)) + end)
        assert connection.recv(100).split()[1] == status


def test_a_head_without_end_is_refused() -> None:
    with serving() as port, socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


def test_a_thousand_slow_clients_keep_nobody_waiting() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    slow: list[socket.socket] = []
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.05):
            for one in slow:
                try:
                    one.send(b"a")
                except OSError:
                    continue

    with serving() as port:
        dripping = threading.Thread(target=drip)
        try:
            for _ in range(1000):
                one = socket.create_connection(("127.0.0.1", port), 60)
                one.setblocking(False)
                one.send(b"GET /metrics HTTP/1.1\r\nX: ")
                slow.append(one)
            dripping.start()
            for _ in range(20):
                began = time.monotonic()
                assert ask(port)[0] == ask(port, "/healthz")[0] == 200
                assert time.monotonic() - began < 5
        finally:
            ended.set()
            if dripping.ident is not None:
                dripping.join()
            for one in slow:
                one.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_health_alone() -> None:
    with serving(has_metrics=False) as port:
        assert ask(port, "/healthz")[0] == ask(port, "/readyz")[0] == 200
        assert ask(port)[0] == 404


def test_the_log_says_where_health_alone_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    health = Health(time.monotonic, lambda: True)
    daemon: Any = SimpleNamespace(_own_health=None, _health=lambda: health)
    config: Any = SimpleNamespace(web=WebSpec(health=LOOPBACK))
    server = Daemon._health_server(daemon, config)
    assert server is not None
    server.close()
    assert f"health at 127.0.0.1:{server.port}" in caplog.text


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Return a folder with an authority, a server's certificate and a client's."""
    place = tmp_path / "tls"
    place.mkdir()

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    run(*new, "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    for name in ("localhost", "prometheus"):
        run(
            *new,
            *("-x509", "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=CA:FALSE"),
            *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
        )
    return place


def configured(place: Path, text: str) -> WebSpec:
    file = place / "web.yaml"
    file.write_text(text)
    file.chmod(0o600)
    return WebSpec(config=str(file))


TLS = "tls_server_config: {cert_file: localhost.crt, key_file: localhost.key"


def test_tls_and_clients_certificates(certificates: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    spec = configured(certificates, f"{TLS}}}\n")
    with serving(spec) as port:
        assert ask(port, tls=trusting)[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port)
    spec = configured(
        certificates,
        f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt,"
        " client_allowed_sans: [prometheus]}\n",
    )
    with serving(spec) as port:
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, tls=trusting)
        trusting.load_cert_chain(certificates / "localhost.crt", certificates / "localhost.key")
        assert ask(port, tls=trusting)[0] == 403
        known = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        known.load_cert_chain(certificates / "prometheus.crt", certificates / "prometheus.key")
        assert ask(port, tls=known)[0] == 200


def test_a_certificate_is_renewed_without_a_restart(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("gotrace.fleet.web._FRESH", 0.1)
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    with serving(configured(certificates, f"{TLS}}}\n")) as port:
        assert ask(port, tls=trusting)[0] == 200
        before = served(port, trusting)
        fresh = ("localhost.crt", "prometheus.crt"), ("localhost.key", "prometheus.key")
        for old, new in fresh:
            os.replace(certificates / new, certificates / old)
        trusting.check_hostname = False
        until = time.monotonic() + 60
        while served(port, trusting) == before:
            assert time.monotonic() < until
    assert "web.yaml was read again" in caplog.text


def served(port: int, context: ssl.SSLContext) -> bytes | None:
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True)
    except ssl.SSLError:
        return b"neither"


def test_basic_and_bearer(tmp_path: Path) -> None:
    hashed = {word: bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode() for word in ("s", "t")}
    spec = configured(
        tmp_path,
        f"basic_auth_users: {{ann: {hashed['s']}}}\nbearer_tokens: {{one: {hashed['t']}}}\n",
    )

    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    with serving(spec) as port:
        status, headers, _ = ask(port)
        assert (status, headers["WWW-Authenticate"]) == (401, "Basic, Bearer")
        for wrong in ("", basic("ann:t"), basic("bob:s"), "Basic !!", "Bearer s", "Bearer", "x"):
            assert ask(port, Authorization=wrong)[0] == 401, wrong
        for _ in range(2):
            assert ask(port, Authorization=basic("ann:s"))[0] == 200
            assert ask(port, Authorization="Bearer t")[0] == 200
        assert ask(port, "/healthz")[0] == 200


def test_who_guesses_passwords_keeps_no_scrape_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hashed = bcrypt.hashpw(b"s", bcrypt.gensalt(10)).decode()
    spec = configured(tmp_path, f"bearer_tokens: {{one: {hashed}}}\n")
    is_over = threading.Event()

    def guess(number: int) -> None:
        tried = 0
        while not is_over.is_set():
            with suppress(OSError):
                assert ask(port, Authorization=f"Bearer {number}-{tried}")[0] in (401, 503)
            tried += 1

    with serving(spec) as port, ThreadPoolExecutor(40) as pool:
        assert ask(port, Authorization="Bearer s")[0] == 200
        try:
            guessing = [pool.submit(guess, number) for number in range(40)]
            assert ask(port, Authorization="Bearer x")[0] in (401, 503)
            for _ in range(10):
                assert ask(port, Authorization="Bearer s")[0] == 200
        finally:
            is_over.set()
        assert not [one.exception() for one in guessing if one.exception()]
        assert ask(port, Authorization="Bearer x")[0] == 401
    (said, *_) = [one.message for one in caplog.records if "wrong passwords" in one.message]
    assert said == "1 wrong passwords or tokens, the last from 127.0.0.1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("basic_auth_users: {ann: secret}\n", "line 1: this is not a bcrypt hash"),
        ("tls_server_config: {cert_file: a, key_file: b}\n", "No such file"),
        ("tls_server_config: {cert_file: a}\n", "key_file"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: [x]}\n", "cipher_suites"),
        ("rate: 1\n", "rate"),
    ],
)
def test_wrong_web_configurations_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    spec = configured(tmp_path, text)
    assert spec.config is not None
    with pytest.raises(UsageError, match=reason):
        load_web_config(spec.config)
    (tmp_path / "web.yaml").chmod(0o666)
    with pytest.raises(UsageError, match="every user may write to it"):
        load_web_config(spec.config)


def test_keys() -> None:
    text = (
        "listen: 0.0.0.0:1\nhealth: '[::]:2'\nweb_config: /etc/web.yaml\nhosts: [a, '*.b']\n"
        "targets: [{name: t, exe: /a}]\nmetrics: [{name: m, type: counter, probe: f}]\n"
    )
    found = parse_config("c", text).web
    assert found == WebSpec("/etc/web.yaml", ("a", "*.b"), Listen("::", 2))
    with pytest.raises(UsageError, match="not an absolute path"):
        parse_config("c", text.replace("/etc/web.yaml", "web.yaml"))
