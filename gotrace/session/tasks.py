# SPDX-License-Identifier: Apache-2.0
"""Whose calls they are: how goroutines are identified in a run, and the probes that takes.

Where g is found and what it looks like comes from the target's runtime; the runtime's own
functions are probed where pairing calls, or reading float registers, depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gotrace.elf import ElfError
from gotrace.elf.functions import Function, FunctionTable, Origin
from gotrace.errors import GotraceError
from gotrace.gotypes.runtime import RuntimeLayout
from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.kernel.btf import task_fsbase_offset
from gotrace.kernel.cookie import TaskKind, cookie
from gotrace.records import dataclass, replace
from gotrace.session.plan import ProbePlan
from gotrace.settings import TaskSettings
from gotrace.sites.sites import Site, function_sites
from gotrace.sites.unwind import unwind_sites
from gotrace.target.target import Target, TargetBinary

__all__ = [
    "Tasks",
    "find_tasks",
    "signal_groups",
    "unwind_groups",
]


@dataclass(frozen=True, slots=True)
class Tasks:
    """How tasks are identified, and which files hold code of the Go runtime.

    ``files`` begins with those of the plan; none where calls are distinguished by thread. A plugin
    shares its host's data but runs its own copy of the runtime's functions.
    """

    files: tuple[TargetBinary, ...]
    layout: RuntimeLayout | None

    def settings(self) -> TaskSettings:
        """Return the settings of bpf/goroutine.h."""
        if self.layout is None:
            return TaskSettings()
        settings = TaskSettings(
            g_stack_hi=self.layout.g_stack_hi,
            g_m=self.layout.g_m,
            g_goid=self.layout.g_goid,
            g_sched_sp=self.layout.g_sched_sp,
            g_startpc=self.layout.g_startpc,
            g_gopc=self.layout.g_gopc,
            m_curg=self.layout.m_curg,
        )
        fsbase, offset = task_fsbase_offset(), self.layout.tls_offset
        if fsbase is None or offset is None:
            return settings
        return replace(settings, task_fsbase=fsbase, tls_g=offset % (1 << 64))

    def kind(self, table: FunctionTable, function: Function) -> TaskKind:
        """Return how the caller of a function is found."""
        if self.layout is None or function.origin is Origin.SYMTAB:
            return TaskKind.THREAD
        if self.layout.g_in_register and not table.is_assembly(function.row):
            return TaskKind.G_REGISTER
        return TaskKind.G_TLS

    @property
    def warning(self) -> str | None:
        """Return what the user should know of the identification, None when all is well."""
        if self.layout is None:
            return "no known Go runtime here: calls are distinguished by thread"
        if self.layout.assumed:
            version = self.files[0].go_version
            return (
                f"{version.text if version else 'this Go'} is newer than this tool: its"
                " goroutines are assumed to look like those of the newest release known"
            )
        return None


def find_tasks(target: Target, plan: ProbePlan) -> Tasks:
    """Read the runtime's layout from the plan's files.

    Raises GotraceError where two files have different ones, or where no probe can find the
    running goroutine; RuntimeLayoutError where a file that has a runtime does not show its layout.
    """
    files = list(dict.fromkeys(p.binary for p in plan.binaries if p.binary.functions.has_pclntab))
    if not files:
        return Tasks((), None)
    if all(file.image.is_shared_library for file in files):
        files += _host(target)
    layouts = [file.runtime for file in files]
    # Only an executable's offset of g is fixed in the file; its plugins use the same variable.
    layout = next((found for found in layouts if found.tls_offset is not None), layouts[0])
    for file, other in zip(files, layouts, strict=True):
        offset = layout.tls_offset if other.tls_offset is None else other.tls_offset
        if replace(other, tls_offset=offset, source=layout.source) != layout:
            first = files[layouts.index(layout)]
            raise GotraceError(
                f"{first.image.display} and {file.image.display} have different Go"
                " runtimes: trace them one by one"
            )
    if not layout.g_in_register and layout.tls_offset is None:
        version = files[0].go_version
        raise GotraceError(
            f"{files[0].image.display}: where a thread's goroutine is kept in a library of"
            f" {version.text if version else 'this Go'} is only known to its process: its calls can"
            " be counted only, or give -p PID of a Go program that has it as a plugin"
        )
    return Tasks(tuple(files), layout)


def _host(target: Target) -> list[TargetBinary]:
    """Return the program that loads the libraries to be traced, where there is one and it is Go."""
    if target.process is None:
        return []
    try:
        binary = target.binary(None)
        is_go = binary.functions.has_pclntab
    except ElfError:  # a script, perhaps
        return []
    return [binary] if is_go else []


def unwind_groups(target: Target, tasks: Tasks) -> list[ProbeGroup]:
    """Return the groups that watch the runtime unwind frames and end goroutines."""
    if tasks.layout is None:
        return []
    kind = TaskKind.G_REGISTER if tasks.layout.g_in_register else TaskKind.G_TLS
    groups = []
    for file in tasks.files:
        found = unwind_sites(file.functions)
        goexit = (found.goexit,) if found.goexit else ()
        groups.append(_group("on_recovery", target, file, found.recoveries, kind))
        groups.append(_group("on_goexit", target, file, goexit, kind))
    return groups


def signal_groups(target: Target, tasks: Tasks) -> list[ProbeGroup]:
    """Return the groups that watch the entry of the runtime's signal handlers."""
    groups = []
    for file in tasks.files:
        table, image = file.functions, file.image
        rows = [
            row
            for name in ("runtime.sigtramp", "runtime.cgoSigtramp")
            for row in table.rows_named(name)
            if not table.is_wrapper(row)
        ]
        found = [function_sites(image, table.function(row), returns=False).entry for row in rows]
        sites = [site for site in found if site is not None]
        groups.append(_group("on_signal", target, file, sites, TaskKind.THREAD))
    return groups


def _group(
    program: str, target: Target, file: TargetBinary, sites: Iterable[Site], kind: TaskKind
) -> ProbeGroup:
    image = file.image
    points = [
        Point(image.offset_of(site.address), site.address, cookie(0, site, kind)) for site in sites
    ]
    path, bias = file.attach_path, file.bias
    identity = image.identity
    return ProbeGroup(program, path, image.display, points, bias, target.pid, identity)
