# SPDX-License-Identifier: Apache-2.0
"""Choose where a function is probed: one entry site, reached exactly once per call, and its RETs.

A Go function's first instruction is executed again whenever its stack had to grow or it was
asked to yield: ``runtime.morestack`` ends in a jump back to the entry. A probe there counts such
calls twice, and costs a single step besides. So the entry site is in or after the stack check
wherever one is recognised, on an instruction that the kernel emulates wherever there is one. At
every site g is as the caller left it, and so are the registers that carry arguments (int, float,
closure context), unless that is not asked for.

The rules of each architecture are in `amd64` and `arm64`.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import NamedTuple

from gotrace.architecture import Architecture
from gotrace.elf import ElfError
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.elf.image import ElfImage
from gotrace.records import dataclass
from gotrace.sites.hashed import HASHED, is_hashed, is_kept_out
from gotrace.sites.machine import machine_code
from gotrace.sites.records import MAX_SIZE, SiteError, SiteForm

_WORD, _OFFSET = 8, 4  # bytes of an address, and of an offset in a table


class SiteKind(Enum):
    """The meaning of a hit at a site."""

    ENTRY = "entry"
    RET = "ret"


@dataclass(frozen=True, slots=True)
class Site:
    """One place to probe.

    ``address`` is a link-time virtual address. The stack pointer at the site plus ``sp_offset``
    is the stack pointer at the function's entry. ``faults`` are the addresses of instructions
    before it that access memory by a pointer, which may be nil: a call that panics there never
    comes to the site.
    """

    address: int
    kind: SiteKind
    form: SiteForm
    sp_offset: int
    faults: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Returns:
    """A function's RETs in address order, and how many jumps leave it without a RET.

    A call that ends in such a tail jump is never seen to return from this function: the RET
    that ends it belongs to the function jumped to. ``jumps_to``: the addresses that the direct ones
    of them lead to.
    """

    sites: tuple[Site, ...]
    tail_jumps: int
    jumps_to: tuple[int, ...] = ()


class InlinedAt(NamedTuple):
    """A place in the source where a function is called and inlined."""

    caller: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """Return the place with the last part of the file's name."""
        return f"{self.caller} at {self.position.rpartition('/')[2]}"

    @property
    def position(self) -> str:
        """Return the file and the line."""
        return f"{self.file}:{self.line}"


class InlinedPlace(NamedTuple):
    """Where a function is inlined: the site of its calls there, and why it may not see all.

    ``row`` is the function whose code it is in, and ``record`` its number in that one's tree.
    """

    at: InlinedAt
    site: Site | None
    unproven: str | None
    row: int = -1
    record: int = -1


@dataclass(frozen=True, slots=True)
class FunctionSites:
    """All sites of one function.

    ``entry`` is None and ``returns`` empty where ``problem`` says why. In a function that
    consists of a single RET, ``entry`` (form FIRST) and the one of ``returns`` have the same
    address: a prober needs both there, the entry to be handled first. ``is_hashed``: a program in
    FIPS mode hashes the function's code. ``places`` are where the function is inlined. ``at``
    is the place that these are copies of, None for those of any. ``is_line``: they are those of a
    line of the source.
    """

    function: FuncInfo
    entry: Site | None
    returns: tuple[Site, ...]
    problem: str | None
    tail_jumps: int = 0
    jumps_to: tuple[int, ...] = ()
    is_hashed: bool = False
    places: tuple[InlinedPlace, ...] = ()
    at: InlinedAt | None = None
    is_line: bool = False

    @property
    def inlined(self) -> tuple[Site, ...]:
        """Return the sites of inlined calls that are seen as well."""
        return tuple(place.site for place in self.places if place.site is not None)

    @property
    def uncounted(self) -> tuple[InlinedPlace, ...]:
        """Return the places where not all inlined calls may be seen."""
        return tuple(place for place in self.places if place.unproven is not None)


#: Entered in the middle, at an offset that the compiler computes from the size.
_NO_SINGLE_ENTRY = frozenset({"runtime.duffzero", "runtime.duffcopy"})


def function_sites(
    image: ElfImage,
    function: FuncInfo,
    returns: bool,
    values: bool = True,
    at_rets: bool = False,
    stack: bool = True,
) -> FunctionSites:
    """Choose the entry site of ``function`` and, with ``returns``, find its RETs too.

    ``values``, ``at_rets`` and ``stack`` are as for ``entry_site``. Never raises: ``problem`` says
    what is missing.
    """
    entry: Site | None = None
    found = Returns((), 0)
    problems = []
    hashed = is_hashed(image, function.entry, function.end)
    if hashed and is_kept_out(image, function.entry, function.end):
        text = f"{function.name}: cannot be probed: {HASHED}"
        return FunctionSites(function, None, (), text, is_hashed=True)
    try:
        code = image.read(function.entry, max(0, function.end - function.entry))
    except ElfError as error:
        return FunctionSites(function, None, (), f"{function.name}: {error}")
    try:
        entry = entry_site(code, function, image.arch, values, at_rets, stack)
        way_back = (
            None if entry.form is SiteForm.BRANCH else _way_back(image, code, entry, function)
        )
        if way_back is not None:
            entry = None
            problems.append(f"{function.name}: no exact entry site: {way_back}")
    except SiteError as error:
        problems.append(str(error))
    if returns:
        try:
            found = return_sites(code, function, image.arch)
        except SiteError as error:
            problems.append(str(error))
    problem = "; ".join(problems) if problems else None
    jumps = found.tail_jumps, found.jumps_to
    return FunctionSites(function, entry, found.sites, problem, *jumps, hashed)


