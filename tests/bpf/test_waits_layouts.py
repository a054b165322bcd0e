# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/waits.c to what a C compiler makes of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gotrace.kernel import kept_stacks as frames
from gotrace.kernel.sums import TIMES
from gotrace.session.choices import WaitState
from gotrace.session.waits import meter
from gotrace.session.waits.meter import EndedBy
from tests.bpf.c import CLayout


@pytest.fixture
def c(tmp_path: Path) -> CLayout:
    return CLayout("waits.c", tmp_path)


def test_structs(c: CLayout) -> None:
    names = ("stack", "ended_by_stack", "created_by", "reason", "ended_by", "half", "status")
    row, values = c.fields("wait_row", *names)
    assert values == list(meter.WAIT_ROW.unpack(row))
    assert c.constants("offsetof(struct wait_row, half)") == [meter.HALF_AT]
    row, values = c.fields("sums", "count", "ns", "most")
    assert (values, len(TIMES)) == ([*struct.unpack("=QQQ", row)], 3)
    names_of_state = ("since", "stack", "before", "status", "reason", "created_by")
    row, values = c.fields("followed_state", *names_of_state)
    assert values == list(meter.FOLLOWED_STATE.unpack(row))
    last = frames.MAX_FRAMES - 1
    row, values = c.fields("kept_stack", "pcs[0]", f"pcs[{last}]", "outer")
    *pcs, outer = frames._STACK.unpack(row)
    assert values == [pcs[0], pcs[last], outer]


def test_constants(c: CLayout) -> None:
    known = [frames.MAX_FRAMES, meter.REASON_STATUS]
    assert c.constants("MAX_FRAMES", "REASON_STATUS") == known
    names = [f"ENDED_BY_{who.name}" for who in EndedBy]
    assert c.constants(*names) == [who.value for who in EndedBy]
    states = [f"G_{state.name}" for state in WaitState]
    assert c.constants(*states) == [state.status for state in WaitState]
