# SPDX-License-Identifier: Apache-2.0
"""Write requests as Go's own execution traces: a task each, with a region for each call.

The format is the second one, that of runtime/trace since Go 1.22: src/internal/trace/tracev2 of a
Go tree names the events, src/internal/trace/order.go has what readers demand. A reader follows the
state of each goroutine and thread, and refuses a file in which an event does not follow from those
before it. So a file is made by a model of these states: where what was recorded does not say how a
goroutine came to where it is, the model adds the steps between.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from gotrace.gotypes.wait_reasons import meaning_of
from gotrace.profiles.protobuf import text, varint
from gotrace.profiles.write import check_place, write_content
from gotrace.records import dataclass, field
from gotrace.text import counted

#: The ending of such files' names.
TRACE = ".trace"

#: States of a goroutine, in the words of ``Change``.
CREATED, RUNNABLE, RUNNING = "created", "runnable", "running"
WAITING, ENDED, UNKNOWN = "waiting", "ended", "unknown"

#: Calls and changes of a file: more would take a second to write, while nobody reads what comes.
_MAX_EVENTS = 1 << 18

_HEADER = b"go 1.23 trace\0\0\0"
_GENERATION = b"\x01"
_BATCH, _STACKS, _STACK, _STRINGS, _STRING, _FREQUENCY = (bytes([n]) for n in (1, 2, 3, 4, 5, 8))
_PROC_STATUS, _GO_CREATE, _GO_START, _GO_DESTROY = (bytes([n]) for n in (13, 14, 16, 17))
_GO_STOP, _GO_BLOCK, _GO_UNBLOCK, _GO_STATUS = (bytes([n]) for n in (19, 20, 21, 25))
_TASK_BEGIN, _TASK_END, _REGION_BEGIN, _REGION_END, _LOG, _GO_SWITCH = (
    bytes([n]) for n in (40, 41, 42, 43, 44, 45)
)
_PROC_RUNNING, _GO_WAITING = 1, 4
_NO_THREAD = -1  # the number of the thread of what is of none
_NS = 1_000_000_000
_MAX_BATCH = 60_000  # bytes, of 64 KiB that a reader takes, for what the last event may have
_MAX_STRING = 1024  # bytes
_MAX_FRAMES = 128
#: Above all numbers of Linux's threads: for goroutines whose thread is not known.
_FIRST_SLOT = 1 << 22
#: Between the goroutines of two processes, whose numbers may be the same.
_NEXT_PROCESS = 10**12

_NOT_RECORDED = "not recorded"
_STOPPED = "unspecified"  # it was preempted, or has called runtime.Gosched


def is_execution_trace(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name asks for this form."""
    return os.fspath(path).endswith(TRACE)


# Tuples: there may be a million of them, and frozen dataclasses take five times as long to make.
class StateChange(NamedTuple):
    """A goroutine's state from a time on, in ns: one of the words above.

    ``reason`` is Go's of a wait, ``by`` is the goroutine that has done it, 0 if nobody has, ``tid``
    the thread that did, 0 if unknown. ``UNKNOWN`` ends what is known of a goroutine, up to its next
    change.
    """

    at: int
    goid: int
    state: str
    reason: str = ""
    by: int = 0
    tid: int = 0


