# SPDX-License-Identifier: Apache-2.0
"""Read all goroutines: their states, what they wait for, and their stacks.

A goroutine that is parked, or in a system call, changes neither its saved registers nor its stack,
so both are read while the program runs: some ``g``'s, their stacks from the saved SP on, and these
``g``'s again, in one system call. Where a goroutine has moved in between, it is read again, and
what keeps moving is reported as such. Of a running goroutine the registers are in a CPU: where its
thread can be sampled, it has the stack of a moment later, else none.

There can be a hundred thousand of them, so what is read is laid out in memory such that a field of
all ``g``'s, and a word of all stacks that are equally long, is a slice with a stride: most is done
by such columns, and one by one only what has moved.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from itertools import compress, pairwise, repeat
from operator import attrgetter, itemgetter, mul
from typing import NamedTuple

from gotrace.errors import GotraceError
from gotrace.goroutines.labels import NO_LABELS, Labels, read_labels
from gotrace.goroutines.memory import MAX_AT_ONCE, Memory, words_at
from gotrace.goroutines.model import Awaited, DumpedGoroutine, Stack, State
from gotrace.goroutines.program import SOMETIMES_SYSTEM, TRAPPED, CodeNames
from gotrace.goroutines.samples import Sample
from gotrace.gotypes.runtime import RuntimeLayout
from gotrace.gotypes.wait_reasons import (
    MUTEX,
    READ_LOCK,
    WAIT_GROUP,
    WRITE_LOCK,
    Lock,
    WaitFor,
    WaitReasons,
    meaning_of,
    reason_numbers,
)
from gotrace.records import dataclass, field

#: Those of g.atomicstatus but for _Gscan, which says that the collector looks at the stack.
_STATUS_BITS = 0xFFFFEFFF
_RUNNING, _WAITING, _COPYSTACK, _LEAKED = 2, 4, 8, 10
STATES = {
    0: State.IDLE,
    1: State.RUNNABLE,
    _RUNNING: State.RUNNING,
    3: State.SYSCALL,
    _WAITING: State.WAITING,
    _COPYSTACK: State.COPYSTACK,
    9: State.PREEMPTED,
    _LEAKED: State.LEAKED,
}
#: Those whose saved registers hold.
_AT_REST = frozenset(STATES) - {0, _RUNNING, _COPYSTACK}
_HAVE_REASON = frozenset({_WAITING, _LEAKED})
_HAVE_TIME = frozenset({3, _WAITING})

#: Goroutines read at once; with their stacks at most some 20 MB.
_BATCH = 4096
#: Goroutines whose stacks are read between two images of theirs: few, so that these are some
#: microseconds apart. In the time in which a goroutine can be woken 256 times, the byte of g that
#: counts that (trackingSeq) would come round.
_TOGETHER = 16
#: Bytes of a stack that are read first, and then where the stack is deeper: nearly all end in the
#: first, and 1 MB is some ten thousand frames.
_WINDOWS = (4 << 10, 64 << 10, 1 << 20)
#: Stacks at once.
_MAX_READ = 16 << 20
#: How often what has moved is read.
_TRIES = 4
#: A program with more has some 40 GB of stacks; a longer list is none.
_MAX_GOROUTINES = 1 << 24
#: Ways through stacks of one length that begin at one address, and stacks found by each of these.
_MAX_SHAPES = 16
_MAX_STACKS = 4096
#: Stacks of which there is one object each.
_MAX_KEPT = 1 << 20
#: Go's own limit of a stack is 1 GB on 64-bit machines (runtime.main: maxstacksize), and twice that
#: is room for it (maxstackceiling).
_MAX_STACK = 2 << 30
#: Functions that leave one stack for another, which up to Go 1.16 have no mark that says so.
_SWITCHES = frozenset({"runtime.mcall", "runtime.morestack", "runtime.gogo"})
#: The range of addresses of user space.
_MIN_ADDRESS, _MAX_ADDRESS = 4096, 1 << 56
#: Words of the frame of runtime.semacquire1, in which the sudog is looked for.
_MAX_SEMAPHORE_FRAME = 64
#: Words by which the runtime lowers SP on arm64 before an interrupted function calls sigpanic: it
#: keeps the link register there (sigctxt.preparePanic, pushCall).
_SIGNAL_WORDS = 2

#: Functions that wait for a semaphore of a lock, where the reason does not say which lock it is.
_LOCKS = {
    "sync.(*Mutex).lockSlow": MUTEX,
    "sync.(*RWMutex).RLock": READ_LOCK,
    "sync.(*RWMutex).Lock": WRITE_LOCK,
    "sync.(*WaitGroup).Wait": WAIT_GROUP,
}
_CHANNELS = frozenset({WaitFor.SEND, WaitFor.RECEIVE})
_HAVE_SUDOGS = _CHANNELS | {WaitFor.LOCK, WaitFor.JOIN, WaitFor.SEMAPHORE}


@dataclass
class Dump:
    """All goroutines of a program at one time; ``program`` gives their frames.

    ``reasons`` may be None: then no goroutine has a reason.
    """

    program: CodeNames
    goroutines: list[DumpedGoroutine] = field(default_factory=list)
    #: Labels by where they are.
    labels: Mapping[int, Labels] = field(default_factory=dict)

    def labels_of(self, one: DumpedGoroutine) -> Labels:
        return self.labels.get(one.labels, NO_LABELS)

    @property
    def moved(self) -> int:
        """Return how many goroutines kept moving while they were read."""
        return sum(goroutine.has_moved for goroutine in self.goroutines)


def take_dump(
    program: CodeNames,
    memory: Memory,
    layout: RuntimeLayout,
    reasons: WaitReasons | None,
    allgs: int,
    now: int | None,
    sample: Callable[[], Iterable[Sample]] | None = None,
) -> Dump:
    """Read all goroutines of a program.

    ``allgs`` is the run-time address of ``runtime.allgs``, ``now`` the time on the program's
    monotonic clock in ns, None where it is not known. ``sample`` samples the program's threads,
    for the stacks of running goroutines: it is called where there are some. Raises GotraceError
    where there is no list of goroutines at that address.
    """
    batches = listed(memory, allgs)
    goroutines = GoroutineReader(program, memory, layout, reasons).read(batches, now, sample)
    labels = read_labels(memory, map(_LABELS, goroutines), layout.labels_are_map)
    if labels:
        goroutines = _with_current_labels(memory, layout, goroutines)
    return Dump(program, goroutines, labels)


def _with_current_labels(
    memory: Memory, layout: RuntimeLayout, goroutines: list[DumpedGoroutine]
) -> list[DumpedGoroutine]:
    """Return goroutines, those without labels that have had others since these were read."""
    labelled = [at for at, one in enumerate(goroutines) if one.labels]
    places = [word for at in labelled for word in (goroutines[at].g + layout.g_labels, 8)]
    now = array("Q", bytes(memory.gather(places)))
    for at, labels in zip(labelled, now, strict=True):
        if labels != goroutines[at].labels:
            goroutines[at] = goroutines[at]._replace(labels=0)
    return goroutines


_LABELS = attrgetter("labels")


def listed(memory: Memory, allgs: int, known: int = 0) -> Iterator[list[int]]:
    """Yield the addresses of all g's, but for those that are ``known``, some at a time, ascending.

    The runtime only ever adds to its list. Raises GotraceError if there is none at that address.
    """
    first, count, room = words_at(memory, allgs, 3)
    if not (0 < count <= room and count <= _MAX_GOROUTINES and first and first % 8 == 0):
        raise GotraceError(
            f"the program's list of goroutines cannot be read at {allgs:#x}: it has only just"
            " been started, or is not the one that its file says"
        )
    for at in range(known, count, _BATCH):
        found = words_at(memory, first + 8 * at, min(_BATCH, count - at))
        yield sorted(filter(None, found))


class Fields:
    """Where the fields of g are in an image of it: by word, or by byte where they are narrower."""

    def __init__(self, layout: RuntimeLayout) -> None:
        offsets = [
            value
            for name in layout.__slots__
            if name.startswith("g_") and type(value := getattr(layout, name)) is int
        ]
        #: Bytes of g to read.
        self.size = (max(offsets) + 8 + 7) & ~7
        self.top = layout.g_stack_hi >> 3
        # The pc follows in both: in gobuf of all releases, and in g.
        self.sp, self.syscallsp = layout.g_sched_sp >> 3, layout.g_syscallsp >> 3
        self.saved = (self.sp, self.sp + 1, self.syscallsp, self.syscallsp + 1)
        self.status = layout.g_atomicstatus >> 3  # in the lower half
        self.goid = layout.g_goid >> 3
        self.waitsince = layout.g_waitsince >> 3
        self.reason = layout.g_waitreason
        self.lockedm = layout.g_lockedm >> 3
        self.parent = None if layout.g_parent_goid is None else layout.g_parent_goid >> 3
        self.gopc, self.startpc = layout.g_gopc >> 3, layout.g_startpc >> 3
        self.waiting, self.labels = layout.g_waiting >> 3, layout.g_labels >> 3
        #: The words that show whether a goroutine has run, and a byte that counts that (one that is
        #: constant up to Go 1.16).
        self.moves = (*self.saved, self.status, self.goid, self.waiting)
        self.tracking = layout.g_tracking_seq or layout.g_goid
        #: The word after it is a time, which is taken each eighth time that it grows.
        self.stamp = (self.tracking >> 3) + 1


@dataclass
class _Images:
    """Images of g's, each of ``stride`` words, and the addresses that they were read from.

    ``window`` is how much is wanted of their stacks: an index of :data:`_WINDOWS`.
    """

    addresses: list[int]
    words: array[int]
    stride: int
    window: int = 0
    _columns: dict[int, array[int]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Return which of them are in one piece of memory, a few at most: first and end of each."""
        stride = 8 * self.stride
        ends = [at for at, (a, b) in enumerate(pairwise(self.addresses), 1) if b - a != stride]
        return [
            (at, min(at + _TOGETHER, end))
            for first, end in pairwise((0, *ends, len(self.addresses)))
            for at in range(first, end, _TOGETHER)
        ]

    def __len__(self) -> int:
        return len(self.addresses)

    def column(self, word: int) -> array[int]:
        """Return a word of all images."""
        column = self._columns.get(word)
        if column is None:
            column = self._columns[word] = self.words[word :: self.stride]
        return column

    def byte_column(self, offset: int) -> bytes:
        with memoryview(self.words) as words, words.cast("B") as raw:
            return raw[offset :: 8 * self.stride].tobytes()

    def image(self, place: int) -> array[int]:
        return self.words[place * self.stride : (place + 1) * self.stride]

    def chosen(self, places: Iterable[int], window: int) -> _Images:
        """Return some of them, of whose stacks so much is wanted."""
        words, addresses = array("Q"), []
        for place in places:
            addresses.append(self.addresses[place])
            words += self.image(place)
        return _Images(addresses, words, self.stride, window)

    def part(self, first: int, end: int) -> _Images:
        """Return the images from one place up to another."""
        words = self.words[first * self.stride : end * self.stride]
        return _Images(self.addresses[first:end], words, self.stride, self.window)


