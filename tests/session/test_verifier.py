# SPDX-License-Identifier: Apache-2.0
"""Hold what the kernel's verifier has to follow of each program far below what it gives up at.

How much that is depends on the compiler as well: LLVM orders branches and spills registers
differently from release to release. So there is room between this limit and the kernel's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.session.trace_plan import MAX_EXTENDED_STEPS, MAX_KEYED_STEPS
from gotrace.settings import ProgramSettings
from tests.session.loaded import verified_instructions
from tests.session.test_stacks import (
    ALL_OF_KEYED,
    ALL_OF_TRACE,
    ONE_PROCESS,
    PAIRED,
    PER_GOROUTINE,
    SHAPES,
    SUMMED,
    TIMED,
    TRACE,
    WHY,
)

pytestmark = pytest.mark.live

#: A quarter of BPF_COMPLEXITY_LIMIT_INSNS (include/linux/bpf.h).
MAX_VERIFIED = 1_000_000 // 4

#: A release of Go with more than 112 reasons of waits needs as many parts.
MOST_PARTS = replace(WHY, why_parts=256)

#: The largest runs of each tool, and those that took the verifier longest.
LARGEST: list[ProgramSettings] = [
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=SUMMED),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=SUMMED, outermost=1),
    replace(PER_GOROUTINE, site=ONE_PROCESS, slower=1, why=replace(MOST_PARTS, why_bands=8)),
    replace(TRACE, predicates=True, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, arithmetic=True, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, contexts=1, steps=MAX_EXTENDED_STEPS),
    replace(TRACE, predicates=True, labels=True, steps=MAX_EXTENDED_STEPS),
    replace(
        ALL_OF_TRACE,
        site=ONE_PROCESS,
        arithmetic=True,
        saved_words=True,
        saved_blocks=True,
        contexts=1,
        labels=True,
        why=MOST_PARTS,
        payload=8192,
        steps=MAX_EXTENDED_STEPS,
    ),
    replace(
        ALL_OF_KEYED,
        site=ONE_PROCESS,
        arithmetic=True,
        saved_words=True,
        saved_blocks=True,
        contexts=1,
        labels=True,
        why=replace(MOST_PARTS, why_callers=False),
        steps=MAX_KEYED_STEPS,
    ),
    replace(
        TIMED,
        site=ONE_PROCESS,
        arithmetic=True,
        saved_words=True,
        saved_blocks=True,
        contexts=1,
        labels=True,
        why=replace(MOST_PARTS, why_callers=False, why_bands=8),
        steps=MAX_KEYED_STEPS,
    ),
]


@pytest.mark.parametrize(
    ("settings", "functions"), [*SHAPES, *((settings, PAIRED) for settings in LARGEST)]
)
def test_programs_are_far_from_the_limit(
    settings: ProgramSettings, functions: tuple[str, ...]
) -> None:
    compiled = BpfProgram(settings)
    try:
        loaded = compiled.load(functions, AttachKind.PERF_EVENT)
        followed = {name: verified_instructions(loaded[name]) for name in functions}
        if not any(followed.values()):
            pytest.skip("this kernel does not say what its verifier has followed")
        assert all(followed.values())
        assert {name: many for name, many in followed.items() if many > MAX_VERIFIED} == {}
    finally:
        compiled.close()
