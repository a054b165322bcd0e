# SPDX-License-Identifier: Apache-2.0
"""Requests for measurements: ``run.open_run`` starts each of them.

A request says which functions, or which scheduler, and how; the module that measures has its kind:
``count``, ``latency``, ``keys``, ``trace``, ``waits.meter`` and ``waits.states``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from gotrace.errors import GotraceError
from gotrace.kernel.features import multi_filters_by_process
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.pattern import is_recipe
from gotrace.probes.select import InlinedScope
from gotrace.records import dataclass, replace
from gotrace.session.choices import ReturnMode
from gotrace.session.plan import (
    BinaryRequest,
    ProbePlan,
    Selections,
    requests_for,
    select,
    splitting,
)
from gotrace.session.probing import PlanRoom, Prepared, Probing
from gotrace.target.target import Target

if TYPE_CHECKING:  # counting does without
    from gotrace.probes.spec import ProbeSpec
    from gotrace.session.scheduler import SchedulerProbes
    from gotrace.session.stepped import AcceptStepped
    from gotrace.session.tasks import Tasks
    from gotrace.session.trace_plan import TracePlan
    from gotrace.session.why.probes import WhyOptions

M = TypeVar("M", bound=Probing)
C = TypeVar("C")

#: Is shown what is to watch the scheduler, and raises GotraceError if that costs too much.
Accept = Callable[["SchedulerProbes"], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which functions a user asks for, in the words of the command line.

    ``patterns`` may be whole probes if the request takes them. ``file`` is where patterns that name
    no file are looked up, None for the target's executable.
    """

    patterns: Sequence[str]
    exclude: Sequence[str] = ()
    regexp: bool = False
    file: str | None = None

    @property
    def has_recipes(self) -> bool:
        return any(map(is_recipe, self.patterns))

    def requests(self, target: Target) -> list[BinaryRequest]:
        """Return the selection in each file. Raises UsageError."""
        split = splitting(target)
        return requests_for(self.patterns, self.exclude, self.regexp, self.file, split)

    def probes(
        self, target: Target, formats: bool = True, lines: bool = False
    ) -> tuple[list[ProbeSpec], list[GotraceError]]:
        """Return the probes, and why others come to nothing: see ``parse_probes``."""
        from gotrace.session.trace_plan import parse_probes

        return parse_probes(self.patterns, self.regexp, formats, splitting(target), lines)

    def probe_requests(self, specs: Sequence[ProbeSpec]) -> list[BinaryRequest]:
        """Return the selection for each probe."""
        from gotrace.session.trace_plan import probe_requests

        return probe_requests(specs, self.exclude, self.regexp, self.file)


@dataclass(frozen=True, slots=True)
class Planned:
    """The probes to attach; ``traced`` is how values are captured, None if no value is."""

    plan: ProbePlan
    traced: TracePlan | None = None


