# SPDX-License-Identifier: Apache-2.0
"""The programs that most runs need, to be compiled before they are needed, or for a package."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

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
    CountSettings,
    EdgeSettings,
    ExecutionSettings,
    HistogramSettings,
    KeySettings,
    LatencySettings,
    OnCpuSettings,
    ProgramSettings,
    SignalSettings,
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
    waits are added up, and threads sampled, by the best way to attach; ``gotrace doctor`` runs.
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
    for program in (*programs, SyscallSettings, ExecutionSettings):
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
#: Offsets of the kernel's structs, as far as there are any: of Linux 6.18 and newer, and of older.
_KERNELS = (KernelOffsets(1, 1, 1, 1, None), KernelOffsets(1, 1, None, 1, 1))
_WAITED = WaitedSettings(task_run_delay=1, task_last_queued=1, cfs_rq_rq=1, rq_clock=1)
_TIMES = HistogramSettings(rows=1, stripes=1, histograms=1, histogram_rows=1)
_EITHER = (False, True)
_MAYBE = (None, 1)


def packaged_settings() -> Iterator[ProgramSettings]:
    """Yield the settings of the programs that a package carries, of each shape once.

    These are the common ones, for kernels other than this, too, and what the commands of the README
    and the cookbook load beside them, with what is alike: an expression may read an interface or
    not, and a value takes any room.
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
    for program in (LatencySettings, OnCpuSettings, SyscallSettings, TraceSettings, WaitSettings):
        for settings in program.usual():
            yield replace(settings, site=_IN_CONTAINER)
            if program is not TraceSettings:
                yield replace(settings, site=_BELOW)
    # Of gotraced: what it adds up by labels.
    for keyed in _keyed_plainly():
        yield replace(keyed, site=_IN_CONTAINER)


def _counts() -> Iterator[ProgramSettings]:
    """Yield settings that count, in each way: all are small, and no other is before Linux 5.12."""
    numbers = {f"tgid_{number}": 1 for number in range(1, 9)}
    for site in (SiteSettings(), _IN_CONTAINER, _BELOW):
        for chosen in (site, replace(site, **numbers)):
            settings = CountSettings(site=chosen, counters=1)
            yield settings
            yield settings.by_address(1)


def _why(callers: bool, classes: int | None, bands: int | None) -> Iterator[WhySettings]:
    """Yield settings that say why, for the kernels that there are, and Go before 1.20 and since."""
    for kernel, unnamed in product(_KERNELS, _EITHER):
        yield WhySettings(
            why_parts=64,
            why_unnamed=unnamed,
            why_callers=callers,
            why_classes=classes,
            why_rows=1,
            why_saved=1,
            why_threads=1,
            why_sites=1,
            why_bands=bands,
            g_status=1,
            g_syscallpc=1,
            g_sched_pc=1,
            g_sched_bp=1,
            task_pid=1,
            task_state=1,
            task_throttled=kernel.throttled,
            task_cfs_rq=kernel.queue,
            cfs_rq_throttled=kernel.count,
            waited=_WAITED,
        )


def _latencies() -> Iterator[ProgramSettings]:
    reasons = (None, *_why(False, None, 1))
    for why, goroutines, slower, unit in product(reasons, _MAYBE, _MAYBE, _MAYBE):
        yield LatencySettings(
            stacks=1,
            outer_calls=1,
            times=replace(_TIMES, unit=unit),
            goroutines=goroutines,
            slower=slower,
            why=why,
        )
    for unit in _MAYBE:
        yield LatencySettings(
            stacks=1, outer_calls=1, times=replace(_TIMES, unit=unit), outermost=1
        )


def _edges() -> Iterator[EdgeSettings]:
    """Yield settings that follow requests, with their goroutines' states, kept for a flight too."""
    values: dict[str, Any] = {each.name: 1 for each in EdgeSettings.fields()}
    for states, flight in ((None, None), (True, None), (True, True)):
        yield EdgeSettings(
            **values | {"edge_states": states, "edge_coroarg": None, "flight": flight}
        )


def _trace(payload: int, returns: bool, floats: bool, **more: Any) -> TraceSettings:
    return TraceSettings(
        stacks=1,
        outer_calls=1,
        payload=payload,
        returns=returns,
        floats=floats,
        steps=1,
        functions=1,
        saved=1,
        ops=1,
        types=1,
        constants=1,
        signals=SignalSettings(waiting=1) if floats else None,
        **more,
    )


