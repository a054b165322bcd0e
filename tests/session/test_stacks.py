# SPDX-License-Identifier: Apache-2.0
"""Hold all BPF programs to locals of their own, and far below what the verifier gives up at.

The kernel may give a program one stack per CPU (bpf/stack.h), where another thread on it can
overwrite its locals. Where it can preempt, calls then get lost; the machine that runs the tests
need not be one of those. So what is looked at is not what happens but what the kernel goes by: the
loaded program's tail call, or its depth of stack.

How much the verifier has to follow depends on the compiler as well: LLVM orders branches and spills
registers differently from release to release. So there is room between this limit and the kernel's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gotrace.doctor.trials import _alloc_settings
from gotrace.kernel import compiler, program_cache
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.compiler import bpf_directory, joined_source
from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.session.trace_plan import MAX_EXTENDED_STEPS, MAX_KEYED_STEPS
from gotrace.settings import (
    CountSettings,
    EdgeSettings,
    HistogramSettings,
    KeySettings,
    LatencySettings,
    ProgramSettings,
    SignalSettings,
    SiteSettings,
    StateSettings,
    TaskSettings,
    TraceSettings,
    TrialSettings,
    WaitedSettings,
    WaitSettings,
    WhySettings,
)
from tests.session.loaded import (
    has_tail_call,
    loaded_instructions,
    stack_depth,
    verified_instructions,
)

pytestmark = pytest.mark.live

#: BPF_PRIV_STACK_MIN_SIZE, 64, is compared with the depth rounded up to a multiple of 16.
MAX_STACK = 48
#: A quarter of BPF_COMPLEXITY_LIMIT_INSNS (include/linux/bpf.h).
MAX_VERIFIED = 1_000_000 // 4

OFFSETS = TaskSettings(g_stack_hi=8, g_m=8, g_goid=8, g_sched_sp=8, g_startpc=8, g_gopc=8, m_curg=8)
WITH_TLS = replace(OFFSETS, task_fsbase=8, tls_g=8)
OF_FILES = TaskSettings(task_fsbase=8, layouts=2)
ONE_PROCESS = SiteSettings(tgid=1, pidns_dev=4, pidns_ino=0xEFFFFFFC, seen_tgid=1)
BY_ADDRESS = SiteSettings(site_by_ip=8)
COUNT = CountSettings(counters=8)
LATENCY = LatencySettings(
    tasks=OFFSETS, stacks=8, outer_calls=8, times=HistogramSettings.of(1, 1, 1)
)
PER_GOROUTINE = replace(LATENCY, times=HistogramSettings.of(3, 2, 1, 1000), goroutines=8)
TRACE = TraceSettings(
    tasks=OFFSETS,
    stacks=8,
    outer_calls=8,
    functions=1,
    saved=8,
    ops=64,
    types=8,
    constants=1,
    payload=1024,
    returns=True,
    interfaces=False,
    predicates=False,
    steps=32,
)
ENTRY_ONLY = replace(TRACE, returns=False)
ALL_OF_TRACE = replace(
    TRACE,
    tasks=WITH_TLS,
    user_stack=64,
    floats=True,
    signals=SignalSettings(waiting=8, task_blocked=8),
    interfaces=True,
    predicates=True,
    payload=4096,
)
#: What a run of gotrace tree has as well, and the programs at its own probes.
EDGES = EdgeSettings(
    edge_states=True,
    edge_sched_bp=8,
    edge_sched_ctxt=8,
    edge_sudog_elem=8,
    edge_coroarg=8,
    edge_receive=1 << 1,
    edge_select=1 << 2,
    edge_work=7 << 1,
    edge_rest=3 << 4,
    edge_join=0,
    edge_semaphore=1 << 6,
    edge_join_at=8,
    edge_join_size=8,
)
AT_EDGES = (
    "on_write",
    "on_read",
    "on_send",
    "on_receive",
    "on_edge_go",
    "on_miss",
    "on_try",
    "on_timer",
    "on_after",
    "on_edge_status",
    "on_edge_coroutine",
    "on_collected",
)
#: What a run with --why has as well; the programs at its own probes, but for that at sched_switch.
WHY = WhySettings(
    why_parts=64,
    why_rows=8,
    why_saved=8,
    why_threads=8,
    why_sites=2,
    why_unnamed=True,
    why_callers=True,
    why_classes=True,
    g_status=8,
    g_syscallpc=8,
    g_sched_pc=8,
    g_sched_bp=8,
    g_coroarg=8,
    task_pid=8,
    task_state=8,
    task_throttled=8,
    task_cfs_rq=8,
    waited=WaitedSettings(task_run_delay=8, task_last_queued=8, cfs_rq_rq=8, rq_clock=8),
)
#: Where its parts are added up.
SUMMED = replace(WHY, why_bands=8)
SCHEDULER = (
    "on_status",
    "on_preempt",
    "on_syscall",
    "on_syscall_end",
    "on_coroutine",
    "on_stop_world",
    "on_start_world",
)
KEYED = replace(
    TRACE,
    by=KeySettings(
        key=256, times=False, durations=HistogramSettings.of(64, 1, 1), key_rows=64, keys=64
    ),
)
ALL_OF_KEYED = replace(
    KEYED,
    tasks=WITH_TLS,
    by=KeySettings(
        key=256,
        times=True,
        of=1,
        stack_key=1,
        durations=HistogramSettings.of(128, 2, 1, 1000, wide=True),
        key_rows=64,
        keys=64,
    ),
    user_stack=1,
    interfaces=True,
    predicates=True,
    payload=4096,
)
assert ALL_OF_KEYED.by is not None
#: Of times, whose parts can be added up as well.
TIMED = replace(
    ALL_OF_KEYED,
    by=replace(ALL_OF_KEYED.by, of=None, durations=HistogramSettings.of(64, 2, 1, 1000)),
)
WAITS = WaitSettings(
    tasks=OFFSETS,
    state=4,
    followed=8,
    stacks=8,
    rows=8,
    g_coroarg=8,
)
STATES = StateSettings(
    tasks=OFFSETS,
    states=8,
    processes=8,
    quota_threads=8,
    g_coroarg=8,
    task_pid=8,
    task_state=8,
    task_throttled=8,
)
PAIRED = ("on_entry", "on_return", "on_recovery", "on_goexit")

#: Each source in the shapes that the tools give it, and its functions in that shape.
SHAPES: list[tuple[ProgramSettings, tuple[str, ...]]] = [
    (COUNT, ("on_entry",)),
    (replace(COUNT, site=replace(ONE_PROCESS, site_by_ip=8)), ("on_entry",)),
    (LATENCY, PAIRED),
    (
        replace(
            LATENCY,
            site=BY_ADDRESS,
            times=HistogramSettings.of(3, 1, 1),
            slower=1000,
            tasks=WITH_TLS,
        ),
        PAIRED,
    ),
    (PER_GOROUTINE, PAIRED),
    (replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, tasks=WITH_TLS), PAIRED),
    (replace(PER_GOROUTINE, slower=1, tasks=OF_FILES, by_file=True), PAIRED),
    (TRACE, PAIRED),
    (replace(TRACE, nested=1), PAIRED),
    (replace(TRACE, edges=EDGES, spans=True), (*PAIRED, *AT_EDGES)),
    (replace(TRACE, edges=replace(EDGES, edge_states=False)), (*PAIRED, *AT_EDGES)),
    (
        replace(
            ALL_OF_TRACE, nested=1, edges=replace(EDGES, edge_states=False), spans=True, why=WHY
        ),
        (*PAIRED, *AT_EDGES),
    ),
    (
        replace(TRACE, nested=1, edges=EDGES, spans=True, tasks=WITH_TLS, site=BY_ADDRESS),
        (*PAIRED, *AT_EDGES),
    ),
    (replace(ALL_OF_TRACE, edges=EDGES, spans=True, why=WHY), (*PAIRED, *AT_EDGES)),
    (replace(ALL_OF_TRACE, nested=1, tasks=OF_FILES, why=WHY), (*PAIRED, "on_signal")),
    (replace(ALL_OF_TRACE, site=ONE_PROCESS, tasks=OF_FILES), (*PAIRED, "on_signal")),
    (replace(ALL_OF_KEYED, site=ONE_PROCESS, tasks=OF_FILES), PAIRED),
    (ENTRY_ONLY, ("on_entry",)),
    (
        replace(ENTRY_ONLY, floats=True, signals=SignalSettings(waiting=8)),
        ("on_entry", "on_signal"),
    ),
    (replace(TRACE, user_stack=64, site=BY_ADDRESS), PAIRED),
    (replace(ALL_OF_TRACE, site=ONE_PROCESS), (*PAIRED, "on_signal")),
    (replace(LATENCY, why=replace(SUMMED, why_callers=False)), (*PAIRED, *SCHEDULER)),
    (replace(PER_GOROUTINE, site=ONE_PROCESS, why=SUMMED, slower=1), PAIRED),
    (
        replace(ALL_OF_TRACE, site=ONE_PROCESS, why=WHY, payload=8192),
        (*PAIRED, *SCHEDULER, "on_signal"),
    ),
    (replace(KEYED, returns=False), ("on_entry",)),
    (replace(ALL_OF_KEYED, site=ONE_PROCESS), PAIRED),
    (replace(ALL_OF_KEYED, site=ONE_PROCESS, why=replace(WHY, why_callers=False)), PAIRED),
    (replace(TIMED, site=ONE_PROCESS, why=replace(SUMMED, why_callers=False)), PAIRED),
    (_alloc_settings(), ("on_sample", "on_refill", "on_release", "on_large")),
    (WAITS, ("on_status", "on_coroutine")),
    (replace(WAITS, site=replace(ONE_PROCESS, site_by_ip=8)), ("on_status",)),
    (replace(WAITS, state=1), ("on_status",)),
    (
        replace(WAITS, state=0),
        ("on_status", "on_coroutine", "on_preempt", "on_syscall", "on_syscall_end"),
    ),
    (replace(WAITS, state=3), ("on_status", "on_syscall", "on_syscall_end")),
    (STATES, ("on_status", "on_coroutine", "on_preempt", "on_syscall", "on_syscall_end")),
    (replace(STATES, site=replace(ONE_PROCESS, site_by_ip=8)), ("on_status",)),
    (TrialSettings(fetch=1), ("fetch",)),
    (TrialSettings(site=ONE_PROCESS, signal=1), ("send_signal",)),
]

#: A release of Go with more than 112 reasons of waits needs as many parts.
MOST_PARTS = replace(WHY, why_parts=256)

#: Choices of code that plans can ask for together.
ALL_CHOICES: dict[str, Any] = dict.fromkeys(
    ("arithmetic", "saved_words", "saved_blocks", "spans", "labels"), True
)

#: The largest runs of each tool, and those that took the verifier longest.
LARGEST: list[ProgramSettings] = [
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=SUMMED),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=SUMMED, outermost=True),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=replace(MOST_PARTS, why_bands=8)),
    replace(TRACE, predicates=True, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, arithmetic=True, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, spans=True, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, labels=True, steps=MAX_EXTENDED_STEPS),
    replace(
        ALL_OF_TRACE,
        site=ONE_PROCESS,
        **ALL_CHOICES,
        why=MOST_PARTS,
        payload=8192,
        steps=MAX_EXTENDED_STEPS,
    ),
    replace(
        ALL_OF_KEYED,
        site=ONE_PROCESS,
        **ALL_CHOICES,
        why=replace(MOST_PARTS, why_callers=False),
        steps=MAX_KEYED_STEPS,
    ),
    replace(
        TIMED,
        site=ONE_PROCESS,
        **ALL_CHOICES,
        why=replace(MOST_PARTS, why_callers=False, why_bands=8),
        steps=MAX_KEYED_STEPS,
    ),
]


def shared_stacks(loaded: Mapping[str, int]) -> dict[str, int]:
    """Return the programs that may have one stack per CPU, and how deep that is."""
    found = {}
    for name, descriptor in loaded.items():
        code = loaded_instructions(descriptor)
        assert len(code) > 3
        if not has_tail_call(code) and stack_depth(code) > MAX_STACK:
            found[name] = stack_depth(code)
    return found


@pytest.mark.parametrize(
    ("settings", "functions"), [*SHAPES, *((settings, PAIRED) for settings in LARGEST)]
)
def test_programs_share_no_stack_and_are_far_from_the_limit(
    settings: ProgramSettings, functions: tuple[str, ...]
) -> None:
    compiled = BpfProgram(settings)
    try:
        loaded = compiled.load(functions, AttachKind.PERF_EVENT)
        assert set(loaded) == set(functions)
        assert shared_stacks(loaded) == {}
        followed = {name: verified_instructions(loaded[name]) for name in functions}
        # Some kernels do not say; else each has followed some.
        assert all(followed.values()) or not any(followed.values())
        assert {name: many for name, many in followed.items() if many > MAX_VERIFIED} == {}
    finally:
        compiled.close()


@pytest.mark.parametrize("function", ["on_switch", "on_switch_without_state"])
@pytest.mark.parametrize("settings", [replace(LATENCY, why=SUMMED), STATES])
def test_no_program_at_a_tracepoint_does(settings: ProgramSettings, function: str) -> None:
    compiled = BpfProgram(settings)
    try:
        loaded = {function: compiled.attach_tracepoint("sched_switch", [function])}
        assert shared_stacks(loaded) == {}
    finally:
        compiled.close()


def test_all_functions_of_all_sources_are_looked_at() -> None:
    probed = re.compile(r"^int \w+\(struct pt_regs \*ctx\)", re.M)  # no clock, no system call
    others = re.compile(r"^#if defined\(ARCHITECTURE_ARM64\)\n(?s:.*?)^#endif", re.M)
    sources = {
        path.name
        for path in bpf_directory().glob("*.c")
        if probed.search(path.read_text()) or "FOLLOWS_STATES 1" in path.read_text()
    }
    assert {settings.source for settings, _ in SHAPES} == sources
    for source in sources:
        text = others.sub("", joined_source(source))
        declared = set(re.findall(r"^int (\w+)\(struct pt_regs \*ctx\)", text, re.M))
        looked_at = {name for each, names in SHAPES if each.source == source for name in names}
        assert looked_at == declared


def test_shared_stack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its tail call, a program has what these tests are there to find."""
    call = "nowhere.call(ctx, 0);"

    def without(source: str) -> str:
        text = joined_source(source)
        assert text.count(call) == 1
        return text.replace(call, ";")

    monkeypatch.setattr(compiler, "joined_source", without)
    monkeypatch.setattr(program_cache, "joined_source", without)
    compiled = BpfProgram(LATENCY)
    try:
        found = shared_stacks(compiled.load(("on_entry", "on_return"), AttachKind.PERF_EVENT))
        assert set(found) == {"on_entry", "on_return"}
        assert all(64 < depth <= 512 for depth in found.values())
    finally:
        compiled.close()


def test_trial_without_a_compiler_has_no_locals() -> None:
    counter = kernel.create_array_map(8)
    descriptor = kernel.load_counting_program(counter)
    try:
        code = loaded_instructions(descriptor)
        assert (has_tail_call(code), stack_depth(code)) == (False, 0)
    finally:
        os.close(descriptor)
        os.close(counter)
