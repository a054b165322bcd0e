# SPDX-License-Identifier: Apache-2.0
"""Resolve what the user asked for into the functions and sites of the target's files.

The commands and the library ask alike: requests from patterns, then a plan for what is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from gotrace.elf.functions import Function, FunctionTable
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError, NoMatchError
from gotrace.gotypes.symbols import parse_name
from gotrace.kernel.attach import Point, ProbeGroup, refusal
from gotrace.kernel.cookie import COOKIE_INDEX_MASK, Jumps, TaskKind, ret_cookie
from gotrace.probes.pattern import split_target
from gotrace.probes.select import Selector
from gotrace.records import dataclass, replace
from gotrace.sites.sites import FunctionSites, Site, SiteForm, function_sites
from gotrace.target.process import file_test
from gotrace.target.target import Target, TargetBinary

__all__ = [
    "BinaryPlan",
    "BinaryRequest",
    "Check",
    "Inlined",
    "ProbePlan",
    "Refused",
    "Selected",
    "Verdict",
    "make_plan",
    "measurable",
    "once",
    "plan_counting",
    "plan_measuring",
    "requests_for",
    "select",
    "to_be_measured",
    "to_be_traced",
]

_MAX_LOOKED_UP = 200  # functions: of more it is the rule that some are also inlined

TaskOf = Callable[[FunctionTable, Function], TaskKind]


def _any_task(table: FunctionTable, function: Function) -> TaskKind:
    return TaskKind.THREAD


@dataclass(frozen=True, slots=True)
class BinaryRequest:
    """A file of the target (None: its executable) and what to select in it.

    Of the requests of one ``group`` some are enough: the others may come to nothing.
    """

    name: str | None
    selector: Selector
    group: str | None = None


def _not_excused(
    failed: Sequence[tuple[int, GotraceError]],
    requests: Sequence[BinaryRequest],
    selected: Iterable[int],
) -> list[GotraceError]:
    """Return why requests came to nothing, but of those whose group has others ``selected``."""
    groups = {requests[number].group for number in selected} - {None}
    return [error for number, error in failed if requests[number].group not in groups]


@dataclass(frozen=True, slots=True)
class Selected:
    """The functions that one request selects, before their sites are chosen.

    ``request`` is the request's number.
    """

    request: int
    binary: TargetBinary
    rows: Sequence[int]

    def sites(self, returns: bool, values: bool = True) -> Iterator[FunctionSites]:
        """Choose the functions' sites, one after the other; with ``returns`` find their RETs.

        ``values``: at the entries, arguments can be read.
        """
        image, functions = self.binary.image, self.binary.functions
        for row in self.rows:
            yield function_sites(image, functions.function(row), returns, values=values)

    def nothing_usable(self, verb: str, why: str) -> NoMatchError:
        """Return the error for a request that selects only functions that cannot be used."""
        return NoMatchError(f"nothing to {verb} in {self.binary.image.display}: {why}")


@dataclass(frozen=True, slots=True)
class Selections:
    """What requests select, and for what they ask that comes to nothing; see ``ProbePlan``."""

    selected: tuple[Selected, ...]
    failed: tuple[GotraceError, ...]
    failed_requests: frozenset[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a function can be used, and what there is to warn of."""

    usable: bool
    problems: tuple[str, ...] = ()


#: What decides whether a function can be used.
Check = Callable[[FunctionSites], Verdict]


