# SPDX-License-Identifier: Apache-2.0
"""The metrics of Go's runtime, of each process of a target, as if it exported them itself.

They are read from memory: no probe is attached and no process is stopped. A file is read once, in a
process of its own, which may take only so much for it (``fleet.trial``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from enum import Enum
from functools import partial

from gotrace.errors import GotraceError
from gotrace.fleet.config import Config, PlanningSpec, RuntimeSpec
from gotrace.fleet.probing import open_target
from gotrace.fleet.targets import Program, ProgramKey
from gotrace.fleet.trial import Trial
from gotrace.goroutines.live import has_runtime
from gotrace.live.runtime import RuntimeFigures, RuntimePlan, RuntimeReader, plan_runtime
from gotrace.records import dataclass, field
from gotrace.target.process import ProcessError, find_process
from gotrace.target.usage import usage_of
from gotrace.text import printable

log = logging.getLogger("gotraced")

#: As many times the CPU time of a look at a process pass until the next one, at least.
_SHARE = 200
#: Files that are read at a time, and seconds that a scrape waits for them.
_TRIALS, _TRIAL_WAIT = 2, 2.0
#: Seconds until what may have gone wrong by chance is tried again.
_AGAIN = 60.0
#: The same of a process, which may have been about to begin.
_SOON = 5.0
#: Answers of the process that reads a file, which is followed by why in the last two.
_NOT_GO, _PROBLEM, _PASSING = b"-", b"!", b"?"


class RuntimeOutcome(Enum):
    """Whether a process is read, or why not."""

    READ = "read"
    #: Its goroutines alone: where its heap's figures are is not known.
    WITHOUT_HEAP = "without_heap"
    #: Its file has yet to be read.
    WAITING = "waiting"
    NOT_GO = "not_go"
    FAILED = "failed"
    #: There are more than are to be read.
    PASSED_OVER = "passed_over"


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """The figures of one process, which began at ``created`` (s since 1970)."""

    target: str
    pid: int
    pod: tuple[str, str, str] | None
    version: str
    created: float
    figures: RuntimeFigures


@dataclass(frozen=True, slots=True)
class RuntimeRows:
    """All that is exported: ``outcomes`` are numbers of processes, by target and outcome."""

    rows: Sequence[RuntimeRow] = ()
    outcomes: Mapping[tuple[str, RuntimeOutcome], int] = field(default_factory=dict)
    has_pods: bool = False


@dataclass
class _Followed:
    """A process that is read."""

    reader: RuntimeReader
    created: float
    row: RuntimeRow | None = None
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why a file has no plan, and when it is read again."""

    outcome: RuntimeOutcome
    text: str
    until: float


