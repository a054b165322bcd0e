# SPDX-License-Identifier: Apache-2.0
"""Whose calls they are: how goroutines are identified in a run, and the probes that takes.

Where g is found and what it looks like comes from the target's runtime; the runtime's own
functions are probed where pairing calls, or reading float registers, depends on it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence

from gotrace.elf import ElfError
from gotrace.elf.functions import FuncInfo, Origin
from gotrace.errors import GotraceError, said
from gotrace.goroutines.program import module_of
from gotrace.gotypes.runtime import LayoutSource, RuntimeLayout
from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.kernel.btf import task_fsbase_offset
from gotrace.kernel.cookie import MAX_FILES, TaskKind, cookie
from gotrace.kernel.program import BpfProgram
from gotrace.records import dataclass, replace
from gotrace.session.plan import ProbePlan
from gotrace.settings import InterruptedSettings, TaskSettings
from gotrace.sites.sites import Site, function_sites
from gotrace.sites.unwind import unwind_sites
from gotrace.target.target import Target, TargetBinary


@dataclass(frozen=True, slots=True)
class Tasks:
    """How tasks are identified, and which files hold code of the Go runtime.

    ``files`` begins with those of the plan; none where calls are distinguished by thread. A plugin
    shares its host's data but runs its own copy of the runtime's functions.

    ``layout`` is that of all files. Where these have different ones it is the first, and
    ``layouts`` has each file's, by the files' numbers in cookies. ``numbered`` are the files that
    have such numbers, in their order, none where no program distinguishes files: then all have
    ``number``.
    """

    files: tuple[TargetBinary, ...]
    layout: RuntimeLayout | None
    layouts: tuple[RuntimeLayout | None, ...] = ()
    numbered: tuple[TargetBinary, ...] = ()
    number: int = 0

    def settings(self) -> TaskSettings:
        """Return the settings of bpf/goroutine.h."""
        if self.layout is None:
            return TaskSettings()
        if self.layouts:
            # A run's questions why things take time are alike in all files.
            return TaskSettings(
                g_waitreason=self.layout.g_waitreason,
                task_fsbase=task_fsbase_offset(),
                layouts=len(self.layouts),
            )
        settings = TaskSettings(
            g_stack_hi=self.layout.g_stack_hi,
            g_m=self.layout.g_m,
            g_goid=self.layout.g_goid,
            g_sched_sp=self.layout.g_sched_sp,
            g_startpc=self.layout.g_startpc,
            g_gopc=self.layout.g_gopc,
            m_curg=self.layout.m_curg,
            g_waitreason=self.layout.g_waitreason,
        )
        fsbase, offset = task_fsbase_offset(), self.layout.tls_offset
        if fsbase is None or offset is None:
            return settings
        return replace(settings, task_fsbase=fsbase, tls_g=offset % (1 << 64))

    def prepare(self, program: BpfProgram) -> None:
        """Fill the map of a loaded program that those settings are about."""
        if self.layouts:
            rows = [_row(layout) if layout else bytes(_LAYOUT.size) for layout in self.layouts]
            program.map("layouts").update_array(0, rows)

    def kind(self, file: TargetBinary, function: FuncInfo) -> tuple[TaskKind, int]:
        """Return how the caller of a function is found, and its file's number in cookies."""
        layout, number = self._of(file)
        if layout is None or function.origin is Origin.SYMTAB:
            return TaskKind.THREAD, number
        is_assembly = file.functions.is_assembly(function.row) and not file.image.arch.keeps_g
        if layout.g_in_register and not is_assembly:
            return TaskKind.G_REGISTER, number
        return TaskKind.G_TLS, number

    def runtime_kind(self, file: TargetBinary) -> tuple[TaskKind, int]:
        """Return the same of functions of the runtime in a file that has it."""
        layout, number = self._of(file)
        in_register = layout is not None and layout.g_in_register
        return TaskKind.G_REGISTER if in_register else TaskKind.G_TLS, number

    def _of(self, file: TargetBinary) -> tuple[RuntimeLayout | None, int]:
        number = self.numbered.index(file) if file in self.numbered else self.number
        return self.layouts[number] if self.layouts else self.layout, number

    @property
    def warning(self) -> str | None:
        """Return a warning about the identification of calls, None if there is nothing to say."""
        if self.layout is None:
            return "no known Go runtime here: calls are distinguished by thread"
        layouts = [layout for layout in self.layouts if layout] or [self.layout]
        if any(layout.assumed for layout in layouts):
            assumed = (file.go_version for file in self.files if file.runtime.assumed)
            version = next(assumed, None)
            return (
                f"{version.text if version else 'this Go'} is newer than this tool: its"
                " goroutines are assumed to look like those of the newest release known"
            )
        return None


#: struct layout of bpf/goroutine.h: fields of RuntimeLayout, and that of ``tls_offset``.
_OFFSETS = (
    "g_stack_hi",
    "g_m",
    "g_goid",
    "g_sched_sp",
    "g_startpc",
    "g_gopc",
    "m_curg",
    "g_waitreason",
)
_LAYOUT = struct.Struct(f"={len(_OFFSETS) + 1}Q")


