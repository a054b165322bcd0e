# SPDX-License-Identifier: Apache-2.0
"""Trace calls: load capture plans into the kernel, attach, and take its reports."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import ClassVar

from gotrace.architecture import HOST
from gotrace.capture.ops import DEEP, MAX_BLOCKS, Op, OpCode
from gotrace.capture.payload import Subplan
from gotrace.errors import GotraceError
from gotrace.gotypes.contexts import ContextType
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.btf import task_blocked_offset
from gotrace.kernel.program import BpfProgram
from gotrace.kernel.rings import PastRings, pages_of
from gotrace.overhead import ProbeCost
from gotrace.probes.select import InlinedScope
from gotrace.probes.spec import ProbeSpec
from gotrace.records import dataclass, field, replace
from gotrace.session.calibrate import trap_cost
from gotrace.session.choices import ReturnMode
from gotrace.session.decode import CallDecoder, Undecided, call_decoders
from gotrace.session.edges import EdgeProbes, edge_probes
from gotrace.session.events import (
    HEADER,
    UNKNOWN_CPU,
    WINDOW_NS,
    OrderWindow,
    end_of,
    function_of,
    marked,
)
from gotrace.session.landings import landing_sizes
from gotrace.session.open_calls import Diagnostic
from gotrace.session.paired import Paired
from gotrace.session.plan import make_plan, with_places
from gotrace.session.probing import Prepared
from gotrace.session.request import Accept, Planned, ProbeRequest
from gotrace.session.run import Run
from gotrace.session.tasks import signal_groups
from gotrace.session.trace_plan import (
    TraceChoices,
    TracedCall,
    TracePlan,
    interfaces_in,
    make_trace_plan,
    most_steps,
    steps_of,
)
from gotrace.session.undisturbed import Meanwhile
from gotrace.session.why.parts import max_report_size
from gotrace.settings import KeySettings, SignalSettings, TraceSettings, WhySettings

_ENTRY_ONLY, _ENTRY_FLOATS, _FLOATS, _LEAVES, _BEGINS = 1, 2, 4, 8, 16  # of bpf/records.h
PLAN_FILE_SHIFT = 8
TYPE_FILE_SHIFT = 48  # in keys of the map types: above addresses
_SITE_PLAN = struct.Struct("=QIIIIhhI")
_FLOAT_REGISTERS = len(HOST.float_registers) if HOST else 0
_FLOAT_BLOCK = 8 + 8 * _FLOAT_REGISTERS
_SAVED_BYTES = 64 << 20  # of kernel memory, for the arguments of open calls
_CALL_OVERHEAD = 1536  # struct call without its payload, and the map's own
_STACKS = _OUTER_CALLS = _WAITING = 1 << 14
#: Records of a flight that are read at a time: 5 s of 200,000 a second, for which a recording needs
#: 400 MB and three seconds.
MAX_PAST = 1 << 20
#: How long records wait for those of other CPUs where their order decides whose work is whose: a
#: thread may be off its CPU between when its program looks at the clock and when it sends.
_WINDOW_NS = 250_000_000


@dataclass(frozen=True, slots=True)
class Flight:
    """Records are kept in ``pages`` pages a CPU, the latest ones, until something is seen.

    That is a call that begins a request, and is wanted, one of ``until``, or a ``signal`` of that
    number, 0 for none.
    """

    pages: int
    until: Sequence[ProbeSpec] = ()
    signal: int = 0


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The records' contents beside values, and their room in the kernel.

    ``user_stack`` is the most return addresses, 0 for no stack; they are fewer if the values leave
    less room. With ``cpu`` records have the CPU that they were reported on, for ``events.cpu_of``.
    ``open_calls`` is for how many goroutines with open calls there is room, ``pages`` what each
    CPU's event buffer has, a power of two; None for the most. ``floats``: float registers may be
    read, if a function has any: there is room for them in each record. Calls of ``roots`` begin
    requests: that is reported at their entry, and so is how work goes from goroutine to goroutine;
    with ``states`` also what state each goroutine is in. ``within``: only what each root's own
    goroutine does is asked for, and how work goes on is not reported. ``flight`` has what is read
    be the ends of these requests alone; it takes ``states``. ``nested``: records say whether they
    are of calls within others. If edges were prepared, each outermost call is reported at its
    entry.
    """

    user_stack: int = 0
    cpu: bool = False
    open_calls: int | None = None
    pages: int | None = None
    nested: bool = False
    floats: bool = False
    roots: Sequence[ProbeSpec] = ()
    states: bool = False
    within: bool = False
    flight: Flight | None = None


