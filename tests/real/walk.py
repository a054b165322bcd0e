# SPDX-License-Identifier: Apache-2.0
"""Hold all sites of a whole program against a linear disassembly by another tool."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gotrace.elf.functions import FuncInfo, FunctionTable, Origin
from gotrace.elf.image import ElfImage
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import function_sites
from tests.toolchains import build, newest

_RET = re.compile(r"(?:rep[a-z]* |bnd )?ret[qw]?\b")


@dataclass(slots=True)
class Walk:
    """What the walk over a program found."""

    instructions: int = 0
    forms: Counter[SiteForm] = field(default_factory=Counter)
    returns: int = 0
    #: Sites inside of what the linear sweep takes for an instruction, settled by a second
    #: disassembly that starts at the function's entry.
    resolved: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)


def gosym(path: Path) -> list[tuple[int, str]]:
    """Return (entry relative to the first one, name) as Go's own debug/gosym has them."""
    reader = build(Path(__file__).parent / "table", newest())
    done = subprocess.run([reader, path], capture_output=True, text=True, check=True)
    rows = (line.split(" ", 1) for line in done.stdout.splitlines())
    return [(int(entry), name) for entry, name in rows]


def functions_of(table: FunctionTable) -> list[FuncInfo]:
    """Return what comes from the pclntab, in its order."""
    functions = map(table.function, range(len(table.names)))
    return [function for function in functions if function.origin is Origin.PCLNTAB]


def walk(image: ElfImage, functions: list[FuncInfo]) -> Walk:
    """Choose all sites of the functions and compare them with ``objdump -d`` of the file."""
    found = Walk()
    sites: dict[int, FuncInfo] = {}
    returns: set[int] = set()
    undecoded: set[int] = set()
    for row, function in enumerate(functions):
        chosen = function_sites(image, function, returns=True)
        if chosen.problem is not None:
            found.problems[_kind(chosen.problem)] += 1
        if chosen.entry is not None:
            found.forms[chosen.entry.form] += 1
            sites[chosen.entry.address] = function
        for site in chosen.returns:
            sites[site.address] = function
            returns.add(site.address)
        if chosen.problem is not None and not chosen.returns:
            undecoded.add(row)
    found.returns = len(returns)
    boundaries: set[int] = set()
    rets: set[int] = set()
    for address, text in _disassembled(image.path):
        found.instructions += 1
        if address in sites:
            boundaries.add(address)
        if text.startswith(("ret", "rep", "bnd")) and _RET.match(text):
            rets.add(address)
    for address in sites.keys() - boundaries:
        function = sites[address]
        where = f"{function.name}+{address - function.entry:#x}"
        inside = {at for at, _ in _disassembled(image.path, function.entry, function.end)}
        (found.resolved if address in inside else found.wrong).append(where)
    _missed(found, functions, undecoded, rets - returns, image)
    return found


def _missed(
    found: Walk, functions: list[FuncInfo], undecoded: set[int], rets: set[int], image: ElfImage
) -> None:
    """Name the RETs that objdump sees in functions whose RETs were said to be known."""
    row = 0
    for address in sorted(rets):
        while row < len(functions) and functions[row].end <= address:
            row += 1
        if row == len(functions):
            break
        function = functions[row]
        if address < function.entry or row in undecoded:
            continue
        inside = {at for at, _ in _disassembled(image.path, function.entry, function.end)}
        if address in inside:
            found.missed.append(f"{function.name}+{address - function.entry:#x}")


def _kind(problem: str) -> str:
    """Drop the function's name and the numbers, so that alike problems count as one."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", problem.partition(": ")[2])


def _disassembled(
    path: str | os.PathLike[str], start: int | None = None, end: int | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (address, text) of the instructions of .text, or of a part of it."""
    command = ["objdump", "-d", "-w", "-z", "--no-show-raw-insn", "-j", ".text"]
    if start is not None and end is not None:
        command += [f"--start-address={start:#x}", f"--stop-address={end:#x}"]
    with subprocess.Popen(
        [*command, os.fspath(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            address, colon, text = line.partition(":\t")
            if colon:
                yield int(address, 16), text
    assert process.returncode == 0, command
