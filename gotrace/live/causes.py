# SPDX-License-Identifier: Apache-2.0
"""Findings: what the time of a program's work goes into, of looks at it and of measurements.

Each look counts goroutines by what they do. The mean of a count is how many do that at any time,
so a part of all who work is a part of their time. Goroutines that wait for work are not counted.
Every threshold is a constant here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from gotrace.elf.buildinfo import main_module
from gotrace.goroutines.interrupted import WorkKind
from gotrace.goroutines.model import Frame, State
from gotrace.gotypes.wait_reasons import WaitFor, meaning_of
from gotrace.histogram import Histogram
from gotrace.live.attached import LOCKS, WaitUses, is_runtimes
from gotrace.live.findings import TimeFinding
from gotrace.live.model import GroupRow, Snapshot, WaitUse
from gotrace.live.monitor import Monitor
from gotrace.live.served import Route, ServedRequests
from gotrace.records import dataclass, field
from gotrace.results.rows import Row
from gotrace.session.oncpu.naming import NamedSamples
from gotrace.session.row_cells import RowStack
from gotrace.session.waits.naming import waker_label
from gotrace.session.why.parts import PartClass, part_class
from gotrace.session.why.sums import part_bands
from gotrace.target.target import Target
from gotrace.text import counted
from gotrace.values.stdlib_text import duration_text

#: Goroutines that wait in one function, on average, from which on it is a finding.
MIN_WAITING = 0.5
#: The part of the time of all work that it has to be, too.
MIN_SHARE = 0.1
#: The part of the processors that the program may use, from which on they are used up.
MIN_USED = 0.85
#: Goroutines that are ready and have no processor, on average, from which on too few are there.
MIN_READY = 0.5
#: The CPUs for which threads were ready in vain, and their part of all that they were ready for.
MIN_DELAYED = 0.3
#: The part of the periods of the quota in which the program was stopped by it.
MIN_THROTTLED = 0.05
#: The part of the CPU time in which memory is allocated or collected, and how many CPUs that is.
MIN_MEMORY, MIN_MEMORY_CPUS = 0.3, 0.1
#: A function's part of the samples, if the processors are used up.
MIN_CPU_SHARE = 0.3
#: Goroutines that run or are ready for that, or for the scheduler, on average, and the CPUs that it
#: has: if other programs have these, goroutines are ready for little work, too.
MIN_CPU_WORK, MIN_CPU_USED = 0.5, 0.05
#: Goroutines more at the end, which do not go on, of one group.
MIN_GROWTH = 20

#: Slow requests of a route, and how many times longer than the others they take.
MIN_SLOW, MIN_SLOWER = 5, 5.0
#: How many goroutines that is in slow requests, on average.
MIN_SLOW_TIME = 0.05

#: Parts of time that other programs cause, or that are findings of their own.
_FOR_CPU = frozenset({PartClass.RUNNABLE, PartClass.PREEMPTED, PartClass.THROTTLED, PartClass.GC})
#: The function of the runtime that allocates: all others do by it.
_ALLOCATES = "runtime.mallocgc"
#: Functions above one that are shown, and routes.
_MAX_CALLERS = _MAX_ROUTES = 3

#: Kinds of waits that are findings within requests, and what they are in words.
_WAITS = {
    WaitFor.LOCK: "waits for a lock",
    WaitFor.SEMAPHORE: "waits for a lock or a group",
    WaitFor.SEND: "waits until somebody receives",
    WaitFor.RECEIVE: "waits for a channel",
    WaitFor.SELECT: "waits for channels",
    WaitFor.COND: "waits for a condition",
    WaitFor.JOIN: "waits for other goroutines",
    WaitFor.NETWORK: "waits for the network",
    WaitFor.SLEEP: "sleeps",
    WaitFor.NOTHING: "waits for ever",
}


@dataclass(frozen=True, slots=True)
class Doing:
    """Something that goroutines do: in a state, for a reason, in one function of the program."""

    state: State
    wait_for: WaitFor | None
    frame: Frame | None
    callee: str


#: Waits for the collector, where memory is allocated.
_FOR_COLLECTOR = Doing(State.WAITING, None, None, "")


@dataclass(slots=True)
class Looks:
    """All looks at a program: how many goroutines did what, in sum."""

    uses: WaitUses
    module: str | None
    count: int = 0
    sums: Counter[Doing] = field(default_factory=Counter)
    #: The program's own functions on the stacks of each.
    stacks: dict[Doing, Counter[tuple[str, ...]]] = field(default_factory=dict)
    #: How often each goroutine waited in a request, but for locks; those of the last look; and
    #: how many have waited in one request all the time, which does not count as work.
    waited: dict[Doing, Counter[int]] = field(default_factory=dict)
    lately: set[int] = field(default_factory=set)
    lasting: Counter[Doing] = field(default_factory=Counter)
    last: Snapshot | None = None

    @classmethod
    def of(cls, target: Target) -> Looks:
        """Return none yet of a target. Raises GotraceError."""
        module = main_module(target.binary(None).image)
        return cls(WaitUses(module), module)

    def add(self, monitor: Monitor, snapshot: Snapshot) -> None:
        """Take a look."""
        self.count += 1
        self.last = snapshot
        waiting: dict[int, Doing] = {}
        for group in snapshot.groups:
            if (doing := self._doing(group)) is not None:
                self.sums[doing] += group.count
                stacks = self.stacks.setdefault(doing, Counter())
                stacks[self.own(group.frames)] += group.count
                if doing.wait_for is not None and doing.wait_for not in LOCKS:
                    waiting[group.number] = doing
        self.lately.clear()
        for number, goid in monitor.members(waiting):
            self.waited.setdefault(waiting[number], Counter())[goid] += 1
            self.lately.add(goid)

    def leave_out_lasting(self, began: Collection[int] | None) -> None:
        """Leave out the waits of requests that have lasted all the time, such as event streams.

        Goroutines of ``began`` began one meanwhile. If it is None, those last that have waited in
        one place at each look.
        """
        for doing, goids in self.waited.items():
            for goid, times in goids.items():
                lasts = times == self.count if began is None else goid not in began
                if lasts and goid in self.lately:
                    self.sums[doing] -= times
                    self.lasting[doing] += 1

    def _doing(self, group: GroupRow) -> Doing | None:
        if group.state is State.RUNNING:
            return Doing(State.RUNNING, None, None, "")
        wait_for = None
        names = (frame.function for frame in group.frames)
        if group.state is State.WAITING and is_runtimes(group.reason, names):
            return _FOR_COLLECTOR
        if group.state in (State.WAITING, State.SYSCALL):
            stack = RowStack(group.frames, is_cut=False)
            if self.uses.of(group.reason, stack, ()) is not WaitUse.REQUEST:
                return None
        if group.state is State.WAITING:
            wait_for = meaning_of(group.reason).wait_for
            if wait_for not in _WAITS:
                return None
        frame, callee = self.place(group.frames)
        return Doing(group.state, wait_for, frame, callee)

    def place(self, frames: Sequence[Frame]) -> tuple[Frame | None, str]:
        """Return the innermost frame of the program's own, and the function that it has called.

        Of a goroutine without one, they are of the function that it began with.
        """
        began = [frame for frame in frames if frame.function != "runtime.goexit"]
        for inner, frame in zip([None, *began], began, strict=False):
            if is_own(frame.function, self.module) or frame is began[-1]:
                return frame, inner.function if inner is not None else ""
        return None, ""

    def own(self, frames: Sequence[Frame]) -> tuple[str, ...]:
        """Return the program's own functions on a stack, innermost first."""
        names = (frame.function for frame in frames)
        return tuple(name for name in names if is_own(name, self.module))

    def callers(self, doing: Doing) -> str:
        """Return the functions that mostly call what does something."""
        ((stack, _),) = self.stacks[doing].most_common(1)
        return " <- ".join(stack[1 : 1 + _MAX_CALLERS])

    def mean(self, doing: Doing) -> float:
        """Return how many goroutines did something at any time."""
        return self.sums[doing] / self.count if self.count else 0.0

    @property
    def working(self) -> float:
        """Return how many goroutines worked, or waited within a request, at any time."""
        return sum(self.sums.values()) / self.count if self.count else 0.0

    def in_state(self, state: State) -> float:
        """Return how many goroutines were in a state at any time."""
        found = sum(n for doing, n in self.sums.items() if doing.state is state)
        return found / self.count if self.count else 0.0


