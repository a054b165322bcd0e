# SPDX-License-Identifier: Apache-2.0
"""Read what parked goroutines wait for: channels, with what is known of them, and names of locks.

A goroutine that waits for channels has a sudog for each, linked from g.waiting: one of a send or a
receive, one for each case of a select whose channel is not nil (src/runtime/select.go, selectgo).
Each is in one of its channel's two queues, which says what it wants there.

A goroutine is read again for that. It has to be where the dump found it, by all return addresses
on the innermost part of its stack, and it must not run while its channels are read. A lock is
proven to be a field by the stack of a goroutine that waits for it (``lock_places``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, islice, repeat
from operator import attrgetter, itemgetter
from typing import NamedTuple

from gotrace.errors import GotraceError
from gotrace.goroutines.details import MAX_WITNESSES, ChannelWait, Holder, WaitDetails
from gotrace.goroutines.dump import Fields
from gotrace.goroutines.lock_places import LockPlaces
from gotrace.goroutines.memory import Memory, words_at
from gotrace.goroutines.model import Awaited, DumpedGoroutine
from gotrace.goroutines.program import TRAPPED, CodeNames
from gotrace.gotypes.runtime import RuntimeLayout
from gotrace.gotypes.symbols import display_name
from gotrace.gotypes.types import ChanDirection
from gotrace.gotypes.wait_reasons import WaitFor, meaning_of

#: Goroutines that are read together, and how often those are read that have moved meanwhile.
_TOGETHER, _TRIES = 256, 3
#: Of a stack: more than the frames of the runtime below a wait have.
_STACK = 1 << 12
#: A select has no more cases (src/reflect/value.go and cmd/compile: 1<<16).
_MAX_CASES = 1 << 16
#: A sudog's fields before elem (src/runtime/runtime2.go of Go 1.15 to 1.27), in words.
_OWNER, _PREVIOUS = 0, 2
#: hchan.qcount and hchan.dataqsiz.
_LENGTH, _CAPACITY = 0, 1

_OF_CHANNELS = {
    WaitFor.RECEIVE: ChanDirection.RECEIVE,
    WaitFor.SEND: ChanDirection.SEND,
    WaitFor.SELECT: ChanDirection.BOTH,
}

_ORDER = attrgetter("type", "address")
#: Goroutines that are looked at for those that hold locks.
_MAX_INSIDE = 4096

_Words = Sequence["array[int]"]


class _Case(NamedTuple):
    """One sudog: where it and its channel are."""

    sudog: int
    channel: int


_Note = Callable[[DumpedGoroutine, list[_Case], _Words, "array[int]"], None]


def of_channels(goroutine: DumpedGoroutine) -> bool:
    """Return whether a goroutine waits for channels that it has sudogs for."""
    return meaning_of(goroutine.reason).wait_for in _OF_CHANNELS


class WaitReader:
    """A reader of details of a program's goroutines' waits."""

    def __init__(self, program: CodeNames, memory: Memory, layout: RuntimeLayout) -> None:
        """Take the program and its memory, which stays open."""
        self._program = program
        self._memory = memory
        self._layout = layout
        self._fields = Fields(layout)
        self._places = LockPlaces(program, memory)
        self._moves = itemgetter(*self._fields.moves)
        self._sudog_words = (max(layout.sudog_c, layout.sudog_waitlink) >> 3) + 1
        self._channel_words = (layout.hchan_sendq >> 3) + 1
        #: Address of a descriptor -> the type's name, "" where it is not known.
        self._names: dict[int, str] = {}

    def of(
        self, goroutines: Iterable[DumpedGoroutine], everyone: Sequence[DumpedGoroutine] = ()
    ) -> dict[int, WaitDetails]:
        """Return the details of goroutines' waits, by the addresses of their g's.

        The channels of those are left out that are not where they were, and that keep moving.
        Receives are before sends: the order of a select's cases is not known. ``everyone`` may hold
        the locks. Raises ProcessError.
        """
        found: dict[int, WaitDetails] = {}
        locks: dict[Awaited, list[DumpedGoroutine]] = {}
        channels = []
        for one in goroutines:
            if of_channels(one):
                channels.append(one)
            elif one.awaited is not None:
                locks.setdefault(one.awaited, []).append(one)
        names = self._places.variables(locks)
        unnamed = {lock: list(locks[lock]) for lock in locks if not names[lock]}
        for one in everyone if unnamed else ():  # others that wait for it may prove more
            if one.awaited in unnamed:
                unnamed[one.awaited].append(one)
        witnesses = [one for many in unnamed.values() for one in many[:MAX_WITNESSES]]

        def note(one: DumpedGoroutine, own: list[_Case], rest: _Words, stack: array[int]) -> None:
            if own and self._are_own(one, own, rest[: len(own)]):
                fields = self._places.channels(one.stack, stack)
                found[one.g] = WaitDetails(self._waits(one, own, rest, fields))
            elif one.awaited is not None and not names.get(one.awaited, "-"):
                names[one.awaited] = self._places.field(one.awaited, one.stack, stack)

        self._read_all((*channels, *witnesses), note)
        holders = self._holders(locks, everyone)
        for lock, waiters in locks.items():
            details = WaitDetails(lock=names[lock], holder=holders.get(lock))
            found |= {one.g: details for one in waiters}
        return found

    def _holders(
        self, locks: Iterable[Awaited], everyone: Iterable[DumpedGoroutine]
    ) -> dict[Awaited, Holder]:
        """Return who may hold locks: the only one in a method of the object that a lock is in."""
        fields = [lock for lock in locks if lock in self._places.objects]
        types = {self._places.objects[lock].type for lock in fields}
        found: dict[Awaited, dict[int, Holder]] = {}

        def note(one: DumpedGoroutine, _: list[_Case], __: _Words, stack: array[int]) -> None:
            awaited = one.awaited and self._places.objects.get(one.awaited)
            for lock in fields:
                methods = self._places.methods_with(lock, one.stack, stack)
                is_inside = awaited != self._places.objects[lock]
                if is_inside and (method := next(methods, None)):
                    found.setdefault(lock, {})[one.goid] = Holder(one.goid, method)

        inside = (one for one in everyone if self._places.has_method(one.stack, types))
        if fields:
            self._read_all(islice(inside, _MAX_INSIDE), note)
        return {lock: next(iter(by.values())) for lock, by in found.items() if len(by) == 1}

    def _read_all(self, goroutines: Iterable[DumpedGoroutine], note: _Note) -> None:
        """Pass goroutines that are where they were to ``note``, and try again those that move."""
        wanted = iter(goroutines)
        while batch := list(islice(wanted, _TOGETHER)):
            for _ in range(_TRIES):
                batch = self._read(batch, note)

    def _read(self, batch: Sequence[DumpedGoroutine], note: _Note) -> list[DumpedGoroutine]:
        """Read goroutines' sudogs, channels and stacks; return goroutines that moved meanwhile.

        The first reads find out where all is, and the last one reads it, within microseconds.
        """
        size = self._fields.size >> 3
        images = self._pieces({one.g: size for one in batch})
        cases = self._cases(batch, images)
        wanted: list[tuple[int, int]] = []
        ends: list[int] = []
        for one, own in zip(batch, cases, strict=True):
            image = images[one.g]
            depth = image[self._fields.top] - image[self._fields.sp]
            room = min(depth, _STACK) >> 3 if depth > 0 else 0
            wanted += [(one.g, size), (image[self._fields.sp], room)]
            wanted += [(case.sudog, self._sudog_words) for case in own]
            wanted += [(case.channel, self._channel_words) for case in own]
            wanted.append((one.g, size))
            ends.append(len(wanted))
        pieces = self._read_pieces(wanted)
        again: list[DumpedGoroutine] = []
        for one, own, start, end in zip(batch, cases, [0, *ends], ends, strict=False):
            before, stack, *rest, after = pieces[start:end]
            if self._has_moved(before, after) or self._has_moved(images[one.g], before):
                again.append(one)
            elif self._is_where_it_was(one, before, stack):
                note(one, own, rest, stack)
        return again

    def _pieces(self, wanted: Mapping[int, int]) -> dict[int, array[int]]:
        """Return words of memory by their address; ``wanted`` says how many at each."""
        return dict(zip(wanted, self._read_pieces(list(wanted.items())), strict=True))

    def _read_pieces(self, wanted: Sequence[tuple[int, int]]) -> list[array[int]]:
        """Return words of memory in their order: an address and a number for each piece."""
        places = [word for at, count in wanted for word in (at, 8 * count)]
        words = array("Q", bytes(self._memory.gather(places)))
        ends = list(accumulate(count for _, count in wanted))
        return [words[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _has_moved(self, image: array[int], later: array[int]) -> bool:
        place, shift = self._fields.tracking >> 3, 8 * (self._fields.tracking & 7)
        counts = image[place] >> shift & 0xFF, later[place] >> shift & 0xFF
        return self._moves(image) != self._moves(later) or counts[0] != counts[1]

    def _is_where_it_was(self, one: DumpedGoroutine, image: array[int], stack: array[int]) -> bool:
        """Return whether a goroutine waits where the dump found it: its innermost frames."""
        fields = self._fields
        if image[fields.goid] != one.goid or image[fields.sp + 1] != one.stack[0]:
            return False
        _, places = self._program.frame_places(one.stack)
        near = [place for place in places[: len(one.stack) - 1] if place < len(stack)]
        follows = [pc & ~TRAPPED for pc in one.stack[1 : len(near) + 1]]
        return bool(near) and [stack[place] for place in near] == follows

    def _cases(
        self, batch: Sequence[DumpedGoroutine], images: Mapping[int, array[int]]
    ) -> list[list[_Case]]:
        """Return the places of each goroutine's sudogs and their channels."""
        found: list[list[_Case]] = [[] for _ in batch]
        links = {
            place: images[one.g][self._fields.waiting]
            for place, one in enumerate(batch)
            if of_channels(one)
        }
        for _ in range(_MAX_CASES):
            links = {place: sudog for place, sudog in links.items() if sudog}
            if not links:
                break
            sudogs = self._pieces(dict.fromkeys(links.values(), self._sudog_words))
            for place, sudog in links.items():
                channel = sudogs[sudog][self._layout.sudog_c >> 3]
                links[place] = sudogs[sudog][self._layout.sudog_waitlink >> 3] if channel else 0
                found[place].append(_Case(sudog, channel))
        return found

    def _are_own(
        self, one: DumpedGoroutine, cases: Sequence[_Case], sudogs: Sequence[array[int]]
    ) -> bool:
        """Return whether sudogs are a goroutine's, one after the other, and of these channels."""
        links = [*(case.sudog for case in cases[1:]), 0]
        return all(
            words[_OWNER] == one.g
            and words[self._layout.sudog_waitlink >> 3] == link
            and words[self._layout.sudog_c >> 3] == case.channel != 0
            for case, words, link in zip(cases, sudogs, links, strict=True)
        )

    def _waits(
        self, one: DumpedGoroutine, own: Sequence[_Case], rest: _Words, fields: Mapping[int, str]
    ) -> tuple[ChannelWait, ...]:
        """Return the waits of a goroutine; ``rest`` has the words of sudogs, then of channels."""
        waits = map(self._wait, repeat(one), own, rest[: len(own)], rest[len(own) :])
        named = [wait._replace(field=fields.get(wait.address, "")) for wait in waits]
        return tuple(sorted(named, key=_ORDER))

    def _wait(
        self, one: DumpedGoroutine, case: _Case, sudog: array[int], words: array[int]
    ) -> ChannelWait:
        layout = self._layout
        direction = _OF_CHANNELS[meaning_of(one.reason).wait_for]
        if direction is ChanDirection.BOTH:
            direction = self._direction(case.sudog, sudog[_PREVIOUS], words)
        timer = layout.hchan_timer
        return ChannelWait(
            direction,
            self._name(words[layout.hchan_elemtype >> 3]),
            case.channel,
            words[_LENGTH],
            words[_CAPACITY],
            timer is not None and words[timer >> 3] != 0,
        )

    def _direction(self, sudog: int, previous: int, words: array[int]) -> ChanDirection:
        """Return which queue of its channel a sudog is in; BOTH where that is not certain."""
        first = {
            words[self._layout.hchan_recvq >> 3]: ChanDirection.RECEIVE,
            words[self._layout.hchan_sendq >> 3]: ChanDirection.SEND,
        }
        first.pop(0, None)
        if sudog in first:
            return first[sudog]
        if len(first) == 1 and previous:
            return next(iter(first.values()))
        at = previous
        for _ in range(_MAX_CASES):  # both queues have sudogs of one goroutine alone
            if not at or at in first:
                break
            at = words_at(self._memory, at + 8 * _PREVIOUS, 1)[0]
        return first.get(at, ChanDirection.BOTH)

    def _name(self, address: int) -> str:
        """Return the name of the type whose descriptor is at an address."""
        if address not in self._names:
            self._names[address] = ""
            for module in self._program.modules:
                with suppress(GotraceError):
                    rtypes = module.binary.rtypes
                    if rtypes is not None and address - module.bias in rtypes:
                        self._names[address] = display_name(rtypes.name(address - module.bias))
        return self._names[address]
