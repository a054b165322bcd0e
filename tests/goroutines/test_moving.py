# SPDX-License-Identifier: Apache-2.0
"""Read goroutines that never rest: each stack must be one that the program can have."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.model import State
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain
from tests.tools.harness import Fixture

MOVING = FIXTURES / "live_moving"
DUMPS = 100

_COLOUR = "(?:main.{0}Even;main.{0}Odd;)*(?:main.{0}Even;)?"
#: Frames from the outermost on. The preemption of a loop comes in at any instruction.
_ALLOWED = re.compile(
    "runtime.goexit;(?:"
    f"main.red;{_COLOUR.format('red')}(?:main.redLeaf;)?"
    f"|main.blue;(?:main.blueOdd;)?{_COLOUR.format('blue')}(?:main.blueLeaf;)?"
    "|)(?:(?:runtime|sync|internal/sync|time|syscall|internal/runtime/syscall)"
    r"[./][^;]*;|runtime/internal/syscall[./][^;]*;)*"
)


@pytest.mark.live
@each_toolchain
def test_each_stack_is_one_that_the_program_can_have(toolchain: Toolchain) -> None:
    states: Counter[State] = Counter()
    deepest = moved = 0
    with Fixture([build(MOVING, toolchain)]) as fixture:
        target = Target.of(fixture.ready, None)
        with LiveGoroutines(target) as live:
            for _ in range(DUMPS):
                dump = live.take()
                for one in dump.goroutines:
                    creation = dump.program.creation(one.created_by)
                    if one.is_system or not creation or creation.function != "main.main":
                        continue
                    if dump.program.function_name(one.started_at) == "main.main.func1":
                        continue  # which calls the collector
                    states[one.state] += 1
                    moved += one.has_moved
                    frames = dump.program.frames(one.stack)
                    names = "".join(
                        f"{frame.function};" for frame in reversed(frames) if not frame.is_elided
                    )
                    if one.state is State.RUNNING or one.has_moved:
                        assert names == ""
                        continue
                    assert one.is_whole, names
                    assert _ALLOWED.fullmatch(names), names
                    deepest = max(deepest, len(frames))
        target.close()
        assert fixture.finish() == 0
    assert states[State.WAITING] > 0 and states[State.RUNNABLE] + states[State.RUNNING] > 0
    assert deepest > 20
    assert moved < sum(states.values()) / 2, "nearly nothing was read"
