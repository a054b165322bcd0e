# SPDX-License-Identifier: Apache-2.0
"""DWARF's numbers of amd64's registers.

Source: System V ABI, AMD64 architecture processor supplement, figure 3.36.
"""

from __future__ import annotations

__all__ = ["AMD64_NUMBERS", "AMD64_REGISTERS"]

#: Names of the registers; a register's number is its place. 16 is the return address.
AMD64_REGISTERS = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *(f"r{number}" for number in range(8, 16)),
    "rip",
    *(f"xmm{number}" for number in range(16)),
)

#: Numbers of the registers by name.
AMD64_NUMBERS = {name: number for number, name in enumerate(AMD64_REGISTERS)}
