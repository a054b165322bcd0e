# SPDX-License-Identifier: Apache-2.0
"""Look at a running program again and again, and attach the probes that are asked for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from gotrace.closing import Closing
from gotrace.errors import GotraceError, UsageError
from gotrace.goroutines.details import NO_DETAILS
from gotrace.goroutines.groups import GroupKey
from gotrace.goroutines.live import LiveGoroutines
from gotrace.goroutines.watch import GroupWatch
from gotrace.gotypes.heap import heap_variables
from gotrace.live.heap import HeapFigures, HeapReader
from gotrace.live.model import Attachment, GroupRow, Head, Snapshot, StackView
from gotrace.target.target import Target
from gotrace.target.usage import Usage, cpu_quota, usage_of

if TYPE_CHECKING:  # loaded where something is attached
    from gotrace.live.attached import AcceptPrice, FunctionWatch, WaitWatch
    from gotrace.live.sampled import SampleWatch
    from gotrace.live.traced import Calls, Requests

_NS = 1e9


class Monitor(Closing):
    """One running program, looked at from outside; a context manager that detaches.

    Nothing is attached to it until ``attach_waits`` or another method of that name is called.
    """

    def __init__(self, target: Target) -> None:
        """Take a target of one running process, which stays open. Raises GotraceError."""
        if target.process is None or not target.has_started:
            raise UsageError("live() needs a running process: use attach(pid)")
        self._target = target
        self._process = target.process
        self._opened = ExitStack()
        self._goroutines = LiveGoroutines(target)
        self._opened.callback(self._goroutines.close)
        self._watch = self._goroutines.watch()
        self._waits_of = self._goroutines.waits()
        self._name = os.path.basename(target.process.executable_name)
        self._heap: HeapReader | None = None
        self._heap_problem: str | None = None
        try:
            main = self._goroutines.program.main
            variables = heap_variables(main.binary)
            self._heap = HeapReader(self._goroutines.words, variables, main.bias)
        except GotraceError as error:
            self._heap_problem = str(error)
        self._before: tuple[float, Usage, HeapFigures | None] | None = None
        self._numbers: dict[tuple[GroupKey, bool], int] = {}
        self._groups: dict[int, GroupWatch] = {}
        #: Held while attached probes are read, or detached: another thread may attach others.
        self._using = threading.Lock()
        #: The attached probes, None for those that are not.
        self.waits: WaitWatch | None = None
        self.functions: FunctionWatch | None = None
        self.requests: Requests | None = None
        self.calls: Calls | None = None
        self.sampled: SampleWatch | None = None

    @cached_property
    def server(self) -> str | None:
        """Return the recipe of the requests that the program serves, None if none is known."""
        from gotrace.live.attached import SERVERS
        from gotrace.session.trace_plan import has_recipe

        found = (f"@{name}" for name in SERVERS if has_recipe(self._target, name))
        return next(found, None)

    @property
    def pid(self) -> int:
        return self._process.tgid

    def snapshot(self) -> Snapshot:
        """Look at the program. Raises ProcessError once it has ended; GotraceError."""
        # First what moves on while the rest is read.
        with self._using:
            roots = self.requests.names if self.requests is not None else ()
            waits = self.waits.take(roots) if self.waits is not None else None
            functions = self.functions.take() if self.functions is not None else None
            requests = self.requests.take() if self.requests is not None else None
            lost = self.requests.lost if self.requests is not None else 0
            calls = self.calls.take() if self.calls is not None else None
            sampled = self.sampled.take() if self.sampled is not None else None
        usage = usage_of(self._process)
        heap = self._heap.read() if self._heap is not None else None
        now = time.monotonic()
        found = self._watch.refresh()
        seconds = now - self._before[0] if self._before else 0.0
        rows = tuple(self._row(group) for group in found if not group.is_system)
        head = self._head(usage, heap, seconds, found)
        self._before = now, usage, heap
        attached = waits, functions, requests, lost, calls, sampled
        return Snapshot(time.time(), seconds, head, rows, *attached)

    def head(self) -> Head:
        """Return the head without goroutines, which take the longest to read the first time."""
        usage = usage_of(self._process)
        return self._head(usage, self._heap.read() if self._heap else None, 0.0, None)

    def _head(
        self,
        usage: Usage,
        heap: HeapFigures | None,
        seconds: float,
        groups: Sequence[GroupWatch] | None,
    ) -> Head:
        cpu = usage.cpu_s / usage.uptime_s if usage.uptime_s else 0.0
        cycles = gc_share = pause = None
        if self._before and seconds:
            _, usage_before, heap_before = self._before
            cpu = (usage.cpu_s - usage_before.cpu_s) / seconds
            if heap is not None and heap_before is not None:
                cycles = ((heap.cycles - heap_before.cycles) & 0xFFFFFFFF) / seconds
                every = seconds * _NS * (heap.procs or 1)
                gc_share = (heap.gc_ns - heap_before.gc_ns) / every
                pause = (heap.pause_ns - heap_before.pause_ns) / (seconds * _NS)
        own = system = None
        if groups is not None:
            system = sum(group.count for group in groups if group.is_system)
            own = sum(group.count for group in groups) - system
        version = self._goroutines.program.main.binary.go_version
        attached: list[Attachment] = []
        for part in (self.waits, self.functions, self.requests, self.calls, self.sampled):
            if part is not None:
                attached.append(part.attachment)
        return Head(
            pid=self.pid,
            program=self._name,
            go_version=version.text if version else None,
            uptime_s=usage.uptime_s,
            cpu=max(0.0, cpu),
            quota=cpu_quota(self._process),
            threads=usage.threads,
            rss=usage.rss,
            goroutines=own,
            system=system,
            states=dict(self._watch.states()) if groups else {},
            heap=heap,
            heap_problem=self._heap_problem,
            cycles_s=cycles,
            gc_share=gc_share,
            pause_share=pause,
            attached=tuple(attached),
        )

    def _row(self, group: GroupWatch) -> GroupRow:
        state, reason, frames, created_by, _ = group.key
        key = group.key, group.is_system
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._groups[number] = group
        waiting = None
        if group.since is not None:
            first, last = group.since
            now = self._watch.now
            waiting = max(0, now - last), max(0, now - first)
        return GroupRow(
            *(number, state, reason, frames, created_by, group.count, group.growth),
            *(group.leaks, waiting, tuple(group.counts)),
        )

    def goroutines(self, number: int, most: int) -> list[StackView]:
        """Return the goroutines of a group with the lowest ids, with their stacks, at most so many.

        Raises ProcessError once the process has ended.
        """
        group = self._groups.get(number)
        if group is None:
            return []
        program = self._goroutines.program
        views = []
        found = self._watch.goroutines(group, most)
        waits = self._waits_of.of(found)
        for one in found:
            every = [frame for frame in program.frames(one.stack) if not frame.is_elided]
            frames = [frame for frame in every if frame.is_shown] or every
            creation = program.creation(one.created_by) if one.goid != 1 else None
            details = waits.get(one.g, NO_DETAILS)
            views.append(StackView(one, tuple(frames), creation, one.waiting_ns, details))
        return views

    def members(self, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the groups of these numbers, at the last look, with the ids of their goroutines."""
        found = {group: number for number in numbers if (group := self._groups.get(number))}
        for group, goid, _ in self._watch.members(found) if found else ():
            yield found[group], goid

    def attach_waits(self, accept: AcceptPrice | None = None) -> None:
        """Add waits up from now on; ``accept`` is shown the price first. Raises GotraceError."""
        from gotrace.live.attached import WaitWatch

        if self.waits is None:
            self.waits = WaitWatch(self._target, accept)

    def attach_functions(self, patterns: Sequence[str], accept: AcceptPrice | None = None) -> None:
        """Measure calls of functions; ``accept`` is shown the price first. Raises GotraceError."""
        from gotrace.live.attached import FunctionWatch

        self.detach_functions()
        self.functions = FunctionWatch(self._target, patterns, accept)

    def attach_requests(
        self, root: str, accept: AcceptPrice | None = None, brief: bool = False
    ) -> None:
        """Trace requests of a root; ``accept`` is shown the price first.

        ``brief``: values are those that a line has room for. Raises GotraceError.
        """
        from gotrace.live.traced import Requests

        self.detach_requests()
        self.requests = Requests(self._target, root, accept, brief)

    def attach_calls(
        self, name: str, calls_s: float = 0.0, accept: AcceptPrice | None = None
    ) -> None:
        """Look at each call of a function, of which there are ``calls_s`` a second.

        ``accept`` is shown the price first. Raises GotraceError.
        """
        from gotrace.live.traced import Calls

        self.detach_calls()
        self.calls = Calls(self._target, name, calls_s, accept)

    def attach_sampled(self, name: str) -> None:
        """Sample the event of this name in ``results.kinds.SAMPLED``. Raises GotraceError."""
        from gotrace.live.sampled import SampleWatch

        self.detach_sampled()
        self.sampled = SampleWatch(self._target, name)

    def finish(self) -> None:
        """End the traces; the next snapshot has all requests, also those not whole yet."""
        if self.requests is not None:
            self.requests.finish()

    def detach_waits(self) -> None:
        with self._using:
            waits, self.waits = self.waits, None
            if waits is not None:
                waits.close()

    def detach_functions(self) -> None:
        with self._using:
            functions, self.functions = self.functions, None
            if functions is not None:
                functions.close()

    def detach_requests(self) -> None:
        with self._using:
            requests, self.requests = self.requests, None
            if requests is not None:
                requests.close()

    def detach_calls(self) -> None:
        with self._using:
            calls, self.calls = self.calls, None
            if calls is not None:
                calls.close()

    def detach_sampled(self) -> None:
        with self._using:
            sampled, self.sampled = self.sampled, None
            if sampled is not None:
                sampled.close()

    def close(self) -> None:
        """Detach, and close the memory; the target stays open."""
        with ExitStack() as opened:
            opened.push(self._opened)
            opened.callback(self.detach_waits)
            opened.callback(self.detach_functions)
            opened.callback(self.detach_requests)
            opened.callback(self.detach_calls)
            opened.callback(self.detach_sampled)
