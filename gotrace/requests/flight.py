# SPDX-License-Identifier: Apache-2.0
"""Flights: records of a program's last seconds, which the kernel keeps and nobody reads.

A condition has them read: a call that is waited for, a panic or a signal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence

from gotrace.errors import UsageError
from gotrace.kernel.rings import pages_of
from gotrace.kernel.syscalls import online_cpus
from gotrace.probes.spec import ProbeSpec
from gotrace.records import replace
from gotrace.requests.assemble import request_probes
from gotrace.requests.recording import Recorder, Recording
from gotrace.session.events import HEADER, function_of
from gotrace.session.reading import RecordReader
from gotrace.session.request import Asked
from gotrace.session.trace import MAX_PAST, Flight, TraceOptions
from gotrace.target.target import Target

#: Where a record has what only the numbers of edges have: the highest byte of its function's.
_EDGE = 35
#: The default memory of a flight: 5 s of 600,000 events of 80 bytes a second. No more than a part
#: of the memory that is free.
_MAX_BYTES = 256 << 20
_PART = 8
_LEAST_BYTES = 256 << 10  # of one CPU
_PANIC, _SIGNAL = "panic", "signal"
#: The runtime's functions for a panic, and for an error that ends the program.
_PANICS = ("runtime.gopanic(e any)", "runtime.fatalthrow(t uint32)")


def probes_in(conditions: Sequence[str]) -> list[str]:
    """Return the conditions that are probes. Raises UsageError, also for more than one signal."""
    if len(_signals(conditions)) > 1:
        raise UsageError("a flight waits for one signal: leave the others out")
    return [text for text in conditions if text != _PANIC and _signal_in(text) is None]


def _signals(conditions: Iterable[str]) -> set[signal.Signals]:
    return {number for text in conditions if (number := _signal_in(text))}


def _signal_in(condition: str) -> signal.Signals | None:
    """Return the signal that a condition waits for, None if it is another one."""
    word, _, name = condition.partition(" ")
    if word != _SIGNAL or not name.strip():
        return None
    name = name.strip().upper().removeprefix("SIG")
    try:
        return signal.Signals(int(name)) if name.isdecimal() else signal.Signals[f"SIG{name}"]
    except (KeyError, ValueError):
        raise UsageError(f"{condition!r}: no signal is called {name}") from None


def flight_size() -> int:
    """Return how many bytes to keep if nobody says so. Raises OSError."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    return min(_MAX_BYTES, free // _PART)


