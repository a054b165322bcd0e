# SPDX-License-Identifier: Apache-2.0
"""Add up how long goroutines are in a state, in the kernel (bpf/waits.c).

A wait that ends while the probes are there is added to a row when it ends. One that began before
is not: nothing says when. One that has not ended is in no row; what it has taken so far can be
asked for at the end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar

from gotrace.goroutines.groups import check_reasons
from gotrace.goroutines.live import GoFiles
from gotrace.goroutines.model import Stack
from gotrace.goroutines.program import CodeNames
from gotrace.gotypes.wait_reasons import WaitFor, WaitReasons, meaning_of
from gotrace.kernel.attach import Attached, attach
from gotrace.kernel.kept_stacks import KeptStacks
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.sums import Halves, Rows
from gotrace.records import dataclass
from gotrace.session.budget import counting_hits
from gotrace.session.choices import WaitState
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import ProbePlan
from gotrace.session.probing import Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.session.waits.probes import WaitProbes, wait_probes

REASON_STATUS = 0x100

_FOLLOWED = 1 << 17
_STACKS = 1 << 13
_ROWS = 1 << 13

WAIT_ROW = struct.Struct("=QQQIBBH")  # struct wait_row
HALF_AT = 29  # in it
FOLLOWED_STATE = struct.Struct("=QQHHIQ")  # struct followed_state

#: Status before -> why a goroutine became runnable, where that was not the end of a wait.
_BECAUSE = {0: "started", 2: "preempted or yielded", 3: "system call", 6: "started"}


class EndedBy(Enum):
    """Who ended a wait; the values are those of bpf/waits.c."""

    NONE = 0
    GOROUTINE = 1
    RUNTIME = 2


@dataclass(frozen=True, slots=True)
class WaitRow:
    """The waits of one stack, for one reason, that were ended from one stack.

    Stacks are run-time addresses, innermost first, and empty where there was no room to keep them.
    ``reason`` is "" where there is none. ``max_ns`` is how long the longest was. ``is_open``: they
    had not ended at the end of the run.
    """

    stack: Stack
    ended_by: EndedBy
    ended_by_stack: Stack
    reason: str
    count: int
    ns: int
    max_ns: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class WaitPeriod:
    """The sums since the last reading.

    ``others`` are the number and the time of waits for which there was no row.
    """

    rows: Sequence[WaitRow]
    others: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WaitLosses:
    """Waits that are not in rows, or not whole, beside those that are ``lost``.

    ``earlier`` are waits that had begun before the probes were there. ``longest``: times in which
    one may be missing from ``max_ns``.
    """

    earlier: int
    longest: int


class WaitMeter(Probing):
    """The probes that add waits up; a context manager that detaches."""

    #: Times that a goroutine entered the state and was not followed, and that a stack was not kept.
    LOST: ClassVar = {"unseen": (Diagnostic.STATES_FULL,), "stacks": (Diagnostic.KEPT_FULL,)}

    def __init__(
        self,
        probes: WaitProbes,
        forced: AttachMethod | None,
        announce: Callable[[str], None] | None = None,
        counts_hits: bool = False,
        rows: int = _ROWS,
    ) -> None:
        """Load and attach; ``announce`` is as for ``attach``. Raises AttachError or LoadError."""
        self._probes = probes
        self.program_ns = probes.program_ns
        target = probes.target
        self._files = GoFiles(target)
        if target.has_started:
            self._files.program  # noqa: B018
        settings = probes.settings(_FOLLOWED, _STACKS, rows)
        if counts_hits:
            settings = counting_hits(settings)
        groups = probes.groups()
        self.attached: Attached = attach(settings, groups, forced, None, announce)
        program = self.attached.program
        self._halves = Halves(program.map("generation"), 2)
        self._rows = Rows(program.map("wait_rows"), program.map("other_waits"), HALF_AT)
        self._followed = program.map("followed")
        self._earlier = program.map("earlier")

    @property
    def reasons(self) -> WaitReasons:
        """Return why goroutines of this program can wait, nothing if that was not found."""
        return self._probes.reasons

    @property
    def program(self) -> CodeNames:
        """Return the names of addresses in stacks: of a command, once it runs."""
        return self._files.program

    def take(self) -> WaitPeriod:
        """Return the sums since the last take; nothing that comes meanwhile is lost."""
        stacks = KeptStacks(self.attached.program)
        rows = []
        half = self._halves.flip()
        for key, (count, ns, longest) in self._rows.take(half):
            stack, other, _, reason, ended_by, _, _ = WAIT_ROW.unpack(key)
            rows.append(
                WaitRow(
                    stacks.find(stack),
                    EndedBy(ended_by),
                    stacks.find(other),
                    self._reason(reason),
                    count,
                    ns,
                    longest,
                )
            )
        others, others_ns, _ = self._rows.take_rest(half)
        return WaitPeriod(rows, (others, others_ns))

    def open(self) -> list[WaitRow]:
        """Return, after ``stop``, the waits that had begun and had not ended, with their time."""
        stopped = self.attached.stopped_at or time.monotonic()
        now = round(stopped * 1e9)
        stacks = KeptStacks(self.attached.program)
        found: dict[tuple[int, int], list[int]] = {}
        for _, value in self._followed.entries():
            since, stack, before, _, reason, _ = FOLLOWED_STATE.unpack(value)
            if since:
                number = reason if self._is_waiting(before) else REASON_STATUS | before
                found.setdefault((stack, number), []).append(max(0, now - since))
        return [
            WaitRow(
                stacks.find(stack),
                EndedBy.NONE,
                (),
                self._reason(number),
                *(len(times), sum(times), max(times)),
                is_open=True,
            )
            for (stack, number), times in found.items()
        ]

    def _is_waiting(self, before: int) -> bool:
        """Return whether a reason is given: of a wait, or of one that ended to be runnable."""
        waiting = WaitState.WAITING
        return self._probes.state is waiting or before == waiting.status

    def _reason(self, number: int) -> str:
        if number & REASON_STATUS:
            if self._probes.state is WaitState.RUNNABLE:
                return _BECAUSE.get(number & ~REASON_STATUS, "")
            return ""
        reasons = self._probes.reasons
        return reasons[number] if number < len(reasons) else ""

    def losses(self) -> WaitLosses:
        """Return the waits that have not been added up so far."""
        earlier = self._earlier.sums()
        counted = sum(
            count
            for number, count in enumerate(earlier)
            if self._probes.state is not WaitState.WAITING
            # A goroutine put aside for the collector is not a wait that began unseen.
            or meaning_of(self._reason(number)).wait_for is not WaitFor.SUSPENDED
        )
        return WaitLosses(counted, self.diagnostics()[Diagnostic.EXTREMES_LOST])


@dataclass(frozen=True, kw_only=True)
class WaitRequest(RunRequest[WaitMeter, None]):
    """Add up how long goroutines of one process are in a state, by stack.

    ``inside`` and ``reasons`` are patterns for what is looked at of that: each has to match
    something that the program has.
    """

    state: WaitState = WaitState.WAITING
    inside: Sequence[str] = ()
    reasons: Sequence[str] = ()

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Return the probes to attach. Raises GotraceError, UsageError among these."""
        probes = wait_probes(self.target, self.state)
        check_reasons(self.reasons, probes.reasons)
        GoFiles(self.target).check_functions(self.inside)
        if accept is not None:
            accept(probes)
        problems = () if probes.reasons else (_NO_REASONS,)
        return self.prepared(ProbePlan((), problems), announce, probes.tasks, probes)

    def attach(self, prepared: Prepared) -> WaitMeter:
        """Attach. Raises AttachError or LoadError."""
        assert isinstance(prepared.scheduler, WaitProbes)
        counts_hits = prepared.counts_hits
        return WaitMeter(prepared.scheduler, prepared.forced, prepared.announce, counts_hits)


_NO_REASONS = "why goroutines wait is not shown: runtime.waitReasonStrings was not found"
