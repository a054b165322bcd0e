# SPDX-License-Identifier: Apache-2.0
"""Capture a running Go program's values and compare with how that program itself prints them.

The plans are run by the reference interpreter over the memory of the process.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import CaptureLimits, Op
from gotrace.capture.paths import PathMark, PathStep, place_path
from gotrace.capture.payload import ReadContext, Subplan
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase, read_phase
from gotrace.elf.dwarf.reader import DwarfReader
from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from gotrace.gotypes.from_dwarf import DwarfTypes
from gotrace.gotypes.from_rtype import Rtypes
from gotrace.gotypes.rtype_table import RtypeError
from gotrace.gotypes.types import Field, StructType
from gotrace.values.go_syntax import go_syntax
from gotrace.values.model import (
    MapValue,
    PointerValue,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)
from gotrace.values.to_json import to_json
from tests.capture.memory import ProcessMemory
from tests.capture.reference import Machine, Outcome, run_reference
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest


class Program(ReadContext, Mapping[int, "tuple[Op, ...]"]):
    """Know a running program: what the interpreter is given, and what decoding asks."""

    def __init__(self, image: ElfImage, memory: ProcessMemory, limits: CaptureLimits) -> None:
        self.table: FunctionTable = load_functions(image)
        version = self.table.go_version
        assert version is not None
        self.memory = memory
        self.factory = NodeFactory(limits, (version.major, version.minor))
        descriptors = Rtypes.open(image, version, self.table.module)
        assert descriptors is not None
        self.descriptors = descriptors
        self._subplans: dict[int, Subplan | None] = {}

    def subplan(self, word: int) -> Subplan | None:
        if word not in self._subplans:
            address = self._descriptor(word)
            self._subplans[word] = (
                self.factory.subplan_for(self.descriptors.type_at(address)) if address else None
            )
        return self._subplans[word]

    def _descriptor(self, word: int) -> int | None:
        """Return the descriptor that a type word is, or that an itab names in its second word."""
        found = self.descriptors.type_of_itab(word)
        if found is not None:
            return found
        try:
            self.descriptors.type_at(word)
        except RtypeError:
            # An itab that the runtime made.
            second = self.memory.read(word + 8, 8)
            return struct.unpack("<Q", second)[0] if second else None
        return word

    def function_name(self, pc: int) -> str | None:
        function = self.table.find(pc)
        return function.name if function else None

    def __getitem__(self, word: int) -> tuple[Op, ...]:
        subplan = self.subplan(word)
        if subplan is None:
            raise KeyError(word)
        return subplan.ops

    def __iter__(self) -> Iterator[int]:
        return iter(self._subplans)

    def __len__(self) -> int:
        return len(self._subplans)


class Fixture:
    """The running fixture: its program, its values' type and address, and its own words."""

    def __init__(self, path: Path, process: subprocess.Popen[str], limits: CaptureLimits) -> None:
        assert process.stdout is not None
        self.address = int(process.stdout.readline(), 16)
        self.expected: dict[str, str] = {}
        for line in iter(process.stdout.readline, "ready\n"):
            name, _, text = line.rstrip("\n").partition("\t")
            self.expected[name] = text
        self.memory = ProcessMemory(process.pid)
        image = ElfImage.open(path)
        self.program = Program(image, self.memory, limits)
        self.limits = limits
        self.type = self._type(image)

    def _type(self, image: ElfImage) -> StructType:
        """Return the type of the fixture's variable: from DWARF, else from its descriptor."""
        reader = DwarfReader.open(image)
        if reader is not None:
            found = DwarfTypes(reader).named("main.values")
        else:
            address = self.program.descriptors.basic("main.values")
            assert address is not None
            found = self.program.descriptors.type_at(address)
        assert isinstance(found, StructType)
        return found

    def capture(self, placed: PlacedNode) -> tuple[Value, PhasePlan, Outcome]:
        plan = plan_phase([placed], self.limits)
        machine = Machine(self.memory, stack_pointer=self.address, subplans=self.program)
        outcome = run_reference(plan.ops, machine, payload=plan.payload_bound)
        (value,) = read_phase(plan, outcome.payload, self.program)
        return value, plan, outcome

    def value(self, field: Field) -> Value:
        node = self.program.factory.node(field.type)
        pieces = (Piece(0, field.type.size, Stack(field.offset)),) if field.type.size else ()
        return self.capture(PlacedNode(field.name, node, pieces))[0]

    def path(self, *steps: PathStep) -> Value:
        pieces = (Piece(0, self.type.size, Stack(0)),)
        placed = place_path(self.program.factory, "path", self.type, pieces, steps)
        value, plan, outcome = self.capture(placed)
        assert len(plan.ops) < 12, "a path captures more than it needs"
        location = plan.location(0)
        if location is not None and isinstance(value, int):
            # What a predicate in the kernel sees is what is shown.
            block = outcome.blocks.get(location.block, b"")
            seen = block[location.offset : location.offset + location.width]
            assert int.from_bytes(seen, "little", signed=location.signed) == value
        return value


