# SPDX-License-Identifier: Apache-2.0
"""Resolve the user's patterns into the functions and sites of the target's files.

The commands and the library ask alike: requests from patterns, then a plan for what is done.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

from gotrace.elf import ElfError
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.elf.pclntab.inline import InlinedCalls
from gotrace.errors import GotraceError, NoMatchError, UsageError, said
from gotrace.gotypes.symbols import parse_name
from gotrace.kernel.attach import Point, ProbeGroup, refusal
from gotrace.kernel.cookie import COOKIE_INDEX_MASK, Jumps, TaskKind, cookie
from gotrace.probes.lines import LineWord, parse_lines
from gotrace.probes.pattern import NoFileError, Pattern, split_target
from gotrace.probes.select import InlinedScope, Selection, Selector
from gotrace.records import dataclass, field, replace
from gotrace.session.lines import SelectedLines, partly_counted, select_lines
from gotrace.sites.hashed import HASHED
from gotrace.sites.inlined import InlinedSites, Unproven, is_known, untraced
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import FunctionSites, InlinedAt, InlinedPlace, Site, function_sites
from gotrace.sites.unwind import fault_site
from gotrace.target.process import ends_so, file_test, processes_called
from gotrace.target.target import Target, TargetBinary
from gotrace.text import counted, in_program, quote

_MAX_LOOKED_UP = 200  # functions: of more it is the rule that some are also inlined

_Programs = Mapping[TargetBinary, str]

#: How the caller of a function of a file is found, and that file's number in cookies.
TaskOf = Callable[[TargetBinary, FuncInfo], tuple[TaskKind, int]]


def _any_task(file: TargetBinary, function: FuncInfo) -> tuple[TaskKind, int]:
    return TaskKind.THREAD, 0


@dataclass(frozen=True, slots=True)
class BinaryRequest:
    """A file of the target (None: its executable) and the functions to select in it.

    Of the requests of one ``group`` some are enough: the others may come to nothing. ``lines`` are
    those of the source that are selected instead of functions.
    """

    name: str | None
    selector: Selector
    group: str | None = None
    lines: tuple[LineWord, ...] = ()


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
    """The functions that one request selects in one file, before their sites are chosen.

    ``request`` is the request's number, and ``selector`` its own. ``verb`` is what the tool does to
    a function. ``inlined`` is as in ``Selection``. ``lines`` are selected instead of functions.
    """

    request: int
    binary: TargetBinary
    rows: Sequence[int]
    selector: Selector
    verb: str
    inlined: frozenset[str] = frozenset()
    lines: tuple[SelectedLines, ...] = ()

    def sites(
        self, returns: bool, values: bool = True, proofs: InlinedSites | None = None
    ) -> Iterator[FunctionSites]:
        """Choose the functions' sites, one after the other; with ``returns`` find their RETs.

        ``values``: at the entries, arguments can be read. Entries may be at RETs if calls are
        counted and the kernel emulates RETs; see ``ProbePlan.faults`` for calls that do not come
        there. ``proofs`` know which addresses other sites have.
        """
        if self.lines:
            proofs = proofs or InlinedSites(self.binary.functions)
            for lines in self.lines:
                yield from lines.sites(self.binary.functions, proofs)
            return
        image, functions = self.binary.image, self.binary.functions
        at_rets = self.verb == "count" and not image.arch.steps_rets
        sees_faults = at_rets and _fault_site(self.binary) is not None
        for row in self.rows:
            function = functions.function(row)
            found = function_sites(image, function, returns, values=values, at_rets=at_rets)
            is_seen = sees_faults and function.origin is Origin.PCLNTAB
            if found.entry is not None and found.entry.faults and not is_seen:
                # A call whose pointer is nil would not be counted: the first instruction, then. C
                # may handle a fault of its own.
                found = function_sites(image, function, returns, values=values)
            yield found

    def only_inlined(self) -> list[str]:
        """Return the functions that exist only inlined, but those whose wrappers stand for them."""
        table, rows = self.binary.functions, frozenset(self.rows)
        index = table.inlined_by_name()
        return sorted(
            name
            for name in self.inlined
            if index is not None
            and not table.rows_named(name)
            and not self._are_stood_for(name, index.rows(name), rows)
        )

    def unseen_inlined(self, programs: _Programs, scope: InlinedScope) -> OnlyInlined | None:
        """Return those that exist only inlined and are not spelled out, None for none."""
        program = programs.get(self.binary)
        names = [name for name in self.only_inlined() if not self.selector.spells(name)]
        found = tuple(in_program(program, name) for name in names)
        return OnlyInlined(found, counts_inlined(self.binary), scope) if found else None

    def _are_stood_for(self, name: str, where: frozenset[int], rows: frozenset[int]) -> bool:
        return where <= rows and all(_stands_for(self.binary, row, name) for row in where)

    def nothing_usable(self, verb: str, why: str) -> NoMatchError:
        """Return the error for a request that selects only functions that cannot be used."""
        return NoMatchError(f"nothing to {verb} in {self.binary.image.display}: {why}")


@dataclass(frozen=True, slots=True)
class Selections:
    """The functions that requests select, and requests that come to nothing; see ``ProbePlan``.

    ``notes`` say which patterns are found in some of several programs only.
    """

    selected: tuple[Selected, ...]
    failed: tuple[GotraceError, ...]
    notes: tuple[str, ...] = ()
    one_program: bool = True

    @property
    def program_names(self) -> dict[TargetBinary, str]:
        """Return as ``ProbePlan.program_names`` does."""
        return _program_names(self.one_program, (one.binary for one in self.selected))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a function can be used, and a warning about it."""

    usable: bool
    problems: tuple[str, ...] = ()


