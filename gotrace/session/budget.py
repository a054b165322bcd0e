# SPDX-License-Identifier: Apache-2.0
"""Hold the cost of tracing a target to a budget.

The programs count their hits themselves (``hits`` of bpf/site.h), which takes no rights and is
known at once. A hit costs what a trap was measured to cost, and what its program usually takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import sub
from typing import Generic, NamedTuple, TypeVar

from gotrace.architecture import HOST
from gotrace.errors import GotraceError
from gotrace.kernel.attach import ProbeGroup
from gotrace.kernel.program import BpfProgram
from gotrace.overhead import ProbeCost, RunCost
from gotrace.records import dataclass, field
from gotrace.session.calibrate import Calibration
from gotrace.session.landings import MAX_FUNCTIONS, by_function
from gotrace.session.plan import ProbePlan
from gotrace.settings import HIT_KINDS, ProgramSettings
from gotrace.sites.records import SiteForm

#: Seconds in which a target pays at most its share of them.
WINDOW = 10.0
_SAVED = 6 * WINDOW  # of which a target saves its share at most, or owes it

_STEPS_RETS = HOST is None or HOST.steps_rets
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
    _since: dict[K, float] = field(default_factory=dict)  # when probes came in this window
    _spent: Mapping[K, int] = field(default_factory=dict)  # at the last look
    _looked: float = 0.0
    #: What each took of a CPU in the window before, or is expected to take.
    _shares: dict[K, float] = field(default_factory=dict)
    _saved: float = 0.0  # ns of the share that were not taken until this window; below 0 if more

    def exceeding(
        self, now: float, spent: Mapping[K, int], last: Container[K] = ()
    ) -> dict[K, float]:
        """Return the probes that have to cost less, the dearest first, with their shares of a CPU.

        ``spent`` is what each has cost so far, in ns; ``now`` is in seconds. If more than a
        window's share has been spent in it, so many have to cost less that the others stay within
        the share; those of ``last`` only if no others are left. A window begins then.
        """
        if self._began is None:
            self._begin(now, spent)
            return {}
        used, passed = self._used(spent), self._passed(now)
        self._looked, self._spent = now, spent
        is_over = sum(used.values()) > self.share * max(passed, WINDOW * 1e9)
        if not is_over and now - self._began < WINDOW:
            return {}
        most = self.share * _SAVED * 1e9
        self._saved += self.share * passed - sum(used.values())
        self._saved = min(max(self._saved, -most), most)
        shares = {key: ns / self._passed(now, key) for key, ns in used.items()}
        rest, over = sum(shares.values()), dict[K, float]()
        for key in sorted(shares, key=lambda key: (key in last, -shares[key])) if is_over else ():
            if rest <= self.share:
                break
            rest -= shares[key]
            over[key] = shares[key]
        for key, share in shares.items():
            if self._passed(now, key) < WINDOW / 2 * 1e9:  # it may yet take what is expected
                shares[key] = max(share, self._shares.get(key, 0.0))
        self._shares = {key: share for key, share in shares.items() if key not in over}
        self._begin(now, spent)
        return over

    def _begin(self, now: float, spent: Mapping[K, int]) -> None:
        self._began = self._looked = now
        self._spent, self._before, self._since = spent, dict(spent), {}

    def total(self, now: float, spent: Mapping[K, int]) -> float:
        """Return the share of a CPU that all have taken in this window; as for ``exceeding``."""
        return sum(self._used(spent).values()) / self._passed(now)

    def _used(self, spent: Mapping[K, int]) -> dict[K, int]:
        """Return the cost of each probe in this window, in ns."""
        before, used = self._before, {}
        for key, ns in spent.items():
            then = before.get(key, -1)
            if not 0 <= then <= ns:  # the probe is new, or was attached anew
                before[key] = then = 0
                self._since[key] = self._looked
            used[key] = ns - then
        return used

    def _passed(self, now: float, key: K | None = None) -> float:
        """Return how long this window has been going on, for a probe that came in it, in ns."""
        began = now if self._began is None else self._began
        if key is not None:
            began = self._since.get(key, began)
        return max(now - began, 0.1) * 1e9

    def forgive(self, key: K, spent: int) -> None:
        """Forget the cost of a probe in this window, which is paid all the same."""
        self._saved -= max(spent - self._before.get(key, 0), 0)
        self._before[key], self._since[key] = spent, self._looked
        self._shares.pop(key, None)

    def has_room(self, share: float, paid: float) -> bool:
        """Return whether a probe may be tried that has taken a share of a CPU before.

        That has to fit into what the others leave. If it does not, the probe may take less now,
        which is found out as soon as enough was saved for a try in vain: the last one has taken
        ``paid``, in ns.
        """
        return share <= self._left() or self._saved >= self._try(paid)

    def expect(self, key: K, share: float, paid: float) -> None:
        """Take note that a probe is tried again that has room."""
        if share > self._left():
            self._saved -= self._try(paid)
        self._shares[key] = share

    def _left(self) -> float:
        """Return the share of a CPU that no probe takes."""
        taken = dict(self._shares)
        for key, ns in self._used(self._spent).items():
            taken[key] = max(taken.get(key, 0.0), ns / self._passed(self._looked, key))
        return self.share - sum(taken.values())

    def _try(self, paid: float) -> float:
        return min(max(paid, self.share * WINDOW * 1e9), self.share * _SAVED * 1e9)


def counting_hits(settings: S, functions: int = 0, files: int = 0) -> S:
    """Return settings with which programs count their hits, by function if these are not many.

    Those of no function are counted by file if that is a number of these.

    Of more functions than can be told from each other, all are held to the budget together.
    """
    return settings.with_hits(1 + (functions if functions <= MAX_FUNCTIONS else 0), files)


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
    """The number of hits of probes, and their cost to the program, in ns."""

    hits: int = 0
    ns: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.hits + other.hits, self.ns + other.ns)


class HitRow(NamedTuple):
    """The number of hits of a function's probes; in row 0, of those of no function."""

    entries: int = 0
    #: Of its RETs.
    returns: int = 0
    #: That ended calls of it; in row 0, that ended none.
    landings: int = 0
    #: The same of those that the kernel single-steps.
    stepped: int = 0
    #: Calls that were not followed.
    counted: int = 0
    #: Of the kernel's scheduler, which take no trap.
    switches: int = 0
    #: Of what belongs to no function that users ask for.
    others: int = 0
    #: Its calls that are missing, by the names of diagnostics; in row 0, those of any function.
    stacks_full: int = 0
    outer_calls_full: int = 0
    new_callers: int = 0
    unwound: int = 0


