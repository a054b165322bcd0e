# SPDX-License-Identifier: Apache-2.0
"""Measure what a traced call costs in a guest, beside bpftrace and beside empty programs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from gotrace.architecture import HOST
from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from gotrace.sites.sites import function_sites
from tests.bench.commands import bpftrace, gotrace, ours
from tests.bench.costs import empty_probe
from tests.bench.stats import Series, ratios
from tests.bench.targets import FRAMED, Calls, Framed
from tests.bench.tracers import TRACER_CPU, Command, Tracer
from tests.kernels.checking import Checks
from tests.kernels.order import COSTS, STRIPPED
from tests.kernels.runs import fixture_program

_ROUNDS, _SAMPLES, _CALLS = 3, 5, 2_000
_PATIENCE = 300.0  # seconds, for a tracer to begin and to end

Attach = Callable[[Calls], AbstractContextManager[object]]

#: What is compared with what.
_RATIOS = {
    "counted / bpftrace": ("gofunccount", "bpftrace count"),
    "counted / an empty program": ("gofunccount", "empty"),
    "pair / bpftrace's pair": ("gofunclatency", "bpftrace pair"),
    "pair / two empty programs": ("gofunclatency", "two empty"),
    "traced / bpftrace's printf": ("gotrace", "bpftrace printf"),
}


def check_costs(checks: Checks) -> None:
    """Measure, if that is asked for by its name."""
    if COSTS in checks.order.only:
        checks.run(COSTS, checks.order.methods[0], _costs)


def _costs() -> str:
    """Return ratios of what a call costs more than without a tracer, each within a round."""
    binary, stripped = (fixture_program("bench_calls", minor) for minor in ("1.27", STRIPPED))
    framed, bare_bones = _found(binary), _found(stripped)
    # Debian's bpftrace 0.17 takes an address within a function only if the program has no symbols.
    # The address is an offset in the file then.
    offsets = [hex(at - bare_bones.bias) for at in (bare_bones.entry, bare_bones.ret)]
    printf = "trace.bt" if HOST is not None and HOST.name == "amd64" else "trace_arm64.bt"
    contenders: dict[str, tuple[Path, Attach]] = {
        "bare": (binary, lambda _: nullcontext()),
        "empty": (binary, partial(_empty, framed, (framed.branch,))),
        "two empty": (binary, partial(_empty, framed, (framed.branch, framed.ret))),
        "gofunccount": (binary, _by(lambda pid: ours("gofunccount", "-p", pid, FRAMED))),
        "gofunclatency": (binary, _by(lambda pid: ours("gofunclatency", "-p", pid, FRAMED))),
        "gotrace": (binary, _by(lambda pid: gotrace(int(pid)))),
        "bpftrace count": (
            binary,
            _by(lambda pid: bpftrace("count.bt", binary, FRAMED, pid=int(pid))),
        ),
        "bpftrace pair": (
            stripped,
            _by(lambda pid: bpftrace("latency.bt", stripped, *offsets, pid=int(pid))),
        ),
        "bpftrace printf": (
            binary,
            _by(lambda pid: bpftrace(printf, binary, FRAMED, pid=int(pid))),
        ),
    }
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_ROUNDS):
        for name, (path, attach) in contenders.items():
            with Calls(path) as target, attach(target):
                target.run(_CALLS)
                samples = [target.run(_CALLS) for _ in range(_SAMPLES)]
            costs[name].append(statistics.median(samples))
    bare = Series.of(costs["bare"])
    above = {name: Series.of(found).above(bare) for name, found in costs.items()}
    seen = []
    for name, (own, other) in _RATIOS.items():
        quotient = ratios(above[own], above[other])
        assert quotient is not None, f"{other} costs no more than no tracer"
        seen.append(f"{name} {quotient.median:.2f} ({quotient.low:.2f} to {quotient.high:.2f})")
    seen += [f"{name} {series.median / 1e3:.1f} us" for name, series in above.items()]
    return "; ".join(seen)


def _found(binary: Path) -> Framed:
    """Return the places of the traced function that the tools probe."""
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        function = table.function(table.rows_named(FRAMED)[0])
        bias = function.entry - image.offset_of(function.entry)
        sites = function_sites(image, function, returns=True, values=False)
    assert sites.entry is not None
    entry, ret = sites.entry.address, sites.returns[0].address
    return Framed(binary, function.entry, branch=entry, push=entry, ret=ret, bias=bias)


@contextmanager
def _empty(framed: Framed, places: tuple[int, ...], target: Calls) -> Iterator[None]:
    """Keep programs that do nothing attached to some instructions."""
    with ExitStack() as attached:
        for place in places:
            attached.enter_context(empty_probe(framed, place, target.pid))
        yield


def _by(command: Callable[[str], Command]) -> Attach:
    def attach(target: Calls) -> AbstractContextManager[object]:
        return Tracer(replace(command(str(target.pid)), patience=_PATIENCE), TRACER_CPU)

    return attach
