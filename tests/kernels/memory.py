# SPDX-License-Identifier: Apache-2.0
"""Measure the memory that tools take in a guest, which depends on the size of a page."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fleet.test_gotraced import METRICS, Daemon, configured
from tests.kernels.checking import Checks
from tests.kernels.order import MEMORY
from tests.kernels.runs import fixture_program
from tests.tools.harness import Fixture, tool

_TOOLS = {
    "gofunccount": ("main.*",),
    "gofunclatency": ("-F", "--slower", "1s", "main.*"),
    "gotrace": ("main.*",),
    "gooffcpu": ("--force",),
}
_PERF_BUFFER = re.compile(r"^(\w+)-(\w+) .*\[perf_event\]$", re.M)


def check_memory(checks: Checks) -> None:
    """Measure, if that is asked for by its name."""
    if MEMORY in checks.order.only:
        checks.run(MEMORY, "", _memory)


def _memory() -> str:
    """Return what each tool takes at most until it has attached, and what of that are buffers."""
    seen = []
    for name, words in _TOOLS.items():
        with Fixture([fixture_program("live_latency", "1.27")]) as fixture:
            with tool(name, *words, "-p", str(fixture.ready)) as running:
                seen.append(f"{name} {_taken(running.pid)}")
                running.end()
            fixture.finish()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        config = configured(folder, fixture_program("live_keys", "1.27"), METRICS)
        with Daemon(config, probes=7) as daemon:
            seen.append(f"gotraced {_taken(daemon.pid)}")
    return "; ".join(seen)


def _taken(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    peak, now = (int(re.findall(rf"{key}:\s+(\d+)", status)[0]) >> 10 for key in ("VmHWM", "VmRSS"))
    buffers = _PERF_BUFFER.findall(Path(f"/proc/{pid}/maps").read_text())
    size = sum(int(end, 16) - int(start, 16) for start, end in buffers) >> 10
    return f"{peak} MB at most, {now} MB then, buffers of {size} kB"
