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

import functools
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from gotrace.records import dataclass, field
from gotrace.requests.edges import NOTHING, Edge, EdgeKind

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
#: As how many other returns one of a thing counts that its taker has used for other work.
_LENT = 4
#: Spans of calls whose contexts say whose they are, of a goroutine.
_MAX_GIVEN = 64
#: How far back it is looked for the timer whose function sets it again.
_MAX_TIMERS = 8
#: Channels of which signals have told a goroutine of work.
_MAX_TELLERS = 16
#: Channels of which is known what a goroutine has taken from them.
_MAX_TAKEN = 64


class Link(Enum):
    """The link that makes a call a node of a request."""

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
        #: The memory of the one who puts its calls together.
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
    ``is_wrong``, something that the goroutine has done says that it worked for another request.
    Since it was ``told`` by a signal that there is work, it may have, unless the goroutine
    ``has_ended``. Since it has a signal of one of ``tellers``, it may have if that is not the
    request's alone: channels, as far as they are known, each with when it has told it first.
    ``code`` is that of the function of the timer that has begun it, 0 if none has; ``channel`` is
    what has brought its item. ``handed`` is when ``above`` has let go of the work: it started the
    goroutine, sent the item, or set the timer.
    """

    __slots__ = (
        *("above", "begin", "channel", "code", "context", "depth", "end", "goroutine", "handed"),
        *("has_ended", "is_wrong", "link", "tellers", "told", "work"),
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
        self.begin = self.handed = begin
        self.end: int | None = None
        self.link = link
        self.above = above
        self.context = context
        self.depth: int = above.depth + 1 if above is not None else 0
        self.is_wrong = False
        self.told: int | None = None
        self.tellers: list[tuple[int, _Channel]] = []
        self.has_ended = False
        self.code = 0
        self.channel: _Channel | None = None
        work.working += 1
        if len(work.spans) < _MAX_SPANS:
            work.spans.append(self)

    @property
    def is_doubted(self) -> bool:
        """Return whether the goroutine is known to have worked for others, or may have."""
        return self.is_wrong or (self.channel is not None and self.channel.lends)

    def is_told(self, moment: int) -> bool:
        """Return whether signals may have told the goroutine to do others' work at a moment."""
        if self.told is None or moment < self.told:
            return False
        return not self.has_ended or any(
            channel.is_common and moment >= at for at, channel in self.tellers
        )

    def tells(self, channel: _Channel, at: int) -> None:
        """Note that a signal comes from a channel."""
        is_known = any(one is channel for _, one in self.tellers)
        if not is_known and len(self.tellers) < _MAX_TELLERS:
            self.tellers.append((at, channel))


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
class OpenFrame:
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
class _Holding:
    """The items that a goroutine has received, and may hold.

    ``channel`` and ``depth`` are where it has received its latest item, at ``received``; ``place``
    is the depth and the statement of the latest one of a request. It ``is_idle`` if nothing was
    seen since that it has done: it may still hold that item. ``second`` is the channel, if any,
    from which it has received another one then, or in another statement. ``queue`` is the channel
    from which it has had its work last. ``is_answered``: the next wait of the goroutine ends
    because it received or sent an item. ``taken`` is what it has had from a channel without sending
    to that, by channel.
    """

    channel: int = 0
    depth: int = 0
    place: tuple[int, int] = (0, 0)
    received: int = 0
    is_idle: bool = False
    second: int = 0
    queue: int = 0
    is_answered: bool = False
    taken: dict[int, _Taken] = field(default_factory=dict)

    def takes(self, channel: int, taken: _Taken) -> None:
        if len(self.taken) >= _MAX_TAKEN:
            self.taken.clear()
        self.taken[channel] = taken

    def has_back(self, address: int, channel: _Channel, collected: int) -> bool:
        """Return whether what is received from a channel is only a semaphore's signal."""
        taken = self.taken.get(address)
        if taken is None or taken.count >= 0:
            return False
        del self.taken[address]
        channel.returns(collected)
        return True


