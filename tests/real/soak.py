# SPDX-License-Identifier: Apache-2.0
"""Attach random sets of functions to a program, for a random while, over and over."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from unittest.mock import patch

from gotrace.capture.ops import CaptureLimits
from gotrace.elf.functions import FunctionTable
from gotrace.errors import GotraceError
from gotrace.kernel.attach import Attached, ProbeGroup
from gotrace.kernel.cookie import COOKIE_INDEX_MASK
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.select import Selector
from gotrace.probes.spec import parse_probe
from gotrace.report.calls import Clock, TimeStyle
from gotrace.report.fast_calls import line_of
from gotrace.session.count import CallCounter
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import function_of
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.plan import BinaryRequest, ProbePlan, make_plan, measurable
from gotrace.session.probing import Prepared
from gotrace.session.tasks import find_tasks, signal_groups, unwind_groups
from gotrace.session.trace import CallTracer, TraceOptions
from gotrace.session.trace_plan import TraceChoices, make_trace_plan
from gotrace.session.why.probes import WhyOptions, why_probes
from gotrace.sites.sites import FunctionSites
from gotrace.target.target import Target


class Use(Enum):
    """Say what is done to functions; the values are the tools, and a way to use the last."""

    COUNT = "gofunccount"
    MEASURE = "gofunclatency"
    WHY = "gofunclatency --why"
    TRACE = "gotrace"  # arguments and results, as DWARF has them
    FLOATS = "gotrace, a signal at each entry and return"


#: For every function, whatever it takes: so SIGURG is sent at its entry and at its return.
_ALL_FLOATS = "main.f(x float64) float64"
_DECODED = 200  # records a reading: more than that takes the time of the rounds


@dataclass(frozen=True)
class Held:
    """A loaded tool, all that it can attach, and how to take what it has seen."""

    attached: Attached
    functions: int
    groups: Sequence[ProbeGroup]
    read: Callable[[], Iterable[tuple[int, int]]]  # function number, calls


class Soak:
    """A process, all sites of its functions and the tools; a context manager.

    A tool is compiled and loaded once, for all functions; a round attaches it to some of them.
    """

    def __init__(
        self, pid: int, seed: int, patterns: Sequence[str] = ("*",), most_traced: int = 1 << 20
    ) -> None:
        """Plan; ``most_traced`` is to how many functions gotrace is ever attached, chosen once."""
        self._most_traced = most_traced
        self._random = random.Random(seed)
        self._target = Target.of(pid, None)
        request = BinaryRequest(None, Selector(patterns))
        self._plan = make_plan(self._target, [request], returns=True, verb="count")
        #: What the program's release can be watched for.
        self.uses = [use for use in Use if use is not Use.WHY or self._says_why()]
        self._held: dict[Use, Held] = {}
        self._opened = ExitStack()
        self.rounds: Counter[str] = Counter()
        self.probes = 0
        self.calls: Counter[Use] = Counter()
        self.seen: dict[Use, set[int]] = {use: set() for use in Use}  # function numbers
        self.failed: dict[int, str] = {}

    @property
    def functions(self) -> list[FunctionSites]:
        return list(self._plan.binaries[0].functions)

    def round(self, use: Use | None = None) -> None:
        """Attach to 1 function, to all, or to any number in between; read a few times; detach."""
        use = use or self._random.choice(self.uses)
        held = self.held(use)
        size = int((held.functions + 1) ** self._random.random())
        chosen = set(self._random.sample(range(held.functions), size))
        self.watch(use, [_only(group, chosen) for group in held.groups])

    def all(self, use: Use, turns: int) -> None:
        """Attach to all functions and read some times."""
        self.watch(use, self.held(use).groups, turns)

    def watch(self, use: Use, groups: Sequence[ProbeGroup], turns: int | None = None) -> None:
        """Attach a tool to groups, read it ``turns`` times, or at random, and detach."""
        held = self.held(use)
        groups = [group for group in groups if group.points]
        held.attached.program.map("halted").update(bytes(4), bytes(4))  # detaching has set it
        held.attached.add(groups)
        self._note(use, held.attached, sum(len(group.points) for group in groups))
        for _ in range(self._random.randrange(8) if turns is None else turns):
            for function, calls in held.read():
                self.calls[use] += calls
                self.seen[use].add(function)
        _detach(held)

    def anew(self, use: Use) -> None:
        """Do what a tool does from compiling on, with few functions and with any method."""
        plan = self._some(6)
        with ExitStack() as opened:
            held = _OPENERS[use](
                opened, self._target, plan, self._random.choice(list(AttachMethod))
            )
            self._note(use, held.attached, sum(len(group.points) for group in held.groups))
            for _ in range(self._random.randrange(8)):
                self.calls[use] += sum(calls for _, calls in held.read())
            _detach(held)

    def held(self, use: Use) -> Held:
        """Return a tool, loaded for all functions and attached to none."""
        if use not in self._held:
            tracing = use in (Use.TRACE, Use.FLOATS)
            plan = self._some(self._most_traced) if tracing else self._plan
            held = _OPENERS[use](self._opened, self._target, plan, None)
            _detach(held)
            self._held[use] = held
        return self._held[use]

    def _says_why(self) -> bool:
        try:
            why_probes(self._target, find_tasks(self._target, self._plan), WhyOptions())
        except GotraceError:
            return False
        return True

    def _some(self, most: int) -> ProbePlan:
        """Return the plan of so many functions, or of all where there are no more."""
        binary = self._plan.binaries[0]
        number = min(most, len(binary.functions))
        functions = tuple(self._random.sample(binary.functions, number))
        return replace(self._plan, binaries=(replace(binary, functions=functions),))

    def _note(self, use: Use, attached: Attached, probes: int) -> None:
        self.rounds[use.value] += 1
        self.probes += probes - len(attached.failed)
        for point, error in attached.failed.items():
            self.failed[point.address] = error.strerror or str(error)

    def __enter__(self) -> Soak:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()
        self._target.close()


def _detach(held: Held) -> None:
    """Remove a tool's probes, however long it takes the kernel on a machine that is busy."""
    assert held.attached.detach(time.monotonic() + _MAX_DETACHING) == []


