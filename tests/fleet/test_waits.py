# SPDX-License-Identifier: Apache-2.0
"""How long goroutines wait: as often and as long as the program itself knows."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from gotrace.errors import UsageError
from gotrace.fleet.config import WaitsSpec, parse_config
from tests.fleet.test_gotraced import Daemon, Samples
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, build, newest, require
from tests.tools.harness import Fixture
from tests.tools.quota import quota_group, throttled

#: Reasons for which the program waits nowhere else, and its functions that do.
REASONS = {
    "select": "selects",
    "sync.Mutex.Lock": "locks",
    "sync.Cond.Wait": "waitsForCond",
    "sleep": "sleeps",
}


def configured(path: Path, program: Path, more: str = "", waits: str = "{targets: [w]}") -> Path:
    file = path / "gotraced.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: w, exe: {program}}}]\n"
        f"waits: {waits}\nbudget: 100%\n{more}"
    )
    file.chmod(0o600)
    return file


def by_reason(found: Samples, name: str) -> dict[str, float]:
    return {dict(labels)["reason"]: value for labels, value in found[name].items()}


class Known:
    """What programs know of their waits, added up."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(REASONS, 0)
        self.least = dict.fromkeys(REASONS, 0)
        self.most = dict.fromkeys(REASONS, 0)

    def add(self, truth: dict[str, Any]) -> None:
        for reason, function in REASONS.items():
            self.count[reason] += truth[function]["count"]
            self.least[reason] += truth[function]["least"]
            self.most[reason] += truth[function]["most"]

    def check(self, found: Samples) -> None:
        counts = by_reason(found, "gotraced_blocked_waits_total")
        times = by_reason(found, "gotraced_blocked_seconds_total")
        assert counts.keys() == times.keys()
        assert {reason: counts[reason] for reason in REASONS} == self.count
        for reason in REASONS:
            seconds = round(times[reason] * 1e9)
            assert self.least[reason] <= seconds <= self.most[reason], reason
        # What ends a wait makes the goroutine runnable, and each is started once.
        assert found["gotraced_runnable_waits_total"][()] > sum(counts.values())
        assert found["gotraced_runnable_seconds_total"][()] > 0


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", ["1.21", "1.27"])
def test_waits_are_those_that_programs_know(minor: str, tmp_path: Path) -> None:
    """Of two processes at a time, whose goroutines have the same addresses, and of later ones."""
    toolchain = require(minor)
    program = Path(shutil.copy(build(FIXTURES / "live_waits", toolchain), tmp_path / "waits"))
    received = Received()
    with over_http(received) as endpoint:
        otlp = f"otlp: {{endpoint: '{endpoint}', interval: 1h}}\n"
        with Daemon(configured(tmp_path, program, otlp), "-v", probes=1) as daemon:
            known = Known()
            with Fixture([program]) as one, Fixture([program]) as other:
                one.say("ways")
                other.say("ways")
                for fixture in (one, other):
                    known.add(json.loads(fixture.read_until("truth ")[0]))
                    fixture.finish()
            known.check(daemon.samples())

            # The probes stay over a reload that does not concern them, and the sums in any case.
            metric = "metrics: [{name: sleeps, type: counter, probe: main.sleeps}]\n"
            configured(tmp_path, program, otlp + metric)
            daemon.signal(signal.SIGHUP)
            daemon.read_until("gotraced: INFO: reloaded")
            daemon.read_until("gotraced: INFO: sleeps in w")
            with Fixture([program]) as fixture:
                known.add(fixture.work("ways"))
                fixture.finish()
            known.check(found := daemon.samples())
            assert found["gotraced_probe_hits_total"][(("probe", "waits"),)] > 0
            assert set(found["gotraced_probe_lost_total"].values()) == {0}
            daemon.end()
    counter = received.metrics["w", "gotraced_blocked_seconds"]
    assert counter.unit == "s" and counter.sum.is_monotonic
    sent = {attributes(p.attributes)["reason"]: p.as_double for p in counter.sum.data_points}
    assert sent == by_reason(found, "gotraced_blocked_seconds_total")


@pytest.mark.live
@pytest.mark.apart
def test_threads_without_quota_are_throttled(tmp_path: Path) -> None:
    """As often and as long as the kernel counts for their group."""
    program = Path(shutil.copy(build(FIXTURES / "live_why", newest()), tmp_path / "why"))
    cpu = {min(os.sched_getaffinity(0))}
    with (
        Daemon(configured(tmp_path, program, waits="true"), probes=1) as daemon,
        quota_group(1_000, 20_000) as group,  # less than its share of a busy machine
        Fixture([program], preexec_fn=lambda: os.sched_setaffinity(0, cpu)) as fixture,
    ):
        assert daemon.samples()["gotraced_throttled_waits_total"] == {(): 0}
        (group / "cgroup.procs").write_text(str(fixture.ready))
        before = throttled(group)
        fixture.work("briefly")
        after = throttled(group)
        (group.parent / "cgroup.procs").write_text(str(fixture.ready))
        fixture.finish()
        found = daemon.samples()
        times, ns = after[0] - before[0], after[1] - before[1]
        # The kernel also counts intervals in which other work of the machine had the CPU.
        assert found["gotraced_throttled_waits_total"][()] > 0.5 * times > 10
        assert found["gotraced_throttled_seconds_total"][()] > 0.5 * ns / 1e9
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_what_would_cost_too_much_is_not_attached(tmp_path: Path) -> None:
    """The price is counted first, with the program at work."""
    program = Path(shutil.copy(build(FIXTURES / "live_storm", newest()), tmp_path / "storm"))
    config = configured(tmp_path, program)
    config.write_text(config.read_text().replace("100%", "0.001%"))
    with Fixture([program]) as fixture:
        fixture.say("4 4000")
        fixture.read_until("busy")
        with Daemon(config, probes=0) as daemon:
            (line,) = [line for line in daemon.log if "waits in w" in line]
            assert "states a second" in line and "tried again in 30 s" in line
            found = daemon.samples()
            assert found["gotraced_probe_over_budget_total"] == {(("probe", "waits"),): 1}
            assert found["gotraced_probe_failures_total"] == {(("probe", "waits"),): 0}
            assert found["gotraced_probe_hits_total"] == {(("probe", "waits"),): 0}
            assert "gotraced_blocked_waits_total" not in found
            daemon.end()
        fixture.say()
        fixture.read_until("truth")
        fixture.finish()


TEXT = "listen: 127.0.0.1:0\ntargets: [{name: a, exe: /a}, {name: b, exe: /b}]\n"


def test_the_configuration_of_waits() -> None:
    assert parse_config("x", TEXT + "waits: true\n").waits == WaitsSpec(("a", "b"))
    asked = parse_config("x", TEXT + "waits: {targets: [b], goroutines: 1000}\n").waits
    assert asked == WaitsSpec(("b",), 1000)
    for wrong, message in (
        (
            "waits: false\n",
            "line 1: no metrics, waits, runtime_metrics, spans or flights are configured",
        ),
        ("waits:\n  targets: [c]\n", "line 4: no target is named 'c'"),
        ("waits:\n  target: [a]\n", "line 4: unknown key 'target' in waits"),
        ("waits: 1\n", "line 3: 1 in waits is not of type boolean or object"),
        ("waits:\n  goroutines: 1\n", "line 4: 1 is less than the minimum"),
    ):
        with pytest.raises(UsageError, match=f"^x, {message}"):
            parse_config("x", TEXT + wrong)
