# SPDX-License-Identifier: Apache-2.0
"""Predicates in the kernel: that their operations mean what they mean in user space.

Calls are laid out in memory as Go has them, captured by real plans and run by the interpreter's
reference, which is what the kernel does.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import CaptureLimits, FieldRef, OpCode
from gotrace.capture.paths import place_path
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, plan_phase, read_phase
from gotrace.gotypes.types import Parameter, Signature
from gotrace.probes.evaluate import decide
from gotrace.probes.predicate import (
    CompiledPredicate,
    StringConstants,
    compile_predicate,
    predicate_ops,
)
from gotrace.probes.scope import Phase, RootKind, Scope
from gotrace.probes.typed import AccessPath, Typed, operands
from gotrace.values.model import Value
from tests.capture.reference import Machine, Memory, Outcome, run_reference
from tests.probes.go_types import SPECIALS, basic, pointer_to, predicate, slice_of, struct_of

LIMITS = CaptureLimits(string_bytes=32, ops=400)
#: All of any string here, more than the kernel searches.
WHOLE = CaptureLimits(string_bytes=2048, payload=1 << 15, ops=400)
# Predicates in the kernel, over calls as they lie in memory.

BASE = struct_of("main.Base", ("ID", basic("int64")), ("label", basic("string")))
NODE = struct_of(
    "main.Node",
    ("Name", basic("string")),
    ("Base", pointer_to(BASE)),
    ("Small", basic("int8")),
    ("Flags", basic("uint16")),
    embedded=("Base",),
)
PARAMETERS = (
    Parameter("r", pointer_to(NODE)),
    Parameter("n", basic("int")),
    Parameter("u", basic("uint64")),
    Parameter("i8", basic("int8")),
    Parameter("u32", basic("uint32")),
    Parameter("ok", basic("bool")),
    Parameter("key", basic("string")),
    Parameter("other", basic("string")),
    Parameter("b", slice_of(basic("uint8"))),
    Parameter("ids", slice_of(basic("int32"))),
    Parameter("f", basic("float64")),
    Parameter("p", pointer_to(basic("int"))),
)
RESULTS = (Parameter("out", basic("int")), Parameter("name", basic("string")))
CALL = Scope("main.f", Signature("main.f", PARAMETERS, RESULTS))

STACK = 0x7000_0000
INTEGERS = [0, 1, 3, -1, 127, -128, 255, 300, 1 << 31, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1]
STRINGS = [b"", b"a", b"user", b"user:42", b"user:43", b"\0\xff", b"x" * 31, b"x" * 32, b"x" * 33]
STRINGS += [b"x" * 40 + b"user", b"x" * 127, b"x" * 128, b"x" * 129, b"ab" * 70]
STRINGS += [b"USER:42", "user\u212a".encode() * 9, b"X" * 2500, b"x" * 2500]
STRINGS += [b"x" * 511 + b"user", b"x" * 512 + b"user", b"x" * 600, b"x" * 900 + b"user:42"]
NIL, WILD = 0, 0xDEAD_0000  # no memory is there


@dataclasses.dataclass(frozen=True)
class LaidOut:
    """A call's memory; parameters and results lie at ``offsets`` from the stack pointer."""

    memory: Memory
    offsets: Mapping[str, int]


