# SPDX-License-Identifier: Apache-2.0
"""Make spans of calls: those of one program, in trees, each kind at most at a rate."""

from __future__ import annotations

import logging
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from gotrace.errors import GotraceError
from gotrace.fleet.config import SpanSpec
from gotrace.fleet.naming import Attribute, private_attribute
from gotrace.fleet.otlp import FinishedCall
from gotrace.fleet.privacy import Errors
from gotrace.fleet.probing import ProbeState, RecordProbe
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.price import OverBudgetError, refuse_price
from gotrace.fleet.telemetry.traces import PROGRAM, LeftOut, Traces, Via
from gotrace.fleet.threads import LastingThread, apart
from gotrace.kernel.rings import pages_of
from gotrace.kernel.syscalls import online_cpus
from gotrace.overhead import ProbeCost
from gotrace.probes.spec import ProbeSpec, parse_key
from gotrace.records import dataclass, field, replace
from gotrace.requests.belonging import Task
from gotrace.requests.edges import FIRST, EdgeKind, edge_of
from gotrace.session.decode import DecodedCall
from gotrace.session.edges import EdgeProbes, edge_probes
from gotrace.session.events import HEADER, CallFlag, RecordError, function_of
from gotrace.session.probing import Prepared
from gotrace.session.request import Accept, Asked
from gotrace.session.run import Run, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.tasks import Tasks
from gotrace.session.trace import CallTracer, TraceOptions, TraceRequest, expected_types
from gotrace.session.trace_plan import TraceChoices, TracedCall, TracePlan, parse_probes
from gotrace.session.why.probes import WhyOptions
from gotrace.target.target import Target
from gotrace.text import printable
from gotrace.values.python import GoError, Unavailable, to_python

log = logging.getLogger("gotraced")

_OPEN_CALLS = 8192
_BUFFERS = 8 << 20  # bytes of all CPUs' event buffers together, and of each at least and at most
_MIN_BUFFER, _MAX_BUFFER = 256 << 10, 2 << 20
_STRING_BYTES = 256
_PERIOD = 0.1  # seconds between two looks at the event buffers
_SHORT = 0.02  # the same, if there were many records
_MANY = 500


class Sink(Protocol):
    """Where spans go."""

    def put(self, call: FinishedCall) -> None: ...

    def left_out(self, calls: int) -> None: ...


@dataclass
class Rate:
    """A bucket of tokens: ``a_second`` come, and no more than a second's are kept."""

    a_second: float
    _tokens: float = 1.0
    _seen: float | None = None

    def allows(self, now: float) -> bool:
        """Take a token where there is one; ``now`` is in seconds."""
        if self._seen is None:
            self._tokens = max(1.0, self.a_second)
        else:
            more = self.a_second * (now - self._seen)
            self._tokens = min(max(1.0, self.a_second), self._tokens + more)
        self._seen = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def plan_span(spec: SpanSpec, target: Target, program: Program) -> TracePlan:
    """Plan a span's probe. Raises GotraceError."""
    traced = _request([_probe(spec)], target, program).plan().traced
    assert traced is not None
    return traced


def try_spans(specs: Sequence[SpanSpec], target: Target, program: Program) -> None:
    """Plan as ``SpanProbe`` does, and attach nothing. Raises GotraceError."""
    try:
        probes = [_probe(spec) for spec in specs]
        has_why, inherits = (any(spec.why for spec in specs), any(spec.inherit for spec in specs))
        prepared = _request(probes, target, program, has_why, inherits).prepare(None, None)
        if prepared.traced is not None:
            expected_types(prepared.traced)
    except GotraceError:
        _usable(specs, target, program)


#: The known facts about a call beside its attributes, as far as its function has them.
_ERROR = 0
#: The next two, if asked for, are the ids of the program's own span.
_IDS = slice(1, 3)
_ERR, _TRACE, _CONTEXTS = parse_key("$err"), parse_key("$trace, $span"), parse_key("$contexts")