#: The decision whether a function can be used.
Check = Callable[[FunctionSites], Verdict]


#: A file's device and inode, and the entry of a function in it.
FunctionKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class BinaryPlan:
    """The traced functions of one file; every one of ``functions`` has an entry site.

    ``request`` is the number of the request, or probe, that asks for it, and ``selector`` what it
    asks for.
    """

    binary: TargetBinary
    functions: tuple[FunctionSites, ...]
    request: int = 0
    selector: Selector | None = None

    def means(self, name: str) -> bool:
        """Return whether a function of a name is asked for."""
        return self.selector is not None and self.selector.means(name)

    @property
    def rows(self) -> list[int]:
        """Return the rows of the functions in the file's table."""
        return [sites.function.row for sites in self.functions]

    @property
    def seen_inlined(self) -> Collection[str]:
        """Return the functions of which some inlined calls are seen."""
        return {sites.function.name for sites in self.functions if sites.inlined}

    def key(self, sites: FunctionSites) -> FunctionKey:
        """Return a function's key, which does not depend on the file's name."""
        file = self.binary.image.identity
        return file.device, file.inode, sites.function.entry


def _fault_site(file: TargetBinary) -> Site | None:
    """Return where faults in a file's functions lead to, None if that is not in the same file.

    A plugin's functions use the runtime of the program that has loaded it.
    """
    return None if file.image.is_shared_library else fault_site(file.functions)


@dataclass(frozen=True, slots=True)
class Faults:
    """Instructions of a file at which a call ends before its entry site, if a pointer is nil.

    ``site`` is what such a call leads to, and ``index`` that of its cookie. ``counters`` are the
    numbers of functions by the addresses of their instructions.
    """

    binary: TargetBinary
    site: Site
    index: int
    counters: Mapping[int, int]


def _entries(sites: FunctionSites) -> list[Site]:
    """Return the sites at each of which a call of a function is seen to begin."""
    own = () if sites.entry is None else (sites.entry,)
    return list(dict.fromkeys((*own, *sites.inlined)))


class InlinedPlaces(NamedTuple):
    """In how many places a function is inlined, and in how many of these not all is counted."""

    all: int
    uncounted: int


class ProgramFunction(NamedTuple):
    """A traced function's name, and its program's where several are traced, else None."""

    program: str | None
    name: str

    @property
    def text(self) -> str:
        """Return the name with the program's, as patterns have it: ``shop:main.f``."""
        return in_program(self.program, self.name)


class CountedFunction(NamedTuple):
    """A function, as ``ProgramFunction``, and if each place has its row where it is inlined."""

    program: str | None
    name: str
    at: InlinedAt | None = None

    @property
    def text(self) -> str:
        """Return the name with the program's, as patterns have it: ``shop:main.f``."""
        return in_program(self.program, self.name)


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
    """In how many places a function of a plan is inlined, and where no probe sees all its calls.

    ``uncounted`` are the latter; None if no place has a probe.
    """

    function: str
    places: int
    uncounted: Sequence[InlinedPlace] | None = None

    @property
    def missing(self) -> int:
        """Return in how many places not all calls are seen."""
        return self.places if self.uncounted is None else len(self.uncounted)

    def text(self, verb: str) -> str:
        """Return the warning; ``verb`` is what is done with a call, in the past tense."""
        places = counted("{} place{s}", self.places)
        if self.uncounted is None:
            return f"{self.function} is also inlined in {places}: not {verb} there"
        first, *others = self.uncounted
        where = f"in {first.at.text}"
        if others:
            where = f"as {where}{said(' (-l has them all)', '')}"
        return (
            f"{self.function}: calls may be missing at {self.missing} of {places} where it is"
            f" inlined, {where}: {_why_unproven(self.reasons)}"
        )

    @property
    def reasons(self) -> dict[str, int]:
        """Return for how many places that is so, by the reason."""
        return dict(Counter(place.unproven or "" for place in self.uncounted or ()))

    @property
    def fields(self) -> dict[str, object]:
        """Return the warning's fields in JSON."""
        more = {} if self.uncounted is None else {"uncounted": self.reasons}
        return {"func": self.function, "inlined": self.places, **more}


@dataclass(frozen=True, slots=True)
class OnlyInlined:
    """Functions that patterns mean, that exist only inlined, and that no probe sees, by name.

    ``is_known``: of such programs inlined calls can be counted. ``scope`` is whose inlined calls
    were looked for.
    """

    functions: tuple[str, ...]
    is_known: bool = False
    scope: InlinedScope = InlinedScope.NONE

    @property
    def fields(self) -> dict[str, object]:
        """Return the warning's fields in JSON."""
        return {"what": "only_inlined", "names": list(self.functions)}

    def text(self, verb: str) -> str:
        """Return the warning; ``verb`` is what is done with a call, in the past tense."""
        first, many = self.functions[0], len(self.functions)
        how = f"{first} exists only inlined and is not {verb}"
        if many > 1:
            how = f"{many:,} functions exist only inlined and are not {verb}, such as {first}"
        return f"{how}{self._advice(many, verb)}"

    def _advice(self, many: int, verb: str) -> str:
        it, its = ("them", "their") if many > 1 else ("it", "its")
        if self.scope is InlinedScope.MATCHED:
            return f": no place of {it} is proven"
        if self.scope is InlinedScope.NAMED and self.is_known and verb == "shown":
            return f": give {its} whole name{'s' * (many > 1)}"
        if self.scope is InlinedScope.NAMED and self.is_known:
            return f": {said('--inlined', 'inlined=True')} counts {it}"
        if self.is_known:
            command = said("gofunccount --inlined", "count(inlined=True)")
            return f": {command} counts {its} calls"
        return ": build with -gcflags=all=-l"