def is_own(function: str, module: str | None) -> bool:
    """Return whether a function is of the program's main module."""
    return function.startswith(("main.", *((f"{module}/", f"{module}.") if module else ())))


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors of a time: how many were used, and may be.

    For so many more, ``delayed``, threads were ready, while other threads had them.
    ``machine`` is how many there are, ``procs`` GOMAXPROCS, ``quota`` that of the control groups.
    ``throttled`` is the part of its periods in which the program was stopped, None if not known.
    """

    used: float
    delayed: float
    machine: int
    procs: int
    quota: float | None
    throttled: float | None

    @property
    def available(self) -> float:
        """Return how many the program may use."""
        return min(self.machine, self.procs, self.quota or self.machine)

    @property
    def wanted(self) -> float:
        """Return how many its threads ran on, or were ready for."""
        return self.used + self.delayed


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured; what is None was not looked at."""

    pid: int
    server: str | None
    looks: Looks
    processors: Processors
    samples: Sequence[NamedSamples] | None = None
    waits: Sequence[Row] | None = None
    requests: ServedRequests | None = None

    def on_memory(self) -> tuple[float, float]:
        """Return the parts of the CPU time in which memory is collected and allocated."""
        total = sum(one.amount for one in self.samples or ()) or 1
        collecting = allocating = 0
        for one in self.samples or ():
            if one.work in (WorkKind.COLLECTOR, WorkKind.ASSIST):
                collecting += one.amount
            elif any(frame.function == _ALLOCATES for frame in one.frames):
                allocating += one.amount
        return collecting / total, allocating / total


