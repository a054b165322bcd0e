# SPDX-License-Identifier: Apache-2.0
"""Refuse programs for other machines before anything of them is decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import run_tool

#: ELF's e_machine, at 18 in the file.
ARM64 = (183).to_bytes(2, "little")


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace"])
@pytest.mark.parametrize("option", [["-l"], [], ["-d", "1"]])
def test_arm64_is_refused_by_every_command(name: str, option: list[str], tmp_path: Path) -> None:
    content = build(FIXTURES / "live_count", newest()).read_bytes()
    program = tmp_path / "program"
    program.write_bytes(content[:18] + ARM64 + content[20:])
    result = run_tool(name, *option, f"{program}:main.*")
    assert result.status == 1
    assert (result.status, result.lines) == (1, [])
    message = "a program for arm64: only programs for amd64 can be traced"
    assert [message in line for line in result.errors.splitlines()] == [True]
