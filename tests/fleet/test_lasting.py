# SPDX-License-Identifier: Apache-2.0
"""Nothing ends the daemon or a thread of it, and nothing stays of a tool that was killed."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NoReturn, cast

import pytest

from gotrace.fleet.config import PlanningSpec, parse_config
from gotrace.fleet.engine import Engine
from gotrace.fleet.flights import MAX_ANSWER, FlightProbe, Flights, encoded_answer
from gotrace.fleet.trial import Trial
from gotrace.overhead import ProbeCost
from tests.fleet.test_control import ctl
from tests.fleet.test_flights import Written, tally_of
from tests.fleet.test_flights import files as flights_in
from tests.fleet.test_flights import program as program
from tests.fleet.test_gotraced import Daemon, configured, wait_until
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.fleet.test_otlp import Received, over_http
from tests.requests.test_flight import do
from tests.tools.harness import Fixture, Process, code_of, tool_command

SPOIL = """
import ctypes, sys, threading
from gotrace.fleet.gotraced import main
def spoil():
    for line in sys.stdin:
        for thread in threading.enumerate():
            if thread.name == line.strip():
                number, error = ctypes.c_ulong(thread.ident), ctypes.py_object(ZeroDivisionError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)
threading.Thread(target=spoil, daemon=True).start()
sys.exit(main(sys.argv[2:]))
"""
THREADS = {"control", "flights", "landings", "otlp-metrics", "otlp-spans", "spans", "web"}
"""Those that the daemon has beside its pools."""


@pytest.mark.live
@pytest.mark.apart
def test_each_thread_is_begun_again(program: Path, tmp_path: Path) -> None:
    received, place = Received(), tmp_path / "control"
    with over_http(received) as endpoint, Fixture([program]) as fixture:
        config = tmp_path / "gotraced.yaml"
        config.write_text(
            f"listen: 127.0.0.1:0\ntargets: [{{name: a, exe: {program}}}]\nbudget: 100%\n"
            f"otlp: {{endpoint: '{endpoint}', interval: 0.5}}\n"
            "spans: [{name: s, probe: main.handle}]\n"
            f"flights: [{{name: f, when: [main.handle], folder: {tmp_path}/flights, every: 1s}}]\n"
        )
        config.chmod(0o600)
        with Daemon(
            config, "--control", str(place), probes=2, within=(sys.executable, "-c", SPOIL)
        ) as daemon:
            assert failed(daemon) == dict.fromkeys((*THREADS, "engine", "take"), 0.0)
            said = dict.fromkeys(THREADS, 0.0)
            for name in sorted(THREADS):

                def has_failed(name: str = name) -> bool:
                    if time.monotonic() > said[name] + 5:  # that is caught by what is not counted
                        said[name] = time.monotonic()
                        daemon.say(name)
                    # The thread that answers is one of them.
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        with socket.socket(socket.AF_UNIX) as one:
                            one.connect(str(place))  # another waits for somebody to come
                        return failed(daemon)[name] > 0
                    return False

                wait_until(has_failed)
            do(fixture, "handle 10")
            received.wait_for_spans(1)
            wait_until(lambda: bool(flights_in(tmp_path)))
            assert ctl(place, "list") == (0, "nothing is asked for\n")
            assert daemon.get("/healthz") == "ok\n"
            assert {name for name, count in failed(daemon).items() if count} == THREADS
            fixture.say()
            daemon.end()


def failed(daemon: Daemon) -> dict[str, float]:
    found = daemon.samples()["gotraced_thread_failures_total"]
    return {dict(labels)["thread"]: count for labels, count in found.items()}


@pytest.mark.live
@pytest.mark.apart
def test_signals_are_handled_before_anything_else(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, "  - {name: a, type: counter, probe: main.handle}")
    port = free_port()
    config.write_text(config.read_text().replace(":0", f":{port}"))
    command = tool_command("gotraced", "--config", config)
    for _ in range(5):  # on a busy machine it may have begun before it is looked at
        with Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as daemon:
            pid = daemon.pid
            wait_until(lambda pid=pid: handles(pid, signal.SIGHUP))  # type: ignore[misc]
            has_hardly_begun = not is_taken(port)
            daemon.signal(signal.SIGHUP)
            daemon.read_until("gotraced: INFO: 1 probes attached")
            daemon.read_until("gotraced: INFO: reloaded")
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 0
        if has_hardly_begun:
            break
    assert has_hardly_begun


@pytest.mark.live
@pytest.mark.apart
def test_an_end_before_the_beginning(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, "  - {name: a, type: counter, probe: main.handle}")
    command = tool_command("gotraced", "--config", config)
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as daemon:
        wait_until(lambda: handles(daemon.pid, signal.SIGTERM))
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        attached = [line for line in daemon.rest() if "attached" in line]
        assert all(" 0 probes attached" in line for line in attached)


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().split("\n")
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_taken(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
        except OSError:
            return True
    return False


METRICS = """\
  - {name: a, type: counter, probe: main.handle}
  - {name: b, type: histogram, probe: main.handle}"""


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("tool", ["gotraced", "gofunclatency"])
def test_nothing_stays_of_what_is_killed_as_it_compiles(
    tool: str, server: Path, tmp_path: Path
) -> None:
    port = free_port()
    config = configured(tmp_path, server, METRICS)
    config.write_text(config.read_text().replace(":0", f":{port}"))
    with Fixture([server]) as fixture:
        words: list[str | Path] = ["--config", config]
        if tool == "gofunclatency":
            words = ["-p", str(fixture.pid), "main.handle"]
        code = code_of(fixture.pid)
        for number in (1, 2):  # as its first child is there, and its second
            mark, cache = uuid.uuid4().hex, tmp_path / str(number)
            env = {**os.environ, "XDG_CACHE_HOME": str(cache), "GOTRACE_TEST": mark}
            nothing, command = subprocess.DEVNULL, tool_command(tool, *words)
            with subprocess.Popen(command, env=env, stdout=nothing, stderr=nothing) as process:
                seen: set[str] = set()
                until = time.monotonic() + 100
                while len(seen) < number and time.monotonic() < until:
                    seen |= children(process.pid)
                process.kill()
            assert len(seen) >= number
            until = time.monotonic() + 1.0
            while left := marked(mark) or code_of(fixture.pid) != code or is_taken(port):
                assert time.monotonic() < until, (number, left)
        fixture.say()


def children(pid: int) -> set[str]:
    found: set[str] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(file.read_text().split())
    return found


def marked(mark: str) -> list[str]:
    """Return the processes that have a word in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (directory / "environ").read_bytes():
                found.append((directory / "comm").read_text().strip())
    return found


