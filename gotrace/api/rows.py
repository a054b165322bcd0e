# SPDX-License-Identifier: Apache-2.0
"""Rows of the library's results, and the collections that have them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gotrace.assertions.verdicts import BoundOutcome, BoundVerdict
from gotrace.calls import Call, StackFrame
from gotrace.errors import UsageError
from gotrace.goroutines.details import NO_DETAILS, ChannelWait, WaitsByG
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.model import DumpedGoroutine, Frame, Stack, State, own_function
from gotrace.goroutines.rows import DumpRows
from gotrace.histogram import Histogram, ValueHistogram
from gotrace.profiles.folded import folded
from gotrace.profiles.html import html
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import write_profile
from gotrace.records import dataclass, field, replace
from gotrace.requests.model import Request
from gotrace.results.lines import Reading, Recordable
from gotrace.results.rows import Json, Row
from gotrace.session.call_rows import count_rows, inlined_rows, key_places, value_row
from gotrace.session.choices import WaitState
from gotrace.session.key_stacks import STACK, key_profile, stack_of
from gotrace.session.keys import KeyMeter, KeyPeriod, KeyRequest
from gotrace.session.latency import Measurement
from gotrace.session.latency_rows import Interval, key_counts, key_groups, key_values
from gotrace.session.oncpu.allocs import AllocMeter
from gotrace.session.oncpu.groups import WALL_FORM, wall_groups, wall_head
from gotrace.session.oncpu.meter import SampleMeter, SamplePeriod
from gotrace.session.oncpu.naming import (
    NamedSamples,
    SampleNames,
    function_rows,
    samples_head,
)
from gotrace.session.oncpu.wall import WallRow
from gotrace.session.plan import CountedFunction, InlinedPlaces, ProgramFunction
from gotrace.session.row_cells import RowStacks
from gotrace.session.run import Run
from gotrace.session.waits.meter import WaitMeter, WaitPeriod, WaitRow
from gotrace.session.waits.names import SyscallMeter, SyscallSums, syscall_row
from gotrace.session.waits.naming import (
    FORM,
    WaitChoice,
    named_waits,
    profile_rows,
    waits_head,
)
from gotrace.session.why.parts import PartSums
from gotrace.tables import Table
from gotrace.text import in_program
from gotrace.values.python import GoError, to_python


@dataclass(frozen=True, slots=True)
class Function:
    """One function that a pattern selects.

    ``file`` and ``line`` are where it is declared, None where that is not known. ``inlined`` is in
    how many places it was inlined, where only ``count`` sees its calls. ``program`` is its
    program's name, None where all functions are of one.
    """

    name: str
    file: str | None
    line: int | None
    inlined: int
    program: str | None = None


@dataclass(frozen=True, slots=True)
class AssertionVerdict:
    """The verdict on an assertion; its fields are those of JSON.

    ``place`` is the file and line of the function at fault: the root, else the one that is counted.
    """

    assertion: str
    outcome: str
    roots: int | None
    broken: int
    least: int | None
    median: int | None
    most: int | None
    why: tuple[str, ...]
    place: tuple[str, int] | None
    worst: Request[Call] | None

    @property
    def holds(self) -> bool:
        """Return whether the assertion is known to hold."""
        return self.outcome == BoundOutcome.HOLDS.value

    @classmethod
    def _of(cls, found: BoundVerdict, epoch: int) -> AssertionVerdict:
        worst = found.worst
        return cls(
            found.assertion.text,
            found.outcome.value,
            None if found.assertion.root is None else found.roots,
            *(found.broken, found.least, found.median, found.most, found.why, found.place),
            None if worst is None else worst.mapped(lambda call: call.as_call(epoch)),
        )


@dataclass(frozen=True, slots=True)
class Goroutine:
    """A goroutine that calls a function.

    ``goid`` is 0 for calls made outside of goroutines, and None for those of all goroutines that
    could not be kept apart. ``program`` is the name of the function's program, None where only one
    is traced.
    """

    function: str
    pid: int
    goid: int | None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class WaitedChannel:
    """A channel that a goroutine waits for.

    ``direction`` is "send" or "receive", ``elem`` the type of its elements; both None where that
    is not known. ``timer``: a timer feeds it, which channels say since Go 1.23. ``field`` is the
    field that it is in ("main.Queue.jobs"), None where that is not proven.
    """

    direction: str | None
    elem: str | None
    address: int
    length: int
    capacity: int
    timer: bool
    field: str | None = None


@dataclass(frozen=True, slots=True)
class GoroutineState:
    """The state of a goroutine at one moment.

    ``state`` is a word such as "waiting" or "running", ``reason`` why it waits ("" where it does
    not), ``waiting_ns`` for how long at least (None where that is not known). ``awaits`` is the
    type of what it waits for ("chan", "sync.Mutex"), ``address`` where that is; both None where
    that is not known. ``channels`` are those that it waits for, all of a select; empty where they
    are not known. ``lock`` is the variable or field that its lock is ("main.Book.mu"), None where
    that is not proven. ``created_by`` is the ``go`` statement, ``parent`` the goroutine that ran it
    (None where that is not known). ``stack`` is from the innermost frame on, and empty for a
    running goroutine that could not be sampled and for one that kept moving while it was read
    (``moved``). ``labels`` are those of pprof.
    """

    goid: int
    state: str
    reason: str
    waiting_ns: int | None
    awaits: str | None
    address: int | None
    created_by: StackFrame | None
    parent: int | None
    system: bool
    moved: bool
    stack: tuple[StackFrame, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[WaitedChannel, ...] = ()
    lock: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits that are alike: ``count`` of them took ``delay_ns`` together, the longest ``max_ns``.

    ``reason`` is why, in Go's words, "" where there is none. ``waker`` is the function that ended
    them, None where that was not a goroutine; ``woken_by`` says what it was: "goroutine", "timer",
    "network poller" or "runtime", None where that is not known. ``open``: they had not ended.
    Stacks are from the innermost frame on; ``waker_stack`` is empty unless it was asked for.
    """

    state: str
    reason: str
    count: int
    delay_ns: int
    max_ns: int
    woken_by: str | None
    waker: str | None
    open: bool
    stack: tuple[StackFrame, ...]
    waker_stack: tuple[StackFrame, ...]


