# SPDX-License-Identifier: Apache-2.0
"""Whose work a goroutine does, at any time: from edges in the order of time.

A goroutine works for a request

- while a call of the root is open in it;
- from the ``go`` statement on that has started it for the request, or from when a timer has: until
  its first wait for work, at any depth, that somebody else ends. Receives, selects and sync.Cond
  are waits for work; locks, joins, sleeps and the network are not;
- if it works for nobody, from the receipt of an item that was sent for the request to its next
  receipt, or wait for work, in the same frame or one outside of that: what it takes further inside
  (a connection from a pool, an answer) is a part of the work;
- as a coroutine, while one that works for the request has it run.

Else it works for nobody: no edge is a guess. So an item counts only if the channel is seen to be a
queue: one of its receivers has received twice, and has put nothing back between. Channels to which
items come back that were taken from them are pools, semaphores and free lists: nothing of these is
handed over. Nor is anything by what may be a signal or a batch of several requests: NOTHING.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gotrace.requests.edges import NOTHING, Edge, EdgeKind

__all__ = [
    "LONG_CALL_NS",
    "SMALL",
    "Belonging",
    "Contexts",
    "Frame",
    "Limits",
    "Link",
    "Span",
    "Task",
    "Work",
]

#: Of which process, and its number.
Task = tuple[int, int]

#: After which an outermost call is not a request any more, of those that all begin one if they are
#: made for nobody; shared with bpf/edges.h.
LONG_CALL_NS = 30_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Items, channels and timers that are known at once, and changes of a goroutine's work.

    ``depth`` is how often work is handed on: a timer's function may begin the next one for ever.
    """

    items: int = 1 << 17
    channels: int = 1 << 15
    timers: int = 1 << 15
    history: int = 1 << 10
    depth: int = 1 << 16


#: For what goes on for long, where each call is looked up when it begins.
SMALL = Limits(1 << 14, 1 << 13, 1 << 12, 0, 64)

#: Spans of a request that are known by themselves.
_MAX_SPANS = 1 << 12
#: Different contexts of roots to be seen first, and of each kind that are known at once.
_MIN_CONTEXTS = 8
#: The same of a function once two of its calls were given one.
_MANY_CONTEXTS = 256
_MAX_CONTEXTS = 1 << 16
#: Spans of a channel's items that are known, and as how many other returns one of a thing counts
#: that was taken for other work.
_MAX_CHANNEL_SPANS = 64
_LENT = 4
#: Spans of calls whose contexts say whose they are, of a goroutine.
_MAX_GIVEN = 64
#: How far back it is looked for the timer whose function sets it again.
_MAX_TIMERS = 8
#: Channels of which is known what a goroutine has taken from them.
_MAX_TAKEN = 64


class Link(Enum):
    """What makes a call a node of a request."""

    CALL = "call"
    CONTEXT = "context"
    ITEM = "item"
    GO = "go"


class Work:
    """A request as far as work is concerned; ``root`` is the time of its root's call.

    ``is_open``: its root has not ended. ``working``: spans that have not ended. ``sent``: items
    that nobody has taken yet.
    """

    def __init__(self, goroutine: Task, at: int) -> None:
        self.is_open = True
        #: Whether it has gone on for so long that what is made for it is made for nobody.
        self.is_long = False
        #: Whether it is one only since it is not known whose its root is, which may be another's.
        self.is_doubted = False
        #: The number of its root's function, and 1, if that matters.
        self.function = 0
        #: What who puts its calls together keeps of it.
        self.memory: object = None
        self.working = 0
        self.sent = 0
        #: The first of its spans.
        self.spans: list[Span] = []
        self.root = Span(self, goroutine, at, Link.CALL, None)

    @property
    def is_busy(self) -> bool:
        """Return whether anybody works for it, or has work of it before them."""
        return bool(self.working or self.sent)


class Span:
    """A time in which a goroutine works for one request; times in ns.

    It is handed the work by ``above``, at its beginning, through ``link``; None above the root's,
    and of one whose work a ``context`` shows: of which process, and its address. If it
    ``is_doubted``, something that the goroutine has done says that it worked for another request.
    ``code`` is that of the function of the timer that has begun it, 0 if none has.
    """

    __slots__ = (
        *("above", "begin", "code", "context", "depth", "end", "goroutine", "is_doubted", "link"),
        "work",
    )

    def __init__(
        self,
        work: Work,
        goroutine: Task,
        begin: int,
        link: Link,
        above: Span | None,
        context: tuple[int, int] | None = None,
    ) -> None:
        self.work = work
        self.goroutine = goroutine
        self.begin = begin
        self.end: int | None = None
        self.link = link
        self.above = above
        self.context = context
        self.depth: int = above.depth + 1 if above is not None else 0
        self.is_doubted = False
        self.code = 0
        work.working += 1
        if len(work.spans) < _MAX_SPANS:
            work.spans.append(self)


class _Mode(Enum):
    """How long a goroutine's work lasts."""

    STARTED = "until somebody else ends a wait for work"
    ITEM = "until the next item"
    COROUTINE = "until it is resumed"


@dataclass(slots=True)
class _Root:
    """An open call of the root: the distance of its frame from the beginning of the stack."""

    depth: int
    span: Span


