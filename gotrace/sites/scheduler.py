# SPDX-License-Identifier: Apache-2.0
"""Find where Go's scheduler changes a goroutine's state, and where it starts one.

Every change of a goroutine's status goes through ``runtime.casgstatus``, but for those in these
functions (src/runtime, releases 1.15 to 1.27): ``preemptPark``; the fast paths of
``reentersyscall`` and ``exitsyscall`` since 1.26; ``coroswitch_m``, of iter.Pull, since 1.22;
``casgcopystack`` and ``casGFromPreempted``, which change nothing that is of interest here. All of
these are entered once a change.

A go statement calls ``runtime.newproc``, whose closure on the system stack (``newproc.func1``)
makes the new goroutine and hands it to ``runqput``: src/runtime/proc.go, releases 1.15 to 1.27.
Coroutines of iter.Pull come from ``newcoro`` and are in no queue.
"""

from __future__ import annotations

from gotrace.elf.functions import FuncInfo, FunctionTable
from gotrace.records import dataclass
from gotrace.sites.machine import machine_code
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, SiteKind, function_sites

#: The first field of its argument that coroswitch_m reads so far into it is gp.coroarg.
_MAX_PROLOGUE = 64


@dataclass(frozen=True, slots=True)
class SchedulerSites:
    """The sites of one file's runtime, by the event at each.

    ``syscall`` and ``syscall_end`` are None where casgstatus is enough, ``coroutine`` where no
    goroutine can be switched to directly; with it, ``coroarg`` is the offset in g of what says to
    which. ``cgocall`` is where runtime.cgocall begins and ends, None in programs without it.
    """

    status: Site
    preempt: Site
    syscall: Site | None
    syscall_end: Site | None
    coroutine: Site | None
    stop_world: Site
    start_world: Site
    coroarg: int | None
    cgocall: tuple[int, int] | None


def scheduler_sites(table: FunctionTable) -> SchedulerSites:
    """Return the sites of a Go binary.

    Raises SiteError where a function is not found, or where the one that is entered most could only
    be watched by single-stepping its threads.
    """
    status = _needed(table, "runtime.casgstatus")
    if status.form is SiteForm.FIRST:
        raise SiteError("watching its scheduler would take single-stepping")
    # A status that is changed without casgstatus.
    fast = any(
        machine_code(table.image.arch).swaps(_code(table, function))
        for name in ("runtime.reentersyscall", "runtime.exitsyscall")
        for function in _functions(table, name)
    )
    coroutine = _site(table, "runtime.coroswitch_m")
    coroarg = _coroarg(table) if coroutine else None
    if coroutine and coroarg is None:
        raise SiteError("runtime.coroswitch_m does not begin as in any release known")
    cgo = next(iter(_functions(table, "runtime.cgocall")), None)
    return SchedulerSites(
        status,
        _needed(table, "runtime.preemptPark"),
        _needed(table, "runtime.reentersyscall") if fast else None,
        _needed(table, "runtime.exitsyscall") if fast else None,
        coroutine,
        _needed(table, "runtime.stopTheWorldWithSema"),
        _needed(table, "runtime.startTheWorldWithSema"),
        coroarg,
        (cgo.entry, cgo.end) if cgo else None,
    )


def start_site(table: FunctionTable) -> Site:
    """Return where a Go binary hands each goroutine that a go statement has made to a queue.

    It is a relative call, which the kernel emulates. Raises SiteError.
    """
    arch, version = table.image.arch, table.go_version
    if arch.keeps_g and version is not None and version.release < arch.register_abi:
        raise SiteError("runtime.runqput gets its arguments on the stack in this release")
    machine = machine_code(table.image.arch)
    queues = {function.entry for function in _functions(table, "runtime.runqput")}
    found = []
    for function in _functions(table, "runtime.newproc.func1"):
        code = _code(table, function)
        found += [
            function.entry + call.at
            for call in machine.control_flow(code).calls
            if function.entry + call.target in queues and machine.is_call(code, call.at)
        ]
    if len(found) != 1:
        raise SiteError(f"runtime.newproc.func1 calls runtime.runqput {len(found)} times, not once")
    return Site(found[0], SiteKind.ENTRY, SiteForm.EMULATED, 0)


def runtime_code(table: FunctionTable) -> range | None:
    """Return where the code of package runtime is, None if it is not known to be in one place.

    The linker puts packages one after the other (cmd/link, releases 1.19 to 1.27). Generic
    functions are where they are used, and those that it has for other packages are among its own.
    """
    names = table.names
    own = [row for row, name in enumerate(names) if name.startswith("runtime.") and "[" not in name]
    if not own or any(name.startswith("main.") for name in names[own[0] : own[-1]]):
        return None
    return range(table.function(own[0]).entry, table.function(own[-1]).end)


def _functions(table: FunctionTable, name: str) -> list[FuncInfo]:
    return [table.function(row) for row in table.rows_named(name) if not table.is_wrapper(row)]


def _code(table: FunctionTable, function: FuncInfo) -> bytes:
    return bytes(table.image.read(function.entry, function.end - function.entry))


def _site(table: FunctionTable, name: str) -> Site | None:
    for function in _functions(table, name):
        sites = function_sites(table.image, function, returns=False, stack=False)
        if sites.entry is None:
            raise SiteError(f"{name} cannot be probed: {sites.problem}")
        return sites.entry
    return None


def _needed(table: FunctionTable, name: str) -> Site:
    site = _site(table, name)
    if site is None:
        raise SiteError(f"it has no {name}")
    return site


def _coroarg(table: FunctionTable) -> int | None:
    for function in _functions(table, "runtime.coroswitch_m"):
        code = _code(table, function)[:_MAX_PROLOGUE]
        found = machine_code(table.image.arch).first_field(code)
        if found is not None:
            return found
    return None