@dataclass(frozen=True, slots=True)
class BinaryPlan:
    """What is to be traced in one file; every one of ``functions`` has an entry site."""

    binary: TargetBinary
    functions: tuple[FunctionSites, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A probe that the kernel refused.

    ``function`` is None for a probe of the runtime itself. ``is_entry``: no call of the function is
    seen.
    """

    function: str | None
    text: str
    is_entry: bool


@dataclass(frozen=True, slots=True)
class Inlined:
    """In how many places a function of a plan is also inlined, where no probe sees its calls."""

    function: str
    places: int

    def text(self, verb: str) -> str:
        """Return the warning; ``verb`` is what is done with a call, in the past tense."""
        places = f"{self.places} place{'' if self.places == 1 else 's'}"
        return f"{self.function} is also inlined in {places}: not {verb} there"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """All that is to be traced, and of the functions that cannot be, why.

    ``failed`` has why each probe or pattern that comes to nothing does, where others do not;
    ``failed_requests`` the numbers of the requests that have no ``BinaryPlan`` therefore.
    """

    binaries: tuple[BinaryPlan, ...]
    problems: tuple[str, ...]
    failed: tuple[GotraceError, ...] = ()
    failed_requests: frozenset[int] = frozenset()

    @property
    def functions(self) -> list[Function]:
        """Return the functions in the order in which their cookies number them."""
        return [sites.function for sites in self._every()]

    @property
    def entry_form(self) -> SiteForm:
        """Return the form of the dearest entry site: FIRST where one is single-stepped."""
        stepped = any(
            sites.entry is not None and sites.entry.form is SiteForm.FIRST
            for sites in self._every()
        )
        return SiteForm.FIRST if stepped else SiteForm.EMULATED

    @property
    def has_tail_jumps(self) -> bool:
        """Return whether a function can end by jumping to another one."""
        return any(sites.tail_jumps for sites in self._every())

    @property
    def changes_threads(self) -> bool:
        """Return whether calls distinguished by thread are those of goroutines: gccgo's."""
        return any(
            parse_name(sites.function.name, gccgo=True).package
            for plan in self.binaries
            if not plan.binary.functions.has_pclntab
            for sites in plan.functions
        )

    def refused(self, failed: Mapping[Point, OSError]) -> list[Refused]:
        """Return what the kernel refused of a plan that was attached, and why."""
        every = list(self._every())
        refused = []
        for point, error in failed.items():
            number = point.cookie & COOKIE_INDEX_MASK
            sites = every[number]
            text = f"no probe at {point.address:#x}: {refusal(error)}"
            if sites.function.entry <= point.address < sites.function.end:
                is_entry = sites.entry is not None and sites.entry.address == point.address
                refused.append(Refused(sites.function.name, text, is_entry))
            else:  # the runtime is watched as well
                refused.append(Refused(None, text, False))
        return refused

    def inlined(self) -> list[Inlined]:
        """Return which functions are also inlined, most often first; of few functions only."""
        places: Counter[str] = Counter()
        for file in self.binaries:
            names = {sites.function.name for sites in file.functions}
            if len(names) <= _MAX_LOOKED_UP:
                places.update(call.name for call in file.binary.functions.inlined_calls(names))
        return [Inlined(name, count) for name, count in places.most_common()]

    def _every(self) -> Iterator[FunctionSites]:
        return (sites for plan in self.binaries for sites in plan.functions)

    def entry_groups(self, program: str, pid: int, task: TaskOf = _any_task) -> list[ProbeGroup]:
        """Return one group a file that runs the BPF function ``program`` at the entry sites.

        ``task`` says how the program finds which task calls a function, where it needs that.
        """
        return self._groups(program, pid, task, lambda sites: (sites.entry,))

    def return_groups(
        self,
        program: str,
        pid: int,
        task: TaskOf = _any_task,
        only: Container[int] | None = None,
        emulated: bool = False,
    ) -> list[ProbeGroup]:
        """Return one group a file that runs the BPF function ``program`` at the RETs.

        ``only`` are the numbers of the functions whose RETs are wanted, None for all. ``emulated``:
        the program carries out those that it can.
        """
        wanted = [
            sites.returns if only is None or number in only else ()
            for number, sites in enumerate(self._every())
        ]
        returns = iter(wanted)
        return self._groups(program, pid, task, lambda sites: next(returns), emulated)

    def _groups(
        self,
        program: str,
        pid: int,
        task: TaskOf,
        chosen: Callable[[FunctionSites], Iterable[Site | None]],
        emulated: bool = False,
    ) -> list[ProbeGroup]:
        groups, start = [], 0
        for plan in self.binaries:
            image = plan.binary.image
            is_movable = image.is_pie or image.is_shared_library
            entries = {sites.function.entry for sites in plan.functions}
            points = [
                Point(
                    image.offset_of(site.address),
                    site.address,
                    ret_cookie(
                        number,
                        site,
                        task(plan.binary.functions, sites.function),
                        _jumps(sites, entries),
                        is_movable,
                        emulated and _can_be_emulated(image, sites, site),
                    ),
                )
                for number, sites in enumerate(plan.functions, start)
                for site in chosen(sites)
                if site is not None
            ]
            path, bias = plan.binary.attach_path, plan.binary.bias
            groups.append(
                ProbeGroup(program, path, image.display, points, bias, pid, image.identity)
            )
            start += len(plan.functions)
        return groups


#: The RET that does nothing but return: not c2, which takes more off the stack, nor with a prefix.
_PLAIN_RET = b"\xc3"


def _can_be_emulated(image: ElfImage, sites: FunctionSites, site: Site) -> bool:
    """Return whether a program can carry out a function's RET.

    Not where that is the entry as well: a program there has to find the registers as they were.
    """
    is_entry = sites.entry is not None and sites.entry.address == site.address
    return not is_entry and image.read(site.address, 1) == _PLAIN_RET


def _jumps(sites: FunctionSites, traced: Container[int]) -> Jumps:
    """Return how a function's calls can end; ``traced`` are entries of functions in its file."""
    if not sites.tail_jumps:
        return Jumps.NONE
    is_indirect = len(sites.jumps_to) < sites.tail_jumps
    return Jumps.TRACED if is_indirect or any(t in traced for t in sites.jumps_to) else Jumps.AWAY


def requests_for(
    patterns: Iterable[str],
    pid: int | None,
    exclude: Iterable[str] = (),
    regexp: bool = False,
    file: str | None = None,
) -> list[BinaryRequest]:
    """Group patterns by the file that each names, or else ``file``.

    Absolute paths may also be those of process ``pid``. Raises UsageError.
    """
    by_file: dict[str | None, list[str]] = {}
    exists = file_test(pid)
    for text in patterns:
        named, pattern = split_target(text, exists)
        by_file.setdefault(named or file, []).append(pattern)
    excluded = list(exclude)
    return [
        BinaryRequest(name, Selector(group, excluded, regex=regexp))
        for name, group in by_file.items()
    ]


def plan_counting(target: Target, requests: Sequence[BinaryRequest]) -> ProbePlan:
    """Return the plan for counting calls; raises as ``make_plan`` does."""
    return once(make_plan(target, requests, returns=False, verb="count", values=False))


def plan_measuring(target: Target, requests: Sequence[BinaryRequest]) -> ProbePlan:
    """Return the plan for measuring calls; raises as ``make_plan`` does."""
    return measurable(once(make_plan(target, requests, returns=True, verb="measure", values=False)))


def select(target: Target, requests: Sequence[BinaryRequest], verb: str) -> Selections:
    """Select functions in the target's files.

    ``verb`` is what the tool does to a function, for messages. Raises NoMatchError, ElfError or
    UsageError where no request selects anything.
    """
    selected: list[Selected] = []
    failed: list[tuple[int, GotraceError]] = []
    failed_requests: set[int] = set()
    for number, request in enumerate(requests):
        try:
            binary = target.binary(request.name)
            found = request.selector.select(binary.functions, verb=verb)
        except GotraceError as error:
            failed.append((number, error))
            failed_requests.add(number)
            continue
        selected.append(Selected(number, binary, found.rows))
        failed += [(number, NoMatchError(text)) for text in found.unmatched]
    if not selected:
        raise failed[0][1]
    reported = _not_excused(failed, requests, (one.request for one in selected))
    return Selections(tuple(selected), tuple(reported), frozenset(failed_requests))


def to_be_traced(sites: FunctionSites) -> Verdict:
    """Return whether a function's calls can be seen: it needs an entry site."""
    return Verdict(sites.entry is not None, (sites.problem,) if sites.problem else ())


def make_plan(
    target: Target,
    requests: Sequence[BinaryRequest],
    returns: bool,
    verb: str,
    values: bool = True,
) -> ProbePlan:
    """Select functions in the target's files and choose their sites, with RETs if asked for.

    ``verb`` is what the tool does to a function, for messages; ``values``: it reads arguments.
    A request that selects nothing, or nothing that can be probed, is among the plan's ``failed``
    where others do. Raises NoMatchError, ElfError or UsageError where none does.
    """
    found = select(target, requests, verb)
    plans: list[BinaryPlan] = []
    problems: list[str] = []
    unusable: list[tuple[int, GotraceError]] = []
    usable_requests = []
    for selected in found.selected:
        reasons: list[str] = []
        usable = []
        for sites in selected.sites(returns, values):
            verdict = to_be_traced(sites)
            reasons += verdict.problems
            if verdict.usable:
                usable.append(sites)
        if usable:
            plans.append(BinaryPlan(selected.binary, tuple(usable)))
            usable_requests.append(selected.request)
            problems += reasons
        else:
            unusable.append((selected.request, selected.nothing_usable(verb, reasons[0])))
    if not plans:
        raise [*found.failed, *(error for _, error in unusable)][0]
    failed = (*found.failed, *_not_excused(unusable, requests, usable_requests))
    failed_requests = found.failed_requests | {number for number, _ in unusable}
    return ProbePlan(tuple(plans), tuple(problems), failed, failed_requests)


def once(plan: ProbePlan) -> ProbePlan:
    """Return the plan without what earlier requests ask for already, of the same file by any name.

    Two probes in one place would both count a call.
    """
    seen: set[tuple[int, int, int]] = set()
    binaries = []
    for file_plan in plan.binaries:
        file = file_plan.binary.image.identity
        kept = []
        for sites in file_plan.functions:
            key = (file.device, file.inode, sites.function.entry)
            if key not in seen:
                seen.add(key)
                kept.append(sites)
        binaries.append(replace(file_plan, functions=tuple(kept)))
    return replace(plan, binaries=tuple(binaries))


def measurable(plan: ProbePlan) -> ProbePlan:
    """Return the plan without the functions whose calls cannot be seen to end, and why.

    Raises NoMatchError when that leaves none.
    """
    binaries, problems, failed = [], list(plan.problems), list(plan.failed)
    for binary in plan.binaries:
        kept: list[FunctionSites] = []
        before = len(problems)
        for sites in binary.functions:
            verdict = to_be_measured(sites)
            problems += verdict.problems
            if verdict.usable:
                kept.append(sites)
        if binary.functions and not kept:
            failed.append(NoMatchError(problems.pop(before)))
        binaries.append(replace(binary, functions=tuple(kept)))
    if not any(binary.functions for binary in binaries):
        raise failed[0]
    return replace(plan, binaries=tuple(binaries), problems=tuple(problems), failed=tuple(failed))


def to_be_measured(sites: FunctionSites) -> Verdict:
    """Return whether a function's calls can be seen to begin and to end."""
    name, problems = sites.function.name, []
    problem = _unmeasurable(sites)
    if problem is not None:
        problems.append(f"{name} cannot be measured: {problem}")
    if sites.tail_jumps and sites.returns:
        problems.append(
            f"{name} also ends by jumping to another function: of such"
            " calls only those are measured where that function is traced too"
        )
    return Verdict(sites.entry is not None and problem is None, tuple(problems))


def _unmeasurable(sites: FunctionSites) -> str | None:
    if sites.problem:
        return sites.problem
    if not sites.returns:
        return "it ends by jumping elsewhere" if sites.tail_jumps else "it never returns"
    if sites.entry and any(site.address == sites.entry.address for site in sites.returns):
        return "it is a single instruction"
    return None
