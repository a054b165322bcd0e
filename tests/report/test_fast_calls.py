# SPDX-License-Identifier: Apache-2.0
"""Lines made of raw records at once, against those made by decoding them."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.abi.assign import IntReg, Piece
from gotrace.calls import StackFrame
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import CaptureLimits
from gotrace.capture.paths import PathMark, PathStep, place_path
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase, read_phase
from gotrace.gotypes.types import (
    ArrayType,
    BasicType,
    Field,
    GoType,
    InterfaceType,
    Kind,
    Lazy,
    MapType,
    PointerType,
    StructType,
    basic_type,
)
from gotrace.overhead import ProbeCost
from gotrace.report.calls import PLAIN as PLAIN_STYLE
from gotrace.report.calls import (
    Clock,
    Columns,
    LineStyle,
    TimeStyle,
    json_line,
    text_line,
)
from gotrace.report.fast_calls import Line, fast_json_line, fast_text_line, plain_phase
from gotrace.session.decode import DecodedCall, TracedFunction
from gotrace.session.events import HEADER, CallFlag, parse_call
from gotrace.values.model import Value
from tests.capture.reference import Machine, Memory, run_reference

SECOND = 1_000_000_000
#: 1700000000.25 s after 1970 is 5.25 s on the kernel's clock; the run began at 1 s.
CLOCK = Clock(TimeStyle.TIME_OF_DAY, start=SECOND, epoch=(5 - 1_700_000_000) * SECOND)
SINCE_START = Clock(TimeStyle.SINCE_START, start=SECOND, epoch=CLOCK.epoch)
ENDED = 5 * SECOND + 250_000_999


@pytest.fixture(autouse=True)
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


LIMITS = CaptureLimits(string_bytes=16)
PLAIN = [kind for kind in Kind if Kind.INT.value <= kind.value <= Kind.UINT64.value]


def plan(types: Sequence[GoType], limits: CaptureLimits = LIMITS) -> PhasePlan:
    factory = NodeFactory(limits)
    values, register = [], 0
    for index, go_type in enumerate(types):
        pieces = []
        for at in range(0, go_type.size, 8):
            pieces.append(Piece(at, min(8, go_type.size - at), IntReg(register)))
            register += 1
        values.append(PlacedNode(f"v{index}", factory.node(go_type), tuple(pieces)))
    return plan_phase(values, limits)


def payload(phase: PhasePlan, values: Sequence[object]) -> bytes:
    """Return what the kernel's interpreter sends when the registers hold these values.

    A value is a number, a string's bytes, or, by its type word, an interface.
    """
    words: list[int] = []
    memory: dict[int, bytes] = {}
    for (_, _, node), value in zip(phase.root, values, strict=True):
        if isinstance(value, bytes):
            address = 0xC000_0000 + 4096 * len(memory) if value else 0
            memory[address] = value
            words += [address, len(value)]
        elif isinstance(value, int):
            words += [value % (1 << 64), 0xC000][: node.size // 8 or 1]
    machine = Machine(Memory(memory), dict(enumerate(words)))
    sent = run_reference(phase.ops, machine).payload
    return sent + bytes(-len(sent) % 8)


COST = ProbeCost(own=600, hit=1000)


class Traced:
    """A function of given types, its records, and both ways to make lines of them."""

    def __init__(
        self,
        parameters: Sequence[GoType],
        results: Sequence[GoType] | None,
        clock: Clock = CLOCK,
        name: str = "main.f",
        style: LineStyle = PLAIN_STYLE,
    ) -> None:
        self.style = style
        self.entry = plan(parameters)
        self.back = None if results is None else plan(results)
        self.clock = clock
        names = [f"p{i}" for i in range(len(parameters))]
        unnamed = ["" for _ in results or ()]
        self.function = TracedFunction(name, tuple(names), tuple(unnamed), "/src/f.go", 3)

    def record(
        self, args: Sequence[object], results: Sequence[object] = (), /, **header: int
    ) -> bytes:
        sent = payload(self.entry, args)
        returned = payload(self.back, results) if self.back else b""
        fields = {
            "end": ENDED,
            "start": 0 if self.back is None else ENDED - 12_345,
            "goid": 18,
            "tgid": 1234,
            "tid": 1240,
            "function": 0,
            "args": len(sent),
            "results": len(returned),
            "flags": 0,
            "hits": 7,
            "hits_ns": 321,
        } | header
        return HEADER.pack(*fields.values()) + sent + returned

    def row(self, record: bytes) -> DecodedCall:
        call = parse_call(record)
        context = ReadContext()
        results: Sequence[Value] | None = None
        if self.back is not None and call.start_ns:
            results = read_phase(self.back, call.results, context)
        took = call.duration_ns
        return DecodedCall(
            self.function,
            call.end_ns,
            call.tgid,
            call.tid,
            call.goid,
            read_phase(self.entry, call.args, context),
            results,
            took,
            None if call.stack is None else [StackFrame(hex(pc)) for pc in call.stack],
            probe_hits=None if took is None else call.hits,
            probe_ns=None if took is None else COST.within(took, 1, call.hits, call.hits_ns),
        )

    def slow_json(self, record: bytes) -> str:
        return json_line(self.row(record), self.clock)

    def slow_text(self, record: bytes) -> str:
        return text_line(self.row(record), self.clock, self.style)

    def fast(self, make: Callable[..., Line], slow: Line, addresses: bool = False) -> Line:
        entry = plain_phase(self.entry, addresses)
        back = None if self.back is None else plain_phase(self.back, addresses)
        assert entry is not None
        assert (back is None) is (self.back is None)
        return make(self.function, entry, back, HEADER, self.clock, slow)

    def fast_json(self, slow: Line | None = None) -> Line:
        make = functools.partial(fast_json_line, cost=COST)
        return self.fast(make, slow or self.slow_json)

    def fast_text(self, slow: Line | None = None) -> Line:
        make = functools.partial(fast_text_line, style=self.style)
        return self.fast(make, slow or self.slow_text, addresses=True)


def refuse(record: bytes) -> str:
    raise AssertionError("the slow way was taken")


INT, BOOL, STRING = (basic_type(kind) for kind in (Kind.INT, Kind.BOOL, Kind.STRING))
COLOR = BasicType("image/color.C0[%d]", Kind.UINT8, 1, 1)
NAME = BasicType("main.Name", Kind.STRING, 16, 8)
ERROR = InterfaceType("error", Kind.INTERFACE, 16, 8, is_empty=False)


def test_a_plain_call_is_made_into_lines_without_decoding_it() -> None:
    types = [STRING, basic_type(Kind.INT8), STRING, BOOL]
    traced = Traced(types, [BOOL, STRING], name="main.f%d[{}]")
    record = traced.record((b"a", -5, b"0123456789abcdef", False), (True, b""))
    assert traced.fast_json(refuse)(record) == (
        '{"kind":"call","ts_ns":1700000000250000999,"pid":1234,"tid":1240,"goid":18,'
        '"func":"main.f%d[{}]","args":{"p0":"a","p1":-5,"p2":"0123456789abcdef","p3":false},'
        '"results":{"$ret1":true,"$ret2":""},"duration_ns":12345,"file":"/src/f.go","line":3,'
        '"probe_hits":7,"probe_ns":7921}\n'
    )
    assert traced.fast_text(refuse)(record) == (
        "03:43:20.250000 1234     1240     18         12.35us   "
        'main.f%d[...](p0="a", p1=-5, p2="0123456789abcdef", p3=false) = (true, "") at f.go:3\n'
    )


def test_values_of_declared_types_are_plain() -> None:
    traced = Traced([COLOR, NAME], [BasicType("main.Flag", Kind.BOOL, 1, 1)])
    record = traced.record((200, b"a"), (True,))
    assert '"args":{"p0":200,"p1":"a"},"results":{"$ret":true}' in traced.fast_json(refuse)(record)
    shown = 'main.f(p0=color.C0[%d](200), p1=main.Name("a")) = main.Flag(true) at'
    assert shown in traced.fast_text(refuse)(record)


def test_a_nil_error_is_plain_and_another_is_not() -> None:
    traced = Traced([STRING, ERROR], [STRING, ERROR, STRING])
    record = traced.record((b"a", 0), (b"b", 0, b"c"))
    assert '"results":{"$ret1":"b","$ret2":null,"$ret3":"c"}' in traced.fast_json(refuse)(record)
    assert ' main.f(p0="a", p1=nil) = ("b", nil, "c") at ' in traced.fast_text(refuse)(record)
    for values in (((b"a", 0), (b"b", 1, b"c")), ((b"a", 1), (b"b", 0, b"c"))):
        record = traced.record(*values)
        assert traced.fast_json(lambda record: "slow")(record) == "slow"
        assert traced.fast_text(lambda record: "slow")(record) == "slow"


def test_a_plain_entry_is_made_into_lines_without_decoding_it() -> None:
    traced = Traced([INT], None)
    record = traced.record((7,))
    assert traced.fast_json(refuse)(record).endswith(
        '"args":{"p0":7},"results":null,"duration_ns":null,"file":"/src/f.go","line":3,'
        '"probe_hits":null,"probe_ns":null}\n'
    )
    assert traced.fast_text(refuse)(record).endswith(
        " 18         -         main.f(p0=7) at f.go:3\n"
    )


def test_a_program_is_named_in_both_ways() -> None:
    traced = Traced([INT], [INT])
    traced.function = replace(traced.function, program="shop%d")
    record = traced.record((7,), (8,))
    line = traced.fast_json(refuse)(record)
    assert line == traced.slow_json(record)
    assert line.endswith(',"program":"shop%d"}\n')
    line = traced.fast_text(refuse)(record)
    assert line == traced.slow_text(record)
    assert " shop%d:main.f(p0=7) = 8 at " in line


TARGET = StructType("main.Store", Kind.STRUCT, 8, 8, fields=(Field("n", 0, INT),))
RECEIVER = PointerType("*main.Store", Kind.POINTER, 8, 8, Lazy.of(TARGET))


def test_a_pointer_that_is_not_followed_is_plain_in_text_unless_it_is_nil() -> None:
    shallow = CaptureLimits(string_bytes=16, depth=0)
    traced = Traced([INT], [INT])
    traced.entry = plan([RECEIVER, STRING, RECEIVER], shallow)
    traced.function = TracedFunction("main.(*Store).Get", ("s", "key", "other"), ("",))
    record = traced.record((0xC000_1234, b"a", 0x7F00_0000_1000), (1,))
    line = traced.fast_text(refuse)(record)
    assert line == traced.slow_text(record)
    shown = 's=(*main.Store)(0xc0001234), key="a", other=(*main.Store)(0x7f0000001000)) = 1\n'
    assert line.endswith(shown)
    record = traced.record((0xC000_1234, b"a", 0), (1,))
    assert traced.fast_text(lambda record: "slow")(record) == "slow"
    assert "other=nil)" in traced.slow_text(record)
    assert plain_phase(traced.entry) is None
    assert plain_phase(plan([RECEIVER]), addresses=True) is None


def test_a_line_that_is_too_long_is_cut_by_the_slow_way() -> None:
    types = [INT, STRING, STRING]
    record = Traced(types, []).record((1, b"a" * 16, b"b" * 16))
    length = len(Traced(types, []).fast_text(refuse)(record)) - 1
    assert Traced(types, [], style=LineStyle(length)).fast_text(refuse)(record)
    few = Traced(types, [], style=LineStyle(columns=Columns(pid=False, tid=False)))
    assert few.fast_text(refuse)(record) == few.slow_text(record)
    shorter = Traced(types, [], style=LineStyle(length - 1))
    assert shorter.fast_text(lambda record: "slow")(record) == "slow"
    cut = shorter.slow_text(record)
    assert len(cut) - 1 <= length - 1
    assert "p0=1, " in cut
    assert "..." in cut


def integers(go_type: GoType) -> st.SearchStrategy[int]:
    bits = go_type.size * 8
    if go_type.name.startswith("u"):
        return st.integers(0, (1 << bits) - 1)
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


STYLES = st.builds(LineStyle, st.none() | st.integers(80, 200), st.booleans(), st.booleans())
TEXT = st.text(max_size=20).map(lambda text: text.encode(errors="replace"))
VALUES: list[tuple[GoType, st.SearchStrategy[object]]] = [
    (BOOL, st.booleans()),
    (STRING, TEXT | st.binary(max_size=20)),
    (ERROR, st.sampled_from([0, 0, 0, 1 << 40])),
    (COLOR, st.integers(0, 255)),
    (NAME, TEXT),
    *((number, integers(number)) for number in map(basic_type, PLAIN)),
]


@st.composite
def calls(
    draw: st.DrawFn, choices: list[tuple[GoType, st.SearchStrategy[object]]] = VALUES
) -> tuple[Traced, bytes]:
    some = st.lists(st.sampled_from(choices), max_size=5)
    clock = draw(st.sampled_from([CLOCK, SINCE_START]))
    parameters, results = draw(some), draw(st.none() | some)
    traced = Traced(
        [go_type for go_type, _ in parameters],
        None if results is None else [go_type for go_type, _ in results],
        clock,
        draw(st.text(max_size=5) | st.just("a.b/c/main.f")),
        draw(STYLES),
    )
    args = [draw(values) for _, values in parameters]
    returned = [draw(values) for _, values in results or ()]
    header = {
        "end": draw(st.integers(SECOND, 1 << 50)),
        "goid": draw(st.integers(0, (1 << 64) - 1)),
        "tid": draw(st.integers(0, (1 << 32) - 1)),
    }
    if results is not None:
        header["start"] = header["end"] - draw(st.integers(0, SECOND - 1))
    return traced, traced.record(args, returned, **header)


@given(calls(), st.integers(0, 9))
def test_both_ways_make_the_same_bytes(call: tuple[Traced, bytes], padding: int) -> None:
    traced, record = call
    record += bytes(padding)
    assert traced.fast_json()(record) == traced.slow_json(record)
    assert traced.fast_text()(record) == traced.slow_text(record)


ORDINARY: list[tuple[GoType, st.SearchStrategy[object]]] = [
    (STRING, st.text("abc ", max_size=LIMITS.string_bytes).map(str.encode)),
    (ERROR, st.just(0)),
    *(choice for choice in VALUES if choice[0] not in (STRING, NAME, ERROR)),
]


@given(calls(ORDINARY))
def test_the_slow_way_is_not_taken_for_ordinary_calls(call: tuple[Traced, bytes]) -> None:
    traced, record = call
    traced.style = dataclasses.replace(traced.style, width=None)
    assert traced.fast_json(refuse)(record) == traced.slow_json(record)
    assert traced.fast_text(refuse)(record) == traced.slow_text(record)


@given(calls(), st.integers(48, 400), st.integers(0, 255))
def test_damaged_payloads_make_the_same_bytes_as_well(
    call: tuple[Traced, bytes], at: int, byte: int
) -> None:
    traced, record = call
    damaged = record[:at] + bytes([byte]) + record[at + 1 :]
    assert traced.fast_json()(damaged) == traced.slow_json(damaged)
    assert traced.fast_text()(damaged) == traced.slow_text(damaged)


@pytest.mark.parametrize(
    ("types", "args", "header"),
    [
        ([STRING, INT], (b"0123456789abcdef+", 1), {}),
        ([STRING, INT], (b"\xff", 1), {}),
        ([STRING, INT], (b"x", 1), {"flags": CallFlag.UNDECIDED}),
        ([STRING, INT], (b"x", 1), {"start": 0}),
        ([STRING, INT], (b"x", 1), {"args": 16}),
        ([STRING, INT], (b"x", 1), {"args": 24}),
        ([STRING, INT], (b"x", 1), {"args": 32}),
        ([STRING, INT], (b"x", 1), {"results": 99}),
        ([STRING, INT], (b"x", 1), {"results": 7}),
        ([INT], (1,), {"args": 0}),
        ([INT], (1,), {"results": 7}),
        ([ERROR], (0,), {"args": 16}),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_slow_way(
    types: list[GoType], args: tuple[object, ...], header: dict[str, int]
) -> None:
    traced = Traced(types, [INT])
    record = traced.record(args, (2,), **header)
    assert traced.fast_json(lambda record: "slow")(record) == "slow"
    assert traced.fast_text(lambda record: "slow")(record) == "slow"


def test_text_with_escapes_is_quoted_by_the_slow_way_and_json_by_the_fast() -> None:
    traced = Traced([STRING], [])
    for text in ('"', "\\", "\n", "é", "\u202e"):
        record = traced.record((text.encode(),))
        assert traced.fast_text(lambda record: "slow")(record) == "slow"
        assert json.loads(traced.fast_json(refuse)(record))["args"] == {"p0": text}


@pytest.mark.parametrize(
    "other",
    [
        basic_type(Kind.UINTPTR),
        basic_type(Kind.UNSAFE_POINTER),
        basic_type(Kind.FLOAT64),
        BasicType("main.Address", Kind.UINTPTR, 8, 8),
        BasicType("main.Ratio", Kind.FLOAT64, 8, 8),
        BasicType("time.Duration", Kind.INT64, 8, 8),
    ],
    ids=lambda other: other.name,
)
def test_functions_with_other_values_have_no_fast_way(other: GoType) -> None:
    assert plain_phase(plan([INT, STRING])) is not None
    assert plain_phase(plan([INT, other])) is None


@pytest.mark.parametrize("go_type", [INT, STRING, ERROR], ids=lambda go_type: go_type.name)
def test_values_without_a_place_have_no_fast_way(go_type: GoType) -> None:
    lost = PlacedNode("x", NodeFactory(LIMITS).node(go_type), None, "optimised away")
    assert plain_phase(plan_phase([lost], LIMITS)) is None


def test_what_paths_lead_to_is_plain_unless_it_is_behind_a_pointer_or_nowhere() -> None:
    pair = StructType(
        "main.Pair", Kind.STRUCT, 24, 8, fields=(Field("n", 0, INT), Field("s", 8, STRING))
    )
    pointer = PointerType("*main.Pair", Kind.POINTER, 8, 8, Lazy.of(pair))
    array = ArrayType("[3]int", Kind.ARRAY, 24, 8, INT, 3)
    header = StructType("runtime.hmap", Kind.STRUCT, 8, 8, fields=(Field("count", 0, INT),))
    counts = MapType("map[int]int", Kind.MAP, 8, 8, Lazy.of(INT), Lazy.of(INT), Lazy.of(header))
    deref = PathMark.DEREF
    cases: list[tuple[GoType, list[PathStep], bool]] = [
        (pair, ["s"], True),
        (pointer, [deref, "n"], False),
        (pointer, [deref, "s"], False),
        (counts, [PathMark.LEN], False),
        (array, [PathMark.LEN], False),
    ]
    for root, steps, plain in cases:
        pieces = tuple(Piece(at, 8, IntReg(at // 8)) for at in range(0, root.size, 8))
        placed = place_path(NodeFactory(LIMITS), "path", root, pieces, steps)
        assert (plain_phase(plan_phase([placed], LIMITS)) is not None) is plain


def test_strings_whose_bytes_are_refused_have_no_fast_way() -> None:
    assert plain_phase(plan([STRING, STRING], CaptureLimits(ops=7))) is not None
    assert plain_phase(plan([STRING, STRING], CaptureLimits(ops=6))) is None


def test_limits_beyond_the_usual_change_nothing_for_values_that_are_plain() -> None:
    more = CaptureLimits(string_bytes=1000, depth=3, slice_elements=20)
    error = InterfaceType("error", Kind.INTERFACE, 16, 8, False)
    for types in ([basic_type(Kind.STRING)], [basic_type(Kind.INT), error]):
        assert plain_phase(plan(types, more)) == plain_phase(plan(types, CaptureLimits()))
