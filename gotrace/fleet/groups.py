# SPDX-License-Identifier: Apache-2.0
"""Metrics of a kind in several programs, whose probes are those of one run.

Counters of functions, and histograms of their durations, have one BPF program for each kind: its
rows are functions of traced files, and each metric has some of them. A function of several metrics
has one probe. A metric that comes takes rows that are free. One that leaves takes the probes of its
functions along, and nothing from the others.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any

from gotrace.elf.image import FileIdentity
from gotrace.errors import GotraceError
from gotrace.fleet.probing import (
    DETAILS,
    OPEN_AT_DETACH,
    SKIPPED,
    Figures,
    MetricRequest,
    Probe,
    ProbeState,
    of_pod,
)
from gotrace.fleet.series import Increment, Metric
from gotrace.fleet.targets import Program, ProgramKey
from gotrace.histogram import ROW_SIZE, Histogram
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import KILLED, AttachError, refusal
from gotrace.kernel.cookie import COOKIE_INDEX_MASK
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, field, replace
from gotrace.session.budget import HitRow, Hits, Spent
from gotrace.session.count import CallCounter
from gotrace.session.landings import MAX_FUNCTIONS, can_move
from gotrace.session.latency import LatencyMeter, LatencyRequest
from gotrace.session.open_calls import Diagnostic
from gotrace.session.plan import BinaryPlan, FunctionKey, ProbePlan, also_inlined
from gotrace.session.probing import PlanRoom, Prepared
from gotrace.session.request import Asked, Planned
from gotrace.session.run import Note, Run, open_run
from gotrace.sites.sites import FunctionSites
from gotrace.target.process import Process
from gotrace.text import printable

#: Functions of a metric that shares its program: each has a histogram in the kernel.
_MAX_SHARING = 64
#: Programs that share theirs, and their open calls: some of them at a time have many.
_MAX_FILES = 32
_MAX_OPEN_CALLS = 1 << 17
#: Calls within others, for each goroutine with open calls.
_MAX_WITHIN = 8
#: Functions that there is room for beside the first ones, in bytes of their histograms as well.
_MAX_SPARE, _MAX_SPARE_BYTES = 64, 4 << 20
#: What is missing of functions, as rows of hits have it.
_BY_FUNCTION = tuple(
    what.name.lower()
    for what in (
        Diagnostic.STACKS_FULL,
        Diagnostic.OUTER_CALLS_FULL,
        Diagnostic.NEW_CALLERS,
        Diagnostic.UNWOUND,
    )
)
_FRESH = 0.5  # seconds in which what a group knows of itself is not asked for again


@dataclass(frozen=True, slots=True)
class Planning:
    """A metric that is to be attached in a program, and its plan.

    ``is_spare``: the metric begins when it is asked to forget what was before.
    """

    metric: Metric
    request: MetricRequest
    plan: ProbePlan
    program: Program
    is_spare: bool

    @property
    def keys(self) -> list[FunctionKey]:
        """Return the functions, each once."""
        return [one.key(sites) for one in self.plan.binaries for sites in one.functions]

    @property
    def is_large(self) -> bool:
        """Return whether it is to be alone."""
        return len(self.plan.functions) > _MAX_SHARING


class MetricGroups:
    """The groups that there are; metrics that come join one that has room for them."""

    def __init__(self, cost: ProbeCost) -> None:
        """Begin without any; ``cost`` is that of a trap."""
        self._cost = cost
        self._groups: list[_Group] = []

    def attach(
        self,
        metrics: Sequence[Metric],
        request: Callable[[Metric], MetricRequest],
        program: Program,
        is_spare: bool,
        programs: int,
    ) -> list[Probe | Exception]:
        """Attach metrics of one kind in a program; return the probe of each, or why it has none.

        ``programs`` is in how many programs metrics of the kind are to be attached.
        """
        found: list[Probe | Exception | None] = [None] * len(metrics)
        planned: dict[int, Planning] = {}
        for number, metric in enumerate(metrics):
            try:
                asked = request(metric)
                plan = asked.plan().plan
                planned[number] = Planning(metric, asked, plan, program, is_spare)
            except Exception as error:  # whatever it is, it is to cost this metric alone
                found[number] = error
        self._groups = [group for group in self._groups if group.is_open]
        for numbers in _blocks(planned):
            group: list[Probe | Exception]
            try:
                group = self._attached([planned[number] for number in numbers], programs)
            except Exception as error:
                group = [error] * len(numbers)
            for number, probe in zip(numbers, group, strict=True):
                found[number] = probe
        return [one for one in found if one is not None]

    def _attached(self, planned: Sequence[Planning], programs: int) -> list[Probe | Exception]:
        """Attach the metrics of one block. Raises GotraceError or OSError."""
        first = planned[0]
        if first.is_large:
            run = open_run(_planned(first.request, first.plan))
            return _Group(run, self._cost, None, None).join(planned, first.plan)
        request, plan = first.request, _joint(planned)
        prepared = _planned(request, plan).prepare(None, None)
        kind = _kind(request, prepared)
        for group in self._groups:
            if group.kind == kind and (joined := group.take_in(planned, prepared)) is not None:
                return joined
        room = _room(len(plan.functions), programs)
        if isinstance(request, LatencyRequest):
            open_calls = request.options.open_calls * room.files
            within = min(_MAX_WITHIN, max(2, len(plan.functions)))
            options = replace(
                request.options,
                per_function=True,
                open_calls=min(2 * open_calls, _MAX_OPEN_CALLS),  # half of it are files' shares
                outer_calls=min(open_calls * within, _MAX_OPEN_CALLS),
            )
            request = replace(request, options=options)
        group = _Group(open_run(_planned(request, plan, room)), self._cost, kind, room)
        self._groups.append(group)
        return group.join(planned, plan)


def _planned(request: Any, plan: ProbePlan, room: PlanRoom | None = None) -> Any:
    """Return a request for a plan that is made already."""
    return replace(request, asked=Asked(()), planned=Planned(plan), room=room)


def _kind(request: MetricRequest, prepared: Prepared) -> Hashable:
    """Return a key that is the same for metrics that can share a program."""
    tasks = prepared.tasks.settings() if prepared.tasks is not None else None
    open_calls = request.options.open_calls if isinstance(request, LatencyRequest) else 0
    site = prepared.site_settings()
    return type(request), open_calls, site, tasks, prepared.forced, can_move(prepared)


def _room(functions: int, programs: int) -> PlanRoom:
    """Return room for the functions of a program, in as many programs, and for some to come."""
    files = min(programs + 1 + programs // 4, _MAX_FILES)
    row = 2 * ROW_SIZE * len(kernel.online_cpus())
    spare = max(1, min(_MAX_SPARE, _MAX_SPARE_BYTES // row))
    return PlanRoom(min(functions * min(programs, files) + spare, MAX_FUNCTIONS), files)


def _blocks(planned: dict[int, Planning]) -> Iterator[list[int]]:
    """Yield which metrics share a program: their functions can be distinguished by their hits."""
    block: list[int] = []
    functions: set[FunctionKey] = set()
    for number, one in planned.items():
        if one.is_large:
            yield [number]
            continue
        keys = functions.union(one.keys)
        if len(keys) > MAX_FUNCTIONS:
            yield block
            block, keys = [], set(one.keys)
        block.append(number)
        functions = keys
    if block:
        yield block


def _joint(planned: Sequence[Planning]) -> ProbePlan:
    """Return one plan for several metrics of a file."""
    functions = {
        file.key(sites): sites
        for one in planned
        for file in one.plan.binaries
        for sites in file.functions
    }
    binary = planned[0].plan.binaries[0].binary
    return ProbePlan((BinaryPlan(binary, tuple(functions.values())),), ())


@dataclass(eq=False, slots=True)
class _Row:
    """A function that has probes, and the metrics that have it."""

    key: FunctionKey
    sites: FunctionSites
    program: ProgramKey
    users: list[MemberProbe] = field(default_factory=list)
    is_light: bool = False  # its calls are not followed


class _Group:
    """The run of some metrics; any thread may ask."""

    def __init__(
        self, run: Run[Any, Any], cost: ProbeCost, kind: Hashable, room: PlanRoom | None
    ) -> None:
        """Take over a run whose probes are in place; without room, no further metrics join."""
        self.run, self.kind = run, kind
        self.meter: CallCounter | LatencyMeter = run.meter
        self.lock = threading.RLock()
        self.members: list[MemberProbe] = []
        self.is_open = True
        self.rows: dict[int, _Row] = {}
        self.by_row = isinstance(run.meter, CallCounter) or run.meter.by_function
        self.can_move = isinstance(run.meter, LatencyMeter) and run.meter.landings is not None
        self._room = room
        self._has_left = False  # any function: calls of it may be open
        self._files: dict[ProgramKey, int] = {}
        self._skipped = 0
        self._hits = Hits(run.attached.program, run.plan)
        self._cost = cost.plus(run.meter.program_ns)
        self._is_held = True
        self._dropping = False
        self._due: dict[str, float] = {}

    def _is_due(self, what: str) -> bool:
        """Return whether something is to be done again, which all metrics ask for."""
        now = time.monotonic()
        if not self.is_open or now < self._due.get(what, 0.0):
            return False
        with self.lock:
            self._due[what] = now + _FRESH
        return True

    def take_in(
        self, planned: Sequence[Planning], prepared: Prepared
    ) -> list[Probe | Exception] | None:
        """Attach metrics of a program that are planned together; return None without room for them.

        Raises GotraceError or OSError.
        """
        (file,), program = prepared.plan.binaries, planned[0].program.key
        with self.lock:
            if self._room is None or not self.is_open or not self.run.attached.is_held():
                return None
            if all(one.is_leaving for one in self.members):
                return None  # the process that holds the probes ends with them
            there = {row.key: row for row in self.rows.values()}
            new = [sites for sites in file.functions if file.key(sites) not in there]
            shared = [row for row in map(there.get, map(file.key, file.functions)) if row]
            first, number = self._free(len(new)), self._number(program)
            if first is None or number is None or not self._goes_with(file, program, shared):
                return None
            self.take()  # what was counted before is not theirs
            plan = ProbePlan((replace(file, functions=tuple(new)),), (), first=first)
            tasks = prepared.tasks and replace(prepared.tasks, number=number)
            notes: list[Note] = []
            if new:
                try:
                    notes = self.run.extend(
                        replace(prepared, plan=plan, tasks=tasks, room=self._room)
                    )
                except BaseException:
                    self._has_left = True
                    with suppress(GotraceError):
                        self.meter.remove(range(first, first + len(new)))
                    raise
                self._hits.add(plan)
            return self.join(planned, plan, number, notes)

    def _free(self, count: int) -> int | None:
        """Return the first of so many rows that no function has, None if there are none.

        A call that was open when its function left is not to end at another one's RET.
        """
        assert self._room is not None
        taken: Set[int] = self.rows.keys()
        if self._has_left and isinstance(self.meter, LatencyMeter):
            taken = taken | self.meter.open_now()
        free = 0
        for row in range(self._room.functions):
            free = 0 if row in taken else free + 1
            if free >= count:
                return row - free + 1
        return None

    def _number(self, program: ProgramKey) -> int | None:
        """Return a program's number, a new one if it is not here, None if there are too many."""
        assert self._room is not None
        used = set(self._files.values())
        free = next((one for one in range(self._room.files) if one not in used), None)
        return self._files.get(program, free)

    def _goes_with(self, file: BinaryPlan, program: ProgramKey, shared: Iterable[_Row]) -> bool:
        """Return whether functions of a file can be beside those that are here.

        A function has one row: two would be two calls at one depth. Jumps between functions are
        known where these are attached together.
        """
        device, inode, _ = file.key(file.functions[0])
        here = [row for row in self.rows.values() if row.key[:2] == (device, inode)]
        if any(row.program != program for row in here) or any(row.is_light for row in shared):
            return False
        every = [*file.functions, *(row.sites for row in here)]
        return not here or not any(sites.tail_jumps for sites in every)

    def join(
        self,
        planned: Sequence[Planning],
        plan: ProbePlan,
        file: int = 0,
        notes: Sequence[Note] | None = None,
    ) -> list[Probe | Exception]:
        """Add metrics whose probes are in place; return the probe of each, or why it has none."""
        program, (binary,) = planned[0].program, plan.binaries[:1]
        image = binary.binary.image
        self._files[program.key] = file
        for row, at, sites in plan.numbered():
            self.rows[row] = _Row(at.key(sites), sites, program.key)
        numbers = {row.key: number for number, row in self.rows.items()}
        entries = {
            image.offset_of(row.sites.entry.address)
            for row in self.rows.values()
            if row.program == program.key and row.sites.entry is not None
        }
        refused = {
            point.cookie & COOKIE_INDEX_MASK: error
            for point, error in self.run.attached.failed.items()
            if point.offset in entries
        }
        said = [note.text for note in (self.run.warnings() if notes is None else notes)]
        probes: list[MemberProbe] = []
        inlined = also_inlined([one.plan.binaries for one in planned], {})
        for one, places in zip(planned, inlined, strict=True):
            more = [*said, *(place.text("counted") for place in places)]
            said = []
            own = [numbers[key] for key in one.keys]
            probes.append(MemberProbe(self, one, own, image.identity, more))
        found: list[Probe | Exception] = [*probes]
        for number, probe in enumerate(probes):
            if refused and all(row in refused for row in probe.rows):
                error = refusal(refused[probe.rows[0]])
                found[number] = AttachError(f"cannot attach to {image.display}: {error}")
                probe.close()
        return found

    def add(self, member: MemberProbe) -> None:
        """Add a metric."""
        self.members.append(member)
        for row in member.rows:
            self.rows[row].users.append(member)

    def take(self) -> None:
        """Pass on what was counted and measured since the last time."""
        with self.lock:
            if self.is_open:
                self._pull()
                self.look_again()

    def _pull(self) -> None:
        found: dict[int, tuple[int, Histogram | None]]
        if isinstance(self.meter, CallCounter):
            found = {row: (calls, None) for row, calls in enumerate(self.meter.take()) if calls}
        else:
            found = {row: (one.count, one) for row, one in self.meter.take().rows.items()}
        for row, (calls, times) in found.items():
            for member in self._users(row) if self.by_row else self.members:
                member.add(row, calls, times)

    def _users(self, row: int) -> Sequence[MemberProbe]:
        return self.rows[row].users if row in self.rows else ()

    def expire(self) -> None:
        """Pass on what has come since the last scrape: its series are not idle."""
        with self.lock:
            if self._is_due("expire"):
                self._pull()

    def poll(self) -> None:
        """Free the entries that ended processes left."""
        with self.lock:
            if self._is_due("poll") and isinstance(self.meter, LatencyMeter):
                self.meter.poll(0.0)

    def move(self) -> float:
        """Have frequent calls seen returning in their callers, as ``ProbeSource`` says."""
        with self.lock:
            if not self.is_open:
                return math.inf
            self.meter.move()
            for move in self.meter.moved():
                row = self.rows.get(move.function) if move.function is not None else None
                name = "" if row is None else row.sites.function.name
                target = "all" if row is None else row.program.target
                DETAILS.info("%s: %s", target, printable(move.text(name)))
                if row is not None and move.function is not None and move.returns == "landing":
                    self._make_cheaper(move.function)
            return self.meter.pause

    def settle(self) -> None:
        """Remove what is needless, and find out which functions cost less."""
        if not self._is_due("settle"):
            return
        with self.lock:
            if not self.is_open:
                return
            cheaper = set(self.rows) if self.meter.settle() else set[int]()
            with suppress(GotraceError):  # the probes may be gone, which is said elsewhere
                cheaper |= set(self.meter.drop_probes()) if self._dropping else set()
            for row in cheaper:
                self._make_cheaper(row)

    def _make_cheaper(self, row: int) -> None:
        for member in self._users(row):
            member.is_cheaper = True

    def note_losses(self) -> None:
        """Have each metric note how many more hits of any function have been skipped."""
        if not self._is_due("lost"):
            return
        with self.lock:
            if self.is_open:
                skipped = self.meter.skipped()
                _lose(self.members, Counter({SKIPPED: skipped - self._skipped}))
                self._skipped = skipped

    def look_again(self) -> None:
        """Have what is known of costs and losses be of this moment."""
        self._due.pop("look", None)
        self._due.pop("lost", None)
        self.look()

    def look(self) -> None:
        """Divide the cost of new hits among the metrics, and have each note what it lacks."""
        if not self._is_due("look"):
            return
        with self.lock:
            if not self.is_open:
                return
            most = self._room.functions if self._room is not None else MAX_FUNCTIONS
            files = {number: key for key, number in self._files.items()}
            if (new := self._hits.new(self._used(most, files))) is None:
                return
            before = {member: member.ns for member in self.members}
            rows = zip(new.numbers, new.rows, new.spent(self._cost), strict=True)
            # Last those of no function: metrics have parts of them by what their own have cost.
            for row, hit, ns in sorted(rows, key=lambda each: not 0 < each[0] <= most):
                users = self._users(row - 1)
                if row > most:
                    program = files.get(row - 1 - most)
                    users = [one for one in self.members if one.program.key == program]
                elif not row:
                    users = self.members
                for member in users:
                    member.unmeasured += hit.counted
                own = 0 < row <= most
                parts = [1 if own else member.ns - before[member] for member in users]
                _divide(users, parts, _sites(hit), ns)
                _lose(users, Counter({what: getattr(hit, what) for what in _BY_FUNCTION}))

    def _used(self, most: int, files: Iterable[int]) -> Iterator[range]:
        """Yield the rows of hits that are somebody's, of functions and of files."""
        functions = max(self.rows, default=-1) + 1
        yield range(1 + functions if functions <= MAX_FUNCTIONS else 1)
        if self._room is not None:
            yield range(1 + most + min(files, default=0), 2 + most + max(files, default=-1))

    def is_held(self) -> bool:
        """Return whether the probes are still there."""
        with self.lock:
            if self._is_due("held"):
                self._is_held = self.run.attached.is_held()
            return self._is_held

    def lighten(self, member: MemberProbe) -> bool:
        """Count the calls of a metric's own functions alone; return whether that is possible."""
        own = [row for row in member.rows if self.rows[row].users == [member]]
        if isinstance(self.meter, CallCounter) or not own:
            return False
        if self._room is None:
            return self.meter.lighten_all()
        lightened = [self.meter.lighten(row) for row in own]
        for row in own:
            self.rows[row].is_light = True
        self._dropping = True
        return None not in lightened

    def stop(self, member: MemberProbe) -> None:
        """Let a metric leave, with the others that are to leave when the first of them closes."""
        with self.lock:
            member.is_leaving = True
            if all(one.is_leaving for one in self.members):
                self.run.attached.stop()

    def leave(self, member: MemberProbe) -> None:
        """Remove the probes of all metrics that are to leave. Raises GotraceError."""
        member.is_leaving = True
        leaving = [one for one in self.members if one.is_leaving]
        staying = [one for one in self.members if not one.is_leaving]
        is_held = not staying or self.run.attached.is_held()
        try:
            if not staying or not is_held:
                self.meter.stop()
            else:
                rows = {row for one in leaving for row in one.rows}
                gone = {row for row in rows if all(one.is_leaving for one in self.rows[row].users)}
                if gone:
                    self.meter.remove(gone)
            self._pull()
            self.look_again()
        finally:
            for one in leaving:
                one.end()
            self.members = staying
            self._free_rows({number for one in leaving for number in one.rows})
            if not staying:
                self.is_open = False
                self.run.close()
        if not is_held:
            raise AttachError(KILLED)

    def _free_rows(self, numbers: Iterable[int]) -> None:
        """Leave rows, and files, that no metric has any more to those that come."""
        for number in numbers:
            row = self.rows[number]
            row.users = [one for one in row.users if not one.is_leaving]
            if not row.users:
                del self.rows[number]
                self._has_left = True
        programs = {one.program.key for one in self.members}
        self._files = {key: file for key, file in self._files.items() if key in programs}


