# SPDX-License-Identifier: Apache-2.0
"""List what would be counted, without counting."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, newest, program_of
from tests.tools.harness import Fixture, code_at, of_kind, run_tool, sites, tool_command

pytestmark = pytest.mark.live

NAMES = ("main.smallFrame", "main.leaf", "main.stacked")


program = program_of("live_count")


def test_list_names_places_and_sites() -> None:
    result = run_tool("gofunccount", "-l", "--json", f"{program()}:main.*")
    assert result.status == 0
    rows = {row["func"]: row for row in of_kind(result, "function")}
    nm = subprocess.run(
        [newest().go, "tool", "nm", program()], capture_output=True, text=True, env=newest().env()
    )
    symbols = [line.split() for line in nm.stdout.splitlines()]
    addresses = {words[2]: int(words[0], 16) for words in symbols}
    for name in (name for name in rows if "[" not in name):
        # What is in assembly has an ABI0 symbol of its own only.
        assert rows[name]["address"] == addresses.get(name, addresses.get(f"{name}.abi0"))
    source = (FIXTURES / "live_count" / "main.go").read_text().splitlines()
    for name in ("smallFrame", "leaf", "onThread"):
        row = rows[f"main.{name}"]
        assert source[row["line"] - 1].startswith(f"func {name}(")
        assert Path(row["file"]).name == "main.go"
        assert row["address"] <= row["site"]
    assert rows["main.smallFrame"]["form"] == "emulated"
    assert len(rows["main.nosplit"]["rets"]) == 1
    assert (rows["main.tail"]["rets"], rows["main.tail"]["tail_jumps"]) == ([], 1)


def test_list_as_text() -> None:
    result = run_tool("gofunccount", "-l", f"{program()}:main.leaf")
    head, row = result.lines
    assert head.split() == ["NAME", "POSITION", "ADDRESS", "SITE", "RETS", "INLINED", "INTO"]
    assert re.fullmatch(r"main\.leaf +main\.go:\d+ +0x[0-9a-f]+ +\+0x0 first +1 +-\n", row)


def test_list_puts_no_probes() -> None:
    with Fixture([program()]) as fixture:
        addresses = sites(fixture.ready, *NAMES)
        assert b"\xcc" not in code_at(fixture.ready, addresses)


def test_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            tool_command("gofunccount", "-l", f"{program()}:main.leaf"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert os.strerror(errno.ENOSPC) in result.stderr
