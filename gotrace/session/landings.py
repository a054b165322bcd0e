# SPDX-License-Identifier: Apache-2.0
"""Have calls end at the landings of their return addresses instead of at RETs (bpf/landings.h).

Every function begins with probes at its RETs, by which calls are measured from the first one on. A
function *moves* in steps, none of which loses a call:

1. Where it is called directly is found in the program's code. Landings of these return addresses
   get probes; from then on the kernel reports each return address that has no landing.
2. Once no such address has been reported for a while, and no task has a call open from before the
   function began to learn, calls with unknown return addresses are not opened any more, but counted
   as calls of new callers.
3. The probes at the function's RETs are removed.

If a landing cannot be found, if it is hit much more often than calls return, or if many calls of
new callers come, the RETs are probed again.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from gotrace.errors import GotraceError
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import Attached, AttachMethod, Point, ProbeGroup
from gotrace.kernel.cookie import COOKIE_INDEX_MASK, fault_cookie, landing_cookie
from gotrace.kernel.program import BpfProgram
from gotrace.session.open_calls import STACK_EPOCH
from gotrace.session.probing import Move, Prepared, Returns
from gotrace.sites.landings import Callers, Landing
from gotrace.sites.sites import FunctionSites, SiteError
from gotrace.sites.unwind import fault_site

__all__ = [
    "MAX_FUNCTIONS",
    "Landings",
    "by_function",
    "can_move",
    "landing_sizes",
    "learn_at_once",
    "place_landing",
    "why_not",
]


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

_RET_NS = 10_000  # of a single step, about
_NOTABLE = 0.01  # of a CPU: from then on a function moves
_QUIET = 1.0  # seconds without an unknown caller
_SEARCHING = 0.02  # seconds of a search for callers, and between two such: events are read then
_MAX_NEW = 8  # calls of new callers in a look; more bring the RETs back
_MISSED = 4  # times as many hits of a landing as calls
_MISSED_NOTABLE = 200  # hits of a landing in a look that end no call

_CHANGED = "results are changed before where it returns to can be probed"
_REFUSED = "the kernel refuses a probe where it returns to"
_TOO_MANY = "there are too many callers"
_MISSES = "where it returns to is hit much more often than it returns"

_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")
_CALLER = struct.Struct("=QQ")


def landing_sizes(prepared: Prepared) -> dict[str, int]:
    """Return the settings of bpf/landings.h."""
    if not can_move(prepared):
        return {}
    return {"ways": len(prepared.plan.names), "landings": _max_landings(prepared)}


def _max_landings(prepared: Prepared) -> int:
    """Return how many callers can have a landing: fewer where runs are many, for long."""
    return _MAX_OF_MANY if prepared.is_minded else _MAX_LANDINGS


def can_move(prepared: Prepared) -> bool:
    """Return whether functions of a run can move at all."""
    return prepared.returns is not Returns.RET and not why_not(prepared)


def why_not(prepared: Prepared) -> str:
    """Return why no function of a run can move, nothing if that is not so.

    Return addresses belong to one file, which is where it is in every process. Threads without
    goroutines (gccgo, C) stay as they are.
    """
    plan, tasks = prepared.plan, prepared.tasks
    if any(not file.image.arch.steps_rets for file in plan.files):
        return "the kernel single-steps no RET on this machine"
    if len(plan.files) != 1:
        return "functions of several files are traced"
    if tasks is None or plan.files[0] not in tasks.files or tasks.layout is None:
        return "the file is not Go's"
    if plan.files[0].bias is None and prepared.target.command is not None:
        return "where the file will be is not known before it runs: start it, and use -p PID"
    if plan.files[0].bias is None:
        return "the file can be elsewhere in each process: use -p PID"
    if prepared.forced not in (None, AttachMethod.MULTI):
        return "that takes --attach multi"
    if len(plan.names) > MAX_FUNCTIONS:
        return f"more than {MAX_FUNCTIONS:,} functions are traced"
    return ""


def learn_at_once(prepared: Prepared, program: BpfProgram) -> None:
    """Have all callers reported from the first call on, if calls are to end at landings soon."""
    if prepared.returns is Returns.LANDING and can_move(prepared):
        learning = _U32.pack(Way.LEARNING.value)
        program.map("ways").update_array(0, [learning] * len(prepared.plan.names))


def place_landing(program: BpfProgram, return_pc: int, address: int) -> None:
    """Have the calls of the first function that return to an address end at its landing."""
    program.map("landings").update(_CALLER.pack(return_pc, 0), _U64.pack(address))
    program.map("ways").update(_U32.pack(0), _U32.pack(Way.LANDINGS.value))


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
    """A return address whose landing has a probe."""

    landing: Landing
    group: ProbeGroup
    users: tuple[_Function, ...]  # most have one, and there may be thousands of return addresses
    left: tuple[int, ...] = ()  # addresses of landings that did not serve
    missed: int = 0


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


class Landings:
    """The functions of a run, each of which is at its RETs or has moved to landings."""

    #: Seconds between two steps.
    PERIOD = 0.1

    def __init__(
        self,
        prepared: Prepared,
        attached: Attached,
        rets: Mapping[int, ProbeGroup],
    ) -> None:
        """Take over what was attached; ``rets`` are the groups of RETs by functions' numbers."""
        assert prepared.tasks is not None
        self._target, self._tasks = prepared.target, prepared.tasks
        self._attached = attached
        self._is_asked = prepared.returns is Returns.LANDING
        self._shows_calls = prepared.shows_calls
        self._only_closed = prepared.shows_calls and prepared.returns is Returns.AUTO
        program = attached.program
        self._ways, self._entered = program.map("ways"), program.map("entered")
        self._landings, self._new = program.map("landings"), program.map("callers")
        self._unreported, self._had_unreported = program.map("unreported"), 0
        self._missed = program.map("missed")
        self._stacks, self._epochs = program.map("stacks"), program.map("epoch")
        self._epoch = 0
        self._file = prepared.plan.files[0]
        assert self._file.bias is not None
        self._bias = self._file.bias
        calls = prepared.traced.calls if prepared.traced is not None else ()
        results = {number for number, call in enumerate(calls) if call.reads_results}
        floats = {number for number, call in enumerate(calls) if call.result_floats}
        self._code: Callers | None = None
        self._search: _Search | None = None
        self._most = _max_landings(prepared)
        way = Way.LEARNING if self._is_asked else Way.RETS
        self._functions = [
            _Function(number, sites, rets[number], way, needs_results=number in results)
            for number, _, sites in prepared.plan.numbered()
            if number in rets
        ]
        self._by_number = {function.number: function for function in self._functions}
        self._landed: dict[int, _Landed] = {}
        self._callers_landed = 0
        self._gone: list[_Function] = []  # since the last ``take``
        self._refused: dict[int, str] = {}
        self._sees_faults = False
        self._moves: list[Move] = []
        self._is_over = False
        self._next = 0.0
        self._counted = time.monotonic()
        self._seconds = 0.0  # since the look before the latest one
        for function in self._functions:
            if function.number in floats:
                self._keep([function], "it returns floats")
            elif _is_one_instruction(function.sites):
                self._keep([function], "it is a single instruction")

    def stop(self) -> None:
        """Have everything stay as it is."""
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

    def step(self) -> None:
        """Move what is to be moved now; to be called ten times a second."""
        now = time.monotonic()
        if now < self._next or self._is_over or self._attached.stopped_at is not None:
            return
        try:
            self._count(now)
            if self._landed:
                self._look_at_misses()
            # Otherwise the kernel reports no callers.
            if self._is_asked or any(function.has_begun for function in self._functions):
                self._learn(now)
            self._begin(now)
            self._move(now)
        except GotraceError:
            # The target or the probes may be gone, which is said elsewhere. Everything stays as it
            # is: calls are measured, or counted as those of new callers.
            self._is_over = True
        if self._search is None:
            self._code = None
        pause = self.PERIOD if self._search is None else _SEARCHING
        self._next = time.monotonic() + pause

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
        sums = self._entered.sums()
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
            if not (moving := self._costly()):
                return
            self._search = _Search(self._callers, moving, self._only_closed)
        if not self._search.goes_on(_SEARCHING if self._shows_calls else math.inf):
            search, self._search = self._search, None
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
                function.quiet = 0.0
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
        kernel.wait_for_programs()  # those that have seen the functions as they were
        self._epoch += 1
        self._epochs.update(_U32.pack(0), _U64.pack(self._epoch))
        for function in functions:
            function.epoch = self._epoch

    def _learn(self, now: float, most: int | None = _MAX_REPORTED) -> None:
        """Give landings to callers that the kernel has reported: to all, or to the first ones."""
        entries = islice(self._new.entries(), most)
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
                wanted.setdefault(address - self._bias, set()).add(function)
        # First: each call of such a caller is left out until it has a landing.
        too_many = _MAX_NEW * max(1.0, self._seconds / self.PERIOD)
        for function, count in calls.items():
            if count > too_many:
                self._probe_rets(function, Way.LEARNING, "many calls are of new callers")
                function.quiet = min(function.quiet * 2, 60.0)
        self._land(wanted)
        for key, _ in reported:
            self._new.delete(key)
        self._look_at_unreported(now)

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
        """Place probes at the landings of return addresses, and have calls end there."""
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
                best = self._choose(place, wants)[0]
            except SiteError as error:
                self._refused[place] = str(error)
                self._keep(users, str(error))
                continue
            self._callers_landed += len(users)
            fresh.append(_Landed(best, self._group([best]), tuple(users)))
        if fresh:
            self._probe_landings(fresh)

    def _add_users(self, known: _Landed, users: set[_Function]) -> None:
        """Have calls of more functions end at a landing."""
        more = users.difference(known.users)
        if self._callers_landed + len(more) > self._most:
            self._keep(more, _TOO_MANY)
            return
        wants = any(function.needs_results for function in more)
        if wants and not known.landing.intact and not self._switch(known, wants=True):
            self._keep(more, _CHANGED)
            return
        known.users += tuple(more)
        self._callers_landed += len(more)
        self._set_landing(known, more)

    def _choose(self, place: int, wants_results: bool) -> list[Landing]:
        """Return the landings of a return address that serve, the best first.

        Raises SiteError if none does.
        """
        if place in self._refused:
            raise SiteError(self._refused[place])
        found = self._callers.landings(place)
        if not self._is_asked:  # a loop may come there without a call
            found = [landing for landing in found if not landing.shared]
            if not found:
                raise SiteError("other ways lead to where it returns to")
        if wants_results:
            found = [landing for landing in found if landing.intact]
            if not found:
                raise SiteError(_CHANGED)
        return found

    def _probe_landings(self, fresh: Sequence[_Landed]) -> None:
        self._watch_faults()
        # What may have to be removed by itself is in a link of its own.
        plain = [one for one in fresh if not one.landing.shared]
        if plain:
            together = self._group([one.landing for one in plain])
            for one in plain:
                one.group = together
        groups = list({id(one.group): one.group for one in fresh}.values())
        refused = self._attached.change(groups)
        addresses = {point.address for point in refused}
        for one in fresh:
            if one.landing.address in addresses:
                self._refused[one.landing.return_pc] = _REFUSED
                self._callers_landed -= len(one.users)
                self._keep(one.users, _REFUSED)
            else:
                self._landed[one.landing.return_pc] = one
                self._set_landing(one, one.users)

    def _watch_faults(self) -> None:
        """Probe what a fault between a return and its landing leads to."""
        if self._sees_faults:
            return
        self._sees_faults = True
        site = fault_site(self._file.functions)
        if site is not None:
            kind, file = self._tasks.runtime_kind(self._file)
            offset = self._file.image.offset_of(site.address)
            point = Point(offset, site.address, fault_cookie(site, kind, file))
            self._attached.change([self._group_of([point])])

    def _group(self, landings: Iterable[Landing]) -> ProbeGroup:
        points = []
        for landing in landings:
            kind, file = self._tasks.kind(self._file, landing.caller)
            distance = landing.address - landing.return_pc
            at = landing_cookie(distance, kind, file, not landing.emulated)
            offset = self._file.image.offset_of(landing.address)
            points.append(Point(offset, landing.address, at))
        return self._group_of(points)

    def _group_of(self, points: Sequence[Point]) -> ProbeGroup:
        image, pid = self._file.image, self._target.pid
        path, bias = self._file.attach_path, self._file.bias
        return ProbeGroup("on_return", path, image.display, points, bias, pid, image.identity)

    def _set_landing(self, landed: _Landed, users: Iterable[_Function]) -> None:
        """Have calls of some functions end at a landing."""
        address = _U64.pack(landed.landing.address + self._bias)
        for function in users:
            self._landings.update(self._caller(landed, function), address)

    def _unset_landing(self, landed: _Landed, users: Sequence[_Function]) -> None:
        for function in users:
            self._landings.delete(self._caller(landed, function))
        self._callers_landed -= len(users)

    def _caller(self, landed: _Landed, function: _Function) -> bytes:
        return _CALLER.pack(landed.landing.return_pc + self._bias, function.number)

    def _move(self, now: float) -> None:
        """Have calls end at landings alone, where no unknown caller was seen for a while."""
        quiet = [
            function
            for function in self._functions
            if function.has_begun
            and not function.is_left
            and function.way is Way.LEARNING
            and now - function.quiet_since >= function.quiet
        ]
        oldest = self._oldest() if quiet else None
        ready = [one for one in quiet if oldest is None or oldest >= one.epoch]
        if not ready:
            return
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
                self._moves.append(Move(function.number, "landing"))

    def _oldest(self) -> int | None:
        """Return in which epoch the oldest of the outermost calls that are open was entered.

        Of calls that were entered before their function began to learn, the return address is not
        known: they end at a RET. A task's row stays while it has a call open.
        """
        rows = (STACK_EPOCH.unpack_from(row) for _, row in self._stacks.entries())
        return min((epoch for level, epoch in rows if level), default=None)

    def _look_at_misses(self) -> None:
        """Give up landings that are hit much more often than calls return to them."""
        missed = list(self._missed.entries())
        if not missed:
            return
        places = {landed.landing.address: landed for landed in self._landed.values()}
        for key, value in missed:
            landed = places.get(_U64.unpack(key)[0] - self._bias)
            if landed is not None:
                self._look_at(landed, _U64.unpack(value)[0])

    def _look_at(self, landed: _Landed, hits: int) -> None:
        missed, landed.missed = hits - landed.missed, hits
        calls = sum(function.calls for function in landed.users)
        if missed < _MISSED_NOTABLE or missed < _MISSED * calls:
            return
        if any(function.is_left for function in landed.users):
            return
        wants = any(function.needs_results for function in landed.users)
        if not self._switch(landed, wants):
            self._give_up(landed)

    def _switch(self, landed: _Landed, wants: bool) -> bool:
        """Have calls end at the next landing of a return address; return whether there is one.

        ``wants``: results are read there.
        """
        left = (*landed.left, landed.landing.address)
        try:
            found = self._choose(landed.landing.return_pc, wants)
        except SiteError:
            return False
        others = [each for each in found if not each.shared and each.address not in left]
        if not others:
            return False
        before, address = landed.group, landed.landing.address
        landed.landing, landed.left = others[0], left
        landed.group = self._group([landed.landing])
        if self._attached.change([landed.group]):
            return False
        self._set_landing(landed, landed.users)
        self._remove_landing(before, address)
        return True

    def _give_up(self, landed: _Landed) -> None:
        """Have the RETs of the functions probed that may return there, and leave the landing."""
        return_pc = landed.landing.return_pc
        self._keep(landed.users, _MISSES)
        self._unset_landing(landed, landed.users)
        self._refused[return_pc] = _MISSES
        del self._landed[return_pc]
        self._remove_landing(landed.group, landed.landing.address)

    def _remove_landing(self, group: ProbeGroup, address: int) -> None:
        """Remove the probe at one place of a group; the others get a new link before that."""
        points = [point for point in group.points if point.address != address]
        if not points:
            self._attached.change((), [group])
            return
        smaller = self._group_of(points)
        self._attached.change([smaller], [group])
        for landed in self._landed.values():
            if landed.group is group:
                landed.group = smaller

    def _keep(self, functions: Iterable[_Function], why: str) -> None:
        """Leave the RETs of functions probed for good, or have them probed again."""
        for function in functions:
            function.is_kept, function.why = True, function.why or why
            if function.way is not Way.RETS:
                self._probe_rets(function, Way.RETS, why)

    def _probe_rets(self, function: _Function, way: Way, why: str) -> None:
        if not function.has_rets:
            self._attached.change([function.rets])
            function.has_rets, function.had_landings = True, True
            self._say(function, why)
        self._set(function, way)

    def _say(self, function: _Function, why: str) -> None:
        """Say that the calls of a function are seen at its RETs, and why."""
        function.has_said = True
        self._moves.append(Move(function.number, "ret", why))

    def begin_to_leave(self, number: int) -> None:
        """Expect no calls of a function any more but those that are open."""
        self._by_number[number].is_kept = self._by_number[number].is_left = True

    def leave(self, numbers: Iterable[int]) -> None:
        """Have nothing end calls of functions any more. Raises AttachError or GotraceError."""
        leaving = {self._by_number[number] for number in numbers}
        self._functions = [one for one in self._functions if one not in leaving]
        self._gone += leaving
        for function in leaving:
            self._set(function, Way.RETS)
        if rets := [function.rets for function in leaving if function.has_rets]:
            self._attached.change((), rets)
        for return_pc, landed in list(self._landed.items()):
            gone = [one for one in landed.users if one in leaving]
            landed.users = tuple(one for one in landed.users if one not in leaving)
            self._unset_landing(landed, gone)
            if not landed.users:
                del self._landed[return_pc]
                self._remove_landing(landed.group, landed.landing.address)

    def _set(self, function: _Function, way: Way) -> None:
        function.way = way
        self._ways.update(_U32.pack(function.number), _U32.pack(way.value))
