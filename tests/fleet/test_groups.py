# SPDX-License-Identifier: Apache-2.0
"""Metrics of a kind share what they take, and nothing of what becomes of another."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

import gotrace.fleet.groups as fleet_groups
from gotrace.errors import GotraceError
from gotrace.fleet.config import parse_config
from gotrace.fleet.groups import MemberProbe, MetricGroups
from gotrace.fleet.jobs import Totals, attach_batch, batches, make_jobs
from gotrace.fleet.probing import open_target
from gotrace.fleet.targets import Finder
from gotrace.kernel.attach import Attached, Point, ProbeGroup
from gotrace.overhead import ProbeCost
from gotrace.session import landings
from gotrace.session.open_calls import STACK_LEVEL
from tests.fleet.test_gotraced import Daemon, Samples, wait_until
from tests.fleet.test_memory import family
from tests.fleet.test_reload import reloaded
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture

pytestmark = [pytest.mark.live, pytest.mark.apart]

FUNCTIONS = 200
COST = ProbeCost(800, 2500)
PROGRAMS = 12
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


@pytest.fixture
def servers(grouped: Path, tmp_path: Path) -> list[Path]:
    return [Path(shutil.copy(grouped, tmp_path / f"server{at}")) for at in range(PROGRAMS)]


def configured(
    folder: Path, server: Path | Sequence[Path], metrics: Iterable[str], more: str = ""
) -> Path:
    config = folder / "gotraced.yaml"
    lines = "".join(f"  - {{{metric}}}\n" for metric in metrics)
    more = more or "budget: 100%"
    targets = {"s": server} if isinstance(server, Path) else {one.name: one for one in server}
    config.write_text(
        f"listen: 127.0.0.1:0\n{more}\ntargets:\n"
        + "".join(f"  - {{name: {name}, exe: {path}}}\n" for name, path in targets.items())
        + f"metrics:\n{lines}"
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
        # Another one that takes its place has none of its calls.
        metrics[0] = "name: next, type: histogram, probe: main.f0"
        configured(tmp_path, server, metrics, "budget: 1%")
        reloaded(daemon)
        fixture.say("hot")
        daemon.read_until("gotraced: WARNING: next in s: its calls are only counted: ")
        calls = truth_of(fixture, "stop")[0] - truth[0]
        found = daemon.samples()
        rows = found["gotraced_probe_unmeasured_total"].items()
        unmeasured = sum(value for labels, value in rows if dict(labels)["probe"] == "next")
        assert unmeasured + value(found, "next_count") <= calls
        daemon.end()
        fixture.finish()


def test_a_missing_call_is_in_its_own_metric(tmp_path: Path) -> None:
    """Not in those whose BPF program it shares, of this program or of another one."""
    program = build(FIXTURES / "live_latency", newest())
    servers = [Path(shutil.copy(program, tmp_path / name)) for name in ("losing", "other")]
    names = ("thrown", "recovering", "short", "stay")
    metrics = [
        f"name: {name}, type: histogram, probe: main.{name}, open_calls: 16" for name in names
    ]
    config = configured(tmp_path, servers, metrics)
    with Daemon(config, probes=8) as daemon, ExitStack() as stack:
        losing, other = (stack.enter_context(Fixture([server])) for server in servers)
        losing.work("deep rounds")
        same = other.work("panics rounds")
        truth = losing.work(" ".join(["open"] * 12))  # until the table of goroutines is full
        counts = {name: by_target(daemon, f"{name}_count") for name in names}
        lost = losses(daemon)
        for name in ("recovering", "short"):
            for target, of in (("losing", truth), ("other", same)):
                assert counts[name][target] == of["Functions"][f"main.{name}"]["Calls"]
        assert counts["thrown"]["other"] == same["Functions"]["main.thrown"]["Calls"]
        # Those of the table's goroutines are open.
        assert lost.pop(("stay", "losing", "stacks_full")) > 0
        assert lost.pop(("thrown", "other", "unwound")) == same["Unwound"]
        entered = truth["Functions"]["main.thrown"]["Calls"] + truth["Unwound"]
        reasons = ("outer_calls_full", "unwound")
        parts = [lost.pop(("thrown", "losing", reason)) for reason in reasons]
        assert sum(parts) + counts["thrown"]["losing"] == entered and all(parts)
        assert lost == {}
        daemon.end()
        losing.finish()
        other.finish()


def losses(daemon: Daemon) -> dict[tuple[str, str, str], int]:
    """Return how many calls are missing, if any, by probe, target and reason."""
    form = r'^gotraced_probe_lost_total{probe="(.*?)",reason="(.*?)",target="(.*?)"} (\d+)'
    found = re.findall(form, daemon.get("/metrics"), re.M)
    return {(name, at, why): int(calls) for name, why, at, calls in found if int(calls)}


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
        found = attach_batch(batch, target, program, COST, MetricGroups(COST))
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


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def by_target(daemon: Daemon, name: str) -> dict[str, int]:
    """Return a metric's calls in each target."""
    found = {}
    for line in daemon.get("/metrics").splitlines():
        if line.startswith(f"{name}{{"):
            labels, count = line.split()
            found[labels.split('"')[1]] = int(float(count))
    return found


