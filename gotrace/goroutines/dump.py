# SPDX-License-Identifier: Apache-2.0
"""Read all goroutines: their states, what they wait for, and their stacks.

A goroutine that is parked, or in a system call, changes neither its saved registers nor its stack,
so both are read while the program runs: ``g``, the stack from the saved SP on, and ``g`` again, in
one system call. Where the goroutine has moved in between, it is read again, and what keeps moving
is reported as such. Of a running goroutine the registers are in a CPU: where its thread can be
sampled, it has the stack of a moment later, else none.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

from gotrace.errors import GotraceError
from gotrace.goroutines.memory import Memory, words_at
from gotrace.goroutines.model import AWAITED, Awaited, Goroutine, Stack, State
from gotrace.goroutines.program import SOMETIMES_SYSTEM, TRAPPED, Program
from gotrace.goroutines.samples import Sample
from gotrace.gotypes.runtime import RuntimeLayout
from gotrace.gotypes.wait_reasons import WaitReasons
from gotrace.records import dataclass, field

__all__ = ["Dump", "take_dump"]

#: Those of g.atomicstatus but for _Gscan, which says that the collector looks at the stack.
_STATUS_BITS = 0xFFFFEFFF
_RUNNING, _WAITING, _COPYSTACK, _LEAKED = 2, 4, 8, 10
_STATES = {
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
_AT_REST = frozenset(_STATES) - {0, _RUNNING, _COPYSTACK}
_HAVE_REASON = frozenset({_WAITING, _LEAKED})
_HAVE_TIME = frozenset({3, _WAITING})

#: Goroutines read at once; with their stacks some 4 MB.
_BATCH = 2048
#: Bytes of a stack that are read first, and then where the stack is deeper: nearly all end in the
#: first, and 1 MB is some ten thousand frames.
_WINDOWS = (1024, 16 << 10, 1 << 20)
#: At once, of the larger windows.
_MAX_READ = 16 << 20
#: How often what has moved is read.
_TRIES = 4
#: A program with more has some 40 GB of stacks; a longer list is none.
_MAX_GOROUTINES = 1 << 24
#: Stacks known by the address they begin with: most begin in runtime.gopark.
_MAX_KNOWN = 16
#: Go's own limit of a stack is 1 GB on 64-bit machines (runtime.main: maxstacksize), and twice that
#: is room for it (maxstackceiling).
_MAX_STACK = 2 << 30
#: Functions that leave one stack for another, which up to Go 1.16 have no mark that says so.
_SWITCHES = frozenset({"runtime.mcall", "runtime.morestack", "runtime.gogo"})
#: What can be an address of user space.
_MIN_ADDRESS, _MAX_ADDRESS = 4096, 1 << 56
#: Words of the frame of runtime.semacquire1, in which the sudog is looked for.
_MAX_SEMAPHORE_FRAME = 64

#: Functions that wait for a semaphore of a lock, where the reason does not say which lock it is (up
#: to Go 1.19): the type, and how far in it the semaphore is.
_LOCKS = {
    "sync.(*Mutex).lockSlow": AWAITED["sync.Mutex.Lock"],
    "sync.(*RWMutex).RLock": AWAITED["sync.RWMutex.RLock"],
    "sync.(*RWMutex).Lock": AWAITED["sync.RWMutex.Lock"],
    "sync.(*WaitGroup).Wait": AWAITED["sync.WaitGroup.Wait"],
}
_CHANNELS = frozenset(
    {"chan send", "chan receive", "chan send (durable)", "chan receive (durable)"}
)


@dataclass
class Dump:
    """All goroutines of a program at one time; ``program`` gives their frames.

    ``reasons`` may be None: then no goroutine has a reason.
    """

    program: Program
    goroutines: list[Goroutine] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Return how many goroutines kept moving while they were read."""
        return sum(goroutine.has_moved for goroutine in self.goroutines)


