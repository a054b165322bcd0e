# SPDX-License-Identifier: Apache-2.0
"""Attach the probes of a job to one program, and read them."""

from __future__ import annotations

import abc
import logging
import math
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from itertools import repeat
from typing import Any, Protocol

from gotrace.fleet.config import MetricSpec, MetricType, PlanningSpec
from gotrace.fleet.naming import label
from gotrace.fleet.series import Increment, Metric, Presence
from gotrace.fleet.targets import Program
from gotrace.overhead import ProbeCost
from gotrace.probes.pattern import is_recipe
from gotrace.probes.spec import NO_KEY, parse_probe
from gotrace.records import dataclass, field, replace
from gotrace.session.budget import Hits, Spent
from gotrace.session.choices import ReturnMode
from gotrace.session.count import CountRequest
from gotrace.session.decode import Undecided
from gotrace.session.events import RecordError
from gotrace.session.keys import KeyMeter, KeyOptions, KeyPeriod, KeyRequest
from gotrace.session.latency import LatencyMeter, LatencyOptions, LatencyRequest
from gotrace.session.open_calls import Diagnostic
from gotrace.session.reading import RecordReader
from gotrace.session.request import Asked
from gotrace.session.run import Run, open_run
from gotrace.session.trace import CallTracer, expected_types
from gotrace.target.process import Process
from gotrace.target.target import Target
from gotrace.text import printable

log = logging.getLogger("gotraced")
#: Lines for each program and probe, which are written if they are asked for.
DETAILS = logging.getLogger("gotraced.details")

_TEXT_BYTES = 64  # of a string that is a label
_TURN = 0.05  # seconds of reading at a time
_LAST_TURNS = 10


#: Hits that the kernel has run no program for.
SKIPPED = "skipped"


class ProbeState(Enum):
    """The state of a probe; the values are those of the label ``state``."""

    ON = "on"  # all that it is for
    NO_EDGES = "no_edges"  # spans are not put below those of other goroutines, for the cost
    COUNTED = "counted"  # calls are counted and not followed, for their cost
    OFF = "off"  # nothing, for its cost or for a failure: it is tried again later


@dataclass(frozen=True, slots=True)
class Figures:
    """The results and the cost of a probe: hits, calls by how they are missing, and others.

    ``unmeasured`` are calls that were counted and not followed, for their cost. ``sent`` are spans,
    by how they are below others.
    """

    spent: Spent = field(default_factory=Spent)
    lost: Counter[str] = field(default_factory=Counter)
    unmeasured: int = 0
    sent: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Figures) -> Figures:
        """Return both together; a reason without a call stays."""
        lost, sent = self.lost.copy(), self.sent + other.sent
        lost.update(other.lost)
        return Figures(self.spent + other.spent, lost, self.unmeasured + other.unmeasured, sent)


class Probe(abc.ABC):
    """The probes of one job in one program; ``close`` detaches. Any thread may ask.

    ``problems`` are what it leaves out. ``needs_target``: reading what was seen takes the program's
    file.
    """

    needs_target = False

    def __init__(self) -> None:
        """Begin; what is said of the probes is yet to be filled in."""
        self.problems: list[str] = []
        self._lock: AbstractContextManager[object] = threading.Lock()  # of methods with _
        self._final: Figures | None = None  # while it is attached
        self.state = ProbeState.ON

    @property
    def source(self) -> Probe | ProbeSource:
        """Return the reader of the results, whose ``take`` is for all probes that share it."""
        return self

    @property
    def is_open(self) -> bool:
        return self._final is None

    @property
    def is_light(self) -> bool:
        """Return whether it does less than all that it is for, to cost less."""
        return self.state is not ProbeState.ON

    @abc.abstractmethod
    def take(self) -> None:
        """Pass on what has come since the last time."""

    @abc.abstractmethod
    def move(self) -> float:
        """Have frequent calls seen returning in their callers, as ``ProbeSource`` says."""

    @abc.abstractmethod
    def expire(self) -> None:
        """Give up what nothing has been added to for long; to be called now and then."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Drop the results so far; nothing of them is passed on."""

    @abc.abstractmethod
    def poll(self) -> None:
        """Free the entries that ended processes left; to be called every few seconds."""

    def lighten(self) -> str | None:
        """Do less, to cost less; return what, None if nothing is left to leave out."""
        with self._lock:
            return self._lighten() if self.is_open else None

    @abc.abstractmethod
    def _lighten(self) -> str | None:
        """Do less, as ``lighten`` says."""

    @abc.abstractmethod
    def settle(self) -> bool:
        """Remove probes that ``lighten`` has made needless; to be called every second.

        Return whether calls cost less since the last time.
        """

    def figures(self) -> Figures:
        """Return the results and the cost so far, as far as they are known."""
        with self._lock:
            return self._figures() if self._final is None else self._final

    @abc.abstractmethod
    def _figures(self) -> Figures:
        """Return the results and the cost while it is attached."""

    @abc.abstractmethod
    def spent(self) -> Spent:
        """Return the hits so far and their cost, as far as that is known."""

    @abc.abstractmethod
    def is_held(self) -> bool:
        """Return whether the probes are still there."""

    @abc.abstractmethod
    def is_in(self, pid: int) -> bool | None:
        """Return whether a process's mapping has a probe of these, None if that is not known."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Remove the probes without waiting for it: ``close`` does."""

    def close(self) -> Figures:
        """Detach, pass on what has come, and return what it has seen and cost.

        Raises GotraceError where the probes were gone before that; they are closed all the same.
        """
        with self._lock:
            if self._final is None:
                self._close()
            assert self._final is not None
            return self._final

    @abc.abstractmethod
    def _close(self) -> None:
        """Detach, pass on what has come, and set ``_final``, whatever is raised."""