@dataclass(frozen=True, slots=True)
class HitCounts:
    """The hits of a run or of a part of it, by row; ``stepped``: its entries are single-stepped.

    ``numbers`` are those of the rows, if they are not all.
    """

    rows: Sequence[HitRow]
    stepped: Sequence[bool]
    numbers: Sequence[int] = ()

    def since(self, before: HitCounts | None) -> HitCounts:
        """Return the hits that came after ``before``, all if that is None."""
        if before is None:
            return self
        pairs = zip(self.rows, before.rows, strict=True)
        rows = [HitRow(*map(sub, now, then)) for now, then in pairs]
        return HitCounts(rows, self.stepped)

    def emulated(self, cost: ProbeCost) -> Spent:
        """Return the hits of sites that the kernel emulates, with their cost."""
        return sum(map(partial(self._emulated, cost), range(len(self.rows))), Spent())

    def single_stepped(self, cost: ProbeCost) -> Spent:
        """Return the hits of sites that it single-steps."""
        return sum(map(partial(self._single_stepped, cost), range(len(self.rows))), Spent())

    @property
    def switches(self) -> Spent:
        """Return the hits at switches of its scheduler."""
        switches = sum(row.switches for row in self.rows)
        return Spent(switches, switches * _SWITCH_NS)

    def _emulated(self, cost: ProbeCost, row: int) -> Spent:
        hit = self.rows[row]
        hits = hit.landings + hit.others + (0 if self.stepped[row] else hit.entries)
        found = Spent(hits, hits * cost.emulated)
        return found if _STEPS_RETS else found + Spent(hit.returns, hit.returns * cost.ret)

    def _single_stepped(self, cost: ProbeCost, row: int) -> Spent:
        hit = self.rows[row]
        entries = hit.entries if self.stepped[row] else 0
        found = Spent(entries + hit.stepped, entries * cost.stepped_entry + hit.stepped * cost.ret)
        return found + Spent(hit.returns, hit.returns * cost.ret) if _STEPS_RETS else found

    def spent(self, cost: ProbeCost) -> list[int]:
        """Return the cost of the hits, by row, in ns.

        Landings that ended no call are spread over the functions by their calls meanwhile.
        """
        spent = [
            self._emulated(cost, row).ns
            + self._single_stepped(cost, row).ns
            + hit.switches * _SWITCH_NS
            for row, hit in enumerate(self.rows)
        ]
        calls = [0, *(row.entries for row in self.rows[1:])]
        if every := sum(calls):
            missed = self.rows[0].landings * cost.emulated + self.rows[0].stepped * cost.ret
            spent = [ns + missed * own // every for ns, own in zip(spent, calls, strict=True)]
            spent[0] -= missed
        return spent

    def cost(self, cost: ProbeCost) -> RunCost:
        """Return the mean cost of probes by these hits, from their cost one by one.

        A call's own part is by where its function's calls have returned. Which hits were within
        which calls is not counted: there a hit costs the mean of all.
        """
        sites = self.emulated(cost) + self.single_stepped(cost)
        hit = sites.ns // sites.hits if sites.hits else cost.hit
        functions: dict[int, ProbeCost] = {}
        calls = own = 0
        for number, row in enumerate(self.rows[1:]):
            ways = row.returns, row.landings + row.stepped
            if any(ways):
                each = cost.own_of(self.stepped[number + 1], *ways)
                functions[number] = ProbeCost(each, hit)
                calls, own = calls + sum(ways), own + sum(ways) * each
        every = own // calls if calls else cost.own_of(any(self.stepped), 1, 0)
        return RunCost(ProbeCost(every, hit), functions)


class Hits:
    """The hits of a run's probes, which only ever become more."""

    def __init__(self, program: BpfProgram, plan: ProbePlan | None = None) -> None:
        """Read a program's hits; ``plan`` has its functions."""
        self._hits = program.map("hits")
        self._stepped = [False]
        self._before = bytearray()
        if plan is not None:
            self.add(plan)

    def add(self, plan: ProbePlan) -> None:
        """Take note of the functions of a plan that the program has room for."""
        rows = self._hits.max_entries // HIT_KINDS
        self._stepped += [False] * (rows - len(self._stepped))
        for number, _, sites in plan.numbered() if rows > 1 else ():
            forms = {site.form for site in (sites.entry, *sites.inlined) if site}
            self._stepped[number + 1] = bool(forms & {SiteForm.FIRST, SiteForm.RET})

    def read(self) -> HitCounts:
        """Return the hits so far."""
        sums = self._hits.sums()
        rows = zip(*(sums[what::HIT_KINDS] for what in range(HIT_KINDS)), strict=True)
        return HitCounts([HitRow(*row) for row in rows], self._stepped)

    def new(self, used: Iterable[range]) -> HitCounts | None:
        """Return the hits since the last time of the rows that there are of some; None if none.

        Of rows of which no probe was hit, it has row 0 alone. A row that is not asked for costs
        nothing: the kernel takes a fifth of a microsecond for each number.
        """
        row = HIT_KINDS * self._hits.stride
        if not self._before:
            self._before = bytearray(self._hits.max_entries * self._hits.stride)
        found: dict[int, HitRow] = {}
        for asked in used:
            rows = range(asked.start, min(asked.stop, self._hits.max_entries // HIT_KINDS))
            values = self._hits.array(rows.start * HIT_KINDS, len(rows) * HIT_KINDS)
            at = rows.start * row
            if values == self._before[at : at + len(values)]:
                continue
            for number in rows:
                now = values[number * row - at : (number + 1) * row - at]
                then = bytes(self._before[number * row : (number + 1) * row])
                if now != then:
                    found[number] = HitRow(*map(sub, self._sums(now), self._sums(then)))
            self._before[at : at + len(values)] = values
        if not found:
            return None
        found = {0: HitRow(), **found}
        stepped = [self._stepped[row] for row in found]
        return HitCounts(list(found.values()), stepped, list(found))

    def _sums(self, values: bytes) -> list[int]:
        """Return words added up over all CPUs."""
        words, cpus = memoryview(values).cast("Q").tolist(), self._hits.stride // 8
        return [sum(words[at : at + cpus]) for at in range(0, len(words), cpus)]

    def others(self) -> int:
        """Return how often probes were hit that belong to no function that users ask for."""
        return HitRow(*self._hits.sums(HIT_KINDS)).others

    def total(self, cost: ProbeCost) -> Spent:
        """Return all hits of sites, and the cost of all hits."""
        found = self.read()
        sites = found.emulated(cost) + found.single_stepped(cost)
        return Spent(sites.hits, sites.ns + found.switches.ns)

    def counted(self) -> dict[int, int]:
        """Return how many calls of which functions were counted, and not followed.

        If functions have no rows of their own, all are those of -1.
        """
        return {
            number - 1: row.counted for number, row in enumerate(self.read().rows) if row.counted
        }


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The probes that have cost too much, in shares of a CPU.

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

    def __init__(
        self,
        share: float,
        hits: Hits,
        trap: Calibration[ProbeCost],
        now: float,
        program_ns: int = 0,
    ) -> None:
        """Begin; ``share`` is a part of one CPU.

        ``trap`` is as of ``trap_cost``, ``program_ns`` what a hit's program takes more than there.
        """
        self.share, self.hits = share, hits
        self._program_ns = program_ns
        self._calibration = trap
        self._cost: ProbeCost | None = None
        self._seen: HitCounts | None = None
        self._spent: Counter[int] = Counter()
        self._budget: Budget[int] = Budget(share)
        #: When the next look is due (``time.monotonic``).
        self.next = now
        self._began = now
        self._budget.exceeding(now, {})

    def look(self, now: float) -> Exceeded | None:
        """Return the probes that must cost less, None if none must, or before the next look."""
        if now < self.next:
            return None
        self.next = now + self.PERIOD
        cost = self._cost or self._measured(now)
        if cost is None:
            return None
        spent = self._spend(cost)
        total = self._budget.total(now, spent)
        over = self._budget.exceeding(now, spent, last=(0,))
        if not over:
            return None
        rest = over.pop(0, None)
        return Exceeded({row - 1: share for row, share in over.items()}, rest, total)

    def forgive(self, functions: Collection[int]) -> None:
        """Forget the cost of functions that cost less from now on."""
        if self._cost is None or not functions:
            return
        spent = self._spend(self._cost)
        for function in functions:
            self._budget.forgive(function + 1, spent[function + 1])

    def _spend(self, cost: ProbeCost) -> dict[int, int]:
        """Return the cost so far, by row, in ns: none ever becomes less."""
        hits = self.hits.read()
        for row, ns in enumerate(hits.since(self._seen).spent(cost)):
            self._spent[row] += ns
        self._seen = hits
        return dict(self._spent)

    def _measured(self, now: float) -> ProbeCost | None:
        """Return the cost of a hit here, None if it is not known yet."""
        try:
            self._cost = self._calibration.cost(0).plus(self._program_ns)
        except (GotraceError, OSError):
            if now > self._began + _PATIENCE:
                self._cost = _USUAL_TRAP.plus(self._program_ns)
        return self._cost
