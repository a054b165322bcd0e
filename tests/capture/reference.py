# SPDX-License-Identifier: Apache-2.0
"""Run capture plans in Python, exactly as bpf/interpreter.h does in the kernel.

For tests of plans, and as the plain statement of what the operations mean.
"""

from __future__ import annotations

import bisect
import dataclasses
import struct
from collections.abc import Mapping, Sequence

from gotrace.capture.ops import (
    BLOCK_CUT,
    DEEP,
    MAX_BLOCKS,
    MAX_NESTING,
    MAX_RESTS,
    MEMORY_PAGE,
    MORE_ELEMENTS,
    OTHER_PHASE,
    ArithmeticCode,
    Op,
    OpCode,
    Rest,
    Status,
)

_MASK = (1 << 64) - 1
#: Of a search: positions looked at, of them in one step, and steps that it may take.
_SEARCHED, _STRIDE, SEARCH_STEPS = 512, 16, 48
_EQUAL, _PREFIX = 0, 1


class Memory:
    """A process's memory as ranges of bytes by address."""

    def __init__(self, ranges: Mapping[int, bytes]) -> None:
        """Take the ranges; they do not overlap."""
        self._ranges = sorted(ranges.items())

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes, None where any of them is not there."""
        found = bisect.bisect_right(self._ranges, address, key=lambda held: held[0]) - 1
        if found >= 0:
            start, data = self._ranges[found]
            if address + size <= start + len(data):
                return data[address - start : address - start + size]
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What a plan runs over: a thread at a site, and what has been installed.

    ``registers``: by the numbers that REG uses; ``stack_pointer``: at the function's entry;
    ``subplans``: operations by type word; ``specials``: $goid, $pid, $tid and $duration;
    ``constants``: those of STRING_TEST; ``entry``: how the entry's plan ended, at the return.
    """

    memory: Memory
    registers: Mapping[int, int] = dataclasses.field(default_factory=dict)
    stack_pointer: int = 0
    subplans: Mapping[int, Sequence[Op]] = dataclasses.field(default_factory=dict)
    specials: Sequence[int] = (0, 0, 0, 0)
    constants: Sequence[bytes] = ()
    entry: Outcome | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan gave: ``kept`` is None when its predicate could not be decided.

    ``blocks`` has the bytes of each block that has some, or is known to have none, by its number;
    ``steps`` how many operations ran.
    """

    payload: bytes
    kept: bool | None
    blocks: Mapping[int, bytes]
    steps: int


def run_reference(
    ops: Sequence[Op], machine: Machine, *, payload: int = 4096, steps: int = 96
) -> Outcome:
    """Run a plan over a machine, for at most so many bytes of payload and operations."""
    return _Run(machine, payload, steps).run(ops)


class _Run:
    def __init__(self, machine: Machine, payload: int, steps: int) -> None:
        self._machine = machine
        self._most = self._room = payload
        self._spare = 0
        self._rests: list[tuple[Rest, int, int]] = []
        self._left = steps
        self._out = bytearray()
        self._blocks: dict[int, bytes] = {}
        self._is_cut = False
        self._stack: list[int | None] = []
        self._steps = 0
        self._kept: bool | None = True

    def run(self, ops: Sequence[Op]) -> Outcome:
        self._blocks[0] = b""
        if not self._list(ops, 0, 0):
            self._kept = self._kept and None
        return Outcome(bytes(self._out), self._kept, dict(self._blocks), self._steps)

    def _list(self, ops: Sequence[Op], base: int, nesting: int) -> bool:
        """Run one list to its END; return False when all has to stop."""
        at = 0
        while at < len(ops):
            if self._steps >= self._left or self._kept is False:
                return False
            self._steps += 1
            op = ops[at]
            at += 1
            if op.code is OpCode.END:
                return True
            if op.code in (OpCode.REG, OpCode.ZERO, OpCode.STACK, OpCode.SAVED):
                self._append(op)
            elif op.code in (OpCode.DEREF, OpCode.DEREF_N):
                if not self._deref(op, base):
                    at += op.skip
                    assert at < len(ops), "a plan goes on behind its END"
            elif op.code is OpCode.ROOM:
                start = len(self._out) + 7 & ~7
                if op.at:
                    self._spare = max(min(self._room, op.limit) - start, 0)
                end = start + (self._spare * op.size // op.at2 & ~7)
                self._most = min(end, self._room)
            elif op.code is OpCode.MORE:
                self._more(Rest(op.at))
            elif op.code is OpCode.IFACE:
                found = self._iface(op, base, nesting)
                if found is None:
                    at += op.skip
                elif not self._list(found, base + op.reg, nesting + 1):
                    return False
            else:
                self._predicate(op, base)
        return True

    def _append(self, op: Op) -> None:
        data: bytes | None
        if op.code is OpCode.REG:
            data = (self._machine.registers.get(op.reg, 0) & _MASK).to_bytes(8, "little")[: op.size]
        elif op.code is OpCode.ZERO:
            data = bytes(op.size)
        elif op.code is OpCode.SAVED:
            found = self._block(OTHER_PHASE, 0)
            data = None if found is None else found[op.at : op.at + op.size]
            data = data if data is not None and len(data) == op.size else None
        else:
            address = self._machine.stack_pointer + op.limit
            data = self._machine.memory.read(address, op.size)
        if self._is_cut or data is None or len(self._out) + len(data) > self._most:
            self._is_cut = True
            return
        self._out += data
        self._blocks[0] += data

    def _block(self, op_block: int, base: int) -> bytes | None:
        """Return a block's bytes, None when they could not be had."""
        if op_block & OTHER_PHASE:
            entry = self._machine.entry
            return None if entry is None else entry.blocks.get(op_block & ~OTHER_PHASE)
        return self._blocks.get(base + op_block)

    def _source(self, op_block: int, base: int, at: int, size: int) -> bytes:
        return (self._block(op_block, base) or b"")[at : at + size]

    def _word(self, op: Op, base: int, at: int) -> int | None:
        data = self._source(op.block, base, at, 8)
        return struct.unpack("<Q", data)[0] if len(data) == 8 else None

    def _has_room(self) -> bool:
        """Return whether another block can begin."""
        return not self._is_cut and (len(self._out) + 7 & ~7) + 8 <= self._most

    def _header(self, header: int, data: bytes = b"") -> bool:
        """Begin a block; return whether there was room for it."""
        if not self._has_room():
            return False
        start = len(self._out) + 7 & ~7
        self._out += bytes(start - len(self._out)) + struct.pack("<II", 0, header) + data
        return True

    def _deref(self, op: Op, base: int) -> bool:
        number = base + op.reg
        self._blocks.pop(number, None)
        pointer = self._word(op, base, op.at)
        count: int | None = 1
        size = op.size
        if op.code is OpCode.DEREF_N:
            count = self._word(op, base, op.at2)
            if count is not None:
                count = max(count - op.start, 0)
        if pointer is None or count is None or not self._has_room():
            return False
        if op.code is OpCode.DEREF_N:
            size = min(count * size, op.limit)
            pointer = pointer + op.start * op.size & _MASK if pointer else 0
        elif pointer:
            pointer = pointer + op.limit & _MASK
        if count == 0:
            self._header(0)
            if number < MAX_BLOCKS:
                self._blocks[number] = b""
            return False
        if pointer == 0:
            self._header(Status.NIL)
            return False
        room = self._most - (len(self._out) + 7 & ~7) - 8
        if size > room or number >= MAX_BLOCKS:
            self._header(Status.LIMIT)
            return False
        data = self._machine.memory.read(pointer, size)
        if data is None:
            first = MEMORY_PAGE - pointer % MEMORY_PAGE
            data = self._machine.memory.read(pointer, first) if first < size else None
            self._header(Status.FAULT if data is None else first | BLOCK_CUT, data or b"")
            if data is None or (op.code is OpCode.DEREF_N and op.size == 1):
                return False
            self._blocks[number] = data
            return True
        self._header(size, data)
        self._blocks[number] = data
        wanted = min(count * op.size, op.more & ~MORE_ELEMENTS) - op.limit
        if op.more and wanted > 0 and len(self._rests) < MAX_RESTS:
            kind = Rest.ELEMENTS if op.more & MORE_ELEMENTS else Rest.TEXT
            self._rests.append((kind, pointer + op.limit, wanted))
        return True

    def _more(self, kind: Rest) -> None:
        """Copy each rest of a kind as far as its share of the room goes."""
        rests = [(address, wanted) for noted, address, wanted in self._rests if noted is kind]
        for turn, (address, wanted) in enumerate(rests):
            self._steps += 1
            if not self._has_room():
                continue
            room = self._most - (len(self._out) + 7 & ~7) - 8
            size = min(wanted, max((room + 16) // (len(rests) - turn) - 16, 0))
            data = self._machine.memory.read(address, size) if size else b""
            first = MEMORY_PAGE - address % MEMORY_PAGE
            if data is None and first < size:
                data = self._machine.memory.read(address, first)
            self._header(Status.FAULT if data is None else len(data), data or b"")

    def _iface(self, op: Op, base: int, nesting: int) -> Sequence[Op] | None:
        number = base + op.reg
        self._blocks[number] = b""
        word, data = self._word(op, base, op.at), self._word(op, base, op.at2)
        if word is None or data is None:
            return None
        plan = self._machine.subplans.get(word | (DEEP if op.limit else 0))
        header = Status.KNOWN_TYPE
        if word == 0:
            header = Status.NIL
        elif plan is None:
            header = Status.UNKNOWN_TYPE
        elif nesting >= MAX_NESTING or number >= MAX_BLOCKS:
            header = Status.LIMIT
        if not self._header(header) or header is not Status.KNOWN_TYPE:
            return None
        self._blocks[number] = data.to_bytes(8, "little")
        return plan

    def _predicate(self, op: Op, base: int) -> None:
        stack = self._stack
        if op.code is OpCode.PUSH_CONST:
            stack.append(op.limit | op.size << 32)
        elif op.code is OpCode.PUSH_FIELD:
            width = op.reg & 0xF
            data = self._source(op.block, base, op.at, width)
            signed = bool(op.reg & 0x80)
            word = int.from_bytes(data, "little", signed=signed) & _MASK
            stack.append(word if len(data) == width and not self._is_cut else None)
        elif op.code is OpCode.PUSH_SPECIAL:
            stack.append(self._machine.specials[op.reg] & _MASK)
        elif op.code is OpCode.STRING_TEST:
            stack.append(self._string_test(op, base))
        elif op.code is OpCode.KEEP_IF:
            value = stack.pop()
            if value is None:
                self._kept = None
            elif not value:
                self._kept = False
        else:
            stack.append(self._operator(op))

    def _operator(self, op: Op) -> int | None:
        right = self._stack.pop()
        if op.code is OpCode.NOT:
            return None if right is None else int(not right)
        left = self._stack.pop()
        if left is None or right is None:
            return None
        if op.code is OpCode.ARITHMETIC:
            return _arithmetic(op, left, right)
        if op.code is OpCode.AND:
            return int(bool(left and right))
        if op.code is OpCode.OR:
            return int(bool(left or right))
        if op.reg & 0x80:
            left, right = left ^ 1 << 63, right ^ 1 << 63
        results = (left == right, left != right, left < right)
        more = (left <= right, left > right, left >= right)
        return int((*results, *more)[op.reg & 7])

    def _string_test(self, op: Op, base: int) -> int | None:
        data = self._block(op.block, base)
        if data is None:
            return None
        constant = self._machine.constants[op.limit]
        if op.reg == _EQUAL:
            return int(data == constant)
        if op.reg == _PREFIX:
            return int(data.startswith(constant))
        return _search(data, constant, op.size)


def _arithmetic(op: Op, left: int, right: int) -> int | None:
    """Return what ARITHMETIC leaves of two words, None where Go would panic."""
    is_signed, bits = bool(op.reg & 0x80), 8 * op.size
    if is_signed:
        left -= left >> 63 << 64
    if is_signed or op.limit:
        right -= right >> 63 << 64
    code = ArithmeticCode(op.reg & 0xF)
    if code in (ArithmeticCode.DIVIDE, ArithmeticCode.REMAINDER) and not right:
        return None
    if code >= ArithmeticCode.SHIFT_LEFT and right < 0:
        return None
    if code is ArithmeticCode.ADD:
        result = left + right
    elif code is ArithmeticCode.SUBTRACT:
        result = left - right
    elif code is ArithmeticCode.MULTIPLY:
        result = left * right
    elif code is ArithmeticCode.DIVIDE:
        result = abs(left) // abs(right) * (1 if (left < 0) is (right < 0) else -1)
    elif code is ArithmeticCode.REMAINDER:
        result = abs(left) % abs(right) * (-1 if left < 0 else 1)
    elif code is ArithmeticCode.BIT_AND:
        result = left & right
    elif code is ArithmeticCode.BIT_OR:
        result = left | right
    elif code is ArithmeticCode.BIT_XOR:
        result = left ^ right
    elif code is ArithmeticCode.BIT_CLEAR:
        result = left & ~right
    elif code is ArithmeticCode.SHIFT_LEFT:
        result = left << min(right, 64)
    else:
        result = left >> min(right, 64)
    result &= (1 << bits) - 1
    if is_signed and result >> bits - 1:
        result -= 1 << bits
    return result & _MASK


def _search(data: bytes, constant: bytes, most: int) -> int | None:
    """Return whether a string has a constant in it, None where that is not decided here.

    ``most``: how many bytes of a string are captured; one of that size may go on.
    """
    at = 0
    for _ in range(SEARCH_STEPS):
        begins = (i for i in range(_STRIDE) if data.startswith(constant[:8], at + i))
        skipped = next(begins, _STRIDE)
        at += skipped
        if at + len(constant) > len(data) or at >= _SEARCHED:
            break
        if skipped < _STRIDE:
            if data.startswith(constant, at):
                return 1
            at += 1
    return None if len(data) >= most or at + len(constant) <= len(data) else 0
