# SPDX-License-Identifier: Apache-2.0
"""Make spans of calls: those of one program, in trees, each kind at most at a rate."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gotrace.errors import GotraceError
from gotrace.fleet.config import SpanSpec
from gotrace.fleet.naming import Attribute, private_attribute
from gotrace.fleet.otlp import FinishedCall
from gotrace.fleet.privacy import Errors
from gotrace.fleet.probing import Probe
from gotrace.fleet.targets import Program
from gotrace.fleet.telemetry.forest import Forest, LeftOut
from gotrace.fleet.telemetry.nesting import Call, Goroutine, Origin, Tree
from gotrace.fleet.telemetry.price import OverBudgetError, refuse_price
from gotrace.gotypes.wait_reasons import find_wait_reasons
from gotrace.overhead import ProbeCost
from gotrace.probes.spec import ProbeSpec, parse_key
from gotrace.session.budget import Spent
from gotrace.session.decode import DecodedCall
from gotrace.session.events import CallRecord, RecordError, function_of, parse_call
from gotrace.session.open_calls import Diagnostic
from gotrace.session.request import Asked
from gotrace.session.run import Run, open_run
from gotrace.session.tasks import start_problems
from gotrace.session.trace import CallTracer, TraceOptions, TraceRequest, expected_types
from gotrace.session.trace_plan import TraceChoices, TracedCall, TracePlan, parse_probes
from gotrace.session.why.probes import WhyOptions
from gotrace.target.target import Target
from gotrace.text import printable
from gotrace.values.python import GoError, Unavailable, to_python

__all__ = [
    "SPAN_LOSSES",
    "Rate",
    "SpanProbe",
    "SpanReader",
    "has_context",
    "plan_span",
    "try_spans",
]

log = logging.getLogger("gotraced")

_OPEN_CALLS = 8192
_PAGES = 128  # of each CPU's event buffer
_STRING_BYTES = 256
_PERIOD = 0.1  # seconds between two looks at the event buffers
_TURN = 0.05  # seconds of reading at a time


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
        has_why = any(spec.why for spec in specs)
        prepared = _request(probes, target, program, has_why).prepare(None, None)
        if prepared.traced is not None:
            expected_types(prepared.traced)
    except GotraceError:
        _usable(specs, target, program)


#: What is known of a call beside its attributes, as far as its function has it.
_ERROR, _TRACE, _SPAN = range(3)
_EXTRAS = parse_key("$err, $trace, $span")


def _probe(spec: SpanSpec) -> ProbeSpec:
    """Return the probe that captures a span's expressions. Raises GotraceError."""
    texts = [text for _, text in spec.attributes]
    words = " ".join(["%v"] * len(texts)) or "."
    specs, failed = parse_probes([", ".join([f'{spec.probe} "{words}"', *texts])])
    if failed:
        raise failed[0]
    wanted = _EXTRAS.expressions if spec.trace_context else _EXTRAS.expressions[:_TRACE]
    return replace(specs[0], extras=replace(_EXTRAS, expressions=wanted))


def has_context(call: TracedCall) -> bool:
    """Return whether a function has a context that can hold a span of the program's own."""
    extras = [probe.extras for _, probe in call.parts]
    return any(found[_TRACE:] and found[_TRACE] is not None for found in extras)


def _request(
    probes: Sequence[ProbeSpec], target: Target, program: Program, has_why: bool = False
) -> TraceRequest:
    return TraceRequest(
        target=target,
        asked=Asked((), file=program.path),
        probes=probes,
        why=WhyOptions() if has_why else None,
        choices=TraceChoices.of(_STRING_BYTES, 1, False, False),
        options=TraceOptions(open_calls=_OPEN_CALLS, pages=_PAGES, nested=True),
        is_minded=True,
    )


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
            problems.append(f"span {spec.name or spec.probe}: {error}")
        else:
            usable.append(spec)
    if not usable:
        raise errors[0]
    return usable, problems


def _part_attribute(part: str) -> str:
    """Return what a part of a span's time is called.

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
    """A span that others may hang below; ``within`` is the program's own that it is within."""

    ids: _Ids
    within: _Ids | None