def _stands_for(file: TargetBinary, row: int, name: str) -> bool:
    """Return whether a function is a wrapper of one that is inlined into it."""
    return file.functions.is_wrapper(row) and name in file.functions.inlined_into(row)


def only_inlined(
    found: Iterable[BinaryPlan], programs: _Programs, scope: InlinedScope
) -> OnlyInlined | None:
    """Return which functions that are asked for exist only inlined and are not seen, None for none.

    ``programs`` are the names of files where several programs are traced. ``scope`` says whose
    inlined calls were looked for.
    """
    names: dict[str, None] = {}
    inlined: dict[TargetBinary, InlinedCalls | None] = {}
    is_known = True
    for one in found:
        file, selector = one.binary, one.selector
        if selector is None or not any(pattern.has_wildcard for pattern in selector.patterns):
            continue
        if file not in inlined:
            inlined[file] = file.functions.inlined_by_name()
        index, rows = inlined[file], frozenset(one.rows)
        seen = one.seen_inlined
        for name in selector.only_inlined(file.functions, index.names) if index else ():
            if name in seen:
                continue
            where = index.rows(name) if index else frozenset()
            if not (where <= rows and all(_stands_for(file, row, name) for row in where)):
                names[in_program(programs.get(file), name)] = None
                is_known = is_known and counts_inlined(file)
    if not names:
        return None
    return OnlyInlined(tuple(names), is_known, scope)


