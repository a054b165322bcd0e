# SPDX-License-Identifier: Apache-2.0
"""What watching a scheduler takes of a CPU is said later, too: the program may begin to work."""

from __future__ import annotations

import signal

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Process, tool

pytestmark = pytest.mark.live

_TIMES = 20_000  # round trips between two goroutines, for each line that the program reads
#: Of a round trip: each goroutine runs, waits, and may run again; it hands one item on, and ends a
#: wait by that, or has its item taken.
_CHANGES, _HANDED = 6, 4


@pytest.mark.parametrize(
    ("name", "words", "most"),
    [
        ("gotrace", ("--why", "main.other"), _CHANGES),
        ("gotrace", ("flight", "1s", "-o", "x-%n.trace", "main.other"), _CHANGES + _HANDED),
        ("gotrace", ("tree", "main.other"), _CHANGES + _HANDED),
        ("gooffcpu", (), _CHANGES),
        ("gooncpu", ("--off",), _CHANGES),
    ],
)
def test_a_program_that_was_idle(name: str, words: tuple[str, ...], most: int) -> None:
    with Process([build(FIXTURES / "bench_why", newest())]) as program:
        target = ("--json", "-p", program.read_until("ready ")[0])
        with tool(name, *words, *target) as watching:
            for _ in range(2_000):
                program.say(f"park {_TIMES}")
            watching.lines_until('{"kind":"warning","message":"now this program ')
            result = watching.end()
        program.signal(signal.SIGKILL)
        took = [int(line.split()[1]) for line in program.rest() if line.startswith("done ")]
    assert result.status == 0
    before, now = [row for row in result.objects if row.get("what") == "why_price"]
    assert before["changes"] == 0
    assert 0.2 < now["share"] and now["changes"] <= 1.2 * most * _TIMES * 1e9 / min(took)