class Region(NamedTuple):
    """A call of a goroutine, from ``start`` to ``end`` in ns.

    ``begun`` are logs of its begin, ``ended`` those of its end: what they are, and their text.
    """

    goid: int
    tid: int
    name: str
    start: int
    end: int
    file: str = ""
    line: int = 0
    begun: Sequence[tuple[str, str]] = ()
    ended: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recording of a request: its calls, that of the root first, and changes of states.

    ``changes`` of a goroutine are in the order of time. The first one is its state from when it is
    known on; the last one is ``UNKNOWN`` or ``ENDED``. If not ``is_request``, it is of no request:
    it has no task, and may have no call.
    """

    pid: int
    regions: Sequence[Region]
    changes: Sequence[StateChange] = ()
    is_request: bool = True


@dataclass(frozen=True, slots=True)
class Written:
    """A file, its number of requests, and how many records were lost before it began."""

    path: str
    requests: int
    lost: int = 0


class ExecutionFile:
    """A file that requests are added to; it is written when it is closed, or full.

    After a loss, or when it is full, what comes is written to ``x-2.trace``, and so on: of what is
    missing, nobody knows in which state it has left goroutines.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises GotraceError if a file cannot be written there."""
        self._path = os.fspath(path)
        check_place(self._path)
        self._requests: list[Recorded] = []
        self._size = 0
        #: Records that are missing before its requests, and after them.
        self._lost_before = self._lost_after = 0
        #: The files that are written by now.
        self.written: list[Written] = []

    def add(self, request: Recorded) -> None:
        """Add a request. Raises GotraceError if a file was full and cannot be written."""
        if self._requests and (self._lost_after or self._size >= _MAX_EVENTS):
            self._write(is_last=False)
        self._requests.append(request)
        self._size += len(request.regions) + len(request.changes)

    def lost(self, records: int) -> None:
        """Note that so many records are missing between the added ones and those to come."""
        if self._requests:
            self._lost_after += records
        else:
            self._lost_before += records

    def close(self) -> None:
        """Write the file. Raises GotraceError."""
        self._write(is_last=True)

    def _name(self, number: int) -> str:
        return self._path if number == 1 else f"{self._path[: -len(TRACE)]}-{number}{TRACE}"

    def _write(self, is_last: bool) -> None:
        number = len(self.written) + 1
        name, before, after = (self._name(number + step) for step in (0, -1, 1))
        begins = f"what was before is in {_base(before)}" if number > 1 else ""
        ends = "" if is_last else f"what follows is in {_base(after)}"
        begins, ends = _missing(self._lost_before, begins), _missing(self._lost_after, ends)
        write_content(name, execution_trace(self._requests, begins, ends))
        self.written.append(Written(name, len(self._requests), self._lost_before))
        self._lost_before, self._lost_after = self._lost_after, 0
        self._requests = []
        self._size = 0


def _missing(lost: int, text: str) -> str:
    said = counted("{} record{s} lost here", lost) if lost else ""
    return "; ".join(filter(None, (said, text)))


def _base(path: str) -> str:
    return os.path.basename(path)


def execution_trace(requests: Sequence[Recorded], before: str = "", after: str = "") -> bytes:
    """Return a trace of some requests; ``before`` and ``after`` are said at its begin and end."""
    with undisturbed():
        return _Trace(requests, before, after).content()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Stop the collector meanwhile: searching for circles would double the time for many rows."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()


# The events of a goroutine, in the order in which they come at one time.
_CREATE, _RUN, _BEGIN_TASK, _ANNOTATE, _END_TASK, _STOP, _FORGET, _END, _WAIT = range(9)
_ORDER = (0, 1, 2, 3, 4, 5, 6, 7, 5)
_BITS = 3

_BEFORE = 8  # ns before a call that its goroutine runs, if nobody knows since when
_AGAIN = b"\1"  # of what is forgotten: something is known of it later on

_SMALL = tuple(varint(value) for value in range(1 << 14))
_NONE = _SMALL[0]
_NEVER = 1 << 63

#: The same as the beginnings of larger numbers.
_LOW = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14))


def _number(value: int) -> bytes:
    """Return a number that is not below 0; faster than ``varint``."""
    if value < 1 << 14:
        return _SMALL[value]
    return _LOW[value & 0x3FFF] + _number(value >> 14)


@dataclass(slots=True, eq=False)
class _Thread:
    """A thread: the goroutine that runs on it, and its events since its last batch began."""

    number: int
    events: bytearray
    begin: int = 1
    last: int = 1
    running: _Goroutine | None = None


@dataclass(slots=True, eq=False)
class _Goroutine:
    """A goroutine, its calls with their tasks, and how a reader sees it.

    ``offset`` is what the numbers of its process's goroutines are raised by. ``known`` is when
    something is known of it. ``sequence`` counts its starts and unblocks, ``last`` is when it has
    stopped, ``stack`` is the number of the stack of its open calls.
    """

    encoded: bytes
    offset: int
    calls: list[tuple[Region, bytes]] = field(default_factory=list)
    changes: list[StateChange] = field(default_factory=list)
    actions: list[_Action] = field(default_factory=list)
    known: list[tuple[int, int]] = field(default_factory=list)
    state: str = WAITING
    reason: bytes = b""
    is_created: bool = False
    sequence: int = 0
    last: int = 0
    thread: _Thread | None = None
    stack: bytes = _NONE


#: When, shifted, with the order at that time; whose; which kind; an event of the format and what
#: follows its time, or only why, or who; a thread, 0 if unknown; the stack from then on.
_Action = tuple[int, _Goroutine, int, bytes, bytes, int, bytes]


class _Tables:
    """The strings and stacks of a file, which events have by their numbers."""

    def __init__(self) -> None:
        self._strings: dict[str, bytes] = {}
        self._frames: dict[tuple[str, str, int], bytes] = {}
        self._stacks: dict[tuple[bytes, str, str, int], tuple[bytes, bytes]] = {}
        #: By the number of a stack: how many frames it has, and these.
        self._contents: dict[bytes, tuple[int, bytes]] = {_NONE: (0, b"")}

    def string(self, value: str) -> bytes:
        """Return the number of a string."""
        if not value:
            return _NONE
        found = self._strings.get(value)
        if found is None:
            found = self._strings[value] = _number(len(self._strings) + 1)
        return found

    def call(self, above: bytes, name: str, file: str, line: int) -> tuple[bytes, bytes]:
        """Return the number of a call's stack, and what its region has after its task."""
        found = self._stacks.get((above, name, file, line))
        if found is None:
            frame = self._frames.get((name, file, line))
            if frame is None:
                places = self.string(name), self.string(file), _number(line)
                # A place in the program, that readers tell frames by.
                frame = _number(len(self._frames) + 1) + b"".join(places)
                self._frames[name, file, line] = frame
            stack = _number(len(self._stacks) + 1)
            found = self._stacks[above, name, file, line] = stack, self.string(name) + stack
            count, frames = self._contents[above]
            is_full = count == _MAX_FRAMES
            self._contents[stack] = (count, frames) if is_full else (count + 1, frame + frames)
        return found

    def batches(self) -> Iterator[bytes]:
        """Yield the tables as parts of a file."""
        stacks = (
            _STACK + number + _number(count) + frames
            for number, (count, frames) in self._contents.items()
            if count
        )
        strings = (
            _STRING + number + _number(len(content)) + content
            for value, number in self._strings.items()
            for content in (_shortened(value),)
        )
        for kind, rows in ((_STACKS, stacks), (_STRINGS, strings)):
            part = bytearray()
            for row in rows:
                part += row
                if len(part) > _MAX_BATCH - _MAX_FRAMES * 20:
                    yield _batch(_NO_THREAD, 1, kind + part)
                    part = bytearray()
            if part:
                yield _batch(_NO_THREAD, 1, kind + part)


