# SPDX-License-Identifier: Apache-2.0
"""A reload is a transaction: all of it, or nothing, and the endpoint answers throughout."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fleet.test_gotraced import Daemon, calls_of, configured
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.fleet.test_otlp import Received, over_http
from tests.tools.harness import Fixture

RELOADS = int(os.environ.get("GOTRACE_RELOADS", "40"))
HANDLES = "  - {name: handles, type: counter, probe: main.handle}"


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Return ports that are free."""
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(2)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        numbers = [int(one.getsockname()[1]) for one in found]
    yield numbers


def reloaded(daemon: Daemon, works: bool = True) -> str:
    daemon.signal(signal.SIGHUP)
    words = "gotraced: INFO: reloaded" if works else "gotraced: ERROR: not reloaded: "
    return daemon.read_until(words)[0]


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("metrics", "more", "reason"),
    [
        (HANDLES.replace("main.handle", "main.nosuch"), "", "no function matches"),
        (f"{HANDLES[:-1]}, labels: {{error: $ret7}}}}", "", "ret7"),
        (HANDLES, "listen: 192.0.2.1:1", "cannot listen"),
        (HANDLES, "targets: 1", "targets"),
    ],
)
def test_a_failed_reload_changes_nothing(
    metrics: str, more: str, reason: str, server: Path, tmp_path: Path
) -> None:
    with (
        Daemon(configured(tmp_path, server, HANDLES), probes=1) as daemon,
        Fixture([server]) as fixture,
    ):
        calls = fixture.work("1 50 5")["Calls"]
        config = configured(tmp_path, server, metrics, "")
        text = config.read_text()
        key = more.partition(":")[0]
        lines = [line for line in text.splitlines() if not line.startswith(f"{key}:") or not key]
        config.write_text("\n".join([*lines, more]) + "\n")
        assert reason in reloaded(daemon, works=False)
        calls += fixture.work("1 60 5")["Calls"]
        found = daemon.samples()
        assert found["handles_total"] == {(): calls}
        assert found["gotraced_probe_attached"] == {(("probe", "handles"),): 1}
        fixture.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_the_address_may_change_to_one_that_overlaps(
    server: Path, tmp_path: Path, ports: list[int]
) -> None:
    config = configured(tmp_path, server, HANDLES)
    text = config.read_text()
    config.write_text(text.replace(":0", f":{ports[0]}"))
    with Daemon(config, probes=1) as daemon:
        for address in (f"0.0.0.0:{ports[0]}", f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"):
            config.write_text(text.replace("127.0.0.1:0", address))
            reloaded(daemon)
            daemon.port = int(address.rpartition(":")[2])
            assert daemon.get("/healthz") == "ok\n"
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_random_reloads_under_load_and_the_endpoint_answers(
    server: Path, tmp_path: Path, ports: list[int]
) -> None:
    chosen = random.Random(28)
    port = ports[0]
    ended, failures, scrapes = threading.Event(), [], 0

    def scrape() -> None:
        nonlocal scrapes
        while not ended.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as got:
                    assert b"steady_total" in got.read()
                scrapes += 1
            except OSError as error:
                failures.append(error)

    received = Received()
    with over_http(received) as endpoint:
        lines = (
            "  - {name: handle_seconds, type: histogram, probe: main.handle}",
            "  - {name: handle_seconds, type: histogram, probe: main.via*}",
            "  - {name: shards, type: counter, probe: main.handle, labels: {shard: shard}}",
            "  - {name: shards, type: counter, probe: main.handle, labels: {error: $ret2}}",
            "  - {name: handles, type: counter, probe: main.via*, functions: true}",
            "  - {name: handles, type: counter, probe: main.nosuch}",
        )

        def write(config: Path) -> None:
            metrics = "  - {name: steady, type: counter, probe: main.handle}"
            names: set[str] = set()
            for line in chosen.sample(lines, chosen.randrange(len(lines))):
                name = line.partition(",")[0]
                if name not in names:
                    metrics += f"\n{line}"
                names.add(name)
            more = f"budget: {chosen.choice(['100%', '90%'])}\n"
            if chosen.random() < 0.5:
                more += f"otlp: {{endpoint: '{endpoint}', interval: {chosen.randrange(5, 9)}s}}\n"
                if chosen.random() < 0.6:
                    rate = chosen.randrange(1, 4)
                    more += f"spans: [{{probe: main.handle, rate: {rate}/s}}]\n"
            if chosen.random() < 0.1:
                more += "nosuch: 1\n"
            if chosen.random() < 0.2:
                more += "waits: true\n"
            configured(tmp_path, server, metrics, more)
            host = chosen.choice(["0.0.0.0", "127.0.0.1"])
            config.write_text(config.read_text().replace("127.0.0.1:0", f"{host}:{port}"))

        config = configured(tmp_path, server, HANDLES.replace("handles", "steady"))
        config.write_text(config.read_text().replace(":0", f":{port}"))
        scraping = threading.Thread(target=scrape)
        patience = 60.0 + RELOADS
        with (
            Daemon(config, probes=1, patience=patience) as daemon,
            Fixture([server], patience=patience) as fixture,
        ):
            scraping.start()
            try:
                calls = done = 0
                for _ in range(RELOADS):
                    write(config)
                    daemon.signal(signal.SIGHUP)
                    calls += fixture.work("2 40 4")["Calls"]
                    while True:  # either of the two
                        line = daemon.read_until("gotraced: ")[0]
                        if "reloaded" in line:
                            done += "not reloaded" not in line
                            break
            finally:
                ended.set()
                scraping.join()
            daemon.port = port
            found = daemon.samples()
            assert found["steady_total"] == {(): calls}
            reloads = found["gotraced_reloads_total"]
            assert reloads[(("result", "done"),)] == done > RELOADS / 2
            assert sum(reloads.values()) == RELOADS
            fixture.finish()
            daemon.end()
    assert failures == []
    assert scrapes > RELOADS / 10
    assert calls_of(server, "1 10 1")["Calls"] == 10
