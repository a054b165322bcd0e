# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/syscalls.c to what a C compiler makes of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gotrace.session.waits import names
from tests.bpf.c import CLayout


@pytest.fixture
def c(tmp_path: Path) -> CLayout:
    return CLayout("syscalls.c", tmp_path)


def test_structs(c: CLayout) -> None:
    row, values = c.fields("syscall_row", "stack", "number", "half")
    assert values == list(names._ROW.unpack(row))
    row, values = c.fields("syscall_error", "number", "error")
    assert values == list(names._ERROR.unpack(row))
    # What the kernel gives a program: tests/kernel/test_syscalls.py.
    row, values = c.fields("syscall_event", "number", "result")
    assert values == [*struct.unpack("=8xQQ", row)]


def test_constants(c: CLayout) -> None:
    assert c.constants("offsetof(struct syscall_row, half)") == [names._HALF_AT]
    assert c.constants("SYSCALLS") == [names.SYSCALLS]