_MAX_DETACHING = 100.0  # seconds


def _only(group: ProbeGroup, chosen: set[int]) -> ProbeGroup:
    """Leave a group the points of some functions; what watches the runtime stays whole."""
    if group.function not in ("on_entry", "on_return"):
        return group
    kept = [point for point in group.points if point.cookie & COOKIE_INDEX_MASK in chosen]
    return replace(group, points=kept)


def _count(opened: ExitStack, target: Target, plan: ProbePlan, method: AttachMethod | None) -> Held:
    counter = opened.enter_context(CallCounter(Prepared(target, plan, forced=method)))

    def read() -> Iterable[tuple[int, int]]:
        return [(function, calls) for function, calls in enumerate(counter.take()) if calls]

    groups = plan.entry_groups("on_entry", target.pid)
    return Held(counter.attached, len(plan.functions), groups, read)


def _measure(
    opened: ExitStack,
    target: Target,
    plan: ProbePlan,
    method: AttachMethod | None,
    has_why: bool = False,
) -> Held:
    plan, tasks = measurable(plan), find_tasks(target, plan)
    options = LatencyOptions(per_function=True, intervals=True)
    why = why_probes(target, tasks, WhyOptions()) if has_why else None
    meter = opened.enter_context(
        LatencyMeter(Prepared(target, plan, tasks, why=why, forced=method), options)
    )
    groups = [
        *(why.groups() if why else ()),
        *unwind_groups(target, tasks),
        *plan.return_groups("on_return", target.pid, tasks.kind),
        *plan.entry_groups("on_entry", target.pid, tasks.kind),
    ]

    def read() -> Iterable[tuple[int, int]]:
        taken = meter.take()
        for function, bands in taken.why.items():
            assert all(sums.total > 0 for sums in bands.values()), function
        return [(function, row.count) for function, row in taken.rows.items()]

    return Held(meter.attached, len(plan.functions), groups, read)


def _why(opened: ExitStack, target: Target, plan: ProbePlan, method: AttachMethod | None) -> Held:
    return _measure(opened, target, plan, method, has_why=True)


def _trace(
    opened: ExitStack,
    target: Target,
    plan: ProbePlan,
    method: AttachMethod | None,
    probe: str = "*",
) -> Held:
    tasks = find_tasks(target, plan)
    choices = TraceChoices(CaptureLimits(payload=3584), entry_only=False, floats=True)
    traced = make_trace_plan(plan, [parse_probe(probe)], choices)
    prepared = Prepared(target, traced.plan, tasks, traced, forced=method)
    tracer = opened.enter_context(CallTracer(prepared, TraceOptions(user_stack=8)))
    kept = {number for number, call in enumerate(traced.calls) if call.result is not None}
    groups = [
        *signal_groups(target, tasks),
        *unwind_groups(target, tasks),
        *traced.plan.return_groups("on_return", target.pid, tasks.kind, kept),
        *traced.plan.entry_groups("on_entry", target.pid, tasks.kind),
    ]
    # Up to Go 1.16 nothing is in a float register.
    groups = [group for group in groups if group.function in tracer.attached.functions]
    clock = Clock.started_now(TimeStyle.SINCE_START)
    lines = [
        line_of(CallDecoder(call, None, True, Undecided()), clock, as_json=True)
        for call in traced.calls
    ]

    def read() -> Iterable[tuple[int, int]]:
        tracer.fill(time.monotonic() + 1.0)
        records = tracer.window.flush()
        for record in records[:_DECODED]:
            assert json.loads(lines[function_of(record)](record))["kind"] == "call"
        return [(function_of(record), 1) for record in records]

    return Held(tracer.attached, len(lines), groups, read)


def _floats(
    opened: ExitStack, target: Target, plan: ProbePlan, method: AttachMethod | None
) -> Held:
    # A signature of another size than the function's would be refused.
    with patch.object(FunctionTable, "arguments_size", return_value=None):
        return _trace(opened, target, plan, method, _ALL_FLOATS)


_OPENERS: Mapping[Use, Callable[[ExitStack, Target, ProbePlan, AttachMethod | None], Held]] = {
    Use.COUNT: _count,
    Use.MEASURE: _measure,
    Use.WHY: _why,
    Use.TRACE: _trace,
    Use.FLOATS: _floats,
}
