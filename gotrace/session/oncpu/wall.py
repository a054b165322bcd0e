# SPDX-License-Identifier: Apache-2.0
"""All of goroutines' time: in which state they are (bpf/waits.c), and what runs meanwhile, sampled.

How long goroutines run is known from the scheduler's states. Samples only divide that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.model import DumpedGoroutine, Stack, State
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.kept_stacks import KeptStacks
from gotrace.kernel.sums import Rows
from gotrace.records import dataclass
from gotrace.session.budget import counting_hits
from gotrace.session.oncpu.meter import SampleMeter, SamplePeriod, SampleRequest
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.waits.meter import FOLLOWED_STATE, HALF_AT, WAIT_ROW, WaitMeter
from gotrace.session.waits.probes import WaitProbes, wait_probes

_OPEN = 1 << 17
_STACKS = _ROWS = 1 << 14

BEGAN_BEFORE = 3

#: Statuses of goroutines (src/runtime/runtime2.go, Go 1.15 to 1.27) that time is added up of.
STATUSES = {1: State.RUNNABLE, 2: State.RUNNING, 3: State.SYSCALL, 4: State.WAITING}


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


def since_begin(began: int, count: int, ends: int) -> int:
    """Return the time from ``began`` to so many ends, in ns, of which the kernel has the sum.

    The sum is modulo 2^64. Ends that are earlier by another clock's rounding have no time.
    """
    ns = (ends - count * began) % (1 << 64)
    return ns if ns < 1 << 63 else 0


class WallMeter(Probing):
    """The probes of the scheduler, and the clocks; a context manager that detaches both."""

    LOST = WaitMeter.LOST

    def __init__(self, request: WallRequest, prepared: Prepared) -> None:
        """Load and attach. Raises AttachError, LoadError, or ProcessError if it has ended."""
        assert isinstance(prepared.scheduler, WaitProbes) and prepared.tasks is not None
        target, self._reasons = request.target, prepared.scheduler.reasons
        self.cpu: SampleMeter = request.cpu.attach(prepared)
        try:
            settings = prepared.scheduler.settings(_OPEN, _STACKS, _ROWS)
            if prepared.counts_hits:
                settings = counting_hits(settings)
            groups = prepared.scheduler.groups()
            self.attached: Attached = attach(
                settings, groups, prepared.forced, None, prepared.announce
            )
        except BaseException:
            self.cpu.attached.close()
            raise
        self._before: Sequence[DumpedGoroutine] = ()
        try:
            if target.has_started:
                with LiveGoroutines(target) as live:
                    self._before = live.take().goroutines
        except BaseException:
            self.__exit__()
            raise

    def stop(self) -> None:
        super().stop()
        self.cpu.stop()

    def skipped(self) -> int:
        """Return the hits of both."""
        return super().skipped() + self.cpu.skipped()

    def __exit__(self, *error: object) -> None:
        self.cpu.attached.close()
        super().__exit__(*error)

    def take(self) -> tuple[list[WallRow], tuple[int, int], SamplePeriod]:
        """Return, after ``stop``, the time of all states, that without a row, and the samples."""
        program = self.attached.program
        stacks = KeptStacks(program)
        began = round(self.attached.began * 1e9)
        ended = round((self.attached.stopped_at or 0.0) * 1e9)
        sums: dict[tuple[int, State, str, Stack], tuple[int, int]] = {}

        def add(created_by: int, state: State, reason: str, stack: Stack, n: int, ns: int) -> None:
            key = created_by, state, reason, stack
            count, summed = sums.get(key, (0, 0))
            sums[key] = count + n, summed + ns

        table = Rows(program.map("wait_rows"), program.map("other_waits"), HALF_AT)
        for row, (count, ns, _) in table.take(0):
            stack, _, created_by, reason, how, _, status = WAIT_ROW.unpack(row)
            if how == BEGAN_BEFORE:
                ns = since_begin(began, count, ns)
            why = self._reason(reason) if status == 4 else ""
            add(created_by, STATUSES[status], why, stacks.find(stack), count, ns)
        seen = set()
        for g, value in program.map("followed").entries():
            since, stack, _, status, reason, created_by = FOLLOWED_STATE.unpack(value)
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
        count, ns, _ = table.take_rest(0)
        walls = [WallRow(*key, *summed) for key, summed in sums.items()]
        return walls, (count, ns), self.cpu.take()

    def _reason(self, number: int) -> str:
        return self._reasons[number] if number < len(self._reasons) else ""

    def lost(self) -> dict[str, int]:
        """Return how much of both is missing."""
        return dict(Counter(super().lost()) + Counter(self.cpu.lost()))


@dataclass(frozen=True, kw_only=True)
class WallRequest(RunRequest[WallMeter, None]):
    """Add up all of the time of a process's goroutines; ``cpu`` says how running is sampled."""

    cpu: SampleRequest

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Return the probes to attach. Raises GotraceError, UsageError among these."""
        sampled = self.cpu.prepare(announce, None)
        probes = wait_probes(self.target, None)
        if accept is not None:
            accept(probes)
        return self.prepared(sampled.plan, announce, probes.tasks, probes)

    def attach(self, prepared: Prepared) -> WallMeter:
        """Attach. Raises AttachError or LoadError."""
        return WallMeter(self, prepared)