def _pages(size: int) -> int:
    """Return how many pages each CPU has of so many bytes: a power of two. Raises UsageError."""
    cpus = len(online_cpus())
    if size // cpus < _LEAST_BYTES:
        least = _LEAST_BYTES * cpus >> 10
        raise UsageError(f"{size >> 10}K are too few to keep records in: give {least}K")
    return pages_of(size // cpus)


def flight_of(
    asked: Asked, target: Target, conditions: Sequence[str], size: int
) -> tuple[list[ProbeSpec], TraceOptions]:
    """Return the probes and options of a flight that keeps ``size`` bytes.

    ``asked`` has the conditions that are probes first: their calls begin requests. Raises
    UsageError.
    """
    roots, probes = request_probes(asked, target, len(probes_in(conditions)))
    until: list[ProbeSpec] = []
    if _PANIC in conditions:
        specs, _ = Asked(_PANICS).probes(target)
        until = [replace(spec, at_entry=True) for spec in specs]
    signals = _signals(conditions)
    flight = Flight(_pages(size), until, signals.pop() if signals else 0)
    return [*until, *probes], TraceOptions(roots=roots, states=True, flight=flight)


class FlightReader:
    """Takes the records of what is waited for, and gives out recordings of the time before it."""

    def __init__(
        self,
        reader: RecordReader,
        recorder: Recorder,
        options: TraceOptions,
        seconds: float,
        most: int = MAX_PAST,
        runs: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Take the reader, these options, and how long before its end a recording begins.

        It has the latest ``most`` records. ``runs`` says whether a process runs what is traced, if
        nothing else does: a signal may come to any process of the machine.
        """
        flight = options.flight
        assert flight is not None
        self._signal = f"signal {signal.Signals(flight.signal).name}" if flight.signal else ""
        self._reader = reader
        self._recorder = recorder
        self._ns = round(seconds * 1e9)
        self._most = most
        self._runs = runs
        ids = {id(spec) for spec in (*options.roots, *flight.until)}
        #: Numbers of the functions whose calls are waited for.
        self._until = {
            number
            for number, decoder in enumerate(recorder.decoders)
            if any(id(spec) in ids for spec, _ in decoder.traced.parts)
        }
        self._due: list[bytes] = []
        self._asked = False
        #: The calls that were waited for in the last recording, and when that was made.
        self._seen: set[tuple[int, int, int]] = set()
        self._made = 0
        #: When another process took over what was due: it has all that was before.
        self._handed = 0
        self._missing = self._lost = self._blind_until = 0

    def ask(self) -> None:
        """Make a recording in any case. May be called in a signal handler."""
        self._asked = True

    def add(self, record: bytes) -> None:
        """Take a record that was read. Raises RecordError."""
        if not self._has(record) and self._is_wanted(record):
            self._due.append(record)

    @property
    def due(self) -> Sequence[bytes]:
        """Return the records that were waited for, and have come since the last recording."""
        return self._due

    def hand_over(self) -> None:
        """Take note that another process makes the recording that is due, with all up to now."""
        self._handed = time.monotonic_ns()
        self._due, self._lost = [], 0

    def drop(self) -> int:
        """Forget the records that were waited for, and return how many they are."""
        dropped = len(self._due)
        self._due = []
        return dropped

    def take(self) -> Recording | None:
        """Return a recording if there is to be one. Raises RecordError."""
        self.look()
        if not self._due and not self._asked:
            return None
        self._asked = False
        due, self._due = self._due, []
        return self._recording(due)

    def look(self) -> None:
        """Look whether records are missing by now; ``take`` does."""
        missing = self._reader.missing().gaps
        if missing != self._missing:
            self._lost += missing - self._missing
            self._missing = missing
            # Nobody knows which states goroutines were left in: what is before is of no use.
            self._blind_until = time.monotonic_ns()

    def _is_wanted(self, record: bytes) -> bool:
        if record[_EDGE]:
            _, _, is_known, tgid, *_ = HEADER.unpack_from(record)
            return bool(is_known) or self._runs(tgid)
        decoder = self._recorder.decoders[function_of(record)]
        return decoder.wanted(record) is not None

    def _has(self, record: bytes) -> bool:
        """Return whether the last recording has a call, or was made after a signal."""
        end, _, goid, _, _, function, *_ = HEADER.unpack_from(record)
        if end <= self._handed:
            return True
        return end <= self._made if record[_EDGE] else (end, goid, function) in self._seen

    def _recording(self, due: list[bytes]) -> Recording:
        now = time.monotonic_ns()
        trigger = due[0] if due else None
        begin = now - self._ns
        if trigger is not None:
            end, start, *_ = HEADER.unpack_from(trigger)
            begin = min(end - self._ns, start - 1 if start else end)
        begin = max(begin, self._blind_until)
        records = self._reader.tracer.past(begin, now, self._most)
        self._seen = {
            (header[0], header[2], header[5])
            for record in records
            if not record[_EDGE] and (header := HEADER.unpack_from(record))[5] in self._until
        }
        # It may have been overwritten by now, by events that come faster than there is room.
        records += (one for one in due if not one[_EDGE] and not self._has(one))
        self._made = now
        lost, self._lost = self._lost if begin == self._blind_until else 0, 0
        cause = "SIGUSR1" if trigger is None else self._signal
        if trigger is not None and trigger[_EDGE]:
            trigger = None
        return self._recorder.recording(records, None, now, cause, trigger, lost)
