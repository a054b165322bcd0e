# SPDX-License-Identifier: Apache-2.0
"""Sessions: attach, then iterate over calls, count them or measure them."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial, wraps
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload
from weakref import WeakSet

from gotrace.api.checks import (
    ReturnsName,
    check_budget,
    check_lost,
    check_numbers,
    checked_budget,
    checked_text_size,
    one_value,
    os_errors,
    some_patterns,
    warn_of_notes,
    warn_of_unwound,
)
from gotrace.api.rows import (
    Allocations,
    AssertionVerdict,
    Counts,
    CpuTime,
    Function,
    GoroutineLatencies,
    Goroutines,
    Groups,
    Latencies,
    Syscalls,
    Waits,
    WallTime,
)
from gotrace.api.streams import (
    READING,
    CallStream,
    FlightStream,
    IntervalStream,
    Iteration,
    Readings,
    RecordStream,
    RequestStream,
    SnapshotStream,
    passed,
)
from gotrace.arguments import check_arguments, held_to_annotations
from gotrace.assertions.grammar import parse_assertion
from gotrace.assertions.plan import AssertionPlan, plan_assertions
from gotrace.assertions.run import AssertedRun, all_verdicts, counted_verdicts
from gotrace.assertions.verdicts import BoundVerdict
from gotrace.closing import Closing
from gotrace.errors import GotraceError, NoMatchError, UsageError
from gotrace.goroutines.dump import Dump
from gotrace.goroutines.groups import GoroutineFilter
from gotrace.goroutines.live import GoFiles
from gotrace.live.findings import Examination
from gotrace.records import replace
from gotrace.requests.assemble import Assembler, request_probes
from gotrace.requests.flight import flight_of, flight_size, probes_in
from gotrace.requests.recording import Recording
from gotrace.results.lines import Reading, Recordable
from gotrace.results.rows import Row
from gotrace.session.bare import check_bare
from gotrace.session.choices import HERTZ, MAX_STACK_FRAMES, ReturnMode, WaitState
from gotrace.session.count import CallCounter, CountRequest, InlinedScope
from gotrace.session.keys import KeyMeter, KeyOptions, KeyRequest, key_of
from gotrace.session.latency import LatencyMeter, LatencyOptions, LatencyRequest
from gotrace.session.latency_rows import LatencyChoice, interval_of
from gotrace.session.oncpu.allocs import AllocMeter, AllocRequest
from gotrace.session.oncpu.meter import SampleMeter, SampleRequest
from gotrace.session.oncpu.wall import WallMeter, WallRequest
from gotrace.session.probing import Probing
from gotrace.session.request import Asked, RunRequest
from gotrace.session.run import Run, open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.symbols import Symbolizer
from gotrace.session.trace import TraceOptions, TraceRequest
from gotrace.session.trace_plan import TraceChoices
from gotrace.session.undisturbed import Opened
from gotrace.session.waits.meter import WaitMeter, WaitRequest, WaitRow
from gotrace.session.waits.names import SyscallMeter, SyscallRequest, syscall_price
from gotrace.session.waits.naming import WaitChoice
from gotrace.session.why.price import MAX_SHARE, price_of
from gotrace.session.why.price import Price as CountedPrice
from gotrace.session.why.probes import WhyOptions
from gotrace.target.process import process_numbers
from gotrace.target.target import Target
from gotrace.target.wait import Reason, Waiter

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11's

    from gotrace.goroutines.waits import WaitReader
    from gotrace.live.attached import AttachPrice
    from gotrace.live.monitor import Monitor
    from gotrace.session.stepped import SteppedPrice
_I = TypeVar("_I", bound=Iteration[Any])
_M = TypeVar("_M", bound=Probing)
_C = TypeVar("_C")
_T = TypeVar("_T")
_R = TypeVar("_R", bound=Recordable)
_F = TypeVar("_F", bound=Callable[..., Any])

_KEY_TEXT = 64  # bytes of a text that calls are kept apart by, unless a user says how many
#: Planning, compiling and attaching are done by one thread at a time: the compiler writes to
#: standard error, which is redirected meanwhile, and the processes that hold probes are forked.
_STARTING = threading.RLock()


class _RunOptions(TypedDict, total=False):
    """Parameters of every method that adds up."""

    seconds: float | None
    lossy: bool
    ready: Callable[[], object] | None


class _SumOptions(_RunOptions, total=False):
    """Parameters of ``Session.count`` and ``Session.latency``."""

    budget: float | None
    exclude: Iterable[str]
    regexp: bool


class _CountOptions(_SumOptions, total=False):
    """Parameters of ``Session.count``."""

    inlined: bool
    force: bool


class _KeyOptions(TypedDict, total=False):
    """Parameters of rows by values."""

    by: str | Iterable[str]
    rows: int
    string_size: int


class _CountKeys(_CountOptions, _KeyOptions, total=False):
    """Parameters of ``Session.count`` for rows by values."""


class _LatencyOptions(_SumOptions, total=False):
    """Parameters of ``Session.latency``."""

    why: bool
    force: bool
    returns: ReturnsName


class _LatencyKeys(_LatencyOptions, _KeyOptions, total=False):
    """Parameters of ``Session.latency`` for rows by values."""

    of: str | None


class _WaitOptions(_RunOptions, total=False):
    """Parameters of ``Session.waits``."""

    state: Literal["waiting", "runnable", "syscall"]
    reasons: Iterable[str]
    wakers: bool
    open: bool
    system: bool
    force: bool
    budget: float | None


class _SampleOptions(_RunOptions, total=False):
    """Parameters of ``Session.on_cpu`` and ``Session.wall``."""

    hertz: int
    kernel: bool


def _start_afresh() -> None:
    """Forget who starts, in a process that was forked and has this thread alone."""
    global _STARTING
    _STARTING = threading.RLock()


os.register_at_fork(after_in_child=_start_afresh)


@held_to_annotations
def attach(process: int | str, *others: int | str, debug_file: str | None = None) -> Session:
    """Return a session on a running process, or on several, of one program or of more.

    Each is given by its number or by its name, which stands for all processes that are called so.
    ``debug_file`` has the debugging information that was stripped off the program.
    Raises ProcessError if a process is not there, and UsageError for more than eight.
    """
    pids = process_numbers((process, *others))
    one = len(pids) == 1
    target = Target.of(pids[0], None) if one else Target.of(None, None, pids=pids)
    target.debug_file = debug_file
    return Session(target)


@held_to_annotations
def start(command: Sequence[str], debug_file: str | None = None) -> Session:
    """Return a session on a command, without a shell, that the session's first run starts.

    So no call is missed. ``command`` is the program, looked up on PATH, and its arguments. For
    ``debug_file`` see ``attach``. Raises CommandError if the program does not exist, and UsageError
    if the command is one string.
    """
    if isinstance(command, str):
        words = command.split()
        raise UsageError(f"a command is a list of words, without a shell: start({words})")
    with _STARTING:
        target = Target.of(None, list(command))
    target.debug_file = debug_file
    return Session(target)


@held_to_annotations
def path(file: str | os.PathLike[str], debug_file: str | None = None) -> Session:
    """Return a session on all processes that run a file, those yet to be started included.

    For ``debug_file`` see ``attach``.
    """
    return Session(Target(debug_file=debug_file), os.fspath(file))


def _in_use(method: _F) -> _F:
    """Keep a session open while a method of it runs, or refuse to run the method."""

    @wraps(method)
    def run(self: Session, *args: Any, **options: Any) -> Any:
        check_arguments(method, (self, *args), options)
        with self._opened.used("this session is closed: use it within its with block"):
            return method(self, *args, **options)

    return run  # type: ignore[return-value]


class Session(Closing):
    """The traced processes; a context manager that detaches and closes everything at its end.

    A session belongs to one thread at a time, ``stop`` and ``close`` aside; sessions are
    independent of each other.
    """

    def __init__(self, target: Target, file: str | None = None) -> None:
        """Take over the target; ``file`` is what patterns mean that name none."""
        self._target = target
        self._file = file
        self._runs: WeakSet[Run[Any, Any]] = WeakSet()
        self._lock = threading.Lock()
        self._attaching_runs = 0
        #: Whether ``stop`` has been called for a run that is not attached yet.
        self._stop_asked = False
        self._has_run = False
        self._streams: WeakSet[Iteration[Any]] = WeakSet()
        self._opened = Opened()
        self._opened.enter(closing(target))
        _SESSIONS.add(self)

    def __repr__(self) -> str:
        """Return the name of the target, and whether the session is closed."""
        if self._file is not None:
            what = f"all processes of {self._file}"
        elif self._target.command is not None:
            what = f"command {self._target.command.path}, process {self.pid}"
        else:
            numbers = [str(one.tgid) for one in self._target.watched]
            what = f"process{'es' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        return f"<gotrace.Session of {what}{', closed' if self._opened.is_closing else ''}>"

    @property
    def pid(self) -> int | None:
        """Return the process's number, None for several, and for all that run a file."""
        return self._target.pid or None

    @_in_use
    def functions(
        self, *patterns: str, exclude: Iterable[str] = (), regexp: bool = False
    ) -> list[Function]:
        """Return the functions that patterns and recipes select, by file and address.

        Raises NoMatchError, which says what is near, where a pattern selects nothing.
        """
        with _STARTING, os_errors():
            asked = self._asked(patterns, exclude, regexp)
            if asked.has_recipes:
                choices = TraceChoices.of(None, None, entry_only=True, floats=False)
                found = TraceRequest(target=self._target, asked=asked, choices=choices).select()
            else:
                found = CountRequest(target=self._target, asked=asked, verb="trace").select()
            functions: dict[tuple[int, int, int], Function] = {}
            programs = found.program_names
            for selected in found.selected:
                table, file = selected.binary.functions, selected.binary.image.identity
                inlined = table.inlined_by_name()
                for row in selected.rows:
                    function = table.function(row)
                    at = table.declared_at(row)
                    functions[file.device, file.inode, function.entry] = Function(
                        function.name,
                        at.file if at else None,
                        at.line if at else None,
                        inlined.count(function.name) if inlined else 0,
                        programs.get(selected.binary),
                    )
            return list(functions.values())

    @_in_use
    def trace(
        self,
        *probes: str,
        limit: int | None = None,
        seconds: float | None = None,
        lossy: bool = False,
        stacks: bool = False,
        entry: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        why: bool = False,
        force: bool = False,
        returns: ReturnsName = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
    ) -> CallStream:
        """Attach, and return an iterator of the calls from then on, as they end.

        It ends after ``limit`` calls, after some ``seconds``, or with the target. At its end it
        raises LostCalls where calls are missing, unless ``lossy``. Leaving the loop, by ``break``
        or an exception, detaches if nothing else holds the iterator; ``close`` always does.

        ``stacks``: calls have the goroutine's stack. ``entry``: calls are seen when they are
        entered. At most ``string_size`` bytes of a string are captured, and ``depth`` (0 to 5)
        pointers followed, one from the other. ``floats``: float registers are read, which sends
        the thread SIGURG. ``why``: calls say what their time went into, which costs the program
        something at each change of state of any goroutine; where that is more than a fifth of one
        CPU it takes ``force``. Predicates such as ``$blocked > 5ms`` cost the same. ``regexp``:
        patterns are regular expressions. ``returns``: see ``latency``.

        ``budget`` is what tracing may take from the program, as a part of one CPU. If it takes
        more, calls of the dearest function are counted and not traced, then not even counted. At
        the end that is a GotraceError, or a warning if ``lossy``.

        Raises GotraceError: UsageError, NoMatchError, AttachError, LoadError and others.
        """
        check_numbers(seconds, depth, limit=limit, string_size=string_size)
        request = TraceRequest(
            target=self._target,
            asked=self._asked(probes, exclude, regexp),
            returns=ReturnMode(returns),
            budget=checked_budget(budget),
            why=WhyOptions(callers=True) if why else None,
            choices=TraceChoices.of(string_size, depth, entry, floats),
            options=TraceOptions(user_stack=MAX_STACK_FRAMES if stacks else 0),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "why=True")
            stream = CallStream(self, run, *request.decoders(run), limit, lossy, opened.keep())
        return self._streaming(stream)

    @_in_use
    def requests(
        self,
        root: str,
        *patterns: str,
        limit: int | None = None,
        seconds: float | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        why: bool = False,
        critical: bool = False,
        force: bool = False,
        exclude: Iterable[str] = (),
    ) -> RequestStream:
        """Attach, and return an iterator of requests from then on, as they are whole.

        Each call of ``root`` begins one, but for calls within another one in its goroutine. Calls
        of ``patterns`` that are made for it are its nodes, in any goroutine: docs/requests.md says
        how that is known. A predicate of the root chooses requests when they end. To see work go
        from goroutine to goroutine costs the program something at each operation on a channel and
        each wait: where that is more than a fifth of one CPU it takes ``force``. ``critical``:
        requests have their critical paths, for which each change of a goroutine's state is
        reported. Other parameters and errors are as for ``trace``.
        """
        check_numbers(seconds, depth, limit=limit, string_size=string_size)
        asked = self._asked((root, *patterns), exclude, regexp=False)
        roots, probes = request_probes(asked, self._target)
        request = TraceRequest(
            target=self._target,
            asked=asked,
            probes=probes,
            why=WhyOptions(callers=True) if why else None,
            choices=TraceChoices.of(string_size, depth, False, floats),
            options=TraceOptions(roots=roots, states=critical),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "requests()")
            decoders, undecided = request.decoders(run)
            assembler = Assembler(decoders, roots, run.meter.wait_reasons if critical else ())
            taken = (self, run, decoders, undecided, limit, lossy, opened.keep())
            stream = RequestStream(assembler, *taken)
        return self._streaming(stream)

    @_in_use
    def flight(
        self,
        *patterns: str,
        seconds: float,
        when: str | Iterable[str] = (),
        memory: int | None = None,
        limit: int | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        force: bool = False,
        exclude: Iterable[str] = (),
    ) -> FlightStream:
        """Attach, and return an iterator of recordings: of the time before a condition holds.

        Calls of ``patterns`` and goroutines' states are kept in the kernel, in ``memory`` bytes, in
        which the latest overwrite the oldest ones; None is for 256 MB, or an eighth of what is
        free. Each of ``when`` is a probe, whose calls begin requests, and end recordings if it
        wants them; ``"panic"``; or ``"signal TERM"``. A recording has what ended in the
        ``seconds`` before that, and all of the call. ``FlightStream.ask`` has one made in any case.
        The iterator ends after ``limit`` recordings, or with the target. Other parameters and
        errors are as for ``requests``.
        """
        check_numbers(seconds, depth, limit=limit, string_size=string_size, memory=memory)
        conditions = [when] if isinstance(when, str) else list(when)
        asked = self._asked((*probes_in(conditions), *patterns), exclude, regexp=False)
        with os_errors():
            size = memory or flight_size()
        probes, options = flight_of(asked, self._target, conditions, size)
        request = TraceRequest(
            target=self._target,
            asked=asked,
            probes=probes,
            choices=replace(TraceChoices.of(string_size, depth, False, floats), first_alone=True),
            options=options,
        )
        with Opened() as opened:
            run = self._begun(opened, request, None, force, "flight()")
            taken = (self, run, *request.decoders(run), limit, lossy, opened.keep())
            stream = FlightStream(options, seconds, *taken)
        return self._streaming(stream)

    @_in_use
    def record(
        self,
        *patterns: str,
        seconds: float | None = None,
        lossy: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        force: bool = False,
        exclude: Iterable[str] = (),
        ready: Callable[[], object] | None = None,
    ) -> Recording:
        """Trace for some ``seconds``, or until the target ends or ``stop`` is called.

        Return all calls of ``patterns`` that ended meanwhile, and goroutines' states. If ``lossy``,
        a recording has what came after the last loss of records, and is not refused. ``ready`` is
        called once the probes are attached. Other parameters and errors are as for ``requests``.
        """
        check_numbers(seconds, depth, string_size=string_size)
        request = TraceRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp=False),
            choices=TraceChoices.of(string_size, depth, False, floats),
            options=TraceOptions(states=True),
        )
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, "record()")
            decoders, undecided = request.decoders(run)
            taken = (self, run, decoders, undecided, None, lossy, opened.keep())
            with closing(RecordStream(*taken)) as stream:
                if ready is not None:
                    ready()
                (recording,) = stream
        return recording

    @_in_use
    def check(
        self,
        *assertions: str,
        seconds: float | None = None,
        lax: bool = False,
        string_size: int = 256,
        depth: int = 1,
        floats: bool = True,
        force: bool = False,
        ready: Callable[[], object] | None = None,
    ) -> list[AssertionVerdict]:
        """Check for some ``seconds``, or until the target ends, how often functions are called.

        Assertions are those of ``gotrace assert``, as ``"main.query <= 3 per main.handle"``.
        ``lax``: calls of which it is not known for which root they were made count for none. What
        was lost, or cannot be seen, leaves verdicts undecided. ``ready`` is called once the probes
        are attached. Other parameters and errors are as for ``requests``; raises NoMatchError if
        all assertions are about functions that are not there.
        """
        check_numbers(seconds, depth, string_size=string_size)
        if self._file is not None:
            raise UsageError("check() is about one program: use attach() or start()")
        bounds = [parse_assertion(text) for text in some_patterns(assertions)]
        epoch = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.time_ns()
        with Opened() as opened, os_errors():
            with _STARTING:
                choices = TraceChoices.of(string_size, depth, False, floats)
                plan = plan_assertions(self._target, bounds, choices)
            if plan.trace is None and plan.count is None:
                raise NoMatchError(plan.why_missing(bounds[0]) or "")
            if plan.trace is None:
                assert plan.count is not None
                counting = self._begun(opened, plan.count, seconds)
                if ready is not None:
                    ready()
                passed(counting, math.inf, None)
                counting.meter.stop()
                found = counted_verdicts(plan, counting)
            else:
                found = self._checked(opened, plan, plan.trace, seconds, force, lax, ready)
            return [AssertionVerdict._of(one, epoch) for one in all_verdicts(plan, found)]

    def _checked(
        self,
        opened: Opened,
        plan: AssertionPlan,
        request: TraceRequest,
        seconds: float | None,
        force: bool,
        lax: bool,
        ready: Callable[[], object] | None,
    ) -> list[BoundVerdict]:
        """Return the verdicts on assertions of which some have a root."""
        counting = None
        if (count := plan.count) is not None:
            counting = opened.do(lambda: opened.enter(open_run(count)))
        run = self._begun(opened, request, seconds, force, "check()")
        asserted = AssertedRun(plan, request, run)
        if ready is not None:
            ready()
        is_over = False
        while not is_over:
            is_over = run.is_over(READING)
            asserted.take(asserted.reader.turn(), math.inf)
        for records, until in asserted.reader.rest(repeat(math.inf)):
            asserted.take(records, until)
        return asserted.verdicts(counting, lax)

    @overload
    def count(self, *patterns: str, **options: Unpack[_CountOptions]) -> Counts: ...

    @overload
    def count(
        self, *patterns: str, interval: float, **options: Unpack[_CountOptions]
    ) -> IntervalStream[Counts]: ...

    @overload
    def count(self, *patterns: str, **options: Unpack[_CountKeys]) -> Groups: ...

    @overload
    def count(
        self, *patterns: str, interval: float, **options: Unpack[_CountKeys]
    ) -> IntervalStream[Groups]: ...

    @_in_use
    def count(
        self,
        *patterns: str,
        seconds: float | None = None,
        by: str | Iterable[str] = (),
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        inlined: bool = False,
        force: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> Counts | Groups | IntervalStream[Any]:
        """Count calls for some ``seconds``, or until the target ends, or ``stop`` is called.

        ``by`` are expressions, such as ``"key"``, ``"$ret2 != nil"`` or ``"$stack"``: calls are
        added up by their values, and patterns may be whole probes. There are at most so many
        ``rows``, and texts are compared by their first ``string_size`` bytes. Calls are counted
        where a function is inlined, too, if its name has no wildcard and what ``by`` asks for is
        certain there; with ``inlined`` also of functions that a pattern matches. If single-stepping
        lines or inlined calls takes more than a fifth of one CPU, that needs ``force`` or
        ``budget`` (see ``trace``). ``ready`` is called once the probes are attached. With
        ``interval`` an iterator is returned at once: of results of as many seconds each. Raises
        GotraceError as ``trace`` does; LostCalls where calls are missing, unless ``lossy``.
        """
        check_numbers(seconds, rows=rows, string_size=string_size)
        scope = InlinedScope.MATCHED if inlined else InlinedScope.NAMED
        if by:
            keyed = KeyRequest(
                target=self._target,
                asked=self._asked(patterns, exclude, regexp),
                verb="count",
                done="counted",
                budget=checked_budget(budget),
                key=key_of([by] if isinstance(by, str) else list(by)),
                text_bytes=checked_text_size(string_size),
                inlined=scope,
                accept_stepped=None if force else _refuse_stepped,
                no_parts="count() cannot group by parts of the time: use latency()",
                options=KeyOptions(rows=rows),
            )
            return self._added_up(keyed, seconds, lossy, True, ready, interval)
        request = CountRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp, "count()"),
            budget=checked_budget(budget),
            inlined=scope,
            accept_stepped=None if force else _refuse_stepped,
        )

        def read(run: Run[CallCounter, Any]) -> Callable[[], Counts]:
            counts = Counts._of(run.plan.counted, run.plan.places, run.meter.take())
            return lambda: counts

        asked = {"patterns": request.asked.patterns}
        return self._result(request, read, asked, lossy, seconds, ready, interval)

    @overload
    def latency(
        self,
        *patterns: str,
        by_goroutine: Literal[False] = False,
        **options: Unpack[_LatencyOptions],
    ) -> Latencies: ...

    @overload
    def latency(
        self,
        *patterns: str,
        interval: float,
        by_goroutine: Literal[False] = False,
        **options: Unpack[_LatencyOptions],
    ) -> IntervalStream[Latencies]: ...

    @overload
    def latency(
        self, *patterns: str, by_goroutine: Literal[True], **options: Unpack[_LatencyOptions]
    ) -> GoroutineLatencies: ...

    @overload
    def latency(
        self,
        *patterns: str,
        interval: float,
        by_goroutine: Literal[True],
        **options: Unpack[_LatencyOptions],
    ) -> IntervalStream[GoroutineLatencies]: ...

    @overload
    def latency(self, *patterns: str, **options: Unpack[_LatencyKeys]) -> Groups: ...

    @overload
    def latency(
        self, *patterns: str, interval: float, **options: Unpack[_LatencyKeys]
    ) -> IntervalStream[Groups]: ...

    @_in_use
    def latency(
        self,
        *patterns: str,
        seconds: float | None = None,
        by_goroutine: bool = False,
        by: str | Iterable[str] = (),
        of: str | None = None,
        rows: int = 1024,
        string_size: int = _KEY_TEXT,
        lossy: bool = False,
        why: bool = False,
        force: bool = False,
        returns: ReturnsName = "ret",
        budget: float | None = None,
        exclude: Iterable[str] = (),
        regexp: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> Latencies | GoroutineLatencies | Groups | IntervalStream[Any]:
        """Measure calls and return a histogram, in ns, of each function that was called.

        ``by_goroutine``: of each goroutine that called one. ``why``: histograms have what the time
        went into, not by goroutine; see ``trace``. ``returns``: where calls are seen returning, at
        "ret", or at "landing", in their callers, which costs a tenth, once the callers are known;
        "auto" does that for functions that are called often. Calls of new callers are missing then.
        Other parameters and errors as for ``count`` and ``trace``; raises LostCalls where calls are
        missing, unless ``lossy``.

        ``by`` adds calls up by their values, as in ``count``. ``of`` is an expression, such as
        ``"len(p)"``, that histograms are of, in place of durations.
        """
        check_numbers(seconds, rows=rows, string_size=string_size)
        if (by or of) and by_goroutine:
            raise UsageError("by_goroutine=True has rows of its own: give by='$goid'")
        if of is not None and why:
            raise UsageError("why=True divides time: leave out of")
        if by or of is not None:
            keyed = KeyRequest(
                target=self._target,
                asked=self._asked(patterns, exclude, regexp),
                verb="measure",
                done="measured",
                returns=ReturnMode(returns),
                budget=checked_budget(budget),
                why=WhyOptions() if why else None,
                key=key_of([by] if isinstance(by, str) else list(by)),
                of=None if of is None else one_value(of),
                text_bytes=checked_text_size(string_size),
                follows_returns=of is None,
                options=KeyOptions(of is None, why, interval is not None, rows=rows),
            )
            return self._added_up(keyed, seconds, lossy, force, ready, interval)
        if why and by_goroutine:
            raise UsageError("why=True works by function: leave out by_goroutine")
        request = LatencyRequest(
            target=self._target,
            asked=self._asked(patterns, exclude, regexp, "latency()"),
            returns=ReturnMode(returns),
            budget=checked_budget(budget),
            why=WhyOptions() if why else None,
            options=LatencyOptions(
                per_function=True, per_goroutine=by_goroutine, intervals=interval is not None
            ),
        )

        def read(run: Run[LatencyMeter, Any]) -> Callable[[], Latencies | GoroutineLatencies]:
            names, period, ways = run.plan.names, run.meter.take(), run.meter.take_ways()
            choice = LatencyChoice(
                by_function=True,
                by_goroutine=by_goroutine,
                top=len(period.goroutines),
                names_processes=self.pid is None,
            )
            when = 0.0, 0.0, 1
            interval = interval_of(choice, run.plan, period, symbols, when, None, (), ways)
            if by_goroutine:
                return _warning(run, lambda: GoroutineLatencies(names, period, interval))
            texts = [name.text for name in names]
            return _warning(run, lambda: Latencies(texts, interval))

        symbols: Symbolizer | None = None

        def poll(run: Run[LatencyMeter, Any]) -> bool:
            nonlocal symbols
            run.meter.poll(time.monotonic() + READING)
            if by_goroutine and run.tasks is not None:
                symbols = symbols or Symbolizer.of(run.tasks.files)
                if symbols is not None:
                    symbols.learn(run.meter.processes)
            return by_goroutine or run.meter.landings is not None

        more = interval, force, "why=True", poll
        asked = {"patterns": request.asked.patterns}
        return self._result(request, read, asked, lossy, seconds, ready, *more)

    def _added_up(
        self,
        request: KeyRequest,
        seconds: float | None,
        lossy: bool,
        force: bool,
        ready: Callable[[], object] | None,
        interval: float | None,
    ) -> Groups | IntervalStream[Groups]:
        """Run until the end, and return the calls by their values."""

        def read(run: Run[KeyMeter, Any]) -> Callable[[], Groups]:
            groups = Groups(run, request, run.meter.take())
            return _warning(run, lambda: groups)

        def poll(run: Run[KeyMeter, Any]) -> bool:
            run.meter.poll()
            return run.meter.landings is not None

        more = interval, force, "why=True", poll
        asked = {"patterns": request.asked.patterns}
        return self._result(request, read, asked, lossy, seconds, ready, *more)

    @_in_use
    def goroutines(self, *patterns: str, system: bool = False) -> Goroutines:
        """Return all goroutines of the process, or those with such a function on their stack.

        ``system``: the runtime's own as well. The process is not stopped, and nothing is attached.
        Raises UsageError where the session is not of a running process.
        """
        from gotrace.goroutines.live import LiveGoroutines  # loads ctypes

        if self._target.process is None or not self._target.has_started:
            raise UsageError("goroutines() needs a running process: use attach(pid)")
        with os_errors(), Opened() as opened:

            def take() -> tuple[Dump, WaitReader]:
                GoFiles(self._target).check_functions(patterns)
                live = opened.enter(LiveGoroutines(self._target))
                return live.take(), live.waits()

            dump, waits = opened.do(take)
            chosen = GoroutineFilter(functions=patterns, system=system).of(dump)
            chosen.sort(key=lambda goroutine: goroutine.goid)
            asked = {"pid": self.pid, "states": [], "reason": [], "functions": list(patterns)}
            found = Goroutines(dump, chosen, waits.of(chosen), {**asked, "system": system})
            found.reading = Reading(time.time())
            return found

    @_in_use
    def live(
        self,
        *,
        interval: float = 1.0,
        waits: bool = False,
        functions: Iterable[str] = (),
        requests: str | None = None,
        force: bool = False,
    ) -> SnapshotStream:
        """Return an iterator of snapshots of the process, one each ``interval`` seconds.

        It ends with the process, or when ``stop`` is called. Nothing is attached unless ``waits``
        are to be added up, calls of ``functions``, which are patterns, are to be measured, or
        ``requests`` are to be traced that begin with calls of a root. If one of these takes more
        than a fifth of one CPU, it needs ``force``. Dropping the iterator detaches.
        Raises UsageError where the session is not of one running process; GotraceError.
        """
        from gotrace.live.monitor import Monitor  # loads ctypes

        if not 0 < interval < 1e9:
            raise UsageError(f"interval is {interval}: give a positive number")
        patterns = tuple(functions)

        def accept(price: AttachPrice) -> None:
            if price.share > MAX_SHARE and not force:
                raise GotraceError(f"{price.text}: force=True accepts it")

        def attach() -> tuple[Waiter, Monitor]:
            waiter = opened.enter(Waiter())
            waiter.watch(self._target.watched)
            with _STARTING:
                self._check_open()
                monitor = opened.enter(Monitor(self._target))
                if waits:
                    monitor.attach_waits(accept)
                if patterns:
                    monitor.attach_functions(patterns, accept)
                if requests is not None:
                    monitor.attach_requests(requests, accept)
            return waiter, monitor

        with Opened() as opened, os_errors():
            waiter, monitor = opened.do(attach)
            stream = SnapshotStream(self, waiter, monitor, interval, opened.keep())
        return self._streaming(stream)

    @_in_use
    def examine(self, seconds: float = 10.0, *, budget: float = 0.02) -> Examination:
        """Return the findings of some ``seconds``, or until the process ends.

        All that is attached takes at most the ``budget`` of one CPU together; what would take more
        is in ``unseen``. Raises UsageError where the session is not of one running process;
        GotraceError.
        """
        from gotrace.live.examination import Examiner  # loads ctypes

        check_numbers(seconds)
        checked_budget(budget)
        with Opened() as opened, os_errors():
            waiter = opened.enter(Waiter())
            waiter.watch(self._target.watched)
            with _STARTING:
                self._check_open()
                examiner = opened.enter(Examiner(self._target, budget))
            for _ in examiner.looks(seconds, lambda due: waiter.wait(due) is Reason.TIME):
                pass
            return examiner.result()

    @overload
    def waits(self, *inside: str, **options: Unpack[_WaitOptions]) -> Waits: ...

    @overload
    def waits(
        self, *inside: str, interval: float, **options: Unpack[_WaitOptions]
    ) -> IntervalStream[Waits]: ...

    @_in_use
    def waits(
        self,
        *inside: str,
        seconds: float | None = None,
        state: Literal["waiting", "runnable", "syscall"] = "waiting",
        reasons: Iterable[str] = (),
        wakers: bool = False,
        open: bool = False,
        system: bool = False,
        lossy: bool = False,
        force: bool = False,
        budget: float | None = None,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> Waits | IntervalStream[Waits]:
        """Add up where goroutines wait, for some ``seconds``, or until the target ends or ``stop``.

        ``inside``: only waits within calls of functions that one of these patterns selects.
        ``reasons``: only waits for one of these reasons, in which ``*`` is any text. ``state``:
        what is added up, "runnable" for waits for a CPU. ``wakers``: stacks of who ended
        waits are kept apart. ``open``: waits that have not ended with the run count, too.
        ``system``: those of the runtime's own goroutines as well. ``force`` and ``ready``: see
        ``latency``; ``budget``: see ``trace``. Raises LostCalls where waits are missing, unless
        ``lossy``; UsageError where the session is not of one process; GotraceError.
        """
        check_numbers(seconds)
        kind, reasons = WaitState(state), tuple(reasons)

        request = WaitRequest(
            target=self._target,
            state=kind,
            inside=inside,
            reasons=reasons,
            budget=checked_budget(budget),
        )
        choice = WaitChoice(inside, reasons, system, wakers)

        def read(run: Run[WaitMeter, Any]) -> Callable[[], Waits]:
            return _waits(run.meter, kind, choice, run.meter.open() if open else ())

        asked = _waits_asked(kind, inside, reasons, open=open, system=system)
        what = "waits()"
        return self._result(request, read, asked, lossy, seconds, ready, interval, force, what)

    @overload
    def on_cpu(
        self, *inside: str, by: str | None = None, **options: Unpack[_SampleOptions]
    ) -> CpuTime: ...

    @overload
    def on_cpu(
        self,
        *inside: str,
        interval: float,
        by: str | None = None,
        **options: Unpack[_SampleOptions],
    ) -> IntervalStream[CpuTime]: ...

    @_in_use
    def on_cpu(
        self,
        *inside: str,
        seconds: float | None = None,
        hertz: int = HERTZ,
        kernel: bool = False,
        by: str | None = None,
        lossy: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> CpuTime | IntervalStream[CpuTime]:
        """Sample where threads spend CPU time, for some ``seconds``, or until the target ends.

        Or until ``stop``. ``inside``: only within calls of functions that one of these patterns
        selects. ``hertz``: samples a second of each CPU. ``kernel``: with the kernel's own
        functions. ``by``: ``$label("KEY")`` keeps goroutines with different values of this pprof
        label apart. ``ready``: see ``latency``. Raises LostCalls if samples are not whole, unless
        ``lossy``; UsageError where the session is not of one process; GotraceError.
        """
        check_numbers(seconds)
        request = SampleRequest(
            target=self._target, hertz=hertz, kernel=kernel, inside=inside, by=by
        )

        def read(run: Run[SampleMeter, Any]) -> Callable[[], CpuTime]:
            return partial(CpuTime, run.meter, run.meter.take(), inside, by)

        asked = {"in": list(inside), "kernel": kernel, "off": False, "hertz": hertz}
        return self._result(request, read, asked, lossy, seconds, ready, interval)

    @overload
    def allocations(
        self,
        *inside: str,
        by: str | None = None,
        spans: bool = False,
        force: bool = False,
        **options: Unpack[_RunOptions],
    ) -> Allocations: ...

    @overload
    def allocations(
        self,
        *inside: str,
        interval: float,
        by: str | None = None,
        spans: bool = False,
        force: bool = False,
        **options: Unpack[_RunOptions],
    ) -> IntervalStream[Allocations]: ...

    @_in_use
    def allocations(
        self,
        *inside: str,
        seconds: float | None = None,
        by: str | None = None,
        spans: bool = False,
        force: bool = False,
        lossy: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> Allocations | IntervalStream[Allocations]:
        """Sample which functions allocate, for some ``seconds``, or until the target ends.

        Or until ``stop``. The target's runtime chooses what is sampled; with ``spans``, and if it
        samples nothing, used up spans of memory are seen. If that takes more than a fifth of one
        CPU, it needs ``force``. For other parameters, and for what is raised, see ``on_cpu``.
        """
        check_numbers(seconds)
        request = AllocRequest(target=self._target, inside=inside, by=by, spans=spans)
        with os_errors():
            price = None if force else request.price()
        if price is not None:
            _refuse(price, f"{request.counted}: allocations() would")

        def read(run: Run[AllocMeter, Any]) -> Callable[[], Allocations]:
            return partial(Allocations, run.meter, run.meter.take(), inside, by)

        asked: Row = {"in": list(inside)}
        return self._result(request, read, asked, lossy, seconds, ready, interval)

    @overload
    def syscalls(
        self, *inside: str, force: bool = False, **options: Unpack[_RunOptions]
    ) -> Syscalls: ...

    @overload
    def syscalls(
        self,
        *inside: str,
        interval: float,
        force: bool = False,
        **options: Unpack[_RunOptions],
    ) -> IntervalStream[Syscalls]: ...

    @_in_use
    def syscalls(
        self,
        *inside: str,
        seconds: float | None = None,
        lossy: bool = False,
        force: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> Syscalls | IntervalStream[Syscalls]:
        """Add system calls up by name, for some ``seconds``, or until the target ends or ``stop``.

        ``inside``: of the stacks, only those within calls of functions that one of these patterns
        selects. The runtime's own calls count, too. For the others see ``waits``, also for what is
        raised.
        """
        check_numbers(seconds)

        def price() -> CountedPrice:
            with _STARTING:
                return syscall_price(self._target)

        if not force and self._target.process is not None and self._target.has_started:
            what = "makes {} system calls a second: syscalls() would"
            with Opened() as opened, os_errors():
                _refuse(opened.do(price), what)
        request = SyscallRequest(target=self._target, inside=inside, intervals=interval is not None)
        choice = WaitChoice(inside, (), system=True, wakers=False)

        def read(run: Run[SyscallMeter, Any]) -> Callable[[], Syscalls]:
            stacks = _waits(run.meter, WaitState.SYSCALL, choice)
            return partial(Syscalls, run.meter.names(), stacks)

        asked = _waits_asked(WaitState.SYSCALL, inside, names=True)
        return self._result(request, read, asked, lossy, seconds, ready, interval)

    @overload
    def wall(self, *, force: bool = False, **options: Unpack[_SampleOptions]) -> WallTime: ...

    @overload
    def wall(
        self, *, interval: float, force: bool = False, **options: Unpack[_SampleOptions]
    ) -> IntervalStream[WallTime]: ...

    @_in_use
    def wall(
        self,
        *,
        seconds: float | None = None,
        hertz: int = HERTZ,
        kernel: bool = False,
        lossy: bool = False,
        force: bool = False,
        ready: Callable[[], object] | None = None,
        interval: float | None = None,
    ) -> WallTime | IntervalStream[WallTime]:
        """Add up all of goroutines' time: running, runnable, in system calls and waiting.

        That is for some ``seconds``, or until the target ends or ``stop``. Samples divide the
        running time: for ``hertz`` and ``kernel`` see ``on_cpu``. The other times, and the
        exceptions, are those of ``waits``.
        """
        check_numbers(seconds)
        cpu = SampleRequest(target=self._target, hertz=hertz, kernel=kernel)
        request = WallRequest(target=self._target, cpu=cpu)

        def read(run: Run[WallMeter, Any]) -> Callable[[], WallTime]:
            return partial(WallTime, run.meter.cpu, *run.meter.take())

        asked: Row = {"in": [], "kernel": kernel, "off": True, "hertz": hertz}
        what = "wall()"
        return self._result(request, read, asked, lossy, seconds, ready, interval, force, what)

    def stop(self) -> None:
        """End all runs that are attached; their results so far are still returned.

        A run that is being attached ends as soon as it is, and so does a session's first run if
        it has not begun. May be called in any thread, and by ``ready``.
        """
        with self._lock:
            self._stop_asked = self._attaching_runs > 0 or not self._has_run
            going: list[Run[Any, Any] | Iteration[Any]] = [*self._runs, *self._streams]
        for one in going:
            one.stop()

    def wait(self) -> int:
        """Wait for the command to end and return its exit code, negative for a signal.

        It is started where no run has done that. Raises UsageError for what was not started here.
        """
        command = self._target.command
        if command is None:
            raise UsageError("wait() needs a command that start() has started")
        self._target.start()
        return os.waitstatus_to_exitcode(command.reap())

    def close(self) -> None:
        """Detach and close the files; a command that was started goes on.

        Runs of other threads are stopped, and return what they have seen; iterations end. May be
        called in any thread. A process that was forked meanwhile closes nothing.
        """
        if not self._opened.is_ours:
            return
        self._opened.is_closing = True  # nothing begins any more
        self.stop()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._opened.close()

    def _asked(
        self, patterns: Sequence[str], exclude: Iterable[str], regexp: bool, bare: str = ""
    ) -> Asked:
        """Return which functions are asked for; what is called ``bare`` takes no conditions."""
        if bare:
            check_bare(patterns, bare, regexp)
        return Asked(some_patterns(patterns), tuple(exclude), regexp, self._file)

    def _check_open(self) -> None:
        """Raise UsageError if it was closed meanwhile."""
        if self._opened.is_closing:
            raise UsageError("this session was closed before anything was attached")

    def _streaming(self, stream: _I) -> _I:
        """Return the stream, which is closed with the session."""
        with self._lock:
            self._streams.add(stream)
        if self._opened.is_closing:
            stream.close()
        return stream

    def _result(
        self,
        request: RunRequest[_M, _C],
        read: Callable[[Run[_M, _C]], Callable[[], _R]],
        asked: Row,
        lossy: bool,
        seconds: float | None,
        ready: Callable[[], object] | None,
        interval: float | None,
        force: bool = True,
        what: str = "",
        poll: Callable[[Run[_M, _C]], bool] | None = None,
    ) -> _R | IntervalStream[_R]:
        """Begin a run as ``_begun`` does, wait until it is over, and return its result.

        ``read`` reads what is over, and returns what makes the result of it. For ``poll`` see
        ``passed``. ``asked`` is the question, as recordings have it. Raises LostCalls unless
        ``lossy``.
        """
        if interval is not None and not 0 < interval < 1e9:
            raise UsageError(f"interval is {interval}: give a positive number, or leave it out")
        with Opened() as opened:
            run = self._begun(opened, request, seconds, force, what)
            readings = Readings(run, self._attached(run, asked), interval is not None)
            if ready is not None:
                ready()
            if interval is not None:

                def take() -> _R:
                    with _STARTING:
                        return readings.of(read(run))()

                taken = interval, take, poll, lossy, opened.keep()
                return self._streaming(IntervalStream(self, run, *taken))
            with os_errors():
                passed(run, math.inf, poll)
                made, lost = readings.of(read(run)), run.meter.lost()
            check_budget(run, lossy)
        check_lost(run, lossy, lost)
        with _STARTING, os_errors():
            return made()

    def _attached(self, run: Run[_M, _C], asked: Row) -> Row:
        """Return the beginning of a recording: the question, and the processes."""
        pids = [one.tgid for one in self._target.watched]
        of = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
        if "patterns" in asked:
            text = f"Tracing {', '.join(asked['patterns'])} of {of}"
            return {"message": text, **run.question(pids, asked["patterns"])}
        if "state" in asked:
            asked = {**asked, "attach": run.attached.method.value}
        return {"message": f"Tracing {of}", "pid": run.target.pid, **asked, "ts": time.time()}

    def _begun(
        self,
        opened: Opened,
        request: RunRequest[_M, _C],
        seconds: float | None,
        force: bool = True,
        what: str = "",
    ) -> Run[_M, _C]:
        """Open a run, warn of calls that it does not see, and begin it.

        Raises GotraceError; unless ``force``, also if ``what`` would cost too much.
        """
        with self._lock:
            self._attaching_runs += 1

        def attach() -> Run[_M, _C]:
            accept = None if force else _refusing(what)
            with _STARTING:
                self._check_open()
                return opened.enter(open_run(request, accept=accept))

        try:
            with os_errors():
                run = opened.do(attach)
                warn_of_notes(run)
                opened.do(lambda: run.begin(seconds))
            with self._lock:
                self._runs.add(run)
                self._has_run = True
                is_asked, self._stop_asked = self._stop_asked, False
        finally:
            with self._lock:
                self._attaching_runs -= 1
        if is_asked or self._opened.is_closing:
            run.stop()
        return run


def _warning(
    run: Run[LatencyMeter, Any] | Run[KeyMeter, Any], made: Callable[[], _T]
) -> Callable[[], _T]:
    """Return a function that warns of calls without a time before it makes the last result."""
    counts = run.meter.diagnostics() if run.end is not None else None

    def warned() -> _T:
        if counts is not None:
            warn_of_unwound(counts)
        return made()

    return warned


def _waits(
    meter: WaitMeter | SyscallMeter,
    state: WaitState,
    choice: WaitChoice,
    still_open: Sequence[WaitRow] = (),
) -> Callable[[], Waits]:
    waits = meter.take(), still_open
    return partial(Waits, meter, state, choice, waits, meter.losses().earlier)


def _waits_asked(
    state: WaitState,
    inside: Sequence[str],
    reasons: Sequence[str] = (),
    names: bool = False,
    open: bool = False,
    system: bool = False,
) -> Row:
    """Return the question about waits, as recordings have it."""
    texts = {"state": state.value, "in": list(inside), "reason": list(reasons)}
    return {**texts, "names": names, "open": open, "system": system}


#: Those that may be open.
_SESSIONS: WeakSet[Session] = WeakSet()


def _close_sessions() -> None:
    """Detach while everything that this takes is there: later, modules are taken apart."""
    for session in list(_SESSIONS):
        with suppress(Exception):
            session.close()


# The interpreter waits for other threads before it comes to ``atexit``, and they may be in a run.
getattr(threading, "_register_atexit", atexit.register)(_close_sessions)


def _refusing(what: str) -> Callable[[SchedulerProbes], None]:
    """Return a check: it raises GotraceError if watching the program's scheduler costs too much."""

    def accept(probes: SchedulerProbes) -> None:
        if probes.target.process is None or not probes.target.has_started:
            return
        _refuse(price_of(probes, None), f"{probes.COUNTED}: {what} would")

    return accept


def _refuse_stepped(price: SteppedPrice) -> None:
    if price.must_be_forced:
        raise GotraceError(f"{price.text}: force=True accepts it, budget=0.02 ends it in time")


def _refuse(price: CountedPrice, text: str) -> None:
    """Raise GotraceError if watching a program takes too much; ``text`` has the number."""
    if price.share > MAX_SHARE:
        counted = text.format(f"{round(price.changes):,}")
        share = f"{price.share:.0%} of one CPU"
        raise GotraceError(f"this program {counted} take about {share}: force=True accepts it")
