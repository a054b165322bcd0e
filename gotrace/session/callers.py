"""Settle how goroutines are told apart in a run: where g is found and what it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gotrace.elf.functions import Function, FunctionTable, Origin
from gotrace.errors import GotraceError
from gotrace.goabi.runtime import RuntimeLayout, runtime_layout
from gotrace.session.btf import task_fsbase_offset
from gotrace.session.cookie import CallerKind
from gotrace.session.plan import BinaryPlan, Plan

__all__ = ["Callers", "find_callers"]

_NO_OFFSETS = dict.fromkeys(
    ("G_STACK_HI", "G_M", "G_GOID", "G_SCHED_SP", "G_STARTPC", "G_GOPC", "M_CURG", "TLS_G"), 0
)


@dataclass(frozen=True, slots=True)
class Callers:
    """Say how callers are identified; ``go`` is the file whose runtime it is, None for threads."""

    go: BinaryPlan | None
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
            version = self.go.table.go_version if self.go else None
            return (
                f"{version.text if version else 'this Go'} is newer than this tool: its"
                " goroutines are assumed to look like those of the newest release known"
            )
        return None


def find_callers(plan: Plan) -> Callers:
    """Read the runtime's layout from the plan's files.

    Raises GotraceError where two files have different ones, RuntimeLayoutError where one that has
    a runtime does not tell.
    """
    found: list[tuple[BinaryPlan, RuntimeLayout]] = []
    for binary in plan.binaries:
        if binary.table.has_pclntab:
            layout = runtime_layout(binary.binary.image, binary.table.go_version)
            found.append((binary, layout))
    if not found:
        return Callers(None, None)
    first, layout = found[0]
    for other, another in found[1:]:
        if another != layout:
            raise GotraceError(
                f"{first.binary.image.display} and {other.binary.image.display} have different Go"
                " runtimes: trace them one by one"
            )
    return Callers(first, layout)