class ProbeSource(Protocol):
    """Several probes whose results are read together."""

    def take(self) -> None:
        """Pass on what has come since the last time."""

    def move(self) -> float:
        """Have frequent calls seen returning in their callers, as far as that has come.

        Return in how many seconds to call it again, infinity if never.
        """


def moved(run: Run[Any, Any], program: Program) -> set[int]:
    """Have frequent calls seen returning in their callers; return which functions have moved."""
    run.meter.move()
    moves = list(run.meter.moved())
    for move in moves:
        name = "" if move.function is None else run.plan.names[move.function].name
        DETAILS.info("%s: %s", program.key.target, printable(move.text(name)))
    return {move.function or 0 for move in moves if move.returns == "landing"}


class RunProbe(Probe):
    """Probes that have a run of their own."""

    def __init__(self, program: Program, cost: ProbeCost, run: Run[Any, Any]) -> None:
        """Take over a run whose probes are in place."""
        super().__init__()
        notes = (*run.warnings(), *run.inlined("counted"))
        self.problems = [note.text for note in notes]
        self._run = run
        self._program = program
        self._cost = cost
        self._hits = Hits(run.attached.program, run.plan)
        self._moved = False  # functions to where their calls cost less, since ``settle``

    def _take(self) -> None:
        """Pass on what has come since the last time, where that is asked for now and then."""

    def _poll(self) -> None:
        """Free the entries that ended processes left."""

    def _forget(self) -> None:
        """Drop the results so far, if they are not to be passed on."""

    def _expire(self) -> None:
        """Give up what nothing has been added to for long."""

    def _rest(self) -> None:
        """Take note that nothing more is added; may be called twice."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Stop, and pass on what has come. Raises GotraceError."""

    def _spent(self) -> Spent:
        """Return the hits so far and their cost while it is attached."""
        return self._hits.total(self._cost.plus(self._run.meter.program_ns))

    @abc.abstractmethod
    def _losses(self) -> Counter[str]:
        """Return how much is missing so far, by what became of it."""

    def _left_open(self) -> int:
        """Return how many calls were open when it was stopped."""
        return 0

    def _sent(self) -> Counter[str]:
        """Return how many spans were sent, by how they are below others."""
        return Counter()

    def take(self) -> None:
        self._while_open(self._take)

    def expire(self) -> None:
        self._while_open(self._expire)

    def forget(self) -> None:
        self._while_open(self._forget)

    def poll(self) -> None:
        self._while_open(self._poll)

    def move(self) -> float:
        with self._lock:
            if not self.is_open:
                return math.inf
            self._moved |= bool(moved(self._run, self._program))
            pause: float = self._run.meter.pause
            return pause

    def _while_open(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self.is_open:
                work()

    def _lighten(self) -> str | None:
        if not self._run.meter.lighten_all():
            return None
        self.state = ProbeState.COUNTED
        self._rest()
        return "its calls are only counted"

    def settle(self) -> bool:
        with self._lock:
            if not self.is_open:
                return False
            has_moved, self._moved = self._moved, False
            return self._run.meter.settle() or has_moved

    def _figures(self) -> Figures:
        lost = self._losses()
        lost[SKIPPED] = self._run.meter.skipped()
        counted = self._hits.counted() if self.state is ProbeState.COUNTED else {}
        return Figures(self._spent(), lost, sum(counted.values()), self._sent())

    def spent(self) -> Spent:
        with self._lock:
            return self._spent() if self._final is None else self._final.spent

    def is_held(self) -> bool:
        return self._run.attached.is_held()

    def is_in(self, pid: int) -> bool | None:
        with self._lock:
            return self._run.attached.has_breakpoint(Process(pid)) if self.is_open else None

    def stop(self) -> None:
        self._run.attached.stop()

    def _close(self) -> None:
        final = None
        try:
            self._finish()
            final = self._figures()
            if left := self._left_open():
                final.lost[OPEN_AT_DETACH] += left
        finally:
            self._final = final or Figures(sent=self._sent())
            self._run.close()


class PresentProbe(RunProbe):
    """A probe of one target whose results are exported while it is attached, and no longer."""

    def __init__(
        self, program: Program, cost: ProbeCost, run: Run[Any, Any], presence: Presence
    ) -> None:
        """Take over a run whose probes are in place; the caller begins the target's presence."""
        super().__init__(program, cost, run)
        self._presence: Presence | None = presence

    def _finish(self) -> None:
        try:
            self._run.meter.stop()
            self._take()
        finally:
            self._rest()

    def _rest(self) -> None:
        if self._presence is not None:
            self._presence.end(self._program.key.target)
            self._presence = None


class RecordProbe(RunProbe):
    """Probes that send a record of each call; a thread reads these, some of them at a time."""

    needs_target = True

    def __init__(
        self,
        program: Program,
        cost: ProbeCost,
        run: Run[CallTracer, ProbeCost],
        undecided: Undecided,
        name: str,
    ) -> None:
        """Take over a run whose probes are in place; ``name`` is what its errors are said of."""
        super().__init__(program, cost, run)
        self._tracer = run.meter
        self._reader = RecordReader(run.meter, undecided, _TURN)
        self._name = name
        self._read_ns = 0

    @abc.abstractmethod
    def _add(self, record: bytes) -> None:
        """Take the next record. Raises RecordError or struct.error if it is not one."""

    @abc.abstractmethod
    def _turn(self) -> None:
        """Pass on what is whole after a turn of reading."""

    def _read(self) -> int:
        """Read the new records; return their number."""
        with self._charged():
            return self._take_all(self._reader.turn())

    def _take_all(self, records: Iterator[bytes]) -> int:
        number = 0
        for record in records:
            number += 1
            try:
                self._add(record)
            except (RecordError, struct.error) as error:
                log.error("%s: %s", self._name, printable(str(error)))
        self._turn()
        return number

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Add the work done meanwhile to the cost of the probes."""
        began = time.thread_time_ns()
        yield
        self._read_ns += time.thread_time_ns() - began

    def _spent(self) -> Spent:
        spent = super()._spent()
        return Spent(spent.hits, spent.ns + self._read_ns)

    def _losses(self) -> Counter[str]:
        return Counter(self._reader.losses())

    def _finish(self) -> None:
        self._tracer.stop()
        with self._charged():
            for records, _ in self._reader.rest(repeat(math.inf, _LAST_TURNS)):
                self._take_all(records)


def open_target(program: Program, planning: PlanningSpec) -> Target:
    """Return the target of all processes that run a file, in a control group where one is asked."""
    target = Target.of(None, None, uid=program.user, cgroup=program.cgroup)
    target.largest_section = planning.section
    return target


MetricRequest = CountRequest | LatencyRequest | KeyRequest


def metric_request(spec: MetricSpec, target: Target, program: Program) -> MetricRequest:
    """Return the request of a metric in a program. Raises UsageError."""
    asked = Asked([spec.probe], file=program.path)
    is_counter = spec.type is MetricType.COUNTER
    if is_keyed(spec):
        times = not is_counter and spec.of is None
        return KeyRequest(
            target=target,
            asked=asked,
            verb="count" if is_counter else "measure",
            done="counted",
            key=spec.key or NO_KEY,
            of=spec.of,
            text_bytes=_TEXT_BYTES,
            follows_returns=times,
            returns=ReturnMode.AUTO,
            is_minded=True,
            no_parts="a metric cannot group by parts of the time",
            options=KeyOptions(
                *(times, False, True),
                rows=spec.series,
                open_calls=spec.open_calls,
                alike=False,
            ),
        )
    if is_counter:
        return CountRequest(target=target, asked=asked, is_minded=True)
    options = LatencyOptions(
        per_function=spec.functions, intervals=True, open_calls=spec.open_calls
    )
    return LatencyRequest(
        target=target, asked=asked, options=options, returns=ReturnMode.AUTO, is_minded=True
    )


def try_metric(spec: MetricSpec, target: Target, program: Program) -> None:
    """Plan as the probe of a metric does, and attach nothing. Raises GotraceError."""
    prepared = metric_request(spec, target, program).prepare(None, None)
    if prepared.traced is not None:
        expected_types(prepared.traced)


#: Calls that are missing since a probe was detached before they had ended.
OPEN_AT_DETACH = "open_at_detach"


def metric_losses(spec: MetricSpec) -> list[str]:
    """Return how calls of a metric may be missing, so that each is exported from the start."""
    if not is_keyed(spec) and spec.type is MetricType.COUNTER:
        return []
    meter = KeyMeter if is_keyed(spec) else LatencyMeter
    found = [what.name.lower() for what in (*meter.LOSSES, Diagnostic.UNWOUND)]
    return [*found, OPEN_AT_DETACH]


def is_keyed(spec: MetricSpec) -> bool:
    """Return whether more than a counter or a histogram of each function is needed."""
    if spec.key is not None or spec.of is not None or is_recipe(spec.probe):
        return True
    parsed = parse_probe(spec.probe)
    return parsed.predicate is not None or parsed.signature is not None


def of_pod(spec: MetricSpec, program: Program, one: Increment) -> Increment:
    """Return new results with the labels of the pod, if the metric has these."""
    if not spec.pods or one.values is None:
        return one
    return replace(one, values=(*(program.pod or ("", "", "")), *one.values))


class KeyProbe(PresentProbe):
    """The probes of one metric in one program that has a program of its own.

    It has a predicate, a signature, labels, a value or a recipe.
    """

    needs_target = True

    def __init__(self, metric: Metric, program: Program, target: Target, cost: ProbeCost) -> None:
        """Attach. Raises GotraceError or OSError."""
        run: Run[Any, Any] = open_run(metric_request(metric.spec, target, program))
        super().__init__(program, cost, run, metric.presence)
        self.metric = metric
        self.names = [function.name for function in run.plan.functions]
        self._meter: KeyMeter = run.meter
        metric.begin(program.key.target)

    def _take(self) -> None:
        increments = list(self._increments(self._meter.take()))
        self.metric.add(self._program.key.target, increments)

    def _expire(self) -> None:
        if self.metric.can_expire:
            self._take()  # what has come since the last scrape is not idle
            self._meter.forget_idle(self.metric.spec.idle)

    def _forget(self) -> None:
        self._meter.take()

    def _increments(self, period: KeyPeriod) -> Iterator[Increment]:
        spec = self.metric.spec
        for row in period.rows:
            measured = row.measured if spec.of is not None else row.times
            values: tuple[str, ...] | None = None
            if row.function is not None and row.values is not None:
                labels = (
                    label(value, spec.privacy, name in spec.hashed)
                    for name, value in zip(spec.labels, row.values, strict=True)
                )
                values = (*((self.names[row.function],) if spec.functions else ()), *labels)
            elif not spec.functions and not spec.labels:
                values = ()  # without labels there is nothing to find room for
            yield of_pod(spec, self._program, Increment(values, row.calls, measured))

    def _poll(self) -> None:
        self._meter.poll()

    def _losses(self) -> Counter[str]:
        counts = self._meter.diagnostics()
        reasons = (*self._meter.LOSSES, Diagnostic.UNWOUND)
        return Counter({what.name.lower(): counts[what] for what in reasons})

    def _left_open(self) -> int:
        return self._meter.open_calls()
