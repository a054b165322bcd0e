# SPDX-License-Identifier: Apache-2.0
"""Programs for other machines: arm64's are listed, and refused before anything is attached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, FOR_ARM64, build, newest
from tests.tools.harness import run_tool

COMMANDS = pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace"])
#: ELF's e_machine, at 18 in the file.
RISC_V = (243).to_bytes(2, "little")


@COMMANDS
@pytest.mark.parametrize("option", [["-l"], [], ["-d", "1"]])
def test_unknown_machines_are_refused_by_every_command(
    name: str, option: list[str], tmp_path: Path
) -> None:
    content = build(FIXTURES / "dwarf_signatures", newest()).read_bytes()
    program = tmp_path / "program"
    program.write_bytes(content[:18] + RISC_V + content[20:])
    result = run_tool(name, *option, f"{program}:main.*")
    assert (result.status, result.lines) == (1, [])
    message = "a program for RISC-V: only programs for amd64 and arm64 can be traced"
    assert [message in line for line in result.errors.splitlines()] == [True]


def arm64_program() -> Path:
    return build(FIXTURES / "dwarf_signatures", newest(), env=FOR_ARM64)


@COMMANDS
@pytest.mark.parametrize("option", [[], ["-d", "1"]])
def test_arm64_is_not_attached_to(name: str, option: list[str]) -> None:
    program = arm64_program()
    result = run_tool(name, *option, f"{program}:main.*")
    assert (result.status, result.lines) == (1, [])
    message = (
        f"{name}: {program}: a program for arm64: only programs for amd64 can be traced here;"
        " -l lists its functions"
    )
    assert result.errors.splitlines() == [message]


@COMMANDS
def test_arm64_is_listed(name: str) -> None:
    result = run_tool(name, "-l", "--json", f"{arm64_program()}:main.*")
    assert (result.status, result.errors) == (0, "")
    rows = {row["func"]: row for row in result.objects}
    get, add = rows["main.(*Store).Get"], rows["main.add"]
    assert get["form"] == "branch" and get["address"] < get["site"] < get["rets"][0]
    assert Path(get["file"]).name == "main.go" and get["line"] == 30
    assert len(get["rets"]) == 2
    # add x0,x0,x1; ret: where calls are only counted, the RET is as good.
    assert add["rets"] == [add["address"] + 4]
    counted = ("emulated", add["address"] + 4)
    assert (add["form"], add["site"]) == (
        counted if name == "gofunccount" else ("first", add["address"])
    )
    assert rows["main.sum"]["inlined"]


def test_values_of_arm64_functions_are_known() -> None:
    name = "main.(*Store).Get"
    result = run_tool("gotrace", "-l", f"{arm64_program()}:{name} (len(key) > 2)")
    assert (result.status, result.errors) == (0, "")
    assert result.lines[1].startswith(name)
    result = run_tool("gotrace", "-l", f"{arm64_program()}:{name} (kez == 2)")
    assert result.status == 2 and "key" in result.errors