class Writer:
    """Write values as Go has them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ranges: dict[int, bytes] = {}
        self._next = 0xC000_0000

    def put(self, data: bytes) -> int:
        address, self._next = self._next, self._next + len(data) + 64
        self.ranges[address] = data
        return address

    def pointer(self, address: int) -> bytes:
        return struct.pack("<Q", self.random.choice([address, address, address, NIL, WILD]))

    def string(self) -> bytes:
        content = self.random.choice(STRINGS)
        address = self.put(content) if content else self.random.choice([NIL, 0xC000])
        if content and self.random.random() < 0.1:
            address = WILD
        return struct.pack("<QQ", address, len(content))

    def integer(self, size: int) -> bytes:
        return (self.random.choice(INTEGERS) & (1 << 8 * size) - 1).to_bytes(size, "little")

    def node(self) -> bytes:
        base = self.pointer(self.put(self.integer(8) + self.string()))
        node = self.string() + base + self.integer(1) + b"\0" + self.integer(2)
        return self.pointer(self.put(node.ljust(NODE.size, b"\0")))

    def slice(self, elem: int) -> bytes:
        count = self.random.choice([0, 0, 1, 2, 40])
        content = b"".join(self.integer(elem) for _ in range(count))
        if elem == 1:
            content = self.random.choice(STRINGS)
            count = len(content)
        address = self.put(content) if content else self.random.choice([NIL, 0xC000])
        return struct.pack("<QQQ", address, count, count if address else 0)

    def value(self, name: str) -> bytes:
        sizes = {"n": 8, "u": 8, "i8": 1, "u32": 4, "out": 8}
        if name in sizes:
            return self.integer(sizes[name])
        if name == "ok":
            return self.random.choice([b"\0", b"\1"])
        if name == "f":
            return struct.pack("<d", self.random.choice([0.0, 1.5, -2.5, float("nan")]))
        if name == "p":
            return self.pointer(self.put(self.integer(8)))
        if name in ("b", "ids"):
            return self.slice(1 if name == "b" else 4)
        return self.node() if name == "r" else self.string()


def lay_out(seed: int) -> LaidOut:
    writer = Writer(seed)
    stack, offsets = bytearray(8), {}
    for parameter in (*PARAMETERS, *RESULTS):
        offsets[parameter.name] = len(stack)
        stack += writer.value(parameter.name)
        stack += bytes(-len(stack) % 8)
    writer.ranges[STACK] = bytes(stack)
    return LaidOut(Memory(writer.ranges), offsets)


class Captured:
    """The plans of both phases for a predicate's operands, and their compiled predicate."""

    def __init__(
        self,
        typed: Typed,
        offsets: Mapping[str, int],
        limits: CaptureLimits = LIMITS,
        room: int = 200,
    ) -> None:
        self._limits = limits
        factory = NodeFactory(limits)
        self.paths: dict[Phase, list[AccessPath]] = {Phase.ENTRY: [], Phase.RETURN: []}
        placed: dict[Phase, list[object]] = {Phase.ENTRY: [], Phase.RETURN: []}
        self.plans: dict[Phase, PhasePlan] = {}
        for operand in operands(typed):
            path = operand.path
            group = PARAMETERS if path.root.kind is RootKind.PARAMETER else RESULTS
            of = group[path.root.index].type
            place = Piece(0, of.size, Stack(offsets[path.root.name]))
            self.paths[path.root.phase].append(path)
            placed[path.root.phase].append(
                place_path(factory, path.root.name, of, (place,), path.steps)
            )
        for phase, values in placed.items():
            self.plans[phase] = plan_phase(values, limits)  # type: ignore[arg-type]
        self.constants = StringConstants()
        self.compiled: CompiledPredicate = compile_predicate(
            typed,
            self.locate,
            self.constants,
            entry_room=room,
            result_room=room,
        )

    def locate(self, path: AccessPath) -> FieldRef | None:
        phase = path.root.phase
        return self.plans[phase].location(self.paths[phase].index(path))

    def run(self, call: LaidOut) -> tuple[bool | None, dict[AccessPath, Value]]:
        """Return what the kernel decides, and the values that user space then has."""
        strings = [p[8 : 8 + int.from_bytes(p[:8], "little")] for p in self.constants.packed()]
        specials = (7, 100, 101, 12_000_000)
        machine = Machine(call.memory, stack_pointer=STACK, specials=specials, constants=strings)
        kept: bool | None = True
        values: dict[AccessPath, Value] = {}
        entry: Outcome | None = None
        ops = {Phase.ENTRY: self.compiled.entry, Phase.RETURN: self.compiled.result}
        for phase, plan in self.plans.items():
            machine = dataclasses.replace(machine, entry=entry)
            outcome = run_reference(
                plan.with_predicate(ops[phase]).ops,
                machine,
                payload=self._limits.payload,
                steps=2000,
            )
            if outcome.kept is False:
                return False, {}
            kept = kept and outcome.kept
            entry = outcome
            captured = read_phase(plan, outcome.payload, ReadContext())
            values.update(zip(self.paths[phase], captured, strict=True))
        return kept, values


def everything(
    typed: Typed, call: LaidOut, limits: CaptureLimits = LIMITS
) -> dict[AccessPath, Value]:
    """Capture a call's values without any predicate in the kernel."""
    captured = Captured(typed, call.offsets, limits, room=0)
    assert captured.compiled.entry == captured.compiled.result == ()
    return captured.run(call)[1]


NUMBERS = ["n", "i8", "u32", "r.Small", "r.Flags", "r.ID", "*p", "ids[0]", "ids[1]", "out"]
NUMBERS += ["len(key)", "len(b)", "cap(ids)", "len(r.Name)", "len(name)", "$goid", "b[1]", "key[0]"]
CONSTANTS = ["0", "1", "3", "-1", "127", "-128", "4", "7", "'u'", "255"]
TEXTS = ["key", "other", "r.Name", "r.Base.label", "name"]
LOWERED = [f"lower({text})" for text in TEXTS]
NEEDLES = ['"a"', '"user"', '"user:42"', '"\\x00\\xff"', '""', '"' + "x" * 32 + '"', '"ser:"']
NEEDLES += ['"' + "x" * 31 + '"', '"' + "ab" * 40 + '"']
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]