@dataclass(slots=True)
class _Working:
    """The work of a goroutine, outside of calls of roots, and how long it lasts.

    It ``is_unsure`` if what it has received last was sent for a request, or what it did has been
    taken away from one, and it works for nobody. ``sender`` is the request that its latest item was
    sent for, if that has not made it work. ``left`` is what it was started for, if it works for
    nobody since; it ``has_rested`` if only a sleep or the network says so.
    """

    span: Span | None = None
    mode: _Mode | None = None
    is_unsure: bool = False
    sender: Work | None = None
    left: Span | None = None
    has_rested: bool = False


@dataclass(slots=True)
class _Given:
    """The request for which a goroutine was started, and the contexts that it was given.

    ``starter`` is the request whose ``go`` statement or timer has begun it. It ``is_new`` until it
    has done anything: what it is given then may be one of several things that it works on.
    ``spans`` are those of its latest calls whose contexts have said that they are of one request,
    and ``has_waited`` is whether it has waited since. ``kept`` is a request that it had a context
    of, or was started for, while it worked for others: it may keep what is that request's. ``told``
    is the span that it was started with, if a signal has told it of work and it may have been the
    starter's alone; ``place`` is the depth and the statement of the starter's latest signal.
    """

    starter: Work | None = None
    told: Span | None = None
    place: tuple[int, int] | None = None
    is_new: bool = False
    spans: list[Span] = field(default_factory=list)
    has_waited: bool = False
    kept: Work | None = None

    def keeps(self, work: Work) -> None:
        """Note that it has contexts of a request and works for others as well."""
        self.kept = work
        for span in self.spans:
            span.is_wrong = span.is_wrong or span.work is work


@dataclass(slots=True)
class _Goroutine:
    """The known state of a goroutine; ``roots`` go before the work in ``working``."""

    most: int
    roots: list[_Root] = field(default_factory=list)
    frames: list[OpenFrame] = field(default_factory=list)
    holding: _Holding = field(default_factory=_Holding)
    working: _Working = field(default_factory=_Working)
    given: _Given = field(default_factory=_Given)
    #: When what it works for has changed, and to what; from ``known`` on.
    times: list[int] = field(default_factory=list)
    spans: list[Span | None] = field(default_factory=list)
    known: int = 0

    @property
    def current(self) -> Span | None:
        return self.roots[-1].span if self.roots else self.working.span

    @property
    def has_item(self) -> bool:
        """Return whether it works on an item, or has ended to work on one, and on nothing else."""
        return self.working.mode is _Mode.ITEM and not self.roots

    def is_again(self, edge: Edge) -> bool:
        """Return whether it receives where it has taken the item that it works on."""
        return self.has_item and self.holding.place == (edge.depth, edge.place)

    @property
    def is_blank(self) -> bool:
        """Return whether no more is known of it than of any other."""
        holding, working, given = self.holding, self.working, self.given
        has_calls = self.frames or self.roots or self.times
        has_work = working.span or working.left or working.mode or holding.is_answered
        has_had = holding.taken or holding.received or given.starter or given.spans
        return not (has_calls or has_work or has_had)

    def acts(self, begun: int) -> None:
        if begun >= self.holding.received:
            self.holding.is_idle = self.given.is_new = False

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
    """An item that was sent: for whom, by whom, and its first word.

    ``doubtful`` is what is to be doubted if that answers another request. It ``is_lent`` if it is
    given back to where it was taken. It was sent ``at`` a time.
    """

    span: Span | None
    doubtful: Span | None
    sender: Task
    word: int
    is_lent: bool
    at: int


@dataclass(slots=True)
class _Channel:
    """The observed use of a channel: of the items ``sent``, so many ``returned`` that came from it.

    ``queue`` is how often the collector had run when the channel was last seen to be a queue, and
    ``pool`` when an item last returned. There may be another channel since. If it ``lends``,
    another goroutine has given back what one had used for other work: it never hands anything over,
    then, and what it seemed to has to be doubted. The latest signal is of the request ``teller``,
    when the collector had run as often as ``told`` says; it ``is_common`` if two have sent any.
    """

    queue: int = -1
    pool: int = -1
    sent: int = 0
    returned: int = 0
    lends: bool = False
    teller: Work | None = None
    told: int = -1
    is_common: bool = False

    @property
    def is_pool(self) -> bool:
        return self.lends or (self.returned > 0 and 2 * self.returned >= self.sent)

    def is_pool_since(self, collected: int) -> bool:
        """Return whether it is a pool that has been used as one since the collector has run."""
        return self.pool == collected and self.is_pool

    def returns(self, collected: int, count: int = 1) -> None:
        """Note that something has come back that was taken."""
        self.returned += count
        self.pool = collected

    def tells(self, work: Work, collected: int) -> None:
        """Note that a signal is sent for a request."""
        if self.told == collected and self.teller is not work:
            self.is_common = True
        self.told, self.teller = collected, work


