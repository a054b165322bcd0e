# SPDX-License-Identifier: Apache-2.0
"""gotrace as a library: attach, then iterate over calls, count them or measure them.

Provisional: names may change until the first release. docs/api.md shows the use. Nothing here
handles signals or prints; it works in any thread, and several sessions at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload
from weakref import WeakSet

from gotrace.calls import Call, LostCalls, StackFrame
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.groups import GoroutineFilter
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.model import DumpedGoroutine, Frame, Stack, State, own_function
from gotrace.goroutines.program import CodeNames
from gotrace.histogram import Histogram, ValueHistogram
from gotrace.overhead import ProbeCost
from gotrace.profiles.folded import folded
from gotrace.profiles.html import html
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import write_profile
from gotrace.records import dataclass
from gotrace.requests.assemble import Assembler, Tally, request_probes
from gotrace.requests.flight import FlightReader, flight_of, flight_size, probes_in
from gotrace.requests.model import Request
from gotrace.requests.recording import Recorder, Recording
from gotrace.results.rows import Row
from gotrace.session.choices import HERTZ, MAX_STACK_FRAMES, ReturnMode, WaitState
from gotrace.session.count import CountRequest
from gotrace.session.decode import CallDecoder, Undecided
from gotrace.session.events import function_of
from gotrace.session.key_stacks import STACK, key_profile, stack_of
from gotrace.session.keys import (
    MAX_KEY_TEXT,
    KeyMeter,
    KeyOptions,
    KeyPeriod,
    KeyRequest,
    KeyText,
    key_of,
)
from gotrace.session.latency import LatencyOptions, LatencyRequest, Measurement
from gotrace.session.oncpu.groups import WALL_FORM, WallGroup, wall_groups
from gotrace.session.oncpu.meter import CpuPeriod, CpuRequest
from gotrace.session.oncpu.naming import FORM as CPU_FORM
from gotrace.session.oncpu.naming import CpuNames, function_rows
from gotrace.session.oncpu.wall import WallRequest
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProgramFunction
from gotrace.session.probing import Probing
from gotrace.session.reading import RecordReader
from gotrace.session.request import Asked, RunRequest
from gotrace.session.run import End, NoteKind, Run, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.trace import CallTracer, TraceOptions, TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.session.undisturbed import Opened
from gotrace.session.waits.meter import WaitRequest
from gotrace.session.waits.names import SyscallRequest, SyscallSums, syscall_price
from gotrace.session.waits.naming import (
    FORM,
    WaitChoice,
    named_waits,
    profile_rows,
)
from gotrace.session.why.parts import PartSums
from gotrace.session.why.price import MAX_SHARE, price_of
from gotrace.session.why.price import Price as CountedPrice
from gotrace.session.why.probes import WhyOptions
from gotrace.tables import Table
from gotrace.target.process import ProcessError, process_numbers
from gotrace.target.target import Target
from gotrace.target.wait import Reason, Waiter
from gotrace.text import counted
from gotrace.values.python import to_python

if TYPE_CHECKING:  # loaded where they are made
    from gotrace.live.attached import AttachPrice
    from gotrace.live.model import Snapshot
    from gotrace.live.monitor import Monitor

__all__ = [
    "CallStream",
    "Counts",
    "CpuFunction",
    "CpuSamples",
    "CpuTime",
    "FlightStream",
    "Function",
    "Goroutine",
    "GoroutineState",
    "GoroutineTime",
    "Group",
    "Groups",
    "RequestStream",
    "Session",
    "SnapshotStream",
    "Syscall",
    "Syscalls",
    "TracingWarning",
    "Wait",
    "Waits",
    "WallTime",
    "attach",
    "path",
    "start",
]

_PERIOD = 0.025  # seconds between two looks at the event buffers
_READING = 0.02  # seconds of reading at a time
_LOOK = 1.0  # seconds between two looks at a run that only counts
#: Where calls are seen returning.
_Returns = Literal["ret", "landing", "auto"]
_HARVEST = 0.1  # seconds between two looks for goroutines that have ended
_MAX_WARNINGS = 5
_KEY_TEXT = 64  # bytes of a text that calls are kept apart by, unless a user says how many

#: Planning, compiling and attaching are done by one thread at a time: the compiler writes to
#: standard error, which is redirected meanwhile, and the processes that hold probes are forked.
_STARTING = threading.RLock()


def _start_afresh() -> None:
    """Forget who starts, in a process that was forked and has this thread alone."""
    global _STARTING
    _STARTING = threading.RLock()


os.register_at_fork(after_in_child=_start_afresh)

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Probing)
_C = TypeVar("_C")
_F = TypeVar("_F", bound=Callable[..., Any])


class TracingWarning(UserWarning):
    """Something is not traced, or not as asked; the message says what and why."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function that a pattern selects.

    ``file`` and ``line`` are where it is declared, None where that is not known. ``inlined`` is in
    how many places it was inlined, where no probe sees its calls. ``program`` is its program's
    name, None where all functions are of one.
    """

    name: str
    file: str | None
    line: int | None
    inlined: int
    program: str | None = None


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
class GoroutineState:
    """The state of a goroutine at one moment.

    ``state`` is a word such as "waiting" or "running", ``reason`` why it waits ("" where it does
    not), ``waiting_ns`` for how long at least (None where that is not known). ``awaits`` is the
    type of what it waits for ("chan", "sync.Mutex"), ``address`` where that is; both None where
    that is not known. ``created_by`` is the ``go`` statement, ``parent`` the goroutine that ran it
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


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits that are alike: ``count`` of them took ``delay_ns`` together.

    ``reason`` is why, in Go's words, "" where there is none. ``waker`` is the function that ended
    them, None where that was not a goroutine; ``woken_by`` says what it was: "goroutine", "timer",
    "network poller" or "runtime", None where that is not known. ``open``: they had not ended.
    Stacks are from the innermost frame on; ``waker_stack`` is empty unless it was asked for.
    """

    state: str
    reason: str
    count: int
    delay_ns: int
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


class Waits(list[Wait], Table, _Profiled):
    """The places where goroutines waited, the longest first.

    ``contentions`` (how many) and ``delay_ns`` are the sums, with those for which there was no row
    to keep them by stack (``others``: how many, and their time). ``earlier`` waits are not in them:
    they had begun before.
    """

    def __init__(
        self,
        program: CodeNames,
        rows: Sequence[Row],
        others: tuple[int, int],
        earlier: int,
    ) -> None:
        """Name the frames of rows; ``program`` is that of their addresses."""
        super().__init__(map(_wait, rows))
        self.others = others
        self.earlier = earlier
        self.contentions = others[0] + sum(row["count"] for row in rows)
        self.delay_ns = others[1] + sum(row["delay_ns"] for row in rows)
        found, now = profile_rows(program, rows), time.time_ns()
        self._profile = StackProfile(FORM, found, "waits", program.mappings(), now)

    def __repr__(self) -> str:
        """Return the sums: there are many waits."""
        return f"<gotrace.Waits: {self.contentions:,} waits, {self.delay_ns:,} ns>"

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


class CpuTime(list[CpuSamples], Table, _Profiled):
    """Where CPU time went, the most first.

    ``samples`` and ``cpu_ns`` are the sums, with ``others``: samples for which there was no row to
    keep them by stack. ``clock_ns`` is how long the threads have run by their own clock, None if
    the process had ended. ``functions`` are all that were on a stack, those with the most time of
    their own first.
    """

    def __init__(self, names: CpuNames, period: CpuPeriod, ns: int, inside: Sequence[str]) -> None:
        """Name the frames of a period's rows; each sample stands for ``ns``."""
        rows = names.named(period.rows, inside)
        super().__init__(
            CpuSamples(
                one.work.value,
                one.group,
                one.samples,
                one.samples * ns,
                tuple(map(_stack_frame, one.frames)),
                None if one.label is None else to_python(one.label),
            )
            for one in rows
        )
        self.others = period.others
        self.clock_ns = period.cpu_ns
        self.samples = period.others + sum(one.samples for one in rows)
        self.cpu_ns = self.samples * ns
        self.functions = [
            CpuFunction(row["func"], row["self_ns"], row["total_ns"])
            for row in function_rows(rows, ns)
        ]
        found, now = names.profile_rows(rows, ns), time.time_ns()
        self._profile = StackProfile(CPU_FORM, found, "CPU time", names.mappings(), now)

    def __repr__(self) -> str:
        """Return the sums: there are many samples."""
        return f"<gotrace.CpuTime: {self.samples:,} samples, {self.cpu_ns:,} ns>"

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each of the functions: its own time, with what it calls, its name."""
        rows = ((one.self_ns, one.total_ns, one.function) for one in self.functions)
        return ("self_ns", "total_ns", "function"), rows


@dataclass(frozen=True, slots=True)
class Syscall:
    """The system calls of one name: their ``times``, and how many failed, by the error's name."""

    name: str
    times: Histogram
    errors: Mapping[str, int]


