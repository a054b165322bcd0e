# SPDX-License-Identifier: Apache-2.0
"""End calls at the landings of their return addresses instead of at RETs (bpf/landings.h).

Every function begins with probes at its RETs, by which calls are measured from the first one on. A
function *moves* in steps, none of which loses a call:

1. Where it is called directly is found in the program's code, and the landings of these return
   addresses. From then on the kernel counts the calls of each, and reports each return address that
   has no landing. No landing has a probe yet: each call would cost a hit more.
2. Once no such address has been reported for a while, and no task has a call open from before the
   function began to learn, the landings get probes. Then calls with unknown return addresses are
   not opened any more, but counted as calls of new callers.
3. The probes at the function's RETs are removed.

With ``auto``, a function moves if the kernel emulates the landings of most of its calls. If many
calls of new callers come, or if a landing is hit more often without a call's end than with one, the
RETs are probed again, the probes at landings are removed, and the function goes on to learn.
"""

from __future__ import annotations

import math
import struct
import time
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice

from gotrace.elf import ElfError
from gotrace.errors import GotraceError, said
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import Attached, Point, ProbeGroup
from gotrace.kernel.cookie import COOKIE_INDEX_MASK, fault_cookie, landing_cookie
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.program import BpfProgram
from gotrace.records import dataclass, replace
from gotrace.session.choices import ReturnMode
from gotrace.session.open_calls import STACK_EPOCH, STACK_LATEST
from gotrace.session.probing import Move, Places, Prepared
from gotrace.sites.landings import Callers, Landing
from gotrace.sites.records import SiteError
from gotrace.sites.sites import FunctionSites
from gotrace.sites.unwind import fault_site


class Way(Enum):
    """How a function's calls are seen to return; the values are those of enum way."""

    RETS = 0
    LEARNING = 1
    LANDINGS = 2


#: Functions that can move: of more, the run is about counts rather than each one's time.
MAX_FUNCTIONS = 1000
#: Callers that can have a landing: functions with more keep their RETs.
_MAX_LANDINGS = 20_000
_MAX_OF_MANY = 1_000
_MAX_CALLERS = 5_000  # of one function
_MAX_REPORTED = 500  # callers that get landings in one look, which takes a tenth of a second
_MAX_SHARED = 4095  # landings that other ways lead to

_RET_NS = 10_000  # of a single step, about
_NOTABLE = 0.01  # of a CPU: from then on a function moves
_QUIET = 1.0  # seconds without an unknown caller
_SEARCHING = 0.02  # seconds of a search for callers, and between two such: events are read then
_MAX_NEW = 8  # calls of new callers in a look; more bring the RETs back
_LOOK = 0.01  # seconds between two looks at landings that other ways lead to
_IDLE = 0.5  # seconds between two looks where runs are many, and nothing has begun to move
_MISSED = 2  # times as many hits without a call's end: loops that walk a tree have as many
_MISSED_NOTABLE = 100  # hits that end no call in a tenth of a second: less costs next to nothing
_PASSING = 0.01  # seconds in which a call that has returned is to come to its landing
_WAITING = 5.0  # seconds, for calls to end, until that is said
_AGAIN = 5.0  # seconds until probes that could not be changed are tried again

_CHANGED = "results are changed before where it returns to can be probed"
_REFUSED = "the kernel refuses a probe where it returns to"
_TOO_MANY = "there are too many callers"
_MISSES = "where it returns to, other code comes by more often than it returns"
_STEPPED = "the kernel single-steps where most calls return to as well"
_OPEN = "calls that were open before that have not ended"
_NEW = "many calls are of new callers"

_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_WAY = struct.Struct("=I4xQ")
_CALLER = struct.Struct("=QQ")
_LANDING = struct.Struct("=QQ")
_EPOCH, _FAULTS = _U32.pack(0), 1  # enum moving
_IN_PAGE = 0xFFF  # of an address: the same in each process


def landing_sizes(prepared: Prepared) -> dict[str, int]:
    """Return the settings of bpf/landings.h."""
    if not can_move(prepared):
        return {}
    most = _max_landings(prepared)
    every = most * (prepared.room.files if prepared.room is not None else 1)
    passes = 1 + min(every, _MAX_SHARED)
    return {"ways": prepared.functions, "landings": every, "passes": passes}


def _max_landings(prepared: Prepared) -> int:
    """Return how many callers can have a landing: fewer where runs are many, for long."""
    return _MAX_OF_MANY if prepared.is_minded else _MAX_LANDINGS


def can_move(prepared: Prepared) -> bool:
    """Return whether functions of a run can move at all."""
    return prepared.returns is not ReturnMode.RET and not why_not(prepared)