def counts_inlined(file: TargetBinary) -> bool:
    """Return whether inlined calls of a file's functions can be counted, if that is proven."""
    return is_known(file.functions.go_version, file.functions.image.arch)


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """All that is to be traced, and of the functions that cannot be, why.

    ``failed`` has why each probe or pattern that comes to nothing does, where others do not: its
    request has no ``BinaryPlan`` then. ``one_program``: all files are of processes that run the
    same program. ``first`` is the number of the first function: those before it are others' in a
    program that several plans share. ``scope`` is whose inlined calls were to be seen.
    ``whole`` is the plan whose functions were split by place.
    """

    binaries: tuple[BinaryPlan, ...]
    problems: tuple[str, ...]
    failed: tuple[GotraceError, ...] = ()
    one_program: bool = True
    first: int = 0
    scope: InlinedScope = InlinedScope.NONE
    whole: ProbePlan | None = None

    @property
    def files(self) -> list[TargetBinary]:
        """Return the files that have traced functions, each once."""
        return list(dict.fromkeys(self._files()))

    def _files(self) -> Iterator[TargetBinary]:
        return (plan.binary for plan in self.binaries if plan.functions)

    @property
    def program_names(self) -> dict[TargetBinary, str]:
        """Return a name for each file if several programs are traced, else {}.

        That is the shortest end of their paths that distinguishes them.
        """
        return _program_names(self.one_program, self._files())

    @property
    def names(self) -> list[ProgramFunction]:
        """Return the functions' names, in the order in which their cookies number them."""
        programs = self.program_names
        return [
            ProgramFunction(programs[plan.binary] if programs else None, sites.function.name)
            for plan in self.binaries
            for sites in plan.functions
        ]

    @property
    def counted(self) -> list[CountedFunction]:
        """Return the functions whose calls have a row, in the order of ``names``."""
        return [
            CountedFunction(*name, one.at)
            for name, one in zip(self.names, self._every(), strict=True)
        ]

    @property
    def places(self) -> dict[CountedFunction, InlinedPlaces]:
        """Return in how many places functions are inlined whose inlined calls are counted."""
        found: dict[CountedFunction, InlinedPlaces] = {}
        for name, one in zip(self.counted, self._every(), strict=True):
            if one.places:
                found[name] = InlinedPlaces(len(one.places), len(one.uncounted))
        return found

    @property
    def functions(self) -> list[FuncInfo]:
        """Return the functions in the order in which their cookies number them."""
        return [sites.function for sites in self._every()]

    @property
    def entry_forms(self) -> list[SiteForm]:
        """Return each function's: FIRST where an entry is single-stepped, else EMULATED."""
        return [
            SiteForm.FIRST
            if any(site.form is SiteForm.FIRST for site in _entries(sites))
            else SiteForm.EMULATED
            for sites in self._every()
        ]

    @property
    def entry_form(self) -> SiteForm:
        """Return the dearest of the entries' forms."""
        return SiteForm.FIRST if SiteForm.FIRST in self.entry_forms else SiteForm.EMULATED

    @property
    def has_tail_jumps(self) -> bool:
        """Return whether a function can end by jumping to another one."""
        return any(sites.tail_jumps for sites in self._every())

    @property
    def has_only_lines(self) -> bool:
        """Return whether lines of the source are counted, and no functions."""
        return all(sites.is_line for sites in (self.whole or self)._every())

    @property
    def must_be_limited(self) -> bool:
        """Return whether a breakpoint may be in no other process than the target's."""
        return any(sites.is_hashed for sites in self._every())

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
        """Return the probes of an attached plan that the kernel refused, and why."""
        if not failed:
            return []
        every, names = list(self._every()), self.names
        refused = []
        for point, error in failed.items():
            number = (point.cookie & COOKIE_INDEX_MASK) - self.first
            sites = every[number] if 0 <= number < len(every) else None
            text = f"no probe at {point.address:#x}: {refusal(error)}"
            entries = {one.address for one in _entries(sites)} if sites else set()
            is_entry = point.address in entries
            if sites and (is_entry or sites.function.entry <= point.address < sites.function.end):
                refused.append(Refused(names[number].text, text, is_entry))
            else:  # the runtime is watched as well
                refused.append(Refused(None, text, False))
        return refused

    def inlined(self) -> list[Inlined]:
        """Return which functions are also inlined, most often first; of few functions only."""
        if self.whole is not None:
            return self.whole.inlined()
        programs = self.program_names
        (found,) = also_inlined([self.binaries], programs)
        partly = {}
        for plan in self.binaries:
            for sites in plan.functions:
                if sites.places:
                    name = in_program(programs.get(plan.binary), sites.function.name)
                    partly[name] = sites.uncounted
        counted = [replace(one, uncounted=partly.get(one.function)) for one in found]
        return [one for one in counted if one.uncounted is None or one.uncounted]

    def only_inlined(self) -> OnlyInlined | None:
        """Return which functions that are asked for exist only inlined, None for none."""
        return only_inlined(self.binaries, self.program_names, self.scope)

    def _every(self) -> Iterator[FunctionSites]:
        return (sites for plan in self.binaries for sites in plan.functions)

    def entry_groups(self, program: str, pid: int, task: TaskOf = _any_task) -> list[ProbeGroup]:
        """Return one group a file that runs the BPF function ``program`` at the entry sites.

        ``task`` says how the program finds which task calls a function, where it needs that.
        """
        return self._groups(program, pid, task, _entries)

    def return_groups(
        self,
        program: str,
        pid: int,
        task: TaskOf = _any_task,
        only: Container[int] | None = None,
    ) -> list[ProbeGroup]:
        """Return one group a file that runs the BPF function ``program`` at the RETs.

        ``only`` are the numbers of the functions whose RETs are wanted, None for all.
        """
        wanted = [
            sites.returns if only is None or number in only else ()
            for number, sites in enumerate(self._every(), self.first)
        ]
        returns = iter(wanted)
        return self._groups(program, pid, task, lambda sites: next(returns))

    def numbered(self) -> Iterator[tuple[int, BinaryPlan, FunctionSites]]:
        """Yield each function's number, with its file."""
        number = self.first
        for plan in self.binaries:
            for sites in plan.functions:
                yield number, plan, sites
                number += 1

    def faults(self) -> list[Faults]:
        """Return where calls end by a nil pointer before their entry sites, for each file."""
        by_file: dict[TargetBinary, dict[int, int]] = {}
        for number, plan, sites in self.numbered():
            for address in sites.entry.faults if sites.entry else ():
                by_file.setdefault(plan.binary, {})[address] = number
        found = []
        for distance, (file, counters) in enumerate(by_file.items(), self.first):
            index = COOKIE_INDEX_MASK - distance  # above those of all functions
            site = _fault_site(file)
            assert site is not None, "Selected.sites chooses other entries then"
            # If that function is counted itself, one cookie serves both, so that it can be looked
            # up by its address.
            same = (
                number
                for number, plan, sites in self.numbered()
                if plan.binary is file and sites.entry is not None and sites.entry == site
            )
            found.append(Faults(file, site, next(same, index), counters))
        return found

    def fault_groups(self, program: str, pid: int) -> list[ProbeGroup]:
        """Return one group a file that runs the BPF function ``program`` where faults lead to."""
        groups = []
        for each in self.faults():
            file, image = each.binary, each.binary.image
            address = each.site.address
            point = Point(image.offset_of(address), address, cookie(each.index, each.site))
            path, name = file.attach_path, image.display
            groups.append(ProbeGroup(program, path, name, [point], file.bias, pid, image.identity))
        return groups

    def _groups(
        self,
        program: str,
        pid: int,
        task: TaskOf,
        chosen: Callable[[FunctionSites], Iterable[Site | None]],
    ) -> list[ProbeGroup]:
        groups, start = [], self.first
        for plan in self.binaries:
            image = plan.binary.image
            entries = {sites.function.entry for sites in plan.functions}
            points = []
            for number, sites in enumerate(plan.functions, start):
                kind, file = task(plan.binary, sites.function)
                jumps = _jumps(sites, entries)
                for site in chosen(sites):
                    if site is None:
                        continue
                    at = cookie(number, site, kind, jumps, file)
                    points.append(Point(image.offset_of(site.address), site.address, at))
            path, bias = plan.binary.attach_path, plan.binary.bias
            groups.append(
                ProbeGroup(program, path, image.display, points, bias, pid, image.identity)
            )
            start += len(plan.functions)
            if start > COOKIE_INDEX_MASK:
                raise GotraceError(f"more than {COOKIE_INDEX_MASK:,} functions: leave out some")
        return groups


