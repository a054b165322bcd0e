# SPDX-License-Identifier: Apache-2.0
"""Hold what tracing takes from a target to a budget.

The programs count their hits themselves (``hits`` of bpf/site.h), which takes no rights and is
known at once. A hit costs what a trap was measured to cost, and what its program usually takes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gotrace.errors import GotraceError
from gotrace.kernel.attach import ProbeGroup
from gotrace.kernel.program import BpfProgram
from gotrace.overhead import ProbeCost
from gotrace.session.calibrate import Calibration
from gotrace.session.landings import MAX_FUNCTIONS, by_function
from gotrace.session.plan import ProbePlan
from gotrace.settings import ProgramSettings
from gotrace.sites.sites import SiteForm

__all__ = [
    "WINDOW",
    "Budget",
    "Hits",
    "RunBudget",
    "Spent",
    "counting_hits",
    "removable",
]

#: Seconds in which a target pays at most its share of them.
WINDOW = 10.0

_HITS = 4  # enum hit of bpf/site.h
_SWITCH_NS = 150  # for the run of a program at a switch of the kernel's scheduler

_PATIENCE = 1.5  # seconds, for the cost of a trap
_USUAL_TRAP = ProbeCost(own=800, hit=4000)  # on a virtual machine that does other things as well

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=ProgramSettings)


@dataclass
class Budget(Generic[K]):
    """The share of one CPU that several probes may take together."""

    share: float
    _began: float | None = None
    _before: dict[K, int] = field(default_factory=dict)

    def exceeding(
        self, now: float, spent: Mapping[K, int], last: Container[K] = ()
    ) -> dict[K, float]:
        """Return the probes that have to cost less, the dearest first, with their shares of a CPU.

        ``spent`` is what each has cost so far, in ns; ``now`` is in seconds. If more than a
        window's share has been spent before it is over, so many have to cost less that the others
        stay within the share; those of ``last`` only if no others are left. A window begins then.
        """
        if self._began is None or now - self._began >= WINDOW:
            self._began, self._before = now, dict(spent)
            return {}
        used, passed = self._used(spent), self._passed(now)
        rest, over = sum(used.values()), dict[K, float]()
        if rest <= self.share * WINDOW * 1e9:
            return {}
        dearest = sorted(used, key=lambda key: (key in last, -used[key]))
        for key in dearest:
            if rest <= self.share * passed:
                break
            rest -= used[key]
            over[key] = used[key] / passed
        self._began, self._before = now, dict(spent)
        return over

    def total(self, now: float, spent: Mapping[K, int]) -> float:
        """Return the share of a CPU that all have taken in this window; as for ``exceeding``."""
        return sum(self._used(spent).values()) / self._passed(now)

    def _used(self, spent: Mapping[K, int]) -> dict[K, int]:
        """Return what each probe has cost in this window, in ns."""
        for key, ns in spent.items():
            if ns < self._before.get(key, 0):  # the probe was attached anew
                self._before[key] = 0
        return {key: ns - self._before.setdefault(key, 0) for key, ns in spent.items()}

    def _passed(self, now: float) -> float:
        """Return how long this window has been going on, in ns."""
        return max(now - (now if self._began is None else self._began), 0.1) * 1e9

    def forgive(self, key: K, spent: int) -> None:
        """Forget what a probe has cost in this window."""
        self._before[key] = spent


def counting_hits(settings: S, functions: int = 0) -> S:
    """Return settings with which programs count their hits, by function if these are not many.

    Of more functions than can be told from each other, all are held to the budget together.
    """
    return settings.with_hits(1 + (functions if functions <= MAX_FUNCTIONS else 0))


def removable(
    groups: list[ProbeGroup], functions: int
) -> tuple[list[ProbeGroup], dict[int, ProbeGroup]]:
    """Return groups of so many functions so that those of each can be removed, and these by number.

    If functions are too many, groups are as they were.
    """
    if functions > MAX_FUNCTIONS:
        return groups, {}
    found = by_function(groups)
    return list(found.values()), found


@dataclass(frozen=True, slots=True)
class Spent:
    """How often probes have been hit, and what that has cost the program, in ns."""

    hits: int = 0
    ns: int = 0


class Hits:
    """The hits of a run's probes: in row 0 those that belong to no function, then by function."""

    def __init__(self, program: BpfProgram, program_ns: int, plan: ProbePlan | None = None) -> None:
        """Read a program's hits; ``program_ns`` is what one takes more than one that counts."""
        self._hits = program.map("hits")
        self._program_ns = program_ns
        self._is_stepped = [False]
        if plan is not None and self._hits.max_entries > _HITS:
            for _, _, sites in plan.numbered():
                form = sites.entry.form if sites.entry else None
                self._is_stepped.append(form in (SiteForm.FIRST, SiteForm.RET))

    def _read(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield, by row, hits of entries and returns, calls that were counted, and switches."""
        sums = self._hits.sums()
        yield from zip(*(sums[what::_HITS] for what in range(_HITS)), strict=True)

    def total(self, trap: ProbeCost) -> Spent:
        """Return all hits of sites, and what all hits have cost; ``trap`` as for ``spent``."""
        rows = list(self._read())
        hits = sum(entries + returns for entries, returns, _, _ in rows)
        return Spent(hits, sum(self._spent(trap, rows)))

    def spent(self, trap: ProbeCost) -> list[int]:
        """Return what they have cost so far, by row, in ns; ``trap`` is as of ``trap_cost``."""
        return self._spent(trap, self._read())

    def _spent(self, trap: ProbeCost, rows: Iterable[tuple[int, int, int, int]]) -> list[int]:
        emulated = trap.own + self._program_ns
        stepped = max(trap.own, 2 * trap.hit - trap.own) + self._program_ns
        spent: list[int] = []
        calls: list[int] = []
        landed = 0
        for row, (entries, returns, _, switches) in enumerate(rows):
            entered = stepped if self._is_stepped[row] else emulated
            cost = entries * entered + switches * _SWITCH_NS
            if row == 0 and len(self._is_stepped) > 1:
                landed = returns * emulated  # but for a few, which are stepped
            else:
                cost += returns * stepped
            calls.append(entries if row else 0)
            spent.append(cost)
        # Which function a landing was hit for is not counted: they have them by their calls.
        if landed and (every := sum(calls)):
            spent = [ns + landed * own // every for ns, own in zip(spent, calls, strict=True)]
        else:
            spent[0] += landed
        return spent

    def counted(self) -> dict[int, int]:
        """Return how many calls of which functions were counted, and not followed.

        If functions have no rows of their own, all are those of -1.
        """
        return {row - 1: calls for row, (_, _, calls, _) in enumerate(self._read()) if calls}


@dataclass(frozen=True, slots=True)
class Exceeded:
    """What has cost too much, in shares of a CPU.

    ``functions`` are by their numbers, the dearest first. ``rest`` is what belongs to no function,
    None if that did not cost too much; ``total`` is what everything took.
    """

    functions: Mapping[int, float]
    rest: float | None
    total: float


class RunBudget:
    """The budget of one run, which is looked after while the run goes on."""

    #: Seconds between two looks.
    PERIOD = 0.5

    def __init__(self, share: float, hits: Hits, trap: Calibration[ProbeCost], now: float) -> None:
        """Begin; ``share`` is a part of one CPU."""
        self.share, self.hits = share, hits
        self._calibration = trap
        self._trap: ProbeCost | None = None
        self._budget: Budget[int] = Budget(share)
        #: When the next look is due (``time.monotonic``).
        self.next = now
        self._began = now
        self._budget.exceeding(now, {})

    def look(self, now: float) -> Exceeded | None:
        """Return what has to cost less, None if it is not time to look, or if nothing has."""
        if now < self.next:
            return None
        self.next = now + self.PERIOD
        trap = self._trap or self._measured(now)
        if trap is None:
            return None
        spent = dict(enumerate(self.hits.spent(trap)))
        total = self._budget.total(now, spent)
        over = self._budget.exceeding(now, spent, last=(0,))
        if not over:
            return None
        rest = over.pop(0, None)
        return Exceeded({row - 1: share for row, share in over.items()}, rest, total)

    def forgive(self, functions: Collection[int]) -> None:
        """Forget what functions have cost that cost less from now on."""
        if self._trap is None or not functions:
            return
        spent = self.hits.spent(self._trap)
        for function in functions:
            self._budget.forgive(function + 1, spent[function + 1])

    def _measured(self, now: float) -> ProbeCost | None:
        """Return what a trap costs here, None if that is not known yet."""
        try:
            self._trap = self._calibration.cost(0)
        except (GotraceError, OSError):
            if now > self._began + _PATIENCE:
                self._trap = _USUAL_TRAP
        return self._trap
