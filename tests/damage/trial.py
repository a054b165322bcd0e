# SPDX-License-Identifier: Apache-2.0
"""Try mutations within bounds of time and memory, and tell of those that break something."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.damage.mutations import Mutation, damaged, mutation
from tests.damage.programs import intact
from tests.damage.reading import Outcome, read_as_tools_do

#: Processor time that reading a damaged file may take. A file of this size, whole, takes 0.1 s.
SECONDS = 2.0
#: Address space that reading may add to what the process has from the start.
_BYTES = 500 << 20


class TooSlow(BaseException):
    """Interrupt what takes too long; no handler of exceptions in the product may stop it."""


@dataclass(slots=True)
class Trials:
    """What became of mutations; ``failures`` are reports that name program and seed."""

    tried: int = 0
    refused: int = 0
    partly: int = 0
    whole: int = 0
    slowest: float = 0.0
    slowest_seed: str = ""
    peak: int = 0
    regions: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Trials) -> None:
        """Add another process's."""
        self.tried += other.tried
        self.refused += other.refused
        self.partly += other.partly
        self.whole += other.whole
        self.regions += other.regions
        self.failures += other.failures
        self.peak = max(self.peak, other.peak)
        if other.slowest > self.slowest:
            self.slowest, self.slowest_seed = other.slowest, other.slowest_seed


def bound_memory() -> None:
    """Limit this process's address space; only for processes that do nothing but trials."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, resource.RLIM_INFINITY))


def _too_slow(number: int, frame: FrameType | None) -> NoReturn:
    raise TooSlow


def try_seeds(program: str, seeds: Iterable[int], copy: Path) -> Trials:
    """Damage a program by each seed, write it to ``copy`` and read that."""
    trials = Trials()
    copy.write_bytes(intact(program))
    usual = read_as_tools_do(copy)
    previous = signal.signal(signal.SIGPROF, _too_slow)
    try:
        for seed in seeds:
            outcome = _try_one(mutation(program, seed), copy, trials)
            if not outcome["plan"]:
                trials.refused += 1
            elif outcome["refused"] > usual["refused"]:
                trials.partly += 1
            else:
                trials.whole += 1
    finally:
        signal.signal(signal.SIGPROF, previous)
    trials.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return trials


def _try_one(change: Mutation, copy: Path, trials: Trials) -> Outcome:
    copy.write_bytes(damaged(change))
    outcome = Outcome()
    before = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        outcome = read_as_tools_do(copy)
    except (Exception, TooSlow):
        where = f"{change.program} seed {change.seed}: {change.region}"
        trials.failures.append(f"{where}\n{traceback.format_exc()}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - before
    trials.tried += 1
    trials.regions[change.region] += 1
    if took > trials.slowest:
        trials.slowest, trials.slowest_seed = took, f"{change.program} seed {change.seed}"
    return outcome
