# SPDX-License-Identifier: Apache-2.0
"""Read a file as the commands do, from opening it to the lines of its calls, without a kernel."""

from __future__ import annotations

import dataclasses
import io
import os
import random
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from gotrace.abi.function_values import FunctionValues
from gotrace.capture.ops import CaptureLimits
from gotrace.cli.run import problem_notices
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.goroutines.dump import take_dump
from gotrace.goroutines.program import TRAPPED, CodeNames, allgs_of, module_of
from gotrace.probes.select import Selector
from gotrace.probes.spec import parse_probe
from gotrace.report.calls import Clock, TimeStyle
from gotrace.report.fast_calls import line_of
from gotrace.report.listing import list_plan
from gotrace.report.output import JsonOutput, TextOutput
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import HEADER, CallFlag
from gotrace.session.plan import BinaryPlan, BinaryRequest, ProbePlan, make_plan, measurable
from gotrace.session.probing import Prepared
from gotrace.session.symbols import Symbolizer
from gotrace.session.tasks import find_tasks, signal_groups, unwind_groups
from gotrace.session.trace import Tables, TraceOptions
from gotrace.session.trace_plan import TraceChoices, interfaces_in, make_trace_plan
from gotrace.target.target import Target, TargetBinary

#: The program's own functions, and some that were not written for a test.
PATTERNS = ("main.*", "runtime.mal*", "errors.*", "strconv.*")

PROBES = ("main.*", 'main.(*Store).Get (len(key) > 3 && $ret == nil) "%v %s", s, key')


class Outcome(Counter[str]):
    """Count steps by name."""


Result = TypeVar("Result")

_CALLS = 12  # functions whose lines are made
_MAX_INLINED = 3000
_PAYLOAD = random.Random(5).randbytes(256) + bytes(256)


def read_as_tools_do(path: Path) -> Outcome:
    """Read a file with all that the commands use; return how often each step gave a result.

    A step may end in a GotraceError of one line, which is counted as ``refused``. Any other
    exception is passed on; AssertionError tells of a site outside of the executable text.
    """
    outcome = Outcome()
    target = Target()
    try:
        plan = attempt(outcome, "plan", lambda: plan_of(target, path))
        if plan is not None:
            check_sites(path, plan)
            for name, action in steps(path, target, plan):
                attempt(outcome, name, action)
    finally:
        target.close()
    return outcome


def attempt(outcome: Outcome, name: str, action: Callable[[], Result]) -> Result | None:
    try:
        result = action()
    except GotraceError as error:
        assert "\n" not in str(error), str(error)
        outcome["refused"] += 1
        return None
    outcome[name] += 1
    return result


def plan_of(target: Target, path: Path) -> ProbePlan:
    request = BinaryRequest(os.fspath(path), Selector(PATTERNS))
    return make_plan(target, [request], returns=True, verb="trace")


def steps(
    path: Path, target: Target, plan: ProbePlan
) -> Iterator[tuple[str, Callable[[], object]]]:
    (binary,) = plan.binaries
    yield "list", lambda: list_plan(plan, TextOutput(io.StringIO(), io.StringIO()))
    yield "json list", lambda: list_plan(plan, JsonOutput(io.StringIO()))
    yield (
        "warn",
        lambda: [*problem_notices(plan.problems, False), *plan.inlined(), plan.only_inlined()],
    )
    yield "identify", lambda: identify(binary.binary.image)
    yield "measure", lambda: watch(path, target, measurable(plan))
    yield "symbolize", lambda: symbolize(binary)
    yield "inlined", lambda: list(islice(binary.binary.functions.inlined_calls(), _MAX_INLINED))
    yield "trace", lambda: trace(plan, PROBES[0], "main.")
    yield "trace with expressions", lambda: trace(plan, PROBES[1], "main.(*Store).Get")
    yield "signatures", lambda: signatures(binary)
    yield "goroutines", lambda: walk_stacks(binary)
    yield "explain", lambda: Selector(["main.Stroe"]).select(binary.binary.functions)


def signatures(binary: BinaryPlan) -> None:
    """Find the values of the functions, and of all that is needed to list each function's source.

    Of so many functions all method tables are read.
    """
    values = FunctionValues(binary.binary)
    for sites in binary.functions:
        values.of(sites.function, None)
        values.source(sites.function)
        values.why_bare(sites.function)
    assert "\n" not in (values.problem or "")


