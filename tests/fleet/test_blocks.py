# SPDX-License-Identifier: Apache-2.0
"""Metrics share a program up to its limits."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gotrace.fleet.groups import Planning, _blocks


def planning(number: int, size: int) -> Planning:
    """Return a metric of so many functions, which no other one has."""
    functions = [(number, function) for function in range(size)]
    file = SimpleNamespace(functions=functions, key=lambda one: one)
    nothing: Any = None
    plan: Any = SimpleNamespace(functions=functions, binaries=[file])
    return Planning(nothing, nothing, plan, nothing, False)


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([64, 64], [[0, 1]]),
        ([64, 65, 1], [[1], [0, 2]]),  # more than 64 functions have one histogram for all
        ([50] * 20, [[*range(20)]]),
        ([50] * 20 + [1], [[*range(20)], [20]]),  # hits distinguish 1,000 functions
    ],
)
def test_blocks_are_within_the_limits(sizes: Sequence[int], blocks: list[list[int]]) -> None:
    planned = {number: planning(number, size) for number, size in enumerate(sizes)}
    assert [*_blocks(planned)] == blocks
