# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/states.c to what a C compiler makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.session.waits import states
from tests.bpf.c import CLayout


@pytest.fixture
def c(tmp_path: Path) -> CLayout:
    return CLayout("states.c", tmp_path)


def test_structs(c: CLayout) -> None:
    row, values = c.fields("state_key", "g", "tgid")
    assert values == list(states._KEY.unpack(row))
    row, values = c.fields("state_sum", "count", "ns")
    assert values == list(states._SUM.unpack(row))


def test_constants(c: CLayout) -> None:
    known = [states.SUM_RUNNABLE, states.SUM_THROTTLED, states.SUMS]
    assert c.constants("SUM_RUNNABLE", "SUM_THROTTLED", "SUMS") == known
