# SPDX-License-Identifier: Apache-2.0
"""Attach BPF programs to sites by the best means that the kernel has."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from itertools import islice

from gotrace.elf.image import FileIdentity
from gotrace.errors import GotraceError
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.compiler import LoadError
from gotrace.kernel.detach_time import close_all, price
from gotrace.kernel.features import multi_filters_by_process
from gotrace.kernel.keeper import Keeper
from gotrace.kernel.methods import AttachMethod
from gotrace.kernel.missing_features import has_attach_cookies
from gotrace.kernel.program import AttachKind, BpfProgram, LackingError, Map
from gotrace.records import dataclass
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
class Attached:
    """A program and the processes that keep its probes in place.

    ``functions`` are the descriptors of the program's loaded functions, by name.
    """

    program: BpfProgram
    method: AttachMethod
    functions: Mapping[str, int] = field(default_factory=dict)
    failed: dict[Point, OSError] = field(default_factory=dict)
    _keepers: list[Keeper] = field(default_factory=list)
    #: The groups that the first keeper has, or had at first if there are parts; in their order.
    _groups: list[ProbeGroup] = field(default_factory=list)
    #: If groups are in parts: those that are alone with a keeper, and it, by identity. The group is
    #: here so that no other gets its identity.
    _alone: dict[int, tuple[ProbeGroup, Keeper]] = field(default_factory=dict)
    _last: Keeper | None = None  # the keeper of the last part
    _killed: bool = False
    #: When hits began to count, by time.monotonic.
    began: float = 0.0
    _halted: Map | None = None
    _stopped: float | None = None  # when, by time.monotonic
    #: A process forked from this one shares the maps, and must not stop the probes here.
    _owner: int = field(default_factory=os.getpid)

    def add(self, groups: Sequence[ProbeGroup], parts: Sequence[int] = ()) -> None:
        """Attach all points, some in each of the groups, whose functions are loaded.

        Groups are attached in order, in ``parts`` of so many and a last one, each by a process of
        its own: see ``leave``. Hits count once all probes are in place, from ``began`` on:
        attaching thousands takes longer than a short interval. Without groups there is no keeper.
        Raises AttachError.
        """
        if self.method is AttachMethod.MULTI and any(group.pid for group in groups):
            multi_filters_by_process()  # what is found out in the keeper is forgotten with it
        self._halted = self.program.map("halted")
        self._halted.update(_ZERO, _ONE)
        rest = iter(groups)
        for size in parts:
            if part := [*islice(rest, size)]:
                self._keep(part, is_part=True)
        if last := [*rest]:
            self._last = self._keep(last, is_part=bool(parts))
        self._groups = self._groups or list(groups)
        if self._stopped is None:
            self._halted.update(_ZERO, _ZERO)
            if self._stopped is not None:  # a signal's handler stopped it in between
                self._halted.update(_ZERO, _ONE)
        self.began = time.monotonic()

    def _keep(self, groups: Sequence[ProbeGroup], is_part: bool = False) -> Keeper:
        probes = _Probes(self.program, self.method, self.functions)
        keeper = Keeper(lambda: probes.attach(groups), probes.detach, probes.held, probes.change)
        self._keepers.append(keeper)
        if is_part and len(groups) == 1:
            self._alone[id(groups[0])] = groups[0], keeper
        self.failed |= keeper.result
        return keeper

    def leave(self) -> None:
        """Remove all but the last part."""
        if self._last is None:
            return
        leaving = [keeper for keeper in self._keepers if keeper is not self._last]
        self._keepers = [self._last]
        self._alone.clear()
        for keeper in leaving:
            keeper.release()
        for keeper in leaving:
            keeper.end(time.monotonic() + _PATIENCE)

    def leave_first(self) -> None:
        """Remove the first part, of several."""
        keeper = self._keepers.pop(0)
        keeper.release()
        keeper.end(time.monotonic() + _PATIENCE)

    def change(
        self, more: Sequence[ProbeGroup] = (), without: Sequence[ProbeGroup] = ()
    ) -> dict[Point, OSError]:
        """Attach all points of further groups, and then remove those of others, while hits count.

        Groups are known by identity, and have points. Return the points that the kernel refuses:
        nothing is removed then. Raises AttachError or GotraceError, also where the probes are being
        removed.
        """
        if not self._keepers:
            raise GotraceError("cannot attach any more: the probes were removed")
        if self._alone:
            return self._change_parts(more, without)
        gone = {id(group) for group in without}
        removed = [number for number, group in enumerate(self._groups) if id(group) in gone]
        refused: dict[Point, OSError] = self._keepers[0].ask((list(more), removed))
        self._groups += more
        if not refused:
            self._groups = [group for group in self._groups if id(group) not in gone]
        return refused

    def _change_parts(
        self, more: Sequence[ProbeGroup], without: Sequence[ProbeGroup]
    ) -> dict[Point, OSError]:
        """Do the work of ``change`` by processes that begin and end."""
        refused: dict[Point, OSError] = {}
        for group in more:
            probes = _Probes(self.program, self.method, self.functions)
            asked = ([group], ())
            keeper = Keeper(partial(probes.change, asked), probes.detach, probes.held)
            self._keepers.append(keeper)
            self._alone[id(group)] = group, keeper
            refused |= keeper.result
        for group in () if refused else without:
            found = self._alone.pop(id(group), None)
            if found is None:
                raise GotraceError("cannot detach: the probes are not alone")
            keeper = found[1]
            self._keepers.remove(keeper)
            keeper.end(time.monotonic() + _PATIENCE)
        return refused

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
        for keeper in reversed(self._keepers):
            keeper.release()

    def is_held(self) -> bool:
        """Return whether the processes that keep the probes in place are there."""
        return all(keeper.holds() for keeper in self._keepers)

    def has_breakpoint(self, process: Process) -> bool | None:
        """Return whether a process's mapping of its executable has a probe of these.

        None if that cannot be found out: the process has ended, or its memory cannot be read. The
        entries are attached last, and stay the longest.
        """
        for group in reversed(self._groups):
            for point in group.points:
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
        while self._keepers:
            keeper = self._keepers.pop()
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
            raise AttachError(
                "the process that held the probes, gotrace-keeper, was killed: later results"
                " are missing"
            )


_PATIENCE = 1.1  # seconds
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

    def attach(self, groups: Iterable[ProbeGroup]) -> dict[Point, OSError]:
        """Attach all points and return those that the kernel refused."""
        for group in groups:
            self.descriptors.append([])
            _ATTACHERS[self.method](self, group, self.functions[group.function])
            if not self.descriptors[-1]:
                raise _MethodUnavailable(self._refusal(group))
        return self.failed

    def _refusal(self, group: ProbeGroup) -> str:
        """Return why the kernel refused all points of the group that was attached last."""
        numbers = {self.failed[point].errno for point in group.points}
        untried = self.method is AttachMethod.MULTI and len(self.descriptors) == 1
        if untried and numbers == {errno.EINVAL}:
            # A kernel that does not know the attachment answers so, whatever the point.
            return f"{_NO_MULTI}, or another tracer, such as bcc's, has probes there: end that one"
        return refusal(self.failed[group.points[0]])

    def held(self) -> list[int]:
        return [descriptor for group in self.descriptors for descriptor in group]

    def change(self, asked: tuple[Sequence[ProbeGroup], Sequence[int]]) -> dict[Point, OSError]:
        """Attach groups and then remove those of some numbers; see ``Attached.change``."""
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
        if not self.failed:
            close_all([one for number in removed for one in self.descriptors[number]])
            for number in sorted(removed, reverse=True):
                del self.descriptors[number]
        return self.failed

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
    parts: Sequence[int] = (),
) -> Attached:
    """Load the groups' functions of a program and attach all points, groups in order.

    ``parts`` are as for ``Attached.add``. ``prepare`` is called
    with the loaded program before anything is attached, to fill its maps, and ``announce`` with
    what the user should know first of what that will cost, if anything.

    Tries the methods from the best on, or only ``forced``. A point that the kernel refuses while
    others of its group are accepted is listed in ``Attached.failed``. Raises AttachError where no
    method works, LoadError where the program is at fault.
    """
    causes: list[str] = []
    for method in [forced] if forced else list(AttachMethod):
        try:
            return _attach_on(method, settings, groups, prepare, announce, parts)
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
    parts: Sequence[int],
) -> Attached:
    if method is AttachMethod.ADDRESS:
        unknown = next((group for group in groups if group.bias is None), None)
        if unknown:
            raise _MethodUnavailable(
                f"{unknown.display} is position independent and its address is not known before"
                " it runs: use -p PID"
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
        rest = iter(groups)
        sizes = [sum(bool(group.points) for group in islice(rest, size)) for size in parts]
        attached.add(wanted, sizes)
        _check_unchanged(wanted)
    except BaseException:
        attached.close()
        raise
    return attached


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
                    " them, or use -p PID"
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
