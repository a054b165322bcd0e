# SPDX-License-Identifier: Apache-2.0
"""Compile predicates to operations of the capture interpreter, so that the kernel drops calls.

The meaning is that of ``evaluate``. Where an operand cannot be read, through a nil pointer for
example, or a string is too long to be searched in the kernel, the interpreter (bpf/interpreter.h)
marks the call as undecided and ``evaluate`` decides.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from gotrace.capture.ops import (
    OTHER_PHASE,
    PREDICATE_STACK,
    SIGNED_OPERAND,
    ArithmeticCode,
    ComparisonCode,
    FieldRef,
    Op,
    OpCode,
    SpecialCode,
    StringTest,
)
from gotrace.gotypes.types import Kind
from gotrace.probes.constants import INTEGERS, SIGNED
from gotrace.probes.parser import BinaryOperator, TextFunction
from gotrace.probes.scope import PART_SPECIALS, Phase, SpecialName
from gotrace.probes.typed import (
    AccessPath,
    Arithmetic,
    Comparison,
    Constant,
    Domain,
    Logic,
    NilTest,
    Not,
    Operand,
    SpecialOperand,
    TextTest,
    Typed,
    conjunction,
    conjuncts,
    negated,
    phase_of,
)
from gotrace.records import dataclass

#: The longest string constant that the kernel compares with.
CONSTANT_BYTES = 64
_CONSTANT = struct.Struct(f"<Q{CONSTANT_BYTES}s{CONSTANT_BYTES}s")
_COMPARE = {
    BinaryOperator.EQUAL: ComparisonCode.EQUAL,
    BinaryOperator.NOT_EQUAL: ComparisonCode.NOT_EQUAL,
    BinaryOperator.LESS: ComparisonCode.LESS,
    BinaryOperator.LESS_EQUAL: ComparisonCode.LESS_EQUAL,
    BinaryOperator.GREATER: ComparisonCode.GREATER,
    BinaryOperator.GREATER_EQUAL: ComparisonCode.GREATER_EQUAL,
}
_ARITHMETIC = {
    BinaryOperator.ADD: ArithmeticCode.ADD,
    BinaryOperator.SUBTRACT: ArithmeticCode.SUBTRACT,
    BinaryOperator.MULTIPLY: ArithmeticCode.MULTIPLY,
    BinaryOperator.DIVIDE: ArithmeticCode.DIVIDE,
    BinaryOperator.REMAINDER: ArithmeticCode.REMAINDER,
    BinaryOperator.BIT_AND: ArithmeticCode.BIT_AND,
    BinaryOperator.BIT_OR: ArithmeticCode.BIT_OR,
    BinaryOperator.BIT_XOR: ArithmeticCode.BIT_XOR,
    BinaryOperator.BIT_CLEAR: ArithmeticCode.BIT_CLEAR,
    BinaryOperator.SHIFT_LEFT: ArithmeticCode.SHIFT_LEFT,
    BinaryOperator.SHIFT_RIGHT: ArithmeticCode.SHIFT_RIGHT,
}
#: Operations that take two values off the stack and leave one, or take one.
_OF_TWO = (OpCode.COMPARE, OpCode.AND, OpCode.OR, OpCode.KEEP_IF, OpCode.ARITHMETIC)
_TESTS: dict[TextFunction | None, StringTest] = {
    None: StringTest.EQUAL,
    TextFunction.PREFIX: StringTest.PREFIX,
    TextFunction.CONTAINS: StringTest.CONTAINS,
}
_SPECIALS: dict[SpecialName, int] = {
    SpecialName.GOID: SpecialCode.GOID,
    SpecialName.PID: SpecialCode.PID,
    SpecialName.TID: SpecialCode.TID,
    SpecialName.DURATION: SpecialCode.DURATION,
    **{name: SpecialCode.PARTS + number for number, name in enumerate(PART_SPECIALS, 1)},
}
#: In keys a process stands for its name.
_IN_KEYS = {**_SPECIALS, SpecialName.COMM: 1}
_SLICE_LENGTH_AT = 8  # the data pointer comes first, the length after it
_MAX_AT = 0xFFFF

#: Gives the place of a captured value, None when there is none that the kernel can see.
Locate = Callable[[AccessPath], FieldRef | None]


class StringConstants:
    """The string constants of all predicates of a run, numbered, each content once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def number(self, content: bytes) -> int:
        """Return the number of a constant, a new one at first sight."""
        return self._numbers.setdefault(content, len(self._numbers))

    def packed(self) -> list[bytes]:
        """Return the constants in order of their numbers, as the interpreter's struct constant."""
        return [
            _CONSTANT.pack(len(content), content, b"\xff" * len(content))
            for content in self._numbers
        ]


