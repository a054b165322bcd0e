# SPDX-License-Identifier: Apache-2.0
"""Measure how long tracers take to be ready and to be gone, and how large they grow."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.bench.commands import Missing, bcc_count, bpftrace, bpftrace_attaches_all_at_once, ours
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement
from tests.bench.targets import (
    FRAMED,
    calls_program,
    compiler,
    compiler_at_work,
    function_names,
    large_program,
    larger_program,
    many_at_work,
    many_program,
)
from tests.bench.tracers import TRACER_CPU, Command, Tracer, TracerError

READY, GONE, MEMORY = "time to ready", "time to detach", "peak memory"
CPU = "processor time to ready"

# A peer that took so many seconds to detach from fewer functions is not given more of them.
_LONG = 2.0
_WORK = 0.5  # seconds in which a target meets its probes


@dataclass
class _Runs:
    """Run one tracer, again and again, and collect what that took."""

    command: Callable[[], Command]
    hold_s: float = 0.0
    cpu: int | None = TRACER_CPU
    failed: str = ""
    values: dict[str, list[float]] = field(
        default_factory=lambda: {READY: [], CPU: [], GONE: [], MEMORY: []}
    )

    def once(self) -> None:
        """Start the tracer, let it work for ``hold_s`` and stop it; not again after a failure."""
        if self.failed:
            return
        try:
            with Tracer(self.command(), self.cpu) as tracer:
                cpu_s = tracer.cpu_seconds()
                tracer.work_for(self.hold_s)
                gone = tracer.stop()
                taken = {READY: tracer.ready_s, CPU: cpu_s, GONE: gone, MEMORY: tracer.peak_mb}
        except (Missing, TracerError) as error:
            self.failed = str(error)
            return
        for kind, value in taken.items():
            self.values[kind].append(value)

    @property
    def slow(self) -> bool:
        """Return whether the last run took long to detach."""
        return bool(self.values[GONE]) and self.values[GONE][-1] > _LONG


def _add(
    results: Results, what: str, runs: Mapping[str, _Runs], kinds: Sequence[str], note: str = ""
) -> None:
    for kind in kinds:
        unit = "MB" if kind == MEMORY else "s"
        for name, run in runs.items():
            values = [] if run.failed else run.values[kind]
            results.add(f"{kind}, {what}", name, unit, values, note, run.failed)


def _require(
    results: Results, name: str, case: str, contender: str, bound: float, unit: str = "s"
) -> None:
    measure = results.find(case, contender)
    series = measure.series if measure else None
    why = "" if series else measure.missing if measure else "not measured"
    results.requirements.append(Requirement(name, series, bound, unit=unit, why=why))


def _count_commands(binary: Path, pattern: str, pid: int | None) -> dict[str, _Runs]:
    """Return all that count, on the functions of a process, or of all that run the binary."""
    mine = ("-p", str(pid), pattern) if pid else (f"{binary}:{pattern}",)
    return {
        "gofunccount": _Runs(lambda: ours("gofunccount", *mine)),
        "bcc funccount": _Runs(lambda: bcc_count(binary, pattern, pid)),
        "bpftrace count": _Runs(lambda: bpftrace("count.bt", binary, pattern, pid=pid)),
    }


def _rounds(runs: Mapping[str, _Runs], rounds: int, slow: dict[str, str], what: str) -> None:
    """Let the tracers take turns; one that is slow runs once, and is noted as such."""
    for name, run in runs.items():
        run.failed = slow.get(name, "")
    for _ in range(rounds):
        for run in runs.values():
            if not run.slow:
                run.once()
    for name, run in runs.items():
        if run.slow:
            slow[name] = f"not run: took {run.values[GONE][-1]:.1f} s to detach from {what}"
        elif run.failed:
            slow[name] = run.failed


def functions_by_number(results: Results, settings: Settings) -> None:
    """Count 1, 100 and 1,000 functions of a program that is calling them all."""
    binary = many_program()
    slow: dict[str, str] = {}
    for number in (1, 100, 1000) if settings.whole else (1, 1000):
        what = f"{number:,} function{'' if number == 1 else 's'}"
        if number == 1000 and not settings.whole:
            slow |= dict.fromkeys(("bcc funccount", "bpftrace count"), "not in a quick run")
        with many_at_work() as pid:
            runs = _count_commands(binary, f"main.of{number}_*", pid)
            _rounds(runs, settings.few, slow, what)
        _add(results, what, runs, (READY, GONE, MEMORY))


def all_functions(results: Results, settings: Settings) -> None:
    """Count all functions of the Go compiler while it compiles."""
    path = compiler()
    number = len(function_names(path))
    one_by_one = "not run: this version opens, and closes, an event for each function"
    slow = {} if bpftrace_attaches_all_at_once() else {"bpftrace count": one_by_one}
    with compiler_at_work(path):
        runs = _count_commands(path, "*", None)
        for run in runs.values():
            run.hold_s = _WORK
        _rounds(runs, settings.few, slow, "all functions")
    what = "all functions of a compiler at work"
    _add(results, what, runs, (READY, GONE, MEMORY), f"{number:,} functions")
    for kind, bound in ((READY, 1.2), (GONE, 1.5)):
        name = f"{kind}, gofunccount, {number:,} functions of a running program"
        _require(results, name, f"{kind}, {what}", "gofunccount", bound)


def start_up(results: Results, settings: Settings) -> None:
    """Measure the time to ready on binaries of some 2, 25 and 50 MB, on all processors.

    Nothing is being traced: who starts a tracer waits for it.
    """
    _start_one(results, settings, calls_program(), FRAMED)
    large = large_program()
    case = _start_one(results, settings, large, "main.main")
    for name, seconds, megabytes in (
        ("gofunccount", 0.20, 80),
        ("gofunclatency", 0.25, 80),
        ("gotrace", 0.45, 110),
    ):
        _require(results, f"{READY}, {name}, {case}", f"{READY}, {case}", name, seconds)
        memory = f"{MEMORY}, {case}"
        _require(results, f"{MEMORY}, {name}, {case}", memory, name, megabytes, "MB")
    _start_one(results, settings, large, "net/http.(*Transport).RoundTrip")
    _largest(results, settings)


def _start_one(results: Results, settings: Settings, path: Path, function: str) -> str:
    """Start all tools on one function, for the first time and again; return the case's name."""
    case = f"{function} of a binary of {_megabytes(path)}"
    with tempfile.TemporaryDirectory() as directory:
        folders = (str(Path(directory, str(number))) for number in itertools.count())
        first = {
            name: _Runs(partial(_without_cache, name, f"{path}:{function}", folders))
            for name in _OURS
        }
        _all_cpus(first)
        _rounds(first, settings.few, {}, "one function")
    _add(results, f"{case}, first run", first, (READY, CPU, MEMORY))
    runs = _start_commands(path, function)
    _second_runs(runs, settings.few, "one function")
    _add(results, case, runs, (READY, CPU, MEMORY))
    return case


