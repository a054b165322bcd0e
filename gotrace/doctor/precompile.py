# SPDX-License-Identifier: Apache-2.0
"""The programs that most runs need, to be compiled before they are needed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from gotrace.errors import GotraceError
from gotrace.kernel.program_cache import CachedPrograms, cached_program, cached_programs
from gotrace.session.scheduler import KernelOffsets, kernel_offsets
from gotrace.settings import (
    CountSettings,
    LatencySettings,
    ProgramSettings,
    StateSettings,
    TraceSettings,
    TrialSettings,
    WaitSettings,
)

__all__ = ["common_settings", "precompile"]


def common_settings() -> Iterator[ProgramSettings]:
    """Yield the settings of the programs that most runs load; values and sizes are any.

    Calls of any functions are counted, measured and traced until they return, with any predicate,
    and waits added up, by the best way to attach; ``--doctor`` runs. Others are compiled when they
    are needed.
    """
    for program in (CountSettings, LatencySettings, TraceSettings, WaitSettings):
        yield from program.usual()
    try:
        quota = kernel_offsets()
    except GotraceError:
        quota = KernelOffsets(0, 0, None, None, None)
    for settings in StateSettings.usual():
        yield replace(
            settings,
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
