# SPDX-License-Identifier: Apache-2.0
"""Measure gotraced: 100 probes in 20 busy processes, at rest, and while processes come and go."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, Series
from tests.bench.targets import newest_go
from tests.fleet.test_gotraced import Daemon
from tests.toolchains import FIXTURES, build
from tests.tools.harness import Fixture

_PROGRAMS, _PROCESSES = 5, 4  # files, and processes of each
_RATE = 100_000  # calls a second, of all
_STARTS = 1_000  # a minute
_CALLS_OF_A_START = 200
_FUNCTIONS = 20
_TICK = os.sysconf("SC_CLK_TCK")
_MAX_AT_REST, _MAX_MB = 1.0, 100.0

#: Of each program, one metric for each of its functions: what a service may have.
METRICS = (
    *(("counter", "") for _ in range(12)),
    *(("histogram", "") for _ in range(4)),
    *(("counter", ", labels: {failed: '$ret2 != nil', key: key}") for _ in range(2)),
    *(("histogram", ", of: len(key), buckets: {from: 1, to: 64}") for _ in range(2)),
)


def configuration(programs: Sequence[Path]) -> str:
    """Return a configuration with 20 metrics of each program, none of which is shared."""
    targets = "".join(f"  - {{name: {path.name}, exe: {path}}}\n" for path in programs)
    metrics = "".join(
        f"  - {{name: {path.name}_f{at}, type: {kind}, probe: main.f{at}, targets: [{path.name}]"
        f"{more}}}\n"
        for path in programs
        for at, (kind, more) in enumerate(METRICS)
    )
    return f"listen: 127.0.0.1:0\nbudget: 100%\ntargets:\n{targets}metrics:\n{metrics}"


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _megabytes(pid: int) -> float:
    """Return the memory of a process that it shares with none, and its part of the rest, in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


@dataclass
class _Truth:
    """What processes have counted themselves, and the CPU time that they took."""

    calls: int = 0
    failed: int = 0
    cpu_ns: int = 0
    wall_ns: list[int] = field(default_factory=list)


class _Fleet:
    """Processes of several programs, which all do the same."""

    def __init__(self, programs: Sequence[Path], closing: ExitStack) -> None:
        self._processes = [
            closing.enter_context(Fixture([path], patience=3600.0))
            for path in programs
            for _ in range(_PROCESSES)
        ]
        self.total = _Truth()

    def work(self, seconds: float) -> _Truth:
        """Have all call at their rate, at the same time, and return what they say of it."""
        each = _RATE // len(self._processes)
        calls = round(each * seconds / _FUNCTIONS) * _FUNCTIONS
        for process in self._processes:
            process.say(f"{calls} {each}")
        truth = _Truth()
        for process in self._processes:
            own = process.answer()
            for into in (truth, self.total):
                into.calls += own["Calls"]
                into.failed += own["Failed"]
                into.cpu_ns += own["CPU"]
                into.wall_ns.append(own["Wall"])
        return truth


def fleet_costs(results: Results, settings: Settings) -> None:
    """Measure all of it on one configuration of 100 metrics."""
    built = build(FIXTURES / "bench_fleet", newest_go())
    seconds = 10.0 if settings.whole else 2.0
    with tempfile.TemporaryDirectory() as directory, ExitStack() as closing:
        place = Path(directory)
        programs = [
            Path(shutil.copy(built, place / f"program{number}")) for number in range(_PROGRAMS)
        ]
        config = place / "gotraced.yaml"
        config.write_text(configuration(programs))
        config.chmod(0o600)
        fleet = _Fleet(programs, closing)
        bare = [fleet.work(seconds) for _ in range(settings.few)]
        before = fleet.total.calls
        probes = len(programs) * len(METRICS)
        with Daemon(config, probes=probes, patience=3600.0) as daemon:
            _at_rest(results, daemon, seconds, f"{probes} metrics")
            traced, used = [], []
            for _ in range(settings.few):
                cpu = _cpu_s(daemon.pid)
                began = time.monotonic()
                traced.append(fleet.work(seconds))
                daemon.get("/metrics")
                used.append(100 * (_cpu_s(daemon.pid) - cpu) / (time.monotonic() - began))
            case = f"{probes} probes, {_PROGRAMS * _PROCESSES} processes"
            _costs(results, case, bare, traced)
            results.add(f"{case}: CPU of gotraced, with a scrape", "gotraced", "%", used)
            _scrapes(results, daemon, case, settings.few)
            _nothing_lost(results, daemon, case, fleet.total.calls - before)
            _starts(results, daemon, programs[0], seconds)
            daemon.end()


