# SPDX-License-Identifier: Apache-2.0
"""Flights of gotraced: files of what a program did before something that was waited for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.config import FlightSpec, parse_config
from gotrace.fleet.flights import (
    FlightProbe,
    FlightProblem,
    Flights,
    FlightTally,
    PassedOver,
)
from gotrace.fleet.targets import ProgramKey
from gotrace.requests.model import load
from tests.fleet.test_gotraced import Daemon, wait_until
from tests.requests.test_flight import do, read_all, said
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, run_tool

SLOW = "main.handle ($ret % 10 == 0)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program of its own: others trace the same one by its path."""
    return Path(shutil.copy(build(FIXTURES / "live_flight", newest()), tmp_path / "flown"))


def configured(path: Path, program: Path, more: str = "", rest: str = "budget: 100%") -> Path:
    file = path / "gotraced.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: 'a/b', exe: {program}}}]\nflights:\n"
        f"  - {{name: slow, when: ['{SLOW}', panic, 'signal TERM'], folder: {path}/flights,"
        f" every: 1s, keep: 20s, memory: 2MiB{more}}}\n{rest}\n"
    )
    file.chmod(0o600)
    return file


def files(path: Path) -> list[Path]:
    """Return the files of flights, the oldest first; others are not there."""
    found = [path / "flights" / name for name in os.listdir(path / "flights")]
    whole = [file for file in found if not file.name.startswith(".")]
    return sorted(whole, key=lambda file: file.name.rpartition("-")[2])


def counts(daemon: Daemon, name: str) -> dict[str, float]:
    """Return a metric of the flight by reason."""
    return {dict(at).get("reason", ""): value for at, value in daemon.samples()[name].items()}


def written(daemon: Daemon) -> float:
    return counts(daemon, "gotraced_flights_written_total")[""]


@pytest.mark.live
@pytest.mark.apart
def test_the_call_that_is_waited_for_is_in_a_file(program: Path, tmp_path: Path) -> None:
    """With what was made for it, as gotrace reads it again."""
    (tmp_path / "flights").mkdir(0o700)
    left = [tmp_path / "flights" / f".gotrace-{name}" for name in ("old", "new")]
    for part in left:
        part.touch()
    os.utime(left[0], (0, 0))
    config = configured(tmp_path, program, ", form: json, probes: [main.part, main.other]")
    with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
        assert counts(daemon, "gotraced_flights_passed_over_total") == {"every": 0, "busy": 0}
        do(fixture, "other 7", "handle 5", "busy 50", "handle 30")
        said = daemon.read_until("gotraced: INFO: flight slow in a/b: wrote ")[0]
        (file,) = files(tmp_path)
        assert said.startswith(str(file)) and " before main.handle in goroutine " in said
        assert file.name.startswith(f"slow-a_b-{fixture.ready}-") and file.suffix == ".json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        (request,) = load(str(file))
        assert request.root.call.args == {"id": 30}
        assert [node.call.function for node in request.nodes()] == ["main.handle", "main.part"]
        # What was left by somebody who cannot be writing it any more is removed.
        assert [part.exists() for part in left] == [False, True]
        assert written(daemon) == 1
        assert counts(daemon, "gotraced_flight_memory_bytes") == {"": 2 << 20}
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_files_are_limited_in_time_and_number(program: Path, tmp_path: Path) -> None:
    """What is passed over is counted, and a reload goes over to other limits and parts."""
    config = configured(tmp_path, program)
    config.write_text(config.read_text().replace("every: 1s", "every: 1h"))
    with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
        do(fixture, "handle 10")
        wait_until(lambda: written(daemon) == 1)
        do(fixture, "handle 20", "handle 7", "handle 40")
        wait_until(lambda: counts(daemon, PASSED_OVER)["every"] == 2)
        first = files(tmp_path)
        assert [said(read_all(file)) for file in first] == [
            "written for main.handle in goroutine 1"
        ]
        configured(tmp_path, program, ", files: 2", "budget: 100%\ndeny_names: [id]")
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: INFO: reloaded")
        assert written(daemon) == 1  # of what was passed over there is none
        for number in range(2, 5):
            until = time.monotonic() + 60
            while written(daemon) < number:
                do(fixture, "handle 30")
                assert time.monotonic() < until
                time.sleep(0.3)
        last = files(tmp_path)
        assert len(last) == 2 and not set(first) & set(last)
        texts = [one.message for one in read_all(last[-1]).logs if one.what == "arguments"]
        assert texts and set(texts) == {'id="redacted"'}
        assert set(counts(daemon, "gotraced_flight_problems_total").values()) == {0}
        fixture.say()
        daemon.end()