@dataclass(frozen=True, slots=True)
class CompiledPredicate:
    """A predicate cut at its outermost ``&&`` by where and when each part is decided.

    ``entry`` and ``result`` are the kernel's operations of either phase, END aside. ``rest`` is
    left to ``decide``, None when nothing is. Where the kernel marks a call as undecided, ``decide``
    is to be asked about the whole predicate.
    """

    entry: tuple[Op, ...]
    result: tuple[Op, ...]
    rest: Typed | None


def compile_predicate(
    predicate: Typed,
    locate: Locate,
    constants: StringConstants,
    *,
    entry_room: int,
    result_room: int,
) -> CompiledPredicate:
    """Compile as much of a predicate as the kernel can decide, each part as early as possible.

    The parameters are those of ``predicate_ops``, with the room that each phase has.
    """
    room = {Phase.ENTRY: entry_room, Phase.RETURN: result_room}
    ops: dict[Phase, list[Op]] = {Phase.ENTRY: [], Phase.RETURN: []}
    rest: list[Typed] = []
    for part in conjuncts(negated(predicate)):
        phase = phase_of(part)
        left = room[phase] - len(ops[phase])
        compiled = predicate_ops(part, locate, constants, room=left)
        if compiled is None:
            rest.append(part)
        else:
            ops[phase] += compiled
    return CompiledPredicate(tuple(ops[Phase.ENTRY]), tuple(ops[Phase.RETURN]), conjunction(rest))


def predicate_ops(
    predicate: Typed, locate: Locate, constants: StringConstants, *, room: int
) -> list[Op] | None:
    """Compile a predicate for the phase in which it can be decided, ``phase_of(predicate)``.

    Returns None when the kernel cannot decide it with the same meaning. ``locate`` numbers blocks
    as the plan of the operand's own phase does; ``room`` says how many operations there may be.
    """
    compiler = _Compiler(locate, constants, phase_of(predicate))
    ops: list[Op] = []
    try:
        for part in conjuncts(negated(predicate)):
            ops += compiler.condition(part)
            ops.append(Op(OpCode.KEEP_IF))
    except _NotInKernel:
        return None
    return ops if len(ops) <= room and _depth(ops) <= PREDICATE_STACK else None


def key_ops(value: Typed, locate: Locate, constants: StringConstants) -> list[Op] | None:
    """Return the operations that append a condition, or a value of every call, to a key.

    None where the kernel does not know it.
    """
    if isinstance(value, Constant) or (
        isinstance(value, SpecialOperand) and value.special is SpecialName.FUNC
    ):
        return []  # the same in all calls of a function
    if isinstance(value, SpecialOperand) and value.special is SpecialName.STACK:
        return []  # appended with the return addresses themselves
    if isinstance(value, SpecialOperand) and value.special is SpecialName.CALLER:
        return [Op(OpCode.KEY_CALLER)]
    if isinstance(value, SpecialOperand):
        return [Op(OpCode.PUSH_SPECIAL, reg=_IN_KEYS[value.special]), Op(OpCode.KEY_VALUE)]
    try:
        ops = _Compiler(locate, constants, phase_of(value)).condition(negated(value))
    except _NotInKernel:
        return None
    return [*ops, Op(OpCode.KEY_VALUE)] if _depth(ops) <= PREDICATE_STACK else None


def measure_ops(value: Typed, locate: Locate, constants: StringConstants) -> list[Op] | None:
    """Return the operations that take a number for histograms.

    None where the kernel does not know it.
    """
    try:
        ops = _Compiler(locate, constants, phase_of(value)).condition(value)
    except _NotInKernel:
        return None
    sign = SIGNED_OPERAND if value.type.kind in SIGNED else 0
    return [*ops, Op(OpCode.MEASURE, reg=sign)] if _depth(ops) <= PREDICATE_STACK else None


def _depth(ops: Sequence[Op]) -> int:
    """Return how many values are on the stack at most."""
    depth = deepest = 0
    for op in ops:
        if op.code in _OF_TWO:
            depth -= 1
        elif op.code is not OpCode.NOT:
            depth += 1
        deepest = max(deepest, depth)
    return deepest


class _NotInKernel(Exception):
    """The kernel cannot decide this, or not with the same meaning."""


