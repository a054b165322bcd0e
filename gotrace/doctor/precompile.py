# SPDX-License-Identifier: Apache-2.0
"""The programs that most runs need, to be compiled before they are needed, or for a package."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

from gotrace.architecture import HOST, Architecture
from gotrace.errors import GotraceError
from gotrace.kernel.compiler import (
    NoCompilerError,
    bpf_directory,
    import_binding,
    load_compiler,
)
from gotrace.kernel.program_cache import (
    MANIFEST,
    CachedPrograms,
    cached_program,
    cached_programs,
    compile_apart,
    package_program,
    shape_of,
)
from gotrace.records import replace
from gotrace.session.scheduler import KernelOffsets, kernel_offsets
from gotrace.settings import (
    AllocSettings,
    CountSettings,
    EdgeSettings,
    ExecutionSettings,
    HistogramSettings,
    KeySettings,
    LatencySettings,
    OnCpuSettings,
    ProgramSettings,
    SiteSettings,
    StateSettings,
    SyscallSettings,
    TraceSettings,
    TrialSettings,
    WaitedSettings,
    WaitSettings,
    WhySettings,
)


def common_settings() -> Iterator[ProgramSettings]:
    """Yield the settings of the programs that most runs load; values and sizes are any.

    Calls of any functions are counted, measured and traced until they return, with any predicate,
    waits are added up, threads and allocations sampled, by the best way to attach; ``gotrace
    doctor`` runs.
    Others are compiled when they are needed.
    """
    yield from _usual()
    try:
        quota = kernel_offsets()
    except GotraceError:
        quota = KernelOffsets(0, 0, None, None, None)
    for settings in StateSettings.usual():
        yield _with_quota(settings, quota)


def _usual() -> Iterator[ProgramSettings]:
    programs: tuple[type[ProgramSettings], ...]
    programs = (CountSettings, LatencySettings, OnCpuSettings, TraceSettings, WaitSettings)
    for program in (*programs, AllocSettings, SyscallSettings, ExecutionSettings):
        yield from program.usual()
    yield TrialSettings(fetch=1)
    yield TrialSettings(signal=1)


def _with_quota(settings: StateSettings, quota: KernelOffsets) -> StateSettings:
    return replace(
        settings,
        task_pid=quota.pid,
        task_state=quota.state,
        task_throttled=quota.throttled,
        task_cfs_rq=quota.queue,
        cfs_rq_throttled=quota.count,
    )


#: Processes' and threads' numbers in a container that does not share the host's, as its own tools
#: see them.
_IN_CONTAINER = SiteSettings(pidns_dev=1, pidns_ino=1)
#: The same for a process of a container within, as in a node that is a container itself.
_BELOW = replace(_IN_CONTAINER, seen_tgid=1)
_WAITED = WaitedSettings(task_run_delay=1, task_last_queued=1, cfs_rq_rq=1, rq_clock=1)
_TIMES = HistogramSettings(rows=1, stripes=1, histograms=1, histogram_rows=1)


def packaged_settings() -> Iterator[ProgramSettings]:
    """Yield the settings of the programs that a package carries, of each shape once.

    These are the common ones, for kernels other than this, too, and what the commands of the README
    and the cookbook load beside them.
    """
    seen = set()
    for settings in _packaged():
        shape = (settings.source, *settings.definitions())
        if shape not in seen:
            seen.add(shape)
            yield settings


def _packaged() -> Iterator[ProgramSettings]:
    yield from _usual()
    yield from _counts()
    yield from _latencies()
    yield from _traces()
    yield from _keyed()
    yield from _states()
    yield TrialSettings(site=_IN_CONTAINER, signal=1)
    sampled = (AllocSettings, OnCpuSettings)
    for program in (*sampled, LatencySettings, SyscallSettings, TraceSettings, WaitSettings):
        for settings in program.usual():
            yield replace(settings, site=_IN_CONTAINER)
            if program is not TraceSettings:
                yield replace(settings, site=_BELOW)


def _counts() -> Iterator[ProgramSettings]:
    """Yield settings that count, in each way: all are small, and no other is before Linux 5.12."""
    numbers = {f"tgid_{number}": 1 for number in range(1, 9)}
    for site in (SiteSettings(), _IN_CONTAINER, _BELOW):
        for chosen in (site, replace(site, **numbers)):
            settings = CountSettings(site=chosen, counters=1)
            yield settings
            yield settings.by_address(1)


def _why(bands: int | None) -> WhySettings:
    (why,) = WhySettings.usual()
    return replace(why, why_parts=64, why_bands=bands, waited=_WAITED)


def _latencies() -> Iterator[ProgramSettings]:
    for settings, why in product(LatencySettings.usual(), (None, _why(1))):
        yield replace(settings, why=why)


def _traces() -> Iterator[TraceSettings]:
    (trace,) = TraceSettings.usual()
    yield trace
    yield replace(trace, why=_why(None))
    # Of gotraced, which knows what calls are within others, and of which trace.
    yield replace(trace, nested=1)
    for edges, flight in product(EdgeSettings.usual(), (None, True)):
        yield replace(trace, edges=replace(edges, flight=flight))


def _keyed() -> Iterator[TraceSettings]:
    """Yield settings that add up by keys: calls, times, or values that are asked for."""
    (trace,) = TraceSettings.usual()
    counted, timed = _by(times=False), _by(times=True)
    for key in (counted, timed):
        yield replace(trace, by=key)
        yield replace(trace, by=replace(key, stack_key=1))
        yield replace(trace, by=key, site=_IN_CONTAINER)  # of gotraced
    yield replace(trace, by=replace(timed, of=1, durations=replace(_TIMES, wide=1)))
    yield replace(trace, by=timed, why=_why(1))


def _by(times: bool) -> KeySettings:
    return KeySettings(key=256, times=times, key_rows=1, keys=1, durations=_TIMES)


def _states() -> Iterator[ProgramSettings]:
    for settings in StateSettings.usual():
        yield settings
        yield _with_quota(settings, KernelOffsets(1, 1, 1, 1, 1))


def package_programs(
    folder: Path,
    settings: Sequence[ProgramSettings] = (),
    arch: Architecture | None = HOST,
) -> int:
    """Put the programs of a package into its folder, and return how many there are.

    They are those of ``packaged_settings`` if no others are given, for machines of an architecture,
    which need not be this one's. They are taken from the cache, or compiled and kept. Raises
    LoadError, OSError.
    """
    settings = settings or list(packaged_settings())
    with _compilers() as pool:
        package = partial(package_program, folder=folder, arch=arch)
        packed = list(_counted(pool.map(package, settings), len(settings)))
    programs = [
        {"file": key, "source": each.source, "shape": sorted(shape_of(each))}
        for each, (key, _) in zip(settings, packed, strict=True)
    ]
    parts = sorted({state.split(" ", 2)[2] for _, made_by in packed for state in made_by})
    sources = sorted(bpf_directory().rglob("*.[ch]"))
    files = {Path(path).name: _digest(path) for path in parts}
    manifest = {
        "compiler": {"name": _compiler_name(parts), "files": files},
        "machine": arch.machine if arch is not None else os.uname().machine,
        "sources": {str(path.relative_to(bpf_directory())): _digest(path) for path in sources},
        "programs": sorted(programs, key=lambda each: (each["source"], each["shape"])),
    }
    text = json.dumps(manifest, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return len(programs)


def _compiler_name(files: Sequence[str]) -> str:
    version = getattr(import_binding(), "__version__", "of unknown version")
    llvm = sorted({found[1] for path in files if (found := _LLVM.search(path))})
    return " with ".join([f"BCC {version}", *(f"LLVM {each}" for each in llvm)])


_LLVM = re.compile(r"/libLLVM[-.](?:so\.)?(\d+)")


def _digest(path: str | Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def precompile() -> CachedPrograms:
    """Compile the common programs that are not in the cache yet, and return the cache.

    Raises LoadError, and GotraceError where nothing can be compiled or kept.
    """
    kept = cached_programs()
    if kept.path is None:
        why = "; ".join(f"{path}: {problem}" for path, problem in kept.refused)
        raise GotraceError(f"compiled programs cannot be kept: {why}: set XDG_CACHE_HOME")
    with _compilers() as pool:
        settings = list(common_settings())
        for _ in _counted(pool.map(cached_program, settings), len(settings)):
            pass
    return cached_programs()


def _counted(results: Iterable[_T], count: int) -> Iterator[_T]:
    """Yield results; if they take long, say on standard error how many of the programs are done.

    On a terminal it is one line, and else a line for each tenth.
    """
    begun, takes_back = time.monotonic(), sys.stderr.isatty()
    for number, result in enumerate(results, 1):
        yield result
        is_next_tenth = 10 * number // count > 10 * (number - 1) // count
        if (takes_back or is_next_tenth) and time.monotonic() - begun >= _PATIENCE:
            text = f"{number} of {count} programs"
            if takes_back:
                text = f"\r\x1b[K{text}"
            end = "" if takes_back and number < count else "\n"
            print(text, end=end, file=sys.stderr, flush=True)


_PATIENCE = 1.0  # seconds
_T = TypeVar("_T")


@contextmanager
def _compilers() -> Iterator[ThreadPoolExecutor]:
    """Yield a compiler of several programs: processes, as LLVM is a library with state."""
    with suppress(NoCompilerError):  # what is kept needs none
        load_compiler()  # once, for all
    compile_apart()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield pool