def test_programs_share_what_one_takes(servers: Sequence[Path], tmp_path: Path) -> None:
    """Also one that comes in the place of another, and takes what that has left."""
    config = configured(tmp_path, servers, [histogram(1), counter(2), histogram(3)])
    with Daemon(config, "-v", probes=3 * PROGRAMS, patience=300.0) as daemon:
        before = descriptors(daemon)
        assert before < 150  # they were 35 for each
        counted = Counter[str]()
        for turn in range(2):
            with ExitStack() as stack:
                for at, server in enumerate(servers):
                    fixture = stack.enter_context(Fixture([server]))
                    truth = truth_of(fixture, str(at + 1))
                    counted[server.name] += truth[1]
                    fixture.finish()
                for name in ("h1_count", "c2_total", "h3_count"):
                    assert by_target(daemon, name) == counted
            if not turn:
                for server in servers[:5]:
                    os.rename(shutil.copy(server, tmp_path / "other"), server)
                for server in servers[:5]:
                    daemon.read_until(f"gotraced: INFO: c2 in {server.name} ")
        assert descriptors(daemon) <= before + 10
        assert not any(daemon.samples()["gotraced_probe_lost_total"].values())
        form = r'^gotraced_probe_hits_total{probe="(h\d)",target="(\S+)"} (\d+)'
        hits = {
            (probe, target): int(count)
            for probe, target, count in re.findall(form, daemon.get("/metrics"), re.M)
        }
        # Each pays for its own: an entry and a RET of each call, and parts of what all have.
        assert hits.keys() == {(name, target) for name in ("h1", "h3") for target in counted}
        for (_, target), count in hits.items():
            assert 2 * counted[target] <= count <= 2 * counted[target] + 200, hits
        daemon.end()


