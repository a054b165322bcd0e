# SPDX-License-Identifier: Apache-2.0
"""The metrics of Go's runtime from outside: those that the program itself reads at that moment."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain

from gotrace.errors import UsageError
from gotrace.fleet.config import Config, parse_config
from gotrace.fleet.targets import Finder, Program
from gotrace.fleet.telemetry.runtime import RuntimeOutcome, RuntimeRows, RuntimeWatch
from gotrace.live import runtime
from gotrace.target.process import ProcessError, find_process
from gotrace.target.target import Target
from tests.fleet.test_gotraced import Daemon, Samples, parsed, wait_until
from tests.fleet.test_otlp import Received, attributes, over_http
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, Process

TOP = FIXTURES / "live_top"
#: Bytes that the fixture allocates by asking for its metrics and printing them.
OWN = 256 << 10
#: client_golang's names, and those of runtime/metrics that they are made of.
BYTES = {
    "go_memstats_next_gc_bytes": ["/gc/heap/goal:bytes"],
    "go_memstats_alloc_bytes_total": ["/gc/heap/allocs:bytes"],
    "go_memstats_sys_bytes": ["/memory/classes/total:bytes"],
    "go_memstats_heap_alloc_bytes": ["/memory/classes/heap/objects:bytes"],
    "go_memstats_heap_inuse_bytes": [
        *("/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes"),
    ],
    "go_memstats_heap_idle_bytes": [
        *("/memory/classes/heap/free:bytes", "/memory/classes/heap/released:bytes"),
    ],
    "go_memstats_heap_released_bytes": ["/memory/classes/heap/released:bytes"],
    "go_memstats_stack_inuse_bytes": ["/memory/classes/heap/stacks:bytes"],
}
EQUAL = {
    "go_goroutines": "NumGoroutine",
    "go_sched_gomaxprocs_threads": "/sched/gomaxprocs:threads",
    "go_gc_gogc_percent": "/gc/gogc:percent",
    "go_gc_gomemlimit_bytes": "/gc/gomemlimit:bytes",
    "go_gc_duration_seconds_count": "/gc/cycles/total:gc-cycles",
    "go_gc_heap_live_bytes": "/gc/heap/live:bytes",
}


def configured(
    path: Path, program: Path, runtime: str = "{interval: 100ms}", more: str = ""
) -> Path:
    file = path / "gotraced.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: t, exe: {program}}}]\n"
        f"runtime_metrics: {runtime}\n{more}"
    )
    file.chmod(0o600)
    return file


def scraped(daemon: Daemon) -> Samples:
    """Scrape once: a second answer may be of later figures."""
    return parsed(plain(daemon.get("/metrics")))


def of_process(found: Samples, pid: int) -> dict[str, float]:
    """Return the values of a process that have no label beside."""
    return {
        name: rows[(("pid", str(pid)),)]
        for name, rows in found.items()
        if (("pid", str(pid)),) in rows
    }


def of_now(daemon: Daemon, pid: int, truth: dict[str, float]) -> dict[str, float]:
    """Return the values of a process that were read since it told the truth; it is still now."""
    found: dict[str, float] = {}

    def is_later() -> bool:
        found.update(of_process(scraped(daemon), pid))
        wanted = truth["NumGoroutine"], truth["/gc/cycles/total:gc-cycles"]
        return (found["go_goroutines"], found["go_gc_duration_seconds_count"]) == wanted

    wait_until(is_later)
    return found


def outcomes(found: Samples) -> dict[str, float]:
    rows = found["gotraced_runtime_processes"]
    return {dict(at)["outcome"]: count for at, count in rows.items() if count}


@pytest.mark.live
@each_toolchain
def test_metrics_are_those_that_the_program_reads_itself(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    if toolchain.minor == "1.15":
        pytest.skip("it has no runtime/metrics")
    program = Path(shutil.copy(build(TOP, toolchain), tmp_path / "program"))
    with (
        Daemon(configured(tmp_path, program), probes=0) as daemon,
        Fixture([program]) as fixture,
    ):
        wait_until(lambda: outcomes(scraped(daemon)) == {"read": 1})
        for order in ("leak 1", "leak 5000", "leak 10"):
            fixture.work(order)
            fixture.work("collect")  # no other collection is under way then
            truth = fixture.work("metrics")
            found = of_now(daemon, fixture.ready, truth)
            for name, parts in BYTES.items():
                assert abs(found[name] - sum(truth[part] for part in parts)) <= OWN, name
            for name, one in EQUAL.items():
                # Releases have more of them, one after the other.
                assert found[name] == float(truth.get(one, found[name])), name
            if (gc := truth.get("/cpu/classes/gc/total:cpu-seconds")) is not None:
                assert found["go_cpu_classes_gc_total_cpu_seconds_total"] == pytest.approx(gc)
            activities = [value for at, value in found.items() if "go_sched_goroutines_" in at]
            assert len(activities) == 4 and sum(activities) > found["go_goroutines"]
            if "/sched/goroutines/waiting:goroutines" in truth:  # it has those of the runtime, too
                assert sum(activities) == truth["/sched/goroutines:goroutines"]
        assert found["go_goroutines"] > 5000
        assert found["go_gc_duration_seconds_sum"] > 0
        (info,) = scraped(daemon)["go_info"]
        assert dict(info) == {"pid": str(fixture.ready), "version": f"go{toolchain.version}"}
        fixture.finish()
        # Of a process that has ended nothing is said.
        wait_until(lambda: not outcomes(scraped(daemon)))
        assert not of_process(scraped(daemon), fixture.ready)
        daemon.end()


def config_of(path: Path, program: Path, runtime: str, more: str = "") -> Config:
    return parse_config("x", configured(path, program, runtime, more).read_text())


class Asked:
    """A watch of a configuration, and how often programs were looked for."""

    def __init__(self, config: Config) -> None:
        self.config, self.looks = config, 0
        self.watch = RuntimeWatch(lambda: self.config, self._programs)

    def _programs(self) -> Iterable[Program]:
        self.looks += 1
        return Finder(self.config.targets).look().values()

    def until(self, wanted: dict[RuntimeOutcome, int]) -> RuntimeRows:
        """Ask until so many processes fare so."""
        found = RuntimeRows()

        def is_so() -> bool:
            nonlocal found
            found = self.watch.rows()
            return {at[1]: count for at, count in found.outcomes.items() if count} == wanted

        wait_until(is_so)
        return found


@pytest.mark.live
def test_a_process_is_read_once_in_a_time_however_often_it_is_asked(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(TOP, newest()), tmp_path / "program"))
    asked = Asked(config_of(tmp_path, program, "{interval: 24h}"))
    with Fixture([program]) as fixture, closing(asked.watch):
        first = asked.watch.rows()
        fixture.work("leak 5")
        assert asked.watch.rows() is first and asked.looks == 1
        # A reload asks anew.
        asked.config = config_of(tmp_path, program, "{interval: 100ms}")
        wait_until(lambda: asked.watch.rows().rows[0].figures.goroutines == 6)
        asked.config = config_of(tmp_path, program, "false", "waits: true")
        assert asked.watch.rows().rows == () == tuple(asked.watch.rows().outcomes)
        fixture.finish()


@pytest.mark.live
def test_processes_beyond_the_most_are_counted_and_not_read(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(TOP, newest()), tmp_path / "program"))
    asked = Asked(config_of(tmp_path, program, "{interval: 100ms, processes: 1}"))
    with Fixture([program]) as first, closing(asked.watch):
        asked.until({RuntimeOutcome.READ: 1})
        with Fixture([program]) as second:
            found = asked.until({RuntimeOutcome.READ: 1, RuntimeOutcome.PASSED_OVER: 1})
            assert [row.pid for row in found.rows] == [first.ready] != [second.ready]
            first.finish()
            (row,) = asked.until({RuntimeOutcome.READ: 1}).rows
            assert row.pid == second.ready
            second.finish()


@pytest.mark.live
def test_a_process_that_has_just_ended_is_no_failure(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(TOP, newest()), tmp_path / "program"))
    config = config_of(tmp_path, program, "{interval: 100ms}")
    with Fixture([program]) as fixture:
        programs = Finder(config.targets).look().values()
        watch = RuntimeWatch(lambda: config, lambda: programs)  # which does not look again
        with closing(watch):
            wait_until(lambda: watch.rows().outcomes["t", RuntimeOutcome.READ] == 1)
            fixture.finish()
            wait_until(lambda: not any(watch.rows().outcomes.values()))


@pytest.mark.live
def test_more_goroutines_than_are_counted_leave_the_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(shutil.copy(build(TOP, newest()), tmp_path / "program"))
    asked = Asked(config_of(tmp_path, program, "{interval: 100ms}"))
    with Fixture([program]) as fixture, closing(asked.watch):
        fixture.work("leak 500")
        monkeypatch.setattr(runtime, "_MOST", 500)
        (row,) = asked.until({RuntimeOutcome.READ: 1}).rows
        assert row.figures.goroutines is None and not row.figures.activities
        assert row.figures.heap is not None
        fixture.finish()


@pytest.mark.live
def test_a_process_that_executes_a_program_is_not_read_as_before() -> None:
    """The same program is elsewhere in memory then."""
    program = build(FIXTURES / "live_count", newest(), flags=("-buildmode=pie",))
    with Fixture([program]) as fixture:
        with closing(Target.of(fixture.ready, None)) as target:
            plan = runtime.plan_runtime(target.binary(None))
        process = find_process(fixture.ready)
        with closing(runtime.RuntimeReader(plan, process)) as reader:
            assert reader.read().goroutines
            fixture.work()
            fixture.say(str(program))
            fixture.read_until("ready ")
            with pytest.raises(
                ProcessError, match=r"runs another program, or has just started|has ended"
            ):
                reader.read()
        with closing(runtime.RuntimeReader(plan, process)) as reader:
            assert reader.read().goroutines
        fixture.work()
        fixture.finish()


@pytest.mark.live
def test_what_cannot_be_read_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a stripped program goroutines are; what is not Go's, or too much to read, is not."""
    stripped = build(TOP, newest(), flags=("-ldflags=-s -w", "-buildmode=pie"))
    program = Path(shutil.copy(stripped, tmp_path / "program"))
    asked = Asked(config_of(tmp_path, program, "{interval: 100ms}"))
    with Fixture([program]) as fixture, closing(asked.watch):
        (row,) = asked.until({RuntimeOutcome.WITHOUT_HEAP: 1}).rows
        assert row.figures.heap is None and row.figures.goroutines == 1
        more = "planning: {memory: 1, seconds: 1, section: 1}"
        other = Asked(config_of(tmp_path, program, "{interval: 100ms}", more))
        with closing(other.watch):
            assert not other.until({RuntimeOutcome.FAILED: 1}).rows
        assert "runtime metrics of t (" in caplog.text and "cannot map: " in caplog.text
        fixture.finish()
    sleep = Path(shutil.copy("/bin/sleep", tmp_path / "sleep"))
    asked = Asked(config_of(tmp_path, sleep, "{interval: 100ms}"))
    with Process([sleep, "100"]), closing(asked.watch):
        assert not asked.until({RuntimeOutcome.NOT_GO: 1}).rows


