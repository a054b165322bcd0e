# SPDX-License-Identifier: Apache-2.0
"""Hold all BPF programs to locals that no other thread on their CPU can overwrite.

The kernel may give a program one stack per CPU (bpf/stack.h). Where it can preempt, calls then get
lost; the machine that runs the tests need not be one of those. So what is looked at is not what
happens but what the kernel goes by: the loaded program's tail call, or its depth of stack.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pytest

from gotrace.kernel import program
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.program import AttachKind, BpfProgram, bpf_directory, joined_source
from tests.session.loaded import has_tail_call, loaded_instructions, stack_depth

pytestmark = pytest.mark.live

#: BPF_PRIV_STACK_MIN_SIZE, 64, is compared with the depth rounded up to a multiple of 16.
MAX_STACK = 48

OFFSETS = dict.fromkeys(
    ("G_STACK_HI", "G_M", "G_GOID", "G_SCHED_SP", "G_STARTPC", "G_GOPC", "M_CURG", "TLS_G"), 8
)
ONE_PROCESS = {"TGID": 1, "PIDNS_DEV": 4, "PIDNS_INO": 0xEFFFFFFC, "SEEN_TGID": 1}
BY_ADDRESS = {"SITES_BY_IP": 8}
OPEN_CALLS = {**OFFSETS, "STACKS": 8, "OUTER_CALLS": 8}
LATENCY = {**OPEN_CALLS, "ROWS": 1, "HALVES": 1, "STRIPES": 1}
PER_GOROUTINE = {**LATENCY, "ROWS": 3, "HALVES": 2, "GOROUTINES": 8, "UNIT": 1000}
TRACE = {
    **OPEN_CALLS,
    "FUNCTIONS": 1,
    "SAVED": 8,
    "OPS": 64,
    "TYPES": 8,
    "CONSTANTS": 1,
    "PAYLOAD": 1024,
    "USER_STACK": 0,
    "BEHIND": 0,
    "FLOATS": 0,
    "RETURNS": 1,
    "WAITING": 8,
    "INTERFACES": 0,
    "PREDICATES": 0,
    "STEPS": 32,
}
ENTRY_ONLY = {**TRACE, "RETURNS": 0}
ALL_OF_TRACE = {
    **TRACE,
    "USER_STACK": 64,
    "BEHIND": 1024,
    "FLOATS": 1,
    "INTERFACES": 1,
    "PREDICATES": 1,
    "TASK_FSBASE": 8,
    "TASK_BLOCKED": 8,
    "PAYLOAD": 4096,
}
#: What a run with --why has as well; the programs at its own probes, but for that at sched_switch.
WHY = {
    "WHY": 1,
    "WHY_ROWS": 8,
    "WHY_SAVED": 8,
    "WHY_THREADS": 8,
    "WHY_SITES": 2,
    "WHY_ON_STACK": 0,
    "WHY_UNNAMED": 1,
    "WHY_CALLERS": 1,
    "WHY_CLASSES": 1,
    "WHY_BANDS": 8,
    **dict.fromkeys(("G_STATUS", "G_WAITREASON", "G_SYSCALLPC", "G_SCHED_PC", "G_SCHED_BP"), 8),
    "G_COROARG": 8,
    "TASK_PID": 8,
    "TASK_STATE": 8,
    "TASK_THROTTLED": 8,
}
SCHEDULER = (
    "on_status",
    "on_preempt",
    "on_syscall",
    "on_syscall_end",
    "on_coroutine",
    "on_stop_world",
    "on_start_world",
)
KEYED = {**TRACE, "KEY": 256, "ROWS": 64, "TIMES": 0, "HALVES": 1, "STRIPES": 1}
ALL_OF_KEYED = {
    **KEYED,
    "TIMES": 1,
    "HALVES": 2,
    "UNIT": 1000,
    "USER_STACK": 1,
    "BEHIND": 16,
    "INTERFACES": 1,
    "PREDICATES": 1,
    "TASK_FSBASE": 8,
    "PAYLOAD": 4096,
}
PAIRED = ("on_entry", "on_return", "on_recovery", "on_goexit")

#: Each source in the shapes that the tools give it, and its functions in that shape.
SHAPES: list[tuple[str, Mapping[str, int], tuple[str, ...]]] = [
    ("count.c", {"COUNTERS": 8}, ("on_entry",)),
    ("count.c", {"COUNTERS": 8, **ONE_PROCESS, **BY_ADDRESS}, ("on_entry",)),
    ("latency.c", LATENCY, PAIRED),
    ("latency.c", {**LATENCY, **BY_ADDRESS, "ROWS": 3, "SLOWER": 1000, "TASK_FSBASE": 8}, PAIRED),
    ("latency.c", PER_GOROUTINE, PAIRED),
    ("latency.c", {**PER_GOROUTINE, **ONE_PROCESS, "SLOWER": 1, "TASK_FSBASE": 8}, PAIRED),
    ("trace.c", TRACE, PAIRED),
    ("trace.c", ENTRY_ONLY, ("on_entry",)),
    ("trace.c", {**ENTRY_ONLY, "FLOATS": 1, "BEHIND": 256}, ("on_entry", "on_signal")),
    ("trace.c", {**TRACE, "USER_STACK": 64, "BEHIND": 520, **BY_ADDRESS}, PAIRED),
    ("trace.c", {**ALL_OF_TRACE, **ONE_PROCESS}, (*PAIRED, "on_signal")),
    ("latency.c", {**LATENCY, **WHY, "WHY_CALLERS": 0}, (*PAIRED, *SCHEDULER)),
    ("latency.c", {**PER_GOROUTINE, **ONE_PROCESS, **WHY, "SLOWER": 1}, PAIRED),
    (
        "trace.c",
        {**ALL_OF_TRACE, **ONE_PROCESS, **WHY, "PAYLOAD": 8192},
        (*PAIRED, *SCHEDULER, "on_signal"),
    ),
    ("trace.c", {**KEYED, "RETURNS": 0}, ("on_entry",)),
    ("trace.c", {**ALL_OF_KEYED, **ONE_PROCESS}, PAIRED),
    ("trace.c", {**ALL_OF_KEYED, **ONE_PROCESS, **WHY, "WHY_CALLERS": 0}, PAIRED),
    ("doctor.c", {"FETCH": 1}, ("fetch",)),
    ("doctor.c", {"SIGNAL": 1, **ONE_PROCESS}, ("send_signal",)),
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


@pytest.mark.parametrize(("source", "defines", "functions"), SHAPES)
def test_no_program_shares_a_stack(
    source: str, defines: Mapping[str, int], functions: tuple[str, ...]
) -> None:
    compiled = BpfProgram(source, defines)
    try:
        loaded = compiled.load(functions, AttachKind.PERF_EVENT)
        assert set(loaded) == set(functions)
        assert shared_stacks(loaded) == {}
    finally:
        compiled.close()


@pytest.mark.parametrize("function", ["on_switch", "on_switch_without_state"])
def test_no_program_at_a_tracepoint_does(function: str) -> None:
    compiled = BpfProgram("latency.c", {**LATENCY, **WHY})
    try:
        loaded = {function: compiled.attach_tracepoint("sched_switch", [function])}
        assert shared_stacks(loaded) == {}
    finally:
        compiled.close()


def test_all_functions_of_all_sources_are_looked_at() -> None:
    sources = {path.name for path in bpf_directory().glob("*.c")}
    assert {source for source, _, _ in SHAPES} == sources
    for source in sources:
        text = joined_source(source)
        declared = set(re.findall(r"^int (\w+)\(struct pt_regs \*ctx\)", text, re.M))
        looked_at = {name for each, _, names in SHAPES if each == source for name in names}
        assert looked_at == declared


def test_shared_stack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its tail call, a program has what these tests are there to find."""
    call = "nowhere.call(ctx, 0);"

    def without(source: str) -> str:
        text = joined_source(source)
        assert text.count(call) == 1
        return text.replace(call, ";")

    monkeypatch.setattr(program, "joined_source", without)
    compiled = BpfProgram("latency.c", LATENCY)
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