def why_not(prepared: Prepared) -> str:
    """Return why no function of a run can move, nothing if that is not so.

    Return addresses belong to one file. Threads without
    goroutines (gccgo, C) stay as they are.
    """
    plan, tasks = prepared.plan, prepared.tasks
    if any(not file.image.arch.steps_rets for file in plan.files):
        return "the kernel single-steps no RET on this machine"
    if len(plan.files) != 1:
        return "functions of several files are traced"
    if tasks is None or plan.files[0] not in tasks.files or tasks.layout is None:
        return "the file is not Go's"
    if prepared.forced not in (None, AttachMethod.MULTI):
        return f"that takes {said('--attach multi', 'uprobe multi links')}"
    if len(plan.names) > MAX_FUNCTIONS:
        return f"more than {MAX_FUNCTIONS:,} functions are traced"
    return ""


def place_entries(prepared: Prepared, program: BpfProgram) -> None:
    """Have programs know where functions are, before anything is attached.

    All callers are reported from the first call on, if calls are to end at landings soon.
    """
    if not can_move(prepared):
        return
    way = Way.LEARNING if prepared.returns is ReturnMode.LANDING else Way.RETS
    entries = (sites.entry for _, _, sites in prepared.plan.numbered())
    rows = [_WAY.pack(way.value, entry.address if entry else 0) for entry in entries]
    program.map("ways").update_array(prepared.plan.first, rows)


def place_landing(program: BpfProgram, entry: int, return_pc: int, address: int) -> None:
    """End the calls of the first function that return to an address at its landing."""
    program.map("landings").update(_CALLER.pack(return_pc, 0), _LANDING.pack(address, 0))
    program.map("ways").update(_U32.pack(0), _WAY.pack(Way.LANDINGS.value, entry))


def by_function(groups: Iterable[ProbeGroup]) -> dict[int, ProbeGroup]:
    """Return groups of RETs, one for each function, by the functions' numbers."""
    points: dict[int, tuple[ProbeGroup, list[Point]]] = {}
    for group in groups:
        for point in group.points:
            number = point.cookie & COOKIE_INDEX_MASK
            points.setdefault(number, (group, []))[1].append(point)
    return {number: replace(group, points=own) for number, (group, own) in points.items()}


@dataclass(eq=False, slots=True)
class _Function:
    """A function that can move."""

    number: int
    sites: FunctionSites
    rets: ProbeGroup
    way: Way
    needs_results: bool = False
    selects: bool = False  # a predicate: calls that are not wanted end nowhere
    has_begun: bool = False  # to move: its direct callers have landings
    has_rets: bool = True
    had_rets: bool = True  # since the last ``take``
    had_landings: bool = False
    is_kept: bool = False  # its RETs, for good
    why: str = ""  # that is
    has_said: bool = False
    is_left: bool = False  # nothing ends its calls any more, which are counted
    quiet_since: float = 0.0
    quiet: float = _QUIET
    quiet_again: float = _QUIET  # of the next time that it learns
    epoch: int = 0  # in which it began to learn
    entered: int = 0
    calls: int = 0  # since the last look
    rate: float = 0.0  # calls a second


def _is_one_instruction(sites: FunctionSites) -> bool:
    """Return whether a function's entry and its RET are one place.

    The entry is handled first there because it was attached last, which would change if the RET was
    probed again.
    """
    return any(site.address == sites.entry.address for site in sites.returns if sites.entry)


@dataclass(eq=False, slots=True)
class _Landed:
    """A return address that has a landing."""

    landing: Landing
    users: tuple[_Function, ...]  # most have one, and there may be thousands of return addresses
    group: ProbeGroup | None = None  # of its probe, which it has if one of them has moved
    row: int = 0  # of passes, if other ways lead there
    ended: int = 0  # hits that ended a call, and that ended none, some time ago
    missed: int = 0

    @property
    def is_needed(self) -> bool:
        """Return whether calls of a function end here alone."""
        return any(function.way is Way.LANDINGS for function in self.users)


class _Search:
    """A search for the callers of functions that are to move."""

    def __init__(self, callers: Callers, functions: Sequence[_Function], proves: bool) -> None:
        self.functions = functions
        entries = {function.sites.function.entry for function in functions}
        self.found = callers.search(entries, proves=proves)
        self._steps = self.found.steps()

    def goes_on(self, seconds: float) -> bool:
        """Search for some seconds; return whether there is more to do. Raises ElfError."""
        until = time.monotonic() + seconds
        return any(time.monotonic() >= until for _ in self._steps)


