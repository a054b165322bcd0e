# SPDX-License-Identifier: Apache-2.0
"""Optional traces of a monitor, call by call: requests, and the calls of one function.

Requests are those of ``gotrace tree``. A thread takes the records as they come, since the
kernel's buffers hold those of some moments only; snapshots have what it has found.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, repeat, takewhile

from gotrace.calls import StackFrame
from gotrace.errors import GotraceError, UsageError
from gotrace.histogram import Histogram
from gotrace.kernel.rings import pages_of
from gotrace.live.attached import HISTORY, AcceptPrice, AttachPrice, percent
from gotrace.live.model import Attachment, Caller, FunctionCalls, RequestRow, SlowRequest
from gotrace.records import dataclass, field, replace
from gotrace.requests.assemble import Assembler, request_probes
from gotrace.requests.model import Node, Request
from gotrace.requests.own import CALL_NS, own_functions
from gotrace.session.decode import DecodedCall
from gotrace.session.events import function_of, parse_call
from gotrace.session.reading import RecordReader
from gotrace.session.request import Accept, Asked
from gotrace.session.run import open_run
from gotrace.session.scheduler import SchedulerProbes
from gotrace.session.symbols import Symbolizer
from gotrace.session.trace import TraceOptions, TraceRequest, buffer_pages
from gotrace.session.trace_plan import TraceChoices
from gotrace.session.why.parts import UNKNOWN, call_parts, largest_first
from gotrace.session.why.price import price_of
from gotrace.session.why.probes import WhyOptions
from gotrace.target.target import Target

_NS = 1_000_000_000
_POLL = 0.025  # seconds
_LAST = 2.0  # seconds in which what has been reported is taken at the end
#: Bytes of each CPU's event buffer: a screen is to take little memory.
_BUFFER = 4 << 20
#: Seconds that requests are kept.
_WINDOW = 60
#: Requests of a root that are kept of each second, the slowest, and how many there can be.
_KEPT_A_SECOND = 20
_MAX_KEPT = 500
#: Calls of all requests that are kept, 6 KB each for an HTTP server's handlers: of others the
#: root's alone is.
_MAX_CALLS = 5_000
#: Functions whose calls begin requests.
_MAX_ROOTS = 200
#: Calls that are shown of a function, and places that it is called from.
_LATEST = 20
_MAX_CALLERS = 1_000


def _pages() -> int:
    return min(pages_of(_BUFFER), buffer_pages())


class _Traced:
    """A run whose records a thread of its own takes; a context manager that detaches."""

    def __init__(self, request: TraceRequest, accept: Accept | None) -> None:
        """Attach. Raises GotraceError."""
        self._run = open_run(request, accept=accept)
        try:
            self._run.begin()
            self._decoders, undecided = request.decoders(self._run)
        except BaseException:
            self._run.close()
            raise
        self._reader = RecordReader(self._run.meter, undecided)
        self._epoch = time.monotonic_ns() - time.time_ns()
        self._began = time.monotonic_ns()
        self._lock = threading.Lock()
        self._error: GotraceError | OSError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            while not self._over.wait(_POLL):
                self._run.is_over(0)
                self._take(self._reader.turn())
        except (GotraceError, OSError) as error:
            self._error = error

    def _take(self, records: Iterable[bytes]) -> None:
        with self._lock:
            self._add(records)

    def _add(self, records: Iterable[bytes]) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        """Raise the error that has ended the thread."""
        if isinstance(self._error, GotraceError):
            raise self._error
        if self._error is not None:
            why = self._error.strerror or self._error
            raise GotraceError(f"cannot read what is traced: {why}") from self._error

    def finish(self) -> None:
        """End the run, and take the records up to now; ``take`` still returns them."""
        self._join()
        self._run.stop()
        self._run.is_over(0)
        last = time.monotonic() + _LAST
        turns = takewhile(lambda until: time.monotonic() < until, repeat(last))
        for records, _ in self._reader.rest(turns):
            self._take(records)

    def _join(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        self._join()
        self._run.close()


@dataclass(slots=True)
class _Second:
    """The requests of a root that ended in one second; the slowest are kept."""

    times: Histogram = field(default_factory=Histogram)
    kept: list[SlowRequest] = field(default_factory=list)


class Requests(_Traced):
    """Requests of the last minute, from when this is made on; a context manager that detaches."""

    def __init__(
        self, target: Target, root: str, accept: AcceptPrice | None, brief: bool = False
    ) -> None:
        """Attach to a root, which is a probe, and to the program's own functions.

        ``brief``: values are those that a line has room for, which take less.
        Raises GotraceError, NoMatchError among these.
        """
        if not root.strip():
            raise UsageError("no root was given: type a function, such as 'main.handle'")
        self.root = root
        self._brief = brief
        self.share = 0.0
        own = own_functions(target, [root.split(" ", 1)[0]])
        asked = Asked([root, *own.patterns], own.left_out)
        roots, probes = request_probes(asked, target)

        def accept_probes(edges: SchedulerProbes) -> None:
            price = price_of(edges, None)
            self.share = price.share + own.calls * CALL_NS / _NS
            if accept is not None:
                text = (
                    f"this program {edges.COUNTED.format(f'{round(price.changes):,}')}, and calls"
                    f" functions of its own {round(own.calls):,} times: requests will take about"
                    f" {percent(self.share)} of one CPU"
                )
                accept(AttachPrice(text, self.share))

        request = TraceRequest(
            target=target,
            asked=asked,
            probes=probes,
            choices=TraceChoices.of(None, None, False, True, brief=brief),
            options=TraceOptions(pages=_pages(), roots=roots, states=True),
        )
        super().__init__(request, accept_probes)
        begins = {id(probe) for probe in roots}
        #: The functions whose calls begin requests.
        self.names = {
            decoder.function.name
            for decoder in self._decoders
            if any(id(probe) in begins for probe, _ in decoder.traced.parts)
        }
        if len(self.names) > _MAX_ROOTS:
            self.close()
            raise UsageError(
                f"{root} selects {len(self.names):,} functions: requests can begin with the calls"
                f" of {_MAX_ROOTS}"
            )
        self._assembler = Assembler(self._decoders, roots, self._run.meter.wait_reasons)
        self._seconds: dict[str, dict[int, _Second]] = {}
        self._history: dict[str, deque[int]] = {}
        self._new: Counter[str] = Counter()
        self._number = self._reported = 0
        self._calls = self._kept = 0
        self._is_last = False
        self._lost: int | None = None
        self._thread.start()

    @property
    def attachment(self) -> Attachment:
        return Attachment(f"requests of {self.root}", self.share)

    @property
    def lost(self) -> int:
        """Return how many requests are missing, since records were lost."""
        return self._assembler.tally.lost if self._lost is None else self._lost

    def finish(self) -> None:
        super().finish()
        self._lost = self.lost  # those that have not ended by now are not
        self._is_last = True
        self._take(())

    def _add(self, records: Iterable[bytes]) -> None:
        self._assembler.missing(self._reader.missing())
        for record in records:
            self._assembler.add(record)
        for request in self._assembler.take(time.monotonic(), self._is_last):
            self._keep(request)

    def _keep(self, request: Request[DecodedCall]) -> None:
        call, took = request.root.call, request.duration_ns
        name = call.function.name
        second = self._seconds.setdefault(name, {}).setdefault(call.end_ns // _NS, _Second())
        second.times.add(took)
        self._new[name] += 1
        self._number += 1
        kept = second.kept
        if len(kept) == _KEPT_A_SECOND:
            if took <= kept[-1].duration_ns:
                return
            self._forget(kept.pop())
        if self._brief:
            request = replace(request, states=())  # no line shows them
        goroutines = [node.goid for node in request.nodes()]
        counts = len(goroutines), len(set(goroutines))
        ended = (call.end_ns - self._epoch) / _NS
        mostly = next(iter(request.critical_path()), None)
        slow = SlowRequest(took, ended, self._number, *counts, request, False, self._epoch, mostly)
        at = next((i for i, one in enumerate(kept) if one.duration_ns < took), len(kept))
        kept.insert(at, slow)
        self._kept += 1
        self._calls += slow.calls
        # Not for each request that comes: looking at all of them takes its time.
        if self._kept > _MAX_KEPT * 9 // 8 or self._calls > _MAX_CALLS * 9 // 8:
            self._make_room()

    def _forget(self, slow: SlowRequest) -> None:
        self._kept -= 1
        self._calls -= 1 if slow.is_cut else slow.calls

    def _make_room(self) -> None:
        """Drop the quickest that are kept, and cut the trees of the quickest others."""
        every = [
            (one.duration_ns, second, one)
            for seconds in self._seconds.values()
            for second in seconds.values()
            for one in second.kept
        ]
        every.sort(key=lambda item: item[0])
        for _, second, one in every[: max(0, self._kept - _MAX_KEPT)]:
            second.kept.remove(one)
            self._forget(one)
        for _, second, one in every:
            if self._calls <= _MAX_CALLS:
                break
            if not one.is_cut and one.calls > 1 and one in second.kept:
                root = one.traced.root
                bare = Request(Node(root.call, root.edge, 0), one.traced.unfinished)
                self._calls -= one.calls - 1
                second.kept[second.kept.index(one)] = replace(one, traced=bare, is_cut=True)

    def take(self) -> list[RequestRow]:
        """Return the requests of the last minute by root, that of the slowest first."""
        with self._lock:
            self._check()
            return self._rows()

    def _rows(self) -> list[RequestRow]:
        now = time.monotonic_ns()
        first = now // _NS - _WINDOW + 1
        passed = (now - max(self._began, first * _NS)) / _NS
        rows = []
        for name, seconds in self._seconds.items():
            for at in [at for at in seconds if at < first]:
                for one in seconds.pop(at).kept:
                    self._forget(one)
            times = Histogram()
            for second in seconds.values():
                times.merge(second.times)
            kept = [one for second in seconds.values() for one in second.kept]
            kept.sort(key=lambda one: -one.duration_ns)
            new = tuple(one for one in kept if one.number > self._reported)
            history = self._history.setdefault(name, deque(maxlen=HISTORY))
            history.append(self._new[name])
            rows.append(RequestRow(passed, name, times, tuple(kept), new, tuple(history)))
        self._new.clear()
        self._reported = self._number
        return sorted(rows, key=lambda row: (-row.times.maximum, row.name))


class Calls(_Traced):
    """All calls of one function, from when this is made on; a context manager that detaches."""

    def __init__(
        self, target: Target, name: str, calls_s: float, accept: AcceptPrice | None
    ) -> None:
        """Attach to a function that is called ``calls_s`` times a second. Raises GotraceError."""
        self.name = name
        self.share = 0.0
        called = f"{name} is called {round(calls_s):,} times a second"
        own = calls_s * CALL_NS / _NS

        def accept_probes(probes: SchedulerProbes | None) -> None:
            text = called
            self.share = own
            if probes is not None:
                price = price_of(probes, None)
                self.share += price.share
                text += f", and this program changes {round(price.changes):,} states"
            if accept is not None:
                text += f": looking at each call will take about {percent(self.share)} of one CPU"
                accept(AttachPrice(text, self.share))

        has_asked = False

        def accept_why(probes: SchedulerProbes) -> None:
            nonlocal has_asked
            has_asked = True
            accept_probes(probes)

        request = TraceRequest(
            target=target,
            asked=Asked([name]),
            choices=TraceChoices.of(None, None, False, True, brief=True),
            options=TraceOptions(user_stack=1, pages=_pages()),
            why=WhyOptions(callers=True),
        )
        try:
            super().__init__(request, accept_why)
        except GotraceError:
            if has_asked:
                raise
            # The scheduler of its release is not known: the rest is.
            accept_probes(None)
            super().__init__(replace(request, why=None), None)
        tasks = self._run.tasks
        self._symbols = Symbolizer.of(tasks.files) if tasks is not None else None
        self._latest: deque[bytes] = deque(maxlen=_LATEST)
        self._callers: Counter[tuple[int, int]] = Counter()
        self._parts: Counter[str] = Counter()
        self._count = self._ns = 0
        self._thread.start()

    @property
    def attachment(self) -> Attachment:
        return Attachment(f"each call of {self.name}", self.share)

    def _add(self, records: Iterable[bytes]) -> None:
        names = self._run.part_names
        for record in records:
            call = parse_call(record)
            took = call.duration_ns or 0
            self._count += 1
            self._ns += took
            self._latest.append(record)
            at = (call.tgid, call.stack[0]) if call.stack else (0, 0)
            if at in self._callers or len(self._callers) < _MAX_CALLERS:
                self._callers[at] += 1
            else:
                self._callers[0, 0] += 1
            if names:
                self._parts.update(
                    call_parts(call.why, names).parts if call.why is not None else {UNKNOWN: took}
                )

    def take(self) -> FunctionCalls:
        """Return a summary of the function's calls so far."""
        with self._lock:
            self._check()
            latest, callers = list(self._latest), Counter(self._callers)
            parts, count, took = largest_first(dict(self._parts)), self._count, self._ns
        calls = []
        for record in reversed(latest):
            with suppress(GotraceError):
                decoded = self._decoders[function_of(record)].calls(record)
                calls += [call for _, call in islice(decoded, 1)]
        found: Counter[StackFrame | None] = Counter()
        for (tgid, pc), number in callers.items():
            found[self._caller(tgid, pc)] += number
        return FunctionCalls(
            *(self.name, (time.monotonic_ns() - self._began) / _NS, count, took),
            tuple(Caller(frame, number) for frame, number in found.most_common()),
            {name: ns for name, ns in parts.items() if ns},
            tuple(calls),
            self._reader.missing().calls,
            self._epoch,
        )

    def _caller(self, tgid: int, pc: int) -> StackFrame | None:
        frames = self._symbols.frames_before(tgid, pc) if pc and self._symbols else []
        return StackFrame(*frames[0]) if frames else None
