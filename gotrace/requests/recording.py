# SPDX-License-Identifier: Apache-2.0
"""A recording of a program for some time: requests, other calls, and goroutines' states."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count

from gotrace.calls import Call
from gotrace.errors import UsageError
from gotrace.gotypes.wait_reasons import COROUTINE
from gotrace.probes.spec import ProbeSpec
from gotrace.profiles.execution import (
    CREATED,
    ENDED,
    RUNNABLE,
    RUNNING,
    UNKNOWN,
    WAITING,
    Recorded,
    StateChange,
    execution_trace,
    is_execution_trace,
    undisturbed,
)
from gotrace.profiles.perfetto import PerfettoFile, is_perfetto
from gotrace.profiles.write import check_place, write_content, written_whole
from gotrace.records import dataclass, field
from gotrace.requests.assemble import Assembler
from gotrace.requests.critical import reason_of
from gotrace.requests.edges import FIRST, EdgeKind
from gotrace.requests.model import Node, Request, region_of, slice_of
from gotrace.session.decode import CallDecoder, DecodedCall
from gotrace.session.events import HEADER, CallFlag
from gotrace.text import counted

_JSON = ".json"
#: By the statuses of Go's runtime, releases 1.19 to 1.27.
_STATES = {1: RUNNABLE, 2: RUNNING, 4: WAITING}
_RUNNING, _WAITING = 2, 4
_ALWAYS = -(1 << 63)  # before all times
_STATE, _GO, _SWITCH, _DEAD = (
    FIRST + kind for kind in (EdgeKind.STATE, EdgeKind.GO, EdgeKind.SWITCH, EdgeKind.DEAD)
)
_TIME = struct.Struct("<Q").unpack_from
_UNWANTED = CallFlag.UNWANTED.value


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of a program from one time to another, in ns since 1970.

    ``requests`` are those that ended then, with their calls; ``calls`` are all others, in the order
    in which they ended. ``states`` are the changes of goroutines' states, of each process by its
    number: those of a goroutine together and in order, with times since 1970. ``cause`` says what
    it was made for, ``trigger`` is the call that it was made for, None if that was no call.
    ``lost``: so many records were lost before it began.
    """

    begin_ns: int
    end_ns: int
    requests: Sequence[Request[Call]] = ()
    calls: Sequence[Call] = ()
    states: Mapping[int, Sequence[StateChange]] = field(default_factory=dict)
    cause: str = ""
    trigger: Call | None = None
    lost: int = 0

    def __repr__(self) -> str:
        """Return how much there is of each: a notebook shows this."""
        seconds, states = (self.end_ns - self.begin_ns) / 1e9, sum(map(len, self.states.values()))
        parts = (
            counted("{:,} request{s}", len(self.requests)),
            counted("{:,} call{s}", len(self.calls)),
            counted("{:,} change{s} of state", states),
        )
        return f"<gotrace.Recording: {seconds:.6g} s, {', '.join(parts)}>"

    @property
    def after_ns(self) -> int:
        """Return for how long it goes on after the trigger's end, in ns; 0 without a trigger.

        Records are read a while after the call that they are read for.
        """
        return max(0, self.end_ns - self.trigger.time_ns) if self.trigger is not None else 0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``x.trace`` for ``go tool trace``, ``x.pftrace`` for Perfetto, or ``x.json``.

        The file is there as a whole or not at all. A file of JSON has a line for each request and
        call, without the states. Raises GotraceError.
        """
        name = os.fspath(path)
        _check_name(name)
        if is_execution_trace(name):
            lost = counted("{} record{s} lost here", self.lost) if self.lost else ""
            cause = f"written for {self.cause}" if self.cause else ""
            write_content(name, execution_trace(list(self._recorded()), lost, cause))
        elif is_perfetto(name):
            with written_whole(name) as part, closing(PerfettoFile(part)) as file:
                arrows = count(1)
                for number, request in enumerate(self.requests, 1):
                    file.add(request.slices(arrows), number)
                for call in self.calls:
                    file.add([slice_of(_node(call), _start(call))], 0)
        else:
            lines = [request.to_json() for request in self.requests]
            write_content(name, "".join([*lines, *(call.to_json() for call in self.calls)]))

    def _recorded(self) -> Iterator[Recorded]:
        """Yield the recording's requests as an execution trace has them."""
        for request in self.requests:
            yield request.recorded()
        others: dict[int, list[Call]] = {pid: [] for pid in self.states}
        for call in self.calls:
            others.setdefault(call.pid, []).append(call)
        for pid, calls in others.items():
            regions = [region_of(_node(call), _start(call)) for call in calls]
            yield Recorded(pid, regions, self.states.get(pid, ()), is_request=False)