@dataclass(slots=True)
class Frame:
    """An open call that has been looked up when it began, and what it is made for."""

    depth: int
    start: int
    span: Span


@dataclass(slots=True)
class _Taken:
    """Items that a goroutine has had from a channel: how many since the collector had run so often.

    ``word`` is the first one of the last item. If ``count`` is -1, it has sent a signal there, and
    has had nothing since.
    """

    count: int = 0
    collected: int = 0
    word: int = 0


@dataclass(slots=True)
class _Goroutine:
    """What is known of a goroutine; ``roots`` go before ``work``.

    ``channel`` and ``depth`` are where it has received its latest item, at ``received``; ``place``
    is the depth and the statement of the latest one of a request. It ``is_idle`` if nothing was
    seen since that it has done: it may still hold that item. ``held`` is the channel, if any, from
    which it has received another one then, or in another statement. ``queue`` is the channel from
    which it has had its work last. It ``is_unsure`` if what it has received last was sent for a
    request, or what it did has been taken away from one, and it works for nobody. ``is_answered``:
    the next end of a wait is that of one which an item has ended, or that has sent one. ``taken``
    is what it has had from a channel without sending to that, by channel. ``left`` is what it was
    started for, if it works for nobody since; it ``has_rested`` if only a sleep or the network says
    so.

    ``starter`` is the request whose ``go`` statement or timer has begun it. It ``is_new`` until it
    has done anything: what it is given then may be one of several things that it works on.
    ``given`` are the spans of its latest calls whose contexts have said that they are of one
    request, and ``has_waited`` is whether it has waited since. ``kept`` is a request that it had a
    context of, or was started for, while it worked for others: it may keep what is that request's.
    ``sender`` is the one that its latest item was sent for, if that has not made it work.
    """

    roots: list[_Root] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    most: int = 0
    is_unsure: bool = False
    work: Span | None = None
    left: Span | None = None
    has_rested: bool = False
    starter: Work | None = None
    is_new: bool = False
    given: deque[Span] = field(default_factory=lambda: deque(maxlen=_MAX_GIVEN))
    has_waited: bool = False
    kept: Work | None = None
    sender: Work | None = None
    mode: _Mode | None = None
    channel: int = 0
    depth: int = 0
    place: tuple[int, int] = (0, 0)
    received: int = 0
    is_idle: bool = False
    held: int = 0
    queue: int = 0
    is_answered: bool = False
    taken: dict[int, _Taken] = field(default_factory=dict)
    #: When what it works for has changed, and to what; from ``known`` on.
    times: list[int] = field(default_factory=list)
    spans: list[Span | None] = field(default_factory=list)
    known: int = 0

    @property
    def current(self) -> Span | None:
        return self.roots[-1].span if self.roots else self.work

    @property
    def is_blank(self) -> bool:
        """Return whether no more is known of it than of any other."""
        has_calls = self.frames or self.roots or self.times
        has_work = self.work or self.left or self.mode or self.is_answered
        has_had = self.taken or self.received or self.starter or self.given
        return not (has_calls or has_work or has_had)

    def has_taken(self, channel: int, taken: _Taken) -> None:
        if len(self.taken) >= _MAX_TAKEN:
            self.taken.clear()
        self.taken[channel] = taken

    def changed(self, at: int) -> None:
        if not self.most:
            return
        self.times.append(at)
        self.spans.append(self.current)
        if len(self.times) > self.most:
            half = self.most // 2
            self.known = self.times[half]
            del self.times[:half], self.spans[:half]


@dataclass(slots=True)
class _Item:
    """What has been sent: for whom, by whom, and its first word.

    ``doubtful`` is what is to be doubted if that answers another request. It ``is_lent`` if it is
    given back to where it was taken.
    """

    span: Span | None
    doubtful: Span | None
    sender: Task
    word: int
    is_lent: bool


@dataclass(slots=True)
class _Channel:
    """What is seen of a channel: of the items ``sent``, so many ``returned`` that came from it.

    ``queue`` is how often the collector had run when the channel was last seen to be a queue.
    ``spans`` are the latest that it has begun.
    """

    queue: int = -1
    sent: int = 0
    returned: int = 0
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=_MAX_CHANNEL_SPANS))

    @property
    def is_pool(self) -> bool:
        return self.returned > 0 and 2 * self.returned >= self.sent


@dataclass(slots=True)
class _Lent:
    """Something that was taken from a channel, when the collector had run so often.

    It was sent for the request that began then, 0 for none. It ``is_used`` if it was taken for work
    that the channel has not brought.
    """

    collected: int
    began: int
    is_used: bool


@dataclass(slots=True)
class _Timer:
    """A closure that is to be called: for whom, and how often the collector had run before.

    ``code`` is that of the closure. It ``is_after`` the end of a context, whoever ends that.
    """

    span: Span | None
    collected: int
    code: int
    is_after: bool


#: Of which process, and its address.
_Context = tuple[int, int]


@dataclass(slots=True)
class _Owner:
    """The request that a context was given to; None if there may be several.

    ``since``: how often the collector had run when it was.
    """

    work: Work | None
    since: int
    function: int = 0


