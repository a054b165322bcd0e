"""Settle how goroutines are told apart in a run: where g is found and what it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gotrace.elf.functions import Function, FunctionTable, Origin, load_functions
from gotrace.elf.image import ElfError
from gotrace.errors import GotraceError
from gotrace.goabi.runtime import RuntimeLayout, runtime_layout
from gotrace.session.btf import task_fsbase_offset
from gotrace.session.cookie import CallerKind
from gotrace.session.plan import BinaryPlan, Plan
from gotrace.session.target import Target

__all__ = ["Callers", "find_callers"]

_NO_OFFSETS = dict.fromkeys(
    ("G_STACK_HI", "G_M", "G_GOID", "G_SCHED_SP", "G_STARTPC", "G_GOPC", "M_CURG", "TLS_G"), 0
)


@dataclass(frozen=True, slots=True)
class Callers:
    """Say how callers are identified, and which files hold code of the Go runtime.

    ``files`` begins with those of the plan; none where calls are told apart by thread. A plugin
    shares its host's data but runs its own copy of the runtime's functions.
    """

    files: tuple[BinaryPlan, ...]
    layout: RuntimeLayout | None

    def defines(self) -> Mapping[str, int]:
        """Return the compile-time settings of bpf/goroutine.h."""
        if self.layout is None:
            return _NO_OFFSETS
        settings = {
            "G_STACK_HI": self.layout.g_stack_hi,
            "G_M": self.layout.g_m,
            "G_GOID": self.layout.g_goid,
            "G_SCHED_SP": self.layout.g_sched_sp,
            "G_STARTPC": self.layout.g_startpc,
            "G_GOPC": self.layout.g_gopc,
            "M_CURG": self.layout.m_curg,
        }
        fsbase = task_fsbase_offset()
        if fsbase is not None and self.layout.tls_offset is not None:
            settings |= {"TASK_FSBASE": fsbase, "TLS_G": self.layout.tls_offset % (1 << 64)}
        return settings

    def kind(self, table: FunctionTable, function: Function) -> CallerKind:
        """Return how the caller of a function is found."""
        if self.layout is None or function.origin is Origin.SYMTAB:
            return CallerKind.THREAD
        if self.layout.g_in_register and not table.is_assembly(function.row):
            return CallerKind.G_REGISTER
        return CallerKind.G_TLS

    @property
    def warning(self) -> str | None:
        """Return what the user should know of the identification, None when all is well."""
        if self.layout is None:
            return "no Go runtime that is known here: calls are told apart by thread"
        if self.layout.assumed:
            version = self.files[0].table.go_version
            return (
                f"{version.text if version else 'this Go'} is newer than this tool: its"
                " goroutines are assumed to look like those of the newest release known"
            )
        return None


def find_callers(target: Target, plan: Plan) -> Callers:
    """Read the runtime's layout from the plan's files.

    Raises GotraceError where two files have different ones, or where no probe can find the
    running goroutine; RuntimeLayoutError where a file that has a runtime does not tell its layout.
    """
    files = [binary for binary in plan.binaries if binary.table.has_pclntab]
    if not files:
        return Callers((), None)
    if all(binary.binary.image.is_shared_library for binary in files):
        files += _host(target)
    layouts = [runtime_layout(file.binary.image, file.table.go_version) for file in files]
    # Only an executable's offset of g is fixed in the file; its plugins use the same variable.
    layout = next((found for found in layouts if found.tls_offset is not None), layouts[0])
    for file, other in zip(files, layouts, strict=True):
        offset = layout.tls_offset if other.tls_offset is None else other.tls_offset
        if replace(other, tls_offset=offset, source=layout.source) != layout:
            first = files[layouts.index(layout)]
            raise GotraceError(
                f"{first.binary.image.display} and {file.binary.image.display} have different Go"
                " runtimes: trace them one by one"
            )
    if not layout.g_in_register and layout.tls_offset is None:
        version = files[0].table.go_version
        raise GotraceError(
            f"{files[0].binary.image.display}: where a thread's goroutine is kept in a library of"
            f" {version.text if version else 'this Go'} is only known to its process: its calls can"
            " be counted only, or give -p PID of a Go program that has it as a plugin"
        )
    return Callers(tuple(files), layout)


def _host(target: Target) -> list[BinaryPlan]:
    """Return the program that loads the libraries to be traced, where there is one and it is Go."""
    if target.process is None:
        return []
    try:
        binary = target.binary(None)
        table = load_functions(binary.image)
    except ElfError:  # a script, perhaps
        return []
    return [BinaryPlan(binary, table, ())] if table.has_pclntab else []