def _node(call: Call) -> Node[Call]:
    return Node(call, "call", 0)


def _start(call: Call) -> int:
    return call.time_ns - (call.duration_ns or 0)


def _check_name(path: str) -> None:
    if not (is_execution_trace(path) or is_perfetto(path) or path.endswith(_JSON)):
        raise UsageError(f"{path}: give x.trace, x.pftrace or x.json, which says what to write")


def check_recording_file(path: str) -> None:
    """Raise GotraceError if a recording cannot be saved there; nothing is changed."""
    _check_name(path)
    check_place(path)


class Recorder:
    """Makes recordings of records."""

    def __init__(
        self,
        decoders: Sequence[CallDecoder],
        roots: Sequence[ProbeSpec],
        reasons: Sequence[str],
        epoch_ns: int,
        shown: Callable[[DecodedCall], DecodedCall] | None = None,
    ) -> None:
        """Take the decoders of functions by number, and the probes whose calls begin requests.

        ``reasons`` are Go's words for why goroutines wait, by number; ``epoch_ns`` is
        CLOCK_MONOTONIC at the year 1970. ``shown`` returns what a recording has of a call, None if
        it has all of it.
        """
        self.decoders = decoders
        self._roots = roots
        self._reasons = reasons
        self._epoch = epoch_ns
        self._shown = shown

    def set_clock(self) -> None:
        """Set the clock of times to that of the system as it is now."""
        self._epoch = time.monotonic_ns() - time.time_ns()

    def recording(
        self,
        records: Sequence[bytes],
        begin: int | None,
        end: int,
        cause: str = "",
        trigger: bytes | None = None,
        lost: int = 0,
    ) -> Recording:
        """Return the recording of a time (ns, CLOCK_MONOTONIC), in whatever order its records are.

        ``begin`` None is when the first record is from. ``trigger`` is the record of the call that
        it is made for. Raises RecordError.
        """
        with undisturbed():
            # It has few runs that are in order already, if more than one: what sorting is good at.
            ordered = sorted(records, key=_TIME)
            if begin is None:
                begin = _TIME(ordered[0])[0] if ordered else end
            return self._recording(ordered, begin, end, cause, trigger, lost)

    def _recording(
        self,
        records: Sequence[bytes],
        begin: int,
        end: int,
        cause: str,
        trigger: bytes | None,
        lost: int,
    ) -> Recording:
        assembler = Assembler(self.decoders, self._roots) if self._roots else None
        states = _States(self._reasons, self._epoch)
        calls: list[bytes] = []
        for record in records:
            header = HEADER.unpack_from(record)
            function = header[5]
            if function < FIRST:
                calls.append(record)
                if assembler is not None and header[1]:
                    assembler.add_read(record, header)
                continue
            if function == _STATE:
                states.add_state(header)
                continue
            if function in (_GO, _SWITCH, _DEAD):
                states.add(header)
            if assembler is not None:
                assembler.add_read(record, header)
        requests = []
        if assembler is not None:
            requests = [
                request.mapped(self._as_call) for request in assembler.take(0, is_over=True)
            ]
        known = {_identity(node.call) for request in requests for node in request.nodes()}
        others = []
        for record in calls:
            call = self._call(record)
            if call is not None and _identity(call) not in known:
                others.append(call)
        first = self._call(trigger) if trigger is not None else None
        if first is not None:
            cause = f"{first.function} in goroutine {first.goid}"
        begin, end = begin - self._epoch, end - self._epoch
        starts: dict[tuple[int, int], list[int]] = {}
        for call in (*others, *(node.call for request in requests for node in request.nodes())):
            starts.setdefault((call.pid, call.goid), []).append(_start(call))
        changes = states.all(begin, end, starts)
        return Recording(begin, end, requests, others, changes, cause, first, lost)

    def _call(self, record: bytes) -> Call | None:
        """Return a record's call, None if no probe wants it."""
        header = HEADER.unpack_from(record)
        function: int = header[5]
        decoder = self.decoders[function]
        if header[8] & _UNWANTED:
            return self._as_call(decoder.bare(record))
        shown = decoder.calls(record, is_counted=False)
        return self._as_call(shown[0][1]) if shown else None

    def _as_call(self, call: DecodedCall) -> Call:
        shown = call if self._shown is None else self._shown(call)
        return shown.as_call(self._epoch)