def also_inlined(plans: Sequence[Sequence[BinaryPlan]], programs: _Programs) -> list[list[Inlined]]:
    """Return the result of ``ProbePlan.inlined`` for each of some plans: one search for a file."""
    places: list[Counter[str]] = [Counter() for _ in plans]
    wanted: dict[int, tuple[TargetBinary, dict[str, list[tuple[int, Container[int]]]]]] = {}
    for number, plan in enumerate(plans):
        for file in plan:
            table, names = file.binary.functions, {one.function.name for one in file.functions}
            if len(names) <= _MAX_LOOKED_UP:
                for row in filter(table.is_wrapper, file.rows):
                    names |= {name for name in table.inlined_into(row) if file.means(name)}
                _, by_name = wanted.setdefault(id(file.binary), (file.binary, {}))
                own = number, frozenset(file.rows)
                for name in names:
                    by_name.setdefault(name, []).append(own)
    for binary, by_name in wanted.values():
        program = programs.get(binary) if programs else None
        for call in binary.functions.inlined_calls(by_name.keys()):
            for number, rows in by_name.get(call.name, ()):
                if call.row not in rows or not _stands_for(binary, call.row, call.name):
                    places[number][in_program(program, call.name)] += 1
    return [[Inlined(name, count) for name, count in one.most_common()] for one in places]


def _program_names(one_program: bool, found: Iterable[TargetBinary]) -> dict[TargetBinary, str]:
    files = [] if one_program else list(dict.fromkeys(found))
    if len(files) < 2:
        return {}
    paths = {file: file.image.display.split("/") for file in files}
    return {file: _distinct(file, [paths[f] for f in files if f is not file]) for file in files}


def _distinct(file: TargetBinary, others: Sequence[Sequence[str]]) -> str:
    """Return the shortest end of a file's path that ``others``, paths in parts, do not have.

    Of files with the same path, one of which was replaced or is in another container, that is the
    last part, and a process that runs it.
    """
    path = file.image.display.split("/")
    for length in range(1, len(path) + 1):
        end = path[-length:]
        if all(list(other[-length:]) != end for other in others):
            return "/".join(end)
    return f"{path[-1]}[{file.found_in}]"


def _jumps(sites: FunctionSites, traced: Container[int]) -> Jumps:
    """Return how a function's calls can end; ``traced`` are entries of functions in its file."""
    if not sites.tail_jumps:
        return Jumps.NONE
    is_indirect = len(sites.jumps_to) < sites.tail_jumps
    return Jumps.TRACED if is_indirect or any(t in traced for t in sites.jumps_to) else Jumps.AWAY


#: Splits a binary from a pattern.
Split = Callable[[str], tuple[str | None, str]]


def splitting(target: Target) -> Split:
    """Return a function that splits the binary from the pattern for a target.

    The word before the colon may be what one of its programs is called. Absolute paths may also be
    those of the process, where it is one.
    """
    command = target.command
    processes = () if command else target.watched

    def which(name: str) -> str | None:
        if any(process.is_called(name) for process in processes):
            return name
        if command and ends_so(command.path, name):
            return name
        return shutil.which(name)

    exists = file_test(processes[0].tgid if len(processes) == 1 else None)

    def split(text: str) -> tuple[str | None, str]:
        try:
            return split_target(text, exists, which)
        except NoFileError as error:
            if running := processes_called(error.file):
                numbers = ",".join(map(str, running))
                typed = said(f"-p {numbers}", f"attach({numbers})") + f" {quote(error.pattern)}"
                runs = "process that runs" if len(running) == 1 else "processes that run"
                raise UsageError(
                    f"no file {quote(error.file)} here: type {typed} for the {runs} one"
                ) from error
            raise

    return split


def requests_for(
    patterns: Iterable[str],
    exclude: Iterable[str] = (),
    regexp: bool = False,
    file: str | None = None,
    split: Split = split_target,
) -> list[BinaryRequest]:
    """Group patterns by the file that each names, as ``split`` says, or else ``file``.

    Raises UsageError.
    """
    by_file: dict[str | None, list[str]] = {}
    lines: dict[str | None, list[LineWord]] = {}
    for text in patterns:
        if not regexp and (found := parse_lines(text, split)) is not None:
            lines.setdefault(found[0] or file, []).append(found[1])
            continue
        named, pattern = split(text)
        by_file.setdefault(named or file, []).append(pattern)
    excluded = list(exclude)
    return [
        BinaryRequest(name, Selector(group, excluded, regex=regexp))
        for name, group in by_file.items()
    ] + [BinaryRequest(name, Selector(()), lines=tuple(words)) for name, words in lines.items()]


def plan_counting(
    target: Target,
    requests: Sequence[BinaryRequest],
    inlined: InlinedScope = InlinedScope.NONE,
) -> ProbePlan:
    """Return the plan for counting calls; raises as ``make_plan`` does, ``inlined`` is as there."""
    return once(make_plan(target, requests, False, "count", values=False, inlined=inlined))


#: Why nothing is usable of what a pattern matches, if nothing else says so.
_UNSEEN = "it exists only inlined, and no place is known where its calls are certainly seen"