class Syscalls(list[Syscall], Table):
    """System calls by name, those that took most time first; ``stacks`` says where they are made.

    Calls that had begun before are in neither: ``stacks.earlier`` is how many.
    """

    def __init__(self, sums: Iterable[SyscallSums], stacks: Waits) -> None:
        super().__init__(Syscall(one.name, one.times, one.errors) for one in sums)
        self.stacks = stacks

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


class WallTime(list[GoroutineTime], Table, _Profiled):
    """All of goroutines' time by group, the most first.

    ``wall_ns`` is the sum, with ``others``: how many stays in a state found no row, and their time.
    """

    def __init__(
        self, groups: Iterable[WallGroup], others: tuple[int, int], names: CpuNames
    ) -> None:
        groups = list(groups)
        states = State.RUNNING, State.RUNNABLE, State.SYSCALL, State.WAITING
        super().__init__(
            GoroutineTime(one.name, one.wall_ns, *(one.ns[state] for state in states))
            for one in groups
        )
        self.others = others
        self.wall_ns = others[1] + sum(one.wall_ns for one in groups)
        found, now = [row for one in groups for row in one.profile_rows(names)], time.time_ns()
        self._profile = StackProfile(WALL_FORM, found, "goroutines' time", names.mappings(), now)

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


class Latencies(dict[str, Histogram], Table):
    """Histograms by function name; those that were not called are empty and not listed.

    Any other name is a KeyError.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._names = frozenset(names)

    def __missing__(self, name: str) -> Histogram:
        if name not in self._names:
            raise KeyError(name)
        return Histogram()

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each function, those that took most time first."""
        rows = sorted(self.items(), key=lambda item: -item[1].sum)
        return ("function", *_TIMES), ((name, *_times(times)) for name, times in rows)


class _GoroutineLatencies(dict[Goroutine, Histogram], Table):
    """Histograms by goroutine."""

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each goroutine, those that took most time first."""
        rows = sorted(self.items(), key=lambda item: -item[1].sum)
        return ("function", "pid", "goid", *_TIMES), (
            (one.function, one.pid, one.goid, *_times(times)) for one, times in rows
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of a function that have the same values: ``calls`` of them.

    ``by`` has the values by their expressions. ``times`` are the durations in ns, and ``values``
    those of ``of``, each None if that was not asked for. ``program`` is the name of the function's
    program, None where only one is traced. ``own_ns`` is the calls' time without the calls within
    them that are in groups, for durations by ``$stack``: profiles have it.
    """

    function: str
    by: Mapping[str, Any]
    calls: int
    times: Histogram | None = None
    values: ValueHistogram | None = None
    program: str | None = None
    own_ns: int | None = None


class Groups(list[Group], Table, _Profiled):
    """Calls added up by their values, those of most calls first.

    ``others`` is the number of calls for which there was no row; they are in no group. Profiles can
    be written if the key has ``$stack``.
    """

    def __init__(self, run: Run[KeyMeter, Any], request: KeyRequest, period: KeyPeriod) -> None:
        """Take the sums of a run."""
        super().__init__()
        self._key, self.others = request.key.texts, 0
        self._stacks: StackProfile | None = None
        if STACK in self._key:
            of = request.of.texts[0] if request.of else None
            what = period.rows, of, request.asked.patterns, time.time_ns(), 0
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

    @property
    def _profile(self) -> StackProfile:  # type: ignore[override]
        if self._stacks is None:
            raise UsageError(f"these calls have no stacks: give by={STACK!r}")
        return self._stacks

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each group: its function, its values, its calls, and its times."""
        times = self[0].times is not None if self else False
        return ("function", *self._key, "calls", *(_TIMES[1:] if times else ())), (
            (
                *(one.function, *map(str, one.by.values()), one.calls),
                *(_times(one.times)[1:] if one.times is not None else ()),
            )
            for one in self
        )


def _group_value(text: str, value: Any) -> Any:
    return tuple(stack_of(value)[0]) if text == STACK else to_python(value)


class Counts(Counter[str], Table):
    """Calls by function name; those that were not called are 0 and not listed.

    Where several programs are traced the names are with the programs': ``shop:main.f``.
    """

    def table(self) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return a row for each function, the most called first."""
        return ("function", "calls"), self.most_common()


def attach(process: int | str, *others: int | str) -> Session:
    """Return a session on a running process, or on several, of one program or of more.

    Each is given by its number or by its name, which stands for all processes that are called so.
    Raises ProcessError if there is no such process, UsageError for more than eight.
    """
    pids = process_numbers((process, *others))
    return Session(Target.of(pids[0], None) if len(pids) == 1 else Target.of(None, None, pids=pids))


def start(command: Sequence[str]) -> Session:
    """Return a session on a command, without a shell, that the session's first run starts.

    So no call is missed. ``command`` is the program, looked up on PATH, and its arguments. Raises
    CommandError if the program does not exist, and UsageError if the command is one string.
    """
    if isinstance(command, str):
        words = command.split()
        raise UsageError(f"a command is a list of words, without a shell: start({words})")
    with _STARTING:
        return Session(Target.of(None, list(command)))


def path(file: str | os.PathLike[str]) -> Session:
    """Return a session on all processes that run a file, those yet to be started included."""
    return Session(Target(), os.fspath(file))