def _identity(call: Call) -> tuple[int, int, int, str]:
    return call.pid, call.goid, call.time_ns, call.function


class _States:
    """The changes of all goroutines' states."""

    def __init__(self, reasons: Sequence[str], epoch: int) -> None:
        # A number of a reason has eight bits.
        self._reasons = [reason_of(number, reasons) for number in range(256)]
        self._epoch = epoch
        self._living: dict[tuple[int, int], list[StateChange]] = {}
        self._ended: dict[tuple[int, int], list[StateChange]] = {}

    def add_state(self, header: tuple[int, ...]) -> None:
        """Take the header of a change's record: the next one in the order of time."""
        at, other, goid, tgid, tid, _, _, _, _, state, reason = header
        changes = self._living.get((tgid, other))
        if changes is None:
            changes = self._begun(tgid, other)
            # It ends what the goroutine has done since before all records.
            if reason and state != _WAITING:
                changes.append(StateChange(_ALWAYS, other, WAITING, self._reasons[reason]))
            elif state == _RUNNING:
                changes.append(StateChange(_ALWAYS, other, RUNNABLE))
        why = self._reasons[reason] if state == _WAITING else ""
        # Up to Go 1.19 it is not always known as a wait begins what it is for.
        if reason and not why and changes and changes[-1].state == WAITING:
            changes[-1] = changes[-1]._replace(reason=self._reasons[reason])
        # As StateChange(...), in half of the time.
        row = (at - self._epoch, other, _STATES[state], why, goid, tid)
        changes.append(tuple.__new__(StateChange, row))

    def add(self, header: tuple[int, ...]) -> None:
        """Take the header of another edge's record: the next one in the order of time."""
        at, other, goid, tgid, tid, kind, *_ = header
        at -= self._epoch
        if kind == _GO:
            # The earlier reports were for the number that it was to have, or had by chance.
            if other and (tgid, other) not in self._ended:
                self._living[tgid, other] = [StateChange(at, other, CREATED, "", goid)]
        elif kind == _SWITCH:
            self._begun(tgid, goid).append(StateChange(at, goid, WAITING, COROUTINE, 0, tid))
            changes = self._begun(tgid, other)
            if not changes:
                changes.append(StateChange(_ALWAYS, other, WAITING, COROUTINE))
            changes.append(StateChange(at, other, RUNNING, "", goid, tid))
        elif goid and (tgid, goid) not in self._ended:
            changes = self._living.pop((tgid, goid), [])
            changes.append(StateChange(at, goid, ENDED))
            self._ended[tgid, goid] = changes

    def _begun(self, tgid: int, goid: int) -> list[StateChange]:
        """Return the changes of a goroutine."""
        # Up to Go 1.23 a new goroutine has the number of an ended one for a moment, or none.
        if not goid or (tgid, goid) in self._ended:
            return []
        return self._living.setdefault((tgid, goid), [])

    def all(
        self, begin: int, end: int, starts: Mapping[tuple[int, int], Sequence[int]]
    ) -> dict[int, list[StateChange]]:
        """Return all changes of each process; what is known ends at a time.

        ``starts`` are the begins of goroutines' calls. A wait that has begun before all records
        counts from the latest of these on, when the goroutine has run, or from the first of all.
        """
        begin = min(map(min, starts.values()), default=begin)
        found: dict[int, list[StateChange]] = {}
        for known in (self._ended, self._living):
            for task, changes in known.items():
                if changes and changes[0].at == _ALWAYS:
                    until = changes[1].at
                    ran = max((at for at in starts.get(task, ()) if at < until), default=begin)
                    changes[0] = changes[0]._replace(at=min(ran + 1, until))
                own = found.setdefault(task[0], [])
                own += changes
                if known is self._living:
                    own.append(StateChange(max(end, changes[-1].at), task[1], UNKNOWN))
        return found
