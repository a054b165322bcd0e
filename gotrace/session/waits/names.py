# SPDX-License-Identifier: Apache-2.0
"""Add up system calls by name, error and stack, in the kernel (bpf/syscalls.c)."""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from gotrace.errors import UsageError, needs_one_process
from gotrace.goroutines.interrupted import InterruptedStacks
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.program import CodeNames
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.histogram import Histogram
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.histograms import HistogramRows, stripes_for
from gotrace.kernel.kept_stacks import KeptStacks
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Halves, Rows, Sums
from gotrace.kernel.syscall_names import errno_name, syscall_name
from gotrace.kernel.syscalls import online_cpus
from gotrace.records import dataclass
from gotrace.results.rows import Row
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.tasks import Tasks, interrupted_settings
from gotrace.session.waits.meter import EndedBy, WaitLosses, WaitPeriod, WaitRow
from gotrace.session.why.price import Price
from gotrace.settings import HistogramSettings, InterruptedSettings, SyscallSettings
from gotrace.target.process import Process
from gotrace.target.target import Target

SYSCALLS = 512

_CALLS, _ERRORS, _STACKS, _ROWS = 1 << 15, 1 << 12, 1 << 13, 1 << 13

#: The number that the kernel's program takes for any call above it.
_LAST = SYSCALLS - 1

_ROW = struct.Struct("=QII")  # struct syscall_row
_HALF_AT = 12  # in it
_ERROR = struct.Struct("=II")  # struct syscall_error

_COUNTING = 0.2  # seconds
_TRIES, _TRIED = 8, 500  # calls of each
#: The cost of following a stack of Go, beyond one of those calls, in ns.
_STACK_NS = 300


def _name(number: int) -> str:
    return syscall_name(number) if number < _LAST else f"{_LAST} or above"