PASSED_OVER = "gotraced_flights_passed_over_total"


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("kind", ["fails 1", ""])
def test_the_end_of_a_program_is_in_a_file(kind: str, program: Path, tmp_path: Path) -> None:
    """Whether it panics or is asked to end."""
    with Daemon(configured(tmp_path, program), probes=1) as daemon:
        with Fixture([program]) as fixture:
            do(fixture, "other 7")
            if kind:
                fixture.say(kind)
            else:
                fixture.signal(signal.SIGTERM)
            wait_until(lambda: written(daemon) == 1)
        (file,) = files(tmp_path)
        trace = read_all(file)
        cause = "runtime.gopanic in goroutine 1" if kind else "signal SIGTERM"
        assert said(trace) == f"written for {cause}"
        assert "main.other" in {one.name for one in trace.regions}
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_signals_of_other_processes_write_nothing(program: Path, tmp_path: Path) -> None:
    """Whoever sends them to their own could fill the folder, and have the files in it removed."""
    with Daemon(configured(tmp_path, program), probes=1) as daemon:
        with Fixture([program]) as fixture:
            do(fixture, "other 7")
            for _ in range(5):
                with subprocess.Popen(["sleep", "60"]) as other:
                    other.terminate()
            # It comes after theirs: had they counted, it would be passed over.
            fixture.signal(signal.SIGTERM)
            wait_until(lambda: written(daemon) == 1)
            (file,) = files(tmp_path)
            assert f"-{fixture.pid}-" in file.name
        assert not any(counts(daemon, PASSED_OVER).values())
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_daemon_leaves_no_half_file(
    number: signal.Signals, program: Path, tmp_path: Path
) -> None:
    config = configured(tmp_path, program, ", probes: [main.part]")
    config.write_text(config.read_text().replace("2MiB", "32MiB"))
    with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
        do(fixture, "busy 40000", "handle 10")
        wait_until(lambda: bool(writers(daemon)))
        assert daemon.get("/metrics")  # meanwhile
        (writer,) = writers(daemon)
        daemon.signal(number)
        daemon.wait()
        wait_until(lambda: not Path(f"/proc/{writer}").exists())
        fixture.say()
    if number is signal.SIGKILL:  # the writer ends as well
        assert files(tmp_path) == []
        return
    (file,) = (tmp_path / "flights").iterdir()
    assert said(read_all(file)).startswith("written for main.handle in goroutine ")


def writers(daemon: Daemon) -> list[int]:
    """Return the processes that write files, which have the lowest priority."""
    children = Path(f"/proc/{daemon.pid}/task").glob("*/children")
    pids = [int(word) for file in children for word in file.read_text().split()]
    return [pid for pid in pids if os.getpriority(os.PRIO_PROCESS, pid) == 19]