class _Running(NamedTuple):
    """A running goroutine, and where its stack is."""

    g: int
    goid: int
    low: int
    high: int


@dataclass(frozen=True)
class _Between:
    """The reads between two images of each g; values are found by the place of these.

    Of ``sudogs``, ``sudog_words`` each, only those were read whose address is not 0. ``groups`` are
    places by the pc and the size of their stacks: those of a group are in a row in ``words``, from
    the ``offsets`` of their bytes on.
    """

    before: _Images
    after: _Images
    sudog_addresses: Sequence[int]
    sudogs: array[int]
    sudog_words: int
    groups: dict[tuple[int, int], list[int]]
    offsets: list[int]
    sizes: list[int]
    words: array[int]

    def stack(self, place: int, count: int = 1) -> array[int]:
        """Return the words of a stack, or of more of a group."""
        start = self.offsets[place] >> 3
        return self.words[start : start + count * (self.sizes[place] >> 3)]


class _Waiter(NamedTuple):
    """A goroutine that waits for a semaphore.

    ``place`` is that of its image. Of the words ``frame``, those of the frame of
    runtime.semacquire1, one is the address of its sudog; ``slot`` is that frame's address in its
    stack.
    """

    place: int
    frame: array[int]
    slot: int


class GoroutineReader:
    """A reader of goroutines, which knows the stacks that it has followed."""

    def __init__(
        self,
        program: CodeNames,
        memory: Memory,
        layout: RuntimeLayout,
        reasons: WaitReasons | None,
    ) -> None:
        self._program = program
        self._memory = memory
        self._layout = layout
        self._now: int | None = None
        self._fields = Fields(layout)
        self._walker = _Walker(program)
        self._goroutines: list[DumpedGoroutine] = []
        self._running: list[_Running] = []
        #: By number: each that a byte can be.
        self._reasons = [*(reasons or ()), *[""] * 256][:256]
        #: Numbers of reasons for which a sudog may say what is waited for.
        self._have_sudogs = frozenset(reason_numbers(self._reasons, _HAVE_SUDOGS))
        self._of_channels = {
            text for text in self._reasons if meaning_of(text).wait_for in _CHANNELS
        }
        #: Return address in runtime.semacquire1 -> which word of the frame is the sudog.
        self._slots: dict[int, int] = {}
        self._locks: dict[Stack, Lock | None] = {}
        #: Address that a goroutine was started at -> whether it is the runtime's own; None where
        #: that depends on its stack.
        self._system: dict[int, bool | None] = {}
        #: Whether g.waiting leads to the sudog of a semaphore as well (since Go 1.26).
        self._is_waiting_set = layout.sudog_elem != 24
        self._sudog_size = max(layout.sudog_c, layout.sudog_elem) + 8
        #: Reads go here, batch after batch.
        self._buffer = array("Q")

    def read(
        self,
        batches: Iterable[list[int]],
        now: int | None,
        sample: Callable[[], Iterable[Sample]] | None,
    ) -> list[DumpedGoroutine]:
        """Read the goroutines at addresses, those of a batch ascending: see ``take_dump``."""
        self._now = now
        self._goroutines, self._running = [], []
        with uncollected():
            for addresses in batches:
                wanted = [self._first_look(addresses)]
                for _ in range(_TRIES):
                    wanted = [again for images in wanted for again in self._read(images)]
                for images in wanted:
                    self._give_up(images)
            if sample is not None and self._running:
                self._add_samples(sample())
        return self._goroutines

    def _first_look(self, addresses: list[int]) -> _Images:
        """Return images of a batch's goroutines that are not dead."""
        size = self._fields.size
        stride = stride_of(addresses, size)
        words = array("Q", bytes(stride * len(addresses)))
        images = _Images(addresses, words, stride >> 3)
        remote, local = array("Q"), array("Q")
        for first, end in images.runs:
            length = (end - first - 1) * stride + size
            remote.extend((addresses[first], length))
            local.extend((first * stride, length))
        self._memory.scatter(remote, words, local)
        statuses = images.column(self._fields.status)
        dead = {status for status in set(statuses) if status & _STATUS_BITS not in STATES}
        if not dead:
            return images
        return images.chosen((i for i, status in enumerate(statuses) if status not in dead), 0)

    def _read(self, seen: _Images) -> Iterator[_Images]:
        """Read goroutines with their stacks; yield those that are to be read again."""
        fields = self._fields
        sps, pcs = seen.column(fields.sp), seen.column(fields.sp + 1)
        in_syscall = seen.column(fields.syscallsp)
        if any(in_syscall):
            called_at = seen.column(fields.syscallsp + 1)
            pcs = _either(in_syscall, called_at, pcs)
            sps = _either(in_syscall, in_syscall, sps)
        window, most = _WINDOWS[seen.window], _MAX_STACK
        tops = seen.column(fields.top)
        sizes = [
            (depth if depth < window else window)
            if 0 < (depth := top - sp) <= most and not depth & 7
            else 0
            for top, sp in zip(tops, sps, strict=True)
        ]
        for first, end in _parts(sizes):
            part = seen if end - first == len(seen) else seen.part(first, end)
            yield from self._read_part(part, sps[first:end], pcs[first:end], sizes[first:end])

    def _read_part(
        self, seen: _Images, sps: array[int], pcs: array[int], sizes: list[int]
    ) -> Iterator[_Images]:
        """Read goroutines with their stacks, which begin at ``sps`` unless they have moved."""
        fields, window = self._fields, _WINDOWS[seen.window]
        read = self._read_between(seen, sps, pcs, sizes)
        before = read.before
        statuses = _statuses(before.column(fields.status))
        odd = []
        if not _AT_REST.issuperset(statuses):
            odd = [place for place, status in enumerate(statuses) if status not in _AT_REST]
        copied = {place for place in odd if statuses[place] == _COPYSTACK}  # for a moment
        ended = {place for place in odd if statuses[place] not in STATES}
        moved = self._moved(seen, read).difference(odd)
        walks = self._walks(read, moved.union(odd))
        deeper: set[int] = set()
        waiters: list[_Waiter] = []
        if any(walk.is_cut or walk.semaphore for walk in set(walks)):
            for place, walk in enumerate(walks):
                if walk.is_cut and sizes[place] == window != _WINDOWS[-1]:
                    deeper.add(place)
                elif walk.semaphore and not self._is_waiting_set:
                    frame = read.stack(place)[walk.semaphore]
                    waiters.append(_Waiter(place, frame, walk.stack[walk.semaphore_at]))
        for place in odd:
            if statuses[place] == _RUNNING:
                image = before.image(place)
                stack = image[fields.top - 1], image[fields.top]
                self._running.append(_Running(before.addresses[place], image[fields.goid], *stack))
        reasons = self._reasons_of(before, statuses)
        awaited = self._awaited_by(read, reasons, walks)
        self._find_semaphores(before, waiters, reasons, walks, awaited)
        rows = self._rows(before, statuses, reasons, awaited, walks, repeat(False))
        left_out = moved | copied | deeper | ended
        if left_out:
            rows = (row for place, row in enumerate(rows) if place not in left_out)
        self._goroutines += rows
        if moved:
            yield read.after.chosen(sorted(moved), seen.window)
        if copied:
            yield before.chosen(sorted(copied), seen.window)
        if deeper:
            yield before.chosen(sorted(deeper), seen.window + 1)

    def _read_between(
        self, seen: _Images, sps: array[int], pcs: array[int], sizes: list[int]
    ) -> _Between:
        """Read stacks, and possible sudogs, between two images of each g.

        In the buffer are the images of before and those of after, the sudogs, and the stacks.
        """
        addresses, count = seen.addresses, len(seen)
        stride, sudog_size = 8 * seen.stride, self._sudog_size
        sudogs = seen.column(self._fields.waiting)
        reasons = seen.byte_column(self._fields.reason)
        if not self._have_sudogs.issuperset(reasons):
            flags = map(self._have_sudogs.__contains__, reasons)
            sudogs = array("Q", map(mul, sudogs, flags))
        after_at = count * stride
        sudogs_at = 2 * after_at
        stacks_at = end = sudogs_at + count * sudog_size
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, key in enumerate(zip(pcs, sizes, strict=True)):
            groups[key].append(place)
        offsets = [0] * count
        for (_, length), places in groups.items():
            for place in places:
                offsets[place] = end
                end += length
        if 8 * len(self._buffer) < end:
            self._buffer = array("Q", bytes(end))
        # address and size; offset in the buffer and size
        remote_stacks, local_stacks = _pairs(sps, sizes), _pairs(offsets, sizes)
        sudog_sizes = [sudog_size if sudog else 0 for sudog in sudogs]
        sudog_offsets = range(sudogs_at, stacks_at, sudog_size)
        remote_sudogs = _pairs(sudogs, sudog_sizes)
        local_sudogs = _pairs(sudog_offsets, sudog_sizes)
        beside = [(remote_stacks, local_stacks)]
        if any(sudogs):
            beside.append((remote_sudogs, local_sudogs))
        self._read_twice(seen, after_at, beside)
        words = self._buffer
        return _Between(
            before=_Images(addresses, words[: after_at >> 3], seen.stride, seen.window),
            after=_Images(addresses, words[after_at >> 3 : sudogs_at >> 3], seen.stride),
            sudog_addresses=sudogs,
            sudogs=words[sudogs_at >> 3 : stacks_at >> 3],
            sudog_words=sudog_size >> 3,
            groups=groups,
            offsets=offsets,
            sizes=sizes,
            words=words,
        )

    def _read_twice(
        self, seen: _Images, after_at: int, beside: Sequence[tuple[array[int], array[int]]]
    ) -> None:
        """Read each g, and again after the reads ``beside`` it: from where, and to where."""
        addresses, stride, size = seen.addresses, 8 * seen.stride, self._fields.size
        remote, local = array("Q"), array("Q")
        for runs in _chunks(seen.runs):
            images, into, into_after = array("Q"), array("Q"), array("Q")
            for a, b in runs:
                length = (b - a - 1) * stride + size
                images.extend((addresses[a], length))
                into.extend((a * stride, length))
                into_after.extend((after_at + a * stride, length))
            chunk = slice(2 * runs[0][0], 2 * runs[-1][1])
            remote_chunk, local_chunk = images[:], into
            for far, near in beside:
                remote_chunk += far[chunk]
                local_chunk += near[chunk]
            if len(remote) + len(remote_chunk) + len(images) > 2 * MAX_AT_ONCE:
                self._memory.scatter(remote, self._buffer, local)
                remote, local = array("Q"), array("Q")
            remote += remote_chunk + images
            local += local_chunk + into_after
        self._memory.scatter(remote, self._buffer, local)

    def _moved(self, seen: _Images, read: _Between) -> set[int]:
        """Return which goroutines' stacks may have changed while they were read."""
        fields, before, after = self._fields, read.before, read.after
        found: set[int] = set()
        for word in (*fields.saved, fields.waiting):
            found.update(_differing(seen.column(word), before.column(word)))
        for word in fields.moves:
            found.update(_differing(before.column(word), after.column(word)))
        byte = fields.tracking
        found.update(_differing(before.byte_column(byte), after.byte_column(byte)))
        return found

    def _walks(self, read: _Between, left_out: Set[int]) -> list[_Walk]:
        """Follow the stacks that were read, but for some."""
        walks = [_NO_WALK] * len(read.offsets)
        walker = self._walker
        for (pc, size), places in read.groups.items():
            if left_out and not left_out.isdisjoint(places):
                for place in places:
                    if place not in left_out:
                        walks[place] = walker.walk(pc, read.stack(place))
            else:
                stacks = read.stack(places[0], len(places))
                found = walker.walks(pc, stacks, size >> 3, len(places))
                for place, walk in zip(places, found, strict=True):
                    walks[place] = walk
        return walks

    def _add_samples(self, samples: Iterable[Sample]) -> None:
        """Give running goroutines the stacks of samples, which were taken a moment later.

        A sample is a goroutine's whose stack SP was in, and that still has it afterwards.
        """
        found: dict[_Running, Sample] = {}
        for sample in samples:
            for one in self._running:
                if one.low <= sample.sp < one.high and sample.sp % 8 == 0:
                    found.setdefault(one, sample)
        if not found:
            return
        fields = self._fields
        goroutines = self._goroutines
        places = {one.g: at for at, one in enumerate(goroutines) if one.state is State.RUNNING}
        for one, sample in found.items():
            image = words_at(self._memory, one.g, fields.size >> 3)
            bounds = image[fields.top - 1], image[fields.top]
            if one.g not in places or (image[fields.goid], *bounds) != (
                one.goid,
                one.low,
                one.high,
            ):
                continue
            length = min(len(sample.stack), one.high - sample.sp) & ~7
            walk = self._walker.sampled(sample.pc, array("Q", sample.stack[:length]))
            if walk.is_whole or walk.is_cut:
                goroutines[places[one.g]] = goroutines[places[one.g]]._replace(
                    stack=walk.stack, is_whole=walk.is_whole
                )

    def _give_up(self, images: _Images) -> None:
        """Add goroutines that kept moving, as they are now."""
        size = self._fields.size
        raw = self._memory.gather([word for g in images.addresses for word in (g, size)])
        now = _Images(images.addresses, array("Q", bytes(raw)), size >> 3)
        statuses = _statuses(now.column(self._fields.status))
        moved = [status in _AT_REST or status == _COPYSTACK for status in statuses]
        reasons = self._reasons_of(now, statuses)
        rows = self._rows(now, statuses, reasons, repeat(None), [_NO_WALK] * len(now), moved)
        are_there = [status in STATES for status in statuses]
        self._goroutines += compress(rows, are_there)

    def _reasons_of(self, images: _Images, statuses: Sequence[int]) -> list[str]:
        """Return why goroutines wait, "" for those that do not."""
        names = map(self._reasons.__getitem__, images.byte_column(self._fields.reason))
        if _HAVE_REASON.issuperset(statuses):
            return list(names)
        flags = map(_HAVE_REASON.__contains__, statuses)
        return [name if has else "" for name, has in zip(names, flags, strict=True)]

    def _rows(
        self,
        images: _Images,
        statuses: Sequence[int],
        reasons: Iterable[str],
        awaited: Iterable[Awaited | None],
        walks: Sequence[_Walk],
        moved: Iterable[bool],
    ) -> Iterator[DumpedGoroutine]:
        fields, now = self._fields, self._now
        since = images.column(fields.waitsince)
        waiting: Iterable[int | None] = repeat(None)
        if now is not None and any(since):
            flags = map(_HAVE_TIME.__contains__, statuses)
            waiting = [
                (now - then if then < now else 0) if then and has else None
                for then, has in zip(since, flags, strict=True)
            ]
        started = images.column(fields.startpc)
        stacks = [walk.stack for walk in walks]
        columns = zip(
            images.column(fields.goid),
            map(STATES.get, statuses),
            reasons,
            waiting,
            awaited,
            map(bool, images.column(fields.lockedm)),
            self._are_system(started, stacks),
            moved,
            [walk.is_whole for walk in walks],
            images.column(fields.gopc),
            repeat(0) if fields.parent is None else images.column(fields.parent),
            started,
            images.addresses,
            images.column(fields.labels),
            stacks,
            strict=False,
        )
        # The same as Goroutine._make, in a third of the time.
        return map(tuple.__new__, repeat(DumpedGoroutine), columns)

    def _are_system(self, started: Sequence[int], stacks: Sequence[Stack]) -> list[bool]:
        known = self._system
        for address in set(started).difference(known):
            name = self._program.function_name(address) if address else ""
            sometimes = name in SOMETIMES_SYSTEM
            known[address] = None if sometimes else self._program.is_system(name, ())
        found: list[bool] = []
        for address, stack in zip(started, stacks, strict=True):
            is_system = known[address]
            if is_system is None:
                is_system = self._program.is_system(self._program.function_name(address), stack)
            found.append(is_system)
        return found

    def _awaited_by(
        self, read: _Between, reasons: Sequence[str], walks: Sequence[_Walk]
    ) -> list[Awaited | None]:
        """Return the things that goroutines wait for whose g.waiting leads to a sudog.

        A goroutine has a sudog for each channel that it waits for, and one for a semaphore. Those
        for channels, and since Go 1.26 for semaphores, g.waiting leads to. A sudog is believed that
        names the goroutine as its own.
        """
        found: list[Awaited | None] = [None] * len(reasons)
        if not any(read.sudog_addresses):
            return found
        layout, words = self._layout, read.sudog_words
        owners, channels, semaphores = (
            read.sudogs[offset >> 3 :: words] for offset in (0, layout.sudog_c, layout.sudog_elem)
        )
        channel_reasons, new = self._of_channels, tuple.__new__
        places = compress(range(len(reasons)), read.sudog_addresses)
        addresses = read.before.addresses
        for place in places:
            if owners[place] == addresses[place]:
                reason = reasons[place]
                if reason in channel_reasons:
                    if channel := channels[place]:
                        found[place] = new(Awaited, ("chan", channel))
                elif reason:
                    semaphore = semaphores[place]
                    found[place] = self._lock(reason, walks[place].stack, semaphore)
        return found

    def _find_semaphores(
        self,
        images: _Images,
        waiters: Sequence[_Waiter],
        reasons: Sequence[str],
        walks: Sequence[_Walk],
        awaited: list[Awaited | None],
    ) -> None:
        """Find the semaphores of goroutines whose stack alone leads to their sudog (up to Go 1.25).

        It is believed, too, while the goroutine has not moved.
        """
        size, tracking = self._fields.size, self._fields.tracking
        moves = itemgetter(*self._fields.moves)
        places: list[int] = []
        plans: list[Sequence[int]] = []
        for place, frame, slot in waiters:
            chosen: Sequence[int] = (self._slots.get(slot, 0),)
            if slot not in self._slots:
                chosen = [
                    index
                    for index, word in enumerate(frame)
                    if word % 8 == 0 and _MIN_ADDRESS <= word < _MAX_ADDRESS
                ]
            for index in chosen:
                places += (frame[index], self._sudog_size)
            places += (images.addresses[place], size)
            plans.append(chosen)
        raw = self._memory.gather(places)
        words = array("Q", bytes(raw))
        counts = images.byte_column(tracking)
        semaphore_at = self._layout.sudog_elem >> 3
        at = 0
        for (place, _, slot), chosen in zip(waiters, plans, strict=True):
            after = at + len(chosen) * self._sudog_size
            image = words[after >> 3 : after + size >> 3]
            if (
                moves(image) == moves(images.image(place))
                and raw[after + tracking] == counts[place]
            ):
                for index in chosen:
                    if words[at >> 3] == images.addresses[place]:
                        semaphore = words[(at >> 3) + semaphore_at]
                        lock = self._lock(reasons[place], walks[place].stack, semaphore)
                        if lock is not None:
                            awaited[place] = lock
                            self._slots[slot] = index
                            break
                    at += self._sudog_size
            at = after + size

    def _lock(self, reason: str, stack: Stack, semaphore: int) -> Awaited | None:
        wait_for, _, lock = meaning_of(reason)
        if wait_for is WaitFor.SEMAPHORE:
            lock = self._lock_of(stack)
        if lock is None or not semaphore:
            return None
        type_name, offset = lock
        if lock is WAIT_GROUP and semaphore % 8:
            offset = 0  # of three words up to Go 1.17 those that are aligned are the counters
        return Awaited(type_name, semaphore - offset)

    def _lock_of(self, stack: Stack) -> Lock | None:
        """Return whose semaphore a goroutine waits for whose reason does not say it."""
        if stack not in self._locks:
            names = (frame.function for frame in self._program.frames(stack))
            self._locks[stack] = next((_LOCKS[name] for name in names if name in _LOCKS), None)
        return self._locks[stack]


