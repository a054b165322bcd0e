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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gotrace.errors import GotraceError, NoMatchError, UsageError
from gotrace.fleet.config import Config
from gotrace.fleet.executions import Executions
from gotrace.fleet.groups import MetricGroups
from gotrace.fleet.jobs import Job, StartSpan, Totals, attach_batch, batches, make_jobs
from gotrace.fleet.moving import Mover
from gotrace.fleet.pauses import LastPrice, Pauses
from gotrace.fleet.probing import DETAILS, Figures, Probe, ProbeSource, ProbeState, open_target
from gotrace.fleet.series import Metric, Room
from gotrace.fleet.targets import Finder, Program, ProgramKey
from gotrace.fleet.telemetry.price import OverBudgetError
from gotrace.fleet.telemetry.waits import WaitPoint
from gotrace.fleet.threads import apart, note_failure
from gotrace.fleet.trial import Trial
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, field, replace
from gotrace.session.budget import Budget
from gotrace.session.calibrate import Calibration, trap_cost
from gotrace.sites.records import SiteForm
from gotrace.target.target import Target
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.flights import FlightTally

log = logging.getLogger("gotraced")

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
_TRIALS = 2  # at a time
_VERIFIED = 3  # processes of a device: they have one file
_MISSES = 2  # looks
_MAX_LISTED = 16  # processes in a message
_MAX_NAMED = 3  # probes


class _Place(NamedTuple):
    """A job in a program."""

    job: str
    program: ProgramKey


@dataclass(frozen=True, slots=True)
class _Held:
    """A budget, who pays it, and its places: those of a target, or of some jobs, or all."""

    payer: str
    budget: Budget[_Place]
    target: str | None = None
    jobs: frozenset[str] | None = None

    def __contains__(self, place: _Place) -> bool:
        is_target = self.target is None or self.target == place.program.target
        return is_target and (self.jobs is None or place.job in self.jobs)


def _budgets(config: Config) -> Iterator[_Held]:
    """Yield the budgets that a configuration sets, the narrowest first."""
    for limit in config.limits:
        yield _Held(limit.name, Budget(limit.share), jobs=limit.jobs)
    for target in config.targets:
        yield _Held("all", Budget(config.budget), target=target.name)
    if config.host_budget is not None:
        yield _Held("the host", Budget(config.host_budget))