def no_server(pid: int) -> str:
    """Return why requests are not looked at of a program without a server that is known."""
    return f"no server is known in it: type gotop -p {pid} -r ROOT"


def time_findings(measured: Measured) -> list[TimeFinding]:
    """Return the findings of a time, the largest share first."""
    found = [
        *_waiting(measured),
        *_in_system_calls(measured),
        *_processors(measured),
        *_growing(measured),
        *_slow_requests(measured),
    ]
    return sorted(found, key=lambda one: -one.share)


def _at(frame: Frame | None) -> str:
    if frame is None:
        return "an unknown function"
    return f"{frame.function} at {frame.file.rpartition('/')[2]}:{frame.line}"


def _by(doing: Doing) -> str:
    """Return the program's own function that does something, and what it has called for that."""
    return f"{_at(doing.frame)}{f', in {doing.callee}' if doing.callee else ''}"


def _called(looks: Looks, doing: Doing) -> Iterator[str]:
    if callers := looks.callers(doing):
        yield f"called by {callers}"


def _share(share: float) -> str:
    return f"{100 * share:.0f}%"


def _time(nanoseconds: int) -> str:
    """Return a time by its first three digits."""
    return duration_text(round(nanoseconds, 3 - len(str(nanoseconds)))).replace("\u00b5", "u")


def _waiting(measured: Measured) -> Iterator[TimeFinding]:
    """Yield waits within requests, by the kind of wait and the function."""
    looks = measured.looks
    for doing in looks.sums:
        if doing.wait_for is None:
            continue
        mean = looks.mean(doing)
        share = mean / (looks.working or 1.0)
        if mean < MIN_WAITING or share < MIN_SHARE:
            continue
        text = f"{_share(share)} of the time of all work {_WAITS[doing.wait_for]}: {_by(doing)}"
        evidence = [f"on average {mean:.1f} goroutines wait there", *_called(looks, doing)]
        evidence += _wakers(measured, doing)
        function = doing.frame.function if doing.frame is not None else "*"
        deeper = f"gooffcpu -p {measured.pid} -d 5 --wakers --in '{function}'"
        yield TimeFinding(doing.wait_for.name.lower(), share, text, tuple(evidence), deeper)


def _wakers(measured: Measured, doing: Doing) -> Iterator[str]:
    """Yield who ended such waits."""
    wakers: Counter[str] = Counter()
    total = 0
    for row in measured.waits or ():
        if meaning_of(row["reason"] or "").wait_for is not doing.wait_for:
            continue
        frame, _ = measured.looks.place(row["stack"].frames)
        if (frame and frame.function) != (doing.frame and doing.frame.function):
            continue
        total += row["delay_ns"]
        if (waker := waker_label(row)) is not None:
            wakers[waker] += row["delay_ns"]
    named = [f"{waker} ({_share(ns / total)})" for waker, ns in wakers.most_common(3) if ns]
    if named:
        yield f"waits there were ended by {', '.join(named)}"