class SpanProbe(Probe):
    """The probes of all spans in one program; ``read`` sends what has come."""

    needs_target = True

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
        super().__init__(program, cost, run)
        self._sink = sink
        self._is_spare = is_spare
        self._since = 0
        self._read_ns = 0
        self._forest: Forest[_Seen, _Above] = Forest(self._send)
        self._tracer = run.meter
        self._decoders, self._undecided = request.decoders(run)
        traced, tasks = run.traced, run.tasks
        assert traced is not None and tasks is not None
        self.problems += problems + start_problems(tasks)
        #: Numbers of functions of which no kind of span is below what has started its goroutine.
        self._apart = {
            number
            for number, call in enumerate(traced.calls)
            if not any(kind.spec.inherit for kind in self._kinds_of(call))
        }
        #: Goroutines that have waited for work, at most so many.
        self._workers: OrderedDict[Goroutine, None] = OrderedDict()
        #: Numbers of reasons.
        self._waits_for_work = {
            number
            for file in tasks.files
            for number, reason in enumerate(find_wait_reasons(file.image) or ())
            if reason.startswith(_WAITS_FOR_WORK)
        }

    @staticmethod
    def _opened(
        specs: Sequence[SpanSpec], target: Target, program: Program, cost: ProbeCost, share: float
    ) -> tuple[list[_Kind], TraceRequest, Run[CallTracer, ProbeCost]]:
        kinds = [_Kind(spec, _probe(spec), Rate(spec.rate)) for spec in specs]
        has_why = any(spec.why for spec in specs)
        request = _request([kind.probe for kind in kinds], target, program, has_why)
        run = open_run(request, accept=lambda probes: refuse_price(probes, cost, share))
        return kinds, request, run

    def read(self) -> None:
        """Read what has come; to be called ten times a second."""
        with self._lock:
            if self._is_open and not self._is_spare:
                self._read()

    def _forget(self) -> None:
        self._is_spare, self._since = False, time.monotonic_ns()

    def _read(self) -> None:
        began = time.thread_time_ns()
        for record in self._tracer.acquire(time.monotonic() + _TURN):
            try:
                call = parse_call(record)
                if call.end_ns < self._since:
                    continue
                decoder = self._decoders[call.function]
                is_wanted = not call.unwanted and decoder.wanted(record) is not None
            except RecordError as error:
                log.error("spans: %s", printable(str(error)))
                continue
            seen = _Seen(record, is_wanted)
            ended = self._ended(call, seen)
            if call.start_ns:
                self._forest.add(ended, time.monotonic())
            else:  # only its entry: nothing is known to be within it
                self._send([(ended, None)], None)
        self._forest.overdue(time.monotonic())
        self._read_ns += time.thread_time_ns() - began

    def _ended(self, call: CallRecord, seen: _Seen) -> Call[_Seen]:
        """Return what a record says of where its call belongs."""
        origin = None
        if (start := call.started) is not None and call.function not in self._apart:
            if start.waited in self._waits_for_work:
                self._workers[call.tgid, call.goid] = None
                if len(self._workers) > _MAX_WORKERS:
                    self._workers.popitem(last=False)
            has_waited = (call.tgid, call.goid) in self._workers
            origin = Origin((call.tgid, start.goid), start.at_ns, start.since_ns, has_waited)
        return Call(
            (call.tgid, call.goid or -call.tid),
            call.start_ns,
            call.end_ns,
            call.nested,
            seen,
            len(seen.record),
            call.starts,
            origin,
        )

    def _send(
        self, tree: Tree[_Seen], above: _Above | LeftOut | None
    ) -> list[_Above | LeftOut | None]:
        """Send an outermost call and those within it, as far as rates allow; return their places.

        ``above`` is what the outermost one is below. Where one that is below none is not sent for
        its rate, neither is what is below it. Others that are not sent are left out of the tree.
        """
        epoch = time.time_ns() - time.monotonic_ns()
        places: list[_Above | LeftOut | None] = []
        left_out = 0
        for call, parent in tree:
            place = above if parent is None else places[parent]
            seen = call.item
            if isinstance(place, LeftOut):
                left_out += seen.is_wanted
            elif seen.is_wanted:
                sent = self._send_one(seen.record, place, epoch)
                left_out += sent is None
                place = sent or place or LeftOut.LEFT_OUT
            places.append(place)
        if left_out:
            self._sink.left_out(left_out)
        return places

    def _send_one(self, record: bytes, above: _Above | None, epoch: int) -> _Above | None:
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
                    parent, within = _parent(above, _held(call))
                    span = self._finished(kind, call, epoch)
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

    def _spent(self) -> Spent:
        spent = super()._spent()
        return Spent(spent.hits, spent.ns + self._read_ns)

    def _losses(self) -> Counter[str]:
        counts = self._tracer.diagnostics()
        wanted: tuple[Diagnostic, ...] = self._tracer.LOSSES
        found = Counter({what.name.lower(): counts[what] for what in wanted})
        found["reader"] = self._tracer.losses.total + self._tracer.window.losses.total
        found["starts_lost"] = counts[Diagnostic.STARTS_LOST]
        found["undecided"] = self._undecided.calls
        return found

    def _finish(self) -> None:
        self._tracer.stop()
        for _ in range(_LAST_TURNS):
            self._read()
            if self._tracer.exhausted:
                break
        self._forest.rest(time.monotonic())
        self._tracer.drop()


#: How calls may be missing among spans.
SPAN_LOSSES = [
    *(what.name.lower() for what in CallTracer.LOSSES),
    *("reader", "starts_lost", "undecided"),
]
_LAST_TURNS = 10
_MAX_WORKERS = 1 << 13
#: How reasons begin for which workers wait that others hand work to, or that hand on what they have
#: done. After "IO wait" or "sleep" a goroutine goes on with its own.
_WAITS_FOR_WORK = ("chan receive", "chan send", "select", "sync.Cond.Wait")


def _held(call: DecodedCall) -> _Ids | None:
    """Return the program's own span that a call's context holds, None where none is known."""
    ids = [to_python(value) for value in call.extras[_TRACE:] if value is not None]
    trace, span = ids if len(ids) == 2 else (None, None)
    if not isinstance(trace, str) or not isinstance(span, str) or not trace:
        return None
    return _Ids(int(trace, 16), int(span, 16))


def _parent(above: _Above | None, held: _Ids | None) -> tuple[_Ids | None, _Ids | None]:
    """Return what a call's span hangs below, and the program's own span that it is within.

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
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
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

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD):
            with self._lock:
                probes = list(self._probes)
            for probe in probes:
                try:
                    probe.read()
                except (GotraceError, OSError) as error:
                    log.error("spans: %s", printable(str(error)))

    def close(self) -> None:
        """Stop reading; the probes are their owner's."""
        self._closing.set()
        self._thread.join()