@dataclass(slots=True)
class _Lent:
    """Something that was taken from a channel, when the collector had run so often.

    It was sent for the request that began then, 0 for none. It ``is_used`` if its ``taker`` has
    taken it for work that the channel has not brought.
    """

    collected: int
    began: int
    is_used: bool
    taker: Task


@dataclass(slots=True)
class _Timer:
    """A closure that is to be called: for whom, and how often the collector had run before.

    It was set ``at`` a time. ``code`` is that of the closure. It ``is_after`` the end of a context,
    whoever ends that.
    """

    span: Span | None
    collected: int
    code: int
    is_after: bool
    at: int


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


class _Receipt(NamedTuple):
    """The facts about an item that a goroutine receives, and about the goroutine then.

    Its own semaphore's signal ``is_back``. The item ``is_lent`` if it is a pool's, ``is_its``
    if the goroutine has sent it, ``is_own`` if it was sent for the request that the goroutine works
    for, and ``is_given`` if it was for another one. It ``is_queue`` if its channel is seen to be
    one, and ``is_pool`` if that is none. The goroutine ``has_item`` if it works until its next
    item; it ``is_again`` where it has taken that, and ``is_inside`` if it receives in what it has
    called since the latest. It ``is_new`` before it does anything. ``is_answer``: the item may be
    one. It ``is_second`` if the goroutine may hold the item before, too; it ``may_hold`` several
    for that or an earlier reason.
    """

    is_back: bool
    is_lent: bool
    is_its: bool
    is_own: bool
    is_given: bool
    is_signal: bool
    is_queue: bool
    is_pool: bool
    in_root: bool
    has_item: bool
    is_again: bool
    is_inside: bool
    is_new: bool
    is_answer: bool
    is_second: bool
    may_hold: bool


class _Then(Enum):
    """The reaction of a goroutine that has received an item, in the words of docs/requests.md."""

    IGNORE = "nothing has changed"
    GO_ON = "it goes on"
    LOST = "it works for nobody up to its next item"
    NOBODY = "it works for nobody"
    WORK = "it works for the item's request"


class _Case(NamedTuple):
    """A kind of receipts, in the words of docs/requests.md, and what follows."""

    words: str
    fits: Callable[[_Receipt], bool]
    then: _Then


#: In the order of docs/requests.md: the first that fits a receipt is its case.
CASES = (
    _Case("a signal that it has sent to a semaphore", lambda one: one.is_back, _Then.IGNORE),
    _Case("an item of a pool, or one that is lent", lambda one: one.is_lent, _Then.IGNORE),
    _Case(
        "an item that it has sent itself, if it works on none",
        lambda one: one.is_its and not one.has_item,
        _Then.IGNORE,
    ),
    _Case("any item, in a call of the root", lambda one: one.in_root, _Then.GO_ON),
    _Case(
        "an item in what its work on another one calls",
        lambda one: one.has_item and one.is_inside and not one.is_given,
        _Then.GO_ON,
    ),
    _Case(
        "the same, if another request has sent it",
        lambda one: one.has_item and one.is_inside,
        _Then.LOST,
    ),
    _Case(
        "a signal of its own request, but where it has taken its item",
        lambda one: one.is_own and one.is_signal and not one.is_again,
        _Then.GO_ON,
    ),
    _Case(
        "an item of its own request, but for the next of a queue",
        lambda one: one.is_own and not one.is_signal and not (one.has_item and one.is_queue),
        _Then.GO_ON,
    ),
    _Case(
        "any other signal or batch, or an item of nobody",
        lambda one: one.is_signal or not (one.is_own or one.is_given),
        _Then.NOBODY,
    ),
    _Case("an item before it was seen to do anything", lambda one: one.is_new, _Then.NOBODY),
    _Case(
        "an item of a channel that is not seen to be a queue",
        lambda one: one.is_pool or not one.is_queue,
        _Then.NOBODY,
    ),
    _Case("an item while it may hold another one", lambda one: one.may_hold, _Then.NOBODY),
    _Case("an item of a queue", lambda one: True, _Then.WORK),
)