def _in_system_calls(measured: Measured) -> Iterator[TimeFinding]:
    looks = measured.looks
    for doing in looks.sums:
        mean = looks.mean(doing)
        share = mean / (looks.working or 1.0)
        if doing.state is not State.SYSCALL or mean < MIN_WAITING or share < MIN_SHARE:
            continue
        text = f"{_share(share)} of the time of all work is system calls: {_by(doing)}"
        evidence = [f"on average {mean:.1f} goroutines are in one", *_called(looks, doing)]
        deeper = f"gooffcpu -p {measured.pid} -d 5 --state syscall"
        yield TimeFinding("syscall", share, text, tuple(evidence), deeper)


def _processors(measured: Measured) -> Iterator[TimeFinding]:
    """Yield what the processors lack, and what uses them up."""
    looks, cpus = measured.looks, measured.processors
    ready, running = looks.in_state(State.RUNNABLE), looks.in_state(State.RUNNING)
    working = looks.working or 1.0
    share = min(1.0, (ready + running) / working)
    throttled = cpus.throttled or 0.0
    is_stopped = cpus.quota is not None and throttled >= MIN_THROTTLED
    deeper = f"gooffcpu -p {measured.pid} -d 5 --state runnable"
    if is_stopped:
        text = f"the CPU quota stops the program in {_share(throttled)} of its periods"
        why = f"its control group may use {cpus.quota:g} CPUs, and it used {cpus.used:.2f}"
        yield TimeFinding("quota", share, text, (why,), deeper)
    wanted = cpus.wanted
    is_used_up = wanted >= MIN_USED * cpus.available and ready + running >= MIN_READY
    is_delayed = cpus.used < MIN_USED * cpus.available and not is_stopped
    is_delayed = is_delayed and cpus.delayed >= max(MIN_DELAYED, MIN_DELAYED * wanted)
    lacking = share * cpus.delayed / wanted if wanted else 0.0
    if is_delayed and lacking >= MIN_SHARE:
        text = f"its threads had {cpus.used:.2f} CPUs, and were ready for {wanted:.2f}"
        why = "other programs, or more threads of its own than CPUs, use them meanwhile"
        yield TimeFinding("others", lacking, text, (why,), "top")
    if is_used_up and not is_stopped:
        why = f"on average {ready:.1f} goroutines are ready and have no processor"
        if cpus.procs < min(cpus.machine, cpus.quota or cpus.machine):
            text = f"GOMAXPROCS is {cpus.procs}, of {cpus.machine} CPUs, and these are used up"
            yield TimeFinding("gomaxprocs", share, text, (why,), deeper)
        elif not is_delayed:
            text = f"the CPUs are used up: {wanted:.1f} are wanted of {cpus.available:g}"
            yield TimeFinding("cpu", share, text, (why,), deeper)
    yield from _on_memory(measured, share)
    yield from _on_scheduler(measured, share, ready + running)
    if is_used_up or is_stopped:
        yield from _on_cpu(measured, share, ready + running)


def _on_memory(measured: Measured, share: float) -> Iterator[TimeFinding]:
    """Yield what memory takes of the CPU time, whose own part is a ``share``."""
    collecting, allocating = measured.on_memory()
    part = collecting + allocating
    of_work = part * share + measured.looks.mean(_FOR_COLLECTOR) / (measured.looks.working or 1.0)
    if (
        of_work < MIN_SHARE
        or part < MIN_MEMORY
        or part * measured.processors.wanted < MIN_MEMORY_CPUS
    ):
        return
    text = f"{_share(part)} of the CPU time is memory: {_share(collecting)} collects it"
    text += f", {_share(allocating)} allocates it"
    by: Counter[str] = Counter()
    for one in measured.samples or ():
        if _ALLOCATES in (frame.function for frame in one.frames):
            by[_at(measured.looks.place(one.frames)[0])] += one.amount
    evidence = [f"most is allocated by {place}" for place, _ in by.most_common(1)]
    deeper = f"goalloc -p {measured.pid} -d 5"
    yield TimeFinding("memory", of_work, text, tuple(evidence), deeper)


