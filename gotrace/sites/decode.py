# SPDX-License-Identifier: Apache-2.0
"""Decode amd64 functions as far as choosing probe sites needs them (capstone)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError
from gotrace.sites.lengths import run_to_jump
from gotrace.sites.records import Branch, Exits, Flow

if TYPE_CHECKING:
    import capstone


#: Zero bytes, or Go's int3, after the last instruction; one zero byte alone does not decode.
PADDING = re.compile(rb"[\x00\xcc]*\Z")
_NEAR_RETURN = re.compile(rb"[\xf2\xf3]*[\xc2\xc3]")
_IMMEDIATE = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)\Z")
#: A jump through a scaled table, which is how compilers lay out a switch.
_TABLE = re.compile(r"\*[48]\b")

#: Decoding is done in pieces, since capstone spends 240 bytes of memory on each instruction.
_PIECE = 1 << 16
_MAX_INSTRUCTION = 15

#: offset, size, mnemonic, operands as capstone prints them
Instruction = tuple[int, int, str, str]


def control_flow(code: bytes) -> Flow:
    """Decode all of a function's ``code`` and return where it branches and returns.

    A jump through a scaled table, or to a register that the instruction before computed by
    addition, is a switch and stays in the function; other indirect jumps leave it.
    """
    returns: list[int] = []
    branches: list[Branch] = []
    calls: list[Branch] = []
    tail_jumps = 0
    end = 0
    sum_register = ""
    for at, size, mnemonic, operands in instructions(code):
        end = at + size
        if mnemonic.startswith(("j", "loop")) or "jmp" in mnemonic:
            if _IMMEDIATE.match(operands):
                target = _signed(int(operands, 0))
                branches.append(Branch(at, target))
                tail_jumps += not 0 <= target < len(code)
            elif operands != sum_register and not _TABLE.search(operands):
                tail_jumps += 1
        elif "call" in mnemonic:
            if _IMMEDIATE.match(operands):
                calls.append(Branch(at, _signed(int(operands, 0))))
        elif "ret" in mnemonic and _NEAR_RETURN.match(code, at):
            returns.append(at)
        sum_register = operands.partition(",")[0] if mnemonic == "add" else ""
    undecodable = None if PADDING.match(code, end) else end
    return Flow(tuple(returns), tuple(branches), tuple(calls), tail_jumps, undecodable)


def exits(code: bytes) -> Exits:
    """Decode all of a function's ``code`` and return where it ends.

    The same as `control_flow` finds, sooner where a function has common instructions only.
    """
    global _disassembled
    if _disassembled < _FEW:
        _disassembled += len(code)
    elif (found := _common_exits(code)) is not None:
        return found
    flow = control_flow(code)
    targets = (jump.target for jump in flow.branches if not 0 <= jump.target < len(code))
    return Exits(flow.returns, tuple(targets), flow.tail_jumps, flow.undecodable)


#: Bytes of code that are disassembled in the time in which the expression is compiled: 40 ms.
_FEW = 1 << 17
_disassembled = 0


def _common_exits(code: bytes) -> Exits | None:
    """Return the ways out of a function of which all instructions are common ones."""
    returns: list[int] = []
    targets: list[int] = []
    size = len(code)
    at = 0
    for run in run_to_jump().finditer(code):
        end = run.end()
        what = run.lastindex
        if what == 1:
            returns.append(run.start(1))
        elif what is not None:
            target = end + int.from_bytes(run[what], "little", signed=True)
            if not 0 <= target < size:
                targets.append(target)
        elif end == at:
            if PADDING.match(code, at):
                break
            return None
        at = end
    return Exits(tuple(returns), tuple(targets), len(targets), None)


_READING = frozenset({"nop", "cmp", "test"})
_ELSEWHERE = re.compile(r"j|call|ret|sys|int|iret|loop|ud|hlt|pop|leave|enter|xchg|bnd")
_STACK_CHANGE = re.compile(r"rsp, (0x[0-9a-f]+|[0-9]+)\Z")
_FLOAT_WRITTEN = re.compile(r"[xyz]mm([0-9]+)\b")
_COMPARING = {"ucomisd", "ucomiss", "comisd", "comiss"}  # these read their first operand


def step_over(code: bytes, falls_through: bool) -> tuple[int, int] | None:
    """Return the size of ``code``'s first instruction, and the number that it adds to SP.

    None where it cannot be decoded or execution may go on elsewhere, or where SP changes by an
    unknown amount. ``falls_through``: the caller knows of a conditional jump that it is not taken.
    """
    first = next(instructions(code[:_MAX_INSTRUCTION]), None)
    if first is None:
        return None
    _, size, mnemonic, operands = first
    if mnemonic == "push":
        return size, -8
    if mnemonic[0] == "j" and mnemonic != "jmp" and falls_through:
        return size, 0
    if _ELSEWHERE.match(mnemonic):
        return None
    if mnemonic in _READING or not operands.startswith("rsp"):
        return size, 0
    change = _STACK_CHANGE.match(operands)
    if change is None or mnemonic not in ("sub", "add"):
        return None
    return size, int(change[1], 0) if mnemonic == "add" else -int(change[1], 0)


def float_written(code: bytes) -> int | None:
    """Return the float register that the first instruction of ``code`` may write, None for none."""
    first = next(instructions(code[:_MAX_INSTRUCTION]), None)
    written = _FLOAT_WRITTEN.match(first[3]) if first is not None else None
    if first is None or written is None or first[2] in _COMPARING:
        return None
    return int(written[1])


def instructions(code: bytes, at: int = 0, size: int = _PIECE) -> Iterator[Instruction]:
    """Decode ``code`` linearly from an offset, up to the first undecodable byte.

    Offsets are from the start of ``code``. So many bytes are decoded at once.
    """
    disassembler = _disassembler()
    while at < len(code):
        piece = code[at : at + size]
        end = at
        for instruction in disassembler.disasm_lite(piece, at):
            yield instruction
            end = instruction[0] + instruction[1]
        # An instruction may be cut by the end of the piece; further off, it is not one.
        if end == at or at + len(piece) - end >= _MAX_INSTRUCTION:
            return
        at = end


def _signed(target: int) -> int:
    """Return a 64-bit offset as a signed number: jumps may go to before the entry."""
    return target - (1 << 64) if target >> 63 else target


@functools.cache
def _disassembler() -> capstone.Cs:
    """Open capstone once; raise GotraceError where it is missing.

    Many functions need none of it, and importing it takes 25 ms.
    """
    try:
        import capstone
    except (ImportError, OSError) as missing:
        raise GotraceError(
            f"cannot decode instructions: capstone cannot be imported ({missing}): install"
            " python3-capstone (Debian, Ubuntu, Fedora), or pip install capstone"
        ) from missing
    return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
