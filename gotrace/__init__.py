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
    from gotrace.api.checks import TracingWarning as TracingWarning
    from gotrace.api.rows import Allocations as Allocations
    from gotrace.api.rows import AllocFunction as AllocFunction
    from gotrace.api.rows import AllocSamples as AllocSamples
    from gotrace.api.rows import AssertionVerdict as AssertionVerdict
    from gotrace.api.rows import Counts as Counts
    from gotrace.api.rows import CpuFunction as CpuFunction
    from gotrace.api.rows import CpuSamples as CpuSamples
    from gotrace.api.rows import CpuTime as CpuTime
    from gotrace.api.rows import Function as Function
    from gotrace.api.rows import Goroutine as Goroutine
    from gotrace.api.rows import GoroutineLatencies as GoroutineLatencies
    from gotrace.api.rows import Goroutines as Goroutines
    from gotrace.api.rows import GoroutineState as GoroutineState
    from gotrace.api.rows import GoroutineTime as GoroutineTime
    from gotrace.api.rows import Group as Group
    from gotrace.api.rows import Groups as Groups
    from gotrace.api.rows import Latencies as Latencies
    from gotrace.api.rows import Syscall as Syscall
    from gotrace.api.rows import Syscalls as Syscalls
    from gotrace.api.rows import Wait as Wait
    from gotrace.api.rows import WaitedChannel as WaitedChannel
    from gotrace.api.rows import Waits as Waits
    from gotrace.api.rows import WallTime as WallTime
    from gotrace.api.session import Session as Session
    from gotrace.api.session import attach as attach
    from gotrace.api.session import path as path
    from gotrace.api.session import start as start
    from gotrace.api.streams import CallStream as CallStream
    from gotrace.api.streams import FlightStream as FlightStream
    from gotrace.api.streams import IntervalStream as IntervalStream
    from gotrace.api.streams import RequestStream as RequestStream
    from gotrace.api.streams import SnapshotStream as SnapshotStream
    from gotrace.calls import Call as Call
    from gotrace.calls import LongestWait as LongestWait
    from gotrace.calls import LostCalls as LostCalls
    from gotrace.calls import StackFrame as StackFrame
    from gotrace.calls import Why as Why
    from gotrace.calls import read as read
    from gotrace.calls import write as write
    from gotrace.errors import GotraceError as GotraceError
    from gotrace.errors import NoMatchError as NoMatchError
    from gotrace.errors import UsageError as UsageError
    from gotrace.errors import WrongTypeError as WrongTypeError
    from gotrace.goroutines.model import Frame as Frame
    from gotrace.goroutines.model import State as State
    from gotrace.histogram import Histogram as Histogram
    from gotrace.histogram import ValueHistogram as ValueHistogram
    from gotrace.kernel.attach import AttachError as AttachError
    from gotrace.kernel.compiler import LoadError as LoadError
    from gotrace.live.findings import Examination as Examination
    from gotrace.live.findings import TimeFinding as TimeFinding
    from gotrace.live.heap import HeapFigures as HeapFigures
    from gotrace.live.model import Attachment as Attachment
    from gotrace.live.model import Caller as Caller
    from gotrace.live.model import DeclaredRows as DeclaredRows
    from gotrace.live.model import FunctionCalls as FunctionCalls
    from gotrace.live.model import FunctionRow as FunctionRow
    from gotrace.live.model import GroupRow as GroupRow
    from gotrace.live.model import Head as Head
    from gotrace.live.model import RequestRow as RequestRow
    from gotrace.live.model import SlowRequest as SlowRequest
    from gotrace.live.model import Snapshot as Snapshot
    from gotrace.live.model import WaitGroupRow as WaitGroupRow
    from gotrace.live.model import WaitUse as WaitUse
    from gotrace.profiles.execution import StateChange as StateChange
    from gotrace.requests.assemble import Tally as Tally
    from gotrace.requests.critical import PathPart as PathPart
    from gotrace.requests.model import Node as Node
    from gotrace.requests.model import Request as Request
    from gotrace.requests.model import load as load
    from gotrace.requests.recording import Recording as Recording
    from gotrace.results.changes import Amount as Amount
    from gotrace.results.changes import Change as Change
    from gotrace.results.changes import Diff as Diff
    from gotrace.results.changes import Rates as Rates
    from gotrace.results.changes import diff as diff
    from gotrace.results.lines import Reading as Reading
    from gotrace.results.lines import Recordable as Recordable
    from gotrace.results.merging import Host as Host
    from gotrace.results.merging import Merged as Merged
    from gotrace.results.merging import merge as merge
    from gotrace.results.rows import Key as Key
    from gotrace.results.tails import Tail as Tail
    from gotrace.target.command import CommandError as CommandError
    from gotrace.target.process import ProcessError as ProcessError
    from gotrace.values.python import Chan as Chan
    from gotrace.values.python import CutBytes as CutBytes
    from gotrace.values.python import CutDict as CutDict
    from gotrace.values.python import CutList as CutList
    from gotrace.values.python import CutStr as CutStr
    from gotrace.values.python import Duration as Duration
    from gotrace.values.python import Func as Func
    from gotrace.values.python import GoError as GoError
    from gotrace.values.python import MapKey as MapKey
    from gotrace.values.python import Pointer as Pointer
    from gotrace.values.python import Struct as Struct
    from gotrace.values.python import Unavailable as Unavailable

