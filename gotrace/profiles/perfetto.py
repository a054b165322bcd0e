# SPDX-License-Identifier: Apache-2.0
"""Write calls as Perfetto reads them: a track for each goroutine, a slice for each call.

Arrows lead from a call to those that other goroutines make for it. Values are annotations of
slices. The format is that of protos/perfetto/trace/trace.proto in
github.com/google/perfetto; the messages are few, so they are encoded here: Perfetto's own package
needs the 20 MB of protobuf.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from gotrace.errors import GotraceError
from gotrace.profiles.protobuf import double, fixed, message, numbers, text
from gotrace.profiles.write import real_path
from gotrace.records import dataclass

#: The ending of such files' names.
PERFETTO = ".pftrace"

_PACKET = 1  # of Trace
# Of TracePacket:
_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _EVENT, _FLAGS, _CLOCK, _TRACK = 6, 8, 10, 11, 13, 58, 60
_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED
_REALTIME = 1  # BUILTIN_CLOCK_REALTIME
# Of TrackDescriptor and ProcessDescriptor:
_UUID, _NAME, _PROCESS, _PARENT = 1, 2, 3, 5
_PID, _PROCESS_NAME = 1, 6
# Of TrackEvent:
_ANNOTATION, _TYPE, _ON_TRACK, _CATEGORY, _EVENT_NAME = 4, 9, 11, 22, 23
_FLOW, _FLOW_ENDS, _CORRELATION = 47, 48, 52
_BEGIN, _END = 1, 2
# Of DebugAnnotation:
_BOOL, _INT, _DOUBLE, _STRING, _KEY, _ENTRY, _ELEMENT = 2, 4, 5, 6, 10, 11, 12
_IDS = 1  # the number of the one sequence of packets
_MAX_DEPTH = 16  # of values within values


def is_perfetto(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name asks for this form."""
    return os.fspath(path).endswith(PERFETTO)


@dataclass(frozen=True, slots=True)
class Slice:
    """A call of a goroutine, with values as JSON has them.

    ``start`` and ``end`` are in ns since 1970. ``begun`` are values that were there when it began,
    ``ended`` those at its end. ``leads_to`` and ``comes_from`` are numbers of arrows, each of which
    begins in one slice and ends in another; 0 is no arrow.
    """

    pid: int
    goid: int
    name: str
    category: str
    start: int
    end: int
    begun: Mapping[str, Any]
    ended: Mapping[str, Any]
    leads_to: Sequence[int] = ()
    comes_from: int = 0


class PerfettoFile:
    """A file that requests are added to as they come: its written part can be read at any time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin the file. Raises GotraceError."""
        self._name = os.fspath(path)
        self._tracks: dict[tuple[int, int | None], int] = {}
        try:
            real_path(self._name)  # raises for links of other users
            self._file: BinaryIO = open(self._name, "wb")  # noqa: SIM115
        except OSError as error:
            raise self._failed(error) from error

    def add(self, slices: Iterable[Slice], together: int) -> None:
        """Write slices that viewers show as belonging together. Raises GotraceError.

        Those of a goroutine must lie within one another, or apart.
        """
        packets = bytearray()
        by_task: dict[tuple[int, int], list[Slice]] = {}
        for one in slices:
            by_task.setdefault((one.pid, one.goid), []).append(one)
        for (pid, goid), own in by_task.items():
            track = self._track(packets, pid, goid)
            for at, event in _events(own, track, together):
                packets += _packet(_at(at) + message(_EVENT, event))
        self._write(bytes(packets))

    def close(self) -> None:
        """End the file. Raises GotraceError."""
        try:
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> GotraceError:
        return GotraceError(f"cannot write {self._name}: {error.strerror or error}")

    def _track(self, packets: bytearray, pid: int, goid: int | None) -> int:
        """Return the number of a goroutine's track, or of a process's if there is no goroutine."""
        known = self._tracks.get((pid, goid))
        if known is not None:
            return known
        if not self._tracks:
            packets += _packet(numbers({_FLAGS: _CLEARED}) + _clocks())
        parent = 0 if goid is None else self._track(packets, pid, None)
        number = self._tracks[pid, goid] = len(self._tracks) + 1
        content = numbers({_UUID: number, _PARENT: parent})
        if goid is None:
            process = numbers({_PID: pid}) + message(_PROCESS_NAME, text(f"process {pid}"))
            content += message(_PROCESS, process)
        else:
            content += message(_NAME, text(f"goroutine {goid}"))
        packets += _packet(message(_TRACK, content))
        return number


def _events(slices: list[Slice], track: int, together: int) -> Iterator[tuple[int, bytes]]:
    """Yield the beginnings and ends of a track's slices, inner ones within outer ones."""
    # Of two that begin together, the longer one is the outer one.
    slices.sort(key=lambda one: (one.start, -one.end))
    open_ones: list[Slice] = []
    for one in slices:
        while open_ones and open_ones[-1].end <= one.start:
            yield _ended(open_ones.pop(), track)
        yield one.start, _begun(one, track, together)
        open_ones.append(one)
    while open_ones:
        yield _ended(open_ones.pop(), track)


def _begun(one: Slice, track: int, together: int) -> bytes:
    event = numbers({_TYPE: _BEGIN, _ON_TRACK: track, _CORRELATION: together})
    event += message(_CATEGORY, text(one.category)) + message(_EVENT_NAME, text(one.name))
    event += b"".join(fixed(_FLOW, flow) for flow in one.leads_to)
    if one.comes_from:
        event += fixed(_FLOW_ENDS, one.comes_from)
    return event + _annotations(one.begun)


def _ended(one: Slice, track: int) -> tuple[int, bytes]:
    return one.end, numbers({_TYPE: _END, _ON_TRACK: track}) + _annotations(one.ended)


def _annotations(values: Mapping[str, Any]) -> bytes:
    return b"".join(
        message(_ANNOTATION, message(_KEY, text(name)) + _value(value))
        for name, value in values.items()
    )


def _value(value: Any, depth: int = 0) -> bytes:
    """Return the fields of an annotation that has a value as JSON has it."""
    if isinstance(value, bool):
        return numbers({_BOOL: 1}) if value else b"\x10\0"
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return numbers({_INT: value}) or b"\x20\0"
    if isinstance(value, float):
        return double(_DOUBLE, value)
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        return b"".join(
            message(_ENTRY, message(_KEY, text(str(key))) + _value(inner, depth + 1))
            for key, inner in value.items()
        )
    if isinstance(value, list) and value and depth < _MAX_DEPTH:
        return b"".join(message(_ELEMENT, _value(inner, depth + 1)) for inner in value)
    return message(_STRING, text("nil" if value is None else str(value)))


def _at(ns: int) -> bytes:
    return numbers({_TIMESTAMP: ns, _CLOCK: _REALTIME})


def _clocks() -> bytes:
    """Return a packet that declares all times to be those of the wall clock."""
    clock = numbers({1: _REALTIME, 2: 1})
    return message(_SNAPSHOT, message(1, clock) + numbers({2: _REALTIME}))


def _packet(content: bytes) -> bytes:
    return message(_PACKET, content + numbers({_SEQUENCE: _IDS}))