class _Profiled:
    """Stacks that can be written as files."""

    _profile: StackProfile

    def to_pprof(self, path: str | os.PathLike[str]) -> None:
        """Write a profile for ``go tool pprof``, gzipped. Raises GotraceError."""
        write_profile(path, self._profile, pprof)

    def to_folded(self, path: str | os.PathLike[str]) -> None:
        """Write folded stacks with their time in ns, for flame graphs. Raises GotraceError."""
        write_profile(path, self._profile, folded)

    def to_speedscope(self, path: str | os.PathLike[str]) -> None:
        """Write a flame graph for https://www.speedscope.app. Raises GotraceError."""
        write_profile(path, self._profile, speedscope)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows a flame graph without a network. Raises GotraceError."""
        write_profile(path, self._profile, html)


class Waits(list[Wait], Table, Recordable, _Profiled):
    """The places where goroutines waited, the longest first.

    ``total_count`` and ``delay_ns`` are the sums of ``count`` and ``delay_ns``, with those for
    which there was no row to keep them by stack (``others``: how many, and their time). ``earlier``
    waits are not in them: they had begun before.
    """

    def __init__(
        self,
        meter: WaitMeter | SyscallMeter,
        state: WaitState,
        choice: WaitChoice,
        waits: tuple[WaitPeriod, Sequence[WaitRow]],
        earlier: int,
    ) -> None:
        """Name the frames of waits: those of a period, and others that had not ended."""
        period, still_open = waits
        program, others = meter.program, period.others
        rows = named_waits(program, state, [*period.rows, *still_open], choice)
        super().__init__(map(_wait, rows))
        self.others = others
        self.earlier = earlier
        self.total_count = others[0] + sum(row["count"] for row in rows)
        self.delay_ns = others[1] + sum(row["delay_ns"] for row in rows)
        self._rows = rows
        found, now = profile_rows(program, rows), time.time_ns()
        self._profile = StackProfile(FORM, found, "waits", program.mappings(), now)

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return [waits_head(self._rows, self.others, _head_fields(reading)), *self._rows]

    def __repr__(self) -> str:
        """Return the sums: there are many waits."""
        return f"<gotrace.Waits: {self.total_count:,} waits, {self.delay_ns:,} ns>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each of the waits: time, number, state, reason, waker and function.

        That is the innermost function of the program's own.
        """
        names = ("delay_ns", "count", "state", "reason", "waker", "function")
        return names, (
            (
                *(one.delay_ns, one.count, one.state, one.reason, one.waker),
                own_function([frame.function for frame in one.stack]),
            )
            for one in self
        )