def _probe(spec: SpanSpec) -> ProbeSpec:
    """Return the probe that captures a span's expressions. Raises GotraceError."""
    texts = [text for _, text in spec.attributes]
    words = " ".join(["%v"] * len(texts)) or "."
    specs, failed = parse_probes([", ".join([f'{spec.probe} "{words}"', *texts])])
    if failed:
        raise failed[0]
    keys = [_ERR]
    if spec.trace_context:
        keys.append(_TRACE)
    if spec.inherit:
        keys.append(_CONTEXTS)
    wanted = tuple(expression for key in keys for expression in key.expressions)
    return replace(specs[0], extras=replace(_ERR, expressions=wanted))


def has_context(call: TracedCall) -> bool:
    """Return whether a function has a context that can hold a span of the program's own."""
    extras = [probe.extras for _, probe in call.parts]
    return any(found[_IDS] and found[_IDS][0] is not None for found in extras)


def edges_problem(target: Target, tasks: Tasks) -> str | None:
    """Return why spans are not put below those of other goroutines, None if they are."""
    try:
        edge_probes(target, tasks, _WHAT, False)
    except GotraceError as error:
        return str(error)
    return None


_WHAT = "to put spans below those of other goroutines"
#: The time of reading a record of an edge, in ns.
_READING_NS = 4000


@dataclass(frozen=True, kw_only=True)
class _SpanRequest(TraceRequest):
    """The request for a program's spans, and for work between goroutines, if it is seen.

    ``refuse`` raises OverBudgetError if that costs too much. ``declined`` is why it is not seen.
    """

    inherits: bool = True
    refuse: Accept | None = None
    declined: list[GotraceError] = field(default_factory=list)

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        prepared = super().prepare(announce, accept)
        if not self.inherits:
            return prepared
        assert prepared.tasks is not None
        self.declined.clear()
        for is_lean in (False, True):
            try:
                edges = edge_probes(self.target, prepared.tasks, _WHAT, False, is_lean=is_lean)
                if self.refuse is not None and not is_lean:
                    self.refuse(edges)
            except GotraceError as error:
                self.declined.append(error)
            else:
                return replace(prepared, scheduler=edges)
        return prepared


def _request(
    probes: Sequence[ProbeSpec],
    target: Target,
    program: Program,
    has_why: bool = False,
    inherits: bool = True,
    refuse: Accept | None = None,
) -> _SpanRequest:
    return _SpanRequest(
        inherits=inherits,
        refuse=refuse,
        target=target,
        asked=Asked((), file=program.path),
        probes=probes,
        why=WhyOptions() if has_why else None,
        choices=TraceChoices.of(_STRING_BYTES, 1, False, False),
        options=TraceOptions(open_calls=_OPEN_CALLS, pages=_pages(), nested=True),
        is_minded=True,
    )


