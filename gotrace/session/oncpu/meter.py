# SPDX-License-Identifier: Apache-2.0
"""Sample a process's threads at events, added up in the kernel by stack (bpf/oncpu.c)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from gotrace.errors import GotraceError, UsageError, needs_one_process
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.model import Stack
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.kept_stacks import KeptStacks
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.sums import Counters, Sums, Word
from gotrace.kernel.syscalls import CPU_CLOCK
from gotrace.records import dataclass, replace
from gotrace.results.kinds import SAMPLED, Sampled
from gotrace.session.choices import HERTZ
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.tasks import Tasks, interrupted_settings
from gotrace.settings import OnCpuSettings, SampleSettings

if TYPE_CHECKING:  # loaded where labels are asked for, to start soon otherwise
    from gotrace.values.model import Value

M = TypeVar("M", bound=Probing)
S = TypeVar("S", bound=SampleSettings)

_MAX_HERTZ = 10_000
_STACKS = 1 << 13
_ROWS = 1 << 13

_ROW = struct.Struct("=QQQQQQQQ")  # struct sample_row
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
    None outside of goroutines. ``amount`` is what the samples stand for, in the event's unit. Of
    allocations that is an estimate, ``objects`` another, and ``variance`` that of the amount, or
    ``part`` is what may share an error: the size of their objects and a part of the run.
    """

    stack: Stack
    kernel: Stack
    created_by: int
    status: int
    samples: int
    amount: int
    label: Value | None = None
    objects: int = 0
    variance: int = 0
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SamplePeriod:
    """The samples since the last reading.

    ``others`` are the samples for which there was no row, and ``others_amount`` what they stand
    for. ``clock_ns`` is how long the threads have run by their own clock, None if the process has
    ended. Of allocations, ``counter`` are the bytes by the runtime's own, None if it is not known,
    and ``sampled`` those by the samples alone; ``method`` is what was seen: "samples" or "spans".
    """

    rows: Sequence[SampleRow]
    others: int
    others_amount: int
    clock_ns: int | None = None
    counter: int | None = None
    sampled: int = 0
    method: str = "samples"

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return self.others + sum(row.samples for row in self.rows)


class Sampling(NamedTuple):
    """Sampled allocations: how many, their bytes, and the rate of the sampling.

    Or used up spans in a ``part`` of the run: how many, their bytes, and the size of an ``object``.
    """

    samples: int
    size: int
    rate: int
    object: int = 0
    part: int = 0