@pytest.mark.live
def test_a_collector_has_them_by_opentelemetrys_names(tmp_path: Path) -> None:
    program = Path(shutil.copy(build(TOP, newest()), tmp_path / "program"))
    received = Received()
    with over_http(received) as endpoint, Fixture([program]) as fixture:
        otlp = f"otlp: {{endpoint: '{endpoint}', interval: 200ms}}"
        with Daemon(configured(tmp_path, program, more=otlp), probes=0) as daemon:
            wait_until(lambda: ("t", "go.memory.used") in received.metrics)
            fixture.work("collect")
            truth = fixture.work("metrics")
            time.sleep(1)  # some exports later
            with received.more:
                found = {name: one.sum for (_, name), one in received.metrics.items()}
            daemon.end()
        fixture.finish()
    values: dict[tuple[Any, ...], int] = {}
    for name, one in found.items():
        for point in one.data_points:
            of_point = attributes(point.attributes)
            assert of_point.pop("process.pid") == fixture.ready
            key = name, *of_point.values()
            values[key] = point.as_int
        assert one.is_monotonic == (name == "go.memory.allocated")
    stacks = truth["/memory/classes/heap/stacks:bytes"]
    mapped = truth["/memory/classes/total:bytes"] - truth["/memory/classes/heap/released:bytes"]
    assert values["go.goroutine.count",] == truth["NumGoroutine"]
    assert values["go.processor.limit",] == truth["/sched/gomaxprocs:threads"]
    assert values["go.config.gogc",] == truth["/gc/gogc:percent"]
    assert abs(values["go.memory.used", "stack"] - stacks) <= OWN
    assert abs(values["go.memory.used", "other"] - (mapped - stacks)) <= OWN
    assert abs(values["go.memory.gc.goal",] - truth["/gc/heap/goal:bytes"]) <= OWN
    assert abs(values["go.memory.allocated",] - truth["/gc/heap/allocs:bytes"]) <= OWN
    assert ("go.memory.limit",) not in values  # none was set


def test_names_of_the_runtime_are_not_a_metrics() -> None:
    text = "targets: [{name: a, exe: /a}]\nlisten: 127.0.0.1:0\nruntime_metrics: true\n"
    assert parse_config("x", text).runtime_metrics is not None
    metrics = "metrics:\n  - {name: go_goroutines, type: counter, probe: f}\n"
    with pytest.raises(UsageError, match=r"^x, line 5: .*names of go_ are the runtime's"):
        parse_config("x", text + metrics)
    with pytest.raises(UsageError, match="give listen or otlp"):
        parse_config("x", text.replace("listen: 127.0.0.1:0\n", ""))