@dataclass(frozen=True, kw_only=True)
class RunRequest(abc.ABC, Generic[M, C]):
    """A measurement of a target, by probes of kind ``M`` whose cost is a ``C``.

    ``forced`` is the way to attach, None for the best. ``is_calibrated``: the run measures what
    probes cost while it starts. ``budget`` is what tracing may take, as a part of one CPU, None if
    the run does not mind it. ``is_minded``: somebody else does, so hits are counted, and returns
    can be left together. ``is_priced``: it is said what the run takes while it goes on.
    """

    target: Target
    forced: AttachMethod | None = None
    is_calibrated: bool = False
    budget: float | None = None
    is_minded: bool = False
    is_priced: bool = False

    @abc.abstractmethod
    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Plan the run, and have its price accepted. Raises GotraceError."""

    @abc.abstractmethod
    def attach(self, prepared: Prepared) -> M:
        """Attach the planned probes. Raises AttachError or LoadError."""

    def prepared(
        self,
        plan: ProbePlan,
        announce: Callable[[str], None] | None,
        tasks: Tasks | None = None,
        scheduler: SchedulerProbes | None = None,
    ) -> Prepared:
        """Return a plan, to be attached as the request says."""
        return Prepared(
            self.target,
            plan,
            tasks,
            forced=self.forced,
            announce=announce,
            scheduler=scheduler,
            budget=self.budget,
            is_minded=self.is_minded,
            is_priced=self.is_priced,
        )

    def cost(self, prepared: Prepared) -> C:
        """Measure the cost of probes, in a process of its own."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FunctionRequest(RunRequest[M, C]):
    """A measurement of calls of functions.

    ``is_strict``: one pattern without a match is an error, even if others match. ``why`` says how
    the parts of the time are measured, None if they are not.
    """

    asked: Asked
    #: The tool's verb for messages: in the present, and in the past.
    verb: str
    done: str
    is_strict: bool = True
    #: The probes to attach, if they were planned before.
    planned: Planned | None = None
    returns: ReturnMode = ReturnMode.RET
    why: WhyOptions | None = None
    #: Room for further plans in the programs, None if there are none to come.
    room: PlanRoom | None = None
    #: Is shown what lines and inlined calls take, None if they are counted whatever it is.
    accept_stepped: AcceptStepped | None = None

    #: Whether calls are identified by their goroutines.
    BY_TASK: ClassVar[bool] = True
    #: Whether each call is shown, also the first one of a caller.
    SHOWS_CALLS: ClassVar[bool] = False
    #: Whether what probes cost is for all hits of the run.
    PRICES_HITS: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse texts that cannot be understood before anything is done. Raises UsageError."""
        can_limit = self.forced in (None, AttachMethod.MULTI)
        self.target.is_limited = multi_filters_by_process if can_limit else None
        self.requests  # noqa: B018

    @cached_property
    def requests(self) -> tuple[Sequence[BinaryRequest], Sequence[GotraceError]]:
        """Return the selection in each file, and why other texts come to nothing."""
        return self.asked.requests(self.target), ()

    @abc.abstractmethod
    def plan(self) -> Planned:
        """Return the probes to attach. Raises GotraceError, NoMatchError among these."""

    def select(self, inlined: bool = False) -> Selections:
        """Return the selected functions, without the sites. Raises as ``plan`` does.

        With ``inlined`` those that exist only inlined are among them.
        """
        requests, failed = self.requests
        scope = InlinedScope.MATCHED if inlined else InlinedScope.NONE
        found = select(self.target, requests, self.verb, scope)
        found = replace(found, failed=(*failed, *found.failed))
        self._refuse(found.failed)
        return found

    def _refuse(self, failed: Sequence[GotraceError]) -> None:
        """Raise the error of one of several patterns."""
        if self.is_strict and failed:
            raise failed[0]

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        planned = self.planned or self.plan()
        for file in planned.plan.files:
            file.check_traced()
        plan, traced = planned.plan, planned.traced
        self._price_stepped(plan)
        tasks = why = None
        if self.BY_TASK:
            from gotrace.session.tasks import find_tasks

            tasks = find_tasks(self.target, plan)
            classes = traced is not None and traced.reads_parts
            if self.why is not None or classes:
                from gotrace.session.why.probes import WhyOptions, why_probes

                wanted = replace(self.why or WhyOptions(), classes=classes)
                why = why_probes(self.target, tasks, wanted)
                if accept is not None:
                    accept(why)
        return replace(
            self.prepared(plan, announce, tasks),
            traced=traced,
            why=why,
            forced=AttachMethod.MULTI if plan.must_be_limited else self.forced,
            returns=self.returns,
            shows_calls=self.SHOWS_CALLS,
            is_priced=self.is_priced or (self.is_calibrated and self.PRICES_HITS),
            room=self.room,
        )

    def _price_stepped(self, plan: ProbePlan) -> None:
        """Have the price of lines and inlined calls accepted, if the target runs already.

        A budget bounds it as well.
        """
        places = any(sites.inlined for _, _, sites in (plan.whole or plan).numbered())
        runs = bool(self.target.watched) and self.target.has_started
        if self.accept_stepped is None or self.budget is not None or not (places and runs):
            return
        from gotrace.session.presence import check_presence
        from gotrace.session.stepped import stepped_price

        list(check_presence(self.target, plan.binaries, None))
        price = stepped_price(self.target, plan, self.forced)
        if price is not None:
            self.accept_stepped(price)


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(FunctionRequest[M, C]):
    """A measurement of calls by probes, each with a predicate and expressions of its own."""

    @cached_property
    def parsed(self) -> tuple[Sequence[ProbeSpec], Sequence[GotraceError]]:
        """Return the probes, and why other texts come to nothing. Raises UsageError."""
        return self.asked.probes(self.target)

    @cached_property
    def requests(self) -> tuple[Sequence[BinaryRequest], Sequence[GotraceError]]:
        """Return the selection for each probe, and why other texts come to nothing."""
        specs, failed = self.parsed
        return self.asked.probe_requests(specs), failed
