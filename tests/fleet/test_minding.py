# SPDX-License-Identifier: Apache-2.0
"""What probes cost is known each second, with the rights that the daemon ships with."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.fleet.test_gotraced import Daemon, parsed, wait_until
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

pytestmark = pytest.mark.live

RATE = 20_000
#: As in the DaemonSet: without CAP_SYS_ADMIN.
WITHOUT = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--")


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Fixture]:
    program = build(FIXTURES / "live_storm", newest())
    path = shutil.copy(program, tmp_path / f"storm{os.getpid()}")
    with Fixture([path]) as fixture:
        yield fixture


def daemon(tmp_path: Path, metric: str, more: str, probe: str = "main.hit") -> Daemon:
    """Start a daemon that the kernel gives no statistics of programs."""
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\n{more}\n"
        f"targets: [{{name: storm, comm: storm{os.getpid()}}}]\n"
        f"metrics:\n  - {{name: hits, probe: {probe}, {metric}}}\n"
    )
    config.chmod(0o600)
    return Daemon(config, "-v", probes=1, within=WITHOUT)


def test_a_counter_that_nobody_reads_is_detached(storm: Fixture, tmp_path: Path) -> None:
    with daemon(tmp_path, "type: counter", "budget: 0.3%") as gotraced:
        storm.say(f"1 {RATE}")
        began = time.monotonic()
        said = gotraced.read_until("gotraced: WARNING: hits in storm: ")[0]
        assert time.monotonic() - began < 10
        assert said.startswith("detached: it took ") and "budget of all is 0.3%" in said
        seconds = gotraced.samples()["gotraced_probe_seconds_total"]
        assert {dict(labels)["state"] for labels in seconds} == {"on", "counted", "off"}
        gotraced.end()
    storm.work()


def test_a_histogram_is_counted_before_that(storm: Fixture, tmp_path: Path) -> None:
    """Its RETs cost much until they are removed, and its calls are still counted after that.

    The kernel steps where main.stepped returns to, so its RETs stay probed.
    """
    with daemon(tmp_path, "type: histogram", "budget: 4%", "main.stepped") as gotraced:
        storm.say(f"1 {RATE}")
        said = gotraced.read_until("gotraced: WARNING: hits in storm: ")[0]
        assert said.startswith("its calls are only counted: it took ")
        samples = parsed(plain(gotraced.get("/metrics")))

        def unmeasured() -> float:
            # What is measured no more is shown for some seconds more, and then no more.
            samples.update(parsed(plain(gotraced.get("/metrics"))))
            (value,) = samples["gotraced_probe_unmeasured_total"].values()
            return value

        wait_until(lambda: unmeasured() > 2 * RATE)
        calls = storm.work()["Calls"]
        counted = unmeasured()
        (measured,) = samples["hits_count"].values()
        assert set(samples["gotraced_probe_over_budget_total"].values()) == {1}
        assert measured + counted == calls, samples
        (cost,) = samples["gotraced_probe_cost_seconds_total"].values()
        assert cost > 0.4  # four parts of a hundred of ten seconds
        gotraced.end()


def test_what_is_within_the_budget_stays_though_nobody_reads_it(
    storm: Fixture, tmp_path: Path
) -> None:
    with daemon(tmp_path, "type: counter", "budget: 30%\nhost_budget: 30%") as gotraced:
        storm.say(f"1 {RATE}")
        time.sleep(5)  # five looks: a scrape would be one more
        calls = storm.work()["Calls"]
        assert sum(gotraced.samples()["hits_total"].values()) == calls
        gotraced.end()


def test_the_host_has_a_budget_of_its_own(storm: Fixture, tmp_path: Path) -> None:
    with daemon(tmp_path, "type: counter", "budget: 90%\nhost_budget: 0.3%") as gotraced:
        storm.say(f"1 {RATE}")
        said = gotraced.read_until("gotraced: WARNING: hits in storm: ")[0]
        assert "the budget of the host is 0.3%" in said
        gotraced.end()
    storm.work()


def test_frequent_calls_are_seen_returning_in_their_callers(storm: Fixture, tmp_path: Path) -> None:
    """Which costs a fifth: no call is missing on the way there."""
    with daemon(tmp_path, "type: histogram", "budget: 100%") as gotraced:
        storm.say(f"1 {RATE}")
        wait_until(lambda: the(gotraced, "hits_count") > 0)
        first, _ = since(gotraced, (0.0, 0.0))
        seen = 0.0, 0.0

        def is_cheap() -> bool:
            nonlocal seen
            each, seen = since(gotraced, seen)
            return each < first / 2

        wait_until(is_cheap)
        calls = storm.work()["Calls"]
        samples = parsed(plain(gotraced.get("/metrics")))
        assert sum(samples["hits_count"].values()) == calls
        assert not any(samples["gotraced_probe_lost_total"].values())
        gotraced.end()


def the(gotraced: Daemon, name: str) -> float:
    """Return the only value that a metric has."""
    (value,) = parsed(plain(gotraced.get("/metrics")))[name].values()
    return value


def since(gotraced: Daemon, seen: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """Return what a call has cost since a cost and a number of calls, and these as they are now."""
    families = parsed(plain(gotraced.get("/metrics")))
    (cost,) = families["gotraced_probe_cost_seconds_total"].values()
    (calls,) = families["hits_count"].values()
    return (cost - seen[0]) / max(calls - seen[1], 1), (cost, calls)