def _row(layout: RuntimeLayout) -> bytes:
    offsets = [getattr(layout, name) for name in _OFFSETS]
    return _LAYOUT.pack(*offsets, (layout.tls_offset or 0) % (1 << 64))


def find_tasks(target: Target, plan: ProbePlan) -> Tasks:
    """Read the runtimes' layouts from the plan's files.

    Raises GotraceError where no probe can find the running goroutine; RuntimeLayoutError where a
    file that has a runtime does not show its layout.
    """
    every = plan.files
    files = [file for file in every if file.functions.has_pclntab]
    is_several = bool(plan.program_names)
    if not files:
        return Tasks((), None, (), _numbered(every) if is_several else ())
    if all(file.image.is_shared_library for file in files):
        hosts = [host for host in _host(target) if host not in files]
        files, every = [*files, *hosts], [*every, *hosts]
    layouts = dict(zip(files, _layouts(files), strict=True))
    for file, layout in layouts.items():
        if not layout.g_in_register and layout.tls_offset is None:
            version = file.go_version
            raise GotraceError(
                f"{file.image.display}: where a thread's goroutine is kept in a library of"
                f" {version.text if version else 'this Go'} is only known to its process: its"
                " calls can be counted only, or"
                f" {said('give -p PID of', 'attach to')} a Go program that has it as a plugin"
            )
    first = layouts[files[0]]
    if all(_row(layout) == _row(first) for layout in layouts.values()):
        kinds = {layout.g_in_register for layout in layouts.values()}
        if len(kinds) == 1:
            return Tasks(tuple(files), first, (), _numbered(every) if is_several else ())
    by_number = tuple(layouts.get(file) for file in every)
    return Tasks(tuple(files), first, by_number, _numbered(every))


def _layouts(files: Sequence[TargetBinary]) -> list[RuntimeLayout]:
    """Return the layout of each file's runtime, those of libraries with the offset of g.

    Only an executable's is fixed in its file; its plugins use the same variable.
    """
    found = [file.runtime for file in files]
    offsets = {
        replace(layout, tls_offset=None, source=LayoutSource.TABLE): layout.tls_offset
        for layout in reversed(found)
        if layout.tls_offset is not None
    }
    return [
        layout
        if layout.tls_offset is not None
        else replace(
            layout,
            tls_offset=offsets.get(replace(layout, tls_offset=None, source=LayoutSource.TABLE)),
        )
        for layout in found
    ]


def _numbered(files: Sequence[TargetBinary]) -> tuple[TargetBinary, ...]:
    if len(files) > MAX_FILES:
        raise GotraceError(
            f"{len(files)} files, and at most {MAX_FILES} are traced: leave out some"
        )
    return tuple(files)


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
    groups = []
    for file in tasks.files:
        kind = tasks.runtime_kind(file)
        found = unwind_sites(file.functions)
        groups.append(runtime_group("on_recovery", target, file, found.recoveries, kind))
        groups.append(runtime_group("on_goexit", target, file, found.ends, kind))
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
        found = [
            function_sites(image, table.function(row), returns=False, stack=False).entry
            for row in rows
        ]
        sites = [site for site in found if site is not None]
        groups.append(runtime_group("on_signal", target, file, sites, (TaskKind.THREAD, 0)))
    return groups


def runtime_group(
    program: str,
    target: Target,
    file: TargetBinary,
    sites: Iterable[Site],
    task: tuple[TaskKind, int],
    number: int = 0,
) -> ProbeGroup:
    """Return the group of a BPF function at sites in the runtime; cookies have the ``number``."""
    image = file.image
    kind, of_file = task
    points = [
        Point(
            image.offset_of(site.address),
            site.address,
            cookie(number, site, kind, file=of_file),
        )
        for site in sites
    ]
    path, bias = file.attach_path, file.bias
    identity = image.identity
    return ProbeGroup(program, path, image.display, points, bias, target.pid, identity)


#: Where Linux puts position independent programs: ELF_ET_DYN_BASE and what is added at random
#: (arch/x86/include/asm/elf.h, fs/binfmt_elf.c).
_PIE_TEXT = (0x5555_0000_0000, 0x6656_0000_0000)


def interrupted_settings(tasks: Tasks) -> InterruptedSettings:
    """Return where the code of the first file is in memory, or will be. Raises GotraceError."""
    file = tasks.files[0]
    assert tasks.layout is not None
    bias = file.find_bias()
    start, end = _PIE_TEXT
    if bias is not None:
        module = module_of(file, bias)
        start, end = module.start, module.end
    table = file.functions
    # Next to each other: functions without a context jump from the second to the first.
    names = ("runtime.morestack", "runtime.morestack_noctxt")
    grow = [table.function(row) for name in names for row in table.rows_named(name)]
    entry = min((each.entry for each in grow), default=0)
    return InterruptedSettings(
        text_start=start,
        text_end=end,
        morestack=entry + (bias or 0),
        morestack_size=max((each.end for each in grow), default=0) - entry,
        # Of a program to come, only where in a page its code will be.
        morestack_mask=(1 << 64) - 1 if bias is not None else mmap.PAGESIZE - 1,
        sched_bp=tasks.layout.g_sched_bp - tasks.layout.g_sched_sp,
    )
