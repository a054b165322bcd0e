# SPDX-License-Identifier: Apache-2.0
"""Attach BPF programs to sites by the best means that the kernel has."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from gotrace.elf.image import FileIdentity
from gotrace.errors import GotraceError, said
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.compiler import LoadError
from gotrace.kernel.detach_time import close_all, price
from gotrace.kernel.features import multi_filters_by_process
from gotrace.kernel.holder import MAX_HELD
from gotrace.kernel.keeper import Keeper, holds_together
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.missing_features import has_attach_cookies
from gotrace.kernel.program import AttachKind, BpfProgram, LackingError, Map
from gotrace.records import dataclass, field
from gotrace.settings import ProgramSettings
from gotrace.target.process import Process


class AttachError(GotraceError):
    """No method of attaching works, or not the forced one."""


@dataclass(frozen=True, slots=True)
class Point:
    """One place to attach to: its offset in the file, its link-time address, its cookie."""

    offset: int
    address: int
    cookie: int


@dataclass(frozen=True, slots=True)
class ProbeGroup:
    """Points of one file that run one BPF function.

    ``path`` is what the kernel opens, ``display`` what messages call the file. ``bias`` is what the
    target's mapping adds to link-time addresses, None where processes differ in it or it is not
    known yet. ``pid`` limits the breakpoints to one process where the method can do that, 0 is all.
    ``identity`` is the state of the file in which its points were found.
    """

    function: str
    path: str
    display: str
    points: Sequence[Point]
    bias: int | None
    pid: int
    identity: FileIdentity | None = None


@dataclass
class _Kept:
    """The groups that a keeper has, and how many descriptors each takes.

    ``places`` are those of handed descriptors: where those of each group begin, by identity.
    """

    keeper: Keeper
    groups: list[ProbeGroup]
    sizes: Sequence[int]
    places: dict[int, range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Number the descriptors."""
        ends = list(accumulate(self.sizes))
        for group, size, end in zip(self.groups, self.sizes, ends, strict=True):
            self.places[id(group)] = range(end - size, end)

    def change(
        self, more: Sequence[ProbeGroup], without: Sequence[ProbeGroup]
    ) -> dict[Point, OSError]:
        """Have the keeper do what ``Attached.change`` is asked for."""
        gone = {id(group) for group in without}
        removed = [number for number, group in enumerate(self.groups) if id(group) in gone]
        refused: dict[Point, OSError] = self.keeper.ask((list(more), removed))[0]
        self.groups += more
        if not refused:
            self.groups = [group for group in self.groups if id(group) not in gone]
        return refused

    def drop(self, gone: Container[int]) -> bool:
        """Begin to remove the groups of some identities; return whether any are here."""
        here = [group for group in self.groups if id(group) in gone]
        if len(here) == len(self.groups):
            self.groups = []
            self.keeper.release()
        elif here and not self.keeper.is_handed:
            self.change((), here)
        elif here:
            self.keeper.drop([place for group in here for place in self.places.pop(id(group))])
            self.groups = [group for group in self.groups if id(group) not in gone]
        return bool(here)


#: Points that the kernel has refused, and the number of each group's descriptors.
_Changed = tuple[dict[Point, OSError], Sequence[int]]


