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
DUMPS = 25
MOST_DUMPS = 200

_COLOUR = "(?:main.{0}Even;main.{0}Odd;)*(?:main.{0}Even;)?"
#: Frames from the outermost on. Preemption and samples come in at any instruction.
_ALLOWED = re.compile(
    "runtime.goexit;(?:"
    f"main.red;{_COLOUR.format('red')}(?:main.redLeaf;)?"
    f"|main.blue;(?:main.blueOdd;)?{_COLOUR.format('blue')}(?:main.blueLeaf;)?"
    r"|)(?:gcWriteBarrier\w*;|(?:runtime|sync|time|syscall|internal|math)[./][^;]*;)*"
)


@pytest.mark.live
@pytest.mark.apart
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
                    if one.has_moved or (one.state is State.RUNNING and not one.stack):
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


@pytest.mark.live
@pytest.mark.apart
@each_toolchain
def test_a_running_goroutine_is_sampled(toolchain: Toolchain) -> None:
    with Fixture([build(FIXTURES / "live_spinning", toolchain)]) as fixture:
        target = Target.of(fixture.ready, None)
        with LiveGoroutines(target) as live:
            for _ in range(MOST_DUMPS):  # until it runs in one, on a machine that has others to run
                dump = live.take()
                running = [one for one in dump.goroutines if one.state is State.RUNNING]
                stacks = [dump.program.frames(one.stack) for one in running if one.stack]
                if stacks:
                    break
        target.close()
        assert fixture.finish() == 0
    (frames,) = stacks
    names = [frame.function for frame in frames if frame.function.startswith("main.spin")]
    assert names == ["main.spin"] * 4
    assert running[0].is_whole
    source = (FIXTURES / "live_spinning" / "main.go").read_text().splitlines()
    lines = [source[frame.line - 1].strip() for frame in frames if frame.function == "main.spin"]
    assert lines[0] in ("for {", "atomic.AddInt64(&turns, 1)")
    assert lines[1:] == ["spin(depth - 1)"] * 3
