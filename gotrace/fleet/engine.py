# SPDX-License-Identifier: Apache-2.0
"""Keep attached what a configuration asks for, in the programs that there are."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gotrace.errors import GotraceError, NoMatchError, UsageError
from gotrace.fleet.config import Config, FlightSpec, MetricSpec, SpanSpec, WaitsSpec
from gotrace.fleet.executions import Executions
from gotrace.fleet.pauses import Pauses
from gotrace.fleet.probing import (
    SKIPPED,
    MetricProbe,
    Probe,
    ProbeState,
    metric_losses,
    open_target,
    try_metric,
)
from gotrace.fleet.series import Metric, Room
from gotrace.fleet.targets import Finder, Program, ProgramKey
from gotrace.fleet.telemetry.price import OverBudgetError
from gotrace.fleet.telemetry.waits import (
    WAIT_LOSSES,
    TargetWaits,
    WaitPoint,
    WaitsProbe,
    plan_waits,
)
from gotrace.fleet.threads import apart, note_failure
from gotrace.fleet.trial import Trial
from gotrace.overhead import ProbeCost
from gotrace.session.budget import Budget, Spent
from gotrace.session.calibrate import Calibration, trap_cost
from gotrace.session.reading import RecordReader
from gotrace.sites.sites import SiteForm
from gotrace.target.target import Target
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.flights import Flights, FlightTally

__all__ = ["DETAILS", "Engine", "Job", "ProbeStatus", "StartSpan", "measure_cost"]

log = logging.getLogger("gotraced")
#: Lines for each program and probe, which are written if they are asked for.
DETAILS = logging.getLogger("gotraced.details")

_LOOK = 0.5  # seconds between two looks for programs, at least
_LOOK_SHARE = 200  # and as many times the CPU time that one takes
_MAX_LOOK = 30.0
_TURN = 1.0  # seconds between two looks at what has been spent, and at what is to be tried again
_POLL = 5.0
_EXPIRY = 60.0  # seconds between two looks at what is idle, at most
_TAKERS = 8  # threads that read maps: each waits for programs that run
_LEAVERS = 4  # threads that detach: each waits for the kernel
_USUAL_TRAP = ProbeCost(800, 2500)  # ns, where it cannot be measured
_MAX_WAIT = 3.0
_TRIAL_WAIT = 1.0  # seconds that others wait for the plans of one program
_VERIFIED = 3  # processes of a device: they have one file
_MISSES = 2  # looks
_MAX_LISTED = 16  # processes in a message
_SPANS, _WAITS = "spans", "waits"  # what they are called among probes


#: Starts the probe of spans; the number is the budget of all, a part of one CPU. If the last is
#: true, it sends nothing before ``Probe.forget``.
StartSpan = Callable[[Sequence[SpanSpec], Program, Target, ProbeCost, float, bool], Probe]


@dataclass(frozen=True, slots=True)
class Job:
    """One metric, one flight, all spans, or all waits, in the programs of its targets.

    ``name`` is unique.
    """

    name: str
    targets: tuple[str, ...]
    metric: Metric | None = None
    spans: tuple[SpanSpec, ...] = ()
    waits: WaitsSpec | None = None
    flight: FlightSpec | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A job in a program."""

    job: str
    program: ProgramKey


@dataclass(frozen=True, slots=True)
class _Holds:
    """Which places a budget holds: those of a target, or of some jobs, or all."""

    target: str | None = None
    jobs: frozenset[str] | None = None

    def __contains__(self, place: _Place) -> bool:
        is_target = self.target is None or self.target == place.program.target
        return is_target and (self.jobs is None or place.job in self.jobs)


@dataclass
class _Tally:
    """What the probes of a job have seen in a target, those that are gone included."""

    spent: Spent = field(default_factory=Spent)
    lost: Counter[str] = field(default_factory=Counter)
    over_budget: int = 0
    failures: int = 0
    unmeasured: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    seconds: dict[ProbeState, float] = field(default_factory=lambda: dict.fromkeys(ProbeState, 0.0))

    def add(
        self, spent: Spent, lost: Mapping[str, int], unmeasured: int, sent: Counter[str]
    ) -> None:
        """Add what a probe has seen that is gone."""
        self.spent = Spent(self.spent.hits + spent.hits, self.spent.ns + spent.ns)
        self.lost.update(lost)
        self.unmeasured += unmeasured
        self.sent.update(sent)


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """How a job fares in a target. ``attached`` is in how many programs.

    ``unmeasured`` are calls that were counted and not followed, for their cost. ``seconds`` is how
    long its probes were in which state, added up over programs. ``sent`` are its spans, by how they
    are below others; None if it has none.
    """

    job: str
    target: str
    attached: int
    hits: int
    cost_ns: int
    over_budget: int
    failures: int
    lost: dict[str, int]
    unmeasured: int
    seconds: Mapping[ProbeState, float]
    sent: Counter[str] | None = None