def _is_much(measured: Measured, part: float, working: float) -> bool:
    """Return whether a part of the CPU time is much: so many goroutines work or are ready."""
    used = part * measured.processors.used
    return part >= MIN_CPU_SHARE and part * working >= MIN_CPU_WORK and used >= MIN_CPU_USED


def _on_scheduler(measured: Measured, share: float, working: float) -> Iterator[TimeFinding]:
    """Yield what the scheduler takes of the CPU time, whose own part is a ``share``."""
    samples = measured.samples or ()
    total = sum(one.amount for one in samples) or 1
    part = sum(one.amount for one in samples if one.work is WorkKind.SCHEDULER) / total
    if not _is_much(measured, part, working) or part * share < MIN_SHARE:
        return
    text = f"{_share(part)} of the CPU time is the scheduler's: switches and timers"
    deeper = f"gooncpu -p {measured.pid} -d 5"
    yield TimeFinding("scheduler", part * share, text, (), deeper)


def _on_cpu(measured: Measured, share: float, working: float) -> Iterator[TimeFinding]:
    """Yield what uses CPUs up, whose time is a ``share`` of that of all work."""
    looks, samples = measured.looks, measured.samples or ()
    total = sum(one.amount for one in samples) or 1
    by_function: dict[tuple[str, str], list[NamedSamples]] = {}
    for one in samples:
        frame, callee = looks.place(one.frames)
        if frame is None or frame.function.startswith("runtime."):
            continue
        if one.work is WorkKind.PROGRAM:
            by_function.setdefault((frame.function, callee), []).append(one)
    for (function, callee), found in by_function.items():
        part = sum(one.amount for one in found) / total
        if not _is_much(measured, part, working):
            continue
        most = max(found, key=lambda one: one.amount)
        frame, _ = looks.place(most.frames)
        what = f"{callee}, called by {_at(frame)}" if callee else _at(frame)
        text = f"{_share(part)} of the CPU time is {what}"
        callers = " <- ".join(looks.own(most.frames)[1 : 1 + _MAX_CALLERS])
        evidence = (f"called by {callers}",) if callers else ()
        deeper = f"gooncpu -p {measured.pid} -d 5 --in '{function}'"
        yield TimeFinding("function", part * share, text, evidence, deeper)


def _growing(measured: Measured) -> Iterator[TimeFinding]:
    last = measured.looks.last
    if last is None:
        return
    total = last.head.goroutines or 1
    for group in last.groups:
        if group.growth < MIN_GROWTH or not group.leaks:
            continue
        frame, _ = measured.looks.place(group.frames)
        text = f"{counted('{:,} goroutine{s}', group.growth)} more, which do not go on"
        evidence = [f"{group.count:,} of all {total:,} wait ({group.status}) in {_at(frame)}"]
        if group.created_by is not None:
            evidence.append(f"started by {_at(group.created_by)}")
        deeper = f"gostacks -p {measured.pid} -d 10"
        yield TimeFinding("growth", group.count / total, text, tuple(evidence), deeper)


def _slow_requests(measured: Measured) -> Iterator[TimeFinding]:
    """Yield requests that take much longer than the others of their route."""
    requests = measured.requests
    if requests is None or measured.server is None:
        return
    every = sum(route.times.sum for route in requests.routes)
    working = max(measured.looks.working * 1e9 * requests.seconds, every)
    # Beside other programs any request may be slow.
    is_delayed = measured.processors.delayed >= MIN_DELAYED * measured.processors.wanted
    least = int(max(MIN_SHARE * every, MIN_SLOW_TIME * requests.seconds * 1e9))
    deeper = f"gofunclatency -m --why -d 5 -p {measured.pid} {measured.server}"
    for route in requests.routes:
        keys = list(_slow_keys(route, least))
        for ns, text, evidence in keys or (() if is_delayed else _slow_ones(route, least)):
            kind = "key" if keys else "slow"
            yield TimeFinding(kind, ns / working, text, (evidence,), deeper)


#: The time of slow requests in ns, the text, and the evidence.
_Slow = tuple[int, str, str]