@dataclass
class ProbeStatus:
    """How the probes of a job fare in a target, those that are gone included.

    ``attached`` is in how many programs. ``seconds`` is how long probes were in which state, added
    up over programs. ``sends_spans``: calls become spans.
    """

    job: str
    target: str
    sends_spans: bool
    figures: Figures
    over_budget: int = 0
    failures: int = 0
    seconds: dict[ProbeState, float] = field(default_factory=lambda: dict.fromkeys(ProbeState, 0.0))
    attached: int = 0


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
    """Return the cost of a trap here."""
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
        self._lock = threading.RLock()  # of what follows, for readers
        self._jobs: dict[str, Job] = {}
        self._by_target: dict[str, list[Job]] = {}
        self._running: dict[ProgramKey, _Running] = {}
        self._attached: list[tuple[_Place, Probe]] | None = None  # while it is known
        self._tallies: dict[tuple[str, str], ProbeStatus] = {}
        self._found: dict[ProgramKey, Program] = {}
        self._budgets: list[_Held] = []
        self._pauses: Pauses[_Place] = Pauses()
        self._totals = Totals()
        self._groups = MetricGroups(cost)
        self._said: dict[_Place, str] = {}
        self._takers = ThreadPoolExecutor(_TAKERS, "take")
        self._leavers = ThreadPoolExecutor(_LEAVERS, "leave")
        self._leaving: list[tuple[_Place, Probe]] = []  # of programs that have ended
        self._next_look = self._next_poll = self._next_turn = self._next_expiry = 0.0
        self._looked = time.monotonic()
        self._stopping = threading.Event()
        self._mover = Mover()
        self._finder = Finder(config.targets)
        self._executions: Executions | None = None
        self._missed: Counter[str] = Counter()  # of configurations before
        self._count_executions(config)
        self.send_spans(None)

    def send_spans(self, start: StartSpan | None) -> None:
        """Attach probes of spans by ``start`` from now on; before that, there are none."""
        jobs = make_jobs(self.config, self._totals, start, self._jobs)
        self._set_jobs(self.config, jobs)

    def _count_executions(self, config: Config) -> None:
        """Count processes that end unseen, if any target is followed by its name."""
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
            self._by_target = {}
            for job in jobs.values():
                for target in job.targets:
                    self._by_target.setdefault(target, []).append(job)
            self._budgets = list(_budgets(config))
            for job in jobs.values():
                lost = Figures(lost=Counter(dict.fromkeys(job.losses, 0)))
                for target in job.targets:
                    tally = self._tallies.setdefault(
                        (job.name, target),
                        ProbeStatus(job.name, target, job.sends_spans, Figures()),
                    )
                    tally.sends_spans = job.sends_spans
                    tally.figures += lost
            room = Room(
                config.max_series, {target.name: target.max_series for target in config.targets}
            )
            for metric in self._metrics():
                metric.be_in(room)

    def _metrics(self) -> list[Metric]:
        with self._lock:
            return [metric for job in self._jobs.values() for metric in job.metrics]

    def ask_to_stop(self) -> None:
        """End a turn soon; may be called in a signal handler."""
        self._stopping.set()

    def turn(self) -> float:
        """Do the work that is due, and return in how many seconds some may be due again."""
        now = time.monotonic()
        is_new = self._look_if_due()
        if now >= self._next_turn:
            self._admit(now)
        if is_new or now >= self._next_turn:
            self._attach_due()
        if now >= self._next_turn:
            self._next_turn = now + _TURN
            self._mover.follow({probe.source for _, probe in self._probes()})
            self._settle(time.monotonic())  # first: a probe that costs less now is not to cost less
            self._mind_budget(time.monotonic())
            self._verify()
        if now >= self._next_poll:
            self._next_poll = now + _POLL
            for running in self._running.values():
                self._rest(running)
            for place, probe in self._probes():
                with _apart(place), suppress(OSError):
                    if probe.is_held():
                        probe.poll()
                        continue
                    length = self._pauses.pause(place, now)
                    self._detach(place)
                    log.error(
                        "%s in %s: its probes are gone: tried again in %.0f s",
                        place.job,
                        place.program.target,
                        length,
                    )
        if now >= self._next_expiry:
            self._expire(now)
        self.is_ready = True
        now = self.pulse = time.monotonic()
        return max(0.0, min(self._next_look, self._next_turn) - now)

    def _expire(self, now: float) -> None:
        """End series that are not added to, here and in the kernel."""
        metrics = self._metrics()
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
        # This thread's own time, not how long others keep it waiting.
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
        if found is self._found:
            self._follow_executions()
            return
        gone = [key for key in self._running if key not in found]
        for key in gone:
            running = self._running[key]
            DETAILS.info("%s: %s has ended", key.target, printable(running.program.shown))
            leaving = [(_Place(name, key), probe) for name, probe in running.probes.items()]
            with self._lock:
                del self._running[key]
                self._attached = None
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
        if not self._said and not self._pauses:
            return
        places = {_Place(job, key) for job in self._jobs for key in found}
        self._pauses.keep(places)
        for place in self._said.keys() - places:
            if place.job:
                del self._said[place]

    def _leave(self, running: _Running, leaving: list[tuple[_Place, Probe]]) -> None:
        """Detach the probes of a program that has ended, in a thread."""
        for _, probe in leaving:
            probe.stop()
        for place, probe in leaving:
            figures = Figures()
            with _apart(place):
                figures = _closed(place, probe)
            with self._lock:
                self._leaving.remove((place, probe))
                self._tally(place).figures += figures
        self._let_go(running)

    def _attach_due(self) -> None:
        while self._attach_to_all():
            pass

    def _attach_to_all(self) -> bool:
        """Attach the probes that are due; return whether there is one more program meanwhile."""
        is_new = False
        programs = [
            (key, running)
            for key, running in self._running.items()
            if running.trial is not None or self._due(key, running)
        ]
        for at, (key, running) in enumerate(programs):
            for one in programs[at : at + _TRIALS]:  # the next ones go on while this is attached
                self._begin_trial(*one)
            if not self._may_plan(key, running):
                continue
            due, failed = self._due(key, running), dict[_Place, str]()
            for batch in batches(job for job in due if job.name in running.tried):
                if self._stopping.is_set():
                    return False
                # Attaching to one may take long, and others start meanwhile.
                is_new |= self._look_if_due()
                if key not in self._running:
                    break
                failed |= self._attach(key, batch, running)
                self.pulse = time.monotonic()
            self._say_failed(failed, running)
            if key in self._running:
                self._rest(running)
        return is_new

    def _due(self, key: ProgramKey, running: _Running) -> list[Job]:
        """Return the jobs that are to be attached in a program now."""
        return [
            job
            for job in self._by_target.get(key.target, ())
            if job.name not in running.probes
            and job.name not in running.hopeless
            and self._pauses.is_over(_Place(job.name, key), time.monotonic())
        ]

    def _may_plan(self, key: ProgramKey, running: _Running) -> bool:
        """Return whether it is known what plans take that are due, after a trial if need be.

        Others do not wait for one that takes long, but for the beginning.
        """
        untried = self._untried(key, running)
        if not untried or running.trial is None:
            return not untried
        place = _Place(untried[0].name, key)
        while not running.trial.has_ended(_TRIAL_WAIT):
            self.pulse = time.monotonic()
            if self.is_ready or self._stopping.is_set():
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

    def _untried(self, key: ProgramKey, running: _Running) -> list[Job]:
        """Return the jobs that are due and of whose plans it is not known what they take."""
        return [job for job in self._due(key, running) if job.name not in running.tried]

    def _begin_trial(self, key: ProgramKey, running: _Running) -> None:
        """Begin to find that out, if need be."""
        if running.trial is not None or not (untried := self._untried(key, running)):
            return
        try:
            running.trial = self._trial(untried, running.program, self.config)
            running.trying = frozenset(job.name for job in untried)
        except GotraceError as error:  # no process runs the program
            self._say_once(_Place(untried[0].name, key), str(error))

    @staticmethod
    def _trial(jobs: Sequence[Job], program: Program, config: Config) -> Trial:
        """Begin to plan jobs, as ``attach`` does, in a process of its own. Raises GotraceError."""

        def plans() -> Iterator[Callable[[], object]]:
            target = open_target(program, config.planning)
            for job in jobs:
                yield partial(job.plan, target, program)

        return Trial(plans(), config.planning)

    def _rest(self, running: _Running) -> None:
        """Keep no more of a program's file than probes ask for between one poll and the next."""
        if not any(probe.needs_target for probe in running.probes.values()):
            self._let_go(running)
        elif running.target is not None:
            running.target.rest()

    def _attach(
        self, key: ProgramKey, batch: Sequence[Job], running: _Running
    ) -> dict[_Place, str]:
        """Attach a batch of jobs, whatever becomes of each; return why some are not attached."""
        try:
            target = self._opened(running, self.config)
            some = self._groups, False, self._alike(batch[0])
            found = attach_batch(batch, target, running.program, self.cost, *some)
        except Exception as error:
            found = [(job, error) for job in batch]
        with self._lock:
            probes = {job.name: one for job, one in found if isinstance(one, Probe)}
            running.probes.update(probes)
            self._attached = None
        if probes:
            self._follow_executions()
        notes = ((_Place(job.name, key), job, one) for job, one in found)
        texts = {place: self._note(place, job, one, running) for place, job, one in notes}
        return {place: text for place, text in texts.items() if text}

    def _note(self, place: _Place, job: Job, probe: Probe | Exception, running: _Running) -> str:
        """Take note of what has become of a job that was to be attached; return what is wrong."""
        tally, shown = self._tally(place), _shown(job.name, running)
        if isinstance(probe, NoMatchError | UsageError):
            tally.failures += 1
            running.hopeless.add(job.name)
            return str(probe)
        if isinstance(probe, Exception):
            if isinstance(probe, OverBudgetError):
                tally.over_budget += 1
            else:
                tally.failures += 1
            if not isinstance(probe, GotraceError | OSError):
                note_failure("engine", shown, probe)  # a bug, which is to cost this probe alone
            length = self._pauses.pause(place, time.monotonic())
            return f"{probe}: tried again in {length:.0f} s"
        self._said.pop(place, None)
        DETAILS.info("%s: attached", printable(shown))
        again = ""
        if probe.is_light:
            tally.over_budget += 1
            length = self._pauses.pause(place, time.monotonic())
            again = f": tried again in {length:.0f} s"
        for problem in probe.problems:
            log.warning("%s: %s%s", printable(shown), printable(problem), again)
        return ""

    def _alike(self, job: Job) -> int:
        """Return how many programs there are for jobs of a kind."""
        alike = (one for one in self._jobs.values() if one.kind == job.kind)
        targets = {target for one in alike for target in one.targets}
        return max(1, sum(key.target in targets for key in self._running))

    @staticmethod
    def _opened(running: _Running, config: Config) -> Target:
        if running.target is None:
            running.target = open_target(running.program, config.planning)
        return running.target

    def _tally(self, place: _Place) -> ProbeStatus:
        return self._tallies[place.job, place.program.target]

    def _say_failed(self, failed: Mapping[_Place, str], running: _Running) -> None:
        """Log why probes are not attached in a program: those of one reason in one line."""
        alike: dict[str, list[_Place]] = {}
        for place, text in failed.items():
            if self._is_news(place, f"{_shown(place.job, running)}: {text}"):
                alike.setdefault(text, []).append(place)
        for text, places in alike.items():
            names = ", ".join(place.job for place in places[:_MAX_NAMED])
            if len(places) > _MAX_NAMED:
                names = f"{len(places)} probes ({names} and {len(places) - _MAX_NAMED} more)"
            elif len(places) > 1:
                names = f"{len(places)} probes ({names})"
            log.error("%s", printable(f"{_shown(names, running)}: {text}"))

    def _say_once(self, place: _Place, text: str) -> None:
        """Log a fault, but not again and again."""
        if self._is_news(place, text):
            log.error("%s", printable(text))

    def _is_news(self, place: _Place, text: str) -> bool:
        """Take note of a fault; return whether it is not the one that was there before."""
        bare = text.partition(": tried again")[0]
        before, self._said[place] = self._said.get(place), bare
        return bare != before

    def problems(self, job: str) -> list[str]:
        """Return the reasons why a job is not attached, for each program, as the log has them."""
        return [text for place, text in self._said.items() if place.job == job]

    def _mind_budget(self, now: float) -> None:
        spent: dict[_Place, int] = {}
        by_target: dict[str, dict[_Place, int]] = {}
        for place, probe in self._probes():
            try:  # as _apart, in less time: there may be thousands
                ns = spent[place] = probe.spent().ns
                by_target.setdefault(place.program.target, {})[place] = ns
            except Exception as error:
                if not isinstance(error, OSError):
                    note_failure("engine", f"{place.job} in {place.program.target}", error)
        for held in self._budgets:
            within = spent if held.target is None else by_target.get(held.target, {})
            if held.jobs is not None:
                within = {place: ns for place, ns in within.items() if place.job in held.jobs}
            for place, share in held.budget.exceeding(now, within).items():
                if place.job in self._running[place.program].probes:
                    self._lessen(place, share, held, now)

    def _admit(self, now: float) -> None:
        """Let probes be tried again for whose last prices all their budgets have room."""
        for place, price in self._pauses.waiting(now):
            within = [held.budget for held in self._budgets if place in held]
            if all(budget.has_room(*price) for budget in within):
                for budget in within:
                    budget.expect(place, *price)
                self._pauses.admit(place)

    def _lessen(self, place: _Place, share: float, held: _Held, now: float) -> None:
        """Lower the cost of a probe: its calls are counted alone, or it is detached."""
        probe = self._running[place.program].probes[place.job]
        self._tally(place).over_budget += 1
        price = LastPrice(share, probe.spent().ns)
        done = probe.lighten()
        if done is None:
            done = "detached"
            self._detach(place)
        length = self._pauses.pause(place, now, price)
        shown, most = printable(place.job), held.budget.share
        log.warning(
            "%s in %s: %s: it took %.1f%% of one CPU, and the budget of %s is %.1f%%: tried again"
            " in %.0f s, or later if the budget has no room for that then",
            *(shown, place.program.target, done, 100 * share, held.payer, 100 * most, length),
        )

    def _settle(self, now: float) -> None:
        """Go on with probes that cost less now, and add up how long each was in which state."""
        passed, self._looked = now - self._looked, now
        for place, probe in self._probes():
            try:
                if probe.is_light and self._pauses.is_over(place, now):
                    self._detach(place)  # it is attached as a whole in the next turn
                elif probe.settle():
                    spent = probe.spent().ns
                    for held in self._budgets:
                        if place in held:
                            held.budget.forgive(place, spent)
            except Exception as error:
                note_failure("engine", f"{place.job} in {place.program.target}", error)
        for key, running in self._running.items():
            for job in self._by_target.get(key.target, ()):
                if job.name in running.hopeless:
                    continue
                attached = running.probes.get(job.name)
                state = ProbeState.OFF if attached is None else attached.state
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
        figures = _closed(place, probe)
        with self._lock:
            del running.probes[place.job]
            self._attached = None
            self._tally(place).figures += figures

    @staticmethod
    def _let_go(running: _Running) -> None:
        """Close the parts of a program beside its probes."""
        if running.trial is not None:
            running.trial.close()
            running.trial = None
        if running.target is not None:
            running.target.close()
            running.target = None

    def _probes(self) -> Sequence[tuple[_Place, Probe]]:
        """Return all that is attached; nobody changes the list."""
        with self._lock:
            if self._attached is None:
                self._attached = [
                    (_Place(name, key), probe)
                    for key, running in self._running.items()
                    for name, probe in running.probes.items()
                ]
            return self._attached

    def reload(self, config: Config, start_span: StartSpan | None) -> None:
        """Go over to another configuration: what both ask for alike goes on without a gap.

        A probe that another one replaces stays until that one is attached. Whatever is raised, all
        is as it was: GotraceError or OSError where a new probe cannot be attached, and anything
        that is a bug. Probes of spans go on if ``start_span`` is the one of before.
        """
        jobs = make_jobs(config, self._totals, start_span, self._jobs)
        finder = self._finder
        if config.targets != self.config.targets:
            finder = Finder(config.targets, before=finder)
        kept: list[_Place] = []
        replaced: dict[_Place, Probe] = {}
        renewed: dict[ProgramKey, list[Job]] = {}
        try:
            for place in self._staying(jobs, finder.look()):
                job = jobs[place.job]
                if self._jobs[place.job].is_like(job, place.program.target):
                    kept.append(place)
                else:
                    renewed.setdefault(place.program, []).append(job)
            for key, some in renewed.items():
                for batch in batches(some):
                    self.pulse = time.monotonic()
                    found = self._renewed(batch, self._running[key], config)
                    replaced |= {
                        _Place(job.name, key): one for job, one in found if isinstance(one, Probe)
                    }
                    for job, one in found:
                        if isinstance(one, OverBudgetError | Probe):
                            continue  # tried again later
                        if isinstance(one, GotraceError | OSError):
                            shown = _shown(job.name, self._running[key])
                            raise GotraceError(f"{shown}: {one}") from one
                        raise one
        except BaseException:
            for place, probe in replaced.items():
                _closed(place, probe)
            raise
        self._go_over(config, jobs, kept, replaced)
        if finder is not self._finder:
            self._count_executions(config)
        self._finder = finder

    def _staying(
        self, jobs: Mapping[str, Job], found: Mapping[ProgramKey, Program]
    ) -> Iterator[_Place]:
        """Yield places of probes that jobs ask for in programs that were found."""
        for place, _ in self._probes():
            running = self._running[place.program]
            program, job = found.get(place.program), jobs.get(place.job)
            if program is None or _filters(program) != _filters(running.program):
                continue
            if job is not None and place.program.target in job.targets:
                yield place

    def _renewed(
        self, batch: Sequence[Job], running: _Running, config: Config
    ) -> list[tuple[Job, Probe | Exception]]:
        """Attach a batch of jobs beside the probes that they are to replace."""
        try:
            trial = self._trial(batch, running.program, config)
            while not trial.has_ended(_TRIAL_WAIT):
                self.pulse = time.monotonic()
            if trial.problem is not None:
                raise GotraceError(trial.problem)
            target = self._opened(running, config)
            some = self._groups, True, self._alike(batch[0])
            return attach_batch(batch, target, running.program, self.cost, *some)
        except (GotraceError, OSError) as error:
            return [(job, error) for job in batch]

    def _go_over(
        self,
        config: Config,
        jobs: dict[str, Job],
        kept: list[_Place],
        replaced: dict[_Place, Probe],
    ) -> None:
        """Detach the probes that are not kept, and put new ones in their place: nothing fails."""
        staying = set(kept)
        leaving = [(place, probe) for place, probe in self._probes() if place not in staying]
        for _, probe in leaving:
            probe.stop()
        for place, _ in leaving:
            self._detach(place)
        for name in jobs.keys() & self._jobs.keys():
            jobs[name].follow(self._jobs[name])
        for place, probe in replaced.items():
            # The one before has counted until now.
            probe.forget()
            with self._lock:
                self._running[place.program].probes[place.job] = probe
                self._attached = None
        targets = {target.name for target in config.targets}
        for key, running in list(self._running.items()):
            running.hopeless.clear()
            running.tried.clear()
            if key.target not in targets:
                with self._lock:
                    del self._running[key]
                    self._attached = None
            if key.target not in targets or not running.probes:
                self._let_go(running)
        self._set_jobs(config, jobs)
        self._said.clear()
        self._pauses = Pauses()
        self._next_look = self._next_turn = 0.0

    def collect(self) -> list[Metric]:
        """Read the new results, and return all metrics. May be called in any thread."""
        with self._lock:
            probes = [probe for _, probe in (*self._probes(), *self._leaving)]
        list(self._takers.map(_take, dict.fromkeys(probe.source for probe in probes)))
        return self._metrics()

    def waits(self, reader: str = "") -> list[WaitPoint]:
        """Return the sums of waits, as they were read by ``collect`` last, for a reader."""
        with self._lock:
            asked = self.config.waits
        targets = asked.targets if asked is not None else ()
        return self._totals.waits.points(targets, reader)

    def flights(self) -> list[FlightTally]:
        """Return the tally of each flight in each target."""
        with self._lock:
            specs, flights = self.config.flights, self._totals.flights
        return [] if flights is None else list(flights.tallies(specs))

    def processes(self) -> dict[str, int]:
        """Return how many processes run each target."""
        with self._lock:
            counts = dict.fromkeys((target.name for target in self.config.targets), 0)
            for key, program in self._found.items():
                if key.target in counts:
                    counts[key.target] += len(program.processes)
            return counts

    def programs(self) -> list[Program]:
        """Return the programs of all targets, as they were found last."""
        with self._lock:
            return list(self._found.values())

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
                    tally = self._tallies[at]
                    figures, seconds = tally.figures, dict(tally.seconds)
                    for probe in live.get(at, ()):
                        with suppress(OSError):
                            figures += probe.figures()
                    found.append(
                        replace(tally, figures=figures, seconds=seconds, attached=attached[at])
                    )
        yield from found

    def close(self) -> None:
        """Detach everything: all probes are asked to go before any is waited for."""
        self._mover.close()
        probes = self._probes()
        for _, probe in probes:
            probe.stop()
        list(self._takers.map(lambda one: _closed(*one), probes))
        for place, _ in probes:
            self._detach(place)
        for running in self._running.values():
            self._let_go(running)
        self._leavers.shutdown()
        self._takers.shutdown()
        if self._totals.flights is not None:
            self._totals.flights.close()
        if self._executions is not None:
            self._executions.close()


def _where(pids: Sequence[int]) -> str:
    shown = ", ".join(map(str, pids[:_MAX_LISTED]))
    return f"what process{'es' if len(pids) > 1 else ''} {shown} run{'' if len(pids) > 1 else 's'}"


def _filters(program: Program) -> tuple[int | None, int | None]:
    return program.cgroup, program.user


def _shown(job: str, running: _Running) -> str:
    return f"{job} in {running.program.key.target} ({running.program.shown})"


def _closed(place: _Place, probe: Probe) -> Figures:
    """Close a probe and return what it has seen and cost, as far as that is known."""
    try:
        return probe.close()
    except (GotraceError, OSError) as error:
        log.error("%s: %s", printable(place.job), printable(str(error)))
        return probe.figures()


def _take(source: Probe | ProbeSource) -> None:
    with apart("take", "a probe cannot be read"), suppress(OSError):
        source.take()


def _apart(place: _Place) -> AbstractContextManager[None]:
    """Keep a failure of a probe from costing another one."""
    return apart("engine", f"{place.job} in {place.program.target}")