def _shortened(value: str) -> bytes:
    """Return a string as far as a reader takes it."""
    content = text(value)
    if len(content) <= _MAX_STRING:
        return content
    return content[: _MAX_STRING - 3].decode("utf-8", "ignore").encode() + b"..."


def _batch(thread: int, begin: int, content: bytes | bytearray) -> bytes:
    head = _BATCH + _GENERATION + varint(thread) + _number(begin) + _number(len(content))
    return head + content


class _Trace:
    """The goroutines and threads of a file, as its reader follows them."""

    def __init__(self, requests: Sequence[Recorded], before: str, after: str) -> None:
        self._batches: list[bytes] = []
        self._tables = _Tables()
        self._goroutines: dict[int, _Goroutine] = {}
        self._encoded: dict[bytes, _Goroutine] = {}
        self._offsets: dict[int, int] = {}
        self._threads: dict[int, _Thread] = {}
        #: Threads without a number of their own that are free, the first ones first.
        self._slots: list[int] = []
        self._next_slot = _FIRST_SLOT
        #: Ends waits where nobody is known to.
        self._nobody = _Thread(0, bytearray())
        self._not_recorded = self._tables.string(_NOT_RECORDED)
        self._stopped = self._tables.string(_STOPPED)
        self._shift = 0
        self._take(requests, before, after)
        actions: list[_Action] = []
        for goroutine in self._goroutines.values():
            self._calls(goroutine)
            self._states(goroutine)
            actions += goroutine.actions
        actions.sort(key=itemgetter(0))
        self._play(actions)

    def content(self) -> bytes:
        """Return the file."""
        for thread in (self._nobody, *self._threads.values()):
            self._flush(thread)
        status = _GO_STATUS + _NONE
        waits = varint(_NO_THREAD) + _number(_GO_WAITING)
        known = [one for one in self._goroutines.values() if not one.is_created]
        first = []
        for at in range(0, len(known), 1000):
            rows = b"".join(status + one.encoded + waits for one in known[at : at + 1000])
            first.append(_batch(0, 1, rows))
        frequency = _batch(_NO_THREAD, 1, _FREQUENCY + varint(_NS))
        return b"".join((_HEADER, *first, *self._batches, *self._tables.batches(), frequency))

    def _take(self, requests: Sequence[Recorded], before: str, after: str) -> None:
        """Sort the recorded events by goroutines."""
        if not requests:
            return
        begins = [_begin_of(one) for one in requests]
        ends = [_end_of(one) for one in requests]
        # Readers take times for floats, whose digits are too few for ns since 1970.
        first = min(begins)
        notes = {begins.index(first): (f"{_day(first)}{'; ' * bool(before)}{before}", "")}
        last = ends.index(max(ends))
        notes[last] = notes.get(last, ("", ""))[0], after
        tasks = [_number(each) if one.is_request else _NONE for each, one in enumerate(requests, 1)]
        for task, request in zip(tasks, requests, strict=True):
            offset = self._offset(request.pid)
            for region in request.regions:
                self._of(region.goid, offset).calls.append((region, task))
            last, own = 0, []
            for change in request.changes:
                if change.goid != last:
                    last = change.goid
                    own = self._of(last, offset).changes
                own.append(change)
        # A reader puts no two events at one time: what it is told at first must be over by then.
        self._shift = 2 * len(self._goroutines) + 100 - first
        for number, request in enumerate(requests):
            offset, said = self._offset(request.pid), notes.get(number, ("", ""))
            if request.is_request:
                self._task(tasks[number], request, offset, *said)
            else:
                self._say(request, offset, *said)

    def _say(self, request: Recorded, offset: int, before: str, after: str) -> None:
        """Write messages at the begin and the end of a recording that is of no request."""
        runs = [(one.start, one.goid, one.tid) for one in request.regions]
        runs += ((one.at, one.goid, one.tid) for one in request.changes if one.state == RUNNING)
        if not runs:
            return
        for (at, goid, tid), said in ((min(runs), before), (max(runs), after)):
            if said:
                log = self._log(_NONE, "gotrace", said, _NONE)
                self._act(self._of(goid, offset), at, _ANNOTATE, log[:1], log[2:], tid)

    def _task(self, task: bytes, request: Recorded, offset: int, before: str, after: str) -> None:
        root = request.regions[0]
        goroutine = self._of(root.goid, offset)
        begin = task + _NONE + self._tables.string(root.name) + _NONE
        end = task + _NONE
        if before:
            begin += self._log(task, "gotrace", before, _NONE)
        if after:
            end += self._log(task, "gotrace", after, _NONE)
        # Readers want tasks to begin before what belongs to them.
        at = min(region.start for region in request.regions) - _BEFORE // 2
        self._act(goroutine, at, _BEGIN_TASK, _TASK_BEGIN, begin, root.tid)
        self._act(goroutine, root.end, _END_TASK, _TASK_END, end, root.tid)

    def _act(
        self,
        goroutine: _Goroutine,
        at: int,
        kind: int,
        event: bytes = b"",
        rest: bytes = b"",
        thread: int = 0,
        stack: bytes = b"",
    ) -> None:
        key = at + self._shift << _BITS | _ORDER[kind]
        goroutine.actions.append((key, goroutine, kind, event, rest, thread, stack))

    def _log(self, task: bytes, what: str, message: str, stack: bytes) -> bytes:
        """Return the event of a log at the time of the one before it."""
        string = self._tables.string
        return _LOG + _NONE + task + string(what) + string(message) + stack

    def _offset(self, pid: int) -> int:
        return self._offsets.setdefault(pid, len(self._offsets) * _NEXT_PROCESS)

    def _of(self, goid: int, offset: int) -> _Goroutine:
        number = goid + offset
        found = self._goroutines.get(number)
        if found is None:
            found = self._goroutines[number] = _Goroutine(_number(number), offset)
            self._encoded[found.encoded] = found
        return found

    def _calls(self, goroutine: _Goroutine) -> None:
        """Make regions of a goroutine's calls, which lie within one another, or apart."""
        # Of two that begin together, the longer one is the outer one.
        goroutine.calls.sort(key=lambda one: (one[0].start, -one[0].end))
        opened: list[tuple[Region, bytes, bytes]] = []  # with its task, and what its end has
        stacks = [_NONE]
        for region, task in goroutine.calls:
            _, tid, name, start, end, file, line, begun, _ = region
            while opened and opened[-1][0].end <= start:
                self._end_call(goroutine, *opened.pop(), stacks)
            if not opened:
                goroutine.known.append((start, end))
            elif end > opened[-1][0].end:
                self._apart(goroutine, region, opened[-1][0], task, stacks[-1])
                continue
            stack, rest = self._tables.call(stacks[-1], name, file, line)
            stacks.append(stack)
            opened.append((region, task, task + rest))
            rest = task + rest
            for log in begun:
                rest += self._log(task, *log, stack)
            self._act(goroutine, start, _ANNOTATE, _REGION_BEGIN, rest, tid, stack)
        while opened:
            self._end_call(goroutine, *opened.pop(), stacks)

    def _end_call(
        self, goroutine: _Goroutine, region: Region, task: bytes, rest: bytes, stacks: list[bytes]
    ) -> None:
        stack, above = stacks.pop(), stacks[-1]
        if region.ended:
            # Before its end: within the region.
            logs = b"".join(self._log(task, *log, stack) for log in region.ended)
            at = max(region.end - len(region.ended), region.start)
            self._act(goroutine, at, _ANNOTATE, logs[:1], logs[2:], region.tid, stack)
        self._act(goroutine, region.end, _ANNOTATE, _REGION_END, rest, region.tid, above)

    def _apart(
        self, goroutine: _Goroutine, region: Region, within: Region, task: bytes, stack: bytes
    ) -> None:
        """Say of a call that it is no region: it begins within another one and ends after it."""
        took = f"{region.name}: {region.end - region.start:,} ns, ends after {within.name}"
        logs = b"".join(
            self._log(task, *log, stack) for log in (("no region", took), *region.begun)
        )
        self._act(goroutine, region.start, _ANNOTATE, logs[:1], logs[2:], region.tid, stack)

    def _states(self, goroutine: _Goroutine) -> None:
        """Add the events of a goroutine's states, which are unknown in gaps."""
        *gaps, end = _ends(goroutine)
        actions, shift = goroutine.actions, self._shift
        is_over, is_first = False, True
        for at, _, state, reason, other, tid in goroutine.changes:
            by = _number(other + goroutine.offset) if other else b""
            if state == WAITING:
                why = self._tables.string(meaning_of(reason).in_traces)
                key = at + shift << _BITS | _ORDER[_WAIT]
                actions.append((key, goroutine, _WAIT, b"", why, 0, b""))
            elif state == CREATED:
                # Before all that is known of it, or a reader would not know whom that is about.
                is_first = at <= goroutine.known[0][0] and not goroutine.is_created
                key = at + shift << _BITS | _ORDER[_CREATE]
                if by and is_first and all(one[0] > key for one in actions):
                    actions.append((key, goroutine, _CREATE, b"", by, 0, b""))
                    goroutine.is_created = True
            elif state == ENDED:
                is_over = True
            elif state in (RUNNING, RUNNABLE):
                # At first it is only known that it runs by then: before all that it does.
                if is_first and state == RUNNING and not goroutine.is_created:
                    at -= _BEFORE
                kind = _RUN if state == RUNNING else _STOP
                key = at + shift << _BITS | _ORDER[kind]
                actions.append((key, goroutine, kind, b"", by, tid, b""))
            is_first = state in (UNKNOWN, ENDED)
        # After all that is at this time: what leads there takes up to three ns.
        for at in gaps:
            self._act(goroutine, at + 3, _FORGET, rest=_AGAIN)
        if is_over:
            # Nothing is of it afterwards, whatever was recorded.
            last = max((one[0] >> _BITS for one in actions), default=0)
            self._act(goroutine, max(end, last - shift), _END)
        else:
            self._act(goroutine, end + 3, _FORGET)

    def _play(self, actions: list[_Action]) -> None:
        """Write all events, in the order of time."""
        for key, goroutine, kind, event, rest, thread, stack in actions:
            if event:
                if goroutine.state is not RUNNING:
                    self._run(goroutine, key >> _BITS, thread)
                assert goroutine.thread is not None
                self._emit(goroutine.thread, key >> _BITS, event, rest)
                if stack:
                    goroutine.stack = stack
            else:
                self._change(goroutine, key >> _BITS, kind, rest, thread)

    def _change(self, goroutine: _Goroutine, at: int, kind: int, rest: bytes, thread: int) -> None:
        state = goroutine.state
        if kind == _RUN:
            if state is not RUNNING:
                by = self._encoded.get(rest)
                if state is WAITING and by is not None and by.state is RUNNING:
                    self._switch(goroutine, by, at)
                else:
                    self._run(goroutine, at, thread, is_known=True)
        elif kind == _STOP:
            if state is RUNNING:
                self._stop(goroutine, at, RUNNABLE, _GO_STOP, self._stopped)
            elif state is WAITING:
                self._unblock(goroutine, at, self._encoded.get(rest))
        elif kind == _WAIT:
            # Nothing has a reason before it has run: a wait from the begin on is seen to begin.
            if state is not WAITING or (rest and not goroutine.sequence):
                self._wait(goroutine, at, rest)
        elif kind == _FORGET:
            # If nothing is known of it later on, nobody will think that it has waited until then.
            if state is RUNNING or (rest and goroutine.reason != self._not_recorded):
                self._wait(goroutine, at, self._not_recorded)
        elif kind == _CREATE:
            self._create(goroutine, at, self._encoded.get(rest))
        else:
            self._run(goroutine, at, 0)
            self._stop(goroutine, at, ENDED, _GO_DESTROY)

    def _wait(self, goroutine: _Goroutine, at: int, reason: bytes) -> None:
        self._run(goroutine, at, 0)
        self._stop(goroutine, at, WAITING, _GO_BLOCK, reason)
        goroutine.reason = reason

    def _create(self, goroutine: _Goroutine, at: int, by: _Goroutine | None) -> None:
        if by is None or by.state is not RUNNING or by.thread is None:
            goroutine.is_created = False
            return
        self._emit(by.thread, at, _GO_CREATE, goroutine.encoded + _NONE + by.stack)
        goroutine.state, goroutine.last = RUNNABLE, at

    def _run(self, goroutine: _Goroutine, at: int, thread: int, is_known: bool = False) -> None:
        """Run a goroutine, on a thread if that ``is_known`` or the thread is free."""
        if goroutine.state is RUNNING:
            return
        if goroutine.state is WAITING:
            self._unblock(goroutine, max(goroutine.last, at - 2), None)
        on = self._thread(goroutine, thread, is_known, at)
        goroutine.sequence += 1
        rest = goroutine.encoded + _number(goroutine.sequence)
        self._emit(on, max(goroutine.last, at - (not is_known)), _GO_START, rest)
        on.running, goroutine.thread, goroutine.state = goroutine, on, RUNNING

    def _thread(self, goroutine: _Goroutine, number: int, is_known: bool, at: int) -> _Thread:
        """Return a thread that runs nothing, for a goroutine."""
        before = goroutine.thread
        if before is not None and not is_known and before.running is None:
            return before
        if number:
            found = self._threads.get(number) or self._made(number)
            if found.running is not None and is_known:
                self._stop(found.running, at, RUNNABLE, _GO_STOP, self._stopped)
            if found.running is None:
                return found
        while self._slots:
            found = self._threads[heappop(self._slots)]
            if found.running is None:
                return found
        self._next_slot += 1
        return self._made(self._next_slot - 1)

    def _made(self, number: int) -> _Thread:
        # Each thread has a processor of its own.
        status = _PROC_STATUS + _NONE + _number(len(self._threads)) + _number(_PROC_RUNNING)
        found = self._threads[number] = _Thread(number, bytearray(status))
        return found

    def _stop(
        self, goroutine: _Goroutine, at: int, state: str, event: bytes, reason: bytes = b""
    ) -> None:
        """Stop a goroutine that runs."""
        thread = goroutine.thread
        assert thread is not None
        self._emit(thread, at, event, reason + goroutine.stack if reason else b"")
        self._leave(goroutine, thread, state)

    def _leave(self, goroutine: _Goroutine, thread: _Thread, state: str) -> None:
        goroutine.state, goroutine.last, goroutine.reason = state, thread.last, b""
        thread.running = None
        if thread.number >= _FIRST_SLOT:
            heappush(self._slots, thread.number)

    def _unblock(self, goroutine: _Goroutine, at: int, by: _Goroutine | None) -> None:
        thread, stack = self._nobody, _NONE
        if by is not None and by.state is RUNNING and by.thread is not None:
            thread, stack = by.thread, by.stack
        goroutine.sequence += 1
        rest = goroutine.encoded + _number(goroutine.sequence) + stack
        self._emit(thread, at, _GO_UNBLOCK, rest)
        goroutine.state, goroutine.last = RUNNABLE, at

    def _switch(self, goroutine: _Goroutine, by: _Goroutine, at: int) -> None:
        """Run a coroutine in the place of another goroutine, which waits."""
        thread = by.thread
        assert thread is not None
        goroutine.sequence += 1
        self._emit(thread, at, _GO_SWITCH, goroutine.encoded + _number(goroutine.sequence))
        self._leave(by, thread, WAITING)
        thread.running, goroutine.thread, goroutine.state = goroutine, thread, RUNNING

    def _emit(self, thread: _Thread, at: int, event: bytes, rest: bytes) -> None:
        delta = at - thread.last
        if delta > 0:
            thread.last = at
            thread.events += event + _number(delta) + rest
        else:
            thread.events += event + _NONE + rest
        if len(thread.events) > _MAX_BATCH:
            self._flush(thread)

    def _flush(self, thread: _Thread) -> None:
        """End a batch of a thread's events."""
        if thread.events:
            self._batches.append(_batch(thread.number, thread.begin, thread.events))
        thread.events = bytearray()
        thread.begin = thread.last