class _Compiler:
    """A compiler of conditions whose ``!`` apply to single operands."""

    def __init__(self, locate: Locate, constants: StringConstants, phase: Phase) -> None:
        self._locate = locate
        self._constants = constants
        self._phase = phase

    def condition(self, condition: Typed) -> list[Op]:
        """Return the operations that leave the truth of a condition on the stack."""
        if isinstance(condition, Logic):
            code = OpCode.AND if condition.operator is BinaryOperator.AND else OpCode.OR
            return [*self.condition(condition.left), *self.condition(condition.right), Op(code)]
        if isinstance(condition, Comparison):
            return self._comparison(condition)
        if isinstance(condition, NilTest):
            return self._nil_test(condition)
        positive = not isinstance(condition, Not)
        operand = condition.operand if isinstance(condition, Not) else condition
        if isinstance(operand, TextTest):
            return self._text_test(operand.operand, operand.function, operand.needle, positive)
        return self._push(operand) if positive else [*self._push(operand), Op(OpCode.NOT)]

    def _comparison(self, comparison: Comparison) -> list[Op]:
        if comparison.domain is Domain.STRING:
            return self._string_equality(comparison)
        if comparison.domain is Domain.FLOAT:
            raise _NotInKernel
        sign = SIGNED_OPERAND if comparison.domain is Domain.SIGNED else 0
        return [
            *self._push(comparison.left),
            *self._push(comparison.right),
            Op(OpCode.COMPARE, reg=_COMPARE[comparison.operator] | sign),
        ]

    def _string_equality(self, comparison: Comparison) -> list[Op]:
        string, constant = comparison.left, comparison.right
        equal = comparison.operator is BinaryOperator.EQUAL
        if not (equal or comparison.operator is BinaryOperator.NOT_EQUAL):
            raise _NotInKernel
        if not isinstance(constant, Constant) or not isinstance(constant.value, bytes):
            raise _NotInKernel
        return self._text_test(string, None, constant.value, equal)

    def _text_test(
        self, operand: Typed, function: TextFunction | None, needle: bytes, positive: bool
    ) -> list[Op]:
        """Test a string's bytes; ``function`` None: whether they are the needle."""
        if not isinstance(operand, Operand) or operand.type.kind is Kind.INTERFACE:
            raise _NotInKernel
        if function not in _TESTS:
            raise _NotInKernel
        location = self._located(operand)
        # A string that fills its block may go on after it.
        wanted = len(needle) + (function is None)
        if location.bytes_block is None or not needle or len(needle) > CONSTANT_BYTES:
            raise _NotInKernel
        if function is not TextFunction.CONTAINS and wanted > location.bytes_limit:
            raise _NotInKernel
        block = location.bytes_block | self._other_phase(operand.path)
        number = self._constants.number(needle)
        test = Op(
            OpCode.STRING_TEST,
            reg=_TESTS[function],
            block=block,
            size=location.bytes_limit,
            limit=number,
        )
        return [test] if positive else [test, Op(OpCode.NOT)]

    def _nil_test(self, test: NilTest) -> list[Op]:
        if not isinstance(test.operand, Operand):
            raise _NotInKernel
        location = self._located(test.operand)
        if test.operand.type.kind is Kind.SLICE:
            # The location of a slice is that of its length.
            location = location._replace(offset=location.offset - _SLICE_LENGTH_AT)
        operator = BinaryOperator.EQUAL if test.equal else BinaryOperator.NOT_EQUAL
        return [
            self._push_field(test.operand.path, location),
            Op(OpCode.PUSH_CONST),
            Op(OpCode.COMPARE, reg=_COMPARE[operator]),
        ]

    def _push(self, value: Typed) -> list[Op]:
        if isinstance(value, Constant) and isinstance(value.value, int):
            word = value.value & 0xFFFF_FFFF_FFFF_FFFF
            return [Op(OpCode.PUSH_CONST, limit=word & 0xFFFF_FFFF, size=word >> 32)]
        if isinstance(value, SpecialOperand) and value.special is SpecialName.PANICKED:
            return [Op(OpCode.PUSH_CONST)]  # plans run for calls that return
        if isinstance(value, SpecialOperand) and value.special in _SPECIALS:
            return [Op(OpCode.PUSH_SPECIAL, reg=int(_SPECIALS[value.special]))]
        if isinstance(value, Arithmetic) and value.type.kind in INTEGERS:
            sign = SIGNED_OPERAND if value.type.kind in SIGNED else 0
            return [
                *self._push(value.left),
                *self._push(value.right),
                Op(
                    OpCode.ARITHMETIC,
                    reg=_ARITHMETIC[value.operator] | sign,
                    size=value.type.size,
                    limit=int(value.right.type.kind in SIGNED),
                ),
            ]
        if not isinstance(value, Operand):
            raise _NotInKernel
        return [self._push_field(value.path, self._located(value))]

    def _located(self, operand: Operand) -> FieldRef:
        location = self._locate(operand.path)
        if location is None or location.offset > _MAX_AT:
            raise _NotInKernel
        return location

    def _push_field(self, path: AccessPath, location: FieldRef) -> Op:
        reg = location.width | (SIGNED_OPERAND if location.signed else 0)
        block = location.block | self._other_phase(path)
        return Op(OpCode.PUSH_FIELD, reg=reg, block=block, at=location.offset)

    def _other_phase(self, path: AccessPath) -> int:
        return 0 if path.root.phase is self._phase else OTHER_PHASE