class Contexts:
    """Which request a context is of: by the addresses of those that roots' calls were given.

    An address that two calls of the root were given, without the collector having run between, is
    of one context that they share: it says nothing, ever. So does one that a call of another
    goroutine was given before the root's. That may be known only later: ``is_shared`` is to be
    asked once more before anything is said. If the collector has run while the first call is open,
    the context may have been freed: the address says nothing until it runs again. That of a request
    that has ended is known until it runs. Roots may be given the same few contexts again and again,
    which other calls have as well: so nothing is known before ``_MIN_CONTEXTS`` different ones have
    been seen.

    If calls of many functions begin requests, they are distinguished by ``function``: those of a
    worker may all be given the program's own context. If two calls of one function were given the
    same, those of that function say nothing before ``_MANY_CONTEXTS`` different ones were seen.

    No more than ``_MAX_CONTEXTS`` are kept of each kind. If more are shared, contexts say nothing
    any more. If other calls were given more, those that requests are given then say nothing until
    the collector has run. If requests were, those of ended ones are forgotten.
    """

    def __init__(self) -> None:
        self._owners: dict[_Context, _Owner] = {}
        self._shared: set[_Context] = set()
        #: The goroutine whose call was given a context that no root was given since.
        self._earlier: dict[_Context, Task] = {}
        #: By function.
        self._seen: dict[int, set[_Context]] = {}
        self._needed: dict[int, int] = {}
        #: How often the collector has run.
        self.collected = 0

    def begin(self, context: _Context, work: Work, function: int = 0) -> None:
        """Note that a request begins with a context, by a call of a function."""
        seen = self._seen.setdefault(function, set())
        if not self._is_known(function):
            seen.add(context)
        owner = self._owners.get(context)
        if owner is None:
            is_full = len(self._earlier) >= _MAX_CONTEXTS
            self._owners[context] = _Owner(None if is_full else work, self.collected, function)
            if len(self._owners) % _MAX_CONTEXTS == 0:
                self._forget_ended()
            if self._earlier.pop(context, work.root.goroutine) != work.root.goroutine:
                self._share(context)
        elif owner.since == self.collected:
            self._share(context)
            for one in {function, owner.function} - {0}:
                self._seen[one].clear()
                self._needed[one] = _MANY_CONTEXTS
        else:
            self._owners[context] = _Owner(None, self.collected)

    def _share(self, context: _Context) -> None:
        if len(self._shared) < _MAX_CONTEXTS:
            self._shared.add(context)

    def is_shared(self, context: _Context) -> bool:
        """Return whether a context is known to be of several requests, or of others as well."""
        return context in self._shared or len(self._shared) >= _MAX_CONTEXTS

    def is_wrong(self, span: Span) -> bool:
        """Return whether a span's context has turned out to say nothing."""
        return span.context is not None and (
            self.is_shared(span.context) or not self._is_known(span.work.function)
        )

    def _is_known(self, function: int) -> bool:
        """Return whether the contexts that calls of a function were given are each of one call."""
        needed = self._needed.get(function, _MIN_CONTEXTS)
        return len(self._seen.get(function, ())) >= needed

    def freed(self, tgid: int) -> None:
        """Note that the collector of a process has run."""
        self.collected += 1
        self._earlier.clear()
        self._forget_ended(tgid)

    def _forget_ended(self, tgid: int | None = None) -> None:
        """Forget contexts of requests that have ended, of one process or of all."""
        ended = [
            context
            for context, owner in self._owners.items()
            if tgid in (None, context[0]) and (owner.work is None or not owner.work.is_open)
        ]
        for context in ended:
            del self._owners[context]

    def gone(self, tgid: int) -> None:
        """Forget the contexts of a process that has ended, but for what is shared."""
        for context in [context for context in self._owners if context[0] == tgid]:
            del self._owners[context]

    def find(
        self, task: Task, addresses: Sequence[int], moment: int
    ) -> tuple[Work, _Context] | None:
        """Return the request whose context a goroutine's call since a moment was given.

        With it is the context. None if that is not known.
        """
        found = []
        for context in ((task[0], address) for address in addresses):
            owner = self._owners.get(context)
            if owner is None:
                if len(self._earlier) < _MAX_CONTEXTS:
                    self._earlier[context] = task
            elif (
                owner.work is None or self.is_shared(context) or not self._is_known(owner.function)
            ):
                continue
            elif owner.work.root.begin <= moment:
                found.append((owner.work, context))
            elif owner.work.root.goroutine != task:
                self._share(context)
        found = [one for one in found if one[0].is_open] or found
        return found[0] if len(found) == 1 else None

    def forget(self) -> None:
        """Forget all but what is shared."""
        self._owners.clear()
        self._earlier.clear()