@pytest.mark.live
@pytest.mark.apart
def test_silent_clients_take_no_program_away(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, "  - {name: a, type: counter, probe: main.handle}")
    limit = ("prlimit", "--nofile=128:256")
    with Daemon(config, probes=1, within=limit) as daemon, contextlib.ExitStack() as silent:
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        assert limits.partition("Max open files")[2].split()[:2] == ["256", "256"]
        for _ in range(600):
            silent.enter_context(socket.create_connection(("127.0.0.1", daemon.port), 60))
        daemon.read_until("gotraced: ERROR: cannot answer: Too many open files")
        with Fixture([server]) as fixture:
            calls = fixture.work("1 30 5")["Calls"]
            fixture.finish()
        silent.close()
        assert daemon.samples()["a_total"] == {(): calls}
        assert daemon.get("/healthz") == "ok\n"
        daemon.end()


def too_many(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    "target", ["comm: python", f"exe: {os.path.realpath(sys.executable)}, user: root"]
)
def test_a_look_without_descriptors_is_nothing_new(
    target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    comm = Path("/proc/self/comm").read_text().strip()
    target = target.replace("python", comm)
    waiting = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        metrics = "metrics: [{name: a, type: counter, probe: a}]\nlisten: 127.0.0.1:0"
        text = f"targets: [{{name: t, {target}}}]\n{metrics}"
        engine = Engine(parse_config("c.yaml", text), ProbeCost(1, 1))
        engine.turn()
        before = engine.processes()
        assert before["t"]
        for lacking in ("builtins.open", "os.listdir"):
            with monkeypatch.context() as without:
                without.setattr(lacking, too_many)
                engine._next_look = 0.0
                engine.turn()
            assert engine.processes() == before
        assert caplog.text.count("programs cannot be looked for: [Errno 24]") == 1
        process.communicate(b"\n")
    engine.close()


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_planner_that_was_killed_is_tried_again(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path, server, "  - {name: a, type: counter, probe: main.handle}")
    engine = Engine(parse_config("c.yaml", config.read_text()), ProbeCost(1, 1))
    made: list[Trial] = []

    def killed(*_: object) -> Trial:
        made.append(Trial([kill_itself], PlanningSpec()))
        return made[-1]

    monkeypatch.setattr(Engine, "_trial", staticmethod(killed))
    engine.turn()
    engine._next_turn = 0.0
    engine.turn()  # not before the pause is over
    (trial,) = made
    assert trial.is_passing
    text = "the plan for it was not made: its process was killed by SIGKILL, as the kernel does if"
    assert f"{text} memory is short: tried again in 30 s" in caplog.text
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31.0)
    engine._next_turn = 0.0
    engine.turn()
    assert len(made) == 2
    engine.close()


def test_metrics_of_a_damaged_file_have_one_line(
    server: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.truncate(server, 100_000)
    metrics = [f"  - {{name: m{one}, type: counter, probe: main.handle}}" for one in range(9)]
    metrics.append("  - {name: m9, type: histogram, probe: main.handle}")
    config = configured(tmp_path, server, "\n".join(metrics))
    engine = Engine(parse_config("c.yaml", config.read_text()), ProbeCost(1, 1))
    engine.turn()
    assert caplog.text.count("the file is truncated") == 1
    assert f"10 probes (m0, m1, m2 and 7 more) in keys ({server}): " in caplog.text
    (problem,) = engine.problems("m9")
    assert problem.startswith(f"m9 in keys ({server}): ") and "truncated" in problem
    engine.close()


@pytest.mark.parametrize("letter", ["\U0001f600", "\x01", "\udc80", '"', "é"])
def test_names_of_any_letters_end_no_flight(letter: str, tmp_path: Path) -> None:
    """A process says what its file begins with: a function's name, which anybody chooses."""

    class Named(Written):
        def save(self, path: str) -> dict[str, object]:
            return {**super().save(path), "cause": 512 * letter}

    flights, written = Flights(), Named(tmp_path)
    assert flights.write(cast(FlightProbe, written), 7)
    flights.close()
    tally = tally_of(flights, written)
    assert (tally.written, sum(tally.problems.values())) == (1, 0)
    said = {"cause": 512 * letter, "ns": 1 << 62, "after": 1 << 62, "calls": 1 << 32}
    assert len(encoded_answer(said)) < MAX_ANSWER
