# SPDX-License-Identifier: Apache-2.0
"""All of goroutines' time: in which state they are (bpf/waits.c), and what runs meanwhile, sampled.

How long goroutines run is known from the scheduler's states. Samples only divide that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.model import Goroutine, Stack, State
from gotrace.kernel.attach import Attached, attach
from gotrace.profiles.rows import Line, PprofLocation, ProfileForm, ProfileRow, ValueType
from gotrace.session.frames import KeptStacks
from gotrace.session.oncpu.meter import CpuMeter, CpuPeriod, CpuRequest
from gotrace.session.oncpu.naming import CpuNames, NamedSamples
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, Request
from gotrace.session.waits.naming import without_parking
from gotrace.session.waits.probes import WaitProbes, wait_probes

__all__ = ["WALL_FORM", "WallGroup", "WallMeter", "WallRequest", "WallRow", "wall_groups"]

_OPEN = 1 << 17
_STACKS = _ROWS = 1 << 14

_ROW = struct.Struct("=QQQIHH")  # struct wait_row
_SUM = struct.Struct("=QQ")  # struct wait_sum
_OPEN_WAIT = struct.Struct("=QQIIQ")  # struct open_wait
BEGAN_BEFORE = 3

#: Statuses of goroutines (src/runtime/runtime2.go, Go 1.15 to 1.27) that time is added up of.
STATUSES = {1: State.RUNNABLE, 2: State.RUNNING, 3: State.SYSCALL, 4: State.WAITING}

WALL_FORM = ProfileForm(
    (ValueType("events", "count"), ValueType("time", "nanoseconds")), 1, "nanoseconds"
)


@dataclass(frozen=True, slots=True)
class WallRow:
    """Time in one state, of goroutines of one go statement, with one stack and for one reason.

    ``stack`` is empty while they run, and where it is not known.
    """

    created_by: int
    state: State
    reason: str
    stack: Stack
    count: int
    ns: int


class WallMeter(Probing):
    """The probes of the scheduler, and the clocks; a context manager that detaches both."""

    def __init__(self, request: WallRequest, prepared: Prepared) -> None:
        """Load and attach. Raises AttachError, LoadError, or ProcessError if it has ended."""
        assert isinstance(prepared.scheduler, WaitProbes) and prepared.tasks is not None
        target, self._reasons = request.target, prepared.scheduler.reasons
        self.cpu = CpuMeter(request.cpu, prepared.tasks)
        try:
            settings = prepared.scheduler.settings(_OPEN, _STACKS, _ROWS)
            groups = prepared.scheduler.groups()
            self.attached: Attached = attach(
                settings, groups, prepared.forced, None, prepared.announce
            )
        except BaseException:
            self.cpu.attached.close()
            raise
        self._before: Sequence[Goroutine] = ()
        try:
            if target.has_started:
                with LiveGoroutines(target) as live:
                    self._before = live.take().goroutines
        except BaseException:
            self.__exit__()
            raise

    def stop(self) -> None:
        """Stop both."""
        super().stop()
        self.cpu.stop()

    def __exit__(self, *error: object) -> None:
        self.cpu.attached.close()
        super().__exit__(*error)

    def take(self) -> tuple[list[WallRow], tuple[int, int], CpuPeriod]:
        """Return, after ``stop``, the time of all states, what found no row, and the samples."""
        program = self.attached.program
        stacks = KeptStacks(program)
        began = round(self.attached.began * 1e9)
        ended = round((self.attached.stopped_at or 0.0) * 1e9)
        sums: dict[tuple[int, State, str, Stack], tuple[int, int]] = {}

        def add(created_by: int, state: State, reason: str, stack: Stack, n: int, ns: int) -> None:
            key = created_by, state, reason, stack
            count, summed = sums.get(key, (0, 0))
            sums[key] = count + n, summed + ns

        for row, value in program.map("wait_rows").entries():
            stack, _, created_by, reason, how, status = _ROW.unpack(row)
            count, ns = _SUM.unpack(value)
            if how == BEGAN_BEFORE:  # their ends are added up
                ns = (ns - count * began) % (1 << 64)
            why = self._reason(reason) if status == 4 else ""
            add(created_by, STATUSES[status], why, stacks.find(stack), count, ns)
        seen = set()
        for g, value in program.map("open").entries():
            since, stack, status, reason, created_by = _OPEN_WAIT.unpack(value)
            seen.add(int.from_bytes(g, "little"))
            if since and status in STATUSES:
                why = self._reason(reason) if status == 4 else ""
                found = stacks.find(stack)
                add(created_by, STATUSES[status], why, found, 1, max(0, ended - since))
        for one in self._before:
            if one.g not in seen:  # it has been in one state all the time
                state = one.state if one.state in STATUSES.values() else State.WAITING
                stack = () if state is State.RUNNING else one.stack
                add(one.created_by, state, one.reason, stack, 1, ended - began)
        others = _SUM.unpack(program.map("other_waits").lookup(bytes(4)) or bytes(_SUM.size))
        return [WallRow(*key, *summed) for key, summed in sums.items()], others, self.cpu.take()

    def _reason(self, number: int) -> str:
        return self._reasons[number] if number < len(self._reasons) else ""

    def losses(self) -> tuple[int, int]:
        """Return how often a goroutine was not followed, and how many stacks were not kept."""
        unseen, stacks = self.attached.program.map("wait_losses").sums()
        return unseen, stacks + self.cpu.lost_stacks()


@dataclass(frozen=True, kw_only=True)
class WallRequest(Request[WallMeter, None]):
    """Add up all of the time of a process's goroutines; ``cpu`` says how running is sampled."""

    cpu: CpuRequest

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Return what is to be probed. Raises GotraceError, UsageError among these."""
        sampled = self.cpu.prepare(announce, None)
        probes = wait_probes(self.target, None)
        if accept is not None:
            accept(probes)
        return Prepared(
            self.target,
            ProbePlan((), sampled.plan.problems),
            probes.tasks,
            forced=self.forced,
            announce=announce,
            scheduler=probes,
        )

    def attach(self, prepared: Prepared) -> WallMeter:
        """Attach. Raises AttachError or LoadError."""
        return WallMeter(self, prepared)


@dataclass(frozen=True, slots=True)
class WallGroup:
    """All of the time of some goroutines, by state, with what it is made of.

    ``rows`` are the states but running, ``samples`` what divides the time of that. The scheduler
    and threads without a goroutine have no states (``has_states``): they run as long as the samples
    say.
    """

    name: str
    has_states: bool
    ns: dict[State, int]
    rows: Sequence[WallRow]
    samples: Sequence[NamedSamples]

    @property
    def wall_ns(self) -> int:
        """Return how long the goroutines have lived: the sum of all states."""
        return sum(self.ns.values()) if self.has_states else 0

    def running(self) -> list[tuple[NamedSamples, int]]:
        """Return samples, each with its part of the time in which the goroutines ran."""
        total, left = sum(one.samples for one in self.samples), self.ns.get(State.RUNNING, 0)
        parts = []
        for one in self.samples:
            part = left * one.samples // total if total else 0
            parts.append((one, part))
            left, total = left - part, total - one.samples
        return parts

    def profile_rows(self, names: CpuNames) -> list[ProfileRow]:
        """Return all of it for a profile, with the group as the outermost frame."""
        root = PprofLocation(0, (Line(f"[{self.name}]", "", 0),))
        made = []
        for one, ns in self.running():
            labels = {"group": self.name, "state": State.RUNNING.value}
            made.append(ProfileRow([*one.locations, root], (one.samples, ns), labels))
        if not self.samples and (ns := self.ns.get(State.RUNNING, 0)):
            labels = {"group": self.name, "state": State.RUNNING.value}
            made.append(ProfileRow([root], (0, ns), labels, "[running]"))
        for row in self.rows:
            stack = without_parking(names.program.profiled(row.stack))
            labels = {"group": self.name, "state": row.state.value}
            labels |= {"reason": row.reason} if row.reason else {}
            note = f"[{row.reason or row.state.value}]"
            made.append(ProfileRow([*stack, root], (row.count, row.ns), labels, note))
        return made


def wall_groups(
    rows: Iterable[WallRow], samples: Iterable[NamedSamples], names: CpuNames, period: int
) -> list[WallGroup]:
    """Return all of the time by group, the most first; a sample is of ``period`` ns."""
    by_name: dict[str, list[WallRow]] = {}
    for row in rows:
        by_name.setdefault(names.goroutines(row.created_by), []).append(row)
    sampled: dict[str, list[NamedSamples]] = {}
    for one in samples:
        if one.status == 3:  # the time of system calls is that state's
            continue
        has_states = one.created_by and one.group != "scheduler"
        name = names.goroutines(one.created_by) if has_states else one.group
        sampled.setdefault(name, []).append(one)
    groups = []
    for name in {**by_name, **sampled}:
        ns = dict.fromkeys(STATUSES.values(), 0)
        for row in by_name.get(name, ()):
            ns[row.state] += row.ns
        found = sampled.get(name, [])
        if name not in by_name:
            ns[State.RUNNING] = period * sum(one.samples for one in found)
        rest = [row for row in by_name.get(name, ()) if row.state is not State.RUNNING]
        groups.append(WallGroup(name, name in by_name, ns, rest, found))
    return sorted(groups, key=lambda group: (-group.wall_ns, group.name))
