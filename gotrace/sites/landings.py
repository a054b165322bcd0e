# SPDX-License-Identifier: Apache-2.0
"""Find where a call's return can be seen in its caller: the landing of its return address.

The code after a call is a straight line up to the next change of control flow, which is nearly
always an instruction that the kernel emulates. A probe there is hit once for each return, and costs
a twentieth of one at a RET, which is single-stepped. All
this is about amd64: `Architecture.steps_rets` says where it is of use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from gotrace.elf import ElfError
from gotrace.elf.functions import Function, FunctionTable, Origin
from gotrace.sites.decode import instructions
from gotrace.sites.emulation import EMULATED, refusal
from gotrace.sites.sites import SiteError

__all__ = ["Callers", "Landing"]

#: Where a goroutine's first function returns to: src/runtime/asm_amd64.s, goexit+PCQuantum.
_GOEXIT, _PC_QUANTUM = "runtime.goexit", 1
#: Larger callers are not decoded.
_MAX_SIZE = 1 << 20
_MAX_DISTANCE = 0xFFFF

_IMMEDIATE = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)\Z")
#: An instruction after which the line does not go on.
_LEAVES = re.compile(r"j|call|ret|loop|ud|hlt|int|iret|sys|bnd")
_JUMP = re.compile(r"(?:bnd )?j|loop")
#: An instruction that moves SP, or may.
_MOVES_SP = re.compile(r"(?:add|sub|lea|mov|and|xchg)\w* rsp\b|(?:pop|leave|enter)")
#: One that leaves memory alone, and all registers that results are in.
_KEEPS_RESULTS = re.compile(
    r"(?:cmp|test|nop|push|u?comis[sd])\b"
    r"|(?:movs?[sz]?x?d?|movabs|lea|add|sub|and|or|xor|inc|dec|neg|not|sh[lr]|sar|set\w+|cmov\w+)"
    r" (?:r?e?(?:bp|dx)|dl|dx|r1[2-5][dwb]?)\b"
)
#: One that changes the register in which the ABI keeps g.
_WRITES_G = re.compile(r"(?!cmp|test|push)\S+ r14d?\b")


@dataclass(frozen=True, slots=True)
class Landing:
    """A place that is reached after each return to an address, before anything else is called.

    ``address`` is a link-time address, as ``return_pc`` is. ``emulated``: the kernel emulates its
    instruction; else that is single-stepped, like a RET. ``shared``: other ways lead there, too.
    ``intact``: results are there as at the return, in registers and in memory.
    """

    return_pc: int
    address: int
    emulated: bool
    shared: bool
    intact: bool
    caller: Function


class Callers:
    """The code of a program around its call instructions."""

    def __init__(self, table: FunctionTable) -> None:
        self._table = table
        self._decoded: dict[int, _Decoded] = {}
        #: Entries of functions that ``direct`` may not have found all callers of.
        self.undecided: set[int] = set()

    def landings(self, return_pc: int) -> list[Landing]:
        """Return the landings of a return address, the best first; all serve.

        Raises SiteError where there is no such: it is not after a call, or g cannot be found there.
        """
        caller = self._table.find(return_pc)
        if caller is None or caller.origin is Origin.SYMTAB:
            raise SiteError(f"{return_pc:#x} is in no Go function")
        code = self._of(caller)
        at = return_pc - caller.entry
        if caller.name == _GOEXIT and at == _PC_QUANTUM:
            return [Landing(return_pc, return_pc, True, False, True, caller)]
        found = list(code.after_call(at))
        if not found:
            raise SiteError(f"{return_pc:#x} in {caller.name} has no landing")
        return [
            Landing(return_pc, caller.entry + place, emulated, shared, intact, caller)
            for place, emulated, shared, intact in found
        ]

    def _is_after_call(self, return_pc: int) -> bool:
        caller = self._table.find(return_pc)
        if caller is None or caller.origin is Origin.SYMTAB:
            return False
        return self._of(caller).is_after_call(return_pc - caller.entry)

    def _of(self, function: Function) -> _Decoded:
        decoded = self._decoded.get(function.entry)
        if decoded is None:
            size = function.end - function.entry
            if size > _MAX_SIZE:
                raise SiteError(f"{function.name}: too large to be decoded ({size} bytes)")
            try:
                code = bytes(self._table.image.read(function.entry, size))
            except ElfError as error:
                raise SiteError(f"{function.name}: {error}") from error
            decoded = self._decoded[function.entry] = _Decoded(code)
        return decoded

    def direct(self, entries: Collection[int]) -> dict[int, list[int]]:
        """Return the return addresses of direct calls of functions, by the functions' entries.

        Functions that jump to them are called in their place, so callers of these count as well.
        """
        wanted = {entry: {entry} for entry in entries}  # by where a branch leads to
        calls: dict[int, list[int]] = {entry: [] for entry in entries}
        seen: set[int] = set()
        for _ in range(_MAX_JUMPS):
            todo = wanted.keys() - seen
            if not todo:
                break
            seen |= todo
            found = list(self._branches(todo))
            for at, is_call, target in found:
                if is_call:
                    try:
                        if self._is_after_call(at + _BRANCH_SIZE):
                            for entry in wanted[target]:
                                calls[entry].append(at + _BRANCH_SIZE)
                    except SiteError:
                        self.undecided |= wanted[target]
                    continue
                jumper = self._table.find(at)
                if jumper is not None and not jumper.entry <= target < jumper.end:
                    wanted.setdefault(jumper.entry, set()).update(wanted[target])
        return calls

    def _branches(self, targets: Collection[int]) -> Iterator[tuple[int, bool, int]]:
        """Yield what may be a call of, or a jump to, one of some addresses: place, which, target.

        Bytes within other instructions are among them.
        """
        image = self._table.image
        for start, end in image.code_ranges:
            code = bytes(image.read(start, end - start))
            for match in _BRANCH.finditer(code):
                at = match.start()
                offset = int.from_bytes(match[1], "little", signed=True)
                target = start + at + _BRANCH_SIZE + offset
                if target in targets:
                    yield start + at, code[at] == _CALL, target


_CALL = 0xE8
_BRANCH = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)
_BRANCH_SIZE = 5
#: Functions that lead to one another by jumps.
_MAX_JUMPS = 4


class _Decoded:
    """One function's instructions, by offset from its entry."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._instructions = list(instructions(code))
        self._places = {each[0]: number for number, each in enumerate(self._instructions)}
        self._targets = {
            int(operands, 0)
            for _, _, mnemonic, operands in self._instructions
            if _JUMP.match(mnemonic) and _IMMEDIATE.match(operands)
        }

    @cached_property
    def _has_tables(self) -> bool:
        """Return whether it jumps through tables: anything may be a target of these."""
        return any(
            mnemonic == "jmp" and not _IMMEDIATE.match(operands)
            for _, _, mnemonic, operands in self._instructions
        )

    def is_after_call(self, at: int) -> bool:
        """Return whether an offset is that of the instruction after a call."""
        number = self._places.get(at)
        return bool(number) and "call" in self._instructions[(number or 0) - 1][2]

    def after_call(self, at: int) -> Iterator[tuple[int, bool, bool, bool]]:
        """Yield landings of a return to an offset: place, emulated, shared, intact."""
        if not self.is_after_call(at):
            return
        number = self._places[at]
        is_shared, is_intact = self._has_tables, True
        place = None
        for line in self._instructions[number:]:
            offset, _, mnemonic, operands = line
            text = f"{mnemonic} {operands}"
            if _WRITES_G.match(text):
                return
            if mnemonic.startswith("rep"):  # it may take as long as the call
                break
            is_shared = is_shared or offset in self._targets
            if place is None and EMULATED.match(self._code, offset):
                place = offset, True, is_shared, is_intact
            if _LEAVES.match(mnemonic) or _MOVES_SP.match(text):
                break
            is_intact = is_intact and _KEEPS_RESULTS.match(text) is not None
        if place is not None and place[0] - at <= _MAX_DISTANCE:
            yield place
        if place is not None and place[0] == at:
            return
        is_ret = self._instructions[number][2].startswith("ret")
        if not is_ret and refusal(self._code[at:]) is None:
            yield at, False, self._has_tables or at in self._targets, True