class Belonging:
    """What each goroutine works for."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        #: In the order of their beginnings; some have ended.
        self._open: deque[Work] = deque()
        self._goroutines: dict[Task, _Goroutine] = {}
        self._items: OrderedDict[tuple[int, int], _Item] = OrderedDict()
        self._channels: OrderedDict[tuple[int, int], _Channel] = OrderedDict()
        #: By the timer's closure: what is known of it.
        self._timers: OrderedDict[tuple[int, int], _Timer] = OrderedDict()
        #: What was taken from channels, by process, channel and first word.
        self._lent: OrderedDict[tuple[int, int, int], _Lent] = OrderedDict()
        self._kinds = {
            EdgeKind.GO: self._go,
            EdgeKind.TIMER: self._timer,
            EdgeKind.WRITE: self._write,
            EdgeKind.READ: self._read,
            EdgeKind.HAND: self._hand,
            EdgeKind.TAKE: self._take,
            EdgeKind.SENT: self._sent,
            EdgeKind.WAKE: self._wake,
            EdgeKind.SWITCH: self._switch,
            EdgeKind.DROP: self._drop,
            EdgeKind.DEAD: self._dead,
            EdgeKind.FREED: self._freed,
            EdgeKind.REST: self._rest,
            EdgeKind.MISS: self._miss,
            EdgeKind.AFTER: self._timer,
        }
        self.contexts = Contexts()

    def add(self, edge: Edge) -> None:
        """Take an edge, but for beginnings and states: the next one in the order of time."""
        self._kinds[edge.kind](edge)

    def begin(self, edge: Edge) -> Work | None:
        """Return the request that a call of the root begins, None within such a call.

        Calls of the root that should have ended before have ended unseen.
        """
        task = (edge.tgid, edge.goid)
        goroutine = self._of(task)
        while goroutine.roots and goroutine.roots[-1].depth >= edge.first:
            self._end_root(goroutine, edge.at)
        if goroutine.roots or not edge.goid:
            return None
        work = Work(task, edge.other)
        goroutine.roots.append(_Root(edge.first, work.root))
        goroutine.changed(edge.other)
        if edge.second:
            self.contexts.begin((edge.tgid, edge.second), work)
        return work

    def end(self, task: Task, start: int, at: int) -> Work | None:
        """Return the request whose root's call began at ``start`` and ends, None if it is none."""
        goroutine = self._goroutines.get(task)
        if goroutine is None or not goroutine.roots:
            return None
        root = goroutine.roots[-1]
        if root.span.begin != start:
            return None
        self._end_root(goroutine, at)
        return root.span.work

    def enter(
        self, edge: Edge, task: Task, function: int, contexts: Sequence[int], is_apart: bool
    ) -> Frame:
        """Return what an outermost call is made for that a goroutine enters.

        ``function`` is not 0, ``contexts`` are those that it was given. It begins a request if it
        is made for nobody, or for one that a call of the same function has begun; in any case if
        it ``is_apart``. The edge is as for ``begin``.
        """
        goroutine = self._of(task)
        frames, depth, start = goroutine.frames, edge.first, edge.other
        while frames and frames[-1].depth >= depth:
            frames.pop()
        while goroutine.roots and goroutine.roots[-1].depth >= depth:
            self._end_root(goroutine, edge.at)
        span = goroutine.current
        if span is not None and not goroutine.roots and span.link is not Link.CALL:
            # As where a user names the root: each of its calls begins a request.
            is_another = is_apart or span.work.function == function
            span = None if is_another else span
        if span is not None and span.work.is_long:
            span = None
        given = None
        if contexts and not is_apart and not goroutine.roots:
            given = self.contexts.find(task, contexts, start)
        if given is not None and (given[0].is_long or given[0].root.goroutine == task):
            given = None
        if given is not None and span is None and given[0].function == function:
            given = None  # two of one function: they share it
        is_doubted = span is None and goroutine.is_unsure
        is_trusted = self.trusts(task, span, given)
        if is_trusted and given is not None:
            span = Span(given[0], task, start, Link.CONTEXT, None, given[1])
            goroutine.roots.append(_Root(depth, span))
            self.gives(task, span)
        elif is_trusted is False:
            span, is_doubted = None, True
        if span is None:
            work = Work(task, start)
            work.function, work.is_doubted = function, is_doubted
            span = work.root
            goroutine.roots.append(_Root(depth, span))
            self._open.append(work)
            if contexts:
                self.contexts.begin((edge.tgid, contexts[0]), work, function)
        frame = Frame(depth, start, span)
        frames.append(frame)
        return frame

    def leave(self, task: Task, start: int, at: int) -> Frame | None:
        """Return the frame of a call that began at ``start``, or of the one around it.

        That is looked up no more if it is the call's own. None if no call that is open is known.
        """
        goroutine = self._goroutines.get(task)
        frames = goroutine.frames if goroutine is not None else []
        while frames and frames[-1].start > start:
            frames.pop()
        if goroutine is None or not frames:
            return None
        frame = frames[-1]
        if frame.start == start:
            frames.pop()
            while goroutine.roots and goroutine.roots[-1].depth >= frame.depth:
                self._end_root(goroutine, at)
            if goroutine.is_blank:
                del self._goroutines[task]
        return frame

    def long(self, at: int) -> Iterator[Work]:
        """Yield requests whose roots have gone on for too long by now, and are none any more."""
        works = self._open
        while works and (not works[0].is_open or works[0].root.begin < at - LONG_CALL_NS):
            work = works.popleft()
            if not work.is_open:
                continue
            work.is_long = True
            goroutine = self._goroutines.get(work.root.goroutine)
            if goroutine is not None:
                goroutine.roots = [one for one in goroutine.roots if one.span.work is not work]
            work.is_open = False
            self._close(work.root, at)
            yield work

    def gone(self, tgid: int, at: int) -> None:
        """Forget the goroutines of a process that has ended."""
        for task in [task for task in self._goroutines if task[0] == tgid]:
            self._finish(self._goroutines.pop(task), at)
        self.contexts.gone(tgid)

    @property
    def processes(self) -> set[int]:
        """Return the processes whose goroutines are known."""
        return {tgid for tgid, _ in self._goroutines}

    def span_at(self, task: Task, moment: int) -> Span | None:
        """Return the span that a goroutine was in at a moment, None if it worked for nobody."""
        goroutine = self._goroutines.get(task)
        if goroutine is None or moment < goroutine.known:
            return None
        row = bisect_right(goroutine.times, moment) - 1
        return goroutine.spans[row] if row >= 0 else None

    def acts(self, task: Task, begun: int) -> None:
        """Note that a goroutine has made a call since a moment."""
        goroutine = self._goroutines.get(task)
        if goroutine is not None and begun >= goroutine.received:
            goroutine.is_idle = goroutine.is_new = False

    def left(self, task: Task) -> Work | None:
        """Return what a goroutine may still work for, which has only rested since its end."""
        goroutine = self._goroutines.get(task)
        has_rested = goroutine is not None and goroutine.has_rested
        return goroutine.left.work if goroutine and has_rested and goroutine.left else None

    def trusts(
        self, task: Task, span: Span | None, given: tuple[Work, _Context] | None
    ) -> bool | None:
        """Return whether a call's context says whose it is; None if it says nothing more.

        That is so if there is no request that it was ``given`` a context of, or if the goroutine
        worked for that in a ``span`` anyway. It is not to be trusted if it contradicts that, or if
        the goroutine keeps what is another request's.
        """
        if given is None or (
            span is not None and (span.work is given[0] or span.link is Link.CALL)
        ):
            return None
        work, goroutine = given[0], self._goroutines.get(task)
        if span is not None:
            # One of the two edges is wrong: a context may be of several requests, one by one.
            if goroutine is not None:
                self._keeps(goroutine, work)
            return False
        if goroutine is None:
            return True
        if self.left(task) not in (None, work) or goroutine.kept is work:
            return False
        before = goroutine.given
        is_same = before and before[0].work is work and goroutine.starter is work
        if is_same and goroutine.has_waited and not work.is_open:
            self._keeps(goroutine, work)
            return False
        return goroutine.sender in (None, work) or goroutine.held != 0

    def gives(self, task: Task, span: Span) -> None:
        """Note that a goroutine's call is in a span since its context says so."""
        goroutine = self._of(task)
        if goroutine.given and goroutine.given[0].work is not span.work:
            goroutine.given.clear()
        goroutine.given.append(span)
        goroutine.has_waited = False

    @staticmethod
    def _keeps(goroutine: _Goroutine, work: Work) -> None:
        """Note that a goroutine has contexts of a request and works for others as well."""
        goroutine.kept = work
        for span in goroutine.given:
            span.is_doubted = span.is_doubted or span.work is work

    def forget(self, at: int) -> None:
        """Forget all: edges are missing, and what follows from the others may be wrong."""
        goroutines = list(self._goroutines.values())
        self._goroutines.clear()
        self._items.clear()
        self._channels.clear()
        self._timers.clear()
        self._lent.clear()
        self.contexts.forget()
        for goroutine in goroutines:
            self._finish(goroutine, at)

    def _of(self, task: Task) -> _Goroutine:
        found = self._goroutines.get(task)
        if found is None:
            found = self._goroutines[task] = _Goroutine(most=self._limits.history)
        return found

    def _current(self, task: Task) -> Span | None:
        goroutine = self._goroutines.get(task)
        span = goroutine.current if goroutine is not None and task[1] else None
        return span if span is None or span.depth < self._limits.depth else None

    def _end_root(self, goroutine: _Goroutine, at: int) -> None:
        span = goroutine.roots.pop().span
        if span is span.work.root:
            span.work.is_open = False
        goroutine.changed(at)
        self._close(span, at)

    def _close(self, span: Span, at: int) -> None:
        span.end = at
        span.work.working -= 1

    def _set(
        self, task: Task, goroutine: _Goroutine, at: int, mode: _Mode | None, span: Span | None
    ) -> None:
        before, goroutine.work, goroutine.mode = goroutine.work, span, mode
        goroutine.is_unsure = span is None and before is not None and before.is_doubted
        goroutine.has_rested = False
        goroutine.left = before if span is None and before and before.link is Link.GO else None
        goroutine.changed(at)
        if before is not None:
            self._close(before, at)

    def _doubtful(self, task: Task) -> Span | None:
        """Return what a goroutine works for, or what it was started for if that is nobody."""
        goroutine = self._goroutines.get(task) if task[1] else None
        return (goroutine.current or goroutine.left) if goroutine is not None else None

    def _answered(self, work: Work, sender: Task, span: Span | None, at: int) -> None:
        """Note that one who works for a request has been answered by a goroutine in a span.

        If that is of another request, it has worked for this one, nobody knows since when. The
        goroutine of a root may answer others.
        """
        goroutine = self._goroutines.get(sender)
        given = goroutine.given if goroutine is not None else None
        if goroutine is not None and given and given[0].work is not work:
            current = goroutine.current
            if current is None or current.link is not Link.CALL:
                self._keeps(goroutine, given[0].work)
        if span is None or span.above is None or span.work is work:
            return
        span.is_doubted = True
        if goroutine is None:
            return
        goroutine.kept = span.work
        if goroutine.work is span:
            mode = _Mode.ITEM if goroutine.mode is _Mode.ITEM else None
            self._set(sender, goroutine, at, mode, None)

    def _go(self, edge: Edge) -> None:
        self.acts((edge.tgid, edge.goid), edge.at)
        key = (edge.tgid, edge.first)
        made, above = self._timers.get(key), self._current((edge.tgid, edge.goid))
        code = 0
        # A timer that is due runs as well where another goroutine stops or resets it. Once the
        # collector has run, that may be another closure, at the address of a stopped timer's.
        is_new = made is not None and made.collected == self.contexts.collected
        if made is not None and made.is_after and made.code == edge.second:
            # Whoever ends a context that several have does not begin what the others want then.
            is_own = above is not None and made.span is not None and above.work is made.span.work
            above = made.span if is_own else None
        elif made is not None and not made.is_after and (not edge.goid or is_new):
            above, code = made.span, made.code
            del self._timers[key]
        if above is not None:
            self._started((edge.tgid, edge.other), edge.at, above, code)

    def _started(self, task: Task, at: int, above: Span, code: int) -> None:
        span = Span(above.work, task, at, Link.GO, above)
        span.code = code
        goroutine = self._of(task)
        goroutine.starter, goroutine.is_new = above.work, True
        goroutine.received = at
        self._set(task, goroutine, at, _Mode.STARTED, span)

    def _timer(self, edge: Edge) -> None:
        """A goroutine makes a timer, or resets one, or wants something done after a context."""
        # One that calls nothing is no work.
        if edge.other:
            self.acts((edge.tgid, edge.goid), edge.at)
        key = (edge.tgid, edge.first)
        span = self._current((edge.tgid, edge.goid))
        is_after = edge.kind is EdgeKind.AFTER
        above = span
        for _ in range(_MAX_TIMERS):
            if above is None or not edge.other:
                break
            if above.code == edge.other:
                # It begins itself again and again, and nobody knows for whom.
                span = None
                break
            above = above.above
        before = self._timers.get(key)
        if is_after and before is not None and before.is_after:
            others = before.span.work if before.span is not None else None
            span = span if span is not None and span.work is others else None
        self._timers[key] = _Timer(span, self.contexts.collected, edge.other, is_after)
        self._timers.move_to_end(key)
        if len(self._timers) > self._limits.timers:
            self._timers.popitem(last=False)

    def _channel(self, tgid: int, address: int) -> _Channel:
        key = (tgid, address)
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = _Channel()
            if len(self._channels) > self._limits.channels:
                self._channels.popitem(last=False)
        else:
            self._channels.move_to_end(key)
        return found

    def _sends(self, task: Task, edge: Edge, word: int) -> bool:
        """Note that a goroutine sends to a channel; return whether it gives back what was lent."""
        channel = self._channel(edge.tgid, edge.second)
        channel.sent += 1
        self.acts(task, edge.at)
        goroutine = self._goroutines.get(task)
        taken = goroutine.taken.pop(edge.second, None) if goroutine is not None else None
        is_back = taken is not None and taken.word == word
        channel.returned += is_back
        if word == NOTHING and taken is None and goroutine is not None:
            goroutine.has_taken(edge.second, _Taken(-1, self.contexts.collected, NOTHING))
        if word in (0, NOTHING):
            return False
        if goroutine is not None and goroutine.current is not None:
            for address, other in goroutine.taken.items():
                is_work = goroutine.mode is _Mode.ITEM and goroutine.channel == address
                key = (edge.tgid, address, word)
                lent = self._lent.get(key) if other.word == word and not is_work else None
                if lent is not None:
                    lent.is_used = True
        lent = self._lent.pop((edge.tgid, edge.second, word), None)
        if lent is None or not lent.is_used or lent.collected != self.contexts.collected:
            return False
        span = self._current(task)
        is_worker = goroutine is not None and goroutine.mode is _Mode.ITEM
        if span is not None and span.work.root.begin == lent.began and not is_worker:
            return False  # sent again by those who have sent it
        channel.returned += _LENT
        if channel.is_pool:
            for begun in channel.spans:
                begun.is_doubted = True
            channel.spans.clear()
        return True

    def _write(self, edge: Edge) -> None:
        task = (edge.tgid, edge.goid)
        is_lent = self._sends(task, edge, edge.other)
        key = (edge.tgid, edge.first)
        self._lost(self._items.pop(key, None))
        span = self._current(task)
        self._items[key] = _Item(span, self._doubtful(task), task, edge.other, is_lent)
        if span is not None and edge.other != NOTHING:
            span.work.sent += 1
        if len(self._items) > self._limits.items:
            self._lost(self._items.popitem(last=False)[1])

    def _releases(self, goroutine: _Goroutine, channel: _Channel, address: int) -> bool:
        """Return whether a goroutine that receives only has a semaphore's signal back."""
        taken = goroutine.taken.get(address)
        if taken is None or taken.count >= 0:
            return False
        del goroutine.taken[address]
        channel.returned += 1
        return True

    def _lost(self, item: _Item | None) -> None:
        """Note that nobody takes an item any more, or that somebody has begun to work on it."""
        if item is not None and item.span is not None and item.word != NOTHING:
            item.span.work.sent -= 1

    def _read(self, edge: Edge) -> None:
        item = self._items.pop((edge.tgid, edge.first), None)
        self._receives((edge.tgid, edge.goid), edge, item)
        self._lost(item)

    def _hand(self, edge: Edge) -> None:
        self._of((edge.tgid, edge.other)).is_answered = True
        self._passes(edge, (edge.tgid, edge.goid), (edge.tgid, edge.other))

    def _take(self, edge: Edge) -> None:
        self._passes(edge, (edge.tgid, edge.other), (edge.tgid, edge.goid))

    def _passes(self, edge: Edge, sender: Task, task: Task) -> None:
        """One gives another an item without a buffer between."""
        is_lent = self._sends(sender, edge, edge.first)
        span, doubtful = self._current(sender), self._doubtful(sender)
        self._receives(task, edge, _Item(span, doubtful, sender, edge.first, is_lent))

    def _sent(self, edge: Edge) -> None:
        self._of((edge.tgid, edge.other)).is_answered = True

    def _drop(self, edge: Edge) -> None:
        """A goroutine receives what is no item, or throws one away: a ticker's, perhaps."""
        item = self._items.pop((edge.tgid, edge.first), None) if edge.first else None
        self._lost(item)
        task = (edge.tgid, edge.goid)
        goroutine = self._goroutines.get(task)
        if goroutine is None:
            return
        sender = item.sender if item is not None else (edge.tgid, edge.other)
        channel, work = self._channel(edge.tgid, edge.second), goroutine.current
        is_item = goroutine.mode is _Mode.ITEM and not goroutine.roots
        is_inside = edge.depth > goroutine.depth and edge.second != goroutine.channel
        if self._releases(goroutine, channel, edge.second) and (is_inside or not is_item):
            return
        if work is not None and not channel.is_pool and (is_inside or not is_item):
            doubtful = item.doubtful if item else self._doubtful(sender)
            self._answered(work.work, sender, doubtful, edge.at)
        if not is_item:
            return
        above = item.span if item is not None and sender != task else None
        is_own = above is not None and work is not None and above.work is work.work
        if not is_inside and not is_own:
            self._set(task, goroutine, edge.at, None, None)

    def _miss(self, edge: Edge) -> None:
        """A goroutine finds no item, or a channel closed: its work on the last item is done."""
        task = (edge.tgid, edge.goid)
        goroutine = self._goroutines.get(task)
        if goroutine is None or goroutine.mode is not _Mode.ITEM:
            return
        is_same = goroutine.place == (edge.depth, edge.place)
        if is_same or (edge.second and edge.second == goroutine.channel):
            self._set(task, goroutine, edge.at, None, None)

    def _receives(self, task: Task, edge: Edge, item: _Item | None) -> None:
        """A goroutine has an item, of which nothing is known if it was sent before the run."""
        if not task[1]:
            return
        goroutine, address = self._of(task), edge.second
        channel = self._channel(edge.tgid, address)
        # A goroutine hands nothing to itself.
        above = item.span if item is not None and item.sender != task else None
        is_signal = item is not None and item.word == NOTHING
        is_elsewhere = goroutine.place != (edge.depth, edge.place)
        is_item = goroutine.mode is _Mode.ITEM
        is_inside = edge.depth > goroutine.depth and address != goroutine.channel
        is_released = self._releases(goroutine, channel, address)
        if is_released and (is_inside or not is_item):
            return
        self._takes(goroutine, channel, edge, item)
        goroutine.has_waited = True
        work = goroutine.current
        is_own = work is not None and above is not None and above.work is work.work
        is_lent = item is not None and item.is_lent
        if is_lent or (channel.is_pool and not (is_item and address == goroutine.channel)):
            return
        if item is not None and item.sender == task and not is_item:
            return
        is_queue = channel.queue == self.contexts.collected
        is_answer = not is_queue and (is_inside or is_elsewhere or not is_item)
        if item is not None and work is not None and (goroutine.roots or is_answer):
            self._answered(work.work, item.sender, item.doubtful, edge.at)
        if goroutine.roots:
            return
        is_part = is_inside and (above is None or is_own)
        is_given = above is not None and not is_own
        if not is_signal:
            is_second = is_given and goroutine.place[0] == edge.depth and is_elsewhere
            if is_second or (goroutine.is_idle and not is_part):
                goroutine.held = address
        if is_item and is_inside:
            if not is_part:
                self._set(task, goroutine, edge.at, _Mode.ITEM, None)
            return
        if is_own and (is_signal or not (is_item and is_queue)):
            return
        is_new, goroutine.is_new = goroutine.is_new, False
        if not is_signal:
            if not (goroutine.is_idle and is_part):
                goroutine.is_idle, goroutine.received = True, edge.at
                goroutine.channel, goroutine.depth = address, edge.depth
            if is_given:
                goroutine.place = edge.depth, edge.place
        is_queue = is_queue and address != 0 and not channel.is_pool
        has_work = above is not None and is_queue and not is_signal and not is_new
        if above is not None and has_work and not self._holds(edge.tgid, goroutine):
            goroutine.queue = address
            span = Span(above.work, task, edge.at, Link.ITEM, above)
            self._set(task, goroutine, edge.at, _Mode.ITEM, span)
            channel.spans.append(span)
        elif work is not None:
            self._set(task, goroutine, edge.at, None, None)
        goroutine.is_unsure = above is not None and goroutine.work is None
        goroutine.sender = above.work if above is not None and goroutine.is_unsure else None

    def _takes(
        self, goroutine: _Goroutine, channel: _Channel, edge: Edge, item: _Item | None
    ) -> None:
        """Note that a goroutine has an item, and whether that shows its channel to be a queue.

        Once the collector has run, there may be another channel at an address: but for that of a
        goroutine which goes on to receive from where it has its work.
        """
        address, collected = edge.second, self.contexts.collected
        word = item.word if item is not None else 0
        taken = goroutine.taken.pop(address, None)
        if taken is None or taken.collected != collected:
            taken = _Taken(0, collected)
        taken.count += 1
        taken.word = word
        goroutine.has_taken(address, taken)
        if taken.count > 1 or goroutine.queue == address:
            channel.queue = collected
        if item is None or word in (0, NOTHING):
            return
        # Whoever has work from elsewhere takes what it needs for that, not more work.
        has_work = goroutine.mode is _Mode.ITEM and goroutine.place != (edge.depth, edge.place)
        is_used = bool(goroutine.roots or goroutine.starter) or has_work
        key = (edge.tgid, address, word)
        began = item.span.work.root.begin if item.span is not None else 0
        self._lent[key] = _Lent(collected, began, is_used)
        self._lent.move_to_end(key)
        if len(self._lent) > self._limits.items:
            self._lent.popitem(last=False)

    def _holds(self, tgid: int, goroutine: _Goroutine) -> bool:
        """Return whether a goroutine may hold several items, but for what is a pool's."""
        channel = self._channels.get((tgid, goroutine.held))
        if channel is not None and channel.is_pool:
            goroutine.held = 0
        return goroutine.held != 0

    def _wake(self, edge: Edge) -> None:
        task = (edge.tgid, edge.other)
        goroutine = self._goroutines.get(task)
        if goroutine is not None and goroutine.is_answered:
            goroutine.is_answered = False
            return
        self.acts((edge.tgid, edge.goid), edge.at)
        if goroutine is None:
            return
        goroutine.has_waited = True
        work = goroutine.current
        if work is None:
            return
        waker = (edge.tgid, edge.goid)
        above = self._current(waker)
        if above is not None and above.work is work.work:
            return
        is_item = goroutine.mode is _Mode.ITEM and not goroutine.roots
        is_inside = is_item and edge.depth > goroutine.depth
        # Of a sync.Cond no depth is known: that may be a lock's.
        if edge.depth and (is_inside or not is_item):
            self._answered(work.work, waker, self._doubtful(waker), edge.at)
        if goroutine.roots or goroutine.mode is _Mode.COROUTINE:
            return
        if not is_inside or above is not None:
            mode = _Mode.ITEM if is_inside else None
            self._set(task, goroutine, edge.at, mode, None)

    def _switch(self, edge: Edge) -> None:
        self.acts((edge.tgid, edge.goid), edge.at)
        task = (edge.tgid, edge.other)
        goroutine = self._of(task)
        if goroutine.roots:
            return
        above, work = self._current((edge.tgid, edge.goid)), goroutine.work
        if above is None:
            if work is not None:
                self._set(task, goroutine, edge.at, None, None)
            return
        is_own = work is not None and work.work is above.work
        if not is_own or goroutine.mode is _Mode.COROUTINE:
            span = Span(above.work, task, edge.at, Link.CALL, above)
            self._set(task, goroutine, edge.at, _Mode.COROUTINE, span)

    def _rest(self, edge: Edge) -> None:
        """A goroutine goes on that has slept, or waited for the network or for others to end.

        If the request that has started it has ended, it may be a loop that serves others as well.
        """
        task, waker = (edge.tgid, edge.other), (edge.tgid, edge.goid)
        goroutine = self._goroutines.get(task)
        if goroutine is None:
            return
        goroutine.has_waited = True
        work = goroutine.current
        if work is None:
            return
        if edge.first:
            self._answered(work.work, waker, self._doubtful(waker), edge.at)
        elif goroutine.roots:
            return
        elif goroutine.mode is _Mode.STARTED and not work.work.is_open:
            self._set(task, goroutine, edge.at, None, None)
            goroutine.has_rested = True

    def _freed(self, edge: Edge) -> None:
        self.contexts.freed(edge.tgid)

    def _dead(self, edge: Edge) -> None:
        goroutine = self._goroutines.pop((edge.tgid, edge.goid), None)
        if goroutine is not None:
            self._finish(goroutine, edge.at)

    def _finish(self, goroutine: _Goroutine, at: int) -> None:
        while goroutine.roots:
            self._end_root(goroutine, at)
        if goroutine.work is not None:
            before, goroutine.work = goroutine.work, None
            self._close(before, at)
