# SPDX-License-Identifier: Apache-2.0
"""Goroutines of programs that have no profiling of their own, read by Go's tool over HTTP."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.fleet.config import parse_config
from tests.fleet.test_gotraced import Daemon, configured, keys, server
from tests.profiles.raw import raw_profile
from tests.toolchains import FIXTURES
from tests.tools.harness import Fixture

__all__ = ["keys", "server"]  # fixtures

METRICS = "  - {name: handles, type: counter, probe: main.handle}"


def fetch(daemon: Daemon, query: str) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{daemon.port}/debug/pprof/goroutine{query}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_profiles_need_an_address() -> None:
    text = "targets: [{name: a, exe: /a}]\nmetrics: [{name: m, type: counter, probe: f}]\n"
    assert not parse_config("x", text + "listen: 127.0.0.1:0\n").pprof
    assert parse_config("x", text + "listen: 127.0.0.1:0\npprof: true\n").pprof
    with pytest.raises(UsageError, match=r"^x, line 4: .*give listen"):
        parse_config("x", text + "otlp: {endpoint: 'http://a'}\npprof: true\n")


@pytest.mark.live
@pytest.mark.apart
def test_gos_tool_reads_the_goroutines_of_a_target(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, METRICS, "budget: 100%\npprof: true")
    source = (FIXTURES / "live_keys" / "main.go").read_text().splitlines()
    line = source.index("\t\tline, err := input.ReadString('\\n')") + 1
    with Fixture([server]) as fixture, Daemon(config, probes=1) as daemon:
        fixture.work("2 30 10")
        for query in ("?target=keys", f"?target=keys&pid={fixture.ready}"):
            status, body = fetch(daemon, query)
            assert status == HTTPStatus.OK
            (tmp_path / "p.pb.gz").write_bytes(body)
            profile = raw_profile(tmp_path / "p.pb.gz")
            assert profile.types == ("goroutine/count[dflt]",)
            # The program waits for the line that ends it; those that made the calls have returned.
            (main,) = [one for one in profile.samples if ("main.main", line) in one.frames]
            assert main.values == (1,)
            assert "os.(*File).Read" in [function for function, _ in main.frames]
            assert not any(
                function == "main.handle" for one in profile.samples for function, _ in one.frames
            )
        # The daemon may read every process; whoever asks may have the targets' only.
        for query, expected, words in (
            ("?target=keys&pid=1", HTTPStatus.NOT_FOUND, f"processes: {fixture.ready}"),
            ("?target=others", HTTPStatus.NOT_FOUND, "processes: none"),
            ("", HTTPStatus.BAD_REQUEST, "target=NAME"),
            ("?target=keys&pid=x", HTTPStatus.BAD_REQUEST, "target=NAME"),
        ):
            status, body = fetch(daemon, query)
            assert status == expected and words in body.decode(), query
        with Fixture([server]) as second:
            until, pause = time.monotonic() + 60, threading.Event()
            while b"give pid" not in (answer := fetch(daemon, "?target=keys")[1]):
                assert time.monotonic() < until, answer[:200]
                pause.wait(0.1)
            assert fetch(daemon, f"?target=keys&pid={second.ready}")[0] == HTTPStatus.OK
            second.work("1 5 1")
            second.finish()
        fixture.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_it_is_off_unless_asked_for(server: Path, tmp_path: Path) -> None:
    with (
        Fixture([server]) as fixture,
        Daemon(configured(tmp_path, server, METRICS), probes=1) as daemon,
    ):
        status, body = fetch(daemon, "?target=keys")
        assert status == HTTPStatus.NOT_FOUND and b"pprof: true" in body
        fixture.work("1 5 1")
        fixture.finish()
        daemon.end()
