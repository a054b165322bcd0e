# SPDX-License-Identifier: Apache-2.0
"""Kill tools at random moments, while a program returns by their probes: runs in a guest."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.tools.harness import Fixture, Process, code_of, tool_command


class Moment(Enum):
    """What a tool is at when it is killed."""

    STARTING = "while they started"
    TRACING = "while they traced"
    ENDING = "while they ended"


@dataclass(frozen=True, slots=True)
class Victim:
    """A tool to be killed, and when.

    ``after`` is in parts of the time that the tool takes to start: from its start where it is to be
    killed starting, from the time it traces otherwise, and from SIGINT where it is to be ending.
    """

    tool: str
    words: Sequence[str]
    moment: Moment
    after: float


#: The tools, with functions of live_latency that are called all the time. Functions with results
#: for gofunccount, which has no probes at RETs without them.
_TOOLS: Sequence[tuple[str, Sequence[str]]] = (
    ("gofunclatency", ("-F", "main.*", "strconv.*")),
    ("gotrace", ("main.interleave", "main.migrate", "main.recurse")),
    ("gofunccount", ("--by", "$ret", "main.migrate")),
)

#: From when to when a tool is killed. Of its start the first half is Python's affair.
_AFTER = {Moment.STARTING: (0.4, 1.1), Moment.TRACING: (0.0, 0.3), Moment.ENDING: (0.0, 0.1)}


def batches(kills: int, chance: random.Random) -> Sequence[Sequence[Victim]]:
    """Return whom to kill: all tools at a time, each at a moment of its own.

    >>> [len(batch) for batch in batches(7, random.Random(1))]
    [3, 3, 1]
    """
    victims = []
    for number in range(kills):
        name, words = _TOOLS[number % len(_TOOLS)]
        moment = chance.choice(list(Moment))
        victims.append(Victim(name, words, moment, chance.uniform(*_AFTER[moment])))
    return [victims[at : at + len(_TOOLS)] for at in range(0, kills, len(_TOOLS))]


def kill_amid(
    program: Path, order: str, kills: int, seed: int, options: Sequence[str]
) -> tuple[str, int]:
    """Kill tools while the program plays an order; return what was done, and the order's rounds.

    The program goes on, and its code is as before once the tools and those that remove their
    probes have ended.
    """
    began, chance = time.monotonic(), random.Random(seed)
    # Nicer than the tools: with all processors to itself it would make each start take minutes.
    with Fixture(["nice", "-n", "10", program]) as fixture:
        clean = code_of(fixture.pid)
        over = threading.Event()
        words = (*options, "-p", str(fixture.ready))
        starts: dict[str, float] = {}
        states: Counter[str] = Counter()
        with ThreadPoolExecutor(1 + len(_TOOLS)) as pool:
            playing = pool.submit(_play, fixture, order, over)
            try:
                for batch in batches(kills, chance):
                    killing = [pool.submit(_kill, each, words, starts) for each in batch]
                    states.update(each.result() for each in killing)
                    assert code_of(fixture.pid) == clean, f"breakpoints were left behind: {batch}"
                    assert not playing.done(), "the program has ended"
                    took = time.monotonic() - began
                    sys.stderr.write(f"{states.total()} killed in {took:.0f} s: {batch}\n")
            finally:
                over.set()
            rounds = playing.result()
        fixture.work(order)
        assert fixture.finish() == 0
    said = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"seed {seed}: {states.total()} tools killed ({said})", rounds


def _play(fixture: Fixture, order: str, over: threading.Event) -> int:
    rounds = 0
    while not over.is_set():
        fixture.work(order)
        rounds += 1
    return rounds


def _kill(victim: Victim, options: Sequence[str], starts: dict[str, float]) -> str:
    """Start a tool and kill it at its moment; return what it was doing then.

    ``starts`` is how long each tool has last taken to start, in seconds.
    """
    began = time.monotonic()
    with Process(tool_command(victim.tool, *options, *victim.words)) as process:
        state = victim.moment.value
        took = starts.get(victim.tool)
        if victim.moment is not Moment.STARTING or took is None:
            process.read_until("Tracing ")
            starts[victim.tool] = took = time.monotonic() - began
            state = Moment.TRACING.value
        if victim.moment is Moment.ENDING:
            process.signal(signal.SIGINT)
            state = Moment.ENDING.value
        if process.ends_within(took * victim.after):
            assert victim.moment is Moment.ENDING, f"it ended by itself: {process.errors}"
            state = "after they had ended"
        process.signal(signal.SIGKILL)
        process.rest()
        process.wait_for_keepers()
    return state