def _statuses(column: array[int]) -> Sequence[int]:
    """Return the states in a column of words of which they are a part."""
    known = {word: word & _STATUS_BITS for word in set(column)}
    if all(word == status for word, status in known.items()):
        return column
    return [known[word] for word in column]


def _either(which: array[int], one: array[int], other: array[int]) -> array[int]:
    """Return a column of words of ``one`` where ``which`` is not 0, else of ``other``."""
    rows = zip(which, one, other, strict=True)
    return array("Q", (first if chosen else second for chosen, first, second in rows))


def stride_of(addresses: Sequence[int], size: int) -> int:
    """Return how far apart most of the addresses are, that of g's that were allocated in a row."""
    apart = Counter(b - a for a, b in pairwise(addresses[:256])).most_common(1)
    if apart and size <= apart[0][0] < 2 * size and apart[0][0] % 8 == 0:
        return apart[0][0]
    return size


def _differing(one: Sequence[int], other: Sequence[int]) -> Iterable[int]:
    if one == other:
        return ()
    return (place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def _chunks(runs: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield runs that are to be read together."""
    chunk: list[tuple[int, int]] = []
    for run in runs:
        if chunk and run[1] - chunk[0][0] > _TOGETHER:
            yield chunk
            chunk = []
        chunk.append(run)
    if chunk:
        yield chunk


def _pairs(first: Iterable[int], second: Iterable[int]) -> array[int]:
    """Return words of two columns by turns."""
    column = array("Q", second)
    pairs = array("Q", bytes(16 * len(column)))
    pairs[0::2], pairs[1::2] = array("Q", first), column
    return pairs


def _parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide stacks so that each read of them is bounded: yield first and end."""
    if sum(sizes) <= _MAX_READ:
        if sizes:
            yield 0, len(sizes)
        return
    first = total = 0
    for place, size in enumerate(sizes):
        if total + size > _MAX_READ and place > first:
            yield first, place
            first, total = place, 0
        total += size
    yield first, len(sizes)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's cyclic collector from looking at all that is being made, again and again.

    It takes as long as all else here, and finds nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, eq=False, slots=True)
class _Walk:
    """A stack as far as it was followed.

    ``is_cut``: it goes on beyond the words at hand. ``semaphore``: the words of the frame of
    runtime.semacquire1, ``semaphore_at`` the frame's place in ``stack``.
    """

    stack: Stack
    is_whole: bool
    is_cut: bool
    semaphore: slice | None
    semaphore_at: int


_NO_WALK = _Walk((), False, False, None, 0)


class _Walker:
    """Follow stacks from return address to return address.

    The way through a stack depends on nothing but its pc, its length and the return addresses on
    it. So of all stacks of one pc and length those that have the same return addresses at the same
    places are the same.
    """

    def __init__(self, program: CodeNames) -> None:
        self._program = program
        #: Pc and length in words -> places of return addresses -> these -> the stack.
        self._known: dict[tuple[int, int], dict[tuple[int, ...], dict[tuple[int, ...], _Walk]]] = {}
        self._stacks: dict[Stack, Stack] = {}

    def walks(self, pc: int, words: array[int], length: int, count: int) -> list[_Walk]:
        """Follow stacks of one pc and length, one after the other in ``words``."""
        first = self.walk(pc, words[:length])
        if count == 1:
            return [first]
        shapes = self._known.get((pc, length), {})
        found: list[_Walk | None] = [None] * count
        for places, stacks in list(shapes.items()):
            if not places:
                return [stacks[()]] * count
            columns = [words[place::length] for place in places]
            here = map(stacks.get, zip(*columns, strict=True))
            found = [known or this for known, this in zip(found, here, strict=True)]
            if all(found):
                break
        return [
            walk or self.walk(pc, words[at * length : (at + 1) * length])
            for at, walk in enumerate(found)
        ]

    def walk(self, pc: int, words: array[int]) -> _Walk:
        """Follow a stack; ``words`` are those from the saved SP on."""
        key = pc, len(words)
        shapes = self._known.get(key)
        if shapes is None:
            shapes = self._known[key] = {}
        for places, stacks in shapes.items():
            known = stacks.get(tuple([words[place] for place in places]))
            if known is not None:
                return known
        walk, found = self._follow(pc, words)
        if walk.is_whole or walk.is_cut:
            places = tuple(found)
            if places in shapes or len(shapes) < _MAX_SHAPES:
                stacks = shapes.setdefault(places, {})
                if len(stacks) < _MAX_STACKS:
                    stacks[tuple([words[place] for place in places])] = walk
        return walk

    def sampled(self, pc: int, words: array[int]) -> _Walk:
        """Follow the stack of a goroutine that was interrupted at ``pc``."""
        step = self._program.step(pc | TRAPPED)
        is_switching = self._program.function_name(pc) in _SWITCHES
        if step is None or step.is_opaque or is_switching:  # SP may be anywhere
            return _NO_WALK
        return self._follow(pc | TRAPPED, words)[0]

    def _follow(self, pc: int, words: array[int]) -> tuple[_Walk, list[int]]:
        """Follow a stack frame by frame; return where its return addresses are as well."""
        frames: list[int] = []
        places: list[int] = []
        semaphore, semaphore_at = None, 0
        at, trapped, whole, cut = 0, 0, False, False
        length = len(words)
        if pc == 0 and length and self._program.pushes:
            # A call of a nil function: its caller's frame is the first.
            pc, at = words[0], 1
            places.append(0)
        while True:
            step = self._program.step(pc | trapped)
            if step is None:
                break
            frames.append(pc | trapped)
            whole = step.is_top
            if whole or (step.is_opaque and len(frames) > 1):
                break
            if not step.size:
                whole = True
                break
            start, at = at, at + step.words
            if at >= length:
                cut = True
                break
            end = start + step.size - 1
            if step.is_semaphore and end - start <= _MAX_SEMAPHORE_FRAME:
                semaphore, semaphore_at = slice(start, end), len(frames) - 1
            pc, trapped = words[at], TRAPPED if step.has_trapped else 0
            places.append(at)
            at = start + step.size
            if trapped and not self._program.pushes:
                at += _SIGNAL_WORDS
            if pc == 0:
                whole = True
                break
        stack = tuple(frames)
        if len(self._stacks) >= _MAX_KEPT:
            self._stacks.clear()
        stack = self._stacks.setdefault(stack, stack)
        return _Walk(stack, whole, cut, semaphore, semaphore_at), places
