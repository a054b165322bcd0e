# SPDX-License-Identifier: Apache-2.0
"""Run the same plans in the kernel and in Python over the same memory: the same bytes come out."""

from __future__ import annotations

import dataclasses
import mmap
import os
import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gotrace.abi.assign import CLOSURE_CONTEXT
from gotrace.capture.ops import (
    MAX_BLOCKS,
    MAX_NESTING,
    MORE_ELEMENTS,
    OTHER_PHASE,
    Op,
    OpCode,
    Status,
)
from gotrace.session.events import CallRecord
from tests.bpf.interpreter import CONSTANTS, PAYLOAD, STEPS, Arena, Interpreter
from tests.capture import reference
from tests.capture.reference import Machine

pytestmark = pytest.mark.live

REGISTERS = (*range(9), CLOSURE_CONTEXT.index)
BLOCKS = MAX_BLOCKS  # numbers that plans give, up to the bound; subplans go beyond it
END = Op(OpCode.END)
_KERNEL = 0xFFFF_8880_0000_1000
_NOT_CANONICAL = 0x1234_5678_9ABC_DEF0


@dataclass
class Case:
    """One call to be captured: plans, and all that they look at."""

    entry: list[Op]
    result: list[Op] | None
    subplans: dict[int, list[Op]]
    constants: list[bytes]
    at_entry: dict[int, int]
    at_return: dict[int, int]
    stack_pointer: int
    reserved: int


@dataclass
class Shape:
    """Know of a plan's blocks what the plan itself says: number to greatest size.

    ``words``: where in the image whole registers are.
    """

    image: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    words: list[int] = field(default_factory=list)


