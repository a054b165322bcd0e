# SPDX-License-Identifier: Apache-2.0
"""Sample a process's threads at events, added up in the kernel by stack (bpf/oncpu.c)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from gotrace.errors import GotraceError, UsageError, needs_one_process
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.model import Stack
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.kept_stacks import KeptStacks
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters, Sums
from gotrace.kernel.syscalls import CPU_CLOCK
from gotrace.records import dataclass, replace
from gotrace.results.kinds import SAMPLED, Sampled
from gotrace.session.choices import HERTZ
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.tasks import Tasks, interrupted_settings
from gotrace.settings import OnCpuSettings

if TYPE_CHECKING:  # loaded where labels are asked for, to start soon otherwise
    from gotrace.values.model import Value

_MAX_HERTZ = 10_000
_STACKS = 1 << 13
_ROWS = 1 << 13

_ROW = struct.Struct("=QQQQQ")  # struct sample_row
_LABEL = struct.Struct("=Q256s")  # struct label_content
_LABEL_UNKNOWN = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """An event of the kernel whose interrupted stacks are added up, and what is made of them.

    A sample stands for ``period`` of what the event of this ``number`` counts. Samples come from
    several events of a CPU, in the proportion of ``shares``.
    """

    rows: Sampled
    number: int
    period: int
    shares: tuple[int, ...] = (1,)

    def periods(self) -> list[int]:
        """Return the period of each event."""
        return [self.period * sum(self.shares) // share for share in self.shares]


#: A single clock of 99 Hz would meet what Go's sysmon does when it has slept for 10 ms: the two
#: fall into step, and its few microseconds then are sampled each time, or never. No whole number of
#: such naps is a period of these.
_CPU = SampleEvent(SAMPLED["cpu"], CPU_CLOCK, 0, (46, 53))
EVENTS = {event.rows.name: event for event in (_CPU,)}


@dataclass(frozen=True, slots=True)
class SampleRow:
    """Samples that are alike.

    ``stack`` is as the kernel has kept it (``goroutines.interrupted``), ``kernel`` the stack within
    the kernel, both innermost first and empty if there was no room or no such stack. ``created_by``
    is the return address of the go statement, 0 outside of goroutines, ``status`` the goroutine's.
    ``label`` is the value of the label that is asked for: empty if the goroutine does not have it,
    None outside of goroutines.
    """

    stack: Stack
    kernel: Stack
    created_by: int
    status: int
    samples: int
    label: Value | None = None


@dataclass(frozen=True, slots=True)
class SamplePeriod:
    """The samples since the last reading.

    ``others`` are the samples for which there was no row. ``clock_ns`` is how long the threads have
    run by their own clock, None if the process has ended.
    """

    rows: Sequence[SampleRow]
    others: int
    clock_ns: int | None

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return self.others + sum(row.samples for row in self.rows)


class SampleMeter(Probing):
    """The events that are sampled; a context manager that detaches."""

    LOST: ClassVar = {"stacks": (Diagnostic.KEPT_FULL,)}

    def __init__(self, request: SampleRequest, tasks: Tasks, rows: int = _ROWS) -> None:
        """Load and attach. Raises LoadError."""
        target = request.target
        self._process = target.process
        self.event: SampleEvent = request.event
        self.files = GoFiles(target)
        if target.has_started:  # while it is there
            self.files.program  # noqa: B018
            self.files.code_name(0)
        #: The key of the label that distinguishes rows, None if none does.
        self.label = request.label
        settings = request.settings(tasks, rows)
        self.attached: Attached = attach(settings, [], prepare=self._prepare)
        program = self.attached.program
        self._rows = Sums(program.map("sample_rows"))
        self._others = Counters(program.map("other_samples"))
        self._cpu_seen = self._cpu_now = self._clock()

    def _prepare(self, program: BpfProgram) -> None:
        if self.label is not None:
            key = self.label.encode("utf-8", "surrogateescape")
            program.map("label_key").update(bytes(4), _LABEL.pack(len(key), key))
        program.attach_events("on_event", self.event.number, *self.event.periods())

    def _clock(self) -> int | None:
        return self._process.cpu_ns() if self._process else None

    def stop(self) -> None:
        """Stop, as others do, and note the time of the threads' own clock."""
        if not self.stopped:
            self._cpu_now = self._clock()
        super().stop()

    def take(self) -> SamplePeriod:
        """Return the samples since the last take; nothing that comes meanwhile is lost."""
        if not self.stopped:
            self._cpu_now = self._clock()
        stacks = KeptStacks(self.attached.program)
        rows = []
        for key, (samples,) in self._rows.take():
            stack, kernel, created_by, status, label = _ROW.unpack(key)
            found = stacks.find(stack), stacks.find(kernel)
            what = self._label(label) if label or created_by else None
            rows.append(SampleRow(*found, created_by, status, samples, what))
        (others,) = self._others.take()
        now, before = self._cpu_now, self._cpu_seen
        self._cpu_seen = now
        return SamplePeriod(rows, others, None if now is None or before is None else now - before)

    def _label(self, number: int) -> Value | None:
        """Return the value of a label by its hash, None if none is asked for."""
        if self.label is None:
            return None
        from gotrace.values.model import StringValue, UnavailableValue

        found = self.attached.program.map("label_values").lookup(number.to_bytes(8, "little"))
        if found is None:
            return UnavailableValue("there was no room to keep it")
        length, text = _LABEL.unpack(found)
        if length == _LABEL_UNKNOWN:
            return UnavailableValue("it could not be read")
        return StringValue(text[:length], length)


