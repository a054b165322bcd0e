# SPDX-License-Identifier: Apache-2.0
"""Read more goroutines than are read at once: each is there, with its own stack and channel."""

from __future__ import annotations

from collections import Counter

import pytest

from gotrace.goroutines.groups import GoroutineFilter, grouped
from tests.goroutines.test_parked import take
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain
from tests.tools.harness import Fixture

MANY = FIXTURES / "live_many"


@pytest.mark.live
@pytest.mark.apart
@each_toolchain
def test_each_of_ten_thousand_is_there(toolchain: Toolchain) -> None:
    with Fixture([build(MANY, toolchain)]) as fixture:
        dump = take(fixture.ready)
        truth = fixture.work("known")
        assert fixture.finish() == 0
    ids = [one.goid for one in dump.goroutines]
    assert len(set(ids)) == len(ids)
    depths: Counter[int] = Counter()
    channels, locking = [], 0
    for one in dump.goroutines:
        names = [frame.function for frame in dump.program.frames(one.stack)]
        if "main.deeper" not in names:
            continue
        assert one.is_whole and not one.has_moved and one.awaited is not None
        if one.awaited.type == "chan":
            channels.append(f"{one.awaited.address:#x}")
            depths[names.count("main.deeper") - 1] += 1
        else:
            assert (one.awaited.type, f"{one.awaited.address:#x}") == ("sync.Mutex", truth["Lock"])
            locking += 1
    assert sorted(channels) == sorted(truth["Channels"])
    assert [depths[depth] for depth in range(len(truth["Depths"]))] == truth["Depths"]
    assert locking == truth["Locking"]
    groups = grouped(dump, GoroutineFilter(functions=("main.deeper",)).of(dump))
    assert sum(len(group.goroutines) for group in groups) == len(channels) + locking
    lock = next(group for group in groups if "sync.Mutex" in str(group.awaited(1)))
    assert lock.awaited(3) == [(lock.goroutines[0].awaited, len(lock.goroutines))]
    assert lock.awaiting == (len(lock.goroutines), 1)