@dataclass
class _Running:
    """A program that is traced."""

    program: Program
    target: Target | None = None
    probes: dict[str, Probe] = field(default_factory=dict)
    hopeless: set[str] = field(default_factory=set)  # jobs that have nothing to do in it
    #: Jobs whose plans are known not to take too much, and those that are being tried.
    tried: set[str] = field(default_factory=set)
    trial: Trial | None = None
    trying: frozenset[str] = frozenset()
    #: Devices under which its processes see the file and have the probes, and how often not.
    verified: set[int] = field(default_factory=set)
    missed: Counter[int] = field(default_factory=Counter)


def measure_cost() -> ProbeCost:
    """Return what a trap costs here."""
    try:
        with Calibration(lambda: trap_cost(SiteForm.EMULATED, None)) as calibration:
            return calibration.cost(_MAX_WAIT)
    except (GotraceError, OSError) as error:
        log.warning("what a hit costs could not be measured: %s", printable(str(error)))
        return _USUAL_TRAP


class Engine:
    """Everything that is attached. One thread runs it, others may collect."""

    def __init__(self, config: Config, cost: ProbeCost) -> None:
        self.config = config
        self.cost = cost
        self.started = time.time()
        #: When the engine was last seen at work (``time.monotonic``).
        self.pulse = time.monotonic()
        #: Whether all that there was to attach at the beginning has been tried.
        self.is_ready = False
        #: Attaches probes of spans, None while there is nowhere to send any.
        self.start_span: StartSpan | None = None
        self._lock = threading.RLock()  # of what follows, for readers
        self._jobs: dict[str, Job] = {}
        self._running: dict[ProgramKey, _Running] = {}
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._found: dict[ProgramKey, Program] = {}
        self._budgets: dict[str, Budget[_Place]] = {}
        self._pauses: Pauses[_Place] = Pauses()
        self._waits = TargetWaits()
        self._flights: Flights | None = None  # while there are any, or were
        self._said: dict[_Place, str] = {}
        self._takers = ThreadPoolExecutor(_TAKERS, "take")
        self._leavers = ThreadPoolExecutor(_LEAVERS, "leave")
        self._leaving: list[tuple[_Place, Probe]] = []  # of programs that have ended
        self._next_look = self._next_poll = self._next_turn = self._next_expiry = 0.0
        self._looked = time.monotonic()
        self._host_budget: Budget[_Place] | None = None
        self._stopping = threading.Event()
        self._finder = Finder(config.targets)
        self._executions: Executions | None = None
        self._missed: Counter[str] = Counter()  # of configurations before
        self._count_executions(config)
        self._set_jobs(config, _jobs(config, {}))

    def _count_executions(self, config: Config) -> None:
        """Have processes counted that end unseen, if any target is followed by its name."""
        before, self._executions = self._executions, None
        if before is not None:
            self._missed.update(before.missed())
            before.close()
        try:
            self._executions = Executions(config.targets)
        except (GotraceError, OSError) as error:
            log.warning("processes that end before they are found are not counted: %s", error)

    def _follow_executions(self) -> None:
        """Tell which files are traced."""
        if self._executions is None:
            return
        with self._lock:
            traced = {key for key, running in self._running.items() if running.probes}
        place = _Place("", ProgramKey("executions", 0, 0, 0))
        try:
            self._executions.follow(traced)
        except OSError as error:  # the map is full
            self._say_once(place, f"more processes are counted as missed than were: {error}")
        if self._executions.lost():
            text = "more processes of comm targets were missed than are counted: too many at once"
            self._say_once(place, text)

    def _set_jobs(self, config: Config, jobs: dict[str, Job]) -> None:
        with self._lock:
            self.config = config
            self._jobs = jobs
            if config.flights and self._flights is None:
                from gotrace.fleet.flights import Flights  # loads what makes recordings

                self._flights = Flights()
            self._budgets = {target.name: Budget(config.budget) for target in config.targets}
            self._limits = [Budget[_Place](limit.share) for limit in config.limits]
            share = config.host_budget
            self._host_budget = None if share is None else Budget(share)
            for job in jobs.values():
                losses = _losses(job)
                for target in job.targets:
                    tally = self._tallies.setdefault((job.name, target), _Tally())
                    tally.lost.update(dict.fromkeys(losses, 0))
            self._room = Room(
                config.max_series, {target.name: target.max_series for target in config.targets}
            )
            for job in jobs.values():
                if job.metric is not None:
                    job.metric.be_in(self._room)

    def ask_to_stop(self) -> None:
        """Have a turn end soon; may be called in a signal handler."""
        self._stopping.set()

    def turn(self) -> float:
        """Do what is due, and return in how many seconds something may be due again."""
        now = time.monotonic()
        is_new = self._look_if_due()
        if is_new or now >= self._next_turn:
            self._attach_due()
        if now >= self._next_turn:
            self._next_turn = now + _TURN
            self._settle(time.monotonic())  # first: a probe that costs less now is not to cost less
            self._mind_budget(time.monotonic())
            self._verify()
        if now >= self._next_poll:
            self._next_poll = now + _POLL
            for place, probe in self._probes():
                with _apart(place), suppress(OSError):
                    if probe.is_held():
                        probe.poll()
                        continue
                    length = self._pauses.pause(place, now)
                    self._detach(place)
                    log.error(
                        "%s in %s: tried again in %.0f s", place.job, place.program.target, length
                    )
        if now >= self._next_expiry:
            self._expire(now)
        self.is_ready = True
        now = self.pulse = time.monotonic()
        return max(0.0, min(self._next_look, self._next_turn) - now)

    def _expire(self, now: float) -> None:
        """End series that are not added to, here and in the kernel."""
        with self._lock:
            metrics = [job.metric for job in self._jobs.values() if job.metric is not None]
        shortest = min((metric.spec.idle for metric in metrics if metric.spec.idle), default=0.0)
        self._next_expiry = now + (min(shortest / 4, _EXPIRY) if shortest else _EXPIRY)
        for place, probe in self._probes():
            with _apart(place), suppress(OSError):
                probe.expire()
        for metric in metrics:
            metric.end_idle()

    def _look_if_due(self) -> bool:
        """Look for programs if it is time to, and return whether there is one more."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        before = self._running.keys()
        # What this thread does, not how long others keep it waiting.
        began = time.thread_time()
        whole = _Place("", ProgramKey("", 0, 0, 0))
        try:
            found = self._finder.look()
        except OSError as error:  # there may be more and fewer: those that there were go on
            self._next_look = now + _LOOK
            self._say_once(whole, f"programs cannot be looked for: {error}: those known go on")
            return False
        self._said.pop(whole, None)
        taken = time.thread_time() - began
        self._next_look = now + max(_LOOK, min(_LOOK_SHARE * taken, _MAX_LOOK))
        is_new = not found.keys() <= before
        self._follow(found)
        return is_new

    def _follow(self, found: dict[ProgramKey, Program]) -> None:
        """Take note of which programs there are, and let go of those that are not any more."""
        for target, problem in self._finder.problems.items():
            self._say_once(_Place("", ProgramKey(target, 0, 0, 0)), problem)
        gone = [key for key in self._running if key not in found]
        for key in gone:
            running = self._running[key]
            DETAILS.info("%s: %s has ended", key.target, printable(running.program.shown))
            leaving = [(_Place(name, key), probe) for name, probe in running.probes.items()]
            with self._lock:
                del self._running[key]
                self._leaving += leaving
            # The kernel takes its time, in which others are to be found.
            self._leavers.submit(self._leave, running, leaving)
        with self._lock:
            self._found = found
            for key, program in found.items():
                if key not in self._running:
                    self._running[key] = _Running(program)
                else:
                    self._running[key].program = program
        self._follow_executions()
        places = {_Place(job, key) for job in self._jobs for key in found}
        self._pauses.keep(places)
        for place in self._said.keys() - places:
            if place.job:
                del self._said[place]

    def _leave(self, running: _Running, leaving: list[tuple[_Place, Probe]]) -> None:
        """Detach what a program that has ended had, in a thread."""
        for _, probe in leaving:
            probe.stop()
        for place, probe in leaving:
            spent, lost, unmeasured = Spent(), dict[str, int](), 0
            sent = Counter[str]()
            with _apart(place):
                spent = _closed(place, probe)
                lost, unmeasured, sent = probe.lost(), probe.unmeasured(), probe.sent()
            with self._lock:
                self._leaving.remove((place, probe))
                tally = self._tallies[place.job, place.program.target]
                tally.add(spent, lost, unmeasured, sent)
        self._let_go(running)

    def _attach_due(self) -> None:
        while self._attach_to_all():
            pass

    def _attach_to_all(self) -> bool:
        """Attach what is due, and return whether there is one more program since it began."""
        is_new = False
        for key, running in list(self._running.items()):
            if not self._may_plan(key, running):
                continue
            for job in list(self._jobs.values()):
                if self._stopping.is_set():
                    return False
                # Attaching to one may take long, and others start meanwhile.
                is_new |= self._look_if_due()
                if key not in self._running:
                    break
                if job.name in running.tried and self._is_due(key, running, job):
                    self._attach(_Place(job.name, key), job, running)
                    self.pulse = time.monotonic()
            if key in self._running:
                self._rest(running)
        return is_new

    def _is_due(self, key: ProgramKey, running: _Running, job: Job) -> bool:
        return (
            key.target in job.targets
            and job.name not in running.probes
            and job.name not in running.hopeless
            and self._pauses.is_over(_Place(job.name, key), time.monotonic())
        )

    def _may_plan(self, key: ProgramKey, running: _Running) -> bool:
        """Return whether it is known what plans take that are due, after a trial if need be.

        Others do not wait for one that takes long, but for the beginning.
        """
        due = [job for job in self._jobs.values() if self._is_due(key, running, job)]
        untried = [job for job in due if job.name not in running.tried]
        if not untried:
            return True
        place = _Place(untried[0].name, key)
        try:
            if running.trial is None:
                running.trial = self._trial(untried, running.program, self.config)
                running.trying = frozenset(job.name for job in untried)
            while not running.trial.has_ended(_TRIAL_WAIT):
                self.pulse = time.monotonic()
                if self.is_ready or self._stopping.is_set():
                    return False
        except GotraceError as error:  # there is no process for it
            self._say_once(place, str(error))
            return False
        trial, running.trial = running.trial, None
        if trial.problem is None:
            running.tried |= running.trying
            return True
        again = ""
        if trial.is_passing:
            now = time.monotonic()
            length = max(self._pauses.pause(_Place(name, key), now) for name in running.trying)
            again = f": tried again in {length:.0f} s"
        else:
            running.tried |= running.trying
            running.hopeless |= running.trying
        for name in running.trying:
            self._tallies[name, key.target].failures += 1
        shown = f"{key.target} ({running.program.shown})"
        self._say_once(place, f"{shown}: nothing is traced: {trial.problem}{again}")
        return True

    @staticmethod
    def _trial(jobs: Sequence[Job], program: Program, config: Config) -> Trial:
        """Begin to plan jobs, as ``_make`` does, in a process of its own. Raises GotraceError."""

        def plans() -> Iterator[Callable[[], object]]:
            target = open_target(program, config.planning)
            for job in jobs:
                if job.metric is not None:
                    yield partial(try_metric, job.metric.spec, target, program)
                elif job.waits is not None:
                    yield partial(plan_waits, target, program)
                elif job.flight is not None:
                    from gotrace.fleet.flights import try_flight

                    yield partial(try_flight, job.flight, target, program)
                else:
                    from gotrace.fleet.spans import try_spans  # loads the SDK

                    specs = [span for span in job.spans if program.key.target in span.targets]
                    yield partial(try_spans, specs, target, program)

        return Trial(plans(), config.planning)

    def _rest(self, running: _Running) -> None:
        """Keep no more of a program's file than probes ask for between one turn and the next."""
        if not any(probe.needs_target for probe in running.probes.values()):
            self._let_go(running)
        elif running.target is not None:
            running.target.rest()

    def _attach(self, place: _Place, job: Job, running: _Running) -> None:
        tally = self._tallies[job.name, place.program.target]
        shown = _shown(job, running)
        try:
            probe = self._make(job, running, self.config, self.start_span)
        except (NoMatchError, UsageError) as error:
            tally.failures += 1
            running.hopeless.add(job.name)
            self._say_once(place, f"{shown}: {error}")
        except Exception as error:
            if isinstance(error, OverBudgetError):
                tally.over_budget += 1
            else:
                tally.failures += 1
            if not isinstance(error, GotraceError | OSError):
                note_failure("engine", shown, error)  # a bug, which is to cost this probe alone
            length = self._pauses.pause(place, time.monotonic())
            self._say_once(place, f"{shown}: {error}: tried again in {length:.0f} s")
        else:
            with self._lock:
                running.probes[job.name] = probe
            self._said.pop(place, None)
            self._follow_executions()
            DETAILS.info("%s: attached", printable(shown))
            again = ""
            if probe.is_light:
                tally.over_budget += 1
                length = self._pauses.pause(place, time.monotonic())
                again = f": tried again in {length:.0f} s"
            for problem in probe.problems:
                log.warning("%s: %s%s", printable(shown), printable(problem), again)

    def _make(
        self,
        job: Job,
        running: _Running,
        config: Config,
        start_span: StartSpan | None,
        is_spare: bool = False,
    ) -> Probe:
        """Attach what a job asks for in a program. Raises GotraceError or OSError."""
        if running.target is None:
            running.target = open_target(running.program, config.planning)
        program, target = running.program, running.target
        if job.metric is not None:
            return MetricProbe(job.metric, program, target, self.cost)
        if job.waits is not None:
            return WaitsProbe(job.waits, program, target, self.cost, self._waits, config.budget)
        if job.flight is not None:
            from gotrace.fleet.flights import FlightProbe

            assert self._flights is not None
            shared = program, target, self.cost, self._flights, config.budget, config.flight_memory
            return FlightProbe(job.flight, *shared, is_spare)
        assert start_span is not None
        specs = [span for span in job.spans if program.key.target in span.targets]
        return start_span(specs, program, target, self.cost, config.budget, is_spare)

    def _say_once(self, place: _Place, text: str) -> None:
        """Log what is wrong, but not again and again."""
        bare = text.partition(": tried again")[0]
        if self._said.get(place) != bare:
            self._said[place] = bare
            log.error("%s", printable(text))

    def problems(self, job: str) -> list[str]:
        """Return what keeps a job from being attached, for each program, as the log has it."""
        return [text for place, text in self._said.items() if place.job == job]

    def _mind_budget(self, now: float) -> None:
        spent: dict[_Place, int] = {}
        for place, probe in self._probes():
            with _apart(place), suppress(OSError):
                spent[place] = probe.spent().ns
        for whose, holds, budget in self._all_budgets():
            for place, share in budget.exceeding(
                now, {place: ns for place, ns in spent.items() if place in holds}
            ).items():
                if place.job in self._running[place.program].probes:
                    self._lessen(place, share, whose, budget.share, now)

    def _all_budgets(self) -> Iterator[tuple[str, _Holds, Budget[_Place]]]:
        """Yield budgets, the narrowest first, with whose they are and what they hold."""
        for limit, budget in zip(self.config.limits, self._limits, strict=True):
            yield limit.name, _Holds(jobs=limit.jobs), budget
        for target, budget in self._budgets.items():
            yield "all", _Holds(target=target), budget
        if self._host_budget is not None:
            yield "the host", _Holds(), self._host_budget

    def _lessen(self, place: _Place, share: float, whose: str, budget: float, now: float) -> None:
        """Have a probe cost less: its calls are counted alone, or it is detached."""
        target = place.program.target
        probe = self._running[place.program].probes[place.job]
        self._tallies[place.job, target].over_budget += 1
        done = probe.lighten()
        if done is None:
            done = "detached"
            self._detach(place)
        length = self._pauses.pause(place, now)
        log.warning(
            "%s in %s: %s: it took %.1f%% of one CPU, and the budget of %s is %.1f%%: tried again"
            " in %.0f s",
            *(printable(place.job), target, done, 100 * share, whose, 100 * budget, length),
        )

    def _settle(self, now: float) -> None:
        """Go on with probes that cost less now, and add up how long each was in which state."""
        passed, self._looked = now - self._looked, now
        for place, probe in self._probes():
            with _apart(place):
                if probe.is_light and self._pauses.is_over(place, now):
                    self._detach(place)  # it is attached as a whole in the next turn
                elif probe.settle():
                    spent = probe.spent().ns
                    for _, holds, budget in self._all_budgets():
                        if place in holds:
                            budget.forgive(place, spent)
        for key, running in self._running.items():
            self._rest(running)
            for job in self._jobs.values():
                if key.target not in job.targets or job.name in running.hopeless:
                    continue
                state = ProbeState.OFF
                if attached := running.probes.get(job.name):
                    state = attached.state
                self._tallies[job.name, key.target].seconds[state] += passed

    def _verify(self) -> None:
        """Look whether processes have the probes that files are taken to share.

        Those that have not are a program of their own from the next look on.
        """
        for key, running in self._running.items():
            for device, pids in running.program.devices.items():
                if device in running.verified or not running.probes:
                    continue
                probe = next(iter(running.probes.values()))
                found = {probe.is_in(pid) for pid in pids[:_VERIFIED]}
                if True in found:
                    running.verified.add(device)
                    running.missed.pop(device, None)
                elif False in found:
                    running.missed[device] += 1
                    # A process may have been about to map the file.
                    if running.missed[device] == _MISSES and self._finder.part(key, device):
                        self._next_look = 0.0
                        DETAILS.info("%s: %s is another file", key.target, printable(_where(pids)))

    def unprobed(self) -> dict[str, int]:
        """Return how many processes of each target were seen without the probes of their file."""
        with self._lock:
            counts = dict.fromkeys((target.name for target in self.config.targets), 0)
            for key, running in self._running.items():
                for device in list(running.missed):
                    if key.target in counts:
                        counts[key.target] += len(running.program.devices.get(device, ()))
            return counts

    def _detach(self, place: _Place) -> None:
        running = self._running[place.program]
        probe = running.probes[place.job]
        spent = _closed(place, probe)
        with self._lock:
            del running.probes[place.job]
            tally = self._tallies[place.job, place.program.target]
            tally.add(spent, probe.lost(), probe.unmeasured(), probe.sent())

    @staticmethod
    def _let_go(running: _Running) -> None:
        """Close what there is of a program beside its probes."""
        if running.trial is not None:
            running.trial.close()
            running.trial = None
        if running.target is not None:
            running.target.close()
            running.target = None

    def _probes(self) -> list[tuple[_Place, Probe]]:
        with self._lock:
            return [
                (_Place(name, key), probe)
                for key, running in self._running.items()
                for name, probe in running.probes.items()
            ]

    def reload(self, config: Config, start_span: StartSpan | None, keeps_spans: bool) -> None:
        """Go over to another configuration: what both ask for alike goes on without a gap.

        A probe that another one replaces stays until that one is attached. Whatever is raised, all
        is as it was: GotraceError or OSError where a new probe cannot be attached, and anything
        that is a bug. ``keeps_spans``: ``start_span`` leads to where it has led before.
        """
        before = self._jobs
        metrics = {spec.name: self._metric(spec) for spec in config.metrics}
        jobs = _jobs(config, metrics)
        finder = self._finder
        if config.targets != self.config.targets:
            finder = Finder(config.targets, before=finder)
        found = finder.look()
        kept: list[_Place] = []
        replaced: dict[_Place, Probe] = {}
        try:
            for key, running in self._running.items():
                program = found.get(key)
                if program is None or _filters(program) != _filters(running.program):
                    continue
                for name in running.probes:
                    place, job = _Place(name, key), jobs.get(name)
                    if job is None or key.target not in job.targets:
                        continue
                    if _asks_alike(before[name], job, key.target, keeps_spans):
                        kept.append(place)
                        continue
                    self.pulse = time.monotonic()
                    with suppress(OverBudgetError):  # tried again later
                        replaced[place] = self._renewed(job, running, config, start_span)
        except BaseException:
            for probe in replaced.values():
                _close(probe)
            raise
        self._go_over(config, jobs, kept, replaced, start_span)
        if finder is not self._finder:
            self._count_executions(config)
        self._finder = finder

    def _metric(self, spec: MetricSpec) -> Metric:
        """Return the metric that a configuration asks for, the one there is where it is alike."""
        known = self._jobs.get(spec.name)
        if known is None or known.metric is None or not _probes_alike(known.metric.spec, spec):
            return Metric(spec)
        return known.metric

    def _renewed(
        self, job: Job, running: _Running, config: Config, start_span: StartSpan | None
    ) -> Probe:
        try:
            trial = self._trial([job], running.program, config)
            while not trial.has_ended(_TRIAL_WAIT):
                self.pulse = time.monotonic()
            if trial.problem is not None:
                raise GotraceError(trial.problem)
            return self._make(job, running, config, start_span, is_spare=True)
        except OverBudgetError:
            raise
        except (GotraceError, OSError) as error:
            raise GotraceError(f"{_shown(job, running)}: {error}") from error

    def _go_over(
        self,
        config: Config,
        jobs: dict[str, Job],
        kept: list[_Place],
        replaced: dict[_Place, Probe],
        start_span: StartSpan | None,
    ) -> None:
        """Let go of all that is not kept, and put new probes in its place; nothing fails here."""
        before = self._jobs
        for place, _ in self._probes():
            if place not in kept:
                self._detach(place)
        for name, job in jobs.items():
            metric, known = job.metric, before.get(name)
            if metric is None or known is None or known.metric is None:
                continue
            if metric is known.metric:
                metric.spec = next(spec for spec in config.metrics if spec.name == name)
            elif metric.is_like(known.metric):
                metric.keep(known.metric)
        for place, probe in replaced.items():
            # The one before has counted until now.
            probe.forget()
            with self._lock:
                self._running[place.program].probes[place.job] = probe
        targets = {target.name for target in config.targets}
        for key, running in list(self._running.items()):
            running.hopeless.clear()
            running.tried.clear()
            if key.target not in targets:
                with self._lock:
                    del self._running[key]
                self._let_go(running)
            elif not running.probes:
                self._let_go(running)
        self.start_span = start_span
        self._set_jobs(config, jobs)
        self._said.clear()
        self._pauses = Pauses()
        self._next_look = self._next_turn = 0.0

    def collect(self) -> list[Metric]:
        """Read what has come, and return all metrics. May be called in any thread."""
        with self._lock:
            probes = [probe for _, probe in (*self._probes(), *self._leaving)]
        list(self._takers.map(_take, probes))
        with self._lock:
            return [job.metric for job in self._jobs.values() if job.metric is not None]

    def waits(self, reader: str = "") -> list[WaitPoint]:
        """Return what has been waited, as it was read by ``collect`` last, for a reader."""
        with self._lock:
            asked = self.config.waits
        targets = asked.targets if asked is not None else ()
        return self._waits.points(targets, reader)

    def flights(self) -> list[FlightTally]:
        """Return what has become of each flight in each target."""
        with self._lock:
            specs, flights = self.config.flights, self._flights
        return [] if flights is None else list(flights.tallies(specs))

    def processes(self) -> dict[str, int]:
        """Return how many processes run each target."""
        with self._lock:
            counts = dict.fromkeys((target.name for target in self.config.targets), 0)
            for key, program in self._found.items():
                if key.target in counts:
                    counts[key.target] += len(program.processes)
            return counts

    def passed_over(self) -> dict[str, int]:
        """Return how many files of each target are not traced, as there are too many."""
        with self._lock:
            names = [target.name for target in self.config.targets]
            return {name: self._finder.passed_over.get(name, 0) for name in names}

    def missed(self) -> dict[str, int]:
        """Return how many processes of targets ended unseen, by target, where that is known."""
        with self._lock:
            executions = self._executions
            counts = {} if executions is None else executions.missed()
            return {name: count + self._missed[name] for name, count in counts.items()}

    def process(self, target: str, pid: int | None) -> tuple[int, Program]:
        """Return a target's process, its only one where none is named, and what it runs.

        Raises NoMatchError.
        """
        with self._lock:
            found = {
                number: program
                for key, program in self._found.items()
                if key.target == target
                for number in program.processes
            }
        if pid is None and len(found) == 1:
            (pid,) = found
        if pid not in found:
            listed = ", ".join(map(str, sorted(found)[:_MAX_LISTED])) or "none"
            which = "give pid" if pid is None else f"{pid} is not one"
            raise NoMatchError(f"target {target!r}: {which} of its processes: {listed}")
        return pid, found[pid]

    def statuses(self) -> Iterator[ProbeStatus]:
        """Yield how each job fares in each target."""
        with self._lock:  # a probe that is detached meanwhile is in its tally or not, not in both
            live: dict[tuple[str, str], list[Probe]] = {}
            attached = Counter((place.job, place.program.target) for place, _ in self._probes())
            for place, probe in (*self._probes(), *self._leaving):
                live.setdefault((place.job, place.program.target), []).append(probe)
            found = []
            for job in self._jobs.values():
                for at in ((job.name, target) for target in job.targets):
                    found.append(
                        _status(at, attached[at], self._tallies[at], live.get(at, []), job)
                    )
        yield from found

    def close(self) -> None:
        """Detach everything: all probes are asked to go before any is waited for."""
        probes = self._probes()
        for _, probe in probes:
            probe.stop()
        list(self._takers.map(_close, [probe for _, probe in probes]))
        for place, _ in probes:
            self._detach(place)
        for running in self._running.values():
            self._let_go(running)
        self._leavers.shutdown()
        self._takers.shutdown()
        if self._flights is not None:
            self._flights.close()
        if self._executions is not None:
            self._executions.close()