def _way_back(image: ElfImage, code: bytes, site: Site, function: FuncInfo) -> str | None:
    """Return how a jump to a computed place may lead to a site, or before it; None if it cannot.

    Of Go's compiler all tables are known: pointers to places in the function, addressed by the
    code, or with dynamic linking by the global offset table. C has other ways as well; the
    prologue, to which no compiler jumps back, is the one that is safe from them all.
    """
    machine = machine_code(image.arch)
    is_go = function.origin is Origin.PCLNTAB
    has_loads = not is_go or image.is_shared_library
    places = machine.jump_tables(code, function.entry, has_loads)
    if not is_go and not image.is_pie and not image.is_shared_library:
        places = itertools.chain(places, machine.fixed_tables(code))
    addresses = is_known = False
    for place in places:
        if function.entry <= place <= site.address:
            return "a computed jump may lead back to its beginning"
        try:
            pointer = int.from_bytes(image.read_relocated(place, _WORD), "little")
        except ElfError:
            continue
        addresses = True
        tables = [_targets(image, function, place)]
        if has_loads:
            tables.append(_targets(image, function, pointer))
        if not is_go:
            tables.append(_targets(image, function, place, relative=True))
        for targets in tables:
            if any(target <= site.address for target in targets):
                return "a jump table leads back to its beginning"
            is_known |= bool(targets)
    if is_go or is_known or not addresses:
        return None
    if machine.is_prologue(code, site.address - function.entry) or not machine.jumps_by_table(code):
        return None
    return "a computed jump may lead back to its beginning"


def _targets(image: ElfImage, function: FuncInfo, table: int, relative: bool = False) -> list[int]:
    """Return the places in a function that a table has: pointers, or offsets from the table.

    A table has two at least: one pointer to a function may be the function's value.
    """
    size = _OFFSET if relative else _WORD
    found: list[int] = []
    for at in itertools.count(table, size):
        try:
            word = int.from_bytes(image.read_relocated(at, size), "little", signed=relative)
        except ElfError:
            break
        target = table + word if relative else word
        if not function.entry <= target < function.end:
            break
        found.append(target)
    return found if len(found) > 1 else []


def entry_site(
    code: bytes,
    function: FuncInfo,
    arch: Architecture,
    values: bool = True,
    at_rets: bool = False,
    stack: bool = True,
) -> Site:
    """Choose the site that is reached exactly once in each call of ``function``.

    ``code`` holds the function's bytes from entry to end. With ``values`` registers that carry
    arguments are there as at the entry, and with ``stack`` so are arguments on the stack. Where
    calls are only counted or measured, that need not be, and more functions have a cheap site;
    still more with ``at_rets``, where calls are only counted and the kernel emulates RETs. Raises
    SiteError without such a site, or where the kernel would refuse it.
    """
    if not code:
        raise SiteError(f"{function.name}: it has no code at {function.entry:#x}")
    if function.name in _NO_SINGLE_ENTRY:
        raise SiteError(f"{function.name}: no exact entry site: callers jump into its middle")
    chosen = machine_code(arch).entry(code, function, values, at_rets, stack)
    address = function.entry + chosen.offset
    faults = tuple(function.entry + at for at in chosen.faults)
    return Site(address, SiteKind.ENTRY, chosen.form, chosen.sp_offset, faults)


def return_sites(code: bytes, function: FuncInfo, arch: Architecture) -> Returns:
    """Find every RET of ``function``, whose bytes from entry to end are ``code``.

    Raises SiteError when some of it cannot be decoded: a list with gaps would be a guess.
    """
    if len(code) > MAX_SIZE:
        raise SiteError(f"{function.name}: too large to be decoded ({len(code)} bytes): entry only")
    machine = machine_code(arch)
    found = machine.exits(code)
    if found.undecodable is not None:
        where = function.entry + found.undecodable
        raise SiteError(f"{function.name}: cannot be decoded at {where:#x}: entry only")
    sites = (Site(function.entry + at, SiteKind.RET, SiteForm.RET, 0) for at in found.returns)
    jumps_to = tuple(function.entry + target for target in found.targets)
    return Returns(tuple(sites), found.tail_jumps, jumps_to)