def _sites(hit: HitRow) -> int:
    return hit.entries + hit.returns + hit.landings + hit.stepped + hit.others


def _lose(members: Sequence[MemberProbe], lost: Counter[str]) -> None:
    """Have each metric note once for each target what is missing of all its files."""
    if any(lost.values()):
        firsts = {(id(one.metric), one.program.key.target): one for one in members[::-1]}
        for member in firsts.values():
            member.lost.update(lost)


def _divide(members: Sequence[MemberProbe], parts: Sequence[int], hits: int, ns: int) -> None:
    """Have metrics pay for what all of them have, in parts that are the same if all are 0."""
    if not members or not (hits or ns):
        return
    parts = parts if any(parts) else [1] * len(members)
    whole, left = sum(parts), Spent(hits, ns)
    for member, part in zip(members, parts, strict=True):
        own = Spent(hits * part // whole, ns * part // whole)
        member.hits, member.ns = member.hits + own.hits, member.ns + own.ns
        left = Spent(left.hits - own.hits, left.ns - own.ns)
    members[0].hits += left.hits
    members[0].ns += left.ns


class MemberProbe(Probe):
    """The probes of a metric that has some rows of a group."""

    def __init__(
        self,
        group: _Group,
        planned: Planning,
        rows: Sequence[int],
        file: FileIdentity,
        notes: Sequence[str],
    ) -> None:
        """Join a group; ``notes`` are about the metric's functions."""
        super().__init__()
        self.group, self.metric, self.rows = group, planned.metric, rows
        self.program, self._file = planned.program, file
        self._has_begun = not planned.is_spare
        functions = [one.function.name for one in planned.plan.binaries[0].functions]
        self._names = dict(zip(rows, functions, strict=True))
        self._lock = group.lock
        self.needs_target = group.can_move
        #: Whether calls cost less since it was asked last; whether it is to leave.
        self.is_cheaper = self.is_leaving = False
        self.hits = self.ns = self.unmeasured = 0
        plan = planned.plan
        self.problems = [*plan.problems, *notes]
        if only := plan.only_inlined():
            self.problems.append(only.text("counted"))
        self.lost = Counter[str]()
        group.note_losses()
        group.add(self)
        self._pod = partial(of_pod, planned.metric.spec, self.program)
        self.metric.begin(self.program.key.target)
        self._is_present = True

    @property
    def source(self) -> _Group:
        return self.group

    def add(self, row: int, calls: int, times: Histogram | None) -> None:
        """Take new results of a row; called with the group's lock held."""
        if not self._has_begun:
            return
        if self.state is not ProbeState.ON:
            self.unmeasured += calls  # of a function that others measure
            return
        names = (self._names[row],) if self.metric.spec.functions else ()
        self.metric.add(self.program.key.target, [self._pod(Increment(names, calls, times))])

    def take(self) -> None:
        self.group.take()

    def move(self) -> float:
        return self.group.move()

    def expire(self) -> None:
        if self.metric.can_expire:
            self.group.expire()

    def forget(self) -> None:
        with self._lock:
            if self.is_open and not self._has_begun:
                self.group.take()
            self._has_begun = True

    def poll(self) -> None:
        self.group.poll()

    def _lighten(self) -> str | None:
        if self.state is not ProbeState.ON or not self.group.lighten(self):
            return None
        self.group._pull()
        self.state = ProbeState.COUNTED
        self._rest()
        return "its calls are only counted"

    def settle(self) -> bool:
        self.group.settle()
        is_cheaper, self.is_cheaper = self.is_cheaper, False
        return is_cheaper

    def _figures(self) -> Figures:
        self.group.look()
        self.group.note_losses()
        return Figures(Spent(self.hits, self.ns), self.lost.copy(), self.unmeasured)

    def spent(self) -> Spent:
        if (final := self._final) is not None:
            return final.spent
        self.group.look()
        return Spent(self.hits, self.ns)

    def is_held(self) -> bool:
        return self.group.is_held()

    def is_in(self, pid: int) -> bool | None:
        with self._lock:
            return self._has_breakpoint(pid) if self.is_open else None

    def _has_breakpoint(self, pid: int) -> bool | None:
        return self.group.run.attached.has_breakpoint(Process(pid), self._file)

    def stop(self) -> None:
        self.group.stop(self)

    def _close(self) -> None:
        self.group.leave(self)

    def end(self) -> None:
        """Take note that it has left; called with the group's lock held."""
        if self._final is not None:
            return
        final = None
        try:
            final = self._figures()
            meter = self.group.meter
            if isinstance(meter, LatencyMeter):
                rows = self.rows if self.group.by_row else None
                if left := meter.open_calls(rows):
                    final.lost[OPEN_AT_DETACH] += left
        finally:
            self._final = final or Figures(Spent(self.hits, self.ns))
            self._rest()

    def _rest(self) -> None:
        if self._is_present:
            self._is_present = False
            self.metric.presence.end(self.program.key.target)
