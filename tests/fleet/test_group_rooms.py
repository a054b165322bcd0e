# SPDX-License-Identifier: Apache-2.0
"""Groups of metrics by themselves: losses are in each target once, and files have a limit."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

from gotrace.fleet.groups import _MAX_FILES, _Group, _room
from gotrace.fleet.probing import SKIPPED
from gotrace.fleet.targets import ProgramKey


def test_a_target_of_two_files_has_a_loss_once() -> None:
    """It had one for each file; and who leaves takes nothing along."""

    def member(metric: object, target: str) -> Any:
        program = SimpleNamespace(key=SimpleNamespace(target=target))
        return SimpleNamespace(metric=metric, program=program, lost=Counter[str]())

    one, other = object(), object()
    skipped = 3
    group: Any = object.__new__(_Group)
    group.lock, group._due, group._skipped = threading.RLock(), {}, 0
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


def test_a_program_beyond_the_files_of_a_group_is_for_another_group() -> None:
    group: Any = object.__new__(_Group)
    group._room = _room(functions=2, programs=100)
    assert group._room.files == _MAX_FILES
    keys = [ProgramKey(f"t{number}", 1, number, 0) for number in range(_MAX_FILES + 1)]
    group._files = {}
    for number, key in enumerate(keys[:-1]):
        assert group._number(key) == number
        group._files[key] = number
    assert group._number(keys[0]) == 0
    assert group._number(keys[-1]) is None
    del group._files[keys[7]]
    assert group._number(keys[-1]) == 7