def _with_inlined(
    selected: Selected, usable: list[FunctionSites], proofs: InlinedSites
) -> tuple[list[FunctionSites], list[str]]:
    """Return functions with the inlined calls that are selected, those only inlined last.

    The second part has why none of a function's calls can be counted, if it is spelled out.
    """
    selector, table = selected.selector, selected.binary.functions
    only = selected.only_inlined() if selected.inlined else []
    wanted = selected.inlined.intersection(one.function.name for one in usable).union(only)
    if not wanted:
        return usable, []
    rows = frozenset(selected.rows)
    calls = [
        call
        for call in table.inlined_calls(wanted)
        if call.row not in rows or not _stands_for(selected.binary, call.row, call.name)
    ]
    by_name: dict[str, list[InlinedPlace]] = {}
    for call, found in zip(calls, proofs.of(calls), strict=True):
        at = InlinedAt(call.caller, call.file, call.line)
        why = None if found.unproven is None else found.unproven.value
        by_name.setdefault(call.name, []).append(
            InlinedPlace(at, found.site, why, call.row, call.index)
        )
    for call in untraced(table, calls):
        at, why = InlinedAt(call.caller, call.file, call.line), Unproven.NO_TRACE.value
        by_name[call.name].append(InlinedPlace(at, None, why, call.row))
    functions, unseen = [], []
    for one in usable:  # of two rows of a name one has the places
        places = tuple(by_name.pop(one.function.name, ()))
        functions.append(replace(one, places=places))
    rows_of = {call.name: call.row for call in reversed(calls)}
    for name in only:
        places = tuple(by_name[name])
        if sites := _inlined_sites(name, rows_of[name], places):
            functions.append(sites)
        elif selector.spells(name):
            why = _why_unproven(Counter(place.unproven for place in places if place.unproven))
            many = counted("{} place{s}", len(places))
            unseen.append(
                f"{name} exists only inlined, in {many}, where no call can be seen: {why};"
                f" build with -gcflags=all=-l to {selected.verb} it"
            )
    return functions, unseen


def _inlined_sites(
    name: str, row: int, places: tuple[InlinedPlace, ...], at: InlinedAt | None = None
) -> FunctionSites | None:
    """Return the sites of inlined calls alone, None if there are none; see ``FunctionSites``."""
    first = next((place.site for place in places if place.site is not None), None)
    if first is None:
        return None
    function = FuncInfo(name, first.address, first.address + 1, row, Origin.PCLNTAB)
    return FunctionSites(function, first, (), None, places=places, at=at)


def by_place(plan: ProbePlan, each: bool = False) -> ProbePlan:
    """Return the plan with functions of their own for each place where one is inlined.

    With ``each`` two places of one line are two.
    """
    binaries = []
    for file in plan.binaries:
        functions: list[FunctionSites] = []
        for one in file.functions:
            if one.entry not in one.inlined:
                functions.append(replace(one, places=()))
            copies: dict[InlinedAt | InlinedPlace, list[InlinedPlace]] = {}
            for place in one.places:
                copies.setdefault(place if each else place.at, []).append(place)
            name, row = one.function.name, one.function.row
            for places in copies.values():
                if sites := _inlined_sites(name, row, tuple(places), places[0].at):
                    functions.append(replace(sites, is_line=one.is_line))
        binaries.append(replace(file, functions=tuple(functions)))
    return replace(plan, binaries=tuple(binaries), whole=plan)


def _why_unproven(reasons: Mapping[str, int]) -> str:
    """Return why places are not proven, with their numbers if there are several reasons."""
    texts = {Unproven(reason).text: count for reason, count in reasons.items()}
    return ", ".join(f"{text} ({n})" if len(texts) > 1 else text for text, n in texts.items())


def with_places(plan: ProbePlan) -> ProbePlan:
    """Return the plan with a function of its own for each inlined call that is seen, if any is."""
    if not any(sites.places for file in plan.binaries for sites in file.functions):
        return plan
    return replace(by_place(plan, each=True), whole=once(plan))


def plan_measuring(target: Target, requests: Sequence[BinaryRequest]) -> ProbePlan:
    """Return the plan for measuring calls; raises as ``make_plan`` does."""
    return measurable(once(make_plan(target, requests, returns=True, verb="measure", values=False)))


def select(
    target: Target,
    requests: Sequence[BinaryRequest],
    verb: str,
    inlined: InlinedScope = InlinedScope.NONE,
) -> Selections:
    """Select functions in the target's files.

    ``verb`` is what the tool does to a function, for messages; ``inlined`` as for
    ``Selector.select``. Raises NoMatchError, ElfError or UsageError where no request selects
    anything.
    """
    selected: list[Selected] = []
    failed: list[tuple[int, GotraceError]] = []
    notes: list[str] = []
    for number, request in enumerate(requests):
        try:
            binaries = target.binaries(request.name)
            for binary in binaries:
                binary.image.hash_is_over = target.never_hashes(binary.image)
            if len(binaries) > 1 or request.lines:
                found = _in_several(number, binaries, request, verb, inlined)
                selected += found.selected
                failed += [(number, error) for error in found.failed]
                notes += found.notes
                continue
            selection = request.selector.select(binaries[0].functions, verb=verb, inlined=inlined)
        except GotraceError as error:
            failed.append((number, error))
            continue
        notes += _standing_in(binaries[0], selection)
        selected.append(
            Selected(
                number,
                binaries[0],
                selection.rows,
                request.selector,
                verb,
                selection.inlined,
            )
        )
        failed += [(number, NoMatchError(text)) for text in selection.unmatched]
    libraries = target.libraries() if any(request.name is None for request in requests) else []
    others = target.linked() if failed and not target.has_started else libraries
    if not selected:
        raise _with_others(failed[0][1], target, requests[failed[0][0]], others)
    failed = [
        (number, _with_others(error, target, requests[number], others)) for number, error in failed
    ]
    notes += _foreign(one.binary for one in selected)
    said = " ".join(str(error) for _, error in failed)
    notes += _copies(requests, selected, libraries, said)
    reported = _not_excused(failed, requests, (one.request for one in selected))
    return Selections(tuple(selected), tuple(reported), tuple(notes), target.is_one_program)


def _rows_by_words(
    request: BinaryRequest, patterns: Iterable[Pattern], file: TargetBinary
) -> dict[str, set[int]]:
    """Return the functions that patterns select in a file, by the words that select them there."""
    found: dict[str, set[int]] = {}
    for pattern in patterns:
        with suppress(GotraceError):
            rows = request.selector.only([pattern]).select(file.functions, verb="").rows
            text = request.group or pattern.text
            found.setdefault(quote(f"{file.image.display}:{text}"), set()).update(rows)
    return found


