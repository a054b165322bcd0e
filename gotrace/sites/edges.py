# SPDX-License-Identifier: Apache-2.0
"""Find where Go's runtime hands work from goroutine to goroutine: channels and timers.

The sites in ``chansend``, ``chanrecv`` and ``selectgo`` are calls of ``typedmemmove``, ``send`` and
``recv``, and the branch around such a call. The kernel emulates all of them. The channel is locked
there, so that what is reported of one channel is in order (src/runtime/chan.go and select.go,
releases 1.19 to 1.27). Non-blocking operations and those of package reflect come there as well.

Where a function keeps the channel, and where that has ``recvx``, is read from the code that comes
after the copy: it loads the one, then the other from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.elf.functions import FuncInfo, FunctionTable
from gotrace.records import dataclass
from gotrace.sites.hashed import is_kept_out
from gotrace.sites.landings import Callers
from gotrace.sites.machine import MachineCode, machine_code
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, SiteKind, function_sites

#: The loads come within so many bytes of the call that copies.
_NEAR = 32
#: The branch around a copy to nowhere comes at most so many bytes before it.
_BEFORE = 40
#: The frames between a function and that of the statement: chanrecv1 or the like is one of them.
_FRAMES = {"runtime.chanrecv": 2, "runtime.selectgo": 1}
#: Bytes from a timer to the word of its function's argument, from a release on: struct timer, and
#: what has it within from Go 1.23 on. That of time.newTimer is in a register.
_TIMER_ARGUMENTS = {(1, 25): 72, (1, 23): 64, (1, 15): 40}
_TIMERS = ("time.newTimer", "time.startTimer", "time.resetTimer")
_AFTER = "context.AfterFunc"


@dataclass(frozen=True, slots=True)
class EdgeSite:
    """A site, the BPF function for it, and the number that this wants in its cookie."""

    function: str
    site: Site
    number: int = 0


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of one function that matter, as offsets from its entry, by what is called."""

    name: str
    entry: int
    code: bytes
    machine: MachineCode
    calls: tuple[tuple[int, str], ...]

    def of(self, name: str) -> list[int]:
        return [at for at, called in self.calls if called == name]

    def site(self, at: int) -> Site:
        if not self.machine.is_call(self.code, at):
            raise SiteError(f"{self.name} does not call as in any release known")
        return Site(self.entry + at, SiteKind.ENTRY, SiteForm.EMULATED, 0)

    def loads(self, at: int) -> tuple[int, int]:
        """Return where the channel is on the stack after a call, and its index, in words."""
        behind = at + self.machine.call_size
        found = self.machine.field_of_local(self.code[behind : behind + _NEAR])
        if found is None:
            raise SiteError(f"{self.name} does not keep its channel as in any release known")
        spill, index = found
        if spill % 8 or index % 8 or spill >= 0x800:
            raise SiteError(f"{self.name} does not keep its channel as in any release known")
        return spill // 8, index // 8


_CALLED = ("typedmemmove", "typedmemclr", "send", "recv", "selunlock")


def channel_sites(table: FunctionTable) -> list[EdgeSite]:
    """Return the sites of a Go binary's channels. Raises SiteError."""
    return [
        *_senders(_calls(table, "runtime.chansend")),
        *_receivers(_calls(table, "runtime.chanrecv")),
        *(site for calls in _select(table) for site in (*_senders(calls), *_receivers(calls))),
    ]


def _select(table: FunctionTable) -> Iterator[_Calls]:
    """Yield selectgo, which a program has that has a select statement of several cases."""
    if table.rows_named("runtime.selectgo"):
        yield _calls(table, "runtime.selectgo")


def _senders(calls: _Calls) -> list[EdgeSite]:
    """Return the sites of sends: the first copy is into the buffer."""
    moves, sends = calls.of("typedmemmove"), calls.of("send")
    if not moves or len(sends) != 1:
        raise SiteError(f"{calls.name} does not copy as in any release known")
    spill, sendx = calls.loads(moves[0])
    number = spill | sendx - 1 << 8
    return [
        EdgeSite("on_write", calls.site(moves[0]), number),
        EdgeSite("on_send", calls.site(sends[0]), number),
    ]