def _at_rest(results: Results, daemon: Daemon, seconds: float, case: str) -> None:
    daemon.get("/metrics")
    cpu, began = _cpu_s(daemon.pid), time.monotonic()
    threading.Event().wait(2 * seconds)
    shares = [100 * (_cpu_s(daemon.pid) - cpu) / (time.monotonic() - began)]
    memory, holders = _megabytes(daemon.pid), sum(map(_megabytes, _children(daemon.pid)))
    results.add(f"{case} at rest: CPU", "gotraced", "%", shares)
    results.add(f"{case} at rest: memory", "gotraced", "MB", [memory])
    results.add(f"{case} at rest: memory", "what holds the probes", "MB", [holders])
    for name, value, bound, unit in (
        ("CPU", shares[0], _MAX_AT_REST, "%"),
        ("memory", memory + holders, _MAX_MB, "MB"),
    ):
        series = Series.of([value])
        results.requirements.append(
            Requirement(f"{name} of gotraced at rest, {case}", series, bound, unit=unit)
        )


def _costs(results: Results, case: str, bare: list[_Truth], traced: list[_Truth]) -> None:
    for name, rows in (("not traced", bare), ("gotraced", traced)):
        each = [row.cpu_ns / row.calls for row in rows]
        rates = [row.calls / max(row.wall_ns) * 1e9 for row in rows]
        results.add(f"{case}: CPU time of the programs a call", name, "ns", each)
        results.add(f"{case}: calls a second", name, "calls/s", rates)
    idle = statistics.median(row.cpu_ns / row.calls for row in bare)
    added = [row.cpu_ns / row.calls - idle for row in traced]
    results.add(f"{case}: added to a call, on average", "gotraced", "ns", added)


def _scrapes(results: Results, daemon: Daemon, case: str, rounds: int) -> None:
    times, sizes = [], []
    for _ in range(max(3, rounds)):
        began = time.monotonic()
        sizes.append(len(daemon.get("/metrics")) / 1e3)
        times.append(time.monotonic() - began)
    results.add(f"{case}: time of a scrape", "gotraced", "s", times)
    results.add(f"{case}: size of a scrape", "gotraced", "kB", sizes)


def _counted(daemon: Daemon, target: str = "") -> int:
    """Return how many calls all metrics have, or those of a target."""
    found = 0.0
    for name, rows in daemon.samples().items():
        if name.startswith(target or "program") and name.endswith(("_total", "_count")):
            found += sum(rows.values())
    return int(found)


def _lost(daemon: Daemon) -> int:
    return int(sum(daemon.samples().get("gotraced_probe_lost_total", {}).values()))


def _nothing_lost(results: Results, daemon: Daemon, case: str, calls: int) -> None:
    missing = calls - _counted(daemon)
    results.add(
        f"{case}: calls missing or lost",
        "gotraced",
        "calls",
        [float(abs(missing) + _lost(daemon))],
        f"of {calls:,}",
    )


@contextmanager
def _starting(program: Path, seconds: float) -> Iterator[list[int]]:
    """Start a program that fails at once again and again, at a rate; yield the number so far."""
    starts = [0]
    over = threading.Event()

    def run() -> None:
        began = time.monotonic()
        while not over.wait(max(0.0, began + starts[0] * 60 / _STARTS - time.monotonic())):
            if time.monotonic() - began > seconds:
                return
            done = subprocess.run([program, str(_CALLS_OF_A_START)], stdout=subprocess.DEVNULL)
            assert done.returncode == 3
            starts[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield starts
        thread.join()
    finally:
        over.set()
        thread.join()


def _starts(results: Results, daemon: Daemon, program: Path, seconds: float) -> None:
    """Let processes of a program crash at once, a thousand a minute."""
    before = _counted(daemon, program.name)
    case = f"{_STARTS:,} starts a minute of a program that fails at once"
    cpu, began = _cpu_s(daemon.pid), time.monotonic()
    with _starting(program, 2 * seconds) as starts:
        pass
    taken = time.monotonic() - began
    share = 100 * (_cpu_s(daemon.pid) - cpu) / taken
    missing = starts[0] * _CALLS_OF_A_START - (_counted(daemon, program.name) - before)
    rate = f"{60 * starts[0] / taken:,.0f} a minute"
    results.add(f"{case}: CPU", "gotraced", "%", [share], rate)
    results.add(f"{case}: calls missing", "gotraced", "calls", [float(missing)])
