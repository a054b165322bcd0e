# SPDX-License-Identifier: Apache-2.0
"""Kill the tools at any moment of their lives: the target keeps nothing of them."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.real.report import figures, rounds
from tests.real.targets import TARGETS, busy
from tests.toolchains import newest
from tests.tools.harness import Fixture, Process, code_of, tool_command

pytestmark = pytest.mark.live

SEED = 21

TRACERS = (
    ("gofunccount", "*"),
    ("gofunccount", "-i", "0.01", "runtime.*"),
    ("gofunccount", "--attach", "perf-cookie", "fmt.*"),
    ("gofunclatency", "*"),
    ("gofunclatency", "-F", "-g", "main.*", "strconv.*", "-i", "0.1"),
    ("gofunclatency", "--attach", "perf-ip", "main.*"),
    ("gofunclatency", "--why", "--force", "main.*", "strconv.*"),
    ("gotrace", "main.*", "strconv.*", "encoding/json.*"),
    ("gotrace", "--why", "--force", "main.*"),
    ("gotrace", "-U", "math.*", "main.*"),
    ("gotrace", "--attach", "perf-cookie", "main.*"),
)


@pytest.mark.parametrize("target", TARGETS)
def test_kill_of_the_tool_at_random_moments(target: str) -> None:
    chosen = random.Random(SEED)
    number = rounds(quick=2, full=100)
    killed: Counter[str] = Counter()
    with busy(target, newest()) as fixture:
        clean = code_of(fixture.pid)
        for words, seconds in zip(_turns(chosen, number), _starts(fixture), strict=False):
            phase = chosen.choice((_starting, _tracing, _ending))
            name, *arguments = words
            command = tool_command(name, "-p", str(fixture.pid), *arguments)
            with Process(command) as tracer:
                killed[phase(fixture, tracer, chosen, seconds, clean)] += 1
                # Nobody reads its output, so that a tool may have ended before it was killed, for
                # want of room.
                tracer.wait()
                tracer.wait_for_keepers()
            assert code_of(fixture.pid) == clean
    assert killed.total() == number
    figures(f"SIGKILL of the tracer, {target}", killed=killed, code_bytes=len(clean))


def _turns(chosen: random.Random, number: int) -> Iterator[tuple[str, ...]]:
    return (chosen.choice(TRACERS) for _ in range(number))


def _starts(fixture: Fixture) -> Iterator[float]:
    """Yield how long a tool takes to start here and now, over and over."""
    before = time.monotonic()
    with Process(tool_command("gofunclatency", "-p", str(fixture.pid), "*")) as tracer:
        tracer.read_until("Tracing ")
        seconds = time.monotonic() - before
    while True:
        yield seconds


def _starting(
    fixture: Fixture, tracer: Process, chosen: random.Random, seconds: float, clean: bytes
) -> str:
    """Kill it before it says that it is attached, or shortly after."""
    done = tracer.ends_within(chosen.uniform(0, 1.2 * seconds))
    attached = code_of(fixture.pid) != clean
    tracer.signal(signal.SIGKILL)
    assert not done, tracer.errors
    return "starting, probes in place" if attached else "starting, no probes yet"


def _tracing(
    fixture: Fixture, tracer: Process, chosen: random.Random, seconds: float, clean: bytes
) -> str:
    """Kill it at work."""
    tracer.read_until("Tracing ")
    for _ in range(chosen.randrange(5)):
        fixture.say("status")
        fixture.read_until("status ")
    assert code_of(fixture.pid) != clean
    tracer.signal(signal.SIGKILL)
    return "tracing"


def _ending(
    fixture: Fixture, tracer: Process, chosen: random.Random, seconds: float, clean: bytes
) -> str:
    """Kill it while it takes its probes away."""
    tracer.read_until("Tracing ")
    tracer.signal(signal.SIGINT)
    if tracer.ends_within(chosen.uniform(0, 0.3 * seconds)):
        return "ending, too late"
    tracer.signal(signal.SIGKILL)
    return "ending"