@dataclass(frozen=True, slots=True)
class CpuSamples:
    """Samples that are alike: ``samples`` of them stand for ``cpu_ns`` together.

    ``work`` is what the time is spent for: "program", "garbage collection", "GC assist" or
    "scheduler". ``group`` is whose it is: the go statement that made the goroutines, "main
    goroutine", "outside of goroutines", or else the same as ``work``. ``stack`` is from the
    innermost frame on, and empty if there was no room to keep it. ``label`` is the value of the
    goroutines' label, if samples are kept apart by one: "" if they do not have it, None outside of
    goroutines.
    """

    work: str
    group: str
    samples: int
    cpu_ns: int
    stack: tuple[StackFrame, ...]
    label: Any = None


@dataclass(frozen=True, slots=True)
class CpuFunction:
    """The CPU time of a function: its own, and with the functions that it calls."""

    function: str
    self_ns: int
    total_ns: int


class _Sampled(Table, Recordable, _Profiled):
    """Rows of samples by stack, and what their sums, their file and their profile are made of."""

    samples: int
    others: int

    def _take(
        self,
        meter: SampleMeter,
        period: SamplePeriod,
        inside: Sequence[str],
        by: str | None,
        title: str,
    ) -> tuple[Sequence[NamedSamples], Sequence[Json]]:
        """Name the frames of a period's rows, keep them, and return them and their functions."""
        names, of = SampleNames(meter), meter.event
        rows = names.named(period.rows, inside)
        functions = function_rows(rows, of)
        self.others = period.others
        self.samples = period.others + sum(one.samples for one in rows)
        self._rows = [*functions, *(one.row(of, by) for one in rows)]
        self._head = samples_head(rows, period, of, bool(inside), {})
        found, now = names.profile_rows(rows), time.time_ns()
        self._profile = StackProfile(names.form(), found, title, names.mappings(), now)
        return rows, functions

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return [self._head | _head_fields(reading), *self._rows]


class CpuTime(_Sampled, list[CpuSamples]):
    """Where CPU time went, the most first.

    ``samples`` and ``cpu_ns`` are the sums, with ``others``: samples for which there was no row to
    keep them by stack. ``clock_ns`` is how long the threads have run by their own clock, None if
    the process had ended. ``functions`` are all that were on a stack, those with the most time of
    their own first.
    """

    def __init__(
        self,
        meter: SampleMeter,
        period: SamplePeriod,
        inside: Sequence[str] = (),
        by: str | None = None,
    ) -> None:
        """Name the frames of a period's rows; ``by`` is the expression of their label."""
        rows, functions = self._take(meter, period, inside, by, "CPU time")
        super().__init__(
            CpuSamples(
                one.work.value,
                one.group,
                one.samples,
                one.amount,
                tuple(map(_stack_frame, one.frames)),
                None if one.label is None else to_python(one.label),
            )
            for one in rows
        )
        self.clock_ns = period.clock_ns
        self.cpu_ns = period.others_amount + sum(one.amount for one in rows)
        self.functions = [
            CpuFunction(row["func"], row["self_ns"], row["total_ns"]) for row in functions
        ]

    def __repr__(self) -> str:
        """Return the sums: there are many samples."""
        return f"<gotrace.CpuTime: {self.samples:,} samples, {self.cpu_ns:,} ns>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each of the functions: its own time, with what it calls, its name."""
        rows = ((one.self_ns, one.total_ns, one.function) for one in self.functions)
        return ("self_ns", "total_ns", "function"), rows


@dataclass(frozen=True, slots=True)
class AllocSamples:
    """Sampled allocations that are alike: so many ``samples`` stand for ``bytes`` and ``objects``.

    ``group``, ``stack`` and ``label`` are as of ``CpuSamples``. The stack begins at the function
    that has called the runtime.
    """

    group: str
    samples: int
    bytes: int
    objects: int
    stack: tuple[StackFrame, ...]
    label: Any = None