def _copies(
    requests: Iterable[BinaryRequest],
    selected: Sequence[Selected],
    libraries: Iterable[TargetBinary],
    said: str,
) -> Iterator[str]:
    """Yield a line for each library that has functions which are looked for in the program only.

    ``said`` has what there is to be typed for those that the program lacks.

    The code of a plugin calls the copies that its own file has of what it shares with its program.
    """
    for library in libraries:
        known = {row for one in selected if one.binary is library for row in one.rows}
        words: dict[str, set[int]] = {}
        for request in requests:
            if request.name is None:
                patterns = request.selector.patterns
                for text, rows in _rows_by_words(request, patterns, library).items():
                    words.setdefault(text, set()).update(() if text in said else rows - known)
        if many := len(set().union(*words.values())):
            typed = " ".join(text for text, rows in words.items() if rows)
            functions = counted("{} function{s}", many)
            yield f"{library.image.display} has {functions} of such names, not seen: add {typed}"


def _with_others(
    error: GotraceError, target: Target, request: BinaryRequest, libraries: Iterable[TargetBinary]
) -> GotraceError:
    """Return why a request came to nothing, with what has the functions.

    That is a library, or another process.
    """
    if not isinstance(error, (NoMatchError, ElfError)) or request.name is not None:
        return error
    programs = target.binaries(None)
    missing = [
        pattern
        for pattern in request.selector.patterns
        if not any(_rows_by_words(request, [pattern], program) for program in programs)
    ]
    found, hints = set[str](), ""
    command = target.command if missing and not request.selector.excludes else None
    if command and (hints := _built_first(command.arguments)):
        found.update(one.text for one in missing)
    for library in libraries:
        words: dict[str, set[int]] = {}
        for pattern in missing:
            if here := _rows_by_words(request, [pattern], library):
                found.add(pattern.text)
                words |= here
        if words:
            hints += f"; {library.image.display} has: type {' '.join(words)}"

    def has_them(program: TargetBinary) -> bool:
        here = {one.text for one in missing if _rows_by_words(request, [one], program)}
        found.update(here)
        return bool(here)

    which = request.group or len(missing) == 1
    hints += target.started(has_them, "has it" if which else "has them")
    if len(programs) > 1 or not hints or len(found) < (1 if request.group else len(missing)):
        return type(error)(f"{error}{hints}")
    from gotrace.probes.scope import listed  # few runs need it

    # The program's functions of similar names are not meant.
    (program,) = programs
    where = program.image.display
    where += "" if _is_go(program) else ", which is not a Go program"
    names = [quote(request.group or one.text) for one in missing]
    return NoMatchError(
        f"no function matches {listed(list(dict.fromkeys(names)))} in {where}{hints}"
    )


def _built_first(command: Sequence[str]) -> str:
    """Return the advice for a command of Go's own that starts a program; "" for others."""
    name, subcommand, *words = [*command, "", ""]
    build = {"run": "go build -o x", "test": "go test -c -o x"}.get(subcommand)
    if os.path.basename(name) != "go" or build is None:
        return ""
    sources = list(takewhile(lambda word: word.endswith(".go"), words)) or words[:1]
    is_one = not sources[0].startswith("-") and "..." not in sources[0]
    package = shlex.join(filter(None, sources)) if is_one else "PACKAGE"
    typed, run = f"{build} {package}".strip(), said("-- ./x", "start('./x')")
    return f": go {subcommand} builds and starts another program: type {typed}, then {run}"


def _is_go(file: TargetBinary) -> bool:
    """Return whether Go's compiler, or gccgo, made a file, as far as that can be seen."""
    with suppress(ElfError):
        return file.functions.is_go
    return False


def _foreign(files: Iterable[TargetBinary]) -> Iterator[str]:
    """Yield a line for each program that is not Go's; its functions can be traced all the same."""
    for file in dict.fromkeys(files):
        if not (file.functions.is_go or file.image.is_shared_library):
            path = file.image.display
            yield f"{path} is not a Go program: its functions are those of its symbols"