#: Numbers by their types, which those that arithmetic joins have in common.
ALIKE = [["n", "*p", "out", "len(key)", "$goid"], ["i8", "r.Small"], ["ids[0]", "ids[1]"], ["u32"]]
_operators = st.sampled_from(["+", "-", "*", "/", "%", "&", "|", "^", "&^"])
_shifts = st.sampled_from(["<<", ">>"])
_computed = st.sampled_from(ALIKE).flatmap(
    lambda names: st.recursive(
        st.sampled_from([*names, *names, "1", "3", "7", "100"]),
        lambda inner: (
            st.builds(lambda a, op, b: f"({a} {op} {b})", inner, _operators, inner)
            | st.builds(
                lambda a, op, b: f"({a} {op} {b})", inner, _shifts, st.sampled_from([*NUMBERS, "2"])
            )
            | st.builds(lambda sign, a: f"{sign}({a})", st.sampled_from("-^+"), inner)
        ),
        max_leaves=4,
    )
)
_number = st.builds(
    lambda left, op, right: f"{left} {op} {right}",
    st.sampled_from(NUMBERS) | _computed,
    st.sampled_from(COMPARISONS),
    st.sampled_from([*NUMBERS, *CONSTANTS]),
)
_text = st.builds(
    lambda left, op, right: f"{left} {op} {right}",
    st.sampled_from([*TEXTS, *LOWERED]),
    st.sampled_from(COMPARISONS),
    st.sampled_from([*NEEDLES, *TEXTS, *LOWERED]),
)
_test = st.builds(
    lambda function, operand, needle: f"{function}({operand}, {needle})",
    st.sampled_from(["prefix", "contains", "suffix"]),
    st.sampled_from([*TEXTS, *LOWERED, "b"]),
    st.sampled_from(NEEDLES),
)
_nil = st.builds(
    lambda operand, op: f"{operand} {op} nil",
    st.sampled_from(["r", "p", "b", "ids", "r.Base"]),
    st.sampled_from(["==", "!="]),
)
OTHERS = ["ok", "ok == true", "u > 0x7fffffffffffffff", "u == 0xffffffffffffffff", "u < 300"]
OTHERS += ["f > 1", "f == f", "$duration > 10ms", "$duration < 1us", "$tid == 101"]
OTHERS += ['$comm == "server"']
_other = st.sampled_from(OTHERS)
_atoms = _number | _text | _test | _nil | _other
_expressions = st.recursive(
    _atoms,
    lambda inner: (
        st.builds(lambda a: f"!({a})", inner)
        | st.builds(
            lambda a, op, b: f"({a}) {op} ({b})", inner, st.sampled_from(["&&", "||"]), inner
        )
    ),
    max_leaves=6,
)


def valid(expression: str) -> Typed | None:
    try:
        return predicate(expression, CALL)
    except Exception as error:
        # Constants that do not fit are refused, such as 300 for an int8.
        # So are operations that Go refuses as well, of constants alone.
        known = (
            "does not fit",
            "division by zero",
            "a shift count",
            "compared with",
            "too large",
            "shifted by a constant",
        )
        assert any(words in str(error) for words in known), error
        return None


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(_expressions, st.integers(0, 1 << 32))
def test_kernel_and_user_space_agree(expression: str, seed: int) -> None:
    typed = valid(expression)
    if typed is None:
        return
    for part in range(4):
        call = lay_out(seed + part)
        truth = decide(typed, everything(typed, call, WHOLE), SPECIALS)
        for limits in (LIMITS, WHOLE):
            expected = decide(typed, everything(typed, call, limits), SPECIALS)
            assert expected in (truth, None)  # undecided where bytes are missing, but never wrong
            captured = Captured(typed, call.offsets, limits)
            kept, values = captured.run(call)
            if kept is None:
                kept = decide(typed, values, SPECIALS)
            elif kept and captured.compiled.rest is not None:
                kept = decide(captured.compiled.rest, values, SPECIALS)
            assert kept is expected, (expression, everything(typed, call, limits))


def somewhere(path: AccessPath) -> FieldRef:
    return FieldRef(1, 8, 8, True, 2, 256)