def _jobs(config: Config, metrics: Mapping[str, Metric]) -> dict[str, Job]:
    """Return what a configuration asks for by name; ``metrics`` are those that there are."""
    jobs = {
        spec.name: Job(spec.name, spec.targets, metrics.get(spec.name) or Metric(spec))
        for spec in config.metrics
    }
    if config.spans:
        name = _SPANS if _SPANS not in jobs else f"{_SPANS}:"
        targets = dict.fromkeys(target for span in config.spans for target in span.targets)
        jobs[name] = Job(name, tuple(targets), spans=config.spans)
    if config.waits is not None:
        name = _WAITS if _WAITS not in jobs else f"{_WAITS}:"
        jobs[name] = Job(name, config.waits.targets, waits=config.waits)
    for flight in config.flights:
        name = f"flight {flight.name}"  # which no metric can be called
        jobs[name] = Job(name, flight.targets, flight=flight)
    return jobs


def _asks_alike(one: Job, other: Job, target: str, keeps_spans: bool) -> bool:
    """Return whether two jobs have the same probes in a target."""
    if one.metric is not None or other.metric is not None:
        return one.metric is other.metric
    if one.waits is not None and other.waits is not None:
        return one.waits.goroutines == other.waits.goroutines
    if one.flight is not None and other.flight is not None:
        return replace(one.flight, targets=()) == replace(other.flight, targets=())
    if one.waits is not None or other.waits is not None or not keeps_spans:
        return False
    mine, its = (
        [replace(span, targets=()) for span in job.spans if target in span.targets]
        for job in (one, other)
    )
    return mine == its


