# SPDX-License-Identifier: Apache-2.0
"""What the web server answers, and logs, where something goes wrong."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gotrace.errors import GotraceError
from gotrace.fleet.config import Listen
from gotrace.fleet.web import Health, WebServer


class Failing(Collector):
    """A collector whose maps cannot be read, or that has a bug."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Have nothing collected when this is registered."""
        yield GaugeMetricFamily("failing", "")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        raise self._error


def asked(error: Exception) -> None:
    """Ask a server for metrics that fail so."""
    registry = CollectorRegistry()
    registry.register(Failing(error))
    health = Health(time.monotonic, lambda: True)
    server = WebServer(Listen("127.0.0.1", 0), registry, health)
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.port}/metrics", timeout=60
        ) as answer:
            answer.read()
    finally:
        server.close()


@pytest.mark.parametrize("error", [GotraceError("the map is gone"), OSError(9, "the map is gone")])
def test_what_cannot_be_read_is_answered_and_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="500"):
        asked(error)
    (record,) = caplog.records
    assert record.message.startswith("/metrics was not answered: ")
    assert "the map is gone" in record.message and record.exc_info is None


def test_a_bug_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        asked(ValueError("a bug"))
    (record,) = caplog.records
    assert record.message == "a request was not answered"
    assert record.exc_info is not None and str(record.exc_info[1]) == "a bug"


def test_a_head_is_an_answer_without_its_body(caplog: pytest.LogCaptureFixture) -> None:
    server = WebServer(Listen("127.0.0.1", 0), None, Health(time.monotonic, lambda: True))
    try:
        for path, status in (("/healthz", 200), ("/metrics", 404)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, b"")
            assert int(answer.headers["Content-Length"]) > 0
            connection.close()
    finally:
        server.close()
    assert not caplog.records


def test_no_request_fails_as_a_server_replaces_another() -> None:
    """A reload makes a server beside the one before, and ends one of them: the new one if it fails.

    Each answer is whole, and no connection is reset.
    """
    health = Health(time.monotonic, lambda: True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = Listen("127.0.0.1", free.getsockname()[1])
    serving = WebServer(listen, None, health)
    answered, failed, is_over = [], [], threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{listen.port}/healthz") as answer:
                    answered.append(answer.read())
            except (OSError, http.client.HTTPException) as error:
                failed.append(error)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for number in range(300):
            made = WebServer(listen, None, health, beside=serving)
            ending, serving = (made, serving) if number % 3 == 0 else (serving, made)
            ending.close()
    finally:
        is_over.set()
        for client in clients:
            client.join()
        serving.close()
    assert not failed and len(answered) > 100 and set(answered) == {b"ok\n"}
