# SPDX-License-Identifier: Apache-2.0
"""Prometheus, to scrape gotraced with: where it is, and how it is asked.

``make setup-test`` unpacks Debian's package beside the toolchains and installs nothing: it needs
libc only.
"""

from __future__ import annotations

import http
import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.debian import fetch_program, fetched_program
from tests.toolchains import toolchain_dir
from tests.tools.harness import Process

_SUITE = "bookworm"
_PATIENCE = 60.0  # seconds


def prometheus_place() -> Path:
    """Return where the fetched package is unpacked."""
    return toolchain_dir() / "prometheus"


def prometheus() -> Path | None:
    """Return the server's command, the fetched one first; None where there is none."""
    return fetched_program("prometheus", prometheus_place())


def promtool() -> Path | None:
    """Return the command that checks and tests rules, where the server's package is."""
    return fetched_program("promtool", prometheus_place())


def fetch_prometheus(unpacked: Path) -> None:
    """Unpack Debian's package into a directory. Raises FetchError."""
    fetch_program("prometheus", _SUITE, unpacked)


class Prometheus(Process):
    """A server on loopback that scrapes one port twice a second."""

    def __init__(self, program: Path, scraped: int, place: Path) -> None:
        """``place`` is an empty directory for its configuration and data."""
        config = place / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            "scrape_configs:\n  - job_name: gotraced\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]\n"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        super().__init__(
            [
                *(program, f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}"),
                f"--web.listen-address=127.0.0.1:{self.port}",
                *("--storage.tsdb.retention.time=1h", "--log.level=warn"),
            ]
        )

    def ask(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the rows of an instant query by their labels, none where it does not answer."""
        words = urllib.parse.urlencode({"query": query})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{words}"
        try:
            with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
                rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return {}  # it is starting
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return {}  # it does not listen yet
        return {tuple(sorted(row["metric"].items())): float(row["value"][1]) for row in rows}

    def wait_for(self, query: str, value: float) -> None:
        """Wait until a query of one row has a value."""
        until, pause = time.monotonic() + _PATIENCE, threading.Event()
        while list((rows := self.ask(query)).values()) != [value]:
            assert time.monotonic() < until, f"{query} is {rows}, not {value}"
            assert not self.ends_within(0), self.errors
            pause.wait(0.1)

    def __enter__(self) -> Prometheus:
        return self