@dataclass
class Attached:
    """A program and the processes that keep its probes in place.

    ``functions`` are the descriptors of the program's loaded functions, by name.
    """

    program: BpfProgram
    method: AttachMethod
    functions: Mapping[str, int] = field(default_factory=dict)
    failed: dict[Point, OSError] = field(default_factory=dict)
    _kept: list[_Kept] = field(default_factory=list)
    _killed: bool = False
    #: When hits began to count, by time.monotonic.
    began: float = 0.0
    _halted: Map | None = None
    _stopped: float | None = None  # when, by time.monotonic
    #: A process forked from this one shares the maps, and must not stop the probes here.
    _owner: int = field(default_factory=os.getpid)

    def add(self, groups: Sequence[ProbeGroup]) -> None:
        """Attach all points, some in each of the groups, whose functions are loaded.

        Groups are attached in order. Hits count once all probes are in place, from ``began`` on:
        attaching thousands takes longer than a short interval. Without groups there is no keeper.
        Raises AttachError.
        """
        if self.method is AttachMethod.MULTI and any(group.pid for group in groups):
            multi_filters_by_process()  # what is found out in the keeper is forgotten with it
        self._halted = self.program.map("halted")
        self._halted.update(_ZERO, _ONE)
        self.failed |= self._keep(groups)
        _need_probes(self.method, groups, self.failed)
        self.began = time.monotonic()  # nothing that counts is earlier
        if self._stopped is None:
            self._halted.update(_ZERO, _ZERO)
            if self._stopped is not None:  # a signal's handler stopped it in between
                self._halted.update(_ZERO, _ONE)

    def _keep(self, groups: Sequence[ProbeGroup]) -> dict[Point, OSError]:
        """Attach groups, by as few processes as can hand over what they have; return refusals."""
        size = _HANDED if holds_together() else len(groups)
        refused: dict[Point, OSError] = {}
        for at in range(0, len(groups), size or 1):
            some = list(groups[at : at + size])
            probes = _Probes(self.program, self.method, self.functions)
            asked = partial(probes.change, (some, ()))
            keeper = Keeper(asked, probes.detach, probes.held, probes.change)
            failed, sizes = keeper.result
            self._kept.append(_Kept(keeper, some, sizes))
            refused |= failed
        return refused

    def change(
        self, more: Sequence[ProbeGroup] = (), without: Sequence[ProbeGroup] = ()
    ) -> dict[Point, OSError]:
        """Attach all points of further groups, and then remove those of others, while hits count.

        Groups are known by identity, and have points. Return the points that the kernel refuses:
        nothing is removed then. Raises AttachError or GotraceError, also where the probes are being
        removed.
        """
        if not self._kept:
            raise GotraceError("cannot attach any more: the probes were removed")
        if len(self._kept) == 1 and not self._kept[0].keeper.is_handed:
            return self._kept[0].change(more, without)
        refused = self._keep(more)
        gone = {id(group) for group in without}
        kept = [] if refused else [one for one in self._kept if one.drop(gone)]
        self._kept = [one for one in self._kept if one.groups]
        until = time.monotonic() + _PATIENCE
        for one in kept:
            if one.groups:
                one.keeper.wait(until)
            else:
                one.keeper.end(until)
        return refused

    def extend(self, groups: Sequence[ProbeGroup]) -> dict[Point, OSError]:
        """Attach groups of a further file while hits count, if that is as it was when it was read.

        A keeper that has been forked before does not have the file. Return the points that the
        kernel refuses, which ``failed`` has as well. Raises as ``change`` does.
        """
        if not self._kept:
            raise GotraceError("cannot attach any more: the probes were removed")
        _check_unchanged(groups)
        refused = self._keep(groups)
        self.failed |= refused
        _check_unchanged(groups)
        return refused

    def leave(self, but: Iterable[ProbeGroup]) -> None:
        """Remove all groups but some, while hits count. Raises as ``change`` does."""
        staying = {id(group) for group in but}
        self.change((), [one for one in self._groups() if id(one) not in staying])

    def _groups(self) -> list[ProbeGroup]:
        return [group for kept in self._kept for group in kept.groups]

    def stop(self) -> None:
        """Ignore hits from now on, and remove the probes without waiting for that.

        Programs that run at this moment may still change maps: see ``kernel.wait_for_programs``.
        May be called in any thread, in a signal handler, and more than once.
        """
        if os.getpid() != self._owner:
            return
        if self._stopped is None:
            self._stopped = time.monotonic()
        with suppress(OSError):  # hits go on to count until the probes are removed
            if self._halted is not None:
                self._halted.update(_ZERO, _ONE)
        for kept in reversed(self._kept):
            kept.keeper.release()

    def is_held(self) -> bool:
        """Return whether the processes that keep the probes in place are there."""
        return all(kept.keeper.holds() for kept in self._kept)

    def has_breakpoint(self, process: Process, file: FileIdentity | None = None) -> bool | None:
        """Return whether a process's mapping of its executable has a probe of these.

        ``file`` is that executable, if probes are in several. None if that cannot be found out: the
        process has ended, or its memory cannot be read. The entries are attached last, and stay the
        longest.
        """
        for group in reversed(self._groups()):
            for point in group.points if file in (None, group.identity) else ():
                if point not in self.failed:
                    code = process.code_at(point.offset)
                    return None if code is None else _BREAKPOINT in code
        return None

    @property
    def stopped_at(self) -> float | None:
        """Return when ``stop`` was called first, by ``time.monotonic``; None before."""
        return self._stopped

    def detach(self, until: float | None = None) -> list[int]:
        """Stop, and wait for the probes to be removed; maps can still be read.

        ``until`` (``time.monotonic``) bounds the wait, by default a second after ``stop`` was first
        called: removing hundreds of perf events takes the kernel minutes. Return the processes that
        go on with it after that: they end by themselves.
        """
        self.stop()
        if until is None:
            until = (self._stopped or 0.0) + _PATIENCE
        left = []
        while self._kept:
            keeper = self._kept.pop().keeper
            if keeper.end(until):
                self._killed = self._killed or keeper.killed
            else:
                left.append(keeper.pid)
        return left

    def close(self) -> None:
        """Remove all probes and unload the program.

        If the removal takes longer than ``detach`` waits, it goes on without this process. Raises
        AttachError if the probes were gone before that: the results are not whole.
        """
        if os.getpid() != self._owner:
            return
        self.detach()
        self.program.close()
        if self._killed:
            raise AttachError(KILLED)


