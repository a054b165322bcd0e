# SPDX-License-Identifier: Apache-2.0
"""Compare gofunclatency's figures with what programs know of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench.commands import Missing, ours
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.stats import Requirement, Series
from tests.bench.targets import Calls, calls_program, http_program
from tests.bench.tracers import TRACER_CPU, Tracer, TracerError
from tests.tools.harness import Process

_CONNECTIONS = 200


def _objects(tracer: Tracer, *kinds: str) -> list[dict[str, Any]]:
    rows = map(json.loads, tracer.output().splitlines())
    return [row for row in rows if row["kind"] in kinds]


def mean_latency(results: Results, settings: Settings) -> None:
    """Compare means with a function's own: short ones, and one that dwarfs the probes."""
    binary = calls_program()
    for turns, calls in ((16_000, 2_000), (40_000, 1_000), (400_000, 200)):
        rows: list[tuple[float, float, float]] = []
        why = ""
        try:
            rows += [_one_mean(binary, calls, turns) for _ in range(settings.rounds)]
        except (Missing, TracerError) as error:
            why = str(error)
        case = f"mean latency, a function of {turns:,} turns"
        for column, contender in enumerate(("its own clock", "gofunclatency", "floor it prints")):
            results.add(case, contender, "ns", [row[column] for row in rows], missing=why)
        shares = [(measured - floor) / own for own, measured, floor in rows]
        name = f"mean less floor / own clock's, gofunclatency, {turns:,} turns"
        series = Series.of(shares) if shares else None
        results.requirements.append(Requirement(name, series, 1.02, why=why))


def _one_mean(binary: Path, calls: int, turns: int) -> tuple[float, float, float]:
    """Return the function's own mean, the tool's, and the probe cost that it prints, 0 if none."""
    with Calls(binary) as target:
        target.spin(100, turns)
        command = ours("gofunclatency", "--json", "-p", str(target.pid), "main.timed")
        with Tracer(command, TRACER_CPU) as tracer:
            own = target.spin(calls, turns)
            tracer.stop()
            (row,) = _objects(tracer, "histogram")
            notices = _objects(tracer, "summary")
    floor = sum(notice["ns"] for notice in notices if notice["what"] == "probe_cost")
    return own, row["sum_ns"] / row["count"], float(floor)


def busy_server(results: Results, settings: Settings) -> None:
    """Measure the handler of a server with 200 busy connections, by goroutine."""
    case = f"server with {_CONNECTIONS} busy connections, gofunclatency -g"
    note = f"{settings.serve_s:g} s"
    served: list[float] = []
    counted: list[float] = []
    memory: list[float] = []
    why = ""
    try:
        with Process([http_program()]) as server:
            server.read_until("ready ")
            command = ours("gofunclatency", "--json", "-g", "-p", str(server.pid), "main.handle")
            with Tracer(command) as tracer:
                server.say(f"{settings.serve_s} {_CONNECTIONS}")
                served.append(float(server.read_until("done ")[0]))
                tracer.stop()
                memory.append(tracer.peak_mb)
                rows = _objects(tracer, "histogram", "rest")
                counted.append(float(sum(row["count"] for row in rows)))
    except (Missing, TracerError) as error:
        why = str(error)
    except AssertionError:  # of the harness
        why = "the server crashed or failed to answer"
    results.add(case, "requests served", "", served, note, why)
    results.add(case, "calls counted", "", counted, note, why)
    results.add(case, "peak memory of gofunclatency", "MB", memory, note, why)
    difference = [abs(mine - its) for mine, its in zip(counted, served, strict=False)]
    for name, values, bound, unit in (
        ("calls counted too many or too few, busy server", difference, 0.0, "calls"),
        ("peak memory, gofunclatency -g, busy server", memory, 300.0, "MB"),
    ):
        series = Series.of(values) if values and not why else None
        results.requirements.append(Requirement(name, series, bound, unit=unit, why=why))
