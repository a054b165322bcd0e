# SPDX-License-Identifier: Apache-2.0
"""Run the bench: ``python -m tests.bench [--quick] [--json FILE] [NAME...]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import accuracy, costs, fleet, landings, rates, scale, why
from tests.bench.plot import svg
from tests.bench.results import Results
from tests.bench.settings import FULL, QUICK, Settings
from tests.bench.targets import newest_go
from tests.delve import delve, version
from tests.live import why_not_live

Part = Callable[[Results, Settings], None]

#: What can be measured by itself, in the order in which it is.
PARTS: dict[str, Part] = {
    "count": costs.count_costs,
    "latency": costs.latency_costs,
    "trace": costs.trace_costs,
    "sampling": costs.sampling_costs,
    "landings": landings.landing_costs,
    "why": why.why_costs,
    "rate": rates.delivery_rates,
    "functions": scale.functions_by_number,
    "all": scale.all_functions,
    "startup": scale.start_up,
    "accuracy": accuracy.mean_latency,
    "server": accuracy.busy_server,
    "fleet": fleet.fleet_costs,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure the cost of tracing beside that of other tracers.",
    )
    parser.add_argument("--quick", action="store_true", help="take less than a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument(
        "--plot",
        type=Path,
        nargs=2,
        metavar=("FILE.json", "OUT.svg"),
        help="measure nothing, draw what --json has written",
    )
    parser.add_argument("parts", metavar="NAME", nargs="*", help=f"of {', '.join(PARTS)}; else all")
    return parser


def _machine() -> dict[str, object]:
    """Return what the figures depend on."""
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        ": unknown",
    )
    return {
        "kernel": platform.release(),
        "cpu": model.partition(": ")[2],
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "go": newest_go().version,
        "bcc": _version(
            [sys.executable, "-c", "from bcc.version import __version__; print(__version__)"]
        ),
        "bpftrace": _version(["bpftrace", "--version"]),
        "delve": "missing" if (debugger := delve()) is None else version(debugger),
    }


def _version(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        return "missing"
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip().removeprefix("bpftrace v") or "unknown"


def _plot(source: Path, picture: Path) -> int:
    try:
        picture.write_text(svg(json.loads(source.read_text())))
    except (OSError, ValueError) as error:
        print(f"bench: cannot draw {source}: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0; whether the requirements are met is printed, no more."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.plot:
        return _plot(*options.plot)
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"there is no {name!r}: choose of {', '.join(PARTS)}")
    if reason := why_not_live():
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    settings = QUICK if options.quick else FULL
    results = Results(_machine(), settings.name)
    started = time.monotonic()
    for name in options.parts or PARTS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        PARTS[name](results, settings)
        results.elapsed_s = time.monotonic() - started
        if options.json:  # after each part, so that what was measured outlives an interruption
            options.json.write_text(results.to_json())
    print("\n".join(results.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