def _traces() -> Iterator[ProgramSettings]:
    *small, large, largest = TraceSettings.PAYLOADS
    for returns, floats, interfaces, predicates in product(_EITHER, repeat=4):
        values: dict[str, Any] = {"interfaces": interfaces, "predicates": predicates}
        for payload in (*small, large, largest):
            yield _trace(payload, returns, floats, **values)
        for payload in (large, largest):
            yield _trace(payload, returns, floats, has_stacks=True, **values)
        for payload in (*small, large) if returns and not floats else ():
            yield _trace(payload, returns, floats, labels=True, **values)
        if not predicates:
            continue
        for payload in (*small, large) if not floats else ():
            yield _trace(payload, returns, floats, arithmetic=True, **values)
            if returns:
                # Results are compared with parameters.
                yield _trace(payload, returns, floats, saved_words=True, **values)
                yield _trace(payload, returns, floats, saved_blocks=True, **values)
                both: dict[str, Any] = {"saved_words": True, "saved_blocks": True}
                yield _trace(payload, returns, floats, **both, **values)
                yield _trace(payload, returns, floats, contexts=1, **values)
    # Of gotraced, which knows what calls are within others, and of which trace.
    for payload, interfaces, predicates in product((*small, large), _EITHER, _EITHER):
        values = {"interfaces": interfaces, "predicates": predicates, "nested": 1}
        yield _trace(payload, True, False, **values)
        yield _trace(payload, True, False, contexts=1, **values)
    for edges, contexts, payload in product(_edges(), _MAYBE, (*small, large)):
        for interfaces, predicates in product(_EITHER, _EITHER):
            values = {"interfaces": interfaces, "predicates": predicates, "contexts": contexts}
            yield _trace(payload, True, False, edges=edges, **values)
    for why in _why(True, None, None):
        for payload, interfaces, predicates in product((*small, large), _EITHER, _EITHER):
            values = {"interfaces": interfaces, "predicates": predicates}
            yield _trace(payload, True, False, why=why, **values)
    for why in _why(True, 1, None):
        for payload, interfaces in product((*small, large), _EITHER):
            yield _trace(payload, True, False, why=why, interfaces=interfaces, predicates=True)


def _keyed() -> Iterator[ProgramSettings]:
    """Yield settings that add up by keys: calls, times, or values that are asked for."""
    small = TraceSettings.PAYLOADS[:4]
    saved: list[dict[str, Any]] = [{}, {"saved_words": True}, {"saved_blocks": True}]
    shared: dict[str, Any] = {"key": 256, "key_rows": 1, "keys": 1}
    for interfaces, predicates, payload in product(_EITHER, _EITHER, small):
        values: dict[str, Any] = {"interfaces": interfaces, "predicates": predicates}
        for returns in _EITHER:
            counted = KeySettings(times=False, durations=_TIMES, **shared)
            for more in saved[: 3 if returns and predicates else 1]:
                yield _trace(payload, returns, False, by=counted, **values, **more)
            if returns and predicates and not interfaces:  # of @http.server, what is after it
                both: dict[str, Any] = {"saved_words": True, "saved_blocks": True}
                yield _trace(payload, returns, False, by=counted, **values, **both)
            if not predicates:
                yield _trace(payload, returns, False, by=counted, has_stacks=True, **values)
            if predicates and not interfaces:
                yield _trace(payload, returns, False, by=counted, labels=True, **values)
            if not interfaces:
                if payload != small[-1]:
                    yield _trace(payload, returns, False, by=counted, contexts=1, **values)
                wide = replace(_TIMES, wide=1)
                measured = KeySettings(times=True, of=1, durations=wide, **shared)
                yield _trace(payload, returns, False, by=measured, **values)
        for unit in _MAYBE:
            timed = KeySettings(times=True, durations=replace(_TIMES, unit=unit), **shared)
            yield _trace(payload, True, False, by=timed, **values)
            if predicates and not interfaces:
                yield _trace(payload, True, False, by=timed, labels=True, **values)
            # As @http.server has values, and recipes that are like it.
            for why in _why(False, None, 1) if payload <= 512 and not interfaces else ():
                yield _trace(payload, True, False, by=timed, why=why, **values)

    stacks = KeySettings(times=False, stack_key=1, durations=_TIMES, **shared)
    timed_stacks = replace(stacks, times=True)
    for payload, predicates in product(TraceSettings.PAYLOADS[-2:], _EITHER):
        values = {"interfaces": False, "predicates": predicates, "has_stacks": True}
        for returns in _EITHER:
            yield _trace(payload, returns, False, by=stacks, **values)
        yield _trace(payload, True, False, by=timed_stacks, **values)


def _keyed_plainly() -> Iterator[TraceSettings]:
    """Yield settings that add up by keys without a stack, a label or a context."""
    shared: dict[str, Any] = {"key": 256, "key_rows": 1, "keys": 1}
    counted = KeySettings(times=False, durations=_TIMES, **shared)
    timed = KeySettings(times=True, durations=_TIMES, **shared)
    for interfaces, predicates, payload in product(_EITHER, _EITHER, TraceSettings.PAYLOADS[:4]):
        values: dict[str, Any] = {"interfaces": interfaces, "predicates": predicates}
        for by, returns in ((counted, False), (counted, True), (timed, True)):
            yield _trace(payload, returns, False, by=by, **values)


def _states() -> Iterator[ProgramSettings]:
    for settings in StateSettings.usual():
        yield settings
        for kernel in _KERNELS:
            yield _with_quota(settings, kernel)


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
        packed = list(pool.map(partial(package_program, folder=folder, arch=arch), settings))
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
        for _ in pool.map(cached_program, common_settings()):
            pass
    return cached_programs()


@contextmanager
def _compilers() -> Iterator[ThreadPoolExecutor]:
    """Yield a compiler of several programs: processes, as LLVM is a library with state."""
    with suppress(NoCompilerError):  # what is kept needs none
        load_compiler()  # once, for all
    compile_apart()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield pool