KILLED = "the process that held the probes, gotrace-keeper, was killed: later results are missing"
_PATIENCE = 1.1  # seconds
#: Groups of one keeper that hands them over: each mostly has one descriptor.
_HANDED = MAX_HELD * 4 // 5
_BREAKPOINT = 0xCC
_ZERO, _ONE = bytes(4), (1).to_bytes(4, "little")


@dataclass
class _Probes:
    """Own, in the keeper, the descriptors that keep probes in place, by group."""

    program: BpfProgram
    method: AttachMethod
    functions: Mapping[str, int]
    descriptors: list[list[int]] = field(default_factory=list)
    failed: dict[Point, OSError] = field(default_factory=dict)

    def held(self) -> list[int]:
        return [descriptor for group in self.descriptors for descriptor in group]

    def change(self, asked: tuple[Sequence[ProbeGroup], Sequence[int]]) -> _Changed:
        """Attach groups and then remove those of some numbers; see ``Attached.change``.

        Return which points the kernel has refused, and how many descriptors each new group has.
        """
        more, removed = asked
        self.failed = {}
        before = len(self.descriptors)
        try:
            for group in more:
                self.descriptors.append([])
                _ATTACHERS[self.method](self, group, self.functions[group.function])
        except BaseException:  # numbers stay those of the groups that there are
            close_all([one for group in self.descriptors[before:] for one in group])
            del self.descriptors[before:]
            raise
        sizes = [len(group) for group in self.descriptors[before:]]
        if not self.failed:
            close_all([one for number in removed for one in self.descriptors[number]])
            for number in sorted(removed, reverse=True):
                del self.descriptors[number]
        return self.failed, sizes

    def detach(self) -> None:
        """Remove all probes, the groups attached last first.

        Each perf event takes the kernel some time: see the module ``removal``. Links wait for
        grace periods only, all of them for the same if they are closed at once.
        """
        if self.method is AttachMethod.MULTI:
            self.descriptors = [self.held()]
        while self.descriptors:
            close_all(self.descriptors.pop())


