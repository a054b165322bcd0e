# SPDX-License-Identifier: Apache-2.0
"""Ask other programs what a binary holds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.toolchains import Toolchain


@dataclass(frozen=True, slots=True)
class NmSymbol:
    """One code symbol."""

    address: int
    size: int
    name: str


def run(
    command: Sequence[str | Path], *, text: str | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a command that must succeed and return its standard output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=env)
    return done.stdout


def go_nm(toolchain: Toolchain, binary: Path) -> list[NmSymbol]:
    """Return the code symbols that Go's own tool sees, by address."""
    command: list[str | Path] = [toolchain.go, "tool", "nm", "-size", "-sort", "address", binary]
    pattern = re.compile(r"^\s*([0-9a-f]+)\s+(\d+)\s+[Tt]\s+(.*)$", re.MULTILINE)
    return [
        NmSymbol(int(address, 16), int(size), name)
        for address, size, name in pattern.findall(run(command, env=toolchain.env()))
    ]


def addr2line(
    toolchain: Toolchain, binary: Path, addresses: Sequence[int]
) -> list[tuple[str, str, int]]:
    """Return (function, file, line) of addresses, as Go's own tool has them."""
    text = "".join(f"{address:#x}\n" for address in addresses)
    command: list[str | Path] = [toolchain.go, "tool", "addr2line", binary]
    lines = run(command, text=text, env=toolchain.env()).splitlines()
    answers = []
    for name, place in zip(lines[::2], lines[1::2], strict=True):
        file, _, line = place.rpartition(":")
        answers.append((name, file, int(line)))
    return answers


def elf_symbols(binary: Path, *, dynamic: bool = False) -> list[tuple[NmSymbol, str]]:
    """Return (defined function symbol, binding) pairs as readelf prints them."""
    option = "--dyn-syms" if dynamic else "--symbols"
    pattern = re.compile(
        r"^\s*\d+:\s+([0-9a-f]+)\s+(\d+|0x[0-9a-f]+)\s+FUNC\s+(\w+)\s+\w+\s+(?:\[.*?\]\s+)?(\d+)\s+(\S.*)$",
        re.MULTILINE,
    )
    found = pattern.findall(run(["readelf", "-W", option, binary]))
    return [
        (NmSymbol(int(address, 16), int(size, 0), name), binding)
        for address, size, binding, _, name in found
    ]


def sections(binary: Path) -> dict[str, tuple[int, int, int]]:
    """Return (address, offset, size) of the sections by name, as readelf prints them."""
    pattern = re.compile(
        r"^\s*\[\s*\d+\]\s+(\.\S+)\s+\S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s+([0-9a-f]+)", re.MULTILINE
    )
    return {
        name: (int(address, 16), int(offset, 16), int(size, 16))
        for name, address, offset, size in pattern.findall(run(["readelf", "-SW", binary]))
    }