class CallTracer(Paired):
    """The probes that report a plan's calls; a context manager that detaches."""

    program_ns = 700

    #: ``UNWOUND`` alone does not make calls missing.
    LOSSES = (
        Diagnostic.UNWOUND_UNSEEN,
        Diagnostic.STACKS_FULL,
        Diagnostic.OUTER_CALLS_FULL,
        Diagnostic.NEW_CALLERS,
        Diagnostic.SAVED_FULL,
        Diagnostic.NO_GOROUTINE,
        Diagnostic.EVENTS_LOST,
        Diagnostic.WORK_BUSY,
        Diagnostic.TAIL_CALLS,
    )

    def __init__(self, prepared: Prepared, options: TraceOptions) -> None:
        """Load the plans and attach. Raises AttachError or LoadError."""
        target, traced, tasks, why = (
            prepared.target,
            prepared.traced,
            prepared.tasks,
            prepared.why,
        )
        assert traced is not None and tasks is not None
        self._contexts = traced.contexts
        self._tables = Tables(traced, options, max_report_size(len(why.names)) + 8 if why else 0)
        returning = self._tables.returning
        settings = self._tables.settings(prepared, why=why.settings() if why else None)
        edges = _edges(prepared)
        if options.open_calls is not None:
            settings = sized(settings, options.open_calls)
        if options.nested and returning:
            settings = replace(settings, nested=1)
        #: Whether it is seen how work goes from goroutine to goroutine.
        self.has_edges = edges is not None and not edges.is_lean
        self._pages = options.pages
        self._flight = options.flight
        self._past: PastRings | None = None
        self._dropped = 0  # records, at the end
        window = WINDOW_NS if edges is None else _WINDOW_NS
        self.window = OrderWindow(window, marks_cpu=options.cpu)
        self._marks_cpu = options.cpu
        #: When the run ends (``time.monotonic``), where that is known: later calls are left out.
        self.ends: float | None = None
        #: Whether ``acquire`` has returned all there is, after ``stop``.
        self.exhausted = False
        # The verifier runs meanwhile.
        with Meanwhile(lambda: expected_types(traced)) as self._subplans:
            self._attach(
                prepared,
                settings,
                returning=returning,
                first=(
                    *(signal_groups(target, tasks) if self._tables.floats else ()),
                    *(edges.groups() if edges is not None and not options.nested else ()),
                ),
                beside=edges.rare() if edges is not None and options.nested else (),
                apart=edges.frequent() if edges is not None and options.nested else (),
                by_call=("saved_calls",),
            )

    @property
    def wait_reasons(self) -> Sequence[str]:
        """Return why goroutines wait, by number, of a run with roots."""
        edges = _edges(self._prepared)
        return edges.reasons if edges is not None else ()

    def _prepare(self, program: BpfProgram) -> None:
        super()._prepare(program)
        self._tables.fill(program, self._subplans.result())
        flight, events = self._flight, "events"
        if flight is not None:
            self._past, events = program.open_past_events(events, flight.pages), "triggers"
            if flight.signal:
                program.attach_tracepoint("signal_deliver", ["on_delivered"])
        self._rings = program.open_events(events, self._pages or buffer_pages())

    @property
    def span_ns(self) -> tuple[int, int]:
        """Return from when to when all calls are seen, up to now while it goes on.

        Both are on CLOCK_MONOTONIC, in ns.
        """
        ends = (time.monotonic(), self.ends, self.attached.stopped_at)
        end = min(one for one in ends if one is not None)
        return int(self.attached.began * 1e9), int(end * 1e9)

    def acquire(self, until: float) -> list[bytes]:
        """Take the kernel's records and return, in order, those that need not wait any longer.

        Ends at ``until`` (``time.monotonic``) though there be more, which then waits in the
        kernel's buffers. To be called some forty times a second. Dynamic types that decoding has
        met since the last time are captured from now on.
        """
        before, read_to = time.monotonic_ns(), self._read(until)
        if self.stopped and read_to is None and not self.exhausted:
            self.exhausted = True
            return self._within_run(self.window.flush() + self._waiting())
        moment = before if read_to is None else min(before, read_to)
        return self._within_run(self.window.pop_ready(moment))

    def past(self, since: int, until: int, most: int = MAX_PAST) -> list[bytes]:
        """Return a flight's kept records from a time up to one that is past, by CPU.

        Both are on CLOCK_MONOTONIC, in ns.

        Of more than ``most`` records, or if some were overwritten, it begins later.
        """
        return [] if self._past is None else self._past.since(since, until, most)

    def past_here(self) -> None:
        """Make ``past`` work in a process that was forked. Raises OSError."""
        if self._past is not None:
            self._past.map_here()

    def fill(self, until: float) -> None:
        """Take the kernel's records, as far as there is room, and keep them."""
        self._read(until)

    def _read(self, until: float) -> int | None:
        """Return up to when all has been read (ns), None where nothing is left."""
        if not self.stopped:
            self._learn()
            self._look_after()
        return self._rings.take(until, self.window.room, self.window.push)

    def _learn(self) -> None:
        for file, context in enumerate(self._contexts):
            new = context.take_new()
            if new:
                self._tables.learn(self.attached.program, _by_file(file, new))

    def _within_run(self, records: list[bytes]) -> list[bytes]:
        """Leave out calls that ended after the run."""
        if self.ends is None:
            return records
        last = int(self.ends * 1e9)
        return [record for record in records if end_of(record) <= last]

    def drop_edges(self) -> bool:
        """Remove the probes that see work go from goroutine to goroutine, if they are there.

        Only of a run that somebody minds. Return whether they were there.
        """
        if not (self.has_edges and self._leave_apart()):
            return False
        self.has_edges = False
        return True

    @property
    def dropped(self) -> int:
        """Return how many records were dropped here, in user space."""
        return self._dropped + self.window.losses.total()

    def drop(self, due: Sequence[bytes] = ()) -> Counter[int]:
        """Count as lost ``due``, and records that have not been acquired.

        Return how many records these are by function.
        """
        found: Counter[int] = Counter()
        for records in chain((due, self.window.flush()), self._rings.drop()):
            found.update(map(function_of, records))
        self._dropped += found.total()
        if self.stopped and not self.exhausted:
            self._dropped += len(self._waiting())
        return found

    def _waiting(self) -> list[bytes]:
        """Return the records that still wait for float registers, at the end of a run."""
        if not self._tables.floats:
            return []
        return [
            marked(record, UNKNOWN_CPU) if self._marks_cpu else record
            for _, value in self.attached.program.map("waiting").entries()
            if (record := _waiting_record(value)) is not None
        ]