def attach(
    settings: ProgramSettings,
    groups: Sequence[ProbeGroup],
    forced: AttachMethod | None = None,
    prepare: Callable[[BpfProgram], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> Attached:
    """Load the groups' functions of a program and attach all points, groups in order.

    ``prepare`` is called with the loaded program before anything is attached, to fill its maps, and
    ``announce`` with what the user should know first of what that will cost, if anything.

    Tries the methods from the best on, or only ``forced``. A point that the kernel refuses while it
    accepts others of that function in the file is listed in ``Attached.failed``. Raises AttachError
    where no method works, LoadError where the program is at fault.
    """
    causes: list[str] = []
    for method in [forced] if forced else list(AttachMethod):
        try:
            return _attach_on(method, settings, groups, prepare, announce)
        except _MethodUnavailable as error:
            causes.append(f"{method.value}: {error}")
    what = groups[0].display if groups else settings.source
    raise AttachError(f"cannot attach to {what}: {'; '.join(causes)}")


def refusal(error: OSError) -> str:
    """Return why the kernel refused a probe, where it is known what to do about it with that."""
    if error.errno == errno.EINVAL:
        # Source: alloc_uprobe in kernel/events/uprobes.c ("ref_ctr_offset mismatch").
        return "another tracer, such as a bcc tool, has a probe at this instruction: end it first"
    return error.strerror or str(error)


_NO_MULTI = "this kernel has no uprobe-multi links (Linux 6.6)"


class _MethodUnavailable(Exception):
    """Why a method cannot be used here, though another may."""


def _attach_on(
    method: AttachMethod,
    settings: ProgramSettings,
    groups: Sequence[ProbeGroup],
    prepare: Callable[[BpfProgram], None] | None,
    announce: Callable[[str], None] | None,
) -> Attached:
    if method is AttachMethod.ADDRESS:
        unknown = next((group for group in groups if group.bias is None), None)
        if unknown:
            raise _MethodUnavailable(
                f"{unknown.display} is position independent and its address is not known before"
                f" it runs: use {said('-p PID', 'attach(pid)')}"
            )
        _need_own_addresses(groups)
        settings = settings.by_address(sum(len(group.points) for group in groups) or 1)
    attached = Attached(BpfProgram(settings), method)
    try:
        wanted = [group for group in groups if group.points]
        attached.functions = _load(attached, {group.function for group in wanted})
        if prepare is not None:
            attached.program.map("halted").update(_ZERO, _ONE)  # whatever it attaches by itself
            prepare(attached.program)
        if method is not AttachMethod.MULTI:
            # A limit on descriptors must refuse them before the price is announced. The keeper
            # inherits the limit.
            for group in wanted:
                _need_descriptors(_DESCRIPTORS[method] * len(group.points), group)
        if announce is not None and method is not AttachMethod.MULTI:
            text = price(sum(len(group.points) for group in wanted))
            if text is not None:
                announce(text)
        _check_unchanged(wanted)
        attached.add(wanted)
        _check_unchanged(wanted)
    except BaseException:
        attached.close()
        raise
    return attached


def _need_probes(
    method: AttachMethod, groups: Iterable[ProbeGroup], refused: Mapping[Point, OSError]
) -> None:
    """Raise _MethodUnavailable where the kernel refused all points of a function in a file."""
    together: dict[tuple[str, str], list[Point]] = {}
    for group in groups if refused else ():
        together.setdefault((group.function, group.path), []).extend(group.points)
    for number, points in enumerate(together.values()):
        if not all(point in refused for point in points):
            continue
        is_untried = method is AttachMethod.MULTI and number == 0
        if is_untried and {refused[point].errno for point in points} == {errno.EINVAL}:
            # A kernel that does not know the attachment answers so, whatever the point.
            why = f"{_NO_MULTI}, or another tracer, such as bcc's, has probes there: end that one"
            raise _MethodUnavailable(why)
        raise _MethodUnavailable(refusal(refused[points[0]]))


def _need_own_addresses(groups: Iterable[ProbeGroup]) -> None:
    """Raise _MethodUnavailable where sites of two files have one address, in two processes."""
    owners: dict[int, str] = {}
    for group in groups:
        for point in group.points:
            address = point.address + (group.bias or 0)
            owner = owners.setdefault(address, group.display)
            if owner != group.display:
                raise _MethodUnavailable(
                    f"{owner} and {group.display} have functions at the same address: trace one of"
                    f" them, or use {said('-p PID', 'attach(pid)')}"
                )


def _check_unchanged(groups: Iterable[ProbeGroup]) -> None:
    """Refuse files that were written to since they were read: their code may be elsewhere now.

    Asked before and after attaching, so that there is no moment in between. The file of a running
    program cannot be written to, but libraries and programs yet to be started can.
    """
    for group in groups:
        if group.identity is not None and FileIdentity.of(group.path) != group.identity:
            raise AttachError(
                f"cannot attach to {group.display}: it was written to while it was being read:"
                " start again when that is done"
            )


def _load(attached: Attached, functions: Iterable[str]) -> dict[str, int]:
    is_multi = attached.method is AttachMethod.MULTI
    kind = AttachKind.UPROBE_MULTI if is_multi else AttachKind.PERF_EVENT
    try:
        return attached.program.load(functions, kind)
    except LackingError:
        raise  # with any method
    except LoadError as error:
        if attached.method is AttachMethod.ADDRESS or "permit" in str(error):
            raise
        raise _MethodUnavailable(_load_refusal(attached.method, error)) from error


def _load_refusal(method: AttachMethod, error: LoadError) -> str:
    """Return why a program could not be loaded for a method that gives it cookies."""
    if has_attach_cookies():
        return str(error)
    return _NO_MULTI if method is AttachMethod.MULTI else "this kernel has no cookies (Linux 5.15)"


def _attach_multi(probes: _Probes, group: ProbeGroup, program: int) -> None:
    _link_all(probes, group, program, list(group.points))


def _link_all(probes: _Probes, group: ProbeGroup, program: int, points: Sequence[Point]) -> None:
    """Link all points, by halves where the kernel refuses the whole, to find those at fault."""
    try:
        fd = kernel.link_uprobe_multi(
            program,
            group.path,
            [point.offset for point in points],
            [point.cookie for point in points],
            # Where that filter is wrong the programs' own is enough; others' hits just cost more.
            group.pid if group.pid and multi_filters_by_process() else 0,
        )
        probes.descriptors[-1].append(fd)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise _not_permitted(group) from error
        if error.errno == errno.ESRCH:
            raise AttachError(f"cannot attach to {group.display}: the process has ended") from error
        if len(points) == 1:
            probes.failed[points[0]] = error
            return
        middle = len(points) // 2
        _link_all(probes, group, program, points[:middle])
        _link_all(probes, group, program, points[middle:])


def _attach_cookie(probes: _Probes, group: ProbeGroup, program: int) -> None:
    for point in group.points:
        event = _open_event(probes, group, point)
        if event is None:
            continue
        try:
            probes.descriptors[-1].append(kernel.link_perf_event(program, event, point.cookie))
        except OSError as error:
            raise _MethodUnavailable(f"no cookie for perf events: {error.strerror}") from error


def _attach_address(probes: _Probes, group: ProbeGroup, program: int) -> None:
    site_by_ip = probes.program.map("site_by_ip")
    assert group.bias is not None
    for point in group.points:
        address = point.address + group.bias
        site_by_ip.update(address.to_bytes(8, "little"), point.cookie.to_bytes(8, "little"))
    for point in group.points:
        event = _open_event(probes, group, point)
        if event is not None:
            kernel.set_perf_event_program(event, program)


def _open_event(probes: _Probes, group: ProbeGroup, point: Point) -> int | None:
    try:
        event = kernel.open_uprobe(group.path, point.offset)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise _not_permitted(group) from error
        if error.errno == errno.ENOENT:
            raise _MethodUnavailable(error.strerror or "no uprobe event source") from error
        probes.failed[point] = error
        return None
    probes.descriptors[-1].append(event)
    return event


#: Open files that each probe takes.
_DESCRIPTORS = {AttachMethod.COOKIE: 2, AttachMethod.ADDRESS: 1}
_ATTACHERS = {
    AttachMethod.MULTI: _attach_multi,
    AttachMethod.COOKIE: _attach_cookie,
    AttachMethod.ADDRESS: _attach_address,
}


def _not_permitted(group: ProbeGroup) -> AttachError:
    return AttachError(
        f"cannot attach to {group.display}: the kernel does not permit it: run as root, or with"
        " CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN for perf events)"
    )


def _need_descriptors(count: int, group: ProbeGroup) -> None:
    """Raise this process's limit of open files to hold ``count`` more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + count + 32
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    try:
        top = wanted if hard == resource.RLIM_INFINITY else max(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, top))
    except (OSError, ValueError) as error:
        raise AttachError(
            f"cannot attach to {group.display}: {len(group.points)} probes need {wanted} open"
            f" files here and the limit is {hard}: trace fewer functions or raise ulimit -n"
        ) from error