def take_dump(
    program: Program,
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
    return _Reader(program, memory, layout, reasons, now).dump(allgs, sample)


class _Fields:
    """Where the fields of g are in an image of it: by word, or by byte where they are narrower."""

    def __init__(self, layout: RuntimeLayout) -> None:
        offsets = [
            value
            for name in layout.__slots__
            if name.startswith("g_") and type(value := getattr(layout, name)) is int
        ]
        #: Bytes of g to read.
        self.size = (max(offsets) + 8 + 7) & ~7
        self.words = self.size >> 3
        self.top = layout.g_stack_hi >> 3
        # The pc follows in both: in gobuf of all releases, and in g.
        self.sp, self.syscallsp = layout.g_sched_sp >> 3, layout.g_syscallsp >> 3
        self.status = layout.g_atomicstatus >> 3  # in the lower half
        self.goid = layout.g_goid >> 3
        self.waitsince = layout.g_waitsince >> 3
        self.reason = layout.g_waitreason
        self.lockedm = layout.g_lockedm >> 3
        self.parent = None if layout.g_parent_goid is None else layout.g_parent_goid >> 3
        self.gopc, self.startpc = layout.g_gopc >> 3, layout.g_startpc >> 3
        self.waiting = layout.g_waiting >> 3
        words = (self.goid, self.waitsince, self.lockedm, self.gopc, self.startpc)
        #: Takes from the words of an image what is copied to its row.
        self.take = itemgetter(*words, self.goid if self.parent is None else self.parent)
        #: The bytes that show whether a goroutine has run: saved registers, status, goid; and one
        #: that counts (one that is constant up to Go 1.16).
        self.moves = (layout.g_sched_sp, layout.g_goid + 8)
        self.tracking = layout.g_tracking_seq or layout.g_goid


#: Where a goroutine's stack is by what was read last: g, SP, PC, bytes to read, the word of g that
#: SP is in, which PC follows, and the number of the window, how much of the stack is wanted.
_Guess = tuple[int, int, int, int, int, int]


class _Running(NamedTuple):
    """A running goroutine: its place in the dump, and its stack."""

    place: int
    g: int
    goid: int
    low: int
    high: int


#: A goroutine that may wait for something that can be found: its row, where that goes; g; moves and
#: tracking of g when its stack was read; words of which one may be the address of its sudog; the
#: return address of the frame that has them, 0 where the word is g's own.
_Waiter = tuple[list[Any], int, bytearray, int, Sequence[int], int]


#: Where in the arguments of Goroutine things are.
_REASON, _AWAITED, _STACK = map(Goroutine._fields.index, ("reason", "awaited", "stack"))


class _Reader:
    """One dump being taken."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        layout: RuntimeLayout,
        reasons: WaitReasons | None,
        now: int | None,
    ) -> None:
        self._program = program
        self._memory = memory
        self._layout = layout
        self._reasons = reasons or ()
        self._now = now
        self._fields = _Fields(layout)
        self._walker = _Walker(program)
        self._rows: list[list[Any]] = []
        self._waiters: list[_Waiter] = []
        #: How many goroutines there were before those in ``_rows``.
        self._before = 0
        self._running: list[_Running] = []
        #: Return address in runtime.semacquire1 -> which word of the frame is the sudog.
        self._slots: dict[int, int] = {}
        self._locks: dict[Stack, tuple[str, int] | None] = {}
        self._system: dict[int, bool] = {}
        #: Whether g.waiting leads to the sudog of a semaphore as well (since Go 1.26).
        self._is_waiting_set = layout.sudog_elem != 24

    def dump(self, allgs: int, sample: Callable[[], Iterable[Sample]] | None) -> Dump:
        """Read everything."""
        with _uncollected():
            goroutines = self._all(allgs)
            if sample is not None and self._running:
                self._add_samples(goroutines, sample())
        return Dump(self._program, goroutines)

    def _all(self, allgs: int) -> list[Goroutine]:
        goroutines: list[Goroutine] = []
        for addresses in self._batches(allgs):
            self._before, self._rows, self._waiters = len(goroutines), [], []
            guesses = self._first_look(addresses)
            for _ in range(_TRIES):
                guesses = [again for part in _parts(guesses) for again in self._read(part)]
                if not guesses:
                    break
            self._give_up(guesses)
            self._find_awaited()
            goroutines += map(Goroutine._make, self._rows)
        return goroutines

    def _batches(self, allgs: int) -> Iterator[array[int]]:
        """Yield the addresses of all g's, some at a time."""
        first, count, room = words_at(self._memory, allgs, 3)
        if not (0 < count <= room and count <= _MAX_GOROUTINES and first and first % 8 == 0):
            raise GotraceError(
                f"the program's list of goroutines cannot be read at {allgs:#x}: it has only just"
                " been started, or is not the one that its file says"
            )
        for at in range(0, count, _BATCH):
            yield words_at(self._memory, first + 8 * at, min(_BATCH, count - at))

    def _first_look(self, addresses: Sequence[int]) -> list[_Guess]:
        """Return where the stacks of a batch's goroutines are that are not dead."""
        size = self._fields.size
        places: list[int] = []
        for g in addresses:
            places += (g, size)
        guesses: list[_Guess] = []
        fields, stride = self._fields, size >> 3
        in_syscall, at_rest = fields.syscallsp, fields.sp
        window, most = _WINDOWS[0], _MAX_STACK
        with memoryview(self._memory.gather(places)) as raw, raw.cast("Q") as words:
            # By columns: a word of all images is one list.
            numbers = (fields.status, fields.top, in_syscall, in_syscall + 1, at_rest, at_rest + 1)
            columns = (words[number::stride].tolist() for number in numbers)
            for g, status, top, syscall_sp, syscall_pc, sp, pc in zip(
                addresses, *columns, strict=True
            ):
                if g and status & _STATUS_BITS in _STATES:
                    saved = at_rest
                    if syscall_sp:
                        sp, pc, saved = syscall_sp, syscall_pc, in_syscall
                    depth = top - sp
                    is_stack = 0 < depth <= most and sp % 8 == 0
                    length = (depth if depth < window else window) & ~7 if is_stack else 0
                    guesses.append((g, sp, pc, length, saved, 0))
        return guesses

    def _guess(self, g: int, words: memoryview, at: int, window: int) -> _Guess:
        """Return where a stack is by the image of g that begins at the word ``at``."""
        fields = self._fields
        saved = fields.syscallsp if words[at + fields.syscallsp] else fields.sp
        sp = words[at + saved]
        depth = words[at + fields.top] - sp
        is_stack = 0 < depth <= _MAX_STACK and sp % 8 == 0
        length = min(depth, _WINDOWS[window]) & ~7 if is_stack else 0
        return g, sp, words[at + saved + 1], length, saved, window

    def _read(self, guesses: Sequence[_Guess]) -> list[_Guess]:
        """Read goroutines with their stacks; return what is to be read again."""
        fields, size = self._fields, self._fields.size
        first, last = fields.moves
        tracking = fields.tracking
        places: list[int] = []
        for g, sp, _, length, _, _ in guesses:
            places += (g, size, sp, length, g, size)
        raw = self._memory.gather(places)
        again: list[_Guess] = []
        before = 0
        status_at, syscallsp, waiting_at = fields.status, fields.syscallsp, fields.waiting
        walk_from, is_waiting_set = self._walker.walk, self._is_waiting_set
        with memoryview(raw) as whole, whole.cast("Q") as words:
            for g, sp, pc, length, saved, window in guesses:
                stack = before + size
                after = stack + length
                at = before >> 3
                status = words[at + status_at] & _STATUS_BITS
                if status == _COPYSTACK:  # for a moment: the runtime gives it a larger stack
                    again.append(self._guess(g, words, at, window))
                elif status not in _AT_REST:
                    if status in _STATES:  # else it has ended
                        if status == _RUNNING:
                            bounds = words[at + fields.top - 1], words[at + fields.top]
                            index = self._before + len(self._rows)
                            goid = words[at + fields.goid]
                            self._running.append(_Running(index, g, goid, *bounds))
                        self._add(raw, words, before, status, g, (), False)
                elif (
                    (moves := raw[before + first : before + last])
                    != raw[after + first : after + last]
                    or (count := raw[before + tracking]) != raw[after + tracking]
                    or words[at + saved] != sp
                    or words[at + saved + 1] != pc
                    or (saved != syscallsp and words[at + syscallsp])
                ):
                    again.append(self._guess(g, words, after >> 3, window))
                else:
                    walk = walk_from(pc, words[stack >> 3 : after >> 3])
                    if walk.is_cut and length == _WINDOWS[window] != _WINDOWS[-1]:
                        again.append(self._guess(g, words, at, window + 1))
                    else:
                        row = self._add(raw, words, before, status, g, walk.stack, walk.is_whole)
                        if status in _HAVE_REASON:
                            waiting: Sequence[int] = (words[at + waiting_at],)
                            slot = 0
                            if walk.semaphore and not is_waiting_set:
                                waiting = words[stack >> 3 : after >> 3][walk.semaphore].tolist()
                                slot = walk.stack[walk.semaphore_at]
                            if waiting[0] or slot:
                                self._waiters.append((row, g, moves, count, waiting, slot))
                before = after + size
        return again

    def _add_samples(self, goroutines: list[Goroutine], samples: Iterable[Sample]) -> None:
        """Give running goroutines the stacks of samples, which were taken a moment later.

        A sample is a goroutine's whose stack SP was in, and that still has it afterwards.
        """
        found: dict[_Running, Sample] = {}
        for sample in samples:
            for one in self._running:
                if one.low <= sample.sp < one.high and sample.sp % 8 == 0:
                    found.setdefault(one, sample)
        fields, size = self._fields, self._fields.size
        raw = self._memory.gather([word for one in found for word in (one.g, size)])
        with memoryview(raw) as whole, whole.cast("Q") as words:
            for number, (one, sample) in enumerate(found.items()):
                at = number * size >> 3
                bounds = words[at + fields.top - 1], words[at + fields.top]
                if (words[at + fields.goid], *bounds) != (one.goid, one.low, one.high):
                    continue
                length = min(len(sample.stack), one.high - sample.sp) & ~7
                walk = self._walker.sampled(sample.pc, memoryview(sample.stack)[:length].cast("Q"))
                if walk.is_whole or walk.is_cut:
                    goroutines[one.place] = goroutines[one.place]._replace(
                        stack=walk.stack, is_whole=walk.is_whole
                    )

    def _give_up(self, guesses: Sequence[_Guess]) -> None:
        """Add goroutines that kept moving, as they are now."""
        size = self._fields.size
        raw = self._memory.gather([word for guess in guesses for word in (guess[0], size)])
        with memoryview(raw) as whole, whole.cast("Q") as words:
            for guess, at in zip(guesses, range(0, len(raw), size), strict=True):
                status = words[(at >> 3) + self._fields.status] & _STATUS_BITS
                if status in _STATES:
                    moved = status in _AT_REST or status == _COPYSTACK
                    self._add(raw, words, at, status, guess[0], (), False, moved=moved)

    def _add(
        self,
        raw: bytearray,
        words: memoryview,
        image: int,
        status: int,
        g: int,
        stack: Stack,
        is_whole: bool,
        moved: bool = False,
    ) -> list[Any]:
        """Add the goroutine whose image begins at a byte of what was read."""
        fields = self._fields
        at = image >> 3
        goid, since, locked, gopc, started_at, parent = fields.take(words[at : at + fields.words])
        reason = ""
        if status in _HAVE_REASON:
            number = raw[image + fields.reason]
            if number < len(self._reasons):
                reason = self._reasons[number]
        waiting = None
        if since and self._now is not None and status in _HAVE_TIME:
            waiting = max(self._now - since, 0)
        is_system = self._system.get(started_at)
        if is_system is None:
            is_system = self._is_system(started_at, stack)
        row: list[Any] = [
            goid,
            _STATES[status],
            reason,
            waiting,
            None,
            locked != 0,
            is_system,
            moved,
            is_whole,
            gopc,
            0 if fields.parent is None else parent,
            started_at,
            g,
            stack,
        ]
        self._rows.append(row)
        return row

    def _is_system(self, started_at: int, stack: Stack) -> bool:
        """Return whether a goroutine is one of the runtime's own."""
        name = self._program.function_name(started_at) if started_at else ""
        found = self._program.is_system(name, stack)
        return found if name in SOMETIMES_SYSTEM else self._system.setdefault(started_at, found)

    def _find_awaited(self) -> None:
        """Read what goroutines wait for.

        A goroutine has a sudog for each channel that it waits for, and one for a semaphore. Those
        for channels, and since Go 1.26 for semaphores, g.waiting leads to. Up to Go 1.25 only the
        frame of runtime.semacquire1 has that for a semaphore. A sudog is believed that names the
        goroutine as its own, while it has not moved.
        """
        size, tracking = self._fields.size, self._fields.tracking
        first, last = self._fields.moves
        sudog_size = max(self._layout.sudog_c, self._layout.sudog_elem) + 8
        places: list[int] = []
        plans: list[Sequence[int]] = []
        for _, g, _, _, sudogs, slot in self._waiters:
            chosen: Sequence[int] = (0,)  # g.waiting
            if slot in self._slots:
                chosen = (self._slots[slot],)
            elif slot:
                chosen = [
                    index
                    for index, word in enumerate(sudogs)
                    if word % 8 == 0 and _MIN_ADDRESS <= word < _MAX_ADDRESS
                ]
            for index in chosen:
                places += (sudogs[index], sudog_size)
            places += (g, size)
            plans.append(chosen)
        raw = self._memory.gather(places)
        at = 0
        with memoryview(raw) as whole, whole.cast("Q") as words:
            for (row, g, moves, count, _, slot), chosen in zip(self._waiters, plans, strict=True):
                after = at + len(chosen) * sudog_size
                if raw[after + first : after + last] == moves and raw[after + tracking] == count:
                    for index in chosen:
                        if words[at >> 3] == g:
                            awaited = self._awaited(row, words, at >> 3)
                            if awaited is not None:
                                row[_AWAITED] = awaited
                                if slot:
                                    self._slots[slot] = index
                                break
                        at += sudog_size
                at = after + size

    def _awaited(self, row: list[Any], words: memoryview, sudog: int) -> Awaited | None:
        """Return what the goroutine of a row waits for by the sudog that begins at a word."""
        reason = row[_REASON]
        if reason in _CHANNELS:
            channel = words[sudog + (self._layout.sudog_c >> 3)]
            return Awaited("chan", channel) if channel else None
        lock = AWAITED.get(reason)
        if lock is None and reason == "semacquire":
            lock = self._lock_of(row[_STACK])
        semaphore = words[sudog + (self._layout.sudog_elem >> 3)]
        if lock is None or not semaphore:
            return None
        type_name, offset = lock
        if type_name == "sync.WaitGroup" and semaphore % 8:
            offset = 0  # of three words up to Go 1.17 those that are aligned are the counters
        return Awaited(type_name, semaphore - offset)

    def _lock_of(self, stack: Stack) -> tuple[str, int] | None:
        """Return whose semaphore a goroutine waits for whose reason does not say it."""
        if stack not in self._locks:
            names = (frame.function for frame in self._program.frames(stack))
            self._locks[stack] = next((_LOCKS[name] for name in names if name in _LOCKS), None)
        return self._locks[stack]


@contextmanager
def _uncollected() -> Iterator[None]:
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


def _parts(guesses: Sequence[_Guess]) -> Iterator[list[_Guess]]:
    """Divide goroutines so that what is read of their stacks at once is bounded."""
    part: list[_Guess] = []
    size = 0
    for guess in guesses:
        if size + guess[3] > _MAX_READ and part:
            yield part
            part, size = [], 0
        part.append(guess)
        size += guess[3]
    if part:
        yield part


class _Walk(NamedTuple):
    """A stack as far as it was followed.

    ``is_cut``: it goes on beyond the words at hand. ``semaphore``: the words of the frame of
    runtime.semacquire1, ``semaphore_at`` the frame's place in ``stack``.
    """

    stack: Stack
    is_whole: bool
    is_cut: bool
    semaphore: slice | None
    semaphore_at: int


class _Walker:
    """Follow stacks from return address to return address."""

    def __init__(self, program: Program) -> None:
        self._program = program
        #: First pc and words at hand -> stacks found there: how to take the return addresses of one
        #: and the last place of these, them, and the stack. Those alike are mostly as deep.
        self._known: dict[
            tuple[int, int], list[tuple[Callable[[memoryview], object], int, object, _Walk]]
        ] = {}
        self._stacks: dict[Stack, Stack] = {}

    def walk(self, pc: int, words: memoryview) -> _Walk:
        """Follow a stack; ``words`` are those from the saved SP on."""
        length = len(words)
        known = self._known.get((pc, length))
        if known is None:
            known = self._known[pc, length] = []
        for index, (take, last, returns, walk) in enumerate(known):
            # The same return addresses at the same places: all that the way depends on.
            if last < length and take(words) == returns:
                if index:
                    known.insert(0, known.pop(index))
                return walk
        walk, places = self._follow(pc, words)
        if places and walk.is_whole:
            take = itemgetter(*places)
            known.insert(0, (take, places[-1], take(words), walk))
            del known[_MAX_KNOWN:]
        return walk

    def sampled(self, pc: int, words: memoryview) -> _Walk:
        """Follow the stack of a goroutine that was interrupted at ``pc``."""
        step = self._program.step(pc | TRAPPED)
        is_switching = self._program.function_name(pc) in _SWITCHES
        if step is None or step.is_opaque or is_switching:  # SP may be anywhere
            return _Walk((), False, False, None, 0)
        return self._follow(pc | TRAPPED, words)[0]

    def _follow(self, pc: int, words: memoryview) -> tuple[_Walk, list[int]]:
        """Follow a stack frame by frame; return where its return addresses are as well."""
        frames: list[int] = []
        places: list[int] = []
        semaphore, semaphore_at = None, 0
        at, trapped, whole, cut = 0, 0, False, False
        length = len(words)
        if pc == 0 and length:  # a call of a nil function: its caller's frame is the first
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
            start, at = at, at + step.words
            if at >= length:
                cut = True
                break
            if step.is_semaphore and at - start <= _MAX_SEMAPHORE_FRAME:
                semaphore, semaphore_at = slice(start, at), len(frames) - 1
            pc, trapped = words[at], TRAPPED if step.has_trapped else 0
            places.append(at)
            at += 1
            if pc == 0:
                whole = True
                break
        stack = tuple(frames)
        stack = self._stacks.setdefault(stack, stack)
        return _Walk(stack, whole, cut, semaphore, semaphore_at), places
