# SPDX-License-Identifier: Apache-2.0
"""Trace live Go programs through BCC and uprobes.

As a library, provisional: see docs/api.md. The modules for tracing are imported on first use.

    with gotrace.attach(pid) as go:
        for call in go.trace("main.handle", limit=10):
            print(call.args, call.error)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gotrace.api.checks import (
        TracingWarning,
    )
    from gotrace.api.rows import (
        Counts,
        CpuFunction,
        CpuSamples,
        CpuTime,
        Function,
        Goroutine,
        GoroutineState,
        GoroutineTime,
        Group,
        Groups,
        Syscall,
        Syscalls,
        Wait,
        Waits,
        WallTime,
    )
    from gotrace.api.session import (
        Session,
        attach,
        path,
        start,
    )
    from gotrace.api.streams import (
        CallStream,
        FlightStream,
        RequestStream,
        SnapshotStream,
    )
    from gotrace.calls import Call, LongestWait, LostCalls, StackFrame, Why, read, write
    from gotrace.errors import GotraceError, NoMatchError, UsageError
    from gotrace.histogram import Histogram, ValueHistogram
    from gotrace.kernel.attach import AttachError
    from gotrace.kernel.compiler import LoadError
    from gotrace.requests.model import Node, Request, load
    from gotrace.requests.recording import Recording
    from gotrace.results.changes import Diff, diff
    from gotrace.results.merging import Merged, merge
    from gotrace.target.command import CommandError
    from gotrace.target.process import ProcessError
    from gotrace.values.python import (
        Chan,
        CutBytes,
        CutDict,
        CutList,
        CutStr,
        Duration,
        Func,
        GoError,
        MapKey,
        Pointer,
        Struct,
        Unavailable,
    )

__all__ = [
    "AttachError",
    "Call",
    "CallStream",
    "Chan",
    "CommandError",
    "Counts",
    "CpuFunction",
    "CpuSamples",
    "CpuTime",
    "CutBytes",
    "CutDict",
    "CutList",
    "CutStr",
    "Diff",
    "Duration",
    "FlightStream",
    "Func",
    "Function",
    "GoError",
    "Goroutine",
    "GoroutineState",
    "GoroutineTime",
    "GotraceError",
    "Group",
    "Groups",
    "Histogram",
    "LoadError",
    "LongestWait",
    "LostCalls",
    "MapKey",
    "Merged",
    "NoMatchError",
    "Node",
    "Pointer",
    "ProcessError",
    "Recording",
    "Request",
    "RequestStream",
    "Session",
    "SnapshotStream",
    "StackFrame",
    "Struct",
    "Syscall",
    "Syscalls",
    "TracingWarning",
    "Unavailable",
    "UsageError",
    "ValueHistogram",
    "Wait",
    "Waits",
    "WallTime",
    "Why",
    "__version__",
    "attach",
    "diff",
    "load",
    "merge",
    "path",
    "read",
    "start",
    "write",
]

__version__ = "0.1.0"

_HOMES = {
    "gotrace.api.checks": ("TracingWarning",),
    "gotrace.api.rows": (
        "Counts",
        "CpuFunction",
        "CpuSamples",
        "CpuTime",
        "Function",
        "Goroutine",
        "GoroutineState",
        "GoroutineTime",
        "Group",
        "Groups",
        "Syscall",
        "Syscalls",
        "Wait",
        "Waits",
        "WallTime",
    ),
    "gotrace.api.session": (
        "Session",
        "attach",
        "path",
        "start",
    ),
    "gotrace.api.streams": (
        "CallStream",
        "FlightStream",
        "RequestStream",
        "SnapshotStream",
    ),
    "gotrace.calls": ("Call", "LongestWait", "LostCalls", "StackFrame", "Why", "read", "write"),
    "gotrace.results.changes": ("Diff", "diff"),
    "gotrace.errors": ("GotraceError", "NoMatchError", "UsageError"),
    "gotrace.histogram": ("Histogram", "ValueHistogram"),
    "gotrace.kernel.attach": ("AttachError",),
    "gotrace.kernel.compiler": ("LoadError",),
    "gotrace.results.merging": ("Merged", "merge"),
    "gotrace.requests.model": ("Node", "Request", "load"),
    "gotrace.requests.recording": ("Recording",),
    "gotrace.target.command": ("CommandError",),
    "gotrace.target.process": ("ProcessError",),
    "gotrace.values.python": (
        "Chan",
        "CutBytes",
        "CutDict",
        "CutList",
        "CutStr",
        "Duration",
        "Func",
        "GoError",
        "MapKey",
        "Pointer",
        "Struct",
        "Unavailable",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take every misspelling for a name

    def __getattr__(name: str) -> Any:
        """Import a public name's module when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