def _receivers(calls: _Calls) -> list[EdgeSite]:
    """Return the sites of receives: the last copy is from the buffer, whose slot is cleared."""
    moves, clears, receives = calls.of("typedmemmove"), calls.of("typedmemclr"), calls.of("recv")
    cleared = [at for at in clears if moves and at > moves[-1]]
    if not cleared or len(receives) != 1:
        raise SiteError(f"{calls.name} does not copy as in any release known")
    before = max(0, moves[-1] - _BEFORE)
    tests = calls.machine.null_tests(calls.code[before : moves[-1]])
    if len(tests) != 1:
        raise SiteError(f"{calls.name} does not copy as in any release known")
    ((at, tested),) = tests
    branch = Site(calls.entry + before + at, SiteKind.ENTRY, SiteForm.EMULATED, 0)
    spill, recvx = calls.loads(cleared[0])
    number = spill | recvx - 2 << 8 | _FRAMES[calls.name] << 16
    # Before the last copy: of a closed channel.
    misses = [at for at in clears if at < moves[-1]]
    size = calls.machine.call_size
    unlocks = calls.of("selunlock")
    misses += [at for at in unlocks if calls.machine.returns_no_case(calls.code[at + size :])]
    return [
        EdgeSite("on_read", branch, number | tested << 18),
        EdgeSite("on_receive", calls.site(receives[0]), number),
        *(EdgeSite("on_miss", calls.site(at), number) for at in misses),
    ]


def try_sites(table: FunctionTable) -> list[EdgeSite]:
    """Return where a program looks for an item without a wait for it, in statements of one case."""
    entries = [function.entry for function in _functions(table, "runtime.selectnbrecv")]
    callers = Callers(table)
    calls = callers.search(entries, proves=False).run().calls
    found = []
    for return_pc in sorted(at for places in calls.values() for at in places):
        at = return_pc - callers.machine.call_size
        before, call = bytes(table.image.read(at - _NEAR, _NEAR)), bytes(table.image.read(at, 4))
        if is_kept_out(table.image, at, return_pc):
            continue
        if callers.machine.is_call(call, 0) and not callers.machine.passes_nil(before):
            found.append(EdgeSite("on_try", Site(at, SiteKind.ENTRY, SiteForm.EMULATED, 0)))
    return found


def collection_site(table: FunctionTable) -> EdgeSite:
    """Return where the collector knows what is not in use any more. Raises SiteError."""
    for function in _functions(table, "runtime.gcMarkTermination"):
        site = function_sites(table.image, function, returns=False, stack=False).entry
        if site is not None:
            return EdgeSite("on_collected", site)
    raise SiteError("runtime.gcMarkTermination cannot be probed")


def timer_sites(table: FunctionTable) -> list[EdgeSite]:
    """Return where timers are made, and reset, as far as a program does. Raises SiteError."""
    release = table.go_version.release if table.go_version else (1, 15)
    argument = next(at for since, at in _TIMER_ARGUMENTS.items() if since <= release)
    found = []
    for name in _TIMERS:
        for function in _functions(table, name):
            sites = function_sites(table.image, function, returns=False, stack=False)
            if sites.entry is None:
                raise SiteError(f"{name} cannot be probed: {sites.problem}")
            number = 0 if name == _TIMERS[0] else argument
            found.append(EdgeSite("on_timer", sites.entry, number))
    for function in _functions(table, _AFTER):
        site = function_sites(table.image, function, returns=False, stack=False).entry
        if site is not None:
            found.append(EdgeSite("on_after", site))
    return found


def _calls(table: FunctionTable, name: str) -> _Calls:
    places = {
        function.entry: called
        for called in _CALLED
        for function in _functions(table, f"runtime.{called}")
    }
    for function in _functions(table, name):
        code = bytes(table.image.read(function.entry, function.end - function.entry))
        machine = machine_code(table.image.arch)
        found = [
            (call.at, places[function.entry + call.target])
            for call in machine.control_flow(code).calls
            if function.entry + call.target in places
        ]
        return _Calls(name, function.entry, code, machine, tuple(found))
    raise SiteError(f"it has no {name}")


def _functions(table: FunctionTable, name: str) -> list[FuncInfo]:
    return [table.function(row) for row in table.rows_named(name) if not table.is_wrapper(row)]