@dataclass(frozen=True, slots=True)
class AllocFunction:
    """The bytes that a function allocates: its own, and with the functions that it calls.

    The errors are standard errors of these, as a part of the sum.
    """

    function: str
    self_bytes: int
    total_bytes: int
    self_error: int
    total_error: int


class Allocations(_Sampled, list[AllocSamples]):
    """Who has allocated memory, the most bytes first.

    ``samples`` and ``bytes`` are the sums, with ``others``: samples for which there was no row.
    ``sampled`` are the bytes that samples alone stand for, ``counter`` those by the runtime's own
    counter, None if it is not known; if it is, ``bytes`` are these. ``functions`` are all that were
    on a stack. ``method`` is "samples" if the target's runtime samples, else "spans".
    """

    def __init__(
        self,
        meter: AllocMeter,
        period: SamplePeriod,
        inside: Sequence[str] = (),
        by: str | None = None,
    ) -> None:
        """Name the frames of a period's rows; ``by`` is the expression of their label."""
        rows, functions = self._take(meter, period, inside, by, meter.event.rows.text)
        super().__init__(
            AllocSamples(
                one.group,
                one.samples,
                one.amount,
                one.objects,
                tuple(map(_stack_frame, one.frames)),
                None if one.label is None else to_python(one.label),
            )
            for one in rows
        )
        self.bytes = self._head["alloc_bytes"]
        self.sampled, self.counter = period.sampled, period.counter
        self.method = period.method
        fields = ("func", "self_bytes", "total_bytes", "self_error", "total_error")
        self.functions = [AllocFunction(*(row[name] for name in fields)) for row in functions]

    def __repr__(self) -> str:
        return f"<gotrace.Allocations: {self.samples:,} samples, {self.bytes:,} bytes>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each of the functions: its own bytes, with what it calls, its name."""
        rows = ((one.self_bytes, one.total_bytes, one.function) for one in self.functions)
        return ("self_bytes", "total_bytes", "function"), rows


@dataclass(frozen=True, slots=True)
class Syscall:
    """The system calls of one name: their ``times``, and how many failed, by the error's name."""

    name: str
    times: Histogram
    errors: Mapping[str, int]


class Syscalls(list[Syscall], Table, Recordable):
    """System calls by name, those that took most time first; ``stacks`` says where they are made.

    Calls that had begun before are in neither: ``stacks.earlier`` is how many.
    """

    def __init__(self, sums: Iterable[SyscallSums], stacks: Callable[[], Waits]) -> None:
        super().__init__(Syscall(one.name, one.times, one.errors) for one in sums)
        self.stacks = stacks()
        self._measured = tuple(self)

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return [*self.stacks.result_rows(reading), *map(syscall_row, self._measured)]

    def __repr__(self) -> str:
        calls, ns = sum(one.times.count for one in self), sum(one.times.sum for one in self)
        return f"<gotrace.Syscalls: {calls:,} calls of {len(self):,} names, {ns:,} ns>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each name: its calls' times, how many failed, and the name."""
        rows = ((*_times(one.times), sum(one.errors.values()), one.name) for one in self)
        return (*_TIMES, "errors", "name"), rows


@dataclass(frozen=True, slots=True)
class GoroutineTime:
    """The time of a group of goroutines, by state; ``wall_ns`` is the sum.

    Threads without a goroutine, and the scheduler, have nothing but ``running_ns``.
    """

    group: str
    wall_ns: int
    running_ns: int
    runnable_ns: int
    syscall_ns: int
    waiting_ns: int


