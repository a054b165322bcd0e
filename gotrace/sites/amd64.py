# SPDX-License-Identifier: Apache-2.0
"""The rules of amd64: which instruction of a function is probed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from gotrace.elf.functions import FuncInfo
from gotrace.records import replace
from gotrace.sites.decode import control_flow, exits, float_written, instructions, step_over
from gotrace.sites.emulation import refusal
from gotrace.sites.prologue import (
    first_emulated,
    may_branch_to_start,
    split_stack,
    stack_check,
)
from gotrace.sites.records import MAX_SIZE, Choice, Exits, Flow, SiteError, SiteForm

# push %rbp; mov %rsp,%rbp: what Go >= 1.21 sets up a frame with, right after the stack check.
_FRAME_SETUP = b"\x55\x48\x89\xe5"
#: push of a register that a C callee saves: prologue, not a loop's body.
_SAVE = re.compile(rb"[\x53\x55]|\x41[\x54-\x57]")
#: lock cmpxchg
_COMPARE_AND_SWAP = re.compile(rb"\xf0[\x40-\x4f]?\x0f\xb1")
#: mov disp32(%rax),%reg
_FIELD_OF_RAX = re.compile(rb"[\x48\x4c]\x8b[\x80\x88\x90\x98\xa0\xa8\xb0\xb8](.{4})", re.DOTALL)

_CALL = 0xE8
#: A direct call or jump, and its offset.
_BRANCH = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)
_BRANCH_SIZE = 5
#: mov disp(%rsp),%A; mov disp8(%A),%B
_LOADS = re.compile(
    rb"[\x48\x4c]\x8b(?:[\x44\x4c\x54\x5c\x64\x6c\x74\x7c]\x24(?P<near>.)"
    rb"|[\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24(?P<far>.{4}))"
    rb"[\x48\x49\x4c\x4d]\x8b[\x40-\x7f](?P<field>.)",
    re.DOTALL,
)
#: test %rdx,%rdx; je: or of another register, in a runtime that is built without inlining
_TEST = re.compile(
    rb"(?:\x48\x85[\xc0\xc9\xd2\xdb\xf6\xff]|\x4d\x85[\xc0\xc9\xd2\xdb\xe4\xed])(?P<branch>\x74)",
    re.DOTALL,
)
#: mov $-1,%rax; mov $-1,%rcx
_NO_CASE = bytes.fromhex("48c7c0ffffffff48c7c1ffffffff")
#: xor %eax,%eax, and what aligns the call after it.
_NIL = re.compile(rb"\x31\xc0(?:\x90|\x66\x90|\x0f\x1f[\x00\x40\x44]\x00{0,2})?\Z", re.DOTALL)


#: jmp *disp(base,index,8), with any base and with no base; jmp *reg
_COMPUTED_JUMP = re.compile(rb"\xff(?:[\x24\x64\xa4][\xc0-\xff]|[\xe0-\xe7])")
#: The same as capstone prints it: a register, or memory with a scaled index.
_COMPUTED = re.compile(r"\w+\Z|.*\*8\b")
#: lea disp(%rip),reg
_LEA = re.compile(rb"(?=[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....))", re.DOTALL)
#: mov disp(%rip),reg
_LOAD = re.compile(rb"(?=[\x48\x4c]\x8b[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....))", re.DOTALL)
#: disp(,index,8); mov $imm,reg: of code that is linked to one address.
_ABSOLUTE = re.compile(
    rb"(?=(?:[\x04\x0c\x14\x1c\x24\x2c\x34\x3c][\xc5\xcd\xd5\xdd\xe5\xed\xf5\xfd]|[\xb8-\xbf])"
    rb"(...[\x00-\x7f]))",
    re.DOTALL,
)


class Amd64:
    """The machine code of amd64, as `gotrace.sites.machine` describes it."""

    call_size = _BRANCH_SIZE
    is_aligned = False

    def entry(
        self, code: bytes, function: FuncInfo, values: bool, at_rets: bool, stack: bool
    ) -> Choice:
        """Choose the entry site: in or after the stack check, or in the entry block."""
        return _behind_check(code) or _without_check(code, function, values, stack)

    def exits(self, code: bytes) -> Exits:
        """Return a function's ways out, but for the one through which gccgo's checks come back."""
        found = exits(code)
        split = split_stack(code)
        if split is None:
            return found
        # __morestack calls the body itself; to the RET after its call it comes back only in
        # the end, to leave on the old stack: that call has then been seen to return already.
        resumed = next((at for at in found.returns if at >= split.slow), None)
        return replace(found, returns=tuple(at for at in found.returns if at != resumed))

    def control_flow(self, code: bytes) -> Flow:
        """Return where a function branches and returns."""
        return control_flow(code)

    def step_over(self, code: bytes, falls_through: bool) -> tuple[int, int] | None:
        """Return the size of the first instruction, and the number that it adds to SP."""
        return step_over(code, falls_through)

    def float_written(self, code: bytes) -> int | None:
        """Return the float register that the first instruction may write."""
        return float_written(code)

    def swaps(self, code: bytes) -> bool:
        return _COMPARE_AND_SWAP.search(code) is not None

    def is_call(self, code: bytes, at: int) -> bool:
        """Return whether there is a call that the kernel emulates, and not another branch."""
        return code[at] == _CALL

    def may_branch(self, code: bytes, address: int) -> Iterator[tuple[int, bool, int]]:
        """Yield bytes that may be direct calls and jumps: they may be within other instructions."""
        for match in _BRANCH.finditer(code):
            at, offset = match.start(), int.from_bytes(match[1], "little", signed=True)
            yield at, code[at] == _CALL, address + at + _BRANCH_SIZE + offset

    def jump_tables(self, code: bytes, address: int, loads: bool) -> Iterator[int]:
        """Yield addresses that code may compute, if it has bytes that may be a computed jump."""
        if not _COMPUTED_JUMP.search(code):
            return
        for expression in (_LEA, _LOAD) if loads else (_LEA,):
            for match in expression.finditer(code):
                offset = int.from_bytes(match[1], "little", signed=True)
                yield address + match.end(1) + offset

    def fixed_tables(self, code: bytes) -> Iterator[int]:
        """Yield displacements and constants, if there is what may be a jump to a computed place."""
        if _COMPUTED_JUMP.search(code):
            for match in _ABSOLUTE.finditer(code):
                yield int.from_bytes(match[1], "little")

    def jumps_by_table(self, code: bytes) -> bool:
        """Return whether code has a jump to a register, or through a table."""
        return any(
            "jmp" in mnemonic and not operands.startswith("0x") and _COMPUTED.match(operands)
            for _, _, mnemonic, operands in instructions(code)
        )

    def is_prologue(self, code: bytes, at: int) -> bool:
        """Return whether an instruction is a push, or a part of gccgo's check."""
        return _SAVE.match(code, at) is not None or split_stack(code) is not None

    def field_of_local(self, code: bytes) -> tuple[int, int] | None:
        """Return where the stack has the first pointer that is loaded to load from behind it."""
        found = _LOADS.search(code)
        if found is None:
            return None
        return int.from_bytes(found["near"] or found["far"], "little"), found["field"][0]

    def null_tests(self, code: bytes) -> list[tuple[int, int]]:
        """Return the branches after a test of a register; the flags say it."""
        return [(found.start("branch"), 0) for found in _TEST.finditer(code)]

    def returns_no_case(self, code: bytes) -> bool:
        """Return whether code begins with ``selectgo``'s result if no case is ready."""
        return code.startswith(_NO_CASE)

    def passes_nil(self, before: bytes) -> bool:
        """Return whether a function's first argument is nil, by the code before its call."""
        return _NIL.search(before) is not None

    def addressed(self, code: bytes, address: int) -> Iterator[int]:
        """Yield addresses that instructions without an immediate operand may have relative to RIP.

        Each byte is taken for a ModRM byte of that form (mod 0, r/m 5), followed by its
        displacement.
        """
        for at in range(1, len(code) - 4):
            if code[at] & 0xC7 == 0x05:
                (displacement,) = struct.unpack_from("<i", code, at + 1)
                yield address + at + 5 + displacement

    def first_field(self, code: bytes) -> int | None:
        """Return the offset of the first field that is read far into the first argument."""
        found = _FIELD_OF_RAX.search(code)
        return int.from_bytes(found[1], "little") if found else None