class Maker:
    """Make cases by chance, in the forms that plans have."""

    def __init__(self, seed: int, arena: Arena) -> None:
        self.random = random.Random(seed)
        self.arena = arena
        self.searches = 0
        self.types = [0x7000_0000_0000 + 64 * number for number in range(4)]

    def case(self) -> Case:
        subplans = {word: self.subplan() for word in self.types[:3]}
        constants = [self.text() for _ in range(CONSTANTS)]
        entry, shape = self.plan(6)
        result = None
        if self.random.random() < 0.7:
            result, own = self.plan(5)
            if self.random.random() < 0.6:
                result += self.predicate(own, shape)
            result += [*self.extras(own), END]
        if self.random.random() < 0.6:
            entry += self.predicate(shape, None)
        entry += [*self.extras(shape), END]
        stack = self.arena.start + Arena.STACK + 8 * self.random.randrange(mmap.PAGESIZE // 8)
        at_entry, at_return = ({n: self.word() for n in REGISTERS} for _ in range(2))
        reserved = self.random.choice((0, 0, 8, 320, 640))
        return Case(entry, result, subplans, constants, at_entry, at_return, stack, reserved)

    def fill(self) -> None:
        """Fill the memory with words like those of registers, and text."""
        for offset, size in self.arena.areas:
            self.arena.write(offset, b"".join(self.bytes_of_word() for _ in range(size // 8)))

    def word(self) -> int:
        """Return a pointer, a small number, a type, or what is none of these."""
        start, end = self.arena.start, self.arena.end
        hole = start + self.random.choice(Arena.HOLES) * mmap.PAGESIZE
        return self.random.choice(
            [
                *(self.random.randrange(start, end - 512) & ~7 for _ in range(6)),
                self.random.randrange(start, end),
                hole - self.random.randrange(64),
                *(self.random.randrange(20) for _ in range(3)),
                *self.random.choices(self.types, k=4),
                0,
                self.random.randrange(1 << 64),
                self.random.choice((_KERNEL, _NOT_CANONICAL, (1 << 64) - 5)),
            ]
        )

    def bytes_of_word(self) -> bytes:
        if self.random.random() < 0.2:
            return bytes(self.random.choices(b"ab", k=8))
        return self.word().to_bytes(8, "little")

    def text(self) -> bytes:
        return bytes(self.random.choices(b"ab", k=self.random.choice((1, 2, 3, 7, 8, 9, 16))))

    def plan(self, most: int) -> tuple[list[Op], Shape]:
        shape = Shape()
        ops = []
        for _ in range(self.random.randrange(1, 12)):
            ops.append(self.part_of_image())
            if ops[-1].code is OpCode.REG and ops[-1].size == 8:
                shape.words.append(shape.image)
            shape.image += ops[-1].size
        if shape.image < 8:
            ops.append(Op(OpCode.REG, reg=0, size=8))
            shape.words.append(shape.image)
            shape.image += 8
        return ops + self.captures(shape, self.random.randrange(most + 1)), shape

    def part_of_image(self) -> Op:
        code = self.random.choice((OpCode.REG, OpCode.REG, OpCode.ZERO, OpCode.STACK))
        if code is OpCode.REG:
            return Op(
                code, reg=self.random.choice(REGISTERS), size=self.random.choice((1, 8, 8, 8, 4))
            )
        if code is OpCode.ZERO:
            return Op(code, size=self.random.randrange(1, 65))
        return Op(code, size=self.random.randrange(1, 80), limit=self.random.randrange(0, 4000))

    def captures(self, shape: Shape, count: int) -> list[Op]:
        ops: list[Op] = []
        for _ in range(count):
            form = self.random.random()
            if form < 0.25:
                ops.append(self.iface(shape))
            elif form < 0.4:
                ops += self.chain(shape)
            else:
                ops.append(self.deref(shape))
        return ops

    def chain(self, shape: Shape) -> list[Op]:
        """Return an operation, and more that are skipped with it and only lead on from it."""
        first = self.deref(shape)
        inner = Shape(8, {first.reg: shape.blocks[first.reg]})
        more = [self.deref(inner, first.reg) for _ in range(self.random.randrange(1, 3))]
        for op in more:
            shape.blocks.pop(op.reg, None)
        return [first._replace(skip=len(more)), *more]

    def source(self, shape: Shape) -> tuple[int, int]:
        """Return a block and an offset in it, or, in blocks that know their end, beyond."""
        if not shape.blocks or self.random.random() < 0.6:
            return 0, self.in_image(shape)
        number = self.random.choice(list(shape.blocks))
        unit = self.random.choice((8, 8, 8, 4))
        return number, self.random.randrange(shape.blocks[number] + 8) & -unit

    def in_image(self, shape: Shape) -> int:
        if shape.words and self.random.random() < 0.9:
            return self.random.choice(shape.words)
        return self.random.randrange(shape.image - 7)

    def deref(self, shape: Shape, source: int | None = None) -> Op:
        block, at = self.source(shape)
        if source is not None:
            block, at = source, self.random.randrange(0, 32, 8)
        number = self.random.randrange(1, BLOCKS)
        size = self.random.choice((1, 3, 8, 16, 24, 40, 100, 400))
        if self.random.random() < 0.5:
            shape.blocks[number] = size
            limit = self.random.choice((0, 0, 8, 4096))
            return Op(OpCode.DEREF, number, block, at, 0, size, limit)
        limit = self.random.choice((1, 8, 64, 512))
        shape.blocks[number] = limit
        beside = at + 8 if block else self.in_image(shape)
        size = self.random.choice((1, 1, 8, 24))
        start = self.random.choice((0, 0, 0, 1, 3))
        more = self.random.choice((0, 100, 700))
        more |= MORE_ELEMENTS if more and size > 1 else 0
        return Op(OpCode.DEREF_N, number, block, at, beside, size, limit, 0, start, more)

    def extras(self, shape: Shape) -> list[Op]:
        """Return what comes after the usual: parts of the room, rests, and more of the same."""
        ops: list[Op] = []
        parts = self.random.sample((1, 1, 2, 3), k=self.random.randrange(4))
        rests = [0, 1]
        for number, part in enumerate(parts):
            limit = self.random.choice((200, 500, 900))
            ops.append(Op(OpCode.ROOM, at=int(not number), at2=7, size=part, limit=limit))
            if rests and self.random.random() < 0.6:
                ops.append(Op(OpCode.MORE, at=rests.pop(self.random.randrange(len(rests)))))
            else:
                ops += self.captures(shape, 3)
        return ops

    def iface(self, shape: Shape) -> Op:
        block, at = self.source(shape)
        # A number that is new, as the builder gives them. What the subplan makes has numbers
        # behind it, whatever those were before.
        number = self.random.choice([n for n in range(1, BLOCKS) if n not in shape.blocks])
        beside = at + 8 if block else self.in_image(shape)
        shape.blocks = {n: size for n, size in shape.blocks.items() if n < number}
        return Op(OpCode.IFACE, number, block, at, beside)

    def subplan(self) -> list[Op]:
        shape = Shape(image=8)
        ops = []
        for _ in range(self.random.randrange(4)):
            op = self.iface(shape) if self.random.random() < 0.2 else self.deref(shape)
            ops.append(op)
        # Low numbers, each once, so that most are within bounds.
        numbers = {0: 0} | {op.reg: number for number, op in enumerate(ops, 1)}
        for number, op in enumerate(ops, 1):
            ops[number - 1] = op._replace(reg=number, block=numbers.get(op.block, 0))
        return [*ops, END]

    def predicate(self, shape: Shape, entry: Shape | None) -> list[Op]:
        ops: list[Op] = []
        self.searches = 1  # one search takes as many steps as a plan may have
        for _ in range(self.random.randrange(1, 3)):
            ops += self.condition(shape, entry)
            while self.random.random() < 0.4:
                code = self.random.choice((OpCode.AND, OpCode.OR))
                ops += [*self.condition(shape, entry), Op(code)]
            ops.append(Op(OpCode.KEEP_IF))
        return ops

    def condition(self, shape: Shape, entry: Shape | None) -> list[Op]:
        form = self.random.random()
        if form < 0.3 and (texts := [*shape.blocks]):
            how = self.random.randrange(2 + self.searches)
            self.searches -= how == 2
            test = Op(
                OpCode.STRING_TEST,
                reg=how,
                block=self.random.choice(texts),
                size=self.random.choice((8, 64, 200, 1000)),
                limit=self.random.randrange(CONSTANTS),
            )
            return [test] if self.random.random() < 0.7 else [test, Op(OpCode.NOT)]
        how = self.random.randrange(6) | self.random.choice((0, 0x80))
        return [
            self.operand(shape, entry),
            self.operand(shape, entry),
            Op(OpCode.COMPARE, reg=how),
        ]

    def operand(self, shape: Shape, entry: Shape | None) -> Op:
        form = self.random.random()
        if form < 0.2:
            word = self.word()
            return Op(OpCode.PUSH_CONST, limit=word & 0xFFFF_FFFF, size=word >> 32)
        if form < 0.4:
            return Op(OpCode.PUSH_SPECIAL, reg=self.random.randrange(3))
        other = entry is not None and self.random.random() < 0.4
        block, at = self.source(entry if other and entry is not None else shape)
        width = self.random.choice((1, 2, 4, 8)) | self.random.choice((0, 0x80))
        return Op(OpCode.PUSH_FIELD, width, block | (OTHER_PHASE if other else 0), at)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena()


class Padded(reference._Run):
    """Run a plan in Python and know which bytes lie between blocks: those are anything."""

    def __init__(self, machine: Machine, payload: int) -> None:
        super().__init__(machine, payload, 10 * STEPS)
        self.headers: list[int] = []
        self._gaps: list[tuple[int, int]] = []

    def _header(self, header: int, data: bytes = b"") -> bool:
        self.headers.append(header)
        self._gaps.append((len(self._out), len(self._out) + 7 & ~7))
        return super()._header(header, data)

    def without_gaps(self, payload: bytes) -> bytes:
        """Return a payload with zeros in the gaps."""
        cleared = bytearray(payload)
        for start, end in (*self._gaps, (len(self._out), len(self._out) + 7 & ~7)):
            cleared[start:end] = bytes(len(cleared[start:end]))
        return bytes(cleared)

    def ended(self, payload: bytes) -> bytes:
        """Return a payload as the kernel hands it out: padded, or cut where its image is."""
        if self._is_cut:
            return payload[: len(payload) & -8]
        return self.without_gaps(payload + bytes(-len(payload) % 8))


def differences(
    interpreter: Interpreter, case: Case, arena: Arena, seen: Counter[str]
) -> str | None:
    """Run a case; say how the kernel's outcome differs, None when it does not.

    Count in ``seen`` what has become of cases on which both agree.
    """
    plans = (case.entry, case.result, case.subplans, case.constants)
    interpreter.install(*plans, case.reserved)
    call = interpreter.call(case.at_entry, case.at_return, case.stack_pointer)
    # Only now: the call itself has written its return address.
    memory = arena.memory()
    machine = Machine(
        memory,
        case.at_entry,
        case.stack_pointer,
        case.subplans,
        (0, os.getpid(), threading.get_native_id(), 0),
        case.constants,
    )
    entry = Padded(machine, PAYLOAD - 8 - case.reserved)
    outcomes = [entry.run(case.entry)]
    args = entry.ended(outcomes[0].payload)
    results = b""
    if case.result is not None and outcomes[0].kept is not False:
        machine = dataclasses.replace(machine, registers=case.at_return, entry=outcomes[0])
        at_return = Padded(machine, PAYLOAD - 8 - len(args))
        outcomes.append(at_return.run(case.result))
        results = at_return.ended(outcomes[1].payload)
    if memory.strayed:
        return None
    kept = all(outcome.kept is not False for outcome in outcomes)
    if (call is not None) is not kept:
        return f"kept is {call is not None}"
    if call is None:
        seen["dropped"] += 1
        return None
    if call.undecided is all(outcome.kept for outcome in outcomes):
        return f"undecided is {call.undecided}"
    if (found := entry.without_gaps(call.args)) != args:
        return f"arguments\n{found.hex(' ', 8)}, not\n{args.hex(' ', 8)}"
    if results and (found := at_return.without_gaps(call.results)) != results:
        return f"results\n{found.hex(' ', 8)}, not\n{results.hex(' ', 8)}"
    seen["undecided" if call.undecided else "kept"] += 1
    seen.update(Status(header).name for header in entry.headers if header in set(Status))
    return None


def test_random_plans(interpreter: Interpreter, arena: Arena) -> None:
    seen: Counter[str] = Counter()
    for seed in range(2000):
        maker = Maker(seed, arena)
        if seed % 100 == 0:
            maker.fill()
        case = maker.case()
        found = differences(interpreter, case, arena, seen)
        assert found is None, f"seed {seed}: {found}\n{case}"
    assert all(seen[what] > 50 for what in ("kept", "dropped", "undecided")), seen
    assert all(seen[status.name] > 20 for status in Status), seen


def run(
    interpreter: Interpreter, arena: Arena, entry: list[Op], **fields: Any
) -> CallRecord | None:
    """Capture a call of which the first register leads to the arena's beginning."""
    at_entry = dict.fromkeys(REGISTERS, arena.start)
    interpreter.install([*entry, END], None, {}, fields.get("constants", []))
    return interpreter.call(at_entry, at_entry, fields.get("stack", arena.start + Arena.STACK))


_LONG = b"a needle of more than one word"


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(
    ("text", "needle", "most", "found"),
    [
        (b"." * 300 + b"needle", b"needle", 1000, True),
        (b"." * 300 + b"needl", b"needle", 1000, False),
        (b"." * 300 + b"needl", b"needle", 305, None),  # all that is captured: it may go on
        (b"needl", b"needle", 1000, False),
        (b"." * 511 + b"needle", b"needle", 1000, True),
        (b"." * 512 + b"needle", b"needle", 1000, None),  # beyond what is searched
        (b"." * 512 + b"needl", b"needle", 1000, False),
        (b"." * 400 + _LONG, _LONG, 1000, True),
        (b"a needle" * 40 + _LONG, _LONG, 1000, True),
        # Each beginning that turns out not to be it takes a step, and there are only so many.
        (b"a needle" * 60 + _LONG, _LONG, 1000, None),
        (b"a needle", b"e", 1000, True),
    ],
)
def test_searches(
    interpreter: Interpreter,
    arena: Arena,
    text: bytes,
    needle: bytes,
    most: int,
    found: bool | None,
    negated: bool,
) -> None:
    """A search finds what is there, and leaves open what it has not looked at."""
    arena.write(0, text + needle)
    ops = [
        Op(OpCode.REG, reg=0, size=8),
        Op(OpCode.DEREF, 1, 0, 0, 0, len(text)),
        Op(OpCode.STRING_TEST, reg=2, block=1, size=most, limit=0),
        *([Op(OpCode.NOT)] if negated else []),
        Op(OpCode.KEEP_IF),
    ]
    expected = found if found is None or not negated else not found
    call = run(interpreter, arena, ops, constants=[needle])
    assert (call is not None) is (expected is not False)
    assert call is None or call.undecided is (expected is None)
    machine = Machine(arena.memory(), {0: arena.start}, constants=[needle])
    assert reference.run_reference([*ops, END], machine).kept is expected


@pytest.mark.parametrize("before", [8, 3])
def test_stack_that_cannot_be_read_ends_the_image(
    interpreter: Interpreter, arena: Arena, before: int
) -> None:
    """Nothing is made up for it, nor for what is behind, and no test is decided by that."""
    beyond = arena.end - arena.start - Arena.STACK
    ops = [
        Op(OpCode.REG, reg=0, size=before),
        Op(OpCode.STACK, size=16, limit=beyond),
        Op(OpCode.REG, reg=0, size=8),
        Op(OpCode.DEREF, 1, 0, 0, 0, 8),
    ]
    call = run(interpreter, arena, ops)
    assert call is not None
    assert call.args == (arena.start.to_bytes(8, "little") if before == 8 else b"")
    test = [Op(OpCode.PUSH_FIELD, reg=8, at=8), Op(OpCode.KEEP_IF)]
    call = run(interpreter, arena, ops + test)
    assert call is not None
    assert call.undecided


def test_work_is_bounded(interpreter: Interpreter, arena: Arena) -> None:
    """Types that hold themselves end, and plans that are too long leave the call undecided."""
    word = 0x7000
    arena.write(0, struct.pack("<QQ", word, arena.start))
    subplan = [Op(OpCode.DEREF, 1, 0, 0, 0, 16), Op(OpCode.IFACE, 2, 1, 0, 8), END]
    root = [Op(OpCode.REG, reg=0, size=8), Op(OpCode.DEREF, 1, 0, 0, 0, 16)]
    interpreter.install([*root, Op(OpCode.IFACE, 2, 1, 0, 8), END], None, {word: subplan}, [])
    at_entry = dict.fromkeys(REGISTERS, arena.start)
    call = interpreter.call(at_entry, at_entry, arena.start + Arena.STACK)
    assert call is not None
    headers = [struct.unpack_from("<I", call.args, at)[0] for at in range(36, len(call.args), 8)]
    assert headers.count(Status.KNOWN_TYPE) == MAX_NESTING
    assert Status.LIMIT in headers
    long = [Op(OpCode.ZERO, size=1)] * (STEPS + 1)
    call = run(interpreter, arena, long)
    assert call is not None
    assert call.undecided
    assert len(call.args) == STEPS