@pytest.mark.live
@pytest.mark.apart
def test_what_all_flights_keep_is_limited(program: Path, tmp_path: Path) -> None:
    other = f"  - {{name: other, when: [panic], memory: 1MiB, folder: {tmp_path}}}"
    config = configured(tmp_path, program, "", f"{other}\nbudget: 100%\nflight_memory: 2MiB")
    with Daemon(config, probes=1) as daemon:
        assert any("flights would take 3MiB" in line for line in daemon.log)
        configured(tmp_path, program, "", "budget: 100%\nflight_memory: 2MiB")
        config.write_text(config.read_text().replace("keep: 20s", "keep: 3s"))
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: INFO: reloaded")  # one takes another's place
        os.chmod(tmp_path / "flights", 0o777)
        config.write_text(config.read_text().replace("keep: 3s", "keep: 4s"))
        daemon.signal(signal.SIGHUP)
        said = daemon.read_until("gotraced: ERROR: not reloaded: ")[0]
        assert "other users may write to it: chmod go-w" in said
        assert daemon.samples()["gotraced_probe_attached"] == {(("probe", "flight slow"),): 1}
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_the_budget_holds_for_flights(program: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, program, "", "budget: 0.01%")
    with Daemon(config, probes=1) as daemon, Fixture([program]) as fixture:
        do(fixture, "busy 20000")
        daemon.read_until("gotraced: WARNING: flight slow in a/b: detached: it took")
        # What goroutines do is counted before it is tried again.
        assert daemon.samples()["gotraced_probe_attached"] == {(("probe", "flight slow"),): 0}
        assert counts(daemon, "gotraced_flight_memory_bytes") == {"": 0}
        fixture.say()
        daemon.end()


@dataclass
class Written:
    """What a process that writes takes of a probe."""

    folder: Path
    saving: Callable[[], None] = lambda: None
    holding: Callable[[], None] = lambda: None
    is_open = True

    @property
    def spec(self) -> FlightSpec:
        return FlightSpec("f", ("shop",), ("panic",), str(self.folder), every=3600.0)

    @property
    def key(self) -> tuple[str, ProgramKey]:
        return "f", ProgramKey("shop", id(self), 0, 0)

    def get_hold(self) -> None:
        self.holding()

    def save(self, path: str) -> dict[str, object]:
        self.saving()
        Path(path).touch()
        return {"cause": "", "ns": 1, "after": 0, "calls": 0}


def fail(error: BaseException) -> Callable[[], None]:
    def raised() -> None:
        raise error

    return raised


def tally_of(flights: Flights, written: Written) -> FlightTally:
    (tally,) = flights.tallies([written.spec])
    return tally


@pytest.mark.parametrize(
    ("saving", "holding", "problem"),
    [
        (lambda: None, lambda: None, None),
        (fail(OSError(28, "full")), lambda: None, FlightProblem.WRITE),
        (fail(GotraceError("x" * 5000)), lambda: None, FlightProblem.WRITE),
        (fail(ValueError()), lambda: None, FlightProblem.BUG),
        (fail(MemoryError()), lambda: None, FlightProblem.LIMIT),
        (lambda: os.kill(os.getpid(), signal.SIGXCPU), lambda: None, FlightProblem.LIMIT),
        (lambda: None, fail(OSError(1, "no")), FlightProblem.PROCESS),
    ],
)
def test_what_becomes_of_a_file_is_counted(
    saving: Callable[[], None],
    holding: Callable[[], None],
    problem: FlightProblem | None,
    tmp_path: Path,
) -> None:
    flights, written = Flights(), Written(tmp_path, saving, holding)
    probe = cast(FlightProbe, written)
    assert flights.passes_over(probe) is None
    assert flights.write(probe, 7) is (problem is not FlightProblem.PROCESS)
    assert flights.passes_over(probe) is PassedOver.EVERY
    flights.close()
    tally = tally_of(flights, written)
    assert tally.written == len(list(tmp_path.iterdir())) == (problem is None)
    assert [why for why, count in tally.problems.items() if count] == [problem] * bool(problem)


def test_a_file_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gotrace.fleet.flights._LAST_WAIT", 0.0)
    flights = Flights()
    written = Written(tmp_path, lambda: time.sleep(60), lambda: None)
    assert flights.write(cast(FlightProbe, written), 7)
    flights.close()
    assert f"flight {written.spec.name}: not waited for: {tmp_path}" in caplog.text


def test_more_files_than_can_be_written_are_passed_over(tmp_path: Path) -> None:
    """One process at a time has records in its memory, and so many may wait for that."""
    flights = Flights()
    several = [Written(tmp_path, lambda: time.sleep(0.05)) for _ in range(9)]
    for one in several[:-1]:
        assert flights.passes_over(cast(FlightProbe, one)) is None
        assert flights.write(cast(FlightProbe, one), 7)
    last = cast(FlightProbe, several[-1])
    assert flights.passes_over(last) is PassedOver.BUSY
    flights.count(last, PassedOver.BUSY, 3)
    flights.close()
    tally = tally_of(flights, several[0])
    assert (tally.written, tally.passed_over) == (8, {PassedOver.EVERY: 0, PassedOver.BUSY: 3})


