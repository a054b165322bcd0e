# SPDX-License-Identifier: Apache-2.0
"""Write files of what programs did in the seconds before something that somebody waits for.

The kernel keeps the records. A thread reads only what is waited for. A file is made in a process of
its own, of low priority, so that neither scrapes nor other probes wait for it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from gotrace.errors import GotraceError
from gotrace.fleet.config import FlightSpec
from gotrace.fleet.privacy import Privacy
from gotrace.fleet.probing import RecordProbe
from gotrace.fleet.targets import Program, ProgramKey
from gotrace.fleet.telemetry.price import refuse_price
from gotrace.fleet.threads import LastingThread, apart
from gotrace.fleet.trusted import check_folder
from gotrace.kernel.children import Child
from gotrace.kernel.rings import pages_of
from gotrace.overhead import ProbeCost
from gotrace.records import dataclass, replace
from gotrace.requests.flight import FlightReader, flight_of, probes_in
from gotrace.requests.own import own_patterns
from gotrace.requests.recording import Recorder
from gotrace.session.decode import DecodedCall
from gotrace.session.events import HEADER
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.session.trace import TraceRequest, expected_types
from gotrace.session.trace_plan import TraceChoices
from gotrace.target.target import Target
from gotrace.text import counted, printable

log = logging.getLogger("gotraced")

_OPEN_CALLS = 8192
_BUFFER = 128 << 10  # bytes of each CPU's buffer of what is waited for
_STRING_BYTES = 256
_PERIOD = 0.1  # seconds between two looks at what is waited for
_LOOK = 1.0  # seconds between two looks at what is missing
#: Records of a file: a process needs 100 MB for so many, and a second or two.
_MAX_RECORDS = 1 << 18
_MOST_MEMORY = 512 << 20  # of a process that writes, beside what it begins with
_MOST_CPU = 60  # seconds that it may take, and that may pass: others' work comes first
_MOST_TIME = 600.0
_MOST_WRITERS = 8
_LAST_WAIT = 10.0  # seconds that files are waited for at the end
_LONGEST = 86400.0  # seconds, of ``every``
_MAPPING = 2.0  # seconds for a process to get hold of the buffers
_LOW = 19  # the lowest priority
_MAPPED = b"m"
#: Bytes of what a process says; Linux writes so many to a pipe at once (PIPE_BUF).
MAX_ANSWER = 1 << 12
_MAX_TEXT = 512  # characters
#: The name of a file that is not whole yet: see ``written_whole``.
_PART = ".gotrace-*"
_TIME = "%Y%m%dT%H%M%S"


class PassedOver(Enum):
    """Why a condition that was met has no file; the values are those of the label ``reason``."""

    EVERY = "every"  # there was one not so long ago
    BUSY = "busy"  # too many others are being written


class FlightProblem(Enum):
    """Why a file could not be written; the values are those of the label ``reason``."""

    PROCESS = "process"  # no process could be started for it, or it was killed
    LIMIT = "limit"  # it took too much memory or time
    WRITE = "write"  # the system has refused it
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class FlightTally:
    """The fate of a flight in a target so far; ``memory`` is how much the kernel keeps now."""

    flight: str
    target: str
    written: int
    passed_over: dict[PassedOver, int]
    problems: dict[FlightProblem, int]
    memory: int


def flight_request(spec: FlightSpec, target: Target, program: Program) -> TraceRequest:
    """Return the request of a flight in a program. Raises GotraceError."""
    patterns = spec.probes or own_patterns(target, program.path)
    asked = Asked((*probes_in(spec.when), *patterns), file=program.path)
    probes, options = flight_of(asked, target, spec.when, spec.memory)
    choices = TraceChoices.of(_STRING_BYTES, 1, False, False)
    return TraceRequest(
        target=target,
        asked=asked,
        probes=probes,
        choices=replace(choices, first_alone=True),
        options=replace(options, open_calls=_OPEN_CALLS, pages=pages_of(_BUFFER)),
        is_minded=True,
    )


def try_flight(spec: FlightSpec, target: Target, program: Program) -> None:
    """Plan as ``FlightProbe`` does, and attach nothing. Raises GotraceError."""
    prepared = flight_request(spec, target, program).prepare(None, None)
    if prepared.traced is not None:
        expected_types(prepared.traced)


def _shown(privacy: Privacy, call: DecodedCall) -> DecodedCall:
    """Return a call without what is not to be read of its values."""
    function, results = call.function, call.results
    named = zip(function.parameter_labels, call.args, strict=True)
    args = [privacy.named(name, value) for name, value in named]
    if results is not None:
        named = zip(function.result_labels, results, strict=True)
        results = [privacy.named(name, value) for name, value in named]
    return replace(call, args=args, results=results)


class FlightProbe(RecordProbe):
    """The probes of one flight in one program, and what the kernel keeps of it."""

    def __init__(
        self,
        spec: FlightSpec,
        program: Program,
        target: Target,
        cost: ProbeCost,
        flights: Flights,
        share: float,
        most: int,
        is_spare: bool = False,
    ) -> None:
        """Attach, where that will not take more than ``share`` of one CPU.

        ``most`` is what all flights may keep, in bytes. ``is_spare``: no file is written before
        ``forget``, as another probe writes the same. Raises OverBudgetError, other GotraceErrors,
        or OSError.
        """
        check_folder(spec.folder)
        flights.check_room(spec, program, most)
        request = flight_request(spec, target, program)
        run = open_run(request, accept=lambda probes: refuse_price(probes, cost, share))
        decoders, undecided = request.decoders(run)
        super().__init__(program, cost, run, undecided, f"flight {spec.name}")
        self.spec = spec
        self.key = spec.name, program.key
        self._flights = flights
        self._is_spare = is_spare
        reasons = self._tracer.wait_reasons
        shown = partial(_shown, spec.privacy)
        self._recorder = Recorder(decoders, request.options.roots, reasons, 0, shown)
        options = request.options
        self._flight = FlightReader(
            self._reader, self._recorder, options, spec.keep, _MAX_RECORDS, runs=self._runs
        )
        self._next_look = 0.0
        flights.add(self)

    def read(self) -> None:
        """Read the records of triggers; to be called ten times a second."""
        with self._lock:
            if self.is_open:
                self._read()

    def _runs(self, pid: int) -> bool:
        """Return whether a process runs the program, or did so as this was attached."""
        return pid in self._program.processes or self._program.is_run_by(pid)

    def _add(self, record: bytes) -> None:
        self._flight.add(record)

    def _turn(self) -> None:
        if self._flight.due or time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._flight.look()
        if self._is_spare:
            self._flight.drop()
        elif self._flight.due:
            self._write()

    def _write(self) -> None:
        """Start writing a file, unless that is to be passed over."""
        if (reason := self._flights.passes_over(self)) is not None:
            self._flights.count(self, reason, self._flight.drop())
            return
        if self._flights.write(self, HEADER.unpack_from(self._flight.due[0])[3]):
            self._flight.hand_over()
        else:
            self._flight.drop()

    def get_hold(self) -> None:
        """Get hold of the buffers, in a process that was forked. Raises OSError."""
        self._tracer.past_here()

    def save(self, path: str) -> dict[str, object]:
        """Write a file, in a forked process, and return what it has. Raises GotraceError."""
        self._recorder.set_clock()
        recording = self._flight.take()
        assert recording is not None
        recording.save(path)
        return {
            "cause": recording.cause[:_MAX_TEXT],
            "ns": recording.end_ns - recording.begin_ns,
            "after": recording.after_ns,
            "calls": len(recording.calls)
            + sum(1 for one in recording.requests for _ in one.nodes()),
        }

    def _lighten(self) -> str | None:
        """Leave nothing out: of calls that are only counted there is nothing to keep."""
        return None

    def _forget(self) -> None:
        self._is_spare = False


@dataclass(frozen=True, slots=True)
class _Writer:
    """A process that writes a file."""

    child: Child
    spec: FlightSpec
    target: str
    path: str
    until: float


class Flights:
    """The flights of all programs: a thread that reads what they wait for, and their files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: list[FlightProbe] = []
        self._writers: list[_Writer] = []
        self._counts: Counter[tuple[str, str, Enum | None]] = Counter()
        #: When the last file of a flight in a program was begun (``time.monotonic``).
        self._last: dict[tuple[str, ProgramKey], float] = {}
        #: One process at a time holds it: the one that has records in its memory.
        self._turn = os.memfd_create("gotraced-flights", os.MFD_CLOEXEC)
        self._closing = threading.Event()
        self._thread: LastingThread | None = None

    def check_room(self, spec: FlightSpec, program: Program, most: int) -> None:
        """Raise GotraceError if the kernel would keep more than ``most`` bytes of all programs."""
        with self._lock:
            # A probe that replaces another is of the same flight and program.
            others = {probe.key: probe.spec.memory for probe in self._open()}
        others[spec.name, program.key] = spec.memory
        if (total := sum(others.values())) > most:
            raise GotraceError(
                f"flights would take {total >> 20}MiB of the kernel's memory: flight_memory is"
                f" {most >> 20}MiB"
            )

    def add(self, probe: FlightProbe) -> None:
        """Read a probe's records from now on."""
        with self._lock:
            self._probes = [*self._open(), probe]
            if self._thread is None:
                self._thread = LastingThread("flights", self._run, self._closing.wait)
                self._thread.start()
        self._clear(probe.spec)

    def _open(self) -> Iterator[FlightProbe]:
        return (probe for probe in self._probes if probe.is_open)

    def passes_over(self, probe: FlightProbe) -> PassedOver | None:
        """Return why no file is to be written for a probe now, None if there is to be one."""
        with self._lock:
            last = self._last.get(probe.key)
            if last is not None and time.monotonic() < last + probe.spec.every:
                return PassedOver.EVERY
            return PassedOver.BUSY if len(self._writers) >= _MOST_WRITERS else None

    def count(self, probe: FlightProbe, what: PassedOver, number: int) -> None:
        """Count the times that a condition was met and no file was written."""
        with self._lock:
            self._counts[probe.spec.name, probe.key[1].target, what] += number

    def write(self, probe: FlightProbe, pid: int) -> bool:
        """Begin to write a file, named after a process; return whether one has begun."""
        now, spec, target = time.monotonic(), probe.spec, probe.key[1].target
        with self._lock:
            self._last = {key: at for key, at in self._last.items() if at > now - _LONGEST}
            self._last[probe.key] = now
        path = os.path.join(spec.folder, _name(spec, target, pid))
        try:
            child = self._begun(probe, path)
        except (GotraceError, OSError) as error:
            with self._lock:
                self._fail(spec, target, FlightProblem.PROCESS, str(error))
            return False
        with self._lock:
            self._writers.append(_Writer(child, spec, target, path, now + _MOST_TIME))
        return True

    def _begun(self, probe: FlightProbe, path: str) -> Child:
        """Return a process that has hold of the buffers. Raises GotraceError, OSError."""
        write = partial(_write, probe, path, self._turn)
        child = Child("that writes a flight's file", write, keeps_files=True)
        # The buffers go with the probe, which may be closed right after this.
        if not child.has_answered(_MAPPING) or os.read(child.answer, 1) != _MAPPED:
            child.end()
            raise GotraceError("the process that is to write it cannot read what was kept")
        return child

    def _run(self, thread: LastingThread) -> None:
        while not self._closing.wait(_PERIOD):
            with self._lock:
                probes = list(self._probes)
            for probe in probes:
                with apart(thread.name, f"flight {probe.spec.name}"):
                    probe.read()
            self._settle()
            thread.back_in(_PERIOD)

    def _settle(self) -> None:
        """Take note of files that are whole, and of processes that take too long."""
        with self._lock:
            for writer in list(self._writers):
                is_late = time.monotonic() > writer.until
                if is_late or writer.child.has_answered(0):
                    self._writers.remove(writer)
                    self._take(writer)

    def _take(self, writer: _Writer) -> None:
        """Take a process's answer, and end it."""
        spec, target = writer.spec, writer.target
        found = _found(writer.child)
        if "cause" in found:
            self._counts[spec.name, target, None] += 1
            why = f" before {found['cause']}" if found["cause"] else ""
            since = f" and {found['after'] / 1e9:.1f} s after" if found["after"] else ""
            before, calls = found["ns"] - found["after"], counted("{} call{s}", found["calls"])
            text = f"wrote {writer.path}: {before / 1e9:.1f} s{why}{since}, {calls}"
            log.info("flight %s in %s: %s", spec.name, printable(target), printable(text))
        else:
            self._fail(spec, target, FlightProblem(found["problem"]), found["text"])
        self._clear(spec)
        with suppress(OSError):
            self._remove_oldest(spec, target)

    def _fail(self, spec: FlightSpec, target: str, problem: FlightProblem, text: str) -> None:
        self._counts[spec.name, target, problem] += 1
        shown = printable(target), printable(text)
        log.error("flight %s in %s: no file is written: %s", spec.name, *shown)

    @staticmethod
    def _clear(spec: FlightSpec) -> None:
        """Remove the files of processes that were ended in the middle of writing."""
        with suppress(OSError):
            for path in Path(spec.folder).glob(_PART):
                if path.stat().st_mtime < time.time() - _MOST_TIME:
                    path.unlink()

    @staticmethod
    def _remove_oldest(spec: FlightSpec, target: str) -> None:
        """Remove the oldest files of a flight and target that are too many. Raises OSError."""
        ours = re.compile(rf"{re.escape(_stem(spec, target))}-\d+-(\d+T\d+)\.(trace|pftrace|json)")
        found = [(at[1], name) for name in os.listdir(spec.folder) if (at := ours.fullmatch(name))]
        for _, name in sorted(found)[: -spec.files]:
            os.unlink(os.path.join(spec.folder, name))

    def tallies(self, specs: Sequence[FlightSpec]) -> Iterator[FlightTally]:
        """Yield the tallies of flights in their targets."""
        with self._lock:
            counts, probes = self._counts.copy(), list(self._open())
        for spec in specs:
            for target in spec.targets:
                name = spec.name
                ours = (probe for probe in probes if probe.key[1].target == target)
                yield FlightTally(
                    name,
                    target,
                    counts[name, target, None],
                    {why: counts[name, target, why] for why in PassedOver},
                    {why: counts[name, target, why] for why in FlightProblem},
                    sum(probe.spec.memory for probe in ours if probe.spec.name == name),
                )

    def close(self) -> None:
        """Wait a little for files that are being written; the probes are their owner's."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        until = time.monotonic() + _LAST_WAIT
        while self._writers and time.monotonic() < until:
            time.sleep(_PERIOD)
            self._settle()
        for writer in self._writers:
            log.warning("flight %s: not waited for: %s", writer.spec.name, printable(writer.path))
            writer.child.end()
        os.close(self._turn)


def _stem(spec: FlightSpec, target: str) -> str:
    return f"{spec.name}-{_UNSAFE.sub('_', target)[:_MAX_NAME]}"


#: Characters that are not in a file's name.
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
_MAX_NAME = 100


def _name(spec: FlightSpec, target: str, pid: int) -> str:
    """Return the name of a file that is written now."""
    now = datetime.now(timezone.utc)
    milliseconds = f"{now.microsecond // 1000:03}"
    return f"{_stem(spec, target)}-{pid}-{now.strftime(_TIME)}{milliseconds}.{spec.form}"


def _found(child: Child) -> dict[str, Any]:
    """Return a process's answer, or the meaning of its end, and end it."""
    if not child.has_answered(0):
        child.end()
        return _said(FlightProblem.LIMIT, f"it takes more than {_MOST_TIME:.0f} s")
    answer, status = os.read(child.answer, MAX_ANSWER), child.wait()
    if answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return _said(FlightProblem.LIMIT, f"it takes more than {_MOST_CPU} s")
    return _said(FlightProblem.PROCESS, child.why_ended())


def _said(problem: FlightProblem, text: str) -> dict[str, Any]:
    return {"problem": problem.value, "text": text[:_MAX_TEXT]}


def encoded_answer(said: dict[str, Any]) -> bytes:
    """Return a process's answer in as few bytes as can be written, and read, at once."""
    # A character has up to six bytes; a file's name may have surrogates.
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _write(probe: FlightProbe, path: str, turn: int, answer: int) -> None:
    """Write a file, and what became of it (runs in the child)."""
    said: dict[str, object] = {}
    try:
        os.umask(0o077)
        probe.get_hold()
        os.write(answer, _MAPPED)
        os.nice(_LOW)
        fcntl.lockf(turn, fcntl.LOCK_EX)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU, _MOST_CPU + 1))
        said = probe.save(path)
    except MemoryError:
        said = _said(FlightProblem.LIMIT, f"it takes more than {_MOST_MEMORY >> 20} MB")
    except (GotraceError, OSError) as error:
        said = _said(FlightProblem.WRITE, str(error))
    except Exception as error:  # a bug, which is to cost this file and not the daemon
        said = _said(FlightProblem.BUG, f"{type(error).__name__}: {error}")
    os.write(answer, encoded_answer(said))