class NamedCalls(Protocol):
    """The calls of one name, whoever has them."""

    @property
    def name(self) -> str: ...

    @property
    def times(self) -> Histogram: ...

    @property
    def errors(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class SyscallSums:
    """The calls of one name: their times, and how many failed, by the errors' names."""

    name: str
    times: Histogram
    errors: dict[str, int]


def syscall_row(one: NamedCalls) -> Row:
    """Return the row of a name."""
    return {
        "kind": "syscall",
        "name": one.name,
        "calls": one.times.count,
        "errors": one.errors,
        "total_ns": one.times.sum,
        "p50_ns": one.times.percentile(0.5),
        "p99_ns": one.times.percentile(0.99),
        "buckets": [list(bounds) for bounds in one.times.ranges()],
    }


class SyscallMeter(Probing):
    """The kernel's tracepoints that add system calls up; a context manager that detaches."""

    LOST: ClassVar = {
        "unseen": (Diagnostic.STATES_FULL,),
        "stacks": (Diagnostic.KEPT_FULL, Diagnostic.ERRORS_FULL),
    }
    #: As far as it is a meter of waits: why, in words.
    reasons: WaitReasons = ()

    def __init__(self, target: Target, tasks: Tasks | None, intervals: bool = False) -> None:
        """Load and attach. Raises LoadError."""
        halves = 2 if intervals else 1
        stripes = stripes_for(SYSCALLS, halves, len(online_cpus()))
        settings = SyscallSettings(
            site=target.settings(),
            tasks=tasks.settings() if tasks else Tasks((), None).settings(),
            times=HistogramSettings.of(SYSCALLS, halves, stripes),
            calls=_CALLS,
            errors=_ERRORS,
            stack_rows=_ROWS,
            stacks=_STACKS,
            interrupted=interrupted_settings(tasks) if tasks else InterruptedSettings(),
        )
        assert target.process is not None
        self._process = target.process
        #: Before a command is one, what waits to be that is in a call of its own.
        self._is_running = target.has_started
        #: The calls by name in which threads were when it was stopped.
        self.unfinished: Counter[str] = Counter()
        self._files = GoFiles(target)
        if tasks and target.has_started:  # while it is there; of the price nothing is named
            self._files.code_name(0)
            self._files.program  # noqa: B018
        self._stacks: InterruptedStacks | None = None
        self._names: list[SyscallSums] = []
        self.attached: Attached = attach(settings, [], prepare=self._prepare)
        program = self.attached.program
        self._halves = Halves(program.map("generation"), halves)
        self._times = HistogramRows(program.map("histograms"), SYSCALLS, stripes)
        self._rows = Rows(program.map("syscall_rows"), program.map("other_syscalls"), _HALF_AT)
        self._errors = Sums(program.map("syscall_errors"))

    @staticmethod
    def _prepare(program: BpfProgram) -> None:
        program.attach_system_calls("on_syscall_enter", "on_syscall_exit")

    @property
    def program(self) -> CodeNames:
        """Return the names of addresses in stacks: of a command, once it runs."""
        return self._files.program

    def take(self) -> WaitPeriod:
        """Return the calls since the last take by stack; the reason of a row is the call's name."""
        if self._stacks is None:
            self._stacks = InterruptedStacks(self.program, self._files.code_name)
        kept = KeptStacks(self.attached.program)
        rows = []
        half = self._halves.flip()
        self._names = self._named(half)
        for key, (count, ns, longest) in self._rows.take(half):
            stack, number, _ = _ROW.unpack(key)
            found = self._stacks.stack(kept.find(stack))
            rows.append(WaitRow(found, EndedBy.NONE, (), _name(number), count, ns, longest))
        count, ns, _ = self._rows.take_rest(half)
        return WaitPeriod(rows, (count, ns))

    def names(self) -> list[SyscallSums]:
        """Return the calls of the last take by name, those that took most first."""
        return self._names

    def count(self) -> int:
        """Return how many calls there have been, and take them."""
        return sum(times.count for times in self._times.take(0).values())

    def _named(self, half: int) -> list[SyscallSums]:
        errors: dict[int, dict[str, int]] = {}
        for key, (count,) in self._errors.take():
            number, error = _ERROR.unpack(key)
            errors.setdefault(number, {})[errno_name(error)] = count
        found = self._times.take(half)
        sums = [SyscallSums(_name(n), times, errors.get(n, {})) for n, times in found.items()]
        return sorted(sums, key=lambda one: (-one.times.sum, one.name))

    def open(self) -> list[WaitRow]:
        """Return nothing: ``unfinished`` are known by their names alone."""
        return []

    def stop(self) -> None:
        """Stop, as others do, and note in which calls threads are then."""
        if not self.stopped:
            self.unfinished = Counter(map(_name, self._process.system_calls()))
        super().stop()

    def losses(self) -> WaitLosses:
        """Return the calls that have not been added up so far."""
        lost = self.diagnostics()
        earlier = lost[Diagnostic.CALLS_EARLIER] if self._is_running else 0
        return WaitLosses(earlier, lost[Diagnostic.EXTREMES_LOST])


@dataclass(frozen=True, kw_only=True)
class SyscallRequest(RunRequest[SyscallMeter, None]):
    """Add up system calls of one process's threads; ``intervals``: more than once."""

    inside: Sequence[str] = ()
    intervals: bool = False

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Find the runtime. Raises GotraceError, UsageError among these."""
        if self.target.process is None:
            raise UsageError(needs_one_process("system calls need"))
        files = GoFiles(self.target)
        runtime = files.runtime()
        files.check_functions(self.inside)
        tasks = Tasks((runtime,), runtime.runtime)
        return self.prepared(ProbePlan((), ()), announce, tasks)

    def attach(self, prepared: Prepared) -> SyscallMeter:
        """Attach. Raises LoadError."""
        return SyscallMeter(self.target, prepared.tasks, self.intervals)


def syscall_price(target: Target) -> Price:
    """Return the cost of adding up a process's system calls: counted, and tried on this process.

    Raises LoadError.
    """
    with SyscallMeter(target, None) as meter:
        began = time.monotonic()
        time.sleep(_COUNTING)
        calls = meter.count()
        passed = time.monotonic() - began
    without = _call_ns()
    with SyscallMeter(Target(process=Process(os.getpid())), None):
        cost = max(0, _call_ns() - without)
    return Price(calls / passed, round(cost) + _STACK_NS)


def _call_ns() -> float:
    """Return the CPU time of a short system call here in ns, the least of some tries."""
    took = []
    for _ in range(_TRIES):
        began = time.thread_time_ns()
        for _ in range(_TRIED):
            os.getppid()
        took.append((time.thread_time_ns() - began) / _TRIED)
    return min(took)