def _behind_check(code: bytes) -> Choice | None:
    """Choose a site in or after the stack check, None when the code begins with no known one.

    That no branch leads there needs no proof by decoding. Assembler and compiler put the check
    and the frame's set-up before the function's entry block, and no label exists in front of
    that block but the one that the way back from morestack uses, which is the entry. A test
    holds this against the disassembly of whole programs.
    """
    check = stack_check(code)
    if check is not None:
        if code.startswith(_FRAME_SETUP, check.end):
            return Choice(check.end, SiteForm.EMULATED, 0)
        return Choice(check.branch, SiteForm.BRANCH, 0)
    split = split_stack(code)
    if split is None:
        return None
    # Behind the check the stack is the one of the RETs, so that stack pointers can be matched.
    at = split.body if _SAVE.match(code, split.body) else split.branch
    return Choice(at, SiteForm.EMULATED, 0)


def _without_check(code: bytes, function: FuncInfo, values: bool, stack: bool) -> Choice:
    """Choose a site in a function that begins with no stack check: leaf, nosplit, assembly, C."""
    emulated = first_emulated(code, values, stack)
    if emulated is not None:
        at, sp_offset = emulated
        if _branch_to_start(code, at, function) is None:
            return Choice(at, SiteForm.EMULATED, sp_offset)
    back = _branch_to_start(code, 0, function)
    if back is not None:
        raise SiteError(
            f"{function.name}: no exact entry site: the jump at {function.entry + back:#x} "
            "leads back to its first instruction"
        )
    refused = refusal(code)
    if refused is not None:
        raise SiteError(
            f"{function.name}: the kernel allows no probe on its first instruction: {refused}"
        )
    return Choice(0, SiteForm.FIRST, 0)


def _branch_to_start(code: bytes, last: int, function: FuncInfo) -> int | None:
    """Return where a branch to one of the offsets 0..``last`` is, None if there is none.

    Jumps by tables are for ``gotrace.sites.sites``, which can read the tables.
    """
    if len(code) > MAX_SIZE:
        raise SiteError(f"{function.name}: too large to be decoded ({len(code)} bytes)")
    if not may_branch_to_start(code, last):
        return None
    flow = control_flow(code)
    if flow.undecodable is not None:
        where = function.entry + flow.undecodable
        raise SiteError(f"{function.name}: no exact entry site: cannot be decoded at {where:#x}")
    return next((branch.at for branch in flow.branches if 0 <= branch.target <= last), None)
