# SPDX-License-Identifier: Apache-2.0
"""Twenty thousand damaged programs: a result or an error, in bounded time and memory.

``GOTRACE_REAL_ROUNDS`` is how many mutations of each program to try. A failure names program and
seed; ``try_seeds(PROGRAM, [SEED], PATH)`` of tests/damage/trial.py repeats it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

from tests.damage.programs import PROGRAMS, regions
from tests.damage.trial import SECONDS, Trials, bound_memory, try_seeds
from tests.real.report import figures, rounds

_BATCH = 50
_FIRST = 1_000  # what comes before is tried by the quick tests


def batches(count: int) -> Iterator[tuple[str, range]]:
    """Yield programs by turns, so that the processes' caches are of use."""
    for start in range(_FIRST, _FIRST + count, _BATCH):
        for program in PROGRAMS:
            yield program, range(start, min(start + _BATCH, _FIRST + count))


def one_batch(work: tuple[str, range, Path]) -> Trials:
    program, seeds, directory = work
    return try_seeds(program, seeds, directory / f"copy-{os.getpid()}")


def test_twenty_thousand_mutations(tmp_path: Path) -> None:
    for program in PROGRAMS:
        regions(program)  # before the processes are forked, so that each has them
    total = Trials()
    count = rounds(10, 2_000)
    with multiprocessing.get_context("fork").Pool(initializer=bound_memory) as pool:
        work = ((program, seeds, tmp_path) for program, seeds in batches(count))
        for trials in pool.imap_unordered(one_batch, work):
            total.add(trials)
            for failure in trials.failures:
                print(failure, flush=True)
    figures(
        "mutations",
        tried=total.tried,
        refused=total.refused,
        partly=total.partly,
        whole=total.whole,
        slowest=round(total.slowest, 3),
        slowest_seed=total.slowest_seed,
        peak=total.peak,
        regions=len(total.regions),
        failures=len(total.failures),
    )
    assert total.tried == count * len(PROGRAMS)
    assert total.failures == []
    assert total.slowest < SECONDS