def _slow_keys(route: Route, least: int) -> Iterator[_Slow]:
    """Yield what is asked for in a route that takes long: one of many."""
    for key, times in route.keys.items():
        others = Histogram()
        for other, theirs in route.keys.items() if times.sum >= least else ():
            if other != key:
                others.merge(theirs)
        if min(times.count, others.count) < MIN_SLOW:
            continue
        middle, slow = others.percentile(50), times.percentile(50)
        if slow < MIN_SLOWER * middle:
            continue
        text = f"{key} is {_share(times.count / route.times.count)} of the requests"
        text += f" {route.name}, and {_share(times.sum / route.times.sum)} of their time"
        evidence = f"its median is {_time(slow)}, that of the others {_time(middle)}"
        yield times.sum, text, evidence


def _slow_ones(route: Route, least: int) -> Iterator[_Slow]:
    """Yield the slowest of a route, and the part of time that they have more than others."""
    bands = part_bands(route.why, route.times, None) if route.why else []
    if not bands:
        return
    slow, middle = bands
    if slow.calls < MIN_SLOW or slow.parts.total < least:
        return
    typical = middle.parts.total / middle.calls
    longer = slow.parts.total / slow.calls - typical
    if longer < (MIN_SLOWER - 1) * typical:
        return
    more = {
        name: part.ns / slow.calls - middle.share(name) * typical
        for name, part in slow.parts.parts.items()
    }
    most = max(more, key=lambda name: more[name])
    if part_class(most) in _FOR_CPU:
        return
    text = f"{_share(slow.calls / route.times.count)} of the requests {route.name} take"
    text += f" {_time(slow.low)} to {_time(slow.high)}, the middle ones"
    text += f" {_time(middle.low)} to {_time(middle.high)}"
    evidence = f"{_share(more[most] / longer)} of what they take longer is {most}"
    yield slow.parts.total, text, evidence


def fine(measured: Measured, found: Iterable[TimeFinding]) -> Iterator[str]:
    """Yield a line for each thing that was looked at, and is fine."""
    kinds, cpus, looks = {one.kind for one in found}, measured.processors, measured.looks
    if not kinds & {"cpu", "gomaxprocs", "function"}:
        yield f"CPU: {cpus.used:.2f} of {cpus.available:g} CPUs are used"
    if "quota" not in kinds:
        none = "no quota" if cpus.quota is None else f"quota of {cpus.quota:g} CPUs: never stopped"
        if cpus.throttled:
            none = f"stopped by the quota in {_share(cpus.throttled)} of its periods"
        yield f"quota: {none}"
    if "memory" not in kinds and measured.samples is not None:
        yield f"memory: {_share(sum(measured.on_memory()))} of the CPU time"
    if "growth" not in kinds and looks.last is not None:
        yield f"goroutines: {looks.last.head.goroutines:,}, and no group grows"


def means(measured: Measured, found: Iterable[TimeFinding]) -> Iterator[str]:
    """Yield a line for each mean that makes no finding.

    A small one is not a verdict: a request that is seldom slow adds little to it.
    """
    kinds, looks = {one.kind for one in found}, measured.looks
    if measured.requests is not None:
        yield from _served(measured.requests)
    for doing, count in looks.lasting.items():
        if doing.wait_for is not None:
            lasting = counted("{:,} request{s} lasted all the time, no part of that", count)
            yield f"{lasting}: each {_WAITS[doing.wait_for]}, {_by(doing)}"
    if not kinds & {wait.name.lower() for wait in _WAITS}:
        found_waits = sum(n for doing, n in looks.sums.items() if doing.wait_for is not None)
        yield f"waits within requests: {found_waits / (looks.count or 1):.2g} goroutines on average"
    if "syscall" not in kinds:
        mean = looks.in_state(State.SYSCALL)
        yield f"system calls: {mean:.2g} goroutines are in one on average"


def _served(requests: ServedRequests) -> Iterator[str]:
    """Yield how many requests of the routes with most time there were, and how long they took."""
    for route in requests.routes[:_MAX_ROUTES]:
        times = route.times
        text = f"{route.name}: {times.count / requests.seconds:,.1f} requests a second"
        middle, last = times.percentile(50), times.percentile(99)
        text += f", p50 {_time(middle)}, p99 {_time(last)}"
        for band in part_bands(route.why, times, None) if route.why else ():
            most = max(band.parts.parts, key=lambda name: band.parts.parts[name].ns)
            text += f", {band.name} {_share(band.share(most))} {most}"
        yield text