class Shared:
    """The calls of functions and the epochs of learning, in all files that share a program."""

    def __init__(self, program: BpfProgram) -> None:
        self._moving, self._epoch = program.map("moving"), 0
        #: Free rows of passes.
        self.passes = list(range(program.map("passes").max_entries - 1, 0, -1))
        self._entered, self._calls, self._next = program.map("entered"), array("Q"), 0.0

    def begin_epoch(self) -> int:
        """Begin the next epoch: calls that are entered from now on have its number."""
        kernel.wait_for_programs()  # those that have seen functions as they were
        self._epoch += 1
        self._moving.update(_EPOCH, _U64.pack(self._epoch))
        return self._epoch

    def place_fault(self, file: int, address: int) -> None:
        """Have programs know where the entry of runtime.sigpanic is probed in a file."""
        self._moving.update(_U32.pack(_FAULTS + file), _U64.pack(address))

    def calls(self, now: float) -> array[int]:
        """Return the calls of all functions so far; the same object if there are no more."""
        if now >= self._next:
            self._next = now + Landings.PERIOD / 2
            calls = self._entered.sums()
            if calls != self._calls:
                self._calls = calls
        return self._calls


class Landings:
    """The functions of a file, each of which is at its RETs or has moved to landings."""

    #: Seconds between two steps.
    PERIOD = 0.1

    def __init__(
        self,
        prepared: Prepared,
        attached: Attached,
        rets: Mapping[int, ProbeGroup],
        shared: Shared,
    ) -> None:
        """Take over the attached probes; ``rets`` are the groups of RETs by functions' numbers."""
        assert prepared.tasks is not None
        self._target, self._tasks = prepared.target, prepared.tasks
        self._attached = attached
        self._is_asked = prepared.returns is ReturnMode.LANDING
        self._shows_calls = prepared.shows_calls
        self._only_closed = prepared.shows_calls and prepared.returns is ReturnMode.AUTO
        program = attached.program
        self._ways, self._entered = program.map("ways"), program.map("entered")
        self._landings, self._new = program.map("landings"), program.map("callers")
        self._unreported, self._had_unreported = program.map("unreported"), 0
        self._passes, self._had_missed = program.map("passes"), 0
        self._stacks, self._shared = program.map("stacks"), shared
        self._file = prepared.plan.files[0]
        self._code: Callers | None = None
        self._search: _Search | None = None
        self._most = _max_landings(prepared)
        self._is_minded = prepared.is_minded
        self._free = shared.passes
        self._watched: list[_Landed] = []  # that have such a row, and a probe
        self._functions: list[_Function] = []
        self._by_number: dict[int, _Function] = {}
        self._numbers: set[int] = set()  # of those that have left as well
        self._landed: dict[int, _Landed] = {}
        self._callers_landed = 0
        self._gone: list[_Function] = []  # since the last ``take``
        self._refused: dict[int, str] = {}
        self._left: set[int] = set()  # landings that other code comes by too often
        self._weighed: dict[bytes, int] = {}  # calls of callers until their function was weighed
        #: The probe at the path of a fault, once there is one.
        self.for_faults: list[ProbeGroup] = []
        self._sees_faults = self._has_needless = False
        self._moves: list[Move] = []
        self._is_over = False
        self._next = 0.0
        self._sums = array("Q")
        self._has_rates = False  # whether any function was called since the look before
        self._counted = time.monotonic()
        self._seconds = 0.0  # since the look before the latest one
        self.add(prepared, rets)

    def add(self, prepared: Prepared, rets: Mapping[int, ProbeGroup]) -> None:
        """Take over functions of the file; ``rets`` as for the first ones."""
        calls = prepared.traced.calls if prepared.traced is not None else ()
        results = {number for number, call in enumerate(calls) if call.reads_results}
        selecting = {number for number, call in enumerate(calls) if call.compiled is not None}
        floats = {number for number, call in enumerate(calls) if call.result_floats}
        way = Way.LEARNING if self._is_asked else Way.RETS
        more = [
            _Function(number, sites, rets[number], way, number in results, number in selecting)
            for number, _, sites in prepared.plan.numbered()
            if number in rets
        ]
        entered = self._entered.sums()  # a number may have been another's
        for function in more:
            function.entered = entered[function.number]
        self._functions += more
        self._numbers |= {function.number for function in more}
        self._by_number |= {function.number: function for function in more}
        for function in more:
            if function.number in floats:
                self._keep([function], "it returns floats")
            elif _is_one_instruction(function.sites):
                self._keep([function], "it is a single instruction")

    def stop(self) -> None:
        """Leave all probes as they are."""
        self._is_over = True

    def moves(self) -> list[Move]:
        """Return which functions have moved since the last time."""
        moves, self._moves = self._moves, []
        return moves

    def take(self) -> dict[int, str]:
        """Return how calls were seen returning since the last time, by the functions' numbers.

        At "ret", at "landing", or at "both".
        """
        found = {}
        for function in (*self._functions, *self._gone):
            at_rets = function.has_rets or function.had_rets
            at_landings = not function.has_rets or function.had_landings
            found[function.number] = (
                "both" if at_rets and at_landings else "ret" if at_rets else "landing"
            )
            function.had_rets = function.had_landings = False
        self._gone.clear()
        return found

    @property
    def pause(self) -> float:
        """Return after how many seconds ``step`` is to be called again."""
        if self._is_over:
            return math.inf
        return _LOOK if self._watched else self._period

    @property
    def _period(self) -> float:
        """Return how many seconds are between two steps, beside looks for hits without an end."""
        if self._search is not None:
            return _SEARCHING
        moves = any(one.has_begun and not one.is_kept for one in self._functions)
        return self.PERIOD if moves or not self._is_minded else _IDLE

    def step(self) -> None:
        """Move the functions that are to be moved now; to be called as often as ``pause`` says."""
        now = time.monotonic()
        is_due = now >= self._next
        if not (is_due or self._watched) or self._is_over or self._attached.stopped_at is not None:
            return
        try:
            self._look_at_misses(now, is_due)
            if not is_due:
                return
            self._count(now)
            # Otherwise the kernel reports no callers.
            if self._is_asked or any(function.has_begun for function in self._functions):
                self._learn(now)
            self._begin(now)
            self._move(now)
            if self._has_needless:
                self._remove_needless()
            wait = self._period
        except GotraceError:
            # The probes may be gone, which is said elsewhere. Else there may have been no room for
            # a process that holds them. Everything stays as it is: calls are measured, or counted
            # as those of new callers.
            self._is_over = self._attached.stopped_at is not None or not self._attached.is_held()
            wait = _AGAIN
        if self._search is None:
            self._code = None
        self._next = time.monotonic() + wait

    @property
    def _callers(self) -> Callers:
        """Return the code of callers, which is kept for a step or a search: it is large."""
        if self._code is None:
            self._code = Callers(self._file.functions)
        return self._code

    def _count(self, now: float) -> None:
        """Find out how often functions are called."""
        seconds = self._seconds = max(now - self._counted, 1e-3)
        self._counted = now
        sums, before = self._shared.calls(now), self._sums
        if sums is before and not self._has_rates:
            return
        self._sums, self._has_rates = sums, sums is not before
        for function in self._functions:
            calls = sums[function.number]
            function.calls = calls - function.entered
            function.rate = function.calls / seconds
            function.entered = calls
            is_notable = self._is_asked or function.rate * _RET_NS > _NOTABLE * 1e9
            if function.is_kept and is_notable and not function.has_said and not function.is_left:
                self._say(function, function.why)

    def _begin(self, now: float) -> None:
        """Begin to learn the callers of functions whose RETs cost much."""
        if self._search is None:
            if not (self._has_rates or self._is_asked) or not (moving := self._costly()):
                return
            self._search = _Search(self._callers, moving, self._only_closed)
        is_shared = self._shows_calls or self._is_minded  # the time, with others
        search = self._search
        try:
            goes_on = search.goes_on(_SEARCHING if is_shared else math.inf)
        except ElfError as error:
            self._search = None
            self._keep(search.functions, str(error))
            return
        if not goes_on:
            self._search = None
            self._learn_direct(search, now)

    def _learn_direct(self, search: _Search, now: float) -> None:
        """Give landings to the direct callers of functions, which are to learn the others."""
        wanted: dict[int, set[_Function]] = {}
        for function in search.functions:
            if function.is_left:
                continue
            entry = function.sites.function.entry
            places = search.found.calls[entry]
            if len(places) > _MAX_CALLERS or self._callers_landed + len(places) > self._most:
                self._keep([function], "it has too many callers")
                continue
            if entry in search.found.undecided:
                self._keep([function], "a caller could not be decoded")
                continue
            if self._only_closed:
                if not search.found.is_closed(entry):
                    self._keep([function], "it may have callers that do not call it directly")
                    continue
                function.quiet = self.PERIOD  # in which its calls are counted
            for place in places:
                wanted.setdefault(place, set()).add(function)
        self._land(wanted)
        begun = [function for function in search.functions if not function.is_kept]
        for function in begun:
            self._set(function, Way.LEARNING)
            function.has_begun, function.quiet_since = True, now
        if not self._is_asked:  # else they have learned from the first call on
            self._begin_epoch(begun)

    def _costly(self) -> list[_Function]:
        """Return the functions that are to move: without them, steps cost less than is notable."""
        still = [one for one in self._functions if not one.has_begun and not one.is_kept]
        if self._is_asked:
            return still
        still.sort(key=lambda function: function.rate, reverse=True)
        notable = _NOTABLE / (_RET_NS / 1e9)  # calls a second
        rest = sum(function.rate for function in still)
        costly = []
        for function in still:
            if rest < notable:
                break
            costly.append(function)
            rest -= function.rate
        return costly

    def _begin_epoch(self, functions: Iterable[_Function]) -> None:
        """Tell calls of functions that are entered from now on from those that are open."""
        epoch = self._shared.begin_epoch()
        for function in functions:
            function.epoch = epoch

    def _learn(self, now: float, most: int | None = _MAX_REPORTED) -> None:
        """Give landings to callers that the kernel has reported: to all, or to the first ones."""
        entries = islice(self._reported(), most)
        reported = [(key, _U64.unpack(value)[0]) for key, value in entries]
        calls: dict[_Function, int] = {}
        wanted: dict[int, set[_Function]] = {}
        for key, count in reported:
            address, number = _CALLER.unpack(key)
            function = self._by_number[number]
            function.quiet_since = now
            if function.way is Way.LANDINGS:
                calls[function] = calls.get(function, 0) + count
            if not function.is_kept:
                wanted.setdefault(address, set()).add(function)
        # First: each call of such a caller is left out until it has a landing.
        too_many = _MAX_NEW * max(1.0, self._seconds / self.PERIOD)
        for function, count in calls.items():
            if count > too_many:
                function.quiet = function.quiet_again = min(function.quiet_again * 2, 60.0)
                self._return_to_rets([function], _NEW, now)
        self._land(wanted)
        for key, _ in reported:
            self._new.delete(key)
        self._look_at_unreported(now)

    def _reported(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the callers of the file's functions that the kernel has reported."""
        for key, value in self._new.entries():
            if _CALLER.unpack(key)[1] in self._by_number:
                yield key, value

    def _look_at_unreported(self, now: float) -> None:
        """Wait for the end of calls that are open, if callers came for which there was no room."""
        value = self._unreported.lookup(_U32.pack(0))
        unreported = _U64.unpack(value)[0] if value is not None else 0
        if unreported == self._had_unreported:
            return
        self._had_unreported = unreported
        learning = [one for one in self._functions if one.way is not Way.RETS]
        for function in learning:
            function.quiet_since = now
            if function.way is Way.LANDINGS and function.has_rets:  # it is about to move
                self._set(function, Way.LEARNING)
        self._begin_epoch(learning)

    def _land(self, wanted: Mapping[int, set[_Function]]) -> None:
        """End calls at the landings of return addresses once their functions have moved."""
        fresh: list[_Landed] = []
        for place, users in wanted.items():
            wants = any(function.needs_results for function in users)
            known = self._landed.get(place)
            if known is not None:
                self._add_users(known, users)
                continue
            try:
                if self._callers_landed + len(users) > self._most:
                    raise SiteError(_TOO_MANY)
                best = self._choose(place, wants)
            except SiteError as error:
                self._refused[place] = str(error)
                self._keep(users, str(error))
                continue
            self._callers_landed += len(users)
            self._landed[place] = landed = _Landed(best, tuple(users))
            self._take_row(landed)
            fresh.append(landed)
        try:
            self._probe([landed for landed in fresh if landed.is_needed])
        except GotraceError:  # they are to be tried again
            for landed in fresh:
                self._callers_landed -= len(landed.users)
                del self._landed[landed.landing.return_pc]
            self._free += [landed.row for landed in fresh if landed.row]
            raise
        for landed in fresh:
            if landed.landing.return_pc in self._landed:
                self._set_landing(landed, landed.users)

    def _take_row(self, landed: _Landed) -> None:
        """Give it a row of passes if other ways lead there: it may have been another's."""
        landed.row = self._free.pop() if landed.landing.shared else 0
        if landed.row:
            landed.ended, landed.missed = self._passes.sums(1 + landed.row)[2 * landed.row :]

    def _add_users(self, known: _Landed, users: set[_Function]) -> None:
        """End calls of more functions at a landing."""
        more = users.difference(known.users)
        if self._callers_landed + len(more) > self._most:
            self._keep(more, _TOO_MANY)
            return
        wants = any(function.needs_results for function in more)
        if wants and not known.landing.intact and not self._switch(known, wants=True):
            self._keep(more, _CHANGED)
            return
        before = known.users
        known.users += tuple(more)
        try:
            if known.group is None and known.is_needed:
                self._probe([known])
        except GotraceError:
            known.users = before
            raise
        self._callers_landed += len(more)
        self._set_landing(known, more)

    def _choose(self, place: int, wants_results: bool) -> Landing:
        """Return the best landing of a return address. Raises SiteError if none serves."""
        if place in self._refused:
            raise SiteError(self._refused[place])
        found = self._callers.landings(place)
        if wants_results:
            found = [landing for landing in found if landing.intact]
            if not found:
                raise SiteError(_CHANGED)
        found = [landing for landing in found if not landing.shared or self._can_share(landing)]
        if not found:
            raise SiteError(_MISSES)
        return found[0]

    def _can_share(self, landing: Landing) -> bool:
        """Return whether a landing that other ways lead to is to be tried."""
        return bool(self._free) and landing.emulated and landing.address not in self._left

    def _probe(self, fresh: Sequence[_Landed]) -> None:
        if not fresh:
            return
        self._watch_faults()
        # A probe that may have to be removed by itself is in a link of its own.
        if plain := [one for one in fresh if not one.row]:
            together = self._group(plain)
            for one in plain:
                one.group = together
        shared = [one for one in fresh if one.row]
        for one in shared:
            one.group = self._group([one])
        groups = list({id(one.group): one.group for one in fresh if one.group}.values())
        try:
            refused = self._attached.change(groups)
        except GotraceError:
            for one in fresh:
                one.group = None
            raise
        addresses = {point.address for point in refused}
        for one in fresh:
            if one.landing.address in addresses:
                self._refused[one.landing.return_pc] = _REFUSED
                one.group = None
                self._forget([one])
                self._keep(one.users, _REFUSED)
        self._watched += [one for one in shared if one.group is not None]

    def _watch_faults(self) -> None:
        """Probe the path of a fault between a return and its landing."""
        if self._sees_faults:
            return
        site = fault_site(self._file.functions)
        if site is not None:
            kind, file = self._tasks.runtime_kind(self._file)
            offset = self._file.image.offset_of(site.address)
            point = Point(offset, site.address, fault_cookie(site, kind, file))
            self._shared.place_fault(self._tasks.number, site.address)
            groups = [self._group_of([point])]
            self._attached.change(groups)
            self.for_faults = groups
        self._sees_faults = True

    def _group(self, landed: Iterable[_Landed]) -> ProbeGroup:
        points = []
        for one in landed:
            landing = one.landing
            kind, file = self._tasks.kind(self._file, landing.caller)
            distance = landing.address - landing.return_pc
            at = landing_cookie(distance, kind, file, not landing.emulated, one.row)
            offset = self._file.image.offset_of(landing.address)
            points.append(Point(offset, landing.address, at))
        return self._group_of(points)

    def _group_of(self, points: Sequence[Point]) -> ProbeGroup:
        image, pid = self._file.image, self._target.pid
        path, bias = self._file.attach_path, self._file.bias
        return ProbeGroup("on_return", path, image.display, points, bias, pid, image.identity)

    def _set_landing(self, landed: _Landed, users: Iterable[_Function]) -> None:
        """End calls of some functions at a landing."""
        value = _LANDING.pack(landed.landing.address, 0)
        for function in users:
            caller = self._caller(landed, function)
            self._weighed.pop(caller, None)
            self._landings.update(caller, value)

    def _unset_landing(self, landed: _Landed, users: Sequence[_Function]) -> None:
        for function in users:
            self._landings.delete(self._caller(landed, function))
        self._callers_landed -= len(users)

    def _caller(self, landed: _Landed, function: _Function) -> bytes:
        return _CALLER.pack(landed.landing.return_pc, function.number)

    def _move(self, now: float) -> None:
        """End calls at landings alone, if no unknown caller was seen for a while."""
        quiet = [
            function
            for function in self._functions
            if function.has_begun
            and not function.is_left
            and function.way is Way.LEARNING
            and now - function.quiet_since >= function.quiet
        ]
        oldest = self._oldest() if quiet else None
        ready = []
        for function in quiet:
            if oldest is None or oldest >= function.epoch:
                ready.append(function)
            elif now - function.quiet_since >= function.quiet + _WAITING and not function.has_said:
                self._say(function, _OPEN)
        ready = self._of_use(ready, now)
        if not ready:
            return
        moving = set(ready)
        self._probe([one for one in self._unprobed() if not moving.isdisjoint(one.users)])
        ready = [function for function in ready if not function.is_kept]
        for function in ready:
            self._set(function, Way.LANDINGS)
        # Calls of new callers that were opened before that have been reported by now.
        kernel.wait_for_programs()
        self._learn(now, None)
        free = [function for function in ready if function.way is Way.LANDINGS]
        if free:
            self._attached.change((), [function.rets for function in free])
            for function in free:
                function.has_rets, function.had_rets = False, True
                function.has_said = False
                places = self._places(function)
                self._moves.append(Move(function.number, "landing", places=places))
            self._look_at_misses(now, is_due=True, is_new=True)

    def _unprobed(self) -> list[_Landed]:
        return [landed for landed in self._landed.values() if landed.group is None]

    def _of_use(self, functions: Sequence[_Function], now: float) -> list[_Function]:
        """Return which of functions have most calls end where the kernel emulates.

        The others go on to learn: what they are called by may change.
        """
        if self._is_asked or not functions:
            return list(functions)
        asked = {function.number: function for function in functions}
        stepped, emulated = Counter[int](), Counter[int]()
        places = Counter[int]()  # emulated ones, less stepped ones
        for key, value in self._landings.entries():
            return_pc, number = _CALLER.unpack(key)
            landed = self._landed.get(return_pc)
            if number in asked and landed is not None:
                calls = _LANDING.unpack(value)[1]
                more, self._weighed[key] = calls - self._weighed.get(key, 0), calls
                (emulated if landed.landing.emulated else stepped)[number] += more
                places[number] += 1 if landed.landing.emulated else -1
        found = []
        for number, function in asked.items():
            is_seen = emulated[number] or stepped[number] or not function.selects
            if emulated[number] > stepped[number] or (not is_seen and places[number] > 0):
                found.append(function)
                continue
            function.quiet_since = now
            if stepped[number] and not function.has_said:
                self._say(function, _STEPPED)
        return found

    def _places(self, function: _Function) -> Places:
        """Return where calls of a function that has moved are seen returning."""
        own = [one.landing for one in self._landed.values() if function in one.users]
        emulated = sum(landing.emulated for landing in own)
        shared = sum(landing.emulated and landing.shared for landing in own)
        return Places(emulated, shared, len(own) - emulated)

    def _oldest(self) -> int | None:
        """Return in which epoch the oldest of the outermost calls that are open was entered.

        Of calls that were entered before their function began to learn, the return address is not
        known: they end at a RET. A task's row stays while it has a call open.
        """
        rows = (STACK_EPOCH.unpack_from(row) for _, row in self._stacks.entries())
        return min(
            (epoch for latest, level, epoch in rows if level and latest in self._numbers),
            default=None,
        )

    def _look_at_misses(self, now: float, is_due: bool, is_new: bool = False) -> None:
        """Give up landings that are hit much more often without a call's end than with one.

        ``is_new``: calls have ended at RETs until now, before they came there.
        """
        if not self._watched:
            return
        if not is_due and self._passes.sums(1)[1] - self._had_missed < _MISSED_NOTABLE:
            return
        sums = self._passes.sums(1 + max(landed.row for landed in self._watched))
        entered = self._entered.sums()
        wrong = []
        for landed in self._watched:
            ended, missed = sums[2 * landed.row : 2 * landed.row + 2]
            returned, hits = ended - landed.ended, ended + missed - landed.ended - landed.missed
            if any(function.selects for function in landed.users):
                returned = sum(entered[one.number] - one.entered for one in landed.users)
            vain = hits - returned
            is_wrong = vain >= _MISSED_NOTABLE and vain > _MISSED * returned
            if is_wrong and not is_new and not any(one.is_left for one in landed.users):
                wrong.append(landed)
            if is_due:
                landed.ended, landed.missed = ended, missed
        if is_due:
            self._had_missed = sums[1]
        self._give_up(wrong, now)

    def _give_up(self, wrong: Sequence[_Landed], now: float) -> None:
        """Probe the RETs of functions that return to landings, and leave these for good."""
        if not wrong:
            return
        self._left |= {landed.landing.address for landed in wrong}
        users = {function for landed in wrong for function in landed.users}
        self._return_to_rets([one for one in users if one.way is Way.LANDINGS], _MISSES, now)
        for landed in wrong:
            if not self._switch(landed, any(one.needs_results for one in landed.users)):
                self._refused[landed.landing.return_pc] = _MISSES
                self._forget([landed])
                self._keep(landed.users, _MISSES)

    def _switch(self, landed: _Landed, wants: bool) -> bool:
        """End calls at another landing of a return address; return whether there is one.

        ``wants``: results are read there.
        """
        try:
            other = self._choose(landed.landing.return_pc, wants)
        except SiteError:
            return False
        before = replace(landed)
        landed.landing, landed.group = other, None
        self._take_row(landed)
        if landed.is_needed:
            self._probe([landed])
        if before.row:
            self._free.append(before.row)
        self._remove([before])
        if landed.is_needed and landed.group is None:
            return False
        self._set_landing(landed, landed.users)
        return True

    def _return_to_rets(self, functions: Sequence[_Function], why: str, now: float) -> None:
        """Let functions learn again, with their RETs probed and their landings not."""
        for function in functions:
            function.quiet_since = now
            function.quiet = max(function.quiet, function.quiet_again)
            self._probe_rets(function, Way.LEARNING, why)
        self._remove_needless()

    def _remove_needless(self) -> None:
        self._remove([one for one in self._landed.values() if one.group and not one.is_needed])
        self._has_needless = False

    def _remove(self, landed: Sequence[_Landed]) -> None:
        """Remove the probes at landings; others of their groups get a new link before that."""
        probed = [one for one in landed if one.group is not None]
        if not probed:
            return
        self._let_pass({one.landing.return_pc & _IN_PAGE for one in probed})
        groups = {id(one.group): one.group for one in probed if one.group is not None}
        gone = {id(one) for one in probed}
        stay: dict[int, list[_Landed]] = {}
        for one in self._landed.values():
            if id(one.group) in groups and id(one) not in gone:
                stay.setdefault(id(one.group), []).append(one)
        more = [self._group(rest) for rest in stay.values()]
        self._attached.change(more, list(groups.values()))
        for one in probed:
            one.group = None
        for rest, together in zip(stay.values(), more, strict=True):
            for one in rest:
                one.group = together
        self._watched = [one for one in self._watched if one.row and one.group is not None]

    def _forget(self, landed: Sequence[_Landed]) -> None:
        """End no calls at these landings any more."""
        for one in landed:
            self._unset_landing(one, one.users)
            del self._landed[one.landing.return_pc]
        self._remove(landed)
        self._free += [one.row for one in landed if one.row]

    def _let_pass(self, places: Container[int]) -> None:
        """Wait until calls that have returned come to their landings, which then lose probes.

        The RETs have probes again. But a goroutine may have been stopped behind its RET before
        that. Such a call is the latest of its task.
        """
        until = time.monotonic() + _PASSING
        latest = self._latest(places)
        while latest and time.monotonic() < until:
            time.sleep(_PASSING / 10)
            latest &= self._latest(places)

    def _latest(self, places: Container[int]) -> set[tuple[bytes, int]]:
        """Return tasks whose latest call returns to one of some places, and when it began.

        Where the file is in their processes is not known, so it may return to other pages as well.
        """
        found = set()
        for task, row in self._stacks.entries():
            start, return_pc, level = STACK_LATEST.unpack_from(row)
            if level and return_pc & _IN_PAGE in places:
                found.add((task, start))
        return found

    def _keep(self, functions: Iterable[_Function], why: str) -> None:
        """Leave the RETs of functions probed for good, or have them probed again."""
        for function in functions:
            if function.way is not Way.RETS:
                self._probe_rets(function, Way.RETS, why)
            function.is_kept, function.why = True, function.why or why

    def _probe_rets(self, function: _Function, way: Way, why: str) -> None:
        if not function.has_rets:
            self._attached.change([function.rets])
            function.has_rets, function.had_landings = True, True
            self._say(function, why)
        self._set(function, way)

    def _say(self, function: _Function, why: str) -> None:
        """Report that the calls of a function are seen at its RETs, and why."""
        function.has_said = True
        self._moves.append(Move(function.number, "ret", why))

    def has(self, number: int) -> bool:
        """Return whether a function is one of these."""
        return number in self._by_number

    def begin_to_leave(self, number: int) -> None:
        """Expect no calls of a function any more but those that are open."""
        self._by_number[number].is_kept = self._by_number[number].is_left = True

    def leave(self, numbers: Iterable[int]) -> None:
        """End no calls of functions any more. Raises AttachError or GotraceError."""
        leaving = {self._by_number[number] for number in numbers}
        self._functions = [one for one in self._functions if one not in leaving]
        self._gone += leaving
        for function in leaving:
            self._set(function, Way.RETS)
        if rets := [function.rets for function in leaving if function.has_rets]:
            self._attached.change((), rets)
        empty = []
        for landed in self._landed.values():
            gone = [one for one in landed.users if one in leaving]
            landed.users = tuple(one for one in landed.users if one not in leaving)
            self._unset_landing(landed, gone)
            if not landed.users:
                empty.append(landed)
        self._forget(empty)
        for key, _ in list(self._reported()):
            if self._by_number[_CALLER.unpack(key)[1]] in leaving:
                self._new.delete(key)
        for function in leaving:
            del self._by_number[function.number]

    def _set(self, function: _Function, way: Way) -> None:
        function.way = way
        self._has_needless = self._has_needless or way is not Way.LANDINGS
        assert function.sites.entry is not None
        value = _WAY.pack(way.value, function.sites.entry.address)
        self._ways.update(_U32.pack(function.number), value)