def _in_use(method: _F) -> _F:
    """Keep a session open while a method of it runs, or refuse to run the method."""

    @wraps(method)
    def run(self: Session, *args: Any, **options: Any) -> Any:
        with self._opened.used("this session is closed: use it within its with block"):
            return method(self, *args, **options)

    return run  # type: ignore[return-value]


class Session:
    """The traced processes; a context manager that detaches and closes everything at its end.

    A session belongs to one thread at a time, ``stop`` and ``close`` aside; sessions are
    independent of each other.
    """

    def __init__(self, target: Target, file: str | None = None) -> None:
        """Take over the target; ``file`` is what patterns mean that name none."""
        self._target = target
        self._file = file
        self._runs: WeakSet[Run[Any, Any]] = WeakSet()
        self._lock = threading.Lock()
        self._attaching_runs = 0
        #: Whether ``stop`` has been called for a run that is not attached yet.
        self._stop_asked = False
        self._has_run = False
        self._streams: WeakSet[_Iteration[Any]] = WeakSet()
        self._opened = Opened()
        self._opened.enter(closing(target))
        _SESSIONS.add(self)

    def __repr__(self) -> str:
        """Return the name of the target, and whether the session is closed."""
        if self._file is not None:
            what = f"all processes of {self._file}"
        elif self._target.command is not None:
            what = f"command {self._target.command.path}, process {self.pid}"
        else:
            numbers = [str(one.tgid) for one in self._target.watched]
            what = f"process{'es' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        return f"<gotrace.Session of {what}{', closed' if self._opened.is_closing else ''}>"

    @property
    def pid(self) -> int | None:
        """Return the process's number, None for several, and for all that run a file."""
        return self._target.pid or None

    @_in_use
    def functions(
        self, *patterns: str, exclude: Iterable[str] = (), regexp: bool = False
    ) -> list[Function]:
        """Return the functions that patterns and recipes select, by file and address.

        Raises NoMatchError, which says what is near, where a pattern selects nothing.
        """
        with _STARTING, _os_errors():
            asked = self._asked(patterns, exclude, regexp)
            if asked.has_recipes:
                choices = TraceChoices.of(None, None, entry_only=True, floats=False)
                found = TraceRequest(target=self._target, asked=asked, choices=choices).select()
            else:
                found = CountRequest(target=self._target, asked=asked, verb="trace").select()
            functions: dict[tuple[int, int, int], Function] = {}
            programs = found.program_names
            for selected in found.selected:
                table, file = selected.binary.functions, selected.binary.image.identity
                inlined = table.inlined_by_name()
                for row in selected.rows:
                    function = table.function(row)
                    at = table.declared_at(row)
                    functions[file.device, file.inode, function.entry] = Function(
                        function.name,
                        at.file if at else None,
                        at.line if at else None,
                        inlined.count(function.name) if inlined else 0,
                        programs.get(selected.binary),
                    )
            return list(functions.values())

    @_in_use
    def trace(
        self,
        *probes: str,
        limit: int | None = None,
        seconds: float | None = None,
        lossy: bool = False,
        stacks: bool = False,
        entry: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        why: bool = False,
        force: bool = False,
        returns: _Returns = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
    ) -> CallStream:
        """Attach, and return an iterator of the calls from then on, as they end.

        It ends after ``limit`` calls, after some ``seconds``, or with the target. At its end it
        raises LostCalls where calls are missing, unless ``lossy``. Leaving the loop, by ``break``
        or an exception, detaches if nothing else holds the iterator; ``close`` always does.

        ``stacks``: calls have the goroutine's stack. ``entry``: calls are seen when they are
        entered. At most ``string_size`` bytes of a string are captured, and ``depth`` (0 to 5)
        pointers followed, one from the other. ``floats``: float registers are read, which sends
        the thread SIGURG. ``why``: calls say what their time went into, which costs the program
        something at each change of state of any goroutine; where that is more than a fifth of one
        CPU it takes ``force``. Predicates such as ``$blocked > 5ms`` cost the same. ``regexp``:
        patterns are regular expressions. ``returns``: see ``latency``.

        ``budget`` is what tracing may take from the program, as a part of one CPU. If it takes
        more, calls of the dearest function are counted and not traced, then not even counted. At
        the end that is a GotraceError, or a warning if ``lossy``.

        Raises GotraceError: UsageError, NoMatchError, AttachError, LoadError and others.
        """
        _check(seconds, limit=limit, string_size=string_size)
        if not 0 <= depth <= 5:
            raise UsageError(f"depth is {depth}: give 0 to 5")
        request = TraceRequest(
            target=self._target,
            asked=self._asked(probes, exclude, regexp),
            returns=_returns(returns),
            budget=_budget(budget),
            why=WhyOptions(callers=True) if why else None,
            choices=TraceChoices.of(string_size, depth, entry, floats),
            options=TraceOptions(user_stack=MAX_STACK_FRAMES if stacks else 0),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "why=True")
            stream = CallStream(self, run, *request.decoders(run), limit, lossy, opened.keep())
        return self._streaming(stream)

    @_in_use
    def requests(
        self,
        root: str,
        *patterns: str,
        limit: int | None = None,
        seconds: float | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        why: bool = False,
        critical: bool = False,
        force: bool = False,
        exclude: Iterable[str] = (),
    ) -> RequestStream:
        """Attach, and return an iterator of requests from then on, as they are whole.

        Each call of ``root`` begins one, but for calls within another one in its goroutine. Calls
        of ``patterns`` that are made for it are its nodes, in any goroutine: docs/requests.md says
        how that is known. A predicate of the root chooses requests when they end. To see work go
        from goroutine to goroutine costs the program something at each operation on a channel and
        each wait: where that is more than a fifth of one CPU it takes ``force``. ``critical``:
        requests have their critical paths, for which each change of a goroutine's state is
        reported. Other parameters and errors are as for ``trace``.
        """
        _check(seconds, limit=limit, string_size=string_size)
        if not 0 <= depth <= 5:
            raise UsageError(f"depth is {depth}: give 0 to 5")
        asked = self._asked((root, *patterns), exclude, regexp=False)
        roots, probes = request_probes(asked, self._target)
        request = TraceRequest(
            target=self._target,
            asked=asked,
            probes=probes,
            why=WhyOptions(callers=True) if why else None,
            choices=TraceChoices.of(string_size, depth, False, floats),
            options=TraceOptions(roots=roots, states=critical),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "requests()")
            decoders, undecided = request.decoders(run)
            assembler = Assembler(decoders, roots, run.meter.wait_reasons if critical else ())
            taken = (self, run, decoders, undecided, limit, lossy, opened.keep())
            stream = RequestStream(assembler, *taken)
        return self._streaming(stream)

    @_in_use
    def flight(
        self,
        *patterns: str,
        seconds: float,
        when: str | Iterable[str] = (),
        memory: int | None = None,
        limit: int | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        force: bool = False,
        exclude: Iterable[str] = (),
    ) -> FlightStream:
        """Attach, and return an iterator of recordings: of the time before a condition holds.

        Calls of ``patterns`` and goroutines' states are kept in the kernel, in ``memory`` bytes, in
        which the latest overwrite the oldest ones; None is for 256 MB, or an eighth of what is
        free. Each of ``when`` is a probe, whose calls begin requests, and end recordings if it
        wants them; ``"panic"``; or ``"signal TERM"``. A recording has what ended in the
        ``seconds`` before that, and all of the call. ``FlightStream.ask`` has one made in any case.
        The iterator ends after ``limit`` recordings, or with the target. Other parameters and
        errors are as for ``requests``.
        """
        _check(seconds, limit=limit, string_size=string_size, memory=memory)
        if not 0 <= depth <= 5:
            raise UsageError(f"depth is {depth}: give 0 to 5")
        conditions = [when] if isinstance(when, str) else list(when)
        asked = self._asked((*probes_in(conditions), *patterns), exclude, regexp=False)
        with _os_errors():
            size = memory or flight_size()
        probes, options = flight_of(asked, self._target, conditions, size)
        request = TraceRequest(
            target=self._target,
            asked=asked,
            probes=probes,
            choices=replace(TraceChoices.of(string_size, depth, False, floats), first_alone=True),
            options=options,
        )
        with Opened() as opened:
            run = self._begun(opened, request, None, force, "flight()")
            taken = (self, run, *request.decoders(run), limit, lossy, opened.keep())
            stream = FlightStream(options, seconds, *taken)
        return self._streaming(stream)

    @_in_use
    def record(
        self,
        *patterns: str,
        seconds: float | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        force: bool = False,
        exclude: Iterable[str] = (),
        ready: Callable[[], object] | None = None,
    ) -> Recording:
        """Trace for some ``seconds``, or until the target ends or ``stop`` is called.

        Return all calls of ``patterns`` that ended meanwhile, and goroutines' states. If ``lossy``,
        a recording has what came after the last loss of records, and is not refused. ``ready`` is
        called once the probes are attached. Other parameters and errors are as for ``requests``.
        """
        _check(seconds, string_size=string_size)
        if not 0 <= depth <= 5:
            raise UsageError(f"depth is {depth}: give 0 to 5")
        request = TraceRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp=False),
            choices=TraceChoices.of(string_size, depth, False, floats),
            options=TraceOptions(states=True),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "record()")
            decoders, undecided = request.decoders(run)
            taken = (self, run, decoders, undecided, None, lossy, opened.keep())
            with closing(_RecordStream(*taken)) as stream:
                if ready is not None:
                    ready()
                (recording,) = stream
        return recording

    @overload
    def count(
        self,
        *patterns: str,
        seconds: float | None = None,
        lossy: bool = False,
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> Counts: ...

    @overload
    def count(
        self,
        *patterns: str,
        seconds: float | None = None,
        by: str | Iterable[str],
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> Groups: ...

    @_in_use
    def count(
        self,
        *patterns: str,
        seconds: float | None = None,
        by: str | Iterable[str] = (),
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> Counts | Groups:
        """Count calls for some ``seconds``, or until the target ends, or ``stop`` is called.

        ``by`` are expressions, such as ``"key"``, ``"$ret2 != nil"`` or ``"$stack"``: calls are
        added up by their values, and patterns may be whole probes. There are at most so many
        ``rows``, and texts are compared by their first ``string_size`` bytes. ``ready`` is called
        once the probes are attached. ``budget``: see ``trace``. Raises GotraceError as ``trace``
        does; LostCalls where calls are missing, unless ``lossy``.
        """
        _check(seconds, rows=rows, string_size=string_size)
        if by:
            keyed = KeyRequest(
                target=self._target,
                asked=self._asked(patterns, exclude, regexp),
                verb="count",
                done="counted",
                budget=_budget(budget),
                key=key_of([by] if isinstance(by, str) else list(by)),
                text_bytes=_key_text(string_size),
                no_parts="count() cannot group by parts of the time: use latency()",
                options=KeyOptions(rows=rows),
            )
            return self._added_up(keyed, seconds, lossy, True, ready)
        request = CountRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp),
            budget=_budget(budget),
        )
        with Opened() as opened:
            run = self._ran(opened, request, seconds, ready)
            with _os_errors():
                counts = Counts()
                for function, calls in zip(run.plan.names, run.meter.take(), strict=True):
                    if calls:
                        counts[function.text] += calls
            _check_budget(run)
        _check_lost(run, lossy, {})
        return counts

    @overload
    def latency(
        self,
        *patterns: str,
        seconds: float | None = None,
        by_goroutine: Literal[False] = False,
        lossy: bool = False,
        why: bool = False,
        force: bool = False,
        returns: _Returns = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> dict[str, Histogram]: ...

    @overload
    def latency(
        self,
        *patterns: str,
        seconds: float | None = None,
        by_goroutine: Literal[True],
        lossy: bool = False,
        why: bool = False,
        force: bool = False,
        returns: _Returns = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> dict[Goroutine, Histogram]: ...

    @overload
    def latency(
        self,
        *patterns: str,
        seconds: float | None = None,
        by: str | Iterable[str] = (),
        of: str | None = None,
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        why: bool = False,
        force: bool = False,
        returns: _Returns = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> Groups: ...

    @_in_use
    def latency(
        self,
        *patterns: str,
        seconds: float | None = None,
        by_goroutine: bool = False,
        by: str | Iterable[str] = (),
        of: str | None = None,
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        why: bool = False,
        force: bool = False,
        returns: _Returns = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> dict[str, Histogram] | dict[Goroutine, Histogram] | Groups:
        """Measure calls and return a histogram, in ns, of each function that was called.

        ``by_goroutine``: of each goroutine that called one. ``why``: histograms have what the time
        went into, not by goroutine; see ``trace``. ``returns``: where calls are seen returning, at
        "ret", or at "landing", in their callers, which costs a tenth, once the callers are known;
        "auto" does that for functions that are called often. Calls of new callers are missing then.
        Other parameters and errors as for ``count`` and ``trace``; raises LostCalls where calls are
        missing, unless ``lossy``.

        ``by`` adds calls up by their values, as in ``count``. ``of`` is an expression, such as
        ``"len(p)"``, that histograms are of, in place of durations.
        """
        _check(seconds, rows=rows, string_size=string_size)
        if (by or of) and by_goroutine:
            raise UsageError("by_goroutine=True has rows of its own: give by='$goid'")
        if of is not None and why:
            raise UsageError("why=True divides time: leave out of")
        if by or of is not None:
            keyed = KeyRequest(
                target=self._target,
                asked=self._asked(patterns, exclude, regexp),
                verb="measure",
                done="measured",
                returns=_returns(returns),
                budget=_budget(budget),
                why=WhyOptions() if why else None,
                key=key_of([by] if isinstance(by, str) else list(by)),
                of=None if of is None else _one_value(of),
                text_bytes=_key_text(string_size),
                follows_returns=of is None,
                options=KeyOptions(of is None, why, rows=rows),
            )
            return self._added_up(keyed, seconds, lossy, force, ready)
        if why and by_goroutine:
            raise UsageError("why=True works by function: leave out by_goroutine")
        request = LatencyRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp),
            returns=_returns(returns),
            budget=_budget(budget),
            why=WhyOptions() if why else None,
            options=LatencyOptions(per_function=True, per_goroutine=by_goroutine),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "why=True")
            meter = run.meter
            if ready is not None:
                ready()
            with _os_errors():
                is_busy = by_goroutine or meter.landings is not None
                while not run.is_over(_HARVEST if is_busy else _LOOK):
                    meter.poll(time.monotonic() + _READING)
                period = meter.take()
                counts = meter.diagnostics()
            _check_budget(run, lossy)
        _check_lost(run, lossy, {what.name.lower(): counts[what] for what in meter.LOSSES})
        _warn_of_unwound(counts)
        names = run.plan.names
        return _by_goroutine(names, period) if by_goroutine else _by_function(names, period)

    def _added_up(
        self,
        request: KeyRequest,
        seconds: float | None,
        lossy: bool,
        force: bool,
        ready: Callable[[], object] | None,
    ) -> Groups:
        """Run until the end, and return the calls by their values."""
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "why=True")
            meter = run.meter
            if ready is not None:
                ready()
            with _os_errors():
                while not run.is_over(_LOOK if meter.landings is None else _HARVEST):
                    meter.poll()
                meter.poll()
                groups = Groups(run, request, meter.take())
                counts = meter.diagnostics()
            _check_budget(run, lossy)
        _check_lost(run, lossy, {what.name.lower(): counts[what] for what in meter.LOSSES})
        _warn_of_unwound(counts)
        return groups

    @_in_use
    def goroutines(self, *patterns: str, system: bool = False) -> list[GoroutineState]:
        """Return all goroutines of the process, or those with such a function on their stack.

        ``system``: the runtime's own as well. The process is not stopped, and nothing is attached.
        Raises UsageError where the session is not of a running process.
        """
        from gotrace.goroutines.live import LiveGoroutines  # loads ctypes

        if self._target.process is None or not self._target.has_started:
            raise UsageError("goroutines() needs a running process: use attach(pid)")
        with _os_errors(), Opened() as opened:

            def take() -> Dump:
                GoFiles(self._target).check_functions(patterns)
                return opened.enter(LiveGoroutines(self._target)).take()

            dump = opened.do(take)
            chosen = GoroutineFilter(functions=patterns, system=system).of(dump)
            chosen.sort(key=lambda goroutine: goroutine.goid)
            return list(_states(dump, chosen))

    @_in_use
    def live(
        self,
        *,
        interval: float = 1.0,
        waits: bool = False,
        functions: Iterable[str] = (),
        requests: str | None = None,
        force: bool = False,
    ) -> SnapshotStream:
        """Return an iterator of snapshots of the process, one each ``interval`` seconds.

        It ends with the process, or when ``stop`` is called. Nothing is attached unless ``waits``
        are to be added up, calls of ``functions``, which are patterns, are to be measured, or
        ``requests`` are to be traced that begin with calls of a root. If one of these takes more
        than a fifth of one CPU, it needs ``force``. Dropping the iterator detaches.
        Raises UsageError where the session is not of one running process; GotraceError.
        """
        from gotrace.live.monitor import Monitor  # loads ctypes

        if not 0 < interval < 1e9:
            raise UsageError(f"interval is {interval}: give a positive number")
        patterns = _several("functions", functions)

        def accept(price: AttachPrice) -> None:
            if price.share > MAX_SHARE and not force:
                raise GotraceError(f"{price.text}: force=True accepts it")

        def attach() -> tuple[Waiter, Monitor]:
            waiter = opened.enter(Waiter())
            waiter.watch(self._target.watched)
            with _STARTING:
                self._check_open()
                monitor = opened.enter(Monitor(self._target))
                if waits:
                    monitor.attach_waits(accept)
                if patterns:
                    monitor.attach_functions(patterns, accept)
                if requests is not None:
                    monitor.attach_requests(requests, accept)
            return waiter, monitor

        with Opened() as opened, _os_errors():
            waiter, monitor = opened.do(attach)
            stream = SnapshotStream(self, waiter, monitor, interval, opened.keep())
        return self._streaming(stream)

    @_in_use
    def waits(
        self,
        *inside: str,
        seconds: float | None = None,
        state: Literal["waiting", "runnable", "syscall"] = "waiting",
        reasons: Iterable[str] = (),
        wakers: bool = False,
        open: bool = False,
        system: bool = False,
        lossy: bool = False,
        force: bool = False,
        budget: float | None = None,
        ready: Callable[[], object] | None = None,
    ) -> Waits:
        """Add up where goroutines wait, for some ``seconds``, or until the target ends or ``stop``.

        ``inside``: only waits within calls of functions that one of these patterns selects.
        ``reasons``: only waits for one of these reasons, in which ``*`` is any text. ``state``:
        what is added up, "runnable" for waits for a CPU. ``wakers``: stacks of who ended
        waits are kept apart. ``open``: waits that have not ended with the run count, too.
        ``system``: those of the runtime's own goroutines as well. ``force`` and ``ready``: see
        ``latency``; ``budget``: see ``trace``. Raises LostCalls where waits are missing, unless
        ``lossy``; UsageError where the session is not of one process; GotraceError.
        """
        _check(seconds)
        self._check_one("waits()")
        kind, reasons = WaitState(state), _several("reasons", reasons)

        request = WaitRequest(
            target=self._target,
            state=kind,
            inside=inside,
            reasons=reasons,
            budget=_budget(budget),
        )
        with Opened() as opened:
            run = self._ran(opened, request, seconds, ready, force, "waits()")
            meter = run.meter
            with _os_errors():
                period, losses = meter.take(), meter.losses()
                unfinished = meter.open() if open else []
            _check_budget(run, lossy)
        _check_lost(run, lossy, {"unseen": losses.unseen, "stacks": losses.stacks})
        with _STARTING, _os_errors():
            choice = WaitChoice(inside, reasons, system, wakers)
            rows = named_waits(meter.program, kind, [*period.rows, *unfinished], choice)
            return Waits(meter.program, rows, period.others, losses.earlier)

    @_in_use
    def on_cpu(
        self,
        *inside: str,
        seconds: float | None = None,
        hertz: int = HERTZ,
        kernel: bool = False,
        by: str | None = None,
        lossy: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> CpuTime:
        """Sample where threads spend CPU time, for some ``seconds``, or until the target ends.

        Or until ``stop``. ``inside``: only within calls of functions that one of these patterns
        selects. ``hertz``: samples a second of each CPU. ``kernel``: with the kernel's own
        functions. ``by``: ``$label("KEY")`` keeps goroutines with different values of this pprof
        label apart. ``ready``: see ``latency``. Raises LostCalls if samples are not whole, unless
        ``lossy``; UsageError where the session is not of one process; GotraceError.
        """
        _check(seconds)
        self._check_one("on_cpu()")
        request = CpuRequest(target=self._target, hertz=hertz, kernel=kernel, inside=inside, by=by)
        with Opened() as opened:
            run = self._ran(opened, request, seconds, ready)
            with _os_errors():
                period, lost = run.meter.take(), run.meter.lost_stacks()
            _check_lost(run, lossy, {"stacks": lost})
            with _STARTING, _os_errors():
                return CpuTime(CpuNames(run.meter), period, run.meter.period, inside)

    @_in_use
    def syscalls(
        self,
        *inside: str,
        seconds: float | None = None,
        lossy: bool = False,
        force: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> Syscalls:
        """Add system calls up by name, for some ``seconds``, or until the target ends or ``stop``.

        ``inside``: of the stacks, only those within calls of functions that one of these patterns
        selects. The runtime's own calls count, too. For the others see ``waits``, also for what is
        raised.
        """
        _check(seconds)
        self._check_one("syscalls()")

        def price() -> CountedPrice:
            with _STARTING:
                return syscall_price(self._target)

        with Opened() as opened:
            if not force and self._target.process is not None and self._target.has_started:
                what = "makes {} system calls a second: syscalls() would"
                with _os_errors():
                    _refuse(opened.do(price), what)
            request = SyscallRequest(target=self._target, inside=inside)
            run = self._ran(opened, request, seconds, ready)
            meter = run.meter
            with _os_errors():
                period, names, losses = meter.take(), meter.names(), meter.losses()
        _check_lost(run, lossy, {"unseen": losses.unseen, "stacks": losses.stacks})
        with _STARTING, _os_errors():
            choice = WaitChoice(inside, (), system=True, wakers=False)
            rows = named_waits(meter.program, WaitState.SYSCALL, period.rows, choice)
            return Syscalls(names, Waits(meter.program, rows, period.others, losses.earlier))

    @_in_use
    def wall(
        self,
        *,
        seconds: float | None = None,
        hertz: int = HERTZ,
        kernel: bool = False,
        lossy: bool = False,
        force: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> WallTime:
        """Add up all of goroutines' time: running, runnable, in system calls and waiting.

        That is for some ``seconds``, or until the target ends or ``stop``. Samples divide the
        running time: for ``hertz`` and ``kernel`` see ``on_cpu``. The other times, and the
        exceptions, are those of ``waits``.
        """
        _check(seconds)
        self._check_one("wall()")
        cpu = CpuRequest(target=self._target, hertz=hertz, kernel=kernel)
        with Opened() as opened:
            request = WallRequest(target=self._target, cpu=cpu)
            run = self._ran(opened, request, seconds, ready, force, "wall()")
            with _os_errors():
                (rows, others, period), (unseen, stacks) = run.meter.take(), run.meter.losses()
            _check_lost(run, lossy, {"unseen": unseen, "stacks": stacks})
            with _STARTING, _os_errors():
                names = CpuNames(run.meter.cpu)
                samples = names.named(period.rows)
                groups = wall_groups(rows, samples, names, run.meter.cpu.period)
                return WallTime(groups, others, names)

    def stop(self) -> None:
        """End all runs that are attached; their results so far are still returned.

        A run that is being attached ends as soon as it is, and so does a session's first run if
        it has not begun. May be called in any thread, and by ``ready``.
        """
        with self._lock:
            self._stop_asked = self._attaching_runs > 0 or not self._has_run
            going: list[Run[Any, Any] | _Iteration[Any]] = [*self._runs, *self._streams]
        for one in going:
            one.stop()

    def wait(self) -> int:
        """Wait for the command to end and return its exit code, negative for a signal.

        It is started where no run has done that. Raises UsageError for what was not started here.
        """
        command = self._target.command
        if command is None:
            raise UsageError("wait() needs a command that start() has started")
        self._target.start()
        return os.waitstatus_to_exitcode(command.reap())

    def close(self) -> None:
        """Detach and close the files; a command that was started goes on.

        Runs of other threads are stopped, and return what they have seen; iterations end. May be
        called in any thread. A process that was forked meanwhile closes nothing.
        """
        if not self._opened.is_ours:
            return
        self._opened.is_closing = True  # nothing begins any more
        self.stop()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._opened.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _asked(self, patterns: Sequence[str], exclude: Iterable[str], regexp: bool) -> Asked:
        return Asked(_some(patterns), _several("exclude", exclude), regexp, self._file)

    def _check_open(self) -> None:
        """Raise UsageError if it was closed meanwhile."""
        if self._opened.is_closing:
            raise UsageError("this session was closed before anything was attached")

    def _streaming(self, stream: _I) -> _I:
        """Return the stream, which is closed with the session."""
        with self._lock:
            self._streams.add(stream)
        if self._opened.is_closing:
            stream.close()
        return stream

    def _check_one(self, what: str) -> None:
        if self._target.process is None and self._target.command is None:
            raise UsageError(f"{what} needs one process: use attach(pid) or start(command)")

    def _ran(
        self,
        opened: Opened,
        request: RunRequest[_M, _C],
        seconds: float | None,
        ready: Callable[[], object] | None,
        force: bool = True,
        what: str = "",
    ) -> Run[_M, _C]:
        """Begin a run as ``_begun`` does, and wait until it is over."""
        run = self._begun(opened, request, seconds, force, what)
        if ready is not None:
            ready()
        with _os_errors():
            while not run.is_over(_LOOK):
                pass
        return run

    def _begun(
        self,
        opened: Opened,
        request: RunRequest[_M, _C],
        seconds: float | None,
        force: bool = True,
        what: str = "",
    ) -> Run[_M, _C]:
        """Open a run, warn of calls that it does not see, and begin it.

        Raises GotraceError; unless ``force``, also if ``what`` would cost too much.
        """
        with self._lock:
            self._attaching_runs += 1

        def attach() -> Run[_M, _C]:
            accept = None if force else _refusing(what)
            with _STARTING:
                self._check_open()
                return opened.enter(open_run(request, accept=accept))

        try:
            with _os_errors():
                run = opened.do(attach)
                _warn(run)
                opened.do(lambda: run.begin(seconds))
            with self._lock:
                self._runs.add(run)
                self._has_run = True
                is_asked, self._stop_asked = self._stop_asked, False
        finally:
            with self._lock:
                self._attaching_runs -= 1
        if is_asked or self._opened.is_closing:
            run.stop()
        return run


#: Those that may be open.
_SESSIONS: WeakSet[Session] = WeakSet()


def _close_sessions() -> None:
    """Detach while everything that this takes is there: later, modules are taken apart."""
    for session in list(_SESSIONS):
        with suppress(Exception):
            session.close()


# The interpreter waits for other threads before it comes to ``atexit``, and they may be in a run.
getattr(threading, "_register_atexit", atexit.register)(_close_sessions)


def _refusing(what: str) -> Callable[[SchedulerProbes], None]:
    """Return a check: it raises GotraceError if watching the program's scheduler costs too much."""

    def accept(probes: SchedulerProbes) -> None:
        if probes.target.process is None or not probes.target.has_started:
            return
        _refuse(price_of(probes, None), f"{probes.COUNTED}: {what} would")

    return accept


def _refuse(price: CountedPrice, text: str) -> None:
    """Raise GotraceError if watching a program takes too much; ``text`` has the number."""
    if price.share > MAX_SHARE:
        counted = text.format(f"{round(price.changes):,}")
        share = f"{price.share:.0%} of one CPU"
        raise GotraceError(f"this program {counted} take about {share}: force=True accepts it")


def _states(dump: Dump, goroutines: Iterable[DumpedGoroutine]) -> Iterator[GoroutineState]:
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
        )


def _wait(row: Row) -> Wait:
    known = {
        name: row[name] for name in ("state", "count", "delay_ns", "woken_by", "waker", "open")
    }
    stacks = row["stack"].frames, row["waker_stack"].frames if "waker_stack" in row else ()
    stack, waker_stack = (tuple(map(_stack_frame, frames)) for frames in stacks)
    return Wait(**known, reason=row["reason"] or "", stack=stack, waker_stack=waker_stack)


def _stack_frame(frame: Frame) -> StackFrame:
    return StackFrame(frame.function, frame.file, frame.line)


class _Iteration(Iterator[_T]):
    """An iterator that detaches at its end, when it is closed, and when it is dropped."""

    def __init__(self, session: Session, opened: Opened) -> None:
        self._session = session  # whose files live as long
        self._opened = opened
        self._opened.enter(session._opened.used("this session was closed meanwhile"))
        self._has_ended = False

    def __next__(self) -> _T:
        """Return the next one. Raises GotraceErrors, some of them in place of the end."""
        if self._has_ended:
            raise StopIteration
        if not self._opened.is_ours:
            owner = self._opened.owner
            raise UsageError(f"this trace is of process {owner}, which has forked this one")
        with self._opened.used("this trace is closed: iterate over it within its with block"):
            try:
                with _os_errors():
                    made = self._next()
            except BaseException:
                self._end()
                raise
            if made is None or self._is_complete():
                self._end()
        if made is not None:
            return made
        self._check()
        raise StopIteration

    def _next(self) -> _T | None:
        """Return the next one, None at the end."""
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Return whether nothing is to follow."""
        return False

    def _check(self) -> None:
        """Raise the errors that are known at the end."""

    def _end(self) -> None:
        self._has_ended = True
        self._opened.close()  # once it is not used

    def stop(self) -> None:
        """End the iteration. May be called in any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Detach at once; objects that have not been iterated over are dropped.

        A process that was forked meanwhile closes nothing.
        """
        if not self._opened.is_ours:
            return
        self._opened.is_closing = True
        self.stop()
        self._opened.close()

    def __enter__(self: _I) -> _I:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


_I = TypeVar("_I", bound=_Iteration[Any])


class SnapshotStream(_Iteration["Snapshot"]):
    """Snapshots; detaches at its end, when closed, and when dropped."""

    def __init__(
        self, session: Session, waiter: Waiter, monitor: Monitor, interval: float, opened: Opened
    ) -> None:
        super().__init__(session, opened)
        self._waiter = waiter
        self._monitor = monitor
        self._interval = interval
        self._tick = 0.0  # when the next one is due

    def _next(self) -> Snapshot | None:
        if self._waiter.wait(self._tick) is not Reason.TIME or self._opened.is_closing:
            return None
        self._tick = max(self._tick + self._interval, time.monotonic())
        try:
            return self._opened.do(self._monitor.snapshot)
        except ProcessError:
            return None

    def stop(self) -> None:
        """End the iteration. May be called in any thread."""
        if self._opened.is_ours:
            self._waiter.ask()


class _Stream(_Iteration[_T]):
    """An iterator over objects that are made of a run's records."""

    def __init__(
        self,
        session: Session,
        run: Run[CallTracer, ProbeCost],
        decoders: Sequence[CallDecoder],
        undecided: Undecided,
        limit: int | None,
        lossy: bool,
        opened: Opened,
    ) -> None:
        """Take over a session's run; ``opened`` closes it."""
        super().__init__(session, opened)
        self._tracer = run.meter
        self._run = run
        self._decoders = decoders
        self._reader = RecordReader(run.meter, undecided)
        self._records: Iterator[bytes] = iter(())
        self._left = limit
        self._is_lossy = lossy
        self._is_over = False
        self._made: list[_T] = []  # in their order
        self._lost: dict[str, int] = {}
        self._next_reading = time.monotonic()
        run.meter.ends = run.ends
        self._epoch = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.time_ns()

    def _is_complete(self) -> bool:
        return self._left == 0

    def _check(self) -> None:
        """Raise LostCalls, and the error for calls that were not traced because of a budget."""
        _check_budget(self._run, self._is_lossy)
        if self._lost and not self._is_lossy:
            raise LostCalls(self._lost)

    def _take(self, record: bytes) -> Iterable[_T]:
        """Return the objects that a record completes."""
        raise NotImplementedError

    def _rest(self, *, is_last: bool = False) -> Iterable[_T]:
        """Return the objects that are whole by now; if ``is_last``, also those that are not."""
        return ()

    def _next(self) -> _T | None:
        while self._left != 0:
            if not self._made and not self._reader.has_due and not self._read():
                return None
            if self._opened.is_closing:
                raise UsageError("this trace was closed meanwhile")
            if time.monotonic() >= self._next_reading:
                # Handling a call may take long, and the kernel's buffers fill meanwhile.
                self._next_reading = time.monotonic() + _PERIOD
                self._reader.fill()
            if not self._made:
                self._made += self._take(next(self._records))
            if self._made:
                if self._left is not None:
                    self._left -= 1
                return self._made.pop(0)
        return None

    def _read(self) -> bool:
        """Wait for records, or objects made of them; return whether there are any."""
        while not self._reader.has_due and not self._made:
            if self._reader.is_done:
                self._lost = self._losses()
                if self._run.end is End.GONE:
                    self._lost["probes"] = 1
                self._made += self._rest(is_last=True)
                return bool(self._made)
            self._is_over = self._is_over or self._run.is_over(0)
            self._next_reading = time.monotonic() + _PERIOD
            self._records = self._reader.turn()
            self._made += self._rest()
            if self._reader.has_due or self._made:
                # Later losses are not of the calls up to a limit that these may reach.
                self._lost = self._losses()
            elif not self._is_over:
                self._is_over = self._run.is_over(_PERIOD)
        return True

    def _losses(self) -> dict[str, int]:
        return {what: calls for what, calls in self._reader.losses().items() if calls}

    @property
    def lost(self) -> Mapping[str, int]:
        """Return how many calls are missing, by their fate, as far as that is known.

        ``probes`` is 1 if the probes were removed meanwhile: nobody knows how many came after that.
        """
        return self._lost

    def stop(self) -> None:
        """End the run: calls up to now can still be iterated over. May be called in any thread."""
        self._run.stop()


class CallStream(_Stream[Call]):
    """The calls of a trace as they end; detaches at its end, when closed, and when dropped."""

    def _take(self, record: bytes) -> list[Call]:
        calls = self._decoders[function_of(record)].calls(record)
        return [call.as_call(self._epoch) for _, call in calls]


class RequestStream(_Stream[Request[Call]]):
    """Requests as they are whole; detaches at its end, when closed, and when dropped."""

    def __init__(self, assembler: Assembler, *opened: Any) -> None:
        super().__init__(*opened)
        self._assembler = assembler

    @property
    def tally(self) -> Tally:
        """Return the counts of calls and requests so far, by their fate."""
        return self._assembler.tally

    def _take(self, record: bytes) -> Iterable[Request[Call]]:
        self._assembler.add(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Request[Call]]:
        for request in self._assembler.take(time.monotonic(), is_last):
            yield request.mapped(lambda call: call.as_call(self._epoch))

    def _losses(self) -> dict[str, int]:
        lost = super()._losses()
        self._assembler.missing(self._reader.missing())
        return lost


class FlightStream(_Stream[Recording]):
    """Recordings as they are made; detaches at its end, when closed, and when dropped."""

    def __init__(self, options: TraceOptions, seconds: float, *opened: Any) -> None:
        super().__init__(*opened)
        recorder = Recorder(self._decoders, options.roots, self._tracer.wait_reasons, self._epoch)
        self._flight = FlightReader(self._reader, recorder, options, seconds)

    def ask(self) -> None:
        """Make a recording now, without a trigger. May be called in any thread."""
        self._flight.ask()

    def _take(self, record: bytes) -> Iterable[Recording]:
        self._flight.add(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Recording]:
        recording = self._flight.take()
        return () if recording is None else (recording,)


class _RecordStream(_Stream[Recording]):
    """One recording, of all that there is."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._kept: list[bytes] | None = []  # None once they are given out
        self._began = self._tracer.span_ns[0]
        self._missing = 0

    def _losses(self) -> dict[str, int]:
        lost = super()._losses()
        missing = self._reader.missing().gaps
        if missing != self._missing and self._kept is not None:
            # Nobody knows which states goroutines were left in: what is before is of no use.
            self._missing, self._began = missing, time.monotonic_ns()
            self._kept = []
        return lost

    def _take(self, record: bytes) -> Iterable[Recording]:
        if self._kept is not None:
            self._kept.append(record)
        return ()

    def _rest(self, *, is_last: bool = False) -> Iterable[Recording]:
        if not is_last or self._kept is None:
            return
        records, self._kept = self._kept, None
        recorder = Recorder(self._decoders, (), self._tracer.wait_reasons, self._epoch)
        _, end = self._tracer.span_ns
        yield recorder.recording(records, self._began, end, lost=self._missing)


def _by_function(names: Sequence[ProgramFunction], period: Measurement) -> dict[str, Histogram]:
    """Return a histogram for each name, which functions of several files may share."""
    histograms = Latencies(name.text for name in names)
    for row, times in period.rows.items():
        histograms.setdefault(names[row].text, Histogram()).merge(times)
    for row, bands in period.why.items():
        _add_parts(histograms[names[row].text], bands.values())
    return histograms


def _add_parts(times: Histogram, bands: Iterable[PartSums]) -> None:
    """Add the parts of durations to their histogram."""
    for sums in bands:
        for name, totals in sums.parts.items():
            times.why[name] = times.why.get(name, 0) + totals.ns


def _by_goroutine(
    names: Sequence[ProgramFunction], period: Measurement
) -> dict[Goroutine, Histogram]:
    histograms = _GoroutineLatencies()
    for key, goroutine in period.goroutines.items():
        function = names[key.row]
        task = Goroutine(function.name, key.pid, key.goid, function.program)
        histograms.setdefault(task, Histogram()).merge(goroutine.times)
    for row, rest in period.rest.items():
        if rest.times.count:
            others = Goroutine(names[row].name, 0, None, names[row].program)
            histograms.setdefault(others, Histogram()).merge(rest.times)
    return histograms


def _budget(share: float | None) -> float | None:
    if share is not None and not 0 < share <= 100:
        raise UsageError(f"budget is {share}: give a part of one CPU, 0.02 for 2%")
    return share


def _check_budget(run: Run[Any, Any], lossy: bool = False) -> None:
    """Raise an error for calls that the budget left unmeasured; if ``lossy``, warn of them."""
    texts = [note.text for note in run.news() if note.kind is NoteKind.BUDGET]
    if texts and not lossy:
        raise GotraceError("; ".join(texts))
    for text in texts:
        _warn_caller(text)


def _check_lost(run: Run[Any, Any], lossy: bool, lost: Mapping[str, int]) -> None:
    """Raise LostCalls if anything was lost, or skipped by the kernel, unless ``lossy``."""
    found = {what: n for what, n in (*lost.items(), ("skipped", run.meter.skipped())) if n}
    if found and not lossy:
        raise LostCalls(found)


def _returns(wanted: str) -> ReturnMode:
    names = [each.value for each in ReturnMode]
    if wanted not in names:
        raise UsageError(f"returns is {wanted!r}: give one of {', '.join(map(repr, names))}")
    return ReturnMode(wanted)


def _key_text(size: int) -> int:
    if size > MAX_KEY_TEXT:
        raise UsageError(
            f"string_size is {size}: values are compared by {MAX_KEY_TEXT} bytes at most"
        )
    return size


def _one_value(text: str) -> KeyText:
    of = key_of([text])
    if len(of.expressions) > 1:
        raise UsageError(f"of is {text!r}: give one value to make histograms of")
    return of


def _check(seconds: float | None, **numbers: int | None) -> None:
    if seconds is not None and not 0 < seconds < 1e9:
        raise UsageError(f"seconds is {seconds}: give a positive number, or leave it out")
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or number <= 0):
            raise UsageError(f"{name} is {number}: give a positive whole number, or leave it out")


def _some(patterns: Sequence[str]) -> Sequence[str]:
    if not patterns:
        raise UsageError("no functions were given: type a pattern, such as 'main.*'")
    return patterns


def _several(name: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns; raise UsageError for one string, whose letters they would be."""
    if isinstance(patterns, str):
        raise UsageError(f"{name} takes several patterns: {name}=[{patterns!r}]")
    return tuple(patterns)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the system's refusals into a GotraceError."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise  # a TimeoutError, say, of the caller's own handler of a signal
        what = f"{error.filename}: " if error.filename else ""
        raise GotraceError(f"cannot trace: {what}{error.strerror or error}") from error


def _warn(run: Run[_M, _C]) -> None:
    """Warn of functions that are not traced."""
    notes = (*run.warnings(), *run.inlined("seen"))
    texts = [note.text for note in notes if note.kind is not NoteKind.FAILED]
    for text in texts[:_MAX_WARNINGS]:
        _warn_caller(text)
    if len(texts) > _MAX_WARNINGS:
        _warn_caller(f"and {len(texts) - _MAX_WARNINGS} more warnings")


def _warn_of_unwound(counts: Mapping[Diagnostic, int]) -> None:
    """Warn of calls that have no time, and no results."""
    if calls := counts[Diagnostic.UNWOUND]:
        text = "{} call{s} did not return, unwound by a panic or runtime.Goexit: not in the results"
        _warn_caller(counted(text, calls))


def _warn_caller(text: str) -> None:
    """Warn at the line that has called this module."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TracingWarning, stacklevel=level)