@dataclass(frozen=True, kw_only=True)
class SampleRequest(RunRequest[SampleMeter, None]):
    """Sample the threads of one process, ``hertz`` times a second on each CPU on average.

    ``kernel``: with the kernel's own frames. ``inside`` are patterns for what is looked at of that:
    each has to match something that the program has. ``by`` is ``$label("KEY")``: samples are kept
    apart by that label of their goroutines.
    """

    event_name: str = "cpu"
    hertz: int = HERTZ
    kernel: bool = False
    inside: Sequence[str] = ()
    by: str | None = None

    @cached_property
    def label(self) -> str | None:
        """Return the key of the label. Raises UsageError if it is not one."""
        if self.by is None:
            return None
        from gotrace.probes.spec import parse_label

        return parse_label(self.by)

    @property
    def event(self) -> SampleEvent:
        event = EVENTS[self.event_name]
        return event if event.period else replace(event, period=10**9 // self.hertz)

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Find the runtime. Raises GotraceError, UsageError among these."""
        if self.target.process is None:
            raise UsageError(needs_one_process("sampling needs"))
        if not 0 < self.hertz <= _MAX_HERTZ:
            raise UsageError(f"{self.hertz} samples a second: give 1 to {_MAX_HERTZ:,}")
        label = self.label
        files = GoFiles(self.target)
        runtime = files.runtime()
        files.check_functions(self.inside)
        tasks = Tasks((runtime,), runtime.runtime)
        knows_g = runtime.image.arch.keeps_g or tasks.settings().task_fsbase is not None
        problems = () if knows_g else (_NO_GOROUTINES,)
        if label is not None and (problems or not runtime.runtime.g_labels):
            raise GotraceError(_NO_LABELS)
        return self.prepared(ProbePlan((), problems), announce, tasks)

    def attach(self, prepared: Prepared) -> SampleMeter:
        """Attach. Raises LoadError."""
        assert prepared.tasks is not None
        return SampleMeter(self, prepared.tasks)

    def settings(self, tasks: Tasks, rows: int) -> OnCpuSettings:
        """Return the settings of bpf/oncpu.c."""
        assert tasks.layout is not None
        return OnCpuSettings(
            site=self.target.settings(),
            tasks=tasks.settings(),
            kernel=self.kernel,
            rows=rows,
            label_rows=rows if self.by is not None else 1,
            stacks=_STACKS,
            interrupted=interrupted_settings(tasks),
            g_status=tasks.layout.g_atomicstatus,
            labels=self.by is not None,
            g_labels=tasks.layout.g_labels,
            labels_are_map=tasks.layout.labels_are_map,
        )


_NO_GOROUTINES = (
    "goroutines are not told apart: where a thread's goroutine is kept is only known to the process"
)
_NO_LABELS = "labels are not read: where a thread's goroutine has them is not known"