CONFIG = """\
targets: [{name: shop, exe: /usr/local/bin/shop}]
flights:
  - name: slow
    when: [main.handle ($duration > 1s)]
    folder: /var/lib/flights
"""


def test_usual_limits() -> None:
    (flight,) = parse_config("c.yaml", CONFIG).flights  # neither listen nor otlp is needed
    assert (flight.targets, flight.probes, flight.keep) == (("shop",), (), 5.0)
    assert (flight.memory, flight.files, flight.every) == (64 << 20, 20, 60.0)
    assert (flight.form, flight.folder) == ("trace", "/var/lib/flights")


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("name: slow", "name: slow-1", 3, "'slow-1' cannot be a flight's name"),
        ("name: slow", "name: slow\n    form: html", 4, "give one of trace, pftrace, json"),
        ("name: slow", "name: slow\n    files: 0", 4, "minimum"),
        ("name: slow", "name: slow\n    keep: 0s", 4, "give 100ms to 24h"),
        ("name: slow", "name: slow\n    every: never", 4, "a length of time"),
        ("name: slow", "name: slow\n    memory: 64MB", 4, "a size is as in 64MiB"),
        ("name: slow", "name: slow\n    memory: 1GiB", 4, "more than flight_memory, 256MiB"),
        ("name: slow", "name: slow\n    probes: ['main.f (']", 4, "column"),
        ("name: slow", "name: slow\n    probes: ['@http.server']", 4, "not recipes"),
        ("name: slow", "name: slow\n    targets: [shp]", 4, "did you mean shop?"),
        ("name: slow", "name: slow\n    rate: 1/s", 4, "unknown key 'rate'"),
        ("    folder: /var/lib/flights\n", "", 3, "'folder' is missing"),
        ("    when: [main.handle ($duration > 1s)]\n", "", 3, "'when' is missing"),
        ("/var/lib", "var/lib", 5, "is not an absolute path"),
        ("1s)", "1s", 4, "column"),
        ("main.handle ($duration > 1s)", "signal NONE", 4, "no signal is called NONE"),
        ("main.handle ($duration > 1s)", "signal TERM, signal INT", 4, "one signal"),
        ("main.handle ($duration > 1s)", "", 4, "should be non-empty"),
        ("flights:", "flight_memory: much\nflights:", 2, "a size is as in 64MiB"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    before: str, after: str, line: int, words: str
) -> None:
    assert before in CONFIG
    with pytest.raises(UsageError) as caught:
        parse_config("c.yaml", CONFIG.replace(before, after, 1))
    assert str(caught.value).startswith(f"c.yaml, line {line}: ")
    assert words in str(caught.value)


def test_a_name_is_there_once() -> None:
    again = "  - {name: slow, when: [panic], folder: /a}\n"
    with pytest.raises(UsageError, match="line 6: 'slow' is there twice"):
        parse_config("c.yaml", CONFIG + again)


@pytest.mark.live
def test_check_says_what_is_written(program: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, program, ", probes: [main.part]")
    with Fixture([program]) as fixture:
        result = run_tool("gotraced", "--check", str(config))
        fixture.say()
    assert result.status == 0
    lines = [line.strip() for line in result.lines]
    (found,) = (line for line in lines if line.startswith("flight slow in a/b: "))
    names = found.removeprefix("flight slow in a/b: ").split(", ")
    assert sorted(names) == [
        *("main.handle", "main.part", "runtime.fatalthrow", "runtime.gopanic"),
    ]
    at = lines.index(f"flight slow: nothing, but files in {tmp_path}/flights of this host:")
    assert lines[at + 1].startswith(
        "arguments and results of calls of main.part, and of main.handle"
    )
    assert not (tmp_path / "flights").exists()
