# SPDX-License-Identifier: Apache-2.0
"""Measure what it costs to see calls return in their callers, and to begin with it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.session.choices import ReturnMode
from gotrace.session.latency import LatencyRequest
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.sites.landings import Callers, Landing
from gotrace.sites.records import SiteError
from gotrace.target.target import Target
from tests.bench.commands import Missing, ours
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, Series, ratios
from tests.bench.targets import (
    FRAMED,
    Calls,
    calls_program,
    newest_go,
)
from tests.bench.tracers import Tracer, TracerError
from tests.toolchains import toolchains

_BARE, _RETS, _LANDINGS = "bare", "returns at RETs", "returns at landings"


def landing_costs(results: Results, settings: Settings) -> None:
    """Measure a program at work, threads beside one another, and functions that move.

    And in which programs that can pay.
    """
    _served(results)
    _compiling(results, settings)
    _threads(results, settings)
    _moving(results, settings)


_SAMPLE = 4_000


def _served(results: Results) -> None:
    """Read the compilers for which part of their direct calls has an emulated landing."""
    case = "direct calls with an emulated landing"
    shares = []
    for release in toolchains():
        (path,) = (release.go.parent.parent / "pkg" / "tool").glob("linux_*/compile")
        with ElfImage.open(path) as image:
            table = load_functions(image)
            callers = Callers(table)
            rows = range(0, len(table), max(1, len(table) // _SAMPLE))
            found = callers.search({table.function(row).entry for row in rows}, proves=False).run()
            best = [_best(callers, place) for places in found.calls.values() for place in places]
        emulated = [landing for landing in best if landing is not None and landing.emulated]
        alone = sum(not landing.shared for landing in emulated)
        note = f"of {len(best):,}; {alone / len(best):.0%} have one that nothing else leads to"
        shares.append(100 * len(emulated) / len(best))
        results.add(case, f"compiler of Go {release.version}", "%", shares[-1:], note)
    series = Series.of(shares) if shares else None
    results.requirements.append(Requirement(case, series, 80, at_most=False, unit="%"))


def _best(callers: Callers, place: int) -> Landing | None:
    with suppress(SiteError):
        return callers.landings(place)[0]
    return None


#: A package of the compiler with many short functions.
_PACKAGE = "cmd/compile/internal/syntax"


def _compiling(results: Results, settings: Settings) -> None:
    """Have the compiler compile net/http while all functions of one of its packages are measured.

    What it takes is the processor time of its process, which has the probes' in it.
    """
    path = _compiler()
    names = _functions(path, _PACKAGE)
    case = "the compiler compiling net/http"
    probe = f"{path}:{_PACKAGE}.*"
    traced: dict[str, Callable[[], AbstractContextManager[object]]] = {
        _BARE: nullcontext,
        _RETS: lambda: Tracer(ours("gofunclatency", "--json", "--returns", "ret", probe)),
        _LANDINGS: lambda: _moved_for(path, probe),
    }
    values: dict[str, list[float]] = {name: [] for name in traced}
    why = ""
    with tempfile.TemporaryDirectory() as directory:
        command = _compile_http(path, Path(directory))
        try:
            for _ in range(settings.few):
                for name, trace in traced.items():
                    with trace():
                        values[name].append(_processor_seconds(command))
        except (Missing, TracerError, OSError) as error:
            why = str(error)
    for name, each in values.items():
        note = f"{len(names):,} functions of {_PACKAGE}"
        results.add(case, name, "s", [] if why else each, note, why)
    bare, rets, landings = (results.series(case, name) for name in traced)
    found = None
    if bare and rets and landings:
        found = ratios(landings.above(bare), rets.above(bare))
    name = f"slow-down, landings / RETs, {case}"
    results.requirements.append(Requirement(name, found, 0.4, why=why))


def _compile_http(path: Path, directory: Path) -> list[str]:
    """Return the command that compiles net/http, whose imports are compiled."""
    go = newest_go()

    def listed(*words: str) -> str:
        command = [str(go.go), "list", *words, "net/http"]
        return subprocess.run(
            command, env=go.env(), check=True, capture_output=True, text=True
        ).stdout

    form = "{{if .Export}}packagefile {{.ImportPath}}={{.Export}}{{end}}"
    found = listed("-export", "-deps", "-f", form)
    vendored = re.findall("^packagefile (vendor/(.+?))=", found, re.M)
    imports = directory / "importcfg"
    imports.write_text(found + "".join(f"importmap {short}={long}\n" for long, short in vendored))
    folder, *files = listed("-f", "{{.Dir}}{{range .GoFiles}} {{.}}{{end}}").split()
    options = [
        "-p",
        "net/http",
        "-std",
        "-importcfg",
        str(imports),
        "-o",
        str(directory / "http.o"),
    ]
    return [str(path), *options, *(f"{folder}/{name}" for name in files)]


def _processor_seconds(command: list[str]) -> float:
    """Run a command; return its user and system time."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise TracerError("the compiler failed")
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _moved_for(path: Path, probe: str) -> Iterator[None]:
    """Measure with returns at landings, in a tool that has seen the callers in a first process."""
    with Tracer(ours("gofunclatency", "--json", "--returns", "landing", probe)) as tracer:
        with tempfile.TemporaryDirectory() as directory:
            _processor_seconds(_compile_http(path, Path(directory)))
        tracer.work_for(2.0)
        yield


