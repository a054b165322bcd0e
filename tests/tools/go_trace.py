# SPDX-License-Identifier: Apache-2.0
"""Read what Go's own tracer has recorded of a program: when goroutines changed their states.

``go tool trace -d=parsed`` prints an event a line; the newest one reads the traces of all releases
since 1.22. Times are those of CLOCK_MONOTONIC, in steps of 64 ns.
"""

from __future__ import annotations

import bisect
import itertools
import re
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.toolchains import newest

_CHANGE = re.compile(r"^M=.* StateTransition Time=(\d+) GoID=(\d+) (\w+)->(\w+)", re.MULTILINE)
_STOP = re.compile(
    r'^M=.* Range(Begin|End) Time=(\d+) Name="stop-the-world[^"]*" Scope=Goroutine\((\d+)\)',
    re.MULTILINE,
)
#: What the scheduler calls waiting although the goroutine works on its own thread.
_WORKS = {
    "gc: GC assist marking",
    "gc: GC mark termination",
    "gc: flushing proc caches",
    "gc: stopping the world",
}
_STATES = {
    "running": "Running",
    "preempted": "Running",
    "throttled": "Running",
    "blocked: kernel": "Running",
    "waiting for CPU": "Running",
    "tracing (estimate)": "Running",
    "runnable": "Runnable",
    "gc: world stopped": "Runnable",
    "syscall": "Syscall",
    "cgo": "Syscall",
}


def go_state(part: str) -> str:
    """Return what Go's tracer calls the state in which a part of a call's time was spent."""
    return "Running" if part in _WORKS else _STATES.get(part, "Waiting")


@dataclass(frozen=True)
class Stay:
    """What a goroutine did in some time: ns by state, and how often the state changed."""

    states: Counter[str]
    changes: int


class GoTrace:
    """The states of all goroutines of a run."""

    def __init__(self, path: Path, decoder: Path | None = None) -> None:
        """Have a trace printed, by the newest Go's ``trace`` or another one, and read it."""
        command, env = [str(decoder)], None
        if decoder is None:
            go = newest()
            command, env = [str(go.go), "tool", "trace"], go.env()
        command += ["-d=parsed", str(path)]
        text = subprocess.run(
            command, env=env, capture_output=True, text=True, check=True, timeout=300
        ).stdout
        self._changes: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for time, goid, _, state in _CHANGE.findall(text):
            self._changes[int(goid)].append((int(time), state))
        #: When the world was stopped, from and to, in order: never twice at a time.
        self.stops: list[tuple[int, int]] = []
        begun: dict[str, int] = {}
        for edge, time, goid in _STOP.findall(text):
            if edge == "Begin":
                begun[goid] = int(time)
            elif goid in begun:
                self.stops.append((begun.pop(goid), int(time)))
        self.stops.sort()

    def stay(self, goid: int, start: int, end: int) -> Stay:
        """Return what a goroutine did from one moment (ns) to another, running at the first.

        A state that is written down again, as for a new batch of events, has not changed. A system
        call that ends without its P, and finds another one at once, is runnable for no time.
        """
        changes = self._changes[goid]
        low = bisect.bisect(changes, (start, "~"))
        high = bisect.bisect(changes, (end, "~"))
        states: Counter[str] = Counter()
        state, at, changed = changes[low - 1][1] if low else "Running", start, 0
        for index in range(low, high):
            time, following = changes[index]
            states[state] += time - at
            at = time
            passing = (
                (state, following) == ("Syscall", "Runnable")
                and index + 1 < len(changes)
                and changes[index + 1][0] - time < _NO_TIME
            )
            changed += following != state and not passing
            state = following
        states[state] += end - at
        return Stay(states, changed)

    def runnable_while_stopped(self, goid: int, start: int, end: int) -> int:
        """Return for how long (ns) a goroutine could not run for the world was stopped."""
        changes = self._changes[goid]
        low = bisect.bisect(changes, (start, "~"))
        high = bisect.bisect(changes, (end, "~"))
        within = [(start, "Running"), *changes[low:high], (end, "")]
        return sum(
            max(0, min(until, stop_end) - max(since, stop_begin))
            for (since, state), (until, _) in itertools.pairwise(within)
            if state == "Runnable"
            for stop_begin, stop_end in self._stops_within(since, until)
        )

    def _stops_within(self, start: int, end: int) -> list[tuple[int, int]]:
        low = bisect.bisect(self.stops, (start, 0))
        high = bisect.bisect(self.stops, (end, 0))
        return self.stops[max(0, low - 1) : high]


_NO_TIME = 2_000  # ns