class RuntimeWatch:
    """A reader of all processes of targets. Threads may ask it: one reads for all."""

    def __init__(
        self, config: Callable[[], Config], programs: Callable[[], Iterable[Program]]
    ) -> None:
        self._config = config
        self._programs = programs
        self._lock = threading.Lock()
        self._of: Config | None = None
        self._plans: dict[ProgramKey, RuntimePlan] = {}
        self._problems: dict[ProgramKey, _Problem] = {}
        self._trials: dict[ProgramKey, tuple[str, Trial]] = {}  # and whose they are
        self._followed: dict[tuple[ProgramKey, int], _Followed] = {}
        self._failed: dict[tuple[ProgramKey, int], float] = {}
        self._last = RuntimeRows()
        self._next = 0.0

    def rows(self) -> RuntimeRows:
        """Return the figures, read now if the latest are older than is asked for."""
        with self._lock:
            config = self._config()
            spec = config.runtime_metrics
            if config is not self._of:
                self._of, self._next = config, 0.0
                self._problems.clear()
            if spec is None:
                self._forget({})
                self._last = RuntimeRows()
            elif time.monotonic() >= self._next:
                self._last = self._read(spec, config.planning)
                self._next = time.monotonic() + spec.interval
            return self._last

    def close(self) -> None:
        """End what reads files, and close the memory of all processes."""
        with self._lock:
            self._forget({})

    def _read(self, spec: RuntimeSpec, planning: PlanningSpec) -> RuntimeRows:
        programs = {one.key: one for one in self._programs() if one.key.target in spec.targets}
        self._forget(programs)
        self._plan(programs.values(), planning)
        outcomes = Counter(dict.fromkeys(((t, o) for t in spec.targets for o in RuntimeOutcome), 0))
        rows = []
        for target in spec.targets:
            every = []
            for program in (one for one in programs.values() if one.key.target == target):
                problem = self._problems.get(_file(program.key))
                if problem is not None and problem.outcome is RuntimeOutcome.NOT_GO:
                    outcomes[target, RuntimeOutcome.NOT_GO] += len(program.processes)
                else:
                    every += [(program, pid) for pid in program.processes]
            # Those that were read before go first.
            every.sort(key=lambda place: (place[0].key, place[1]) not in self._followed)
            outcomes[target, RuntimeOutcome.PASSED_OVER] = len(every[spec.processes :])
            for program, pid in every[spec.processes :]:
                self._drop((program.key, pid))
            for program, pid in every[: spec.processes]:
                outcome, row = self._look(program, pid)
                if outcome is RuntimeOutcome.FAILED and not program.is_run_by(pid):
                    continue  # it has ended since it was found
                outcomes[target, outcome] += 1
                rows += [row] if row is not None else []
        return RuntimeRows(rows, outcomes, spec.pods)

    def _look(self, program: Program, pid: int) -> tuple[RuntimeOutcome, RuntimeRow | None]:
        """Read a process if it is due, and return what is known of it."""
        place, file = (program.key, pid), _file(program.key)
        plan = self._plans.get(file)
        if plan is None:
            return RuntimeOutcome.FAILED if file in self._problems else RuntimeOutcome.WAITING, None
        now = time.monotonic()
        if now < self._failed.get(place, now):
            return RuntimeOutcome.FAILED, None
        try:
            one = self._followed.get(place)
            if one is None:
                one = self._followed[place] = _opened(plan, program, pid)
            if one.row is None or now >= one.due:
                began = time.thread_time()
                figures = one.reader.read()
                one.due = now + _SHARE * (time.thread_time() - began)
                whose = program.key.target, pid, program.pod
                one.row = RuntimeRow(*whose, printable(plan.version), one.created, figures)
        except (GotraceError, OSError) as error:
            self._drop(place)
            self._failed[place] = now + _SOON
            if program.is_run_by(pid):
                log.warning("runtime metrics of %s: %s", program.key.target, printable(str(error)))
            return RuntimeOutcome.FAILED, None
        return RuntimeOutcome.READ if one.row.figures.heap else RuntimeOutcome.WITHOUT_HEAP, one.row

    def _plan(self, programs: Iterable[Program], planning: PlanningSpec) -> None:
        """Read the files of programs, a few at a time, and wait a moment for that."""
        now = time.monotonic()
        waiting: dict[ProgramKey, Program] = {}
        for program in programs:
            file = _file(program.key)
            problem = self._problems.get(file)
            is_due = problem is None or now >= problem.until
            if program.processes and is_due and file not in self._plans | self._trials:
                waiting[file] = program
        until = now + _TRIAL_WAIT
        while waiting or self._trials:
            while waiting and len(self._trials) < _TRIALS:
                self._begin(*waiting.popitem(), planning)
            left = max(0.0, until - time.monotonic())
            for file, (whose, trial) in list(self._trials.items()):
                if trial.has_ended(left / _TRIALS):
                    del self._trials[file]
                    self._conclude(file, whose, trial)
            if not left:
                return

    def _begin(self, file: ProgramKey, program: Program, planning: PlanningSpec) -> None:
        whose = f"{program.key.target} ({program.shown})"
        try:
            self._trials[file] = whose, Trial([partial(_planned, program, planning)], planning)
        except GotraceError as error:
            self._give_up(file, whose, str(error), _AGAIN)

    def _conclude(self, file: ProgramKey, whose: str, trial: Trial) -> None:
        """Take what has become of reading a file."""
        kind, text = trial.plans[:1], trial.plans[1:].decode("utf-8", "replace")
        if trial.problem is not None:
            self._give_up(file, whose, trial.problem, _AGAIN if trial.is_passing else math.inf)
        elif kind == _NOT_GO:
            self._problems[file] = _Problem(RuntimeOutcome.NOT_GO, "", math.inf)
        elif kind in (_PROBLEM, _PASSING):
            self._give_up(file, whose, text, _AGAIN if kind == _PASSING else math.inf)
        else:
            plan = self._plans[file] = RuntimePlan.unpacked(trial.plans)
            self._problems.pop(file, None)
            if plan.heap is None:
                why = printable(plan.heap_problem)
                log.warning("runtime metrics of %s: without the heap: %s", printable(whose), why)

    def _give_up(self, file: ProgramKey, whose: str, text: str, seconds: float) -> None:
        """Take note of why a file cannot be read, and say it once."""
        before = self._problems.get(file)
        self._problems[file] = _Problem(RuntimeOutcome.FAILED, text, time.monotonic() + seconds)
        if before is None or before.text != text:
            log.warning("runtime metrics of %s: %s", printable(whose), printable(text))

    def _forget(self, programs: Mapping[ProgramKey, Program]) -> None:
        """Drop all that is of other programs."""
        kept = programs.keys()
        files = {_file(key) for key in kept}
        for place in list(self._followed):
            program = programs.get(place[0])
            if program is None or place[1] not in program.processes:
                self._drop(place)
        now = time.monotonic()
        self._failed = {place: at for place, at in self._failed.items() if now < at}
        self._plans = {file: plan for file, plan in self._plans.items() if file in files}
        self._problems = {file: why for file, why in self._problems.items() if file in files}
        for file in self._trials.keys() - files:
            self._trials.pop(file)[1].close()

    def _drop(self, place: tuple[ProgramKey, int]) -> None:
        one = self._followed.pop(place, None)
        if one is not None:
            one.reader.close()


def _file(key: ProgramKey) -> ProgramKey:
    """Return the same of a file of any target, in any container."""
    return key._replace(target="", container=0)


def _planned(program: Program, planning: PlanningSpec) -> bytes:
    """Return the plan of a program, or why there is none (runs in a process of its own)."""
    try:
        with closing(open_target(program, planning)) as target:
            binary = target.binary(program.path)
            return plan_runtime(binary).packed() if has_runtime(binary) else _NOT_GO
    except (GotraceError, OSError) as error:
        is_passing = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        return (_PASSING if is_passing else _PROBLEM) + str(error).encode()


def _opened(plan: RuntimePlan, program: Program, pid: int) -> _Followed:
    """Open the memory of a process. Raises GotraceError."""
    process = find_process(pid)
    created = time.time() - usage_of(process).uptime_s
    reader = RuntimeReader(plan, process)
    if not program.is_run_by(pid):  # its number may be another's by now
        reader.close()
        raise ProcessError(f"process {pid} has ended")
    return _Followed(reader, created)