@dataclass(slots=True)
class _Found:
    """The functions that one request selects in several programs."""

    selected: list[Selected] = field(default_factory=list)
    failed: list[GotraceError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _in_several(
    number: int,
    binaries: Sequence[TargetBinary],
    request: BinaryRequest,
    verb: str,
    inlined: InlinedScope,
) -> _Found:
    """Look a request's patterns, or lines, up in programs: each has to be in one of them."""
    found, selector = _Found(), request.selector
    if request.lines and verb != "count":
        text = quote(request.lines[0].text)
        raise UsageError(f"{text} is a line: give the function that it is in, or type gofunccount")
    matching: dict[TargetBinary, list[Pattern]] = {binary: [] for binary in binaries}
    lines: dict[TargetBinary, list[SelectedLines]] = {binary: [] for binary in binaries}
    for word in request.lines or selector.patterns:
        missing: list[tuple[TargetBinary, NoMatchError]] = []
        for binary in binaries:
            try:
                if isinstance(word, LineWord):
                    chosen = select_lines(binary.functions, word).without(lines[binary])
                    lines[binary] += [chosen] if chosen.lines else []
                else:
                    selector.only([word]).select(binary.functions, verb=verb, inlined=inlined)
                    matching[binary].append(word)
            except NoMatchError as error:
                missing.append((binary, error))
            except GotraceError as error:
                found.failed.append(error)
        if len(missing) == len(binaries):
            found.failed.append(NoMatchError("; ".join(str(error) for _, error in missing)))
        elif isinstance(word, LineWord):
            found.notes += (str(error) for _, error in missing)
        elif missing and request.group is None:
            where = ", ".join(binary.image.display for binary, _ in missing)
            found.notes.append(f"no function matches {quote(word.text)} in {where}")
    for binary in binaries:
        if several := tuple(lines[binary]):
            found.selected.append(Selected(number, binary, (), selector, verb, lines=several))
        if patterns := matching[binary]:
            chooser = selector.only(patterns)
            selection = chooser.select(binary.functions, verb=verb, inlined=inlined)
            found.selected.append(
                Selected(number, binary, selection.rows, selector, verb, selection.inlined)
            )
            found.notes += _standing_in(binary, selection)
    return found


def _standing_in(binary: TargetBinary, selection: Selection) -> Iterator[str]:
    """Yield a line if calls are seen in wrappers that their functions are inlined into."""
    names = binary.functions.names
    pairs = [(name, names[row]) for row, name in selection.stand_ins.items()]
    if len(pairs) == 1:
        ((method, wrapper),) = pairs
        yield f"{method} is inlined into its wrapper: its calls there are those of {wrapper}"
    elif pairs:
        method, wrapper = pairs[0]
        text = f"{len(pairs):,} wrappers stand for functions that are inlined into them"
        yield f"{text}, such as {wrapper} for {method}"


def to_be_traced(sites: FunctionSites) -> Verdict:
    """Return whether a function's calls can be seen: it needs an entry site."""
    return Verdict(sites.entry is not None, (sites.problem,) if sites.problem else ())


def make_plan(
    target: Target,
    requests: Sequence[BinaryRequest],
    returns: bool,
    verb: str,
    values: bool = True,
    inlined: InlinedScope = InlinedScope.NONE,
) -> ProbePlan:
    """Select functions in the target's files and choose their sites, with RETs if asked for.

    ``verb`` is what the tool does to a function, for messages; ``values``: it reads arguments;
    ``inlined`` says whose inlined calls it sees.
    A request that selects nothing, or nothing that can be probed, is among the plan's ``failed``
    where others do. Raises NoMatchError, ElfError or UsageError where none does.
    """
    found = select(target, requests, verb, inlined)
    plans: list[BinaryPlan] = []
    problems: list[str] = list(found.notes)
    unusable: list[tuple[int, GotraceError]] = []
    usable_requests = []
    kept_out: Counter[TargetBinary] = Counter()
    proven: dict[TargetBinary, InlinedSites] = {}
    for selected in found.selected:
        reasons: list[str] = []
        hashed: list[str] = []
        usable = []
        proofs = proven.setdefault(selected.binary, InlinedSites(selected.binary.functions))
        for sites in selected.sites(returns, values, proofs):
            verdict = to_be_traced(sites)
            if verdict.usable:
                usable.append(sites)
            if sites.is_hashed and not verdict.usable:
                hashed += verdict.problems
            else:
                reasons += verdict.problems
        if selected.lines:
            reasons += partly_counted(usable)
        elif inlined is not InlinedScope.NONE:
            proofs.take(site.address for one in usable for site in _entries(one))
            usable, unseen = _with_inlined(selected, usable, proofs)
            reasons += unseen
        if usable:
            kept_out[selected.binary] += len(hashed)
            plans.append(
                BinaryPlan(selected.binary, tuple(usable), selected.request, selected.selector)
            )
            usable_requests.append(selected.request)
            problems += reasons
        else:
            why = next(iter((*reasons, *hashed)), _UNSEEN)
            if selected.lines:
                why += selected.lines[0].nearest(selected.binary.functions)
            unusable.append((selected.request, selected.nothing_usable(verb, why)))
    if not plans:
        raise [*found.failed, *(error for _, error in unusable)][0]
    problems[:0] = [_kept_out(file, count) for file, count in kept_out.items() if count]
    problems += [str(error) for number, error in unusable if number in usable_requests]
    unusable = [(number, error) for number, error in unusable if number not in usable_requests]
    failed = (*found.failed, *_not_excused(unusable, requests, usable_requests))
    return ProbePlan(tuple(plans), tuple(problems), failed, found.one_program, scope=inlined)


def _kept_out(file: TargetBinary, count: int) -> str:
    functions = counted("{:,} function{s}", count)
    return f"{functions} of {file.image.display} left out: {HASHED}"


def once(plan: ProbePlan) -> ProbePlan:
    """Return the plan without functions of earlier requests, of the same file by any name.

    Two probes in one place would both count a call.
    """
    seen: set[FunctionKey] = set()
    binaries = []
    for file_plan in plan.binaries:
        kept = []
        for sites in file_plan.functions:
            key = file_plan.key(sites)
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
    unmeasured: list[tuple[int, str]] = []
    for binary in plan.binaries:
        kept: list[FunctionSites] = []
        before = len(problems)
        for sites in binary.functions:
            verdict = to_be_measured(sites)
            problems += verdict.problems
            if verdict.usable:
                kept.append(sites)
        if binary.functions and not kept:
            unmeasured.append((binary.request, problems.pop(before)))
        binaries.append(replace(binary, functions=tuple(kept)))
    measured = {binary.request for binary in binaries if binary.functions}
    for request, problem in unmeasured:
        if request in measured:  # of another program
            problems.append(problem)
        else:
            failed.append(NoMatchError(problem))
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
