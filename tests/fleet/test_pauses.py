# SPDX-License-Identifier: Apache-2.0
"""When probes that were detached are tried again."""

from __future__ import annotations

from gotrace.fleet.pauses import FIRST_PAUSE, MAX_PAUSE, Pauses


def test_pauses_grow_and_are_forgiven() -> None:
    pauses: Pauses[str] = Pauses()
    assert pauses.is_over("a", 0)
    now, lengths = 0.0, []
    for _ in range(9):
        length = pauses.pause("a", now)
        lengths.append(length)
        assert not pauses.is_over("a", now + length - 1)
        now += length
        assert pauses.is_over("a", now)
    assert lengths[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert lengths[-1] == MAX_PAUSE
    assert pauses.pause("a", now + 3 * MAX_PAUSE) == FIRST_PAUSE
    pauses.keep(set())
    assert pauses.is_over("a", 0)