@contextmanager
def running(
    toolchain: Toolchain, mode: str = "default", limits: CaptureLimits | None = None
) -> Iterator[Fixture]:
    path = build(FIXTURES / "capture_values", toolchain, flags=BUILD_MODES[mode])
    process = subprocess.Popen(
        [path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TZ": "UTC"},
    )
    with process:
        fixture = Fixture(path, process, limits or CaptureLimits())
        with fixture.memory:
            yield fixture


@each_toolchain
def test_every_kind_reads_as_the_program_says(toolchain: Toolchain) -> None:
    with running(toolchain) as fixture:
        check_all(fixture)


@each_toolchain
def test_every_kind_by_descriptors_alone(toolchain: Toolchain) -> None:
    with running(toolchain, "stripped") as fixture:
        check_all(fixture)


def check_all(fixture: Fixture) -> None:
    fields = {field.name: field for field in fixture.type.fields}
    crowd = fixture.value(fields.pop("crowd"))
    expected = dict(fixture.expected)
    version = fixture.program.table.go_version
    assert version is not None
    if "newer" in expected and (version.major, version.minor) < (1, 23):
        # Nothing in memory tells it from the same within IPv6.
        unknown = "host: <unavailable: 192.0.2.7 or ::ffff:192.0.2.7>"
        expected["newer"] = expected["newer"].replace("host: 192.0.2.7", unknown)
    assert {name: go_syntax(fixture.value(f)) for name, f in fields.items()} == expected
    assert isinstance(crowd, SequenceValue)
    entries: list[tuple[Value, Value]] = []
    for part in crowd.elements:
        assert isinstance(part, MapValue)
        assert part.length == 100
        assert len(part.entries) <= 8
        entries += part.entries
    # One bucket of a great map can be empty: its entries are where their hashes put them.
    assert entries
    for key, text in entries:
        assert isinstance(text, StringValue)
        assert text.text == str(key).encode()
    for field in fixture.type.fields:
        json.loads(json.dumps(to_json(fixture.value(field)), allow_nan=False))


@each_toolchain
def test_paths(toolchain: Toolchain) -> None:
    deref, length, cap = PathMark.DEREF, PathMark.LEN, PathMark.CAP
    with running(toolchain) as fixture:
        path = fixture.path
        assert path("i64") == -(1 << 63)
        assert path("text") == StringValue(b"user:42", 7)
        assert path("text", length) == 7
        assert path("text", 5) == ord("4")
        assert path("text", 7) == UnavailableValue("beyond the bytes captured")
        assert path("one", deref, "b") == StringValue(b"x", 1)
        assert path("nobody", deref, "b") == UnavailableValue("nil pointer")
        assert path("nested", "inner", "a") == 2
        assert path("nested", "list", 0) == StringValue(b"r", 1)
        assert path("loop", deref, "next", deref, "next", deref, "list", 0, length) == 1
        assert path("loop", deref, "list", 1) == UnavailableValue("beyond the bytes captured")
        assert path("pairs", 1, "b") == StringValue(b"y", 1)
        assert path("pointers", 0, deref, "a") == 3
        assert path("pointers", 1, deref, "a") == UnavailableValue("nil pointer")
        assert path("lists", 2, 1) == 3
        assert path("array", 2) == 3
        assert path("array", length) == 3
        assert path("big", deref, "last") == 9
        assert path("many", length) == 100
        assert path("zero", cap) == 0
        assert path("crowd", 3, length) == 100
        assert path("noMap", length) == 0
        assert path("full", length) == 2
        assert path("full", cap) == 5
        assert path("noChan", cap) == 0


def test_depth_follows_pointers_and_cuts_cycles() -> None:
    with running(newest(), limits=CaptureLimits(depth=3)) as fixture:
        loop = fixture.value(next(f for f in fixture.type.fields if f.name == "loop"))
        for _ in range(3):
            assert isinstance(loop, PointerValue)
            assert isinstance(loop.target, StructValue)
            assert loop.target.field("list") == SequenceValue(
                "[]string", (StringValue(b"s", 1),), 1, 1
            )
            found = loop.target.field("next")
            assert found is not None
            loop = found
        assert isinstance(loop, PointerValue)
        assert loop.target is None