def test_functions_of_each_file_are_seen_returning_in_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is missing on the way there, nor in one file when the other one is left.

    Probes that cannot be placed now are tried again: it was the end of all moves in the file.
    """
    change, failed = Attached.change, list[Sequence[ProbeGroup]]()

    def fail_first(
        self: Attached, more: Sequence[ProbeGroup] = (), without: Sequence[ProbeGroup] = ()
    ) -> dict[Point, OSError]:
        if more and len(failed) < 4:
            failed.append(more)
            raise GotraceError("no process can be started")
        return change(self, more, without)

    monkeypatch.setattr(Attached, "change", fail_first)
    monkeypatch.setattr(landings, "_AGAIN", 0.1)
    built = build(FIXTURES / "live_storm", newest())
    storms = [Path(shutil.copy(built, tmp_path / f"storm{at}")) for at in range(2)]
    metric = "name: hits, type: histogram, probe: main.hit"
    config = parse_config("c.yaml", configured(tmp_path, storms, [metric]).read_text())
    (batch,) = batches(make_jobs(config, Totals(), None, {}).values())
    groups = MetricGroups(COST)
    with ExitStack() as stack:
        fixtures = [stack.enter_context(Fixture([storm])) for storm in storms]
        probes = []
        for program in Finder(config.targets).look().values():
            target = stack.enter_context(closing(open_target(program, config.planning)))
            ((_, probe),) = attach_batch(batch, target, program, COST, groups, programs=2)
            assert isinstance(probe, MemberProbe)
            probes.append(probe)
        assert probes[0].group is probes[1].group
        for fixture in fixtures:
            fixture.say("1 20000")
        moved = set[MemberProbe]()

        def have_moved() -> bool:
            probes[0].source.move()
            moved.update(probe for probe in probes if probe.settle())
            return len(moved) == len(probes)

        wait_until(have_moved)
        assert len(failed) == 4
        calls = {}
        for storm, fixture, probe in zip(storms, fixtures, probes, strict=True):
            calls[storm.name] = fixture.work()["Calls"]
            assert not any(probe.close().lost.values())
            points = [point for point, _ in probe.metric.points()]
            assert calls.items() <= {point.values[0]: point.calls for point in points}.items()


def test_metrics_that_come_by_themselves_join_the_others(server: Path, tmp_path: Path) -> None:
    metrics = [histogram(1)]
    config = configured(tmp_path, server, metrics)
    with Daemon(config, "-v", probes=1) as daemon, Fixture([server]) as fixture:
        began = Counter[str]()
        truth = truth_of(fixture, "3")
        before = descriptors(daemon)
        for number in range(2, 12):
            metrics.append(histogram(number))
            configured(tmp_path, server, metrics)
            reloaded(daemon)
            daemon.read_until(f"gotraced: INFO: h{number} in s ")
            began[f"h{number}"] = truth[number]
            truth = truth_of(fixture, str(number))
            found = daemon.samples()
            for at in range(1, number + 1):
                assert value(found, f"h{at}_count") == truth[at] - began[f"h{at}"]
        assert descriptors(daemon) <= before + 2 * 10  # another group would take more than 20 each
        daemon.end()
        fixture.finish()


@pytest.mark.parametrize("leaves", ["process", "metric", "program"])
def test_calls_that_never_return_leave_room_for_those_of_others(
    servers: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    """They had all of it; now a share is everybody's, and what they had is free as they go."""
    most = 64
    monkeypatch.setattr(fleet_groups, "_MAX_OPEN_CALLS", most)  # goroutines of 131,072 take 300 MB
    some = servers[:3]
    metrics = ["name: h, type: histogram, probe: main.held"]
    if leaves == "metric":  # another one of the program stays
        metrics.append("name: i, type: histogram, probe: main.hot")
    config = parse_config("x", configured(tmp_path, some, metrics).read_text())
    jobs = make_jobs(config, Totals(), None, {})
    groups = MetricGroups(COST)
    programs = sorted(Finder(config.targets).look().values(), key=lambda one: one.key.target)
    probes: list[MemberProbe] = []
    with ExitStack() as stack:
        for program in programs:
            target = stack.enter_context(closing(open_target(program, config.planning)))
            (batch,) = batches(jobs.values())
            for job, probe in attach_batch(batch, target, program, COST, groups, programs=3):
                assert isinstance(probe, MemberProbe)
                stack.enter_context(closing(probe))
                if job.name == "h":
                    probes.append(probe)
        (group,) = {probe.source for probe in probes}
        half = most // 2
        share = half // 4  # there is room for a further file
        # On one CPU: calls that begin on two at once may both have the last row.
        greedy, second, other = (
            stack.enter_context(Fixture(["taskset", "-c", "0", server])) for server in some
        )

        def lost() -> list[int]:
            group.look_again()
            return [probe.figures().lost["stacks_full"] for probe in probes]

        def is_gone() -> bool:
            probes[2].poll()
            return open_calls(group)[:2] == [0, 0]

        greedy.work("hold 200")
        second.work("hold 200")
        assert lost() == [200 - half, 200 - share, 0]
        for number in (share, share, share + 5):
            other.work(f"hold {number}")
            assert open_calls(group) == [half, share, share]
            other.work("free")
        assert lost() == [200 - half, 200 - share, 5]
        second.finish()
        if leaves == "process":
            greedy.finish()
        else:
            assert probes[0].close().lost["open_at_detach"] == half
        wait_until(is_gone)
        other.work("hold 40")
        assert open_calls(group) == [0, 0, half]
        other.work("free")
        assert probes[2].close().lost.total() == 5 + 40 - half
        calls = [point.calls for point, _ in probes[2].metric.points()]
        assert sum(calls) == 3 * share + half


def open_calls(group: Any) -> list[int]:
    """Return how many goroutines of the first three files have calls open, or rest: see calls.h."""
    program = group.meter.attached.program
    rows = [STACK_LEVEL.unpack_from(row) for _, row in program.map("stacks").entries()]
    _, numbers = zip(*program.map("resting").array_range(4, 6), strict=True)
    counted = [int.from_bytes(number, "little") for number in numbers]
    all_rows = Counter(file for _, file in rows)
    for at in range(3):
        assert counted[2 * at] - counted[2 * at + 1] == all_rows[at]
    return [sum(file == at and level > 0 for level, file in rows) for at in range(3)]
