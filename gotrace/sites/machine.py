# SPDX-License-Identifier: Apache-2.0
"""The machine code of each architecture, as far as choosing probe sites needs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gotrace.architecture import AMD64, ARM64, Architecture
from gotrace.elf.functions import Function
from gotrace.sites.amd64 import Amd64
from gotrace.sites.arm64 import Arm64
from gotrace.sites.records import Choice, Exits, Flow

__all__ = ["MachineCode", "machine_code"]


class MachineCode(Protocol):
    """What there is to know of the code of one architecture.

    ``code`` are the bytes of a function from its entry on, or from an instruction on.
    """

    def entry(self, code: bytes, function: Function, values: bool, at_rets: bool) -> Choice:
        """Choose the entry site, see `gotrace.sites.sites.entry_site`. Raises SiteError."""

    def exits(self, code: bytes) -> Exits:
        """Return a function's ways out."""

    def control_flow(self, code: bytes) -> Flow:
        """Return where a function branches and returns."""

    def step_over(self, code: bytes, falls_through: bool) -> tuple[int, int] | None:
        """Return the size of the first instruction, and what it adds to SP.

        None where that is unknown, or where execution may go on elsewhere. ``falls_through``: the
        caller knows of a conditional jump that it is not taken.
        """

    def float_written(self, code: bytes) -> int | None:
        """Return the float register that the first instruction may write, None for none."""

    def swaps(self, code: bytes) -> bool:
        """Return whether code compares and swaps."""

    def is_call(self, code: bytes, at: int) -> bool:
        """Return whether there is a call that the kernel emulates, and not another branch."""

    def addressed(self, code: bytes, address: int) -> Iterable[int]:
        """Return the places in the program's data that code at an address may access."""

    def first_field(self, code: bytes) -> int | None:
        """Return the offset of the first field that is read far into the first argument."""


_MACHINES: dict[str, MachineCode] = {AMD64.name: Amd64(), ARM64.name: Arm64()}


def machine_code(arch: Architecture) -> MachineCode:
    """Return what there is to know of the code of an architecture."""
    return _MACHINES[arch.name]
