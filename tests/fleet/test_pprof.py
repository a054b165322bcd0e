# SPDX-License-Identifier: Apache-2.0
"""Profiles of programs that have no profiling of their own, read by Go's tool over HTTP."""

from __future__ import annotations

import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.config import Listen, parse_config
from gotrace.fleet.telemetry import profiles
from gotrace.fleet.telemetry.price import OverBudgetError
from gotrace.fleet.telemetry.profiles import wait_profile
from gotrace.fleet.web import Health, ProfileKind, WebServer
from gotrace.overhead import ProbeCost
from gotrace.target.target import Target
from tests.fleet.test_gotraced import Daemon, configured
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.profiles.raw import RawProfile, raw_profile
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

METRICS = "  - {name: handles, type: counter, probe: main.handle}"


def fetch(daemon: Daemon | WebServer, query: str, kind: str = "goroutine") -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{daemon.port}/debug/pprof/{kind}{query}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_profiles_need_an_address() -> None:
    text = "targets: [{name: a, exe: /a}]\nmetrics: [{name: m, type: counter, probe: f}]\n"
    assert not parse_config("x", text + "listen: 127.0.0.1:0\n").pprof
    assert parse_config("x", text + "listen: 127.0.0.1:0\npprof: true\n").pprof
    with pytest.raises(UsageError, match=r"^x, line 4: profiles are served by HTTP: give listen"):
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
def test_profiles_of_waits_are_those_that_the_program_knows(tmp_path: Path) -> None:
    """Blocked stacks with what they waited, and of locks the stacks that unlocked."""
    program = Path(shutil.copy(build(FIXTURES / "live_waits", newest()), tmp_path / "waits"))
    with Fixture([program]) as fixture, closing(Target.of(fixture.ready, None)) as target:
        truth: dict[str, Any] = {}

        def profile_of(kind: ProfileKind) -> RawProfile:
            content = wait_profile(kind, target, lambda _: truth.update(fixture.work("ways")))
            (tmp_path / "p.pb.gz").write_bytes(content)
            return raw_profile(tmp_path / "p.pb.gz")

        def within(profile: RawProfile, function: str) -> list[tuple[int, ...]]:
            samples = profile.samples
            return [s.values for s in samples if f"main.{function}" in [f for f, _ in s.frames]]

        blocked = profile_of(ProfileKind.BLOCK)
        assert blocked.types == ("contentions/count", "delay/nanoseconds[dflt]")
        assert within(blocked, "sleeps") == []  # Go's own block profile has none either
        for name in truth.keys() - {"sleeps"}:
            rows, known = within(blocked, name), truth[name]
            assert sum(row[0] for row in rows) == known["count"], name
            assert known["least"] <= sum(row[1] for row in rows) <= known["most"], name

        locks = profile_of(ProfileKind.MUTEX)
        assert locks.types == blocked.types
        ((count, delay),) = within(locks, "unlocks")
        assert count == truth["locks"]["count"]
        assert truth["locks"]["least"] <= delay <= truth["locks"]["most"]
        (stack,) = [s.frames for s in locks.samples if "main.unlocks" in [f for f, _ in s.frames]]
        assert stack[0][0].startswith(("sync.", "internal/sync."))
        assert within(locks, "locks") == within(locks, "wakesReceiver") == []
        fixture.finish()


@pytest.mark.live
@pytest.mark.apart
def test_waits_are_watched_for_as_long_as_is_asked(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, METRICS, "budget: 100%\npprof: true")
    with Fixture([server]) as fixture, Daemon(config, probes=1) as daemon:
        fixture.work("2 30 10")
        for path in ("block", "mutex"):
            began = time.monotonic()
            status, body = fetch(daemon, "?target=keys&seconds=1", path)
            assert status == HTTPStatus.OK, body
            assert time.monotonic() - began >= 1
            (tmp_path / "p.pb.gz").write_bytes(body)
            assert raw_profile(tmp_path / "p.pb.gz").types[1] == "delay/nanoseconds[dflt]"
        for query in ("?seconds=1", "?target=keys&seconds=0", "?target=keys&seconds=61"):
            status, body = fetch(daemon, query, "block")
            assert status == HTTPStatus.BAD_REQUEST and b"seconds=N from 1 to 60" in body
        fixture.finish()
        daemon.end()


def test_one_profile_is_made_at_a_time() -> None:
    made, end = threading.Event(), threading.Event()
    asked: list[tuple[ProfileKind, str, int | None, int]] = []

    def take(*what: Any) -> bytes:
        asked.append(what)
        made.set()
        assert end.wait(60)
        if len(asked) > 1:
            raise OverBudgetError("too dear")
        return b"profile"

    health = Health(time.monotonic, lambda: True)
    server = WebServer(Listen("127.0.0.1", 0), CollectorRegistry(), health, take)
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(fetch, server, "?target=a&pid=7&seconds=3", "block")
            assert made.wait(60)
            busy = fetch(server, "?target=b", "goroutine")
            end.set()
            assert first.result(60) == (HTTPStatus.OK, b"profile")
        assert busy[0] == HTTPStatus.SERVICE_UNAVAILABLE and b"another profile" in busy[1]
        refused = fetch(server, "?target=b", "mutex")
        assert refused == (HTTPStatus.SERVICE_UNAVAILABLE, b"too dear\n")
    finally:
        server.close()
    assert asked == [(ProfileKind.BLOCK, "a", 7, 3), (ProfileKind.MUTEX, "b", None, 5)]


@pytest.mark.parametrize(
    ("is_over", "words"),
    [
        (True, "no profile is made: gotraced ends"),
        (False, r"watching waits has taken more than 1\.0% of one CPU for 9 s, the budget of all"),
    ],
)
def test_watching_ends_early(is_over: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def watch_only(kind: object, target: object, watch: Any, accept: object) -> bytes:
        watch(SimpleNamespace(attached=SimpleNamespace(program=None), program_ns=1))
        return b""

    hits = SimpleNamespace(total=lambda each: SimpleNamespace(ns=1e9))
    monkeypatch.setattr(profiles, "Hits", lambda program: hits)
    monkeypatch.setattr(profiles, "wait_profile", watch_only)
    monkeypatch.setattr(profiles, "_LOOK", 0.01)
    program: Any = SimpleNamespace(is_run_by=lambda pid: True)
    over = threading.Event()
    if is_over:
        over.set()
    with pytest.raises(GotraceError, match=words):
        profiles.take_profile(
            *(ProfileKind.BLOCK, os.getpid(), program, 9, ProbeCost(1, 1), 0.01, over)
        )


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
