# SPDX-License-Identifier: Apache-2.0
"""Losses of metrics that share their BPF program: each has all of them, once in each target."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

from gotrace.fleet.groups import _Group
from gotrace.fleet.probing import SKIPPED


def test_a_target_of_two_files_has_a_loss_once() -> None:
    """It had one for each file; and who leaves takes nothing along."""

    def member(metric: object, target: str) -> Any:
        program = SimpleNamespace(key=SimpleNamespace(target=target))
        return SimpleNamespace(metric=metric, program=program, lost=Counter[str]())

    one, other = object(), object()
    skipped = 3
    group: Any = object.__new__(_Group)
    group.lock, group._due, group._lost = threading.RLock(), {}, Counter()
    group.run = SimpleNamespace(is_over=lambda: False)
    group.is_open, group.meter = True, SimpleNamespace(skipped=lambda: skipped)
    group.members = [member(one, "a"), member(one, "a"), member(one, "b"), member(other, "a")]
    group.note_losses()
    assert [each.lost[SKIPPED] for each in group.members] == [3, 0, 3, 3]
    left = group.members.pop(0)
    skipped = 5
    group._due.clear()
    group.note_losses()
    assert left.lost[SKIPPED] == 3
    assert [each.lost[SKIPPED] for each in group.members] == [2, 5, 5]
