"""Attach to, detach from and be killed beside a program that checks its own results."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.report import FULL, figures, rounds
from tests.real.soak import Soak
from tests.toolchains import Toolchain, build, newest, toolchains
from tests.tools.harness import Fixture, code_at, tool

pytestmark = pytest.mark.live

SEED = 20

#: Rounds on one process: the harness ends a process that takes longer than anything should.
BATCH = 10


def batches(number: int) -> Iterator[range]:
    """Divide rounds among processes."""
    for start in range(0, number, BATCH):
        yield range(start, min(number, start + BATCH))


#: Go's oldest and newest release: their runtimes differ most. The newest where time counts.
RELEASES = [
    pytest.param(found, id=f"go{found.minor}")
    for found in [*(toolchains()[:1] if FULL else []), *toolchains()[-1:]]
]


@contextmanager
def busy(toolchain: Toolchain) -> Iterator[Fixture]:
    """Run the program and see in the end that it did its work, right and to the end."""
    program = build(Path(__file__).parent / "work", toolchain)
    with Fixture([program]) as fixture:
        fixture.say()
        fixture.read_until("busy")
        yield fixture
        truth = fixture.work("end")
        assert fixture.finish() == 0
        assert truth["wrong"] == 0, fixture.errors
        assert truth["done"] > 0


@pytest.mark.parametrize("toolchain", RELEASES)
def test_attach_and_detach_at_random_moments(toolchain: Toolchain) -> None:
    number = rounds(quick=3, full=500)
    probes = calls = 0
    for batch in batches(number):
        with busy(toolchain) as fixture, Soak(fixture.pid, SEED + batch.start) as soak:
            sites = [sites.entry.address for sites in soak.functions if sites.entry]
            clean = code_at(fixture.pid, sites)
            soak.count(turns=3)
            for _ in batch:
                soak.round()
            assert code_at(fixture.pid, sites) == clean
        assert soak.failed == {}
        probes += soak.probes
        calls += soak.calls
    figures(f"attach and detach, Go {toolchain.version}", rounds=number, probes=probes, calls=calls)
    assert calls > 0


@pytest.mark.parametrize("toolchain", RELEASES)
@pytest.mark.parametrize("what", ["count", "measure"])
def test_every_function_of_the_runtime(toolchain: Toolchain, what: str) -> None:
    patterns = (
        "runtime.*",
        "runtime/*",
        "internal/*",
        "type:*",
        "type..*",
        "gcWriteBarrier*",
        "cmpbody",
    )
    with busy(toolchain) as fixture, Soak(fixture.pid, SEED, patterns) as soak:
        for _ in range(rounds(quick=1, full=5)):
            (soak.count if what == "count" else soak.measure)(turns=2)
    figures(
        f"all of the runtime, {what}, Go {toolchain.version}",
        functions=len(soak.functions),
        calls=soak.calls,
        refused=soak.failed,
    )
    assert soak.calls > 0


TRACERS = (
    ("gofunccount", "*"),
    ("gofunccount", "-i", "0.01", "main.*", "sort.*"),
    ("gofunclatency", "main.*", "strconv.*"),
    ("gotrace", "main.recovering", "strconv.*"),
)


def test_kill_of_the_tool_at_random_moments() -> None:
    chosen = random.Random(SEED)
    number = rounds(quick=2, full=200)
    for batch in batches(number):
        with busy(newest()) as fixture:
            with Soak(fixture.pid, SEED) as soak:
                addresses = [
                    site.address
                    for sites in soak.functions
                    for site in (sites.entry, *sites.returns)
                    if site is not None
                ]
            clean = code_at(fixture.pid, addresses)
            for _ in batch:
                name, *arguments = chosen.choice(TRACERS)
                with tool(name, "-p", str(fixture.pid), *arguments) as tracer:
                    for _ in range(chosen.randrange(4)):
                        fixture.say("status")
                        fixture.read_until("status ")
                    assert code_at(fixture.pid, addresses) != clean
                    tracer.signal(signal.SIGKILL)
                    assert tracer.wait() == -signal.SIGKILL
                    assert code_at(fixture.pid, addresses) == clean
    figures("SIGKILL of the tracer under load", rounds=number, sites=len(addresses))