_OURS = ("gofunccount", "gofunclatency", "gotrace")


def _without_cache(name: str, probe: str, folders: Iterator[str]) -> Command:
    """Return the command that finds no compiled program, in the next of empty folders."""
    command = ours(name, probe)
    return replace(command, env={**command.env, "XDG_CACHE_HOME": next(folders)})


def _all_cpus(runs: Mapping[str, _Runs]) -> None:
    for run in runs.values():
        run.cpu = None


def _second_runs(runs: Mapping[str, _Runs], rounds: int, what: str) -> None:
    """Let the tracers take turns, after runs that are not counted: these may have to compile."""
    _all_cpus(runs)
    _rounds(runs, 1, {}, what)
    for run in runs.values():
        for values in run.values.values():
            values.clear()
    _rounds(runs, rounds, {name: run.failed for name, run in runs.items() if run.failed}, what)


def _start_commands(path: Path, function: str) -> dict[str, _Runs]:
    """Return all tools on one function of all processes that run a binary."""
    named = f"{path}:{function}"
    return {
        "gofunccount": _Runs(lambda: ours("gofunccount", named)),
        "gofunclatency": _Runs(lambda: ours("gofunclatency", named)),
        "gotrace": _Runs(lambda: ours("gotrace", named)),
        # bcc and bpftrace stumble over a method's name.
        "bcc funccount": _Runs(lambda: bcc_count(path, "main.main", None)),
        "bpftrace count": _Runs(lambda: bpftrace("count.bt", path, "main.main")),
    }


def _largest(results: Results, settings: Settings) -> None:
    """Start on a binary of more than 50 MB with DWARF: one function, some hundred, and all."""
    path = larger_program(may_build=settings.whole)
    case, many = "one function of a binary of more than 50 MB", "200 functions and more of it"
    every = "all functions of it"
    if path is None:
        why = "not built yet, and not by a quick run"
        for what, tool in ((case, "gotrace"), (many, "gotrace"), (every, "gofunccount")):
            results.add(f"{READY}, {what}", tool, "s", [], missing=why)
    else:
        runs = _start_commands(path, "cmd/compile/internal/ssa.Compile")
        _second_runs(runs, settings.few, "one function")
        _add(results, case, runs, (READY, CPU, MEMORY), _megabytes(path))
        prefix = "cmd/compile/internal/types2.(*Checker)."
        names = function_names(path)
        number = sum(name.startswith(prefix) for name in names)
        group = {"gotrace": _Runs(lambda: ours("gotrace", f"{path}:{prefix}*"))}
        _second_runs(group, settings.few, many)
        _add(results, many, group, (READY, CPU, MEMORY), f"{number} functions")
        whole = {"gofunccount": _Runs(lambda: ours("gofunccount", f"{path}:*"))}
        _second_runs(whole, settings.few, every)
        _add(results, every, whole, (READY, CPU, MEMORY), f"{len(names):,} functions")
    for what, tool, bound in (
        (case, "gotrace", 0.5),
        (many, "gotrace", 1.0),
        (every, "gofunccount", 0.5),
    ):
        _require(results, f"{READY}, {tool}, {what}", f"{READY}, {what}", tool, bound)


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.0f} MB"