# Few differ, and there may be a hundred thousand receipts a second.
@functools.cache
def _case_of(*seen: bool) -> tuple[_Receipt, _Case]:
    """Return the receipt of which this is seen, in the order of its fields, and its case."""
    one = _Receipt(*seen)
    return one, next(case for case in CASES if case.fits(one))


class Belonging:
    """The request that each goroutine works for."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        #: In the order of their beginnings; some have ended.
        self._open: deque[Work] = deque()
        self._goroutines: dict[Task, _Goroutine] = {}
        self._items: OrderedDict[tuple[int, int], _Item] = OrderedDict()
        self._channels: OrderedDict[tuple[int, int], _Channel] = OrderedDict()
        #: By the timer's closure: what is known of it.
        self._timers: OrderedDict[tuple[int, int], _Timer] = OrderedDict()
        #: Items that were taken from channels, by process, channel and first word.
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
    ) -> OpenFrame:
        """Return the frame of an outermost call that a goroutine enters, with its request.

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
            given = self._found(task, contexts, start, function if span is None else 0)
        is_doubted = span is None and goroutine.working.is_unsure
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
        frame = OpenFrame(depth, start, span)
        frames.append(frame)
        return frame

    def _found(
        self, task: Task, contexts: Sequence[int], start: int, function: int
    ) -> tuple[Work, _Context] | None:
        """Return whose contexts a call was given that begins a request of a function, if it does.

        Two of one function share what both were given.
        """
        found = self.contexts.find(task, contexts, start)
        if found is None:
            return None
        work = found[0]
        says_nothing = work.is_long or work.root.goroutine == task
        return None if says_nothing or (function and work.function == function) else found

    def leave(self, task: Task, start: int, at: int) -> OpenFrame | None:
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
        if goroutine is not None:
            goroutine.acts(begun)

    def left(self, task: Task) -> Work | None:
        """Return the work that a goroutine may still do, which has only rested since its end."""
        goroutine = self._goroutines.get(task)
        working = goroutine.working if goroutine is not None else _Working()
        return working.left.work if working.has_rested and working.left else None

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
                goroutine.given.keeps(work)
            return False
        if goroutine is None:
            return True
        before = goroutine.given
        if self.left(task) not in (None, work) or before.kept is work:
            return False
        is_left = before.starter is work and before.has_waited and not work.is_open
        if is_left and (before.spans or self.left(task) is None):
            before.keeps(work)
            return False
        return goroutine.working.sender in (None, work) or goroutine.holding.second != 0

    def gives(self, task: Task, span: Span) -> None:
        """Note that a goroutine's call is in a span since its context says so."""
        given = self._of(task).given
        if given.spans and given.spans[0].work is not span.work:
            given.spans.clear()
        given.spans.append(span)
        del given.spans[:-_MAX_GIVEN]
        given.has_waited = False

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
            found = self._goroutines[task] = _Goroutine(self._limits.history)
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
        self, goroutine: _Goroutine, at: int, mode: _Mode | None = None, span: Span | None = None
    ) -> None:
        working = goroutine.working
        before, working.span, working.mode = working.span, span, mode
        working.is_unsure = span is None and before is not None and before.is_doubted
        working.has_rested = False
        working.left = before if span is None and before and before.link is Link.GO else None
        goroutine.changed(at)
        if before is not None:
            self._close(before, at)

    def _doubtful(self, task: Task) -> Span | None:
        """Return the span that a goroutine works for, or was started for if it works for nobody."""
        goroutine = self._goroutines.get(task) if task[1] else None
        return (goroutine.current or goroutine.working.left) if goroutine is not None else None

    def _answered(self, work: Work, sender: Task, span: Span | None, at: int) -> None:
        """Note that one who works for a request has been answered by a goroutine in a span.

        If that is of another request, it has worked for this one, nobody knows since when. The
        goroutine of a root may answer others.
        """
        goroutine = self._goroutines.get(sender)
        given = goroutine.given.spans if goroutine is not None else None
        if goroutine is not None and given and given[0].work is not work:
            current = goroutine.current
            if current is None or current.link is not Link.CALL:
                goroutine.given.keeps(given[0].work)
        if span is None or span.above is None or span.work is work:
            return
        span.is_wrong = True
        if goroutine is None:
            return
        goroutine.given.kept = span.work
        if goroutine.working.span is span:
            self._set(goroutine, at, _Mode.ITEM if goroutine.working.mode is _Mode.ITEM else None)

    def _go(self, edge: Edge) -> None:
        if edge.depth:
            return  # whoever needs one of the runtime's own first starts it: it serves all
        self.acts((edge.tgid, edge.goid), edge.at)
        key = (edge.tgid, edge.first)
        made, above = self._timers.get(key), self._current((edge.tgid, edge.goid))
        code, handed = 0, edge.at
        # A timer that is due runs as well where another goroutine stops or resets it. Once the
        # collector has run, that may be another closure, at the address of a stopped timer's.
        is_new = made is not None and made.collected == self.contexts.collected
        if made is not None and made.is_after and made.code == edge.second:
            # Whoever ends a context that several have does not begin what the others want then.
            is_own = above is not None and made.span is not None and above.work is made.span.work
            above, handed = made.span if is_own else None, made.at
        elif made is not None and not made.is_after and (not edge.goid or is_new):
            above, code, handed = made.span, made.code, made.at
            del self._timers[key]
        if above is not None:
            span = Span(above.work, (edge.tgid, edge.other), edge.at, Link.GO, above)
            span.code, span.handed = code, handed
            goroutine = self._of(span.goroutine)
            goroutine.given.starter, goroutine.given.is_new = above.work, True
            goroutine.holding.received = edge.at
            self._set(goroutine, edge.at, _Mode.STARTED, span)

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
        self._timers[key] = _Timer(span, self.contexts.collected, edge.other, is_after, edge.at)
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
        goroutine = self._goroutines.get(task)
        if goroutine is not None:
            goroutine.acts(edge.at)
            self._gives(goroutine, channel, edge, word)
        if word == NOTHING and (span := self._current(task)) is not None:
            channel.tells(span.work, self.contexts.collected)
        if word in (0, NOTHING):
            return False
        lent = self._lent.pop((edge.tgid, edge.second, word), None)
        if lent is None or not lent.is_used or lent.collected != self.contexts.collected:
            return False
        span = self._current(task)
        is_worker = goroutine is not None and goroutine.working.mode is _Mode.ITEM
        if span is not None and span.work.root.begin == lent.began and not is_worker:
            return False  # sent again by those who have sent it
        # Its taker may try again with it what it has failed to do.
        channel.returns(lent.collected, _LENT)
        channel.lends = lent.taker != task or channel.is_pool
        return True

    def _gives(self, goroutine: _Goroutine, channel: _Channel, edge: Edge, word: int) -> None:
        """Note that a goroutine sends an item that it took: it is back, or used for its work."""
        holding = goroutine.holding
        taken = holding.taken.pop(edge.second, None)
        if taken is not None and taken.count > 0:
            if taken.word == word:
                channel.returns(self.contexts.collected)
        elif word == NOTHING:
            holding.takes(edge.second, _Taken(-1, self.contexts.collected, NOTHING))
        if word in (0, NOTHING) or goroutine.current is None:
            return
        for address, other in holding.taken.items():
            is_work = goroutine.working.mode is _Mode.ITEM and holding.channel == address
            lent = self._lent.get((edge.tgid, address, word)) if other.word == word else None
            if lent is not None and not is_work:
                lent.is_used = True

    def _write(self, edge: Edge) -> None:
        task = (edge.tgid, edge.goid)
        is_lent = self._sends(task, edge, edge.other)
        key = (edge.tgid, edge.first)
        self._lost(self._items.pop(key, None))
        item = self._items[key] = self._item(task, edge.other, is_lent, edge.at)
        if item.span is not None and edge.other != NOTHING:
            item.span.work.sent += 1
        if len(self._items) > self._limits.items:
            self._lost(self._items.popitem(last=False)[1])

    def _item(self, task: Task, word: int, is_lent: bool, at: int) -> _Item:
        """Return the item that a goroutine sends."""
        goroutine = self._goroutines.get(task) if task[1] else None
        if goroutine is None:
            return _Item(None, None, task, word, is_lent, at)
        span = goroutine.current
        is_known = span is not None and span.depth < self._limits.depth
        doubtful = span or goroutine.working.left
        return _Item(span if is_known else None, doubtful, task, word, is_lent, at)

    def _lost(self, item: _Item | None) -> None:
        """Note that nobody takes an item any more, or that somebody has begun to work on it."""
        if item is not None and item.span is not None and item.word != NOTHING:
            item.span.work.sent -= 1

    def _read(self, edge: Edge) -> None:
        item = self._items.pop((edge.tgid, edge.first), None)
        self._receives((edge.tgid, edge.goid), edge, item)
        self._lost(item)

    def _hand(self, edge: Edge) -> None:
        self._of((edge.tgid, edge.other)).holding.is_answered = True
        self._passes(edge, (edge.tgid, edge.goid), (edge.tgid, edge.other))

    def _take(self, edge: Edge) -> None:
        self._passes(edge, (edge.tgid, edge.other), (edge.tgid, edge.goid))

    def _passes(self, edge: Edge, sender: Task, task: Task) -> None:
        """One gives another an item without a buffer between."""
        is_lent = self._sends(sender, edge, edge.first)
        self._receives(task, edge, self._item(sender, edge.first, is_lent, edge.at))

    def _sent(self, edge: Edge) -> None:
        self._of((edge.tgid, edge.other)).holding.is_answered = True

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
        holding, is_item = goroutine.holding, goroutine.has_item
        is_inside = edge.depth > holding.depth and edge.second != holding.channel
        collected = self.contexts.collected
        is_back = holding.has_back(edge.second, channel, collected)
        if is_back and (is_inside or not is_item):
            return
        is_pool = channel.is_pool_since(collected)
        if work is not None and not is_pool and (is_inside or not is_item):
            doubtful = item.doubtful if item else self._doubtful(sender)
            self._answered(work.work, sender, doubtful, edge.at)
        above = item.span if item is not None else self._current(sender)
        if sender == task:
            above = None
        is_own = above is not None and work is not None and above.work is work.work
        self._told(goroutine, edge, above, channel)
        if goroutine.roots or (is_own and not goroutine.is_again(edge)):
            return
        if is_item and is_inside:
            if above is not None:
                self._set(goroutine, edge.at, _Mode.ITEM)
        elif is_item or not is_pool:
            self._signalled(goroutine, edge.at)

    def _told(
        self, goroutine: _Goroutine, edge: Edge, above: Span | None, channel: _Channel | None = None
    ) -> None:
        """Note that a signal of a request, if of any, reaches a goroutine that one has started.

        If it is of the starter, there may be work of others all the same, which nobody has told of
        yet. If it is of another one, the goroutine may have looked for work before it has waited.
        One that ends then was the starter's alone, unless both have told it in one statement.
        """
        given, mode = goroutine.given, goroutine.working.mode
        span = goroutine.working.span if mode is _Mode.STARTED else given.told
        is_at_work = goroutine.roots or mode in (_Mode.ITEM, _Mode.COROUTINE)
        if span is None or above is None or is_at_work:
            return
        place, is_own = (edge.depth, edge.place), above.work is span.work
        if span.told is None:
            given.told, span.told = span, edge.at if is_own else span.begin
        if is_own:
            given.place = place
            if channel is not None:
                span.tells(channel, edge.at)
        elif given.place == place:
            given.told = None

    def _signalled(self, goroutine: _Goroutine, at: int) -> None:
        """End work as a wait does: whoever was started for a request may go on for others."""
        if goroutine.has_item or goroutine.working.mode is _Mode.STARTED:
            self._set(goroutine, at)

    def _miss(self, edge: Edge) -> None:
        """A goroutine finds no item, or a channel closed: its work on the last item is done."""
        task = (edge.tgid, edge.goid)
        goroutine = self._goroutines.get(task)
        if goroutine is None or goroutine.working.mode is not _Mode.ITEM:
            return
        holding = goroutine.holding
        is_same = holding.place == (edge.depth, edge.place)
        if is_same or (edge.second and edge.second == holding.channel):
            self._set(goroutine, edge.at)

    def _receives(self, task: Task, edge: Edge, item: _Item | None) -> None:
        """A goroutine has an item, of which nothing is known if it was sent before the run."""
        if not task[1]:
            return
        goroutine, channel = self._of(task), self._channel(edge.tgid, edge.second)
        # A goroutine hands nothing to itself.
        above = item.span if item is not None and item.sender != task else None
        one, (_, _, then) = self._receipt(task, goroutine, channel, edge, item, above)
        holding, work = goroutine.holding, goroutine.current
        if one.is_signal and not one.is_back:
            self._told(goroutine, edge, above, channel)
        if then is _Then.IGNORE:
            return
        if one.is_answer and item is not None and work is not None:
            self._answered(work.work, item.sender, item.doubtful, edge.at)
        if one.in_root:
            return
        if one.is_second:
            holding.second = edge.second
        if then is _Then.LOST:
            self._set(goroutine, edge.at, _Mode.ITEM)
        if then is _Then.LOST or then is _Then.GO_ON:
            return
        goroutine.given.is_new = False
        if not one.is_signal:
            if not holding.is_idle or one.is_given or not one.is_inside:
                holding.is_idle, holding.received = True, edge.at
                holding.channel, holding.depth = edge.second, edge.depth
            if one.is_given:
                holding.place = edge.depth, edge.place
        if then is _Then.WORK and above is not None:
            holding.queue, holding.second = edge.second, 0
            span = Span(above.work, task, edge.at, Link.ITEM, above)
            span.channel = channel
            span.handed = item.at if item is not None else 0
            self._set(goroutine, edge.at, _Mode.ITEM, span)
            above = None
        elif work is not None:
            self._set(goroutine, edge.at)
        goroutine.working.is_unsure = above is not None
        goroutine.working.sender = above.work if above is not None else None

    def _receipt(
        self,
        task: Task,
        goroutine: _Goroutine,
        channel: _Channel,
        edge: Edge,
        item: _Item | None,
        above: Span | None,
    ) -> tuple[_Receipt, _Case]:
        """Return the facts and the case of a receipt, and note the item that is taken."""
        holding, work, address = goroutine.holding, goroutine.current, edge.second
        is_elsewhere = holding.place != (edge.depth, edge.place)
        has_item, is_again = goroutine.working.mode is _Mode.ITEM, goroutine.is_again(edge)
        is_next = has_item and address == holding.channel
        is_inside = edge.depth > holding.depth and address != holding.channel
        collected = self.contexts.collected
        is_back = holding.has_back(address, channel, collected) and (is_inside or not has_item)
        is_queue = not is_back and self._takes(task, goroutine, channel, edge, item)
        sender, is_signal, is_lent = None, False, False
        if item is not None:
            sender, is_signal, is_lent = item.sender, item.word == NOTHING, item.is_lent
        is_own = above is not None and work is not None and above.work is work.work
        is_given, is_pool = above is not None and not is_own, channel.is_pool
        is_second = not is_signal and (
            (is_given and is_elsewhere and holding.place[0] == edge.depth)
            or (holding.is_idle and (is_given or not is_inside))
        )
        has_root = bool(goroutine.roots)
        return _case_of(
            is_back,
            is_lent or (channel.is_pool_since(collected) and not is_next),
            sender == task,
            is_own,
            is_given,
            is_signal,
            is_queue,
            is_pool or not address,
            has_root,
            has_item,
            is_again,
            is_inside,
            goroutine.given.is_new,
            has_root or (not is_queue and (is_inside or is_elsewhere or not has_item)),
            is_second,
            self._may_hold(edge.tgid, holding.second, channel if is_second else None),
        )

    def _may_hold(self, tgid: int, second: int, channel: _Channel | None) -> bool:
        """Return whether a goroutine may hold several items, but for what is a pool's.

        The second one is of a channel, if not of that which it has had it from before.
        """
        if channel is None and not second:
            return False
        channel = channel or self._channels.get((tgid, second))
        return channel is None or not channel.is_pool_since(self.contexts.collected)

    def _takes(
        self,
        task: Task,
        goroutine: _Goroutine,
        channel: _Channel,
        edge: Edge,
        item: _Item | None,
    ) -> bool:
        """Note that a goroutine has an item; return whether its channel is seen to be a queue.

        Once the collector has run, there may be another channel at an address: but for that of a
        goroutine which goes on to receive from where it has its work.
        """
        holding, address, collected = goroutine.holding, edge.second, self.contexts.collected
        word = item.word if item is not None else 0
        taken = holding.taken.pop(address, None)
        if taken is None or taken.collected != collected:
            taken = _Taken(0, collected)
        taken.count += 1
        taken.word = word
        holding.takes(address, taken)
        if taken.count > 1 or holding.queue == address:
            channel.queue = collected
        goroutine.given.has_waited = True
        if item is not None and word not in (0, NOTHING):
            # Whoever has work from elsewhere takes what it needs for that, not more work.
            is_elsewhere = holding.place != (edge.depth, edge.place)
            has_work = goroutine.working.mode is _Mode.ITEM and is_elsewhere
            is_used = bool(goroutine.roots or goroutine.given.starter) or has_work
            key = (edge.tgid, address, word)
            began = item.span.work.root.begin if item.span is not None else 0
            self._lent[key] = _Lent(collected, began, is_used, task)
            self._lent.move_to_end(key)
            if len(self._lent) > self._limits.items:
                self._lent.popitem(last=False)
        return channel.queue == collected

    def _wake(self, edge: Edge) -> None:
        task = (edge.tgid, edge.other)
        goroutine = self._goroutines.get(task)
        if goroutine is not None and goroutine.holding.is_answered:
            goroutine.holding.is_answered = False
            return
        self.acts((edge.tgid, edge.goid), edge.at)
        if goroutine is None:
            return
        goroutine.given.has_waited = True
        work, waker = goroutine.current, (edge.tgid, edge.goid)
        above = self._current(waker)
        self._told(goroutine, edge, above)
        if work is None:
            return
        is_own = above is not None and above.work is work.work
        if is_own and not goroutine.is_again(edge):
            return
        is_item = goroutine.has_item
        is_inside = is_item and edge.depth > goroutine.holding.depth
        # Of a sync.Cond no depth is known: that may be a lock's.
        if edge.depth and not is_own and (is_inside or not is_item):
            self._answered(work.work, waker, self._doubtful(waker), edge.at)
        if goroutine.roots or goroutine.working.mode is _Mode.COROUTINE:
            return
        if not is_inside or above is not None:
            self._set(goroutine, edge.at, _Mode.ITEM if is_inside else None)

    def _switch(self, edge: Edge) -> None:
        self.acts((edge.tgid, edge.goid), edge.at)
        task = (edge.tgid, edge.other)
        goroutine = self._of(task)
        if goroutine.roots:
            return
        above, work = self._current((edge.tgid, edge.goid)), goroutine.working.span
        if above is None:
            if work is not None:
                self._set(goroutine, edge.at)
            return
        is_own = work is not None and work.work is above.work
        if not is_own or goroutine.working.mode is _Mode.COROUTINE:
            span = Span(above.work, task, edge.at, Link.CALL, above)
            self._set(goroutine, edge.at, _Mode.COROUTINE, span)

    def _rest(self, edge: Edge) -> None:
        """A goroutine goes on that has slept, or waited for the network or for others to end.

        If the request that has started it has ended, it may be a loop that serves others as well.
        """
        waker, goroutine = (edge.tgid, edge.goid), self._goroutines.get((edge.tgid, edge.other))
        if goroutine is None:
            return
        goroutine.given.has_waited = True
        work = goroutine.current
        if work is None:
            return
        if edge.first:
            self._answered(work.work, waker, self._doubtful(waker), edge.at)
        elif goroutine.roots:
            return
        elif goroutine.working.mode is _Mode.STARTED and not work.work.is_open:
            self._set(goroutine, edge.at)
            goroutine.working.has_rested = True

    def _freed(self, edge: Edge) -> None:
        self.contexts.freed(edge.tgid)

    def _dead(self, edge: Edge) -> None:
        goroutine = self._goroutines.pop((edge.tgid, edge.goid), None)
        if goroutine is not None:
            if goroutine.given.told is not None:
                goroutine.given.told.has_ended = True
            self._finish(goroutine, edge.at)

    def _finish(self, goroutine: _Goroutine, at: int) -> None:
        while goroutine.roots:
            self._end_root(goroutine, at)
        before, goroutine.working.span = goroutine.working.span, None
        if before is not None:
            self._close(before, at)