class WallTime(list[GoroutineTime], Table, Recordable, _Profiled):
    """All of goroutines' time by group, the most first.

    ``wall_ns`` is the sum, with ``others``: how many stays in a state found no row, and their time.
    """

    def __init__(
        self,
        meter: SampleMeter,
        rows: Sequence[WallRow],
        others: tuple[int, int],
        period: SamplePeriod,
    ) -> None:
        """Name the frames of the rows of all states, and of the samples of a period."""
        names = SampleNames(meter)
        groups = wall_groups(rows, names.named(period.rows), names, meter.event.period)
        states = State.RUNNING, State.RUNNABLE, State.SYSCALL, State.WAITING
        super().__init__(
            GoroutineTime(one.name, one.wall_ns, *(one.ns[state] for state in states))
            for one in groups
        )
        self.others = others
        self.wall_ns = others[1] + sum(one.wall_ns for one in groups)
        stacks = RowStacks(names.program)
        self._head = wall_head(groups, others, {})
        self._rows = [row for one in groups for row in one.table_rows(stacks)]
        found, now = [row for one in groups for row in one.profile_rows(names)], time.time_ns()
        self._profile = StackProfile(WALL_FORM, found, "goroutines' time", names.mappings(), now)

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return [self._head | _head_fields(reading), *self._rows]

    def __repr__(self) -> str:
        return f"<gotrace.WallTime: {len(self):,} groups, {self.wall_ns:,} ns>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each group: its time, by what its goroutines did, and its name."""
        names = ("wall_ns", "running_ns", "runnable_ns", "syscall_ns", "waiting_ns", "group")
        return names, ([getattr(one, name) for name in names] for one in self)


#: Of a table of histograms, after what these are of.
_TIMES = ("count", "sum_ns", "p50_ns", "p99_ns", "max_ns")


def _times(times: Histogram) -> tuple[int, ...]:
    return times.count, times.sum, times.percentile(50), times.percentile(99), times.maximum


def _head_fields(reading: Reading) -> Row:
    """Return the fields of a row that begins others: whose, when and how long."""
    pid = (reading.attached or {}).get("pid")
    return {"pid": pid, "ts": round(reading.ended, 6), "seconds": reading.seconds}


def _interval_rows(interval: Interval, reading: Reading) -> Iterable[Json]:
    when = {"ts": round(reading.ended, 6), "interval_s": round(reading.seconds, 6)}
    rest = [{**row, **when} for row in interval.rest]
    ended, seconds, rates = reading.ended, reading.seconds, reading.rates
    return replace(interval, rest=rest, ended=ended, seconds=seconds, rates=rates).rows()


_NOTHING = Interval((), (), 0.0, 0.0, 1)


