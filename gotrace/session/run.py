# SPDX-License-Identifier: Apache-2.0
"""A run: the one way in which a measurement starts, goes on and ends.

It prints nothing and handles no signals. The commands, the library and the daemon are its users.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gotrace.closing import Closing
from gotrace.errors import GotraceError
from gotrace.kernel.attach import Attached
from gotrace.records import dataclass, field
from gotrace.records import fields as fields_of
from gotrace.session.budget import Exceeded, Hits, RunBudget
from gotrace.session.calibrate import Calibration, trap_cost
from gotrace.session.lifetime import Lifetime
from gotrace.session.presence import check_presence, debuggers
from gotrace.session.probing import Level, Prepared, Probing
from gotrace.session.request import Accept, RunRequest
from gotrace.sites.records import SiteForm
from gotrace.target.wait import Reason, Waiter

if TYPE_CHECKING:  # counting does without
    from gotrace.session.scheduler import SchedulerProbes

M = TypeVar("M", bound=Probing)
C = TypeVar("C")


class End(Enum):
    """The event that ended a run."""

    ASKED = "asked"  # by ``stop``, a signal, or the end of its time
    EXIT = "exit"  # all processes of the target have ended
    CHANGED = "changed"  # the target runs another program, or a traced file has other code
    GONE = "gone"  # the probes were removed, by no one who may: closing raises AttachError
    BUDGET = "budget"  # tracing took more than it may


class NoteKind(Enum):
    """The subject of a note."""

    TASKS = "tasks"  # how calls are identified
    FAILED = "failed"  # a pattern or a probe that comes to nothing
    PROBLEM = "problem"  # a function that is not probed, or not as asked
    REFUSED = "refused"  # a probe that the kernel refused
    INLINED = "inlined"  # a function of which some calls are seen by no probe
    ONLY_INLINED = "only_inlined"  # functions whose calls no probe sees
    REPLACED = "replaced"  # a file that is another one now
    MOVED = "moved"  # a function whose calls are seen returning elsewhere
    BUDGET = "budget"  # a function that costs more than it may
    ANOTHER = "another"  # the process runs another program
    PROCESS = "process"  # what is in the way of breakpoints in a process


@dataclass(frozen=True, slots=True)
class Note:
    """A message for the user about a run; ``fields`` are those of JSON."""

    kind: NoteKind
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


class Run(Closing, Generic[M, C]):
    """A measurement whose probes are in place: a context manager that detaches.

    It begins with ``begin`` and ends when it is asked to, when its time is up, or with the target.
    What it sees is read from ``meter``.
    """

    def __init__(
        self,
        prepared: Prepared,
        meter: M,
        calibration: Calibration[C] | None,
        waiter: Waiter,
        opened: ExitStack,
        hits: Hits | None = None,
        budget: RunBudget | None = None,
        presence: Sequence[Note] = (),
    ) -> None:
        """Take over the attached probes; ``opened`` closes all of them."""
        self.target = prepared.target
        self.plan = prepared.plan
        self.traced = prepared.traced
        self.tasks = prepared.tasks
        #: The names of the parts of time that calls have, none if these are not found out.
        self.part_names = prepared.why.names if prepared.why else ()
        self.meter: M = meter
        self.calibration = calibration
        #: How often what was hit, None if that is not counted.
        self.hits = hits
        #: The event that ended it, None before.
        self.end: End | None = None
        #: When it began, and when it ends if that is known (``time.monotonic``).
        self.began = 0.0
        self.ends: float | None = None
        self._lifetime: Lifetime | None = None
        self._look = 0.0
        self._news: list[Note] = []
        self._budget = budget
        self._presence = presence
        tracers = (note.fields for note in presence if note.fields.get("what") == "tracer")
        self._debugged = {pid for one in tracers if isinstance(pid := one["pid"], int)}
        self._levels: dict[int, Level] = {}
        self._waiter = waiter
        self._opened = opened
        self._lock = threading.RLock()  # a signal's handler may stop it while it is held
        self._is_open = True
        self._owner = os.getpid()

    @property
    def attached(self) -> Attached:
        return self.meter.attached

    def question(self, pids: Iterable[int], patterns: Sequence[str]) -> dict[str, Any]:
        """Return the beginning of a recording of calls: the question, and when that began."""
        unseen = sum(probe.is_entry for probe in self.plan.refused(self.attached.failed))
        return {
            "functions": len((self.plan.whole or self.plan).functions) - unseen,
            "pids": [*pids],
            "patterns": patterns,
            "attach": self.attached.method.value,
            "ts": time.time(),
        }

    def warnings(self) -> Iterator[Note]:
        """Yield notes on functions that are not traced, or not as asked."""
        yield from self._presence
        if self.tasks is not None and self.tasks.warning:
            yield Note(NoteKind.TASKS, self.tasks.warning)
        for failure in self.plan.failed:
            yield Note(NoteKind.FAILED, str(failure))
        for problem in (*self.plan.problems, *filter(None, [self.meter.problem])):
            yield Note(NoteKind.PROBLEM, problem)
        for probe in self.plan.refused(self.attached.failed):
            name = probe.function
            text = probe.text if name is None else f"{name}: {probe.text}"
            yield Note(NoteKind.REFUSED, text, {} if name is None else {"func": name})

    def extend(self, prepared: Prepared) -> list[Note]:
        """Attach a further plan, for which the programs have room; return what is to be said of it.

        Raises GotraceError: ``meter.remove`` takes away what was attached before that.
        """
        found = check_presence(prepared.target, prepared.plan.binaries, prepared.scheduler)
        notes = [Note(NoteKind.PROCESS, *one) for one in found]
        refused = prepared.plan.refused(self.meter.add(prepared))
        if prepared.tasks is not None and prepared.tasks.warning:
            notes.append(Note(NoteKind.TASKS, prepared.tasks.warning))
        return notes + [Note(NoteKind.REFUSED, f"{one.function}: {one.text}") for one in refused]

    def inlined(self, done: str) -> Iterator[Note]:
        """Yield which calls no probe sees; ``done`` is what is done with others, in the past."""
        for one in self.plan.inlined():
            yield Note(NoteKind.INLINED, one.text(done), one.fields)
        if only := self.plan.only_inlined():
            yield Note(NoteKind.ONLY_INLINED, only.text(done), only.fields)

    def begin(self, seconds: float | None = None) -> None:
        """Start a command that waits, and the clock. Raises CommandError."""
        self.target.start()
        self._lifetime = Lifetime(self.target, self.plan)
        if missed := self._lifetime.missed_command():
            text = f"{missed} was replaced before it was started: what runs now is not traced"
            self._news.append(Note(NoteKind.REPLACED, text, {"path": missed}))
        now = time.monotonic()
        self.began = now if self.target.command else self.attached.began
        self._look = now + Lifetime.PERIOD
        if seconds is not None:
            self.ends = now + seconds
            # The probes go in time, whatever the caller is doing then.
            timer = threading.Timer(seconds, self.stop)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # no further thread: it is done a little later
                return
            self._opened.callback(timer.cancel)

    def stop(self) -> None:
        """End the run: hits are ignored from now on.

        May be called in any thread, in a signal handler, and more than once. A process that was
        forked meanwhile stops nothing.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._is_open:  # else its map may be another's by now
                self.attached.stop()
        self._waiter.ask()

    @property
    def asked(self) -> float | None:
        """Return when it was to end (``time.monotonic``), None while it is not."""
        if self._waiter.asked is None and self.ends is not None and time.monotonic() >= self.ends:
            return self.ends
        return self._waiter.asked

    def is_over(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the run is over. Raises OSError.

        Nothing is recorded any more then, and what has been can be read.
        """
        if self.end is None:
            until = time.monotonic() + seconds
            times = [until, self._look, time.monotonic() + self.meter.pause]
            if self.ends is not None:
                times.append(self.ends)
            if self._budget is not None:
                times.append(self._budget.next)
            reason = self._waiter.wait(min(times))
            self.end = self._end(reason)
            if self.end is not None:
                self.meter.stop()
                self._say_counted()
        return self.end is not None

    def _end(self, reason: Reason) -> End | None:
        if reason is Reason.EXIT:
            return End.EXIT
        if self.asked is not None:
            return End.ASKED
        if self._is_over_budget():
            return End.BUDGET
        if time.monotonic() < self._look:
            return None
        self._look = time.monotonic() + Lifetime.PERIOD
        for warning in debuggers(self.target, self._debugged):
            self._news.append(Note(NoteKind.PROCESS, *warning))
        if not self.attached.is_held():
            return End.GONE
        return End.CHANGED if self._has_changed() else None

    def _has_changed(self) -> bool:
        """Look at the target's program and files; return whether the run is over."""
        assert self._lifetime is not None
        for path in self._lifetime.replaced_files():
            text = f"{path} was replaced on disk: processes that start from now on are not traced"
            self._news.append(Note(NoteKind.REPLACED, text, {"path": path}))
        if path := self._lifetime.overwritten_file() or "":
            text = f"{path} was written to: its probes may be in wrong places now"
            self._news.append(Note(NoteKind.REPLACED, text, {"path": path}))
            return True
        program = self._lifetime.replaced_program()
        if program is None:
            return False
        text = f"the process runs another program now: {program}"
        self._news.append(Note(NoteKind.ANOTHER, text, {"path": program}))
        return True

    def _is_over_budget(self) -> bool:
        """Lighten probes that cost too much; return whether only the end of the run is left."""
        if self._budget is None:
            return False
        exceeded = self._budget.look(time.monotonic())
        if exceeded is not None and not self._lighten(exceeded, self._budget.share):
            return True
        try:
            self._budget.forgive(self.meter.drop_probes())
        except GotraceError:  # the probes may be gone, which is said elsewhere
            self._budget = None
            return False
        off = sum(level is Level.OFF for level in self._levels.values())
        return off > 0 and off == len(self.plan.names)

    def _lighten(self, exceeded: Exceeded, budget: float) -> bool:
        """Make functions cost less, and report it; return whether that is possible."""
        from gotrace.probes.scope import listed  # few runs exceed their budget

        levels = {function: self.meter.lighten(function) for function in exceeded.functions}
        after = time.monotonic() - self.began
        fields: dict[str, object] = {"what": "budget", "total": exceeded.total, "after": after}
        beyond = f"and the budget is {_percent(budget)}"
        for level in Level:
            functions = [function for function in levels if levels[function] is level]
            if not functions:
                continue
            self._levels.update(dict.fromkeys(functions, level))
            share = sum(exceeded.functions[function] for function in functions)
            here = f", {_percent(share)} of it here" if len(self.plan.names) > 1 else ""
            took = f"tracing took {_percent(exceeded.total)} of a CPU{here}, {beyond}"
            names = [self.plan.names[function].name for function in functions]
            text = f"{listed(names)}: calls {_LIGHTENED[level]} from now on: {took}"
            more = {"level": level.value, "funcs": names, "share": share}
            self._news.append(Note(NoteKind.BUDGET, text, fields | more))
        if exceeded.rest is None and None not in levels.values():
            return True
        text = f"the run ends: tracing took {_percent(exceeded.total)} of a CPU, {beyond}"
        self._news.append(Note(NoteKind.BUDGET, text, fields | {"level": "ended"}))
        return False

    def _say_counted(self) -> None:
        if self._budget is None or not self._levels:
            return
        for number, calls in self._budget.hits.counted().items():
            name = self.plan.names[number].name
            were = "call was" if calls == 1 else "calls were"
            text = f"{name}: {calls:,} {were} only counted, to stay within the budget"
            fields = {"what": "budget", "func": name, "counted": calls}
            self._news.append(Note(NoteKind.BUDGET, text, fields))

    def news(self) -> list[Note]:
        """Return the notes on the run since the last time."""
        news, self._news = self._news, []
        cheaper: list[int] = []
        for move in self.meter.moved():
            name = "" if move.function is None else self.plan.names[move.function].name
            fields: dict[str, object] = {"func": name} if name else {}
            fields["returns"] = move.returns
            if move.places is not None:
                fields["places"] = {
                    each.name: getattr(move.places, each.name) for each in fields_of(move.places)
                }
            if move.why:
                fields["why"] = move.why
            news.append(Note(NoteKind.MOVED, move.text(name), fields))
            if move.returns == "landing" and move.function is not None:
                cheaper.append(move.function)
        if self._budget is not None:
            self._budget.forgive(cheaper)
        return news

    def close(self) -> None:
        """Detach, and close all."""
        with self._lock:
            self._is_open = False
        self._opened.close()


def open_run(
    request: RunRequest[M, C],
    *,
    waiter: Waiter | None = None,
    announce: Callable[[str], None] | None = None,
    accept: Accept | None = None,
) -> Run[M, C]:
    """Plan and attach a request.

    ``waiter`` is what the run waits with, one of its own if that is None. ``announce`` is as for
    ``attach``, ``accept`` is shown what is to watch the scheduler. Raises GotraceError: UsageError,
    NoMatchError, AttachError, LoadError and others.
    """
    with ExitStack() as opened:
        if waiter is None:
            waiter = opened.enter_context(Waiter())
        waiter.watch(request.target.watched)

        def accepted(probes: SchedulerProbes) -> None:
            list(check_presence(request.target, (), probes))  # before the price is found out
            if accept is not None:
                accept(probes)

        prepared = request.prepare(announce, accepted if accept else None)
        found = check_presence(prepared.target, prepared.plan.binaries, prepared.scheduler)
        presence = [Note(NoteKind.PROCESS, *one) for one in found]
        calibration = None
        if request.is_calibrated:
            calibration = opened.enter_context(Calibration(lambda: request.cost(prepared)))
        trap = None
        if request.budget is not None:
            measure = partial(trap_cost, SiteForm.EMULATED, request.forced)
            trap = opened.enter_context(Calibration(measure))
        meter = request.attach(prepared)
        opened.push(meter)
        hits = budget = None
        if prepared.counts_hits:
            hits = Hits(meter.attached.program, prepared.plan)
        if hits is not None and trap is not None and request.budget is not None:
            now, program_ns = time.monotonic(), meter.program_ns
            budget = RunBudget(request.budget, hits, trap, now, program_ns)
        rest = opened.pop_all()
        return Run(prepared, meter, calibration, waiter, rest, hits, budget, presence)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


_LIGHTENED = {
    Level.COUNTED: "are only counted",
    Level.OFF: "are not seen",
}