__version__ = "0.1.0"

#: The module of each public name; type checkers read the imports above, and a test compares both.
_HOMES = {
    "gotrace.api.checks": "TracingWarning",
    "gotrace.api.rows": (
        "AllocFunction AllocSamples Allocations AssertionVerdict"
        " Counts CpuFunction CpuSamples CpuTime Function Goroutine GoroutineLatencies"
        " Goroutines GoroutineState GoroutineTime Group Groups Latencies Syscall Syscalls"
        " Wait WaitedChannel Waits WallTime"
    ),
    "gotrace.api.session": "Session attach path start",
    "gotrace.api.streams": "CallStream FlightStream IntervalStream RequestStream SnapshotStream",
    "gotrace.calls": "Call LongestWait LostCalls StackFrame Why read write",
    "gotrace.errors": "GotraceError NoMatchError UsageError WrongTypeError",
    "gotrace.goroutines.model": "Frame State",
    "gotrace.histogram": "Histogram ValueHistogram",
    "gotrace.kernel.attach": "AttachError",
    "gotrace.kernel.compiler": "LoadError",
    "gotrace.live.findings": "Examination TimeFinding",
    "gotrace.live.heap": "HeapFigures",
    "gotrace.live.model": (
        "Attachment Caller DeclaredRows FunctionCalls FunctionRow GroupRow Head RequestRow"
        " SlowRequest Snapshot WaitGroupRow WaitUse"
    ),
    "gotrace.profiles.execution": "StateChange",
    "gotrace.requests.assemble": "Tally",
    "gotrace.requests.critical": "PathPart",
    "gotrace.requests.model": "Node Request load",
    "gotrace.requests.recording": "Recording",
    "gotrace.results.changes": "Amount Change Diff Rates diff",
    "gotrace.results.lines": "Reading Recordable",
    "gotrace.results.merging": "Host Merged merge",
    "gotrace.results.rows": "Key",
    "gotrace.results.tails": "Tail",
    "gotrace.target.command": "CommandError",
    "gotrace.target.process": "ProcessError",
    "gotrace.values.python": (
        "Chan CutBytes CutDict CutList CutStr Duration Func GoError MapKey Pointer Struct"
        " Unavailable"
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = [*_HOME, "__version__"]


if not TYPE_CHECKING:  # a type checker would take every misspelling for a name

    def __getattr__(name: str) -> Any:
        """Import a public name's module when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
