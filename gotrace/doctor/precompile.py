# SPDX-License-Identifier: Apache-2.0
"""The programs that most runs need, to be compiled before they are needed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from gotrace.errors import GotraceError
from gotrace.kernel.program_cache import CachedPrograms, cached_program, cached_programs
from gotrace.session.trace import PAYLOADS
from gotrace.session.waits.probes import WaitState
from gotrace.session.why.parts import KernelOffsets, kernel_offsets
from gotrace.settings import (
    CountSettings,
    HistogramSettings,
    LatencySettings,
    ProgramSettings,
    SignalSettings,
    StateSettings,
    TraceSettings,
    TrialSettings,
    WaitSettings,
)

__all__ = ["common_settings", "precompile"]


_EITHER = (False, True)


def common_settings() -> Iterator[ProgramSettings]:
    """Yield the settings of the programs that most runs load; values and sizes are any.

    Calls of any functions are counted, measured and traced until they return, with any predicate,
    and waits added up, by the best way to attach; ``--doctor`` runs. Others are compiled when they
    are needed.
    """
    yield CountSettings(counters=1)
    times = HistogramSettings.of(1, 1, 1)
    for goroutines, slower in product((None, 1), repeat=2):
        yield LatencySettings(
            stacks=1, outer_calls=1, times=times, goroutines=goroutines, slower=slower
        )
    for payload, floats, interfaces, predicates in product(
        PAYLOADS[:-1], _EITHER, _EITHER, _EITHER
    ):
        yield TraceSettings(
            stacks=1,
            outer_calls=1,
            payload=payload,
            returns=True,
            floats=floats,
            interfaces=interfaces,
            predicates=predicates,
            steps=1,
            functions=1,
            saved=1,
            ops=1,
            types=1,
            constants=1,
            signals=SignalSettings(waiting=1) if floats else None,
        )
    for state, coroarg in product(WaitState, (None, 0)):
        yield WaitSettings(
            state=state.status,
            open=1,
            stacks=1,
            rows=1,
            g_sched_pc=0,
            g_sched_bp=0,
            g_coroarg=coroarg,
        )
    try:
        quota = kernel_offsets()
    except GotraceError:
        quota = KernelOffsets(0, 0, None, None, None)
    for coroarg in (None, 0):
        yield StateSettings(
            states=1,
            processes=1,
            quota_threads=1,
            g_coroarg=coroarg,
            task_pid=quota.pid,
            task_state=quota.state,
            task_throttled=quota.throttled,
            task_cfs_rq=quota.queue,
            cfs_rq_throttled=quota.count,
        )
    yield TrialSettings(fetch=1)
    yield TrialSettings(signal=1)


def precompile() -> CachedPrograms:
    """Compile the common programs that are not in the cache yet, and return the cache.

    Raises LoadError, and GotraceError where nothing can be compiled or kept.
    """
    kept = cached_programs()
    if kept.path is None:
        why = "; ".join(f"{path}: {problem}" for path, problem in kept.refused)
        raise GotraceError(f"compiled programs cannot be kept: {why}: set XDG_CACHE_HOME")
    # Processes, not threads: LLVM is a library with state.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for _ in pool.map(_keep, common_settings()):
            pass
    return cached_programs()


def _keep(settings: ProgramSettings) -> None:
    cached_program(settings)
