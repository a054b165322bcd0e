# SPDX-License-Identifier: Apache-2.0
"""Groups of metrics by themselves: losses are in each target once, and files have a limit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.fleet.groups import _MAX_FILES, _divide, _Group, _room
from gotrace.fleet.probing import SKIPPED
from gotrace.fleet.targets import ProgramKey
from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.session.latency import LatencyMeter


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


def test_metrics_pay_for_what_belongs_to_none_by_what_their_own_functions_cost() -> None:
    """Cheap ones had the same part of it as dear ones, and were stopped for it."""
    members: Any = [SimpleNamespace(hits=0, ns=0) for _ in range(3)]
    _divide(members, [900, 100, 0], 1_001, 2_000)
    assert [(one.hits, one.ns) for one in members] == [(901, 1_800), (100, 200), (0, 0)]
    _divide(members, [0, 0, 0], 3, 301)
    assert [(one.hits, one.ns) for one in members] == [(902, 1_901), (101, 300), (1, 100)]


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


@pytest.mark.parametrize(
    "taken, left, is_open, found",
    [
        ([], [], [], {0: 0, 1: 0, 8: 0, 9: None}),
        ([0, 2, 3], [], [], {1: 1, 2: 4, 4: 4, 5: None}),
        ([7], [1, 2, 5], [1, 5], {1: 0, 2: 2, 3: 2, 4: None}),
        ([7], [], [1, 5], {7: 0, 8: None}),  # nothing has left: the tables are not looked at
        (range(8), [], [], {1: None}),
    ],
)
def test_any_free_rows_are_taken_but_those_of_open_calls(
    taken: Iterable[int], left: Iterable[int], is_open: Iterable[int], found: dict[int, int | None]
) -> None:
    """Only the first free rows were looked at: the others were as if they were taken."""
    meter: Any = object.__new__(LatencyMeter)
    meter._open = SimpleNamespace(functions=lambda: set(is_open))
    group: Any = object.__new__(_Group)
    group.meter, group._room = meter, SimpleNamespace(functions=8)
    group.rows, group._has_left = dict.fromkeys(taken), bool(left)
    assert {count: group._free(count) for count in found} == found


def test_functions_beyond_those_of_a_group_are_for_another_group() -> None:
    group: Any = object.__new__(_Group)
    group._room = _room(functions=40, programs=100)
    assert group._room.functions == MAX_FUNCTIONS
    group.meter, group._has_left = object(), False
    group.rows = dict.fromkeys(range(MAX_FUNCTIONS - 40))
    assert group._free(40) == MAX_FUNCTIONS - 40
    assert group._free(41) is None