def _edges(prepared: Prepared) -> EdgeProbes | None:
    """Return the probes that see work go from goroutine to goroutine, None without them."""
    return prepared.scheduler if isinstance(prepared.scheduler, EdgeProbes) else None


def expected_types(traced: TracePlan) -> dict[int, Subplan]:
    """Return plans of the dynamic types that calls can be expected to hold, by key."""
    subplans: dict[int, Subplan] = {}
    for file, context in enumerate(traced.contexts):
        calls = [call for call in traced.calls if call.context is context]
        subplans |= _by_file(file, context.expect(interfaces_in(calls)).items())
    return subplans


def _by_file(file: int, subplans: Iterable[tuple[int, Subplan]]) -> Iterator[tuple[int, Subplan]]:
    """Yield plans by the key that the map ``types`` has: files of programs share addresses."""
    for address, subplan in subplans:
        if address < DEEP:
            yield file << TYPE_FILE_SHIFT | address, subplan
            if subplan.deep is not None:
                yield file << TYPE_FILE_SHIFT | DEEP | address, subplan.deep


class Tables:
    """All plans one after the other, as the interpreter's maps have them."""

    def __init__(self, traced: TracePlan, options: TraceOptions, why: int = 0) -> None:
        """Take the plans; ``why`` bytes of each payload are for what the time went into."""
        calls = self._calls = traced.calls
        #: Numbers of the functions whose calls are followed to their ends.
        self.returning = {number for number, call in enumerate(calls) if call.result is not None}
        self.floats = any(call.entry_floats or call.result_floats for call in calls)
        until = options.flight.until if options.flight is not None else ()
        self._roots = {id(spec) for spec in (*options.roots, *until)}
        # The room for values of a function does not depend on what others are traced.
        self._after = why + (2 * _FLOAT_BLOCK if self.floats or options.floats else 0)
        # Where values leave less room than is asked for, stacks are cut earlier.
        most = max(map(_payload_bound, calls))
        room = (TraceSettings.PAYLOADS[-1] - most - self._after - 8) // 8 - 1
        self._user_stack = min(options.user_stack, room)
        self._after += 8 * (self._user_stack + 1) if self._user_stack else 0
        #: Bytes that there are for a call's values and what comes after them.
        self.payload = max(map(self._size, calls))
        self._constants = traced.constants.packed()
        self._files = {id(context): number for number, context in enumerate(traced.contexts)}
        self._ops: list[Op] = []
        self._starts: dict[tuple[Op, ...], int] = {}
        self._sites = [self._site(call) for call in calls]
        self._contexts = dict(self._context_types(traced))
        self._types: dict[int, int] = {}
        self._room = len(self._ops) + (_ROOM_FOR_TYPES if self._has(OpCode.IFACE) else 0)

    @staticmethod
    def _context_types(traced: TracePlan) -> Iterator[tuple[int, ContextType]]:
        """Yield the types on the way to spans, by their key, of files that are asked for spans."""
        for file, context in enumerate(traced.contexts):
            plans = [
                plan
                for call in traced.calls
                for plan in (call.entry, call.result)
                if call.context is context and plan is not None
            ]
            if any(op.code is OpCode.SPAN for plan in plans for op in plan.ops):
                for address, known in context.contexts.items():
                    yield file << TYPE_FILE_SHIFT | address, known

    def _has(self, code: OpCode) -> bool:
        """Return whether any plan has an operation."""
        return any(op.code is code for op in self._ops)

    def _start(self, ops: tuple[Op, ...]) -> int:
        """Return the address of a plan's first operation; equal plans share theirs."""
        if ops not in self._starts:
            self._starts[ops] = len(self._ops)
            self._ops += ops
        return self._starts[ops]

    def _site(self, call: TracedCall) -> bytes:
        result = self._start(call.result.ops) if call.result else 0
        flags = (
            (0 if call.result else _ENTRY_ONLY)
            | (_ENTRY_FLOATS if call.entry_floats else 0)
            | (_FLOATS if call.result_floats else 0)
            | (_LEAVES if call.function.tail_jumps else 0)
            | (_BEGINS if any(id(spec) in self._roots for spec, _ in call.parts) else 0)
            | self._files[id(call.context)] << PLAN_FILE_SHIFT
        )
        entry = self._start(call.entry.ops)
        # An entry may use what its function's calls would have to spare if no other function was
        # traced. It leaves their usual room to the results.
        return_leaves = self._after + self.payload - self._size(call)
        entry_leaves = return_leaves + (_padded(call.result.usual_bound) if call.result else 0)
        site = call.function.entry.address if call.function.entry else 0
        return _SITE_PLAN.pack(
            *(site, entry, result, flags, entry_leaves),
            *(call.next_pc, call.next_sp, return_leaves),
        )

    def _size(self, call: TracedCall) -> int:
        """Return which payload a function's calls would have if no other was traced."""
        # Never filled to the last byte: lengths are bounded by a mask, which makes PAYLOAD nothing.
        wanted = _payload_bound(call) + self._after + 8
        sizes = TraceSettings.PAYLOADS
        return next((size for size in sizes if size >= wanted), sizes[-1])

    def settings(
        self, prepared: Prepared, by: KeySettings | None = None, why: WhySettings | None = None
    ) -> TraceSettings:
        """Return the settings of bpf/trace.c and its headers.

        ``by`` are those of calls that are added up: their floats are not read.
        """
        floats = self.floats and by is None
        assert prepared.tasks is not None
        return TraceSettings(
            site=prepared.site_settings(),
            tasks=prepared.tasks.settings(),
            stacks=_STACKS,
            outer_calls=_OUTER_CALLS,
            **landing_sizes(prepared),
            why=why,
            edges=edges.settings() if (edges := _edges(prepared)) else None,
            payload=self.payload,
            returns=bool(self.returning),
            floats=floats,
            interfaces=self._has(OpCode.IFACE),
            predicates=any(op.code >= OpCode.PUSH_CONST for op in self._ops),
            arithmetic=self._has(OpCode.ARITHMETIC),
            saved_words=self._has(OpCode.SAVED),
            saved_blocks=any(op.looks_back for op in self._ops),
            labels=self._has(OpCode.LABEL),
            spans=self._has(OpCode.SPAN),
            contexts=max(1, len(self._contexts)),
            user_stack=self._user_stack,
            steps=self._steps(),
            functions=len(self._calls),
            saved=max(1 << 8, _SAVED_BYTES // (self.payload + _CALL_OVERHEAD)),
            ops=self._room,
            types=_MAX_TYPES,
            constants=max(1, len(self._constants)),
            signals=(
                SignalSettings(waiting=_WAITING, task_blocked=task_blocked_offset())
                if floats
                else SignalSettings()
            ),
            by=by,
        )

    def _steps(self) -> int:
        plans = [call.entry.ops for call in self._calls]
        plans += [call.result.ops for call in self._calls if call.result]
        keyed = any(call.spec.key is not None for call in self._calls)
        return max(min(most_steps(ops, keyed), steps_of(ops)) for ops in plans)

    def fill(self, program: BpfProgram, subplans: Mapping[int, Subplan]) -> None:
        """Fill the maps; ``subplans`` are by the keys of ``_by_file``."""
        self._write_ops(program, 0)
        program.map("plans").update_array(0, self._sites)
        program.map("constants").update_array(0, self._constants)
        if self._contexts:
            types = program.map("context_types")
            for key, known in self._contexts.items():
                row = _CONTEXT_TYPE.pack(known.kind, known.at, known.key)
                types.update(key.to_bytes(8, "little"), row)
        self.learn(program, subplans.items())

    def learn(self, program: BpfProgram, subplans: Iterable[tuple[int, Subplan]]) -> None:
        """Add subplans, while there is room; their operations are there before the types are."""
        before = len(self._ops)
        new = {}
        for key, subplan in subplans:
            fits = subplan.ops in self._starts or len(self._ops) + len(subplan.ops) <= self._room
            if fits and (key in self._types or len(self._types) < _MAX_TYPES):
                new[key] = self._types[key] = self._start(subplan.ops)
        self._write_ops(program, before)
        types = program.map("types")
        for key, start in new.items():
            types.update(key.to_bytes(8, "little"), start.to_bytes(4, "little"))

    def _write_ops(self, program: BpfProgram, first: int) -> None:
        program.map("ops").update_array(first, [op.pack() for op in self._ops[first:]])


_CONTEXT_TYPE = struct.Struct("=IIQ")  # struct context_type of bpf/context.h
_ROOM_FOR_TYPES = 1 << 16  # operations of subplans
_MAX_TYPES = 1 << 13


def sized(settings: TraceSettings, open_calls: int) -> TraceSettings:
    """Return settings with room for as many goroutines with open calls."""
    saved = min(settings.saved, open_calls if settings.returns else 1)
    return replace(settings, stacks=open_calls, outer_calls=open_calls, saved=saved)


def buffer_pages() -> int:
    """Return how many pages each CPU's event buffer has: a power of two, of a common budget."""
    each = _BUFFERS_BYTES // len(kernel.online_cpus())
    return pages_of(min(max(each, _LEAST_BYTES), _MOST_BYTES))


#: Of all CPUs' event buffers together, and of each at least and at most.
_BUFFERS_BYTES, _LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 10, 16 << 20


def _payload_bound(call: TracedCall) -> int:
    result = call.result.payload_bound if call.result else 0
    return _padded(call.entry.payload_bound) + _padded(result)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


_WAIT = struct.Struct("=2Q16s2Q")  # struct wait of bpf/payload.h
_CALL_HEAD = struct.Struct(f"={_FLOAT_REGISTERS}Q{MAX_BLOCKS}QII")  # struct call up to its event


def _waiting_record(value: bytes) -> bytes | None:
    """Return the record in a struct waiting, None where its call has yet to return."""
    *_, at_entry, _ = _WAIT.unpack_from(value)
    *_, length, _ = _CALL_HEAD.unpack_from(value, _WAIT.size)
    event = _WAIT.size + _CALL_HEAD.size
    return None if at_entry else value[event : event + HEADER.size + length]


@dataclass(frozen=True, kw_only=True)
class TraceRequest(ProbeRequest[CallTracer, ProbeCost]):
    """Report calls one by one.

    ``only`` are special names with the values that calls have to have, beside the probes' own
    predicates. ``probes`` stand for those that ``asked`` has as texts. ``inlined``: inlined calls
    of functions that are named are reported as well, if what probes ask for is certain there.
    """

    verb: str = "trace"
    done: str = "shown"
    choices: TraceChoices
    options: TraceOptions = TraceOptions()
    only: Mapping[str, int] = field(default_factory=dict)
    probes: Sequence[ProbeSpec] | None = None
    inlined: bool = False

    SHOWS_CALLS: ClassVar[bool] = True

    @cached_property
    def parsed(self) -> tuple[Sequence[ProbeSpec], Sequence[GotraceError]]:
        """Return the probes, and why others come to nothing. Raises UsageError."""
        if self.probes is not None:
            return self.probes, ()
        specs, failed = self.asked.probes(self.target)
        return [spec.only(self.only) for spec in specs], failed

    def plan(self) -> Planned:
        """Return the probes to attach; raises as ``make_trace_plan`` does."""
        specs, _ = self.parsed
        requests, failed = self.requests
        plan = make_plan(
            self.target, requests, returns=True, verb=self.verb, inlined=self._inlined(specs)
        )
        plan = with_places(plan)
        plan = replace(plan, failed=(*failed, *plan.failed))
        self._refuse(plan.failed)
        traced = make_trace_plan(plan, specs, self.choices)
        self._refuse(traced.plan.failed)
        return Planned(traced.plan, traced)

    def _inlined(self, specs: Iterable[ProbeSpec]) -> InlinedScope:
        """Return whose inlined calls are reported."""
        has_recipe = any(spec.recipe is not None for spec in specs)
        return InlinedScope.NAMED if self.inlined and not has_recipe else InlinedScope.NONE

    def prepare(self, announce: Callable[[str], None] | None, accept: Accept | None) -> Prepared:
        """Plan, and have the price of watching the scheduler accepted. Raises GotraceError."""
        prepared, options = super().prepare(announce, accept), self.options
        if not options.roots and not options.states:
            return prepared
        assert prepared.tasks is not None
        flight = options.flight
        what = "a flight" if flight else "a tree" if options.roots else "a recording"
        signal, is_whose = flight.signal if flight else None, bool(options.roots)
        states, is_lean = options.states, options.within
        edges = edge_probes(
            self.target, prepared.tasks, what, states, is_whose, signal, is_lean=is_lean
        )
        if accept is not None and not is_lean:
            accept(edges)
        returns = ReturnMode.RET if self.returns is ReturnMode.AUTO else self.returns
        return replace(prepared, scheduler=edges, returns=returns)

    def attach(self, prepared: Prepared) -> CallTracer:
        """Attach. Raises AttachError or LoadError."""
        return CallTracer(prepared, replace(self.options, floats=self.choices.floats))

    def cost(self, prepared: Prepared) -> ProbeCost:
        """Return the cost of probes whose programs do next to nothing: records have the rest."""
        return trap_cost(prepared.plan.entry_form, prepared.forced)

    def decoders(
        self, run: Run[CallTracer, ProbeCost], cost: ProbeCost | None = None
    ) -> tuple[list[CallDecoder], Undecided]:
        """Return the decoders of a run's functions, by number, and their common counts.

        ``cost`` is that of the probes, None where it is not known.
        """
        assert run.traced is not None and run.tasks is not None
        shows_why = self.why is not None
        floats, names = self.choices.floats, run.part_names
        return call_decoders(run.traced, run.tasks, floats, cost, names, shows_why)
