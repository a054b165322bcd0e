# SPDX-License-Identifier: Apache-2.0
"""The machine code of each architecture, as far as choosing probe sites needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from gotrace.architecture import AMD64, ARM64, Architecture
from gotrace.elf.functions import FuncInfo
from gotrace.sites.amd64 import Amd64
from gotrace.sites.arm64 import Arm64
from gotrace.sites.records import Choice, Exits, Flow


class MachineCode(Protocol):
    """The reader of one architecture's code.

    ``code`` are the bytes of a function from its entry on, or from an instruction on. ``call_size``
    is that of a direct call. ``is_aligned``: an instruction is a word, so that none is in another.
    """

    call_size: int
    is_aligned: bool

    def entry(
        self, code: bytes, function: FuncInfo, values: bool, at_rets: bool, stack: bool
    ) -> Choice:
        """Choose the entry site, see `gotrace.sites.sites.entry_site`. Raises SiteError."""

    def exits(self, code: bytes) -> Exits:
        """Return a function's ways out."""

    def control_flow(self, code: bytes) -> Flow:
        """Return where a function branches and returns."""

    def step_over(self, code: bytes, falls_through: bool) -> tuple[int, int] | None:
        """Return the size of the first instruction, and the number that it adds to SP.

        None where that is unknown, or where execution may go on elsewhere. ``falls_through``: the
        caller knows of a conditional jump that it is not taken.
        """

    def float_written(self, code: bytes) -> int | None:
        """Return the float register that the first instruction may write, None for none."""

    def swaps(self, code: bytes) -> bool:
        """Return whether code compares and swaps."""

    def is_call(self, code: bytes, at: int) -> bool:
        """Return whether there is a call that the kernel emulates, and not another branch."""

    def may_branch(self, code: bytes, address: int) -> Iterator[tuple[int, bool, int]]:
        """Yield bytes that may be direct calls and jumps in code at an address.

        Of each the place in the code, whether it calls, and the address that it leads to.
        """

    def jump_tables(self, code: bytes, address: int, loads: bool) -> Iterable[int]:
        """Return the addresses that code at an address computes, among them those of jump tables.

        With ``loads`` also what it loads from, such as the global offset table. Nothing if the code
        surely makes no such jump.
        """

    def fixed_tables(self, code: bytes) -> Iterable[int]:
        """Return the same of code that is linked to one address, and has addresses as numbers."""

    def jumps_by_table(self, code: bytes) -> bool:
        """Return whether code may have a jump by a table, as a disassembler sees it."""

    def is_prologue(self, code: bytes, at: int) -> bool:
        """Return whether an instruction is one that a compiler puts into no loop.

        It is of what a function does once, before anything else: it makes the stack longer.
        """

    def field_of_local(self, code: bytes) -> tuple[int, int] | None:
        """Return where the stack has the first pointer that is loaded to load from behind it.

        That is its offset from SP, and then that of what is loaded from where it points to.
        """

    def null_tests(self, code: bytes) -> list[tuple[int, int]]:
        """Return the branches that are taken if there is nowhere to copy an item to.

        Of each the place in the code, and a number of what is tested: see ``on_read`` in
        bpf/edges.h.
        """

    def returns_no_case(self, code: bytes) -> bool:
        """Return whether code begins with ``selectgo``'s result if no case is ready."""

    def passes_nil(self, before: bytes) -> bool:
        """Return whether a function's first argument is nil, by the code before its call."""

    def addressed(self, code: bytes, address: int) -> Iterable[int]:
        """Return the places in the program's data that code at an address may access."""

    def first_field(self, code: bytes) -> int | None:
        """Return the offset of the first field that is read far into the first argument."""


_MACHINES: dict[str, MachineCode] = {AMD64.name: Amd64(), ARM64.name: Arm64()}


def machine_code(arch: Architecture) -> MachineCode:
    return _MACHINES[arch.name]
