# SPDX-License-Identifier: Apache-2.0
"""Hold what Python takes for the layout of bpf/executions.c to what a C compiler makes of it."""

from __future__ import annotations

from pathlib import Path

from gotrace.fleet import executions
from tests.bpf.c import CLayout


def test_layouts(tmp_path: Path) -> None:
    c = CLayout("executions.c", tmp_path)
    row, values = c.fields("traced_file", "inode", "slot")
    assert values == list(executions._FILE.unpack(row))
    row, values = c.fields("executed_name", "user")
    assert values == [executions._NAME.unpack(row)[1]]
    assert c.constants("ANY_USER") == [executions.ANY_USER]