@pytest.mark.parametrize(
    "expression",
    [
        "n > 3",
        "!(n > 3) || ok && !ok",
        'r.Method == "POST" && prefix(r.URL.Path, "/api")',
        'r.Method == "GET" || contains(key, "x")',
        '!(key == "a")',
        'key != ""',
        "p == nil || *p > 3",
        "b != nil",
        "len(r.Header) > 3",
        "$goid == 7 && $pid != 100 && $tid > 1",
        "$duration > 10ms && $ret == 3",
        "u == 0xffffffffffffffff",
        "3 < 4",
        'prefix(key, "' + "x" * 64 + '")',
    ],
)
def test_the_kernel_decides_scalars_and_strings(expression: str) -> None:
    typed = predicate(expression)
    constants = StringConstants()
    ops = predicate_ops(typed, somewhere, constants, room=40)
    assert ops is not None
    assert ops[-1].code is OpCode.KEEP_IF
    compiled = compile_predicate(typed, somewhere, constants, entry_room=40, result_room=40)
    assert compiled.rest is None


@pytest.mark.parametrize(
    "expression",
    [
        "f > 1.5",
        '$comm == "x"',
        'key < "x"',
        "key == kind",
        'contains(err, "x")',
        'prefix(key, "' + "x" * 65 + '")',
        'key == "' + "x" * 65 + '"',
        'contains(key, "")',
    ],
)
def test_user_space_decides_the_others(expression: str) -> None:
    typed = predicate(expression)
    assert predicate_ops(typed, somewhere, StringConstants(), room=40) is None
    compiled = compile_predicate(
        predicate(f"n > 3 && ({expression}) && $ret == 1"),
        somewhere,
        StringConstants(),
        entry_room=40,
        result_room=40,
    )
    assert compiled.rest == typed
    assert [op.code for op in compiled.entry].count(OpCode.KEEP_IF) == 1
    assert [op.code for op in compiled.result].count(OpCode.KEEP_IF) == 1


def test_a_part_is_decided_as_early_as_possible() -> None:
    compiled = compile_predicate(
        predicate('key == "a" && $ret > n && i8 < 0'),
        somewhere,
        StringConstants(),
        entry_room=40,
        result_room=40,
    )
    assert [op.code for op in compiled.entry].count(OpCode.KEEP_IF) == 2
    pushes = [op.block for op in compiled.result if op.code is OpCode.PUSH_FIELD]
    assert pushes == [1, 0x8001]  # the parameter's block is one of the entry


@pytest.mark.parametrize(
    ("text_bytes", "expression", "possible"),
    [
        (5, 'key == "user"', True),
        (4, 'key == "user"', False),  # cut to the constant's length, it may go on
        (4, 'prefix(key, "user")', True),
        (3, 'prefix(key, "user")', False),
        (3, 'contains(key, "us")', True),
    ],
)
def test_strings_are_compared_in_what_is_captured(
    text_bytes: int, expression: str, possible: bool
) -> None:
    ops = predicate_ops(
        predicate(expression),
        lambda path: somewhere(path)._replace(bytes_limit=text_bytes),
        StringConstants(),
        room=40,
    )
    assert (ops is not None) is possible


def test_what_does_not_fit_is_left_to_user_space() -> None:
    expression = " && ".join(["n > 3"] * 10)
    compiled = compile_predicate(
        predicate(expression),
        somewhere,
        StringConstants(),
        entry_room=9,
        result_room=40,
    )
    assert len(compiled.entry) == 8
    assert compiled.rest == predicate(" && ".join(["n > 3"] * 8))
    deep = "n > 3"
    for _ in range(20):
        deep = f"n > 3 || ({deep})"
    assert predicate_ops(predicate(deep), somewhere, StringConstants(), room=200) is None
    flat = " || ".join(["n > 3"] * 20)
    assert predicate_ops(predicate(flat), somewhere, StringConstants(), room=200)


def test_a_value_without_a_place_is_left_to_user_space() -> None:
    compiled = compile_predicate(
        predicate("n > 3 && u > 3"),
        lambda path: None if path.root.name == "u" else somewhere(path),
        StringConstants(),
        entry_room=40,
        result_room=40,
    )
    assert compiled.rest == predicate("u > 3")
    assert len(compiled.entry) == 4


def test_constants_are_numbered_once() -> None:
    constants = StringConstants()
    for expression in ('key == "a" || key == "b"', 'prefix(key, "a")'):
        predicate_ops(predicate(expression), somewhere, constants, room=40)
    assert [packed[:10] for packed in constants.packed()] == [
        b"\1\0\0\0\0\0\0\0a\0",
        b"\1\0\0\0\0\0\0\0b\0",
    ]
    assert {len(packed) for packed in constants.packed()} == {136}
