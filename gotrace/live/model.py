# SPDX-License-Identifier: Apache-2.0
"""The parts of a snapshot of a live program: frozen, and of nothing that is still open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from gotrace.goroutines.details import WaitDetails
from gotrace.goroutines.model import DumpedGoroutine, Frame, State
from gotrace.histogram import Histogram
from gotrace.live.heap import HeapFigures
from gotrace.records import dataclass

if TYPE_CHECKING:  # loaded where something is attached
    from gotrace.calls import Call, StackFrame
    from gotrace.requests.critical import PathPart
    from gotrace.requests.model import Request
    from gotrace.results.rows import Row
    from gotrace.session.decode import DecodedCall


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that is attached: its name in words, and its part of one CPU."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class Head:
    """The program as a whole.

    ``cpu`` is how many CPUs it used since the last snapshot (since its start in the first),
    ``quota`` how many its control groups permit (None without a limit). ``states`` has its own
    goroutines by state, ``goroutines`` their number, ``system`` that of the runtime's own; both
    numbers are None until goroutines are read. ``heap`` is None where its figures are not known,
    and ``heap_problem`` says why. ``cycles_s``, ``gc_share`` and ``pause_share`` are since the last
    snapshot: collections a second, the part of GOMAXPROCS processors that they took, and of the
    time in which the program was stopped; None in the first.
    """

    pid: int
    program: str
    go_version: str | None
    uptime_s: float
    cpu: float
    quota: float | None
    threads: int
    rss: int
    goroutines: int | None
    system: int | None
    states: Mapping[str, int]
    heap: HeapFigures | None
    heap_problem: str | None
    cycles_s: float | None
    gc_share: float | None
    pause_share: float | None
    attached: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Goroutines that are alike, as ``gostacks`` puts them together.

    ``number`` is the group's as long as it is known. ``growth`` is how many more there are than in
    the first snapshot. ``leaks``: they gather there and do not go on. ``waiting_ns`` is how long
    they have waited at least, the shortest and the longest; None where that is not known.
    ``history`` are the counts of the latest snapshots, the oldest first.
    """

    number: int
    state: State
    reason: str
    frames: tuple[Frame, ...]
    created_by: Frame | None
    count: int
    growth: int
    leaks: bool
    waiting_ns: tuple[int, int] | None
    history: tuple[int, ...]

    @property
    def status(self) -> str:
        """Return the reason of the wait, else the state."""
        return self.reason or self.state.value


class WaitUse(IntEnum):
    """Whose waits they are, in the order in which a user should see them."""

    #: Of a request, or for a lock, which somebody has.
    REQUEST = 0
    #: Of other work: within functions of the program's own.
    WORK = 1
    #: For work: of a goroutine that waits in the function that it began with, or in a library's.
    IDLE = 2


@dataclass(frozen=True, slots=True)
class WaitGroupRow:
    """Waits on one stack for one reason: ``count`` that took ``ns``, ended in ``seconds``.

    ``waker`` is who ended most of that time, None if that is not known. ``history`` is the time by
    snapshot. Of rows that had none since the last snapshot, ``count`` is 0.
    """

    seconds: float
    reason: str
    frames: tuple[Frame, ...]
    waker: str | None
    count: int
    ns: int
    history: tuple[int, ...]
    use: WaitUse

    @property
    def rank(self) -> tuple[object, ...]:
        """Return its place among others: of those with waits, whose they are, then their time."""
        return not self.count, self.use, -self.ns, -sum(self.history)


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function's calls that returned in ``seconds``, since the last snapshot.

    Those of a recipe are by its key: ``name`` has the values then, else that of the ``function``.
    ``errors`` is how many returned an error, None where the last result is not one, or cannot be
    read. ``history`` is the number of calls by snapshot.
    """

    seconds: float
    name: str
    function: str
    times: Histogram
    errors: int | None
    history: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """A request that is kept since it was among the slowest.

    ``ended`` is in seconds since 1970, ``number`` that of the request among all since they are
    traced. It has ``calls`` of so many ``goroutines``. ``is_cut``: they were too many to be kept,
    and ``traced`` has the root's alone. ``mostly`` is the largest part of its critical path, or
    None if it has no critical path.
    """

    duration_ns: int
    ended: float
    number: int
    calls: int
    goroutines: int
    traced: Request[DecodedCall]
    is_cut: bool
    epoch_ns: int
    mostly: PathPart | None

    @property
    def request(self) -> Request[Call]:
        """Return the request as ``go.requests()`` yields it."""
        return self.traced.mapped(lambda call: call.as_call(self.epoch_ns))


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The requests of one root that ended in the last ``seconds``, a minute at most.

    ``times`` are their durations. ``slowest`` are the slowest of each of these seconds, the slowest
    first; ``new`` are those of them that have become whole since the last snapshot. ``history`` is
    how many did, by snapshot.
    """

    seconds: float
    name: str
    times: Histogram
    slowest: tuple[SlowRequest, ...]
    new: tuple[SlowRequest, ...]
    history: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a function was called so many times; ``frame`` is None where that is not known."""

    frame: StackFrame | None
    calls: int


@dataclass(frozen=True, slots=True)
class FunctionCalls:
    """The calls of one function that returned in ``seconds``, since they are looked at.

    ``callers`` are those with most calls first. ``parts`` is what their time, ``ns``, went into,
    largest first; it is empty if that is not known of the Go release. ``traced`` are the latest
    calls, the last one first. ``lost`` calls are missing.
    """

    name: str
    seconds: float
    calls: int
    ns: int
    callers: tuple[Caller, ...]
    parts: Mapping[str, int]
    traced: tuple[DecodedCall, ...]
    lost: int
    epoch_ns: int

    @property
    def latest(self) -> list[Call]:
        """Return the latest calls as ``go.trace()`` yields them, the last one first."""
        return [call.as_call(self.epoch_ns) for call in self.traced]


@dataclass(frozen=True, slots=True)
class DeclaredRows:
    """Rows of a declared ``kind`` (``gotrace.results.kinds``), of the last ``seconds``."""

    kind: str
    seconds: float
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class StackView:
    """One goroutine with the frames that Go's own dumps show."""

    goroutine: DumpedGoroutine
    frames: tuple[Frame, ...]
    created_by: Frame | None
    waiting_ns: int | None
    waits: WaitDetails


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a program at one time.

    ``ts`` is in seconds since 1970, ``seconds`` the time since the last snapshot (0 in the first).
    ``groups`` are those of the program's own goroutines, the largest first. ``waits``,
    ``functions``, ``requests`` and ``calls``, those of one function, are None while they are not
    attached. ``requests_lost`` is how many requests are missing, since records were lost.
    """

    ts: float
    seconds: float
    head: Head
    groups: Sequence[GroupRow]
    waits: Sequence[WaitGroupRow] | None = None
    functions: Sequence[FunctionRow] | None = None
    requests: Sequence[RequestRow] | None = None
    requests_lost: int = 0
    calls: FunctionCalls | None = None
    sampled: DeclaredRows | None = None
