# SPDX-License-Identifier: Apache-2.0
"""Metrics of a kind share what they take, and nothing of what becomes of another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from gotrace.errors import GotraceError
from gotrace.fleet.config import parse_config
from gotrace.fleet.groups import MemberProbe
from gotrace.fleet.jobs import Totals, attach_batch, batches, make_jobs
from gotrace.fleet.probing import open_target
from gotrace.fleet.targets import Finder
from gotrace.overhead import ProbeCost
from tests.fleet.test_gotraced import Daemon, Samples
from tests.fleet.test_memory import family
from tests.fleet.test_reload import reloaded
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

pytestmark = [pytest.mark.live, pytest.mark.apart]

FUNCTIONS = 200
#: Of both processes, and at the start: without groups they were 5,400, and three minutes.
MOST_DESCRIPTORS, MOST_SECONDS = 600, 60


@pytest.fixture(scope="module")
def grouped() -> Path:
    declared = "".join(
        f"//go:noinline\nfunc f{number}(n int) int {{ return n*{number} + leaf(n) }}\n\n"
        for number in range(FUNCTIONS)
    )
    listed = "".join(f"\tf{number},\n" for number in range(FUNCTIONS))
    leaf = "//go:noinline\nfunc leaf(n int) int { return n * 3 }\n\n"
    text = f"package main\n\n{leaf}{declared}var functions = []func(int) int{{\n{listed}}}\n"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "live_grouped"
        shutil.copytree(FIXTURES / "live_grouped", source)
        (source / "functions.go").write_text(text)
        return build(source, newest())


@pytest.fixture
def server(grouped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(grouped, tmp_path / "server"))


def configured(folder: Path, server: Path, metrics: Iterable[str], more: str = "") -> Path:
    config = folder / "gotraced.yaml"
    lines = "".join(f"  - {{{metric}}}\n" for metric in metrics)
    more = more or "budget: 100%"
    config.write_text(
        f"listen: 127.0.0.1:0\n{more}\ntargets: [{{name: s, exe: {server}}}]\nmetrics:\n{lines}"
    )
    config.chmod(0o600)
    return config


def histogram(number: int) -> str:
    return f"name: h{number}, type: histogram, probe: main.f{number}"


def counter(number: int) -> str:
    return f"name: c{number}, type: counter, probe: main.f{number}"


def truth_of(fixture: Fixture, order: str) -> list[int]:
    """Have the program do something, and return how often it has called each function so far."""
    return list(cast("list[int]", fixture.work(order)))


def value(found: Samples, name: str) -> float:
    (only,) = found[name].values()
    return only


def test_two_hundred_histograms_take_what_one_takes(server: Path, tmp_path: Path) -> None:
    metrics = [histogram(number) for number in range(FUNCTIONS)]
    config = configured(tmp_path, server, metrics)
    with Fixture([server]) as fixture, Daemon(config, probes=FUNCTIONS, patience=300.0) as daemon:
        said = daemon.log[-1]
        assert float(said.split()[-2]) < MOST_SECONDS, said
        processes = list(family(daemon.pid))
        descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in processes]
        assert len(processes) == 2 and sum(descriptors) < MOST_DESCRIPTORS, descriptors
        assert descriptors[0] < 60
        truth = truth_of(fixture, "7")
        found = daemon.samples()
        assert [value(found, f"h{number}_count") for number in range(FUNCTIONS)] == truth
        assert not any(found["gotraced_probe_lost_total"].values())
        daemon.end()
        fixture.finish()


def test_a_reload_under_load_takes_nothing_from_those_that_stay(
    server: Path, tmp_path: Path
) -> None:
    """Nor a program that is replaced: histograms and counters, some of the same functions."""
    every = [
        "name: few, type: histogram, probe: 'main.f1*'",  # 111 functions: a group of its own
        "name: ten, type: histogram, probe: 'main.f1?', functions: true",
        "name: ones, type: counter, probe: 'main.f1?', functions: true",
    ]
    every[1:] = [line.replace("'main.f1?'", "'main.f19*'") for line in every[1:]]
    staying = [*every, *(histogram(number) for number in range(40)), *map(counter, range(40))]
    leaving = [make(number) for number in range(30, 60) for make in (histogram, counter)]
    leaving = [line for line in leaving if line not in staying]
    coming = [make(number) for number in range(60, 90) for make in (histogram, counter)]
    config = configured(tmp_path, server, [*staying, *leaving])
    probes = len(staying) + len(leaving)
    with Daemon(config, "-v", probes=probes, patience=300.0) as daemon:
        with Fixture([server], patience=300.0) as fixture:
            fixture.say("go")
            for metrics in (
                [*staying, *coming],
                staying,
                [*leaving, *staying],
                [*staying, *coming, "name: none, type: counter, probe: main.nosuch"],
            ):
                configured(tmp_path, server, metrics)
                reloaded(daemon)
            daemon.read_until("gotraced: ERROR: none in s")
            first = truth_of(fixture, "stop")
            fixture.finish()
        check(daemon, first)
        os.rename(shutil.copy(server, tmp_path / "other"), server)
        with Fixture([server]) as fixture:
            daemon.read_until("gotraced: INFO: c39 in s ")  # attached, the last of them
            second = truth_of(fixture, "5")
            fixture.finish()
        check(daemon, [one + other for one, other in zip(first, second, strict=True)])
        daemon.end()


def check(daemon: Daemon, truth: list[int]) -> None:
    """Compare the metrics that stay with what the program has counted."""
    found = daemon.samples()
    for number in range(30):
        assert value(found, f"h{number}_count") == truth[number]
        assert value(found, f"c{number}_total") == truth[number]
    names = [number for number in range(FUNCTIONS) if str(number).startswith("1")]
    assert value(found, "few_count") == sum(truth[number] for number in names)
    nineteen = [19, *range(190, 200)]
    for name in ("ten_count", "ones_total"):
        by_function = {dict(labels)["function"]: count for labels, count in found[name].items()}
        assert by_function == {f"main.f{number}": truth[number] for number in nineteen}
    lost = found["gotraced_probe_lost_total"]
    assert {labels: count for labels, count in lost.items() if count} == {}


def test_a_metric_over_its_budget_stops_no_other(server: Path, tmp_path: Path) -> None:
    metrics = [histogram(0), histogram(1), counter(0), counter(1)]
    metrics.append("name: both, type: histogram, probe: main.f1")
    config = configured(tmp_path, server, metrics, "budget: 1%")
    with Daemon(config, probes=5) as daemon, Fixture([server]) as fixture:
        fixture.say("hot")
        daemon.read_until("gotraced: WARNING: h0 in s: its calls are only counted: ")
        daemon.read_until("gotraced: WARNING: h0 in s: detached: ")
        truth = truth_of(fixture, "stop")
        found = daemon.samples()
        assert value(found, "h1_count") == value(found, "both_count") == truth[1]
        assert value(found, "c1_total") == truth[1]
        over = found["gotraced_probe_over_budget_total"]
        assert {dict(labels)["probe"] for labels, times in over.items() if times} <= {"h0", "c0"}
        cost = {
            dict(labels)["probe"]: seconds
            for labels, seconds in found["gotraced_probe_cost_seconds_total"].items()
        }
        assert cost["h0"] > 3 * cost["h1"] and cost["h1"] == pytest.approx(cost["both"], rel=0.01)
        daemon.end()
        fixture.finish()


def test_who_is_refused_costs_itself_alone(server: Path, tmp_path: Path) -> None:
    config = parse_config(
        "c.yaml",
        configured(
            tmp_path, server, [histogram(1), histogram(2), "name: a, type: histogram, probe: x.y"]
        ).read_text(),
    )
    jobs = make_jobs(config, Totals(), None, {})
    (batch,) = batches(jobs.values())
    with Fixture([server]) as fixture:
        (program,) = Finder(config.targets).look().values()
        target = open_target(program, config.planning)
        found = attach_batch(batch, target, program, ProbeCost(800, 2500))
        one, other, refused = (probe for _, probe in found)
        assert isinstance(refused, GotraceError)
        assert isinstance(one, MemberProbe) and isinstance(other, MemberProbe)
        truth = truth_of(fixture, "5")
        one.close()
        truth = truth_of(fixture, "6")
        other.take()
        counts = [probe.metric.points()[0][0].calls for probe in (one, other)]
        assert counts == [5, truth[2]]
        other.close()
        target.close()
        fixture.finish()