def _pages() -> int:
    """Return how many pages each CPU's event buffer has: a power of two."""
    return pages_of(min(max(_BUFFERS // len(online_cpus()), _MIN_BUFFER), _MAX_BUFFER))


@dataclass
class _Kind:
    """One kind of span."""

    spec: SpanSpec
    probe: ProbeSpec
    rate: Rate


def _usable(
    specs: Sequence[SpanSpec], target: Target, program: Program
) -> tuple[list[SpanSpec], list[str]]:
    """Return the kinds of spans that can be made, planned one by one, and why others cannot.

    Raises GotraceError if none can.
    """
    usable, errors = [], []
    problems = []
    for spec in specs:
        try:
            plan_span(spec, target, program)
        except GotraceError as error:
            errors.append(error)
            problems.append(f"span {spec.name or spec.probe} is not made: {error}")
        else:
            usable.append(spec)
    if not usable:
        raise errors[0]
    return usable, problems


def _part_attribute(part: str) -> str:
    """Return the attribute's name for a part of a span's time.

    >>> _part_attribute("blocked: chan receive (nil chan)")
    'go.why.blocked.chan_receive_nil_chan'
    """
    return f"go.why.{_NOT_NAMED.sub('_', part.replace(': ', '.')).strip('_')}"


_NOT_NAMED = re.compile(r"[^\w.]+")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record of a call; ``is_wanted``: some probe's predicate wants it."""

    record: bytes
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class _Ids:
    """The numbers of a trace and of a span in it."""

    trace: int
    span: int


@dataclass(frozen=True, slots=True)
class _Above:
    """A span that others may hang below; ``within`` is the program's own that it is within.

    ``via``: how calls are below it that are within one that was not sent.
    """

    ids: _Ids
    within: _Ids | None
    via: Via = Via.CALL


class SpanProbe(RecordProbe):
    """The probes of all spans in one program; ``read`` sends what has come."""

    def __init__(
        self,
        specs: Sequence[SpanSpec],
        program: Program,
        target: Target,
        cost: ProbeCost,
        sink: Sink,
        share: float,
        is_spare: bool = False,
    ) -> None:
        """Attach; what spans' time goes into only where that takes less than ``share`` of one CPU.

        ``is_spare``: nothing is sent before ``forget``, as another probe sends the same calls.
        Raises OverBudgetError, other GotraceErrors, or OSError.
        """
        problems: list[str] = []
        try:
            opened = self._opened(specs, target, program, cost, share)
        except OverBudgetError:
            raise
        except GotraceError:
            # Something is wrong with at least one: the others are tried without it.
            specs, problems = _usable(specs, target, program)
            opened = self._opened(specs, target, program, cost, share)
        self._kinds, request, run = opened
        self._decoders, undecided = request.decoders(run)
        super().__init__(program, cost, run, undecided, "spans")
        self._sink = sink
        self._is_spare = is_spare
        self._since = 0
        traced, tasks = run.traced, run.tasks
        assert traced is not None and tasks is not None
        self.problems += problems
        is_dear = any(isinstance(error, OverBudgetError) for error in request.declined)
        if request.declined:
            self.problems.append(f"{_ALONE}: {request.declined[0]}")
        #: Numbers of functions of which no kind of span is below those of other goroutines.
        self._apart = {
            number
            for number, call in enumerate(traced.calls)
            if not any(kind.spec.inherit for kind in self._kinds_of(call))
        }
        inherits = len(self._apart) < len(traced.calls)
        if self._tracer.has_edges or not inherits:
            alone = Via.ROOT
        else:
            alone = Via.UNATTRIBUTED
            self.state = ProbeState.NO_EDGES if is_dear else ProbeState.ON
        unknown = Via.UNATTRIBUTED if inherits else Via.ROOT
        self._traces: Traces[_Seen, _Above] = Traces(self._send, alone, unknown)
        self._vias: Counter[str] = Counter()
        self._left_out = self._missing = self._epoch = 0
        #: Processes that have ended, and when that was seen.
        self._ended: dict[int, int] = {}

    @staticmethod
    def _opened(
        specs: Sequence[SpanSpec], target: Target, program: Program, cost: ProbeCost, share: float
    ) -> tuple[list[_Kind], _SpanRequest, Run[CallTracer, ProbeCost]]:
        def refuse(probes: SchedulerProbes) -> None:
            more = _READING_NS if isinstance(probes, EdgeProbes) else 0
            refuse_price(probes, cost, share, more)

        kinds = [_Kind(spec, _probe(spec), Rate(spec.rate)) for spec in specs]
        has_why, inherits = (any(spec.why for spec in specs), any(spec.inherit for spec in specs))
        probes = [kind.probe for kind in kinds]
        request = _request(probes, target, program, has_why, inherits, refuse)
        return kinds, request, open_run(request, accept=refuse)

    def read(self) -> bool:
        """Read new records; to be called ten times a second. Return whether they were many."""
        with self._lock:
            return self.is_open and not self._is_spare and self._read() >= _MANY

    def _poll(self) -> None:
        for process in self._traces.processes:
            if not Path(f"/proc/{process}").exists():
                self._ended.setdefault(process, time.monotonic_ns())

    def _forget_ended(self, moment: int) -> None:
        """Forget processes that had ended by a moment up to which all records have been taken.

        A process ends while some of its calls are yet to be read.
        """
        for process, at in list(self._ended.items()):
            if at <= moment:
                del self._ended[process]
                self._traces.gone(process, at)

    def _lighten(self) -> str | None:
        """Do without edges."""
        if self.state is not ProbeState.ON or not self._tracer.drop_edges():
            return super()._lighten()
        self.state = ProbeState.NO_EDGES
        self._traces.alone = Via.UNATTRIBUTED
        self._traces.lose(time.monotonic_ns())
        return _ALONE

    def _sent(self) -> Counter[str]:
        return self._vias.copy()

    def _forget(self) -> None:
        self._is_spare, self._since = False, time.monotonic_ns()

    def _take_all(self, records: Iterator[bytes]) -> int:
        self._epoch = time.time_ns() - time.monotonic_ns()
        return super()._take_all(records)

    def _turn(self) -> None:
        missing = self._reader.missing().records
        if missing != self._missing:
            self._missing = missing
            self._traces.lose(time.monotonic_ns())
        moment = self._tracer.window.complete
        self._traces.turn(moment)
        self._forget_ended(moment)
        if self._left_out:
            self._sink.left_out(self._left_out)
            self._left_out = 0

    def _add(self, record: bytes) -> None:
        """Take the next record, of a call or of an edge."""
        header = HEADER.unpack_from(record)
        end, start, goid, tgid, tid, function, _, _, flags, _, _ = header
        task: Task = tgid, goid or -tid
        if function >= FIRST:
            edge = edge_of(header)
            if edge.kind is not EdgeKind.BEGIN:
                self._traces.edge(edge)
                return
            words = (len(record) - HEADER.size) // 8
            contexts = struct.unpack_from(f"<{words}Q", record, HEADER.size)
            number = edge.depth
            self._traces.begin(edge, task, number, contexts, number in self._apart)
            return
        if end < self._since:
            return
        is_unwanted = bool(flags & CallFlag.UNWANTED.value)
        is_wanted = not is_unwanted and self._decoders[function].wanted(record) is not None
        seen = _Seen(record if is_wanted else b"", is_wanted)
        is_nested = bool(flags & CallFlag.NESTED.value)
        size, now = len(seen.record) + HEADER.size, time.monotonic()
        self._traces.end(task, start or end, end, is_nested, seen, size, now)

    def _send(
        self, seen: _Seen, above: _Above | LeftOut | None, via: Via
    ) -> _Above | LeftOut | None:
        """Send a call, if its rate allows it; return what is to be below what is below it.

        If one that is below none is not sent for its rate, neither is what is below it. Others that
        are not sent are left out of the tree.
        """
        if isinstance(above, LeftOut):
            self._left_out += seen.is_wanted
            return above
        if above is not None and via is Via.CALL:
            via = above.via
        elif above is None and via is not Via.UNATTRIBUTED:
            via = Via.ROOT
        sent = self._send_one(seen.record, above, via) if seen.is_wanted else None
        if sent is not None:
            return sent
        self._left_out += seen.is_wanted
        if above is None:
            return LeftOut.LEFT_OUT if seen.is_wanted else None
        return replace(above, via=via)

    def _send_one(self, record: bytes, above: _Above | None, via: Via) -> _Above | None:
        """Send a call, as each kind of span that wants it; return what others may hang below.

        None where it was not sent, for its rate.
        """
        decoder = self._decoders[function_of(record)]
        now = time.monotonic()
        kinds = [kind for kind in self._kinds_of(decoder.traced) if kind.rate.allows(now)]
        sent = None
        try:
            found = decoder.calls(record, is_counted=False) if kinds else []
        except RecordError as error:
            log.error("spans: %s", printable(str(error)))
            return None
        for probe, call in found:
            for kind in kinds:
                if kind.probe is probe:
                    held = _held(call) if kind.spec.trace_context else None
                    parent, within = _parent(above, held)
                    span = self._finished(kind, call, self._epoch)
                    is_own = parent is not None and (above is None or parent != above.ids)
                    self._vias[PROGRAM if is_own else via.value] += 1
                    if not is_own and via in _SHOWN:
                        span = replace(span, attributes={**span.attributes, _EDGE: via.value})
                    if parent is not None:
                        span = replace(span, trace=parent.trace, parent=parent.span)
                    self._sink.put(span)
                    sent = sent or _Above(_Ids(span.trace, span.span), within)
        return sent

    def _kinds_of(self, call: TracedCall) -> list[_Kind]:
        """Return the kinds of spans that want a function's calls."""
        probes = [probe for probe, _ in call.parts]
        return [kind for kind in self._kinds if any(kind.probe is probe for probe in probes)]

    def _finished(self, kind: _Kind, call: DecodedCall, epoch: int) -> FinishedCall:
        function = call.function
        attributes: dict[str, Attribute] = {
            "code.function.name": function.name,
            "process.pid": call.pid,
            "go.goroutine.id": call.goid,
        }
        if function.file is not None:
            attributes["code.file.path"] = function.file
        if function.line is not None:
            attributes["code.line.number"] = function.line
        spec = kind.spec
        for (name, _), value in zip(spec.attributes, call.values, strict=True):
            attributes[name] = private_attribute(value, spec.privacy, name in spec.hashed)
        if call.why is not None and kind.spec.why:
            for part, ns in call.why.parts.items():
                attributes[_part_attribute(part)] = ns
        error = None
        if call.unwound is not None:
            error = (call.unwound.value, "the call did not return")
        elif (returned := call.extras[_ERROR]) is not None:
            error = _error_of(to_python(returned), spec.privacy.errors)
        end = call.end_ns + epoch
        start = end - (call.duration_ns or 0)
        name = kind.spec.name or function.name
        return FinishedCall(self._program.key.target, name, start, end, attributes, error)

    def _finish(self) -> None:
        super()._finish()
        self._traces.rest()


_ALONE = "spans are not put below those of other goroutines, but for contexts"
_EDGE = "gotrace.edge"
_SHOWN = {Via.CONTEXT, Via.ITEM, Via.GO}


def _held(call: DecodedCall) -> _Ids | None:
    """Return the program's own span that a call's context holds, None where none is known."""
    ids = [to_python(value) for value in call.extras[_IDS] if value is not None]
    trace, span = ids if len(ids) == 2 else (None, None)
    if not isinstance(trace, str) or not isinstance(span, str) or not trace:
        return None
    return _Ids(int(trace, 16), int(span, 16))


def _parent(above: _Above | None, held: _Ids | None) -> tuple[_Ids | None, _Ids | None]:
    """Return the parent of a call's span, and the program's own span that it is within.

    ``above`` is the span of the call around it, ``held`` what its own context holds: where that is
    another span than around it, the program has begun that within the call around it.
    """
    if above is None:
        return held, held
    if held is None or held == above.within:
        return above.ids, above.within
    return held, held


def _error_of(value: object, shown: Errors) -> tuple[str, str] | None:
    """Return the type and message of an error, as far as they are shown, None if there was none."""
    if isinstance(value, GoError):
        kind = (value.type or "error") if shown is not Errors.OFF else ""
        return kind, value.message if shown is Errors.TEXT else ""
    return ("unknown", value.why) if isinstance(value, Unavailable) else None


class SpanReader:
    """A thread that reads the calls of all span probes while there are any."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._probes: list[SpanProbe] = []
        self._closing = threading.Event()
        self._thread = LastingThread("spans", self._run, self._closing.wait)
        self._thread.start()

    def start_probe(
        self,
        specs: Sequence[SpanSpec],
        program: Program,
        target: Target,
        cost: ProbeCost,
        share: float,
        is_spare: bool,
    ) -> SpanProbe:
        """Attach a probe and read its calls from then on. Raises GotraceError or OSError."""
        probe = SpanProbe(specs, program, target, cost, self._sink, share, is_spare)
        with self._lock:
            self._probes = [*(known for known in self._probes if known.is_open), probe]
        return probe

    def _run(self, thread: LastingThread) -> None:
        period = _PERIOD
        while not self._closing.wait(period):
            period = _PERIOD
            with self._lock:
                probes = list(self._probes)
            for probe in probes:
                with apart(thread.name, "spans"):
                    if probe.read():
                        period = _SHORT
            thread.back_in(period)

    def close(self) -> None:
        """Stop reading; the probes are their owner's."""
        self._closing.set()
        self._thread.join()