class SampleMeter(Probing):
    """The events that are sampled; a context manager that detaches."""

    LOST: ClassVar = {"stacks": (Diagnostic.KEPT_FULL,)}

    def __init__(self, request: SampledRequest[Any], settings: SampleSettings) -> None:
        """Load and attach. Raises LoadError or AttachError."""
        target = request.target
        self._process = target.process
        self.event: SampleEvent = request.event
        self.files = GoFiles(target)
        if target.has_started:  # while it is there
            self.files.program  # noqa: B018
            self.files.code_name(0)
        #: The key of the label that distinguishes rows, None if none does.
        self.label = request.label
        self.attached: Attached = self._attach(settings)
        program = self.attached.program
        self._rows = Sums(program.map("sample_rows"), (Word.SUM, Word.SUM))
        self._others = Counters(program.map("other_samples"))
        self._seen = self._now = self._clock()

    def _attach(self, settings: SampleSettings) -> Attached:
        return attach(settings, [], prepare=self._prepare)

    def _prepare(self, program: BpfProgram) -> None:
        self._fill(program)
        program.attach_events("on_event", self.event.number, *self.event.periods())

    def _fill(self, program: BpfProgram) -> None:
        if self.label is not None:
            key = self.label.encode("utf-8", "surrogateescape")
            program.map("label_key").update(bytes(4), _LABEL.pack(len(key), key))

    def _clock(self) -> int | None:
        """Return the target's own figure of the event so far, None if that is not known."""
        return self._process.cpu_ns() if self._process else None

    def stop(self) -> None:
        """Stop, as others do, and note the target's own figure."""
        if not self.stopped:
            self._now = self._clock()
        super().stop()

    def _since(self) -> int | None:
        """Return how much the target's own figure has grown since the last time."""
        if not self.stopped:
            self._now = self._clock()
        now, before = self._now, self._seen
        self._seen = now
        return None if now is None or before is None else now - before

    def take(self) -> SamplePeriod:
        """Return the samples since the last take; nothing that comes meanwhile is lost."""
        clock_ns, period = self._since(), self.event.period
        rows = [row for _, row in self._taken()]
        others, _ = self._others.take()
        return SamplePeriod(rows, others, others * period, clock_ns)

    def _taken(self) -> Iterator[tuple[Sampling, SampleRow]]:
        """Yield the rows since the last time, with what the amounts of allocations follow from."""
        stacks = KeptStacks(self.attached.program)
        for key, (samples, size) in self._rows.take():
            stack, kernel, created_by, status, label, one, rate, part = _ROW.unpack(key)
            found = stacks.find(stack), stacks.find(kernel)
            what = self._label(label) if label or created_by else None
            amount = samples * self.event.period
            yield (
                Sampling(samples, size, rate, one, part),
                SampleRow(*found, created_by, status, samples, amount, what),
            )

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
class SampledRequest(RunRequest[M, None]):
    """A request to add samples up by stack.

    ``inside`` are patterns for what is looked at of that: each has to match something that the
    program has. ``by`` is ``$label("KEY")``: samples are kept apart by that label of their
    goroutines.
    """

    inside: Sequence[str] = ()
    by: str | None = None

    @property
    def event(self) -> SampleEvent:
        raise NotImplementedError

    @cached_property
    def label(self) -> str | None:
        """Return the key of the label. Raises UsageError if it is not one."""
        if self.by is None:
            return None
        from gotrace.probes.spec import parse_label

        return parse_label(self.by)

    def find_tasks(self) -> tuple[Tasks, Sequence[str]]:
        """Return how goroutines are found, and problems with that. Raises GotraceError."""
        if self.target.process is None:
            raise UsageError(needs_one_process("sampling needs"))
        label = self.label
        files = GoFiles(self.target)
        runtime = files.runtime()
        files.check_functions(self.inside)
        tasks = Tasks((runtime,), runtime.runtime)
        knows_g = runtime.image.arch.keeps_g or tasks.settings().task_fsbase is not None
        problems = () if knows_g else (_NO_GOROUTINES,)
        if label is not None and (problems or not runtime.runtime.g_labels):
            raise GotraceError(_NO_LABELS)
        return tasks, problems

    def settings(self, kind: type[S], tasks: Tasks, **more: Any) -> S:
        """Return the settings of one of the programs, with those that it alone has."""
        assert tasks.layout is not None
        return kind(
            site=self.target.settings(),
            tasks=tasks.settings(),
            rows=_ROWS,
            label_rows=_ROWS if self.by is not None else 1,
            stacks=_STACKS,
            interrupted=interrupted_settings(tasks),
            g_status=tasks.layout.g_atomicstatus,
            labels=self.by is not None,
            g_labels=tasks.layout.g_labels,
            labels_are_map=tasks.layout.labels_are_map,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class SampleRequest(SampledRequest[SampleMeter]):
    """Sample the threads of one process, ``hertz`` times a second on each CPU on average.

    ``kernel``: with the kernel's own frames.
    """

    event_name: str = "cpu"
    hertz: int = HERTZ
    kernel: bool = False

    @property
    def event(self) -> SampleEvent:
        event = EVENTS[self.event_name]
        return event if event.period else replace(event, period=10**9 // self.hertz)

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Find the runtime. Raises GotraceError, UsageError among these."""
        if not 0 < self.hertz <= _MAX_HERTZ:
            raise UsageError(f"{self.hertz} samples a second: give 1 to {_MAX_HERTZ:,}")
        tasks, problems = self.find_tasks()
        return self.prepared(ProbePlan((), tuple(problems)), announce, tasks)

    def attach(self, prepared: Prepared) -> SampleMeter:
        """Attach. Raises LoadError."""
        assert prepared.tasks is not None
        settings = self.settings(OnCpuSettings, prepared.tasks, kernel=self.kernel)
        return SampleMeter(self, settings)


_NO_GOROUTINES = (
    "goroutines are not told apart: where a thread's goroutine is kept is only known to the process"
)
_NO_LABELS = "labels are not read: where a thread's goroutine has them is not known"
