# SPDX-License-Identifier: Apache-2.0
"""Profiles of one process, as ``net/http/pprof`` of the program itself would give them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from gotrace.errors import GotraceError, NoMatchError
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.price import OverBudgetError, refuse_price
from gotrace.fleet.web import ProfileKind
from gotrace.goroutines.groups import GoroutineFilter
from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.profile import profile_of
from gotrace.gotypes.wait_reasons import BLOCKING, WaitFor, meaning_of, reason_numbers
from gotrace.overhead import ProbeCost
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import PprofLocation, StackProfile
from gotrace.records import replace
from gotrace.session.budget import Hits
from gotrace.session.choices import WaitState
from gotrace.session.request import Accept
from gotrace.session.run import open_run
from gotrace.session.waits.meter import EndedBy, WaitMeter, WaitRequest, WaitRow
from gotrace.session.waits.naming import FORM, WaitChoice, named_waits, profile_rows
from gotrace.target.target import Target

_LOOK = 0.2  # seconds between two looks at what it costs


def take_profile(
    kind: ProfileKind,
    pid: int,
    program: Program,
    seconds: int,
    cost: ProbeCost,
    share: float,
    stopping: threading.Event,
) -> bytes:
    """Return a profile of a process that runs a program, gzipped.

    Waits are watched for ``seconds``, for which they may take ``share`` of one CPU; sooner it ends
    only when ``stopping`` is set. Raises GotraceError: NoMatchError where the process has ended,
    OverBudgetError.
    """
    with closing(Target.of(pid, None)) as target:
        if not program.is_run_by(pid):  # its number may be another's by now
            raise NoMatchError(f"process {pid} has ended")
        if kind is ProfileKind.GOROUTINE:
            with LiveGoroutines(target) as live:
                dump = live.take()
                return pprof(profile_of(dump, GoroutineFilter().of(dump), time.time_ns()))

        def watch(meter: WaitMeter) -> None:
            hits, each = Hits(meter.attached.program), cost.plus(meter.program_ns)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if stopping.wait(min(_LOOK, max(0.0, until - time.monotonic()))):
                    raise GotraceError("no profile is made: gotraced ends")
                if hits.total(each).ns > share * seconds * 1e9:
                    raise OverBudgetError(
                        f"ended: watching waits has taken more than {100 * share:.1f}% of one CPU"
                        f" for {seconds} s, the budget of all"
                    )

        return wait_profile(kind, target, watch, lambda probes: refuse_price(probes, cost, share))


def wait_profile(
    kind: ProfileKind,
    target: Target,
    watch: Callable[[WaitMeter], None],
    accept: Accept | None = None,
) -> bytes:
    """Return a profile of the waits that end while ``watch`` runs.

    ``accept`` is as for ``open_run``. Raises GotraceError.
    """
    began = time.time_ns()
    with open_run(WaitRequest(target=target, is_minded=True), accept=accept) as run:
        meter = run.meter
        watch(meter)
        meter.stop()
        rows = meter.take().rows
    wanted = BLOCKING
    if kind is ProfileKind.MUTEX:
        rows = list(_of_holders(rows))
        # Before Go 1.20 locks had no reason of their own.
        has_locks = reason_numbers(meter.reasons, {WaitFor.LOCK})
        wanted = frozenset({WaitFor.LOCK if has_locks else WaitFor.SEMAPHORE})
    rows = [row for row in rows if meaning_of(row.reason).wait_for in wanted]
    waits = named_waits(meter.program, WaitState.WAITING, rows, WaitChoice())
    found = profile_rows(meter.program, waits)
    if kind is ProfileKind.MUTEX:
        found = [replace(row, stack=_from_unlocking(row.stack)) for row in found]
    length = time.time_ns() - began
    mappings = meter.program.mappings()
    return pprof(StackProfile(FORM, found, "waits", mappings, began, length))


def _of_holders(rows: Iterable[WaitRow]) -> Iterable[WaitRow]:
    """Yield waits with the stack of who ended them, as Go's mutex profile has them."""
    for row in rows:
        if row.ended_by is EndedBy.GOROUTINE and row.ended_by_stack:
            yield replace(row, stack=row.ended_by_stack)


def _from_unlocking(stack: Sequence[PprofLocation]) -> Sequence[PprofLocation]:
    """Return a stack without what the runtime does to hand a lock on, as Go's profile begins."""
    for index, location in enumerate(stack):
        if any(line.function.startswith(_OF_LOCKS) for line in location.lines):
            return stack[index:]
    return stack


#: Types of the standard library that are locked and unlocked.
_OF_LOCKS = ("sync.(*", "internal/sync.(*")