def _ends(goroutine: _Goroutine) -> list[int]:
    """Return when something ceases to be known of a goroutine, of which something is known."""
    known = goroutine.known
    begin: int | None = None
    last = 0
    for change in goroutine.changes:
        last = change.at
        if begin is None:
            begin = last
        if change.state in (UNKNOWN, ENDED):
            known.append((begin, last))
            begin = None
    if begin is not None:
        known.append((begin, last))
    known.sort()
    ends = [known[0][1]]
    for start, end in known:
        if start > ends[-1]:
            ends.append(end)
        ends[-1] = max(ends[-1], end)
    return ends


def _day(at: int) -> str:
    """Return a time since 1970 in words."""
    seconds, ns = divmod(at, _NS)
    day = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{day:%Y-%m-%d %H:%M:%S}.{ns:09} UTC"


def _begin_of(request: Recorded) -> int:
    starts = (region.start for region in request.regions)
    changes = (change.at for change in request.changes)
    return min(min(starts, default=_NEVER), min(changes, default=_NEVER))


def _end_of(request: Recorded) -> int:
    """Return when a request ends, or the known part of a recording that is of no request."""
    if request.is_request:
        return request.regions[0].end
    ends = (region.end for region in request.regions)
    changes = (change.at for change in request.changes)
    return max(max(ends, default=0), max(changes, default=0))
