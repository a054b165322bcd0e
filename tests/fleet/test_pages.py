# SPDX-License-Identifier: Apache-2.0
"""Whoever asks for pages and does not read them takes no scrape away from others."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gotrace.fleet.config import Listen
from gotrace.fleet.exposition import READER
from gotrace.fleet.pages import Pages
from gotrace.fleet.web import Health, WebServer

HONEST = "127.0.0.1"


class Long(Collector):
    """Pages of some megabytes, each of which takes a while; ``made`` are the clients of each."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.made: list[str] = []
        self._seconds = seconds

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("long", "")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.made.append(READER.get())
        time.sleep(self._seconds)
        yield GaugeMetricFamily("long", "x" * (4 << 20), value=1)


def serving(collector: Collector) -> WebServer:
    registry = CollectorRegistry()
    registry.register(collector)
    return WebServer(Listen("127.0.0.1", 0), registry, Health(time.monotonic, lambda: True))


def asking(port: int, client: str) -> socket.socket:
    """Ask for a page from an address, and read nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((client, 0))
    made.settimeout(60)
    made.connect(("127.0.0.1", port))
    made.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return made


def scrape(port: int) -> bytes:
    with socket.create_connection((HONEST, port), 60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(1 << 20), b""))


@pytest.mark.parametrize("addresses", [1, 60])
def test_sixty_who_do_not_read_take_no_scrape_away(addresses: int) -> None:
    collector, is_over = Long(), threading.Event()
    server = serving(collector)
    others = [f"127.0.1.{1 + number % addresses}" for number in range(60)]

    def ask_again_and_again() -> None:
        with ExitStack() as opened:
            while not is_over.wait(0.02):
                for client in others:
                    opened.enter_context(asking(server.port, client))
                    if is_over.is_set():
                        return
                opened.pop_all().close()

    thread = threading.Thread(target=ask_again_and_again)
    try:
        assert scrape(server.port).startswith(b"HTTP/1.1 200")
        thread.start()
        began = time.monotonic()
        for _ in range(5):
            before = len(collector.made)
            answer = scrape(server.port)
            assert answer.startswith(b"HTTP/1.1 200") and len(answer) > 4 << 20
            assert collector.made[before:].count(HONEST) == 1
        of_others = sum(client != HONEST for client in tuple(collector.made))
        passed = time.monotonic() - began
    finally:
        is_over.set()
        thread.join()
        server.close()
    assert 0 < of_others <= 2 + passed / (3 * 0.1)


def test_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gotrace.fleet.web._MAX_ANSWERS", 8)
    server = serving(Long(0.0))
    with ExitStack() as opened:
        try:
            kept = opened.enter_context(asking(server.port, "127.0.1.2"))
            many = [opened.enter_context(asking(server.port, "127.0.1.1")) for _ in range(20)]
            assert scrape(server.port).startswith(b"HTTP/1.1 200")
            ended = select.poll()
            for one in (kept, *many):
                ended.register(one, 0)  # an error alone
            until = time.monotonic() + 5
            while len(found := ended.poll(0)) < 14 and time.monotonic() < until:
                time.sleep(0.01)
            assert len(found) == 14  # eight are left: six of them, the one that is kept, the scrape
            assert kept.fileno() not in {number for number, _ in found}
        finally:
            server.close()


def test_unread_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gotrace.fleet.web._MAX_UNREAD", 10 << 20)
    server = serving(Long(0.0))
    with ExitStack() as opened:
        try:
            many = [opened.enter_context(asking(server.port, f"127.0.1.{n}")) for n in range(1, 7)]
            ended = select.poll()
            for one in many:
                ended.register(one, 0)
            until = time.monotonic() + 5
            while len(found := ended.poll(0)) < 4 and time.monotonic() < until:
                time.sleep(0.01)
            assert len(found) == 4
            assert scrape(server.port).startswith(b"HTTP/1.1 200")
        finally:
            server.close()


def in_turn(ask: Callable[[Pages[str], list[str]], Awaitable[None]]) -> list[str]:
    """Have pages asked for, and return what was made, in this order."""
    made: list[str] = []
    asyncio.run(ask(Pages(), made))  # type: ignore[arg-type]
    return made


async def page(pages: Pages[str], made: list[str], client: str) -> str:
    async def make() -> str:
        made.append(client)
        await asyncio.sleep(0)
        if client == "failing":
            raise ValueError(client)
        return f"{client} {len(made)}"

    return await pages.page(client, "plain", make)


def test_who_reads_is_first_and_requests_of_one_client_share_a_page() -> None:
    async def ask(pages: Pages[str], made: list[str]) -> None:
        assert await page(pages, made, "reader") == "reader 1"
        pages.has_read("reader")
        assert await page(pages, made, "other") == "other 2"
        clients = ["other", "new", "reader", "other", "gone", "reader"]
        asked = [asyncio.create_task(page(pages, made, client)) for client in clients]
        await asyncio.sleep(0)
        asked[4].cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found[0] == found[3] and found[2] == found[5]

    assert in_turn(ask) == ["reader", "other", "reader", "new", "other"]


def test_a_page_that_fails_is_the_failure_of_all_who_have_asked() -> None:
    async def ask(pages: Pages[str], made: list[str]) -> None:
        found = await asyncio.gather(
            *(page(pages, made, client) for client in ("failing", "a", "failing")),
            return_exceptions=True,
        )
        assert [type(one) for one in found] == [ValueError, str, ValueError]

    assert in_turn(ask) == ["failing", "a"]