def walk_stacks(binary: BinaryPlan) -> None:
    """Make what a dump of goroutines needs of the file; memory is random, and return addresses."""
    file = binary.binary
    program = CodeNames(module_of(file, 0), lambda pc: None)
    file.wait_reasons  # noqa: B018
    allgs_of(file)
    functions = file.functions
    rows = range(0, len(functions), max(len(functions) // 200, 1))
    stack = tuple(
        address | mark
        for row in rows
        for address in (functions.function(row).entry, functions.function(row).end - 1)
        for mark in (0, TRAPPED)
    )
    for pc in stack:
        step = program.step(pc)
        assert step is None or 0 <= step.words < 1 << 28
        program.creation(pc)
    program.frames(stack)
    noise = Noise(stack)
    take_dump(program, noise, file.runtime, file.wait_reasons, 4096, 1 << 60)


class Noise:
    """Memory in which nothing is as it should be, but that there seem to be goroutines."""

    def __init__(self, stack: Sequence[int]) -> None:
        self._words = [*stack[:16], 0, 1, 2, 3, 4, 8192, 16384, 1 << 47, (1 << 64) - 8]

    def gather(self, places: Sequence[int]) -> bytearray:
        found = bytearray()
        for address, size in zip(places[::2], places[1::2], strict=True):
            if address == 4096:
                found += struct.pack("<QQQ", 8192, 50, 64)
            else:  # the same each time
                words = random.Random(address).choices(self._words, k=size // 8)
                found += struct.pack(f"<{len(words)}Q", *words)
        return found

    def scatter(self, places: array[int], into: array[int], parts: array[int]) -> None:
        with memoryview(into) as words, words.cast("B") as raw:
            for number, (at, size) in enumerate(zip(parts[0::2], parts[1::2], strict=True)):
                raw[at : at + size] = self.gather(places[2 * number : 2 * number + 2])

    def read(self, address: int, size: int) -> bytes | None:
        return None

    def close(self) -> None:
        pass


def identify(image: ElfImage) -> object:
    return image.is_pie, image.identity


def watch(path: Path, target: Target, plan: ProbePlan) -> None:
    tasks = find_tasks(target, plan)
    tasks.settings()
    groups = (
        *unwind_groups(target, tasks),
        *signal_groups(target, tasks),
        *plan.entry_groups("on_entry", 0, tasks.kind),
        *plan.return_groups("on_return", 0, tasks.kind),
    )
    text = executable_text(path)
    for group in groups:
        for point in group.points:
            assert any(start <= point.offset < end for start, end in text.values()), hex(
                point.offset
            )


def symbolize(binary: BinaryPlan) -> None:
    symbolizer = Symbolizer([binary.binary])
    for sites in binary.functions[:: max(1, len(binary.functions) // 40)]:
        middle = (sites.function.entry + sites.function.end) // 2
        symbolizer.started(1, sites.function.entry)
        symbolizer.line_before(1, middle)
        symbolizer.frames_before(1, middle)


def trace(plan: ProbePlan, probe: str, start: str) -> None:
    """Plan a probe's captures, know dynamic types, and make lines of records of noise."""
    spec = parse_probe(probe, split=lambda text: (None, text))
    (binary,) = plan.binaries
    chosen = [sites for sites in binary.functions if sites.function.name.startswith(start)]
    placed = TargetBinary(binary.binary.image, bias=0)  # as in a process: types are looked up
    plan = ProbePlan((dataclasses.replace(binary, binary=placed, functions=tuple(chosen)),), ())
    tasks = find_tasks(Target(), plan)
    limits = CaptureLimits(256, 2, payload=3584)
    traced = make_trace_plan(plan, [spec], TraceChoices(limits, entry_only=False, floats=True))
    for context in traced.contexts:
        context.expect(interfaces_in(traced.calls))
    Tables(traced, TraceOptions(user_stack=4)).settings(Prepared(Target(), plan, tasks))
    symbols = Symbolizer(tasks.files) if tasks.files else None
    clock = Clock.started_now(TimeStyle.SINCE_START)
    pcs = [sites.function.entry + 1 for sites in chosen[:4]]
    for call in traced.calls[:_CALLS]:
        record = _record(len(traced.calls), pcs)
        for as_json in (False, True):
            decoder = CallDecoder(call, symbols, True, Undecided())
            line = line_of(decoder, clock, as_json)(record)
            assert line.isprintable() or line.rstrip("\n").replace("\n", "").isprintable()


def _record(number: int, pcs: Sequence[int]) -> bytes:
    half = len(_PAYLOAD) // 2
    flags = CallFlag.STACK
    head = HEADER.pack(2 << 30, 1 << 30, 7, 1, 1, 0, half, half, flags, 0, 0)
    return head + _PAYLOAD + struct.pack(f"<II{len(pcs)}Q", len(pcs), 0, *pcs)


def check_sites(path: Path, plan: ProbePlan) -> None:
    """Check that all sites lie in what the kernel would map as code, read independently."""
    text = executable_text(path)
    for binary in plan.binaries:
        for sites in binary.functions:
            for site in (sites.entry, *sites.returns):
                assert site is not None
                assert any(address <= site.address < end for address, end in text), (
                    f"{sites.function.name}: {site.address:#x} is no code"
                )


def executable_text(path: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the (start, end) addresses of code with its (start, end) offsets in the file."""
    content = path.read_bytes()
    (start,), (count,) = (
        struct.unpack_from("<Q", content, 32),
        struct.unpack_from("<H", content, 56),
    )
    text = {}
    for at in range(start, start + 56 * count, 56):
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", content, at)
        if kind == 1 and flags & 1:
            text[address, address + size] = (offset, min(offset + size, len(content)))
    return text