class Latencies(dict[str, Histogram], Table, Recordable):
    """Histograms by function name; those that were not called are empty and not listed.

    Any other name is a KeyError.
    """

    def __init__(self, names: Iterable[str], interval: Interval = _NOTHING) -> None:
        """Take the histograms of an interval."""
        super().__init__()
        self._names = frozenset(names)
        self._interval = interval
        for group in interval.groups:
            self[in_program(group.program, group.function or "")] = group.times
            _add_parts(group.times, (group.why or {}).values())

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return _interval_rows(self._interval, reading)

    def __missing__(self, name: str) -> Histogram:
        if name not in self._names:
            raise KeyError(name)
        return Histogram()

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each function, those that took most time first."""
        rows = sorted(self.items(), key=lambda item: -item[1].sum)
        return ("function", *_TIMES), ((name, *_times(times)) for name, times in rows)


class GoroutineLatencies(dict[Goroutine, Histogram], Table, Recordable):
    """Histograms by goroutine."""

    def __init__(
        self, names: Sequence[ProgramFunction], period: Measurement, interval: Interval
    ) -> None:
        """Take the histograms of a period; ``interval`` has them for a recording."""
        super().__init__()
        self._interval = interval
        for key, goroutine in period.goroutines.items():
            function = names[key.row]
            task = Goroutine(function.name, key.pid, key.goid, function.program)
            self.setdefault(task, Histogram()).merge(goroutine.times)
        for row, rest in period.rest.items():
            if rest.times.count:
                others = Goroutine(names[row].name, 0, None, names[row].program)
                self.setdefault(others, Histogram()).merge(rest.times)

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        return _interval_rows(self._interval, reading)

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each goroutine, those that took most time first."""
        rows = sorted(self.items(), key=lambda item: -item[1].sum)
        return ("function", "pid", "goid", *_TIMES), (
            (one.function, one.pid, one.goid, *_times(times)) for one, times in rows
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of a function that have the same values: ``calls`` of them.

    ``by`` has the values by their expressions. ``program`` is the name of the function's
    program, None where only one is traced. ``own_ns`` is the calls' time without the calls within
    them that are in groups, for durations by ``$stack``: profiles have it.
    """

    function: str
    by: Mapping[str, Any]
    calls: int
    _times: Histogram | None = None
    _values: ValueHistogram | None = None
    program: str | None = None
    own_ns: int | None = None

    @property
    def times(self) -> Histogram:
        """Return the durations in ns. Raises UsageError if they were not measured."""
        if self._times is None:
            raise UsageError("these calls have no times: use latency(), without of")
        return self._times

    @property
    def values(self) -> ValueHistogram:
        """Return the values of ``of``. Raises UsageError if it was not given."""
        if self._values is None:
            raise UsageError("these calls have no values: give latency() an expression as of")
        return self._values


class Groups(list[Group], Table, Recordable, _Profiled):
    """Calls added up by their values, those of most calls first.

    ``others`` is the number of calls for which there was no row; they are in no group.
    ``uncounted`` has the functions of which there may be more calls: in how many places each is
    inlined where calls may be missing. Profiles can be written if the key has ``$stack``.
    """

    def __init__(self, run: Run[KeyMeter, Any], request: KeyRequest, period: KeyPeriod) -> None:
        """Take the sums of a run."""
        super().__init__()
        self._key, self.others = request.key.texts, 0
        self._of = request.of.texts[0] if request.of else None
        self._unit = run.traced.unit if run.traced else None
        self._measured = run.plan.names, self._key, period.rows
        self._places = key_places(run.plan, period.rows)
        whole = run.plan.whole
        self.uncounted: Mapping[str, int] = _uncounted(whole.places if whole else {})
        self._ways = run.meter.take_ways()
        self._stacks: StackProfile | None = None
        if STACK in self._key:
            what = period.rows, self._of, request.asked.patterns, time.time_ns(), 0
            self._stacks = key_profile(run.plan, request.key, *what)
        for row in period.rows:
            if row.function is None or row.values is None:
                self.others += row.calls
                continue
            name = run.plan.names[row.function]
            values = zip(self._key, row.values, strict=True)
            by = {text: _group_value(text, value) for text, value in values}
            if row.times is not None and row.why is not None:
                _add_parts(row.times, row.why.values())
            row_of = row.calls, row.times, row.measured
            self.append(Group(name.name, by, *row_of, name.program, row.own))
        self.sort(key=lambda one: -one.calls)

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        when = reading.ended, reading.seconds
        if self._of is not None:
            of, groups = (self._of, self._unit), key_values(*self._measured)
            groups.sort(key=lambda group: (group[1].count, repr(group[2])))
            return [value_row(name, values, of, by, when) for name, values, by in groups]
        if any(row.times is not None for row in self._measured[2]):
            found = key_groups(*self._measured, None)
            found.sort(key=lambda group: group.times.sum)
            total = sum(group.times.sum for group in found)
            shown = Interval(found, (), *when, 1, False, self._ways, total, reading.rates)
            return shown.rows()
        counts = key_counts(*self._measured)
        return count_rows(counts, when, rates=reading.rates, more=self._places)

    @property
    def _profile(self) -> StackProfile:  # type: ignore[override]
        if self._stacks is None:
            raise UsageError(f"these calls have no stacks: give by={STACK!r}")
        return self._stacks

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each group: its function, its values, its calls, and its times."""
        times = bool(self) and self[0]._times is not None
        return ("function", *self._key, "calls", *(_TIMES[1:] if times else ())), (
            (
                *(one.function, *map(_by_cell, one.by.values()), one.calls),
                *(_times(one.times)[1:] if times else ()),
            )
            for one in self
        )


def _by_cell(value: Any) -> str:
    like = "like " if isinstance(value, GoError) and value.kind is not None else ""
    return f"{like}{value}"


def _group_value(text: str, value: Any) -> Any:
    return tuple(stack_of(value)[0]) if text == STACK else to_python(value)


def _uncounted(places: Mapping[CountedFunction, InlinedPlaces]) -> dict[str, int]:
    return {one.text: found.uncounted for one, found in places.items() if found.uncounted}


class Counts(Counter[str], Table, Recordable):
    """Calls by function name; those that were not called are 0 and not listed.

    Where several programs are traced the names are with the programs': ``shop:main.f``.
    ``uncounted`` has the functions of which there may be more calls: in how many places each is
    inlined and not counted.
    """

    uncounted: Mapping[str, int] = {}
    _measured: Mapping[CountedFunction, int] = {}
    _places: Mapping[CountedFunction, InlinedPlaces] = {}

    @classmethod
    def _of(
        cls,
        names: Iterable[CountedFunction],
        places: Mapping[CountedFunction, InlinedPlaces],
        calls: Iterable[int],
    ) -> Counts:
        """Return the calls of functions, several of which may have one name."""
        measured: Counter[CountedFunction] = Counter()
        for function, count in zip(names, calls, strict=True):
            if count:
                measured[function] += count
        counts = cls({function.text: count for function, count in measured.items()})
        counts._measured, counts._places = measured, places
        counts.uncounted = _uncounted(places)
        return counts

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        when = reading.ended, reading.seconds
        return inlined_rows(self._measured, self._places, when, rates=reading.rates)

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each function, the most called first."""
        return ("function", "calls"), self.most_common()


class Goroutines(list[GoroutineState], Recordable):
    """The goroutines of a program at one moment."""

    def __init__(
        self, dump: Dump, chosen: Sequence[DumpedGoroutine], waits: WaitsByG, asked: Row
    ) -> None:
        """Name the frames of those that are wanted, which were ``asked`` for."""
        super().__init__(_goroutine_states(dump, chosen, waits))
        self._rows = DumpRows(dump.program, chosen, dump.labels, waits)
        numbers = {"goroutines": len(dump.goroutines), "shown": len(chosen), "moved": dump.moved}
        self._head = {"kind": "dump", **asked, **numbers}

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        ts, stacks = round(reading.ended, 6), self._rows.stacks
        yield {**self._head, "ts": ts}
        for one, row in self._rows.rows(ts):
            yield {**row, "stack": stacks[one.stack]}


def _goroutine_states(
    dump: Dump, goroutines: Iterable[DumpedGoroutine], waits: WaitsByG
) -> Iterator[GoroutineState]:
    program = dump.program
    stacks: dict[Stack, tuple[StackFrame, ...]] = {}
    for one in goroutines:
        if one.stack not in stacks:
            frames = program.frames(one.stack)
            stacks[one.stack] = tuple(_stack_frame(f) for f in frames if not f.is_elided)
        creation = program.creation(one.created_by) if one.goid != 1 else None
        yield GoroutineState(
            one.goid,
            one.state.value,
            one.reason,
            one.waiting_ns,
            one.awaited.type if one.awaited else None,
            one.awaited.address if one.awaited else None,
            _stack_frame(creation) if creation else None,
            one.parent or None,
            one.is_system,
            one.has_moved,
            stacks[one.stack],
            dict(dump.labels_of(one)),
            tuple(map(_channel, waits.get(one.g, NO_DETAILS).channels)),
            waits.get(one.g, NO_DETAILS).lock or None,
        )


def _channel(channel: ChannelWait) -> WaitedChannel:
    direction, elem = channel.direction.verb, channel.elem or None
    place = channel.address, channel.length, channel.capacity
    return WaitedChannel(direction, elem, *place, channel.is_timer, channel.field or None)


def _wait(row: Row) -> Wait:
    known = {
        name: row[name]
        for name in ("state", "count", "delay_ns", "max_ns", "woken_by", "waker", "open")
    }
    stacks = row["stack"].frames, row["waker_stack"].frames if "waker_stack" in row else ()
    stack, waker_stack = (tuple(map(_stack_frame, frames)) for frames in stacks)
    return Wait(**known, reason=row["reason"] or "", stack=stack, waker_stack=waker_stack)


def _stack_frame(frame: Frame) -> StackFrame:
    return StackFrame(frame.function, frame.file, frame.line)


def _add_parts(times: Histogram, bands: Iterable[PartSums]) -> None:
    """Add the parts of durations to their histogram."""
    for sums in bands:
        for name, totals in sums.parts.items():
            times.why[name] = times.why.get(name, 0) + totals.ns
