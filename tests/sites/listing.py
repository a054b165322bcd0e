# SPDX-License-Identifier: Apache-2.0
"""Other people's disassemblies of whole programs, as truth for sites."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gotrace.elf.functions import FuncInfo, Origin
from tests.toolchains import Toolchain

#: VEX and EVEX
_VECTOR_PREFIXES = b"\xc4\xc5\x62"
_RETURN = re.compile(r"(?:rep[a-z]*;? |bnd )?ret\b", re.IGNORECASE)
_JUMP = re.compile(r"(?:bnd |notrack )?(?:J\w+|LOOP\w*) (?:0x)?([0-9a-f]+)\b", re.IGNORECASE)


@dataclass(slots=True)
class Listed:
    """One function: its instructions as (address, bytes, text)."""

    name: str
    instructions: list[tuple[int, bytes, str]] = field(default_factory=list)
    _code: bytes = b""

    @property
    def function(self) -> FuncInfo:
        last, raw, _ = self.instructions[-1]
        return FuncInfo(self.name, self.entry, last + len(raw), 0, Origin.SYMTAB)

    @property
    def entry(self) -> int:
        return self.instructions[0][0]

    @property
    def code(self) -> bytes:
        if not self._code:
            self._code = b"".join([raw for _, raw, _ in self.instructions])
        return self._code

    @property
    def boundaries(self) -> set[int]:
        return {address for address, _, _ in self.instructions}

    def returns(self) -> list[int]:
        """Return the addresses of the RETs."""
        return [
            address
            for address, _, text in self.instructions
            if text[0] in "RrBb" and _RETURN.match(text)
        ]

    def jumps_to(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the jumps to addresses low..high, with their targets."""
        found = []
        for address, _, text in self.instructions:
            if text[0] not in "JjLlBbNn":  # quick: few of a million instructions are jumps
                continue
            match = _JUMP.match(text)
            if match and low <= int(match[1], 16) <= high:
                found.append((address, int(match[1], 16)))
            elif text == f"JMP {self.name}(SB)" and low <= self.entry <= high:
                found.append((address, self.entry))
        return found


def go_objdump_arm64(binary: Path, toolchain: Toolchain) -> Iterator[Listed]:
    """List all functions of a program for arm64; ``go tool objdump`` prints words as numbers."""
    command = [str(toolchain.go), "tool", "objdump", str(binary)]
    for listed in _parse_go(_lines(command, toolchain.env())):
        if listed.instructions:
            words = [(address, raw[::-1], text) for address, raw, text in listed.instructions]
            yield Listed(listed.name, words)


def go_objdump(binary: Path, toolchain: Toolchain) -> Iterator[Listed]:
    """List all functions that ``go tool objdump`` can read.

    It takes VEX instructions for bytes or for longer ones than they are (vzeroupper for 5 bytes in
    Go 1.27), and loses its way: functions that have any are left out.
    """
    command = [str(toolchain.go), "tool", "objdump", str(binary)]
    for listed in _parse_go(_lines(command, toolchain.env())):
        if listed.instructions and not any(
            text == "?" or raw[0] in _VECTOR_PREFIXES for _, raw, text in listed.instructions
        ):
            yield listed


def gnu_objdump(binary: Path) -> Iterator[Listed]:
    """List all functions of ``.text``."""
    command = ["objdump", "-dwz", "--insn-width=16", "-j", ".text", str(binary)]
    listed: Listed | None = None
    for line in _lines(command, None):
        header = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        cells = line.split("\t")
        if header:
            if listed is not None and listed.instructions:
                yield listed
            listed = Listed(header[1])
        elif listed is not None and len(cells) >= 2:
            text = re.sub(r"\s+", " ", cells[2]) if len(cells) > 2 else ""
            address = int(cells[0].strip().removesuffix(":"), 16)
            listed.instructions.append((address, bytes.fromhex(cells[1]), text))
    if listed is not None and listed.instructions:
        yield listed


def _lines(command: list[str], env: dict[str, str] | None) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip("\n")
    assert process.returncode == 0, command


def _parse_go(lines: Iterable[str]) -> Iterator[Listed]:
    listed: Listed | None = None
    for line in lines:
        if line.startswith("TEXT "):
            if listed is not None:
                yield listed
            listed = Listed(line.removeprefix("TEXT ").rpartition("(SB)")[0])
        elif listed is not None and line.startswith("  "):
            _, address, raw, text = [cell for cell in line.split("\t") if cell][:4]
            listed.instructions.append((int(address, 16), bytes.fromhex(raw), text.strip()))
    if listed is not None:
        yield listed