def _threads(results: Results, settings: Settings) -> None:
    """Measure one function that as many threads call as there are processors."""
    case = "cost of measuring latency at landings, by threads"
    binary = calls_program()
    counts = range(1, (os.cpu_count() or 1) + 1)
    values: dict[int, list[float]] = {threads: [] for threads in counts}
    why = ""
    try:
        for _ in range(settings.rounds):
            with Calls(binary, cpu=None) as target:
                bare = {threads: _beside(target, settings, threads) for threads in counts}
                words = ("-p", str(target.pid), "--json", "--returns", "landing", FRAMED)
                with Tracer(ours("gofunclatency", *words)):
                    for threads in counts:
                        took = _beside(target, settings, threads)
                        values[threads].append(took - bare[threads])
    except (Missing, TracerError) as error:
        why = str(error)
    for threads, each in values.items():
        results.add(case, f"{threads} threads", "ns/call", [] if why else each, missing=why)
    one, most = (results.series(case, f"{threads} threads") for threads in (1, counts[-1]))
    found = ratios(most, one) if one and most else None
    name = f"cost of a call at a landing, {counts[-1]} threads / 1"
    results.requirements.append(Requirement(name, found, 1.3, why=why))


def _beside(target: Calls, settings: Settings, threads: int) -> float:
    calls = int(settings.sample_s * 1e9 / max(target.beside(100, threads), 1.0))
    return min(target.beside(max(calls, 100), threads) for _ in range(settings.samples))


_MOVING, _FROM = 249, "cmd/compile/internal/types2"


def _moving(results: Results, settings: Settings) -> None:
    """Measure how long the tool works to have functions see their returns at landings.

    It looks for callers in the code of the compiler, and no process runs that.
    """
    path = _compiler()
    names = _functions(path, _FROM)[:_MOVING]
    values: dict[str, list[float]] = {"looking for callers": [], "changing probes": []}
    why = ""
    try:
        for _ in range(settings.few):
            for each, seconds in zip(values.values(), _times_of_moving(path, names), strict=True):
                each.append(seconds)
    except (GotraceError, OSError) as error:
        why = str(error)
    case = f"moving {len(names)} functions of the compiler"
    for name, each in values.items():
        results.add(case, name, "s", [] if why else each, missing=why)
    series = results.series(case, "changing probes")
    results.requirements.append(Requirement(case, series, 0.5, unit="s", why=why))


def _functions(path: Path, package: str) -> Sequence[str]:
    """Return the names of a package's functions that can be measured."""
    asked = Asked([f"{package}.*"], file=str(path))
    plan = LatencyRequest(target=Target(), asked=asked).plan().plan
    return [function.name for function in plan.names]


def _times_of_moving(path: Path, names: Sequence[str]) -> tuple[float, float]:
    """Return the seconds in which a run looks for callers, and in which it changes its probes."""
    asked = Asked(["|".join(map(re.escape, names))], regexp=True, file=str(path))
    request = LatencyRequest(target=Target(), asked=asked, returns=ReturnMode.LANDING)
    looking = changing = 0.0
    decided: set[int | None] = set()
    with open_run(request) as run:
        run.begin()
        landings, until = run.meter.landings, time.monotonic() + 60.0
        assert landings is not None
        while len(decided) < len(names) and time.monotonic() < until:
            time.sleep(landings.PERIOD)
            began = time.monotonic()
            landings.step()
            spent = time.monotonic() - began
            moved = landings.moves()
            looking += 0.0 if moved else spent
            changing += spent if moved else 0.0
            decided.update(move.function for move in moved)
    if len(decided) < len(names):
        raise GotraceError(f"only {len(decided)} functions have moved")
    return looking, changing


def _compiler() -> Path:
    (path,) = (newest_go().go.parent.parent / "pkg" / "tool").glob("linux_*/compile")
    return path