def _where(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:_MAX_LISTED]))
    return f"what process{'es' if len(pids) > 1 else ''} {shown} run{'' if len(pids) > 1 else 's'}"


def _losses(job: Job) -> Sequence[str]:
    """Return how calls of a job may be missing."""
    if job.metric is not None:
        return [*metric_losses(job.metric.spec), SKIPPED]
    return RecordReader.LOSSES if job.waits is None else [*WAIT_LOSSES, SKIPPED]


def _filters(program: Program) -> tuple[int | None, int | None]:
    return program.cgroup, program.user


def _shown(job: Job, running: _Running) -> str:
    return f"{job.name} in {running.program.key.target} ({running.program.shown})"


def _status(
    at: tuple[str, str], attached: int, tally: _Tally, probes: list[Probe], job: Job
) -> ProbeStatus:
    hits, cost, lost = tally.spent.hits, tally.spent.ns, Counter(tally.lost)
    unmeasured, sent = tally.unmeasured, tally.sent.copy()
    for probe in probes:
        with suppress(OSError):
            spent = probe.spent()
            hits, cost = hits + spent.hits, cost + spent.ns
            lost.update(probe.lost())
            unmeasured += probe.unmeasured()
            sent.update(probe.sent())
    return ProbeStatus(
        *(*at, attached, hits, cost, tally.over_budget, tally.failures, dict(lost)),
        *(unmeasured, dict(tally.seconds), sent if job.spans else None),
    )


def _probes_alike(one: MetricSpec, other: MetricSpec) -> bool:
    """Return whether the probes of two metrics are the same, wherever they are placed."""
    return _bare(one) == _bare(other)


def _bare(spec: MetricSpec) -> MetricSpec:
    return replace(spec, targets=(), help="", idle=0.0)


def _closed(place: _Place, probe: Probe) -> Spent:
    """Close a probe and return what it has cost, as far as that is known."""
    try:
        return probe.close()
    except (GotraceError, OSError) as error:
        log.error("%s: %s", printable(place.job), printable(str(error)))
        return Spent()


def _close(probe: Probe) -> None:
    try:
        probe.close()
    except (GotraceError, OSError) as error:
        log.error("%s", printable(str(error)))


def _take(probe: Probe) -> None:
    with apart("take", "a probe cannot be read"), suppress(OSError):
        probe.take()


def _apart(place: _Place) -> AbstractContextManager[None]:
    """Have what fails with a probe cost no other one."""
    return apart("engine", f"{place.job} in {place.program.target}")
